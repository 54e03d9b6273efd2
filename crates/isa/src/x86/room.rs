//! Where a short jump finds room for the jump to a detour.
//!
//! A short jump takes two bytes and leads 128 bytes back or 127 on. It needs five bytes there for a jump that leads on to the
//! detour, and they are made in the function itself, or in another one that is as near:
//!
//! 1. **Padding** that nobody can reach: what stands behind an instruction that control does not pass, up to the next branch
//!    target, or behind the function.
//! 2. **Moved instructions**: ten bytes of whole instructions, into which nothing leads. A jump to their copy takes the first five,
//!    and what is left is room. They must be code for sure: control passes or jumps to them.
//!
//! ```text
//!     site:  short jump ──┐                    room:  jmp copy of what stood here ──▶ … jmp behind the room
//!     the next entry      └──────────────────────────▶ jmp detour
//! ```
//!
//! So every other way into these bytes still works: into the instruction behind the short jump, and to the start of the room. No
//! call is moved to make room, since it may have to return there, and no function's first instruction, where others look for it.

use super::decode::{decoder, flow, is_endbr, is_filler};
use super::emit::jump_to;
use super::verdict::{is_addressable, region};
use super::{JUMP_LENGTH, SHORT_JUMP_LENGTH, frames, relocate};
use crate::{Displaced, Flow, Moved, Past, Reason, Site};
use alloc::vec::Vec;
use core::ops::Range;
use iced_x86::Instruction;

/// Bytes of a jump to what was moved, and of the one to the detour.
const BOTH_JUMPS: u8 = 2 * JUMP_LENGTH;

/// Room for a short jump at `displaced`, but where `is_taken` says that somebody is. Padding is better than what has to be moved.
pub(super) fn room(
    bits: u32,
    site: &Site<'_>,
    displaced: &Displaced,
    is_taken: &dyn Fn(Range<u64>) -> bool,
) -> Result<Displaced, Reason> {
    if !is_addressable(bits, site) {
        return Err(Reason::NoRoom);
    }
    let is_free = |room: &Displaced| {
        let (start, end) = (room.start, room.end());
        reaches(displaced, entrance(room))
            && (end <= displaced.start || displaced.end() <= start)
            && (start >= end_of(site) || !site.targets.is_computed(site.function))
            && !is_taken(start..end)
    };
    let starts = starts(bits, site, displaced);
    let padding = starts.iter().filter(|start| start.is_behind_stop);
    let padding = padding.filter_map(|start| padding_at(bits, site, start.address));
    let moved = starts.iter().filter(|start| start.may_move);
    let moved = moved.filter_map(|start| moved_from(bits, site, start.address));
    padding.chain(moved).find(is_free).ok_or(Reason::NoRoom)
}

/// Where the short jump leads to in its room.
pub(super) fn entrance(room: &Displaced) -> u64 {
    match room.instructions {
        0 => room.start,
        _ => room.start.wrapping_add(JUMP_LENGTH.into()),
    }
}

fn distance(displaced: &Displaced, to: u64) -> i64 {
    to.wrapping_sub(displaced.start).wrapping_sub(SHORT_JUMP_LENGTH.into()) as i64
}

fn reaches(displaced: &Displaced, to: u64) -> bool {
    i8::try_from(distance(displaced, to)).is_ok()
}

/// Where room may begin.
pub(super) fn in_reach(displaced: &Displaced) -> Range<u64> {
    // Room whose entrance is the farthest instruction that can be reached begins ahead of it.
    let low = displaced.start.saturating_sub(128 + u64::from(JUMP_LENGTH));
    low..displaced.start.saturating_add(2 + 127 + 1)
}

/// A place where room may begin.
struct Start {
    address: u64,
    /// Whether control does not arrive from the instruction before.
    is_behind_stop: bool,
    /// Whether an instruction stands there that may be moved away for others.
    may_move: bool,
}

/// Where instructions begin in reach of a short jump at `displaced`, and what is behind the function.
fn starts(bits: u32, site: &Site<'_>, displaced: &Displaced) -> Vec<Start> {
    let Range { start: low, end: behind } = in_reach(displaced);
    let mut starts = Vec::new();
    let (mut is_behind_stop, mut is_entry) = (false, true);
    // There may be a table behind an instruction that control does not pass, which nobody may move. What somebody jumps to is code.
    let mut is_code = true;
    for instruction in decoder(bits, site.code, site.function).iter() {
        let address = instruction.ip();
        if address >= behind {
            return starts;
        }
        is_code = (is_code && !is_behind_stop || site.targets.contains(address)) && !instruction.is_invalid();
        let may_move = is_code && !is_entry;
        if address >= low && (is_behind_stop || may_move) {
            starts.push(Start { address, is_behind_stop, may_move });
        }
        is_entry = is_entry && is_endbr(&instruction);
        is_behind_stop = !instruction.is_invalid() && !flow(&instruction).falls_through();
        // Read out of step, or with prefixes that some jump over.
        is_code &= site.targets.first_inside(address, instruction.next_ip()).is_none();
    }
    let end = end_of(site);
    if is_behind_stop && (low..behind).contains(&end) {
        starts.push(Start { address: end, is_behind_stop, may_move: false });
    }
    starts
}

