//! A signal handler may come between any two instructions of a detour, and may run the same detour.
//!
//! For every instruction of a followed call, the handler's own followed call is put in front of it.
//! Afterwards the counts must be exact, the registers what they would be without any probe, and no return
//! instance may be left.

#[path = "aarch64/machine.rs"]
mod machine;

use machine::{ARENA, FUNCTION, Machine, detoured_at, state::Registers};
use trapless_isa::{
    Additions, Layout, Machine as Isas, aarch64::runtime::LANDED, body::Runs, detour, payload::*,
};

const CALLER: u64 = 0x50_0000;
const STACK: u64 = 0x7f_ffff_0000;
const HITS: u32 = detour::BLOCK_COUNTERS;
const RETURNS: u32 = HITS + 8;
const LOST: u32 = HITS + 16;
const HISTOGRAM: u32 = HITS + 24;

fn layout() -> Layout {
    Layout { tid_offset: Some(-0x40), ..machine::layout() }
}

/// `sub x0, x0, #1; cbnz x0, function; add x1, x1, x0; ret`: with x0 > 1 it calls itself in tail position.
const CODE: [u32; 4] = [0xd100_0400, 0xb5ff_ffe0, 0x8b00_0021, 0xd65f_03c0];

/// Everything at once.
const EVERYTHING: Payload = Payload {
    hooks: Steps::of([]),
    entry: Steps::of([EntryStep::Count(HITS), EntryStep::Record { id: 2, arguments: 3 }]),
    followed: Some(Followed {
        lost: LOST,
        steps: Steps::of([
            ReturnStep::Count(RETURNS),
            ReturnStep::Time(HISTOGRAM),
            ReturnStep::Record { id: 3 },
        ]),
        way: Way::Paired,
    }),
};
/// One counter, which takes the fewest registers.
const ONE: Payload =
    Payload { hooks: Steps::of([]), entry: Steps::of([EntryStep::Count(HITS)]), followed: None };

/// The same with its return, for which the thread is looked for once.
const BOTH: Payload = Payload {
    followed: Some(Followed { lost: LOST, steps: Steps::of([ReturnStep::Count(RETURNS)]), way: Way::Paired }),
    ..ONE
};

/// A machine about to call the probed function with `rounds` in x0.
fn machine(rounds: u64) -> Machine {
    machine_for(EVERYTHING, rounds)
}

fn machine_for(payload: Payload, rounds: u64) -> Machine {
    machine_that_adds(Additions::Loops, payload, rounds)
}

fn machine_that_adds(additions: Additions, payload: Payload, rounds: u64) -> Machine {
    let layout = Layout { additions, ..layout() };
    let mut machine = detoured_at(0, layout, &CODE, payload, Runs::default(), &[]).unwrap();
    let mut registers = Registers {
        x: core::array::from_fn(|n| 0x1111_0000_0000 + n as u64),
        sp: STACK,
        pc: FUNCTION,
        pstate: 0xa000_0000,
    };
    registers.x[0] = rounds;
    registers.x[30] = CALLER;
    machine.registers = registers;
    machine
}

/// What the function does to the registers.
fn expected(mut registers: Registers) -> Registers {
    registers.x[0] = 0;
    registers.pc = CALLER;
    registers
}

fn sum(machine: &Machine, offset: u32) -> u64 {
    let layout = layout();
    (0..u64::from(layout.block_count))
        .map(|block| machine.memory.get(layout.blocks + block * layout.block_stride + u64::from(offset)))
        .sum()
}

/// Live return instances, in the pool and in all shadow blocks.
fn instances(machine: &Machine) -> usize {
    let layout = layout();
    let pool = layout.returns..layout.returns + detour::POOL_SIZE;
    let in_block = |index: u64| {
        let block = layout.shadow_block(index);
        block..block + layout.block_size()
    };
    let ranges = std::iter::once(pool).chain((0..1 << layout.return_bits).map(in_block));
    ranges.map(|range| machine.memory.in_use(range, 1 << detour::RETURN_SHIFT, |p| layout.is_free(p))).sum()
}

/// A complete call of the function by a handler, on its own frame, which clears the monitor.
fn interrupt(machine: &mut Machine, rounds: u64) {
    let interrupted = machine.registers;
    machine.monitor = None;
    machine.registers.sp = interrupted.sp - 0x500;
    machine.registers.x = core::array::from_fn(|n| 0x2222_0000_0000 + n as u64);
    machine.registers.x[0] = rounds;
    machine.registers.x[30] = CALLER + 0x100;
    machine.registers.pc = FUNCTION;
    let before = machine.registers;
    machine.run_to(CALLER + 0x100);
    let after = Registers { pc: CALLER + 0x100, ..expected(before) };
    assert_eq!(machine.registers, after);
    machine.registers = interrupted;
    machine.monitor = None;
}

