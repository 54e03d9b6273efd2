//! Scripts by trapless's own command line: `trapless FILE`, `trapless -e PROGRAM`.

use super::flags::{FollowFlags, MechanismFlag, OutputFlags, RiskFlags, TargetFlags};
use super::mechanisms;
use super::script::{Buffering, Dialect, Script, Source, Task, Text, Warnings};
use super::targets::processes_named;
use super::validated::{check_traps, output};
use crate::error::Error;
use clap::{Args, CommandFactory, ValueHint};
use std::path::PathBuf;
use trapless_session::select::nearest;

/// A script and how it is run, literally as typed.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Script")]
pub struct ScriptFlags {
    /// Run this script, in bpftrace's language; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// Its positional parameters: $1, $2, …
    #[arg(value_name = "PARAMETER", requires = "file")]
    pub parameters: Vec<String>,

    /// Run this program, in bpftrace's language. Parameters may follow
    #[arg(short = 'e', long = "program", value_name = "PROGRAM")]
    pub program: Option<String>,

    /// A named parameter of the script, which it reads with getopt("NAME"). May be given several times
    #[arg(short = 'P', long = "param", value_name = "NAME[=VALUE]")]
    pub named: Vec<String>,

    /// Allow what changes the target or runs commands: signal(), delay(), override(), setarg(), seterrno(), system()
    #[arg(long = "unsafe")]
    pub is_unsafe: bool,

    /// Search headers and imports in this directory, too
    #[arg(short = 'I', value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub include_directories: Vec<PathBuf>,

    /// Read this header ahead of the script
    #[arg(long = "include", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub include_files: Vec<PathBuf>,

    /// Check the script and arm its probes, and end
    #[arg(long)]
    pub dry_run: bool,

    /// Print the script in the usual form, and end
    #[arg(long = "fmt", conflicts_with = "dry_run")]
    pub reformat: bool,

    /// Say nothing but results
    #[arg(short, long)]
    pub quiet: bool,

    /// Say more of what is done
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Also probe sites that need a trap, where the script is interpreted. The tracer then stays attached
    #[arg(long)]
    pub allow_trap: bool,

    /// Use only these mechanisms, the best that a site allows of them
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub mechanism: Vec<MechanismFlag>,

    /// Target.
    #[command(flatten)]
    pub target: TargetFlags,
    /// Children.
    #[command(flatten)]
    pub follow: FollowFlags,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// The script that `flags` ask for.
///
/// # Errors
/// They ask for none, contradict each other, or name a file that is not there.
pub(super) fn script(flags: ScriptFlags) -> Result<Script, Error> {
    let mechanisms = mechanisms::allowed(&flags.mechanism, flags.allow_trap);
    let target = processes_named(flags.target)?;
    if let Some(target) = &target {
        check_traps(&mechanisms, flags.follow.follow, target)?;
    }
    let mut positional = flags.parameters;
    let source = match (flags.program, flags.file) {
        (None, None) => {
            let text = "no command and no script; trapless --help shows what there is";
            return Err(Error::Usage(text.to_owned()));
        }
        (Some(program), first) => {
            // With -e the first word is a parameter.
            let first = first.map(|word| word.to_string_lossy().into_owned());
            positional.splice(0..0, first);
            Source::Argument(program)
        }
        (None, Some(file)) if file.as_os_str() == "-" => Source::Stdin,
        (None, Some(file)) => {
            check(&file)?;
            Source::File(file)
        }
    };
    let task = match (flags.reformat, flags.dry_run) {
        (true, _) => Task::Format,
        (false, true) => Task::DryRun,
        (false, false) => Task::Run,
    };
    Ok(Script::Text(Box::new(Text {
        source,
        task,
        positional,
        named: flags.named,
        target,
        follow: flags.follow.follow,
        include_directories: flags.include_directories,
        include_files: flags.include_files,
        debug_directories: Vec::new(),
        is_unsafe: flags.is_unsafe,
        warnings: Warnings::Usual,
        quiet: flags.quiet,
        verbose: flags.verbose,
        stages: Vec::new(),
        only: None,
        output: output(flags.output),
        buffering: Buffering::Line,
        allow_seccomp: flags.risk.allow_seccomp,
        mechanisms,
        dialect: Dialect::Own,
    })))
}

/// Fails where a word is no file, and perhaps a verb that is written wrong.
fn check(file: &std::path::Path) -> Result<(), Error> {
    if file.exists() {
        return Ok(());
    }
    let word = file.to_string_lossy();
    let command = super::Cli::command();
    let verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let near = nearest(&word, verbs.iter().copied());
    let hint = match near.first() {
        Some(verb) => format!("did you mean: trapless {verb}?"),
        None => "trapless --help shows the commands".to_owned(),
    };
    Err(Error::Usage(format!("'{word}' is no command, and no script of that name is there; {hint}")))
}
