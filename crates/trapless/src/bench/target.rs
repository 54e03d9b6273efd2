//! A child as the benchmark sees it: told what to do over a pipe, ended when it is dropped.

use super::child::Work;
use super::triggers::TRIGGERS;
use crate::error::Error;
use crate::target::{self, Image};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use trapless_process::Process;

/// The hidden verb that makes this program a child of the benchmark.
pub const CHILD_VERB: &str = "__bench-child";

/// What some work took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Processor time of one call on one thread, in nanoseconds.
    pub cpu_ns: f64,
    /// Calls of all threads in a second, in millions.
    pub millions: f64,
}

/// A running child.
pub struct Target {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// It, as something to attach to.
    pub process: Process,
    /// Addresses of its triggers.
    pub triggers: Vec<u64>,
}

impl Target {
    /// Starts a child and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start() -> Result<Self, Error> {
        let mut child = Command::new("/proc/self/exe")
            .arg(CHILD_VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::other)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let started = (|| {
            let (input, output) = pipes.ok_or_else(silent)?;
            let process = target::open(child.id() as i32)?;
            Ok((input, BufReader::new(output), process))
        })();
        let (input, output, process) = match started {
            Ok(started) => started,
            Err(error) => {
                // It is ours and not yet waited for, so the id is its own.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        let mut target = Self { child, input: Some(input), output, process, triggers: Vec::new() };
        target.triggers = target.answer()?;
        match target.triggers.len() == TRIGGERS.len() {
            true => Ok(target),
            false => Err(silent()),
        }
    }

    /// Has it do some work on each of `threads` threads, `times` times on each.
    ///
    /// # Errors
    /// It has ended.
    pub fn work(&mut self, threads: u32, work: Work, times: u64) -> Result<Sample, Error> {
        let request = format!("{threads} {} {times}\n", work.number());
        let input = self.input.as_mut().ok_or_else(silent)?;
        input.write_all(request.as_bytes()).map_err(Error::other)?;
        let answer: Vec<u64> = self.answer()?;
        let [cpu, passed] = answer[..] else { return Err(silent()) };
        let all = times as f64 * f64::from(threads);
        Ok(Sample { cpu_ns: cpu as f64 / all, millions: all * 1e3 / passed.max(1) as f64 })
    }

    /// The files it runs.
    ///
    /// # Errors
    /// It has ended.
    pub fn images(&self) -> Result<Vec<Image>, Error> {
        target::images(&self.process)
    }

    fn answer(&mut self) -> Result<Vec<u64>, Error> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(Error::other)?;
        let words: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        words.filter(|words| !words.is_empty()).ok_or_else(silent)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It ends with its input.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn silent() -> Error {
    Error::Usage("the benchmark's child has ended before it answered".into())
}
