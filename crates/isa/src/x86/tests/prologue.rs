//! Prologues as tables: code, and how much of it is emulated in one trap.

use super::hex;
use crate::EmulateError;
use crate::emulate::Stopped;
use crate::x86::prologue::together;
use crate::x86::prologue::{emulate_all, leads_to, prologue};
use crate::{BranchTargets, Displaced, Site};

const SITE: u64 = 0x40_0000;

/// The instruction at the site.
fn first(code: &[u8], bits: u32) -> Displaced {
    let (instruction, _) = super::super::decode::decode_one(bits, code, SITE).unwrap();
    Displaced { start: SITE, length: instruction.len() as u8, instructions: 1 }
}

#[test]
fn instructions_join_as_long_as_the_hit_gets_no_dearer() {
    for (name, bits, code, instructions) in [
        ("all pushes of a prologue", 64, "4157 4156 4155 4154 55 53 4883ec18", 6),
        ("in 32-bit mode, too", 32, "55 57 56 53 83ec1c", 4),
        ("a push of an immediate", 64, "6a05 55 c3", 2),
        ("nops between", 64, "55 90 0f1f4000 53 c3", 4),
        ("not what would set all registers", 64, "55 4889e5 53", 1),
        ("registers and flags", 64, "4883ec18 31c0 89fb 488d3c24 39f8 c3", 5),
        ("not what would write", 64, "89fb 55", 1),
        ("not what would read", 64, "55 ff36", 1),
        ("a push that reads is alone", 64, "ff36 55", 1),
        ("a load is alone", 64, "8b07 89c3", 1),
        ("a store is alone", 64, "8907 89c3", 1),
        ("a branch ends it", 64, "31c0 7402 89c3", 1),
        ("nothing joins a nop", 64, "90 55", 1),
        ("a pop is alone", 64, "5b 5d", 1),
        ("not what is not emulated", 64, "31c0 0fa2", 1),
        ("no more than a dozen", 64, "5050505050505050505050505050505050", 12),
    ] {
        let code = hex(code);
        let together = together(bits, first(&code, bits), &code, u64::MAX);
        assert_eq!(together.instructions, instructions, "{name}");
        let mut decoder = super::super::decode::decoder(bits, &code, SITE);
        let last = decoder.iter().take(instructions.into()).last().unwrap();
        assert_eq!(together.end(), last.next_ip(), "{name}");
    }
}

#[test]
fn it_ends_where_a_branch_or_another_probe_may_begin() {
    let code = hex("4157 4156 4155 4154 55 53");
    for (end, instructions) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (9, 5), (10, 6), (100, 6)] {
        let first = first(&code, 64);
        assert_eq!(together(64, first, &code, SITE + end).instructions, instructions, "up to {end}");
        let [none, target] =
            [&[][..], &[SITE, SITE + end]].map(|targets| BranchTargets::new(targets.to_vec()));
        for (targets, next) in [(&none, Some(SITE + end)), (&target, None)] {
            let site = Site::new(SITE, &code, targets);
            // The site itself is no end.
            if end > 0 {
                assert_eq!(prologue(64, &site, first, next).instructions, instructions, "up to {end}");
            }
        }
    }
    // The function's last bytes are half an instruction.
    let cut = &code[..7];
    assert_eq!(together(64, first(cut, 64), cut, u64::MAX).instructions, 3);
}

#[test]
fn where_an_instruction_leads_that_changes_nothing_else() {
    for (name, bits, code, to) in [
        ("nop", 64, "90", Some(1)),
        ("nop5", 64, "0f1f440000", Some(5)),
        ("endbr64", 64, "f30f1efa", Some(4)),
        ("endbr32", 32, "f30f1efb", Some(4)),
        ("jmp", 64, "eb10", Some(0x12)),
        ("jmp, 32-bit mode", 32, "e900010000", Some(0x105)),
        ("jmp through a register", 64, "ffe0", None),
        ("jmp through memory", 64, "ff2500000000", None),
        ("je", 64, "7410", None),
        ("call", 64, "e800010000", None),
        ("push", 64, "55", None),
        ("mov", 64, "89c0", None),
        ("cpuid", 64, "0fa2", None),
        ("half an instruction", 64, "0f1f", None),
    ] {
        assert_eq!(leads_to(bits, &hex(code), SITE), to.map(|offset| SITE + offset), "{name}");
    }
}

#[test]
fn all_of_them_are_emulated_or_the_fault_is_told() {
    let code = hex("4157 4156 55");
    let registers = core::array::from_fn(|n| 0x1000 * n as u64);
    let mut thread = Stopped { registers, flags: 0, ip: 0, written: alloc::vec![], bottom: 0, memory: None };
    assert_eq!(emulate_all(64, &code, SITE, &mut thread), Ok(()));
    assert_eq!(thread.ip, SITE + 5);
    assert_eq!(thread.registers[4], 0x4000 - 24);
    assert_eq!(thread.written, [(0x3ff8, 0xf000), (0x3ff0, 0xe000), (0x3fe8, 0x5000)]);
    let mut thread =
        Stopped { registers, flags: 0, ip: 0, written: alloc::vec![], bottom: 0x3ff0, memory: None };
    assert_eq!(emulate_all(64, &code, SITE, &mut thread), Err(EmulateError::Fault));
}
