//! May a thread that stands at a hit load a library?
//!
//! It is about to call a function of its program, so it could as well call the loader: but for what it is in the middle of. What is in use of its
//! stack is looked through, from the stack pointer to the end, for what would speak against that:
//!
//! - the frame of a signal's handler: what was interrupted may hold any lock, the loader's and the allocator's among them;
//! - a return address into the loader or the allocator, which may have called the function while their data were half changed;
//! - too little room below, or a stack of which it is not known how much there is;
//! - a mode of the processor that libraries are not compiled for.
//!
//! A word is taken for a return address if it leads behind a call instruction in such code. It may have been left there by a call that is long over,
//! as the loader's own is that has started the program, in a buffer of `main`. So where there is such a word the stack is walked by the process's unwind
//! tables. If they tell of each frame up to the outermost one, then the frames' return addresses are all that there are. Else, as where some code has no table
//! and only a frame pointer could lead on, the word counts: the call is let pass, perhaps for nothing, and the next one is looked at. Nothing but this thread stands meanwhile, and what others do is not
//! asked: a lock that they hold is waited for.

use crate::live_patch::{Apart, LoadWords};
use crate::{Blueprint, LivePatch, Load, Passed, Region, target};
use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};
use trapless_isa::body::Convention;
use trapless_isa::{ADDRESS_MASK, Flow, Isa};
use trapless_process::{
    Interrupted, Mapping, Mappings, Process, ReadRange, Registers, RemoteAddr, Tid, trace::Tracer,
};
use trapless_wire::Header;
use trapless_wire::unwind::{self, Tables};

/// A library that is loaded by the next thread that may.
pub(super) struct Loading<'a> {
    load: &'a Load,
    words: LoadWords<'a>,
    is_sent: Cell<bool>,
    /// The last call that was let pass: why, when it had been looked at, and how long that took.
    last: Cell<Option<(Passed, Instant, Duration)>>,
}

/// So many times as long as a look took, calls are let pass without one: a program that makes many of them is not to spend its time with it.
const PAUSE: u32 = 4;

/// How much is read at a time.
const PIECE: u64 = 64 << 10;

/// The kernel keeps so much free below a stack that grows (`stack_guard_gap`, 256 pages), and thinks more of it the larger pages are.
const GUARD_GAP: u64 = 1 << 20;

/// A stack of more frames is not walked to its end.
const MOST_FRAMES: u32 = 1 << 14;

/// The longest call instruction, with prefixes.
const LONGEST_CALL: usize = 8;

impl<'a> Loading<'a> {
    /// What a blueprint's sites are there to load, if they are.
    pub fn of(blueprint: &'a Blueprint<'_, '_>, region: &'a Region, header: &Header) -> Option<Self> {
        let load = blueprint.plan().sites.iter().find_map(|site| match site.request.live_patch {
            Some(LivePatch::Load(load)) => Some(load),
            _ => None,
        })?;
        Some(Self {
            load,
            words: LoadWords::of(region, header),
            is_sent: Cell::new(false),
            last: Cell::new(None),
        })
    }

    /// Whether a thread was sent.
    pub fn is_sent(&self) -> bool {
        self.is_sent.get()
    }

    /// Whether this thread goes and loads it. That is told before it goes, since who has told it may be gone then.
    pub fn sends(&self, tracer: &Tracer<'_>, tid: Tid, registers: &Registers) -> bool {
        if self.is_sent() {
            return false;
        }
        let since = Instant::now();
        if let Some((passed, at, took)) = self.last.get()
            && since.duration_since(at) < PAUSE * took
        {
            self.words.count(passed);
            return false;
        }
        let may_load = match tracer.is_adopted(tid) {
            true => Err(Passed::Child),
            false if tracer.is_streaming(tid) => Err(Passed::Streaming),
            false => may_load(tracer.process(), tid, registers, self.load),
        };
        match may_load {
            Ok(()) => {
                self.words.send();
                self.is_sent.set(true);
            }
            Err(passed) => {
                let now = Instant::now();
                self.last.set(Some((passed, now, now.duration_since(since))));
                self.words.count(passed);
            }
        }
        self.is_sent()
    }
}

