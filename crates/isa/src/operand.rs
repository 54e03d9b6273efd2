//! Operands of USDT probes: where an argument's value is when the probe is hit, in the assembler's own words.
//!
//! | machine | register | memory | constant |
//! |---|---|---|---|
//! | x86 | `%eax`, `%ah` | `-16(%rbp)`, `(%rax,%rbx,8)`, `count+4(%rip)` | `$-5` |
//! | arm64 | `x0`, `w1`, `sp` | `[sp, 12]`, `[x1, x2, lsl 3]`, `[x1, :lo12:count+4]` | `5` |
//! | powerpc | `%r3`, `31` | `8(1)`, `8(%r1)` | `i5` |
//!
//! A value is read in the program's own thread, at the very place where the compiler has promised that the operand can be read. What
//! promises nothing of the kind is refused: addresses that come from no register and from no symbol of the file, segments, vector registers.

use crate::Machine;
use thiserror::Error;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// All of a general register, by the number that [`crate::Thread::register`] knows it by.
    Register(u8),
    /// In memory, at a sum of registers and an offset.
    Memory {
        /// Number of the register that is added.
        base: u8,
        /// Another one, and log2 of what it is multiplied by (0 to 3).
        index: Option<(u8, u8)>,
        /// What is added to them.
        offset: i32,
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
    },
    /// In memory, at an address.
    At {
        /// The address.
        address: u64,
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
    },
}

impl Operand {
    /// The registers that it takes, by number.
    pub fn registers(self) -> impl Iterator<Item = u8> {
        let both = match self {
            Operand::Register(number) => [Some(number), None],
            Operand::Memory { base, index, .. } => [Some(base), index.map(|(number, _)| number)],
            Operand::At { .. } => [None, None],
        };
        both.into_iter().flatten()
    }
}

/// Where an argument comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is read, and what is read is shifted right by so many bits: `%ah` is the second byte of a register.
    Read(Operand, u8),
    /// It is always the same.
    Constant(i64),
}

/// Why an argument is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum NotRead {
    /// It is a floating-point number.
    #[error("a floating-point number")]
    Float,
    /// It is none, and is taken for one.
    #[error("it is no floating-point number, as it is at other places of the probe")]
    Integer,
    /// It is in a register that is not general.
    #[error("it is in a register that is not a general one")]
    Register,
    /// It has more than 8 bytes.
    #[error("it has more than 8 bytes")]
    TooWide,
    /// It is relative to a segment.
    #[error("it is thread-local")]
    Segment,
    /// It names a symbol that is not known.
    #[error("its symbol is not known")]
    Symbol,
    /// It is at an address that is not known to be readable.
    #[error("it is at a fixed address that is not the module's")]
    Address,
    /// Nothing of the kind.
    #[error("its operand is not understood")]
    Malformed,
    /// A record has no room for it.
    #[error("there are more than a record holds")]
    TooMany,
    /// The note has fewer.
    #[error("its note has no such argument")]
    Absent,
    /// It is in no register that is known: Go's compiler before 1.18, or an assembler, has made the function.
    #[error("this function of Go is assembly or older than 1.18, and gets its arguments on the stack")]
    OnStackOfGo,
    /// Several probes stand at the place, and differ.
    #[error("several probes are at this place, and their notes tell different arguments: name one of them")]
    Ambiguous,
    /// What reads memory may not be done in the process.
    #[error(
        "it is in memory, which the script would read by a system call, and the process is under a seccomp filter that might kill it for that: accept it with --allow-seccomp"
    )]
    Sandboxed,
    /// There was no memory when the probe was hit.
    #[error("it could not be read")]
    Fault,
}

/// Longer operands are not from a compiler.
const LONGEST: usize = 256;

