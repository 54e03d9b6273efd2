//! The numbers of a run that ends after so many hits, from the hits themselves.
//!
//! Counters go on until the probes are out, so they hold more hits than were asked for, and nobody can tell which came first. So
//! with `-M` every hit is recorded, as for a trace, and the first ones are counted here.

use std::collections::HashMap;
use trapless_isa::detour::{LATENCY_LENGTH, latency_bucket, latency_bucket_start};
use trapless_session::outcome::{Bucket, Collected, Hit, LatencySummary, ProbeSummary};
use trapless_session::spec::Kind;

/// Hits by module and function.
#[derive(Debug, Default)]
pub(super) struct Tally(HashMap<(String, String), Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    entries: u64,
    returns: u64,
    /// From entry to return, in nanoseconds.
    durations: Vec<u64>,
}

impl Tally {
    /// A call, or the entry of one that has not returned.
    pub(super) fn add(&mut self, hit: &Hit) {
        let numbers = match self.0.get_mut(&(hit.module.clone(), hit.function.clone())) {
            Some(numbers) => numbers,
            None => self.0.entry((hit.module.clone(), hit.function.clone())).or_default(),
        };
        numbers.entries += 1;
        if hit.kind == Kind::Return {
            numbers.returns += 1;
            numbers.durations.extend(hit.duration_ns);
        }
    }

    /// Puts these numbers in place of the counters'. `latency`: with the times.
    pub(super) fn put_into(mut self, rows: &mut [ProbeSummary], latency: bool) {
        for row in rows {
            let nothing = &mut Numbers::default();
            let numbers =
                self.0.get_mut(&(row.module.to_string(), row.function.text().to_owned())).unwrap_or(nothing);
            row.hits = if row.kind == Kind::Return { numbers.returns } else { numbers.entries };
            let times = (latency && !numbers.durations.is_empty()).then(|| summarize(&mut numbers.durations));
            row.collected = Collected::times(times);
        }
    }
}

fn summarize(durations: &mut [u64]) -> LatencySummary {
    durations.sort_unstable();
    let sum: u128 = durations.iter().map(|&ns| u128::from(ns)).sum();
    let quantile = |share: f64| {
        let rank = (share * durations.len() as f64).ceil() as usize;
        durations[rank.clamp(1, durations.len()) - 1]
    };
    let mut counts = vec![0u64; LATENCY_LENGTH as usize];
    for &ns in durations.iter() {
        counts[latency_bucket(ns) as usize] += 1;
    }
    let bucket = |(index, &count): (u32, &u64)| Bucket {
        low: latency_bucket_start(index),
        high: latency_bucket_start((index + 1).min(LATENCY_LENGTH)),
        count,
    };
    LatencySummary {
        avg: (sum / durations.len() as u128) as u64,
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: durations.last().copied().unwrap_or(0),
        buckets: (0..).zip(&counts).filter(|(_, count)| **count > 0).map(bucket).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_summed_up_exactly() {
        let mut durations: Vec<u64> = (1..=1000).rev().collect();
        let latency = summarize(&mut durations);
        let LatencySummary { avg, p50, p90, p99, p999, max, .. } = latency;
        assert_eq!((avg, p50, p90, p99, p999, max), (500, 500, 900, 990, 999, 1000));
        assert_eq!(latency.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1000);
        assert!(latency.buckets.iter().all(|bucket| bucket.low < bucket.high));
    }
}
