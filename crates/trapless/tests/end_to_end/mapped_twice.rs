//! A file of which a part is mapped a second time: V8 maps its builtins again, next to the code it makes.

use crate::support::Program;
use crate::support::tool::Tool;

/// `copied` stands on a page of its own, which is mapped again and called at both places.
const SOURCE: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
extern char __executable_start;
long copied(long x);
#include "assembly.h"
__asm__(".text; .p2align " PAGE);
ASSEMBLED(copied, TWICE_AND_ONE_AT_ONCE)
__asm__(".p2align " PAGE);
__attribute__((noinline, noclone)) long only(long x) { volatile long a = x; return a + 1; }
static volatile int go;
int main(int argc, char **argv) {
    int fd = open("/proc/self/exe", O_RDONLY);
    long (*copy)(long) = mmap((void *)0x200000000000, getpagesize(), PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, (char *)copied - &__executable_start);
    close(fd);
    if (copy == MAP_FAILED) return 1;
    printf("ready %lx %lx %lx\n", (long)&go, (long)copied, (long)copy);
    fflush(stdout);
    while (!go) usleep(500);
    long wrong = 0;
    for (long i = 0; i < 1000; i++) wrong += copied(i) != 2 * i + 1;
    for (long i = 0; i < 300; i++) wrong += copy(i) != 2 * i + 1;
    for (long i = 0; i < 50; i++) wrong += only(i) != i + 1;
    printf("%ld\n", wrong);
    fflush(stdout);
    getchar();
}
"#;

#[test]
fn code_that_is_mapped_twice_is_counted_at_both_places() {
    let program = Program::build("twice", SOURCE, &[]);
    for flags in [&["count"][..], &["count", "--return"]] {
        let mut target = program.start(&[]);
        let (pid, before) = (target.pid(), target.text());
        let text = pid.to_string();
        let tool = Tool::armed(&[flags, &["-p", &text, "twice:copied", "twice:only"]].concat());
        target.write(target.address(0), &1u32.to_le_bytes());
        assert_eq!(target.line(), "0", "wrong results");
        let summary = tool.interrupt();
        let hits = |address: Option<u64>, function: &str| {
            let probes = summary.0["probes"].as_array().unwrap();
            let is_wanted = |row: &&serde_json::Value| {
                row["function"] == function && address.is_none_or(|address| row["address"] == address)
            };
            probes.iter().filter(is_wanted).map(|row| row["hits"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        let kind = if flags.len() > 1 { "with returns" } else { "entries" };
        assert!(hits(Some(target.address(1)), "copied").iter().all(|&n| n == 1000), "{kind}: {summary:?}");
        assert!(hits(Some(target.address(2)), "copied").iter().all(|&n| n == 300), "{kind}: {summary:?}");
        assert!(hits(None, "copied").len() >= 2, "{kind}: {summary:?}");
        assert!(hits(None, "only").iter().all(|&n| n == 50), "{kind}: {summary:?}");
        assert_eq!(summary.0["skipped"].as_array().unwrap().len(), 0, "{summary:?}");
        before.assert_restored(pid);
    }
}
