//! Which handlers have stubs: what programs say is exchanged on its way to the kernel, and back.

use super::{Routines, handler_of_stub, stub_offset};
use crate::assemble::Assemble;
use crate::detour::signals::*;
use crate::x86::{emit::number::*, lower::Lower};
use iced_x86::code_asm::*;

/// The kernel's `struct sigaction`.
mod action {
    pub const HANDLER: i32 = 0;
    /// `sa_restorer`.
    pub const RETURNS: i32 = 16;
}

impl Routines {
    /// Gives the handler of an action its stub, where there is one for it.
    pub(super) fn wrap(&self, a: &mut Lower, signals: &Signals) {
        const SAVED: [usize; 4] = [RAX, RCX, RDX, RSI];
        let [out, returns, search, found, unseen] = [(); 5].map(|()| a.label());
        a.bind(self.wrap);
        SAVED.iter().for_each(|&register| a.push(register));
        a.load(RCX, R10, action::HANDLER);
        // SIG_DFL and SIG_IGN.
        a.put(|a, _| a.cmp(rcx, 2));
        let out_place = a.place(out);
        a.put(|a, _| a.jb(out_place));
        stub_offset(a, signals, RCX, RAX);
        a.put(|a, _| a.cmp(rax, (SIGNAL_STUBS << STUB_SHIFT) as i32));
        a.put(|a, _| a.jb(out_place));
        a.load(RDX, R10, action::RETURNS);
        a.set(RSI, signals.table + u64::from(SIGNAL_RETURNS));
        a.bind(returns);
        a.load(RAX, RSI, 0);
        a.jump_if_zero(RAX, unseen);
        a.add_small(RSI, 8);
        a.jump_if_not_equal(RAX, RDX, returns);

        a.set(RSI, signals.table + u64::from(SIGNAL_HANDLERS));
        a.set(RDX, 0);
        a.bind(search);
        a.put(|a, _| a.lea(r11, qword_ptr(rsi + rdx * 8)));
        a.load(RAX, R11, 0);
        a.jump_if_equal(RAX, RCX, found);
        let next = a.label();
        a.jump_if_not_zero(RAX, next);
        // If another is quicker, it may have taken it for the same handler.
        a.reserve(R11, RCX, RAX, search);
        a.jump(found);
        a.bind(next);
        a.add_small(RDX, 1);
        a.put(|a, _| a.cmp(edx, SIGNAL_STUBS as i32));
        let search_place = a.place(search);
        a.put(|a, _| a.jb(search_place));
        a.bind(unseen);
        a.set(RSI, signals.table + u64::from(SIGNAL_UNSEEN));
        a.put(|a, _| a.lock().inc(qword_ptr(rsi)));
        a.put(|a, _| a.jmp(out_place));
        a.bind(found);
        a.shift_left(RDX, STUB_SHIFT);
        a.set(RAX, signals.stubs().start);
        a.add(RAX, RDX);
        a.store(RAX, R10, action::HANDLER);
        a.bind(out);
        SAVED.iter().rev().for_each(|&register| a.pop(register));
        a.put(|a, _| a.ret());
    }

    /// Gives an action the handler of its stub.
    pub(super) fn unwrap(&self, a: &mut Lower, signals: &Signals) {
        let out = a.label();
        a.bind(self.unwrap);
        a.push(RAX);
        a.push(RCX);
        a.load(RCX, R10, action::HANDLER);
        handler_of_stub(a, signals, out, out);
        a.store(RCX, R10, action::HANDLER);
        a.bind(out);
        a.pop(RCX);
        a.pop(RAX);
        a.put(|a, _| a.ret());
    }
}
