//! A script that runs: what happens when, on our thread.
//!
//! ```text
//!     begin ─▶ its probes go in ─▶ intervals, messages of functions ─▶ its probes come out ─▶ end ─▶ the maps
//! ```

use super::ours::guarded;
use super::part::{Number, Origin, Parts};
use super::source::{self, Ready};
use super::{Losses, Results, ScriptOptions, Started};
use crate::find::{self, Probed};
use crate::site::{self, Linked};
use crate::{Error, sorted};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trapless_engine::{AT_RETURN, Script as Code};
use trapless_running::beginning::{Beginning, address_of, is_go};
use trapless_running::course::now;
use trapless_running::names::{Names, SiteNames};
use trapless_running::own::Own;
use trapless_running::rings::{self, Rings, Told};
use trapless_running::store::Store;
use trapless_script::machine::{Machine, Outside};
use trapless_script::native::memory;
use trapless_script::output::{self, Layout, Options};
use trapless_session::outcome::Skipped;
use trapless_session::session::{MemoryOperands, Overlap, Run};
use trapless_wire::ScriptLayout;

/// How often rings of messages are read.
const TICK: Duration = Duration::from_millis(5);

/// One that runs or has ended itself.
pub(super) struct Running {
    machine: Machine,
    names: Names,
    own: Own,
    store: Store,
    rings: Rings,
    layout: ScriptLayout,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// Whether it prints JSON.
    layout_of_output: Layout,
    /// What was in the way of printing first.
    broken: Option<io::Error>,
    /// Messages that were lost and told of.
    lost: u64,
    next_read: Option<Instant>,
    /// While its probes are in.
    armed: Option<Armed>,
    /// What it has come to, once it has ended.
    ended: Option<Ended>,
    /// Whether it has.
    is_over: Arc<AtomicBool>,
}

struct Armed {
    part: Option<Number>,
    links: Vec<Linked>,
}

struct Ended {
    results: Results,
    code: i32,
}

/// What is asked of the process, and where it is told.
struct Wanted {
    probed: Vec<Probed>,
    skipped: Vec<Skipped>,
}

impl Running {
    /// Compiles a script, runs its beginning and puts its probes in.
    ///
    /// # Errors
    /// It is wrong, or cannot be had here; what is in the way of its probes.
    pub fn start(
        text: &str,
        options: ScriptOptions,
        parts: &mut Parts,
        is_over: Arc<AtomicBool>,
    ) -> Result<(Self, Started), Error> {
        let Ready { program, messages, settings, own, native, bodies, specs, runs, warnings } =
            source::read(text, &options, parts)?;
        let printed = Options {
            layout: options.layout,
            trailer: settings.str_trunc_trailer.clone(),
            most_cat_bytes: usize::try_from(settings.max_cat_bytes).unwrap_or(usize::MAX),
            prints_maps: settings.print_maps_on_exit,
            ..Options::default()
        };
        let mut names = Names::of(find::files());
        names.tell_lines(settings.show_debug_info);
        let store = Store::new(&program, native.layout.clone());
        let own_probes = own.into_iter().map(|(probe, name)| {
            names.name_site(probe.site, SiteNames { probe: name, function: String::new() });
            probe
        });
        let own_probes = own_probes.collect();
        let invalid = |error| Error::Script(format!("script: {error}\n"));
        let machine = Machine::new(program.clone(), messages, own_probes, printed).map_err(invalid)?;
        let rings = Rings::new(machine.messages(), native.layout.ring_bits);
        let mut running = Self {
            machine,
            names,
            own: Own::now(),
            store,
            rings,
            layout: native.layout.clone(),
            out: options.out,
            err: options.err,
            layout_of_output: options.layout,
            broken: None,
            lost: 0,
            next_read: None,
            armed: None,
            ended: None,
            is_over,
        };
        let (process, images) = find::process()?;
        if !specs.is_empty() && is_go(&process, &images) {
            let why = "goroutines have stacks that bodies have no room on";
            return Err(Error::NotInside { what: "a script in a process with Go".to_owned(), why });
        }
        // What cannot be found is in the way before anything is done.
        let (mut number, mut wanted) = (None, Wanted { probed: Vec::new(), skipped: Vec::new() });
        if !specs.is_empty() {
            let follows = specs.iter().any(|(_, kinds)| kinds.follows());
            let of = Origin::of(&program, &bodies);
            let taken = site::alone(|all| parts.take(&native, of, follows, all.timing()))?;
            let _ = number.insert(taken);
            let part = parts.get(taken);
            let run = Run {
                script: Code { shared: Vec::new(), ..part.script.clone() },
                clauses: runs,
                numbers: part.numbers.clone(),
                memory_operands: MemoryOperands::Read,
                overlap: Overlap::Each,
                in_go: None,
            };
            match find::by_script((&process, &images), &specs, Arc::new(run)) {
                Ok((probed, skipped)) => wanted = Wanted { probed, skipped },
                Err(error) => {
                    part.free();
                    return Err(error);
                }
            }
        }
        running.step(|machine, outside| machine.begin(now(), outside));
        if let Some(number) = number {
            let part = parts.get(number);
            let symbols =
                program.symbols.iter().map(|symbol| address_of(symbol, &process, &images)).collect();
            let about = Beginning::now().about(&process, symbols);
            let shared = memory::image(&program, &native.layout, &about, running.store.own());
            if let Err(error) = part.begin(shared, &process) {
                part.end();
                return Err(error);
            }
            running.store.attach(process.pid().0, part.memory.clone());
            running.name(&wanted.probed);
            running.names.look_at(process.pid().0);
            running.next_read = running.rings.tell().then(Instant::now);
        }
        let mut armed = Armed { part: number, links: Vec::new() };
        // A script that has ended itself at its beginning has no probes.
        if let Some(number) = number.filter(|_| !running.machine.is_over()) {
            match running.arm(parts, number, &mut wanted) {
                Ok(links) => armed.links = links,
                Err(error) => {
                    running.store.detach(process.pid().0);
                    parts.get(number).end();
                    return Err(error);
                }
            }
        }
        let links = armed.links.clone();
        running.armed = Some(armed);
        running.end_if_over(parts);
        let functions = links.len();
        Ok((running, Started { functions, skipped: wanted.skipped, warnings, links }))
    }

