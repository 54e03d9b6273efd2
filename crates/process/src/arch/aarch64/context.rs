//! Contexts that the kernel has saved in the frames of signals (`struct sigcontext`, `arch/arm64/include/uapi/asm/sigcontext.h`).
//!
//! Behind the general registers, the stack pointer, the code address and the processor's state stand records, each with a number and its
//! size. The first one is that of the vector registers, which every kernel saves that has programs:
//!
//! | word, counted from the stack pointer | |
//! |---|---|
//! | 0 | stack pointer |
//! | 1 | code address |
//! | 4 | `FPSIMD_MAGIC`, and the size of `struct fpsimd_context` |

use crate::arch::Interrupted;

/// How much is read of a context from its stack pointer on, at the most, in bytes.
pub const SPAN: u64 = RECORD as u64 + 8;

/// Where the first record is, from the stack pointer on: the registers' size is rounded up to 16.
const RECORD: usize = 32;

/// `FPSIMD_MAGIC`, and `sizeof(struct fpsimd_context)`.
const FIRST: u64 = 0x4650_8001 | 0x210 << 32;

/// See [`Interrupted::all_in`].
pub fn all_in(bytes: &[u8], _word_size: usize) -> Vec<Interrupted> {
    let (words, _) = bytes.as_chunks::<8>();
    let is_first = |word: &[u8; 8]| u64::from_le_bytes(*word) == FIRST;
    let found = words.iter().enumerate().filter(|(_, word)| is_first(word));
    let word = |at: usize| Some(u64::from_le_bytes(*words.get(at)?));
    let context = |(at, _): (usize, _)| {
        let sp = usize::checked_sub(at, RECORD / 8)?;
        Some(Interrupted { ip: word(sp + 1)?, sp: word(sp)? })
    };
    found.filter_map(context).collect()
}

/// What the kernel tells a handler that it has interrupted.
#[cfg(test)]
pub fn told(context: &libc::ucontext_t) -> Interrupted {
    Interrupted { ip: context.uc_mcontext.pc, sp: context.uc_mcontext.sp }
}
