//! Walking over a tree that may be changed on the way.
//!
//! Each method of [`VisitMut`] walks on by itself. Whoever replaces one calls the function of the same name
//! to go on below. The height of a tree is limited where it is built, so that walking may recurse.

use super::{
    Block, Expr, ExprId, ExprIds, ExprKind, Iterable, Name, Place, PlaceKind, Probe, Stmt, StmtKind, Type,
    TypeKind, TypeOf, TypeOfKind,
};
use crate::source::Span;

/// What is done at each kind of node.
pub trait VisitMut: Sized {
    /// An expression.
    fn expr(&mut self, expr: &mut Expr) {
        expr_parts(self, expr);
    }
    /// A place.
    fn place(&mut self, place: &mut Place) {
        place_parts(self, place);
    }
    /// A statement.
    fn stmt(&mut self, stmt: &mut Stmt) {
        stmt_parts(self, stmt);
    }
    /// A block.
    fn block(&mut self, block: &mut Block) {
        block_parts(self, block);
    }
    /// A type, or an expression that has it.
    fn type_of(&mut self, of: &mut TypeOf) {
        type_of_parts(self, of);
    }
    /// The number of a node.
    fn id(&mut self, _id: &mut ExprId) {}
    /// Where a node or a name stands.
    fn span(&mut self, _span: &mut Span) {}
    /// A variable that is read or written.
    fn variable(&mut self, _name: &mut String) {}
    /// A map; where it stands is told for errors.
    fn map(&mut self, _name: &mut String, _span: Span) {}
}

/// The predicate and the body of a probe.
pub fn probe_parts(visitor: &mut impl VisitMut, probe: &mut Probe) {
    if let Some(predicate) = &mut probe.predicate {
        visitor.expr(predicate);
    }
    visitor.block(&mut probe.body);
}

/// Gives a copied tree numbers of its own.
pub fn renumber(expr: &mut Expr, ids: &mut ExprIds) {
    struct Renumber<'a>(&'a mut ExprIds);
    impl VisitMut for Renumber<'_> {
        fn id(&mut self, id: &mut ExprId) {
            *id = self.0.fresh();
        }
    }
    Renumber(ids).expr(expr);
}

fn name(visitor: &mut impl VisitMut, name: &mut Name) {
    visitor.span(&mut name.span);
}

fn variable(visitor: &mut impl VisitMut, variable: &mut Name) {
    visitor.variable(&mut variable.text);
    name(visitor, variable);
}

fn map(visitor: &mut impl VisitMut, map: &mut Name) {
    name(visitor, map);
    visitor.map(&mut map.text, map.span);
}

/// The parts of an expression.
pub fn expr_parts(visitor: &mut impl VisitMut, expr: &mut Expr) {
    visitor.id(&mut expr.id);
    visitor.span(&mut expr.span);
    match &mut expr.kind {
        ExprKind::Integer(_)
        | ExprKind::Float(_)
        | ExprKind::Boolean(_)
        | ExprKind::String(_)
        | ExprKind::Positional(_)
        | ExprKind::PositionalCount
        | ExprKind::Identifier(_)
        | ExprKind::Builtin(_) => {}
        ExprKind::Call { name: called, arguments } => {
            name(visitor, called);
            arguments.iter_mut().for_each(|argument| visitor.expr(argument));
        }
        ExprKind::TypeArg(of) | ExprKind::Sizeof(of) | ExprKind::Typeinfo(of) => visitor.type_of(of),
        ExprKind::Offsetof { of, fields } => {
            visitor.type_of(of);
            fields.iter_mut().for_each(|field| name(visitor, field));
        }
        ExprKind::Variable(text) => visitor.variable(text),
        ExprKind::Map(text) => visitor.map(text, expr.span),
        ExprKind::MapElement { map: of, key } => {
            map(visitor, of);
            visitor.expr(key);
        }
        ExprKind::VariableAddress(of) => variable(visitor, of),
        ExprKind::MapAddress(of) => map(visitor, of),
        ExprKind::Binary { left, right, .. } => {
            visitor.expr(left);
            visitor.expr(right);
        }
        ExprKind::Unary { operand, .. } => visitor.expr(operand),
        ExprKind::Step { place, .. } => visitor.place(place),
        ExprKind::Field { of, name: field, .. } => {
            visitor.expr(of);
            name(visitor, field);
        }
        ExprKind::TupleIndex { of, .. } => visitor.expr(of),
        ExprKind::Index { of, index } => {
            visitor.expr(of);
            visitor.expr(index);
        }
        ExprKind::Cast { to, value } => {
            visitor.type_of(to);
            visitor.expr(value);
        }
        ExprKind::Tuple(parts) => parts.iter_mut().for_each(|part| visitor.expr(part)),
        ExprKind::Record(fields) => {
            for field in fields {
                visitor.span(&mut field.span);
                name(visitor, &mut field.name);
                visitor.expr(&mut field.value);
            }
        }
        ExprKind::Ternary { condition, then, otherwise } => {
            visitor.expr(condition);
            if let Some(then) = then {
                visitor.expr(then);
            }
            visitor.expr(otherwise);
        }
        ExprKind::If { condition, then, otherwise } => {
            visitor.expr(condition);
            visitor.block(then);
            if let Some(otherwise) = otherwise {
                visitor.expr(otherwise);
            }
        }
        ExprKind::Block(block) => visitor.block(block),
        ExprKind::Comptime(value) => visitor.expr(value),
    }
}

