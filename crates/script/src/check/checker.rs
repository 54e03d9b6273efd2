//! The checker's state: what is known of variables and maps, and where it is in the script.
//!
//! Types of variables and maps follow from how they are used, anywhere in the script. So the script is checked in rounds: each one knows
//! what the rounds before it have found, and widens it. When a round finds nothing new, a last one tells what is wrong and makes the tree
//! that is kept.

use super::clauses::Clause;
use super::environment::{Environment, Function};
use super::maps::Maps;
use super::structs::Structs;
use super::tree::{Body, VarId, Variable};
use super::types::Type;
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::ir::Symbol;
use crate::source::{Sources, Span};
use crate::syntax::config::{Settings, Unstable};
use std::collections::HashMap;

/// Works through a script.
pub struct Checker<'a> {
    /// The world outside.
    pub environment: &'a dyn Environment,
    /// The configuration.
    pub settings: &'a Settings,
    /// The texts.
    pub sources: &'a Sources,
    /// Structs and unions.
    pub structs: Structs<'a>,
    /// Maps.
    pub maps: Maps,
    /// Named parameters that the script asks for.
    pub options: Vec<NamedOption>,
    /// Symbols whose addresses it asks for.
    pub symbols: Vec<Symbol>,
    /// The types of variables so far, by where they are declared and in which clause.
    known: HashMap<(usize, Span), Type>,
    /// Variables whose declaration told their type, which does not change then.
    fixed: HashMap<(usize, Span), Type>,
    /// What is wrong. Nothing is told before the last round.
    pub told: Diagnostics,
    /// Whether it is the last round.
    pub is_last: bool,
    /// Whether this round has found something new.
    pub has_changed: bool,
    /// Where we are.
    pub at: At,
    /// How deep we are in the tree.
    depth: u32,
}

/// Where the checker is.
#[derive(Default)]
pub struct At {
    /// Number of the clause.
    pub number: usize,
    /// The clause.
    pub clause: Clause,
    /// What debug information says of its function.
    pub function: Option<Function>,
    /// Whether that was looked for.
    pub is_function_known: bool,
    /// What it becomes.
    pub body: Body,
    /// Blocks around.
    pub(super) scopes: Vec<Scope>,
    /// Loops around.
    pub loops: u32,
    /// Inside of what no value is computed, only its type asked for.
    pub meta: Option<&'static str>,
}

#[derive(Default)]
pub(super) struct Scope {
    names: HashMap<String, Named>,
    variables: Vec<VarId>,
}

/// A variable by its name.
#[derive(Clone, Copy)]
struct Named {
    id: VarId,
    declared: Span,
    origin: Origin,
    is_assigned: bool,
}

/// What brought a variable into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `let`.
    Declaration,
    /// An assignment.
    Assignment,
    /// `for`.
    Loop,
}

/// A parameter that a script takes by name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedOption {
    /// Its name, without the `--`.
    pub name: String,
    /// What it is if it is not given, as it is printed.
    pub default: String,
    /// What it is for.
    pub description: Option<String>,
}

/// How deep a tree may be, with what macros bring.
const MAX_DEPTH: u32 = 250;

