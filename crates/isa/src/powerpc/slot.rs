//! Which code runs one displaced instruction out of line, after a trap?
//!
//! | slot | code |
//! |---|---|
//! | stepped | the relocated copy, `trap` |
//! | stepped, of a branch | the relocated copy |
//! | boosted | the copy, `b next` |
//! | either, of a conditional branch to an address | the branch over `b next`, to `b target` |
//!
//! A boosted slot may only hold a copy that is one instruction: a thread interrupted between several would stand at a place that
//! the original code does not have. So a conditional branch stays one, whether it counts or not, to a branch that goes the rest of the
//! way. A thread that stands at that one has left the slot.
//!
//! A branch of the instruction to itself goes to its copy: it is another round, not another arrival at the site.

use super::decode::{Branch, Destination, Form, WORD, form, word_at};
use super::emit::Asm;
use super::relocate::relocate;
use crate::{Displaced, Reason, Slot};

/// `trap`
const TRAP: u32 = 0x7fe0_0008;
/// From a conditional branch to the second instruction behind it.
const OVER_ONE: u32 = 8;

/// The slot for `displaced`, whose bytes are `original`, to stand at `address`.
pub(super) fn slot(
    displaced: &Displaced,
    original: &[u8],
    address: u64,
    boosted: bool,
) -> Result<Slot, Reason> {
    let (form, length) = form(original, displaced.start).map_err(|_| Reason::NotAnInstruction)?;
    if displaced.length != length || !address.is_multiple_of(WORD.into()) {
        return Err(Reason::MidInstruction);
    }
    if boosted {
        boostable(form)?;
    } else {
        steppable(form)?;
    }
    let mut asm = Asm::new(address);
    let copy = match form {
        Form::Branch(branch @ Branch { to: Destination::Address(target), link: false, .. })
            if !branch.always() =>
        {
            let is_round = target == displaced.start;
            let over = if is_round { 0 } else { OVER_ONE };
            asm.word(16 << 26 | branch.bo << 21 | branch.bi << 16 | over);
            let copy = asm.offset();
            asm.branch_to(displaced.end())?;
            if !is_round {
                asm.branch_to(target)?;
            }
            copy
        }
        _ => {
            for word in relocate(displaced, original, address)?.code.chunks_exact(WORD.into()) {
                asm.word(word_at(word, 0).ok_or(Reason::NotAnInstruction)?);
            }
            let copy = asm.offset();
            if boosted {
                if copy != u32::from(length) {
                    return Err(Reason::NotBoosted("an instruction whose copy takes several"));
                }
                asm.branch_to(displaced.end())?;
            } else if !matches!(form, Form::Branch(_)) {
                asm.word(TRAP);
            }
            copy
        }
    };
    Ok(Slot { code: asm.finish()?, copy, boosted })
}

/// Whether an instruction of this form may run in a boosted slot.
pub(super) fn boostable(form: Form) -> Result<(), Reason> {
    match form {
        // The address behind the original call has to be loaded first.
        Form::Branch(Branch { link: true, .. }) => Err(Reason::NotBoosted("a call")),
        Form::AddPcIs { .. } => Err(Reason::NotBoosted("addpcis")),
        _ => Ok(()),
    }
}

/// Whether an instruction of this form may run in a stepped slot.
pub(super) fn steppable(form: Form) -> Result<(), Reason> {
    match form {
        // The second trap would take the reservation away.
        Form::LoadReserve => Err(Reason::ExclusiveWindow),
        _ => Ok(()),
    }
}
