//! Maps as they are printed: which entries, in which order, and what is shown of each.

use super::decode::Decoder;
use super::histogram::Histogram;
use super::series::{self, Series};
use super::value::Value;
use crate::ir::{Aggregation, MapValue};
use crate::message::{MapPrint, Show, ValuePrint};
use crate::shape::Shape;
use std::cmp::Ordering;

/// What is printed for a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Value(Value),
    /// Averages and statistics. JSON says so.
    Statistics(Value),
    Histogram(Histogram),
    Series(Series),
}

/// A map with its names found and its order settled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Printed {
    pub(super) kind: Kind,
    pub(super) cells: Cells,
}

/// What its values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Values,
    Statistics,
    Histograms,
    Series,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cells {
    /// Of a map of one value; nothing if there is none.
    One(Option<Cell>),
    /// Of a map with keys.
    Keyed(Vec<(Value, Cell)>),
}

/// Keys and values of a map, as they lie in memory.
pub(super) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

impl ValuePrint {
    /// Length of a value in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            ValuePrint::Plain(shape) => shape.size() as usize,
            ValuePrint::Aggregate { of, .. } => MapValue::Aggregate(*of).size() as usize,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            ValuePrint::Plain(_) => Kind::Values,
            ValuePrint::Aggregate { show, .. } => match show {
                Show::Number => Kind::Values,
                Show::Average | Show::Statistics => Kind::Statistics,
                Show::Histogram => Kind::Histograms,
                Show::Series => Kind::Series,
            },
        }
    }
}

/// Prepares a map: the entries that rank last when they are sorted, at most `top` of them (0: all).
pub(super) fn prepare(map: &MapPrint, entries: Entries, top: usize, decoder: &mut Decoder<'_>) -> Printed {
    let kind = map.value.kind();
    let mut entries = entries;
    match &map.key {
        Some(key) => entries.sort_by(|(left, _), (right, _)| by_key(&key.shape, left, right)),
        None => entries.sort(),
    }
    let mut ranked: Vec<(Rank, Vec<u8>, Vec<u8>)> =
        entries.into_iter().map(|(key, value)| (rank(&map.value, &value), key, value)).collect();
    // Those of one rank stay in the order of their keys.
    ranked.sort_by(|(left, ..), (right, ..)| left.compare(right));
    if top > 0 && kind != Kind::Series {
        ranked.drain(..ranked.len().saturating_sub(top));
    }
    let last = match kind {
        Kind::Series => ranked.iter().map(|(_, _, value)| series::latest(&words(value))).max().unwrap_or(0),
        _ => 0,
    };
    let cells = match &map.key {
        None => Cells::One(ranked.first().map(|(_, _, value)| cell(&map.value, value, last, decoder))),
        Some(key) => {
            let printed = |(_, key_bytes, value): &(Rank, Vec<u8>, Vec<u8>)| {
                let cell = cell(&map.value, value, last, decoder);
                // Keys are not divided.
                let divisor = std::mem::replace(&mut decoder.divisor, 1);
                let key = decoder.value(&key.shape, key_bytes);
                decoder.divisor = divisor;
                (key, cell)
            };
            Cells::Keyed(ranked.iter().map(printed).collect())
        }
    };
    Printed { kind, cells }
}

