//! C9: code that computes where to jump to. Whatever is probed in it, it goes where it went, and what may be entered anywhere is left alone.

use crate::support::Program;
use crate::support::assembly::X86;
use crate::support::tool::{Ran, finish, run};
use std::process::Command;

const GOTOS: &str = include_str!("targets/gotos.c");
const GOTOS_IN: [&str; 7] = ["rel", "two", "kept", "made", "exact", "narrow", "sw"];
const LABELS: &str = include_str!("targets/labels.c");
const LABELS_IN: [&str; 10] =
    ["data", "pairs", "copied", "asked", "threaded", "given", "masked", "heap", "crowded", "plain"];

/// Sites of one run lie so far apart that none is in another's way.
const APART: u64 = 8;

/// How much of some functions of the program can be probed, when each address in them is named in one of many runs, is what is returned.
#[track_caller]
fn probe_everything(program: &Program, name: &str, functions: &[&str]) -> u64 {
    let bare = finish(&mut Command::new(program.path()));
    assert_eq!(bare.code, Some(0), "{bare:?}");
    let path = program.path().to_str().unwrap();
    let mut probed = 0;
    for function in functions {
        let listed = run(&["list", &format!("{path}:{function}"), "-f", "json"]).json();
        let size = listed[0]["size"].as_u64().unwrap();
        for first in 0..APART {
            let sites = (first..size).step_by(APART as usize).map(|at| format!("{name}:{function}+{at:#x}"));
            let sites: Vec<String> = sites.collect();
            let result = program.dir().join("result");
            let mut arguments = vec!["count", "-f", "json", "-o", result.to_str().unwrap()];
            arguments.extend(sites.iter().map(String::as_str).chain(["--", path]));
            let ran = run(&arguments);
            if ran.code == Some(1) && ran.out.is_empty() && ran.err.contains("can be probed") {
                continue;
            }
            if ran.code == Some(1) && ran.out.is_empty() && ran.err.contains("cannot be probed") {
                continue;
            }
            assert_eq!((ran.code, &ran.out), (Some(0), &bare.out), "{sites:?}: {ran:?}");
            let written = std::fs::read_to_string(&result).unwrap();
            let summary = Ran { out: written, ..ran }.summary();
            probed += summary.0["probes"].as_array().unwrap().len() as u64;
        }
    }
    probed
}

#[test]
fn c9_gotos_go_where_they_went() {
    let fixed = ["-O2", "-fno-pie", "-no-pie"];
    for (compiler, flags) in [
        ("gcc", &["-O1"][..]),
        ("gcc", &["-Os"]),
        ("gcc", &fixed),
        ("clang", &["-O1"]),
        ("clang", &fixed),
        ("i686-linux-gnu-gcc", &["-O2"]),
        ("i686-linux-gnu-gcc", &["-O2", "-static"]),
    ] {
        let Some(program) = build(compiler, "gotos", GOTOS, flags) else { continue };
        let probed = probe_everything(&program, "gotos", &GOTOS_IN);
        // Some of the functions say where they lead, and those that do not have entries.
        assert!(probed >= 60, "{compiler} {flags:?}: {probed}");
    }
}

/// The program, if it can be built and run here.
fn build(compiler: &str, name: &str, source: &str, flags: &[&str]) -> Option<Program> {
    let built = Program::try_build(compiler, name, source, flags);
    let program = built.ok().filter(|program| Command::new(program.path()).output().is_ok());
    if program.is_none() {
        // Thunks are x86's.
        let is_own = !X86 && flags.iter().any(|flag| flag.starts_with("-mindirect-branch"));
        assert!(compiler != "gcc" || is_own, "{flags:?}");
        trapless_testing::skip!("{compiler} {flags:?}");
    }
    program
}

#[test]
fn c9_labels_that_come_from_elsewhere_are_gone_to() {
    for (compiler, flags) in [
        ("gcc", &["-O2", "-w"][..]),
        ("gcc", &["-O0", "-w"]),
        ("gcc", &["-O2", "-w", "-fno-pie", "-no-pie"]),
        ("gcc", &["-O2", "-w", "-mindirect-branch=thunk"]),
        ("gcc", &["-O2", "-w", "-mindirect-branch=thunk-inline"]),
        ("clang", &["-O2", "-w"]),
        ("clang", &["-O2", "-w", "-fno-pie", "-no-pie", "-mretpoline"]),
        ("i686-linux-gnu-gcc", &["-O2", "-w"]),
        // It computes with constants that are labels.
        ("i686-linux-gnu-gcc", &["-O3", "-w", "-fno-pie", "-no-pie"]),
    ] {
        let Some(program) = build(compiler, "labels", LABELS, flags) else { continue };
        let probed = probe_everything(&program, "labels", &LABELS_IN);
        // Each instruction alone that is long enough.
        assert!(probed >= 40, "{compiler} {flags:?}: {probed}");
    }
}

