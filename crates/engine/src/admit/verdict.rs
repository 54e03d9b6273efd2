//! Which mechanisms are possible at a site?
//!
//! The instruction set says what its code allows ([`trapless_isa::Ladder`]); here follows what the file and the process
//! do not. A jump has to answer for more than a trap: it moves instructions to where their faults are seen, it covers
//! bytes that an unread table may lead into, and its detour takes stack.

use super::{Facts, faults, go, shadow_stack, turns_of};
use crate::plan::site_of;
use crate::{Code, Function, Module, Refusal, Request, Role, Stretch};
use std::ops::Range;
use trapless_isa::{Displaced, Mechanism};

/// What each mechanism takes at a site, or why it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rungs {
    /// A branch to a detour.
    pub jump: Result<Displaced, Refusal>,
    /// A short branch to room nearby, from there to a detour.
    pub short: Result<Displaced, Refusal>,
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
            Mechanism::Short => &self.short,
            Mechanism::Boost => &self.boost,
            Mechanism::Emulate => &self.emulate,
            Mechanism::Step => &self.step,
        }
    }
}

/// What is possible at a site, and why it is no jump where it is none.
pub(crate) struct Best<'m> {
    pub mechanism: Mechanism,
    pub displaced: Displaced,
    pub turns: Vec<Stretch<'m>>,
    pub no_jump: Option<Refusal>,
}

impl Best<'_> {
    /// The bytes that are changed, but for those of a room.
    pub(crate) fn changed(&self) -> impl Iterator<Item = Range<u64>> {
        let turns = self.turns.iter().map(|turn| turn.displaced);
        std::iter::once(self.displaced).chain(turns).map(|changed| changed.start..changed.end())
    }
}

