//! Arguments of USDT probes in scripts: words and doubles, wherever each place of a probe has them.
// Scripts of 32-bit programs run at traps, and their operands are in `usdt`.
#![cfg(not(target_arch = "x86"))]

use crate::support::live::Live;
use crate::support::tool::run;
use crate::support::{Program, Target};
use std::collections::BTreeMap;

const SOURCE: &str = include_str!("targets/operands.c");

/// Runs a script in a process with these flags.
#[track_caller]
fn run_by(target: &Target, flags: &[&str], script: &str) -> Live {
    Live::run_with(&[&["-p", &target.pid().to_string()], flags].concat(), script)
}

/// Ends a script: the values of the keys of `@`, and what it said beside.
#[track_caller]
fn end(live: Live) -> (BTreeMap<String, i64>, String) {
    let told = live.end();
    let entry = |line: &str| {
        let (key, value) = line.strip_prefix("@[")?.split_once("]: ")?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    (told.out.lines().filter_map(entry).collect(), told.err)
}

/// Lets the target do everything so often, by which it computes what it would compute alone.
#[track_caller]
fn work(target: &mut Target, times: i64) {
    let one = |x: i64| {
        let floats = x / 2 + x / 4;
        x * 1_000_000_007 + 77 - x + (65530 + x) % 65536 - 7 * x + 4_000_000_000 + x + floats
    };
    let expected: i64 = (0..times).map(|x| one(x % 100)).sum();
    target.tell(&times.to_string());
    assert_eq!(target.line(), format!("sum {expected}"));
}

fn entries<K: ToString>(all: impl IntoIterator<Item = K>) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for key in all {
        *counts.entry(key.to_string()).or_insert(0) += 1;
    }
    counts
}

/// Programs whose compiler has put the operands elsewhere.
fn programs() -> [Program; 3] {
    [&["-O0"][..], &["-O2"], &["-O1", "-fno-omit-frame-pointer", "-no-pie"]]
        .map(|flags| Program::build("operands", SOURCE, flags))
}

#[test]
fn each_place_of_a_probe_tells_its_own_operands_extended_as_their_notes_say() {
    const CALLS: i64 = 1000;
    for program in programs() {
        let mut target = program.start(&[]);
        let before = target.text();
        let script = "usdt:operands:app:mixed { @[arg0, (int64)arg1] = count(); }";
        let live = Live::run(&target, script);
        work(&mut target, CALLS);
        let (found, err) = end(live);
        before.assert_restored(target.pid());
        let live = run_by(&target, &["--mechanism", "step"], script);
        work(&mut target, CALLS);
        assert_eq!(end(live), (found.clone(), err.clone()), "by traps");
        before.assert_restored(target.pid());
        let values = (0..CALLS).map(|call| call % 100).flat_map(|x| {
            let table = [11, -12, 13, -14][(x & 3) as usize];
            let all = [
                i64::from(-x as i8),
                i64::from((65530 + x) as u16),
                -7 * x,
                4_000_000_000 + x,
                -9,
                1 << 40,
                table,
                x * 1_000_000_007,
                77,
            ];
            (1..).zip(all).map(|(place, value)| format!("{place}, {value}"))
        });
        assert_eq!(found, entries(values), "{err}");
        work(&mut target, 10);
    }
}

#[test]
fn floating_point_operands_are_doubles() {
    for program in programs() {
        let mut target = program.start(&[]);
        // By the notes of all places `arg0` is no float at one of them, so it is taken for a word.
        let script = "usdt:operands:app:floats { @[arg0] = count(); }";
        let live = Live::run(&target, script);
        work(&mut target, 100);
        let (found, err) = end(live);
        assert_eq!(found, entries(0..100), "{err}");
        assert!(err.contains("the script asks for arg0 there: a floating-point number"), "{err}");
    }
    let source = SOURCE.replace("PROBE_IN_PLACE(\"floats\"", "PROBE_IN_PLACE(\"no_floats\"");
    for flags in ["-O0", "-O2"] {
        let program = Program::build("operands", &source, &[flags]);
        let mut target = program.start(&[]);
        let script =
            "usdt:operands:app:floats /arg0 > 10.5/ { @[(int64)(arg0 * 2), (int64)(arg1 * 4)] = count(); }";
        for by in [&[][..], &["--mechanism", "step"]] {
            let live = run_by(&target, by, script);
            work(&mut target, 100);
            let (found, err) = end(live);
            let all = (22..100).flat_map(|x| [x, x]).map(|x| format!("{x}, {x}"));
            assert_eq!(found, entries(all), "{flags} {by:?}: {err}");
        }
    }
}

