//! Who serves, from when to when.
//!
//! The keeper arms, tells its parent, and serves. A launched command it takes over from its parent ([`Handover`]), and lets it run
//! only when the parent says so; should either of them end before that, the command is killed. It serves until the parent asks it to end or is gone,
//! however that came; or a thread was sent to load a library, which is all that was wanted. Then, in order:
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
    load::Loading,
    numbers::Numbers,
    serve::{self, Served, Server},
};
use crate::{
    Armed, Attempt, Blueprint, EngineError, FoundSession, Region, Removed,
    answer::{Answer, Malformed, Request},
    channel::{Channel, ChannelError},
    remove,
};
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};
use trapless_process::{
    Process, StopError, StopOptions, Stopped,
    keeper::{Keeper, ParentWatch},
    launch::Handover,
};

/// The keeper that serves the traps of one process. Dropping it takes the probes out.
#[derive(Debug)]
pub struct Serving {
    keeper: Keeper,
    /// To the keeper, while it holds a launched command that has not run yet.
    standing: Option<Channel>,
}

impl Serving {
    /// Whether the keeper has ended by itself: with the target, or because it was killed.
    pub fn has_ended(&self) -> bool {
        self.keeper.is_done_within(Duration::ZERO)
    }

    /// What becomes readable when the keeper has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.keeper.descriptor()
    }

    /// Lets a launched command run. The first call does, and the others have nothing to do.
    ///
    /// # Errors
    /// The command was killed, or could not be let run; it is ended then.
    pub fn let_run(&mut self) -> Result<(), EngineError> {
        let Some(mut channel) = self.standing.take() else { return Ok(()) };
        let asked = channel.ask(Request::LetRun).and_then(|()| channel.hear());
        match asked.map_err(EngineError::NotLetRun)? {
            Answer::Runs => Ok(()),
            _ => Err(EngineError::NotLetRun(Malformed::Another.into())),
        }
    }

    /// Has the probes taken out, and waits for it. A launched command that was not let run is ended.
    ///
    /// # Errors
    /// The target could not be stopped or changed.
    pub fn end(mut self) -> Result<Removed, EngineError> {
        self.keeper.ask_to_end();
        Answer::read(&self.keeper.wait()?)?.removed()
    }
}

/// How long a keeper may take to arm, or to let a command run. All of its waits are shorter.
const ANSWERING: Duration = Duration::from_secs(60);

/// Arms a plan with sites that trap, from a keeper that stays. A launched command is taken over, and stands until
/// [`Serving::let_run`].
///
/// # Errors
/// As [`Blueprint::arm_kept`].
pub fn arm_serving(
    blueprint: &Blueprint<'_, '_>,
    process: &Process,
    options: &StopOptions,
    launched: Option<Handover>,
) -> Result<(Armed, Serving), Attempt> {
    let failed = |error: ChannelError| Attempt::Failed(error.into());
    let (mut ours, theirs) = Channel::pair().map_err(Attempt::Failed)?;
    ours.wait_at_most(ANSWERING).map_err(failed)?;
    // Moved in, so that the parent's copy is closed and the keeper's death seen.
    let keeper = Keeper::start(move |parent| keep(blueprint, process, options, launched, parent, theirs))
        .map_err(|error| Attempt::Failed(error.into()))?;
    let answer = match ours.hear() {
        Ok(answer) => answer,
        // How it died says more than that it said nothing.
        Err(error) => {
            return Err(keeper
                .wait()
                .err()
                .map_or_else(|| failed(error), |died| Attempt::Failed(died.into())));
        }
    };
    let (stopped, refused) = blueprint.told(answer)?;
    let memory = ours.receive().map_err(failed)?;
    let standing = launched.map(|_| ours);
    Ok((blueprint.armed(memory, stopped, refused), Serving { keeper, standing }))
}

/// The keeper's work.
fn keep(
    blueprint: &Blueprint<'_, '_>,
    process: &Process,
    options: &StopOptions,
    launched: Option<Handover>,
    parent: &ParentWatch,
    mut channel: Channel,
) -> Vec<u8> {
    // Where memory runs short, somebody else is to be killed: the target would die with its tracer. Only root may ask for that.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let (armed, stopped) = match arm(blueprint, process, options, launched.as_ref()) {
        Ok(done) => done,
        Err(error) => {
            // A parent that is gone needs no answer.
            let _ = channel.tell(&Attempt::from(error).into());
            return Vec::new();
        }
    };
    // Where this fails the parent is gone, and that is seen below.
    let _ = channel.tell(&armed.answer()).and_then(|()| channel.send(&armed.memory));
    let standing = launched.map(|handover| Standing { handover, channel });
    let removed = match serve(blueprint, process, options, standing, parent, &armed, stopped) {
        Err(error) => {
            // Whatever went wrong: a breakpoint without a tracer would kill the target.
            let session = session(&armed);
            if serve::restore_code(process, &session).is_ok()
                && let Ok(stopped) = process.stop_with(options)
            {
                let _ = remove(process, stopped, &session);
            }
            Err(error)
        }
        removed => removed,
    };
    Answer::from(removed).bytes()
}

