//! Which rungs of the ladder are proven safe at a site.
//!
//! A patch is one word, written at once, so it never covers two instructions: what is asked is only whether
//! the instruction can run elsewhere and whether the detour in front of it disturbs something. Landing pads
//! (`bti`, and `paciasp` which is one too) stay where they are, since a `b` in their place would fault in a
//! guarded page; the probe goes behind them.

use super::decode::{Form, LENGTH, form, hint, word};
use super::{emulate, relocate, slot};
use crate::{Displaced, Ladder, Reason, Site};

/// How far behind its load an exclusive-access window is assumed to stay open.
pub const WINDOW: usize = 128;

/// The verdict for every rung.
pub fn verdict(site: &Site<'_>) -> Ladder {
    let (displaced, word) = match displaced(site) {
        Ok(found) => found,
        Err(reason) => {
            let no = Err(reason);
            return Ladder { jump: no, short: no, boost: no, emulate: no, step: no };
        }
    };
    let window = exclusive_window(site, displaced.start).and(prefixed(site, displaced.start));
    let form = form(word);
    let moved = window.and(relocate::movable(form)).and(reach(word, displaced.start)).map(|()| displaced);
    // What is emulated has a slot, too, where an access to memory turns out to fault.
    let stepped = slot::steppable(form).and(moved);
    Ladder {
        jump: moved,
        short: Err(Reason::NotImplemented),
        boost: slot::boostable(form).and(moved),
        emulate: emulate::supported(word).and(stepped),
        step: stepped,
    }
}

/// The instruction that a patch replaces, and its word.
pub fn displaced(site: &Site<'_>) -> Result<(Displaced, u32), Reason> {
    if !site.address.is_multiple_of(LENGTH) {
        return Err(Reason::MidInstruction);
    }
    let code = site.code_at_site();
    let mut word = word(code).ok_or(Reason::OutsideFunction)?;
    if is_data(site) {
        return Err(Reason::Data);
    }
    let mut start = site.address;
    if matches!(form(word), Form::Hint(number) if hint::is_landing_pad(number)) {
        start = start.wrapping_add(LENGTH);
        word = code.get(4..).and_then(super::decode::word).ok_or(Reason::TooShort)?;
        // It would be counted as if it were an arrival at the site.
        if site.targets.contains(start) {
            return Err(Reason::BranchInto(start));
        }
    }
    relocate::movable(form(word)).or_else(|reason| match reason {
        // Each rung says so itself.
        Reason::Unmovable(_) => Ok(()),
        reason => Err(reason),
    })?;
    Ok((Displaced { start, length: LENGTH as u8, instructions: 1 }, word))
}

/// Whether the word at the site is a constant that the function loads. Compilers keep those elsewhere, assembly does not always.
fn is_data(site: &Site<'_>) -> bool {
    site.code.chunks_exact(4).enumerate().any(|(index, chunk)| match word(chunk).map(form) {
        Some(Form::Literal { kind, offset, .. }) => {
            let constant = site.function.wrapping_add(LENGTH * index as u64).wrapping_add_signed(offset);
            site.address.wrapping_sub(constant) < kind.size()
        }
        _ => false,
    })
}

/// Refuses instructions behind a load-exclusive up to and including its store: what a probe does there, by
/// memory accesses or by an exception, clears the monitor, and the program would try forever.
///
/// Going through the code in address order sees windows that are left early by a branch as open until their
/// store.
fn exclusive_window(site: &Site<'_>, address: u64) -> Result<(), Reason> {
    let length = address.wrapping_sub(site.function) as usize;
    let before = site.code.get(..length).unwrap_or_default();
    let mut open = None;
    for (index, chunk) in before.chunks_exact(4).enumerate() {
        match word(chunk).map(form) {
            Some(Form::LoadExclusive) => open = Some(index),
            Some(Form::StoreExclusive | Form::ClearExclusive) => open = None,
            Some(other) if !other.flow(0).falls_through() => open = None,
            _ => {}
        }
    }
    match open {
        Some(index) if length / 4 - index <= WINDOW => Err(Reason::ExclusiveWindow),
        _ => Ok(()),
    }
}

/// Refuses what stands behind a `movprfx`, which nothing but certain instructions may.
fn prefixed(site: &Site<'_>, address: u64) -> Result<(), Reason> {
    let before = (address.wrapping_sub(site.function) as usize).checked_sub(LENGTH as usize);
    match before.and_then(|at| site.code.get(at..)).and_then(word).map(form) {
        Some(Form::Prefix) => Err(Reason::Unmovable("an instruction with a movprfx")),
        _ => Ok(()),
    }
}

/// Asks the relocator for a copy next door.
fn reach(word: u32, address: u64) -> Result<(), Reason> {
    let mut code = super::emit::Code::new(address.wrapping_add(0x1000));
    match relocate::relocate(word, address, &mut code) {
        Err(Reason::OutOfReach) | Ok(()) => Ok(()),
        Err(reason) => Err(reason),
    }
}
