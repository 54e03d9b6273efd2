//! Which instructions are emulated together in one trap, and where does one lead that changes nothing else?

use super::decode::{Branch, Destination, Form, form};
use super::emulate::emulate;
use crate::prologue::Emulator;
use crate::{EmulateError, Thread};

/// As all instruction sets put them together that need not tell one register from another.
pub(super) static EMULATOR: Emulator = Emulator { stack_pointer: 1, leads_on, one };

fn leads_on(code: &[u8], address: u64) -> bool {
    form(code, address).is_ok_and(|(form, _)| !matches!(form, Form::Branch(_)))
}

/// What carries is left to the processor: it is not known here which one that is.
fn one(code: &[u8], address: u64, thread: &mut dyn Thread) -> Result<u8, EmulateError> {
    emulate(code, address, thread, None)
}

/// Where the instruction that `code` starts with leads, if it is emulated and changes nothing but the instruction pointer.
pub(super) fn leads_to(code: &[u8], address: u64) -> Option<u64> {
    match form(code, address).ok()?.0 {
        Form::Branch(branch @ Branch { to: Destination::Address(target), link: false, .. })
            if branch.always() =>
        {
            Some(target)
        }
        _ => EMULATOR.changes_nothing(code, address),
    }
}
