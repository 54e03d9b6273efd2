//! Directives.

use std::rc::Rc;

use super::{Macro, Preprocessor};
use crate::source::Span;
use crate::syntax::c::constant::{self, Names};
use crate::syntax::c::token::{Token, TokenKind, text};

/// How deep conditions may nest.
const MAX_CONDITIONS: usize = 200;

/// A part of `#if … #elif … #else … #endif`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// It holds.
    Reads,
    /// None held yet.
    Waits,
    /// One before it held, or what is around it is skipped.
    Done,
}

impl Condition {
    pub(super) fn reads(&self) -> bool {
        *self == Condition::Reads
    }

    fn of(holds: bool) -> Condition {
        if holds { Condition::Reads } else { Condition::Waits }
    }
}

/// In `#if` every name that is left is 0.
struct Zero;

impl Names for Zero {
    fn value(&self, _: &str) -> Option<i128> {
        Some(0)
    }
    fn integer_type(&self, _: &[Token]) -> Option<(u32, bool)> {
        None
    }
    fn size(&self, _: &[Token]) -> Option<u64> {
        None
    }
}

impl Preprocessor<'_> {
    /// Follows a directive; `line` is what is behind its `#`.
    pub(super) fn directive(&mut self, mark: Span, line: &[Token], conditions: &mut Vec<Condition>) {
        let Some((word, rest)) = line.split_first() else { return };
        let reads = conditions.iter().all(Condition::reads);
        if conditions.len() > MAX_CONDITIONS {
            return self.fail(mark, "conditions nest too deeply");
        }
        let span = mark.to(line.last().map_or(mark, |last| last.span));
        match &*word.text {
            "if" | "ifdef" | "ifndef" if !reads => conditions.push(Condition::Done),
            "if" => {
                let holds = self.holds(span, rest);
                conditions.push(Condition::of(holds));
            }
            "ifdef" | "ifndef" => {
                let defined = rest.first().is_some_and(|name| self.macros.contains_key(&name.text));
                conditions.push(Condition::of(defined == (&*word.text == "ifdef")));
            }
            "elif" | "elifdef" | "elifndef" | "else" => {
                let Some(last) = conditions.pop() else { return self.fail(span, "#else without #if") };
                let around = conditions.iter().all(Condition::reads);
                let next = match (last, &*word.text) {
                    (Condition::Reads | Condition::Done, _) => Condition::Done,
                    (Condition::Waits, _) if !around => Condition::Done,
                    (Condition::Waits, "else") => Condition::Reads,
                    (Condition::Waits, "elif") => Condition::of(self.holds(span, rest)),
                    (Condition::Waits, kind) => {
                        let defined = rest.first().is_some_and(|name| self.macros.contains_key(&name.text));
                        Condition::of(defined == (kind == "elifdef"))
                    }
                };
                conditions.push(next);
            }
            "endif" => match conditions.pop() {
                Some(_) => {}
                None => self.fail(span, "#endif without #if"),
            },
            _ if !reads => {}
            "define" => self.define(span, rest),
            "undef" => {
                if let Some(name) = rest.first() {
                    self.macros.remove(&name.text);
                }
            }
            "include" | "import" => self.include_directive(span, rest, None),
            "include_next" => {
                let after = self.reading.last().map(|(_, index)| *index);
                self.include_directive(span, rest, after);
            }
            "pragma" => self.pragma(rest),
            "error" => self.fail(span, &format!("#error {}", text(rest))),
            // `#warning`, `#line`, `#ident` and what compilers add have no effect on definitions.
            _ => {}
        }
    }

    fn define(&mut self, span: Span, line: &[Token]) {
        let Some((name, rest)) = line.split_first().filter(|(name, _)| name.is_identifier()) else {
            return self.fail(span, "macro name must be an identifier");
        };
        let mut written = Macro { parameters: None, variadic: false, body: Vec::new() };
        let mut body = rest;
        // Only a parenthesis right behind the name begins parameters.
        if let Some((open, mut list)) = rest.split_first().filter(|(open, _)| open.is("(") && !open.spaced) {
            let mut names: Vec<Rc<str>> = Vec::new();
            loop {
                match list {
                    [close, after @ ..] if close.is(")") => {
                        body = after;
                        break;
                    }
                    [comma, after @ ..] if comma.is(",") => list = after,
                    [dots, after @ ..] if dots.is("...") => {
                        written.variadic = true;
                        names.push(Rc::from("__VA_ARGS__"));
                        list = after;
                    }
                    [name, dots, after @ ..] if name.is_identifier() && dots.is("...") => {
                        written.variadic = true;
                        names.push(name.text.clone());
                        list = after;
                    }
                    [name, after @ ..] if name.is_identifier() => {
                        names.push(name.text.clone());
                        list = after;
                    }
                    _ => return self.fail(open.span, "expected parameters of a macro"),
                }
            }
            written.parameters = Some(names);
        }
        written.body = body.to_vec();
        self.macros.insert(name.text.clone(), written);
    }

    fn include_directive(&mut self, span: Span, line: &[Token], after: Option<usize>) {
        let expanded;
        let line = match line.first() {
            Some(first) if first.is_identifier() => {
                expanded = self.expand(line.to_vec());
                &expanded
            }
            _ => line,
        };
        match header_name(line) {
            Some((name, quoted)) => self.include(span, &name, quoted, after),
            None => self.fail(span, "expected \"FILENAME\" or <FILENAME>"),
        }
    }

    /// `pack(n)`, `pack(push, n)`, `pack(pop)`, `pack()` and `once`.
    fn pragma(&mut self, line: &[Token]) {
        let is = |index: usize, word: &str| line.get(index).is_some_and(|token| token.is(word));
        if is(0, "once") {
            let path = self.reading.last().map(|(path, _)| path.clone());
            self.once.extend(path);
        }
        if !is(0, "pack") || !is(1, "(") {
            return;
        }
        if is(2, "push") {
            self.packs.push(self.pack);
        } else if is(2, "pop") {
            self.pack = self.packs.pop().flatten();
        } else {
            self.pack = None;
        }
        let number = line[2..].iter().find(|token| token.kind == TokenKind::Number);
        if let Some(number) = number.and_then(|number| number.text.parse().ok()) {
            self.pack = Some(number);
        }
        self.pack_changes.push((self.out.len(), self.pack));
    }

    /// Whether the condition of an `#if` holds.
    fn holds(&mut self, span: Span, line: &[Token]) -> bool {
        let mut prepared: Vec<Token> = Vec::new();
        let mut rest = line;
        while let Some((token, after)) = rest.split_first() {
            let (known, length) = match &*token.text {
                "defined" => match after {
                    [open, name, close, ..] if open.is("(") && close.is(")") => {
                        (self.is_defined(&name.text), 3)
                    }
                    [name, ..] => (self.is_defined(&name.text), 1),
                    [] => (false, 0),
                },
                "__has_include" | "__has_include_next" if after.first().is_some_and(|open| open.is("(")) => {
                    let close = after.iter().position(|token| token.is(")")).unwrap_or(after.len() - 1);
                    let name = header_name(&after[1..close.max(1)]);
                    let found = name.is_some_and(|(name, quoted)| {
                        self.find(&name, quoted, None).is_some() || super::builtin::header(&name).is_some()
                    });
                    (found, close + 1)
                }
                name if name.starts_with("__has_") && after.first().is_some_and(|open| open.is("(")) => {
                    let close = after.iter().position(|token| token.is(")")).unwrap_or(after.len() - 1);
                    (false, close + 1)
                }
                _ => {
                    prepared.push(token.clone());
                    rest = after;
                    continue;
                }
            };
            let value = Rc::from(if known { "1" } else { "0" });
            prepared.push(Token { kind: TokenKind::Number, text: value, ..token.clone() });
            rest = &after[length..];
        }
        let expanded = self.expand(prepared);
        match constant::evaluate(&expanded, &Zero) {
            Some(value) => value != 0,
            None => {
                // A condition with a function that is not known occurs in headers for other compilers.
                if !self.headers.contains(&span.source) {
                    self.fail(span, "invalid condition");
                }
                false
            }
        }
    }

    fn is_defined(&self, name: &str) -> bool {
        self.macros.contains_key(name)
            || matches!(name, "__has_include" | "__has_attribute" | "__has_builtin")
    }
}

/// The name in `"…"` or `<…>`, and whether it is in quotes.
fn header_name(line: &[Token]) -> Option<(String, bool)> {
    let (first, rest) = line.split_first()?;
    if first.kind == TokenKind::String {
        return Some((first.text.trim_matches('"').to_string(), true));
    }
    if !first.is("<") {
        return None;
    }
    let close = rest.iter().position(|token| token.is(">"))?;
    Some((rest[..close].iter().map(|token| &*token.text).collect(), false))
}
