//! Values as people and programs read them.

use crate::cli::quick::Format;
use crate::report::{Datum, Told, word};
use std::fmt::Write;
use std::sync::Arc;
use trapless_script::output::{self, Resolver, Value};
use trapless_script::shape::Shape;

/// The value of bytes, as a key of rows.
pub(super) fn key(name: &Arc<str>, shape: &Shape, bytes: &[u8], resolver: &mut dyn Resolver) -> Told {
    if let Some(frames) = output::frames(shape, bytes, resolver) {
        let value = Datum::List(frames.iter().cloned().map(Datum::Text).collect());
        return Told { name: Arc::clone(name), value, text: String::new(), frames: Some(frames) };
    }
    let value = output::shown(shape, bytes, resolver);
    let text = match &value {
        Value::Unsigned(number) if is_wide(shape) => word(*number),
        value => String::from_utf8_lossy(&value.text()).into_owned(),
    };
    Told { name: Arc::clone(name), value: datum(shape, value), text, frames: None }
}

/// The value of bytes, as a line shows it. `is_word`: it is a word of the call, whose type nobody knows.
pub(super) fn shown(
    name: &Arc<str>,
    (shape, bytes): (&Shape, &[u8]),
    (format, is_word): (Format, bool),
    resolver: &mut dyn Resolver,
) -> Told {
    if let Some(frames) = output::frames(shape, bytes, resolver) {
        let value = Datum::List(frames.iter().cloned().map(Datum::Text).collect());
        return Told { name: Arc::clone(name), value, text: frames.join(" < "), frames: None };
    }
    let value = output::shown(shape, bytes, resolver);
    let text = match (format, integer(&value)) {
        (Format::Hexadecimal, Some(number)) => format!("{:#x}", cut(number, shape)),
        (Format::Decimal, Some(number)) if is_word => (number as i64).to_string(),
        (Format::Character, Some(number)) => character(number),
        (Format::Typed, Some(number)) if is_word => word(number),
        _ => quoted(&value),
    };
    Told { name: Arc::clone(name), value: datum(shape, value), text, frames: None }
}

/// Whether a key is a word that may be anything.
fn is_wide(shape: &Shape) -> bool {
    matches!(shape, Shape::Int { size: 8, signed: false })
}

fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Bool(value) => Some((*value).into()),
        Value::Int(value) => Some(*value as u64),
        Value::Unsigned(value) | Value::Named(_, value) => Some(*value),
        _ => None,
    }
}

/// The bits that a value of a shape has.
fn cut(number: u64, shape: &Shape) -> u64 {
    match shape.size() {
        size @ 1..=7 => number & ((1 << (8 * size)) - 1),
        _ => number,
    }
}

fn character(number: u64) -> String {
    match u8::try_from(number & 0xff) {
        Ok(byte) if byte.is_ascii() => format!("{:?}", char::from(byte)),
        _ => format!("'\\x{:02x}'", number & 0xff),
    }
}

/// A value with its texts in quotes.
fn quoted(value: &Value) -> String {
    match value {
        Value::Text(text) => {
            let mut out = String::from("\"");
            for c in String::from_utf8_lossy(text).chars() {
                match c {
                    '"' | '\\' => out.extend(['\\', c]),
                    '\n' => out.push_str("\\n"),
                    '\t' => out.push_str("\\t"),
                    c if c.is_control() => _ = write!(out, "\\x{:02x}", c as u32),
                    c => out.push(c),
                }
            }
            out.push('"');
            out
        }
        Value::Array(values) | Value::Tuple(values) => {
            let values: Vec<String> = values.iter().map(quoted).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Record(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!(".{name} = {}", quoted(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        other => String::from_utf8_lossy(&other.text()).into_owned(),
    }
}

fn datum(shape: &Shape, value: Value) -> Datum {
    let of = |value| datum(&Shape::None, value);
    match value {
        Value::None => Datum::Nothing,
        Value::Bool(value) => Datum::Bool(value),
        Value::Int(value) => Datum::Int(value),
        Value::Unsigned(value) => Datum::Unsigned(value),
        Value::Float(value) => Datum::Float(value),
        // Addresses are numbers, names of enums are names.
        Value::Named(_, number) if matches!(shape, Shape::Pointer(_)) => Datum::Unsigned(number),
        Value::Named(name, _) => Datum::Text(name),
        Value::Text(text) => Datum::Text(String::from_utf8_lossy(&text).into_owned()),
        buffer @ Value::Buffer(_) => Datum::Text(String::from_utf8_lossy(&buffer.text()).into_owned()),
        Value::Array(values) | Value::Tuple(values) => Datum::List(values.into_iter().map(of).collect()),
        Value::Record(fields) => {
            Datum::Fields(fields.into_iter().map(|(name, value)| (name, of(value))).collect())
        }
    }
}
