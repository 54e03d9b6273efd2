//! Declarations: records, enums and typedefs out of tokens.
//!
//! A declaration is specifiers, which tell a base type and may define a record, and declarators, which build
//! on it. Functions and variables are read as far as is needed to find what they define on the way.

mod declarator;
mod enumeration;
mod record;
mod specifier;

use std::collections::HashSet;

use super::constant::Names;
use super::token::{Token, TokenKind};
use super::{Definitions, Options, Sign, Type};
use crate::diagnostics::Diagnostics;
use crate::source::{SourceId, Span};

/// How deep records and declarators may nest.
const MAX_DEPTH: u32 = 64;
/// After so many brackets without an end the rest is not read.
const MAX_UNCLOSED: u32 = 16;

/// After so many errors the rest is not read.
const MAX_ERRORS: u32 = 20;

/// A rule was not followed: where, and what was expected.
pub(super) struct Unknown {
    span: Span,
    message: String,
}

type Result<T> = std::result::Result<T, Unknown>;

/// What it works on.
pub(super) struct Declarations<'a> {
    tokens: &'a [Token],
    at: usize,
    packs: &'a [(usize, Option<u32>)],
    headers: &'a HashSet<SourceId>,
    options: &'a Options,
    definitions: &'a mut Definitions,
    diagnostics: &'a mut Diagnostics,
    depth: u32,
    /// How many records have got a name here.
    unnamed: u32,
    /// How many brackets had no end.
    unclosed: u32,
}

impl<'a> Declarations<'a> {
    pub(super) fn new(
        tokens: &'a [Token],
        packs: &'a [(usize, Option<u32>)],
        headers: &'a HashSet<SourceId>,
        options: &'a Options,
        definitions: &'a mut Definitions,
        diagnostics: &'a mut Diagnostics,
    ) -> Declarations<'a> {
        Declarations {
            tokens,
            at: 0,
            packs,
            headers,
            options,
            definitions,
            diagnostics,
            depth: 0,
            unnamed: 0,
            unclosed: 0,
        }
    }

    /// Reads all declarations.
    pub(super) fn all(mut self) {
        let mut told = 0;
        // Each search for a closing bracket that is not there goes to the end.
        while self.at < self.tokens.len() && self.unclosed <= MAX_UNCLOSED && told < MAX_ERRORS {
            let start = self.at;
            if let Err(unknown) = self.external() {
                if !self.headers.contains(&unknown.span.source) {
                    self.diagnostics.error(unknown.span, unknown.message);
                    told += 1;
                }
                self.skip_declaration();
            }
            self.at = self.at.max(start + 1);
        }
    }

    /// One declaration, or the definition of a function.
    fn external(&mut self) -> Result<()> {
        if self.take(";") {
            return Ok(());
        }
        if self.is("extern") && self.peek(1).is_some_and(|token| token.kind == TokenKind::String) {
            // The braces of `extern "C" { … }` are passed over; the closing one is alone later.
            self.at += 2;
            self.take("{");
            return Ok(());
        }
        if self.take("}") {
            return Ok(());
        }
        if self.is("_Static_assert") || self.is("static_assert") || self.is("__asm__") || self.is("asm") {
            self.at += 1;
            self.balanced()?;
            return Ok(());
        }
        let specifiers = self.specifiers()?;
        if self.take(";") {
            return Ok(());
        }
        loop {
            let declared = self.declarator(specifiers.of.clone())?;
            self.asm_and_attributes()?;
            if specifiers.typedef
                && let Some(name) = declared.name
            {
                self.definitions.typedefs.insert(name, declared.of);
            } else if self.is("{") {
                return self.balanced();
            } else if self.take("=") {
                self.skip_initializer();
            }
            if self.take(";") {
                return Ok(());
            }
            if !self.take(",") {
                return Err(self.unknown("expected ';'"));
            }
        }
    }

    fn peek(&self, offset: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + offset)
    }

    fn is(&self, text: &str) -> bool {
        self.peek(0).is_some_and(|token| token.is(text))
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.is(text);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        if self.take(text) { Ok(()) } else { Err(self.unknown(&format!("expected '{text}'"))) }
    }

    fn take_identifier(&mut self) -> Option<&'a Token> {
        let token = self.peek(0).filter(|token| token.is_identifier())?;
        self.at += 1;
        Some(token)
    }

    /// The place of the next token, or of the last one.
    fn span(&self) -> Option<Span> {
        self.peek(0).or(self.tokens.last()).map(|token| token.span)
    }

    fn unknown(&self, message: &str) -> Unknown {
        // Without a token nothing is read, so there is one.
        let span = self.span().unwrap_or(self.tokens[0].span);
        Unknown { span, message: message.to_string() }
    }

    fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return Err(self.unknown("nested too deeply"));
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    /// Skips brackets of any kind and what is in them.
    fn balanced(&mut self) -> Result<()> {
        self.inside().map(|_| ())
    }

    /// Takes brackets of any kind, and gives what is in them.
    fn inside(&mut self) -> Result<&'a [Token]> {
        let start = self.at;
        let mut depth = 0_usize;
        while let Some(token) = self.peek(0) {
            if token.kind == TokenKind::Sign {
                match &*token.text {
                    "(" | "[" | "{" => depth += 1,
                    ")" | "]" | "}" => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            if depth == 0 && self.at == start {
                return Err(self.unknown("expected '('"));
            }
            self.at += 1;
            if depth == 0 {
                return Ok(&self.tokens[start + 1..self.at - 1]);
            }
        }
        self.at = start;
        self.unclosed += 1;
        Err(self.unknown("expected a closing bracket"))
    }

    /// Skips to the `,` or `;` behind a value.
    fn skip_initializer(&mut self) {
        while self.at < self.tokens.len() && !self.is(",") && !self.is(";") {
            if (self.is("{") || self.is("(") || self.is("[")) && self.balanced().is_ok() {
                continue;
            }
            self.at += 1;
        }
    }

    /// Skips behind the next `;`, or behind the next body.
    fn skip_declaration(&mut self) {
        while self.at < self.tokens.len() {
            if self.take(";") {
                return;
            }
            if self.is("{") {
                if self.balanced().is_err() {
                    self.at += 1;
                }
                // A body ends a function; behind that of a record are names.
                if self.is(";") {
                    self.at += 1;
                }
                return;
            }
            self.at += 1;
        }
    }

    /// The packing that `#pragma pack` says here.
    fn pack(&self) -> Option<u32> {
        let before = self.packs.partition_point(|(at, _)| *at <= self.at);
        before.checked_sub(1).and_then(|index| self.packs[index].1)
    }
}

