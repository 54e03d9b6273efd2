//! Maps as values, for those who do not print them.

use super::Printer;
use super::decode::Decoder;
use super::map::{self, Cell, Cells};
use super::resolve::Resolver;
use super::value::Value;
use crate::interp::Maps;
use crate::ir::MapId;

/// What a map holds.
#[derive(Clone, Debug, PartialEq)]
pub struct MapShown {
    /// Its name, with the `@`.
    pub name: String,
    /// Keys with their values, in the order in which they are printed.
    pub entries: Vec<(Key, Shown)>,
}

/// The key of a value. More than one key is a [`Value::Tuple`]; there is none in a map of one value.
pub type Key = Option<Value>;

/// What is shown of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// The value itself; of `stats` a [`Value::Record`].
    Value(Value),
    /// The buckets of a histogram, from the first used one to the last.
    Histogram(Vec<Bucket>),
    /// For each interval of a time series its beginning, in nanoseconds since 1970, and what there was.
    Series(Vec<(i64, Option<Value>)>),
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The least value in it; `None`: it is for all that are less.
    pub first: Option<i64>,
    /// The greatest; `None`: it is for all that are greater.
    pub last: Option<i64>,
    /// How many there were.
    pub count: u64,
}

impl Shown {
    fn of(cell: Cell) -> Self {
        match cell {
            Cell::Value(value) | Cell::Statistics(value) => Self::Value(value),
            Cell::Histogram(histogram) => {
                let first = |value: &Value| value.integer().map(|first| first as i64);
                let buckets = histogram.buckets();
                let bucket = |(begin, last, count): (Option<&Value>, _, _)| Bucket {
                    first: begin.and_then(first),
                    last,
                    count,
                };
                Self::Histogram(buckets.map(bucket).collect())
            }
            Cell::Series(series) => {
                let points = series.points.into_iter();
                Self::Series(points.map(|(at, number)| (at, number.map(|number| number.value()))).collect())
            }
        }
    }
}

impl Printer {
    /// All maps as they are now, in the order of their names.
    pub fn shown(&self, maps: &mut dyn Maps, resolver: &mut dyn Resolver) -> Vec<MapShown> {
        let mut decoder = Decoder { resolver, trailer: &self.options.trailer, divisor: 1 };
        let mut shown: Vec<MapShown> = (0..)
            .map(MapId)
            .zip(&self.messages.maps)
            .map(|(id, print)| {
                let entries = maps.entries(id, print.value.size());
                let entries = match map::prepare(print, entries, 0, &mut decoder).cells {
                    Cells::One(cell) => cell.into_iter().map(|cell| (None, Shown::of(cell))).collect(),
                    Cells::Keyed(all) => {
                        all.into_iter().map(|(key, cell)| (Some(key), Shown::of(cell))).collect()
                    }
                };
                MapShown { name: print.name.to_string(), entries }
            })
            .collect();
        shown.sort_by(|one, other| one.name.cmp(&other.name));
        shown
    }
}
