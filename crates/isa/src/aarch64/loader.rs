//! The routine that loads a library ([`crate::loader`]).
//!
//! ```text
//!     saves everything
//!     errno, dlopen, dlsym, dlerror
//!     puts everything back, and goes on at the function
//!     the path, the function's name
//! ```
//!
//! All general registers are saved, though the C convention has functions keep some: what a caller knows of the probed function may be more (`-fipa-ra`).
//! So are all of the vector registers, by their whole length, with the predicates and the first-fault register: at the entry of a function of the vector
//! conventions (`STO_AARCH64_VARIANT_PCS`) they hold arguments, and what it has to keep. A thread in streaming mode is not sent here.

use super::emit::{Code, Label, instruction as a};
use super::frame::register::{LINK, SP};
use crate::Reason;
use crate::loader::*;
use alloc::vec::Vec;

/// `RTLD_NOW`, and neither `RTLD_GLOBAL` nor anything else (`bits/dlfcn.h`): what is missing shows at once, and nobody else's names change.
const NOW: u16 = 2;

/// `PTHREAD_CANCEL_DISABLE` (`pthread.h`).
const CANCEL_DISABLE: u16 = 1;

/// The frame: the general registers, which x30 and the flags end, the status and the control register of floating-point numbers, and the low
/// halves of the vector registers where there is no more of them.
const FLAGS: i32 = 31 * 8;
const FLOATS: i32 = FLAGS + 8;
const VECTORS: u32 = FLOATS as u32 + 16;
const VECTORS_LENGTH: u32 = 32 * 16;

/// Below it, where vectors are scalable, in lengths of one: sixteen predicates and the first-fault register, an eighth each, and the vectors.
const PREDICATES: u32 = 16;
const AHEAD: u32 = 3;
const LONG: i32 = 32;

/// Registers that functions keep: the frame, the words, and `errno` with what was in it.
const FRAME: u32 = 19;
const WORDS: u32 = 20;
const ERRNO: u32 = 21;
const ERROR: u32 = 22;
/// By which functions are called (IP0).
const BY: u32 = 16;

