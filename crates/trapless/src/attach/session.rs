//! Probes that are armed: what they count, and their end.

use super::{Event, Events};
use std::time::{Duration, Instant};
use trapless_process::{Process, StopOptions};
use trapless_session::error::Error;
use trapless_session::outcome::{Hit, Losses, ProbeSummary, Skipped};
use trapless_session::session::notes::{of_handlers, of_memory};
use trapless_session::session::{self, Calls, Origin, Snapshot};

/// Probes in another process. Dropping it takes them out, as [`Session::remove`] does, which also tells what there was.
///
/// If this process is killed, the probes stay, and the other runs on with them: whoever attaches next takes them out, and `trapless
/// detach` does.
#[must_use = "the probes are taken out when it is dropped"]
pub struct Session {
    process: Process,
    armed: session::Session,
    options: StopOptions,
    calls: Calls,
    /// When the bytes at the sites are looked at again, and how long after that.
    next_look: Instant,
    patience: Duration,
    is_removed: bool,
}

/// How soon after arming the bytes at the sites are looked at again, and how often after a while.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long a process that has given up its memory may take to be seen to have ended.
pub(crate) const ENDING: Duration = Duration::from_millis(200);

/// How long what is left in the rings may take to be read at the end. A hostile process goes on filling them.
const READING: Duration = Duration::from_secs(1);

/// What there was, when the probes are out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// A row for each entry and each return that was asked for, hit or not.
    pub probes: Vec<ProbeSummary>,
    /// Recorded hits that had not been read, and entries of calls that have not returned.
    pub hits: Vec<Hit>,
    /// Sites that matched and were left alone.
    pub skipped: Vec<Skipped>,
    /// From armed to removed.
    pub duration: Duration,
    /// How long the process stood still, for arming and for removal.
    pub stopped: Duration,
    /// What the numbers do not hold, or hold of others.
    pub losses: Losses,
}

impl Session {
    pub(super) fn new(process: Process, armed: session::Session, options: StopOptions) -> Self {
        let (patience, _) = LOOK;
        let next_look = Instant::now() + patience;
        Self { process, armed, options, calls: Calls::default(), next_look, patience, is_removed: false }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.process.pid().0.unsigned_abs()
    }

    /// Whether it lives.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Sites that matched and were left alone, and why.
    pub fn skipped(&self) -> &[Skipped] {
        self.armed.skipped()
    }

    /// How long the process stood still to be armed.
    pub fn stopped(&self) -> Duration {
        self.armed.stopped()
    }

    /// How many hits there were so far of all probes together. Cheaper than [`Self::snapshot`].
    pub fn hits(&self) -> u64 {
        self.armed.hits()
    }

    /// All numbers so far: a row for each entry and each return that was asked for, with times where they were.
    pub fn snapshot(&self) -> Vec<ProbeSummary> {
        self.rows_since(&mut Snapshot::default())
    }

    /// What the numbers do not hold so far, or hold of others.
    pub fn losses(&self) -> Losses {
        self.armed.losses(&self.armed.snapshot())
    }

