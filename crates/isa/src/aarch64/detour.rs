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
//! Additions are `ldxr`, `add`, `stxr`. Between processors they are atomic, so the overflow block needs no
//! other code. On one thread a signal handler that adds to the same counter clears the monitor, so its
//! addition is not lost either. LSE's `ldadd` would be shorter and no faster without contention, and needs
//! ARMv8.1.
//!
//! # Constants
//! Addresses and the hash's factor stand behind the code, where one load fetches each. Its last instruction is a branch, so nothing
//! runs into them.
//!
//! # Return instances on arm64
//! See [`crate::detour::memory`] for the protocol. The slot is sp at the entry, where on x86 the return address would
//! be. So calls that are followed at the same time can have the same slot, in two cases.
//!
//! A tail call, or a jump back to the function's own entry: it is known by its x30, which is the return point
//! of the instance that is there.
//!
//! A call by a function that keeps its return address in a register and does not move sp. [`super::returns`]
//! refuses to follow those, but a followed function may end in a tail call to one (`rawmemchr`, which calls
//! `strlen`). It is known by that register, which holds the return point.
//!
//! In any other case the instance was left behind, and the latest call wins.
//!
//! # Pointer authentication
//! Behind a `paciasp` that stays at the entry, x30 is signed. The detour strips it (`xpaclri`), and the body
//! begins by signing the return point in the same way, with the same sp.

use super::count::add_one;
use super::decode::{Form, LENGTH, form, hint, word};
use super::emit::{Code, Label, instruction as a};
use super::frame::register::*;
use super::relocate::relocate;
use super::runtime;
use super::steps::{Saved, saved};
use crate::body::Runs;
use crate::detour::*;
use crate::payload::*;
use crate::{DetourRequest, Operand, Reason};
use alloc::{string::ToString, vec, vec::Vec};

/// A detour in the making.
pub(super) struct Template<'a> {
    pub code: Code,
    pub layout: &'a Layout,
    /// Address of the probe.
    pub(super) site: u64,
    /// Whether that is where its function begins.
    pub(super) is_entry: bool,
    pub(super) runs: Runs<'a>,
    /// What [`EntryStep::Fetch`] records.
    pub(super) operands: &'a [Operand],
    routines: &'a [u64],
    /// The registers in the frame.
    pub(super) saved: Saved,
    /// Pieces off the fast path, emitted at the end: where they start, where they go on, and what they are.
    slow: Vec<(Label, Label, Slow)>,
    comments: Vec<(u32, &'static str)>,
}

/// What happens off the fast path.
#[derive(Clone, Copy)]
enum Slow {
    Resolve,
    Claim { lost: Label },
    Lost { counter: u32 },
    Unrun,
    Leave { point: Label },
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
    let start = request.displaced.start;
    let original = word(request.original).ok_or(Reason::NotAnInstruction)?;
    if u64::from(request.displaced.length) != LENGTH || !request.address.is_multiple_of(LENGTH) {
        return Err(Reason::MidInstruction);
    }
    let payload = &request.payload;
    let mut t = Template {
        code: Code::new(request.address),
        layout: request.layout,
        site: request.site.address,
        is_entry: request.site.address == request.site.function,
        runs: request.runs,
        operands: request.operands,
        routines: &request.runtime.routines,
        saved: saved(payload),
        slow: vec![],
        comments: vec![],
    };
    let mut return_point = None;
    payload.hooks.iter().try_for_each(|hook| t.hook(hook))?;
    if let Some(followed) = &payload.followed {
        let signature = signature(request)?;
        let body = t.code.label();
        let point = t.paired_entry(&payload.entry, followed, signature.is_some(), body)?;
        return_point = Some((t.code.address_of(point).ok_or(Reason::OutOfReach)? - request.address) as u32);
        t.at_return(followed, point)?;
        t.code.bind(body);
        t.code.emit(signature.map(a::hint));
    } else if payload.needs().block {
        t.save();
        t.find_thread();
        payload.entry.iter().try_for_each(|step| t.entry_step(step, false))?;
        t.restore();
    }
    let copy = t.code.offset();
    t.comments.push((copy, "displaced instruction"));
    relocate(original, start, &mut t.code)?;
    let back = t.code.offset();
    t.comments.push((back, "back"));
    t.code.branch(request.displaced.end())?;
    t.slow_paths()?;
    Ok(Detour {
        frames: Vec::new(),
        code: t.code.finish()?,
        places: vec![(start, copy), (request.displaced.end(), back)],
        return_point,
        comments: t.comments.into_iter().map(|(offset, text)| (offset, text.to_string())).collect(),
    })
}

