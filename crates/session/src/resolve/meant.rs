//! Which modules are meant, and by what name: what a path leads to as we see it comes ahead of what the process sees there.

use crate::error::Error;
use crate::select::{self, ModuleNames, SelectError};
use crate::spec::{Pattern, ProbeSpec};
use crate::target::Image;
use std::fs::Metadata;
use trapless_process::Process;
use trapless_symbols::Module;

/// The modules that a pattern means. Sonames are in the files, so they are only asked for when paths do not help.
///
/// A path is ours, if a file is there that the process has mapped; a process with another root may see that elsewhere. Else it is as the
/// process sees it, where that may be.
pub(super) fn modules(
    process: Option<&Process>,
    images: &[Image],
    spec: &ProbeSpec,
) -> Result<Vec<usize>, Error> {
    let found = Ours::of(process, &spec.module).map(|ours| ours.among(images)).unwrap_or_default();
    if !found.is_empty() {
        return Ok(found);
    }
    if spec.by_file && process.is_some() {
        let pattern = spec.module.text().to_owned();
        return Err(SelectError::NoModule { pattern, nearest: Vec::new() }.into());
    }
    let by_path: Vec<_> = images
        .iter()
        .map(|i| ModuleNames { path: &i.path, soname: None, alias: i.alias.as_deref() })
        .collect();
    match select::modules(&spec.module, &by_path) {
        Err(SelectError::NoModule { .. }) => {}
        other => return Ok(other?),
    }
    let with_sonames: Vec<_> = images
        .iter()
        .map(|i| ModuleNames {
            path: &i.path,
            soname: i.module(process).ok().and_then(Module::soname),
            alias: i.alias.as_deref(),
        })
        .collect();
    Ok(select::modules(&spec.module, &with_sonames)?)
}

/// A file that a path leads to as we see it, for a process that may have mapped it.
pub(super) struct Ours<'p> {
    process: &'p Process,
    file: Metadata,
}

impl<'p> Ours<'p> {
    pub(super) fn of(process: Option<&'p Process>, module: &Pattern) -> Option<Self> {
        let path = module.as_literal().filter(|name| name.contains('/'))?;
        let file = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some(Self { process: process?, file })
    }

    fn is(&self, image: &Image) -> bool {
        image.is_of(self.process, &self.file)
    }

    fn among(&self, images: &[Image]) -> Vec<usize> {
        (0..images.len()).filter(|&index| self.is(&images[index])).collect()
    }
}

/// Whether an image is mapped from that file, if there is one.
pub(super) fn is_ours(ours: &Option<Ours<'_>>, image: &Image) -> bool {
    ours.as_ref().is_some_and(|ours| ours.is(image))
}

/// A module's name as it was asked for: another name of the file (a link to it, a soname, where we see it), whole and not as a pattern.
/// `is_ours`: the specification's path leads to it as we see it.
pub(super) fn asked_module(
    image: &Image,
    module: &Module,
    spec: &ProbeSpec,
    is_ours: bool,
) -> Option<String> {
    let asked = spec.module.as_literal()?;
    let name = asked.rsplit('/').next().filter(|name| !name.is_empty() && *name != image.name())?;
    let is_link = || std::fs::symlink_metadata(asked).is_ok_and(|about| about.is_symlink());
    let is_name = image.alias.as_deref() == Some(name) || module.soname() == Some(name);
    (is_name || asked.contains('/') && (is_ours || is_link())).then(|| name.to_owned())
}
