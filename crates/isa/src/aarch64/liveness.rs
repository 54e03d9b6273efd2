//! Which registers does an instruction read and write? The scan is `crate::liveness`. The flags do not matter: detours leave them alone.

use super::decode::{Form, LENGTH, field, form, word};
use super::emulate::supported;
use super::faults::faults;
use super::operands::operands;
use crate::liveness::{Known, Next, Step, Steps, dead};
use crate::{Faults, Site};

/// Those that may be dead: neither the platform's, nor what Go's handlers take for the goroutine, nor the frame pointer, which is followed at any
/// time, nor the link register.
const REGISTERS: u32 = 0x0fff_ffff & !(1 << 18);

/// The registers, a bit for each, whose value nobody reads before the instruction at `address`, which lies in the site's function.
pub fn dead_registers(site: &Site<'_>, address: u64) -> u32 {
    let all = Known { registers: REGISTERS, flags: 0 };
    dead(all, site, address, Reader { site }).registers
}

/// What the instruction at an address of the site's function does.
#[cfg(test)]
pub(crate) fn step(site: &Site<'_>, address: u64) -> Option<Step> {
    Reader { site }.step(address)
}

struct Reader<'a> {
    site: &'a Site<'a>,
}

impl Steps for Reader<'_> {
    fn step(&mut self, address: u64) -> Option<Step> {
        let offset = usize::try_from(address.wrapping_sub(self.site.function)).ok()?;
        let code = self.site.code.get(offset..)?.get(..LENGTH as usize)?;
        let word = word(code)?;
        let [next, target] = [LENGTH as i64, branches_by(word)?].map(|by| address.wrapping_add_signed(by));
        let next = match form(word) {
            Form::Branch { link: false, .. } => Next::At(target),
            Form::Branch { link: true, .. } | Form::RegisterBranch { .. } => {
                Next::Elsewhere { unread: Known::default() }
            }
            Form::ConditionalBranch { .. } | Form::CompareBranch { .. } | Form::TestBranch { .. } => {
                Next::Either(next, target)
            }
            _ => Next::At(next),
        };
        let (used, is_sure) = (operands(word)?, writes_surely(word)?);
        let known = |registers| Known { registers, flags: 0 };
        let writes = known(if is_sure { used.writes } else { 0 });
        Some(Step { reads: known(used.reads), writes, may_fault: faults(code) != Faults::NONE, next })
    }
}

/// How far a branch leads, and 0 for what is none; `None` for what a path ends at.
fn branches_by(word: u32) -> Option<i64> {
    match form(word) {
        Form::Branch { offset, .. }
        | Form::ConditionalBranch { offset, .. }
        | Form::CompareBranch { offset, .. }
        | Form::TestBranch { offset, .. } => Some(offset),
        Form::RegisterBranch { .. }
        | Form::Address { .. }
        | Form::Literal { .. }
        // Not `nop`: where a static probe is, whoever looks at it finds its arguments in registers.
        | Form::Hint(1..)
        | Form::LoadExclusive
        | Form::StoreExclusive
        | Form::Plain => Some(0),
        _ => None,
    }
}

/// Whether what [`operands`] says is written is written in full, always. `None` where not even what is read is known for sure.
fn writes_surely(word: u32) -> Option<bool> {
    match (form(word), field(word, 25, 4)) {
        (Form::LoadExclusive | Form::StoreExclusive, _) => Some(false),
        // Processors without an extension take some hints for nothing.
        (Form::Hint(_), _) => Some(false),
        (Form::Plain, 0b1000 | 0b1001 | 0b0101 | 0b1101 | 0b0100 | 0b1100) => {
            supported(word).is_ok().then_some(true)
        }
        (Form::Plain, 0b0110 | 0b1110 | 0b0111 | 0b1111 | 0b1010 | 0b1011) => Some(false),
        (Form::Plain, _) => None,
        _ => Some(true),
    }
}
