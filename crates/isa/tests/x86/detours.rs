//! Detours run by this processor change nothing that the program can see (hard cases S1 and S2), and count and record exactly.

use crate::machine::*;
use crate::processor::Random;
use trapless_isa::body::Runs;
use trapless_isa::detour::*;
use trapless_isa::frames::Point;
use trapless_isa::payload::*;
use trapless_isa::{BranchTargets, Displaced, Machine as Isa, Site};

/// Prologues, and what undoes them before a plain `ret`. Registers and flags are live at some and dead at others.
pub const PROLOGUES: &[(&str, &[u8], &[u8])] = &[
    ("nop5", &[0x0f, 0x1f, 0x44, 0, 0], &[]),
    ("push rbp; mov rbp,rsp; push rbx", &[0x55, 0x48, 0x89, 0xe5, 0x53], &[0x5b, 0x5d]),
    ("xor eax,eax; mov ecx,1", &[0x31, 0xc0, 0xb9, 1, 0, 0, 0], &[]),
    ("mov rax,rdi; add rax,rsi", &[0x48, 0x89, 0xf8, 0x48, 0x01, 0xf0], &[]),
    (
        "mov edx,2; mov esi,3; mov edi,4; xor ecx,ecx",
        &[0xba, 2, 0, 0, 0, 0xbe, 3, 0, 0, 0, 0xbf, 4, 0, 0, 0, 0x31, 0xc9],
        &[],
    ),
    ("endbr64; sub rsp,24", &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 24], &[0x48, 0x83, 0xc4, 24]),
    ("adc rax,rdx; setc cl", &[0x48, 0x11, 0xd0, 0x0f, 0x92, 0xc1], &[]),
    ("mov [rsp-128],rdi", &[0x48, 0x89, 0x7c, 0x24, 0x80], &[]),
    ("mov rax,[rsp-120]", &[0x48, 0x8b, 0x44, 0x24, 0x88], &[]),
    ("mov r10,rsp; and rsp,-32", &[0x49, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xe0], &[0x4c, 0x89, 0xd4]),
    ("movups xmm1,[rsp-64]", &[0x0f, 0x10, 0x4c, 0x24, 0xc0], &[]),
    ("cld; pushf; pop rax; nop; nop", &[0xfc, 0x9c, 0x58, 0x90, 0x90], &[]),
];

pub const HITS: u32 = 128;
pub const LOST: u32 = 136;
pub const RETURNS: u32 = 144;
pub const LATENCY: u32 = 512;

/// A function with a probe that can be put in and taken out.
pub struct Probed<'m> {
    machine: &'m Machine,
    original: Vec<u8>,
    patch: Vec<u8>,
    /// Address of the first displaced instruction.
    pub at: u64,
    pub end: u64,
    /// Where a followed call returns, or 0.
    pub return_point: u64,
    /// Where the detour is, and what its instructions stand for.
    pub detour: u64,
    pub frames: Vec<Point>,
    /// Where the copies of the displaced instructions are.
    pub copies: u64,
}

impl<'m> Probed<'m> {
    /// Writes `code` to `function` and a detour for it to `detour` in the arena.
    pub fn new(
        machine: &'m Machine,
        code: &[u8],
        function: u64,
        detour: u64,
        layout: &Layout,
        payload: Payload,
    ) -> Self {
        machine.write(function, code);
        Self::at(machine, code, function, function, detour, layout, payload)
    }

    /// The same at an instruction of a function that stands there already.
    pub fn at(
        machine: &'m Machine,
        code: &[u8],
        function: u64,
        address: u64,
        detour: u64,
        layout: &Layout,
        payload: Payload,
    ) -> Self {
        let isa = Isa::X86_64.isa();
        let targets = BranchTargets::default();
        let site = Site { address, ..Site::new(function, code, &targets) };
        let displaced = isa.verdict(&site).jump.expect("a site for a jump");
        Self::displacing(machine, &site, displaced, detour, layout, payload)
    }

    /// One that counts without a stack, at the entry of a function of Go's compiler; `None` if it needs one.
    pub fn without_stack(machine: &'m Machine, code: &[u8], layout: &Layout) -> Option<Self> {
        Self::without_stack_at(machine, code, 0, Stack::NoneInGo, layout)
    }

