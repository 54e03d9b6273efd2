//! Points by which calls go that are followed, and what unwinders are told of them.

use super::{X87_IN_USE, distance, put_back, put_back_vectors, save};
use crate::Reason;
use crate::inside::{Ends, Points, Saved};
use crate::x86::emit::{Assembler, jump_to, unencodable};
use alloc::vec::Vec;
use core::mem::offset_of;
use iced_x86::{IcedError, code_asm::*};

/// `call [rip+disp32]`
const CALL: [u8; 2] = [0xff, 0x15];
const CALL_LENGTH: usize = 6;

/// What FXAM tells in the status word, and that of an empty register.
const X87_KIND: i32 = 0x4500;
const X87_EMPTY: i32 = 0x4100;

/// Exceptions that the status word has, and what FNINIT makes of the control word.
const X87_EXCEPTIONS: i32 = 0x3f;
const X87_CONTROL: i32 = 0x37f;

/// Bytes of a point.
const LENGTH: usize = 32;

/// What FXSAVE writes.
const X87_LENGTH: i32 = 512;

pub(super) fn make(ends: &Ends, at: u64, table: u64) -> Result<Points, Reason> {
    let end = at + (ends.count as usize * LENGTH) as u64;
    let mut code = Vec::with_capacity(ends.count as usize * LENGTH + 4096);
    for n in 0..u64::from(ends.count) {
        code.extend(CALL);
        let target = ends.known + n * LENGTH as u64 + u64::from(ends.target);
        code.extend(distance(at + code.len() as u64 + 4, target)?);
        code.extend(jump_to(64, at + code.len() as u64, end)?);
        code.resize((n as usize + 1) * LENGTH, super::TRAP);
    }
    let mut assembler = Assembler::new(64, end)?;
    leave(&mut assembler.a, ends).map_err(unencodable)?;
    code.extend_from_slice(assembler.finish()?.code());
    let landing = code.len() as u32;
    let mut assembler = Assembler::new(64, at + u64::from(landing))?;
    land(&mut assembler.a, ends).map_err(unencodable)?;
    code.extend_from_slice(assembler.finish()?.code());
    let (unwind, entry) = unwind(ends, at, table)?;
    let given = [RAX_OF_DWARF, RDX_OF_DWARF];
    Ok(Points { code, length: LENGTH as u32, back: CALL_LENGTH as u32, landing, given, unwind, entry })
}

/// Behind a call that has returned. Its result may be in registers of the x87, which handlers may need all of.
fn leave(a: &mut CodeAssembler, ends: &Ends) -> Result<(), IcedError> {
    let [mut no_x87, mut empty, mut none_to_put_back] = [(); 3].map(|()| a.create_label());
    // What the call has put there is there still.
    a.lea(rsp, qword_ptr(rsp - 8))?;
    save(a, ends.vectors)?;
    a.sub(rsp, X87_LENGTH)?;
    a.xor(r12d, r12d)?;
    if ends.vectors.is_some_and(|vectors| vectors.tells_use) {
        a.test(dword_ptr(rbp + offset_of!(Saved, in_use) as i32), X87_IN_USE)?;
        a.je(no_x87)?;
    }
    // 0 where the first of them is empty, as all are then.
    a.fxam()?;
    a.fnstsw(ax)?;
    a.mov(ecx, eax)?;
    a.and(eax, X87_KIND)?;
    a.mov(r12d, eax)?;
    a.sub(r12d, X87_EMPTY)?;
    a.je(empty)?;
    a.fxsave(byte_ptr(rsp))?;
    a.fninit()?;
    a.jmp(no_x87)?;
    a.set_label(&mut empty)?;
    // What was used and has left nothing is made what it was at first, which spares the question the next time.
    a.test(ecx, X87_EXCEPTIONS)?;
    a.jne(no_x87)?;
    a.fnstcw(word_ptr(rsp))?;
    a.cmp(word_ptr(rsp), X87_CONTROL)?;
    a.jne(no_x87)?;
    a.fninit()?;
    a.set_label(&mut no_x87)?;
    a.mov(rdi, rbp)?;
    a.mov(rax, ends.dispatcher)?;
    a.call(rax)?;
    a.test(r12d, r12d)?;
    a.je(none_to_put_back)?;
    // That of vectors comes behind this.
    a.fxrstor(byte_ptr(rsp))?;
    a.set_label(&mut none_to_put_back)?;
    a.add(rsp, X87_LENGTH)?;
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

/// DWARF's operators of expressions, instructions of a table and ways to give an address (DWARF 5, 7.7.1 and 7.24; LSB 5, 10.5).
mod dwarf {
    pub const DEREF: u8 = 0x06;
    pub const CONST4S: u8 = 0x0d;
    pub const MINUS: u8 = 0x1c;
    pub const PLUS: u8 = 0x22;
    pub const LIT8: u8 = 0x38;
    pub const CFA_DEF_CFA: u8 = 0x0c;
    pub const CFA_EXPRESSION: u8 = 0x10;
    pub const ABSOLUTE: u8 = 0x00;
    pub const RELATIVE: u8 = 0x1b;
}

/// The table, for the address `table`, and where its entry begins. The stack pointer is the caller's already; what is on the stack below it tells the point,
/// and so far from that is what is known of it, which begins with the caller's address.
fn unwind(ends: &Ends, at: u64, table: u64) -> Result<(Vec<u8>, u32), Reason> {
    use dwarf::*;
    let to_known = distance(at + CALL_LENGTH as u64, ends.known)?;
    let expression = [&[LIT8, MINUS, DEREF, CONST4S][..], &to_known, &[PLUS]].concat();
    // An identifier of 0, version 1; alignments of 1 and -8; a personality, and how addresses are given.
    let mut common = [&[0, 0, 0, 0, 1][..], b"zPR\0", &[1, 0x78, RETURN_ADDRESS, 10, ABSOLUTE]].concat();
    common.extend(ends.personality.to_le_bytes());
    common.push(RELATIVE);
    common.extend([CFA_DEF_CFA, RSP_OF_DWARF, 0, CFA_EXPRESSION, RETURN_ADDRESS, expression.len() as u8]);
    common.extend(expression);
    let mut all = with_length(common);
    let entry = all.len() as u32;
    // How far back the common part is; the range, and nothing of its own.
    let begins = distance(table + u64::from(entry) + 8, at)?;
    let length = (ends.count * LENGTH as u32).to_le_bytes();
    all.extend(with_length([&(entry + 4).to_le_bytes()[..], &begins, &length, &[0]].concat()));
    all.extend([0; 4]);
    Ok((all, entry))
}

/// A part of a table, which is filled up by instructions that do nothing.
fn with_length(mut part: Vec<u8>) -> Vec<u8> {
    part.resize((part.len() + 4).next_multiple_of(8) - 4, 0);
    [&(part.len() as u32).to_le_bytes()[..], &part].concat()
}
