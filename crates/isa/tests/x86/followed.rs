//! Followed calls that do not simply return (hard cases R1 and R2), run by this processor.

use crate::detours::{FOLLOW, HITS, LATENCY, LOST, Probed, RETURNS, TIMED, detour_at};
use crate::machine::*;
use crate::processor::Random;
use trapless_isa::Layout;
use trapless_isa::detour::*;
use trapless_isa::model::{self, Home};

/// A function that can be probed and does nothing.
pub const PLAIN: [u8; 6] = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];

/// Puts a chain of `length` functions that jump to each other, each followed, to FUNCTION on.
pub fn chain<'m>(machine: &'m Machine, layout: &Layout, length: u64) -> Vec<Probed<'m>> {
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
fn r1_tail_calls_of_any_number_are_followed() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(2);
    for length in 2..=14 {
        machine.forget();
        let layout = layout(true);
        chain(&machine, &layout, length).iter().for_each(Probed::arm);
        for _ in 0..3 {
            let start = machine.random(&mut random);
            machine.set(SLOT, EXIT);
            let (exit, after) = machine.run(Machine::thread(1), &start);
            let mut wanted = start.registers;
            wanted[4] += 8;
            assert_eq!((exit, after.registers), (1, wanted), "{length}");
            assert_eq!(machine.open_calls(), 0, "{length}");
        }
        assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), [3 * length, 3 * length, 0], "{length}");
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
fn r1_recursion_is_followed_as_deep_as_there_are_shadow_blocks() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(3);
    let layout = layout(true);
    let probed = Probed::new(&machine, RECURSIVE, FUNCTION, detour_at(0), &layout, FOLLOW);
    probed.arm();
    let pages = 1 << RETURN_BITS;
    for depth in [0, 1, 100, 127, 128, 400, 900, 2000, 6000] {
        machine.forget();
        let mut start = machine.random(&mut random);
        start.registers[7] = depth;
        machine.set(SLOT, EXIT);
        let (exit, after) = machine.run(Machine::thread(2), &start);
        assert_eq!((exit, after.registers[4]), (1, SLOT + 8), "{depth}");
        let [hits, returns, lost] = [HITS, RETURNS, LOST].map(|c| machine.sum(c));
        assert_eq!((hits, returns + lost), (depth + 1, depth + 1), "{depth}");
        // Slots from SLOT down, 64 bytes apart; each page has its block, as long as there are some.
        let lowest = SLOT - 64 * depth;
        let served = |slot: u64| (SLOT >> 12) - (slot >> 12) < pages;
        let wanted = (0..=depth).filter(|d| served(SLOT - 64 * d)).count() as u64;
        assert_eq!(returns, wanted, "{depth}, down to {lowest:#x}");
        assert_eq!(machine.open_calls(), 0, "{depth}");
    }
}

#[test]
fn r2_a_call_may_return_on_another_thread() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(4);
    for (entering, leaving) in [(1, 2), (1, 9), (9, 1), (3, 0), (0, 3)] {
        for payload in [FOLLOW, TIMED] {
            // The entry of a thread without memory of its own is not followed where a duration is wanted.
            if entering == 0 && payload == TIMED {
                continue;
            }
            machine.forget();
            let layout = layout(false);
            let probed = Probed::new(&machine, &PLAIN, FUNCTION, detour_at(0), &layout, payload);
            machine.write_exit(probed.end, 2);
            probed.arm();
            let thread = |number: u64| if number == 0 { 0 } else { Machine::thread(number) };
            let start = machine.random(&mut random);
            machine.set(SLOT, EXIT);
            let (exit, inside) = machine.run(thread(entering), &start);
            assert_eq!((exit, machine.open_calls()), (2, 1));
            // The other thread goes on where this one was: at the function's `ret`.
            machine.write(probed.end, &[0xc3]);
            let goes_on = State { extended: start.extended, ..inside };
            let (exit, after) = machine.run_from(probed.end, thread(leaving), &goes_on);
            assert_eq!((exit, after.registers[4]), (1, SLOT + 8), "{entering} {leaving}");
            assert_eq!((machine.sum(RETURNS), machine.open_calls()), (1, 0), "{entering} {leaving}");
        }
    }
}