fn end_of(site: &Site<'_>) -> u64 {
    site.function + site.code.len() as u64
}

/// Padding at `address` that nobody reaches, where control does not come from before.
fn padding_at(bits: u32, site: &Site<'_>, address: u64) -> Option<Displaced> {
    let mut room = Displaced { start: address, length: 0, instructions: 0 };
    let offset = (address - site.function) as usize;
    let (inside, behind) = match site.code.get(offset..) {
        Some(inside) => (inside, site.padding),
        None => (&[][..], &[][..]),
    };
    for instruction in decoder(bits, inside, address).iter().chain(&mut decoder(bits, behind, end_of(site))) {
        if room.length >= JUMP_LENGTH || instruction.is_invalid() || !is_filler(&instruction) {
            break;
        }
        room.length += instruction.len() as u8;
    }
    if room.length < JUMP_LENGTH {
        return None;
    }
    let is_reached =
        site.targets.contains(address) || site.targets.first_inside(address, room.end()).is_some();
    (!is_reached).then_some(room)
}

/// Instructions from `address` on that may be moved to make room.
fn moved_from(bits: u32, site: &Site<'_>, address: u64) -> Option<Displaced> {
    // Zeros fill space, too, but may as well be a table that somebody reads.
    let mut behind = decoder(bits, site.padding, end_of(site));
    let filler: usize = behind.iter().take_while(|i| !i.is_invalid() && is_filler(i)).map(|i| i.len()).sum();
    let site = &Site { padding: &site.padding[..filler], ..*site };
    let room = region(bits, site, address, BOTH_JUMPS).ok()?;
    let is_entered = site.targets.first_inside(address, room.end()).is_some();
    (!is_entered && !must_stay(bits, site, &room)).then_some(room)
}

/// Whether somebody comes to one of the instructions: back from a call, or where only such an instruction may be met.
pub(super) fn must_stay(bits: u32, site: &Site<'_>, room: &Displaced) -> bool {
    let code = site.code.get((room.start - site.function) as usize..).unwrap_or_default();
    let must_stay = |instruction: Instruction| {
        is_endbr(&instruction) || matches!(flow(&instruction), Flow::Call { .. } | Flow::IndirectCall)
    };
    decoder(bits, code, room.start).iter().take(room.instructions.into()).any(must_stay)
}

/// What is written at the site and in its room: a short jump, and the jumps to the `detour` and to what was `moved`.
pub(super) fn patches(
    bits: u32,
    displaced: &Displaced,
    room: &Displaced,
    detour: u64,
    moved: u64,
) -> Result<[Vec<u8>; 2], Reason> {
    let entrance = entrance(room);
    let distance = i8::try_from(distance(displaced, entrance)).map_err(|_| Reason::NoRoom)?;
    let mut site = alloc::vec![0xcc; usize::from(displaced.length)];
    let at = entrance.wrapping_sub(room.start) as usize;
    let needed = at + usize::from(JUMP_LENGTH);
    if site.len() < usize::from(SHORT_JUMP_LENGTH) || usize::from(room.length) < needed {
        return Err(Reason::TooShort);
    }
    site[0] = 0xeb;
    site[1] = distance as u8;
    let mut there = alloc::vec![0xcc; usize::from(room.length)];
    let jump = usize::from(JUMP_LENGTH);
    if room.instructions > 0 {
        there[..jump].copy_from_slice(&jump_to(bits, room.start, moved)?);
    }
    there[at..at + jump].copy_from_slice(&jump_to(bits, entrance, detour)?);
    Ok([site, there])
}

/// Where the jump at the start of a room leads.
pub(super) fn moved_to(bits: u32, room: &Displaced, patched: &[u8]) -> u64 {
    let distance = patched.get(1..usize::from(JUMP_LENGTH)).and_then(|bytes| bytes.try_into().ok());
    let distance = distance.map_or(0, i32::from_le_bytes);
    let target = room.start.wrapping_add(JUMP_LENGTH.into()).wrapping_add_signed(distance.into());
    if bits == 32 { u64::from(target as u32) } else { target }
}

/// The copy of instructions that made room, or that hold jumps to an entry which lead `past` the probe there, and behind it the way back.
pub(super) fn moved(
    bits: u32,
    room: &Displaced,
    original: &[u8],
    address: u64,
    past: Option<Past>,
) -> Result<Moved, Reason> {
    let relocated = relocate::relocate_past(bits, room, original, address, past)?;
    let (mut code, mut places) = (relocated.code, relocated.places);
    let back = address + code.len() as u64;
    places.push((room.end(), code.len() as u32));
    code.extend(jump_to(bits, back, room.end())?);
    let frames = frames::displaced(bits, &code, &places, room.start);
    Ok(Moved { code, places, frames })
}
