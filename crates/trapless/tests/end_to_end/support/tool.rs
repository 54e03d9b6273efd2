//! The tool, run as a shell would run it.

use super::assembly::X86;
use super::{PATIENCE, end_with_us, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What has a probe that traps follow calls, and the kinds of hits that it then counts: where return addresses are in a register, such a
/// probe follows none.
pub const RETURN_BY_TRAP: &[&str] = if X86 { &["--return"] } else { &[] };
pub const KINDS_BY_TRAP: &[&str] = if X86 { &["entry", "return"] } else { &["entry"] };

/// The tool's command line, not yet started.
pub fn trapless(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
    command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// What a finished run left.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` for a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Fails unless the run ended with `code` and one line on standard error that holds all of `words`.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "one line: {self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?}: {self:?}");
        }
    }

    /// Every line of standard output, as JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        self.out.lines().map(parse).collect()
    }

    /// The summary of a run that went well.
    #[track_caller]
    pub fn summary(&self) -> Summary {
        let summary = self.json().into_iter().find(|line| line["type"] == "summary");
        Summary(summary.unwrap_or_else(|| panic!("no summary: {self:?}")))
    }
}

/// Runs the tool to its end.
pub fn run(arguments: &[&str]) -> Ran {
    finish(&mut trapless(arguments))
}

