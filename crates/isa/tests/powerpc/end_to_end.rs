//! A program whose functions are patched with generated detours while its threads run them: what the detours counted is
//! what the program counted.
//!
//! `selfpatch.c` is the program. It has functions that are entered globally and locally, recursion, tail calls, longjmp, forced
//! unwinding, conditional branches and calls as displaced instructions, signal handlers, and a coroutine that changes threads; it
//! checks the results of its functions and every register around them.

use crate::cross::Cross;
use object::{Object, ObjectSection, ObjectSymbol};
use std::{collections::BTreeMap, fs};
use trapless_isa::{
    BranchTargets, Detour, DetourRequest, Isa, Layout, Mechanism, Reason, Site, detour::*, payload::*,
    powerpc::POWERPC64LE,
};

const ARENA: u64 = 0x1100_0000;
const ARENA_SIZE: u64 = 0x4_0000;
const THREADS: u64 = 0x5000_0000;
const HEADER: u64 = 0x5010_0000;
const HEADER_SIZE: u64 = 0x4_0000;
const BLOCKS: u64 = 0x5100_0000;
const RETURNS: u64 = 0x6000_0000;
const STRIDE: u64 = 0x1_0000;
const ORIGIN: u64 = 7;
const RING_BITS: u32 = 8;
/// Log2 of how many shadow blocks there are where every call must be followed. With eight times fewer, stacks that lie in an unlucky way fill the
/// places that are tried for some pages.
const RETURN_BITS: u32 = 13;
const LATENCY: u32 = 0x1000;
/// Of `keep_recorded`.
const OTHER_LATENCY: u32 = 0x3000;
const RING: u32 = 0x8000;

/// Where the counters of the n-th function are in a block.
fn hits(n: usize) -> u32 {
    BLOCK_COUNTERS + 24 * n as u32
}
fn returned(n: usize) -> u32 {
    hits(n) + 8
}
fn lost(n: usize) -> u32 {
    hits(n) + 16
}

fn layout(thread_bits: u32, return_bits: u32, block_count: u32) -> Layout {
    Layout {
        threads: THREADS,
        thread_bits,
        origin: HEADER,
        block_cursor: HEADER + 8,
        blocks: BLOCKS,
        block_stride: STRIDE,
        block_count,
        ring: RING,
        ring_bits: RING_BITS,
        self_pointer: true,
        tid_offset: None,
        selector: 0x63,
        pages: HEADER + 0x4000,
        returns: RETURNS,
        return_bits,
        slot_shift: POWERPC64LE.facts().slot_shift,
        arenas: HEADER + 0x100,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: trapless_isa::Additions::Loops,
    }
}

/// The functions of the program, in the order of its output, and the functions that sites in their middle are in.
const NAMES: [&str; 32] = [
    "leaf",
    "fib",
    "with_toc",
    "tail_a",
    "tail_b",
    "even",
    "odd",
    "jumper",
    "floats",
    "large",
    "branch_first",
    "count_first",
    "call_first",
    "call_first_site",
    "return_address",
    "keep_plain",
    "keep_followed",
    "red_zone_site",
    "recorded",
    "timed",
    "in_handler",
    "yields",
    "alloca_user",
    "unwound",
    "unwinder",
    "forks",
    "keep_recorded",
    "deep",
    "cleaned",
    "forces",
    "spares",
    "spares_site",
];
/// What the unwinder asks about addresses: probed, too, and not counted.
const LOOKED_UP_BY: &str = "_dl_find_object";
const MIDDLES: [(&str, &str); 3] =
    [("call_first_site", "call_first"), ("red_zone_site", "red_zone"), ("spares_site", "spares")];

/// What the test asks for at each function.
fn payload(n: usize, followed: bool, gated: bool) -> Payload {
    let name = NAMES[n];
    let latency = match name {
        "timed" => Some(LATENCY),
        "keep_recorded" => Some(OTHER_LATENCY),
        _ => None,
    };
    let id = match name {
        "recorded" => Some(0),
        "keep_recorded" => Some(2),
        _ => None,
    };
    let record = id.map(|id| EntryStep::Record { id, arguments: 8 });
    // Around that one every register is compared.
    let hooks = Steps::some_of([(gated && name == "keep_plain").then_some(Hook::Gate)]);
    let steps = Steps::some_of([
        Some(ReturnStep::Count(returned(n))),
        id.map(|id| ReturnStep::Record { id: id + 1 }),
        latency.map(ReturnStep::Time),
    ]);
    Payload {
        hooks,
        entry: Steps::some_of([Some(EntryStep::Count(hits(n))), record]),
        followed: followed.then_some(Followed { lost: lost(n), steps, way: Way::Paired }),
    }
}

