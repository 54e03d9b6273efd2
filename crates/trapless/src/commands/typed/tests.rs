//! The body against what layouts mean: on random types, in random memory.

use super::body::{self, AT_ENTRY, AT_RETURN};
use super::table::{Part, Placed, Root, Table};
use super::tape::Tape;
use crate::commands::registers::Registers;
use trapless_engine::AT_RETURN as RETURNS;
use trapless_script::interp::maps::Tables;
use trapless_script::interp::{Hit, Host, Maps, Outcome, Sink, run};
use trapless_script::ir::verify::verify;
use trapless_script::ir::{BodyId, Context, MessageId, Program, StackWalk};
use trapless_symbols::render::{Layouts, MOST_READS, MOST_RECORDED, Seen, follow};
use trapless_symbols::types::{
    Array, Encoding, Kind, Language, Member, Passing, Pointer, Role, Struct, Type, Variant, Variants, Word,
};
use trapless_symbols::{Machine, TypeId, Types};

/// Those by whose numbers the tests ask.
fn registers() -> &'static Registers {
    Registers::of(Machine::X86_64, Language::C)
}

/// Where memory is mapped: the rest is not.
const START: u64 = 0x10_0000;
const SIZE: usize = 0x2000;

/// xorshift, so that a failure can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn word(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => self.below(9),
            2 => self.next(),
            3 => START + SIZE as u64 - self.below(64),
            _ => START + self.below(SIZE as u64),
        }
    }
}

/// A hit with registers, in a process with some memory.
struct Process {
    memory: Vec<u8>,
    registers: [u64; 40],
    site: u32,
}

impl Process {
    fn read(&self, address: u64, size: usize) -> usize {
        let end = START + SIZE as u64;
        match address {
            START.. if address < end => size.min((end - address) as usize),
            _ => 0,
        }
    }

    fn look(&self, address: u64, size: usize) -> Seen {
        if self.read(address, size) < size {
            return Seen::Unreadable;
        }
        let at = (address - START) as usize;
        Seen::Bytes(self.memory[at..at + size].to_vec())
    }
}

