//! Expressions whose values are known: in `#if`, lengths of arrays, widths of bit fields and enums.

use super::token::{Token, TokenKind};

/// What a constant expression may refer to.
pub(super) trait Names {
    /// The value of a name, if it has one.
    fn value(&self, name: &str) -> Option<i128>;
    /// The bytes of the type that these tokens are, and whether it has a sign.
    fn integer_type(&self, tokens: &[Token]) -> Option<(u32, bool)>;
    /// The bytes of the type that these tokens are.
    fn size(&self, tokens: &[Token]) -> Option<u64>;
}

/// How deep an expression may nest.
const MAX_DEPTH: u32 = 100;

/// The value of all of `tokens`.
pub(super) fn evaluate(tokens: &[Token], names: &dyn Names) -> Option<i128> {
    let mut evaluator = Evaluator { tokens, at: 0, depth: 0, names };
    let value = evaluator.ternary()?;
    (evaluator.at == tokens.len()).then_some(value)
}

struct Evaluator<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: u32,
    names: &'a dyn Names,
}

impl<'a> Evaluator<'a> {
    fn take(&mut self, text: &str) -> bool {
        let found = self.tokens.get(self.at).is_some_and(|token| token.is(text));
        self.at += usize::from(found);
        found
    }

    fn nested(&mut self, rule: impl FnOnce(&mut Self) -> Option<i128>) -> Option<i128> {
        self.depth += 1;
        let value = if self.depth > MAX_DEPTH { None } else { rule(self) };
        self.depth -= 1;
        value
    }

    fn ternary(&mut self) -> Option<i128> {
        self.nested(|it| {
            let condition = it.binary(0)?;
            if !it.take("?") {
                return Some(condition);
            }
            let then = it.ternary()?;
            if !it.take(":") {
                return None;
            }
            let otherwise = it.ternary()?;
            Some(if condition != 0 { then } else { otherwise })
        })
    }

    fn binary(&mut self, minimum: usize) -> Option<i128> {
        const LEVELS: [&[&str]; 10] = [
            &["||"],
            &["&&"],
            &["|"],
            &["^"],
            &["&"],
            &["==", "!="],
            &["<", ">", "<=", ">="],
            &["<<", ">>"],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let mut left = self.unary()?;
        loop {
            let Some(token) = self.tokens.get(self.at) else { return Some(left) };
            let level = LEVELS[minimum..].iter().position(|level| level.iter().any(|sign| token.is(sign)));
            let Some(level) = level.map(|level| level + minimum) else { return Some(left) };
            let sign = token.text.clone();
            self.at += 1;
            let right = self.binary(level + 1)?;
            left = apply(&sign, left, right)?;
        }
    }

    fn unary(&mut self) -> Option<i128> {
        self.nested(|it| {
            if it.take("-") {
                return it.unary()?.checked_neg();
            }
            if it.take("+") {
                return it.unary();
            }
            if it.take("!") {
                return Some(i128::from(it.unary()? == 0));
            }
            if it.take("~") {
                return Some(!it.unary()?);
            }
            if it.take("sizeof") || it.take("_Alignof") || it.take("__alignof__") {
                let inside = it.parenthesis()?;
                return it.names.size(inside).map(i128::from);
            }
            it.primary()
        })
    }

    /// The tokens in the parentheses that are next.
    fn parenthesis(&mut self) -> Option<&'a [Token]> {
        let start = self.at;
        let mut depth = 0_u32;
        while let Some(token) = self.tokens.get(self.at) {
            self.at += 1;
            if token.is("(") {
                depth += 1;
            } else if token.is(")") {
                depth = depth.checked_sub(1)?;
            }
            if depth == 0 {
                return self.tokens.get(start + 1..self.at - 1);
            }
        }
        None
    }

    fn primary(&mut self) -> Option<i128> {
        let token = self.tokens.get(self.at)?.clone();
        match token.kind {
            TokenKind::Number => {
                self.at += 1;
                number(&token.text)
            }
            TokenKind::Character => {
                self.at += 1;
                character(&token.text)
            }
            TokenKind::Identifier => {
                self.at += 1;
                self.names.value(&token.text)
            }
            TokenKind::Sign if token.is("(") => {
                let start = self.at;
                let names = self.names;
                if let Some((bytes, signed)) = names.integer_type(self.parenthesis()?) {
                    return Some(wrap(self.unary()?, bytes, signed));
                }
                self.at = start + 1;
                let value = self.ternary()?;
                self.take(")").then_some(value)
            }
            _ => None,
        }
    }
}

