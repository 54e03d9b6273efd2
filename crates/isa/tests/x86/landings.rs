//! What unwinders leave is counted where they land (hard case R3), run by this processor and by the model.

use crate::detours::{Probed, detour_at};
use crate::followed::PLAIN;
use crate::machine::*;
use crate::processor::Random;
use crate::unwound::{UNWINDER, in_calls};
use std::collections::HashMap;
use trapless_isa::detour::*;
use trapless_isa::model::{self, Memory, Read};
use trapless_isa::{Hook, Lookup, Payload, Steps};

const LANDING: u64 = UNWINDER + 0x400;
/// Of the code address in the context.
const CODE_ADDRESS: u64 = 0x98;
/// Ends a run behind a hook.
const DONE: u32 = 3;
const DEPTH: u64 = 9;

/// The machine's memory as the model would have it.
struct Wanted<'m> {
    machine: &'m Machine,
    words: HashMap<u64, u64>,
}

impl Read for Wanted<'_> {
    fn load(&mut self, address: u64) -> u64 {
        self.words.get(&address).copied().unwrap_or_else(|| self.machine.get(address))
    }
}

impl Memory for Wanted<'_> {
    fn store(&mut self, address: u64, value: u64) {
        self.words.insert(address, value);
    }
}

/// An unwinder in the midst of calls, with hooks where it asks and where it lands.
struct Unwinder<'m> {
    machine: &'m Machine,
    layout: Layout,
    inside: State,
    thread: u64,
    /// Of the context's code address.
    field: u64,
}

impl Unwinder<'_> {
    /// What the model does must come of what the processor `runs`.
    fn as_modelled<T>(&self, model: impl FnOnce(&mut Wanted<'_>) -> T, run: impl FnOnce()) -> T {
        let mut wanted = Wanted { machine: self.machine, words: HashMap::new() };
        let result = model(&mut wanted);
        run();
        for (address, word) in wanted.words {
            assert_eq!(self.machine.get(address), word, "at {address:#x}");
        }
        result
    }

    fn run(&self, hook: u64, state: &State) -> State {
        self.machine.set(state.registers[4], EXIT);
        let (exit, after) = self.machine.run_from(hook, self.thread, state);
        assert_eq!(exit, u64::from(DONE));
        after
    }

    /// Asks about the call at `slot`.
    fn walk(&self, (slot, home): (u64, u64)) {
        let point = self.machine.get(slot);
        let mut state = self.inside.clone();
        (state.registers[7], state.registers[13]) = (point - 1, self.field + 16);
        self.machine.set(self.field, point);
        self.machine.set(self.field - 8, slot + 8);
        let model = |memory: &mut Wanted<'_>| model::walked(memory, &self.layout, self.field, slot);
        self.as_modelled(model, || {
            let after = self.run(UNWINDER, &state);
            assert_eq!(after.registers[7], home - 1);
        });
        assert_eq!(self.machine.get(slot), point);
    }

    /// Lands in the frame that has made the call at `slot`, with an exception whose place is `place`: how many calls are left.
    fn land(&self, slot: u64, place: u64, is_end: bool) -> u64 {
        let before = self.machine.sum(BLOCK_UNWOUND);
        let mut state = self.inside.clone();
        state.registers[7] = self.field - CODE_ADDRESS;
        self.machine.set(self.field - CODE_ADDRESS, place);
        self.machine.set(self.field - 8, slot + 8);
        let model = |memory: &mut Wanted<'_>| model::landed(memory, &self.layout, self.field, slot);
        let left = self.as_modelled(model, || {
            let after = self.run(LANDING, &state);
            assert_eq!(after.registers, state.registers);
            assert_eq!(after.flags, state.flags);
        });
        let counted = self.machine.sum(BLOCK_UNWOUND) - before;
        assert_eq!(counted, if is_end { 0 } else { left });
        counted
    }
}