/// Runs any command to its end.
pub fn finish(command: &mut Command) -> Ran {
    end_of(end_with_us(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for the end of a command that was started with pipes.
pub fn end_of(child: Child) -> Ran {
    let watchdog = Watchdog::new(child.id());
    let output = child.wait_with_output().unwrap();
    drop(watchdog);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: output.status.code(), out: text(output.stdout), err: without_progress(&text(output.stderr)) }
}

/// What was written but the line that a slow machine gets.
fn without_progress(err: &str) -> String {
    err.replace("trapless: reading symbols and code …\n", "")
}

/// Takes out of `pid` whatever is armed.
#[track_caller]
pub fn detach(pid: i32) -> Ran {
    let ran = run(&["detach", "-p", &pid.to_string(), "-f", "json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

/// The last line of a run.
#[derive(Debug)]
pub struct Summary(pub Value);

impl Summary {
    /// Hits of a function's probes of one kind, `entry` or `return`.
    #[track_caller]
    pub fn hits(&self, function: &str, kind: &str) -> u64 {
        let probes = self.0["probes"].as_array().unwrap();
        let row = probes.iter().find(|p| p["function"] == function && p["kind"] == kind);
        row.unwrap_or_else(|| panic!("no {kind} of {function}: {self:?}"))["hits"].as_u64().unwrap()
    }

    /// How many calls of a function were not followed.
    #[track_caller]
    pub fn lost(&self, function: &str) -> u64 {
        let probes = self.0["probes"].as_array().unwrap();
        let row = probes.iter().find(|p| p["function"] == function && p["kind"] == "return");
        row.unwrap_or_else(|| panic!("no return of {function}: {self:?}"))["lost"].as_u64().unwrap()
    }

    /// Why a function was skipped.
    pub fn skipped(&self, function: &str) -> Option<String> {
        let skipped = self.0["skipped"].as_array().unwrap();
        let row = skipped.iter().find(|s| s["function"] == function)?;
        Some(row["reason"].as_str().unwrap().to_owned())
    }
}

/// A run whose probes are armed.
pub struct Tool {
    child: Child,
    output: BufReader<ChildStdout>,
    _watchdog: Watchdog,
}

impl Tool {
    /// Starts a run with `-f json` and waits until its probes are armed.
    #[track_caller]
    pub fn armed(arguments: &[&str]) -> Tool {
        let mut arguments = arguments.to_vec();
        let split = arguments.iter().position(|a| *a == "--").unwrap_or(arguments.len());
        arguments.splice(split..split, ["-f", "json"]);
        Tool::armed_with(&mut trapless(&arguments))
    }

    /// As [`Tool::armed`], of a command that already says `-f json`.
    #[track_caller]
    pub fn armed_with(command: &mut Command) -> Tool {
        let mut child = end_with_us(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let watchdog = Watchdog::new(child.id());
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut tool = Tool { child, output, _watchdog: watchdog };
        let line = tool.line();
        if !line.contains("\"attached\"") {
            let mut error = String::new();
            let _ = tool.child.stderr.take().unwrap().read_to_string(&mut error);
            panic!("not armed: {line:?} {error}");
        }
        tool
    }

    /// As [`Tool::armed_with`], with standard error, which a launched command then has for its output, in a file.
    #[track_caller]
    pub fn armed_to(command: &mut Command, errors: &std::path::Path) -> Tool {
        let errors = std::fs::File::create(errors).unwrap();
        let mut child = end_with_us(command).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let watchdog = Watchdog::new(child.id());
        let output = BufReader::new(child.stdout.take().unwrap());
        Tool { child, output, _watchdog: watchdog }
    }

    /// Waits until its probes are armed, and tells in which process.
    #[track_caller]
    pub fn attached(&mut self) -> i32 {
        let line: Value = serde_json::from_str(&self.line()).unwrap_or_default();
        assert_eq!(line["type"], "attached", "{line}");
        line["pid"].as_i64().unwrap() as i32
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its next line; empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends the run as Ctrl-C would, and gives its summary.
    #[track_caller]
    pub fn interrupt(self) -> Summary {
        self.signal(libc::SIGINT);
        self.ended()
    }

    /// Waits for the run's own end, and gives its summary.
    #[track_caller]
    pub fn ended(self) -> Summary {
        let ran = self.ran();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.summary()
    }

    /// Waits for the run's own end.
    pub fn ran(mut self) -> Ran {
        let (mut out, mut err) = (String::new(), String::new());
        self.output.read_to_string(&mut out).unwrap();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut err).unwrap();
        }
        // A test that fails later tells it with its own output.
        eprint!("{err}");
        Ran { code: self.child.wait().unwrap().code(), out, err: without_progress(&err) }
    }

    /// Reads what it writes, until it ends, and tells its last line, and the most memory that it had, in KiB: with the keeper that does a
    /// run which follows, as far as that is asked for when there is something to read.
    pub fn peak_memory_until_its_end(mut self) -> (String, u64) {
        let (mut last, mut peak) = (Vec::new(), 0);
        let mut piece = vec![0; 1 << 20];
        while let Ok(read @ 1..) = self.output.read(&mut piece) {
            let own = std::iter::once(self.pid());
            peak = peak.max(own.chain(super::family::children(self.pid())).map(peak_memory).sum());
            last.extend(&piece[..read]);
            let lines = last.strip_suffix(b"\n").unwrap_or(&last);
            if let Some(end) = lines.iter().rposition(|byte| *byte == b'\n') {
                last.drain(..=end);
            }
        }
        let code = self.child.wait().unwrap().code();
        assert_eq!(code, Some(0), "the tool ended well");
        (String::from_utf8(last).unwrap(), peak)
    }

    /// Kills it as nothing can prevent.
    pub fn kill(mut self) -> ExitStatus {
        let _ = self.child.kill();
        self.child.wait().unwrap()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The most memory that a process ever had, in KiB.
fn peak_memory(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Waits until no tracer holds any thread of `pid`: a killed tool's keeper has ended its work.
pub fn wait_untraced(pid: i32) {
    let traced = || {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        threads.flatten().any(|thread| {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        })
    };
    eventually("the tracer leaves", || !traced());
}

/// Kills a process that takes too long, so that the test fails instead of hanging.
struct Watchdog {
    _done: Sender<()>,
}

impl Watchdog {
    fn new(pid: u32) -> Watchdog {
        let (done, ends) = channel();
        std::thread::spawn(move || {
            if ends.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("killed process {pid}, which hung");
                // SAFETY: kill takes two integers. The process is not reaped as long as its watchdog lives.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
        });
        Watchdog { _done: done }
    }
}

/// Runs `command`, kills it after a while, and waits for the keeper it may have left.
pub fn kill_after(command: &mut Command, time: Duration) {
    let child = end_with_us(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(time);
    // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGKILL) };
    // The keeper holds the other ends of the pipes: they are at their end when it is at its.
    child.wait_with_output().unwrap();
}

/// Moments spread evenly over `whole`, in an order that jumps about.
pub fn moments(count: u32, whole: Duration) -> impl Iterator<Item = Duration> {
    // Odd, and near the golden section of the whole: neighbours in time are far apart in order.
    (0..count).map(move |index| whole * (index * 89 % count) / count)
}

/// How long a whole run takes here.
pub fn length_of(command: &mut Command) -> Duration {
    let start = Instant::now();
    let ran = finish(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    start.elapsed()
}