/// The program's code and symbols.
struct Program {
    text: Vec<u8>,
    address: u64,
    symbols: BTreeMap<String, (u64, u64)>,
}

impl Program {
    fn read(content: &[u8]) -> Self {
        let file = object::File::parse(content).expect("an ELF file");
        let text = file.section_by_name(".text").expect("code");
        let symbols = file
            .symbols()
            .filter_map(|s| Some((s.name().ok()?.to_owned(), (s.address(), s.size()))))
            .collect();
        Self { text: text.data().expect("bytes").into(), address: text.address(), symbols }
    }

    fn site<'a>(&'a self, name: &str, targets: &'a BranchTargets) -> Site<'a> {
        let middle = MIDDLES.iter().find(|(site, _)| *site == name).map(|&(_, function)| function);
        let (function, size) = self.symbols[middle.unwrap_or(name)];
        let start = (function - self.address) as usize;
        let code = &self.text[start..start + size as usize];
        Site { address: self.symbols[name].0, ..Site::new(function, code, targets) }
    }
}

#[derive(Default)]
struct Plan(Vec<u8>);

impl Plan {
    fn item(&mut self, kind: u64, address: u64, size: u64, bytes: &[u8]) {
        for number in [kind, address, size] {
            self.0.extend(number.to_le_bytes());
        }
        self.0.extend_from_slice(bytes);
    }
}

/// The arena's code, the patches, and which functions are followed.
fn plan(program: &Program, layout: &Layout) -> (Plan, Vec<bool>) {
    let targets = BranchTargets::default();
    let runtime = POWERPC64LE.runtime(ARENA, layout).expect("the runtime");
    let mut arena = runtime.code.clone();
    let mut plan = Plan::default();
    let mut patches = vec![];
    let mut followed = vec![];
    let lookup = Payload { hooks: Steps::of([Hook::Translate(Lookup::FindObject)]), ..Payload::default() };
    for (n, name) in NAMES.iter().chain([&LOOKED_UP_BY]).enumerate() {
        let site = program.site(name, &targets);
        let (_, displaced) = POWERPC64LE.verdict(&site).best(&[Mechanism::Jump]).expect(name);
        let refused = match *name {
            "return_address" => Err(Reason::ReadsReturnAddress),
            "call_first_site" | "red_zone_site" | "spares_site" => Err(Reason::ReturnsOddly),
            _ => Ok(()),
        };
        assert_eq!(POWERPC64LE.return_verdict(&site), refused, "{name}");
        let follow = refused.is_ok() && !["keep_plain", "spares", LOOKED_UP_BY].contains(name);
        arena.resize(arena.len().next_multiple_of(32), 0);
        let offset = (displaced.start - site.function) as usize;
        let request = DetourRequest {
            runs: trapless_isa::body::Runs::default(),
            address: ARENA + arena.len() as u64,
            displaced,
            original: &site.code[offset..offset + usize::from(displaced.length)],
            site: &site,
            payload: if *name == LOOKED_UP_BY { lookup } else { payload(n, follow, layout.gate != 0) },
            stack: Stack::Enough,
            layout,
            runtime: &runtime,
            operands: &[],
            tells: false,
        };
        let Detour { code, places, return_point, .. } = POWERPC64LE.detour(&request).expect(name);
        assert_eq!(places.len(), 2, "{name}: the displaced instruction and the next");
        assert_eq!(return_point.is_some(), follow, "{name}");
        patches.push((displaced.start, POWERPC64LE.patch(&displaced, request.address).expect(name)));
        arena.extend(code);
        followed.push(follow);
    }
    arena.resize(ARENA_SIZE as usize, 0);
    plan.item(0, THREADS, 64 << layout.thread_bits, &[]);
    plan.item(0, HEADER, HEADER_SIZE, &[]);
    let [pages, pool, blocks] = return_sizes(layout.return_bits, layout.slot_shift);
    assert!(layout.pages + pages <= HEADER + HEADER_SIZE);
    plan.item(0, RETURNS, (pool + blocks).next_multiple_of(STRIDE), &[]);
    plan.item(1, BLOCKS, u64::from(layout.block_count) * STRIDE, &[]);
    if layout.gate != 0 {
        plan.item(4, layout.gate, 8, &u64::from(gate::GATE_SHUT).to_le_bytes());
    }
    let header = [ORIGIN, 1].map(u64::to_le_bytes).concat();
    plan.item(4, HEADER, header.len() as u64, &header);
    let arenas = [ARENA, ARENA_SIZE, 0, 0].map(u64::to_le_bytes).concat();
    plan.item(4, layout.arenas, arenas.len() as u64, &arenas);
    plan.item(2, ARENA, ARENA_SIZE, &arena);
    for (address, bytes) in patches {
        plan.item(3, address, bytes.len() as u64, &bytes);
    }
    (plan, followed)
}

