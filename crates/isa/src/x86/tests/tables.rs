//! Branch targets: of direct branches, and of jump tables in every form compilers write.

use super::hex;
use crate::{Machine, ReadOnlyData, Swept, View};
use alloc::{vec, vec::Vec};

const AT: u64 = 0x1000;
const DATA: u64 = 0x2000;

struct Data(Vec<u8>);

impl ReadOnlyData for Data {
    fn at(&self, address: u64) -> &[u8] {
        usize::try_from(address.wrapping_sub(DATA)).ok().and_then(|at| self.0.get(at..)).unwrap_or_default()
    }

    fn may_be_code(&self, address: u64) -> bool {
        address < DATA
    }
}

/// Entries, then data that is no table.
fn table<T: Copy>(entries: &[u64], base: u64, cut: impl Fn(u64) -> T, bytes: impl Fn(T) -> Vec<u8>) -> Data {
    let mut data: Vec<u8> = entries.iter().flat_map(|e| bytes(cut(e.wrapping_sub(base)))).collect();
    data.extend(*b"not a table at all, but some text");
    Data(data)
}

fn distances(entries: &[u64], base: u64) -> Data {
    table(entries, base, |e| e as u32, |e| e.to_le_bytes().to_vec())
}

fn addresses(entries: &[u64]) -> Data {
    table(entries, 0, |e| e, |e| e.to_le_bytes().to_vec())
}

#[test]
fn targets_of_branches_and_tables() {
    let inside: &[u64] = &[AT + 1, AT + 3, AT + 2];
    let cold: &[u64] = &[AT + 1, 0x9_0000, AT + 2];
    let none: &[u64] = &[];
    let cases: &[(&str, Machine, &str, Data, &[u64])] = &[
        (
            "jmp, jne, call",
            Machine::X86_64,
            "eb10 7520 e800010000",
            Data(Vec::new()),
            &[AT + 0x12, AT + 0x24, AT + 0x109],
        ),
        (
            "loop, jrcxz, xbegin",
            Machine::X86_64,
            "e210 e320 c7f810000000",
            Data(Vec::new()),
            &[AT + 0x12, AT + 0x24, AT + 0x1a],
        ),
        ("bytes that do not decode are skipped", Machine::X86_64, "06 eb10", Data(Vec::new()), &[AT + 0x13]),
        // lea rdx,[rip+T]; movsxd rax,[rdx+rdi*4]; add rax,rdx; notrack jmp rax
        (
            "gcc, PIC",
            Machine::X86_64,
            "488d15f90f0000 486304ba 4801d0 3effe0",
            distances(inside, DATA),
            inside,
        ),
        (
            "no indirect jump, no table",
            Machine::X86_64,
            "488d15f90f0000 486304ba 4801d0 c3",
            distances(inside, DATA),
            none,
        ),
        // cmp edi,2; ja; lea rdx,[rip+T]; movsxd rax,[rdx+rdi*4]; add rax,rdx; jmp rax
        (
            "a .cold entry within the bound",
            Machine::X86_64,
            "83ff02 770c 488d15f40f0000 486304ba 4801d0 ffe0",
            distances(cold, DATA),
            &[AT + 0x11, AT + 1, 0x9_0000, AT + 2],
        ),
        (
            "a .cold entry without a bound",
            Machine::X86_64,
            "488d15f90f0000 486304ba 4801d0 ffe0",
            distances(cold, DATA),
            &[AT + 1],
        ),
        // lea rdx,[rip+T]; jmp [rdx+rdi*8]
        ("addresses behind lea", Machine::X86_64, "488d15f90f0000 ff24fa", addresses(inside), inside),
        // jmp [rdi*8+0x2000]
        ("addresses, not PIC", Machine::X86_64, "ff24fd00200000", addresses(inside), inside),
        // mov rax,[rdi*8+0x2000]; jmp rax
        ("addresses, not PIC, loaded", Machine::X86_64, "488b04fd00200000 ffe0", addresses(inside), inside),
        // jmp [edi*4+0x2000]
        ("32-bit addresses", Machine::I386, "ff24bd00200000", distances(inside, 0), inside),
        // call thunk; add ebx,0xffb; mov eax,[ebx+edi*4+0x1000-0x1000+..]; add eax,ebx; jmp eax
        (
            "32-bit GOTOFF",
            Machine::I386,
            "e800010000 81c3fb0f0000 8b84bb00000000 01d8 ffe0",
            distances(inside, DATA),
            &[AT + 0x105, AT + 1, AT + 3, AT + 2],
        ),
    ];
    for (name, machine, code, data, expected) in cases {
        let mut found = Vec::new();
        machine.isa().branch_targets(&hex(code), AT, data, &mut found);
        let mut expected = expected.to_vec();
        // The address of the table is taken, as that of a function may be; no code is there.
        found.retain(|&target| target != DATA);
        found.sort_unstable();
        found.dedup();
        expected.sort_unstable();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn branches_inside_a_piece_are_told_apart_from_calls_and_from_what_leaves_it() {
    for (name, code, turns, view) in [
        ("nop; jmp to the entry", "90 ebfd", vec![AT], View::Whole),
        ("dec ecx; jne to the entry; ret", "ffc9 75fc c3", vec![AT], View::Whole),
        ("je to the ret; nop; ret", "7401 90 c3", vec![AT + 3], View::Whole),
        ("call the entry; ret", "e8fbffffff c3", vec![], View::Whole),
        ("jmp behind the end", "eb00", vec![], View::Whole),
        ("jmp to what stands before", "ebf0", vec![], View::Whole),
        ("bytes that do not decode; jmp to the entry", "06 ebfd", vec![AT], View::Partial),
        ("an instruction that is cut off", "90 e900", vec![], View::Partial),
    ] {
        let mut found = Swept::default();
        Machine::X86_64.isa().sweep(&hex(code), AT, &(), &mut found);
        assert_eq!((&found.turns, found.view), (&turns, view), "{name}");
        found.clear();
        assert_eq!(found, Swept::default());
    }
}

#[test]
fn a_table_that_leads_to_the_first_instruction_is_told() {
    // lea rdx,[rip+T]; movsxd rax,[rdx+rdi*4]; add rax,rdx; jmp rax
    let (table, jump) = ("488d15f90f0000 486304ba 4801d0", "ffe0");
    let behind_landing_place = "f30f1efa 488d15f50f0000 486304ba 4801d0 ffe0";
    for (name, code, entries, begins_again) in [
        ("to it", [table, jump].concat(), &[AT + 7, AT][..], true),
        ("behind a landing place", behind_landing_place.into(), &[AT + 11, AT + 4], true),
        ("elsewhere", [table, jump].concat(), &[AT + 7, AT + 11], false),
        ("no table", [table, "c3"].concat(), &[AT], false),
        ("a direct jump", "90 ebfd".into(), &[], false),
        ("its own address, handed on: lea rdi,[rip-7]; call", "488d3df9ffffff e800010000".into(), &[], false),
    ] {
        let mut found = Swept::default();
        Machine::X86_64.isa().sweep(&hex(&code), AT, &distances(entries, DATA), &mut found);
        assert_eq!(found.begins_again, begins_again, "{name}");
    }
}
