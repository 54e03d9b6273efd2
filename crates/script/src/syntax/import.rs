//! `import`: other scripts and headers that belong to a script.
//!
//! A name is looked for beside the script and then in the paths that the caller gives; a directory stands for
//! all that can be imported in it. Each file is read once, so that files may import each other.

use std::collections::BTreeSet;

use super::ast::{CStatement, ExprIds, Import, Program};
use super::attach::AttachContext;
use super::files::{FileKind, Files, directory, join};
use super::parse_program;
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::source::Sources;

/// How many files one script may import.
const MAX_FILES: usize = 256;

/// What reads imports.
pub(super) struct Importer<'a> {
    pub(super) files: &'a dyn Files,
    /// Where to look after the script's own directory.
    pub(super) paths: &'a [String],
    pub(super) attach: &'a AttachContext,
    pub(super) sources: &'a mut Sources,
    pub(super) ids: &'a mut ExprIds,
    pub(super) diagnostics: &'a mut Diagnostics,
}

/// What imports brought, in the order in which it was found.
#[derive(Default)]
pub(super) struct Imported {
    pub(super) programs: Vec<Program>,
    /// Headers, as lines that include them.
    pub(super) headers: Vec<CStatement>,
    seen: BTreeSet<String>,
}

impl Importer<'_> {
    /// Reads everything that `program`, which is the text called `name`, imports.
    pub(super) fn all(&mut self, name: &str, program: &Program) -> Imported {
        let mut imported = Imported::default();
        let beside = directory(name).to_string();
        let mut waiting: Vec<Import> = program.imports.iter().rev().cloned().collect();
        while let Some(import) = waiting.pop() {
            let first = imported.programs.len();
            self.import(&beside, &import, &mut imported);
            let new = imported.programs[first..].iter().rev();
            waiting.extend(new.flat_map(|program| program.imports.iter().rev().cloned()));
        }
        imported
    }

    fn import(&mut self, beside: &str, import: &Import, imported: &mut Imported) {
        let candidates: Vec<String> = std::iter::once(beside)
            .chain(self.paths.iter().map(String::as_str))
            .map(|directory| join(directory, &import.path))
            .collect();
        if let Some(found) = candidates.iter().find(|path| self.files.kind(path).is_some()) {
            self.path(found, import, true, imported);
        } else if import.path != "stdlib" && !import.path.starts_with("stdlib/") {
            // The library needs no import: its macros are always there.
            let told = Diagnostic::error(import.span, "Unable to find suitable path for import");
            self.diagnostics.push(told.hint(format!("checked: {}", candidates.join(","))));
        }
    }

    /// Imports a file, or what is in a directory. What is in a directory and cannot be imported is passed
    /// over.
    fn path(&mut self, path: &str, import: &Import, named: bool, imported: &mut Imported) {
        let mut refuse = |message: String| self.diagnostics.error(import.span, message);
        if self.files.anyone_may_write(path) {
            let from = "cowardly refusing to import from a directory with global write permissions";
            return refuse(format!("{from}: \"{path}\""));
        }
        if imported.seen.len() >= MAX_FILES {
            return refuse(format!("more than {MAX_FILES} files are imported"));
        }
        let file = path.rsplit('/').next().unwrap_or(path);
        match self.files.kind(path) {
            Some(FileKind::Directory) if named => match self.files.list(path) {
                Ok(mut names) => {
                    names.sort();
                    for name in names {
                        self.path(&join(path, &name), import, false, imported);
                    }
                }
                Err(error) => refuse(format!("error reading import \"{path}\": {error}")),
            },
            Some(FileKind::Directory) | None => {}
            Some(FileKind::File) if !imported.seen.insert(path.to_string()) => {}
            Some(FileKind::File) => match file.rsplit_once('.') {
                Some((_, "bt")) => self.script(path, import, imported),
                Some((_, "h")) => {
                    let text = format!("#include \"{path}\"");
                    imported.headers.push(CStatement { text, span: import.span });
                }
                Some((stem, "c" | "o")) if stem.ends_with(".bpf") => {
                    refuse(format!("\"{file}\" is code for the kernel, which cannot run in user space"));
                }
                _ if named => refuse(format!("unknown import type: \"{file}\"")),
                _ => {}
            },
        }
    }

    fn script(&mut self, path: &str, import: &Import, imported: &mut Imported) {
        let read = self.files.read(path).map_err(|error| error.to_string());
        let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_string()));
        let added = text.and_then(|text| self.sources.add(path, text).map_err(|error| error.to_string()));
        match added {
            Ok(source) => {
                let program = parse_program(self.sources, source, self.attach, self.ids, self.diagnostics);
                if let Some(config) = &program.config {
                    self.diagnostics.error(config.span, "invalid `config` within import");
                }
                imported.programs.push(program);
            }
            Err(error) => {
                self.diagnostics.error(import.span, format!("error reading import \"{path}\": {error}"));
            }
        }
    }
}
