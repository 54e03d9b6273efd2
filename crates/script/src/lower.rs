//! From a checked script to the [`ir`] and its messages.
//!
//! [`compile`] does it all: it checks a script and lowers it. A clause whose body depends on the function that it is at, since its
//! arguments lie elsewhere, can be lowered again for each function: [`Compiler::specialise`].

mod body;
mod call;
mod kept;
mod map;
mod memory;
mod output;
mod sharing;
mod statement;
mod value;

use self::body::{Lowering, stored};
use self::output::Output;
use crate::check::checker::{Checker, NamedOption};
use crate::check::clauses::{self, ClauseKind, Point};
use crate::check::environment::{Environment, Function};
use crate::check::maps::{Map, MapKind};
use crate::check::structs::Structs;
use crate::check::tree;
use crate::check::types::{Aggregate, Of, Type};
use crate::diagnostics::{Diagnostic, Diagnostics, Severity};
use crate::ir::{self, Aggregation, BodyId, MapId, MapSharing, MapValue, Program};
use crate::message::{KeyPrint, MapPrint, Messages, Show, ValuePrint};
use crate::source::Sources;
use crate::syntax::Script;
use sharing::Runs;
use std::collections::HashMap;

/// How many rounds all loops of one run of a body may take.
const FUEL: u32 = 1 << 20;

/// A script that can run.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// What runs.
    pub program: Program,
    /// What it tells means.
    pub messages: Messages,
    /// Where its bodies run, in the order of the script.
    pub clauses: Vec<Clause>,
    /// The named parameters that it takes.
    pub options: Vec<NamedOption>,
    /// What might be wrong.
    pub warnings: Diagnostics,
}

/// Attach points of one kind and the body that runs there.
#[derive(Clone, Debug)]
pub struct Clause {
    /// Where.
    pub points: Vec<Point>,
    /// What kind of place that is.
    pub kind: ClauseKind,
    /// What runs.
    pub body: BodyId,
    /// Whether it is no probe of the script's own, but kept for one at the returns: it is at the entries of that one's functions, and is
    /// not counted.
    pub is_implied: bool,
    /// Whether the body depends on the function that it is at ([`Compiler::specialise`]).
    pub depends_on_function: bool,
    /// Whether it depends on what the probe there is called ([`Function::probe`]).
    pub depends_on_name: bool,
}

/// A clause as it is for one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specialised {
    /// What runs.
    pub body: BodyId,
    /// At returns: what runs at the entry of the function, and keeps what is asked of it there.
    pub keeper: Option<BodyId>,
}

/// Checks and lowers a script.
///
/// ```
/// use trapless_script::check::environment::Nowhere;
/// use trapless_script::diagnostics::Diagnostics;
/// use trapless_script::source::Sources;
/// use trapless_script::syntax::{self, files::NoFiles};
/// use trapless_script::{check, lower};
///
/// let mut sources = Sources::default();
/// let script = sources.add("stdin", "begin { @ = count(); }").unwrap();
/// let mut told = Diagnostics::default();
/// let options = syntax::Options {
///     attach: Default::default(),
///     import_paths: Vec::new(),
///     environment: Vec::new(),
///     c: Default::default(),
///     is_native: &check::is_native,
///     files: &NoFiles,
/// };
/// let script = syntax::load(&mut sources, script, &options, &mut told).unwrap();
/// let compiled = lower::compile(&script, &sources, &Nowhere).unwrap();
/// assert_eq!(compiled.program.bodies.len(), 1);
/// ```
///
/// # Errors
/// What is wrong with it, and what might be.
pub fn compile(
    script: &Script,
    sources: &Sources,
    environment: &dyn Environment,
) -> Result<Compiled, Diagnostics> {
    Compiler::new(script, sources, environment).map(Compiler::finish)
}

/// A script that was checked and lowered, and can be lowered further.
pub struct Compiler<'a> {
    script: &'a Script,
    checker: Checker<'a>,
    clauses: Vec<clauses::Clause>,
    output: Output,
    compiled: Vec<Clause>,
}