/// The blocks that the program left behind.
struct Blocks(Vec<u8>);

impl Blocks {
    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).step_by(STRIDE as usize)
    }

    fn sum(&self, offset: u32) -> u64 {
        self.starts().map(|block| self.number(block + offset as usize)).sum()
    }

    /// The complete records of all rings, as words of 64 bits.
    fn records(&self) -> Vec<[u64; 16]> {
        let mut records = vec![];
        for block in self.starts() {
            for position in 0..1 << RING_BITS {
                let at = block + RING as usize + (position << RECORD_SHIFT);
                let record: [u64; 16] = std::array::from_fn(|i| self.number(at + 8 * i));
                if record[0] == position as u64 + 1 {
                    records.push(record);
                }
            }
        }
        records
    }
}

/// Runs the program with probe memory of some size. Returns the program's own counts of calls and returns, whether
/// each function is followed, and the blocks.
fn run(cross: &Cross, name: &str, processor: &str, layout: &Layout) -> (Vec<(u64, u64)>, Vec<bool>, Blocks) {
    let file = cross.compile_once("selfpatch.c");
    let program = Program::read(&fs::read(&file).expect("the program"));
    let (plan, followed) = plan(&program, layout);
    let (input, output) = (cross.scratch(&format!("{name}.plan")), cross.scratch(&format!("{name}.blocks")));
    fs::write(&input, plan.0).expect("the plan is written");
    let finished = cross.run(&file, processor, &[&input, &output]).output().expect("qemu starts");
    let errors = String::from_utf8_lossy(&finished.stderr);
    assert!(finished.status.success(), "{name}: {}: {errors}", finished.status);
    let counts = String::from_utf8_lossy(&finished.stdout)
        .lines()
        .zip(NAMES)
        .map(|(line, name)| {
            let mut words = line.split_whitespace();
            assert_eq!(words.next(), Some(name));
            let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a count");
            (number(), number())
        })
        .collect();
    (counts, followed, Blocks(fs::read(output).expect("the blocks")))
}

fn assert_exact(name: &str, counts: &[(u64, u64)], followed: &[bool], blocks: &Blocks) -> u64 {
    let mut all_lost = 0;
    for (n, &(calls, returns)) in counts.iter().enumerate() {
        let function = NAMES[n];
        assert!(calls > 0, "{name}: {function} is called");
        assert_eq!(blocks.sum(hits(n)), calls, "{name}: entries of {function}");
        if followed[n] {
            let lost = blocks.sum(lost(n));
            let seen = blocks.sum(returned(n)) + lost;
            assert!(seen >= returns && seen <= calls, "{name}: returns of {function}: {seen} of {returns}");
            assert!(lost > 0 || seen == returns, "{name}: returns of {function}: {seen} of {returns}");
            all_lost += lost;
        }
    }
    all_lost
}

