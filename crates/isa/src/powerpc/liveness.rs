//! Which registers, and is it cr0, does an instruction read and write? The scan is `crate::liveness`.

use super::decode::{Branch, Destination, Fields, Form, NOP};
use super::faults::faults;
use super::flow::Function;
use super::registers::usage;
use crate::liveness::{Known, Next, Step, Steps, dead};
use crate::{Faults, Site};

/// The flag of what is known that stands for cr0.
const CR0: u32 = 1;
/// The stack pointer, the table of contents, the thread pointer and what Go's handlers take for the goroutine are never dead.
const REGISTERS: u32 = !(1 << 1 | 1 << 2 | 1 << 13 | 1 << 30);

/// What may be overwritten before an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// General registers whose value nobody reads, a bit for each.
    pub dead: u32,
    /// Whether nobody reads cr0.
    pub cr0_dead: bool,
}

/// What is dead before the instruction at `address`, which lies in the site's function.
pub fn liveness(site: &Site<'_>, address: u64) -> Liveness {
    let function = Function { code: site.code, address: site.function };
    let known = dead(Known { registers: REGISTERS, flags: CR0 }, site, address, Reader { function });
    Liveness { dead: known.registers, cr0_dead: known.flags != 0 }
}

/// What the instruction at an address of the site's function does.
#[cfg(test)]
pub(crate) fn step(site: &Site<'_>, address: u64) -> Option<Step> {
    let function = Function { code: site.code, address: site.function };
    Reader { function }.step(address)
}

struct Reader<'a> {
    function: Function<'a>,
}

impl Steps for Reader<'_> {
    fn step(&mut self, address: u64) -> Option<Step> {
        let index = self.function.index(address)?;
        let word = self.function.word(index);
        let none = Known::default();
        let (reads, writes) = match self.function.form(index)? {
            Form::Branch(branch) => {
                let next = if self.function.gets_pc(index) {
                    Next::At(address.wrapping_add(4))
                } else {
                    next(branch, address)
                };
                return Some(Step {
                    reads: Known { registers: 0, flags: condition(branch) },
                    writes: none,
                    may_fault: false,
                    next,
                });
            }
            Form::AddPcIs { register, .. } => (none, Known { registers: 1 << register, flags: 0 }),
            Form::Prefixed { .. } | Form::Trap { .. } | Form::System(_) => return None,
            // Where a static probe is, whoever looks at it finds its arguments in registers.
            Form::Plain if word == NOP => return None,
            Form::Plain | Form::LoadReserve | Form::StoreConditional => {
                let (used, (reads, writes)) = (usage(word), cr0(word));
                let flag = |is: bool| if is { CR0 } else { 0 };
                let known = |registers, flag_is| Known { registers, flags: flag(flag_is) };
                (known(used.read, reads), known(used.written, writes))
            }
        };
        let code = self.function.code.get(4 * index..4 * index + 4)?;
        let may_fault = faults(code, address) != Faults::NONE;
        Some(Step { reads, writes, may_fault, next: Next::At(address.wrapping_add(4)) })
    }
}

/// The flags that a branch looks at.
fn condition(branch: Branch) -> u32 {
    if branch.bo & 0b10000 == 0 && branch.bi < 4 { CR0 } else { 0 }
}

fn next(branch: Branch, address: u64) -> Next {
    match branch.to {
        Destination::Address(target) if !branch.link && branch.always() => Next::At(target),
        Destination::Address(target) if !branch.link => Next::Either(address.wrapping_add(4), target),
        _ => Next::Elsewhere { unread: Known::default() },
    }
}

/// Whether a word instruction that is no branch reads a part of cr0, and whether it writes it all.
///
/// Where the form is not known it counts as read and not written.
pub(super) fn cr0(word: u32) -> (bool, bool) {
    // Which field a comparison writes.
    let compares = word >> 23 & 7 == 0;
    match word.primary() {
        10 | 11 => (false, compares),
        13 | 28 | 29 => (false, true),
        20 | 21 | 23 | 30 => (false, word.last()),
        2..=4 | 6..=8 | 12 | 14 | 15 | 24..=27 | 32..=63 => (false, false),
        19 => match word.xo() {
            // mcrf
            0 => (word >> 18 & 7 == 0, compares),
            150 => (false, false),
            // The logic of single bits.
            _ => (word.ra() < 4 || word.rb() < 4, false),
        },
        31 => extended(word, compares),
        _ => (true, false),
    }
}

fn extended(word: u32, compares: bool) -> (bool, bool) {
    match (word.xo(), word.xo() & 31) {
        // cmp, cmpl, cmprb, cmpeqb
        (0 | 32 | 192 | 224, _) => (false, compares),
        // mtcrf, mtocrf; mfcr, mfocrf
        (144, _) => (false, word >> 19 & 1 != 0),
        (19, _) => (word >> 20 & 1 == 0 || word >> 19 & 1 != 0, false),
        // isel
        (_, 15) => (word >> 6 & 31 < 4, false),
        (150 | 182 | 214 | 694 | 726, _) => (false, true),
        (xo, 8..=11) => {
            let records = matches!(
                xo & 0x1ff,
                8..=11 | 40 | 73 | 75 | 104 | 136 | 138 | 200 | 202 | 232..=235 | 266 | 457 | 459 | 489 | 491
            );
            (false, records && word.last())
        }
        (
            24
            | 26..=28
            | 58
            | 60
            | 124
            | 284
            | 316
            | 412
            | 444
            | 476
            | 536
            | 538
            | 539
            | 570
            | 792
            | 794
            | 824
            | 826
            | 827
            | 922
            | 954
            | 986,
            _,
        ) => (false, word.last()),
        // Moves of special registers and of vector registers, barriers, caches, counts of bits, loads and stores
        (339 | 467 | 371 | 51 | 115 | 179 | 211 | 243 | 307 | 403 | 435 | 598 | 854, _) => (false, false),
        (54 | 86 | 246 | 278 | 982 | 1014 | 122 | 378 | 506 | 252, _) => (false, false),
        (_, 6 | 7 | 12 | 20..=23) => (false, false),
        _ => (true, false),
    }
}
