//! What `#define` makes of names, put in where a script uses them.
//!
//! A body is read as an expression of the language when its name is used, so that the many macros of headers
//! that are no expressions do no harm. Parameters are replaced in the tree, and not in the text.

use std::collections::{BTreeMap, HashMap};

use super::{Definitions, Macro};
use crate::diagnostics::Diagnostics;
use crate::source::{ExpansionId, SourceId, Sources, Span};
use crate::syntax::ast::visit::{self, VisitMut};
use crate::syntax::ast::{Block, Expr, ExprIds, ExprKind, Probe, Subprog, TypeOf, TypeOfKind};
use crate::syntax::{MAX_DEPTH, parse_expression};

/// How many nodes macros may write in all.
const MAX_NODES: u32 = 1 << 18;

impl Definitions {
    /// Puts macros in everywhere.
    pub(crate) fn put_in(
        &self,
        probes: &mut [Probe],
        functions: &mut [Subprog],
        sources: &mut Sources,
        ids: &mut ExprIds,
        diagnostics: &mut Diagnostics,
    ) {
        if self.macros.is_empty() {
            return;
        }
        let mut putter = Putter {
            macros: &self.macros,
            texts: HashMap::new(),
            active: Vec::new(),
            sources,
            ids,
            diagnostics,
            depth: 0,
            written: 0,
            stopped: false,
        };
        probes.iter_mut().for_each(|probe| visit::probe_parts(&mut putter, probe));
        functions.iter_mut().for_each(|function| putter.block(&mut function.body));
    }
}

struct Putter<'a> {
    macros: &'a BTreeMap<String, Macro>,
    /// The sources that bodies have got.
    texts: HashMap<String, SourceId>,
    /// The macros whose bodies are being walked over.
    active: Vec<String>,
    sources: &'a mut Sources,
    ids: &'a mut ExprIds,
    diagnostics: &'a mut Diagnostics,
    depth: u32,
    written: u32,
    stopped: bool,
}

impl Putter<'_> {
    /// The body of a macro as an expression, if it is one.
    fn body(&mut self, name: &str, found: &Macro) -> Option<Expr> {
        let source = match self.texts.get(name) {
            Some(source) => *source,
            None => {
                let source = self.sources.add(name, found.body.clone()).ok()?;
                self.texts.insert(name.to_string(), source);
                source
            }
        };
        parse_expression(self.sources, source, self.ids, &mut Diagnostics::default())
    }

    /// Replaces a use of a macro by its body. Whether there was one.
    fn replace(&mut self, expr: &mut Expr, is_type: bool) -> bool {
        let (name, count) = match &expr.kind {
            ExprKind::Identifier(name) => (name.clone(), None),
            ExprKind::Call { name, arguments } => (name.text.clone(), Some(arguments.len())),
            _ => return false,
        };
        let Some(found) = self.macros.get(&name) else { return false };
        // A call of what takes no parameters is a call of what the name becomes, which is none.
        if found.parameters.as_ref().map(Vec::len) != count || found.body == name {
            return false;
        }
        if self.active.contains(&name) {
            self.diagnostics.error(expr.span, format!("Macro recursion: {}", self.active.join("->")));
            self.stopped = true;
            return false;
        }
        let Some(mut body) = self.body(&name, found) else {
            if !is_type {
                self.diagnostics
                    .error(expr.span, format!("unable to expand macro as an expression: {}", found.body));
            }
            return false;
        };
        let id = self.sources.expand(name.clone(), expr.span);
        let mut arguments = match std::mem::replace(&mut expr.kind, ExprKind::PositionalCount) {
            ExprKind::Call { arguments, .. } => arguments,
            _ => Vec::new(),
        };
        // Before the macro counts as active: it may be called in its own argument.
        arguments.iter_mut().for_each(|argument| self.expr(argument));
        let parameters = found.parameters.iter().flatten().cloned().zip(arguments).collect();
        Filler { id, parameters, ids: self.ids }.expr(&mut body);
        *expr = body;
        self.active.push(name);
        self.expr(expr);
        self.active.pop();
        true
    }

    fn enter(&mut self, span: Span) -> bool {
        if self.stopped {
            return false;
        }
        self.depth += 1;
        self.written += u32::from(!self.active.is_empty());
        if self.depth > MAX_DEPTH || self.written > MAX_NODES {
            self.diagnostics.error(span, "macros make this nested too deeply or too long");
            self.stopped = true;
            return false;
        }
        true
    }
}

impl VisitMut for Putter<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if self.enter(expr.span) {
            if !self.replace(expr, false) {
                visit::expr_parts(self, expr);
            }
            self.depth -= 1;
        }
    }

    fn type_of(&mut self, of: &mut TypeOf) {
        match &mut of.kind {
            // A lone name may be a type, also one that has a macro.
            TypeOfKind::Expr(expr @ Expr { kind: ExprKind::Identifier(_), .. }) => {
                _ = self.replace(expr, true)
            }
            _ => visit::type_of_parts(self, of),
        }
    }

    fn block(&mut self, block: &mut Block) {
        if self.enter(block.span) {
            visit::block_parts(self, block);
            self.depth -= 1;
        }
    }
}

/// Puts arguments into a body, and tells its places that they come from a call.
struct Filler<'a> {
    id: ExpansionId,
    parameters: HashMap<String, Expr>,
    ids: &'a mut ExprIds,
}

impl VisitMut for Filler<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Identifier(name) = &expr.kind
            && let Some(argument) = self.parameters.get(name)
        {
            *expr = argument.clone();
            visit::renumber(expr, self.ids);
            return;
        }
        visit::expr_parts(self, expr);
    }

    fn span(&mut self, span: &mut Span) {
        span.expansion = Some(self.id);
    }
}
