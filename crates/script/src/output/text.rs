//! Maps as text.

use super::map::{Cell, Cells, Printed};
use super::resolve::Resolver;
use super::value::Value;

/// Writes a map under its name: a line for each key, or a block where a value takes several lines.
pub(super) fn write_map(name: &str, map: &Printed, resolver: &mut dyn Resolver, out: &mut Vec<u8>) {
    match &map.cells {
        Cells::One(None) => {}
        Cells::One(Some(cell)) => write_cell(name.as_bytes(), cell, resolver, out),
        Cells::Keyed(entries) => {
            for (key, cell) in entries {
                let mut label = name.as_bytes().to_vec();
                label.push(b'[');
                label.extend(key_text(key));
                label.push(b']');
                write_cell(&label, cell, resolver, out);
            }
        }
    }
}

fn write_cell(label: &[u8], cell: &Cell, resolver: &mut dyn Resolver, out: &mut Vec<u8>) {
    out.extend(label);
    match cell {
        Cell::Value(value) | Cell::Statistics(value) => {
            out.extend(b": ");
            value.write_text(out);
        }
        Cell::Histogram(histogram) => {
            out.extend(b":\n");
            histogram.write_text(out);
        }
        Cell::Series(series) => {
            out.extend(b":\n");
            series.write_text(out, resolver);
        }
    }
    out.push(b'\n');
}

/// A key, without the parentheses of a tuple.
pub(super) fn key_text(key: &Value) -> Vec<u8> {
    let text = key.text();
    match (key, text.as_slice()) {
        (Value::Tuple(_), [b'(', inner @ .., b')']) => inner.to_vec(),
        _ => text,
    }
}
