//! L1, P9 with `--follow`: however a run ends, everybody goes on as if it had not been.

use crate::support::family::{
    FAMILY, STORM, children, counted, descendants, follow, is_left_alone, said, total,
};
use crate::support::text::Text;
use crate::support::tool::{Tool, finish, moments, trapless};
use crate::support::{self, Program, eventually};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a storm is watched at most before its run is ended.
const WHILE: Duration = Duration::from_millis(600);

fn send(pid: i32, signal: i32) {
    // SAFETY: kill takes two integers. The process is one that a test has started and that nobody reaps before the test has ended it.
    unsafe { libc::kill(pid, signal) };
}

/// A storm that is followed. It is ended with this, however the test ends.
struct Storm {
    pid: i32,
    output: std::path::PathBuf,
    _program: Program,
}

impl Storm {
    /// Starts it under the tool, in a process group of their own.
    fn start(workers: &str, flags: &[&str]) -> (Storm, Tool) {
        let program = Program::build("storm", STORM, &[]);
        let output = program.dir().join("output");
        let path = program.path().to_str().unwrap();
        let command =
            [&["count", "-F", "-f", "json", "storm:subject"], flags, &["--", path, workers]].concat();
        let mut command = trapless(&command);
        command.process_group(0);
        // Its own output is to be read after the tool was killed, too.
        let mut tool = Tool::armed_to(&mut command, &output);
        let pid = tool.attached();
        (Storm { pid, output, _program: program }, tool)
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    /// Whether it was let run. A run may end just before.
    fn ran(&self) -> bool {
        let is_gone = || !std::path::Path::new(&format!("/proc/{}", self.pid)).exists();
        eventually("it runs, or never does", || self.output().contains("ready") || is_gone());
        self.output().contains("ready")
    }

    /// Fails unless all of it goes on without a trace of the tool.
    fn assert_left_alone(&self) {
        for pid in descendants(self.pid).into_iter().chain([self.pid]) {
            eventually("a process is left alone", || is_left_alone(pid));
        }
        for pid in children(self.pid).into_iter().chain([self.pid]) {
            Text::of(pid).assert_is_of_files(pid);
        }
    }

    /// Fails unless it creates some more processes, and all have become what they should.
    fn assert_ends_well(&self) {
        send(self.pid, libc::SIGUSR1);
        eventually("the storm ends", || self.output().contains("done "));
        assert!(self.output().contains("done 0\n"), "{}", self.output());
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        for pid in descendants(self.pid).into_iter().chain([self.pid]) {
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            if exe.ends_with("storm") {
                send(pid, libc::SIGKILL);
            }
        }
    }
}

#[test]
fn l1_a_storm_that_is_interrupted_at_any_moment_goes_on_and_is_reported() {
    for moment in moments(7, WHILE) {
        // An emulated machine is kept so busy by as many that looking at them all takes longer than a tool is let run.
        for workers in [4, trapless_testing::asked("TRAPLESS_WORKERS", 64)] {
            let (storm, tool) = Storm::start(&workers.to_string(), &[]);
            std::thread::sleep(moment);
            tool.signal(libc::SIGINT);
            let told = format!("{workers} workers, interrupted after {moment:?}");
            if !storm.ran() {
                assert_eq!(tool.ran().code, Some(130), "{told}: {}", storm.output());
                continue;
            }
            storm.assert_left_alone();
            storm.assert_ends_well();
            let ran = tool.ran();
            assert_eq!(ran.code, Some(0), "{told}: {ran:?} {}", storm.output());
            let lines = ran.json();
            assert!(total(&lines)["processes"].as_u64().unwrap() > 0, "{told}: {ran:?}");
        }
    }
}

#[test]
fn p9_a_storm_whose_tool_is_killed_at_any_moment_goes_on() {
    for moment in moments(12, WHILE) {
        let (storm, tool) = Storm::start("8", &[]);
        std::thread::sleep(moment);
        tool.kill();
        if !storm.ran() {
            continue;
        }
        storm.assert_left_alone();
        storm.assert_ends_well();
    }
}

/// What a terminal sends goes to the whole group. The storm ignores it; the tool ends of it, and leaves nobody stopped.
#[test]
fn l1_a_terminals_signals_end_the_run_and_nobody_else() {
    for (signal, code) in [(libc::SIGINT, Some(0)), (libc::SIGTERM, None), (libc::SIGQUIT, None)] {
        let (storm, tool) = Storm::start("8", &[]);
        std::thread::sleep(WHILE / 4);
        if signal == libc::SIGTERM {
            tool.signal(signal);
        } else {
            send(-tool.pid(), signal);
        }
        storm.assert_left_alone();
        storm.assert_ends_well();
        let ran = tool.ran();
        if let Some(code) = code {
            assert_eq!(ran.code, Some(code), "{ran:?}");
            total(&ran.json());
        }
    }
}

#[test]
fn l1_a_run_that_is_over_lets_the_command_go_on() {
    let (storm, tool) = Storm::start("8", &["-d", "0.3"]);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    total(&ran.json());
    storm.assert_left_alone();
    storm.assert_ends_well();
}

/// Leaves few descriptors to a command, and to what it runs.
fn with_descriptors(command: &mut Command, number: u64) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: number as libc::rlim_t, rlim_max: number as libc::rlim_t };
    // SAFETY: setrlimit is a plain system call, safe between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

