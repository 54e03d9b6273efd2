//! JSON: an object a line.
//!
//! Blanks stand where bpftrace has them, since scripts look for its lines: behind `:` and `,` in objects, none in arrays.

use super::histogram::Histogram;
use super::map::{Cell, Cells, Kind, Printed};
use super::series::Series;
use super::text::key_text;
use super::time;
use super::value::Value;

/// Writes `{"type": kind, "data": text}`.
pub(super) fn write_text_line(kind: &str, text: &[u8], out: &mut Vec<u8>) {
    out.extend(format!(r#"{{"type": "{kind}", "data": "#).bytes());
    write_string(text, out);
    out.extend(b"}\n");
}

/// Writes a value that is printed by itself.
pub(super) fn write_value_line(cell: &Cell, out: &mut Vec<u8>) {
    out.extend(br#"{"type": "value", "data": "#);
    write_cell(cell, out);
    out.extend(b"}\n");
}

/// Writes a map, unless there is nothing in it to be told.
pub(super) fn write_map(name: &str, map: &Printed, out: &mut Vec<u8>) {
    let is_empty = match &map.cells {
        Cells::One(cell) => cell.is_none(),
        Cells::Keyed(entries) => entries.is_empty(),
    };
    if is_empty && map.kind != Kind::Statistics {
        return;
    }
    let kind = match map.kind {
        Kind::Values => "map",
        Kind::Statistics => "stats",
        Kind::Histograms => "hist",
        Kind::Series => "tseries",
    };
    out.extend(format!(r#"{{"type": "{kind}", "data": {{"#).bytes());
    write_string(name.as_bytes(), out);
    out.extend(b": ");
    match &map.cells {
        Cells::One(Some(cell)) => write_cell(cell, out),
        Cells::One(None) => out.extend(b"{}"),
        Cells::Keyed(entries) => {
            out.push(b'{');
            for (index, (key, cell)) in entries.iter().enumerate() {
                if index > 0 {
                    out.extend(b", ");
                }
                let mut key = key_text(key);
                key.retain(|byte| *byte != b' ');
                write_string(&key, out);
                out.extend(b": ");
                write_cell(cell, out);
            }
            out.push(b'}');
        }
    }
    out.extend(b"}}\n");
}

fn write_cell(cell: &Cell, out: &mut Vec<u8>) {
    match cell {
        Cell::Value(value) | Cell::Statistics(value) => write_value(value, out),
        Cell::Histogram(histogram) => write_histogram(histogram, out),
        Cell::Series(series) => write_series(series, out),
    }
}

fn write_histogram(histogram: &Histogram, out: &mut Vec<u8>) {
    let rows: Vec<String> = histogram
        .buckets()
        .map(|(first, last, count)| {
            let mut row = String::from("{");
            if let Some(first) = first {
                let mut number = Vec::new();
                write_value(first, &mut number);
                row.push_str(&format!(r#""min": {}, "#, String::from_utf8_lossy(&number)));
            }
            if let Some(last) = last {
                let mut number = Vec::new();
                write_value(&Value::Int(last), &mut number);
                row.push_str(&format!(r#""max": {}, "#, String::from_utf8_lossy(&number)));
            }
            row.push_str(&format!(r#""count": {count}}}"#));
            row
        })
        .collect();
    out.extend(format!("[{}]", rows.join(",")).bytes());
}

fn write_series(series: &Series, out: &mut Vec<u8>) {
    let points = series.points.iter().filter_map(|(start, value)| Some((*start, (*value)?)));
    let points: Vec<String> = points
        .map(|(start, value)| {
            let value = String::from_utf8_lossy(&value.value().text()).into_owned();
            format!(r#"{{"interval_start":"{}","value":{value}}}"#, time::utc(start))
        })
        .collect();
    out.extend(format!("[{}]", points.join(",")).bytes());
}

pub(super) fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::None => out.extend(b"null"),
        Value::Bool(_) => value.write_text(out),
        Value::Int(number) => write_number(i128::from(*number), (*number as f64) as i128, out),
        Value::Unsigned(number) | Value::Named(_, number) => {
            write_number(i128::from(*number), (*number as f64) as i128, out);
        }
        // JSON has no such numbers.
        Value::Float(number) if !number.is_finite() => out.extend(b"null"),
        Value::Float(_) => value.write_text(out),
        Value::Text(text) => write_string(text, out),
        Value::Buffer(bytes) => {
            let bytes: Vec<String> = bytes.iter().map(|byte| (*byte as i8).to_string()).collect();
            out.extend(format!("[{}]", bytes.join(",")).bytes());
        }
        Value::Array(values) | Value::Tuple(values) => {
            out.push(b'[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_value(value, out);
            }
            out.push(b']');
        }
        Value::Record(fields) => {
            out.push(b'{');
            for (index, (name, value)) in fields.iter().enumerate() {
                if index > 0 {
                    out.extend(b", ");
                }
                write_string(name.as_bytes(), out);
                out.extend(b": ");
                write_value(value, out);
            }
            out.push(b'}');
        }
    }
}

/// Numbers that a double does not hold are written as strings, for readers that have nothing else.
fn write_number(number: i128, as_double: i128, out: &mut Vec<u8>) {
    match number == as_double {
        true => out.extend(number.to_string().bytes()),
        false => out.extend(format!("\"{number}\"").bytes()),
    }
}

/// Bytes that are no UTF-8 become U+FFFD, so that each line is JSON.
pub(super) fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for letter in String::from_utf8_lossy(text).chars() {
        match letter {
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            '\0'..='\x1f' => out.extend(format!("\\u{:04x}", letter as u32).bytes()),
            _ => out.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out.push(b'"');
}
