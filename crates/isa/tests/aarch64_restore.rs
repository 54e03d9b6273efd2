//! Return addresses are put back for unwinders: only on stacks that exist, only of calls that are alive, and
//! whatever signal handler comes in between.

#[path = "aarch64/machine.rs"]
mod machine;

use machine::Machine;
use trapless_isa::{
    Actions, BranchTargets, DetourRequest, EntryActions, Layout, Machine as Isas, ReturnActions, Site,
    aarch64::emulate::Registers, detour,
};

const ARENA: u64 = 0x100_0000;
const CALLER: u64 = 0x50_0000;
const STACK: u64 = 0x7f_ffff_0000;
const HITS: u32 = detour::BLOCK_COUNTERS;

/// `stp x29, x30, [sp, #-32]!; mov x29, sp; bl unwinder; ldp x29, x30, [sp], #32; ret`
const FUNCTION: (u64, [u32; 5]) =
    (0x40_0000, [0xa9be_7bfd, 0x9100_03fd, 0x9400_03fe, 0xa8c2_7bfd, 0xd65f_03c0]);
/// `nop; ret`
const UNWINDER: (u64, [u32; 2]) = (0x40_1000, [0xd503_201f, 0xd65f_03c0]);
/// Where the function has been restored, behind the unwinder's first instruction.
const UNWOUND: u64 = UNWINDER.0 + 4;

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
        returns: 0x13_0000_0000,
        return_bits: 4,
        arenas: 0x15_0000_0000,
        returns_used: 0x14_0000_0000,
    }
}

/// A machine with the function followed and the unwinder restoring, in front of a call.
fn machine() -> Machine {
    let (isa, layout) = (Isas::AArch64.isa(), layout());
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    let mut machine = Machine { thread_pointer: 0x7f_1234_5000, ..Machine::default() };
    machine.load(ARENA, &runtime.code);
    machine.load(layout.block_cursor, &[1]);
    let mut at = ARENA + runtime.code.len() as u64;
    let ret = ReturnActions { lost: HITS + 16, hits: Some(HITS + 8), latency: None, record: None };
    let entry = EntryActions { hits: Some(HITS), record: None };
    let follow = Actions { entry, ret: Some(ret), restore_returns: false };
    let restore = Actions { restore_returns: true, ..Actions::default() };
    for (function, words, actions) in
        [(FUNCTION.0, &FUNCTION.1[..], follow), (UNWINDER.0, &UNWINDER.1[..], restore)]
    {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let targets = BranchTargets::default();
        let site = Site { address: function, function, code: &code, padding: &[], targets: &targets };
        let displaced = isa.verdict(&site).jump.unwrap();
        let request = DetourRequest {
            address: at,
            displaced,
            original: &code[..4],
            site: &site,
            actions,
            layout: &layout,
            runtime: &runtime,
        };
        let detour = isa.detour(&request).unwrap();
        machine.load(function, &code);
        machine.load(function, &isa.patch(&displaced, at).unwrap());
        machine.load(at, &detour.code);
        at += detour.code.len() as u64;
    }
    call(&mut machine, STACK, CALLER);
    machine
}

/// The machine is at the function's entry, called from `caller` with sp at `slot`.
fn call(machine: &mut Machine, slot: u64, caller: u64) {
    let x = core::array::from_fn(|n| 0x1111_0000_0000 + n as u64);
    machine.registers = Registers { x, sp: slot, pc: FUNCTION.0, pstate: 0x6000_0000 };
    machine.registers.x[30] = caller;
}

/// Entries, returns, lost returns, in all blocks: a handler that interrupts the first look for the thread
/// gets one of its own.
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

#[test]
fn the_saved_return_address_is_put_back() {
    let mut machine = machine();
    let before = machine.registers;
    machine.run_to(UNWINDER.0);
    assert!(saved(&machine, STACK) > ARENA);
    let at_entry = machine.registers;
    machine.run_to(UNWOUND);
    assert_eq!(machine.registers, Registers { pc: UNWOUND, ..at_entry });
    assert_eq!(saved(&machine, STACK), CALLER);
    machine.run_to(CALLER);
    assert_eq!(machine.registers, Registers { pc: CALLER, ..before });
    assert_eq!(counts(&machine), [1, 0, 1]);
}

#[test]
fn stacks_that_are_gone_are_not_touched() {
    let mut machine = machine();
    // A call on a coroutine's stack above this one, which is never finished; then its stack is unmapped.
    let coroutine = STACK + 0x10_0100;
    call(&mut machine, coroutine, CALLER + 0x20);
    machine.run_to(UNWINDER.0);
    machine.gone = coroutine & !0xfff..coroutine + 0x1000;
    call(&mut machine, STACK, CALLER);
    machine.run_to(CALLER);
    assert_eq!(counts(&machine), [2, 0, 1]);
}

#[test]
fn only_words_that_still_hold_the_return_point_are_written() {
    let mut machine = machine();
    // A call that was left by longjmp; its saved word has been used for something else.
    call(&mut machine, STACK + 0x200, CALLER);
    machine.run_to(UNWINDER.0);
    machine.load(STACK + 0x200 - 24, &0x1234_5678u64.to_le_bytes());
    call(&mut machine, STACK, CALLER);
    machine.run_to(CALLER);
    assert_eq!(saved(&machine, STACK + 0x200), 0x1234_5678);
    assert_eq!(counts(&machine), [2, 0, 1]);
}

#[test]
fn a_handler_at_every_instruction_of_the_restoration_is_no_harm() {
    let fresh = machine();
    let length = fresh.clone().run_to(CALLER);
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
        machine.run_to(CALLER);
        assert_eq!(machine.registers, Registers { pc: CALLER, ..fresh.registers }, "stopped at {stop}");
        // The handler unwinds too, so the interrupted call may be put back before it comes to that itself.
        assert_eq!(counts(&machine), [2, 0, 2], "stopped at {stop}, {:#x}", interrupted.pc);
    }
}
