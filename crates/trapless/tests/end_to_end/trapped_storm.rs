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
/// call was counted once.
#[test]
fn p5_signals_that_outpace_the_steps_are_handled() {
    const FLOODED: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <time.h>
__attribute__((noipa)) long subject(long x) { return x * 2 + 1; }
static timer_t flood;
static volatile long handled;
static void handler(int signal) { if (++handled == 3000) timer_delete(flood); }
int main(void) {
    struct sigaction action = {.sa_handler = handler};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    long calls = 0;
    sigaction(SIGUSR1, &action, 0);
    puts("ready");
    fflush(stdout);
    getchar();
    timer_create(CLOCK_MONOTONIC, &event, &flood);
    timer_settime(flood, 0, &(struct itimerspec){{0, 1000}, {0, 1000}}, 0);
    for (; handled < 3000 || calls < 1000; calls++) if (subject(calls) != 2 * calls + 1) return 1;
    printf("%ld\n", calls);
    fflush(stdout);
    getchar();
    return 0;
}
"#;
    let program = support::Program::build("flooded", FLOODED, &[]);
    for mechanism in MECHANISMS {
        let mut target = program.start(&[]);
        let pid = target.pid().to_string();
        let tool = Tool::armed(&["count", "--mechanism", mechanism, "-p", &pid, "flooded:subject"]);
        target.tell("");
        let calls: u64 = target.line().parse().unwrap();
        assert_eq!(tool.interrupt().hits("subject", "entry"), calls, "{mechanism}");
        target.tell("");
    }
}
