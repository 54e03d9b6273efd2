//! Contexts that the kernel has saved in the frames of signals (`struct sigcontext`, `arch/powerpc/include/uapi/asm/sigcontext.h`).
//!
//! The registers stand there as `struct pt_regs` has them. What is always the same is a part of the machine state, behind the code address:
//! a program runs with 64 bits, in problem state, with address translation, and little endian.
//!
//! | word, counted from the first register | |
//! |---|---|
//! | 1 | stack pointer |
//! | 32 | code address |
//! | 33 | machine state |

use crate::arch::Interrupted;

/// How much is read of a context from its stack pointer on, at the most, in bytes.
pub const SPAN: u64 = 8 * (STATE - STACK_POINTER + 1) as u64;

const STACK_POINTER: usize = 1;
const CODE: usize = 32;
const STATE: usize = 33;

/// `MSR_SF`, `MSR_PR`, `MSR_IR`, `MSR_DR` and `MSR_LE` of `arch/powerpc/include/asm/reg.h`.
const OF_A_PROGRAM: u64 = 1 << 63 | 1 << 14 | 1 << 5 | 1 << 4 | 1;
/// What else may be set in it: the hypervisor's bit, facilities, exceptions of floating-point numbers, and interrupts.
const ANY: u64 = 1 << 60 | 0x0000_000f_0280_bb02 | 1 << 13 | 1 << 25 | 1 << 23;

/// See [`Interrupted::all_in`].
pub fn all_in(bytes: &[u8], _word_size: usize) -> Vec<Interrupted> {
    let (words, _) = bytes.as_chunks::<8>();
    let is_state = |word: &[u8; 8]| u64::from_le_bytes(*word) & !ANY == OF_A_PROGRAM;
    let found = words.iter().enumerate().filter(|(_, word)| is_state(word));
    let word = |at: usize| Some(u64::from_le_bytes(*words.get(at)?));
    let context = |(at, _): (usize, _)| {
        let first = usize::checked_sub(at, STATE)?;
        Some(Interrupted { ip: word(first + CODE)?, sp: word(first + STACK_POINTER)? })
    };
    found.filter_map(context).collect()
}

/// What the kernel tells a handler that it has interrupted.
#[cfg(test)]
pub fn told(context: &libc::ucontext_t) -> Interrupted {
    // The registers follow the stack and the mask of signals, and eight words of the context; see `struct ucontext`.
    let words = (&raw const *context).cast::<u64>();
    // SAFETY: it is within the context, whose bytes the kernel has initialised.
    let word = |at: usize| unsafe { words.add(REGISTERS / 8 + at).read() };
    Interrupted { ip: word(CODE), sp: word(STACK_POINTER) }
}

/// Offset of `uc_mcontext.gp_regs`.
#[cfg(test)]
const REGISTERS: usize = 5 * 8 + 128 + 4 * 8 + 8 + 8 + 8 + 8;
