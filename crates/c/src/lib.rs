//! Probes in a program's own process, from C: what [`trapless_inside`] does, as plain functions. `include/trapless.h` declares them, and tells C programmers what
//! each does, takes and fails with; here stands why it is safe.
//!
//! - What comes from C is looked at first: a null pointer, a text that is not UTF-8 and a number out of range are errors or have a defined result.
//! - No panic gets out: each function that could have one catches it, and fails with `TRAPLESS_INTERNAL`.
//! - No exception gets in: handlers are called by functions that nothing unwinds through ([`handlers`]), so one that throws ends the process there.
//! - `data` belongs to us from the moment it is handed over: `dropped` is called for it once, by a destructor, when the last of what can call the handlers is gone,
//!   also where the function that it was given to has failed.
//!
//! | module | question it answers |
//! |---|---|
//! | `handlers` | how are functions of C called, and when for the last time? |
//! | `probe` | what stands in for a probe and a replacement? |
//! | `count` | what stands in for calls that are counted? |
//! | `latency` | what stands in for calls that are timed? |
//! | `script` | what stands in for a script? |
//! | `call` | what does a handler ask of a call and of a return? |
//! | `error` | what has failed, as a number and as a text? |

pub mod call;
pub mod count;
pub mod error;
pub mod handlers;
pub mod latency;
pub mod probe;
pub mod script;

use error::{Failure, answer};
use std::ffi::{c_char, c_int};
use trapless_inside::Inside;

/// `trapless_version` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// `trapless_is_possible` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_is_possible() -> bool {
    trapless_inside::is_possible()
}

/// `trapless_allow_seccomp` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_allow_seccomp() -> c_int {
    let allowed = answer(false, || Inside::allow_seccomp().map(|_| true).map_err(Failure::from));
    if allowed { 0 } else { error::trapless_last_error() }
}

/// `trapless_reclaim` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_reclaim() -> usize {
    answer(usize::MAX, || Ok(trapless_inside::reclaim()))
}
