//! The numbers of all probes at one moment, and what they say.

use super::{Probe, Session};
use crate::clock::Rate;
use crate::outcome::{Bucket, Collected, LatencySummary, ProbeSummary};
use crate::spec::Kind;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use trapless_engine::Region;
use trapless_isa::detour::{LATENCY_LENGTH, latency_bucket_start};
use trapless_wire::{Counter, Counters, Histogram, Latency, Places, Totals};

/// The numbers of one probe.
#[derive(Clone, Debug, Default)]
struct Numbers {
    entries: u64,
    returns: u64,
    lost: u64,
    latency: Option<Box<Latency>>,
}

/// The numbers of all probes at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    numbers: Vec<Numbers>,
    /// Followed calls whose return was not seen because an exception passed.
    pub unwound: u64,
    /// Calls in children that were forked or share the memory, which are not in the numbers.
    pub in_children: u64,
    /// Calls and returns in the numbers that may have been children's: of threads that found no memory of their own left.
    pub of_anybody: u64,
    /// Records that found a ring full.
    pub records_lost: u64,
    /// Entries that were not recorded, since there was too little of the stack.
    pub unrecorded: u64,
}

impl Snapshot {
    pub(super) fn take(counters: &Counters<'_, Region>, probes: &[Probe]) -> Self {
        let totals = totals(counters, probes);
        let mut histograms: Vec<(Counter, Histogram)> =
            probes.iter().filter_map(|probe| probe.places.returns.zip(probe.places.latency)).collect();
        histograms.sort_unstable();
        let mut latencies = counters.latencies(&histograms);
        let own = |counter: Option<Counter>| counter.map_or(0, |counter| totals.own(counter));
        let numbers = probes.iter().map(|probe| {
            let Places { entries, returns, lost, latency, .. } = probe.places;
            let latency = returns
                .filter(|_| latency.is_some())
                .and_then(|returns| histograms.binary_search_by_key(&returns, |h| h.0).ok())
                .and_then(|index| latencies[index].take().map(Box::new));
            Numbers { entries: own(entries), returns: own(returns), lost: own(lost), latency }
        });
        let of_children = |counter: Option<Counter>| counter.map_or(0, |counter| totals.of_children(counter));
        let in_children =
            probes.iter().map(|p| of_children(p.places.entries).max(of_children(p.places.returns)));
        Self {
            numbers: numbers.collect(),
            unwound: counters.unwound(),
            in_children: sum(in_children),
            of_anybody: totals.of_anybody(),
            records_lost: sum(counters.blocks().map(|block| block.ring_lost())),
            unrecorded: sum(counters.blocks().map(|block| block.unrecorded())),
        }
    }

    /// What happened since `before`: a row for every entry that was asked for, and one for every return, with times where those were.
    pub fn since(&self, before: &Self, session: &Session, rate: Rate) -> Vec<ProbeSummary> {
        let (probes, nothing) = (session.probes(), Numbers::default());
        let mut rows = Vec::new();
        let mut usdt = HashMap::new();
        let (all, before) = (together(&self.numbers, probes), together(&before.numbers, probes));
        for (index, ((probe, address), now)) in session.probes_at().zip(&*all).enumerate() {
            if probe.again.is_some() {
                continue;
            }
            let then = before.get(index).unwrap_or(&nothing);
            let row = |kind, hits, lost, times| ProbeSummary {
                probe: Arc::clone(&probe.probed),
                kind,
                address,
                sites: 1,
                hits,
                lost,
                collected: Collected::times(times),
            };
            let lost = now.lost.saturating_sub(then.lost);
            let returns = now.returns.saturating_sub(then.returns);
            if probe.kinds.entry {
                let new = row(Kind::Entry, now.entries.saturating_sub(then.entries), 0, None);
                if probe.usdt.is_some() {
                    add_usdt(&mut rows, &mut usdt, new);
                } else {
                    rows.push(new);
                }
            }
            if probe.kinds.follows() {
                let times = now.latency.as_ref().map(|l| summarize(l, then.latency.as_deref(), rate));
                rows.push(row(Kind::Return, returns, lost, times));
            }
        }
        rows
    }
}

