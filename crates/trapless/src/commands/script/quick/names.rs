//! Names in expressions: arguments as debug information calls them, and what cannot be meant.

use super::super::known::Known;
use super::super::load;
use super::program::{Places, Written, is_result, is_word};
use crate::cli::script::Text;
use crate::error::Error;
use std::collections::BTreeSet;
use trapless_script::check::BUILTINS;
use trapless_script::diagnostics::{Diagnostic, Diagnostics};
use trapless_script::nearest::nearest;
use trapless_script::syntax::ast::visit::{self, VisitMut};
use trapless_script::syntax::ast::{Access, BinaryOp, Expr, ExprKind, Name, ProbePoint, UnaryOp};

/// Arguments that are named in a message, at most.
const NAMED: usize = 12;

/// Makes names of arguments what the language calls them, and refuses comparisons that would never be true.
///
/// # Errors
/// Such a comparison, which has been told.
pub(super) fn settle(
    text: &Text,
    written: &mut Written,
    known: &Known<'_>,
    places: &Places,
) -> Result<(), Error> {
    let points: Vec<&ProbePoint> = points(places).collect();
    let mut told = Diagnostics::default();
    // Nothing is read of files unless there is a name to be found in them.
    let mut free = Free(BTreeSet::new());
    written.all().for_each(|expr| free.expr(expr));
    if !free.0.is_empty() {
        let arguments = arguments(known, points.iter().copied());
        let mut naming = Naming { arguments: &arguments };
        written.all().for_each(|expr| naming.expr(expr));
        if arguments.is_empty()
            && let Some(why) = known.problem()
        {
            return Err(why);
        }
        for (name, span) in free.0.iter().map(|free| (&free.name, free.span())) {
            let is_known = arguments.contains(name) || known.enumerator(name).is_some() || is_own(name);
            if !is_known {
                told.push(unknown(name, span, &arguments));
            }
        }
    }
    let mut untyped = None;
    let mut untyped = || {
        untyped
            .get_or_insert_with(|| {
                let mut names = Vec::new();
                let (mut places, mut is_any) = (points.iter(), false);
                places.by_ref().for_each(|point| {
                    for place in known.places(point).iter() {
                        is_any = true;
                        if known.told(point, place).is_none_or(|told| told.result.is_none()) {
                            names.push(place.site.name.text().to_owned());
                        }
                    }
                });
                if is_any { Some(names) } else { None }
            })
            .clone()
    };
    let mut signs = Signs { untyped: &mut untyped, told: &mut told };
    written.all().for_each(|expr| signs.expr(expr));
    match told.has_errors() {
        true => Err(load::refused(text, &told, &written.sources)),
        false => Ok(()),
    }
}

fn points(places: &Places) -> impl Iterator<Item = &ProbePoint> {
    places.iter().flat_map(|(_, points)| points).map(|(_, point)| point)
}

/// The names of the arguments of all functions that are meant.
fn arguments<'p>(known: &Known<'_>, points: impl Iterator<Item = &'p ProbePoint>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for point in points {
        for place in known.places(point).iter() {
            let told = known.told(point, place);
            let parameters = told.iter().flat_map(|told| &told.function.parameters);
            names.extend(parameters.map(|parameter| parameter.name.clone()));
        }
    }
    names
}

/// Whether the language itself has a name.
fn is_own(name: &str) -> bool {
    BUILTINS.contains(&name)
        || ["arch", "config", "has_cpid", "fretval"].contains(&name)
        || name.starts_with("__builtin_")
        || {
            let digits = ["arg", "farg", "sarg"].iter().find_map(|prefix| name.strip_prefix(prefix));
            digits
                .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        }
}

fn unknown(name: &str, span: trapless_script::source::Span, arguments: &BTreeSet<String>) -> Diagnostic {
    let told = Diagnostic::error(span, format!("Unknown identifier: '{name}'"));
    let all = arguments.iter().map(String::as_str).chain(BUILTINS);
    let told = match nearest(name, all) {
        Some(near) => told.hint(format!("did you mean '{near}'?")),
        None => told,
    };
    if arguments.is_empty() {
        return told.hint(
            "no arguments are known by name, as there is no debug information of the functions; their words are arg0, arg1, …",
        );
    }
    let mut names: Vec<&str> = arguments.iter().take(NAMED).map(String::as_str).collect();
    if arguments.len() > NAMED {
        names.push("…");
    }
    told.hint(format!("arguments by name: {}", names.join(", ")))
}

/// A name that is no builtin's, and where it stands.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FreeName {
    name: String,
    source: trapless_script::source::SourceId,
    place: (u32, u32),
}

impl FreeName {
    fn span(&self) -> trapless_script::source::Span {
        trapless_script::source::Span::new(self.source, self.place.0 as usize, self.place.1 as usize)
    }
}

