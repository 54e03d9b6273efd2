//! Who serves, from when to when.
//!
//! The keeper arms, tells its parent, and serves until the parent asks it to end or is gone, however that came. Then, in order:
//!
//! 1. The breakpoints are taken out while the threads run: one byte each, and whoever has met one goes on at the original.
//! 2. Steps under way and children made by vfork are served until there are none, for a while.
//! 3. All threads are stopped. One that had met a breakpoint before it was taken out, and whose SIGTRAP was still on the way, is put
//!    back to it by the stop ([`Tracer::stop`]). Those in slots and at landing pads are put where they belong, return
//!    addresses are put back, and what remains is an ordinary removal.
//!
//! An error on the way leads to the same end: what the breakpoints would do to a process without a tracer is worse than any.
//!
//! [`Tracer::stop`]: trapless_process::trace::Tracer::stop

use super::{
    TrapSite, allowed,
    leave::leave_pads,
    numbers::Numbers,
    serve::{self, Served, Server},
};
use crate::kept::{self, Attempt};
use crate::{Armed, Blueprint, EngineError, FoundSession, Region, Removed, remove};
use rustix::net::RecvFlags;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};
use trapless_process::{
    Process, StopError, StopOptions, Stopped,
    keeper::{Keeper, ParentWatch},
};

/// The keeper that serves the traps of one process. Dropping it takes the probes out.
#[derive(Debug)]
pub struct Serving(Keeper);

impl Serving {
    /// Whether the keeper has ended by itself: with the target, or because it was killed.
    pub fn has_ended(&self) -> bool {
        self.0.is_done_within(Duration::ZERO)
    }

    /// Has the probes taken out, and waits for it.
    ///
    /// # Errors
    /// The target could not be stopped or changed.
    pub fn end(mut self) -> Result<Removed, EngineError> {
        self.0.ask_to_end();
        let answer = self.0.wait().map_err(|error| EngineError::Keeper(error.to_string()))?;
        kept::decode_removed(&answer)
    }
}

/// Arms a plan with sites that trap, from a keeper that stays.
///
/// # Errors
/// As [`Blueprint::arm_kept`].
pub fn arm_serving(
    blueprint: &Blueprint<'_, '_>,
    process: &Process,
    options: &StopOptions,
) -> Result<(Armed, Serving), Attempt> {
    let failed = |error| Attempt::Failed(EngineError::Map(error));
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    // Moved in, so that the parent's copy is closed and the keeper's death seen.
    let keeper = Keeper::start(move |parent| keep(blueprint, process, options, parent, theirs))
        .map_err(|error| Attempt::Failed(EngineError::Keeper(error.to_string())))?;
    let memory = kept::receive(&ours, RecvFlags::empty());
    let mut length = [0; 8];
    let mut answer = Vec::new();
    let told = ours.read_exact(&mut length).is_ok() && {
        let length = u64::from_le_bytes(length);
        (&ours).take(length).read_to_end(&mut answer).is_ok_and(|read| read as u64 == length)
    };
    if !told {
        let died = keeper.wait().err().map_or_else(|| "it gave no answer".into(), |error| error.to_string());
        return Err(Attempt::Failed(EngineError::Keeper(died)));
    }
    let (stopped, refused) = blueprint.decode(&answer)?;
    let memory = memory.map_err(failed)?;
    Ok((Armed { memory, header: blueprint.header, stopped, refused }, Serving(keeper)))
}

/// The keeper's work.
fn keep(
    blueprint: &Blueprint<'_, '_>,
    process: &Process,
    options: &StopOptions,
    parent: &ParentWatch,
    mut channel: UnixStream,
) -> Vec<u8> {
    // Where memory runs short, somebody else is to be killed: the target would die with its tracer. Only root may ask for that.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let armed = allowed::stop(process, options).and_then(|mut stopped| {
        let mut armed = blueprint.arm(&mut stopped)?;
        armed.stopped = stopped.stopped_for();
        Ok((armed, stopped))
    });
    let (armed, stopped) = match armed {
        Ok(done) => done,
        Err(error) => {
            let answer = kept::encode(&Err(Attempt::from(error)));
            // A parent that is gone needs no answer.
            let _ = channel.write_all(b"f").and_then(|()| tell(&mut channel, &answer));
            return Vec::new();
        }
    };
    // Where this fails the parent is gone, and that is seen below.
    let answer = kept::encode_armed(&armed);
    let _ = kept::send(&channel, &armed.memory).and_then(|()| tell(&mut channel, &answer));
    drop(channel);
    match serve(blueprint, process, options, parent, &armed, stopped) {
        Ok(removed) => kept::encode_removed(&removed),
        Err(error) => {
            // Whatever went wrong: a breakpoint without a tracer would kill the target.
            let session = session(blueprint, &armed);
            if serve::restore_code(process, &session).is_ok()
                && let Ok(stopped) = process.stop_with(options)
            {
                let _ = remove(process, stopped, &session);
            }
            kept::failed(&error)
        }
    }
}

