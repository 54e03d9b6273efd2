//! Single values of flags.

use std::time::Duration;

/// The longest time that can be given: a century. Clocks and waits add to it without overflow.
const LONGEST: f64 = 100.0 * 365.25 * 86_400.0;

/// A time above zero: `10`, `0.5`, `10s`, `500ms`, `2m`, `1h`. Without a unit it is seconds.
///
/// # Errors
/// What is wrong, to follow clap's "invalid value '…' for '…':".
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let with_unit = units.iter().find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = with_unit.unwrap_or((text, 1.0));
    // `parse` alone would take "inf", "nan" and "1e9".
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err("write seconds, such as 10 or 0.5, or a number with ms, s, m or h".to_owned());
    }
    let seconds: f64 = number.parse::<f64>().map_err(|_| "not a number".to_owned())? * factor;
    match seconds {
        s if s <= 0.0 => Err("must be above 0".to_owned()),
        s if s > LONGEST => Err("longer than a century".to_owned()),
        s => Ok(Duration::from_secs_f64(s).max(Duration::from_millis(1))),
    }
}

/// Nanoseconds of a time with its unit: `500ns`, `20us`, `1ms`, `1.5s`.
///
/// # Errors
/// What is wrong, to follow clap's "invalid value '…' for '…':".
pub fn nanoseconds(text: &str) -> Result<u64, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    let with_unit = units.iter().find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let wrong = || "write a time with its unit: ns, us, ms, s, m or h, such as 1ms".to_owned();
    let (number, factor) = with_unit.ok_or_else(wrong)?;
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    match number.parse::<f64>().map_err(|_| wrong())? * factor {
        ns if ns < 1.0 => Err("must be above 0".to_owned()),
        ns if ns > LONGEST * 1e9 => Err("longer than a century".to_owned()),
        ns => Ok(ns as u64),
    }
}

/// A process number, 1 or above.
///
/// # Errors
/// What is wrong, to follow clap's "invalid value '…' for '…':".
pub fn pid(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(_) => Err("process numbers start at 1".to_owned()),
        Err(_) => Err(format!("not a process number; find it with: pgrep '{text}'")),
    }
}

/// A user's name or id.
///
/// # Errors
/// What is wrong, to follow clap's "invalid value '…' for '…':".
pub fn user(text: &str) -> Result<u32, String> {
    crate::whoever::user_id(text)
}

/// A count of at least 1.
///
/// # Errors
/// What is wrong, to follow clap's "invalid value '…' for '…':".
pub fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("not a whole number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_optional_units() {
        for (text, milliseconds) in [
            ("10", 10_000),
            ("0.5", 500),
            ("10s", 10_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0.0001", 1),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "0", "-1", "inf", "NaN", "1e3", "ten", ".", "1d", "s", "99999999999999999999"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn short_times_have_units() {
        for (text, expected) in
            [("500ns", 500), ("20us", 20_000), ("1µs", 1000), ("1.5ms", 1_500_000), ("2s", 2_000_000_000)]
        {
            assert_eq!(nanoseconds(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "ms", "-1ms", "0ns", "1e3s", "99999999999999h"] {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn process_numbers_are_positive() {
        assert_eq!(pid("4242"), Ok(4242));
        for text in ["0", "-1", "", "redis", "99999999999"] {
            assert!(pid(text).is_err(), "{text}");
        }
    }
}
