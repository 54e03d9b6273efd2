//! Replacing a function of a running process by one of a library that it loads for it.
//!
//! Everything is looked at first, and nothing touched: the library's file ([`Library`]), what the process loads libraries with
//! (`loader.rs`), whether it sees the very file, and whether a jump fits at the function and a thread can be caught there. Then the library is
//! loaded by a thread that calls the function, when that is safe ([`trapless_engine::LivePatch`]); and at last calls are led to the new one.
//!
//! What the process says of the library is not believed: where the function is, the file tells, with where the kernel says that it is mapped.
//!
//! # The original
//!
//! A library may export a pointer, such as `long (*slow_original)(long);`. It leads to the function until that is replaced, meanwhile to what runs
//! the original, and from then on to the function again. So it can be called at any time by whoever reads it for each call; who keeps a copy
//! of what it held keeps our memory, as any word does that leads there. A function has one of its own: whoever is between its entry and where it
//! reads the pointer when it is taken back would call what another one's led to.

mod caller;
mod error;
mod library;
mod loader;

pub use error::{BadLibrary, LivePatchError, Nearest};
pub use library::Library;

use crate::error::Error;
use crate::files::Files;
use crate::outcome::Why;
use crate::resolve::{self, Kinds, Site, Sites};
use crate::session::{Asked, Hold, Prepared, Session};
use crate::spec::{Kind, Location, ProbeSpec};
use crate::target::{self, Image};
use crate::unwind::Unwinding;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use trapless_engine::admit::Runtime;
use trapless_engine::{Load, LoadMemory, Loaded, Pointer, Refusal, Replacement};
use trapless_isa::loader::Stage;
use trapless_isa::{Isa, Machine, Mechanism};
use trapless_process::{Process, RemoteAddr, Seccomp, StopOptions};

/// What catches a thread at a function, best first.
const CATCHING: [Mechanism; 3] = [Mechanism::Boost, Mechanism::Emulate, Mechanism::Step];

/// What leads calls elsewhere.
const LEADING: [Mechanism; 2] = [Mechanism::Jump, Mechanism::Short];

/// The most that unwind tables may take.
const MOST_TABLES: u64 = 256 << 20;

/// How often it is looked whether a library is loaded.
const LOOK: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));

/// A function that can be replaced, as far as could be seen without touching the process.
pub struct LivePatch<'a> {
    process: &'a Process,
    images: &'a [Image],
    site: Site,
    /// Its address in the process.
    function: u64,
    library: Library,
    /// The library's path as the process sees it.
    path: PathBuf,
    load: Load,
    options: StopOptions,
}

/// A library that was loaded, and where what is needed of it is in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProcess {
    /// Address of the function.
    pub function: u64,
    /// What calls it, where callers need something back.
    pub caller: Option<u64>,
    /// The pointer to the original, if there is one.
    pub pointer: Option<Pointer>,
    /// Calls that were let pass before, since nothing can be loaded in them.
    pub passed: u64,
}

impl<'a> LivePatch<'a> {
    /// Looks whether the function that `spec` means can be replaced by that of the library.
    ///
    /// # Errors
    /// It cannot. Nothing was changed.
    pub fn new(
        process: &'a Process,
        images: &'a [Image],
        spec: &ProbeSpec,
        library: Library,
        options: StopOptions,
    ) -> Result<Self, Error> {
        let pid = process.pid().0;
        if process.is_32bit() {
            return Err(LivePatchError::Narrow(pid).into());
        }
        let machine = Machine::beside(false);
        if !machine.isa().replaces() {
            return Err(LivePatchError::Machine(machine.name()).into());
        }
        let site = only_function(process, images, spec)?;
        let image = &images[site.image];
        let module = image.module(Some(process))?;
        if module.is_go() {
            return Err(LivePatchError::Go(site.module_name(images).to_owned()).into());
        }
        let function = site.address.wrapping_add(image.bias(Some(process))?);
        let status = process.status().map_err(Error::other)?;
        if status.seccomp != Seccomp::Off && !options.allow_seccomp {
            return Err(LivePatchError::Seccomp(pid).into());
        }
        let path = library.path_in(process)?;
        let load = loader::load(process, images, &path, &library)?;
        let this = Self { process, images, site, function, library, path, load, options };
        // Where what calls it will be is not known yet.
        let caller = this.isa().caller(0, 0).map(|_| function);
        let replacement = Replacement { with: function, caller, original: None };
        this.judge(trapless_engine::LivePatch::Replace(replacement), &LEADING)?;
        this.judge(trapless_engine::LivePatch::Load(this.load.clone()), &CATCHING)?;
        Ok(this)
    }

