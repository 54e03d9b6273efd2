//! Would a handler of the program's see a fault of a moved instruction?
//!
//! A displaced instruction that faults does so at the address of its copy. A handler that looks there would find nothing it
//! knows, unless it is shown the program ([`trapless_isa::detour::signals`]). Only the faults that the instruction may raise count, and only those that are handled: a program that
//! handles failed divisions does not care where a load is.

use super::Facts;
use crate::Refusal;
use trapless_isa::{Displaced, Faults, Isa};

/// The signals of faults, by the names users know.
const SIGNALS: [(i32, &str, Faults); 4] = [
    (libc::SIGSEGV, "SIGSEGV", Faults::MEMORY),
    (libc::SIGBUS, "SIGBUS", Faults::MEMORY),
    (libc::SIGFPE, "SIGFPE", Faults::ARITHMETIC),
    (libc::SIGILL, "SIGILL", Faults::INVALID),
];

/// Their numbers.
pub(crate) const MAY_FAULT: [i32; SIGNALS.len()] = [SIGNALS[0].0, SIGNALS[1].0, SIGNALS[2].0, SIGNALS[3].0];

/// Whether the process handles any.
fn handles_faults(facts: &Facts) -> bool {
    MAY_FAULT.iter().any(|&signal| is_handled(facts, signal))
}

fn is_handled(facts: &Facts, signal: i32) -> bool {
    facts.handled & 1 << (signal - 1) != 0
}

/// Why `displaced` instructions, whose bytes are `original`, must not move.
pub(crate) fn seen_by_handlers(
    facts: &Facts,
    isa: &dyn Isa,
    displaced: Displaced,
    original: &[u8],
) -> Result<(), Refusal> {
    if facts.shows || !handles_faults(facts) {
        return Ok(());
    }
    let handled = |signal: i32| is_handled(facts, signal);
    let may = isa.may_fault(original, displaced.start);
    match SIGNALS.iter().find(|(signal, _, faults)| handled(*signal) && may.meets(*faults)) {
        Some((_, name, _)) => Err(Refusal::MayFault(name)),
        None => Ok(()),
    }
}
