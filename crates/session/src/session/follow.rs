//! What following calls to their return asks of a program: unwinders that must find the real return addresses, and
//! faults that must look as if nothing had been moved.

use crate::error::Error;
use crate::resolve::{self, Kinds, Sites, UNWINDERS};
use crate::target::Image;
use trapless_engine::{Plan, Refusal};
use trapless_isa::{Faults, Flow, Machine};
use trapless_process::Process;

/// What is known of a program's unwinders.
pub(super) struct Unwinders {
    /// Ids of the sites where they start.
    sites: Vec<u32>,
    /// There are landing pads, so there must be an unwinder.
    needed: bool,
}

/// Adds the entry points of every unwinder that is loaded to the sites, to be hooked.
pub(super) fn with_unwinders(process: &Process, images: &[Image], mut sites: Sites) -> Sites {
    for (index, image) in images.iter().enumerate() {
        let Some(module) =
            may_unwind(process, images, index).then(|| image.module(Some(process)).ok()).flatten()
        else {
            continue;
        };
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
fn may_unwind(process: &Process, images: &[Image], index: usize) -> bool {
    let name = images[index].name();
    let program = process.exe().is_ok_and(|exe| exe.ends_with(name));
    program
        || ["libgcc_s", "libunwind", "libc++abi", "libc.so", "libc-"]
            .iter()
            .any(|known| name.starts_with(known))
}

/// The unwinders among `sites`, and whether the program throws exceptions at all.
pub(super) fn unwinders(process: &Process, images: &[Image], sites: &Sites) -> Unwinders {
    // Without the C library's own hooked, a backtrace is short; without these, exceptions are lost.
    let needed = |site: &resolve::Site| site.unwinder && site.name.starts_with("_Unwind_");
    let ids = (0..).zip(&sites.sites).filter(|(_, site)| needed(site)).map(|(id, _)| id);
    let throws = |index: usize| {
        // A dynamic program's unwinder is a library; it is there, or comes when it is needed (libc asks for it to
        // cancel threads) and then finds nothing but libc's own frames. A static one has it somewhere inside.
        let module = images[index].module(Some(process)).ok();
        module.is_some_and(|module| {
            let is_static = module.needed().is_empty() && module.soname().is_none();
            is_static && !module.landing_pads().is_empty()
        })
    };
    let mut read: Vec<usize> = sites.sites.iter().map(|site| site.image).collect();
    read.dedup();
    let sites: Vec<u32> = ids.collect();
    Unwinders { needed: sites.is_empty() && read.into_iter().any(throws), sites }
}

/// Follows nothing where an exception could not pass: an unwinder that is not hooked would meet return points
/// it knows nothing of.
pub(super) fn require_unwinders(plan: &mut Plan<'_>, unwinders: &Unwinders) {
    let hooked = unwinders.sites.iter().all(|id| plan.sites.iter().any(|site| site.request.id == *id));
    if unwinders.needed || !hooked {
        plan.refuse(|site| site.request.wanted.follows().then_some(Refusal::Unwinder));
    }
    if !plan.follows() {
        // Nothing to put back, so nothing to hook.
        plan.sites.retain(|site| !site.request.wanted.is_hook());
    }
}

/// In a program with a shadow stack (CET), follows nothing and displaces no calls.
pub(super) fn refuse_shadow_stack(process: &Process, plan: &mut Plan<'_>) -> Result<(), Error> {
    if !process.status().map_err(Error::other)?.shadow_stack {
        return Ok(());
    }
    let machines: Vec<Machine> = plan.modules.iter().map(|module| module.machine).collect();
    plan.refuse(|site| {
        let isa = machines[site.request.module].isa();
        let mut address = site.displaced.start;
        let mut code = site.original();
        let mut calls = false;
        while let Ok(instruction) = isa.decode(code, address) {
            calls |= matches!(instruction.flow, Flow::Call { .. } | Flow::IndirectCall);
            address = instruction.end();
            code = &code[usize::from(instruction.length)..];
        }
        (calls || site.request.wanted.follows()).then_some(Refusal::ShadowStack)
    });
    Ok(())
}

/// Leaves out the functions of Go modules that run on whatever stack is left: a detour needs some. `is_go` tells by a
/// site's id.
pub(super) fn refuse_nosplit(plan: &mut Plan<'_>, is_go: impl Fn(u32) -> bool) {
    let modules = plan.modules.clone();
    plan.refuse(|site| {
        let grows = || modules[site.request.module].machine.isa().grows_stack(&site.site(&modules));
        (is_go(site.request.id) && !grows()).then_some(Refusal::NoSplit)
    });
}

/// The signals that a moved instruction could raise, by the names users know, and which faults raise them.
const FAULTS: [(i32, &str, Faults); 4] = [
    (libc::SIGSEGV, "SIGSEGV", Faults::MEMORY),
    (libc::SIGBUS, "SIGBUS", Faults::MEMORY),
    (libc::SIGFPE, "SIGFPE", Faults::ARITHMETIC),
    (libc::SIGILL, "SIGILL", Faults::INVALID),
];

/// Leaves out sites whose displaced instructions may raise a fault that the program catches: its handler would see an
/// address that is not the program's.
pub(super) fn refuse_faults(process: &Process, plan: &mut Plan<'_>) -> Result<(), Error> {
    let caught = process.status().map_err(Error::other)?.sig_caught;
    let caught = FAULTS.into_iter().filter(|(signal, ..)| caught & 1 << (signal - 1) != 0);
    let caught: Vec<(&str, Faults)> = caught.map(|(_, name, faults)| (name, faults)).collect();
    if caught.is_empty() {
        return Ok(());
    }
    let machines: Vec<Machine> = plan.modules.iter().map(|module| module.machine).collect();
    plan.refuse(|site| {
        if site.traps() {
            // The tracer moves such a fault to where it belongs.
            return None;
        }
        let isa = machines[site.request.module].isa();
        let may = isa.may_fault(site.original(), site.displaced.start);
        caught.iter().find(|(_, faults)| may.meets(*faults)).map(|(name, _)| Refusal::MayFault(name))
    });
    Ok(())
}

/// Where a thread's id is, from its thread pointer on: `tid` in the C library's `struct pthread`.
///
/// glibc exports the place as `_thread_db_pthread_tid`, and it has not moved since 2.3.4 on x86; musl's has not since 1.1.
pub(super) fn tid_offset(process: &Process) -> Option<i32> {
    let maps = process.maps().ok()?;
    maps.iter().find_map(|mapping| {
        let name = mapping.path()?.file_name()?.to_str()?;
        match name {
            "libc.so.6" => Some(if process.is_32bit() { 0x68 } else { 0x2d0 }),
            _ if name.starts_with("ld-musl-i386") => Some(0x18),
            _ if name.starts_with("ld-musl-x86_64") => Some(0x30),
            _ => None,
        }
    })
}
