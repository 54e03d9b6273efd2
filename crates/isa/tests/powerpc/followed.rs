//! Followed calls that do not simply return (hard cases R1, R2, R3), run under qemu-user, and the protocol of return instances
//! against its model.

use crate::state::Registers;
use crate::{cross::Cross, machine::*, oracle::Random};
use std::{collections::BTreeMap, ops::Range};
use trapless_isa::{
    Layout,
    detour::*,
    model::{self, Home, Memory, Read},
    payload::*,
};

/// The memory of return instances, for the model. The place of a return address is lr: what is stored there is kept apart.
struct Reference {
    words: BTreeMap<u64, u64>,
    home: Option<u64>,
    memory: Range<u64>,
}

impl Read for Reference {
    fn load(&mut self, address: u64) -> u64 {
        assert!(self.memory.contains(&address));
        self.words.get(&address).copied().unwrap_or(0)
    }
}

impl Memory for Reference {
    fn store(&mut self, address: u64, value: u64) {
        match self.memory.contains(&address) {
            true => drop(self.words.insert(address, value)),
            false => self.home = Some(value),
        }
    }
}

impl Reference {
    fn new(layout: &Layout) -> Self {
        Self { words: BTreeMap::new(), home: None, memory: followed_memory(layout) }
    }

    fn image(&self) -> Vec<u8> {
        self.memory
            .clone()
            .step_by(8)
            .flat_map(|at| self.words.get(&at).unwrap_or(&0).to_le_bytes())
            .collect()
    }
}

/// Enters, tail-calls, leaves and abandons at random, on five pages that share the shadow blocks of four.
#[test]
fn the_machine_code_does_what_the_model_does() {
    let Some(cross) = Cross::find() else { return };
    for seed in 0..6 {
        let mut random = Random(seed);
        let mut script = Script::new(2);
        let layout = script.layout;
        let mut reference = Reference::new(&layout);
        let sites: Vec<Probed> = (0..4u64)
            .map(|n| {
                let at = FUNCTION + 64 * n;
                script.probed(at, &[NOP, branch(at + 4, BODY)], FOLLOW)
            })
            .collect();
        // Two slots of each page, which are far apart or side by side.
        let slots: Vec<u64> =
            (0..5).flat_map(|n| [SLOT + 0x3000 * n, SLOT + 0x3000 * n + 0x10 * (1 + n * n)]).collect();
        // lr of the function that runs at a slot.
        let mut links: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut hits, mut returned, mut lost) = (0, 0, 0);
        let mut runs = vec![];
        let mut images = vec![];
        for step in 0..1500 {
            let slot = random.pick(&slots);
            let link = links.get(&slot).copied();
            let is_point = |address: u64| sites.iter().any(|site| site.point == Some(address));
            let pointer = thread(random.below(6));
            match (link, random.below(8)) {
                // Through the return points of all that was reached by tail calls.
                (Some(mut link), 0 | 1) => {
                    let start = registers(&mut random, link, slot, link, pointer);
                    let answer = script.run(&start);
                    while is_point(link) {
                        let home = model::leave(&mut reference, &layout, slot, link);
                        let Home::Known { address, .. } = home else { panic!("an instance for {slot:#x}") };
                        assert_eq!(
                            reference.home,
                            Some(address),
                            "it is the way home before the instance is free"
                        );
                        (link, returned) = (address, returned + 1);
                    }
                    runs.push((answer, Registers { lr: link, pc: link, ..start }));
                    links.remove(&slot);
                }
                (link, chance) => {
                    // A chain of many tail calls now and then, longer than there are places.
                    let length = if chance == 7 && random.below(16) == 0 { 70 } else { 1 };
                    let mut caller = match link {
                        Some(link) if chance < 6 => link,
                        _ => pad(random.below(8)),
                    };
                    for _ in 0..length {
                        let site = random.pick(&sites);
                        let point = site.point.expect("a followed site");
                        let start = registers(&mut random, site.at, slot, caller, pointer);
                        let answer = script.run(&start);
                        hits += 1;
                        match model::claim(&mut reference, &layout, slot, caller) {
                            Some(instance) => {
                                model::Memory::store(
                                    &mut reference,
                                    instance + u64::from(RETURN_ADDRESS),
                                    caller,
                                );
                                model::Memory::store(
                                    &mut reference,
                                    instance + u64::from(RETURN_POINT),
                                    point,
                                );
                                // In place of the time stands the thread's entry, for which any other one does, free ones included. So
                                // it says whether what an instance carries is kept together.
                                let entered = instance + u64::from(RETURN_ENTERED);
                                let entry = layout.threads + random.below(1 << layout.thread_bits) * 64;
                                reference.store(entered, entry);
                                script.set(entered, entry);
                                caller = point;
                            }
                            None => lost += 1,
                        }
                        runs.push((answer, Registers { lr: caller, pc: BODY, ..start }));
                    }
                    links.insert(slot, caller);
                }
            }
            if step % 400 == 0 {
                images.push((script.read_followed(), reference.image()));
            }
        }
        images.push((script.read_followed(), reference.image()));
        let counters = [HITS, RETURNED, LOST].map(|counter| script.counter(counter));
        let answers = script.play(&cross, &format!("model-{seed}"));
        for (step, (answer, expected)) in runs.into_iter().enumerate() {
            assert_eq!(answers.registers(answer), expected, "seed {seed}, run {step}");
        }
        for (n, (answer, expected)) in images.into_iter().enumerate() {
            assert!(answers.bytes(answer) == expected, "seed {seed}, memory at time {n}");
        }
        assert_eq!(counters.map(|counter| answers.sum(&counter)), [hits, returned, lost], "seed {seed}");
        assert!(returned > 100 && lost > 100, "seed {seed}: {returned} returned, {lost} lost");
    }
}

