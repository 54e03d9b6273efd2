//! End to end: a program under qemu-user patches its own functions with generated detours, while four threads
//! run them.
//!
//! See `aarch64/selfpatch.c`. The counts of whole rounds must be exact, for entries and for returns, through
//! recursion, tail calls, longjmp, signal handlers and coroutines that change threads.

mod aarch64;

use aarch64::{Function, compile_with, functions, qemu, run_on};
use std::{collections::BTreeMap, fs, path::Path};
use trapless_isa::body::{Extra, Run, Runs, Takes};
use trapless_isa::{
    Additions, BranchTargets, Detour, DetourRequest, Layout, Machine, Operand, Site, detour, payload::*,
};

/// Functions with their entries and returns in one round. No returns: probed at the entry only.
const ROUND: &[(&str, u64, Option<u64>)] = &[
    // The first to be patched, so that it is in every ring before that is full.
    ("ten", 1, Some(1)),
    ("leaf", 2, Some(2)),
    // Ends in a tail call to a function that calls `leaf` with its own return address in a register.
    ("tail_to_keeper", 1, Some(1)),
    ("bare", 6, Some(6)),
    ("fib", 41, Some(41)),
    ("starts_cbz", 2, Some(2)),
    ("starts_cbnz", 2, Some(2)),
    ("starts_tbz", 2, Some(2)),
    ("starts_tbnz", 2, Some(2)),
    ("starts_bcond", 2, Some(2)),
    ("starts_adr", 1, Some(1)),
    ("starts_adrp", 1, Some(1)),
    ("starts_literal", 1, Some(1)),
    ("starts_literal_w", 1, Some(1)),
    ("starts_literal_sw", 1, Some(1)),
    ("starts_literal_q", 1, Some(1)),
    ("starts_b", 1, Some(1)),
    ("starts_bti", 1, Some(1)),
    ("starts_pacia", 1, Some(1)),
    ("starts_pacib", 1, Some(1)),
    ("bti_pacia", 1, Some(1)),
    ("returns_authenticated", 1, Some(1)),
    ("tail_from", 1, Some(1)),
    ("tail_to", 2, Some(2)),
    ("tail_signed", 1, Some(1)),
    ("tail_signed_to", 1, Some(1)),
    // 5 and 20 times through its own entry.
    ("loops_to_entry", 25, Some(25)),
    // It needs no frame to be counted.
    ("spares", 2, None),
    ("starts_bl", 1, None),
    ("starts_blr", 1, None),
    ("jumper", 3, Some(0)),
];

/// Functions through which the program's unwinder is called, with their entries.
const WALKERS: [(&str, u64); 5] = [
    ("walks", 4),
    ("walks_signed_a", 2),
    ("walks_signed_b", 1),
    ("walks_by_tail", 1),
    ("walks_after_tail", 1),
];

/// The arguments of `ten`, as operands.
const OPERANDS: [Operand; 11] = {
    const fn on_stack(offset: i32, size: u8) -> Operand {
        Operand::Memory { base: 31, index: None, offset, size }
    }
    [
        Operand::Register(0),
        Operand::Register(1),
        Operand::Register(2),
        Operand::Register(3),
        Operand::Register(4),
        Operand::Register(5),
        Operand::Register(6),
        Operand::Register(7),
        on_stack(0, 8),
        on_stack(8, 1),
        Operand::Memory { base: 31, index: Some((1, 3)), offset: -8, size: 4 },
    ]
};

const ARENA: u64 = 0x800_0000;
const DATA: u64 = 0x50_0000_0000;
const HITS: u32 = detour::BLOCK_COUNTERS;
/// Bytes of one function's counters: entries, returns, lost, and a histogram.
const STRIDE: u32 = 24 + detour::LATENCY_BUCKETS + 8 * detour::LATENCY_LENGTH;
/// Where bodies count that are called at entries and returns: in the histogram, which is not made then.
const BODIES: [u32; 2] = [24, 32];
const RING: u32 = 0x4_0000;
const RING_BITS: u32 = 10;

