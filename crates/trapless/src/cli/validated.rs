//! Commands as the program works with them: every value checked, every contradiction refused.

use super::Cli;
use super::flags::{
    FollowFlags, FormatFlag, OutputFlags, ProbeFlags, RiskFlags, RunFlags, TableFlags, TargetFlags,
};
use super::inject::{InjectFlags, Injection, Moment};
use super::mechanisms;
use super::quick::{FilterFlags, Form, GroupFlags, Lines, Quick, Shown, expressions};
use super::replace::Replace;
use super::script::Script;
use super::scripted::script;
use super::targets::{distinct, target};
use super::verbs::{
    BenchFlags, BitsFlag, CountFlags, CountSort, HistFlags, LatencyFlags, LatencySort, ListFlags,
    StatusFlags, TraceFlags, Verb,
};
use crate::error::Error;
use crate::files::Files;
use crate::report::Sort;
use crate::resolve::Sites;
use crate::session::Run as ScriptRun;
use crate::spec::{Exclusion, Kind, Location, Pattern, ProbeSpec, Syntax};
use crate::target::Image;
use crate::whoever::Whoever;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trapless_isa::Mechanism;
use trapless_process::Process;

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// Run a script, or something about scripts.
    Script(Script),
    /// Arm probes, wait, report, remove.
    Run(Run),
    /// Trace, with arguments and results as their types say.
    Typed(Box<Run>),
    /// Run with expressions.
    Quick(Box<Run>, Quick),
    /// Have a function of a library called instead of another.
    Replace(Replace),
    /// Show what can be probed.
    List(Listing),
    /// Show how sites are probed.
    Explain(Listing),
    /// Show what is armed in processes.
    Status(Processes),
    /// Remove what is armed in processes.
    Detach(Processes),
    /// Measure the cost of hits.
    Bench(Bench),
    /// Write a completion script.
    Completions(clap_complete::Shell),
    /// Write the manual page, or all pages into a directory.
    Man(Option<PathBuf>),
}

/// A run of `count`, `latency` or `trace`.
#[derive(Debug)]
pub struct Run {
    /// What is measured at each hit.
    pub measure: Measure,
    /// The code that runs there, for [`Measure::Script`].
    pub script: Option<Arc<dyn CodeFor>>,
    /// In which processes.
    pub target: Target,
    /// Whether what they create is probed, too.
    pub follow: bool,
    /// Whether libraries are waited for that are not there.
    pub pending: bool,
    /// Whether a seccomp filter may be risked.
    pub allow_seccomp: bool,
    /// Directories in which debug information is searched, too.
    pub debug_directories: Vec<PathBuf>,
    /// Whether a launched command that still runs at the end is ended, too.
    pub ends_command: bool,
    /// At which sites.
    pub selection: Selection,
    /// When it ends.
    pub limits: Limits,
    /// Where results go.
    pub output: OutputOptions,
    /// What text results show.
    pub rows: Rows,
}

impl Run {
    /// The files that are looked at, of which none is known yet.
    pub fn files(&self) -> Files {
        Files::searching(self.debug_directories.iter().cloned())
    }
}

/// What is measured at each hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Hits per probe.
    Count,
    /// Durations.
    Latency,
    /// Each hit with its first `args` arguments, 0–6; returns carry value and duration.
    Trace {
        /// How many arguments.
        args: u8,
    },
    /// What a script says.
    Script,
    /// What expressions say.
    Quick,
}

/// Code of a script for processes.
pub trait CodeFor: fmt::Debug + Send + Sync {
    /// What is called in a process at these sites, and what its memory begins with.
    ///
    /// # Errors
    /// The script cannot run in it.
    fn run_in(&self, process: &Process, images: &[Image], sites: &Sites) -> Result<ScriptRun, Error>;

    /// Refuses to be in another process beside those that have it.
    ///
    /// # Errors
    /// What the script keeps can be in one at a time.
    fn check_shared(&self) -> Result<(), Error>;
}

/// Where probes are armed.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// In these running processes; at least one, none twice.
    Processes(Vec<i32>),
    /// In this command with its arguments, launched by us; never empty.
    Launch(Vec<OsString>),
    /// In all processes that are so, now and later.
    Whoever(Whoever),
}

