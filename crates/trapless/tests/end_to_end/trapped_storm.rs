//! P5 under traps: probes come and go again and again while threads run through breakpoints, slots, steps and landing pads.
//!
//! A few cycles here, more by hand: `TRAPLESS_STORM=500 cargo test --release -p trapless trapped_storm::`.

use crate::support;
use crate::support::spinners::{self, PLAIN, Spinners, storm};
use crate::support::tool::{RETURN_BY_TRAP, Tool, detach, run};

const MECHANISMS: [&str; 3] = ["step", "boost", "emulate"];

#[test]
fn p5_a_storm_of_probes_that_trap_harms_nobody() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 4);
    let (pid, before) = (spinners.pid(), spinners.target.text());
    for cycle in 0..storm(30) {
        for mechanism in MECHANISMS {
            let flags: &[&str] = if cycle % 2 == 0 { &[] } else { RETURN_BY_TRAP };
            let arguments =
                ["count", "--mechanism", mechanism, "-p", &pid, "spinners:s*", "-d", "0.003", "-f", "json"];
            let ran = run(&[&arguments[..], flags].concat());
            assert_eq!(ran.code, Some(0), "{mechanism} {cycle}: {ran:?}");
            assert!(spinners.target.is_alive(), "{mechanism}, cycle {cycle}");
        }
    }
    spinners.run_on();
    detach(spinners.target.pid());
    before.assert_restored(spinners.target.pid());
    spinners.finish();
    println!("{} toggles", 3 * storm(30));
}

/// The same while a signal reaches the target a thousand times a second, and each is a hit: a removal finds no quiet moment.
#[test]
fn p5_a_storm_in_a_target_that_is_never_quiet() {
    let source = include_str!("../../../process/tests/programs/blocked.c");
    for program in support::Program::in_both_widths("blocked", source, &[]) {
        let mut target = program.start(&["alarm"]);
        let pid = target.pid().to_string();
        for cycle in 0..storm(10) {
            for mechanism in MECHANISMS {
                let arguments = [
                    "count",
                    "--mechanism",
                    mechanism,
                    "-p",
                    &pid,
                    "-d",
                    "0.004",
                    "-f",
                    "json",
                    "blocked:on_signal",
                ];
                let ran = run(&arguments);
                assert_eq!(ran.code, Some(0), "{mechanism} {cycle}: {ran:?}");
                assert!(target.is_alive(), "{mechanism}, cycle {cycle}");
            }
        }
        target.tell("x");
        assert_eq!(target.line(), "ok", "32 bits: {}", program.is_32bit());
    }
}

/// The program gets a signal as soon as it has got one, faster than anybody steps: its handler runs all the same, and when that has had enough, each
/// call was counted once, the handler's, too. One that is ignored makes no difference.
#[test]
fn p5_signals_that_outpace_the_steps_are_handled() {
    const FLOODED: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
__attribute__((noipa)) long subject(long x) { return x * 2 + 1; }
static timer_t flood;
static volatile long handled;
__attribute__((noipa)) long second(long x) { return x + 5; }
static void handler(int signal) {
    if (second(handled) != handled + 5) _exit(3);
    if (++handled == 3000) timer_delete(flood);
}
int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = argc > 1 ? SA_ONSTACK : 0};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    static char alternate[65536];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    pid_t parent = getpid(), child = fork();
    long calls = 0;
    /* Ignored, it tells tracers all the same. */
    if (child == 0) for (long n = 0; getppid() == parent; n++) { kill(parent, SIGURG); if (n % 64 == 0) usleep(50); }
    sigaltstack(&stack, 0);
    sigaction(SIGUSR1, &action, 0);
    puts("ready");
    fflush(stdout);
    getchar();
    timer_create(CLOCK_MONOTONIC, &event, &flood);
    timer_settime(flood, 0, &(struct itimerspec){{0, 1000}, {0, 1000}}, 0);
    for (; handled < 3000 || calls < 1000; calls++) if (subject(calls) != 2 * calls + 1) return 1;
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    printf("%ld %ld\n", calls, handled);
    fflush(stdout);
    getchar();
    return 0;
}
"#;
    let program = support::Program::build("flooded", FLOODED, &[]);
    let cases = MECHANISMS.iter().flat_map(|mechanism| [&[][..], &["apart"]].map(|stack| (mechanism, stack)));
    for (mechanism, stack) in cases {
        let mut target = program.start(stack);
        let pid = target.pid().to_string();
        let probes = ["flooded:subject", "flooded:second"];
        let tool = Tool::armed(&[&["count", "--mechanism", mechanism, "-p", &pid][..], &probes].concat());
        target.tell("");
        let line = target.line();
        let told: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let summary = tool.interrupt();
        let hits = ["subject", "second"].map(|function| summary.hits(function, "entry"));
        assert_eq!(hits[..], told, "{mechanism} {stack:?}");
        target.tell("");
    }
}
