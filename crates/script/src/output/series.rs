//! Time series: which intervals are shown, and their chart.

use super::resolve::Resolver;
use super::time;
use super::value::Value;
use crate::ir::SeriesOf;

/// The intervals of a time series from the first that has a value to the last of all series of the map.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    /// For each interval its beginning, in nanoseconds since 1970, and what there was.
    pub(super) points: Vec<(i64, Option<Number>)>,
}

/// A value, by its signedness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Number {
    Signed(i64),
    Unsigned(u64),
}

impl Number {
    fn wide(self) -> i128 {
        match self {
            Number::Signed(value) => value.into(),
            Number::Unsigned(value) => value.into(),
        }
    }

    pub(super) fn value(self) -> Value {
        match self {
            Number::Signed(value) => Value::Int(value),
            Number::Unsigned(value) => Value::Unsigned(value),
        }
    }

    /// One less and one more, as far as there is room.
    fn around(self) -> (Number, Number) {
        match self {
            Number::Signed(value) => {
                (Number::Signed(value.saturating_sub(1)), Number::Signed(value.saturating_add(1)))
            }
            Number::Unsigned(value) => {
                (Number::Unsigned(value.saturating_sub(1)), Number::Unsigned(value.saturating_add(1)))
            }
        }
    }
}

/// The number of the latest interval in a series' words, counted from 1; 0 if there is none.
pub(super) fn latest(words: &[u64]) -> u64 {
    words.chunks_exact(3).map(|interval| interval[0]).max().unwrap_or(0)
}

impl Series {
    /// Of the words of an aggregation; `last` is the latest interval of all series of the map.
    pub(super) fn new(words: &[u64], (interval, of): (u64, SeriesOf), last: u64, signed: bool) -> Series {
        let count = words.len() as u64 / 3;
        let first_shown = last.saturating_sub(count.saturating_sub(1)).max(1);
        let is_shown = |number: u64| (first_shown..=last).contains(&number);
        let used = words.chunks_exact(3).filter(|interval| is_shown(interval[0]));
        let Some(first) = used.clone().map(|interval| interval[0]).min() else {
            return Series::default();
        };
        let value = |count: u64, value: u64| match (of, signed) {
            (SeriesOf::Average, true) => {
                Number::Signed((value as i64).checked_div(count as i64).unwrap_or(0))
            }
            (SeriesOf::Average, false) => Number::Unsigned(value.checked_div(count).unwrap_or(0)),
            (_, true) => Number::Signed(value as i64),
            (_, false) => Number::Unsigned(value),
        };
        let point = |number: u64| {
            let found = used.clone().find(|interval| interval[0] == number);
            // In bpftrace, the clock's first interval cannot be told from one that was never used, and shows as 0.
            let found = if number == 1 { found.map(|_| &[1, 1, 0][..]) } else { found };
            let start = (number - 1).wrapping_mul(interval) as i64;
            (start, found.map(|interval| value(interval[1], interval[2])))
        };
        Series { points: (first..=last).map(point).collect() }
    }

    /// A chart with a line for each interval.
    pub(super) fn write_text(&self, out: &mut Vec<u8>, resolver: &mut dyn Resolver) {
        const WIDTH: usize = 53;
        // Of the line with the least and the greatest, for the least.
        const LEFT: usize = 21;
        const RIGHT: usize = WIDTH - LEFT;
        let values = self.points.iter().filter_map(|(_, value)| *value);
        let (Some(mut least), Some(mut greatest)) = (values.clone().min(), values.max()) else {
            return out.extend(b"<no data>");
        };
        if least == greatest {
            (least, greatest) = (least.around().0, greatest.around().1);
        }
        let unit = self.unit();
        let header = match unit {
            Unit::Seconds => "hh:mm:ss".to_string(),
            other => format!("hh:mm:ss.{}", other.name()),
        };
        let times = match unit.digits() {
            0 => "hh:mm:ss".len(),
            digits => "hh:mm:ss.".len() + digits,
        };
        let number = |number: Number| number.wide().to_string();
        let limits = format!("{:times$} {:<LEFT$}{:>RIGHT$}\n", "", number(least), number(greatest));
        out.extend(limits.bytes());
        // The header is as wide in bytes as it should be in characters.
        let blanks = (times + 1).saturating_sub(header.len());
        out.extend(format!("{header}{:blanks$}|{}|\n", "", "_".repeat(WIDTH - 2)).bytes());

        let share = |part: i128| part as f32 / (least.wide() - greatest.wide()) as f32;
        let zero = match least.wide() < 0 && greatest.wide() > 0 {
            true => (WIDTH as f32 * share(least.wide())) as usize,
            false => 0,
        };
        for (start, value) in &self.points {
            out.extend(time::clock(*start, resolver).bytes());
            let fraction = start.rem_euclid(1_000_000_000);
            match unit {
                Unit::Seconds => {}
                Unit::Milliseconds => out.extend(format!(".{:03}", fraction / 1_000_000).bytes()),
                Unit::Microseconds => out.extend(format!(".{:06}", fraction / 1000).bytes()),
                Unit::Nanoseconds => out.extend(format!(".{fraction:09}").bytes()),
            }
            out.push(b' ');
            let mut line = [b' '; WIDTH];
            (line[0], line[WIDTH - 1]) = (b'|', b'|');
            if zero > 0 {
                line[zero.min(WIDTH - 1)] = b'.';
            }
            let text = match value {
                Some(value) => {
                    let offset = match least == greatest {
                        true => WIDTH / 2,
                        false => ((WIDTH - 1) as f32 * share(least.wide() - value.wide())) as usize,
                    };
                    line[offset.min(WIDTH - 1)] = b'*';
                    number(*value)
                }
                None => "-".into(),
            };
            out.extend(line);
            out.extend(format!(" {text}\n").bytes());
        }
        out.extend(format!("{:times$} v{}v\n", "", "_".repeat(WIDTH - 2)).bytes());
        out.extend(limits.bytes());
    }

    /// In what times are shown: by the length of an interval.
    fn unit(&self) -> Unit {
        let (Some((first, _)), Some((last, _))) = (self.points.first(), self.points.last()) else {
            return Unit::Nanoseconds;
        };
        let intervals = (self.points.len() as u64).saturating_sub(1).max(1);
        match last.abs_diff(*first) / intervals {
            1_000_000_000.. => Unit::Seconds,
            1_000_000.. => Unit::Milliseconds,
            1000.. => Unit::Microseconds,
            _ => Unit::Nanoseconds,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl Unit {
    fn digits(self) -> usize {
        match self {
            Unit::Seconds => 0,
            Unit::Milliseconds => 3,
            Unit::Microseconds => 6,
            Unit::Nanoseconds => 9,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "μs",
            Unit::Nanoseconds => "ns",
        }
    }
}
