//! Removal, from the journal alone: it works the same for the session that armed the probes and for what an
//! interrupted run left behind.
//!
//! # The protocol, in order
//!
//! 1. Stop every thread. Open the gate ([`crate::gate`]), and have who sleeps in a body of a script go on when it is let go ([`SCRIPT_LEAVE`]).
//! 2. Step threads out of the arenas. A detour waits for nothing, so each is out after some dozens of steps: on the
//!    original code, in the displaced function, or at home with its caller. A body of a script may take thousands, each of which
//!    takes longer than all of them do where nobody steps: who is not out soon gets out by itself, when the target goes on, and is looked for
//!    again ([`Visit`]).
//!    One at the entrance of a short jump's room goes back to the site ([`crate::entrances`]).
//! 3. Lower the semaphores that were raised ([`crate::semaphores`]). Put back the original bytes of every site that still has ours.
//!    Other bytes are somebody else's and are left. The sites at which unwinders ask where a call returns stay in for now.
//! 4. Put back the return address of every followed call that is still running: see [`crate::returns`]; and the handlers of signals, in
//!    whose place the kernel calls stubs: see [`crate::signals`].
//! 5. Do the same for sessions that were taken out before and whose memory had to stay.
//! 6. Look what leads into the arenas yet ([`crate::reach`]). An unwinder may have read a return point already and be about to ask about
//!    it. Where nobody holds one, the sites at which unwinders ask come out, too.
//! 7. Unmap the memory of the sessions into whose arenas nothing leads, and over whose jumps
//!    nobody has set a breakpoint. The memory of the others stays mapped, whole, and the next attach or removal of anybody
//!    tries again.
//! 8. Let the target go. Where something led there yet, come back a few times: mostly it is gone after microseconds. Where a thread is inside,
//!    what shows the program to handlers of signals stays until it is out or we come no more. Where it is in a handler that has interrupted a body,
//!    that stays until it has gone back there, if need be until the next attach or removal.

use crate::{
    EngineError, FoundSession, entrances,
    found::{find_headers, find_removed},
    gate,
    leaving::{self, OUT_SOON, OUT_WITHIN},
    reach, returns,
    scan::Ranges,
    semaphores, signals, writes,
};
use std::time::{Duration, Instant};
use trapless_process::{Process, RemoteAddr, StopOptions, Stopped};
use trapless_wire::{Header, SCRIPT_LEAVE, SessionState, SiteWrites};

/// Why memory of ours stays mapped after its patches are out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Kept {
    /// Somebody else's bytes stand over one of our jumps.
    #[error("somebody else has set a breakpoint over a jump of ours, and may put the jump back")]
    Covered,
    /// A thread did not leave its detour.
    #[error("a thread is held up in it")]
    Thread,
    /// A word of memory or a register leads there.
    #[error("a saved context may still lead into it")]
    Context,
    /// A thread holds a return point that it may be about to ask about.
    #[error("a stack is being unwound, and what unwinders ask stays probed for it")]
    Unwinding,
    /// A handler is still called by way of a stub of ours.
    #[error("a handler of a signal could not be given back")]
    Handler,
    /// Not all memory could be looked at.
    #[error("there is too much memory to look through for saved contexts that lead into it")]
    Unsearched,
    /// A handler has interrupted a body and has not come back.
    #[error("a handler of a signal is to go back into it, and where handlers return stays probed for that")]
    Interrupted,
}

impl Kept {
    /// All of them.
    pub const ALL: [Kept; 7] = [
        Self::Covered,
        Self::Thread,
        Self::Context,
        Self::Unwinding,
        Self::Handler,
        Self::Unsearched,
        Self::Interrupted,
    ];

    /// Whether what shows handlers the program may have to stay for it, and not memory alone.
    fn keeps_handlers(self) -> bool {
        matches!(self, Self::Thread | Self::Interrupted)
    }
}

