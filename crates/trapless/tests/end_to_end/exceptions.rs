//! Calls that an exception leaves are told as such, one by one, and nothing else is: neither longjmp, nor the end of a thread or a coroutine,
//! nor an unwinder that only looks (hard cases R2, R3, W1).

use crate::support;
use crate::support::tool::{Ran, Summary, finish, trapless};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Begins every program. `Guard` is a destructor that unwinding has to run, so that it lands there, too.
const HEAD: &str = r#"
    #include <cstdio>
    #include <csetjmp>
    #include <cstdlib>
    #include <stdexcept>
    #include <execinfo.h>
    #include <pthread.h>
    #include <signal.h>
    #include <string.h>
    #include <sys/time.h>
    #include <ucontext.h>
    #include <unistd.h>
    #include <unwind.h>
    #include "assembly.h"
    #define APART extern "C" __attribute__((noinline, noclone))
    static volatile long cleaned;
    struct Guard { ~Guard() { cleaned++; } };
    static jmp_buf out;
"#;

/// Builds a program, or `None` where there is no compiler.
fn build(directory: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (file, path) = (directory.join(format!("{name}.cc")), directory.join(name));
    std::fs::write(&file, [HEAD, source].concat()).unwrap();
    std::fs::write(directory.join("assembly.h"), support::assembly::HEADER).unwrap();
    let mut command = Command::new("g++");
    command.arg("-o").arg(&path).arg(&file).args(["-O1", "-pthread", "-U_FORTIFY_SOURCE"]).args(flags);
    let Ok(built) = command.output() else {
        trapless_testing::skip!("no g++");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(path)
}

/// Runs the program under a verb that follows calls: it has to end as it does alone. What was counted, and said.
fn followed(path: &Path, verb: &[&str], functions: &[&str]) -> (Summary, String) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let probes: Vec<String> = functions.iter().map(|function| format!("{name}:{function}")).collect();
    let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
    followed_in(path, verb, &probes, None)
}

/// The same for functions of any files, and with a variable in the environment of both.
fn followed_in(path: &Path, verb: &[&str], probes: &[&str], variable: Option<&str>) -> (Summary, String) {
    let bare = finish(Command::new(path).envs(variable.map(|name| (name, "1"))));
    assert_eq!(bare.code, Some(0), "{bare:?}");
    let output = path.with_extension("json");
    let options = ["-f", "json", "-o", output.to_str().unwrap(), "--", path.to_str().unwrap()];
    let mut command = trapless(&[verb, probes, &options].concat());
    let ran = finish(command.envs(variable.map(|name| (name, "1"))));
    assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{path:?} {verb:?} {variable:?}: {ran:?}");
    let err = ran.err.clone();
    (Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary(), err)
}

/// How many calls were left by an exception, as JSON and text say alike.
#[track_caller]
fn left(summary: &Summary, err: &str) -> u64 {
    let left = summary.0["left_by_exception"].as_u64().unwrap();
    let said = match left {
        0 => return assert_none_said(err),
        1 => "trapless: 1 call left by an exception".to_owned(),
        n if n < 1000 => format!("trapless: {n} calls left by an exception"),
        n => format!("trapless: {},{:03} calls left by an exception", n / 1000, n % 1000),
    };
    assert!(err.lines().any(|line| line.starts_with(&said)), "{said}: {err}");
    left
}

#[track_caller]
fn assert_none_said(err: &str) -> u64 {
    assert!(!err.contains("left by an exception"), "{err}");
    0
}

/// Runs the program and follows `functions`, each with its entries and returns. Of all those without a return, so many were left by an
/// exception.
#[track_caller]
fn tells(path: &Path, functions: &[(&str, u64, u64)], wanted: u64) {
    let names: Vec<&str> = functions.iter().map(|function| function.0).collect();
    for verb in [&["count", "--return"][..], &["latency"]] {
        let (summary, err) = followed(path, verb, &names);
        for &(function, entries, returns) in functions {
            let hits = |kind| summary.hits(function, kind);
            if verb == ["latency"] {
                assert_eq!(hits("return"), returns, "{path:?}: {function}");
            } else {
                assert_eq!((hits("entry"), hits("return")), (entries, returns), "{path:?}: {function}");
            }
        }
        assert_eq!(left(&summary, &err), wanted, "{path:?} {verb:?}: {err}");
    }
}

