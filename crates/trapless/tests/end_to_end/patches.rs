//! Hard cases P4 to P8: where patches lie, how often they come and go, and who else is there.

use crate::support::assembly::{BREAKPOINT, LANDING_PAD};
use crate::support::spinners::{self, PLAIN, Spinners, storm};
use crate::support::tool::{Ran, Tool, detach, finish, run, trapless};
use crate::support::{Program, counting_tells_unwinders, text::Text};

const MODIFIED: &str = "the code in memory is not the file's";

/// Offsets in a page where a patch of five or six bytes crosses or touches a boundary of 8, 64 or 4096 bytes.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const PLACES: [usize; 16] = [2, 3, 4, 7, 8, 58, 59, 60, 63, 64, 4090, 4091, 4092, 4094, 4095, 4096];
/// Offsets in a page where a patch of one instruction touches such a boundary.
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
const PLACES: [usize; 6] = [4, 8, 60, 64, 4092, 4096];

/// A program whose functions put their patches at those places, with and without a landing pad in front.
fn aligned() -> (Program, Vec<String>) {
    let mut names = Vec::new();
    let mut assembly = String::new();
    for place in PLACES {
        for (pad, size) in [("", 0), LANDING_PAD] {
            let name = format!("f_{place}_{size}");
            let (pad, skip) = (pad.replace("NAME", &name), 4096 + place - size);
            assembly += &format!(
                ".p2align 13; .skip {skip}; .globl {name}; .type {name}, %function; {name}: {pad}{PLAIN}; .size {name}, . - {name}; "
            );
            names.push(name);
        }
    }
    let declarations: String = names.iter().map(|name| format!("long {name}(long);")).collect();
    let list = names.join(",");
    let source = format!(
        r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "assembly.h"
asm(".text; {assembly}");
{declarations}
static long (*const all[])(long) = {{ {list} }};
static long rounds;
static void *worker(void *unused) {{
    long wrong = 0;
    for (long round = 0; round < rounds; round++)
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) wrong += all[i](round) != 2 * round + 1;
    return (void *)wrong;
}}
int main(int argc, char **argv) {{
    rounds = atol(argv[1]);
    pthread_t ids[4];
    long wrong = 0;
    for (int i = 0; i < 4; i++) pthread_create(&ids[i], NULL, worker, NULL);
    for (int i = 0; i < 4; i++) {{ void *result; pthread_join(ids[i], &result); wrong += (long)result; }}
    return wrong != 0;
}}
"#
    );
    (Program::build("aligned", &source, &[]), names)
}

#[test]
fn p4_patches_across_boundaries_count_exactly() {
    let (program, names) = aligned();
    let path = program.path().to_str().unwrap();
    let ran = run(&["count", "--return", "aligned:f_*", "-f", "json", "--", path, "1000"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let summary = ran.summary();
    for name in names {
        assert_eq!((summary.hits(&name, "entry"), summary.hits(&name, "return")), (4000, 4000), "{name}");
    }
}

#[test]
fn p5_a_storm_of_attaching_and_detaching_harms_nobody() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 4);
    let (pid, before) = (spinners.pid(), spinners.target.text());
    for cycle in 0..storm(150) {
        let verb: &[&str] = [&["count"][..], &["count", "--return"], &["latency"]][cycle % 3];
        let ran = run(&[verb, &["-p", &pid, "spinners:s*", "-d", "0.002", "-f", "json"]].concat());
        assert_eq!(ran.code, Some(0), "{cycle}: {ran:?}");
        assert!(spinners.target.is_alive(), "cycle {cycle}");
    }
    before.assert_restored(spinners.target.pid());
    spinners.run_on();
    spinners.finish();
}

#[test]
fn p5_no_hit_is_lost_or_invented_in_a_window_where_the_probe_is_armed() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 3);
    let pid = spinners.pid();
    for cycle in 0..storm(15) {
        let flags: &[&str] = if cycle % 2 == 0 { &["count"] } else { &["count", "--return"] };
        let first = spinners.stand_at_entry();
        let tool = Tool::armed(&[flags, &["-p", &pid, "spinners:subject"]].concat());
        spinners.target.thaw();
        spinners.run_on();
        let calls = spinners.stand_at_entry() - first;
        let summary = tool.interrupt();
        assert_eq!(summary.hits("subject", "entry"), calls, "cycle {cycle}");
        if cycle % 2 == 1 {
            assert_eq!(summary.hits("subject", "return"), calls, "cycle {cycle}");
        }
        spinners.target.thaw();
        spinners.run_on();
    }
    spinners.finish();
}

