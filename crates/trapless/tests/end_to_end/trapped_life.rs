//! Hard cases L1, L4 and P8 under traps: targets that fork, exec, end, wait, stand still, and make threads, in both widths.

use crate::support::park::park;
use crate::support::spinners::{self, PLAIN, Spinners};
use crate::support::tool::{KINDS_BY_TRAP, RETURN_BY_TRAP, Summary, Tool, detach, run, wait_untraced};
use crate::support::{Program, Target, eventually};

const LIVES: &str = include_str!("targets/lives.c");
const CHURN: &str = include_str!("targets/churn.c");
const BLOCKED: &str = include_str!("../../../process/tests/programs/blocked.c");
const MECHANISMS: [&str; 3] = ["step", "emulate", "boost"];

fn armed(target: &Target, mechanism: &str, pattern: &str) -> Tool {
    let pid = target.pid().to_string();
    Tool::armed(&[&["count"], RETURN_BY_TRAP, &["--mechanism", mechanism, "-p", &pid, pattern]].concat())
}

/// Fails unless `subject` was entered so often, and left as often where that is counted.
#[track_caller]
fn assert_counted(summary: &Summary, hits: u64, told: &str) {
    for kind in KINDS_BY_TRAP {
        assert_eq!(summary.hits("subject", kind), hits, "{told}: {kind}");
    }
}

#[test]
fn l1_children_run_undisturbed_and_the_parents_counts_stay_exact() {
    for program in Program::in_both_widths("lives", LIVES, &[]) {
        for mechanism in MECHANISMS {
            // What a vfork child calls happens in its parent's memory.
            for (word, said, status, hits) in [
                ("fork", "child", "7", 110),
                ("clone", "child", "7", 110),
                ("vfork", "spawned", "0", 112),
                ("spawn", "spawned", "0", 110),
            ] {
                let name = format!("{word} {mechanism}, 32 bits: {}", program.is_32bit());
                let mut target = program.start(&[]);
                let before = target.text();
                let tool = armed(&target, mechanism, "lives:subject");
                target.tell(word);
                assert_eq!((target.line().as_str(), target.line().as_str()), (said, status), "{name}");
                let summary = tool.interrupt();
                assert_counted(&summary, hits, &name);
                detach(target.pid());
                before.assert_restored(target.pid());
            }
        }
    }
}

/// A leader that has exited has no memory, and whose memory a child runs in is not to be asked of it.
#[test]
fn l1_children_of_a_process_whose_leader_has_exited_are_told_apart() {
    for program in Program::in_both_widths("lives", LIVES, &[]) {
        for (word, said, status, hits) in
            [("fork", "child", "7", 110), ("vfork", "spawned", "0", 112), ("spawn", "spawned", "0", 110)]
        {
            let name = format!("{word}, 32 bits: {}", program.is_32bit());
            let mut target = program.start(&["leaderless"]);
            eventually("the leader exits", || target.state() == 'Z');
            let tool = armed(&target, "step", "lives:subject");
            target.tell(word);
            assert_eq!((target.line().as_str(), target.line().as_str()), (said, status), "{name}");
            let summary = tool.interrupt();
            assert_counted(&summary, hits, &name);
            // Without probes it lives on.
            target.tell(word);
            assert_eq!((target.line().as_str(), target.line().as_str()), (said, status), "{name}");
        }
    }
}

#[test]
fn l1_a_target_that_ends_or_execs_while_armed_leaves_exact_counts() {
    for program in Program::in_both_widths("lives", LIVES, &[]) {
        for mechanism in MECHANISMS {
            for word in ["exec", "exit", "kill"] {
                let mut target = program.start(&[]);
                let tool = armed(&target, mechanism, "lives:subject");
                target.tell(word);
                let summary = tool.ended();
                assert_counted(
                    &summary,
                    100,
                    &format!("{word} {mechanism}, 32 bits: {}", program.is_32bit()),
                );
                if word == "exec" {
                    assert_eq!(target.line(), "spawned");
                }
                target.wait();
            }
        }
    }
}

/// The exec kills threads that have trapped, after the wait that finds them and before the look at them.
#[test]
fn l1_an_exec_while_other_threads_trap_ends_the_run_as_any_other() {
    let program = Program::in_both_widths("lives", LIVES, &[]).remove(0);
    for mechanism in MECHANISMS {
        for round in 0..12 {
            let mut target = program.start(&[]);
            let tool = armed(&target, mechanism, "lives:subject");
            target.tell("usurp");
            let hits = tool.ended().hits("subject", "entry");
            assert!(hits >= 200, "{mechanism}, round {round}: {hits}");
            assert_eq!(target.line(), "spawned");
            assert!(target.wait().success());
        }
    }
}

/// Every kind of wait, and signals without a pause, of which each is a hit.
const WAITS: [&str; 18] = [
    "wait4",
    "nanosleep",
    "poll-timeout",
    "read",
    "poll",
    "ppoll",
    "select",
    "epoll",
    "alarm",
    "queue",
    "pause",
    "sigsuspend",
    "sigtimedwait",
    "cond",
    "socket",
    "semop",
    "spin",
    "join",
];

