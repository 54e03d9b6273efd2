//! Threads between the two traps of a step.

use trapless_process::{Process, Registers, Tid, trace::Held};

/// A thread that is being stepped through its slot.
pub(super) struct Step {
    pub site: usize,
    pub flags: u64,
    pub held: Vec<Held>,
}

/// A step that was given up.
pub(super) struct Unfinished {
    /// Its thread.
    pub tid: Tid,
    /// Where the copy ends.
    pub end: u64,
    /// Whether the copy pushes flags that must not hold the trap flag.
    pub flags: bool,
}

impl Unfinished {
    /// What is left to do for a thread that got to the end of the copy before it was stopped.
    pub fn finish_flags(&self, process: &Process, registers: &Registers) {
        if self.flags && registers.ip_value() == self.end {
            process.clear_pushed_trap_flag(registers);
        }
    }
}