/// Which sites, and how they may be probed.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The probes asked for. Empty only for `list`, which then shows modules.
    pub probes: Vec<Probe>,
    /// What wider patterns leave out.
    pub exclusions: Vec<Exclusion>,
    /// The mechanisms allowed, best first; never empty.
    pub mechanisms: Vec<Mechanism>,
    /// More matching functions than this are refused.
    pub max_probes: usize,
}

impl Selection {
    /// Whether any probe may be armed by a trap.
    pub fn may_trap(&self) -> bool {
        let named = self.probes.iter().filter_map(|probe| probe.spec.mechanism.as_ref());
        self.mechanisms.iter().chain(named).any(|mechanism| mechanism.traps())
    }
}

/// One probe as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Which sites.
    pub spec: ProbeSpec,
    /// Whether their entries are probed.
    pub entry: bool,
    /// Whether their returns are probed. Only whole functions have returns.
    pub returns: bool,
}

/// When a run ends by itself, and how often it speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// After this time.
    pub duration: Option<Duration>,
    /// Results every so often.
    pub interval: Option<Duration>,
    /// After this many hits of all probes together.
    pub max_events: Option<u64>,
}

/// Where results go, and in which form.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// A file; `None` for standard output.
    pub file: Option<PathBuf>,
    /// JSON lines rather than text.
    pub json: bool,
    /// Whether maps of stacks are lines for flame graphs.
    pub folded: bool,
    /// When to color text.
    pub color: super::flags::ColorFlag,
}

/// What text results show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The order of rows.
    pub sort: Sort,
    /// How many.
    pub top: Option<usize>,
    /// Probes without hits too.
    pub all: bool,
    /// How many rows get a histogram.
    pub histograms: usize,
}

/// `list` and `explain`.
#[derive(Debug)]
pub struct Listing {
    /// Where to look. `None`: the module of each probe is a file's path.
    pub target: Option<Target>,
    /// What to show.
    pub selection: Selection,
    /// Whether modules are summed up, and no sites shown.
    pub summary: bool,
    /// Whether functions are shown with their source lines.
    pub lines: bool,
    /// Where results go.
    pub output: OutputOptions,
}

/// `status` and `detach`.
#[derive(Debug)]
pub struct Processes {
    /// At least one, none twice.
    pub pids: Vec<i32>,
    /// Whether a seccomp filter may be risked.
    pub allow_seccomp: bool,
    /// Where results go.
    pub output: OutputOptions,
}

/// `bench`.
#[derive(Debug)]
pub struct Bench {
    /// What is measured.
    pub of: BenchOf,
    /// Which of it, by name; empty for all.
    pub names: Vec<Pattern>,
    /// Rounds, 1–1000.
    pub rounds: u32,
    /// Where results go.
    pub output: OutputOptions,
}

/// What `bench` measures.
#[derive(Debug)]
pub enum BenchOf {
    /// Triggers, and arming.
    Triggers {
        /// Bits of the programs: 64, 32, or both.
        bits: Vec<u32>,
        /// Highest number of threads; `None` for all cores.
        threads: Option<u32>,
    },
    /// Scripts: those that are named, and these texts.
    Scripts(Vec<String>),
}

impl TryFrom<Cli> for Command {
    type Error = Error;

    fn try_from(cli: Cli) -> Result<Self, Error> {
        match cli.verb {
            Some(verb) => verb.try_into(),
            None => script(cli.script).map(Command::Script),
        }
    }
}

impl TryFrom<Verb> for Command {
    type Error = Error;

