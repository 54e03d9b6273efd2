//! Machine code of powerpc64le, from Cranelift's IR. Cranelift has none for it.
//!
//! What Cranelift does ahead of that is the same for all machines: it is asked for it with arm64's facts,
//! whose addresses and order of bytes are those here ([`super::isa`]). The rest is done here, for POWER8
//! and ELFv2:
//!
//! - `lower`: blocks, and what all instructions need; `values`, `conditions`, `operations`, `integers`:
//!   each of them, with virtual registers.
//! - `code`: these, as [`regalloc2`] takes them, which gives them registers.
//! - `emit`: words, with what lies behind the code; `frame`: where they have what on the stack.
//! - `words`: how instructions are encoded.
//!
//! What is not known there is refused by its name.

mod code;
mod conditions;
mod emit;
mod frame;
mod integers;
mod lower;
mod operations;
#[cfg(test)]
mod tests;
mod values;
mod words;

use super::Refusal;
use cranelift_codegen::Context;
use regalloc2::RegallocOptions;
use trapless_isa::Machine;
use trapless_isa::body::{Code, Convention};

/// How pieces are called.
const CONVENTION: &Convention = Convention::of(Machine::PowerPc64Le).unwrap();

/// Makes a piece of a function that was optimized. `is_own`: all that it changes is the thread's own.
pub(super) fn compile(context: &Context, is_own: bool) -> Result<Code, Refusal> {
    let lowered = lower::lower(context, is_own)?;
    let options = RegallocOptions { validate_ssa: cfg!(debug_assertions), ..RegallocOptions::default() };
    let allocated = regalloc2::run(&lowered.code, &code::registers(), &options)
        .map_err(|error| Refusal::Compiler(format!("registers: {error}")))?;
    let emit::Emitted { bytes, holes, frame } = emit::emit(&lowered, &allocated)?;
    Ok(Code { bytes, holes, frame, ..Code::default() })
}
