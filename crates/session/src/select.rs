//! From patterns to modules and functions: which ones a person meant, or the nearest names when there are none.
//!
//! This knows names only. Modules and functions come as slices, and answers are indices into them.

mod names;
mod nearest;

use crate::spec::{Exclusion, Pattern, ProbeSpec};
use std::path::Path;
use thiserror::Error;

pub use names::{qualified_name, unversioned, without_parameters};
pub use nearest::nearest;

/// What a loaded module can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleNames<'a> {
    /// Its path as the target sees it.
    pub path: &'a str,
    /// The name it gives itself (`DT_SONAME`).
    pub soname: Option<&'a str>,
    /// The name the program was started by, where that is another one's: `redis-server` is a link to
    /// `redis-check-rdb` on Debian, as `python3` is to `python3.11`.
    pub alias: Option<&'a str>,
}

impl<'a> ModuleNames<'a> {
    /// The last component of the path.
    pub fn file_name(&self) -> &'a str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    fn short_names(&self) -> impl Iterator<Item = &'a str> {
        [Some(self.file_name()), self.soname, self.alias].into_iter().flatten()
    }
}

/// Why patterns select nothing usable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// No module has such a name.
    #[error("no module matches '{pattern}'{}", did_you_mean(.nearest))]
    NoModule {
        /// The module part of the specification.
        pattern: String,
        /// Names that are close.
        nearest: Vec<String>,
    },
    /// A prefix that several modules start with.
    #[error("'{pattern}' may be {}; write the whole name, or '{pattern}*' for all of them", .candidates.join(" or "))]
    AmbiguousModule {
        /// The module part of the specification.
        pattern: String,
        /// Paths or file names that start with it.
        candidates: Vec<String>,
    },
    /// No function has such a name.
    #[error("no function matches '{spec}'{}", did_you_mean(.nearest))]
    NoFunction {
        /// The specification as it was written.
        spec: String,
        /// Names that are close.
        nearest: Vec<String>,
    },
    /// No USDT probe has such a name.
    #[error("no USDT probe matches '{spec}'{}", if *.any { did_you_mean(.nearest) } else { "; there is none at all".to_owned() })]
    NoUsdt {
        /// The specification as it was written.
        spec: String,
        /// Names that are close.
        nearest: Vec<String>,
        /// Whether the files have any.
        any: bool,
    },
    /// What matches is left out.
    #[error("{} '{spec}' matches {} left out by --exclude", what_matches(*.excluded), if *.excluded == 1 { "is" } else { "are all" })]
    Excluded {
        /// The specification as it was written.
        spec: String,
        /// How many functions match, were it not for the exclusions.
        excluded: usize,
    },
    /// More functions than the user allowed.
    #[error(
        "{found} functions match, and the limit is {limit}; narrow the pattern or raise it with --max-probes {found}"
    )]
    TooMany {
        /// How many functions match.
        found: usize,
        /// How many may.
        limit: usize,
    },
}

