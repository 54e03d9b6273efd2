//! Hard case C1: functions that jump back to their entries. A round of a loop is no call: these jumps are led past the probe, and every
//! number is exact. What the jumps look like is x86's own; flow.rs has those of the others.
#![cfg(target_arch = "x86_64")]

use crate::support::park::park;
use crate::support::spinners::{self, Spinners};
use crate::support::tool::{Tool, detach, kill_after, length_of, moments, run, trapless};
use crate::support::{self, Program, eventually};
use std::time::Duration;

/// What the loop's jump takes: two bytes, so it moves with what is behind it; and where the instructions begin. Bit 62 is set in the first round
/// and taken back in the second one.
const SHORT: (&str, [u64; 5]) =
    ("nop; btc $62, %rdi; .byte 0x73, subject - . - 1; lea 1(%rdi,%rdi), %rax; ret", [0, 1, 6, 8, 13]);
/// Six bytes: it stays.
const LONG: (&str, [u64; 5]) = (
    "nop; btc $62, %rdi; .byte 0x0f, 0x83; .long subject - . - 4; lea 1(%rdi,%rdi), %rax; ret",
    [0, 1, 6, 12, 17],
);
/// Instructions inside what is changed: of what is displaced, and of what moves with the jump.
const INSIDE: [(&str, [u64; 5], &[u64]); 2] = [(SHORT.0, SHORT.1, &[1, 8]), (LONG.0, LONG.1, &[1])];

/// Functions that count down from x, return 7, and are called once by every thread in each round. Jumps back of `tail_long`: of five
/// and six bytes; `tail_short`: of two, with what is ahead; `steps`: of two, with what is behind; `landed`: to the landing place and behind
/// it; `close`: two that move together; `calls`: with a call in the loop; `recursive`: calls itself, too.
const LOOPS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __x86_64__
#define X "%rdi"
#define LOW "%dil"
#define A "%rax"
#define B "%rbx"
#define ENDBR "endbr64"
#define CONVENTION
#else
#define X "%ecx"
#define LOW "%cl"
#define A "%eax"
#define B "%ebx"
#define ENDBR "endbr32"
#define CONVENTION __attribute__((fastcall))
#endif
#define FUNCTION(name, body) asm(".text; .p2align 4; .globl " #name "; .type " #name ", @function; " #name ": " body \
    "; .size " #name ", . - " #name "; .skip 32, 0xcc"); CONVENTION long name(long x);
#define BACK(opcode, to) ".byte " opcode "; .long " to " - . - 4; "
#define BACK_SHORT(opcode, to) ".byte " opcode ", " to " - . - 1; "
#define SEVEN "mov $7, %eax; ret"
FUNCTION(leaf, "xor %eax, %eax; nop; nop; nop; nop; ret")
FUNCTION(tail_long, "push " B "; mov " X ", " B "; and $3, " B "; jz 3f; cmp $1, " B "; jz 4f; sub $1, " X "; pop " B "; " BACK("0xe9", "tail_long")
    "3: test " X ", " X "; jz 5f; sub $1, " X "; pop " B "; " BACK("0xe9", "tail_long")
    "4: sub $1, " X "; pop " B "; test " X ", " X "; " BACK("0x0f, 0x89", "tail_long") "ud2; 5: pop " B "; " SEVEN)
FUNCTION(tail_short, "sub $1, " X "; cmp $0, " X "; jle 3f; mov " X ", " A "; " BACK_SHORT("0xeb", "tail_short") "3: " SEVEN)
FUNCTION(steps, "lea -1(" X "), " X "; test " X ", " X "; " BACK_SHORT("0x7f", "steps") SEVEN)
FUNCTION(landed, ENDBR "; push " B "; lea -1(" X "), " X "; mov " X ", " B "; and $1, " B "; pop " B "; jz 3f; cmp $0, " X "; "
    BACK("0x0f, 0x8f", "landed") SEVEN "; 3: cmp $0, " X "; " BACK("0x0f, 0x8f", "landed + 4") SEVEN)
FUNCTION(close, "lea -1(" X "), " X "; test $1, %cl; nop; cmp $1, " X "; " BACK_SHORT("0x7f", "close") BACK_SHORT("0x74", "close") SEVEN)
FUNCTION(calls, "push " X "; nop; nop; nop; nop; call leaf; pop " X "; sub $1, " X "; cmp $0, " X "; " BACK_SHORT("0x7f", "calls") SEVEN)
FUNCTION(recursive, "sub $1, " X "; cmp $0, " X "; jle 3f; test $1, " LOW "; " BACK_SHORT("0x74", "recursive")
    "push " X "; call recursive; pop " X "; ret; 3: " SEVEN)
