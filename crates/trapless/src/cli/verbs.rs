//! The verbs, literally as typed.

use super::flags::{FollowFlags, OutputFlags, ProbeFlags, RiskFlags, RunFlags, TableFlags, TargetFlags};
use super::inject::InjectFlags;
use super::quick::{FilterFlags, GroupFlags, Linear, Rate};
use super::replace::ReplaceFlags;
use super::values;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Count calls of functions
    Count(CountFlags),
    /// Time functions from entry to return: percentiles and histograms
    Latency(LatencyFlags),
    /// Show a line per call: time, thread, arguments, return value, duration
    Trace(TraceFlags),
    /// Show how the values of an expression are distributed, at the calls of functions or their returns
    ///
    /// The expression stands behind the probes: hist 'libc.so.6:malloc' arg0. With retval or duration in it, it is computed when functions
    /// return; else when they are called.
    #[command(override_usage = "trapless hist [OPTIONS] PROBE... EXPR [-- COMMAND...]")]
    Hist(HistFlags),
    /// Have calls fail, return something else, get other arguments or take longer: all of them, some, or each Nth
    ///
    /// Every thousandth malloc fails: inject -p PID 'libc.so.6:malloc' --return 0 --errno ENOMEM --every 1000. The calls that something was done
    /// to are counted. Programs are 64-bit ones, functions follow C's convention, and what is done is up to you: a program may not expect it.
    Inject(InjectFlags),
    /// Have a function of a library called instead of one of the process, until it is taken back
    ///
    /// The library is loaded by a thread of the process that calls the function, when nothing speaks against it: replace -p PID './app:slow'
    /// --with ./fix.so:slow_fixed. Calls of the function are led to the new one, and it is a function of the same type. Ctrl-C, --duration and
    /// 'trapless detach' take it back; the library stays loaded. Programs are 64-bit ones and dynamically linked.
    Replace(ReplaceFlags),
    /// Show what can be probed, by which mechanism, and why not by a better one
    ///
    /// In a process (-p PID), a command to launch (-- COMMAND), or files: list FILE:FUNCTION, or list FILE and then
    /// patterns of functions in it. With -p PID or a command and no probe, shows the modules there.
    List(ListVerbFlags),
    /// Show the original bytes, the displaced instructions and the detour of a site
    ///
    /// In a process (-p PID), a command to launch (-- COMMAND), or a file: explain FILE:FUNCTION.
    Explain(ListFlags),
    /// Show what is armed in a process
    Status(StatusFlags),
    /// Remove what an interrupted run left in a process
    Detach(StatusFlags),
    /// Measure the cost of a hit on this machine, beside the kernel's own probes
    Bench(BenchFlags),
    /// Write a completion script for a shell to standard output
    Completions(CompletionsFlags),
    /// Write the manual page to standard output, or all pages to a directory
    Man(ManFlags),
}

/// Flags of `count`.
#[derive(Args, Debug)]
pub struct CountFlags {
    /// Probes.
    #[command(flatten)]
    pub probes: ProbeFlags,
    /// Target.
    #[command(flatten)]
    pub target: TargetFlags,
    /// Children.
    #[command(flatten)]
    pub follow: FollowFlags,
    /// Count returns too
    #[arg(long = "return", help_heading = "Probes")]
    pub returns: bool,
    /// Filter.
    #[command(flatten)]
    pub filter: FilterFlags,
    /// Groups.
    #[command(flatten)]
    pub group: GroupFlags,
    /// A row for each call stack, of the innermost N frames: as --by ustack(N)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "127", value_parser = clap::value_parser!(u8).range(1..=127), help_heading = "Expressions")]
    pub stack: Option<u8>,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Table.
    #[command(flatten)]
    pub table: TableFlags,
    /// Order rows
    #[arg(long, value_name = "BY", value_enum, default_value_t, help_heading = "Output")]
    pub sort: CountSort,
}

/// The order of `count`'s rows, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CountSort {
    /// Most hits first
    #[default]
    Hits,
    /// By module and function
    Name,
}

/// Flags of `latency`.
#[derive(Args, Debug)]
pub struct LatencyFlags {
    /// Probes.
    #[command(flatten)]
    pub probes: ProbeFlags,
    /// Target.
    #[command(flatten)]
    pub target: TargetFlags,
    /// Children.
    #[command(flatten)]
    pub follow: FollowFlags,
    /// Filter.
    #[command(flatten)]
    pub filter: FilterFlags,
    /// Groups.
    #[command(flatten)]
    pub group: GroupFlags,
    /// Only calls that take so long, with a unit: 1ms, 20us
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds, help_heading = "Expressions")]
    pub slower: Option<u64>,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Table.
    #[command(flatten)]
    pub table: TableFlags,
    /// Order rows
    #[arg(long, value_name = "BY", value_enum, default_value_t, help_heading = "Output")]
    pub sort: LatencySort,
    /// Draw histograms of the first N rows
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Output")]
    pub histograms: u32,
}

/// The order of `latency`'s rows, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LatencySort {
    /// Longest time in all calls together first
    #[default]
    Total,
    /// Most calls first
    Hits,
    /// Highest mean first
    Avg,
    /// Highest 99th percentile first
    P99,
    /// Highest maximum first
    Max,
    /// By module and function
    Name,
}

