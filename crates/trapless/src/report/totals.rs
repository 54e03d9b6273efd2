//! What several processes did together.

use super::{Bucket, LatencySummary, ProbeSummary};
use std::collections::BTreeMap;

/// The sums of probes of the same module, function, kind and mechanism. Their addresses differ from process to process; the
/// first one's stands for all.
pub fn totals<'p>(processes: impl IntoIterator<Item = &'p [ProbeSummary]>) -> Vec<ProbeSummary> {
    let mut totals: BTreeMap<_, ProbeSummary> = BTreeMap::new();
    for probe in processes.into_iter().flatten() {
        let key = (&probe.module, &probe.function, probe.kind, probe.mechanism);
        totals
            .entry(key)
            .and_modify(|total| {
                total.hits = total.hits.saturating_add(probe.hits);
                total.lost = total.lost.saturating_add(probe.lost);
                total.latency = match (total.latency.take(), &probe.latency) {
                    (Some(a), Some(b)) => Some(together(&a, b)),
                    (a, b) => a.or_else(|| b.clone()),
                };
            })
            .or_insert_with(|| probe.clone());
    }
    totals.into_values().collect()
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
    use trapless_session::spec::Kind;

    fn probe(function: &str, hits: u64, latency: Option<LatencySummary>) -> ProbeSummary {
        ProbeSummary {
            module: "m".into(),
            function: function.into(),
            source: Default::default(),
            kind: Kind::Entry,
            address: hits,
            mechanism: "jump",
            sites: 1,
            hits,
            lost: 1,
            latency,
        }
    }

    #[test]
    fn probes_of_one_name_are_added() {
        let (first, second) = ([probe("f", 3, None), probe("g", 1, None)], [probe("f", 4, None)]);
        let sums = totals([&first[..], &second[..]]);
        let shown: Vec<_> = sums.iter().map(|p| (p.function.as_str(), p.hits, p.lost)).collect();
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
        let latency = sums[0].latency.as_ref().unwrap();
        assert_eq!((latency.avg, latency.max, latency.buckets.len()), (150, 900, 2));
        assert!((64..128).contains(&latency.p50) && (64..=128).contains(&latency.p90), "{latency:?}");
        assert!((512..=900).contains(&latency.p99) && latency.p999 <= 900, "{latency:?}");
    }
}
