//! The command line.

use clap::Parser;
use std::process::ExitCode;
use trapless::cli::{Cli, unknown, validated::Command};
use trapless::commands;
use trapless_bench::{child, target};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|verb| verb == target::CHILD_VERB) {
        // Not for people, so neither in the help nor in completions.
        return child::serve().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let Some(message) = unknown::message(&error) else { error.exit() };
            trapless::terminal::tell(message);
            return 2.into();
        }
    };
    match Command::try_from(cli.verb).and_then(commands::run) {
        Ok(code) => code.into(),
        Err(error) => {
            error.tell();
            error.exit_code().into()
        }
    }
}