    fn try_from(verb: Verb) -> Result<Self, Error> {
        Ok(match verb {
            Verb::Count(flags) => count(flags)?,
            Verb::Latency(flags) => latency(flags)?,
            Verb::Trace(flags) => trace(flags)?,
            Verb::Hist(flags) => hist(flags)?,
            Verb::Inject(flags) => inject(flags)?,
            Verb::Replace(flags) => Command::Replace(flags.try_into()?),
            Verb::List(flags) => {
                let (lines, summary) = (flags.lines, flags.summary);
                let listed = listing(flags.list, !lines)?;
                if summary && listed.selection.probes.is_empty() {
                    let text =
                        "--summary needs to know of which functions: give MODULE:* for all of a module";
                    return Err(Error::Usage(text.to_owned()));
                }
                Command::List(Listing { lines, summary, ..listed })
            }
            Verb::Explain(flags) => Command::Explain(listing(flags, false)?),
            Verb::Status(flags) => Command::Status(processes(flags)),
            Verb::Detach(flags) => Command::Detach(processes(flags)),
            Verb::Bench(flags) => Command::Bench(bench(flags)?),
            Verb::Completions(flags) => Command::Completions(flags.shell),
            Verb::Man(flags) => Command::Man(flags.directory),
        })
    }
}

fn processes(flags: StatusFlags) -> Processes {
    Processes {
        pids: distinct(flags.pids),
        allow_seccomp: flags.risk.allow_seccomp,
        output: output(flags.output),
    }
}

impl From<CountSort> for Sort {
    fn from(sort: CountSort) -> Self {
        match sort {
            CountSort::Hits => Sort::Hits,
            CountSort::Name => Sort::Name,
        }
    }
}

/// A run of a verb that says nothing else.
fn base(
    measure: Measure,
    (selection, target): (Selection, Target),
    follow: FollowFlags,
    risk: RiskFlags,
    run: &RunFlags,
    output: OutputFlags,
) -> Run {
    Run {
        measure,
        script: None,
        target,
        follow: follow.follow,
        pending: follow.pending,
        allow_seccomp: risk.allow_seccomp,
        debug_directories: Vec::new(),
        ends_command: false,
        selection,
        limits: limits(run),
        output: self::output(output),
        rows: Rows::default(),
    }
}

fn count(flags: CountFlags) -> Result<Command, Error> {
    let asked = Quick { stack: flags.stack, ..quick(&flags.filter, Some(&flags.group), Form::Count)? };
    let kinds = |kind| match kind {
        Some(kind) => (kind == Kind::Entry, kind == Kind::Return || flags.returns),
        None => (true, flags.returns),
    };
    let (selection, target) = selected(&flags.probes, kinds, flags.target, flags.follow.follow)?;
    let run = Run {
        rows: rows(&flags.table, flags.sort.into(), 0),
        ..base(Measure::Count, (selection, target), flags.follow, flags.risk, &flags.run, flags.output)
    };
    Ok(either(run, asked))
}

fn latency(flags: LatencyFlags) -> Result<Command, Error> {
    let asked = Quick { slower: flags.slower, ..quick(&flags.filter, Some(&flags.group), Form::Latency)? };
    let sort = match flags.sort {
        LatencySort::Total => Sort::Total,
        LatencySort::Hits => Sort::Hits,
        LatencySort::Avg => Sort::Average,
        LatencySort::P99 => Sort::P99,
        LatencySort::Max => Sort::Max,
        LatencySort::Name => Sort::Name,
    };
    // Times run from entry to return, whichever of the two bpftrace's spelling names.
    let (selection, target) = selected(&flags.probes, |_| (true, true), flags.target, flags.follow.follow)?;
    let run = Run {
        rows: rows(&flags.table, sort, usize::try_from(flags.histograms).unwrap_or(usize::MAX)),
        ..base(Measure::Latency, (selection, target), flags.follow, flags.risk, &flags.run, flags.output)
    };
    Ok(either(run, asked))
}

fn trace(flags: TraceFlags) -> Result<Command, Error> {
    let asked = Quick {
        stack: flags.stack,
        slower: flags.slower,
        ..quick(&flags.filter, None, Form::Trace(lines(&flags)?))?
    };
    let kinds = |kind| match kind {
        Some(kind) => (kind == Kind::Entry, kind == Kind::Return || flags.returns),
        None => (true, flags.returns),
    };
    let (mut selection, target) = selected(&flags.probes, kinds, flags.target, flags.follow.follow)?;
    if flags.typed {
        typed_by_jumps(&mut selection)?;
    }
    let run = base(
        Measure::Trace { args: flags.args },
        (selection, target),
        flags.follow,
        flags.risk,
        &flags.run,
        flags.output,
    );
    match (flags.typed, either(run, asked)) {
        (true, Command::Run(run)) => Ok(Command::Typed(Box::new(run))),
        (true, _) => Err(Error::Usage(
            "--typed shows whole calls as their types say; leave it out where expressions choose calls or values (--where, --arg, --slower, --stack, …)"
                .to_owned(),
        )),
        (false, command) => Ok(command),
    }
}