    /// What happens from now on: recorded hits, the numbers of each interval where those are asked for ([`Events::every`]), and the end
    /// of the process.
    ///
    /// ```no_run
    /// use trapless::Event;
    ///
    /// let mut session = trapless::attach(4242)?.trace_calls("libc.so.6:open", 2)?.arm()?;
    /// for event in session.events() {
    ///     match event? {
    ///         Event::Hit(hit) => println!("{} took {:?} ns", hit.function, hit.duration_ns),
    ///         Event::End(how) => println!("it is over: {how:?}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), trapless::Error>(())
    /// ```
    pub fn events(&mut self) -> Events<'_> {
        Events::new(self)
    }

    /// Takes the recorded hits that there are, in the order of their time, without waiting for more.
    ///
    /// # Errors
    /// The helper that served probes which trap was killed; they are out then.
    pub fn take_hits(&mut self) -> Result<Vec<Hit>, Error> {
        self.tend()?;
        Ok(self.read())
    }

    /// Takes the probes out, and tells what there was. A process that has ended took them along.
    ///
    /// # Errors
    /// The process cannot be stopped or changed. It runs on with its probes, and they are tried to be taken out by whoever attaches next, and
    /// by `trapless detach`.
    pub fn remove(mut self) -> Result<Summary, Error> {
        self.is_removed = true;
        let mut stopped = self.armed.stopped();
        let duration = self.armed.clock().elapsed();
        let mut memory = of_memory(self.armed.freed(), None);
        if self.process.is_alive() {
            self.armed.look_again(&self.process, true);
            match self.armed.remove(&self.process, &self.options) {
                Ok(removed) => {
                    stopped += removed.stopped;
                    memory = of_memory(self.armed.freed() + removed.freed, removed.kept);
                    memory.extend(of_handlers(&removed));
                }
                Err(_) if self.process.has_ended_within(ENDING) => {}
                Err(why) => return Err(why),
            }
        }
        let hits = self.read_rest();
        let now = self.armed.snapshot();
        let mut losses = self.armed.losses(&now);
        losses.notes.extend(memory);
        Ok(Summary {
            probes: now.since(&Snapshot::default(), &self.armed, self.armed.clock().rate()),
            hits,
            skipped: self.armed.skipped().to_vec(),
            duration,
            stopped,
            losses,
        })
    }

    /// The rows since a snapshot, which becomes the one of now.
    pub(super) fn rows_since(&self, before: &mut Snapshot) -> Vec<ProbeSummary> {
        let now = self.armed.snapshot();
        let rows = now.since(before, &self.armed, self.armed.clock().rate());
        *before = now;
        rows
    }

    /// Sees to what has to be seen to while probes are in.
    pub(super) fn tend(&mut self) -> Result<(), Error> {
        self.armed.tend(&self.process, &self.options)?;
        if Instant::now() >= self.next_look && self.process.is_alive() {
            self.armed.look_again(&self.process, false);
            let (_, longest) = LOOK;
            self.patience = (2 * self.patience).min(longest);
            self.next_look = Instant::now() + self.patience;
        }
        Ok(())
    }

    /// How it has ended, if it does within `patience`.
    pub(super) fn ends_within(&self, patience: Duration) -> Option<super::Ending> {
        if self.process.has_ended_within(patience) {
            return Some(super::Ending::Exited);
        }
        let other = self.process.runs_another_program() || self.armed.replaced_by().is_some();
        other.then_some(super::Ending::RanAnotherProgram)
    }

    pub(super) fn read(&mut self) -> Vec<Hit> {
        self.calls.take(&self.armed, self.origin())
    }

    /// All that is in the rings, as far as it can be read in time, and the entries that wait for their returns.
    pub(super) fn read_rest(&mut self) -> Vec<Hit> {
        let until = Instant::now() + READING;
        let mut hits = self.read();
        while self.calls.is_behind() && Instant::now() < until {
            hits.append(&mut self.read());
        }
        hits.append(&mut self.calls.rest(&self.armed, self.origin()));
        hits
    }

    fn origin(&self) -> Origin {
        let clock = self.armed.clock();
        Origin { pid: self.process.pid().0, clock, rate: clock.rate() }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_removed && self.process.is_alive() {
            // What cannot be done now is done by whoever attaches next.
            let _ = self.armed.remove(&self.process, &self.options);
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let probes = self.armed.probes().len();
        f.debug_struct("Session").field("pid", &self.pid()).field("probes", &probes).finish_non_exhaustive()
    }
}

/// All events until the end.
impl<'s> IntoIterator for &'s mut Session {
    type Item = Result<Event, Error>;
    type IntoIter = Events<'s>;
    fn into_iter(self) -> Events<'s> {
        self.events()
    }
}
