//! The return addresses of calls that are still running when probes are taken out: back to where they are kept.
//!
//! A followed call has a return point of ours in place of its return address. Where it has that differs: on x86 in its slot; on arm64 and
//! powerpc in the link register, until the function stores it and after it has loaded it again, and in between at a place of the
//! function's frame ([`trapless_isa::Isa::return_kept_at`]). All stack pages on which there may be calls are listed in the return memory. So
//! what is kept so far from these pages is looked through for return points, and where one is found, the slot's instance tells the
//! real address. What was left behind by longjmp or an exception is put back as well, where nobody reads it. A register that holds a
//! point is that of a call whose slot is the stack pointer, or it is let be: then our memory stays until that call is over.
//!
//! Where a program signs its return addresses, with its own key, it has to sign ours for us: one of its threads makes a step over the
//! instruction by which the function does so.

use crate::{EngineError, FoundSession, scan::Ranges, scan::little_endian, search::Word};
use std::collections::{BTreeSet, HashMap};
use trapless_isa::detour::{GOROUTINE_BIT, PAGES_COUNT, PAGES_FIRST, STACK_PAGE_SHIFT};
use trapless_isa::model::{self, Read};
use trapless_isa::{ADDRESS_MASK, Layout};
use trapless_process::{Process, ReadRange, Registers, RemoteAddr, RemoteError, Stopped, Tid};
use trapless_wire::ThreadMemory;

/// Pages that are read at a time.
const BATCH: usize = 256;

/// The most words of return memory that are read: more than all calls of a program that runs need. Only one that has forged its instances asks
/// for more, and keeps its return points.
const MAX_LOADS: u32 = 1 << 22;

/// The most for one word that may be an unwinder's: the word beside it, and more than a search for its instance takes. A longer chain of tail
/// calls counts as one.
const MAX_LOADS_OF_A_WORD: u32 = 1 + 128;

/// What is known of a return point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Where a call with this point has it, from its slot on; `None`: at no place that is known.
    kept_at: Option<i32>,
    /// Address of the instruction that signs it, if the function does that.
    signed_by: Option<u64>,
}

/// Where a return point was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    InMemory,
    InRegister,
}

/// The return points of a session.
pub(crate) type Points = HashMap<u64, Point>;

/// Puts back return addresses in a process that stands, and says how many. `inside`: our code.
pub(crate) fn put_back(
    process: &Process,
    stopped: &mut Stopped<'_>,
    session: &FoundSession,
    inside: &Ranges,
) -> Result<usize, EngineError> {
    let points = points(session);
    if points.is_empty() {
        return Ok(0);
    }
    let mut calls = Calls {
        process,
        points: &points,
        layout: session.header.layout(ThreadMemory::default()),
        memory: Remote { process, word: process.word_size(), left: MAX_LOADS, is_whole: true },
    };
    let in_memory = calls.put_back_words(stopped, pages(process, session)?)?;
    let in_registers = match crate::target::isa(process).facts().has_link_register() {
        true => calls.put_back_registers(stopped, inside)?,
        false => 0,
    };
    Ok(in_memory + in_registers)
}

/// The calls of a session that are still running.
struct Calls<'c> {
    process: &'c Process,
    points: &'c Points,
    layout: Layout,
    memory: Remote<'c>,
}

