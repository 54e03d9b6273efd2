//! The detour of a site: count, time or record, run the displaced instruction, go back.
//!
//! # Entry only
//!
//! ```text
//!     make a frame, save r9 to r12 and cr0
//!     find the thread's entry in the thread table            ── miss ──▶ resolve ── none ──▶ overflow block
//!     count, record
//!     restore
//!     displaced instruction
//!     b site + 4
//! ```
//!
//! Where one counter is all that is asked for, it goes without a frame ([`super::count`]), and with nothing saved if the function has registers to
//! spare ([`super::spare`]).
//!
//! # Entry and return, call-paired
//!
//! The caller's return address leaves lr for the slot's return instance, and the displaced code is *called*. So the function's own
//! `blr` comes back here, where a second `blr` goes home: every call has its return, as the link stack of the processor expects.
//!
//! ```text
//!     … as above, then find the slot's return instance       ── taken ──▶ claim ── none ──▶ count as lost
//!     restore
//!     bl displaced              lr: the return point
//! return point:
//!     save; find the thread's entry and the instance         ── miss ──▶ resolve, leave
//!     count; lr = the return address; free the instance; time, record
//!     restore; blr
//! displaced:
//!     displaced instruction
//!     b site + 4
//! ```
//!
//! # What is kept
//!
//! Everything that is read yet, but for lr at a followed return, where it is the caller's return address as after any return. Registers and the one field
//! of cr are saved in a frame below the red zone (see [`super::emit`]); xer, ctr, tar and the other registers are
//! never touched: no instruction here carries, and conditions use cr0 alone. What bodies lose besides is kept around them ([`super::bodies`]). r2 is not looked at. After a call to another
//! module the caller loads its own again.
//!
//! Counters are incremented between a load-reserve and a store-conditional: exact against signal handlers on the same
//! thread, and against other threads in the overflow block. So a thread without memory of its own runs the same code with
//! another base. Its calls are followed if nothing but their number is asked for, which is done with less ([`super::count`]).

use super::emit::*;
use super::follow::NOTED;
use super::frames::of_copies;
use super::lower::UNWINDER_FRAMES;
use super::relocate::relocate;
use super::runtime::Routine;
use super::spare::Spare;
use super::steps::{only_counts, saved_for};
use crate::Reason;
use crate::detour::*;
use crate::frames::{Place, Point};
use crate::payload::Lookup;
use alloc::{string::String, vec::Vec};

/// Doublewords of the frame for cr0 and lr, behind those for the registers.
const CR0: i16 = scratch(7);
pub(super) const SAVED_LR: i16 = scratch(8);

/// Registers of the first arguments.
pub(super) const ARGUMENTS: [u8; 8] = [3, 4, 5, 6, 7, 8, 9, 10];

pub(super) fn detour(request: &DetourRequest<'_>) -> Emitted<Detour> {
    if request.payload.follows_by_notes() {
        return Err(crate::Reason::NotImplemented);
    }
    if request.stack != Stack::Enough {
        return Err(crate::Reason::NeedsStack);
    }
    if !request.lets_change() {
        return Err(Reason::NoChanges);
    }
    if !request.lets_replace() {
        return Err(Reason::NoReplacement);
    }
    super::runtime::check(request.layout)?;
    match (request.payload.replaced_by(), request.payload.called_by()) {
        (None, None) => Template::new(request).write(),
        (Some(function), Some(caller)) => Template::new(request).replaced(function, caller),
        _ => Err(Reason::NoReplacement),
    }
}

/// A detour being written.
pub(super) struct Template<'a> {
    pub request: &'a DetourRequest<'a>,
    pub asm: Asm,
    /// Where a followed call returns.
    pub return_point: Label,
    pub saved: &'static [Gpr],
    /// What the instructions stand for that are being written, and those that have been.
    pub place: Place,
    pub points: Vec<Point>,
    places: Vec<(u64, u32)>,
    comments: Vec<(u32, String)>,
}

impl<'a> Template<'a> {
    fn new(request: &'a DetourRequest<'a>) -> Self {
        let saved = saved_for(&request.payload);
        let mut asm = Asm::new(request.address);
        let return_point = asm.label();
        Self {
            request,
            asm,
            return_point,
            saved,
            place: Place::Site(0),
            points: Vec::new(),
            places: Vec::new(),
            comments: Vec::new(),
        }
    }

    pub fn comment(&mut self, text: &str) {
        self.comments.push((self.asm.offset(), String::from(text)));
    }

