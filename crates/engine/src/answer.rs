//! What a keeper and its parent tell each other, in bytes and back.
//!
//! The parent made the keeper by a fork, so both are of one version and nothing of it is kept. But a keeper may die in the middle of
//! an answer, and an answer that is read wrongly would be told to the user as what was done to the target. So a reader gives
//! exactly what was written or says what is wrong.
//!
//! The first byte says which answer it is. Numbers are little endian; a text or a list of bytes goes to the end. The bytes
//! of an answer end where it ends: the channel knows where that is.

use crate::{EngineError, Kept, LeftAlone, Removed};
use std::time::Duration;
use thiserror::Error;
use trapless_process::{Pid, StopError, Tid};

/// What a parent asks of a keeper that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To let a launched command run.
    LetRun,
}

/// What a keeper answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The probes are in.
    Armed {
        /// How long the target stood still.
        stopped: Duration,
        /// For each site, why it was left alone after all.
        left_alone: Vec<Option<LeftAlone>>,
    },
    /// An address was taken in the meantime, and nothing was done.
    Taken,
    /// Address space or memory is short, and nothing was done.
    NoMemory,
    /// The launched command runs.
    Runs,
    /// The probes are out.
    Removed(Removed),
    /// It could not be done.
    Failed(Failure),
}

/// Why a keeper could not do its work: those errors that hold nothing but numbers as what they are, and others as their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// [`EngineError::Crowded`]
    Crowded,
    /// [`EngineError::Followed`], by this tool.
    Followed(u32),
    /// [`EngineError::IgnoresTraps`]
    IgnoresTraps,
    /// [`EngineError::BlocksTraps`], in this thread.
    BlocksTraps(Tid),
    /// [`EngineError::ClockForbidden`], in this thread.
    ClockForbidden(Tid),
    /// [`EngineError::Dispatching`], in this thread.
    Dispatching(Tid),
    /// [`StopError::Gone`]
    Gone(Pid),
    /// [`StopError::Execed`]
    Execed(Pid),
    /// [`StopError::SharesMemory`]: the process, and the one that runs in its memory.
    SharesMemory(Pid, Pid),
    /// Another error.
    Other(String),
}

/// Bytes that are no answer, or no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Fewer than it has.
    #[error("it is cut off")]
    CutOff,
    /// More than it has.
    #[error("{0} more bytes follow it")]
    TooLong(usize),
    /// A number that says which one of a few things is meant, and none of them has it.
    #[error("{number} stands for no {what}")]
    Unknown {
        /// What the number is one of.
        what: &'static str,
        /// The number.
        number: u8,
    },
    /// A number that does not go where it belongs.
    #[error("{number} is too large for {what}")]
    TooLarge {
        /// What it is a number of.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// Text that is none.
    #[error("its text is not UTF-8")]
    NotText,
    /// An answer, but to another question.
    #[error("it answers another question")]
    Another,
    /// It tells of more or fewer sites than were to be armed.
    #[error("it tells of {told} sites where {asked} were to be armed")]
    Sites {
        /// So many.
        told: usize,
        /// Of so many.
        asked: usize,
    },
}

impl Request {
    const LET_RUN: u8 = 1;

    /// Its only byte.
    pub fn byte(self) -> u8 {
        match self {
            Request::LetRun => Self::LET_RUN,
        }
    }

    /// The request that a byte stands for.
    ///
    /// # Errors
    /// [`Malformed::Unknown`].
    pub fn read(byte: u8) -> Result<Self, Malformed> {
        match byte {
            Self::LET_RUN => Ok(Request::LetRun),
            number => Err(Malformed::Unknown { what: "request", number }),
        }
    }
}

/// First bytes of answers.
mod answers {
    pub(super) const ARMED: u8 = 1;
    pub(super) const TAKEN: u8 = 2;
    pub(super) const NO_MEMORY: u8 = 3;
    pub(super) const RUNS: u8 = 4;
    pub(super) const REMOVED: u8 = 5;
    pub(super) const FAILED: u8 = 6;
}

