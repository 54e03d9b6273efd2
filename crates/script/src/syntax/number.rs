//! Integers as scripts write them: decimal, `0x`, `0b`, a leading 0 for octal, `_` between digits, `1e6`, the
//! suffixes of C and units of time.

/// Why a text is no integer. The texts are bpftrace's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// No digit at the start.
    #[error("invalid integer: {0}")]
    NoDigits(String),
    /// Something behind the number that is no suffix.
    #[error("invalid trailing bytes: {0}")]
    Trailing(String),
    /// `12e4`: bpftrace takes one digit before the exponent.
    #[error("coefficient part of scientific literal must be 1-9: {0}")]
    Coefficient(String),
    /// The value is above what its type holds.
    #[error("overflow error, maximum value is {maximum}: {text}")]
    Overflow {
        /// What the type holds.
        maximum: u64,
        /// What was written.
        text: String,
    },
}

/// Reads an integer.
///
/// ```
/// use trapless_script::syntax::number::parse;
///
/// assert_eq!(parse("1_000"), Ok(1000));
/// assert_eq!(parse("0xff"), Ok(255));
/// assert_eq!(parse("1e6"), Ok(1_000_000));
/// assert_eq!(parse("5ms"), Ok(5_000_000));
/// ```
///
/// # Errors
/// See [`NumberError`].
pub fn parse(text: &str) -> Result<u64, NumberError> {
    let digits: String = text.chars().filter(|&c| c != '_').collect();
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'0'..=b'7', ..] => (8, &digits[1..]),
        _ => (10, digits.as_str()),
    };
    let overflow = |maximum| NumberError::Overflow { maximum, text: text.to_string() };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    if end == 0 {
        return Err(NumberError::NoDigits(text.to_string()));
    }
    // The only way for digits to fail is by their count.
    let mut value = u64::from_str_radix(&digits[..end], radix).map_err(|_| overflow(u64::MAX))?;
    let mut rest = &digits[end..];
    if let [b'e' | b'E', b'1'..=b'9', ..] = rest.as_bytes() {
        if !(1..10).contains(&value) {
            return Err(NumberError::Coefficient(text.to_string()));
        }
        let length = rest[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - 1);
        let exponent = rest[1..1 + length].parse().ok().filter(|&exponent: &u32| exponent < 20);
        let factor = exponent.and_then(|exponent| 10_u64.checked_pow(exponent));
        value = factor.and_then(|factor| value.checked_mul(factor)).ok_or_else(|| overflow(u64::MAX))?;
        rest = &rest[1 + length..];
    }
    let (maximum, factor) = match rest {
        "" | "ul" | "ull" | "ns" => (u64::MAX, 1),
        "u" => (u64::from(u32::MAX), 1),
        "l" | "ll" => (i64::MAX as u64, 1),
        "us" => (u64::MAX, 1000),
        "ms" => (u64::MAX, 1_000_000),
        "s" => (u64::MAX, 1_000_000_000),
        "m" => (u64::MAX, 60 * 1_000_000_000),
        "h" => (u64::MAX, 3600 * 1_000_000_000),
        "d" => (u64::MAX, 86_400 * 1_000_000_000),
        _ => return Err(NumberError::Trailing(text.to_string())),
    };
    value.checked_mul(factor).filter(|&value| value <= maximum).ok_or_else(|| overflow(maximum))
}

/// Reads an integer of a script, which may also be a size: `64k`, `1M`, `2G`, in powers of 1,024.
///
/// bpftrace has no sizes. Units of time are lower case there, so that none of them is a size.
///
/// # Errors
/// See [`NumberError`].
pub fn parse_literal(text: &str) -> Result<u64, NumberError> {
    let (digits, shift) = match text.as_bytes() {
        [.., b'k'] => (&text[..text.len() - 1], 10),
        [.., b'M'] => (&text[..text.len() - 1], 20),
        [.., b'G'] => (&text[..text.len() - 1], 30),
        _ => return parse(text),
    };
    let value = parse(digits)?;
    let overflow = || NumberError::Overflow { maximum: u64::MAX, text: text.to_string() };
    value.checked_mul(1 << shift).ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_these_values() {
        let table = [
            ("0", 0),
            ("7", 7),
            ("017", 15),
            ("08", 8),
            ("0b101", 5),
            ("0XFf", 255),
            ("1__0", 10),
            ("9e2", 900),
            ("1e1_0", 10_000_000_000),
            ("4294967295u", 4_294_967_295),
            ("18446744073709551615", u64::MAX),
            ("18446744073709551615ull", u64::MAX),
            ("9223372036854775807l", i64::MAX as u64),
            ("3ns", 3),
            ("3us", 3000),
            ("3ms", 3_000_000),
            ("3s", 3_000_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
            ("1e1s", 10_000_000_000),
        ];
        for (text, value) in table {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn sizes_are_for_literals_only() {
        for (text, value) in
            [("64k", 65536), ("1_0M", 10 << 20), ("3G", 3 << 30), ("5ms", 5_000_000), ("7", 7)]
        {
            assert_eq!(parse_literal(text), Ok(value), "{text}");
        }
        assert!(parse("64k").is_err());
        assert!(matches!(parse_literal("18446744073709551615k"), Err(NumberError::Overflow { .. })));
    }

    #[test]
    fn what_is_no_number_is_told() {
        let table = [
            ("", "invalid integer: "),
            ("nan", "invalid integer: nan"),
            ("0x", "invalid integer: 0x"),
            ("1b", "invalid trailing bytes: 1b"),
            ("5e", "invalid trailing bytes: 5e"),
            ("1e0", "invalid trailing bytes: 1e0"),
            ("1 ", "invalid trailing bytes: 1 "),
            ("12e4", "coefficient part of scientific literal must be 1-9: 12e4"),
            ("0e4", "coefficient part of scientific literal must be 1-9: 0e4"),
            ("1e20", "overflow error, maximum value is 18446744073709551615: 1e20"),
            ("1e99999999999", "overflow error, maximum value is 18446744073709551615: 1e99999999999"),
            (
                "18446744073709551616",
                "overflow error, maximum value is 18446744073709551615: 18446744073709551616",
            ),
            ("4294967296u", "overflow error, maximum value is 4294967295: 4294967296u"),
            ("999999999d", "overflow error, maximum value is 18446744073709551615: 999999999d"),
        ];
        for (text, told) in table {
            assert_eq!(parse(text).unwrap_err().to_string(), told, "{text}");
        }
    }
}
