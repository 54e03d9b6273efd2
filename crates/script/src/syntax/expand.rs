//! Macros: calls become the bodies of what is called.
//!
//! A body is put in as a block, with a copy of each argument where its parameter stands. It is hygienic: a
//! variable that a body assigns to gets a name of its own, which no script can write; a map can only be used
//! if it is a parameter; and an argument is expanded where it was written, so that the body does not capture
//! what is in it. A macro cannot come to call itself.
//!
//! How deep calls nest and how much they write is limited: a few lines can ask for any amount of code.

mod registry;
mod types;

use std::collections::{HashMap, HashSet};

use registry::Found;
pub use registry::{Origin, Registry};

use super::MAX_DEPTH;
use super::ast::visit::{self, VisitMut};
use super::ast::{
    Block, Expr, ExprId, ExprIds, ExprKind, MacroParameter, Place, PlaceKind, Probe, Stmt, StmtKind, Subprog,
    TypeOf,
};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::source::{ExpansionId, Sources, Span};

/// How many nodes all calls of a script may write.
const MAX_NODES: u32 = 1 << 18;

/// Expands every call in probes and functions.
///
/// `is_native` tells the functions that the checker knows: a call of one that fits no macro of that name is
/// left.
pub fn expand<'a>(
    probes: impl Iterator<Item = &'a mut Probe>,
    functions: impl Iterator<Item = &'a mut Subprog>,
    registry: &Registry,
    is_native: &dyn Fn(&str) -> bool,
    sources: &mut Sources,
    ids: &mut ExprIds,
    diagnostics: &mut Diagnostics,
) {
    let mut expander = Expander {
        registry,
        is_native,
        sources,
        ids,
        diagnostics,
        frames: Vec::new(),
        depth: 0,
        written: 0,
        stopped: false,
    };
    for probe in probes {
        visit::probe_parts(&mut expander, probe);
        visit::probe_parts(&mut types::TypeArguments { diagnostics: expander.diagnostics }, probe);
    }
    for function in functions {
        expander.block(&mut function.body);
        types::TypeArguments { diagnostics: expander.diagnostics }.block(&mut function.body);
    }
}

struct Expander<'a> {
    registry: &'a Registry,
    is_native: &'a dyn Fn(&str) -> bool,
    sources: &'a mut Sources,
    ids: &'a mut ExprIds,
    diagnostics: &'a mut Diagnostics,
    /// The calls that are being expanded, outermost first.
    frames: Vec<Frame>,
    depth: u32,
    written: u32,
    /// A limit was reached: the rest is left as it is.
    stopped: bool,
}

/// The expansion of one call.
struct Frame {
    /// Which macro.
    index: usize,
    name: String,
    id: ExpansionId,
    /// A number that makes the names of its variables unique.
    number: u32,
    /// The caller's variable for each parameter of that kind.
    variables: HashMap<String, String>,
    /// Variables that the body assigns to.
    own: HashSet<String>,
    maps: HashMap<String, String>,
    arguments: HashMap<String, Expr>,
}

impl Frame {
    fn own_name(&self, name: &str) -> String {
        format!("${}_{}_{name}", self.name, self.number)
    }
}

impl Expander<'_> {
    /// Counts one node, and tells whether there is still room for what is below it.
    fn enter(&mut self, span: Span) -> bool {
        if self.stopped {
            return false;
        }
        self.written += u32::from(!self.frames.is_empty());
        let told = if self.depth == MAX_DEPTH {
            "macros make this nested too deeply"
        } else if self.written > MAX_NODES {
            "macros make this too long"
        } else {
            self.depth += 1;
            return true;
        };
        self.stopped = true;
        self.diagnostics.error(span, told);
        false
    }

    fn own(&mut self, name: &str) {
        if let Some(frame) = self.frames.last_mut()
            && !frame.variables.contains_key(name)
        {
            frame.own.insert(name.to_string());
        }
    }

    /// The argument for a parameter of the macro that is being expanded.
    fn argument(&self, name: &str) -> Option<&Expr> {
        self.frames.last()?.arguments.get(name)
    }

    /// Puts a copy of an argument in place of its parameter. It was expanded where it was written.
    fn substitute(&mut self, expr: &mut Expr, argument: Expr) {
        *expr = argument;
        let mut copy = Copy { ids: self.ids, depth: self.depth, deepest: 0, count: 0 };
        copy.expr(expr);
        self.written = self.written.saturating_add(copy.count);
        if copy.deepest > MAX_DEPTH {
            self.stopped = true;
            self.diagnostics.error(expr.span, "macros make this nested too deeply");
        }
    }

    /// Expands a call, or a name without parentheses, if it is that of a macro.
    fn call(&mut self, expr: &mut Expr) {
        let (name, arguments): (&str, &[Expr]) = match &expr.kind {
            ExprKind::Identifier(name) => (name, &[]),
            ExprKind::Call { name, arguments } => (&name.text, arguments),
            _ => return,
        };
        // The library's macros see only the library's, so that a script cannot break them.
        let library_only = self.frames.last().is_some_and(|frame| self.registry.is_library(frame.index));
        match self.registry.find(name, arguments, library_only) {
            Found::Nothing => {}
            Found::Exactly(index) => self.expand(expr, index),
            Found::Nearly(_) if (self.is_native)(name) => {}
            Found::Nearly(index) => {
                for told in self.registry.mismatch(index, expr.span, arguments) {
                    self.diagnostics.push(told);
                }
            }
        }
    }

    fn expand(&mut self, expr: &mut Expr, index: usize) {
        let called = self.registry.get(index);
        if let Some(first) = self.frames.iter().position(|frame| frame.index == index) {
            let chain: String =
                self.frames[first..].iter().map(|frame| format!("{} > ", frame.name)).collect();
            let message = format!("Recursive macro call detected. Call chain: {chain}{}", called.name.text);
            self.diagnostics.error(expr.span, message);
            return;
        }
        let span = expr.span;
        let id = self.sources.expand(called.name.text.clone(), span);
        let kind = std::mem::replace(&mut expr.kind, ExprKind::PositionalCount);
        let arguments = match kind {
            ExprKind::Call { arguments, .. } => arguments,
            _ => Vec::new(),
        };
        let mut frame = Frame {
            index,
            name: called.name.text.clone(),
            id,
            number: self.ids.fresh().0,
            variables: HashMap::new(),
            own: HashSet::new(),
            maps: HashMap::new(),
            arguments: HashMap::new(),
        };
        for (parameter, argument) in called.parameters.iter().zip(arguments) {
            match (parameter, argument.kind) {
                (MacroParameter::Variable(name), ExprKind::Variable(given)) => {
                    frame.variables.insert(name.text.clone(), given);
                }
                (MacroParameter::Map(name), ExprKind::Map(given)) => {
                    frame.maps.insert(name.text.clone(), given);
                }
                (parameter, kind @ (ExprKind::Variable(_) | ExprKind::Map(_))) => {
                    // In a block of its own it can be read and not be assigned to.
                    let inner = Expr { kind, ..argument };
                    let block =
                        Block { statements: Vec::new(), value: Some(Box::new(inner)), span: argument.span };
                    let value = Expr { kind: ExprKind::Block(block), ..argument };
                    frame.arguments.insert(parameter.name().text.clone(), value);
                }
                (parameter, kind) => {
                    frame.arguments.insert(parameter.name().text.clone(), Expr { kind, ..argument });
                }
            }
        }
        let mut body = called.body.clone();
        self.frames.push(frame);
        self.block(&mut body);
        self.frames.pop();
        expr.kind = ExprKind::Block(body);
    }
}