typedef CONVENTION long function(long);
static function *all[] = { tail_long, tail_short, steps, landed, close, calls, recursive };
static long rounds;
static volatile long done;
static void *worker(void *unused) {
    long wrong = 0;
    for (long round = 0; round != rounds; round++) {
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) wrong += all[i](1 + (round & 7)) != 7;
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

const LOOPING: [&str; 7] = ["tail_long", "tail_short", "steps", "landed", "close", "calls", "recursive"];
const ROUNDS: u64 = 2000;

/// How often `function` is called with x, and by itself.
fn calls_of(function: &str, x: u64) -> u64 {
    match (function, x) {
        ("leaf", x) => x,
        ("recursive", x) if x > 1 => match (x - 1) % 2 {
            0 => calls_of(function, x - 1),
            _ => 1 + calls_of(function, x - 1),
        },
        _ => 1,
    }
}

/// And how often in `ROUNDS` rounds of all threads.
fn calls(function: &str) -> u64 {
    4 * ROUNDS / 8 * (1..=8).map(|x| calls_of(function, x)).sum::<u64>()
}

#[test]
fn c1_entries_with_jumps_back_are_probed_by_a_jump() {
    for program in Program::in_both_widths("loops", LOOPS, &[]) {
        let path = program.path().display().to_string();
        let rows = run(&["list", &path, "*", "-f", "json"]).json();
        for name in LOOPING {
            let row = rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(row["mechanism"], "jump", "{row}");
        }
        let explain = |name: &str| run(&["explain", &format!("{path}:{name}")]).out;
        let long = explain("tail_long");
        assert_eq!(long.matches("5 bytes, and leads past the probe").count(), 2, "{long}");
        assert_eq!(long.matches("6 bytes, and leads past the probe").count(), 1, "{long}");
        let short = explain("tail_short");
        assert_eq!(short.matches("moved away").count(), 1, "{short}");
        assert_eq!(explain("close").matches("3 instructions moved away").count(), 1);
        assert!(!explain("leaf").contains("jumps back"));
    }
}

#[test]
fn c1_calls_are_counted_once_and_rounds_not_at_all() {
    for program in Program::in_both_widths("loops", LOOPS, &[]) {
        let path = program.path().to_str().unwrap();
        let verbs = [&["count"][..], &["count", "--return"], &["latency"], &["trace", "--return"]];
        for (flags, by) in verbs.into_iter().flat_map(|flags| ["jump", "short"].map(|by| (flags, by))) {
            let rounds = ROUNDS.to_string();
            let probes = LOOPING.map(|name| format!("{by}:loops:{name}"));
            let mut arguments = flags.to_vec();
            arguments.extend(probes.iter().map(String::as_str));
            arguments.extend(["loops:leaf", "-f", "json", "--", path, &rounds]);
            let ran = run(&arguments);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let summary = ran.summary();
            for name in LOOPING.iter().chain(&["leaf"]) {
                if flags[0] != "latency" {
                    assert_eq!(summary.hits(name, "entry"), calls(name), "{name} {flags:?}");
                }
                if flags != ["count"] {
                    assert_eq!(summary.hits(name, "return"), calls(name), "{name} {flags:?}");
                    assert_eq!(summary.lost(name), 0, "{name} {flags:?}");
                }
            }
        }
    }
}

/// A function that begins with a loop, in lines of assembly.
const LINED: &str = "\
.text
.globl lined
.type lined, @function
lined:
 lea 1(%rsi,%rsi), %rax; nop
 sub $1, %rdi
 .byte 0x0f, 0x85
 .long lined - . - 4
 mov $7, %eax
 ret
.size lined, . - lined
.section .note.GNU-stack, \"\", @progbits
";

#[test]
fn c1_a_line_at_the_entry_is_passed_in_each_round() {
    let dir = tempfile::tempdir().unwrap();
    let assembly = dir.path().join("lined.s");
    std::fs::write(&assembly, LINED).unwrap();
    let source = "long lined(long x); int main(void) { return lined(10) != 7; }";
    let program = Program::build("lines", source, &["-g", assembly.to_str().unwrap()]);
    let path = program.path().to_str().unwrap();
    for (probe, hits) in [("lines:lined", 1), ("lines:lined.s:5", 10)] {
        let ran = run(&["count", probe, "-f", "json", "--", path]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.summary().0["probes"][0]["hits"], hits, "{probe}: {ran:?}");
    }
}

/// Functions that look at their return addresses, so that they are followed to where they are left: `noted`, which loops by a long and a
/// short jump; `through`, whose exit is among the first instructions; and `near`, which has no room for a jump back and for the exit behind it.
const NOTED: &str = r#"
#include <stdio.h>
#define FUNCTION(name, body) asm(".text; .p2align 4; .globl " #name "; .type " #name ", @function; " #name ": " body \
    "; .size " #name ", . - " #name "; .skip 32, 0xcc"); long name(long x);
#define BACK(opcode, to) ".byte " opcode "; .long " to " - . - 4; "
#define BACK_SHORT(opcode, to) ".byte " opcode ", " to " - . - 1; "
#define LOOKS "mov (%rsp), %rax; mov $7, %eax; "
FUNCTION(noted, "nop; nop; nop; nop; nop; " LOOKS "sub $1, %rdi; jz 3f; test $1, %dil; jz 4f; " BACK("0xe9", "noted")
    "4: xor %ecx, %ecx; nop; " BACK_SHORT("0xeb", "noted") "3: nop; nop; nop; nop; ret")
FUNCTION(short_loop, "nop; nop; nop; nop; nop; " LOOKS "sub $1, %rdi; " BACK_SHORT("0x75", "short_loop") "ret")
FUNCTION(through, "test %edi, %edi; jnz 3f; ret; 3: " LOOKS "sub $1, %rdi; " BACK("0xe9", "through"))
FUNCTION(through_short, "test %edi, %edi; jnz 3f; ret; 3: " LOOKS "sub $1, %rdi; " BACK_SHORT("0xeb", "through_short"))
FUNCTION(near, "nop; nop; nop; nop; nop; " LOOKS "sub $1, %rdi; jmp 3f; ud2; 3: " BACK_SHORT("0x75", "near") "ret")
int main(void) {
    long wrong = 0;
    for (long x = 1; x <= 1000; x++)
        wrong += (noted(x) != 7) + (short_loop(x) != 7) + (through(x) != 7) + (through_short(x) != 7) + (near(x) != 7);
    printf("%ld\n", wrong);
    return wrong != 0;
}
"#;

#[test]
fn c1_calls_that_are_noted_are_noted_once_and_left_once() {
    let program = Program::build("noted", NOTED, &[]);
    let path = program.path().to_str().unwrap();
    for flags in [&["count"][..], &["count", "--return"], &["latency"]] {
        let output = program.dir().join("numbers");
        let options =
            ["noted:*", "-x", "noted:main", "-f", "json", "-o", output.to_str().unwrap(), "--", path];
        let ran = run(&[flags, &options].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let summary = support::tool::Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
        for name in ["noted", "short_loop", "through", "through_short"] {
            if flags[0] == "count" {
                assert_eq!(summary.hits(name, "entry"), 1000, "{name} {flags:?}");
            }
            if flags != ["count"] {
                assert_eq!(summary.hits(name, "return"), 1000, "{name} {flags:?}: {summary:?}");
                assert_eq!(summary.lost(name), 0, "{name} {flags:?}");
            }
        }
        let near = summary.skipped("near");
        match flags.len() {
            1 if flags[0] == "count" => assert_eq!((near, summary.hits("near", "entry")), (None, 1000)),
            _ => assert!(near.as_ref().is_some_and(|why| why.contains("displaces")), "{near:?}"),
        }
    }
}

#[test]
fn p5_a_storm_of_attaching_and_detaching_harms_no_loop() {
    for program in Program::in_both_widths("loops", LOOPS, &[]) {
        let mut target = program.start(&["-1"]);
        let (pid, before) = (target.pid(), target.text());
        let text = pid.to_string();
        for cycle in 0..24 {
            let probes = ["loops:*", "short:loops:*"][cycle / 3 % 2];
            let flags = [&["count"][..], &["count", "--return"], &["latency"]][cycle % 3];
            let ran =
                run(&[flags, &["-p", &text, probes, "-x", "loops:main", "-d", "0.002", "-f", "json"]]
                    .concat());
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

/// Stops all, each thread at the last instruction of `subject`. The number of calls so far, less those.
fn stand_at_end(spinners: &Spinners, offsets: &[u64; 5]) -> u64 {
    spinners.target.freeze();
    for worker in spinners.workers() {
        park(&spinners.target, worker, spinners.subject() + offsets[4], 0);
    }
    spinners.calls()
}

#[test]
fn p5_no_hit_is_lost_or_invented_while_a_loop_is_armed() {
    for (body, offsets) in [SHORT, LONG] {
        let program = spinners::build(body, "", "");
        let mut spinners = Spinners::start(&program, 3);
        let before = spinners.target.text();
        for flags in [&["count"][..], &["count", "--return"]].repeat(3) {
            let first = stand_at_end(&spinners, &offsets);
            let tool = Tool::armed(&[flags, &["-p", &spinners.pid(), "jump:spinners:subject"]].concat());
            spinners.target.thaw();
            spinners.run_on();
            let calls = stand_at_end(&spinners, &offsets) - first;
            let summary = tool.interrupt();
            assert_eq!(summary.hits("subject", "entry"), calls);
            if flags.len() > 1 {
                // Those at the end have not returned yet.
                assert_eq!(summary.hits("subject", "return"), calls - 3);
            }
            spinners.target.thaw();
            spinners.run_on();
        }
        eventually("it is as it was", || {
            detach(spinners.target.pid());
            before.is_now(spinners.target.pid())
        });
        spinners.finish();
    }
}

#[test]
fn p1_threads_parked_at_each_instruction_are_in_their_calls_yet() {
    for (body, offsets) in [SHORT, LONG] {
        let program = spinners::build(body, "", "");
        let mut spinners = Spinners::start(&program, offsets.len());
        let before = spinners.target.text();
        let [counted, calls] = spinners.count_from(&offsets);
        // The one at the entry may be in a round.
        assert_eq!(counted, calls - offsets.len() as u64);
        before.assert_restored(spinners.target.pid());
    }
}

#[test]
fn p1_threads_parked_at_each_instruction_of_an_armed_loop_leave_it() {
    for ((body, _), flags, rounds) in
        [(SHORT, &["count"][..], 5), (LONG, &["count"], 4), (SHORT, &["count", "--return"], 9)]
    {
        let program = spinners::build(body, "", "");
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
fn p3_a_signal_frame_that_holds_an_address_inside_a_moved_jump_keeps_its_site_unpatched() {
    for (body, offset, inside) in
        INSIDE.into_iter().flat_map(|(body, offsets, inside)| offsets.map(|offset| (body, offset, inside)))
    {
        let program = spinners::build(body, "", "");
        let mut spinners = Spinners::start(&program, 1);
        let before = spinners.target.text();
        spinners.interrupt_at(spinners.subject() + offset, libc::SIGUSR1);
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject", "spinners:second"]);
        spinners.end_handling();
        spinners.run_on();
        spinners.finish();
        let summary = tool.interrupt();
        assert_eq!(
            summary.skipped("subject").as_deref(),
            inside
                .contains(&offset)
                .then_some("a stack or saved context holds an address inside the displaced instructions"),
            "offset {offset}"
        );
        before.assert_restored(spinners.target.pid());
    }
}

#[test]
fn p7_probes_at_every_instruction_at_once_count_exactly_or_are_refused() {
    for program in Program::in_both_widths("loops", LOOPS, &[]) {
        let path = program.path().to_str().unwrap();
        let rounds = ROUNDS.to_string();
        for function in LOOPING {
            let entry = format!("loops:{function}");
            let inner: Vec<String> = (1..70).map(|offset| format!("loops:{function}+{offset:#x}")).collect();
            let inner = || inner.iter().map(String::as_str);
            let orders: [Vec<&str>; 2] =
                [[&*entry].into_iter().chain(inner()).collect(), inner().chain([&*entry]).collect()];
            for (order, probes) in orders.into_iter().enumerate() {
                let ran = run(&[&["count", "-f", "json"], &probes[..], &["--", path, &rounds]].concat());
                assert_eq!(ran.code, Some(0), "{ran:?}");
                let summary = ran.summary();
                match (order, summary.skipped(function)) {
                    (1, Some(reason)) => {
                        assert!(reason.contains("another probe") || reason.contains("displaces"), "{reason}");
                    }
                    (_, skipped) => {
                        assert_eq!(skipped, None, "{function}");
                        assert_eq!(summary.hits(function, "entry"), calls(function), "{function}");
                    }
                }
            }
        }
    }
}

#[test]
fn p7_another_session_gets_no_byte_of_a_jump_back() {
    for (body, offsets) in [SHORT, LONG] {
        let program = spinners::build(body, "", "");
        let mut spinners = Spinners::start(&program, 2);
        let (pid, before) = (spinners.pid(), spinners.target.text());
        let [entry, jump] = [0, offsets[2]].map(|offset| format!("jump:spinners:subject+{offset:#x}"));
        let jump_alone = Tool::armed(&["count", "-p", &pid, &jump]);
        run(&["count", "-p", &pid, "jump:spinners:subject", "-d", "0.1"])
            .assert_refused(1, &["another trapless (process", "has a probe there"]);
        jump_alone.interrupt();
        let first = Tool::armed(&["count", "-p", &pid, "jump:spinners:subject"]);
        for other in [&entry, &jump] {
            run(&["count", "-p", &pid, other, "-d", "0.1"])
                .assert_refused(1, &["another trapless (process", "has a probe there"]);
        }
        spinners.run_on();
        first.interrupt();
        before.assert_restored(spinners.target.pid());
        spinners.finish();
    }
}

#[test]
fn p9_killing_the_tool_at_any_moment_leaves_what_detach_removes() {
    for (body, _) in [SHORT, LONG] {
        let program = spinners::build(body, "", "");
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
}
