//! What a stop for SIGTRAP was that nobody has been told of, when all threads are stopped again.

use crate::arch::{Trapped, trapped};
use crate::ptrace::SignalInfo;
use crate::stop::Parked;
use crate::{BREAKPOINT_ADVANCE, Process, Registers, RemoteAddr, Tid};
use std::collections::HashSet;

/// What is ours, and not the program's.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    /// What [`know_breakpoints`](super::Tracer::know_breakpoints) was told, as instruction pointers after the trap.
    pub known: HashSet<RemoteAddr>,
    /// Threads that we let run one instruction.
    pub stepping: HashSet<Tid>,
}

impl Ours {
    /// How a traced thread that has stopped for `signal` is to be let go: a breakpoint or step of ours is no signal of the program's, and
    /// a breakpoint is to be met again, or not if it is gone by then.
    pub fn park(&self, process: &Process, tid: Tid, signal: i32) -> Parked {
        let raised = SignalInfo::of(tid).ok().and_then(|info| trapped(info.code()));
        match (signal, raised) {
            // It stands in front of the breakpoint, and meets it again, whoever's it is.
            (libc::SIGTRAP, Some(Trapped::Breakpoint)) if BREAKPOINT_ADVANCE == 0 => Parked::Plain,
            (libc::SIGTRAP, Some(Trapped::Breakpoint)) => self.park_at_breakpoint(process, tid),
            (libc::SIGTRAP, Some(Trapped::Step)) if self.stepping.contains(&tid) => Parked::Plain,
            _ => Parked::Signal(signal),
        }
    }

    fn park_at_breakpoint(&self, process: &Process, tid: Tid) -> Parked {
        // ESRCH means killed.
        let Ok(mut regs) = Registers::read(tid) else { return Parked::Plain };
        if !self.known.contains(&regs.ip()) && is_behind_int_3(process, regs.ip()) {
            return Parked::Signal(libc::SIGTRAP);
        }
        // The program's own breakpoint of one byte is met again, too.
        regs.set_ip(regs.ip() - BREAKPOINT_ADVANCE);
        let _ = regs.write(tid);
        Parked::Plain
    }
}

/// Whether the trap may be the program's own, by the instruction of two bytes that no breakpoint of ours is. One that we have taken out
/// by now, with these bytes around it, hid an instruction that starts with the second: that has several bytes, so the breakpoint is known.
fn is_behind_int_3(process: &Process, ip: RemoteAddr) -> bool {
    const INT_3: [u8; 2] = [0xcd, 0x03];
    let mut bytes = [0; INT_3.len()];
    process.read(ip - INT_3.len() as u64, &mut bytes).is_ok() && bytes == INT_3
}