impl VisitMut for Expander<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if !self.enter(expr.span) {
            return;
        }
        if let ExprKind::Identifier(name) = &expr.kind
            && let Some(argument) = self.argument(name).cloned()
        {
            self.substitute(expr, argument);
        } else {
            visit::expr_parts(self, expr);
            if let ExprKind::Offsetof { fields, .. } = &mut expr.kind {
                self.field_parameter(fields);
            }
            self.call(expr);
        }
        self.depth -= 1;
    }

    fn place(&mut self, place: &mut Place) {
        if self.enter(place.span) {
            visit::place_parts(self, place);
            self.depth -= 1;
        }
    }

    fn block(&mut self, block: &mut Block) {
        if self.enter(block.span) {
            visit::block_parts(self, block);
            self.depth -= 1;
        }
    }

    fn stmt(&mut self, stmt: &mut Stmt) {
        // A name is the body's own from where it is first assigned to.
        match &stmt.kind {
            StmtKind::Assign { place: Place { kind: PlaceKind::Variable(name), .. }, .. } => {
                self.own(name);
            }
            StmtKind::For { variable, .. } => self.own(&variable.text),
            StmtKind::Let { variable, .. } => {
                let shadows = |frame: &Frame| frame.variables.contains_key(&variable.text);
                if self.frames.last().is_some_and(shadows) {
                    let message = format!("Variable declaration shadows macro arg ${}", variable.text);
                    self.diagnostics.error(variable.span, message);
                }
                self.own(&variable.text);
            }
            _ => {}
        }
        visit::stmt_parts(self, stmt);
    }

    fn type_of(&mut self, of: &mut TypeOf) {
        self.type_parameter(of);
    }

    fn id(&mut self, id: &mut ExprId) {
        if !self.frames.is_empty() {
            *id = self.ids.fresh();
        }
    }

    fn span(&mut self, span: &mut Span) {
        if let Some(frame) = self.frames.last() {
            span.expansion = Some(frame.id);
        }
    }

    fn variable(&mut self, name: &mut String) {
        let Some(frame) = self.frames.last() else { return };
        if let Some(given) = frame.variables.get(name) {
            name.clone_from(given);
        } else if frame.own.contains(name) {
            *name = frame.own_name(name);
        }
    }

    fn map(&mut self, name: &mut String, span: Span) {
        let Some(frame) = self.frames.last() else { return };
        match frame.maps.get(name) {
            Some(given) => name.clone_from(given),
            None => {
                let message = format!(
                    "Unhygienic access to map: @{name}. Maps must be passed into the macro as arguments."
                );
                self.diagnostics.push(Diagnostic::error(span, message));
            }
        }
    }
}

/// Gives a copied tree numbers of its own, and measures it.
struct Copy<'a> {
    ids: &'a mut ExprIds,
    depth: u32,
    deepest: u32,
    count: u32,
}

impl VisitMut for Copy<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        visit::expr_parts(self, expr);
        self.depth -= 1;
    }

    fn block(&mut self, block: &mut Block) {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        visit::block_parts(self, block);
        self.depth -= 1;
    }

    fn id(&mut self, id: &mut ExprId) {
        self.count += 1;
        *id = self.ids.fresh();
    }
}

#[cfg(test)]
mod tests;