#[test]
fn r2_the_latest_call_at_a_slot_wins() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(6);
    let layout = layout(true);
    let probed: Vec<_> = (0..2)
        .map(|n| Probed::new(&machine, &PLAIN, FUNCTION + 64 * n, detour_at(n), &layout, FOLLOW))
        .collect();
    // Left for good by a thread, the same slot is entered by another one, and by the first again.
    for (which, thread) in [(0, 1), (0, 2), (1, 2), (0, 1), (1, 1)] {
        let start = machine.random(&mut random);
        let home = EXIT + 0x100 * (which + 1);
        machine.write_exit(home, 7 + which as u32);
        machine.write_exit(probed[which as usize].end, 2);
        probed[which as usize].arm();
        machine.set(SLOT, home);
        let (exit, inside) = machine.run_from(FUNCTION + 64 * which, Machine::thread(thread), &start);
        assert_eq!((exit, machine.open_calls()), (2, 1));
        if which == 1 {
            machine.write(probed[1].end, &[0xc3]);
            let goes_on = State { extended: start.extended, ..inside };
            let (exit, after) = machine.run_from(probed[1].end, Machine::thread(3), &goes_on);
            assert_eq!((exit, after.registers[4], machine.open_calls()), (8, SLOT + 8, 0));
        }
    }
    assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), [5, 2, 0]);
}

#[test]
fn r2_a_tail_called_chain_that_was_left_behind_gives_back_its_places() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(9);
    let layout = layout(true);
    let chain = chain(&machine, &layout, 5);
    chain.iter().for_each(Probed::arm);
    let last = chain.last().unwrap();
    for round in 0..3000 {
        machine.write_exit(last.end, 2);
        let start = machine.random(&mut random);
        machine.set(SLOT, EXIT);
        let (exit, _) = machine.run(Machine::thread(1), &start);
        assert_eq!((exit, machine.open_calls()), (2, 5), "{round}");
    }
    machine.write(last.end, &[0xc3]);
    let start = machine.random(&mut random);
    machine.set(SLOT, EXIT);
    let (exit, after) = machine.run(Machine::thread(1), &start);
    assert_eq!((exit, after.registers[4], machine.open_calls()), (1, SLOT + 8, 0));
    assert_eq!(machine.sum(LOST), 0);
}

#[test]
fn a_call_whose_return_address_was_put_back_goes_home_by_its_slot() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(10);
    let layout = layout(true);
    for payload in [FOLLOW, TIMED] {
        machine.forget();
        let probed = Probed::new(&machine, &PLAIN, FUNCTION, detour_at(0), &layout, payload);
        machine.write_exit(probed.end, 2);
        probed.arm();
        let start = machine.random(&mut random);
        machine.set(SLOT, EXIT);
        let (_, inside) = machine.run(Machine::thread(1), &start);
        let point = machine.get(SLOT);
        // The return part is under way when somebody puts the address back and forgets the instance.
        machine.set(machine.instance(SLOT) + u64::from(RETURN_POINT), 0);
        machine.set(SLOT, EXIT);
        let mut at_point = State { extended: start.extended, ..inside };
        at_point.registers[4] = SLOT + 8;
        let (exit, after) = machine.run_from(point, Machine::thread(1), &at_point);
        assert_eq!((exit, after.registers), (1, at_point.registers));
    }
}