#[test]
fn p6_detaching_finds_nothing_before_and_after_and_everything_in_between() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.target.pid(), spinners.target.text());
    assert!(detach(pid).json().is_empty());
    let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:*"]);
    // While its owner watches: it ends its run as usual.
    let removed = detach(pid).json();
    assert_eq!(removed.len(), 1, "{removed:?}");
    before.assert_restored(pid);
    spinners.run_on();
    tool.interrupt();
    before.assert_restored(pid);
    assert!(detach(pid).json().is_empty());
    spinners.finish();
}

#[test]
fn p6_attaching_again_takes_over_what_an_interrupted_run_left() {
    let program = spinners::build(PLAIN, "", "");
    for verb in ["count", "latency"] {
        let mut spinners = Spinners::start(&program, 2);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        Tool::armed(&[verb, "-p", &spinners.pid(), "spinners:subject"]).kill();
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject"]);
        spinners.run_on();
        let summary = tool.interrupt();
        assert!(summary.hits("subject", "entry") > 0, "{summary:?}");
        before.assert_restored(pid);
        spinners.finish();
    }
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn p7_probes_that_share_bytes_are_told_apart() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 1);
    let pid = spinners.pid();
    let of = |place: &str| format!("spinners:subject{place}");
    let (first, inside, last, behind) = (of(""), of("+0x1"), of("+0x3"), of("+0x6"));
    let tool = Tool::armed(&["count", "-p", &pid, &inside, &first, &behind, &last]);
    spinners.run_on();
    spinners.finish();
    let summary = tool.interrupt();
    assert!(summary.hits("subject", "entry") > 0);
    // The one thread may have stood between the two when they were armed.
    let missed = summary.hits("subject+0x6", "entry") - summary.hits("subject", "entry");
    assert!(missed <= 1, "{missed}");
    for name in ["subject+0x1", "subject+0x3"] {
        let reason = summary.skipped(name).unwrap_or_default();
        assert!(reason.contains("another probe, at"), "{name}: {summary:?}");
    }
}

/// Where a probe takes one instruction, it shares nothing.
#[test]
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn p7_probes_at_neighbours_all_count() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 1);
    let pid = spinners.pid();
    let places = ["subject", "subject+0x4", "subject+0x8", "subject+0xc"];
    let sites = places.map(|place| format!("spinners:{place}"));
    let called = spinners.stand_at_entry();
    let tool = Tool::armed(&["count", "-p", &pid, &sites[2], &sites[0], &sites[3], &sites[1]]);
    spinners.target.thaw();
    spinners.run_on();
    let calls = spinners.finish() - called;
    let summary = tool.interrupt();
    assert_eq!(places.map(|place| summary.hits(place, "entry")), [calls; 4], "{summary:?}");
}

#[test]
fn p7_a_site_in_the_middle_of_an_instruction_is_refused() {
    let program = spinners::build(PLAIN, "", "");
    let spinners = Spinners::start(&program, 1);
    run(&["count", "-p", &spinners.pid(), "spinners:subject+0x2"])
        .assert_refused(1, &["in the middle of an instruction"]);
}

/// What another tool may write into the bytes that a probe takes, and where: breakpoints and a jump.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const THEIRS: [(u64, &[u8]); 4] = [(0, BREAKPOINT), (3, BREAKPOINT), (0, &[0xe9, 1, 2, 3, 4]), (5, &[0x90])];
#[cfg(target_arch = "aarch64")]
const THEIRS: [(u64, &[u8]); 2] = [(0, BREAKPOINT), (0, &0x1400_0100_u32.to_le_bytes())];
#[cfg(target_arch = "powerpc64")]
const THEIRS: [(u64, &[u8]); 2] = [(0, BREAKPOINT), (0, &0x4800_0400_u32.to_le_bytes())];

