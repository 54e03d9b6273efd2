//! Which mechanisms are possible at a site?
//!
//! The instruction set says what its code allows ([`trapless_isa::Ladder`]); here follows what the file and the process
//! do not. A jump has to answer for more than a trap: it moves instructions to where their faults are seen, it covers
//! bytes that an unread table may lead into, and its detour takes stack.

use super::{Facts, faults, go, shadow_stack};
use crate::plan::site_of;
use crate::{Module, Refusal, Request, Unwinder};
use trapless_isa::{Displaced, Ladder, Mechanism};

/// What each mechanism takes at a site, or why it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rungs {
    /// A branch to a detour.
    pub jump: Result<Displaced, Refusal>,
    /// A trap and a boosted slot.
    pub boost: Result<Displaced, Refusal>,
    /// A trap and emulation.
    pub emulate: Result<Displaced, Refusal>,
    /// A trap, a slot and a step.
    pub step: Result<Displaced, Refusal>,
}

impl Rungs {
    /// All of them, best first.
    pub fn all(&self) -> impl Iterator<Item = (Mechanism, &Result<Displaced, Refusal>)> {
        Mechanism::ALL.into_iter().map(|mechanism| (mechanism, self.rung(mechanism)))
    }

    /// One of them.
    pub fn rung(&self, mechanism: Mechanism) -> &Result<Displaced, Refusal> {
        match mechanism {
            Mechanism::Jump => &self.jump,
            Mechanism::Boost => &self.boost,
            Mechanism::Emulate => &self.emulate,
            Mechanism::Step => &self.step,
        }
    }

    /// The best possible mechanism among those `allowed`.
    ///
    /// # Errors
    /// Why the best allowed one is impossible.
    pub fn best(&self, allowed: &[Mechanism]) -> Result<(Mechanism, Displaced), Refusal> {
        let mut first = None;
        for (mechanism, rung) in self.all().filter(|(mechanism, _)| allowed.contains(mechanism)) {
            match rung {
                Ok(displaced) => return Ok((mechanism, *displaced)),
                Err(refusal) => first = first.or(Some(refusal)),
            }
        }
        Err(first.cloned().unwrap_or(Refusal::Verdict(trapless_isa::Reason::NotImplemented)))
    }
}

/// Which mechanisms are possible at the site of `request`.
pub fn rungs(facts: &Facts, modules: &[Module<'_>], request: &Request<'_>) -> Rungs {
    let module = &modules[request.module];
    let isa = module.machine.isa();
    let site = site_of(request, modules);
    let Ladder { jump, boost, emulate, step } = isa.verdict(&site);
    let trap = |rung: Result<Displaced, _>| {
        let displaced = rung?;
        shadow_stack::lets_move(facts, isa, displaced, original(request, displaced))?;
        Ok(displaced)
    };
    let jump = trap(jump).and_then(|displaced| {
        if let Some(table) = request.unread {
            return Err(Refusal::Unread(table));
        }
        go::leaves_room(module.runtimes, isa, &site)?;
        // What unwinders ask reads the loader's own tables, and does not fault.
        if !matches!(request.wanted.unwinder, Some(Unwinder::Lookup(_))) {
            faults::seen_by_handlers(facts, isa, displaced, original(request, displaced))?;
        }
        Ok(displaced)
    });
    Rungs { jump, boost: trap(boost), emulate: trap(emulate), step: trap(step) }
}

/// The displaced instructions, as the file has them.
pub(crate) fn original<'m>(request: &Request<'m>, displaced: Displaced) -> &'m [u8] {
    let function = &request.function;
    let start = displaced.start.wrapping_sub(function.address) as usize;
    let end = start.saturating_add(usize::from(displaced.length));
    function.bytes.get(start..end).unwrap_or_default()
}
