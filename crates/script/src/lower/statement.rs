//! Statements.

use super::body::{Home, Lowering, binary, scalar, stored, width};
use super::value::convert;
use crate::check::tree::{Block, Call, Expr, Key, Kind, Stmt, VarId};
use crate::check::types::Type;
use crate::ir::{Binary, Expression, MapId, MapValue, Part, Place, Scalar, Statement};
use crate::message::{ErrorKind, Message};
use crate::source::Span;

impl Lowering<'_, '_> {
    /// A block; then something is done with what it is worth.
    pub fn block(&mut self, block: &Block, with: impl FnOnce(&mut Self, &Expr)) {
        self.scoped(|lowering| {
            lowering.house(&block.variables);
            for statement in &block.statements {
                lowering.scoped(|lowering| lowering.statement(statement));
            }
            if let Some(value) = &block.value {
                with(lowering, value);
            }
            lowering.evict(&block.variables);
        });
    }

    /// A block for its effect.
    pub fn run(&mut self, block: &Block) {
        self.block(block, |lowering, value| lowering.effect(value));
    }

    /// What must hold for the body to run. Of several conditions each one ends it by itself.
    pub fn predicate(&mut self, predicate: &Expr) {
        if let Kind::And(left, right) = &predicate.kind {
            self.predicate(left);
            self.predicate(right);
            return;
        }
        self.is_in_predicate = true;
        let condition = self.scalar(predicate);
        self.is_in_predicate = false;
        if !matches!(condition, Expression::Int(value) if value != 0) {
            self.emit(Statement::If(condition, Vec::new(), vec![Statement::Return]));
        }
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Effect(value) => self.effect(value),
            Stmt::Set(variable, value) => self.set(*variable, value),
            Stmt::Clear(variable) => self.clear(*variable),
            Stmt::SetKey(key, value, span) => self.set_key(key, value, *span),
            Stmt::AddKey(key, amount) => {
                let amount = self.scalar(amount);
                let (amount, place) = self.both(amount, Scalar::Int, |lowering| lowering.key(key));
                self.emit(Statement::MapAdd { map: key.map, key: place, amount, before: None });
            }
            Stmt::Aggregate(key, value, weight) => self.aggregate(key, value, weight.as_ref()),
            Stmt::Unroll(times, block) => {
                for _ in 0..*times {
                    if self.is_too_large {
                        return;
                    }
                    self.run(block);
                }
            }
            Stmt::While(condition, block) => {
                self.forget();
                let code = self.branch(|lowering| {
                    let condition = lowering.scalar(condition);
                    lowering.emit(Statement::If(condition, Vec::new(), vec![Statement::Break]));
                    lowering.run(block);
                });
                self.emit(Statement::Loop(code));
            }
            Stmt::Range(variable, first, last, block) => self.range(*variable, first, last, block),
            Stmt::Each(variable, map, block) => self.each(*variable, *map, block),
            Stmt::Break => self.emit(Statement::Break),
            Stmt::Continue => self.emit(Statement::Continue),
            Stmt::Return(value) => {
                if let Some(value) = value {
                    if self.tells_result {
                        let value = self.scalar(value);
                        self.tell(Message::Result, vec![Part::Word(value)]);
                    } else {
                        self.effect(value);
                    }
                }
                self.emit(Statement::Return);
            }
        }
    }

    /// An expression for its effect alone.
    pub fn effect(&mut self, value: &Expr) {
        match &value.kind {
            Kind::Block(block) => self.run(block),
            Kind::If(condition, then, otherwise) => {
                let condition = self.scalar(condition);
                let then = self.branch(|lowering| lowering.run(then));
                let otherwise = self.branch(|lowering| lowering.run(otherwise));
                if !then.is_empty() || !otherwise.is_empty() {
                    self.emit(Statement::If(condition, then, otherwise));
                }
            }
            Kind::Step { variable, by, after } => _ = self.step(*variable, *by, *after, false),
            Kind::StepKey { key, by, after } => _ = self.step_key(key, *by, *after, false),
            Kind::Call(call) => self.call_effect(call, value),
            _ if value.is_pure() && !self.tells_failures => {}
            Kind::Tuple(parts) => parts.iter().for_each(|(_, part)| self.effect(part)),
            _ if scalar(&value.of).is_some() => _ = self.scalar(value),
            Kind::Nothing => {}
            _ => _ = self.memory(value),
        }
    }

    fn set(&mut self, variable: VarId, value: &Expr) {
        match self.home(variable) {
            Home::Local(local) => {
                let value = self.scalar(value);
                self.emit(Statement::Set(local, value));
            }
            Home::Scratch(at) => {
                // What is put together from the variable itself must not be overwritten on the way.
                if self.reads(value, variable) {
                    let size = self.structs.size(&value.of);
                    let aside = self.room(size);
                    self.into(value, aside);
                    self.emit(Statement::Copy { to: Place::Scratch(at), from: Place::Scratch(aside), size });
                } else {
                    self.into(value, at);
                }
            }
        }
        self.changed();
    }

    /// Whether a value is made of a variable in scratch. Who knows counts as yes.
    fn reads(&self, value: &Expr, variable: VarId) -> bool {
        match &value.kind {
            Kind::Nothing
            | Kind::Int(_)
            | Kind::Float(_)
            | Kind::Text(_)
            | Kind::Bytes(_)
            | Kind::Context(_)
            | Kind::Operand(_) => false,
            Kind::Variable(other) => *other == variable,
            Kind::Call(Call::Comm | Call::NameOf(_) | Call::Stack(_)) => false,
            Kind::Call(Call::Str(from, None)) => self.reads(from, variable),
            Kind::Convert(of) | Kind::Unary(_, of) => self.reads(of, variable),
            Kind::Binary(_, left, right) => self.reads(left, variable) || self.reads(right, variable),
            Kind::Tuple(parts) => parts.iter().any(|(_, part)| self.reads(part, variable)),
            Kind::Get(Key { key, .. }) => key.as_ref().is_some_and(|key| self.reads(key, variable)),
            _ => true,
        }
    }

    fn clear(&mut self, variable: VarId) {
        let of = self.variables[variable.0 as usize].of.clone();
        match self.home(variable) {
            Home::Local(local) => {
                let zero =
                    if matches!(of, Type::Float(_)) { Expression::Float(0.0) } else { Expression::Int(0) };
                self.emit(Statement::Set(local, zero));
            }
            Home::Scratch(at) => {
                let size = self.structs.size(&of);
                if size > 0 {
                    self.emit(Statement::Zero { to: Place::Scratch(at), size });
                }
            }
        }
        self.changed();
    }

    /// Counts a variable up or down.
    pub fn step(&mut self, variable: VarId, by: i64, after: bool, is_wanted: bool) -> Expression {
        let of = self.variables[variable.0 as usize].of.clone();
        let home = self.home(variable);
        let old = match home {
            Home::Local(local) => Expression::Local(local),
            Home::Scratch(at) => super::value::load(Place::Scratch(at), &of),
        };
        let before =
            if is_wanted && !after { self.held(old.clone(), Scalar::Int) } else { Expression::Int(0) };
        let wide = Type::int(8, of.as_int().is_some_and(|int| int.signed));
        let new = convert(binary(Binary::Add, old, Expression::Int(by)), &wide, &of);
        match home {
            Home::Local(local) => self.emit(Statement::Set(local, new)),
            Home::Scratch(at) => {
                self.emit(Statement::Store { to: Place::Scratch(at), as_: width(&of), value: new });
            }
        }
        self.changed();
        match (is_wanted, after, home) {
            (false, ..) => Expression::Int(0),
            (true, false, _) => before,
            (true, true, Home::Local(local)) => Expression::Local(local),
            (true, true, Home::Scratch(at)) => super::value::load(Place::Scratch(at), &of),
        }
    }

    fn range(&mut self, variable: VarId, first: &Expr, last: &Expr, block: &Block) {
        self.forget();
        let of = self.variables[variable.0 as usize].of.clone();
        let signed = of.as_int().is_some_and(|int| int.signed);
        let next = self.local(Scalar::Int);
        let first = self.scalar(first);
        self.emit(Statement::Set(next, first));
        let last = self.scalar(last);
        let end = self.held(last, Scalar::Int);
        let op = if signed { Binary::Less } else { Binary::UnsignedLess };
        let code = self.branch(|lowering| {
            let more = binary(op, Expression::Local(next), end);
            lowering.emit(Statement::If(more, Vec::new(), vec![Statement::Break]));
            match lowering.home(variable) {
                Home::Local(local) => lowering.emit(Statement::Set(local, Expression::Local(next))),
                Home::Scratch(at) => lowering.emit(Statement::Store {
                    to: Place::Scratch(at),
                    as_: width(&of),
                    value: Expression::Local(next),
                }),
            }
            // Counted before the body runs, so that `continue` does not miss it.
            let more = binary(Binary::Add, Expression::Local(next), Expression::Int(1));
            lowering.emit(Statement::Set(next, more));
            lowering.changed();
            lowering.run(block);
        });
        self.emit(Statement::Loop(code));
    }

    fn each(&mut self, variable: VarId, map: MapId, block: &Block) {
        self.forget();
        let found = self.maps.get(map).clone();
        let of = self.variables[variable.0 as usize].of.clone();
        let Type::Tuple(types) = &of else { return };
        let places = self.structs.places(types.iter().map(|of| ("", of)), 0);
        let (Some(key_at), Some(value_at)) =
            (places.fields.first().map(|field| field.offset), places.fields.get(1).map(|field| field.offset))
        else {
            return;
        };
        let Home::Scratch(at) = self.home(variable) else { return };
        let raw = stored(&found.value.number());
        let is_aggregate = matches!(found.value, Type::Aggregate(_));
        let value_size = match self.output.program.maps.get(map.0 as usize).map(|map| map.value) {
            Some(MapValue::Aggregate(aggregation)) => 8 * aggregation.words(),
            _ => self.structs.size(&raw),
        };
        let is_direct = !is_aggregate && raw.is_same(&types[1]);
        let value = if is_direct { at + value_at } else { self.room(value_size) };
        let body = self.branch(|lowering| {
            if !is_direct {
                let number = if is_aggregate {
                    lowering.number_at(&found.value, value)
                } else {
                    super::value::load(Place::Scratch(value), &raw)
                };
                let to = Place::Scratch(at + value_at);
                lowering.emit(Statement::Store { to, as_: width(&types[1]), value: number });
            }
            lowering.changed();
            lowering.run(block);
        });
        let used: u32 = places.fields.iter().map(|field| field.shape.size()).sum();
        if used != places.size {
            self.emit(Statement::Zero { to: Place::Scratch(at), size: places.size });
        }
        let (key, value) = (Place::Scratch(at + key_at), Place::Scratch(value));
        self.emit(Statement::ForEach { map, key, value, body });
    }

    /// Tells that something went wrong.
    pub fn tell_error(&mut self, kind: ErrorKind, span: Span, says: Expression) {
        let location = crate::check::location(self.sources, span);
        self.tell(Message::Error(kind, location), vec![Part::Word(says)]);
    }

    /// Tells that an address could not be read.
    pub fn tell_unread(&mut self, ok: crate::ir::LocalId, span: Span, address: Expression) {
        let told = self.branch(|lowering| lowering.tell_error(ErrorKind::Unreadable, span, address));
        self.emit(Statement::If(Expression::Local(ok), Vec::new(), told));
    }

    /// Tells something.
    pub fn tell(&mut self, message: Message, parts: Vec<Part>) {
        let message = self.output.message(message, self.longest);
        self.emit(Statement::Emit { message, parts });
    }

    /// Something of the hit. At a return, what there was at the entry.
    pub fn context(&mut self, context: crate::ir::Context) -> Expression {
        match self.kept.iter().position(|kept| *kept == context) {
            Some(index) => {
                let from = Place::Scratch(self.kept_at + 8 * index as u32);
                Expression::Load { from, as_: crate::ir::Width::Unsigned(8) }
            }
            None => Expression::Context(context),
        }
    }
}
