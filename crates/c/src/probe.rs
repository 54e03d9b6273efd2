//! Probes and replacements: what a program in C has of them, until it gives it back.

use crate::error::{Failure, answer, as_c};
use crate::handlers::{Dropped, Enter, Handlers, Leave};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};
use trapless_inside::{Error, Inside, Probe, Replacement, inside};

/// `trapless_function` of the header: a function of any kind, or none.
pub type Function = Option<unsafe extern "C" fn()>;

/// `trapless_probe` of the header.
pub struct CProbe {
    probe: Probe,
    /// What was left alone, once somebody has asked.
    skipped: OnceLock<Vec<CString>>,
}

/// Puts handlers in by one way of `Inside` or the other.
macro_rules! put_in {
    ($inside:expr, $place:expr, $handlers:expr, $on:ident, $around:ident) => {{
        let (inside, place, handlers): (Inside, _, Arc<Handlers>) = ($inside, $place, $handlers);
        let entering = handlers.clone();
        match handlers.leave {
            None => inside.$on(place, move |call| _ = entering.enter(call)),
            Some(_) => inside.$around(
                place,
                move |call| entering.enter(call),
                move |returned, kept| handlers.leave(returned, kept),
            ),
        }
    }};
}

/// Gives C what `put_in` has put in. The handlers are handed over first, so that they are dropped whatever fails.
fn listen(handlers: Handlers, put_in: impl FnOnce(Arc<Handlers>) -> Result<Probe, Failure>) -> *mut CProbe {
    answer(null_mut(), move || {
        if handlers.enter.is_none() && handlers.leave.is_none() {
            return Err(Failure::argument("there is no handler: enter and leave are both null"));
        }
        let probe = put_in(Arc::new(handlers))?;
        Ok(Box::into_raw(Box::new(CProbe { probe, skipped: OnceLock::new() })))
    })
}

/// `trapless_on` of the header.
///
/// # Safety
/// As the header says of its arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_on(
    pattern: *const c_char,
    enter: Option<Enter>,
    leave: Option<Leave>,
    data: *mut c_void,
    dropped: Option<Dropped>,
) -> *mut CProbe {
    listen(Handlers { enter, leave, data, dropped }, |handlers| {
        // SAFETY: as the caller says.
        let pattern = unsafe { self::pattern(pattern) }?;
        Ok(put_in!(inside()?, pattern, handlers, on, around)?)
    })
}

/// `trapless_on_function` of the header.
///
/// # Safety
/// As the header says of its arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_on_function(
    function: Function,
    enter: Option<Enter>,
    leave: Option<Leave>,
    data: *mut c_void,
    dropped: Option<Dropped>,
) -> *mut CProbe {
    listen(Handlers { enter, leave, data, dropped }, |handlers| {
        let function = address(function, "the function is null")?;
        Ok(put_in!(inside()?, function, handlers, on_function, around_function)?)
    })
}

/// A pattern of C's.
///
/// # Safety
/// It is null, or ends by a 0 and stays as long as this is used.
pub(crate) unsafe fn pattern<'a>(pattern: *const c_char) -> Result<&'a str, Failure> {
    if pattern.is_null() {
        return Err(Failure::argument("the pattern is null"));
    }
    // SAFETY: as the caller says.
    let pattern = unsafe { CStr::from_ptr(pattern) };
    pattern.to_str().map_err(|_| Failure::argument("the pattern is not UTF-8"))
}

pub(crate) fn address(function: Function, missing: &str) -> Result<*const (), Failure> {
    function.map(|function| function as *const ()).ok_or_else(|| Failure::argument(missing))
}

/// Drops what C had, unless that is null.
///
/// # Safety
/// It was made of a box, and nobody uses it any more.
pub(crate) unsafe fn give_back<T>(given: *mut T) {
    if !given.is_null() {
        // SAFETY: as the caller says.
        let given = unsafe { Box::from_raw(given) };
        answer((), || {
            drop(given);
            Ok(())
        });
    }
}

