//! Calls that are timed without a handler.

use crate::error::{Failure, answer, as_c};
use crate::probe::{Function, address, give_back, of, pattern};
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use trapless_inside::{Latency, Times, inside};

/// `trapless_timer` of the header.
pub struct CTimer {
    latency: Latency,
    /// The functions' names, once somebody has asked.
    names: OnceLock<Vec<CString>>,
}

/// `trapless_times` of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CTimes {
    /// Calls that have returned, and those that were not followed.
    calls: u64,
    lost: u64,
    /// In nanoseconds.
    average: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    longest: u64,
}

/// `trapless_bucket` of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CBucket {
    low: u64,
    high: u64,
    calls: u64,
}

impl From<Times> for CTimes {
    fn from(Times { calls, lost, times }: Times) -> Self {
        let trapless_inside::LatencySummary { avg, p50, p90, p99, p999, max, buckets: _ } = times;
        Self { calls, lost, average: avg, p50, p90, p99, p999, longest: max }
    }
}

fn timing(latency: impl FnOnce() -> Result<Latency, Failure>) -> *mut CTimer {
    answer(null_mut(), || Ok(Box::into_raw(Box::new(CTimer { latency: latency()?, names: OnceLock::new() }))))
}

impl CTimer {
    fn names(&self) -> &[CString] {
        self.names.get_or_init(|| self.latency.names().map(|name| as_c(&name)).collect())
    }
}

/// `trapless_latency` of the header.
///
/// # Safety
/// As the header says of its argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_latency(text: *const c_char) -> *mut CTimer {
    // SAFETY: as the caller says.
    timing(|| Ok(inside()?.latency(unsafe { pattern(text) }?)?))
}

/// `trapless_latency_function` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_latency_function(function: Function) -> *mut CTimer {
    timing(|| Ok(inside()?.latency_function(address(function, "the function is null")?)?))
}

/// `trapless_timer_functions` of the header.
///
/// # Safety
/// It is null, or a timer that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_timer_functions(timer: *const CTimer) -> usize {
    // SAFETY: as the caller says.
    unsafe { of(timer, 0, |timer| timer.latency.functions()) }
}

/// `trapless_timer_times` of the header.
///
/// # Safety
/// It is null, or a timer that is not removed meanwhile; `times` is null, or has room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_timer_times(timer: *const CTimer, times: *mut CTimes) -> bool {
    // SAFETY: as the caller says.
    let times = unsafe { times.as_mut() };
    let ask = |timer: &'static CTimer| times.map(|times| *times = timer.latency.all().into()).is_some();
    // SAFETY: as the caller says.
    unsafe { of(timer, false, ask) }
}

/// `trapless_timer_function` of the header.
///
/// # Safety
/// It is null, or a timer that is not removed as long as the name is used; `times` is null, or has room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_timer_function(
    timer: *const CTimer,
    number: usize,
    times: *mut CTimes,
) -> *const c_char {
    // SAFETY: as the caller says.
    let times = unsafe { times.as_mut() };
    let ask = |timer: &'static CTimer| {
        if let Some(times) = times
            && let Some(known) = timer.latency.times_of(number)
        {
            *times = known.into();
        }
        timer.names().get(number).map_or(null(), |name| name.as_ptr())
    };
    // SAFETY: as the caller says.
    unsafe { of(timer, null(), ask) }
}

/// `trapless_timer_buckets` of the header.
///
/// # Safety
/// It is null, or a timer that is not removed meanwhile; `buckets` is null, or has `room` for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_timer_buckets(
    timer: *const CTimer,
    buckets: *mut CBucket,
    room: usize,
) -> usize {
    let ask = |timer: &'static CTimer| {
        let known = timer.latency.times().buckets;
        let room = if buckets.is_null() { 0 } else { room };
        for (number, one) in known.iter().enumerate().take(room) {
            let bucket = CBucket { low: one.low, high: one.high, calls: one.count };
            // SAFETY: there is room for it, as the caller says.
            unsafe { buckets.add(number).write(bucket) };
        }
        known.len()
    };
    // SAFETY: as the caller says.
    unsafe { of(timer, 0, ask) }
}

/// `trapless_timer_unwound` of the header.
///
/// # Safety
/// It is null, or a timer that is not removed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_timer_unwound(timer: *const CTimer) -> u64 {
    // SAFETY: as the caller says.
    unsafe { of(timer, 0, |timer| timer.latency.unwound()) }
}

/// `trapless_timer_remove` of the header.
///
/// # Safety
/// It is null, or a timer that was not removed yet; nobody uses it meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_timer_remove(timer: *mut CTimer) {
    // SAFETY: as the caller says.
    unsafe { give_back(timer) }
}
