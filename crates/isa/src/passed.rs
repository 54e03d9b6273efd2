//! Operands of USDT probes as bodies are given them ([`Extra::Operands`](crate::body::Extra::Operands)).
//!
//! A probe may stand at many places, and each has a note of its own: here an argument is in a register, there it is known, and elsewhere it
//! is in memory, as wide as the variable is there. A body is one for all of them, so its site's detour makes two words of each operand:
//!
//! | operand | first word | second word: its [form](Passed::form) |
//! |---|---|---|
//! | a constant, a register | the value, extended by its size and its sign to 64 bits | 0 |
//! | a double in a register | its bits | 0 |
//! | a float in a register | its bits, and nothing that is known above them | 4 + [`FLOAT`] |
//! | memory | its address | its size, with [`SIGNED`], [`FLOAT`] and [`MEMORY`] |
//!
//! A detour reads no memory for a body. A note is an assertion of whoever wrote the file, and where it is wrong a load would fault in the
//! program. The body reads plainly what lies in a page that the detour itself has just written to, as the operands do that compilers keep
//! on the stack, and everything else as it reads other memory that may not be there.

use crate::Machine;
use crate::operand::{NotRead, Operand, Source};

/// In a form: integers are extended by their sign.
pub const SIGNED: u8 = 0x10;
/// In a form: it is a floating-point number.
pub const FLOAT: u8 = 0x20;
/// In a form: the first word is the address of memory.
pub const MEMORY: u8 = 0x40;
/// In a form: how many bytes.
pub const SIZE: u8 = 0x0f;

/// How many operands a body may ask for: as many as `sys/sdt.h` lets a probe have.
pub const MOST_PASSED: usize = 12;

/// What a body takes an operand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Number {
    /// An integer, or a pointer.
    Integer,
    /// A floating-point number, which it is given as a double.
    Float,
}

/// An operand that a body asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wanted {
    /// Which of the note's, from 0 on.
    pub argument: u8,
    /// For what it is taken.
    pub number: Number,
}

/// What a note says of an argument besides its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Bytes; 0 where it does not say.
    pub size: u8,
    /// Whether it is signed.
    pub is_signed: bool,
    /// Whether it is a floating-point number.
    pub is_float: bool,
}

/// An operand at a site, as it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It is always this.
    Known(u64),
    /// In a general register by the number that [`crate::Thread::register`] knows it by.
    Register {
        /// Which.
        register: u8,
        /// By how many bits it is shifted right: `%ah` is the second byte of a register.
        shift: u8,
        /// What is read, as in [`Self::form`].
        width: u8,
    },
    /// In the low bytes of the vector register with this number.
    Vector(u8, u8),
    /// In memory: [`Operand::Memory`] or [`Operand::At`].
    Memory(Operand, u8),
}

