//! Scripts in Go programs: what they tell of calls is exact, whatever stacks, goroutines and signals do, and the program is what it would be without
//! them.
#![cfg(target_arch = "x86_64")]

use crate::support::live::left_out;
use crate::support::tool::{Ran, Tool, detach, run, trapless};
use crate::support::{Program, Target};
use std::collections::BTreeMap;

/// What it does is told at its beginning.
const SOURCE: &str = include_str!("programs/go_scripts.go");

const GOROUTINES: u64 = 50;
const CALLS: u64 = 300;

fn program(name: &str, flags: &[&str]) -> Option<Program> {
    Program::go(name, SOURCE, flags)
}

/// Has it work, and gives what came of it.
fn work(target: &mut Target) -> String {
    target.tell("go");
    target.line()
}

/// How deep the calls of `Deep` are that one round begins.
fn depths() -> impl Iterator<Item = u64> {
    (0..GOROUTINES).flat_map(|g| (0..CALLS).step_by(30).map(move |i| 10 * g + i))
}

/// Runs a script while the program works so many rounds, and gives what it printed.
#[track_caller]
fn told(target: &mut Target, script: &str, rounds: u64, expected: &str) -> Ran {
    told_with(&[], target, script, rounds, expected)
}

/// As [`told`], by a tool with these flags.
#[track_caller]
fn told_with(flags: &[&str], target: &mut Target, script: &str, rounds: u64, expected: &str) -> Ran {
    let script = format!("begin {{ printf(\"armed\\n\"); }} {script}");
    let dir = tempfile::tempdir().unwrap();
    let errors = dir.path().join("errors");
    let pid = target.pid().to_string();
    let arguments = [flags, &["-p", &pid, "-e", &script]].concat();
    let mut tool = Tool::armed_to(&mut trapless(&arguments), &errors);
    let read = || std::fs::read_to_string(&errors).unwrap_or_default();
    assert_eq!(tool.line(), "armed", "{script} {}", read());
    for _ in 0..rounds {
        assert_eq!(work(target), expected, "{script}");
    }
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?} {}", read());
    Ran { err: read(), ..ran }
}

/// The values of a map, by its keys as they are printed; that of a map without one by nothing.
fn values(ran: &Ran, map: &str) -> BTreeMap<String, u64> {
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(": ")?;
        let key = name.strip_prefix(map)?;
        let key = if key.is_empty() { "" } else { key.strip_prefix('[')?.strip_suffix(']')? };
        Some((key.to_owned(), value.parse().ok()?))
    };
    ran.out.lines().filter_map(value).collect()
}

