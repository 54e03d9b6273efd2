//! What a handler is shown.

use super::{LEVEL_SIZE, Routines, context, drop_levels, forget_calls, handler_of_stub, make_levels};
use crate::Layout;
use crate::assemble::Assemble;
use crate::detour::signals::*;
use crate::frames::*;
use crate::routines::in_arena;
use crate::x86::{JUMP_LENGTH, emit::number::*, lower::Lower};
use context::*;
use iced_x86::code_asm::*;

/// Of `siginfo_t`.
const SI_ADDR: i32 = 16;

/// By the kernel's numbers.
mod signal {
    pub const SIGILL: i32 = 4;
    pub const SIGTRAP: i32 = 5;
    pub const SIGFPE: i32 = 8;
}

impl Routines {
    /// What a signal's handler sees; then the handler.
    pub(super) fn deliver(&self, a: &mut Lower, layout: &Layout, signals: &Signals) {
        let [inside, plain] = [(); 2].map(|()| a.label());
        a.bind(self.deliver);
        a.set(R11, signals.table + u64::from(SIGNAL_HANDLERS));
        a.put(|a, _| a.mov(r11, qword_ptr(r11 + rax * 8)));
        self.hop(a, layout, signals.hops);
        is_inside(a, layout, signals, plain, inside);
        a.bind(plain);
        // Handlers get what was in the other registers. It is not for them, but it goes on their stacks.
        [RAX, RCX, R8, R9, R10].iter().for_each(|&register| a.set(register, 0));
        a.put(|a, _| a.jmp(r11));
        a.bind(inside);
        self.call_inside(a);
        a.jump(plain);
    }

    /// The same for a handler that is probed.
    pub(super) fn handler(&self, a: &mut Lower, layout: &Layout, signals: &Signals) {
        const SAVED: [usize; 4] = [RAX, RCX, R8, R9];
        let [inside, plain] = [(); 2].map(|()| a.label());
        a.bind(self.handler);
        SAVED.iter().for_each(|&register| a.push(register));
        self.hop(a, layout, signals.hops);
        // One handler may go on in another, which finds what this signal's context was made.
        is_shown(a, signals, plain);
        // Nobody would take it back behind a handler that returns elsewhere.
        returns_to_us(a, signals, plain);
        is_inside(a, layout, signals, plain, inside);
        a.bind(plain);
        SAVED.iter().rev().for_each(|&register| a.pop(register));
        a.put(|a, _| a.ret());
        a.bind(inside);
        self.call_inside(a);
        a.jump(plain);
    }

    /// Where it returned to does not stay behind on the stack.
    fn call_inside(&self, a: &mut Lower) {
        self.call(a, self.inside);
        a.set(RAX, 0);
        a.store(RAX, RSP, -8);
    }

    /// A thread at a jump in the code at `start` that leads into an arena, from a place which is not what it stands for there, has gone on to
    /// where that leads: in the context at rdx. Changes rax, rcx, and r8 to r10.
    fn hop(&self, a: &mut Lower, layout: &Layout, (start, size): (u64, u64)) {
        // A module is smaller than what a branch reaches.
        let jumps = size.checked_sub(u64::from(JUMP_LENGTH)).map(|last| last + 1);
        let jumps = jumps.and_then(|jumps| i32::try_from(jumps).ok());
        let Some(jumps) = jumps.and_then(|jumps| u32::try_from(jumps).ok()) else { return };
        const SAVED: [usize; 4] = [RDX, RSI, RDI, R11];
        let [stays, leads, own, goes_on] = [(); 4].map(|()| a.label());
        let stays_place = a.place(stays);
        a.load(RCX, RDX, context::IP);
        a.set(R8, start.wrapping_neg());
        a.add(R8, RCX);
        a.jump_if_not_below_small(R8, jumps, stays);
        a.put(|a, _| a.cmp(byte_ptr(rcx), 0xe9));
        a.put(|a, _| a.jne(stays_place));
        a.put(|a, _| a.movsxd(r8, dword_ptr(rcx + 1)));
        a.put(|a, _| a.lea(rcx, qword_ptr(rcx + r8 + i32::from(JUMP_LENGTH))));
        in_arena(a, layout, RCX, [R8, R9, R10], leads);
        a.jump(stays);
        a.bind(leads);
        SAVED.iter().for_each(|&register| a.push(register));
        a.push(RCX);
        self.call(a, self.row);
        a.pop(RCX);
        SAVED.iter().rev().for_each(|&register| a.pop(register));
        a.jump_if_not_below_small(RAX, PLACE_SWITCHED.into(), goes_on);
        a.load(R8, R10, ENTRY_SITE as i32);
        a.add(R8, RAX);
        a.load(R9, RDX, context::IP);
        a.jump_if_equal(R8, R9, own);
        a.bind(goes_on);
        a.store(RCX, RDX, context::IP);
        a.bind(own);
        // What leads to us would be taken for a context that comes back.
        let below = 8 * SAVED.len() as i32;
        a.set(RCX, 0);
        [8, 16].iter().for_each(|word| a.store(RCX, RSP, -below - word));
        a.bind(stays);
    }

