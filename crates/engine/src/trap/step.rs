//! Threads between the two traps of a step.

use trapless_process::{Process, Registers, Tid, trace::Held};

/// The trap flag, by which the processor steps.
pub(super) const TF: u64 = 0x100;

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
            clear_pushed_trap_flag(process, registers);
        }
    }
}

/// Takes the trap flag out of the flags that the instruction just stepped has pushed.
pub(super) fn clear_pushed_trap_flag(process: &Process, registers: &Registers) {
    let at = registers.sp() + 1;
    let mut byte = [0];
    // The program has just written there.
    if process.load(at, &mut byte).is_ok() {
        let _ = process.store(at, &[byte[0] & !((TF >> 8) as u8)]);
    }
}
