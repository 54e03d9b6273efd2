//! A child as the benchmark sees it: told what to do over a pipe, ended when it is dropped.
//!
//! A child of as many bits is this program ([`super::child`]), a 32-bit one beside it is made for it ([`super::narrow`]).

use super::child::Work;
use super::narrow;
use super::triggers::TRIGGERS;
use super::variant::Time;
use crate::OWN_BITS;
use crate::error::Error;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use trapless_process::Process;
use trapless_session::files::Files;
use trapless_session::target::{self, Image};

/// The hidden verb that makes this program a child of the benchmark.
pub const CHILD_VERB: &str = "__bench-child";

/// What some work took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Processor time of one call on one thread, in nanoseconds.
    pub cpu_ns: f64,
    /// Time that passed for one call on one thread, in nanoseconds.
    pub elapsed_ns: f64,
    /// Time that passed, for all calls of all threads together, in nanoseconds.
    pub passed_ns: f64,
    /// Calls of all threads.
    pub calls: f64,
}

impl Sample {
    /// One call on one thread, in nanoseconds.
    pub fn call_ns(&self, time: Time) -> f64 {
        match time {
            Time::Processor => self.cpu_ns,
            Time::Elapsed => self.elapsed_ns,
        }
    }

    /// Calls of all threads in a second, in millions.
    pub fn millions(&self) -> f64 {
        self.calls * 1e3 / self.passed_ns.max(1.0)
    }
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
    /// 64 or 32.
    pub bits: u32,
}

impl Target {
    /// Starts a child and waits until it is ready. `bits`: 64 or 32.
    ///
    /// # Errors
    /// It cannot be started; this machine runs no programs of that kind.
    pub fn start(bits: u32) -> Result<Self, Error> {
        if bits > OWN_BITS {
            return Err(Error::Wider { bits });
        }
        let file;
        let mut command = if bits != OWN_BITS {
            file = narrow::program().map_err(Error::other)?;
            // Closed by execve, but not before it has found the file.
            Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        } else {
            let mut command = Command::new("/proc/self/exe");
            command.arg(CHILD_VERB);
            command
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOEXEC) => Error::NoSuchPrograms { bits },
                _ => Error::Start { bits, source: error },
            }
        })?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let started = (|| {
            let (input, output) = pipes.ok_or_else(|| silent(ErrorKind::BrokenPipe.into()))?;
            let mut output = BufReader::new(output);
            // It has said nothing before its program runs, which has memory of its own.
            output.fill_buf().map_err(silent)?;
            let process = target::open(child.id() as i32)?;
            Ok((input, output, process))
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
        let mut target = Self { child, input: Some(input), output, process, triggers: Vec::new(), bits };
        target.triggers = if bits != OWN_BITS {
            target.answer::<4>()?;
            narrow::functions().1.iter().skip(1).map(narrow::address).collect()
        } else {
            target.line()?
        };
        match target.triggers.len() == TRIGGERS.len() {
            true => Ok(target),
            false => Err(silent(ErrorKind::InvalidData.into())),
        }
    }

    /// Has it do some work on each of `threads` threads, `times` times on each. One of other bits than ours has one thread and makes calls only.
    ///
    /// # Errors
    /// It has ended.
    pub fn work(&mut self, threads: u32, work: Work, times: u64) -> Result<Sample, Error> {
        let [cpu, passed] = match (self.bits == OWN_BITS, work) {
            (false, Work::Calls(trigger)) => self.calls(trigger, times)?,
            _ => {
                self.ask(format!("{threads} {} {times}\n", work.number()).as_bytes())?;
                let answer = self.line()?;
                answer.try_into().map_err(|_| silent(ErrorKind::InvalidData.into()))?
            }
        };
        let calls = times as f64 * f64::from(threads);
        let (cpu, passed) = (cpu as f64, passed as f64);
        Ok(Sample { cpu_ns: cpu / calls, elapsed_ns: passed / times as f64, passed_ns: passed, calls })
    }

    /// Processor time and time that passed, in nanoseconds, of a child of other bits than ours.
    fn calls(&mut self, trigger: usize, times: u64) -> Result<[u64; 2], Error> {
        let words = [self.triggers[trigger] as u32, times.clamp(1, u64::from(u32::MAX)) as u32];
        self.ask(words.map(u32::to_le_bytes).as_flattened())?;
        let answer = self.answer::<32>()?;
        let word =
            |index: usize| u64::from(u32::from_le_bytes(std::array::from_fn(|n| answer[4 * index + n])));
        let [passed, cpu, passed_after, cpu_after] =
            [0, 2, 4, 6].map(|index| word(index) * 1_000_000_000 + word(index + 1));
        Ok([cpu_after.saturating_sub(cpu), passed_after.saturating_sub(passed)])
    }

    /// How often its first thread has waited: once for every trap that a tracer serves, and once for a request.
    ///
    /// # Errors
    /// It has ended.
    pub fn waits(&self) -> Result<u64, Error> {
        let path = format!("/proc/{}/status", self.process.pid());
        let status = std::fs::read_to_string(path).map_err(silent)?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|line| line.trim().parse().ok()).ok_or_else(|| silent(ErrorKind::InvalidData.into()))
    }

    /// The files it runs.
    ///
    /// # Errors
    /// It has ended.
    pub fn images(&self) -> Result<Vec<Image>, Error> {
        Ok(target::images(&self.process, &Files::default())?)
    }

    fn ask(&mut self, request: &[u8]) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or_else(|| silent(ErrorKind::BrokenPipe.into()))?;
        input.write_all(request).map_err(silent)
    }

    /// An answer of a child of other bits than ours.
    fn answer<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Error> {
        let mut bytes = [0; LENGTH];
        self.output.read_exact(&mut bytes).map_err(silent)?;
        Ok(bytes)
    }

    /// An answer of a child that runs our code.
    fn line(&mut self) -> Result<Vec<u64>, Error> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(silent)?;
        let words: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        words.filter(|words| !words.is_empty()).ok_or_else(|| silent(ErrorKind::UnexpectedEof.into()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It ends when it is asked for nothing. Closing its input is not enough: a keeper that was forked since holds the other end, too.
        let request: &[u8] = if self.bits != OWN_BITS { &[0; 8] } else { b"\n" };
        let _ = self.ask(request);
        self.input = None;
        let _ = self.child.wait();
    }
}

fn silent(error: std::io::Error) -> Error {
    Error::Silent(error)
}
