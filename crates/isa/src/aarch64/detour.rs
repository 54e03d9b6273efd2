//! The templates of detours.
//!
//! ```text
//!            entry only                       call-paired
//!   entry:   save, find the thread            save, find the thread
//!            count, record                    count, claim a return instance for x30 and sp, record
//!            restore                          restore
//!            displaced instruction            bl body            x30 = return point
//!            b behind the site      return:   save, find the thread and the instance of sp
//!                                             count, histogram, record
//!                                             restore; x30 = the caller; ret
//!                                   body:     displaced instruction
//!                                             b behind the site
//! ```
//!
//! # What is kept
//! Everything; only while a call is followed, x30 is the return point. The flags, because
//! the templates use none of the instructions that set them; vector, predicate and floating-point registers,
//! because they use none of those; x16 and x17 like any other register, because a call inside one object file
//! may rely on them. There is no red zone on Linux, but a signal frame may be laid below sp at any
//! instruction: so sp moves before the first store and after the last load.
//!
//! # Counting
//! Additions are `ldxr`, `add`, `stxr`; where the processor has them (ARMv8.1's LSE), `stadd`, which takes no loop and one register less.
//! Between processors both are atomic, so the overflow block needs no other code, and whoever runs may add in anybody's block. On one thread
//! a signal handler that adds to the same counter clears the monitor, so its addition is not lost either.
//!
//! # Constants
//! Addresses stand behind the code, where one load fetches each. Its last instruction is a branch, so nothing
//! runs into them.
//!
//! # Pointer authentication
//! Behind a `paciasp` that stays at the entry, x30 is signed. The detour strips it (`xpaclri`), and the body
//! begins by signing the return point in the same way, with the same sp.

use super::count::add_one;
use super::decode::{Form, LENGTH, form, hint, word};
use super::emit::{Code, Label, instruction as a};
use super::follow::SPARE;
use super::frame::register::*;
use super::frames::of_copy;
use super::relocate::relocate;
use super::runtime;
use super::spare::Spare;
use super::steps::{Saved, saved};
use crate::body::Runs;
use crate::detour::*;
use crate::frames::{Place, Point};
use crate::payload::*;
use crate::{DetourRequest, Operand, Reason};
use alloc::{string::ToString, vec, vec::Vec};

/// A detour in the making.
pub(super) struct Template<'a> {
    pub code: Code,
    pub layout: &'a Layout,
    /// Address of the probe.
    pub(super) site: u64,
    pub(super) runs: Runs<'a>,
    /// What [`EntryStep::Fetch`] records.
    pub(super) operands: &'a [Operand],
    routines: &'a [u64],
    /// What signs the return address ahead of the displaced instruction, if anything does.
    pub(super) signature: Option<u8>,
    /// The registers in the frame.
    pub(super) saved: Saved,
    /// Pieces off the fast path, emitted at the end: where they start, where they go on, and what they are.
    slow: Vec<(Label, Label, Slow)>,
    /// What the instructions stand for that are being written, whether x30 has lost its signature there, and those that have been.
    pub(super) place: Place,
    pub(super) is_stripped: bool,
    pub(super) points: Vec<Point>,
    comments: Vec<(u32, &'static str)>,
}

/// The word of the frame that is free where one counter is all that is asked for.
const FREE: u32 = 24;

/// What happens off the fast path.
#[derive(Clone, Copy)]
pub(super) enum Slow {
    Resolve { entry: u32 },
    Unclaimed,
    Claim { lost: Label },
    Lost { counter: u32 },
    Unrun,
    Leave { point: Label },
    Orphan,
}