fn hist(flags: HistFlags) -> Result<Command, Error> {
    let mut probes = flags.probes;
    let value = probes.probes.pop().filter(|_| !probes.probes.is_empty()).ok_or_else(|| {
        let text =
            "hist needs functions, and behind them an expression: trapless hist 'libc.so.6:malloc' arg0";
        Error::Usage(text.to_owned())
    })?;
    expressions("hist", std::slice::from_ref(&value))?;
    let form = Form::Hist { value, linear: flags.linear };
    let asked = Quick { slower: flags.slower, ..quick(&flags.filter, Some(&flags.group), form)? };
    let kinds = |kind| (kind != Some(Kind::Return), kind == Some(Kind::Return));
    let (selection, target) = selected(&probes, kinds, flags.target, flags.follow.follow)?;
    let run = Run {
        rows: rows(&flags.table, flags.sort.into(), 0),
        ..base(Measure::Quick, (selection, target), flags.follow, flags.risk, &flags.run, flags.output)
    };
    Ok(Command::Quick(Box::new(run), asked))
}

fn inject(flags: InjectFlags) -> Result<Command, Error> {
    let injection = Injection::try_from(&flags.deeds)?;
    if flags.probes.inlines {
        let text =
            "--inlines: copies that were inlined are not called, and inject changes calls; leave it out";
        return Err(Error::Usage(text.to_owned()));
    }
    let at_return = injection.at == Moment::Return;
    let asked = quick(&flags.filter, None, Form::Inject(injection))?;
    let kinds = |_| (!at_return, at_return);
    let (selection, target) = selected(&flags.probes, kinds, flags.target, flags.follow.follow)?;
    if let Some(probe) = selection.probes.iter().find(|probe| probe.spec.kind.is_some()) {
        let text = &probe.spec.text;
        return Err(Error::Usage(format!(
            "'{text}' says at which end of a call; inject knows that by what is done: name the function alone"
        )));
    }
    let run = base(Measure::Quick, (selection, target), flags.follow, flags.risk, &flags.run, flags.output);
    let run = Run {
        limits: Limits { max_events: flags.deeds.count.or(run.limits.max_events), ..run.limits },
        rows: rows(&flags.table, Sort::Hits, 0),
        ..run
    };
    Ok(Command::Quick(Box::new(run), asked))
}

/// What flags about expressions ask for.
fn quick(filter: &FilterFlags, group: Option<&GroupFlags>, form: Form) -> Result<Quick, Error> {
    expressions("--where", &filter.filters)?;
    let by = group.map(|group| group.by.clone()).unwrap_or_default();
    expressions("--by", &by)?;
    Ok(Quick {
        form,
        filters: filter.filters.clone(),
        threads: filter.threads.clone(),
        sample: filter.sample,
        by,
        max_keys: group.map_or(0, |group| group.max_keys),
        ..Quick::default()
    })
}

/// Calls with their types are shown when they return, so that their results are there. What tells them is called by jumps alone.
fn typed_by_jumps(selection: &mut Selection) -> Result<(), Error> {
    if selection.may_trap() {
        let text = "--typed probes by jumps alone; leave out --allow-trap and mechanisms that trap";
        return Err(Error::Usage(text.to_owned()));
    }
    for probe in &mut selection.probes {
        let is_function = matches!(probe.spec.location, Location::Function { offset: 0, .. });
        probe.returns |= is_function && probe.spec.kind.is_none();
    }
    Ok(())
}

