//! Calls are followed to their return whatever is done with their stacks: unwinders walk them, coroutines take them to other
//! threads, exceptions and longjmp leave them (hard cases R2, R3, W1, W2, W5).

use crate::support;
use crate::support::tool::{finish, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a program, or `None` where there is no compiler.
fn build(directory: &Path, name: &str, compiler: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let ending = if compiler == "g++" { "cc" } else { "c" };
    let (file, path) = (directory.join(format!("{name}.{ending}")), directory.join(name));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new(compiler);
    let Ok(built) = command.arg("-o").arg(&path).arg(&file).args(flags).output() else {
        trapless_testing::skip!("no {compiler}");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(path)
}

/// Runs the program bare and under each verb: it must end alike, and each function have as many returns as are said.
fn follows(path: &Path, functions: &[(&str, u64)]) {
    let program = path.to_str().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let bare = finish(&mut Command::new(path));
    assert_eq!(bare.code, Some(0), "{bare:?}");
    let patterns: Vec<String> = functions.iter().map(|(function, _)| format!("{name}:{function}")).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let output = path.with_extension("json");
    for verb in [&["count", "--return"][..], &["latency"]] {
        let options = ["-f", "json", "-o", output.to_str().unwrap(), "--", program];
        let ran = run(&[verb, &patterns, &options].concat());
        assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{name} {verb:?}: {ran:?}");
        let summary = support::tool::Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
        for &(function, returns) in functions {
            assert_eq!(summary.hits(function, "return"), returns, "{name} {verb:?}: {function}");
        }
    }
}

#[test]
fn w2_callers_above_a_catch_and_a_backtrace_keep_their_returns() {
    let source = r#"
        #include <execinfo.h>
        #include <stdexcept>
        #include <cstdio>
        #define APART extern "C" __attribute__((noinline, noclone))
        static long depth;
        APART long thrower(long n) { if (n % 2) throw std::runtime_error("odd"); void *frames[64]; depth += backtrace(frames, 64); return n; }
        APART long catcher(long n) { try { return thrower(n) + 1; } catch (std::exception &) { return 0; } }
        APART long middle(long n) { return catcher(n) + 1; }
        APART long outer(long n) { return middle(n) + 1; }
        int main() { long sum = 0; for (long i = 0; i < 1000; i++) sum += outer(i); printf("%ld %ld\n", sum, depth); }
    "#;
    let directory = tempfile::tempdir().unwrap();
    for (name, flags) in [("above", &["-O1"][..]), ("above_static", &["-O1", "-static"])] {
        let Some(path) = build(directory.path(), name, "g++", source, flags) else { return };
        follows(&path, &[("thrower", 500), ("catcher", 1000), ("middle", 1000), ("outer", 1000)]);
    }
}

#[test]
fn w1_a_profiler_walks_the_stack_from_its_handler_at_any_moment() {
    let source = r#"
        #define _GNU_SOURCE
        #include <execinfo.h>
        #include <signal.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/time.h>
        static volatile long handled, wrong;
        __attribute__((noinline, noclone)) long probed(long x) { volatile long a = x; return a + 1; }
        __attribute__((noinline, noclone)) long deep(long n) { volatile long a = n; return n ? deep(n - 1) + a : 0; }
        static void profile(int signal) {
            void *frames[64];
            (void)signal;
            if (backtrace(frames, 64) < 2 || probed(41) != 42 || deep(4) != 10) wrong++;
            handled++;
        }
        int main(void) {
            static char alternate[1 << 16];
            stack_t stack = {alternate, 0, sizeof alternate};
            struct sigaction action;
            void *frames[4];
            backtrace(frames, 4);
            memset(&action, 0, sizeof action);
            action.sa_handler = profile;
            action.sa_flags = SA_RESTART | ALTERNATE;
            sigaltstack(&stack, 0);
            sigaction(SIGALRM, &action, 0);
            struct itimerval often = {{0, 500}, {0, 500}};
            setitimer(ITIMER_REAL, &often, 0);
            for (long i = 0; handled < 400; i++) {
                if (probed(i) != i + 1) wrong++;
                if (i % 64 == 0 && deep(20) != 210) wrong++;
            }
            printf("%ld\n", wrong);
            return 0;
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    for (name, alternate) in [("profiled", "-DALTERNATE=0"), ("profiled_aside", "-DALTERNATE=SA_ONSTACK")] {
        let flags = ["-O2", alternate];
        let Some(path) = build(directory.path(), name, "gcc", source, &flags) else { return };
        // How often they are called depends on the timer.
        let program = path.to_str().unwrap();
        let output = path.with_extension("json");
        let functions = [format!("{name}:probed"), format!("{name}:deep")];
        let options = ["-f", "json", "-o", output.to_str().unwrap(), "--", program];
        let ran = run(&[&["count", "--return", &functions[0], &functions[1]][..], &options].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "0\n"), "{ran:?}");
        let summary = support::tool::Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
        for function in ["probed", "deep"] {
            assert_eq!(
                summary.hits(function, "entry"),
                summary.hits(function, "return"),
                "{name}: {function}"
            );
        }
    }
}

/// A coroutine that takes its stack to another thread inside a followed call, and leaves that call by its return, by longjmp or by an
/// exception; then the same slot is used again, on the first thread.
const WANDERER: &str = r#"
    #include <csetjmp>
    #include <cstdio>
    #include <pthread.h>
    #include <semaphore.h>
    #include <stdexcept>
    #include <ucontext.h>
    static ucontext_t coroutine, thread_context[2];
    static volatile int on;
    static sem_t turn[2];
    static jmp_buf out;
    static bool over;
    extern "C" __attribute__((noinline, noclone)) void move_on() { swapcontext(&coroutine, &thread_context[on]); }
    extern "C" __attribute__((noinline, noclone)) long probed(long way) {
        volatile long kept = way;
        move_on();
        if (way == 1) longjmp(out, 1);
        if (way == 2) throw std::runtime_error("away");
        return kept + 1;
    }
    extern "C" __attribute__((noinline, noclone)) long again(long x) { volatile long kept = x; move_on(); return kept + 1000; }
    static long sum;
    static void body() {
        for (int round = 0; round < 3000; round++) {
            if (setjmp(out) == 0) {
                try { sum += probed(round % 3); } catch (std::exception &) { sum += 7; }
            }
            sum += again(round);
        }
        over = true;
        for (;;) move_on();
    }
    static void *work(void *which) {
        int me = *(int *)which;
        for (;;) {
            sem_wait(&turn[me]);
            on = me;
            if (!over) swapcontext(&thread_context[me], &coroutine);
            bool last = over;
            sem_post(&turn[1 - me]);
            if (last) return nullptr;
        }
    }
    int main() {
        static char stack[1 << 18];
        int who[2] = {0, 1};
        pthread_t threads[2];
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = stack;
        coroutine.uc_stack.ss_size = sizeof stack;
        makecontext(&coroutine, body, 0);
        sem_init(&turn[0], 0, 1);
        sem_init(&turn[1], 0, 0);
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], nullptr, work, &who[i]);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], nullptr);
        printf("%ld\n", sum);
    }
