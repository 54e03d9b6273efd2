//! What is told of sites that were to be armed, by the names that their users know.

use super::{Prepared, Probe};
use crate::name::SiteName;
use crate::outcome::{Skipped, Why};
use crate::resolve::{self, Kinds, Site};
use crate::target::Image;
use std::collections::BTreeMap;
use std::sync::Arc;
use trapless_engine::{LeftAlone, Plan, Refusal, spread};

/// A mapped file: its inode and its path.
pub(super) type FileName = (u64, Arc<str>);

/// What is told of the sites that were to be armed.
pub(super) struct Told {
    pub probes: Vec<Probe>,
    pub refused: Vec<(u32, Refusal)>,
    pub modules: ModuleNames,
}

impl Told {
    /// `left_alone`: of each site of the plan, why it was left out in the end.
    pub(super) fn of(prepared: &Prepared<'_>, plan: &Plan<'_>, left_alone: &[Option<LeftAlone>]) -> Self {
        let mut refused = plan.skipped.clone();
        let mut modules = ModuleNames::default();
        let mut probes = Vec::with_capacity(plan.sites.len());
        for (site, left) in plan.sites.iter().zip(left_alone) {
            if site.request.is_exit() {
                continue;
            }
            let asked = prepared.site(site.request.id);
            match left {
                Some(left) => refused.push((site.request.id, (*left).into())),
                None if asked.kinds == Kinds::default() || site.request.wanted.is_hook() => {}
                // One for each name: several USDT probes may stand at one address.
                None => probes.extend(asked.names().map(|name| Probe {
                    module: modules.name(asked.module_name(prepared.images)),
                    function: name.clone(),
                    usdt: prepared.notes(site.request.id).and_then(|notes| notes.arguments_of(name.text())),
                    address: site.request.address,
                    file_address: asked.address,
                    again: None,
                    kinds: asked.kinds,
                    mechanism: site.mechanism.name(),
                    places: site.places,
                    id: site.request.id,
                })),
            }
        }
        Self { probes, refused, modules }
    }

    /// What was asked for and left out.
    pub(super) fn skipped(&self, prepared: &Prepared<'_>) -> Vec<Skipped> {
        let mut skipped = prepared.sites.skipped.clone();
        let told = spread::map(&self.refused, |(id, refusal)| {
            let site = prepared.site(*id);
            (site.kinds != Kinds::default()).then(|| resolve::skip(prepared.images, site, Why::from(refusal)))
        });
        skipped.extend(told.into_iter().flatten());
        skipped
    }
}

/// Names of modules, each kept once for all the sites in a row that bear it.
#[derive(Default)]
pub(super) struct ModuleNames(Option<Arc<str>>);

impl ModuleNames {
    fn name(&mut self, name: &str) -> Arc<str> {
        match &self.0 {
            Some(last) if **last == *name => last.clone(),
            _ => self.0.insert(name.into()).clone(),
        }
    }

    /// The names of a site and its module.
    pub(super) fn named(&mut self, prepared: &Prepared<'_>, id: u32) -> (Arc<str>, SiteName) {
        let site = prepared.site(id);
        (self.name(site.module_name(prepared.images)), site.name.clone())
    }
}

/// Inodes and paths of images, each kept once.
#[derive(Default)]
pub(super) struct FileNames(BTreeMap<usize, FileName>);

impl FileNames {
    /// Those of all sites, in order.
    pub(super) fn all(mut self, prepared: &Prepared<'_>) -> Vec<FileName> {
        let of = |image: &Image| (image.inode(), image.path.as_str().into());
        let mut file = |site: &Site| {
            self.0.entry(site.image).or_insert_with(|| of(&prepared.images[site.image])).clone()
        };
        prepared.sites.sites.iter().map(&mut file).collect()
    }
}