impl Hit for Process {
    fn context(&mut self, what: Context) -> u64 {
        match what {
            Context::Register(number) => self.registers[usize::from(number)],
            Context::FloatRegister(number) => self.registers[32 + usize::from(number)],
            Context::Site => self.site.into(),
            Context::Frame => 0x7000,
            Context::Duration => 99,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        let count = Process::read(self, address, into.len());
        if count > 0 {
            let at = (address - START) as usize;
            into[..count].copy_from_slice(&self.memory[at..at + count]);
        }
        count
    }

    fn stack(&mut self, _: u8, _: StackWalk) -> u64 {
        0
    }

    fn thread_name(&mut self) -> [u8; 16] {
        [0; 16]
    }

    fn signal(&mut self, _: i64) {}
}

/// The messages.
#[derive(Default)]
struct Told(Vec<(u32, Vec<Vec<u8>>)>);

impl Sink for Told {
    fn emit(&mut self, _: &mut dyn Maps, message: MessageId, parts: &[&[u8]]) {
        self.0.push((message.0, parts.iter().map(|part| part.to_vec()).collect()));
    }
}

fn told(program: &Program, body: BodyId, process: &mut Process) -> (u32, Vec<Vec<u8>>) {
    let (mut maps, mut told) = (Tables::new(program), Told::default());
    let host = Host { hit: process, maps: &mut maps, sink: &mut told };
    assert_eq!(run(program, body, host), Outcome::Done);
    assert_eq!(told.0.len(), 1);
    told.0.remove(0)
}

fn bare(name: Option<&str>, size: u64, language: Language, kind: Kind) -> Type {
    Type { name: name.map(Into::into), size: Some(size), align: None, language, kind }
}

fn structure(members: Vec<Member>, variants: Option<Box<Variants>>) -> Kind {
    let word = Word::Struct;
    Kind::Struct(Struct { word, members, variants, arguments: Vec::new(), passing: Passing::Value })
}

fn member(name: &str, of: TypeId, offset: u64) -> Member {
    Member { name: Some(name.into()), of, offset: Some(offset), bits: None, role: Role::Field }
}

/// Types that lead to each other, and one of them.
fn types(random: &mut Random) -> (Types, TypeId) {
    let mut types = Types::new();
    let byte = types.base("u8", 1, Encoding::Unsigned);
    let char = types.base("char", 1, Encoding::SignedChar);
    let mut all = vec![types.base("long", 8, Encoding::Signed), types.pointer_to(char)];
    // A type that is filled in last, so that others lead to it.
    let list = types.add(bare(Some("List"), 24, Language::Rust, Kind::Void));
    let to_list = types.add(bare(Some("&List"), 8, Language::Rust, Kind::Pointer(Pointer::Plain, list)));
    all.extend([list, to_list]);
    for _ in 0..12 {
        let pick = |random: &mut Random| all[random.below(all.len() as u64) as usize];
        let of = pick(random);
        let size = types.size(of).unwrap_or(8);
        let made = match random.below(6) {
            0 => types.add(bare(Some("&T"), 8, Language::Rust, Kind::Pointer(Pointer::Plain, of))),
            1 => types.add(bare(None, 8, Language::Cpp, Kind::Pointer(Pointer::Reference, of))),
            2 => {
                let count = random.below(5);
                let array = Array { of, counts: vec![Some(count)], is_vector: false };
                types.add(bare(None, size * count, Language::C, Kind::Array(array)))
            }
            3 => {
                let to = types.add(bare(None, 8, Language::Rust, Kind::Pointer(Pointer::Plain, of)));
                let word = types.base("usize", 8, Encoding::Unsigned);
                let members = vec![member("data_ptr", to, 0), member("length", word, 8)];
                types.add(bare(Some("&[T]"), 16, Language::Rust, structure(members, None)))
            }
            4 => {
                let other = pick(random);
                let inner = |types: &mut Types, of| {
                    let size = 8 + types.size(of).unwrap_or(0);
                    types.add(bare(
                        Some("V"),
                        size,
                        Language::Rust,
                        structure(vec![member("__0", of, 8)], None),
                    ))
                };
                let (first, second) = (inner(&mut types, of), inner(&mut types, other));
                let variants = Variants {
                    discriminant: Some(member("tag", byte, 0)),
                    all: vec![
                        Variant { values: vec![1..=3, 7..=9], member: member("A", first, 0) },
                        Variant { values: vec![], member: member("B", second, 0) },
                    ],
                };
                let size = 8 + size.max(types.size(other).unwrap_or(0));
                types.add(bare(Some("E"), size, Language::Rust, structure(vec![], Some(Box::new(variants)))))
            }
            _ => {
                let other = pick(random);
                let members = vec![member("__0", of, 0), member("__1", other, size)];
                let size = size + types.size(other).unwrap_or(0);
                types.add(bare(Some("(A, B)"), size, Language::Rust, structure(members, None)))
            }
        };
        if types.size(made).is_some_and(|size| size <= 4096) {
            all.push(made);
        }
    }
    let text = all[1];
    let of = all[random.below(all.len() as u64) as usize];
    let of = if types.size(of) == Some(8) { of } else { text };
    let members = vec![member("a", to_list, 0), member("b", of, 8), member("c", text, 16)];
    types.replace(list, bare(Some("List"), 24, Language::Rust, structure(members, None)));
    (types, all[all.len() - 1])
}

#[test]
fn the_body_reads_what_layouts_say() {
    let (mut reads, mut longest) = (0, 0);
    for seed in 1..1000_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut types, of) = types(&mut random);
        let memory: Vec<u8> = (0..SIZE / 8).flat_map(|_| random.word().to_le_bytes()).collect();
        let mut words = [0; 40];
        words.iter_mut().for_each(|word| *word = random.word());
        let mut process = Process { memory, registers: words, site: 1 };
        // As much of it as is recorded lies in memory, at the stack pointer; a word of it is in a register.
        let size = types.size(of).unwrap().min(1024);
        process.registers[7] = START + 8 * random.below((SIZE as u64 - size) / 8);
        let mut layouts = Layouts::default();
        let mut table = Table::new();
        let layout = layouts.of_value(&mut types, &mut |_, _| {}, of);
        let place = table.layout(&layouts, &mut Placed::default(), layout);
        let in_memory = Part::Memory { register: 7, plus: 0, size: size as u32, then: None };
        let root = Root { size: size as u32, parts: vec![(0, in_memory)], layout: place };
        let list = table.list(&[root]);
        let program = body::program(registers(), &[0, list], &[0, list], table.into_bytes());
        assert_eq!(verify(&program), Ok(()));
        let (message, parts) = told(&program, AT_ENTRY, &mut process);
        assert_eq!((message, parts[0].as_slice()), (0, 0x7000_u64.to_le_bytes().as_slice()));
        let value = process.look(process.registers[7], size as usize);
        let Seen::Bytes(value) = value else { panic!("{seed}") };
        let expected = follow(&layouts, &[(layout, value.clone())], &mut |at, size| process.look(at, size));
        let tape = Tape::new(&parts[1], 1);
        assert_eq!(tape.memory(1), expected, "seed {seed}");
        assert_eq!(tape.bytes(0), (size > 0).then_some(value.as_slice()).or(Some(&[])), "seed {seed}");
        let count = expected.reads().len();
        assert!(count <= MOST_READS && parts[1].len() <= MOST_RECORDED + 1200);
        (reads, longest) = (reads + count, longest.max(count));
    }
    assert!(reads > 4000 && longest == MOST_READS, "{reads} {longest}");
}

