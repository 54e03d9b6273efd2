//! What unwinders need in a program where calls are followed, or anything is probed that they go astray in.

use crate::resolve::{self, Kinds, Sites};
use crate::target::{self, Image};
use trapless_engine::Unwinder;
use trapless_engine::admit::{LANDINGS, LOOKUPS, UNWINDERS};
use trapless_isa::Machine;
use trapless_process::Process;

/// Adds to the sites the functions that unwinders ask about an address, and those by which they land, for calls that detours follow,
/// and the entry points of every unwinder that is loaded, for calls that a tracer follows. Without a process, those of the files.
pub(super) fn with_unwinders(process: Option<&Process>, images: &[Image], mut sites: Sites) -> Sites {
    let program = process.and_then(|process| process.exe().ok());
    for (index, image) in images.iter().enumerate() {
        let is_program = program.as_ref().is_none_or(|path| path.ends_with(image.name()));
        let may_unwind = is_program || is_unwinder(image.name());
        let Some(module) = may_unwind.then(|| image.module(process).ok()).flatten() else { continue };
        let served = services().flat_map(|(name, service)| {
            module.functions().named(name).into_iter().map(move |function| (function, service))
        });
        let isa = target::machine(module).isa();
        let landings =
            LANDINGS.iter().flat_map(|name| module.functions().named(name)).filter_map(|function| {
                let code_address = isa.code_address_in_context(module.code(function.range())?)?;
                Some((function, Unwinder::Landing(code_address)))
            });
        let served = served.chain(landings);
        for (function, service) in served {
            if !image.holds(process, function.address()).unwrap_or(true) {
                // The file is mapped twice, and this mapping is of another part.
                continue;
            }
            let known = sites.sites.iter_mut().find(|s| s.image == index && s.address == function.address());
            match known {
                Some(site) => site.unwinder = Some(service),
                None => {
                    let mut site = resolve::site(index, function, 0, Kinds::default());
                    site.unwinder = Some(service);
                    sites.sites.push(site);
                }
            }
        }
    }
    sites
}

/// Whether unwinders have to be told anything: where calls are followed, and where they go astray in code of ours.
pub(super) fn are_told(process: Option<&Process>, follows: bool) -> bool {
    let isa = |process: &Process| Machine::beside(process.is_32bit()).isa();
    follows || process.is_some_and(|process| isa(process).facts().walks_by_chain)
}

fn services() -> impl Iterator<Item = (&'static str, Unwinder)> {
    let lookups = LOOKUPS.iter().map(|&(name, lookup)| (name, Unwinder::Lookup(lookup)));
    lookups.chain(UNWINDERS.iter().map(|&name| (name, Unwinder::Entry)))
}

/// Unwinders, and what they ask, live in libraries of their own, or in the program itself; the other files are not read for them.
fn is_unwinder(name: &str) -> bool {
    let known = ["libgcc_s", "libunwind", "libc++abi", "libc.so", "libc-", "ld-", "ld.so"];
    known.iter().any(|known| name.starts_with(known))
}

/// Whether exceptions may be thrown by an unwinder that asks nobody we know: in a static program that has one somewhere inside, and in
/// a dynamic one whose C library could not be read or is an unknown one.
pub(super) fn throw_unhooked(process: Option<&Process>, images: &[Image], sites: &Sites) -> bool {
    if sites.sites.iter().any(|site| matches!(site.unwinder, Some(Unwinder::Lookup(_)))) {
        return false;
    }
    let mut read: Vec<usize> = sites.sites.iter().map(|site| site.image).collect();
    read.dedup();
    read.into_iter().filter_map(|index| images[index].module(process).ok()).any(|module| {
        let is_dynamic = !module.needed().is_empty() || module.soname().is_some();
        // Of a file alone, the libraries that it will have are not known.
        if is_dynamic { process.is_some() } else { !module.landing_pads().is_empty() }
    })
}
