//! Probes armed in one process, from attaching to removal.

mod added;
mod arm;
mod asked;
mod clib;
mod counts;
mod facts;
mod gate;
mod hold;
mod hooks;
mod lost;
pub mod notes;
mod prepared;
mod sharing;
mod signals;
mod told;
mod trace;
mod usdt;

use crate::clock::Clock;
use crate::error::Error;
use crate::outcome::{LostSite, Note, Probed, Skipped};
use crate::resolve::{Kinds, Site, Sites};
use crate::target::Image;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trapless_engine::admit::Runtimes;
use trapless_engine::spread::both;
use trapless_engine::{
    EngineError, FoundSession, Home, LoadMemory, Refusal, Removed, ScriptMemory, Serving, Spare,
    find_sessions, remove_kept,
};
use trapless_isa::Mechanism;
use trapless_process::launch::{Child, Launched};
use trapless_process::{Process, RemoteAddr, StopOptions, Stopped};
use trapless_wire::{Places, SessionState, ThreadMemory};

use arm::{arm, nothing_probed};
use asked::follows;
use gate::Gate;
use told::{SiteFiles, Told};

pub use asked::{Asked, InGo, MemoryOperands, Overlap, Run, RunAt, SiteNumbers};
pub use clib::tid_offset_by_library;
pub use counts::Snapshot;
pub use gate::{Change, Changes};
pub use hold::{Hold, Holder};
pub use prepared::Prepared;
pub use trace::{Calls, Origin};
pub use usdt::{Argument, SiteNotes};

/// A site that is armed: what is the same in all processes that run the same files, which therefore share a list of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// What is told of it.
    pub probed: Arc<Probed>,
    /// What is told of each hit of a USDT probe. Of those, all sites of a name are shown as one.
    pub usdt: Option<Arc<[Argument]>>,
    /// Address in the file.
    pub file_address: u64,
    /// Index of the probe that this one is again, where its library was unloaded and loaded again. Their numbers are told together.
    pub again: Option<usize>,
    /// What was asked for.
    pub kinds: Kinds,
    /// Where its numbers are.
    pub places: Places,
    /// The number that its records bear.
    pub id: u32,
}

/// Probes armed in one process. Jumps stay armed when this is dropped, traps do not: see
/// [`Session::remove`].
pub struct Session {
    engine: trapless_engine::Session,
    clock: Clock,
    probes: Arc<[Probe]>,
    /// Those of the probes, in the process.
    addresses: Arc<[u64]>,
    skipped: Arc<[Skipped]>,
    remarks: Arc<[Note]>,
    freed: usize,
    /// Who serves the probes that trap.
    serving: RefCell<Option<Serving>>,
    ended_children: Cell<usize>,
    recheck: RefCell<lost::Sites>,
    /// The counters of calls that make children which share the memory and cannot be told from their parent.
    makers: sharing::Untold,
    asked: Asked,
    /// Adding sites has failed, and perhaps not as a whole: what is in is what the process's own memory tells.
    is_uncertain: bool,
    /// The run-time systems that the process had.
    runtimes: Runtimes,
    files: SiteFiles,
}

