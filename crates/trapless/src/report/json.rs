//! `-f json`: one object per line.

use super::{Attached, Hit, Interval, Reporter, Summary};
use serde::Serialize;
use std::io::{self, Write};

/// Writes every event as a line of JSON.
pub struct JsonLines<W> {
    output: W,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Event<'a> {
    Attached(&'a Attached),
    Hit(&'a Hit),
    Interval(&'a Interval),
    Summary(&'a Summary),
}

impl<W: Write> JsonLines<W> {
    /// Lines go to `output`, which should be buffered.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    fn line(&mut self, event: &Event<'_>) -> io::Result<()> {
        crate::terminal::write_json(&mut self.output, event)?;
        self.output.write_all(b"\n")
    }
}

impl<W: Write> Reporter for JsonLines<W> {
    fn attached(&mut self, attached: &Attached) -> io::Result<()> {
        self.line(&Event::Attached(attached))?;
        self.flush()
    }

    fn hit(&mut self, hit: &Hit) -> io::Result<()> {
        self.line(&Event::Hit(hit))
    }

    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        self.line(&Event::Interval(interval))?;
        self.flush()
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.line(&Event::Summary(summary))?;
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