impl Source {
    /// Reads the operand of an argument of `size` bytes; 0 where the note does not say. `symbol` gives the address of a symbol that the
    /// file has.
    ///
    /// ```
    /// use trapless_isa::{Machine, operand::{NotRead, Operand, Source}};
    ///
    /// let read = |text| Source::parse(Machine::X86_64, text, 4, &|_| None);
    /// assert_eq!(read("$-5"), Ok(Source::Constant(-5)));
    /// assert_eq!(read("%ah"), Ok(Source::Read(Operand::Register(0), 8)));
    /// let memory = Operand::Memory { base: 5, index: None, offset: -16, size: 4 };
    /// assert_eq!(read("-16(%rbp)"), Ok(Source::Read(memory, 0)));
    /// assert_eq!(read("%xmm0"), Err(NotRead::Register));
    /// ```
    ///
    /// # Errors
    /// [`NotRead`] says why not.
    pub fn parse(
        machine: Machine,
        text: &str,
        size: u8,
        symbol: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<Self, NotRead> {
        let text = text.trim();
        if text.len() > LONGEST || !text.is_ascii() {
            return Err(NotRead::Malformed);
        }
        let word = if machine == Machine::I386 { 4 } else { 8 };
        let size = match size {
            0 => word,
            1 | 2 | 4 | 8 => size,
            _ => return Err(NotRead::TooWide),
        };
        let parser = Parser { bits: u32::from(word) * 8, size, symbol };
        match machine {
            Machine::X86_64 | Machine::I386 => parser.x86(text),
            Machine::AArch64 => parser.arm64(text),
            Machine::PowerPc64Le => parser.powerpc(text),
        }
    }
}

struct Parser<'s> {
    bits: u32,
    size: u8,
    symbol: &'s dyn Fn(&str) -> Option<u64>,
}

type Parsed = Result<Source, NotRead>;