#[test]
fn l4_waits_go_on_undisturbed_when_probes_that_trap_come_and_go() {
    for program in Program::in_both_widths("blocked", BLOCKED, &[]) {
        for wait in WAITS {
            let mut target = program.start(&[wait]);
            let pid = target.pid().to_string();
            for mechanism in MECHANISMS {
                let arguments = [
                    "count",
                    "--mechanism",
                    mechanism,
                    "-p",
                    &pid,
                    "-d",
                    "0.01",
                    "-f",
                    "json",
                    "blocked:on_signal",
                ];
                let ran = run(&arguments);
                assert_eq!(ran.code, Some(0), "{wait} {mechanism}: {ran:?}");
            }
            target.tell("x");
            assert_eq!(target.line(), "ok", "{wait}, 32 bits: {}", program.is_32bit());
        }
    }
}

#[test]
fn l4_a_stopped_target_stays_stopped_and_is_counted_when_it_goes_on() {
    let program = spinners::build(PLAIN, "", "");
    for mechanism in MECHANISMS {
        let mut spinners = Spinners::start(&program, 3);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        spinners.target.freeze();
        for worker in spinners.workers() {
            park(&spinners.target, worker, spinners.subject(), 0);
        }
        let called = spinners.calls();
        let arguments = ["count", "--mechanism", mechanism, "-p", &spinners.pid(), "spinners:subject"];
        let summary = run(&[&arguments[..], &["-d", "0.1", "-f", "json"]].concat()).summary();
        assert_eq!((summary.hits("subject", "entry"), spinners.calls()), (0, called), "{mechanism}");
        // On its way back into the stop a thread runs for a moment, but not in the program.
        spinners.target.wait_for_state("T");
        before.assert_restored(pid);

        let tool = Tool::armed(&arguments);
        spinners.target.thaw();
        spinners.run_on();
        let calls = spinners.finish() - called;
        assert_eq!(tool.interrupt().hits("subject", "entry"), calls, "{mechanism}");
    }
}

/// SIGSTOP reaches threads between the two traps of a step, at jumps out of slots and at breakpoints.
#[test]
fn l4_job_control_while_armed_disturbs_nothing() {
    let program = spinners::build(PLAIN, "", "");
    for mechanism in MECHANISMS {
        let mut spinners = Spinners::start(&program, 4);
        let pid = spinners.target.pid();
        let tool =
            Tool::armed(&["count", "--mechanism", mechanism, "-p", &spinners.pid(), "spinners:subject"]);
        for round in 0..60 {
            let before = spinners.calls();
            eventually("it runs", || spinners.calls() > before);
            spinners.target.signal(libc::SIGSTOP);
            if round % 4 == 0 {
                spinners.target.wait_for_state("tT");
            }
            spinners.target.thaw();
            assert!(spinners.target.is_alive(), "{mechanism}, round {round}");
        }
        spinners.run_on();
        tool.interrupt();
        spinners.finish();
        detach(pid);
    }
}

#[test]
fn p8_threads_that_come_and_go_are_counted_exactly() {
    for program in Program::in_both_widths("churn", CHURN, &[]) {
        for mechanism in MECHANISMS {
            let mut target = program.start(&["60", "wait"]);
            let tool = armed(&target, mechanism, "churn:subject");
            target.tell("");
            let status = target.wait();
            assert!(status.success(), "{status:?} {mechanism}, 32 bits: {}", program.is_32bit());
            let summary = tool.ended();
            assert_counted(&summary, 4800, &format!("{mechanism}, 32 bits: {}", program.is_32bit()));
        }
    }
}

#[test]
fn p8_threads_that_come_and_go_while_we_arm_and_remove_are_all_found() {
    for program in Program::in_both_widths("churn", CHURN, &[]) {
        let mut target = program.start(&["-1"]);
        let (pid, before) = (target.pid().to_string(), target.text());
        for cycle in 0..18 {
            let mechanism = MECHANISMS[cycle % 3];
            let probe = ["--mechanism", mechanism, "churn:subject", "-p", &pid, "-d", "0.01"];
            let ran = run(&[&["count"], RETURN_BY_TRAP, &probe].concat());
            assert_eq!(ran.code, Some(0), "{cycle}: {ran:?}");
            assert!(target.is_alive(), "cycle {cycle}");
        }
        wait_untraced(target.pid());
        detach(target.pid());
        before.assert_restored(target.pid());
    }
}

/// It makes children that no tracer is told of, and says how they ended.
const UNTRACED: &str = r#"
    #define _GNU_SOURCE
    #include <sched.h>
    #include <signal.h>
    #include <stdio.h>
    #include <sys/wait.h>
    #include <unistd.h>
    __attribute__((noinline)) int probed(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
    static int child(void *n) { _exit(probed((int)(long)n)); }
    int main(void) {
        static char stack[65536];
        for (long n = 0; n < 3; n++) {
            int status;
            // The first is an ordinary one.
            int pid = clone(child, stack + sizeof stack, SIGCHLD | (n > 0 ? CLONE_UNTRACED : 0), (void *)n);
            waitpid(pid, &status, 0);
            printf("%d\n", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
        }
        return 0;
    }"#;

/// The kernel offers no way to reach them. The run ends, and says what has happened.
#[test]
fn children_that_hide_from_tracers_are_told_of() {
    let program = Program::build("untraced", UNTRACED, &[]);
    let path = program.path().to_str().unwrap();
    let ran = run(&["count", "--mechanism", "step", "untraced:probed", "-o", "/dev/null", "--", path]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "1\n-5\n-5\n"), "{ran:?}");
    assert!(ran.err.contains("children that hide from tracers (CLONE_UNTRACED): 2"), "{ran:?}");
}
