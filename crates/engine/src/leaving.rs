//! How threads get out of our code in a stopped process, before it goes: step 2 of [removal](mod@crate::remove).

use crate::{EngineError, FoundSession, scan::Ranges, signals, stepping};
use std::time::{Duration, Instant};
use trapless_isa::{Displaced, Slot};
use trapless_process::{Registers, Stepped, Stopped};
use trapless_wire::SiteWrites;

/// The booster's rule. A thread at the copy in a slot goes back to the original instruction, one behind it goes on to
/// the next. Nothing is run for it, so nothing can block or fault.
///
/// Only a copy of several instructions is finished first: what is left of it is jumps, since the first one has run.
pub(crate) fn leave_slots(stopped: &mut Stopped<'_>, session: &FoundSession) -> Result<(), EngineError> {
    let mut slots: Vec<SiteWrites<'_>> = session.journal.sites().filter(|site| site.traps()).collect();
    slots.sort_unstable_by_key(|e| e.detour);
    let in_slots: Vec<_> = stopped
        .threads()
        .iter()
        .filter_map(|thread| {
            let ip = thread.registers().ip().0;
            let after = slots.partition_point(|e| e.detour <= ip);
            let entry = slots[after.checked_sub(1)?];
            (ip - entry.detour <= u64::from(entry.copy)).then_some((thread.tid(), entry))
        })
        .collect();
    for (tid, entry) in in_slots {
        let inside = entry.detour + 1..entry.detour + u64::from(entry.copy);
        // Where it fails the thread is gone, or stays and keeps the memory.
        let _ = stopped.step_until(tid, MAX_COPY, |registers| !inside.contains(&registers.ip().0));
        let Some(thread) = stopped.thread(tid) else { continue };
        let displaced = Displaced { start: entry.site, length: entry.displaced, instructions: 1 };
        let slot = Slot { code: Vec::new(), copy: u32::from(entry.copy), boosted: true };
        let offset = thread.registers().ip().0.wrapping_sub(entry.detour);
        if let Some(ip) = slot.original_of(&displaced, offset) {
            crate::arm::set_ip(stopped, tid, ip)?;
        }
    }
    Ok(())
}

/// The most instructions that a copy in a slot takes.
const MAX_COPY: u32 = 8;

/// The most steps a detour takes: its routines look through some pages of stack.
const MAX_STEPS: u32 = 20_000;

/// The same where it calls bodies, whose loops are bounded, and whose routines read memory by system calls.
const MAX_STEPS_WITH_BODIES: u32 = 400_000;

/// How long all threads together may take for it. A thousand threads in detours need a tenth of it. Where a target has made more of them
/// loop there, the others are not to stand for as long as that takes: what is inside then stays inside, and keeps our memory.
pub(crate) const OUT_WITHIN: Duration = Duration::from_secs(10);

/// The same where the target goes on then, and they with it: what is a pause that nobody notices. A step takes about two microseconds.
pub(crate) const OUT_SOON: Duration = Duration::from_millis(2);

/// Whether every thread is out.
///
/// One that faults in an arena is about to go to its handler, which needs to be shown the program yet: by its stub, or by its own probe.
pub(crate) fn step_out(
    stopped: &mut Stopped<'_>,
    session: &FoundSession,
    arenas: &Ranges,
    within: Duration,
) -> bool {
    let deadline = Instant::now() + within;
    let handlers: Vec<u64> =
        session.journal.planned().filter(|site| site.is_handler()).map(|site| site.site).collect();
    // What they go back to is decided by then, and may be one of our instructions.
    let returns = signals::returns(stopped.process(), &session.header);
    let is_inside = |registers: &Registers| {
        let ip = registers.ip().0;
        arenas.find(ip).is_some()
            || handlers.contains(&ip)
            || returns.iter().any(|returns| returns.contains(&ip))
    };
    let inside: Vec<_> =
        stopped.threads().iter().filter(|t| is_inside(t.registers())).map(|t| t.tid()).collect();
    let most = if session.header.program == 0 { MAX_STEPS } else { MAX_STEPS_WITH_BODIES };
    let mut all_out = true;
    for tid in inside {
        let ends = |registers: &Registers| !is_inside(registers) || Instant::now() >= deadline;
        let mut out = stepping::step_until(stopped, tid, most, ends);
        if let Ok(Stepped::Faulted(signal)) = out
            && signals::is_shown(stopped, &session.header, &handlers, signal)
            && stopped.deliver(tid).is_ok_and(|delivered| delivered)
        {
            out = stepping::step_until(stopped, tid, most, ends);
        }
        let is_out = stopped.thread(tid).is_some_and(|thread| !is_inside(thread.registers()));
        all_out &= matches!(out, Ok(Stepped::Done(_))) && is_out;
    }
    all_out
}
