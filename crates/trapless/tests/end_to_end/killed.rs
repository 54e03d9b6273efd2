//! Hard case P9: the tool killed at any moment. The target lives, and `detach` makes it what it was.

use crate::support::Program;
use crate::support::part;
use crate::support::spinners::{self, PLAIN, Spinners};
use crate::support::tool::{Tool, detach, finish, kill_after, length_of, moments, trapless, wait_untraced};

#[test]
fn p9_killing_the_tool_at_any_moment_of_a_run_harms_nobody() {
    let program = spinners::build(PLAIN, "", "");
    for flags in [&["count"][..], &["count", "--return"]] {
        let mut spinners = Spinners::start(&program, 2);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        let text = spinners.pid();
        let arguments = [flags, &["-p", &text, "spinners:s*", "-d", "0.001"]].concat();
        let whole = length_of(&mut trapless(&arguments));
        for moment in moments(100, whole + whole / 4) {
            kill_after(&mut trapless(&arguments), moment);
            assert!(spinners.target.is_alive(), "killed after {moment:?}");
            detach(pid);
            before.assert_restored(pid);
        }
        spinners.run_on();
        spinners.finish();
    }
}

#[test]
fn p9_killing_detach_at_any_moment_leaves_what_the_next_one_removes() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.target.pid(), spinners.target.text());
    let text = spinners.pid();
    let arguments = ["detach", "-p", &text];
    let whole = length_of(&mut trapless(&arguments)) * 4;
    for moment in moments(40, whole) {
        Tool::armed(&["count", "--return", "-p", &text, "spinners:s*"]).kill();
        kill_after(&mut trapless(&arguments), moment);
        detach(pid);
        before.assert_restored(pid);
        assert!(spinners.target.is_alive(), "killed after {moment:?}");
    }
    spinners.run_on();
    spinners.finish();
}

/// Several at once, of which each third is killed, whatever it does then. What one has put in is not the others' to take out.
#[test]
fn p9_tools_that_come_at_the_same_time_and_are_killed_harm_nobody() {
    const ROUNDS: usize = 16;
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.target.pid(), spinners.target.text());
    let text = spinners.pid();
    let verbs: [&[&str]; 8] = [
        &["count", "spinners:subject", "-d", "0.05"],
        &["count", "spinners:s*", "-d", "0.02"],
        &["count", "--return", "spinners:second", "-d", "0.05"],
        &["detach"],
        &["latency", "spinners:subject", "-d", "0.03"],
        &["trace", "spinners:second", "-d", "0.02"],
        &["inject", "spinners:subject", "--delay", "100us", "--every", "100000", "-d", "0.05"],
        &["status"],
    ];
    let moments: Vec<_> =
        moments(ROUNDS as u32, length_of(&mut trapless(&["status", "-p", &text])) * 4).collect();
    std::thread::scope(|scope| {
        for tool in 0..3 {
            let (text, moments) = (&text, &moments);
            scope.spawn(move || {
                for round in 0..part(ROUNDS) {
                    let verb = verbs[(tool * 3 + round * (tool + 1)) % verbs.len()];
                    let mut command = trapless(&[&verb[..1], &["-p", text], &verb[1..]].concat());
                    if (tool + round) % 3 == 0 {
                        kill_after(&mut command, moments[round]);
                        continue;
                    }
                    // Others may be in its way. That is not for long, or said.
                    let ran = finish(&mut command);
                    assert!([0, 1, 4].map(Some).contains(&ran.code), "{verb:?} {ran:?}");
                }
            });
        }
    });
    assert!(spinners.target.is_alive());
    wait_untraced(pid);
    detach(pid);
    before.assert_restored(pid);
    spinners.run_on();
    spinners.finish();
}

/// It waits for a line, calls the probed function, and says so.
const RESTING: &str = r#"
    #include <stdio.h>
    __attribute__((noinline, noclone)) int rests(int n) { __asm__ volatile("" : "+r"(n)); return n * 3; }
    int main(void) {
        printf("ready\n");
        fflush(stdout);
        for (int n = 1; getchar() != EOF; n++) {
            printf("%d\n", rests(n));
            fflush(stdout);
        }
        return 0;
    }"#;

/// Breakpoints that nobody serves kill whoever meets them, so the tool takes them out as soon as their keeper is gone.
#[test]
fn p9_killing_the_keeper_leaves_no_breakpoint_behind() {
    let program = Program::build("resting", RESTING, &[]);
    for mechanism in ["step", "emulate", "boost"] {
        let mut target = program.start(&[]);
        let (pid, before) = (target.pid(), target.text());
        let text = pid.to_string();
        let tool = Tool::armed(&["count", "--mechanism", mechanism, "-p", &text, "resting:rests"]);
        target.tell("");
        assert_eq!(target.line(), "3", "{mechanism}");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let keeper = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap().trim();
        let keeper: i32 = keeper.parse().unwrap();
        assert_ne!(keeper, 0, "{mechanism}: somebody serves");
        // SAFETY: kill takes two integers; the keeper serves as long as the tool has not ended.
        unsafe { libc::kill(keeper, libc::SIGKILL) };
        tool.ran().assert_refused(1, &["served the traps was killed", "were taken out"]);
        before.assert_restored(pid);
        target.tell("");
        assert_eq!(target.line(), "6", "{mechanism}");
    }
}
