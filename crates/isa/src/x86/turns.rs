//! How do jumps of a function back to its entry go past the probe there?
//!
//! A probe at an entry counts calls. Where the function itself jumps back there, as it does for a loop that begins with its first
//! instruction or for a tail call of itself, it would take each round for a call, and pair it with the return of the call. So all of
//! these jumps, the function's *turns*, are changed: they lead to the copy of the displaced instructions in the detour, behind what the
//! probe does. From there control goes on as it would have at the entry. A displaced jump is no concern, it leads to its copy.
//!
//! | a turn | what becomes of it |
//! |---|---|
//! | `jmp rel32`, `jcc rel32` | stands where it stood, with another displacement |
//! | `jmp rel8`, `jcc rel8`, `loop`, `jrcxz`, `xbegin` | moved with its neighbours as displaced instructions are, and its copy leads there |
//!
//! Five bytes of whole instructions have to move, into which nothing leads, from the jump on or with some ahead of it. What is changed must
//! be code for sure, and no instruction of another reading. All turns are changed or the entry is refused; so it is where more may lead
//! back there than direct branches that are the function's own: a jump table, what could not be decoded, a branch in bytes that it
//! shares with another function.
//!
//! A thread that stands at the entry when a probe is put in may be in a round or in a new call. It goes on past the probe, as those do that have
//! entered already.
//!
//! Each of these changes is harmless by itself, whether the probe is there or not: it leads to what the jump has always led to.

use super::JUMP_LENGTH;
use super::decode::{decode_one, decoder, flow, is_endbr};
use super::emit::patch;
use super::movable::form;
use super::room::must_stay;
use super::verdict::{MOST_AHEAD, region};
use crate::{Displaced, Flow, Reason, Site};
use alloc::vec::Vec;
use iced_x86::Instruction;

/// The most turns of a function. They go into the journal with it.
const MOST: usize = 64;

/// See [`Isa::turns`](crate::Isa::turns).
pub(super) fn turns(bits: u32, site: &Site<'_>, displaced: &Displaced) -> Result<Vec<Displaced>, Reason> {
    let entries = [site.function, displaced.start];
    if site.address != site.function || !entries.iter().any(|entry| site.targets.is_turned_to(*entry)) {
        return Ok(Vec::new());
    }
    let mut walk = Walk { bits, site, is_code: true, falls_through: true, ahead: Vec::new() };
    let (mut turns, mut first, mut is_read) = (Vec::<Displaced>::new(), None, true);
    for instruction in decoder(bits, site.code, site.function).iter() {
        is_read &= !instruction.is_invalid();
        walk.arrive(&instruction);
        let is_displaced = (displaced.start..displaced.end()).contains(&instruction.ip());
        if let Flow::Jump { target } | Flow::Branch { target } = flow(&instruction)
            && entries.contains(&target)
            && !(is_displaced && target == displaced.start)
        {
            let refused = Reason::BranchInto(target);
            first = first.or(Some(refused));
            let taken = turns.last().map_or(displaced.end(), Displaced::end);
            if is_displaced {
                return Err(refused);
            }
            // It may be among the neighbours of the one before.
            if instruction.ip() >= taken {
                turns.push(walk.turn(&instruction, taken).ok_or(refused)?);
            }
        }
        walk.pass(&instruction);
    }
    let is_all =
        is_read && !site.targets.is_computed(site.function) && !site.targets.may_begin_again(site.function);
    match first {
        Some(refused) if !is_all || turns.len() > MOST => Err(refused),
        _ => Ok(turns),
    }
}

/// A function that is read, instruction by instruction.
struct Walk<'a> {
    bits: u32,
    site: &'a Site<'a>,
    /// Whether the last instruction is code for sure. There may be a table behind one that control does not pass, but what somebody jumps
    /// to is code.
    is_code: bool,
    /// Whether control passes it.
    falls_through: bool,
    /// Up to there, the instructions that control passes one after the other.
    ahead: Vec<u64>,
}

