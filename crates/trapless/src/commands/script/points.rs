//! From a script's attach points to what is probed: which files, which places in them, and what runs there.

use crate::cli::validated::Probe;
use crate::error::Error;
use crate::spec::{Kind, Location, Pattern, ProbeSpec, SourceLine, Syntax};
use crate::{cli::script::Text, cli::validated::Target};
use std::path::{Path, PathBuf};
use trapless_script::check::clauses::ClauseKind;
use trapless_script::ir::BodyId;
use trapless_script::lower::{Clause, Compiled};
use trapless_script::native::Moment;
use trapless_script::syntax::ast::{ProbePoint, UserPlace, UserPoint};
use trapless_session::session::RunAt;

/// What a script probes in other processes.
#[derive(Debug, Default)]
pub(super) struct Points {
    /// What to probe, in the order of the script.
    pub probes: Vec<Probe>,
    /// What runs at each of them.
    pub runs: Vec<RunAt>,
    /// Whether each counts as a probe of the script, and is none that was made for another.
    pub is_own: Vec<bool>,
    /// The bodies, in the order of their numbers in [`Self::runs`].
    pub bodies: Vec<(BodyId, Moment)>,
}

impl Points {
    /// Those of a script.
    ///
    /// # Errors
    /// A file is not found, or a name is no pattern.
    pub fn of(text: &Text, compiled: &Compiled) -> Result<Self, Error> {
        let mut points = Self::default();
        for clause in &compiled.clauses {
            let moment = match clause.kind {
                ClauseKind::Entry => Moment::Entry,
                ClauseKind::Inside | ClauseKind::Usdt => Moment::Inside,
                ClauseKind::Return => Moment::Return,
                _ => continue,
            };
            let number = points.bodies.len() as u16;
            let first = points.probes.len();
            for point in &clause.points {
                points.add(text, clause, &point.point, &point.text, number)?;
            }
            if points.probes.len() > first {
                points.bodies.push((clause.body, moment));
            }
        }
        Ok(points)
    }

    fn add(
        &mut self,
        text: &Text,
        clause: &Clause,
        point: &ProbePoint,
        name: &str,
        number: u16,
    ) -> Result<(), Error> {
        let failed = |what: String| Error::Script(text.dialect, format!("{name}: {what}"));
        let pattern = |of: &str| Pattern::new(of, Syntax::Glob).map_err(|error| failed(error.what));
        let (target, location) = match point {
            ProbePoint::Uprobe(user) | ProbePoint::Uretprobe(user) => (&user.target, place(user, pattern)?),
            ProbePoint::Usdt { target, namespace, name } => {
                let provider = namespace.as_deref().map(pattern).transpose()?;
                (target, Location::Usdt { provider, name: pattern(name)? })
            }
            _ => return Ok(()),
        };
        let module = match target {
            Some(target) => module(text, target).map_err(failed)?,
            None => own_file(text).map_err(failed)?,
        };
        let is_return = clause.kind == ClauseKind::Return;
        let module = match module.to_str() {
            Some(path) if path.contains('*') => pattern(path)?,
            Some(path) => Pattern::literal(path),
            None => return Err(failed("its path is no text".to_owned())),
        };
        let spec = ProbeSpec {
            module,
            location,
            kind: Some(if is_return { Kind::Return } else { Kind::Entry }),
            mechanism: None,
            inlines: false,
            by_file: text.target.is_none(),
            text: name.to_owned(),
        };
        self.probes.push(Probe { spec, entry: !is_return, returns: is_return });
        self.runs.push(if is_return { RunAt::Return(number) } else { RunAt::Entry(number) });
        self.is_own.push(!clause.is_implied);
        Ok(())
    }

    /// The files that they name, where all of them do.
    pub fn files(&self) -> Option<std::collections::BTreeSet<PathBuf>> {
        let file = |probe: &Probe| {
            let path = PathBuf::from(probe.spec.module.as_literal()?);
            path.is_file().then_some(path)
        };
        self.probes.iter().map(file).collect()
    }
}

fn place(user: &UserPoint, pattern: impl Fn(&str) -> Result<Pattern, Error>) -> Result<Location, Error> {
    Ok(match &user.place {
        UserPlace::Function { name, offset } => {
            Location::Function { pattern: pattern(name)?, offset: *offset }
        }
        UserPlace::Address(address) => Location::Address(*address),
        UserPlace::Line { file, line, column } => Location::Line(SourceLine {
            file: file.clone(),
            line: u32::try_from(*line).unwrap_or(u32::MAX),
            column: column.map(|column| u32::try_from(column).unwrap_or(u32::MAX)),
        }),
    })
}

/// The file that a target means. In a process it may be a name that only the process knows.
fn module(text: &Text, target: &str) -> Result<PathBuf, String> {
    if target.contains('*') {
        return Ok(target.into());
    }
    if let Some(file) = file_of(target) {
        return Ok(std::path::absolute(&file).unwrap_or(file));
    }
    match (&text.target, target.contains('/')) {
        // A path as the process sees it, or a library by a part of its name.
        (Some(_), _) => Ok(target.into()),
        (None, true) => Err("no such file; nobody can run it".to_owned()),
        (None, false) => {
            Err("no program and no library of that name is found; write its path, or give -p PID".to_owned())
        }
    }
}

/// The program of the process that is given.
fn own_file(text: &Text) -> Result<PathBuf, String> {
    match &text.target {
        Some(Target::Processes(pids)) => {
            let pid = pids.first().copied().unwrap_or(0);
            std::fs::read_link(format!("/proc/{pid}/exe"))
                .map_err(|error| format!("the program of process {pid} is not known: {error}"))
        }
        Some(Target::Launch(command)) => {
            let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            file_of(&name).ok_or_else(|| format!("{name}: no such program"))
        }
        _ => Err("no file is named, and no process is given whose own could be meant".to_owned()),
    }
}

/// A file by its path, or as a shell finds programs and the loader finds libraries.
fn file_of(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    program.or_else(|| library(name)).or_else(|| Some(PathBuf::from(name)).filter(|path| path.is_file()))
}

/// A library as the loader finds it: `libc.so.6`, `libc`, `c`.
pub(super) fn library(name: &str) -> Option<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let directories = [
        format!("/lib/{multiarch}"),
        format!("/usr/lib/{multiarch}"),
        "/lib64".to_owned(),
        "/usr/lib64".to_owned(),
        "/lib".to_owned(),
        "/usr/lib".to_owned(),
        "/usr/local/lib".to_owned(),
    ];
    for directory in directories.iter().map(Path::new) {
        let exact = directory.join(name);
        if exact.is_file() {
            return Some(exact);
        }
        let starts = [format!("{name}.so"), format!("lib{name}.so")];
        let inside = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = inside
            .filter(|entry| {
                let file = entry.file_name();
                let file = file.to_string_lossy();
                starts.iter().any(|start| file == *start || file.starts_with(&format!("{start}.")))
            })
            .map(|entry| entry.path())
            .filter(|path| is_elf(path))
            .collect();
        found.sort();
        if let Some(first) = found.into_iter().next() {
            return Some(first);
        }
    }
    None
}

/// Linker scripts are called like libraries, too.
fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF"
}
