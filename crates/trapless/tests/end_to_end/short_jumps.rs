//! Hard cases C1 and C2: sites that five bytes do not fit. A short jump leads to room nearby, and every other way into these bytes
//! still works.
// Elsewhere each instruction has the size of a jump.
#![cfg(target_arch = "x86_64")]

use crate::support::park::park;
use crate::support::spinners::{self, Spinners};
use crate::support::tool::{Tool, detach, kill_after, length_of, moments, run, trapless};
use crate::support::{Program, eventually};
use std::time::Duration;

/// The loop leads behind the first instruction, of two bytes. What stands from 2 to 13 has to move.
const MOVED: &str = "push $2; 3: decl (%rsp); jnz 3b; push %rbx; mov $3, %ebx; lea 1(%rdi,%rdi), %rax; pop %rbx; pop %rcx; ret";
/// The same, with nops behind its end.
const PADDED: &str = "push $2; 3: decl (%rsp); jnz 3b; push %rbx; mov $3, %ebx; lea 1(%rdi,%rdi), %rax; pop %rbx; pop %rcx; ret; \
    nop; nop; nop; nop; nop";
/// Too short, and without padding: what stands from 8 to 18 has to move, in the function behind it.
const STUB: &str = "xor %eax, %eax; jmp lender";
const LENDER: &str = "; .globl lender; .type lender, @function; lender: add $1, %rax; push %rbx; mov $3, %ebx; \
    lea (%rax,%rdi,2), %rax; pop %rbx; ret; .size lender, . - lender; \
    .skip 160, 0";
/// What nobody can tell from a table: there is no room in it.
const APART: &str = ".skip 160, 0";
/// Where the instructions of both begin, and where the short jump leads.
const BESIDE_OFFSETS: [u64; 8] = [0, 2, 4, 8, 9, 14, 18, 19];
const BESIDE_ENTRANCE: u64 = 8 + 5;
/// Where the instructions of `MOVED` begin.
const OFFSETS: [u64; 9] = [0, 2, 5, 7, 8, 13, 18, 19, 20];
/// Where its short jump leads.
const ENTRANCE: u64 = 2 + 5;

