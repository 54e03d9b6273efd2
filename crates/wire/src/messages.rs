//! Messages: what bodies of scripts tell the tool, in a ring of bytes for each thread.
//!
//! [`THREAD_HEAD`] and [`THREAD_TAIL`] count bytes and never go back; where a byte is in the ring,
//! the low bits of its number say. A record lies in whole words, and does not go over the ring's end:
//!
//! | word | what |
//! |---|---|
//! | 0 | size in bytes (low 31 bits), [`RESERVED`] while it is not complete, and the message's number + 1 in the upper half; 0 there fills up to the ring's end |
//! | 1 | clock ticks |
//! | 2 | the thread's id (low half) and the site (upper half) |
//! | then | the parts: a word; bytes, padded with anything to whole words; of a text first a word with its length, then its bytes, padded |
//!
//! The thread reserves by a compare-and-swap of the head, a bounded number of times, writes the first word with [`RESERVED`], the rest, and
//! then the first word without. Where there is no room it adds 1 to [`THREAD_LOST`]. The tool makes all that it has
//! read 0 before it moves the tail, so a first word that is 0 says that the record was reserved and nothing of it was written.
//!
//! A thread may be left in the middle of a record for good. Those behind it are complete, or were left as well. So when the tool has waited
//! long enough it goes on: behind a record whose size is known, or with the first word that is not 0.
//!
//! A ring that one writer alone has, whom nothing interrupts, needs no reservation: there records are complete before the head says that they
//! are there ([`MessageRing::write`]).

use crate::{PAGE, Words, WordsMut};
use crate::{THREAD_HEAD, THREAD_LOST, THREAD_RING, THREAD_TAIL};

/// In a record's first word: it is not complete yet.
pub const RESERVED: u64 = 1 << 31;
/// Bytes of a record ahead of its parts.
pub const RECORD_HEAD: u32 = 24;

/// A message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// When: clock ticks.
    pub ticks: u64,
    /// What: number of the message.
    pub number: u32,
    /// Id of the thread, or 0.
    pub tid: u32,
    /// Which site was hit.
    pub site: u32,
    /// Its parts, as words.
    pub words: Vec<u64>,
}

/// What a part of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePart {
    /// A word.
    Word,
    /// So many bytes.
    Bytes(u32),
    /// At most so many bytes, behind a word with their number.
    Text(u32),
}

impl Message {
    /// The bytes of its parts. `None` if it is not made of such parts.
    ///
    /// ```
    /// use trapless_wire::{Message, MessagePart};
    /// let message = Message { ticks: 0, number: 0, tid: 0, site: 0, words: vec![7, 2, 0x6968] };
    /// let parts = message.parts(&[MessagePart::Word, MessagePart::Text(64)]).unwrap();
    /// assert_eq!(parts[1], b"hi");
    /// assert_eq!(message.parts(&[MessagePart::Word]), None);
    /// ```
    pub fn parts(&self, kinds: &[MessagePart]) -> Option<Vec<Vec<u8>>> {
        let mut words = self.words.iter().copied();
        let mut take = |bytes: u64| {
            let wanted = usize::try_from(bytes.div_ceil(8)).ok()?;
            let taken: Vec<u8> = words.by_ref().take(wanted).flat_map(u64::to_le_bytes).collect();
            (taken.len() == 8 * wanted).then(|| taken[..bytes as usize].to_vec())
        };
        let part = |kind: &MessagePart| match kind {
            MessagePart::Word => take(8),
            MessagePart::Bytes(size) => take((*size).into()),
            MessagePart::Text(most) => {
                let length = take(8)?.try_into().map(u64::from_le_bytes).ok()?;
                (length <= u64::from(*most)).then(|| take(length))?
            }
        };
        let parts = kinds.iter().map(part).collect::<Option<_>>()?;
        words.next().is_none().then_some(parts)
    }
}

impl MessagePart {
    /// Adds a part to a message's words: bytes beyond what the part may have are left out, and what is missing of a word is 0.
    ///
    /// ```
    /// use trapless_wire::MessagePart;
    /// let mut words = Vec::new();
    /// MessagePart::Text(64).append(b"hi", &mut words);
    /// assert_eq!(words, [2, 0x6968]);
    /// ```
    pub fn append(&self, bytes: &[u8], words: &mut Vec<u64>) {
        let (most, is_text) = match self {
            MessagePart::Word => (8, false),
            MessagePart::Bytes(size) => (*size as usize, false),
            MessagePart::Text(most) => (*most as usize, true),
        };
        let bytes = &bytes[..bytes.len().min(most)];
        words.extend(is_text.then_some(bytes.len() as u64));
        let end = words.len() + if is_text { bytes.len() } else { most }.div_ceil(8);
        words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        words.resize(end, 0);
    }
}

