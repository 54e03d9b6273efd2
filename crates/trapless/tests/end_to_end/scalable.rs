//! Scalable vectors (SVE) of programs, of which a system call keeps no more than 128 bits: calls of ours lose nothing of them.
#![cfg(target_arch = "aarch64")]

use crate::support::replacing::{Replaced, library, of};
use crate::support::text;
use crate::support::tool::{Tool, detach, run};
use crate::support::{Program, Target, eventually};
use std::process::Command;

/// `holds` fills all vectors and predicates, runs for a while and looks at them; so does `keeps`, and calls a function meanwhile that leaves them alone.
/// `given` is called by a variant of the convention.
const SOURCE: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
static volatile unsigned long rounds, wrong;
static volatile int stop;
static uint8_t z[32 * 256], p[16 * 32], f[32];

#define N16(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13) x(14) x(15)
#define N32(x) N16(x) x(16) x(17) x(18) x(19) x(20) x(21) x(22) x(23) x(24) x(25) x(26) x(27) x(28) x(29) x(30) x(31)
#define FILL(n) "mov z" #n ".b, #" #n " + 1\n"
#define STORE(n) "str z" #n ", [%1, #" #n ", mul vl]\n"
#define CLOBBERED(n) , "v" #n
#define TRUE(n) "ptrue p" #n ".b\n"
#define KEEP(n) "str p" #n ", [%2, #" #n ", mul vl]\n"

__attribute__((noipa)) void left(void) { __asm__ volatile("nop\nnop"); }
#define MEANWHILE(what) \
    register uint8_t *in_z __asm__("x19") = z, *in_p __asm__("x20") = p, *in_f __asm__("x21") = f; \
    register unsigned long size __asm__("x22"); \
    __asm__ volatile(".arch_extension sve\n" \
        N32(FILL) N16(TRUE) "setffr\n" what \
        N32(STORE) N16(KEEP) "rdffr p0.b\nstr p0, [%3]\ncntb %0\n" \
        : "=&r"(size) : "r"(in_z), "r"(in_p), "r"(in_f) : "x9", "x30", "cc", "memory" N32(CLOBBERED))
static int differ_by(unsigned long size) {
    int differ = 0;
    for (unsigned long n = 0; n < 32; n++)
        for (unsigned long i = 0; i < size; i++) differ += z[n * size + i] != n + 1;
    for (unsigned long i = 0; i < 16 * size / 8; i++) differ += p[i] != 0xff;
    for (unsigned long i = 0; i < size / 8; i++) differ += f[i] != 0xff;
    return differ;
}
__attribute__((noipa)) int holds(const char *text) {
    MEANWHILE("mov x9, #50000\n1: subs x9, x9, #1\nb.ne 1b\n");
    return differ_by(size);
}
__attribute__((noipa)) int keeps(void) {
    MEANWHILE("bl left\n");
    return differ_by(size);
}
__attribute__((noipa)) int plain(const char *text) { return text[0]; }
__attribute__((noipa)) int given(const char *text) { return text[1]; }
__asm__(".variant_pcs given");
/* Of a function that is in the middle of something. Nobody comes here. */
__asm__(".text\n.type holds.cold, %function\nholds.cold: nop\nnop\nret\n.size holds.cold, .-holds.cold");

int main(void) {
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE)) { puts("none"); fflush(stdout); getchar(); return 0; }
    printf("ready %lx %lx %lx\n", (long)&rounds, (long)&wrong, (long)&stop);
    fflush(stdout);
    while (!stop) { wrong += holds("some"); wrong += plain("some") != 's'; wrong += given("some") != 'o'; wrong += keeps(); rounds++; }
    printf("%lu\n", wrong);
    fflush(stdout);
    getchar();
}
"#;

fn start() -> Option<(Program, Target)> {
    let program = Program::build("scalable", SOURCE, &["-O2"]);
    let Some(target) = Target::try_start(&mut Command::new(program.path())) else {
        trapless_testing::skip!("the processor has no SVE");
        return None;
    };
    Some((program, target))
}

fn run_on(target: &Target) {
    let before = target.read_word(target.address(0));
    eventually("it goes round", || target.read_word(target.address(0)) > before + 2);
}

#[track_caller]
fn finish(mut target: Target) {
    target.write(target.address(2), &1u32.to_le_bytes());
    assert_eq!(target.line(), "0", "wrong values");
}

#[test]
fn what_is_in_vectors_when_probes_are_armed_and_removed_stays() {
    let Some((_program, target)) = start() else { return };
    let before = target.text();
    let pid = target.pid().to_string();
    for round in 0..20 {
        let (verb, kind) = [("count", "entry"), ("latency", "return")][round % 2];
        let tool = Tool::armed(&[verb, "-p", &pid, "scalable:plain", "libc.so.6:malloc"]);
        run_on(&target);
        assert!(tool.interrupt().hits("plain", kind) > 0);
        detach(target.pid());
    }
    before.assert_restored(target.pid());
    finish(target);
}

#[test]
fn scripts_that_read_memory_run_where_nothing_is_in_vectors() {
    let Some((_program, target)) = start() else { return };
    let pid = target.pid().to_string();
    let script = |place: &str| {
        let text =
            format!("uprobe:scalable:{place} {{ @[str(arg0)] = count(); if (@n++ > 3) {{ exit(); }} }}");
        run(&["-p", &pid, "-e", &text])
    };
    let read = script("plain");
    assert!(read.code == Some(0) && read.out.contains("@[some]: "), "{read:?}");
    for place in ["given", "plain+4", "holds+4", "holds.cold"] {
        let refused = script(place);
        assert_eq!(refused.code, Some(1), "{place}: {refused:?}");
        assert!(
            refused.err.contains("scalable vectors that the program may be working with"),
            "{place}: {refused:?}"
        );
    }
    // What reads nothing of the program's memory loses nothing.
    let text = "uprobe:scalable:holds+4 { @n++; if (@n > 3) { exit(); } }";
    let counted = run(&["-p", &pid, "-e", text]);
    assert!(counted.code == Some(0) && counted.out.contains("@n: "), "{counted:?}");
    finish(target);
}

/// The call at which a library is loaded is one of a function that leaves vectors alone, as its caller knows.
#[test]
fn what_is_in_vectors_when_a_library_is_loaded_for_a_replacement_stays() {
    let Some((_program, target)) = start() else { return };
    for round in 0..3 {
        let source = format!("void left_fixed(void) {{ __asm__ volatile(\"nop\"); }} int round = {round};");
        let fix = library("fix.so", &source, &["-O2"]);
        let replaced = Replaced::by(&target, "scalable:left", &of(fix.path(), "left_fixed"), &[]);
        run_on(&target);
        assert_eq!(replaced.interrupt()["restored"], true);
    }
    text::eventually_nothing_is_left(target.pid());
    finish(target);
}