impl Calls<'_> {
    /// Those whose return address is in memory. `pages` are those of the slots.
    fn put_back_words(&mut self, stopped: &mut Stopped<'_>, pages: Vec<u64>) -> Result<usize, EngineError> {
        let (process, word) = (self.process, self.process.word_size());
        let mut count = 0;
        for pages in self.kept_on(pages).chunks(BATCH) {
            let mut buffers = vec![0u8; pages.len() << STACK_PAGE_SHIFT];
            let mut reads: Vec<_> = pages
                .iter()
                .zip(buffers.chunks_exact_mut(1 << STACK_PAGE_SHIFT))
                .map(|(page, buffer)| ReadRange::new(RemoteAddr(page << STACK_PAGE_SHIFT), buffer))
                .collect();
            // A stack may be gone by now, and then nothing is read of it.
            process.read_vectored(&mut reads)?;
            for (read, page) in reads.iter().zip(pages) {
                for (index, bytes) in read.buffer[..read.done].chunks_exact(word).enumerate() {
                    let found = little_endian(bytes);
                    let Some(&point) = self.points.get(&(found & ADDRESS_MASK)) else { continue };
                    let Some(kept_at) = point.kept_at else { continue };
                    let at = (page << STACK_PAGE_SHIFT) + (index * word) as u64;
                    let slot = at.wrapping_sub(kept_at as u64);
                    if let Some(address) = self.real_address(stopped, slot, found, point, Kept::InMemory)? {
                        process.write(RemoteAddr(at), &address.to_le_bytes()[..word])?;
                        count += 1;
                    }
                }
            }
        }
        Ok(count)
    }

    /// Those of threads that have it in a register, as one does that a function was called with or is about to return by. One that is in our
    /// code yet, at `inside`, may have another stack pointer than the call.
    fn put_back_registers(
        &mut self,
        stopped: &mut Stopped<'_>,
        inside: &Ranges,
    ) -> Result<usize, EngineError> {
        let is_outside = |ip: u64| inside.find(ip).is_none();
        let threads = stopped.threads().iter().filter(|thread| is_outside(thread.registers().ip().0));
        let threads: Vec<Tid> = threads.map(|thread| thread.tid()).collect();
        let mut count = 0;
        for tid in threads {
            let Some(thread) = stopped.thread(tid) else { continue };
            let mut registers = *thread.registers();
            let slot = registers.sp_value();
            let mut is_changed = false;
            for number in Registers::NUMBERS {
                let found = registers.general(number);
                let Some(&point) = self.points.get(&(found & ADDRESS_MASK)) else { continue };
                if let Some(address) = self.real_address(stopped, slot, found, point, Kept::InRegister)? {
                    registers.set_general(number, address);
                    is_changed = true;
                }
            }
            if is_changed {
                stopped.set_registers(tid, registers)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// What belongs in the place of `found`, which is the `point` of the call at `slot`, if it is.
    fn real_address(
        &mut self,
        stopped: &mut Stopped<'_>,
        slot: u64,
        found: u64,
        point: Point,
        kept: Kept,
    ) -> Result<Option<u64>, EngineError> {
        let unsigned = found & ADDRESS_MASK;
        let address = model::real_address(&mut self.memory, &self.layout, slot, unsigned);
        let Some(address) = address.filter(|&address| address != 0 && self.memory.is_whole) else {
            return Ok(None);
        };
        let is_plain = found == unsigned;
        let Some(at) = point.signed_by else { return Ok(is_plain.then_some(address)) };
        let mut code = [0; 4];
        let is_read = self.process.read_exact(RemoteAddr(at), &mut code).is_ok();
        if !is_read || !crate::target::isa(self.process).signs_return(&code) {
            // Others have changed it, or made it up.
            return Ok(None);
        }
        // A signature has few bits and may be zero, so nothing shows whether there is one but how the point itself is signed.
        let [made, signed] = signed(stopped, at, slot, [unsigned, address])?;
        // In a register it has yet to be signed, or was checked and is about to be returned by.
        let may_be_checked = is_plain && kept == Kept::InRegister;
        Ok(match made == Some(found) {
            true if may_be_checked => signed.filter(|signed| *signed == address),
            true => signed,
            false => may_be_checked.then_some(address),
        })
    }

    /// The pages on which the return addresses of calls are kept that have their slots on `pages`.
    fn kept_on(&self, pages: Vec<u64>) -> Vec<u64> {
        if self.points.values().all(|point| point.kept_at.is_none_or(|at| at == 0)) {
            return pages;
        }
        let distances = self.points.values().filter_map(|point| point.kept_at);
        // So many pages away, and for some of a page's slots one more.
        let distances: BTreeSet<i64> = distances.map(|at| i64::from(at) >> STACK_PAGE_SHIFT).collect();
        let near = |page: u64| {
            let at =
                |distance: i64| [page.wrapping_add_signed(distance), page.wrapping_add_signed(distance + 1)];
            distances.iter().flat_map(move |&distance| at(distance)).collect::<Vec<_>>()
        };
        pages.into_iter().flat_map(near).collect::<BTreeSet<u64>>().into_iter().collect()
    }
}

/// Return addresses as the program would have signed them in a call with this slot, by its own instruction at `at`.
fn signed(
    stopped: &mut Stopped<'_>,
    at: u64,
    slot: u64,
    addresses: [u64; 2],
) -> Result<[Option<u64>; 2], EngineError> {
    let link = crate::target::isa(stopped.process()).facts().link_register;
    let [first, second] = addresses;
    stopped.remote(|remote| {
        let mut signed = |address: u64| {
            let made = remote.step(|registers| {
                registers.set_ip_value(at);
                registers.set_sp_value(slot);
                registers.set_general(link, address);
            })?;
            let value = made.general(link);
            Ok::<_, RemoteError>((value & ADDRESS_MASK == address).then_some(value))
        };
        Ok([signed(first)?, signed(second)?])
    })
}

/// Whether a word looks like an unwinder's that has read a return point: where it `may_ask` from, in its own frames, the address before a
/// point, which nobody else has there; or a point in a context, beside the frame address of the very call that has it. Any other is what a
/// call has left behind.
pub(crate) fn is_unwinders(
    process: &Process,
    session: &FoundSession,
    points: &Points,
    word: Word,
    may_ask: bool,
) -> bool {
    let Word { at, value } = word;
    if may_ask && points.contains_key(&value.wrapping_add(1)) {
        return true;
    }
    if !points.contains_key(&value) {
        return false;
    }
    let facts = crate::target::isa(process).facts();
    let size = process.word_size();
    let layout = session.header.layout(ThreadMemory::default());
    facts.contexts.iter().any(|&words| {
        let mut remote = Remote { process, word: size, left: MAX_LOADS_OF_A_WORD, is_whole: true };
        let frame = remote.load(at.wrapping_add_signed(-i64::from(words) * size as i64));
        if !remote.is_whole {
            return false;
        }
        let slot = frame.wrapping_sub(facts.slot_below_frame.into());
        let real = model::real_address(&mut remote, &layout, slot, value);
        // Where an instance cannot be read, nothing is known.
        real.is_some() || !remote.is_whole
    })
}

/// The return points of a session.
pub(crate) fn points(session: &FoundSession) -> Points {
    let follow = session.journal.sites().filter(|site| site.return_at != 0);
    let point = |site: trapless_wire::SiteWrites<'_>| {
        (site.return_point(), Point { kept_at: site.kept_at(), signed_by: site.signed_by() })
    };
    follow.map(point).collect()
}

/// Numbers of the stack pages on which calls were followed.
fn pages(process: &Process, session: &FoundSession) -> Result<Vec<u64>, EngineError> {
    let header = &session.header;
    let layout = header.layout(ThreadMemory::default());
    let count = process.read_word(RemoteAddr(layout.pages + u64::from(PAGES_COUNT)))?;
    let count = count.min(1 << layout.return_bits);
    let mut list = vec![0u8; 8 * count as usize];
    process.read_exact(RemoteAddr(layout.pages + u64::from(PAGES_FIRST)), &mut list)?;
    // What stands for goroutines' pages holds no return points.
    let highest = (1 << GOROUTINE_BIT) >> STACK_PAGE_SHIFT;
    let mut pages: Vec<u64> =
        list.chunks_exact(8).map(little_endian).filter(|&page| page != 0 && page < highest).collect();
    pages.sort_unstable();
    pages.dedup();
    Ok(pages)
}

/// The return memory of a process, to be read.
struct Remote<'p> {
    process: &'p Process,
    word: usize,
    left: u32,
    /// Whether all could be read so far. If not, nothing that was read is believed.
    is_whole: bool,
}

impl Read for Remote<'_> {
    fn load(&mut self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..self.word];
        self.is_whole &= self.left > 0 && self.process.read_exact(RemoteAddr(address), bytes).is_ok();
        self.left = self.left.saturating_sub(1);
        if self.is_whole { little_endian(bytes) } else { 0 }
    }
}