/// The ring of one thread.
#[derive(Clone, Copy, Debug)]
pub struct MessageRing {
    /// Offset of the thread's part in the region.
    pub at: u64,
    /// Log2 of the ring's size.
    pub bits: u32,
}

/// Whether a reader waits for records that are not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// What is behind them is read next time.
    Wait,
    /// They were waited for long enough.
    Leave,
}

/// How far a ring was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many messages were taken.
    pub taken: u64,
    /// How many records were left that never became complete, or made no sense.
    pub left: u64,
    /// Whether a record that is not complete stands at the tail.
    pub is_waiting: bool,
}

impl MessageRing {
    fn size(&self) -> u64 {
        1 << self.bits.min(crate::MAX_RING_BITS)
    }

    fn word_at(&self, position: u64) -> u64 {
        self.at + u64::from(THREAD_RING) + (position & (self.size() - 1) & !7)
    }

    /// Messages of the thread that found no room.
    pub fn lost(&self, words: &(impl Words + ?Sized)) -> u64 {
        words.word(self.at + u64::from(THREAD_LOST))
    }

    /// Writes a message into a ring that nobody else writes to, not even a signal handler. Gives whether there was room; where there was none,
    /// that is counted.
    ///
    /// The tail may be anything, as the target can write it: nothing is written outside of the ring for that.
    pub fn write(&self, words: &(impl WordsMut + ?Sized), message: &Message) -> bool {
        let size = u64::from(RECORD_HEAD) + 8 * message.words.len() as u64;
        let head = words.word(self.at + u64::from(THREAD_HEAD)) & !7;
        let tail = words.word(self.at + u64::from(THREAD_TAIL)) & !7;
        let to_end = self.size() - (head & (self.size() - 1));
        let filler = if to_end < size { to_end } else { 0 };
        if size >= RESERVED
            || head.wrapping_sub(tail).saturating_add(filler).saturating_add(size) > self.size()
        {
            let lost = self.at + u64::from(THREAD_LOST);
            words.set_word(lost, words.word(lost).wrapping_add(1));
            return false;
        }
        if filler > 0 {
            words.set_word(self.word_at(head), filler);
        }
        let start = head.wrapping_add(filler);
        let first = size | (u64::from(message.number) + 1) << 32;
        let who = u64::from(message.tid) | u64::from(message.site) << 32;
        let all = [first, message.ticks, who].into_iter().chain(message.words.iter().copied());
        for (word, index) in all.zip(0..) {
            words.set_word(self.word_at(start.wrapping_add(8 * index)), word);
        }
        // Last: it says that the record is complete.
        words.set_word(self.at + u64::from(THREAD_HEAD), start.wrapping_add(size));
        true
    }

    /// Takes complete messages out of the ring, the oldest first, as far as it was written when this began.
    ///
    /// What is in the ring may be anything: what makes no sense is counted as left, together with all that is in the ring then.
    pub fn drain(
        &self,
        words: &(impl WordsMut + ?Sized),
        incomplete: Incomplete,
        mut take: impl FnMut(Message),
    ) -> Drained {
        let mut drained = Drained::default();
        let head = words.word(self.at + u64::from(THREAD_HEAD)) & !7;
        let tail = words.word(self.at + u64::from(THREAD_TAIL)) & !7;
        let mut position = tail;
        if head.wrapping_sub(tail) > self.size() {
            // Nobody of ours does this.
            drained.left = 1;
            position = head;
        }
        while position != head {
            let left = head.wrapping_sub(position);
            let first = words.word(self.word_at(position));
            let size = first & (RESERVED - 1);
            let to_end = self.size() - (position & (self.size() - 1));
            let is_filler = first >> 32 == 0;
            let least = if is_filler { 8 } else { u64::from(RECORD_HEAD) };
            let is_sound = size.is_multiple_of(8) && (least..=left.min(to_end)).contains(&size);
            let step = match (first, is_sound) {
                (0, _) if incomplete == Incomplete::Wait => break,
                (0, _) => {
                    drained.left += 1;
                    let next = (8..left)
                        .step_by(8)
                        .find(|step| words.word(self.word_at(position.wrapping_add(*step))) != 0);
                    next.unwrap_or(left)
                }
                (_, false) => {
                    drained.left += 1;
                    left
                }
                (_, true) if first & RESERVED != 0 && incomplete == Incomplete::Wait => break,
                (_, true) => {
                    if first & RESERVED != 0 {
                        drained.left += 1;
                    } else if !is_filler {
                        take(self.message(words, position, first));
                        drained.taken += 1;
                    }
                    size
                }
            };
            for at in (0..step).step_by(8) {
                words.set_word(self.word_at(position.wrapping_add(at)), 0);
            }
            position = position.wrapping_add(step);
        }
        drained.is_waiting = position != head;
        if position != tail {
            words.set_word(self.at + u64::from(THREAD_TAIL), position);
        }
        if position.wrapping_sub(tail) > MANY {
            let ring = self.at + u64::from(THREAD_RING);
            words.release(ring..ring + self.size());
        }
        drained
    }

