//! A gate: see [`crate::detour::gate`].
//!
//! The waiting is done by a system call that is made here, and by no other: programs with threads may make it, whatever a sandbox forbids. It
//! changes x0, and of vectors what functions need not keep. Nor is a clock read: the time is that of so many waits, each of which ends by
//! itself. Who goes on looks at memory as it is after the tool has said so, and at instructions, too.

use super::detour::Template;
use super::emit::{Label, instruction as a};
use super::frame::register::SP;
use crate::assemble::Assemble;
use crate::detour::Emitted;
use crate::detour::gate::*;

/// The system call `futex` (`include/uapi/asm-generic/unistd.h`).
const FUTEX: u64 = 98;

/// Arguments of the call, and its number.
const ARGUMENTS: [u32; 4] = [0, 1, 2, 3];
const NUMBER: u32 = 8;
/// What the call keeps: the gate, the number of this arrival, how many waits are left.
const GATE: u32 = 9;
const ARRIVAL: u32 = 10;
const LEFT: u32 = 11;

/// Four pairs, and behind them the time of one wait.
const FRAME: i32 = 80;
const TIME_AT: u32 = 64;

impl Template<'_> {
    /// With nothing saved.
    pub(super) fn gate(&mut self) -> Emitted<()> {
        let layout = self.layout;
        let [x0, x1, x2, x3] = ARGUMENTS;
        let code = &mut self.code;
        let [done, look, again, open, waited] = [(); 5].map(|()| code.label());
        code.emit([
            a::stp_pre(x0, x1, SP, -FRAME),
            a::stp(x2, x3, SP, 16),
            a::stp(NUMBER, GATE, SP, 32),
            a::stp(ARRIVAL, LEFT, SP, 48),
        ]);
        code.constant(GATE, layout.origin);
        code.emit([a::ldr(GATE, GATE, 0)]);
        code.jump_if_zero(GATE, done);
        code.constant(GATE, layout.gate);
        self.unless_shut(done);

        self.one_more(GATE_ARRIVED, ARRIVAL);
        let code = &mut self.code;
        code.emit([a::add_immediate(x0, GATE, GATE_ARRIVED)]);
        code.load(x1, FUTEX_WAKE.into());
        code.load(x2, i32::MAX as u64);
        code.load(NUMBER, FUTEX);
        code.emit([a::SVC]);
        code.load(x1, GATE_WAIT.into());
        code.emit([a::str(SP, SP, TIME_AT), a::str(x1, SP, TIME_AT + 8)]);
        code.load(LEFT, GATE_WAITS.into());
        code.jump(look);

        code.bind(again);
        code.emit([a::sub_immediate(LEFT, LEFT, 1)]);
        code.jump_if_zero(LEFT, open);
        // What the wait has said.
        code.jump_if_zero(x0, look);
        for error in GATE_AGAIN {
            code.emit([a::add_immediate(x1, x0, error.into())]);
            code.jump_if_zero(x1, look);
        }
        code.jump(open);

        code.bind(look);
        self.unless_shut(waited);
        let code = &mut self.code;
        code.emit([a::add_immediate(x0, GATE, GATE_SERVED), a::ldar_w(x2, x0), a::sub(x1, x2, ARRIVAL, 0)]);
        // Of 32 bits.
        code.emit_to(a::tbz(x1, 31), waited);
        code.load(x1, FUTEX_WAIT.into());
        code.emit([a::add_immediate(x3, SP, TIME_AT)]);
        code.load(NUMBER, FUTEX);
        code.emit([a::SVC]);
        code.jump(again);

        code.bind(open);
        code.emit([a::str_w(SP, GATE, GATE_STATE)]);
        self.one_more(GATE_LATE, ARRIVAL);
        let code = &mut self.code;
        code.bind(waited);
        code.emit([a::ISB]);
        code.bind(done);
        code.emit([
            a::ldp(ARRIVAL, LEFT, SP, 48),
            a::ldp(NUMBER, GATE, SP, 32),
            a::ldp(x2, x3, SP, 16),
            a::ldp_post(x0, x1, SP, FRAME),
        ]);
        Ok(())
    }

    /// Goes to `to` where the gate at `GATE` is not shut.
    fn unless_shut(&mut self, to: Label) {
        let [state, ..] = ARGUMENTS;
        self.code.emit([a::ldar_w(state, GATE), a::sub_immediate(state, state, GATE_SHUT)]);
        self.code.emit_to(a::cbnz_w(state), to);
    }

    /// Adds 1 to the gate's word at `offset`, for the tool to see with all that was written before; what it is then, in `to`.
    fn one_more(&mut self, offset: u32, to: u32) {
        let [address, status, ..] = ARGUMENTS;
        self.code.emit([a::add_immediate(address, GATE, offset)]);
        let again = self.code.label_here();
        self.code.emit([
            a::ldxr_w(to, address),
            a::add_immediate(to, to, 1),
            a::stlxr_w(status, to, address),
        ]);
        self.code.emit_to(a::cbnz_w(status), again);
    }
}

const _: () = assert!(GATE_STATE == 0);
