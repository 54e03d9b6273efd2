//! Which code runs one displaced instruction out of line, after a trap?
//!
//! | slot | code |
//! |---|---|
//! | stepped | the relocated copy, `brk` |
//! | stepped, of a branch | the relocated copy |
//! | boosted | the copy, `b next` |
//! | either, of a conditional branch | the branch over `b next`, to `b target` |
//!
//! A boosted slot may only hold a copy that is one instruction: a thread interrupted between several would stand at a place that
//! the original code does not have. So a conditional branch stays one, to a branch that goes the rest of the way. A thread that stands
//! at that one has left the slot.

use super::decode::{Form, LENGTH, RegisterBranch, form, word};
use super::emit::{Code, instruction as a};
use super::relocate::{field_of_branch, relocate};
use crate::{Displaced, Flow, Reason, Slot};

/// The slot for `displaced`, whose bytes are `original`, to stand at `address`.
pub(super) fn slot(
    displaced: &Displaced,
    original: &[u8],
    address: u64,
    boosted: bool,
) -> Result<Slot, Reason> {
    let word = word(original).ok_or(Reason::NotAnInstruction)?;
    let form = form(word);
    if u64::from(displaced.length) != LENGTH || !address.is_multiple_of(LENGTH) {
        return Err(Reason::MidInstruction);
    }
    if boosted {
        boostable(form)?;
    } else {
        steppable(form)?;
    }
    let mut code = Code::new(address);
    let copy = match (field_of_branch(form), form.flow(displaced.start).target()) {
        (Some((low, width)), Some(target)) => {
            let mask = ((1 << width) - 1) << low;
            code.emit([word & !mask | a::branch_field(2 * LENGTH as i64, low, width)?]);
            let copy = code.offset();
            code.branch(displaced.end())?;
            code.branch(target)?;
            copy
        }
        _ => {
            relocate(word, displaced.start, &mut code)?;
            let copy = code.offset();
            if boosted {
                if u64::from(copy) != LENGTH {
                    return Err(Reason::NotBoosted("an instruction whose copy takes several"));
                }
                code.branch(displaced.end())?;
            } else if comes_to_its_end(form) {
                code.emit([a::brk(0)]);
            }
            copy
        }
    };
    Ok(Slot { code: code.finish()?, copy, boosted })
}

/// Whether an instruction of this form may run in a boosted slot.
pub(super) fn boostable(form: Form) -> Result<(), Reason> {
    match form {
        // The address behind the original call has to be loaded first.
        Form::Branch { link: true, .. } | Form::RegisterBranch { kind: RegisterBranch::Call, .. } => {
            Err(Reason::NotBoosted("a call"))
        }
        // Its copies are one instruction next door only, where no slot is.
        Form::Address { page: false, rd: 0..=30, .. } => Err(Reason::NotBoosted("adr")),
        Form::Literal { .. } => Err(Reason::NotBoosted("a literal load")),
        _ => Ok(()),
    }
}

/// Whether an instruction of this form may run in a stepped slot.
pub(super) fn steppable(form: Form) -> Result<(), Reason> {
    match form {
        // The second trap would come between the load and its store, every time.
        Form::LoadExclusive => Err(Reason::ExclusiveWindow),
        // The child of a clone would begin where the second trap is, and nobody is at its first.
        Form::SupervisorCall => Err(Reason::Unmovable("a system call, to be stepped,")),
        _ => Ok(()),
    }
}

/// Whether control leaves the copy of such an instruction at its end only.
fn comes_to_its_end(form: Form) -> bool {
    form.flow(0) == Flow::Next
}
