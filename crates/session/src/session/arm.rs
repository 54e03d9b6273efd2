//! Arming a plan, and saying why nothing could be armed.

use super::{Hold, follow, skip};
use crate::error::Error;
use crate::resolve::{Kinds, Sites};
use crate::target::Image;
use std::collections::BTreeMap;
use trapless_engine::{Armed, Attempt, Blueprint, EngineError, Plan, Refusal, Serving, arm_serving};
use trapless_isa::{Mechanism, Reason};
use trapless_process::Process;
use trapless_wire::Sizes;

/// How often addresses are chosen anew because the target has taken one.
const ATTEMPTS: usize = 8;

/// Draws and arms until the addresses hold, with smaller tables where memory is short.
pub(super) fn arm(
    process: &Process,
    plan: &mut Plan<'_>,
    hold: Hold<'_>,
) -> Result<(Armed, Option<Serving>), EngineError> {
    let tid_offset = follow::tid_offset(process);
    let mut sizes = if process.is_32bit() { Sizes::ALL_32_BIT.iter() } else { Sizes::ALL.iter() };
    let mut size = sizes.next().copied().ok_or(EngineError::Crowded)?;
    for _ in 0..ATTEMPTS {
        let blueprint = match Blueprint::draw(process, plan, size, tid_offset) {
            Err(EngineError::Crowded) => {
                size = sizes.next().copied().ok_or(EngineError::Crowded)?;
                continue;
            }
            drawn => drawn?,
        };
        let attempt = match &hold {
            Hold::Stop(options) if blueprint.traps() => {
                arm_serving(&blueprint, process, options, None).map(|(armed, serving)| (armed, Some(serving)))
            }
            Hold::Stop(options) => blueprint.arm_kept(process, options).map(|armed| (armed, None)),
            // Its tracer has to be the keeper, which may outlive us.
            Hold::Launched(launched, options) if blueprint.traps() => {
                let handover = launched.hand_over(options)?;
                arm_serving(&blueprint, process, options, Some(handover))
                    .map(|(armed, serving)| (armed, Some(serving)))
            }
            Hold::Launched(launched, options) => {
                let armed = blueprint.arm(&mut launched.hold(options)?);
                armed.map(|armed| (armed, None)).map_err(Attempt::from)
            }
        };
        match attempt {
            Ok(armed) => return Ok(armed),
            Err(Attempt::Taken) => {}
            Err(Attempt::NoMemory) => size = sizes.next().copied().ok_or(EngineError::Crowded)?,
            Err(Attempt::Failed(error)) => return Err(error),
        }
    }
    Err(EngineError::Crowded)
}

/// Why none of the sites that match is probed.
pub(super) fn nothing_probed(
    images: &[Image],
    sites: &Sites,
    plan: &Plan<'_>,
    refused: &[(u32, String)],
    allowed: &[Mechanism],
) -> Error {
    let planned = plan.skipped.iter().map(|(id, refusal)| (*id, refusal.to_string()));
    let mut reasons: BTreeMap<String, (usize, u32)> = BTreeMap::new();
    for (id, reason) in planned.chain(refused.iter().cloned()) {
        if sites.sites[id as usize].kinds != Kinds::default() {
            reasons.entry(reason).or_insert((0, id)).0 += 1;
        }
    }
    // The reason that most have says more than the first one's.
    let usual = reasons.into_iter().max_by_key(|(_, (count, _))| *count);
    let first = usual.map(|(reason, (_, id))| skip(images, &sites.sites[id as usize], reason));
    let first = first.or_else(|| sites.skipped.first().cloned());
    let (example, reason) = match first {
        Some(skipped) => (format!("{}:{}", skipped.module, skipped.function), skipped.reason),
        None => ("-".to_owned(), "nothing matched".to_owned()),
    };
    // What a trap cannot change either: the return, the unwinder, memory.
    let by_verdict = |refusal: &Refusal| match refusal {
        Refusal::Verdict(reason) => {
            use Reason::*;
            !matches!(
                reason,
                NotAnInstruction
                    | MidInstruction
                    | OutsideFunction
                    | Traps
                    | Unmovable(_)
                    | ReadsReturnAddress
                    | ReturnsOddly
                    | MovesStackPointer
                    | UnknownTailCall
            )
        }
        Refusal::OnStack | Refusal::MayFault(_) => true,
        _ => false,
    };
    let trap_would_help =
        allowed == [Mechanism::Jump] && plan.skipped.iter().any(|(_, refusal)| by_verdict(refusal));
    let asked = sites.sites.iter().filter(|site| site.kinds != Kinds::default()).count();
    Error::NothingProbed { sites: asked + sites.skipped.len(), example, reason, trap_would_help }
}
