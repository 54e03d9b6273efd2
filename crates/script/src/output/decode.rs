//! From bytes to values, by their shape.

use super::resolve::{Resolver, Symbol};
use super::time;
use super::value::Value;
use crate::shape::{Bits, EnumNames, Field, Shape, StackMode};
use std::net::{Ipv4Addr, Ipv6Addr};

/// How deep shapes are looked into. The checker makes none that are deeper.
const DEEPEST: u32 = 64;

/// Makes values of bytes.
pub(super) struct Decoder<'a> {
    pub(super) resolver: &'a mut dyn Resolver,
    /// What is put behind strings that were cut.
    pub(super) trailer: &'a str,
    /// What integers are divided by. Not 0.
    pub(super) divisor: u32,
}

/// The first bytes as an integer, extended with zeros, or by the sign of the highest bit.
fn integer(bytes: &[u8], size: u8, signed: bool) -> u64 {
    let size = usize::from(size.min(8));
    let mut word = [0; 8];
    word.iter_mut().zip(bytes.iter().take(size)).for_each(|(to, from)| *to = *from);
    let word = u64::from_le_bytes(word);
    let above = 64 - 8 * size as u32;
    match signed && above < 64 {
        true => (((word << above) as i64) >> above) as u64,
        false => word,
    }
}

fn slice(bytes: &[u8], offset: u32, size: u32) -> &[u8] {
    let (offset, size) = (offset as usize, size as usize);
    bytes.get(offset..).map(|rest| &rest[..size.min(rest.len())]).unwrap_or_default()
}

impl Decoder<'_> {
    /// The value of bytes. Bytes that are missing count as 0.
    pub(super) fn value(&mut self, shape: &Shape, bytes: &[u8]) -> Value {
        self.at_depth(shape, bytes, 0)
    }

    fn at_depth(&mut self, shape: &Shape, bytes: &[u8], depth: u32) -> Value {
        if depth > DEEPEST {
            return Value::None;
        }
        let word = |offset: u32| integer(slice(bytes, offset, 8), 8, false);
        let pid = |offset: u32| integer(slice(bytes, offset, 4), 4, false) as u32;
        match shape {
            Shape::None => Value::None,
            Shape::Bool => Value::Bool(bytes.first().is_some_and(|byte| *byte != 0)),
            Shape::Int { size, signed } => self.number(integer(bytes, *size, *signed), *signed),
            Shape::Float(4) => {
                let value = f32::from_bits(integer(bytes, 4, false) as u32);
                Value::Float(f64::from(value) / f64::from(self.divisor))
            }
            Shape::Float(_) => Value::Float(f64::from_bits(word(0)) / f64::from(self.divisor)),
            Shape::Text { room } => Value::Text(self.string(bytes, *room)),
            Shape::Characters { count } => {
                let text = slice(bytes, 0, *count).iter().take_while(|byte| **byte != 0);
                Value::Text(text.copied().collect())
            }
            Shape::Buffer { room } => {
                let length = (integer(bytes, 4, false) as u32).min(*room);
                Value::Buffer(slice(bytes, 4, length).to_vec())
            }
            Shape::Pointer(size) => {
                let address = integer(bytes, *size, false);
                Value::Named(format!("{address:#x}"), address)
            }
            Shape::Enum { size, names, .. } => named(integer(bytes, *size, false), *size, names),
            Shape::Tuple(fields) => {
                let of = |field: &Field| self.field(field, bytes, depth);
                Value::Tuple(fields.fields.iter().map(of).collect())
            }
            Shape::Record(fields) => {
                let of = |field: &Field| (field.name.clone(), self.field(field, bytes, depth));
                Value::Record(fields.fields.iter().map(of).collect())
            }
            Shape::Array { count, of } => {
                let size = of.size();
                // No more than there are bytes for; of elements without bytes, none.
                let there = if size == 0 { 0 } else { (bytes.len() as u32).div_ceil(size).min(*count) };
                let at = |index: u32| slice(bytes, index * size, size);
                Value::Array((0..there).map(|index| self.at_depth(of, at(index), depth + 1)).collect())
            }
            Shape::Stack { mode, frames } => {
                Value::Text(self.stack(word(0), pid(8), *mode, *frames).into_bytes())
            }
            Shape::Symbol => {
                let symbol = self.resolver.symbols(pid(8), word(0)).pop();
                Value::Text(symbol.map_or_else(|| address(word(0)), |symbol| symbol.name).into_bytes())
            }
            Shape::Time { format, clock } => {
                let start = self.resolver.clock_start(*clock);
                let time = (word(0) as i64).wrapping_add(start);
                Value::Text(time::stamp(format, time, self.resolver).into_bytes())
            }
            Shape::Inet => Value::Text(inet(integer(bytes, 4, false), slice(bytes, 4, 16)).into_bytes()),
            Shape::Mac => {
                let bytes: Vec<String> =
                    (0..6).map(|index| format!("{:02X}", bytes.get(index).copied().unwrap_or(0))).collect();
                Value::Text(bytes.join(":").into_bytes())
            }
            Shape::Probe => Value::Text(self.resolver.probe(word(0)).into_bytes()),
            Shape::Function => Value::Text(self.resolver.function(word(0)).into_bytes()),
            Shape::User => Value::Text(self.resolver.user(word(0)).unwrap_or_default().into_bytes()),
            Shape::Error => Value::Text(error_text(word(0) as i64).into_bytes()),
            Shape::Cgroup => Value::Text(self.resolver.cgroup(word(0)).unwrap_or_default().into_bytes()),
        }
    }

    pub(super) fn number(&self, word: u64, signed: bool) -> Value {
        match signed {
            true => Value::Int(word as i64 / i64::from(self.divisor)),
            false => Value::Unsigned(word / u64::from(self.divisor)),
        }
    }

    fn field(&mut self, field: &Field, bytes: &[u8], depth: u32) -> Value {
        let bytes = slice(bytes, field.offset, field.shape.size());
        match field.bits {
            None => self.at_depth(&field.shape, bytes, depth + 1),
            Some(Bits { first, count }) => {
                let word = integer(bytes, 8, false) >> first.min(63);
                let above = 64 - u32::from(count.clamp(1, 64));
                let word = match field.shape {
                    Shape::Int { signed: true, .. } => (((word << above) as i64) >> above) as u64,
                    _ => (word << above) >> above,
                };
                self.at_depth(&field.shape, &word.to_le_bytes(), depth + 1)
            }
        }
    }

    /// A string that fills all of its room was cut.
    fn string(&self, bytes: &[u8], room: u32) -> Vec<u8> {
        let bytes = slice(bytes, 0, room);
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let mut text = bytes[..length].to_vec();
        if length == room as usize {
            text.extend(self.trailer.bytes());
        }
        text
    }

    fn stack(&mut self, number: u64, pid: u32, mode: StackMode, frames: u8) -> String {
        let mut text = String::from("\n");
        for (index, at) in self.resolver.stack(number).into_iter().take(frames.into()).enumerate() {
            match mode {
                StackMode::Raw => text.push_str(&format!("{at:x}\n")),
                StackMode::BuildId => match self.resolver.build_id(pid, at) {
                    Some((id, offset)) => {
                        text.extend(id.iter().map(|byte| format!("{byte:02x}")));
                        text.push_str(&format!(" 0x{offset:02x}\n"));
                    }
                    None => text.push_str(&format!("{at:x}\n")),
                },
                StackMode::Bpftrace => {
                    for frame in self.frames(pid, (index, at), bpftrace_frame, "") {
                        text.push_str(&format!("        {frame}\n"));
                    }
                }
                StackMode::Perf => {
                    for frame in self.frames(pid, (index, at), perf_frame, " ([unknown])") {
                        text.push_str(&format!("\t{at:x} {frame}\n"));
                    }
                }
            }
        }
        text
    }

    /// The functions of a stack, the outermost first, each as a frame of a folded line.
    pub(super) fn folded(&mut self, bytes: &[u8], most: u8) -> Vec<Vec<u8>> {
        let (number, pid) = (integer(bytes, 8, false), integer(slice(bytes, 8, 4), 4, false) as u32);
        let mut frames = Vec::new();
        for (index, at) in self.resolver.stack(number).into_iter().take(most.into()).enumerate() {
            let symbols = match index {
                0 => self.resolver.symbols(pid, at),
                _ => self.resolver.caller(pid, at),
            };
            match symbols.is_empty() {
                true => frames.push(address(at).into_bytes()),
                false => {
                    frames.extend(symbols.iter().map(|symbol| super::folded::clean(symbol.name.as_bytes())))
                }
            }
        }
        frames.reverse();
        frames
    }

    fn frames(
        &mut self,
        pid: u32,
        (index, at): (usize, u64),
        form: fn(&Symbol) -> String,
        unknown: &str,
    ) -> Vec<String> {
        let symbols = match index {
            0 => self.resolver.symbols(pid, at),
            _ => self.resolver.caller(pid, at),
        };
        match symbols.is_empty() {
            true => vec![format!("{}{unknown}", address(at))],
            false => symbols.iter().map(form).collect(),
        }
    }
}

