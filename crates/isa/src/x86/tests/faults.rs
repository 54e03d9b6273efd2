//! Which faults instructions may raise.

use super::hex;
use crate::x86::{I386, X86_64};
use crate::{Faults, Isa};

const AT: u64 = 0x5555_5555_0000;
const NONE: Faults = Faults::NONE;
const MEMORY: Faults = Faults::MEMORY;
const ARITHMETIC: Faults = Faults::ARITHMETIC;
const INVALID: Faults = Faults::INVALID;

#[test]
fn faults_are_told_by_what_may_raise_them() {
    let cases: &[(&str, &str, Faults)] = &[
        ("push rbp; mov rbp,rsp; push rbx", "55 4889e5 53", NONE),
        ("mov rax,[rdi]", "488b07", MEMORY),
        ("mov [rsp-8],rdi", "48897c24f8", NONE),
        ("mov [rsp-0x14000],eax asks for stack", "89842400c0feff", MEMORY),
        ("mov [rsp+rax*8],rdi", "48893cc4", MEMORY),
        ("mov [rbp-8],rdi without a frame", "48897df8", MEMORY),
        ("push rbp; mov rbp,rsp; mov [rbp-8],rdi", "55 4889e5 48897df8", NONE),
        ("mov rax,fs:[0x28]", "64488b042528000000", NONE),
        ("mov rax,[rip+0x10]", "488b0510000000", NONE),
        ("lea rax,[rdi+8]", "488d4708", NONE),
        ("nop [rax]", "0f1f00", NONE),
        ("idiv ecx", "f7f9", ARITHMETIC),
        ("idiv dword [rdi]", "f73f", ARITHMETIC.with(MEMORY)),
        ("movsb", "a4", MEMORY),
        ("call [rdi]", "ff17", MEMORY),
        ("ret", "c3", NONE),
        ("pxor xmm0,xmm0", "660fefc0", NONE),
        ("movaps xmm1,xmm0", "0f28c8", NONE),
        ("addsd xmm0,xmm1", "f20f58c1", ARITHMETIC),
        ("cvtsi2sd xmm0,edi", "f20f2ac7", ARITHMETIC),
        ("fld1", "d9e8", ARITHMETIC),
        ("popcnt eax,edi", "f30fb8c7", INVALID),
        ("vpxor xmm0,xmm0,xmm0", "c5f9efc0", INVALID),
        ("vaddsd xmm0,xmm0,xmm1", "c5fb58c1", INVALID.with(ARITHMETIC)),
        ("rdtsc", "0f31", MEMORY),
        ("xchg eax,ebx", "93", NONE),
    ];
    for (name, code, expected) in cases {
        assert_eq!(X86_64.may_fault(&hex(code), AT), *expected, "{name}");
    }
}

#[test]
fn a_32_bit_processor_need_not_have_sse() {
    assert_eq!(I386.may_fault(&hex("660fefc0"), 0x1000), INVALID);
    assert_eq!(I386.may_fault(&hex("55 89e5"), 0x1000), NONE);
}

#[test]
fn go_functions_that_grow_their_stack_are_told_on_other_machines_too() {
    let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<alloc::vec::Vec<u8>>();
    let targets = crate::BranchTargets::new(alloc::vec![AT]);
    for (words, check) in [
        // b.ls restart; ret; restart: bl morestack; b entry
        (&[0x5400_0049, 0xd65f_03c0, 0x9400_0100, 0x17ff_fffd][..], Some((4, 8..16))),
        (&[0x5400_0049, 0xd65f_03c0, 0x9400_0100, 0xd65f_03c0][..], None),
        (&[0xd65f_03c0, 0x9400_0100, 0x17ff_fffe][..], None),
    ] {
        let code = bytes(words);
        let site = crate::Site::new(AT, &code, &targets);
        let found = crate::Machine::AArch64.isa().stack_check(&site);
        let found = found.map(|check| (check.behind - AT, check.restart.start - AT..check.restart.end - AT));
        assert_eq!(found, check, "{words:x?}");
    }
    for (words, check) in [
        // blt behind; mflr r5; bl morestack; b entry; behind: blr
        (&[0x4180_0010, 0x7ca8_02a6, 0x4800_1001, 0x4bff_fff4, 0x4e80_0020][..], Some((16, 4..16))),
        // The same for a large frame: blt restart; cmpld; blt behind; …
        (
            &[0x4180_000c, 0x7c36_b840, 0x4180_000c, 0x4800_1001, 0x4bff_fff0, 0x4e80_0020][..],
            Some((20, 12..20)),
        ),
        // One branch leads into the middle, and one past a return.
        (&[0x4180_000c, 0x4180_0010, 0x7ca8_02a6, 0x4800_1001, 0x4bff_fff0, 0x4e80_0020][..], None),
        (&[0x4180_0010, 0x4800_1001, 0x4bff_fff8, 0x4e80_0020, 0x4e80_0020][..], None),
        (&[0x4180_0010, 0x7ca8_02a6, 0x4800_1001, 0x4e80_0020, 0x4e80_0020][..], None),
        // A loop leads there, too.
        (&[0x4180_0010, 0x7ca8_02a6, 0x4800_1001, 0x4bff_fff4, 0x6000_0000, 0x4bff_fffc][..], None),
    ] {
        let code = bytes(words);
        let site = crate::Site::new(AT, &code, &targets);
        let found = crate::Machine::PowerPc64Le.isa().stack_check(&site);
        let found = found.map(|check| (check.behind - AT, check.restart.start - AT..check.restart.end - AT));
        assert_eq!(found, check, "{words:x?}");
    }
}
