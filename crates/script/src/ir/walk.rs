//! Looking at all of a body.

use super::Statement;

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
