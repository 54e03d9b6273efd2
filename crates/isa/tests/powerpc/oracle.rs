//! The processor's word against ours: instructions executed under qemu-user as they are, their relocated copies
//! executed from the same registers and memory, and both compared, bit by bit, with each other and with their
//! emulation.

use crate::cross::Cross;
use crate::state::{Fault, Memory, Registers, State, emulate};
use std::fs;
use trapless_isa::{
    Displaced, Isa, Reason, Slot,
    powerpc::{POWERPC64LE, Version, relocate},
};

pub const WINDOW: u64 = 0x2000_1000;
const WINDOW_SIZE: usize = 1024;
/// In the middle of the arena, which reaches 64 MiB either way.
pub const CODE: u64 = 0x3400_0000;
/// For absolute branches: in the middle of an arena from 0x20_0000 to 0x400_0000.
pub const LOW_CODE: u64 = 0x180_0000;
pub const PAD_SIZE: u64 = 28;
pub const REACH: u64 = 1 << 25;
/// What `exit` is when a signal ended the test; the signal's number is added.
const FAULTED: u64 = 100;

/// splitmix64
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
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
pub struct Case {
    pub words: Vec<u32>,
    pub address: u64,
    pub registers: Registers,
    seed: u64,
    /// Where control may go, besides on.
    pub targets: Vec<u64>,
}

impl Case {
    pub fn new(random: &mut Random, words: Vec<u32>, address: u64) -> Self {
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

    pub fn next(&self) -> u64 {
        self.address + 4 * self.words.len() as u64
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn pads(&self) -> impl Iterator<Item = u64> {
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

    pub fn window(&self) -> Window {
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
pub struct Window(Vec<u8>);

impl Window {
    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, Fault> {
        let start = address.wrapping_sub(WINDOW);
        match start < (WINDOW_SIZE - length) as u64 {
            true => Ok(start as usize..start as usize + length),
            false => Err(Fault),
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

/// Runs instructions and compares their emulation together with that.
pub fn check_together(cross: &Cross, name: &str, cases: &[Case]) {
    let mut inputs = vec![];
    cases.iter().for_each(|case| case.write(&case.bytes(), case.address, &mut inputs));
    for (case, (registers, window)) in cases.iter().zip(execute(cross, name, "power10", cases, &inputs)) {
        let (mut emulated, mut memory) = (case.registers, case.window());
        let mut thread = State::new(&mut emulated, &mut memory);
        let outcome = POWERPC64LE.emulate(&case.bytes(), case.address, &mut thread);
        assert_eq!(outcome, Ok(()), "{name}: {:x?}", case.words);
        assert_eq!(emulated, registers, "{name}: {:x?} from {:#x?}", case.words, case.registers);
        assert_eq!(memory, window, "{name}: {:x?}", case.words);
    }
}

/// Runs the originals and compares the emulation with them. Counts what was compared.
pub fn check_emulation(cross: &Cross, name: &str, version: Version, cases: &[Case]) -> usize {
    let processor = if version == Version::V3_0 { "power10" } else { "power8" };
    let mut inputs = vec![];
    cases.iter().for_each(|case| case.write(&case.bytes(), case.address, &mut inputs));
    let mut compared = 0;
    for (case, (registers, window)) in cases.iter().zip(execute(cross, name, processor, cases, &inputs)) {
        let (mut emulated, mut memory) = (case.registers, case.window());
        let outcome = emulate(&case.bytes(), &mut emulated, &mut memory, Some(version));
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

/// Runs originals and relocated copies at each destination, and compares.
pub fn check_relocation(cross: &Cross, name: &str, cases: &[(Case, u64)]) {
    check_copies(cross, name, cases, |displaced, bytes, destination| {
        let mut code = relocate(displaced, bytes, destination)?.code;
        code.extend(back(destination + code.len() as u64, displaced.end()));
        Ok(code)
    });
}

/// The same of slots. Where a stepped one ends, with a breakpoint or without, there is what the tracer does.
pub fn check_slots(cross: &Cross, name: &str, boosted: bool, cases: &[(Case, u64)]) {
    check_copies(cross, name, cases, |displaced, bytes, destination| {
        let slot = POWERPC64LE.slot(displaced, bytes, destination, boosted)?;
        let ends = slot.ends_in_break(POWERPC64LE.facts()) || slot.code.len() == slot.copy as usize;
        let Slot { mut code, copy, .. } = slot;
        if ends {
            code.truncate(copy as usize);
            code.extend(back(destination + u64::from(copy), displaced.end()));
        }
        Ok(code)
    });
}

/// The branch from where the copy falls through, as in a detour; out of reach where the copy always branches far away.
fn back(from: u64, to: u64) -> Vec<u8> {
    let back = Displaced { start: from, length: 4, instructions: 1 };
    POWERPC64LE.patch(&back, to).unwrap_or_else(|_| vec![0; 4])
}

fn check_copies(
    cross: &Cross,
    name: &str,
    cases: &[(Case, u64)],
    make: impl Fn(&Displaced, &[u8], u64) -> Result<Vec<u8>, Reason>,
) {
    let (mut originals, mut copies) = (vec![], vec![]);
    for (case, destination) in cases {
        let length = case.bytes().len() as u8;
        let displaced = Displaced { start: case.address, length, instructions: 1 };
        let code = make(&displaced, &case.bytes(), *destination).unwrap_or_else(|e| {
            panic!("{name}: {:x?} at {:#x} to {destination:#x}: {e}", case.words, case.address)
        });
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