    /// The same so many bytes `behind` the entry, with what the detour may use of the stack.
    pub fn without_stack_at(
        machine: &'m Machine,
        code: &[u8],
        behind: usize,
        stack: Stack,
        layout: &Layout,
    ) -> Option<Self> {
        let isa = Isa::X86_64.isa();
        let targets = BranchTargets::default();
        let address = FUNCTION + behind as u64;
        let site = Site { address, ..Site::new(FUNCTION, code, &targets) };
        let displaced = isa.verdict(&site).jump.expect("a site for a jump");
        if !isa.counts_without_stack(&site, &displaced, stack) {
            return None;
        }
        machine.write(FUNCTION, code);
        Some(Self::written(machine, &site, displaced, (detour_at(0), stack), layout, COUNT, Runs::default()))
    }

    /// The same with what is displaced.
    pub fn displacing(
        machine: &'m Machine,
        site: &Site<'_>,
        displaced: Displaced,
        detour: u64,
        layout: &Layout,
        payload: Payload,
    ) -> Self {
        Self::written(machine, site, displaced, (detour, Stack::Enough), layout, payload, Runs::default())
    }

    /// One that calls bodies, at an instruction of a function that stands there already.
    pub fn calling(
        machine: &'m Machine,
        code: &[u8],
        (function, address): (u64, u64),
        (detour, stack): (u64, Stack),
        layout: &Layout,
        payload: Payload,
        runs: Runs<'_>,
    ) -> Self {
        let isa = Isa::X86_64.isa();
        let targets = BranchTargets::default();
        let site = Site { address, ..Site::new(function, code, &targets) };
        let displaced = isa.verdict(&site).jump.expect("a site for a jump");
        Self::written(machine, &site, displaced, (detour, stack), layout, payload, runs)
    }

    /// One that asks the goroutine for room on its stack, with what is displaced.
    pub fn asking(
        machine: &'m Machine,
        site: &Site<'_>,
        displaced: Displaced,
        detour: u64,
        layout: &Layout,
        payload: Payload,
    ) -> Self {
        Self::written(machine, site, displaced, (detour, Stack::AskedInGo), layout, payload, Runs::default())
    }

    fn written(
        machine: &'m Machine,
        site: &Site<'_>,
        displaced: Displaced,
        (detour, stack): (u64, Stack),
        layout: &Layout,
        payload: Payload,
        runs: Runs<'_>,
    ) -> Self {
        let (isa, code, function) = (Isa::X86_64.isa(), site.code, site.function);
        let runtime = machine.runtime(layout);
        let from = (displaced.start - function) as usize;
        let original = code[from..][..usize::from(displaced.length)].to_vec();
        let request = DetourRequest {
            runs,
            address: detour,
            displaced,
            original: &original,
            site,
            payload,
            stack,
            layout,
            runtime: &runtime,
            operands: &[],
            tells: true,
        };
        let written = isa.detour(&request).unwrap();
        assert!(ARENA + runtime.code.len() as u64 <= detour);
        machine.write(detour, &written.code);
        let patch = isa.patch(&displaced, detour).unwrap();
        let return_point = written.return_point.map_or(0, |offset| detour + u64::from(offset));
        let (at, end) = (displaced.start, displaced.end());
        let copies = detour + u64::from(written.copy_of(at).unwrap());
        Probed { machine, original, patch, at, end, return_point, detour, frames: written.frames, copies }
    }

    pub fn arm(&self) {
        self.machine.write(self.at, &self.patch);
    }

    pub fn disarm(&self) {
        self.machine.write(self.at, &self.original);
    }
}

/// Where the n-th detour goes.
pub fn detour_at(n: u64) -> u64 {
    ARENA + 0x2000 + n * 0x800
}

pub const RECORD_ENTRY: u32 = 6;
pub const COUNT_RETURN: ReturnStep = ReturnStep::Count(RETURNS);
pub const TIME: ReturnStep = ReturnStep::Time(LATENCY);
pub const RECORD_RETURN: ReturnStep = ReturnStep::Record { id: 7 };

