//! Histograms: labels of their buckets, and bars.

use super::value::Value;
use crate::ir::Aggregation;

/// A histogram from its first used bucket to the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    /// Where the first bucket begins; `None` if it is the one for all that is less.
    lower: Option<Value>,
    /// Where each bucket ends. The last one may have no end.
    limits: Vec<Value>,
    counts: Vec<u64>,
}

impl Histogram {
    /// Of the words of an aggregation. Counts of histograms by powers of two are divided.
    pub(super) fn new(aggregation: Aggregation, words: &[u64], divisor: u32) -> Histogram {
        match aggregation {
            Aggregation::Hist { bits } => by_powers(words, bits, divisor),
            Aggregation::LinearHist { min, max, step } => linear(words, min, max, step),
            _ => Histogram::default(),
        }
    }

    pub(super) fn write_text(&self, out: &mut Vec<u8>) {
        const WIDTH: usize = 52;
        let most = self.counts.iter().copied().max().unwrap_or(0);
        for (index, count) in self.counts.iter().enumerate() {
            let begin = match index.checked_sub(1) {
                None => self.lower.as_ref(),
                Some(before) => self.limits.get(before),
            };
            let text = |value: &Value| String::from_utf8_lossy(&value.text()).into_owned();
            let label = match (begin, self.limits.get(index)) {
                (None, None) => String::new(),
                (None, Some(end)) => format!("(..., {})", text(end)),
                (Some(begin), None) => format!("[{}, ...)", text(begin)),
                (Some(begin), Some(end)) if is_one_value(begin, end) => format!("[{}]", text(begin)),
                (Some(begin), Some(end)) => format!("[{}, {})", text(begin), text(end)),
            };
            // In single precision, as bpftrace has it; there is no bar if all counts are 0.
            let share = if most == 0 { 0.0 } else { *count as f32 / most as f32 };
            let bar = "@".repeat(((share * WIDTH as f32) as usize).min(WIDTH));
            out.extend(format!("{label:<16}{count:>8} |{bar:<WIDTH$}|\n").bytes());
        }
    }

    /// Its buckets: the first value, the last one, and how many there were.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (Option<&Value>, Option<i64>, u64)> {
        self.counts.iter().enumerate().map(|(index, count)| {
            let begin = match index.checked_sub(1) {
                None => self.lower.as_ref(),
                Some(before) => self.limits.get(before),
            };
            let last = self.limits.get(index).and_then(Value::integer);
            (begin, last.map(|end| (end as i64).wrapping_sub(1)), *count)
        })
    }
}

/// Whether a bucket has room for one value only; of limits that are shortened, that is not said.
fn is_one_value(begin: &Value, end: &Value) -> bool {
    match (begin, end) {
        (Value::Int(begin), Value::Int(end)) => begin.checked_add(1) == Some(*end),
        _ => false,
    }
}

/// The first and the last bucket that is used.
fn used(words: &[u64]) -> Option<(usize, usize)> {
    let first = words.iter().position(|count| *count > 0)?;
    let last = words.iter().rposition(|count| *count > 0)?;
    Some((first, last))
}

fn by_powers(words: &[u64], bits: u8, divisor: u32) -> Histogram {
    let Some((first, last)) = used(words) else { return Histogram::default() };
    // The limit with a number is the beginning of the bucket one above.
    let limit = |number: usize| {
        if number as u64 <= 2 << bits { Value::Int(number as i64) } else { power_limit(number as u64, bits) }
    };
    Histogram {
        lower: first.checked_sub(1).map(limit),
        limits: (first..=last).map(limit).collect(),
        counts: words[first..=last].iter().map(|count| count / u64::from(divisor.max(1))).collect(),
    }
}

/// A limit that is not written out: a power of two times a small number, with a letter for each 1024.
fn power_limit(number: u64, bits: u8) -> Value {
    let parts = 1 << bits;
    let power = (number >> bits).saturating_sub(1).min(63) as u32;
    let times = parts + (number & (parts - 1));
    let value = times.checked_shl(power).unwrap_or(u64::MAX);
    let letter = ["", "K", "M", "G", "T", "P", "E"][(power / 10) as usize];
    Value::Named(format!("{}{letter}", times << (power % 10)), value)
}

fn linear(words: &[u64], min: i64, max: i64, step: i64) -> Histogram {
    // The last step may go beyond the maximum; its values are shown with those above it.
    let steps = (i128::from(max) - i128::from(min)) / i128::from(step.max(1));
    let steps = usize::try_from(steps).unwrap_or(0);
    let mut words = words.to_vec();
    if let Some(above) = words.get(steps + 2..) {
        let above: u64 = above.iter().fold(0, |sum, count| sum.wrapping_add(*count));
        words.truncate(steps + 2);
        words[steps + 1] = words[steps + 1].wrapping_add(above);
    }
    let Some((first, last)) = used(&words) else { return Histogram::default() };
    let at = |number: usize| {
        let limit = i128::from(min) + number as i128 * i128::from(step);
        i64::try_from(limit).unwrap_or(i64::MAX)
    };
    let limits = (first..=last).map(at).take_while(|limit| *limit <= max);
    Histogram {
        lower: first.checked_sub(1).map(|number| linear_limit(at(number), step)),
        limits: (first..=last)
            .zip(limits)
            .filter(|(number, _)| *number <= steps)
            .map(|(_, limit)| linear_limit(limit, step))
            .collect(),
        counts: words[first..=last].to_vec(),
    }
}

/// Limits are shortened where all of them are multiples of 1024.
fn linear_limit(limit: i64, step: i64) -> Value {
    const KILO: i64 = 1024;
    const MEGA: i64 = KILO * KILO;
    if step % KILO != 0 {
        return Value::Int(limit);
    }
    let text = match limit {
        0 => "0".into(),
        _ if limit % MEGA == 0 => format!("{}M", limit / MEGA),
        _ if limit % KILO == 0 => format!("{}K", limit / KILO),
        _ => limit.to_string(),
    };
    Value::Named(text, limit as u64)
}
