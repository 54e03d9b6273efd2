//! What handlers of signals see: the program, and not the detour that a signal has interrupted.
//!
//! The kernel keeps the registers of what a signal interrupts in the signal's frame, and the handler is given their address. Where the
//! instruction is one of ours, or a displaced one that faults, a handler would find addresses that it does not know, and registers that
//! are ours. So between the kernel and each handler stands a *stub*:
//!
//! 1. The kernel calls the stub. If the interrupted instruction lies in no arena, the stub goes on to the handler at once.
//! 2. Else it *shows the program*: what the arena tells of the instruction ([`crate::frames`]) becomes the frame's instruction pointer and
//!    stack pointer, and each register that the detour has saved changes places with what was saved. In words of the frame that the
//!    kernel does not use (`reserved1` of `struct sigcontext`) it notes where the thread really is: the *note*.
//! 3. Handlers return to code of the program that makes the system call `rt_sigreturn`. It is probed
//!    ([`SignalCall::Return`](crate::SignalCall::Return)), and there the note is looked at. If instruction pointer and stack pointer are as they were
//!    shown, everything changes back, and the thread goes on in the detour: an instruction that has faulted is tried again there, with
//!    whatever the handler has put into the registers. If the handler has moved it to another of the displaced instructions, it goes on at
//!    that one's copy. Anywhere else is where the program wants to be.
//!
//! Where two signals come together, the kernel lets the second one interrupt the first one's stub before its first instruction. Then the
//! second stub shows its handler the first one's handler, as if that were about to begin, and does the first stub's work. A signal that
//! interrupts a stub later, or [`SignalCall::Return`](crate::SignalCall::Return) while there is a note, sees our code: some dozens of instructions.
//!
//! When probes are taken out, a thread that has faulted in an arena, and whose signal is not delivered yet, gets it while the stubs are
//! in: nothing else can show its handler the program.
//!
//! A handler that leaves by longjmp leaves the note behind; each stub begins by clearing it. When probes are taken out meanwhile, the frame
//! tells the program's own place, which is right then, and the note is nobody's: each session has a key of its own. A body of a script that was
//! interrupted there is cut short, so it is counted how many have been shown to handlers and not gone on with ([`SIGNAL_CUT`]). A handler that will
//! come back to a body needs its note, since registers that bodies calculate with are not shown: the probe of `rt_sigreturn` has to wait for it.
//!
//! # Which handlers have stubs
//!
//! Those that the program had when it was probed: their actions are exchanged by system calls in the stopped process. Those that come
//! later: ahead of each `rt_sigaction` ([`SignalCall::BeforeAction`](crate::SignalCall::BeforeAction)) the handler in the new action is exchanged, where
//! that lies on the caller's stack, and behind it ([`SignalCall::Action`](crate::SignalCall::Action)) the new and the old action get back what the program
//! put there. A stub belongs to a handler, not to a signal, and is never given to another: so children that share the memory, and have
//! actions of their own, need no rule. The *table* of handlers lies on a page of its own, private to the process:
//!
//! | offset | |
//! |---|---|
//! | [`SIGNAL_HANDLERS`] | the handler of each stub, in order; 0: the stub is free |
//! | [`SIGNAL_UNSEEN`] | how many handlers were installed that could be given no stub |
//! | [`SIGNAL_RETURNS`] | where the handlers return to that have stubs: addresses that are probed, ended by 0 |
//! | [`SIGNAL_CUT`] | how many bodies are interrupted, or were left for good by a handler that went elsewhere |
//! | [`SIGNAL_KEY`] | [`Signals::key`] |
//!
//! # Handlers that are probed
//!
//! Go has one handler for all signals, and installs it where a probe would find no stack. There the handler itself is probed
//! ([`SignalCall::Handler`](crate::SignalCall::Handler)), and does at its entry what a stub does. Only the kernel calls it with the context
//! where the kernel puts that; who else passes a signal on to it was shown the program before. One handler may go on in another: there the
//! note says that the context has been changed already. Where a handler returns to code that is not probed, nothing is shown.
//!
//! Go looks up in its tables how large the frame is where a goroutine was interrupted, by the function that the address lies in. The room of a
//! short jump may lie in another function, or behind the last one. Whoever is interrupted at a jump there, in the code at
//! [`Signals::hops`], has gone on to where that leads before anybody looks. At the site itself the place is the program's.
//!
//! The stubs and their routines lie in an arena of their own: entries at the offsets [`SIGNAL_WRAP`] to [`SIGNAL_SHOW`], then the stubs.

/// Length of the code that handlers return to: it makes the system call `rt_sigreturn`.
pub const RETURN_LENGTH: usize = 9;

/// How many stubs there are.
pub const SIGNAL_STUBS: u32 = 256;
/// Log2 of the size of a stub.
pub const STUB_SHIFT: u32 = 4;
/// Arena of stubs: gives the handler of the action at r10 its stub.
pub const SIGNAL_WRAP: u32 = 32;
/// Arena of stubs: gives the action at r10 the handler of its stub.
pub const SIGNAL_UNWRAP: u32 = 40;
/// Arena of stubs: makes the context at r10 that of where the thread really is.
pub const SIGNAL_RESUME: u32 = 48;
/// Arena of stubs: shows the program to the handler that is about to begin.
pub const SIGNAL_SHOW: u32 = 56;
/// Arena of stubs: the first stub.
pub const SIGNAL_FIRST_STUB: u32 = 64;
/// Arena of stubs: its size.
pub const SIGNAL_ARENA: u64 = 0x3000;

/// Table: the handlers.
pub const SIGNAL_HANDLERS: u32 = 0;
/// Table: handlers without a stub.
pub const SIGNAL_UNSEEN: u32 = SIGNAL_STUBS << 3;
/// Table: where handlers return to.
pub const SIGNAL_RETURNS: u32 = SIGNAL_UNSEEN + 8;
/// The most places that handlers return to.
pub const SIGNAL_MOST_RETURNS: u32 = 15;
/// Table: bodies that handlers have not gone back to.
pub const SIGNAL_CUT: u32 = SIGNAL_RETURNS + 8 * (SIGNAL_MOST_RETURNS + 1);
/// Table: what notes are combined with.
pub const SIGNAL_KEY: u32 = SIGNAL_CUT + 8;

/// Offset of a note in the kernel's context: a note is the context's address, combined with the key.
pub const NOTE_IN_CONTEXT: u32 = 232;

/// A new action further above the stack pointer than this is not the caller's to be changed.
pub const ACTION_ON_STACK: u32 = 4096;

/// Where a process's stubs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Address of the table.
    pub table: u64,
    /// Address of the arena.
    pub arena: u64,
    /// A signal by which a run-time system stops its threads at places that it knows, and makes them go on elsewhere: its handler
    /// is to find none in a detour. 0: there is none.
    pub stops: u32,
    /// Where code lies whose jumps into an arena nobody is to be seen at: its address and its size, which is 0 where there is none.
    pub hops: (u64, u64),
    /// Address of the arena that holds bodies and their routines; 0: there is none.
    pub program: u64,
    /// What notes are combined with: a number of the session's own, so that nobody takes another's note for one of his, and no address of ours
    /// stands on a stack.
    pub key: u64,
}

impl Signals {
    /// Addresses of the stubs.
    pub fn stubs(&self) -> core::ops::Range<u64> {
        let first = self.arena + u64::from(SIGNAL_FIRST_STUB);
        first..first + u64::from(SIGNAL_STUBS << STUB_SHIFT)
    }
}
