//! Functions of addresses, registers and stacks.

use super::called;
use crate::check::checker::Checker;
use crate::check::clauses::ClauseKind;
use crate::check::tree::{Call, Expr, Kind};
use crate::check::types::Type;
use crate::ir::{self, Binary, Context, STACK_LENGTH, StackWalk};
use crate::shape;
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind, ProbePoint};
use crate::syntax::config::StackMode;
use trapless_isa::passed::MOST_PASSED;

/// The most frames that a stack is walked.
const MAX_FRAMES: u64 = 127;

/// The most that a script may ask for.
const MAX_LIMIT: u64 = 1024;

impl Checker<'_> {
    /// `ustack`, `ustack(mode, limit)`.
    pub fn stack(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        if function == "dw_ustack" {
            let feature = "dw_ustack (DWARF stack unwinding)";
            self.unstable(feature, "unstable_dw_ustack", self.settings.unstable_dw_ustack, span);
        }
        let mut mode = self.settings.stack_mode;
        let mut frames = MAX_FRAMES;
        let mut rest = arguments;
        if let [first, more @ ..] = arguments {
            if let ExprKind::Identifier(name) = &first.kind {
                match StackMode::by_name(name) {
                    Some(known) => mode = known,
                    None => self.error(
                        first.span,
                        format!(
                            "Error parsing stack mode: {function}: Invalid value for stack_mode: valid values are \
                             bpftrace, raw, perf, and build_id."
                        ),
                    ),
                }
                rest = more;
            } else if arguments.len() == 2 {
                self.error(span, "Expected stack mode as first argument");
                rest = more;
            }
        }
        if let Some(limit) = rest.first() {
            match self.expr(limit).literal() {
                Some(limit) if limit > i128::from(MAX_LIMIT) => {
                    self.error(
                        span,
                        format!("{function}([int limit]): limit shouldn't exceed {MAX_LIMIT}, {limit} given"),
                    );
                }
                Some(limit) if limit >= 0 => frames = limit as u64,
                _ => self.error(span, format!("{function}: invalid limit value")),
            }
        }
        let of = Type::Stack { mode: shape_of(mode), frames: frames.clamp(1, MAX_FRAMES) as u8 };
        called(of, Call::Stack(StackWalk::Tables), span)
    }

    pub(super) fn on_place(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        let [first, ..] = arguments else { return Expr::nothing(span) };
        match function {
            "usym" => {
                let address = self.number_of(first);
                match &address.of {
                    Type::None => Expr { of: Type::Symbol, ..Expr::nothing(span) },
                    of if of.is_int() || matches!(of, Type::Pointer(..)) => {
                        called(Type::Symbol, Call::Symbol(Box::new(address)), span)
                    }
                    _ => {
                        self.error(span, "usym() expects an integer or pointer argument");
                        Expr::nothing(span)
                    }
                }
            }
            "reg" => self.register(first, span),
            "uaddr" => self.symbol_address(first, span),
            "uptr" => {
                let pointer = self.expr(first);
                if !pointer.of.is_int() && !matches!(pointer.of, Type::Pointer(..) | Type::None) {
                    let kind = pointer.of.kind();
                    self.error(
                        span,
                        format!("uptr() only supports integer or pointer arguments ({kind} provided)"),
                    );
                    return Expr::nothing(span);
                }
                pointer
            }
            "stack_len" => {
                let stack = self.expr(first);
                match stack.of {
                    Type::None => Expr { of: Type::INT64, ..Expr::nothing(span) },
                    Type::Stack { .. } => {
                        let number = Kind::Part(Box::new(stack), 0, None);
                        let number = Box::new(Expr { of: Type::INT64, span, kind: number });
                        let frames = Box::new(Expr::int(Type::INT64, STACK_LENGTH, span));
                        Expr { of: Type::INT64, span, kind: Kind::Binary(Binary::And, number, frames) }
                    }
                    _ => {
                        self.error(span, "call to len() expects a map, ustack, or kstack");
                        Expr::nothing(span)
                    }
                }
            }
            _ => {
                let number = self.number_literal(function, first, span).unwrap_or(0);
                if self.at.clause.kind != ClauseKind::Usdt || number >= MOST_PASSED as u64 {
                    self.error(span, "usdt_arg() can only be used with 'usdt' probes, for arguments 0 to 11");
                    return Expr::nothing(span);
                }
                self.operand(number as u8, span)
            }
        }
    }

    fn register(&mut self, name: &ast::Expr, span: Span) -> Expr {
        let Some(name) = self.text_literal("reg", name, span) else { return Expr::nothing(span) };
        let name = super::lossy(&name);
        let kind = self.at.clause.kind;
        if !kind.has_registers() {
            let provider = kind.name();
            self.error(span, format!("reg can not be used with \"{provider}\" probes"));
            return Expr::nothing(span);
        }
        match self.environment.register(&name) {
            Some(context) => Expr { of: Type::UINT64, span, kind: Kind::Context(context) },
            None => {
                let machine = self.environment.machine().name;
                self.error(
                    span,
                    format!("'{name}' is not a valid register on this architecture ({machine})"),
                );
                Expr::nothing(span)
            }
        }
    }

    fn symbol_address(&mut self, name: &ast::Expr, span: Span) -> Expr {
        if !matches!(
            self.at.clause.kind,
            ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return | ClauseKind::Usdt
        ) {
            let provider = self.at.clause.kind.provider();
            self.error(span, format!("uaddr can not be used with \"{provider}\" probes"));
            return Expr::nothing(span);
        }
        let name = self.expr(name);
        let Kind::Text(name) = name.kind else {
            self.error(span, "uaddr() expects a string literal as the first argument");
            return Expr::nothing(span);
        };
        let name = super::lossy(&name);
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"./_-".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_valid) {
            self.error(
                span,
                format!(
                    "uaddr() expects a string that is a valid symbol (^[a-zA-Z0-9./_-]+$) as input (\"{name}\" \
                     provided)"
                ),
            );
            return Expr::nothing(span);
        }
        let Some(point) = self.at.clause.points.first().map(|point| point.point.clone()) else {
            return Expr::nothing(span);
        };
        let target = match &point {
            ProbePoint::Uprobe(user) | ProbePoint::Uretprobe(user) => user.target.clone(),
            ProbePoint::Usdt { target, .. } => target.clone(),
            _ => None,
        };
        let size = match self.environment.symbol(&point, &name) {
            Some(size @ (1 | 2 | 4)) => size as u8,
            Some(_) => 8,
            None => {
                let file = target.as_deref().unwrap_or("the process's file");
                self.error(span, format!("Could not resolve symbol: {file}:{name}"));
                return Expr::nothing(span);
            }
        };
        let symbol = ir::Symbol { target, name: name.to_string(), is_of_thread: false };
        let Some(index) = self.symbol(symbol, span) else { return Expr::nothing(span) };
        let of = self.structs.pointer(Type::int(size, false));
        Expr { of, span, kind: Kind::Context(Context::Symbol(index)) }
    }

    /// The index of a symbol among those that the script wants; `None` if it wants too many.
    pub(super) fn symbol(&mut self, symbol: ir::Symbol, span: Span) -> Option<u16> {
        let index = self.symbols.iter().position(|known| *known == symbol).unwrap_or_else(|| {
            self.symbols.push(symbol);
            self.symbols.len() - 1
        });
        let index = u16::try_from(index).ok();
        if index.is_none() {
            self.error(span, "too many symbols");
        }
        index
    }
}

/// How stacks of a mode are printed.
fn shape_of(mode: StackMode) -> shape::StackMode {
    match mode {
        StackMode::Bpftrace => shape::StackMode::Bpftrace,
        StackMode::Perf => shape::StackMode::Perf,
        StackMode::Raw => shape::StackMode::Raw,
        StackMode::BuildId => shape::StackMode::BuildId,
    }
}
