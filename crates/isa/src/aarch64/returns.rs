//! Whether a function may be followed to its return.
//!
//! The body of a followed call sees the detour's return point in x30. That is no harm as long as it only
//! keeps x30 and returns by it; it is when the function looks at it (`__builtin_return_address`, `_mcount`),
//! stores it elsewhere than in its frame (`setjmp`, `getcontext`), keeps it in another register (its callees
//! would then share its stack slot, see [`super::detour`]) or returns by another way (`longjmp`).
//!
//! Where it signs the address, it does so with the stack pointer that it was called with, and by one key: what is stored when probes are taken out
//! has to be signed anew.
//!
//! The code is gone through in address order, with what is known of sp and x29. After a return or a jump the
//! frame is taken to be as the prologue left it, which is how compilers lay out their blocks.

use super::decode::{Form, RegisterBranch, field, form, hint, signed, word};
use super::operands::operands;
use crate::{Reason, Site};

const LINK: u32 = 1 << 30;

/// What is known at one instruction. Stack addresses are relative to sp at the entry.
#[derive(Clone, Copy, Debug)]
struct State {
    /// x30 is the return address.
    holds: bool,
    /// sp, if known.
    sp: Option<i64>,
    /// x29, if it points into the frame.
    frame: Option<i64>,
    /// Where the return address was stored.
    saved: Option<i64>,
    /// It was stored in another place too, on another way through the function.
    elsewhere: bool,
    /// By which key it was signed, if it was.
    key: Option<u8>,
    /// The same of what was stored.
    saved_key: Option<u8>,
    /// The deepest known sp.
    deepest: i64,
    /// A register that was set to a constant: where a frame is larger than an instruction can say.
    constant: Option<(u32, u64)>,
}

/// The verdict for call-paired return probes.
pub fn return_verdict(site: &Site<'_>) -> Result<(), Reason> {
    let mut state = State::ENTRY;
    for chunk in site.code.chunks_exact(4) {
        state.step(word(chunk).unwrap_or_default())?;
    }
    Ok(())
}

/// The key by which an instruction signs the return address: the number of the hint.
pub(super) fn key(word: u32) -> Option<u8> {
    match form(word) {
        Form::Hint(number @ (hint::PACIASP | hint::PACIBSP)) => Some(number),
        _ => None,
    }
}

/// The address of the first instruction that signs the return address.
pub(super) fn signed_by(site: &Site<'_>) -> Option<u64> {
    let index = site.code.chunks_exact(4).position(|chunk| word(chunk).and_then(key).is_some())?;
    Some(site.function + 4 * index as u64)
}

/// Where the function keeps its return address, if it stores it in one place only and signs it before, if at all: relative to sp at the entry,
/// in bytes; negative, a multiple of 8.
pub fn saved(site: &Site<'_>) -> Option<i64> {
    let mut state = State::ENTRY;
    for word in site.code.chunks_exact(4).filter_map(word) {
        state.step(word).ok()?;
    }
    let is_one_place = !state.elsewhere && state.saved_key == state.key;
    state.saved.filter(|offset| *offset < 0 && offset % 8 == 0 && is_one_place)
}

impl State {
    const ENTRY: Self = Self {
        holds: true,
        sp: Some(0),
        frame: None,
        saved: None,
        elsewhere: false,
        key: None,
        saved_key: None,
        deepest: 0,
        constant: None,
    };

    fn step(&mut self, word: u32) -> Result<(), Reason> {
        let form = form(word);
        let used = operands(word).unwrap_or_default();
        let access = Access::of(word);
        match (key(word), form) {
            (Some(key), _) => self.sign(key)?,
            // Ways to sign that we cannot repeat.
            (None, Form::Hint(hint::PACIAZ | hint::PACIBZ | hint::PACM)) => return Err(Reason::ReturnsOddly),
            _ => {}
        }
        if let Some(access) = &access {
            self.access(access)?;
        } else if self.holds && used.reads & LINK != 0 {
            match form {
                Form::Hint(hint::XPACLRI) => return Err(Reason::ReadsReturnAddress),
                Form::Hint(_)
                | Form::RegisterBranch { kind: RegisterBranch::Return | RegisterBranch::Jump, .. } => {}
                _ => return Err(Reason::ReadsReturnAddress),
            }
        }
        if matches!(form, Form::RegisterBranch { kind: RegisterBranch::Return, rn, .. } if rn != 30) {
            return Err(Reason::ReturnsOddly);
        }
        if access.is_none() && used.writes & LINK != 0 && !matches!(form, Form::Hint(_)) {
            self.holds = false;
        }
        self.stack_pointer(word, used.writes);
        self.constant(word, used.writes);
        if !form.flow(0).falls_through() {
            self.holds = self.saved.is_none();
            self.sp = Some(self.deepest);
        }
        Ok(())
    }

    /// The first instruction that signs stands where the stack pointer is that of the entry. Others are of other ways through the function.
    fn sign(&mut self, key: u8) -> Result<(), Reason> {
        let is_as_others = match self.key {
            None => self.sp == Some(0),
            Some(other) => other == key,
        };
        self.key = Some(key);
        is_as_others.then_some(()).ok_or(Reason::ReturnsOddly)
    }

