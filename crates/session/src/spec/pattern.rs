//! One name pattern: literal text, a glob, or a regular expression.
//!
//! Globs know `*` (any text), `?` (one character), `[abc]`, `[a-z]`, `[!a]` and `\x` (the character `x` itself).
//! `[]` is no set but the two characters, because C++ names contain `operator[]`; an unclosed `[` is itself too.
//! A glob must match a whole name. A regular expression matches anywhere in it unless it is anchored, as in `grep`.
//! Both run in time linear in the name's length.

use regex::Regex;
use std::fmt;

/// Which language the patterns of a command are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syntax {
    /// `*`, `?` and `[…]`.
    #[default]
    Glob,
    /// Regular expressions, which match anywhere in a name unless anchored.
    Regex,
}

/// A pattern over names.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
}

#[derive(Clone)]
enum Matcher {
    Literal(String),
    Everything,
    Regex(Regex),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// Byte offset in the pattern's text.
    pub at: usize,
    /// What is wrong there.
    pub what: String,
}

impl Pattern {
    /// Reads `text` in the given syntax.
    ///
    /// # Errors
    /// A glob with a backward range or a final backslash; a regular expression that is malformed or too big.
    pub fn new(text: &str, syntax: Syntax) -> Result<Self, PatternError> {
        let matcher = match syntax {
            Syntax::Glob if text == "*" => Matcher::Everything,
            Syntax::Glob => glob(text)?,
            Syntax::Regex => Matcher::Regex(Regex::new(text).map_err(|e| regex_error(&e))?),
        };
        Ok(Self { text: text.to_owned(), matcher })
    }

    /// A pattern that matches every name, as `*` does.
    pub fn everything() -> Self {
        Self { text: "*".to_owned(), matcher: Matcher::Everything }
    }

    /// A pattern that matches exactly `name`.
    pub fn literal(name: &str) -> Self {
        Self { text: name.to_owned(), matcher: Matcher::Literal(name.to_owned()) }
    }