fn session(blueprint: &Blueprint<'_, '_>, armed: &Armed) -> FoundSession {
    let mut session = FoundSession { header: armed.header, journal: blueprint.journal.clone() };
    for (entry, refused) in session.journal.iter_mut().zip(&armed.refused) {
        if refused.is_some() {
            entry.state = trapless_wire::SiteState::Skipped as u8;
        }
    }
    session
}

fn tell(channel: &mut UnixStream, answer: &[u8]) -> std::io::Result<()> {
    channel.write_all(&(answer.len() as u64).to_le_bytes())?;
    channel.write_all(answer)
}

/// How long the parent may be left unheard while traps come without a pause.
const HEARING: Duration = Duration::from_millis(20);

/// How long steps and children may delay a removal.
const FINISHING: Duration = Duration::from_secs(2);

fn serve(
    blueprint: &Blueprint<'_, '_>,
    process: &Process,
    options: &StopOptions,
    parent: &ParentWatch,
    armed: &Armed,
    stopped: Stopped<'_>,
) -> Result<Removed, EngineError> {
    let session = session(blueprint, armed);
    // While the target still stands.
    let region = Region::map(&armed.memory, armed.header.region_size)
        .inspect_err(|_| drop(serve::restore_code(process, &session)))?;
    // What was left alone after all is the program's own business.
    let is_armed = |site: &&TrapSite| {
        let entry = session.journal.binary_search_by_key(&site.address, |entry| entry.site);
        entry.is_ok_and(|index| session.journal[index].is_planned())
    };
    let sites: Vec<TrapSite> = blueprint.traps.iter().filter(is_armed).cloned().collect();
    let numbers = Numbers::claim(&region, &armed.header);
    let mut tracer = stopped.trace()?;
    tracer.set_alone();
    let mut server = Server::new(process, tracer, &sites, &session, numbers);
    let mut result = serve_until_asked(&mut server, parent);
    if let Ok(Served::Gone) = result {
        return Ok(Removed::default());
    }
    server.disarm()?;
    let until = Instant::now() + FINISHING;
    while result.is_ok() && server.is_busy() && Instant::now() < until {
        result = server.next(HEARING);
        if let Ok(Served::Gone) = result {
            return Ok(Removed::default());
        }
    }
    let removed = end(server, process, options, &session)?;
    result.map(|_| removed).map_err(EngineError::from)
}

/// Serves until the parent wants it to end, or the target is gone.
fn serve_until_asked(server: &mut Server<'_, '_>, parent: &ParentWatch) -> Result<Served, StopError> {
    let mut heard = Instant::now();
    let mut hits = 0u32;
    loop {
        let served = server.next(HEARING)?;
        if served == Served::Gone {
            return Ok(Served::Gone);
        }
        hits = hits.wrapping_add(1);
        // The clock is asked for every few hits only; an idle wait ends by itself.
        if served == Served::Quiet || hits.is_multiple_of(16) && heard.elapsed() >= HEARING {
            if parent.should_end() {
                return Ok(Served::On);
            }
            heard = Instant::now();
        }
    }
}

/// Step 3.
fn end(
    mut server: Server<'_, '_>,
    process: &Process,
    options: &StopOptions,
    session: &FoundSession,
) -> Result<Removed, EngineError> {
    let unfinished = server.give_up_steps();
    let Server { tracer, mut returns, .. } = server;
    let mut stopped = match tracer.stop(|child| serve::clean_copy(child, session, &returns)) {
        Ok(stopped) => stopped,
        Err(_) if !process.is_alive() => return Ok(Removed::default()),
        // Let go, but without breakpoints at the sites. None may return to a landing pad now.
        Err(_) => {
            returns.restore_in(process);
            process.stop_with(options)?
        }
    };
    for step in &unfinished {
        if let Some(thread) = stopped.thread(step.tid) {
            step.finish_flags(process, thread.registers());
        }
    }
    leave_pads(&mut stopped, &mut returns)?;
    let put_back = returns.restore_in(process);
    let mut removed = remove(process, stopped, session)?;
    removed.returns += put_back;
    // The breakpoints were taken out before the stop.
    removed.restored += session.journal.iter().filter(|e| e.trap != 0 && e.is_planned()).count();
    Ok(removed)
}
