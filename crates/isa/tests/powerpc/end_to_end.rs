//! A program whose functions are patched with generated detours while its threads run them: what the detours counted is
//! what the program counted.
//!
//! `selfpatch.c` is the program. It has functions that are entered globally and locally, recursion, tail calls, longjmp, conditional
//! branches and calls as displaced instructions, signal handlers, and a coroutine that changes threads; it checks the
//! results of its functions and every register around them.

use crate::cross::Cross;
use object::{Object, ObjectSection, ObjectSymbol};
use std::{collections::BTreeMap, fs};
use trapless_isa::{
    Actions, BranchTargets, Detour, DetourRequest, EntryActions, Isa, Layout, Mechanism, Reason,
    ReturnActions, Site, detour::*, powerpc::POWERPC64LE,
};

const ARENA: u64 = 0x1100_0000;
const ARENA_SIZE: u64 = 0x4_0000;
const THREADS: u64 = 0x5000_0000;
const HEADER: u64 = 0x5010_0000;
const BLOCKS: u64 = 0x5100_0000;
const RETURNS: u64 = 0x6000_0000;
const STRIDE: u64 = 0x1_0000;
const ORIGIN: u64 = 7;
const RING_BITS: u32 = 8;
const LATENCY: u32 = 0x1000;
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
        tid_offset: None,
        returns: RETURNS,
        return_bits,
        arenas: HEADER + 0x100,
        returns_used: HEADER + 0x1000,
    }
}

/// The functions of the program, in the order of its output, and the functions that sites in their middle are in.
const NAMES: [&str; 26] = [
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
];
const MIDDLES: [(&str, &str); 2] = [("call_first_site", "call_first"), ("red_zone_site", "red_zone")];

/// What the test asks for at each function.
fn actions(n: usize, followed: bool) -> Actions {
    let record = |id| Some(Record { id, arguments: 8 });
    let is = |name| NAMES[n] == name;
    let ret = ReturnActions {
        lost: lost(n),
        hits: Some(returned(n)),
        latency: is("timed").then_some(LATENCY),
        record: if is("recorded") { record(1) } else { None },
    };
    let entry = EntryActions { hits: Some(hits(n)), record: if is("recorded") { record(0) } else { None } };
    Actions { entry, ret: followed.then_some(ret), restore_returns: is("unwinder") }
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
        Site { address: self.symbols[name].0, function, code, padding: &[], targets }
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
    for (n, name) in NAMES.iter().enumerate() {
        let site = program.site(name, &targets);
        let (_, displaced) = POWERPC64LE.verdict(&site).best(&[Mechanism::Jump]).expect(name);
        let refused = match *name {
            "return_address" => Err(Reason::ReadsReturnAddress),
            "call_first_site" | "red_zone_site" => Err(Reason::ReturnsOddly),
            _ => Ok(()),
        };
        assert_eq!(POWERPC64LE.return_verdict(&site), refused, "{name}");
        let follow = refused.is_ok() && !["keep_plain", "unwinder"].contains(name);
        arena.resize(arena.len().next_multiple_of(32), 0);
        let offset = (displaced.start - site.function) as usize;
        let request = DetourRequest {
            address: ARENA + arena.len() as u64,
            displaced,
            original: &site.code[offset..offset + usize::from(displaced.length)],
            site: &site,
            actions: actions(n, follow),
            layout,
            runtime: &runtime,
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
    plan.item(0, HEADER, 0x1_0000, &[]);
    let tables = 1u64 << (layout.thread_bits + layout.return_bits + RETURN_SHIFT);
    plan.item(0, RETURNS, tables.next_multiple_of(STRIDE), &[]);
    plan.item(1, BLOCKS, u64::from(layout.block_count) * STRIDE, &[]);
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
fn run(cross: &Cross, name: &str, layout: &Layout) -> (Vec<(u64, u64)>, Vec<bool>, Blocks) {
    let file = cross.compile_once("selfpatch.c");
    let program = Program::read(&fs::read(&file).expect("the program"));
    let (plan, followed) = plan(&program, layout);
    let (input, output) = (cross.scratch(&format!("{name}.plan")), cross.scratch(&format!("{name}.blocks")));
    fs::write(&input, plan.0).expect("the plan is written");
    let finished = cross.run(&file, "power10", &[&input, &output]).output().expect("qemu starts");
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
    let (counts, followed, blocks) = run(&cross, "roomy", &layout(8, 10, 32));
    let all_lost = assert_exact("roomy", &counts, &followed, &blocks);
    assert_eq!(all_lost, 0, "there is room for every call");
    println!(
        "{} calls counted, {} of {} functions followed",
        counts.iter().map(|c| c.0).sum::<u64>(),
        followed.iter().filter(|&&f| f).count(),
        NAMES.len()
    );

    let owned = blocks.starts().filter(|&block| blocks.number(block + BLOCK_OWNER as usize) != 0);
    for block in owned {
        assert_eq!(blocks.number(block + BLOCK_ORIGIN as usize), ORIGIN);
    }

    let timed = NAMES.iter().position(|&name| name == "timed").unwrap();
    let buckets = (0..LATENCY_LENGTH).map(|bucket| blocks.sum(LATENCY + LATENCY_BUCKETS + 8 * bucket));
    assert_eq!(blocks.sum(LATENCY + LATENCY_COUNT), counts[timed].0);
    assert_eq!(buckets.sum::<u64>(), counts[timed].0);
    assert!(blocks.sum(LATENCY + LATENCY_SUM) >= blocks.sum(LATENCY + LATENCY_MAX));

    let recorded = NAMES.iter().position(|&name| name == "recorded").unwrap();
    let records = blocks.records();
    assert_eq!(records.len() as u64 + blocks.sum(BLOCK_RING_LOST), 2 * counts[recorded].0);
    let mut entries = BTreeMap::new();
    for record in &records {
        let [_, time, id, slot, values @ ..] = record;
        match *id as u32 {
            0 => {
                assert_eq!(values[1..8], [1, 2, 3, 4, 5, 6, 7]);
                entries.insert((*slot, *time), values[0]);
            }
            _ => {
                let argument = entries.iter().rfind(|((s, t), _)| s == slot && *t <= values[1]);
                assert_eq!(argument.map(|(_, a)| a + 28), Some(values[0]), "the return pairs with its entry");
                assert!(values[1] <= *time);
            }
        }
    }
}

#[test]
fn counts_are_exact_when_memory_is_short() {
    let Some(cross) = Cross::find() else { return };
    for (name, layout) in [
        ("crowded threads", layout(3, 10, 32)),
        ("more threads than entries", layout(2, 10, 32)),
        ("fewer blocks than threads", layout(8, 10, 3)),
        ("overflow block only", layout(8, 10, 1)),
        ("small return tables", layout(8, 2, 32)),
    ] {
        let (counts, followed, blocks) = run(&cross, &name.replace(' ', "-"), &layout);
        let lost = assert_exact(name, &counts, &followed, &blocks);
        println!("{name}: {lost} calls not followed");
        assert_eq!(lost > 0, name != "crowded threads", "{name}");
    }
}