/// What is shown of a value.
pub(super) fn cell(print: &ValuePrint, bytes: &[u8], last: u64, decoder: &mut Decoder<'_>) -> Cell {
    let (of, show, signed) = match print {
        ValuePrint::Plain(shape) => return Cell::Value(decoder.value(shape, bytes)),
        ValuePrint::Aggregate { of, show, signed } => (*of, *show, *signed),
    };
    let words = words(bytes);
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    let divided = |bits: u64| Value::Float(f64::from_bits(bits) / f64::from(decoder.divisor));
    match (show, of) {
        (Show::Histogram, _) => Cell::Histogram(Histogram::new(of, &words, decoder.divisor)),
        (Show::Series, Aggregation::TimeSeries { interval, of, .. }) => {
            Cell::Series(Series::new(&words, (interval, of), last, signed))
        }
        (Show::Average | Show::Statistics, _) => {
            let is_float = of.is_of_floats();
            let average = match (average(of, signed, &words), is_float) {
                (bits, true) => divided(bits),
                (number, false) => decoder.number(number, signed),
            };
            let total = match (is_float, signed) {
                (true, _) => Value::Float(f64::from_bits(word(1))),
                (false, true) => Value::Int(word(1) as i64),
                (false, false) => Value::Unsigned(word(1)),
            };
            let count = match signed {
                true => Value::Int(word(0) as i64),
                false => Value::Unsigned(word(0)),
            };
            Cell::Statistics(match show {
                Show::Average => average,
                _ => Value::Record(vec![
                    ("count".into(), count),
                    ("average".into(), average),
                    ("total".into(), total),
                ]),
            })
        }
        (Show::Number | Show::Series, _) => Cell::Value(match of {
            Aggregation::SumOfFloats => divided(word(0)),
            Aggregation::MinOfFloats | Aggregation::MaxOfFloats => divided(word(1)),
            Aggregation::Min { .. } | Aggregation::Max { .. } => decoder.number(word(1), signed),
            Aggregation::Count => decoder.number(word(0), false),
            _ => decoder.number(word(0), signed),
        }),
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(8).map(word).collect()
}

/// The average in an aggregation's words: an integer, or the bits of a double. 0 of nothing.
fn average(of: Aggregation, signed: bool, words: &[u64]) -> u64 {
    let (count, sum) = (words.first().copied().unwrap_or(0), words.get(1).copied().unwrap_or(0));
    match (of, count) {
        (_, 0) => 0,
        (Aggregation::AverageOfFloats, _) => (f64::from_bits(sum) / count as f64).to_bits(),
        _ if signed => (sum as i64).wrapping_div(count as i64) as u64,
        _ => sum / count,
    }
}

/// What entries are sorted by.
enum Rank {
    /// Nothing but their keys.
    Key,
    Signed(i64),
    Unsigned(u64),
    Float(f64),
}

impl Rank {
    fn compare(&self, other: &Rank) -> Ordering {
        match (self, other) {
            (Rank::Signed(left), Rank::Signed(right)) => left.cmp(right),
            (Rank::Unsigned(left), Rank::Unsigned(right)) => left.cmp(right),
            (Rank::Float(left), Rank::Float(right)) => left.total_cmp(right),
            _ => Ordering::Equal,
        }
    }
}

fn number_rank(number: u64, signed: bool) -> Rank {
    match signed {
        true => Rank::Signed(number as i64),
        false => Rank::Unsigned(number),
    }
}

fn rank(print: &ValuePrint, bytes: &[u8]) -> Rank {
    let (of, show, signed) = match print {
        ValuePrint::Plain(Shape::Int { size, signed } | Shape::Enum { size, signed, .. }) => {
            return number_rank(extended(bytes, *size, *signed), *signed);
        }
        ValuePrint::Plain(Shape::Float(4)) => {
            return Rank::Float(f32::from_bits(extended(bytes, 4, false) as u32).into());
        }
        ValuePrint::Plain(Shape::Float(_)) => return Rank::Float(f64::from_bits(extended(bytes, 8, false))),
        ValuePrint::Plain(_) => return Rank::Key,
        ValuePrint::Aggregate { of, show, signed } => (*of, *show, *signed),
    };
    let words = words(bytes);
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    match (show, of) {
        (Show::Histogram, _) => {
            Rank::Unsigned(words.iter().fold(0, |sum: u64, count| sum.wrapping_add(*count)))
        }
        (Show::Series, _) => Rank::Key,
        (_, Aggregation::AverageOfFloats) => Rank::Float(f64::from_bits(average(of, signed, &words))),
        (Show::Average | Show::Statistics, _) => number_rank(average(of, signed, &words), signed),
        (_, Aggregation::SumOfFloats) => Rank::Float(f64::from_bits(word(0))),
        (_, Aggregation::MinOfFloats | Aggregation::MaxOfFloats) => Rank::Float(f64::from_bits(word(1))),
        (_, Aggregation::Min { .. } | Aggregation::Max { .. }) => number_rank(word(1), signed),
        (_, Aggregation::Count) => Rank::Unsigned(word(0)),
        _ => number_rank(word(0), signed),
    }
}

fn extended(bytes: &[u8], size: u8, signed: bool) -> u64 {
    let size = usize::from(size.min(8));
    let mut word = [0; 8];
    word.iter_mut().zip(bytes.iter().take(size)).for_each(|(to, from)| *to = *from);
    let above = 64 - 8 * size as u32;
    let word = u64::from_le_bytes(word);
    match signed && above < 64 {
        true => (((word << above) as i64) >> above) as u64,
        false => word,
    }
}

/// The order of keys: integers by their value, strings and all else by their bytes, several by the first that differs.
fn by_key(shape: &Shape, left: &[u8], right: &[u8]) -> Ordering {
    match shape {
        Shape::Int { size, signed } | Shape::Enum { size, signed, .. } => {
            let (left, right) = (extended(left, *size, *signed), extended(right, *size, *signed));
            if *signed { (left as i64).cmp(&(right as i64)) } else { left.cmp(&right) }
        }
        Shape::Tuple(fields) | Shape::Record(fields) => {
            let by_field = |field: &crate::shape::Field| {
                let (start, size) = (field.offset as usize, field.shape.size() as usize);
                let of = |bytes: &'_ [u8]| -> Vec<u8> {
                    bytes.get(start..).map(|rest| rest[..size.min(rest.len())].to_vec()).unwrap_or_default()
                };
                match field.shape {
                    // Bytes are as good as one level more.
                    Shape::Tuple(_) | Shape::Record(_) => of(left).cmp(&of(right)),
                    _ => by_key(&field.shape, &of(left), &of(right)),
                }
            };
            let order = fields.fields.iter().map(by_field).find(|order| *order != Ordering::Equal);
            order.unwrap_or(Ordering::Equal)
        }
        Shape::Pointer(size) => extended(left, *size, false).cmp(&extended(right, *size, false)),
        Shape::User | Shape::Error | Shape::Cgroup | Shape::Stack { .. } | Shape::Symbol => {
            extended(left, 8, false).cmp(&extended(right, 8, false))
        }
        _ => left.cmp(right),
    }
}
