//! Types as written.

use std::fmt;

use super::Expr;
use crate::source::Span;

/// A type where one is asked for: itself, or that of an expression.
#[derive(Clone, Debug)]
pub struct TypeOf {
    /// Which of both.
    pub kind: TypeOfKind,
    /// Where it stands, with `typeof` if it is there.
    pub span: Span,
}

impl PartialEq for TypeOf {
    fn eq(&self, other: &TypeOf) -> bool {
        self.kind == other.kind
    }
}

/// A type, or an expression that has it.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeOfKind {
    /// A type.
    Type(Type),
    /// The type of an expression, which is not run.
    ///
    /// A lone word is here too: whether it names a type is not known before names are resolved.
    Expr(Expr),
}

/// A type as written.
#[derive(Clone, Debug)]
pub struct Type {
    /// What it is.
    pub kind: TypeKind,
    /// Where it, or its last suffix, stands.
    pub span: Span,
}

impl PartialEq for Type {
    fn eq(&self, other: &Type) -> bool {
        self.kind == other.kind
    }
}

/// What a type is. Suffixes read from left to right: `int32 *[4]` is an array of pointers.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeKind {
    /// `int32`, `string`, or a typedef.
    Named(String),
    /// `struct name`.
    Struct(String),
    /// `union name`.
    Union(String),
    /// `enum name`.
    Enum(String),
    /// `type *`.
    Pointer(Box<Type>),
    /// `type[length]`; 0 for `type[]`, as in bpftrace.
    Array(Box<Type>, u64),
}

impl Type {
    /// What is below all stars and lengths.
    pub fn base(&self) -> &Type {
        match &self.kind {
            TypeKind::Pointer(inner) | TypeKind::Array(inner, _) => inner.base(),
            _ => self,
        }
    }

    /// Replaces what is below all stars and lengths.
    pub fn set_base(&mut self, kind: TypeKind) {
        match &mut self.kind {
            TypeKind::Pointer(inner) | TypeKind::Array(inner, _) => inner.set_base(kind),
            other => *other = kind,
        }
    }
}

impl fmt::Display for Type {
    /// As written, without spaces before suffixes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TypeKind::Named(name) => f.write_str(name),
            TypeKind::Struct(name) => write!(f, "struct {name}"),
            TypeKind::Union(name) => write!(f, "union {name}"),
            TypeKind::Enum(name) => write!(f, "enum {name}"),
            TypeKind::Pointer(inner) => write!(f, "{inner}*"),
            TypeKind::Array(inner, 0) => write!(f, "{inner}[]"),
            TypeKind::Array(inner, length) => write!(f, "{inner}[{length}]"),
        }
    }
}
