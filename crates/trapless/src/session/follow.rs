//! What following calls to their return asks of a program: functions whose return must be left alone, unwinders that
//! must find the real return addresses, and faults that must look as if nothing had been moved.

use crate::error::Error;
use crate::resolve::{self, Kinds, Sites, UNWINDERS};
use crate::target::Image;
use trapless_engine::{Plan, Refusal, Request};
use trapless_isa::{Machine, x86};
use trapless_process::Process;

/// Takes out requests that follow functions whose names say that they do not return plainly.
pub(super) fn without_odd_returns<'m>(
    images: &[Image],
    process: &Process,
    sites: &Sites,
    requests: Vec<Request<'m>>,
    refused: &mut Vec<(u32, String)>,
) -> Vec<Request<'m>> {
    let odd = |request: &Request<'_>| {
        let site = &sites.sites[request.id as usize];
        let module = images[site.image].module(Some(process)).ok()?;
        if module.entry() == site.address {
            return Some("nobody calls the entry point");
        }
        module.functions().get(site.function)?.names().find_map(|name| resolve::returns_oddly(name.plain()))
    };
    let mut kept = Vec::with_capacity(requests.len());
    for request in requests {
        match request.wanted.follows().then(|| odd(&request)).flatten() {
            Some(reason) => refused.push((request.id, reason.to_owned())),
            None => kept.push(request),
        }
    }
    kept
}

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
    program || name.starts_with("libgcc_s") || name.starts_with("libunwind") || name.starts_with("libc++abi")
}

/// The unwinders among `sites`, and whether the program throws exceptions at all.
pub(super) fn unwinders(process: &Process, images: &[Image], sites: &Sites) -> Unwinders {
    let ids = (0..).zip(&sites.sites).filter(|(_, site)| site.unwinder).map(|(id, _)| id);
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
        plan.sites.retain(|site| {
            site.request.wanted.restore_returns == site.request.wanted.entries
                || !site.request.wanted.restore_returns
        });
    }
}

/// The signals that a moved instruction could raise, by the names users know.
const FAULTS: [(i32, &str); 3] =
    [(libc::SIGSEGV, "SIGSEGV"), (libc::SIGBUS, "SIGBUS"), (libc::SIGFPE, "SIGFPE")];

/// Leaves out sites whose displaced instructions may fault, if the program catches such faults: its handler
/// would see an address that is not the program's.
pub(super) fn refuse_faults(process: &Process, plan: &mut Plan<'_>) -> Result<(), Error> {
    let caught = process.status().map_err(Error::other)?.sig_caught;
    let Some((_, name)) = FAULTS.into_iter().find(|(signal, _)| caught & 1 << (signal - 1) != 0) else {
        return Ok(());
    };
    let machines: Vec<Machine> = plan.modules.iter().map(|module| module.machine).collect();
    plan.refuse(|site| {
        let bits = match machines[site.request.module] {
            Machine::X86_64 => 64,
            Machine::I386 => 32,
            Machine::AArch64 | Machine::PowerPc64Le => return None,
        };
        x86::displaced_may_fault(bits, site.original(), site.displaced.start)
            .then_some(Refusal::MayFault(name))
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
