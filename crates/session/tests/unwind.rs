//! Stacks of living programs, instruction by instruction.
//!
//! A program is stepped through from a place whose stack is known, and its stack is followed by what its instructions do: a call adds a frame, and
//! one is gone when the stack pointer passes its return address. No unwinder has a part in that. At each instruction the walk has to find the same:
//! in prologues, epilogues, stubs of the PLT, the loader binding a symbol, the vDSO, and handlers of signals.

#![cfg(target_arch = "x86_64")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use trapless_process::{Process, RemoteAddr, Stepped, Tid};
use trapless_session::{
    files::Files,
    target::{self, Image},
    unwind,
};
use trapless_wire::unwind::{Area, Ended, Method, Place, Registers, Tables, Walked, walk};

/// Steps of a program that are looked at.
const MOST_STEPS: u32 = 60_000;

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

volatile int go;
static volatile long sink;
static char *page;

static int less(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

__attribute__((noinline)) long leaf(long a, long b) { return a * b + sink; }
__attribute__((noinline)) long deep(int n) { long x = n ? deep(n - 1) : leaf(n, 3); sink += x; return x + n; }
__attribute__((noinline)) long tail(long a) { sink ^= a; return leaf(a, a + 1); }
__attribute__((noinline)) long sized(int n) {
    char *p = alloca(n);
    memset(p, n, n);
    sink += p[n / 2];
    return leaf(p[0], n);
}
__attribute__((noinline)) long aligned(int n) {
    _Alignas(64) volatile char area[256];
    area[n] = n;
    char *p = alloca(n + 1);
    p[0] = n;
    sink += p[0] + area[n];
    return leaf(area[n], n);
}
__attribute__((noinline)) long large(int n) {
    volatile char area[40000];
    area[n] = n;
    return leaf(area[n], n) + area[n];
}
__attribute__((noinline)) double many(double a, double b, long c, long d, long e, long f, long g, long h, long i) {
    long r = leaf(c, d) + leaf(e, f) + leaf(g, h);
    return a * b + r + i + leaf(d, e) * leaf(f, g);
}

static void handler(int signal) {
    sink += signal;
    deep(2);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
__attribute__((noinline)) static void hurt(int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(SIGSEGV, &action, 0);
    mprotect(page, 4096, PROT_NONE);
    *(volatile char *)page = 1;
    sink++;
}
/* Faults at its first instruction, where nothing is set up, and with a red zone in use. */
__attribute__((noinline)) static long naked(volatile char *p) { return *p + 1; }

__attribute__((noinline)) void finish(void) { sink++; }

int main(void) {
    int numbers[] = {5, 2, 9, 1, 4, 8};
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&other, 0);
    while (!go) {}
    deep(4);
    tail(3);
    sized(100);
    aligned(7);
    large(9);
    sink += many(1, 2, 3, 4, 5, 6, 7, 8, 9);
    qsort(numbers, 6, sizeof *numbers, less);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    hurt(0);
    hurt(SA_ONSTACK);
    mprotect(page, 4096, PROT_NONE);
    sink += naked(page);
    char text[64];
    snprintf(text, sizeof text, "%d %s", numbers[0], "text");
    sink += strlen(text) + strtol(text, 0, 10);
    finish();
    return 0;
}
"#;

/// A child that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compile(compiler: &str, folder: &Path, source: (&str, &str), flags: &[&str]) -> Option<PathBuf> {
    let (name, text) = source;
    if Command::new(compiler).arg("--version").output().is_err() {
        trapless_testing::skip!("no {compiler}");
        return None;
    }
    std::fs::write(folder.join(name), text).unwrap();
    let output = folder.join("program");
    let result = Command::new(compiler)
        .current_dir(folder)
        .args([name, "-w", "-o", "program"])
        .args(flags)
        .output()
        .unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(output)
}

/// A program that waits for its variable `go`, and what is known of it.
struct Target {
    _running: Running,
    process: Process,
    images: Vec<Image>,
    area: Area,
}

