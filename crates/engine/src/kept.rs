//! Arming and removing from a keeper process, so that a target is never left half done.
//!
//! The keeper is forked with the finished blueprint in its memory, does the stop, and hands back a few numbers and the
//! shared region's file. When its parent is gone by the time it has armed, nobody will ever read the counters: it
//! takes everything out again.

use crate::{
    Added, Armed, Blueprint, EngineError, FoundSession, LeftAlone, Removed, Session, Wanted,
    answer::{Answer, Malformed},
    arm::skip_refused,
    channel::Channel,
    home::Hosting,
    remove,
};
use std::{os::fd::OwnedFd, time::Duration};
use trapless_process::{Errno, Process, StopOptions, keeper};
use trapless_wire::Journal;

/// How an attempt to arm ended without success.
#[derive(Debug)]
pub enum Attempt {
    /// An address was taken in the meantime: draw again.
    Taken,
    /// Address space or memory is short: draw smaller.
    NoMemory,
    /// Anything else; the target is as it was, or gone.
    Failed(EngineError),
}

impl From<EngineError> for Attempt {
    fn from(error: EngineError) -> Self {
        let errno = match &error {
            EngineError::Remote(error) => error.errno(),
            _ => None,
        };
        match (error, errno) {
            (EngineError::Crowded, _) | (_, Some(Errno(libc::EEXIST))) => Attempt::Taken,
            (_, Some(Errno(libc::ENOMEM))) => Attempt::NoMemory,
            (error, _) => Attempt::Failed(error),
        }
    }
}

impl From<Attempt> for Answer {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Taken => Answer::Taken,
            Attempt::NoMemory => Answer::NoMemory,
            Attempt::Failed(error) => Answer::Failed(error.into()),
        }
    }
}

impl Armed {
    /// What is told of it.
    pub(crate) fn answer(&self) -> Answer {
        told(self.stopped, &self.refused)
    }
}

fn told(stopped: Duration, refused: &[Option<LeftAlone>]) -> Answer {
    Answer::Armed { stopped, left_alone: refused.to_vec() }
}

impl Blueprint<'_, '_> {
    /// Arms from a keeper.
    pub fn arm_kept(&self, process: &Process, options: &StopOptions) -> Result<Armed, Attempt> {
        let (ours, theirs) = Channel::pair().map_err(Attempt::Failed)?;
        // Moved in, so that our copy of the keeper's end is closed.
        let answer = keeper::run(move |parent| {
            let armed = process.stop_with(options).map_err(EngineError::from).and_then(|mut stopped| {
                let mut armed = self.arm(&mut stopped)?;
                armed.stopped = stopped.resume_and_detach();
                Ok(armed)
            });
            let armed = armed.and_then(|armed| {
                theirs.send(&armed.memory)?;
                Ok(armed)
            });
            if parent.gone() && armed.is_ok() {
                let session = FoundSession::own(self.header, self.journal.clone());
                if let Ok(stopped) = process.stop_with(options) {
                    let _ = remove(process, stopped, &session);
                }
            }
            armed.map_or_else(|error| Attempt::from(error).into(), |armed| armed.answer()).bytes()
        });
        let failed = |error: EngineError| Attempt::Failed(error);
        let answer = answer.map_err(|error| failed(error.into()))?;
        let answer = Answer::read(&answer).map_err(|error| failed(error.into()))?;
        let (stopped, left_alone) = self.told(answer)?;
        let memory = ours.receive().map_err(|error| failed(error.into()))?;
        Ok(self.armed(memory, stopped, left_alone))
    }

