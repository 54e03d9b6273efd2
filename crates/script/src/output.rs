//! What a script tells, as bpftrace prints it: text, or JSON with an object a line.
//!
//! A [`Printer`] takes messages in the order in which they were emitted, and knows by [`Messages`] what each means. It asks a [`Resolver`]
//! for names and times, and writes to two [`Streams`]. Its tables of expected text come from bpftrace 0.27.

mod beside;
mod decode;
mod error;
mod folded;
mod histogram;
mod json;
mod map;
pub mod printf;
mod resolve;
mod series;
mod shown;
mod snapshot;
mod suite;
mod text;
mod time;
mod value;

pub use resolve::{Ran, Resolver, Symbol, Zone};
pub use shown::{folded, frames, shown};
pub use snapshot::{Bucket, Key, MapShown, Shown};
pub use suite::{Benchmark, Tested};
pub use value::Value;

use crate::interp::Maps;
use crate::ir::{MapId, MessageId};
use crate::message::{Channel, Format, Message, Messages};
use decode::Decoder;
use error::Severity;
use map::{Cell, Cells, Kind};
use std::io::{self, Write};

/// How it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// In which form.
    pub layout: Layout,
    /// What is put behind strings that were cut.
    pub trailer: String,
    /// How many bytes of a file `cat` prints at most.
    pub most_cat_bytes: usize,
    /// Whether `warnf` says anything.
    pub has_warnings: bool,
    /// Whether maps are printed at the end.
    pub prints_maps: bool,
    /// Whether `system` may run commands.
    pub is_unsafe: bool,
    /// Whether maps that are keyed by stacks are printed as lines for flame graphs, where the layout is [`Layout::Text`].
    pub is_folded: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            layout: Layout::Text,
            trailer: "..".into(),
            most_cat_bytes: 10240,
            has_warnings: true,
            prints_maps: true,
            is_unsafe: false,
            is_folded: false,
        }
    }
}

/// In which form a script's messages are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Where it is printed.
pub struct Streams<'a> {
    /// What the script says.
    pub out: &'a mut dyn Write,
    /// Errors and warnings.
    pub err: &'a mut dyn Write,
}

/// What a message asks of whoever runs the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// To end with this exit code.
    Exit(i32),
    /// To take this as the result of the probe that is running.
    Result(i64),
}

/// Prints what a script tells.
#[derive(Clone, Debug)]
pub struct Printer {
    messages: Messages,
    /// The format of each message that has one, taken apart.
    formats: Vec<printf::Parsed>,
    options: Options,
    /// How many errors were told.
    errors: u64,
}

impl Printer {
    /// A printer for the messages of a script.
    pub fn new(messages: Messages, options: Options) -> Printer {
        let formats = messages
            .messages
            .iter()
            .map(|message| match message {
                Message::Print(_, format) | Message::Cat(format) | Message::System(format) => {
                    printf::Parsed::new(&format.format)
                }
                _ => printf::Parsed::default(),
            })
            .collect();
        Printer { messages, formats, options, errors: 0 }
    }

    /// How it prints.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many errors it printed so far: by `errorf`, and what went wrong where the script could not help it.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Prints in another form from now on, and gives the one that it was.
    pub fn set_layout(&mut self, layout: Layout) -> Layout {
        std::mem::replace(&mut self.options.layout, layout)
    }