impl<'a> Checker<'a> {
    /// At the beginning.
    pub fn new(
        environment: &'a dyn Environment,
        settings: &'a Settings,
        sources: &'a Sources,
        structs: Structs<'a>,
    ) -> Checker<'a> {
        Checker {
            environment,
            settings,
            sources,
            structs,
            maps: Maps::default(),
            options: Vec::new(),
            symbols: Vec::new(),
            known: HashMap::new(),
            fixed: HashMap::new(),
            told: Diagnostics::default(),
            is_last: false,
            has_changed: false,
            at: At::default(),
            depth: 0,
        }
    }

    /// The longest string that is read, in bytes with its final zero.
    pub fn longest(&self) -> u32 {
        u32::try_from(self.settings.max_strlen).unwrap_or(u32::MAX).clamp(1, super::structs::MAX_SIZE)
    }

    /// Tells what is wrong, in the last round.
    pub fn error(&mut self, span: Span, message: impl Into<String>) {
        self.tell(Diagnostic::error(span, message));
    }

    /// Tells what might be wrong, in the last round.
    pub fn warning(&mut self, span: Span, message: impl Into<String>) {
        self.tell(Diagnostic::warning(span, message));
    }

    /// Tells something, in the last round.
    pub fn tell(&mut self, diagnostic: Diagnostic) {
        // A block that is unrolled or in two clauses is checked more than once.
        if self.is_last && !self.told.iter().any(|told| *told == diagnostic) {
            self.told.push(diagnostic);
        }
    }

    /// Asks for a type inside of something, where no value is computed.
    pub fn meta<T>(&mut self, around: &'static str, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.at.meta;
        self.at.meta = before.or(Some(around));
        let result = work(self);
        self.at.meta = before;
        result
    }

    /// Tells that something unstable is used, once, or refuses it.
    pub fn unstable(&mut self, feature: &str, setting: &str, rule: Unstable, span: Span) {
        match rule {
            Unstable::Enable => {}
            Unstable::Error => self.error(
                span,
                format!(
                    "{feature} feature is not enabled by default. To enable this unstable feature, set the config \
                     flag to enable. {setting}=enable"
                ),
            ),
            Unstable::Warn => {
                let message = format!(
                    "Script is using an unstable feature: {feature}. To prevent this warning you must explicitly \
                     enable it in the config e.g. {setting}=enable"
                );
                self.tell(Diagnostic { span: None, ..Diagnostic::warning(span, message) });
            }
        }
    }

    /// Goes one level down, unless that is too deep.
    pub fn deeper<T>(&mut self, span: Span, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            // Told at once: a tree that is too deep has no last round.
            self.told.push(Diagnostic::error(span, "nested too deeply"));
            return None;
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        Some(result)
    }

    /// Opens a block.
    pub fn open(&mut self) {
        self.at.scopes.push(Scope::default());
    }

    /// Closes it. The variables that lived in it.
    pub fn close(&mut self) -> Vec<VarId> {
        let Some(scope) = self.at.scopes.pop() else { return Vec::new() };
        for (name, named) in &scope.names {
            if named.origin == Origin::Declaration && !named.is_assigned {
                self.warning(named.declared, format!("Variable {name} was never assigned to."));
            }
        }
        scope.variables
    }

    fn find(&mut self, name: &str) -> Option<&mut Named> {
        self.at.scopes.iter_mut().find_map(|scope| scope.names.get_mut(name))
    }

    /// What was declared under this name, and how.
    pub fn declared(&mut self, name: &str) -> Option<(Span, Origin)> {
        self.find(name).map(|named| (named.declared, named.origin))
    }

    /// A new variable in the innermost block.
    pub fn declare(&mut self, name: &str, span: Span, origin: Origin) -> VarId {
        let id = VarId(self.at.body.variables.len() as u32);
        let of = self.known.get(&(self.at.number, span)).cloned().unwrap_or_default();
        self.at.body.variables.push(Variable { name: name.to_owned(), of, is_addressed: false });
        let named = Named { id, declared: span, origin, is_assigned: origin != Origin::Declaration };
        if let Some(scope) = self.at.scopes.last_mut() {
            scope.names.insert(name.to_owned(), named);
            scope.variables.push(id);
        }
        id
    }

    /// A new variable that the script does not name.
    pub fn hidden(&mut self, span: Span, of: Type) -> VarId {
        let name = format!("${}", self.at.body.variables.len());
        let id = self.declare(&name, span, Origin::Loop);
        self.at.body.variables[id.0 as usize].of = of;
        id
    }

    /// The variable of this name. It is assigned to now.
    pub fn assigned(&mut self, name: &str) -> Option<VarId> {
        let named = self.find(name)?;
        named.is_assigned = true;
        Some(named.id)
    }

    /// The variable of this name, to read it.
    pub fn read(&mut self, name: &str, span: Span) -> Option<VarId> {
        let evaluated = self.at.meta.is_none();
        match self.find(name).map(|named| (named.id, named.is_assigned)) {
            Some((id, is_assigned)) => {
                if !is_assigned && evaluated {
                    self.warning(span, format!("Variable used before it was assigned: {name}"));
                }
                Some(id)
            }
            None => {
                let told = Diagnostic::error(span, format!("Undefined or undeclared variable: {name}"));
                let all = self.at.scopes.iter().flat_map(|scope| scope.names.keys());
                let known: Vec<&str> = all.map(String::as_str).filter(|known| !known.contains('_')).collect();
                let told = super::call::nearest_hint(told, name, known);
                self.tell(told);
                None
            }
        }
    }

    /// The type of a variable so far.
    pub fn type_of(&self, id: VarId) -> Type {
        self.at.body.variables.get(id.0 as usize).map(|variable| variable.of.clone()).unwrap_or_default()
    }

    /// Where a variable is declared, if it still is in a block around.
    fn place(&self, id: VarId) -> Option<Span> {
        let mut all = self.at.scopes.iter().flat_map(|scope| scope.names.values());
        all.find(|named| named.id == id).map(|named| named.declared)
    }

    /// Says which type a variable has for good.
    pub fn fix(&mut self, id: VarId, of: Type) {
        if let Some(span) = self.place(id) {
            self.fixed.insert((self.at.number, span), of.clone());
            self.set_type(id, of);
        }
    }

    /// Whether a variable has its type for good.
    pub fn is_fixed(&self, id: VarId) -> bool {
        self.place(id).is_some_and(|span| self.fixed.contains_key(&(self.at.number, span)))
    }

    fn set_type(&mut self, id: VarId, of: Type) {
        let Some(span) = self.place(id) else { return };
        if self.known.get(&(self.at.number, span)) != Some(&of) {
            self.has_changed = true;
            self.known.insert((self.at.number, span), of.clone());
        }
        self.at.body.variables[id.0 as usize].of = of;
    }

    /// A variable is given a value of this type: it becomes wide enough for it. Whether it can.
    pub fn widen(&mut self, id: VarId, of: &Type) -> bool {
        if of.is_none() || self.is_fixed(id) {
            return true;
        }
        match self.type_of(id).promoted(of) {
            Some(both) if both.depth() <= 32 => {
                self.set_type(id, both);
                true
            }
            _ => false,
        }
    }

    /// A map's keys are of this type, too. Whether they can.
    pub fn widen_key(&mut self, map: crate::ir::MapId, of: &Type) -> bool {
        let found = self.maps.get(map);
        let both = match found.is_scalar {
            Some(true) => Some(Type::INT64),
            _ if of.is_none() => return true,
            _ => found.key.promoted(of),
        };
        match both {
            Some(both) if both.depth() <= 32 => {
                if found.key != both {
                    self.has_changed = true;
                    self.maps.get_mut(map).key = both;
                }
                true
            }
            _ => false,
        }
    }

    /// A map's values are of this type, too. Whether they can.
    pub fn widen_value(&mut self, map: crate::ir::MapId, of: &Type) -> bool {
        if of.is_none() {
            return true;
        }
        let found = self.maps.get(map);
        match found.value.promoted(of) {
            Some(both) if both.depth() <= 32 => {
                if found.value != both {
                    self.has_changed = true;
                    self.maps.get_mut(map).value = both;
                }
                true
            }
            _ => false,
        }
    }
}