fn bpftrace_frame(symbol: &Symbol) -> String {
    let Symbol { name, offset, line, is_inlined, .. } = symbol;
    let line = line.as_ref().map(|line| format!("@{line}")).unwrap_or_default();
    match is_inlined {
        true => format!("[inlined] {name}{line}"),
        false => format!("{name}+{offset}{line}"),
    }
}

fn perf_frame(symbol: &Symbol) -> String {
    let Symbol { name, offset, module, is_inlined, .. } = symbol;
    match (module, is_inlined) {
        (_, true) => format!("{name} (inlined)"),
        (Some(module), false) => format!("{name}+{offset} ({module})"),
        (None, false) => format!("{name}+{offset} ([unknown])"),
    }
}

/// An address as C++ prints one.
fn address(address: u64) -> String {
    match address {
        0 => "0".into(),
        other => format!("{other:#x}"),
    }
}

/// A value of an enum: its name, else its number, which is unsigned.
fn named(number: u64, size: u8, names: &EnumNames) -> Value {
    let name = names.values.iter().find(|(value, _)| integer(&value.to_le_bytes(), size, false) == number);
    Value::Named(name.map_or_else(|| number.to_string(), |(_, name)| name.to_string()), number)
}

/// An internet address in the form of `inet_ntop`; nothing if the family is neither.
fn inet(family: u64, address: &[u8]) -> String {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(address).for_each(|(to, from)| *to = *from);
    let [a, b, c, d, ..] = bytes;
    match family {
        2 => Ipv4Addr::new(a, b, c, d).to_string(),
        10 => match bytes {
            // An IPv4 address in the last four bytes is written as one.
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] if a != 0 || b != 0 => {
                format!("::{}", Ipv4Addr::new(a, b, c, d))
            }
            _ => Ipv6Addr::from(bytes).to_string(),
        },
        _ => String::new(),
    }
}

/// What an error's number means, in the system's words.
pub(super) fn error_text(number: i64) -> String {
    let Ok(number) = i32::try_from(number) else {
        return format!("Unknown error {number}");
    };
    let text = std::io::Error::from_raw_os_error(number).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
