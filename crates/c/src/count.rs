//! Calls that are counted without a handler.

use crate::error::{Failure, answer, as_c};
use crate::probe::{Function, address, give_back, of, pattern};
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use trapless_inside::{Count, inside};

/// `trapless_counter` of the header.
pub struct CCounter {
    count: Count,
    /// The functions' names, once somebody has asked.
    names: OnceLock<Vec<CString>>,
}

fn counting(count: impl FnOnce() -> Result<Count, Failure>) -> *mut CCounter {
    answer(null_mut(), || Ok(Box::into_raw(Box::new(CCounter { count: count()?, names: OnceLock::new() }))))
}

impl CCounter {
    fn names(&self) -> &[CString] {
        self.names.get_or_init(|| self.count.by_function().map(|(name, _)| as_c(&name)).collect())
    }
}

/// `trapless_count` of the header.
///
/// # Safety
/// As the header says of its argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_count(text: *const c_char) -> *mut CCounter {
    // SAFETY: as the caller says.
    counting(|| Ok(inside()?.count(unsafe { pattern(text) }?)?))
}

/// `trapless_count_function` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_count_function(function: Function) -> *mut CCounter {
    counting(|| Ok(inside()?.count_function(address(function, "the function is null")?)?))
}

/// `trapless_counter_calls` of the header.
///
/// # Safety
/// It is null, or a counter that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_counter_calls(counter: *const CCounter) -> u64 {
    // SAFETY: as the caller says.
    unsafe { of(counter, 0, |counter| counter.count.calls()) }
}

/// `trapless_counter_functions` of the header.
///
/// # Safety
/// It is null, or a counter that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_counter_functions(counter: *const CCounter) -> usize {
    // SAFETY: as the caller says.
    unsafe { of(counter, 0, |counter| counter.count.functions()) }
}

/// `trapless_counter_function` of the header.
///
/// # Safety
/// It is null, or a counter that is not removed as long as the name is used; `calls` is null, or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_counter_function(
    counter: *const CCounter,
    number: usize,
    calls: *mut u64,
) -> *const c_char {
    // SAFETY: as the caller says.
    let calls = unsafe { calls.as_mut() };
    let ask = |counter: &'static CCounter| {
        if let (Some(calls), Some(counted)) = (calls, counter.count.calls_of(number)) {
            *calls = counted;
        }
        counter.names().get(number).map_or(null(), |name| name.as_ptr())
    };
    // SAFETY: as the caller says.
    unsafe { of(counter, null(), ask) }
}

/// `trapless_counter_remove` of the header.
///
/// # Safety
/// It is null, or a counter that was not removed yet; nobody uses it meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_counter_remove(counter: *mut CCounter) {
    // SAFETY: as the caller says.
    unsafe { give_back(counter) }
}