    fn name(&mut self, probed: &[Probed]) {
        for one in probed {
            let function = one.name.text().to_owned();
            for (number, provider) in [(one.number, "uprobe"), (one.number | AT_RETURN, "uretprobe")] {
                let probe = format!("{provider}:{}:{function}", one.file);
                self.names.name_site(number.into(), SiteNames { probe, function: function.clone() });
            }
        }
    }

    /// Puts the probes in.
    fn arm(&mut self, parts: &mut Parts, number: Number, wanted: &mut Wanted) -> Result<Vec<Linked>, Error> {
        let Wanted { probed, skipped } = wanted;
        let part = parts.get(number);
        site::alone(|all| {
            let found: Vec<_> = probed.iter().map(|one| (&one.found, !one.clauses[1].is_empty())).collect();
            let results = all.link(&found, |timing, arenas, memory, index| {
                part.link(timing, arenas, memory, &probed[index])
            })?;
            let found: Vec<find::Found> = probed.iter().map(|one| one.found.clone()).collect();
            sorted(&found, results, skipped, |links| all.unlink(links))
        })
    }

    /// When there is something to do next, if nobody asks.
    pub fn next(&self) -> Option<Instant> {
        if self.ended.is_some() {
            return None;
        }
        let due = self
            .machine
            .next_deadline()
            .and_then(|at| Instant::now().checked_add(Duration::from_nanos(at.saturating_sub(now()))));
        self.next_read.into_iter().chain(due).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, parts: &mut Parts) {
        if self.ended.is_some() {
            return;
        }
        if self.next_read.is_some_and(|at| Instant::now() >= at) {
            self.read(false);
            self.next_read = Some(Instant::now() + TICK);
        }
        self.step(|machine, outside| machine.tick(now(), outside));
        self.end_if_over(parts);
    }

    fn end_if_over(&mut self, parts: &mut Parts) {
        if self.machine.is_over() && self.ended.is_none() {
            self.end(parts);
        }
    }

    /// Reads all rings, and prints what was told before the last time; `is_last`: nothing more comes.
    fn read(&mut self, is_last: bool) {
        let pid = std::process::id() as i32;
        let memories: Vec<_> = self.store.attached().map(|(pid, memory)| (pid, memory.clone())).collect();
        let told = self.rings.read(&memories, is_last.then_some(pid));
        let lost = self.rings.lost(&memories);
        if lost > self.lost {
            let more = lost - std::mem::replace(&mut self.lost, lost);
            self.step(|machine, outside| machine.printer().lost(more, &mut outside.streams));
        }
        self.print(&told);
        if is_last {
            let rest = self.rings.rest();
            self.print(&rest);
        }
    }