/// Every combination of steps, and every order in which one could lose what the next one needs.
pub fn all_payloads() -> Vec<Payload> {
    let count = EntryStep::Count(HITS);
    let record = |arguments| EntryStep::Record { id: RECORD_ENTRY, arguments };
    let mut entries = vec![Steps::of([]), Steps::of([count])];
    entries.extend([
        Steps::of([count, record(0)]),
        Steps::of([count, record(6)]),
        Steps::of([record(6), count]),
    ]);
    entries.extend((0..=6).map(|arguments| Steps::of([record(arguments)])));
    let returns = [
        Steps::of([]),
        Steps::of([COUNT_RETURN]),
        Steps::of([TIME]),
        Steps::of([RECORD_RETURN]),
        Steps::of([COUNT_RETURN, TIME]),
        Steps::of([COUNT_RETURN, RECORD_RETURN, TIME]),
        Steps::of([TIME, RECORD_RETURN, COUNT_RETURN]),
        Steps::of([TIME, TIME]),
    ];
    let followed = returns.map(|steps| Some(Followed { lost: LOST, steps, way: Way::Paired }));
    let mut all = Vec::new();
    for lookup in [None, Some(Lookup::FindObject), Some(Lookup::IteratePhdr)] {
        let hooks = Steps::some_of([lookup.map(Hook::Translate)]);
        for &entry in &entries {
            all.extend([None].into_iter().chain(followed).map(|followed| Payload { hooks, entry, followed }));
        }
    }
    all
}

/// How often a payload has a step at the return.
pub fn asks(payload: &Payload, step: ReturnStep) -> u64 {
    payload.followed.iter().flat_map(|followed| followed.steps).filter(|&other| other == step).count() as u64
}

/// The stack below the slot that belongs to the function, and above it.
fn stack(machine: &Machine) -> (Vec<u8>, Vec<u8>) {
    (machine.read(SLOT - 128, 128), machine.read(SLOT + 8, 512))
}

#[test]
fn s1_s2_nothing_but_the_counters_changes() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(1);
    for &(name, prologue, epilogue) in PROLOGUES {
        let code = [prologue, epilogue, &[0xc3][..]].concat();
        for payload in all_payloads() {
            for self_pointer in [true, false] {
                let layout = layout(self_pointer);
                let thread = Machine::thread(random.next() % 8);
                let probed = Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, payload);
                let before = [HITS, RETURNS, LATENCY + LATENCY_COUNT].map(|c| machine.sum(c));
                // Twice: a thread's first hit goes another way.
                for round in 0..2 {
                    // In the body, the red zone is as it was at the entry.
                    machine.write_exit(probed.end.max(FUNCTION + prologue.len() as u64), 2);
                    let same = compare(&machine, &probed, thread, &mut random, Some(payload), true);
                    assert!(same, "{name}, in the body: {payload:?} round {round}");
                    machine.write(FUNCTION, &code);
                    let same = compare(&machine, &probed, thread, &mut random, Some(payload), false);
                    assert!(same, "{name}, after the return: {payload:?} round {round}");
                }
                let counted = [HITS, RETURNS, LATENCY + LATENCY_COUNT].map(|c| machine.sum(c));
                let counts = payload.entry.iter().any(|step| step == EntryStep::Count(HITS));
                let wanted =
                    [4 * u64::from(counts), 2 * asks(&payload, COUNT_RETURN), 2 * asks(&payload, TIME)];
                assert_eq!([0, 1, 2].map(|i| counted[i] - before[i]), wanted, "{name}: {payload:?}");
                assert_eq!(machine.sum(LOST), 0);
                machine.forget();
            }
        }
    }
}

/// Whether a word that leads to our code lies below the slot: a frame that is laid there and never writes it would keep our memory.
fn leads_to_us(machine: &Machine) -> bool {
    let below = machine.read(SLOT - 1024, 1024);
    let mut words = below.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    words.any(|word| (ARENA..ARENA + ARENA_SIZE).contains(&word))
}

/// Runs once without and once with the probe from one random state. `body`: the run ends inside the function, where a
/// followed call is left behind.
fn compare(
    machine: &Machine,
    probed: &Probed<'_>,
    thread: u64,
    random: &mut Random,
    payload: Option<Payload>,
    body: bool,
) -> bool {
    let start = machine.random(random);
    machine.set(SLOT, EXIT);
    let memory = machine.read(SLOT - 1024, 2048);
    probed.disarm();
    let expected = (machine.run(thread, &start), stack(machine));
    machine.write(SLOT - 1024, &memory);
    probed.arm();
    let found = (machine.run(thread, &start), stack(machine));
    probed.disarm();
    assert!(!leads_to_us(machine), "{payload:?}");
    let (low, high) = (expected.1.0 == found.1.0 || !body, expected.1.1 == found.1.1);
    if expected.0.0 != found.0.0 || expected.0.1.registers != found.0.1.registers {
        println!(
            "exit {} {} {:x?}\n{:x?}",
            expected.0.0, found.0.0, expected.0.1.registers, found.0.1.registers
        );
    }
    let payload = payload.unwrap_or_default();
    check_records(machine, &start, &found.0.1, &payload, body);
    if body {
        // The abandoned call's instance goes with the next one at its slot.
        machine.open_calls() == usize::from(payload.followed.is_some())
            && expected.0 == found.0
            && low
            && high
    } else {
        machine.open_calls() == 0 && expected.0 == found.0 && high
    }
}

