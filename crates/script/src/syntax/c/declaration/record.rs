//! Structs and unions.

use super::{Declarations, Result};
use crate::syntax::c::{Layout, Member, Record, Type, constant};

impl Declarations<'_> {
    /// Takes `struct` or `union` with what is behind it; a body defines it.
    pub(super) fn record(&mut self) -> Result<Type> {
        let is_struct = self.take("struct");
        if !is_struct {
            self.expect("union")?;
        }
        let mut layout = self.asm_and_attributes()?;
        let named = self.take_identifier();
        let span = named.map(|token| token.span).or(self.span());
        let name = named.map(|token| token.text.to_string());
        layout = merge(layout, self.asm_and_attributes()?);
        let Some(span) = span else { return Err(self.unknown("expected a name")) };
        if !self.is("{") && name.is_none() {
            return Err(self.unknown("expected identifier or '{'"));
        }
        let name = name.unwrap_or_else(|| {
            self.unnamed += 1;
            format!("(unnamed {})", self.unnamed)
        });
        let kind = if is_struct { Type::Struct(name.clone()) } else { Type::Union(name.clone()) };
        if !self.is("{") {
            let declared = Record { members: Vec::new(), complete: false, layout: Layout::default(), span };
            self.table(is_struct).entry(name).or_insert(declared);
            return Ok(kind);
        }
        let pack = self.pack();
        let own = !self.headers.contains(&span.source);
        if own
            && self.table(is_struct).get(&name).is_some_and(|record| record.complete && record.span != span)
        {
            return Err(super::Unknown { span, message: format!("redefinition of '{name}'") });
        }
        let members = self.members()?;
        layout = merge(layout, self.asm_and_attributes()?);
        layout.pack = pack;
        self.table(is_struct).insert(name, Record { members, complete: true, layout, span });
        Ok(kind)
    }

    fn table(&mut self, is_struct: bool) -> &mut std::collections::BTreeMap<String, Record> {
        if is_struct { &mut self.definitions.structs } else { &mut self.definitions.unions }
    }

    fn members(&mut self) -> Result<Vec<Member>> {
        self.expect("{")?;
        let mut members = Vec::new();
        while !self.take("}") {
            if self.take(";") {
                continue;
            }
            if self.is("_Static_assert") || self.is("static_assert") {
                self.at += 1;
                self.balanced()?;
                continue;
            }
            let start = self.at;
            let specifiers = self.specifiers()?;
            let span = self.tokens[start].span;
            if self.take(";") {
                // Without a declarator only a nameless record is a member; another one is only defined here.
                if let Type::Struct(name) | Type::Union(name) = &specifiers.of
                    && name.starts_with('(')
                {
                    members.push(Member {
                        name: None,
                        of: specifiers.of,
                        bits: None,
                        layout: specifiers.layout,
                        span,
                    });
                }
                continue;
            }
            loop {
                let span = self.span().unwrap_or(span);
                let declared = self.declarator(specifiers.of.clone())?;
                let bits = if self.take(":") { Some(self.bits()?) } else { None };
                let layout = merge(specifiers.layout, self.asm_and_attributes()?);
                if declared.name.is_none() && bits.is_none() {
                    return Err(self.unknown("expected a member's name"));
                }
                members.push(Member { name: declared.name, of: declared.of, bits, layout, span });
                if !self.take(",") {
                    break;
                }
            }
            // Compilers let the last one be without it.
            if !self.is("}") {
                self.expect(";")?;
            }
        }
        Ok(members)
    }

    /// Takes the width of a bit field.
    fn bits(&mut self) -> Result<u32> {
        let start = self.at;
        while self.peek(0).is_some_and(|token| {
            !(token.is(",") || token.is(";") || token.is("}") || token.is("__attribute__"))
        }) {
            self.at += 1;
        }
        let value = constant::evaluate(&self.tokens[start..self.at], self);
        match value.and_then(|value| u32::try_from(value).ok()).filter(|&bits| bits <= 128) {
            Some(bits) => Ok(bits),
            None => {
                self.at = start;
                Err(self.unknown("the width of a bit field must be a constant"))
            }
        }
    }
}

fn merge(first: Layout, second: Layout) -> Layout {
    Layout {
        packed: first.packed || second.packed,
        aligned: first.aligned.max(second.aligned),
        pack: second.pack.or(first.pack),
    }
}
