//! Numbers as people read them.

pub(super) use trapless_session::number::{count, plural};

/// A duration in nanoseconds with three significant digits and its unit: `87ns`, `1.23µs`, `45.6ms`, `12.0s`.
/// From 1000 seconds on it is whole seconds.
pub fn duration(ns: u64) -> String {
    if ns < 1000 {
        return format!("{ns}ns");
    }
    let mut value = ns as f64 / 1e3;
    for unit in ["µs", "ms", "s"] {
        let decimals = match value {
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            v if v < 999.5 => 0,
            _ => {
                value /= 1e3;
                continue;
            }
        };
        return format!("{value:.decimals$}{unit}");
    }
    format!("{}s", count((value * 1e3).round() as u64))
}

/// A power of two of nanoseconds as a histogram's bound. As in bpftrace, units are binary here: `1µs` is 1024 ns.
pub(super) fn bound(ns: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("s", 30), ("ms", 20), ("µs", 10), ("ns", 0)];
    let (unit, shift) = UNITS.into_iter().find(|&(_, s)| ns >> s > 0).unwrap_or(("ns", 0));
    format!("{}{unit}", ns >> shift)
}

/// An argument or return value: small ones in decimal, the rest, addresses mostly, in hexadecimal. Values that are
/// small negative numbers in 64 or in 32 bits are shown as those.
pub fn word(value: u64) -> String {
    const SMALL: i64 = 4096;
    let signed = value as i64;
    let signed32 = i64::from(value as u32 as i32);
    if (-SMALL..0).contains(&signed) {
        format!("{signed}")
    } else if value >> 32 == 0 && (-SMALL..0).contains(&signed32) {
        format!("{signed32}")
    } else if value < 0x1_0000 {
        format!("{value}")
    } else {
        format!("{value:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        for (ns, expected) in [
            (0, "0ns"),
            (999, "999ns"),
            (1000, "1.00µs"),
            (1234, "1.23µs"),
            (9_996, "10.0µs"),
            (99_960, "100µs"),
            (999_600, "1.00ms"),
            (45_600_000, "45.6ms"),
            (12_000_000_000, "12.0s"),
            (999_000_000_000, "999s"),
            (1_234_000_000_000, "1,234s"),
            (u64::MAX, "18,446,744,074s"),
        ] {
            assert_eq!(duration(ns), expected, "{ns}");
        }
    }

    #[test]
    fn bounds_are_powers_of_two() {
        for (ns, expected) in
            [(0, "0ns"), (1, "1ns"), (512, "512ns"), (1024, "1µs"), (1 << 21, "2ms"), (1 << 35, "32s")]
        {
            assert_eq!(bound(ns), expected);
        }
    }

    #[test]
    fn words_look_like_what_they_are() {
        for (value, expected) in [
            (0, "0"),
            (65535, "65535"),
            (0x10000, "0x10000"),
            (u64::MAX, "-1"),
            (0xffff_ffff, "-1"),
            (0xffff_ffff_ffff_f000, "-4096"),
            (0x7fff_1234_5678, "0x7fff12345678"),
        ] {
            assert_eq!(word(value), expected);
        }
    }
}
