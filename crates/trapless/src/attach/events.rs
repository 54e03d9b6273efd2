//! What happens in a process while it is probed, one thing after the other.

use super::Session;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use trapless_session::error::Error;
use trapless_session::outcome::{Hit, ProbeSummary};
use trapless_session::session::Snapshot;

/// Something that has happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A hit that was recorded ([`Attach::trace`](super::Attach::trace)).
    Hit(Box<Hit>),
    /// An interval is over: what was counted in it, a row for each probe.
    Interval(Vec<ProbeSummary>),
    /// The process is probed no longer. Nothing follows.
    End(Ending),
}

/// How the end came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It has ended.
    Exited,
    /// It runs another program, which has none of the probes.
    RanAnotherProgram,
}

/// The events of a [`Session`], for which it waits. Ends behind [`Event::End`], and when the time is over that it was given.
#[derive(Debug)]
#[must_use = "nothing is read before it is iterated"]
pub struct Events<'s> {
    session: &'s mut Session,
    /// What was read and not yet given.
    read: VecDeque<Event>,
    interval: Option<Duration>,
    next_interval: Option<Instant>,
    before: Snapshot,
    until: Option<Instant>,
    is_over: bool,
}

/// How often rings are emptied.
const TICK: Duration = Duration::from_millis(5);

impl<'s> Events<'s> {
    pub(super) fn new(session: &'s mut Session) -> Self {
        Self {
            session,
            read: VecDeque::new(),
            interval: None,
            next_interval: None,
            before: Snapshot::default(),
            until: None,
            is_over: false,
        }
    }

    /// Gives the numbers of every such interval from now on ([`Event::Interval`]). One that is missed because nobody asked is not made up for.
    pub fn every(mut self, interval: Duration) -> Self {
        self.session.rows_since(&mut self.before);
        self.interval = Some(interval);
        self.next_interval = Instant::now().checked_add(interval);
        self
    }

    /// Ends when so much time is over, with all that was recorded until then.
    pub fn during(self, time: Duration) -> Self {
        Self { until: Instant::now().checked_add(time), ..self }
    }

    /// Reads what there is, and waits a moment if there is nothing.
    fn wait(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        // Asked before the rings are read, so that nothing that came before the end is missed.
        let end = self.session.ends_within(Duration::ZERO);
        self.is_over = end.is_some() || self.until.is_some_and(|until| now >= until);
        self.session.tend()?;
        let hits = match end {
            Some(_) => self.session.read_rest(),
            None => self.session.read(),
        };
        self.read.extend(hits.into_iter().map(|hit| Event::Hit(Box::new(hit))));
        if let Some((at, interval)) = self.next_interval.zip(self.interval)
            && (now >= at || end.is_some())
        {
            self.read.push_back(Event::Interval(self.session.rows_since(&mut self.before)));
            let missed = now.saturating_duration_since(at).as_nanos() / interval.as_nanos().max(1);
            let steps = u32::try_from(missed + 1).unwrap_or(u32::MAX);
            self.next_interval = interval.checked_mul(steps).and_then(|ahead| at.checked_add(ahead));
        }
        self.read.extend(end.map(Event::End));
        if self.read.is_empty() && !self.is_over {
            let next = [self.next_interval, self.until].into_iter().flatten().min();
            let patience = next.map_or(TICK, |next| next.saturating_duration_since(now).min(TICK));
            self.session.ends_within(patience);
        }
        Ok(())
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Some(Ok(event));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.wait() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
