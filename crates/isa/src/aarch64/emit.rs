//! The assembler of the generators: the few instructions they need, and code at a known address with labels.
//!
//! [`instruction`] holds one function per instruction, named after it. Operands are register numbers and
//! values that the generators compute; those that could be out of range return an error, the others are
//! masked to their field.

pub mod instruction;

use crate::{
    Reason,
    detour::{Additions, Emitted},
};
use alloc::{vec, vec::Vec};

/// A place in the code, bound or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Machine code at a known address.
#[derive(Clone, Debug)]
pub struct Code {
    address: u64,
    words: Vec<u32>,
    labels: Vec<Option<usize>>,
    uses: Vec<(usize, Label)>,
    /// Constants that stand behind the code.
    pool: Vec<(u64, Label)>,
    additions: Additions,
}

impl Code {
    /// Code to stand at `address`.
    pub fn new(address: u64) -> Self {
        let additions = Additions::default();
        Self { address, words: vec![], labels: vec![], uses: vec![], pool: vec![], additions }
    }

    /// The same, which adds in this way.
    pub fn adding(self, additions: Additions) -> Self {
        Self { additions, ..self }
    }

    /// How it adds.
    pub fn additions(&self) -> Additions {
        self.additions
    }

    /// Address of the next instruction.
    pub fn here(&self) -> u64 {
        self.address.wrapping_add(u64::from(self.offset()))
    }

    /// Offset of the next instruction.
    pub fn offset(&self) -> u32 {
        (self.words.len() * 4) as u32
    }

    /// Appends instructions.
    pub fn emit(&mut self, words: impl IntoIterator<Item = u32>) {
        self.words.extend(words);
    }

    /// A new label, to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds `label` to the next instruction.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.words.len());
    }

    /// A new label for the next instruction.
    pub fn label_here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends a branch or `adr` without its offset, to lead to `label`.
    pub fn emit_to(&mut self, word: u32, label: Label) {
        self.uses.push((self.words.len(), label));
        self.words.push(word);
    }

    /// Appends `b` to an address.
    pub fn branch(&mut self, target: u64) -> Emitted<()> {
        let offset = target.wrapping_sub(self.here()) as i64;
        self.words.push(instruction::b(offset)?);
        Ok(())
    }

    /// Appends `bl` to an address.
    pub fn call(&mut self, target: u64) -> Emitted<()> {
        let offset = target.wrapping_sub(self.here()) as i64;
        self.words.push(instruction::bl(offset)?);
        Ok(())
    }

    /// Appends the shortest `movz`, `movk`… that loads `value`.
    pub fn load(&mut self, rd: u32, value: u64) {
        let mut first = true;
        for quarter in 0..4 {
            let part = (value >> (16 * quarter)) as u16;
            if part != 0 || quarter == 3 && first {
                let quarter = if part == 0 { 0 } else { quarter };
                let encode = if first { instruction::movz } else { instruction::movk };
                self.words.push(encode(rd, part, quarter));
                first = false;
            }
        }
    }

    /// Appends one instruction that loads `value`: from behind the code, if it takes more than one otherwise.
    pub fn constant(&mut self, rd: u32, value: u64) {
        if (0..4).any(|quarter| value & !(0xffff << (16 * quarter)) == 0) {
            return self.load(rd, value);
        }
        let known = self.pool.iter().find(|constant| constant.0 == value).map(|constant| constant.1);
        let label = known.unwrap_or_else(|| {
            let label = self.label();
            self.pool.push((value, label));
            label
        });
        self.emit_to(instruction::ldr_literal(rd), label);
    }

    /// Appends the addition of a constant: `rd = rn + value`. `rd` differs from `rn` when `value` needs more
    /// than 24 bits.
    pub fn add_constant(&mut self, rd: u32, rn: u32, value: u64) {
        if value >= 1 << 24 {
            self.load(rd, value);
            self.words.push(instruction::add(rd, rn, rd, 0));
            return;
        }
        let (high, low) = ((value >> 12) as u32, (value & 0xfff) as u32);
        if high != 0 {
            self.words.push(instruction::add_immediate_high(rd, rn, high));
        }
        if low != 0 || high == 0 {
            let rn = if high != 0 { rd } else { rn };
            self.words.push(instruction::add_immediate(rd, rn, low));
        }
    }

    /// Address of a bound label.
    pub fn address_of(&self, label: Label) -> Option<u64> {
        self.labels[label.0].map(|index| self.address.wrapping_add(4 * index as u64))
    }

    /// The finished machine code.
    pub fn finish(mut self) -> Emitted<Vec<u8>> {
        for (value, label) in core::mem::take(&mut self.pool) {
            if !self.here().is_multiple_of(8) {
                self.words.push(instruction::UDF);
            }
            self.bind(label);
            self.words.extend([value as u32, (value >> 32) as u32]);
        }
        for &(index, label) in &self.uses {
            let target = self.labels[label.0].ok_or(Reason::OutOfReach)?;
            let offset = 4 * (target as i64 - index as i64);
            self.words[index] |= match self.words[index] >> 24 & 0x7f {
                0x14..=0x17 => instruction::branch_field(offset, 0, 26)?,
                0x36 | 0x37 => instruction::branch_field(offset, 5, 14)?,
                _ => instruction::branch_field(offset, 5, 19)?,
            };
        }
        Ok(self.words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}