impl Session {
    /// Arms `sites` in `process`.
    ///
    /// # Errors
    /// No site can be probed, or the process cannot be changed; then it is as it was.
    pub fn attach(
        process: &Process,
        images: &[Image],
        sites: Sites,
        asked: Asked,
        hold: Hold<'_>,
    ) -> Result<Self, Error> {
        let running = match &hold {
            Hold::Stop(options) => Some(options.clone()),
            Hold::Launched(..) | Hold::Held(_) => None,
        };
        let freed = running.as_ref().map_or(Ok(0), |options| remove_orphans(process, options))?;
        let Asked { allowed, later, run, .. } = &asked;
        let mut sites = sites;
        let makers = match asked.loads() {
            true => sharing::Makers::default(),
            false => sharing::Makers::find(process, images, &mut sites, later.is_some()),
        };
        let gate = later.map_or(Gate::default(), |_| Gate::find(process, images, &mut sites));
        let follows = later.is_some_and(Kinds::follows) || follows(&sites);
        let wanted = |site: &Site| gate.want(site, makers.want(site, asked.wanted(site)));
        // All code of the process is looked through for it, meanwhile.
        let (tid_offset, prepared) = both(
            || clib::tid_offset(process),
            || match asked.loads() {
                true => Prepared::bare(process, images, sites),
                false => Prepared::new(Some(process), images, sites, follows),
            },
        );
        let spare = later.map_or(Spare::default(), |kinds| added::spare(process, asked.wanted_of(kinds)));
        let prepared = prepared?.with_home(Home::New(spare)).with_run(run.clone());
        let prepared = prepared.with_live_patch(asked.live_patch.clone());
        let tid_offset = tid_offset.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let asks_in_go = run.as_ref().is_some_and(|run| run.in_go.is_some());
        let threads = match tid_offset {
            None if asks_in_go => clib::in_go(process),
            known => ThreadMemory::of_c_library(known),
        };
        let plan = prepared.plan(wanted, allowed);
        let nothing_probed = |refused: &[(u32, Refusal)]| {
            let would_help = || {
                let any = prepared.plan(wanted, &Mechanism::ALL);
                let asked = |id: u32| prepared.site(id).kinds.are_any();
                // What is in every mechanism's way.
                let in_every_way = |refusal: &Refusal| {
                    matches!(refusal, Refusal::Semaphore | Refusal::Modified | Refusal::Probed { .. })
                };
                let is_out = |id: u32| refused.iter().any(|(of, why)| *of == id && in_every_way(why));
                any.answers().iter().any(|(id, answer)| answer.is_ok() && asked(*id) && !is_out(*id))
            };
            let trap_would_help = asked.live_patch.is_none()
                && !allowed.iter().any(|mechanism| mechanism.traps())
                && would_help();
            nothing_probed(&prepared, refused, trap_would_help)
        };
        // Before the first hit, so that no hit has a time before it.
        let clock = Clock::now();
        let (plan, armed, serving) = arm(process, &plan, threads, hold).map_err(|error| match error {
            EngineError::NothingToDo(refused) => nothing_probed(&refused),
            other => Error::other(other),
        })?;
        let mut told = Told::of(&prepared, &plan, &armed.refused);
        plan.tell_whose(process, &mut told.refused);
        let left_alone = armed.refused.clone();
        let engine = trapless_engine::Session::new(armed).map_err(Error::other)?;
        if told.probes.is_empty() && later.is_none() {
            // The look at the stopped process left none. A launched one ends with the run that was to watch it.
            match (serving, &running) {
                (Some(serving), _) => serving.end().map(drop).map_err(Error::other)?,
                (None, Some(options)) => {
                    remove_kept(process, &engine.to_remove(), options).map(drop).map_err(Error::other)?
                }
                (None, None) => {}
            }
            return Err(nothing_probed(&told.refused));
        }
        let makers = makers.counters(&prepared, &plan, &left_alone);
        let gate = plan.sites.iter().position(|site| site.request.wanted.gate).filter(|_| engine.has_gate());
        let recheck = lost::Sites::of(engine.journal(), &plan, &left_alone, images);
        let probes = std::mem::take(&mut told.probes);
        let mut files = SiteFiles::default();
        files.extend(&prepared);
        Ok(Self {
            engine,
            clock,
            probes: shared(images, probes),
            addresses: std::mem::take(&mut told.addresses).into(),
            skipped: told.skipped(&prepared).into(),
            remarks: prepared.sites.remarks.clone().into(),
            freed,
            serving: RefCell::new(serving),
            ended_children: Cell::new(0),
            recheck: RefCell::new(recheck.told_at(gate)),
            makers,
            files,
            runtimes: prepared.facts.runtimes,
            is_uncertain: false,
            asked,
        })
    }

    /// The session of a forked child of the process, which stands before its first instruction and has inherited the probes: from now on
    /// it has numbers of its own.
    ///
    /// # Errors
    /// It cannot be given them. Then it is counted with the other children, as if nobody had asked.
    pub fn of_forked_child(&self, child: &Process, stopped: &mut Stopped<'_>) -> Result<Self, EngineError> {
        let script = self.asked.run.as_ref().map(|run| &run.script);
        let engine = self.engine.of_forked_child(child, stopped, script)?;
        let recheck = RefCell::new(self.recheck.borrow().clone().first(engine.sites()));
        Ok(Self {
            engine,
            clock: Clock::now(),
            probes: self.probes.clone(),
            addresses: self.addresses.clone(),
            skipped: Arc::new([]),
            remarks: Arc::new([]),
            freed: 0,
            serving: RefCell::new(None),
            ended_children: Cell::new(0),
            recheck,
            makers: self.makers.clone(),
            asked: self.asked.clone(),
            files: self.files.clone(),
            runtimes: self.runtimes,
            is_uncertain: self.is_uncertain,
        })
    }

    /// The memory of the script whose bodies are called, if there is one. It can be read and changed at any time, also when the process has
    /// ended; the process may do both at the same moment.
    pub fn script(&self) -> Option<ScriptMemory> {
        self.engine.script()
    }