/// What removal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Sites whose original bytes were put back.
    pub restored: usize,
    /// Sites that had other bytes than ours, or are unmapped.
    pub left: usize,
    /// Running calls whose return address was put back.
    pub returns: usize,
    /// Why its memory stays mapped, if it does.
    pub kept: Option<Kept>,
    /// Sessions removed before whose memory had to stay and could be unmapped now.
    pub freed: usize,
    /// How long the target stood still.
    pub stopped: Duration,
    /// Children of the target that no tracer was told of (`CLONE_UNTRACED`), and that a breakpoint of ours has ended.
    pub ended: usize,
    /// How many times the target installed a handler of a signal that could be given no stub: it may have seen detours.
    pub without_stub: usize,
    /// Bodies of scripts that did not end, since a handler that has interrupted them went elsewhere or had not come back.
    pub cut: usize,
}

/// How often a target is looked at in which something leads to us yet, and when for the second time; each pause is twice the last, up to the
/// longest. Mostly it is what a call has just left behind, or a stack that is being unwound.
const TRIES: u32 = 4;
/// The same where threads were inside at some visit: what they have left behind could not be looked at before.
const TRIES_AFTER_THREADS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// Whether somebody comes back to a target that is let go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// Threads that are not out soon do it by themselves until then.
    WithMore,
    /// What can be done has to be done now.
    Last,
    /// All of it is out but for its memory, which can stay: whoever comes next tries again.
    ForMemory,
}

impl Visit {
    /// One of several, if there can be: a breakpoint that is for handlers comes out whatever happens, since nobody is there to handle it.
    fn first(session: &FoundSession) -> Self {
        if session.journal.planned().any(traps_for_handlers) { Self::Last } else { Self::WithMore }
    }
}

fn traps_for_handlers(site: SiteWrites<'_>) -> bool {
    site.is_for_handlers() && site.traps()
}

/// Looking again is worth a stop that is shorter than this, if only memory is to be had for it.
const SHORT: Duration = Duration::from_millis(10);

/// Takes a session out of a stopped process and lets it go.
pub fn remove(
    process: &Process,
    stopped: Stopped<'_>,
    session: &FoundSession,
) -> Result<Removed, EngineError> {
    let mut stopped = stopped;
    let options = stopped.options().clone();
    let mut removed = Removed::default();
    // Another tool may be quicker than we are to look again, and arm at the same address.
    let own = session.inode(process)?;
    let mut most = TRIES;
    for tries in 0.. {
        let mut now = Removed { cut: removed.cut, ..Removed::default() };
        let visit = match tries + 1 {
            TRIES | TRIES_AFTER_THREADS => Visit::Last,
            1..TRIES => Visit::first(session),
            _ => Visit::ForMemory,
        };
        let inode = if tries == 0 { Ok(own) } else { session.inode(process) };
        let result = match inode {
            Ok(inode) if inode.is_some() && inode == own => {
                remove_stopped(process, &mut stopped, session, visit, &mut now)
            }
            // Somebody else was quicker, or the process runs another program by now.
            other => other.map(drop),
        };
        now.stopped = stopped.resume_and_detach();
        let may_pass = match now.kept {
            Some(Kept::Unwinding | Kept::Interrupted) => true,
            // A thread that did not come out of a loop for all of the last visit will not do it now.
            Some(Kept::Thread) => visit != Visit::Last,
            Some(Kept::Context) => now.stopped < SHORT,
            _ => false,
        };
        match result {
            Ok(()) => removed = removed.then(now),
            Err(error) if tries == 0 || removed.has_thread_inside() => return Err(error),
            Err(_) => break,
        }
        if removed.kept.is_some_and(Kept::keeps_handlers) {
            most = TRIES_AFTER_THREADS;
        }
        if !may_pass || tries + 1 >= most {
            break;
        }
        std::thread::sleep(LONGEST_PAUSE.min(PAUSE * (1 << tries)));
        match stop_again(process, session, &options, &removed)? {
            Some(again) => stopped = again,
            None => {
                if !may_be_there(process, session) {
                    removed.kept = None;
                }
                break;
            }
        }
    }
    Ok(removed)
}

