//! How long is this instruction, and where can control go after it?
//!
//! Instructions are told apart by mask and value. On Power only a handful depend on where they stand or must not run
//! elsewhere; they are named in [`Form`], and everything else is [`Form::Plain`]. Section numbers are those of the
//! Power ISA 3.1B, bit numbers too: bit 0 is the most significant one.

use crate::{DecodeError, Flow, Instruction};

/// Length of a word instruction, and of the patch.
pub(super) const WORD: u8 = 4;
/// A prefixed instruction must not cross a boundary of this many bytes (Book I, 1.6.3).
pub(super) const PREFIX_LINE: u64 = 64;
/// `ori 0,0,0`
pub(super) const NOP: u32 = 0x6000_0000;
/// A jump through the count register.
pub(super) const BCTR: u32 = 0x4e80_0420;

/// What an instruction is, as far as moving it is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Does the same wherever it stands.
    Plain,
    /// A branch of any kind.
    Branch(Branch),
    /// `addpcis`: `register = value`, which is the address of the next instruction plus a constant.
    AddPcIs { register: u32, value: u64 },
    /// Eight bytes: a prefix and a suffix. `relative` when its operand is an offset from its own address.
    Prefixed { relative: bool },
    /// `lbarx` … `lqarx`: opens a reservation.
    LoadReserve,
    /// `stbcx.` … `stqcx.`: closes it.
    StoreConditional,
    /// `tw`, `td`, `twi`, `tdi`. Whether it always traps.
    Trap { always: bool },
    /// `sc`, `scv`, and returns from interrupts and event handlers.
    System(&'static str),
}

/// A branch, of the I form, the B form or the XL form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    /// The BO field; [`Branch::ALWAYS`] for the I form.
    pub bo: u32,
    /// The BI field: which bit of the condition register.
    pub bi: u32,
    /// Where to.
    pub to: Destination,
    /// Whether the link register is set, which happens whether the branch is taken or not.
    pub link: bool,
}

/// Where a branch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To a fixed address.
    Address(u64),
    /// To the link register.
    Link,
    /// To the count register.
    Count,
    /// To the target address register.
    Tar,
}

impl Branch {
    /// BO of a branch that is always taken.
    pub const ALWAYS: u32 = 0b10100;

    /// Whether neither a condition nor the count register is looked at.
    pub fn always(&self) -> bool {
        self.bo & Self::ALWAYS == Self::ALWAYS
    }

    /// Whether the count register is decremented and tested.
    pub fn counts(&self) -> bool {
        self.bo & 0b00100 == 0
    }

    fn flow(&self) -> Flow {
        match (self.to, self.link) {
            (Destination::Address(target), true) => Flow::Call { target },
            (Destination::Address(target), false) if self.always() => Flow::Jump { target },
            (Destination::Address(target), false) => Flow::Branch { target },
            (_, true) => Flow::IndirectCall,
            (Destination::Link, false) if self.always() => Flow::Return,
            (_, false) if self.always() => Flow::IndirectJump,
            // A conditional return or indirect jump. `Flow` has no name for what happens when it is taken.
            (_, false) => Flow::Next,
        }
    }
}

/// Fields of an instruction word, by their names in the manual.
pub(super) trait Fields: Copy {
    /// The word itself.
    fn word(self) -> u32;

    /// Primary opcode.
    fn primary(self) -> u32 {
        self.word() >> 26
    }
    /// RT, RS, BO or TO.
    fn rt(self) -> u32 {
        self.word() >> 21 & 31
    }
    /// RA or BI.
    fn ra(self) -> u32 {
        self.word() >> 16 & 31
    }
    /// RB or SH.
    fn rb(self) -> u32 {
        self.word() >> 11 & 31
    }
    /// Extended opcode of the X, XL and XFX forms.
    fn xo(self) -> u32 {
        self.word() >> 1 & 0x3ff
    }
    /// Sign-extended immediate of the D form.
    fn d(self) -> i64 {
        i64::from(self.word() as i16)
    }
    /// Rc, LK: the last bit.
    fn last(self) -> bool {
        self.word() & 1 != 0
    }
    /// SPR, with its halves put in order.
    fn spr(self) -> u32 {
        self.ra() | self.rb() << 5
    }
}

impl Fields for u32 {
    fn word(self) -> u32 {
        self
    }
}

