//! A script to run, as the program works with it.
//!
//! Two command lines lead here: trapless's own ([`super::scripted`]), and bpftrace's ([`super::bpftrace`]), where the program is called by
//! that name.

use crate::cli::validated::{OutputOptions, Target};
use std::path::PathBuf;
use trapless_isa::Mechanism;

/// What is asked for.
#[derive(Debug)]
pub enum Script {
    /// To run it, or what else is done with a text.
    Text(Box<Text>),
    /// To list probes that match.
    Search(Search),
    /// To say what there is on this machine.
    Info,
    /// Text for standard output, and no work: help, a version.
    Say(String),
}

/// A script, and what is done with it.
#[derive(Debug)]
pub struct Text {
    /// Where it comes from.
    pub source: Source,
    /// What is done with it.
    pub task: Task,
    /// Positional parameters, `$1` and so on.
    pub positional: Vec<String>,
    /// Named parameters, `NAME` or `NAME=VALUE`.
    pub named: Vec<String>,
    /// In which processes its probes are armed; `None`: in whoever runs the files that they name.
    pub target: Option<Target>,
    /// Whether what these create is probed, too.
    pub follow: bool,
    /// Directories in which headers and imports are searched.
    pub include_directories: Vec<PathBuf>,
    /// Headers that are read ahead of the script.
    pub include_files: Vec<PathBuf>,
    /// Directories in which debug information is searched.
    pub debug_directories: Vec<PathBuf>,
    /// Whether it may run commands and change the target.
    pub is_unsafe: bool,
    /// What is said of things that go wrong at hits.
    pub warnings: Warnings,
    /// Whether nothing is said but results.
    pub quiet: bool,
    /// Whether more is said.
    pub verbose: bool,
    /// Which stages of the work are shown.
    pub stages: Vec<Stage>,
    /// Of tests and benchmarks, which are run: a regular expression.
    pub only: Option<String>,
    /// Where results go.
    pub output: OutputOptions,
    /// When standard output is written.
    pub buffering: Buffering,
    /// Whether a seccomp filter may be risked.
    pub allow_seccomp: bool,
    /// The mechanisms that its probes may use, best first.
    pub mechanisms: Vec<Mechanism>,
    /// Whose manners it has.
    pub dialect: Dialect,
}

/// Whose manners a run of a script has: how it says what is wrong with a command line, and what its exit codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// trapless's own.
    Own,
    /// bpftrace's.
    Bpftrace,
}

impl Dialect {
    /// The exit code where a script is wrong.
    pub fn failure(self) -> u8 {
        match self {
            Dialect::Own => 2,
            Dialect::Bpftrace => 1,
        }
    }
}

/// Where a script comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Argument(String),
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

/// What is done with a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// It is run.
    Run,
    /// All is done but to wait for hits.
    DryRun,
    /// It is parsed and printed in the usual form.
    Format,
    /// Its probes are listed.
    List,
    /// Its tests are run.
    Test,
    /// Its benchmarks are run.
    Bench,
    /// It is compiled, and nothing is attached.
    Compile,
}

/// What is said of things that go wrong at hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Warnings {
    /// Nothing.
    Off,
    /// What the script could not mean.
    #[default]
    Usual,
    /// Reads that fail and keys that are not there, too.
    All,
}

/// When standard output is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffering {
    /// After each line.
    #[default]
    Line,
    /// When there is much.
    Full,
    /// At once.
    Never,
}

/// A stage of the work that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The tree.
    Ast,
    /// The types.
    Types,
    /// What it is lowered to.
    Codegen,
    /// Native code.
    Disassembly,
}

/// Probes to list.
#[derive(Debug)]
pub struct Search {
    /// A pattern, or a program's path.
    pub pattern: String,
    /// Only what this process has.
    pub pid: Option<i32>,
    /// Whether arguments are shown.
    pub verbose: bool,
    /// Directories in which debug information is searched.
    pub debug_directories: Vec<PathBuf>,
    /// Where results go.
    pub output: OutputOptions,
}
