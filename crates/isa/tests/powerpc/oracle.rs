//! The processor's word against ours: instructions executed under qemu-user as they are, their relocated copies
//! executed from the same registers and memory, and both compared, bit by bit, with each other and with their
//! emulation.

use crate::cross::Cross;
use std::fs;
use trapless_isa::{
    Displaced, Isa, Reason,
    powerpc::{Fault, Memory, POWERPC64LE, Registers, Stopped, Version, emulate, relocate},
};

const WINDOW: u64 = 0x2000_1000;
const WINDOW_SIZE: usize = 1024;
/// In the middle of the arena, which reaches 64 MiB either way.
const CODE: u64 = 0x3400_0000;
/// For absolute branches: in the middle of an arena from 0x20_0000 to 0x400_0000.
const LOW_CODE: u64 = 0x180_0000;
const PAD_SIZE: u64 = 28;
const REACH: u64 = 1 << 25;
/// What `exit` is when a signal ended the test; the signal's number is added.
const FAULTED: u64 = 100;
const CASES: usize = 2000;

/// splitmix64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Mostly small numbers, numbers near a power of two, and anything.
    fn value(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(5).wrapping_sub(2),
            1 => (1u64 << self.below(64)).wrapping_add(self.below(3)).wrapping_sub(1),
            _ => self.next(),
        }
    }
}

/// One instruction and the world it runs in.
struct Case {
    words: Vec<u32>,
    address: u64,
    registers: Registers,
    seed: u64,
    /// Where control may go, besides on.
    targets: Vec<u64>,
}

impl Case {
    fn new(random: &mut Random, words: Vec<u32>, address: u64) -> Self {
        let mut registers = Registers { pc: address, ..Registers::default() };
        registers.gpr = std::array::from_fn(|_| random.value());
        registers.gpr[1] = WINDOW + 0x8000;
        registers.cr = random.next() as u32;
        registers.xer = random.next() & 0xe00c_0000;
        registers.ctr = random.value();
        registers.lr = random.next();
        registers.tar = random.next();
        Self { words, address, registers, seed: random.next() | 1, targets: vec![] }
    }

    fn next(&self) -> u64 {
        self.address + 4 * self.words.len() as u64
    }

    fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn pads(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.next()).chain(self.targets.iter().copied())
    }

    /// The program's input, with `code` at `address` instead of the instruction.
    fn write(&self, code: &[u8], address: u64, to: &mut Vec<u8>) {
        let r = &self.registers;
        let mut numbers = r.gpr.to_vec();
        numbers.extend([
            u64::from(r.cr),
            r.xer,
            r.ctr,
            r.lr,
            r.tar,
            self.seed,
            address,
            code.len() as u64 / 4,
        ]);
        numbers.extend(self.pads().chain(std::iter::repeat(0)).take(4));
        to.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        to.extend_from_slice(code);
        to.resize(to.len() + 24 * 4 - code.len(), 0);
    }

    fn window(&self) -> Window {
        let mut bytes = vec![];
        let mut random = self.seed;
        for _ in 0..WINDOW_SIZE / 8 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes.extend(random.to_le_bytes());
        }
        Window(bytes)
    }
}

/// The memory that loads and stores are aimed at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window(Vec<u8>);

impl Window {
    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, Fault> {
        let start = address.wrapping_sub(WINDOW);
        match start < (WINDOW_SIZE - length) as u64 {
            true => Ok(start as usize..start as usize + length),
            false => Err(Fault { address }),
        }
    }
}

