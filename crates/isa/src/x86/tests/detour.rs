//! Generated code, pinned byte for byte.

use crate::detour::*;
use crate::*;
use alloc::vec::Vec;

fn layout(high: u64, slot_shift: u32) -> Layout {
    Layout {
        threads: high + 0x1000,
        thread_bits: 9,
        origin: high,
        block_cursor: high + 0x10_0d00,
        blocks: high + 0x20_0000,
        block_stride: 0x20_1000,
        block_count: 17,
        ring: 0x1000,
        ring_bits: 14,
        self_pointer: true,
        tid_offset: Some(0x68),
        pages: high + 0x4000_0000,
        returns: high + 0x4000_0000 + return_sizes(11, slot_shift)[0],
        return_bits: 11,
        slot_shift,
        arenas: high + 0x10_0100,
    }
}

/// Every kind of action, alone and together.
fn actions() -> Vec<Actions> {
    let record = |id, arguments| Some(Record { id, arguments });
    let ret = ReturnActions { lost: 136, hits: None, latency: None, record: None };
    let entry = EntryActions { hits: Some(128), record: None };
    let plain = Actions { entry, ret: None, lookup: None, sharing: None };
    let with = |ret| Actions { ret: Some(ret), ..plain };
    alloc::vec![
        plain,
        Actions::default(),
        Actions { lookup: Some(Lookup::FindObject), ..plain },
        Actions { lookup: Some(Lookup::IteratePhdr), ..plain },
        Actions { entry: EntryActions { hits: None, record: record(4, 6) }, ..plain },
        with(ReturnActions { hits: Some(144), ..ret }),
        with(ReturnActions { latency: Some(152), ..ret }),
        with(ReturnActions { hits: Some(144), latency: Some(152), record: record(5, 0), ..ret }),
        Actions {
            entry: EntryActions { hits: Some(128), record: record(4, 3) },
            ..with(ReturnActions { hits: Some(144), record: record(5, 0), ..ret })
        },
    ]
}

/// Functions whose entries leave none, some and all of registers and flags free.
const FUNCTIONS: [&[u8]; 3] = [
    // nop dword [eax+eax]; ret
    &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3],
    // push ebp; mov ebp, esp; sub esp, 16; leave; ret
    &[0x55, 0x89, 0xe5, 0x83, 0xec, 0x10, 0xc9, 0xc3],
    // xor eax, eax; xor ecx, ecx; xor edx, edx; ret
    &[0x31, 0xc0, 0x31, 0xc9, 0x31, 0xd2, 0xc3],
];

/// Code of the runtime and of all detours, one after the other.
fn everything(machine: Machine, high: u64) -> Vec<Vec<u8>> {
    let isa = machine.isa();
    let layout = layout(high, isa.facts().slot_shift);
    let runtime = isa.runtime(0x50_0000, &layout).unwrap();
    let targets = BranchTargets::default();
    let mut all = alloc::vec![runtime.code.clone()];
    for code in FUNCTIONS {
        let site = Site { address: 0x40_0000, function: 0x40_0000, code, padding: &[], targets: &targets };
        let displaced = isa.verdict(&site).jump.unwrap();
        for actions in actions() {
            let original = &code[..usize::from(displaced.length)];
            let request = DetourRequest {
                address: 0x50_4000,
                displaced,
                original,
                site: &site,
                actions,
                layout: &layout,
                runtime: &runtime,
                tells: false,
            };
            all.push(isa.detour(&request).unwrap().code);
        }
    }
    all
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Changed on purpose only: each of these bytes was run before it was pinned.
#[test]
fn code_for_64_bit_programs_is_what_it_was() {
    let all = everything(Machine::X86_64, 0x2000_0000_0000).concat();
    assert_eq!((all.len(), hash(&all)), (14914, 10_643_244_198_549_771_054));
}
