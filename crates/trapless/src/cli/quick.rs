//! The quick forms: `count`, `latency` and `trace` with expressions of the script language, and `hist`.
//!
//! [`FilterFlags`] and [`GroupFlags`] say literally what is typed; [`Quick`] is what the program works with. Expressions stay texts here: what they
//! mean depends on the probed functions.

use super::inject::Injection;
use super::values;
use crate::error::Error;
use clap::Args;
use std::str::FromStr;
use trapless_script::syntax::number;

/// Which hits are meant.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Expressions")]
pub struct FilterFlags {
    /// Only hits for which this holds: an expression of the script language, such as 'arg0 > 64k', 'size < 16' or 'retval < 0'.
    /// Given several times, all have to hold
    #[arg(long = "where", value_name = "EXPR", allow_hyphen_values = true)]
    pub filters: Vec<String>,

    /// Only hits of this thread. May be given several times
    #[arg(long = "tid", value_name = "TID", value_parser = values::pid, value_delimiter = ',', allow_negative_numbers = true)]
    pub threads: Vec<i32>,

    /// Of the hits that are left, take a share at random, such as 1/100. How many were left out is told
    #[arg(long, value_name = "K/N")]
    pub sample: Option<Share>,
}

/// What hits are grouped by.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Expressions")]
pub struct GroupFlags {
    /// A row for each value of this expression, such as 'arg0', 'str(arg1)' or 'ustack(5)'. May be given several times
    #[arg(long, value_name = "EXPR", allow_hyphen_values = true)]
    pub by: Vec<String>,

    /// How many groups are kept of each thread. Hits of further ones are left out, which is told
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_keys: u32,
}

/// A share of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// So many are taken,
    pub taken: u32,
    /// of so many.
    pub of: u32,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').map(|(taken, of)| (taken.trim().parse(), of.trim().parse()));
        match parts {
            Some((Ok(taken), Ok(of))) if 0 < taken && taken <= of => Ok(Self { taken, of }),
            _ => Err("write a share as 1/100".to_owned()),
        }
    }
}

/// How many hits of a thread are shown in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many,
    pub hits: u64,
    /// in so many nanoseconds.
    pub per: u64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a rate as 1000/s; also /ms, /m and /h".to_owned();
        let (hits, unit) = text.split_once('/').unwrap_or((text, "s"));
        let per = match unit.trim() {
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(wrong()),
        };
        match hits.trim().parse() {
            // The script's numbers are signed where they are compared.
            Ok(hits @ 1..=0x7fff_ffff) => Ok(Self { hits, per }),
            _ => Err(wrong()),
        }
    }
}

/// Buckets of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Where the first one begins.
    pub low: i64,
    /// Where the last one ends.
    pub high: i64,
    /// How wide each is.
    pub step: i64,
}

impl FromStr for Linear {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write LOW,HIGH,STEP, such as 0,100,10 or 0,64k,1k".to_owned();
        let number = |text: &str| {
            let (sign, digits) = match text.trim().strip_prefix('-') {
                Some(digits) => (-1, digits),
                None => (1, text.trim()),
            };
            let value = number::parse_literal(digits).ok().and_then(|value| i64::try_from(value).ok());
            value.map(|value| sign * value).ok_or_else(wrong)
        };
        let parts: Vec<i64> = text.split(',').map(number).collect::<Result<_, _>>()?;
        let [low, high, step] = parts[..] else { return Err(wrong()) };
        if step < 1 || low >= high {
            return Err("LOW has to be below HIGH, and STEP above 0".to_owned());
        }
        if (i128::from(high) - i128::from(low)) / i128::from(step) > MOST_STEPS {
            return Err(format!("more than {MOST_STEPS} buckets; take a greater STEP"));
        }
        Ok(Self { low, high, step })
    }
}

/// More buckets than nobody reads.
const MOST_STEPS: i128 = 1000;

/// A run with expressions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quick {
    /// What is made of the hits.
    pub form: Form,
    /// What has to hold.
    pub filters: Vec<String>,
    /// The threads that are meant; none: all.
    pub threads: Vec<i32>,
    /// Which share is taken.
    pub sample: Option<Share>,
    /// Only calls that take so long, in nanoseconds.
    pub slower: Option<u64>,
    /// What rows are told apart by.
    pub by: Vec<String>,
    /// How many groups are kept.
    pub max_keys: u32,
    /// How many frames of the call stack belong to each hit, as a key or as lines below it.
    pub stack: Option<u8>,
}

