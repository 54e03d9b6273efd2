//! Points by which calls go that are followed, and what unwinders are told of them.

use super::{put_back, put_back_vectors, save};
use crate::Reason;
use crate::inside::{Ends, Points};
use crate::x86::emit::{Assembler, unencodable};
use alloc::vec::Vec;
use iced_x86::{IcedError, code_asm::*};

/// `lea rsp, [rsp+8]`, which leaves the flags alone.
const DROP: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 8];

/// `lea rsp, [rsp-8]`: what the call has put there is there still.
const TAKE_BACK: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0xf8];

/// `call [rip+disp32]` and `jmp rel32`
const CALL: [u8; 2] = [0xff, 0x15];
const CALL_LENGTH: usize = 6;
const JUMP: u8 = 0xe9;

/// Bytes of a point, and from its beginning to behind its call.
const LENGTH_SHIFT: u8 = 5;
const LENGTH: usize = 1 << LENGTH_SHIFT;
const BACK: usize = DROP.len() + CALL_LENGTH;

pub(super) fn make(ends: &Ends, at: u64) -> Result<Points, Reason> {
    let end = at + (ends.count as usize * LENGTH) as u64;
    let mut code = Vec::with_capacity(ends.count as usize * LENGTH + 4096);
    for n in 0..u64::from(ends.count) {
        let distance = |to: u64, length: usize| {
            let distance = to.wrapping_sub(at + length as u64).cast_signed();
            i32::try_from(distance).map(i32::to_le_bytes).map_err(|_| Reason::OutOfReach)
        };
        code.extend(DROP);
        code.extend(CALL);
        let target = ends.known + n * u64::from(ends.stride) + u64::from(ends.target);
        code.extend(distance(target, code.len() + 4)?);
        code.extend(TAKE_BACK);
        code.push(JUMP);
        code.extend(distance(end, code.len() + 4)?);
        code.resize((n as usize + 1) * LENGTH, super::TRAP);
    }
    let mut assembler = Assembler::new(64, end)?;
    leave(&mut assembler.a, ends).map_err(unencodable)?;
    code.extend_from_slice(assembler.finish()?.code());
    let landing = code.len() as u32;
    let mut assembler = Assembler::new(64, at + u64::from(landing))?;
    land(&mut assembler.a, ends).map_err(unencodable)?;
    code.extend_from_slice(assembler.finish()?.code());
    let (unwind, entry) = unwind(ends, at);
    Ok(Points {
        code,
        length: LENGTH as u32,
        back: BACK as u32,
        landing,
        given: [RAX_OF_DWARF, RDX_OF_DWARF],
        unwind,
        entry,
    })
}

/// Behind a call that has returned.
fn leave(a: &mut CodeAssembler, ends: &Ends) -> Result<(), IcedError> {
    save(a, ends.vectors)?;
    a.mov(rdi, rbp)?;
    a.mov(rax, ends.dispatcher)?;
    a.call(rax)?;
    put_back_vectors(a, ends.vectors)?;
    put_back(a)?;
    a.ret()
}

/// An unwinder has come here, with the stack pointer as the caller has it, the exception in rax, and in rdx what was below the stack pointer. It goes on
/// from the caller, as if that had called it.
fn land(a: &mut CodeAssembler, ends: &Ends) -> Result<(), IcedError> {
    a.push(rdx)?;
    a.mov(rdi, rsp)?;
    a.push(rax)?;
    a.mov(rax, ends.unwound)?;
    a.call(rax)?;
    a.pop(rdi)?;
    a.mov(rax, ends.resume)?;
    a.jmp(rax)
}

/// The psABI's numbers of registers for unwinders.
const RAX_OF_DWARF: i32 = 0;
const RDX_OF_DWARF: i32 = 1;
const RSP_OF_DWARF: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

/// DWARF's operators of expressions, and instructions of a table (DWARF 5, 7.7.1 and 7.24).
mod dwarf {
    pub const DEREF: u8 = 0x06;
    pub const CONST2U: u8 = 0x0a;
    pub const CONST8U: u8 = 0x0e;
    pub const MINUS: u8 = 0x1c;
    pub const MUL: u8 = 0x1e;
    pub const PLUS: u8 = 0x22;
    pub const SHR: u8 = 0x25;
    pub const LIT0: u8 = 0x30;
    pub const CFA_DEF_CFA: u8 = 0x0c;
    pub const CFA_EXPRESSION: u8 = 0x10;
}

/// The table, and where its entry begins. Behind the call the stack pointer is the caller's already; what is on the stack below it tells the point, and what
/// is known of that begins with the caller's address.
fn unwind(ends: &Ends, at: u64) -> (Vec<u8>, usize) {
    use dwarf::*;
    let first = at + BACK as u64;
    let expression = [
        &[LIT0 + 8, MINUS, DEREF, CONST8U][..],
        &first.to_le_bytes(),
        &[MINUS, LIT0 + LENGTH_SHIFT, SHR, CONST2U],
        &(ends.stride as u16).to_le_bytes(),
        &[MUL, CONST8U],
        &ends.known.to_le_bytes(),
        &[PLUS],
    ]
    .concat();
    // An identifier of 0, version 1; alignments of 1 and -8; a personality, and addresses as they are.
    let mut common = [&[0, 0, 0, 0, 1][..], b"zPR\0", &[1, 0x78, RETURN_ADDRESS, 10, 0]].concat();
    common.extend(ends.personality.to_le_bytes());
    common.push(0);
    common.extend([CFA_DEF_CFA, RSP_OF_DWARF, 0, CFA_EXPRESSION, RETURN_ADDRESS, expression.len() as u8]);
    common.extend(expression);
    let mut table = with_length(common);
    let entry = table.len();
    // How far back the common part is; the range, and nothing of its own.
    let to_common = entry as u32 + 4;
    let length = u64::from(ends.count) * LENGTH as u64;
    table.extend(with_length(
        [&to_common.to_le_bytes()[..], &at.to_le_bytes(), &length.to_le_bytes(), &[0]].concat(),
    ));
    table.extend([0; 4]);
    (table, entry)
}

/// A part of a table, which is filled up by instructions that do nothing.
fn with_length(mut part: Vec<u8>) -> Vec<u8> {
    part.resize((part.len() + 4).next_multiple_of(8) - 4, 0);
    [&(part.len() as u32).to_le_bytes()[..], &part].concat()
}