"#;

#[test]
fn r2_a_coroutine_leaves_a_call_on_another_thread_in_any_way() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-pthread", "-fno-stack-protector", "-U_FORTIFY_SOURCE"];
    let Some(path) = build(directory.path(), "wanderer", "g++", WANDERER, &flags) else { return };
    follows(&path, &[("probed", 1000), ("again", 3000)]);
}

#[test]
fn r3_an_exception_passes_megabytes_of_stack() {
    let source = r#"
        #include <cstdio>
        #include <pthread.h>
        #include <stdexcept>
        extern "C" __attribute__((noinline, noclone)) long deep(long n) {
            volatile char room[16384];
            room[n % sizeof room] = 1;
            if (n == 0) throw std::runtime_error("deep");
            return deep(n - 1) + room[n % sizeof room];
        }
        extern "C" __attribute__((noinline, noclone)) long outer(long n) { try { return deep(n); } catch (std::exception &) { return 1; } }
        static void *work(void *) { long caught = 0; for (int i = 0; i < 20; i++) caught += outer(2000); printf("%ld\n", caught); return nullptr; }
        int main() {
            pthread_attr_t large;
            pthread_t thread;
            pthread_attr_init(&large);
            pthread_attr_setstacksize(&large, 64 << 20);
            pthread_create(&thread, &large, work, nullptr);
            pthread_join(thread, nullptr);
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "depth", "g++", source, &["-O1", "-pthread"]) else { return };
    follows(&path, &[("deep", 0), ("outer", 20)]);
}