/// How long somebody else may keep us from coming back to a target in which a thread was inside.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Stops a target again that was let go with so much `removed`. `None` where there is nothing more to be done, or nothing that is worth waiting for.
///
/// # Errors
/// It cannot be stopped, and what shows handlers of signals the program is in it yet.
fn stop_again<'p>(
    process: &'p Process,
    session: &FoundSession,
    options: &StopOptions,
    removed: &Removed,
) -> Result<Option<Stopped<'p>>, EngineError> {
    let (deadline, mut pause) = (Instant::now() + BACK_WITHIN, PAUSE);
    loop {
        let error = match process.stop_with(options) {
            Ok(stopped) => return Ok(Some(stopped)),
            Err(error) => error,
        };
        if !removed.kept.is_some_and(Kept::keeps_handlers) || !may_be_there(process, session) {
            return Ok(None);
        }
        if Instant::now() >= deadline {
            return if removed.has_thread_inside() { Err(error.into()) } else { Ok(None) };
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
}

/// Whether the process lives and may have the session's memory yet.
fn may_be_there(process: &Process, session: &FoundSession) -> bool {
    process.is_alive() && !matches!(session.inode(process), Ok(None))
}

/// Comes back for what [`remove_held`] has left in a process that goes on.
///
/// # Errors
/// It cannot be stopped or changed, and what shows handlers of signals the program is in it yet.
pub fn remove_again(
    process: &Process,
    session: &FoundSession,
    options: &StopOptions,
    first: Removed,
) -> Result<Removed, EngineError> {
    let again = match stop_again(process, session, options, &first) {
        Ok(Some(stopped)) => remove(process, stopped, session),
        Ok(None) if may_be_there(process, session) => return Ok(first),
        Ok(None) => return Ok(Removed { kept: None, ..first }),
        Err(error) => Err(error),
    };
    match again {
        Ok(again) => Ok(first.then(again)),
        Err(error) if first.has_thread_inside() => Err(error),
        Err(_) => Ok(first),
    }
}

/// Takes a session out of a stopped process that stands on, once. Where something led there yet ([`Removed::may_pass`]), [`remove_again`] has to come back.
///
/// # Errors
/// Those of the first try of [`remove`].
pub fn remove_held(stopped: &mut Stopped<'_>, session: &FoundSession) -> Result<Removed, EngineError> {
    let process = stopped.process();
    let mut removed = Removed::default();
    if session.inode(process)?.is_some() {
        remove_stopped(process, stopped, session, Visit::first(session), &mut removed)?;
    }
    Ok(removed)
}

impl Removed {
    /// Whether what keeps the memory is mostly gone after microseconds.
    pub fn may_pass(&self) -> bool {
        matches!(self.kept, Some(Kept::Unwinding | Kept::Context | Kept::Thread | Kept::Interrupted))
    }

    /// Whether more than memory may be left to be taken out, since a thread is inside.
    fn has_thread_inside(&self) -> bool {
        self.kept == Some(Kept::Thread)
    }

    /// This, and what came of looking again.
    #[must_use]
    pub fn then(self, now: Removed) -> Removed {
        Removed {
            restored: self.restored + now.restored,
            left: now.left,
            returns: self.returns + now.returns,
            kept: now.kept,
            freed: self.freed + now.freed,
            stopped: self.stopped.max(now.stopped),
            ended: self.ended + now.ended,
            without_stub: self.without_stub.max(now.without_stub),
            cut: now.cut,
        }
    }
}

fn remove_stopped(
    process: &Process,
    stopped: &mut Stopped<'_>,
    session: &FoundSession,
    visit: Visit,
    removed: &mut Removed,
) -> Result<(), EngineError> {
    let kept = take_out(process, stopped, session, visit, removed)?;
    let all = find_headers(process)?;
    // Whatever is wrong with others, such as that the target has forged them, they stay and ours goes.
    let others = match kept {
        // They have time until somebody comes back for this one.
        Some(kept) if kept.keeps_handlers() && visit != Visit::Last => Vec::new(),
        _ => find_removed(process, session.header.region).unwrap_or_default(),
    };
    let mut out = vec![(session, kept)];
    for other in &others {
        if let Ok(kept) = take_out(process, stopped, other, Visit::ForMemory, &mut Removed::default()) {
            out.push((other, kept));
        }
    }
    let sure: Vec<_> = out.iter().filter(|(_, kept)| kept.is_none()).map(|(session, _)| *session).collect();
    let led_into = reach::leads_into(process, stopped, &sure, &all);
    let mut led_into = led_into.unwrap_or_else(|_| vec![Some(Kept::Unsearched); sure.len()]).into_iter();
    for (index, (session, kept)) in out.into_iter().enumerate() {
        let kept = kept.or_else(|| led_into.next().flatten());
        if index == 0 {
            removed.kept = clear(process, stopped, session, kept, removed)?;
        } else if let Ok(None) = clear(process, stopped, session, kept, &mut Removed::default()) {
            removed.freed += 1;
        }
    }
    Ok(())
}

/// Steps 6 and 7 for one session. Tells what keeps its memory.
fn clear(
    process: &Process,
    stopped: &mut Stopped<'_>,
    session: &FoundSession,
    kept: Option<Kept>,
    removed: &mut Removed,
) -> Result<Option<Kept>, EngineError> {
    let kept = take_lookups_out(process, stopped, session, kept, removed)?;
    if kept.is_none() {
        unmap(stopped, &session.header)?;
    } else if !kept.is_some_and(Kept::keeps_handlers) && holds_only_notes(session) {
        // Calls that were only noted have no return address there, and whoever still comes finds a free instance. A program with many goroutines
        // gets most of the memory back. Behind lie the stacks for bodies, and somebody may come back to one, and the table of handlers: somebody
        // may be about to install a stub.
        let header = &session.header;
        let size = header.stacks().start.saturating_sub(header.returns);
        stopped.remote(|remote| remote.madvise(RemoteAddr(header.returns), size, libc::MADV_DONTNEED))?;
    }
    Ok(kept)
}

/// Step 6: the sites at which unwinders ask, unless somebody may yet ask about a return point.
fn take_lookups_out(
    process: &Process,
    stopped: &Stopped<'_>,
    session: &FoundSession,
    kept: Option<Kept>,
    removed: &mut Removed,
) -> Result<Option<Kept>, EngineError> {
    if !session.journal.planned().any(|site| site.is_lookup()) {
        return Ok(kept);
    }
    match kept {
        None | Some(Kept::Context) => {}
        // Calls may yet be followed: by a thread in a detour, and where somebody puts our jump back.
        Some(Kept::Covered | Kept::Thread | Kept::Unwinding | Kept::Handler | Kept::Interrupted) => {
            return Ok(kept);
        }
        Some(Kept::Unsearched) => {
            if reach::may_be_unwinding(process, stopped, session)? {
                return Ok(Some(Kept::Unwinding));
            }
        }
    }
    let is_covered = restore(process, session, |site| site.is_lookup(), removed)?;
    Ok(kept.or(is_covered.then_some(Kept::Covered)))
}

/// Steps 2 to 4. Tells what keeps the memory already now.
fn take_out(
    process: &Process,
    stopped: &mut Stopped<'_>,
    session: &FoundSession,
    visit: Visit,
    removed: &mut Removed,
) -> Result<Option<Kept>, EngineError> {
    let header = &session.header;
    if read_state(process, header)? != SessionState::Removed as u32 {
        write_state(process, header, SessionState::Removing)?;
    }
    // The state may be another process's that shares the region.
    let mut for_handlers = session.journal.planned().filter(|site| site.is_for_handlers());
    let is_out = !for_handlers.any(|site| session.is_armed(process, &site));
    // One that cannot be opened opens itself in time.
    let _ = gate::open(process, header);
    end_sleeps(process, header)?;
    let arenas = Ranges::new(header.arenas().map(|a| (a.address, a.address + a.size)));
    leaving::leave_slots(stopped, session)?;
    let all_out = leaving::step_out(
        stopped,
        session,
        &arenas,
        if visit == Visit::Last { OUT_WITHIN } else { OUT_SOON },
    );
    // A breakpoint has to go, since nobody is there to handle it: then handlers go back to the program, and what they have interrupted is cut short.
    let can_stay = !is_out && !session.journal.planned().any(traps_for_handlers);
    // One in a stub has not yet noted where it comes back to.
    let is_left_inside = can_stay && !all_out && (visit == Visit::WithMore || header.signals != 0);
    let is_interrupted = can_stay && signals::under_way(process, stopped, header) > 0;
    removed.cut = signals::cut(process, header);
    let held = entrances::leave(process, stopped, session)?;

    // What was written at a site that is not believed is not known.
    removed.left += session.doubted;
    semaphores::lower(process, session, |_| true)?;
    let stays = |site: &SiteWrites<'_>| {
        let for_handlers = is_left_inside || is_interrupted;
        site.is_lookup() || held.holds(site) || for_handlers && site.is_for_handlers()
    };
    let covered = restore(process, session, |site| !stays(site), removed)? || session.doubted > 0;
    removed.returns = returns::put_back(process, stopped, session, &arenas)?;
    removed.without_stub = signals::without_stub(process, header);
    if is_left_inside {
        return Ok(Some(Kept::Thread));
    }
    if is_interrupted {
        return Ok(Some(Kept::Interrupted));
    }
    let handlers_back = signals::put_back(process, stopped, header);
    write_state(process, header, SessionState::Removed)?;
    // What needs all of the memory comes first.
    let reasons = [
        (!handlers_back, Kept::Handler),
        (!all_out, Kept::Thread),
        (covered, Kept::Covered),
        (held.is_any(), Kept::Context),
    ];
    Ok(reasons.into_iter().find_map(|(holds, reason)| holds.then_some(reason)))
}

