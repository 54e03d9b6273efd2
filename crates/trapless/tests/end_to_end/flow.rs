//! Hard cases C1 to C4: control flow that a patch would break is refused with its reason, and the rest counts exactly.

use crate::support::assembly::X86;
use crate::support::tool::{Ran, run};
use crate::support::{self, Program, Target};

/// A program of assembly functions, and what `list` must say of each: `None` for a jump.
#[cfg(not(target_arch = "x86"))]
fn assert_listed(cases: &[(&str, &str, Option<&str>)]) {
    let mut assembly = String::new();
    for (name, body, _) in cases {
        assembly += &format!(
            "asm(\".p2align 4; .globl {name}; .type {name}, %function; {name}: {body}; .size {name}, . - {name}\");\n"
        );
    }
    let program = Program::build("forms", &format!("{assembly}int main(void) {{ return 0; }}"), &[]);
    let path = format!("{}:*", program.path().display());
    let listed = run(&["list", &path, "-f", "json"]).json();
    let mut wrong = Vec::new();
    for (name, body, expected) in cases {
        let site = listed.iter().find(|site| site["function"] == *name).unwrap_or_else(|| panic!("{name}"));
        let reason = site["reason"].as_str().unwrap_or_default();
        let right = match expected {
            None => site["mechanism"] == "jump",
            Some(expected) => site["mechanism"] != "jump" && reason.contains(expected),
        };
        if !right {
            wrong.push(format!("{body}: {} ({reason}), not {expected:?}", site["mechanism"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[cfg(target_arch = "x86_64")]
const PAD: &str = "nop; nop; nop; nop; nop; ret";

#[test]
#[cfg(target_arch = "x86_64")]
fn c1_branches_into_the_first_bytes_keep_them() {
    let inside = Some("inside the displaced instructions");
    assert_listed(&[
        ("loops", &format!("mov %rdi, %rax; 1: dec %rax; jnz 1b; {PAD}"), inside),
        (
            "loops_far",
            &format!("push %rbx; 1: mov %rdi, %rax; .skip 300, 0x90; dec %rdi; jnz 1b; pop %rbx; {PAD}"),
            inside,
        ),
        ("entered", &format!("xor %eax, %eax; entered_inside: inc %eax; {PAD}"), inside),
        ("enters", "xor %eax, %eax; test %edi, %edi; jz entered_inside; ret", None),
        (
            "switches",
            "nop; nop; 1: dec %edi; nop; nop; cmp $2, %edi; ja 2f; lea 3f(%rip), %rdx; movslq (%rdx,%rdi,4), %rcx; add %rdx, %rcx; \
             notrack jmp *%rcx; 2: ret; .section .rodata; .p2align 2; 3: .long 1b-3b, 2b-3b, 1b-3b; .text",
            inside,
        ),
        ("plain", &format!("push %rbx; mov %rdi, %rbx; dec %rbx; pop %rbx; {PAD}"), None),
    ]);
}

/// Where a patch takes one instruction, a branch can lead to nothing but its start, or to what is behind a landing pad.
#[test]
#[cfg(target_arch = "aarch64")]
fn c1_branches_behind_the_first_instruction_are_in_nobodys_way() {
    assert_listed(&[
        ("loops", "mov x1, x0; 1: subs x1, x1, #1; b.ne 1b; ret", None),
        ("loops_to_itself", "1: subs x0, x0, #1; b.ne 1b; ret", None),
        ("entered", "mov x0, #0; entered_inside: add x0, x0, #1; ret", None),
        ("enters", "cbz x0, entered_inside; ret", None),
        (
            "behind_its_pad",
            "bti c; 1: subs x0, x0, #1; b.ne 1b; ret",
            Some("inside the displaced instructions"),
        ),
        ("one_further", "bti c; mov x1, x0; 1: subs x1, x1, #1; b.ne 1b; ret", None),
    ]);
}

#[test]
#[cfg(target_arch = "powerpc64")]
fn c1_branches_behind_the_first_instruction_are_in_nobodys_way() {
    assert_listed(&[
        ("loops", "mtctr 3; 1: addi 4, 4, 1; bdnz 1b; blr", None),
        ("entered", "li 3, 0; entered_inside: addi 3, 3, 1; blr", None),
        ("enters", "cmpdi 3, 0; beq entered_inside; blr", None),
    ]);
}

/// A round of a loop is no call: calls are counted exactly, or not at all.
#[test]
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn c1_rounds_of_a_loop_that_begins_with_the_function_are_no_calls() {
    let source = r#"
#include <stdio.h>
#include "assembly.h"
#ifdef __aarch64__
ASSEMBLED(rounds, "subs x0, x0, #1; b.gt rounds; mov x0, #7; ret")
ASSEMBLED(itself, "cbnz x0, 1f; mov x0, #7; ret; 1: sub x0, x0, #1; b itself")
#else
ASSEMBLED(rounds, "addic. 3, 3, -1; bgt rounds; li 3, 7; blr")
ASSEMBLED(itself, "mtctr 3; 1: bdnz 1b; li 3, 7; blr")
#endif
long rounds(long n), itself(long n);
int main(void) {
    long wrong = 0;
    for (int i = 0; i < 100; i++) wrong += rounds(1 + i % 8) != 7 || itself(1 + i % 8) != 7;
    return wrong != 0;
}
"#;
    let program = Program::build("rounds", source, &[]);
    let path = program.path().to_str().unwrap();
    for verb in [&["count"][..], &["count", "--return"], &["count", "--allow-trap"]] {
        for function in ["rounds", "itself"] {
            let ran = run(&[verb, &[&format!("rounds:{function}"), "-f", "json", "--", path]].concat());
            if ran.code == Some(0) {
                assert_eq!(ran.summary().hits(function, "entry"), 100, "{verb:?} {function}: {ran:?}");
            } else {
                ran.assert_refused(1, &["entry"]);
            }
        }
    }
}

/// Bodies that are shorter than a jump is on x86-64, a function that follows them, and padding that does.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod short {
    pub const BODIES: [&str; 4] = ["ret", "nop; ret", "xor %eax, %eax; ret", "mov %edi, %eax; ret"];
    pub const NEXT: &str = "nop; nop; nop; nop; nop; ret";
    pub const PADDING: &str = ".p2align 4, 0x90; nop";
}
#[cfg(target_arch = "aarch64")]
mod short {
    pub const BODIES: [&str; 4] = ["ret", "nop; ret", "mov x0, #0; ret", "b next"];
    pub const NEXT: &str = "nop; ret";
    pub const PADDING: &str = ".p2align 4; next: nop; ret";
}
#[cfg(target_arch = "powerpc64")]
mod short {
    pub const BODIES: [&str; 4] = ["blr", "nop; blr", "li 3, 0; blr", "b next"];
    pub const NEXT: &str = "nop; blr";
    pub const PADDING: &str = ".p2align 4; next: nop; blr";
}

#[test]
fn c2_short_functions_are_refused_or_counted() {
    let program_of = |body: &str, next: &str| {
        let source = format!(
            "asm(\".text; .p2align 4; .globl subject; .type subject, %function; subject: {body}; .size subject, . - subject; {next}\");\n\
             long subject(long); int main(void) {{ for (int i = 0; i < 1000; i++) subject(i); return 0; }}"
        );
        Program::build("short", &source, &[])
    };
    let abutting = format!(".globl next; .type next, %function; next: {}; .size next, . - next", short::NEXT);
    for body in short::BODIES {
        // The next function begins where this one ends, or padding follows. Either is right: room found nearby and every call counted,
        // or a refusal, which is certain where there is one byte alone.
        for (behind, other) in [(abutting.as_str(), "next"), (short::PADDING, "main")] {
            let program = program_of(body, behind);
            let path = program.path().to_str().unwrap();
            let ran = run(&["count", "short:subject", &format!("short:{other}"), "-f", "json", "--", path]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            match ran.summary().skipped("subject") {
                None => {
                    assert!(!X86 || body != "ret" || other == "main", "{ran:?}");
                    assert_eq!(ran.summary().hits("subject", "entry"), 1000, "{body}: {ran:?}");
                }
                Some(reason) => {
                    if !X86 {
                        panic!("one instruction is enough: {reason}");
                    }
                    assert!(reason.contains("short") || reason.contains("leaves"), "{body}: {reason}")
                }
            }
        }
    }
}

#[test]
fn c2_aliases_are_one_site_and_ifunc_resolvers_none() {
    let source = r#"
#include <stdio.h>
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
long alias(long) __attribute__((alias("subject")));
static long (*resolve(void))(long) { return subject; }
long chosen(long) __attribute__((ifunc("resolve")));
int main(void) { for (int i = 0; i < 10; i++) { subject(i); alias(i); chosen(i); puts("x"); } return 0; }
"#;
    let program = Program::build("aliases", source, &[]);
    let path = program.path().to_str().unwrap();
    for name in ["subject", "alias"] {
        let ran = run(&["count", &format!("aliases:{name}"), "-f", "json", "-o", "/dev/stderr", "--", path]);
        let summary = Ran { out: ran.err, err: String::new(), code: ran.code }.summary();
        let probes = summary.0["probes"].as_array().unwrap();
        assert_eq!(probes.len(), 1, "{summary:?}");
        assert_eq!(probes[0]["hits"], 30, "{summary:?}");
    }
    run(&["count", "aliases:chosen", "--", path]).assert_refused(1, &["ifunc resolver"]);
    // The PLT's stub is not a function of the program; the library's is.
    run(&["count", "aliases:puts", "--", path]).assert_refused(5, &["aliases:puts"]);
}

#[test]
#[cfg(target_arch = "aarch64")]
fn c3_each_odd_instruction_is_decided() {
    let forms = [
        ("address", "adr x0, .", None),
        ("page", "adrp x0, .", None),
        ("literal", "ldr x0, 1f; b 2f; .p2align 3; 1: .quad 1; 2:", None),
        ("vector_literal", "ldr q0, 1f; b 2f; .p2align 4; 1: .quad 1, 2; 2:", None),
        ("compares", "cbz x0, 1f; nop; 1:", None),
        ("tests", "tbnz x0, #63, 1f; nop; 1:", None),
        ("conditional", "b.eq 1f; nop; 1:", None),
        ("calls", "bl 1f; 1: mov x0, x30", None),
        ("calls_by_pointer", "blr x1", None),
        ("calls_by_link", "blr x30", Some("a call through the link register cannot be moved")),
        ("jumps", "br x1", None),
        ("exclusive", "1: ldxr x2, [x1]; stxr w3, x2, [x1]; cbnz w3, 1b", None),
        ("signs", "paciasp; nop; autiasp", None),
        ("system_call", "svc #0", None),
        ("breakpoint", "brk #0", Some("traps by itself")),
        ("undefined", "udf #0", Some("")),
        ("waits", "wfe", Some("wfe cannot be moved")),
        ("reads_flags", "mrs x0, nzcv", None),
        ("no_such", ".inst 0x06000000", Some("not an instruction")),
    ];
    let bodies: Vec<String> = forms.iter().map(|(_, form, _)| format!("{form}; nop; ret")).collect();
    let cases: Vec<_> =
        forms.iter().zip(&bodies).map(|((name, _, want), body)| (*name, body.as_str(), *want)).collect();
    assert_listed(&cases);
}

#[test]
#[cfg(target_arch = "powerpc64")]
fn c3_each_odd_instruction_is_decided() {
    let forms = [
        ("conditional", "beq 1f; nop; 1:", None),
        ("counts", "bdnz 1f; nop; 1:", None),
        ("finds_itself", "bcl 20, 31, $+4; mflr 3", None),
        ("address", "addpcis 3, 0", None),
        ("jumps", "bctr", None),
        ("reserves", "1: ldarx 4, 0, 3; stdcx. 4, 0, 3; bne- 1b", None),
        ("breakpoint", "trap", Some("traps by itself")),
        ("no_such", ".long 0", Some("not an instruction")),
    ];
    let bodies: Vec<String> = forms.iter().map(|(_, form, _)| format!("{form}; nop; blr")).collect();
    let cases: Vec<_> =
        forms.iter().zip(&bodies).map(|((name, _, want), body)| (*name, body.as_str(), *want)).collect();
    assert_listed(&cases);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn c3_each_odd_instruction_is_decided() {
    let forms = [
        ("notrack_jmp", "notrack jmp *%rax", None),
        ("lock_add", "lock addl $1, (%rdi)", None),
        ("vex", "vaddps %ymm0, %ymm1, %ymm2", None),
        ("evex", "vaddps %zmm0, %zmm1, %zmm2", None),
        ("evex_rip", "vmovups 1f(%rip), %zmm0; 1:", None),
        ("get_pc", "call 1f; 1: pop %rax", None),
        ("loop_out", "loop 1f; nop; nop; nop; nop; 1:", None),
        ("jrcxz_out", "jrcxz 1f; nop; nop; nop; nop; 1:", None),
        ("rip_implicit", "mull 1f(%rip); 1:", None),
        ("rip_cmpxchg16b", "lock cmpxchg16b 1f(%rip); 1:", None),
        ("push_rsp", "push %rsp; pop %rax", None),
        ("pushf", "pushf; pop %rax", None),
        ("popf", "push %rdi; popf", None),
        ("syscalls", "mov $39, %eax; syscall", None),
        ("syscall_first", "syscall", Some("syscall cannot be moved")),
        ("int3", "int3", Some("")),
        ("ud2", "ud2", Some("")),
        ("rep_ret", "rep ret", None),
        ("int80", "int $0x80", Some("cannot be moved")),
    ];
    let bodies: Vec<String> = forms.iter().map(|(_, form, _)| format!("{form}; {PAD}")).collect();
    let cases: Vec<_> =
        forms.iter().zip(&bodies).map(|((name, _, want), body)| (*name, body.as_str(), *want)).collect();
    assert_listed(&cases);
}

const CALLS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
static long table[4] = { 1, 2, 3, 4 };
__attribute__((noipa)) long subject(long x) { return table[x & 3]; }
static char maps[1 << 20];
/* Takes every free page within 3 GB of the program. */
static void crowd(void) {
    int fd = open("/proc/self/maps", O_RDONLY);
    long size = 0, got;
    while ((got = read(fd, maps + size, sizeof maps - 1 - size)) > 0) size += got;
    unsigned long low = ((unsigned long)subject & ~4095ul) - (3ul << 30), high = low + (6ul << 30), from = low;
    for (char *line = maps; *line && from < high; line = strchr(line, '\n') + 1) {
        unsigned long start, end;
        sscanf(line, "%lx-%lx", &start, &end);
        if (end <= from) continue;
        if (start > high) start = high;
        if (start > from) mmap((void *)from, start - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | 0x100000, -1, 0);
        from = end;
    }
}
int main(int argc, char **argv) {
    if (!strcmp(argv[1], "crowd")) crowd();
    if (!strcmp(argv[1], "limit")) {
        rlim_t most = argv[2] ? 0 : 64 << 20;
        struct rlimit limit = { most, most };
        setrlimit(RLIMIT_AS, &limit);
    }
    puts("ready"); fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        for (int i = 0; i < 1000; i++) sum += subject(i);
        printf("%ld\n", sum); fflush(stdout);
    }
    return 0;
}
"#;

fn work(target: &mut Target) {
    target.tell("go");
    assert_eq!(target.line(), "2500");
}

#[test]
fn c4_programs_at_low_addresses_count_exactly() {
    for flags in [&["-no-pie", "-fno-pie"][..], &["-static", "-no-pie", "-fno-pie"], &["-pie", "-fpie"]] {
        let program = Program::build("calls", CALLS, flags);
        let mut target = program.start(&["plain"]);
        let before = target.text();
        let tool = support::tool::Tool::armed(&[
            "count",
            "--return",
            "-p",
            &target.pid().to_string(),
            "calls:subject",
        ]);
        work(&mut target);
        let summary = tool.interrupt();
        assert_eq!(
            (summary.hits("subject", "entry"), summary.hits("subject", "return")),
            (1000, 1000),
            "{flags:?}"
        );
        before.assert_restored(target.pid());
    }
}

/// A jump of 32-bit code reaches all there is.
#[test]
#[cfg(not(target_arch = "x86"))]
fn c4_without_a_free_page_near_the_module_nothing_is_changed() {
    let program = Program::build("calls", CALLS, &[]);
    let mut target = program.start(&["crowd"]);
    let before = target.text();
    run(&["count", "-p", &target.pid().to_string(), "calls:subject", "-d", "1"])
        .assert_refused(1, &["no free memory within reach of the module"]);
    work(&mut target);
    before.assert_restored(target.pid());
}

#[test]
fn c4_a_limit_on_address_space_is_respected() {
    for program in Program::in_both_widths("calls", CALLS, &[]) {
        let mut target = program.start(&["limit", "nothing"]);
        let before = target.text();
        for flags in [&[][..], &["--mechanism", "step"]] {
            let probe = ["count", "-p", &target.pid().to_string(), "calls:subject", "-d", "0.01"];
            run(&[&probe, flags].concat()).assert_refused(1, &["RLIMIT_AS"]);
        }
        work(&mut target);
        before.assert_restored(target.pid());

        let mut target = program.start(&["limit"]);
        let before = target.text();
        let pid = target.pid().to_string();
        for verb in ["count", "latency"] {
            for flags in [&[][..], &["--mechanism", "step"]] {
                if !X86 && verb == "latency" && !flags.is_empty() {
                    // Probes that trap follow no calls there.
                    continue;
                }
                let probe = ["-p", &pid, "calls:subject", "-d", "0.01"];
                let ran = run(&[&[verb], flags, &probe].concat());
                // Smaller tables may fit; if not, one line says so.
                if ran.code != Some(0) {
                    ran.assert_refused(1, &["memory"]);
                }
                work(&mut target);
                before.assert_restored(target.pid());
            }
        }
    }
}
