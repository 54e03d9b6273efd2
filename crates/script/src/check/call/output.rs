//! Functions that tell something.

use super::{called, lossy};
use crate::check::checker::Checker;
use crate::check::convert::converted;
use crate::check::format::{conversions, is_of_floats, problem};
use crate::check::statement::at;
use crate::check::tree::{Call, Expr, Kind};
use crate::check::types::{Aggregate, Type};
use crate::message::{Channel, Format, Location, Message};
use crate::source::{Sources, Span};
use crate::syntax::ast::{self, ExprKind};
use std::sync::Arc;

impl Checker<'_> {
    pub(super) fn output(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        match function {
            "printf" | "errorf" | "warnf" | "cat" | "system" => self.formatted(function, arguments, span),
            "print" => self.print(arguments, span),
            "time" => {
                let format = match arguments.first() {
                    Some(format) => match self.text_literal("time", format, span) {
                        Some(format) => lossy(&format),
                        None => return Expr::nothing(span),
                    },
                    None => "%H:%M:%S\n".into(),
                };
                tell(Message::Time { format }, Vec::new(), span)
            }
            "join" => self.join(arguments, span),
            "exit" => {
                let code = match arguments.first() {
                    Some(code) => self.integer("exit", code, span),
                    None => Expr::int(Type::INT64, 0, span),
                };
                called(Type::None, Call::Exit(Box::new(code)), span)
            }
            _ => self.fail(arguments, span),
        }
    }

    /// A value as it is printed.
    fn printed(&mut self, value: Expr) -> Expr {
        let value = self.as_number(value);
        match value.of {
            Type::Float(4) => converted(value, &Type::Float(8)),
            _ => value,
        }
    }

    fn formatted(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        let [format, rest @ ..] = arguments else { return Expr::nothing(span) };
        let format = self.text_literal(function, format, span);
        let mut values: Vec<Expr> = rest.iter().map(|value| self.expr(value)).collect();
        let Some(format) = format else { return Expr { of: Type::Void, ..Expr::nothing(span) } };
        let done = Expr { of: Type::Void, ..Expr::nothing(span) };
        if let Some(chart) = values.iter().find(|value| value.of.is_chart()) {
            let (of, at) = (chart.of.clone(), chart.span);
            self.error(at, format!("Map type {of} cannot be used as an argument of {function}()."));
            return done;
        }
        let format = lossy(&format);
        let conversions = conversions(&format);
        values = values.into_iter().map(|value| self.printed(value)).collect();
        let types: Vec<Type> = values.iter().map(|value| value.of.clone()).collect();
        let unknown = types.iter().position(Type::is_none);
        if unknown.is_none() || types.len() != conversions.len() {
            if let Some(problem) = problem(&conversions, &types) {
                self.error(span, problem);
                return done;
            }
        } else {
            if let Some(index) = unknown.filter(|_| self.is_last && !self.told.has_errors()) {
                let specifier = &conversions[index].specifier;
                self.error(span, format!("unable to print none type for specifier: {specifier}"));
            }
            return done;
        }
        for (value, conversion) in values.iter_mut().zip(&conversions) {
            if is_of_floats(conversion) && value.of.is_int() {
                *value = converted(value.clone(), &Type::Float(8));
            }
        }
        let shapes = values.iter().map(|value| self.structs.shape(&value.of, 0)).collect();
        let format = Format { format, arguments: shapes };
        let location = || location(self.sources, span);
        let message = match function {
            "printf" => Message::Print(Channel::Out, format),
            "errorf" => Message::Print(Channel::Error(location()), format),
            "warnf" => Message::Print(Channel::Warning(location()), format),
            "cat" => Message::Cat(format),
            _ => Message::System(format),
        };
        tell(message, values, span)
    }

    fn print(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let [value, rest @ ..] = arguments else { return Expr::nothing(span) };
        let done = Expr { of: Type::Void, ..Expr::nothing(span) };
        if let ExprKind::Map(name) = &value.kind {
            let map = self.map(&at(name), value.span);
            let found = self.maps.get(map);
            if self.is_last && (found.value.is_none() || found.key.is_none()) {
                self.error(value.span, format!("Undefined map: {}", at(name)));
                return done;
            }
            let is_stats = matches!(found.value, Type::Aggregate(Aggregate::Stats(_)));
            if self.at.loops > 0 {
                self.warning(
                    span,
                    "Due to it's asynchronous nature using 'print()' in a loop can lead to unexpected behavior. The \
                     map will likely be updated before the runtime can 'print' it.",
                );
            }
            if is_stats && !rest.is_empty() {
                self.warning(span, "print()'s top and div arguments are ignored when used on stats() maps.");
            }
            let mut numbers = [0; 2];
            for (number, argument) in numbers.iter_mut().zip(rest) {
                match self.number_literal("print", argument, span) {
                    Some(value) => *number = value,
                    None => return done,
                }
            }
            return called(Type::Void, Call::PrintMap(map, numbers[0], numbers[1]), span);
        }
        let value = self.expr(value);
        match &value.of {
            Type::None => {
                if self.is_last && !self.told.has_errors() {
                    self.error(span, format!("{} type passed to print() is not printable", value.of));
                }
                return done;
            }
            Type::Aggregate(Aggregate::Stats(_)) => {}
            of if of.is_chart() => {
                self.error(
                    span,
                    format!("Map type {of} cannot print the value of individual keys. You must print the whole map."),
                );
                return done;
            }
            Type::Void | Type::Mode => {
                self.error(span, format!("{} type passed to print() is not printable", value.of));
                return done;
            }
            _ => {}
        }
        if !rest.is_empty() {
            self.error(span, format!("Non-map print() only takes 1 argument, {} found", arguments.len()));
            return done;
        }
        if let (Type::Aggregate(Aggregate::Stats(_)), Kind::Number(key)) = (&value.of, &value.kind) {
            let words = Expr { of: value.of.clone(), span, kind: Kind::Words(key.clone()) };
            let map = key.map;
            let key = key.key.as_deref().cloned();
            return tell(Message::PrintKey(map), key.into_iter().chain([words]).collect(), span);
        }
        let value = self.printed(value);
        let shape = self.structs.shape(&value.of, 0);
        tell(Message::PrintValue(shape), vec![value], span)
    }

    fn join(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let [strings, rest @ ..] = arguments else { return Expr::nothing(span) };
        let strings = self.number_of(strings);
        let between = match rest.first() {
            Some(between) => match self.text_literal("join", between, span) {
                Some(between) => lossy(&between),
                None => return Expr::nothing(span),
            },
            None => " ".into(),
        };
        if !strings.of.is_int() && !matches!(strings.of, Type::Pointer(..) | Type::None) {
            let kind = strings.of.kind();
            self.error(span, format!("join() only supports int or pointer arguments ({kind} provided)"));
            return Expr::nothing(span);
        }
        called(Type::Void, Call::Join(Box::new(strings), between), span)
    }

    /// `fail(format, literals)`: the script is refused, unless nobody looks at it.
    fn fail(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let values: Vec<Expr> = arguments.iter().map(|value| self.expr(value)).collect();
        let done = Expr { of: Type::Void, ..Expr::nothing(span) };
        if values.iter().any(|value| !value.is_literal()) {
            self.error(span, "fail() arguments need to be literals");
            return done;
        }
        let Some(Kind::Text(format)) = values.first().map(|value| &value.kind) else {
            self.error(span, "first argument to fail() must be a string literal");
            return done;
        };
        let format = lossy(format);
        let mut text = String::new();
        let mut rest = &format[..];
        let mut values = values[1..].iter();
        // The conversions that compile-time values need; widths do not matter here.
        while let Some((before, behind)) = rest.split_once('%') {
            text.push_str(before);
            let end = behind.find(|letter: char| letter.is_ascii_alphabetic() && !"hlLjzt".contains(letter));
            if let Some(percent) = behind.strip_prefix('%') {
                text.push('%');
                rest = percent;
                continue;
            }
            let Some(end) = end else {
                rest = behind;
                continue;
            };
            match values.next() {
                Some(Expr { kind: Kind::Text(value), .. }) => text.push_str(&lossy(value)),
                Some(value) => {
                    text.push_str(&value.literal().map_or_else(String::new, |value| value.to_string()))
                }
                None => {}
            }
            rest = behind.get(end + 1..).unwrap_or("");
        }
        text.push_str(rest);
        self.error(span, text);
        done
    }
}

fn tell(message: Message, values: Vec<Expr>, span: Span) -> Expr {
    called(Type::Void, Call::Tell(Arc::new(message), values), span)
}

/// A place in the script, with the calls of the macros that brought it there.
pub fn location(sources: &Sources, span: Span) -> Location {
    let source = sources.get(span.source);
    let (start, end) = (sources.start(span), sources.end(span));
    let lines: Vec<&str> = (start.line..=end.line).map(|line| source.line(line)).collect();
    Location {
        file: source.name().into(),
        line: start.line,
        column: start.column,
        text: lines.join("\n").into(),
        end: end.column,
        expanded_from: span
            .expansion
            .map(|expansion| Arc::new(location(sources, sources.expansion(expansion).call))),
    }
}