#[test]
fn detours_and_the_model_agree_on_every_word() {
    let Some(machine) = Machine::new() else { return };
    let layout = layout(true);
    let mut random = Random(12);
    let homes: Vec<u64> = (0..4).map(|n| EXIT + 0x100 * n).collect();
    let probed: Vec<_> = (0..6)
        .map(|n| Probed::new(&machine, &PLAIN, FUNCTION + 64 * n, detour_at(n), &layout, FOLLOW))
        .collect();
    for home in &homes {
        machine.write_exit(*home, 1);
    }
    probed.iter().for_each(Probed::arm);
    for _ in 0..60 {
        machine.forget();
        let mut shadow = Copy::new(&layout, RETURNS_SIZE as usize);
        for step in 0..120 {
            let n = (random.next() % 6) as usize;
            // A few pages, more than there are blocks for now and then.
            let slot = SLOT - 4096 * (random.next() % 20) - 8 * (random.next() % 3);
            let thread = Machine::thread(random.next() % 5);
            let mut state = machine.random(&mut random);
            state.registers[4] = slot;
            let instance = model::instance_of(&mut shadow, &layout, slot);
            let point = instance.map_or(0, |at| model::Read::load(&mut shadow, at + u64::from(RETURN_POINT)));
            let leaves = point != 0 && random.next().is_multiple_of(2);
            if leaves {
                // The call that is latest here returns; the real machine's slot holds its point.
                machine.set(slot, point);
                model::Memory::store(&mut shadow, slot, point);
                let at = probed.iter().position(|p| p.return_point == point).unwrap();
                machine.write(probed[at].end, &[0xc3]);
                let known = model::leave(&mut shadow, &layout, slot, point);
                let Home::Known { address, .. } = known else { panic!("step {step}: {known:?}") };
                if homes.contains(&address) {
                    let (exit, after) = machine.run_from(probed[at].end, thread, &state);
                    assert_eq!((exit, after.registers[4]), (1, slot + 8), "step {step}");
                } else {
                    // Home is the older call's return point: stop there, it returns some other time.
                    let older = machine.read(address, 64);
                    machine.write_exit(address, 4);
                    let (exit, after) = machine.run_from(probed[at].end, thread, &state);
                    machine.write(address, &older);
                    assert_eq!((exit, after.registers[4]), (4, slot + 8), "step {step}");
                }
                assert_eq!(machine.get(slot), address);
            } else {
                // A new call: a plain one, or a tail call from the one that is here.
                // Of another function: the test stops where the older call goes on, which is not where the younger one does.
                let tail = ![0, probed[n].return_point].contains(&point) && random.next().is_multiple_of(2);
                let caller = if tail { point } else { homes[n % 4] };
                machine.set(slot, caller);
                machine.write_exit(probed[n].end, 2);
                let (exit, _) = machine.run_from(FUNCTION + 64 * n as u64, thread, &state);
                assert_eq!(exit, 2);
                let mine = probed[n].return_point;
                let followed = model::enter(&mut shadow, &layout, slot, caller, mine, 0);
                assert_eq!(machine.get(slot), if followed.is_some() { mine } else { caller }, "step {step}");
            }
            let native = machine.words(layout.pages, RETURNS_SIZE);
            // At once, and not word by word, if they are alike.
            if native != shadow.words {
                let at = native.iter().zip(&shadow.words).position(|(a, b)| a != b).unwrap();
                panic!(
                    "step {step}, leaves: {leaves}, slot {slot:#x}: word {at} is {:#x}, not {:#x}",
                    native[at], shadow.words[at]
                );
            }
        }
    }
}

/// The return memory of the model; slots are elsewhere.
struct Copy {
    base: u64,
    words: Vec<u64>,
    slots: std::collections::HashMap<u64, u64>,
}

impl Copy {
    fn new(layout: &Layout, size: usize) -> Self {
        Self { base: layout.pages, words: vec![0; size / 8], slots: Default::default() }
    }

    fn word(&mut self, address: u64) -> &mut u64 {
        let index = (address.wrapping_sub(self.base) / 8) as usize;
        if index < self.words.len() { &mut self.words[index] } else { self.slots.entry(address).or_default() }
    }
}

impl model::Read for Copy {
    fn load(&mut self, address: u64) -> u64 {
        *self.word(address)
    }
}

impl model::Memory for Copy {
    fn store(&mut self, address: u64, value: u64) {
        *self.word(address) = value;
    }
}

#[test]
fn durations_go_to_the_bucket_that_the_reader_thinks() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(7);
    let layout = layout(true);
    let probed = Probed::new(&machine, &PLAIN, FUNCTION, detour_at(0), &layout, TIMED);
    probed.arm();
    for round in 0..2000 {
        machine.forget();
        machine.write_exit(probed.end, 2);
        let start = machine.random(&mut random);
        machine.set(SLOT, EXIT);
        let (_, inside) = machine.run(Machine::thread(1), &start);
        // The call began this long ago, or a little after its end by another processor's clock.
        let entered = machine.instance(SLOT) + u64::from(RETURN_ENTERED);
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
