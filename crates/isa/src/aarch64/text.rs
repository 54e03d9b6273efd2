//! Assembly text, for `explain`.

use super::decode::{Form, form, word};
use alloc::{format, string::String};
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

/// The instruction at the start of `code`, with the address that a relative operand means.
pub fn disassemble(code: &[u8], address: u64) -> String {
    let Some(word) = word(code) else { return String::from("(incomplete)") };
    let mut reader = U8Reader::new(&code[..4]);
    let text = match InstDecoder::default().decode(&mut reader) {
        Ok(instruction) => format!("{instruction}"),
        Err(_) => format!(".inst {word:#010x}"),
    };
    let form = form(word);
    let operand = match form {
        Form::Address { page: true, offset, .. } => (address & !0xfff).wrapping_add_signed(offset),
        Form::Address { offset, .. } | Form::Literal { offset, .. } => address.wrapping_add_signed(offset),
        form => match form.flow(address).target() {
            Some(target) => target,
            None => return text,
        },
    };
    format!("{text} // {operand:#x}")
}