    /// Shows the program where an instruction of ours was interrupted.
    pub(super) fn inside(&self, a: &mut Lower, layout: &Layout, signals: &Signals) {
        let [within, elsewhere, out, number, show] = [(); 5].map(|()| a.label());
        const SAVED: [usize; 10] = [RDI, RSI, RDX, R11, RBX, RBP, R12, R13, R14, R15];
        // The signal and its description, which may be those of another one that this one has interrupted.
        const OWN: [usize; 2] = [RSI, RDI];
        const SIGNAL: i32 = 0;
        const DESCRIPTION: i32 = 8;
        a.bind(self.inside);
        SAVED.iter().for_each(|&register| a.push(register));
        make_levels(a);
        OWN.iter().for_each(|&register| a.push(register));
        a.bind(within);
        a.store(RDI, RSP, SIGNAL);
        a.store(RSI, RSP, DESCRIPTION);
        a.copy(RBX, RDX);
        a.load(RCX, RBX, context::IP);
        self.within_stub(a, layout, signals, [within, elsewhere, out]);
        a.bind(elsewhere);
        a.load(RBP, RBX, context::SP);
        a.push(RBP);
        self.call(a, self.locate);
        a.pop(RDI);
        a.jump_if_zero(RAX, out);

        // The note, the address last that says there is one: a handler may interrupt us here.
        a.set(R8, signals.key);
        a.load(RCX, RBX, context::IP);
        a.copy(RDX, RCX);
        a.put(|a, _| a.xor(rdx, r8));
        a.store(RDX, RBX, context::NOTE_IP);
        a.put(|a, _| a.xor(rdi, r8));
        a.store(RDI, RBX, context::NOTE_SP);
        a.set(RDX, 0);
        a.store(RDX, RBX, context::NOTE_FLAGS);
        a.copy(RDX, RAX);
        a.put(|a, _| a.xor(rdx, r8));
        a.store(RDX, RBX, context::NOTE_SHOWN_IP);
        a.store(RBP, RBX, context::NOTE_SHOWN_SP);
        a.put(|a, _| a.xor(r8, rbx));
        a.store(R8, RBX, context::NOTE);
        if signals.program != 0 {
            a.set(RDX, signals.table + u64::from(SIGNAL_CUT));
            a.put(|a, _| a.lock().add(qword_ptr(rdx), r15));
        }

        // Of some faults the description tells the instruction, too.
        let [told, untold] = [number, show].map(|label| a.place(label));
        a.put(|a, _| a.mov(edx, dword_ptr(rsp + SIGNAL)));
        for fault in [signal::SIGILL, signal::SIGTRAP, signal::SIGFPE] {
            a.put(|a, _| a.cmp(edx, fault));
            a.put(|a, _| a.je(told));
        }
        a.put(|a, _| a.jmp(untold));
        a.bind(number);
        a.load(RDX, RSP, DESCRIPTION);
        a.put(|a, _| a.cmp(qword_ptr(rdx + SI_ADDR), rcx));
        a.put(|a, _| a.jne(untold));
        a.store(RAX, RDX, SI_ADDR);
        a.bind(show);
        a.store(RAX, RBX, context::IP);
        a.store(RBP, RBX, context::SP);
        let level = a.label();
        a.copy(R14, R12);
        a.bind(level);
        a.load(RDI, R14, 0);
        a.load(RSI, R14, 8);
        self.show_flags(a);
        self.call(a, self.exchange);
        a.add_small(R14, LEVEL_SIZE);
        a.jump_if_not_equal(R14, R13, level);
        a.bind(out);
        forget_calls(a);
        OWN.iter().for_each(|&register| a.pop(register));
        drop_levels(a);
        SAVED.iter().rev().for_each(|&register| a.pop(register));
        a.put(|a, _| a.ret());
    }

