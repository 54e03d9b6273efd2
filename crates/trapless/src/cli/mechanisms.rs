//! Which mechanisms the flags allow.

use super::flags::MechanismFlag;
use trapless_isa::Mechanism;

/// All mechanisms, best first.
pub const LADDER: [Mechanism; 4] = [Mechanism::Jump, Mechanism::Boost, Mechanism::Emulate, Mechanism::Step];

/// Those that `--mechanism` lists, best first. A trap can kill a program that does not expect it, so a jump is all that happens
/// unasked, unless `--allow-trap` was given.
pub fn allowed(listed: &[MechanismFlag], allow_trap: bool) -> Vec<Mechanism> {
    let listed = if listed.is_empty() { &[MechanismFlag::Auto] } else { listed };
    let is_meant = |flag: &MechanismFlag, mechanism| match named(*flag) {
        Some(named) => named == mechanism,
        None => allow_trap || mechanism == Mechanism::Jump,
    };
    let is_allowed = |mechanism: &Mechanism| listed.iter().any(|flag| is_meant(flag, *mechanism));
    LADDER.into_iter().filter(is_allowed).collect()
}

/// `None` for what is used unless something is named.
fn named(flag: MechanismFlag) -> Option<Mechanism> {
    Some(match flag {
        MechanismFlag::Jump => Mechanism::Jump,
        MechanismFlag::Boost => Mechanism::Boost,
        MechanismFlag::Emulate => Mechanism::Emulate,
        MechanismFlag::Step => Mechanism::Step,
        MechanismFlag::Auto => return None,
    })
}
