//! The routines that the detours of one arena share: all that is too rare or too long to stand in every detour.
//!
//! | routine | in | out |
//! |---|---|---|
//! | resolve | – | r11: the thread's entry of the thread table, or 0 |
//! | claim | r8: stack slot, r10: the caller's return address | r11: a return instance for the call, or 0 |
//! | leave | r8: stack slot, r10: return point | r11: the instance of its call, or 0 |
//! | translate | r10: code address | r10: the real code address |
//! | landed | r10: where an unwinder's context has its code address, r9: the place of its exception | – |
//!
//! Each changes r9, r10, r11, cr0 and lr at most, works in the detour's frame (see [`super::emit`]) or below it, waits for
//! nothing, and may be interrupted by a signal handler that runs it again. What they do is told in [`crate::routines`], the
//! memory they work on in [`crate::detour::memory`].
//!
//! # The slot of a call
//!
//! Power has no stack slot that a call pushes its return address to. What identifies a call is the stack pointer at its
//! entry, which is its caller's: every function that calls others makes a frame first (the return verdict makes sure), so
//! two calls in progress differ in it, unless one was reached by a tail call from the other. Then lr is the return point of
//! the other, which is how *claim* tells the two cases apart. The place of the return address is lr itself: the
//! slot is a name, and nothing is ever written to it.

use super::emit::*;
use super::lower::REGISTERS_APART;
use crate::Reason;
use crate::detour::*;
use crate::routines::{self, Instances, LOCALS, Missing, Threads};

/// Where the routines are, by index into [`Runtime::routines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routine {
    Resolve,
    Claim,
    Leave,
    Translate,
    Landed,
}

impl Routine {
    /// Its address.
    pub fn address(self, runtime: &Runtime) -> Emitted<u64> {
        runtime.routines.get(self as usize).copied().ok_or(Reason::OutOfReach)
    }
}

/// The owner is the complement of the thread pointer.
const THREADS: Threads<Gpr> =
    Threads { pointer: R13, owner: R7, entry: R11, index: R10, left: R9, x: R12, y: R8 };
const INSTANCES: Instances<Gpr> =
    Instances { slot: R8, instance: R11, page: R9, index: R7, left: R6, scratch: R12 };
/// The call's return address, or its return point; or an unwinder's address.
const ADDRESS: Gpr = R10;

/// What the routines save, in the doublewords from this one on. Detours use those before.
const SAVED: [Gpr; 6] = [R0, R12, R8, R7, R6, R5];
const FIRST_SAVED: i16 = 12;

/// Of the frame of `translate`: the bottom of its locals, with the registers behind them where an unwinder may have what it needs after the
/// call. That is the second argument, the place of the bases in libgcc's context, and what functions keep for their callers.
const LOCALS_FRAME: i16 = 32;
const KEPT: [u32; 19] = [4, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31];
const TRANSLATE_FRAME: i16 = (LOCALS_FRAME + 8 * (LOCALS as i16 + KEPT.len() as i16) + 15) & !15;

/// Refuses layouts whose sizes the templates cannot express: their fields lie in the lower half of a register.
pub(super) fn check(layout: &Layout) -> Emitted<()> {
    match layout.thread_bits <= 20 && layout.return_bits <= 18 {
        true => Ok(()),
        false => Err(Reason::OutOfReach),
    }
}

pub(super) fn runtime(address: u64, layout: &Layout) -> Emitted<Runtime> {
    check(layout)?;
    let mut asm = Asm::new(address);
    let routines: [fn(&mut Asm, &Layout); 5] = [resolve, claim, leave, translate, landed];
    let addresses = routines.map(|routine| {
        let address = asm.here();
        SAVED.iter().zip(FIRST_SAVED..).for_each(|(&register, n)| asm.store(register, R1, scratch(n)));
        routine(&mut asm, layout);
        SAVED.iter().zip(FIRST_SAVED..).for_each(|(&register, n)| asm.load(register, R1, scratch(n)));
        asm.return_();
        address
    });
    Ok(Runtime { code: asm.finish()?, routines: addresses.into(), frames: alloc::vec::Vec::new() })
}

fn resolve(asm: &mut Asm, layout: &Layout) {
    let [none, done] = [(); 2].map(|()| asm.label());
    asm.compare_immediate(R13, 0);
    asm.branch_if(When::Equal, none);
    asm.complement(THREADS.owner, THREADS.pointer);
    routines::resolve(asm, layout, &THREADS, Missing::Claim);
    asm.branch(done);
    asm.bind(none);
    asm.load_constant(THREADS.entry, 0);
    asm.bind(done);
}

fn claim(asm: &mut Asm, layout: &Layout) {
    routines::claim(asm, layout, &INSTANCES, ADDRESS);
}

fn leave(asm: &mut Asm, layout: &Layout) {
    let [unknown, done] = [(); 2].map(|()| asm.label());
    routines::leave(asm, layout, &INSTANCES, ADDRESS, unknown);
    asm.branch(done);
    asm.bind(unknown);
    asm.load_constant(INSTANCES.instance, 0);
    asm.bind(done);
}

/// The detour's frame is the first one above, and the function that is asked was entered with the stack pointer above that.
fn translate(asm: &mut Asm, layout: &Layout) {
    let frame = R5;
    let stack = INSTANCES.page;
    let kept = || KEPT.into_iter().map(Gpr).zip((LOCALS as i16..).map(|n| LOCALS_FRAME + 8 * n));
    asm.addi(stack, R1, FRAME);
    asm.load_constant(R0, 0);
    asm.push_frame(TRANSLATE_FRAME, R0);
    asm.addi(frame, R1, LOCALS_FRAME);
    kept().for_each(|(register, place)| asm.store(register, R1, place));
    let saved = KEPT.len() as u32;
    routines::translate(asm, layout, &INSTANCES, frame, (ADDRESS, stack), saved, REGISTERS_APART);
    kept().for_each(|(register, place)| asm.load(register, R1, place));
    asm.addi(R1, R1, TRANSLATE_FRAME);
}

fn landed(asm: &mut Asm, layout: &Layout) {
    let [told, done] = [(); 2].map(|()| asm.label());
    // What is in r10 stays there.
    let (calls, is_end) = (R5, R10);
    asm.copy(INSTANCES.slot, R10);
    asm.copy(is_end, R9);
    routines::ends_thread(asm, [INSTANCES.slot, is_end, R1, R13], [R12, R7], told);
    asm.bind(told);
    routines::landed(asm, layout, &INSTANCES, calls, done);
    asm.compare_immediate(is_end, 0);
    asm.branch_if(When::NotEqual, done);
    resolve(asm, layout);
    routines::count_left(asm, layout, THREADS.entry, calls, [THREADS.x, THREADS.y, THREADS.left]);
    asm.bind(done);
}
