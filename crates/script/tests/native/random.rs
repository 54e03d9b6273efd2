//! Native code does what the interpreter does: random programs on random hits.

use crate::machine::{CHANGES, Hit, Ready, SHARED, clock, convention, reads_memory};
use std::cell::Cell;
use std::collections::BTreeMap;
use trapless_isa::body;
use trapless_isa::passed::{FLOAT, MEMORY, MOST_PASSED, Number, SIGNED, SIZE, Wanted, extended};
use trapless_script::arbitrary::{Options, program};
use trapless_script::interp::{self, Host, Maps, Outcome, Sink, maps::Tables};
use trapless_script::ir::*;
use trapless_script::native::{Moment, unmask};
use trapless_testing::asked;
use trapless_wire::{Incomplete, MapKind, MapPlace, MessagePart, THREAD_OUT_OF_FUEL, TableView, Words};

/// The hit for the interpreter.
pub struct Told<'a>(pub &'a Hit);

/// What a body has changed, as its words.
fn change(changed: &Cell<[u64; CHANGES]>, what: Change, to: u64) {
    let mut words = changed.get();
    match what {
        Change::Argument(number) => words[body::Change::Arguments as usize + usize::from(number)] = to,
        Change::Skip => words[0] = if to != 0 { body::LEFT_OUT.into() } else { 0 },
        Change::Result => words[..2].copy_from_slice(&[1, to]),
        Change::Errno(_) => panic!("random programs leave errno alone"),
    }
    changed.set(words);
}

pub fn context(hit: &Hit, what: Context) -> u64 {
    let convention = convention();
    let register = |number: u8| match convention.arguments.iter().position(|dwarf| *dwarf == number) {
        Some(argument) => hit.arguments[argument],
        None if number == convention.stack_pointer => hit.stack.as_ptr() as u64,
        None => hit.registers[usize::from(number)],
    };
    match what {
        Context::Argument(number) => hit.arguments[usize::from(number)],
        Context::Register(number) => register(number),
        Context::FloatRegister(number) => hit.floats[usize::from(number)],
        Context::InstructionPointer => hit.instruction,
        Context::ReturnAddress => convention.link.map_or(hit.stack[0], register),
        Context::Frame | Context::Call => hit.stack.as_ptr() as u64,
        Context::Site => hit.site,
        Context::Tid => hit.tid,
        Context::Cpu => hit.processor & 0xfff,
        Context::NumaNode => hit.processor >> 12,
        Context::Time(kind) => clock(kind as u32).nanoseconds(hit.ticks),
        // The tool has begun at 0.
        Context::Elapsed => clock(ClockKind::Boot as u32).nanoseconds(hit.ticks),
        _ => 0,
    }
}

impl interp::Hit for Told<'_> {
    fn context(&mut self, what: Context) -> u64 {
        context(self.0, what)
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        // Byte by byte: what the kernel says of each.
        for (index, byte) in into.iter_mut().enumerate() {
            let local = libc::iovec { iov_base: std::ptr::from_mut(byte).cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: address.wrapping_add(index as u64) as *mut _, iov_len: 1 };
            // SAFETY: the kernel writes one byte to `byte`, or nothing.
            if unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) } != 1 {
                return index;
            }
        }
        into.len()
    }

    fn operand(&mut self, argument: u8, scalar: Scalar) -> Option<u64> {
        let number = if scalar == Scalar::Float { Number::Float } else { Number::Integer };
        let [word, form] = self.0.operand(Wanted { argument, number });
        let (size, form) = ((form & u64::from(SIZE)) as usize, form as u8);
        let bits = match form & MEMORY {
            0 => word,
            _ => {
                let mut bytes = [0; 8];
                if self.read(word, &mut bytes[..size]) < size {
                    return None;
                }
                extended(u64::from_le_bytes(bytes), form & (SIZE | SIGNED))
            }
        };
        Some(match size {
            4 if form & FLOAT != 0 => f64::from(f32::from_bits(bits as u32)).to_bits(),
            _ => bits,
        })
    }

    fn stack(&mut self, _: u8, _: StackWalk) -> u64 {
        0
    }

    fn thread_name(&mut self) -> [u8; 16] {
        let mut name = [0; 16];
        // SAFETY: it writes 16 bytes at most.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        name
    }

    fn process_name(&mut self, of: Kin) -> [u8; 16] {
        let path = match of {
            Kin::Own => "/proc/self/comm".to_owned(),
            Kin::Parent => format!("/proc/{}/comm", std::os::unix::process::parent_id()),
        };
        let mut name = [0; 16];
        let read = std::fs::read(path).unwrap();
        name[..read.len() - 1].copy_from_slice(&read[..read.len() - 1]);
        name
    }

    fn signal(&mut self, _: i64) {}

    fn change(&mut self, what: Change, to: u64) {
        change(&self.0.changed, what, to);
    }
}

