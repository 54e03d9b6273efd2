//! Where the numbers of a run come from, and its lines: from what sessions measure, or from what expressions tell (`commands/script/quick.rs`).

use super::Armed;
use crate::cli::validated::{Measure, Run};
use crate::error::Error;
use crate::report::{Hit, Note, ProbeSummary};
use crate::session::{Origin, Session, Snapshot};
use trapless_session::clock::Rate;

/// What the numbers of a target do not hold, beside what its session knows.
#[derive(Debug, Default)]
pub(in crate::commands) struct Untold {
    /// Hits that were not shown.
    pub not_shown: u64,
    /// All else.
    pub notes: Vec<Note>,
}

/// Reads what was measured in targets.
pub(in crate::commands) trait Source: Send {
    /// A target is there.
    ///
    /// # Errors
    /// It cannot be read.
    fn joined(&mut self, _pid: i32, _session: &Session) -> Result<(), Error> {
        Ok(())
    }

    /// Hits since the last time, in their order.
    fn hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit>;

    /// What is left when a target has no probes any more.
    fn last_hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit>;

    /// Whether there were more hits than were taken the last time.
    fn is_behind(&self, armed: &Armed) -> bool;

    /// The numbers of a target, since its beginning.
    fn rows(&mut self, armed: &Armed, rate: Rate) -> Vec<ProbeSummary>;

    /// Its numbers since this was asked the last time.
    fn rows_since(&mut self, armed: &mut Armed) -> Vec<ProbeSummary>;

    /// What the numbers do not hold.
    fn losses(&mut self, _armed: &Armed) -> Untold {
        Untold::default()
    }

    /// How many hits count for a limit; `None`: those that were shown do.
    fn counted(&mut self, _armed: &Armed) -> Option<u64> {
        None
    }

    /// Whether the numbers under a limit are made of the hits that were shown.
    fn is_tallied(&self) -> bool {
        true
    }

    /// Whether something is read or done now and then.
    fn needs_ticks(&self) -> bool {
        false
    }

    /// Does what is to be done now and then.
    fn tend(&mut self) {}

    /// Nothing more is asked of a target.
    fn gone(&mut self, _pid: i32) {}
}

/// What sessions measure.
pub(in crate::commands) struct Sessions<'r>(pub &'r Run);

impl Sessions<'_> {
    fn is_trace(&self) -> bool {
        matches!(self.0.measure, Measure::Trace { .. })
    }
}

impl Source for Sessions<'_> {
    fn hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit> {
        let looks = self.is_trace() || self.0.limits.max_events.is_some();
        if looks { armed.calls.take(&armed.session, origin) } else { Vec::new() }
    }

    fn last_hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit> {
        if self.is_trace() { armed.calls.rest(&armed.session, origin) } else { Vec::new() }
    }

    fn is_behind(&self, armed: &Armed) -> bool {
        armed.calls.is_behind()
    }

    fn rows(&mut self, armed: &Armed, rate: Rate) -> Vec<ProbeSummary> {
        armed.session.snapshot().since(&Snapshot::default(), &armed.session, rate)
    }

    fn rows_since(&mut self, armed: &mut Armed) -> Vec<ProbeSummary> {
        let now = armed.session.snapshot();
        let rows = now.since(&armed.before, &armed.session, armed.beginning.rate());
        armed.before = now;
        rows
    }
}
