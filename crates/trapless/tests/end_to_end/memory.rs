//! Memory follows use: what nobody hits takes none, and reading the numbers takes none.

use crate::support::tool::Tool;
use crate::support::{Program, Target, eventually};
use std::os::unix::fs::MetadataExt;

/// Some threads that run a little of the C library whenever they are told to, and otherwise wait.
const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static pthread_barrier_t begin, end;
__attribute__((noinline, noclone)) long probed(long x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
static void *work(void *unused) {
    for (;;) {
        pthread_barrier_wait(&begin);
        free(strdup("some text"));
        probed(1);
        pthread_barrier_wait(&end);
    }
    return unused;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&begin, 0, threads + 1);
    pthread_barrier_init(&end, 0, threads + 1);
    for (int i = 0; i < threads; i++) {
        pthread_t id;
        if (pthread_create(&id, &small, work, 0)) return 1;
    }
    puts("ready");
    fflush(stdout);
    while (getchar() == '\n') {
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
"#;

/// What the shared region of a running tool takes, in bytes.
fn shared(tool: &Tool) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{}/fd", tool.pid())).unwrap();
    let is_region = |file: &std::path::PathBuf| {
        std::fs::read_link(file).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:trapless"))
    };
    let region =
        files.map(|file| file.unwrap().path()).find(is_region).expect("the tool has the region open");
    512 * std::fs::metadata(region).unwrap().blocks()
}

/// Children, one after the other, that run a little of the C library.
const CHILDREN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline, noclone)) long probed(long x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(int argc, char **argv) {
    int children = atoi(argv[1]);
    puts("ready");
    fflush(stdout);
    while (getchar() == '\n') {
        for (int i = 0; i < children; i++) {
            if (fork() == 0) {
                char text[64];
                snprintf(text, sizeof text, "%d %g %s", i, i / 2.0, "text");
                free(strdup(text));
                probed(i);
                exit(3);
            }
            int status;
            if (wait(&status) < 0 || WEXITSTATUS(status) != 3) return 1;
            probed(i);
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
"#;

fn work(target: &mut Target) {
    target.tell("");
    assert_eq!(target.line(), "done");
}

#[test]
fn what_no_thread_hits_takes_no_memory_however_often_it_is_read() {
    const COUNT: u64 = 64;
    let program = Program::build("threads", THREADS, &[]);
    let mut target = program.start(&[&COUNT.to_string()]);
    let pid = target.pid().to_string();
    let mut tool = Tool::armed(&["latency", "-p", &pid, "-i", "0.02", "libc.so.6:*", "threads:probed"]);
    work(&mut target);
    // All numbers are read for each interval.
    eventually("an interval with what the threads did", || tool.line().contains("probed"));
    let taken = shared(&tool);
    assert!(taken / COUNT < 256 << 10, "{} KB for each thread", taken / COUNT / 1024);
    work(&mut target);
    eventually("another interval", || tool.line().contains("probed"));
    // The threads did the same as before; some durations fall where none has fallen yet.
    assert!(shared(&tool) < taken + taken / 4, "{taken} bytes became {}", shared(&tool));
    let summary = tool.interrupt();
    assert_eq!(summary.hits("probed", "return"), 2 * COUNT);
}

#[test]
fn forked_children_take_memory_for_counters_only() {
    const COUNT: u64 = 100;
    let program = Program::build("children", CHILDREN, &[]);
    let mut target = program.start(&[&COUNT.to_string()]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["latency", "-p", &pid, "libc.so.6:*", "children:probed"]);
    let before = shared(&tool);
    work(&mut target);
    let taken = shared(&tool) - before;
    // Each hits functions on a few dozen pages of counters, and would have some dozens of histograms.
    assert!(taken / COUNT < 200 << 10, "{} KB for each child", taken / COUNT / 1024);
    let summary = tool.interrupt();
    let rows = summary.0["probes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["function"] == "probed").unwrap();
    assert_eq!(row["hits"], COUNT, "the parent's calls");
    let buckets = row["latency_ns"]["buckets"].as_array().unwrap();
    let timed: u64 = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
    assert_eq!(timed, COUNT, "{row}");
}
