//! A gate: see [`crate::detour::gate`].
//!
//! The waiting is done by a system call that is made here, and by no other: programs with threads may make it, whatever a sandbox forbids. It
//! changes what a function may change of general registers, conditions, counts and carries, all of which is kept
//! (`Documentation/arch/powerpc/syscall64-abi.rst`). Nor is a clock read: the time is that of so many waits, each of which ends by itself. Who
//! goes on looks at memory as it is after the tool has said so, and at instructions, too.

use super::detour::Template;
use super::emit::*;
use crate::detour::Emitted;
use crate::detour::gate::*;

/// The system call `futex` (`arch/powerpc/kernel/syscalls/syscall.tbl`).
const FUTEX: u64 = 221;

/// What the call keeps: the gate, the number of this arrival, how many waits are left.
const GATE: Gpr = Gpr(14);
const ARRIVAL: Gpr = Gpr(15);
const LEFT: Gpr = Gpr(16);
/// What the call changes, and these.
const KEPT: [Gpr; 14] = [R0, R3, R4, R5, R6, R7, R8, R9, R10, R11, R12, GATE, ARRIVAL, LEFT];
/// Special registers that it changes: ctr and xer.
const KEPT_SPECIAL: [u32; 2] = [9, 1];

/// The frame: a header, what is kept, the conditions, the time of one wait.
const SIZE: i16 = 192;
const KEPT_AT: i16 = 32;
const SPECIAL_AT: i16 = KEPT_AT + 8 * KEPT.len() as i16;
const CONDITIONS_AT: i16 = SPECIAL_AT + 8 * KEPT_SPECIAL.len() as i16;
const TIME_AT: i16 = CONDITIONS_AT + 8;
const _: () = assert!(TIME_AT + 16 <= SIZE && GATE_STATE == 0);

/// `sc`, `isync`, and, without their register, `mfcr` and `mtcrf 255`.
const SC: u32 = 0x4400_0002;
const ISYNC: u32 = 0x4c00_012c;
const MFCR: u32 = 0x7c00_0026;
const MTCR: u32 = 0x7c0f_f120;

impl Template<'_> {
    /// With what counting needs saved.
    pub(super) fn gate(&mut self) -> Emitted<()> {
        let layout = self.request.layout;
        let [done, look, again, open, waited] = [(); 5].map(|()| self.asm.label());
        self.keep();
        self.asm.load_constant(GATE, layout.origin);
        self.asm.load(R3, GATE, 0);
        self.asm.compare_immediate(R3, 0);
        self.asm.branch_if(When::Equal, done);
        self.asm.load_constant(GATE, layout.gate);
        self.unless_shut(done);

        self.one_more(GATE_ARRIVED);
        self.asm.load_constant(R4, FUTEX_WAKE.into());
        self.asm.load_constant(R5, i32::MAX as u64);
        self.futex(GATE_ARRIVED);
        self.asm.load_constant(R3, 0);
        self.asm.store(R3, R1, TIME_AT);
        self.asm.load_constant(R3, GATE_WAIT.into());
        self.asm.store(R3, R1, TIME_AT + 8);
        self.asm.load_constant(LEFT, GATE_WAITS.into());
        self.asm.branch(look);

        self.asm.bind(again);
        self.asm.addi(LEFT, LEFT, -1);
        self.asm.compare_immediate(LEFT, 0);
        self.asm.branch_if(When::Equal, open);
        // What the wait has said: nothing, or an error.
        for said in [0].into_iter().chain(GATE_AGAIN) {
            self.asm.compare_immediate(R3, said.into());
            self.asm.branch_if(When::Equal, look);
        }
        self.asm.branch(open);

        self.asm.bind(look);
        self.unless_shut(waited);
        self.asm.load_word(R5, GATE, GATE_SERVED as i16);
        self.asm.sub(R4, R5, ARRIVAL);
        // Of 32 bits.
        self.asm.shift_left(R4, R4, 32);
        self.asm.compare_immediate(R4, 0);
        self.asm.branch_if(When::NotLess, waited);
        self.asm.load_constant(R4, FUTEX_WAIT.into());
        self.asm.addi(R6, R1, TIME_AT);
        self.futex(GATE_SERVED);
        self.asm.branch(again);

        self.asm.bind(open);
        self.asm.load_constant(R3, 0);
        self.asm.store_word(R3, GATE, GATE_STATE as i16);
        self.one_more(GATE_LATE);
        self.asm.bind(waited);
        // What is read behind it is not older than what was read ahead of it.
        self.asm.light_sync();
        self.asm.word(ISYNC);
        self.asm.bind(done);
        self.put_back();
        Ok(())
    }

    /// Goes to `to` where the gate is not shut. Changes r3 and cr0.
    fn unless_shut(&mut self, to: Label) {
        self.asm.load_word(R3, GATE, GATE_STATE as i16);
        self.asm.compare_immediate(R3, GATE_SHUT as i16);
        self.asm.branch_if(When::NotEqual, to);
    }

    /// Adds 1 to the gate's word at `offset`, for the tool to see with all that was written before; what it is then, in `ARRIVAL`. Changes r3
    /// and cr0.
    fn one_more(&mut self, offset: u32) {
        self.asm.addi(R3, GATE, offset as i16);
        self.asm.light_sync();
        let again = self.asm.here_label();
        self.asm.load_word_reserved(ARRIVAL, R3);
        self.asm.addi(ARRIVAL, ARRIVAL, 1);
        self.asm.store_word_conditional(ARRIVAL, R3);
        self.asm.branch_if(When::NotEqual, again);
    }

    /// The call, for the gate's word at `offset`, with its other arguments from r4 on.
    fn futex(&mut self, offset: u32) {
        self.asm.addi(R3, GATE, offset as i16);
        self.asm.load_constant(R0, FUTEX);
        self.asm.word(SC);
    }

    fn keep(&mut self) {
        self.asm.make_frame(SIZE, KEPT[0], KEPT_AT);
        for (at, register) in (KEPT_AT..).step_by(8).zip(KEPT).skip(1) {
            self.asm.store(register, R1, at);
        }
        for (at, special) in (SPECIAL_AT..).step_by(8).zip(KEPT_SPECIAL) {
            self.asm.read_special(R3, special);
            self.asm.store(R3, R1, at);
        }
        self.asm.word(MFCR | R3.0 << 21);
        self.asm.store(R3, R1, CONDITIONS_AT);
    }

    fn put_back(&mut self) {
        self.asm.load(R3, R1, CONDITIONS_AT);
        self.asm.word(MTCR | R3.0 << 21);
        for (at, special) in (SPECIAL_AT..).step_by(8).zip(KEPT_SPECIAL) {
            self.asm.load(R3, R1, at);
            self.asm.write_special(special, R3);
        }
        for (at, register) in (KEPT_AT..).step_by(8).zip(KEPT) {
            self.asm.load(register, R1, at);
        }
        self.asm.addi(R1, R1, SIZE);
    }
}
