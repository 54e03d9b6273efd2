//! What an address in an arena stands for.

use super::{LAST_ROW, LEVEL_SIZE, LEVELS, Routines};
use crate::assemble::Assemble;
use crate::detour::{signals::Signals, *};
use crate::frames::*;
use crate::routines::{Missing, in_arena, instance_of, oldest};
use crate::x86::{emit::number::*, lower::Lower, runtime::instances};
use iced_x86::code_asm::*;

impl Routines {
    /// What an arena tells of an address.
    pub(super) fn row(&self, a: &mut Lower, layout: &Layout) {
        let [inside, unknown, search, found, look, hit, plain] = [(); 7].map(|()| a.label());
        a.bind(self.row);
        in_arena(a, layout, RCX, [RDX, R11, RDI], inside);
        a.bind(unknown);
        a.set(RAX, PLACE_UNKNOWN.into());
        a.put(|a, _| a.ret());

        a.bind(inside);
        a.load(R11, RDX, 0);
        a.copy(RDI, RCX);
        a.sub(RDI, R11);
        a.put(|a, _| a.mov(eax, dword_ptr(r11 + (ARENA_FRAMES + 4) as i32)));
        a.jump_if_zero(RAX, unknown);
        a.put(|a, _| a.mov(r10d, dword_ptr(r11 + ARENA_FRAMES as i32)));
        a.add(R10, R11);
        // rsi entries are known to start before, and it is one of the next rax ones.
        a.set(RSI, 0);
        a.bind(search);
        let [search_place, found_place, unknown_place] = [search, found, unknown].map(|label| a.place(label));
        a.put(|a, _| a.cmp(eax, 2));
        a.put(|a, _| a.jb(found_place));
        a.put(|a, _| a.mov(r8d, eax));
        a.put(|a, _| a.shr(r8d, 1));
        a.put(|a, _| a.sub(eax, r8d));
        a.put(|a, _| a.lea(r9d, dword_ptr(rsi + r8)));
        a.put(|a, _| a.mov(edx, r9d));
        a.shift_left(RDX, ENTRY_SHIFT);
        a.put(|a, _| a.cmp(dword_ptr(r10 + rdx + ENTRY_START as i32), edi));
        a.put(|a, _| a.ja(search_place));
        a.put(|a, _| a.mov(esi, r9d));
        a.jump(search);
        a.bind(found);
        a.shift_left(RSI, ENTRY_SHIFT);
        a.add(R10, RSI);
        a.put(|a, _| a.sub(edi, dword_ptr(r10 + ENTRY_START as i32)));
        a.put(|a, _| a.jb(unknown_place));
        a.jump_if_not_below_small(RDI, LAST_ROW, unknown);
        a.put(|a, _| a.mov(r8d, dword_ptr(r10 + ENTRY_ROWS as i32)));
        a.add(R8, R11);
        a.bind(look);
        let hit_place = a.place(hit);
        a.put(|a, _| a.mov(eax, dword_ptr(r8)));
        a.put(|a, _| a.movzx(edx, ax));
        a.put(|a, _| a.cmp(edi, edx));
        a.put(|a, _| a.jb(hit_place));
        a.add_small(R8, 1 << ROW_SHIFT);
        a.jump(look);
        a.bind(hit);
        a.put(|a, _| a.mov(r9d, dword_ptr(r8 + ROW_SAVED as i32)));
        a.jump_if_zero(R9, plain);
        a.add(R9, R11);
        a.bind(plain);
        a.bits(R8, RAX, ROW_DEPTH.0, ROW_DEPTH.1);
        a.put(|a, _| a.lea(r8, qword_ptr(r8 * 8 - 8)));
        a.put(|a, _| a.shr(eax, ROW_PLACE.0));
        // What unwinders are not told.
        let told = a.label();
        let told_place = a.place(told);
        a.put(|a, _| a.cmp(eax, i32::from(PLACE_UNKNOWN)));
        a.put(|a, _| a.jne(told_place));
        a.jump_if_zero(R9, told);
        a.put(|a, _| a.movzx(eax, byte_ptr(r9 + SAVED_PLACE as i32)));
        a.bind(told);
        a.put(|a, _| a.ret());
    }

    /// Where in the program a thread is that stands in an arena.
    ///
    /// A routine goes back to a detour, and a body's routine to the body: so one after the other is looked at, up to the detour, and where that
    /// has switched stacks, up to where it did.
    pub(super) fn locate(&self, a: &mut Lower, layout: &Layout, signals: &Signals) {
        let [none, again, outer, switched, home] = [(); 5].map(|()| a.label());
        let on = |a: &mut Lower, place: u8, to: usize| {
            let to = a.place(to);
            a.put(|a, _| a.cmp(eax, i32::from(place)));
            a.put(|a, _| a.je(to));
        };
        a.bind(self.locate);
        a.copy(R13, R12);
        a.set(R15, 0);
        a.bind(again);
        a.address(RDX, R12, LEVELS * LEVEL_SIZE);
        a.jump_if_equal(R13, RDX, none);
        self.call(a, self.row);
        on(a, PLACE_UNKNOWN, none);
        if signals.program != 0 {
            let elsewhere = a.label();
            a.set(RDX, signals.program);
            a.jump_if_not_equal(R11, RDX, elsewhere);
            a.set(R15, 1);
            a.bind(elsewhere);
        }
        a.add(R8, RBP);
        a.store(R9, R13, 0);
        a.store(R8, R13, 8);
        a.add_small(R13, LEVEL_SIZE);
        on(a, PLACE_ROUTINE, outer);
        on(a, PLACE_SWITCHED, switched);
        a.copy(RBP, R8);
        on(a, PLACE_CALLER, home);
        a.load(R8, R10, ENTRY_SITE as i32);
        a.add(RAX, R8);
        a.put(|a, _| a.ret());
        a.bind(outer);
        a.load(RCX, R8, 0);
        a.address(RBP, R8, 8);
        a.jump(again);
        a.bind(switched);
        a.load(RCX, R8, 0);
        a.load(RBP, R8, (LEVEL_SWITCH - LEVEL_POINTER) as i32);
        a.jump(again);
        a.bind(none);
        a.set(RAX, 0);
        a.put(|a, _| a.ret());

        // The call has returned: its slot was popped, and holds the way home, or its instance does.
        let [in_slot, in_instance] = [(); 2].map(|()| a.label());
        a.bind(home);
        let r = instances();
        a.address(r.slot, RBP, -8);
        instance_of(a, layout, &r, Missing::Nothing, in_slot);
        a.load(RAX, r.instance, RETURN_POINT as i32);
        a.jump_if_zero(RAX, in_slot);
        // Where the first instruction behind the call was interrupted, the signal's frame may lie in the slot.
        a.load(RAX, RSP, 8);
        a.jump_if_equal(RAX, RBP, in_instance);
        a.load(RAX, r.slot, 0);
        in_arena(a, layout, RAX, [RCX, RDX, RSI], in_instance);
        a.put(|a, _| a.ret());
        a.bind(in_instance);
        oldest(a, layout, &r);
        a.load(RAX, r.instance, RETURN_ADDRESS as i32);
        a.put(|a, _| a.ret());
        a.bind(in_slot);
        a.load(RAX, r.slot, 0);
        a.put(|a, _| a.ret());
    }
}
