//! The parser: recursive descent over the bytes of a text, without a lexer before it.
//!
//! What a character means depends on where it stands: `/` divides, ends a predicate or is part of a path;
//! `(x)` casts or groups. So each rule reads characters itself and looks ahead where two rules begin alike.
//! Looking ahead never builds a tree: a rule is chosen first and then followed, so that the time is linear.
//!
//! An error is told where it is found. The rule then fails up to the statement, or the item, which skips to
//! its end and goes on. The depth of what is read is limited, and with it the height of the tree that is
//! built, so that every later walk over the tree may recurse.

mod cursor;
mod definition;
mod expression;
mod item;
mod literal;
mod primary;
mod statement;
mod types;

use super::ast::{Comment, Expr, ExprIds, ExprKind, Program};
use super::attach::AttachContext;
use crate::diagnostics::Diagnostics;
use crate::source::{SourceId, Sources, Span};

/// How deep a tree may be. Far more than anyone writes, and little for a stack.
pub const MAX_DEPTH: u32 = 200;

/// After so many errors of one text the rest of it is not read.
const MAX_ERRORS: usize = 20;

/// A rule did not find what it needs, and told so.
#[derive(Debug)]
pub(crate) struct Failed;

type Result<T> = std::result::Result<T, Failed>;

/// What the parser works on.
pub(crate) struct Parser<'a> {
    bytes: &'a [u8],
    source: SourceId,
    position: usize,
    /// Where the last token ended: spans do not reach into the layout behind them.
    end: usize,
    /// How many rules that can nest are being followed.
    depth: u32,
    /// The height of the tree that was built last.
    height: u32,
    errors: usize,
    comments: Vec<Comment>,
    attach: &'a AttachContext,
    ids: &'a mut ExprIds,
    diagnostics: &'a mut Diagnostics,
}

/// Reads a whole script, or a file that a script imports.
///
/// What could be read is returned, also if errors were told.
pub fn parse_program(
    sources: &Sources,
    source: SourceId,
    attach: &AttachContext,
    ids: &mut ExprIds,
    diagnostics: &mut Diagnostics,
) -> Program {
    Parser::new(sources, source, attach, ids, diagnostics).program()
}

/// Reads one expression that is the whole text, as in `--where` or the body of a `#define`.
///
/// Nothing if errors were told.
pub fn parse_expression(
    sources: &Sources,
    source: SourceId,
    ids: &mut ExprIds,
    diagnostics: &mut Diagnostics,
) -> Option<Expr> {
    let attach = AttachContext::default();
    let mut parser = Parser::new(sources, source, &attach, ids, diagnostics);
    let expression = parser.expression().ok()?;
    parser.layout();
    if !parser.at_end() {
        parser.error_here("unexpected input");
        return None;
    }
    Some(expression)
}

impl<'a> Parser<'a> {
    fn new(
        sources: &'a Sources,
        source: SourceId,
        attach: &'a AttachContext,
        ids: &'a mut ExprIds,
        diagnostics: &'a mut Diagnostics,
    ) -> Parser<'a> {
        Parser {
            bytes: sources.get(source).text().as_bytes(),
            source,
            position: 0,
            end: 0,
            depth: 0,
            height: 0,
            errors: 0,
            comments: Vec::new(),
            attach,
            ids,
            diagnostics,
        }
    }

    /// A span from `start` to the end of the last token.
    fn span_from(&self, start: usize) -> Span {
        Span::new(self.source, start, self.end.max(start))
    }

    /// An expression over trees of at most `below`.
    fn node(&mut self, span: Span, kind: ExprKind, below: u32) -> Result<Expr> {
        self.height = below + 1;
        if self.height > MAX_DEPTH {
            return Err(self.error_at(span, TOO_DEEP));
        }
        Ok(Expr { id: self.ids.fresh(), span, kind })
    }

    /// Follows a rule that can nest.
    fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.error_here(TOO_DEEP));
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }
}

const TOO_DEEP: &str = "nested too deeply";

#[cfg(test)]
mod tests;
