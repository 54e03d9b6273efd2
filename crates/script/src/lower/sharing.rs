//! Who has the table of each map: each thread its own, each process its own, or all of them one.
//!
//! - An aggregation that probed code only adds to is cheapest if each thread has its own. The tool may read it, print it and, where a
//!   baseline that is subtracted does it, clear it.
//! - Plain values that probed code asks for by keys with the thread's or the process's number alone are each process's own, so that many
//!   processes may have them. The tool may read them all, and take them out.
//! - All else is one table for all.

use super::output::Output;
use crate::ir::{
    Aggregation, BodyId, MapId, MapSharing, MapValue, Program, Readers, Statement, each_statement,
};

/// How a map is used.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// Probed code has to do with it.
    is_in_target: bool,
    /// Probed code does more than to add to it.
    is_more_in_target: bool,
    /// Keys are taken out, or values made 0, anywhere.
    is_cleared: bool,
    /// The tool writes values, or probed code has to do with keys of any process.
    is_everybodys: bool,
}

/// Decides it for every map. `in_target` says of each body whether it runs in the probed process.
pub fn decide(output: &mut Output, in_target: impl Fn(BodyId) -> bool) {
    let uses = uses(output, in_target);
    for (map, uses) in output.program.maps.iter_mut().zip(uses) {
        let MapValue::Aggregate(aggregation) = map.value else {
            if map.sharing == MapSharing::Shared && uses.is_in_target && !uses.is_everybodys {
                map.sharing = MapSharing::PerProcess(Readers::Tool);
            }
            continue;
        };
        // What is cleared cannot be subtracted from the least, the greatest and a series.
        let has_baseline = !matches!(
            aggregation,
            Aggregation::Min { .. }
                | Aggregation::Max { .. }
                | Aggregation::MinOfFloats
                | Aggregation::MaxOfFloats
                | Aggregation::TimeSeries { .. }
        );
        let is_shared = uses.is_more_in_target || (uses.is_cleared && !has_baseline);
        map.sharing = if is_shared { MapSharing::Shared } else { MapSharing::PerThread };
    }
}

fn uses(output: &Output, in_target: impl Fn(BodyId) -> bool) -> Vec<Uses> {
    let program: &Program = &output.program;
    let mut uses = vec![Uses::default(); program.maps.len()];
    for (body, code) in (0..).map(BodyId).zip(&program.bodies) {
        let is_in_target = in_target(body);
        each_statement(&code.code, &mut |statement| see(statement, is_in_target, &mut uses));
        for (map, uses) in (0..).map(MapId).zip(&mut uses) {
            uses.is_everybodys |= is_in_target && output.is_foreign(body, map);
        }
    }
    uses
}

fn see(statement: &Statement, is_in_target: bool, uses: &mut [Uses]) {
    let mut note = |map: MapId, clears: bool, by_key: bool| {
        if let Some(uses) = uses.get_mut(map.0 as usize) {
            uses.is_in_target |= is_in_target;
            uses.is_more_in_target |= is_in_target;
            uses.is_cleared |= clears;
            uses.is_everybodys |= is_in_target && !by_key;
        }
    };
    match statement {
        Statement::MapDelete { map, .. } => note(*map, true, true),
        Statement::MapClear(map) | Statement::MapZero(map) => note(*map, true, false),
        Statement::AggregateGet { map, .. } | Statement::MapHas { map, .. } => note(*map, false, true),
        Statement::MapLength { map, .. } | Statement::ForEach { map, .. } => note(*map, false, false),
        Statement::MapGet { map, .. } | Statement::MapSet { map, .. } | Statement::MapAdd { map, .. } => {
            let reads = matches!(statement, Statement::MapGet { .. });
            if let Some(uses) = uses.get_mut(map.0 as usize) {
                uses.is_in_target |= is_in_target;
                uses.is_everybodys |= !is_in_target && !reads;
            }
        }
        _ => {}
    }
}
