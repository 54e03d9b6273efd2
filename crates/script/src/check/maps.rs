//! Maps while a script is checked: what is known of their keys and values.

use super::types::Type;
use crate::ir;
use crate::source::Span;
use std::collections::HashMap;

/// A map.
#[derive(Clone, Debug)]
pub struct Map {
    /// With its `@`.
    pub name: String,
    /// Where it was met first.
    pub span: Span,
    /// Whether it has one value and no keys. Not known before it is used in a way that tells.
    pub is_scalar: Option<bool>,
    /// The type of its keys.
    pub key: Type,
    /// The type of its values.
    pub value: Type,
    /// How its aggregation is laid out.
    pub layout: Option<ir::Aggregation>,
    /// The type of what goes into its aggregation.
    pub of: Type,
    /// What its declaration says.
    pub declared: Option<Declared>,
    /// Whether it is used beyond its declaration.
    pub is_used: bool,
    /// Whether an aggregation of another map is assigned to it: if nothing else says what it holds, it holds nothing.
    pub is_copied_to: bool,
}

/// A declaration.
#[derive(Clone, Debug)]
pub struct Declared {
    /// The kind of map.
    pub kind: MapKind,
    /// Keys that it has room for.
    pub capacity: u32,
    /// Where it stands.
    pub span: Span,
}

/// Kinds of maps that a script can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// A table.
    Hash,
    /// One that drops what was not used for long when it is full.
    LruHash,
    /// A table for each processor.
    PerCpuHash,
    /// Both.
    PerCpuLruHash,
}

impl MapKind {
    /// The kind of that name.
    pub fn named(name: &str) -> Option<MapKind> {
        Some(match name {
            "hash" => MapKind::Hash,
            "lruhash" => MapKind::LruHash,
            "percpuhash" => MapKind::PerCpuHash,
            "percpulruhash" => MapKind::PerCpuLruHash,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            MapKind::Hash => "hash",
            MapKind::LruHash => "lruhash",
            MapKind::PerCpuHash => "percpuhash",
            MapKind::PerCpuLruHash => "percpulruhash",
        }
    }

    /// Whether it holds aggregations.
    pub fn is_per_cpu(self) -> bool {
        matches!(self, MapKind::PerCpuHash | MapKind::PerCpuLruHash)
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    list: Vec<Map>,
    numbers: HashMap<String, usize>,
}

impl Maps {
    /// The map of this name, with its `@`.
    pub fn number(&mut self, name: &str, span: Span) -> ir::MapId {
        let next = self.list.len();
        let index = *self.numbers.entry(name.to_owned()).or_insert(next);
        if index == next {
            self.list.push(Map {
                name: name.to_owned(),
                span,
                is_scalar: None,
                key: Type::None,
                value: Type::None,
                layout: None,
                of: Type::None,
                declared: None,
                is_used: false,
                is_copied_to: false,
            });
        }
        ir::MapId(index as u32)
    }

    /// A map.
    pub fn get(&self, map: ir::MapId) -> &Map {
        &self.list[map.0 as usize]
    }

    /// A map, to tell more of it.
    pub fn get_mut(&mut self, map: ir::MapId) -> &mut Map {
        &mut self.list[map.0 as usize]
    }

    /// All in the order in which they were met.
    pub fn iter(&self) -> impl Iterator<Item = &Map> {
        self.list.iter()
    }

    /// All, to tell more of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Map> {
        self.list.iter_mut()
    }
}
