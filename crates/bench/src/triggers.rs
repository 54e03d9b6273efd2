//! The functions that are probed: one for each way in which functions begin, one whose return address has to stay
//! where it is, and those that hold the site of a USDT probe; and the loop that calls them.
//!
//! They are written in assembly, so that no compiler decides what the probed instruction is, and lie 64 bytes
//! apart with padding behind them: functions shorter than a jump need it, and compilers leave it. Each instruction set has
//! its own.

use super::kernel::Execution;
use serde::Serialize;

/// A function that is called and probed.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    /// What follows `uprobe-` or `usdt-` in the benchmark's names: the probed instruction, or how its return is
    /// followed.
    pub name: &'static str,
    /// The function. Takes and returns anything, keeps what the ABI says is kept.
    pub function: unsafe extern "C" fn(),
    /// Where it is probed.
    pub probed: Probed,
    /// How the kernel executes the instruction that its uprobe replaces.
    pub execution: Execution,
}

/// Where a trigger is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// At its first instruction, and there with its return.
    Function,
    /// With its return only: at its first instruction it is like any other.
    Return,
    /// At a nop inside of it, where the site of a USDT probe is: so many bytes behind its start, in 64-bit and in
    /// 32-bit code.
    Inside(u64),
}

/// What of a call is probed: the rows of the benchmark are named by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// `uprobe-…`
    Entry,
    /// `uretprobe-…`
    Return,
    /// `usdt-…`
    Inside,
}

impl Side {
    /// The benchmark's name for a trigger probed here.
    pub fn row(self, trigger: &str) -> String {
        match self {
            Side::Entry => format!("uprobe-{trigger}"),
            Side::Return => format!("uretprobe-{trigger}"),
            Side::Inside => format!("usdt-{trigger}"),
        }
    }
}

impl Trigger {
    /// What of its calls is probed.
    pub fn sides(&self) -> &'static [Side] {
        match self.probed {
            Probed::Function => &[Side::Entry, Side::Return],
            Probed::Return => &[Side::Return],
            Probed::Inside(_) => &[Side::Inside],
        }
    }

    /// How far behind its start the probed instruction is, in bytes.
    pub fn offset(&self) -> u64 {
        match self.probed {
            Probed::Function | Probed::Return => 0,
            Probed::Inside(offset) => offset,
        }
    }

    /// Its name among all triggers: two may be named after one instruction.
    pub fn label(&self) -> String {
        match self.probed {
            Probed::Function | Probed::Return => self.name.to_owned(),
            Probed::Inside(_) => Side::Inside.row(self.name),
        }
    }

    /// The benchmark's name for an unprobed call.
    pub fn call(&self) -> String {
        format!("call-{}", self.label())
    }
}

const fn probed(
    name: &'static str,
    function: unsafe extern "C" fn(),
    probed: Probed,
    execution: Execution,
) -> Trigger {
    Trigger { name, function, probed, execution }
}

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "powerpc64")]
mod powerpc;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod x86;

#[cfg(target_arch = "aarch64")]
use aarch64 as code;
#[cfg(target_arch = "powerpc64")]
use powerpc as code;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use x86 as code;

pub use code::{TRIGGERS, USDT_OPERANDS};

/// Where the sites of USDT probes are.
const USDT: Probed = Probed::Inside(4);

unsafe extern "C" {
    fn trapless_bench_calls(function: unsafe extern "C" fn(), times: u64);
    fn trapless_bench_increments(counter: *mut u64, times: u64);
}

/// Calls a trigger `times` times, at least once.
pub fn calls(trigger: &Trigger, times: u64) {
    // SAFETY: the loop keeps what the ABI says is kept, and so does every trigger, which takes no argument it uses
    // as an address and returns nothing that is used.
    unsafe { trapless_bench_calls(trigger.function, times.max(1)) }
}

/// Increments a word atomically `times` times, at least once.
pub fn increments(times: u64) {
    let mut counter = 0;
    // SAFETY: the pointer is to a live word of ours.
    unsafe { trapless_bench_increments(&mut counter, times.max(1)) }
}

/// Makes the system call that enters and leaves the kernel with the least between, `times` times: `syscall-count`.
pub fn syscalls(times: u64) {
    for _ in 0..times {
        // SAFETY: getppid takes nothing and changes nothing. Not by the C library's name for it, which may remember.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::narrow;
    use std::collections::BTreeSet;

    #[test]
    fn a_usdt_site_is_the_nop_it_is_named_after_in_both_widths() {
        let (narrow, places) = narrow::functions();
        for (trigger, place) in TRIGGERS.iter().zip(&places[1..]) {
            let Probed::Inside(offset) = trigger.probed else { continue };
            let nop: &[u8] = if trigger.name == "nop" { &[0x90] } else { &[0x0f, 0x1f, 0x44, 0x00, 0x00] };
            let offset = offset as usize;
            // SAFETY: the nop is in the function, of which 64 bytes can be read.
            let wide =
                unsafe { std::slice::from_raw_parts((trigger.function as *const u8).add(offset), nop.len()) };
            assert_eq!(wide, nop, "{}", trigger.label());
            assert_eq!(&narrow[place.offset as usize + offset..][..nop.len()], nop, "{}", trigger.label());
        }
    }

    #[test]
    fn no_two_triggers_and_no_two_rows_have_one_name() {
        let labels: BTreeSet<String> = TRIGGERS.iter().map(Trigger::label).collect();
        assert_eq!(labels.len(), TRIGGERS.len());
        let rows = || TRIGGERS.iter().flat_map(|t| t.sides().iter().map(|side| side.row(t.name)));
        assert_eq!(rows().collect::<BTreeSet<_>>().len(), rows().count());
    }
}
