//! Groups of flags that several verbs share, literally as typed.

use super::values;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use trapless_isa::Mechanism;

/// What to probe: live processes, a command to launch, or whoever fulfils a condition.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Target")]
pub struct TargetFlags {
    /// Probe this running process. May be given several times
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::pid, value_delimiter = ',', allow_negative_numbers = true)]
    pub pids: Vec<i32>,

    /// Probe all processes of this name or pattern, and those that start later
    #[arg(short, long, value_name = "NAME")]
    pub name: Option<String>,

    /// Probe all processes of this user, by name or number, and those that start later
    #[arg(long, value_name = "USER", value_parser = values::user)]
    pub user: Option<u32>,

    /// Probe all processes in this control group and below it, and those that start later
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub cgroup: Option<String>,

    /// Launch this command, with its probes armed before its own code runs
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Whether what the target creates is probed, too.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Target")]
pub struct FollowFlags {
    /// Also probe what the target creates (fork, vfork, clone) and the programs that it runs (exec), each under its own process
    /// id, to any depth. The tracer then stays attached
    #[arg(short = 'F', long)]
    pub follow: bool,

    /// Wait for libraries that are not there yet, and for those that are unloaded and loaded again: they are probed before anything in them
    /// runs. Without this option a probe waits if its library's file is found
    #[arg(long)]
    pub pending: bool,
}

/// What a careful attach refuses.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Target")]
pub struct RiskFlags {
    /// Attach although a seccomp filter might kill the target for a system call made on its behalf. Not needed as
    /// root, which suspends the filter meanwhile
    #[arg(long)]
    pub allow_seccomp: bool,
}

/// Which functions, and how.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Probes")]
pub struct ProbeFlags {
    /// Functions: MODULE:FUNCTION, with globs on both sides, or MODULE:FILE:LINE ('trapless --help' shows all forms)
    #[arg(value_name = "PROBE")]
    pub probes: Vec<String>,

    /// Leave out functions that match: FUNCTION or MODULE:FUNCTION. May be given several times
    #[arg(short = 'x', long = "exclude", value_name = "PATTERN")]
    pub exclude: Vec<String>,

    /// Patterns are regular expressions, which match anywhere in a name unless anchored
    #[arg(short, long)]
    pub regex: bool,

    /// Also the copies of these functions that were inlined into others: their entries, as the debug information tells them
    #[arg(long)]
    pub inlines: bool,

    /// Also probe sites that need a trap, by any mechanism. The tracer then stays attached
    #[arg(long)]
    pub allow_trap: bool,

    /// Use only these mechanisms, the best that a site allows of them. For some probes only: write step:MODULE:FUNCTION
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub mechanism: Vec<MechanismFlag>,

    /// Refuse patterns that match more functions than this
    #[arg(long, value_name = "N", default_value_t = crate::MOST_SITES as u64, value_parser = values::at_least_one)]
    pub max_probes: u64,
}

/// A mechanism as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MechanismFlag {
    /// This one.
    Only(Mechanism),
    /// What is used without the option.
    Auto,
}

impl MechanismFlag {
    const ALL: [Self; Mechanism::ALL.len() + 1] = {
        let mut all = [Self::Auto; Mechanism::ALL.len() + 1];
        let mut index = 0;
        while index < Mechanism::ALL.len() {
            all[index] = Self::Only(Mechanism::ALL[index]);
            index += 1;
        }
        all
    };
}

impl ValueEnum for MechanismFlag {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Only(mechanism) => (mechanism.name(), help(*mechanism)),
            Self::Auto => (
                "auto",
                "What is used without this option: jump and short, and with --allow-trap all of them",
            ),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

fn help(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Jump => "A branch to a detour: no trap",
        Mechanism::Short => "A short branch to room that is made nearby for one to a detour: no trap",
        Mechanism::Boost => "A trap, then an out-of-line copy that jumps back",
        Mechanism::Emulate => "A trap, the instruction's effect computed",
        Mechanism::Step => "A trap, an out-of-line copy and a single step: two traps",
    }
}

/// How long.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run")]
pub struct RunFlags {
    /// End after this time; otherwise at Ctrl-C or with the target
    #[arg(short, long, value_name = "SECONDS", value_parser = values::time, allow_negative_numbers = true)]
    pub duration: Option<Duration>,

    /// Show results every so often, each time those since the last
    #[arg(short, long, value_name = "SECONDS", value_parser = values::time, allow_negative_numbers = true)]
    pub interval: Option<Duration>,

    /// End after this many hits
    #[arg(short = 'M', long, value_name = "EVENTS", value_parser = values::at_least_one)]
    pub max_events: Option<u64>,
}

/// Where results go, and in which form.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Text for people, or one JSON object per line. A launched command's own output then goes to standard error,
    /// unless -o takes the JSON elsewhere
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: FormatFlag,

    /// Write results to this file instead of standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// When to use colors. NO_COLOR in the environment means never
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub color: ColorFlag,
}

/// A format as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FormatFlag {
    /// Tables, histograms and lines
    #[default]
    Text,
    /// One object per line, the last with "type":"summary"
    Json,
    /// Of scripts: maps that are keyed by call stacks as lines for flame graphs, all else as text
    Folded,
}

/// When to color, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorFlag {
    /// On a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Which rows of a table are shown; JSON always holds all.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct TableFlags {
    /// Show only the first N rows
    #[arg(long, value_name = "N", value_parser = values::at_least_one)]
    pub top: Option<u64>,

    /// Also show probes that were never hit
    #[arg(short, long)]
    pub all: bool,
}