    /// A signal that came together with another one interrupts that one's stub before its first instruction. Then the context at rbx, of
    /// which rcx is the address, becomes that of the other's handler, and the other's context is what is shown, `within`; `out` if there is
    /// nothing to show. Every other address is `elsewhere`.
    fn within_stub(
        &self,
        a: &mut Lower,
        layout: &Layout,
        signals: &Signals,
        [within, elsewhere, out]: [usize; 3],
    ) {
        handler_of_stub(a, signals, elsewhere, out);
        for register in [RDI, RSI, RDX] {
            a.load(register, RBX, context::REGISTERS[register]);
        }
        a.set(RAX, 0);
        a.store(RAX, RBX, context::REGISTERS[RAX]);
        a.store(RCX, RBX, context::IP);
        is_inside(a, layout, signals, out, within);
        a.jump(out);
    }

    /// Shows the flags as they were saved, if they were. In: as for `exchange`.
    fn show_flags(&self, a: &mut Lower) {
        let [in_rax, found, done, overflows] = [(); 4].map(|()| a.label());
        a.jump_if_zero(RDI, done);
        let [in_rax_place, done_place, overflows_place] =
            [in_rax, done, overflows].map(|label| a.place(label));
        a.put(|a, _| a.movzx(eax, byte_ptr(rdi + SAVED_FLAGS as i32)));
        a.jump_if_zero(RAX, done);
        a.copy(RDX, RAX);
        a.put(|a, _| a.cmp(eax, i32::from(SAVED_LOST)));
        a.put(|a, _| a.je(done_place));
        a.put(|a, _| a.cmp(eax, i32::from(SAVED_IN_AH)));
        a.put(|a, _| a.jae(in_rax_place));
        a.put(|a, _| a.neg(rax));
        a.put(|a, _| a.mov(rcx, qword_ptr(rsi + rax * 8)));
        a.jump(found);
        a.bind(in_rax);
        a.load(RCX, RBX, context::REGISTERS[RAX]);
        a.bind(found);
        a.load(RAX, RBX, context::FLAGS);
        a.store(RAX, RBX, context::NOTE_FLAGS);
        a.put(|a, _| a.cmp(edx, i32::from(SAVED_IN_AH)));
        a.put(|a, _| a.je(overflows_place));
        a.put(|a, _| a.and(rax, !OVERFLOW_FLAG));
        a.put(|a, _| a.mov(edx, ecx));
        a.put(|a, _| a.and(edx, 1));
        a.put(|a, _| a.shl(edx, OVERFLOW_FLAG.ilog2()));
        a.put(|a, _| a.or(rax, rdx));
        a.bind(overflows);
        a.put(|a, _| a.and(rax, !LAHF_FLAGS));
        a.put(|a, _| a.shr(ecx, 8));
        a.put(|a, _| a.and(ecx, LAHF_FLAGS));
        a.put(|a, _| a.or(rax, rcx));
        a.store(RAX, RBX, context::FLAGS);
        a.bind(done);
    }

