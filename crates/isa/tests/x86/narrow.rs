//! Detours of 32-bit programs, run by this processor in 32-bit mode: they change nothing that the program can see, and count, time and
//! record exactly, whichever steps there are and in whichever order.

use crate::detours::{HITS, LATENCY, LOST, RECORD_ENTRY, RECORD_RETURN, RETURNS, all_payloads, asks};
use crate::execution::random_state;
use crate::processor::{CONTROL, DATA, ORIGINAL, Processor, Random, State, WINDOW, map};
use trapless_isa::payload::*;
use trapless_isa::{BranchTargets, DetourRequest, Machine, Site, detour::*};
use trapless_testing::inapplicable;

const ARENA: u64 = 0x5600_0000;
const ARENA_SIZE: u64 = 0x1_0000;
const DETOUR: u64 = ARENA + 0x4000;
const EXIT: u64 = ORIGINAL + 0x1000;
const HEADER: u64 = 0x5700_0000;
const BLOCKS: u64 = 0x5710_0000;
const STRIDE: u64 = 0x8000;
const BLOCK_COUNT: u32 = 4;
const RING: u32 = 0x4000;
const RING_BITS: u32 = 7;
const FOLLOWED: u64 = 0x5800_0000;
const FOLLOWED_SIZES: [u64; 3] = return_sizes(4, 2);
/// Offset of the thread's id from its thread pointer.
const TID: usize = 0x68;
/// Offset of the return address's slot in what a run is given as its memory.
const SLOT: usize = WINDOW + WINDOW / 2;

const LAYOUT: Layout = Layout {
    threads: HEADER + 0x1000,
    thread_bits: 3,
    origin: HEADER,
    block_cursor: HEADER + 8,
    blocks: BLOCKS,
    block_stride: STRIDE,
    block_count: BLOCK_COUNT,
    ring: RING,
    ring_bits: RING_BITS,
    self_pointer: true,
    tid_offset: Some(TID as i32),
    selector: 0x63,
    pages: FOLLOWED,
    returns: FOLLOWED + FOLLOWED_SIZES[0],
    return_bits: 4,
    slot_shift: 2,
    arenas: HEADER + 0x100,
    signals: None,
    gate: 0,
    near: 0,
    stacks: 0,
    points: 0,
    additions: trapless_isa::Additions::Loops,
};

/// Functions whose entries leave none, some and all of registers and flags free.
const FUNCTIONS: [&[u8]; 3] = [
    // nop dword [eax+eax]; ret
    &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3],
    // push ebp; mov ebp, esp; sub esp, 16; leave; ret
    &[0x55, 0x89, 0xe5, 0x83, 0xec, 0x10, 0xc9, 0xc3],
    // xor eax, eax; xor ecx, ecx; xor edx, edx; ret
    &[0x31, 0xc0, 0x31, 0xc9, 0x31, 0xd2, 0xc3],
];

/// The selector of the segment that `set_thread_area` gives to who asks first: the C library, and here the test. Detours look for it.
const SELECTOR: u64 = 12 << 3 | 3;

/// Makes that segment, with the base [`DATA`]; whether the kernel can. Only 32-bit code may ask for it.
fn describe_segment(processor: &Processor) -> bool {
    let mut memory = [0; 2 * WINDOW];
    // struct user_desc: a 32-bit data segment of 4 GB, writable, present, usable.
    let descriptor = [SELECTOR as u32 >> 3, DATA as u32, 0xf_ffff, 0x51].map(u32::to_le_bytes);
    memory[64..80].copy_from_slice(&descriptor.concat());
    let mut state = State::default();
    // set_thread_area of 32-bit programs, with the descriptor's address in ebx; int 0x80.
    (state.registers[0], state.registers[3], state.registers[4]) = (243, DATA + 64, Processor::stack());
    processor.write(ORIGINAL, &[0xcd, 0x80]);
    processor.write_exit(ORIGINAL + 2, 1);
    let after = processor.run(ORIGINAL, &state, &mut memory);
    (after.exit, after.registers[0]) == (1, 0)
}

