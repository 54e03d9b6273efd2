//! Enums.

use super::{Declarations, Result};
use crate::syntax::c::{Enum, Enumerator, Type, constant};

impl Declarations<'_> {
    /// Takes `enum` with what is behind it; a body defines it and its names.
    pub(super) fn enumeration(&mut self) -> Result<Type> {
        self.expect("enum")?;
        self.asm_and_attributes()?;
        let named = self.take_identifier();
        let span = named.map(|token| token.span).or(self.span());
        let Some(span) = span else { return Err(self.unknown("expected a name")) };
        // In a record a colon begins the width of a bit field.
        let typed = self.is(":") && self.peek(1).is_some_and(|token| token.is_identifier());
        let underlying = if typed {
            self.at += 1;
            Some(self.specifiers()?.of)
        } else {
            None
        };
        let name = match (named, self.is("{")) {
            (Some(token), _) => token.text.to_string(),
            (None, true) => {
                self.unnamed += 1;
                format!("(unnamed {})", self.unnamed)
            }
            (None, false) => return Err(self.unknown("expected identifier or '{'")),
        };
        if !self.take("{") {
            return Ok(Type::Enum(name));
        }
        let mut enumerators: Vec<(String, i128)> = Vec::new();
        let mut next = 0;
        while !self.take("}") {
            let Some(token) = self.take_identifier() else { return Err(self.unknown("expected a name")) };
            self.asm_and_attributes()?;
            if self.take("=") {
                let start = self.at;
                self.skip_enumerator();
                let Some(value) = constant::evaluate(&self.tokens[start..self.at], self) else {
                    self.at = start;
                    return Err(self.unknown("the value of an enumerator must be a constant"));
                };
                next = value;
            }
            let enumerator = Enumerator { of: name.clone(), value: next };
            self.definitions.enumerators.insert(token.text.to_string(), enumerator);
            enumerators.push((token.text.to_string(), next));
            next = next.saturating_add(1);
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        self.asm_and_attributes()?;
        self.definitions.enums.insert(name.clone(), Enum { enumerators, underlying, span });
        Ok(Type::Enum(name))
    }

    /// Moves to the `,` or `}` behind a value.
    fn skip_enumerator(&mut self) {
        while self.at < self.tokens.len() && !self.is(",") && !self.is("}") {
            if self.is("(") && self.balanced().is_ok() {
                continue;
            }
            self.at += 1;
        }
    }
}
