//! Handlers of signals see the program: where a displaced instruction faults, and where a detour is interrupted.
#![cfg(target_arch = "x86_64")]

use crate::support::park::Stepper;
use crate::support::text::eventually_nothing_is_left;
use crate::support::tool::{Tool, run};
use crate::support::{Program, Target};

const HANDLERS: &str = include_str!("targets/handlers.c");
const FAULTING: &str = include_str!("targets/faulting.c");

/// All that the program can do: at each fault its handler tries again, goes on behind the instruction, goes elsewhere, leaves by
/// longjmp, mends what was wrong.
const DEEDS: [&str; 12] = [
    "loads retry",
    "loads skip",
    "loads away",
    "loads leave",
    "loads mend",
    "stores retry",
    "stores skip",
    "stores away",
    "stores leave",
    "divides mend",
    "divides skip",
    "divides away",
];

/// So often each function faults.
const FAULTS: [(&str, u64); 3] = [("loads", 5), ("stores", 4), ("divides", 3)];

fn does(target: &mut Target, deeds: &[&str]) -> Vec<String> {
    let all = deeds.iter().map(|deed| {
        target.tell(deed);
        target.line()
    });
    all.collect()
}

/// The program that links its C library in, and the one that does not.
fn programs() -> [Program; 2] {
    [
        Program::build("handlers", HANDLERS, &[]),
        Program::build("handlers_static", HANDLERS, &["-static", "-no-pie"]),
    ]
}

fn name(program: &Program) -> &str {
    program.path().file_name().unwrap().to_str().unwrap()
}

/// The functions that fault, as probes.
fn probes(program: &Program) -> Vec<String> {
    FAULTS.iter().map(|(function, _)| format!("{}:{function}", name(program))).collect()
}

#[test]
fn s3_a_handler_of_a_fault_in_a_displaced_instruction_sees_the_original() {
    for program in programs() {
        let expected = does(&mut program.start(&["early"]), &DEEDS);
        assert!(expected.iter().all(|line| line.contains(" seen ")), "{expected:?}");
        for verb in [&["count"][..], &["count", "--return"], &["latency"], &["trace", "--return"]] {
            let mut target = program.start(&["early"]);
            let (pid, before) = (target.pid().to_string(), target.text());
            let probes = probes(&program);
            let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
            let tool = Tool::armed(&[verb, &probes, &["-p", &pid]].concat());
            assert_eq!(does(&mut target, &DEEDS), expected, "{verb:?} {}", name(&program));
            let summary = tool.interrupt();
            if verb[0] == "count" {
                for (function, times) in FAULTS {
                    assert_eq!(summary.hits(function, "entry"), times, "{verb:?} {function}");
                    assert_eq!(summary.skipped(function), None);
                }
            }
            before.assert_restored(target.pid());
            assert_eq!(does(&mut target, &DEEDS), expected, "{verb:?}, when it is over");
        }
    }
}

#[test]
fn s3_so_does_one_that_is_installed_later() {
    for program in programs() {
        let told = |target: &mut Target, deeds: &[&str]| {
            let lines = [&["ask", "later", "ask"][..], deeds].concat();
            let first = does(target, &lines[..1]);
            let mut all = first;
            // Each of these says two lines, one for each signal.
            all.push(target.line());
            for line in &lines[1..3] {
                target.tell(line);
                all.extend([target.line(), target.line()]);
            }
            all.extend(does(target, &lines[3..]));
            all
        };
        for start in [&[][..], &["early"]] {
            // Where no fault was handled when it was probed, what a load would have overwritten is not kept for who goes on behind it.
            let deeds: Vec<&str> =
                DEEDS.into_iter().filter(|deed| !start.is_empty() || *deed != "loads skip").collect();
            let expected = told(&mut program.start(start), &deeds);
            let mut target = program.start(start);
            let pid = target.pid().to_string();
            let probes = probes(&program);
            let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
            let tool = Tool::armed(&[&["count"], &probes[..], &["-p", &pid]].concat());
            assert_eq!(told(&mut target, &deeds), expected, "{start:?} {}", name(&program));
            let summary = tool.interrupt();
            for (function, _) in FAULTS {
                let times = deeds.iter().filter(|deed| deed.starts_with(function)).count() as u64;
                assert_eq!(summary.hits(function, "entry"), times, "{function}");
            }
            // What it has now it has for good.
            assert_eq!(does(&mut target, &["ask"]), ["later"]);
            assert_eq!(target.line(), "later");
            assert_eq!(does(&mut target, &deeds), expected[expected.len() - deeds.len()..]);
        }
    }
}

