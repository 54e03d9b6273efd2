//! From a program that has just been started to one whose libraries are loaded.
//!
//! The dynamic loader calls an empty function, `_dl_debug_state`, whenever the list of libraries has changed, for debuggers to put
//! a breakpoint on (`<link.h>`, struct r_debug). The first call with `r_state == RT_CONSISTENT` comes when all libraries of
//! the program are mapped and relocated and none of their constructors has run: where glibc and musl agree. A static program, and
//! one whose loader lacks the function, is stopped at its entry point instead.

use super::Launched;
use super::error::LaunchError;
use crate::ptrace::{self, SignalInfo};
use crate::wait::{self, Event, OnExit, Stop};
use crate::{
    BREAKPOINT, BREAKPOINT_ADVANCE, Errno, MemoryError, ProcError, Process, Registers, RemoteAddr, StopError,
    StopOptions, Tid,
};
use object::{Object, ObjectSymbol};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// Where a launched program stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Its libraries are loaded and relocated; no constructor has run.
    Loaded,
    /// At its first own instruction; a static program, or one whose loader tells nothing (constructors have run then).
    Entry,
}

/// `RT_CONSISTENT` of `<link.h>`.
const CONSISTENT: u32 = 0;

/// Where to stop, and how to know that it is the right moment.
struct Goal {
    breakpoint: RemoteAddr,
    debug: Debug,
}

/// Where `struct r_debug` is, which holds the moment.
#[derive(Clone, Copy)]
enum Debug {
    /// Nowhere: the first hit is the one.
    None,
    /// Here (glibc's `_r_debug`).
    At(RemoteAddr),
    /// Where this pointer says once the loader has relocated itself (musl's `_dl_debug_addr`).
    Behind(RemoteAddr),
}

impl Debug {
    fn is_consistent(self, process: &Process) -> Result<bool, MemoryError> {
        let debug = match self {
            Debug::None => return Ok(true),
            Debug::At(address) => address,
            Debug::Behind(pointer) => RemoteAddr(process.read_word(pointer)?),
        };
        let state = debug + if process.is_32bit() { 12 } else { 24 };
        Ok(process.read_pod::<u32>(state)? == CONSISTENT)
    }
}

/// Runs the program from its exec to where its libraries are loaded. It stands there with its text as it was, its instruction
/// pointer at the breakpoint's place, and the signal state it was started with.
pub(super) fn run_until_loaded(
    launched: &mut Launched,
    program: &Path,
    deadline: Instant,
) -> Result<Place, LaunchError> {
    let process = &launched.process;
    let child = launched.child.tid();
    let goal = goal(process)?;
    let mut inherited = Inherited::of(process)?;
    let mut run = |resume, at| match run_to_trap(child, &mut inherited, deadline, resume, at) {
        Ok(()) => Ok(()),
        Err(Lost::Ended) => {
            Err(LaunchError::Died { program: program.to_owned(), status: launched.child.reap()? })
        }
        Err(Lost::Late) => {
            Err(LaunchError::Timeout { program: program.to_owned(), seconds: super::PATIENCE.as_secs() })
        }
    };
    let mut original = [0; BREAKPOINT.len()];
    process.read_exact(goal.breakpoint, &mut original)?;
    loop {
        process.write(goal.breakpoint, BREAKPOINT)?;
        run(ptrace::cont, Some(goal.breakpoint))?;
        process.write(goal.breakpoint, &original)?;
        let mut regs = Registers::read(child).map_err(|errno| StopError::Ptrace {
            tid: child,
            request: "PTRACE_GETREGSET",
            errno,
        })?;
        regs.set_ip(goal.breakpoint);
        regs.write(child).map_err(|errno| StopError::Ptrace {
            tid: child,
            request: "PTRACE_SETREGSET",
            errno,
        })?;
        if goal.debug.is_consistent(process)? {
            break;
        }
        run(ptrace::singlestep, None)?;
    }
    inherited.put_back(launched)?;
    Ok(if matches!(goal.debug, Debug::None) { Place::Entry } else { Place::Loaded })
}

/// What the program has inherited of SIGTRAP. The kernel forces the signal that a breakpoint or a step raises on the thread:
/// where it is ignored or blocked it is neither afterwards.
struct Inherited {
    ignored: bool,
    blocked: bool,
    /// Those that somebody has sent while it was meant to be blocked.
    sent: Vec<SignalInfo>,
}