/// What lines of a trace show by expressions.
fn lines(flags: &TraceFlags) -> Result<Lines, Error> {
    let values: Vec<Shown> = flags.values.iter().map(|text| Shown::parse(text)).collect::<Result<_, _>>()?;
    let texts: Vec<String> = values.iter().map(|value| value.text.clone()).collect();
    expressions("--arg", &texts)?;
    Ok(Lines { args: flags.args, values, rate: flags.rate })
}

/// A run with expressions, if there are any.
fn either(run: Run, asked: Quick) -> Command {
    let Quick { form, filters, threads, sample, slower, by, stack, max_keys: _ } = &asked;
    let shows_more = matches!(form, Form::Trace(lines) if !lines.values.is_empty() || lines.rate.is_some());
    let is_quick = shows_more
        || !(filters.is_empty() && threads.is_empty() && by.is_empty())
        || sample.is_some()
        || slower.is_some()
        || stack.is_some();
    match is_quick {
        true => Command::Quick(Box::new(Run { measure: Measure::Quick, ..run }), asked),
        false => Command::Run(run),
    }
}

fn listing(flags: ListFlags, whole_modules: bool) -> Result<Listing, Error> {
    let target = match (flags.pid, flags.command) {
        (None, command) if command.is_empty() => None,
        (pid, command) => {
            let flags = TargetFlags { pids: pid.into_iter().collect(), command, ..TargetFlags::default() };
            Some(target(flags, &[])?)
        }
    };
    let both = |_| (true, false);
    let mut selection = match (&target, flags.probes.probes.split_first()) {
        // `list FILE PATTERN…`: the first word is a file when it names no function.
        (None, Some((file, patterns))) if std::path::Path::new(file).is_file() => {
            let everything = ["*".to_owned()];
            let patterns = if patterns.is_empty() && whole_modules { &everything } else { patterns };
            let syntax = syntax(&flags.probes);
            let all = |p: &String| if p == "*" { Syntax::Glob } else { syntax };
            let specs = patterns.iter().map(|p| ProbeSpec::in_module(file, p, all(p)));
            let inlines = flags.probes.inlines;
            let probes = specs.map(|spec| probe(ProbeSpec { inlines, ..spec? }, both));
            let probes = probes.collect::<Result<_, Error>>()?;
            Selection { probes, ..selection(&ProbeFlags { probes: vec![], ..flags.probes.clone() }, both)? }
        }
        (None, Some((file, _))) if !ProbeSpec::is_meant(file, syntax(&flags.probes)) => {
            let reason =
                "no such file; give a file, FILE:FUNCTION, or -p PID for a running process".to_owned();
            return Err(trapless_session::error::Error::File { path: file.into(), reason }.into());
        }
        _ => selection(&flags.probes, both)?,
    };
    if flags.probes.mechanism.is_empty() {
        // What is shown is every rung, unless the question is about some.
        selection.mechanisms = Mechanism::ALL.to_vec();
    }
    let enough = whole_modules && target.is_some();
    let selection = if enough { selection } else { required(selection)? };
    Ok(Listing { target, selection, summary: false, lines: false, output: output(flags.output) })
}

fn bench(flags: BenchFlags) -> Result<Bench, Error> {
    let pattern = |name: &String| {
        Pattern::new(name, Syntax::Glob)
            .map_err(|e| Error::Usage(format!("bad benchmark '{name}': {}", e.what)))
    };
    // Only texts have blocks.
    let (texts, names): (Vec<String>, Vec<String>) =
        flags.names.into_iter().partition(|name| flags.script && name.contains('{'));
    let bits = match flags.bits {
        BitsFlag::Wide => vec![64],
        BitsFlag::Narrow => vec![32],
        BitsFlag::All => vec![64, 32],
    };
    Ok(Bench {
        of: match flags.script {
            true => BenchOf::Scripts(texts),
            false => BenchOf::Triggers { bits, threads: flags.threads },
        },
        names: names.iter().map(pattern).collect::<Result<_, _>>()?,
        rounds: flags.rounds,
        output: output(flags.output),
    })
}

fn syntax(flags: &ProbeFlags) -> Syntax {
    if flags.regex { Syntax::Regex } else { Syntax::Glob }
}