impl Memory for Window {
    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        bytes.copy_from_slice(&self.0[self.range(address, bytes.len())?]);
        Ok(())
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let range = self.range(address, bytes.len())?;
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// What came out: registers with the pc in `pc`, or the signal's number there, and memory.
type Outcome = (Registers, Window);

fn read_outcome(case: &Case, bytes: &[u8]) -> Outcome {
    let number = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
    let exit = number(37);
    let pc = case.pads().nth(exit as usize).unwrap_or(exit);
    let registers = Registers {
        gpr: std::array::from_fn(number),
        cr: number(32) as u32,
        xer: number(33),
        ctr: number(34),
        lr: number(35),
        tar: number(36),
        pc,
    };
    (registers, Window(bytes[38 * 8..].to_vec()))
}

const RESULT_SIZE: usize = 38 * 8 + WINDOW_SIZE;

/// Executes what `write` produces for each case.
fn execute(cross: &Cross, name: &str, processor: &str, cases: &[Case], inputs: &[u8]) -> Vec<Outcome> {
    let program = cross.compile_once("oracle.c");
    let (input, output) =
        (cross.scratch(&format!("{name}.cases")), cross.scratch(&format!("{name}.results")));
    fs::write(&input, inputs).expect("the cases are written");
    let status = cross.run(&program, processor, &[&input, &output]).status().expect("qemu starts");
    assert!(status.success(), "{name}: {status}");
    let results = fs::read(&output).expect("there are results");
    assert_eq!(results.len(), cases.len() * RESULT_SIZE, "{name}: one result for each case");
    cases.iter().zip(results.chunks_exact(RESULT_SIZE)).map(|(c, bytes)| read_outcome(c, bytes)).collect()
}

/// Runs the originals and compares the emulation with them. Counts what was compared.
fn check_emulation(cross: &Cross, name: &str, version: Version, cases: &[Case]) -> usize {
    let processor = if version == Version::V3_0 { "power10" } else { "power8" };
    let mut inputs = vec![];
    cases.iter().for_each(|case| case.write(&case.bytes(), case.address, &mut inputs));
    let mut compared = 0;
    for (case, (registers, window)) in cases.iter().zip(execute(cross, name, processor, cases, &inputs)) {
        let (mut emulated, mut memory) = (case.registers, case.window());
        let outcome = emulate(&case.bytes(), &mut emulated, &mut memory, version);
        let text = POWERPC64LE.disassemble(&case.bytes(), case.address);
        if registers.pc == FAULTED + 4 {
            // A reserved bit is set that the manual says to ignore: qemu does not, in some forms.
            continue;
        }
        assert_eq!(outcome, Ok(()), "{name}: {text} {:x?}", case.words);
        assert_eq!(emulated, registers, "{name}: {text} {:x?} from {:#x?}", case.words, case.registers);
        assert_eq!(memory, window, "{name}: {text}");
        compared += 1;
    }
    compared
}

/// Runs originals and copies at each destination, and compares.
fn check_relocation(cross: &Cross, name: &str, cases: &[(Case, u64)]) {
    let (mut originals, mut copies) = (vec![], vec![]);
    for (case, destination) in cases {
        let length = case.bytes().len() as u8;
        let displaced = Displaced { start: case.address, length, instructions: 1 };
        let relocated = relocate(&displaced, &case.bytes(), *destination).unwrap_or_else(|e| {
            panic!("{name}: {:x?} at {:#x} to {destination:#x}: {e}", case.words, case.address)
        });
        let mut code = relocated.code;
        let end = destination + code.len() as u64;
        // Where the copy falls through, as in a detour; out of reach where the copy always branches far away.
        let back = Displaced { start: end, length: 4, instructions: 1 };
        code.extend(POWERPC64LE.patch(&back, case.next()).unwrap_or_else(|_| vec![0; 4]));
        case.write(&case.bytes(), case.address, &mut originals);
        case.write(&code, *destination, &mut copies);
    }
    let cases: Vec<Case> = cases
        .iter()
        .map(|(case, _)| Case { targets: case.targets.clone(), words: case.words.clone(), ..*case })
        .collect();
    let originals = execute(cross, &format!("{name}-original"), "power10", &cases, &originals);
    let copies = execute(cross, &format!("{name}-copy"), "power10", &cases, &copies);
    for ((case, original), copy) in cases.iter().zip(originals).zip(copies) {
        assert!(original.0.pc >= 0x1000, "{name}: {:x?} faults: {}", case.words, original.0.pc);
        assert_eq!(copy, original, "{name}: {:x?} at {:#x}", case.words, case.address);
    }
}

/// A branch target that leaves room for the pads and the code.
fn apart(target: u64, address: u64) -> bool {
    target >= address + 4 + PAD_SIZE || target + PAD_SIZE <= address - 12
}

fn conditional(random: &mut Random, link: u32) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let (bo, bi) = (random.below(32) as u32, random.below(32) as u32);
    let boundaries = [-0x8000_i64, 0x7ffc, 4, 32, -40, -44, 0x7ff8, -0x7ffc];
    let distance = match random.below(3) {
        0 => random.pick(&boundaries),
        _ => loop {
            let distance = (random.below(0x1_0000) & !3) as i64 - 0x8000;
            if apart(address.wrapping_add_signed(distance), address) {
                break distance;
            }
        },
    };
    let word = 16 << 26 | bo << 21 | bi << 16 | distance as u32 & 0xfffc | link;
    let mut case = Case::new(random, vec![word], address);
    case.registers.ctr = random.pick(&[0, 1, 2, case.registers.ctr]);
    if distance != 4 {
        case.targets.push(address.wrapping_add_signed(distance));
    }
    case
}

