//! Values as they are printed: what is left of bytes and shapes when names have been found.

use std::sync::Arc;

/// A value that can be printed.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer with a sign.
    Int(i64),
    /// An integer without one.
    Unsigned(u64),
    /// A float.
    Float(f64),
    /// Text, which may be no UTF-8.
    Text(Vec<u8>),
    /// Bytes.
    Buffer(Vec<u8>),
    /// Values of one kind.
    Array(Vec<Value>),
    /// Values side by side.
    Tuple(Vec<Value>),
    /// Values by name.
    Record(Vec<(Arc<str>, Value)>),
    /// A number with a name: an enum's value, an address, a limit of a histogram.
    Named(String, u64),
}

impl Value {
    /// As text.
    pub fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_text(&mut out);
        out
    }

    pub(crate) fn write_text(&self, out: &mut Vec<u8>) {
        match self {
            Value::None => out.extend(b"null"),
            Value::Bool(value) => out.extend(if *value { &b"true"[..] } else { b"false" }),
            Value::Int(value) => out.extend(value.to_string().bytes()),
            Value::Unsigned(value) => out.extend(value.to_string().bytes()),
            Value::Float(value) => out.extend(float_text(*value).bytes()),
            Value::Text(text) => out.extend(text),
            Value::Buffer(bytes) => write_buffer(out, bytes, BufferForm::Text),
            Value::Named(name, _) => out.extend(name.bytes()),
            Value::Array(values) => write_list(out, values, b"[", b",", b"]"),
            Value::Tuple(values) => write_list(out, values, b"(", b", ", b")"),
            Value::Record(fields) if fields.is_empty() => out.extend(b"{}"),
            Value::Record(fields) => {
                let mut between: &[u8] = b"{ ";
                for (name, value) in fields {
                    out.extend(between);
                    out.push(b'.');
                    out.extend(name.bytes());
                    out.extend(b" = ");
                    value.write_text(out);
                    between = b", ";
                }
                out.extend(b" }");
            }
        }
    }

    /// How many bytes of its text come first and alone: `printf` pads these to the field's width, as streams of C++ do.
    pub(crate) fn first_piece(&self) -> Option<usize> {
        match self {
            Value::Array(_) | Value::Tuple(_) => Some(1),
            Value::Record(_) => Some(2),
            _ => None,
        }
    }

    /// As an integer, its 64 bits; `None` if it is none.
    pub(crate) fn integer(&self) -> Option<u64> {
        match self {
            Value::Bool(value) => Some((*value).into()),
            Value::Int(value) => Some(*value as u64),
            Value::Unsigned(value) | Value::Named(_, value) => Some(*value),
            Value::Float(value) => Some(*value as i64 as u64),
            _ => None,
        }
    }

    /// As a double; `None` if it is no number.
    pub(crate) fn float(&self) -> Option<f64> {
        match self {
            Value::Bool(value) => Some(f64::from(u8::from(*value))),
            Value::Int(value) => Some(*value as f64),
            Value::Unsigned(value) | Value::Named(_, value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }
}

/// A double as the shortest text that reads back as it, with a point or an exponent.
pub(crate) fn float_text(value: f64) -> String {
    match value {
        _ if value.is_nan() => "nan".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        _ => format!("{value:?}"),
    }
}

fn write_list(out: &mut Vec<u8>, values: &[Value], open: &[u8], between: &[u8], close: &[u8]) {
    out.extend(open);
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.extend(between);
        }
        value.write_text(out);
    }
    out.extend(close);
}

/// How buffers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferForm {
    /// Printable characters as they are, all else as `\x00`.
    Text,
    /// All as `\x00`.
    Escaped,
    /// All as `00`, with blanks between.
    Hex,
}

pub(crate) fn write_buffer(out: &mut Vec<u8>, bytes: &[u8], form: BufferForm) {
    for (index, byte) in bytes.iter().enumerate() {
        match form {
            BufferForm::Text if (32..=126).contains(byte) => out.push(*byte),
            BufferForm::Text | BufferForm::Escaped => out.extend(format!("\\x{byte:02x}").bytes()),
            BufferForm::Hex => {
                let blank = if index + 1 < bytes.len() { " " } else { "" };
                out.extend(format!("{byte:02x}{blank}").bytes());
            }
        }
    }
}
