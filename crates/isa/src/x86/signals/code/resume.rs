//! Where a thread goes on behind its handler.

use super::{LAST_ROW, LEVEL_SIZE, Routines, context, drop_levels, forget_calls, make_levels};
use crate::assemble::Assemble;
use crate::detour::signals::*;
use crate::frames::*;
use crate::x86::{emit::number::*, lower::Lower};
use context::ARITHMETIC_FLAGS;
use iced_x86::code_asm::*;

/// All but the stack pointer and what probes save (r10, r11): those that tell whether there is a note, and the others.
const FIRST: [usize; 2] = [RAX, RCX];
const REST: [usize; 11] = [RDX, RBX, RBP, RSI, RDI, R8, R9, R12, R13, R14, R15];

impl Routines {
    /// Makes the context at r10 that of where the thread really is, if the handler has left it as it was shown.
    pub(super) fn resume(&self, a: &mut Lower, signals: &Signals) {
        let [out, moved, flags, nothing] = [(); 4].map(|()| a.label());
        a.bind(self.resume);
        // Stacks of handlers are small, and hardly ever is there a note.
        FIRST.iter().for_each(|&register| a.push(register));
        a.set(RAX, signals.key);
        a.put(|a, _| a.xor(rax, r10));
        a.load(RCX, R10, context::NOTE);
        a.jump_if_not_equal(RAX, RCX, nothing);
        REST.iter().for_each(|&register| a.push(register));
        make_levels(a);
        a.copy(RBX, R10);
        a.set(R8, signals.key);
        a.set(RAX, 0);
        a.store(RAX, RBX, context::NOTE);
        a.load(RAX, RBX, context::NOTE_SHOWN_IP);
        a.put(|a, _| a.xor(rax, r8));
        a.load(RCX, RBX, context::NOTE_IP);
        a.put(|a, _| a.xor(rcx, r8));
        a.load(RDX, RBX, context::IP);
        a.jump_if_not_equal(RAX, RDX, moved);
        a.load(RAX, RBX, context::NOTE_SHOWN_SP);
        a.load(RDX, RBX, context::SP);
        a.jump_if_not_equal(RAX, RDX, out);

        a.load(RBP, RBX, context::NOTE_SP);
        a.put(|a, _| a.xor(rbp, r8));
        a.push(RCX);
        a.push(RBP);
        self.call(a, self.locate);
        a.pop(RDI);
        a.pop(RCX);
        a.jump_if_zero(RAX, out);
        a.store(RCX, RBX, context::IP);
        a.store(RDI, RBX, context::SP);
        if signals.program != 0 {
            a.set(RDX, signals.table + u64::from(SIGNAL_CUT));
            a.put(|a, _| a.lock().sub(qword_ptr(rdx), r15));
        }
        let level = a.label();
        a.bind(level);
        a.add_small(R13, -LEVEL_SIZE);
        a.load(RDI, R13, 0);
        a.load(RSI, R13, 8);
        self.call(a, self.exchange);
        a.jump_if_not_equal(R13, R12, level);
        a.load(RCX, RBX, context::NOTE_FLAGS);
        a.jump_if_zero(RCX, flags);
        a.load(RAX, RBX, context::FLAGS);
        a.put(|a, _| a.and(rax, !ARITHMETIC_FLAGS));
        a.put(|a, _| a.and(ecx, ARITHMETIC_FLAGS));
        a.put(|a, _| a.or(rax, rcx));
        a.store(RAX, RBX, context::FLAGS);
        a.bind(flags);
        a.jump(out);

        a.bind(moved);
        self.go_on_at_copy(a, out);
        a.bind(out);
        drop_levels(a);
        forget_calls(a);
        REST.iter().rev().for_each(|&register| a.pop(register));
        a.bind(nothing);
        FIRST.iter().rev().for_each(|&register| a.pop(register));
        a.put(|a, _| a.ret());
    }

    /// The handler has moved the thread on: if that is to another displaced instruction of the site whose detour rcx lies in, to its copy.
    fn go_on_at_copy(&self, a: &mut Lower, out: usize) {
        let [next, found] = [(); 2].map(|()| a.label());
        self.call(a, self.row);
        a.put(|a, _| a.movzx(eax, al));
        a.jump_if_not_below_small(RAX, u32::from(PLACE_SWITCHED), out);
        a.load(RDI, RBX, context::IP);
        a.load(RAX, R10, ENTRY_SITE as i32);
        a.sub(RDI, RAX);
        a.jump_if_zero(RDI, out);
        a.jump_if_not_below_small(RDI, u32::from(PLACE_UNKNOWN), out);
        // Where its copy begins, the row before ends.
        a.put(|a, _| a.shl(edi, 8));
        a.put(|a, _| a.or(edi, 1));
        a.put(|a, _| a.mov(r8d, dword_ptr(r10 + ENTRY_ROWS as i32)));
        a.add(R8, R11);
        a.set(RDX, 0);
        a.bind(next);
        let found_place = a.place(found);
        a.put(|a, _| a.mov(eax, dword_ptr(r8)));
        a.put(|a, _| a.mov(ecx, eax));
        a.put(|a, _| a.shr(ecx, ROW_DEPTH.0));
        a.put(|a, _| a.cmp(ecx, edi));
        a.put(|a, _| a.je(found_place));
        a.put(|a, _| a.movzx(edx, ax));
        a.add_small(R8, 1 << ROW_SHIFT);
        a.copy(RCX, RDX);
        a.jump_if_not_below_small(RCX, LAST_ROW, out);
        a.jump(next);
        a.bind(found);
        a.put(|a, _| a.mov(ecx, dword_ptr(r10 + ENTRY_START as i32)));
        a.add(RCX, R11);
        a.add(RCX, RDX);
        a.store(RCX, RBX, context::IP);
    }
}
