//! Which instructions are emulated together in one trap, and where does one lead that changes nothing else?

use super::decode::{Form, LENGTH, form, word};
use super::emulate::emulate;
use crate::prologue::Emulator;
use crate::{EmulateError, Flow, Reason, Thread};

/// As all instruction sets put them together that need not tell one register from another.
pub(super) static EMULATOR: Emulator = Emulator { stack_pointer: 31, leads_on, one };

fn leads_on(code: &[u8], address: u64) -> bool {
    word(code).is_some_and(|word| form(word).flow(address) == Flow::Next)
}

fn one(code: &[u8], address: u64, thread: &mut dyn Thread) -> Result<u8, EmulateError> {
    emulate(word(code).ok_or(Reason::NotAnInstruction)?, address, thread)?;
    Ok(LENGTH as u8)
}

/// Where the instruction that `code` starts with leads, if it is emulated and changes nothing but the instruction pointer.
pub(super) fn leads_to(code: &[u8], address: u64) -> Option<u64> {
    match form(word(code)?) {
        Form::Branch { link: false, offset } => Some(address.wrapping_add_signed(offset)),
        _ => EMULATOR.changes_nothing(code, address),
    }
}