/// Memory that a wrong note names is read without a fault, and what cannot be read is 0.
#[test]
fn notes_that_are_wrong_hurt_nobody() {
    for program in programs() {
        let mut target = program.start(&[]);
        let before = target.text();
        let script = "usdt:operands:app:wild { @[arg0, arg1, arg2] = count(); }";
        let live = Live::run(&target, script);
        work(&mut target, 100);
        let (found, err) = end(live);
        before.assert_restored(target.pid());
        assert!(found.keys().all(|key| key.starts_with("0, ")), "{found:?}");
        assert_eq!(found.values().sum::<i64>(), 100, "{found:?} {err}");
    }
}

#[cfg(target_arch = "x86_64")]
const UNKNOWN: &str = "arg0 there: it is thread-local";
#[cfg(not(target_arch = "x86_64"))]
const UNKNOWN: &str = "arg0 there: its operand is not understood";

#[test]
fn places_that_do_not_tell_what_is_asked_for_are_left_out_with_the_reason() {
    let program = Program::build("operands", SOURCE, &["-O2"]);
    let mut target = program.start(&[]);
    let live = Live::run(&target, "usdt:operands:app:odd { @[arg1] = count(); }");
    work(&mut target, 100);
    let (found, err) = end(live);
    assert_eq!(found, entries(0..100));
    assert!(
        err.contains("app:odd")
            && err.contains("the script asks for arg1 there: its note has no such argument"),
        "{err}"
    );
    let pid = target.pid().to_string();
    for (script, why) in [
        ("usdt:operands:app:mixed { print(arg2); }", "arg2 there: its note has no such argument"),
        ("usdt:operands:app:strange { print(arg0); }", UNKNOWN),
    ] {
        let ran = run(&["-p", &pid, "-e", script]);
        assert_ne!(ran.code, Some(0), "{ran:?}");
        assert!(ran.err.contains(why), "{script}: {ran:?}");
    }
    // What is not asked for does not matter.
    let live = Live::run(&target, "usdt:operands:app:strange { @[arg1] = count(); }");
    work(&mut target, 100);
    assert_eq!(end(live).0, entries(vec![1; 100]));
    for script in ["usdt:operands:app:mixed { print(arg12); }", "usdt:operands:app:mixed { print(args); }"] {
        let ran = run(&["-p", &pid, "-e", script]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
    work(&mut target, 10);
}

/// Semaphores are raised for scripts, too; and each name at an address has arguments of its own.
#[test]
fn semaphores_and_several_names_of_a_place() {
    let program = Program::build("app", include_str!("programs/usdt.c"), &[]);
    let mut target = program.start(&[]);
    let call = |target: &mut Target, times: u32| {
        target.tell(&times.to_string());
        let line = target.line();
        let semaphore = line.strip_prefix("wrong 0 semaphore ").map(str::to_owned);
        semaphore.unwrap_or_else(|| panic!("wrong results or dead: {line:?}"))
    };
    let live = Live::run(
        &target,
        "usdt:app:app:guarded { @[1, arg0, 0] = count(); }
         usdt:app:lib:single { @[2, arg0, arg1] = count(); }
         usdt:app:app:many { @[3, 0, 0] = count(); }
         usdt:app:app:many { @[4, arg0, 0] = count(); }",
    );
    assert_eq!(call(&mut target, 50), "1");
    let (found, err) = end(live);
    assert_eq!(call(&mut target, 5), "0");
    let expected = [
        ("1, 1, 0", 50),
        ("2, 18446744073709551615, 4", 50),
        ("3, 0, 0", 100),
        ("4, 2, 0", 50),
        ("4, 3, 0", 50),
    ];
    assert_eq!(found, expected.map(|(key, count)| (key.to_owned(), count)).into(), "{err}");
    // The place that has no argument is left out, for all that is done there.
    assert!(err.contains("app:many") && err.contains("arg0 there: its note has no such argument"), "{err}");
    // Names whose arguments differ cannot be told by one pattern.
    let live = Live::run(&target, "usdt:app:*:*n* { @[arg0] = count(); }");
    call(&mut target, 10);
    let (_, err) = end(live);
    assert!(err.contains("name one of them"), "{err}");
}

/// A library that is loaded later is probed as it comes, by its own notes.
#[test]
fn operands_of_a_library_that_comes_later_are_told() {
    const LIBRARY: &str = r#"
        #ifdef __x86_64__
        #define NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
        #define OPERANDS "-4@%k0 1@$200"
        #elif defined __powerpc64__
        #define NOP "nop"
        #define OPERANDS "-4@%0 1@i200"
        #else
        #define NOP "nop"
        #define OPERANDS "-4@%w0 1@200"
        #endif
        __attribute__((noipa)) long plug_work(long x) {
            __asm__ volatile("990: " NOP "\n"
                ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n"
                "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n"
                ".asciz \"plug\"\n.asciz \"work\"\n.asciz \"" OPERANDS "\"\n994: .balign 4\n.popsection\n"
                ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
                ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.popsection\n.endif\n" :: "r"(x));
            return x * 3;
        }"#;
    const HOST: &str = r#"
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        int main(int count, char **words) {
            printf("ready\n");
            fflush(stdout);
            char line[64];
            while (count > 1 && fgets(line, sizeof line, stdin)) {
                void *library = dlopen(words[1], RTLD_NOW);
                long (*work)(long) = (long (*)(long))dlsym(library, "plug_work");
                long sum = 0;
                for (long x = 0; x < atol(line); x++) sum += work(-x);
                dlclose(library);
                printf("sum %ld\n", sum);
                fflush(stdout);
            }
        }"#;
    let library = Program::build("libpassed.so", LIBRARY, &["-shared", "-fPIC"]);
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("passes", HOST, &["-ldl"]).start(&[path]);
    let script = format!("usdt:{path}:plug:work {{ @[(int64)arg0, arg1] = count(); }}");
    let live = Live::run(&target, &script);
    for _ in 0..2 {
        target.tell("50");
        assert_eq!(target.line(), format!("sum {}", -3 * 49 * 50 / 2));
    }
    let (found, err) = end(live);
    assert_eq!(
        found,
        entries((0..50).flat_map(|x| [format!("{}, 200", -x), format!("{}, 200", -x)])),
        "{err}"
    );
    target.tell("5");
    assert_eq!(target.line(), "sum -30");
}

/// What no jump fits is left out, and nothing traps unless it is known what that means. Elsewhere one instruction is enough for a jump.
#[cfg(target_arch = "x86_64")]
#[test]
fn probes_of_scripts_do_not_trap_unasked() {
    const SHORT: &str = r#"
        #include <stdio.h>
        void other(void);
        __asm__(".globl tiny\n.type tiny,@function\ntiny: ret\n.size tiny,.-tiny\n"
                ".globl other\n.type other,@function\nother: ret\n.size other,.-other\n");
        void tiny(void);
        int main(void) {
            printf("ready\n");
            fflush(stdout);
            while (getchar() != EOF) { tiny(); other(); printf("on\n"); fflush(stdout); }
        }"#;
    let program = Program::build("short", SHORT, &[]);
    let mut target = program.start(&[]);
    let (before, pid) = (target.text(), target.pid().to_string());
    let ran = run(&["-p", &pid, "-e", "uprobe:short:tiny { @ = count(); }"]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("too short for a jump"), "{ran:?}");
    before.assert_restored(target.pid());
    target.tell("");
    assert_eq!(target.line(), "on");
}

/// What kills the process for the system call by which memory is read.
const SANDBOX: &str = r#"
    struct sock_filter all[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof all / sizeof *all, all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
"#;

#[test]
fn in_a_sandbox_places_with_operands_in_memory_are_left_out_and_the_others_are_not() {
    let headers = ["linux/filter.h", "linux/seccomp.h", "stddef.h", "sys/prctl.h", "sys/syscall.h"];
    let headers: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    let source = SOURCE.replace("int main(void) {", &format!("int main(void) {{ {SANDBOX}"));
    let program = Program::build("operands", &format!("{headers}{source}"), &["-O2"]);
    let mut target = program.start(&[]);
    let before = target.text();
    let live = Live::run(&target, "usdt:operands:app:mixed { @[arg0] = count(); @last = arg1; }");
    work(&mut target, 50);
    let (found, err) = end(live);
    before.assert_restored(target.pid());
    assert!(err.contains("seccomp filter") && err.contains("--allow-seccomp"), "{err}");
    let of = |place: &str| found.get(place).copied().unwrap_or(0);
    // A constant, and what is in memory by its constraint.
    assert_eq!(["5", "9", "6", "7"].map(of), [50, 50, 0, 0], "{found:?} {err}");
    work(&mut target, 10);
}

/// What threads, signals' handlers and forked children do is as it is without probes.
#[test]
fn operands_are_told_under_signals_and_of_many_threads() {
    let storm = r#"
        #include <pthread.h>
        #include <signal.h>
        #include <sys/time.h>
        static volatile long handled;
        static long everything(long x);
        static void handler(int signal) { everything(3); handled++; (void)signal; }
        static void *thread(void *calls) {
            long sum = 0;
            for (long x = 0; x < (long)calls; x++) sum += everything(x % 100);
            return (void *)sum;
        }
        static long storm(long calls) {
            pthread_t threads[4];
            struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
            sigaction(SIGALRM, &action, 0);
            struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
            setitimer(ITIMER_REAL, &often, 0);
            for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, thread, (void *)calls);
            long sum = 0;
            for (int i = 0; i < 4; i++) { void *own; pthread_join(threads[i], &own); sum += (long)own; }
            setitimer(ITIMER_REAL, &never, 0);
            return sum / 4;
        }
        int main(void) {"#;
    let source = SOURCE.replace("int main(void) {", storm).replace(
        "for (long x = 0; x < calls; x++) sum += everything(x % 100);\n        printf(\"sum %ld\\n\", sum);",
        "sum = storm(calls); printf(\"sum %ld\\n\", sum); printf(\"handled %ld\\n\", handled);",
    );
    for flags in ["-O0", "-O2"] {
        let program = Program::build("operands", &source, &[flags]);
        let mut target = program.start(&[]);
        let before = target.text();
        let live = Live::run(&target, "usdt:operands:app:mixed { @[arg0, (int64)arg1] = count(); }");
        work(&mut target, 20_000);
        let handled = target.line().strip_prefix("handled ").unwrap().parse::<i64>().unwrap();
        let (found, err) = end(live);
        before.assert_restored(target.pid());
        let calls = 4 * 20_000 / 100;
        for x in 0..100i64 {
            let own = if x == 3 { calls + handled } else { calls };
            assert_eq!(found.get(&format!("1, {}", -x)), Some(&own), "{flags} {x}: {err}");
            assert_eq!(found.get(&format!("8, {}", x * 1_000_000_007)), Some(&own), "{flags} {x}: {err}");
        }
        assert_eq!(
            found.get(&format!("6, {}", 1i64 << 40)),
            Some(&(100 * calls + handled)),
            "{flags}: {err}"
        );
    }
}

/// The libraries of the machine have probes, too.
#[test]
fn probes_of_a_library_tell_their_arguments() {
    const THROWS: &str = r#"
        #include <cstdio>
        #include <cstdlib>
        int main() {
            std::printf("ready\n"); std::fflush(stdout);
            char line[64];
            while (std::fgets(line, sizeof line, stdin)) {
                int caught = 0;
                for (int i = 0; i < std::atoi(line); i++) try { throw i; } catch (int) { caught++; }
                std::printf("sum %d\n", caught); std::fflush(stdout);
            }
        }"#;
    let program = match Program::try_build("g++", "throws", THROWS, &[]) {
        Ok(program) => program,
        Err(error) => return trapless_testing::skip!("{error}"),
    };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let listed = run(&["list", "-p", &pid, "usdt:libstdcxx:*"]);
    if listed.code != Some(0) {
        return trapless_testing::skip!("the C++ library has no USDT probes: {}", listed.err);
    }
    let live = Live::run(
        &target,
        "usdt:libstdcxx:throw { @thrown[arg0] = count(); @[0, arg1 == 0] = count(); }
         usdt:libstdcxx:catch { @[1, @thrown[arg0] > 0 && arg1 != 0] = count(); }",
    );
    target.tell("100");
    assert_eq!(target.line(), "sum 100");
    let (found, err) = end(live);
    assert_eq!(found, [("0, false".to_owned(), 100), ("1, true".to_owned(), 100)].into(), "{err}");
}