#[test]
fn w1_an_unwinder_that_is_loaded_later_finds_the_real_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = r#"
        #include <stdexcept>
        extern "C" void thrower(int) { throw std::runtime_error("late"); }
        extern "C" int try_it(int (*call)(void (*)(int), int)) { try { return call(thrower, 1); } catch (std::exception &) { return 100; } }
    "#;
    let flags = ["-O1", "-shared", "-fPIC", "-Wl,-soname,plugin.so"];
    let Some(plugin) = build(directory.path(), "plugin.so", "g++", plugin, &flags) else { return };
    let host = r#"
        #include <dlfcn.h>
        #include <stdio.h>
        __attribute__((noinline, noclone)) int probed(void (*call)(int), int n) { call(n); return n + 1; }
        static void quiet(int n) { (void)n; }
        int main(void) {
            int sum = probed(quiet, 5);
            void *library = dlopen(PLUGIN, RTLD_NOW);
            if (!library) { puts(dlerror()); return 1; }
            int (*try_it)(int (*)(void (*)(int), int)) = (int (*)(int (*)(void (*)(int), int)))dlsym(library, "try_it");
            for (int i = 0; i < 50; i++) sum += try_it(probed) + probed(quiet, i);
            printf("%d\n", sum);
            return 0;
        }
    "#;
    let where_it_is = format!("-DPLUGIN=\"{}\"", plugin.display());
    let flags = ["-O1", "-fexceptions", &where_it_is, "-ldl"];
    let Some(path) = build(directory.path(), "host", "gcc", host, &flags) else { return };
    follows(&path, &[("probed", 51)]);
}

#[test]
fn w5_a_thread_without_a_thread_pointer_is_counted() {
    let source = r#"
        #define _GNU_SOURCE
        #include <stdio.h>
        #if defined __x86_64__
        #include <asm/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        static inline unsigned long get(void) { unsigned long mine; syscall(SYS_arch_prctl, ARCH_GET_FS, &mine); return mine; }
        static inline long set(unsigned long to) {
            long result;
            __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_arch_prctl), "D"(ARCH_SET_FS), "S"(to) : "rcx", "r11", "memory");
            return result;
        }
        #elif defined __aarch64__
        static inline unsigned long get(void) { unsigned long mine; __asm__ volatile("mrs %0, tpidr_el0" : "=r"(mine)); return mine; }
        static inline void set(unsigned long to) { __asm__ volatile("msr tpidr_el0, %0" : : "r"(to) : "memory"); }
        #else
        static inline unsigned long get(void) { unsigned long mine; __asm__ volatile("mr %0, 13" : "=r"(mine)); return mine; }
        static inline void set(unsigned long to) { __asm__ volatile("mr 13, %0" : : "r"(to) : "memory"); }
        #endif
        __attribute__((noinline, noclone)) long probed(long x) { volatile long kept = x; return kept + 1; }
        int main(void) {
            unsigned long mine = get();
            long sum = 0;
            for (int i = 0; i < 1000; i++) {
                sum += probed(i);
                set(0);
                for (int j = 0; j < 10; j++) sum += probed(j);
                set(mine);
            }
            printf("%ld\n", sum);
            return 0;
        }
    "#;
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-fno-stack-protector"];
    let Some(path) = build(directory.path(), "nobody", "gcc", source, &flags) else { return };
    let program = path.to_str().unwrap();
    let bare = finish(&mut Command::new(&path));
    let ran = run(&["count", "--return", "nobody:probed", "-f", "json", "-o", "/dev/stderr", "--", program]);
    assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{ran:?}");
    let summary = support::tool::Ran { out: ran.err.clone(), ..ran }.summary();
    for kind in ["entry", "return"] {
        assert_eq!(summary.hits("probed", kind), 11_000, "{kind}");
    }
}

