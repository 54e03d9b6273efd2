//! Unwinders are told the real return addresses, wherever they keep them and whatever signal handler comes in between; and the calls
//! are still followed after.

#[path = "common/index.rs"]
mod index;
#[path = "aarch64/machine.rs"]
mod machine;

use machine::{Machine, state::Registers};
use trapless_isa::frames::{Place, Point};
use trapless_isa::{
    BranchTargets, DetourRequest, Layout, Machine as Isas, Site,
    detour::{self, BLOCK_UNWOUND, return_sizes},
    model,
    payload::*,
};

const ARENA: u64 = 0x100_0000;
const ARENA_SIZE: u64 = 0x10_0000;
/// Behind what the arena says of itself.
const ROUTINES: u64 = ARENA + 64;
const CALLER: u64 = 0x50_0000;
const STACK: u64 = 0x7f_ffff_0000;
const HITS: u32 = detour::BLOCK_COUNTERS;
const RETURN_BITS: u32 = 4;

/// `stp x29, x30, [sp, #-32]!; mov x29, sp; bl lookup; ldp x29, x30, [sp], #32; ret`
const FUNCTION: (u64, [u32; 5]) =
    (0x40_0000, [0xa9be_7bfd, 0x9100_03fd, 0x9400_03fe, 0xa8c2_7bfd, 0xd65f_03c0]);
/// `nop; ret`
const LOOKUP: (u64, [u32; 2]) = (0x40_1000, [0xd503_201f, 0xd65f_03c0]);
/// Behind the first instruction of the function that is asked.
const ASKED: u64 = LOOKUP.0 + 4;
/// The same, where unwinders land.
const LANDING: (u64, [u32; 2]) = (0x40_2000, LOOKUP.1);
/// Of the code address in a context.
const CODE_ADDRESS: u32 = 0x98;

fn layout() -> Layout {
    Layout {
        threads: 0x10_0000_0000,
        thread_bits: 2,
        origin: 0x11_0000_0000,
        block_cursor: 0x11_0000_0008,
        blocks: 0x12_0000_0000,
        block_stride: 0x1000,
        block_count: 4,
        ring: 0,
        ring_bits: 0,
        self_pointer: false,
        tid_offset: None,
        selector: 0x63,
        pages: 0x13_0000_0000,
        returns: 0x13_0000_0000 + return_sizes(RETURN_BITS, 4)[0],
        return_bits: RETURN_BITS,
        slot_shift: 4,
        arenas: 0x15_0000_0000,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: trapless_isa::Additions::Loops,
    }
}

/// A machine with the function followed and the look-up translated, in front of a call.
fn machine(lookup: Lookup) -> Machine {
    machine_and_told(lookup).0
}

/// The same, and what the function's detour tells, with its address.
fn machine_and_told(lookup: Lookup) -> (Machine, (u64, Vec<Point>)) {
    let (isa, layout) = (Isas::AArch64.isa(), layout());
    let runtime = isa.runtime(ROUTINES, &layout).unwrap();
    let mut machine = Machine { thread_pointer: 0x7f_1234_5000, ..Machine::default() };
    machine.load(ROUTINES, &runtime.code);
    machine.load(layout.block_cursor, &[1]);
    machine.load(layout.arenas, &ARENA.to_le_bytes());
    machine.load(layout.arenas + 8, &ARENA_SIZE.to_le_bytes());
    let mut at = ROUTINES + runtime.code.len() as u64;
    let mut told = Vec::new();
    let follow = Payload {
        hooks: Steps::default(),
        entry: Steps::of([EntryStep::Count(HITS)]),
        followed: Some(Followed {
            lost: HITS + 16,
            steps: Steps::of([ReturnStep::Count(HITS + 8)]),
            way: Way::Paired,
        }),
    };
    let translate = Payload { hooks: Steps::of([Hook::Translate(lookup)]), ..Payload::default() };
    let land = Hook::Land { code_address: CODE_ADDRESS };
    let land = Payload { hooks: Steps::of([land]), ..Payload::default() };
    for (function, words, payload) in [
        (FUNCTION.0, &FUNCTION.1[..], follow),
        (LOOKUP.0, &LOOKUP.1[..], translate),
        (LANDING.0, &LANDING.1[..], land),
    ] {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let targets = BranchTargets::default();
        let site = Site::new(function, &code, &targets);
        let displaced = isa.verdict(&site).jump.unwrap();
        let request = DetourRequest {
            runs: trapless_isa::body::Runs::default(),
            address: at,
            displaced,
            original: &code[..4],
            site: &site,
            payload,
            stack: detour::Stack::Enough,
            layout: &layout,
            runtime: &runtime,
            operands: &[],
            tells: true,
        };
        let detour = isa.detour(&request).unwrap();
        machine.load(function, &code);
        machine.load(function, &isa.patch(&displaced, at).unwrap());
        machine.load(at, &detour.code);
        told.push((at, displaced.start, detour.frames));
        at += detour.code.len() as u64;
    }
    for (at, words) in index::index(ARENA, at.next_multiple_of(8), &told) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.load(at, &bytes);
    }
    call(&mut machine, STACK, CALLER);
    let (at, _, points) = told.swap_remove(0);
    (machine, (at, points))
}