/// Puts back the original bytes of the sites that `which` says. Whether somebody else's stand over some of ours, as a breakpoint over a
/// jump: whoever set it will put the jump back, and then the detour must still be there.
fn restore(
    process: &Process,
    session: &FoundSession,
    which: impl Fn(&SiteWrites<'_>) -> bool,
    removed: &mut Removed,
) -> Result<bool, EngineError> {
    let taken = writes::take_out(process, &session.journal, which)?;
    removed.restored += taken.restored;
    removed.left += taken.left;
    Ok(taken.covered)
}

fn read_state(process: &Process, header: &Header) -> Result<u32, EngineError> {
    let mut bytes = [0; 4];
    process.read_exact(RemoteAddr(header.region + Header::STATE_OFFSET), &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn write_state(process: &Process, header: &Header, state: SessionState) -> Result<(), EngineError> {
    let at = RemoteAddr(header.region + Header::STATE_OFFSET);
    Ok(process.write(at, &(state as u32).to_le_bytes())?)
}

/// Has threads that sleep in a body go on: as they stand all are out of their system calls, and those that they make again end at once.
/// A forked child has no sleepers, and shares the memory with the process that does. Its origin word is 0. Where that cannot be read, a
/// delay that is too short is better than a step that blocks while all threads stand.
fn end_sleeps(process: &Process, header: &Header) -> Result<(), EngineError> {
    let is_childs = process.read_word(RemoteAddr(header.threads)).is_ok_and(|origin| origin == 0);
    if header.script == 0 || is_childs {
        return Ok(());
    }
    let at = header.region + header.script + u64::from(SCRIPT_LEAVE);
    Ok(process.write(RemoteAddr(at), &1u64.to_le_bytes())?)
}

/// Whether no return address is in a session's memory, and that is known for sure.
fn holds_only_notes(session: &FoundSession) -> bool {
    let is_sure = session.doubted == 0 && session.journal.sites().all(|site| !site.traps());
    session.header.returns_size > 0 && is_sure && session.journal.sites().all(|site| site.return_at == 0)
}

fn unmap(stopped: &mut Stopped<'_>, header: &Header) -> Result<(), EngineError> {
    stopped.remote(|remote| {
        let maps = remote.process().maps()?;
        let mapping = |address: u64| maps.find(RemoteAddr(address));
        let (near, near_size) = header.near();
        // The header may have been scribbled over.
        let is_near = mapping(near).zip(mapping(header.region)).is_some_and(|(near, region)| {
            near.inode == region.inode && near.device == region.device && near.offset == header.blocks_offset
        });
        let regions = [
            (header.threads, header.threads_size),
            (header.returns, header.returns_size),
            (near, if is_near { near_size } else { 0 }),
            (header.region, header.region_size),
        ];
        for arena in header.arenas() {
            remote.munmap(RemoteAddr(arena.address), arena.size)?;
        }
        // The shared region last: as long as it is there, an interrupted removal can be taken up again.
        for (address, size) in regions.into_iter().filter(|(_, size)| *size > 0) {
            remote.munmap(RemoteAddr(address), size)?;
        }
        Ok(())
    })
}
