//! How many instructions a hit takes where nothing is out of the ordinary: from the branch at the site to the branch back, or to the
//! return of a followed call, the displaced instruction and both branches included.
//!
//! The code is walked as the processor does while no condition holds: all of a detour's conditional branches are for what is rare.

use trapless_isa::{
    Additions, BranchTargets, Detour, DetourRequest, Flow, Layout, Machine, Site,
    body::Runs,
    detour::{Stack, return_sizes},
    payload::*,
};

const FUNCTION: u64 = 0x5555_5555_0000;
const ARENA: u64 = 0x5555_5655_0000;
/// Where the kernel puts memory that nobody says a place of.
const HIGH: u64 = 0x7fff_a123_1000;

fn layout(slot_shift: u32, additions: Additions) -> Layout {
    Layout {
        threads: HIGH,
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
        pages: HIGH + 0x100_0000,
        returns: HIGH + 0x100_0000 + return_sizes(12, slot_shift)[0],
        return_bits: 12,
        slot_shift,
        arenas: HIGH + 0x10_0100,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        additions,
    }
}

/// The detour of `nop` and a return.
fn detour(machine: Machine, additions: Additions, payload: Payload) -> Detour {
    let isa = machine.isa();
    let words: [u32; 2] = match machine {
        Machine::AArch64 => [0xd503_201f, 0xd65f_03c0],
        _ => [0x6000_0000, 0x4e80_0020],
    };
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let layout = layout(isa.facts().slot_shift, additions);
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    let targets = BranchTargets::default();
    let site = Site { address: FUNCTION, function: FUNCTION, code: &code, padding: &[], targets: &targets };
    let displaced = isa.verdict(&site).jump.unwrap();
    isa.detour(&DetourRequest {
        runs: Runs::default(),
        address: ARENA + runtime.code.len() as u64,
        displaced,
        original: &code[..4],
        site: &site,
        payload,
        stack: Stack::Enough,
        layout: &layout,
        runtime: &runtime,
        operands: &[],
        tells: false,
    })
    .unwrap()
}

/// How many instructions run from `offset` until control leaves the detour.
fn walk(machine: Machine, detour: &Detour, offset: u32) -> u32 {
    let (mut at, mut count) = (u64::from(offset), 0);
    while let Some(code) = detour.code.get(at as usize..).filter(|code| !code.is_empty()) {
        let instruction = machine.isa().decode(code, at).unwrap();
        count += 1;
        at = match instruction.flow {
            Flow::Jump { target } | Flow::Call { target } => target,
            Flow::Return => return count,
            _ => instruction.end(),
        };
        assert!(count < 1000, "it does not end");
    }
    count
}

/// Of a hit that is counted; and of one that is counted and whose return is.
fn lengths(machine: Machine, additions: Additions) -> [u32; 2] {
    let count = Payload { entry: Steps::of([EntryStep::Count(128)]), ..Payload::default() };
    let steps = Steps::of([ReturnStep::Count(144)]);
    let followed = Payload { followed: Some(Followed { lost: 136, steps, way: Way::Paired }), ..count };
    let [entry, both] = [count, followed].map(|payload| {
        let detour = detour(machine, additions, payload);
        1 + walk(machine, &detour, 0) + detour.return_point.map_or(0, |point| walk(machine, &detour, point))
    });
    [entry, both]
}

/// Of the first number three are the branches and the displaced instruction, four save and restore three registers, seven find a
/// block, and five add in a way that neither a handler nor another thread takes apart. Where the processor has `stadd`, three do, and two
/// registers are enough.
///
/// Of the second one, four more registers are saved and restored at each end, six give the place of the instance of the slot, and
/// the thread is looked for at the entry only, with its owner, by eight: the return finds by three what the entry has noted.
#[test]
fn of_arm64() {
    assert_eq!(lengths(Machine::AArch64, Additions::Loops), [19, 58]);
    assert_eq!(lengths(Machine::AArch64, Additions::Single), [15, 54]);
}

/// Code cannot reach constants beside it without the link register, so those of memory take three to five instructions; and no exclusive
/// store leaves cr0 alone, so keeping that takes four at each end. Two end walks at the frame.
#[test]
fn of_powerpc64le() {
    assert_eq!(lengths(Machine::PowerPc64Le, Additions::Loops), [30, 98]);
}
