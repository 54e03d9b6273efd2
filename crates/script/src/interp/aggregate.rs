//! What becomes of an aggregation's words when a value is added, and when those of two threads are put together.

use crate::ir::{Aggregation, SeriesOf, hist_bucket, linear_bucket};

/// What is added to an aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// The value: an integer, or the bits of a double for aggregations of doubles.
    pub value: u64,
    /// How often it is added.
    pub weight: u64,
    /// Nanoseconds of International Atomic Time (CLOCK_TAI). Only time series look at it.
    pub time: u64,
}

/// Words of an aggregation, in memory.
struct Words<'a>(&'a mut [u8]);

impl Words<'_> {
    fn get(&self, index: usize) -> u64 {
        let bytes = self.0.get(8 * index..8 * index + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    fn set(&mut self, index: usize, value: u64) {
        if let Some(bytes) = self.0.get_mut(8 * index..8 * index + 8) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn add(&mut self, index: usize, value: u64) {
        self.set(index, self.get(index).wrapping_add(value));
    }

    fn add_float(&mut self, index: usize, value: f64) {
        self.set(index, (f64::from_bits(self.get(index)) + value).to_bits());
    }
}

/// Adds a value to the words of an aggregation ([`Aggregation::words`]). Counters and integer sums wrap.
///
/// A weight counts as that many additions: it is added to counts, and sums take the value times the weight.
///
/// ```
/// use trapless_script::interp::{Added, add};
/// use trapless_script::ir::Aggregation;
/// let mut words = [0; 16];
/// for value in [5, -7_i64 as u64] {
///     add(Aggregation::Average, &mut words, Added { value, weight: 1, time: 0 });
/// }
/// assert_eq!(words, [2, 0, 0, 0, 0, 0, 0, 0, 0xfe, 255, 255, 255, 255, 255, 255, 255]);
/// ```
pub fn add(aggregation: Aggregation, words: &mut [u8], added: Added) {
    let mut words = Words(words);
    let Added { value, weight, time } = added;
    let float = f64::from_bits(value);
    // As a weight is a number of hits, it is not negative.
    let float_weight = weight as f64;
    match aggregation {
        Aggregation::Count => words.add(0, weight),
        Aggregation::Sum => words.add(0, value.wrapping_mul(weight)),
        Aggregation::SumOfFloats => words.add_float(0, float * float_weight),
        Aggregation::Average => {
            words.add(0, weight);
            words.add(1, value.wrapping_mul(weight));
        }
        Aggregation::AverageOfFloats => {
            words.add(0, weight);
            words.add_float(1, float * float_weight);
        }
        Aggregation::Min { .. }
        | Aggregation::Max { .. }
        | Aggregation::MinOfFloats
        | Aggregation::MaxOfFloats => {
            // Of no hits there is no least one.
            if weight != 0 && (words.get(0) == 0 || is_better(aggregation, value, words.get(1))) {
                words.set(1, value);
            }
            words.add(0, weight);
        }
        Aggregation::Hist { bits } => words.add(hist_bucket(value as i64, bits) as usize, weight),
        Aggregation::LinearHist { min, max, step } => {
            words.add(linear_bucket(value as i64, min, max, step) as usize, weight);
        }
        Aggregation::TimeSeries { interval, buckets, of } => {
            let number = (time / interval.max(1)).wrapping_add(1);
            let at = bucket_of(number, buckets);
            let there = words.get(at);
            if number < there {
                // A thread that was late: what is there is of a later time.
                return;
            }
            if number > there {
                words.set(at, number);
                words.set(at + 1, 0);
                words.set(at + 2, 0);
            }
            let value = match of {
                SeriesOf::Sum | SeriesOf::Average => value.wrapping_mul(weight),
                SeriesOf::Latest | SeriesOf::Min | SeriesOf::Max => value,
            };
            add_to_interval(of, &mut words, at, weight, value);
        }
    }
}

/// Puts the words of one thread (`from`) to those of others (`into`).
///
/// Which of two threads wrote the latest value of an interval of a time series cannot be told any more; `from`'s is taken.
pub fn merge(aggregation: Aggregation, into: &mut [u8], from: &[u8]) {
    let mut from = from.to_vec();
    let (mut into, from) = (Words(into), Words(&mut from));
    match aggregation {
        Aggregation::Count
        | Aggregation::Sum
        | Aggregation::Average
        | Aggregation::Hist { .. }
        | Aggregation::LinearHist { .. } => {
            for index in 0..aggregation.words() as usize {
                into.add(index, from.get(index));
            }
        }
        Aggregation::SumOfFloats => into.add_float(0, f64::from_bits(from.get(0))),
        Aggregation::AverageOfFloats => {
            into.add(0, from.get(0));
            into.add_float(1, f64::from_bits(from.get(1)));
        }
        Aggregation::Min { .. }
        | Aggregation::Max { .. }
        | Aggregation::MinOfFloats
        | Aggregation::MaxOfFloats => {
            if from.get(0) == 0 {
                return;
            }
            if into.get(0) == 0 || is_better(aggregation, from.get(1), into.get(1)) {
                into.set(1, from.get(1));
            }
            into.add(0, from.get(0));
        }
        Aggregation::TimeSeries { buckets, of, .. } => {
            for at in (0..buckets as usize).map(|bucket| 3 * bucket) {
                let (number, there) = (from.get(at), into.get(at));
                if number == 0 || number < there {
                    continue;
                }
                if number > there {
                    into.set(at, number);
                    into.set(at + 1, 0);
                    into.set(at + 2, 0);
                }
                add_to_interval(of, &mut into, at, from.get(at + 1), from.get(at + 2));
            }
        }
    }
}

/// Where the words of an interval are.
fn bucket_of(number: u64, buckets: u32) -> usize {
    3 * ((number.wrapping_sub(1) % u64::from(buckets.max(1))) as usize)
}

/// Adds so many values, of which `value` is the sum or the one that counts, to the interval whose words are at `at`.
fn add_to_interval(of: SeriesOf, words: &mut Words<'_>, at: usize, count: u64, value: u64) {
    let (is_first, there) = (words.get(at + 1) == 0, words.get(at + 2));
    let is_taken = match of {
        SeriesOf::Latest => true,
        SeriesOf::Sum | SeriesOf::Average => {
            words.add(at + 2, value);
            false
        }
        SeriesOf::Min => is_first || (value as i64) < there as i64,
        SeriesOf::Max => is_first || (value as i64) > there as i64,
    };
    if is_taken {
        words.set(at + 2, value);
    }
    words.add(at + 1, count);
}

/// Whether a value is less than the least so far, or greater than the greatest.
pub(crate) fn is_better(aggregation: Aggregation, value: u64, than: u64) -> bool {
    let (float, float_than) = (f64::from_bits(value), f64::from_bits(than));
    match aggregation {
        Aggregation::Min { signed: true } => (value as i64) < than as i64,
        Aggregation::Min { signed: false } => value < than,
        Aggregation::Max { signed: true } => (value as i64) > than as i64,
        Aggregation::Max { signed: false } => value > than,
        Aggregation::MinOfFloats => float < float_than,
        Aggregation::MaxOfFloats => float > float_than,
        _ => false,
    }
}
