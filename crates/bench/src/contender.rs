//! A child with its probes, sampled.

use super::child::Work;
use super::rounds::median;
use super::target::{Sample, Target};
use super::variant::{Armed, Collector, Refused, Time, Variant};
use crate::error::Error;

/// Time of one sample, in nanoseconds.
const SAMPLE_NS: f64 = 8e6;
/// Time of calls by which the number of calls of a sample is found, in nanoseconds.
const TRIAL_NS: f64 = 4e5;
/// Calls of the first trial, and of a sample at least.
const FEWEST: u64 = 16;
/// Parts of a sample that is timed by the time that passes.
const PARTS: u64 = 20;
/// Calls of a sample at most.
const MOST: f64 = 1e8;

/// A child with its probes; the first one has none.
pub struct Contender {
    /// What it is armed with.
    pub variant: Option<Variant>,
    /// Before the child, so that a tracer's probes are out of it when it ends.
    armed: Option<Armed>,
    target: Target,
    /// Triggers that it has no probe on, and why.
    pub refused: Refused,
    /// Calls of the first thread.
    alone: u64,
    /// Calls of threads beside it.
    beside: u64,
}

/// What one trial has shown.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Calls of a sample.
    pub times: u64,
    /// How often the thread waited in a call, which it does for a trap that a tracer serves. It waits for little else.
    pub waits: u32,
}

impl Contender {
    /// A child without probes.
    ///
    /// # Errors
    /// Those of [`Target::start`].
    pub fn bare(bits: u32) -> Result<Self, Error> {
        let target = Target::start(bits)?;
        Ok(Self { variant: None, target, armed: None, refused: Refused::new(), alone: 0, beside: 0 })
    }

    /// A child with probes on `triggers`.
    ///
    /// # Errors
    /// Those of [`Target::start`] and [`Variant::arm`].
    pub fn armed(variant: Variant, bits: u32, triggers: &[usize]) -> Result<Self, Error> {
        let mut contender = Self::bare(bits)?;
        let (armed, refused) = variant.arm(&contender.target, triggers)?;
        contender.variant = Some(variant);
        contender.armed = Some(armed);
        contender.refused = refused;
        Ok(contender)
    }

    /// What its calls are timed by.
    pub fn time(&self) -> Time {
        self.variant.map_or(Time::Processor, |variant| variant.collector.time())
    }

    /// One sample of `times` calls on each thread, with pauses where rings must be emptied. The time that passes for a traced call is
    /// the median of several parts, since the thread and its tracer may both have to wait for a processor.
    ///
    /// # Errors
    /// The child has ended.
    pub fn sample(&mut self, threads: u32, work: Work, times: u64) -> Result<Sample, Error> {
        let collector = self.variant.map(|variant| variant.collector);
        let burst = match collector {
            Some(collector) if collector.is_traced() => (times / PARTS).max(FEWEST / 2),
            Some(collector) => collector.burst(),
            None => u64::MAX,
        };
        let (mut left, mut parts) = (times, Vec::new());
        let mut all = Sample { cpu_ns: 0.0, elapsed_ns: 0.0, passed_ns: 0.0, calls: 0.0 };
        while left > 0 {
            let now = left.min(burst);
            let sample = self.target.work(threads, work, now)?;
            all.cpu_ns += sample.cpu_ns * now as f64 / times as f64;
            all.passed_ns += sample.passed_ns;
            all.calls += sample.calls;
            parts.push(sample.elapsed_ns);
            left -= now;
            if let (Some(Collector::Record), Some(armed)) = (collector, &mut self.armed) {
                armed.empty(&self.target);
            }
        }
        all.elapsed_ns = median(parts.into_iter());
        if threads == 1 {
            self.alone += times;
        } else {
            // Each thread has made one call before.
            self.beside += (times + 1) * u64::from(threads);
        }
        Ok(all)
    }

    /// Finds out how many calls make a sample, from few to as many as that takes.
    ///
    /// # Errors
    /// The child has ended.
    pub fn trial(&mut self, threads: u32, work: Work) -> Result<Trial, Error> {
        let mut times = FEWEST;
        loop {
            let before = self.target.waits()?;
            let sample = self.sample(threads, work, times)?;
            let call = sample.call_ns(self.time()).max(0.1);
            if call * times as f64 >= TRIAL_NS || times as f64 >= MOST {
                let waits = (self.target.waits()? - before) as f64 / times as f64;
                let times = (SAMPLE_NS / call).clamp(FEWEST as f64, MOST) as u64;
                return Ok(Trial { times, waits: waits.round() as u32 });
            }
            times *= 4;
        }
    }

    /// A benchmark of probes that miss hits is worth nothing.
    ///
    /// # Errors
    /// Hits were not counted exactly, or the counters cannot be read.
    pub fn exact(&self) -> Result<(), Error> {
        let (Some(variant), Some(armed)) = (self.variant, &self.armed) else { return Ok(()) };
        let hits = armed.hits()?;
        let made = match variant.collector {
            // Its events do not count threads but the first.
            Collector::Kernel => self.alone,
            _ => self.alone + self.beside,
        };
        if hits == made {
            return Ok(());
        }
        Err(Error::Inexact {
            made,
            hits,
            collector: variant.collector.heading().to_lowercase(),
            row: variant.side.row("*"),
        })
    }
}

/// Children that are measured in turn. All that are traced are let go before any is ended.
#[derive(Default)]
pub struct Contenders(pub Vec<Contender>);

impl Contenders {
    /// Takes out the probes that a tracer serves.
    ///
    /// # Errors
    /// A child could not be stopped or changed.
    pub fn end(self) -> Result<(), Error> {
        self.0.iter().try_for_each(|contender| match &contender.armed {
            Some(armed) => armed.end(&contender.target),
            None => Ok(()),
        })
    }
}

impl Drop for Contenders {
    fn drop(&mut self) {
        for contender in &mut self.0 {
            contender.armed = None;
        }
    }
}
