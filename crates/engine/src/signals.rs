//! The stubs of signal handlers in a stopped process: what they are for is told in [`trapless_isa::detour::signals`].
//!
//! Each handler that the process has when it is probed gets its stub by `rt_sigaction` in the process itself, before the first patch is in:
//! a stub harms nobody alone. A handler that is probed itself needs none. Handlers that go elsewhere than to code which is probed keep
//! what they have; where that is a handler of faults, nothing is displaced that may fault. When probes are taken out, whatever the
//! process has then is asked of the kernel, and each stub is replaced by its handler, of which the table tells.

use crate::admit::{Facts, MAY_FAULT};
use crate::{
    Blueprint, EngineError, LeftAlone, PlannedSite, admit, found::find_headers, scan::little_endian,
    stacks::Stacks,
};
use std::ops::Range;
use trapless_isa::SignalCall;
use trapless_isa::detour::signals::*;
use trapless_process::{Process, RemoteAddr, RemoteError, Stopped};
use trapless_wire::{Checked, Header, SessionState};

impl Blueprint<'_, '_> {
    /// Gives the handlers of the process their stubs. Where that cannot be done, or one of the probes is among the `refused` that belong to
    /// it, all of them are left alone, and so are the sites whose displaced instructions handlers must not see.
    pub(crate) fn give_stubs(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        all: &[Checked],
        refused: &mut [Option<LeftAlone>],
    ) -> Result<(), EngineError> {
        let Some(signals) = self.layout.signals else { return Ok(()) };
        process.write(RemoteAddr(signals.table + u64::from(SIGNAL_KEY)), &signals.key.to_le_bytes())?;
        let sites_of = |call: SignalCall| {
            let is_one = move |site: &&PlannedSite<'_>| site.request.wanted.signal == Some(call);
            self.plan.sites.iter().filter(is_one).map(|site| site.displaced.start).collect::<Vec<u64>>()
        };
        let returns = sites_of(SignalCall::Return);
        let is_there = |(index, site): (usize, &PlannedSite<'_>)| {
            site.request.wanted.signal.is_none()
                || refused[index].is_none() && self.is_original(process, index)
        };
        // The stubs of one session know nothing of the arenas of another.
        let other =
            |header: &Checked| header.signals != 0 && header.session_state() != Some(SessionState::Removed);
        let can = self.plan.sites.iter().enumerate().all(is_there)
            && !all.iter().any(other)
            && returns.len() <= SIGNAL_MOST_RETURNS as usize;
        let given = match can {
            true => give(process, stopped, &signals, &returns, &sites_of(SignalCall::Handler))?,
            false => false,
        };
        if !given {
            let handled = process.status()?.sig_caught;
            let facts = Facts { handled, ..Facts::default() };
            for (site, refusal) in self.plan.sites.iter().zip(refused) {
                let is_seen = || {
                    let isa = self.plan.modules[site.request.module].machine.isa();
                    let hops = self.plan.hops_in_go(site);
                    hops || !site.traps()
                        && !site.request.wanted.is_hook()
                        && site.changed().any(|(displaced, original)| {
                            admit::seen_by_handlers(&facts, isa, displaced, original).is_err()
                        })
                };
                if refusal.is_none() && (site.request.wanted.signal.is_some() || is_seen()) {
                    *refusal = Some(LeftAlone::Handlers);
                }
            }
        }
        Ok(())
    }
}

