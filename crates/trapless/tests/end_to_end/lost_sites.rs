//! Armed sites that somebody else takes away while the target runs: it is told, and nobody's bytes are overwritten.

use crate::support::assembly::BREAKPOINT;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use crate::support::eventually;
use crate::support::tool::{Ran, Tool, detach};
use crate::support::{Program, Target};

/// Calls `subject` as often as each line of input says. On x86-64 its first instruction is one byte, as that of most functions.
const SUBJECT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
long subject(long x);
#include "assembly.h"
ASSEMBLED(subject, THRICE_AND_SEVEN)
int main(void) {
    char line[64];
    printf("ready %p\n", (void *)subject);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long wrong = 0;
        for (long i = 0, times = atol(line); i < times; i++) wrong += subject(i) != 3 * i + 7;
        printf("%ld wrong\n", wrong);
        fflush(stdout);
    }
    return 0;
}
"#;

/// Longer than any patch of it.
const LONG: usize = 16;

fn armed() -> (Target, Tool, Vec<u8>, Vec<u8>) {
    let target = Program::build("subject", SUBJECT, &[]).start(&[]);
    let original = target.read(target.address(0), LONG);
    let tool = Tool::armed(&["count", "subject:subject", "-p", &target.pid().to_string()]);
    let patched = target.read(target.address(0), LONG);
    assert_ne!(original, patched);
    (target, tool, original, patched)
}

fn call(target: &mut Target, times: u32) {
    target.tell(&times.to_string());
    assert_eq!(target.line(), "0 wrong");
}

/// Ends the run; the code of its only lost site, which standard error tells of, too.
#[track_caller]
fn lost(tool: Tool) -> (String, Ran) {
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let sites = ran.summary().0["lost_sites"].as_array().unwrap().clone();
    let [site] = &sites[..] else { panic!("{sites:?}") };
    assert_eq!((&site["module"], &site["function"]), (&"subject".into(), &"subject".into()));
    assert!(ran.err.contains(site["reason"].as_str().unwrap()), "{ran:?}");
    (site["code"].as_str().unwrap().to_owned(), ran)
}

#[test]
fn a_site_that_somebody_else_patched_is_told_and_left_alone() {
    let (mut target, tool, original, _) = armed();
    call(&mut target, 3);
    // `mov $7, %eax; ret` would do as well: any foreign bytes.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    let foreign = [0x66, 0x90, 0x66, 0x90, 0x90];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    let foreign = BREAKPOINT;
    target.write(target.address(0), &foreign);
    let (code, ran) = lost(tool);
    assert_eq!((code.as_str(), ran.summary().hits("subject", "entry")), ("changed", 3));
    assert_eq!(
        target.read(target.address(0), foreign.len()),
        foreign,
        "nothing is restored over foreign bytes"
    );
    target.write(target.address(0), &original);
    call(&mut target, 3);
}

#[test]
fn code_that_somebody_else_put_back_is_told() {
    let (mut target, tool, original, _) = armed();
    target.write(target.address(0), &original);
    call(&mut target, 3);
    let (code, ran) = lost(tool);
    assert_eq!((code.as_str(), ran.summary().hits("subject", "entry")), ("restored", 0));
    assert_eq!(target.read(target.address(0), LONG), original);
}

#[test]
fn probes_that_another_detach_took_out_are_told() {
    let (mut target, tool, original, _) = armed();
    call(&mut target, 3);
    detach(target.pid());
    call(&mut target, 4);
    let (code, ran) = lost(tool);
    assert_eq!((code.as_str(), ran.summary().hits("subject", "entry")), ("detached", 3));
    assert_eq!(target.read(target.address(0), LONG), original);
}

/// Where a jump is one instruction, the kernel writes all of it.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn a_kernel_uprobe_that_was_taken_off_leaves_a_jump_that_is_mended() {
    // What the kernel writes when a uprobe ends: the first byte of the file, before the rest of our jump.
    let (mut target, tool, original, patched) = armed();
    target.write(target.address(0), &original[..1]);
    eventually("the jump is whole again", || target.read(target.address(0), LONG) == patched);
    call(&mut target, 5);
    let (code, ran) = lost(tool);
    assert_eq!((code.as_str(), ran.summary().hits("subject", "entry")), ("mended", 5));
    assert_eq!(target.read(target.address(0), LONG), original);
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn a_kernel_uprobe_over_a_jump_gets_the_code_it_counts_on() {
    // A uprobe is a breakpoint, and the file's first instruction is run from a copy that goes on behind it.
    let (mut target, tool, original, _) = armed();
    target.write(target.address(0), &[0xcc]);
    eventually("the file's code stands behind it", || {
        target.read(target.address(0) + 1, LONG - 1) == original[1..]
    });
    assert_eq!(target.read(target.address(0), 1), [0xcc], "the breakpoint is the kernel's");
    let (code, _) = lost(tool);
    assert_eq!(code, "uprobe");
    // And when it is taken off:
    target.write(target.address(0), &original[..1]);
    call(&mut target, 5);
}

#[test]
fn a_breakpoint_of_a_debugger_is_left_as_it_is() {
    let (mut target, tool, original, patched) = armed();
    // SAFETY: ptrace with these requests takes a process id and no pointers.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, target.pid(), 0, 0) };
    assert_eq!(traced, 0);
    target.write(target.address(0), BREAKPOINT);
    let size = BREAKPOINT.len();
    let told = |target: &Target| target.read(target.address(0), LONG)[size..] == patched[size..];
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(told(&target), "a debugger keeps our first byte and puts it back");
    target.write(target.address(0), &patched[..size]);
    call(&mut target, 2);
    // SAFETY: as above.
    unsafe {
        libc::kill(target.pid(), libc::SIGSTOP);
        libc::waitpid(target.pid(), std::ptr::null_mut(), libc::__WALL);
        libc::ptrace(libc::PTRACE_DETACH, target.pid(), 0, 0);
        libc::kill(target.pid(), libc::SIGCONT);
    }
    tool.signal(libc::SIGINT);
    let summary = tool.ran().summary();
    assert_eq!(summary.hits("subject", "entry"), 2);
    assert_eq!(target.read(target.address(0), LONG), original);
}

