//! What unwinders are told of the points by which calls go that are followed: how to pass them, and where to land, so that what leaves a call
//! is seen.
//!
//! All of it goes through the unwinder that this crate is linked to. Whoever has another one knows nothing of it, so nothing is followed where there
//! are several.

use crate::{Error, points};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use trapless_isa::inside::Points;
use trapless_process::Process;
use trapless_session::target::Image;

unsafe extern "C" {
    fn _Unwind_FindEnclosingFunction(address: *mut c_void) -> *mut c_void;
    fn _Unwind_Resume(exception: *mut c_void) -> !;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_SetGR(context: *mut c_void, register: i32, value: usize);
    fn _Unwind_SetIP(context: *mut c_void, address: usize);
}

/// `_Unwind_Reason_Code` and `_Unwind_Action` of the Itanium C++ ABI's exceptions.
const INSTALL_CONTEXT: i32 = 7;
const CONTINUE_UNWIND: i32 = 8;
const CLEANUP_PHASE: i32 = 2;

/// Where unwinders land, and the registers that have the exception and what was on the stack.
static LANDING: AtomicU64 = AtomicU64::new(0);
static REGISTERS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

pub(crate) fn resume() -> u64 {
    _Unwind_Resume as *const () as u64
}

pub(crate) fn personality() -> u64 {
    person as *const () as u64
}

/// Called by an unwinder for each call of a point that it passes.
unsafe extern "C" fn person(
    _version: i32,
    actions: i32,
    _class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> i32 {
    if actions & CLEANUP_PHASE == 0 {
        return CONTINUE_UNWIND;
    }
    let [first, second] = REGISTERS.each_ref().map(|register| register.load(Ordering::Relaxed));
    // SAFETY: an unwinder calls this with a context of its own, and the registers are those that it lets be set.
    unsafe {
        let on_stack = _Unwind_GetIP(context);
        points::are_left(on_stack as u64);
        _Unwind_SetGR(context, first, exception.expose_provenance());
        _Unwind_SetGR(context, second, on_stack);
        _Unwind_SetIP(context, LANDING.load(Ordering::Relaxed) as usize);
    }
    INSTALL_CONTEXT
}

/// Fails where the unwinder does not find the points that were loaded at `at`.
pub(crate) fn is_told(points: &Points, at: u64) -> Result<(), Error> {
    LANDING.store(at + u64::from(points.landing), Ordering::Relaxed);
    REGISTERS.iter().zip(points.given).for_each(|(at, register)| at.store(register, Ordering::Relaxed));
    let within = std::ptr::with_exposed_provenance_mut((at + u64::from(points.back)) as usize);
    // SAFETY: it looks for what has this address.
    match unsafe { _Unwind_FindEnclosingFunction(within) }.addr() as u64 == at {
        true => Ok(()),
        false => Err(Error::Unwinder("the one that this program is linked to does not find them".to_owned())),
    }
}

/// Fails where there is another unwinder, or may be one: what it does with a context of its own is not known here.
pub(crate) fn is_only_one(process: &Process, images: &[Image]) -> Result<(), Error> {
    let ours = _Unwind_Resume as *const () as u64;
    for image in images {
        let name = image.name();
        let is_ours = image.range.contains(&ours);
        // The C library loads one when it needs it: this one, by its name.
        if is_ours && !["libgcc_s.so", "libunwind.so"].iter().any(|known| name.starts_with(known)) {
            return Err(Error::Unwinder(format!("{} has one of its own", image.path)));
        }
        let is_c_library =
            name.starts_with("libc.so.") || name.starts_with("ld-linux") || name.starts_with("ld-musl");
        // What is no ELF file throws nothing.
        let Some(module) = image.module(Some(process)).ok().filter(|_| !is_ours && !is_c_library) else {
            continue;
        };
        let is_there = !module.functions().named("_Unwind_RaiseException").is_empty();
        // Where code goes on behind a landing, and calls nobody else for it.
        let is_hidden = || !module.landing_pads().is_empty() && !module.imports("_Unwind_Resume");
        if is_there || is_hidden() {
            return Err(Error::Unwinder(format!("{} has one of its own", image.path)));
        }
    }
    Ok(())
}
