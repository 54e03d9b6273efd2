//! Where the branches of a piece of code lead, jump tables included.
//!
//! A jump table is read by a load with a scaled index, whose result is added to the address of a label or of
//! the table itself; each compiler has its order of these instructions, so each operand of `br` is followed
//! back to the instruction that made it. Entries that lead outside the code end a table whose length the
//! comparison before it does not tell.

use super::decode::{Form, RegisterBranch, field, form, word};
use super::operands::operands;
use crate::ReadOnlyData;
use alloc::vec::Vec;

/// How far back an operand is followed, in instructions.
const LOOK_BACK: usize = 24;
/// The longest jump table.
const TABLE_LIMIT: usize = 1024;

/// Appends the targets of direct branches, calls, `adr` and jump tables.
pub fn branch_targets(code: &[u8], address: u64, data: &dyn ReadOnlyData, targets: &mut Vec<u64>) {
    let words: Vec<u32> = code.chunks_exact(4).filter_map(word).collect();
    for (index, &word) in words.iter().enumerate() {
        let at = address.wrapping_add(4 * index as u64);
        let form = form(word);
        targets.extend(form.flow(at).target());
        match form {
            // A label whose address is taken; often the base of a jump table.
            // An address in the code may be branched to later; one that no instruction has is data's.
            Form::Address { page: false, offset, .. } => {
                targets
                    .extend(Some(at.wrapping_add_signed(offset)).filter(|target| target.is_multiple_of(4)));
            }
            Form::RegisterBranch { kind: RegisterBranch::Jump, rn, .. } => {
                let table = Code { words: &words, address }.jump_table(index, u32::from(rn));
                if let Some(table) = table {
                    targets.extend(table.targets(data, address..address.saturating_add(code.len() as u64)));
                }
            }
            _ => {}
        }
    }
}

struct Code<'a> {
    words: &'a [u32],
    address: u64,
}

/// `target[i] = base + (entry[i] << shift)`.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    address: u64,
    base: u64,
    /// Log2 of an entry's size in bytes.
    size: u32,
    signed: bool,
    shift: u32,
    length: Option<usize>,
}

impl Code<'_> {
    /// The instruction before `index` that wrote `register`.
    fn definition(&self, index: usize, register: u32) -> Option<(usize, u32)> {
        let from = index.saturating_sub(LOOK_BACK);
        (from..index)
            .rev()
            .map(|i| (i, self.words[i]))
            .find(|&(_, word)| operands(word).is_some_and(|used| used.writes >> register & 1 != 0))
    }

    /// The constant address in `register` before `index`.
    fn constant(&self, index: usize, register: u32) -> Option<u64> {
        let (at, word) = self.definition(index, register)?;
        let pc = self.address.wrapping_add(4 * at as u64);
        match form(word) {
            Form::Address { page: false, offset, .. } => Some(pc.wrapping_add_signed(offset)),
            Form::Address { page: true, offset, .. } => Some((pc & !0xfff).wrapping_add_signed(offset)),
            _ if word & 0xffc0_0000 == 0x9100_0000 => {
                let base = self.constant(at, field(word, 5, 5))?;
                Some(base.wrapping_add(u64::from(field(word, 10, 12))))
            }
            _ => None,
        }
    }

    fn jump_table(&self, index: usize, register: u32) -> Option<Table> {
        let (sum_at, sum) = self.definition(index, register)?;
        let (rn, rm) = (field(sum, 5, 5), field(sum, 16, 5));
        match sum & 0xff20_0000 {
            // add x, x, w, sxtb #2 (gcc)
            0x8b20_0000 => self.table(sum_at, rn, rm, field(sum, 10, 3), Some(field(sum, 13, 3))),
            // add x, x, x, lsl #2 (clang); without a shift, in either order
            0x8b00_0000 if field(sum, 22, 2) == 0 => {
                let shift = field(sum, 10, 6);
                let swapped = || self.table(sum_at, rm, rn, 0, None).filter(|_| shift == 0);
                self.table(sum_at, rn, rm, shift, None).or_else(swapped)
            }
            _ => None,
        }
    }

    /// The table whose entry is in the register `entry` before `at`, to be added to `base`.
    fn table(&self, at: usize, base: u32, entry: u32, shift: u32, extension: Option<u32>) -> Option<Table> {
        let (load_at, load) = self.definition(at, entry)?;
        // A load with a register as its index.
        if load & 0x3f20_0c00 != 0x3820_0800 || field(load, 22, 2) == 0 {
            return None;
        }
        Some(Table {
            address: self.constant(load_at, field(load, 5, 5))?,
            base: self.constant(at, base)?,
            size: field(load, 30, 2),
            signed: field(load, 23, 1) != 0 || matches!(extension, Some(4..=6)),
            shift: shift.min(4),
            length: self.length(load_at),
        })
    }

    /// The number of entries that a comparison before `index` allows: `cmp w, #n`, `b.hi`.
    fn length(&self, index: usize) -> Option<usize> {
        let from = index.saturating_sub(LOOK_BACK);
        let compare =
            self.words[from..index].iter().rev().find(|&&word| word & 0x7fc0_001f == 0x7100_001f)?;
        Some(field(*compare, 10, 12) as usize + 1)
    }
}

impl Table {
    fn targets(&self, data: &dyn ReadOnlyData, code: core::ops::Range<u64>) -> Vec<u64> {
        let width = 1usize << self.size;
        data.at(self.address)
            .chunks_exact(width)
            .take(self.length.unwrap_or(TABLE_LIMIT).min(TABLE_LIMIT))
            .map(|entry| {
                let mut bytes = [0; 8];
                bytes[..width].copy_from_slice(entry);
                let value = u64::from_le_bytes(bytes);
                let unused = 64 - 8 * width as u32;
                let value = if self.signed { ((value << unused) as i64 >> unused) as u64 } else { value };
                self.base.wrapping_add(value << self.shift)
            })
            .take_while(|target| code.contains(target))
            .collect()
    }
}
