//! Specifiers: what a declaration begins with.

use super::{Declarations, Result};
use crate::syntax::c::token::{Token, TokenKind};
use crate::syntax::c::{Layout, Sign, Type, constant};

/// What specifiers say.
pub(super) struct Specifiers {
    pub(super) of: Type,
    pub(super) typedef: bool,
    pub(super) layout: Layout,
}

/// Words that do not change what a type is.
const PASSED_OVER: [&str; 27] = [
    "const",
    "volatile",
    "restrict",
    "static",
    "extern",
    "inline",
    "register",
    "auto",
    "__const",
    "__const__",
    "__volatile__",
    "__restrict",
    "__restrict__",
    "__inline",
    "__inline__",
    "__extension__",
    "_Noreturn",
    "_Thread_local",
    "__thread",
    "_Atomic",
    "noreturn",
    "constexpr",
    "__signed_overflow__",
    "__user",
    "__kernel",
    "__rcu",
    "__percpu",
];

impl Declarations<'_> {
    pub(super) fn specifiers(&mut self) -> Result<Specifiers> {
        let mut layout = Layout::default();
        let mut typedef = false;
        let mut words: Vec<&str> = Vec::new();
        let mut found: Option<Type> = None;
        while let Some(token) = self.peek(0).filter(|token| token.is_identifier()) {
            let word = &*token.text;
            match word {
                "typedef" => {
                    typedef = true;
                    self.at += 1;
                }
                _ if PASSED_OVER.contains(&word) => self.at += 1,
                "__attribute__" | "__attribute" | "_Alignas" | "alignas" => self.attribute(&mut layout)?,
                "struct" | "union" if found.is_none() && words.is_empty() => {
                    found = Some(self.nested(Declarations::record)?);
                }
                "enum" if found.is_none() && words.is_empty() => found = Some(self.enumeration()?),
                _ if is_arithmetic(word) && found.is_none() => {
                    words.push(word);
                    self.at += 1;
                }
                _ if found.is_none() && words.is_empty() => {
                    found = Some(named(word));
                    self.at += 1;
                }
                _ => break,
            }
        }
        let of = match found {
            Some(of) => of,
            None => match arithmetic(&words) {
                Some(of) => of,
                None => return Err(self.unknown("expected a type")),
            },
        };
        Ok(Specifiers { of, typedef, layout })
    }

    /// Takes one attribute, and keeps what it says about places.
    pub(super) fn attribute(&mut self, layout: &mut Layout) -> Result<()> {
        let word = self.take_identifier().map(|token| &*token.text).unwrap_or_default();
        let inside = self.inside()?;
        if word.ends_with("lignas") {
            layout.aligned = self.alignment(inside).or(layout.aligned);
            return Ok(());
        }
        let list = match inside {
            [open, list @ .., close] if open.is("(") && close.is(")") => list,
            _ => return Err(self.unknown("__attribute__ syntax error, expected '(('")),
        };
        for (index, token) in list.iter().enumerate() {
            match &*token.text {
                "packed" | "__packed__" => layout.packed = true,
                "aligned" | "__aligned__" => {
                    let argument = list.get(index + 1..).unwrap_or_default();
                    let close = argument.iter().position(|token| token.is(")"));
                    layout.aligned = match (argument.first(), close) {
                        (Some(open), Some(close)) if open.is("(") => self.alignment(&argument[1..close]),
                        _ => Some(16),
                    };
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn alignment(&self, tokens: &[Token]) -> Option<u32> {
        let value = constant::evaluate(tokens, self)?;
        u32::try_from(value).ok().filter(|value| value.is_power_of_two())
    }

    /// Takes attributes, and the name that the linker is told.
    pub(super) fn asm_and_attributes(&mut self) -> Result<Layout> {
        let mut layout = Layout::default();
        loop {
            if self.is("__attribute__") || self.is("__attribute") {
                self.attribute(&mut layout)?;
            } else if self.is("__asm__") || self.is("asm") || self.is("__asm") {
                self.at += 1;
                self.balanced()?;
            } else {
                return Ok(layout);
            }
        }
    }
}

fn is_arithmetic(word: &str) -> bool {
    matches!(
        word,
        "void"
            | "char"
            | "short"
            | "int"
            | "long"
            | "float"
            | "double"
            | "signed"
            | "unsigned"
            | "_Bool"
            | "__int128"
            | "__int128_t"
            | "__uint128_t"
            | "__signed__"
            | "__signed"
            | "_Complex"
            | "__complex__"
    )
}

/// The type of words such as `unsigned long int`, in any order.
pub(super) fn arithmetic(words: &[&str]) -> Option<Type> {
    let count = |word: &str| words.iter().filter(|other| **other == word).count();
    let sign = if count("unsigned") > 0 {
        Sign::Unsigned
    } else if count("signed") + count("__signed__") + count("__signed") > 0 {
        Sign::Signed
    } else {
        Sign::Plain
    };
    if words.is_empty() || !words.iter().all(|word| is_arithmetic(word)) || count("_Complex") > 0 {
        return None;
    }
    let told = if sign == Sign::Plain { Sign::Signed } else { sign };
    Some(match words {
        _ if count("void") > 0 => Type::Void,
        _ if count("_Bool") > 0 => Type::Bool,
        _ if count("char") > 0 => Type::Char(sign),
        _ if count("float") > 0 => Type::Float,
        _ if count("double") > 0 && count("long") > 0 => Type::LongDouble,
        _ if count("double") > 0 => Type::Double,
        _ if count("__int128") + count("__int128_t") > 0 => Type::Int128(told),
        _ if count("__uint128_t") > 0 => Type::Int128(Sign::Unsigned),
        _ if count("short") > 0 => Type::Short(told),
        _ if count("long") > 1 => Type::LongLong(told),
        _ if count("long") > 0 => Type::Long(told),
        _ => Type::Int(told),
    })
}

/// A name that is no word of C: one of the language's own integers, or a typedef.
fn named(word: &str) -> Type {
    let sized = |sign, bytes| Type::Sized { sign, bytes };
    match word {
        "int8" => sized(Sign::Signed, 1),
        "int16" => sized(Sign::Signed, 2),
        "int32" => sized(Sign::Signed, 4),
        "int64" => sized(Sign::Signed, 8),
        "uint8" => sized(Sign::Unsigned, 1),
        "uint16" => sized(Sign::Unsigned, 2),
        "uint32" => sized(Sign::Unsigned, 4),
        "uint64" => sized(Sign::Unsigned, 8),
        "bool" => Type::Bool,
        // Its inside is the compiler's affair.
        "__builtin_va_list" => Type::Pointer(Box::new(Type::Void)),
        _ => Type::Named(word.to_string()),
    }
}

/// Whether a token can begin the name in a declarator.
pub(super) fn begins_name(token: &Token) -> bool {
    token.kind == TokenKind::Identifier && !PASSED_OVER.contains(&&*token.text)
}
