//! Children that share the program's memory until they run another: those of vfork and posix_spawn.
//!
//! Such a child runs in its parent's memory with its parent's thread pointer. It is told from its parent where it comes to life, behind
//! the system call that has made it ([`Sharing`]): probes of our own stand there. Where they cannot, what the child calls is
//! counted as its parent's. So the calls that make such children are counted, and a run says how many were not told apart; of clone,
//! which makes other children, too, it says how often it was called.
//!
//! A child of vfork, or of the C library's clone, goes on in the code that called it, so it matters where a file that is probed, or the
//! program, calls it. One of posix_spawn runs nothing but the C library's own code, so it matters where that is probed.

use super::Prepared;
use crate::files::{File, function_around};
use crate::resolve::{self, Kinds, Sites};
use crate::target::Image;
use std::collections::{BTreeMap, BTreeSet};
use trapless_engine::{LeftAlone, Plan, Wanted, spread};
use trapless_isa::{Mechanism, Sharing, SharingCalls};
use trapless_process::Process;
use trapless_symbols::{Function, Module};

/// Functions whose children run their caller's code.
const VFORK: [&str; 4] = ["vfork", "__vfork", "syscall.rawVforkSyscall", "syscall.rawVforkSyscall.abi0"];

/// The same, if they are asked for a child that shares the memory.
const CLONE: [&str; 2] = ["clone", "__clone"];

/// Functions whose children run code of the file that they are in.
const SPAWN: [&str; 2] = ["posix_spawn", "posix_spawnp"];

/// Where such children are made: images, and addresses in their files.
#[derive(Clone, Debug, Default)]
pub(super) struct Makers {
    /// Functions, each with the system call that it makes.
    functions: BTreeMap<(usize, u64), Sharing>,
    /// The functions that make such children if they are asked for them.
    clones: BTreeSet<(usize, u64)>,
    /// Where children are told from their parents.
    hooks: BTreeMap<(usize, u64), Sharing>,
    /// Images with system calls of which it is not known whether they make such children.
    unclear: BTreeSet<usize>,
}

/// The counters of calls that make children which are not told from their parents.
#[derive(Clone, Debug, Default)]
pub(super) struct Untold {
    /// Of those that surely do.
    pub children: Vec<trapless_wire::Counter>,
    /// Of those that do if they are asked to.
    pub clones: Vec<trapless_wire::Counter>,
}

impl Untold {
    /// These and others.
    pub(super) fn extend(&mut self, others: Untold) {
        self.children.extend(others.children);
        self.clones.extend(others.clones);
    }
}

impl Makers {
    /// Finds those that matter to `sites`, and adds sites for them where there are none. `later`: files may come that call such functions.
    pub(super) fn find(process: &Process, images: &[Image], sites: &mut Sites, later: bool) -> Self {
        // Those that were asked for: what is hooked for unwinders calls nothing of interest.
        let asked = sites.sites.iter().filter(|site| site.kinds.are_any());
        let probed: BTreeSet<usize> = asked.map(|site| site.image).collect();
        let program = process.exe().ok();
        let is_program = |image: &Image| program.as_deref().is_some_and(|exe| exe.ends_with(image.name()));
        let file = |index: usize| images[index].opened(Some(process)).ok();
        let matters = |index: usize| probed.contains(&index) || is_program(&images[index]);
        let callers: Vec<&Module> =
            (0..images.len()).filter(|&index| matters(index)).filter_map(file).map(File::module).collect();
        let import = |names: &[&str]| callers.iter().any(|m| names.iter().any(|name| m.imports(name)));
        let called = [(later || import(&VFORK), Sharing::Vfork), (later || import(&CLONE), Sharing::Clone)];
        let serves_calls =
            |index: usize| is_c_library(images[index].name()) && called.iter().any(|(called, _)| *called);
        let searched = (0..images.len()).filter(|index| probed.contains(index) || serves_calls(*index));
        let searched: Vec<_> = searched.filter_map(|index| Some((index, file(index)?))).collect();
        let unread: Vec<_> = searched.iter().filter(|(_, file)| !file.knows_sharing_calls()).collect();
        spread::each(&unread, |(_, file)| {
            file.sharing_calls();
        });
        let mut makers = Self::default();
        for (index, file) in searched {
            let module = file.module();
            let is_probed = probed.contains(&index);
            let is_called = |sharing| is_probed || called.contains(&(true, sharing));
            let vfork = VFORK.iter().filter(|_| is_called(Sharing::Vfork)).map(|name| (name, Sharing::Vfork));
            let spawn = SPAWN.iter().filter(|_| is_probed).map(|name| (name, Sharing::Clone));
            for (name, sharing) in vfork.chain(spawn) {
                for function in module.functions().named(name) {
                    makers.functions.insert((index, function.address()), sharing);
                    add(sites, index, function, function.address());
                }
            }
            makers.find_hooks(module, index, file.sharing_calls(), is_called, sites);
            // A static program has its own. By the other name musl makes threads.
            let is_static = is_program(&images[index]) && module.needed().is_empty();
            if called.contains(&(true, Sharing::Clone)) || is_probed && is_static {
                for function in module.functions().named(CLONE[0]) {
                    makers.clones.insert((index, function.address()));
                    add(sites, index, function, function.address());
                }
            }
        }
        makers
    }

