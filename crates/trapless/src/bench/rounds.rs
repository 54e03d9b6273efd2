//! Samples in turn over everything that is measured, and their medians.

use super::child::Work;
use super::target::{Sample, Target};
use super::triggers::TRIGGERS;
use super::variant::{Armed, Collector, Side, VARIANTS, Variant};
use crate::error::Error;
use serde::Serialize;

/// Processor time of one sample.
const SAMPLE_NS: f64 = 8e6;
/// Calls by which the number of calls of a sample is found.
const TRIAL: u64 = 3_000;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Rows: a trigger's index, and where it is probed.
    pub rows: Vec<(usize, Side)>,
    /// `usermode-count`.
    pub usermode: bool,
    /// `syscall-count`.
    pub syscall: bool,
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
    /// What collects. `None` for an unprobed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collector: Option<Collector>,
    /// How it gets control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<&'static str>,
    /// Threads that call the trigger at the same time.
    pub threads: u32,
    /// A call, in nanoseconds of its thread's processor time.
    pub call_ns: f64,
    /// The hit alone: less the unprobed call of the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ns: Option<f64>,
    /// Calls of all threads in a second, in millions.
    pub millions_per_second: f64,
    /// Traps per hit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traps: Option<u32>,
    /// Samples that these are the medians of.
    pub rounds: u32,
}

/// Everything that was measured of hits.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Without threads beside.
    pub cells: Vec<Cell>,
    /// On one trigger, by number of threads.
    pub scaling: Vec<Cell>,
    /// Columns that are missing, and why.
    pub missing: Vec<(Variant, String)>,
}

/// A child with its probes; the first one has none.
struct Contender {
    variant: Option<Variant>,
    target: Target,
    armed: Option<Armed>,
    made: u64,
}

/// One cell while it is measured.
struct Series {
    contender: usize,
    work: Work,
    threads: u32,
    times: u64,
    /// Index of the unprobed series.
    bare: Option<usize>,
    name: String,
    samples: Vec<Sample>,
}

impl Contender {
    /// One sample of `times` calls on each thread, with pauses where rings must be emptied.
    fn sample(&mut self, threads: u32, work: Work, times: u64) -> Result<Sample, Error> {
        let burst = self.variant.map_or(u64::MAX, |v| v.collector.burst());
        let (mut left, mut cpu_ns, mut us) = (times, 0.0, 0.0);
        while left > 0 {
            let now = left.min(burst);
            let sample = self.target.work(threads, work, now)?;
            cpu_ns += sample.cpu_ns * now as f64;
            us += now as f64 * f64::from(threads) / sample.millions;
            left -= now;
            if let (true, Some(armed)) = (burst < u64::MAX, &mut self.armed) {
                armed.empty(&self.target);
            }
        }
        // On several threads, each has made one call before.
        self.made += (times + u64::from(threads > 1)) * u64::from(threads);
        Ok(Sample { cpu_ns: cpu_ns / times as f64, millions: times as f64 * f64::from(threads) / us })
    }
}

/// Measures what was chosen. `progress` is told how far it is, from 0 to 1.
///
/// # Errors
/// A child ended, or hits were not counted exactly.
pub fn measure(choice: &Choice, progress: &mut dyn FnMut(f64)) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    let mut triggers: Vec<usize> = choice.rows.iter().map(|row| row.0).collect();
    triggers.dedup();
    let mut contenders = vec![Contender { variant: None, target: Target::start()?, armed: None, made: 0 }];
    for variant in VARIANTS {
        if !choice.rows.iter().any(|row| row.1 == variant.side) {
            continue;
        }
        let target = Target::start()?;
        match variant.arm(&target, &triggers) {
            Ok(armed) => {
                contenders.push(Contender { variant: Some(variant), target, armed: Some(armed), made: 0 });
            }
            Err(error) => measured.missing.push((variant, error.to_string())),
        }
    }
    let mut series = plan(choice, &triggers, &contenders);
    let single = series.iter().take_while(|s| s.threads == 1).count();
    let scaling = scale(choice, &contenders, &mut series);
    for series in &mut series {
        let contender = &mut contenders[series.contender];
        let trial = contender.sample(series.threads, series.work, TRIAL)?;
        series.times = (SAMPLE_NS / trial.cpu_ns.max(0.1)).clamp(200.0, 1e8) as u64;
    }
    let steps = choice.rounds as usize * series.len();
    for step in 0..steps {
        let index = step % series.len();
        let Series { contender, work, threads, times, .. } = series[index];
        let sample = contenders[contender].sample(threads, work, times)?;
        series[index].samples.push(sample);
        progress((step + 1) as f64 / steps as f64);
    }
    for contender in &contenders {
        exact(contender)?;
    }
    let cell = |series_: &Series| finish(series_, &series, &contenders, choice.rounds);
    measured.cells = series[..single].iter().map(cell).collect();
    measured.scaling = series[scaling..].iter().map(cell).collect();
    Ok(measured)
}

