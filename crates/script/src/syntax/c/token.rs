//! Tokens of C.

use std::rc::Rc;

use crate::source::{SourceId, Span};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Identifier,
    /// Any number, also of floating point.
    Number,
    /// A string with its quotes and prefix.
    String,
    /// A character with its quotes and prefix.
    Character,
    /// An operator, or any other sign.
    Sign,
}

/// One token.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) text: Rc<str>,
    /// Whether layout is before it.
    pub(super) spaced: bool,
    /// Whether it is the first of its line.
    pub(super) first: bool,
    pub(super) span: Span,
    /// The macros that must not be expanded in it again.
    pub(super) hidden: Option<Rc<Hidden>>,
}

/// A list of names of macros, which tokens share.
#[derive(Debug)]
pub(super) struct Hidden {
    pub(super) name: Rc<str>,
    pub(super) rest: Option<Rc<Hidden>>,
    /// How many names there are.
    pub(super) count: u32,
}

impl Hidden {
    /// A list with one name more.
    pub(super) fn with(name: Rc<str>, rest: Option<Rc<Hidden>>) -> Rc<Hidden> {
        let count = rest.as_ref().map_or(0, |rest| rest.count) + 1;
        Rc::new(Hidden { name, rest, count })
    }
}

impl Token {
    pub(super) fn is(&self, text: &str) -> bool {
        &*self.text == text && self.kind != TokenKind::String && self.kind != TokenKind::Character
    }

    pub(super) fn is_identifier(&self) -> bool {
        self.kind == TokenKind::Identifier
    }

    pub(super) fn hides(&self, name: &str) -> bool {
        let mut hidden = self.hidden.as_ref();
        while let Some(one) = hidden {
            if &*one.name == name {
                return true;
            }
            hidden = one.rest.as_ref();
        }
        false
    }
}

/// Where a text stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Its bytes are those of the source from here.
    At(SourceId, u32),
    /// All of it is told to be here.
    Whole(Span),
}

/// The signs of more than one character, longest first.
const SIGNS: [&str; 22] = [
    "...", "<<=", ">>=", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=",
    "/=", "%=", "&=", "^=", "##",
];

/// The tokens of `text`. Comments and joined lines are layout.
pub(super) fn tokens(text: &str, place: Place) -> Vec<Token> {
    let bytes = text.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let (mut all, mut at, mut spaced, mut first) = (Vec::new(), 0, false, true);
    while at < bytes.len() {
        let rest = &text[at..];
        match byte(at) {
            b'\n' => (spaced, first, at) = (true, true, at + 1),
            b'\\' if byte(at + 1) == b'\n' => (spaced, at) = (true, at + 2),
            b'\\' if byte(at + 1) == b'\r' && byte(at + 2) == b'\n' => (spaced, at) = (true, at + 3),
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => (spaced, at) = (true, at + 1),
            b'/' if byte(at + 1) == b'/' => {
                (spaced, at) = (true, at + rest.find('\n').unwrap_or(rest.len()));
            }
            b'/' if byte(at + 1) == b'*' => {
                let length =
                    rest.get(2..).and_then(|rest| rest.find("*/")).map_or(rest.len(), |length| length + 4);
                (spaced, at) = (true, at + length);
            }
            _ => {
                let (kind, length) = token(rest);
                let text = &rest[..length];
                let span = match place {
                    Place::At(source, start) => {
                        Span::new(source, start as usize + at, start as usize + at + length)
                    }
                    Place::Whole(span) => span,
                };
                all.push(Token { kind, text: Rc::from(text), spaced, first, span, hidden: None });
                (spaced, first, at) = (false, false, at + length);
            }
        }
    }
    all
}

/// The kind and length of the token that `rest` begins with. Not empty.
fn token(rest: &str) -> (TokenKind, usize) {
    let bytes = rest.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'$';
    let word = bytes.iter().position(|byte| !is_word(byte)).unwrap_or(bytes.len());
    let quote = |at: usize, kind| (kind, at + quoted(&bytes[at..]));
    match bytes[0] {
        b'"' => quote(0, TokenKind::String),
        b'\'' => quote(0, TokenKind::Character),
        b'0'..=b'9' => (TokenKind::Number, number(bytes)),
        b'.' if bytes.get(1).is_some_and(u8::is_ascii_digit) => (TokenKind::Number, number(bytes)),
        _ if word > 0 => match (&rest[..word], bytes.get(word)) {
            ("L" | "u" | "U" | "u8", Some(b'"')) => quote(word, TokenKind::String),
            ("L" | "u" | "U", Some(b'\'')) => quote(word, TokenKind::Character),
            _ => (TokenKind::Identifier, word),
        },
        _ => {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            (
                TokenKind::Sign,
                sign.map_or_else(|| rest.chars().next().map_or(1, char::len_utf8), |sign| sign.len()),
            )
        }
    }
}

/// The length of a number: digits, letters, dots, and a sign behind an exponent.
fn number(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        let exponent = matches!(byte, b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E' | b'p' | b'P');
        let hexadecimal = bytes.starts_with(b"0x") || bytes.starts_with(b"0X");
        let sign = exponent && !(hexadecimal && matches!(bytes[at - 1], b'e' | b'E'));
        if !(byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.' || sign) {
            break;
        }
        at += 1;
    }
    at
}

/// The length of what is in quotes, with them. It ends at the end of its line at the latest.
fn quoted(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\n' => return at,
            b'\\' if bytes.get(at + 1).is_some_and(u8::is_ascii) => at += 2,
            byte if byte == bytes[0] => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The tokens as text, with a space where there was layout.
pub(super) fn text(tokens: &[Token]) -> String {
    let mut text = String::new();
    for token in tokens {
        if token.spaced && !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&token.text);
    }
    text
}
