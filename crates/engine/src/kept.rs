//! Arming and removing from a keeper process, so that a target is never left half done.
//!
//! The keeper is forked with the finished blueprint in its memory, does the stop, and hands back a few numbers and the
//! shared region's file. When its parent is gone by the time it has armed, nobody will ever read the counters: it
//! takes everything out again.

use crate::{Armed, Blueprint, EngineError, FoundSession, Kept, Refusal, Removed, remove};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    time::Duration,
};
use trapless_process::{Errno, Process, StopOptions, keeper};
use trapless_wire::SiteState;

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

impl Blueprint<'_> {
    /// Arms from a keeper.
    pub fn arm_kept(&self, process: &Process, options: &StopOptions) -> Result<Armed, Attempt> {
        let channel = UnixDatagram::pair().map_err(|error| Attempt::Failed(EngineError::Map(error)))?;
        let answer = keeper::run(|parent| {
            let answer = process
                .stop_with(options)
                .map_err(EngineError::from)
                .and_then(|mut stopped| {
                    let mut armed = self.arm(&mut stopped)?;
                    armed.stopped = stopped.resume_and_detach();
                    Ok(armed)
                })
                .and_then(|armed| {
                    send(&channel.1, &armed.memory).map_err(EngineError::Map)?;
                    Ok(armed)
                });
            if parent.gone() && answer.is_ok() {
                let session = FoundSession::own(self.header, self.journal.clone());
                if let Ok(stopped) = process.stop_with(options) {
                    let _ = remove(process, stopped, &session);
                }
            }
            encode(&answer.map_err(Attempt::from))
        });
        let answer = answer.map_err(|error| Attempt::Failed(EngineError::Keeper(error.to_string())))?;
        let (stopped, refused) = self.decode(&answer)?;
        let memory = receive(&channel.0, RecvFlags::DONTWAIT)
            .map_err(|error| Attempt::Failed(EngineError::Map(error)))?;
        Ok(self.armed(memory, stopped, refused))
    }

    /// What a keeper has armed.
    pub(crate) fn armed(&self, memory: OwnedFd, stopped: Duration, refused: Vec<Option<Refusal>>) -> Armed {
        let mut journal = self.journal.clone();
        for (entry, _) in journal.iter_mut().zip(&refused).filter(|(_, refused)| refused.is_some()) {
            entry.state = SiteState::Skipped as u8;
        }
        Armed { memory, header: self.header, journal, stopped, refused }
    }

    pub(crate) fn decode(&self, answer: &[u8]) -> Result<(Duration, Vec<Option<Refusal>>), Attempt> {
        let broken = || Attempt::Failed(EngineError::Keeper("the keeper's answer is cut off".into()));
        match answer {
            [ARMED, rest @ ..] => {
                let (micros, codes) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
                let refused: Vec<_> = codes.iter().map(|&code| refusal(code)).collect();
                let stopped = Duration::from_micros(u64::from_le_bytes(*micros));
                if refused.len() == self.journal.len() { Ok((stopped, refused)) } else { Err(broken()) }
            }
            [TAKEN, ..] => Err(Attempt::Taken),
            [NO_MEMORY, ..] => Err(Attempt::NoMemory),
            [FAILED, text @ ..] => {
                Err(Attempt::Failed(EngineError::Keeper(String::from_utf8_lossy(text).into())))
            }
            _ => Err(broken()),
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
        match removed {
            Ok(removed) => encode_removed(&removed),
            Err(error) => failed(&error),
        }
    });
    let answer = answer.map_err(|error| EngineError::Keeper(error.to_string()))?;
    decode_removed(&answer)
}

pub(crate) fn encode_removed(r: &Removed) -> Vec<u8> {
    let kept = Kept::ALL.iter().position(|kept| r.kept == Some(*kept)).map_or(0, |index| index + 1);
    let numbers = [r.restored, r.left, r.returns, r.freed, kept].map(|n| n as u64);
    let numbers = numbers.into_iter().chain([r.stopped.as_micros() as u64, r.ended as u64]);
    std::iter::once(ARMED).chain(numbers.flat_map(u64::to_le_bytes)).collect()
}

pub(crate) fn decode_removed(answer: &[u8]) -> Result<Removed, EngineError> {
    match answer {
        [ARMED, rest @ ..] if rest.len() == 56 => {
            let number = |i: usize| u64::from_le_bytes(rest[8 * i..8 * i + 8].try_into().unwrap_or_default());
            Ok(Removed {
                restored: number(0) as usize,
                left: number(1) as usize,
                returns: number(2) as usize,
                freed: number(3) as usize,
                kept: (number(4) as usize).checked_sub(1).and_then(|index| Kept::ALL.get(index)).copied(),
                stopped: Duration::from_micros(number(5)),
                ended: number(6) as usize,
            })
        }
        [_, text @ ..] => Err(EngineError::Keeper(String::from_utf8_lossy(text).into())),
        [] => Err(EngineError::Keeper("the keeper gave no answer".into())),
    }
}

const ARMED: u8 = b'a';
const TAKEN: u8 = b't';
const NO_MEMORY: u8 = b'm';
const FAILED: u8 = b'f';

pub(crate) fn encode(answer: &Result<Armed, Attempt>) -> Vec<u8> {
    match answer {
        Ok(armed) => encode_armed(armed),
        Err(Attempt::Taken) => vec![TAKEN],
        Err(Attempt::NoMemory) => vec![NO_MEMORY],
        Err(Attempt::Failed(error)) => failed(error),
    }
}

pub(crate) fn encode_armed(armed: &Armed) -> Vec<u8> {
    let micros = (armed.stopped.as_micros() as u64).to_le_bytes();
    let codes = armed.refused.iter().map(|refused| match refused {
        None => 0,
        Some(Refusal::OnStack) => 1,
        Some(_) => 2,
    });
    std::iter::once(ARMED).chain(micros).chain(codes).collect()
}

pub(crate) fn failed(error: &EngineError) -> Vec<u8> {
    std::iter::once(FAILED).chain(error.to_string().into_bytes()).collect()
}

fn refusal(code: u8) -> Option<Refusal> {
    match code {
        0 => None,
        1 => Some(Refusal::OnStack),
        _ => Some(Refusal::Modified),
    }
}

pub(crate) fn send(channel: &impl AsFd, fd: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(channel, &[IoSlice::new(b"m")], &mut ancillary, SendFlags::empty())
    })?;
    Ok(())
}

pub(crate) fn receive(channel: &impl AsFd, flags: RecvFlags) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    // A Ctrl-C meanwhile is heard later.
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
    })?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fd.ok_or_else(|| io::Error::other("no file came with the keeper's answer"))
}
