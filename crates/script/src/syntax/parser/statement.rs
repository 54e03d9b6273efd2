//! Blocks and statements.

use super::expression::place_expression;
use super::{Parser, Result};
use crate::diagnostics::Diagnostic;
use crate::source::Span;
use crate::syntax::ast::{
    BinaryOp, Block, Expr, ExprKind, Import, Iterable, Name, Place, PlaceKind, Stmt, StmtKind,
};

/// What a line of a block is.
enum Line {
    Statement(Stmt),
    /// An expression without a semicolon before the `}`.
    Value(Expr),
}

impl Parser<'_> {
    /// Takes a block whose last expression is its value.
    pub(super) fn block_with_value(&mut self) -> Result<Block> {
        self.nested(Parser::block_rule)
    }

    /// Takes the body of a probe, a loop or a function: its last expression is a statement.
    pub(super) fn body(&mut self) -> Result<Block> {
        let mut block = self.block_with_value()?;
        drop_value(&mut block);
        Ok(block)
    }

    fn block_rule(&mut self) -> Result<Block> {
        self.expect(b'{')?;
        let start = self.end - 1;
        let (mut statements, mut value, mut below) = (Vec::new(), None, 0);
        loop {
            self.layout();
            if self.take(b'}') {
                break;
            }
            if self.at_end() {
                return Err(if self.errors == 0 { self.error_here("expected '}'") } else { super::Failed });
            }
            let before = self.position;
            match self.line() {
                Ok(Line::Statement(statement)) => statements.push(statement),
                Ok(Line::Value(expression)) => value = Some(Box::new(expression)),
                Err(_) => {
                    self.skip_statement();
                    // Not even one byte could be skipped: the block cannot go on.
                    if self.position == before && self.peek() != b'}' {
                        return Err(super::Failed);
                    }
                }
            }
            below = below.max(self.height);
        }
        self.height = below + 1;
        Ok(Block { statements, value, span: self.span_from(start) })
    }

    /// Skips to the end of a statement that failed: behind its `;` or its block, or before the `}` around it.
    fn skip_statement(&mut self) {
        let mut depth = 0_usize;
        while !self.at_end() {
            match self.peek() {
                b'/' if matches!(self.peek_at(1), b'/' | b'*') => {
                    self.layout();
                    continue;
                }
                b'"' => {
                    let end = self.scan_string(self.position);
                    self.bump(end - self.position);
                }
                b';' if depth == 0 => return self.bump(1),
                b'{' => depth += 1,
                b'}' if depth == 0 => return,
                b'}' if depth == 1 => return self.bump(1),
                b'}' => depth -= 1,
                _ => {}
            }
            self.bump(1);
        }
    }

    fn line(&mut self) -> Result<Line> {
        let start = self.position;
        self.height = 0;
        let kind = match self.peek_word() {
            b"import" => StmtKind::Import(self.import()?),
            b"while" => {
                self.take_word("while");
                let (condition, body) = self.counted_body()?;
                StmtKind::While { condition, body }
            }
            b"unroll" => {
                self.take_word("unroll");
                let (count, body) = self.counted_body()?;
                StmtKind::Unroll { count, body }
            }
            b"for" => self.for_loop(start)?,
            b"break" => self.jump("break", StmtKind::Break)?,
            b"continue" => self.jump("continue", StmtKind::Continue)?,
            b"return" => {
                self.take_word("return");
                let at = self.scan_layout(self.position);
                let bare = matches!(self.byte_at(at), b';' | b'}');
                let value = if bare { None } else { Some(self.expression()?) };
                let span = self.span_from(start);
                self.statement_end()?;
                return Ok(Line::Statement(Stmt { kind: StmtKind::Return(value), span }));
            }
            b"let" => return self.declaration(start),
            b"_" if self.discards() => {
                self.bump(1);
                self.take(b'=');
                let value = self.expression()?;
                let span = self.span_from(start);
                self.statement_end()?;
                return Ok(Line::Statement(Stmt { kind: StmtKind::Discard(value), span }));
            }
            b"if" => return self.block_statement(start),
            _ if self.peek() == b'{' => return self.block_statement(start),
            _ if self.at_place() => return self.assignment_or_expression(start),
            _ => {
                let expression = self.expression()?;
                return self.expression_statement(start, expression);
            }
        };
        Ok(Line::Statement(Stmt { kind, span: self.span_from(start) }))
    }

    /// `_ =`, not `_ ==`.
    fn discards(&self) -> bool {
        let equals = self.scan_layout(self.position + 1);
        self.byte_at(equals) == b'=' && self.byte_at(equals + 1) != b'='
    }

    /// `@…` or `$name`, but no parameter.
    fn at_place(&self) -> bool {
        let next = self.peek_at(1);
        self.peek() == b'@' || (self.peek() == b'$' && next != b'#' && !next.is_ascii_digit())
    }

    /// Takes `;`, which may be left out before `}`.
    fn statement_end(&mut self) -> Result<()> {
        if self.take(b';') || self.byte_at(self.scan_layout(self.position)) == b'}' {
            return Ok(());
        }
        Err(self.missing_semicolon())
    }

    fn jump(&mut self, word: &str, kind: StmtKind) -> Result<StmtKind> {
        self.take_word(word);
        self.statement_end()?;
        Ok(kind)
    }

    /// Takes `import "path";`; the position is at the word.
    pub(super) fn import(&mut self) -> Result<Import> {
        let start = self.position;
        self.expect_word("import")?;
        self.layout();
        if self.peek() != b'"' {
            return Err(self.error_here("expected string after 'import'"));
        }
        let path = String::from_utf8_lossy(&self.string()?).into_owned();
        let span = self.span_from(start);
        if !self.take(b';') {
            return Err(self.error_here("expected ';' after import"));
        }
        Ok(Import { path, span })
    }

    fn counted_body(&mut self) -> Result<(Expr, Block)> {
        let head = self.condition()?;
        let below = self.height;
        let body = self.body()?;
        self.height = below.max(self.height) + 1;
        Ok((head, body))
    }

    fn for_loop(&mut self, start: usize) -> Result<StmtKind> {
        self.expect_word("for")?;
        let parenthesis = self.take(b'(');
        self.layout();
        if self.peek() != b'$' {
            return Err(self.error_here("expected variable in for loop"));
        }
        let variable = self.variable()?;
        self.expect(b':')?;
        let first = self.unary()?;
        let mut below = self.height;
        let at = self.scan_layout(self.position);
        let end = if self.byte_at(at) == b'.' && self.byte_at(at + 1) == b'.' {
            self.layout();
            self.bump(2);
            let end = Box::new(self.unary()?);
            below = below.max(self.height);
            Some((end, self.span_from(start)))
        } else {
            None
        };
        if parenthesis {
            self.expect(b')')?;
        }
        let over = match (end, first.kind) {
            (Some((end, span)), kind) => {
                let start = Box::new(Expr { kind, ..first });
                Iterable::Range { start, end, span }
            }
            (None, ExprKind::Map(text)) => Iterable::Map(Name { text, span: first.span }),
            _ => return Err(self.error_here("expected map or range in for loop")),
        };
        let body = self.body()?;
        self.height = below.max(self.height) + 1;
        Ok(StmtKind::For { variable, over, body })
    }

    /// Takes `let $x : type = value`.
    fn declaration(&mut self, start: usize) -> Result<Line> {
        self.expect_word("let")?;
        self.layout();
        if self.peek() != b'$' {
            return Err(self.error_here("expected variable after 'let'"));
        }
        let variable = self.variable()?;
        let mut below = 0;
        let mut of = None;
        if self.take(b':') {
            of = Some(self.annotation()?);
            below = self.height;
        }
        let value = if self.take(b'=') { Some(self.expression()?) } else { None };
        self.height = below.max(self.height) + 1;
        let span = self.span_from(start);
        self.statement_end()?;
        Ok(Line::Statement(Stmt { kind: StmtKind::Let { variable, of, value }, span }))
    }

    /// Takes what begins with a variable or a map: an assignment, or an expression.
    fn assignment_or_expression(&mut self, start: usize) -> Result<Line> {
        let place = if self.peek() == b'@' {
            self.map_place()?
        } else {
            let name = self.variable()?;
            self.height = 1;
            Place { id: self.ids.fresh(), span: name.span, kind: PlaceKind::Variable(name.text) }
        };
        let below = self.height;
        if let Some(op) = self.take_assignment() {
            let value = self.expression()?;
            self.height = below.max(self.height) + 1;
            let span = self.span_from(start);
            self.statement_end()?;
            return Ok(Line::Statement(Stmt { kind: StmtKind::Assign { place, op, value }, span }));
        }
        let operand = self.postfix_from(place_expression(place))?;
        if self.take_assignment().is_some() {
            self.expression()?;
            let message = match operand.kind {
                ExprKind::TupleIndex { .. } | ExprKind::Field { .. } => IMMUTABLE,
                _ => "invalid assignment target",
            };
            return Err(self.error_at(self.span_from(start), message));
        }
        let condition = self.binary_from(1, operand)?;
        let expression = self.ternary_from(condition)?;
        self.expression_statement(start, expression)
    }

    /// Takes `=`, or an operator with `=`.
    fn take_assignment(&mut self) -> Option<Option<BinaryOp>> {
        const COMPOUND: [(&[u8], BinaryOp); 10] = [
            (b"<<=", BinaryOp::ShiftLeft),
            (b">>=", BinaryOp::ShiftRight),
            (b"+=", BinaryOp::Add),
            (b"-=", BinaryOp::Subtract),
            (b"*=", BinaryOp::Multiply),
            (b"/=", BinaryOp::Divide),
            (b"%=", BinaryOp::Modulo),
            (b"&=", BinaryOp::BitAnd),
            (b"|=", BinaryOp::BitOr),
            (b"^=", BinaryOp::BitXor),
        ];
        let at = self.scan_layout(self.position);
        let rest = self.bytes.get(at..).unwrap_or_default();
        let found = COMPOUND.iter().find(|(symbol, _)| rest.starts_with(symbol));
        let (length, op) = match found {
            Some(&(symbol, op)) => (symbol.len(), Some(op)),
            None if rest.first() == Some(&b'=') && rest.get(1) != Some(&b'=') => (1, None),
            None => return None,
        };
        self.layout();
        self.bump(length);
        Some(op)
    }

    /// Takes a statement that begins with a block. An operator behind it goes on, unless it can begin a
    /// statement.
    fn block_statement(&mut self, start: usize) -> Result<Line> {
        let mut expression = self.block_expression()?;
        let at = self.scan_layout(self.position);
        let next = self.byte_at(at);
        let operator = !matches!(next, b'-' | b'*' | b'&') && self.operator_at(at).is_some();
        if operator || matches!(next, b'?' | b'[') || (next == b'.' && self.byte_at(at + 1) != b'.') {
            expression = self.postfix_from(expression)?;
            expression = self.binary_from(1, expression)?;
            expression = self.ternary_from(expression)?;
        }
        self.expression_statement(start, expression)
    }

    fn expression_statement(&mut self, start: usize, mut expression: Expr) -> Result<Line> {
        let span = self.span_from(start);
        if !self.take(b';') {
            if self.byte_at(self.scan_layout(self.position)) == b'}' {
                return Ok(Line::Value(expression));
            }
            let next = self.scan_layout(self.position);
            if self.byte_at(next) == b'=' && matches!(expression.kind, ExprKind::Identifier(_)) {
                let span = Span::new(self.source, next, next + 1);
                let hint = "names of variables begin with $, and those of maps with @";
                return Err(self.fail(Diagnostic::error(span, "syntax: expected ';'").hint(hint)));
            }
            if !matches!(expression.kind, ExprKind::If { .. } | ExprKind::Block(_)) {
                return Err(self.missing_semicolon());
            }
        }
        drop_values(&mut expression);
        Ok(Line::Statement(Stmt { kind: StmtKind::Expr(expression), span }))
    }
}

const IMMUTABLE: &str = "Tuples and records are immutable once created. Consider creating a new value and assigning \
                         it instead.";

/// Makes the value of a block its last statement.
fn drop_value(block: &mut Block) {
    if let Some(mut value) = block.value.take() {
        drop_values(&mut value);
        block.statements.push(Stmt { span: value.span, kind: StmtKind::Expr(*value) });
    }
}

/// Where the value of an `if` or a block is not used, its parts may have different types, or none.
fn drop_values(expression: &mut Expr) {
    match &mut expression.kind {
        ExprKind::Block(block) => drop_value(block),
        ExprKind::If { then, otherwise, .. } => {
            drop_value(then);
            if let Some(otherwise) = otherwise {
                drop_values(otherwise);
            }
        }
        _ => {}
    }
}
