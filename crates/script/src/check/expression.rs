//! Expressions: what each is, and of which type.

use super::checker::Checker;
use super::statement::{at, dollar};
use super::tree::{Block, Expr, Key, Kind, Stmt};
use super::types::{Int, Space, Type};
use crate::ir::{Binary, MapId, Unary};
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind, PlaceKind, Step, StepOrder, UnaryOp};
use crate::syntax::number;
use std::sync::Arc;

impl Checker<'_> {
    /// An expression.
    pub fn expr(&mut self, expr: &ast::Expr) -> Expr {
        let checked = self.deeper(expr.span, |checker| checker.kind(expr));
        checked.unwrap_or_else(|| Expr::nothing(expr.span))
    }

    /// An expression whose value nobody wants: branches need not agree.
    pub fn expr_as_statement(&mut self, expr: &ast::Expr) -> Expr {
        match &expr.kind {
            ExprKind::Block(block) => {
                let block = self.block(block);
                let of = block.value.as_ref().map_or(Type::None, |value| value.of.clone());
                Expr { of, span: expr.span, kind: Kind::Block(Box::new(block)) }
            }
            ExprKind::If { condition, then, otherwise } => {
                let checked = self.deeper(expr.span, |checker| {
                    checker.branches(condition, then, otherwise.as_deref(), expr.span)
                });
                checked.unwrap_or_else(|| Expr::nothing(expr.span))
            }
            _ => self.expr(expr),
        }
    }

    /// An expression, as the number that it is if it is an aggregation.
    pub fn number_of(&mut self, expr: &ast::Expr) -> Expr {
        let value = self.expr(expr);
        self.as_number(value)
    }

    fn kind(&mut self, expr: &ast::Expr) -> Expr {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Integer(integer) => literal(integer.value.into(), span),
            ExprKind::Float(float) => Expr { of: Type::Float(8), span, kind: Kind::Float(float.value) },
            ExprKind::Boolean(value) => Expr::int(Type::Bool, (*value).into(), span),
            ExprKind::String(text) => self.text(text.clone(), span),
            ExprKind::Positional(number) => self.positional(*number, span),
            ExprKind::PositionalCount => literal(self.environment.parameters().len() as i128, span),
            ExprKind::Identifier(name) => self.identifier(name, span),
            ExprKind::Builtin(name) => match self.builtin(name, span) {
                Some(value) => value,
                None => {
                    self.error(span, format!("Unknown identifier: '{name}'"));
                    Expr::nothing(span)
                }
            },
            ExprKind::Call { name, arguments } => self.call(name, arguments, span),
            ExprKind::TypeArg(of) => {
                self.type_of_written(of);
                self.error(span, "typeof() can only be used where a type is expected");
                Expr::nothing(span)
            }
            ExprKind::Sizeof(of) => {
                let of = self.meta("sizeof", |checker| checker.type_of_written(of));
                if of.is_none() {
                    return Expr::nothing(span);
                }
                let size = self.structs.size(&of);
                literal(size.into(), span)
            }
            ExprKind::Offsetof { of, fields } => self.offset_of(of, fields, span),
            ExprKind::Typeinfo(of) => self.type_info(of, span),
            ExprKind::Variable(name) => match self.read(&dollar(name), span) {
                Some(id) => {
                    let of = self.type_of(id);
                    if of.is_none() && self.at.meta.is_none() && !self.told.has_errors() {
                        self.error(span, "Could not resolve the type of this variable");
                    }
                    Expr { of, span, kind: Kind::Variable(id) }
                }
                None => Expr::nothing(span),
            },
            ExprKind::Map(name) => match self.scalar_map(name, span) {
                Some(key) => self.get(key, span),
                None => Expr::nothing(span),
            },
            ExprKind::MapElement { map, key } => match self.keyed_map(map, key, span) {
                Some(key) => self.get(key, span),
                None => Expr::nothing(span),
            },
            ExprKind::VariableAddress(name) => self.address_of(name, span),
            ExprKind::MapAddress(name) => {
                let map = self.map(&at(&name.text), name.span);
                _ = map;
                self.error(span, "the address of a map cannot be taken");
                Expr::nothing(span)
            }
            ExprKind::Binary { op, left, right } => {
                let (left, right) = (self.expr(left), self.expr(right));
                self.binary(*op, left, right, span)
            }
            ExprKind::Unary { op, operand } => {
                let operand = self.expr(operand);
                self.unary(*op, operand, span)
            }
            ExprKind::Step { place, step, order } => self.step(place, *step, *order, span),
            ExprKind::Field { of, name, .. } => {
                let of = self.expr(of);
                self.field(of, name, span)
            }
            ExprKind::TupleIndex { of, index } => {
                let of = self.expr(of);
                self.tuple_part(of, *index, span)
            }
            ExprKind::Index { of, index } => {
                let of = self.expr(of);
                let index = self.number_of(index);
                self.index(of, index, span)
            }
            ExprKind::Cast { to, value } => {
                let value = self.expr(value);
                let to = self.type_of_written(to);
                self.cast(value, to, span)
            }
            ExprKind::Tuple(parts) => self.tuple(parts, span),
            ExprKind::Record(fields) => self.record(fields, span),
            ExprKind::Ternary { condition, then, otherwise } => {
                self.ternary(condition, then.as_deref(), otherwise, span)
            }
            ExprKind::If { condition, then, otherwise } => {
                self.branches(condition, then, otherwise.as_deref(), span)
            }
            ExprKind::Block(block) => {
                let block = self.block(block);
                match block.value {
                    // A literal is one, also in braces.
                    Some(value)
                        if block.statements.is_empty()
                            && (value.is_literal() || block.variables.is_empty()) =>
                    {
                        *value
                    }
                    _ => {
                        let of = block.value.as_ref().map_or(Type::None, |value| value.of.clone());
                        Expr { of, span, kind: Kind::Block(Box::new(block)) }
                    }
                }
            }
            ExprKind::Comptime(inner) => {
                let value = self.expr(inner);
                if self.is_last && !value.is_literal() {
                    self.error(span, "Unable to resolve comptime expression");
                }
                value
            }
        }
    }

    /// A string literal.
    pub fn text(&mut self, text: Vec<u8>, span: Span) -> Expr {
        let room = u32::try_from(text.len() + 1).unwrap_or(u32::MAX);
        Expr { of: Type::String(room), span, kind: Kind::Text(text) }
    }

    fn positional(&mut self, index: u64, span: Span) -> Expr {
        let parameters = self.environment.parameters();
        let value = usize::try_from(index).ok().and_then(|index| parameters.get(index.checked_sub(1)?));
        let value = value.cloned().unwrap_or_default();
        if value.is_empty() {
            self.warning(span, format!("Positional parameter ${index} is empty or not provided. "));
            return literal(0, span);
        }
        match whole_number(&value) {
            Some(number) => literal(number, span),
            None => self.text(value.into_bytes(), span),
        }
    }

    /// A positional parameter as the text that it is.
    pub fn positional_text(&mut self, index: u64, span: Span) -> Expr {
        let parameters = self.environment.parameters();
        let value = usize::try_from(index).ok().and_then(|index| parameters.get(index.checked_sub(1)?));
        let value = value.cloned().unwrap_or_default();
        self.text(value.into_bytes(), span)
    }

    fn identifier(&mut self, name: &str, span: Span) -> Expr {
        if let Some(value) = self.builtin(name, span) {
            return value;
        }
        if let Some((of, value)) = self.structs.enumerator(name) {
            let of = match of {
                // As a value of its own it is as wide as any integer.
                Type::Enum(int, names) => Type::Enum(Int { size: 8, ..int }, names),
                other => other,
            };
            return Expr::int(of, value, span);
        }
        if is_mode(name) {
            return Expr { of: Type::Mode, ..Expr::nothing(span) };
        }
        self.error(span, format!("Unknown identifier: '{name}'"));
        Expr::nothing(span)
    }

    /// The map of this name, used as a whole.
    pub fn map(&mut self, name: &str, span: Span) -> MapId {
        let id = self.maps.number(name, span);
        self.maps.get_mut(id).is_used = true;
        id
    }

    /// The one value of a map.
    pub fn scalar_map(&mut self, name: &str, span: Span) -> Option<Key> {
        let name = at(name);
        let map = self.map(&name, span);
        let found = self.maps.get_mut(map);
        if found.is_scalar == Some(false) {
            self.error(
                span,
                format!(
                    "{name} used as a map without an explicit key (scalar map), previously used with an explicit key \
                     (non-scalar map)"
                ),
            );
            return None;
        }
        if found.is_scalar.is_none() {
            found.is_scalar = Some(true);
            self.has_changed = true;
        }
        self.widen_key(map, &Type::INT64);
        Some(Key { map, key: None })
    }

    /// A key of a map.
    pub fn keyed_map(&mut self, map: &ast::Name, key: &ast::Expr, span: Span) -> Option<Key> {
        let key = self.expr(key);
        self.key_of(map, key, span)
    }

    /// A key of a map, checked already.
    pub fn key_of(&mut self, map: &ast::Name, key: Expr, span: Span) -> Option<Key> {
        let name = at(&map.text);
        let id = self.map(&name, map.span);
        let found = self.maps.get_mut(id);
        if found.is_scalar == Some(true) {
            self.error(
                span,
                format!(
                    "{name} used as a map with an explicit key (non-scalar map), previously used without an explicit \
                     key (scalar map)"
                ),
            );
            return None;
        }
        if found.is_scalar.is_none() {
            found.is_scalar = Some(false);
            self.has_changed = true;
        }
        let parts = match &key.of {
            Type::Tuple(parts) => parts.to_vec(),
            other => vec![other.clone()],
        };
        if let Some(chart) = parts.iter().find(|of| of.is_chart()) {
            self.error(key.span, format!("{chart} cannot be part of a map key"));
            return None;
        }
        if matches!(key.of, Type::Void | Type::Mode) {
            self.error(span, format!("Value '{}' cannot be used as a map key.", key.of));
            return None;
        }
        if key.of.is_none() {
            if self.is_last && !self.told.has_errors() {
                self.error(key.span, format!("Invalid map key type: {}", key.of));
            }
            return None;
        }
        let key = self.as_number(key);
        let from = key.of.clone();
        let fits = self.widen_key(id, &from);
        let of = self.maps.get(id).key.clone();
        match self.coerced(key, &of) {
            Some(key) if fits => Some(Key { map: id, key: Some(Box::new(key)) }),
            _ => {
                self.error(
                    span,
                    format!(
                        "Argument mismatch for {name}: trying to access with arguments: '{from}' when map expects \
                         arguments: '{of}'"
                    ),
                );
                None
            }
        }
    }

    /// The place in a map that is assigned to.
    pub fn map_place(&mut self, place: &ast::Place) -> Option<Key> {
        match &place.kind {
            PlaceKind::Map(name) => self.scalar_map(name, place.span),
            PlaceKind::MapElement { map, key } => self.keyed_map(map, key, place.span),
            PlaceKind::Variable(_) => None,
        }
    }

    /// What a map has for a key.
    pub fn get(&mut self, key: Key, span: Span) -> Expr {
        let map = self.maps.get(key.map);
        let of = map.value.clone();
        if of.is_none() || map.key.is_none() {
            let name = map.name.clone();
            if self.is_last {
                self.error(span, format!("Undefined map: {name}"));
            }
            return Expr::nothing(span);
        }
        let kind = if matches!(of, Type::Aggregate(_)) { Kind::Number(key) } else { Kind::Get(key) };
        Expr { of, span, kind }
    }

    fn address_of(&mut self, name: &ast::Name, span: Span) -> Expr {
        let variable = dollar(&name.text);
        let Some(id) = self.assigned(&variable) else {
            self.error(name.span, format!("Undefined or undeclared variable: {variable}"));
            return Expr::nothing(span);
        };
        let of = self.type_of(id);
        if of.is_none() {
            if self.is_last {
                self.error(span, format!("No type available for variable {variable}"));
            }
            return Expr::nothing(span);
        }
        self.at.body.variables[id.0 as usize].is_addressed = true;
        Expr { of: Type::Pointer(Arc::new(of), Space::Own), span, kind: Kind::Address(id) }
    }

    fn unary(&mut self, op: UnaryOp, operand: Expr, span: Span) -> Expr {
        if operand.of.is_none() {
            return Expr::nothing(span);
        }
        let operand = self.as_number(operand);
        let of = operand.of.clone();
        let refuse = |checker: &mut Self| {
            checker.error(
                span,
                format!("The {} operator can not be used on expressions of type '{of}'", op.symbol()),
            );
            Expr::nothing(span)
        };
        match (op, &of) {
            (UnaryOp::Dereference, Type::Pointer(to, _)) => {
                let to = (**to).clone();
                if matches!(to, Type::Void) {
                    return refuse(self);
                }
                Expr { of: to, span, kind: Kind::Deref(Box::new(operand)) }
            }
            (UnaryOp::Dereference, Type::Int(_)) => {
                Expr { of: Type::UINT64, span, kind: Kind::Deref(Box::new(operand)) }
            }
            // For old scripts that write `*args`.
            (UnaryOp::Dereference, Type::Record(_)) if matches!(operand.kind, Kind::Tuple(_)) => operand,
            (UnaryOp::Not, Type::Int(_) | Type::Enum(..) | Type::Bool | Type::Float(_)) => {
                if let Some(truth) = operand.truth() {
                    return Expr::int(Type::Bool, (!truth).into(), span);
                }
                let operand = self.truth(operand);
                Expr { of: Type::Bool, span, kind: Kind::Unary(Unary::IsZero, Box::new(operand)) }
            }
            (UnaryOp::Minus, Type::Float(_)) => {
                let operand = super::convert::converted(operand, &Type::Float(8));
                match operand.kind {
                    Kind::Float(value) => Expr { of: Type::Float(8), span, kind: Kind::Float(-value) },
                    _ => Checker::unary_int(Unary::FloatNegate, operand, Type::Float(8), span),
                }
            }
            (UnaryOp::Minus | UnaryOp::BitNot, Type::Int(_) | Type::Enum(..)) => {
                if let (Some(value), Type::Int(_)) = (operand.literal(), &of) {
                    return self.folded_unary(op, value, span);
                }
                let signed = of.as_int().is_some_and(|int| int.signed);
                let operation = if op == UnaryOp::Minus { Unary::Negate } else { Unary::Not };
                Checker::unary_int(operation, operand, Type::int(8, signed), span)
            }
            _ => refuse(self),
        }
    }

    fn folded_unary(&mut self, op: UnaryOp, value: i128, span: Span) -> Expr {
        match op {
            UnaryOp::BitNot => literal(i128::from(!(value as u64)), span),
            _ if value > 1 << 63 => {
                self.error(span, "negative value will underflow");
                Expr::nothing(span)
            }
            _ => literal(-value, span),
        }
    }

    fn step(&mut self, place: &ast::Place, step: Step, order: StepOrder, span: Span) -> Expr {
        let after = order == StepOrder::Before;
        let up = step == Step::Up;
        let sign = if up { 1 } else { -1 };
        let symbol = if up { "++" } else { "--" };
        let refuse = |checker: &mut Self, of: &Type| {
            checker
                .error(span, format!("The {symbol} operator can not be used on expressions of type '{of}'"));
            Expr::nothing(span)
        };
        match &place.kind {
            PlaceKind::Variable(name) => {
                let name = dollar(name);
                let Some(variable) = self.read(&name, place.span) else { return Expr::nothing(span) };
                self.assigned(&name);
                let of = self.type_of(variable);
                match &of {
                    Type::None => Expr::nothing(span),
                    Type::Pointer(to, _) => {
                        let by = sign * i64::from(self.structs.size(to).max(1));
                        Expr { of, span, kind: Kind::Step { variable, by, after } }
                    }
                    Type::Int(int) => {
                        if !self.is_fixed(variable) {
                            self.widen(variable, &Type::int(8, int.signed || !up));
                        }
                        let of = self.type_of(variable);
                        Expr { of, span, kind: Kind::Step { variable, by: sign, after } }
                    }
                    _ => {
                        let from = if up { "uint64" } else { "int64" };
                        self.error(
                            span,
                            format!(
                                "Type mismatch for {name}: trying to assign value of type '{from}' when variable \
                                 already has a type '{of}'"
                            ),
                        );
                        Expr::nothing(span)
                    }
                }
            }
            PlaceKind::Map(_) | PlaceKind::MapElement { .. } => {
                let Some(key) = self.map_place(place) else { return Expr::nothing(span) };
                let of = self.maps.get(key.map).value.clone();
                match &of {
                    Type::Pointer(to, _) => {
                        let by = sign * i64::from(self.structs.size(to).max(1));
                        Expr { of, span, kind: Kind::StepKey { key, by, after } }
                    }
                    Type::None => {
                        if !up {
                            self.widen_value(key.map, &Type::INT64);
                        }
                        Expr { of: Type::None, span, kind: Kind::Nothing }
                    }
                    Type::Int(int) => {
                        let result = Type::int(8, int.signed || !up);
                        self.widen_value(key.map, &result);
                        let of = self.maps.get(key.map).value.clone();
                        Expr { of, span, kind: Kind::StepKey { key, by: sign, after } }
                    }
                    _ => {
                        if matches!(of, Type::Aggregate(_)) {
                            let name = self.maps.get(key.map).name.clone();
                            self.error(
                                span,
                                format!(
                                    "Type mismatch for {name}: trying to assign value of type 'int64' when map \
                                     already has a type '{of}'"
                                ),
                            );
                            return Expr::nothing(span);
                        }
                        refuse(self, &of)
                    }
                }
            }
        }
    }

    fn tuple(&mut self, parts: &[ast::Expr], span: Span) -> Expr {
        let mut all = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let part = self.expr(part);
            if part.of.is_chart() && !matches!(part.of, Type::Aggregate(super::types::Aggregate::Stats(_))) {
                self.error(part.span, format!("Map type {} cannot exist inside a tuple.", part.of));
                return Expr::nothing(span);
            }
            if matches!(part.of, Type::Void) {
                self.error(part.span, "void cannot exist inside a tuple.");
                return Expr::nothing(span);
            }
            all.push((index, self.as_number(part)));
        }
        if all.iter().any(|(_, part)| part.of.is_none()) {
            return Expr::nothing(span);
        }
        let of = Type::Tuple(all.iter().map(|(_, part)| part.of.clone()).collect::<Vec<_>>().into());
        Expr { of, span, kind: Kind::Tuple(all) }
    }

    fn record(&mut self, fields: &[ast::RecordField], span: Span) -> Expr {
        let mut all = Vec::new();
        let mut types: Vec<(Arc<str>, Type)> = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            let part = self.expr(&field.value);
            if part.of.is_chart() {
                self.error(part.span, format!("Map type {} cannot exist inside a record.", part.of));
                return Expr::nothing(span);
            }
            let part = self.as_number(part);
            types.push((field.name.text.as_str().into(), part.of.clone()));
            all.push((index, part));
        }
        if all.iter().any(|(_, part)| part.of.is_none() || part.of == Type::Void) {
            return Expr::nothing(span);
        }
        Expr { of: Type::Record(types.into()), span, kind: Kind::Tuple(all) }
    }

    fn ternary(
        &mut self,
        condition: &ast::Expr,
        then: Option<&ast::Expr>,
        otherwise: &ast::Expr,
        span: Span,
    ) -> Expr {
        let value = self.number_of(condition);
        let Some(then) = then else {
            // The condition is the value, and evaluated once.
            let of = value.of.clone();
            let hidden = self.hidden(span, of.clone());
            let kept = Expr { of, span: value.span, kind: Kind::Variable(hidden) };
            let condition = self.checked_condition(kept.clone(), span);
            let otherwise = self.expr(otherwise);
            let choice = self.choice(condition, block_of(kept), block_of(otherwise), span);
            let of = choice.of.clone();
            let statements = vec![Stmt::Set(hidden, value)];
            let block = Block { variables: Vec::new(), statements, value: Some(Box::new(choice)) };
            return Expr { of, span, kind: Kind::Block(Box::new(block)) };
        };
        let condition = self.checked_condition(value, span);
        let (then, otherwise) = (self.expr(then), self.expr(otherwise));
        if let (Some(truth), true, true) = (condition.truth(), then.is_literal(), otherwise.is_literal()) {
            return if truth { then } else { otherwise };
        }
        self.choice(condition, block_of(then), block_of(otherwise), span)
    }

    fn checked_condition(&mut self, condition: Expr, span: Span) -> Expr {
        if let (Kind::Text(_), Some(truth)) = (&condition.kind, condition.truth()) {
            return Expr::int(Type::Bool, truth.into(), condition.span);
        }
        match condition.of {
            Type::Int(_) | Type::Enum(..) | Type::Bool | Type::Pointer(..) | Type::Float(_) | Type::None => {}
            _ => self.error(span, format!("Invalid condition: {}", condition.of.kind())),
        }
        self.truth(condition)
    }

    fn branches(
        &mut self,
        condition: &ast::Expr,
        then: &ast::Block,
        otherwise: Option<&ast::Expr>,
        span: Span,
    ) -> Expr {
        if let ExprKind::Comptime(condition) = &condition.kind {
            let condition = self.expr(condition);
            let Some(truth) = condition.truth() else {
                // Which one it is, later rounds will know.
                if self.is_last {
                    self.error(condition.span, "Unable to resolve comptime expression");
                }
                return Expr::nothing(span);
            };
            // The branch that is not taken is not looked at.
            return match (truth, otherwise) {
                (true, _) => {
                    let block = self.block(then);
                    valued(block, span)
                }
                (false, Some(otherwise)) => self.expr_as_statement(otherwise),
                (false, None) => Expr::nothing(span),
            };
        }
        let condition = self.condition(condition, span);
        let then = self.block(then);
        let otherwise = match otherwise {
            Some(otherwise) => match self.expr_as_statement(otherwise) {
                Expr { kind: Kind::Block(block), .. } => *block,
                Expr { kind: Kind::Nothing, .. } => Block::default(),
                other if other.of.is_none() => {
                    Block { statements: vec![Stmt::Effect(other)], ..Block::default() }
                }
                other => block_of(other),
            },
            None => Block::default(),
        };
        self.choice(condition, then, otherwise, span)
    }

    /// One of two.
    fn choice(&mut self, condition: Expr, mut then: Block, mut otherwise: Block, span: Span) -> Expr {
        let of = |block: &Block| block.value.as_ref().map_or(Type::None, |value| value.of.clone());
        let (left, right) = (of(&then), of(&otherwise));
        let has_none = then.value.is_none() || otherwise.value.is_none();
        let result = match (&left, &right) {
            (Type::Void, Type::Void) => Type::Void,
            (Type::None, _) | (_, Type::None) if has_none || !self.is_last => Type::None,
            (left, right) => match left.promoted(right) {
                Some(both) => both.number(),
                None => {
                    self.error(
                        span,
                        format!(
                            "Branches must return the same type or compatible types: have '{left}' and '{right}'"
                        ),
                    );
                    return Expr::nothing(span);
                }
            },
        };
        for block in [&mut then, &mut otherwise] {
            let Some(value) = block.value.take() else { continue };
            let value = self.as_number(*value);
            if result.is_none() {
                // Without a value on both sides, it is done for its effect.
                block.statements.push(Stmt::Effect(value));
            } else if result == Type::Void {
                block.value = Some(Box::new(value));
            } else {
                block.value = Some(Box::new(super::convert::converted(value, &result)));
            }
        }
        Expr { of: result, span, kind: Kind::If(Box::new(condition), Box::new(then), Box::new(otherwise)) }
    }

    fn type_info(&mut self, of: &ast::TypeOf, span: Span) -> Expr {
        self.unstable("typeinfo", "unstable_typeinfo", self.settings.unstable_typeinfo, span);
        let of = self.type_of_written(of);
        if of.is_none() {
            return Expr::nothing(span);
        }
        let parts = [
            ("btf_id", Expr::int(Type::UINT64, 0, span)),
            ("base_type", self.text(of.kind().as_bytes().to_vec(), span)),
            ("full_type", self.text(of.to_string().into_bytes(), span)),
        ];
        let types = parts.iter().map(|(name, part)| (Arc::from(*name), part.of.clone()));
        let of = Type::Record(types.collect::<Vec<_>>().into());
        let parts = parts.into_iter().enumerate().map(|(index, (_, part))| (index, part));
        Expr { of, span, kind: Kind::Tuple(parts.collect()) }
    }
}