/// Gives each handler its stub, or none any; whether they have them. Handlers of faults must have one, the others should. Those that are
/// `probed` need none.
fn give(
    process: &Process,
    stopped: &mut Stopped<'_>,
    signals: &Signals,
    returns: &[u64],
    probed: &[u64],
) -> Result<bool, EngineError> {
    let caught = process.status()?.sig_caught;
    let signals_caught: Vec<i32> = (1..=64).filter(|signal| caught & 1 << (signal - 1) != 0).collect();
    let actions = stopped.remote(|remote| {
        signals_caught
            .iter()
            .map(|&signal| Ok((signal, remote.signal_action(signal, None)?)))
            .collect::<Result<Vec<_>, RemoteError>>()
    });
    let actions = match actions {
        Ok(actions) => actions,
        // A sandbox does not allow it.
        Err(RemoteError::Failed { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let mut handlers: Vec<u64> = Vec::new();
    let mut given = Vec::new();
    for (signal, action) in actions.into_iter().filter(|(_, action)| action.is_handled()) {
        let is_probed = returns.contains(&action.restorer);
        if is_probed && probed.contains(&action.handler) {
            continue;
        }
        let known = handlers.iter().position(|handler| *handler == action.handler);
        let index = known.unwrap_or(handlers.len());
        if is_probed && known.is_none() && index < SIGNAL_STUBS as usize {
            handlers.push(action.handler);
        }
        match (is_probed && index < handlers.len()).then_some(index) {
            Some(index) => {
                given.push((signal, action, signals.stubs().start + ((index as u64) << STUB_SHIFT)))
            }
            None if MAY_FAULT.contains(&signal) => return Ok(false),
            None => {}
        }
    }
    let table: Vec<u8> = handlers.iter().flat_map(|handler| handler.to_le_bytes()).collect();
    process.write(RemoteAddr(signals.table + u64::from(SIGNAL_HANDLERS)), &table)?;
    let returns: Vec<u8> = returns.iter().flat_map(|address| address.to_le_bytes()).collect();
    process.write(RemoteAddr(signals.table + u64::from(SIGNAL_RETURNS)), &returns)?;
    let mut done = Vec::new();
    let exchanged = stopped.remote(|remote| {
        for (signal, action, stub) in &given {
            let new = trapless_process::SignalAction { handler: *stub, ..*action };
            remote.signal_action(*signal, Some(new))?;
            done.push((*signal, *action));
        }
        Ok::<_, RemoteError>(())
    });
    match exchanged {
        Ok(()) => Ok(true),
        Err(error) => {
            stopped.remote(|remote| {
                done.iter()
                    .try_for_each(|(signal, action)| remote.signal_action(*signal, Some(*action)).map(drop))
            })?;
            match error {
                RemoteError::Failed { .. } => Ok(false),
                error => Err(error.into()),
            }
        }
    }
}

/// Whether the handler of a signal is one of those that are `probed`, or has a stub, and so is shown the program wherever the signal comes.
pub(crate) fn is_shown(stopped: &mut Stopped<'_>, header: &Header, probed: &[u64], signal: i32) -> bool {
    let Some(signals) = header.signals() else { return false };
    let action = stopped.remote(|remote| remote.signal_action(signal, None));
    action.is_ok_and(|action| signals.stubs().contains(&action.handler) || probed.contains(&action.handler))
}

/// How many times the process has installed a handler that could be given no stub, as far as it tells.
pub(crate) fn without_stub(process: &Process, header: &Header) -> usize {
    let Some(signals) = header.signals() else { return 0 };
    let at = RemoteAddr(signals.table + u64::from(SIGNAL_UNSEEN));
    process.read_word(at).map_or(0, |count| count as usize)
}

/// How many bodies are interrupted by handlers, or were left for good by those that went elsewhere.
pub(crate) fn cut(process: &Process, header: &Header) -> usize {
    let Some(signals) = header.signals() else { return 0 };
    let count = process.read_word(RemoteAddr(signals.table + u64::from(SIGNAL_CUT)));
    count.ok().and_then(|count| usize::try_from(count as i64).ok()).unwrap_or(0)
}

/// How many handlers that have interrupted us are under way, and will come back by what they have noted. None where there are no bodies: elsewhere they
/// are shown all of the program, and can go on there. Beside bodies the rules of calculating are not shown.
pub(crate) fn under_way(process: &Process, stopped: &Stopped<'_>, header: &Header) -> usize {
    let (Some(signals), true) = (header.signals(), header.program != 0) else { return 0 };
    let noted = || {
        let key = process.read_word(RemoteAddr(signals.table + u64::from(SIGNAL_KEY)))?;
        let (maps, all) = (process.maps()?, find_headers(process)?);
        let stacks = Stacks::new(process, stopped, &maps, &all);
        let is_note = |at: u64, value: u64| value ^ key == at.wrapping_sub(NOTE_IN_CONTEXT.into());
        Ok::<_, EngineError>(stacks.count(is_note)?)
    };
    // Nobody knows, so there may be one.
    noted().unwrap_or(1)
}

/// What a forked child has inherited is not its own. If it goes back to a body that its parent was interrupted in, that is one less than none.
pub(crate) fn begin_in_child(process: &Process, header: &Header) -> Result<(), EngineError> {
    let Some(signals) = header.signals() else { return Ok(()) };
    for at in [SIGNAL_CUT, SIGNAL_UNSEEN] {
        process.write(RemoteAddr(signals.table + u64::from(at)), &0u64.to_le_bytes())?;
    }
    Ok(())
}

/// Where handlers of the program return to, that have stubs.
pub(crate) fn returns(process: &Process, header: &Header) -> Vec<Range<u64>> {
    let Some(signals) = header.signals() else { return Vec::new() };
    let mut table = [0; 8 * SIGNAL_MOST_RETURNS as usize];
    if process.read_exact(RemoteAddr(signals.table + u64::from(SIGNAL_RETURNS)), &mut table).is_err() {
        return Vec::new();
    }
    let addresses = table.chunks_exact(8).map(little_endian).take_while(|&address| address != 0);
    addresses.map(|address| address..address.saturating_add(RETURN_LENGTH as u64)).collect()
}

/// Gives the handlers back that stubs stand for. Whether no stub is left.
pub(crate) fn put_back(process: &Process, stopped: &mut Stopped<'_>, header: &Header) -> bool {
    let Some(signals) = header.signals() else { return true };
    let Ok(status) = process.status() else { return false };
    let stubs = signals.stubs();
    let back = stopped.remote(|remote| {
        let mut all = true;
        for signal in (1..=64).filter(|signal| status.sig_caught & 1 << (signal - 1) != 0) {
            let action = remote.signal_action(signal, None)?;
            if !stubs.contains(&action.handler) {
                continue;
            }
            let index = (action.handler - stubs.start) >> STUB_SHIFT;
            let at = signals.table + u64::from(SIGNAL_HANDLERS) + 8 * index;
            let handler = process.read_word(RemoteAddr(at))?;
            // A stub that was never given away: the process has made that up.
            if handler == 0 {
                all = false;
                continue;
            }
            remote.signal_action(signal, Some(trapless_process::SignalAction { handler, ..action }))?;
        }
        Ok::<_, EngineError>(all)
    });
    back.unwrap_or(false)
}
