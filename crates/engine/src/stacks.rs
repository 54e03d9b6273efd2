//! What is in use of the stacks that threads are on, and of those that they will come back to.
//!
//! A thread is on one stack and may have others: a handler on a stack of its own (`SA_ONSTACK`) has
//! interrupted what runs on another one. That may be a handler, too, in whose frame is saved what it has
//! interrupted. No register leads there, but the frame of the second signal does: the kernel has saved the
//! stack pointer beside the instruction pointer. So what is in use of each stack is looked through for such
//! contexts ([`Interrupted`]), and the stack that one leads to is looked at as if a thread were on it, until
//! there is nothing new.
//!
//! Words may look like a context by chance, or since there was one before. Then what is no stack, or no
//! longer one, is looked at for nothing. And a program can write whatever it likes, so
//!
//! - nothing is looked at twice, and nothing is read but what the program can write by its mappings;
//! - what lies next to each stack pointer is looked at first, of all stacks, since a stack need not end where
//!   its mapping does. The rest is looked at as long as there is less of it than [`MOST_OF_STACKS`];
//! - the work is bounded: by the number of threads, and beyond that by so much memory and so many contexts as
//!   no program has that makes none up ([`MOST_CONTEXTS`]).

use crate::{
    scan::{Ranges, little_endian},
    search::{Word, words_of},
    target,
};
use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use trapless_isa::detour::{LEVEL_POINTER, STACK_LEVEL, STACK_LEVELS, STACK_SHIFT};
use trapless_process::{
    Interrupted, Mapping, Mappings, MemoryError, Process, ReadRange, RemoteAddr, Stopped, Thread,
};
use trapless_wire::Checked;

/// The most that is looked at of all stacks together, but for what lies next to stack pointers.
pub const MOST_OF_STACKS: u64 = 64 << 20;

/// How much is read at a time, and lies next to a stack pointer. Most stacks end within.
const PIECE: u64 = 64 << 10;

/// How many contexts are looked at for each thread, and how many beside: what is left of old ones.
const MOST_CONTEXTS: [usize; 2] = [64, 1 << 12];

/// How far a stack pointer may be below its stack when that has overflowed, whose handler runs on another
/// one.
const OVERFLOW: u64 = 1 << 20;

/// The stacks of a process that stands.
pub struct Stacks<'s> {
    /// The process.
    pub process: &'s Process,
    /// Its threads.
    pub stopped: &'s Stopped<'s>,
    /// Where they may have stacks.
    pub maps: &'s Mappings,
    /// Its sessions, on whose stacks bodies run.
    pub all: &'s [Checked],
    left: OnceCell<Vec<u64>>,
    apart: OnceCell<Option<Mappings>>,
}

impl<'s> Stacks<'s> {
    /// Of a process that stands, and its sessions.
    pub fn new(
        process: &'s Process,
        stopped: &'s Stopped<'_>,
        maps: &'s Mappings,
        all: &'s [Checked],
    ) -> Self {
        Self { process, stopped, maps, all, left: OnceCell::new(), apart: OnceCell::new() }
    }

    /// The words in use that lead into `ranges`; of each stack so many bytes from the stack pointer on, at
    /// the most, as `most` says. It is told the thread that is on it, if one is now.
    pub fn words_into(
        &self,
        ranges: &Ranges,
        most: impl Fn(Option<&Thread>, u64) -> Result<u64, MemoryError>,
    ) -> Result<Vec<Word>, MemoryError> {
        let (mut words, word_size) = (Vec::new(), self.process.word_size());
        self.look(most, |at, bytes| words_of(ranges, at, bytes, word_size, &mut words))?;
        Ok(words)
    }

    /// How many words in use are what `is_one` says of their address and value.
    pub fn count(&self, is_one: impl Fn(u64, u64) -> bool) -> Result<usize, MemoryError> {
        let (mut count, word_size) = (0, self.process.word_size());
        let each = |at: u64, bytes: &[u8]| {
            let words = bytes.chunks_exact(word_size).zip((at..).step_by(word_size));
            count += words.filter(|(word, at)| is_one(*at, little_endian(word))).count();
        };
        self.look(|_, _| Ok(MOST_OF_STACKS), each)?;
        Ok(count)
    }

