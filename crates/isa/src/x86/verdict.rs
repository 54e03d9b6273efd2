//! Which rungs of the ladder are proven safe at this site, and why not the others?
//!
//! A jump takes five bytes. It may replace whole instructions only, and nothing may arrive between them: neither a
//! branch nor the return of a displaced call. Where control leaves before the five bytes are full (a `ret`, a jump), the
//! patch may go on over filler that nobody can reach: nops, `int3` and zeros, inside the function or behind its end.
//!
//! Where there are not five bytes, the patch may begin ahead of the site: what control passes on its way there runs first, as a copy, and
//! then the probe. So the last instructions of a function make room for a probe at its `ret`.
//!
//! Where there are not even those, two may do for a short jump, if there is room for the other in its reach (`room`).
//!
//! Where a function jumps back to its entry, that would be counted as a call. There it must be possible to lead these jumps past the probe (`turns`).

use super::decode::{decode_one, decoder, flow, is_endbr, is_filler};
use super::emulate::emulated;
use super::movable::form;
use super::slot::boostable;
use super::turns::turns;
use super::{JUMP_LENGTH, SHORT_JUMP_LENGTH};
use crate::{DecodeError, Displaced, Flow, Ladder, Mechanism, Reason, Site};
use alloc::vec::Vec;

pub(super) fn verdict(bits: u32, site: &Site<'_>) -> Ladder {
    let rung = |mechanism| rung(bits, site, mechanism);
    Ladder {
        jump: rung(Mechanism::Jump),
        short: rung(Mechanism::Short),
        boost: rung(Mechanism::Boost),
        emulate: rung(Mechanism::Emulate),
        step: rung(Mechanism::Step),
    }
}

/// One rung of [`verdict`].
pub(super) fn rung(bits: u32, site: &Site<'_>, mechanism: Mechanism) -> Result<Displaced, Reason> {
    let start = start_of_patch(bits, site)?;
    match mechanism {
        Mechanism::Jump => match jump(bits, site, start, JUMP_LENGTH) {
            Err(reason) => lead_in(bits, site, start).ok_or(reason),
            displaced => displaced,
        },
        Mechanism::Short => jump(bits, site, start, SHORT_JUMP_LENGTH),
        Mechanism::Boost => boost(bits, site, start),
        Mechanism::Emulate => emulate(bits, site, start),
        Mechanism::Step => step(bits, site, start),
    }
}

/// Whether the function ends, with its padding, inside the address space. Nothing else has to think of one that does not.
pub(super) fn is_addressable(bits: u32, site: &Site<'_>) -> bool {
    let length = (site.code.len() + site.padding.len()) as u64;
    let last = if bits == 64 { u64::MAX } else { u32::MAX.into() };
    site.function <= last - length.min(last)
}

/// Where a patch at the site begins: at the instruction itself, or behind it when it is the landing place of
/// indirect branches, which has to stay.
fn start_of_patch(bits: u32, site: &Site<'_>) -> Result<u64, Reason> {
    let offset = site.address.wrapping_sub(site.function);
    if offset >= site.code.len() as u64 || !is_addressable(bits, site) {
        return Err(Reason::OutsideFunction);
    }
    let mut sweep = decoder(bits, site.code, site.function);
    let mut instruction = iced_x86::Instruction::default();
    while (sweep.position() as u64) < offset {
        sweep.decode_out(&mut instruction);
    }
    if sweep.position() as u64 != offset {
        return Err(Reason::MidInstruction);
    }
    sweep.decode_out(&mut instruction);
    if instruction.is_invalid() {
        return Err(Reason::NotAnInstruction);
    }
    Ok(if is_endbr(&instruction) { instruction.next_ip() } else { site.address })
}

/// The instructions that a jump of so many bytes at `start` displaces.
fn jump(bits: u32, site: &Site<'_>, start: u64, length: u8) -> Result<Displaced, Reason> {
    let displaced = region(bits, site, start, length)?;
    // Wherever that leads, an instruction begins there: one alone has no inside.
    if site.targets.is_computed(site.function) && !is_one(bits, site, &displaced) {
        return Err(Reason::ComputedJump);
    }
    if let Some(target) = site.targets.first_inside(start, displaced.end()) {
        return Err(Reason::BranchInto(target));
    }
    turns(bits, site, &displaced).map(|_| displaced)
}