/// The little-endian word at `offset`.
pub(super) fn word_at(code: &[u8], offset: usize) -> Option<u32> {
    let bytes = code.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Sign-extends the lowest `bits` bits.
pub(super) fn sign_extend(value: u64, bits: u32) -> i64 {
    (value << (64 - bits)) as i64 >> (64 - bits)
}

/// The instruction at the start of `code`, which stands at `address`: what it is, and its length.
pub(super) fn form(code: &[u8], address: u64) -> Result<(Form, u8), DecodeError> {
    let word = word_at(code, 0).ok_or(DecodeError::Truncated)?;
    if !address.is_multiple_of(4) {
        return Err(DecodeError::Invalid);
    }
    let form = match word.primary() {
        // 0 is illegal by definition, the others are reserved (Book I, appendix C).
        0 | 5 | 9 | 22 => return Err(DecodeError::Invalid),
        1 => return prefixed(word, code, address).map(|form| (form, 2 * WORD)),
        2 | 3 => Form::Trap { always: word.rt() == 31 },
        16 => {
            let to = destination(word, address, sign_extend(u64::from(word & 0xfffc), 16));
            Form::Branch(Branch { bo: word.rt(), bi: word.ra(), to, link: word.last() })
        }
        17 => Form::System(if word & 2 != 0 { "a system call" } else { "a vectored system call" }),
        18 => {
            let to = destination(word, address, sign_extend(u64::from(word & 0x03ff_fffc), 26));
            Form::Branch(Branch { bo: Branch::ALWAYS, bi: 0, to, link: word.last() })
        }
        19 => form_19(word, address)?,
        31 => form_31(word),
        _ => Form::Plain,
    };
    Ok((form, WORD))
}

fn destination(word: u32, address: u64, offset: i64) -> Destination {
    let base = if word & 2 != 0 { 0 } else { address };
    Destination::Address(base.wrapping_add_signed(offset))
}

/// Branches to registers, the logic of the condition register, and what returns from interrupts.
fn form_19(word: u32, address: u64) -> Result<Form, DecodeError> {
    let branch = |to| Branch { bo: word.rt(), bi: word.ra(), to, link: word.last() };
    Ok(match word.xo() {
        // addpcis has its extended opcode in five bits, its immediate around them: d0 | d1 | d2.
        xo if xo & 31 == 2 => {
            let d = word & 0xffc1 | word.ra() << 1;
            let value = address.wrapping_add(4).wrapping_add_signed(sign_extend(u64::from(d), 16) << 16);
            Form::AddPcIs { register: word.rt(), value }
        }
        0 | 33 | 129 | 150 | 193 | 225 | 257 | 289 | 417 | 449 => Form::Plain,
        16 => Form::Branch(branch(Destination::Link)),
        // With the count register as the target it cannot count too: an invalid form.
        528 if branch(Destination::Count).counts() => return Err(DecodeError::Invalid),
        528 => Form::Branch(branch(Destination::Count)),
        560 => Form::Branch(branch(Destination::Tar)),
        18 | 50 | 82 | 274 | 306 | 370 => Form::System("a privileged instruction"),
        146 => Form::System("a return from an event-based branch"),
        _ => return Err(DecodeError::Invalid),
    })
}

fn form_31(word: u32) -> Form {
    match word.xo() {
        4 | 68 => Form::Trap { always: word.rt() == 31 },
        20 | 52 | 84 | 116 | 276 => Form::LoadReserve,
        150 | 182 | 214 | 694 | 726 => Form::StoreConditional,
        _ => Form::Plain,
    }
}

/// Book I, 1.6.3: two bits of the prefix give its type; in two of the four types another says "relative".
fn prefixed(prefix: u32, code: &[u8], address: u64) -> Result<Form, DecodeError> {
    if address % PREFIX_LINE == PREFIX_LINE - 4 {
        return Err(DecodeError::Invalid);
    }
    let suffix = word_at(code, 4).ok_or(DecodeError::Truncated)?;
    let has_relative_form = prefix >> 24 & 1 == 0;
    let relative = has_relative_form && prefix >> 20 & 1 != 0;
    // A relative operand has no base register.
    if relative && suffix.ra() != 0 {
        return Err(DecodeError::Invalid);
    }
    Ok(Form::Prefixed { relative })
}

/// The 34-bit displacement of a prefixed instruction.
pub(super) fn displacement_34(prefix: u32, suffix: u32) -> i64 {
    sign_extend(u64::from(prefix & 0x3_ffff) << 16 | u64::from(suffix & 0xffff), 34)
}

pub(super) fn decode(code: &[u8], address: u64) -> Result<Instruction, DecodeError> {
    let (form, length) = form(code, address)?;
    let flow = match form {
        Form::Branch(branch) => branch.flow(),
        Form::Trap { always: true } => Flow::Stop,
        Form::System(_) if word_at(code, 0).is_some_and(|word| word.primary() == 17) => Flow::System,
        Form::System(_) => Flow::Stop,
        _ => Flow::Next,
    };
    Ok(Instruction { address, length, flow })
}
