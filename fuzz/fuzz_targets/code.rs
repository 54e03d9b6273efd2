//! Any bytes as code of any instruction set, at any address: decode, judge, relocate into a slot and a detour.
#![no_main]

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use trapless_isa::{
    BranchTargets, DetourRequest, Layout, Machine, Site, Stack, detour::return_sizes, payload::*,
};

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    machine: u8,
    function: u64,
    site: u8,
    padding: u8,
    arena: i64,
    targets: [u8; 4],
    follow: bool,
    record: bool,
    code: &'a [u8],
}

fn layout(self_pointer: bool, slot_shift: u32) -> Layout {
    Layout {
        threads: 0x1000_1000,
        thread_bits: 7,
        origin: 0x1000_0000,
        block_cursor: 0x1010_0d00,
        blocks: 0x1011_0000,
        block_stride: 0x10_0000,
        block_count: 129,
        ring: 0x1000,
        ring_bits: 10,
        self_pointer,
        tid_offset: self_pointer.then_some(0x2d0),
        selector: 0x63,
        pages: 0x2000_0000,
        returns: 0x2000_0000 + return_sizes(10, slot_shift)[0],
        return_bits: 10,
        slot_shift,
        arenas: 0x1010_0100,
        signals: None,
        gate: 0x1010_0e00,
        near: 0,
        stacks: 0,
        points: 0,
        additions: trapless_isa::Additions::Loops,
    }
}

fuzz_target!(|case: Case<'_>| {
    let mut case = case;
    let machines = [Machine::X86_64, Machine::I386, Machine::AArch64, Machine::PowerPc64Le];
    let isa = machines[usize::from(case.machine) % 4].isa();
    // Where instructions have one length, functions and targets are multiples of it.
    let unit = if matches!(isa.machine(), Machine::X86_64 | Machine::I386) { 1 } else { 4 };
    case.function -= case.function % unit;
    let split = case.code.len().saturating_sub(usize::from(case.padding));
    let (code, padding) = case.code.split_at(split);
    let mut targets = Vec::new();
    isa.branch_targets(code, case.function, &(), &mut targets);
    targets.extend(case.targets.map(|offset| case.function.wrapping_add(u64::from(offset) * unit)));
    let targets = BranchTargets::new(targets);
    let address = case.function.wrapping_add(u64::from(case.site));
    let site = Site { address, function: case.function, code, padding, targets: &targets };
    let _ = isa.decode(code, case.function);
    let _ = isa.disassemble(code, case.function);
    let followed = isa.return_verdict(&site).is_ok() && case.follow;
    let ladder = isa.verdict(&site);
    let arena = case.function.wrapping_add_signed(case.arena);
    for (rung, boosted) in [(ladder.step, false), (ladder.boost, true)] {
        let Ok(displaced) = rung else { continue };
        let start = displaced.start.wrapping_sub(case.function) as usize;
        let original = &case.code[start..start + usize::from(displaced.length)];
        if let Ok(slot) = isa.slot(&displaced, original, arena & !3, boosted) {
            assert_eq!(slot.original_of(&displaced, 0), Some(displaced.start));
            assert!(slot.copy > 0 && slot.copy as usize <= slot.code.len(), "{slot:?}");
            assert_eq!(slot.boosted, boosted);
        }
    }
    let Ok(displaced) = ladder.jump else { return };
    assert!(displaced.length > 0 && displaced.instructions > 0, "{displaced:?}");
    assert_eq!(targets.first_inside(displaced.start, displaced.end()), None, "{displaced:?}");
    let Some(start) = displaced.start.checked_sub(case.function) else { return };
    let Some(original) = case.code.get(start as usize..start as usize + usize::from(displaced.length)) else {
        panic!("displaced instructions outside the bytes: {displaced:?}");
    };
    let layout = layout(case.record, isa.facts().slot_shift);
    let Ok(runtime) = isa.runtime(arena, &layout) else { return };
    let entry = [Some(EntryStep::Count(128)), case.record.then_some(EntryStep::Record { id: 2, arguments: 6 })];
    let at_return = [
        Some(ReturnStep::Count(144)),
        case.record.then_some(ReturnStep::Record { id: 3 }),
        Some(ReturnStep::Time(152)),
    ];
    let payload = Payload {
        hooks: Steps::some_of([case.record.then_some(Hook::Translate(Lookup::FindObject))]),
        entry: Steps::some_of(entry),
        followed: followed.then_some(Followed { lost: 136, steps: Steps::some_of(at_return), way: Way::default() }),
    };
    let address = arena.wrapping_add(0x4000);
    let request = DetourRequest {
        runs: trapless_isa::body::Runs::default(),
        address,
        displaced,
        original,
        site: &site,
        payload,
        operands: &[],
        stack: Stack::Enough,
        layout: &layout,
        runtime: &runtime,
        tells: case.record,
    };
    if let Ok(detour) = isa.detour(&request) {
        assert!(detour.places.iter().all(|place| (place.1 as usize) < detour.code.len()));
        if let Ok(patch) = isa.patch(&displaced, address) {
            assert_eq!(patch.len(), original.len());
        }
    }
});
