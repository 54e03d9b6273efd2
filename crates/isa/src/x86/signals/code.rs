//! The arena of stubs: its entries, the stubs, and the routines behind them.
//!
//! | routine | in | out |
//! |---|---|---|
//! | wrap, unwrap, resume | r10: an action, an action, a context | every register but r10 and r11 is kept |
//! | deliver | eax: the stub's number; the rest as the kernel calls a handler | goes on to the handler |
//! | handler | as the kernel calls one | every register but r10 and r11 is kept |
//! | inside | rdi, rsi, rdx: as the kernel calls a handler that has interrupted a detour | rdi, rsi, rdx, r11 and what functions keep are kept |
//! | row | rcx: an address | al: what it stands for; r8: bytes to the place's stack pointer; r9: what was saved; r10: its piece; r11: its arena |
//! | locate | rcx: an address, rbp: its stack pointer, which is pushed, too; r12: room for levels | rax: the program's address or 0, rbp: its stack pointer; r13: behind the last level; r15: 1 in a body, else 0 |
//! | exchange | rdi: what was saved ([`Saved`]) or 0, rsi: the stack pointer it is below of, rbx: a context | |
//!
//! A thread in a routine that a detour calls stands in both, and one in a routine of a body in all three. Each is a *level*: what it has saved, and
//! where, as `exchange` takes it. `locate` leaves them from the innermost on, in room that its caller has made on the stack.

mod actions;
mod context;
mod deliver;
mod locate;
mod resume;

use crate::assemble::Assemble;
use crate::detour::signals::*;
use crate::detour::*;
use crate::frames::*;
use crate::x86::{emit::number::*, frames, lower::Lower};
use crate::{Reason, Runtime};
use alloc::vec::Vec;
use iced_x86::code_asm::*;

/// Offset of the routines in the arena.
const ROUTINES: u32 = SIGNAL_FIRST_STUB + (SIGNAL_STUBS << STUB_SHIFT);

/// See [`crate::Isa::signal_code`].
pub(in crate::x86) fn signal_code(layout: &Layout) -> Result<Runtime, Reason> {
    let signals = layout.signals.ok_or(Reason::NotImplemented)?;
    let start = signals.arena + u64::from(ROUTINES);
    let mut a = Lower::new(64, start)?;
    let routines = Routines {
        deliver: a.label(),
        handler: a.label(),
        inside: a.label(),
        wrap: a.label(),
        unwrap: a.label(),
        resume: a.label(),
        row: a.label(),
        locate: a.label(),
        exchange: a.label(),
    };
    routines.deliver(&mut a, layout, &signals);
    routines.handler(&mut a, layout, &signals);
    routines.inside(&mut a, layout, &signals);
    routines.wrap(&mut a, &signals);
    routines.unwrap(&mut a, &signals);
    routines.resume(&mut a, &signals);
    routines.row(&mut a, layout);
    routines.locate(&mut a, layout, &signals);
    routines.exchange(&mut a);
    let entries = [routines.deliver, routines.wrap, routines.unwrap, routines.resume, routines.handler];
    let (body, addresses) = a.finish(&entries)?;
    let [deliver, wrap, unwrap, resume, handler] = core::array::from_fn(|index| addresses[index]);

    let mut code = Vec::with_capacity((ROUTINES - SIGNAL_WRAP) as usize + body.len());
    let at = |code: &Vec<u8>| signals.arena + u64::from(SIGNAL_WRAP) + code.len() as u64;
    let jump = |code: &mut Vec<u8>, to: u64| {
        let distance = to.wrapping_sub(at(code) + 5) as u32;
        code.push(0xe9);
        code.extend_from_slice(&distance.to_le_bytes());
    };
    let fill = |code: &mut Vec<u8>, end: u32| code.resize((end - SIGNAL_WRAP) as usize, 0xcc);
    let called =
        [(SIGNAL_WRAP, wrap), (SIGNAL_UNWRAP, unwrap), (SIGNAL_RESUME, resume), (SIGNAL_SHOW, handler)];
    for (offset, routine) in called {
        fill(&mut code, offset);
        jump(&mut code, routine);
    }
    for stub in 0..SIGNAL_STUBS {
        fill(&mut code, SIGNAL_FIRST_STUB + (stub << STUB_SHIFT));
        code.push(0xb8);
        code.extend_from_slice(&stub.to_le_bytes());
        jump(&mut code, deliver);
    }
    fill(&mut code, ROUTINES);
    code.extend_from_slice(&body);
    // A probe's detour calls these as it calls the others.
    let offset = |address: u64| (address - start) as u32;
    let roots = called.map(|(_, address)| (offset(address), Place::Routine));
    let points = frames::points(64, Stack::Enough, &body, &roots, &[]);
    let frames =
        points.into_iter().map(|point| Point { offset: point.offset + ROUTINES - SIGNAL_WRAP, ..point });
    Ok(Runtime { code, routines: Vec::new(), frames: frames.collect() })
}