/// The processor, with the probe memory of a process whose only thread has the thread pointer [`DATA`].
struct Probed {
    processor: Processor,
    runtime: Runtime,
}

impl Probed {
    fn new() -> Option<Self> {
        let processor = Processor::new(32);
        if !processor.segments || !describe_segment(&processor) {
            inapplicable!("this processor or kernel gives a test no thread pointer of 32-bit mode");
            return None;
        }
        processor.write(CONTROL + 304, &SELECTOR.to_le_bytes());
        map(ARENA, ARENA_SIZE as usize);
        map(HEADER, 0x2000);
        map(BLOCKS, (STRIDE * u64::from(BLOCK_COUNT)) as usize);
        map(FOLLOWED, FOLLOWED_SIZES.iter().sum::<u64>() as usize);
        let runtime = Machine::I386.isa().runtime(ARENA, &LAYOUT).unwrap();
        assert!(ARENA + runtime.code.len() as u64 <= DETOUR);
        processor.write(ARENA, &runtime.code);
        processor.write_exit(EXIT, 1);
        Some(Self { processor, runtime })
    }

    /// Makes the probe memory new.
    fn forget(&self) {
        self.processor.write(HEADER, &[0; 0x2000]);
        self.processor.write(BLOCKS, &vec![0; STRIDE as usize * BLOCK_COUNT as usize]);
        for (at, word) in [(0, 1), (8, 1), (0x100, ARENA), (0x108, ARENA_SIZE)] {
            self.processor.write(HEADER + at, &u64::to_le_bytes(word));
        }
    }

    /// Writes a function, and a detour for it. Returns the patch.
    fn write(&self, code: &[u8], payload: Payload) -> Vec<u8> {
        let isa = Machine::I386.isa();
        let targets = BranchTargets::default();
        let site = Site::new(ORIGINAL, code, &targets);
        let displaced = isa.verdict(&site).jump.expect("a site for a jump");
        let request = DetourRequest {
            runs: trapless_isa::body::Runs::default(),
            address: DETOUR,
            displaced,
            original: &code[..usize::from(displaced.length)],
            site: &site,
            payload,
            stack: Stack::Enough,
            layout: &LAYOUT,
            runtime: &self.runtime,
            operands: &[],
            tells: false,
        };
        let detour = isa.detour(&request).unwrap();
        assert!(DETOUR + detour.code.len() as u64 <= ARENA + ARENA_SIZE);
        self.processor.write(DETOUR, &detour.code);
        self.processor.write(ORIGINAL, code);
        isa.patch(&displaced, DETOUR).unwrap()
    }

