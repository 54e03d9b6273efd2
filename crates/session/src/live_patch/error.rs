//! Why a function is not replaced.

use crate::number::{count, plural};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use trapless_engine::Passed;

/// Why a function is not replaced. Nothing is patched then. The library is loaded only where the text says so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LivePatchError {
    /// What is no `FILE:FUNCTION`.
    #[error("'{0}' names no function of a library: write FILE:FUNCTION, such as ./fix.so:slow_fixed")]
    Names(String),
    /// A library that is not loaded.
    #[error("{}: {why}", .path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: BadLibrary,
    },
    /// The pattern means another number of functions than one.
    #[error("'{spec}' names {}; name one, which is called by a call: MODULE:FUNCTION", what(*.functions))]
    NotOne {
        /// The specification as it was written.
        spec: String,
        /// How many functions it means, if it means whole functions.
        functions: Option<usize>,
    },
    /// Programs of 32 bits.
    #[error("process {0} runs a 32-bit program, and functions are replaced in 64-bit programs alone")]
    Narrow(i32),
    /// Another machine.
    #[error("functions are replaced in 64-bit programs; there is no code for {0} that would load a library")]
    Machine(&'static str),
    /// A static program.
    #[error(
        "process {0} runs a statically linked program, which has no dynamic loader: it can load no library. Link it dynamically"
    )]
    Static(i32),
    /// A function of a Go program.
    #[error(
        "{0} is a Go program, whose functions have conventions and stacks of their own: they are not replaced"
    )]
    Go(String),
    /// No `dlopen`.
    #[error(
        "process {pid} has no {function}, by which it would load the library: the C library that it runs is none that is known (glibc's libc.so.6 from 2.34 on, with libdl.so.2 before, or musl's)"
    )]
    NoLoader {
        /// The process.
        pid: i32,
        /// What is missing.
        function: &'static str,
    },
    /// A filter may kill it.
    #[error(
        "process {0} is under a seccomp filter, which might kill it or fail it for loading a library; accept that with --allow-seccomp"
    )]
    Seccomp(i32),
    /// The process sees another file at the path, or none.
    #[error(
        "process {pid} does not see the library: in its root directory and mount namespace, {} is {what}. Put the file where both see it, or give its path there as /proc/{pid}/root/…", .path.display()
    )]
    AnotherFile {
        /// The process.
        pid: i32,
        /// As the process is to see it.
        path: PathBuf,
        /// What it sees there.
        what: &'static str,
    },
    /// What was armed there by a tool that was killed.
    #[error(
        "an interrupted run has left {function} patched in process {pid}: take that out with trapless detach -p {pid}, and then try again"
    )]
    LeftBehind {
        /// The function.
        function: String,
        /// The process.
        pid: i32,
    },
    /// Another one has it.
    #[error("{function} is probed or replaced by another trapless (process {tool}): end that first")]
    Taken {
        /// The function.
        function: String,
        /// The other tool's process.
        tool: u32,
    },
    /// Nobody called the function.
    #[error(
        "nobody called {function} for {}: a library is loaded at a call of the function that is replaced. Give it more time with --wait SECONDS", seconds(*.waited)
    )]
    NotCalled {
        /// The function.
        function: String,
        /// How long it was waited.
        waited: Duration,
    },
    /// No call was one in which a library can be loaded.
    #[error(
        "no call of {function} was one in which a library can be loaded, {} in {}: {}. Nothing was loaded; give it more time with --wait SECONDS, or replace a function that is called elsewhere",
        plural(*.calls, "call"), seconds(*.waited), reasons(.passed)
    )]
    NeverSafe {
        /// The function.
        function: String,
        /// How many calls there were.
        calls: u64,
        /// How long it was waited.
        waited: Duration,
        /// Why they were let pass.
        passed: Vec<(Passed, u64)>,
    },
    /// Ctrl-C.
    #[error("interrupted before a call came in which the library could be loaded; nothing was changed")]
    Interrupted,
    /// The same meanwhile.
    #[error(
        "interrupted while the process was loading the library: it goes on with that, and nothing is replaced. A constructor of the library may be taking its time"
    )]
    InterruptedLoading,
    /// The loader of the process refuses.
    #[error("process {pid} could not load {}: {text}", .path.display())]
    NotLoaded {
        /// The process.
        pid: i32,
        /// As it sees it.
        path: PathBuf,
        /// What its loader says.
        text: String,
    },
    /// The library of what calls the function.
    #[error(
        "process {pid} could not load what brings callers their TOC pointer back, which it is given as a file in memory{}: may it make such files (memfd_create), does it see /proc, and may it run what is in memory?", said(.text)
    )]
    NoCaller {
        /// The process.
        pid: i32,
        /// What its loader says.
        text: String,
    },
    /// The loader of the process finds no such function.
    #[error("process {pid} has loaded {} and found no {symbol} in it: {text}. The library stays loaded", .path.display())]
    NotFound {
        /// The process.
        pid: i32,
        /// As it sees it.
        path: PathBuf,
        /// The function.
        symbol: String,
        /// What its loader says.
        text: String,
    },
    /// What the process says of the function's address is not so.
    #[error(
        "process {pid} says that {symbol} is at {address:#x}, and there is no such function of {}: another file may have been put in its place, or the process has written over what it was asked. The library may be loaded", .path.display()
    )]
    Elsewhere {
        /// The process.
        pid: i32,
        /// The function.
        symbol: String,
        /// Where it would be.
        address: u64,
        /// The library.
        path: PathBuf,
    },
    /// Calls could go round in a circle.
    #[error(
        "{symbol} {}, and calls could be led round in a circle: nothing is replaced. The library stays loaded", itself(*.is_itself)
    )]
    Patched {
        /// The function.
        symbol: String,
        /// Whether it is the one that is to be replaced.
        is_itself: bool,
    },
    /// A replacement beside probes.
    #[error("a replacement is armed by itself: arm the probes first, and attach once more for it")]
    WithProbes,
    /// The pointer to the original cannot be written.
    #[error("the pointer {symbol} at {address:#x} {why}; the library stays loaded")]
    Pointer {
        /// Its name.
        symbol: String,
        /// Its address.
        address: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// What is wrong with a library. The text completes "FILE: …".
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BadLibrary {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(std::io::Error),
    /// A directory, a pipe, a device.
    #[error("it is no regular file")]
    NoFile,
    /// More than anybody links.
    #[error("it is larger than {} MiB", super::library::LARGEST >> 20)]
    TooLarge,
    /// Something else.
    #[error("it is no shared object (ELF): compile with cc -shared -fPIC -o fix.so fix.c")]
    NoElf,
    /// A program.
    #[error("it is a program, and no shared object: link it with -shared, and not with -pie")]
    Program,
    /// An object file, a core.
    #[error("it is an ELF file of another kind, and no shared object: link it with -shared")]
    OtherKind,
    /// Code of another machine.
    #[error("it is for {found}, and the process runs {wanted} code")]
    Machine {
        /// Its machine.
        found: String,
        /// That of the process.
        wanted: &'static str,
    },
    /// The loader would be killed, or fail.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// All stacks of the process would be made executable for it.
    #[error("it asks for executable stacks, which the whole process would get: link it with -z noexecstack")]
    ExecutableStack,
    /// `DF_1_NOOPEN`
    #[error("it was linked not to be loaded by dlopen (-z nodlopen)")]
    NoOpen,
    /// No such symbol.
    #[error("it exports no {0}{1}: is it static, hidden, or mangled (extern \"C\")?")]
    NoSymbol(String, Nearest),
    /// Another kind of symbol.
    #[error("{0} is no function")]
    NoFunction(String),
    /// A function that chooses one.
    #[error("{0} is an ifunc, which chooses a function when it is loaded: name that one")]
    Ifunc(String),
    /// Another kind of symbol.
    #[error(
        "{0} is no variable of the size of a pointer: it is to be one to the function, such as long (*{0})(long);"
    )]
    NoPointer(String),
}

/// Names that are close.
#[derive(Debug, Default)]
pub struct Nearest(pub(super) Vec<String>);

impl std::fmt::Display for Nearest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_slice() {
            [] => Ok(()),
            names => write!(f, "; did you mean {}", names.join(" or ")),
        }
    }
}

fn what(functions: Option<usize>) -> String {
    match functions {
        None => "no whole function".to_owned(),
        Some(number) => format!("{} functions", count(number as u64)),
    }
}

fn itself(is_itself: bool) -> &'static str {
    if is_itself {
        "is the very function that is to be replaced"
    } else {
        "is patched by another tool or probe"
    }
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

fn reasons(passed: &[(Passed, u64)]) -> String {
    let mut passed = passed.to_vec();
    passed.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let told: Vec<String> =
        passed.iter().map(|(why, number)| format!("{why} ({})", count(*number))).collect();
    if told.is_empty() { "none was looked at in time".to_owned() } else { told.join("; ") }
}
