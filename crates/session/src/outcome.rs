//! What a session tells of its probes: what each saw, every traced hit, and the sites that were left alone.
//!
//! The structs are plain data, and as JSON they are objects with fields of the same names.

use crate::name::Source;
use crate::spec::Kind;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use trapless_engine::Refusal;
use trapless_isa::operand::NotRead;

/// What one probe saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeSummary {
    /// File name of the module.
    pub module: String,
    /// The function, demangled, with `+0x…` for a site inside it.
    pub function: String,
    /// Where it is in the source, if it was asked for by that.
    #[serde(flatten)]
    pub source: Source,
    /// Entry or return.
    #[serde(serialize_with = "kind")]
    pub kind: Kind,
    /// The site's address in the target.
    pub address: u64,
    /// How the probe gets control: `jump`, `boost`, `emulate` or `step`.
    pub mechanism: &'static str,
    /// How many sites it has, where a USDT probe stands at several.
    #[serde(skip_serializing_if = "is_one")]
    pub sites: usize,
    /// How often it fired.
    pub hits: u64,
    /// How many of its hits could not be recorded.
    pub lost: u64,
    /// From entry to return, where it was measured and at least one call returned.
    #[serde(rename = "latency_ns", skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencySummary>,
}

/// The distribution of a function's durations, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencySummary {
    /// Mean.
    pub avg: u64,
    /// Median.
    pub p50: u64,
    /// 90 % are not above.
    pub p90: u64,
    /// 99 % are not above.
    pub p99: u64,
    /// 99.9 % are not above.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// The histogram, in rising order, without empty buckets.
    pub buckets: Vec<Bucket>,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Shortest duration in it, in nanoseconds.
    pub low: u64,
    /// Shortest duration above it, in nanoseconds.
    pub high: u64,
    /// How many durations fell into it.
    pub count: u64,
}

/// A site that matched and was left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// File name of the module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// Where it is in the source, if it was asked for by that.
    #[serde(flatten)]
    pub source: Source,
    /// Why.
    #[serde(flatten)]
    pub why: Why,
}

/// Why something was left alone, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// A name that never changes.
    pub code: &'static str,
    /// The whole reason.
    pub reason: String,
    /// The reason without what is this site's own, such as an address.
    #[serde(skip)]
    pub group: String,
}

impl Why {
    /// A reason that is the same for all.
    pub fn plain(code: &'static str, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { code, group: reason.clone(), reason }
    }
}

impl From<&Refusal> for Why {
    fn from(refusal: &Refusal) -> Self {
        Self { code: refusal.code(), reason: refusal.to_string(), group: refusal.group() }
    }
}

/// Something about how a pattern was understood that its author has to know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// What, in a word that stays the same.
    pub code: &'static str,
    /// The same in a sentence.
    pub text: String,
}

/// An armed site at which calls are no longer counted, or were not for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostSite {
    /// File name of the module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// The site's address in the target.
    pub address: u64,
    /// What became of it, in a word: `unloaded`, `reloaded`, `restored`, `detached`, `breakpoint`, `uprobe`, `mended` or
    /// `changed`.
    pub code: &'static str,
    /// The same in a sentence.
    pub reason: String,
}

/// One traced hit.
///
/// Values of 64 bits stand as numbers and, for readers that keep numbers as `double`, as hexadecimal strings.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Time since the probes were armed, in nanoseconds.
    pub time_ns: u64,
    /// The process that hit: the target, or a forked child of it.
    pub pid: i32,
    /// The thread that hit.
    pub tid: i32,
    /// Whether it is a forked child's.
    pub of_child: bool,
    /// File name of the module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// Where the site is in the source, if it was asked for by that.
    pub source: Source,
    /// An entry, or a return that carries its entry's arguments.
    pub kind: Kind,
    /// The first integer arguments, as many as were asked for.
    pub args: Vec<u64>,
    /// The arguments of a USDT probe, as many as its note names.
    pub usdt: Option<Vec<UsdtValue>>,
    /// The integer return value.
    pub retval: Option<u64>,
    /// From entry to return, in nanoseconds.
    pub duration_ns: Option<u64>,
}

impl Serialize for Hit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut hit = serializer.serialize_struct("Hit", 19)?;
        hit.serialize_field("time_ns", &self.time_ns)?;
        hit.serialize_field("pid", &self.pid)?;
        hit.serialize_field("tid", &self.tid)?;
        if self.of_child {
            hit.serialize_field("child", &true)?;
        }
        hit.serialize_field("module", &self.module)?;
        hit.serialize_field("function", &self.function)?;
        if let Some(file) = &self.source.file {
            hit.serialize_field("file", file)?;
        }
        if let Some(line) = &self.source.line {
            hit.serialize_field("line", line)?;
        }
        if let Some(column) = &self.source.column {
            hit.serialize_field("column", column)?;
        }
        if !self.source.also.is_empty() {
            hit.serialize_field("also", &self.source.also)?;
        }
        if !self.source.inlined.is_empty() {
            hit.serialize_field("inlined", &self.source.inlined)?;
        }
        if let Some(function) = &self.source.inlined_into {
            hit.serialize_field("inlined_into", function)?;
        }
        hit.serialize_field("kind", self.kind.name())?;
        if !self.args.is_empty() {
            hit.serialize_field("args", &self.args)?;
            let hexadecimal: Vec<Hexadecimal> = self.args.iter().copied().map(Hexadecimal).collect();
            hit.serialize_field("args_hex", &hexadecimal)?;
        }
        if let Some(values) = &self.usdt {
            hit.serialize_field("usdt_args", values)?;
        }
        if let Some(value) = self.retval {
            hit.serialize_field("retval", &value)?;
            hit.serialize_field("retval_hex", &Hexadecimal(value))?;
        }
        if let Some(ns) = self.duration_ns {
            hit.serialize_field("duration_ns", &ns)?;
        }
        hit.end()
    }
}

/// The value of one argument of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsdtValue {
    /// A number with a sign.
    Signed(i64),
    /// A number without one, or an address.
    Unsigned(u64),
    /// It was not read.
    Unknown(NotRead),
}

impl Serialize for UsdtValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("UsdtValue", 2)?;
        match self {
            UsdtValue::Signed(value) => {
                object.serialize_field("value", value)?;
                object.serialize_field("hex", &Hexadecimal(*value as u64))?;
            }
            UsdtValue::Unsigned(value) => {
                object.serialize_field("value", value)?;
                object.serialize_field("hex", &Hexadecimal(*value))?;
            }
            UsdtValue::Unknown(reason) => {
                object.serialize_field("value", &None::<u64>)?;
                object.serialize_field("reason", &reason.to_string())?;
            }
        }
        object.end()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// A word as `"0x1f"`.
struct Hexadecimal(u64);

impl Serialize for Hexadecimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// Serializes a kind by its name.
fn kind<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}