/// Loads its library, calls `plugged` and unloads it, as each letter of its input says.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    char line[16];
    void *library = dlopen(argv[1], RTLD_NOW);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'u') dlclose(library);
        if (line[0] == 'l') library = dlopen(argv[1], RTLD_NOW);
        if (line[0] == 'c') ((long (*)(long))dlsym(library, "plugged"))(1);
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
"#;

#[test]
fn a_library_that_is_unloaded_and_loaded_again_is_told() {
    let library = "__attribute__((noipa)) long plugged(long x) { volatile long y = x; return y + 1; }";
    let library = Program::build("libplugged.so", library, &["-shared", "-fPIC"]);
    let program = Program::build("loader", LOADER, &["-ldl"]);
    for (letters, codes) in [("cu", &["unloaded"][..]), ("culcc", &["reloaded", "unloaded"])] {
        let mut target = program.start(&[library.path().to_str().unwrap()]);
        let tool = Tool::armed(&["count", "libplugged.so:plugged", "-p", &target.pid().to_string()]);
        for letter in letters.chars() {
            target.tell(&letter.to_string());
            assert_eq!(target.line(), "done");
        }
        tool.signal(libc::SIGINT);
        let ran = tool.ran();
        let summary = ran.summary();
        assert_eq!(summary.hits("plugged", "entry"), 1, "{ran:?}");
        let code = summary.0["lost_sites"][0]["code"].as_str().unwrap_or_default().to_owned();
        assert!(codes.contains(&code.as_str()), "{letters}: {ran:?}");
        assert!(ran.err.contains("1 probe lost (libplugged.so:plugged): the module was unloaded"), "{ran:?}");
        target.tell("");
        assert_eq!(target.line(), "done", "the target lives");
    }
}

/// Maps a part of its own code a second time where a line of input says so, and calls `subject` here and there.
const COPIES: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
// Where the page begins is not where the function does: nobody computes places in that.
#include "assembly.h"
asm(".text; .p2align " PAGE "; .globl page; page: .fill 16, 1, 0xcc");
ASSEMBLED(subject, THRICE_AND_SEVEN)
asm(".p2align " PAGE);
long subject(long x);
extern char page[];
static uintptr_t offset;
static int find(struct dl_phdr_info *info, size_t size, void *data) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = info->dlpi_phdr + i;
        uintptr_t address = (uintptr_t)page - info->dlpi_addr - segment->p_vaddr;
        if (segment->p_type == PT_LOAD && address < segment->p_filesz) offset = segment->p_offset + address;
    }
    return 1;
}
int main(int argc, char **argv) {
    char line[16];
    long (*copy)(long) = 0;
    dl_iterate_phdr(find, 0);
    if (argc > 1) goto map;
    for (;;) {
        printf("ready\n");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 0;
        if (line[0] == 'm') {
        map:;
            int self = open("/proc/self/exe", O_RDONLY);
            char *copied = mmap((void *)(sizeof(long) == 8 ? 1L << (sizeof(long) * 5) : 1L << 30), getpagesize(), PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, self, offset);
            close(self);
            if (copied == MAP_FAILED) return 1;
            copy = (long (*)(long))(copied + 16);
            continue;
        }
        long (*volatile here)(long) = subject, (*volatile there)(long) = copy;
        if (here(1) != 10 || here(2) != 13 || (there && there(3) != 16)) return 2;
    }
}
"#;

#[test]
fn code_that_is_mapped_twice_is_probed_in_both_places() {
    let program = Program::build("copies", COPIES, &[]);
    let mut target = program.start(&["m"]);
    let before = target.text();
    let tool = Tool::armed(&["count", "copies:*", "-p", &target.pid().to_string()]);
    target.tell("c");
    assert_eq!(target.line(), "ready");
    let summary = tool.interrupt();
    let rows = summary.0["probes"].as_array().unwrap();
    let mut hits: Vec<u64> = rows
        .iter()
        .filter(|row| row["function"] == "subject")
        .map(|row| row["hits"].as_u64().unwrap())
        .collect();
    hits.sort_unstable();
    assert_eq!(hits, [1, 2], "{summary:?}");
    // What the second mapping does not hold was not looked for there.
    let patched = summary.0["skipped"].as_array().unwrap().iter();
    let patched = patched.filter(|site| site["reason"].as_str().unwrap().contains("not the file's"));
    assert_eq!(patched.count(), 0, "{summary:?}");
    before.assert_restored(target.pid());
}

#[test]
fn code_that_is_mapped_again_after_arming_is_told() {
    let program = Program::build("copies", COPIES, &[]);
    let mut target = program.start(&[]);
    let tool = Tool::armed(&["count", "copies:subject", "-p", &target.pid().to_string()]);
    target.tell("m");
    assert_eq!(target.line(), "ready");
    target.tell("c");
    assert_eq!(target.line(), "ready");
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.summary().0["notes"][0]["code"], "mapped_again", "{ran:?}");
    assert!(ran.err.contains("copies was mapped again at another place"), "{ran:?}");
    assert_eq!(ran.summary().hits("subject", "entry"), 2);
}