/// Every cell with one thread, the unprobed ones of a trigger first.
fn plan(choice: &Choice, triggers: &[usize], contenders: &[Contender]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    let one = |contender, work, bare, name: String| Series {
        contender,
        work,
        threads: 1,
        times: 0,
        bare,
        name,
        samples: Vec::new(),
    };
    for (wanted, work, name) in [
        (choice.usermode, Work::Increments, "usermode-count"),
        (choice.syscall, Work::Syscalls, "syscall-count"),
    ] {
        if wanted {
            series.push(one(0, work, None, name.to_owned()));
        }
    }
    for &trigger in triggers {
        let bare = series.len();
        series.push(one(0, Work::Calls(trigger), None, format!("call-{}", TRIGGERS[trigger].name)));
        for (index, contender) in contenders.iter().enumerate() {
            let Some(variant) = contender.variant else { continue };
            if choice.rows.contains(&(trigger, variant.side)) {
                let name = variant.side.row(TRIGGERS[trigger].name);
                series.push(one(index, Work::Calls(trigger), Some(bare), name));
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
        for (contender, Contender { variant, .. }) in contenders.iter().enumerate() {
            let name = match variant {
                None => format!("call-{}", TRIGGERS[trigger].name),
                Some(v) if v.collector == Collector::Record || !choice.rows.contains(&(trigger, v.side)) => {
                    continue;
                }
                Some(v) => v.side.row(TRIGGERS[trigger].name),
            };
            let bare = variant.map(|_| bare);
            let work = Work::Calls(trigger);
            series.push(Series { contender, work, threads, times: 0, bare, name, samples: Vec::new() });
        }
    }
    start
}

/// A benchmark of probes that miss hits is worth nothing.
fn exact(contender: &Contender) -> Result<(), Error> {
    let (Some(variant), Some(armed)) = (contender.variant, &contender.armed) else { return Ok(()) };
    let hits = armed.hits()?;
    // The kernel's events do not count threads but the first.
    if hits == contender.made || variant.collector == Collector::Kernel {
        return Ok(());
    }
    let made = contender.made;
    Err(Error::Usage(format!("{made} calls were made, but {variant:?} counted {hits}")))
}

fn finish(series: &Series, all: &[Series], contenders: &[Contender], rounds: u32) -> Cell {
    let variant = contenders[series.contender].variant;
    let above = series.bare.map(|bare| {
        let pairs = series.samples.iter().zip(&all[bare].samples);
        median(pairs.map(|(probed, bare)| probed.cpu_ns - bare.cpu_ns))
    });
    let traps = match (variant, series.work) {
        (Some(variant), Work::Calls(trigger)) => Some(variant.collector.traps(trigger)),
        _ => None,
    };
    Cell {
        name: series.name.clone(),
        collector: variant.map(|v| v.collector),
        mechanism: variant.map(|v| v.collector.mechanism()),
        threads: series.threads,
        call_ns: rounded(median(series.samples.iter().map(|s| s.cpu_ns))),
        hit_ns: above.map(rounded),
        millions_per_second: rounded(median(series.samples.iter().map(|s| s.millions))),
        traps,
        rounds,
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
fn rounded(value: f64) -> f64 {
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