/// The signing instruction in front of the displaced one, if it is there. Also refuses return probes that are
/// not at the entry.
fn signature(request: &DetourRequest<'_>) -> Emitted<Option<u8>> {
    let site = request.site;
    let pad = word(site.code).map(form);
    match request.displaced.start.wrapping_sub(site.function) {
        0 => Ok(None),
        LENGTH if matches!(pad, Some(Form::Hint(number)) if hint::is_landing_pad(number)) => {
            Ok(signature_before(request))
        }
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
    pub fn comment(&mut self, text: &'static str) {
        self.comments.push((self.code.offset(), text));
    }

    fn save(&mut self) {
        self.comment("save what the detour uses");
        self.code.emit([a::stp_pre(9, 10, SP, -self.saved.size())]);
        self.code.emit([match self.saved {
            Saved::Three => a::str(11, SP, 16),
            Saved::Four | Saved::Eight => a::stp(11, 12, SP, 16),
        }]);
        if self.saved == Saved::Eight {
            self.code.emit([a::stp(13, 14, SP, 32), a::stp(15, 16, SP, 48)]);
        }
    }

    fn restore(&mut self) {
        self.comment("restore");
        if self.saved == Saved::Eight {
            self.code.emit([a::ldp(15, 16, SP, 48), a::ldp(13, 14, SP, 32)]);
        }
        self.code.emit([match self.saved {
            Saved::Three => a::ldr(11, SP, 16),
            Saved::Four | Saved::Eight => a::ldp(11, 12, SP, 16),
        }]);
        self.code.emit([a::ldp_post(9, 10, SP, self.saved.size())]);
    }

    /// The functions that unwinders ask about an address: it becomes the real one, wherever the unwinder has it.
    pub fn translate(&mut self, lookup: Lookup) -> Emitted<()> {
        self.save();
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
        self.comment("count what is left by an exception");
        self.code.add_constant(SLOT, 0, code_address.into());
        // Where x0 is.
        self.code.emit([a::mov(STATUS, LINK), a::ldr(ADDRESS, 0, 0)]);
        self.routine(runtime::LANDED)?;
        self.code.emit([a::mov(LINK, STATUS)]);
        self.restore();
        Ok(())
    }

    /// `BLOCK` = the thread's block, or the overflow block. Changes `TEMPORARY` and `ADDRESS`.
    ///
    /// The owner that stands in the table is the complement of the thread pointer: so one of 0 matches no free entry. Owner and
    /// block come by one instruction, which starts again if a handler of the thread's interrupts it.
    fn find_thread(&mut self) {
        self.comment("find the thread");
        let (slow, found) = (self.code.label(), self.code.label());
        self.code.emit([a::mrs_thread_pointer(TEMPORARY)]);
        self.code.constant(BLOCK, u64::from(HASH_FACTOR));
        self.code.emit([
            a::madd(ADDRESS, TEMPORARY, BLOCK, SP),
            a::ubfx(ADDRESS, ADDRESS, 32, self.layout.thread_bits),
        ]);
        self.code.constant(BLOCK, self.layout.threads);
        self.code.emit([
            a::add(BLOCK, BLOCK, ADDRESS, THREAD_SHIFT),
            a::ldp(ADDRESS, BLOCK, BLOCK, THREAD_OWNER as i32),
            a::eon(ADDRESS, ADDRESS, TEMPORARY),
        ]);
        self.code.emit_to(a::cbnz(ADDRESS), slow);
        self.code.bind(found);
        self.slow.push((slow, found, Slow::Resolve));
    }

    /// Up to and including the call of `body`. Returns the return point.
    fn paired_entry(
        &mut self,
        entry: &Steps<EntryStep>,
        followed: &Followed,
        signed: bool,
        body: Label,
    ) -> Emitted<Label> {
        let [claim, claimed, lost, point] = core::array::from_fn(|_| self.code.label());
        self.save();
        self.find_thread();
        self.code.emit([a::add_immediate(SLOT, SP, self.saved.size() as u32)]);
        if signed {
            self.code.emit([a::hint(hint::XPACLRI)]);
        }
        entry.iter().try_for_each(|step| self.entry_step(step, true))?;
        self.comment("claim a return instance");
        self.shadow_block(claim);
        self.code.emit([a::ldr(ADDRESS, PLACE, RETURN_POINT)]);
        self.code.emit_to(a::cbnz(ADDRESS), claim);
        self.code.bind(claimed);
        self.code.emit([a::str(LINK, PLACE, RETURN_ADDRESS)]);
        if followed.needs().entered {
            self.code.emit([a::mrs_time(TIME), a::str(TIME, PLACE, RETURN_ENTERED)]);
        }
        self.code.emit_to(a::adr(ADDRESS), point);
        self.code.emit([a::str(ADDRESS, PLACE, RETURN_POINT)]);
        self.restore();
        self.code.emit_to(0x9400_0000, body);
        self.code.bind(point);
        self.slow.push((claim, claimed, Slow::Claim { lost }));

        self.slow.push((lost, body, Slow::Lost { counter: followed.lost }));
        Ok(point)
    }

    /// `PLACE` = the instance of `SLOT`, if its page has the shadow block of its hash; or off to `missing`. Changes `TEMPORARY`,
    /// `ADDRESS` and `STATUS`.
    fn shadow_block(&mut self, missing: Label) {
        let bits = self.layout.return_bits;
        self.code.emit([a::lsr(ADDRESS, SLOT, STACK_PAGE_SHIFT)]);
        self.code.constant(TEMPORARY, u64::from(HASH_FACTOR));
        self.code.emit([a::madd(PLACE, ADDRESS, TEMPORARY, SP), a::ubfx(PLACE, PLACE, 32 - bits, bits)]);
        self.code.constant(TEMPORARY, self.layout.block_size());
        self.code.constant(STATUS, self.layout.shadow_block(0) + u64::from(SHADOW_INSTANCES));
        self.code.emit([
            a::madd(PLACE, PLACE, TEMPORARY, STATUS),
            a::ldur(TEMPORARY, PLACE, SHADOW_TAG as i32 - SHADOW_INSTANCES as i32),
            a::eor(TEMPORARY, TEMPORARY, ADDRESS),
        ]);
        self.code.emit_to(a::cbnz(TEMPORARY), missing);
        let shift = super::SLOT_SHIFT;
        self.code.emit([
            a::ubfx(TEMPORARY, SLOT, shift, STACK_PAGE_SHIFT - shift),
            a::add(PLACE, PLACE, TEMPORARY, RETURN_SHIFT),
        ]);
    }

    /// From the return point to the return.
    fn at_return(&mut self, followed: &Followed, point: Label) -> Emitted<()> {
        let [leave, found] = core::array::from_fn(|_| self.code.label());
        let needs = followed.needs();
        self.comment("return point");
        self.save();
        if needs.time {
            self.code.emit([a::mrs_time(TIME)]);
        }
        self.find_thread();
        self.comment("find the return instance");
        self.code.emit([a::add_immediate(SLOT, SP, self.saved.size() as u32)]);
        self.shadow_block(leave);
        self.code.emit_to(a::adr(ADDRESS), point);
        self.code.emit([a::ldr(TEMPORARY, PLACE, RETURN_POINT), a::eor(TEMPORARY, TEMPORARY, ADDRESS)]);
        self.code.emit_to(a::cbnz(TEMPORARY), leave);
        self.code.emit([a::ldr(TEMPORARY, PLACE, RETURN_OLDER)]);
        self.code.emit_to(a::cbnz(TEMPORARY), leave);
        self.code.bind(found);
        self.code.emit([a::ldr(LINK, PLACE, RETURN_ADDRESS)]);
        if needs.entered {
            self.code.emit([a::ldr(ENTERED, PLACE, RETURN_ENTERED)]);
        }
        self.code.emit([a::str(SP, PLACE, RETURN_POINT)]);
        self.slow.push((leave, found, Slow::Leave { point }));
        followed.steps.iter().try_for_each(|step| self.return_step(step))?;
        self.restore();
        self.code.emit([a::RET]);
        Ok(())
    }

    /// Counts at `from` what bodies were not called for, and goes on.
    pub(super) fn unrun(&mut self, from: Label, to: Label) {
        self.slow.push((from, to, Slow::Unrun));
    }

    /// What the fast path branches to when it does not suffice.
    fn slow_paths(&mut self) -> Emitted<()> {
        for (from, to, what) in core::mem::take(&mut self.slow) {
            self.code.bind(from);
            match what {
                Slow::Resolve => {
                    self.comment("a thread not seen before");
                    let [keep, put_back] = match self.saved {
                        Saved::Three => [a::str(LINK, SP, 24), a::ldr(LINK, SP, 24)],
                        Saved::Four | Saved::Eight => [a::mov(STATUS, LINK), a::mov(LINK, STATUS)],
                    };
                    self.code.emit([keep]);
                    self.routine(runtime::RESOLVE)?;
                    self.code.emit([put_back, a::ldr(BLOCK, BLOCK, THREAD_BLOCK)]);
                }
                Slow::Claim { lost } => {
                    self.comment("the instance is not free");
                    self.code.emit([a::mov(ENTERED, LINK)]);
                    self.routine(runtime::CLAIM)?;
                    self.code.emit([a::mov(LINK, ENTERED)]);
                    self.code.emit_to(a::cbz(PLACE), lost);
                }
                Slow::Lost { counter } => {
                    self.comment("not followed");
                    add_one(&mut self.code, counter);
                    self.restore();
                }
                Slow::Unrun => {
                    self.comment("bodies that are not called");
                    add_one(&mut self.code, BLOCK_UNRUN);
                }
                Slow::Leave { point } => {
                    self.comment("the instance is not at hand");
                    self.code.emit_to(a::adr(ADDRESS), point);
                    self.routine(runtime::LEAVE)?;
                }
            }
            self.code.emit_to(0x1400_0000, to);
        }
        Ok(())
    }

    fn routine(&mut self, index: usize) -> Emitted<()> {
        self.code.call(*self.routines.get(index).ok_or(Reason::OutOfReach)?)
    }
}