fn keyed(keys: &[(&str, u64)]) -> BTreeMap<String, u64> {
    keys.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

/// Fails where anything is said to be left out.
#[track_caller]
fn assert_whole(ran: &Ran) {
    assert_eq!(left_out(&ran.err), Vec::<&str>::new());
}

#[test]
fn r4_keys_results_and_strings_are_exact_on_stacks_that_grow_while_signals_and_collections_storm() {
    const STRIPPED: &str = "-ldflags=-s -w";
    const ROUNDS: u64 = 3;
    let rounds = ROUNDS * GOROUTINES;
    for (flags, arguments) in [
        (&[][..], &[][..]),
        (&[], &["storm"]),
        (&["-buildmode=pie"], &["storm"]),
        (&[STRIPPED], &["storm"]),
        (&[STRIPPED, "-buildmode=pie"], &[]),
    ] {
        let Some(program) = program("goscripts", flags) else { return };
        let mut target = program.start(arguments);
        let expected = work(&mut target);
        let ran = told(
            &mut target,
            r#"
            uprobe:goscripts:main.Keyed { @keys[arg0] = count(); @weights = sum(arg1); @own[tid == 0] = count(); }
            uprobe:goscripts:main.Named /arg2 >= 100/ { @names[str(arg0, arg1)] = count(); }
            uprobe:goscripts:main.Named /arg2 > 1000000/ { @never = count(); }
            uretprobe:goscripts:main.Named { @results[str(retval, reg("bx"))] = count(); @numbers = sum(reg("cx")); }
            uprobe:goscripts:main.Deep { @depths = sum(arg0); @called = count(); }
            uretprobe:goscripts:main.Deep { @returned = count(); @sums = sum(retval); @asked = sum(arg0); }
            "#,
            ROUNDS,
            &expected,
        );
        let keys: BTreeMap<String, u64> = (0..7)
            .map(|key| (key.to_string(), rounds * (0..CALLS).filter(|i| i % 7 == key).count() as u64))
            .collect();
        let of = |map: &str| values(&ran, map);
        let one = |map: &str| of(map).get("").copied();
        assert_eq!(of("@keys"), keys, "{flags:?} {arguments:?}");
        assert_eq!(one("@weights"), Some(ROUNDS * CALLS * (0..GOROUTINES).sum::<u64>()));
        assert_eq!(of("@own"), keyed(&[("false", rounds * CALLS)]), "every thread has a number");
        let third = |letter: u64| rounds * (100..CALLS).filter(|i| i % 3 == letter).count() as u64;
        assert_eq!(of("@names"), keyed(&[("namea", third(0)), ("nameb", third(1)), ("namec", third(2))]));
        assert_eq!(one("@never"), None, "a filter that fails");
        let results = rounds * CALLS / 6;
        let names = ["namea", "namea!", "nameb", "nameb!", "namec", "namec!"].map(|name| (name, results));
        assert_eq!(of("@results"), keyed(&names));
        assert_eq!(one("@numbers"), Some(rounds * (0..CALLS).sum::<u64>()));
        let deep = |of: fn(u64) -> u64| Some(ROUNDS * depths().map(of).sum::<u64>());
        assert_eq!([one("@called"), one("@returned")], [deep(|n| n + 1); 2]);
        assert_eq!(
            [one("@depths"), one("@asked")],
            [deep(|n| n * (n + 1) / 2); 2],
            "also where stacks were moved"
        );
        assert_eq!(one("@sums"), deep(|n| n * (n + 1) * (n + 2) / 6));
        assert_whole(&ran);
        target.text().assert_is_of_files(target.pid());
        assert_eq!(work(&mut target), expected);
    }
}

#[test]
fn r4_a_goroutine_is_a_key_that_stays_where_its_thread_does_not() {
    let Some(program) = program("gokeys", &[]) else { return };
    let mut target = program.start(&["storm"]);
    let expected = work(&mut target);
    let script = r#"
        uprobe:gokeys:main.work { @began[reg("r14")] = arg0 + 1; @g[reg("r14")] = count(); }
        uretprobe:gokeys:main.work /@began[reg("r14")]/ { @ended = count(); @sum = sum(@began[reg("r14")]); $gone = delete(@began, reg("r14")); }
        uretprobe:gokeys:main.work { @timed[duration > 0] = count(); @asked = sum(arg0 + 1); }
    "#;
    let ran = told(&mut target, script, 2, &expected);
    let sum = 2 * (1..=GOROUTINES).sum::<u64>();
    for map in ["@sum", "@asked"] {
        assert_eq!(values(&ran, map), keyed(&[("", sum)]), "{map}: {ran:?}");
    }
    assert_eq!(values(&ran, "@ended"), keyed(&[("", 2 * GOROUTINES)]));
    assert_eq!(values(&ran, "@timed"), keyed(&[("true", 2 * GOROUTINES)]));
    assert_eq!(values(&ran, "@g").values().sum::<u64>(), 2 * GOROUTINES);
    assert_eq!(values(&ran, "@began"), keyed(&[]));
    assert_whole(&ran);
}

#[test]
fn s3_stacks_names_and_numbers_are_the_programs_own() {
    let Some(program) = program("gonames", &[]) else { return };
    let mut target = program.start(&[]);
    let expected = work(&mut target);
    let script = r#"
        uprobe:gonames:main.Named { @[args.n % 3, str(args.name.str, args.name.len)] = count(); @c[comm, pid] = count(); @t[tid] = count(); }
        uprobe:gonames:main.Scaled { @f[args.by == 0.5, args.factor == 2.0] = count(); @s[ustack(3)] = count(); }
        uretprobe:gonames:main.Scaled { @r[ustack(2)] = count(); }
    "#;
    let ran = told(&mut target, script, 1, &expected);
    let third = GOROUTINES * CALLS / 3;
    assert_eq!(values(&ran, "@"), keyed(&[("0, namea", third), ("1, nameb", third), ("2, namec", third)]));
    assert_eq!(values(&ran, "@c"), keyed(&[(&format!("gonames, {}", target.pid()), 3 * third)]));
    assert_eq!(values(&ran, "@f"), keyed(&[("true, true", 3 * third)]), "{ran:?}");
    // Threads stay, since none of them was locked to a goroutine.
    let threads: Vec<String> = target.threads().iter().map(i32::to_string).collect();
    let seen = values(&ran, "@t");
    assert!(seen.keys().all(|tid| threads.contains(tid)), "{seen:?} {threads:?}");
    assert_eq!(seen.values().sum::<u64>(), 3 * third);
    let stacks = |map: &str| {
        let rows = ran.out.lines().skip_while(|line| !line.starts_with(map)).skip(1);
        let rows = rows.take_while(|line| !line.starts_with(']'));
        rows.map(|line| line.trim().split('+').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(stacks("@s["), ["main.Scaled", "main.work", "main.round.func1"], "{ran:?}");
    assert_eq!(stacks("@r["), ["main.work", "main.round.func1"], "{ran:?}");
    assert_whole(&ran);
}

#[test]
fn r4_scripts_come_and_go_under_load_and_nothing_of_them_stays() {
    let Some(program) = program("goload", &[]) else { return };
    let mut target = program.start(&["storm"]);
    let pid = target.pid();
    let expected = work(&mut target);
    let scripts = [
        "uprobe:goload:main.* { @[probe, arg0 % 8] = count(); }",
        "uprobe:goload:main.* { @[ustack(6)] = count(); } uretprobe:goload:main.* { @d[probe] = hist(duration); }",
        // Handlers of signals run them, too, and interrupt others.
        "uprobe:goload:runtime.sig* { @[probe, tid] = count(); } uprobe:goload:main.* { @n[tid] = count(); }",
        "uprobe:goload:runtime.m* { @[probe] = count(); }",
    ];
    for round in 0..12 {
        let script = format!("begin {{ printf(\"armed\\n\"); }} {}", scripts[round % scripts.len()]);
        let command = &mut trapless(&["-p", &pid.to_string(), "-e", &script]);
        let mut tool = Tool::armed_to(command, "/dev/null".as_ref());
        assert_eq!(tool.line(), "armed", "{script}");
        assert_eq!(work(&mut target), expected, "{script}");
        // In the middle of a round.
        target.tell("go");
        if round % 3 == 2 {
            tool.kill();
        } else {
            tool.signal(libc::SIGINT);
            assert_eq!(tool.ran().code, Some(0), "{script}");
        }
        assert_eq!(target.line(), expected, "{script}");
    }
    detach(pid);
    assert_eq!(work(&mut target), expected);
    target.text().assert_is_of_files(pid);
}

#[test]
fn r4_leaves_without_a_check_ask_the_goroutine_and_what_finds_too_little_is_told() {
    let Some(program) = program("goleaf", &[]) else { return };
    let mut target = program.start(&[]);
    let expected = work(&mut target);
    let script = "uprobe:goleaf:main.Leaf { @[arg0 % 2] = count(); }";
    let ran = told(&mut target, script, 1, &expected);
    let lost: u64 = ran
        .err
        .lines()
        .filter_map(|line| line.strip_prefix("trapless: ")?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    let ran_at = values(&ran, "@").values().sum::<u64>();
    assert_eq!(ran_at + lost, GOROUTINES * CALLS, "{ran:?}");
    assert!(lost < GOROUTINES * CALLS / 10, "{ran:?}");
}

#[test]
fn arguments_that_lie_on_the_stack_are_refused_with_the_reason() {
    let Some(program) = program("goasm", &[]) else { return };
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let asked = run(&["-p", &pid, "-e", "uprobe:goasm:runtime.memmove { @[arg0] = count(); }"]);
    assert_eq!(asked.code, Some(1), "{asked:?}");
    assert!(["runtime.memmove", "assembly", "arg0"].iter().all(|word| asked.err.contains(word)), "{asked:?}");
    let calls = run(&["trace", "--typed", "-p", &pid, "goasm:main.Keyed"]);
    calls.assert_refused(2, &["Go program", "--typed"]);
}

/// Its scheduler stops threads that run for more than ten milliseconds, and collections of memory all of them.
#[test]
fn delays_are_slept_to_their_end_while_signals_and_collections_storm() {
    let Some(program) = program("goscripts", &[]) else { return };
    let mut target = program.start(&["storm"]);
    let expected = work(&mut target);
    let script = "uprobe:goscripts:main.Keyed /arg0 == 3 && arg1 == 7/ { @ = count(); delay(15ms); @over = count(); }
        uretprobe:goscripts:main.Keyed /arg0 == 3 && arg1 == 7/ { @late = count(); delay(15ms); @later = count(); }";
    let ran = told_with(&["--unsafe"], &mut target, script, 2, &expected);
    let calls = 2 * (0..CALLS).filter(|i| i % 7 == 3).count() as u64;
    for map in ["@", "@over", "@late", "@later"] {
        assert_eq!(values(&ran, map), keyed(&[("", calls)]), "{map} {ran:?}");
    }
    assert_whole(&ran);
    target.text().assert_is_of_files(target.pid());
    assert_eq!(work(&mut target), expected);
}

/// Go starts programs by a child that shares its memory, and no hook can tell that from it.
#[test]
fn children_that_cannot_be_told_from_the_program_are_told_of() {
    const STARTS: &str = "package main

import (
	\"bufio\"
	\"fmt\"
	\"os\"
	\"os/exec\"
)

//go:noinline
func probed(x int) int { return x * 3 }

func main() {
	fmt.Println(\"ready\")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		probed(1)
		err := exec.Command(\"true\").Run()
		fmt.Println(\"done\", err)
	}
}
";
    let Some(program) = Program::go("starts", STARTS, &[]) else { return };
    let mut target = program.start(&[]);
    let ran = told(&mut target, "uprobe:starts:main.probed { @ = count(); }", 2, "done <nil>");
    assert_eq!(values(&ran, "@"), keyed(&[("", 2)]), "{ran:?}");
    assert!(ran.err.contains("2 children started by vfork or posix_spawn shared"), "{ran:?}");
}
