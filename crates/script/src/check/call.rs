//! Calls: which functions there are, how many arguments they take, and what is done by each family of them.

mod aggregate;
mod change;
mod map;
mod output;
pub(crate) use output::location;
mod place;
mod text;
mod world;

use super::checker::Checker;
use super::tree::{Expr, Kind};
use super::types::Type;
use crate::diagnostics::Diagnostic;
use crate::nearest::nearest;
use crate::source::Span;
use crate::syntax::ast::{self, Name};

/// Functions with the least and the most arguments that they take.
const FUNCTIONS: [(&str, usize, usize); 71] = [
    ("avg", 1, 1),
    ("bswap", 1, 1),
    ("buf", 1, 2),
    ("cat", 1, 128),
    ("cgroup_path", 1, 2),
    ("cgroupid", 1, 1),
    ("clear", 1, 1),
    ("comm", 0, 1),
    ("count", 0, 0),
    ("delay", 1, 1),
    ("delete", 1, 2),
    ("dw_ustack", 0, 2),
    ("errorf", 1, 128),
    ("exit", 0, 1),
    ("fail", 1, 128),
    ("getopt", 1, 3),
    ("has_key", 1, 2),
    ("hist", 1, 2),
    ("is_array", 1, 1),
    ("is_integer", 1, 1),
    ("is_literal", 1, 1),
    ("is_ptr", 1, 1),
    ("is_scalar", 1, 1),
    ("is_str", 1, 1),
    ("is_unsigned_integer", 1, 1),
    ("join", 1, 2),
    ("kfunc_allowed", 1, 1),
    ("kfunc_exist", 1, 1),
    ("len", 1, 1),
    ("lhist", 4, 4),
    ("macaddr", 1, 1),
    ("max", 1, 1),
    ("memcmp", 3, 3),
    ("min", 1, 1),
    ("nsecs", 0, 1),
    ("ntop", 1, 2),
    ("override", 0, 1),
    ("pid", 0, 1),
    ("print", 1, 3),
    ("printf", 1, 128),
    ("pton", 1, 1),
    ("reg", 1, 1),
    ("setarg", 2, 2),
    ("seterrno", 1, 1),
    ("signal", 1, 1),
    ("signal_name", 1, 1),
    ("signal_thread", 1, 1),
    ("signal_num", 1, 1),
    ("stack_len", 1, 1),
    ("stats", 1, 1),
    ("str", 1, 2),
    ("str_concat", 2, 2),
    ("strcap", 1, 1),
    ("strerror", 1, 1),
    ("strftime", 2, 2),
    ("strlen", 1, 1),
    ("strncmp", 3, 3),
    ("strstr", 2, 2),
    ("sum", 1, 1),
    ("system", 1, 128),
    ("tid", 0, 1),
    ("time", 0, 1),
    ("tseries", 3, 4),
    ("uaddr", 1, 1),
    ("uptr", 1, 1),
    ("usdt_arg", 1, 1),
    ("ustack", 0, 2),
    ("usym", 1, 1),
    ("warnf", 1, 128),
    ("zero", 1, 1),
    ("assert_str", 1, 1),
];

/// Whether there is a function of that name that no macro of the library is. Builtins may be called, too: `cpu()`.
///
/// ```
/// assert!(trapless_script::check::is_native("printf"));
/// assert!(!trapless_script::check::is_native("strcontains"));
/// ```
pub fn is_native(name: &str) -> bool {
    let name = name.strip_prefix("__builtin_").unwrap_or(name);
    FUNCTIONS.iter().any(|(known, ..)| *known == name)
        || super::builtin::NAMES.contains(&name)
        || Checker::refusal(name).is_some()
}

/// Functions that change something outside.
const UNSAFE: [&str; 7] = ["delay", "override", "setarg", "seterrno", "signal", "signal_thread", "system"];

