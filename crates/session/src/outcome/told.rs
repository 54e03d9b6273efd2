//! Values that expressions had: what rows are grouped by, and what is shown of a hit.

use super::LatencySummary;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// A value of the probed program.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// None.
    Nothing,
    /// A truth value.
    Bool(bool),
    /// An integer with a sign.
    Int(i64),
    /// An integer without one, or an address.
    Unsigned(u64),
    /// A float.
    Float(f64),
    /// Text.
    Text(String),
    /// Several.
    List(Vec<Datum>),
    /// Several with names.
    Fields(Vec<(Arc<str>, Datum)>),
}

impl Serialize for Datum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Datum::Nothing => serializer.serialize_none(),
            Datum::Bool(value) => serializer.serialize_bool(*value),
            Datum::Int(value) => serializer.serialize_i64(*value),
            Datum::Unsigned(value) => serializer.serialize_u64(*value),
            // JSON has no other ones.
            Datum::Float(value) if !value.is_finite() => serializer.serialize_none(),
            Datum::Float(value) => serializer.serialize_f64(*value),
            Datum::Text(text) => serializer.serialize_str(text),
            Datum::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| list.serialize_element(value))?;
                list.end()
            }
            Datum::Fields(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, value)| map.serialize_entry(&**name, value))?;
                map.end()
            }
        }
    }
}

/// A value with the expression that had it.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The expression, or the name of what it is.
    pub name: Arc<str>,
    /// The value.
    pub value: Datum,
    /// It in words, as people read it.
    pub text: String,
    /// Of a call stack its frames, the innermost first.
    pub frames: Option<Vec<String>>,
}

impl Serialize for Told {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("name", &*self.name)?;
        map.serialize_entry("value", &self.value)?;
        map.end()
    }
}

/// What a row tells beside its function and numbers of hits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
    /// From entry to return, where it was measured and at least one call returned.
    pub latency: Option<LatencySummary>,
    /// What the hits of the row have in common.
    pub by: Vec<Told>,
    /// How often which values were seen, in rising order.
    pub values: Vec<Values>,
    /// The row as frames of a line for flame graphs, the outermost first, where it is about a call stack.
    pub folded: Option<String>,
}

impl Collected {
    /// The times of calls, if there are any.
    pub fn times(latency: Option<LatencySummary>) -> Option<Box<Self>> {
        latency.map(|latency| Box::new(Self { latency: Some(latency), ..Self::default() }))
    }
}

/// Values from `low` on, below `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Values {
    /// The least one; nothing: there is no lower bound.
    pub low: Option<i64>,
    /// The least one above; nothing: there is no upper bound.
    pub high: Option<i64>,
    /// How many hits had one of them.
    pub count: u64,
}

/// What expressions have told of a hit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HitTold {
    /// The arguments that were asked for, or other values of the hit.
    pub arguments: Vec<Told>,
    /// The result, where its type is known.
    pub result: Option<Told>,
    /// The call stack, the innermost frame first.
    pub stack: Vec<String>,
}