/// b or bc at a low address to an absolute one.
fn absolute(random: &mut Random, link: u32) -> Case {
    let address = LOW_CODE + 4 * random.below(1 << 10);
    let (target, word) = match random.below(2) {
        0 => {
            let inside = 0x100_0000 + 4 * random.below(1 << 10);
            let target = random.pick(&[0x1ff_fffc, 0x20_0000, inside]);
            (target, 18 << 26 | target as u32 | 2 | link)
        }
        _ => {
            let inside = 0x2000 + 4 * random.below(1 << 8);
            let target = random.pick(&[0x1000, 0x3f00, inside]);
            let (bo, bi) = (random.below(32) as u32, random.below(32) as u32);
            (target, 16 << 26 | bo << 21 | bi << 16 | target as u32 | 2 | link)
        }
    };
    let mut case = Case::new(random, vec![word], address);
    case.targets.push(target);
    case
}

/// bclr, bcctr, bctar: the extended opcode says which.
fn to_register(random: &mut Random, xo: u32, link: u32) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let target = CODE + 0x20_0000 + 4 * random.below(1 << 16);
    let always_ignores_count = if xo == 528 { 4 } else { 0 };
    let (bo, bi) = (random.below(32) as u32 | always_ignores_count, random.below(32) as u32);
    let word = 19 << 26 | bo << 21 | bi << 16 | xo << 1 | link;
    let mut case = Case::new(random, vec![word], address);
    match xo {
        16 => case.registers.lr = target,
        528 => case.registers.ctr = target,
        _ => case.registers.tar = target,
    }
    if xo != 528 {
        case.registers.ctr = random.pick(&[0, 1, 2, case.registers.ctr]);
    }
    case.targets.push(target);
    case
}

fn unconditional(random: &mut Random, link: u32) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let far = random.below(1 << 26) as i64 & !3;
    let distance =
        random.pick(&[-(REACH as i64), REACH as i64 - 4, 4, far - REACH as i64, far - REACH as i64]);
    let distance =
        if distance == 4 || apart(address.wrapping_add_signed(distance), address) { distance } else { 64 };
    let mut case = Case::new(random, vec![18 << 26 | distance as u32 & 0x3ff_fffc | link], address);
    if distance != 4 {
        case.targets.push(address.wrapping_add_signed(distance));
    }
    case
}

/// bdnz or bdz to itself, which ends by the count.
fn to_itself(random: &mut Random) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let bo = random.pick(&[16, 18, 25, 27]);
    let mut case = Case::new(random, vec![16 << 26 | bo << 21], address);
    case.registers.ctr = 1 + random.below(20);
    case
}

/// Puts a base register into the window and returns it with one that is not it.
fn aim(random: &mut Random, case: &mut Case) -> (u32, u32) {
    let base = 3 + random.below(29) as u32;
    let index = (base + 1 + random.below(28) as u32 - 3) % 29 + 3;
    case.registers.gpr[base as usize] = WINDOW + 400 + random.below(200);
    case.registers.gpr[index as usize] = random.below(128).wrapping_sub(64);
    (base, index)
}

fn pc_relative(random: &mut Random) -> Case {
    let address = CODE + 4 * (random.below(1 << 16) & !1);
    let (kind, suffix) = random.pick(&[
        (2, 14),
        (2, 32),
        (2, 34),
        (2, 36),
        (2, 38),
        (2, 40),
        (2, 42),
        (2, 44),
        (0, 41),
        (0, 57),
        (0, 61),
    ]);
    let distance = match suffix {
        14 => random.next() as i64 >> 30,
        _ => (WINDOW + random.below(900)).wrapping_sub(address) as i64,
    };
    let prefix = 1 << 26 | kind << 24 | 1 << 20 | (distance >> 16) as u32 & 0x3_ffff;
    let suffix = suffix << 26 | (random.below(32) as u32) << 21 | distance as u32 & 0xffff;
    Case::new(random, vec![prefix, suffix], address)
}

fn addpcis(random: &mut Random) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let fields = random.next() as u32 & 0x03ff_ffc1;
    Case::new(random, vec![19 << 26 | fields | 4], address)
}