/// How far ahead of the site a patch begins at most.
pub(super) const MOST_AHEAD: u64 = 32;

/// What a jump displaces that begins ahead of the site at `start`, at the nearest instruction that makes room enough. Control passes all
/// of these instructions on its way to the site, and arrives at none but the first from elsewhere.
fn lead_in(bits: u32, site: &Site<'_>, start: u64) -> Option<Displaced> {
    if bits != 64 || start != site.address || site.targets.is_computed(site.function) {
        return None;
    }
    let mut ahead = Vec::new();
    for instruction in decoder(bits, site.code, site.function).iter() {
        if instruction.ip() >= start {
            break;
        }
        let passes = matches!(flow(&instruction), Flow::Next | Flow::Branch { .. });
        if passes && !instruction.is_invalid() && !is_endbr(&instruction) {
            ahead.push(instruction.ip());
        } else {
            ahead.clear();
        }
    }
    // Others look for the first instruction of a function.
    let near = |begin: &u64| *begin > site.function && start - begin <= MOST_AHEAD;
    for begin in ahead.into_iter().rev().take_while(near) {
        let behind = (start - begin) as u8 + 1;
        if site.targets.first_inside(begin, start + 1).is_some() {
            return None;
        }
        let Ok(displaced) = region(bits, site, begin, behind.max(JUMP_LENGTH)) else { continue };
        if site.targets.first_inside(begin, displaced.end()).is_none() {
            return Some(displaced);
        }
    }
    None
}

/// What a jump at the entry displaces that reaches to the `exit`, to which nothing but these instructions leads.
pub(super) fn through(site: &Site<'_>, exit: u64) -> Result<Displaced, Reason> {
    let start = start_of_patch(64, site)?;
    let behind = exit.checked_sub(start).filter(|distance| *distance <= MOST_AHEAD);
    let behind = behind.ok_or(Reason::OutsideFunction)? as u8;
    let displaced = jump(64, site, start, (behind + 1).max(JUMP_LENGTH))?;
    // Nothing of it is passed over on the way.
    let code = &site.code[(start - site.function) as usize..];
    let mut way = decoder(64, code.get(..behind.into()).unwrap_or_default(), start);
    let passes = |instruction| matches!(flow(&instruction), Flow::Next | Flow::Branch { .. });
    if displaced.end() <= exit || !way.iter().all(passes) {
        return Err(Reason::LeavesTooEarly);
    }
    Ok(displaced)
}

/// Whether one instruction is displaced, and no filler behind it.
fn is_one(bits: u32, site: &Site<'_>, displaced: &Displaced) -> bool {
    let code = site.code.get((displaced.start - site.function) as usize..).unwrap_or_default();
    let first = decode_one(bits, code, displaced.start);
    first.is_ok_and(|(instruction, _)| instruction.len() == usize::from(displaced.length))
}

/// The instructions from `start` on that have to move for so many bytes, and the filler behind them, where that can be told without
/// knowing who leads there.
pub(super) fn region(bits: u32, site: &Site<'_>, start: u64, length: u8) -> Result<Displaced, Reason> {
    let code = &site.code[(start - site.function) as usize..];
    let mut displaced = Displaced { start, length: 0, instructions: 0 };
    let mut falls_through = true;
    // First what is displaced, then what of it may move: a form may depend on where the region ends.
    while displaced.length < length {
        let rest = &code[usize::from(displaced.length)..];
        if rest.is_empty() {
            break;
        }
        let (instruction, _) = decode_one(bits, rest, displaced.end()).map_err(|error| match error {
            DecodeError::Truncated => Reason::TooShort,
            DecodeError::Invalid => Reason::NotAnInstruction,
        })?;
        displaced.length += instruction.len() as u8;
        displaced.instructions += 1;
        falls_through = flow(&instruction).falls_through();
        if !falls_through {
            break;
        }
    }
    let own = usize::from(displaced.length);
    displace(bits, &code[..own], &displaced)?;
    if displaced.length < length {
        if falls_through {
            return Err(Reason::TooShort);
        }
        displaced.length += filler(bits, site, displaced.end(), length - displaced.length)?;
        // A branch may lead to the filler, or an operand be there.
        displace(bits, &code[..own], &displaced)?;
    }
    Ok(displaced)
}