/// `f(n)`: calls itself n times, with frames of 64 bytes.
const RECURSIVE: [u32; 12] = [
    0x7c08_02a6, // mflr r0
    0xf801_0010, // std r0,16(r1)
    0xf821_ffc1, // stdu r1,-64(r1)
    0x2c23_0000, // cmpdi r3,0
    0x3863_ffff, // addi r3,r3,-1
    0x4181_0014, // bgt to the call
    0x3821_0040, // addi r1,r1,64
    0xe801_0010, // ld r0,16(r1)
    0x7c08_03a6, // mtlr r0
    BLR,
    0x4bff_ffd9, // bl to the start
    0x4bff_ffec, // b back
];

#[test]
fn r1_recursion_is_followed_as_deep_as_there_are_shadow_blocks() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(3);
    let mut script = Script::new(5);
    let site = script.probed(FUNCTION, &RECURSIVE, FOLLOW);
    let mut runs = vec![];
    for depth in [0, 1, 100, 500, 1000, 4000, 6000] {
        script.forget();
        let mut start = registers(&mut random, site.at, SLOT, HOME, thread(2));
        start.gpr[3] = depth;
        let answer = script.run(&start);
        let counters = [HITS, RETURNED, LOST].map(|counter| script.counter(counter));
        runs.push((depth, answer, counters, script.read_followed()));
    }
    let layout = script.layout;
    let answers = script.play(&cross, "recursion");
    for (depth, answer, counters, memory) in runs {
        let after = answers.registers(answer);
        assert_eq!((after.pc, after.gpr[1]), (HOME, SLOT), "{depth}");
        // Each page has its block, as long as there are some.
        let served =
            |slot: u64| (SLOT >> STACK_PAGE_SHIFT) - (slot >> STACK_PAGE_SHIFT) < 1 << layout.return_bits;
        let followed = (0..=depth).filter(|d| served(SLOT - 64 * d)).count() as u64;
        let wanted = [depth + 1, followed, depth + 1 - followed];
        assert_eq!(counters.map(|counter| answers.sum(&counter)), wanted, "{depth}");
        assert_eq!(open(answers.bytes(memory), &layout), 0, "{depth}");
    }
}