    fn write(mut self) -> Emitted<Detour> {
        let payload = &self.request.payload;
        if let Some(counter) = payload.only_counter() {
            self.only_one(counter)?;
            return self.finish(None, None);
        }
        if let Some(followed) = only_counts(payload) {
            let return_point = self.follow_counts(&followed)?;
            return self.finish(Some(return_point), None);
        }
        let [counted, slow, displaced] = [(); 3].map(|()| self.asm.label());
        self.save();
        if !payload.hooks.is_empty() {
            self.stands_nowhere();
            payload.hooks.iter().try_for_each(|hook| self.hook(hook))?;
            self.stands(FRAME);
        }
        self.find_thread(slow);
        self.asm.bind(counted);
        payload.entry.iter().try_for_each(|step| self.entry_step(step))?;
        let mut return_point = None;
        match payload.followed {
            None => {
                self.restore();
                self.displaced()?;
            }
            Some(followed) => {
                let rare = [(); 3].map(|()| self.asm.label());
                return_point = Some(self.follow(&followed, displaced, rare));
                self.place = Place::Caller;
                self.returned(&followed)?;
                self.place = Place::Site(0);
                self.asm.bind(displaced);
                self.displaced()?;
                self.claim(&followed, displaced, rare)?;
            }
        }
        self.asm.bind(slow);
        self.stands_nowhere();
        self.comment("the thread is not where its hash says");
        self.resolve(counted)?;
        self.finish(return_point, None)
    }

    /// Where one counter is all that is asked for.
    fn only_one(&mut self, counter: u32) -> Emitted<()> {
        let [unknown, displaced, missed] = [(); 3].map(|()| self.asm.label());
        let Some(spare) = Spare::of(self.request) else {
            let known = self.count_in_pairs(counter, unknown);
            self.displaced()?;
            return self.count_unknown(unknown, known);
        };
        self.count_in_spare(spare, counter, missed);
        self.asm.bind(displaced);
        self.displaced()?;
        self.asm.bind(missed);
        self.stands(0);
        self.comment("no block at first sight");
        self.put_back_cr0(spare);
        let known = self.count_in_pairs(counter, unknown);
        self.asm.branch(displaced);
        self.count_unknown(unknown, known)
    }

    /// The functions that unwinders ask about an address: it becomes the real one, wherever the unwinder has it. Changes r9 to
    /// r11 and cr0.
    pub fn translate(&mut self, lookup: Lookup) -> Emitted<()> {
        let translate = Routine::Translate.address(self.request.runtime)?;
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        match lookup {
            Lookup::FindObject => {
                self.asm.copy(R10, R3);
                self.asm.call_to(translate)?;
                self.asm.copy(R3, R10);
            }
            Lookup::IteratePhdr => {
                let elsewhere = self.asm.label();
                self.asm.sub(R9, R4, R1);
                self.asm.load_constant(R10, UNWINDER_FRAMES);
                self.asm.compare_unsigned(R9, R10);
                self.asm.branch_if(When::NotLess, elsewhere);
                for word in 0..LOOKED_UP_WORDS as i16 {
                    self.asm.load(R10, R4, 8 * word);
                    self.asm.call_to(translate)?;
                }
                self.asm.bind(elsewhere);
            }
        }
        self.asm.load(R10, R1, SAVED_LR);
        self.asm.write_special(LR, R10);
        Ok(())
    }

    /// The function by which unwinders land. Changes r9 to r11 and cr0.
    pub fn land(&mut self, code_address: u32) -> Emitted<()> {
        let offset = i16::try_from(code_address).map_err(|_| Reason::OutOfReach)?;
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.addi(R10, R3, offset);
        // Where r3 is.
        self.asm.load(R9, R3, 24);
        self.asm.call_to(Routine::Landed.address(self.request.runtime)?)?;
        self.asm.load(R10, R1, SAVED_LR);
        self.asm.write_special(LR, R10);
        Ok(())
    }

    pub(super) fn finish(mut self, return_point: Option<u32>, original: Option<u32>) -> Emitted<Detour> {
        self.comments.sort_by_key(|comment| comment.0);
        // Behind the end nothing is known.
        self.stands_nowhere();
        Ok(Detour {
            code: self.asm.finish()?,
            places: self.places,
            return_point,
            original,
            frames: if self.request.tells { self.points } else { Vec::new() },
            comments: self.comments,
        })
    }

    pub fn save(&mut self) {
        self.stands(0);
        self.asm.enter(self.saved[0]);
        self.stands(FRAME);
        for (place, register) in self.places_of_saved().skip(1) {
            self.asm.store(register, R1, place);
        }
        self.asm.read_cr0(R12);
        self.asm.store(R12, R1, CR0);
    }

