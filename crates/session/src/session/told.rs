//! What is told of sites that were to be armed, by the names that their users know.

use super::{Prepared, Probe};
use crate::outcome::{Probed, Skipped, Why};
use crate::resolve;
use crate::target::Image;
use std::sync::Arc;
use trapless_engine::{LeftAlone, Plan, Refusal, spread};

/// A mapped file: its inode and its path.
pub(super) type FileName = (u64, Arc<str>);

/// What is told of the sites that were to be armed.
pub(super) struct Told {
    pub probes: Vec<Probe>,
    /// Those of the probes.
    pub addresses: Vec<u64>,
    pub refused: Vec<(u32, Refusal)>,
}

impl Told {
    /// `left_alone`: of each site of the plan, why it was left out in the end.
    pub(super) fn of(prepared: &Prepared<'_>, plan: &Plan<'_>, left_alone: &[Option<LeftAlone>]) -> Self {
        let mut refused = plan.skipped.clone();
        let mut modules = ModuleNames::default();
        let (mut probes, mut addresses) = (Vec::new(), Vec::new());
        for (site, left) in plan.sites.iter().zip(left_alone) {
            if site.request.is_exit() {
                continue;
            }
            let asked = prepared.site(site.request.id);
            match left {
                Some(left) => refused.push((site.request.id, (*left).into())),
                None if !asked.kinds.are_any() || site.request.wanted.is_hook() => {}
                // One for each name: several USDT probes may stand at one address.
                None => {
                    probes.extend(asked.names().map(|name| Probe {
                        probed: Arc::new(Probed {
                            module: modules.name(asked.module_name(prepared.images)),
                            function: name.clone(),
                            mechanism: site.mechanism.name(),
                        }),
                        usdt:
                            prepared.notes(site.request.id).and_then(|notes| notes.arguments_of(name.text())),
                        file_address: asked.address,
                        again: None,
                        kinds: asked.kinds,
                        places: site.places,
                        id: site.request.id,
                    }));
                    addresses.resize(probes.len(), site.request.address);
                }
            }
        }
        Self { probes, addresses, refused }
    }

    /// What was asked for and left out.
    pub(super) fn skipped(&self, prepared: &Prepared<'_>) -> Vec<Skipped> {
        let mut skipped = prepared.sites.skipped.clone();
        let told = spread::map(&self.refused, |(id, refusal)| {
            let site = prepared.site(*id);
            site.kinds.are_any().then(|| resolve::skip(prepared.images, site, Why::from(refusal)))
        });
        skipped.extend(told.into_iter().flatten());
        skipped
    }
}

/// Names of modules, each kept once for all the sites in a row that bear it.
#[derive(Default)]
struct ModuleNames(Option<Arc<str>>);

impl ModuleNames {
    fn name(&mut self, name: &str) -> Arc<str> {
        match &self.0 {
            Some(last) if **last == *name => last.clone(),
            _ => self.0.insert(name.into()).clone(),
        }
    }
}

/// The files of all sites, by the sites' ids. Neighbours are mostly of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteFiles(Vec<(u32, FileName)>);

impl SiteFiles {
    /// Adds those of further sites, in the order of their ids.
    pub(super) fn extend(&mut self, prepared: &Prepared<'_>) {
        let mut last = None;
        for site in &prepared.sites.sites {
            let end = self.len() + 1;
            match self.0.last_mut().filter(|_| last == Some(site.image)) {
                Some((behind, _)) => *behind = end,
                None => {
                    let image: &Image = &prepared.images[site.image];
                    self.0.push((end, (image.inode(), image.path.as_str().into())));
                    last = Some(site.image);
                }
            }
        }
    }

    /// How many sites there are.
    pub(super) fn len(&self) -> u32 {
        self.0.last().map_or(0, |(end, _)| *end)
    }

    pub(super) fn of(&self, id: u32) -> Option<&FileName> {
        let run = self.0.partition_point(|(end, _)| *end <= id);
        self.0.get(run).map(|(_, file)| file)
    }
}
