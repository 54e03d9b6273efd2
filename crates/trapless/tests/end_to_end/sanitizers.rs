//! Programs built with a sanitizer, which keep address space of their own and end if anything else lies there.

use crate::support::Program;
use crate::support::tool::{Tool, run};

/// Launched, it ends by itself; given an argument, it says that it is ready and waits for a line.
const SOURCE: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    __attribute__((noinline)) long probed(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
    static void *work(void *sum) {
        // More than allocators keep, so that they ask for address space.
        for (int i = 0; i < 50; i++) {
            char *memory = malloc(1 << (10 + i % 14));
            memset(memory, i, 1 << (10 + i % 14));
            *(long *)sum += probed(memory[5] - i);
            free(memory);
        }
        return 0;
    }
    int main(int argc, char **argv) {
        if (argc > 1) {
            puts("ready");
            fflush(stdout);
            getchar();
        }
        pthread_t threads[4];
        long sums[4] = {0};
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, &sums[i]);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
        printf("%ld\n", sums[0] + sums[1] + sums[2] + sums[3]);
        return 0;
    }"#;

#[test]
fn programs_with_sanitizers_are_probed_launched_and_attached() {
    for (compiler, sanitizer) in [
        ("gcc", "thread"),
        ("gcc", "address"),
        ("gcc", "undefined"),
        ("clang", "memory"),
        ("clang", "thread"),
        ("clang", "address"),
    ] {
        let flags = ["-g", &format!("-fsanitize={sanitizer}")];
        let program = match Program::try_build(compiler, "sanitized", SOURCE, &flags) {
            Ok(program) => program,
            Err(error) => {
                trapless_testing::skip!("{compiler} -fsanitize={sanitizer}: {error}");
                continue;
            }
        };
        let path = program.path().to_str().unwrap();
        // clang's functions hand their return address to the thread sanitizer, so they are followed to their exits.
        for verb in [&["count"][..], &["count", "--return"], &["latency"], &["trace"]] {
            let what = format!("{compiler} {sanitizer} {verb:?}");
            let launched = [verb, &["sanitized:probed", "-o", "/dev/null", "--", path]].concat();
            let ran = run(&launched);
            assert_eq!((ran.code, ran.out.as_str()), (Some(0), "200\n"), "{what}: {}", ran.err);

            let mut target = program.start(&["wait"]);
            let text = target.pid().to_string();
            let tool = Tool::armed(&[verb, &["-p", &text, "sanitized:probed"]].concat());
            target.tell("");
            assert_eq!(target.line(), "200", "{what}");
            assert!(target.wait().success(), "{what}");
            let summary = tool.ended();
            if verb == ["count"] {
                assert_eq!(summary.hits("probed", "entry"), 200, "{what}");
            }
        }
        // Scripts have memory of their own, and native code, which 32-bit programs have not.
        if cfg!(not(target_arch = "x86")) {
            let script = "uprobe:sanitized:probed { @ = count(); }";
            let ran = run(&["-e", script, "-o", "/dev/null", "--", path]);
            assert_eq!(
                (ran.code, ran.out.as_str()),
                (Some(0), "200\n"),
                "{compiler} {sanitizer}: {}",
                ran.err
            );
        }
    }
}