/// Functions that return what their names say, and other ways into each of them. Every one is called by every thread in each round.
/// Lengths in front of the place where others jump in: 2, 3, 4.
const LAYOUTS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#define FUNCTION(name, body) asm(".text; .globl " #name "; .type " #name ", @function; " #name ": " body "; .size " #name ", . - " #name); int name(void);
FUNCTION(two_padded, "xor %eax, %eax; into_two_padded: add $2, %eax; ret; nop; nop; nop; nop; nop")
FUNCTION(abuts, "mov $17, %eax; ret")
FUNCTION(two_moved, "xor %eax, %eax; into_two_moved: mov $1, %ecx; mov $1, %edx; add %ecx, %eax; add %edx, %eax; ret")
FUNCTION(three_padded, "xor %eax, %eax; cltd; into_three_padded: add $3, %eax; jmp 1f; .skip 9, 0xcc; 1: ret")
FUNCTION(three_moved, "xor %eax, %eax; cltd; into_three_moved: mov $2, %ecx; add $1, %ecx; add %ecx, %eax; ret")
FUNCTION(four_moved, "xor %eax, %eax; xor %edx, %edx; into_four_moved: add $1, %eax; test %edx, %edx; jnz 1f; add $3, %eax; 1: mov $0, %ecx; add %ecx, %eax; xor %ecx, %ecx; nop; ret")
FUNCTION(landed, "endbr64; xor %eax, %eax; into_landed: mov $5, %ecx; mov $1, %edx; add %ecx, %eax; add %edx, %eax; ret")
FUNCTION(one, "cltd; into_one: mov $1, %eax; mov $1, %ecx; mov $1, %edx; ret")
asm(".skip 160, 0");
FUNCTION(beside_this, "xor %eax, %eax; ret")
FUNCTION(behind, "mov $18, %eax; ret")
FUNCTION(its_lender, "mov $19, %eax; mov $1, %ecx; mov $1, %edx; sub %ecx, %eax; add %edx, %eax; ret")
asm(".skip 160, 0");
FUNCTION(twin_a, "xor %eax, %eax; ret")
FUNCTION(twin_b, "xor %eax, %eax; ret")
FUNCTION(twins_lender, "mov $19, %eax; mov $1, %ecx; mov $1, %edx; sub %ecx, %eax; add %edx, %eax; ret")
asm(".skip 160, 0");
FUNCTION(no_room, "xor %eax, %eax; into_no_room: inc %eax; ret")
asm(".skip 160, 0");
FUNCTION(via_two_padded, "mov $100, %eax; jmp into_two_padded")
FUNCTION(via_two_moved, "mov $100, %eax; jmp into_two_moved")
FUNCTION(via_three_padded, "mov $100, %eax; jmp into_three_padded")
FUNCTION(via_three_moved, "mov $100, %eax; jmp into_three_moved")
FUNCTION(via_four_moved, "mov $100, %eax; xor %edx, %edx; jmp into_four_moved")
FUNCTION(via_landed, "mov $100, %eax; jmp into_landed")
FUNCTION(via_one, "jmp into_one")
FUNCTION(via_no_room, "mov $100, %eax; jmp into_no_room")
static struct { int (*function)(void); int returns; } all[] = {
    { two_padded, 2 }, { abuts, 17 }, { two_moved, 2 }, { three_padded, 3 }, { three_moved, 3 }, { four_moved, 4 }, { landed, 6 },
    { one, 1 }, { no_room, 1 }, { behind, 18 }, { beside_this, 0 }, { its_lender, 19 },
    { twin_a, 0 }, { twin_b, 0 }, { twins_lender, 19 }, { via_two_padded, 102 }, { via_two_moved, 102 }, { via_three_padded, 103 },
    { via_three_moved, 103 }, { via_four_moved, 104 }, { via_landed, 106 }, { via_one, 1 }, { via_no_room, 101 },
};
static long rounds;
static volatile long done;
static void *worker(void *unused) {
    long wrong = 0;
    for (long round = 0; round != rounds; round++) {
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) wrong += all[i].function() != all[i].returns;
        __atomic_fetch_add(&done, 1, __ATOMIC_RELAXED);
        if (wrong) abort();
    }
    return NULL;
}
int main(int argc, char **argv) {
    rounds = atol(argv[1]);
    pthread_t ids[4];
    printf("ready %lx\n", (long)&done);
    fflush(stdout);
    for (int i = 0; i < 4; i++) pthread_create(&ids[i], NULL, worker, NULL);
    for (int i = 0; i < 4; i++) pthread_join(ids[i], NULL);
    return 0;
}
"#;

const SHORT: [&str; 6] = ["two_padded", "two_moved", "three_padded", "three_moved", "four_moved", "landed"];

#[test]
fn c2_every_layout_is_offered_by_what_fits_or_refused_by_its_reason() {
    for program in Program::in_both_widths("layouts", LAYOUTS, &[]) {
        let path = program.path().display().to_string();
        let rows = run(&["list", &path, "*", "-f", "json"]).json();
        let of =
            |name: &str| rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{name}"));
        for name in SHORT {
            assert_eq!(of(name)["mechanism"], "short", "{}", of(name));
            assert_eq!(of(name)["code"], "branch_into", "{}", of(name));
        }
        assert_eq!(of("beside_this")["mechanism"], "short", "{}", of("beside_this"));
        assert_eq!(of("beside_this")["code"], "too_short", "{}", of("beside_this"));
        for name in ["abuts", "behind", "its_lender"] {
            assert_eq!(of(name)["mechanism"], "jump", "{}", of(name));
        }
        for name in ["one", "no_room"] {
            // Where `inc` takes a byte there is one less.
            let code = if name == "no_room" && program.is_32bit() { "too_short" } else { "branch_into" };
            assert!(of(name)["mechanism"] == "boost" && of(name)["code"] == code, "{}", of(name));
        }
        let explain = run(&["explain", &format!("{path}:no_room")]).out;
        assert!(explain.contains("short    no: there is no room for a jump"), "{explain}");
        let explain = run(&["explain", &format!("{path}:one")]).out;
        assert!(explain.contains("short    no: a branch leads to"), "{explain}");
        let explain = run(&["explain", &format!("{path}:two_padded")]).out;
        assert!(explain.contains("short    possible, chosen"), "{explain}");
        assert!(
            explain.contains("a short jump leads from") && explain.contains("5 bytes of padding"),
            "{explain}"
        );
        let explain = run(&["explain", &format!("{path}:two_moved")]).out;
        assert!(explain.contains("its room: 10 bytes, 2 instructions moved away"), "{explain}");
    }
}

