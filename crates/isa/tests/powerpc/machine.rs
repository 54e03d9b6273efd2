//! A world of code, stacks and probe memory in which generated code runs under qemu-user, step by step.
//!
//! The steps are written down first and played in one run, so what a step answers is looked at afterwards. `machine.c` plays them.

use crate::index::{Piece, index};
use crate::{cross::Cross, oracle::Random, state::Registers};
use std::{fs, ops::Range};
use trapless_isa::{
    BranchTargets, DetourRequest, Isa, Layout, Operand, Runtime, Site, body::Runs, detour::*, payload::*,
    powerpc::POWERPC64LE,
};

/// Where functions under test stand.
pub const FUNCTION: u64 = 0x100_0000;
pub const ARENA: u64 = 0x110_0000;
const ARENA_SIZE: u64 = 0x1_0000;
/// Behind what an arena says of itself.
const ROUTINES: u64 = ARENA + 64;
/// Where control may go, besides.
const PADS: u64 = 0x120_0000;
const STACK: u64 = 0x2000_0000;
const STACK_SIZE: u64 = 0x10_0000;
/// The stack pointer at the entry of a function under test.
pub const SLOT: u64 = STACK + STACK_SIZE / 2 + 0x20;
const HEADER: u64 = 0x2200_0000;
const THREADS: u64 = 0x2201_0000;
const BLOCKS: u64 = 0x2300_0000;
const BLOCK_STRIDE: u64 = 0x1_0000;
pub const BLOCK_COUNT: u32 = 4;
const RETURNS: u64 = 0x2400_0000;

pub const HITS: u32 = 128;
pub const LOST: u32 = 136;
pub const RETURNED: u32 = 144;
pub const LATENCY: u32 = 512;
pub const RING: u32 = 0x8000;

