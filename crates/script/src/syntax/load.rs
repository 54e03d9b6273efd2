//! All steps from a text to a script that can be checked.

use super::ast::visit::{self, VisitMut};
use super::ast::{CStatement, Config, ExprIds, Item, MapDecl, Probe, Stmt, StmtKind, Subprog};
use super::attach::AttachContext;
use super::c::{self, Definitions};
use super::config::Settings;
use super::expand::{self, Origin, Registry};
use super::files::Files;
use super::import::Importer;
use super::parse_program;
use crate::diagnostics::{Diagnostic, Diagnostics, Severity};
use crate::source::{SourceId, Sources, Span};

/// A script without macros, imports and lines of the preprocessor.
#[derive(Clone, Debug)]
pub struct Script {
    /// Every probe, those of imports first.
    pub probes: Vec<Probe>,
    /// Declarations of maps.
    pub maps: Vec<MapDecl>,
    /// Functions.
    pub functions: Vec<Subprog>,
    /// What definitions of C and headers say.
    pub definitions: Definitions,
    /// The settings.
    pub settings: Settings,
    /// Numbers of expressions. Who makes more takes them from here.
    pub ids: ExprIds,
}

/// What a script is read with.
pub struct Options<'a> {
    /// The command line's part in attach points.
    pub attach: AttachContext,
    /// Where imports are looked for after the script's directory.
    pub import_paths: Vec<String>,
    /// Variables of the environment. Those that begin with `BPFTRACE_` count.
    pub environment: Vec<(String, String)>,
    /// How headers are read.
    pub c: c::Options,
    /// Whether the checker knows a function of that name. Its calls need not fit a macro of that name.
    pub is_native: &'a dyn Fn(&str) -> bool,
    /// Where files come from.
    pub files: &'a dyn Files,
}

/// Reads the script `source`.
///
/// Nothing if `diagnostics` has an error.
///
/// ```
/// use trapless_script::diagnostics::Diagnostics;
/// use trapless_script::source::Sources;
/// use trapless_script::syntax::{Options, load, files::NoFiles};
///
/// let mut sources = Sources::default();
/// let script = sources.add("stdin", "macro double(x) { x * 2 } begin { print(double(21)); }").unwrap();
/// let mut diagnostics = Diagnostics::default();
/// let options = Options {
///     attach: Default::default(),
///     import_paths: Vec::new(),
///     environment: Vec::new(),
///     c: Default::default(),
///     is_native: &|name| name == "print",
///     files: &NoFiles,
/// };
/// let script = load(&mut sources, script, &options, &mut diagnostics).unwrap();
/// assert_eq!(script.probes.len(), 1);
/// ```
pub fn load(
    sources: &mut Sources,
    source: SourceId,
    options: &Options<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<Script> {
    let mut ids = ExprIds::default();
    let program = parse_program(sources, source, &options.attach, &mut ids, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let name = sources.get(source).name().to_string();
    let mut importer = Importer {
        files: options.files,
        paths: &options.import_paths,
        attach: &options.attach,
        sources,
        ids: &mut ids,
        diagnostics,
    };
    let imported = importer.all(&name, &program);
    let settings = settings(program.config.as_ref(), options, diagnostics);

    let mut registry = Registry::default();
    let (mut probes, mut maps, mut functions): (Vec<Probe>, Vec<MapDecl>, Vec<Subprog>) = Default::default();
    let mut statements: Vec<CStatement> = imported.headers;
    for program in imported.programs.into_iter().chain([program]) {
        statements.extend(program.c);
        for item in program.items {
            match item {
                Item::Probe(probe) => probes.push(probe),
                Item::MapDecl(map) => maps.push(map),
                Item::Subprog(function) => functions.push(function),
                Item::Macro(written) => registry.add(written, Origin::Script, diagnostics),
            }
        }
    }
    add_library(&mut registry, sources, &mut ids, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let is_native = options.is_native;
    expand::expand(
        probes.iter_mut(),
        functions.iter_mut(),
        &registry,
        is_native,
        sources,
        &mut ids,
        diagnostics,
    );
    refuse_imports(&mut probes, &mut functions, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let definitions = c::define(&statements, &options.c, options.files, sources, diagnostics);
    definitions.put_in(&mut probes, &mut functions, sources, &mut ids, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    Some(Script { probes, maps, functions, definitions, settings, ids })
}

/// The settings of a script's block and of the environment.
pub(super) fn settings(
    block: Option<&Config>,
    options: &Options<'_>,
    diagnostics: &mut Diagnostics,
) -> Settings {
    let environment = options.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Settings::new(block, environment, diagnostics).unwrap_or_else(|error| {
        diagnostics.push(Diagnostic {
            severity: Severity::Error,
            span: None,
            message: error.to_string(),
            related: Vec::new(),
            hints: Vec::new(),
        });
        Settings::default()
    })
}

const LIBRARY: [(&str, &str); 1] = [("stdlib/base.bt", include_str!("../stdlib/base.bt"))];

pub(super) fn add_library(
    registry: &mut Registry,
    sources: &mut Sources,
    ids: &mut ExprIds,
    diagnostics: &mut Diagnostics,
) {
    for (name, text) in LIBRARY {
        // Its length is known to fit.
        let Ok(source) = sources.add(name, text) else { continue };
        for item in parse_program(sources, source, &AttachContext::default(), ids, diagnostics).items {
            if let Item::Macro(written) = item {
                registry.add(written, Origin::Library, diagnostics);
            }
        }
    }
}

/// Refuses imports in blocks: they bring code for the kernel.
fn refuse_imports(probes: &mut [Probe], functions: &mut [Subprog], diagnostics: &mut Diagnostics) {
    struct Imports(Vec<Span>);
    impl VisitMut for Imports {
        fn stmt(&mut self, stmt: &mut Stmt) {
            if let StmtKind::Import(import) = &stmt.kind {
                self.0.push(import.span);
            }
            visit::stmt_parts(self, stmt);
        }
    }
    let mut found = Imports(Vec::new());
    probes.iter_mut().for_each(|probe| visit::probe_parts(&mut found, probe));
    functions.iter_mut().for_each(|function| found.block(&mut function.body));
    for span in found.0 {
        let message = "an import in a block brings code for the kernel, which cannot run in user space";
        diagnostics.push(Diagnostic::error(span, message).hint("import scripts before all probes"));
    }
}

#[cfg(test)]
mod tests;
