//! Functions that change what a call does.

use super::called;
use crate::check::checker::Checker;
use crate::check::clauses::ClauseKind;
use crate::check::convert::converted;
use crate::check::environment::Machine;
use crate::check::errors::error_number;
use crate::check::tree::{Call, Expr, Kind};
use crate::check::types::Type;
use crate::ir::{Change, MOST_DELAY, Symbol};
use crate::source::Span;
use crate::syntax::ast;

impl Checker<'_> {
    /// Whether the clause is where a function changes what calls do. It is told if not.
    pub(super) fn has_calls(&mut self, function: &str, span: Span) -> bool {
        let kind = self.at.clause.kind;
        let (is_there, places) = match function {
            "override" | "seterrno" => (
                matches!(kind, ClauseKind::Entry | ClauseKind::Return),
                "at the entries of functions (uprobe) and at their returns (uretprobe)",
            ),
            "setarg" => (kind == ClauseKind::Entry, "at the entries of functions (uprobe)"),
            "delay" => (kind.is_in_program(), "in programs (uprobe, uretprobe, usdt)"),
            _ => return true,
        };
        if !is_there {
            self.error(span, format!("{function}() can only be used {places}"));
            return false;
        }
        let machine = self.environment.machine().name;
        // Whose bodies run where threads trap.
        let is_compiled = machine != Machine::I386.name;
        if !is_compiled {
            self.error(
                span,
                format!("{function}() needs compiled code, which there is none of for {machine}"),
            );
        }
        is_compiled
    }

    /// `override(value)`: what the call returns; at an entry the function is not called, and without a value returns nothing.
    pub(super) fn override_call(&mut self, value: Option<&ast::Expr>, span: Span) -> Expr {
        let Some(value) = value else {
            if self.at.clause.kind != ClauseKind::Entry {
                self.error(span, "override() needs a value where a function has returned");
            }
            return called(
                Type::Void,
                Call::Change(Change::Skip, Box::new(Expr::int(Type::INT64, 1, span))),
                span,
            );
        };
        let value = self.word("override", value, span);
        called(Type::Void, Call::Change(Change::Result, Box::new(value)), span)
    }

    /// `delay(time)`: the thread sleeps for so many nanoseconds ahead of what follows.
    pub(super) fn delay(&mut self, time: &ast::Expr, span: Span) -> Expr {
        let time = self.integer("delay", time, span);
        if time.literal().is_some_and(|time| !(1..=MOST_DELAY.into()).contains(&time)) {
            self.error(span, "delay() takes times from 1ns to 60s");
            return Expr::nothing(span);
        }
        called(Type::Void, Call::Delay(Box::new(converted(time, &Type::INT64))), span)
    }

    /// `setarg(number, value)`: what the function has for an argument.
    pub(super) fn set_argument(&mut self, number: &ast::Expr, value: &ast::Expr, span: Span) -> Expr {
        let value = self.word("setarg", value, span);
        let registers = self.environment.machine().arguments;
        let Some(number) = self.number_literal("setarg", number, span) else { return Expr::nothing(span) };
        if let Some(number) = u8::try_from(number).ok().filter(|number| *number < registers) {
            return called(Type::Void, Call::Change(Change::Argument(number), Box::new(value)), span);
        }
        let last = registers - 1;
        self.error(
            span,
            format!("only arguments in registers can be set, arg0 to arg{last} (arg{number} provided)"),
        );
        Expr::nothing(span)
    }

    /// `seterrno(value)`: what the thread's `errno` is, by its number or its name.
    pub(super) fn set_errno(&mut self, value: &ast::Expr, span: Span) -> Expr {
        let value = self.number_of(value);
        let number = match (&value.kind, &value.of) {
            (Kind::Text(name), _) => {
                let name = super::lossy(name);
                let Some(number) = error_number(&name) else {
                    self.error(span, format!("Invalid name of an error: {name} (expects one like ENOMEM)"));
                    return Expr::nothing(span);
                };
                Expr::int(Type::INT64, number, span)
            }
            (_, of) if of.is_int() || of.is_none() => converted(value, &Type::INT64),
            (_, of) => {
                let kind = of.kind();
                self.error(
                    span,
                    format!("seterrno() accepts a string literal or an integer ({kind} provided)"),
                );
                return Expr::nothing(span);
            }
        };
        let errno = Symbol { target: None, name: "errno".to_owned(), is_of_thread: true };
        let Some(index) = self.symbol(errno, span) else { return Expr::nothing(span) };
        called(Type::Void, Call::Change(Change::Errno(index), Box::new(number)), span)
    }

    /// An integer or an address, as a register has it.
    fn word(&mut self, function: &str, value: &ast::Expr, span: Span) -> Expr {
        let value = self.number_of(value);
        match &value.of {
            of if of.is_int()
                || matches!(of, Type::Pointer(..) | Type::Bool | Type::Enum(..) | Type::None) =>
            {
                converted(value, &Type::INT64)
            }
            of => {
                let kind = of.kind();
                self.error(
                    span,
                    format!("{function}() only supports integers and pointers ({kind} provided)"),
                );
                Expr::nothing(span)
            }
        }
    }
}