    fn message(&self, words: &(impl Words + ?Sized), position: u64, first: u64) -> Message {
        let word = |index: u64| words.word(self.word_at(position.wrapping_add(8 * index)));
        let who = word(2);
        Message {
            ticks: word(1),
            number: ((first >> 32) - 1) as u32,
            tid: who as u32,
            site: (who >> 32) as u32,
            words: (u64::from(RECORD_HEAD) / 8..(first & (RESERVED - 1)) / 8).map(word).collect(),
        }
    }
}

/// From so many bytes on, the pages of a ring that was read are not kept in the reader's memory.
const MANY: u64 = 16 * PAGE;

/// Messages of all threads, put in order.
///
/// Each thread's come in about the order of their ticks. Those before a moment are all there only once every thread has
/// completed what it was in the middle of at that moment, so whoever reads says up to when it goes on.
#[derive(Debug, Default)]
pub struct InOrder {
    waiting: Vec<Message>,
}

impl InOrder {
    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.waiting.push(message);
    }

    /// Takes those from before a moment, in ticks, in their order; of the same tick, in the order in which they were added.
    ///
    /// ```
    /// use trapless_wire::{InOrder, Message};
    /// let mut all = InOrder::default();
    /// for ticks in [5, 3, 9] {
    ///     all.push(Message { ticks, number: 0, tid: 0, site: 0, words: vec![] });
    /// }
    /// assert_eq!(all.take_before(6).map(|message| message.ticks).collect::<Vec<_>>(), [3, 5]);
    /// assert_eq!(all.take_before(u64::MAX).count(), 1);
    /// ```
    pub fn take_before(&mut self, ticks: u64) -> impl Iterator<Item = Message> + '_ {
        self.waiting.sort_by_key(|message| message.ticks);
        let end = self.waiting.partition_point(|message| message.ticks < ticks);
        self.waiting.drain(..end)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Ring(RefCell<Vec<u64>>);

    impl Words for Ring {
        fn word(&self, offset: u64) -> u64 {
            self.0.borrow().get((offset / 8) as usize).copied().unwrap_or(0)
        }
    }

    impl WordsMut for Ring {
        fn set_word(&self, offset: u64, value: u64) {
            if let Some(word) = self.0.borrow_mut().get_mut((offset / 8) as usize) {
                *word = value;
            }
        }
    }

    const RING: MessageRing = MessageRing { at: 0, bits: 12 };

    /// A ring of 4096 bytes and a writer of it.
    impl Ring {
        fn new(position: u64) -> Self {
            let ring = Ring(RefCell::new(vec![0; (THREAD_RING as usize + 4096) / 8]));
            ring.set_word(THREAD_HEAD.into(), position);
            ring.set_word(THREAD_TAIL.into(), position);
            ring
        }

        fn reserve(&self, size: u64) -> u64 {
            let mut head = self.word(THREAD_HEAD.into());
            let to_end = 4096 - (head & 4095);
            if to_end < size {
                self.set_word(RING.word_at(head), to_end);
                head = head.wrapping_add(to_end);
            }
            self.set_word(THREAD_HEAD.into(), head.wrapping_add(size));
            head
        }

        fn write(&self, number: u64, words: &[u64]) -> u64 {
            let size = 24 + 8 * words.len() as u64;
            let at = self.reserve(size);
            for (&word, index) in [number, 5 | 9 << 32].iter().chain(words).zip(1..) {
                self.set_word(RING.word_at(at.wrapping_add(8 * index)), word);
            }
            self.set_word(RING.word_at(at), size | (number + 1) << 32);
            at
        }
    }

    fn drain(ring: &Ring, incomplete: Incomplete) -> (Vec<u32>, Drained) {
        let mut seen = Vec::new();
        let drained = RING.drain(ring, incomplete, |message| {
            assert_eq!((message.tid, message.site, message.ticks), (5, 9, message.number.into()));
            seen.push(message.number);
        });
        (seen, drained)
    }

    #[test]
    fn messages_come_as_they_were_written_round_and_round() {
        let ring = Ring::new(!4095);
        let mut next = 0;
        for turn in 0..2000u64 {
            let expected: Vec<u32> = (0..turn % 7).map(|index| next + index as u32).collect();
            for &number in &expected {
                ring.write(number.into(), &vec![1; (turn % 50) as usize]);
            }
            next += expected.len() as u32;
            assert_eq!(drain(&ring, Incomplete::Wait).0, expected);
            assert!(ring.0.borrow()[THREAD_RING as usize / 8..].iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn what_was_left_in_the_middle_is_waited_for_and_then_passed() {
        for with_size in [false, true] {
            let ring = Ring::new(0);
            ring.write(1, &[2]);
            let at = ring.reserve(40);
            if with_size {
                ring.set_word(RING.word_at(at), 40 | RESERVED | 8 << 32);
            }
            ring.write(2, &[]);
            let (seen, drained) = drain(&ring, Incomplete::Wait);
            assert_eq!((seen, drained), (vec![1], Drained { taken: 1, left: 0, is_waiting: true }));
            assert_eq!(drain(&ring, Incomplete::Wait).1, Drained { is_waiting: true, ..Drained::default() });
            let (seen, drained) = drain(&ring, Incomplete::Leave);
            assert_eq!((seen, drained), (vec![2], Drained { taken: 1, left: 1, is_waiting: false }));
        }
    }

    #[test]
    fn whatever_a_ring_holds_is_read_to_an_end() {
        let mut random = 3u64;
        for turn in 0..3000u64 {
            let ring = Ring::new(turn.wrapping_mul(0x1234_5671) & !7);
            for word in ring.0.borrow_mut().iter_mut() {
                random = crate::hash(&[random, turn]);
                *word = match random % 3 {
                    0 => random,
                    1 => random & 0xf_8000_01f8,
                    _ => 0,
                };
            }
            if turn % 2 == 0 {
                let tail = ring.word(THREAD_TAIL.into());
                ring.set_word(THREAD_HEAD.into(), tail.wrapping_add(random & 4095));
            }
            let mut messages = 0;
            let drained = RING.drain(&ring, Incomplete::Leave, |message| {
                messages += 1;
                let _ = message.parts(&[MessagePart::Text(100), MessagePart::Bytes(9), MessagePart::Word]);
            });
            assert!(messages <= 4096 / 24 && !drained.is_waiting);
        }
    }

    #[test]
    fn a_sole_writers_messages_come_out_as_they_went_in_and_a_full_ring_counts() {
        let ring = Ring::new(!4095);
        let kinds = [MessagePart::Word, MessagePart::Text(20), MessagePart::Bytes(5)];
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        for turn in 0..3000u32 {
            let text = vec![b'x'; turn as usize % 21];
            let parts = [&turn.to_le_bytes()[..], &text, b"12345"];
            let mut words = Vec::new();
            kinds.iter().zip(parts).for_each(|(kind, bytes)| kind.append(bytes, &mut words));
            let message = Message { ticks: 5, number: turn, tid: 7, site: 9, words };
            let lost = RING.lost(&ring);
            match RING.write(&ring, &message) {
                true => sent.push(message),
                false => assert_eq!(RING.lost(&ring), lost + 1),
            }
            if turn % 70 == 0 {
                RING.drain(&ring, Incomplete::Wait, |message| seen.push(message));
            }
        }
        RING.drain(&ring, Incomplete::Wait, |message| seen.push(message));
        assert_eq!(seen, sent);
        assert!(RING.lost(&ring) > 0, "70 messages are more than the ring holds");
        assert_eq!(sent.len() as u64 + RING.lost(&ring), 3000);
        for message in &seen {
            let parts = message.parts(&kinds).unwrap();
            assert_eq!(parts[0][..4], message.number.to_le_bytes());
            assert_eq!((parts[1].len(), &parts[2][..]), (message.number as usize % 21, &b"12345"[..]));
        }
    }

    #[test]
    fn parts_are_looked_at() {
        let of = |words: &[u64]| Message { ticks: 0, number: 0, tid: 0, site: 0, words: words.to_vec() };
        use MessagePart::*;
        let cases: [(&[u64], &[MessagePart], bool); 7] = [
            (&[1, 2], &[Word, Word], true),
            (&[1], &[Word, Word], false),
            (&[1, 2, 3], &[Bytes(9), Word], true),
            (&[9, 2], &[Text(9)], false),
            (&[8, 2], &[Text(7)], false),
            (&[u64::MAX, 2], &[Text(u32::MAX)], false),
            (&[0], &[Text(7), Bytes(0)], true),
        ];
        for (words, kinds, is_sound) in cases {
            assert_eq!(of(words).parts(kinds).is_some(), is_sound, "{words:?} {kinds:?}");
        }
    }
}
