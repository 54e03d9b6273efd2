//! Where its function jumps back to an entry, may that be led past the probe?
//!
//! The instruction set says which jumps these are and what of them has to move ([`trapless_isa::Isa::turns`]). What moves has to answer for
//! the same as what is displaced: its faults are seen by handlers. No call is among it.

use super::verdict::original;
use super::{Facts, faults};
use crate::plan::site_of;
use crate::{Meant, Module, Refusal, Request, Stretch};
use trapless_isa::Displaced;

/// The jumps back to the site of `request` that are led past the probe, where a patch takes `displaced`; mostly there are none.
///
/// # Errors
/// One of them cannot be changed, or must not move.
pub fn turns_of<'m>(
    facts: &Facts,
    modules: &[Module<'m>],
    request: &Request<'m>,
    displaced: Displaced,
) -> Result<Vec<Stretch<'m>>, Refusal> {
    if request.meant == Meant::All {
        return Ok(Vec::new());
    }
    let isa = modules[request.module].machine.isa();
    let turns = isa.turns(&site_of(request, modules), &displaced)?;
    let stretch = |turn: Displaced| {
        let original = original(&request.function, turn);
        if turn.instructions > 0 {
            faults::seen_by_handlers(facts, isa, turn, original)?;
        }
        Ok(Stretch { displaced: turn, original })
    };
    turns.into_iter().map(stretch).collect()
}