    fn print(&mut self, told: &[Told]) {
        if told.is_empty() {
            return;
        }
        self.step(|machine, outside| {
            for Told { message, parts, .. } in told {
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                machine.message(*message, &parts, outside)?;
            }
            Ok(())
        });
    }

    /// Lets the machine do something, with all that it needs. What cannot be printed is told when it is stopped.
    fn step(&mut self, work: impl FnOnce(&mut Machine, &mut Outside<'_>) -> io::Result<()>) {
        let Self { machine, names, own, store, out, err, .. } = self;
        let streams = output::Streams { out, err };
        let mut outside = Outside { hit: own, maps: store, resolver: names, streams };
        // What is printed to is the program's, and may panic.
        let done = guarded(|| {
            let done = work(machine, &mut outside).and_then(|()| outside.streams.out.flush());
            done.and_then(|()| outside.streams.err.flush()).map_err(Error::Output)
        });
        let done = done.map_err(|error| match error {
            Error::Output(error) => error,
            other => io::Error::other(other),
        });
        if let Err(error) = done {
            self.broken.get_or_insert(error);
        }
    }

    /// What the maps hold now, and what was lost.
    pub fn results(&mut self, parts: &mut Parts) -> Results {
        if let Some(ended) = &self.ended {
            return ended.results.clone();
        }
        self.read(false);
        let losses = self.losses(parts);
        self.shown(losses)
    }

    fn shown(&mut self, losses: Losses) -> Results {
        let maps = self.machine.printer().shown(&mut self.store, &mut self.names);
        let [text, json] = [Layout::Text, Layout::Json].map(|layout| {
            let Self { machine, names, own, store, .. } = self;
            let (mut out, mut err) = (Vec::new(), Vec::new());
            machine.printer().set_layout(layout);
            let streams = output::Streams { out: &mut out, err: &mut err };
            // Memory takes all.
            let _ = machine.print_maps(&mut Outside { hit: own, maps: store, resolver: names, streams });
            String::from_utf8_lossy(&out).into_owned()
        });
        self.machine.printer().set_layout(self.layout_of_output);
        Results { maps, text, json, losses }
    }

    fn losses(&self, parts: &mut Parts) -> Losses {
        let Some(number) = self.armed.as_ref().and_then(|armed| armed.part) else { return Losses::default() };
        let part = parts.get(number);
        let rings::Losses { out_of_fuel, no_scratch, unread, without_block, in_children, of_anybody, .. } =
            rings::Losses::of(&part.memory, self.layout.ring_bits, &self.layout.maps);
        let ours = part.ours();
        Losses {
            messages: self.lost,
            out_of_fuel,
            interrupted: no_scratch,
            unread,
            without_memory: without_block,
            in_children: in_children.saturating_sub(ours),
            of_anybody,
            not_followed: part.lost(),
            ours,
        }
    }

    /// Takes the probes out, runs the end and prints the maps.
    pub fn end(&mut self, parts: &mut Parts) {
        if self.ended.is_some() {
            return;
        }
        if let Some(armed) = &self.armed {
            site::alone(|all| all.unlink(&armed.links));
        }
        self.read(true);
        let losses = self.losses(parts);
        let pid = std::process::id() as i32;
        self.store.detach(pid);
        if let Some(part) = self.armed.take().and_then(|armed| armed.part) {
            parts.get(part).end();
        }
        let mut code = 0;
        self.step(|machine, outside| {
            code = machine.finish(outside)?;
            Ok(())
        });
        let results = self.shown(losses);
        self.ended = Some(Ended { results, code });
        self.is_over.store(true, Ordering::Release);
    }

    /// Ends it, and gives what came of it.
    ///
    /// # Errors
    /// What it has printed could not be written.
    pub fn stop(mut self, parts: &mut Parts) -> Result<(Results, i32), Error> {
        self.end(parts);
        match (self.broken, self.ended) {
            (Some(error), _) => Err(Error::Output(error)),
            (None, Some(Ended { results, code })) => Ok((results, code)),
            (None, None) => Err(Error::Collector("it has no end".to_owned())),
        }
    }
}
