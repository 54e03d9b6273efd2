//! Parts of values: fields, elements, arguments by name.

use super::call::nearest_hint;
use super::checker::Checker;
use super::environment::Held;
use super::expression::literal;
use super::tree::{Block, Expr, Kind};
use super::types::{Space, Type, field};
use crate::diagnostics::Diagnostic;
use crate::ir::{Binary, Context, Unary};
use crate::source::Span;
use crate::syntax::ast;
use std::sync::Arc;

impl Checker<'_> {
    /// `of.name`, through any number of pointers.
    pub fn field(&mut self, of: Expr, name: &ast::Name, span: Span) -> Expr {
        let mut of = of;
        while let Type::Pointer(to, _) = &of.of {
            let to = (**to).clone();
            of = dereferenced(of, to);
        }
        match of.of.clone() {
            Type::None => Expr::nothing(span),
            Type::Record(fields) => match field(&fields, &name.text) {
                Some((index, _)) => self.part_of(of, index, span),
                None if self.why_gone(&name.text).is_some() => {
                    let why = self.why_gone(&name.text).unwrap_or_default();
                    self.error(span, format!("Cannot read function parameter '{}': {why}", name.text));
                    Expr::nothing(span)
                }
                None => {
                    let message = format!("Record does not contain a field named '{}'", name.text);
                    let known = fields.iter().map(|(known, _)| &**known);
                    self.tell(nearest_hint(Diagnostic::error(span, message), &name.text, known));
                    Expr::nothing(span)
                }
            },
            Type::Struct(structure) => {
                if !self.structs.is_known(&structure) {
                    self.error(span, format!("Unknown struct/union: '{}'", structure.name));
                    return Expr::nothing(span);
                }
                let layout = self.structs.get(&structure);
                let Some(member) = layout.members.iter().find(|member| *member.name == *name.text) else {
                    let message = format!(
                        "Struct/union of type '{}' does not contain a field named '{}'",
                        structure.name, name.text
                    );
                    let known = layout.members.iter().map(|member| &*member.name);
                    self.tell(nearest_hint(Diagnostic::error(span, message), &name.text, known));
                    return Expr::nothing(span);
                };
                let kind = Kind::Part(Box::new(of), member.offset, member.bits);
                Expr { of: member.of.clone(), span, kind }.read_as_text()
            }
            other => {
                self.error(
                    span,
                    format!("Can not access field '{}' on expression of type '{other}'", name.text),
                );
                Expr::nothing(span)
            }
        }
    }

    /// `of.index` of a tuple.
    pub fn tuple_part(&mut self, of: Expr, index: u64, span: Span) -> Expr {
        match &of.of {
            Type::None => Expr::nothing(span),
            Type::Tuple(parts) => match usize::try_from(index).ok().filter(|index| *index < parts.len()) {
                Some(index) => self.part_of(of, index, span),
                None => {
                    let count = parts.len();
                    self.error(
                        span,
                        format!("Invalid tuple index: {index}. Found {count} elements in tuple."),
                    );
                    Expr::nothing(span)
                }
            },
            other => {
                self.error(span, format!("Can not access index '{index}' on expression of type '{other}'"));
                Expr::nothing(span)
            }
        }
    }

    /// A part of a tuple or record.
    fn part_of(&mut self, of: Expr, index: usize, span: Span) -> Expr {
        let (part, offset) = match &of.of {
            Type::Tuple(parts) => {
                let places = self.structs.places(parts.iter().map(|of| ("", of)), 0);
                (parts.get(index).cloned(), places.fields.get(index).map(|field| field.offset))
            }
            Type::Record(parts) => {
                let places = self.structs.places(parts.iter().map(|(name, of)| (&**name, of)), 0);
                (
                    parts.get(index).map(|part| part.1.clone()),
                    places.fields.get(index).map(|field| field.offset),
                )
            }
            _ => (None, None),
        };
        let (Some(part), Some(offset)) = (part, offset) else { return Expr::nothing(span) };
        match of.kind {
            // Nothing needs to be put together to be taken apart.
            Kind::Tuple(parts) if parts.iter().all(|(_, part)| part.is_pure()) => {
                match parts.into_iter().find(|(at, _)| *at == index) {
                    Some((_, part)) => Expr { span, ..part },
                    None => Expr::nothing(span),
                }
            }
            _ => Expr { of: part, span, kind: Kind::Part(Box::new(of), offset, None) },
        }
    }

    /// `of[index]`.
    pub fn index(&mut self, of: Expr, index: Expr, span: Span) -> Expr {
        let of = of.as_bytes();
        if of.of.is_none() || index.of.is_none() {
            return Expr::nothing(span);
        }
        if let Type::Tuple(_) = of.of {
            return match index.literal().and_then(|index| u64::try_from(index).ok()) {
                Some(index) => self.tuple_part(of, index, span),
                None => {
                    self.error(span, "Array-style access for tuples only valid for integer literals");
                    Expr::nothing(span)
                }
            };
        }
        let (element, count) = match &of.of {
            Type::Array(element, count) => ((**element).clone(), Some(*count)),
            Type::String(room) => (Type::INT8, Some(*room)),
            Type::Pointer(element, _) => ((**element).clone(), None),
            other => {
                self.error(
                    span,
                    format!(
                        "The array index operator [] can only be used on arrays, pointers, and tuples, found {other}."
                    ),
                );
                return Expr::nothing(span);
            }
        };
        let size = self.structs.size(&element);
        if size == 0 && count.is_none() {
            self.error(
                span,
                "The array index operator [] cannot be used on a pointer to an unsized type (void *).",
            );
            return Expr::nothing(span);
        }
        match (index.literal(), &index.of) {
            (Some(index), Type::Int(_)) if index >= 0 => {
                if let Some(count) = count
                    && index >= i128::from(count)
                    && count > 0
                {
                    self.error(span, format!("the index {index} is out of bounds for array of size {count}"));
                    return Expr::nothing(span);
                }
            }
            (_, Type::Int(int)) if !int.signed || int.flexible => {}
            (_, other) => {
                self.error(
                    span,
                    format!(
                        "The array index operator [] only accepts non-negative integer indices. Got: {other}"
                    ),
                );
                return Expr::nothing(span);
            }
        }
        if let (Kind::Text(text), Some(index)) = (&of.kind, index.literal()) {
            let byte = usize::try_from(index).ok().and_then(|index| text.get(index)).copied().unwrap_or(0);
            return literal(byte.into(), span);
        }
        match (count, index.literal()) {
            (Some(_), Some(index)) => {
                let offset = (index as u32).saturating_mul(size);
                Expr { of: element, span, kind: Kind::Part(Box::new(of), offset, None) }.read_as_text()
            }
            (Some(count), None) => {
                let kind = Kind::Index(Box::new(of), Box::new(index), Some(count));
                Expr { of: element, span, kind }.read_as_text()
            }
            (None, _) => {
                let at = self.binary(ast::BinaryOp::Add, of, index, span);
                Expr { span, ..dereferenced(at, element) }
            }
        }
    }

    /// `offsetof(of, fields)`.
    pub fn offset_of(&mut self, of: &ast::TypeOf, fields: &[ast::Name], span: Span) -> Expr {
        let mut of = self.type_of_written(of);
        let mut offset = 0u32;
        for name in fields {
            let structure = match &of {
                Type::None => return Expr::nothing(span),
                Type::Struct(structure) => structure.clone(),
                other => {
                    self.error(span, format!("'{other}' is not a C type."));
                    return Expr::nothing(span);
                }
            };
            let layout = self.structs.get(&structure);
            if !layout.is_complete {
                self.error(span, format!("'{}' does not exist.", structure.name));
                return Expr::nothing(span);
            }
            let Some(member) = layout.members.iter().find(|member| *member.name == *name.text) else {
                self.error(span, format!("'{}' has no field named '{}'", structure.name, name.text));
                return Expr::nothing(span);
            };
            offset = offset.saturating_add(member.offset);
            of = member.of.clone();
        }
        literal(offset.into(), span)
    }

    /// `args`: all parameters of the function, by name.
    pub fn arguments(&mut self, span: Span) -> Expr {
        self.at.body.depends_on_function = true;
        let function = self.function().unwrap_or_default();
        if function.parameters.is_empty() {
            self.tell(Diagnostic::error(span, "Cannot read function parameters").hint(
                "no debug information tells of parameters here; arg0, arg1, … are the words of the call",
            ));
            return Expr::nothing(span);
        }
        let mut types: Vec<(Arc<str>, Type)> = Vec::new();
        let mut parts = Vec::new();
        for parameter in &function.parameters {
            let of = self.structs.described(&parameter.of, 0);
            // What is not there is no part of them: it is told when it is asked for.
            let Some(part) = self.value_at(&parameter.place, of, span) else { continue };
            types.push((parameter.name.as_str().into(), part.of.clone()));
            parts.push((parts.len(), part));
        }
        Expr { of: Type::Record(types.into()), span, kind: Kind::Tuple(parts) }
    }

    /// A value of the function, where it is.
    pub fn value_at(&mut self, place: &Held, of: Type, span: Span) -> Option<Expr> {
        let size = self.structs.size(&of);
        self.held(place, &of, size, span).map(Expr::read_as_text)
    }

    /// Why a parameter of the function is nowhere.
    fn why_gone(&self, name: &str) -> Option<String> {
        let parameters = &self.at.function.as_ref()?.parameters;
        match &parameters.iter().find(|parameter| parameter.name == name)?.place {
            Held::Gone(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn held(&mut self, place: &Held, of: &Type, size: u32, span: Span) -> Option<Expr> {
        let word = |context| Expr { of: Type::UINT64, span, kind: Kind::Context(context) };
        let behind = |base: Expr, offset: i64| {
            let pointer = self.structs.pointer(of.clone());
            let offset = Expr::int(Type::INT64, offset, span);
            let kind = Kind::Binary(Binary::Add, Box::new(base), Box::new(offset));
            let address = Expr { of: pointer, span, kind };
            Expr { of: of.clone(), span, kind: Kind::Deref(Box::new(address)) }
        };
        Some(match place {
            Held::Argument(number) => self.from_word(word(Context::Argument(*number)), of, size, span),
            Held::Register(number) => self.from_word(word(Context::Register(*number)), of, size, span),
            // Of a structure of one number, too, it is the number that is held as a wider one.
            Held::FloatRegister(_) | Held::FloatResult
                if size == 4
                    && self.environment.machine().widens_singles
                    && matches!(
                        of,
                        Type::Record(_) | Type::Array(..) | Type::Tuple(_) | Type::Struct(..)
                    ) =>
            {
                return self.held(&Held::Pieces(vec![(place.clone(), size)]), of, size, span);
            }
            Held::FloatRegister(number) => {
                self.from_float(word(Context::FloatRegister(*number)), of, size, span)
            }
            Held::Frame(offset) => behind(word(Context::Frame), *offset),
            Held::Memory(register, offset) => behind(word(Context::Register(*register)), *offset),
            Held::Behind(number) => behind(word(Context::Argument(*number)), 0),
            Held::Result => self.from_word(word(Context::Result), of, size, span),
            Held::SecondResult => self.from_word(word(Context::SecondResult), of, size, span),
            Held::FloatResult => self.from_float(word(Context::FloatResult), of, size, span),
            Held::BehindResult => behind(word(Context::Result), 0),
            Held::Constant(value) => self.from_word(Expr::int(Type::INT64, *value, span), of, size, span),
            Held::Pieces(pieces) => {
                let mut parts = Vec::new();
                let mut types = Vec::new();
                for (index, (piece, size)) in pieces.iter().enumerate() {
                    let of = match size {
                        4 if self.environment.machine().widens_singles
                            && matches!(piece, Held::FloatRegister(_) | Held::FloatResult) =>
                        {
                            Type::Float(4)
                        }
                        1 | 2 | 4 | 8 => Type::int(*size as u8, false),
                        other => Type::Array(Arc::new(Type::UINT8), *other),
                    };
                    // Pieces of pieces there are not.
                    if matches!(piece, Held::Pieces(_)) {
                        return None;
                    }
                    let zeros = vec![0; *size as usize];
                    let zeros = Expr { of: of.clone(), span, kind: Kind::Bytes(zeros) };
                    parts.push((index, self.held(piece, &of, *size, span).unwrap_or(zeros)));
                    types.push(of);
                }
                let tuple = Expr { of: Type::Tuple(types.into()), span, kind: Kind::Tuple(parts) };
                Expr { of: of.clone(), span, kind: Kind::Reinterpret(Box::new(tuple)) }
            }
            Held::Gone(_) => return None,
        })
    }

    /// What a floating-point register holds as a value.
    pub fn from_float(&mut self, bits: Expr, of: &Type, size: u32, span: Span) -> Expr {
        match of {
            Type::Float(4) if self.environment.machine().widens_singles => {
                Expr { of: Type::Float(4), span, kind: Kind::Unary(Unary::BitsFloat, Box::new(bits)) }
            }
            _ => self.from_word(bits, of, size, span),
        }
    }

    /// The low bytes of a word as a value.
    pub fn from_word(&mut self, word: Expr, of: &Type, size: u32, span: Span) -> Expr {
        match of {
            Type::Int(_) | Type::Enum(..) => super::convert::converted(word, of),
            Type::Pointer(..) => Expr { of: of.clone(), span, kind: Kind::Convert(Box::new(word)) },
            Type::Bool => {
                let byte = super::convert::converted(word, &Type::UINT8);
                self.cast(byte, Type::Bool, span)
            }
            Type::Float(4) => {
                let kind = Kind::Unary(Unary::SingleBitsFloat, Box::new(word));
                Expr { of: Type::Float(4), span, kind }
            }
            Type::Float(_) => {
                Expr { of: of.clone(), span, kind: Kind::Unary(Unary::BitsFloat, Box::new(word)) }
            }
            _ if size <= 8 => Expr { of: of.clone(), span, kind: Kind::Reinterpret(Box::new(word)) },
            // It does not fit in a register, so it is not there.
            _ => Expr { of: of.clone(), span, kind: Kind::Bytes(vec![0; size as usize]) },
        }
    }
}

/// What a pointer leads to.
pub fn dereferenced(pointer: Expr, of: Type) -> Expr {
    let is_own = matches!(pointer.of, Type::Pointer(_, Space::Own));
    let value = Expr { of, span: pointer.span, kind: Kind::Deref(Box::new(pointer)) };
    // Strings of scripts have an end; those in the program's memory may fill their arrays.
    if is_own { value } else { value.read_as_text() }
}

impl Expr {
    /// An array of characters of a C type as the string that is in it, with room for its end; anything else as it is.
    fn read_as_text(self) -> Self {
        let Type::String(count) = self.of else { return self };
        let array = Type::Array(Arc::new(Type::INT8), count);
        let text = Type::String(count.saturating_add(1));
        Self { of: text, span: self.span, kind: Kind::Characters(Box::new(Self { of: array, ..self })) }
    }

    /// What `read_as_text` was made of, where all bytes count and not those ahead of a zero.
    pub fn as_bytes(self) -> Self {
        match self.kind {
            Kind::Characters(of) => *of,
            _ => self,
        }
    }

    /// Whether it may be evaluated any number of times, or not at all.
    pub fn is_pure(&self) -> bool {
        match &self.kind {
            Kind::Nothing
            | Kind::Int(_)
            | Kind::Float(_)
            | Kind::Text(_)
            | Kind::Bytes(_)
            | Kind::Variable(_)
            | Kind::Context(_)
            | Kind::Operand(_)
            | Kind::Address(_) => true,
            Kind::Get(key) | Kind::Number(key) | Kind::Words(key) => {
                key.key.as_ref().is_none_or(|key| key.is_pure())
            }
            Kind::Unary(_, of)
            | Kind::Convert(of)
            | Kind::Reinterpret(of)
            | Kind::Characters(of)
            | Kind::Deref(of)
            | Kind::Part(of, ..) => of.is_pure(),
            Kind::Binary(_, left, right)
            | Kind::And(left, right)
            | Kind::Or(left, right)
            | Kind::SameBytes(left, right)
            | Kind::SameText(left, right, None)
            | Kind::Index(left, right, _) => left.is_pure() && right.is_pure(),
            Kind::Tuple(parts) => parts.iter().all(|(_, part)| part.is_pure()),
            Kind::If(condition, then, otherwise) => {
                let pure = |block: &Block| {
                    block.statements.is_empty() && block.value.as_ref().is_none_or(|value| value.is_pure())
                };
                condition.is_pure() && pure(then) && pure(otherwise)
            }
            Kind::SameText(..)
            | Kind::Divide(..)
            | Kind::Block(_)
            | Kind::Step { .. }
            | Kind::StepKey { .. }
            | Kind::Call(_) => false,
        }
    }
}
