//! Arming a plan, and saying why nothing could be armed.

use super::{Hold, Prepared, clib};
use crate::error::Error;
use crate::outcome::Why;
use crate::resolve::skip;
use std::{borrow::Cow, collections::BTreeMap};
use trapless_engine::{Armed, Attempt, Blueprint, EngineError, Plan, Refusal, Serving, Space, arm_serving};
use trapless_process::{Process, StopOptions};
use trapless_wire::{Sizes, ThreadMemory};

/// How often addresses are chosen anew because the target has taken one.
pub(super) const ATTEMPTS: usize = 8;

/// Draws and arms until the addresses hold, with smaller tables where memory is short. `threads`: of [`clib`].
pub(super) fn arm<'p, 'm>(
    process: &Process,
    plan: &'p Plan<'m>,
    threads: ThreadMemory,
    mut hold: Hold<'_>,
) -> Result<(Cow<'p, Plan<'m>>, Armed, Option<Serving>), EngineError> {
    let mut sizes = if process.is_32bit() { Sizes::ALL_32_BIT.iter() } else { Sizes::ALL.iter() };
    let mut size = sizes.next().copied().ok_or(EngineError::Crowded)?;
    for _ in 0..ATTEMPTS {
        let blueprint = match Blueprint::draw(&Space::of(process)?, plan, size, threads) {
            Err(EngineError::Crowded) => {
                size = sizes.next().copied().ok_or(EngineError::Crowded)?;
                continue;
            }
            drawn => drawn?,
        };
        let attempt = match &mut hold {
            Hold::Stop(options) if blueprint.traps() => {
                arm_serving(&blueprint, process, options, None).map(|(armed, serving)| (armed, Some(serving)))
            }
            // Its tracer has to be the keeper, which may outlive us.
            Hold::Launched(launched, options) if blueprint.traps() => {
                let handover = launched.hand_over(options)?;
                arm_serving(&blueprint, process, options, Some(handover))
                    .map(|(armed, serving)| (armed, Some(serving)))
            }
            hold => {
                let kept = |options: &StopOptions| blueprint.arm_kept(process, options);
                hold.with(process, kept, |stopped| blueprint.arm(stopped)).map(|armed| (armed, None))
            }
        };
        match attempt {
            Ok((armed, serving)) => return Ok((blueprint.into_plan(), armed, serving)),
            Err(Attempt::Taken) => {}
            Err(Attempt::NoMemory) => size = sizes.next().copied().ok_or(EngineError::NoMemory)?,
            Err(Attempt::Failed(error)) => return Err(error),
        }
    }
    Err(EngineError::Crowded)
}

/// What of a plan would be armed, as far as that can be told from outside: there is memory for its detours, and the code is
/// the file's.
pub(super) fn offered<'m>(process: &Process, plan: Plan<'m>) -> Result<Plan<'m>, EngineError> {
    let threads = ThreadMemory::of_c_library(clib::tid_offset(process));
    let sizes = if process.is_32bit() { &Sizes::ALL_32_BIT[..] } else { &Sizes::ALL[..] };
    for size in sizes {
        match Blueprint::draw(&Space::of(process)?, &plan, *size, threads) {
            Ok(blueprint) => return blueprint.into_plan().into_owned().compared(process),
            Err(EngineError::Crowded) => {}
            Err(EngineError::NothingToDo(skipped)) => return Ok(Plan { sites: Vec::new(), skipped, ..plan }),
            Err(error) => return Err(error),
        }
    }
    Err(EngineError::Crowded)
}

/// Why none of the sites that match is probed. `trap_would_help`: a mechanism that traps could probe some of them.
pub(super) fn nothing_probed(
    prepared: &Prepared<'_>,
    refused: &[(u32, Refusal)],
    trap_would_help: bool,
) -> Error {
    let sites = &prepared.sites;
    let mut reasons: BTreeMap<&str, (usize, u32, &Refusal)> = BTreeMap::new();
    for (id, refusal) in refused {
        if prepared.site(*id).kinds.are_any() {
            reasons.entry(refusal.code()).or_insert((0, *id, refusal)).0 += 1;
        }
    }
    // The reason that most have says more than the first one's.
    let usual = reasons.into_values().max_by_key(|(count, ..)| *count);
    let first = usual.map(|(_, id, refusal)| skip(prepared.images, prepared.site(id), Why::from(refusal)));
    let first = first.or_else(|| sites.skipped.first().cloned());
    let (example, reason) = match first {
        Some(skipped) => (format!("{}:{}", skipped.module, skipped.function), skipped.why.reason),
        None => ("-".to_owned(), "nothing matched".to_owned()),
    };
    let asked = sites.sites.iter().filter(|site| site.kinds.are_any()).count();
    Error::NothingProbed { sites: asked + sites.skipped.len(), example, reason, trap_would_help }
}
