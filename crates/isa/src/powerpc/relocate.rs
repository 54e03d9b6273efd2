//! Which bytes do the same thing at another address?
//!
//! | form | becomes |
//! |---|---|
//! | `b`, `bc` that always branch | `b target` |
//! | `bc` | the inverted `bc` over `b target` |
//! | `bc` on a condition *and* the count | the same `bc` to `b target`, behind a branch over it: such a pair cannot be inverted, and the count must be decremented once |
//! | `blr`, `bctr`, `bctar`, conditional or not | the same |
//! | any of them with LK, but `bclrl` | the *original* return address to lr, then the form without LK |
//! | `addpcis` | its value, as a constant |
//! | prefixed, relative | the same with another displacement |
//! | anything else | the same |
//!
//! **Calls** leave the address behind the original call in lr, so get-PC code (`bcl 20,31,$+4; mflr`) gets what it would
//! have got, unwinders see the program's own code, and a callee that is blocked while the detour is removed returns to
//! where it would have. The price is one misprediction: the link stack does not see that call. `bclrl` both reads and writes
//! lr and would need a register that is known to be dead: refused, compilers do not make it.
//!
//! **A branch of the instruction to itself** goes to its copy: it is another round, not another arrival at the site.

use super::decode::{Branch, Destination, Form, NOP, PREFIX_LINE, displacement_34, form, word_at};
use super::emit::{Asm, Gpr};
use super::frames::of_copies;
use crate::{Displaced, Moved, Past, Reason};
use alloc::{vec, vec::Vec};

/// Displaced instructions, rewritten to run elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relocated {
    /// Machine code. Unless the last instruction never falls through, control leaves it at its end.
    pub code: Vec<u8>,
    /// For each instruction its original address and the offset of its copy.
    pub places: Vec<(u64, u32)>,
}

/// Rewrites `displaced`, whose bytes are `original`, to run at `destination`.
///
/// The copy of a call makes a frame for a moment, below the 288 bytes that a function may use without one.
///
/// # Errors
/// [`Reason::OutOfReach`] when a branch target is further than ±32 MiB from the copy, or a prefixed operand further than
/// ±8 GiB; [`Reason::Unmovable`], [`Reason::Traps`], [`Reason::NotAnInstruction`] as in the verdict.
pub fn relocate(displaced: &Displaced, original: &[u8], destination: u64) -> Result<Relocated, Reason> {
    relocate_past(displaced, original, destination, None)
}

/// See [`crate::Isa::moved`].
pub(super) fn moved(
    turn: &Displaced,
    original: &[u8],
    address: u64,
    past: Option<Past>,
) -> Result<Moved, Reason> {
    let Relocated { mut code, mut places } = relocate_past(turn, original, address, past)?;
    places.push((turn.end(), code.len() as u32));
    let mut back = Asm::new(address.wrapping_add(code.len() as u64));
    back.branch_to(turn.end())?;
    code.extend(back.finish()?);
    let frames = of_copies(&code, &places, turn.start);
    Ok(Moved { code, places, frames })
}

/// The same of branches back to an entry, which lead `past` the probe there.
fn relocate_past(
    displaced: &Displaced,
    original: &[u8],
    destination: u64,
    past: Option<Past>,
) -> Result<Relocated, Reason> {
    let mut asm = Asm::new(destination);
    let mut places = vec![];
    let mut offset = 0;
    for _ in 0..displaced.instructions {
        let rest = original.get(offset..).unwrap_or_default();
        let from = displaced.start.wrapping_add(offset as u64);
        places.push((from, asm.offset()));
        offset += usize::from(instruction(&mut asm, rest, from, past)?);
    }
    Ok(Relocated { code: asm.finish()?, places })
}

/// Why an instruction of this form cannot be moved, if it cannot.
pub(super) fn movable(form: Form) -> Result<(), Reason> {
    match form {
        Form::Trap { .. } => Err(Reason::Traps),
        Form::System(name) => Err(Reason::Unmovable(name)),
        Form::Branch(Branch { to: Destination::Link, link: true, .. }) => {
            Err(Reason::Unmovable("a branch to the link register that sets it"))
        }
        _ => Ok(()),
    }
}

/// Appends what does the same as the instruction that `code` starts with and that stands at `from`; its length.
fn instruction(asm: &mut Asm, code: &[u8], from: u64, past: Option<Past>) -> Result<u8, Reason> {
    let (form, length) = form(code, from).map_err(|_| Reason::NotAnInstruction)?;
    movable(form)?;
    let word = word_at(code, 0).ok_or(Reason::NotAnInstruction)?;
    match form {
        Form::Branch(moved) => {
            let copy = asm.here();
            if moved.link {
                asm.set_link(from.wrapping_add(4));
            }
            match moved.to {
                Destination::Address(target) => {
                    let past = past.filter(|past| past.leads_back(target)).map(|past| past.copy);
                    let target = if target == from { copy } else { past.unwrap_or(target) };
                    direct(asm, moved, target)?
                }
                _ => asm.word(word & !1),
            }
        }
        Form::AddPcIs { register, value } => asm.load_constant(Gpr(register), value),
        Form::Prefixed { relative } => {
            let suffix = word_at(code, 4).ok_or(Reason::NotAnInstruction)?;
            if asm.here() % PREFIX_LINE == PREFIX_LINE - 4 {
                asm.word(NOP);
            }
            let distance = if relative { from.wrapping_sub(asm.here()) as i64 } else { 0 };
            let [prefix, suffix] = displaced_34(word, suffix, distance)?;
            asm.word(prefix);
            asm.word(suffix);
        }
        _ => asm.word(word),
    }
    Ok(length)
}

/// A branch to `target`, without LK.
fn direct(asm: &mut Asm, branch: Branch, target: u64) -> Result<(), Reason> {
    if branch.always() {
        return asm.branch_to(target);
    }
    let over = |bo: u32, distance: u32| 16 << 26 | bo << 21 | branch.bi << 16 | distance;
    match inverted(branch.bo) {
        Some(bo) => asm.word(over(bo, 8)),
        None => {
            asm.word(over(branch.bo, 8));
            asm.word(18 << 26 | 8);
        }
    }
    asm.branch_to(target)
}

/// The BO field that branches when `bo` does not, and the other way round. Book I, 2.4: with the bits numbered from 16
/// down to 1, 16 ignores the condition, 8 is its sense, 4 ignores the count, 2 is the sense of the count. The
/// prediction hint "at" lies in the bits that are left, and `at` = 10 or 11 is turned as well.
fn inverted(bo: u32) -> Option<u32> {
    let (sense, hint) = match bo & 0b10100 {
        0b00100 => (0b01000, 0b00010),
        0b10000 => (0b00010, 0b01000),
        _ => return None,
    };
    Some(bo ^ sense ^ u32::from(bo & hint != 0))
}

/// The instruction with `distance` added to its displacement.
fn displaced_34(prefix: u32, suffix: u32, distance: i64) -> Result<[u32; 2], Reason> {
    if distance == 0 {
        return Ok([prefix, suffix]);
    }
    let displacement = displacement_34(prefix, suffix).wrapping_add(distance);
    if displacement != displacement << 30 >> 30 {
        return Err(Reason::OutOfReach);
    }
    let (high, low) = ((displacement >> 16) as u32 & 0x3_ffff, displacement as u32 & 0xffff);
    Ok([prefix & !0x3_ffff | high, suffix & !0xffff | low])
}
