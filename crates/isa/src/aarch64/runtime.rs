//! The routines that the detours of one arena share: what happens off their fast paths.
//!
//! They keep all registers but the ones named as results. Each saves x0 to x7 and x17 and works in those. What they do
//! is told in `routines`, the memory they work on in [`crate::detour::memory`].

use super::emit::{Code, Label, instruction as a};
use super::frame::register::*;
use super::lower::OWN;
use crate::Reason;
use crate::assemble::Assemble;
use crate::detour::*;
use crate::routines::{self, Instances, LOCALS, Missing, Threads};
use alloc::vec;

/// The entry of the thread table for the thread pointer in `TEMPORARY`, in `BLOCK`; one that leads to the
/// overflow block when there is none.
pub const RESOLVE: usize = 0;
/// Claims a return instance for `SLOT` and the return address in `ENTERED`. `PLACE` is the instance or 0.
pub const CLAIM: usize = 1;
/// Finds the return instance of `SLOT` with the return point in `ADDRESS`, in `PLACE`. Does not return when there is none.
pub const LEAVE: usize = 2;
/// Translates the code address in `TEMPORARY`, given the stack pointer at the entry in `SLOT`.
pub const TRANSLATE: usize = 3;
/// Counts what an unwinder leaves whose context has its code address at `SLOT`, and its exception in the place in `ADDRESS`.
pub const LANDED: usize = 4;

/// Bytes of a routine's frame: x0 to x7, x17. The link register is not touched: an address of ours that was saved would stay on the
/// program's stack, and look like a way back to whoever removes the arena.
const FRAME: i32 = 80;
/// Where the frame has the vocabulary's own scratch.
const OWN_AT: u32 = 64;

const INSTANCES: Instances<u32> =
    Instances { slot: SLOT, instance: PLACE, page: 1, index: 2, left: 3, scratch: 4 };
const CALLER: u32 = 5;
/// The owner is the complement of the thread pointer.
const THREADS: Threads<u32> =
    Threads { pointer: TEMPORARY, owner: 4, entry: BLOCK, index: 1, left: 0, x: 2, y: 3 };

/// Saved by functions for their callers: x19 to x29; and the second argument.
const KEPT: [u32; 12] = [1, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];

/// Refuses layouts whose sizes the templates cannot express.
pub fn check(layout: &Layout) -> Emitted<()> {
    let bits = |bits: u32| (1..=30).contains(&bits);
    let ring = layout.ring == 0 || bits(layout.ring_bits);
    // Where no call is followed nothing is said of slots.
    let slots = matches!(layout.slot_shift, 0 | super::SLOT_SHIFT);
    if bits(layout.thread_bits) && bits(layout.return_bits) && ring && slots && layout.block_count > 0 {
        Ok(())
    } else {
        Err(Reason::OutOfReach)
    }
}

/// The routines, to stand at `address`.
pub fn runtime(address: u64, layout: &Layout) -> Emitted<Runtime> {
    check(layout)?;
    if !address.is_multiple_of(8) {
        return Err(Reason::MidInstruction);
    }
    let mut code = Code::new(address).adding(layout.additions);
    let homeless = code.label_here();
    // The entry of threads that have none comes first, as data.
    code.emit([0, 0, layout.blocks as u32, (layout.blocks >> 32) as u32]);
    let routines = vec![
        resolve(&mut code, layout, homeless),
        claim(&mut code, layout),
        leave(&mut code, layout),
        translate(&mut code, layout),
        landed(&mut code, layout),
    ];
    Ok(Runtime { code: code.finish()?, routines, frames: alloc::vec::Vec::new() })
}

fn enter(code: &mut Code) -> u64 {
    let address = code.here();
    code.emit([
        a::stp_pre(0, 1, SP, -FRAME),
        a::stp(2, 3, SP, 16),
        a::stp(4, 5, SP, 32),
        a::stp(6, 7, SP, 48),
        a::str(OWN, SP, OWN_AT),
    ]);
    address
}

fn go_back(code: &mut Code) {
    code.emit([
        a::ldr(OWN, SP, OWN_AT),
        a::ldp(6, 7, SP, 48),
        a::ldp(4, 5, SP, 32),
        a::ldp(2, 3, SP, 16),
        a::ldp_post(0, 1, SP, FRAME),
        a::RET,
    ]);
}

fn resolve(code: &mut Code, layout: &Layout, nobody: Label) -> u64 {
    let [homeless, done] = [(); 2].map(|()| code.label());
    let routine = enter(code);
    code.jump_if_zero(TEMPORARY, homeless);
    code.emit([a::mvn(THREADS.owner, THREADS.pointer)]);
    routines::resolve(code, layout, &THREADS, Missing::Claim);
    code.jump_if_not_zero(BLOCK, done);
    code.bind(homeless);
    code.emit_to(a::adr(BLOCK), nobody);
    code.bind(done);
    go_back(code);
    routine
}

