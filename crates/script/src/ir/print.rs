//! A program as text, for people and for tests.
//!
//! ```text
//! map 0 @ = count
//! body 0 (16 bytes of scratch)
//!   l0 = map 0 get s[0] to s[8..16]
//!   if (l0 == 0)
//!     return
//! ```

use super::*;
use std::fmt::{self, Display, Formatter, Write};

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, map) in self.maps.iter().enumerate() {
            write!(f, "map {index} {}", map.name)?;
            if map.key > 0 {
                write!(f, "[{} bytes]", map.key)?;
            }
            match map.value {
                MapValue::Bytes(size) => write!(f, " = {size} bytes")?,
                MapValue::Aggregate(aggregation) => write!(f, " = {aggregation:?}")?,
            }
            match map.sharing {
                MapSharing::PerThread => f.write_str(", per thread")?,
                MapSharing::PerProcess(_) => f.write_str(", per process")?,
                MapSharing::Shared => {}
            }
            f.write_char('\n')?;
        }
        for (index, body) in self.bodies.iter().enumerate() {
            writeln!(f, "body {index}")?;
            write!(f, "{}", Lines { program: self, code: &body.code, indent: 1 })?;
        }
        Ok(())
    }
}

/// Statements, each on a line.
struct Lines<'a> {
    program: &'a Program,
    code: &'a [Statement],
    indent: usize,
}

impl Lines<'_> {
    fn inner<'b>(&'b self, code: &'b [Statement]) -> Lines<'b> {
        Lines { program: self.program, code, indent: self.indent + 1 }
    }

    fn constant(&self, id: ConstantId) -> String {
        let Some(bytes) = self.program.constants.get(id.0 as usize) else { return "?".to_owned() };
        let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        let shown = &bytes[..bytes.len() - zeros];
        let mut text = format!("\"{}\"", shown.escape_ascii());
        if zeros > 0 {
            text += &format!("+{zeros}");
        }
        text
    }

    fn place(&self, place: &Place) -> String {
        match place {
            Place::Scratch(at) => format!("s{at}"),
            Place::Indexed { offset, size, index } => {
                format!("s{offset}..{}[{}]", offset.saturating_add(*size), self.expression(index))
            }
            Place::Constant(id) => self.constant(*id),
            Place::IndexedConstant { of, index } => {
                format!("{}[{}]", self.constant(*of), self.expression(index))
            }
        }
    }

    fn expression(&self, value: &Expression) -> String {
        match value {
            Expression::Int(value) => value.to_string(),
            Expression::Float(value) => format!("{value:?}"),
            Expression::Local(local) => format!("l{}", local.0),
            Expression::Context(context) => match context {
                Context::Argument(number) => format!("arg{number}"),
                other => format!("{other:?}").to_lowercase(),
            },
            Expression::Load { from, as_ } => format!("{}:{}", self.place(from), width(*as_)),
            Expression::Unary(op, of) => format!("{op:?}({})", self.expression(of)),
            Expression::Binary(op, left, right) => {
                let (left, right) = (self.expression(left), self.expression(right));
                match symbol(*op) {
                    Some(symbol) => format!("({left} {symbol} {right})"),
                    None => format!("{op:?}({left}, {right})"),
                }
            }
            Expression::Select(condition, then, otherwise) => format!(
                "({} ? {} : {})",
                self.expression(condition),
                self.expression(then),
                self.expression(otherwise)
            ),
        }
    }

    fn part(&self, part: &Part) -> String {
        match part {
            Part::Word(value) => self.expression(value),
            Part::Bytes(place, size) => format!("{}({size})", self.place(place)),
            Part::Text { from, length, .. } => {
                format!("text {}({})", self.place(from), self.expression(length))
            }
        }
    }

    fn statement(&self, statement: &Statement) -> String {
        let into = |local: &Option<LocalId>| local.map_or(String::new(), |local| format!("l{} = ", local.0));
        let key = |place: &Place, map: &MapId| match self.program.maps.get(map.0 as usize) {
            Some(map) if map.key == 0 => String::new(),
            _ => format!("[{}]", self.place(place)),
        };
        match statement {
            Statement::Set(local, value) => format!("l{} = {}", local.0, self.expression(value)),
            Statement::If(condition, ..) => format!("if {}", self.expression(condition)),
            Statement::Loop(_) => "loop".to_owned(),
            Statement::Break => "break".to_owned(),
            Statement::Continue => "continue".to_owned(),
            Statement::Return => "return".to_owned(),
            Statement::Store { to, as_, value } => {
                format!("{}:{} = {}", self.place(to), width(*as_), self.expression(value))
            }
            Statement::Copy { to, from, size } => {
                format!("{}({size}) = {}", self.place(to), self.place(from))
            }
            Statement::Zero { to, size } => format!("{}({size}) = 0", self.place(to)),
            Statement::Read { into: local, from, as_, ok } => {
                format!("{}l{} = read:{} {}", into(ok), local.0, width(*as_), self.expression(from))
            }
            Statement::ReadBytes { to, size, from, length, ok } => format!(
                "{}{}({size}) = read {} of {}",
                into(ok),
                self.place(to),
                self.expression(length),
                self.expression(from)
            ),
            Statement::ReadString { to, size, from, most, length } => format!(
                "{}{}({size}) = read string of {}, at most {}",
                into(length),
                self.place(to),
                self.expression(from),
                self.expression(most)
            ),
            Statement::StringLength { into, of, size } => {
                format!("l{} = length of {}({size})", into.0, self.place(of))
            }
            Statement::Compare { into, left, right, size, most, strings } => {
                let most = most
                    .as_ref()
                    .map_or(String::new(), |most| format!(", at most {}", self.expression(most)));
                let what = if *strings { "strings" } else { "bytes" };
                format!(
                    "l{} = {what} {} differ from {} in {size}{most}",
                    into.0,
                    self.place(left),
                    self.place(right)
                )
            }
            Statement::Find { into, haystack, needle, .. } => {
                format!("l{} = {} in {}", into.0, self.place(needle), self.place(haystack))
            }
            Statement::MapGet { map, key: place, to, found } => {
                format!("{}{} = map {}{}", into(found), self.place(to), map.0, key(place, map))
            }
            Statement::MapSet { map, key: place, value, ok } => {
                format!("{}map {}{} = {}", into(ok), map.0, key(place, map), self.place(value))
            }
            Statement::MapAdd { map, key: place, amount, before } => {
                format!("{}map {}{} += {}", into(before), map.0, key(place, map), self.expression(amount))
            }
            Statement::MapDelete { map, key: place, found } => {
                format!("{}delete map {}{}", into(found), map.0, key(place, map))
            }
            Statement::MapHas { map, key: place, found } => {
                format!("l{} = has map {}{}", found.0, map.0, key(place, map))
            }
            Statement::MapLength { map, into } => format!("l{} = length of map {}", into.0, map.0),
            Statement::MapClear(map) => format!("clear map {}", map.0),
            Statement::MapZero(map) => format!("zero map {}", map.0),
            Statement::ForEach { map, key, value, .. } => {
                format!("for each of map {}: {}, {}", map.0, self.place(key), self.place(value))
            }
            Statement::Aggregate { map, key: place, value, weight } => {
                let times = weight
                    .as_ref()
                    .map_or(String::new(), |weight| format!(" times {}", self.expression(weight)));
                format!("aggregate map {}{} {}{times}", map.0, key(place, map), self.expression(value))
            }
            Statement::AggregateGet { map, key: place, to, found } => {
                format!("{}{} = words of map {}{}", into(found), self.place(to), map.0, key(place, map))
            }
            Statement::Stack { into, frames, .. } => format!("l{} = stack of {frames}", into.0),
            Statement::Operand { into: to, argument, ok } => {
                format!("{}l{} = operand {argument}", into(ok), to.0)
            }
            Statement::ProcessName { of, to } => {
                let of = match of {
                    Kin::Own => "process",
                    Kin::Parent => "parent",
                };
                format!("{}(16) = {of} name", self.place(to))
            }
            Statement::ThreadName { to } => format!("{}(16) = thread name", self.place(to)),
            Statement::Emit { message, parts } => {
                let parts: Vec<String> = parts.iter().map(|part| self.part(part)).collect();
                format!("emit {}({})", message.0, parts.join(", "))
            }
            Statement::Signal(number) => format!("signal {}", self.expression(number)),
            Statement::Delay(time) => format!("delay {}", self.expression(time)),
            Statement::Change(Change::Argument(number), value) => {
                format!("arg{number} = {}", self.expression(value))
            }
            Statement::Change(Change::Skip, value) => format!("skip {}", self.expression(value)),
            Statement::Change(Change::Errno(_), value) => format!("errno = {}", self.expression(value)),
            Statement::Change(Change::Result, value) => format!("override {}", self.expression(value)),
        }
    }
}

