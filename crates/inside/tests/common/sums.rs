//! A function that is probed, and how it is called.

use std::hint::black_box;

#[inline(never)]
pub extern "C" fn sum(a: u64, b: u64) -> u64 {
    black_box(black_box(a).wrapping_add(black_box(b)))
}

pub const SUM: *const () = sum as *const ();

pub type Two = extern "C" fn(u64, u64) -> u64;

/// Calls through a pointer, which nobody looks through.
pub fn call(a: u64, b: u64) -> u64 {
    black_box(sum as Two)(a, b)
}

/// How a function begins.
#[allow(dead_code, reason = "not every test looks at that")]
pub fn bytes_of(function: *const ()) -> [u8; 16] {
    // SAFETY: functions are longer, or others follow.
    unsafe { function.cast::<[u8; 16]>().read_volatile() }
}
