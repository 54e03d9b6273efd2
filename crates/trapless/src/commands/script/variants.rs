//! Clauses whose bodies depend on the function that they are at: one body for each function, where they differ.

use super::known::{Known, Place};
use super::probed::Written;
use crate::resolve::UsdtSite;
use crate::spec::{Location, Pattern};
use std::collections::HashMap;
use std::rc::Rc;
use trapless_script::check::clauses::ClauseKind;
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
    let written = Written::by(compiler.clauses());
    for (number, clause) in compiler.clauses().to_vec().iter().enumerate() {
        if !clause.depends_on_function && !clause.depends_on_name {
            continue;
        }
        let first = clause.points.first().and_then(|point| known.function(&point.point));
        let mut functions: Vec<(usize, Place, Option<Function>)> = Vec::new();
        for (index, point) in clause.points.iter().enumerate() {
            let places: Rc<[Place]> = known.places(&point.point);
            for place in places.iter().flat_map(|place| each_name(place, clause.kind)) {
                let told = known.told(&point.point, &place);
                let mut function = told.map(|told| told.function.clone());
                if clause.depends_on_name {
                    let name = written.probe(clause.kind.provider(), &place.module, place.site.name.text());
                    function.get_or_insert_default().probe = Some(name);
                }
                let is_known = |known: &(usize, Place, _)| {
                    (known.1.home, &known.1.location) == (place.home, &place.location)
                };
                // A USDT probe is one, at however many places it stands.
                if clause.kind != ClauseKind::Usdt || !functions.iter().any(is_known) {
                    functions.push((index, place, function));
                }
            }
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

/// A place by each name that it has there: several USDT probes may stand at one.
fn each_name(place: &Place, kind: ClauseKind) -> Vec<Place> {
    if kind != ClauseKind::Usdt {
        return vec![place.clone()];
    }
    let named = |usdt: &UsdtSite| {
        let mut place = place.clone();
        place.site.name = usdt.site_name();
        let provider = Some(Pattern::literal(&usdt.provider));
        place.location = Location::Usdt { provider, name: Pattern::literal(&usdt.name) };
        place
    };
    place.site.usdt.iter().map(named).collect()
}

/// What is wrong at one of several functions says at which.
fn at(told: Diagnostics, place: &Place) -> Diagnostics {
    let mut all = Diagnostics::default();
    for diagnostic in told.iter() {
        all.push(diagnostic.clone().hint(format!("this is so at {}", place.site.name.text())));
    }
    all
}