/// Takes the records of one call out of the ring and compares them with the state that they are of.
pub fn check_records(machine: &Machine, before: &State, after: &State, payload: &Payload, body: bool) {
    check_records_of(SLOT, machine, before, after, payload, body);
}

/// The same where `slot` stands for the call's slot.
pub fn check_records_of(
    slot: u64,
    machine: &Machine,
    before: &State,
    after: &State,
    payload: &Payload,
    body: bool,
) {
    let (head, tail) = (machine.block(1, BLOCK_RING_HEAD), machine.block(1, BLOCK_RING_TAIL));
    let mut position = tail;
    let word = |position: u64, field: u32| {
        let record = RING + (((position % (1 << RING_BITS)) as u32) << RECORD_SHIFT);
        machine.block(1, record + field)
    };
    for step in payload.entry {
        let EntryStep::Record { id, arguments } = step else { continue };
        assert_eq!(word(position, RECORD_SEQUENCE), position + 1);
        assert_eq!(word(position, RECORD_ID) as u32, id);
        assert_eq!(word(position, RECORD_SLOT), slot);
        for (number, register) in [7, 6, 2, 1, 8, 9].into_iter().take(usize::from(arguments)).enumerate() {
            let argument = word(position, RECORD_VALUES + 8 * number as u32);
            assert_eq!(argument, before.registers[register], "argument {number} {payload:?}");
        }
        position += 1;
    }
    if asks(payload, RECORD_RETURN) > 0 && !body {
        assert_eq!(word(position, RECORD_SEQUENCE), position + 1);
        assert_eq!(word(position, RECORD_ID) as u32, 7);
        assert_eq!(word(position, RECORD_SLOT), slot);
        assert_eq!(word(position, RECORD_VALUES), after.registers[0], "{payload:?}");
        assert!(word(position, RECORD_VALUES + 8) <= word(position, RECORD_TIME));
        position += 1;
    }
    assert_eq!(head, position, "{payload:?}");
    machine.set_block(1, BLOCK_RING_TAIL, head);
}

/// Counts entries.
pub const COUNT: Payload =
    Payload { hooks: Steps::of([]), entry: Steps::of([EntryStep::Count(HITS)]), followed: None };
/// Counts returns.
pub const FOLLOW: Payload = Payload {
    followed: Some(Followed { lost: LOST, steps: Steps::of([COUNT_RETURN]), way: Way::Paired }),
    ..COUNT
};
/// Counts and times them.
pub const TIMED: Payload = Payload {
    followed: Some(Followed { lost: LOST, steps: Steps::of([COUNT_RETURN, TIME]), way: Way::Paired }),
    ..FOLLOW
};

#[test]
fn threads_without_memory_of_their_own_are_counted_together() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(5);
    let layout = layout(false);
    let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    for payload in [FOLLOW, Payload { followed: None, ..FOLLOW }] {
        machine.forget();
        Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, payload).arm();
        // A thread pointer of 0, and more threads than there are blocks.
        let threads: Vec<u64> = std::iter::once(0).chain((0..20).map(Machine::thread)).collect();
        for round in 1..=3 {
            for &thread in &threads {
                let start = machine.random(&mut random);
                machine.set(SLOT, EXIT);
                let (exit, after) = machine.run(thread, &start);
                let mut wanted = start.registers;
                wanted[4] += 8;
                assert_eq!((exit, after.registers, after.flags), (1, wanted, start.flags));
            }
            let with_block = u64::from(BLOCK_COUNT) - 1;
            let without = threads.len() as u64 - with_block;
            assert_eq!(machine.sum(HITS), round * threads.len() as u64);
            assert_eq!(machine.block(0, HITS), round * without);
            if payload.followed.is_some() {
                assert_eq!([machine.sum(RETURNS), machine.sum(LOST)], [round * threads.len() as u64, 0]);
            }
        }
    }
}
