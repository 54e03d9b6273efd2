//! Traced hits as lines: time, thread, call.

use super::number::{duration, word};
use super::table::printable;
use super::{Hit, Told};
use crate::spec::Kind;
use std::fmt::Write;
use trapless_session::outcome::{TypedValue, UsdtValue};

/// The line above the first hit.
pub(super) const HEADING: &str = "      TIME (s)      TID  CALL";

/// What stands before each frame of the call stack below a line.
pub(super) const BELOW: &str = "                                ";

/// One hit as `time tid module:function(args) = value <duration>`.
///
/// Entries without arguments show no parentheses, since nothing is known of them; returns show what was measured.
pub(super) fn line(hit: &Hit) -> String {
    let seconds = hit.time_ns / 1_000_000_000;
    let nanoseconds = hit.time_ns % 1_000_000_000;
    let name = printable(&hit.function);
    let mut line =
        format!("{seconds:>4}.{nanoseconds:09}  {:>7}  {}:{name}", hit.tid, printable(&hit.module));
    if let Some(arguments) = hit.typed.as_ref().and_then(|call| call.arguments.as_ref()) {
        let _ = write!(line, "({})", arguments.iter().map(typed).collect::<Vec<_>>().join(", "));
    }
    let mut values: Vec<String> = hit.args.iter().map(|&a| word(a)).collect();
    if let Some(told) = &hit.told {
        let of = |told: &Told| format!("{}={}", printable(&told.name), printable(&told.text));
        values.extend(told.arguments.iter().map(of));
    }
    if !values.is_empty() {
        let _ = write!(line, "({})", values.join(", "));
    }
    if let Some(values) = hit.usdt.as_ref().filter(|values| !values.is_empty()) {
        let values: Vec<String> = values.iter().map(usdt_value).collect();
        let _ = write!(line, "({})", values.join(", "));
    }
    if let Some(result) = hit.told.as_ref().and_then(|told| told.result.as_ref()) {
        let _ = write!(line, " = {}", printable(&result.text));
    }
    let result = hit.typed.as_ref().and_then(|call| call.result.as_ref());
    if let Some(result) = result {
        let _ = write!(line, " = {}", typed(result));
    }
    match hit.retval {
        Some(value) => line.push_str(&format!(" = {}", word(value))),
        None if result.is_some() => {}
        None if hit.kind == Kind::Return && hit.told.as_ref().is_none_or(|told| told.result.is_none()) => {
            line.push_str(" returns");
        }
        None => {}
    }
    if let Some(ns) = hit.duration_ns {
        line.push_str(&format!(" <{}>", duration(ns)));
    }
    line
}

/// A value as its type says. What is in a program's memory is no more to be trusted than its names are.
fn typed(value: &TypedValue) -> String {
    let text = value.text.as_ref().map_or_else(|_| "?".to_owned(), |text| printable(text));
    match &value.name {
        Some(name) => format!("{}: {text}", printable(name)),
        None => text,
    }
}

/// A note says whether a value has a sign, so nothing has to be guessed but what is an address.
fn usdt_value(value: &UsdtValue) -> String {
    match *value {
        UsdtValue::Signed(value) => value.to_string(),
        UsdtValue::Unsigned(value) if value >> 32 == 0 => value.to_string(),
        UsdtValue::Unsigned(value) => format!("{value:#x}"),
        UsdtValue::Unknown(_) => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_session::name::Source;

    #[test]
    fn a_line_says_what_is_known() {
        let hit = |kind, args: &[u64], retval, duration_ns| Hit {
            time_ns: 1_000_123_456,
            pid: 42,
            tid: 43,
            of_child: false,
            module: "libc.so.6".to_owned(),
            function: "open64".to_owned(),
            source: Source::default(),
            kind,
            args: args.to_vec(),
            usdt: None,
            retval,
            duration_ns,
            told: None,
            typed: None,
        };
        for (hit, expected) in [
            (hit(Kind::Entry, &[], None, None), "libc.so.6:open64"),
            (
                hit(Kind::Entry, &[0x7fff_1234_5678, 0, 438], None, None),
                "libc.so.6:open64(0x7fff12345678, 0, 438)",
            ),
            (
                hit(Kind::Return, &[0x7fff_1234_5678, 0], Some(0xffff_ffff), Some(12_345)),
                "libc.so.6:open64(0x7fff12345678, 0) = -1 <12.3µs>",
            ),
            (hit(Kind::Return, &[], None, Some(7)), "libc.so.6:open64 returns <7ns>"),
        ] {
            assert_eq!(line(&hit), format!("   1.000123456       43  {expected}"));
        }
    }

    #[test]
    fn the_heading_stands_above_the_columns() {
        assert_eq!(HEADING.find("TID").map(|i| i + 3), Some("   1.000123456       43".len()));
    }
}
