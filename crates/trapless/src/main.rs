//! The command line.

use clap::Parser;
use std::process::ExitCode;
use trapless::cli::{Cli, bpftrace, unknown, validated::Command};
use trapless::commands;
use trapless_bench::{child, target};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|verb| verb == target::CHILD_VERB) {
        // Not for people, so neither in the help nor in completions.
        return child::serve().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let arguments: Vec<_> = std::env::args_os().collect();
    if arguments.first().and_then(|name| name.to_str()).is_some_and(bpftrace::is_called_so) {
        return as_bpftrace(&arguments[1..]);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let Some(message) = unknown::message(&error) else { error.exit() };
            trapless::terminal::tell(message);
            return 2.into();
        }
    };
    match Command::try_from(cli).and_then(commands::run) {
        Ok(code) => code.into(),
        Err(error) => {
            error.tell();
            error.exit_code().into()
        }
    }
}

/// Called by bpftrace's name, it takes bpftrace's command line.
fn as_bpftrace(arguments: &[std::ffi::OsString]) -> ExitCode {
    let words: Option<Vec<String>> = arguments.iter().map(|word| Some(word.to_str()?.to_owned())).collect();
    let Some(words) = words else {
        eprintln!("ERROR: USAGE: the command line is no text in UTF-8");
        return ExitCode::FAILURE;
    };
    match bpftrace::parse(&words) {
        Ok(script) => match commands::run(Command::Script(script)) {
            Ok(code) => code.into(),
            Err(error) => {
                error.tell();
                error.exit_code().into()
            }
        },
        Err(misuse) => {
            if !misuse.what.is_empty() {
                eprintln!("ERROR: {}", misuse.what);
            }
            if misuse.usage {
                eprint!("{}", bpftrace::USAGE);
            }
            ExitCode::FAILURE
        }
    }
}