/// The detour that `request` asks for.
pub fn detour(request: &DetourRequest<'_>) -> Emitted<Detour> {
    runtime::check(request.layout)?;
    if request.payload.follows_by_notes() {
        return Err(Reason::NotImplemented);
    }
    if request.stack != Stack::Enough {
        return Err(Reason::NeedsStack);
    }
    if !request.lets_change() {
        return Err(Reason::NoChanges);
    }
    if !request.lets_replace() {
        return Err(Reason::NoReplacement);
    }
    let start = request.displaced.start;
    let original = word(request.original).ok_or(Reason::NotAnInstruction)?;
    if u64::from(request.displaced.length) != LENGTH || !request.address.is_multiple_of(LENGTH) {
        return Err(Reason::MidInstruction);
    }
    let payload = &request.payload;
    let mut t = Template {
        code: Code::new(request.address).adding(request.layout.additions),
        layout: request.layout,
        site: request.site.address,
        runs: request.runs,
        operands: request.operands,
        routines: &request.runtime.routines,
        signature: signature_before(request),
        saved: saved(payload, request.layout.additions),
        slow: vec![],
        place: Place::Site(0),
        is_stripped: false,
        points: vec![],
        comments: vec![],
    };
    let mut return_point = None;
    let mut original_at = None;
    let mut missed = None;
    t.stands(0);
    payload.hooks.iter().try_for_each(|hook| t.hook(hook))?;
    if let Some(followed) = &payload.followed {
        check_entry(request)?;
        let signature = t.signature;
        let body = t.code.label();
        let point = t.paired_entry(&payload.entry, followed, signature.is_some(), body)?;
        return_point = Some((t.code.address_of(point).ok_or(Reason::OutOfReach)? - request.address) as u32);
        let is_stripped = core::mem::replace(&mut t.is_stripped, false);
        t.place = Place::Caller;
        t.at_return(followed, point)?;
        (t.place, t.is_stripped) = (Place::Site(0), is_stripped);
        t.code.bind(body);
        t.stands(0);
        t.code.emit(signature.map(a::hint));
    } else if let Some((spare, counter)) = Spare::of(request) {
        let label = t.code.label();
        t.count_in_spare(spare, counter, label);
        missed = Some(label);
    } else if payload.needs().block {
        t.run_in_frame(&payload.entry)?;
    } else if payload.replaced_by().is_some() {
        original_at = Some(t.original());
    }
    let (displaced, copy) = (t.code.label_here(), t.code.offset());
    t.comments.push((copy, "displaced instruction"));
    relocate(original, start, &mut t.code)?;
    let back = t.code.offset();
    t.comments.push((back, "back"));
    t.code.branch(request.displaced.end())?;
    let slow = t.points.len();
    if let Some(missed) = missed {
        t.code.bind(missed);
        t.comment("no block at first sight");
        t.run_in_frame(&payload.entry)?;
        t.code.emit_to(0x1400_0000, displaced);
    }
    t.slow_paths()?;
    let code = t.code.finish()?;
    t.points.splice(slow..slow, of_copy(&code, copy, back));
    Ok(Detour {
        frames: if request.tells { t.points } else { Vec::new() },
        code,
        places: vec![(start, copy), (request.displaced.end(), back)],
        return_point,
        original: original_at,
        comments: t.comments.into_iter().map(|(offset, text)| (offset, text.to_string())).collect(),
    })
}

/// Refuses return probes that are not at the entry.
fn check_entry(request: &DetourRequest<'_>) -> Emitted<()> {
    let site = request.site;
    let pad = word(site.code).map(form);
    match request.displaced.start.wrapping_sub(site.function) {
        0 => Ok(()),
        LENGTH if matches!(pad, Some(Form::Hint(number)) if hint::is_landing_pad(number)) => Ok(()),
        _ => Err(Reason::ReturnsOddly),
    }
}

/// `paciasp` or `pacibsp`, if it stands in front of the displaced instruction.
fn signature_before(request: &DetourRequest<'_>) -> Option<u8> {
    let offset = request.displaced.start.wrapping_sub(request.site.function).checked_sub(LENGTH)?;
    match word(request.site.code.get(usize::try_from(offset).ok()?..)?).map(form)? {
        Form::Hint(number @ (hint::PACIASP | hint::PACIBSP)) => Some(number),
        _ => None,
    }
}

