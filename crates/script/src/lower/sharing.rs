//! Who has the table of each map: each thread its own, or all of them one.
//!
//! An aggregation that probed code only adds to is cheapest if each thread has its own. The tool may read it, print it and, where a
//! baseline that is subtracted does it, clear it. All else is one table for all.

use crate::ir::{Aggregation, BodyId, MapId, MapSharing, MapValue, Program, Statement, each_statement};

/// How a map is used.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// Probed code does more than to add to it.
    is_more_in_target: bool,
    /// Keys are taken out, or values made 0, anywhere.
    is_cleared: bool,
}

/// Decides it for every map. `in_target` says of each body whether it runs in the probed process.
pub fn decide(program: &mut Program, in_target: impl Fn(BodyId) -> bool) {
    let mut uses = vec![Uses::default(); program.maps.len()];
    for (index, body) in program.bodies.iter().enumerate() {
        let is_in_target = in_target(BodyId(index as u32));
        each_statement(&body.code, &mut |statement| see(statement, is_in_target, &mut uses));
    }
    for (map, uses) in program.maps.iter_mut().zip(uses) {
        let MapValue::Aggregate(aggregation) = map.value else { continue };
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

fn see(statement: &Statement, is_in_target: bool, uses: &mut [Uses]) {
    let mut note = |map: MapId, clears: bool| {
        if let Some(uses) = uses.get_mut(map.0 as usize) {
            uses.is_more_in_target |= is_in_target;
            uses.is_cleared |= clears;
        }
    };
    match statement {
        Statement::MapDelete { map, .. } | Statement::MapClear(map) | Statement::MapZero(map) => {
            note(*map, true)
        }
        Statement::AggregateGet { map, .. }
        | Statement::MapHas { map, .. }
        | Statement::MapLength { map, .. }
        | Statement::ForEach { map, .. } => note(*map, false),
        _ => {}
    }
}
