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
    fn __register_frame(table: *const c_void);
    fn __deregister_frame(table: *const c_void);
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

/// Tells the unwinder of the points at `at`.
///
/// # Errors
/// It does not know them then.
pub(crate) fn tell(points: &Points, at: u64) -> Result<(), Error> {
    LANDING.store(at + u64::from(points.landing), Ordering::Relaxed);
    REGISTERS.iter().zip(points.given).for_each(|(at, register)| at.store(register, Ordering::Relaxed));
    let within = std::ptr::with_exposed_provenance_mut((at + u64::from(points.back)) as usize);
    // GCC's takes a table, LLVM's an entry.
    let table: &'static [u8] = points.unwind.clone().leak();
    for told in [table.as_ptr(), table[points.entry..].as_ptr()] {
        // SAFETY: a table that stays for good.
        unsafe {
            __register_frame(told.cast());
            if _Unwind_FindEnclosingFunction(within).addr() as u64 == at {
                return Ok(());
            }
            __deregister_frame(told.cast());
        }
    }
    Err(Error::Unwinder("the one that this program is linked to takes no tables".to_owned()))
}

/// Fails where there is another unwinder, or may be one.
pub(crate) fn is_only_one(process: &Process, images: &[Image]) -> Result<(), Error> {
    let ours = __register_frame as *const () as u64;
    for image in images.iter().filter(|image| !image.range.contains(&ours)) {
        // What is no ELF file throws nothing.
        let Ok(module) = image.module(Some(process)) else { continue };
        let name = image.name();
        // The C library loads one when it needs it.
        if ["libc.so", "libc-", "ld-", "ld.so", "ld64"].iter().any(|known| name.starts_with(known)) {
            continue;
        }
        let is_there = !module.functions().named("_Unwind_RaiseException").is_empty();
        // Where code goes on behind a landing, and calls nobody else for it.
        let is_hidden = || !module.landing_pads().is_empty() && !module.imports("_Unwind_Resume");
        if is_there || is_hidden() {
            return Err(Error::Unwinder(format!("{} has one of its own", image.path)));
        }
    }
    Ok(())
}