#[test]
fn s3_handlers_are_given_back_after_the_tool_was_killed() {
    let program = Program::build("handlers", HANDLERS, &[]);
    let mut target = program.start(&["early"]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let expected = does(&mut target, &DEEDS);
    for _ in 0..3 {
        Tool::armed(&["count", "handlers:*", "-p", &pid]).kill();
        assert_eq!(does(&mut target, &DEEDS), expected);
        target.tell("later");
        assert_eq!([target.line(), target.line()].map(|line| line.ends_with(" kept")), [true; 2]);
        eventually_nothing_is_left(target.pid());
        before.assert_restored(target.pid());
        assert_eq!(does(&mut target, &DEEDS), expected);
    }
}

#[test]
fn s3_a_forked_child_keeps_its_handlers() {
    let program = Program::build("handlers", HANDLERS, &[]);
    let mut target = program.start(&["early"]);
    let pid = target.pid().to_string();
    let expected = does(&mut target, &DEEDS);
    let tool = Tool::armed(&["count", "handlers:loads", "-p", &pid]);
    // The child goes on with the same pipes, and its parent ends.
    target.tell("fork");
    assert_eq!(does(&mut target, &DEEDS), expected);
    drop(tool.ended());
    assert_eq!(does(&mut target, &DEEDS), expected);
    target.tell("later");
    assert_eq!([target.line(), target.line()], ["earlier earlier kept", "earlier earlier kept"]);
    assert_eq!(does(&mut target, &DEEDS), expected);
}

#[test]
fn s3_a_second_session_leaves_what_may_fault_alone() {
    let program = Program::build("handlers", HANDLERS, &[]);
    let mut target = program.start(&["early"]);
    let pid = target.pid().to_string();
    let expected = does(&mut target, &DEEDS);
    let first = Tool::armed(&["count", "handlers:loads", "-p", &pid]);
    run(&["count", "handlers:remains", "-p", &pid, "-d", "0.1"]).assert_refused(1, &["may fault", "SIGFPE"]);
    let second = Tool::armed(&["count", "handlers:elsewhere", "-p", &pid]);
    assert_eq!(does(&mut target, &DEEDS), expected);
    assert_eq!(first.interrupt().hits("loads", "entry"), 5);
    assert_eq!(does(&mut target, &DEEDS), expected);
    assert_eq!(second.interrupt().hits("elsewhere", "entry"), 6);
    assert_eq!(does(&mut target, &DEEDS), expected);
}

/// Whether there is executable memory at an address that is no file's: an arena.
fn is_ours(maps: &str, address: u64) -> bool {
    maps.lines().any(|line| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (start, end) = range.split_once('-').unwrap();
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        (parse(start)..parse(end)).contains(&address) && rights == "r-xp" && words.nth(2) == Some("0")
    })
}

#[test]
fn w1_a_handler_that_interrupts_any_instruction_of_a_detour_finds_all_registers() {
    let program = Program::build("handlers", HANDLERS, &[]);
    // Where calls are followed the stack is not the program's, which the handler of the other signal does not look at.
    let runs: [(&[&str], i32, usize); 4] = [
        (&["count"], libc::SIGUSR1, 60),
        (&["count", "--return"], libc::SIGUSR2, 150),
        (&["latency"], libc::SIGUSR2, 200),
        (&["trace"], libc::SIGUSR1, 100),
    ];
    for (verb, signal, often) in runs {
        let mut target = program.start(&["spin"]);
        let pid = target.pid().to_string();
        target.freeze();
        let tool = Tool::armed(&[verb, &["handlers:plain", "-p", &pid]].concat());
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut seen = 0;
        {
            let stepper = Stepper::seize(&target, target.pid());
            stepper.walk_to(target.address(0));
            for _ in 0..800 {
                stepper.step();
                let ip = stepper.ip();
                if !is_ours(&maps, ip) {
                    continue;
                }
                stepper.interrupt(signal);
                let said = target.line();
                assert!(["plain", "behind", "other"].contains(&said.as_str()), "{verb:?}: {said} at {ip:#x}");
                stepper.walk_to(ip);
                seen += 1;
            }
        }
        assert!(seen >= often, "{verb:?}: {seen}");
        tool.interrupt();
        target.thaw();
        assert!(target.is_alive());
    }
}

