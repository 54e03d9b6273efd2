//! Sites that are added to a session that is armed: those of a library that was loaded meanwhile.
//!
//! The process is stopped once more, for as long as the new sites take. Those that are armed already count on, and calls that are
//! followed stay so. What serves all sites, unwinders and handlers of signals, is the session's own and was armed with it, so a session
//! has to know from the beginning that there may be more ([`Asked::later`](super::Asked::later)).

use super::arm::ATTEMPTS;
use super::{Hold, Prepared, Probe, Session, Told, facts, follows, hooks, lost, shared, sharing, signals};
use crate::error::Error;
use crate::outcome::{Skipped, Why};
use crate::resolve::{self, Site, Sites};
use crate::target::Image;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use trapless_engine::{Added, Attempt, Blueprint, EngineError, Home, Plan, Space, Spare, Wanted};
use trapless_isa::Mechanism;
use trapless_process::{Process, StopOptions};
use trapless_symbols::Module;

/// Room for so many probes is kept: each with a histogram of its own, or with counters only. It is address space for every thread, of which
/// 32-bit programs have little.
const TIMED: [u32; 2] = [2048, 64];
const COUNTED: [u32; 2] = [16_384, 1024];

/// What is kept free in a process for more probes, of which so much is wanted.
pub(super) fn spare(process: &Process, wanted: Wanted) -> Spare {
    let most = if wanted.latency { TIMED } else { COUNTED };
    Spare { probes: most[usize::from(process.is_32bit())], wanted }
}

impl Session {
    /// Adds sites in files that were mapped since: `images`, and no others. How many were armed; what could not be, and why, is among
    /// [`Session::skipped`] from now on.
    ///
    /// # Errors
    /// The process cannot be stopped or changed; it is as it was then, with the probes that it had. That nothing could be probed is none.
    pub fn add(
        &mut self,
        process: &Process,
        images: &[Image],
        sites: Sites,
        hold: Hold<'_>,
    ) -> Result<usize, Error> {
        let asked = self.asked.clone();
        let mut sites = sites;
        leave_out_unrelocated(process, images, &mut sites);
        if sites.sites.is_empty() {
            self.tell(images, Vec::new(), &[], sites.skipped);
            return Ok(0);
        }
        if self.is_served() {
            let why = "some of its probes trap, and their tracer holds the process: attach when all libraries are loaded";
            return Err(Error::other(EngineError::Unsupported(why)));
        }
        self.must_be_certain()?;
        let makers = sharing::Makers::find(process, images, &mut sites, false);
        // What traps needs a tracer that stays, which this session may not have.
        let allowed: Vec<Mechanism> =
            asked.allowed.iter().copied().filter(|mechanism| !mechanism.traps()).collect();
        let wanted = |site: &Site| makers.want(site, asked.wanted(site));
        let follows = follows(&sites);
        let prepared = Prepared::added(process, images, sites, follows, self)?.with_run(asked.run.clone());
        let plan = prepared.plan(wanted, &allowed);
        let (plan, added) = match self.put_in(process, &plan, hold) {
            Ok(done) => done,
            Err(EngineError::NothingToDo(refused)) => {
                let told = Told { refused, ..Told::of(&prepared, &plan, &[]) };
                self.tell(images, Vec::new(), &[], told.skipped(&prepared));
                return Ok(0);
            }
            Err(error) => return Err(self.failed(error)),
        };
        self.engine.include(&added).map_err(|error| self.failed(error))?;
        let mut told = Told::of(&prepared, &plan, &added.refused);
        plan.tell_whose(process, &mut told.refused);
        self.makers.extend(makers.counters(&prepared, &plan, &added.refused));
        let more = lost::Sites::of(&added.journal, &plan, &added.refused, images);
        self.recheck.borrow_mut().include(more);
        self.files.extend(&prepared);
        let mut probes = std::mem::take(&mut told.probes);
        let files = &self.files;
        let place =
            |probe: &Probe| (files.of(probe.id), probe.file_address, probe.probed.function.text().to_owned());
        let known: HashMap<_, usize> = (0..)
            .zip(self.probes.iter())
            .filter(|(_, probe)| probe.again.is_none())
            .map(|(index, probe)| (place(probe), index))
            .collect();
        let again: Vec<_> = probes.iter().map(|probe| known.get(&place(probe)).copied()).collect();
        probes.iter_mut().zip(again).for_each(|(probe, again)| probe.again = again);
        let count = probes.len();
        self.tell(images, probes, &told.addresses, told.skipped(&prepared));
        Ok(count)
    }

