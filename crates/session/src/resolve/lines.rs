//! The source lines of functions, and the sites of each.

use super::{Found, Kinds, Site, Sites, each_once, places};
use crate::error::Error;
use crate::name::SiteName;
use crate::target::Image;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use trapless_process::Process;
use trapless_symbols::{Module, NoText, source_text};

/// More functions are not shown with their lines at once: each is a look through all units.
pub const MOST_FUNCTIONS: usize = 64;

/// A function with its source.
pub struct FunctionSource {
    /// Index of its image.
    pub image: usize,
    /// Its name for people.
    pub function: SiteName,
    /// The source file's whole path, as the compiler saw it.
    pub file: String,
    /// From its first line to its last.
    pub lines: RangeInclusive<u32>,
    /// All lines of the file, where they are there.
    pub text: Result<Arc<Vec<String>>, NoText>,
    /// The line, the address in the file and the name of each statement of these lines, in this function and elsewhere.
    pub statements: Vec<(u32, u64, SiteName)>,
}

/// The sources of the functions that some sites are in, and the sites of all their lines.
///
/// # Errors
/// A file cannot be read, or there is no line table for one of the functions.
pub fn sources(
    process: Option<&Process>,
    images: &[Image],
    of: &Sites,
) -> Result<(Vec<FunctionSource>, Sites), Error> {
    let functions: BTreeSet<(usize, usize)> =
        of.sites.iter().map(|site| (site.image, site.function)).collect();
    let mut sources: Vec<FunctionSource> = Vec::new();
    let mut sites: Vec<Site> = Vec::new();
    let entry = Kinds::ENTRY;
    for (image, index) in functions {
        let module = images[image].module(process)?;
        let Some(function) = module.functions().get(index) else { continue };
        let name = SiteName::new(function.name().plain(), 0);
        let nowhere = |error| Error::Source {
            spec: format!("{}:{}", images[image].name(), name.text()),
            error,
            nearest: Vec::new(),
        };
        let found = module.function_lines(function.range()).map_err(nowhere)?;
        let statements = module.statements_in(&found.file, &found.lines).map_err(nowhere)?;
        // Those in no known function are left out.
        let own = places::statements(module, image, statements, entry, &[], &mut Found::default());
        let known = sources.iter().find(|source| (source.image, &source.file) == (image, &found.file));
        let text = match known {
            Some(known) => known.text.clone(),
            None => text(process, module, &found.file, found.md5).map(Arc::new),
        };
        let row = |site: &Site| (site.name.line().unwrap_or(0), site.address, site.name.clone());
        sources.push(FunctionSource {
            image,
            statements: own.iter().map(row).collect(),
            function: name,
            file: found.file,
            lines: found.lines,
            text,
        });
        sites.extend(own);
    }
    Ok((sources, Sites { sites: each_once(sites), skipped: Vec::new(), remarks: Vec::new() }))
}

/// The file's lines: as the process sees it, else as we do where that is certainly the same file.
fn text(
    process: Option<&Process>,
    module: &Module,
    file: &str,
    md5: Option<[u8; 16]>,
) -> Result<Vec<String>, NoText> {
    let built = std::fs::metadata(module.path()).and_then(|about| about.modified()).ok();
    let Some(process) = process else { return source_text(Path::new(file), md5, built) };
    let there = source_text(&process.path_in_root(Path::new(file)), md5, built);
    match (there, md5) {
        (Err(NoText::Missing), Some(_)) => source_text(Path::new(file), md5, built),
        (there, _) => there,
    }
}
