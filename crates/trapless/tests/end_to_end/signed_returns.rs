//! Calls under way when probes are taken out, in programs that sign their return addresses (arm64): each returns as if nobody had looked.
#![cfg(target_arch = "aarch64")]

use crate::support::Program;
use crate::support::tool::{Tool, run};

/// `deep` calls itself, and `first` ends in a jump to `second`. All threads are at the bottom of one until they are told to go on. `late` signs
/// its address only where it calls somebody: one in eight of them, or in 128, has a signature that is zero.
const UNDER_WAY: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static atomic_int inside, over;
__attribute__((noipa)) long bottom(long x) {
    inside++;
    while (!over) usleep(1000);
    return x + 1;
}
__attribute__((noipa)) long deep(long depth) {
    long below = depth ? deep(depth - 1) : bottom(0);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}
__attribute__((noipa)) long second(long a) {
    long sum = bottom(a);
    __asm__ volatile("" : "+r"(sum));
    return sum * 2;
}
__attribute__((noipa)) long first(long a) {
    __asm__ volatile("" : "+r"(a));
    return second(a + 1);
}
__attribute__((noipa)) long late(long depth) {
    if (depth < 0) return 7;
    long below = depth ? late(depth - 1) : bottom(0);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}
enum { THREADS = 7, LATE = 400 };
static void *work(void *number) {
    long n = (long)number;
    if (n == THREADS - 1) return (void *)(late(LATE) - LATE);
    return (void *)(n % 2 ? deep(n) : first(n));
}
int main(void) {
    pthread_t threads[THREADS];
    puts("ready"); fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        inside = over = 0;
        for (long n = 0; n < THREADS; n++) pthread_create(&threads[n], 0, work, (void *)n);
        while (inside < THREADS) usleep(1000);
        puts("inside"); fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) break;
        over = 1;
        long sum = 0;
        for (int n = 0; n < THREADS; n++) {
            void *result;
            pthread_join(threads[n], &result);
            sum += (long)result;
        }
        printf("%ld\n", sum); fflush(stdout);
    }
    return 0;
}
"#;

#[test]
fn calls_under_way_return_whatever_signs_their_addresses() {
    for protection in ["none", "standard", "pac-ret+leaf"] {
        let flag = format!("-mbranch-protection={protection}");
        let program = Program::build("under_way", UNDER_WAY, &["-O2", &flag]);
        let mut target = program.start(&[]);
        let before = target.text();
        for round in 0..3 {
            let pid = target.pid().to_string();
            let names = ["deep", "first", "second", "late", "bottom"].map(|name| format!("under_way:{name}"));
            let mut arguments = vec!["count", "--return", "-p", &pid];
            arguments.extend(names.iter().map(String::as_str));
            let tool = Tool::armed(&arguments);
            target.tell("go");
            assert_eq!(target.line(), "inside", "{protection}, {round}");
            let summary = tool.interrupt();
            assert_eq!(summary.hits("bottom", "entry"), 7, "{protection}, {round}");
            assert_eq!(summary.hits("late", "entry"), 401, "{protection}, {round}");
            assert_eq!(summary.hits("bottom", "return"), 0, "{protection}, {round}");
            before.assert_restored(target.pid());
            target.tell("stop");
            // deep(n) of 1, 3 and 5; first(n) of 0, 2 and 4; late.
            assert_eq!(target.line(), "41", "{protection}, {round}");
        }
    }
}

/// What is signed by the other key says so in its unwind table, in a way that is not read yet.
#[test]
fn calls_that_the_other_key_signs_are_refused() {
    let program = Program::build("under_way", UNDER_WAY, &["-O2", "-mbranch-protection=pac-ret+b-key"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    run(&["count", "--return", "-p", &pid, "under_way:deep"])
        .assert_refused(1, &["unwind table could not be read"]);
}
