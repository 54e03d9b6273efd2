//! Maps whose keys are call stacks as lines for flame graphs: functions from the outermost to the innermost, joined by `;`, then a blank and the
//! number.
//!
//! A key may have other parts beside its stack. Those in front of it stand in front of the line, as its outermost frames; those behind it at its end.

use super::decode::Decoder;
use super::map::{Cell, Entries, Kind, cell};
use crate::message::{MapPrint, ValuePrint};
use crate::shape::Shape;

/// Whether a map can be printed so: it is keyed by a stack, and its values are numbers.
pub(super) fn is_folded(map: &MapPrint) -> bool {
    let has_stack = map.key.as_ref().is_some_and(|key| match &key.shape {
        Shape::Stack { .. } => true,
        Shape::Tuple(fields) => fields.fields.iter().any(|field| matches!(field.shape, Shape::Stack { .. })),
        _ => false,
    });
    let is_number = match &map.value {
        ValuePrint::Plain(shape) => matches!(shape, Shape::Int { .. }),
        ValuePrint::Aggregate { .. } => map.value.kind() == Kind::Values,
    };
    has_stack && is_number
}

/// One line for each entry.
pub(super) fn write_map(map: &MapPrint, entries: Entries, decoder: &mut Decoder<'_>, out: &mut Vec<u8>) {
    let Some(key) = &map.key else { return };
    let mut lines: Vec<Vec<u8>> = Vec::new();
    for (bytes, value) in entries {
        let mut frames = Vec::new();
        match &key.shape {
            Shape::Tuple(fields) => {
                for field in &fields.fields {
                    let from = (field.offset as usize).min(bytes.len());
                    add(&field.shape, &bytes[from..], decoder, &mut frames);
                }
            }
            shape => add(shape, &bytes, decoder, &mut frames),
        }
        let mut line = frames.join(&b';');
        line.push(b' ');
        if let Cell::Value(value) = cell(&map.value, &value, 0, decoder) {
            value.write_text(&mut line);
        }
        line.push(b'\n');
        lines.push(line);
    }
    lines.sort();
    lines.into_iter().for_each(|line| out.extend(line));
}

/// Adds the frames of a stack, or another value as one frame.
fn add(shape: &Shape, bytes: &[u8], decoder: &mut Decoder<'_>, frames: &mut Vec<Vec<u8>>) {
    let text = match shape {
        Shape::Stack { frames: most, .. } => return frames.extend(decoder.folded(bytes, *most)),
        shape => {
            let divisor = std::mem::replace(&mut decoder.divisor, 1);
            let text = decoder.value(shape, bytes).text();
            decoder.divisor = divisor;
            text
        }
    };
    frames.push(clean(&text));
}

/// A frame's name, in which nothing separates: lines are split at their last blank and at each `;`.
pub(super) fn clean(name: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| match byte {
        b';' => b':',
        b'\n' => b' ',
        other => *other,
    };
    name.iter().map(plain).collect()
}
