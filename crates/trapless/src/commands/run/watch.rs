//! From armed to the end of the run: what is shown meanwhile, and what is seen to.
//!
//! It sleeps until something happens: a signal, a target's end, the time at which the collector wants to be asked. Besides, the bytes at the sites are
//! looked at now and then ([`LOOK`]).

use super::collect::{Collector, Flow};
use super::{Armed, pending::Pending};
use crate::cli::validated::Run;
use crate::commands::signals::Ended;
use crate::commands::wake::Wake;
use crate::error::Error;
use crate::report::{Exit, Running};
use crate::session::Hold;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How soon after arming the bytes at the sites are looked at again, and how often after a while.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Until a limit is reached, a signal comes, or every target has ended.
///
/// # Errors
/// The output broke, or a tracer died.
pub(super) fn watch(
    run: &Run,
    targets: &mut [Armed],
    collector: &mut dyn Collector,
    exited: &mut dyn FnMut() -> Option<Exit>,
    ended: Ended,
    running: &Running,
) -> Result<(), Error> {
    let start = Instant::now();
    let deadline = run.limits.duration.and_then(|limit| start.checked_add(limit));
    if let Some(deadline) = deadline {
        running.end_at(deadline);
    }
    for armed in targets.iter_mut().filter(|armed| !armed.announced) {
        armed.announced = true;
        collector.armed(armed.pid(), &armed.session)?;
    }
    let (mut patience, longest) = LOOK;
    let mut next_look = start + patience;
    loop {
        // Asked before the numbers are read, so that nothing that came before the end is missed.
        let over = ended.get()
            || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || exited().is_some()
            || targets.iter().all(|armed| !armed.process.is_alive());
        for armed in targets.iter_mut() {
            armed.ran_another_program |= armed.process.runs_another_program();
            let options = super::super::stop_options(run.allow_seccomp);
            armed.session.tend(&armed.process, &options)?;
            if let Some(pending) = armed.pending.as_mut().filter(|_| !armed.ran_another_program) {
                pending.look(run, &armed.process, &mut armed.session, Hold::Stop(options));
            }
        }
        if collector.take(targets)? == Flow::Enough || over {
            return Ok(());
        }
        let now = Instant::now();
        if now >= next_look {
            for armed in targets.iter().filter(|armed| armed.process.is_alive()) {
                armed.session.look_again(&armed.process, false);
            }
            patience = (2 * patience).min(longest);
            next_look = now + patience;
        }
        collector.tick(now, targets)?;
        let pending = targets.iter().filter_map(|armed| armed.pending.as_ref()?.next_look()).min();
        let times = [Some(next_look), deadline, collector.next(), pending];
        sleep(targets, times.into_iter().flatten().min());
    }
}

fn sleep(targets: &[Armed], until: Option<Instant>) {
    let mut wake = Wake::new();
    // One that has ended has nothing more to say.
    for armed in targets.iter().filter(|armed| armed.process.is_alive()) {
        wake.on(armed.process.pidfd().map(|pidfd| pidfd.as_raw_fd()));
        if let Some(tracer) = armed.session.tracer_descriptor() {
            wake.on(Some(tracer));
        }
        if let Some(changes) = armed.pending.as_ref().and_then(Pending::descriptor) {
            wake.on(Some(changes));
        }
    }
    wake.sleep(until);
}