impl Parser<'_> {
    fn x86(&self, text: &str) -> Parsed {
        if let Some(constant) = text.strip_prefix('$') {
            return match number(constant) {
                Some(value) => Ok(Source::Constant(value)),
                None => Ok(Source::Constant(self.symbolic(constant)? as i64)),
            };
        }
        let Some((offset, registers)) = text.split_once('(') else {
            if let Some(name) = text.strip_prefix('%') {
                if name.contains(':') {
                    return Err(NotRead::Segment);
                }
                let (register, shift, _) = x86_register(name, self.bits).ok_or(NotRead::Register)?;
                return Ok(Source::Read(Operand::Register(register), shift));
            }
            // Of 32-bit code at fixed addresses.
            return self.at(self.symbolic(text)?);
        };
        if offset.starts_with('%') {
            return Err(NotRead::Segment);
        }
        let registers = registers.strip_suffix(')').ok_or(NotRead::Malformed)?;
        let mut parts = registers.split(',').map(str::trim);
        let (base, index, scale) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(NotRead::Malformed);
        }
        if matches!(base, "%rip" | "%eip") {
            return match index {
                None => self.at(self.symbolic(offset)?),
                Some(_) => Err(NotRead::Malformed),
            };
        }
        let address = |name: &str| {
            let (register, _, bits) = x86_register(name.strip_prefix('%')?, self.bits)?;
            (bits == self.bits).then_some(register)
        };
        let base = match base {
            "" => return Err(NotRead::Address),
            base => address(base).ok_or(NotRead::Register)?,
        };
        let index = match index {
            None | Some("") => None,
            Some(index) => {
                let scale = match scale.unwrap_or("1") {
                    "1" => 0,
                    "2" => 1,
                    "4" => 2,
                    "8" => 3,
                    _ => return Err(NotRead::Malformed),
                };
                // The stack pointer cannot be one.
                let index = address(index).filter(|&index| index != 4).ok_or(NotRead::Register)?;
                Some((index, scale))
            }
        };
        self.memory(base, index, offset)
    }

    fn arm64(&self, text: &str) -> Parsed {
        let register = |name: &str| -> Result<Option<u8>, NotRead> {
            let digits = match name {
                "sp" | "wsp" => return Ok(Some(31)),
                "xzr" | "wzr" => return Ok(None),
                "x29" | "fp" => "29",
                "x30" | "lr" => "30",
                _ => name.strip_prefix(['x', 'w']).ok_or(NotRead::Register)?,
            };
            plain(digits)
                .filter(|&number| number <= 30)
                .map(|number| Some(number as u8))
                .ok_or(NotRead::Register)
        };
        let Some(inside) = text.strip_prefix('[') else {
            return match number(text.strip_prefix('#').unwrap_or(text)) {
                Some(value) => Ok(Source::Constant(value)),
                None => Ok(match register(text)? {
                    Some(number) => Source::Read(Operand::Register(number), 0),
                    None => Source::Constant(0),
                }),
            };
        };
        let inside = inside.strip_suffix(']').ok_or(NotRead::Malformed)?;
        let mut parts = inside.split(',').map(str::trim);
        let (base, second, third) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if parts.next().is_some() || !base.starts_with(['x', 's', 'f', 'l']) {
            return Err(NotRead::Malformed);
        }
        let base = register(base)?.ok_or(NotRead::Malformed)?;
        let Some(second) = second else { return self.memory(base, None, "") };
        if let Some(offset) = number(second.strip_prefix('#').unwrap_or(second)) {
            let offset = i32::try_from(offset).map_err(|_| NotRead::Malformed)?;
            return match third {
                None => Ok(self.memory_at(base, None, offset)),
                Some(_) => Err(NotRead::Malformed),
            };
        }
        if let Some(name) = second.strip_prefix('#').unwrap_or(second).strip_prefix(":lo12:") {
            // Modules move by whole pages of no less than 4 KiB, and the register holds the page.
            let offset = self.symbolic(name)? & 0xfff;
            return match third {
                None => Ok(self.memory_at(base, None, offset as i32)),
                Some(_) => Err(NotRead::Malformed),
            };
        }
        if !second.starts_with('x') {
            return Err(NotRead::Malformed);
        }
        let index = register(second)?.ok_or(NotRead::Malformed)?;
        let scale = match third {
            None => 0,
            Some(shift) => {
                let shift = shift.strip_prefix("lsl").map(str::trim).ok_or(NotRead::Malformed)?;
                plain(shift.strip_prefix('#').unwrap_or(shift))
                    .filter(|&s| s <= 3)
                    .ok_or(NotRead::Malformed)?
            }
        };
        Ok(self.memory_at(base, Some((index, scale as u8)), 0))
    }

    fn powerpc(&self, text: &str) -> Parsed {
        let register = |name: &str| {
            let digits = name.strip_prefix('%').unwrap_or(name);
            let digits = digits.strip_prefix('r').unwrap_or(digits);
            plain(digits).filter(|&number| number < 32).map(|number| number as u8).ok_or(NotRead::Register)
        };
        if let Some(constant) = text.strip_prefix('i') {
            return number(constant).map(Source::Constant).ok_or(NotRead::Malformed);
        }
        // The sum of two registers, as `sys/sdt.h` has it of memory ("Z"). As the first, register 0 is the number 0.
        if let Some((first, second)) = text.split_once(',') {
            let [first, second] = [first, second].map(|name| register(name.trim()));
            return Ok(match first? {
                0 => self.memory_at(second?, None, 0),
                first => self.memory_at(first, Some((second?, 0)), 0),
            });
        }
        let Some((offset, base)) = text.split_once('(') else {
            return Ok(Source::Read(Operand::Register(register(text)?), 0));
        };
        let base = register(base.strip_suffix(')').ok_or(NotRead::Malformed)?)?;
        // As a base, register 0 is the number 0.
        if base == 0 { Err(NotRead::Address) } else { self.memory(base, None, offset) }
    }

    /// Memory at registers and an offset as it is written.
    fn memory(&self, base: u8, index: Option<(u8, u8)>, offset: &str) -> Parsed {
        let offset = match offset.trim() {
            "" => 0,
            text => number(text).ok_or(NotRead::Symbol)?,
        };
        let offset = i32::try_from(offset).map_err(|_| NotRead::Malformed)?;
        Ok(self.memory_at(base, index, offset))
    }

    fn memory_at(&self, base: u8, index: Option<(u8, u8)>, offset: i32) -> Source {
        Source::Read(Operand::Memory { base, index, offset, size: self.size }, 0)
    }

    fn at(&self, address: u64) -> Parsed {
        Ok(Source::Read(Operand::At { address, size: self.size }, 0))
    }

    /// The address of `symbol`, `symbol+4`, `4+symbol` or `symbol-4`.
    fn symbolic(&self, text: &str) -> Result<u64, NotRead> {
        let text = text.trim();
        if number(text).is_some() || text.is_empty() {
            return Err(NotRead::Address);
        }
        if text.contains('@') {
            return Err(NotRead::Symbol);
        }
        let (mut name, mut sum) = (None, 0i64);
        let mut rest = text;
        while !rest.is_empty() {
            let sign = if rest.starts_with('-') { -1 } else { 1 };
            rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            match number(part) {
                Some(value) => sum = sum.wrapping_add(value.wrapping_mul(sign)),
                None if name.is_none() && sign == 1 && !part.is_empty() => name = Some(part),
                None => return Err(NotRead::Malformed),
            }
            rest = after;
        }
        let address = (self.symbol)(name.ok_or(NotRead::Address)?).ok_or(NotRead::Symbol)?;
        Ok(address.wrapping_add_signed(sum))
    }
}