/// The best possible mechanism among those `allowed`. Others are not looked at.
///
/// # Errors
/// Why the best allowed one is impossible.
pub(crate) fn best<'m>(
    facts: &Facts,
    modules: &[Module<'m>],
    request: &Request<'m>,
    allowed: &[Mechanism],
) -> Result<Best<'m>, Refusal> {
    let mut first = None;
    for mechanism in Mechanism::ALL.into_iter().filter(|mechanism| allowed.contains(mechanism)) {
        match rung(facts, modules, request, mechanism) {
            Ok(displaced) => {
                let no_jump = || rung(facts, modules, request, Mechanism::Jump).err();
                let no_jump = (mechanism != Mechanism::Jump).then(no_jump).flatten();
                let turns = match mechanism.traps() {
                    true => Vec::new(),
                    false => turns_of(facts, modules, request, displaced)?,
                };
                return Ok(Best { mechanism, displaced, turns, no_jump });
            }
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    Err(first.unwrap_or(Refusal::Verdict(trapless_isa::Reason::NotImplemented)))
}

/// Which mechanisms are possible at the site of `request`.
pub fn rungs(facts: &Facts, modules: &[Module<'_>], request: &Request<'_>) -> Rungs {
    let rung = |mechanism| rung(facts, modules, request, mechanism);
    Rungs {
        jump: rung(Mechanism::Jump),
        short: rung(Mechanism::Short),
        boost: rung(Mechanism::Boost),
        emulate: rung(Mechanism::Emulate),
        step: rung(Mechanism::Step),
    }
}

/// What one of them takes there.
fn rung(
    facts: &Facts,
    modules: &[Module<'_>],
    request: &Request<'_>,
    mechanism: Mechanism,
) -> Result<Displaced, Refusal> {
    let module = &modules[request.module];
    let isa = module.machine.isa();
    let site = site_of(request, modules);
    let displaced = match request.role {
        Role::Through { exit, .. } if mechanism == Mechanism::Jump => isa.through(&site, exit)?,
        Role::Through { .. } => return Err(trapless_isa::Reason::NotImplemented.into()),
        Role::Whole | Role::Noted { .. } | Role::Exit { .. } => isa.rung(&site, mechanism)?,
    };
    shadow_stack::lets_move(facts, isa, displaced, original(&request.function, displaced))?;
    if mechanism.traps() && request.wanted.follows() && isa.facts().has_link_register() {
        return Err(Refusal::InRegister);
    }
    if !mechanism.traps() {
        if let Some(table) = request.unread {
            return Err(Refusal::Unread(table));
        }
        go::leaves_room(modules, request, &displaced)?;
        // What unwinders ask reads the loader's own tables, where they land they write to their own stack, and neither faults.
        // Behind a call that makes children the stack is the C library's own.
        if !request.wanted.is_unwinders() && request.wanted.sharing.is_none() {
            faults::seen_by_handlers(facts, isa, displaced, original(&request.function, displaced))?;
        }
        let turns = turns_of(facts, modules, request, displaced)?;
        // A round would be led to the copy of the exit, behind what is done ahead of that.
        if let (Role::Through { exit, .. }, [_, ..]) = (request.role, &turns[..])
            && exit == displaced.start
        {
            return Err(trapless_isa::Reason::BranchInto(exit).into());
        }
    }
    if mechanism == Mechanism::Short {
        room_of(facts, modules, request, displaced)?;
    }
    Ok(displaced)
}

/// Room for the jump to a detour in reach of a short one at `displaced`, but not where `is_taken` says: in the function itself, or in one
/// that is near, best where nothing has to be moved.
pub(crate) fn room<'m>(
    facts: &Facts,
    modules: &[Module<'m>],
    request: &Request<'m>,
    displaced: Displaced,
    is_taken: &dyn Fn(Range<u64>) -> bool,
) -> Result<Stretch<'m>, Refusal> {
    let module = &modules[request.module];
    let isa = module.machine.isa();
    go::lets_hop(facts, modules, request.module)?;
    let turns = turns_of(facts, modules, request, displaced)?;
    let is_turn = |range: &Range<u64>| {
        turns.iter().any(|turn| turn.displaced.start < range.end && range.start < turn.displaced.end())
    };
    let is_taken = |range: Range<u64>| is_turn(&range) || is_taken(range);
    let room_in = |function: &Function<'m>| {
        let room = isa.room(&module.whole(function), &displaced, &is_taken)?;
        let original = original(function, room);
        // Padding has no instructions that could fault.
        if room.instructions > 0 {
            faults::seen_by_handlers(facts, isa, room, original)?;
        }
        Ok(Stretch { displaced: room, original })
    };
    room_in(&request.function).or_else(|refusal| {
        let code: &'m dyn Code = module.code;
        let near = code.functions(isa.in_reach(&displaced));
        let is_other = |function: &&Function<'m>| function.address != request.function.address;
        let mut moved = None;
        for room in near.iter().filter(is_other).filter_map(|function| room_in(function).ok()) {
            if room.displaced.instructions == 0 {
                return Ok(room);
            }
            moved = moved.or(Some(room));
        }
        moved.ok_or(refusal)
    })
}

/// The best possible mechanism among those `allowed` for a site alone.
///
/// # Errors
/// Why the best allowed one is impossible.
pub fn best_of(
    facts: &Facts,
    modules: &[Module<'_>],
    request: &Request<'_>,
    allowed: &[Mechanism],
) -> Result<Mechanism, Refusal> {
    best(facts, modules, request, allowed).map(|best| best.mechanism)
}

/// What [`Mechanism::Short`] takes where nobody else is: `explain` shows it.
pub fn room_of<'m>(
    facts: &Facts,
    modules: &[Module<'m>],
    request: &Request<'m>,
    displaced: Displaced,
) -> Result<Stretch<'m>, Refusal> {
    room(facts, modules, request, displaced, &|_| false)
}

/// Displaced instructions of a function, as the file has them.
pub(crate) fn original<'m>(function: &Function<'m>, displaced: Displaced) -> &'m [u8] {
    let start = displaced.start.wrapping_sub(function.address) as usize;
    let end = start.saturating_add(usize::from(displaced.length));
    function.bytes.get(start..end).unwrap_or_default()
}
