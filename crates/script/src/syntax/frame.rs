//! Scripts that are put together: a frame in the language, with expressions that somebody else has written.
//!
//! A tool that takes expressions on its command line (`--where 'size > 64k'`) has a script in mind around them. It writes that as a *frame*,
//! in which names stand for the expressions, and for the places of its probes. What is wrong with an expression is told where its author
//! has written it: whatever of the frame holds an expression stands, for diagnostics, at that expression.

use super::ast::visit::{self, VisitMut};
use super::ast::{AttachPoint, Expr, ExprIds, ExprKind, Item, PlaceKind, ProbePoint, Stmt};
use super::expand::{self, Registry};
use super::load::{Options, Script, add_library, settings};
use super::parse_program;
use crate::diagnostics::Diagnostics;
use crate::source::{Sources, Span};

/// The name of the text of a frame in what is told of it.
pub const FRAME: &str = "(frame)";

/// A script with holes.
pub struct Frame<'a> {
    /// The script, in the language. Its probes are written `test:NAME`.
    pub text: &'a str,
    /// By the names of its probes, the places where they are, each as messages tell it. A probe without places is left out.
    pub places: &'a [(&'a str, Vec<(String, ProbePoint)>)],
    /// By the names that stand for them, the expressions. One that stands in several places is computed in each.
    pub fillings: &'a [(String, Expr)],
}

