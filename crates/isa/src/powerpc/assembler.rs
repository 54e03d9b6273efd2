//! An assembler for the few instructions that patches, slots and detours are made of.
//!
//! Its arithmetic touches neither a condition nor the carry, and its conditions are in cr0 alone: so that little has to be
//! saved around it.

use crate::Reason;
use alloc::vec::Vec;

/// A general register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gpr(pub u32);

macro_rules! registers {
    ($($name:ident = $number:literal),*) => { $(pub(super) const $name: Gpr = Gpr($number);)* };
}
registers!(
    R0 = 0,
    R1 = 1,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13
);

/// Special purpose registers.
pub(super) const XER: u32 = 1;
pub(super) const LR: u32 = 8;
pub(super) const CTR: u32 = 9;
/// What the kernel has written for the vDSO's `getcpu`.
pub(super) const PROCESSOR: u32 = 259;
/// The time base, as a program may read it.
pub(super) const TIME_BASE: u32 = 268;

/// Conditions of a branch, on cr0, whose bits a comparison and `stdcx.` set.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// Equal; after `stdcx.`: stored.
    Equal,
    /// Not equal; after `stdcx.`: lost the reservation.
    NotEqual,
    /// Less.
    Less,
    /// Not less.
    NotLess,
    /// Behind a system call: it has not failed.
    Succeeded,
}

/// A place in the code, perhaps not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// Machine code under construction.
#[derive(Debug)]
pub(super) struct Asm {
    address: u64,
    words: Vec<u32>,
    labels: Vec<Option<usize>>,
    holes: Vec<Hole>,
}

/// A word whose distance to a label is not known yet.
#[derive(Clone, Copy, Debug)]
struct Hole {
    word: usize,
    to: Label,
    /// The word that the distance is counted from: of a branch its own.
    from: usize,
}

impl Asm {
    /// Code to stand at `address`.
    pub fn new(address: u64) -> Self {
        Self { address, words: Vec::new(), labels: Vec::new(), holes: Vec::new() }
    }

    /// Address of the next instruction.
    pub fn here(&self) -> u64 {
        self.address.wrapping_add(u64::from(self.offset()))
    }

    /// Offset of the next instruction.
    pub fn offset(&self) -> u32 {
        self.words.len() as u32 * 4
    }

