//! From a validated command to what does it.

mod bench;
mod completions;
mod coverage;
mod detach;
mod explain;
mod list;
mod man;
mod registers;
mod replace;
mod run;
mod script;
mod signals;
mod sites;
mod status;
mod typed;
mod wake;

use crate::cli::validated::Command;
use crate::error::Error;
use crate::terminal::tell;
use trapless_process::Process;

/// Does what was asked and returns the process's exit code, 0 or that of a launched command.
///
/// # Errors
/// What went wrong, to be shown once and turned into an exit code by `Error::exit_code`.
pub fn run(command: Command) -> Result<u8, Error> {
    match command {
        Command::Completions(shell) => completions::write(shell, &mut std::io::stdout().lock()),
        Command::Man(None) => man::page(&mut std::io::stdout().lock()),
        Command::Man(Some(directory)) => man::pages(&directory),
        Command::Script(script) => script::run(script),
        Command::Run(command) => run::run(&command),
        Command::Typed(command) => typed::run(*command),
        Command::Quick(command, asked) => script::quick(*command, &asked),
        Command::Replace(command) => replace::run(&command),
        Command::List(listing) => list::run(&listing),
        Command::Explain(listing) => explain::run(&listing),
        Command::Status(processes) => status::run(&processes),
        Command::Detach(processes) => detach::run(&processes),
        Command::Bench(choice) => bench::run(&choice),
    }
}

/// How targets are stopped.
fn stop_options(allow_seccomp: bool) -> trapless_process::StopOptions {
    let mut options = trapless_process::StopOptions::default();
    options.allow_seccomp = allow_seccomp;
    options
}

/// Says which memory of a process bears our name and is not worked on.
fn note_disbelieved(process: &Process) -> Result<(), Error> {
    for (at, why) in trapless_engine::find_disbelieved(process).map_err(Error::other)? {
        tell(format_args!("process {}: the memory at {at} is left alone: {why}", process.pid()));
    }
    Ok(())
}
