//! Generated code, pinned byte for byte: the detours of all combinations of what can be asked of one.
//!
//! A change that is meant to change no code changes no number here. One that is meant to changes them on purpose, after its code was
//! run: by this crate's other tests on this processor, and under qemu.

use crate::detour::*;
use crate::payload::*;
use crate::{BranchTargets, Isa, Machine, Reason, Site};
use alloc::{format, vec::Vec};

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
        selector: 0x63,
        pages: high + 0x4000_0000,
        returns: high + 0x4000_0000 + return_sizes(11, slot_shift)[0],
        return_bits: 11,
        slot_shift,
        arenas: high + 0x10_0100,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: crate::Additions::Loops,
    }
}

/// What is asked of a detour.
#[derive(Clone, Copy)]
struct Asked {
    /// What is done for unwinders.
    unwinders: Option<Hook>,
    sharing: Option<Sharing>,
    /// Whether the entry counts.
    counts: bool,
    /// Whether it records, and how many arguments.
    records: Option<u8>,
    /// Whether the call is followed; then whether the return counts, times and records.
    returns: Option<[bool; 3]>,
}

impl Asked {
    fn all() -> Vec<Self> {
        let unwinders = [
            None,
            Some(Hook::Translate(Lookup::FindObject)),
            Some(Hook::Translate(Lookup::IteratePhdr)),
            Some(Hook::Land { code_address: 0x98 }),
        ];
        let sharings = [Sharing::Vfork, Sharing::Clone, Sharing::BeforeClone3, Sharing::Clone3];
        let sharings = sharings.map(Some);
        let hooks = unwinders.map(|hook| (hook, None)).into_iter();
        let hooks = hooks.chain(sharings.map(|sharing| (None, sharing))).chain([(unwinders[1], sharings[0])]);
        let mut all = Vec::new();
        for (unwinders, sharing) in hooks {
            for entry in 0..10 {
                let counts = entry % 2 == 1;
                let records = [None, Some(0), Some(3), Some(6), Some(8)][entry / 2];
                all.push(Self { unwinders, sharing, counts, records, returns: None });
                for returns in 0..8 {
                    let returns = Some([0, 1, 2].map(|bit| returns >> bit & 1 == 1));
                    all.push(Self { unwinders, sharing, counts, records, returns });
                }
            }
        }
        all
    }

    /// With the steps in the order that the instruction set's code was pinned in.
    fn payload(self, machine: Machine) -> Payload {
        let returns = |[counts, times, records]: [bool; 3]| {
            let count = counts.then_some(ReturnStep::Count(144));
            let time = times.then_some(ReturnStep::Time(152));
            let record = records.then_some(ReturnStep::Record { id: 5 });
            match machine {
                Machine::AArch64 => [count, time, record],
                _ => [count, record, time],
            }
        };
        Payload {
            hooks: Steps::some_of([self.sharing.map(Hook::Share), self.unwinders]),
            entry: Steps::some_of([
                self.counts.then_some(EntryStep::Count(128)),
                self.records.map(|arguments| EntryStep::Record { id: 4, arguments }),
            ]),
            followed: self.returns.map(|asked| Followed {
                lost: 136,
                steps: Steps::some_of(returns(asked)),
                way: Way::Paired,
            }),
        }
    }
}

/// Functions of x86 whose entries leave none, some and all of registers and flags free.
const X86: [&[u8]; 4] = [
    // nop dword [eax+eax]; ret
    &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3],
    // push ebp; mov ebp, esp; sub esp, 16; leave; ret
    &[0x55, 0x89, 0xe5, 0x83, 0xec, 0x10, 0xc9, 0xc3],
    // xor eax, eax; xor ecx, ecx; xor edx, edx; ret
    &[0x31, 0xc0, 0x31, 0xc9, 0x31, 0xd2, 0xc3],
    // mov edi, 1; mov edi, edi; adc eax, edx; ret
    &[0xbf, 0x01, 0x00, 0x00, 0x00, 0x89, 0xff, 0x11, 0xd0, 0xc3],
];

/// A plain one, and one that signs its return address.
const ARM64: [&[u8]; 2] = [
    // nop; ret
    &[0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6],
    // paciasp; stp x29, x30, [sp, #-16]!; ldp x29, x30, [sp], #16; retaa
    &[0x3f, 0x23, 0x03, 0xd5, 0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x7b, 0xc1, 0xa8, 0xff, 0x0b, 0x5f, 0xd6],
];

const POWERPC: [&[u8]; 1] = [
    // nop; blr
    &[0x00, 0x00, 0x00, 0x60, 0x20, 0x00, 0x80, 0x4e],
];

/// FNV-1a.
fn hash(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// How many detours there are, how many bytes of code, and the hash of it and of the places in it.
fn everything(machine: Machine, high: u64, functions: &[&[u8]]) -> (usize, usize, u64) {
    let isa: &dyn Isa = machine.isa();
    let wide = machine != Machine::I386;
    let usual = layout(high, isa.facts().slot_shift);
    let (mut count, mut length, mut sum) = (0, 0, 0xcbf2_9ce4_8422_2325);
    for layout in [usual, Layout { self_pointer: false, tid_offset: None, thread_bits: 12, ..usual }] {
        let runtime = isa.runtime(0x50_0000, &layout).unwrap();
        sum = hash(sum, &runtime.code);
        let targets = BranchTargets::default();
        for code in functions {
            let site = Site::new(0x40_0000, code, &targets);
            let displaced = isa.verdict(&site).jump.unwrap();
            let from = (displaced.start - site.function) as usize;
            for asked in Asked::all() {
                let request = DetourRequest {
                    runs: crate::body::Runs::default(),
                    address: 0x50_4000,
                    displaced,
                    original: &code[from..][..usize::from(displaced.length)],
                    site: &site,
                    payload: asked.payload(machine),
                    stack: Stack::Enough,
                    layout: &layout,
                    runtime: &runtime,
                    operands: &[],
                    tells: wide && layout.self_pointer,
                };
                let detour = isa.detour(&request);
                let expected = asked.sharing.is_none() || matches!(machine, Machine::X86_64 | Machine::I386);
                assert_eq!(detour.as_ref().err(), (!expected).then_some(&Reason::NotImplemented));
                let Ok(detour) = detour else { continue };
                (count, length) = (count + 1, length + detour.code.len());
                let places = format!("{:?} {:?}", detour.places, detour.return_point);
                sum = hash(hash(sum, &detour.code), places.as_bytes());
            }
        }
    }
    (count, length, sum)
}

#[test]
fn code_for_64_bit_programs_is_what_it_was() {
    assert_eq!(
        everything(Machine::X86_64, 0x2000_0000_0000, &X86),
        (6480, 5_381_700, 17_363_332_474_715_232_471)
    );
}

#[test]
fn code_for_32_bit_programs_is_what_it_was() {
    assert_eq!(everything(Machine::I386, 0x6000_0000, &X86), (6480, 5_213_128, 3_956_945_302_450_023_120));
}

#[test]
fn code_for_arm64_is_what_it_was() {
    assert_eq!(
        everything(Machine::AArch64, 0x2000_0000_0000, &ARM64),
        (1440, 969_104, 2_978_255_288_518_757_230)
    );
}

#[test]
fn code_for_powerpc64le_is_what_it_was() {
    assert_eq!(
        everything(Machine::PowerPc64Le, 0x2000_0000_0000, &POWERPC),
        (720, 753_152, 9_014_663_906_777_084_942)
    );
}
