//! The course of a script's run: what happens when.
//!
//! ```text
//!     begin ─▶ intervals, signals, messages of targets ─▶ end ─▶ the maps
//! ```
//!
//! It prints what the script says, and counts what got lost.

use super::load::Loaded;
use super::other::Other;
use super::streams::Streams;
use crate::cli::script::{Dialect, Task, Text, Warnings};
use crate::commands::signals::{self, Ended};
use crate::commands::wake::Wake;
use crate::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trapless_running::course::{now, own_probes};
use trapless_running::names::{Names, SiteNames};
use trapless_running::own::Own;
use trapless_running::store::Store;
use trapless_script::check::clauses::ClauseKind;
use trapless_script::ir::PartKind;
use trapless_script::machine::{Event, Machine, Outside, OwnProbe};
use trapless_script::output::{self, Layout, Options};
use trapless_script::syntax::config::Settings;

/// Who wants to hear of it that all probes are attached sets this variable, and gets its name as a line.
const NOTIFY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";

/// A map of this name, if it is given, is the clock of time series, so that what they show can be foretold.
const CLOCK_MAP: &str = "BPFTRACE_DUMMY_TS_MAP";

/// A script that runs.
pub(super) struct Course<'t> {
    text: &'t Text,
    pub machine: Machine,
    pub names: Names,
    own: Own,
    pub store: Arc<Mutex<Store>>,
    streams: Streams,
    /// What the beginning said before all was attached: what went out, and what was wrong.
    begun: (Vec<u8>, Vec<u8>),
    /// How many attach points there are in this process.
    attached: u64,
    /// What else there is that is not run.
    suite: Suite,
}

/// Probes that are only run when they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    None,
    Tests,
    Benchmarks,
}

/// How a script's messages are printed.
pub(super) fn options(text: &Text, settings: &Settings) -> Options {
    Options {
        layout: if text.output.json { Layout::Json } else { Layout::Text },
        trailer: settings.str_trunc_trailer.clone(),
        most_cat_bytes: usize::try_from(settings.max_cat_bytes).unwrap_or(usize::MAX),
        has_warnings: text.warnings != Warnings::Off,
        prints_maps: settings.print_maps_on_exit,
        is_unsafe: text.is_unsafe,
        is_folded: text.output.folded,
    }
}

impl<'t> Course<'t> {
    /// Of a script that was loaded.
    ///
    /// # Errors
    /// The output cannot be opened.
    pub fn new(text: &'t Text, loaded: Loaded, store: Arc<Mutex<Store>>) -> Result<Self, Error> {
        let Loaded { compiled, settings, .. } = loaded;
        let mut names = Names::default();
        names.tell_lines(settings.show_debug_info);
        let has = |kind| compiled.clauses.iter().any(|clause| clause.kind == kind);
        let suite = match (has(ClauseKind::Test), has(ClauseKind::Bench)) {
            (true, _) => Suite::Tests,
            (false, true) => Suite::Benchmarks,
            (false, false) => Suite::None,
        };
        let mut own = Vec::new();
        for (probe, name) in kept(text, own_probes(&compiled))? {
            names.name_site(probe.site, SiteNames { probe: name, function: String::new() });
            own.push(probe);
        }
        let attached = own.len() as u64;
        let printed = options(text, &settings);
        let machine =
            Machine::new(compiled.program, compiled.messages, own, printed).map_err(Error::other)?;
        if let Some(map) = std::env::var_os(CLOCK_MAP).and_then(|name| name.into_string().ok()) {
            store.lock().unwrap_or_else(PoisonError::into_inner).set_clock(&map);
        }
        let (streams, begun) = (Streams::open(text)?, Default::default());
        Ok(Self { text, machine, names, own: Own::now(), store, streams, begun, attached, suite })
    }

    /// Lets the machine do something, with all that it needs.
    pub fn step<T>(
        &mut self,
        work: impl FnOnce(&mut Machine, &mut Outside<'_>) -> io::Result<T>,
    ) -> Result<T, Error> {
        let Self { machine, names, own, streams, store, .. } = self;
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut out, mut err) = streams.both();
        let both = output::Streams { out: &mut out, err: &mut err };
        let done =
            work(machine, &mut Outside { hit: own, maps: &mut *store, resolver: names, streams: both });
        streams.printed(done)
    }

    /// Says that all probes are attached, `more` of them in targets.
    pub fn tell_attached(&mut self, more: u64) -> Result<(), Error> {
        let probes = self.attached + more;
        if !self.text.quiet {
            self.step(|machine, outside| machine.printer().attached(probes, &mut outside.streams))?;
        }
        if std::env::var_os(NOTIFY).is_some() {
            // Whoever waits for it reads standard output, wherever the script's own goes.
            use std::io::Write;
            let mut out = io::stdout().lock();
            let told = writeln!(out, "{NOTIFY}").and_then(|()| out.flush());
            told.map_err(|error| Error::output("standard output", error))?;
        }
        Ok(())
    }

