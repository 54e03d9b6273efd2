//! Which code runs one displaced instruction out of line, after a trap?
//!
//! | slot | code |
//! |---|---|
//! | stepped | the relocated copy |
//! | boosted, next instruction in reach | the copy, `jmp rel32` |
//! | boosted, out of reach | the copy, `jmp *0(%rip)`, `.quad next` |
//!
//! A boosted slot may only hold a copy that is one instruction: a thread interrupted between several would stand at a place that
//! the original code does not have.

use super::decode::decode_one;
use super::movable::{Form, form};
use super::relocate::relocate;
use crate::{Displaced, Reason, Slot};
use alloc::vec::Vec;
use iced_x86::Mnemonic;

/// The slot for `displaced`, whose bytes are `original`, to stand at `address`.
pub(super) fn slot(
    bits: u32,
    displaced: &Displaced,
    original: &[u8],
    address: u64,
    boosted: bool,
) -> Result<Slot, Reason> {
    let mut code = relocate(bits, displaced, original, address)?.code;
    let copy = code.len();
    if boosted {
        let (first, _) = decode_one(bits, &code, address).map_err(|_| Reason::NotAnInstruction)?;
        if first.len() != copy {
            return Err(Reason::NotBoosted("an instruction whose copy takes several"));
        }
        jump(bits, &mut code, address, displaced.end());
    }
    Ok(Slot { code, copy: copy as u32, boosted })
}

/// Appends a jump to `target` to `code`, which stands at `address`.
fn jump(bits: u32, code: &mut Vec<u8>, address: u64, target: u64) {
    const NEAR: u64 = super::JUMP_LENGTH as u64;
    let end = address.wrapping_add(code.len() as u64 + NEAR);
    let distance = target.wrapping_sub(end);
    let near = if bits == 32 { Some(distance as i32) } else { i32::try_from(distance as i64).ok() };
    match near {
        Some(distance) => {
            code.push(0xe9);
            code.extend_from_slice(&distance.to_le_bytes());
        }
        None => {
            code.extend_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
            code.extend_from_slice(&target.to_le_bytes());
        }
    }
}

/// Whether `instruction`, whose bytes are `bytes`, may run in a boosted slot.
pub(super) fn boostable(bits: u32, instruction: &iced_x86::Instruction, bytes: &[u8]) -> Result<(), Reason> {
    match form(bits, instruction, bytes, instruction.ip()..instruction.next_ip())? {
        // The address of the original call has to be pushed first.
        Form::Call | Form::IndirectCall => Err(Reason::NotBoosted("a call")),
        Form::ShortOnly => Err(Reason::NotBoosted("a loop or jcxz")),
        Form::Copy | Form::Jump | Form::Conditional | Form::Transaction => Ok(()),
    }
}

/// Whether nobody enters `instruction` at its second byte, behind a breakpoint at its first: it has several, and none of them is a lock
/// prefix that a program jumps over where it runs on one processor.
pub(super) fn is_unmistakable(instruction: &[u8]) -> bool {
    const LOCK: u8 = 0xf0;
    matches!(instruction, [first, _, ..] if *first != LOCK)
}

/// Whether `instruction` is a pushf.
pub(super) fn saves_flags(bits: u32, instruction: &[u8]) -> bool {
    decode_one(bits, instruction, 0).is_ok_and(|(instruction, _)| {
        matches!(instruction.mnemonic(), Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq)
    })
}
