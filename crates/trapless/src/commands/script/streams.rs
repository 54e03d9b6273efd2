//! Where a script prints.
//!
//! What it says goes to standard output or a file, errors to standard error. A reader of both in one sees them in the order in which they
//! were said: what is kept of the one is written before the other.

use crate::cli::script::{Buffering, Text};
use crate::error::Error;
use crate::report::Output;
use std::cell::RefCell;
use std::io::{self, Write};

/// The two streams of a run.
pub(super) struct Streams {
    out: RefCell<Output>,
    buffering: Buffering,
    destination: String,
}

impl Streams {
    /// Those that were asked for.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn open(text: &Text) -> Result<Self, Error> {
        let destination = match &text.output.file {
            Some(file) => file.display().to_string(),
            None => "standard output".to_owned(),
        };
        let opened = match &text.output.file {
            Some(file) => Output::file(file),
            None => Output::stdout(),
        };
        let out = opened.map_err(|error| Error::output(&destination, error))?;
        Ok(Self { out: RefCell::new(out), buffering: text.buffering, destination })
    }

    /// What is printed on, both in one order.
    pub fn both(&self) -> (impl Write + use<'_>, impl Write + use<'_>) {
        (Out(self), Err(self))
    }

    /// What came of printing: what is kept of it is written, unless there is to be much of it first.
    ///
    /// # Errors
    /// Those of the output.
    pub fn printed<T>(&self, done: io::Result<T>) -> Result<T, Error> {
        let done = done.and_then(|done| match self.buffering {
            Buffering::Full => Ok(done),
            Buffering::Line | Buffering::Never => self.out.borrow_mut().flush().map(|()| done),
        });
        done.map_err(|error| self.error(error))
    }

    /// Writes what was kept.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&self) -> Result<(), Error> {
        self.out.borrow_mut().flush().map_err(|error| self.error(error))
    }

    fn error(&self, error: io::Error) -> Error {
        Error::output(&self.destination, error)
    }
}

struct Out<'s>(&'s Streams);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = self.0.out.borrow_mut();
        let written = out.write(bytes)?;
        if self.0.buffering == Buffering::Never {
            out.flush()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.out.borrow_mut().flush()
    }
}

struct Err<'s>(&'s Streams);

impl Write for Err<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.out.borrow_mut().flush()?;
        // Nobody is told that standard error is closed.
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
