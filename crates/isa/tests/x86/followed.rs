//! Followed calls that do not simply return (hard cases R1, R2, R3), run by this processor.

use crate::detours::{FOLLOW, HITS, LATENCY, LOST, Probed, RETURNS, detour_at};
use crate::machine::*;
use crate::processor::Random;
use trapless_isa::Layout;
use trapless_isa::detour::*;

/// Puts a chain of `length` functions that jump to each other, each followed, to FUNCTION on.
fn chain<'m>(machine: &'m Machine, layout: &Layout, length: u64) -> Vec<Probed<'m>> {
    let function = |n: u64| {
        let mut code = vec![0x0f, 0x1f, 0x44, 0, 0];
        if n + 1 < length {
            code.extend([0xe9, 0x36, 0, 0, 0]); // jmp to the next one, 64 bytes after this one
        } else {
            code.push(0xc3);
        }
        Probed::new(machine, &code, FUNCTION + 64 * n, detour_at(n), layout, FOLLOW)
    };
    (0..length).map(function).collect()
}

#[test]
fn r1_tail_calls_are_followed_until_their_places_run_out() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(2);
    for length in 2..=14 {
        machine.forget();
        let layout = layout(true);
        chain(&machine, &layout, length).iter().for_each(Probed::arm);
        let start = machine.random(&mut random);
        machine.set(SLOT, EXIT);
        let (exit, after) = machine.run(Machine::thread(1), &start);
        let mut wanted = start.registers;
        wanted[4] += 8;
        assert_eq!((exit, after.registers), (1, wanted), "{length}");
        let places = u64::from(RETURN_PROBES) + 1;
        let followed = length.min(places);
        let counts = [HITS, RETURNS, LOST].map(|c| machine.sum(c));
        assert_eq!(counts, [length, followed, length - followed], "{length}");
        assert_eq!(machine.open_calls(), 0, "{length}");
    }
}

/// `probed(n)`: calls itself n times. 64 bytes of frame.
const RECURSIVE: &[u8] = &[
    0x48, 0x83, 0xec, 56, // sub rsp,56
    0x48, 0xff, 0xcf, // dec rdi
    0x78, 5, // js +5
    0xe8, 0xf2, 0xff, 0xff, 0xff, // call itself
    0x48, 0x83, 0xc4, 56, // add rsp,56
    0xc3,
];

#[test]
fn r1_recursion_deeper_than_the_table_is_counted_as_lost() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(3);
    let layout = layout(true);
    let probed = Probed::new(&machine, RECURSIVE, FUNCTION, detour_at(0), &layout, FOLLOW);
    probed.arm();
    for depth in [0, 1, 100, 127, 128, 400, 2000, 6000] {
        machine.forget();
        let mut start = machine.random(&mut random);
        start.registers[7] = depth;
        machine.set(SLOT, EXIT);
        let (exit, after) = machine.run(Machine::thread(2), &start);
        assert_eq!((exit, after.registers[4]), (1, SLOT + 8), "{depth}");
        let [hits, returns, lost] = [HITS, RETURNS, LOST].map(|c| machine.sum(c));
        assert_eq!((hits, returns + lost), (depth + 1, depth + 1), "{depth}");
        assert!(depth > 100 || lost == 0, "{depth}: {lost} lost");
        assert_eq!(machine.open_calls(), 0, "{depth}");
    }
}

#[test]
fn r2_a_call_may_return_on_another_thread() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(4);
    for (entering, leaving) in [(1, 2), (1, 9), (9, 1), (3, 0)] {
        for latency in [None, Some(LATENCY)] {
            machine.forget();
            let layout = layout(false);
            let ret = FOLLOW.ret.map(|r| ReturnActions { latency, ..r });
            let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
            let probed =
                Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, Actions { ret, ..FOLLOW });
            machine.write_exit(probed.end, 2);
            probed.arm();
            // Both threads are known, so that those that share a hash have an entry each.
            let start = machine.random(&mut random);
            machine.set(SLOT, EXIT);
            let (exit, inside) = machine.run(Machine::thread(entering), &start);
            assert_eq!((exit, machine.open_calls()), (2, 1));
            // The other thread goes on where this one was: at the function's `ret`.
            machine.write(probed.end, &[0xc3]);
            // A thread pointer of 0 has no memory of its own.
            let other = if leaving == 0 { 0 } else { Machine::thread(leaving) };
            let (exit, after) =
                machine.run_from(probed.end, other, &State { extended: start.extended, ..inside });
            assert_eq!((exit, after.registers[4]), (1, SLOT + 8), "{entering} {leaving}");
            assert_eq!((machine.sum(RETURNS), machine.open_calls()), (1, 0), "{entering} {leaving}");
        }
    }
}

