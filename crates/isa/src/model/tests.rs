//! Interleavings of the protocol: threads against threads, and signal handlers with unwinders at every single load and store.

extern crate std;

use super::*;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::vec::Vec;

const POINTS: [u64; 3] = [0x7000_0100, 0x7000_0200, 0x7000_0300];
const HOME: u64 = 0x40_0000;

/// Where shadow blocks are tagged, and where they are plain.
const SLOT_SHIFTS: [u32; 2] = [3, 4];

fn layout(return_bits: u32, slot_shift: u32) -> Layout {
    Layout {
        threads: 0x1000,
        thread_bits: 3,
        origin: 0,
        block_cursor: 0x800,
        blocks: 0x10_0000,
        block_stride: 0x1000,
        block_count: 4,
        ring: 0,
        ring_bits: 0,
        self_pointer: true,
        tid_offset: None,
        selector: 0x63,
        pages: 0x2000_0000,
        returns: 0x2000_0000 + return_sizes(return_bits, slot_shift)[0],
        return_bits,
        slot_shift,
        arenas: 0x900,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: crate::Additions::Loops,
    }
}

type Words = HashMap<u64, u64>;

fn word(words: &mut Words, address: u64) -> &mut u64 {
    words.entry(address).or_default()
}

/// Runs a handler once, before a certain step.
struct Interrupted<'h> {
    words: Words,
    steps_left: Option<usize>,
    handler: &'h mut dyn FnMut(&mut Plain<'_>),
}

/// The same memory without interruption: what handlers work on.
struct Plain<'w>(&'w mut Words);

impl Interrupted<'_> {
    fn step(&mut self) -> &mut Words {
        match self.steps_left {
            Some(0) => {
                self.steps_left = None;
                (self.handler)(&mut Plain(&mut self.words));
            }
            Some(steps) => self.steps_left = Some(steps - 1),
            None => {}
        }
        &mut self.words
    }
}

fn reserve_in(words: &mut Words, address: u64, value: u64) -> Result<(), u64> {
    match word(words, address) {
        0 => {
            words.insert(address, value);
            Ok(())
        }
        other => Err(*other),
    }
}

fn take_number_in(words: &mut Words, address: u64) -> u64 {
    let number = word(words, address);
    *number += 1;
    *number - 1
}

macro_rules! memory {
    ($for:ty, $words:ident) => {
        impl Read for $for {
            fn load(&mut self, address: u64) -> u64 {
                *word(self.$words(), address)
            }
        }

        impl Memory for $for {
            fn store(&mut self, address: u64, value: u64) {
                self.$words().insert(address, value);
            }

            fn reserve(&mut self, address: u64, value: u64) -> Result<(), u64> {
                reserve_in(self.$words(), address, value)
            }

            fn take_number(&mut self, address: u64) -> u64 {
                take_number_in(self.$words(), address)
            }
        }
    };
}

impl Plain<'_> {
    fn words(&mut self) -> &mut Words {
        self.0
    }
}

