//! Who has the table of each map: each thread its own, each process its own, or all of them one.
//!
//! - An aggregation that probed code only adds to is cheapest if each thread has its own. The tool may read it, print it and, where a
//!   baseline that is subtracted does it, clear it.
//! - Plain values that probed code puts in by the thread's number, asks for and takes out again are each thread's own, too. The tool may read them,
//!   and does what it likes with them once nobody is probed. What is not taken out is not: a thread that gets the number of one that has ended
//!   goes on with what that has left.
//! - Plain numbers that probed code only adds to are each process's own, too, and added up when the tool reads them.
//! - Those that it asks for by keys with the thread's or the process's number alone are else each process's own, so that many processes may
//!   have them. The tool may read them all, and take them out.
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
    /// The tool does so while there are probes.
    is_cleared_live: bool,
    /// Probed code has to do with keys of any thread, or adds to what is there.
    is_of_threads: bool,
    /// Probed code takes keys out.
    is_taken_out: bool,
    /// Probed code has to do with keys of any process.
    is_everybodys: bool,
    /// The tool writes values.
    is_written: bool,
}

/// The most bytes that a table takes which each thread has: room for what a map has by default, with values of two words.
const MOST_PER_THREAD: u64 = 1 << 20;

/// A map that is to have fewer keys has them in one table, where they are counted.
const LEAST_PER_THREAD: u32 = 1024;

/// Where a body runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// In the probed process.
    InTarget,
    /// In the tool, while there are probes or before.
    InTool,
    /// In the tool, when there are none any more.
    AtEnd,
}

/// Decides it for every map. `runs` says of each body where it does.
pub fn decide(output: &mut Output, runs: impl Fn(BodyId) -> Runs) {
    let uses = uses(output, runs);
    let Program { maps, evicting, .. } = &mut output.program;
    for ((index, map), uses) in (0..).map(MapId).zip(maps).zip(uses) {
        let MapValue::Aggregate(aggregation) = map.value else {
            if map.sharing != MapSharing::Shared || !uses.is_in_target || uses.is_written {
                continue;
            }
            if map.value == MapValue::Bytes(8) && !uses.is_more_in_target && !evicting.contains(&index) {
                map.sharing = MapSharing::PerProcess(Readers::Sum);
            } else if !uses.is_everybodys {
                // As tables are laid out: for each key a bucket of eight slots, each of which begins with a word.
                let slot = 8 + u64::from(map.key.next_multiple_of(8)) + u64::from(map.value.size());
                let size = 8 * slot * u64::from(map.capacity).next_power_of_two();
                let fits = map.capacity >= LEAST_PER_THREAD && size <= MOST_PER_THREAD;
                let is_own = uses.is_taken_out && !uses.is_of_threads && !uses.is_cleared_live;
                map.sharing = match fits && is_own && !evicting.contains(&index) {
                    true => MapSharing::PerThread,
                    false => MapSharing::PerProcess(Readers::Tool),
                };
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

fn uses(output: &Output, runs: impl Fn(BodyId) -> Runs) -> Vec<Uses> {
    let program: &Program = &output.program;
    let mut uses = vec![Uses::default(); program.maps.len()];
    for (body, code) in (0..).map(BodyId).zip(&program.bodies) {
        let runs = runs(body);
        each_statement(&code.code, &mut |statement| see(statement, runs, &mut uses));
        for (map, uses) in (0..).map(MapId).zip(&mut uses) {
            uses.is_everybodys |= runs == Runs::InTarget && output.is_foreign(body, map);
            uses.is_of_threads |= runs == Runs::InTarget && output.is_of_threads(body, map);
        }
    }
    uses
}

fn see(statement: &Statement, runs: Runs, uses: &mut [Uses]) {
    let is_in_target = runs == Runs::InTarget;
    let mut note = |map: MapId, clears: bool, by_key: bool| {
        if let Some(uses) = uses.get_mut(map.0 as usize) {
            uses.is_in_target |= is_in_target;
            uses.is_more_in_target |= is_in_target;
            uses.is_cleared |= clears;
            uses.is_cleared_live |= clears && runs == Runs::InTool;
            uses.is_everybodys |= is_in_target && !by_key;
        }
    };
    match statement {
        Statement::MapDelete { map, .. } => {
            note(*map, true, true);
            if let Some(uses) = uses.get_mut(map.0 as usize) {
                uses.is_taken_out |= is_in_target;
            }
        }
        Statement::MapClear(map) | Statement::MapZero(map) => note(*map, true, false),
        Statement::AggregateGet { map, .. } | Statement::MapHas { map, .. } => note(*map, false, true),
        Statement::MapLength { map, .. } | Statement::ForEach { map, .. } => note(*map, false, false),
        Statement::MapGet { map, .. } | Statement::MapSet { map, .. } | Statement::MapAdd { map, .. } => {
            let reads = matches!(statement, Statement::MapGet { .. });
            let adds = matches!(statement, Statement::MapAdd { before: None, .. });
            if let Some(uses) = uses.get_mut(map.0 as usize) {
                uses.is_in_target |= is_in_target;
                uses.is_more_in_target |= is_in_target && !adds;
                uses.is_written |= !is_in_target && !reads;
                uses.is_of_threads |= is_in_target && matches!(statement, Statement::MapAdd { .. });
            }
        }
        _ => {}
    }
}