    /// Where threads come back to, on stacks that they are not on, or not in that part of.
    pub fn left(&self) -> Result<&[u64], MemoryError> {
        if let Some(left) = self.left.get() {
            return Ok(left);
        }
        let left = self.look(|_, _| Ok(MOST_OF_STACKS), |_, _| ())?;
        Ok(self.left.get_or_init(|| left.into_iter().map(|sp| self.on_stack(sp)).collect()))
    }

    /// The mappings, with stacks told apart that lie in one ([`Process::with_guards`]). That takes a look at all memory.
    pub fn apart(&self) -> &Mappings {
        self.apart.get_or_init(|| self.process.with_guards(self.maps)).as_ref().unwrap_or(self.maps)
    }

    /// Where all threads are on the program's stacks.
    pub fn stack_pointers(&self) -> Result<Vec<u64>, MemoryError> {
        let threads = self.stopped.threads().iter();
        threads.map(|thread| Ok(self.on_stack(self.programs(thread.registers().sp_value())?))).collect()
    }

    /// Where a stack pointer is on its stack: of one that has overflowed, or is about to, its lowest address.
    fn on_stack(&self, sp: u64) -> u64 {
        let maps = self.apart();
        stack_of(maps, sp).map_or(sp, |first| sp.max(maps[first].start.0))
    }

    /// Looks at all stacks. Gives `each` what is in use, by pieces, and tells the stack pointers that contexts led to.
    fn look(
        &self,
        most: impl Fn(Option<&Thread>, u64) -> Result<u64, MemoryError>,
        mut each: impl FnMut(u64, &[u8]),
    ) -> Result<Vec<u64>, MemoryError> {
        let word_size = self.process.word_size();
        let threads = self.stopped.threads();
        let (mut near, mut far, mut left) = (VecDeque::new(), VecDeque::new(), Vec::new());
        for thread in threads {
            let sp = self.programs(thread.registers().sp_value())?;
            near.extend(self.in_use(sp, most(Some(thread), sp)?));
        }
        let mut seen = Seen::default();
        let [for_each, beside] = MOST_CONTEXTS;
        let mut contexts = beside + for_each * threads.len();
        // So what lies next to the stack pointers of threads is always looked at.
        let mut most_near = MOST_OF_STACKS + PIECE * threads.len() as u64;
        let mut most_far = MOST_OF_STACKS;
        let mut buffer = vec![0; (PIECE + Interrupted::SPAN) as usize];
        while let Some((stack, bytes)) = match near.pop_front() {
            Some(stack) => Some((stack, &mut most_near)),
            None => far.pop_front().map(|stack| (stack, &mut most_far)),
        } {
            if *bytes == 0 {
                break;
            }
            let Some(piece) = seen.first_unseen(&stack, PIECE) else { continue };
            // A context that begins in this piece may end in the next.
            let length = (stack.end - piece.start).min(piece.end - piece.start + Interrupted::SPAN);
            let mut read = [ReadRange::new(RemoteAddr(piece.start), &mut buffer[..length as usize])];
            self.process.read_vectored(&mut read)?;
            let done = read[0].done;
            let read = &buffer[..done];
            let own = &read[..read.len().min((piece.end - piece.start) as usize)];
            each(piece.start, own);
            let done = piece.start..piece.start + own.len() as u64;
            *bytes = bytes.saturating_sub(own.len() as u64);
            // Pages that are not there hold nothing, and a stack without a hole ends at the first.
            if done.end == piece.end {
                far.push_back(done.end..stack.end);
            }
            seen.add(done);
            for Interrupted { ip, sp } in Interrupted::all_in(read, word_size).into_iter().take(contexts) {
                contexts -= 1;
                if self.maps.find(RemoteAddr(ip)).is_none() {
                    continue;
                }
                let Ok(sp) = self.programs(sp) else { continue };
                let most = most(None, sp)?;
                let Some(stack) = self.in_use(sp, most).filter(|_| most > 0) else { continue };
                match seen.first_unseen(&stack, 1) {
                    Some(first) if first.start == stack.start => {
                        left.push(sp);
                        near.push_back(stack);
                    }
                    // The rest of one that is looked at already.
                    Some(first) => far.push_back(first.start..stack.end),
                    None => {}
                }
            }
        }
        Ok(left)
    }

