//! Finding the parts of a specification in text where names contain colons, operators and brackets themselves.

use super::Syntax;
use super::pattern::set_length;

/// Byte offset of the one-byte separator between module and function, or `None` when there is none.
pub(super) fn separator(text: &str, syntax: Syntax) -> Option<usize> {
    // The colon ahead of a line separates nothing else.
    let text = line(text).map_or(text, |end| &text[..end]);
    let candidates = candidates(text, syntax, Runs::Odd);
    let name = if is_path(text) { text.rfind('/').unwrap_or(0) } else { 0 };
    candidates.iter().find(|&&i| i >= name).or(candidates.first()).copied()
}

/// The parts of a USDT probe, each with its byte offset: every colon separates, as none belongs to a name. In a path, those in
/// directories do not.
pub(super) fn parts(text: &str, syntax: Syntax) -> Vec<(usize, &str)> {
    let mut colons = colons(text, syntax);
    if is_path(text) {
        let name = text.rfind('/').unwrap_or(0);
        if colons.iter().any(|&at| at > name) {
            colons.retain(|&at| at > name);
        }
    }
    let mut parts = Vec::with_capacity(colons.len() + 1);
    let mut start = 0;
    for end in colons.into_iter().chain([text.len()]) {
        parts.push((start, &text[start..end]));
        start = end + 1;
    }
    parts
}

/// Every colon outside sets and groups.
fn colons(text: &str, syntax: Syntax) -> Vec<usize> {
    let runs = candidates(text, syntax, Runs::All);
    runs.into_iter().filter(|&at| text.as_bytes()[at] == b':').collect()
}

fn is_path(text: &str) -> bool {
    text.starts_with(['/', '.', '~']) || text.starts_with("*/")
}

/// Where the file ends in what names a line: ahead of `:123` or `:123:7`. `None` for everything else.
pub(super) fn line(text: &str) -> Option<usize> {
    let number = |text: &str| {
        let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count();
        let end = text.len() - digits;
        let before = text[..end].strip_suffix(':').filter(|before| digits > 0 && !before.is_empty())?;
        // `::1` is a part of a name, and so is what a backslash stands before.
        (!before.ends_with([':', '\\'])).then_some(end - 1)
    };
    let last = number(text)?;
    // A column, where a file is left ahead of it.
    Some(number(&text[..last]).unwrap_or(last))
}

/// Which colons of several in a row separate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// The first one of an odd number: `::` belongs to names.
    Odd,
    /// All of them.
    All,
}

/// Every place where a separator could be: a `!`, or the first colon of an odd run of them, outside sets and groups.
fn candidates(text: &str, syntax: Syntax, runs: Runs) -> Vec<usize> {
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
                match runs {
                    _ if groups > 0 => {}
                    Runs::All => found.extend(at..at + length),
                    Runs::Odd if length % 2 == 1 => found.push(at),
                    Runs::Odd => {}
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