    /// The parts that each kind of message has.
    pub fn messages(&self) -> &[Vec<PartKind>] {
        self.machine.messages()
    }

    /// Whether nothing would ever run.
    ///
    /// # Errors
    /// It would not: what can be done is told.
    pub fn check(&self, in_targets: usize) -> Result<(), Error> {
        if self.attached > 0 || in_targets > 0 {
            return Ok(());
        }
        let what = match self.suite {
            Suite::Tests => "No probes attached; use --test to run test probes.",
            Suite::Benchmarks => "No probes attached; use --bench to run benchmark probes.",
            Suite::None => "No probes to attach",
        };
        Err(Error::Script(self.text.dialect, what.to_owned()))
    }

    /// Runs the beginning before anything is attached, and keeps what it says.
    pub fn begin_quietly(&mut self) -> Result<(), Error> {
        self.note_signals();
        let Self { machine, names, own, store, begun: (out, err), .. } = self;
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        let streams = output::Streams { out, err };
        let mut outside = Outside { hit: own, maps: &mut *store, resolver: names, streams };
        machine.begin(now(), &mut outside).map_err(Error::other)
    }

    /// Prints what it said.
    pub fn print_begun(&mut self) -> Result<(), Error> {
        use std::io::Write;
        let (out, err) = std::mem::take(&mut self.begun);
        let (mut to_out, mut to_err) = self.streams.both();
        let done = to_out
            .write_all(&out)
            .and_then(|()| if err.is_empty() { Ok(()) } else { to_err.write_all(&err) });
        self.machine.start(now());
        self.streams.printed(done)
    }

    fn note_signals(&self) {
        for probe in self.machine.probes() {
            if let Event::Signal(number) = probe.event {
                signals::note_for_script(number);
            }
        }
        signals::note_for_script(libc::SIGUSR1);
    }

    /// Runs the beginning.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.note_signals();
        self.step(|machine, outside| machine.begin(now(), outside))
    }

    /// Does what is due, and what signals ask for.
    pub fn tick(&mut self) -> Result<(), Error> {
        for number in signals::take_noted() {
            let has_probe = self.step(|machine, outside| machine.signal(number, outside))?;
            if !has_probe && number == libc::SIGUSR1 {
                self.step(Machine::print_maps)?;
            }
        }
        self.step(|machine, outside| machine.tick(now(), outside))
    }

    /// When something is due.
    pub fn next(&self) -> Option<Instant> {
        let at = self.machine.next_deadline()?;
        Instant::now().checked_add(Duration::from_nanos(at.saturating_sub(now())))
    }

    /// Runs the end; the exit code.
    pub fn finish(&mut self) -> Result<u8, Error> {
        let code = self.step(Machine::finish)?;
        self.streams.flush()?;
        // As the kernel cuts it.
        Ok((code & 0xff) as u8)
    }

    /// Runs a script that has no probes elsewhere. `other`: a process with which it ends.
    ///
    /// # Errors
    /// Those of the output.
    pub fn alone(mut self, ended: Ended, mut other: Other) -> Result<u8, Error> {
        self.check(0)?;
        if self.text.task == Task::DryRun {
            return Ok(0);
        }
        self.tell_attached(0)?;
        self.begin()?;
        other.let_run()?;
        while !self.machine.is_over() && !ended.get() {
            if self.machine.is_idle() && other.is_none() {
                break;
            }
            let mut wake = Wake::new();
            other.wakes(&mut wake);
            wake.sleep(self.next());
            if !ended.get() {
                self.tick()?;
            }
            if other.has_ended() {
                break;
            }
        }
        if self.text.dialect == Dialect::Bpftrace {
            other.ask_to_end()?;
        }
        self.finish()
    }
}

/// Of the probes those that are to run: `--probe-filter` leaves out what it does not match, and tests and benchmarks are run by themselves.
fn kept(text: &Text, probes: Vec<(OwnProbe, String)>) -> Result<Vec<(OwnProbe, String)>, Error> {
    let only = super::suite::filter(text)?;
    let is_kept = |(probe, name): &(OwnProbe, String)| match probe.event {
        Event::Begin | Event::End => true,
        Event::Test(_) | Event::Benchmark(_) => false,
        _ => only.as_ref().is_none_or(|only| only.matches(name)),
    };
    Ok(probes.into_iter().filter(is_kept).collect())
}
