//! Finding the parts of a specification in text where names contain colons, operators and brackets themselves.

use super::Syntax;
use super::pattern::set_length;

/// Byte offset of the one-byte separator between module and function, or `None` when there is none.
pub(super) fn separator(text: &str, syntax: Syntax) -> Option<usize> {
    let candidates = candidates(text, syntax);
    let path = text.starts_with(['/', '.', '~']) || text.starts_with("*/");
    let name = if path { text.rfind('/').unwrap_or(0) } else { 0 };
    candidates.iter().find(|&&i| i >= name).or(candidates.first()).copied()
}

/// Every place where a separator could be: a `!`, or the first colon of an odd run of them, outside sets and groups.
fn candidates(text: &str, syntax: Syntax) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut groups = 0u32;
    let mut at = 0;
    while at < bytes.len() {
        let mut length = 1;
        match bytes[at] {
            b'\\' => length = 2,
            // Names such as `f[abi:cxx11]` and sets such as `[!a]`.
            b'[' => length = set_length(text.get(at..).unwrap_or_default()).unwrap_or(1),
            b'(' if syntax == Syntax::Regex => groups += 1,
            b')' if syntax == Syntax::Regex => groups = groups.saturating_sub(1),
            b'!' if groups == 0 => found.push(at),
            b':' => {
                length = bytes[at..].iter().take_while(|&&b| b == b':').count();
                if length % 2 == 1 && groups == 0 {
                    found.push(at);
                }
            }
            _ => {}
        }
        at += length;
    }
    found
}

/// `text` as a hexadecimal number, when it starts like one.
pub(super) fn number(text: &str) -> Option<Result<u64, String>> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    Some(hexadecimal(digits))
}

/// A function's name and the offset behind it: `malloc+0x14`, `malloc+20`. `operator+` has none.
///
/// # Errors
/// The byte offset of a number that is none, and what is wrong with it.
pub(super) fn offset(text: &str) -> Result<(&str, u64), (usize, String)> {
    let Some(plus) = text.rfind('+') else { return Ok((text, 0)) };
    let (name, digits) = (&text[..plus], &text[plus + 1..]);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok((text, 0));
    }
    let value = match number(digits) {
        Some(value) => value,
        None => digits.parse().map_err(|_| format!("'{digits}' is not an offset; write +0x14 or +20")),
    };
    Ok((name, value.map_err(|what| (plus + 1, what))?))
}

fn hexadecimal(digits: &str) -> Result<u64, String> {
    // `from_str_radix` alone would take a sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(format!("'0x{digits}' is not a hexadecimal number"));
    }
    u64::from_str_radix(digits, 16).map_err(|_| format!("0x{digits} does not fit in 64 bits"))
}