fn arm<'p>(
    blueprint: &Blueprint<'_, '_>,
    process: &'p Process,
    options: &StopOptions,
    launched: Option<&Handover>,
) -> Result<(Armed, Stopped<'p>), EngineError> {
    let mut stopped = match launched {
        None => allowed::stop(process, options)?,
        Some(handover) => allowed::take(process, handover, options)?,
    };
    match blueprint.arm(&mut stopped) {
        Ok(mut armed) => {
            armed.stopped = stopped.stopped_for();
            Ok((armed, stopped))
        }
        Err(error) => {
            // The parent may try again elsewhere. If this fails the command dies with us.
            let _ = launched.map(|handover| handover.give_back(stopped));
            Err(error)
        }
    }
}

/// A launched command that has not run yet.
struct Standing {
    handover: Handover,
    channel: Channel,
}

impl Standing {
    /// Whether the parent lets it run, before it asks for the end or is gone.
    fn is_let_run(&mut self, parent: &ParentWatch) -> bool {
        while self.channel.wait_at_most(HEARING).is_ok() && !parent.should_end() {
            match self.channel.asked() {
                Ok(None) => {}
                asked => return matches!(asked, Ok(Some(Request::LetRun))),
            }
        }
        false
    }
}

fn session(armed: &Armed) -> FoundSession {
    FoundSession::own(armed.header, armed.journal.clone())
}

/// How long the parent may be left unheard while traps come without a pause.
const HEARING: Duration = Duration::from_millis(20);

/// How long steps and children may delay a removal.
const FINISHING: Duration = Duration::from_secs(2);

fn serve(
    blueprint: &Blueprint<'_, '_>,
    process: &Process,
    options: &StopOptions,
    mut standing: Option<Standing>,
    parent: &ParentWatch,
    armed: &Armed,
    mut stopped: Stopped<'_>,
) -> Result<Removed, EngineError> {
    let session = session(armed);
    // While the target still stands.
    let region = Region::map(&armed.memory, armed.header.region_size)
        .inspect_err(|_| drop(serve::restore_code(process, &session)))?;
    // What was left alone after all is the program's own business.
    let is_armed =
        |site: &&TrapSite| session.journal.site_at(site.address).is_some_and(|found| found.is_planned());
    let sites: Vec<TrapSite> = blueprint.traps.iter().filter(is_armed).cloned().collect();
    let numbers = Numbers::claim(&region, &armed.header);
    if let Some(standing) = &mut standing {
        if !standing.is_let_run(parent) {
            // It stands on, and dies with us.
            return Ok(Removed::default());
        }
        standing.handover.settle(&mut stopped)?;
    }
    let tracer = stopped.trace()?;
    if let Some(mut standing) = standing {
        // A parent that is gone needs no answer.
        let _ = standing.channel.tell(&Answer::Runs);
    }
    let interpreter = blueprint.plan.script.and_then(|script| script.interpreter.as_deref());
    let mut server = Server::new(tracer, &sites, &session, numbers, interpreter);
    server.loading = Loading::of(blueprint, &region, &armed.header);
    let mut result = serve_until_asked(&mut server, parent);
    let gone = |server: &Server<'_, '_>| {
        if process.is_alive() {
            // It runs another program, and nothing of this is there; or it does not, and must not meet a breakpoint alone.
            let _ = serve::restore_code(process, &session);
        }
        Ok(Removed { ended: server.untold, ..Removed::default() })
    };
    if let Ok(Served::Gone) = result {
        return gone(&server);
    }
    server.disarm()?;
    let until = Instant::now() + FINISHING;
    while result.is_ok() && server.is_busy() && Instant::now() < until {
        result = server.next();
        if let Ok(Served::Gone) = result {
            return gone(&server);
        }
    }
    let ended = server.untold;
    let removed = end(server, process, options, &session)?;
    result.map(|_| Removed { ended, ..removed }).map_err(EngineError::from)
}

/// Serves until the parent wants it to end, or the target is gone.
fn serve_until_asked(server: &mut Server<'_, '_>, parent: &ParentWatch) -> Result<Served, StopError> {
    let mut heard = Instant::now();
    let mut hits = 0u32;
    loop {
        let served = server.next()?;
        if served == Served::Gone {
            return Ok(Served::Gone);
        }
        // From now on nobody is needed: what that thread does takes as long as it likes, and is not to be traced.
        if server.loading.as_ref().is_some_and(Loading::is_sent) {
            return Ok(Served::On);
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
    removed.restored += session.journal.planned().filter(|site| site.traps()).count();
    Ok(removed)
}
