//! Which mechanisms the flags allow.

use super::flags::MechanismFlag;
use trapless_isa::Mechanism;

/// Those that `--mechanism` lists, best first. A trap can kill a program that does not expect it, so a jump is all that happens
/// unasked, unless `--allow-trap` was given.
pub fn allowed(listed: &[MechanismFlag], allow_trap: bool) -> Vec<Mechanism> {
    let listed = if listed.is_empty() { &[MechanismFlag::Auto] } else { listed };
    let is_meant = |flag: &MechanismFlag, mechanism: Mechanism| match *flag {
        MechanismFlag::Only(named) => named == mechanism,
        MechanismFlag::Auto => allow_trap || !mechanism.traps(),
    };
    let is_allowed = |mechanism: &Mechanism| listed.iter().any(|flag| is_meant(flag, *mechanism));
    Mechanism::ALL.into_iter().filter(is_allowed).collect()
}