pub(super) fn make(loader: &Loader<'_>, at: u64) -> Result<Vec<u8>, Reason> {
    let mut code = Code::new(at);
    let is_scalable = match loader.beyond {
        Beyond::Nothing => false,
        Beyond::Scalable => true,
        Beyond::Components(_) => return Err(Reason::NoReplacement),
    };
    if loader.caller.is_some() {
        return Err(Reason::NoReplacement);
    }
    save(&mut code, is_scalable);
    let texts = [loader.path, loader.symbol].map(|text| (code.label(), text));
    load(&mut code, loader, texts.map(|text| text.0));
    put_back(&mut code, is_scalable);
    code.branch(loader.way)?;
    for (label, text) in texts {
        code.bind(label);
        let ended: Vec<u8> = text.iter().copied().chain([0; 4]).collect();
        code.emit(ended.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
    }
    code.finish()
}

/// Pairs of the registers up to x29.
fn pairs() -> impl Iterator<Item = (u32, i32)> {
    (0..30).step_by(2).map(|register| (register, 8 * register as i32))
}

fn vector_pairs() -> impl Iterator<Item = (u32, u32)> {
    (0..32).step_by(2).map(|register| (register, VECTORS + 16 * register))
}

/// Saves everything, with [`FRAME`] at it.
fn save(code: &mut Code, is_scalable: bool) {
    let length = VECTORS + if is_scalable { 0 } else { VECTORS_LENGTH };
    code.emit([a::sub_immediate(SP, SP, length)]);
    code.emit(pairs().map(|(register, place)| a::stp(register, register + 1, SP, place)));
    code.emit([a::mrs_flags(0), a::stp(LINK, 0, SP, FLAGS - 8)]);
    code.emit([a::mrs_float_flags(0), a::mrs_float_control(1), a::stp(0, 1, SP, FLOATS)]);
    code.emit([a::add_immediate(FRAME, SP, 0)]);
    if !is_scalable {
        return code.emit(vector_pairs().map(|(vector, place)| a::stp_q(vector, vector + 1, SP, place)));
    }
    code.emit([a::addvl(SP, SP, -LONG), a::addvl(SP, SP, -(AHEAD as i32))]);
    code.emit((0..32).map(|vector| a::str_z(vector, SP, AHEAD + vector)));
    code.emit((0..16).map(|predicate| a::str_p(predicate, SP, predicate)));
    code.emit([a::rdffr(0), a::str_p(0, SP, PREDICATES)]);
}

/// Puts it back.
fn put_back(code: &mut Code, is_scalable: bool) {
    if is_scalable {
        code.emit([a::ldr_p(0, SP, PREDICATES), a::wrffr(0)]);
        code.emit((0..16).map(|predicate| a::ldr_p(predicate, SP, predicate)));
        code.emit((0..32).map(|vector| a::ldr_z(vector, SP, AHEAD + vector)));
    } else {
        code.emit(vector_pairs().map(|(vector, place)| a::ldp_q(vector, vector + 1, SP, place)));
    }
    code.emit([a::add_immediate(SP, FRAME, 0), a::ldp(0, 1, SP, FLOATS)]);
    code.emit([a::msr_float_flags(0), a::msr_float_control(1)]);
    code.emit([a::ldp(LINK, 0, SP, FLAGS - 8), a::msr_flags(0)]);
    code.emit(pairs().map(|(register, place)| a::ldp(register, register + 1, SP, place)));
    let length = VECTORS + if is_scalable { 0 } else { VECTORS_LENGTH };
    code.emit([a::add_immediate(SP, SP, length)]);
}

/// What is done meanwhile.
fn load(code: &mut Code, loader: &Loader<'_>, [path, symbol]: [Label; 2]) {
    let [failed, copy, copied, done] = [(); 4].map(|()| code.label());
    code.load(WORDS, loader.words);
    // Where the former state of cancellation is.
    code.emit([a::sub_immediate(SP, SP, 16)]);
    stage(code, Stage::Begun);
    call(code, loader.errno);
    code.emit([a::mov(ERRNO, 0), a::ldr_w(ERROR, ERRNO, 0)]);
    if let Some(cancel) = loader.cancel {
        code.emit([a::movz(0, CANCEL_DISABLE, 0), a::add_immediate(1, SP, 0)]);
        call(code, cancel);
    }
    code.emit_to(a::adr(0), path);
    code.emit([a::movz(1, NOW, 0)]);
    call(code, loader.open);
    code.emit([a::str(0, WORDS, LOAD_HANDLE)]);
    code.emit_to(a::cbz(0), failed);
    code.emit_to(a::adr(1), symbol);
    call(code, loader.find);
    code.emit([a::str(0, WORDS, LOAD_ADDRESS)]);
    code.emit_to(a::cbnz(0), done);

    code.bind(failed);
    call(code, loader.error);
    code.emit_to(a::cbz(0), done);
    code.emit([a::movz(1, 0, 0)]);
    code.bind(copy);
    code.emit([a::add(2, 0, 1, 0), a::ldrb(3, 2)]);
    code.emit_to(a::cbz(3), copied);
    code.emit([a::add(2, WORDS, 1, 0), a::strb(3, 2, LOAD_TEXT), a::add_immediate(1, 1, 1)]);
    code.emit([a::sub_immediate(2, 1, LOAD_MOST_TEXT)]);
    code.emit_to(a::cbnz(2), copy);
    code.bind(copied);
    code.emit([a::str(1, WORDS, LOAD_LENGTH)]);

    code.bind(done);
    if let Some(cancel) = loader.cancel {
        code.emit([a::ldr_w(0, SP, 0), a::movz(1, 0, 0)]);
        call(code, cancel);
    }
    code.emit([a::str_w(ERROR, ERRNO, 0)]);
    stage(code, Stage::Done);
    code.emit([a::add_immediate(SP, SP, 16)]);
}

/// What was stored before is seen by who sees this.
fn stage(code: &mut Code, stage: Stage) {
    const { assert!(LOAD_STAGE == 0) };
    code.load(BY, stage as u64);
    code.emit([a::stlr(BY, WORDS)]);
}

fn call(code: &mut Code, address: u64) {
    code.load(BY, address);
    code.emit([a::blr(BY)]);
}
