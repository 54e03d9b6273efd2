//! The way between a keeper and its parent: a pair of sockets, over which answers, requests and the shared region's file go.
//!
//! An answer is written with its length, since others may follow it. The file comes by a byte of its own, behind
//! the answer that says it comes.

use crate::{
    EngineError,
    answer::{Answer, Malformed, Request},
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};
use thiserror::Error;

/// Why nothing was heard, or told.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The way there is broken, or the other side is silent.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is no answer.
    #[error("it gave an answer that is none: {0}")]
    Malformed(#[from] Malformed),
    /// The file did not come.
    #[error("no file came with its answer")]
    NoFile,
}

/// An answer has a byte for each site, and no session has more sites than this.
const MOST: u64 = 16 << 20;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// The parent's end and the keeper's.
    pub fn pair() -> Result<(Channel, Channel), EngineError> {
        let (ours, theirs) = UnixStream::pair().map_err(ChannelError::Io)?;
        Ok((Channel(ours), Channel(theirs)))
    }

    /// Waits so long, and no longer, whenever something is to be heard.
    pub fn wait_at_most(&self, patience: Duration) -> Result<(), ChannelError> {
        Ok(self.0.set_read_timeout(Some(patience))?)
    }

    /// Tells an answer.
    pub fn tell(&mut self, answer: &Answer) -> Result<(), ChannelError> {
        let bytes = answer.bytes();
        self.0.write_all(&(bytes.len() as u64).to_le_bytes())?;
        Ok(self.0.write_all(&bytes)?)
    }

    /// Hears an answer.
    pub fn hear(&mut self) -> Result<Answer, ChannelError> {
        let mut length = [0; 8];
        self.0.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > MOST {
            return Err(Malformed::TooLarge { what: "an answer's length", number: length }.into());
        }
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(Answer::read(&bytes)?)
    }

    /// Asks for something.
    pub fn ask(&mut self, request: Request) -> Result<(), ChannelError> {
        Ok(self.0.write_all(&[request.byte()])?)
    }

    /// What is asked for; `None` if nothing is, for as long as one was to wait.
    pub fn asked(&mut self) -> Result<Option<Request>, ChannelError> {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(1..) => Ok(Some(Request::read(byte[0])?)),
            // The keeper holds the other end, too, so it never reads its end.
            Ok(0) | Err(_) => Ok(None),
        }
    }

    /// Sends the shared region's file.
    pub fn send(&self, file: &OwnedFd) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.0, &[IoSlice::new(b"m")], &mut ancillary, SendFlags::empty())
        })
        .map_err(io::Error::from)?;
        Ok(())
    }

    /// Takes the file that was sent.
    pub fn receive(&self) -> Result<OwnedFd, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        // A Ctrl-C meanwhile is heard later.
        rustix::io::retry_on_intr(|| {
            let flags = RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
        })
        .map_err(io::Error::from)?;
        let file = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        file.ok_or(ChannelError::NoFile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Failure;
    use std::os::unix::fs::FileTypeExt;

    #[test]
    fn answers_come_one_by_one_and_the_file_behind_its_own() {
        let (mut ours, mut theirs) = Channel::pair().unwrap();
        let armed = Answer::Armed { stopped: Duration::from_micros(5), left_alone: vec![None; 3] };
        theirs.tell(&armed).unwrap();
        theirs.send(&std::fs::File::open("/dev/null").unwrap().into()).unwrap();
        theirs.tell(&Answer::Runs).unwrap();
        assert_eq!(ours.hear().unwrap(), armed);
        let file = std::fs::File::from(ours.receive().unwrap());
        assert!(file.metadata().unwrap().file_type().is_char_device());
        assert_eq!(ours.hear().unwrap(), Answer::Runs);
    }

    #[test]
    fn a_request_is_heard_and_a_silent_parent_asks_for_nothing() {
        let (mut ours, mut theirs) = Channel::pair().unwrap();
        theirs.wait_at_most(Duration::from_millis(1)).unwrap();
        assert_eq!(theirs.asked().unwrap(), None);
        ours.ask(Request::LetRun).unwrap();
        assert_eq!(theirs.asked().unwrap(), Some(Request::LetRun));
        ours.0.write_all(b"?").unwrap();
        assert!(matches!(theirs.asked(), Err(ChannelError::Malformed(Malformed::Unknown { .. }))));
    }

    #[test]
    fn a_keeper_that_dies_in_the_middle_has_answered_nothing() {
        let bytes = Answer::Failed(Failure::Followed(7)).bytes();
        let frame = [&(bytes.len() as u64).to_le_bytes()[..], &bytes].concat();
        for told in 0..frame.len() {
            let (mut ours, theirs) = Channel::pair().unwrap();
            (&theirs.0).write_all(&frame[..told]).unwrap();
            drop(theirs);
            assert!(matches!(ours.hear(), Err(ChannelError::Io(_))), "{told} bytes");
            assert!(ours.receive().is_err());
        }
    }

    #[test]
    fn a_length_that_no_answer_has_takes_no_memory() {
        let (mut ours, theirs) = Channel::pair().unwrap();
        (&theirs.0).write_all(&u64::MAX.to_le_bytes()).unwrap();
        assert!(matches!(ours.hear(), Err(ChannelError::Malformed(Malformed::TooLarge { .. }))));
    }
}