/// The parts of a place.
pub fn place_parts(visitor: &mut impl VisitMut, place: &mut Place) {
    visitor.id(&mut place.id);
    visitor.span(&mut place.span);
    match &mut place.kind {
        PlaceKind::Variable(text) => visitor.variable(text),
        PlaceKind::Map(text) => visitor.map(text, place.span),
        PlaceKind::MapElement { map: of, key } => {
            map(visitor, of);
            visitor.expr(key);
        }
    }
}

/// The parts of a statement.
pub fn stmt_parts(visitor: &mut impl VisitMut, stmt: &mut Stmt) {
    visitor.span(&mut stmt.span);
    match &mut stmt.kind {
        StmtKind::Expr(expr) | StmtKind::Discard(expr) => visitor.expr(expr),
        StmtKind::Let { variable: declared, of, value } => {
            if let Some(of) = of {
                visitor.type_of(of);
            }
            variable(visitor, declared);
            if let Some(value) = value {
                visitor.expr(value);
            }
        }
        StmtKind::Assign { place, value, .. } => {
            visitor.place(place);
            visitor.expr(value);
        }
        StmtKind::Unroll { count: head, body } | StmtKind::While { condition: head, body } => {
            visitor.expr(head);
            visitor.block(body);
        }
        StmtKind::For { variable: declared, over, body } => {
            match over {
                Iterable::Map(of) => map(visitor, of),
                Iterable::Range { start, end, span } => {
                    visitor.span(span);
                    visitor.expr(start);
                    visitor.expr(end);
                }
            }
            variable(visitor, declared);
            visitor.block(body);
        }
        StmtKind::Break | StmtKind::Continue | StmtKind::Return(None) => {}
        StmtKind::Return(Some(value)) => visitor.expr(value),
        StmtKind::Import(import) => visitor.span(&mut import.span),
    }
}

/// The parts of a block.
pub fn block_parts(visitor: &mut impl VisitMut, block: &mut Block) {
    visitor.span(&mut block.span);
    block.statements.iter_mut().for_each(|stmt| visitor.stmt(stmt));
    if let Some(value) = &mut block.value {
        visitor.expr(value);
    }
}

/// The parts of a type, or of an expression that has it.
pub fn type_of_parts(visitor: &mut impl VisitMut, of: &mut TypeOf) {
    visitor.span(&mut of.span);
    match &mut of.kind {
        TypeOfKind::Type(of) => type_parts(visitor, of),
        TypeOfKind::Expr(expr) => visitor.expr(expr),
    }
}

fn type_parts(visitor: &mut impl VisitMut, mut of: &mut Type) {
    loop {
        visitor.span(&mut of.span);
        match &mut of.kind {
            TypeKind::Pointer(inner) | TypeKind::Array(inner, _) => of = inner,
            _ => return,
        }
    }
}
