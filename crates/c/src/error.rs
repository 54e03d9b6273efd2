//! What has failed, as a number that stays and a text for people: each thread's last one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use trapless_inside::{Error, FindError};

/// `enum trapless_error` of the header, without `TRAPLESS_OK`, which is 0. A number never changes its meaning; new ones come behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Number {
    /// An argument cannot be meant: a null pointer, no handler, no UTF-8.
    Argument = 1,
    /// Not on this machine.
    Machine = 2,
    /// There is a filter of system calls.
    Seccomp = 3,
    /// A thread or a handler of a signal blocks SIGTRAP.
    TrapBlocked = 4,
    /// A malformed pattern, or one that names no functions.
    Pattern = 5,
    /// Nothing is there.
    NotFound = 6,
    /// It is there, and cannot be probed.
    Refused = 7,
    /// Somebody else has changed the code.
    Modified = 8,
    /// There is a replacement already.
    Replaced = 9,
    /// There are as many handlers at its return as it can have, or no counters left.
    Full = 10,
    /// Calls cannot be followed, since exceptions could not pass.
    Unwinder = 11,
    /// The kernel, or a file that had to be read.
    System = 12,
    /// A bug of ours.
    Internal = 13,
    /// A script is wrong.
    Script = 14,
    /// A script asks for what there is only from outside.
    NotInside = 15,
    /// Scripts are waited for where they cannot be: in their own output, or in a forked child.
    Within = 16,
}

impl Number {
    /// All of them, by their names in C.
    pub const ALL: [(&str, Self); 16] = [
        ("TRAPLESS_ARGUMENT", Self::Argument),
        ("TRAPLESS_MACHINE", Self::Machine),
        ("TRAPLESS_SECCOMP", Self::Seccomp),
        ("TRAPLESS_TRAP_BLOCKED", Self::TrapBlocked),
        ("TRAPLESS_PATTERN", Self::Pattern),
        ("TRAPLESS_NOT_FOUND", Self::NotFound),
        ("TRAPLESS_REFUSED", Self::Refused),
        ("TRAPLESS_MODIFIED", Self::Modified),
        ("TRAPLESS_REPLACED", Self::Replaced),
        ("TRAPLESS_FULL", Self::Full),
        ("TRAPLESS_UNWINDER", Self::Unwinder),
        ("TRAPLESS_SYSTEM", Self::System),
        ("TRAPLESS_INTERNAL", Self::Internal),
        ("TRAPLESS_SCRIPT", Self::Script),
        ("TRAPLESS_NOT_INSIDE", Self::NotInside),
        ("TRAPLESS_WITHIN", Self::Within),
    ];
}

/// Why a function does not do what it was called for.
#[derive(Debug)]
pub struct Failure {
    number: Number,
    text: String,
}

impl Failure {
    /// An argument cannot be meant.
    pub(crate) fn argument(text: &str) -> Self {
        Self { number: Number::Argument, text: text.to_owned() }
    }

    fn panic(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("a bug of trapless: {}", said.unwrap_or("it has panicked"));
        Self { number: Number::Internal, text }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = match &error {
            // The other one names what a program in Rust would call.
            Error::Seccomp => "this process has a seccomp filter, which might end it for a system call; \
                trapless_allow_seccomp says that it does not"
                .to_owned(),
            other => other.to_string(),
        };
        Self { number: number(&error), text }
    }
}

fn number(error: &Error) -> Number {
    match error {
        Error::Machine => Number::Machine,
        Error::Seccomp => Number::Seccomp,
        Error::TrapBlocked { .. } | Error::HandlerBlocks { .. } => Number::TrapBlocked,
        Error::NoFunction(_) | Error::Find(FindError::Spec(_)) => Number::Pattern,
        Error::Nowhere(_) => Number::NotFound,
        Error::Find(FindError::Select(_) | FindError::OnlyInlined { .. }) => Number::NotFound,
        Error::Find(FindError::Source { .. } | FindError::NoReturn { .. }) => Number::Pattern,
        Error::Find(FindError::NothingProbed { .. }) => Number::Refused,
        Error::Refused { .. } | Error::Code(_) | Error::NoRoom(_) | Error::Clock => Number::Refused,
        Error::Modified(_) => Number::Modified,
        Error::Itself(_) => Number::Argument,
        Error::Replaced(_) => Number::Replaced,
        Error::Full(_) | Error::Followed(_) | Error::TooMany(_) => Number::Full,
        Error::Script(_) => Number::Script,
        Error::NotInside { .. } => Number::NotInside,
        Error::Within | Error::Forked => Number::Within,
        Error::Unwinder(_) => Number::Unwinder,
        Error::Find(_) | Error::System { .. } | Error::Output(_) => Number::System,
        // One that this crate was not told of.
        _ => Number::Internal,
    }
}

thread_local! {
    static NUMBER: Cell<c_int> = const { Cell::new(0) };
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Does what a program in C has called for; `failed` if that fails or panics, which is remembered for this thread.
pub(crate) fn answer<T>(failed: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return done,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let failure = Failure::panic(panic.as_ref());
            // What it holds may panic once more when it is dropped.
            std::mem::forget(panic);
            failure
        }
    };
    NUMBER.set(failure.number as c_int);
    let text = as_c(&failure.text);
    // A thread that ends has given its text back already.
    let _ = TEXT.try_with(|last| drop(last.replace(text)));
    failed
}

/// As a text of C, which ends at its first 0.
pub(crate) fn as_c(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// `trapless_last_error` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_last_error() -> c_int {
    NUMBER.get()
}

/// `trapless_last_error_message` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn trapless_last_error_message() -> *const c_char {
    const NOTHING: &CStr = c"";
    TEXT.try_with(|last| last.borrow().as_ptr()).unwrap_or(NOTHING.as_ptr())
}
