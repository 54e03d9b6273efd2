//! Programs to work on: compiled from C when the test runs, ended when it ends, however it ends.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use trapless_process::{Pid, Process};

/// A compiled program, in a directory of its own.
pub struct Program {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    /// Compiles `tests/programs/NAME.c`.
    pub fn compile(name: &str, flags: &[&str]) -> Program {
        Self::compile_with("gcc", name, flags).expect("gcc compiles the test's program")
    }

    /// Compiles with another compiler; `None`, with a word on standard error, if there is none or it cannot.
    pub fn compile_with(compiler: &str, name: &str, flags: &[&str]) -> Option<Program> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
        let path = dir.path().join(name);
        let done = Command::new(compiler)
            .args(["-O1", "-pthread", "-o"])
            .arg(&path)
            .arg(source)
            .args(flags)
            .output();
        match done {
            Ok(output) if output.status.success() => {
                use std::os::unix::fs::PermissionsExt;
                std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
                Some(Program { _dir: dir, path })
            }
            Ok(output) => {
                trapless_testing::skip!("{compiler} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                trapless_testing::skip!("{compiler}: {error}");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn start(&self, args: &[&str]) -> Target {
        self.start_with(args, |_| {})
    }

    /// Starts it and waits until it says that it is ready.
    pub fn start_with(&self, args: &[&str], configure: impl FnOnce(&mut Command)) -> Target {
        let mut command = Command::new(&self.path);
        command.args(args);
        configure(&mut command);
        Target::start(command)
    }
}

/// A running program, killed when dropped.
pub struct Target {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts what says that it is ready, and waits until it does.
    pub fn start(mut command: Command) -> Target {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // The target must not outlive a test that is killed.
        // SAFETY: prctl is a plain system call, safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let mut child = command.spawn().expect("the test's program starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut target = Target { child, output };
        assert_eq!(target.line(), "ready");
        target
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    pub fn open(&self) -> Process {
        Process::open(self.pid()).expect("our own child can be opened")
    }

    /// Its next line of output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output is text");
        line.trim_end().to_owned()
    }

    /// Sends it a byte, which ends what it waits for.
    pub fn poke(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"x").expect("it reads its input");
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        unsafe { libc::kill(self.pid().0, signal) };
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("nobody else reaps it")
    }

    /// Waits until the kernel says its leader is in one of these states.
    pub fn wait_for_state(&self, states: &str) {
        while !self.is_in_state(states) {
            std::thread::yield_now();
        }
    }

    /// Whether the kernel says its leader is in one of these states.
    pub fn is_in_state(&self, states: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        states.contains(stat.rsplit(") ").next().unwrap().chars().next().unwrap())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