#[test]
fn r3_an_unwinder_finds_the_real_return_addresses() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(6);
    let layout = layout(true);
    let hook = Actions { restore_returns: true, ..Actions::default() };
    // An unwinder that ends the run at its first instruction behind the probe.
    let unwinder = FUNCTION + 0x1000;
    let hooked =
        Probed::new(&machine, &[0x0f, 0x1f, 0x44, 0, 0, 0xc3], unwinder, detour_at(15), &layout, hook);
    for tail_calls in 1..=6 {
        for depth in [0u64, 1, 5, 60] {
            machine.forget();
            let chain = chain(&machine, &layout, tail_calls);
            // The last one calls the first again, `depth` times, and then the unwinder.
            let last = FUNCTION + 64 * (tail_calls - 1);
            let mut code = vec![0x0f, 0x1f, 0x44, 0, 0, 0x48, 0xff, 0xcf, 0x78, 6]; // nop5; dec rdi; js +6
            let call = |code: &[u8], to: u64| {
                let from = last + code.len() as u64 + 5;
                [&[0xe8][..], &(to.wrapping_sub(from) as u32).to_le_bytes()].concat()
            };
            code.extend(call(&code, FUNCTION));
            code.push(0xc3);
            code.extend(call(&code, unwinder));
            code.push(0xc3);
            machine.write(last + 5, &code[5..]);
            chain.iter().for_each(Probed::arm);
            hooked.arm();
            machine.write_exit(hooked.end, 2);
            let mut start = machine.random(&mut random);
            start.registers[7] = depth;
            machine.set(SLOT, EXIT);
            let (exit, at) = machine.run(Machine::thread(3), &start);
            assert_eq!(exit, 2);
            for frame in 0..=depth {
                let slot = SLOT - 8 * frame;
                let home = if frame == 0 { EXIT } else { last + 15 };
                assert_eq!(machine.get(slot), home, "frame {frame} of {depth}, {tail_calls} tail calls");
            }
            assert_eq!(at.registers[4], SLOT - 8 * (depth + 1));
            let mut wanted = start.registers;
            (wanted[4], wanted[7]) = (at.registers[4], u64::MAX);
            assert_eq!(at.registers, wanted);
            assert_eq!(machine.open_calls(), 0);
            let followed = (depth + 1) * tail_calls - machine.sum(LOST);
            assert_eq!(machine.sum(BLOCK_UNWOUND), followed);
            // Two of these slots share a place, so long chains lose some.
            assert!(followed > 0 && (tail_calls > 4 || depth > 5 || machine.sum(LOST) == 0));
            // And it all returns without us.
            machine.write(hooked.end, &[0xc3]);
            let (exit, after) =
                machine.run_from(hooked.end, Machine::thread(3), &State { extended: start.extended, ..at });
            assert_eq!((exit, after.registers[4]), (1, SLOT + 8));
        }
    }
}

#[test]
fn r3_an_instance_that_was_left_behind_is_not_taken_for_the_live_one() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(8);
    let layout = layout(true);
    let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    let hook = Actions { restore_returns: true, ..Actions::default() };
    let unwinder = FUNCTION + 0x1000;
    let hooked = Probed::new(&machine, &code, unwinder, detour_at(15), &layout, hook);
    let probed = Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, FOLLOW);
    let table = layout.return_table(layout.thread_index(Machine::thread(1)));
    for distance in (16..8000).step_by(272) {
        for n in 1..=u64::from(RETURN_PROBES) {
            machine.forget();
            machine.write_exit(probed.end, 2);
            machine.write_exit(hooked.end, 3);
            probed.arm();
            hooked.arm();
            let start = machine.random(&mut random);
            machine.set(SLOT, EXIT);
            let (_, inside) = machine.run(Machine::thread(1), &start);
            let index = (layout.return_index(SLOT) + n * (2 * n + 1) * 61) % (1 << layout.return_bits);
            let left = table + (index << RETURN_SHIFT);
            machine.set(left + u64::from(RETURN_SLOT), SLOT);
            machine.set(left + u64::from(RETURN_ADDRESS), 0xdead);
            machine.set(layout.origin + 8, 1);
            let mut state = State { extended: start.extended, ..inside };
            state.registers[4] = SLOT - distance;
            let (exit, after) = machine.run_from(unwinder, Machine::thread(1), &state);
            assert_eq!((exit, after.registers), (3, state.registers));
            assert_eq!(machine.get(SLOT), EXIT, "at {distance}, left at place {n}");
        }
    }
}

#[test]
fn durations_go_to_the_bucket_that_the_reader_thinks() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(7);
    let layout = layout(true);
    let ret = FOLLOW.ret.map(|r| ReturnActions { latency: Some(LATENCY), ..r });
    let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    let probed = Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, Actions { ret, ..FOLLOW });
    probed.arm();
    for round in 0..2000 {
        machine.forget();
        machine.write_exit(probed.end, 2);
        let start = machine.random(&mut random);
        machine.set(SLOT, EXIT);
        let (_, inside) = machine.run(Machine::thread(1), &start);
        // The call began this long ago, or a little after its end by another processor's clock.
        let table = layout.return_table(layout.thread_index(Machine::thread(1)));
        let entered = table + (layout.return_index(SLOT) << RETURN_SHIFT) + u64::from(RETURN_ENTERED);
        let ago = random.next() >> (random.next() % 60 + 4);
        let future = round % 10 == 0;
        let then = machine.get(entered);
        machine.set(entered, if future { then + (1 << 40) } else { then.wrapping_sub(ago) });
        machine.write(probed.end, &[0xc3]);
        machine.run_from(probed.end, Machine::thread(1), &State { extended: start.extended, ..inside });
        let field = |at: u32| machine.block(1, LATENCY + at);
        let duration = field(LATENCY_SUM);
        assert_eq!((field(LATENCY_COUNT), field(LATENCY_MAX)), (1, duration));
        if future || then < ago {
            assert_eq!(duration, 0);
        } else {
            assert!(duration >= ago, "{ago} {duration}");
        }
        let found: Vec<u32> = (0..LATENCY_LENGTH).filter(|&b| field(LATENCY_BUCKETS + 8 * b) != 0).collect();
        assert_eq!(found, [latency_bucket(duration)], "{duration}");
    }
}