/// Makes it a child that was just forked.
fn be_forked(machine: &mut Machine) {
    let layout = layout();
    for word in (layout.threads..layout.threads + (64 << layout.thread_bits)).step_by(8) {
        machine.load(word, &[0; 8]);
    }
    machine.load(layout.origin, &[0]);
    machine.monitor = None;
}

/// The machine before each of the instructions that it runs until the call is over.
fn at_each_instruction(fresh: &Machine) -> impl Iterator<Item = (u32, Machine)> + '_ {
    let length = fresh.clone().run_to(CALLER);
    (0..length).map(|stop| {
        let mut machine = fresh.clone();
        (0..stop).for_each(|_| machine.step());
        (stop, machine)
    })
}

fn check(machine: &Machine, calls: u64, context: &str) {
    assert_eq!([HITS, RETURNS, LOST].map(|offset| sum(machine, offset)), [calls, calls, 0], "{context}");
    assert_eq!(sum(machine, HISTOGRAM + detour::LATENCY_COUNT), calls, "{context}");
    assert_eq!(sum(machine, detour::BLOCK_RING_HEAD), 2 * calls, "{context}");
    assert_eq!(instances(machine), 0, "{context}");
}

#[test]
fn a_handler_at_every_instruction_loses_nothing() {
    for rounds in 1..=3 {
        // In a thread that is seen for the first time, and in one that is known.
        for warm in [false, true] {
            let mut fresh = machine(rounds);
            if warm {
                interrupt(&mut fresh, 1);
            }
            let already = u64::from(warm);
            for (stop, mut machine) in at_each_instruction(&fresh) {
                let context =
                    format!("{rounds} rounds, stopped at {:#x}, instruction {stop}", machine.registers.pc);
                let inner = 1 + u64::from(stop % 3);
                interrupt(&mut machine, inner);
                machine.run_to(CALLER);
                assert_eq!(machine.registers, expected(fresh.registers), "{context}");
                check(&machine, already + rounds + inner, &context);
            }
        }
    }
}

const ADDITIONS: [Additions; 2] = [Additions::Loops, Additions::Single];

/// Threads that are seen for the first time or known, with a thread pointer or without, on both kinds of processors.
fn threads() -> impl Iterator<Item = (bool, u64, Additions)> {
    let threads = [(false, 0x7f_1234_5000), (true, 0x7f_1234_5000), (false, 0), (true, 0)];
    threads.into_iter().flat_map(|(warm, pointer)| ADDITIONS.map(|additions| (warm, pointer, additions)))
}

#[test]
fn a_handler_at_every_instruction_of_one_counter_loses_nothing() {
    for (warm, thread_pointer, additions) in threads() {
        let mut fresh = Machine { thread_pointer, ..machine_that_adds(additions, ONE, 2) };
        if warm {
            interrupt(&mut fresh, 1);
        }
        for (stop, mut machine) in at_each_instruction(&fresh) {
            interrupt(&mut machine, 1);
            machine.run_to(CALLER);
            assert_eq!(machine.registers, expected(fresh.registers), "instruction {stop}");
            assert_eq!(sum(&machine, HITS), u64::from(warm) + 3, "instruction {stop}");
        }
    }
}

fn numbers(machine: &Machine) -> ([u64; 3], usize) {
    ([HITS, RETURNS, LOST].map(|offset| sum(machine, offset)), instances(machine))
}

#[test]
fn a_handler_at_every_instruction_of_a_counted_return_loses_nothing() {
    for (warm, thread_pointer, additions) in threads() {
        for rounds in 1..=3 {
            let mut fresh = Machine { thread_pointer, ..machine_that_adds(additions, BOTH, rounds) };
            if warm {
                interrupt(&mut fresh, 1);
            }
            for (stop, mut machine) in at_each_instruction(&fresh) {
                let inner = 1 + u64::from(stop % 3);
                interrupt(&mut machine, inner);
                machine.run_to(CALLER);
                assert_eq!(machine.registers, expected(fresh.registers), "instruction {stop}");
                let calls = u64::from(warm) + rounds + inner;
                assert_eq!(numbers(&machine), ([calls, calls, 0], 0), "{rounds} rounds, instruction {stop}");
            }
        }
    }
}

/// As longjmp does, from a handler at any instruction of the call.
#[test]
fn a_counted_call_that_is_left_at_any_instruction_is_replaced() {
    for additions in ADDITIONS {
        let mut fresh = machine_that_adds(additions, BOTH, 1);
        interrupt(&mut fresh, 1);
        for (stop, mut machine) in at_each_instruction(&fresh) {
            let [hits, returns, lost] = numbers(&machine).0;
            machine.registers = fresh.registers;
            machine.monitor = None;
            machine.run_to(CALLER);
            assert_eq!(machine.registers, expected(fresh.registers), "instruction {stop}");
            assert_eq!(numbers(&machine), ([hits + 1, returns + 1, lost], 0), "instruction {stop}");
        }
    }
}

