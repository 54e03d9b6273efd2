//! What handlers ask of a call and of a return, and what they change.
//!
//! # Safety
//! All of these take null, for which they answer 0 and do nothing, or what a handler was called with, while it runs and on its thread.

use std::ffi::{c_int, c_void};
use std::ptr::null;
use trapless_inside::{Call, Return};

/// `TRAPLESS_ARGUMENTS` of the header: those that can be asked for. The stack of the caller has room for so many.
pub const ARGUMENTS: usize = 64;

/// `TRAPLESS_FLOATS` of the header: floating-point arguments in registers.
pub const FLOATS: usize = 8;

/// What lies in a vector register whose lower half this is.
fn low(value: f32) -> f64 {
    f64::from_bits(value.to_bits().into())
}

/// Functions of the header that ask something.
macro_rules! asked {
    ($($name:ident($of:ident: $what:ident $(, $argument:ident: $type:ty)*) -> $result:ty, else $nothing:expr; $ask:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the header.")]
        ///
        /// # Safety
        /// It is null, or what a handler was called with, while that runs.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($of: *const $what<'_> $(, $argument: $type)*) -> $result {
            // SAFETY: as the caller says.
            match unsafe { $of.as_ref() } {
                Some($of) => $ask,
                None => $nothing,
            }
        }
    )* };
}

/// Functions of the header that change something, and say whether they have.
macro_rules! changed {
    ($($name:ident($of:ident: $what:ident, $($argument:ident: $type:ty),*) $(, where $is_in:expr)?; $change:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the header.")]
        ///
        /// # Safety
        /// It is null, or what a handler was called with, while that runs; function and caller can go on with it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($of: *mut $what<'_>, $($argument: $type),*) -> bool {
            // SAFETY: as the caller says.
            let Some($of) = (unsafe { $of.as_mut() }) else { return false };
            $( if !$is_in { return false; } )?
            // SAFETY: as the caller says.
            #[allow(unused_unsafe)]
            unsafe { $change };
            true
        }
    )* };
}

asked! {
    trapless_call_function(call: Call) -> *const c_void, else null(); call.function().cast();
    trapless_call_return_address(call: Call) -> *const c_void, else null(); call.return_address().cast();
    trapless_call_stack_pointer(call: Call) -> u64, else 0; call.stack_pointer();
    trapless_call_arg(call: Call, number: usize) -> u64, else 0; if number < ARGUMENTS { call.arg(number) } else { 0 };
    trapless_call_arg_double(call: Call, number: usize) -> f64, else 0.0; if number < FLOATS { call.float(number) } else { 0.0 };
    trapless_call_arg_float(call: Call, number: usize) -> f32, else 0.0; if number < FLOATS { call.float32(number) } else { 0.0 };
    trapless_call_is_skipped(call: Call) -> bool, else false; call.is_skipped();
    trapless_call_errno(call: Call) -> c_int, else 0; call.errno();
    trapless_return_function(returned: Return) -> *const c_void, else null(); returned.function().cast();
    trapless_return_return_address(returned: Return) -> *const c_void, else null(); returned.return_address().cast();
    trapless_return_value(returned: Return) -> u64, else 0; returned.value();
    trapless_return_second(returned: Return) -> u64, else 0; returned.second();
    trapless_return_double(returned: Return) -> f64, else 0.0; returned.float();
    trapless_return_float(returned: Return) -> f32, else 0.0; returned.float32();
    trapless_return_errno(returned: Return) -> c_int, else 0; returned.errno();
}

changed! {
    trapless_call_set_arg(call: Call, number: usize, value: u64), where (number < ARGUMENTS); call.set_arg(number, value);
    trapless_call_set_arg_double(call: Call, number: usize, value: f64), where (number < FLOATS); call.set_float(number, value);
    trapless_call_set_arg_float(call: Call, number: usize, value: f32), where (number < FLOATS); call.set_float(number, low(value));
    trapless_call_return_with(call: Call, value: u64); call.return_with(value);
    trapless_call_return_with_double(call: Call, value: f64); call.return_with_float(value);
    trapless_call_return_with_float(call: Call, value: f32); call.return_with_float(low(value));
    trapless_call_set_errno(call: Call, errno: c_int); call.set_errno(errno);
    trapless_return_set_value(returned: Return, value: u64); returned.set_value(value);
    trapless_return_set_double(returned: Return, value: f64); returned.set_float(value);
    trapless_return_set_float(returned: Return, value: f32); returned.set_float(low(value));
    trapless_return_set_errno(returned: Return, errno: c_int); returned.set_errno(errno);
}