/// Whether a thread that stands at the entry of a function may load a library.
fn may_load(process: &Process, tid: Tid, registers: &Registers, load: &Load) -> Result<(), Passed> {
    let maps = process.maps().map_err(|_| Passed::Unread)?;
    let stack = Stack::of(process, &maps, tid, registers)?;
    if stack.room < Load::ROOM {
        return Err(Passed::Room);
    }
    if stack.in_use.end - stack.in_use.start > Load::MOST_OF_STACK {
        return Err(Passed::Depth);
    }
    let (isa, word, apart) = (target::isa(process), process.word_size(), &load.apart);
    // Where calls push no return address, that of this one is in a register.
    let link = link(isa, registers);
    if let Some(why) = link.and_then(|link| why_not_in(apart, link)) {
        return Err(why);
    }
    // Why it may not, if some word is what it looks like.
    let mut doubt = None;
    let mut buffer = vec![0; (PIECE + Interrupted::SPAN) as usize];
    for start in stack.in_use.clone().step_by(PIECE as usize) {
        // A context that begins in this piece may end in the next.
        let length = (stack.in_use.end - start).min(PIECE + Interrupted::SPAN) as usize;
        let mut read = [ReadRange::new(RemoteAddr(start), &mut buffer[..length])];
        process.read_vectored(&mut read).map_err(|_| Passed::Unread)?;
        if read[0].done < length {
            return Err(Passed::Unread);
        }
        let read = &buffer[..length];
        let is_code = |ip: u64| maps.find(RemoteAddr(ip)).is_some_and(|mapping| mapping.perms.exec);
        if Interrupted::all_in(read, word).iter().any(|context| is_code(context.ip)) {
            return Err(Passed::Handler);
        }
        for bytes in read[..length.min(PIECE as usize)].as_chunks().0 {
            let value = u64::from_le_bytes(*bytes) & ADDRESS_MASK;
            let Some(why) = why_not_in(apart, value).filter(|_| doubt.is_none()) else { continue };
            if is_behind_call(process, isa, value)? {
                doubt = Some(why);
            }
        }
    }
    match doubt {
        None => Ok(()),
        Some(doubt) => match frames(process, isa, registers, load) {
            Some(frames) => frames.iter().find_map(|frame| why_not_in(apart, *frame)).map_or(Ok(()), Err),
            None => Err(doubt),
        },
    }
}

/// Why a thread may not load that comes back to this address, if it may not.
fn why_not_in(apart: &[Apart], address: u64) -> Option<Passed> {
    apart.iter().find(|apart| leads_into(&apart.code, address)).map(|apart| apart.why)
}

/// The return addresses of all frames of a thread that stands at the entry of a function; `None` where the tables do not tell of each of them.
fn frames(process: &Process, isa: &dyn Isa, registers: &Registers, load: &Load) -> Option<Vec<u64>> {
    let tables = Tables::new(load.unwind.as_deref()?).ok()?;
    let convention = Convention::of(isa.machine())?;
    let start = unwind::Registers {
        pc: registers.ip_value(),
        sp: registers.sp_value(),
        fp: registers.by_dwarf(convention.frame_pointer),
        bp: registers.by_dwarf(convention.base_pointer),
        link: link(isa, registers).unwrap_or(0),
        ..unwind::Registers::default()
    };
    let read = |address| {
        let mut word = [0; 8];
        process.load(RemoteAddr(address), &mut word).is_ok().then_some(u64::from_le_bytes(word))
    };
    let mut frames = Vec::new();
    let walked = unwind::walk(
        &tables,
        start,
        unwind::Place::Entry,
        unwind::Method::Rows,
        MOST_FRAMES,
        read,
        |_, found| found,
        |frame| frames.push(frame),
    );
    // What a frame pointer leads to may be any frame further out.
    let is_told = |frame: &u64| {
        let rule = tables.rule(frame.wrapping_sub(1));
        let is_rule = |rule: unwind::Rule| {
            matches!(rule.kind(), unwind::Kind::Frame | unwind::Kind::End)
                && rule.flags & (unwind::Rule::STACK_LOST | unwind::Rule::INTERRUPTED) == 0
        };
        rule.is_some_and(is_rule)
    };
    let callers = frames.get(1..)?;
    let is_whole = walked.ended == unwind::Ended::Outermost && callers.iter().all(is_told);
    is_whole.then(|| callers.to_vec())
}

