//! Where a program's memory lies, and what follows from it for each map.

use super::Refusal;
use super::emit::Base;
use super::stacks::STACK_SCRATCH;
use super::tables::TableCode;
use crate::ir::*;
use trapless_wire::{Change, MapKind, MapPlace, MapSize, SCRIPT_BLOCK, ScriptLayout, ScriptSizes};

/// Bodies with no more scratch than this have it in their frame.
pub(super) const SMALL_SCRATCH: u32 = 256;

/// A map in code.
#[derive(Clone, Copy)]
pub(super) struct MapCode {
    pub(super) base: Base,
    pub(super) kind: MapKind,
    pub(super) key: u32,
    pub(super) value: MapValue,
}

impl MapCode {
    /// Its table, if it has one.
    pub(super) fn table(&self) -> Option<TableCode> {
        match self.kind {
            MapKind::Words(_) => None,
            MapKind::Table(table) => Some(TableCode { base: self.base, table }),
        }
    }

    pub(super) fn is_by_word(&self) -> bool {
        match self.kind {
            MapKind::Words(_) => true,
            MapKind::Table(table) => table.change == Change::ByWord,
        }
    }
}

/// How much scratch a body needs: its own, and behind that what its stacks are walked in.
pub(super) fn scratch_of(body: &Body) -> u32 {
    let mut has_stacks = false;
    each_statement(&body.code, &mut |statement| {
        has_stacks |= matches!(statement, Statement::Stack { .. });
    });
    match has_stacks {
        true => body.scratch.next_multiple_of(8).saturating_add(STACK_SCRATCH),
        false => body.scratch,
    }
}

/// Which maps have keys taken out or zeroed, by any body; by native ones only, of maps of one thread each: the tool does not write to
/// those.
fn changed_under_meta(program: &Program, native: &[BodyId]) -> Vec<bool> {
    let mut changed = vec![false; program.maps.len()];
    for (index, body) in (0..).zip(&program.bodies) {
        let is_native = native.contains(&BodyId(index));
        each_statement(&body.code, &mut |statement| {
            if let Statement::MapDelete { map, .. } | Statement::MapClear(map) | Statement::MapZero(map) =
                statement
                && let Some(declared) = program.maps.get(map.0 as usize)
                && (is_native || declared.sharing != MapSharing::PerThread)
            {
                changed[map.0 as usize] = true;
            }
        });
    }
    changed
}

/// Lays a program out.
pub(super) fn lay_out(program: &Program, native: &[BodyId], ring_bits: u32) -> Result<ScriptLayout, Refusal> {
    let changed = changed_under_meta(program, native);
    let size = |(map, is_changed): (&Map, bool)| {
        let by_word = match map.value {
            MapValue::Bytes(size) => size <= 8,
            MapValue::Aggregate(Aggregation::TimeSeries { .. }) => false,
            MapValue::Aggregate(_) => true,
        };
        MapSize {
            key: map.key,
            value: map.value.size(),
            capacity: map.capacity,
            change: if by_word && !is_changed { Change::ByWord } else { Change::UnderMeta },
            is_per_thread: map.sharing == MapSharing::PerThread,
        }
    };
    let (mut frames, mut sends, mut scratch) = (0, false, 0);
    for body in native.iter().filter_map(|body| program.bodies.get(body.0 as usize)) {
        let needed = scratch_of(body);
        if needed > SMALL_SCRATCH {
            scratch = scratch.max(needed);
        }
        each_statement(&body.code, &mut |statement| match statement {
            Statement::Stack { frames: wanted, .. } => frames = frames.max(u32::from(*wanted)),
            Statement::Emit { .. } => sends = true,
            _ => {}
        });
    }
    let sizes = ScriptSizes {
        symbols: program.symbols.len() as u32,
        constants: program.constants.iter().map(|bytes| bytes.len() as u32).collect(),
        maps: program.maps.iter().zip(changed).map(size).collect(),
        frames,
        ring_bits: if sends { ring_bits } else { 0 },
        scratch,
    };
    ScriptLayout::new(&sizes).ok_or(Refusal::TooLarge)
}

/// Each map in code.
pub(super) fn maps(program: &Program, layout: &ScriptLayout) -> Vec<MapCode> {
    let code = |(map, place): (&Map, &MapPlace)| {
        let (base, kind) = match *place {
            MapPlace::Shared(at, kind) => (Base::Shared(at), kind),
            MapPlace::PerThread(at, kind) => (Base::Block(SCRIPT_BLOCK + at), kind),
        };
        MapCode { base, kind, key: map.key, value: map.value }
    };
    program.maps.iter().zip(&layout.maps).map(code).collect()
}

/// Refuses what a body does to maps that each thread has its own of, and that one thread alone cannot do.
pub(super) fn check_own_maps(program: &Program, body: BodyId) -> Result<(), Refusal> {
    let mut refused = None;
    let Some(code) = program.bodies.get(body.0 as usize).map(|body| &body.code) else { return Ok(()) };
    each_statement(code, &mut |statement| {
        let (map, aggregations_only) = match statement {
            Statement::MapLength { map, .. }
            | Statement::MapClear(map)
            | Statement::MapZero(map)
            | Statement::ForEach { map, .. } => (map, false),
            Statement::MapDelete { map, .. }
            | Statement::MapHas { map, .. }
            | Statement::AggregateGet { map, .. } => (map, true),
            _ => return,
        };
        let Some(declared) = program.maps.get(map.0 as usize) else { return };
        let is_aggregation = matches!(declared.value, MapValue::Aggregate(_));
        if declared.sharing == MapSharing::PerThread && (is_aggregation || !aggregations_only) {
            refused = Some(declared.name.clone());
        }
    });
    refused.map_or(Ok(()), |map| Err(Refusal::PerThread { body, map }))
}