#[test]
fn c1_every_entry_is_counted_exactly_and_every_other_way_in_still_works() {
    for program in Program::in_both_widths("layouts", LAYOUTS, &[]) {
        let path = program.path().to_str().unwrap();
        for flags in [&["count"][..], &["count", "--return"], &["latency"]] {
            let ran =
                run(&[flags, &["layouts:*o*", "layouts:*e*", "-f", "json", "--", path, "2000"]].concat());
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let summary = ran.summary();
            for name in SHORT.iter().chain(&["behind", "beside_this", "its_lender"]) {
                if flags[0] == "count" {
                    assert_eq!(summary.hits(name, "entry"), 8000, "{name} {flags:?}");
                }
                if flags.len() > 1 {
                    assert_eq!(summary.hits(name, "return"), 8000, "{name} {flags:?}");
                }
            }
        }
    }
}

#[test]
fn p7_probes_at_every_instruction_at_once_count_exactly_or_are_refused() {
    for program in Program::in_both_widths("layouts", LAYOUTS, &[]) {
        let path = program.path().to_str().unwrap();
        for function in SHORT {
            let probes: Vec<String> =
                (0..24).map(|offset| format!("layouts:{function}+{offset:#x}")).collect();
            for reversed in [false, true] {
                let mut probes: Vec<&str> = probes.iter().map(String::as_str).collect();
                if reversed {
                    probes.reverse();
                }
                let ran = run(&[&["count", "-f", "json"], &probes[..], &["--", path, "500"]].concat());
                assert_eq!(ran.code, Some(0), "{ran:?}");
                // Up to where others come in, control arrives by the entry alone.
                let summary = ran.json().pop().unwrap();
                let armed = summary["probes"].as_array().unwrap();
                assert!(!armed.is_empty());
                let mut seen = [false; 2];
                for probe in armed {
                    let name = probe["function"].as_str().unwrap();
                    let offset =
                        name.split_once("+0x").map_or(0, |(_, hex)| u64::from_str_radix(hex, 16).unwrap());
                    let inner = if function == "landed" { 6 } else { into(function) };
                    let expected = match offset {
                        // Behind its end.
                        6.. if function == "two_padded" => 0,
                        _ if offset < inner => 2000,
                        _ => 4000,
                    };
                    assert_eq!(probe["hits"], expected, "{name}: {ran:?}");
                    seen[usize::from(offset >= inner)] = true;
                }
                assert!(seen[1], "{ran:?}");
            }
        }
    }
}