/// Its thread table is wiped, and what it counts is in a block that was nobody's.
#[test]
fn a_child_that_was_forked_at_any_instruction_of_a_call_counts_in_a_block_of_its_own() {
    let layout = layout();
    let mut fresh = machine_for(BOTH, 1);
    interrupt(&mut fresh, 1);
    let mut parents = fresh.clone();
    while parents.registers.pc != FUNCTION + 4 {
        parents.step();
    }
    let before = numbers(&parents).0;
    let mut child = parents;
    be_forked(&mut child);
    child.run_to(CALLER);
    assert_eq!(child.registers, expected(fresh.registers));
    assert_eq!(numbers(&child), ([before[0], before[1] + 1, 0], 0));
    let childs = layout.blocks + 2 * layout.block_stride;
    let number = |offset: u32| child.memory.get(childs + u64::from(offset));
    assert_eq!([detour::BLOCK_ORIGIN, HITS, RETURNS].map(number), [0, 0, 1]);
}

#[test]
fn handlers_within_handlers_lose_nothing() {
    // The outer call is interrupted twice, in every combination of two places.
    let mut fresh = machine(1);
    interrupt(&mut fresh, 1);
    let length = fresh.clone().run_to(CALLER);
    for first in (0..length).step_by(3) {
        for second in (first..length).step_by(5) {
            let mut machine = fresh.clone();
            for step in 0..=second {
                if step == first || step == second {
                    interrupt(&mut machine, 2);
                }
                machine.step();
            }
            machine.run_to(CALLER);
            let calls = 1 + 1 + if first == second { 2 } else { 4 };
            check(&machine, calls, &format!("stopped before {first} and {second}"));
        }
    }
}

#[test]
fn instances_left_by_longjmp_are_replaced() {
    let mut machine = machine(1);
    let before = machine.registers;
    for _ in 0..20 {
        // Leave from inside the body, as longjmp does, and call again at the same depth.
        while machine.registers.pc != FUNCTION + 4 {
            machine.step();
        }
        machine.registers = before;
    }
    machine.run_to(CALLER);
    assert_eq!([HITS, RETURNS, LOST].map(|offset| sum(&machine, offset)), [21, 1, 0]);
    assert_eq!(instances(&machine), 0);
}

#[test]
fn a_thread_without_a_thread_pointer_is_counted_and_followed() {
    let mut machine = machine(1);
    machine.thread_pointer = 0;
    let layout = layout();
    let before = machine.registers;
    // The record would read the thread id there.
    machine.run_to(CALLER);
    assert_eq!(machine.registers, expected(before));
    let overflow = |offset: u32| machine.memory.get(layout.blocks + u64::from(offset));
    assert_eq!([HITS, RETURNS, LOST].map(overflow), [1, 1, 0]);
}

#[test]
fn the_runtime_has_its_routines_in_order() {
    let runtime = Isas::AArch64.isa().runtime(ARENA, &layout()).unwrap();
    assert_eq!(runtime.routines.len(), LANDED + 1);
    assert!(runtime.routines.is_sorted());
    assert!(runtime.routines.iter().all(|a| (ARENA..ARENA + runtime.code.len() as u64).contains(a)));
}

/// The handler forks, and its child goes on: with its table wiped, and the parent's block at most for what has begun there.
#[test]
fn a_child_of_a_handler_at_any_instruction_counts_on() {
    let layout = layout();
    for (payload, returns) in [(ONE, 0), (BOTH, 1), (EVERYTHING, 1)] {
        for (warm, thread_pointer, additions) in threads() {
            let mut fresh = Machine { thread_pointer, ..machine_that_adds(additions, payload, 2) };
            if warm {
                interrupt(&mut fresh, 1);
            }
            for (stop, mut child) in at_each_instruction(&fresh) {
                be_forked(&mut child);
                child.run_to(CALLER);
                assert_eq!(child.registers, expected(fresh.registers), "instruction {stop}");
                // A first call of its own, and a second one in a block that is no other's.
                let before = [HITS, RETURNS, LOST].map(|offset| sum(&child, offset));
                let calls = u64::from(warm) + 2;
                assert_eq!(before, [calls, returns * calls, 0], "instruction {stop}");
                interrupt(&mut child, 2);
                let after = [HITS, RETURNS, LOST].map(|offset| sum(&child, offset));
                assert_eq!(after, [calls + 2, returns * (calls + 2), 0], "instruction {stop}");
                if thread_pointer != 0 {
                    let latest = child.memory.get(layout.block_cursor) - 1;
                    let own = layout.blocks + latest * layout.block_stride;
                    let number = |offset: u32| child.memory.get(own + u64::from(offset));
                    assert_eq!(number(detour::BLOCK_ORIGIN), 0, "instruction {stop}");
                    assert!(number(HITS) >= 2, "instruction {stop}");
                }
            }
        }
    }
}
