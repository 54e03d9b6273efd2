//! Choices: `?:`, `if`, and what is known of them before the script runs.

use super::checker::Checker;
use super::tree::{Block, Expr, Kind, Stmt};
use super::types::Type;
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind};

impl Checker<'_> {
    /// An expression whose value nobody wants: branches need not agree.
    pub fn expr_as_statement(&mut self, expr: &ast::Expr) -> Expr {
        match &expr.kind {
            ExprKind::Block(block) => {
                let block = self.block(block);
                let of = block.value.as_ref().map_or(Type::None, |value| value.of.clone());
                Expr { of, span: expr.span, kind: Kind::Block(Box::new(block)) }
            }
            ExprKind::If { condition, then, otherwise } => {
                let checked = self.deeper(expr.span, |checker| {
                    checker.branches(condition, then, otherwise.as_deref(), expr.span)
                });
                checked.unwrap_or_else(|| Expr::nothing(expr.span))
            }
            _ => self.expr(expr),
        }
    }

    /// `condition ? then : otherwise`.
    pub fn ternary(
        &mut self,
        condition: &ast::Expr,
        then: Option<&ast::Expr>,
        otherwise: &ast::Expr,
        span: Span,
    ) -> Expr {
        let value = self.number_of(condition);
        let Some(then) = then else {
            // The condition is the value, and evaluated once.
            let of = value.of.clone();
            let hidden = self.hidden(span, of.clone());
            let kept = Expr { of, span: value.span, kind: Kind::Variable(hidden) };
            let condition = self.checked_condition(kept.clone(), span);
            let otherwise = self.expr(otherwise);
            let choice = self.choice(condition, block_of(kept), block_of(otherwise), span);
            let of = choice.of.clone();
            let statements = vec![Stmt::Set(hidden, value)];
            let block = Block { variables: Vec::new(), statements, value: Some(Box::new(choice)) };
            return Expr { of, span, kind: Kind::Block(Box::new(block)) };
        };
        let condition = self.checked_condition(value, span);
        let (then, otherwise) = (self.expr(then), self.expr(otherwise));
        if let (Some(truth), true, true) = (condition.truth(), then.is_literal(), otherwise.is_literal()) {
            return if truth { then } else { otherwise };
        }
        self.choice(condition, block_of(then), block_of(otherwise), span)
    }

    fn checked_condition(&mut self, condition: Expr, span: Span) -> Expr {
        if let (Kind::Text(_), Some(truth)) = (&condition.kind, condition.truth()) {
            return Expr::int(Type::Bool, truth.into(), condition.span);
        }
        match condition.of {
            Type::Int(_) | Type::Enum(..) | Type::Bool | Type::Pointer(..) | Type::Float(_) => {}
            Type::None if !self.is_last || self.told.has_errors() => {}
            _ => self.error(span, format!("Invalid condition: {}", condition.of.kind())),
        }
        self.truth(condition)
    }

    /// `if`, with a value or without.
    pub fn branches(
        &mut self,
        condition: &ast::Expr,
        then: &ast::Block,
        otherwise: Option<&ast::Expr>,
        span: Span,
    ) -> Expr {
        if let ExprKind::Comptime(condition) = &condition.kind {
            let condition = self.expr(condition);
            let Some(truth) = condition.truth() else {
                // Which one it is, later rounds will know.
                if self.is_last {
                    self.error(condition.span, "Unable to resolve comptime expression");
                }
                return Expr::nothing(span);
            };
            // The branch that is not taken is not looked at.
            return match (truth, otherwise) {
                (true, _) => {
                    let block = self.block(then);
                    valued(block, span)
                }
                (false, Some(otherwise)) => self.expr_as_statement(otherwise),
                (false, None) => Expr::nothing(span),
            };
        }
        let condition = self.condition(condition, span);
        let then = self.block(then);
        let otherwise = match otherwise {
            Some(otherwise) => match self.expr_as_statement(otherwise) {
                Expr { kind: Kind::Block(block), .. } => *block,
                Expr { kind: Kind::Nothing, .. } => Block::default(),
                other if other.of.is_none() => {
                    Block { statements: vec![Stmt::Effect(other)], ..Block::default() }
                }
                other => block_of(other),
            },
            None => Block::default(),
        };
        self.choice(condition, then, otherwise, span)
    }

    /// One of two.
    fn choice(&mut self, condition: Expr, mut then: Block, mut otherwise: Block, span: Span) -> Expr {
        let of = |block: &Block| block.value.as_ref().map_or(Type::None, |value| value.of.clone());
        let (left, right) = (of(&then), of(&otherwise));
        let has_none = then.value.is_none() || otherwise.value.is_none();
        let result = match (&left, &right) {
            (Type::Void, Type::Void) => Type::Void,
            // Either is done for its effect.
            (Type::Void, Type::None) | (Type::None, Type::Void) => Type::None,
            (Type::None, _) | (_, Type::None) if has_none || !self.is_last => Type::None,
            (left, right) => match left.promoted(right) {
                Some(both) => both.number(),
                None => {
                    self.error(
                        span,
                        format!(
                            "Branches must return the same type or compatible types: have '{left}' and '{right}'"
                        ),
                    );
                    return Expr::nothing(span);
                }
            },
        };
        for block in [&mut then, &mut otherwise] {
            let Some(value) = block.value.take() else { continue };
            let value = self.as_number(*value);
            if result.is_none() {
                // Without a value on both sides, it is done for its effect.
                block.statements.push(Stmt::Effect(value));
            } else if result == Type::Void {
                block.value = Some(Box::new(value));
            } else {
                block.value = Some(Box::new(super::convert::converted(value, &result)));
            }
        }
        Expr { of: result, span, kind: Kind::If(Box::new(condition), Box::new(then), Box::new(otherwise)) }
    }
}

fn block_of(value: Expr) -> Block {
    Block { value: Some(Box::new(value)), ..Block::default() }
}

fn valued(block: Block, span: Span) -> Expr {
    match block.value {
        Some(value) if block.statements.is_empty() && block.variables.is_empty() => *value,
        _ => {
            let of = block.value.as_ref().map_or(Type::None, |value| value.of.clone());
            Expr { of, span, kind: Kind::Block(Box::new(block)) }
        }
    }
}