impl Passed {
    /// What a body is given of an argument that it takes for `number`. `symbol` gives the address of a symbol that the file has.
    ///
    /// ```
    /// use trapless_isa::{Machine, operand::NotRead, passed::{Noted, Number, Passed}};
    ///
    /// let read = |text, number, size, is_signed, is_float| {
    ///     Passed::parse(Machine::X86_64, text, Noted { size, is_signed, is_float }, number, &|_| None)
    /// };
    /// assert_eq!(read("$-5", Number::Integer, 4, false, false), Ok(Passed::Known(0xffff_fffb)));
    /// assert_eq!(read("$-5", Number::Integer, 4, true, false), Ok(Passed::Known(-5i64 as u64)));
    /// assert_eq!(read("%xmm1", Number::Float, 8, false, true), Ok(Passed::Vector(1, 0x28)));
    /// assert_eq!(read("%xmm1", Number::Integer, 8, false, true), Err(NotRead::Float));
    /// ```
    ///
    /// # Errors
    /// [`NotRead`] says why not.
    pub fn parse(
        machine: Machine,
        text: &str,
        noted: Noted,
        number: Number,
        symbol: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<Self, NotRead> {
        match (number, noted.is_float) {
            (Number::Integer, true) => return Err(NotRead::Float),
            (Number::Float, false) => return Err(NotRead::Integer),
            _ => {}
        }
        let word = if machine == Machine::I386 { 4 } else { 8 };
        let size = if noted.size == 0 { word } else { noted.size };
        if noted.is_float {
            if !matches!(size, 4 | 8) {
                return Err(if size > 8 { NotRead::TooWide } else { NotRead::Malformed });
            }
            if let Some(vector) = vector(machine, text.trim()) {
                return Ok(Passed::Vector(vector, size | FLOAT));
            }
        }
        let mut width = size;
        width |= if noted.is_signed { SIGNED } else { 0 } | if noted.is_float { FLOAT } else { 0 };
        match Source::parse(machine, text, size, symbol)? {
            // What is known of a float has no form that compilers write.
            Source::Constant(_) if noted.is_float => Err(NotRead::Malformed),
            Source::Constant(value) => Ok(Passed::Known(extended(value as u64, width))),
            // There are two, of which the note names one.
            Source::Read(Operand::Register(_), _) if size > word => Err(NotRead::TooWide),
            Source::Read(Operand::Register(_), shift) if shift > 0 && noted.is_float => {
                Err(NotRead::Malformed)
            }
            Source::Read(Operand::Register(register), shift) => {
                Ok(Passed::Register { register, shift, width })
            }
            Source::Read(memory, _) => Ok(Passed::Memory(memory, width)),
        }
    }

    /// What its first word is: the table above.
    #[must_use]
    pub const fn form(self) -> u8 {
        match self {
            Passed::Known(_) => 0,
            Passed::Register { width, .. } | Passed::Vector(_, width) => {
                // A double has all the bits of a word, and an integer has been extended to them.
                if width & FLOAT != 0 && width & SIZE == 4 { width } else { 0 }
            }
            Passed::Memory(_, width) => width | MEMORY,
        }
    }

    /// The general registers that it takes.
    pub fn registers(self) -> impl Iterator<Item = u8> {
        let operand = match self {
            Passed::Register { register, .. } => Some(Operand::Register(register)),
            Passed::Memory(operand, _) => Some(operand),
            Passed::Known(_) | Passed::Vector(..) => None,
        };
        operand.into_iter().flat_map(Operand::registers)
    }
}

/// The low bytes of a word as an integer of the width, with 64 bits.
///
/// ```
/// use trapless_isa::passed::{SIGNED, extended};
/// assert_eq!(extended(0x1234_ff80, 1), 0x80);
/// assert_eq!(extended(0x1234_ff80, 1 | SIGNED), -0x80i64 as u64);
/// ```
#[must_use]
pub fn extended(word: u64, width: u8) -> u64 {
    let above = 64 - 8 * u32::from((width & SIZE).clamp(1, 8));
    match width & SIGNED != 0 {
        true => ((word << above) as i64 >> above) as u64,
        false => word << above >> above,
    }
}

/// The number of a vector register in whose low bytes floats are.
fn vector(machine: Machine, text: &str) -> Option<u8> {
    let (digits, count) = match machine {
        Machine::X86_64 => (text.strip_prefix("%xmm"), 16),
        Machine::I386 => (text.strip_prefix("%xmm"), 8),
        // gcc and clang write `v3`; `d3` and `s3` are what is asked for by `%d` and `%s`.
        Machine::AArch64 => (text.strip_prefix(['v', 'd', 's', 'q']), 32),
        // `sys/sdt.h` asks for them in general registers (`nZr`).
        Machine::PowerPc64Le => return None,
    };
    let digits = digits?;
    let is_plain = matches!(digits.as_bytes(), [b'0'..=b'9'] | [b'1'..=b'3', b'0'..=b'9']);
    digits.parse().ok().filter(|number| is_plain && *number < count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(base: u8, index: Option<(u8, u8)>, offset: i32, size: u8, width: u8) -> Passed {
        Passed::Memory(Operand::Memory { base, index, offset, size }, width)
    }

    fn register(register: u8, shift: u8, width: u8) -> Passed {
        Passed::Register { register, shift, width }
    }

    /// Size and sign as a note writes them, the operand, for what it is taken, what is passed, and its form.
    #[test]
    fn every_form_of_operand_is_passed_as_its_note_says_or_refused() {
        type Case = (&'static str, &'static str, Number, Result<Passed, NotRead>, u8);
        use Number::{Float, Integer};
        let cases: &[Case] = &[
            ("8", "%rdi", Integer, Ok(register(7, 0, 8)), 0),
            ("-8", "%r15", Integer, Ok(register(15, 0, 8 | SIGNED)), 0),
            ("4", "%esi", Integer, Ok(register(6, 0, 4)), 0),
            ("-4", "%r12d", Integer, Ok(register(12, 0, 4 | SIGNED)), 0),
            ("2", "%ax", Integer, Ok(register(0, 0, 2)), 0),
            ("-1", "%dil", Integer, Ok(register(7, 0, 1 | SIGNED)), 0),
            ("1", "%ch", Integer, Ok(register(1, 8, 1)), 0),
            ("", "%rbx", Integer, Ok(register(3, 0, 8)), 0),
            ("8", "%rsp", Integer, Ok(register(4, 0, 8)), 0),
            ("-4", "$-1", Integer, Ok(Passed::Known(u64::MAX)), 0),
            ("4", "$-1", Integer, Ok(Passed::Known(0xffff_ffff)), 0),
            ("1", "$200", Integer, Ok(Passed::Known(200)), 0),
            ("-1", "$200", Integer, Ok(Passed::Known(-56i64 as u64)), 0),
            ("-8", "$0x10", Integer, Ok(Passed::Known(16)), 0),
            ("-4", "-20(%rbp)", Integer, Ok(memory(5, None, -20, 4, 4 | SIGNED)), 0x54),
            ("2", "(%rax,%rbx,8)", Integer, Ok(memory(0, Some((3, 3)), 0, 2, 2)), 0x42),
            ("8", "16(%rsp)", Integer, Ok(memory(4, None, 16, 8, 8)), 0x48),
            (
                "1",
                "name+2(%rip)",
                Integer,
                Ok(Passed::Memory(Operand::At { address: 0x4002, size: 1 }, 1)),
                0x41,
            ),
            ("8f", "%xmm0", Float, Ok(Passed::Vector(0, 8 | FLOAT)), 0),
            ("4f", "%xmm15", Float, Ok(Passed::Vector(15, 4 | FLOAT)), 0x24),
            ("-8f", "-8(%rbp)", Float, Ok(memory(5, None, -8, 8, 8 | SIGNED | FLOAT)), 0x78),
            ("4f", "(%rdi)", Float, Ok(memory(7, None, 0, 4, 4 | FLOAT)), 0x64),
            ("4f", "%eax", Float, Ok(register(0, 0, 4 | FLOAT)), 0x24),
            ("8f", "%rax", Float, Ok(register(0, 0, 8 | FLOAT)), 0),
            ("8f", "%xmm0", Integer, Err(NotRead::Float), 0),
            ("8", "%rdi", Float, Err(NotRead::Integer), 0),
            ("8f", "%xmm16", Float, Err(NotRead::Register), 0),
            ("8f", "%xmm01", Float, Err(NotRead::Register), 0),
            ("16f", "%xmm0", Float, Err(NotRead::TooWide), 0),
            ("2f", "%xmm0", Float, Err(NotRead::Malformed), 0),
            ("8f", "$1", Float, Err(NotRead::Malformed), 0),
            ("4f", "%ah", Float, Err(NotRead::Malformed), 0),
            ("16", "%rdi", Integer, Err(NotRead::TooWide), 0),
            ("8", "%xmm0", Integer, Err(NotRead::Register), 0),
            ("8", "%fs:0", Integer, Err(NotRead::Segment), 0),
            ("8", "other(%rip)", Integer, Err(NotRead::Symbol), 0),
            ("8", "", Integer, Err(NotRead::Address), 0),
            ("8", "(%rdi,%rsi,3)", Integer, Err(NotRead::Malformed), 0),
        ];
        let symbol = |name: &str| (name == "name").then_some(0x4000);
        for &(size, text, number, ref expected, form) in cases {
            let is_signed = size.starts_with('-');
            let is_float = size.ends_with('f');
            let digits = size.trim_start_matches('-').trim_end_matches('f');
            let noted = Noted { size: digits.parse().unwrap_or(0), is_signed, is_float };
            let found = Passed::parse(Machine::X86_64, text, noted, number, &symbol);
            assert_eq!(&found, expected, "{size}@{text}");
            if let Ok(found) = found {
                assert_eq!(found.form(), form, "{size}@{text}");
            }
        }
    }

    #[test]
    fn vector_registers_of_arm64_have_several_names() {
        let parse = |text| {
            let noted = Noted { size: 8, is_signed: false, is_float: true };
            Passed::parse(Machine::AArch64, text, noted, Number::Float, &|_| None)
        };
        for (text, number) in [("v0", 0), ("d9", 9), ("s31", 31), ("q16", 16)] {
            assert_eq!(parse(text), Ok(Passed::Vector(number, 8 | FLOAT)), "{text}");
        }
        assert_eq!(parse("v32"), Err(NotRead::Register));
        assert_eq!(parse("sp"), Ok(register(31, 0, 8 | FLOAT)));
        assert_eq!(parse("x3"), Ok(register(3, 0, 8 | FLOAT)));
    }

    #[test]
    fn what_needs_two_registers_of_32_bits_is_refused() {
        let parse = |text, size| {
            let noted = Noted { size, is_signed: false, is_float: false };
            Passed::parse(Machine::I386, text, noted, Number::Integer, &|_| None)
        };
        assert_eq!(parse("%eax", 8), Err(NotRead::TooWide));
        assert_eq!(parse("%eax", 0), Ok(register(0, 0, 4)));
        assert_eq!(parse("8(%esp)", 8), Ok(memory(4, None, 8, 8, 8)));
    }
}