#[test]
fn s3_handlers_beyond_those_that_have_stubs_are_told() {
    let functions = (0..300).map(|number| format!("static void f{number}(int s) {{ last = {number}; }}\n"));
    let names = (0..300).map(|number| format!("f{number},"));
    let source = format!(
        r#"#include <signal.h>
#include <stdio.h>
static volatile int last;
{}
static void (*all[])(int) = {{ {} }};
int main(void) {{
    int wrong = 0;
    puts("ready");
    fflush(stdout);
    getchar();
    for (int i = 0; i < 300; i++) {{
        wrong += signal(SIGUSR1, all[i]) != (i ? all[i - 1] : SIG_DFL);
        raise(SIGUSR1);
        wrong += last != i;
    }}
    printf("%d\n", wrong);
    fflush(stdout);
    getchar();
    getchar();
}}
"#,
        functions.collect::<String>(),
        names.collect::<String>()
    );
    let mut target = Program::build("many", &source, &[]).start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let tool = Tool::armed(&["count", "many:f*", "-p", &pid]);
    target.tell("");
    assert_eq!(target.line(), "0");
    let summary = tool.interrupt();
    assert_eq!([summary.hits("f0", "entry"), summary.hits("f299", "entry")], [1, 1]);
    let notes = summary.0["notes"].as_array().unwrap();
    let note = notes.iter().find(|note| note["code"] == "handler-without-stub").expect("it is told");
    assert!(note["text"].as_str().unwrap().contains("could not be shown the program: 44;"), "{note}");
    before.assert_restored(target.pid());
}

/// A line of `faulting`: rounds, ticks, those that saw no code of the program's, and what was wrong.
fn said(target: &mut Target) -> [u64; 4] {
    let line = target.line();
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
}

/// Reads what it has said, until that is from now.
fn goes_on(target: &mut Target) -> [u64; 4] {
    let before = said(target)[0];
    loop {
        let now = said(target);
        if now[0] > before + 200 {
            return now;
        }
    }
}

#[test]
fn p1_threads_that_fault_everywhere_see_the_program_while_probes_come_and_go() {
    let programs = [
        Program::build("faulting", FAULTING, &["-pthread"]),
        Program::build("faulting_static", FAULTING, &["-pthread", "-static", "-no-pie"]),
    ];
    for program in programs {
        let mut target = program.start(&[]);
        let (pid, before) = (target.pid().to_string(), target.text());
        let all = format!("{}:*", name(&program));
        let verbs: [&[&str]; 4] = [&["count"], &["count", "--return"], &["latency"], &["trace", "--return"]];
        for cycle in 0..8 {
            let tool = Tool::armed(&[verbs[cycle % 4], &[&all, "-p", &pid]].concat());
            goes_on(&mut target);
            if cycle % 3 == 2 {
                tool.kill();
            } else {
                tool.interrupt();
            }
            let [_, ticks, elsewhere, wrong] = goes_on(&mut target);
            assert_eq!(wrong, 0, "{cycle}");
            // Without stubs it is every other one.
            assert!(elsewhere <= ticks / 10, "{cycle}: {elsewhere} of {ticks}");
        }
        // Frames of signals that are left on the stacks of handlers may keep memory.
        run(&["detach", "-p", &pid]);
        assert!(before.is_now(target.pid()));
        assert_eq!(goes_on(&mut target)[3], 0);
    }
}
