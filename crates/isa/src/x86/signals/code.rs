//! The arena of stubs: its entries, the stubs, and the routines behind them.
//!
//! | routine | in | out |
//! |---|---|---|
//! | wrap, unwrap, resume | r10: an action, an action, a context | every register but r10 and r11 is kept |
//! | deliver | eax: the stub's number; the rest as the kernel calls a handler | goes on to the handler |
//! | row | rcx: an address | al: what it stands for; r8: bytes to the place's stack pointer; r9: what was saved; r10: its piece; r11: its arena |
//! | locate | rcx: an address, rbp: its stack pointer, which is pushed, too | rax: the program's address or 0, rbp: its stack pointer; r12 to r15 |
//! | exchange | rdi: what was saved ([`Saved`]) or 0, rsi: the stack pointer it is below of, rbx: a context | |
//!
//! A thread in a routine that a detour calls stands in both, so two things are known of it: `locate` leaves in r12 and r13 what the inner one has
//! saved, in r14 and r15 what the outer one has, as `exchange` takes it.

use crate::assemble::Assemble;
use crate::detour::signals::*;
use crate::detour::*;
use crate::frames::*;
use crate::routines::{Missing, in_arena, instance_of, oldest};
use crate::x86::{emit::number::*, frames, lower::Lower, runtime::instances};
use crate::{Reason, Runtime};
use alloc::vec::Vec;
use iced_x86::code_asm::*;

/// Offsets in a context (`struct ucontext` and `struct sigcontext_64`, `arch/x86/include/uapi/asm`).
mod context {
    /// Of each register, by its hardware number.
    pub const REGISTERS: [i32; 16] = [144, 152, 136, 128, 160, 120, 112, 104, 40, 48, 56, 64, 72, 80, 88, 96];
    pub const SP: i32 = REGISTERS[4];
    pub const IP: i32 = 168;
    pub const FLAGS: i32 = 176;
    /// Words that the kernel does not use: our note. The first one says that there is one.
    pub const NOTE: i32 = 232;
    /// Where the thread really is.
    pub const NOTE_IP: i32 = NOTE + 8;
    pub const NOTE_SP: i32 = NOTE + 16;
    /// Its flags, if others were shown; else 0.
    pub const NOTE_FLAGS: i32 = NOTE + 24;
    /// What was shown.
    pub const NOTE_SHOWN_IP: i32 = NOTE + 32;
    pub const NOTE_SHOWN_SP: i32 = NOTE + 40;
}

/// OF, SF, ZF, AF, PF, CF.
const ARITHMETIC_FLAGS: i32 = 0x8d5;
/// Those that `lahf` knows.
const LAHF_FLAGS: i32 = 0xd5;
const OVERFLOW_FLAG: i32 = 0x800;

/// Of `siginfo_t`.
const SI_ADDR: i32 = 16;

/// All but the stack pointer and what probes save (r10, r11): those that tell whether there is a note, and the others.
const FIRST: [usize; 2] = [RAX, RCX];
const REST: [usize; 11] = [RDX, RBX, RBP, RSI, RDI, R8, R9, R12, R13, R14, R15];

/// Offset of the routines in the arena.
const ROUTINES: u32 = SIGNAL_FIRST_STUB + (SIGNAL_STUBS << STUB_SHIFT);

