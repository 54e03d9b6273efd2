//! Detours of small functions, to be looked at.

use trapless_isa::{
    Additions, BranchTargets, Detour, DetourRequest, Layout, Machine, Reason, Site,
    body::Runs,
    detour::{Stack, return_sizes},
    payload::*,
};

pub const FUNCTION: u64 = 0x5555_5555_0000;
const ARENA: u64 = 0x5555_5655_0000;
/// Where regions are put, and multiples of 4 GB ([`trapless_isa::Facts::best_multiple`]).
const HIGH: u64 = 0x7e91_a123_1000;
const THREADS: u64 = 0x7e92 << 32;
const SHADOWS: u64 = (0x7e93 << 32) + 0x1000;

fn layout(slot_shift: u32, additions: Additions) -> Layout {
    let [pages, pool, _] = return_sizes(12, slot_shift);
    // Ahead of the shadow blocks, with their tags.
    let returns = SHADOWS - (8 << 12) - pool;
    Layout {
        threads: THREADS,
        thread_bits: 12,
        origin: HIGH + 0x10_0000,
        block_cursor: HIGH + 0x10_0008,
        blocks: HIGH + 0x20_0000,
        block_stride: 0x1_0000,
        block_count: 64,
        ring: 0,
        ring_bits: 0,
        self_pointer: true,
        tid_offset: None,
        selector: 0x63,
        pages: returns - pages,
        returns,
        return_bits: 12,
        slot_shift,
        arenas: HIGH + 0x10_0100,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions,
    }
}

/// `mov x9,#1`; `mov x10,#2`; `mov x11,#3`; `ret`
pub const SPARES_ARM64: &[u32] = &[0xd280_0029, 0xd280_004a, 0xd280_006b, 0xd65f_03c0];

/// `li r11,1`; `li r12,2`; `cmpwi r3,0`; `blr`; and the same with `li r0,3` in place of the comparison, so that cr0 is to be kept.
pub const SPARES_POWERPC: [&[u32]; 2] = [
    &[0x3960_0001, 0x3980_0002, 0x2c03_0000, 0x4e80_0020],
    &[0x3960_0001, 0x3980_0002, 0x3800_0003, 0x4e80_0020],
];

/// The detour of `nop` and a return.
pub fn detour(machine: Machine, additions: Additions, payload: Payload, tells: bool) -> Detour {
    let words = match machine {
        Machine::AArch64 => [0xd503_201f, 0xd65f_03c0],
        _ => [0x6000_0000, 0x4e80_0020],
    };
    detour_of(machine, &words, additions, payload, tells).unwrap()
}

/// The detour of a function that consists of these instructions.
pub fn detour_of(
    machine: Machine,
    words: &[u32],
    additions: Additions,
    payload: Payload,
    tells: bool,
) -> Result<Detour, Reason> {
    let isa = machine.isa();
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let layout = layout(isa.facts().slot_shift, additions);
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    let targets = BranchTargets::default();
    let site = Site::new(FUNCTION, &code, &targets);
    let displaced = isa.verdict(&site).jump?;
    let from = (displaced.start - FUNCTION) as usize;
    isa.detour(&DetourRequest {
        runs: Runs::default(),
        address: ARENA + runtime.code.len() as u64,
        displaced,
        original: &code[from..][..usize::from(displaced.length)],
        site: &site,
        payload,
        stack: Stack::Enough,
        layout: &layout,
        runtime: &runtime,
        operands: &[],
        tells,
    })
}
