//! `-f json`: one object per line.

use super::{Attached, CommandTotal, Hit, Interval, Reporter, Summary, Total, Tree, TreeTotal};
use serde::Serialize;
use std::io::{self, Write};

/// Version of what `-f json` prints, described by `docs/output.schema.json`. It grows where a reader could be misled; new
/// fields alone are no reason.
pub const VERSION: u32 = 1;

/// Writes every event as a line of JSON.
pub struct JsonLines<W> {
    output: W,
    begun: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Event<'a> {
    Attached(&'a Attached),
    Hit(&'a Hit),
    Interval(&'a Interval),
    Summary(&'a Summary),
    Total(&'a Total),
    Command(&'a CommandTotal),
    #[serde(rename = "total")]
    Tree(&'a TreeTotal),
}

impl<W: Write> JsonLines<W> {
    /// Lines go to `output`, which should be buffered.
    pub fn new(output: W) -> Self {
        Self { output, begun: false }
    }

    fn line(&mut self, event: &Event<'_>) -> io::Result<()> {
        if self.begun {
            crate::terminal::write_json(&mut self.output, event)?;
            return self.output.write_all(b"\n");
        }
        self.begun = true;
        self.output.write_all(first_line(event)?.as_bytes())
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

    fn interval(&mut self, intervals: &[Interval]) -> io::Result<()> {
        intervals.iter().try_for_each(|interval| self.line(&Event::Interval(interval)))?;
        self.flush()
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.line(&Event::Summary(summary))?;
        self.flush()
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.line(&Event::Total(total))?;
        self.flush()
    }

    fn tree(&mut self, tree: &Tree) -> io::Result<()> {
        tree.summaries.iter().try_for_each(|summary| self.line(&Event::Summary(summary)))?;
        tree.commands.iter().try_for_each(|command| self.line(&Event::Command(command)))?;
        self.line(&Event::Tree(&tree.total))?;
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
/// An object that comes first, as a line, with the version behind its type.
///
/// # Errors
/// Those of the object's own serialization.
pub(super) fn first_line(object: &impl Serialize) -> io::Result<String> {
    let mut text = Vec::new();
    crate::terminal::write_json(&mut text, object)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    let (kind, rest) = text.split_once(',').unwrap_or((text.trim_end_matches('}'), "}"));
    let separator = if rest == "}" { "" } else { "," };
    Ok(format!("{kind},\"version\":{VERSION}{separator}{rest}\n"))
}
