//! Samples in turn over everything that is measured, and their medians.

use super::child::Work;
use super::contender::{Contender, Contenders};
use super::kernel;
use super::target::Sample;
use super::triggers::{Side, TRIGGERS};
use super::variant::{Collector, Time, VARIANTS};
use crate::OWN_BITS;
use crate::error::Error;
use serde::Serialize;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Rows: a trigger's index, and where it is probed.
    pub rows: Vec<(usize, Side)>,
    /// Bits of the programs: 64, 32, or both.
    pub bits: Vec<u32>,
    /// Those of [`BASELINES`](super::child::BASELINES), which this program's own children measure.
    pub baselines: Vec<(Work, &'static str)>,
    /// Rounds.
    pub rounds: u32,
    /// Highest number of threads.
    pub threads: u32,
}

/// A collector at a trigger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// As the kernel's benchmark calls it.
    pub name: String,
    /// 64 or 32.
    pub bits: u32,
    /// What collects. `None` for an unprobed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collector: Option<Collector>,
    /// How it gets control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<&'static str>,
    /// Threads that call the trigger at the same time.
    pub threads: u32,
    /// What the following two are measured by.
    pub time: Time,
    /// A call, in nanoseconds.
    pub call_ns: f64,
    /// The hit alone: less the unprobed call of the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ns: Option<f64>,
    /// Calls of all threads in a second, in millions.
    pub millions_per_second: f64,
    /// Traps per hit: counted, but for the kernel's, which are known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traps: Option<u32>,
    /// Samples that these are the medians of.
    pub rounds: u32,
}

/// What could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// 64 or 32.
    pub bits: u32,
    /// Of this collector; of all for `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collector: Option<Collector>,
    /// A row, or several by a `*`.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Everything that was measured of hits.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Without threads beside.
    pub cells: Vec<Cell>,
    /// On one trigger, by number of threads.
    pub scaling: Vec<Cell>,
    /// Cells that are missing, and why.
    pub missing: Vec<Missing>,
}

/// One cell while it is measured.
struct Series {
    contender: usize,
    work: Work,
    threads: u32,
    times: u64,
    waits: u32,
    /// Index of the unprobed series.
    bare: Option<usize>,
    name: String,
    samples: Vec<Sample>,
}

/// Measures what was chosen. `progress` is told how far it is, from 0 to 1.
///
/// # Errors
/// A child ended, or hits were not counted exactly.
pub fn measure(choice: &Choice, progress: &mut dyn FnMut(f64)) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    for (done, &bits) in choice.bits.iter().enumerate() {
        let parts = choice.bits.len() as f64;
        measure_one(choice, bits, &mut measured, &mut |part| progress((done as f64 + part) / parts))?;
    }
    Ok(measured)
}

