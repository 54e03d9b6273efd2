//! Where a thread finds its record: a word of its own.
//!
//! This crate may be part of a library that is loaded when threads are there (`trapless-c`). A thread's memory for such a library is made when the thread asks
//! for it first, by the dynamic loader, which calls `malloc` for it: that may be the very function whose handlers are about to be called, and would ask again. So with
//! glibc the word is asked for in the memory that threads have from their beginning (the loader's *initial-exec*), of which glibc keeps some free for
//! libraries that come late. What else the library has for each thread lies there with it. musl makes such memory when a library is loaded, for
//! all threads, and wants no words there.

use crate::threads::Record;
use here::with;
use std::cell::Cell;

type Word = Cell<Option<&'static Record>>;

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", target_env = "gnu"))]
mod here {
    use super::Word;

    /// The name of the word: another version of this crate in the same program has another one.
    macro_rules! name {
        () => {
            concat!("\"trapless_own_record ", env!("CARGO_PKG_VERSION"), "\"")
        };
    }

    /// The address of this thread's word.
    #[unsafe(naked)]
    extern "C" fn word() -> *const Word {
        core::arch::naked_asm!(
            ".pushsection .tbss.trapless_own_record, \"awT\", @nobits",
            ".balign 8",
            concat!(".type ", name!(), ", @object"),
            concat!(".size ", name!(), ", 8"),
            concat!(name!(), ":"),
            ".zero 8",
            ".popsection",
            "mov rax, qword ptr fs:[0]",
            concat!("add rax, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
            "ret",
        )
    }

    /// Gives `look` this thread's word.
    pub(super) fn with<T>(look: impl FnOnce(&Word) -> T) -> T {
        const { assert!(size_of::<Word>() == 8 && align_of::<Word>() <= 8) };
        // SAFETY: it is this thread's alone, as long as that runs, and 0 at first: `None`.
        look(unsafe { &*word() })
    }
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", target_env = "gnu")))]
mod here {
    use super::Word;

    thread_local! {
        static OWN: Word = const { Word::new(None) };
    }

    /// Gives `look` this thread's word.
    pub(super) fn with<T>(look: impl FnOnce(&Word) -> T) -> T {
        OWN.with(look)
    }
}

/// This thread's record, once it has one. It stays the thread's until that is gone.
pub(crate) fn get() -> Option<&'static Record> {
    with(Cell::get)
}

/// The thread has this record from now on.
pub(crate) fn set(record: Option<&'static Record>) {
    with(|word| word.set(record));
}

/// This thread's pointer, by which detours know it: the word that it leads to holds it.
#[cfg(all(feature = "script", target_arch = "x86_64", target_pointer_width = "64"))]
pub(crate) fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: of both C libraries each thread's pointer leads to itself.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags))
    };
    pointer
}

/// Elsewhere nothing is probed.
#[cfg(all(feature = "script", not(all(target_arch = "x86_64", target_pointer_width = "64"))))]
pub(crate) fn thread_pointer() -> u64 {
    0
}