pub fn layout(return_bits: u32) -> Layout {
    Layout {
        threads: THREADS,
        thread_bits: 3,
        origin: HEADER,
        block_cursor: HEADER + 8,
        blocks: BLOCKS,
        block_stride: BLOCK_STRIDE,
        block_count: BLOCK_COUNT,
        ring: RING,
        ring_bits: 7,
        self_pointer: true,
        tid_offset: None,
        selector: 0x63,
        pages: RETURNS - return_sizes(return_bits, POWERPC64LE.facts().slot_shift)[0],
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

/// Where the list of pages, the pool and the shadow blocks are, one behind the other.
pub fn followed_memory(layout: &Layout) -> Range<u64> {
    layout.pages..layout.pages + return_sizes(layout.return_bits, layout.slot_shift).iter().sum::<u64>()
}

pub const NOP: u32 = 0x6000_0000;
pub const BLR: u32 = 0x4e80_0020;
/// What a call goes back to, and the body of a function that ends the run.
pub const HOME: u64 = pad(0);
pub const BODY: u64 = pad(20);

/// `b to`, at `at`.
pub fn branch(at: u64, to: u64) -> u32 {
    0x4800_0000 | (to.wrapping_sub(at) as u32 & 0x03ff_fffc)
}

/// Counts returns.
pub const FOLLOW: Payload = Payload {
    hooks: Steps::of([]),
    entry: Steps::of([EntryStep::Count(HITS)]),
    followed: Some(Followed {
        lost: LOST,
        steps: Steps::of([ReturnStep::Count(RETURNED)]),
        way: Way::Paired,
    }),
};
/// Times them, too.
pub const TIMED: Payload = Payload {
    followed: Some(Followed {
        lost: LOST,
        steps: Steps::of([ReturnStep::Count(RETURNED), ReturnStep::Time(LATENCY)]),
        way: Way::Paired,
    }),
    ..FOLLOW
};

/// The thread pointer of a thread; of number 0 it is 0, and it has no memory of its own.
pub fn thread(number: u64) -> u64 {
    number * 0x7f00_0123_4560
}

/// Random registers at the entry of `function`, with a stack pointer.
pub fn registers(
    random: &mut Random,
    function: u64,
    slot: u64,
    caller: u64,
    thread_pointer: u64,
) -> Registers {
    let mut registers = Registers { pc: function, lr: caller, ..Registers::default() };
    registers.gpr = std::array::from_fn(|_| random.next());
    (registers.gpr[1], registers.gpr[13]) = (slot, thread_pointer);
    (registers.cr, registers.xer) = (random.next() as u32, random.next() & 0xe00c_0000);
    (registers.ctr, registers.tar) = (random.next(), random.next());
    registers
}

/// What a run or a read answers, once the steps are played.
#[derive(Clone, Copy)]
pub struct Answer(usize);

/// A function with a detour.
#[derive(Clone, Copy)]
pub struct Probed {
    /// What the function's callers call.
    pub at: u64,
    /// Where a followed call returns.
    pub point: Option<u64>,
    /// Where its detour stands.
    pub detour: u64,
}

/// Steps to be played.
pub struct Script {
    pub layout: Layout,
    runtime: Runtime,
    free: u64,
    /// What detours tell of their instructions.
    pub told: Vec<Piece>,
    steps: Vec<u8>,
    answers: Vec<usize>,
}

impl Script {
    /// A world in which nothing has happened yet.
    pub fn new(return_bits: u32) -> Self {
        Self::laid_out(layout(return_bits))
    }

    /// One whose probe memory is laid out like this.
    pub fn laid_out(layout: Layout) -> Self {
        let runtime = POWERPC64LE.runtime(ROUTINES, &layout).expect("the runtime");
        let free = ROUTINES + runtime.code.len() as u64;
        let mut script = Script { layout, runtime, free, told: vec![], steps: vec![], answers: vec![] };
        let memory = [(HEADER, 0x2_0000), (BLOCKS, u64::from(BLOCK_COUNT) * BLOCK_STRIDE)];
        let code = [FUNCTION, ARENA, PADS].map(|at| (at, 0x1_0000));
        let followed = followed_memory(&layout);
        let start = followed.start & !0xffff;
        let followed = (start, (followed.end - start).next_multiple_of(0x1_0000));
        for (at, size) in memory.into_iter().chain(code).chain([followed, (STACK, STACK_SIZE)]) {
            script.step(0, at, size);
        }
        (0..64).for_each(|number| script.step(2, pad(number), number));
        let code = script.runtime.code.clone();
        script.write(ROUTINES, &code);
        script.start();
        script
    }

    fn step(&mut self, what: u64, at: u64, size: u64) {
        self.steps.extend([what, at, size].map(u64::to_le_bytes).concat());
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.step(1, at, bytes.len() as u64);
        self.steps.extend(bytes);
    }

    pub fn set(&mut self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }

    pub fn code(&mut self, at: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(at, &bytes);
    }

    /// Makes the probe memory new.
    pub fn forget(&mut self) {
        let followed = followed_memory(&self.layout);
        self.write(followed.start, &vec![0; (followed.end - followed.start) as usize]);
        self.write(THREADS, &[0; 0x1000]);
        self.write(BLOCKS, &vec![0; BLOCK_COUNT as usize * BLOCK_STRIDE as usize]);
        self.start();
    }

    fn start(&mut self) {
        self.write(HEADER, &[1u64, 1].map(u64::to_le_bytes).concat());
        self.write(self.layout.arenas, &[ARENA, ARENA_SIZE, 0, 0].map(u64::to_le_bytes).concat());
    }

    /// Puts `words` at `function`, with a detour for what stands at its start.
    pub fn probed(&mut self, function: u64, words: &[u32], payload: Payload) -> Probed {
        self.fetching(function, words, payload, &[])
    }

    /// The same, with what [`EntryStep::Fetch`] records.
    pub fn fetching(
        &mut self,
        function: u64,
        words: &[u32],
        payload: Payload,
        operands: &[Operand],
    ) -> Probed {
        self.detoured(function, words, payload, operands, Runs::default())
    }

    /// The same, with bodies that are called.
    pub fn calling(&mut self, function: u64, words: &[u32], payload: Payload, runs: Runs<'_>) -> Probed {
        self.detoured(function, words, payload, &[], runs)
    }

    fn detoured(
        &mut self,
        function: u64,
        words: &[u32],
        payload: Payload,
        operands: &[Operand],
        runs: Runs<'_>,
    ) -> Probed {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let targets = BranchTargets::default();
        let site = Site::new(function, &code, &targets);
        let displaced = POWERPC64LE.verdict(&site).jump.expect("a site for a branch");
        let address = self.free.next_multiple_of(32);
        let request = DetourRequest {
            runs,
            address,
            displaced,
            original: &code[(displaced.start - function) as usize..][..usize::from(displaced.length)],
            site: &site,
            payload,
            stack: Stack::Enough,
            layout: &self.layout,
            runtime: &self.runtime,
            operands,
            tells: true,
        };
        let detour = POWERPC64LE.detour(&request).expect("a detour");
        let patch = POWERPC64LE.patch(&displaced, address).expect("a patch");
        self.free = address + detour.code.len() as u64;
        assert!(self.free < ARENA + ARENA_SIZE);
        self.write(function, &code);
        self.write(displaced.start, &patch);
        self.write(address, &detour.code);
        let point = detour.return_point.map(|offset| address + u64::from(offset));
        self.told.push((address, displaced.start, detour.frames));
        Probed { at: function, point, detour: address }
    }

    /// Has the arena tell what its instructions stand for.
    pub fn tell(&mut self) {
        for (at, words) in index(ARENA, self.free.next_multiple_of(8), &self.told) {
            self.code(at, &words);
        }
    }

    /// Runs from the pc of `registers` to a pad.
    pub fn run(&mut self, registers: &Registers) -> Answer {
        self.step(3, registers.pc, 0);
        let r = registers;
        let others = [u64::from(r.cr), r.xer, r.ctr, r.lr, r.tar];
        self.steps.extend(r.gpr.iter().chain(&others).flat_map(|number| number.to_le_bytes()));
        self.answer(38 * 8)
    }

    pub fn read(&mut self, at: u64, size: u64) -> Answer {
        self.step(4, at, size);
        self.answer(size as usize)
    }

    /// The list of pages, the pool and the shadow blocks.
    pub fn read_followed(&mut self) -> Answer {
        let followed = followed_memory(&self.layout);
        self.read(followed.start, followed.end - followed.start)
    }

    /// A counter, over all blocks.
    pub fn counter(&mut self, counter: u32) -> Vec<Answer> {
        let at = |block: u64| BLOCKS + block * BLOCK_STRIDE + u64::from(counter);
        (0..u64::from(BLOCK_COUNT)).map(|block| self.read(at(block), 8)).collect()
    }

    /// The first `count` places of the ring of the first block that is claimed.
    pub fn records(&mut self, count: u64) -> Answer {
        self.read_block(1, RING, count << RECORD_SHIFT)
    }

    /// What lies in a block: number 0 is the overflow block, and 1 the first that is claimed.
    pub fn write_block(&mut self, block: u64, offset: u32, bytes: &[u8]) {
        self.write(BLOCKS + block * BLOCK_STRIDE + u64::from(offset), bytes);
    }

    /// The same, to be looked at.
    pub fn read_block(&mut self, block: u64, offset: u32, size: u64) -> Answer {
        self.read(BLOCKS + block * BLOCK_STRIDE + u64::from(offset), size)
    }

    fn answer(&mut self, size: usize) -> Answer {
        self.answers.push(size);
        Answer(self.answers.len() - 1)
    }

    /// Does it all.
    pub fn play(self, cross: &Cross, name: &str) -> Answers {
        let program = cross.compile_once("machine.c");
        let (script, answers) =
            (cross.scratch(&format!("{name}.script")), cross.scratch(&format!("{name}.answers")));
        fs::write(&script, &self.steps).expect("the script is written");
        let status = cross.run(&program, "power10", &[&script, &answers]).status().expect("qemu starts");
        assert!(status.success(), "{name}: {status}");
        let content = fs::read(&answers).expect("there are answers");
        let starts = self.answers.iter().scan(0, |at, &size| {
            *at += size;
            Some(*at - size..*at)
        });
        Answers { places: starts.collect(), content }
    }
}

/// What the steps answered.
pub struct Answers {
    places: Vec<Range<usize>>,
    content: Vec<u8>,
}

impl Answers {
    pub fn bytes(&self, answer: Answer) -> &[u8] {
        &self.content[self.places[answer.0].clone()]
    }

    pub fn number(&self, answer: Answer) -> u64 {
        u64::from_le_bytes(self.bytes(answer).try_into().expect("8 bytes"))
    }

    pub fn sum(&self, counters: &[Answer]) -> u64 {
        counters.iter().map(|&counter| self.number(counter)).sum()
    }

    /// The registers after a run; the pc is that of the pad. A signal's number plus 100 if one ended it.
    pub fn registers(&self, answer: Answer) -> Registers {
        let bytes = self.bytes(answer);
        let number = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        Registers {
            gpr: std::array::from_fn(number),
            cr: number(32) as u32,
            xer: number(33),
            ctr: number(34),
            lr: number(35),
            tar: number(36),
            pc: if number(37) < 100 { pad(number(37)) } else { number(37) },
        }
    }
}

/// Address of a place where control may go.
pub const fn pad(number: u64) -> u64 {
    PADS + 0x40 * number
}

/// How many instances are in use, in the pool and in all shadow blocks.
pub fn open(memory: &[u8], layout: &Layout) -> usize {
    let (pool, blocks) = memory[(RETURNS - layout.pages) as usize..].split_at(POOL_SIZE as usize);
    let blocks = &blocks[(layout.shadow_block(0) - layout.first_tag()) as usize..];
    let is_free = |instance: &[u8]| layout.is_free(u64::from_le_bytes(instance[..8].try_into().unwrap()));
    let used = |instances: &[u8]| {
        instances.chunks_exact(1 << RETURN_SHIFT).filter(|instance| !is_free(instance)).count()
    };
    used(pool) + used(blocks)
}
