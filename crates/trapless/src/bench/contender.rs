//! A child with its probes, sampled.

use super::child::Work;
use super::target::{Sample, Target};
use super::variant::{Armed, Collector, Refused, Time, Variant};
use crate::error::Error;

/// Time of one sample, in nanoseconds.
const SAMPLE_NS: f64 = 8e6;
/// Time of calls by which the number of calls of a sample is found, in nanoseconds.
const TRIAL_NS: f64 = 4e5;
/// Calls of the first trial, and of a sample at least.
const FEWEST: u64 = 16;
/// Calls of a sample at most.
const MOST: f64 = 1e8;

/// A child with its probes; the first one has none.
pub struct Contender {
    /// What it is armed with.
    pub variant: Option<Variant>,
    target: Target,
    armed: Option<Armed>,
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

    /// One sample of `times` calls on each thread, with pauses where rings must be emptied.
    ///
    /// # Errors
    /// The child has ended.
    pub fn sample(&mut self, threads: u32, work: Work, times: u64) -> Result<Sample, Error> {
        let burst = self.variant.map_or(u64::MAX, |v| v.collector.burst());
        let (mut left, mut cpu_ns) = (times, 0.0);
        let mut all = Sample { cpu_ns: 0.0, passed_ns: 0.0, calls: 0.0 };
        while left > 0 {
            let now = left.min(burst);
            let sample = self.target.work(threads, work, now)?;
            cpu_ns += sample.cpu_ns * now as f64;
            all.passed_ns += sample.passed_ns;
            all.calls += sample.calls;
            left -= now;
            if let (true, Some(armed)) = (burst < u64::MAX, &mut self.armed) {
                armed.empty(&self.target);
            }
        }
        if threads == 1 {
            self.alone += times;
        } else {
            // Each thread has made one call before.
            self.beside += (times + 1) * u64::from(threads);
        }
        Ok(Sample { cpu_ns: cpu_ns / times as f64, ..all })
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
            let call = sample.call_ns(self.time(), threads).max(0.1);
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
        Err(Error::Usage(format!(
            "{made} calls were made, but {} at {} counted {hits}",
            variant.collector.heading().to_lowercase(),
            variant.side.row("*")
        )))
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
