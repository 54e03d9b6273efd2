//! From output flags to the reporter they ask for.

use super::flags::ColorFlag;
use super::validated::{OutputOptions, Rows};
use crate::error::Error;
use crate::report::{
    JsonLines, Output, Reporter, Row, Running, Text, TextOptions, View, json_rows, json_rows_after, text_rows,
};
use std::io;
use std::sync::Arc;

/// A terminal that does not tell its width is this wide.
const USUAL_WIDTH: usize = 80;

impl OutputOptions {
    /// Opens the output.
    ///
    /// # Errors
    /// [`Error::Output`] when the file cannot be created.
    pub fn open(&self) -> Result<Output, Error> {
        match &self.file {
            Some(path) => Output::file(path).map_err(|e| self.error(e)),
            None => Output::stdout().map_err(|e| self.error(e)),
        }
    }

    /// The error for `source`, which this output answered with.
    pub fn error(&self, source: io::Error) -> Error {
        let destination = self.file.as_ref().map(|path| path.display().to_string());
        Error::output(destination.unwrap_or_else(|| "standard output".to_owned()), source)
    }

    /// Characters per line, for a table written to `output`. `None` where it is no terminal: whoever processes the
    /// text wants whole names.
    pub fn width(&self, output: &Output) -> Option<usize> {
        let width = || match self.file {
            None => terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0)),
            Some(_) => None,
        };
        output.is_terminal().then(|| width().filter(|&w| w > 0).unwrap_or(USUAL_WIDTH))
    }

    /// Whether text written to `output` is colored.
    pub fn colored(&self, output: &Output) -> bool {
        let forbidden = || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        match self.color {
            ColorFlag::Always => true,
            ColorFlag::Never => false,
            ColorFlag::Auto => output.is_terminal() && !forbidden(),
        }
    }

    /// Writes a list to the output, as a table or as JSON.
    ///
    /// # Errors
    /// [`Error::Output`].
    pub fn rows<R: Row>(&self, rows: &[R]) -> Result<(), Error> {
        let mut output = self.open()?;
        let width = self.width(&output);
        let written =
            if self.json { json_rows(&mut output, rows) } else { text_rows(&mut output, rows, width) };
        written.map_err(|e| self.error(e))
    }

    /// Writes rows of two kinds. A table without rows is left out, but for the first where both are.
    ///
    /// # Errors
    /// Those of [`OutputOptions::open`], and of writing.
    pub fn rows_of_two<R: Row, S: Row>(&self, rows: &[R], more: &[S]) -> Result<(), Error> {
        let mut output = self.open()?;
        let width = self.width(&output);
        let written = match (self.json, rows.is_empty(), more.is_empty()) {
            (true, ..) => {
                json_rows(&mut output, rows).and_then(|()| json_rows_after(&mut output, more, rows.len()))
            }
            (false, _, true) => text_rows(&mut output, rows, width),
            (false, true, false) => text_rows(&mut output, more, width),
            (false, false, false) => {
                text_rows(&mut output, rows, width).and_then(|()| text_rows(&mut output, more, width))
            }
        };
        written.map_err(|e| self.error(e))
    }

    /// Opens the output and puts the asked-for reporter on it. Its writes wait for a reader while the run goes on only.
    ///
    /// # Errors
    /// Those of [`OutputOptions::open`].
    pub fn reporter(
        &self,
        view: View,
        rows: Rows,
        running: Arc<Running>,
    ) -> Result<Box<dyn Reporter + Send>, Error> {
        let mut output = self.open()?;
        output.wait_only_while(running);
        if self.json {
            return Ok(Box::new(JsonLines::new(output)));
        }
        let options = TextOptions {
            view,
            width: self.width(&output),
            color: self.colored(&output),
            sort: rows.sort,
            top: rows.top,
            all: rows.all,
            histograms: rows.histograms,
            folded: self.folded,
        };
        Ok(Box::new(Text::new(output, io::stderr(), options)))
    }
}