/// An integer literal.
pub fn literal(value: i128, span: Span) -> Expr {
    Expr::int(Type::Int(Int::of_literal(value)), value as i64, span)
}

/// A whole number as the command line has it.
pub fn whole_number(text: &str) -> Option<i128> {
    match text.strip_prefix('-') {
        Some(rest) => {
            let value = i128::from(number::parse(rest).ok()?);
            (value <= 1 << 63).then_some(-value)
        }
        None => number::parse(text).ok().map(i128::from),
    }
}

fn block_of(value: Expr) -> Block {
    Block { value: Some(Box::new(value)), ..Block::default() }
}

fn valued(block: Block, span: Span) -> Expr {
    match block.value {
        Some(value) if block.statements.is_empty() && block.variables.is_empty() => *value,
        _ => {
            let of = block.value.as_ref().map_or(Type::None, |value| value.of.clone());
            Expr { of, span, kind: Kind::Block(Box::new(block)) }
        }
    }
}

/// Words that say how a function works.
fn is_mode(name: &str) -> bool {
    matches!(
        name,
        "monotonic"
            | "boot"
            | "tai"
            | "sw_tai"
            | "bpftrace"
            | "perf"
            | "raw"
            | "build_id"
            | "curr_ns"
            | "init"
            | "current_pid"
            | "current_tid"
    )
}

/// Comparisons of integers.
pub fn comparison(of: Int, op: ast::BinaryOp) -> Option<(Binary, bool)> {
    use ast::BinaryOp;
    let (less, less_or_equal) = match of.signed {
        true => (Binary::Less, Binary::LessOrEqual),
        false => (Binary::UnsignedLess, Binary::UnsignedLessOrEqual),
    };
    Some(match op {
        BinaryOp::Equal => (Binary::Equal, false),
        BinaryOp::NotEqual => (Binary::NotEqual, false),
        BinaryOp::Less => (less, false),
        BinaryOp::LessEqual => (less_or_equal, false),
        BinaryOp::Greater => (less, true),
        BinaryOp::GreaterEqual => (less_or_equal, true),
        _ => return None,
    })
}