impl Target {
    fn start(program: &Path) -> Target {
        Target::start_with(program, &[])
    }

    fn start_with(program: &Path, arguments: &[&str]) -> Target {
        let child =
            Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let running = Running(child);
        let process = target::open(running.0.id() as i32).unwrap();
        // It is in the loop as soon as it uses the processor without system calls; until then the loader may be at work.
        let since = Instant::now();
        loop {
            let images = target::images(&process, &Files::default()).unwrap_or_default();
            let is_program = images.iter().any(|image| Path::new(&image.path) == program);
            if is_program && since.elapsed() > Duration::from_millis(300) {
                let area = unwind::area(&process, &images).unwrap();
                return Target { _running: running, process, images, area };
            }
            assert!(since.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn variable(&self, name: &str) -> u64 {
        let image = &self.images[0];
        image.module(Some(&self.process)).unwrap().symbol_address(name).unwrap()
            + image.bias(Some(&self.process)).unwrap()
    }

    /// The name of the function, for messages.
    fn name(&self, address: u64) -> String {
        for image in &self.images {
            let bias = image.bias(Some(&self.process)).unwrap();
            if image.range.contains(&address)
                && let Some(function) =
                    image.module(Some(&self.process)).unwrap().function_containing(address - bias)
            {
                let offset = address - bias - function.address();
                return format!("{}+{offset:#x}", function.name().plain());
            }
        }
        format!("{address:#x}")
    }

    fn names(&self, frames: &[u64]) -> String {
        frames.iter().map(|&frame| self.name(frame)).collect::<Vec<_>>().join(" < ")
    }
}

/// The general registers by DWARF's numbers (System V ABI, x86-64, figure 3.36): those of the processor are rax, rcx, rdx, rbx, rsp, …
fn general(registers: &trapless_process::Registers) -> [u64; 16] {
    let number = |dwarf: u8| [0, 2, 1, 3, 6, 7, 5, 4].get(usize::from(dwarf)).copied().unwrap_or(dwarf);
    std::array::from_fn(|dwarf| registers.general(number(dwarf as u8)))
}

fn start_of(registers: &trapless_process::Registers) -> Registers<'static> {
    Registers {
        pc: registers.ip().0,
        sp: registers.sp().0,
        fp: registers.general(5),
        bp: registers.general(3),
        link: 0,
        general: &[],
    }
}

fn frames(
    tables: &Tables<'_>,
    process: &Process,
    start: Registers<'_>,
    method: Method,
) -> (Vec<u64>, Walked) {
    let mut frames = Vec::new();
    let read = |address| process.read_word(RemoteAddr(address)).ok();
    let walked =
        walk(tables, start, Place::Anywhere, method, 200, read, |_, found| found, |pc| frames.push(pc));
    assert_eq!(walked.frames as usize, frames.len());
    (frames, walked)
}

/// What an instruction does to the list of callers.
#[derive(Clone, Copy, PartialEq)]
enum Effect {
    Call,
    SignalReturn,
    Other,
}

fn effect(code: &[u8], rax: u64) -> Effect {
    let prefixes = code.iter().take_while(|&&byte| matches!(byte, 0x3e | 0x66 | 0xf2 | 0xf3 | 0x40..=0x4f));
    let code = &code[prefixes.count()..];
    match *code {
        [0xe8, ..] => Effect::Call,
        [0xff, modrm, ..] if modrm >> 3 & 7 == 2 => Effect::Call,
        [0x0f, 0x05, ..] if rax == libc::SYS_rt_sigreturn as u64 => Effect::SignalReturn,
        _ => Effect::Other,
    }
}

/// A caller, as the instructions have made it.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The slot of the return address, and the address.
    Called(u64, u64),
    /// What a signal has interrupted.
    Interrupted(u64),
}

/// What was seen on the way.
#[derive(Debug, Default)]
struct Passed {
    steps: u32,
    deepest: usize,
    in_signals: u32,
    in_vdso: u32,
    in_loader: u32,
    /// Cut short where gcc's entries say nothing that is right.
    cut: u32,
    /// Where the walk found something else, by the name of the innermost function.
    wrong: Vec<String>,
}

/// Steps through the program up to `finish` and compares at each instruction.
fn step_through(target: &Target) -> Passed {
    let process = &target.process;
    let tables = Tables::new(target.area.bytes()).unwrap();
    let vdso =
        process.maps().unwrap().special("[vdso]").map(|mapping| mapping.start.0..mapping.end.0).unwrap();
    let loader =
        target.images.iter().find(|image| image.name().starts_with("ld-")).map(|image| image.range.clone());
    let finish = target.variable("finish");
    let mut stopped = process.stop().unwrap();
    let tid = Tid(process.pid().0);
    let now = |stopped: &trapless_process::Stopped<'_>| *stopped.thread(tid).unwrap().registers();
    let first = start_of(&now(&stopped));
    // In the loop of main, the walk at rest: what lies above is the same all the time.
    let (outer, walked) = frames(&tables, process, first, Method::Rows);
    assert_eq!(walked.ended, Ended::Outermost, "{}", target.names(&outer));
    assert!(target.name(outer[0]).starts_with("main"), "{}", target.names(&outer));
    assert!(target.name(*outer.last().unwrap()).starts_with("_start"), "{}", target.names(&outer));
    process.write(RemoteAddr(target.variable("go")), &1_u32.to_le_bytes()).unwrap();
    let mut known: Vec<Known> = Vec::new();
    let mut seen = Passed::default();
    for _ in 0..MOST_STEPS {
        let before = now(&stopped);
        if before.ip().0 == finish {
            break;
        }
        let mut code = [0; 15];
        let _ = process.read(before.ip(), &mut code);
        let mut asked = 0;
        let one = |_: &trapless_process::Registers| {
            asked += 1;
            asked > 1
        };
        match stopped.step_until(tid, 1, one).unwrap() {
            Stepped::Faulted(_) => {
                assert!(stopped.deliver(tid).unwrap());
                let after = start_of(&now(&stopped));
                known.push(Known::Interrupted(before.ip().0));
                known.push(Known::Called(after.sp, process.read_word(RemoteAddr(after.sp)).unwrap()));
            }
            _ => {
                let after = start_of(&now(&stopped));
                match effect(&code, before.general(0)) {
                    Effect::Call => {
                        known.push(Known::Called(after.sp, process.read_word(RemoteAddr(after.sp)).unwrap()));
                    }
                    Effect::SignalReturn => {
                        while let Some(Known::Called(..)) = known.last() {
                            known.pop();
                        }
                        known.pop();
                    }
                    Effect::Other => {}
                }
                while let Some(&Known::Called(slot, _)) = known.last()
                    && slot < after.sp
                // The handler's own return leads to the trampoline.
                {
                    known.pop();
                }
            }
        }
        let general = general(&now(&stopped));
        let after = Registers { general: &general, ..start_of(&now(&stopped)) };
        let expected: Vec<u64> = [after.pc]
            .into_iter()
            .chain(known.iter().rev().map(|known| match *known {
                Known::Called(_, address) | Known::Interrupted(address) => address,
            }))
            .chain(outer[1..].iter().copied())
            .collect();
        // Calls from main are in front of its callers; the place in main itself is in the list.
        let (found, walked) = frames(&tables, process, after, Method::Rows);
        seen.steps += 1;
        seen.deepest = seen.deepest.max(found.len());
        seen.in_signals += u32::from(known.iter().any(|known| matches!(known, Known::Interrupted(_))));
        seen.in_vdso += u32::from(vdso.contains(&after.pc));
        seen.in_loader += u32::from(loader.as_ref().is_some_and(|loader| loader.contains(&after.pc)));
        if walked.ended == Ended::RegisterLost && expected.starts_with(&found) {
            seen.cut += 1;
        } else if found != expected || walked.ended != Ended::Outermost {
            seen.wrong.push(format!(
                "{walked:?}\n  found    {}\n  expected {}",
                target.names(&found),
                target.names(&expected)
            ));
        }
    }
    assert_eq!(now(&stopped).ip().0, finish, "the end was not reached in {MOST_STEPS} steps");
    seen
}

#[test]
fn walks_are_right_at_each_instruction_however_a_program_was_compiled() {
    for (compiler, flags) in [
        ("gcc", &["-O0", "-g"][..]),
        ("gcc", &["-O2", "-Wl,-z,lazy"]),
        ("gcc", &["-O2", "-fno-omit-frame-pointer", "-Wl,-z,now"]),
        ("gcc", &["-O3", "-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy", "-fno-plt"]),
        ("gcc", &["-O2", "-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy"]),
        ("gcc", &["-Os", "-static"]),
        ("clang", &["-O2", "-fasynchronous-unwind-tables"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = compile(compiler, folder.path(), ("a.c", PROGRAM), flags) else { continue };
        let target = Target::start(&program);
        let seen = step_through(&target);
        println!("{compiler} {flags:?}: {} wrong, {:?}", seen.wrong.len(), Passed { wrong: vec![], ..seen });
        for wrong in seen.wrong.iter().take(5) {
            println!("{wrong}");
        }
        assert!(seen.wrong.is_empty());
        assert!(seen.cut <= 10 && seen.in_signals > 100 && seen.in_vdso > 20 && seen.deepest > 8);
    }
}

/// The innermost frames of all threads, by the walk.
fn stacks(target: &Target, method: Method) -> Vec<(i32, Vec<u64>, Walked)> {
    let tables = Tables::new(target.area.bytes()).unwrap();
    let stopped = target.process.stop().unwrap();
    let threads = stopped.threads().iter();
    threads
        .map(|thread| {
            let general = general(thread.registers());
            let start = Registers { general: &general, ..start_of(thread.registers()) };
            let (found, walked) = frames(&tables, &target.process, start, method);
            (thread.tid().0, found, walked)
        })
        .collect()
}

/// A function that needs no frame does not save the frame pointer, and its caller is passed over: `spin` needs one.
const GO: &str = r#"package main
var sink int
//go:noinline
func spin(n int) int { var a [64]int; for i := 0; sink != -12345; i++ { a[i & 63] += i & n; sink += a[(i + n) & 63] & 1 }; return a[n] }
//go:noinline
func middle(n int) int { return spin(n) + 1 }
//go:noinline
func outer(n int) int { x := middle(n); return x * 2 }
func main() { println(outer(3)) }
"#;

/// Go's linker writes `.debug_frame`, or nothing, as it is told.
#[test]
fn goroutines_are_walked_by_rows_and_by_frame_pointers_where_there_are_none() {
    if Command::new("go").arg("version").output().is_err() {
        trapless_testing::skip!("no go");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.go"), GO).unwrap();
    let wanted = ["main.spin", "main.middle", "main.outer", "main.main", "runtime.main"];
    for (linker, methods) in
        [("", &[Method::Rows][..]), ("-ldflags=-w", &[Method::Rows, Method::FramePointers])]
    {
        let built = trapless_testing::go()
            .current_dir(folder.path())
            .arg("build")
            .args([linker].iter().filter(|flag| !flag.is_empty()))
            .args(["-o", "program", "a.go"])
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let target = Target::start(&folder.path().join("program"));
        let tables = Tables::new(target.area.bytes()).unwrap();
        assert_eq!(tables.rule(target.variable("main.spin")).is_some(), linker.is_empty());
        for &method in methods {
            let found = stacks(&target, method);
            let named: Vec<Vec<String>> = found
                .iter()
                .map(|(_, frames, _)| frames.iter().map(|&frame| target.name(frame)).collect())
                .collect();
            let is_whole = |names: &Vec<String>| {
                let begins = names.iter().zip(wanted).all(|(name, wanted)| name.starts_with(wanted));
                begins && names.len() >= wanted.len()
            };
            assert!(named.iter().any(is_whole), "{method:?} {linker}: {named:#?}");
        }
    }
}

const RECURSIVE: &str = r#"
import sys, threading
def work(n):
    if n == 0:
        return sum(sorted(range(2000), key=lambda x: -x)) + len(repr(list(range(300))))
    return max(map(work, [n - 1])) + 1
def forever():
    while True:
        work(6)
threading.Thread(target=forever, daemon=True).start()
forever()
"#;

/// What gdb finds of all threads.
const GDB: &str = r#"
import gdb
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, found = gdb.newest_frame(), []
    while frame is not None and len(found) < 200:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            found.append(hex(frame.pc()))
        try:
            frame = frame.older()
        except gdb.error:
            break
    print("STACK", thread.ptid[1], *found)
"#;

#[test]
fn stacks_of_an_interpreter_at_random_moments_are_those_that_gdb_finds() {
    if ["gdb", "python3"].iter().any(|program| Command::new(program).arg("--version").output().is_err()) {
        trapless_testing::skip!("no gdb or no python3");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (script, commands) = (folder.path().join("a.py"), folder.path().join("a.gdb.py"));
    std::fs::write(&script, RECURSIVE).unwrap();
    std::fs::write(&commands, GDB).unwrap();
    // By its own path: what PATH leads to may be a script.
    let python = Command::new("python3")
        .args(["-c", "import os; print(os.readlink('/proc/self/exe'))"])
        .output()
        .unwrap();
    let python = PathBuf::from(String::from_utf8(python.stdout).unwrap().trim());
    let target = Target::start_with(&python, &[script.to_str().unwrap()]);
    let pid = target.process.pid().0;
    let mut compared = 0;
    let mut deepest = 0;
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(37 + round * 11));
        // SAFETY: kill takes two integers.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        let told = Command::new("gdb")
            .args(["-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", &pid.to_string(), "-x"])
            .arg(&commands)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let ours = stacks(&target, Method::Rows);
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        for line in told.lines().filter_map(|line| line.strip_prefix("STACK ")) {
            let mut words = line.split(' ');
            let tid: i32 = words.next().unwrap().parse().unwrap();
            let theirs: Vec<u64> = words.map(|word| u64::from_str_radix(&word[2..], 16).unwrap()).collect();
            let Some((_, found, walked)) = ours.iter().find(|(ours, ..)| *ours == tid) else { continue };
            // It was let go in between, or gdb has lost its way.
            if theirs.len() < 5 || found.first() != theirs.first() {
                continue;
            }
            assert!(
                found.starts_with(&theirs) || theirs.starts_with(found) && walked.ended == Ended::Outermost,
                "{walked:?}\n ours   {}\n theirs {}",
                target.names(found),
                target.names(&theirs)
            );
            assert_eq!(walked.ended, Ended::Outermost, "{}", target.names(found));
            compared += 1;
            deepest = deepest.max(found.len());
        }
    }
    println!("{compared} stacks, the deepest of {deepest} frames");
    assert!(compared >= 4 && deepest > 20);
}

#[test]
fn a_static_program_of_musl_is_walked_where_its_rows_tell_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-static", "-fasynchronous-unwind-tables"];
    let Some(program) = compile("musl-gcc", folder.path(), ("a.c", PROGRAM), &flags) else { return };
    let target = Target::start(&program);
    let tables = Tables::new(target.area.bytes()).unwrap();
    // The trampoline has no entry; the byte ahead of it is looked up for a handler's return address.
    let restore = target.images[0].module(Some(&target.process)).unwrap().symbol_address("__restore_rt");
    let restore = restore.expect("musl has one") + target.images[0].bias(Some(&target.process)).unwrap();
    assert_eq!(tables.rule(restore), tables.rule(restore - 1));
    let flags = tables.rule(restore).unwrap().flags;
    assert!(flags & trapless_wire::unwind::Rule::INTERRUPTED != 0);
    let [(_, found, _)] = &stacks(&target, Method::Rows)[..] else { panic!("it has one thread") };
    assert!(target.name(found[0]).starts_with("main"), "{}", target.names(found));
    assert!(found.len() >= 2, "{}", target.names(found));
}