/// `trapless_remove` of the header.
///
/// # Safety
/// It is null, or a probe that was not removed yet; nobody uses it meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_remove(probe: *mut CProbe) {
    // SAFETY: as the caller says.
    unsafe { give_back(probe) }
}

/// What is asked of something that C has; `nothing` of none.
///
/// # Safety
/// It is null, or is not given back meanwhile.
pub(crate) unsafe fn of<G: 'static, T>(given: *const G, nothing: T, ask: impl FnOnce(&'static G) -> T) -> T {
    // SAFETY: as the caller says. What is answered is used no longer than it is there.
    match unsafe { given.as_ref() } {
        Some(given) => answer(nothing, || Ok(ask(given))),
        None => nothing,
    }
}

impl CProbe {
    fn skipped(&self) -> &[CString] {
        self.skipped.get_or_init(|| {
            let told = self.probe.skipped().iter();
            told.map(|one| as_c(&format!("{}:{}: {}", one.module, one.function, one.why.reason))).collect()
        })
    }
}

/// `trapless_probe_functions` of the header.
///
/// # Safety
/// It is null, or a probe that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_probe_functions(probe: *const CProbe) -> usize {
    // SAFETY: as the caller says.
    unsafe { of(probe, 0, |probe| probe.probe.functions()) }
}

/// `trapless_probe_skipped` of the header.
///
/// # Safety
/// It is null, or a probe that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_probe_skipped(probe: *const CProbe) -> usize {
    // SAFETY: as the caller says.
    unsafe { of(probe, 0, |probe| probe.probe.skipped().len()) }
}

/// `trapless_probe_skipped_text` of the header.
///
/// # Safety
/// It is null, or a probe that is not removed as long as the text is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_probe_skipped_text(probe: *const CProbe, number: usize) -> *const c_char {
    // SAFETY: as the caller says.
    unsafe { of(probe, null(), |probe| probe.skipped().get(number).map_or(null(), |text| text.as_ptr())) }
}

/// `trapless_probe_unwound` of the header.
///
/// # Safety
/// It is null, or a probe that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_probe_unwound(probe: *const CProbe) -> u64 {
    // SAFETY: as the caller says.
    unsafe { of(probe, 0, |probe| probe.probe.unwound()) }
}

/// `trapless_probe_missed` of the header.
///
/// # Safety
/// It is null, or a probe that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_probe_missed(probe: *const CProbe) -> u64 {
    // SAFETY: as the caller says.
    unsafe { of(probe, 0, |probe| probe.probe.missed()) }
}

/// `trapless_replace` of the header.
///
/// # Safety
/// Whoever calls `function` can call `with` in the same way. `original` is null, or has room for an address that others read meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_replace(
    function: Function,
    with: Function,
    original: *mut Function,
) -> *mut Replacement {
    answer(null_mut(), || {
        let function = address(function, "the function that is to be replaced is null")?;
        let with = address(with, "the function that is to be called instead is null")?;
        let inside = inside()?;
        if function == with {
            return Err(Error::Itself(function.addr() as u64).into());
        }
        if !original.is_null() {
            let callable = inside.original(function)?;
            // SAFETY: there is room for it. In one piece: a thread may read it as soon as it is in `with`, and others look at it already.
            unsafe { AtomicPtr::from_ptr(original.cast()) }.store(callable.cast_mut(), Ordering::Release);
        }
        // SAFETY: as the caller says.
        let replacement = unsafe { inside.replace(function, with) }?;
        Ok(Box::into_raw(Box::new(replacement)))
    })
}

/// `trapless_original` of the header.
///
/// # Safety
/// It is null, or a replacement that is not put back meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_original(replacement: *const Replacement) -> Function {
    // SAFETY: as the caller says.
    let original = unsafe { replacement.as_ref() }?.original();
    // SAFETY: it is code, and not null.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn()>(original) })
}

/// `trapless_put_back` of the header.
///
/// # Safety
/// It is null, or a replacement that was not put back yet; nobody uses it meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_put_back(replacement: *mut Replacement) {
    // SAFETY: as the caller says.
    unsafe { give_back(replacement) }
}
