//! What a body has told of a hit: [records](super::body) on a tape, and values as text from nothing else.
//!
//! The target can write what it likes there. A tape is cut into records as far as they are whole, and nothing is taken from outside of it.

use super::body::{HEAD, WAS_READ};
use super::function::{Source, Value, Why};
use trapless_session::outcome::TypedValue;
use trapless_symbols::Types;
use trapless_symbols::render::{Recorded, render};

/// The records of a tape.
#[derive(Debug, Default)]
pub(super) struct Tape {
    records: Vec<(u64, Option<Vec<u8>>)>,
    /// Whether reads that have failed were tried.
    were_tried: bool,
}

impl Tape {
    /// Cuts a tape. `tid`: the thread that has told it; of one that nobody knows the number of, no memory is read.
    pub fn new(bytes: &[u8], tid: u32) -> Self {
        let mut records = Vec::new();
        let mut rest = bytes;
        while let Some((head, behind)) = rest.split_first_chunk::<{ HEAD as usize }>() {
            let word = |at: usize| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let (address, about) = (word(0), word(8));
            let size = (about as u32) as usize;
            if about & WAS_READ == 0 {
                records.push((address, None));
                rest = behind;
                continue;
            }
            let Some(bytes) = behind.get(..size) else { break };
            records.push((address, Some(bytes.to_vec())));
            rest = behind.get(size.next_multiple_of(8)..).unwrap_or_default();
        }
        Self { records, were_tried: tid != 0 }
    }

    /// The bytes of a record.
    #[cfg(test)]
    pub(super) fn bytes(&self, number: usize) -> Option<&[u8]> {
        self.records.get(number)?.1.as_deref()
    }

    /// The memory that was read, behind so many values.
    pub(super) fn memory(&self, values: usize) -> Recorded {
        let mut recorded = Recorded::default();
        for (address, bytes) in self.records.iter().skip(values) {
            if bytes.is_some() || self.were_tried {
                recorded.add(*address, bytes.clone());
            }
        }
        recorded
    }

    /// Some values as text.
    pub fn shown(&self, types: &Types, values: &[&Value]) -> Vec<TypedValue> {
        let on_tape = values.iter().filter(|value| matches!(value.from, Source::Tape(_))).count();
        let memory = self.memory(on_tape);
        values.iter().map(|value| self.value(types, value, &memory)).collect()
    }

    fn value(&self, types: &Types, value: &Value, memory: &Recorded) -> TypedValue {
        let text = |bytes: &[u8]| {
            Ok(render(types, value.of, bytes, &mut |address, size| memory.look(address, size)))
        };
        let told = match &value.from {
            Source::Constant(bytes) => text(bytes),
            Source::Nowhere(why) => Err(*why),
            Source::Tape(number) => match self.records.get(*number) {
                Some((_, Some(bytes))) => text(bytes),
                Some((_, None)) if self.were_tried => Ok("(unreadable)".to_owned()),
                _ => Err(Why::Lost),
            },
        };
        let name = value.name.as_ref().map(ToString::to_string);
        let of = value.notation.to_string();
        TypedValue { name, of, text: told.map_err(|why| why.to_string()) }
    }

    /// Its values as words.
    pub fn words(&self) -> Vec<u64> {
        let word = |(_, bytes): &(u64, Option<Vec<u8>>)| {
            let bytes = bytes.as_ref()?;
            bytes.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        self.records.iter().map_while(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_symbols::types::Encoding;

    fn record(address: u64, size: u32, was_read: bool, bytes: &[u8]) -> Vec<u8> {
        let about = u64::from(size) | if was_read { WAS_READ } else { 0 };
        let mut all: Vec<u8> = [address, about, 0].into_iter().flat_map(u64::to_le_bytes).collect();
        all.extend(bytes);
        all.resize(all.len().next_multiple_of(8), 0xee);
        all
    }

    fn text_of(tape: &[u8], tid: u32) -> Option<String> {
        let mut types = Types::new();
        let char = types.base("char", 1, Encoding::SignedChar);
        let of = types.pointer_to(char);
        let value = Value { name: Some("s".into()), of, notation: "char *".into(), from: Source::Tape(0) };
        Tape::new(tape, tid).shown(&types, &[&value]).pop()?.text.ok()
    }

    #[test]
    fn texts_are_shown_from_what_was_read() {
        let value = record(0, 8, true, &0x1000_u64.to_le_bytes());
        let with = |more: Vec<u8>| [value.clone(), more].concat();
        let cases: [(Vec<u8>, u32, Option<&str>); 7] = [
            (with(record(0x1000, 3, true, b"hi\0")), 7, Some("\"hi\"")),
            (with(record(0x1000, 2, true, b"hi")), 7, Some("\"hi\"...")),
            (with(record(0x1000, 0, false, b"")), 7, Some("0x1000 (unreadable)")),
            // Nobody has tried to read, so nobody knows.
            (with(record(0x1000, 0, false, b"")), 0, Some("...")),
            (with(vec![]), 7, Some("...")),
            (record(0, 8, false, b""), 7, Some("(unreadable)")),
            (vec![], 7, None),
        ];
        for (tape, tid, expected) in cases {
            assert_eq!(text_of(&tape, tid).as_deref(), expected, "{tape:x?}");
        }
    }

    #[test]
    fn a_tape_that_lies_is_cut_where_it_does() {
        let value = record(0, 8, true, &0x1000_u64.to_le_bytes());
        for liar in [
            record(0x1000, u32::MAX, true, b"hi\0"),
            record(0x1000, 64, true, b"hi\0"),
            vec![0xff; 23],
            vec![0xff; 4096],
        ] {
            assert_eq!(text_of(&[value.clone(), liar].concat(), 7).as_deref(), Some("..."));
        }
        assert_eq!(Tape::new(&[0xff; 4096], 1).words(), [0; 0]);
    }
}
