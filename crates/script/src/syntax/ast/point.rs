//! Attach points: where a probe runs.
//!
//! Names and patterns are kept as written. Which files and functions they are is found when a script is
//! armed.

use crate::source::Span;

/// One attach point of a probe.
#[derive(Clone, Debug)]
pub struct AttachPoint {
    /// As written.
    pub text: String,
    /// The name in `name=provider:…`.
    pub name: Option<String>,
    /// What it is. More than one if the provider is a pattern; none if nothing fits that pattern.
    pub points: Vec<ProbePoint>,
    /// Where it stands.
    pub span: Span,
}

impl PartialEq for AttachPoint {
    fn eq(&self, other: &AttachPoint) -> bool {
        self.text == other.text
    }
}

/// What an attach point is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbePoint {
    /// `begin`: once, before anything is attached.
    Begin,
    /// `end`: once, when everything is detached.
    End,
    /// `uprobe`: when a place in a file is reached.
    Uprobe(UserPoint),
    /// `uretprobe`: when a function returns. The place has no offset and is no line.
    Uretprobe(UserPoint),
    /// `usdt`: a static probe of a file.
    Usdt {
        /// The file, or nothing for that of the given process.
        target: Option<String>,
        /// The provider of the static probe; nothing is any.
        namespace: Option<String>,
        /// The static probe.
        name: String,
    },
    /// `interval`: at regular times, once.
    Interval(Frequency),
    /// `profile`: at regular times, on each processor.
    Profile(Frequency),
    /// `self:signal:NAME`: when the tool gets a signal.
    SelfSignal(String),
    /// `test:name`.
    Test(String),
    /// `bench:name`.
    Bench(String),
    /// A provider of the kernel, by its full name.
    Kernel(&'static str),
    /// Places that were named outside of the script, by whoever put it together. No text means them.
    Chosen {
        /// Which ones: a number that only whoever chose them knows.
        number: u32,
        /// What kind of place they are.
        at: ChosenAt,
    },
}

/// What kind of place was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChosenAt {
    /// Entries of functions.
    Entry,
    /// Their returns.
    Return,
    /// Any instruction.
    Inside,
    /// Static probes.
    Usdt,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPoint {
    /// A path, the name of a library or a pattern; nothing for the file of the given process.
    pub target: Option<String>,
    /// What the function's name is to be taken for.
    pub language: Option<String>,
    /// Where in the file.
    pub place: UserPlace,
}

/// Where in a file a probe is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserPlace {
    /// `name+offset`, where `name` may be a pattern.
    Function {
        /// The function.
        name: String,
        /// Bytes behind its start.
        offset: u64,
    },
    /// An address as the file counts them.
    Address(u64),
    /// `@file:line:column`.
    Line {
        /// The source file, or the end of its path.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: Option<u64>,
    },
}

/// How often a probe of time runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// `*`, for listing.
    Any,
    /// Every so many nanoseconds, at least 1.
    Every(u64),
    /// So many times a second, at least 1.
    Hertz(u64),
}
