//! The process that calls triggers, as often and on as many threads as it is told.
//!
//! It speaks lines over standard input and output. First it says where its triggers are, one address each; then it
//! answers every `THREADS WORK TIMES` with the nanoseconds of processor time that all threads used, and the
//! nanoseconds that passed. It ends at an empty line, and with its input, so it never outlives the benchmark.

use super::scripts::called;
use super::stops::stops;
use super::triggers::{TRIGGERS, calls, increments, syscalls};
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What is done over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Atomic increments: `usermode-count`.
    Increments,
    /// System calls: `syscall-count`.
    Syscalls,
    /// Stops of a process that is traced: `ptrace-count`.
    Stops,
    /// Calls of the function that scripts probe.
    Called,
    /// Calls of the trigger with this index.
    Calls(usize),
}

/// What is measured beside the triggers, and what it is called.
pub const BASELINES: [(Work, &str); 3] =
    [(Work::Increments, "usermode-count"), (Work::Syscalls, "syscall-count"), (Work::Stops, "ptrace-count")];

impl Work {
    /// As a word of the protocol.
    pub fn number(self) -> i64 {
        match self {
            Work::Called => -4,
            Work::Stops => -3,
            Work::Increments => -2,
            Work::Syscalls => -1,
            Work::Calls(index) => index as i64,
        }
    }

    fn from_number(number: i64) -> Self {
        match number {
            -4 => Work::Called,
            -3 => Work::Stops,
            -2 => Work::Increments,
            -1 => Work::Syscalls,
            index => Work::Calls(index as usize),
        }
    }

    fn run(self, times: u64) {
        match self {
            Work::Increments => increments(times),
            Work::Syscalls => syscalls(times),
            // Timed by itself.
            Work::Stops => {}
            Work::Called => called::calls(times),
            Work::Calls(index) => {
                if let Some(trigger) = TRIGGERS.get(index) {
                    calls(trigger, times);
                }
            }
        }
    }
}

/// Serves until standard input ends.
///
/// # Errors
/// Those of standard input and output.
pub fn serve() -> io::Result<()> {
    forget_faults();
    let mut output = io::stdout().lock();
    let addresses: Vec<String> = TRIGGERS.iter().map(|t| (t.function as usize).to_string()).collect();
    writeln!(output, "{}", addresses.join(" "))?;
    output.flush()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let words: Vec<i64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [threads, work, times] = words[..] else {
            return Err(io::Error::other("not THREADS WORK TIMES"));
        };
        let [cpu, passed] = measure(threads as usize, Work::from_number(work), times as u64)?;
        writeln!(output, "{cpu} {passed}")?;
        output.flush()?;
    }
    Ok(())
}

/// Gives up the handlers by which Rust's runtime reports stack overflows: where a program catches faults, sites whose
/// instructions may fault are refused, and few programs that people probe do.
fn forget_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action is no function of ours, and no other thread is there yet.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Processor time of all threads together and time that passed, in nanoseconds.
fn measure(threads: usize, work: Work, times: u64) -> io::Result<[u64; 2]> {
    let one = |work: Work| {
        let start = cpu_time();
        work.run(times);
        cpu_time() - start
    };
    if work == Work::Stops {
        // The tracer and the process take turns, so what passes is what both use.
        return stops(times).map(|passed| [passed; 2]);
    }
    if threads <= 1 {
        let start = Instant::now();
        let cpu = one(work);
        return Ok([cpu, start.elapsed().as_nanos() as u64]);
    }
    // Counted down rather than waited for at a barrier: a thread that cannot be started must not leave the others waiting.
    let missing = AtomicUsize::new(threads);
    let measured = std::thread::scope(|scope| {
        let body = || {
            // The first hit of a thread claims its memory.
            work.run(1);
            missing.fetch_sub(1, Ordering::AcqRel);
            while missing.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            let start = Instant::now();
            (one(work), start, Instant::now())
        };
        let start = |_| {
            let started = std::thread::Builder::new().spawn_scoped(scope, body);
            started.inspect_err(|_| {
                missing.fetch_sub(1, Ordering::AcqRel);
            })
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        let joined = running.into_iter().map(|thread| {
            thread?.join().map_err(|_| io::Error::other("a thread of the benchmark's child panicked"))
        });
        joined.collect::<io::Result<Vec<_>>>()
    })?;
    let cpu = measured.iter().map(|(cpu, ..)| cpu).sum();
    let first = measured.iter().map(|(_, start, _)| *start).min();
    let last = measured.iter().map(|(.., end)| *end).max();
    let passed = first.zip(last).map_or(0, |(first, last)| last.duration_since(first).as_nanos() as u64);
    Ok([cpu, passed])
}

/// This thread's processor time in nanoseconds, in the program and in the kernel.
fn cpu_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours to be filled in, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
