//! Statements: what they do to variables and maps.

use super::checker::{Checker, Origin};
use super::tree::{Block, Expr, Key, Kind, Stmt, VarId};
use super::types::Type;
use crate::diagnostics::Diagnostic;
use crate::source::Span;
use crate::syntax::ast::{self, BinaryOp, Iterable, PlaceKind, StmtKind};

impl Checker<'_> {
    /// A block with its own variables.
    pub fn block(&mut self, block: &ast::Block) -> Block {
        self.open();
        let mut checked = self.statements(block);
        checked.variables = self.close();
        checked
    }

    /// What stands in a block, in the scope that is open.
    pub fn statements(&mut self, block: &ast::Block) -> Block {
        let mut checked = Block::default();
        let mut has_ended = false;
        let mut is_told = false;
        for statement in &block.statements {
            if has_ended && !is_told {
                self.warning(statement.span, "Unreachable statement.");
                is_told = true;
            }
            // What is not reached is checked, but not done.
            let more = self.statement(statement);
            if !has_ended {
                has_ended = more.last().is_some_and(ends);
                checked.statements.extend(more);
            }
        }
        if let Some(value) = &block.value {
            let value_of = self.expr(value);
            if has_ended {
                self.warning(value.span, "Unreachable expression; block type is implicitly none.");
            } else {
                checked.value = Some(Box::new(value_of));
            }
        }
        checked
    }

    fn statement(&mut self, statement: &ast::Stmt) -> Vec<Stmt> {
        let span = statement.span;
        match &statement.kind {
            StmtKind::Expr(expr) => {
                let is_step = matches!(expr.kind, ast::ExprKind::Step { .. });
                let checked = self.expr_as_statement(expr);
                if !is_step && !matches!(checked.of, Type::None | Type::Void) {
                    self.warning(span, "Return value discarded.");
                }
                vec![Stmt::Effect(checked)]
            }
            StmtKind::Discard(value) => vec![Stmt::Effect(self.expr(value))],
            StmtKind::Let { variable, of, value } => {
                self.declaration(variable, of.as_ref(), value.as_ref(), span)
            }
            StmtKind::Assign { place, op, value } => match op {
                None => self.assignment(place, value, span),
                Some(op) => self.compound(place, *op, value, span),
            },
            StmtKind::Unroll { count, body } => self.unroll(count, body, span),
            StmtKind::While { condition, body } => {
                self.warning(span, "While loops are deprecated and may be removed in the future.");
                let condition = self.condition(condition, span);
                self.at.loops += 1;
                let body = self.block(body);
                self.at.loops -= 1;
                vec![Stmt::While(condition, body)]
            }
            StmtKind::For { variable, over, body } => self.for_each(variable, over, body),
            StmtKind::Break | StmtKind::Continue => {
                let is_break = statement.kind == StmtKind::Break;
                if self.at.loops == 0 {
                    let word = if is_break { "break" } else { "continue" };
                    self.error(span, format!("'{word}' statement is not allowed in a probe"));
                }
                vec![if is_break { Stmt::Break } else { Stmt::Continue }]
            }
            StmtKind::Return(value) => {
                let value = value.as_ref().map(|value| self.expr(value));
                if let Some(value) = &value
                    && !value.of.is_int()
                    && !value.of.is_none()
                    && value.of != Type::Bool
                {
                    self.error(span, format!("Probe return values can only be integers. Found {}", value.of));
                }
                vec![Stmt::Return(value)]
            }
            // Imports are read before anything is checked.
            StmtKind::Import(_) => Vec::new(),
        }
    }

    fn declaration(
        &mut self,
        variable: &ast::Name,
        of: Option<&ast::TypeOf>,
        value: Option<&ast::Expr>,
        span: Span,
    ) -> Vec<Stmt> {
        let value = value.map(|value| self.expr(value));
        let told = of.map(|of| (self.type_of_written(of), of.span));
        let name = dollar(&variable.text);
        if let Some((declared, origin)) = self.declared(&name) {
            let message = format!("Variable {name} was already declared. Variable shadowing is not allowed.");
            let place = span.to(of.map_or(variable.span, |of| of.span));
            self.tell(Diagnostic::error(place, message).related(declared, origin_text(origin)));
            return Vec::new();
        }
        let id = self.declare(&name, variable.span, Origin::Declaration);
        if let Some((of, at)) = told {
            match &of {
                Type::None => self.error(at, "Type cannot be resolved: still none"),
                Type::Aggregate(_) | Type::Void => {
                    self.error(at, format!("Invalid variable declaration type: {of}"));
                }
                // These take their size from what is put in.
                Type::String(0) | Type::Buffer(0) | Type::Array(_, 0) => _ = self.widen(id, &of),
                _ => self.fix(id, of),
            }
        }
        match value {
            Some(value) => {
                self.assigned(&name);
                self.set(id, &name, value, span)
            }
            None => vec![Stmt::Clear(id)],
        }
    }

    fn assignment(&mut self, place: &ast::Place, value: &ast::Expr, span: Span) -> Vec<Stmt> {
        match &place.kind {
            PlaceKind::Variable(name) => {
                let value = self.expr(value);
                let name = dollar(name);
                let id = match self.assigned(&name) {
                    Some(id) => id,
                    None => self.declare(&name, place.span, Origin::Assignment),
                };
                self.set(id, &name, value, span)
            }
            PlaceKind::Map(_) | PlaceKind::MapElement { .. } => {
                if self.is_aggregation(value) {
                    self.refuse_in_meta(span);
                    return self.aggregation(place, value, span);
                }
                self.refuse_in_meta(span);
                let Some(key) = self.map_place(place) else { return Vec::new() };
                let value = self.expr(value);
                self.set_key(key, value, span)
            }
        }
    }

    /// Gives a variable a value.
    pub fn set(&mut self, id: VarId, name: &str, value: Expr, span: Span) -> Vec<Stmt> {
        let current = self.type_of(id);
        let number = value.of.is_number_of_aggregate();
        if value.of == Type::Void
            || value.of.is_chart()
            || (number && !current.is_none() && !current.is_int() && !matches!(current, Type::Float(_)))
        {
            self.error(span, format!("Value '{}' cannot be assigned to a scratch variable.", value.of));
            return Vec::new();
        }
        if value.of.is_none() {
            if !self.told.has_errors() {
                self.error(span, "Invalid expression for assignment");
            }
            return Vec::new();
        }
        let fits = self.widen(id, &value.of);
        let of = self.type_of(id);
        let from = value.of.clone();
        match self.coerced(value, &of) {
            Some(value) if fits => vec![Stmt::Set(id, value)],
            _ => {
                self.error(
                    span,
                    format!(
                        "Type mismatch for {name}: trying to assign value of type '{from}' when variable already \
                         has a type '{of}'"
                    ),
                );
                Vec::new()
            }
        }
    }

    /// Gives a key of a map a value.
    fn set_key(&mut self, key: Key, value: Expr, span: Span) -> Vec<Stmt> {
        let map = self.maps.get(key.map);
        let (name, current) = (map.name.clone(), map.value.clone());
        let from = value.of.clone();
        let number = from.is_number_of_aggregate();
        if from == Type::Void
            || from.is_chart()
            || (number && !current.is_int() && !matches!(current, Type::Float(_)))
        {
            let Type::Aggregate(aggregate) = from else {
                self.error(span, format!("Value '{from}' cannot be assigned to a map."));
                return Vec::new();
            };
            let mut told = Diagnostic::error(
                span,
                format!(
                    "Map value '{from}' cannot be assigned from one map to another. The function that returns this \
                     type must be called directly e.g. `{name} = {};`.",
                    aggregate.hint()
                ),
            );
            if let (true, Kind::Number(other)) = (number, &value.kind) {
                let other = &self.maps.get(other.map).name;
                told = told.hint(format!(
                    "Add a cast to integer if you want the value of the aggregate, e.g. `{name} = (int64){other};`."
                ));
            }
            // While types are still being found, the map may yet become one of integers.
            self.maps.get_mut(key.map).is_copied_to = true;
            self.tell(told);
            return Vec::new();
        }
        if from.is_none() {
            if !self.told.has_errors() {
                self.error(
                    span,
                    format!(
                        "Type mismatch for {name}: trying to assign value of type '{from}' when map already has a \
                         value type '{current}'"
                    ),
                );
            }
            return Vec::new();
        }
        let mismatch = |current: &Type| {
            format!(
                "Type mismatch for {name}: trying to assign value of type '{from}' when map already has a type \
                 '{current}'"
            )
        };
        if matches!(current, Type::Aggregate(_)) || !self.widen_value(key.map, &from) {
            self.error(span, mismatch(&current));
            return Vec::new();
        }
        let of = self.maps.get(key.map).value.clone();
        match self.coerced(value, &of) {
            Some(value) => vec![Stmt::SetKey(key, value, span)],
            None => {
                self.error(span, mismatch(&of));
                Vec::new()
            }
        }
    }

    fn compound(&mut self, place: &ast::Place, op: BinaryOp, value: &ast::Expr, span: Span) -> Vec<Stmt> {
        match &place.kind {
            PlaceKind::Variable(name) => {
                let name = dollar(name);
                let Some(id) = self.read(&name, place.span) else {
                    self.expr(value);
                    return Vec::new();
                };
                let left = Expr { of: self.type_of(id), span: place.span, kind: Kind::Variable(id) };
                let right = self.expr(value);
                let result = self.binary(op, left, right, span);
                self.assigned(&name);
                self.set(id, &name, result, span)
            }
            PlaceKind::Map(_) | PlaceKind::MapElement { .. } => {
                let Some(key) = self.map_place(place) else { return Vec::new() };
                let right = self.expr(value);
                let left = self.get(key.clone(), place.span);
                let amount = right.clone();
                let result = self.binary(op, left, right, span);
                let map = self.maps.get(key.map);
                // An addition is one step in the map, which nobody comes between.
                let negate = op == BinaryOp::Subtract;
                if matches!(op, BinaryOp::Add | BinaryOp::Subtract)
                    && matches!(map.value, Type::Int(int) if int.size == 8)
                    && result.of.is_int()
                    && (amount.of.is_int() || amount.of.is_number_of_aggregate())
                {
                    self.widen_value(key.map, &result.of);
                    let mut amount = self.as_number(amount);
                    if negate {
                        let span = amount.span;
                        amount = Expr {
                            of: Type::INT64,
                            span,
                            kind: Kind::Unary(crate::ir::Unary::Negate, Box::new(amount)),
                        };
                    }
                    return vec![Stmt::AddKey(key, amount)];
                }
                self.set_key(key, result, span)
            }
        }
    }

    fn unroll(&mut self, count: &ast::Expr, body: &ast::Block, span: Span) -> Vec<Stmt> {
        let checked = self.expr(count);
        let times = match checked.literal() {
            Some(times @ 1..=100) => times as u32,
            Some(times) if times > 100 => {
                self.error(span, "unroll maximum value is 100");
                1
            }
            Some(0) => {
                self.error(span, "unroll minimum value is 1");
                1
            }
            _ => {
                self.error(span, "invalid unroll value");
                1
            }
        };
        let body = self.block(body);
        vec![Stmt::Unroll(times, body)]
    }

    fn for_each(&mut self, variable: &ast::Name, over: &Iterable, body: &ast::Block) -> Vec<Stmt> {
        let name = dollar(&variable.text);
        if let Some((declared, origin)) = self.declared(&name) {
            let message = format!("Loop declaration shadows existing variable: {name}");
            self.tell(Diagnostic::error(variable.span, message).related(declared, origin_text(origin)));
        }
        match over {
            Iterable::Map(map) => {
                let id = self.map(&at(&map.text), map.span);
                if self.maps.get(id).is_scalar == Some(true) {
                    self.error(
                        map.span,
                        format!(
                            "{} has no explicit keys (scalar map), and cannot be used for iteration",
                            at(&map.text)
                        ),
                    );
                } else {
                    self.maps.get_mut(id).is_scalar = Some(false);
                }
                let (key, value) = (self.maps.get(id).key.clone(), self.maps.get(id).value.clone());
                if value.is_chart() {
                    self.error(map.span, format!("Loop expression does not support type: {value}"));
                }
                if self.is_last && (key.is_none() || value.is_none()) {
                    self.error(map.span, format!("Undefined map: {}", at(&map.text)));
                }
                self.open();
                let variable = self.declare(&name, variable.span, Origin::Loop);
                if !key.is_none() && !value.is_none() {
                    self.fix(variable, Type::Tuple(vec![key, value.number()].into()));
                }
                self.at.loops += 1;
                let mut body = self.block(body);
                self.at.loops -= 1;
                body.variables.extend(self.close());
                vec![Stmt::Each(variable, id, body)]
            }
            Iterable::Range { start, end, span } => {
                let (first, last) = (self.number_of(start), self.number_of(end));
                for (bound, which) in [(&first, "start"), (&last, "end")] {
                    // What it is may be known later, but what is nothing in the end is none.
                    let may_be = bound.of.is_none() && (!self.is_last || self.told.has_errors());
                    if !bound.of.is_int() && !may_be {
                        self.error(*span, format!("Loop range requires an integer for the {which} value"));
                    }
                }
                let of = match (first.of.as_int(), last.of.as_int()) {
                    (Some(first), Some(last)) => Type::Int(first.promoted(last)),
                    _ => Type::None,
                };
                self.open();
                let variable = self.declare(&name, variable.span, Origin::Loop);
                self.widen(variable, &of);
                let of = self.type_of(variable);
                let convert = |bound| super::convert::converted(bound, &of);
                let (first, last) = (convert(first), convert(last));
                self.at.loops += 1;
                let mut body = self.block(body);
                self.at.loops -= 1;
                body.variables.extend(self.close());
                vec![Stmt::Range(variable, first, last, body)]
            }
        }
    }

    /// Where only a type is asked for, no map is written to.
    fn refuse_in_meta(&mut self, span: Span) {
        if let Some(around) = self.at.meta {
            self.error(span, format!("Map assignments not allowed inside of {around}"));
        }
    }

    /// An expression that decides something.
    pub fn condition(&mut self, condition: &ast::Expr, span: Span) -> Expr {
        let checked = self.number_of(condition);
        if let (Kind::Text(_), Some(truth)) = (&checked.kind, checked.truth()) {
            return Expr::int(Type::Bool, truth.into(), checked.span);
        }
        match checked.of {
            Type::Int(_) | Type::Enum(..) | Type::Bool | Type::Pointer(..) | Type::Float(_) => {}
            Type::None if !self.is_last || self.told.has_errors() => {}
            Type::Struct(_) | Type::Tuple(_) | Type::Record(_) if !self.is_last => {}
            _ => self.error(span, format!("Invalid condition: {}", checked.of.kind())),
        }
        self.truth(checked)
    }
}

/// Whether nothing behind a statement is reached.
fn ends(statement: &Stmt) -> bool {
    match statement {
        Stmt::Break | Stmt::Continue | Stmt::Return(_) => true,
        Stmt::Effect(expr) => ends_at(expr),
        _ => false,
    }
}

fn ends_at(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Call(super::tree::Call::Exit(_)) => true,
        Kind::Block(block) => block.statements.last().is_some_and(ends) && block.value.is_none(),
        Kind::If(_, then, otherwise) => {
            then.statements.last().is_some_and(ends) && otherwise.statements.last().is_some_and(ends)
        }
        _ => false,
    }
}

fn origin_text(origin: Origin) -> &'static str {
    match origin {
        Origin::Declaration => "This is the initial declaration.",
        Origin::Assignment => "This is the initial assignment.",
        Origin::Loop => "This is the loop variable.",
    }
}

/// A variable's name with its sigil, whether it has it already or not.
pub fn dollar(name: &str) -> String {
    if name.starts_with('$') { name.to_owned() } else { format!("${name}") }
}

/// A map's name with its sigil.
pub fn at(name: &str) -> String {
    if name.starts_with('@') { name.to_owned() } else { format!("@{name}") }
}
