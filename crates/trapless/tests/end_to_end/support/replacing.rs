//! A program whose functions are replaced, the libraries that it loads for that, and the tool that does it.

use super::tool::{Ran, Tool, run, trapless};
use super::{Program, Target};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Does what lines of its input say, and answers each by a line.
pub const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define APART __attribute__((noinline, noclone))
APART long slow(long x) { __asm__ volatile("nop\nnop\nnop"); return x + 1; }
APART long rec(long n) { __asm__ volatile(""); return n ? rec(n - 1) + 1 : 0; }
APART void one(void) { __asm__ volatile(""); }
long ones;
/* More arguments than there are registers for. */
APART long many(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, double x, long l) {
    __asm__ volatile("nop\nnop\nnop");
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + (long)(x * 2) + 13 * l;
}
static long (*volatile pointed)(long, long, long, long, long, long, long, long, long, long, long, double, long) = many;
static volatile int stop;
static struct { long old, new, odd, back; } all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Results go from old to new, and to nothing else. */
static void *work(void *unused) {
    long old = 0, new = 0, odd = 0, back = 0, last = 42;
    while (!stop) {
        errno = 77;
        long now = slow(41);
        if (errno != 77 || (now != 42 && now != 1042)) odd++;
        else if (now == 42) { old++; back += last != 42; }
        else new++;
        last = now;
    }
    pthread_mutex_lock(&lock);
    all.old += old; all.new += new; all.odd += odd; all.back += back;
    pthread_mutex_unlock(&lock);
    return unused;
}
static void *handles[64];
static int held;
static volatile long handled;
static void handle(int signal) { handled = slow(signal); }
static char another[1 << 20];
static void *small(void *unused) { for (; !stop; usleep(2000)) slow(1); return unused; }
APART long deep(long levels) { volatile char room[4096]; room[0] = 1; return levels ? deep(levels - 1) + room[0] : slow(1); }
static void *deeply(void *unused) { for (; !stop; usleep(2000)) deep(15); return unused; }
static void start(void *(*begin)(void *), int count, size_t stack, pthread_t *threads) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack) pthread_attr_setstacksize(&attributes, stack);
    for (int i = 0; i < count; i++) pthread_create(threads + i, &attributes, begin, 0);
}
int main(void) {
    char line[4096], *end;
    pthread_t threads[8];
    int count = 0;
    printf("ready %lx %lx %lx\n", (long)slow, (long)rec, (long)one);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if ((end = strchr(line, '\n'))) *end = 0;
        switch (*line) {
        case 't': stop = 0; start(work, count = 8, 0, threads); printf("started"); break;
        case 'w': start(small, count = 1, 128 << 10, threads); printf("started"); break;
        case 'd': start(deeply, count = 1, 2 << 20, threads); printf("started"); break;
        case 's':
            stop = 1;
            while (count) pthread_join(threads[--count], 0);
            printf("%d %d %ld %ld", all.old > 0, all.new > 0, all.odd, all.back);
            memset(&all, 0, sizeof all);
            stop = 0;
            break;
        case 'c': printf("%ld", slow(atol(line + 1))); break;
        case 'r': printf("%ld", rec(atol(line + 1))); break;
        case 'm':
            printf("%ld ", many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 6.0, 13));
            printf("%ld", pointed(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 6.0, 13));
            break;
        case 'o': one(); printf("%ld", ones); break;
        case 'h': signal(SIGUSR1, handle); raise(SIGUSR1); printf("%ld", handled); break;
        case 'a': {
            stack_t stack = { .ss_sp = another, .ss_size = sizeof another };
            struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK };
            sigaltstack(&stack, 0);
            sigaction(SIGUSR1, &action, 0);
            raise(SIGUSR1);
            printf("%ld", handled);
            break;
        }
        case 'l': printf("%d", dlopen(line + 1, RTLD_NOW) != 0); break;
        case 'k': printf("%d", (handles[held] = dlopen(line + 1, RTLD_NOW)) && ++held); break;
        case 'u': printf("%d", held && !dlclose(handles[--held])); break;
        case 'p': {
            void *library = dlopen(line + 1, RTLD_NOW | RTLD_NOLOAD);
            void **pointer = library ? dlsym(library, "slow_original") : 0;
            printf("%d", pointer ? *pointer == (void *)slow : -1);
            break;
        }
        case 'f': {
            fflush(stdout);
            pid_t child = fork();
            if (!child) { printf("%ld", slow(41)); fflush(stdout); _exit(0); }
            waitpid(child, 0, 0);
            break;
        }
        case 'v': { pid_t child = vfork(); if (!child) { slow(1); _exit(0); } waitpid(child, 0, 0); break; }
        case 'x': execl("/proc/self/exe", "exec", (char *)0); break;
        }
        printf("\n");
        fflush(stdout);
    }
}
"#;