/// The machine is at the function's entry, called from `caller` with sp at `slot`.
fn call(machine: &mut Machine, slot: u64, caller: u64) {
    let x = core::array::from_fn(|n| 0x1111_0000_0000 + n as u64);
    machine.registers = Registers { x, sp: slot, pc: FUNCTION.0, pstate: 0x6000_0000 };
    machine.registers.x[30] = caller;
}

/// Entries, returns, lost returns, in all blocks.
fn counts(machine: &Machine) -> [u64; 3] {
    let layout = layout();
    [0, 8, 16].map(|field| {
        (0..u64::from(layout.block_count))
            .map(|block| {
                machine.memory.get(layout.blocks + block * layout.block_stride + u64::from(HITS) + field)
            })
            .sum()
    })
}

/// The return address that the function saved.
fn saved(machine: &Machine, slot: u64) -> u64 {
    machine.memory.get(slot - 24)
}

/// Puts the machine to where an unwinder, which has found the return point of the call at `slot`, asks about it.
fn ask(machine: &mut Machine, lookup: Lookup, slot: u64) -> Registers {
    let point = saved(machine, slot);
    let stack = machine.registers.sp - 2048;
    let word = |n: u64| stack + 8 * n;
    machine.load(word(59), &slot.to_le_bytes());
    machine.load(word(60), &point.to_le_bytes());
    machine.load(word(7), &(point - 1).to_le_bytes());
    machine.load(word(30), &(point - 1).to_le_bytes());
    machine.registers.sp = stack;
    machine.registers.pc = LOOKUP.0;
    machine.registers.x[30] = CALLER + 0x80;
    machine.registers.x[21] = word(60) + 16;
    machine.registers.x[27] = point - 1;
    match lookup {
        Lookup::FindObject => machine.registers.x[0] = point - 1,
        Lookup::IteratePhdr => machine.registers.x[1] = word(30),
    }
    machine.registers
}

/// Calls left by an exception, in all blocks.
fn left(machine: &Machine) -> u64 {
    let layout = layout();
    let field = |block: u64| layout.blocks + block * layout.block_stride + u64::from(BLOCK_UNWOUND);
    (0..u64::from(layout.block_count)).map(|block| machine.memory.get(field(block))).sum()
}

/// Puts the machine to where the unwinder that has asked lands: in the frame that has made the call at `slot`.
fn land(machine: &mut Machine, slot: u64, exception: u64) {
    let field = machine.registers.sp + 8 * 60;
    machine.load(field - 8, &slot.to_le_bytes());
    machine.load(field - u64::from(CODE_ADDRESS), &exception.to_le_bytes());
    machine.registers.pc = LANDING.0;
    machine.registers.x[0] = field - u64::from(CODE_ADDRESS);
}

