//! The emulated instructions that change registers only: fixed-point arithmetic, logic, rotates, comparisons, and moves
//! from and to the condition register and the special registers.

use super::decode::{Fields, NOP};
use super::emulate::{CTR, LR, Version, XER, XER_CA, XER_CA32, XER_SO};
use crate::{Reason, Thread};

/// Executes `word`; on an error nothing has changed.
pub(super) fn run(word: u32, thread: &mut dyn Thread, version: Option<Version>) -> Result<(), Reason> {
    let mut machine = Machine { word, thread, version };
    match word.primary() {
        7 => machine.set(word.rt(), machine.a().wrapping_mul(word.d() as u64)),
        8 => return machine.carrying(!machine.a(), word.d() as u64, 1, false),
        10 | 11 => machine.compare_immediate(),
        12 | 13 => return machine.carrying(machine.a(), word.d() as u64, 0, word.primary() == 13),
        14 => machine.set(word.rt(), machine.a_or_zero().wrapping_add(word.d() as u64)),
        15 => machine.set(word.rt(), machine.a_or_zero().wrapping_add((word.d() << 16) as u64)),
        19 => return machine.condition_logic(),
        20 | 21 | 23 => machine.rotate_word(),
        // It writes nothing, though its form does.
        24 if word == NOP => {}
        24..=29 => machine.logic_immediate(),
        30 => return machine.rotate_doubleword(),
        31 => return machine.extended(),
        4 | 6 | 60 => return Err(Reason::NotEmulated("a vector instruction")),
        48..=55 | 57 | 59 | 61 | 63 => {
            return Err(Reason::NotEmulated("a floating-point or vector instruction"));
        }
        _ => return Err(Reason::NotEmulated("this instruction")),
    }
    Ok(())
}

struct Machine<'a> {
    word: u32,
    thread: &'a mut dyn Thread,
    version: Option<Version>,
}