/// A call is in progress at its slot while its return point is in x30 or, where its function tail-called one that keeps its own
/// return address in a register, in that register.
fn claim(code: &mut Code, layout: &Layout) -> u64 {
    let [fresh, alive, known] = [(); 3].map(|()| code.label());
    let routine = enter(code);
    let point = 6;
    routines::instance_of(code, layout, &INSTANCES, Missing::Nothing, fresh);
    Assemble::load(code, point, PLACE, RETURN_POINT as i32);
    code.jump_if_equal(point, ENTERED, alive);
    in_a_register(code, point, alive);
    code.bind(fresh);
    // No return point: what is there was left behind.
    code.emit([a::mov(CALLER, SP)]);
    code.jump(known);
    code.bind(alive);
    code.copy(CALLER, point);
    code.bind(known);
    routines::claim(code, layout, &INSTANCES, CALLER);
    go_back(code);
    routine
}

/// Goes to `found` when any register of the probed function but x30 holds `value`. Changes x7.
fn in_a_register(code: &mut Code, value: u32, found: Label) {
    // x0 to x7 and x17 are in the routine's frame, x9 to x16 in the template's above it.
    let saved = (0..64).chain(FRAME as u32..FRAME as u32 + 64).step_by(8).chain([OWN_AT]);
    for offset in saved {
        code.emit([a::ldr(7, SP, offset)]);
        code.jump_if_equal(7, value, found);
    }
    for register in (18..30).chain([8]) {
        code.jump_if_equal(register, value, found);
    }
}

fn leave(code: &mut Code, layout: &Layout) -> u64 {
    let [unknown, done] = [(); 2].map(|()| code.label());
    let routine = enter(code);
    code.copy(CALLER, ADDRESS);
    routines::leave(code, layout, &INSTANCES, CALLER, unknown);
    code.jump(done);
    code.bind(unknown);
    // The stack was moved to another place, behind everybody's back: there is no address to go to.
    code.emit([a::UDF]);
    code.bind(done);
    go_back(code);
    routine
}

fn translate(code: &mut Code, layout: &Layout) -> u64 {
    const FRAME_BASE: u32 = 6;
    // sp stays a multiple of 16.
    const SIZE: u32 = (LOCALS * 8 + 8 * KEPT.len() as u32).next_multiple_of(16);
    let at = |n: usize| LOCALS * 8 + 8 * n as u32;
    let routine = enter(code);
    code.emit([a::sub_immediate(SP, SP, SIZE)]);
    code.emit(KEPT.iter().enumerate().map(|(n, &register)| a::str(register, SP, at(n))));
    code.emit([a::add_immediate(FRAME_BASE, SP, 0)]);
    let roles = Instances { slot: 0, instance: 1, page: 2, index: 3, left: 4, scratch: 5 };
    // LLVM's `Registers_arm64`: x0 to x30, sp, pc.
    let apart = 1;
    routines::translate(code, layout, &roles, FRAME_BASE, (TEMPORARY, SLOT), KEPT.len() as u32, apart);
    code.emit(KEPT.iter().enumerate().map(|(n, &register)| a::ldr(register, SP, at(n))));
    code.emit([a::add_immediate(SP, SP, SIZE)]);
    go_back(code);
    routine
}

fn landed(code: &mut Code, layout: &Layout) -> u64 {
    let [told, nobody, known, done] = [(); 4].map(|()| code.label());
    let (calls, is_end) = (6, 7);
    let routine = enter(code);
    code.emit([a::mrs_thread_pointer(TEMPORARY), a::add_immediate(calls, SP, 0), a::mov(is_end, ADDRESS)]);
    routines::ends_thread(code, [SLOT, is_end, calls, TEMPORARY], [1, 2], told);
    code.bind(told);
    routines::landed(code, layout, &INSTANCES, calls, done);
    code.jump_if_not_zero(is_end, done);
    code.jump_if_zero(TEMPORARY, nobody);
    code.emit([a::mvn(THREADS.owner, THREADS.pointer)]);
    routines::resolve(code, layout, &THREADS, Missing::Claim);
    code.jump(known);
    code.bind(nobody);
    code.set(BLOCK, 0);
    code.bind(known);
    routines::count_left(code, layout, BLOCK, calls, [THREADS.x, THREADS.y, THREADS.left]);
    code.bind(done);
    go_back(code);
    routine
}
