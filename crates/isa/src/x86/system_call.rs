//! The routine of compiled code that makes a system call. Compilers of bodies have no instruction for it.
//!
//! It is called as every routine of a [program](crate::body): it keeps all registers, and changes nothing but the flags and the word that
//! its result goes to. The kernel takes rcx and r11, so these are kept with the others; rflags come back from r11 as they were.

use crate::body::{Code, Takes};

/// rdi: the number of the call. rsi: the address of six words, its arguments; the first becomes the result.
#[rustfmt::skip]
const CODE: [u8; 58] = [
    0x50,                   // push rax
    0x51,                   // push rcx
    0x52,                   // push rdx
    0x57,                   // push rdi
    0x41, 0x50,             // push r8
    0x41, 0x51,             // push r9
    0x41, 0x52,             // push r10
    0x41, 0x53,             // push r11
    0x56,                   // push rsi
    0x48, 0x89, 0xf8,       // mov rax, rdi
    0x48, 0x8b, 0x3e,       // mov rdi, [rsi]
    0x48, 0x8b, 0x56, 0x10, // mov rdx, [rsi+16]
    0x4c, 0x8b, 0x56, 0x18, // mov r10, [rsi+24]
    0x4c, 0x8b, 0x46, 0x20, // mov r8, [rsi+32]
    0x4c, 0x8b, 0x4e, 0x28, // mov r9, [rsi+40]
    0x48, 0x8b, 0x76, 0x08, // mov rsi, [rsi+8]
    0x0f, 0x05,             // syscall
    0x5e,                   // pop rsi
    0x48, 0x89, 0x06,       // mov [rsi], rax
    0x41, 0x5b,             // pop r11
    0x41, 0x5a,             // pop r10
    0x41, 0x59,             // pop r9
    0x41, 0x58,             // pop r8
    0x5f,                   // pop rdi
    0x5a,                   // pop rdx
    0x59,                   // pop rcx
    0x58,                   // pop rax
    0xc3,                   // ret
];

/// The routine.
pub(crate) fn routine() -> Code {
    // Nine registers and the return address.
    Code { bytes: CODE.into(), takes: Takes::NONE, frame: 80, ..Code::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, x86::X86_64};
    use alloc::{string::String, vec::Vec};

    #[test]
    fn what_is_pushed_is_popped_in_turn() {
        let code = routine();
        assert!(code.is_sound(0));
        let (mut at, mut text) = (0, Vec::<String>::new());
        while at < code.bytes.len() {
            text.push(X86_64.disassemble(&code.bytes[at..], 0));
            at += usize::from(X86_64.decode(&code.bytes[at..], 0).unwrap().length);
        }
        let of = |what: &str| -> Vec<String> {
            text.iter().filter_map(|line| line.strip_prefix(what)).map(|line| line.trim().into()).collect()
        };
        let (pushed, mut popped) = (of("push"), of("pop"));
        popped.reverse();
        assert_eq!(pushed, popped);
        assert_eq!(code.frame as usize, 8 * pushed.len() + 8);
        // What the arguments are loaded to, and what the kernel takes.
        for register in ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"] {
            assert!(pushed.iter().any(|name| name == register), "{register}");
        }
        assert!(text.last().is_some_and(|line| line.starts_with("ret")));
    }
}
