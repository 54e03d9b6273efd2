//! Functions of C that are called at a function's entry and return, and what is called when they are called no more.
//!
//! A handler in C++ may throw, though it must not. Unwinding through us would leave a thread in the midst of a handler for good, and what the
//! unwinder does with a frame of handling code is not defined. So handlers are called by functions that are `extern "C"` themselves: Rust aborts the process
//! where an exception reaches one of those.

use std::ffi::c_void;
use trapless_inside::{Call, Return};

/// `trapless_enter` of the header.
pub type Enter = unsafe extern "C-unwind" fn(call: *mut Call<'_>, data: *mut c_void, kept: *mut u64);
/// `trapless_leave` of the header.
pub type Leave = unsafe extern "C-unwind" fn(returned: *mut Return<'_>, data: *mut c_void, kept: *const u64);
/// `trapless_dropped` of the header.
pub type Dropped = unsafe extern "C-unwind" fn(data: *mut c_void);

/// What goes from a call's entry to its return.
pub(crate) type Kept = [u64; 2];

/// Handlers and their data. Whoever drops the last of it calls `dropped`.
pub(crate) struct Handlers {
    pub enter: Option<Enter>,
    pub leave: Option<Leave>,
    pub data: *mut c_void,
    pub dropped: Option<Dropped>,
}

// SAFETY: the header demands of handlers and their data that any thread can call them with it, several at a time; and of `dropped`, that any can.
unsafe impl Send for Handlers {}
// SAFETY: as above.
unsafe impl Sync for Handlers {}

impl Handlers {
    pub fn enter(&self, call: &mut Call<'_>) -> Kept {
        let mut kept = [0; 2];
        if let Some(enter) = self.enter {
            enter_or_abort(enter, call, self.data, &mut kept);
        }
        kept
    }

    pub fn leave(&self, returned: &mut Return<'_>, kept: Kept) {
        if let Some(leave) = self.leave {
            leave_or_abort(leave, returned, self.data, &kept);
        }
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped {
            drop_or_abort(dropped, self.data);
        }
    }
}

extern "C" fn enter_or_abort(enter: Enter, call: &mut Call<'_>, data: *mut c_void, kept: &mut Kept) {
    // SAFETY: the header says so of what it is given.
    unsafe { enter(call, data, kept.as_mut_ptr()) }
}

extern "C" fn leave_or_abort(leave: Leave, returned: &mut Return<'_>, data: *mut c_void, kept: &Kept) {
    // SAFETY: as above.
    unsafe { leave(returned, data, kept.as_ptr()) }
}

extern "C" fn drop_or_abort(dropped: Dropped, data: *mut c_void) {
    // SAFETY: as above, and it is called once.
    unsafe { dropped(data) }
}
