//! What a script probes in other processes: which places in which files, and what runs there.

use super::bounds;
use super::load::Loaded;
use super::variants::Variant;
use crate::cli::script::{Dialect, Text};
use crate::cli::validated::Probe;
use crate::cli::validated::Target;
use crate::error::Error;
use crate::spec::{Kind, Pattern, ProbeSpec};
use crate::terminal::tell_plainly;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use trapless_running::{files, points};
use trapless_script::check::clauses::ClauseKind;
use trapless_script::ir::BodyId;
use trapless_script::lower::Clause;
use trapless_script::native::Moment;
use trapless_script::syntax::ast::ProbePoint;
use trapless_script::syntax::config::MissingProbes;
use trapless_session::session::{Overlap, RunAt};

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
    /// What chosen attach points mean, by their numbers.
    chosen: Vec<ProbeSpec>,
    /// What becomes of bodies at sites that several of them mean.
    pub overlap: Overlap,
    /// How the script writes the files that it names.
    pub written: Written,
}

/// How a script writes the paths of files, by what they are called in processes: `probe` says it as the script does.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(HashMap<PathBuf, String>);

impl Written {
    /// The files that clauses name by their paths.
    pub fn by(clauses: &[Clause]) -> Self {
        let mut written = Self::default();
        let points = clauses.iter().flat_map(|clause| &clause.points);
        let targets = points.filter_map(|point| points::target(&point.point));
        for file in targets.filter(|target| target.contains('/')).flat_map(files::named).flatten() {
            let (Ok(real), Some(text)) = (file.canonicalize(), file.to_str()) else { continue };
            written.0.entry(real).or_insert_with(|| text.to_owned());
        }
        written
    }

    /// What a probe is called in the file that a process knows by this path.
    pub fn probe(&self, provider: &str, path: &str, function: &str) -> String {
        let written = |path: &Path| self.0.get(path).map(String::as_str);
        // A file that was found by a name may be a link.
        let real = || Path::new(path).canonicalize().ok().and_then(|real| written(&real));
        let path = written(Path::new(path)).or_else(real).unwrap_or(path);
        format!("{provider}:{path}:{function}")
    }
}

impl Points {
    /// Those of a script.
    ///
    /// # Errors
    /// A file is not found, or a name is no pattern.
    pub fn of(text: &Text, loaded: &Loaded) -> Result<Self, Error> {
        Self::at(Self::default(), text, loaded)
    }

    /// Those of a script, in which these are the places that were chosen.
    ///
    /// # Errors
    /// As [`Points::of`].
    pub fn chosen(text: &Text, loaded: &Loaded, chosen: &[ProbeSpec]) -> Result<Self, Error> {
        let points = Self { chosen: chosen.to_vec(), overlap: Overlap::Once, ..Self::default() };
        Self::at(points, text, loaded)
    }

    fn at(mut points: Self, text: &Text, loaded: &Loaded) -> Result<Self, Error> {
        let (compiled, variants) = (&loaded.compiled, &loaded.variants);
        points.written = Written::by(&compiled.clauses);
        for (index, clause) in compiled.clauses.iter().enumerate() {
            if let Some(variants) = variants.get(&index) {
                points.add_variants(text, clause, variants)?;
                continue;
            }
            // Variants keep what they ask of the entry themselves.
            if clause.is_implied && variants.contains_key(&(index + 1)) {
                continue;
            }
            let Some(moment) = moment(clause.kind) else { continue };
            let number = points.next(text)?;
            let first = points.probes.len();
            for point in &clause.points {
                if points.is_outside(text, loaded.settings.missing_probes, &point.point, &point.text)? {
                    continue;
                }
                points.add(text, clause, &point.point, &point.text, number)?;
            }
            if points.probes.len() > first {
                points.bodies.push((clause.body, moment));
            }
        }
        Ok(points)
    }

    /// Whether a point is left out that is no place in its file.
    ///
    /// # Errors
    /// It is none, and the script does not say that this is no matter.
    fn is_outside(
        &self,
        text: &Text,
        missing: MissingProbes,
        point: &ProbePoint,
        name: &str,
    ) -> Result<bool, Error> {
        if text.dialect != Dialect::Bpftrace {
            return Ok(false);
        }
        let files = points::target(point).and_then(|target| files::named(target).ok()).unwrap_or_default();
        let Some(why) = files.iter().find_map(|file| bounds::outside(file, point)) else { return Ok(false) };
        let what = format!("Unable to attach probe: {name}.");
        match missing {
            MissingProbes::Error => {
                let way = "If this is expected, set the 'missing_probes' config variable to 'warn'.";
                Err(Error::Script(text.dialect, format!("{why}\nERROR: {what} {way}")))
            }
            MissingProbes::Warn => {
                tell_plainly(&format!("WARNING: {why}\nWARNING: {what} Skipping.\n"));
                Ok(true)
            }
            MissingProbes::Ignore => Ok(true),
        }
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
        let is_return = clause.kind == ClauseKind::Return;
        if let ProbePoint::Chosen { .. } = point {
            if let Some(spec) = self.chosen_spec(point) {
                self.push(spec, is_return, number, !clause.is_implied);
            }
            return Ok(());
        }
        let modules = modules_of(text, point).map_err(failed)?;
        // A process has one of the files that a pattern means, mostly, and not all of them.
        let several = points::target(point)
            .filter(|target| text.target.is_some() && target.contains('/') && target.contains('*'))
            .and_then(files::pattern_of_paths)
            .filter(|of| {
                modules.iter().filter_map(|module| module.to_str()).any(|module| of.matches(module))
            });
        let modules = if several.is_some() { &modules[..1] } else { &modules[..] };
        for module in modules {
            let module = module.to_str().ok_or_else(|| failed("its path is no text".to_owned()))?;
            let of = match &several {
                Some(several) => several.clone(),
                None if module.contains('/') => Pattern::literal(module),
                None => files::pattern(module),
            };
            let Some(mut spec) = points::specification(point, of) else { continue };
            spec.by_file = text.target.is_none();
            self.push(spec, is_return, number, !clause.is_implied);
        }
        Ok(())
    }