    /// The stack pointer on the program's stack of a thread with this one: a body of some session may run on
    /// a stack of ours ([`trapless_wire::Header::stacks`]).
    fn programs(&self, mut sp: u64) -> Result<u64, MemoryError> {
        // One session's bodies may be called from the handler that has interrupted another one's.
        for _ in 0..=self.all.len() * STACK_LEVELS as usize {
            let stacks = self.all.iter().map(|header| header.stacks());
            let Some(stacks) = stacks.into_iter().find(|stacks| stacks.contains(&sp)) else { break };
            let number = (sp - stacks.start) >> STACK_SHIFT;
            let end = stacks.start + ((number + 1) << STACK_SHIFT);
            let above = (end - sp - 1) / u64::from(STACK_LEVEL);
            let pointer = end - above * u64::from(STACK_LEVEL) - u64::from(LEVEL_POINTER);
            sp = self.process.read_word(RemoteAddr(pointer))?;
        }
        Ok(sp)
    }

    /// What is in use of the stack that `sp` points into, `most` bytes above it at the most.
    fn in_use(&self, sp: u64, most: u64) -> Option<Range<u64>> {
        let first = stack_of(self.maps, sp)?;
        let (mut end, most) = (self.maps[first].start, sp.saturating_add(most) & !7);
        for mapping in &self.maps[first..] {
            if mapping.start != end || !is_of_stack(mapping) || end.0 >= most {
                break;
            }
            end = mapping.end;
        }
        // Words below the stack pointer that may still hold a program's own addresses.
        let red_zone = u64::from(target::isa(self.process).facts().red_zone);
        let start = sp.saturating_sub(red_zone).max(self.maps[first].start.0) & !7;
        let end = end.0.min(most);
        (start < end).then_some(start..end)
    }
}

fn is_of_stack(mapping: &Mapping) -> bool {
    mapping.perms.read && mapping.perms.write
}

/// The lowest mapping of the stack that a stack pointer belongs to, which may be below it, in the guard.
fn stack_of(maps: &Mappings, sp: u64) -> Option<usize> {
    let above = maps.partition_point(|mapping| mapping.end.0 <= sp);
    // However large that is.
    let guard = maps.get(above).filter(|mapping| mapping.start.0 <= sp).map_or(sp, |mapping| mapping.end.0);
    let most = guard.max(sp.saturating_add(OVERFLOW));
    let is_near = |mapping: &&Mapping| mapping.start.0 <= most;
    Some(above + maps[above..].iter().take_while(is_near).position(is_of_stack)?)
}

/// What was looked at: where each part begins and ends. Parts do not touch.
#[derive(Debug, Default)]
struct Seen(BTreeMap<u64, u64>);

impl Seen {
    /// The first part of `range` that was not looked at, `most` bytes of it at the most.
    fn first_unseen(&self, range: &Range<u64>, most: u64) -> Option<Range<u64>> {
        let before = self.0.range(..=range.start).next_back().map_or(0, |(_, end)| *end);
        let start = range.start.max(before);
        let next = self.0.range(start..).next().map_or(u64::MAX, |(start, _)| *start);
        let end = range.end.min(next).min(start.saturating_add(most));
        (start < end).then_some(start..end)
    }

    /// Adds a part of which nothing was looked at before.
    fn add(&mut self, part: Range<u64>) {
        let mut part = part;
        if let Some(end) = self.0.remove(&part.end) {
            part.end = end;
        }
        match self.0.range_mut(..part.start).next_back() {
            Some((_, end)) if *end == part.start => *end = part.end,
            _ if part.is_empty() => {}
            _ => _ = self.0.insert(part.start, part.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_not_looked_at_again() {
        let mut seen = Seen::default();
        let mut look = |range: Range<u64>, most: u64| {
            let first = seen.first_unseen(&range, most);
            first.clone().into_iter().for_each(|first| seen.add(first));
            (first, seen.0.len())
        };
        for (range, most, expected) in [
            (100..200, 50, (Some(100..150), 1)),
            (100..200, 10, (Some(150..160), 1)),
            (120..160, 50, (None, 1)),
            (300..400, 100, (Some(300..400), 2)),
            (90..400, 100, (Some(90..100), 2)),
            (155..400, 1000, (Some(160..300), 1)),
            (90..400, 1000, (None, 1)),
            (0..1000, 1000, (Some(0..90), 1)),
            (0..1000, 1000, (Some(400..1000), 1)),
            (2000..2000, 10, (None, 1)),
        ] {
            assert_eq!(look(range.clone(), most), expected, "{range:?}");
        }
    }
}
