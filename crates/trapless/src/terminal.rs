//! Text on its way to a terminal.
//!
//! Names of processes, threads, files and functions are whatever somebody wrote into a file or gave to the kernel, and a terminal
//! obeys escape sequences. So nothing of a name reaches standard output or standard error but through here.

use std::fmt::Display;
use std::io::{self, Write};

/// `text` without characters that a terminal would act on, in one line.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Whether a character only shows itself: it is no control character of any kind, ends no line, and does not turn the
/// direction of what follows.
fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes a line for people to standard error. Where that is closed, nobody looks.
pub fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "trapless: {}", printable(&what.to_string()));
}

/// Writes lines for people to standard error, of which only the user's own command line tells.
pub fn tell_lines(what: impl Display) {
    let what = what.to_string();
    let lines: Vec<String> = what.lines().map(printable).collect();
    let _ = writeln!(io::stderr(), "trapless: {}", lines.join("\n"));
}

/// Writes lines to standard error as they are, without our name ahead. Nothing in them acts on a terminal.
pub(crate) fn tell_plainly(lines: &str) {
    let shown: String = lines
        .chars()
        .map(|c| if is_harmless(c) || matches!(c, '\n' | '\t') { c } else { char::REPLACEMENT_CHARACTER })
        .collect();
    let _ = io::stderr().write_all(shown.as_bytes());
}

/// Writes a value as JSON, in whose strings everything that is not harmless is escaped.
///
/// # Errors
/// Those of `output`.
pub(crate) fn write_json(output: &mut dyn Write, value: &impl serde::Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(output, Escaping);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// As compact as usual. The usual one escapes only what JSON forbids, and lets the eight-bit controls pass.
struct Escaping;

impl serde_json::ser::Formatter for Escaping {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, output: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !is_harmless(*c)) {
            output.write_all(&rest.as_bytes()[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(output, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        output.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "z\u{1b}[31mX\u{7}\u{7f}\u{9b}2J\u{202e}ä😀\n\"";

    #[test]
    fn nothing_that_a_terminal_acts_on_passes() {
        assert_eq!(printable(NAME), "z�[31mX���2J�ä😀�\"");
        assert_eq!(printable("operator<=>(std::string, 'λ')"), "operator<=>(std::string, 'λ')");
    }

    #[test]
    fn json_stays_the_same_value() {
        let mut json = Vec::new();
        write_json(&mut json, &[NAME, "plain"]).unwrap();
        let text = String::from_utf8(json).unwrap();
        assert!(text.chars().all(is_harmless), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [NAME, "plain"]);
    }
}