    /// Arms the probes again that were given up in a file that is mapped again where it was; whether that was all there is to do for it.
    ///
    /// # Errors
    /// The process cannot be stopped or changed.
    pub fn come_back(&mut self, process: &Process, image: &Image, hold: Hold<'_>) -> Result<bool, Error> {
        let is_of_file = |id: u32| {
            let file = self.files.of(id);
            file.is_some_and(|(inode, path)| *inode == image.inode() && **path == *image.path)
        };
        // Semaphores would have to be raised again: such probes are added as new ones are.
        let guarded = self.probes.iter().any(|probe| probe.usdt.is_some() && is_of_file(probe.id));
        let Some(returning) = self.engine.returning(&image.range, is_of_file).filter(|_| !guarded) else {
            return Ok(false);
        };
        self.must_be_certain()?;
        let mut hold = hold;
        let engine = &self.engine;
        let kept = |options: &StopOptions| engine.put_in_again_kept(process, &returning, options);
        let are_in = hold.with(process, kept, |stopped| engine.put_in_again(stopped, &returning));
        let are_in = are_in.map_err(|error| self.failed(error))?;
        if are_in {
            let back = self.engine.take_back(&returning);
            self.recheck.borrow_mut().take_back(&back);
        }
        Ok(are_in)
    }

    /// Gives up the probes in libraries that were unloaded: where they were mapped.
    ///
    /// # Errors
    /// The shared memory cannot be written.
    pub fn forget(&mut self, process: &Process, unmapped: &[Range<u64>]) -> Result<(), Error> {
        let gone = self.engine.forget(process, unmapped).map_err(Error::other)?;
        self.recheck.borrow_mut().forget(&gone);
        Ok(())
    }

    /// Where whoever was to do it has ended without a clear answer, what is in has to be read from the process.
    fn failed(&mut self, error: EngineError) -> Error {
        self.is_uncertain |=
            matches!(error, EngineError::KeeperEnded(_) | EngineError::Channel(_) | EngineError::Answer(_));
        Error::other(error)
    }

    /// Fails where it is not known any more what the process has.
    fn must_be_certain(&self) -> Result<(), Error> {
        let why =
            "probes could not be added before, and it is not known whether some are in: attach once more";
        match self.is_uncertain {
            true => Err(Error::other(EngineError::Unsupported(why))),
            false => Ok(()),
        }
    }

    fn tell(&mut self, images: &[Image], probes: Vec<Probe>, addresses: &[u64], skipped: Vec<Skipped>) {
        debug_assert_eq!(probes.len(), addresses.len());
        if !probes.is_empty() {
            self.probes = shared(images, self.probes.iter().cloned().chain(probes).collect());
            self.addresses = self.addresses.iter().chain(addresses).copied().collect();
        }
        if !skipped.is_empty() {
            self.skipped = self.skipped.iter().cloned().chain(skipped).collect::<Arc<[_]>>();
        }
    }

    /// Draws and arms until the addresses hold.
    fn put_in<'p, 'm>(
        &mut self,
        process: &Process,
        plan: &'p Plan<'m>,
        mut hold: Hold<'_>,
    ) -> Result<(std::borrow::Cow<'p, Plan<'m>>, Added), EngineError> {
        for _ in 0..ATTEMPTS {
            let blueprint = Blueprint::draw_added(&Space::of(process)?, plan, &self.engine)?;
            let kept = |options: &StopOptions| blueprint.add_kept(process, &self.engine, options);
            let attempt = hold.with(process, kept, |stopped| blueprint.add(stopped, &self.engine));
            match attempt {
                Ok(added) => return Ok((blueprint.into_plan(), added)),
                Err(Attempt::Taken) => {}
                Err(Attempt::NoMemory) => return Err(EngineError::NoMemory),
                Err(Attempt::Failed(error)) => return Err(error),
            }
        }
        Err(EngineError::Crowded)
    }
}

/// A library is told of when it is mapped, before it is relocated. Where that changes its code, what we wrote there would be changed, too.
fn leave_out_unrelocated(process: &Process, images: &[Image], sites: &mut Sites) {
    let relocated: BTreeSet<usize> = (0..images.len())
        .filter(|&index| images[index].module(Some(process)).is_ok_and(Module::relocates_code))
        .collect();
    let Sites { sites, skipped, .. } = sites;
    sites.retain(|site| {
        let stays = !relocated.contains(&site.image);
        if !stays && site.kinds.are_any() {
            let why = "the loader has yet to change the code of this library (text relocations): attach when it is loaded";
            skipped.push(resolve::skip(images, site, Why::plain("text_relocations", why)));
        }
        stays
    });
}

impl<'i> Prepared<'i> {
    /// The sites of files that were mapped since a session was armed.
    fn added(
        process: &'i Process,
        images: &'i [Image],
        sites: Sites,
        follows: bool,
        session: &Session,
    ) -> Result<Self, Error> {
        let tells = hooks::are_told(Some(process), follows);
        let sites = if tells { hooks::with_unwinders(Some(process), images, sites) } else { sites };
        let mut facts = facts::of_process(Some(process), images, follows)?;
        facts.runtimes = facts.runtimes.with(session.runtimes);
        let host = session.engine.host();
        facts.shows = host.shows;
        Self {
            process: Some(process),
            images,
            sites,
            facts,
            files: BTreeMap::new(),
            usdt: BTreeMap::new(),
            signals: signals::Hooks::default(),
            home: Home::Armed(host),
            run: None,
            live_patch: None,
            first: session.files.len(),
        }
        .read(follows)
    }
}