impl Inherited {
    fn of(process: &Process) -> Result<Inherited, ProcError> {
        let status = process.status()?;
        let has = |signals: u64| signals & 1 << (libc::SIGTRAP - 1) != 0;
        Ok(Inherited { ignored: has(status.sig_ignored), blocked: has(status.sig_blocked), sent: Vec::new() })
    }

    /// The signal that the child goes on with after one was sent to it.
    fn deliver(&mut self, child: Tid, signal: i32) -> usize {
        match signal {
            libc::SIGTRAP if self.blocked => self.sent.extend(SignalInfo::of(child).ok()),
            libc::SIGTRAP if self.ignored => {}
            signal => return signal as usize,
        }
        0
    }

    fn put_back(self, launched: &mut Launched) -> Result<(), LaunchError> {
        if !self.ignored && !self.blocked {
            return Ok(());
        }
        let pid = launched.process.pid();
        let child = pid.leader();
        let mut stopped = launched.hold(&StopOptions::default())?;
        if self.ignored {
            stopped.remote(|remote| remote.ignore(libc::SIGTRAP))?;
        }
        if self.blocked {
            let mask = stopped.signal_mask(child)? | 1 << (libc::SIGTRAP - 1);
            ptrace::set_signal_mask(child, mask)
                .map_err(|errno| stopped.explain(child, "PTRACE_SETSIGMASK", errno))?;
        }
        self.sent.iter().for_each(|signal| signal.send_again(pid, child));
        Ok(())
    }
}

/// Why a child never came to its trap.
enum Lost {
    Ended,
    Late,
}

/// Runs the child until it traps, passing signals on: at the breakpoint `at`, or after a step.
fn run_to_trap(
    child: Tid,
    inherited: &mut Inherited,
    deadline: Instant,
    resume: fn(Tid, usize) -> Result<(), Errno>,
    at: Option<RemoteAddr>,
) -> Result<(), Lost> {
    let mut signal = 0;
    loop {
        // ESRCH means killed, which the wait tells better.
        let _ = resume(child, signal);
        signal = match wait::until(child, OnExit::Leave, deadline) {
            Some(Event::Stop(Stop::Signal(libc::SIGTRAP))) => {
                let is_raised = SignalInfo::of(child).is_ok_and(|info| info.code() > 0);
                let is_there = || {
                    let ip = Registers::read(child).map(|regs| regs.ip());
                    at.is_none_or(|at| ip == Ok(at + BREAKPOINT_ADVANCE))
                };
                if is_raised && is_there() {
                    return Ok(());
                }
                inherited.deliver(child, libc::SIGTRAP)
            }
            Some(Event::Stop(Stop::Signal(signal))) => inherited.deliver(child, signal),
            Some(Event::Stop(_)) => 0,
            Some(Event::Gone) => return Err(Lost::Ended),
            None => return Err(Lost::Late),
        };
    }
}

fn goal(process: &Process) -> Result<Goal, LaunchError> {
    let auxv = process.auxv()?;
    let entry = auxv.entry().ok_or(MemoryError::Gone)?;
    let loader = auxv.loader_base().and_then(|base| loader_goal(process, base));
    Ok(loader.unwrap_or(Goal { breakpoint: entry, debug: Debug::None }))
}

/// The goal in the dynamic loader; `None` if its file cannot be read or has no such symbols.
fn loader_goal(process: &Process, base: RemoteAddr) -> Option<Goal> {
    /// Far beyond any loader's.
    const LARGEST_LOADER: u64 = 64 << 20;
    let maps = process.maps().ok()?;
    let mut bytes = Vec::new();
    let file = process.open_mapped_file(maps.find(base)?).ok()?;
    file.take(LARGEST_LOADER).read_to_end(&mut bytes).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    // Loaders are linked at 0, so the base is also the difference.
    let find = |name: &str| {
        let symbol =
            elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name) && symbol.is_definition())?;
        base.checked_add(symbol.address())
    };
    let breakpoint = find("_dl_debug_state")?;
    let debug = find("_r_debug").map(Debug::At).or_else(|| find("_dl_debug_addr").map(Debug::Behind))?;
    maps.find(breakpoint).filter(|mapping| mapping.perms.exec)?;
    Some(Goal { breakpoint, debug })
}