/// What is made of hits.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Form {
    /// They are counted.
    #[default]
    Count,
    /// They are timed.
    Latency,
    /// Each is shown.
    Trace(Lines),
    /// Something is done to them, and those are counted.
    Inject(Injection),
    /// The values of an expression are counted.
    Hist {
        /// The expression.
        value: String,
        /// Buckets of one width; else one for each power of two.
        linear: Option<Linear>,
    },
}

/// What lines show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// How many arguments, as words.
    pub args: u8,
    /// What else.
    pub values: Vec<Shown>,
    /// How many lines a thread may have.
    pub rate: Option<Rate>,
}

/// An expression that is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The expression.
    pub text: String,
    /// How.
    pub format: Format,
}

/// How a value is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// As its type says.
    #[default]
    Typed,
    /// What it points to, as a string.
    Text,
    /// So many bytes that it points to; nothing: all of an array.
    Bytes(Option<u32>),
    /// In hexadecimal.
    Hexadecimal,
    /// In decimal.
    Decimal,
    /// As a character.
    Character,
}

/// The formats, as messages name them.
const FORMATS: &str = "str, buf(N), hex, dec, char";

impl Shown {
    /// Takes `EXPR:FORMAT` apart. What stands behind the last colon is a format if it looks like one and what stands before is not within brackets or a `?`.
    ///
    /// # Errors
    /// There is no such format.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let Some((before, last)) = text.rsplit_once(':') else {
            return Ok(Self { text: text.to_owned(), format: Format::Typed });
        };
        let format = match last.trim() {
            "str" => Some(Format::Text),
            "hex" => Some(Format::Hexadecimal),
            "dec" => Some(Format::Decimal),
            "char" => Some(Format::Character),
            "buf" => Some(Format::Bytes(None)),
            other => other
                .strip_prefix("buf(")
                .and_then(|rest| rest.strip_suffix(')'))
                .and_then(|count| count.trim().parse().ok())
                .filter(|count| (1..=4096).contains(count))
                .map(|count| Format::Bytes(Some(count))),
        };
        match format {
            Some(format) => Ok(Self { text: before.to_owned(), format }),
            // The colon is the expression's own.
            None if before.contains(['?', '"']) => Ok(Self { text: text.to_owned(), format: Format::Typed }),
            None => {
                let near =
                    trapless_session::select::nearest(last.trim(), ["str", "buf", "hex", "dec", "char"]);
                let near = near.first().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                Err(Error::Usage(format!(
                    "--arg {text}: there is no format '{}'; there are {FORMATS}, with N up to 4096{near}",
                    last.trim()
                )))
            }
        }
    }
}

/// Refuses a text that is no expression, but for the script language's parser, which tells it better.
pub(super) fn expressions(flag: &str, texts: &[String]) -> Result<(), Error> {
    match texts.iter().any(|text| text.trim().is_empty()) {
        true => Err(Error::Usage(format!("{flag} needs an expression, such as {flag} 'arg0 > 64k'"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_rates_and_buckets_are_read() {
        assert_eq!("1/100".parse(), Ok(Share { taken: 1, of: 100 }));
        for wrong in ["0/5", "6/5", "100", "1/0", "a/b", ""] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
        assert_eq!("1000/s".parse(), Ok(Rate { hits: 1000, per: 1_000_000_000 }));
        assert_eq!("5".parse(), Ok(Rate { hits: 5, per: 1_000_000_000 }));
        for wrong in ["0/s", "1/year", "-1/s", ""] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        assert_eq!("-8,64k,1k".parse(), Ok(Linear { low: -8, high: 65536, step: 1024 }));
        for wrong in ["", "1,2", "5,1,1", "0,10,0", "0,1G,1", "a,b,c"] {
            assert!(wrong.parse::<Linear>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn formats_stand_behind_the_last_colon() {
        for (text, of, format) in [
            ("path:str", "path", Format::Text),
            ("self.id", "self.id", Format::Typed),
            ("arg0:hex", "arg0", Format::Hexadecimal),
            ("arg1:buf(16)", "arg1", Format::Bytes(Some(16))),
            ("arg0 ? 1 : 2", "arg0 ? 1 : 2", Format::Typed),
            ("arg0 ? 1 : 2:dec", "arg0 ? 1 : 2", Format::Decimal),
        ] {
            assert_eq!(Shown::parse(text).unwrap(), Shown { text: of.to_owned(), format }, "{text}");
        }
        let error = Shown::parse("path:st").unwrap_err().to_string();
        assert!(error.contains("no format 'st'") && error.contains("did you mean str?"), "{error}");
    }
}