/// The selection that `flags` ask for; `kinds` says what a specification's own kind means: (entry, returns).
fn selection(flags: &ProbeFlags, kinds: impl Fn(Option<Kind>) -> (bool, bool)) -> Result<Selection, Error> {
    let syntax = syntax(flags);
    let probes = flags
        .probes
        .iter()
        .map(|text| probe(ProbeSpec { inlines: flags.inlines, ..ProbeSpec::parse(text, syntax)? }, &kinds))
        .collect::<Result<_, _>>()?;
    let exclusions =
        flags.exclude.iter().map(|text| Exclusion::parse(text, syntax)).collect::<Result<_, _>>()?;
    Ok(Selection {
        probes,
        exclusions,
        mechanisms: mechanisms::allowed(&flags.mechanism, flags.allow_trap),
        max_probes: usize::try_from(flags.max_probes).unwrap_or(usize::MAX),
    })
}

fn probe(spec: ProbeSpec, kinds: impl Fn(Option<Kind>) -> (bool, bool)) -> Result<Probe, Error> {
    let (entry, returns) = kinds(spec.kind);
    if returns && spec.location.is_usdt() {
        let text = &spec.text;
        return Err(Error::Usage(format!(
            "'{text}' names USDT probes, which have no return; count or trace them without --return, or take the time of the function that holds them"
        )));
    }
    if let Some(what) = spec.location.without_return().filter(|_| returns) {
        let text = &spec.text;
        return Err(Error::Usage(format!(
            "'{text}' names {what}, which has no return; count or trace it without --return, or name the function"
        )));
    }
    Ok(Probe { spec, entry, returns })
}

fn required(selection: Selection) -> Result<Selection, Error> {
    if selection.probes.is_empty() {
        return Err(Error::Usage(
            "no probe; name functions as MODULE:FUNCTION, such as 'libc.so.6:malloc'".into(),
        ));
    }
    Ok(selection)
}

/// What a run probes, and where.
fn selected(
    probes: &ProbeFlags,
    kinds: impl Fn(Option<Kind>) -> (bool, bool),
    flags: TargetFlags,
    follow: bool,
) -> Result<(Selection, Target), Error> {
    let mut selection = required(selection(probes, kinds)?)?;
    let target = target(flags, &selection.probes)?;
    if let Target::Whoever(whoever) = &target {
        let by_file = !whoever.files.is_empty();
        selection.probes.iter_mut().for_each(|probe| probe.spec.by_file = by_file);
    }
    let named = selection.probes.iter().filter_map(|probe| probe.spec.mechanism.as_ref());
    check_traps(selection.mechanisms.iter().chain(named), follow, &target)?;
    Ok((selection, target))
}

/// Two tracers cannot serve one process, so probes that trap are not had in what is followed.
///
/// # Errors
/// They are asked for there.
pub fn check_traps<'m>(
    mechanisms: impl IntoIterator<Item = &'m Mechanism>,
    follow: bool,
    target: &Target,
) -> Result<(), Error> {
    let traced = match target {
        _ if follow => "--follow probes",
        Target::Whoever(_) => "whoever runs a file, or is named by -n, --user or --cgroup, is probed",
        Target::Processes(_) | Target::Launch(_) => return Ok(()),
    };
    if mechanisms.into_iter().any(|mechanism| mechanism.traps()) {
        return Err(Error::Usage(format!(
            "{traced} by jumps alone; leave out --allow-trap and mechanisms that trap{}",
            if follow { ", or --follow" } else { ", or give -p PID" }
        )));
    }
    Ok(())
}

fn limits(flags: &RunFlags) -> Limits {
    Limits { duration: flags.duration, interval: flags.interval, max_events: flags.max_events }
}

pub(super) fn output(flags: OutputFlags) -> OutputOptions {
    // `-` is standard output, as everywhere.
    let file = flags.output.filter(|path| path.as_os_str() != "-");
    OutputOptions {
        file,
        json: flags.format == FormatFlag::Json,
        folded: flags.format == FormatFlag::Folded,
        color: flags.color,
    }
}

fn rows(flags: &TableFlags, sort: Sort, histograms: usize) -> Rows {
    let top = flags.top.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    Rows { sort, top, all: flags.all, histograms }
}