#[test]
fn r3_each_call_that_an_exception_leaves_is_told_once() {
    let source = r#"
        APART long thrower(long n) { if (n % 2) throw std::runtime_error("odd"); return n; }
        APART long cleaner(long n) { Guard guard; return thrower(n) + 1; }
        APART long through(long n) { return cleaner(n) + 1; }
        APART long tail(long n) { return through(n); }
        APART long rethrower(long n) { try { return tail(n) + 1; } catch (std::runtime_error &) { throw; } }
        /* An exception in the midst of another one's unwinding: its own calls are left, and the outer one goes on. */
        struct Nested { ~Nested() { try { thrower(1); } catch (...) { cleaned++; } } };
        APART long nester(long n) { Nested nested; return rethrower(n) + 1; }
        APART long catcher(long n) { try { return nester(n) + 1; } catch (std::exception &) { return 0; } }
        APART long jumper(long n) { char room[512]; room[0] = 0; room[n % 512] = 1; if (n % 2) longjmp(out, 1); return n + room[0]; }
        APART long caller(long n) { return catcher(n) + (setjmp(out) ? 1 : jumper(n) & 1); }
        int main() {
            long sum = 0;
            for (long n = 0; n < 1000; n++) sum += caller(n);
            printf("%ld %ld\n", sum, cleaned);
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let functions = [
        ("thrower", 2000, 500),
        ("cleaner", 1000, 500),
        ("through", 1000, 500),
        ("tail", 1000, 500),
        ("rethrower", 1000, 500),
        ("nester", 1000, 500),
        ("catcher", 1000, 1000),
        ("jumper", 1000, 500),
        ("caller", 1000, 1000),
    ];
    // thrower in Nested's destructor is left 1,000 times, and 500 times each of the six.
    for (name, flags) in [("thrown", &["-O2"][..]), ("thrown_static", &["-O1", "-static"])] {
        let Some(path) = build(directory.path(), name, source, flags) else { return };
        tells(&path, &functions, 1000 + 6 * 500);
        // Where nobody asked for returns, nothing is said of them.
        let (summary, err) = followed(&path, &["count"], &["thrower"]);
        assert_eq!((summary.hits("thrower", "entry"), left(&summary, &err)), (2000, 0));
        // And of calls that are not followed nothing is told.
        let (summary, err) = followed(&path, &["count", "--return"], &["catcher"]);
        assert_eq!((summary.hits("catcher", "return"), left(&summary, &err)), (1000, 0));
    }
}

#[test]
fn r3_threads_and_signal_stacks_tell_their_own() {
    let source = r#"
        APART long thrower(long n) { Guard guard; if (n % 2) throw n; return n; }
        APART long middle(long n) { return thrower(n) + 1; }
        APART long catcher(long n) { try { return middle(n); } catch (long thrown) { return thrown; } }
        static volatile long sum;
        static void handle(int) { sum += catcher(1); }
        static void *work(void *) {
            stack_t aside = {};
            aside.ss_sp = malloc(aside.ss_size = 1 << 16);
            sigaltstack(&aside, nullptr);
            long all = 0;
            for (long n = 0; n < 500; n++) { all += catcher(n); pthread_kill(pthread_self(), SIGUSR1); }
            return (void *)all;
        }
        int main() {
            struct sigaction action = {};
            action.sa_handler = handle;
            action.sa_flags = SA_ONSTACK;
            sigaction(SIGUSR1, &action, nullptr);
            pthread_t threads[4];
            for (auto &thread : threads) pthread_create(&thread, nullptr, work, nullptr);
            for (auto &thread : threads) { void *all; pthread_join(thread, &all); printf("%ld\n", (long)all); }
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "threads", source, &[]) else { return };
    let functions = [("thrower", 4000, 1000), ("middle", 4000, 1000), ("catcher", 4000, 4000)];
    tells(&path, &functions, 2 * 3000);
}

#[test]
fn r3_threads_that_exit_or_are_cancelled_leave_nothing_by_an_exception() {
    let source = r#"
        APART long leaver(long n) { Guard guard; if (n % 2) pthread_exit(nullptr); for (;;) pause(); }
        APART long between(long n) { return leaver(n) + 1; }
        APART long outer(long n) { Guard guard; return between(n) + 1; }
        APART long thrower(long n) { Guard guard; throw n; }
        APART long catcher(long n) { try { return thrower(n); } catch (long thrown) { return thrown; } }
        static void *work(void *argument) { long n = (long)argument; catcher(n); return (void *)outer(n); }
        int main() {
            for (long n = 0; n < 100; n++) {
                pthread_t thread;
                pthread_create(&thread, nullptr, work, (void *)n);
                if (n % 2 == 0) pthread_cancel(thread);
                pthread_join(thread, nullptr);
            }
            printf("%ld\n", cleaned % 2);
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    for (name, flags) in [("ended", &[][..]), ("ended_static", &["-static"])] {
        let Some(path) = build(directory.path(), name, source, flags) else { return };
        // A thread is cancelled where it comes to, so how far that is depends on the scheduler: not before `pause`, which none passes.
        let functions = [("leaver", 100, 0), ("between", 100, 0), ("outer", 100, 0), ("thrower", 100, 0)];
        tells(&path, &functions, 100);
    }
}

#[test]
fn r2_what_longjmp_and_coroutines_leave_is_not_taken_for_what_exceptions_leave() {
    // Calls are left behind all over the stack, also while an unwinder has walked over them, and then exceptions pass there, in calls whose
    // frames cover those slots.
    let source = r#"
        static long frames;
        APART void look() { void *seen[64]; frames += backtrace(seen, 64) > 3; }
        APART long jumper(long n) { volatile long kept = n; look(); if (kept >= 0) longjmp(out, 1); return kept; }
        APART long descend(long n) { volatile char room[96]; room[n % 96] = 1; return n ? descend(n - 1) + room[n % 96] : jumper(n); }
        APART long thrower(long n) { volatile char room[2000]; room[n % 2000] = 1; throw n + room[n % 2000]; }
        APART long catcher(long n) { volatile char room[3000]; room[n % 3000] = 1; try { return thrower(n); } catch (long) { return room[n % 3000]; } }
        static ucontext_t home, coroutine;
        APART void leave() { swapcontext(&coroutine, &home); }
        APART void stay(long n) { volatile long kept = n; leave(); (void)kept; }
        static void body() { stay(1); }
        static char stack[1 << 16];
        int main() {
            long sum = 0;
            for (long n = 0; n < 500; n++) {
                if (!setjmp(out)) descend(n % 40);
                sum += catcher(n);
                /* One that is never gone back to, on a stack that is used again. */
                getcontext(&coroutine);
                coroutine.uc_stack.ss_sp = stack;
                coroutine.uc_stack.ss_size = sizeof stack;
                makecontext(&coroutine, body, 0);
                swapcontext(&home, &coroutine);
            }
            printf("%ld %ld\n", sum, frames);
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "left", source, &["-fno-stack-protector"]) else { return };
    let deep = (0..500u64).map(|n| n % 40 + 1).sum();
    let functions = [
        ("jumper", 500, 0),
        ("descend", deep, 0),
        ("thrower", 500, 0),
        ("catcher", 500, 500),
        ("stay", 500, 0),
        ("look", 500, 500),
    ];
    tells(&path, &functions, 500);
}

#[test]
fn w1_a_profiler_that_looks_in_the_midst_of_unwinding_changes_no_number() {
    if cfg!(target_arch = "aarch64") {
        return trapless_testing::inapplicable!("gcc's unwinder ends this program here without probes, too");
    }
    let source = r#"
        static volatile long handled, wrong;
        APART long thrower(long n) { Guard guard; if (n % 2) throw n; return n; }
        APART long middle(long n) { return thrower(n) + 1; }
        APART long tail(long n) { return middle(n); }
        APART long catcher(long n) { try { return tail(n) - 1; } catch (long thrown) { return thrown; } }
        /* An exception of its own, and a walk through those of the program; but not from gcc's unwinder itself, which does not tell
           how it leaves its frames. */
        static void profile(int, siginfo_t *, void *context) {
            void *frames[64];
            long at = (long)IP_OF(context) - (long)&_Unwind_RaiseException;
            if (labs(at) > 1 << 17 && backtrace(frames, 64) < 2) wrong++;
            try { throw 'c'; } catch (char) { handled++; }
        }
        int main() {
            void *frames[4];
            backtrace(frames, 4);
            struct sigaction action = {};
            action.sa_sigaction = profile;
            action.sa_flags = SA_RESTART | SA_SIGINFO;
            sigaction(SIGALRM, &action, nullptr);
            struct itimerval often = {{0, 300}, {0, 300}};
            setitimer(ITIMER_REAL, &often, nullptr);
            for (long n = 0; handled < 400 || n < 10000 || n % 2; n++) if (catcher(n) != n) wrong++;
            printf("%ld\n", wrong);
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "looked_at", source, &["-O2", "-fno-ipa-icf"]) else { return };
    let (summary, err) = followed(&path, &["count", "--return"], &["thrower", "middle", "tail", "catcher"]);
    let calls = summary.hits("catcher", "entry");
    assert_eq!(summary.hits("catcher", "return"), calls);
    for function in ["thrower", "middle", "tail"] {
        assert_eq!(summary.hits(function, "entry"), calls, "{function}");
        assert_eq!(summary.hits(function, "return"), calls / 2, "{function}");
    }
    let left = summary.0["left_by_exception"].as_u64().unwrap();
    assert_eq!(left, 3 * (calls / 2), "{err}");
}

#[test]
fn r3_panics_that_are_caught_tell_the_calls_that_they_leave() {
    let source = r#"
        use std::panic::{catch_unwind, resume_unwind};
        struct Guard(u64);
        impl Drop for Guard { fn drop(&mut self) { std::hint::black_box(self.0); } }
        #[no_mangle] #[inline(never)]
        pub extern "C-unwind" fn thrower(n: u64) -> u64 { let _guard = Guard(n); if n % 2 == 1 { resume_unwind(Box::new(n)) } n }
        #[no_mangle] #[inline(never)]
        pub extern "C-unwind" fn middle(n: u64) -> u64 { thrower(n) + 1 }
        #[no_mangle] #[inline(never)]
        pub extern "C-unwind" fn catcher(n: u64) -> u64 { catch_unwind(|| middle(n)).unwrap_or(7) }
        fn main() { println!("{}", (0..1000).map(|n| catcher(n)).sum::<u64>()); }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let (file, path) = (directory.path().join("panics.rs"), directory.path().join("panics"));
    std::fs::write(&file, source).unwrap();
    let mut rustc = Command::new("rustc");
    let Ok(built) = rustc.args(["--edition", "2021", "-O", "-o"]).arg(&path).arg(&file).output() else {
        return trapless_testing::skip!("no rustc");
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    tells(&path, &[("thrower", 1000, 500), ("middle", 1000, 500), ("catcher", 1000, 1000)], 1000);
}

/// A function of a library throws into the program, which goes on with data of its own: what leads to that is restored by the unwinder.
#[test]
fn r3_exceptions_leave_libraries_however_functions_are_bound() {
    let directory = tempfile::tempdir().unwrap();
    let library = "APART long thrower(long n) { if (n % 2) throw std::runtime_error(\"odd\"); return n; }";
    let Some(_) = build(directory.path(), "libthrower.so", library, &["-O2", "-shared", "-fPIC"]) else {
        return;
    };
    let source = r#"
        extern "C" long thrower(long n);
        long caught = 7, other = 9;
        APART long catcher(long n) { try { return thrower(n) + caught; } catch (std::exception &) { caught++; return other; } }
        int main() {
            long sum = 0;
            for (long n = 0; n < 1000; n++) sum += catcher(n);
            printf("%ld %ld\n", sum, caught);
        }
    "#;
    let place = directory.path().to_str().unwrap();
    let path = format!("-Wl,-rpath,{place}");
    let Some(path) = build(directory.path(), "across", source, &["-O2", "-L", place, "-lthrower", &path])
    else {
        return;
    };
    assert_eq!(finish(&mut Command::new(&path)).out, "382250 507\n");
    // Libraries call each other, the unwinder itself among them, by what is found at the first call, at the start, or anew each time.
    for binding in ["LD_BIND_LAZY", "LD_BIND_NOW", "LD_BIND_NOT"] {
        let probes = ["libthrower.so:thrower", "across:catcher"];
        let (summary, err) = followed_in(&path, &["count", "--return"], &probes, Some(binding));
        let hits = |function, kind| summary.hits(function, kind);
        assert_eq!((hits("thrower", "entry"), hits("thrower", "return")), (1000, 500), "{binding}");
        assert_eq!((hits("catcher", "entry"), hits("catcher", "return")), (1000, 1000), "{binding}");
        assert_eq!(left(&summary, &err), 500, "{binding}: {err}");
    }
}

/// An unwinding of a C program's own, which ends in the last cleanup by longjmp: what is passed up to there is left by it.
const FORCED: &str = r#"
    #include <setjmp.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <unwind.h>
    #define APART __attribute__((noinline, noclone))
    static jmp_buf out;
    static long cleaned;
    static void clean(int *n) { cleaned += *n; }
    static void end(int *n) { (void)n; longjmp(out, 1); }
    static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
        struct _Unwind_Exception *exception, struct _Unwind_Context *context, void *argument) { return _URC_NO_REASON; }
    static struct _Unwind_Exception exception;
    APART void thrower(int n) { if (n % 2) { _Unwind_ForcedUnwind(&exception, stop, 0); abort(); } }
    APART void middle(int n) { int kept __attribute__((cleanup(clean))) = 1; thrower(n); }
    APART void outer(int n) { middle(n); cleaned++; }
    APART void catcher(int n) { int kept __attribute__((cleanup(end))) = 1; outer(n); }
    APART void round_of(int n) { if (!setjmp(out)) catcher(n); }
    int main(void) { for (int n = 0; n < 1000; n++) round_of(n); printf("%ld\n", cleaned); return 0; }
"#;

#[test]
fn r3_programs_of_both_widths_tell_what_their_own_unwinding_leaves() {
    for program in support::Program::in_both_widths("forced", FORCED, &["-fexceptions"]) {
        let followed =
            [("thrower", 1000, 500), ("middle", 1000, 500), ("outer", 1000, 500), ("round_of", 1000, 1000)];
        tells(program.path(), &followed, 1500);
    }
}

#[test]
fn r3_nothing_is_said_where_another_unwinder_lands() {
    let source = r#"
        APART long thrower(long n) { if (n % 2) throw n; return n; }
        APART long catcher(long n) { try { return thrower(n); } catch (long thrown) { return thrown; } }
        int main() { long sum = 0; for (long n = 0; n < 1000; n++) sum += catcher(n); printf("%ld\n", sum); }
    "#;
    let llvm = (14..30).map(|version| format!("/usr/lib/llvm-{version}/lib"));
    let Some(llvm) = llvm.into_iter().find(|at| Path::new(at).join("libunwind.so.1").exists()) else {
        return trapless_testing::skip!("no LLVM libunwind");
    };
    let directory = tempfile::tempdir().unwrap();
    let flags = [format!("{llvm}/libunwind.so.1"), format!("-Wl,-rpath,{llvm}")];
    let flags = flags.each_ref().map(String::as_str);
    let Some(path) = build(directory.path(), "another", source, &flags) else { return };
    tells(&path, &[("thrower", 1000, 500), ("catcher", 1000, 1000)], 0);
}
