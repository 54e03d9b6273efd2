//! A thread that stands at a hit, as a body asks about it.

use super::Server;
use crate::interp::Hit;
use crate::ir::*;
use trapless_wire::{
    Atomics, Clock, SCRIPT_BEGAN, SCRIPT_CGROUP, SCRIPT_GID, SCRIPT_PARENT, SCRIPT_PID, SCRIPT_PROCESSORS,
    SCRIPT_SEED, SCRIPT_SYMBOLS, SCRIPT_UID, THREAD_RANDOM,
};

/// What is known of a hit without looking at the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Which site it is, as bodies are told.
    pub site: u32,
    /// The thread's number, as its own process knows it.
    pub tid: u32,
    /// Clock ticks when the thread was found standing.
    pub time: u64,
    /// At a return, clock ticks at the call's entry.
    pub entered: u64,
    /// Address of the probe.
    pub instruction: u64,
    /// Address of the stack slot of the return address.
    pub frame: u64,
    /// Address of the thread's control block.
    pub thread_pointer: u64,
}

/// A thread that stands.
pub trait Thread {
    /// A general register by its DWARF number, as it was at the hit; 0 where there is no such register.
    fn register(&mut self, number: u8) -> u64;

    /// An integer argument of the function that was entered, from 0 on; 0 where it cannot be read.
    fn argument(&mut self, number: u8) -> u64;

    /// A word of what a function returns in registers for integers: 0 or 1.
    fn result(&mut self, word: u8) -> u64;

    /// Where the call returns to, at the entry of a function and at its return; 0 where it cannot be read.
    fn return_address(&mut self) -> u64;

    /// The low 64 bits of a vector register that floating-point arguments and results are in.
    fn vector(&mut self, number: u8) -> u64;

    /// As [`Hit::read`].
    fn read(&mut self, address: u64, into: &mut [u8]) -> usize;

    /// As [`Hit::operand`].
    fn operand(&mut self, argument: u8, scalar: Scalar) -> Option<u64>;

    /// As [`Hit::thread_name`].
    fn name(&mut self) -> [u8; 16];

    /// The processor that it ran on last, and the node of that one.
    fn processor(&mut self) -> (u64, u64);

    /// Whether it has stood for so long that the run has to end. It is asked ahead of each round of a loop.
    fn stands_too_long(&mut self) -> bool;
}

/// The hit for which a body runs.
pub(super) struct Standing<'a, W: ?Sized> {
    pub server: Server<'a, W>,
    pub at: &'a At,
    pub thread: &'a mut dyn Thread,
}

impl<W: Atomics + ?Sized> Standing<'_, W> {
    /// A clock, as native code reads it: what both tell can be compared.
    fn clock(&self, kind: ClockKind) -> Clock {
        let at = Clock::offset(kind as u32);
        let [ticks_base, base, scale] = [0, 8, 16].map(|word| self.server.shared_word(at + word));
        Clock { ticks_base, base, scale }
    }

    fn time(&self, kind: ClockKind) -> u64 {
        self.clock(kind).nanoseconds(self.at.time)
    }

    /// As native code draws it.
    fn random(&self) -> u64 {
        let at = self.server.own + u64::from(THREAD_RANDOM);
        let state = self.server.words.fetch_add(at, 0x9e37_79b9_7f4a_7c15);
        let mut mixed = state.wrapping_add(self.server.shared_word(SCRIPT_SEED)).wrapping_add(at);
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
            mixed = (mixed ^ mixed >> shift).wrapping_mul(factor);
        }
        mixed ^ mixed >> 31
    }
}

impl<W: Atomics + ?Sized> Hit for Standing<'_, W> {
    fn context(&mut self, what: Context) -> u64 {
        let at = self.at;
        match what {
            Context::Argument(number) => self.thread.argument(number),
            Context::Register(number) => self.thread.register(number),
            Context::FloatRegister(number) => self.thread.vector(number),
            Context::InstructionPointer => at.instruction,
            Context::Result => self.thread.result(0),
            Context::SecondResult => self.thread.result(1),
            Context::FloatResult => self.thread.vector(0),
            Context::ReturnAddress => self.thread.return_address(),
            Context::Frame | Context::Call => at.frame,
            Context::Site => at.site.into(),
            Context::Tid => at.tid.into(),
            Context::Pid => self.server.shared_word(SCRIPT_PID),
            Context::ParentPid => self.server.shared_word(SCRIPT_PARENT),
            Context::Uid => self.server.shared_word(SCRIPT_UID),
            Context::Gid => self.server.shared_word(SCRIPT_GID),
            Context::Cgroup => self.server.shared_word(SCRIPT_CGROUP),
            Context::Processors => self.server.shared_word(SCRIPT_PROCESSORS),
            Context::Symbol(number) => {
                let is_there = usize::from(number) < self.server.program.symbols.len();
                if is_there { self.server.shared_word(SCRIPT_SYMBOLS + 8 * u32::from(number)) } else { 0 }
            }
            Context::Cpu => self.thread.processor().0,
            Context::NumaNode => self.thread.processor().1,
            Context::Time(kind) => self.time(kind),
            Context::Elapsed => {
                self.time(ClockKind::Boot).wrapping_sub(self.server.shared_word(SCRIPT_BEGAN))
            }
            Context::Duration => {
                let Clock { scale, .. } = self.clock(ClockKind::Monotonic);
                Clock { ticks_base: at.entered.min(at.time), base: 0, scale }.nanoseconds(at.time)
            }
            Context::ThreadPointer => at.thread_pointer,
            Context::Random => self.random(),
        }
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        self.thread.read(address, into)
    }

    fn operand(&mut self, argument: u8, scalar: Scalar) -> Option<u64> {
        self.thread.operand(argument, scalar)
    }

    fn stack(&mut self, _frames: u8, _by: StackWalk) -> u64 {
        // Refused ahead.
        0
    }

    fn thread_name(&mut self) -> [u8; 16] {
        self.thread.name()
    }

    fn signal(&mut self, _signal: i64) {
        // Refused ahead.
    }

    fn change(&mut self, _what: Change, _to: u64) {
        // Refused ahead.
    }

    fn is_out_of_time(&mut self) -> bool {
        self.thread.stands_too_long()
    }
}