#[test]
fn what_was_walked_over_up_to_the_landing_is_left_and_nothing_else() {
    // By a thread without a thread pointer, too; in calls one in another; and an exception that is the end of a thread.
    for (depth, thread, is_end) in [(1, 1, false), (5, 1, false), (3, 0, false), (3, 1, true)] {
        let mut machine = machine(Lookup::FindObject);
        machine.thread_pointer *= thread;
        let slots: Vec<u64> = (0..depth).map(|n| STACK - 0x140 * n).collect();
        for &slot in &slots {
            call(&mut machine, slot, CALLER);
            machine.run_to(LOOKUP.0);
        }
        let inside = machine.registers;
        let walk = |machine: &mut Machine| {
            for &slot in slots.iter().rev() {
                machine.registers = inside;
                ask(machine, Lookup::FindObject, slot);
                machine.run_to(ASKED);
            }
        };
        // Twice, as a throw does.
        walk(&mut machine);
        walk(&mut machine);
        let exception = machine.registers.sp + 64;
        let control_block = machine.thread_pointer.wrapping_sub(if is_end { 0x40 } else { 0x1000 });
        machine.load(exception, &control_block.to_le_bytes());
        // Ahead of them all, of them all, once more.
        let last = slots[0];
        for (slot, wanted) in [(slots[slots.len() - 1] - 0x40, 0), (last, depth), (last, 0)] {
            let before = left(&machine);
            land(&mut machine, slot, exception);
            let landing = machine.registers;
            machine.run_to(LANDING.0 + 4);
            assert_eq!(machine.registers, Registers { pc: LANDING.0 + 4, ..landing });
            assert_eq!(left(&machine) - before, if is_end { 0 } else { wanted }, "{depth} {slot:#x}");
            machine.registers.sp = inside.sp - 2048;
        }
    }
}

#[test]
fn the_real_address_is_told_and_the_call_still_followed() {
    for lookup in [Lookup::FindObject, Lookup::IteratePhdr] {
        let mut machine = machine(lookup);
        let before = machine.registers;
        machine.run_to(LOOKUP.0);
        let inside = machine.registers;
        let point = saved(&machine, STACK);
        assert!(point > ARENA);
        let mut asking = ask(&mut machine, lookup, STACK);
        machine.run_to(ASKED);
        asking.pc = ASKED;
        asking.x[27] = CALLER - 1;
        if lookup == Lookup::FindObject {
            asking.x[0] = CALLER - 1;
        }
        assert_eq!(machine.registers, asking);
        let word = |n: u64| machine.memory.get(asking.sp + 8 * n);
        assert_eq!([60, 7, 30].map(word), [CALLER, CALLER - 1, CALLER - 1], "{lookup:?}");
        assert_eq!(saved(&machine, STACK), point);
        machine.registers = inside;
        machine.run_to(CALLER);
        assert_eq!(machine.registers, Registers { pc: CALLER, ..before });
        assert_eq!(counts(&machine), [1, 1, 0]);
    }
}