fn each_round(rounds: u64, mut round: impl FnMut(&Unwinder<'_>, &mut Random, &[(u64, u64)], u64)) {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(8);
    for number in 0..rounds {
        let tail_calls = 1 + number % 4;
        // A thread without a thread pointer has no block of its own, and no word that leads to it.
        let is_somebody = !number.is_multiple_of(5);
        let thread = if is_somebody { Machine::thread(3) } else { 0 };
        let layout = layout(is_somebody);
        machine.forget();
        let (frames, mut inside) = in_calls(&machine, &layout, &mut random, tail_calls, DEPTH);
        let hook = |function, detour, hook| {
            let payload = Payload { hooks: Steps::of([hook]), ..Payload::default() };
            let hooked = Probed::new(&machine, &PLAIN, function, detour_at(detour), &layout, payload);
            machine.write_exit(hooked.end, DONE);
            hooked.arm();
        };
        hook(UNWINDER, 14, Hook::Translate(Lookup::FindObject));
        hook(LANDING, 15, Hook::Land { code_address: CODE_ADDRESS as u32 });
        inside.registers[4] -= 2048;
        let stack = inside.registers[4];
        (stack..stack + 1600).step_by(8).for_each(|word| machine.set(word, random.next()));
        let field = stack + 8 * (60 + random.next() % 60);
        let open = machine.open_calls();
        let unwinder = Unwinder { machine: &machine, layout, inside, thread, field };
        round(&unwinder, &mut random, &frames, tail_calls);
        assert_eq!(machine.open_calls(), open, "nothing is forgotten");
    }
}

#[test]
fn what_was_walked_over_up_to_the_landing_is_left_and_nothing_else() {
    each_round(400, |unwinder, random, frames, tail_calls| {
        let below = |random: &mut Random, most: u64| random.next() % most;
        let caught = below(random, DEPTH);
        let landed = below(random, caught + 1);
        // The first walk goes up to the frame that catches, the second one to the first that cleans up.
        frames[..=caught as usize].iter().for_each(|&frame| unwinder.walk(frame));
        frames[..=landed as usize].iter().for_each(|&frame| unwinder.walk(frame));
        let place = random.next();
        // It lands in a frame above the last call, of which others may have been made that nobody follows.
        let slot = frames[landed as usize].0;
        assert_eq!(unwinder.land(slot, place, false), (landed + 1) * tail_calls);
        assert_eq!(unwinder.land(slot, place, false), 0, "once");
    });
}

#[test]
fn a_landing_ahead_of_any_call_leaves_none() {
    each_round(40, |unwinder, random, frames, _| {
        // Only the first walk has seen some, up to the frame that catches.
        frames[3..].iter().for_each(|&frame| unwinder.walk(frame));
        assert_eq!(unwinder.land(frames[3].0 - 8, random.next(), false), 0);
        // And one without any walk.
        let other = Unwinder { field: unwinder.field + 8, inside: unwinder.inside.clone(), ..*unwinder };
        assert_eq!(other.land(frames[3].0, random.next(), false), 0);
    });
}

#[test]
fn calls_that_have_returned_since_somebody_walked_over_them_are_not_left() {
    each_round(40, |unwinder, random, frames, _| {
        frames[..4].iter().for_each(|&frame| unwinder.walk(frame));
        let instance = unwinder.machine.instance(frames[3].0);
        let point = unwinder.machine.get(instance + u64::from(RETURN_POINT));
        unwinder.machine.set(instance + u64::from(RETURN_POINT), 0);
        assert_eq!(unwinder.land(frames[3].0, random.next(), false), 0);
        unwinder.machine.set(instance + u64::from(RETURN_POINT), point);
    });
}

#[test]
fn the_end_of_a_thread_is_no_exception() {
    each_round(40, |unwinder, random, frames, tail_calls| {
        let exception = unwinder.inside.registers[4] + 24;
        let places = [0, 0x8f8, 0x900, u64::MAX];
        for (distance, is_end) in places.into_iter().zip([true, true, false, false]) {
            let is_end = is_end && unwinder.thread != 0;
            frames[..4].iter().for_each(|&frame| unwinder.walk(frame));
            unwinder.machine.set(exception, unwinder.thread.wrapping_add(distance));
            let left = if is_end { 0 } else { 4 * tail_calls };
            assert_eq!(unwinder.land(frames[3].0, exception, is_end), left, "{distance:#x}");
        }
        // What is no place on the stack is not looked at.
        for place in [0, 1, random.next(), unwinder.inside.registers[4] - 4096, u64::MAX] {
            frames[..4].iter().for_each(|&frame| unwinder.walk(frame));
            assert_eq!(unwinder.land(frames[3].0, place, false), 4 * tail_calls);
        }
    });
}

#[test]
fn a_record_is_told_from_what_a_call_has_left_in_its_place() {
    each_round(200, |unwinder, random, frames, tail_calls| {
        unwinder.walk(frames[0]);
        let record = unwinder.machine.instance(unwinder.field);
        let junk = |random: &mut Random| match random.next() % 4 {
            0 => frames[0].0 - 8,
            1 => unwinder.field + 8 * (random.next() % 8),
            2 => 0,
            _ => random.next(),
        };
        // A call that was left behind; or one that has returned, with what is no number of calls.
        let (point, address, entered) =
            (random.next() % 2 * frames[0].1, junk(random), random.next() >> 4 | 1 << 40);
        for (at, word) in
            [(RETURN_POINT, point), (RETURN_ADDRESS, address), (RETURN_ENTERED, entered), (RETURN_OLDER, 0)]
        {
            unwinder.machine.set(record + u64::from(at), word);
        }
        if random.next().is_multiple_of(2) {
            assert_eq!(unwinder.land(frames[2].0, random.next(), false), 0);
        }
        frames[..3].iter().for_each(|&frame| unwinder.walk(frame));
        assert_eq!(unwinder.land(frames[2].0, random.next(), false), 3 * tail_calls);
    });
}