    /// With lr as it is at the place.
    pub fn restore(&mut self) {
        self.stands(FRAME);
        self.asm.load(R12, R1, CR0);
        self.asm.write_cr0(R12);
        for (place, register) in self.places_of_saved() {
            self.asm.load(register, R1, place);
        }
        self.asm.leave();
        self.stands(0);
    }

    /// Where the frame has the registers that are saved, in the order in which they are.
    fn places_of_saved(&self) -> impl Iterator<Item = (i16, Gpr)> + use<> {
        [FIRST].into_iter().chain((1..).map(scratch)).zip(self.saved.iter().copied())
    }

    /// Where the frame has a register, if it is saved.
    pub fn place_of(&self, register: Gpr) -> Option<i16> {
        self.places_of_saved().find_map(|(place, saved)| (saved == register).then_some(place))
    }

    /// r12 = the thread's block, and r11 its entry of the thread table, less what is returned; or off to `slow`. r11 is not 0.
    ///
    /// The owner that stands in the table is the complement of the thread pointer: so one of 0 matches no free entry. It is looked at behind
    /// the block: a handler in between may fork, and in its child both are 0.
    pub fn find_thread(&mut self, slow: Label) -> i16 {
        let low = self.entry_by_hash(R11, R12);
        if self.place == Place::Caller {
            self.asm.store(R11, R1, NOTED);
        }
        self.asm.load(R12, R11, low + THREAD_BLOCK as i16);
        self.asm.load(R9, R11, low + THREAD_OWNER as i16);
        self.asm.compare_complement(R9, R9, R13);
        self.asm.branch_if(When::NotEqual, slow);
        low
    }

    /// `entry` = where the thread's entry is first looked for, less what is returned. Changes `temporary`. Neither is r0.
    pub fn entry_by_hash(&mut self, entry: Gpr, temporary: Gpr) -> i16 {
        let layout = self.request.layout;
        self.asm.extract(entry, R13, THREAD_FOLD, 64 - THREAD_FOLD);
        self.asm.xor(entry, entry, R13);
        self.asm.move_bits(entry, entry, STACK_PAGE_SHIFT, THREAD_SHIFT, layout.thread_bits);
        self.asm.add_constant_but_low(entry, temporary, layout.threads, THREAD_SHIFT + layout.thread_bits)
    }

    /// Asks the runtime for the thread's entry in r11, and goes to `known` with its block in r12. Without one, r11 = 0 and r12 = the
    /// overflow block.
    pub fn resolve(&mut self, known: Label) -> Emitted<()> {
        let (none, again) = (self.asm.label(), self.asm.here_label());
        self.asm.read_special(R12, LR);
        self.asm.store(R12, R1, SAVED_LR);
        self.asm.call_to(Routine::Resolve.address(self.request.runtime)?)?;
        self.asm.load(R12, R1, SAVED_LR);
        self.asm.write_special(LR, R12);
        self.asm.compare_immediate(R11, 0);
        self.asm.branch_if(When::Equal, none);
        self.asm.load(R12, R11, THREAD_BLOCK as i16);
        self.asm.compare_immediate(R12, 0);
        self.asm.branch_if(When::Equal, again);
        self.asm.branch(known);
        self.asm.bind(none);
        self.asm.load_constant(R12, self.request.layout.blocks);
        self.asm.branch(known);
        Ok(())
    }

    /// `to` = the call's stack slot: the stack pointer of the program.
    pub fn slot(&mut self, to: Gpr) {
        self.asm.addi(to, R1, FRAME);
    }

    /// The copy of the displaced instruction, and the branch to the first one that stays.
    pub(super) fn displaced(&mut self) -> Emitted<()> {
        self.comment("displaced instruction");
        let at = self.asm.offset();
        let DetourRequest { displaced, original, .. } = self.request;
        let relocated = relocate(displaced, original, self.asm.here())?;
        self.places = relocated.places.iter().map(|&(from, to)| (from, at + to)).collect();
        for word in relocated.code.chunks_exact(4) {
            self.asm.word(super::decode::word_at(word, 0).ok_or(Reason::NotAnInstruction)?);
        }
        let next = displaced.start.wrapping_add(u64::from(displaced.length));
        self.places.push((next, self.asm.offset()));
        self.comment("back to the first instruction that stays");
        self.asm.branch_to(next)?;
        let end = [(next, relocated.code.len() as u32)];
        let places: Vec<(u64, u32)> = relocated.places.iter().chain(&end).copied().collect();
        let mut points = of_copies(&relocated.code, &places, displaced.start);
        // Behind the copies comes the branch.
        points.pop();
        self.points.extend(points.into_iter().map(|point| Point { offset: at + point.offset, ..point }));
        Ok(())
    }
}
