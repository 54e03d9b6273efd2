//! Parameters of macros that stand for types, and for the field in `offsetof`.
//!
//! A type is given as `typeof(type)`. Where a type stands, a lone name is a parameter or a type, and never a
//! macro without parameters.

use super::Expander;
use crate::diagnostics::Diagnostics;
use crate::syntax::ast::visit::{self, VisitMut};
use crate::syntax::ast::{Expr, ExprKind, Name, Type, TypeKind, TypeOf, TypeOfKind};

impl Expander<'_> {
    /// Puts in the argument for a parameter, where a type or an expression stands.
    pub(super) fn type_parameter(&mut self, of: &mut TypeOf) {
        self.span(&mut of.span);
        match &mut of.kind {
            TypeOfKind::Expr(Expr { kind: ExprKind::Identifier(name), .. }) => {
                match self.argument(name).cloned() {
                    Some(Expr { kind: ExprKind::TypeArg(given), .. }) => of.kind = given.kind,
                    Some(_) => visit::type_of_parts(self, of),
                    None => {}
                }
            }
            TypeOfKind::Expr(_) => visit::type_of_parts(self, of),
            TypeOfKind::Type(_) => {
                visit::type_of_parts(self, of);
                self.base_parameter(of);
            }
        }
    }

    /// Puts in the argument for the name below all stars and lengths.
    fn base_parameter(&mut self, of: &mut TypeOf) {
        let TypeOfKind::Type(whole) = &of.kind else { return };
        let base = whole.base();
        let name = match &base.kind {
            TypeKind::Named(name) | TypeKind::Struct(name) | TypeKind::Union(name) | TypeKind::Enum(name) => {
                name
            }
            _ => return,
        };
        let Some(argument) = self.argument(name) else { return };
        let replacement = match (&base.kind, &argument.kind) {
            (TypeKind::Named(_), ExprKind::Identifier(given)) => Some(TypeKind::Named(given.clone())),
            (TypeKind::Named(_), ExprKind::TypeArg(given)) => match &given.kind {
                TypeOfKind::Type(given) => Some(given.kind.clone()),
                TypeOfKind::Expr(Expr { kind: ExprKind::Identifier(given), .. }) => {
                    Some(TypeKind::Named(given.clone()))
                }
                // The type of an expression can stand alone, and has no stars or lengths.
                TypeOfKind::Expr(_) if matches!(whole.kind, TypeKind::Named(_)) => {
                    of.kind = given.kind.clone();
                    return;
                }
                TypeOfKind::Expr(_) => None,
            },
            (_, ExprKind::Identifier(given)) => Some(tagged(&base.kind, given)),
            (_, ExprKind::TypeArg(given)) => match &given.kind {
                TypeOfKind::Type(Type { kind: TypeKind::Named(given), .. })
                | TypeOfKind::Expr(Expr { kind: ExprKind::Identifier(given), .. }) => {
                    Some(tagged(&base.kind, given))
                }
                _ => None,
            },
            _ => None,
        };
        match replacement {
            Some(kind) => {
                if let TypeOfKind::Type(whole) = &mut of.kind {
                    whole.set_base(kind);
                }
            }
            None => {
                let message = format!(
                    "Invalid replacement for macro '{}' type parameter '{name}' which makes up the type '{whole}'",
                    self.frames.last().map_or("", |frame| &frame.name),
                );
                let span = argument.span;
                self.diagnostics.error(span, message);
            }
        }
    }

    /// Puts the argument for a parameter in place of the field of `offsetof`: `a`, or `a.b.c`.
    pub(super) fn field_parameter(&mut self, fields: &mut Vec<Name>) {
        let [only] = fields.as_slice() else { return };
        let Some(argument) = self.argument(&only.text) else { return };
        let (mut names, mut part) = (Vec::new(), argument);
        while let ExprKind::Field { of, name, .. } = &part.kind {
            names.push(name.clone());
            part = of;
        }
        match &part.kind {
            ExprKind::Identifier(text) => {
                names.push(Name { text: text.clone(), span: part.span });
                names.reverse();
                *fields = names;
            }
            _ if names.is_empty() => {}
            _ => {
                let span = argument.span;
                let message = "FieldAccess expressions must be made up entirely of idents (e.g. a.b.c) to replace the \
                               second argument in `offsetof`";
                self.diagnostics.error(span, message);
            }
        }
    }
}

fn tagged(like: &TypeKind, name: &str) -> TypeKind {
    let name = name.to_string();
    match like {
        TypeKind::Union(_) => TypeKind::Union(name),
        TypeKind::Enum(_) => TypeKind::Enum(name),
        _ => TypeKind::Struct(name),
    }
}

/// Refuses types that were given to what is no macro, or to one that uses them as values.
pub(super) struct TypeArguments<'a> {
    pub(super) diagnostics: &'a mut Diagnostics,
}

impl VisitMut for TypeArguments<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if matches!(expr.kind, ExprKind::TypeArg(_)) {
            let message = "When used as a call argument, `typeof` builtin only valid for macro calls that are \
                           expecting a type parameter";
            self.diagnostics.error(expr.span, message);
        }
        visit::expr_parts(self, expr);
    }
}
