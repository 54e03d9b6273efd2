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
    BREAKPOINT, BREAKPOINT_ADVANCE, MemoryError, ProcError, Process, Registers, RemoteAddr, RemoteError,
    StopError, StopOptions, Stopped, Tid,
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
#[derive(Debug)]
struct Goal {
    breakpoint: RemoteAddr,
    debug: Debug,
}

/// Where `struct r_debug` is, which holds the moment.
#[derive(Clone, Copy, Debug)]
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
    let child = launched.child.tid();
    let mut loading = Loading::begin(&launched.process)?;
    let mut next = Next::Go(0);
    let loaded = loop {
        // ESRCH means killed, which the wait tells better.
        let _ = match next {
            Next::Go(signal) => ptrace::cont(child, signal as usize),
            Next::Step(signal) => ptrace::singlestep(child, signal as usize),
            Next::Loaded(loaded) => break loaded,
        };
        next = match wait::until(child, OnExit::Leave, deadline) {
            Some(Event::Stop(stop)) => loading.stopped(&launched.process, stop)?,
            Some(Event::Gone) => {
                return Err(LaunchError::Died {
                    program: program.to_owned(),
                    status: launched.child.reap()?,
                });
            }
            None => {
                return Err(LaunchError::Timeout {
                    program: program.to_owned(),
                    seconds: super::PATIENCE.as_secs(),
                });
            }
        };
    };
    let place = loaded.place;
    if loaded.changes_signals() {
        loaded.put_back(&mut launched.hold(&StopOptions::default())?)?;
    }
    Ok(place)
}

/// A program on its way from its exec, stop by stop. Its only thread is told what to do next after each.
#[derive(Debug)]
pub(crate) struct Loading {
    goal: Goal,
    /// What stands at the breakpoint's place.
    original: [u8; BREAKPOINT.len()],
    /// Whether the instruction at that place is being stepped over.
    steps: bool,
    inherited: Inherited,
}

/// What a loading program's thread does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// It runs, with a signal or 0.
    Go(i32),
    /// It runs one instruction, with a signal or 0.
    Step(i32),
    /// It stands where its libraries are loaded, and its text is as it was.
    Loaded(Loaded),
}

/// A program whose libraries are loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    place: Place,
    inherited: Inherited,
}

impl Loading {
    /// Puts the breakpoint into a program that stands behind its exec.
    pub(crate) fn begin(process: &Process) -> Result<Loading, LaunchError> {
        let goal = goal(process)?;
        let inherited = Inherited::of(process)?;
        let mut original = [0; BREAKPOINT.len()];
        process.read_exact(goal.breakpoint, &mut original)?;
        process.write(goal.breakpoint, BREAKPOINT)?;
        Ok(Loading { goal, original, steps: false, inherited })
    }

    /// What follows a stop of its thread.
    pub(crate) fn stopped(&mut self, process: &Process, stop: Stop) -> Result<Next, LaunchError> {
        let child = process.pid().leader();
        let signal = match stop {
            Stop::Signal(libc::SIGTRAP) if self.is_ours(child) => return self.trapped(process),
            Stop::Signal(signal) => self.inherited.deliver(child, signal),
            _ => 0,
        };
        Ok(if self.steps { Next::Step(signal) } else { Next::Go(signal) })
    }

    /// Takes the breakpoint out of a program that stands and is not to be followed to its goal.
    pub(crate) fn abandon(&self, process: &Process) -> Result<(), MemoryError> {
        process.write(self.goal.breakpoint, &self.original)
    }

    /// Takes the breakpoint out of the memory of a child that has a copy of it.
    pub(crate) fn clean_copy(&self, child: &Process) -> Result<(), MemoryError> {
        child.write(self.goal.breakpoint, &self.original)
    }

    /// Whether a SIGTRAP is that of our breakpoint or step.
    fn is_ours(&self, child: Tid) -> bool {
        let is_raised = SignalInfo::of(child).is_ok_and(|info| info.code() > 0);
        let at = self.goal.breakpoint + BREAKPOINT_ADVANCE;
        is_raised && (self.steps || Registers::read(child).is_ok_and(|regs| regs.ip() == at))
    }

    fn trapped(&mut self, process: &Process) -> Result<Next, LaunchError> {
        let child = process.pid().leader();
        if std::mem::take(&mut self.steps) {
            process.write(self.goal.breakpoint, BREAKPOINT)?;
            return Ok(Next::Go(0));
        }
        process.write(self.goal.breakpoint, &self.original)?;
        let failed = |request| move |errno| StopError::Ptrace { tid: child, request, errno };
        let mut regs = Registers::read(child).map_err(failed("PTRACE_GETREGSET"))?;
        regs.set_ip(self.goal.breakpoint);
        regs.write(child).map_err(failed("PTRACE_SETREGSET"))?;
        if !self.goal.debug.is_consistent(process)? {
            self.steps = true;
            return Ok(Next::Step(0));
        }
        let place = if matches!(self.goal.debug, Debug::None) { Place::Entry } else { Place::Loaded };
        Ok(Next::Loaded(Loaded { place, inherited: std::mem::take(&mut self.inherited) }))
    }
}

impl Loaded {
    /// Whether the program's signals are not as they were.
    pub(crate) fn changes_signals(&self) -> bool {
        self.inherited.ignored || self.inherited.blocked
    }

    /// Gives the program back what it has inherited of SIGTRAP.
    pub(crate) fn put_back(self, stopped: &mut Stopped<'_>) -> Result<(), RemoteError> {
        let pid = stopped.process().pid();
        let child = pid.leader();
        if self.inherited.ignored {
            stopped.remote(|remote| remote.ignore(libc::SIGTRAP))?;
        }
        if self.inherited.blocked {
            let mask = stopped.signal_mask(child)? | 1 << (libc::SIGTRAP - 1);
            ptrace::set_signal_mask(child, mask)
                .map_err(|errno| stopped.explain(child, "PTRACE_SETSIGMASK", errno))?;
        }
        self.inherited.sent.iter().for_each(|signal| signal.send_again(pid, child));
        Ok(())
    }
}

/// What the program has inherited of SIGTRAP. The kernel forces the signal that a breakpoint or a step raises on the thread:
/// where it is ignored or blocked it is neither afterwards.
#[derive(Debug, Default)]
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
    fn deliver(&mut self, child: Tid, signal: i32) -> i32 {
        match signal {
            libc::SIGTRAP if self.blocked => self.sent.extend(SignalInfo::of(child).ok()),
            libc::SIGTRAP if self.ignored => {}
            signal => return signal,
        }
        0
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