fn layout() -> Layout {
    Layout {
        threads: DATA,
        thread_bits: 6,
        origin: DATA + 0x1000,
        block_cursor: DATA + 0x1008,
        arenas: DATA + 0x1800,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: Additions::Loops,
        blocks: DATA + 0x10_0000,
        block_stride: 0x10_0000,
        block_count: 32,
        ring: RING,
        ring_bits: RING_BITS,
        self_pointer: true,
        tid_offset: None,
        selector: 0x63,
        pages: DATA + 0x800_0000,
        returns: DATA + 0x800_0000 + detour::return_sizes(9, 4)[0],
        return_bits: 9,
        slot_shift: 4,
    }
}

/// The patches of one run.
struct Plan(Vec<u8>);

impl Plan {
    fn add(&mut self, kind: u64, address: u64, length: u64, bytes: &[u8]) {
        for field in [kind, address, length] {
            self.0.extend(field.to_le_bytes());
        }
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

/// What a run counted between its two dumps, and the whole memory at its end.
struct Outcome {
    layout: Layout,
    names: Vec<String>,
    before: Vec<u8>,
    after: Vec<u8>,
    rounds: u64,
    handled: u64,
    /// Return addresses that the program's own unwinder found to be foreign.
    foreign: u64,
}

impl Outcome {
    fn read(memory: &[u8], offset: u64) -> u64 {
        u64::from_le_bytes(memory[offset as usize..][..8].try_into().unwrap())
    }

    /// Sum of a counter over all blocks.
    fn sum(&self, memory: &[u8], offset: u64) -> u64 {
        (0..u64::from(self.layout.block_count))
            .map(|block| Self::read(memory, block * self.layout.block_stride + offset))
            .sum()
    }

    fn index(&self, name: &str) -> u64 {
        self.names.iter().position(|n| n == name).unwrap() as u64
    }

    /// Entries, returns, lost returns of a function.
    fn counts(&self, name: &str) -> [u64; 3] {
        let base = u64::from(HITS) + self.index(name) * u64::from(STRIDE);
        [0, 8, 16].map(|field| self.sum(&self.after, base + field) - self.sum(&self.before, base + field))
    }
}

/// Patches every function of [`ROUND`] and some more, as `payload` says for the counters at an offset.
fn patched_run(
    layout: Layout,
    payload: impl Fn(u32, u32, bool) -> Payload,
    walk: Payload,
) -> Option<Outcome> {
    patched_run_with(layout, payload, walk, Takes::NONE)
}

/// The same, with bodies that take something.
fn patched_run_with(
    layout: Layout,
    payload: impl Fn(u32, u32, bool) -> Payload,
    walk: Payload,
    takes: Takes,
) -> Option<Outcome> {
    patched_run_on("max", layout, payload, walk, takes)
}

/// The same on a processor of qemu's: `max`, or one that has nothing but ARMv8.0.
fn patched_run_on(
    processor: &str,
    layout: Layout,
    payload: impl Fn(u32, u32, bool) -> Payload,
    walk: Payload,
    takes: Takes,
) -> Option<Outcome> {
    let flags: &[&str] = if processor == "max" { &[] } else { &["-DARMV8_0"] };
    let (qemu, program) = (qemu()?, compile_with("selfpatch.c", flags)?);
    let functions = functions(&program);
    let mut names: Vec<_> = ROUND.iter().map(|&(name, _, returns)| (name, returns.is_some())).collect();
    names.extend(["leaf_signal", "yields"].into_iter().chain(WALKERS.map(|w| w.0)).map(|name| (name, true)));
    names.push(("walk", false));
    let plan = plan(&layout, &functions, &names, payload, walk, takes);
    let files = ["plan", "out"].map(|end| program.with_extension(end));
    fs::write(&files[0], plan.0).unwrap();
    let output = run_on(&qemu, processor, &program, &[&files[0], &files[1]]);
    let numbers: Vec<u64> = String::from_utf8(output.stdout)
        .unwrap()
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let dump = fs::read(&files[1]).unwrap();
    let (before, after) = dump.split_at(dump.len() / 2);
    for file in files.iter().map(|f| f.as_path()).chain([Path::new(&program)]) {
        fs::remove_file(file).unwrap();
    }
    Some(Outcome {
        layout,
        names: names.iter().map(|n| n.0.to_owned()).collect(),
        before: before.to_vec(),
        after: after.to_vec(),
        rounds: numbers[0] * numbers[1],
        handled: numbers[2],
        foreign: numbers[3],
    })
}

fn plan(
    layout: &Layout,
    functions: &BTreeMap<String, Function>,
    names: &[(&str, bool)],
    payload: impl Fn(u32, u32, bool) -> Payload,
    walk: Payload,
    takes: Takes,
) -> Plan {
    let isa = Machine::AArch64.isa();
    let runtime = isa.runtime(ARENA, layout).unwrap();
    let mut arena = runtime.code.clone();
    let mut patches = vec![];
    for (index, &(name, returns)) in names.iter().enumerate() {
        let Function { address, code } = &functions[name];
        let targets = BranchTargets::default();
        let site = Site::new(*address, code, &targets);
        let displaced = isa.verdict(&site).jump.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let offset = (displaced.start - address) as usize;
        let detour_address = ARENA + arena.len() as u64;
        let counters = HITS + index as u32 * STRIDE;
        let run = |name: &str, counter| Run {
            body: functions[name].address,
            takes,
            frame: 1024,
            vectors: true,
            calculates: true,
            site: counters + counter,
            operands: &[],
        };
        let runs = [run("body_at_entry", BODIES[0]), run("body_at_return", BODIES[1])];
        let Detour { code: machine_code, .. } = isa
            .detour(&DetourRequest {
                runs: Runs { entry: &runs[..1], at_return: &runs[1..] },
                address: detour_address,
                displaced,
                original: &code[offset..offset + 4],
                site: &site,
                payload: match name {
                    "walk" => walk,
                    _ => payload(counters, 2 * index as u32, returns),
                },
                stack: detour::Stack::Enough,
                layout,
                runtime: &runtime,
                operands: if name == "ten" { &OPERANDS } else { &[] },
                tells: false,
            })
            .unwrap_or_else(|reason| panic!("{name}: {reason}"));
        arena.extend(machine_code);
        patches.push((displaced.start, isa.patch(&displaced, detour_address).unwrap()));
    }
    let mut plan = Plan(vec![]);
    plan.add(0, layout.threads, 0x2000, &[]);
    // The cursor starts at 1, behind the overflow block.
    plan.add(4, layout.block_cursor, 8, &1u64.to_le_bytes());
    // A process without it is a forked child.
    plan.add(4, layout.origin, 8, &1u64.to_le_bytes());
    let blocks = u64::from(layout.block_count) * layout.block_stride;
    plan.add(0, layout.blocks, blocks, &[]);
    if layout.gate != 0 {
        plan.add(4, layout.gate, 8, &u64::from(detour::gate::GATE_SHUT).to_le_bytes());
    }
    let returns = detour::return_sizes(layout.return_bits, layout.slot_shift).into_iter().sum();
    plan.add(0, layout.pages, returns, &[]);
    plan.add(1, ARENA, arena.len() as u64, &arena);
    for (address, patch) in patches {
        plan.add(2, address, 4, &patch);
    }
    plan.add(3, layout.blocks, blocks, &[]);
    plan
}

fn count(offset: u32, _id: u32, _returns: bool) -> Payload {
    Payload { entry: Steps::of([EntryStep::Count(offset)]), ..Payload::default() }
}

fn count_pairs(offset: u32, id: u32, returns: bool) -> Payload {
    let steps = Steps::of([ReturnStep::Count(offset + 8)]);
    let followed = returns.then_some(Followed { lost: offset + 16, steps, way: Way::Paired });
    Payload { followed, ..count(offset, id, returns) }
}

/// The order of the steps differs from function to function: it makes no difference.
fn everything(offset: u32, id: u32, returns: bool) -> Payload {
    let (hits, record) = (EntryStep::Count(offset), EntryStep::Record { id, arguments: 10 });
    let count = ReturnStep::Count(offset + 8);
    let time = ReturnStep::Time(offset + 24);
    let record_return = ReturnStep::Record { id: id + 1 };
    let (entry, steps) = match id / 2 % 3 {
        0 => ([hits, record], [count, record_return, time]),
        1 => ([record, hits], [time, record_return, count]),
        _ => ([hits, record], [record_return, count, time]),
    };
    let followed = Followed { lost: offset + 16, steps: Steps::of(steps), way: Way::Paired };
    Payload { hooks: Steps::default(), entry: Steps::of(entry), followed: returns.then_some(followed) }
}

fn entries_are_exact(outcome: &Outcome) {
    for &(name, entries, _) in ROUND {
        assert_eq!(outcome.counts(name)[0], entries * outcome.rounds, "entries of {name}");
    }
    assert_eq!(outcome.counts("leaf_signal")[0], outcome.handled);
    assert!(outcome.handled > 0, "no signal came");
    assert_eq!(outcome.counts("yields")[0], 2);
}

fn returns_are_exact(outcome: &Outcome) {
    entries_are_exact(outcome);
    for &(name, entries, returns) in ROUND {
        let Some(returns) = returns else { continue };
        let lost = if name == "jumper" { 0 } else { entries - returns };
        let [_, seen, missed] = outcome.counts(name);
        assert_eq!([seen, missed], [returns, lost].map(|n| n * outcome.rounds), "returns of {name}");
    }
    assert_eq!(outcome.counts("leaf_signal")[1..], [outcome.handled, 0]);
    assert_eq!(outcome.counts("yields")[1..], [2, 0]);
}

/// All that holds when returns may be lost.
fn entries_return_or_are_lost(outcome: &Outcome) -> u64 {
    entries_are_exact(outcome);
    let mut lost = 0;
    for &(name, entries, returns) in ROUND {
        if returns.is_some() && name != "jumper" {
            let [_, seen, missed] = outcome.counts(name);
            assert_eq!(seen + missed, entries * outcome.rounds, "returns of {name}");
            lost += missed;
        }
    }
    lost
}

#[test]
fn entries_are_counted_exactly() {
    if let Some(outcome) = patched_run(layout(), count, Payload::default()) {
        entries_are_exact(&outcome);
    }
}

/// By a loop where the processor has nothing else, and by one instruction where it has.
#[test]
fn numbers_are_exact_however_they_are_added() {
    for (processor, additions) in [("cortex-a53", Additions::Loops), ("max", Additions::Single)] {
        let layout = Layout { additions, ..layout() };
        let run = |payload: fn(u32, u32, bool) -> Payload| {
            patched_run_on(processor, layout, payload, Payload::default(), Takes::NONE)
        };
        let Some(outcome) = run(count) else { return };
        entries_are_exact(&outcome);
        for payload in [count_pairs, everything] {
            let Some(outcome) = run(payload) else { return };
            returns_are_exact(&outcome);
        }
    }
}

/// Where in the overflow block nothing else is.
const GATE: u64 = 0x8_0000;

/// A shut gate to which no tool comes: who has waited opens it, and nobody sees anything of it but the time.
#[test]
fn a_gate_opens_itself_and_changes_nothing() {
    let gated =
        |offset, id, returns| Payload { hooks: Steps::of([Hook::Gate]), ..count(offset, id, returns) };
    let gate = layout().blocks + GATE;
    let Some(outcome) = patched_run(Layout { gate, ..layout() }, gated, Payload::default()) else { return };
    entries_are_exact(&outcome);
    let word = |offset: u32| {
        (Outcome::read(&outcome.after, GATE + u64::from(offset & !7)) >> (8 * (offset & 7))) as u32
    };
    let [state, arrived, served, late] = [
        detour::gate::GATE_STATE,
        detour::gate::GATE_ARRIVED,
        detour::gate::GATE_SERVED,
        detour::gate::GATE_LATE,
    ]
    .map(word);
    assert_eq!((state, served), (0, 0));
    assert!(late > 0 && late <= arrived, "{late} of {arrived}");
}

#[test]
fn returns_are_paired_exactly() {
    if let Some(outcome) = patched_run(layout(), count_pairs, Payload::default()) {
        returns_are_exact(&outcome);
    }
}

#[test]
fn calls_that_were_looked_at_are_still_followed() {
    let Some(outcome) = patched_run(layout(), count_pairs, Payload::default()) else { return };
    // A program that walks its own frames, and asks nobody, sees return points: 4 frames, 1, 1, 1 and 1.
    assert_eq!(outcome.foreign, 8);
    for (name, entries) in WALKERS {
        assert_eq!(outcome.counts(name), [entries, entries, 0], "{name}");
    }
}

#[test]
fn histograms_and_records_agree_with_the_counts() {
    let Some(outcome) = patched_run(layout(), everything, Payload::default()) else { return };
    returns_are_exact(&outcome);
    let blocks = &outcome.after;
    let mut hits = 0;
    for (index, name) in outcome.names.iter().enumerate() {
        let base = u64::from(HITS) + index as u64 * u64::from(STRIDE);
        hits += outcome.sum(blocks, base) + outcome.sum(blocks, base + 8);
        let histogram = base + 24;
        let buckets: u64 = (0..u64::from(detour::LATENCY_LENGTH))
            .map(|bucket| outcome.sum(blocks, histogram + u64::from(detour::LATENCY_BUCKETS) + 8 * bucket))
            .sum();
        let returns = outcome.sum(blocks, base + 8);
        assert_eq!(outcome.sum(blocks, histogram), returns, "{name}");
        assert_eq!(buckets, returns, "{name}");
    }
    let recorded = outcome.sum(blocks, u64::from(detour::BLOCK_RING_HEAD));
    let lost = outcome.sum(blocks, u64::from(detour::BLOCK_RING_LOST));
    assert_eq!(recorded + lost, hits);
    records_are_whole(&outcome);
}

/// Every record of every ring: complete, in order, entries with their arguments, returns later than their
/// entries.
fn records_are_whole(outcome: &Outcome) {
    records_hold(outcome, &Vec::from_iter(1..=10));
}

/// The same, with what the records of entries of `ten` hold.
fn records_hold(outcome: &Outcome, ten: &[u64]) {
    let mut tens = 0;
    for block in 0..u64::from(outcome.layout.block_count) {
        let base = block * outcome.layout.block_stride;
        let read = |offset: u64| Outcome::read(&outcome.after, base + offset);
        for position in 0..read(u64::from(detour::BLOCK_RING_HEAD)) {
            let at = u64::from(RING) + (position << detour::RECORD_SHIFT);
            let field = |offset: u32| read(at + u64::from(offset));
            let value = |n: u64| read(at + u64::from(detour::RECORD_VALUES) + 8 * n);
            assert_eq!(field(detour::RECORD_SEQUENCE), position + 1);
            let id = field(detour::RECORD_ID) & 0xffff_ffff;
            assert_eq!(field(detour::RECORD_SLOT) % 16, 0);
            let name = &outcome.names[(id / 2) as usize];
            if id % 2 == 1 {
                assert!(value(1) <= field(detour::RECORD_TIME), "{name} returns before it is entered");
            }
            match (name.as_str(), id % 2) {
                ("ten", 0) => {
                    tens += 1;
                    assert_eq!((0..ten.len() as u64).map(value).collect::<Vec<_>>(), ten);
                }
                ("ten", _) => assert_eq!(value(0), 385),
                ("starts_adrp", 1) => assert_eq!(value(0), 4711),
                _ => {}
            }
        }
    }
    assert!(tens > 0);
}

#[test]
fn operands_are_recorded() {
    let fetch = |offset, id, returns| {
        let entry = Steps::of([EntryStep::Fetch { id }, EntryStep::Count(offset)]);
        Payload { entry, ..everything(offset, id, returns) }
    };
    let Some(outcome) = patched_run(layout(), fetch, Payload::default()) else { return };
    returns_are_exact(&outcome);
    // The 2nd argument times 8, less 8, leads to the 10th; nothing is missing.
    records_hold(&outcome, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 0]);
}

#[test]
fn threads_without_a_block_share_the_overflow_block() {
    let layout = Layout { block_count: 3, ..layout() };
    let Some(outcome) = patched_run(layout, count_pairs, Payload::default()) else { return };
    returns_are_exact(&outcome);
}

const TAKES: Takes = Takes::of(&[
    Extra::Site,
    Extra::Time,
    Extra::Entered,
    Extra::Tid,
    Extra::StackPointer,
    Extra::InstructionPointer,
    Extra::Registers,
    Extra::Floats,
]);

fn call_bodies(offset: u32, id: u32, returns: bool) -> Payload {
    let Payload { followed, .. } = count_pairs(offset, id, returns);
    let (count, run) = (EntryStep::Count(offset), EntryStep::Run(TAKES));
    let (count_return, run_at_return) = (ReturnStep::Count(offset + 8), ReturnStep::Run(TAKES));
    let (entry, steps) = match id / 2 % 2 {
        0 => ([count, run], [count_return, run_at_return]),
        _ => ([run, count], [run_at_return, count_return]),
    };
    let followed = followed.map(|followed| Followed { steps: Steps::of(steps), ..followed });
    Payload { entry: Steps::of(entry), followed, ..Payload::default() }
}

/// How often bodies were called at entries and returns of all functions, and how often they were not.
fn called(outcome: &Outcome) -> [u64; 3] {
    let mut called = [0, 0];
    for name in &outcome.names {
        let base = u64::from(HITS) + outcome.index(name) * u64::from(STRIDE);
        for (called, counter) in called.iter_mut().zip(BODIES) {
            *called += outcome.sum(&outcome.after, base + u64::from(counter));
        }
    }
    [called[0], called[1], outcome.sum(&outcome.after, u64::from(detour::BLOCK_UNRUN))]
}

#[test]
fn bodies_are_called_at_each_entry_and_return_and_told_what_there_was() {
    let Some(outcome) = patched_run_with(layout(), call_bodies, Payload::default(), TAKES) else { return };
    returns_are_exact(&outcome);
    for name in outcome.names.iter().filter(|name| *name != "walk") {
        let base = u64::from(HITS) + outcome.index(name) * u64::from(STRIDE);
        let sum = |at: u32| outcome.sum(&outcome.after, base + u64::from(at));
        assert_eq!([sum(BODIES[0]), sum(BODIES[1])], [sum(0), sum(8)], "{name}");
    }
    assert_eq!(called(&outcome)[2], 0);
}

#[test]
fn threads_without_a_block_call_no_bodies_and_are_counted() {
    let layout = Layout { block_count: 3, ..layout() };
    let Some(outcome) = patched_run_with(layout, call_bodies, Payload::default(), TAKES) else { return };
    returns_are_exact(&outcome);
    let hits: u64 = outcome
        .names
        .iter()
        .map(|name| u64::from(HITS) + outcome.index(name) * u64::from(STRIDE))
        .map(|base| outcome.sum(&outcome.after, base) + outcome.sum(&outcome.after, base + 8))
        .sum();
    let [at_entry, at_return, unrun] = called(&outcome);
    assert!(unrun > 0 && at_entry > 0 && at_return > 0, "{:?}", called(&outcome));
    assert_eq!(at_entry + at_return + unrun, hits);
}

#[test]
fn a_thread_table_that_is_full_is_no_harm() {
    let layout = Layout { thread_bits: 1, ..layout() };
    let Some(outcome) = patched_run(layout, count_pairs, Payload::default()) else { return };
    returns_are_exact(&outcome);
}

#[test]
fn stack_pages_without_a_shadow_block_lose_returns_and_count_them() {
    let returns = layout().pages + detour::return_sizes(1, 4)[0];
    let layout = Layout { return_bits: 1, returns, ..layout() };
    let Some(outcome) = patched_run(layout, count_pairs, Payload::default()) else { return };
    assert!(entries_return_or_are_lost(&outcome) > 0);
}