type Sent = Vec<(u32, Vec<Vec<u8>>)>;

struct Collected(Sent);

impl Sink for Collected {
    fn emit(&mut self, _: &mut dyn Maps, message: MessageId, parts: &[&[u8]]) {
        self.0.push((message.0, parts.iter().map(|part| part.to_vec()).collect()));
    }
}

pub fn kinds(parts: &[PartKind]) -> Vec<MessagePart> {
    let kind = |part: &PartKind| match part {
        PartKind::Word => MessagePart::Word,
        PartKind::Bytes(size) => MessagePart::Bytes(*size),
        PartKind::Text(most) => MessagePart::Text(*most),
    };
    parts.iter().map(kind).collect()
}

fn bytes(words: &[u64], size: u32) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).take(size as usize).collect()
}

/// What a map holds, of thread 0 if each has its own.
pub fn contents(ready: &Ready, program: &Program, map: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let declared = &program.maps[map];
    let mut found = BTreeMap::new();
    let mut see = |key: Vec<u64>, mut value: Vec<u64>| {
        if let MapValue::Aggregate(aggregation) = declared.value {
            unmask(aggregation, &mut value);
        }
        let before = found.insert(bytes(&key, declared.key), bytes(&value, declared.value.size()));
        assert_eq!(before, None, "a key is there twice");
    };
    let (at, kind) = match ready.native.layout.maps[map] {
        MapPlace::Shared(at, kind) => (SHARED + at, kind),
        MapPlace::PerThread(at, kind) => (ready.part(0) + u64::from(at), kind),
    };
    match kind {
        MapKind::Words(words) => {
            if ready.region.word(at) != 0 {
                see(vec![], (1..=u64::from(words)).map(|word| ready.region.word(at + 8 * word)).collect());
            }
        }
        MapKind::Table(table) => {
            let view = TableView::new(&ready.region, at, table);
            assert_eq!(view.each(|entry| see(entry.key, entry.value)), 0);
            assert_eq!(view.contended(), 0);
            assert_eq!(view.live(), found.len() as u64);
        }
    }
    found
}

/// A random program that tells all of its scratch and its locals at the end.
pub fn told(seed: u64, options: &Options) -> Program {
    let mut program = program(seed, options);
    let body = &mut program.bodies[0];
    let locals = (0..body.locals.len() as u32).map(LocalId);
    let parts = locals.map(|local| Part::Word(Expression::Local(local)));
    let parts: Vec<Part> = parts.chain([Part::Bytes(Place::Scratch(0), body.scratch)]).collect();
    let kinds = parts.iter().map(|part| match part {
        Part::Bytes(_, size) => PartKind::Bytes(*size),
        _ => PartKind::Word,
    });
    program.messages.push(kinds.collect());
    let message = MessageId(program.messages.len() as u32 - 1);
    body.code.push(Statement::Emit { message, parts });
    program
}

/// Runs a program on some hits both ways, and compares all that can be seen.
pub fn agree(seed: u64, program: &Program, hits: &[Hit]) {
    agree_by(seed, program, hits, |ready, _, hit| ready.run(0, 0, hit));
}

