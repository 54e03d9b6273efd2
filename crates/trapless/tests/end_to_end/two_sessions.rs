//! Two tools on one process: they count side by side, come and go in any order, and only one follows calls.

use crate::support::assembly::X86;
use crate::support::tool::{Ran, Summary, Tool, detach, run};
use crate::support::{Program, Target, counting_tells_unwinders, eventually};

/// `f` tail-calls `g`.
const SOURCE: &str = r#"
#include <stdio.h>
static volatile unsigned long calls, wrong;
__attribute__((noinline, noclone)) long g(long x) { volatile long a = x; return a + 1; }
__attribute__((noinline, noclone)) long f(long x) { __asm__ volatile("nop\nnop\nnop\nnop\nnop"); return g(x * 2); }
static volatile int stop;
int main(void) {
    printf("ready %lx %lx\n", (long)&calls, (long)&stop);
    fflush(stdout);
    for (long i = 0; !stop; i++) { wrong += f(i) != 2 * i + 1; calls++; }
    printf("%lu %lu\n", calls, wrong);
    fflush(stdout);
    getchar();
}
"#;

fn run_on(target: &Target) {
    let before = target.read_word(target.address(0));
    eventually("it calls", || target.read_word(target.address(0)) > before + 2000);
}

#[track_caller]
fn finish(target: &mut Target) {
    target.write(target.address(1), &1u32.to_le_bytes());
    let line = target.line();
    assert!(line.ends_with(" 0"), "wrong results or dead: {line:?}");
}

#[test]
fn two_tools_count_side_by_side_and_end_in_any_order() {
    let program = Program::build("two", SOURCE, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let text = pid.to_string();
    let counts = ["count", "-p", &text, "two:g"];
    for first in [&["count", "-p", &text, "two:f"][..], &["count", "--return", "-p", &text, "two:f"]] {
        for (order, first_ends_first) in [(0, true), (0, false), (1, true), (1, false)] {
            let arguments = if order == 0 { [first, &counts] } else { [&counts, first] };
            let one = Tool::armed(arguments[0]);
            run_on(&target);
            if order == 1 && first.contains(&"--return") && counting_tells_unwinders() {
                let refused = run(&[arguments[1], &["-d", "0.1"]].concat());
                assert!(refused.code != Some(0), "{refused:?}");
                assert!(refused.err.contains(&format!("process {} follows calls", one.pid())), "{refused:?}");
                one.interrupt();
                continue;
            }
            let other = Tool::armed(arguments[1]);
            run_on(&target);
            let (earlier, later) = if first_ends_first { (one, other) } else { (other, one) };
            let earlier = earlier.interrupt();
            run_on(&target);
            let later = later.interrupt();
            let hits = |summary: &Summary| summary.0["probes"][0]["hits"].as_u64().unwrap();
            assert!(hits(&earlier) > 2000 && hits(&later) > 2000, "{earlier:?} {later:?}");
            run_on(&target);
            detach(pid);
            before.assert_restored(pid);
        }
    }
    finish(&mut target);
}

/// Both draw the same places for their memory. The one that comes later finds it mapped, and the other's jump is not its own.
#[test]
fn of_two_tools_that_come_at_the_same_time_none_takes_out_what_the_other_one_has_put_in() {
    let program = Program::build("two", SOURCE, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let text = pid.to_string();
    let count = || run(&["count", "-p", &text, "two:g", "-d", "0.3", "-f", "json"]);
    for round in 0..10 {
        let ran = std::thread::scope(|scope| {
            [(); 2].map(|()| scope.spawn(count)).map(|tool| tool.join().expect("a tool that ends"))
        });
        let counted = ran.iter().filter(|ran| ran.code == Some(0)).map(Ran::summary);
        let counted: Vec<Summary> = counted.collect();
        assert!(!counted.is_empty(), "round {round}: {ran:?}");
        for Summary(summary) in counted {
            assert!(summary["probes"][0]["hits"].as_u64() > Some(0), "round {round}: {summary}");
            assert_eq!(summary["lost_sites"].as_array().map(Vec::len), Some(0), "round {round}: {summary}");
        }
        for ran in ran.iter().filter(|ran| ran.code != Some(0)) {
            let is_said = |words| ran.err.contains(words);
            // By what it has seen ahead of the stop, or in it.
            assert!(
                is_said("another trapless (process") || is_said("another tool has patched it"),
                "{ran:?}"
            );
            assert!(ran.code == Some(1) && !is_said("--allow-trap"), "{ran:?}");
        }
        before.assert_restored(pid);
    }
    finish(&mut target);
}

#[test]
fn only_one_tool_follows_calls() {
    let program = Program::build("two", SOURCE, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let text = pid.to_string();
    // Elsewhere probes that trap follow no calls, whoever else does.
    let traps: &[&[&str]] = if X86 { &[&["--allow-trap", "--mechanism", "step"]] } else { &[] };
    for &mechanism in [&[][..]].iter().chain(traps) {
        let first = Tool::armed(&["count", "--return", "-p", &text, "two:f"]);
        let second = run(&[&["latency", "-p", &text, "two:g", "-d", "0.1"][..], mechanism].concat());
        assert!(second.code != Some(0), "{second:?}");
        assert!(second.err.contains(&format!("process {} follows calls", first.pid())), "{second:?}");
        run_on(&target);
        first.interrupt();
        // It is free again.
        let second = run(&["latency", "-p", &text, "two:g", "-d", "0.1", "-f", "json"]);
        assert!(second.summary().hits("g", "return") > 0, "{second:?}");
    }
    detach(pid);
    before.assert_restored(pid);
    finish(&mut target);
}