/// The value as an integer of `bytes` bytes has it.
fn wrap(value: i128, bytes: u32, signed: bool) -> i128 {
    let unused = 128 - 8 * bytes.clamp(1, 16);
    if signed { (value << unused) >> unused } else { (((value << unused) as u128) >> unused) as i128 }
}

fn apply(sign: &str, left: i128, right: i128) -> Option<i128> {
    let shift = || u32::try_from(right).ok().filter(|&by| by < 64);
    Some(match sign {
        "||" => i128::from(left != 0 || right != 0),
        "&&" => i128::from(left != 0 && right != 0),
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "==" => i128::from(left == right),
        "!=" => i128::from(left != right),
        "<" => i128::from(left < right),
        ">" => i128::from(left > right),
        "<=" => i128::from(left <= right),
        ">=" => i128::from(left >= right),
        "<<" => left.checked_mul(1 << shift()?)?,
        ">>" => left >> shift()?,
        "+" => left.checked_add(right)?,
        "-" => left.checked_sub(right)?,
        "*" => left.checked_mul(right)?,
        "/" => left.checked_div(right)?,
        _ => left.checked_rem(right)?,
    })
}

/// The value of an integer of C.
fn number(text: &str) -> Option<i128> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    u64::from_str_radix(digits, radix).ok().map(i128::from)
}

/// The value of a character of C in its quotes.
fn character(text: &str) -> Option<i128> {
    let inside = text.trim_start_matches(['L', 'u', 'U']).strip_prefix('\'')?.strip_suffix('\'')?;
    let mut chars = inside.chars();
    let value = match (chars.next()?, chars.next()) {
        ('\\', Some(escape)) => match escape {
            'n' => 10,
            't' => 9,
            'r' => 13,
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            'e' => 27,
            'x' => return i128::from_str_radix(&inside[2..], 16).ok(),
            '0'..='7' => return i128::from_str_radix(&inside[1..], 8).ok(),
            other => u32::from(other),
        },
        (only, None) => u32::from(only),
        _ => return None,
    };
    chars.next().is_none().then_some(i128::from(value))
}

#[cfg(test)]
mod tests {
    use super::super::token::{Place, tokens};
    use super::*;
    use crate::source::{Sources, Span};

    struct Some5;

    impl Names for Some5 {
        fn value(&self, name: &str) -> Option<i128> {
            (name == "FIVE").then_some(5)
        }
        fn integer_type(&self, tokens: &[Token]) -> Option<(u32, bool)> {
            match tokens {
                [only] if only.is("int") => Some((4, true)),
                [only] if only.is("u8") => Some((1, false)),
                _ => None,
            }
        }
        fn size(&self, tokens: &[Token]) -> Option<u64> {
            self.integer_type(tokens).map(|(bytes, _)| u64::from(bytes))
        }
    }

    fn value(text: &str) -> Option<i128> {
        let mut sources = Sources::default();
        let id = sources.add("test", text).unwrap();
        evaluate(&tokens(text, Place::Whole(Span::new(id, 0, 0))), &Some5)
    }

    #[test]
    fn expressions_have_these_values() {
        let table = [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("10 - 3 - 2", 5),
            ("1 << 4 | 1", 17),
            ("-FIVE % 3", -2),
            ("!0 && ~0 == -1", 1),
            ("1 ? 2 : 3", 2),
            ("0 ? 2 : 0 ? 3 : 4", 4),
            ("0x10UL + 010 + 0b11", 27),
            ("'a' + '\\n' + '\\x1f' + '\\0'", 97 + 10 + 31),
            ("1024 / (8 * sizeof(int))", 32),
            ("(u8)-1", 255),
            ("(int)0xffffffff", -1),
        ];
        for (text, expected) in table {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_constant_has_no_value() {
        for text in ["", "1 +", "UNKNOWN", "1 / 0", "1 << 64", "1.5", "f(1)", "(1", "'ab'", "\"x\""] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value(&"(".repeat(100_000)), None);
        assert_eq!(value(&"-".repeat(100_000)), None);
    }
}