impl Walk<'_> {
    /// Comes to an instruction.
    fn arrive(&mut self, instruction: &Instruction) {
        let comes = self.is_code && self.falls_through || self.site.targets.contains(instruction.ip());
        self.is_code = comes && !instruction.is_invalid();
    }

    /// Goes on behind it.
    fn pass(&mut self, instruction: &Instruction) {
        let is_passed = matches!(flow(instruction), Flow::Next | Flow::Branch { .. });
        // One that is entered in its middle was read out of step, or with prefixes that some jump over.
        let is_entered = self.is_entered(instruction.ip(), instruction.next_ip());
        match self.is_code && is_passed && !is_entered && !is_endbr(instruction) {
            true => self.ahead.push(instruction.ip()),
            false => self.ahead.clear(),
        }
        self.is_code &= !is_entered;
        self.falls_through = flow(instruction).falls_through();
    }

    fn is_entered(&self, start: u64, end: u64) -> bool {
        self.site.targets.first_inside(start, end).is_some()
    }

    /// What is changed for a jump back to the entry, at which it is. Up to `taken` is somebody.
    fn turn(&self, jump: &Instruction, taken: u64) -> Option<Displaced> {
        let at = jump.ip();
        let own = Displaced { start: at, length: jump.len() as u8, instructions: 0 };
        if !self.is_code {
            return None;
        }
        let code = self.site.code.get((at - self.site.function) as usize..).unwrap_or_default();
        if is_long(self.bits, jump, code) && !self.is_entered(at, own.end()) {
            return Some(own);
        }
        let near = |begin: &u64| *begin >= taken && at - begin <= MOST_AHEAD;
        let begins = core::iter::once(at).chain(self.ahead.iter().rev().copied());
        let may_move = begins.take_while(near).filter_map(|begin| self.moved(begin, at));
        let may_move: Vec<Displaced> = may_move.collect();
        // Where the function is left behind it, there may be a probe, too.
        may_move.iter().find(|turn| !self.is_left(jump.next_ip(), turn.end())).or(may_move.first()).copied()
    }

    /// Whether control does not pass all instructions from one address up to another.
    fn is_left(&self, from: u64, to: u64) -> bool {
        let [from, to] = [from, to].map(|at| (at - self.site.function) as usize);
        let code = self.site.code.get(from..to.min(self.site.code.len())).unwrap_or_default();
        decoder(self.bits, code, 0).iter().any(|instruction| !flow(&instruction).falls_through())
    }

    /// The instructions that have to move from `begin` on, those `at` a jump among them.
    fn moved(&self, begin: u64, at: u64) -> Option<Displaced> {
        let up_to_jump = (at - begin) as u8 + 1;
        let turn = region(self.bits, self.site, begin, up_to_jump.max(JUMP_LENGTH)).ok()?;
        let may_move = !self.is_entered(begin, turn.end()) && !must_stay(self.bits, self.site, &turn);
        may_move.then_some(turn)
    }
}

/// Whether a jump, with which `code` begins, reaches everything by another displacement.
fn is_long(bits: u32, jump: &Instruction, code: &[u8]) -> bool {
    let bytes = code.get(..jump.len()).unwrap_or_default();
    let is_near = jump.is_jmp_near() || jump.is_jcc_near();
    is_near && form(bits, jump, bytes, jump.ip()..jump.next_ip()).is_ok()
}

/// See [`Isa::turned`](crate::Isa::turned).
pub(super) fn turned(bits: u32, turn: &Displaced, original: &[u8], to: u64) -> Result<Vec<u8>, Reason> {
    if turn.instructions > 0 {
        return patch(bits, turn, to);
    }
    let (jump, _) = decode_one(bits, original, turn.start).map_err(|_| Reason::NotAnInstruction)?;
    let is_whole = jump.len() == original.len() && jump.len() == usize::from(turn.length);
    if !is_whole || !is_long(bits, &jump, original) {
        return Err(Reason::TooShort);
    }
    let distance = to.wrapping_sub(jump.next_ip()) as i64;
    // In 32-bit mode it wraps around.
    let distance = match bits {
        32 => distance as i32,
        _ => i32::try_from(distance).map_err(|_| Reason::OutOfReach)?,
    };
    let mut bytes = original.to_vec();
    let field = bytes.len() - size_of_val(&distance);
    bytes[field..].copy_from_slice(&distance.to_le_bytes());
    Ok(bytes)
}
