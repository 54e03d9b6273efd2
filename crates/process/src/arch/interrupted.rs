//! What signals have interrupted, as their frames on stacks tell.

use super::host::context;

/// What a signal has interrupted, and where its handler goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
}

impl Interrupted {
    /// How much is read of a context from its stack pointer on, at the most, in bytes.
    pub const SPAN: u64 = context::SPAN;

    /// All that may be contexts in the frames of signals in `bytes` of memory with words of this size, ascending; it begins at an
    /// address that is a multiple of that.
    pub fn all_in(bytes: &[u8], word_size: usize) -> Vec<Self> {
        context::all_in(bytes, word_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicPtr, Ordering};

    /// What the kernel has told the handler, and what was found there.
    static SEEN: AtomicPtr<Vec<Interrupted>> = AtomicPtr::new(std::ptr::null_mut());

    extern "C" fn look(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel hands a whole ucontext to a handler with SA_SIGINFO, and the bytes of it are
        // initialised.
        let (told, bytes) = unsafe {
            let bytes = std::slice::from_raw_parts(context.cast::<u8>(), size_of::<libc::ucontext_t>());
            (context::told(&*context.cast::<libc::ucontext_t>()), bytes)
        };
        // The thread has sent the signal itself, and is not in the allocator.
        let seen = Box::new([vec![told], Interrupted::all_in(bytes, size_of::<usize>())].concat());
        SEEN.store(Box::into_raw(seen), Ordering::Release);
    }

    #[test]
    fn the_kernel_writes_contexts_that_are_known() {
        // SAFETY: the handler is one for SA_SIGINFO, touches nothing but what it is given and an atomic, and
        // the signal is nobody else's here.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = look as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGWINCH, &action, std::ptr::null_mut()), 0);
            assert_eq!(libc::raise(libc::SIGWINCH), 0);
        }
        // SAFETY: the handler has run, and has stored what came out of a box.
        let seen = unsafe { Box::from_raw(SEEN.swap(std::ptr::null_mut(), Ordering::Acquire)) };
        let [told, found @ ..] = seen.as_slice() else { unreachable!() };
        assert_eq!(found, [*told]);
    }
}
