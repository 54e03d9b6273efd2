//! Blocks and statements as text.

use super::Printer;
use crate::syntax::ast::{Block, Expr, ExprKind, Iterable, Stmt, StmtKind};
use crate::syntax::words::{is_statement_word, leading_word};

impl Printer<'_> {
    /// A block, beginning with its brace and ending with it. `drops` if its value would be a statement.
    ///
    /// What is printed is taken out of the output again, because a block may be a part of a line.
    pub(super) fn block(&mut self, block: &Block, drops: bool) -> String {
        let before = std::mem::take(&mut self.out);
        self.out.push_str("{\n");
        self.indent += 1;
        let count = block.statements.len();
        for (index, stmt) in block.statements.iter().enumerate() {
            self.before(stmt.span);
            let last = index + 1 == count && block.value.is_none();
            let text = self.statement(stmt, last && !drops);
            self.line(&text);
            self.done(stmt.span);
        }
        if let Some(value) = &block.value {
            self.before(value.span);
            let text = self.expression_line(value, false);
            self.line(&text);
            self.done(value.span);
        }
        // What a macro or a `?:` moved here has spans of elsewhere, and comments of its own.
        self.comments_until(block.span.end);
        self.indent -= 1;
        let mut text = std::mem::replace(&mut self.out, before);
        if text == "{\n" {
            return "{}".to_string();
        }
        text.extend(std::iter::repeat_n(' ', 2 * self.indent));
        text.push('}');
        text
    }

    /// A statement with its semicolon. `ends_value` if it would be the value of its block without one.
    fn statement(&mut self, stmt: &Stmt, ends_value: bool) -> String {
        match &stmt.kind {
            StmtKind::Expr(expr) => {
                let text = self.expression_line(expr, true);
                let block = matches!(expr.kind, ExprKind::If { .. } | ExprKind::Block(_));
                if block && !ends_value { text } else { format!("{text};") }
            }
            StmtKind::Let { variable, of, value } => {
                let of = of.as_ref().map(|of| format!(" : {}", self.annotation(of))).unwrap_or_default();
                let value = value.as_ref().map(|value| format!(" = {}", self.expression(value, 0)));
                format!("let ${}{of}{};", variable.text, value.unwrap_or_default())
            }
            StmtKind::Assign { place, op, value } => {
                let place = self.place(place);
                let op = op.map_or("", |op| op.symbol());
                format!("{place} {op}= {};", self.expression(value, 0))
            }
            StmtKind::Discard(value) => format!("_ = {};", self.expression(value, 0)),
            StmtKind::Unroll { count, body } => {
                let head = self.expression(count, 0);
                format!("unroll ({head}) {}", self.block(body, true))
            }
            StmtKind::While { condition, body } => {
                let head = self.expression(condition, 0);
                format!("while ({head}) {}", self.block(body, true))
            }
            StmtKind::For { variable, over, body } => {
                let over = match over {
                    Iterable::Map(map) => format!("@{}", map.text),
                    Iterable::Range { start, end, .. } => {
                        let start = self.expression(start, super::expression::UNARY);
                        format!("{start}..{}", self.expression(end, super::expression::UNARY))
                    }
                };
                format!("for (${} : {over}) {}", variable.text, self.block(body, true))
            }
            StmtKind::Break => "break;".to_string(),
            StmtKind::Continue => "continue;".to_string(),
            StmtKind::Return(None) => "return;".to_string(),
            StmtKind::Return(Some(value)) => format!("return {};", self.expression(value, 0)),
            StmtKind::Import(import) => {
                format!("import {};", super::expression::string(import.path.as_bytes()))
            }
        }
    }

    /// An expression at the start of a line, in parentheses if it would be read as another statement.
    fn expression_line(&mut self, expr: &Expr, drops: bool) -> String {
        match &expr.kind {
            ExprKind::If { .. } => return self.if_expression(expr, drops),
            ExprKind::Block(block) => return self.block(block, drops),
            _ => {}
        }
        let text = self.expression(expr, 0);
        let word = leading_word(&text);
        let discards = word == "_" && text[1..].trim_start().starts_with('=');
        if text.starts_with('{') || is_statement_word(word) || discards {
            return format!("({text})");
        }
        text
    }

    /// `if`, with all its branches.
    pub(super) fn if_expression(&mut self, expr: &Expr, drops: bool) -> String {
        let ExprKind::If { condition, then, otherwise } = &expr.kind else { return self.expression(expr, 0) };
        let mut text = format!("if ({}) ", self.expression(condition, 0));
        text.push_str(&self.block(then, drops));
        if let Some(otherwise) = otherwise {
            text.push_str(" else ");
            text.push_str(&match &otherwise.kind {
                ExprKind::Block(block) => self.block(block, drops),
                _ => self.if_expression(otherwise, drops),
            });
        }
        text
    }
}