/// `hot` adds an entry of a table to its label `base`. `cold`, a part of it, arrives between the load and the addition.
#[cfg(target_arch = "x86_64")]
const ENTERED: &str = r#"
#include <stdio.h>
asm(".text; .p2align 4; .globl hot; .type hot, @function;"
    "hot: xor %eax, %eax; lea .Ltable(%rip), %rdx; lea .Lbase(%rip), %rcx; cmp $2, %rdi;"
#ifdef HAS_COLD
    "jae hot_cold;"
#endif
    "movslq (%rdx,%rdi,4), %rsi; .Linto: add %rcx, %rsi; jmp *%rsi; .skip 32, 0x90;"
    ".Lbase: add $1, %eax; .Lone: add $2, %eax; .Lother: add $4, %eax; add $8, %eax; ret; .size hot, . - hot;"
    ".skip 64, 0x90;"
#ifdef HAS_COLD
    ".type hot_cold, @function; hot_cold: mov $.Lother - .Lbase, %esi; jmp .Linto; .size hot_cold, . - hot_cold;"
#endif
    ".section .rodata; .p2align 2; .Ltable: .long 0, .Lone - .Lbase; .text");
int hot(long which);
int main(void)
{
    int sum = 0;
#ifdef HAS_COLD
    for (int i = 0; i < 100; i++) sum += hot(i % 3);
#else
    for (int i = 0; i < 100; i++) sum += hot(i % 2);
#endif
    printf("%d\n", sum);
    return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn c9_a_place_is_not_told_by_code_that_another_part_enters() {
    for (flags, sum, refused) in [(&[][..], "1450\n", false), (&["-DHAS_COLD"], "1368\n", true)] {
        let program = Program::build("entered", ENTERED, flags);
        let path = program.path().to_str().unwrap();
        // At `one`: a jump would reach over `other`.
        let at =
            run(&["list", &format!("{path}:hot"), "-f", "json"]).json()[0]["size"].as_u64().unwrap() - 10;
        let site = format!("entered:hot+{at:#x}");
        let explained = run(&["explain", &site, "--", path]);
        assert_eq!(explained.code, Some(0), "{explained:?}");
        assert_eq!(explained.out.contains("leads to a computed place"), refused, "{explained:?}");
        let every: Vec<String> = (0..at).map(|at| format!("entered:hot+{at:#x}")).collect();
        for apart in 0..5 {
            let mut arguments = vec!["count", "-o", "/dev/null"];
            arguments.extend(every.iter().skip(apart).step_by(5).map(String::as_str).chain(["--", path]));
            let ran = run(&arguments);
            assert!(ran.out == sum || ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
        }
    }
}

/// `inner` is a function in the middle of `outer`, which computes a place in it.
#[cfg(target_arch = "x86_64")]
const NESTED: &str = r#"
#include <stdio.h>
asm(".text; .globl outer; .type outer, @function;"
    "outer: lea inner(%rip), %rax; add %rdi, %rax; jmp *%rax; .skip 64, 0x90; xor %eax, %eax; add $1, %eax; add $2, %eax;"
    ".globl inner; .type inner, @function;"
    "inner: xor %eax, %eax; inc %eax; add $2, %eax; add $4, %eax; ret; .size inner, . - inner; .size outer, . - outer");
long outer(long);
int main(void)
{
    printf("%ld %ld\n", outer(0), outer(2));
    return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn c9_functions_that_share_bytes_with_one_that_is_entered_anywhere_keep_theirs() {
    let program = Program::build("nested", NESTED, &[]);
    let path = program.path().to_str().unwrap();
    let size = |name: &str| {
        run(&["list", &format!("{path}:{name}"), "-f", "json"]).json()[0]["size"].as_u64().unwrap()
    };
    let inside = size("outer") - size("inner");
    // By the name of one and of the other: `xor`, which is too short, and what stands ahead of it.
    for site in ["nested:inner+0x0".to_owned(), format!("nested:outer+{:#x}", inside - 6)] {
        let explained = run(&["explain", &site, "--", path]);
        assert_eq!(explained.code, Some(0), "{explained:?}");
        assert!(explained.out.contains("leads to a computed place"), "{site}: {explained:?}");
    }
}

/// `taker` keeps what it computes from a constant, which is the address of what stands INTO bytes inside of `taken`.
#[cfg(target_arch = "x86_64")]
const CONSTANT: &str = r#"
#include <stdio.h>
asm(".text; .globl taken; .type taken, @function;"
    "taken: mov $1, %eax; add $2, %eax; add $3, %eax; add $4, %eax; ret; .size taken, . - taken;"
    ".globl taker; .type taker, @function;"
    "taker: mov $taken + INTO, %eax; add %rdi, %rax; mov %rax, kept(%rip); ret; .size taker, . - taker");
long kept;
int taken(void);
void taker(long);
int main(void)
{
    taker(3);
    printf("%d\n", taken());
    return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn c9_a_number_is_an_address_of_code_only_if_an_instruction_is_there() {
    for (into, refused) in [("5", true), ("6", false), ("8", true), ("0", true), ("10", false)] {
        let source = CONSTANT.replace("INTO", into);
        let program = Program::build("constant", &source, &["-fno-pie", "-no-pie"]);
        let explained = run(&["explain", "constant:taken+0x5", "--", program.path().to_str().unwrap()]);
        assert_eq!(explained.code, Some(0), "{explained:?}");
        assert_eq!(explained.out.contains("leads to a computed place"), refused, "{into}: {explained:?}");
    }
}