#[test]
fn l1_descriptors_are_given_back_and_for_want_of_them_nobody_stands() {
    let program = Program::build("family", FAMILY, &[]);
    let path = program.path().to_str().unwrap();
    let results = program.dir().join("results");
    let run = |way: &str, number: u64| {
        let arguments =
            ["count", "-F", "family:subject", "-f", "json", "-o", results.to_str().unwrap(), "--", path, way];
        let ran = finish(with_descriptors(&mut trapless(&arguments), number));
        let text = std::fs::read_to_string(&results).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (ran, lines)
    };
    // Ten live at a time, of two hundred.
    let (ran, lines) = run("many", 80);
    assert_eq!(ran.code, Some(17), "{ran:?}");
    assert_eq!(counted(&lines), said(&ran.out), "{ran:?}");
    // Not enough for all of them. Those that are counted are counted right; the others are named.
    let (ran, lines) = run("together", 26);
    assert_eq!(ran.code, Some(17), "{ran:?}");
    let (counted, said) = (counted(&lines), said(&ran.out));
    assert!(counted.iter().all(|(pid, calls)| said.get(pid) == Some(calls)), "{ran:?}");
    let left: Vec<i64> = total(&lines)["not_followed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["pid"].as_i64().unwrap())
        .collect();
    assert!(!left.is_empty(), "{ran:?}");
    assert!(said.keys().all(|pid| counted.contains_key(pid) || left.contains(pid)), "{ran:?}");
}

/// A child that hides from tracers has a copy of the probes. It is found, and loses them.
#[test]
fn l1_copies_that_nobody_is_told_of_are_cleaned() {
    let program = Program::build("family", FAMILY, &[]);
    let mut target = program.start(&["wait"]);
    let tool = Tool::armed(&["count", "-F", "-p", &target.pid().to_string(), "family:subject"]);
    target.tell("hidden");
    assert_eq!(target.line(), format!("calls {} 200", target.pid()));
    let hidden = children(target.pid());
    assert_eq!(hidden.len(), 1);
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    let summary = ran.summary();
    assert_eq!(summary.hits("subject", "entry"), 200);
    assert_eq!(summary.0["children"][0]["hits"], 18, "{ran:?}");
    assert_eq!(total(&ran.json())["notes"][0]["code"], "copies", "{ran:?}");
    assert!(is_left_alone(hidden[0]) && is_left_alone(target.pid()));
    Text::of(hidden[0]).assert_is_of_files(hidden[0]);
    send(hidden[0], libc::SIGKILL);
}

#[test]
fn l1_job_control_works_on_what_is_followed() {
    let program = Program::build("family", FAMILY, &[]);
    let mut target = program.start(&["wait"]);
    let tool = Tool::armed(&["count", "-F", "-p", &target.pid().to_string(), "family:subject"]);
    for _ in 0..5 {
        target.signal(libc::SIGSTOP);
        target.wait_for_state("Tt");
        target.tell("fork");
        std::thread::sleep(Duration::from_millis(20));
        assert!("Tt".contains(target.state()), "it stands");
        target.thaw();
        while target.line() != "done" {}
    }
    // It stands when the run ends, and goes on standing.
    target.signal(libc::SIGSTOP);
    target.wait_for_state("Tt");
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(counted(&ran.json())[&i64::from(target.pid())], 5 * 200, "{ran:?}");
    target.wait_for_state("T");
    target.thaw();
    target.tell("fork");
    while target.line() != "done" {}
}

/// The kernel gives a set-uid program no rights under a tracer that has none itself. That is said.
#[test]
fn l1_a_set_uid_program_that_lost_its_rights_is_named() {
    if !support::is_root() {
        trapless_testing::skip!("only root can make a set-uid program of root's");
        return;
    }
    let program = Program::build("family", FAMILY, &[]);
    let dir = program.dir();
    let privileged = dir.join("privileged");
    trapless_testing::copy_program("/usr/bin/id", &privileged);
    std::fs::set_permissions(&privileged, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let tool = dir.join("trapless");
    trapless_testing::copy_program(env!("CARGO_BIN_EXE_trapless"), &tool);
    let script = format!("{} -u; true", privileged.display());
    const NOBODY: u32 = 65534;
    let alone = finish(Command::new("sh").args(["-c", &script]).uid(NOBODY).gid(NOBODY));
    if alone.out != "0\n" && Command::new(&privileged).uid(NOBODY).status().is_err() {
        trapless_testing::skip!("set-uid programs do not work here");
        return;
    }
    let mut command = Command::new(&tool);
    command.args(["count", "-F", "libc.so.6:exit", "--", "sh", "-c", &script]);
    let ran = finish(command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("set-uid") && ran.err.contains("because it was traced"), "{ran:?}");
}

/// A tracer is there already: its tracee is refused, as without following.
#[test]
fn what_somebody_else_follows_is_refused() {
    let program = Program::build("family", FAMILY, &[]);
    let target = program.start(&["wait"]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "-F", "-p", &pid, "family:subject"]);
    let ran = support::tool::run(&["count", "-F", "-p", &pid, "family:subject"]);
    ran.assert_refused(4, &["already traced"]);
    tool.interrupt();
    // Alone again.
    let followed = follow(&program, &["fork"], &["count", "-F", "family:subject"]);
    followed.assert_exact("fork");
}