/// Second bytes of failures.
mod failures {
    pub(super) const CROWDED: u8 = 1;
    pub(super) const FOLLOWED: u8 = 2;
    pub(super) const IGNORES_TRAPS: u8 = 3;
    pub(super) const BLOCKS_TRAPS: u8 = 4;
    pub(super) const CLOCK_FORBIDDEN: u8 = 5;
    pub(super) const GONE: u8 = 6;
    pub(super) const EXECED: u8 = 7;
    pub(super) const SHARES_MEMORY: u8 = 8;
    pub(super) const OTHER: u8 = 9;
    pub(super) const DISPATCHING: u8 = 10;
}

impl Answer {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Answer::Armed { stopped, left_alone } => {
                let mut bytes = vec![answers::ARMED];
                write_duration(&mut bytes, *stopped);
                bytes.extend(left_alone.iter().map(|left| left.map_or(0, |left| left as u8 + 1)));
                bytes
            }
            Answer::Taken => vec![answers::TAKEN],
            Answer::NoMemory => vec![answers::NO_MEMORY],
            Answer::Runs => vec![answers::RUNS],
            Answer::Removed(removed) => {
                let Removed { restored, left, returns, kept, freed, stopped, ended, without_stub, cut } =
                    *removed;
                let mut bytes = vec![answers::REMOVED, kept.map_or(0, |kept| kept as u8 + 1)];
                for number in [restored, left, returns, freed, ended, without_stub, cut] {
                    bytes.extend((number as u64).to_le_bytes());
                }
                write_duration(&mut bytes, stopped);
                bytes
            }
            Answer::Failed(failure) => {
                let mut bytes = vec![answers::FAILED];
                failure.write(&mut bytes);
                bytes
            }
        }
    }

    /// The answer that bytes hold.
    ///
    /// # Errors
    /// [`Malformed`]: they hold none, or something else beside it.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let answer = match reader.byte()? {
            answers::ARMED => {
                let stopped = reader.duration()?;
                let left_alone =
                    reader.rest().iter().map(|&number| one_of(&LeftAlone::ALL, "refusal", number));
                Answer::Armed { stopped, left_alone: left_alone.collect::<Result<_, _>>()? }
            }
            answers::TAKEN => Answer::Taken,
            answers::NO_MEMORY => Answer::NoMemory,
            answers::RUNS => Answer::Runs,
            answers::REMOVED => Answer::Removed(Removed {
                kept: one_of(&Kept::ALL, "reason to keep memory", reader.byte()?)?,
                restored: reader.count("sites")?,
                left: reader.count("sites")?,
                returns: reader.count("calls")?,
                freed: reader.count("sessions")?,
                ended: reader.count("children")?,
                without_stub: reader.count("handlers")?,
                cut: reader.count("bodies")?,
                stopped: reader.duration()?,
            }),
            answers::FAILED => Answer::Failed(Failure::read(&mut reader)?),
            number => return Err(Malformed::Unknown { what: "answer", number }),
        };
        match reader.0.len() {
            0 => Ok(answer),
            more => Err(Malformed::TooLong(more)),
        }
    }

    /// What was removed.
    ///
    /// # Errors
    /// The keeper's; or this answers another question.
    pub(crate) fn removed(self) -> Result<Removed, EngineError> {
        match self {
            Answer::Removed(removed) => Ok(removed),
            Answer::Failed(failure) => Err(failure.into()),
            _ => Err(Malformed::Another.into()),
        }
    }
}

