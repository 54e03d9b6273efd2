//! From an attach point in programs to lines: each function or static probe that it means, as a script would write it.

use super::types::Signatures;
use super::{Place, warn};
use crate::error::Error;
use crate::resolve::{self, Kinds, Site};
use crate::spec::{Kind, Location, Pattern, ProbeSpec};
use crate::target::Image;
use std::collections::BTreeMap;
use std::path::Path;
use trapless_process::Process;
use trapless_running::{files, points};
use trapless_script::syntax::ast::{ProbePoint, UserPoint};
use trapless_session::error as session;
use trapless_session::select::{SelectError, means};
use trapless_symbols::{Function, Name, UsdtArgument, demangle};

/// The lines of an attach point, in their order: a probe, and with `-lv` its arguments behind it.
///
/// # Errors
/// Why there are none.
pub(super) fn rows(place: &Place, point: &ProbePoint) -> Result<Vec<String>, String> {
    let target = points::target(point).filter(|target| *target != "*");
    if let Some((process, images)) = &place.process {
        let module = target.map_or_else(Pattern::everything, files::pattern);
        let found = Looked { place, point, process: Some(process), images, target };
        match found.rows(module) {
            // A file that it has not mapped is still there.
            Err(session::Error::Select(SelectError::NoModule { .. })) if target.is_some() => {}
            other => return other.map_err(told),
        }
    }
    let Some(target) = target else {
        return Err(format!("{} names no file; give one, or -p PID", points::written(point)));
    };
    let paths = files::named(target).map_err(|several| {
        let several: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
        format!("'{target}' may be {}; write one of them", several.join(" or "))
    })?;
    let mut images = Vec::with_capacity(paths.len());
    for path in &paths {
        match Image::file_of(path, &place.files) {
            Ok(image) => images.push(image),
            // A pattern may meet what is no program of ours.
            Err(_) if target.contains('*') => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    if images.is_empty() {
        return Err(format!("{target}: no such program or library"));
    }
    let found = Looked { place, point, process: None, images: &images, target: Some(target) };
    found.rows(Pattern::everything()).map_err(told)
}

fn told(error: session::Error) -> String {
    Error::from(error).to_string()
}

/// Where an attach point is looked for.
struct Looked<'p> {
    place: &'p Place,
    point: &'p ProbePoint,
    process: Option<&'p Process>,
    images: &'p [Image],
    /// The file as the point names it.
    target: Option<&'p str>,
}

impl Looked<'_> {
    fn rows(&self, module: Pattern) -> Result<Vec<String>, session::Error> {
        let Some(spec) = points::specification(self.point, module) else { return Ok(Vec::new()) };
        let returns = spec.kind == Some(Kind::Return);
        let kinds = Kinds::hits(!returns, returns);
        let found = resolve::resolve(self.process, self.images, [(&spec, kinds)], &[], usize::MAX)?;
        let sites = found.sites;
        if let (true, Some(skipped)) = (sites.is_empty(), found.skipped.first()) {
            warn(&format!("{}: {}", points::written(self.point), skipped.why.reason));
        }
        let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // Sites come by image.
        for sites in sites.chunk_by(|one, other| one.image == other.image) {
            let image = &self.images[sites[0].image];
            let path = self.path_of(image);
            let functions = image.module(self.process)?.functions();
            let mut signatures = Signatures::of(image.module(self.process)?);
            for site in sites {
                if !site.usdt.is_empty() {
                    for usdt in &site.usdt {
                        let shown = if self.place.verbose { usdt_arguments(&usdt.arguments) } else { vec![] };
                        rows.insert(format!("usdt:{path}:{}:{}", usdt.provider, usdt.name), shown);
                    }
                    continue;
                }
                let function = functions.get(site.function).filter(Function::is_named);
                let names = names(&spec, site, function, self.language());
                let shown = match (self.place.verbose, returns) {
                    (false, _) => Vec::new(),
                    (true, false) => signatures.parameters(site.address),
                    (true, true) => signatures.result(site.address),
                };
                let provider = if returns { "uretprobe" } else { "uprobe" };
                for name in names {
                    rows.insert(format!("{provider}:{path}:{name}"), shown.clone());
                }
            }
            if let Some(why) = signatures.missing() {
                warn(&format!("No DWARF found for \"{path}\", cannot show parameter info: {why}"));
            }
        }
        Ok(rows.into_iter().flat_map(|(row, shown)| std::iter::once(row).chain(shown)).collect())
    }

    fn language(&self) -> Option<&str> {
        match self.point {
            ProbePoint::Uprobe(UserPoint { language, .. })
            | ProbePoint::Uretprobe(UserPoint { language, .. }) => language.as_deref(),
            _ => None,
        }
    }

    /// The path by which we reach an image's file: as it was written, as it is, or through the process that maps it.
    fn path_of(&self, image: &Image) -> String {
        let Some(process) = self.process else { return image.path.clone() };
        let is_it =
            |path: &str| std::fs::metadata(Path::new(path)).is_ok_and(|file| image.is_of(process, &file));
        match self.target.filter(|target| target.contains('/') && !target.contains('*') && is_it(target)) {
            Some(written) => written.to_owned(),
            None if is_it(&image.path) => image.path.clone(),
            None => process.path_in_root(Path::new(&image.path)).display().to_string(),
        }
    }
}

/// What a site is called by: all names of a function that are meant, or the place in it.
fn names(
    spec: &ProbeSpec,
    site: &Site,
    function: Option<Function<'_>>,
    language: Option<&str>,
) -> Vec<String> {
    match &spec.location {
        Location::Function { pattern, offset: 0 } => {
            let demangled = |name: &str| {
                let text = demangle(name);
                (text != name).then(|| text.into_owned())
            };
            let is_meant = |name: &Name<'_>| means(pattern, name.versioned(), &demangled);
            let meant = function.into_iter().flat_map(|function| function.names().filter(is_meant));
            let written = |name: Name<'_>| match language {
                // Between quotes all characters are a name's.
                Some(language) => match demangled(name.plain()) {
                    Some(text) => format!("{language}:\"{text}\""),
                    None => format!("{language}:{}", name.plain()),
                },
                None => name.plain().to_owned(),
            };
            meant.map(written).collect()
        }
        Location::Address(address) => vec![format!("{address:#x}")],
        _ => vec![site.name.text().to_owned()],
    }
}

/// What a static probe's note tells of its arguments.
fn usdt_arguments(arguments: &[UsdtArgument]) -> Vec<String> {
    let kind = |argument: &UsdtArgument| match (argument.size, argument.is_float, argument.is_signed) {
        (0, ..) => "uint64".to_owned(),
        (4, true, _) => "float".to_owned(),
        (_, true, _) => "double".to_owned(),
        (size, _, true) => format!("int{}", u32::from(size) * 8),
        (size, ..) => format!("uint{}", u32::from(size) * 8),
    };
    arguments
        .iter()
        .enumerate()
        .map(|(number, argument)| format!("    {} arg{number}", kind(argument)))
        .collect()
}
