//! What instruction sets have in common whose breakpoints leave a thread in front of themselves, and whose steps leave nothing behind.

use super::Trapped;
use super::host::Registers;
use crate::Process;

/// How far past the breakpoint's address the instruction pointer is when it has trapped.
pub const BREAKPOINT_ADVANCE: u64 = 0;
/// The flag by which the processor steps: it is the kernel's alone.
pub const TRAP_FLAG: u64 = 0;
/// Whether the kernel tells of a step over a system call as if a process had sent the signal, but of no process
/// (`user_single_step_report` in `linux/ptrace.h`).
pub(crate) const STEP_OVER_CALL_LOOKS_SENT: bool = true;
/// Whether registers of threads in 32-bit mode are known.
pub(crate) const HAS_32BIT: bool = false;

/// What selects the segment of a thread's control block: there are no segments.
pub fn thread_selector() -> u16 {
    0
}

/// Where the addresses of a program with 32 bits end, which there are none of.
pub(crate) fn narrow_end() -> u64 {
    1 << 32
}

/// What the description of a SIGTRAP tells by its code; `None`: somebody has sent it.
pub(crate) fn trapped(code: i32) -> Option<Trapped> {
    match code {
        // In a process that somebody probes by uprobes, powerpc's kernel says no more of a trap that is not one of these (`handle_swbp` of
        // `kernel/events/uprobes.c`).
        libc::TRAP_BRKPT | libc::SI_KERNEL => Some(Trapped::Breakpoint),
        libc::TRAP_TRACE | libc::TRAP_HWBKPT => Some(Trapped::Step),
        _ => None,
    }
}

/// An instruction that is stepped over, as far as steps leave something behind: none does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stepping {
    /// It pushes the flags, and the trap flag among them.
    pub pushes_flags: bool,
    /// It pops the flags: a trap flag is the thread's own.
    pub pops_flags: bool,
}

impl Stepping {
    /// The instruction that a thread stands at.
    pub fn over(_: &Process, _: &Registers) -> Self {
        Self::default()
    }
}

impl Registers {
    /// There are no segments.
    pub fn segment_base(&self, _gs: bool) -> Option<u64> {
        None
    }

    /// Whether the thread runs in 32-bit mode. Its registers are not read then.
    pub fn is_32bit(&self) -> bool {
        false
    }
}
