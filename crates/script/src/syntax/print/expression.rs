//! Expressions and types as text.

use super::Printer;
use crate::syntax::ast::{
    Access, Expr, ExprKind, Place, PlaceKind, Step, StepOrder, TypeOf, TypeOfKind, UnaryOp,
};

/// How strongly prefixes bind: more than every operator with two sides.
pub(super) const UNARY: u8 = 11;
/// How strongly fields and indices bind.
const POSTFIX: u8 = 12;
/// What never needs parentheses.
const PRIMARY: u8 = 13;

impl Printer<'_> {
    /// An expression, in parentheses if it binds less strongly than `minimum`.
    pub(super) fn expression(&mut self, expr: &Expr, minimum: u8) -> String {
        let (text, strength) = self.unparenthesized(expr);
        if strength < minimum { format!("({text})") } else { text }
    }

    fn unparenthesized(&mut self, expr: &Expr) -> (String, u8) {
        let text = match &expr.kind {
            ExprKind::Integer(integer) => integer.text.clone(),
            ExprKind::Float(float) => float.text.clone(),
            ExprKind::Boolean(value) => value.to_string(),
            ExprKind::String(bytes) => string(bytes),
            ExprKind::Positional(number) => format!("${number}"),
            ExprKind::PositionalCount => "$#".to_string(),
            ExprKind::Identifier(name) | ExprKind::Builtin(name) => name.clone(),
            ExprKind::Call { name, arguments } => format!("{}({})", name.text, self.list(arguments)),
            ExprKind::TypeArg(of) => format!("typeof({})", self.type_operand(of)),
            ExprKind::Sizeof(of) => format!("sizeof({})", self.type_operand(of)),
            ExprKind::Typeinfo(of) => format!("typeinfo({})", self.type_operand(of)),
            ExprKind::Offsetof { of, fields } => {
                let fields: Vec<&str> = fields.iter().map(|field| field.text.as_str()).collect();
                format!("offsetof({}, {})", self.type_operand(of), fields.join("."))
            }
            ExprKind::Variable(name) => format!("${name}"),
            ExprKind::Map(name) => format!("@{name}"),
            ExprKind::MapElement { map, key } => self.element(&map.text, key),
            ExprKind::VariableAddress(name) => return (format!("&${}", name.text), UNARY),
            ExprKind::MapAddress(name) => return (format!("&@{}", name.text), UNARY),
            ExprKind::Binary { op, left, right } => {
                let strength = op.precedence();
                let left = self.expression(left, strength);
                let mut right = self.expression(right, strength + 1);
                // A slash before a brace would end a predicate.
                if right.starts_with('{') {
                    right = format!("({right})");
                }
                return (format!("{left} {} {right}", op.symbol()), strength);
            }
            ExprKind::Unary { op, operand } => {
                let mut operand = self.expression(operand, UNARY);
                // Two signs together would be a step.
                if *op == UnaryOp::Minus && operand.starts_with('-') {
                    operand = format!("({operand})");
                }
                return (format!("{}{operand}", op.symbol()), UNARY);
            }
            ExprKind::Step { place, step, order } => {
                let place = self.place(place);
                let sign = if *step == Step::Up { "++" } else { "--" };
                return match order {
                    StepOrder::Before => (format!("{sign}{place}"), UNARY),
                    StepOrder::After => (format!("{place}{sign}"), POSTFIX),
                };
            }
            ExprKind::Field { of, access, name } => {
                let sign = if matches!(access, Access::Dot) { "." } else { "->" };
                return (format!("{}{sign}{}", self.expression(of, POSTFIX), name.text), POSTFIX);
            }
            ExprKind::TupleIndex { of, index } => {
                let of = match &of.kind {
                    // A point and digits behind digits make a float.
                    ExprKind::Integer(integer) => format!("({})", integer.text),
                    _ => self.expression(of, POSTFIX),
                };
                return (format!("{of}.{index}"), POSTFIX);
            }
            ExprKind::Index { of, index } => {
                let of = match &of.kind {
                    // An index behind a map is its key.
                    ExprKind::Map(name) => format!("(@{name})"),
                    _ => self.expression(of, POSTFIX),
                };
                return (format!("{of}[{}]", self.expression(index, 0)), POSTFIX);
            }
            ExprKind::Cast { to, value } => {
                let mut value = self.expression(value, UNARY);
                // Behind these a parenthesis would be no cast.
                if value.starts_with(['{', '+']) {
                    value = format!("({value})");
                }
                return (format!("({}){value}", self.annotation(to)), UNARY);
            }
            ExprKind::Tuple(parts) => match parts.as_slice() {
                [only] => format!("({},)", self.expression(only, 0)),
                _ => format!("({})", self.list(parts)),
            },
            ExprKind::Record(fields) => {
                let mut parts = Vec::new();
                for field in fields {
                    parts.push(format!("{}={}", field.name.text, self.expression(&field.value, 0)));
                }
                format!("({})", parts.join(", "))
            }
            ExprKind::Ternary { condition, then, otherwise } => {
                let condition = self.expression(condition, 1);
                let then = then.as_ref().map(|then| format!(" {} ", self.expression(then, 0)));
                let otherwise = self.expression(otherwise, 0);
                return (format!("{condition} ?{}: {otherwise}", then.unwrap_or_default()), 0);
            }
            ExprKind::If { .. } => self.if_expression(expr, false),
            ExprKind::Block(block) => self.block(block, false),
            ExprKind::Comptime(value) => {
                return (format!("comptime {}", self.expression(value, UNARY)), UNARY);
            }
        };
        (text, PRIMARY)
    }

    fn list(&mut self, parts: &[Expr]) -> String {
        let parts: Vec<String> = parts.iter().map(|part| self.expression(part, 0)).collect();
        parts.join(", ")
    }

    fn element(&mut self, map: &str, key: &Expr) -> String {
        let key = match &key.kind {
            ExprKind::Tuple(parts) if parts.len() > 1 => self.list(parts),
            _ => self.expression(key, 0),
        };
        format!("@{map}[{key}]")
    }

    pub(super) fn place(&mut self, place: &Place) -> String {
        match &place.kind {
            PlaceKind::Variable(name) => format!("${name}"),
            PlaceKind::Map(name) => format!("@{name}"),
            PlaceKind::MapElement { map, key } => self.element(&map.text, key),
        }
    }

    /// A type where only a type may stand.
    pub(super) fn annotation(&mut self, of: &TypeOf) -> String {
        match &of.kind {
            TypeOfKind::Type(of) => of.to_string(),
            TypeOfKind::Expr(_) => format!("typeof({})", self.type_operand(of)),
        }
    }

    /// A type where an expression may stand too.
    fn type_operand(&mut self, of: &TypeOf) -> String {
        match &of.kind {
            TypeOfKind::Type(of) => of.to_string(),
            TypeOfKind::Expr(expr) => {
                let text = self.expression(expr, 0);
                let mut base = expr;
                while let ExprKind::Index { of, .. } = &base.kind {
                    base = of;
                }
                // `a[1]` would be a type.
                let looks_like_type =
                    matches!((&expr.kind, &base.kind), (ExprKind::Index { .. }, ExprKind::Identifier(_)));
                if looks_like_type { format!("({text})") } else { text }
            }
        }
    }
}

/// A string in quotes, with escapes.
pub(super) fn string(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '"' | '\\' => text.extend(['\\', c]),
                c if c.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.push('"');
    text
}
