//! Which rungs of the ladder are proven safe at this site, and why not the others?
//!
//! The patch is one word and displaces one instruction, so nothing can arrive inside it, and any instruction makes
//! room for it. What remains are the instructions that cannot move, reservations, and the two entry points.
//!
//! # Global and local entry points
//!
//! A function that uses the TOC starts with its set-up, from the address of the function in r12:
//!
//! ```text
//! f:      addis r2,r12,(.TOC.-f)@ha      global entry point: calls through pointers and from other modules
//!         addi  r2,r2,(.TOC.-f)@l
//!         …                              local entry point (st_other): calls from the same module, which share the TOC
//! ```
//!
//! A probe on the function must see both kinds of calls, and each once. So the patch goes to the local entry point, where
//! both arrive, with r2 set.

use super::data::is_data;
use super::decode::{Fields, Form, WORD, form, word_at};
use super::emulate::emulated;
use super::relocate::movable;
use super::reservation::inside_reservation;
use super::slot::{boostable, steppable};
use crate::{Displaced, Ladder, Reason, Site};

pub(super) fn verdict(site: &Site<'_>) -> Ladder {
    let (form, displaced) = match displaced(site) {
        Ok(found) => found,
        Err(reason) => {
            let no = Err(reason);
            return Ladder { jump: no, short: no, boost: no, emulate: no, step: no };
        }
    };
    let offset = displaced.start.wrapping_sub(site.function) as usize;
    let code = &site.code[offset..];
    // Between load and store there must be no trap and no other reservation, and a detour that counts makes one.
    let reserved = match inside_reservation(site.code, site.function, displaced.start) {
        true => Err(Reason::ExclusiveWindow),
        false => Ok(displaced),
    };
    let moved = movable(form).and(reserved);
    // What is emulated has a slot, too, where an access to memory turns out to fault.
    let stepped = steppable(form).and(moved);
    Ladder {
        jump: moved,
        short: Err(Reason::NotImplemented),
        boost: boostable(form).and(moved),
        emulate: emulated(code, displaced.start).and(stepped),
        step: stepped,
    }
}

/// The instruction that a patch at the site displaces.
pub(super) fn displaced(site: &Site<'_>) -> Result<(Form, Displaced), Reason> {
    let offset = site.address.wrapping_sub(site.function);
    if offset >= site.code.len() as u64 {
        return Err(Reason::OutsideFunction);
    }
    if !starts_instruction(site.code, site.function, offset as usize) {
        return Err(Reason::MidInstruction);
    }
    let skipped = if offset == 0 { toc_setup(site.code).map_or(0, |setup| setup.length) } else { 0 };
    let start = site.address.wrapping_add(u64::from(skipped));
    let rest = site.code.get(offset as usize + usize::from(skipped)..).unwrap_or_default();
    if rest.is_empty() {
        return Err(Reason::TooShort);
    }
    if is_data(site.code, offset as usize + usize::from(skipped)) {
        return Err(Reason::Data);
    }
    let (form, length) = form(rest, start).map_err(|_| Reason::NotAnInstruction)?;
    let displaced = Displaced { start, length, instructions: 1 };
    // A branch to a prefixed instruction's suffix runs the suffix alone.
    match site.targets.first_inside(start, displaced.end()) {
        Some(target) => Err(Reason::BranchInto(target)),
        None => Ok((form, displaced)),
    }
}

/// Whether an instruction starts at `offset`: neither inside a word nor at the suffix of a prefixed one.
fn starts_instruction(code: &[u8], address: u64, offset: usize) -> bool {
    let mut at = 0;
    while at < offset {
        at += form(&code[at..], address.wrapping_add(at as u64)).map_or(WORD, |(_, length)| length) as usize;
    }
    at == offset
}

/// The TOC set-up at the global entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TocSetup {
    /// Its length in bytes: the distance from the global to the local entry point.
    pub length: u8,
    /// The TOC pointer, as an offset from the function or as an address.
    pub pointer: TocPointer,
}

/// What r2 is after the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TocPointer {
    /// So far from the function's address.
    FromFunction(i64),
    /// This address: the linker knew it.
    Absolute(u64),
    /// So far from the function's address as a doubleword in front of the function says: the large model.
    InMemory,
}

/// The TOC set-up that `code`, a function, starts with.
pub(super) fn toc_setup(code: &[u8]) -> Option<TocSetup> {
    let (first, second) = (word_at(code, 0)?, word_at(code, 4)?);
    const ADDI_R2_R2: u32 = 0x3842_0000;
    let constant = (first.d() << 16).wrapping_add(second.d());
    let pointer = match (first & 0xffff_0000, second & 0xffff_0000) {
        // addis r2,r12,ha
        (0x3c4c_0000, ADDI_R2_R2) => TocPointer::FromFunction(constant),
        // lis r2,ha: the linker's version in an executable at a fixed address
        (0x3c40_0000, ADDI_R2_R2) => TocPointer::Absolute(constant as u64),
        // ld r2,-8(r12); add r2,r2,r12
        (0xe84c_0000, _) if second == 0x7c42_6214 => TocPointer::InMemory,
        _ => return None,
    };
    Some(TocSetup { length: 2 * WORD, pointer })
}