impl Names for Declarations<'_> {
    fn value(&self, name: &str) -> Option<i128> {
        self.definitions.enumerators.get(name).map(|enumerator| enumerator.value)
    }

    fn integer_type(&self, tokens: &[Token]) -> Option<(u32, bool)> {
        self.integer(&self.simple_type(tokens)?, 0)
    }

    fn size(&self, tokens: &[Token]) -> Option<u64> {
        if tokens.last()?.is("*") {
            return Some(u64::from(self.options.address_bytes));
        }
        match self.simple_type(tokens)? {
            Type::Float => Some(4),
            Type::Double => Some(8),
            other => self.integer(&other, 0).map(|(bytes, _)| u64::from(bytes)),
        }
    }
}

impl Declarations<'_> {
    /// The type that words alone name.
    fn simple_type(&self, tokens: &[Token]) -> Option<Type> {
        let words: Vec<&str> = tokens
            .iter()
            .map(|token| &*token.text)
            .filter(|word| !matches!(*word, "const" | "volatile"))
            .collect();
        match specifier::arithmetic(&words) {
            Some(of) => Some(of),
            None => match words.as_slice() {
                [name] => self.definitions.typedefs.get(*name).cloned(),
                _ => None,
            },
        }
    }

    /// The bytes of an integer type, and whether it has a sign.
    fn integer(&self, of: &Type, depth: u32) -> Option<(u32, bool)> {
        let signed = |sign: &Sign| *sign != Sign::Unsigned;
        Some(match of {
            Type::Bool => (1, false),
            Type::Char(sign) => (1, signed(sign)),
            Type::Short(sign) => (2, signed(sign)),
            Type::Int(sign) => (4, signed(sign)),
            Type::Long(sign) => (u32::from(self.options.address_bytes), signed(sign)),
            Type::LongLong(sign) => (8, signed(sign)),
            Type::Int128(sign) => (16, signed(sign)),
            Type::Sized { sign, bytes } => (u32::from(*bytes), signed(sign)),
            Type::Enum(_) => (4, false),
            Type::Named(name) if depth < MAX_DEPTH => {
                return self.integer(self.definitions.typedefs.get(name)?, depth + 1);
            }
            _ => return None,
        })
    }
}
