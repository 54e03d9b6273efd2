//! Sites by their place in the source: the statements of a line, and the copies of functions that were inlined into others.

use super::{Found, Kinds, Site, demangled, site};
use crate::error::Error;
use crate::name::SiteName;
use crate::outcome::{Note, Why};
use crate::select;
use crate::spec::{Location, Pattern, ProbeSpec, SourceLine};
use trapless_symbols::{FunctionName, Gaps, Module, Place, SourceError, Statement, demangle};

/// A remark about a specification.
pub(super) struct Understood {
    code: &'static str,
    text: String,
}

impl Understood {
    pub(super) fn of(self, spec: &str) -> Note {
        Note { code: self.code, text: format!("'{spec}': {}", self.text) }
    }
}

/// The statements of a line.
pub(super) fn of_line(
    module: &Module,
    image: usize,
    asked: &SourceLine,
    kinds: Kinds,
    exclusions: &[&Pattern],
    told: &mut Found,
) -> Result<Vec<Site>, SourceError> {
    let found = module.statements(&asked.file, asked.line, asked.column)?;
    if found.line != asked.line {
        let text = format!("line {} has no code; the next one that has is taken: {}", asked.line, found.line);
        told.remarks.push(Understood { code: "nearest_line", text });
    }
    if let (Some(wanted), Some(column)) = (asked.column, found.column)
        && wanted != column
    {
        let text = format!("no statement begins at column {wanted}; the next one is taken: {column}");
        told.remarks.push(Understood { code: "nearest_column", text });
    }
    remark_gaps(&found.gaps, told);
    Ok(statements(module, image, found.statements, kinds, exclusions, told))
}

/// The sites of statements.
pub(super) fn statements(
    module: &Module,
    image: usize,
    statements: Vec<Statement>,
    kinds: Kinds,
    exclusions: &[&Pattern],
    told: &mut Found,
) -> Vec<Site> {
    let places = statements.into_iter().map(|statement| {
        let inlined = statement.inlined.as_deref().map(readable);
        (statement.address, Some(statement.place), inlined)
    });
    let why = || {
        let reason = "a line of the source does not return; name the function it is in instead";
        Why::plain("line_returns", reason)
    };
    sites_at(module, image, places, kinds, exclusions, &why, told)
}

/// The inlined copies of the functions that `pattern` means.
pub(super) fn inlined(
    module: &Module,
    image: usize,
    pattern: &Pattern,
    kinds: Kinds,
    exclusions: &[&Pattern],
    told: &mut Found,
) -> Vec<Site> {
    let is_meant =
        |name: &FunctionName| means(pattern, name) && !exclusions.iter().any(|out| means(out, name));
    let (instances, gaps) = match module.inlined(is_meant) {
        Ok(found) => found,
        Err(why) => {
            // The function itself may be there.
            let name = module.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = format!("inlined copies in {name} are not known: {why}");
            told.remarks.push(Understood { code: "inlined_unknown", text });
            return Vec::new();
        }
    };
    remark_gaps(&gaps, told);
    let why = || {
        let reason =
            "a copy that was inlined into another function does not return; count or trace its entry";
        Why::plain("inlined_returns", reason)
    };
    let places = instances.into_iter().map(|copy| (copy.entry, copy.place, Some(readable(&copy.name))));
    sites_at(module, image, places, kinds, &[], &why, told)
}

/// The sites at some addresses, each with its place in the source and the name of what was inlined there.
fn sites_at(
    module: &Module,
    image: usize,
    places: impl Iterator<Item = (u64, Option<Place>, Option<String>)>,
    kinds: Kinds,
    exclusions: &[&Pattern],
    no_return: &dyn Fn() -> Why,
    told: &mut Found,
) -> Vec<Site> {
    let mut sites = Vec::new();
    for (address, place, inlined) in places {
        let Some(function) = module.functions().containing(address) else {
            let name = SiteName::in_source(&format!("{address:#x}"), 0, place, inlined);
            told.nowhere.push((name, Why::plain("no_function", "the code is in no function that is known")));
            continue;
        };
        let is_out =
            |out: &&Pattern| function.names().any(|name| select::means(out, name.versioned(), &demangled));
        if exclusions.iter().any(is_out) {
            continue;
        }
        let offset = address - function.address();
        sites.push(Site {
            name: SiteName::in_source(function.name().plain(), offset, place, inlined),
            no_return: Some(no_return()),
            ..site(image, function, offset, kinds)
        });
    }
    sites
}

/// Whether `pattern` means a function by the name that DWARF has for it.
fn means(pattern: &Pattern, name: &FunctionName) -> bool {
    match name {
        FunctionName::Symbol(symbol) => select::means(pattern, symbol, &demangled),
        FunctionName::Written(text) => pattern.matches(text),
    }
}

fn readable(name: &FunctionName) -> String {
    match name {
        FunctionName::Symbol(symbol) => demangle(symbol).into_owned(),
        FunctionName::Written(text) => text.clone(),
    }
}

fn remark_gaps(gaps: &Gaps, told: &mut Found) {
    if gaps.units > 0 {
        let parts = if gaps.units == 1 { "1 part".to_owned() } else { format!("{} parts", gaps.units) };
        let text = format!(
            "{parts} of the debug information could not be read; places that they describe are missing"
        );
        told.remarks.push(Understood { code: "debug_info_unread", text });
    }
    if let Some(first) = gaps.split.first() {
        let more = match gaps.split.len() {
            1 => String::new(),
            several => format!(" and {} more", several - 1),
        };
        let text = format!(
            "split debug information is not there ({}{more}); what was inlined in that code is not known",
            first.display()
        );
        told.remarks.push(Understood { code: "split_debug_info_missing", text });
    }
}

/// Of the reasons why a place is in none of several modules the one that says most.
pub(super) fn most_telling(
    nowhere: Vec<(usize, SourceError)>,
    modules: &[(usize, &Module)],
    spec: &ProbeSpec,
) -> Option<Error> {
    let weight = |error: &SourceError| match error {
        SourceError::NoDebugInfo | SourceError::NoLines => 0,
        SourceError::NoFile => 1,
        SourceError::NoLine(_) => 2,
        SourceError::NoColumn { .. } => 3,
        SourceError::Ambiguous(_) => 4,
    };
    let (_, error) = nowhere.into_iter().max_by_key(|(_, error)| weight(error))?;
    let nearest = match (&error, &spec.location) {
        (SourceError::NoFile, Location::Line(line)) => {
            let name = line.file.rsplit('/').next().unwrap_or_default();
            let files: Vec<String> = modules.iter().flat_map(|(_, module)| module.source_files()).collect();
            select::nearest(name, files.iter().map(String::as_str))
        }
        _ => Vec::new(),
    };
    Some(Error::Source { spec: spec.text.clone(), error, nearest })
}

/// The error for a pattern that means no function, if it means functions that were inlined.
pub(super) fn only_inlined(modules: &[(usize, &Module)], spec: &ProbeSpec) -> Option<Error> {
    let Location::Function { pattern, offset: 0 } = &spec.location else { return None };
    if spec.inlines {
        return None;
    }
    let copies = |(_, module): &(usize, &Module)| module.inlined(|name| means(pattern, name)).ok();
    let instances = modules.iter().filter_map(copies).map(|(all, _)| all.len()).sum();
    (instances > 0).then(|| Error::OnlyInlined { spec: spec.text.clone(), instances })
}