#[test]
fn branches_are_emulated_like_the_processor_does() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(1);
    let mut total = 0;
    for link in [0, 1] {
        for (name, make) in [
            ("bc", conditional as fn(&mut Random, u32) -> Case),
            ("b", unconditional),
            ("ba", absolute),
            ("bclr", |random, link| to_register(random, 16, link)),
            ("bcctr", |random, link| to_register(random, 528, link)),
            ("bctar", |random, link| to_register(random, 560, link)),
        ] {
            let cases: Vec<_> = (0..CASES).map(|_| make(&mut random, link)).collect();
            total += check_emulation(&cross, &format!("{name}-{link}"), Version::V3_0, &cases);
        }
    }
    println!("{total} branches emulated");
}

#[test]
fn relocated_instructions_do_what_the_originals_do() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(2);
    let near = |random: &mut Random, case: &Case| case.address + 0x40_0000 + 4 * random.below(1 << 16);
    let mut total = 0;
    for (name, make) in [
        ("move-bc", (|random| conditional(random, 0)) as fn(&mut Random) -> Case),
        ("move-bcl", |random| conditional(random, 1)),
        ("move-ba", |random| {
            let link = random.below(2) as u32;
            absolute(random, link)
        }),
        ("move-bclr", |random| to_register(random, 16, 0)),
        ("move-bcctr", |random| to_register(random, 528, 0)),
        ("move-bcctrl", |random| to_register(random, 528, 1)),
        ("move-bctar", |random| to_register(random, 560, 0)),
        ("move-bctarl", |random| to_register(random, 560, 1)),
        ("move-self", to_itself),
        ("move-prefixed", pc_relative),
        ("move-addpcis", addpcis),
    ] {
        let cases: Vec<_> = (0..CASES)
            .map(|_| {
                let case = make(&mut random);
                let destination = near(&mut random, &case);
                (case, destination)
            })
            .collect();
        check_relocation(&cross, name, &cases);
        total += cases.len();
    }
    // The I form, from the ends of the reach of the copy's branch.
    for link in [0, 1] {
        let cases: Vec<_> = (0..CASES)
            .map(|_| {
                let case = unconditional(&mut random, link);
                let target = case.targets.first().copied().unwrap_or(case.next());
                let inside = target.wrapping_sub(0x1_0000 + 4 * random.below(1 << 16));
                let start =
                    random.pick(&[target.wrapping_sub(REACH - 4), target + REACH, target + 0x1000, inside]);
                // Setting lr takes words before the branch.
                let words = if link == 1 { 4 * link_words(case.next()) } else { 0 };
                let limits = target + REACH - words >= start && start + words + REACH - 4 >= target;
                let fallback = target - 0x10_0000;
                let clear = case.pads().all(|pad| start.abs_diff(pad) > 256);
                let destination = if limits && clear { start } else { fallback };
                (case, destination)
            })
            .collect();
        check_relocation(&cross, &format!("move-b-{link}"), &cases);
        total += cases.len();
    }
    println!("{total} relocated instructions executed");
}

/// Words that set lr to a 32-bit address: frame, store, constant, mtlr, load, frame.
fn link_words(value: u64) -> u64 {
    if value & 0xffff == 0 { 6 } else { 7 }
}

#[test]
fn one_word_further_is_out_of_reach() {
    let word = |target: u64| (18 << 26 | (target - CODE) as u32 & 0x3ff_fffc).to_le_bytes();
    let displaced = Displaced { start: CODE, length: 4, instructions: 1 };
    for (name, target, destination, reaches) in [
        ("forward end", CODE + 0x1000, CODE + 0x1000 - (REACH - 4), true),
        ("past it", CODE + 0x1000, CODE + 0x1000 - REACH, false),
        ("backward end", CODE + 0x1000, CODE + 0x1000 + REACH, true),
        ("past it too", CODE + 0x1000, CODE + 0x1000 + REACH + 4, false),
    ] {
        let outcome = relocate(&displaced, &word(target), destination);
        assert_eq!(outcome.is_ok(), reaches, "{name}");
        assert!(reaches || outcome == Err(Reason::OutOfReach), "{name}");
    }
    // pld r3 at the ends of its 34 bits, moved a word away and towards its operand.
    let displaced = Displaced { length: 8, ..displaced };
    for (high, low, distance, reaches) in [
        (0x1_ffff_u32, 0xfffc_u32, 4_i64, true),
        (0x1_ffff, 0xfffc, -4, false),
        (0x2_0000, 0x0000, -4, true),
        (0x2_0000, 0x0000, 4, false),
    ] {
        let pld = [(0x0410_0000 | high).to_le_bytes(), (0xe460_0000 | low).to_le_bytes()].concat();
        let outcome = relocate(&displaced, &pld, CODE.wrapping_add_signed(distance));
        assert_eq!(outcome.is_ok(), reaches, "{high:#x} {low:#x} moved by {distance}");
    }
}