    /// A load or store: of the return address, or from where it was saved.
    fn access(&mut self, access: &Access) -> Result<(), Reason> {
        let base = match access.base {
            31 => self.sp,
            29 => self.frame,
            _ => None,
        };
        for (register, offset) in access.data() {
            let place = base.map(|base| base + access.offset + offset);
            match (register == 30, access.loads) {
                (true, false) if self.holds => match place {
                    Some(_) => {
                        let is_other = |saved| Some(saved) != place || self.saved_key != self.key;
                        self.elsewhere |= self.saved.is_some_and(is_other);
                        self.saved = place;
                        self.saved_key = self.key;
                    }
                    None => return Err(Reason::ReadsReturnAddress),
                },
                // A frame record that is laid on another way.
                (true, false) if access.registers[0] == Some(29) => self.elsewhere |= place != self.saved,
                // Back from where it was saved, or a register like any other that was spilled.
                (true, true) if access.base == 31 || access.base == 29 => {
                    self.holds = place.is_none() || place == self.saved;
                }
                // From a jump buffer.
                (true, true) if self.saved.is_none() => return Err(Reason::ReturnsOddly),
                (true, true) => self.holds = false,
                (false, true) if access.size == 8 && place.is_some() && place == self.saved => {
                    return Err(Reason::ReadsReturnAddress);
                }
                _ => {}
            }
        }
        if access.base == 31 {
            self.move_sp(self.sp.map(|sp| sp + access.moves));
        }
        Ok(())
    }

    fn move_sp(&mut self, sp: Option<i64>) {
        self.sp = sp;
        self.deepest = self.deepest.min(sp.unwrap_or(0));
    }

    /// Follows a register that is set by `movz` and `movk`, up to the next call.
    fn constant(&mut self, word: u32, writes: u32) {
        let (rd, bits, at) = (field(word, 0, 5), u64::from(field(word, 5, 16)), 16 * field(word, 21, 2));
        self.constant = match (word & 0x7f80_0000, self.constant) {
            (0x5280_0000, _) => Some((rd, bits << at)),
            (0x7280_0000, Some((register, value))) if register == rd => {
                Some((rd, value & !(0xffff << at) | bits << at))
            }
            (_, Some((register, _))) if writes & (1 << register | LINK) != 0 => None,
            (_, known) => known,
        };
    }

    /// Follows sp and x29 through additions of constants.
    fn stack_pointer(&mut self, word: u32, writes: u32) {
        let (rd, rn) = (field(word, 0, 5), field(word, 5, 5));
        if word & 0xbf80_0000 == 0x9100_0000 {
            let amount = i64::from(field(word, 10, 12)) << (12 * field(word, 22, 1));
            let amount = if field(word, 30, 1) != 0 { -amount } else { amount };
            let from = match rn {
                31 => self.sp,
                29 => self.frame,
                _ => None,
            };
            match rd {
                31 => self.move_sp(from.map(|from| from + amount)),
                29 => self.frame = from.map(|from| from + amount),
                _ => {}
            }
        } else if word & 0xffe0_001f == 0x8b20_001f || word & 0xffe0_001f == 0xcb20_001f {
            // A register is added, or taken away: to sp itself, all of it and not shifted?
            let is_plain = rn == 31 && field(word, 10, 6) == 0b01_1000;
            let known = self.constant.filter(|known| is_plain && known.0 == field(word, 16, 5));
            let amount = known.map(|known| known.1 as i64 * if field(word, 30, 1) != 0 { -1 } else { 1 });
            self.move_sp(self.sp.zip(amount).map(|(sp, amount)| sp.wrapping_add(amount)));
        } else if word & 0xffa0_f000 == 0x0420_5000 {
            // addvl, addpl and those of streaming mode add what the length of vectors says.
            match rd {
                31 => self.move_sp(None),
                29 => self.frame = None,
                _ => {}
            }
        } else if writes & 1 << 29 != 0 {
            self.frame = None;
        }
    }
}

/// A load or store of 32 or 64-bit general registers.
struct Access {
    loads: bool,
    size: u8,
    registers: [Option<u8>; 2],
    base: u8,
    /// From the base before the instruction.
    offset: i64,
    /// What is added to the base.
    moves: i64,
}

impl Access {
    fn of(word: u32) -> Option<Self> {
        let [rt, base, rt2] = [0, 5, 10].map(|low| field(word, low, 5) as u8);
        let loads = field(word, 22, 1) != 0;
        if word & 0x7e00_0000 == 0x2800_0000 {
            let size = if word >> 31 != 0 { 8 } else { 4 };
            let amount = signed(word, 15, 7) * i64::from(size);
            let (offset, moves) = match field(word, 23, 2) {
                1 => (0, amount),
                3 => (amount, amount),
                _ => (amount, 0),
            };
            return Some(Self { loads, size, registers: [Some(rt), Some(rt2)], base, offset, moves });
        }
        if word & 0xbf00_0000 == 0xb900_0000 && field(word, 22, 2) < 2 {
            let size: u8 = if field(word, 30, 1) != 0 { 8 } else { 4 };
            let offset = i64::from(field(word, 10, 12)) * i64::from(size);
            return Some(Self { loads, size, registers: [Some(rt), None], base, offset, moves: 0 });
        }
        if word & 0xbf20_0000 == 0xb800_0000 && field(word, 22, 2) < 2 {
            let size = if field(word, 30, 1) != 0 { 8 } else { 4 };
            let amount = signed(word, 12, 9);
            let (offset, moves) = match field(word, 10, 2) {
                1 => (0, amount),
                3 => (amount, amount),
                _ => (amount, 0),
            };
            return Some(Self { loads, size, registers: [Some(rt), None], base, offset, moves });
        }
        None
    }

    /// Registers with their offsets.
    fn data(&self) -> impl Iterator<Item = (u8, i64)> {
        self.registers.into_iter().flatten().zip([0, i64::from(self.size)])
    }
}
