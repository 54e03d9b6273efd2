//! Hard cases L1 and L4: targets that fork, exec, end, stand still, or are not ours.

use crate::support::assembly::X86;
use crate::support::tool::{Tool, detach, finish, run, trapless};
use crate::support::{self, Program, Target, end_with_us, is_root};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Does what each line of input says, and calls `subject` around it.
const LIVES: &str = include_str!("targets/lives.c");

fn lives() -> Program {
    Program::build("lives", LIVES, &[])
}

fn armed(target: &Target) -> Tool {
    Tool::armed(&["count", "--return", "-p", &target.pid().to_string(), "lives:subject"])
}

#[test]
fn l1_children_run_undisturbed_and_the_parents_counts_stay_exact() {
    let program = lives();
    for (word, said, status) in [("fork", "child", "7"), ("vfork", "spawned", "0"), ("spawn", "spawned", "0")]
    {
        let mut target = program.start(&[]);
        let before = target.text();
        let tool = armed(&target);
        target.tell(word);
        assert_eq!((target.line().as_str(), target.line().as_str()), (said, status), "{word}");
        let summary = tool.interrupt();
        let hits = (summary.hits("subject", "entry"), summary.hits("subject", "return"));
        // Where children that share the memory cannot be told from their parent, they count with it, and that is said. The one here
        // calls twice.
        let sharing = u64::from(word == "vfork" && !X86);
        let calls = 110 + 2 * sharing;
        assert_eq!(hits, (calls, calls), "{word}");
        assert_eq!(summary.0["sharing_children"], sharing, "{word}");
        before.assert_restored(target.pid());
    }
}

#[test]
fn l1_a_target_that_ends_or_execs_while_armed_leaves_exact_counts() {
    let program = lives();
    for word in ["exec", "exit", "kill"] {
        let mut target = program.start(&[]);
        let tool = armed(&target);
        target.tell(word);
        if word == "exec" {
            assert_eq!(target.line(), "spawned");
        }
        target.wait();
        let summary = tool.ended();
        assert_eq!(
            (summary.hits("subject", "entry"), summary.hits("subject", "return")),
            (100, 100),
            "{word}"
        );
    }
}

#[test]
fn l1_a_process_that_runs_another_program_by_now_is_left_alone() {
    let source = r#"
#include <stdio.h>
#include <unistd.h>
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
int main(int argc, char **argv) {
    puts("ready"); fflush(stdout);
    getchar(); subject(1);
    if (argc == 1) execl("/proc/self/exe", argv[0], "again", NULL);
    return 5;
}
"#;
    let program = Program::build("execs", source, &[]);
    let mut target = program.start(&[]);
    let tool = Tool::armed(&["count", "-p", &target.pid().to_string(), "execs:subject"]);
    target.tell("x");
    assert_eq!(target.line(), "ready");
    let before = target.text();
    assert_eq!(tool.interrupt().hits("subject", "entry"), 1);
    before.assert_restored(target.pid());
    target.tell("x");
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn l1_a_tool_that_a_script_runs_in_the_background_ends_by_its_signals() {
    let program = lives();
    let others = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGVTALRM, libc::SIGPROF, libc::SIGPWR, libc::SIGXCPU];
    for signal in [libc::SIGINT, libc::SIGTERM].into_iter().chain(others) {
        let target = program.start(&[]);
        let before = target.text();
        let pid = target.pid().to_string();
        let mut command = trapless(&["count", "-p", &pid, "lives:subject", "-f", "json"]);
        // As shells do for `trapless … &` in scripts, and `nohup`.
        // SAFETY: the calls are safe between fork and exec.
        let mut tool = Tool::armed_with(unsafe {
            command.pre_exec(|| {
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_IGN);
                }
                Ok(())
            })
        });
        tool.signal(libc::SIGHUP);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(tool.is_running(), "one that is to outlive its terminal");
        tool.signal(signal);
        assert_eq!(tool.ended().hits("subject", "entry"), 0);
        before.assert_restored(target.pid());
    }
}

#[test]
fn l4_a_stopped_target_is_probed_and_stays_stopped() {
    let mut target = lives().start(&[]);
    let before = target.text();
    target.freeze();
    let tool = armed(&target);
    // On its way back into the stop a thread runs for a moment, but not in the program.
    target.wait_for_state("T");
    target.thaw();
    target.tell("none");
    assert_eq!(target.line(), "0");
    target.freeze();
    assert_eq!(tool.interrupt().hits("subject", "return"), 110);
    // On its way back into the stop a thread runs for a moment, but not in the program.
    target.wait_for_state("T");
    before.assert_restored(target.pid());
    target.thaw();
    target.tell("none");
    assert_eq!(target.line(), "0");
}