    /// What a chosen attach point means.
    fn chosen_spec(&self, point: &ProbePoint) -> Option<ProbeSpec> {
        let ProbePoint::Chosen { number, .. } = point else { return None };
        usize::try_from(*number).ok().and_then(|number| self.chosen.get(number)).cloned()
    }

    fn push(&mut self, mut spec: ProbeSpec, is_return: bool, number: u16, is_own: bool) {
        spec.kind = Some(if is_return { Kind::Return } else { Kind::Entry });
        self.probes.push(Probe { spec, entry: !is_return, returns: is_return });
        self.runs.push(if is_return { RunAt::Return(number) } else { RunAt::Entry(number) });
        self.is_own.push(is_own);
    }

    /// A clause with a body for each function.
    fn add_variants(&mut self, text: &Text, clause: &Clause, variants: &[Variant]) -> Result<(), Error> {
        let Some(moment) = moment(clause.kind) else { return Ok(()) };
        let mut numbers: HashMap<BodyId, u16> = HashMap::new();
        for variant in variants {
            let Some(point) = clause.points.get(variant.point) else { continue };
            let keeper = variant.made.keeper.map(|body| (body, Moment::Entry, false));
            for (body, moment, is_own) in keeper.into_iter().chain([(variant.made.body, moment, true)]) {
                let number = match numbers.get(&body) {
                    Some(known) => *known,
                    None => {
                        let number = self.next(text)?;
                        self.bodies.push((body, moment));
                        numbers.insert(body, number);
                        number
                    }
                };
                let module = Pattern::literal(&variant.place.module);
                let spec = match self.chosen_spec(&point.point) {
                    Some(spec) => Some(ProbeSpec { module, ..spec }),
                    None => points::specification(&point.point, module)
                        .map(|spec| ProbeSpec { by_file: text.target.is_none(), ..spec }),
                };
                let Some(mut spec) = spec else { continue };
                spec.location = variant.place.location.clone();
                self.push(spec, matches!(moment, Moment::Return), number, is_own);
            }
        }
        Ok(())
    }

    /// The number of the next body.
    fn next(&self, text: &Text) -> Result<u16, Error> {
        let many = |_| Error::Script(text.dialect, "its probes need more than 65,536 bodies".to_owned());
        u16::try_from(self.bodies.len()).map_err(many)
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

/// When the bodies of a clause run; `None` for those that run in this process.
fn moment(kind: ClauseKind) -> Option<Moment> {
    Some(match kind {
        ClauseKind::Entry => Moment::Entry,
        ClauseKind::Inside | ClauseKind::Usdt => Moment::Inside,
        ClauseKind::Return => Moment::Return,
        _ => return None,
    })
}

/// The files that an attach point means, by path or as the process knows them.
///
/// # Errors
/// Why there are none.
pub(super) fn modules_of(text: &Text, point: &ProbePoint) -> Result<Vec<PathBuf>, String> {
    match points::target(point) {
        Some(target) => modules(text, target),
        None => Ok(vec![own_file(text)?]),
    }
}

/// The files that a target means. In a process it may be a name that only the process knows.
fn modules(text: &Text, target: &str) -> Result<Vec<PathBuf>, String> {
    if text.target.is_some() && !target.contains('/') {
        // What the process has mapped under that name is meant, and not what a shell or the loader would find first.
        return Ok(vec![target.into()]);
    }
    let found = files::named(target).map_err(|several| {
        let paths: Vec<_> = several.iter().map(|path| path.display().to_string()).collect();
        format!("may be {}; write the whole name", paths.join(" or "))
    })?;
    if !found.is_empty() {
        return Ok(found.into_iter().map(|file| std::path::absolute(&file).unwrap_or(file)).collect());
    }
    match (&text.target, target.contains('/')) {
        // A path as the process sees it, or a library by a part of its name.
        (Some(_), _) => Ok(vec![target.into()]),
        (None, true) if Path::new(target).is_file() => Err("it is no ELF file".to_owned()),
        (None, true) => Err("there is no such file, so nobody can run it".to_owned()),
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
            let found = files::named(&name).unwrap_or_default();
            found.into_iter().next().ok_or_else(|| format!("{name}: no such program"))
        }
        _ => Err("no file is named, and no process is given whose own could be meant".to_owned()),
    }
}
