//! Functions of the world: numbers, the network, processes, parameters, types.

use super::{called, lossy};
use crate::check::checker::{Checker, NamedOption};
use crate::check::convert::converted;
use crate::check::expression::{literal, whole_number};
use crate::check::tree::{Call, Expr, Kind};
use crate::check::types::{Clock, Int, Type};
use crate::diagnostics::Diagnostic;
use crate::ir::{ClockKind, Context, Unary};
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

impl Checker<'_> {
    pub(super) fn of_world(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        let Some(first) = arguments.first() else {
            return self.builtin(function, span).unwrap_or_else(|| Expr::nothing(span));
        };
        let truth = |value: bool| Expr::int(Type::Bool, value.into(), span);
        match function {
            "pid" | "tid" => {
                match &first.kind {
                    ExprKind::Identifier(name) if matches!(name.as_str(), "curr_ns" | "init") => {}
                    ExprKind::Identifier(name) => self.error(
                        first.span,
                        format!("Invalid PID namespace mode: {name} (expects: curr_ns or init)"),
                    ),
                    _ => self
                        .error(span, format!("{function}() only supports curr_ns and init as the argument")),
                }
                let context = if function == "pid" { Context::Pid } else { Context::Tid };
                Expr { of: Type::UINT32, span, kind: Kind::Context(context) }
            }
            "nsecs" => self.nsecs(first, span),
            "bswap" => {
                let value = self.number_of(first);
                match &value.of {
                    Type::None => Expr::nothing(span),
                    Type::Int(Int { size: 1, .. }) => converted(value, &Type::UINT8),
                    Type::Int(int) => {
                        let bits = int.bits();
                        let of = Type::int(int.size, false);
                        if let Kind::Int(value) = value.kind {
                            let swapped = (value as u64).swap_bytes() >> (64 - u32::from(bits));
                            return Expr::int(of, swapped as i64, span);
                        }
                        Expr { of, span, kind: Kind::Unary(Unary::SwapBytes(bits), Box::new(value)) }
                    }
                    other => {
                        let kind = other.kind();
                        self.error(
                            span,
                            format!("bswap() only supports integer arguments ({kind} provided)"),
                        );
                        Expr::nothing(span)
                    }
                }
            }
            "macaddr" => self.mac(first, span),
            "ntop" => self.ntop(arguments, span),
            "pton" => self.pton(first, span),
            "cgroupid" => {
                let Some(path) = self.text_literal(function, first, span) else { return Expr::nothing(span) };
                let path = lossy(&path);
                match self.environment.cgroup(&path) {
                    Some(id) => Expr::int(Type::UINT64, id as i64, span),
                    None => {
                        self.error(span, format!("cgroupid(): no control group (v2) is at {path}"));
                        Expr::nothing(span)
                    }
                }
            }
            "cgroup_path" => {
                let id = self.integer(function, first, span);
                for filter in arguments.iter().skip(1) {
                    let filter = self.expr(filter);
                    if !matches!(filter.of, Type::String(_) | Type::None) {
                        let kind = filter.of.kind();
                        self.error(
                            span,
                            format!("cgroup_path() only supports string arguments ({kind} provided)"),
                        );
                    }
                }
                let id = converted(id, &Type::UINT64);
                Expr { of: Type::CgroupPath, span, kind: Kind::Convert(Box::new(id)) }
            }
            "signal" | "signal_thread" => self.signal(function, first, span),
            "signal_num" => match self.text_literal(function, first, span) {
                Some(name) => self.signal_number(&lossy(&name), span),
                None => Expr::nothing(span),
            },
            "getopt" => self.getopt(arguments, span),
            "kfunc_allowed" | "kfunc_exist" => {
                self.expr(first);
                truth(false)
            }
            "is_literal" => {
                let value = self.expr(first);
                truth(value.is_literal())
            }
            _ => {
                let of = self.meta("typeof or typeinfo", |checker| checker.expr(first).of);
                if of.is_none() {
                    return Expr::nothing(span);
                }
                truth(match function {
                    "is_str" => matches!(of, Type::String(_) | Type::Probe),
                    "is_ptr" => matches!(of, Type::Pointer(..)),
                    "is_array" => matches!(of, Type::Array(..)),
                    "is_integer" => of.is_int(),
                    _ => of.as_int().is_some_and(|int| !int.signed),
                })
            }
        }
    }

    fn nsecs(&mut self, mode: &ast::Expr, span: Span) -> Expr {
        let ExprKind::Identifier(name) = &mode.kind else {
            let kind = self.expr(mode).of.kind();
            self.error(span, format!("nsecs() only supports timestamp_mode arguments ({kind} provided)"));
            return Expr::nothing(span);
        };
        let (of, clock) = match name.as_str() {
            "monotonic" => (Clock::Monotonic, ClockKind::Monotonic),
            "boot" => (Clock::Boot, ClockKind::Boot),
            "tai" | "sw_tai" => (Clock::Tai, ClockKind::Tai),
            _ => {
                self.error(mode.span, format!("Invalid timestamp mode: {name}"));
                return Expr::nothing(span);
            }
        };
        let of = Type::Int(Int { clock: of, ..Int::new(8, false) });
        Expr { of, span, kind: Kind::Context(Context::Time(clock)) }
    }

    fn mac(&mut self, address: &ast::Expr, span: Span) -> Expr {
        let value = self.number_of(address).as_bytes();
        let size = self.structs.size(&value.of);
        match &value.of {
            Type::None => Expr { of: Type::Mac, ..Expr::nothing(span) },
            _ if matches!(value.kind, Kind::Text(_)) => {
                self.error(span, "macaddr() does not support literal string arguments");
                Expr::nothing(span)
            }
            Type::Array(..) | Type::String(_) | Type::Buffer(_) if size < 6 => {
                self.error(span, "macaddr() argument must be at least 6 bytes in size");
                Expr::nothing(span)
            }
            Type::Array(..) | Type::String(_) | Type::Int(_) | Type::Pointer(..) => {
                called(Type::Mac, Call::Mac(Box::new(value)), span)
            }
            other => {
                let kind = other.kind();
                self.error(
                    span,
                    format!("macaddr() only supports array or pointer arguments ({kind} provided)"),
                );
                Expr::nothing(span)
            }
        }
    }

    fn ntop(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let (family, address) = match arguments {
            [family, address] => (Some(self.integer("ntop", family, span)), address),
            [address, ..] => (None, address),
            [] => return Expr::nothing(span),
        };
        let value = self.number_of(address).as_bytes();
        let size = self.structs.size(&value.of);
        match &value.of {
            Type::None => return Expr { of: Type::Inet, ..Expr::nothing(span) },
            Type::Int(_) | Type::Enum(..) => {}
            Type::Array(..) | Type::String(_) => {
                if size != 4 && size != 16 {
                    self.error(span, "ntop() argument must be 4 or 16 bytes in size");
                    return Expr::nothing(span);
                }
            }
            other => {
                let kind = other.kind();
                self.error(span, format!("ntop() expects an integer or array argument, got {kind}"));
                return Expr::nothing(span);
            }
        }
        let family = family.map(|family| Box::new(converted(family, &Type::INT64)));
        called(Type::Inet, Call::Ntop(Box::new(value), family), span)
    }

    fn pton(&mut self, address: &ast::Expr, span: Span) -> Expr {
        let value = self.expr(address);
        let Kind::Text(text) = value.kind else {
            self.error(span, "pton() expects an string literal at the first argument");
            return Expr::nothing(span);
        };
        let text = lossy(&text);
        let bytes = if text.contains('.') && !text.contains(':') {
            text.parse::<Ipv4Addr>().map(|address| address.octets().to_vec())
        } else if text.contains(':') {
            text.parse::<Ipv6Addr>().map(|address| address.octets().to_vec())
        } else {
            self.error(
                span,
                format!("pton() expects an string argument of an IPv4/IPv6 address, got {text}"),
            );
            return Expr::nothing(span);
        };
        match bytes {
            Ok(bytes) => {
                let of = Type::Array(Arc::new(Type::UINT8), bytes.len() as u32);
                Expr { of, span, kind: Kind::Bytes(bytes) }
            }
            Err(_) => {
                self.error(span, format!("pton() expects a valid IPv4/IPv6 address, got {text}"));
                Expr::nothing(span)
            }
        }
    }

    fn signal_number(&mut self, name: &str, span: Span) -> Expr {
        match crate::check::signals::number(name) {
            Some(number) => Expr::int(Type::UINT32, number, span),
            None => {
                self.error(span, format!("Invalid string for signal: {name}"));
                Expr::nothing(span)
            }
        }
    }

    fn signal(&mut self, function: &str, signal: &ast::Expr, span: Span) -> Expr {
        let value = self.number_of(signal);
        let number = match (&value.kind, value.literal()) {
            (Kind::Text(name), _) => self.signal_number(&lossy(name), span),
            (_, Some(number)) if !(1..=64).contains(&number) => {
                self.error(
                    span,
                    format!(
                        "{function}() accepts a string literal or an integer between 1 and 64 (inclusive)"
                    ),
                );
                return Expr::nothing(span);
            }
            _ if value.of.is_int() || value.of.is_none() => value,
            _ => {
                self.error(span, format!("{function}() accepts a string literal or an integer"));
                return Expr::nothing(span);
            }
        };
        let number = converted(number, &Type::UINT32);
        called(Type::Void, Call::Signal(Box::new(number)), span)
    }

    /// `getopt(name, default, description)`: a parameter of the command line by its name.
    fn getopt(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let [name, rest @ ..] = arguments else { return Expr::nothing(span) };
        let Kind::Text(text) = self.expr(name).kind else {
            self.error(name.span, "First argument to 'getopt' must be a string literal.");
            return Expr::nothing(span);
        };
        let name = lossy(&text).to_string();
        let default = rest.first().map(|default| self.expr(default));
        let description = match rest.get(1) {
            Some(description) => {
                self.text_literal("getopt", description, span).map(|text| lossy(&text).to_string())
            }
            None => None,
        };
        let default = match default {
            None => Expr::int(Type::Bool, 0, span),
            Some(default) if default.is_literal() => default,
            Some(default) => {
                if !default.of.is_none() {
                    self.error(
                        span,
                        "Second argument to 'getopt' must be a string literal, integer literal, or a boolean literal.",
                    );
                }
                return Expr::nothing(span);
            }
        };
        self.option(&name, &default, description, span);
        let given = self.environment.named(&name);
        let invalid = |checker: &mut Self, what: &str, value: &str| {
            let message = format!("program command line option --{name} invalid {what} (value: {value})");
            checker.tell(Diagnostic { span: None, ..Diagnostic::error(span, message) });
            Expr::nothing(span)
        };
        let Some(given) = given else { return default };
        match &default.kind {
            Kind::Text(_) => self.text(given.into_bytes(), span),
            Kind::Int(_) if default.of == Type::Bool => match given.to_ascii_lowercase().as_str() {
                "" | "1" | "true" => Expr::int(Type::Bool, 1, span),
                "0" | "false" => Expr::int(Type::Bool, 0, span),
                _ => invalid(self, "boolean", &given),
            },
            _ => match whole_number(&given) {
                Some(number) => literal(number, span),
                None => invalid(self, "integer", &given),
            },
        }
    }

    /// Notes a named parameter, which has to be the same everywhere.
    fn option(&mut self, name: &str, default: &Expr, description: Option<String>, span: Span) {
        let default = match (&default.kind, default.literal()) {
            (Kind::Text(text), _) => lossy(text).to_string(),
            (_, Some(truth)) if default.of == Type::Bool => (truth != 0).to_string(),
            (_, number) => number.unwrap_or_default().to_string(),
        };
        let Some(option) = self.options.iter_mut().find(|option| option.name == name) else {
            self.options.push(NamedOption { name: name.to_owned(), default, description });
            return;
        };
        if option.default != default {
            let previous = option.default.clone();
            self.error(
                span,
                format!(
                    "Command line option '{name}' needs to have the same default value in all places it is used. \
                     Previous default value: {previous}"
                ),
            );
        } else if description.is_some() && option.description.is_some() && option.description != description {
            self.error(
                span,
                format!(
                    "Command line option '{name}' must have the same description in all places it's used. Hint: You \
                     can wrap it in a macro"
                ),
            );
        } else {
            option.description = option.description.take().or(description);
        }
    }
}
