//! What is told beside the script's own messages: what is attached, what was lost, what was ended.

use super::{Layout, Printer, Streams, error, json};
use crate::ir::MapId;
use crate::message::ErrorKind;
use std::io;

impl Printer {
    /// Prints how many probes are attached.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn attached(&mut self, probes: u64, streams: &mut Streams<'_>) -> io::Result<()> {
        match self.options.layout {
            Layout::Text => {
                let end = if probes == 1 { "" } else { "s" };
                writeln!(streams.err, "Attached {probes} probe{end}")
            }
            Layout::Json => writeln!(
                streams.out,
                r#"{{"type": "attached_probes", "count": {probes}, "data": {{"probes": {probes}}}}}"#
            ),
        }
    }

    /// Prints how many messages were lost since this was last told.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn lost(&mut self, events: u64, streams: &mut Streams<'_>) -> io::Result<()> {
        match self.options.layout {
            Layout::Text => writeln!(streams.err, "Lost {events} events"),
            Layout::Json => writeln!(
                streams.out,
                r#"{{"type": "lost_events", "count": {events}, "data": {{"events": {events}}}}}"#
            ),
        }
    }

    /// Prints how many updates of a map were dropped because it was full, beyond those that the script told itself.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn dropped(&mut self, map: MapId, updates: u64, streams: &mut Streams<'_>) -> io::Result<()> {
        let name = self.messages.maps.get(map.0 as usize).map_or("@", |map| &map.name);
        self.warning(&error::dropped(name, updates), streams)
    }

    /// Prints that a run of a probe was ended, since its loops went round more often than they may.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn out_of_fuel(&mut self, probe: &str, streams: &mut Streams<'_>) -> io::Result<()> {
        let sentence = error::sentence(ErrorKind::Fuel);
        self.warning(&format!("{probe}: {sentence}"), streams)
    }

    /// A warning that is about no place.
    fn warning(&self, sentence: &str, streams: &mut Streams<'_>) -> io::Result<()> {
        match self.options.layout {
            Layout::Text => writeln!(streams.err, "WARNING: {sentence}"),
            Layout::Json => {
                let mut out = Vec::new();
                out.extend(br#"{"type": "runtime_error", "msg": "#);
                json::write_string(sentence.as_bytes(), &mut out);
                out.extend(b"}\n");
                streams.out.write_all(&out)
            }
        }
    }
}
