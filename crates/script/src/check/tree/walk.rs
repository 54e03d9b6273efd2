//! Walks over a checked tree.

use super::{Block, Body, Call, Expr, Key, Kind, Stmt};

impl Body {
    /// Shows every expression.
    pub fn walk(&self, see: &mut dyn FnMut(&Expr)) {
        if let Some(predicate) = &self.predicate {
            predicate.walk(see);
        }
        self.block.walk(see);
    }
}

impl Block {
    /// Shows every expression.
    pub fn walk(&self, see: &mut dyn FnMut(&Expr)) {
        for statement in &self.statements {
            match statement {
                Stmt::Effect(value) | Stmt::Set(_, value) => value.walk(see),
                Stmt::SetKey(key, value, _) | Stmt::AddKey(key, value) => {
                    key.walk(see);
                    value.walk(see);
                }
                Stmt::Aggregate(key, value, weight) => {
                    key.walk(see);
                    value.walk(see);
                    if let Some(weight) = weight {
                        weight.walk(see);
                    }
                }
                Stmt::Unroll(_, block) | Stmt::Each(_, _, block) => block.walk(see),
                Stmt::While(condition, block) => {
                    condition.walk(see);
                    block.walk(see);
                }
                Stmt::Range(_, first, last, block) => {
                    first.walk(see);
                    last.walk(see);
                    block.walk(see);
                }
                Stmt::Return(Some(value)) => value.walk(see),
                Stmt::Return(None) | Stmt::Clear(_) | Stmt::Break | Stmt::Continue => {}
            }
        }
        if let Some(value) = &self.value {
            value.walk(see);
        }
    }
}

impl Key {
    fn walk(&self, see: &mut dyn FnMut(&Expr)) {
        if let Some(key) = &self.key {
            key.walk(see);
        }
    }
}

impl Expr {
    /// Shows this expression and all in it.
    pub fn walk(&self, see: &mut dyn FnMut(&Expr)) {
        see(self);
        match &self.kind {
            Kind::Get(key) | Kind::Number(key) | Kind::Words(key) | Kind::StepKey { key, .. } => {
                key.walk(see)
            }
            Kind::Unary(_, of)
            | Kind::Convert(of)
            | Kind::Reinterpret(of)
            | Kind::Characters(of)
            | Kind::Deref(of)
            | Kind::Part(of, ..) => of.walk(see),
            Kind::Binary(_, left, right)
            | Kind::Divide(_, left, right)
            | Kind::And(left, right)
            | Kind::Or(left, right)
            | Kind::SameBytes(left, right)
            | Kind::Index(left, right, _) => {
                left.walk(see);
                right.walk(see);
            }
            Kind::SameText(left, right, most) => {
                left.walk(see);
                right.walk(see);
                if let Some(most) = most {
                    most.walk(see);
                }
            }
            Kind::Tuple(parts) => parts.iter().for_each(|(_, part)| part.walk(see)),
            Kind::If(condition, then, otherwise) => {
                condition.walk(see);
                then.walk(see);
                otherwise.walk(see);
            }
            Kind::Block(block) => block.walk(see),
            Kind::Call(call) => call.walk(see),
            Kind::Nothing
            | Kind::Int(_)
            | Kind::Float(_)
            | Kind::Text(_)
            | Kind::Bytes(_)
            | Kind::Variable(_)
            | Kind::Context(_)
            | Kind::Operand(_)
            | Kind::Address(_)
            | Kind::Step { .. } => {}
        }
    }
}

impl Call {
    fn walk(&self, see: &mut dyn FnMut(&Expr)) {
        match self {
            Call::Str(of, other) | Call::BufOf(of, other) | Call::Ntop(of, other) => {
                of.walk(see);
                if let Some(other) = other {
                    other.walk(see);
                }
            }
            Call::Buf(left, right) | Call::Find(left, right) | Call::Concat(left, right) => {
                left.walk(see);
                right.walk(see);
            }
            Call::Strlen(of)
            | Call::Mac(of)
            | Call::Symbol(of)
            | Call::Join(of, _)
            | Call::Exit(of)
            | Call::Signal(of)
            | Call::Delay(of)
            | Call::Change(_, of)
            | Call::Choose(of, ..) => of.walk(see),
            Call::Tell(_, values) => values.iter().for_each(|value| value.walk(see)),
            Call::Delete(key, _) | Call::Has(key) => key.walk(see),
            Call::Stack(_)
            | Call::Comm
            | Call::NameOf(_)
            | Call::PrintMap(..)
            | Call::Clear(_)
            | Call::Zero(_)
            | Call::Length(_) => {}
        }
    }
}
