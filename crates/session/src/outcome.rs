//! What a session tells of its probes: what each saw, every traced hit, and the sites that were left alone.
//!
//! The structs are plain data, and as JSON they are objects with fields of the same names.

mod losses;
mod told;
mod typed;

use crate::name::{SiteName, Source};
use crate::spec::Kind;
pub use losses::{ChildHits, Losses, Note};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use std::ops::Deref;
use std::sync::Arc;
pub use told::{Collected, Datum, HitTold, Told, Values};
use trapless_engine::Refusal;
use trapless_isa::operand::NotRead;
pub use typed::{TypedCall, TypedValue};

/// What is told of a probe beside all of its numbers, whatever the process: rows of it share one.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    /// File name of the module.
    pub module: Arc<str>,
    /// The function, demangled, with `+0x…` for a site inside it, and where it is in the source, if it was asked for by that.
    pub function: SiteName,
    /// How the probe gets control: `jump`, `short`, `boost`, `emulate` or `step`.
    pub mechanism: &'static str,
}

/// What one probe saw.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeSummary {
    /// Which probe.
    pub probe: Arc<Probed>,
    /// Entry or return.
    pub kind: Kind,
    /// How many sites it has, where a USDT probe stands at several.
    pub sites: u32,
    /// The site's address in the target.
    pub address: u64,
    /// How often it fired.
    pub hits: u64,
    /// How many of its hits could not be recorded.
    pub lost: u64,
    /// What else there is, where times were measured, hits were grouped or their values collected. Most rows have nothing, and of a fleet there
    /// are millions.
    pub collected: Option<Box<Collected>>,
}

impl ProbeSummary {
    /// Whether there is anything to tell of it.
    pub fn was_hit(&self) -> bool {
        self.hits > 0 || self.lost > 0
    }

    /// From entry to return, where it was measured and at least one call returned.
    pub fn latency(&self) -> Option<&LatencySummary> {
        self.collected.as_ref()?.latency.as_ref()
    }
}

impl Deref for ProbeSummary {
    type Target = Probed;
    fn deref(&self) -> &Probed {
        &self.probe
    }
}

impl Serialize for ProbeSummary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("ProbeSummary", 16)?;
        row.serialize_field("module", &*self.module)?;
        row.serialize_field("function", self.function.text())?;
        serialize_source(&self.function.source(), &mut row)?;
        row.serialize_field("kind", self.kind.name())?;
        row.serialize_field("address", &self.address)?;
        row.serialize_field("mechanism", self.mechanism)?;
        if self.sites != 1 {
            row.serialize_field("sites", &self.sites)?;
        }
        row.serialize_field("hits", &self.hits)?;
        row.serialize_field("lost", &self.lost)?;
        if let Some(latency) = self.latency() {
            row.serialize_field("latency_ns", latency)?;
        }
        if let Some(collected) = &self.collected {
            if !collected.by.is_empty() {
                row.serialize_field("by", &collected.by)?;
            }
            if !collected.values.is_empty() {
                row.serialize_field("values", &collected.values)?;
            }
        }
        row.end()
    }
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
    /// What its types say, where they are known and were asked for.
    pub typed: Option<TypedCall>,
    /// What expressions have told of it.
    pub told: Option<Box<HitTold>>,
}

impl Serialize for Hit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut hit = serializer.serialize_struct("Hit", 24)?;
        hit.serialize_field("time_ns", &self.time_ns)?;
        hit.serialize_field("pid", &self.pid)?;
        hit.serialize_field("tid", &self.tid)?;
        if self.of_child {
            hit.serialize_field("child", &true)?;
        }
        hit.serialize_field("module", &self.module)?;
        hit.serialize_field("function", &self.function)?;
        serialize_source(&self.source, &mut hit)?;
        hit.serialize_field("kind", self.kind.name())?;
        if !self.args.is_empty() {
            hit.serialize_field("args", &self.args)?;
            let hexadecimal: Vec<Hexadecimal> = self.args.iter().copied().map(Hexadecimal).collect();
            hit.serialize_field("args_hex", &hexadecimal)?;
        }
        if let Some(values) = &self.usdt {
            hit.serialize_field("usdt_args", values)?;
        }
        if let Some(arguments) = self.typed.as_ref().and_then(|typed| typed.arguments.as_ref()) {
            hit.serialize_field("arguments", arguments)?;
        }
        if let Some(result) = self.typed.as_ref().and_then(|typed| typed.result.as_ref()) {
            hit.serialize_field("result", result)?;
        }
        if let Some(value) = self.retval {
            hit.serialize_field("retval", &value)?;
            hit.serialize_field("retval_hex", &Hexadecimal(value))?;
        }
        if let Some(ns) = self.duration_ns {
            hit.serialize_field("duration_ns", &ns)?;
        }
        if let Some(told) = &self.told {
            if !told.arguments.is_empty() {
                hit.serialize_field("values", &told.arguments)?;
            }
            if let Some(result) = &told.result {
                hit.serialize_field("result", &result.value)?;
            }
            if !told.stack.is_empty() {
                hit.serialize_field("stack", &told.stack)?;
            }
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

/// Puts the fields of a place in the source into an object.
fn serialize_source<S: SerializeStruct>(source: &Source, object: &mut S) -> Result<(), S::Error> {
    if let Some(file) = &source.file {
        object.serialize_field("file", file)?;
    }
    if let Some(line) = &source.line {
        object.serialize_field("line", line)?;
    }
    if let Some(column) = &source.column {
        object.serialize_field("column", column)?;
    }
    if !source.also.is_empty() {
        object.serialize_field("also", &source.also)?;
    }
    if !source.inlined.is_empty() {
        object.serialize_field("inlined", &source.inlined)?;
    }
    if let Some(function) = &source.inlined_into {
        object.serialize_field("inlined_into", function)?;
    }
    Ok(())
}

/// A word as `"0x1f"`.
struct Hexadecimal(u64);

impl Serialize for Hexadecimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}