#[test]
fn values_are_put_together_by_their_parts() {
    let word = |register, shift, plus| Part::Register { register, shift, plus };
    let through = Part::Memory { register: 4, plus: 8, size: 16, then: Some(-8) };
    let nowhere = Part::Memory { register: 2, plus: 0, size: 8, then: None };
    let root = |size, parts: &[(u32, Part)]| Root { size, parts: parts.to_vec(), layout: None };
    let roots = [
        root(4, &[(0, word(5, 0, 0))]),
        root(12, &[(0, word(32, 0, 0)), (8, word(5, 32, 1))]),
        root(16, &[(0, through)]),
        root(8, &[(0, nowhere)]),
        root(8, &[(0, word(9, 0, -1)), (4, Part::Constant(0x11))]),
    ];
    let mut table = Table::new();
    let list = table.list(&roots);
    let program = body::program(registers(), &[list], &[list], table.into_bytes());
    let mut memory = vec![0; SIZE];
    memory[0x108..0x110].copy_from_slice(&(START + 0x208).to_le_bytes());
    memory[0x200..0x210].copy_from_slice(b"sixteen letters!");
    let mut process = Process { memory, registers: [0; 40], site: 0 };
    process.registers[5] = 0x1122_3344_5566_7788;
    process.registers[32] = 1.5_f64.to_bits();
    process.registers[4] = START + 0x100;
    process.registers[2] = 8;
    for (body, site) in [(AT_ENTRY, 0), (BodyId(1), 0)] {
        process.site = site;
        let (_, parts) = told(&program, body, &mut process);
        let tape = Tape::new(parts.last().unwrap(), 1);
        let second = [&1.5_f64.to_le_bytes()[..], &0x1122_3345_u32.to_le_bytes()].concat();
        assert_eq!(tape.bytes(0), Some(&0x5566_7788_u32.to_le_bytes()[..]));
        assert_eq!(tape.bytes(1), Some(&second[..]));
        assert_eq!(tape.bytes(2), Some(&b"sixteen letters!"[..]));
        assert_eq!(tape.bytes(3), None);
        assert_eq!(tape.bytes(4), Some(&0x11_ffff_ffff_u64.to_le_bytes()[..]));
    }
}

#[test]
fn a_return_and_a_site_that_is_not_planned_for_have_lists_of_their_own() {
    let mut table = Table::new();
    let part = |register| (0, Part::Register { register, shift: 0, plus: 0 });
    let root = |register| Root { size: 8, parts: vec![part(register)], layout: None };
    let (entry, at_return) = (table.list(&[root(5)]), table.list(&[root(0)]));
    // What two functions have in the same places is one list.
    assert_eq!(table.list(&[root(5)]), entry);
    let program = body::program(registers(), &[0, entry], &[0, at_return], table.into_bytes());
    let mut process = Process { memory: vec![0; SIZE], registers: [0; 40], site: 1 | RETURNS };
    process.registers[0] = 42;
    let (message, parts) = told(&program, AT_RETURN, &mut process);
    assert_eq!((message, Tape::new(&parts[2], 1).words()), (2, vec![42]));
    assert_eq!(parts[1], 99_u64.to_le_bytes());
    for site in [0, 2, 1000, RETURNS - 1] {
        process.site = site;
        let (_, parts) = told(&program, AT_ENTRY, &mut process);
        assert_eq!(parts[1], [0; 0], "{site}");
    }
}

#[test]
fn a_table_that_the_target_has_written_is_harmless() {
    let mut random = Random(7);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..4096).map(|_| (random.next() >> 60) as u8).collect();
        let lists: Vec<u32> = (0..8).map(|_| random.below(8192) as u32).collect();
        let program = body::program(registers(), &lists, &lists, bytes);
        assert_eq!(verify(&program), Ok(()));
        let memory: Vec<u8> = (0..SIZE / 8).flat_map(|_| random.word().to_le_bytes()).collect();
        let mut process = Process { memory, registers: [START; 40], site: random.below(10) as u32 };
        let (mut maps, mut told) = (Tables::new(&program), Told::default());
        let host = Host { hit: &mut process, maps: &mut maps, sink: &mut told };
        // It may run out of fuel; it ends.
        run(&program, AT_ENTRY, host);
        for (_, parts) in told.0 {
            let _ = Tape::new(&parts[1], 1);
        }
    }
}
