//! Operators: the ternary, those with two sides, prefixes and postfixes.

use super::{Parser, Result};
use crate::syntax::ast::{Access, BinaryOp, Expr, ExprKind, Place, PlaceKind, Step, StepOrder, UnaryOp};

impl Parser<'_> {
    /// Takes an expression.
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(|parser| {
            let condition = parser.binary(1)?;
            parser.ternary_from(condition)
        })
    }

    /// Goes on behind a condition: `? then : otherwise`, `?: otherwise` or nothing.
    pub(super) fn ternary_from(&mut self, condition: Expr) -> Result<Expr> {
        let mut below = self.height;
        if !self.take(b'?') {
            return Ok(condition);
        }
        let then = if self.take(b':') {
            None
        } else {
            let then = self.expression()?;
            below = below.max(self.height);
            self.expect(b':')?;
            Some(Box::new(then))
        };
        let otherwise = Box::new(self.expression()?);
        below = below.max(self.height);
        let span = condition.span.to(self.span_from(self.end));
        let condition = Box::new(condition);
        self.node(span, ExprKind::Ternary { condition, then, otherwise }, below)
    }

    fn binary(&mut self, minimum: u8) -> Result<Expr> {
        let left = self.unary()?;
        self.binary_from(minimum, left)
    }

    /// Goes on behind a left side, with operators that bind at least as strongly as `minimum`.
    pub(super) fn binary_from(&mut self, minimum: u8, mut left: Expr) -> Result<Expr> {
        loop {
            let at = self.scan_layout(self.position);
            let Some(op) = self.operator_at(at).filter(|op| op.precedence() >= minimum) else {
                return Ok(left);
            };
            let below = self.height;
            self.layout();
            self.bump(op.symbol().len());
            let right = self.binary(op.precedence() + 1)?;
            let below = below.max(self.height);
            let span = left.span.to(self.span_from(self.end));
            let (left_side, right) = (Box::new(left), Box::new(right));
            left = self.node(span, ExprKind::Binary { op, left: left_side, right }, below)?;
        }
    }

    /// The operator at `at`. One of assignment is none, and neither is the `/` that ends a predicate.
    pub(super) fn operator_at(&self, at: usize) -> Option<BinaryOp> {
        let next = self.byte_at(at + 1);
        let assigns = |length| self.byte_at(at + length) == b'=';
        Some(match self.byte_at(at) {
            b'=' if next == b'=' => BinaryOp::Equal,
            b'!' if next == b'=' => BinaryOp::NotEqual,
            b'|' if next == b'|' => BinaryOp::LogicalOr,
            b'&' if next == b'&' => BinaryOp::LogicalAnd,
            b'<' if next == b'<' && !assigns(2) => BinaryOp::ShiftLeft,
            b'>' if next == b'>' && !assigns(2) => BinaryOp::ShiftRight,
            b'<' if next == b'=' => BinaryOp::LessEqual,
            b'>' if next == b'=' => BinaryOp::GreaterEqual,
            b'<' if next != b'<' => BinaryOp::Less,
            b'>' if next != b'>' => BinaryOp::Greater,
            b'|' if !assigns(1) => BinaryOp::BitOr,
            b'^' if !assigns(1) => BinaryOp::BitXor,
            b'&' if !assigns(1) => BinaryOp::BitAnd,
            b'+' if next != b'+' && !assigns(1) => BinaryOp::Add,
            b'-' if next != b'-' && !assigns(1) => BinaryOp::Subtract,
            b'*' if !assigns(1) => BinaryOp::Multiply,
            b'%' if !assigns(1) => BinaryOp::Modulo,
            b'/' if !assigns(1) && self.byte_at(self.scan_layout(at + 1)) != b'{' => BinaryOp::Divide,
            _ => return None,
        })
    }

    /// Takes a prefix and its operand, or what has none.
    pub(super) fn unary(&mut self) -> Result<Expr> {
        self.nested(Parser::unary_rule)
    }

    fn unary_rule(&mut self) -> Result<Expr> {
        self.layout();
        let start = self.position;
        let op = match (self.peek(), self.peek_at(1)) {
            (b'+', b'+') => return self.step_before(start, Step::Up),
            (b'-', b'-') => return self.step_before(start, Step::Down),
            (b'&', _) => return self.address(start),
            (b'*', _) => UnaryOp::Dereference,
            (b'~', _) => UnaryOp::BitNot,
            (b'-', _) => UnaryOp::Minus,
            (b'!', next) if next != b'=' => UnaryOp::Not,
            _ => {
                let primary = self.primary()?;
                return self.postfix_from(primary);
            }
        };
        self.bump(1);
        let operand = Box::new(self.unary()?);
        let below = self.height;
        self.node(self.span_from(start), ExprKind::Unary { op, operand }, below)
    }

    fn step_before(&mut self, start: usize, step: Step) -> Result<Expr> {
        self.bump(2);
        let operand = self.unary()?;
        let (span, below) = (operand.span, self.height);
        let place = place(operand).ok_or_else(|| self.error_at(span, NO_PLACE))?;
        let kind = ExprKind::Step { place: Box::new(place), step, order: StepOrder::Before };
        self.node(self.span_from(start), kind, below)
    }

    /// Takes `&$x` or `&@m`.
    fn address(&mut self, start: usize) -> Result<Expr> {
        self.bump(1);
        self.layout();
        let kind = match self.peek() {
            b'$' => ExprKind::VariableAddress(self.variable()?),
            b'@' => ExprKind::MapAddress(self.map()),
            _ => return Err(self.error_here("address-of operator (&) can only be used on a map or variable")),
        };
        self.node(self.span_from(start), kind, 0)
    }

    /// Goes on behind an operand: fields, indices, `++` and `--`.
    pub(super) fn postfix_from(&mut self, mut of: Expr) -> Result<Expr> {
        loop {
            let at = self.scan_layout(self.position);
            let below = self.height;
            let begin = of.span;
            let kind = match (self.byte_at(at), self.byte_at(at + 1)) {
                (b'.', b'.') => return Ok(of),
                (b'.', _) => {
                    self.take(b'.');
                    self.layout();
                    if self.peek().is_ascii_digit() {
                        let index = self.tuple_index()?;
                        ExprKind::TupleIndex { of: Box::new(of), index }
                    } else {
                        let name = self.identifier("expected field name after '.'")?;
                        ExprKind::Field { of: Box::new(of), access: Access::Dot, name }
                    }
                }
                (b'-', b'>') => {
                    self.layout();
                    self.bump(2);
                    let name = self.identifier("expected field name after '->'")?;
                    ExprKind::Field { of: Box::new(of), access: Access::Arrow, name }
                }
                (b'[', _) => {
                    self.take(b'[');
                    let index = Box::new(self.expression()?);
                    self.expect(b']')?;
                    self.height = below.max(self.height);
                    ExprKind::Index { of: Box::new(of), index }
                }
                (b'+', b'+') | (b'-', b'-') => {
                    self.layout();
                    let step = if self.peek() == b'+' { Step::Up } else { Step::Down };
                    self.bump(2);
                    let place = place(of).ok_or_else(|| self.error_at(self.span_from(at), NO_PLACE))?;
                    ExprKind::Step { place: Box::new(place), step, order: StepOrder::After }
                }
                _ => return Ok(of),
            };
            let below = below.max(self.height);
            of = self.node(begin.to(self.span_from(self.end)), kind, below)?;
        }
    }

    fn tuple_index(&mut self) -> Result<u64> {
        let start = self.position;
        self.bump_while(|byte| byte.is_ascii_digit());
        let digits = self.slice(start, self.position);
        digits.parse().map_err(|_| self.error_at(self.span_from(start), "tuple index is too large"))
    }
}

const NO_PLACE: &str = "increment/decrement requires a variable or map";

/// What of an expression can be assigned to.
fn place(expression: Expr) -> Option<Place> {
    let kind = match expression.kind {
        ExprKind::Variable(name) => PlaceKind::Variable(name),
        ExprKind::Map(name) => PlaceKind::Map(name),
        ExprKind::MapElement { map, key } => PlaceKind::MapElement { map, key },
        _ => return None,
    };
    Some(Place { id: expression.id, span: expression.span, kind })
}

/// A place that is read.
pub(super) fn place_expression(place: Place) -> Expr {
    let kind = match place.kind {
        PlaceKind::Variable(name) => ExprKind::Variable(name),
        PlaceKind::Map(name) => ExprKind::Map(name),
        PlaceKind::MapElement { map, key } => ExprKind::MapElement { map, key },
    };
    Expr { id: place.id, span: place.span, kind }
}
