//! Relocation: (name, original bytes with their assembly, destination, expected bytes).

use super::hex;
use crate::x86::relocate;
use crate::{Displaced, Reason};

const AT: u64 = 0x5555_5555_1000;
/// One megabyte further.
const NEAR: u64 = AT + 0x10_0000;
/// Out of the reach of a rel32.
const FAR: u64 = 0x7fff_0000_0000;

fn moved(bits: u32, address: u64, code: &str, instructions: u8, destination: u64) -> Result<String, Reason> {
    let original = hex(code);
    let displaced = Displaced { start: address, length: original.len() as u8, instructions };
    let relocated = relocate(bits, &displaced, &original, destination)?;
    assert_eq!(relocated.places.len(), usize::from(instructions));
    assert_eq!(relocated.places[0], (address, 0));
    Ok(relocated.code.iter().map(|b| alloc::format!("{b:02x}")).collect())
}

use alloc::string::String;

#[test]
fn bytes_are_edited_and_no_more() {
    let cases: &[(&str, &str, u8, u64, &str)] = &[
        ("push rbp; mov rbp,rsp", "55 4889e5", 2, NEAR, "55 4889e5"),
        ("redundant prefixes stay: es mov", "26 2e 6689c0", 1, NEAR, "26 2e 6689c0"),
        ("the longer of two encodings stays: add eax,1", "81c001000000", 1, NEAR, "81c001000000"),
        ("mov rax,[rip+0x10]", "488b0510000000", 1, NEAR, "488b051000f0ff"),
        ("lock add [rip+0x10],rax", "f048010510000000", 1, NEAR, "f048010510 00f0ff"),
        ("gs mov eax,[rip+0x10]", "658b0510000000", 1, NEAR, "658b051000f0ff"),
        ("cmp byte [rip+0x10],7", "803d1000000007", 1, NEAR, "803d1000f0ff07"),
        ("vmovdqu ymm0,[rip+0x10]", "c5fe6f0510000000", 1, NEAR, "c5fe6f051000f0ff"),
        ("vmovdqu64 zmm0,[rip+0x10]", "62f1fe486f0510000000", 1, NEAR, "62f1fe486f051000f0ff"),
        ("lea rax of the region itself", "488d05f9ffffff", 1, NEAR, "488d05f9ffefff"),
        ("jmp short", "eb10", 1, NEAR, "e90d00f0ff"),
        ("jmp short, far", "eb10", 1, FAR, "ff2500000000 1210555555550000"),
        ("jmp near", "e910000000", 1, NEAR, "e91000f0ff"),
        ("bnd jmp", "f2e910000000", 1, NEAR, "f2e91000f0ff"),
        ("notrack jmp rax", "3effe0", 1, FAR, "3effe0"),
        ("jmp [rip+0x10]", "ff2510000000", 1, NEAR, "ff251000f0ff"),
        ("je short", "7410", 1, NEAR, "0f840c00f0ff"),
        ("jne short with a hint", "3e7510", 1, NEAR, "3e0f850c00f0ff"),
        ("data16 rex.W jne", "6648 7510", 1, NEAR, "0f850e00f0ff"),
        ("data16 bnd rex.W jne near", "66f248 0f8510000000", 1, NEAR, "f2 0f851200f0ff"),
        ("jg near, far", "0f8f10000000", 1, FAR, "7e0e ff2500000000 1610555555550000"),
        ("loop", "e210", 1, NEAR, "e202 eb05 e90900f0ff"),
        ("jecxz", "67e310", 1, NEAR, "67e302 eb05 e90900f0ff"),
        ("jrcxz, far", "e310", 1, FAR, "e302 eb0e ff2500000000 1210555555550000"),
        ("a loop to the first instruction", "4889c8 e2fb", 2, NEAR, "4889c8 e202 eb05 e9f4ffffff"),
        ("xbegin", "c7f810000000", 1, NEAR, "c7f81000f0ff"),
        ("call", "e810000000", 1, NEAR, "6805105555 c744240455550000 e90300f0ff"),
        ("call, far", "e810000000", 1, FAR, "6805105555 c744240455550000 ff2500000000 1510555555550000"),
        ("call rax", "ffd0", 1, NEAR, "6802105555 c744240455550000 ffe0"),
        ("call r11", "41ffd3", 1, NEAR, "6803105555 c744240455550000 41ffe3"),
        ("notrack call rax", "3effd0", 1, NEAR, "6803105555 c744240455550000 3effe0"),
        ("call [rsp]", "ff1424", 1, NEAR, "6803105555 c744240455550000 ffa42408000000"),
        ("call [rsp+0x40]", "ff542440", 1, NEAR, "6804105555 c744240455550000 ffa42448000000"),
        ("call [rsp+rbx*8+8]", "ff54dc08", 1, NEAR, "6804105555 c744240455550000 ffa4dc10000000"),
        (
            "call [r12+8], which only looks like rsp",
            "41ff542408",
            1,
            NEAR,
            "6805105555 c744240455550000 41ff642408",
        ),
        ("call [rip+0x10]", "ff1510000000", 1, NEAR, "6806105555 c744240455550000 ff250300f0ff"),
        ("call fs:[0x10]", "64ff142510000000", 1, NEAR, "6808105555 c744240455550000 64ff242510000000"),
        ("padding is left out", "c3 90909090", 1, NEAR, "c3"),
    ];
    for (name, code, instructions, destination, expected) in cases {
        let expected: String = expected.split_whitespace().collect();
        assert_eq!(moved(64, AT, code, *instructions, *destination), Ok(expected), "{name}");
    }
}

