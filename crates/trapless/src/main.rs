//! The command line.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use trapless::cli::{Cli, validated::Command};
use trapless::commands;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match Command::try_from(cli.verb).and_then(commands::run) {
        Ok(code) => code.into(),
        Err(error) => {
            if !error.is_closed_pipe() {
                // Where standard error is closed, the exit code still tells.
                let _ = writeln!(std::io::stderr(), "trapless: {error}");
            }
            error.exit_code().into()
        }
    }
}