fn what_matches(functions: usize) -> String {
    if functions == 1 { "the function that".to_owned() } else { format!("the {functions} functions that") }
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => "; see what there is with: trapless list -p PID, or trapless list FILE".to_owned(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

/// The modules that `pattern` means, as indices into `modules`.
///
/// Tried in this order, and the first that finds something decides: the path, the file name or soname, and for plain
/// text a prefix that ends where a word does (`libssl` for `libssl.so.3`, not for `libssl_extra.so`), the same behind
/// `lib` (`c` for `libc.so.6`), and any prefix. A prefix must be unique.
///
/// # Errors
/// [`SelectError::NoModule`] and [`SelectError::AmbiguousModule`].
pub fn modules(pattern: &Pattern, modules: &[ModuleNames<'_>]) -> Result<Vec<usize>, SelectError> {
    let select = |test: &dyn Fn(&ModuleNames<'_>) -> bool| -> Vec<usize> {
        modules.iter().enumerate().filter(|(_, m)| test(m)).map(|(i, _)| i).collect()
    };
    let text = pattern.text();
    // Exactness first: `libc.so.6` as a regular expression would also find `libc.so.6.debug`.
    let mut found = select(&|m| m.path == text || m.short_names().any(|n| n == text));
    if found.is_empty() {
        found = select(&|m| m.short_names().any(|n| pattern.matches(n)));
    }
    if found.is_empty() && text.contains('/') {
        found = select(&|m| pattern.matches(m.path));
    }
    if found.is_empty()
        && let Some(name) = pattern.as_literal()
    {
        found = match name.contains('/') {
            true => select(&|m| is_path(name, m.path)),
            false => prefix(name, modules)?,
        };
    }
    if found.is_empty() {
        let names = modules.iter().flat_map(ModuleNames::short_names);
        return Err(SelectError::NoModule { pattern: text.to_owned(), nearest: nearest(text, names) });
    }
    Ok(found)
}

/// Whether `written`, which holds a slash, leads to `path`: through the file system, or as its last components.
fn is_path(written: &str, path: &str) -> bool {
    if let Ok(real) = std::fs::canonicalize(written) {
        return real == Path::new(path) || std::fs::canonicalize(path).is_ok_and(|p| p == real);
    }
    let relative = written.strip_prefix("./").unwrap_or(written);
    !relative.starts_with('/') && Path::new(path).ends_with(relative)
}

/// The module whose name starts with `prefix`.
fn prefix(prefix: &str, modules: &[ModuleNames<'_>]) -> Result<Vec<usize>, SelectError> {
    let behind_lib = format!("lib{prefix}");
    let starts =
        |name: &str, prefix: &str, next: fn(&str) -> bool| name.strip_prefix(prefix).is_some_and(next);
    let word: fn(&str) -> bool = |rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let library: fn(&str) -> bool = |rest| rest.starts_with(".so");
    for (prefix, next) in [
        (prefix, library),
        (prefix, word),
        (behind_lib.as_str(), library),
        (prefix, (|_| true) as fn(&str) -> bool),
    ] {
        let found: Vec<usize> = (0..modules.len())
            .filter(|&i| modules[i].short_names().any(|name| starts(name, prefix, next)))
            .collect();
        match found.as_slice() {
            [] => continue,
            [_] => return Ok(found),
            // One file that is mapped more than once, as by dlmopen.
            [first, ..] if found.iter().all(|&i| modules[i].path == modules[*first].path) => {
                return Ok(found);
            }
            several => {
                let mut candidates: Vec<String> =
                    several.iter().map(|&i| modules[i].file_name().to_owned()).collect();
                candidates.sort_unstable();
                candidates.dedup();
                if candidates.len() == 1 {
                    candidates = several.iter().map(|&i| modules[i].path.to_owned()).collect();
                }
                return Err(SelectError::AmbiguousModule { pattern: prefix.to_owned(), candidates });
            }
        }
    }
    Ok(Vec::new())
}

/// The functions that `pattern` means and no exclusion takes out, as indices into `functions`.
///
/// A function comes with all its names in the symbol tables and is selected once, whichever of them match. A name
/// matches raw, without its version (`memcpy@@GLIBC_2.14`), demangled, demangled without parameters, and without
/// the return type that templates carry. `demangle` returns `None` for names that are not mangled.
pub fn functions<'a, N, S>(
    pattern: &Pattern,
    exclusions: &[&Pattern],
    functions: impl IntoIterator<Item = N>,
    demangle: &dyn Fn(&str) -> Option<String>,
) -> Vec<usize>
where
    N: IntoIterator<Item = &'a S>,
    S: AsRef<str> + ?Sized + 'a,
{
    let mut all: Vec<&S> = Vec::new();
    let mut selected = |names: N| {
        all.clear();
        all.extend(names);
        let any = |pattern: &Pattern| {
            all.iter().any(|name| names::any_form(name.as_ref(), demangle, |form| pattern.matches(form)))
        };
        any(pattern) && !exclusions.iter().any(|e| any(e))
    };
    functions.into_iter().enumerate().filter_map(|(i, names)| selected(names).then_some(i)).collect()
}

/// Whether `pattern` means a function with this name, in any of the forms that [`functions`] tries.
pub fn means(pattern: &Pattern, name: &str, demangle: &dyn Fn(&str) -> Option<String>) -> bool {
    names::any_form(name, demangle, |form| pattern.matches(form))
}

/// The function patterns among `exclusions` that apply to `module`.
pub fn exclusions_for<'e>(exclusions: &'e [Exclusion], module: &ModuleNames<'_>) -> Vec<&'e Pattern> {
    let applies =
        |e: &&Exclusion| e.module.as_ref().is_none_or(|p| modules(p, std::slice::from_ref(module)).is_ok());
    exclusions.iter().filter(applies).map(|e| &e.function).collect()
}

/// The error for a specification that found no function, with near names among `names`.
pub fn no_function<'a>(spec: &ProbeSpec, names: impl IntoIterator<Item = &'a str>) -> SelectError {
    let nearest = match &spec.location {
        crate::spec::Location::Function { pattern, .. } => nearest(pattern.text(), names),
        crate::spec::Location::Address(_)
        | crate::spec::Location::Usdt { .. }
        | crate::spec::Location::Line(_) => Vec::new(),
    };
    SelectError::NoFunction { spec: spec.text.clone(), nearest }
}

/// Passes when `found` functions are allowed.
///
/// # Errors
/// [`SelectError::TooMany`].
pub fn check_limit(found: usize, limit: usize) -> Result<(), SelectError> {
    if found > limit { Err(SelectError::TooMany { found, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