impl<'a> Compiler<'a> {
    /// Checks and lowers a script.
    ///
    /// # Errors
    /// What is wrong with it, and what might be.
    pub fn new(
        script: &'a Script,
        sources: &'a Sources,
        environment: &'a dyn Environment,
    ) -> Result<Compiler<'a>, Diagnostics> {
        let structs = Structs::new(&script.definitions, environment);
        let mut checker = Checker::new(environment, &script.settings, sources, structs);
        let clauses = clauses::clauses(&script.probes, &mut checker.told);
        clauses::check_names(&clauses, &mut checker.told);
        let bodies = checker.script(script, &clauses);
        if checker.told.has_errors() {
            return Err(checker.told);
        }
        let mut compiler =
            Compiler { script, checker, clauses, output: Output::default(), compiled: Vec::new() };
        compiler.output.program.fuel = FUEL;
        compiler.maps();
        for (number, body) in bodies.iter().enumerate() {
            if compiler.clause(number, body).is_none() {
                compiler.checker.told.push(compiler.too_large(number));
                return Err(compiler.checker.told);
            }
        }
        compiler.output.program.symbols = compiler.checker.symbols.clone();
        Ok(compiler)
    }

    /// What came of it.
    pub fn finish(mut self) -> Compiled {
        // Bodies that were made for single functions run in the target, too, and are no clause's.
        let kinds: HashMap<BodyId, ClauseKind> =
            self.compiled.iter().map(|clause| (clause.body, clause.kind)).collect();
        sharing::decide(&mut self.output, |body| match kinds.get(&body) {
            Some(ClauseKind::End) => Runs::AtEnd,
            Some(kind) if !kind.is_in_target() => Runs::InTool,
            _ => Runs::InTarget,
        });
        let mut warnings = Diagnostics::default();
        for told in self.checker.told.iter().filter(|told| told.severity == Severity::Warning) {
            warnings.push(told.clone());
        }
        Compiled {
            program: self.output.program,
            messages: self.output.messages,
            clauses: self.compiled,
            options: self.checker.options,
            warnings,
        }
    }

    /// What came of it so far.
    pub fn clauses(&self) -> &[Clause] {
        &self.compiled
    }

    /// The body of a clause for one function: its arguments are read where they lie in it.
    ///
    /// # Errors
    /// What is wrong with it for this function.
    pub fn specialise(&mut self, clause: usize, function: Function) -> Result<Specialised, Diagnostics> {
        let Some(number) = self.number_of(clause) else { return Err(Diagnostics::default()) };
        let found = self.clauses[number].clone();
        let before = std::mem::take(&mut self.checker.told);
        self.checker.is_last = true;
        let body = self.checker.clause(self.script, number, &found, Some(function));
        let told = std::mem::replace(&mut self.checker.told, before);
        if told.has_errors() {
            return Err(told);
        }
        self.output.program.symbols = self.checker.symbols.clone();
        self.lowered(found.kind, &body).ok_or_else(|| {
            let mut told = Diagnostics::default();
            told.push(self.too_large(number));
            told
        })
    }

    /// The clause of the script that a compiled one is of.
    fn number_of(&self, clause: usize) -> Option<usize> {
        let own = self.compiled.get(..=clause)?.iter().filter(|clause| !clause.is_implied).count();
        own.checked_sub(1)
    }

    /// Lays out the maps.
    fn maps(&mut self) {
        let maps: Vec<Map> = self.checker.maps.iter().cloned().collect();
        for map in maps {
            let (value, print) = self.value_of(&map);
            let has_key = map.is_scalar == Some(false);
            let key = if has_key { map.key.clone() } else { Type::None };
            let capacity = match &map.declared {
                Some(declared) => declared.capacity,
                None => u32::try_from(self.script.settings.max_map_keys).unwrap_or(u32::MAX).max(1),
            };
            let evicts = map
                .declared
                .as_ref()
                .is_some_and(|declared| matches!(declared.kind, MapKind::LruHash | MapKind::PerCpuLruHash));
            if evicts {
                let id = MapId(self.output.program.maps.len() as u32);
                self.output.program.evicting.push(id);
            }
            let structs = &mut self.checker.structs;
            self.output.program.maps.push(ir::Map {
                name: map.name.clone(),
                key: structs.size(&key),
                value,
                capacity: if has_key { capacity } else { 1 },
                sharing: MapSharing::Shared,
            });
            self.output.messages.maps.push(MapPrint {
                name: map.name.as_str().into(),
                key: has_key.then(|| KeyPrint {
                    shape: structs.shape(&key, 0),
                    is_list: matches!(key, Type::Tuple(_)),
                }),
                value: print,
                at_exit: self.script.settings.print_maps_on_exit && map.is_used,
            });
        }
    }

    fn value_of(&mut self, map: &Map) -> (MapValue, ValuePrint) {
        let Type::Aggregate(aggregate) = map.value else {
            let of = stored(&map.value);
            let structs = &mut self.checker.structs;
            return (MapValue::Bytes(structs.size(&of)), ValuePrint::Plain(structs.shape(&of, 0)));
        };
        let signed = aggregate.of() == Of::Signed;
        let (layout, show) = match (aggregate, aggregate.of()) {
            (Aggregate::Count, _) => (Aggregation::Count, Show::Number),
            (Aggregate::Sum(_), Of::Float) => (Aggregation::SumOfFloats, Show::Number),
            (Aggregate::Sum(_), _) => (Aggregation::Sum, Show::Number),
            (Aggregate::Min(_), Of::Float) => (Aggregation::MinOfFloats, Show::Number),
            (Aggregate::Min(_), _) => (Aggregation::Min { signed }, Show::Number),
            (Aggregate::Max(_), Of::Float) => (Aggregation::MaxOfFloats, Show::Number),
            (Aggregate::Max(_), _) => (Aggregation::Max { signed }, Show::Number),
            (Aggregate::Average(_), Of::Float) => (Aggregation::AverageOfFloats, Show::Average),
            (Aggregate::Average(_), _) => (Aggregation::Average, Show::Average),
            (Aggregate::Stats(_), Of::Float) => (Aggregation::AverageOfFloats, Show::Statistics),
            (Aggregate::Stats(_), _) => (Aggregation::Average, Show::Statistics),
            (Aggregate::TimeSeries, _) => (map.layout.unwrap_or(Aggregation::Count), Show::Series),
            (Aggregate::Hist | Aggregate::LinearHist, _) => {
                (map.layout.unwrap_or(Aggregation::Hist { bits: 0 }), Show::Histogram)
            }
        };
        (MapValue::Aggregate(layout), ValuePrint::Aggregate { of: layout, show, signed })
    }

    fn clause(&mut self, number: usize, body: &tree::Body) -> Option<()> {
        let found = &self.clauses[number];
        let (kind, points) = (found.kind, found.points.clone());
        let Specialised { body: id, keeper } = self.lowered(kind, body)?;
        if let Some(body) = keeper {
            self.compiled.push(Clause {
                points: points.clone(),
                kind: ClauseKind::Entry,
                body,
                is_implied: true,
                depends_on_function: false,
                depends_on_name: false,
            });
        }
        let (depends_on_function, depends_on_name) = (body.depends_on_function, body.depends_on_name);
        let is_implied = false;
        self.compiled.push(Clause {
            points,
            kind,
            body: id,
            is_implied,
            depends_on_function,
            depends_on_name,
        });
        Some(())
    }

    /// Lowers a body, and what keeps arguments for it; nothing if it is too large.
    fn lowered(&mut self, kind: ClauseKind, body: &tree::Body) -> Option<Specialised> {
        let asked = if kind == ClauseKind::Return { kept::asked(body) } else { Vec::new() };
        if asked.is_empty() {
            return Some(Specialised { body: self.body(None, body)?, keeper: None });
        }
        let map = MapId(self.output.program.maps.len() as u32);
        self.output.program.maps.push(kept::map(asked.len()));
        self.output.messages.maps.push(MapPrint {
            name: "(arguments)".into(),
            key: None,
            value: ValuePrint::Plain(crate::shape::Shape::None),
            at_exit: false,
        });
        let keeper = Some(self.push(kept::entry(map, &asked)));
        Some(Specialised { body: self.body(Some(map), body)?, keeper })
    }

    fn too_large(&self, number: usize) -> Diagnostic {
        let span = self.clauses[number].points[0].span;
        Diagnostic::error(span, "what this probe does takes too much code or memory")
    }

    fn push(&mut self, body: ir::Body) -> BodyId {
        self.output.program.bodies.push(body);
        BodyId(self.output.program.bodies.len() as u32 - 1)
    }

    /// Lowers a body; nothing if it is too large. `keeper`: the map that keeps what it asks of the entry.
    fn body(&mut self, keeper: Option<MapId>, body: &tree::Body) -> Option<BodyId> {
        let longest = self.checker.longest();
        let tells_failures = self.checker.environment.tells_failures();
        let mut lowering = Lowering::new(
            &mut self.output,
            &mut self.checker.structs,
            &self.checker.maps,
            self.checker.sources,
            &body.variables,
            tells_failures,
            longest,
        );
        lowering.tells_result = body.tells_result;
        if let Some(map) = keeper {
            lowering.kept = kept::asked(body);
            let at = lowering.room(8 + 8 * lowering.kept.len() as u32);
            lowering.kept_at = at + 8;
            let found = lowering.local(ir::Scalar::Int);
            for statement in kept::take(map, at, found) {
                lowering.emit(statement);
            }
        }
        lowering.house(&body.block.variables);
        if let Some(predicate) = &body.predicate {
            lowering.predicate(predicate);
        }
        lowering.run(&body.block);
        let lowered = lowering.finish()?;
        Some(self.push(lowered))
    }
}

#[cfg(test)]
pub(crate) mod tests;
