//! Which instruction set does a process run?

use trapless_isa::{Isa, Machine};
use trapless_process::Process;

/// The one that its pointers show: processes are those of the host, which runs 32-bit programs beside its own.
pub(crate) fn machine(process: &Process) -> Machine {
    Machine::beside(process.is_32bit())
}

/// [`machine`], as what answers.
pub(crate) fn isa(process: &Process) -> &'static dyn Isa {
    machine(process).isa()
}