    /// Finds where the children of an image's system calls are told from their parents.
    fn find_hooks(
        &mut self,
        module: &Module,
        index: usize,
        calls: &[(u64, SharingCalls)],
        is_called: impl Fn(Sharing) -> bool,
        sites: &mut Sites,
    ) {
        for &(at, calls) in calls {
            let places = match calls {
                SharingCalls::None => vec![],
                SharingCalls::One(address, sharing) => vec![(address, sharing)],
                SharingCalls::Two(ahead, behind) => vec![ahead, behind],
                SharingCalls::Unclear => {
                    self.unclear.insert(index);
                    vec![]
                }
            };
            for (address, sharing) in places.into_iter().filter(|(_, sharing)| is_called(*sharing)) {
                let Some(function) = function_around(module, at) else { continue };
                self.hooks.insert((index, address), sharing);
                add(sites, index, function, address);
            }
        }
    }

    /// What is wanted at a site, besides what was asked for.
    pub(super) fn want(&self, site: &resolve::Site, wanted: Wanted) -> Wanted {
        let place = (site.image, site.address);
        let is_maker = self.functions.contains_key(&place) || self.clones.contains(&place);
        let sharing = self.hooks.get(&place).copied();
        Wanted { entries: wanted.entries || is_maker, sharing, ..wanted }
    }

    /// The counters of those that were armed and whose children cannot be told from their parents.
    pub(super) fn counters(
        &self,
        prepared: &Prepared<'_>,
        plan: &Plan<'_>,
        refused: &[Option<LeftAlone>],
    ) -> Untold {
        let armed = plan.sites.iter().zip(refused);
        let armed = armed.filter(|(site, refused)| refused.is_none() && !site.request.is_exit());
        let armed: Vec<_> = armed
            .map(|(planned, _)| {
                let site = prepared.site(planned.request.id);
                ((site.image, site.address), planned)
            })
            .collect();
        let hooked: BTreeSet<(usize, u64)> =
            armed.iter().filter(|(_, planned)| !planned.traps()).map(|(place, _)| *place).collect();
        let told_apart = |image: usize, sharing: Sharing| {
            // A tracer counts by thread, and takes such a child for one of its parent's.
            if plan.traps() {
                return false;
            }
            let mut own = self.hooks.iter().filter(|((index, _), _)| *index == image);
            let found = own.clone().any(|(_, hook)| *hook == sharing);
            found && !self.unclear.contains(&image) && own.all(|(place, _)| hooked.contains(place))
        };
        let counters = |is_one: &dyn Fn(&(usize, u64)) -> bool| {
            let own = armed.iter().filter(|(place, _)| is_one(place));
            own.filter_map(|(_, planned)| planned.places.entries).collect()
        };
        Untold {
            children: counters(&|place| {
                self.functions.get(place).is_some_and(|sharing| !told_apart(place.0, *sharing))
            }),
            clones: counters(&|place| self.clones.contains(place) && !told_apart(place.0, Sharing::Clone)),
        }
    }
}

/// Adds a site that nobody asked for, so it may cost no trap.
pub(super) fn add(sites: &mut Sites, image: usize, function: Function<'_>, address: u64) {
    if sites.sites.iter().any(|site| site.image == image && site.address == address) {
        return;
    }
    let mut site = resolve::site(image, function, address - function.address(), Kinds::default());
    site.mechanism = Some(Mechanism::Jump);
    sites.sites.push(site);
}

pub(super) fn is_c_library(name: &str) -> bool {
    ["libc.so", "libc-", "ld-musl", "libc.musl"].iter().any(|known| name.starts_with(known))
}
