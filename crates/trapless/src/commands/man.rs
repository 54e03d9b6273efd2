//! `trapless man`: manual pages from the definition of the command line.

use crate::cli::Cli;
use crate::cli::{EXAMPLES, PROBES, SCRIPTS};
use crate::error::{EXIT_CODES, Error};
use clap::CommandFactory;
use clap_mangen::Man;
use std::io::{self, Write};
use std::path::Path;

/// Writes the page `trapless(1)`.
///
/// # Errors
/// Those of the output.
pub(super) fn page(output: &mut dyn Write) -> Result<u8, Error> {
    render(output).and_then(|()| output.flush()).map_err(|e| Error::output("standard output", e))?;
    Ok(0)
}

fn render(output: &mut dyn Write) -> io::Result<()> {
    let page = Man::new(Cli::command().after_help(None::<&str>).after_long_help(None::<&str>));
    page.render(output)?;
    for block in [EXAMPLES, PROBES, SCRIPTS, EXIT_CODES] {
        let (title, lines) = block.split_once(":\n").unwrap_or((block, ""));
        // Unfilled: the lines are tables already.
        write!(output, ".SH {}\n.nf\n{}\n.fi\n", title.to_uppercase(), escape(lines))?;
    }
    Ok(())
}

/// Text as roff shows it: no line of the blocks starts with a control character, because all are indented.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Writes `trapless(1)` and a page per verb into `directory`, which is created if it is missing.
///
/// # Errors
/// Those of creating the directory and of writing to it.
pub(super) fn pages(directory: &Path) -> Result<u8, Error> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        // The page of the program itself has more sections than the definition of its flags.
        .and_then(|()| render(&mut std::fs::File::create(directory.join("trapless.1"))?))
        .map_err(|e| Error::output(directory.display().to_string(), e))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_verb_and_the_exit_codes() {
        let mut text = Vec::new();
        page(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for verb in Cli::command().get_subcommands() {
            assert!(text.contains(&format!("trapless\\-{}(1)", verb.get_name())), "{}", verb.get_name());
        }
        assert!(text.contains("127  the command was not found"));
        assert!(text.contains(".SH SCRIPTS\n") && text.contains("getopt(\"fast\")"));
    }
}
