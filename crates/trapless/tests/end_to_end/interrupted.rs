//! A signal's handler that walks its stack sees the program, whichever instruction of ours was interrupted.

use crate::support::assembly::X86;
use crate::support::park::Stepper;
use crate::support::text::eventually_nothing_is_left;
use crate::support::tool::Tool;
use crate::support::{Program, Target, arenas, part};

const INTERRUPTED: &str = include_str!("targets/interrupted.c");

const FUNCTIONS: [&str; 5] = ["subject", "middle", "outer", "first", "second"];

/// What a handler may see. `first` leaves by a jump to `second`.
const SEEN: [&str; 6] =
    ["subject middle outer spin", "middle outer spin", "outer spin", "first spin", "second spin", "spin"];

/// Interrupts every `nth` instruction of ours in so many steps; how often the handler saw the program. Where walks `may_end`, it may
/// see less: LLVM's unwinder takes what was interrupted for what is behind a call, and at a function's first instruction it looks up the
/// function ahead of that, whoever interrupts it there.
fn interrupt_everywhere(
    target: &mut Target,
    steps: usize,
    nth: usize,
    (name, may_end): (&str, bool),
) -> usize {
    let arenas = arenas(target.pid());
    assert!(!arenas.is_empty(), "{name}");
    let stepper = Stepper::seize(target, target.pid());
    stepper.walk_to(target.address(0));
    let (mut met, mut seen) = (0, 0);
    for _ in 0..steps {
        stepper.step();
        let ip = stepper.ip();
        if !arenas.iter().any(|arena| arena.contains(&ip)) {
            continue;
        }
        met += 1;
        if met % nth != 0 {
            continue;
        }
        stepper.interrupt(libc::SIGUSR1);
        let said = target.line();
        let is_seen = SEEN.contains(&said.as_str());
        let ends_early = may_end && SEEN.iter().any(|seen| seen.starts_with(&said));
        assert!(is_seen || ends_early, "{name}: at {ip:#x}, {met}: {said:?}");
        stepper.walk_to(ip);
        seen += usize::from(is_seen);
    }
    seen
}

/// 32-bit detours use registers that functions keep for their callers, while walks end; and where a register has the return address, they end
/// while that has another.
fn interrupt(program: &Program, name: &str, [often, walking]: [usize; 2]) {
    let may_end = program.is_32bit() || often == 0 || !X86;
    for verb in [&["count", "--return"][..], &["latency"]] {
        let mut target = program.start(&[]);
        let (pid, before) = (target.pid().to_string(), target.text());
        let sites = FUNCTIONS.map(|function| format!("{name}:{function}"));
        let sites: Vec<&str> = sites.iter().map(String::as_str).collect();
        let tool = Tool::armed(&[verb, &sites, &["-p", &pid]].concat());
        target.freeze();
        let seen = interrupt_everywhere(&mut target, part(2500), 1, (name, may_end));
        assert!(seen >= part(often), "{name}: {seen}");
        // What the walk itself asks takes long.
        let seen = interrupt_everywhere(&mut target, part(20_000), 61, (name, may_end));
        assert!(seen >= part(walking), "{name}: {seen}");
        target.thaw();
        let summary = tool.interrupt();
        // An unwinder may be under way that has met a return point. Where handlers are not shown the program, contexts of ours are left behind.
        if !X86 {
            target.signal(libc::SIGHUP);
        }
        eventually_nothing_is_left(target.pid());
        before.assert_restored(target.pid());
        target.signal(libc::SIGUSR2);
        let end = target.line();
        let calls: u64 = end.strip_prefix("wrong 0 calls ").expect(&end).parse().unwrap();
        assert!(target.wait().success(), "{name}: {end}");
        if verb[0] == "count" {
            for function in FUNCTIONS {
                let (entries, returns) = (summary.hits(function, "entry"), summary.hits(function, "return"));
                assert!(entries > 0 && entries <= calls + 1, "{name}: {function}: {entries} {calls}");
                assert!(entries - returns <= 1, "{name}: {function}: {entries} {returns}");
            }
        }
    }
}

const PLAIN: [&str; 3] = ["-fno-toplevel-reorder", "-foptimize-sibling-calls", "-DASIDE=0"];

#[test]
fn w1_a_handler_that_interrupts_a_detour_anywhere_sees_the_program() {
    for program in Program::in_both_widths("interrupted", INTERRUPTED, &PLAIN) {
        let often = if program.is_32bit() { [80, 0] } else { [200, 10] };
        interrupt(&program, "interrupted", often);
    }
}

#[test]
fn w1_so_does_one_on_a_stack_of_its_own() {
    let flags = ["-fno-toplevel-reorder", "-foptimize-sibling-calls", "-DASIDE=SA_ONSTACK"];
    interrupt(&Program::build("interrupted_aside", INTERRUPTED, &flags), "interrupted_aside", [200, 10]);
}

#[test]
fn w1_so_does_one_in_a_static_program() {
    let flags = [&PLAIN[..], &["-static"]].concat();
    interrupt(&Program::build("interrupted_static", INTERRUPTED, &flags), "interrupted_static", [200, 10]);
}

#[test]
fn w1_one_that_walks_by_llvms_unwinder_sees_the_program_or_nothing() {
    let mut libraries = (14..30).map(|version| format!("/usr/lib/llvm-{version}/lib/libunwind.so.1"));
    let Some(library) = libraries.find(|library| std::path::Path::new(library).exists()) else {
        trapless_testing::skip!("no libunwind of LLVM's");
        return;
    };
    let found_at = format!("-Wl,-rpath,{}", library.rsplit_once('/').unwrap().0);
    let flags = [&PLAIN[..], &[library.as_str(), found_at.as_str()]].concat();
    interrupt(&Program::build("interrupted_llvm", INTERRUPTED, &flags), "interrupted_llvm", [0, 0]);
}
