//! USDT probes: the notes that `sys/sdt.h` leaves in `.note.stapsdt`.
//!
//! Each describes a place in the code (a nop), a semaphore that tools increment while they listen, and where the
//! arguments are then, in the assembler's own words. Addresses are those at link time; if prelink moved the file
//! since, the section `.stapsdt.base` tells by how much.

use std::fmt;

use crate::{NotesError, frames::little_endian, image::Image, notes::notes};

/// One USDT probe. The same provider and name can stand at several locations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// Who offers it: `libc`.
    pub provider: String,
    /// What it is called: `setjmp`.
    pub name: String,
    /// Virtual address of the nop, base adjustment included.
    pub location: u64,
    /// How far `.stapsdt.base` has moved since linking; already added to the addresses.
    pub base_adjustment: i64,
    /// Virtual address of the 16-bit semaphore, base adjustment included.
    pub semaphore: Option<u64>,
    /// The arguments, in order.
    pub arguments: Vec<UsdtArgument>,
}

/// One argument of a USDT probe: `-4@-20(%rbp)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtArgument {
    /// Bytes: 1, 2, 4 or 8; 0 where the note does not say.
    pub size: u8,
    /// Whether the value is signed.
    pub is_signed: bool,
    /// Whether the value is a floating-point number.
    pub is_float: bool,
    /// The operand in assembler syntax: `%rdi`, `$5`, `-20(%rbp)`, `[sp, 24]`.
    pub operand: String,
}

impl fmt::Display for UsdtArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, is_signed, is_float, operand } = self;
        if *size > 0 {
            write!(f, "{}{size}{}@", if *is_signed { "-" } else { "" }, if *is_float { "f" } else { "" })?;
        }
        f.write_str(operand)
    }
}

/// The type of a probe's note.
const NT_STAPSDT: u32 = 3;
/// Longer provider, probe names or argument strings are not from a compiler.
const LONGEST_STRING: usize = 4 << 10;
/// `sys/sdt.h` allows 12.
const MOST_ARGUMENTS: usize = 64;

/// The probes of a file, in the order of their notes.
pub(crate) fn probes(image: &Image, bytes: &[u8]) -> Result<Vec<UsdtProbe>, NotesError> {
    let Some(section) = image.section(".note.stapsdt") else { return Ok(Vec::new()) };
    let contents = bytes.get(section.file.clone()).unwrap_or(&[]);
    let base = image.section(".stapsdt.base").map(|section| section.address);
    let mut found = Vec::new();
    for note in notes(contents, section.align) {
        let note = note.map_err(NotesError::CutShort)?;
        if note.owner == b"stapsdt" && note.kind == NT_STAPSDT {
            let probe = probe(note.description, image.pointer_size(), base);
            found.push(probe.ok_or(NotesError::Malformed(note.offset))?);
        }
    }
    Ok(found)
}

fn probe(description: &[u8], pointer: usize, base: Option<u64>) -> Option<UsdtProbe> {
    let (addresses, strings) = description.split_at_checked(3 * pointer)?;
    let address = |index: usize| little_endian(&addresses[index * pointer..][..pointer]);
    let (location, linked_base, semaphore) = (address(0), address(1), address(2));
    let shift = match base {
        Some(base) if linked_base != 0 => base.wrapping_sub(linked_base),
        _ => 0,
    };
    let moved = |address: u64| {
        let moved = address.wrapping_add(shift);
        if pointer == 4 { moved & 0xffff_ffff } else { moved }
    };
    let mut strings = strings.split(|&byte| byte == 0);
    let mut string =
        || strings.next().filter(|bytes| bytes.len() <= LONGEST_STRING).map(String::from_utf8_lossy);
    Some(UsdtProbe {
        provider: string()?.into_owned(),
        name: string()?.into_owned(),
        arguments: arguments(&string()?),
        location: moved(location),
        base_adjustment: shift as i64,
        semaphore: (semaphore != 0).then(|| moved(semaphore)),
    })
}

/// Splits an argument string. Operands can contain blanks (`8@[sp, 24]`), so a word without a size belongs to the one
/// before it, unless none has a size, as very old notes have it.
fn arguments(text: &str) -> Vec<UsdtArgument> {
    let has_sizes = text.split_ascii_whitespace().any(|word| sized(word).is_some());
    let mut found: Vec<UsdtArgument> = Vec::new();
    for word in text.split_ascii_whitespace() {
        match (sized(word), found.last_mut()) {
            (Some(argument), _) => found.push(argument),
            (None, Some(last)) if has_sizes => {
                last.operand.push(' ');
                last.operand.push_str(word);
            }
            (None, _) => {
                found.push(UsdtArgument { size: 0, is_signed: false, is_float: false, operand: word.into() })
            }
        }
        if found.len() > MOST_ARGUMENTS {
            found.pop();
            break;
        }
    }
    found
}

/// A word like `-4@%eax` or `8f@%xmm0`.
fn sized(word: &str) -> Option<UsdtArgument> {
    let (size, operand) = word.split_once('@')?;
    let (is_signed, size) = size.strip_prefix('-').map_or((false, size), |size| (true, size));
    let (is_float, size) = size.strip_suffix('f').map_or((false, size), |size| (true, size));
    let size = size.parse().ok().filter(|size| matches!(size, 1 | 2 | 4 | 8 | 16))?;
    Some(UsdtArgument { size, is_signed, is_float, operand: operand.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(size: u8, is_signed: bool, is_float: bool, operand: &str) -> UsdtArgument {
        UsdtArgument { size, is_signed, is_float, operand: operand.into() }
    }

    #[test]
    fn argument_strings_fall_into_sizes_and_operands() {
        for (text, expected) in [
            ("", vec![]),
            ("8@%rdi", vec![argument(8, false, false, "%rdi")]),
            (
                "-4@-20(%rbp) 2@$5",
                vec![argument(4, true, false, "-20(%rbp)"), argument(2, false, false, "$5")],
            ),
            ("8@[sp, 24] 1@x0", vec![argument(8, false, false, "[sp, 24]"), argument(1, false, false, "x0")]),
            ("8f@%xmm0", vec![argument(8, false, true, "%xmm0")]),
            ("%rdi %rsi", vec![argument(0, false, false, "%rdi"), argument(0, false, false, "%rsi")]),
            ("-4@foo@GOTPCREL(%rip)", vec![argument(4, true, false, "foo@GOTPCREL(%rip)")]),
            ("3@%al", vec![argument(0, false, false, "3@%al")]),
        ] {
            assert_eq!(arguments(text), expected, "{text}");
        }
        assert_eq!(arguments(&"8@%rax ".repeat(1000)).len(), MOST_ARGUMENTS);
    }

    #[test]
    fn addresses_move_with_the_base() {
        let mut description = Vec::new();
        for address in [0x1010_u64, 0x2000, 0x3000] {
            description.extend(address.to_le_bytes());
        }
        description.extend(b"prov\0name\x008@%rdi\0");
        for (base, location, semaphore, adjustment) in [
            (None, 0x1010, 0x3000, 0),
            (Some(0x2000), 0x1010, 0x3000, 0),
            (Some(0x1f00), 0xf10, 0x2f00, -0x100),
        ] {
            let probe = probe(&description, 8, base).unwrap();
            assert_eq!((&*probe.provider, &*probe.name, probe.arguments.len()), ("prov", "name", 1));
            assert_eq!((probe.location, probe.semaphore), (location, Some(semaphore)));
            assert_eq!(probe.base_adjustment, adjustment);
        }
        assert_eq!(probe(&description[..23], 8, None), None);
        assert_eq!(probe(&description[..26], 8, None), None);
    }
}