    /// Whether `name` matches.
    ///
    /// A glob also matches the name that equals its own text: `<[T]>::len` is a set of characters and a Rust name.
    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Literal(literal) => literal == name,
            Matcher::Everything => true,
            Matcher::Regex(regex) => regex.is_match(name) || self.text == name,
        }
    }

    /// The one name this pattern stands for, when it is not a glob or regular expression.
    pub fn as_literal(&self) -> Option<&str> {
        match &self.matcher {
            Matcher::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    /// The text as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.as_literal() == other.as_literal()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.matcher {
            Matcher::Literal(_) => "Literal",
            Matcher::Everything => "Everything",
            Matcher::Regex(_) => "Regex",
        };
        write!(f, "{kind}({:?})", self.text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The last line of the regex crate's many-line message, which says what is wrong.
fn regex_error(error: &regex::Error) -> PatternError {
    let text = error.to_string();
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("invalid");
    let what = last.trim().trim_start_matches("error: ");
    PatternError { at: 0, what: format!("not a regular expression: {what}") }
}

/// Translates a glob; one without any special character is a literal.
fn glob(text: &str) -> Result<Matcher, PatternError> {
    let mut literal = String::new();
    let mut regex = String::from("(?s)^");
    let mut is_literal = true;
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let mut length = c.len_utf8();
        let wildcard = match c {
            '*' => Some(".*".to_owned()),
            '?' => Some(".".to_owned()),
            '[' => set(&text[at..]).map_err(|what| PatternError { at, what })?.map(|(class, set_length)| {
                length = set_length;
                class
            }),
            _ => None,
        };
        if let Some(class) = wildcard {
            is_literal = false;
            regex.push_str(&class);
        } else {
            let own = if c == '\\' { escaped(text, at)? } else { c };
            length += if c == '\\' { own.len_utf8() } else { 0 };
            literal.push(own);
            regex.push_str(&regex::escape(own.encode_utf8(&mut [0; 4])));
        }
        at += length;
    }
    if is_literal {
        return Ok(Matcher::Literal(literal));
    }
    regex.push('$');
    Regex::new(&regex).map(Matcher::Regex).map_err(|e| PatternError { at: 0, what: regex_error(&e).what })
}

/// The character after the backslash at `at`.
fn escaped(text: &str, at: usize) -> Result<char, PatternError> {
    let next = text[at + 1..].chars().next();
    next.ok_or_else(|| PatternError { at, what: "nothing follows the backslash".to_owned() })
}

/// The set at the start of `text` as a regular expression's class, with its length in bytes. `None` where `[` is
/// only itself.
fn set(text: &str) -> Result<Option<(String, usize)>, String> {
    let Some(length) = set_length(text) else { return Ok(None) };
    let inner = &text[1..length - 1];
    let (negated, members) = match inner.strip_prefix(['!', '^']) {
        Some(members) if !members.is_empty() => (true, members),
        _ => (false, inner),
    };
    let mut class = String::from(if negated { "[^" } else { "[" });
    let mut rest = members.chars().peekable();
    while let Some(first) = rest.next() {
        let mut ahead = rest.clone();
        if ahead.next() == Some('-')
            && let Some(last) = ahead.next()
        {
            if last < first {
                return Err(format!("the range {first}-{last} runs backward"));
            }
            class.push_str(&format!("{}-{}", member(first), member(last)));
            rest = ahead;
        } else {
            class.push_str(&member(first));
        }
    }
    class.push(']');
    Ok(Some((class, length)))
}

/// Length in bytes of the set at the start of `text`, brackets included; `None` when it is none.
pub(super) fn set_length(text: &str) -> Option<usize> {
    let close = text.strip_prefix('[')?.find(']')?;
    (close > 0).then_some(close + 2)
}

/// One character inside a class, which knows other specials than the rest of a regular expression.
fn member(c: char) -> String {
    format!("\\x{{{:x}}}", u32::from(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, expected) in [
            ("malloc", "malloc", true),
            ("malloc", "malloc_usable_size", false),
            ("mem*", "memcpy", true),
            ("*cpy", "memcpy", true),
            ("mem*", "xmemcpy", false),
            ("mem???", "memcpy", true),
            ("mem???", "memmove", false),
            ("[mr]alloc", "ralloc", true),
            ("[!m]alloc", "malloc", false),
            ("[!m]alloc", "ralloc", true),
            ("f[0-9]", "f7", true),
            ("f[0-9]", "fx", false),
            ("f[]]", "f[]]", true),
            ("operator[]", "operator[]", true),
            ("*::operator[]*", "v<int>::operator[](int)", true),
            ("a[b", "a[b", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("a.c", "abc", false),
            ("<[T]>::len", "<[T]>::len", true),
            ("f(char*)", "f(char*)", true),
            ("*", "", true),
            ("[a&&b]x", "&x", true),
        ] {
            let pattern = Pattern::new(glob, Syntax::Glob).unwrap();
            assert_eq!(pattern.matches(name), expected, "{glob} on {name}");
        }
    }

    #[test]
    fn regular_expressions_match_anywhere_unless_anchored() {
        for (regex, name, expected) in [
            ("mem(cpy|set)", "memset", true),
            ("mem", "xmemcpy", true),
            ("^mem", "xmemcpy", false),
            ("^a|b$", "ax", true),
            ("(?x) mem  cpy # a comment", "memcpy", true),
        ] {
            let pattern = Pattern::new(regex, Syntax::Regex).unwrap();
            assert_eq!(pattern.matches(name), expected, "{regex} on {name}");
        }
    }

    #[test]
    fn bad_patterns_say_why() {
        for (text, syntax, at, what) in [
            ("f[z-a]", Syntax::Glob, 1, "the range z-a runs backward"),
            ("f\\", Syntax::Glob, 1, "nothing follows the backslash"),
            ("f(", Syntax::Regex, 0, "not a regular expression: unclosed group"),
        ] {
            let error = Pattern::new(text, syntax).unwrap_err();
            assert_eq!(error, PatternError { at, what: what.to_owned() });
        }
    }
}