/// See [`crate::Isa::signal_code`].
pub(in crate::x86) fn signal_code(layout: &Layout) -> Result<Runtime, Reason> {
    let signals = layout.signals.ok_or(Reason::NotImplemented)?;
    let start = signals.arena + u64::from(ROUTINES);
    let mut a = Lower::new(64, start)?;
    let routines = Routines {
        deliver: a.label(),
        wrap: a.label(),
        unwrap: a.label(),
        resume: a.label(),
        row: a.label(),
        locate: a.label(),
        exchange: a.label(),
    };
    routines.deliver(&mut a, layout, &signals);
    routines.wrap(&mut a, &signals);
    routines.unwrap(&mut a, &signals);
    routines.resume(&mut a, &signals);
    routines.row(&mut a, layout);
    routines.locate(&mut a, layout);
    routines.exchange(&mut a);
    let entries = [routines.deliver, routines.wrap, routines.unwrap, routines.resume];
    let (body, addresses) = a.finish(&entries)?;
    let [deliver, wrap, unwrap, resume] = core::array::from_fn(|index| addresses[index]);

    let mut code = Vec::with_capacity((ROUTINES - SIGNAL_WRAP) as usize + body.len());
    let at = |code: &Vec<u8>| signals.arena + u64::from(SIGNAL_WRAP) + code.len() as u64;
    let jump = |code: &mut Vec<u8>, to: u64| {
        let distance = to.wrapping_sub(at(code) + 5) as u32;
        code.push(0xe9);
        code.extend_from_slice(&distance.to_le_bytes());
    };
    let fill = |code: &mut Vec<u8>, end: u32| code.resize((end - SIGNAL_WRAP) as usize, 0xcc);
    for (offset, routine) in [(SIGNAL_WRAP, wrap), (SIGNAL_UNWRAP, unwrap), (SIGNAL_RESUME, resume)] {
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
    let roots = [wrap, unwrap, resume].map(|address| (offset(address), Place::Routine));
    let points = frames::points(64, &body, &roots, &(0..0));
    let frames =
        points.into_iter().map(|point| Point { offset: point.offset + ROUTINES - SIGNAL_WRAP, ..point });
    Ok(Runtime { code, routines: Vec::new(), frames: frames.collect() })
}

/// Where each begins.
struct Routines {
    deliver: usize,
    wrap: usize,
    unwrap: usize,
    resume: usize,
    row: usize,
    locate: usize,
    exchange: usize,
}

impl Routines {
    /// What a signal's handler sees; then the handler.
    fn deliver(&self, a: &mut Lower, layout: &Layout, signals: &Signals) {
        let [inside, plain, within, elsewhere, out, number, show] = [(); 7].map(|()| a.label());
        a.bind(self.deliver);
        a.set(R11, signals.table + u64::from(SIGNAL_HANDLERS));
        a.put(|a, _| a.mov(r11, qword_ptr(r11 + rax * 8)));
        is_inside(a, layout, signals, plain, inside);
        a.bind(plain);
        // Handlers get what was in the other registers. It is not for them, but it goes on their stacks.
        [RAX, RCX, R8, R9, R10].iter().for_each(|&register| a.set(register, 0));
        a.put(|a, _| a.jmp(r11));

        const SAVED: [usize; 10] = [RDI, RSI, RDX, R11, RBX, RBP, R12, R13, R14, R15];
        // The signal and its description, which may be those of another one that this one has interrupted.
        const OWN: [usize; 2] = [RSI, RDI];
        const SIGNAL: i32 = 0;
        const DESCRIPTION: i32 = 8;
        a.bind(inside);
        SAVED.iter().for_each(|&register| a.push(register));
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
        a.store(RDI, RBX, context::NOTE_SP);
        a.set(RDX, 0);
        a.store(RDX, RBX, context::NOTE_FLAGS);
        a.copy(RDX, RAX);
        a.put(|a, _| a.xor(rdx, r8));
        a.store(RDX, RBX, context::NOTE_SHOWN_IP);
        a.store(RBP, RBX, context::NOTE_SHOWN_SP);
        a.put(|a, _| a.xor(r8, rbx));
        a.store(R8, RBX, context::NOTE);

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
        for (saved, base) in [(R12, R13), (R14, R15)] {
            a.copy(RDI, saved);
            a.copy(RSI, base);
            self.show_flags(a);
            self.call(a, self.exchange);
        }
        a.bind(out);
        forget_calls(a);
        OWN.iter().for_each(|&register| a.pop(register));
        SAVED.iter().rev().for_each(|&register| a.pop(register));
        a.jump(plain);
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
        let place = a.place(elsewhere);
        stub_offset(a, signals, RCX, RAX);
        a.put(|a, _| a.cmp(rax, (SIGNAL_STUBS << STUB_SHIFT) as i32));
        a.put(|a, _| a.jae(place));
        a.bits(RAX, RAX, STUB_SHIFT, 64 - STUB_SHIFT);
        a.set(RCX, signals.table + u64::from(SIGNAL_HANDLERS));
        a.put(|a, _| a.mov(rcx, qword_ptr(rcx + rax * 8)));
        a.jump_if_zero(RCX, out);
        for register in [RDI, RSI, RDX] {
            a.load(register, RBX, context::REGISTERS[register]);
        }
        a.set(RAX, 0);
        a.store(RAX, RBX, context::REGISTERS[RAX]);
        a.store(RCX, RBX, context::IP);
        is_inside(a, layout, signals, out, within);
        a.jump(out);
    }

    fn call(&self, a: &mut Lower, routine: usize) {
        let place = a.place(routine);
        a.put(|a, _| a.call(place));
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
    fn exchange(&self, a: &mut Lower) {
        let done = a.label();
        a.bind(self.exchange);
        a.jump_if_zero(RDI, done);
        for number in (0..16).filter(|&number| number != SAVED_FLAGS) {
            let next = a.label();
            let place = a.place(next);
            a.put(|a, _| a.movzx(eax, byte_ptr(rdi + number as i32)));
            a.put(|a, _| a.lea(ecx, dword_ptr(rax - 1)));
            a.put(|a, _| a.cmp(ecx, i32::from(SAVED_IN_AH) - 1));
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

    /// Makes the context at r10 that of where the thread really is, if the handler has left it as it was shown.
    fn resume(&self, a: &mut Lower, signals: &Signals) {
        let [out, moved, flags, nothing] = [(); 4].map(|()| a.label());
        a.bind(self.resume);
        // Stacks of handlers are small, and hardly ever is there a note.
        FIRST.iter().for_each(|&register| a.push(register));
        a.set(RAX, signals.key);
        a.put(|a, _| a.xor(rax, r10));
        a.load(RCX, R10, context::NOTE);
        a.jump_if_not_equal(RAX, RCX, nothing);
        REST.iter().for_each(|&register| a.push(register));
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
        a.push(RCX);
        a.push(RBP);
        self.call(a, self.locate);
        a.pop(RDI);
        a.pop(RCX);
        a.jump_if_zero(RAX, out);
        a.store(RCX, RBX, context::IP);
        a.store(RDI, RBX, context::SP);
        for (saved, base) in [(R14, R15), (R12, R13)] {
            a.copy(RDI, saved);
            a.copy(RSI, base);
            self.call(a, self.exchange);
        }
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
        a.jump_if_not_below_small(RAX, u32::from(PLACE_UNKNOWN), out);
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

    /// What an arena tells of an address.
    fn row(&self, a: &mut Lower, layout: &Layout) {
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
        a.put(|a, _| a.ret());
    }

    /// Where in the program a thread is that stands in an arena.
    fn locate(&self, a: &mut Lower, layout: &Layout) {
        let [none, one, placed, home] = [(); 4].map(|()| a.label());
        let unless = |a: &mut Lower, place: u8, to: usize, equal: bool| {
            let to = a.place(to);
            a.put(|a, _| a.cmp(eax, i32::from(place)));
            a.put(|a, _| if equal { a.je(to) } else { a.jne(to) });
        };
        a.bind(self.locate);
        self.call(a, self.row);
        unless(a, PLACE_UNKNOWN, none, true);
        a.copy(R12, R9);
        a.put(|a, _| a.lea(r13, qword_ptr(rbp + r8)));
        a.set(R14, 0);
        unless(a, PLACE_ROUTINE, one, false);
        a.load(RCX, R13, 0);
        a.address(RBP, R13, 8);
        self.call(a, self.row);
        unless(a, PLACE_UNKNOWN, none, true);
        unless(a, PLACE_ROUTINE, none, true);
        a.copy(R14, R9);
        a.put(|a, _| a.lea(r15, qword_ptr(rbp + r8)));
        a.copy(RBP, R15);
        a.jump(placed);
        a.bind(one);
        a.copy(RBP, R13);
        a.bind(placed);
        unless(a, PLACE_CALLER, home, true);
        a.load(R8, R10, ENTRY_SITE as i32);
        a.add(RAX, R8);
        a.put(|a, _| a.ret());
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
        oldest(a, &r);
        a.load(RAX, r.instance, RETURN_ADDRESS as i32);
        a.put(|a, _| a.ret());
        a.bind(in_slot);
        a.load(RAX, r.slot, 0);
        a.put(|a, _| a.ret());
    }

    /// Gives the handler of an action its stub, where there is one for it.
    fn wrap(&self, a: &mut Lower, signals: &Signals) {
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
    fn unwrap(&self, a: &mut Lower, signals: &Signals) {
        let out = a.label();
        let place = a.place(out);
        a.bind(self.unwrap);
        a.push(RAX);
        a.push(RCX);
        a.load(RCX, R10, action::HANDLER);
        stub_offset(a, signals, RCX, RAX);
        a.put(|a, _| a.cmp(rax, (SIGNAL_STUBS << STUB_SHIFT) as i32));
        a.put(|a, _| a.jae(place));
        a.bits(RAX, RAX, STUB_SHIFT, 64 - STUB_SHIFT);
        a.set(RCX, signals.table + u64::from(SIGNAL_HANDLERS));
        a.put(|a, _| a.mov(rcx, qword_ptr(rcx + rax * 8)));
        a.jump_if_zero(RCX, out);
        a.store(RCX, R10, action::HANDLER);
        a.bind(out);
        a.pop(RCX);
        a.pop(RAX);
        a.put(|a, _| a.ret());
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

/// Overwrites what was pushed below the stack pointer, at most four words. Handlers switch stacks: what leads to us would be taken for
/// a context that comes back to us.
fn forget_calls(a: &mut Lower) {
    a.set(RCX, 0);
    (1..=4).for_each(|word| a.store(RCX, RSP, -8 * word));
}

/// An end of a row that none but the last has.
const LAST_ROW: u32 = (1 << ROW_END.1) - 1;

/// The kernel's `struct sigaction`.
mod action {
    pub const HANDLER: i32 = 0;
    /// `sa_restorer`.
    pub const RETURNS: i32 = 16;
}

/// By the kernel's numbers.
mod signal {
    pub const SIGILL: i32 = 4;
    pub const SIGTRAP: i32 = 5;
    pub const SIGFPE: i32 = 8;
}

/// `to` = how far a handler's address is behind the first stub's.
fn stub_offset(a: &mut Lower, signals: &Signals, handler: usize, to: usize) {
    a.set(to, signals.stubs().start.wrapping_neg());
    a.add(to, handler);
}