memory!(Interrupted<'_>, step);
memory!(Plain<'_>, words);

/// A whole entry: the point is in the slot at its end.
fn call(memory: &mut dyn Memory, layout: &Layout, slot: u64, caller: u64, point: u64) {
    memory.store(slot, caller);
    assert!(enter(memory, layout, slot, caller, point, caller ^ point).is_some());
    memory.store(slot, point);
}

/// A whole return, which has to lead to `caller`.
fn back(memory: &mut dyn Memory, layout: &Layout, slot: u64, caller: u64, point: u64) {
    let home = leave(memory, layout, slot, point);
    assert_eq!(home, Home::Known { address: caller, entered: caller ^ point });
    assert_eq!(memory.load(slot), caller);
}

const SLOT: u64 = 0x7fff_1000;

/// Calls one in another, one of them reached by a tail call, two left behind. `live` is told which slots hold which point, and
/// what an unwinder has to find there.
fn story(memory: &mut dyn Memory, layout: &Layout, live: &Mutex<Vec<(u64, u64, u64)>>) {
    let [first, second, third] = POINTS;
    let push = |slot, point, home| live.lock().unwrap().push((slot, point, home));
    let pop = || live.lock().unwrap().pop().unwrap();
    call(memory, layout, SLOT, HOME, first);
    push(SLOT, first, HOME);
    // On the next page, and left behind by longjmp after a tail call.
    call(memory, layout, SLOT - 0x1010, HOME + 8, second);
    call(memory, layout, SLOT - 0x1010, second, third);
    call(memory, layout, SLOT - 0x1010, HOME + 16, first);
    push(SLOT - 0x1010, first, HOME + 16);
    pop();
    // Reached by a tail call: the older call's slot is rewritten, so it is not asked for meanwhile.
    call(memory, layout, SLOT - 0x1010, first, second);
    push(SLOT - 0x1010, second, HOME + 16);
    pop();
    back(memory, layout, SLOT - 0x1010, first, second);
    back(memory, layout, SLOT - 0x1010, HOME + 16, first);
    pop();
    back(memory, layout, SLOT, HOME, first);
}

#[test]
fn a_handler_at_every_step_that_calls_and_unwinds_finds_real_addresses() {
    SLOT_SHIFTS.into_iter().for_each(|slot_shift| handlers_that_call(layout(4, slot_shift)));
}

fn handlers_that_call(layout: Layout) {
    for steps in 0..400 {
        let live = Mutex::new(Vec::new());
        let mut ran = false;
        let mut handler = |memory: &mut Plain<'_>| {
            ran = true;
            let unwind = |memory: &mut Plain<'_>| {
                for &(slot, point, home) in live.lock().unwrap().iter() {
                    assert_eq!(memory.load(slot), point);
                    assert_eq!(real_address(memory, &layout, slot, point), Some(home), "at step {steps}");
                }
            };
            unwind(memory);
            // The handler's frame is below all slots in use, on the same page and on one that was never seen.
            for slot in [SLOT - 0x1800, SLOT - 0x3000] {
                call(memory, &layout, slot, HOME + 64, POINTS[2]);
                call(memory, &layout, slot, POINTS[2], POINTS[0]);
                unwind(memory);
                back(memory, &layout, slot, POINTS[2], POINTS[0]);
                back(memory, &layout, slot, HOME + 64, POINTS[2]);
            }
        };
        let mut memory = Interrupted { words: Words::new(), steps_left: Some(steps), handler: &mut handler };
        story(&mut memory, &layout, &live);
        let mut words = memory.words;
        nothing_is_left(&mut Plain(&mut words), &layout);
        if !ran {
            assert!(steps > 50, "the story has steps");
            return;
        }
    }
    panic!("the story does not end");
}

/// Three calls, one of them a chain, that an unwinder whose context is at `field` walks over twice, as a throw does, and leaves in two landings.
fn thrown(memory: &mut dyn Memory, layout: &Layout, field: u64) {
    let slots = [field + 0x1100, field + 0x400, field + 0x300];
    for slot in slots {
        call(memory, layout, slot, HOME + slot, POINTS[0]);
    }
    call(memory, layout, slots[1], POINTS[0], POINTS[1]);
    // One that was left behind on the way, which nobody walks over, and one where the context is going to be.
    call(memory, layout, field + 0x380, HOME, POINTS[2]);
    call(memory, layout, field, HOME, POINTS[2]);
    let [outer, middle, inner] = slots;
    for slot in [inner, middle, outer, inner, middle] {
        walked(memory, layout, field, slot);
    }
    assert_eq!(landed(memory, layout, field, middle), 3);
    assert_eq!(landed(memory, layout, field, middle), 0);
    walked(memory, layout, field, outer);
    assert_eq!(landed(memory, layout, field, outer), 1);
}

#[test]
fn a_handler_at_every_step_that_throws_changes_no_number_of_calls_that_are_left() {
    SLOT_SHIFTS.into_iter().for_each(|slot_shift| handlers_that_throw(layout(4, slot_shift)));
}

fn handlers_that_throw(layout: Layout) {
    for steps in 0..2000 {
        let mut ran = false;
        let mut handler = |memory: &mut Plain<'_>| {
            ran = true;
            thrown(memory, &layout, SLOT - 0x3000);
        };
        let mut memory = Interrupted { words: Words::new(), steps_left: Some(steps), handler: &mut handler };
        thrown(&mut memory, &layout, SLOT - 0x1000);
        if !ran {
            assert!(steps > 100, "the story has steps");
            return;
        }
    }
    panic!("the story does not end");
}

/// No instance is in use, in the pool or in a block.
fn nothing_is_left(memory: &mut Plain<'_>, layout: &Layout) {
    let head = layout.block_size() % (1 << STACK_PAGE_SHIFT);
    let starts: Vec<u64> = (0..1 << layout.return_bits).map(|n| layout.shadow_block(n) + head).collect();
    let in_block = |at: u64| {
        starts.iter().any(|&start| {
            (start..start + layout.block_size() - head).contains(&at) && (at - start).is_multiple_of(32)
        })
    };
    let in_pool = |at: u64| {
        (layout.returns..layout.first_tag()).contains(&at) && (at - layout.returns).is_multiple_of(32)
    };
    let used =
        memory.0.iter().filter(|&(&at, &value)| !layout.is_free(value) && (in_pool(at) || in_block(at)));
    assert_eq!(used.count(), 0);
}