/// Functions for it.
pub const LIBRARY: &str = r#"
long (*slow_original)(long);
long slow_fixed(long x) { return slow_original ? slow_original(x) + 1000 : -1; }
long (*rec_original)(long);
long rec_fixed(long n) { return rec_original(n) + 1; }
long (*many_original)(long, long, long, long, long, long, long, long, long, long, long, double, long);
long many_fixed(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, double x, long l) {
    return many_original(a, b, c, d, e, f, g, h, i, j, k, x, l) + 1000 * l;
}
extern long ones;
void one_fixed(void) { ones++; }
const long no_pointer = 1;
int short_pointer;
"#;

/// A library of this source, in a directory of its own.
pub fn library(name: &str, source: &str, flags: &[&str]) -> Program {
    Program::try_build("gcc", name, source, &[&["-shared", "-fPIC"], flags].concat()).unwrap()
}

/// The program, whose symbols libraries find.
pub fn program(name: &str) -> Program {
    Program::build(name, PROGRAM, &["-rdynamic", "-ldl", "-falign-functions=16"])
}

/// What names a library's function.
pub fn of(library: &Path, function: &str) -> String {
    format!("{}:{function}", library.display())
}

/// A run that has replaced a function.
pub struct Replaced {
    tool: Tool,
    errors: PathBuf,
    /// What it has said of that.
    pub row: Value,
    _dir: tempfile::TempDir,
}

impl Replaced {
    /// Waits until the function is replaced.
    #[track_caller]
    pub fn by(target: &Target, function: &str, with: &str, more: &[&str]) -> Replaced {
        Self::by_pid_with(target.pid(), function, with, more)
    }

    #[track_caller]
    pub fn by_pid(pid: i32, function: &str, with: &str) -> Replaced {
        Self::by_pid_with(pid, function, with, &[])
    }

    #[track_caller]
    pub fn by_pid_with(pid: i32, function: &str, with: &str, more: &[&str]) -> Replaced {
        let mut replaced = Replaced::begun_in(pid, function, with, more);
        let line = replaced.tool.line();
        replaced.row = serde_json::from_str(&line).unwrap_or_default();
        let errors = std::fs::read_to_string(&replaced.errors).unwrap();
        assert_eq!(replaced.row["type"], "replaced", "{line} {errors}");
        replaced
    }

    /// Does not wait.
    pub fn begun(target: &Target, function: &str, with: &str, more: &[&str]) -> Replaced {
        Self::begun_in(target.pid(), function, with, more)
    }

    fn begun_in(pid: i32, function: &str, with: &str, more: &[&str]) -> Replaced {
        let dir = tempfile::tempdir().unwrap();
        let errors = dir.path().join("errors");
        let pid = pid.to_string();
        let mut command = trapless(&["replace", "-p", &pid, function, "--with", with, "-f", "json"]);
        let tool = Tool::armed_to(command.args(more), &errors);
        Replaced { tool, errors, row: Value::Null, _dir: dir }
    }

    pub fn tool_pid(&self) -> i32 {
        self.tool.pid()
    }

    /// Takes it back as Ctrl-C does, and tells what it says of that.
    #[track_caller]
    pub fn interrupt(self) -> Value {
        self.tool.signal(libc::SIGINT);
        self.ended()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(self) -> Value {
        let ran = self.ran();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let row = ran.json().pop().unwrap_or_default();
        assert_eq!(row["type"], "restored", "{ran:?}");
        row
    }

    pub fn ran(self) -> Ran {
        let ran = self.tool.ran();
        Ran { err: std::fs::read_to_string(&self.errors).unwrap(), ..ran }
    }

    pub fn kill(self) {
        self.tool.kill();
    }
}

/// Runs `replace` to its end, without the line that says what it waits for.
pub fn replace(pid: i32, function: &str, with: &str, more: &[&str]) -> Ran {
    let pid = pid.to_string();
    let ran = run(&[&["replace", "-p", &pid, function, "--with", with], more].concat());
    let lines = ran.err.lines().filter(|line| !line.starts_with("trapless: waiting for a call of "));
    Ran { err: lines.map(|line| format!("{line}\n")).collect(), ..ran }
}

/// Whether a process has a file mapped.
pub fn has_mapped(pid: i32, path: &Path) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.contains(&path.display().to_string())
}

/// Asks the program, and gives its answer.
pub fn ask(target: &mut Target, line: &str) -> String {
    target.tell(line);
    target.line()
}

/// Asks the program all the time while `work` is done, on this thread, which the tool ends with: a library is loaded at a call.
pub fn while_called<T>(target: &mut Target, line: &str, work: impl FnOnce() -> T) -> T {
    while_done(|| _ = ask(target, line), work)
}

/// Does `again` all the time while `work` is done.
pub fn while_done<T>(mut again: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    /// Whoever panics is done as well.
    struct Done<'d>(&'d AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&is_done);
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                again();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        work()
    })
}

/// Whether a compiler is there.
pub fn has(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok()
}