#[test]
fn r2_a_call_may_return_on_another_thread() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(4);
    let mut script = Script::new(4);
    let sites = [FOLLOW, TIMED].map(|payload| {
        let at = FUNCTION + if payload == TIMED { 64 } else { 0 };
        script.probed(at, &[NOP, branch(at + 4, BODY)], payload)
    });
    let mut runs = vec![];
    for (entering, leaving) in [(1, 2), (1, 3), (2, 1), (3, 0), (0, 3), (0, 0)] {
        for (n, site) in sites.iter().enumerate() {
            script.forget();
            let start = registers(&mut random, site.at, SLOT, HOME, thread(entering));
            let inside = script.run(&start);
            // The entry of a thread without memory of its own is not followed where a duration is wanted.
            let followed = entering != 0 || n == 0;
            let link = if followed { site.point.expect("followed") } else { HOME };
            let mut back = registers(&mut random, link, SLOT, link, thread(leaving));
            back.gpr[3] = 77;
            let after = script.run(&back);
            let counters = [RETURNED, LOST].map(|counter| script.counter(counter));
            let memory = script.read_followed();
            let wanted =
                (Registers { pc: BODY, lr: link, ..start }, Registers { pc: HOME, lr: HOME, ..back });
            runs.push((inside, after, counters, memory, wanted, u64::from(followed)));
        }
    }
    let layout = script.layout;
    let answers = script.play(&cross, "another-thread");
    for (n, (inside, after, counters, memory, wanted, followed)) in runs.into_iter().enumerate() {
        assert_eq!((answers.registers(inside), answers.registers(after)), wanted, "{n}");
        assert_eq!(counters.map(|counter| answers.sum(&counter)), [followed, 1 - followed], "{n}");
        assert_eq!(open(answers.bytes(memory), &layout), 0, "{n}");
    }
}

/// Whoever only counts takes an entry of the thread table from the instance of its slot: of a call that was timed, or left behind, or of a thread
/// that has no block any more or never had one.
#[test]
fn calls_that_are_only_counted_find_their_block_whatever_was_at_their_slot() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(12);
    let mut script = Script::new(4);
    let [counted, timed] = [FOLLOW, TIMED].map(|payload| {
        let at = FUNCTION + if payload == TIMED { 64 } else { 0 };
        script.probed(at, &[NOP, branch(at + 4, BODY)], payload)
    });
    let layout = script.layout;
    let (mut runs, mut hits, mut returned) = (vec![], 0, 0);
    for step in 0..400 {
        let site = if random.below(2) == 0 { &counted } else { &timed };
        // With blocks of their own, without one, and before there is a thread pointer.
        let number = random.below(BLOCK_COUNT.into());
        let start = registers(&mut random, site.at, SLOT, HOME, thread(number));
        let inside = script.run(&start);
        hits += 1;
        let is_followed = number != 0 || site.at == counted.at;
        let link = if is_followed { site.point.expect("followed") } else { HOME };
        runs.push((step, inside, Registers { pc: BODY, lr: link, ..start }));
        // Now and then a child goes on, in which the table was wiped. There are blocks for one process alone.
        if random.below(8) == 0 {
            script.write(layout.threads, &vec![0; 64 << layout.thread_bits]);
            script.write(layout.block_cursor, &1u64.to_le_bytes());
        }
        // Every fourth call is left behind.
        if is_followed && random.below(4) != 0 {
            let another = thread(random.below(BLOCK_COUNT.into()));
            let back = registers(&mut random, link, SLOT, link, another);
            let after = script.run(&back);
            returned += 1;
            runs.push((step, after, Registers { pc: HOME, lr: HOME, ..back }));
        }
    }
    let counters = [HITS, RETURNED].map(|counter| script.counter(counter));
    let answers = script.play(&cross, "whatever-was-there");
    for (step, answer, expected) in runs {
        assert_eq!(answers.registers(answer), expected, "{step}");
    }
    assert_eq!(counters.map(|counter| answers.sum(&counter)), [hits, returned]);
}

