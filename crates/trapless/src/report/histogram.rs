//! Distributions as bars, one row per power of two, as bpftrace's `hist()` and funclatency draw them.

use super::Bucket;
use super::number::{bound, count};
use std::io::{self, Write};

/// Columns before the bars: `  [512µs, 1ms)`.
const LABEL: usize = 18;

/// The shortest a full bar gets.
const SHORTEST: usize = 10;

/// Writes the bars of `buckets` in at most `width` characters a line. Writes nothing when all are empty.
pub(super) fn write(output: &mut dyn Write, buckets: &[Bucket], width: usize) -> io::Result<()> {
    let rows = rows(buckets);
    let most = rows.iter().copied().max().unwrap_or(0);
    let (Some(first), Some(last)) = (rows.iter().position(|&n| n > 0), rows.iter().rposition(|&n| n > 0))
    else {
        return Ok(());
    };
    let number = count(most).len();
    let bar = width.saturating_sub(LABEL + number + 4).max(SHORTEST);
    for (row, &n) in rows.iter().enumerate().take(last + 1).skip(first) {
        let label = format!("  [{}, {})", bound(lowest(row)), bound(lowest(row + 1)));
        // A row that is not empty shows at least one mark, however small its share.
        let marks = (u128::from(n) * bar as u128).div_ceil(u128::from(most)) as usize;
        writeln!(output, "{label:<LABEL$} {:>number$} |{:<bar$}|", count(n), "@".repeat(marks))?;
    }
    Ok(())
}

/// The counts per power of two: row 0 is `[0, 1)`, row n is `[2^(n-1), 2^n)`.
fn rows(buckets: &[Bucket]) -> [u64; 65] {
    let mut rows = [0u64; 65];
    for bucket in buckets {
        let row = (u64::BITS - bucket.low.leading_zeros()) as usize;
        rows[row] = rows[row].saturating_add(bucket.count);
    }
    rows
}

/// The shortest duration of a row, in nanoseconds.
fn lowest(row: usize) -> u64 {
    match row {
        0 => 0,
        65.. => u64::MAX,
        row => 1 << (row - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(buckets: &[(u64, u64)]) -> String {
        let buckets: Vec<Bucket> =
            buckets.iter().map(|&(low, count)| Bucket { low, high: low.saturating_add(1), count }).collect();
        let mut output = Vec::new();
        write(&mut output, &buckets, 60).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn one_row_per_power_of_two_with_the_gaps_between() {
        assert_eq!(
            written(&[(512, 500), (768, 500), (1024, 1), (4096, 250)]),
            "  [512ns, 1µs)     1,000 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n\
             \u{20} [1µs, 2µs)           1 |@                                |\n\
             \u{20} [2µs, 4µs)           0 |                                 |\n\
             \u{20} [4µs, 8µs)         250 |@@@@@@@@@                        |\n"
        );
    }

    #[test]
    fn extremes_fit() {
        assert_eq!(written(&[]), "");
        assert_eq!(written(&[(0, 0)]), "");
        assert!(written(&[(0, 1)]).starts_with("  [0ns, 1ns)"));
        assert!(written(&[(u64::MAX, u64::MAX), (1 << 63, 1)]).starts_with("  [8589934592s, "));
        assert!(written(&[(1 << 42, u64::MAX), (1 << 41, 1)]).lines().all(|l| l.chars().count() <= 60));
    }
}