    /// Every register that a detour has saved changes places with what it has saved.
    pub(super) fn exchange(&self, a: &mut Lower) {
        let done = a.label();
        a.bind(self.exchange);
        a.jump_if_zero(RDI, done);
        self.exchange_with_xmm15(a);
        for number in (0..16).filter(|&number| number != SAVED_FLAGS) {
            let next = a.label();
            let place = a.place(next);
            a.put(|a, _| a.movzx(eax, byte_ptr(rdi + number as i32)));
            a.put(|a, _| a.lea(ecx, dword_ptr(rax - 1)));
            a.put(|a, _| a.cmp(ecx, i32::from(SAVED_IN_XMM15) - 1));
            a.put(|a, _| a.jae(place));
            a.put(|a, _| a.neg(rax));
            a.put(|a, _| a.mov(rcx, qword_ptr(rsi + rax * 8)));
            a.load(RDX, RBX, context::REGISTERS[number]);
            a.store(RCX, RBX, context::REGISTERS[number]);
            a.put(|a, _| a.mov(qword_ptr(rsi + rax * 8), rdx));
            a.bind(next);
        }
        a.bind(done);
        a.put(|a, _| a.ret());
    }

    /// rax changes places with xmm15 as the kernel has saved that, if it is in there. In: as for `exchange`.
    fn exchange_with_xmm15(&self, a: &mut Lower) {
        let elsewhere = a.label();
        let place = a.place(elsewhere);
        a.put(|a, _| a.cmp(byte_ptr(rdi), i32::from(SAVED_IN_XMM15)));
        a.put(|a, _| a.jne(place));
        a.load(RCX, RBX, context::EXTENDED);
        a.jump_if_zero(RCX, elsewhere);
        a.load(RDX, RBX, context::REGISTERS[RAX]);
        a.put(|a, _| a.xchg(qword_ptr(rcx + context::XMM15), rdx));
        a.store(RDX, RBX, context::REGISTERS[RAX]);
        a.bind(elsewhere);
    }
}

/// Whether a signal (edi) has interrupted us, of which rdx is the context: there is no note in it yet. On if it has not, as when it stops
/// what we do: off to `plain` then.
fn is_inside(a: &mut Lower, layout: &Layout, signals: &Signals, plain: usize, inside: usize) {
    a.set(RAX, 0);
    a.store(RAX, RDX, context::NOTE);
    if signals.stops != 0 {
        let plain = a.place(plain);
        a.put(|a, _| a.cmp(edi, signals.stops as i32));
        a.put(|a, _| a.je(plain));
    }
    a.load(RCX, RDX, context::IP);
    in_arena(a, layout, RCX, [R8, R9, R10], inside);
}

/// Off to `shown` where the context at rdx is what it was made for the handler of this signal: its note says so.
fn is_shown(a: &mut Lower, signals: &Signals, shown: usize) {
    let other = a.label();
    a.set(R8, signals.key);
    a.copy(RAX, R8);
    a.put(|a, _| a.xor(rax, rdx));
    a.load(RCX, RDX, context::NOTE);
    a.jump_if_not_equal(RAX, RCX, other);
    a.load(RAX, RDX, context::NOTE_SHOWN_IP);
    a.put(|a, _| a.xor(rax, r8));
    a.load(RCX, RDX, context::IP);
    a.jump_if_not_equal(RAX, RCX, other);
    a.load(RAX, RDX, context::NOTE_SHOWN_SP);
    a.load(RCX, RDX, context::SP);
    a.jump_if_equal(RAX, RCX, shown);
    a.bind(other);
}

/// On where the handler whose context is at rdx returns to code that is probed; else off to `elsewhere`.
fn returns_to_us(a: &mut Lower, signals: &Signals, elsewhere: usize) {
    let [next, found] = [(); 2].map(|()| a.label());
    a.load(RCX, RDX, -8);
    a.set(R8, signals.table + u64::from(SIGNAL_RETURNS));
    a.bind(next);
    a.load(RAX, R8, 0);
    a.jump_if_zero(RAX, elsewhere);
    a.jump_if_equal(RAX, RCX, found);
    a.add_small(R8, 8);
    a.jump(next);
    a.bind(found);
}