/// Whether the instructions of `displaced`, which are `code`, may be moved. What it holds behind them is filler.
fn displace(bits: u32, code: &[u8], displaced: &Displaced) -> Result<(), Reason> {
    let region = displaced.start..displaced.end();
    let behind = displaced.start.wrapping_add(code.len() as u64);
    for instruction in decoder(bits, code, displaced.start).iter() {
        let offset = (instruction.ip() - displaced.start) as usize;
        form(bits, &instruction, &code[offset..offset + instruction.len()], region.clone())?;
        match flow(&instruction) {
            Flow::Call { .. } | Flow::IndirectCall if instruction.next_ip() != behind => {
                return Err(Reason::CallInside);
            }
            Flow::Jump { target } | Flow::Branch { target }
                if target > region.start && target < region.end =>
            {
                return Err(Reason::BranchInto(target));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Fewer zeros than this, and nothing else up to the next function, fill space. More may be a table that somebody reads.
const ALIGNMENT: usize = 16;

/// How many bytes of unreachable filler, at least `missing`, stand at `address`: whole nops, `int3`, and behind the
/// function also zeros that end with its padding.
fn filler(bits: u32, site: &Site<'_>, address: u64, missing: u8) -> Result<u8, Reason> {
    let offset = (address - site.function) as usize;
    let (inside, behind) = (&site.code[offset..], site.padding);
    let mut length = 0;
    while length < usize::from(missing) {
        let (rest, behind_end) = match inside.get(length..) {
            Some(rest) if !rest.is_empty() => (rest, false),
            _ => (behind.get(length.saturating_sub(inside.len())..).unwrap_or_default(), true),
        };
        length += match rest {
            [] => return Err(Reason::TooShort),
            [0, ..] if behind_end && rest.len() < ALIGNMENT && rest.iter().all(|&byte| byte == 0) => 1,
            _ => match decode_one(bits, rest, address + length as u64) {
                Ok((instruction, _)) if is_filler(&instruction) => instruction.len(),
                _ if behind_end => return Err(Reason::TooShort),
                _ => return Err(Reason::LeavesTooEarly),
            },
        };
    }
    Ok(length as u8)
}

/// The instruction that is emulated for a trap at `start`. One is enough: what follows it stands where it stood, and
/// the thread goes on there.
fn emulate(bits: u32, site: &Site<'_>, start: u64) -> Result<Displaced, Reason> {
    let code = site.code.get((start - site.function) as usize..).unwrap_or_default();
    let (instruction, _) = decode_one(bits, code, start).map_err(|_| Reason::NotAnInstruction)?;
    emulated(bits, &instruction, &code[..instruction.len()])?;
    Ok(Displaced { start, length: instruction.len() as u8, instructions: 1 })
}

/// The instruction that a trap at `start` displaces, to be stepped in a slot.
fn step(bits: u32, site: &Site<'_>, start: u64) -> Result<Displaced, Reason> {
    let code = site.code.get((start - site.function) as usize..).unwrap_or_default();
    let (instruction, _) = decode_one(bits, code, start).map_err(|_| Reason::NotAnInstruction)?;
    let displaced = Displaced { start, length: instruction.len() as u8, instructions: 1 };
    displace(bits, &code[..instruction.len()], &displaced)?;
    Ok(displaced)
}

/// The instruction that a trap at `start` displaces, to run in a slot that ends in a jump.
fn boost(bits: u32, site: &Site<'_>, start: u64) -> Result<Displaced, Reason> {
    let displaced = step(bits, site, start)?;
    let code = &site.code[(start - site.function) as usize..];
    let (instruction, _) = decode_one(bits, code, start).map_err(|_| Reason::NotAnInstruction)?;
    boostable(bits, &instruction, &code[..instruction.len()])?;
    Ok(displaced)
}
