//! Clauses whose bodies depend on the function that they are at: one body for each function, where they differ.

use super::known::{Known, Place};
use std::collections::HashMap;
use std::rc::Rc;
use trapless_script::check::environment::Function;
use trapless_script::diagnostics::Diagnostics;
use trapless_script::lower::{Compiler, Specialised};

/// A clause at one function.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// Which of the clause's attach points means it.
    pub point: usize,
    pub place: Place,
    /// What runs there.
    pub made: Specialised,
}

/// By the number of a clause.
pub(super) type Variants = HashMap<usize, Vec<Variant>>;

/// Makes the bodies of clauses that one body is not enough for.
///
/// # Errors
/// What is wrong with a clause at one of its functions.
pub(super) fn variants(compiler: &mut Compiler<'_>, known: &Known<'_>) -> Result<Variants, Diagnostics> {
    let mut all = Variants::new();
    for (number, clause) in compiler.clauses().to_vec().iter().enumerate() {
        if !clause.depends_on_function {
            continue;
        }
        let first = clause.points.first().and_then(|point| known.function(&point.point));
        let mut functions: Vec<(usize, Place, Option<Function>)> = Vec::new();
        for (index, point) in clause.points.iter().enumerate() {
            let places: Rc<[Place]> = known.places(&point.point);
            functions.extend(places.iter().map(|place| {
                let told = known.told(&point.point, place);
                (index, place.clone(), told.map(|told| told.function.clone()))
            }));
        }
        // Where nothing is found, what is wrong is told when it is attached.
        if functions.iter().all(|(.., function)| *function == first) {
            continue;
        }
        let mut made: Vec<(Option<Function>, Specialised)> = Vec::new();
        let list = all.entry(number).or_default();
        for (point, place, function) in functions {
            let known = made.iter().find(|(other, _)| *other == function).map(|(_, made)| *made);
            let made = match known {
                Some(made) => made,
                None => {
                    let new = compiler
                        .specialise(number, function.clone().unwrap_or_default())
                        .map_err(|told| at(told, &place))?;
                    made.push((function, new));
                    new
                }
            };
            list.push(Variant { point, place, made });
        }
    }
    Ok(all)
}

/// What is wrong at one of several functions says at which.
fn at(told: Diagnostics, place: &Place) -> Diagnostics {
    let mut all = Diagnostics::default();
    for diagnostic in told.iter() {
        all.push(diagnostic.clone().hint(format!("this is so at {}", place.site.name.text())));
    }
    all
}