#[test]
fn p7_room_that_another_session_has_taken_is_none() {
    let program = Program::build("layouts", LAYOUTS, &[]);
    let target = program.start(&["-1"]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let first = Tool::armed(&["count", "-p", &pid, "layouts:twin_a"]);
    run(&["count", "-p", &pid, "layouts:twin_b", "-d", "0.1"]).assert_refused(1, &["too short for a jump"]);
    let second = Tool::armed(&["count", "-p", &pid, "layouts:twin_b", "--allow-trap"]);
    let done = target.read(target.address(0), 8);
    eventually("it goes on", || target.read(target.address(0), 8) != done);
    for (tool, name) in [(second, "twin_b"), (first, "twin_a")] {
        assert!(tool.interrupt().hits(name, "entry") > 0, "{name}");
    }
    before.assert_restored(target.pid());
}

#[test]
fn p7_what_is_probed_itself_lends_no_room() {
    for program in Program::in_both_widths("layouts", LAYOUTS, &[]) {
        let path = program.path().to_str().unwrap();
        let every = (0..20).map(|offset| format!("layouts:its_lender+{offset:#x}"));
        for reversed in [false, true] {
            let mut probes: Vec<String> =
                ["layouts:beside_this".to_owned()].into_iter().chain(every.clone()).collect();
            if reversed {
                probes.reverse();
            }
            let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
            let ran = run(&[&["count", "-f", "json"], &probes[..], &["--", path, "500"]].concat());
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let summary = ran.json().pop().unwrap();
            let armed = summary["probes"].as_array().unwrap();
            assert!(armed.len() > 2, "{ran:?}");
            assert!(armed.iter().all(|probe| probe["hits"] == 2000), "{ran:?}");
        }
    }
}

/// Where others come in.
fn into(function: &str) -> u64 {
    ["two", "three", "four"].iter().position(|name| function.starts_with(name)).unwrap() as u64 + 2
}

#[test]
fn p5_a_storm_of_attaching_and_detaching_harms_no_entry() {
    for program in Program::in_both_widths("layouts", LAYOUTS, &[]) {
        let mut target = program.start(&["-1"]);
        let (pid, before) = (target.pid(), target.text());
        let text = pid.to_string();
        for cycle in 0..18 {
            let flags = [&["count"][..], &["count", "--return"], &["latency"]][cycle % 3];
            let ran = run(&[flags, &["-p", &text, "layouts:*_*", "-d", "0.002", "-f", "json"]].concat());
            assert_eq!(ran.code, Some(0), "{cycle}: {ran:?}");
            assert!(target.is_alive(), "cycle {cycle}: {ran:?}");
        }
        eventually("it is as it was", || {
            detach(pid);
            before.is_now(pid)
        });
        let done = target.read(target.address(0), 4);
        eventually("it goes on", || target.read(target.address(0), 4) != done);
        assert!(target.is_alive());
    }
}

#[test]
fn p5_no_hit_is_lost_or_invented_while_a_short_jump_is_armed() {
    for body in [MOVED, PADDED] {
        let program = spinners::build(body, APART, "");
        let mut spinners = Spinners::start(&program, 3);
        for flags in [&["count"][..], &["count", "--return"]].repeat(3) {
            let first = spinners.stand_at_entry();
            let tool = Tool::armed(&[flags, &["-p", &spinners.pid(), "short:spinners:subject"]].concat());
            spinners.target.thaw();
            spinners.run_on();
            let calls = spinners.stand_at_entry() - first;
            let summary = tool.interrupt();
            assert_eq!(summary.hits("subject", "entry"), calls);
            if flags.len() > 1 {
                assert_eq!(summary.hits("subject", "return"), calls);
            }
            spinners.target.thaw();
            spinners.run_on();
        }
        spinners.finish();
    }
}

#[test]
fn p1_threads_parked_at_each_instruction_of_site_and_room_move_to_their_copies() {
    for (body, behind, offsets) in [(MOVED, "", &OFFSETS[..]), (STUB, LENDER, &BESIDE_OFFSETS)] {
        let program = spinners::build(body, APART, behind);
        let mut spinners = Spinners::start(&program, offsets.len());
        let before = spinners.target.text();
        let [counted, calls] = spinners.count_from(offsets);
        // All but the first had entered already.
        assert_eq!(counted, calls - (offsets.len() as u64 - 1));
        before.assert_restored(spinners.target.pid());
    }
}

#[test]
fn p1_threads_parked_at_each_instruction_behind_a_short_jump_leave_it() {
    for (body, behind, flags, rounds) in [
        (MOVED, "", &["count"][..], 5),
        (PADDED, "", &["count"], 4),
        (MOVED, "", &["count", "--return"], 9),
        (STUB, LENDER, &["count"], 5),
        (STUB, LENDER, &["count", "--return"], 9),
    ] {
        let program = spinners::build(body, APART, behind);
        let mut spinners = Spinners::start(&program, 8);
        let before = spinners.target.text();
        let pid = spinners.pid();
        for round in 0..rounds {
            let tool = Tool::armed(&[flags, &["-p", &pid, "spinners:subject"]].concat());
            spinners.run_on();
            spinners.stand_in_line(round);
            tool.interrupt();
            // A stack that stands may hold words of ours for now.
            if flags.len() == 1 {
                before.assert_restored(spinners.target.pid());
            }
            spinners.target.thaw();
            spinners.run_on();
            eventually("it is as it was", || {
                detach(spinners.target.pid());
                before.is_now(spinners.target.pid())
            });
        }
        spinners.finish();
    }
}

#[test]
fn p3_a_signal_frame_that_holds_an_interior_address_of_the_room_keeps_its_site_unpatched() {
    let moved = OFFSETS.map(|offset| (MOVED, "", offset, (3..13).contains(&offset)));
    let beside = BESIDE_OFFSETS.map(|offset| (STUB, LENDER, offset, (9..18).contains(&offset)));
    for (body, behind, offset, refused) in moved.into_iter().chain(beside) {
        let program = spinners::build(body, APART, behind);
        let mut spinners = Spinners::start(&program, 1);
        let before = spinners.target.text();
        spinners.interrupt_at(spinners.subject() + offset, libc::SIGUSR1);
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject", "spinners:second"]);
        spinners.end_handling();
        spinners.run_on();
        spinners.finish();
        let summary = tool.interrupt();
        let reason = summary.skipped("subject");
        assert_eq!(
            reason.as_deref(),
            refused.then_some("a stack or saved context holds an address inside the displaced instructions"),
            "offset {offset}"
        );
        before.assert_restored(spinners.target.pid());
    }
}

#[test]
fn p3_a_signal_frame_between_both_jumps_keeps_them_until_the_handler_returns() {
    let places = [(MOVED, "", ENTRANCE), (STUB, LENDER, BESIDE_ENTRANCE)];
    for (removed_by_detach, (body, behind, entrance)) in
        [false, true].into_iter().flat_map(|way| places.map(|place| (way, place)))
    {
        let program = spinners::build(body, APART, behind);
        let mut spinners = Spinners::start(&program, 1);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject"]);
        spinners.run_on();
        spinners.interrupt_at(spinners.subject() + entrance, libc::SIGUSR1);
        match removed_by_detach {
            true => drop(tool.kill()),
            false => drop(tool.interrupt()),
        }
        let left = detach(pid).json();
        assert_eq!(left[0]["memory_kept"], true, "{left:?}");
        spinners.end_handling();
        spinners.run_on();
        detach(pid);
        before.assert_restored(pid);
        spinners.finish();
    }
}

#[test]
fn p1_a_thread_where_the_room_was_is_left_there_when_a_removed_session_is_looked_at_again() {
    let program = spinners::build(MOVED, APART, "");
    for flags in [&["count"][..], &["count", "--return"]] {
        let mut spinners = Spinners::start(&program, 4);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        let tool = Tool::armed(&[flags, &["-p", &pid.to_string(), "spinners:subject"]].concat());
        spinners.run_on();
        // A word that leads to the instructions that were moved keeps the session's memory.
        let room = spinners.subject() + 2;
        let jump: [u8; 5] = spinners.target.read(room, 5).try_into().unwrap();
        assert_eq!(jump[0], 0xe9);
        let moved = i32::from_le_bytes(jump[1..].try_into().unwrap());
        let (word, unused) =
            (room.wrapping_add_signed(5 + i64::from(moved)), spinners.target.address(1) + 16);
        spinners.target.write(unused, &word.to_le_bytes());
        tool.interrupt();
        for _ in 0..10 {
            spinners.target.freeze();
            for worker in spinners.workers() {
                park(&spinners.target, worker, spinners.subject() + ENTRANCE, 0);
            }
            let left = detach(pid).json();
            assert_eq!(left[0]["memory_kept"], true, "{left:?}");
            spinners.target.thaw();
            spinners.run_on();
        }
        spinners.target.write(unused, &[0; 8]);
        detach(pid);
        before.assert_restored(pid);
        spinners.finish();
    }
}

#[test]
fn p9_killing_the_tool_at_any_moment_leaves_what_detach_removes() {
    let program = spinners::build(MOVED, APART, "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.target.pid(), spinners.target.text());
    let text = spinners.pid();
    let arguments = ["count", "-p", &text, "spinners:subject", "-d", "0.001"];
    let whole = length_of(&mut trapless(&arguments));
    for moment in moments(30, whole * 30 / 27) {
        kill_after(&mut trapless(&arguments), moment + Duration::from_micros(50));
        assert!(spinners.target.is_alive(), "killed after {moment:?}");
        detach(pid);
        before.assert_restored(pid);
    }
    spinners.run_on();
    spinners.finish();
}