#[test]
fn l4_no_such_process_zombies_and_kernel_threads_are_told_apart() {
    let mut zombie = end_with_us(&mut Command::new("true")).spawn().unwrap();
    let pid = zombie.id().to_string();
    support::eventually("it ends", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ")
    });
    for verb in ["count", "list", "explain"] {
        run(&[verb, "-p", &pid, "true:main"]).assert_refused(3, &[&pid]);
    }
    zombie.wait().unwrap();
    for verb in ["count", "status", "detach"] {
        let probe: &[&str] = if verb == "count" { &["true:main"] } else { &[] };
        run(&[&[verb, "-p", &pid], probe].concat()).assert_refused(3, &[&pid]);
    }
    let stat = std::fs::read_to_string("/proc/2/stat").unwrap_or_default();
    match stat.contains("(kthreadd)") {
        true => run(&["count", "-p", "2", "x:y"]).assert_refused(4, &["kernel thread"]),
        false => trapless_testing::inapplicable!("no kernel thread can be seen here"),
    }
}

/// The tool as another user, where it can be: it must be a program that the user may read.
fn as_nobody(program: &Program, arguments: &[&str]) -> Option<Command> {
    if !is_root() {
        trapless_testing::inapplicable!("only root can become nobody");
        return None;
    }
    let tool = program.dir().join("trapless");
    if !tool.exists() {
        trapless_testing::copy_program(env!("CARGO_BIN_EXE_trapless"), &tool);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(tool);
    command.args(arguments).stdin(Stdio::null());
    Some(command)
}

/// The program as another user, which only root can start.
fn of_nobody(program: &Program) -> Target {
    let mut command = Command::new("setpriv");
    Target::start(command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program.path()))
}

#[test]
fn l4_the_process_of_another_user_is_code_4() {
    let program = lives();
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let Some(mut command) = as_nobody(&program, &["count", "-p", &pid, "lives:subject"]) else { return };
    finish(&mut command).assert_refused(4, &[&pid, "uid"]);
}

#[test]
fn l4_everything_works_as_an_ordinary_user() {
    let program = lives();
    if as_nobody(&program, &[]).is_none() {
        return;
    }
    let mut target = of_nobody(&program);
    let before = target.text();
    let pid = target.pid().to_string();
    let nobody = |arguments: &[&str]| as_nobody(&program, arguments).unwrap();
    let tool =
        Tool::armed_with(&mut nobody(&["count", "--return", "-p", &pid, "lives:subject", "-f", "json"]));
    target.tell("fork");
    assert_eq!((target.line().as_str(), target.line().as_str()), ("child", "7"));
    let status = finish(&mut nobody(&["status", "-p", &pid, "-f", "json"]));
    // Beside it, the unwinder's entry points may be hooked.
    let row = status.json().into_iter().find(|row| row["function"] == "subject");
    assert_eq!(row.unwrap()["hits"], 110, "{status:?}");
    let summary = tool.interrupt();
    assert_eq!((summary.hits("subject", "entry"), summary.hits("subject", "return")), (110, 110));
    before.assert_restored(target.pid());

    Tool::armed_with(&mut nobody(&["latency", "-p", &pid, "lives:subject", "-f", "json"])).kill();
    assert_eq!(finish(&mut nobody(&["detach", "-p", &pid])).code, Some(0));
    before.assert_restored(target.pid());

    let launched =
        finish(&mut nobody(&["count", "libc.so.6:write", "-f", "json", "--", "sh", "-c", "exit 5"]));
    assert_eq!(launched.code, Some(5), "{launched:?}");
}