/// The numbers with those of probes that are others again added to the first ones'.
fn together<'n>(numbers: &'n [Numbers], probes: &[Probe]) -> Cow<'n, [Numbers]> {
    if probes.iter().all(|probe| probe.again.is_none()) {
        return Cow::Borrowed(numbers);
    }
    let mut all = numbers.to_vec();
    for (probe, more) in probes.iter().zip(numbers) {
        if let Some(first) = probe.again.and_then(|index| all.get_mut(index)) {
            first.add(more);
        }
    }
    Cow::Owned(all)
}

impl Numbers {
    fn add(&mut self, more: &Self) {
        self.entries = self.entries.saturating_add(more.entries);
        self.returns = self.returns.saturating_add(more.returns);
        self.lost = self.lost.saturating_add(more.lost);
        let Some(times) = &more.latency else { return };
        self.latency.get_or_insert_default().merge(times);
    }
}

/// Adds a row to that of the same USDT probe, which has several sites. `known`: where the rows of USDT probes are.
fn add_usdt(
    rows: &mut Vec<ProbeSummary>,
    known: &mut HashMap<(Arc<str>, String, &'static str), usize>,
    new: ProbeSummary,
) {
    let key = (Arc::clone(&new.module), new.function.text().to_owned(), new.mechanism);
    match known.get(&key).and_then(|&index| rows.get_mut(index)) {
        Some(row) => {
            row.sites += 1;
            row.hits = row.hits.saturating_add(new.hits);
        }
        None => {
            known.insert(key, rows.len());
            rows.push(new);
        }
    }
}

/// How many hits there were of all probes together.
pub(super) fn hits(counters: &Counters<'_, Region>, probes: &[Probe]) -> u64 {
    let totals = totals(counters, probes);
    let own = |counter: Option<Counter>| counter.map_or(0, |counter| totals.own(counter));
    sum(probes.iter().map(|probe| own(probe.places.entries).max(own(probe.places.returns))))
}

/// Counters are what a target says, so a sum may pass what a number holds.
pub(super) fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// All counters of the probes.
fn totals(counters: &Counters<'_, Region>, probes: &[Probe]) -> Totals {
    let all = probes.iter().flat_map(|p| [p.places.entries, p.places.returns, p.places.lost]);
    counters.totals(all.flatten())
}

impl LatencySummary {
    /// What a histogram says, in nanoseconds.
    pub fn of(latency: &Latency, rate: Rate) -> Self {
        summarize(latency, None, rate)
    }
}

/// A histogram less what it was before, in nanoseconds.
fn summarize(now: &Latency, before: Option<&Latency>, rate: Rate) -> LatencySummary {
    let times = before.map_or(Cow::Borrowed(now), |before| Cow::Owned(now.since(before)));
    let quantile = |q| rate.nanoseconds(times.quantile(q));
    let bucket = |(index, &count): (u32, &u64)| Bucket {
        low: rate.nanoseconds(latency_bucket_start(index)),
        high: rate.nanoseconds(latency_bucket_start((index + 1).min(LATENCY_LENGTH))),
        count,
    };
    LatencySummary {
        avg: rate.nanoseconds(times.sum.checked_div(times.count).unwrap_or(0)),
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: rate.nanoseconds(times.max),
        buckets: (0..).zip(&times.buckets).filter(|(_, count)| **count > 0).map(bucket).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    /// Whatever a target writes over its counters, the tool goes on with numbers that nobody takes for hits.
    #[test]
    fn numbers_that_a_target_sets_back_have_not_grown() {
        let rate = Clock::now().rate();
        let mut now = Latency { count: 5, sum: 1000, max: 400, ..Latency::default() };
        now.buckets[3] = 5;
        let mut before = Latency { count: u64::MAX, sum: u64::MAX, max: u64::MAX, ..Latency::default() };
        before.buckets[3] = u64::MAX;
        let summary = summarize(&now, Some(&before), rate);
        assert_eq!((summary.avg, summary.buckets.len()), (0, 0));
        // The other way round they have grown by nearly all there is.
        let summary = summarize(&before, Some(&now), rate);
        assert_eq!(summary.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), u64::MAX - 5);
    }

    #[test]
    fn sums_stay_at_the_most_that_a_number_holds() {
        assert_eq!(sum([u64::MAX, 7].into_iter()), u64::MAX);
        assert_eq!(sum([3, 4].into_iter()), 7);
    }
}
