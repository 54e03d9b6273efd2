//! Attach points that mean nothing in their files: an error, or left out, as the script says (`missing_probes`). Files that are not there are
//! always an error.

use super::known::Known;
use super::probed;
use super::variants::Variants;
use crate::cli::script::{Dialect, Text};
use trapless_running::points;
use trapless_script::diagnostics::{Diagnostic, Diagnostics};
use trapless_script::lower::Clause;
use trapless_script::syntax::ast::{ProbePoint, UserPlace};
use trapless_script::syntax::config::MissingProbes;

/// What a script's setting makes of attach points that mean nothing. Those that are left out are taken out of their clauses; what is said of
/// them is returned. Attach points in files that cannot be read are left to whoever attaches.
pub(super) fn leave_out(
    text: &Text,
    known: &Known<'_>,
    missing: MissingProbes,
    clauses: &mut [Clause],
    variants: &Variants,
) -> Diagnostics {
    let mut told = without_files(text, clauses);
    if told.has_errors() {
        return told;
    }
    // trapless says more of them by its own name: which ones there are.
    if missing == MissingProbes::Error && text.dialect == Dialect::Own {
        return told;
    }
    for (number, clause) in clauses.iter_mut().enumerate() {
        let all = clause.points.len();
        let (first, mut gone) = (clause.points.first().map(|point| point.span), Vec::new());
        // Variants know their attach points by number, and have none where nothing is meant.
        let has_variants = variants.contains_key(&number);
        clause.points.retain(|point| {
            let is_missing = known.is_missing(&point.point);
            if is_missing {
                gone.push(point.clone());
            }
            !is_missing || has_variants
        });
        if gone.is_empty() || clause.is_implied {
            continue;
        }
        // A pattern may well match nothing, as long as something is left.
        for point in gone.iter().filter(|point| !is_pattern(&point.point)) {
            let what = format!("No matches for {}.", named(&point.point));
            let near = || known.nearest(&point.point).map(|name| format!("did you mean '{name}'?"));
            match missing {
                MissingProbes::Error => {
                    let error = Diagnostic::error(point.span, what);
                    told.push(match near() {
                        Some(hint) => error.hint(hint),
                        None => error,
                    });
                }
                MissingProbes::Warn => told.warning(point.span, format!("{what} Skipping.")),
                MissingProbes::Ignore => {}
            }
        }
        let Some(span) = first.filter(|_| gone.len() == all) else { continue };
        match missing {
            MissingProbes::Error if told.has_errors() => {}
            MissingProbes::Error => told.push(Diagnostic::error(
                span,
                "Probe has no valid attach points. If this is expected, set the 'missing_probes' config variable to 'warn'.",
            )),
            MissingProbes::Warn => told.warning(
                span,
                "Probe has no valid attach points. It is being removed which may cause issues with program behavior.",
            ),
            MissingProbes::Ignore => {}
        }
    }
    told
}

/// What is said of attach points whose files are not found.
fn without_files(text: &Text, clauses: &[Clause]) -> Diagnostics {
    let mut told = Diagnostics::default();
    for point in clauses.iter().filter(|clause| !clause.is_implied).flat_map(|clause| &clause.points) {
        let provider = match &point.point {
            ProbePoint::Uprobe(_) => "uprobe",
            ProbePoint::Uretprobe(_) => "uretprobe",
            ProbePoint::Usdt { .. } => "usdt",
            _ => continue,
        };
        let Err(why) = probed::modules_of(text, &point.point) else { continue };
        let target = points::target(&point.point).unwrap_or("*");
        let what = format!("{provider} target file '{target}' does not exist or is not executable");
        told.push(Diagnostic::error(point.span, what).hint(why));
    }
    told
}

/// Whether an attach point is to mean as much as there is.
fn is_pattern(point: &ProbePoint) -> bool {
    let has_star = |text: Option<&str>| text.is_some_and(|text| text.contains('*'));
    match point {
        ProbePoint::Uprobe(user) | ProbePoint::Uretprobe(user) => {
            let name = match &user.place {
                UserPlace::Function { name, .. } => Some(name.as_str()),
                _ => None,
            };
            has_star(user.target.as_deref()) || has_star(name)
        }
        ProbePoint::Usdt { target, namespace, name } => {
            has_star(target.as_deref()) || has_star(namespace.as_deref()) || has_star(Some(name))
        }
        _ => false,
    }
}

/// An attach point as bpftrace names it there.
fn named(point: &ProbePoint) -> String {
    let user = |provider, user: &trapless_script::syntax::ast::UserPoint| {
        let target = user.target.as_deref().unwrap_or("*");
        match &user.place {
            UserPlace::Function { name, .. } => format!("{provider} {target}:{name}"),
            UserPlace::Address(address) => format!("{provider} {target}:{address:#x}"),
            UserPlace::Line { file, line, .. } => format!("{provider} {target}@{file}:{line}"),
        }
    };
    match point {
        ProbePoint::Uprobe(of) => user("uprobe", of),
        ProbePoint::Uretprobe(of) => user("uretprobe", of),
        ProbePoint::Usdt { target, name, .. } => format!("usdt {}:{name}", target.as_deref().unwrap_or("*")),
        _ => String::new(),
    }
}
