//! Why an attach point has no meaning, or none in user space.

use crate::syntax::number::NumberError;

/// Why an attach point has no meaning. The texts are bpftrace's where it has them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Nothing before the first colon.
    #[error("No attach points for probe")]
    Empty,
    /// No provider of that name.
    #[error("Invalid probe type: {0}")]
    Provider(String),
    /// No provider that fits the pattern.
    #[error("No probe type matched for {0}")]
    NoProviderFits(String),
    /// Too many parts, or too few.
    #[error("{provider} probe type requires {expected} arguments, found {found}")]
    Count {
        /// The provider's full name.
        provider: &'static str,
        /// How many it takes.
        expected: &'static str,
        /// How many there are.
        found: usize,
    },
    /// `$` before something that is no number from 1.
    #[error(
        "invalid trailing character for positional param: {0}. Try quoting this entire part if this is intentional \
         e.g. \"${0}\"."
    )]
    ParameterName(char),
    /// `$` before a number that is too large.
    #[error("positional parameter is not valid: {0}")]
    ParameterNumber(NumberError),
    /// A quote without its end.
    #[error("unterminated quote")]
    Quote,
    /// `+offset` where a function returns.
    #[error("Offset not allowed")]
    OffsetNotAllowed,
    /// `f+1+2`.
    #[error("Cannot take more than one offset")]
    TwoOffsets,
    /// What is behind the `+` is no number.
    #[error("Invalid offset: {0}")]
    Offset(NumberError),
    /// `u:file:` without a place.
    #[error("{0} should be attached to a function, address, or source file and line (using DWARF)")]
    NoPlace(&'static str),
    /// A target is needed and there is none.
    #[error("{0} should have a target")]
    NoTarget(&'static str),
    /// A prefix of the function that is no language.
    #[error("unsupported language type: {0}")]
    Language(String),
    /// An address in several files.
    #[error("Cannot use wildcards with absolute address")]
    AddressInPattern,
    /// A line in several files.
    #[error("Cannot use wildcards with source code location")]
    LineInPattern,
    /// A line where a function returns.
    #[error("Source code location not allowed")]
    LineNotAllowed,
    /// `@` without file and line.
    #[error("Invalid uprobe arguments, expected format: uprobe:TARGET@FILE:LINE[:COL]")]
    LineForm,
    /// The line is no number.
    #[error("Invalid line number: {0}")]
    Line(NumberError),
    /// The column is no number.
    #[error("Invalid column number: {0}")]
    Column(NumberError),
    /// A static probe without its name.
    #[error("usdt probe must have a target function or wildcard")]
    NoStaticProbe,
    /// A static probe without a file or process.
    #[error(
        "usdt probe must specify at least path or pid to probe. To target all paths/pids set the path to '*'."
    )]
    NoStaticTarget,
    /// The number of a probe of time is none.
    #[error("Invalid rate of {provider} probe: {error}")]
    Rate {
        /// The provider.
        provider: &'static str,
        /// Why it is no number.
        error: NumberError,
    },
    /// A rate without a unit is nanoseconds, which are too short below 1,000.
    #[error("Invalid rate of {provider} probe. Minimum is 1000 or 1us. Found: {found} nanoseconds")]
    TooOften {
        /// The provider.
        provider: &'static str,
        /// The nanoseconds.
        found: u64,
    },
    /// The unit of a probe of time is none.
    #[error("{0} is not an accepted unit of time")]
    Unit(String),
    /// Never, or later than 64 bits of nanoseconds can tell.
    #[error("{0} frequency should be a positive integer")]
    Frequency(&'static str),
    /// A probe that must have a name has none.
    #[error("{0} probes must have a name")]
    NoName(&'static str),
    /// A signal that the tool cannot catch for a script.
    #[error("{0} is not a supported signal")]
    Signal(String),
    /// Something of the tool's own that is no trigger.
    #[error("{0} is not a supported trigger")]
    Trigger(String),
}

/// What is said of a probe of the kernel, by its full name as in
/// [`ProbePoint::Kernel`](crate::syntax::ast::ProbePoint::Kernel).
pub fn refusal(provider: &str) -> String {
    let (what, way) = match provider {
        "kprobe" | "kretprobe" | "fentry" | "fexit" => (
            "functions of the kernel",
            "probe the program's own function with uprobe, or run the script with bpftrace",
        ),
        "tracepoint" | "rawtracepoint" => (
            "events of the kernel",
            "probe the library function that makes the system call, or run the script with bpftrace",
        ),
        "software" | "hardware" => {
            ("counters of the kernel", "sample with profile, or run the script with bpftrace")
        }
        "watchpoint" | "asyncwatchpoint" => (
            "the processor's watchpoints",
            "probe what writes there with uprobe, or run the script with bpftrace",
        ),
        _ => ("objects of the kernel", "run the script with bpftrace"),
    };
    format!("{provider} probes {what}, and this tool probes programs in user space: {way}")
}
