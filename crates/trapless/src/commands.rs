//! From a validated command to what does it.

mod completions;
mod man;

use crate::cli::validated::Command;
use crate::error::Error;

/// Does what was asked and returns the process's exit code, 0 or that of a launched command.
///
/// # Errors
/// What went wrong, to be shown once and turned into an exit code by [`Error::exit_code`].
pub fn run(command: Command) -> Result<u8, Error> {
    match command {
        Command::Completions(shell) => completions::write(shell, &mut std::io::stdout().lock()),
        Command::Man(None) => man::page(&mut std::io::stdout().lock()),
        Command::Man(Some(directory)) => man::pages(&directory),
        // Wired to the engine with the session.
        Command::Run(_)
        | Command::List(_)
        | Command::Explain(_)
        | Command::Status(_)
        | Command::Detach(_)
        | Command::Bench(_) => Err(Error::Other("this build has no engine".into())),
    }
}
