//! The routine of compiled code that makes a system call. Compilers of bodies have no instruction for it.
//!
//! It is called as every routine of a [program](crate::body): it keeps all registers, and changes nothing but the word that its result goes
//! to. The kernel keeps all but x0, but where vectors are longer than 128 bits: what lies beyond those it makes zeros.

use super::emit::instruction as a;
use super::frame::register::SP;
use crate::body::{Code, Takes};
use alloc::vec::Vec;

/// Bytes that it saves registers in.
const FRAME: i32 = 64;

/// x0: the number of the call. x1: the address of six words, its arguments; the first becomes the result.
pub(crate) fn routine() -> Code {
    let code = [
        a::stp_pre(0, 1, SP, -FRAME),
        a::stp(2, 3, SP, 16),
        a::stp(4, 5, SP, 32),
        a::stp(8, 9, SP, 48),
        a::mov(8, 0),
        a::mov(9, 1),
        a::ldp(0, 1, 9, 0),
        a::ldp(2, 3, 9, 16),
        a::ldp(4, 5, 9, 32),
        a::SVC,
        a::str(0, 9, 0),
        a::ldp(8, 9, SP, 48),
        a::ldp(4, 5, SP, 32),
        a::ldp(2, 3, SP, 16),
        a::ldp_post(0, 1, SP, FRAME),
        a::RET,
    ];
    let bytes: Vec<u8> = code.into_iter().flat_map(u32::to_le_bytes).collect();
    Code { bytes, takes: Takes::NONE, frame: FRAME as u32, vectors: true, ..Code::default() }
}