/// One memory for several threads, of which one is on at a time, as a schedule says.
struct Scheduler {
    words: Mutex<(Words, Turn)>,
    changed: Condvar,
}

struct Turn {
    running: usize,
    /// Steps until the turn passes on, for each time that it does.
    slices: Vec<usize>,
    ended: [bool; 2],
}

struct Shared {
    scheduler: Arc<Scheduler>,
    me: usize,
}

impl Scheduler {
    fn step<T>(&self, me: usize, what: impl FnOnce(&mut Words) -> T) -> T {
        let mut state = self.words.lock().unwrap();
        while state.1.running != me {
            state = self.changed.wait(state).unwrap();
        }
        let result = what(&mut state.0);
        let turn = &mut state.1;
        let over = match turn.slices.last_mut() {
            Some(0) => true,
            Some(steps) => {
                *steps -= 1;
                false
            }
            None => false,
        };
        if over {
            turn.slices.pop();
            if !turn.ended[1 - me] {
                turn.running = 1 - me;
            }
            self.changed.notify_all();
        }
        result
    }

    fn end(&self, me: usize) {
        let mut state = self.words.lock().unwrap();
        state.1.ended[me] = true;
        state.1.running = 1 - me;
        self.changed.notify_all();
    }
}

impl Read for Shared {
    fn load(&mut self, address: u64) -> u64 {
        self.scheduler.step(self.me, |words| *word(words, address))
    }
}

impl Memory for Shared {
    fn store(&mut self, address: u64, value: u64) {
        self.scheduler.step(self.me, |words| words.insert(address, value));
    }

    fn reserve(&mut self, address: u64, value: u64) -> Result<(), u64> {
        self.scheduler.step(self.me, |words| reserve_in(words, address, value))
    }

    fn take_number(&mut self, address: u64) -> u64 {
        self.scheduler.step(self.me, |words| take_number_in(words, address))
    }
}

/// Runs two threads by a schedule, each with calls at slots of its own.
fn run(layout: Layout, slots: [u64; 2], slices: Vec<usize>) {
    let turn = Turn { running: 0, slices: slices.into_iter().rev().collect(), ended: [false; 2] };
    let scheduler = Arc::new(Scheduler { words: Mutex::new((Words::new(), turn)), changed: Condvar::new() });
    let threads = [0, 1].map(|me| {
        let mut memory = Shared { scheduler: scheduler.clone(), me };
        std::thread::spawn(move || {
            let (slot, home) = (slots[me], HOME + 0x1000 * me as u64);
            call(&mut memory, &layout, slot, home, POINTS[0]);
            call(&mut memory, &layout, slot, POINTS[0], POINTS[1]);
            assert_eq!(real_address(&mut memory, &layout, slot, POINTS[1]), Some(home));
            back(&mut memory, &layout, slot, POINTS[0], POINTS[1]);
            back(&mut memory, &layout, slot, home, POINTS[0]);
            memory.scheduler.end(me);
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    let mut words = std::mem::take(&mut scheduler.words.lock().unwrap().0);
    let pages = [slots[0] >> STACK_PAGE_SHIFT, slots[1] >> STACK_PAGE_SHIFT];
    let listed = *word(&mut words, layout.pages);
    let mut list: Vec<u64> =
        (0..listed).map(|n| *word(&mut words, layout.pages + u64::from(PAGES_FIRST) + 8 * n)).collect();
    list.sort_unstable();
    let mut wanted = pages.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    assert_eq!(list, wanted, "each page is listed once");
    nothing_is_left(&mut Plain(&mut words), &layout);
}

#[test]
fn two_threads_in_every_order_with_few_switches_keep_their_calls_apart() {
    SLOT_SHIFTS.into_iter().for_each(|slot_shift| two_threads(layout(2, slot_shift)));
}

fn two_threads(layout: Layout) {
    let other_page = |slot: u64| {
        // Another page whose search starts at the same block, and whose instances go to the same places of the pool.
        let same = |other: &u64| layout.block_index(*other) == layout.block_index(slot);
        (1..).map(|n| slot + (n << STACK_PAGE_SHIFT)).find(same).unwrap()
    };
    for slots in [[SLOT, SLOT + 64], [SLOT, other_page(SLOT)]] {
        for first in 0..46 {
            for second in (0..46).step_by(2) {
                run(layout, slots, std::vec![first, second]);
            }
            run(layout, slots, std::vec![first, 3, 5, 2, 7, 1]);
        }
    }
}
