//! The unwinders of a program, to be hooked where calls are followed.

use crate::resolve::{self, Kinds, Sites};
use crate::target::Image;
use trapless_engine::admit::UNWINDERS;
use trapless_process::Process;

/// Adds the entry points of every unwinder that is loaded to the sites, to be hooked. Without a process, those of the files.
pub(super) fn with_unwinders(process: Option<&Process>, images: &[Image], mut sites: Sites) -> Sites {
    let program = process.and_then(|process| process.exe().ok());
    for (index, image) in images.iter().enumerate() {
        let is_program = program.as_ref().is_none_or(|path| path.ends_with(image.name()));
        let may_unwind = is_program || is_unwinder(image.name());
        let Some(module) = may_unwind.then(|| image.module(process).ok()).flatten() else { continue };
        for function in UNWINDERS.iter().flat_map(|name| module.functions().named(name)) {
            let known = sites.sites.iter_mut().find(|s| s.image == index && s.address == function.address());
            match known {
                Some(site) => site.unwinder = true,
                None => {
                    let mut site = resolve::site(index, function, 0, Kinds::default());
                    site.unwinder = true;
                    sites.sites.push(site);
                }
            }
        }
    }
    sites
}

/// Unwinders live in libraries of their own, or in the program itself; the other files are not read for them.
fn is_unwinder(name: &str) -> bool {
    let known = ["libgcc_s", "libunwind", "libc++abi", "libc.so", "libc-"];
    known.iter().any(|known| name.starts_with(known))
}

/// Whether a file throws exceptions and brings no unwinder that could be hooked.
///
/// A dynamic program's unwinder is a library; it is there, or comes when it is needed (libc asks for it to
/// cancel threads) and then finds nothing but libc's own frames. A static one has it somewhere inside.
pub(super) fn throw_unhooked(process: Option<&Process>, images: &[Image], sites: &Sites) -> bool {
    if sites.sites.iter().any(|site| site.unwinder && site.name.starts_with("_Unwind_")) {
        return false;
    }
    let mut read: Vec<usize> = sites.sites.iter().map(|site| site.image).collect();
    read.dedup();
    read.into_iter().filter_map(|index| images[index].module(process).ok()).any(|module| {
        let is_static = module.needed().is_empty() && module.soname().is_none();
        is_static && !module.landing_pads().is_empty()
    })
}