impl Machine<'_> {
    fn get(&self, register: u32) -> u64 {
        self.thread.register(register as u8)
    }

    fn set(&mut self, register: u32, value: u64) {
        self.thread.set_register(register as u8, value);
    }

    fn conditions(&self) -> u32 {
        self.thread.flags() as u32
    }

    fn set_conditions(&mut self, cr: u32) {
        self.thread.set_flags(cr.into());
    }

    fn exceptions(&self) -> u64 {
        self.thread.register(XER)
    }

    fn a(&self) -> u64 {
        self.get(self.word.ra())
    }

    /// RA, where 0 means the number.
    fn a_or_zero(&self) -> u64 {
        if self.word.ra() == 0 { 0 } else { self.a() }
    }

    fn b(&self) -> u64 {
        self.get(self.word.rb())
    }

    /// RS: the source of logical instructions.
    fn s(&self) -> u64 {
        self.get(self.word.rt())
    }

    fn carry(&self) -> u64 {
        u64::from(self.exceptions() & XER_CA != 0)
    }

    /// The first that an instruction does.
    fn set_carry(&mut self, carry: bool, carry_32: bool) -> Result<(), Reason> {
        let version = self.version.ok_or(Reason::NotEmulated("an instruction that carries"))?;
        let mut bits = if carry { XER_CA } else { 0 };
        let mut mask = XER_CA;
        if version == Version::V3_0 {
            bits |= if carry_32 { XER_CA32 } else { 0 };
            mask |= XER_CA32;
        }
        self.thread.set_register(XER, self.exceptions() & !mask | bits);
        Ok(())
    }

    /// Sets a field of the condition register from a comparison.
    fn set_condition(&mut self, field: u32, ordering: core::cmp::Ordering) {
        let bits = match ordering {
            core::cmp::Ordering::Less => 8,
            core::cmp::Ordering::Greater => 4,
            core::cmp::Ordering::Equal => 2,
        } | u32::from(self.exceptions() & XER_SO != 0);
        let shift = 28 - 4 * field;
        self.set_conditions(self.conditions() & !(15 << shift) | bits << shift);
    }

    /// Sets a register, and with `record` cr0.
    fn result(&mut self, register: u32, value: u64, record: bool) {
        self.set(register, value);
        if record {
            self.set_condition(0, (value as i64).cmp(&0));
        }
    }

    /// `RT = x + y + carry`, with the carry out.
    fn carrying(&mut self, x: u64, y: u64, carry: u64, record: bool) -> Result<(), Reason> {
        let wide = u128::from(x) + u128::from(y) + u128::from(carry);
        let low = (x & 0xffff_ffff) + (y & 0xffff_ffff) + carry;
        self.set_carry(wide >> 64 != 0, low >> 32 != 0)?;
        self.result(self.word.rt(), wide as u64, record);
        Ok(())
    }

    /// BF and L of the compare instructions.
    fn compare(&mut self, a: u64, b: u64, signed: bool) {
        let doubleword = self.word.rt() & 1 != 0;
        let ordering = match (signed, doubleword) {
            (true, true) => (a as i64).cmp(&(b as i64)),
            (true, false) => (a as i32).cmp(&(b as i32)),
            (false, true) => a.cmp(&b),
            (false, false) => (a as u32).cmp(&(b as u32)),
        };
        self.set_condition(self.word.rt() >> 2, ordering);
    }

    fn compare_immediate(&mut self) {
        match self.word.primary() {
            10 => self.compare(self.a(), u64::from(self.word as u16), false),
            _ => self.compare(self.a(), self.word.d() as u64, true),
        }
    }

    fn logic_immediate(&mut self) {
        let immediate = u64::from(self.word as u16) << (16 * (self.word.primary() & 1));
        let (value, record) = match self.word.primary() {
            24 | 25 => (self.s() | immediate, false),
            26 | 27 => (self.s() ^ immediate, false),
            _ => (self.s() & immediate, true),
        };
        self.result(self.word.ra(), value, record);
    }

    /// Book I, 3.3.14: the word is rotated in both halves of the register at once.
    fn rotate_word(&mut self) {
        let word = self.word;
        let by = if word.primary() == 23 { self.b() as u32 & 31 } else { word.rb() };
        let rotated = u64::from((self.s() as u32).rotate_left(by));
        let mask = mask(32 + (word >> 6 & 31), 32 + (word >> 1 & 31));
        let kept = if word.primary() == 20 { self.a() & !mask } else { 0 };
        self.result(word.ra(), (rotated << 32 | rotated) & mask | kept, word.last());
    }

    fn rotate_doubleword(&mut self) -> Result<(), Reason> {
        let word = self.word;
        let bound = word >> 6 & 31 | word & 0x20;
        let immediate = word.rb() | word << 4 & 0x20;
        let (by, mask, insert) = match word >> 1 & 15 {
            0 | 1 => (immediate, mask(bound, 63), false),
            2 | 3 => (immediate, mask(0, bound), false),
            4 | 5 => (immediate, mask(bound, 63 - immediate), false),
            6 | 7 => (immediate, mask(bound, 63 - immediate), true),
            8 => (self.b() as u32 & 63, mask(bound, 63), false),
            9 => (self.b() as u32 & 63, mask(0, bound), false),
            _ => return Err(Reason::NotAnInstruction),
        };
        let kept = if insert { self.a() & !mask } else { 0 };
        self.result(word.ra(), self.s().rotate_left(by) & mask | kept, word.last());
        Ok(())
    }

    /// `mcrf` and the logic of single bits.
    fn condition_logic(&mut self) -> Result<(), Reason> {
        let (word, cr) = (self.word, self.conditions());
        let bit = |n: u32| cr << n & 1 << 31 != 0;
        let (a, b) = (bit(word.ra()), bit(word.rb()));
        let value = match word.xo() {
            0 => {
                let field = cr >> (28 - 4 * (word.ra() >> 2)) & 15;
                let shift = 28 - 4 * (word.rt() >> 2);
                self.set_conditions(cr & !(15 << shift) | field << shift);
                return Ok(());
            }
            33 => !(a | b),
            129 => a & !b,
            193 => a ^ b,
            225 => !(a & b),
            257 => a & b,
            289 => a == b,
            417 => a | !b,
            449 => a | b,
            _ => return Err(Reason::NotEmulated("a barrier")),
        };
        let shift = 31 - word.rt();
        self.set_conditions(cr & !(1 << shift) | u32::from(value) << shift);
        Ok(())
    }

    /// Primary opcode 31.
    fn extended(&mut self) -> Result<(), Reason> {
        let word = self.word;
        let (s, a, b) = (self.s(), self.a(), self.b());
        // What goes to RT …
        let sum = match word.xo() {
            40 => Some(b.wrapping_sub(a)),
            104 => Some(a.wrapping_neg()),
            233 => Some(a.wrapping_mul(b)),
            235 => Some(i64::from(a as i32).wrapping_mul(i64::from(b as i32)) as u64),
            9 => Some(((u128::from(a) * u128::from(b)) >> 64) as u64),
            73 => Some(((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64),
            266 => Some(a.wrapping_add(b)),
            _ => None,
        };
        // … and what goes to RA.
        let logic = match word.xo() {
            27 => Some(s.checked_shl(b as u32 & 127).unwrap_or(0)),
            539 => Some(s.checked_shr(b as u32 & 127).unwrap_or(0)),
            24 => Some(u64::from((s as u32).checked_shl(b as u32 & 63).unwrap_or(0))),
            536 => Some(u64::from((s as u32).checked_shr(b as u32 & 63).unwrap_or(0))),
            26 => Some(u64::from((s as u32).leading_zeros())),
            58 => Some(u64::from(s.leading_zeros())),
            538 => Some(u64::from((s as u32).trailing_zeros())),
            570 => Some(u64::from(s.trailing_zeros())),
            28 => Some(s & b),
            60 => Some(s & !b),
            124 => Some(!(s | b)),
            284 => Some(!(s ^ b)),
            316 => Some(s ^ b),
            412 => Some(s | !b),
            444 => Some(s | b),
            476 => Some(!(s & b)),
            922 => Some(s as i16 as u64),
            954 => Some(s as i8 as u64),
            986 => Some(s as i32 as u64),
            506 => Some(u64::from(s.count_ones())),
            _ => None,
        };
        match (sum, logic) {
            (Some(value), _) => self.result(word.rt(), value, word.last()),
            // popcntd has no record form.
            (_, Some(value)) => self.result(word.ra(), value, word.last() && word.xo() != 506),
            _ => return self.carries_compares_moves(s, a, b),
        }
        Ok(())
    }

    fn carries_compares_moves(&mut self, s: u64, a: u64, b: u64) -> Result<(), Reason> {
        let (word, carry) = (self.word, self.carry());
        match word.xo() {
            0 => self.compare(a, b, true),
            32 => self.compare(a, b, false),
            8 => return self.carrying(!a, b, 1, word.last()),
            10 => return self.carrying(a, b, 0, word.last()),
            136 => return self.carrying(!a, b, carry, word.last()),
            138 => return self.carrying(a, b, carry, word.last()),
            200 => return self.carrying(!a, 0, carry, word.last()),
            202 => return self.carrying(a, 0, carry, word.last()),
            232 => return self.carrying(!a, u64::MAX, carry, word.last()),
            234 => return self.carrying(a, u64::MAX, carry, word.last()),
            792 => return self.shift_right_word(b as u32 & 63),
            824 => return self.shift_right_word(word.rb()),
            794 => return self.shift_right_doubleword(b as u32 & 127),
            826 | 827 => return self.shift_right_doubleword(word.rb() | word << 4 & 0x20),
            // isel: the condition's number is in the upper half of the extended opcode.
            xo if xo & 31 == 15 => {
                let chosen = self.conditions() << (xo >> 5) & 1 << 31 != 0;
                self.set(word.rt(), if chosen { self.a_or_zero() } else { b });
            }
            19 => self.read_condition()?,
            144 => self.write_condition(s)?,
            339 | 467 => self.special()?,
            _ => return Err(Reason::NotEmulated("this instruction")),
        }
        Ok(())
    }

    /// The carry says whether ones were shifted out of a negative number.
    fn shift_right_word(&mut self, by: u32) -> Result<(), Reason> {
        let s = i64::from(self.s() as i32);
        let value = s >> by.min(63);
        let carry = s < 0 && value << by.min(63) != s;
        self.set_carry(carry, carry)?;
        self.result(self.word.ra(), value as u64, self.word.last());
        Ok(())
    }

    fn shift_right_doubleword(&mut self, by: u32) -> Result<(), Reason> {
        let s = self.s() as i64;
        let value = s >> by.min(63);
        let carry = s < 0 && (by > 63 || value << by != s);
        self.set_carry(carry, carry)?;
        self.result(self.word.ra(), value as u64, self.word.last());
        Ok(())
    }

    /// The one-field forms have an undefined result when they name another number of fields.
    fn one_field(&self) -> Result<(), Reason> {
        match self.word & 1 << 20 != 0 && (self.word >> 12 & 0xff).count_ones() != 1 {
            true => Err(Reason::NotEmulated("an invalid form")),
            false => Ok(()),
        }
    }

    /// `mfcr` and `mfocrf`
    fn read_condition(&mut self) -> Result<(), Reason> {
        self.one_field()?;
        let mask = if self.word & 1 << 20 != 0 { self.fields() } else { u32::MAX };
        self.set(self.word.rt(), u64::from(self.conditions() & mask));
        Ok(())
    }

    /// `mtcrf` and `mtocrf`
    fn write_condition(&mut self, s: u64) -> Result<(), Reason> {
        self.one_field()?;
        let mask = self.fields();
        self.set_conditions(self.conditions() & !mask | s as u32 & mask);
        Ok(())
    }

    /// The bits of the fields that FXM names.
    fn fields(&self) -> u32 {
        (0..8).filter(|field| self.word >> (12 + field) & 1 != 0).map(|field| 15 << (4 * field)).sum()
    }

    /// `mfspr` and `mtspr` of lr and ctr; `mfspr` of xer.
    fn special(&mut self) -> Result<(), Reason> {
        let read = self.word.xo() == 339;
        let special = match self.word.spr() {
            1 if read => XER,
            8 => LR,
            9 => CTR,
            _ => return Err(Reason::NotEmulated("a special register")),
        };
        if read {
            self.set(self.word.rt(), self.thread.register(special))
        } else {
            self.thread.set_register(special, self.s())
        }
        Ok(())
    }
}

/// Ones from bit `from` through bit `to`, numbered from the most significant; around the end when `from > to`.
fn mask(from: u32, to: u32) -> u64 {
    let (left, right) = (u64::MAX >> from, u64::MAX << (63 - to));
    if from <= to { left & right } else { left | right }
}