impl Template<'_> {
    /// The steps of an entry that is not followed, with what they use saved.
    fn run_in_frame(&mut self, entry: &Steps<EntryStep>) -> Emitted<()> {
        self.save();
        if self.saved.counts_once() {
            self.find_any_block();
        } else {
            self.find_thread(BLOCK);
        }
        entry.iter().try_for_each(|step| self.entry_step(step, false))?;
        self.restore();
        Ok(())
    }

    pub fn comment(&mut self, text: &'static str) {
        self.comments.push((self.code.offset(), text));
    }

    pub(super) fn save(&mut self) {
        self.comment("save what the detour uses");
        self.stands(0);
        self.code.emit([a::stp_pre(9, 10, SP, -self.saved.size())]);
        self.stands_in_frame();
        match self.saved {
            Saved::Two => {}
            Saved::Three => self.code.emit([a::str(11, SP, 16)]),
            Saved::Four | Saved::FourOfEight | Saved::Eight => self.code.emit([a::stp(11, 12, SP, 16)]),
        }
        if self.saved == Saved::Eight {
            self.code.emit([a::stp(13, 14, SP, 32), a::stp(15, 16, SP, 48)]);
        }
    }

    /// With x30 as it is at the place.
    pub(super) fn restore(&mut self) {
        self.comment("restore");
        self.stands_in_frame();
        if self.saved == Saved::Eight {
            self.code.emit([a::ldp(15, 16, SP, 48), a::ldp(13, 14, SP, 32)]);
        }
        match self.saved {
            Saved::Two => {}
            Saved::Three => self.code.emit([a::ldr(11, SP, 16)]),
            Saved::Four | Saved::FourOfEight | Saved::Eight => self.code.emit([a::ldp(11, 12, SP, 16)]),
        }
        self.code.emit([a::ldp_post(9, 10, SP, self.saved.size())]);
        self.stands(0);
    }

    /// The functions that unwinders ask about an address: it becomes the real one, wherever the unwinder has it.
    pub fn translate(&mut self, lookup: Lookup) -> Emitted<()> {
        self.save();
        self.stands_nowhere();
        self.comment("tell unwinders the real address");
        self.code.emit([a::mov(STATUS, LINK), a::add_immediate(SLOT, SP, self.saved.size() as u32)]);
        match lookup {
            Lookup::FindObject => {
                self.code.emit([a::mov(TEMPORARY, 0)]);
                self.routine(runtime::TRANSLATE)?;
                self.code.emit([a::mov(0, TEMPORARY)]);
            }
            Lookup::IteratePhdr => {
                let elsewhere = self.code.label();
                let bits = UNWINDER_STACK.ilog2();
                self.code.emit([a::sub(ADDRESS, 1, SLOT, 0), a::lsr(ADDRESS, ADDRESS, bits)]);
                self.code.emit_to(a::cbnz(ADDRESS), elsewhere);
                for word in 0..LOOKED_UP_WORDS {
                    self.code.emit([a::ldr(TEMPORARY, 1, 8 * word)]);
                    self.routine(runtime::TRANSLATE)?;
                }
                self.code.bind(elsewhere);
            }
        }
        self.code.emit([a::mov(LINK, STATUS)]);
        self.restore();
        Ok(())
    }

    /// The function by which unwinders land.
    pub fn land(&mut self, code_address: u32) -> Emitted<()> {
        self.save();
        self.stands_nowhere();
        self.comment("count what is left by an exception");
        self.code.add_constant(SLOT, 0, code_address.into());
        // Where x0 is.
        self.code.emit([a::mov(STATUS, LINK), a::ldr(ADDRESS, 0, 0)]);
        self.routine(runtime::LANDED)?;
        self.code.emit([a::mov(LINK, STATUS)]);
        self.restore();
        Ok(())
    }

    /// `BLOCK` = the thread's block, or the overflow block; `entry`, which may be `BLOCK`, held the thread's entry in between, and holds it
    /// yet if it is another register. Changes `TEMPORARY` and `ADDRESS`.
    ///
    /// The owner that stands in the table is the complement of the thread pointer: so one of 0 matches no free entry. Owner and
    /// block come by one instruction, which starts again if a handler of the thread's interrupts it.
    pub(super) fn find_thread(&mut self, entry: u32) {
        self.comment("find the thread");
        let (slow, found) = (self.code.label(), self.code.label());
        self.entry_by_hash(entry, [TEMPORARY, ADDRESS]);
        self.code
            .emit([a::ldp(ADDRESS, BLOCK, entry, THREAD_OWNER as i32), a::eon(ADDRESS, ADDRESS, TEMPORARY)]);
        self.code.emit_to(a::cbnz(ADDRESS), slow);
        self.code.bind(found);
        self.off_path(slow, found, Slow::Resolve { entry });
    }

    /// `entry` = where the thread's entry is first looked for, and `pointer` = the thread pointer, unless it is `index`, which is changed.
    pub(super) fn entry_by_hash(&mut self, entry: u32, [pointer, index]: [u32; 2]) {
        self.code.emit([
            a::mrs_thread_pointer(pointer),
            a::eor_shifted_right(index, pointer, pointer, THREAD_FOLD),
            a::ubfx(index, index, STACK_PAGE_SHIFT, self.layout.thread_bits),
        ]);
        self.code.constant(entry, self.layout.threads);
        self.code.emit([a::add(entry, entry, index, THREAD_SHIFT)]);
    }

    /// `BLOCK` = a block to add to: that of whichever thread has the entry of this one's thread pointer ([`crate::detour::memory`]). Changes
    /// `TEMPORARY`.
    fn find_any_block(&mut self) {
        self.comment("find a block");
        let [slow, known] = [(); 2].map(|()| self.code.label());
        self.entry_by_hash(BLOCK, [TEMPORARY; 2]);
        self.code.bind(known);
        self.code.emit([a::ldr(BLOCK, BLOCK, THREAD_BLOCK)]);
        self.code.emit_to(a::cbz(BLOCK), slow);
        self.off_path(slow, known, Slow::Unclaimed);
    }

    /// What is done at `from`, off the fast path, before it goes on at `to`.
    pub(super) fn off_path(&mut self, from: Label, to: Label, what: Slow) {
        self.slow.push((from, to, what));
    }

    /// Counts at `from` what bodies were not called for, and goes on.
    pub(super) fn unrun(&mut self, from: Label, to: Label) {
        self.off_path(from, to, Slow::Unrun);
    }

    /// What the fast path branches to when it does not suffice.
    fn slow_paths(&mut self) -> Emitted<()> {
        for (from, to, what) in core::mem::take(&mut self.slow) {
            self.code.bind(from);
            self.stands_nowhere();
            match what {
                Slow::Resolve { entry } => {
                    self.comment("a thread not seen before");
                    self.resolve(entry)?;
                }
                Slow::Unclaimed => {
                    self.comment("no thread has this entry");
                    self.code.emit([a::mrs_thread_pointer(TEMPORARY)]);
                    self.call_resolve(FREE)?;
                }
                Slow::Claim { lost } => self.claim_elsewhere(lost)?,
                Slow::Lost { counter } => self.lost(counter)?,
                Slow::Unrun => {
                    self.comment("bodies that are not called");
                    add_one(&mut self.code, BLOCK_UNRUN);
                }
                Slow::Leave { point } => self.leave_elsewhere(point)?,
                Slow::Orphan => self.resolve_again()?,
            }
            self.code.emit_to(0x1400_0000, to);
        }
        Ok(())
    }

    /// `BLOCK` = the block of the thread pointer in `TEMPORARY`, and `entry` the thread's entry if it is another register. Both are asked for
    /// again if a handler in between has forked, and this is its child, whose table was wiped.
    pub(super) fn resolve(&mut self, entry: u32) -> Emitted<()> {
        let again = self.code.label_here();
        match self.saved {
            Saved::FourOfEight => self.call_resolve(SPARE)?,
            _ => {
                self.code.emit([a::mov(STATUS, LINK)]);
                self.routine(runtime::RESOLVE)?;
                self.code.emit([a::mov(LINK, STATUS)]);
            }
        }
        if entry != BLOCK {
            self.code.emit([a::mov(entry, BLOCK)]);
        }
        self.code.emit([a::ldr(BLOCK, BLOCK, THREAD_BLOCK)]);
        self.code.emit_to(a::cbz(BLOCK), again);
        Ok(())
    }

    /// `BLOCK` = the entry for the thread pointer in `TEMPORARY`. Needs a free word of the frame.
    fn call_resolve(&mut self, place: u32) -> Emitted<()> {
        self.code.emit([a::str(LINK, SP, place)]);
        self.routine(runtime::RESOLVE)?;
        self.code.emit([a::ldr(LINK, SP, place)]);
        Ok(())
    }

    pub(super) fn routine(&mut self, index: usize) -> Emitted<()> {
        self.code.call(*self.routines.get(index).ok_or(Reason::OutOfReach)?)
    }
}