impl Display for Lines<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let indent = "  ".repeat(self.indent);
        for statement in self.code {
            writeln!(f, "{indent}{}", self.statement(statement))?;
            match statement {
                Statement::If(_, then, otherwise) => {
                    self.inner(then).fmt(f)?;
                    if !otherwise.is_empty() {
                        writeln!(f, "{indent}else")?;
                        self.inner(otherwise).fmt(f)?;
                    }
                }
                Statement::Loop(body) | Statement::ForEach { body, .. } => self.inner(body).fmt(f)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn width(width: Width) -> String {
    match width {
        Width::Unsigned(size) => format!("u{}", 8 * u32::from(size)),
        Width::Signed(size) => format!("i{}", 8 * u32::from(size)),
        Width::Float(size) => format!("f{}", 8 * u32::from(size)),
    }
}

fn symbol(op: Binary) -> Option<&'static str> {
    Some(match op {
        Binary::Add | Binary::FloatAdd => "+",
        Binary::Subtract | Binary::FloatSubtract => "-",
        Binary::Multiply | Binary::FloatMultiply => "*",
        Binary::FloatDivide | Binary::Divide => "/",
        Binary::Remainder => "%",
        Binary::And => "&",
        Binary::Or => "|",
        Binary::Xor => "^",
        Binary::ShiftLeft => "<<",
        Binary::ShiftRight => ">>>",
        Binary::SignedShiftRight => ">>",
        Binary::Equal | Binary::FloatEqual => "==",
        Binary::NotEqual | Binary::FloatNotEqual => "!=",
        Binary::Less | Binary::FloatLess => "<",
        Binary::LessOrEqual | Binary::FloatLessOrEqual => "<=",
        Binary::UnsignedLess => "<u",
        Binary::UnsignedLessOrEqual => "<=u",
        Binary::UnsignedDivide | Binary::UnsignedRemainder => return None,
    })
}