/// Where each begins.
struct Routines {
    deliver: usize,
    handler: usize,
    inside: usize,
    wrap: usize,
    unwrap: usize,
    resume: usize,
    row: usize,
    locate: usize,
    exchange: usize,
}

impl Routines {
    fn call(&self, a: &mut Lower, routine: usize) {
        let place = a.place(routine);
        a.put(|a, _| a.call(place));
    }
}

/// In how many pieces of code a thread may stand at once: a detour, the same on a stack of ours, a body, and routines that call each other.
const LEVELS: i32 = 7;
/// Bytes of a level: where the arena tells what was saved ([`Saved`]) or 0, and the stack pointer that it is below of.
const LEVEL_SIZE: i32 = 16;

/// Makes room for levels, at r12.
fn make_levels(a: &mut Lower) {
    a.address(RSP, RSP, -(LEVELS * LEVEL_SIZE));
    a.copy(R12, RSP);
}

/// Takes that room back, which is at the stack pointer again. What leads to an arena does not stay in it.
fn drop_levels(a: &mut Lower) {
    a.set(RCX, 0);
    (0..LEVELS).for_each(|level| a.store(RCX, RSP, level * LEVEL_SIZE));
    a.address(RSP, RSP, LEVELS * LEVEL_SIZE);
}

/// Overwrites what was pushed below the stack pointer, at most four words. Handlers switch stacks: what leads to us would be taken for
/// a context that comes back to us.
fn forget_calls(a: &mut Lower) {
    a.set(RCX, 0);
    (1..=4).for_each(|word| a.store(RCX, RSP, -8 * word));
}

/// An end of a row that none but the last has.
const LAST_ROW: u32 = (1 << ROW_END.1) - 1;

/// rcx = the handler of the stub that rcx lies in, by way of rax. If that is none, off to `elsewhere`; if it stands for no handler, to
/// `free`.
fn handler_of_stub(a: &mut Lower, signals: &Signals, elsewhere: usize, free: usize) {
    let place = a.place(elsewhere);
    stub_offset(a, signals, RCX, RAX);
    a.put(|a, _| a.cmp(rax, (SIGNAL_STUBS << STUB_SHIFT) as i32));
    a.put(|a, _| a.jae(place));
    a.bits(RAX, RAX, STUB_SHIFT, 64 - STUB_SHIFT);
    a.set(RCX, signals.table + u64::from(SIGNAL_HANDLERS));
    a.put(|a, _| a.mov(rcx, qword_ptr(rcx + rax * 8)));
    a.jump_if_zero(RCX, free);
}

/// `to` = how far a handler's address is behind the first stub's.
fn stub_offset(a: &mut Lower, signals: &Signals, handler: usize, to: usize) {
    a.set(to, signals.stubs().start.wrapping_neg());
    a.add(to, handler);
}
