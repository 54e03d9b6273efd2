//! What unwinders are told that ask where followed calls return (hard case R3), run by this processor.

use crate::detours::{Probed, RETURNS, detour_at};
use crate::followed::{PLAIN, chain};
use crate::machine::*;
use crate::processor::Random;
use trapless_isa::Layout;
use trapless_isa::detour::*;
use trapless_isa::payload::*;

/// An unwinder that ends the run at its first instruction behind the probe.
pub const UNWINDER: u64 = FUNCTION + 0x1000;

/// Stops in the middle of `depth` + 1 calls of a chain of `tail_calls`, as its last one calls [`UNWINDER`]. The
/// slots and real return addresses of the frames, innermost first, and the state there.
pub fn in_calls(
    machine: &Machine,
    layout: &Layout,
    random: &mut Random,
    tail_calls: u64,
    depth: u64,
) -> (Vec<(u64, u64)>, State) {
    let chain = chain(machine, layout, tail_calls);
    let last = FUNCTION + 64 * (tail_calls - 1);
    let mut code = vec![0x0f, 0x1f, 0x44, 0, 0, 0x48, 0xff, 0xcf, 0x78, 6]; // nop5; dec rdi; js +6
    let call = |code: &[u8], to: u64| {
        let from = last + code.len() as u64 + 5;
        [&[0xe8][..], &(to.wrapping_sub(from) as u32).to_le_bytes()].concat()
    };
    code.extend(call(&code, FUNCTION));
    code.push(0xc3);
    code.extend(call(&code, UNWINDER));
    code.push(0xc3);
    machine.write(last + 5, &code[5..]);
    chain.iter().for_each(Probed::arm);
    machine.write_exit(UNWINDER, 3);
    let mut start = machine.random(random);
    start.registers[7] = depth;
    machine.set(SLOT, EXIT);
    let (exit, at) = machine.run(Machine::thread(3), &start);
    assert_eq!(exit, 3);
    let frames = (0..=depth).rev().map(|d| (SLOT - 8 * d, if d == 0 { EXIT } else { last + 15 })).collect();
    (frames, State { extended: start.extended, ..at })
}

#[test]
fn r3_an_unwinder_is_told_the_real_return_addresses() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(6);
    let layout = layout(true);
    for tail_calls in 1..=6 {
        for depth in [0u64, 1, 5, 60] {
            for lookup in [Lookup::FindObject, Lookup::IteratePhdr] {
                machine.forget();
                let (frames, inside) = in_calls(&machine, &layout, &mut random, tail_calls, depth);
                let open = machine.open_calls();
                let hook = Payload { hooks: Steps::of([Hook::Translate(lookup)]), ..Payload::default() };
                let hooked = Probed::new(&machine, &PLAIN, UNWINDER, detour_at(15), &layout, hook);
                machine.write_exit(hooked.end, 3);
                hooked.arm();
                for &(slot, home) in &frames {
                    look_up(&machine, &mut random, &inside, lookup, slot, home);
                }
                assert_eq!(machine.open_calls(), open, "nothing is forgotten");
                // And it all returns, each call seen.
                machine.write(hooked.end, &[0xc3]);
                hooked.disarm();
                machine.write(UNWINDER, &[0xc3]);
                let (exit, after) = machine.run_from(UNWINDER, Machine::thread(3), &inside);
                assert_eq!((exit, after.registers[4]), (1, SLOT + 8));
                assert_eq!(machine.sum(RETURNS), (depth + 1) * tail_calls);
                assert_eq!(machine.open_calls(), 0);
            }
        }
    }
}