impl Failure {
    fn write(&self, bytes: &mut Vec<u8>) {
        let (kind, numbers): (u8, &[u32]) = match *self {
            Failure::Crowded => (failures::CROWDED, &[]),
            Failure::Followed(tool) => (failures::FOLLOWED, &[tool]),
            Failure::IgnoresTraps => (failures::IGNORES_TRAPS, &[]),
            Failure::BlocksTraps(tid) => (failures::BLOCKS_TRAPS, &[tid.0 as u32]),
            Failure::ClockForbidden(tid) => (failures::CLOCK_FORBIDDEN, &[tid.0 as u32]),
            Failure::Dispatching(tid) => (failures::DISPATCHING, &[tid.0 as u32]),
            Failure::Gone(pid) => (failures::GONE, &[pid.0 as u32]),
            Failure::Execed(pid) => (failures::EXECED, &[pid.0 as u32]),
            Failure::SharesMemory(pid, other) => (failures::SHARES_MEMORY, &[pid.0 as u32, other.0 as u32]),
            Failure::Other(_) => (failures::OTHER, &[]),
        };
        bytes.push(kind);
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        if let Failure::Other(text) = self {
            bytes.extend(text.as_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match reader.byte()? {
            failures::CROWDED => Failure::Crowded,
            failures::FOLLOWED => Failure::Followed(reader.word()?),
            failures::IGNORES_TRAPS => Failure::IgnoresTraps,
            failures::BLOCKS_TRAPS => Failure::BlocksTraps(Tid(reader.word()? as i32)),
            failures::CLOCK_FORBIDDEN => Failure::ClockForbidden(Tid(reader.word()? as i32)),
            failures::DISPATCHING => Failure::Dispatching(Tid(reader.word()? as i32)),
            failures::GONE => Failure::Gone(Pid(reader.word()? as i32)),
            failures::EXECED => Failure::Execed(Pid(reader.word()? as i32)),
            failures::SHARES_MEMORY => {
                Failure::SharesMemory(Pid(reader.word()? as i32), Pid(reader.word()? as i32))
            }
            failures::OTHER => {
                let text = str::from_utf8(reader.rest()).map_err(|_| Malformed::NotText)?;
                Failure::Other(text.to_owned())
            }
            number => return Err(Malformed::Unknown { what: "failure", number }),
        })
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Crowded => Failure::Crowded,
            EngineError::Followed { tool } => Failure::Followed(tool),
            EngineError::IgnoresTraps => Failure::IgnoresTraps,
            EngineError::BlocksTraps(tid) => Failure::BlocksTraps(tid),
            EngineError::ClockForbidden(tid) => Failure::ClockForbidden(tid),
            EngineError::Dispatching(tid) => Failure::Dispatching(tid),
            EngineError::Stop(StopError::Gone(pid)) => Failure::Gone(pid),
            EngineError::Stop(StopError::Execed(pid)) => Failure::Execed(pid),
            EngineError::Stop(StopError::SharesMemory { pid, other }) => Failure::SharesMemory(pid, other),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Crowded => EngineError::Crowded,
            Failure::Followed(tool) => EngineError::Followed { tool },
            Failure::IgnoresTraps => EngineError::IgnoresTraps,
            Failure::BlocksTraps(tid) => EngineError::BlocksTraps(tid),
            Failure::ClockForbidden(tid) => EngineError::ClockForbidden(tid),
            Failure::Dispatching(tid) => EngineError::Dispatching(tid),
            Failure::Gone(pid) => StopError::Gone(pid).into(),
            Failure::Execed(pid) => StopError::Execed(pid).into(),
            Failure::SharesMemory(pid, other) => StopError::SharesMemory { pid, other }.into(),
            Failure::Other(text) => EngineError::Keeper(text),
        }
    }
}

/// Seconds and nanoseconds.
fn write_duration(bytes: &mut Vec<u8>, duration: Duration) {
    bytes.extend(duration.as_secs().to_le_bytes());
    bytes.extend(duration.subsec_nanos().to_le_bytes());
}

/// What `number` stands for: nothing, or one of `all`, from 1 on.
fn one_of<T: Copy>(all: &[T], what: &'static str, number: u8) -> Result<Option<T>, Malformed> {
    let Some(index) = usize::from(number).checked_sub(1) else { return Ok(None) };
    all.get(index).map(|one| Some(*one)).ok_or(Malformed::Unknown { what, number })
}

/// Bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::CutOff)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take().map(u8::from_le_bytes)
    }

    fn word(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn count(&mut self, what: &'static str) -> Result<usize, Malformed> {
        let number = self.take().map(u64::from_le_bytes)?;
        usize::try_from(number).map_err(|_| Malformed::TooLarge { what, number })
    }

    fn duration(&mut self) -> Result<Duration, Malformed> {
        let seconds = self.take().map(u64::from_le_bytes)?;
        let nanoseconds = self.word()?;
        if nanoseconds >= 1_000_000_000 {
            return Err(Malformed::TooLarge { what: "nanoseconds", number: nanoseconds.into() });
        }
        Ok(Duration::new(seconds, nanoseconds))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests;