/// Walks its stack at the end of some calls, in a coroutine whose stack is small and has nothing mapped behind it, too.
const WALKER: &str = r#"
    #define _GNU_SOURCE
    #include <stdio.h>
    #include <sys/mman.h>
    #include <ucontext.h>
    #include <unistd.h>
    #include <unwind.h>
    #define APART __attribute__((noinline, noclone))
    #define SIZE 16384
    static long frames, depth;
    static unsigned long sum;
    static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *unused) {
        frames++;
        sum = sum * 31 + (_Unwind_GetIP(context) & 0xfff);
        return ++depth > 60 ? _URC_END_OF_STACK : _URC_NO_REASON;
    }
    APART long leaf(long x) { depth = 0; _Unwind_Backtrace(step, 0); return x + 1; }
    APART long middle(long x) { return leaf(x) + 1; }
    APART long outer(long x) { return x % 3 ? outer(x - 1) + 1 : middle(x) + 1; }
    static ucontext_t home, coroutine;
    static void body(void) { for (long i = 0; i < 50; i++) { outer(i); swapcontext(&coroutine, &home); } }
    int main(void) {
        long page = sysconf(_SC_PAGESIZE);
        char *map = mmap(0, SIZE + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(map + page, SIZE, PROT_READ | PROT_WRITE);
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = map + page;
        coroutine.uc_stack.ss_size = SIZE;
        coroutine.uc_link = &home;
        makecontext(&coroutine, body, 0);
        for (int i = 0; i < 50; i++) swapcontext(&home, &coroutine);
        for (int i = 0; i < 50; i++) outer(i);
        printf("%ld %lx\n", frames, sum);
    }
"#;

/// The walker with an unwinder that is not the compiler's.
fn walker(directory: &Path, name: &str, libraries: &[&str]) -> Option<PathBuf> {
    let Some(library) = libraries.iter().find(|library| Path::new(library).exists()) else {
        trapless_testing::skip!("no {}", libraries[0]);
        return None;
    };
    let found_at = format!("-Wl,-rpath,{}", Path::new(library).parent().unwrap().display());
    build(directory, name, "gcc", WALKER, &["-O1", "-fno-optimize-sibling-calls", library, &found_at])
}

#[test]
fn r3_unwinders_walk_small_stacks_of_coroutines() {
    let directory = tempfile::tempdir().unwrap();
    let llvm: Vec<String> = (14..30).map(|v| format!("/usr/lib/llvm-{v}/lib/libunwind.so.1")).collect();
    let llvm: Vec<&str> = llvm.iter().map(String::as_str).collect();
    let flags = ["-O1", "-fno-optimize-sibling-calls"];
    let walkers = [
        build(directory.path(), "walker_gcc", "gcc", WALKER, &flags),
        walker(directory.path(), "walker_llvm", &llvm),
    ];
    for path in walkers.into_iter().flatten() {
        follows(&path, &[("leaf", 100), ("middle", 100), ("outer", 198)]);
    }
}

#[test]
fn r3_calls_are_followed_to_their_exits_where_an_unwinder_asks_too_late() {
    let directory = tempfile::tempdir().unwrap();
    let library = format!("/usr/lib/{}-linux-gnu/libunwind.so.8", std::env::consts::ARCH);
    let Some(path) = walker(directory.path(), "walker_nongnu", &[&library]) else { return };
    follows(&path, &[("leaf", 100), ("middle", 100), ("outer", 198)]);
}