/// A number in decimal or, with `0x`, in hexadecimal. One of 64 bits without a sign may stand for a negative one.
fn number(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()?
        }
        Some(_) => return None,
        None => plain(digits)?,
    };
    match negative {
        true => 0i64.checked_sub_unsigned(value),
        false => Some(value as i64),
    }
}

/// Digits alone: `parse` would take a sign.
fn plain(digits: &str) -> Option<u64> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok()).flatten()
}

/// A register's number, how far its value is shifted in it, and how many bits it has.
fn x86_register(name: &str, bits: u32) -> Option<(u8, u8, u32)> {
    const WORDS: [&str; 8] = ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"];
    let find = |name: &str| WORDS.iter().position(|word| *word == name).map(|number| number as u8);
    let wide = bits == 64;
    if let Some(number) = name.strip_prefix('r').and_then(find) {
        return wide.then_some((number, 0, 64));
    }
    if let Some(number) = name.strip_prefix('e').and_then(find) {
        return Some((number, 0, 32));
    }
    if let Some(number) = find(name) {
        return Some((number, 0, 16));
    }
    if let Some(digits) = name.strip_prefix('r') {
        let (digits, of) = match digits.as_bytes().last()? {
            b'd' => (&digits[..digits.len() - 1], 32),
            b'w' => (&digits[..digits.len() - 1], 16),
            b'b' => (&digits[..digits.len() - 1], 8),
            _ => (digits, 64),
        };
        let number = plain(digits).filter(|number| (8..16).contains(number))?;
        return wide.then_some((number as u8, 0, of));
    }
    let bytes = name.as_bytes();
    match bytes {
        [letter @ (b'a' | b'b' | b'c' | b'd'), part @ (b'l' | b'h')] => {
            let number = match letter {
                b'a' => 0,
                b'c' => 1,
                b'd' => 2,
                _ => 3,
            };
            Some((number, if *part == b'h' { 8 } else { 0 }, 8))
        }
        // The low bytes of the others are there in 64-bit mode only.
        _ => name
            .strip_suffix('l')
            .and_then(find)
            .filter(|number| wide && *number >= 4)
            .map(|number| (number, 0, 8)),
    }
}

#[cfg(test)]
mod tests;