    /// Adds the sites to a session from a keeper. Should its parent be gone by then, the session is as any that was left behind.
    ///
    /// # Errors
    /// Those of [`Blueprint::add`].
    pub fn add_kept(
        &self,
        process: &Process,
        session: &Session,
        options: &StopOptions,
    ) -> Result<Added, Attempt> {
        let answer = keeper::run(|_| {
            let added = process.stop_with(options).map_err(EngineError::from).and_then(|mut stopped| {
                let mut added = self.add(&mut stopped, session)?;
                added.stopped = stopped.resume_and_detach();
                Ok(added)
            });
            let answer = |added: Added| told(added.stopped, &added.refused);
            added.map_or_else(|error| Attempt::from(error).into(), answer).bytes()
        });
        let failed = |error: EngineError| Attempt::Failed(error);
        let answer = answer.map_err(|error| failed(error.into()))?;
        let (stopped, refused) = self.told(Answer::read(&answer).map_err(|error| failed(error.into()))?)?;
        Ok(self.added(stopped, refused))
    }

    /// What was armed.
    pub(crate) fn armed(&self, memory: OwnedFd, stopped: Duration, refused: Vec<Option<LeftAlone>>) -> Armed {
        let is_in = |wanted: fn(&Wanted) -> bool| {
            let mut asked =
                self.plan.sites.iter().zip(&refused).filter(|(site, _)| wanted(&site.request.wanted));
            asked.all(|(_, refused)| refused.is_none())
        };
        let header = self.header;
        let hosting = Hosting {
            layout: self.layout,
            geometry: self.plan.geometry.within(header.block_stride),
            places: self.schema.len() as u64,
            semaphores: self.semaphores.len() as u64,
            shows: header.signals != 0 && is_in(|wanted| wanted.signal.is_some()),
            has_gate: self.plan.sites.iter().any(|site| site.request.wanted.gate)
                && is_in(|wanted| wanted.gate),
        };
        Armed { memory, header, journal: self.journal_without(&refused), hosting, stopped, refused }
    }

    /// What was added.
    pub(crate) fn added(&self, stopped: Duration, refused: Vec<Option<LeftAlone>>) -> Added {
        let (header, geometry) = (self.header, self.plan.geometry);
        let (places, semaphores) = (self.schema.len() as u64, self.semaphores.len() as u64);
        let journal = self.journal_without(&refused);
        Added { header, geometry, journal, places, semaphores, stopped, refused }
    }

    /// The journal as it is written where sites were left alone.
    fn journal_without(&self, refused: &[Option<LeftAlone>]) -> Journal {
        let mut journal = self.journal.clone();
        skip_refused(&mut journal, refused);
        journal
    }

    /// What a keeper tells that was to arm this.
    pub(crate) fn told(&self, answer: Answer) -> Result<(Duration, Vec<Option<LeftAlone>>), Attempt> {
        let malformed = |malformed: Malformed| Attempt::Failed(malformed.into());
        match answer {
            Answer::Armed { stopped, left_alone } => {
                let (told, asked) = (left_alone.len(), self.journal.len());
                if told == asked {
                    Ok((stopped, left_alone))
                } else {
                    Err(malformed(Malformed::Sites { told, asked }))
                }
            }
            Answer::Taken => Err(Attempt::Taken),
            Answer::NoMemory => Err(Attempt::NoMemory),
            Answer::Failed(failure) => Err(Attempt::Failed(failure.into())),
            Answer::Runs | Answer::Removed(_) => Err(malformed(Malformed::Another)),
        }
    }
}

/// Removes a session from a keeper.
pub fn remove_kept(
    process: &Process,
    session: &FoundSession,
    options: &StopOptions,
) -> Result<Removed, EngineError> {
    let answer = keeper::run(|_| {
        let removed = process
            .stop_with(options)
            .map_err(EngineError::from)
            .and_then(|stopped| remove(process, stopped, session));
        Answer::from(removed).bytes()
    })?;
    Answer::read(&answer)?.removed()
}

impl From<Result<Removed, EngineError>> for Answer {
    fn from(removed: Result<Removed, EngineError>) -> Self {
        removed.map_or_else(|error| Answer::Failed(error.into()), Answer::Removed)
    }
}
