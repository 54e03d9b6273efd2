//! Children that share the program's memory until they run another: those of vfork and posix_spawn.
//!
//! Such a child runs on its parent's memory with its parent's thread pointer, so whatever it calls is counted as its parent's, and no
//! detour can tell the two apart. So the calls that make such children are counted by probes of our own, and a run says how many
//! there were.
//!
//! A child of vfork goes on in the code that called vfork, so it matters where a file that is probed, or the program, calls it. One of
//! posix_spawn runs nothing but the C library's own code, so it matters where that is probed.

use super::Prepared;
use crate::resolve::{self, Kinds, Sites};
use crate::target::Image;
use std::collections::BTreeSet;
use trapless_engine::{LeftAlone, Plan, Wanted};
use trapless_isa::Mechanism;
use trapless_process::Process;

/// Functions whose children run their caller's code.
const VFORK: [&str; 3] = ["vfork", "__vfork", "syscall.rawVforkSyscall"];

/// Functions whose children run code of the file that they are in.
const SPAWN: [&str; 2] = ["posix_spawn", "posix_spawnp"];

/// Where such children are made: image and address in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Makers(BTreeSet<(usize, u64)>);

impl Makers {
    /// Finds those that matter to `sites`, and adds sites for them where there are none.
    pub(super) fn find(process: &Process, images: &[Image], sites: &mut Sites) -> Self {
        // Those that were asked for: what is hooked for unwinders calls nothing of interest.
        let asked = sites.sites.iter().filter(|site| site.kinds != Kinds::default());
        let probed: BTreeSet<usize> = asked.map(|site| site.image).collect();
        let program = process.exe().ok();
        let is_program = |image: &Image| program.as_deref().is_some_and(|exe| exe.ends_with(image.name()));
        let module = |index: usize| images[index].module(Some(process)).ok();
        let matters = |index: usize| probed.contains(&index) || is_program(&images[index]);
        let imported = (0..images.len())
            .filter(|&index| matters(index))
            .filter_map(module)
            .any(|module| VFORK.iter().any(|name| module.imports(name)));
        let mut makers = Self::default();
        for (index, image) in images.iter().enumerate() {
            let names: &[&[&str]] = match probed.contains(&index) {
                true => &[&VFORK, &SPAWN],
                false if imported && is_c_library(image.name()) => &[&VFORK],
                false => continue,
            };
            let Some(module) = module(index) else { continue };
            for function in names.iter().copied().flatten().flat_map(|name| module.functions().named(name)) {
                if makers.0.insert((index, function.address()))
                    && !sites.sites.iter().any(|s| s.image == index && s.address == function.address())
                {
                    let mut site = resolve::site(index, function, 0, Kinds::default());
                    // Nobody asked for it, so it may cost no trap.
                    site.mechanism = Some(Mechanism::Jump);
                    sites.sites.push(site);
                }
            }
        }
        makers
    }

    /// What is wanted at a site, besides what was asked for.
    pub(super) fn want(&self, site: &resolve::Site, wanted: Wanted) -> Wanted {
        let is_maker = self.0.contains(&(site.image, site.address));
        Wanted { entries: wanted.entries || is_maker, ..wanted }
    }

    /// The counters of those that were armed.
    pub(super) fn counters(
        &self,
        prepared: &Prepared<'_>,
        plan: &Plan<'_>,
        refused: &[Option<LeftAlone>],
    ) -> Vec<trapless_wire::Counter> {
        let armed = plan.sites.iter().zip(refused).filter(|(_, refused)| refused.is_none());
        armed
            .filter(|(planned, _)| {
                let site = &prepared.sites.sites[planned.request.id as usize];
                self.0.contains(&(site.image, site.address))
            })
            .filter_map(|(planned, _)| planned.places.entries)
            .collect()
    }
}

fn is_c_library(name: &str) -> bool {
    ["libc.so", "libc-", "ld-musl", "libc.musl"].iter().any(|known| name.starts_with(known))
}
