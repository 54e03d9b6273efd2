//! Contexts that the kernel has saved in the frames of signals (`struct sigcontext_64` and `struct
//! sigcontext_32`, `arch/x86/include/uapi/asm/sigcontext.h`).
//!
//! What surrounds a context differs, and a handler's return address is gone from the stack when it returns.
//! What is always there is the user's code segment and the user's stack segment, at their places behind the
//! stack pointer:
//!
//! | word, counted from the stack pointer | of 8 bytes | of 4 bytes |
//! |---|---|---|
//! | instruction pointer | 1 | 7 |
//! | code segment | 3, lowest 16 bits | 8 |
//! | stack segment | 3, highest 16 bits | 11 |
//!
//! Between the two segments, in 64 bits, are those of gs and fs, for which the kernel writes 0.

use crate::arch::Interrupted;

/// How much is read of a context from its stack pointer on, at the most, in bytes.
pub const SPAN: u64 = 48;

/// See [`Interrupted::all_in`].
pub fn all_in(bytes: &[u8], word_size: usize) -> Vec<Interrupted> {
    /// Looked at together: nearly never is there anything.
    const TOGETHER: usize = 256;
    let mut all = Vec::new();
    for (block, at) in bytes.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
        match word_size {
            8 if block.as_chunks().0.iter().fold(false, |any, word| any | are_segments(*word)) => {
                let words = block.as_chunks().0.iter().zip((at..).step_by(8));
                let found = words.filter(|(word, _)| are_segments(**word));
                all.extend(found.filter_map(|(_, at)| long_at(bytes, at)));
            }
            4 if block.as_chunks().0.iter().fold(false, |any, word| any | is_code(*word)) => {
                let words = block.as_chunks().0.iter().zip((at..).step_by(4));
                let found = words.filter(|(word, _)| is_code(**word));
                all.extend(found.filter_map(|(_, at)| compat_at(bytes, at)));
            }
            _ => {}
        }
    }
    all
}

// `__USER32_CS`, `__USER_CS` and `__USER_DS` of `arch/x86/include/asm/segment.h`. The two code segments
// differ in one bit.
const CODE: u16 = 0x23;
const CODE_LONG: u16 = 0x33;
const STACK: u16 = 0x2b;
/// The bits by which Xen's own differ from these, that a guest's thread may be seen in.
const XEN: u16 = 0xe000;

/// Whether a word of 64 bits holds the segments.
fn are_segments(word: [u8; 8]) -> bool {
    const ANY: u64 = (CODE ^ CODE_LONG | XEN) as u64 | (XEN as u64) << 48;
    const WANTED: u64 = CODE as u64 | (STACK as u64) << 48;
    u64::from_le_bytes(word) & !ANY == WANTED
}

/// The segments under a kernel of 32 bits: `__USER_CS` and `__USER_DS` there. Only a tool of as many bits runs under one.
const NATIVE: Option<[u32; 2]> = if cfg!(target_arch = "x86") { Some([0x73, 0x7b]) } else { None };

/// Whether a word of 32 bits is the code segment.
fn is_code(word: [u8; 4]) -> bool {
    const ANY: u32 = (CODE ^ CODE_LONG) as u32;
    let word = u32::from_le_bytes(word);
    word & !ANY == CODE as u32 || NATIVE.is_some_and(|[code, _]| word == code)
}

/// The context whose segments are at this offset.
fn long_at(bytes: &[u8], segments: usize) -> Option<Interrupted> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let sp = segments.checked_sub(3 * 8)?;
    Some(Interrupted { ip: word(sp + 8)?, sp: word(sp)? })
}

/// The context whose code segment is at this offset.
fn compat_at(bytes: &[u8], code: usize) -> Option<Interrupted> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let sp = code.checked_sub(8 * 4)?;
    let stack = NATIVE
        .filter(|[code, _]| word(sp + 8 * 4) == Some(*code))
        .map_or(u32::from(STACK), |[_, stack]| stack);
    let is_context = word(sp + 11 * 4)? == stack;
    is_context.then_some(Interrupted { ip: word(sp + 7 * 4)?.into(), sp: word(sp)?.into() })
}

/// What the kernel tells a handler that it has interrupted.
#[cfg(test)]
pub fn told(context: &libc::ucontext_t) -> Interrupted {
    let register = |index: i32| context.uc_mcontext.gregs[index as usize] as u64;
    #[cfg(target_arch = "x86_64")]
    return Interrupted { ip: register(libc::REG_RIP), sp: register(libc::REG_RSP) };
    // Negative numbers are not sign-extended there.
    #[cfg(target_arch = "x86")]
    return Interrupted {
        ip: register(libc::REG_EIP) & 0xffff_ffff,
        sp: register(libc::REG_ESP) & 0xffff_ffff,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(ip: u64, sp: u64, segments: u64) -> Vec<u8> {
        [sp, ip, 0x202, segments].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn compat(ip: u32, sp: u32, code: u32, stack: u32) -> Vec<u8> {
        let words = [sp, 1, 2, 3, 4, 14, 4, ip, code, 0x202, sp, stack];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn contexts_are_known_by_their_segments() {
        let found = Some(Interrupted { ip: 0x40_1001, sp: 0x7ff0_0010 });
        let wide = |segments| (8, long(0x40_1001, 0x7ff0_0010, segments));
        let narrow = |code, stack| (4, compat(0x40_1001, 0x7ff0_0010, code, stack));
        for ((word_size, context), expected) in [
            (wide(0x002b_0000_0000_0033), found),
            (wide(0x002b_0000_0000_0023), found),
            (wide(0xe02b_0000_0000_e033), found),
            (wide(0x0000_0000_0000_0033), None),
            (wide(0x002b_0000_0001_0033), None),
            (wide(0x002b_0000_0000_0010), None),
            (narrow(0x23, 0x2b), found),
            (narrow(0x33, 0x2b), found),
            (narrow(0x23, 0), None),
            (narrow(0x1_0023, 0x2b), None),
            (narrow(0x2b, 0x2b), None),
            (narrow(0x73, 0x7b), found.filter(|_| NATIVE.is_some())),
            (narrow(0x73, 0x2b), None),
            (narrow(0x23, 0x7b), None),
        ] {
            // At each place of what is looked at together, and over its end.
            for before in (0..600).step_by(word_size) {
                let mut bytes = vec![0; before];
                bytes.extend(&context);
                assert_eq!(all_in(&bytes, word_size), Vec::from_iter(expected));
                // What is cut off at either end is none.
                assert_eq!(all_in(&bytes[..bytes.len() - word_size], word_size), []);
                if before == 0 {
                    assert_eq!(all_in(&bytes[word_size..], word_size), []);
                }
            }
        }
    }
}
