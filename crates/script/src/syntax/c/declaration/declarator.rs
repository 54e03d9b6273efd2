//! Declarators: stars, lengths, parameters and the name that they are about.

use super::{Declarations, Result, specifier};
use crate::syntax::c::{Type, constant};

/// What a declarator declares.
pub(super) struct Declared {
    pub(super) name: Option<String>,
    pub(super) of: Type,
}

/// More stars than this are no type that anyone means.
const MAX_STARS: usize = 32;

impl Declarations<'_> {
    /// Takes a declarator over a base type. The name may be left out.
    pub(super) fn declarator(&mut self, of: Type) -> Result<Declared> {
        self.nested(|it| it.declarator_rule(of))
    }

    fn declarator_rule(&mut self, mut of: Type) -> Result<Declared> {
        let mut stars = 0;
        loop {
            if self.take("*") || self.take("^") {
                stars += 1;
                if stars > MAX_STARS {
                    return Err(self.unknown("nested too deeply"));
                }
                of = Type::Pointer(Box::new(of));
            } else if self
                .peek(0)
                .is_some_and(|token| token.is_identifier() && !specifier::begins_name(token))
            {
                self.at += 1;
            } else if self.is("__attribute__") {
                self.asm_and_attributes()?;
            } else {
                break;
            }
        }
        // `(*name)(parameters)`: what is inside builds on what comes behind.
        let inner =
            self.is("(") && self.peek(1).is_some_and(|token| token.is("*") || token.is("^") || token.is("("));
        if inner {
            let start = self.at;
            self.balanced()?;
            of = self.suffixes(of)?;
            let end = std::mem::replace(&mut self.at, start + 1);
            let declared = self.declarator(of)?;
            self.expect(")")?;
            self.at = end;
            return Ok(declared);
        }
        let name = match self.peek(0) {
            Some(token) if specifier::begins_name(token) => {
                self.take_identifier().map(|token| token.text.to_string())
            }
            _ => None,
        };
        Ok(Declared { name, of: self.suffixes(of)? })
    }

    /// Takes `[length]…` or `(parameters)`.
    fn suffixes(&mut self, mut of: Type) -> Result<Type> {
        let mut lengths = Vec::new();
        loop {
            if self.is("[") {
                let inside = self.inside()?;
                let length = match inside {
                    [] => Some(0),
                    _ => constant::evaluate(inside, self).and_then(|length| u64::try_from(length).ok()),
                };
                match length {
                    Some(length) if lengths.len() < MAX_STARS => lengths.push(length),
                    _ => return Err(self.unknown("the length of an array must be a constant")),
                }
            } else if self.is("(") {
                self.balanced()?;
                of = Type::Function;
            } else {
                break;
            }
        }
        for length in lengths.into_iter().rev() {
            of = Type::Array(Box::new(of), length);
        }
        Ok(of)
    }
}
