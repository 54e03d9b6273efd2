//! The routine that loads a library ([`crate::loader`]).
//!
//! ```text
//!     entry:      says where the words are; jmp handling
//!     dispatcher: errno, dlopen, dlsym, dlerror
//!     the path, the function's name
//!     handling:   saves everything, calls the dispatcher, puts everything back, and goes on at the function
//! ```

use super::Wide;
use crate::Reason;
use crate::inside::{Handling, Inside, Saved};
use crate::loader::*;
use crate::x86::emit::{Assembler, unencodable};
use alloc::vec::Vec;
use core::mem::offset_of;
use iced_x86::{IcedError, code_asm::*};

/// `RTLD_NOW`, and neither `RTLD_GLOBAL` nor anything else (`bits/dlfcn.h`): what is missing shows at once, and nobody else's names change.
const NOW: i32 = 2;

/// `PTHREAD_CANCEL_DISABLE` (`pthread.h`).
const CANCEL_DISABLE: i32 = 1;

pub(in crate::x86) fn make(loader: &Loader<'_>, at: u64) -> Result<Vec<u8>, Reason> {
    let dispatcher = at + Wide.entry_length() as u64;
    let mut assembler = Assembler::new(64, dispatcher)?;
    dispatch(&mut assembler.a, loader).map_err(unencodable)?;
    let mut middle = assembler.finish()?.code().to_vec();
    middle.resize(middle.len().next_multiple_of(16), super::TRAP);
    let handling = dispatcher + middle.len() as u64;
    if loader.caller.is_some() {
        return Err(Reason::NoReplacement);
    }
    let vectors = match loader.beyond {
        Beyond::Nothing => None,
        Beyond::Components(vectors) => Some(vectors),
        Beyond::Scalable => return Err(Reason::NoReplacement),
    };
    let mut code = Wide.entry(loader.words, handling);
    code.extend(middle);
    code.extend(Wide.handling(&Handling { dispatcher, vectors }, handling)?);
    Ok(code)
}

/// `extern "C" fn(*mut Saved, words)`
fn dispatch(a: &mut CodeAssembler, loader: &Loader<'_>) -> Result<(), IcedError> {
    let [mut failed, mut copy, mut copied, mut done, mut path, mut symbol] =
        [(); 6].map(|()| a.create_label());
    let word = |offset: u32| qword_ptr(rbx + offset);
    let kept = [rbx, rbp, r12, r13];
    kept.into_iter().try_for_each(|register| a.push(register))?;
    // With the return address, that is a multiple of 16.
    a.sub(rsp, 8)?;
    a.mov(rbx, rsi)?;
    a.mov(rax, loader.way)?;
    a.mov(qword_ptr(rdi + offset_of!(Saved, way) as i32), rax)?;
    a.mov(word(LOAD_STAGE), Stage::Begun as i32)?;
    call(a, loader.errno)?;
    a.mov(r12, rax)?;
    a.mov(r13d, dword_ptr(rax))?;
    if let Some(cancel) = loader.cancel {
        a.mov(edi, CANCEL_DISABLE)?;
        a.mov(rsi, rsp)?;
        call(a, cancel)?;
    }
    a.lea(rdi, qword_ptr(path))?;
    a.mov(esi, NOW)?;
    call(a, loader.open)?;
    a.mov(word(LOAD_HANDLE), rax)?;
    a.test(rax, rax)?;
    a.je(failed)?;
    a.mov(rdi, rax)?;
    a.lea(rsi, qword_ptr(symbol))?;
    call(a, loader.find)?;
    a.mov(word(LOAD_ADDRESS), rax)?;
    a.test(rax, rax)?;
    a.jne(done)?;

    a.set_label(&mut failed)?;
    call(a, loader.error)?;
    a.test(rax, rax)?;
    a.je(done)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut copy)?;
    a.mov(dl, byte_ptr(rax + rcx))?;
    a.test(dl, dl)?;
    a.je(copied)?;
    a.mov(byte_ptr(rbx + rcx + LOAD_TEXT), dl)?;
    a.inc(ecx)?;
    a.cmp(ecx, LOAD_MOST_TEXT as i32)?;
    a.jb(copy)?;
    a.set_label(&mut copied)?;
    a.mov(word(LOAD_LENGTH), rcx)?;

    a.set_label(&mut done)?;
    if let Some(cancel) = loader.cancel {
        a.mov(edi, dword_ptr(rsp))?;
        a.xor(esi, esi)?;
        call(a, cancel)?;
    } else {
        a.zero_bytes()?;
    }
    a.mov(dword_ptr(r12), r13d)?;
    a.mov(word(LOAD_STAGE), Stage::Done as i32)?;
    a.add(rsp, 8)?;
    kept.into_iter().rev().try_for_each(|register| a.pop(register))?;
    a.ret()?;
    for (label, text) in [(&mut path, loader.path), (&mut symbol, loader.symbol)] {
        a.set_label(label)?;
        a.db(text)?;
        a.db(&[0])?;
    }
    Ok(())
}

fn call(a: &mut CodeAssembler, address: u64) -> Result<(), IcedError> {
    a.mov(rax, address)?;
    a.call(rax)
}
