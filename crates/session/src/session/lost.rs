//! Armed sites that somebody else took away, by the names their users know.

use crate::outcome::LostSite;
use crate::target::Image;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use trapless_engine::{Became, LeftAlone, Plan, Recheck};
use trapless_process::Process;
use trapless_wire::Journal;

/// The sites of a session, and what became of those that are no longer as they were armed.
#[derive(Clone, Debug)]
pub(super) struct Sites {
    recheck: Recheck,
    /// How many there are.
    count: u32,
    lost: Vec<LostSite>,
    /// The program that the process runs instead.
    replaced: Option<PathBuf>,
    /// Where the files that are probed were mapped.
    known: Vec<(PathBuf, Range<u64>)>,
    /// Files whose code was mapped at yet another place.
    mapped_again: BTreeSet<PathBuf>,
    /// The site at which we are told of libraries that come and go, by its index in the plan, while it is there.
    gate: Option<u32>,
    /// The sites were taken out by us.
    is_over: bool,
}

impl Sites {
    /// All sites that were armed.
    pub(super) fn of(
        journal: &Journal,
        plan: &Plan<'_>,
        refused: &[Option<LeftAlone>],
        images: &[Image],
    ) -> Self {
        let probed: BTreeSet<(u64, u64)> = plan.modules.iter().map(|m| (m.start, m.end)).collect();
        let paths: BTreeSet<&str> = images
            .iter()
            .filter(|image| probed.contains(&(image.range.start, image.range.end)))
            .map(|image| image.path.as_str())
            .collect();
        let known = images.iter().filter(|image| paths.contains(image.path.as_str()));
        let known = known.map(|image| (PathBuf::from(&image.path), image.range.clone())).collect();
        let recheck = Recheck::of(journal, refused);
        let mapped_again = BTreeSet::new();
        Self {
            recheck,
            count: plan.sites.len() as u32,
            lost: Vec::new(),
            replaced: None,
            known,
            mapped_again,
            gate: None,
            is_over: false,
        }
    }

    /// Says where we are told of libraries that come and go. Then it is no loss if one goes.
    pub(super) fn told_at(self, gate: Option<usize>) -> Self {
        Self { gate: gate.map(|index| index as u32), ..self }
    }

    /// Whether we are told of libraries that come and go.
    pub(super) fn is_told(&self) -> bool {
        self.gate.is_some()
    }

    /// Only the first sites, which is what a forked child has.
    pub(super) fn first(mut self, count: usize) -> Self {
        self.count = self.count.min(count as u32);
        Self { recheck: self.recheck.first(count), ..self }
    }

    /// Takes in sites that were added.
    pub(super) fn include(&mut self, more: Sites) {
        self.recheck.include(more.recheck, self.count);
        self.count += more.count;
        // Where a file was mapped again is probed by now.
        self.mapped_again.retain(|path| more.known.iter().all(|(known, _)| known != path));
        self.known.extend(more.known);
    }

    /// Leaves out sites that were in libraries which are unloaded.
    pub(super) fn forget(&mut self, gone: &[u32]) {
        self.recheck.forget(gone);
    }

    /// Takes in sites again whose library has come back.
    pub(super) fn take_back(&mut self, back: &[u32]) {
        self.recheck.take_back(back);
    }

    /// From here on nothing is to be found: we take the probes out ourselves.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    pub(super) fn look(&mut self, process: &Process, session: &super::Session, all: bool) {
        if self.is_over {
            return;
        }
        // Only made when it is needed.
        let mut known = None;
        for (index, became) in self.recheck.look(process, &session.engine, all) {
            if became == Became::Replaced {
                // Told once, and not of each of its sites.
                self.replaced.get_or_insert_with(|| process.exe().unwrap_or_default());
                continue;
            }
            if self.gate == Some(index) && became != Became::Mended {
                self.gate = None;
            }
            if self.gate.is_some() && matches!(became, Became::Unloaded | Became::Reloaded) {
                continue;
            }
            let Some(site) = session.engine.journal().site(index as usize) else { continue };
            let known = known.get_or_insert_with(|| session.by_id());
            let Some(&(probe, address)) = known.get(&site.probe) else { continue };
            let address = if site.is_exit() { site.probed() } else { address };
            // A site is mended as often as it takes, and told once.
            if became == Became::Mended
                && self.lost.iter().any(|l| l.address == address && l.code == became.code())
            {
                continue;
            }
            self.lost.push(LostSite {
                module: probe.probed.module.to_string(),
                function: probe.probed.function.text().to_owned(),
                address,
                code: became.code(),
                reason: became.to_string(),
            });
        }
        if self.replaced.is_none() {
            self.look_for_copies(process);
        }
    }

    /// Finds code of the probed files that was mapped somewhere else since.
    fn look_for_copies(&mut self, process: &Process) {
        let Ok(maps) = process.maps() else { return };
        // They may be another program's, which it has begun meanwhile.
        if process.runs_another_program() {
            return;
        }
        for mapping in maps.iter().filter(|mapping| mapping.perms.exec) {
            let Some(path) = mapping.path() else { continue };
            let mut places = self.known.iter().filter(|(known, _)| known == path).peekable();
            if places.peek().is_some() && places.all(|(_, range)| !range.contains(&mapping.start.0)) {
                self.mapped_again.insert(path.to_owned());
            }
        }
    }

    /// Files whose code was mapped at yet another place, where calls are not counted.
    pub(super) fn mapped_again(&self) -> &BTreeSet<PathBuf> {
        &self.mapped_again
    }

    pub(super) fn lost(&self) -> &[LostSite] {
        &self.lost
    }

    pub(super) fn replaced(&self) -> Option<&Path> {
        self.replaced.as_deref()
    }
}
