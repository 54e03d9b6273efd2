//! Looking at all of a body.

use super::{Context, Expression, Part, Place, Statement};

/// Calls `see` with each statement of some code and of what it contains.
pub(crate) fn each_statement<'a>(code: &'a [Statement], see: &mut dyn FnMut(&'a Statement)) {
    for statement in code {
        see(statement);
        match statement {
            Statement::If(_, then, other) => {
                each_statement(then, see);
                each_statement(other, see);
            }
            Statement::Loop(body) | Statement::ForEach { body, .. } => each_statement(body, see),
            _ => {}
        }
    }
}

/// Calls `see` with each expression of a statement, but not of the statements within it.
pub(crate) fn each_expression<'a>(statement: &'a Statement, see: &mut dyn FnMut(&'a Expression)) {
    let mut places: Vec<&'a Place> = Vec::new();
    let mut expressions: Vec<&'a Expression> = Vec::new();
    match statement {
        Statement::Set(_, value)
        | Statement::If(value, ..)
        | Statement::Signal(value)
        | Statement::Delay(value)
        | Statement::Change(_, value) => expressions.push(value),
        Statement::Store { to, value, .. } => {
            places.push(to);
            expressions.push(value);
        }
        Statement::Copy { to, from, .. } => places.extend([to, from]),
        Statement::Zero { to, .. } | Statement::ThreadName { to } | Statement::ProcessName { to, .. } => {
            places.push(to)
        }
        Statement::Read { from, .. } => expressions.push(from),
        Statement::ReadBytes { to, from, length: most, .. }
        | Statement::ReadString { to, from, most, .. } => {
            places.push(to);
            expressions.extend([from, most]);
        }
        Statement::StringLength { of, .. } => places.push(of),
        Statement::Compare { left, right, most, .. } => {
            places.extend([left, right]);
            expressions.extend(most);
        }
        Statement::Find { haystack, needle, .. } => places.extend([haystack, needle]),
        Statement::MapGet { key, to, .. } | Statement::AggregateGet { key, to, .. } => {
            places.extend([key, to])
        }
        Statement::MapSet { key, value, .. } | Statement::ForEach { key, value, .. } => {
            places.extend([key, value])
        }
        Statement::MapAdd { key, amount, .. } => {
            places.push(key);
            expressions.push(amount);
        }
        Statement::MapDelete { key, .. } | Statement::MapHas { key, .. } => places.push(key),
        Statement::Aggregate { key, value, weight, .. } => {
            places.push(key);
            expressions.push(value);
            expressions.extend(weight);
        }
        Statement::Emit { parts, .. } => {
            for part in parts {
                match part {
                    Part::Word(value) => expressions.push(value),
                    Part::Bytes(from, _) => places.push(from),
                    Part::Text { from, length, .. } => {
                        places.push(from);
                        expressions.push(length);
                    }
                }
            }
        }
        Statement::Loop(_)
        | Statement::Break
        | Statement::Continue
        | Statement::Return
        | Statement::MapLength { .. }
        | Statement::MapClear(_)
        | Statement::MapZero(_)
        | Statement::Operand { .. }
        | Statement::Stack { .. } => {}
    }
    let index = |place: &'a Place| match place {
        Place::Indexed { index, .. } | Place::IndexedConstant { index, .. } => Some(&**index),
        Place::Scratch(_) | Place::Constant(_) => None,
    };
    expressions.extend(places.into_iter().filter_map(index));
    while let Some(expression) = expressions.pop() {
        see(expression);
        match expression {
            Expression::Load { from, .. } => expressions.extend(index(from)),
            Expression::Unary(_, operand) => expressions.push(operand),
            Expression::Binary(_, left, right) => expressions.extend([&**left, right]),
            Expression::Select(condition, then, other) => expressions.extend([&**condition, then, other]),
            Expression::Int(_) | Expression::Float(_) | Expression::Local(_) | Expression::Context(_) => {}
        }
    }
}

/// Calls `see` with each value of the hit that some code asks for.
pub(crate) fn each_context(code: &[Statement], see: &mut dyn FnMut(Context)) {
    each_statement(code, &mut |statement| {
        each_expression(statement, &mut |expression| {
            if let Expression::Context(what) = expression {
                see(*what);
            }
        });
    });
}
