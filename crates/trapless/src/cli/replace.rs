//! `replace`: which function is called instead of which.

use super::flags::{OutputFlags, RiskFlags};
use super::validated::{OutputOptions, output};
use super::values;
use crate::error::Error;
use crate::spec::{ProbeSpec, Syntax};
use clap::Args;
use std::time::Duration;

/// Flags of `replace`.
#[derive(Args, Debug)]
pub struct ReplaceFlags {
    /// The function that is replaced: MODULE:FUNCTION
    #[arg(value_name = "FUNCTION", help_heading = "Replacement")]
    pub function: String,

    /// The shared library to be loaded, and the function of it that is called instead
    #[arg(long, value_name = "FILE:FUNCTION", help_heading = "Replacement")]
    pub with: String,

    /// A pointer that the library exports, such as long (*slow_original)(long): it leads to what runs the original
    #[arg(long, value_name = "SYMBOL", help_heading = "Replacement")]
    pub original: Option<String>,

    /// How long a call of the function is waited for in which the library can be loaded
    #[arg(long, value_name = "SECONDS", value_parser = values::time, default_value = "10", allow_negative_numbers = true, help_heading = "Replacement")]
    pub wait: Duration,

    /// Look whether it can be done, and change nothing
    #[arg(long, help_heading = "Replacement")]
    pub dry_run: bool,

    /// In this running process
    #[arg(short, long, value_name = "PID", value_parser = values::pid, allow_negative_numbers = true, help_heading = "Target")]
    pub pid: i32,

    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,

    /// Take it back after this time; otherwise at Ctrl-C
    #[arg(short, long, value_name = "SECONDS", value_parser = values::time, allow_negative_numbers = true, help_heading = "Run")]
    pub duration: Option<Duration>,

    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// A function that is to be replaced.
#[derive(Debug)]
pub struct Replace {
    /// In this process.
    pub pid: i32,
    /// Which function.
    pub function: ProbeSpec,
    /// By which: `FILE:FUNCTION`.
    pub with: String,
    /// The library's pointer to the original.
    pub original: Option<String>,
    /// How long a call is waited for.
    pub wait: Duration,
    /// For how long; `None`: until Ctrl-C.
    pub duration: Option<Duration>,
    /// Whether nothing is changed.
    pub dry_run: bool,
    /// Whether a seccomp filter may be risked.
    pub allow_seccomp: bool,
    /// Where results go.
    pub output: OutputOptions,
}

impl TryFrom<ReplaceFlags> for Replace {
    type Error = Error;

    fn try_from(flags: ReplaceFlags) -> Result<Self, Error> {
        Ok(Self {
            pid: flags.pid,
            function: ProbeSpec::parse(&flags.function, Syntax::Glob)?,
            with: flags.with,
            original: flags.original,
            wait: flags.wait,
            duration: flags.duration,
            dry_run: flags.dry_run,
            allow_seccomp: flags.risk.allow_seccomp,
            output: output(flags.output),
        })
    }
}