/// Puts the expressions into the frame.
///
/// Nothing if `diagnostics` has an error.
pub fn fill(
    sources: &mut Sources,
    frame: &Frame<'_>,
    ids: &mut ExprIds,
    options: &Options<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<Script> {
    let Ok(source) = sources.add(FRAME, frame.text) else {
        return None;
    };
    let program = parse_program(sources, source, &options.attach, ids, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let settings = settings(program.config.as_ref(), options, diagnostics);
    let (mut probes, mut maps) = (Vec::new(), Vec::new());
    for item in program.items {
        match item {
            Item::Probe(probe) => probes.push(probe),
            Item::MapDecl(map) => maps.push(map),
            Item::Macro(_) | Item::Subprog(_) => {}
        }
    }
    probes.retain_mut(|probe| {
        let places = frame.places.iter().filter(|(name, _)| {
            let is_it = |point: &ProbePoint| matches!(point, ProbePoint::Test(test) if test == name);
            probe.attach.iter().flat_map(|attach| &attach.points).any(is_it)
        });
        let places = places.flat_map(|(_, places)| places);
        let attach = |(text, point): &(String, ProbePoint)| AttachPoint {
            text: text.clone(),
            name: None,
            points: vec![point.clone()],
            span: probe.span,
        };
        probe.attach = places.map(attach).collect();
        !probe.attach.is_empty()
    });
    let mut filling = Filling { fillings: frame.fillings, ids, found: None };
    for probe in &mut probes {
        visit::probe_parts(&mut filling, probe);
        // What is told of the probe as a whole is about what was filled in.
        if let Some(span) = filling.found.take() {
            probe.span = span;
            probe.attach.iter_mut().for_each(|attach| attach.span = span);
        }
    }
    let mut registry = Registry::default();
    add_library(&mut registry, sources, ids, diagnostics);
    let is_native = options.is_native;
    expand::expand(probes.iter_mut(), [].iter_mut(), &registry, is_native, sources, ids, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let definitions = super::c::define(&[], &options.c, options.files, sources, diagnostics);
    let ids = ids.clone();
    Some(Script { probes, maps, functions: Vec::new(), definitions, settings, ids })
}

/// Puts copies of expressions where their names stand.
struct Filling<'a> {
    fillings: &'a [(String, Expr)],
    ids: &'a mut ExprIds,
    /// Where the first expression was written that was put into what is being walked over.
    found: Option<Span>,
}

impl Filling<'_> {
    /// Walks over something, and gives where the first expression in it was written.
    fn within(&mut self, walk: impl FnOnce(&mut Self)) -> Option<Span> {
        let before = self.found.take();
        walk(self);
        let found = self.found;
        self.found = before.or(found);
        found
    }
}

impl VisitMut for Filling<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Identifier(name) = &expr.kind
            && let Some((_, filling)) = self.fillings.iter().find(|(hole, _)| hole == name)
        {
            *expr = filling.clone();
            visit::renumber(expr, self.ids);
            self.found = self.found.or(Some(expr.span));
            return;
        }
        let Some(span) = self.within(|filling| visit::expr_parts(filling, expr)) else { return };
        expr.span = span;
        if let ExprKind::Call { name, .. } | ExprKind::MapElement { map: name, .. } = &mut expr.kind {
            name.span = span;
        }
    }

    fn stmt(&mut self, stmt: &mut Stmt) {
        if let Some(span) = self.within(|filling| visit::stmt_parts(filling, stmt)) {
            stmt.span = span;
        }
    }

    fn place(&mut self, place: &mut super::ast::Place) {
        let Some(span) = self.within(|filling| visit::place_parts(filling, place)) else { return };
        if let PlaceKind::MapElement { map, .. } = &mut place.kind {
            // Variables are known by where they stand, and stay there.
            (place.span, map.span) = (span, span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::check::environment::Nowhere;
    use crate::lower;
    use crate::syntax::ast::ChosenAt;
    use crate::syntax::files::NoFiles;
    use crate::syntax::parse_expression;

    /// What is told of a frame whose holes `a`, `b`, … are filled with these.
    fn told(frame: &str, at: ChosenAt, fillings: &[&str]) -> String {
        let (mut sources, mut ids, mut diagnostics) = Default::default();
        let mut filled = Vec::new();
        for (text, name) in fillings.iter().zip('a'..) {
            let source = sources_add(&mut sources, text);
            let expr = parse_expression(&sources, source, &mut ids, &mut diagnostics).unwrap();
            filled.push((name.to_string(), expr));
        }
        let options = Options {
            attach: Default::default(),
            import_paths: Vec::new(),
            environment: Vec::new(),
            c: Default::default(),
            is_native: &check::is_native,
            files: &NoFiles,
        };
        let places = [("here", vec![("it".to_owned(), ProbePoint::Chosen { number: 0, at })])];
        let frame = Frame { text: frame, places: &places, fillings: &filled };
        let script = fill(&mut sources, &frame, &mut ids, &options, &mut diagnostics).unwrap();
        match lower::compile(&script, &sources, &Nowhere) {
            Ok(compiled) => format!("{} clauses", compiled.clauses.len()),
            Err(told) => told.render(&sources),
        }
    }

    fn sources_add(sources: &mut Sources, text: &str) -> crate::source::SourceId {
        sources.add("--flag", text).unwrap()
    }

    #[test]
    fn frames_are_filled() {
        let frame = "test:here /a/ { $key = (probe, b); @[$key] = count(); @n[$key] = sum(b); } test:there { exit(); }";
        assert_eq!(told(frame, ChosenAt::Entry, &["arg0 > 64k && strlen(comm) > 0", "arg1"]), "1 clauses");
        assert_eq!(told(frame, ChosenAt::Return, &["retval > 64k", "arg1"]), "2 clauses");
    }

    #[test]
    fn what_is_wrong_is_told_where_it_was_written() {
        for (frame, filling, expected) in [
            (
                "test:here /a/ {}",
                "arg0 > nonsense",
                "--flag:1:8-16: ERROR: Unknown identifier: 'nonsense'\narg0 > nonsense\n       ~~~~~~~~\n",
            ),
            (
                "test:here { @ = hist(a); }",
                "str(arg0)",
                "--flag:1:1-10: ERROR: hist() only supports integer arguments (string[1024] provided)\nstr(arg0)\n~~~~~~~~~\n",
            ),
        ] {
            assert_eq!(told(frame, ChosenAt::Entry, &[filling]), expected);
        }
        let told = told("test:here { @[a] = count(); }", ChosenAt::Entry, &["retval"]);
        assert!(told.starts_with("--flag:1:1-7: ERROR: The retval builtin"), "{told}");
    }
}