/// A signal's handler has interrupted a detour, and walks its stack by libgcc: it is shown the program, wherever that is told.
#[test]
fn w1_an_unwinder_is_shown_the_program_that_was_interrupted_in_a_detour() {
    const LINK: u64 = 0x60_0000;
    let (_, (at, mut points)) = machine_and_told(Lookup::FindObject);
    // The last one holds.
    points.reverse();
    points.dedup_by_key(|point| point.offset);
    assert!(points.iter().any(|point| point.stands.is_some_and(|(place, _)| place == Place::Caller)));
    for returned in [false, true] {
        for &Point { offset, stands, .. } in &points {
            let mut machine = machine(Lookup::FindObject);
            machine.run_to(if returned { CALLER } else { LOOKUP.0 });
            let (stack, pc) = (STACK - 4096, at + u64::from(offset));
            let (sp, expected) = match stands {
                Some((Place::Site(behind), depth)) => {
                    (STACK - depth as u64, Some(FUNCTION.0 + u64::from(behind)))
                }
                Some((_, depth)) => (STACK - depth as u64, Some(if returned { LINK } else { CALLER })),
                None => (STACK, None),
            };
            let word = |n: u64| stack + 8 * n;
            // The context with its pointers to where the signal's frame has x29, x30 and the stack pointer, 256 bytes behind what libgcc
            // takes for the frame address.
            let mut words =
                vec![(119, word(168)), (120, pc), (50, word(198)), (51, word(199)), (52, word(200))];
            words.extend([(199, LINK), (200, sp), (7, pc)]);
            for &(n, value) in &words {
                machine.load(word(n), &value.to_le_bytes());
            }
            machine.registers.sp = stack;
            machine.registers.pc = LOOKUP.0;
            machine.registers.x[21] = word(120) + 16;
            (machine.registers.x[0], machine.registers.x[27]) = (pc, pc);
            let mut after = Registers { pc: ASKED, ..machine.registers };
            machine.run_to(ASKED);
            if let Some(place) = expected {
                (after.x[0], after.x[27]) = (place, place);
                for (n, value) in [(119, STACK), (120, place), (52, 0), (7, place)] {
                    words.iter_mut().filter(|word| word.0 == n).for_each(|word| word.1 = value);
                }
            }
            assert_eq!(machine.registers, after, "{returned} {stands:?} at {offset:#x}");
            for (n, value) in words {
                assert_eq!(
                    machine.memory.get(word(n)),
                    value,
                    "{returned} {stands:?} at {offset:#x}: word {n}"
                );
            }
        }
    }
}

#[test]
fn other_questions_change_nothing() {
    for lookup in [Lookup::FindObject, Lookup::IteratePhdr] {
        for asked in [CALLER, 0, u64::MAX, ARENA - 1, ARENA + 3] {
            let mut machine = machine(lookup);
            machine.run_to(LOOKUP.0);
            let stack = machine.registers.sp;
            machine.registers.x[0] = asked;
            machine.registers.x[1] = if asked == CALLER { stack } else { asked };
            let before = machine.registers;
            machine.run_to(ASKED);
            assert_eq!(machine.registers, Registers { pc: ASKED, ..before }, "{asked:#x}");
        }
    }
}

#[test]
fn instances_are_where_the_model_has_them() {
    let mut machine = machine(Lookup::FindObject);
    let layout = layout();
    for (n, slot) in
        [STACK, STACK - 0x1230, STACK - 0x20, STACK + 0x7_0000, STACK - 0x5_0000].into_iter().enumerate()
    {
        let caller = CALLER + 0x40 * n as u64;
        call(&mut machine, slot, caller);
        machine.run_to(LOOKUP.0);
        let point = saved(&machine, slot);
        let told = model::real_address(&mut Reader(&machine), &layout, slot, point);
        assert_eq!(told, Some(caller), "slot {slot:#x}");
        assert_eq!(machine.memory.get(layout.pages), machine.memory.get(layout.pages).max(1));
    }
}

struct Reader<'m>(&'m Machine);

impl model::Read for Reader<'_> {
    fn load(&mut self, address: u64) -> u64 {
        self.0.memory.get(address)
    }
}

#[test]
fn a_handler_at_every_instruction_of_a_translation_is_no_harm() {
    let lookup = Lookup::FindObject;
    let mut fresh = machine(lookup);
    fresh.run_to(LOOKUP.0);
    let inside = fresh.registers;
    ask(&mut fresh, lookup, STACK);
    let length = fresh.clone().run_to(ASKED);
    for stop in 0..length {
        let mut machine = fresh.clone();
        for _ in 0..stop {
            machine.step();
        }
        let interrupted = machine.registers;
        call(&mut machine, interrupted.sp - 0x400, CALLER + 0x40);
        machine.monitor = None;
        machine.run_to(CALLER + 0x40);
        machine.registers = interrupted;
        machine.monitor = None;
        machine.run_to(ASKED);
        assert_eq!(machine.registers.x[0], CALLER - 1, "stopped at {stop}");
        machine.registers = inside;
        machine.run_to(CALLER);
        assert_eq!(counts(&machine), [2, 2, 0], "stopped at {stop}, {:#x}", interrupted.pc);
    }
}