#[test]
fn counts_are_exact_while_threads_run() {
    let Some(cross) = Cross::find() else { return };
    for processor in ["power8", "power10"] {
        let (counts, followed, blocks) = run(&cross, processor, processor, &layout(8, RETURN_BITS, 32));
        let all_lost = assert_exact(processor, &counts, &followed, &blocks);
        assert_eq!(all_lost, 0, "there is room for every call");
        let calls: u64 = counts.iter().map(|count| count.0).sum();
        let follows = followed.iter().filter(|&&followed| followed).count();
        println!("{processor}: {calls} calls counted, {follows} of {} functions followed", NAMES.len());

        for block in blocks.starts().filter(|&block| blocks.number(block + BLOCK_OWNER as usize) != 0) {
            assert_eq!(blocks.number(block + BLOCK_ORIGIN as usize), ORIGIN);
        }
        assert_timed(&blocks, LATENCY, counts[number_of("timed")].0);
        assert_timed(&blocks, OTHER_LATENCY, counts[number_of("keep_recorded")].0);
        assert_recorded(&blocks, counts[number_of("recorded")].0 + counts[number_of("keep_recorded")].0);
    }
}

/// Where in the overflow block nothing else is, and the program leaves alone what it finds.
const GATE: usize = 96;

/// A shut gate to which no tool comes: who has waited opens it, and nobody sees anything of it but the time.
#[test]
fn a_gate_opens_itself_and_changes_nothing() {
    let Some(cross) = Cross::find() else { return };
    let layout = Layout { gate: BLOCKS + GATE as u64, ..layout(8, RETURN_BITS, 32) };
    let (counts, followed, blocks) = run(&cross, "gate", "power8", &layout);
    assert_eq!(assert_exact("gate", &counts, &followed, &blocks), 0);
    let word = |offset: u32| (blocks.number(GATE + (offset & !7) as usize) >> (8 * (offset & 7))) as u32;
    let [state, arrived, served, late] =
        [gate::GATE_STATE, gate::GATE_ARRIVED, gate::GATE_SERVED, gate::GATE_LATE].map(word);
    assert_eq!((state, served), (0, 0));
    assert!(late > 0 && late <= arrived, "{late} of {arrived}");
}

fn number_of(name: &str) -> usize {
    NAMES.iter().position(|&other| other == name).expect(name)
}

fn assert_timed(blocks: &Blocks, latency: u32, calls: u64) {
    let buckets = (0..LATENCY_LENGTH).map(|bucket| blocks.sum(latency + LATENCY_BUCKETS + 8 * bucket));
    assert_eq!(blocks.sum(latency + LATENCY_COUNT), calls);
    assert_eq!(buckets.sum::<u64>(), calls);
    let longest = blocks.starts().map(|block| blocks.number(block + (latency + LATENCY_MAX) as usize)).max();
    assert!(Some(blocks.sum(latency + LATENCY_SUM)) >= longest && longest > Some(0));
}

/// The records of `recorded` say what it was called with and what it returned; none is lost without being counted.
fn assert_recorded(blocks: &Blocks, calls: u64) {
    let records = blocks.records();
    assert_eq!(records.len() as u64 + blocks.sum(BLOCK_RING_LOST), 2 * calls);
    let mut entries = BTreeMap::new();
    for [_, time, id, slot, values @ ..] in &records {
        match *id as u32 {
            0 => {
                assert_eq!(values[1..8], [1, 2, 3, 4, 5, 6, 7]);
                entries.insert((*slot, *time), values[0]);
            }
            1 => {
                let entry = entries.iter().rfind(|((s, t), _)| s == slot && *t <= values[1]);
                assert_eq!(entry.map(|(_, a)| a + 28), Some(values[0]), "the return pairs with its entry");
                assert!(values[1] <= *time);
            }
            other => assert!([2, 3].contains(&other)),
        }
    }
}

#[test]
fn counts_are_exact_when_memory_is_short() {
    let Some(cross) = Cross::find() else { return };
    for (name, layout) in [
        ("crowded threads", layout(3, RETURN_BITS, 32)),
        ("more threads than entries", layout(2, RETURN_BITS, 32)),
        ("fewer blocks than threads", layout(8, RETURN_BITS, 3)),
        ("overflow block only", layout(8, RETURN_BITS, 1)),
        ("few shadow blocks", layout(8, 2, 32)),
    ] {
        let (counts, followed, blocks) = run(&cross, &name.replace(' ', "-"), "power10", &layout);
        let lost = assert_exact(name, &counts, &followed, &blocks);
        println!("{name}: {lost} calls not followed");
        assert_eq!(lost > 0, name != "crowded threads", "{name}");
    }
}