    /// `MODULE:FUNCTION`
    pub fn name(&self) -> String {
        format!("{}:{}", self.module(), self.function())
    }

    /// The module's file name.
    pub fn module(&self) -> &str {
        self.site.module_name(self.images)
    }

    /// The function's name.
    pub fn function(&self) -> &str {
        self.site.name.text()
    }

    /// Its address in the process.
    pub fn address(&self) -> u64 {
        self.function
    }

    /// The library.
    pub fn library(&self) -> &Library {
        &self.library
    }

    fn isa(&self) -> &'static dyn Isa {
        Machine::beside(false).isa()
    }

    fn sites(&self) -> Sites {
        Sites { sites: vec![self.site.clone()], ..Sites::default() }
    }

    fn asked(&self, live_patch: trapless_engine::LivePatch, allowed: &[Mechanism]) -> Asked {
        Asked { live_patch: Some(Arc::new(live_patch)), ..Asked::of(allowed) }
    }

    /// Whether that can be done at the function.
    fn judge(&self, live_patch: trapless_engine::LivePatch, allowed: &[Mechanism]) -> Result<(), Error> {
        let asked = self.asked(live_patch, allowed);
        let prepared = match asked.loads() {
            true => Prepared::bare(self.process, self.images, self.sites())?,
            false => Prepared::new(Some(self.process), self.images, self.sites(), false)?,
        };
        let prepared = prepared.with_live_patch(asked.live_patch.clone());
        let plan = prepared.offers(|site| asked.wanted(site), allowed)?;
        if plan.modules.iter().any(|module| module.runtimes.contains(Runtime::Go)) {
            return Err(LivePatchError::Go(self.module().to_owned()).into());
        }
        // The first that is asked for, whatever else goes with it.
        match plan.answers().remove(&0) {
            Some(Ok(_)) => Ok(()),
            Some(Err(refusal)) => Err(self.refused(refusal)),
            None => Err(self.refused(&Refusal::Modified)),
        }
    }

    fn refused(&self, refusal: &Refusal) -> Error {
        let function = self.name();
        match *refusal {
            Refusal::Probed { is_left: true, .. } => {
                LivePatchError::LeftBehind { function, pid: self.process.pid().0 }.into()
            }
            Refusal::Probed { tool, .. } => LivePatchError::Taken { function, tool }.into(),
            _ => {
                let reason = Why::from(refusal).reason;
                Error::NothingProbed { sites: 1, example: function, reason, trap_would_help: false }
            }
        }
    }

    /// Has the library loaded by a thread that calls the function, and waits so long for one. `is_ended`: whether nobody wants it any more.
    ///
    /// # Errors
    /// No call came in which it could be loaded, or it could not. Nothing is patched, and nothing is left.
    pub fn load(&self, wait: Duration, is_ended: &dyn Fn() -> bool) -> Result<InProcess, Error> {
        // Made while the process runs. Where there is no room for all of them, words on a stack count that only look like frames.
        let unwinding = Unwinding::new(self.process, self.images, MOST_TABLES)?;
        let load = Load { unwind: Some(unwinding.bytes().into()), ..self.load.clone() };
        drop(unwinding);
        let asked = self.asked(trapless_engine::LivePatch::Load(load), &CATCHING);
        let hold = Hold::Stop(self.options.clone());
        let session = Session::attach(self.process, self.images, self.sites(), asked, hold)?;
        let memory = session.load().ok_or(LivePatchError::Interrupted)?;
        let loaded = self.wait(&session, &memory, wait, is_ended);
        // Mostly it is out already.
        let removed = match self.process.is_alive() {
            true => session.remove(self.process, &self.options).map(drop),
            false => Ok(()),
        };
        let passed = memory.passed().iter().map(|(_, count)| count).sum();
        let loaded = match (loaded, removed) {
            (Err(error), _) | (Ok(_), Err(error)) => return Err(error),
            (Ok(loaded), Ok(())) => loaded,
        };
        let (pid, path) = (self.process.pid().0, self.path.clone());
        match loaded {
            Loaded::At(address) => Ok(InProcess { passed, ..self.found(address, memory.caller())? }),
            Loaded::Failed { text, .. } if self.load.caller.is_some() && memory.caller() == 0 => {
                Err(LivePatchError::NoCaller { pid, text }.into())
            }
            Loaded::Failed { text, is_loaded: false } => {
                Err(LivePatchError::NotLoaded { pid, path, text }.into())
            }
            Loaded::Failed { text, is_loaded: true } => {
                let symbol = self.library.function().to_owned();
                Err(LivePatchError::NotFound { pid, path, symbol, text }.into())
            }
        }
    }

    fn wait(
        &self,
        session: &Session,
        memory: &LoadMemory,
        wait: Duration,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Loaded, Error> {
        let (mut pause, longest) = LOOK;
        let deadline = Instant::now().checked_add(wait);
        loop {
            // Asked ahead of the stage: what was stored before the end is seen.
            let is_alive = self.process.is_alive() && !self.process.runs_another_program();
            match memory.stage() {
                Some(Stage::Done) => return Ok(memory.loaded()),
                _ if !is_alive => return Err(Error::TargetEnded { pid: self.process.pid().0 }),
                Some(Stage::Waiting) => {
                    let why = if is_ended() {
                        Some(LivePatchError::Interrupted)
                    } else {
                        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                        is_over.then(|| self.never(session, memory, wait))
                    };
                    if let Some(why) = why {
                        session.remove(self.process, &self.options)?;
                        // One may have been sent just before.
                        if memory.stage() == Some(Stage::Waiting) {
                            return Err(why.into());
                        }
                    }
                }
                // It takes as long as the library's constructors do.
                _ if is_ended() => return Err(LivePatchError::InterruptedLoading.into()),
                _ => {}
            }
            // One that was killed has left a breakpoint, whoever it has sent.
            session.tend(self.process, &self.options)?;
            thread::sleep(pause);
            pause = (2 * pause).min(longest);
        }
    }

    fn never(&self, session: &Session, memory: &LoadMemory, waited: Duration) -> LivePatchError {
        let (function, passed) = (self.name(), memory.passed());
        match (session.hits(), passed.is_empty()) {
            (0, true) => LivePatchError::NotCalled { function, waited },
            (hits, _) => {
                let calls = hits.max(passed.iter().map(|(_, count)| count).sum());
                LivePatchError::NeverSafe { function, calls, waited, passed }
            }
        }
    }

    /// Where the library has what is needed of it, as its file and the kernel's list of mappings tell.
    fn found(&self, address: u64, caller: u64) -> Result<InProcess, Error> {
        let (process, library) = (self.process, &self.library);
        let images = target::images(process, &Files::default())?;
        let elsewhere = || LivePatchError::Elsewhere {
            pid: process.pid().0,
            symbol: library.function().to_owned(),
            address,
            path: library.path().to_owned(),
        };
        let is_there = |image: &&Image| {
            image.code().iter().any(|code| code.contains(&address))
                && image.is_of(process, library.metadata())
        };
        let image = images.iter().find(is_there).ok_or_else(elsewhere)?;
        let bias = image.bias(Some(process))?;
        if library.function_address().wrapping_add(bias) != address {
            return Err(elsewhere().into());
        }
        // Where calls of that are led elsewhere, they may be led back here.
        let mut begins = vec![0; library.function_begins().len()];
        self.process.read_exact(RemoteAddr(address), &mut begins).map_err(Error::other)?;
        if address == self.function || begins != library.function_begins() {
            let symbol = library.function().to_owned();
            return Err(LivePatchError::Patched { symbol, is_itself: address == self.function }.into());
        }
        let pointer = library.pointer().map(|(name, at)| self.pointer_at(name, at.wrapping_add(bias), image));
        let told = self.load.caller.is_some().then_some(caller);
        let found = caller::find(process, self.isa(), told)?;
        if found.is_none() && self.isa().caller(0, 0).is_some() {
            return Err(LivePatchError::NoCaller { pid: process.pid().0, text: String::new() }.into());
        }
        Ok(InProcess { function: address, caller: found, pointer: pointer.transpose()?, passed: 0 })
    }

    /// The pointer to the original, which can be written.
    fn pointer_at(&self, name: &str, address: u64, image: &Image) -> Result<Pointer, Error> {
        let bad = |why| LivePatchError::Pointer { symbol: name.to_owned(), address, why };
        let maps = self.process.maps().map_err(Error::other)?;
        let mapping = maps
            .find(RemoteAddr(address))
            .filter(|_| image.range.contains(&address) || address >= image.range.end);
        let mapping = mapping.ok_or_else(|| bad("is not mapped"))?;
        if !mapping.perms.write || mapping.perms.exec || mapping.perms.shared {
            return Err(bad("cannot be written: declare it as a variable that is not const").into());
        }
        // Who takes it meanwhile is seen in the stop.
        let held = self.process.read_word(RemoteAddr(address)).map_err(Error::other)?;
        let to = maps.find(RemoteAddr(held)).filter(|to| to.perms.exec && held != self.function);
        match to.map(|to| to.path().is_some()) {
            Some(false) => {
                Err(bad("is in use: it leads to the original of another function that is replaced").into())
            }
            // A thread may be about to read it, in a call that began when that was replaced.
            Some(true) if !image.range.contains(&held) => {
                Err(bad("leads to another function, which was replaced: each needs a pointer of its own")
                    .into())
            }
            _ => Ok(Pointer { at: address, held }),
        }
    }

    /// Leads calls of the function to that of the library.
    ///
    /// # Errors
    /// It could not be done when the process stood. Then it is as it was, but for the library, which stays loaded.
    pub fn arm(&self, found: &InProcess) -> Result<Session, Error> {
        let InProcess { function: with, caller, pointer: original, .. } = *found;
        let replacement = Replacement { with, caller, original };
        let asked = self.asked(trapless_engine::LivePatch::Replace(replacement), &LEADING);
        let hold = Hold::Stop(self.options.clone());
        Session::attach(self.process, self.images, self.sites(), asked, hold)
    }
}

/// The function that a specification means.
fn only_function(process: &Process, images: &[Image], spec: &ProbeSpec) -> Result<Site, Error> {
    let not_one = |functions| LivePatchError::NotOne { spec: spec.text.clone(), functions };
    let is_whole = matches!(spec.location, Location::Function { offset: 0, .. })
        && spec.kind != Some(Kind::Return)
        && spec.mechanism.is_none()
        && !spec.inlines;
    if !is_whole {
        return Err(not_one(None).into());
    }
    let most = resolve::MOST_SITES;
    let mut found = resolve::resolve(Some(process), images, [(spec, Kinds::ENTRY)], &[], most)?;
    match (found.sites.pop(), found.sites.len(), found.skipped.first()) {
        (Some(site), 0, _) => Ok(site),
        (None, _, Some(skipped)) => Err(Error::NothingProbed {
            sites: found.skipped.len(),
            example: format!("{}:{}", skipped.module, skipped.function),
            reason: skipped.why.reason.clone(),
            trap_would_help: false,
        }),
        (site, others, _) => Err(not_one(Some(others + usize::from(site.is_some()))).into()),
    }
}
