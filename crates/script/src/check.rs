//! The checker: names, types, and what is refused.
//!
//! It makes a checked [`tree`] of each clause of a script. Types are found in rounds ([`checker`]).

mod access;
mod builtin;
mod call;
pub mod checker;
mod choice;
pub mod clauses;
pub mod convert;
mod element;
pub mod environment;
mod errors;
mod expression;
pub mod format;
pub mod maps;
mod operator;
pub mod signals;
mod statement;
pub mod structs;
pub mod tree;
pub mod types;

pub use builtin::NAMES as BUILTINS;
pub use call::is_native;
pub(crate) use call::location;
pub use errors::error_number;

use self::checker::{At, Checker};
use self::clauses::{Clause, ClauseKind};
use self::environment::Function;
use self::maps::{Declared, MapKind};
use self::structs::MAX_SIZE;
use self::tree::{Body, Kind};
use self::types::Type;
use crate::diagnostics::Diagnostic;
use crate::syntax::Script;

/// How many rounds types may take to settle.
const MAX_ROUNDS: u32 = 50;

/// How many clauses a script may have.
const MAX_CLAUSES: usize = 100_000;

impl Checker<'_> {
    /// Checks all clauses. Their trees, in their order; of no use if an error was told.
    pub fn script(&mut self, script: &Script, clauses: &[Clause]) -> Vec<Body> {
        for function in &script.functions {
            self.is_last = true;
            self.error(function.span, "functions cannot be called: write a macro");
            self.is_last = false;
        }
        self.declarations(script);
        if clauses.len() > MAX_CLAUSES {
            self.is_last = true;
            self.error(clauses[0].points[0].span, "too many probes");
            return Vec::new();
        }
        self.settle(|checker| {
            checker.round(script, clauses);
        });
        self.is_last = true;
        let bodies = self.round(script, clauses);
        self.check_maps();
        if !self.told.has_errors() {
            bodies.iter().for_each(|body| self.refuse_nothing(body));
        }
        bodies
    }

    /// Refuses what was made of a value that is none in the end, as a call's without a result: while types are not settled it passes for one that
    /// is not known yet.
    fn refuse_nothing(&mut self, body: &Body) {
        let mut spans = Vec::new();
        body.walk(&mut |value| {
            if matches!(value.kind, Kind::Nothing) && !value.of.is_none() {
                spans.push(value.span);
            }
        });
        spans.into_iter().for_each(|span| self.error(span, "a value is needed here, and none is given"));
    }

    /// Does it again until nothing new is found.
    fn settle(&mut self, mut round: impl FnMut(&mut Self)) {
        for _ in 0..MAX_ROUNDS {
            self.has_changed = false;
            round(self);
            if self.told.has_errors() {
                return;
            }
            if self.has_changed {
                continue;
            }
            // What is only ever counted up begins as an integer.
            let unknown =
                self.maps.iter_mut().filter(|map| map.is_used && map.value.is_none() && !map.is_copied_to);
            let mut is_done = true;
            for map in unknown {
                map.value = Type::INT8;
                is_done = false;
            }
            if is_done {
                return;
            }
        }
    }

    fn round(&mut self, script: &Script, clauses: &[Clause]) -> Vec<Body> {
        let mut bodies = Vec::new();
        for (number, clause) in clauses.iter().enumerate() {
            bodies.push(self.clause(script, number, clause, None));
        }
        bodies
    }

    /// What debug information says of the clause's function, the first one if there are several. It is looked for when it is first asked for.
    fn function(&mut self) -> Option<Function> {
        let At { function, is_function_known, clause, .. } = &mut self.at;
        let is_function = matches!(clause.kind, ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return);
        if !std::mem::replace(is_function_known, true)
            && is_function
            && let Some(first) = clause.points.first()
        {
            *function = self.environment.function(&first.point);
        }
        function.clone()
    }

    /// Checks one clause, as it is for a function if one is given, and else for its first one.
    pub fn clause(
        &mut self,
        script: &Script,
        number: usize,
        clause: &Clause,
        function: Option<Function>,
    ) -> Body {
        let Some(probe) = script.probes.get(clause.probe) else { return Body::default() };
        let is_function_known = function.is_some();
        self.at = At { number, clause: clause.clone(), function, is_function_known, ..At::default() };
        self.open();
        let predicate = probe.predicate.as_ref().map(|predicate| {
            let checked = self.condition(predicate, predicate.span);
            // A predicate may be a string as little as any other condition.
            checked
        });
        let mut block = self.statements(&probe.body);
        block.variables.extend(self.close());
        let mut body = std::mem::take(&mut self.at.body);
        body.predicate = predicate;
        body.block = block;
        body.tells_result = matches!(clause.kind, ClauseKind::Test);
        body
    }

    fn declarations(&mut self, script: &Script) {
        self.is_last = true;
        for declaration in &script.maps {
            let name = statement::at(&declaration.map.text);
            let Some(kind) = MapKind::named(&declaration.kind.text) else {
                self.tell(
                    Diagnostic::error(
                        declaration.span,
                        format!("Invalid bpf map type: {}", declaration.kind.text),
                    )
                    .hint("Valid map types: lruhash, percpulruhash, percpuhash, hash"),
                );
                continue;
            };
            if declaration.capacity == 0 {
                self.error(declaration.span, "Max entries must be greater than 0");
            }
            let map = self.maps.number(&name, declaration.map.span);
            let capacity = u32::try_from(declaration.capacity).unwrap_or(u32::MAX);
            self.maps.get_mut(map).declared = Some(Declared { kind, capacity, span: declaration.span });
        }
        self.is_last = false;
    }

    /// What can be told of maps only when all of them are known.
    fn check_maps(&mut self) {
        let all: Vec<maps::Map> = self.maps.iter().cloned().collect();
        for map in all {
            let Some(declared) = &map.declared else {
                continue;
            };
            if !map.is_used {
                self.warning(declared.span, format!("Unused map: {}", map.name));
                continue;
            }
            let is_aggregate = matches!(map.value, Type::Aggregate(_));
            if is_aggregate != declared.kind.is_per_cpu() && !map.value.is_none() {
                let needed = if is_aggregate { "percpuhash" } else { "hash" };
                self.error(
                    map.span,
                    format!(
                        "Incompatible map types. Type from declaration: {}. Type from value/key type: {needed}",
                        declared.kind.name()
                    ),
                );
            }
        }
        for map in self.maps.iter().cloned().collect::<Vec<_>>() {
            let size = self.structs.size(&map.value).max(self.structs.size(&map.key));
            if size >= MAX_SIZE {
                self.error(map.span, format!("{} holds more than {MAX_SIZE} bytes for a key", map.name));
            }
        }
    }
}

#[cfg(test)]
mod tests;