impl Checker<'_> {
    /// `name(arguments)`.
    pub fn call(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Expr {
        let function = name.text.strip_prefix("__builtin_").unwrap_or(&name.text);
        let aggregations = ["count", "sum", "min", "max", "avg", "stats", "hist", "lhist", "tseries"];
        if aggregations.contains(&function) {
            self.error(span, format!("{function}() must be assigned directly to a map"));
            return Expr::nothing(span);
        }
        let is_signal = function.starts_with("signal");
        if is_signal && UNSAFE.contains(&function) && !self.at.clause.kind.has_registers() {
            let provider = self.at.clause.kind.provider();
            self.error(span, format!("{function}() can not be used for this probetype {provider}"));
            return Expr::nothing(span);
        }
        if !self.has_calls(function, span) {
            return Expr::nothing(span);
        }
        if UNSAFE.contains(&function) && !self.environment.is_unsafe_allowed() {
            let message = match function {
                "system" => "system() is an unsafe function being used in safe mode".to_owned(),
                other => format!("{other}() is unsafe. To use you need the --unsafe flag"),
            };
            self.error(span, message);
        }
        let Some((_, least, most)) = FUNCTIONS.iter().find(|(known, ..)| *known == function) else {
            return self.other_call(name, arguments, span);
        };
        if !self.is_arity(function, arguments.len(), *least, *most, span) {
            return Expr::nothing(span);
        }
        match function {
            "clear" | "zero" | "delete" | "has_key" | "len" | "is_scalar" => {
                self.on_map(function, arguments, span)
            }
            "printf" | "errorf" | "warnf" | "cat" | "system" | "print" | "time" | "join" | "exit"
            | "fail" => self.output(function, arguments, span),
            "str" | "buf" | "strlen" | "strcap" | "strstr" | "str_concat" | "strncmp" | "memcmp"
            | "strerror" | "signal_name" | "strftime" | "comm" | "assert_str" => {
                self.on_text(function, arguments, span)
            }
            "delay" => self.delay(&arguments[0], span),
            "override" => self.override_call(arguments.first(), span),
            "seterrno" => self.set_errno(&arguments[0], span),
            "setarg" => self.set_argument(&arguments[0], &arguments[1], span),
            "ustack" | "dw_ustack" => self.stack(function, arguments, span),
            "usym" | "reg" | "uaddr" | "uptr" | "stack_len" | "usdt_arg" => {
                self.on_place(function, arguments, span)
            }
            _ => self.of_world(function, arguments, span),
        }
    }

    /// Something that is no function, or one without arguments.
    fn other_call(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Expr {
        if let Some(sentence) = Checker::refusal(&name.text) {
            self.error(span, sentence);
            return Expr::nothing(span);
        }
        if arguments.is_empty()
            && let Some(value) = self.builtin(&name.text, span)
        {
            return value;
        }
        for argument in arguments {
            self.expr(argument);
        }
        let known = FUNCTIONS.iter().map(|(known, ..)| *known).chain(super::builtin::NAMES);
        let told = Diagnostic::error(span, format!("Unknown function: '{}'", name.text));
        self.tell(nearest_hint(told, &name.text, known));
        Expr::nothing(span)
    }

    fn is_arity(&mut self, name: &str, count: usize, least: usize, most: usize, span: Span) -> bool {
        let message = match (least, most) {
            _ if (least..=most).contains(&count) => return true,
            (0, 0) => format!("{name}() requires no arguments ({count} provided)"),
            (1, 1) => format!("{name}() requires one argument ({count} provided)"),
            _ if least == most => format!("{name}() requires {least} arguments ({count} provided)"),
            (1, _) if count < least => format!("{name}() requires at least one argument ({count} provided)"),
            _ if count < least => format!("{name}() requires at least {least} arguments ({count} provided)"),
            (_, 1) => format!("{name}() takes up to one argument ({count} provided)"),
            _ => format!("{name}() takes up to {most} arguments ({count} provided)"),
        };
        self.error(span, message);
        false
    }

    /// An argument that has to be a string literal.
    fn text_literal(&mut self, function: &str, argument: &ast::Expr, span: Span) -> Option<Vec<u8>> {
        let value = self.expr(argument);
        match value.kind {
            Kind::Text(text) => Some(text),
            _ => {
                if !value.of.is_none() || self.is_last {
                    let kind = value.of.kind();
                    self.error(span, format!("{function}() expects a string literal ({kind} provided)"));
                    if let ast::ExprKind::Positional(number) = argument.kind {
                        self.error(
                            argument.span,
                            format!("Use str(${number}) to treat ${number} as a string"),
                        );
                    }
                }
                None
            }
        }
    }

    /// An argument that has to be an integer literal from 0 on.
    fn number_literal(&mut self, function: &str, argument: &ast::Expr, span: Span) -> Option<u64> {
        let value = self.expr(argument);
        match value.literal() {
            Some(number) if matches!(value.of, Type::Int(_) | Type::Enum(..)) => {
                let positive = u64::try_from(number).ok();
                if positive.is_none() {
                    self.error(
                        span,
                        format!("{function}() expects a positive int literal ({number} provided)"),
                    );
                }
                positive
            }
            _ => {
                if !value.of.is_none() {
                    let kind = value.of.kind();
                    self.error(span, format!("{function}() expects a int literal ({kind} provided)"));
                }
                None
            }
        }
    }

    /// An argument that has to be an integer.
    fn integer(&mut self, function: &str, argument: &ast::Expr, span: Span) -> Expr {
        let value = self.number_of(argument);
        if !value.of.is_int() && !value.of.is_none() {
            let kind = value.of.kind();
            self.error(span, format!("{function}() only supports int arguments ({kind} provided)"));
            return Expr::nothing(span);
        }
        value
    }
}

/// With the name that was probably meant.
pub fn nearest_hint<'n>(
    told: Diagnostic,
    wanted: &str,
    known: impl IntoIterator<Item = &'n str>,
) -> Diagnostic {
    match nearest(wanted, known) {
        Some(name) => told.hint(format!("did you mean '{name}'?")),
        None => told,
    }
}

fn called(of: Type, call: super::tree::Call, span: Span) -> Expr {
    Expr { of, span, kind: Kind::Call(call) }
}

fn lossy(text: &[u8]) -> std::sync::Arc<str> {
    String::from_utf8_lossy(text).as_ref().into()
}
