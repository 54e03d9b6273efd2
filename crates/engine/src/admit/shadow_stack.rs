//! Which instructions does a shadow stack keep where they are?
//!
//! With a shadow stack (CET) the processor keeps a copy of every return address and compares. A moved call pushes one
//! address and means another; a followed call returns to a place that no call has pushed when probes are removed.

use super::Facts;
use crate::Refusal;
use trapless_isa::{Displaced, Flow, Isa};

/// Why `displaced` instructions, whose bytes are `original`, must not move.
pub(super) fn lets_move(
    facts: &Facts,
    isa: &dyn Isa,
    displaced: Displaced,
    original: &[u8],
) -> Result<(), Refusal> {
    if facts.shadow_stack && calls(isa, displaced.start, original) {
        return Err(Refusal::ShadowStack);
    }
    Ok(())
}

fn calls(isa: &dyn Isa, mut address: u64, mut code: &[u8]) -> bool {
    while let Ok(instruction) = isa.decode(code, address) {
        if matches!(instruction.flow, Flow::Call { .. } | Flow::IndirectCall) {
            return true;
        }
        address = instruction.end();
        code = code.get(usize::from(instruction.length).max(1)..).unwrap_or_default();
    }
    false
}