/// Measures programs of one kind.
fn measure_one(
    choice: &Choice,
    bits: u32,
    measured: &mut Measured,
    progress: &mut dyn FnMut(f64),
) -> Result<(), Error> {
    let mut triggers: Vec<usize> = choice.rows.iter().map(|row| row.0).collect();
    triggers.dedup();
    let mut contenders = match Contender::bare(bits) {
        Ok(bare) => Contenders(vec![bare]),
        Err(error) if bits != OWN_BITS => {
            let reason = error.to_string();
            measured.missing.push(Missing { bits, collector: None, name: "*".to_owned(), reason });
            progress(1.0);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    for variant in VARIANTS {
        let probed: Vec<usize> =
            choice.rows.iter().filter(|row| row.1 == variant.side).map(|row| row.0).collect();
        if probed.is_empty() {
            continue;
        }
        let mut missing = |trigger: &str, reason: &str| {
            let (name, reason) = (variant.side.row(trigger), reason.to_owned());
            measured.missing.push(Missing { bits, collector: Some(variant.collector), name, reason });
        };
        match Contender::armed(variant, bits, &probed) {
            Ok(contender) => {
                let refused = contender.refused.iter();
                refused.for_each(|(trigger, reason)| missing(TRIGGERS[*trigger].name, reason));
                contenders.0.push(contender);
            }
            Err(error) => {
                let rows = if let [only] = probed[..] { TRIGGERS[only].name } else { "*" };
                missing(rows, &error.to_string());
            }
        }
    }
    let mut series = plan(choice, bits, &triggers, &contenders.0);
    let single = series.len();
    let scaling = if bits == OWN_BITS { scale(choice, &contenders.0, &mut series) } else { single };
    let steps = (choice.rounds as usize + 1) * series.len();
    let mut step = 0;
    let mut stepped = || {
        step += 1;
        progress(f64::from(step) / steps as f64);
    };
    for series in &mut series {
        let trial = contenders.0[series.contender].trial(series.threads, series.work)?;
        (series.times, series.waits) = (trial.times, trial.waits);
        stepped();
    }
    for _ in 0..choice.rounds {
        for series in &mut series {
            let Series { contender, work, threads, times, .. } = *series;
            series.samples.push(contenders.0[contender].sample(threads, work, times)?);
            stepped();
        }
    }
    contenders.0.iter().try_for_each(Contender::exact)?;
    let cell = |one: &Series| finish(one, &series, &contenders.0, bits);
    measured.cells.extend(series[..single].iter().map(cell));
    measured.scaling.extend(series[scaling..].iter().map(cell));
    contenders.end()
}

/// Every cell with one thread, the unprobed ones of a trigger first.
fn plan(choice: &Choice, bits: u32, triggers: &[usize], contenders: &[Contender]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    if bits == OWN_BITS {
        let baselines = choice.baselines.iter();
        series.extend(baselines.map(|&(work, name)| Series::new(0, work, 1, None, name.to_owned())));
    }
    for &trigger in triggers {
        let bare = series.len();
        let work = Work::Calls(trigger);
        series.push(Series::new(0, work, 1, None, TRIGGERS[trigger].call()));
        for (index, contender) in contenders.iter().enumerate() {
            let Some(variant) = contender.variant else { continue };
            let is_refused = contender.refused.iter().any(|refused| refused.0 == trigger);
            if choice.rows.contains(&(trigger, variant.side)) && !is_refused {
                let name = variant.side.row(TRIGGERS[trigger].name);
                series.push(Series::new(index, work, 1, Some(bare), name));
            }
        }
    }
    series
}

/// Adds one hot site hit from 1 to all processors, and twice as many threads. Where the added cells begin.
fn scale(choice: &Choice, contenders: &[Contender], series: &mut Vec<Series>) -> usize {
    let start = series.len();
    // An ordinary function, if it is among those measured.
    let ordinary = TRIGGERS.iter().position(|t| t.name == "o2");
    let Some(&(trigger, _)) = choice.rows.iter().find(|row| Some(row.0) == ordinary).or(choice.rows.first())
    else {
        return start;
    };
    let mut threads: Vec<u32> = (0..).map(|bit| 1 << bit).take_while(|&n| n < choice.threads).collect();
    threads.extend([choice.threads, 2 * choice.threads]);
    for threads in threads {
        let bare = series.len();
        for (index, Contender { variant, refused, .. }) in contenders.iter().enumerate() {
            let name = match variant {
                None => TRIGGERS[trigger].call(),
                // One tracer serves all threads, so there is nothing to be flat.
                Some(v) if v.collector == Collector::Record || v.collector.is_traced() => continue,
                Some(v) if !choice.rows.contains(&(trigger, v.side)) => continue,
                Some(_) if refused.iter().any(|refused| refused.0 == trigger) => continue,
                Some(v) => v.side.row(TRIGGERS[trigger].name),
            };
            let bare = variant.map(|_| bare);
            series.push(Series::new(index, Work::Calls(trigger), threads, bare, name));
        }
    }
    start
}

impl Series {
    fn new(contender: usize, work: Work, threads: u32, bare: Option<usize>, name: String) -> Self {
        Self { contender, work, threads, times: 0, waits: 0, bare, name, samples: Vec::new() }
    }
}

fn finish(series: &Series, all: &[Series], contenders: &[Contender], bits: u32) -> Cell {
    let contender = &contenders[series.contender];
    let time = contender.time();
    let call_ns = |sample: &Sample| sample.call_ns(time);
    let above = series.bare.map(|bare| {
        let pairs = series.samples.iter().zip(&all[bare].samples);
        median(pairs.map(|(probed, bare)| call_ns(probed) - call_ns(bare)))
    });
    let traps = match (contender.variant, series.work) {
        (Some(variant), Work::Calls(trigger)) if variant.collector == Collector::Kernel => {
            Some(kernel::traps(bits, TRIGGERS[trigger].execution, variant.side))
        }
        (Some(_), Work::Calls(_)) => Some(series.waits),
        _ => None,
    };
    Cell {
        name: series.name.clone(),
        bits,
        collector: contender.variant.map(|v| v.collector),
        mechanism: contender.variant.map(|v| v.collector.mechanism()),
        threads: series.threads,
        time,
        call_ns: rounded(median(series.samples.iter().map(call_ns))),
        hit_ns: above.map(rounded),
        millions_per_second: rounded(median(series.samples.iter().map(Sample::millions))),
        traps,
        rounds: series.samples.len() as u32,
    }
}

/// The middle one, or the mean of both.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// To thousandths, which is more than is known.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_middles() {
        for (values, expected) in
            [(vec![], 0.0), (vec![4.0], 4.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![1.0, 4.0, 2.0, 50.0], 3.0)]
        {
            assert_eq!(median(values.into_iter()), expected);
        }
    }
}