/// Flags of `trace`.
#[derive(Args, Debug)]
pub struct TraceFlags {
    /// Probes.
    #[command(flatten)]
    pub probes: ProbeFlags,
    /// Target.
    #[command(flatten)]
    pub target: TargetFlags,
    /// Children.
    #[command(flatten)]
    pub follow: FollowFlags,
    /// Show the first N integer or pointer arguments, at most 6
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=6), help_heading = "Probes")]
    pub args: u8,
    /// Show returns, with the return value and the duration
    #[arg(long = "return", help_heading = "Probes")]
    pub returns: bool,
    /// Show arguments by name and results, as their types in the debug information say: text, structs, vectors, enums. A value whose place is
    /// not told there is ?
    #[arg(long, help_heading = "Probes")]
    pub typed: bool,
    /// Filter.
    #[command(flatten)]
    pub filter: FilterFlags,
    /// Only calls that take so long, with a unit: 1ms, 20us. Implies --return
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds, help_heading = "Expressions")]
    pub slower: Option<u64>,
    /// Show an argument by its name, or the value of an expression, and how: as str, buf(N), hex, dec or char. May be given several times
    #[arg(
        long = "arg",
        value_name = "EXPR[:FORMAT]",
        allow_hyphen_values = true,
        help_heading = "Expressions"
    )]
    pub values: Vec<String>,
    /// Show the call stack below each line, its innermost N frames
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "127", value_parser = clap::value_parser!(u8).range(1..=127), help_heading = "Expressions")]
    pub stack: Option<u8>,
    /// Show so many lines of each thread, such as 1000/s. How many were left out is told
    #[arg(long, value_name = "N/s", help_heading = "Expressions")]
    pub rate: Option<Rate>,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// Flags of `hist`.
#[derive(Args, Debug)]
pub struct HistFlags {
    /// Probes, and the expression as the last of them.
    #[command(flatten)]
    pub probes: ProbeFlags,
    /// Target.
    #[command(flatten)]
    pub target: TargetFlags,
    /// Children.
    #[command(flatten)]
    pub follow: FollowFlags,
    /// Buckets of one width from LOW to HIGH; without this option each power of two has one
    #[arg(long, value_name = "LOW,HIGH,STEP", allow_hyphen_values = true, help_heading = "Expressions")]
    pub linear: Option<Linear>,
    /// Filter.
    #[command(flatten)]
    pub filter: FilterFlags,
    /// Groups.
    #[command(flatten)]
    pub group: GroupFlags,
    /// Only calls that take so long, with a unit: 1ms, 20us
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds, help_heading = "Expressions")]
    pub slower: Option<u64>,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Table.
    #[command(flatten)]
    pub table: TableFlags,
    /// Order histograms
    #[arg(long, value_name = "BY", value_enum, default_value_t, help_heading = "Output")]
    pub sort: CountSort,
}

/// Flags of `list`.
#[derive(Args, Debug)]
pub struct ListVerbFlags {
    /// What to list.
    #[command(flatten)]
    pub list: ListFlags,
    /// Show the source lines of functions, each with the addresses at which it can be probed. The text is shown where the file is
    /// there and is the one that was compiled
    #[arg(long, help_heading = "Probes")]
    pub lines: bool,
    /// Show no sites, but of each module how many entries and instructions can be probed without a trap
    #[arg(long, help_heading = "Output", conflicts_with = "lines")]
    pub summary: bool,
}

/// Flags of `list` and `explain`.
#[derive(Args, Debug)]
pub struct ListFlags {
    /// Probes.
    #[command(flatten)]
    pub probes: ProbeFlags,
    /// Look at this running process
    #[arg(short, long, value_name = "PID", value_parser = values::pid, allow_negative_numbers = true, help_heading = "Target")]
    pub pid: Option<i32>,
    /// Look at this command, launched and ended before its own code runs
    #[arg(last = true, value_name = "COMMAND", help_heading = "Target")]
    pub command: Vec<OsString>,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// Flags of `status` and `detach`.
#[derive(Args, Debug)]
pub struct StatusFlags {
    /// The process. May be given several times
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::pid, value_delimiter = ',', required = true, allow_negative_numbers = true)]
    pub pids: Vec<i32>,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// Flags of `bench`.
#[derive(Args, Debug)]
pub struct BenchFlags {
    /// Measure only what matches these globs: 'usermode-count', 'uprobe-*'; with --script also a script's text: 'uprobe:bench:called { @ = sum(arg2); }'
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Measure what scripts cost at a hit, beside bpftrace where that is installed and allowed. A text's probes are those of
    /// the function 'called' in 'bench': arg0 is one of 4,096 keys, arg1 one of 64 texts, arg2 a number
    #[arg(long, conflicts_with_all = ["bits", "threads"])]
    pub script: bool,
    /// Rounds, taken in turn; the median is shown
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Programs to measure
    #[arg(long, value_name = "BITS", value_enum, default_value_t)]
    pub bits: BitsFlag,
    /// Highest number of threads for scaling; all cores by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// Programs that `bench` measures, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BitsFlag {
    /// 64-bit programs
    #[value(name = "64")]
    Wide,
    /// 32-bit programs
    #[value(name = "32")]
    Narrow,
    /// Both
    #[default]
    All,
}

/// Flags of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsFlags {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Flags of `man`.
#[derive(Args, Debug)]
pub struct ManFlags {
    /// Write one page per verb into this directory
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: Option<PathBuf>,
}
