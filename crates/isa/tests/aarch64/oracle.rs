//! The oracle: instructions executed under qemu-user from given registers. See `oracle.c`, whose world this
//! mirrors.

use super::{
    compile, qemu,
    state::{Fault, Memory, Registers},
};
use std::{fs, process::Command};

/// Start of the region full of traps.
pub const REGION: u64 = 0x10_0000_0000;
/// Its size.
pub const REGION_SIZE: u64 = 258 << 20;
/// The middle of the region: every direct branch from here stays inside.
pub const MIDDLE: u64 = REGION + REGION_SIZE / 2;
/// The data page.
pub const DATA: u64 = 0x20_0000_0000;
/// How much of it is compared.
pub const DATA_SIZE: usize = 1024;
/// The longest code of a case, in instructions.
pub const WORDS: usize = 12;

/// SplitMix64, the same as in `oracle.c`.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// One of the values that instructions treat differently, or any.
    pub fn value(&mut self) -> u64 {
        let bit = 1 << self.below(64);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => bit,
            3 => bit - 1,
            4 => self.below(256),
            5 => self.next() & 0xffff_ffff,
            _ => self.next(),
        }
    }

    /// Random registers, with the program counter at `pc`.
    pub fn registers(&mut self, pc: u64) -> Registers {
        let sp = DATA + 512;
        Registers { x: core::array::from_fn(|_| self.value()), sp, pc, pstate: self.below(16) << 28 }
    }
}

/// Code to execute from `registers.pc`, with the data page filled from `seed`.
#[derive(Clone, Debug)]
pub struct Case {
    /// Machine code, at most [`WORDS`] instructions.
    pub code: Vec<u8>,
    /// The registers before.
    pub registers: Registers,
    /// Seed of the data page and the vector registers.
    pub seed: u64,
}

/// What is there after the first trap or fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The registers.
    pub registers: Registers,
    /// 5 for the trap.
    pub signal: u64,
    /// Hash of the vector registers.
    pub vectors: u64,
    /// Hash of the data page.
    pub memory: u64,
}

/// Executes all cases, or says why it is skipped.
pub fn execute(cases: &[Case]) -> Option<Vec<Outcome>> {
    let (qemu, program) = (qemu()?, compile("oracle.c")?);
    let mut input = vec![];
    for case in cases {
        let r = &case.registers;
        let mut words = case.code.clone();
        assert!(words.len() <= 4 * WORDS, "{} bytes", words.len());
        words.resize(4 * WORDS, 0);
        input.extend([r.pc, case.code.len() as u64 / 4, case.seed].map(u64::to_le_bytes).as_flattened());
        input.extend(words);
        input.extend(r.x.map(u64::to_le_bytes).as_flattened());
        input.extend([r.sp, r.pstate].map(u64::to_le_bytes).as_flattened());
    }
    let files = ["cases", "results"].map(|end| program.with_extension(end));
    fs::write(&files[0], input).unwrap();
    let status =
        Command::new(qemu).args(["-cpu", "max,sve=off,sme=off"]).arg(&program).args(&files).status().unwrap();
    assert!(status.success(), "the oracle ended with {status}");
    let output = fs::read(&files[1]).unwrap();
    for file in files.iter().chain([&program]) {
        fs::remove_file(file).unwrap();
    }
    let outcomes: Vec<_> = output.as_chunks::<{ 37 * 8 }>().0.iter().map(outcome).collect();
    assert_eq!(outcomes.len(), cases.len());
    Some(outcomes)
}

fn outcome(bytes: &[u8; 37 * 8]) -> Outcome {
    let field: Vec<u64> = bytes.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b)).collect();
    Outcome {
        registers: Registers {
            x: field[..31].try_into().unwrap(),
            sp: field[31],
            pc: field[32],
            pstate: field[33],
        },
        signal: field[34],
        vectors: field[35],
        memory: field[36],
    }
}

/// The world of a case, for the emulator.
pub struct World {
    /// The data page.
    pub data: Vec<u8>,
    /// Where the first access was, if it is only asked for.
    pub probe: Option<Option<u64>>,
}

impl World {
    /// The world that `oracle.c` makes from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let data = (0..DATA_SIZE / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        Self { data, probe: None }
    }

    /// The hash that `oracle.c` makes of it.
    pub fn hash(&self) -> u64 {
        self.data.as_chunks().0.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &word| {
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3)
        })
    }

    fn range(&mut self, address: u64, length: usize) -> Result<std::ops::Range<usize>, Fault> {
        if let Some(probe) = &mut self.probe {
            probe.get_or_insert(address);
            return Ok(0..length);
        }
        let start = address.wrapping_sub(DATA);
        if start <= (DATA_SIZE - length) as u64 {
            Ok(start as usize..start as usize + length)
        } else {
            Err(Fault)
        }
    }
}

impl Memory for World {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        if (REGION..REGION + REGION_SIZE - 16).contains(&address) {
            for (byte, at) in bytes.iter_mut().zip(address..) {
                let word = 0xd420_0000 | ((at >> 2 & 0xffff) << 5) as u32;
                *byte = word.to_le_bytes()[at as usize % 4];
            }
            return Ok(());
        }
        let range = self.range(address, bytes.len())?;
        bytes.copy_from_slice(&self.data[range]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let range = self.range(address, bytes.len())?;
        self.data[range].copy_from_slice(bytes);
        Ok(())
    }
}