#[test]
fn a_call_whose_return_address_was_put_back_goes_home_by_lr() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(10);
    let mut script = Script::new(4);
    let mut runs = vec![];
    for (n, payload) in [FOLLOW, TIMED].into_iter().enumerate() {
        let site = script.probed(FUNCTION + 64 * n as u64, &[NOP, BLR], payload);
        let point = site.point.expect("followed");
        // The return part is under way when somebody puts the address into lr and forgets the instance.
        let start = registers(&mut random, point, SLOT, HOME, thread(1));
        runs.push((script.run(&start), Registers { pc: HOME, ..start }));
        // Without an instance and without an address there is no way home; not a step into the unknown.
        let start = registers(&mut random, point, SLOT, point, thread(1));
        let trapped = script.run(&start);
        runs.push((trapped, Registers { pc: 100 + 5, ..start }));
    }
    let answers = script.play(&cross, "put-back");
    for (n, (answer, wanted)) in runs.into_iter().enumerate() {
        let after = answers.registers(answer);
        assert_eq!(after.pc, wanted.pc, "{n}");
        assert!(n % 2 == 1 || after == wanted, "{n}: {after:x?}");
    }
}

/// As functions leave it: `mflr r0; blr`. Without a probe it would be the caller's return address.
#[test]
fn a_return_address_in_r0_is_the_callers_where_r0_is_kept() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(11);
    let mut script = Script::new(4);
    let site = script.probed(FUNCTION, &[0x7c08_02a6, BLR], TIMED);
    let mut runs = vec![];
    // With memory of its own, and where the instance is found by the runtime.
    for number in [1, 1, 2] {
        let start = registers(&mut random, site.at, SLOT, HOME, thread(number));
        let answer = script.run(&start);
        let mut after = Registers { pc: HOME, ..start };
        after.gpr[0] = HOME;
        runs.push((answer, after));
    }
    let answers = script.play(&cross, "home-in-r0");
    for (n, (answer, after)) in runs.into_iter().enumerate() {
        assert_eq!(answers.registers(answer), after, "{n}");
    }
}

/// Every combination of steps, and some of their orders.
fn all_payloads() -> Vec<Payload> {
    let (count, record) = (EntryStep::Count(HITS), EntryStep::Record { id: 6, arguments: 8 });
    let entries = [Steps::of([count]), Steps::of([count, record]), Steps::of([record, count])];
    let counts = ReturnStep::Count(RETURNED);
    let (times, records) = (ReturnStep::Time(LATENCY), ReturnStep::Record { id: 7 });
    let returns = [
        Steps::of([counts]),
        Steps::of([times]),
        Steps::of([records]),
        Steps::of([counts, records, times]),
        Steps::of([times, records, counts]),
    ];
    let followed = returns.map(|steps| Some(Followed { lost: LOST, steps, way: Way::Paired }));
    let mut all = vec![];
    for lookup in [None, Some(Lookup::FindObject), Some(Lookup::IteratePhdr)] {
        let hooks = Steps::some_of([lookup.map(Hook::Translate)]);
        for entry in entries {
            all.extend([None].into_iter().chain(followed).map(|followed| Payload { hooks, entry, followed }));
        }
    }
    all
}

#[test]
fn s1_nothing_but_the_counters_changes() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(1);
    for (n, payload) in all_payloads().into_iter().enumerate() {
        let mut script = Script::new(4);
        let site = script.probed(FUNCTION, &[NOP, BLR], payload);
        let mut runs = vec![];
        // The first hit of a thread goes another way than the next ones, and later ones than those with memory.
        for number in [1, 1, 2, 2, 0, 4, 5, 5] {
            let mut start = registers(&mut random, site.at, SLOT, HOME, thread(number));
            script.set(SLOT, 0);
            // Somewhere in an arena, but no return point.
            start.gpr[3] = if number == 5 { ARENA + 8 } else { start.gpr[3] };
            start.gpr[4] = if number == 5 { SLOT + 8 } else { start.gpr[4] };
            // What a function without a frame may use below the stack pointer.
            let red_zone: Vec<u8> = (0..288).map(|_| random.next() as u8).collect();
            script.write(SLOT - 288, &red_zone);
            runs.push((script.run(&start), start, script.read(SLOT - 288, 288), red_zone));
        }
        let hits = script.counter(HITS);
        let answers = script.play(&cross, &format!("kept-{n}"));
        for (answer, start, memory, red_zone) in &runs {
            assert_eq!(answers.registers(*answer), Registers { pc: HOME, ..*start }, "{payload:?}");
            assert_eq!(answers.bytes(*memory), red_zone, "{payload:?}");
        }
        assert_eq!(answers.sum(&hits), runs.len() as u64, "{payload:?}");
    }
}
