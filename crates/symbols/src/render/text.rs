//! Characters between quotes.

use super::{Seen, Writer};

/// Memory is mapped in pages of this size, or of multiples of it.
const PAGE: u64 = 4096;
/// Bytes that one read of a text takes.
const STEP: u64 = 256;

impl Writer<'_, '_> {
    /// A text in memory: of a length, or up to a zero.
    pub(super) fn text_at(&mut self, address: u64, length: Option<u64>) {
        // A character of UTF-8 has up to four bytes, and escapes are longer than they.
        let most = (self.limits.characters as u64).saturating_mul(4);
        let wanted = length.unwrap_or(u64::MAX).min(most);
        let mut bytes: Vec<u8> = Vec::new();
        let mut is_whole = false;
        while (bytes.len() as u64) < wanted {
            let at = address.wrapping_add(bytes.len() as u64);
            // What lies behind the text may not be mapped.
            let step = (PAGE - at % PAGE).min(STEP).min(wanted - bytes.len() as u64);
            let found = match self.memory(at, step) {
                Seen::Bytes(found) => found,
                // Near the end of what can be read, byte by byte would cost a read each.
                _ if !bytes.is_empty() => break,
                missing => return self.missing(&missing, address),
            };
            match found.iter().position(|&byte| byte == 0).filter(|_| length.is_none()) {
                Some(end) => {
                    bytes.extend_from_slice(&found[..end]);
                    is_whole = true;
                    break;
                }
                None => bytes.extend(found),
            }
        }
        is_whole |= length.is_some_and(|length| length == bytes.len() as u64);
        self.quoted(&bytes, !is_whole);
    }

    /// A text between quotes, and dots where there is more of it.
    pub(super) fn quoted(&mut self, bytes: &[u8], is_cut: bool) {
        self.push("\"");
        for chunk in bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                if !self.has_room() {
                    return;
                }
                self.push(&escaped(c, '"'));
            }
            for byte in chunk.invalid() {
                self.push(&format!("\\x{byte:02x}"));
            }
        }
        self.push("\"");
        if is_cut {
            self.push(super::CUT);
        }
    }

    /// A character between quotes; a number that is none as a number.
    pub(super) fn character(&mut self, value: u128) {
        let c = u32::try_from(value).ok().and_then(char::from_u32);
        match c {
            Some(c) => self.push(&format!("'{}'", escaped(c, '\''))),
            None => self.push(&value.to_string()),
        }
    }
}

/// A character as it is written between quotes.
fn escaped(c: char, quote: char) -> String {
    match c {
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        '\r' => "\\r".to_owned(),
        '\0' => "\\0".to_owned(),
        '\\' => "\\\\".to_owned(),
        _ if c == quote => format!("\\{c}"),
        _ if c.is_ascii_control() => format!("\\x{:02x}", c as u32),
        // What turns the direction of text, or is not seen, would make a lie of the line.
        _ if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
        {
            format!("\\u{{{:x}}}", c as u32)
        }
        _ => c.to_string(),
    }
}