#[test]
fn p7_another_tools_breakpoint_or_jump_is_left_alone() {
    let program = spinners::build(PLAIN, "", "");
    for (offset, theirs) in THEIRS {
        let spinners = Spinners::start(&program, 1);
        spinners.target.freeze();
        spinners.target.write(spinners.subject() + offset, theirs);
        let with_theirs = spinners.target.text();
        run(&["count", "-p", &spinners.pid(), "spinners:subject", "-d", "0.01"])
            .assert_refused(1, &[MODIFIED]);
        assert!(spinners.target.text() == with_theirs);
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:s*"]);
        assert!(tool.interrupt().skipped("subject").unwrap().contains(MODIFIED));
        assert!(spinners.target.text() == with_theirs);
    }
}

#[test]
fn p7_a_breakpoint_set_over_our_jump_keeps_the_detour_until_it_is_gone() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 1);
    let (pid, before) = (spinners.target.pid(), spinners.target.text());
    let original = spinners.target.read(spinners.subject(), BREAKPOINT.len());
    let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject"]);
    spinners.target.freeze();
    spinners.target.write(spinners.subject(), BREAKPOINT);
    tool.interrupt();
    assert_eq!(
        spinners.target.read(spinners.subject(), BREAKPOINT.len()),
        BREAKPOINT,
        "the breakpoint is not ours to take"
    );
    // Who set it without being a tracer was the kernel, which puts back what the file has.
    spinners.target.write(spinners.subject(), &original);
    spinners.target.thaw();
    spinners.run_on();
    assert_eq!(detach(pid).code, Some(0));
    before.assert_restored(pid);
    spinners.finish();
}

#[test]
fn p7_two_sessions_share_a_process_but_no_site() {
    let program = spinners::build(PLAIN, "", "");
    for first_in_first_out in [true, false] {
        let mut spinners = Spinners::start(&program, 2);
        let (pid, before) = (spinners.pid(), spinners.target.text());
        let one = Tool::armed(&["count", "-p", &pid, "spinners:subject"]);
        let whose = format!("another trapless (process {}) has a probe there", one.pid());
        run(&["count", "-p", &pid, "spinners:subject"]).assert_refused(1, &[&whose]);
        if counting_tells_unwinders() {
            // Its handler could walk the stack, and the unwinder asks the first one.
            run(&["count", "-p", &pid, "spinners:second"]).assert_refused(1, &["go astray"]);
            assert!(one.interrupt().hits("subject", "entry") > 0);
            before.assert_restored(spinners.target.pid());
            spinners.finish();
            continue;
        }
        let other = Tool::armed(&["count", "--return", "-p", &pid, "spinners:second"]);
        spinners.run_on();
        let tools = if first_in_first_out {
            [(one, "subject"), (other, "second")]
        } else {
            [(other, "second"), (one, "subject")]
        };
        for (tool, function) in tools {
            assert!(tool.interrupt().hits(function, "entry") > 0);
            spinners.run_on();
        }
        before.assert_restored(spinners.target.pid());
        spinners.finish();
    }
}

/// Threads that call `subject` ten times each and end, eight at a time.
const CHURN: &str = include_str!("targets/churn.c");

#[test]
fn p8_threads_that_come_and_go_are_counted_exactly() {
    let program = Program::build("churn", CHURN, &[]);
    let path = program.path().to_str().unwrap();
    let ran =
        run(&["count", "--return", "churn:subject", "-f", "json", "-o", "/dev/stderr", "--", path, "500"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "ready\n"), "{ran:?}");
    let summary = Ran { out: ran.err, err: String::new(), code: ran.code }.summary();
    assert_eq!((summary.hits("subject", "entry"), summary.hits("subject", "return")), (40_000, 40_000));
}

#[test]
fn p8_threads_that_come_and_go_while_we_seize_are_all_found() {
    let program = Program::build("churn", CHURN, &[]);
    let mut target = program.start(&["-1"]);
    let before = Text::of(target.pid());
    for cycle in 0..storm(40) {
        let ran = finish(&mut trapless(&[
            "count",
            "--return",
            "churn:subject",
            "-p",
            &target.pid().to_string(),
            "-d",
            "0.005",
        ]));
        assert_eq!(ran.code, Some(0), "{cycle}: {ran:?}");
        assert!(target.is_alive(), "cycle {cycle}");
    }
    before.assert_restored(target.pid());
}