/// The same, where `run` does with each hit what is compared with the interpreter alone, in the memory of thread 0.
pub fn agree_by(seed: u64, program: &Program, hits: &[Hit], run: impl Fn(&Ready, usize, &Hit)) {
    verify::verify(program).unwrap();
    let ready = match Ready::new(program, &[(BodyId(0), Moment::Entry)], 1) {
        Ok(ready) => ready,
        Err(error) => panic!("seed {seed}: {error}"),
    };
    let mut tables = Tables::new(program);
    let mut ends = 0;
    for (turn, hit) in hits.iter().enumerate() {
        let mut sink = Collected(Vec::new());
        let host = Host { hit: &mut Told(hit), maps: &mut tables, sink: &mut sink };
        ends += u64::from(interp::run(program, BodyId(0), host) == Outcome::OutOfFuel);
        let changed = hit.changed.take();
        run(&ready, turn, hit);
        assert_eq!(hit.changed.take(), changed, "seed {seed}, turn {turn}: what the call does");
        let mut sent: Sent = Vec::new();
        let drained = ready.ring(0).drain(&ready.region, Incomplete::Wait, |message| {
            assert_eq!(
                (message.ticks, message.site, u64::from(message.tid)),
                (hit.ticks, 3, hit.tid & 0xffff_ffff)
            );
            let kinds = kinds(&program.messages[message.number as usize]);
            sent.push((message.number, message.parts(&kinds).unwrap()));
        });
        assert!(!drained.is_waiting && drained.left == 0, "seed {seed}, turn {turn}");
        assert_eq!(sent, sink.0, "seed {seed}, turn {turn}: messages\n{:#?}", program.bodies[0].code);
        assert_eq!(ready.region.word(ready.part(0) + u64::from(THREAD_OUT_OF_FUEL)), ends, "seed {seed}");
        for index in 0..program.maps.len() {
            let map = MapId(index as u32);
            let expected: BTreeMap<_, _> =
                tables.entries(map, program.maps[index].value.size() as usize).into_iter().collect();
            let found = contents(&ready, program, index);
            assert_eq!(found, expected, "seed {seed}, turn {turn}: map {:?}", program.maps[index]);
        }
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    let word = *state ^ *state >> 29;
    match word % 5 {
        0 => word >> 8 & 0xff,
        1 => (word as i64 >> 40) as u64,
        2 => 1 << (word >> 8 & 63),
        3 => f64::from(word as i32).to_bits(),
        _ => word,
    }
}

pub fn hit(seed: u64, addresses: &[u64]) -> Hit {
    let mut state = seed;
    let mut hit = Hit::default();
    let words = hit.arguments.iter_mut().chain(&mut hit.registers).chain(&mut hit.floats);
    for word in words {
        *word = random(&mut state);
    }
    for operand in &mut hit.operands {
        let size = 1u64 << (random(&mut state) >> 3 & 3);
        let signed = random(&mut state) >> 2 & 1;
        *operand = [random(&mut state), size | signed << 4];
        // In memory: anywhere, or where it can be read and crosses a page now and then.
        if random(&mut state) & 4 != 0 {
            operand[1] |= u64::from(MEMORY);
            if let [_, some @ ..] = addresses
                && random(&mut state) & 4 != 0
            {
                operand[0] =
                    some[random(&mut state) as usize % some.len()].wrapping_sub(random(&mut state) & 7);
            }
        }
    }
    hit.ticks = 1_000_000 + random(&mut state) % 100_000_000;
    hit
}

pub fn options(addresses: Vec<u64>) -> Options {
    let contexts = Options::default().contexts.into_iter().filter(|what| {
        !matches!(
            what,
            Context::Random
                | Context::Result
                | Context::SecondResult
                | Context::FloatResult
                | Context::Duration
                | Context::ThreadPointer
                | Context::Symbol(_)
        )
    });
    Options { contexts: contexts.collect(), addresses, is_of_threads: false, ..Options::default() }
}

/// Three pages with a string over each border, with a mebibyte before and behind them that is gone, so that what others map meanwhile is out
/// of reach; and addresses that are none.
pub fn memory() -> (crate::machine::Mapping, Vec<u64>) {
    const GONE: usize = 1 << 20;
    const PAGES: usize = 3 * 4096;
    let mapping = crate::machine::Mapping::new((PAGES + 2 * GONE) as u64);
    for index in 0..PAGES {
        // SAFETY: within the mapping, which nobody else has.
        unsafe { mapping.address.add(GONE + index).write((index % 23) as u8) };
    }
    mapping.protect(0, GONE, libc::PROT_NONE);
    mapping.protect(GONE + PAGES, GONE, libc::PROT_NONE);
    let at = mapping.address as u64 + GONE as u64;
    let addresses = vec![
        at,
        at + 4096,
        at + 3 * 4096,
        at + 3 * 4096 - 8,
        0,
        8,
        0x8000_0000_0000_0000,
        u64::MAX - 7,
        1 << 47,
    ];
    (mapping, addresses)
}

/// How many random programs are tried: `TRAPLESS_SEEDS`, or as many as usual.
pub fn seeds() -> u64 {
    asked("TRAPLESS_SEEDS", 600)
}

/// Does something with each random program and some hits, which differ by a factor.
/// `changes`: whether they change what calls do.
pub fn each_program(factor: u64, changes: bool, see: impl Fn(u64, &Program, &[Hit])) {
    let start: u64 = asked("TRAPLESS_SEED", 1);
    let (_memory, addresses) = memory();
    let options = Options { changes_calls: changes, ..options(addresses.clone()) };
    for seed in start..start + seeds() {
        let program = told(seed, &options);
        let hits: Vec<Hit> =
            (0..6).map(|turn| hit(seed.wrapping_mul(factor).wrapping_add(turn), &addresses)).collect();
        see(seed, &program, &hits);
    }
}

#[test]
fn random_programs_do_the_same_natively_as_interpreted() {
    each_program(31, true, agree);
}

/// A program that emits these words.
fn words(of: &[Expression]) -> Program {
    let parts = of.iter().cloned().map(Part::Word).collect();
    Program {
        messages: vec![vec![PartKind::Word; of.len()]],
        bodies: vec![Body {
            code: vec![Statement::Emit { message: MessageId(0), parts }],
            ..Body::default()
        }],
        ..Program::default()
    }
}

fn emitted(ready: &Ready) -> Vec<u64> {
    let mut found = Vec::new();
    ready.ring(0).drain(&ready.region, Incomplete::Wait, |message| found = message.words);
    found
}

#[test]
fn a_return_is_told_with_its_call() {
    let asked = [
        Context::Result,
        Context::SecondResult,
        Context::Frame,
        Context::Duration,
        Context::FloatResult,
        Context::ReturnAddress,
        Context::Register(convention().results[0]),
        Context::Register(convention().results[1]),
    ];
    let program = words(&asked.map(Expression::Context));
    let ready = Ready::new(&program, &[(BodyId(0), Moment::Return)], 1).unwrap();
    let hit = Hit { ticks: 1044, entered: 44, ..Hit::with(&[11, 22, 33, 55, 66, 77]) };
    ready.run(0, 0, &hit);
    let duration = u64::try_from((u128::from(clock(0).scale) * 1000) >> 32).unwrap();
    assert_eq!(emitted(&ready), [11, 22, 33, duration, 55, 66, 11, 22]);
    for what in [Context::Argument(0), Context::Argument(7)] {
        let refused =
            Ready::new(&words(&[Expression::Context(what)]), &[(BodyId(0), Moment::Return)], 1).err();
        assert_eq!(refused, Some(trapless_script::native::Refusal::Context { body: BodyId(0), what }));
    }
}

#[test]
fn a_threads_name_is_asked_for_and_signals_that_are_none_are_not_sent() {
    let mut program = words(&[]);
    program.messages = vec![vec![PartKind::Bytes(16)]];
    program.bodies[0].scratch = 24;
    let signals = [0, 65, -1, 1 << 32 | 9].map(|signal| Statement::Signal(Expression::Int(signal)));
    let tell = || Statement::Emit { message: MessageId(0), parts: vec![Part::Bytes(Place::Scratch(8), 16)] };
    let to = || Place::Scratch(8);
    let names = [
        Statement::ThreadName { to: to() },
        Statement::ProcessName { of: Kin::Own, to: to() },
        Statement::ProcessName { of: Kin::Parent, to: to() },
    ];
    let told = names.into_iter().flat_map(|name| [name, tell()]);
    program.bodies[0].code = signals.into_iter().chain(told).collect();
    agree(0, &program, &[Hit::default()]);
}

#[test]
fn operands_in_a_page_of_the_detours_own_are_read_plainly_and_others_by_the_kernel() {
    let own: Vec<Statement> = (0..4)
        .map(|argument| Statement::Operand {
            into: LocalId(argument.into()),
            argument,
            ok: (argument == 3).then_some(LocalId(4)),
        })
        .collect();
    let mut program = words(&[0, 1, 2, 3, 4].map(|local| Expression::Local(LocalId(local))));
    program.bodies[0].locals = vec![Scalar::Int, Scalar::Int, Scalar::Float, Scalar::Int, Scalar::Int];
    program.bodies[0].code.splice(0..0, own);
    let ready = Ready::new(&program, &[(BodyId(0), Moment::Inside)], 1).unwrap();
    assert!(!ready.native.makes_system_calls, "whether operands are in memory is each site's own");
    // Of the body's own operands, the last words are nobody's.
    let mut hit = Box::new(Hit::default());
    let mut passed = hit.passed.get();
    passed.0[MOST_PASSED - 1] = [0x8765_4321_89ab_cdef, 7];
    hit.passed.set(passed);
    let at = hit.passed.as_ptr() as u64 + 16 * (MOST_PASSED as u64 - 1);
    let memory = u64::from(MEMORY);
    let (float, elsewhere) = (2.5f32, Box::new([0xfedc_ba98_7654_3210_u64; 1024]));
    hit.operands = [
        [at, memory | 4 | u64::from(SIGNED)],
        [at + 7, memory | 1],
        [float.to_bits().into(), 4 | u64::from(FLOAT)],
        [elsewhere.as_ptr() as u64 + 4096, memory | 8],
    ];
    let read = if reads_memory() { [elsewhere[0], 1] } else { [0, 0] };
    for (tid, expected) in [(hit.tid, read), (0, [0, 0])] {
        hit.tid = tid;
        ready.run(0, 0, &hit);
        let own = [0xffff_ffff_89ab_cdef, 0x87, f64::from(float).to_bits()];
        assert_eq!(emitted(&ready), [&own[..], &expected].concat(), "thread {tid}");
    }
}

#[test]
fn what_a_thread_whose_id_is_unknown_would_read_is_counted() {
    let read = Statement::Read {
        into: LocalId(0),
        from: Expression::Context(Context::Argument(0)),
        as_: Width::Unsigned(8),
        ok: Some(LocalId(1)),
    };
    let mut program = words(&[0, 1].map(|local| Expression::Local(LocalId(local))));
    program.bodies[0].locals = vec![Scalar::Int; 2];
    program.bodies[0].code.insert(0, read);
    let ready = Ready::new(&program, &[(BodyId(0), Moment::Entry)], 1).unwrap();
    let there = 77u64;
    let hit = Hit::with(&[std::ptr::from_ref(&there) as u64]);
    if reads_memory() {
        ready.run(0, 0, &hit);
        assert_eq!(emitted(&ready), [77, 1]);
    }
    ready.run(0, 0, &Hit { tid: 0, ..hit });
    assert_eq!(emitted(&ready), [0, 0]);
    assert_eq!(ready.region.word(ready.part(0) + u64::from(trapless_wire::THREAD_UNREAD)), 1);
}