    /// A label to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// A label bound here.
    pub fn here_label(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Binds `label` here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.words.len());
    }

    /// The finished code.
    pub fn finish(mut self) -> Result<Vec<u8>, Reason> {
        for &Hole { word, to, from } in &self.holes {
            let target = self.labels[to.0].ok_or(Reason::OutOfReach)?;
            let distance = (target as i64 - from as i64) * 4;
            let word = &mut self.words[word];
            *word |= match *word >> 26 {
                14 | 16 => u32::from(i16::try_from(distance).map_err(|_| Reason::OutOfReach)? as u16),
                _ => i_form(0, 0, distance as u64)?,
            } & 0x03ff_fffc;
        }
        Ok(self.words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Any instruction.
    pub fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    fn x_form(&mut self, primary: u32, xo: u32, t: Gpr, a: Gpr, b: Gpr) {
        self.word(primary << 26 | t.0 << 21 | a.0 << 16 | b.0 << 11 | xo << 1);
    }

    /// Has the instruction that was just pushed say in cr0 what has come of it.
    fn record(&mut self) {
        *self.words.last_mut().expect("just pushed") |= 1;
    }

    pub(super) fn d_form(&mut self, primary: u32, t: Gpr, a: Gpr, d: i16) {
        self.word(primary << 26 | t.0 << 21 | a.0 << 16 | u32::from(d as u16));
    }

    // Constants and arithmetic, none of which touches a condition or the carry.

    /// `t = a + d`. `a` must not be r0, which would mean zero.
    pub fn addi(&mut self, t: Gpr, a: Gpr, d: i16) {
        debug_assert!(a != R0, "r0 reads as zero");
        self.d_form(14, t, a, d);
    }

    /// `t = a + offset`, in one or two instructions; offsets are below 2 GiB.
    pub fn add_offset(&mut self, t: Gpr, a: Gpr, offset: u32) {
        debug_assert!(a != R0 && t != R0, "r0 reads as zero");
        let low = offset as i16;
        let high = (offset.wrapping_sub(low as u32) >> 16) as i16;
        match (high, low) {
            (0, low) => self.addi(t, a, low),
            (high, low) => {
                self.d_form(15, t, a, high);
                self.addi(t, t, low);
            }
        }
    }

    /// `t = value`, in one to five instructions.
    pub fn load_constant(&mut self, t: Gpr, value: u64) {
        let parts: [u16; 4] = core::array::from_fn(|i| (value >> (16 * i)) as u16);
        if value as i16 as u64 == value {
            return self.d_form(14, t, R0, value as i16);
        }
        if value as i32 as u64 == value {
            self.d_form(15, t, R0, parts[1] as i16);
        } else {
            if value >> 32 == u64::from(parts[2]) && parts[2] < 0x8000 {
                self.d_form(14, t, R0, parts[2] as i16);
            } else {
                self.d_form(15, t, R0, parts[3] as i16);
                self.or_immediate(24, t, parts[2]);
            }
            self.shift_left(t, t, 32);
            self.or_immediate(25, t, parts[1]);
        }
        self.or_immediate(24, t, parts[0]);
    }

    /// `t = address of label`, in two to six instructions.
    pub fn load_address(&mut self, t: Gpr, label: Label) {
        debug_assert!(t != R0, "r0 reads as zero");
        let from = self.words.len();
        self.load_constant(t, self.here());
        self.holes.push(Hole { word: self.words.len(), to: label, from });
        self.addi(t, t, 0);
    }

    /// `t` += `value` - low, where `low` is returned, by way of `temporary`; `t` is below 2^`bits`. In two instructions where `value` is little more or
    /// less than a multiple of as large a power of 2 ([`Facts::best_multiple`](crate::Facts)).
    pub fn add_constant_but_low(&mut self, t: Gpr, temporary: Gpr, value: u64, bits: u32) -> i16 {
        let low = low_part(value);
        let high = value.wrapping_sub(low as u64);
        // As much as a positive immediate holds.
        let shift = bits.max((64 - high.leading_zeros()).saturating_sub(15));
        if high != 0 && high.trailing_zeros() >= shift {
            self.load_constant(temporary, high >> shift);
            self.rotate(3, t, temporary, shift, 0);
        } else {
            self.load_constant(temporary, high);
            self.add(t, t, temporary);
        }
        low
    }

    /// `t = address of label`, in three instructions, by way of lr. `bcl 20,31,$+4` is the branch that processors do not take for a call.
    pub fn load_address_by_link(&mut self, t: Gpr, label: Label) {
        debug_assert!(t != R0, "r0 reads as zero");
        self.word(0x429f_0005);
        let from = self.words.len();
        self.read_special(t, LR);
        self.holes.push(Hole { word: self.words.len(), to: label, from });
        self.addi(t, t, 0);
    }

    fn or_immediate(&mut self, primary: u32, t: Gpr, value: u16) {
        if value != 0 {
            self.d_form(primary, t, t, value as i16);
        }
    }

    /// `t = a ^ (bits << 16)`
    pub fn flip_high(&mut self, t: Gpr, a: Gpr, bits: u16) {
        self.d_form(27, a, t, bits as i16);
    }

    /// `t = a + b`
    pub fn add(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 266, t, a, b);
    }

    /// `t = a - b`
    pub fn sub(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 40, t, b, a);
    }

    /// `t = a * b`
    pub fn multiply(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 233, t, a, b);
    }

    /// `t = a | b`
    pub fn or(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 444, a, t, b);
    }

    /// `t = a ^ b`
    pub fn xor(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 316, a, t, b);
    }

    /// `t = !(a ^ b)`, compared with 0 in cr0: equal if `a` is the complement of `b`.
    pub fn compare_complement(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 284, a, t, b);
        self.record();
    }

    /// `t = -a`
    pub fn negate(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 104, t, a, R0);
    }

    /// `t = !a`
    pub fn complement(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 124, a, t, a);
    }

    /// `t = a`
    pub fn copy(&mut self, t: Gpr, a: Gpr) {
        self.or(t, a, a);
    }

    /// `t = a >> (b & 127)`
    pub fn shift_right_by(&mut self, t: Gpr, a: Gpr, b: Gpr) {
        self.x_form(31, 539, a, t, b);
    }

    /// `t` = the low bytes of `a` as a signed number: 1, 2 or 4 of them.
    pub fn extend_sign(&mut self, t: Gpr, a: Gpr, bytes: u8) {
        let xo = match bytes {
            ..=1 => 954,
            2 => 922,
            _ => 986,
        };
        self.x_form(31, xo, a, t, R0);
    }

    /// `t` = the bits of the floating-point register `f`, by `mfvsrd`.
    pub fn float_bits(&mut self, t: Gpr, f: u32) {
        self.x_form(31, 51, Gpr(f), t, R0);
    }

    /// `t = number of leading zeros of a`
    pub fn count_leading_zeros(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 58, a, t, R0);
    }

    /// `t = a << n`, by `rldicr`.
    pub fn shift_left(&mut self, t: Gpr, a: Gpr, n: u32) {
        self.rotate(1, t, a, n, 63 - n);
    }

    /// `t = (a >> n) & (2^bits - 1)`, by `rldicl`.
    pub fn extract(&mut self, t: Gpr, a: Gpr, n: u32, bits: u32) {
        match bits {
            0 => self.load_constant(t, 0),
            _ => self.rotate(0, t, a, (64 - n) % 64, 64 - bits),
        }
    }

    /// `t` = `bits` bits of the lower half of `a` from bit `from` on, at bit `to`, by `rlwinm`.
    pub fn move_bits(&mut self, t: Gpr, a: Gpr, from: u32, to: u32, bits: u32) {
        debug_assert!(from + bits <= 32 && to + bits <= 32);
        match bits {
            0 => self.load_constant(t, 0),
            _ => {
                let (by, first, last) = ((32 + to - from) % 32, 32 - to - bits, 31 - to);
                self.word(21 << 26 | a.0 << 21 | t.0 << 16 | by << 11 | first << 6 | last << 1);
            }
        }
    }

    fn rotate(&mut self, xo: u32, t: Gpr, a: Gpr, by: u32, mask: u32) {
        let mask = (mask & 31) << 1 | mask >> 5;
        let fields = a.0 << 21 | t.0 << 16 | (by & 31) << 11 | mask << 5 | xo << 2 | by >> 5 << 1;
        self.word(30 << 26 | fields);
    }

    // Memory.

    /// `t = *(u64 *)(a + d)`; `d` is a multiple of 4.
    pub fn load(&mut self, t: Gpr, a: Gpr, d: i16) {
        debug_assert!(d & 3 == 0);
        self.d_form(58, t, a, d);
    }

    /// `*(u64 *)(a + d) = t`; `d` is a multiple of 4.
    pub fn store(&mut self, t: Gpr, a: Gpr, d: i16) {
        debug_assert!(d & 3 == 0);
        self.d_form(62, t, a, d);
    }

    /// Loads `t`, whose number is even, and the register behind it, by `lq`: the second one from `a + d`, a multiple of 16.
    pub fn load_pair(&mut self, t: Gpr, a: Gpr, d: i16) {
        debug_assert!(t.0 & 1 == 0 && a != t && d & 15 == 0);
        self.d_form(56, t, a, d);
    }

    /// Stores them, by `stq`.
    pub fn store_pair(&mut self, t: Gpr, a: Gpr, d: i16) {
        debug_assert!(t.0 & 1 == 0 && d & 15 == 0);
        self.d_form(62, t, a, d | 2);
    }

    /// `t = *(u32 *)(a + d)`
    pub fn load_word(&mut self, t: Gpr, a: Gpr, d: i16) {
        self.d_form(32, t, a, d);
    }

    /// `t = *(u16 *)(a + d)`
    pub fn load_half(&mut self, t: Gpr, a: Gpr, d: i16) {
        self.d_form(40, t, a, d);
    }

    /// `t = *(u8 *)(a + d)`
    pub fn load_byte(&mut self, t: Gpr, a: Gpr, d: i16) {
        self.d_form(34, t, a, d);
    }

    /// `*(u32 *)(a + d) = t`
    pub fn store_word(&mut self, t: Gpr, a: Gpr, d: i16) {
        self.d_form(36, t, a, d);
    }

    /// `*(u8 *)(a + d) = t`
    pub fn store_byte(&mut self, t: Gpr, a: Gpr, d: i16) {
        self.d_form(38, t, a, d);
    }

    /// `*(double *)(a + d) = f`
    pub fn store_float(&mut self, f: u32, a: Gpr, d: i16) {
        self.d_form(54, Gpr(f), a, d);
    }

    /// `f = *(double *)(a + d)`
    pub fn load_float(&mut self, f: u32, a: Gpr, d: i16) {
        self.d_form(50, Gpr(f), a, d);
    }

    /// Stores the whole vector register whose first half `f` is, by `stxvd2x`.
    pub fn store_vector(&mut self, f: u32, a: Gpr) {
        self.x_form(31, 972, Gpr(f), R0, a);
    }

    /// Loads it, by `lxvd2x`.
    pub fn load_vector(&mut self, f: u32, a: Gpr) {
        self.x_form(31, 844, Gpr(f), R0, a);
    }

    /// Clears it, by `xxlxor`.
    pub fn clear_vector(&mut self, f: u32) {
        self.word(0xf000_04d0 | f << 21 | f << 16 | f << 11);
    }

    /// `mffs f`
    pub fn read_float_status(&mut self, f: u32) {
        self.x_form(63, 583, Gpr(f), R0, R0);
    }

    /// `mtfsf 0xff,f,1,0`: all of it.
    pub fn write_float_status(&mut self, f: u32) {
        self.word(0xfffe_058e | f << 11);
    }

    /// `ldarx`: loads and reserves.
    pub fn load_reserved(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 84, t, R0, a);
    }

    /// `stdcx.`: stores if still reserved, and says so in cr0.
    pub fn store_conditional(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 214, t, R0, a);
        self.record();
    }

    /// `lwarx`: loads a word and reserves.
    pub fn load_word_reserved(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 20, t, R0, a);
    }

    /// `stwcx.`: stores a word if still reserved, and says so in cr0.
    pub fn store_word_conditional(&mut self, t: Gpr, a: Gpr) {
        self.x_form(31, 150, t, R0, a);
        self.record();
    }

    /// `lwsync`: earlier accesses before later ones, except stores before loads.
    pub fn light_sync(&mut self) {
        self.word(0x7c20_04ac);
    }

    /// `*a += 1`, atomically, for what interrupts this thread and for other threads. Changes `t` and cr0.
    pub fn increment(&mut self, a: Gpr, t: Gpr) {
        let again = self.here_label();
        self.load_reserved(t, a);
        self.addi(t, t, 1);
        self.store_conditional(t, a);
        self.branch_if(When::NotEqual, again);
    }

    // Special registers.

    /// `t = spr`
    pub fn read_special(&mut self, t: Gpr, spr: u32) {
        self.word(31 << 26 | t.0 << 21 | (spr & 31) << 16 | spr >> 5 << 11 | 339 << 1);
    }

    /// `spr = t`
    pub fn write_special(&mut self, spr: u32, t: Gpr) {
        self.word(31 << 26 | t.0 << 21 | (spr & 31) << 16 | spr >> 5 << 11 | 467 << 1);
    }

    /// `mfocrf t, cr0`
    pub fn read_cr0(&mut self, t: Gpr) {
        self.word(0x7c18_0026 | t.0 << 21);
    }

    /// `mtocrf cr0, t`
    pub fn write_cr0(&mut self, t: Gpr) {
        self.word(0x7c18_0120 | t.0 << 21);
    }

    // Control.

    /// Compares as signed numbers, into cr0.
    pub fn compare(&mut self, a: Gpr, b: Gpr) {
        self.x_form(31, 0, Gpr(1), a, b);
    }

    /// Compares as unsigned numbers, into cr0.
    pub fn compare_unsigned(&mut self, a: Gpr, b: Gpr) {
        self.x_form(31, 32, Gpr(1), a, b);
    }

    /// Compares with a constant as signed numbers, into cr0.
    pub fn compare_immediate(&mut self, a: Gpr, value: i16) {
        self.d_form(11, Gpr(1), a, value);
    }

    /// What comes next is a branch to `label`.
    fn hole(&mut self, label: Label) {
        let word = self.words.len();
        self.holes.push(Hole { word, to: label, from: word });
    }

    /// Branches on cr0.
    pub fn branch_if(&mut self, when: When, label: Label) {
        let (bo, bi) = match when {
            When::Equal => (12, 2),
            When::NotEqual => (4, 2),
            When::Less => (12, 0),
            When::NotLess => (4, 0),
            When::Succeeded => (4, 3),
        };
        self.hole(label);
        self.word(16 << 26 | bo << 21 | bi << 16);
    }

    /// `b label`
    pub fn branch(&mut self, label: Label) {
        self.hole(label);
        self.word(18 << 26);
    }

    /// `bl label`
    pub fn call(&mut self, label: Label) {
        self.hole(label);
        self.word(18 << 26 | 1);
    }

    /// `b target`
    pub fn branch_to(&mut self, target: u64) -> Result<(), Reason> {
        let word = i_form(0, self.here(), target)?;
        self.word(word);
        Ok(())
    }

    /// `bl target`
    pub fn call_to(&mut self, target: u64) -> Result<(), Reason> {
        let word = i_form(1, self.here(), target)?;
        self.word(word);
        Ok(())
    }

    /// `blrl`
    pub fn call_link(&mut self) {
        self.word(0x4e80_0021);
    }

    /// `blr`
    pub fn return_(&mut self) {
        self.word(0x4e80_0020);
    }

    /// `sc`. A result that is an error is told by the summary overflow of cr0.
    pub fn system_call(&mut self) {
        self.word(0x4400_0002);
    }

    /// `tw 31,0,0`: where control must never come.
    pub fn trap(&mut self) {
        self.word(0x7fe0_0008);
    }
}

/// What [`Asm::add_constant_but_low`] leaves out of `value`.
pub(super) fn low_part(value: u64) -> i16 {
    let low = value as i16;
    // What lies behind it is reached, too, and it can be taken off again.
    if value.is_multiple_of(64) && (-i16::MAX..i16::MAX - 64).contains(&low) { low } else { 0 }
}

/// How far a branch of the I form goes forward, plus 4; backward this far.
pub(super) const REACH: u64 = 1 << 25;

/// `b target`, or `bl` with `link` 1, at `from`.
pub(super) fn i_form(link: u32, from: u64, target: u64) -> Result<u32, Reason> {
    let distance = target.wrapping_sub(from);
    let in_reach = distance.wrapping_add(REACH) < 2 * REACH;
    if !in_reach || !distance.is_multiple_of(4) {
        return Err(Reason::OutOfReach);
    }
    Ok(18 << 26 | distance as u32 & 0x03ff_fffc | link)
}
