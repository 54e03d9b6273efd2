//! Which macros there are, and which of them a call means.

use std::collections::HashMap;

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::source::Span;
use crate::syntax::ast::{Expr, ExprKind, Macro, MacroParameter};

/// All macros of a script.
#[derive(Debug, Default)]
pub struct Registry {
    macros: Vec<(Macro, Origin)>,
    by_name: HashMap<String, Vec<usize>>,
}

/// Who wrote a macro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The script, or what it imports.
    Script,
    /// The standard library.
    Library,
}

/// What [`Registry::find`] found.
pub(super) enum Found {
    /// No macro of that name.
    Nothing,
    /// One that takes these arguments.
    Exactly(usize),
    /// One that does not, and is nearest.
    Nearly(usize),
}

/// What may be given for a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Variable,
    Map,
    Other,
}

/// One missing argument weighs more than any number of wrong ones.
const WRONG_COUNT: usize = 1024;

fn distance(takes: &[MacroParameter], given: &[Given]) -> usize {
    let fits = |(parameter, given): &(&MacroParameter, &Given)| match parameter {
        MacroParameter::Variable(_) => **given == Given::Variable,
        MacroParameter::Map(_) => **given == Given::Map,
        MacroParameter::Expr(_) => true,
    };
    let wrong = takes.iter().zip(given).filter(|pair| !fits(pair)).count();
    takes.len().abs_diff(given.len()) * WRONG_COUNT + wrong
}

impl Registry {
    /// Adds a macro. Of several with one name, the first that fits a call is meant, so a later one must not
    /// fit all that an earlier one takes.
    pub fn add(&mut self, added: Macro, origin: Origin, diagnostics: &mut Diagnostics) {
        let given: Vec<Given> = added
            .parameters
            .iter()
            .map(|parameter| match parameter {
                MacroParameter::Variable(_) => Given::Variable,
                MacroParameter::Map(_) => Given::Map,
                MacroParameter::Expr(_) => Given::Other,
            })
            .collect();
        let same = self.by_name.get(&added.name.text).into_iter().flatten().map(|&index| &self.macros[index]);
        let taken = same
            .filter(|(_, other)| *other == origin)
            .find(|(earlier, _)| distance(&earlier.parameters, &given) == 0);
        if let Some((earlier, _)) = taken {
            let told = Diagnostic::error(added.span, format!("Redefinition of macro: {}", added.name.text));
            diagnostics.push(told.related(earlier.span, "This is the original definition."));
            return;
        }
        for (index, parameter) in added.parameters.iter().enumerate() {
            if added.parameters[..index].contains(parameter) {
                let (kind, sigil) = match parameter {
                    MacroParameter::Variable(_) => ("Variable", "$"),
                    MacroParameter::Map(_) => ("Map", "@"),
                    MacroParameter::Expr(_) => ("Ident", ""),
                };
                let name = parameter.name();
                let message =
                    format!("{kind} for macro argument has already been used: {sigil}{}", name.text);
                diagnostics.error(name.span, message);
                return;
            }
        }
        self.by_name.entry(added.name.text.clone()).or_default().push(self.macros.len());
        self.macros.push((added, origin));
    }

    pub(super) fn get(&self, index: usize) -> &Macro {
        &self.macros[index].0
    }

    pub(super) fn is_library(&self, index: usize) -> bool {
        self.macros[index].1 == Origin::Library
    }

    /// Finds the macro that a call means. The script's come before the library's.
    pub(super) fn find(&self, name: &str, arguments: &[Expr], library_only: bool) -> Found {
        let given: Vec<Given> = arguments
            .iter()
            .map(|argument| match argument.kind {
                ExprKind::Variable(_) => Given::Variable,
                ExprKind::Map(_) => Given::Map,
                _ => Given::Other,
            })
            .collect();
        let named = self.by_name.get(name).into_iter().flatten().copied();
        let nearest = named
            .filter(|&index| !library_only || self.is_library(index))
            .min_by_key(|&index| (distance(&self.get(index).parameters, &given), self.is_library(index)));
        match nearest {
            None => Found::Nothing,
            Some(index) if distance(&self.get(index).parameters, &given) == 0 => Found::Exactly(index),
            Some(index) => Found::Nearly(index),
        }
    }

    /// What is told of a call that fits no macro, the nearest of which is `index`.
    pub(super) fn mismatch(&self, index: usize, call: Span, arguments: &[Expr]) -> Vec<Diagnostic> {
        let nearest = self.get(index);
        let name = &nearest.name.text;
        let told = Diagnostic::error(
            call,
            format!("Call to {name}() has arguments that do not match any definition."),
        );
        if nearest.parameters.len() != arguments.len() {
            let message = format!(
                "The closest definition of {name}() has a different number of arguments. Expected: {} but got {}",
                nearest.parameters.len(),
                arguments.len()
            );
            return vec![told.related(nearest.span, message)];
        }
        let mut all = vec![told];
        for (parameter, argument) in nearest.parameters.iter().zip(arguments) {
            let (wanted, sigil) = match (parameter, &argument.kind) {
                (MacroParameter::Variable(_), ExprKind::Variable(_))
                | (MacroParameter::Map(_), ExprKind::Map(_)) => {
                    continue;
                }
                (MacroParameter::Expr(_), _) => continue,
                (MacroParameter::Variable(_), _) => ("variable", "$"),
                (MacroParameter::Map(_), _) => ("map", "@"),
            };
            let got = match argument.kind {
                ExprKind::Variable(_) => "a variable",
                ExprKind::Map(_) => "a map",
                _ => "an expression",
            };
            let parameter = parameter.name();
            let message = format!(
                "Mismatched arg. {name}() expects a {wanted} for arg {sigil}{} but got {got}.",
                parameter.text
            );
            let told = Diagnostic::error(argument.span, message);
            all.push(told.related(parameter.span, "This is the argument in the closest definition."));
        }
        all
    }
}