/// The return address of a thread that stands at the entry of a function, where a register holds it.
fn link(isa: &dyn Isa, registers: &Registers) -> Option<u64> {
    let facts = isa.facts();
    facts.has_link_register().then(|| registers.general(facts.link_register) & ADDRESS_MASK)
}

/// A call at the end of it returns to the address behind.
fn leads_into(code: &Range<u64>, value: u64) -> bool {
    code.start < value && value <= code.end
}

/// Whether a call instruction stands right ahead of an address.
fn is_behind_call(process: &Process, isa: &dyn Isa, address: u64) -> Result<bool, Passed> {
    let mut bytes = [0; LONGEST_CALL];
    let start = address.wrapping_sub(bytes.len() as u64);
    process.read_exact(RemoteAddr(start), &mut bytes).map_err(|_| Passed::Unread)?;
    let is_call = |length: usize| {
        let decoded = isa.decode(&bytes[LONGEST_CALL - length..], address.wrapping_sub(length as u64));
        decoded.is_ok_and(|instruction| {
            usize::from(instruction.length) == length
                && matches!(instruction.flow, Flow::Call { .. } | Flow::IndirectCall)
        })
    };
    Ok((1..=LONGEST_CALL).any(is_call))
}

/// The stack that a thread is on.
struct Stack {
    /// What is in use of it.
    in_use: Range<u64>,
    /// Bytes that are free below.
    room: u64,
}

impl Stack {
    /// # Errors
    /// It is not the one that the thread was made with, or it is not known where that ends.
    fn of(process: &Process, maps: &Mappings, tid: Tid, registers: &Registers) -> Result<Self, Passed> {
        let sp = registers.sp_value();
        let ahead = target::isa(process).facts().ahead_of_pointer;
        let block = registers.thread_pointer().0.saturating_sub(ahead.into());
        let index = position(maps, sp)?;
        let mapping = &maps[index];
        if mapping.is_special("[stack]") && tid == process.pid().leader() {
            let floor = below(maps, index).map_or(0, |below| match below.end == mapping.start {
                true => mapping.start.0,
                false => (below.end.0 + GUARD_GAP).min(mapping.start.0),
            });
            let limit = process.stack_limit().map_err(|_| Passed::Unread)?;
            let lowest = limit.map_or(0, |limit| mapping.end.0.saturating_sub(limit)).min(mapping.start.0);
            let room = sp.saturating_sub(floor.max(lowest));
            return Ok(Self { in_use: sp & !7..mapping.end.0, room });
        }
        // The C library has the thread's block at the end of the stack that it has made.
        let is_own = |mapping: &Mapping| block > sp && mapping.contains(RemoteAddr(block));
        let own = |maps: &Mappings| {
            let index = position(maps, sp)?;
            let mapping = &maps[index];
            let ends = below(maps, index).is_some_and(|below| {
                below.end == mapping.start && !below.perms.read && !below.perms.write && !below.perms.exec
            });
            let room = sp - mapping.start.0;
            (is_own(mapping) && ends)
                .then_some(Self { in_use: sp & !7..block & !7, room })
                .ok_or(Passed::Stack)
        };
        // Looking for guards within mappings takes a look at all memory.
        own(maps).or_else(|_| process.with_guards(maps).ok_or(Passed::Stack).and_then(|apart| own(&apart)))
    }
}

/// The mapping that a stack pointer is in, of what a stack may be in.
fn position(maps: &Mappings, sp: u64) -> Result<usize, Passed> {
    let index = maps.partition_point(|mapping| mapping.end.0 <= sp);
    let is_stack = |mapping: &&Mapping| {
        mapping.contains(RemoteAddr(sp)) && mapping.perms.read && mapping.perms.write && !mapping.perms.shared
    };
    maps.get(index).filter(is_stack).map(|_| index).ok_or(Passed::Stack)
}

/// The mapping below one.
fn below(maps: &Mappings, index: usize) -> Option<&Mapping> {
    maps.get(index.checked_sub(1)?)
}