    /// Prints a message, of which these are the parts. Maps that it shows are shown as they are now.
    ///
    /// Parts that are missing or too short count as zeros: what comes out of memory shared with a target may be anything.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn message(
        &mut self,
        id: MessageId,
        parts: &[&[u8]],
        maps: &mut dyn Maps,
        resolver: &mut dyn Resolver,
        streams: &mut Streams<'_>,
    ) -> io::Result<Effect> {
        let index = id.0 as usize;
        let (Some(message), Some(parsed)) = (self.messages.messages.get(index), self.formats.get(index))
        else {
            return Ok(Effect::None);
        };
        if matches!(message, Message::Print(Channel::Error(_), _) | Message::Error(..)) {
            self.errors += 1;
        }
        let part = |index: usize| parts.get(index).copied().unwrap_or_default();
        let word = |index: usize| {
            let bytes = part(index).get(..8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let mut decoder = Decoder { resolver, trailer: &self.options.trailer, divisor: 1 };
        let formatted = |format: &Format, decoder: &mut Decoder<'_>| {
            let values = format.arguments.iter().enumerate();
            let values: Vec<Value> = values.map(|(index, shape)| decoder.value(shape, part(index))).collect();
            parsed.format(&values)
        };
        let (layout, mut out) = (self.options.layout, Vec::new());
        match message {
            Message::Print(channel, format) => {
                let text = formatted(format, &mut decoder);
                return self.print(channel, &text, streams).map(|()| Effect::None);
            }
            Message::Cat(format) => {
                let path = formatted(format, &mut decoder);
                match decoder.resolver.file(&path, self.options.most_cat_bytes) {
                    Ok(text) if layout == Layout::Text => out = text,
                    Ok(text) => json::write_text_line("cat", &text, &mut out),
                    Err(error) => {
                        let path = String::from_utf8_lossy(&path);
                        let why = system_text(&error);
                        return writeln!(streams.err, "ERROR: failed to open file '{path}' ({why})")
                            .map(|()| Effect::None);
                    }
                }
            }
            Message::System(format) => {
                let command = formatted(format, &mut decoder);
                return self.system(&command, decoder.resolver, streams).map(|()| Effect::None);
            }
            Message::Join { between } => {
                let count = usize::try_from(word(0)).unwrap_or(usize::MAX);
                let words = parts.iter().skip(1).take(count).map(|word| {
                    let end = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
                    &word[..end]
                });
                // An empty string ends them.
                let words: Vec<&[u8]> = words.take_while(|word| !word.is_empty()).collect();
                self.line("join", &words.join(between.as_bytes()), &mut out);
            }
            Message::Time { format } => {
                let now = decoder.resolver.now();
                let text = time::format(format, now, decoder.resolver);
                match layout {
                    Layout::Text => out.extend(text.bytes()),
                    Layout::Json => json::write_text_line("time", text.as_bytes(), &mut out),
                }
            }
            Message::PrintMap(map) => {
                let top = usize::try_from(word(0)).unwrap_or(usize::MAX);
                let divisor = u32::try_from(word(1)).unwrap_or(u32::MAX);
                self.map(*map, (top, divisor), true, maps, resolver, &mut out);
            }
            Message::PrintKey(map) => {
                let Some(print) = self.messages.maps.get(map.0 as usize) else {
                    return Ok(Effect::None);
                };
                let value = part(usize::from(print.key.is_some()));
                let cell = map::cell(&print.value, value, u64::MAX, &mut decoder);
                self.value(&cell, resolver, &mut out);
            }
            Message::PrintValue(shape) => {
                let cell = Cell::Value(decoder.value(shape, part(0)));
                self.value(&cell, resolver, &mut out);
            }
            Message::Exit => return Ok(Effect::Exit(word(0) as i32)),
            Message::Result => return Ok(Effect::Result(word(0) as i64)),
            Message::Error(kind, at) => match layout {
                Layout::Text => {
                    error::write_text(*kind, at, &mut out);
                    return streams.err.write_all(&out).map(|()| Effect::None);
                }
                Layout::Json => error::write_json(*kind, at, &mut out),
            },
        }
        streams.out.write_all(&out).map(|()| Effect::None)
    }

    /// Prints what stands at the end of a script: its maps, in the order of their names.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(
        &mut self,
        maps: &mut dyn Maps,
        resolver: &mut dyn Resolver,
        streams: &mut Streams<'_>,
    ) -> io::Result<()> {
        if self.options.layout == Layout::Text {
            streams.out.write_all(b"\n\n")?;
        }
        match self.options.prints_maps {
            true => self.maps(maps, resolver, streams),
            false => Ok(()),
        }
    }

    /// Prints all maps that are printed at the end, in the order of their names.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn maps(
        &mut self,
        maps: &mut dyn Maps,
        resolver: &mut dyn Resolver,
        streams: &mut Streams<'_>,
    ) -> io::Result<()> {
        let printed = (0..).map(MapId).zip(&self.messages.maps).filter(|(_, map)| map.at_exit);
        let mut printed: Vec<(MapId, &str)> = printed.map(|(id, map)| (id, &*map.name)).collect();
        printed.sort_by_key(|(_, name)| *name);
        for (id, _) in printed {
            let mut out = Vec::new();
            self.map(id, (0, 1), false, maps, resolver, &mut out);
            streams.out.write_all(&out)?;
        }
        Ok(())
    }

    fn map(
        &self,
        id: MapId,
        (top, divisor): (usize, u32),
        shows_zero: bool,
        maps: &mut dyn Maps,
        resolver: &mut dyn Resolver,
        out: &mut Vec<u8>,
    ) {
        let Some(print) = self.messages.maps.get(id.0 as usize) else { return };
        let entries = maps.entries(id, print.value.size());
        let divisor = divisor.max(1);
        let mut decoder = Decoder { resolver, trailer: &self.options.trailer, divisor };
        if self.options.is_folded && self.options.layout == Layout::Text && folded::is_folded(print) {
            return folded::write_map(print, entries, &mut decoder, out);
        }
        let mut printed = map::prepare(print, entries, top, &mut decoder);
        let has_number = matches!(printed.kind, Kind::Values | Kind::Statistics);
        if shows_zero && has_number && printed.cells == Cells::One(None) {
            // What was asked for is shown, though there is nothing yet.
            let zeros = vec![0; print.value.size()];
            printed.cells = Cells::One(Some(map::cell(&print.value, &zeros, 0, &mut decoder)));
        }
        match self.options.layout {
            Layout::Text => text::write_map(&print.name, &printed, resolver, out),
            Layout::Json => json::write_map(&print.name, &printed, out),
        }
    }

    fn value(&self, cell: &Cell, resolver: &mut dyn Resolver, out: &mut Vec<u8>) {
        match (self.options.layout, cell) {
            (Layout::Json, _) => json::write_value_line(cell, out),
            (Layout::Text, Cell::Value(value) | Cell::Statistics(value)) => {
                value.write_text(out);
                out.push(b'\n');
            }
            (Layout::Text, Cell::Histogram(histogram)) => {
                histogram.write_text(out);
                out.push(b'\n');
            }
            (Layout::Text, Cell::Series(series)) => {
                series.write_text(out, resolver);
                out.push(b'\n');
            }
        }
    }

    fn line(&self, kind: &str, text: &[u8], out: &mut Vec<u8>) {
        match self.options.layout {
            Layout::Json => json::write_text_line(kind, text, out),
            Layout::Text => {
                out.extend(text);
                out.push(b'\n');
            }
        }
    }

    fn print(&self, channel: &Channel, text: &[u8], streams: &mut Streams<'_>) -> io::Result<()> {
        let (severity, at) = match channel {
            Channel::Out if self.options.layout == Layout::Text => return streams.out.write_all(text),
            Channel::Out => {
                let mut out = Vec::new();
                json::write_text_line("printf", text, &mut out);
                return streams.out.write_all(&out);
            }
            Channel::Warning(_) if !self.options.has_warnings => return Ok(()),
            Channel::Error(at) => (Severity::Error, at),
            Channel::Warning(at) => (Severity::Warning, at),
        };
        let mut out = Vec::new();
        match self.options.layout {
            Layout::Text => {
                error::write_told(severity, at, text, &mut out);
                streams.err.write_all(&out)
            }
            Layout::Json => {
                error::write_told_json(severity, at, text, &mut out);
                streams.out.write_all(&out)
            }
        }
    }

    fn system(
        &self,
        command: &[u8],
        resolver: &mut dyn Resolver,
        streams: &mut Streams<'_>,
    ) -> io::Result<()> {
        if !self.options.is_unsafe {
            return writeln!(
                streams.err,
                "ERROR: syscall() not allowed in safe mode. Use '--unsafe'. ({})",
                decode::error_text(1)
            );
        }
        // What was printed so far comes ahead of what the command prints elsewhere.
        streams.out.flush()?;
        match resolver.command(command) {
            Ok(Ran { printed, code: Some(0) }) => {
                let mut out = Vec::new();
                self.line("syscall", &printed, &mut out);
                streams.out.write_all(&out)
            }
            Ok(Ran { code: Some(code), .. }) => {
                writeln!(streams.err, "ERROR: command exited with code {code}")
            }
            Ok(Ran { code: None, .. }) => {
                writeln!(streams.err, "ERROR: child process did not exit normally")
            }
            Err(error) => {
                writeln!(streams.err, "ERROR: the command could not be run ({})", system_text(&error))
            }
        }
    }
}

/// An error's text in the system's words, without its number.
fn system_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => decode::error_text(number.into()),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
