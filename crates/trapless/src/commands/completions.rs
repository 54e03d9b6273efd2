//! `trapless completions SHELL`.

use crate::cli::Cli;
use crate::error::Error;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;

/// Writes the completion script for `shell`.
///
/// # Errors
/// Those of the output.
pub(super) fn write(shell: Shell, output: &mut dyn Write) -> Result<u8, Error> {
    // clap_complete panics when it cannot write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "trapless", &mut script);
    output
        .write_all(&script)
        .and_then(|()| output.flush())
        .map_err(|e| Error::output("standard output", e))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_gets_every_verb() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            write(*shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            for verb in Cli::command().get_subcommands() {
                assert!(script.contains(verb.get_name()), "{shell}: {}", verb.get_name());
            }
            // Those of a script stand without a verb.
            for option in ["program", "param", "include", "dry-run", "fmt"] {
                assert!(script.contains(option), "{shell}: --{option}");
            }
        }
    }
}