    /// The words by which a library is loaded, if it is there for that. They can be read when the process has ended.
    pub(crate) fn load(&self) -> Option<LoadMemory> {
        self.engine.load()
    }

    /// Where the session's memory is in the process.
    pub fn region(&self) -> RemoteAddr {
        RemoteAddr(self.engine.header().region)
    }

    /// What takes the probes out of the process that they were armed in.
    pub fn to_remove(&self, process: &Process) -> FoundSession {
        let own = self.engine.to_remove();
        if !self.is_uncertain {
            return own;
        }
        let found = find_sessions(process).unwrap_or_default();
        found.into_iter().find(|session| session.header.region == own.header.region).unwrap_or(own)
    }

    /// How often children have hit each probe that share the memory of the thread with this thread pointer, in the order of
    /// [`Session::probes`].
    pub fn hits_of_sharing(&self, thread_pointer: RemoteAddr) -> Vec<u64> {
        let counters: Vec<_> =
            self.probes.iter().map(|probe| probe.places.entries.or(probe.places.returns)).collect();
        let known: Vec<_> = counters.iter().copied().flatten().collect();
        let mut sums = self.engine.counters().sums_of_sharing(thread_pointer.0, &known).into_iter();
        counters.iter().map(|counter| counter.and_then(|_| sums.next()).unwrap_or(0)).collect()
    }

    /// How many children were made that shared the process's memory and could not be told from it, so that what they called is
    /// counted as its own.
    pub fn sharing_children(&self) -> u64 {
        self.sum_of(&self.makers.children)
    }

    /// How often the C library's clone was called where it is not seen whether it makes such children ([`Self::sharing_children`]).
    pub fn unseen_clones(&self) -> u64 {
        self.sum_of(&self.makers.clones)
    }

    fn sum_of(&self, counters: &[trapless_wire::Counter]) -> u64 {
        counts::sum(counters.iter().map(|counter| self.engine.counters().sum(*counter)))
    }

    /// Looks whether what was written at the sites still stands there: at some of them, or at all. What [`Self::lost_sites`] tells
    /// is what was found so far.
    pub fn look_again(&self, process: &Process, all: bool) {
        self.recheck.borrow_mut().look(process, self, all);
    }

    /// Sites at which calls are no longer counted, as far as was looked.
    pub fn lost_sites(&self) -> Vec<LostSite> {
        self.recheck.borrow().lost().to_vec()
    }

    /// The program that the process was found to run instead of the one that was probed. Its path is empty where it cannot be read.
    pub fn replaced_by(&self) -> Option<PathBuf> {
        self.recheck.borrow().replaced().map(Path::to_owned)
    }

    /// Threads that shared a thread pointer with another one when the probes were armed: what they count may be lost.
    pub fn sharing_threads(&self) -> u64 {
        self.engine.sharing_threads()
    }

    /// Files with probes whose code was mapped at yet another place after arming: calls there are not counted.
    pub fn mapped_again(&self) -> Vec<PathBuf> {
        self.recheck.borrow().mapped_again().iter().cloned().collect()
    }

    /// What becomes readable when the tracer ends, if there is one.
    pub fn tracer_descriptor(&self) -> Option<RawFd> {
        self.serving.borrow().as_ref().map(|serving| serving.descriptor().as_raw_fd())
    }

    /// The probes that are armed.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The same, each with its address in the process.
    pub fn probes_at(&self) -> impl Iterator<Item = (&Probe, u64)> {
        self.probes.iter().zip(self.addresses.iter().copied())
    }

    /// Its probes by their ids, each with its address; of several at one site the first.
    fn by_id(&self) -> HashMap<u32, (&Probe, u64)> {
        let mut all = HashMap::with_capacity(self.probes.len());
        for (probe, address) in self.probes_at() {
            all.entry(probe.id).or_insert((probe, address));
        }
        all
    }

    /// Sites that were left alone, and why.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// How the patterns were understood, where that is not what they say.
    pub fn remarks(&self) -> &[Note] {
        &self.remarks
    }

    /// How many earlier sessions, whose memory had to stay mapped, left the process before this one was armed.
    pub fn freed(&self) -> usize {
        self.freed
    }

    /// Path of the file that a probe is in, as the process sees it.
    pub fn path_of(&self, probe: &Probe) -> &str {
        self.files.of(probe.id).map_or("", |(_, path)| path)
    }

    /// When the probes were armed.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// How long the target stood still for it.
    pub fn stopped(&self) -> std::time::Duration {
        self.engine.stopped
    }

    /// Whether a tracer stays attached, because some probes trap.
    pub fn is_served(&self) -> bool {
        self.serving.borrow().is_some()
    }

