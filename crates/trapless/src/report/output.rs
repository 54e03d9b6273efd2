//! Where reports go: standard output or a file, buffered.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

/// A buffered destination that knows whether a person is looking.
pub struct Output {
    writer: BufWriter<Box<dyn Write + Send>>,
    terminal: bool,
}

impl Output {
    /// Standard output.
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { writer: BufWriter::new(Box::new(stdout)), terminal }
    }

    /// A file, created or emptied.
    ///
    /// # Errors
    /// Those of opening the file.
    pub fn file(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let terminal = file.is_terminal();
        Ok(Self { writer: BufWriter::new(Box::new(file)), terminal })
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