    /// A word of the thread's block.
    fn word(&self, offset: u32) -> u64 {
        let bytes = self.processor.read(BLOCKS + STRIDE + u64::from(offset), 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// A word of the record at a ring position.
    fn record(&self, position: u64, field: u32) -> u64 {
        self.word(RING + ((position as u32) << RECORD_SHIFT) + field)
    }

    /// How many instances of calls are in use.
    fn open_calls(&self) -> usize {
        let instances = LAYOUT.block_size() - u64::from(SHADOW_INSTANCES);
        let points = |at: u64, size: u64| {
            let bytes = self.processor.read(at, size as usize);
            bytes.chunks(1 << RETURN_SHIFT).filter(|i| i[..8] != [0; 8]).count()
        };
        let in_blocks = (0..1 << LAYOUT.return_bits)
            .map(|block| points(LAYOUT.shadow_block(block) + u64::from(SHADOW_INSTANCES), instances));
        in_blocks.sum::<usize>() + points(LAYOUT.returns, POOL_SIZE)
    }
}

#[test]
fn s1_nothing_but_the_counters_changes() {
    let Some(probed) = Probed::new() else { return };
    let mut random = Random(1);
    for code in FUNCTIONS {
        for payload in all_payloads() {
            probed.forget();
            let patch = probed.write(code, payload);
            // A thread's first hit goes another way.
            for _ in 0..2 {
                let mut memory = [0; 2 * WINDOW];
                let state = random_state(&mut random, 32, &mut memory);
                memory[..4].copy_from_slice(&(DATA as u32).to_le_bytes());
                memory[TID..TID + 4].copy_from_slice(&1000u32.to_le_bytes());
                memory[SLOT..SLOT + 4].copy_from_slice(&(EXIT as u32).to_le_bytes());
                let mut expected_memory = memory;
                probed.processor.write(ORIGINAL, code);
                let expected = probed.processor.run(ORIGINAL, &state, &mut expected_memory);
                assert_eq!(expected.exit, 1);
                probed.processor.write(ORIGINAL, &patch);
                let found = probed.processor.run(ORIGINAL, &state, &mut memory);
                assert_eq!(found, expected, "{payload:?}");
                assert!(memory[..WINDOW] == expected_memory[..WINDOW], "{payload:?}");
                assert!(memory[SLOT..] == expected_memory[SLOT..], "{payload:?}");
                check_records(&probed, payload, &memory, found);
            }
            let counts = payload.entry.iter().any(|step| step == EntryStep::Count(HITS));
            let times = asks(&payload, ReturnStep::Time(LATENCY));
            let wanted = [u64::from(counts), asks(&payload, ReturnStep::Count(RETURNS)), times];
            let found = [HITS, RETURNS, LATENCY + LATENCY_COUNT].map(|offset| probed.word(offset));
            assert_eq!(found, wanted.map(|each| 2 * each), "{payload:?}");
            // Each duration is added as often as it is timed.
            let [sum, longest] = [LATENCY_SUM, LATENCY_MAX].map(|field| probed.word(LATENCY + field));
            assert!((longest > 0) == (times > 0) && times * longest <= sum, "{payload:?}: {longest}, {sum}");
            assert_eq!((probed.word(LOST), probed.open_calls()), (0, 0), "{payload:?}");
        }
    }
}

/// Takes the records of one call out of the ring and compares them with the run that they are of.
fn check_records(probed: &Probed, payload: Payload, memory: &[u8], after: State) {
    let head = probed.word(BLOCK_RING_HEAD) & 0xffff_ffff;
    let tail = probed.word(BLOCK_RING_TAIL);
    let (mut position, mut latest) = (tail, 1);
    let mut check = |position: u64, id: u32| {
        let slot = Processor::stack();
        assert_eq!(probed.record(position, RECORD_SEQUENCE) as u32, position as u32 + 1);
        assert_eq!(probed.record(position, RECORD_ID), u64::from(id) | 1000 << 32, "{payload:?}");
        assert_eq!(probed.record(position, RECORD_SLOT) as u32, slot as u32);
        let time = probed.record(position, RECORD_TIME);
        assert!(latest <= time, "{payload:?}");
        latest = time;
    };
    for step in payload.entry {
        let EntryStep::Record { arguments, .. } = step else { continue };
        check(position, RECORD_ENTRY);
        for n in 0..u32::from(arguments) {
            let at = SLOT + 4 + 4 * n as usize;
            let argument = u32::from_le_bytes(memory[at..at + 4].try_into().unwrap());
            assert_eq!(probed.record(position, RECORD_VALUES + 8 * n), u64::from(argument), "{payload:?}");
        }
        position += 1;
    }
    if asks(&payload, RECORD_RETURN) > 0 {
        check(position, 7);
        assert_eq!(probed.record(position, RECORD_VALUES), after.registers[0], "{payload:?}");
        let entered = probed.record(position, RECORD_VALUES + 8);
        assert!(0 < entered && entered <= probed.record(position, RECORD_TIME), "{payload:?}");
        position += 1;
    }
    assert_eq!(head, position, "{payload:?}");
    probed.processor.write(BLOCKS + STRIDE + u64::from(BLOCK_RING_TAIL), &head.to_le_bytes());
}