/// One look-up, with the unwinder's context and everything it keeps for itself at places of chance, as three unwinders do it.
fn look_up(machine: &Machine, random: &mut Random, inside: &State, lookup: Lookup, slot: u64, home: u64) {
    let point = machine.get(slot);
    for unwinder in 0..3 {
        let mut state = inside.clone();
        let stack = inside.registers[4] - 2048;
        state.registers[4] = stack;
        for word in (stack..stack + 1600).step_by(8) {
            machine.set(word, random.next());
        }
        let word = |n: u64| stack + 8 * n;
        machine.set(stack, EXIT);
        // What an earlier frame left behind: an address with the frame of another call, which only libgcc's context is told from.
        machine.set(word(20), if unwinder == 0 { slot + 24 } else { slot + (1 << 20) });
        machine.set(word(21), point);
        let context = 60 + random.next() % 60;
        machine.set(word(context), point);
        match unwinder {
            0 => {
                machine.set(word(context - 1), slot + 8);
                // The address of the bases, and that of the code, are kept in a register or on the stack.
                let keeps = [3, 5, 12, 13, 15][random.next() as usize % 5];
                if random.next().is_multiple_of(2) {
                    state.registers[keeps] = word(context) + 16;
                } else {
                    machine.set(word(5 + random.next() % 10), word(context) + 16);
                }
            }
            1 => machine.set(word(context - 1), slot + 8),
            _ => machine.set(word(context - 9), slot + 8),
        }
        state.registers[14] = point - 1;
        machine.set(word(3), point - 1);
        machine.set(word(context + 1), point - 1); // above the context: not the unwinder's own
        let data = 30 + random.next() % 10;
        let which = random.next() % 3;
        match lookup {
            Lookup::FindObject => state.registers[7] = point - 1,
            Lookup::IteratePhdr => {
                state.registers[6] = word(data);
                machine.set(word(data + which), point - 1);
            }
        }
        let (exit, after) = machine.run_from(UNWINDER, Machine::thread(3), &state);
        let mut wanted = state.registers;
        wanted[14] = home - 1;
        match lookup {
            Lookup::FindObject => wanted[7] = home - 1,
            Lookup::IteratePhdr => assert_eq!(machine.get(word(data + which)), home - 1),
        }
        assert_eq!((exit, after.registers), (3, wanted), "unwinder {unwinder}, {lookup:?}");
        let found = [context, 3, context + 1, 21].map(|n| machine.get(word(n)));
        assert_eq!(found, [home, home - 1, point - 1, point], "unwinder {unwinder}, {lookup:?}");
        assert_eq!(machine.get(slot), point, "the call is still followed");
    }
}

#[test]
fn an_unwinder_that_asks_for_something_else_is_left_alone() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(11);
    let layout = layout(true);
    for lookup in [Lookup::FindObject, Lookup::IteratePhdr] {
        machine.forget();
        let (frames, inside) = in_calls(&machine, &layout, &mut random, 2, 3);
        let hook = Payload { hooks: Steps::of([Hook::Translate(lookup)]), ..Payload::default() };
        let hooked = Probed::new(&machine, &PLAIN, UNWINDER, detour_at(15), &layout, hook);
        machine.write_exit(hooked.end, 3);
        hooked.arm();
        let point = machine.get(frames[0].0);
        let stack = inside.registers[4] - 2048;
        for asked in [EXIT, FUNCTION + 3, ARENA + 5, point - 1, 0, u64::MAX, point] {
            for data in [stack + 0x100, 0, 5, stack - 8, stack + u64::from(UNWINDER_STACK), u64::MAX] {
                let mut state = inside.clone();
                state.registers[4] = stack;
                (state.registers[7], state.registers[6]) = (asked, data);
                // No context anywhere.
                (stack..stack + 1600).step_by(8).for_each(|word| machine.set(word, word));
                machine.set(stack + 0x100, asked);
                let before = machine.read(stack, 2048);
                let (exit, after) = machine.run_from(UNWINDER, Machine::thread(3), &state);
                assert_eq!((exit, after.registers), (3, state.registers), "{asked:#x} {data:#x}");
                assert_eq!(machine.read(stack, 2048), before);
            }
        }
    }
}