#[test]
fn loads_and_stores_are_emulated_like_the_processor_does() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(3);
    let mut cases = vec![];
    // D and DS forms: primary opcode, bits of the displacement that are opcode, last opcode.
    let d_forms = (32..=45).map(|primary| (primary, 0, 0)).chain([(58, 3, 2), (62, 3, 1)]);
    for (primary, mask, last) in d_forms {
        for _ in 0..CASES {
            let mut case = Case::new(&mut random, vec![0], CODE);
            let (base, _) = aim(&mut random, &mut case);
            let d = random.below(512).wrapping_sub(256) as u32 & 0xffff & !mask;
            let xo = random.below(last + 1) as u32;
            case.words[0] = primary << 26 | (random.below(32) as u32) << 21 | base << 16 | d | xo;
            cases.push(case);
        }
    }
    for xo in [
        21, 23, 53, 55, 87, 119, 149, 151, 181, 183, 215, 247, 279, 311, 341, 343, 373, 375, 407, 439, 532,
        534, 660, 662, 790, 918,
    ] {
        for _ in 0..CASES {
            let mut case = Case::new(&mut random, vec![0], CODE);
            let (base, index) = aim(&mut random, &mut case);
            case.words[0] = 31 << 26 | (random.below(32) as u32) << 21 | base << 16 | index << 11 | xo << 1;
            cases.push(case);
        }
    }
    for _ in 0..CASES {
        cases.push(pc_relative(&mut random));
    }
    // An update form may name no base, or the loaded register: invalid, and refused.
    cases.retain(|case| {
        let outcome = emulate(&case.bytes(), &mut case.registers.clone(), &mut case.window(), Version::V3_0);
        let refused = outcome == Err(Stopped::Refused(Reason::NotEmulated("an invalid form")));
        assert!(refused || outcome.is_ok(), "{:x?}: {outcome:?}", case.words);
        !refused
    });
    let compared = check_emulation(&cross, "loads", Version::V3_0, &cases);
    println!("{compared} loads and stores emulated");
    assert!(compared > 80_000);
}

/// Words of the forms that `arithmetic` knows, with all other fields at random.
fn arithmetic(random: &mut Random) -> u32 {
    let fields = random.next() as u32;
    let extended = [
        0, 8, 9, 10, 19, 24, 26, 27, 28, 32, 40, 58, 60, 73, 104, 124, 136, 138, 144, 200, 202, 232, 233,
        234, 235, 266, 284, 316, 412, 444, 476, 506, 536, 538, 539, 570, 792, 794, 824, 826, 827, 922, 954,
        986, 15, 47, 1007,
    ];
    match random.below(4) {
        0 => {
            random.pick(&[7, 8, 10, 11, 12, 13, 14, 15, 20, 21, 23, 24, 25, 26, 27, 28, 29]) << 26
                | fields & 0x03ff_ffff
        }
        1 => 30 << 26 | fields & 0x03ff_ffff,
        2 => random.pick(&[0, 33, 129, 193, 225, 257, 289, 417, 449]) << 1 | 19 << 26 | fields & 0x03ff_f800,
        _ => {
            let xo = random.pick(&extended);
            let special = [8, 9, 815].map(|spr: u32| (spr & 31) << 16 | spr >> 5 << 11);
            match random.below(16) {
                0 => 31 << 26 | fields & 0x03e0_0000 | random.pick(&special) | random.pick(&[339, 467]) << 1,
                _ => 31 << 26 | fields & 0x03ff_f801 | xo << 1,
            }
        }
    }
}

#[test]
fn arithmetic_is_emulated_like_the_processor_does() {
    let Some(cross) = Cross::find() else { return };
    for (version, seed) in [(Version::V3_0, 4), (Version::V2_07, 5)] {
        let mut random = Random(seed);
        let known = |case: &Case| {
            let outcome = emulate(&case.bytes(), &mut case.registers.clone(), &mut case.window(), version);
            outcome.is_ok()
        };
        let cases: Vec<Case> = (0..60_000)
            .map(|_| {
                let word = arithmetic(&mut random);
                let mut case = Case::new(&mut random, vec![word], CODE);
                if version == Version::V2_07 {
                    case.registers.xer &= 0xe000_0000;
                }
                case
            })
            .filter(known)
            .collect();
        let compared = check_emulation(&cross, &format!("arithmetic-{seed}"), version, &cases);
        println!("{compared} of {} arithmetic instructions compared, as {version:?}", cases.len());
        assert!(compared > 40_000);
    }
}