#[test]
fn l4_a_user_who_may_make_no_more_threads_still_gets_answers() {
    let program = lives();
    if as_nobody(&program, &[]).is_none() {
        return;
    }
    let target = of_nobody(&program);
    let (before, pid) = (target.text(), target.pid().to_string());
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        command.args(["prlimit", "--nproc=1"]).arg(program.dir().join("trapless")).args(arguments);
        finish(command.stdin(Stdio::null()))
    };
    // Large files are read by several threads where that can be.
    let listed = limited(&["list", "-p", &pid, "libc.so.6:getenv"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let counted =
        limited(&["count", "--return", "-p", &pid, "lives:subject", "libc.so.6:getenv", "-d", "0.01"]);
    counted.assert_refused(1, &["cannot start the keeper process"]);
    before.assert_restored(target.pid());
}

#[test]
fn l4_a_target_in_another_mount_and_pid_namespace_is_probed() {
    if !is_root() {
        trapless_testing::inapplicable!("only root can make namespaces everywhere");
        return;
    }
    let program = lives();
    let root = tempfile::tempdir().unwrap();
    let script = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir -p "$1/usr" "$1/inner" "$1/proc"
mount --bind /usr "$1/usr"
mount --bind "$2" "$1/inner"
for link in lib lib64 bin; do ln -s "usr/$link" "$1/$link"; done
exec chroot "$1" /inner/lives
"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]);
    let target = Target::try_start(command.arg(root.path()).arg(program.dir()));
    let Some(mut target) = target else {
        trapless_testing::inapplicable!("no namespaces here");
        return;
    };
    // The program is the child of unshare.
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let inner: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let before = support::text::Text::of(inner);
    for verb in [&["count"][..], &["latency"]] {
        let tool = Tool::armed(&[verb, &["-p", &inner.to_string(), "lives:subject"]].concat());
        target.tell("fork");
        assert_eq!((target.line().as_str(), target.line().as_str()), ("child", "7"));
        let summary = tool.interrupt();
        assert_eq!(summary.0["probes"][0]["hits"], 110, "{summary:?}");
        before.assert_restored(inner);
    }
    Tool::armed(&["count", "-p", &inner.to_string(), "libc.so.6:w*"]).kill();
    detach(inner);
    before.assert_restored(inner);
}

/// A process that shares the memory and is no thread would run while code is written: it is refused, and harms nobody when it is
/// made while probes are armed.
#[test]
fn w5_a_process_in_the_same_memory_is_not_run_over() {
    let source = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
static char stack[1 << 16];
static volatile int stop;
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
static int sibling(void *unused) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (long i = 0; !stop; i++) if (subject(i) != i * 3 + 7) _exit(1);
    _exit(0);
}
static int child;
static void begin(void) { stop = 0; child = clone(sibling, stack + sizeof stack, CLONE_VM | SIGCHLD, 0); }
static int end(void) { int status; stop = 1; waitpid(child, &status, 0); return status; }
int main(void) {
    char line[64];
    begin();
    puts("ready"); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'e') printf("%d\n", end());
        if (line[0] == 'b') { begin(); puts("begun"); }
        fflush(stdout);
    }
    return child ? end() : 0;
}
"#;
    let program = Program::build("sibling", source, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let count = ["count", "-p", &pid, "sibling:subject", "-d", "0.01"];
    for _ in 0..3 {
        run(&count).assert_refused(1, &["shares its memory", "none of its threads"]);
    }
    before.assert_restored(target.pid());
    target.tell("end");
    assert_eq!(target.line(), "0");
    assert_eq!(run(&count).code, Some(0));
    before.assert_restored(target.pid());
    // Made while probes are armed: they stay until it has ended.
    let tool = Tool::armed(&["count", "-p", &pid, "sibling:subject"]);
    target.tell("begin");
    assert_eq!(target.line(), "begun");
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("shares its memory"), "{ran:?}");
    target.tell("end");
    assert_eq!(target.line(), "0");
    detach(target.pid());
    before.assert_restored(target.pid());
}

/// Children made by vfork leave the memory by themselves: whoever makes them all the time can be probed.
#[test]
fn w5_children_that_are_about_to_run_a_program_are_waited_for() {
    let source = r#"
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <sys/wait.h>
extern char **environ;
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
static void *spawn(void *unused) {
    char *arguments[] = { "true", 0 };
    for (;;) {
        pid_t child;
        subject(1);
        if (posix_spawn(&child, "/bin/true", 0, 0, arguments, environ) == 0) waitpid(child, 0, 0);
    }
}
int main(void) {
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, spawn, 0);
    puts("ready"); fflush(stdout);
    getchar();
    exit(0);
}
"#;
    let program = Program::build("spawner", source, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    for _ in 0..10 {
        let ran = run(&["count", "-p", &pid, "spawner:subject", "-d", "0.05", "-f", "json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    before.assert_restored(target.pid());
    target.tell("");
    assert!(target.wait().success());
}
