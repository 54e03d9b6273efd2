//! What a test says when it cannot run here, and what tests of several crates do alike.
//!
//! What is said goes past the harness, which keeps what a passing test prints.
//!
//! - [`skip!`]: something is missing that can be installed. With `TRAPLESS_REQUIRE=all` that fails the test, so where
//!   everything is installed nothing is left out unseen.
//! - [`inapplicable!`]: this machine, kernel or user cannot show what is tested, and nothing that is installed changes it.

use std::fmt::Arguments;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

/// Says that a test, or a part of it, is left out because something is not installed. Takes what `format!` takes.
///
/// # Panics
/// `TRAPLESS_REQUIRE` is `all`.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => { $crate::skipped(format_args!($($why)*)) };
}

/// Says that a test, or a part of it, has nothing to test on this machine or for this user. Takes what `format!` takes.
#[macro_export]
macro_rules! inapplicable {
    ($($why:tt)*) => { $crate::say("NOT HERE", format_args!($($why)*)) };
}

/// See [`skip!`].
///
/// # Panics
/// `TRAPLESS_REQUIRE` is `all`.
#[track_caller]
pub fn skipped(why: Arguments<'_>) {
    let required = std::env::var_os("TRAPLESS_REQUIRE").is_some_and(|required| required == "all");
    assert!(!required, "TRAPLESS_REQUIRE=all, and this test cannot run: {why}");
    say("SKIPPED", why);
}

/// Writes one line to standard error.
pub fn say(what: &str, why: Arguments<'_>) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // In one piece: tests run side by side. Nobody is there to hear of a closed standard error.
    let _ = std::io::stderr().write_all(format!("{what}: {test}: {why}\n").as_bytes());
}

/// How often something is done: as a variable of the environment says, or as usual. By hand more, on emulated machines less.
pub fn asked<T: FromStr>(variable: &str, usual: T) -> T {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Go's command, with a cache that all tests share: in one of its own, each build would begin with Go's whole library. Nothing that the user has
/// set for Go counts.
pub fn go() -> Command {
    let program = std::env::current_exe().expect("a test is a file");
    // target/debug/deps/test
    let target = program.ancestors().nth(3).expect("cargo has built it");
    let mut go = Command::new("go");
    go.env("GOCACHE", target.join("tmp/go-build")).env("GOPATH", target.join("tmp/go"));
    go.env("GOENV", "off").env("GO111MODULE", "off").env_remove("GOFLAGS");
    go
}

/// Copies a program that is to be run. A process of its own writes it: one that another test forks meanwhile would hold our
/// descriptor, and nobody can run a file that is open for writing.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().unwrap();
    assert!(copied.success(), "{}: {copied}", to.as_ref().display());
}

/// A process that does nothing until it is dropped, which kills it.
pub struct Idle(Child);

impl Idle {
    /// Its exec is over when this returns: a stop in the middle of one is refused.
    ///
    /// # Panics
    /// There is no `cat`.
    #[track_caller]
    pub fn start() -> Self {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Sends it a SIGKILL. It is waited for when it is dropped.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Runs the test below in a process of its own.
    fn skipping(require: &str) -> (bool, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::nothing_is_installed", "--ignored"]);
        let output = command.env("TRAPLESS_REQUIRE", require).output().unwrap();
        let out = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    #[ignore = "it is run by the test below"]
    fn nothing_is_installed() {
        skip!("no {}", "such program");
    }

    #[test]
    fn a_skipped_test_is_told_of_although_it_passes_and_fails_where_all_is_required() {
        let (passed, said) = skipping("");
        assert!(passed && said.contains("SKIPPED: tests::nothing_is_installed: no such program"), "{said}");
        let (passed, said) = skipping("all");
        assert!(!passed && said.contains("this test cannot run: no such program"), "{said}");
    }
}