#[test]
fn low_addresses_need_one_push() {
    assert_eq!(moved(64, 0x40_1000, "e810000000", 1, 0x50_1000).as_deref(), Ok("6805104000e90b00f0ff"));
    // The sign extension of the immediate would not do.
    let high = moved(64, 0x8000_1000, "ffd0", 1, 0x8010_1000);
    assert_eq!(high.as_deref(), Ok("6802100080c744240400000000ffe0"));
}

#[test]
fn bytes_are_edited_in_32_bit_mode() {
    let (at, there) = (0x0804_8000, 0xf700_0000);
    let cases: &[(&str, &str, &str)] = &[
        ("call", "e810000000", "6805800408 e90b800411"),
        ("get-PC: call next", "e800000000", "6805800408 e9fb7f0411"),
        ("call eax", "ffd0", "6802800408 ffe0"),
        ("call [esp+4]", "ff542404", "6804800408 ffa42408000000"),
        ("call gs:[0x10]", "65ff1510000000", "6807800408 65ff2510000000"),
        ("absolute operands stay", "8b1510000000", "8b1510000000"),
        ("jmp, the long way round", "eb10", "e90d800411"),
        ("jcxz", "67e310", "67e302 eb05 e909800411"),
        ("inc eax is no REX", "40", "40"),
    ];
    for (name, code, expected) in cases {
        let expected: String = expected.split_whitespace().collect();
        let found = moved(32, at, code, 1, there);
        assert_eq!(found, Ok(expected), "{name}");
    }
}

const BELOW: Reason = Reason::Unmovable("a call through memory below the stack pointer");

#[test]
fn what_cannot_be_moved_is_refused() {
    let cases: &[(&str, &str, u8, u64, Reason)] = &[
        ("operand out of reach", "488b0510000000", 1, FAR, Reason::OutOfReach),
        ("abort handler out of reach", "c7f810000000", 1, FAR, Reason::OutOfReach),
        ("call that is not last", "ffd0 90", 2, NEAR, Reason::CallInside),
        ("branch into the region", "eb01 90 90", 3, NEAR, Reason::BranchInto(AT + 3)),
        ("bytes that are cut off", "488b05", 1, NEAR, Reason::NotAnInstruction),
        ("fewer bytes than instructions", "55", 2, NEAR, Reason::NotAnInstruction),
        ("syscall", "0f05", 1, NEAR, Reason::Unmovable("syscall")),
        ("int3", "cc", 1, NEAR, Reason::Traps),
        ("call [rsp-8]", "ff5424f8", 1, NEAR, BELOW),
        ("call [rsp+0x7ffffffc]", "ff9424fcffff7f", 1, NEAR, BELOW),
    ];
    for (name, code, instructions, destination, reason) in cases {
        assert_eq!(moved(64, AT, code, *instructions, *destination), Err(*reason), "{name}");
    }
}

#[test]
fn the_end_of_reach_is_exact() {
    // jmp to AT+0x12 from a copy whose end lies 2^31-1 before it, and one byte further.
    let last = AT + 0x12 - 0x7fff_ffff - 5;
    assert_eq!(moved(64, AT, "eb10", 1, last).as_deref(), Ok("e9ffffff7f"));
    assert_eq!(moved(64, AT, "eb10", 1, last - 1).map(|code| code.len()), Ok(28));
    // A jcc is a byte longer than the jump in its island: where the jcc fails the jump may still reach.
    let last = AT + 0x12 + 0x8000_0000 - 6;
    assert_eq!(moved(64, AT, "7410", 1, last).as_deref(), Ok("0f8400000080"));
    assert_eq!(moved(64, AT, "7410", 1, last + 1).map(|code| code.len()), Ok(32));
    let last = AT + 0x12 - 0x7fff_ffff - 6;
    assert_eq!(moved(64, AT, "7410", 1, last).as_deref(), Ok("0f84ffffff7f"));
    assert_eq!(moved(64, AT, "7410", 1, last - 1).as_deref(), Ok("7505e9ffffff7f"));
    assert_eq!(moved(64, AT, "7410", 1, last - 2).as_deref(), Ok("750eff25000000001210555555550000"));
}
