//! From a program that has just been started to one whose libraries are loaded.
//!
//! The dynamic loader calls an empty function, `_dl_debug_state`, whenever the list of libraries has changed, for debuggers to put
//! a breakpoint on (`<link.h>`, struct r_debug). The first call with `r_state == RT_CONSISTENT` comes when all libraries of
//! the program are mapped and relocated and none of their constructors has run: where glibc and musl agree. A static program, and
//! one whose loader lacks the function, is stopped at its entry point instead.

use super::error::LaunchError;
use crate::wait::{self, Event, OnExit, Stop};
use crate::{
    BREAKPOINT, BREAKPOINT_ADVANCE, MemoryError, Process, Registers, RemoteAddr, StopError, Tid, ptrace,
};
use object::{Object, ObjectSymbol};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// Where a launched program stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launched {
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

/// Runs the child from its exec to where its libraries are loaded. It stands there with its text as it was and its instruction
/// pointer at the breakpoint's place.
pub(super) fn run_until_loaded(
    process: &Process,
    child: Tid,
    program: &Path,
    deadline: Instant,
) -> Result<Launched, LaunchError> {
    let goal = goal(process)?;
    let mut original = [0; BREAKPOINT.len()];
    process.read_exact(goal.breakpoint, &mut original)?;
    loop {
        process.write(goal.breakpoint, BREAKPOINT)?;
        run_to_trap(process, child, program, deadline, ptrace::cont, goal.breakpoint)?;
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
            return Ok(if matches!(goal.debug, Debug::None) { Launched::Entry } else { Launched::Loaded });
        }
        run_to_trap(process, child, program, deadline, ptrace::singlestep, RemoteAddr(u64::MAX))?;
    }
}

/// Runs the child until it traps, passing signals on. `at` is the breakpoint, which must be what trapped, or all ones.
fn run_to_trap(
    process: &Process,
    child: Tid,
    program: &Path,
    deadline: Instant,
    resume: fn(Tid, usize) -> Result<(), crate::Errno>,
    at: RemoteAddr,
) -> Result<(), LaunchError> {
    let mut signal = 0;
    loop {
        // ESRCH means killed, which the wait tells better.
        let _ = resume(child, signal);
        signal = match wait::until(child, OnExit::Leave, deadline) {
            Some(Event::Stop(Stop::Signal(libc::SIGTRAP))) => {
                let ip = Registers::read(child).map(|regs| regs.ip());
                if at.0 == u64::MAX || ip == Ok(at + BREAKPOINT_ADVANCE) {
                    return Ok(());
                }
                libc::SIGTRAP as usize
            }
            Some(Event::Stop(Stop::Signal(signal))) => signal as usize,
            Some(Event::Stop(_)) => 0,
            Some(Event::Gone) => {
                return Err(LaunchError::Died { program: program.to_owned(), status: super::reap(child)? });
            }
            None => {
                super::kill(process.pid().leader());
                return Err(LaunchError::Timeout {
                    program: program.to_owned(),
                    seconds: super::PATIENCE.as_secs(),
                });
            }
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
