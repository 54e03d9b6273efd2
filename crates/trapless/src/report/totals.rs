//! What several processes did together.

use super::{Bucket, Collected, LatencySummary, ProbeSummary, Probed, Values};
use crate::spec::Kind;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The sums of probes of the same module, function, kind and mechanism, in this order. Their addresses differ from process to process;
/// the first one's stands for all.
#[derive(Debug, Default)]
pub struct Totals(BTreeMap<Key, ProbeSummary>);

/// What is the same in rows that are added.
#[derive(Debug)]
struct Key(Arc<Probed>, Kind, Vec<Vec<String>>);

impl Totals {
    /// Adds what one more process did.
    pub fn add(&mut self, rows: &[ProbeSummary]) {
        for row in rows {
            let key = Key(Arc::clone(&row.probe), row.kind, by(row));
            self.0.entry(key).and_modify(|total| add(total, row)).or_insert_with(|| row.clone());
        }
    }

    /// All of them.
    pub fn into_rows(self) -> Vec<ProbeSummary> {
        self.0.into_values().collect()
    }
}

/// What several processes did.
pub fn totals<'p>(processes: impl IntoIterator<Item = &'p [ProbeSummary]>) -> Vec<ProbeSummary> {
    let mut totals = Totals::default();
    processes.into_iter().for_each(|rows| totals.add(rows));
    totals.into_rows()
}

impl Key {
    fn name(&self) -> (&str, &str, Kind, &str) {
        let Key(probe, kind, _) = self;
        (&probe.module, probe.function.text(), *kind, probe.mechanism)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        // Processes that run one program mostly tell of the same.
        let of_probe = match Arc::ptr_eq(&self.0, &other.0) {
            true => self.1.cmp(&other.1),
            false => self.name().cmp(&other.name()),
        };
        of_probe.then_with(|| self.2.cmp(&other.2))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

/// What a row is grouped by, as it is shown.
fn by(row: &ProbeSummary) -> Vec<Vec<String>> {
    let told = row.collected.iter().flat_map(|collected| &collected.by);
    told.map(|told| told.frames.clone().unwrap_or_else(|| vec![told.text.clone()])).collect()
}

fn add(total: &mut ProbeSummary, row: &ProbeSummary) {
    total.hits = total.hits.saturating_add(row.hits);
    total.lost = total.lost.saturating_add(row.lost);
    match (&mut total.collected, &row.collected) {
        (Some(all), Some(more)) => add_collected(all, more),
        (all @ None, more) => all.clone_from(more),
        (Some(_), None) => {}
    }
}

/// Both are about the same.
fn add_collected(total: &mut Collected, more: &Collected) {
    total.values = add_values(&total.values, &more.values);
    match (&mut total.latency, &more.latency) {
        (Some(times), Some(more)) => *times = together(times, more),
        (times @ None, more) => times.clone_from(more),
        (Some(_), None) => {}
    }
}

/// Two lists of buckets as one, in rising order. Buckets of one expression begin at the same values.
fn add_values(a: &[Values], b: &[Values]) -> Vec<Values> {
    let mut all: BTreeMap<(Option<i64>, Option<i64>), u64> = BTreeMap::new();
    for bucket in a.iter().chain(b) {
        let count = all.entry((bucket.low, bucket.high)).or_default();
        *count = count.saturating_add(bucket.count);
    }
    all.into_iter().map(|((low, high), count)| Values { low, high, count }).collect()
}

/// Two distributions as one.
fn together(a: &LatencySummary, b: &LatencySummary) -> LatencySummary {
    let mut buckets: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for bucket in a.buckets.iter().chain(&b.buckets) {
        *buckets.entry((bucket.low, bucket.high)).or_default() += bucket.count;
    }
    let buckets: Vec<Bucket> =
        buckets.into_iter().map(|((low, high), count)| Bucket { low, high, count }).collect();
    let calls = |l: &LatencySummary| l.buckets.iter().map(|b| u128::from(b.count)).sum::<u128>();
    let (in_a, in_b) = (calls(a), calls(b));
    let sum = u128::from(a.avg) * in_a + u128::from(b.avg) * in_b;
    let max = a.max.max(b.max);
    let quantile = |share| quantile(&buckets, in_a + in_b, share).min(max);
    LatencySummary {
        avg: sum.checked_div(in_a + in_b).unwrap_or(0) as u64,
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max,
        buckets,
    }
}

/// The duration below which that share of `calls` lies, interpolated within its bucket.
fn quantile(buckets: &[Bucket], calls: u128, share: f64) -> u64 {
    let wanted = (share * calls as f64).max(1.0);
    let mut below = 0.0;
    for bucket in buckets {
        let count = bucket.count as f64;
        if count > 0.0 && below + count >= wanted {
            let width = bucket.high.saturating_sub(bucket.low) as f64;
            return bucket.low + (width * (wanted - below) / count) as u64;
        }
        below += count;
    }
    buckets.last().map_or(0, |bucket| bucket.high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::row;

    fn probe(function: &str, hits: u64, latency: Option<LatencySummary>) -> ProbeSummary {
        let collected = Collected::times(latency);
        ProbeSummary { address: hits, lost: 1, collected, ..row("m", function, Kind::Entry, hits) }
    }

    #[test]
    fn probes_of_one_name_are_added() {
        let (first, second) = ([probe("f", 3, None), probe("g", 1, None)], [probe("f", 4, None)]);
        let sums = totals([&first[..], &second[..]]);
        let shown: Vec<_> = sums.iter().map(|p| (p.function.text(), p.hits, p.lost)).collect();
        assert_eq!(shown, [("f", 7, 2), ("g", 1, 1)]);
    }

    #[test]
    fn distributions_are_added_bucket_by_bucket() {
        let of = |low, count, avg, max| LatencySummary {
            avg,
            max,
            buckets: vec![Bucket { low, high: 2 * low, count }],
            ..LatencySummary::default()
        };
        let (fast, slow) =
            (probe("f", 90, Some(of(64, 90, 100, 127))), probe("f", 10, Some(of(512, 10, 600, 900))));
        let sums = totals([&[fast][..], &[slow][..]]);
        let latency = sums[0].latency().unwrap();
        assert_eq!((latency.avg, latency.max, latency.buckets.len()), (150, 900, 2));
        assert!((64..128).contains(&latency.p50) && (64..=128).contains(&latency.p90), "{latency:?}");
        assert!((512..=900).contains(&latency.p99) && latency.p999 <= 900, "{latency:?}");
    }
}