    /// All numbers as they are now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.engine.counters(), &self.probes)
    }

    /// How many hits there were of all probes together: cheaper than a snapshot.
    pub fn hits(&self) -> u64 {
        counts::hits(&self.engine.counters(), &self.probes)
    }

    /// Lets a launched command run, which this session was armed in.
    ///
    /// # Errors
    /// It was killed, or could not be let run; it is ended then.
    pub fn let_run(&self, launched: Launched) -> Result<(Process, Child), Error> {
        if let Some(serving) = &mut *self.serving.borrow_mut() {
            serving.let_run().map_err(Error::other)?;
        }
        launched.let_run().map_err(Error::other)
    }

    /// Takes the probes out. The numbers can still be read.
    ///
    /// # Errors
    /// The process cannot be stopped or changed. Nothing is lost: `trapless detach` can be tried again.
    pub fn remove(&self, process: &Process, options: &StopOptions) -> Result<Removed, Error> {
        let Some(serving) = self.serving.borrow_mut().take() else {
            return self.remove_unserved(process, options);
        };
        self.end(serving).map_err(|died| match self.remove_unserved(process, options) {
            Ok(_) if process.is_alive() => Error::Unserved,
            _ => Error::other(died),
        })
    }

    /// Sees to it that the tracer lives, if there is one. One that was killed has left breakpoints that kill the target when
    /// it meets them, so they are taken out at once.
    ///
    /// # Errors
    /// The tracer was killed, and what became of its probes.
    pub fn tend(&self, process: &Process, options: &StopOptions) -> Result<(), Error> {
        let has_ended = self.serving.borrow().as_ref().is_some_and(Serving::has_ended);
        if !has_ended || !process.is_alive() {
            return Ok(());
        }
        let Some(serving) = self.serving.borrow_mut().take() else { return Ok(()) };
        let Err(died) = self.end(serving) else { return Ok(()) };
        self.recheck.borrow_mut().end();
        match self.remove_unserved(process, options) {
            Ok(_) => Err(Error::Unserved),
            Err(_) => Err(Error::other(died)),
        }
    }

    /// How many children of the target a breakpoint has ended, because no tracer is told of them (`CLONE_UNTRACED`). To be asked when
    /// the target has ended, or the probes are out.
    pub fn ended_children(&self) -> usize {
        if let Some(serving) = self.serving.borrow_mut().take() {
            // One that was killed counted none.
            let _ = self.end(serving);
        }
        self.ended_children.get()
    }

    fn end(&self, serving: Serving) -> Result<Removed, EngineError> {
        let removed = serving.end()?;
        self.ended_children.set(self.ended_children.get() + removed.ended);
        Ok(removed)
    }

    fn remove_unserved(&self, process: &Process, options: &StopOptions) -> Result<Removed, Error> {
        let region = self.engine.header().region;
        let armed = find_sessions(process).map_err(Error::other)?;
        if !armed.iter().any(|session| session.header.region == region) {
            // `trapless detach` was quicker, or the process runs another program by now.
            return Ok(Removed::default());
        }
        remove_kept(process, &self.to_remove(process), options).map_err(Error::other)
    }
}

/// The list of a process's probes, which it shares with those that run the same files.
fn shared(images: &[Image], probes: Vec<Probe>) -> Arc<[Probe]> {
    match images.first() {
        Some(image) => image.files().shared(probes),
        None => probes.into(),
    }
}

/// Takes out what interrupted runs left, and unmaps what earlier ones had to leave mapped. How many of the latter there were that
/// could go.
fn remove_orphans(process: &Process, options: &StopOptions) -> Result<usize, Error> {
    let find = || find_sessions(process).map_err(Error::other);
    let left = find()?.into_iter().filter(|session| session.is_removed()).count();
    // What its owner has begun to take out and left, since a handler was under way, is nobody's as well.
    let is_left = |session: &&FoundSession| {
        let is_begun = session.header.session_state() == Some(SessionState::Removing);
        !session.is_removed() && (is_begun || !session.has_owner())
    };
    for session in find()?.iter().filter(is_left) {
        remove_kept(process, session, options).map_err(Error::other)?;
    }
    // In a process that is too large to be looked through, there is something to be had only where an unwinder was waited for.
    let is_searched = trapless_engine::can_be_searched(process);
    let may_go = |session: &&FoundSession| {
        session.is_removed() && (is_searched || session.asks_for_unwinders(process))
    };
    if let Some(session) = find()?.iter().find(may_go) {
        // Takes all others along.
        remove_kept(process, session, options).map_err(Error::other)?;
    }
    let still_left = find()?.into_iter().filter(|session| session.is_removed()).count();
    Ok(left.saturating_sub(still_left))
}