/// Finds names that are no builtins.
struct Free(BTreeSet<FreeName>);

impl VisitMut for Free {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Identifier(name) = &expr.kind
            && !is_own(name)
        {
            let span = expr.span;
            self.0.insert(FreeName {
                name: name.clone(),
                source: span.source,
                place: (span.start, span.end),
            });
        }
        parts_with_values(self, expr);
    }
}

/// The parts of an expression, but for words that tell functions how to do something: `ustack(perf)`.
fn parts_with_values(visitor: &mut impl VisitMut, expr: &mut Expr) {
    match &mut expr.kind {
        ExprKind::Call { name, arguments } if matches!(name.text.as_str(), "ustack" | "nsecs") => {
            let values = arguments.iter_mut().filter(|of| !matches!(of.kind, ExprKind::Identifier(_)));
            values.for_each(|argument| visitor.expr(argument));
        }
        _ => visit::expr_parts(visitor, expr),
    }
}

/// Makes `name` mean `args.name`.
struct Naming<'a> {
    arguments: &'a BTreeSet<String>,
}

impl VisitMut for Naming<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Identifier(name) = &expr.kind
            && !is_own(name)
            && self.arguments.contains(name)
        {
            let name = Name { text: name.clone(), span: expr.span };
            let args = Expr { id: expr.id, span: expr.span, kind: ExprKind::Builtin("args".to_owned()) };
            expr.kind = ExprKind::Field { of: Box::new(args), access: Access::Dot, name };
            return;
        }
        parts_with_values(self, expr);
    }
}

/// Refuses comparisons of words without a sign that ask for one.
struct Signs<'a> {
    /// The functions whose results have no type that is known; `None`: no function is known.
    untyped: &'a mut dyn FnMut() -> Option<Vec<String>>,
    told: &'a mut Diagnostics,
}

impl VisitMut for Signs<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Binary { op, left, right } = &expr.kind {
            let (word, is_asked) = match (left, right) {
                (word, other) if is_word(word) || is_result(word) => (word, asks_for_sign(*op, other)),
                (other, word) if is_word(word) || is_result(word) => {
                    (word, asks_for_sign(mirrored(*op), other))
                }
                _ => (left, false),
            };
            let untyped = if is_asked && !is_word(word) { (self.untyped)() } else { None };
            let is_typed = untyped.as_ref().is_some_and(Vec::is_empty);
            if is_asked && !is_typed {
                let name = match &word.kind {
                    ExprKind::Builtin(name) | ExprKind::Identifier(name) => name.as_str(),
                    _ => "it",
                };
                let message = format!("'{name}' is a word without a sign here, which is never below 0");
                let hint = match (name, untyped) {
                    ("retval", Some(functions)) => format!(
                        "debug information tells no result of {}; write (int32)retval or (int64)retval, or leave them out with -x",
                        some_of(&functions)
                    ),
                    ("retval", None) => {
                        "what the functions return is not known; write (int32)retval or (int64)retval"
                            .to_owned()
                    }
                    _ => format!(
                        "write (int32){name} or (int64){name}, or the argument's name where debug information tells it"
                    ),
                };
                self.told.push(Diagnostic::error(expr.span, message).hint(hint));
            }
        }
        visit::expr_parts(self, expr);
    }
}

/// The first of some names, and how many more there are.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut shown: Vec<String> = names.iter().take(SHOWN).cloned().collect();
    if names.len() > SHOWN {
        shown.push(format!("{} more", names.len() - SHOWN));
    }
    shown.join(", ")
}

/// Whether `word op other` means something for a word with a sign alone.
fn asks_for_sign(op: BinaryOp, other: &Expr) -> bool {
    let is_negative = matches!(&other.kind, ExprKind::Unary { op: UnaryOp::Minus, operand } if matches!(operand.kind, ExprKind::Integer(_)));
    let is_zero = matches!(&other.kind, ExprKind::Integer(integer) if integer.value == 0);
    let compares = matches!(
        op,
        BinaryOp::Equal
            | BinaryOp::NotEqual
            | BinaryOp::Less
            | BinaryOp::LessEqual
            | BinaryOp::Greater
            | BinaryOp::GreaterEqual
    );
    (compares && is_negative) || (is_zero && matches!(op, BinaryOp::Less | BinaryOp::GreaterEqual))
}

/// The same comparison with its sides exchanged.
fn mirrored(op: BinaryOp) -> BinaryOp {
    match op {
        BinaryOp::Less => BinaryOp::Greater,
        BinaryOp::LessEqual => BinaryOp::GreaterEqual,
        BinaryOp::Greater => BinaryOp::Less,
        BinaryOp::GreaterEqual => BinaryOp::LessEqual,
        other => other,
    }
}
