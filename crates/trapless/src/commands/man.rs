//! `trapless man`: manual pages from the definition of the command line.

use crate::cli::Cli;
use crate::error::Error;
use clap::CommandFactory;
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;

/// Writes the page `trapless(1)`.
///
/// # Errors
/// Those of the output.
pub(super) fn page(output: &mut dyn Write) -> Result<u8, Error> {
    let page = Man::new(Cli::command());
    page.render(output).and_then(|()| output.flush()).map_err(|e| Error::output("standard output", e))?;
    Ok(0)
}

/// Writes `trapless(1)` and a page per verb into `directory`, which is created if it is missing.
///
/// # Errors
/// Those of creating the directory and of writing to it.
pub(super) fn pages(directory: &Path) -> Result<u8, Error> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
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
    }
}
