//! Programs of C and C++ that are built with the library and run.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trapless_testing::{inapplicable, skip};

/// Nothing here takes so long.
const LIMIT: Duration = Duration::from_secs(120);

/// How a program gets the library.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "each test has its own use for it")]
pub enum Linked {
    /// It is another file.
    Shared,
    /// It is part of the program.
    Static,
    /// By nobody: the program knows nothing of it.
    Not,
}

/// A compiler of the machine, and what it has made.
pub struct Bench {
    compiler: &'static str,
    dir: TempDir,
}

impl Bench {
    /// `None`: what is compiled here cannot be run with the library, which is said.
    pub fn new(compiler: &'static str) -> Option<Self> {
        let machine = match Command::new(compiler).arg("-dumpmachine").output() {
            Ok(output) => String::from_utf8(output.stdout).unwrap(),
            Err(error) => {
                skip!("{compiler}: {error}");
                return None;
            }
        };
        if !machine.starts_with(std::env::consts::ARCH) {
            inapplicable!(
                "{compiler} compiles for {}, and not for {}",
                machine.trim(),
                std::env::consts::ARCH
            );
            return None;
        }
        if !library("so").exists() {
            inapplicable!("the library is no file of its own on this target");
            return None;
        }
        Some(Self { compiler, dir: tempfile::tempdir().unwrap() })
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles a file of `tests/programs`, or one at an absolute path.
    #[track_caller]
    pub fn build(&self, source: impl AsRef<Path>, linked: Linked, flags: &[&str]) -> PathBuf {
        let source = package("tests/programs").join(source);
        let made = self.dir().join(format!("{}-{:?}", source.file_stem().unwrap().display(), linked));
        let mut command = Command::new(self.compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-g"]).args(flags).arg("-o").arg(&made).arg(&source);
        command.arg("-I").arg(package("include")).arg("-I").arg(package("tests/programs"));
        let libraries = library("so").parent().unwrap().to_owned();
        match linked {
            Linked::Shared => {
                let path = format!("-Wl,-rpath,{}", libraries.display());
                command.arg("-L").arg(&libraries).args(["-ltrapless_c", &path]);
            }
            Linked::Static => _ = command.arg(library("a")).args(["-lm", "-ldl"]),
            Linked::Not => {}
        }
        command.arg("-pthread");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
        made
    }
}

/// A file of this package.
pub fn package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library that cargo has made together with this test, wherever that is: of the same profile, for the same target, beside it.
pub fn library(extension: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(format!("libtrapless_c.{extension}"))
}

/// A program that is killed when this is dropped, with all that it has started.
pub struct Running(pub Child);

impl Running {
    /// In a group of its own; it dies with this test.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        // SAFETY: the call takes integers.
        let dies_with_us = || match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: it makes a system call, and nothing else.
        unsafe { command.pre_exec(dies_with_us) };
        Self(command.process_group(0).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it runs for more than {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Once it was waited for, its number may be another's.
        if let Ok(None) = self.0.try_wait() {
            // SAFETY: the call takes integers.
            unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
            let _ = self.0.wait();
        }
    }
}

/// What a program has printed, and how it ended.
#[track_caller]
#[allow(dead_code, reason = "each test has its own use for it")]
pub fn run(command: &mut Command) -> (ExitStatus, String) {
    let printed = tempfile::NamedTempFile::new().unwrap();
    let out = || Stdio::from(printed.reopen_to_append());
    let status = Running::start(command.stdin(Stdio::null()).stdout(out()).stderr(out())).wait();
    (status, fs::read_to_string(printed.path()).unwrap())
}

trait Append {
    fn reopen_to_append(&self) -> fs::File;
}

impl Append for tempfile::NamedTempFile {
    fn reopen_to_append(&self) -> fs::File {
        fs::OpenOptions::new().append(true).open(self.path()).unwrap()
    }
}

/// What a program has printed that ends with 0.
#[track_caller]
#[allow(dead_code, reason = "each test has its own use for it")]
pub fn succeeds(command: &mut Command) -> String {
    let (status, printed) = run(command);
    assert!(status.success(), "{command:?}: {status}\n{printed}");
    printed
}
