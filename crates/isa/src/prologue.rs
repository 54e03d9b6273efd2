//! Which instructions are emulated together in one trap, where writing one register costs what writing all of them does?
//!
//! The thread has trapped and its registers have been read, so more of a prologue may be emulated at once, as long as that
//! makes the hit no dearer. Registers are written by one call, whichever have changed, and stores by another, as long
//! as they are in one piece. So instructions on registers join one that changes anything, and stores to the stack join a store next
//! to which they are. Loads ask the process once more, and are emulated alone. An instruction that a branch may lead to begins a
//! new trap's worth, and so does another probe's: the caller says where the next one is.
//!
//! What an instruction changes is not decoded a second time: it is emulated for a thread that takes notes ([`Trial`]).

use crate::{Displaced, EmulateError, Site, Thread};

/// Most instructions in one trap: more than any prologue that compilers write.
const MOST: u8 = 12;

/// How an instruction set emulates.
pub(crate) struct Emulator {
    /// Number of the stack pointer.
    pub stack_pointer: u8,
    /// Whether control goes on behind the instruction that `code` starts with, whatever is in registers.
    pub leads_on: fn(code: &[u8], address: u64) -> bool,
    /// Emulates the instruction that `code` starts with, and tells its length.
    pub one: fn(code: &[u8], address: u64, thread: &mut dyn Thread) -> Result<u8, EmulateError>,
}

impl Emulator {
    /// The instructions of `site`'s function that are emulated together when a thread traps at `first`: up to the `next` probed
    /// instruction, and to the next one that a branch leads to.
    pub fn together(&self, site: &Site<'_>, first: Displaced, next: Option<u64>) -> Displaced {
        let offset = usize::try_from(first.start.wrapping_sub(site.function)).ok();
        let code = offset.and_then(|offset| site.code.get(offset..)).unwrap_or_default();
        let end = next.unwrap_or(u64::MAX);
        let end = site.targets.first_inside(first.start, end).unwrap_or(end);
        let mut trial = Trial::new(self.stack_pointer);
        let (mut together, mut taken) = (first, 0);
        while taken < MOST {
            let length = if taken == 0 { 0 } else { together.length };
            let (rest, at) =
                (code.get(length.into()..).unwrap_or_default(), first.start.wrapping_add(length.into()));
            let Some(also) = self.joins(rest, at, &mut trial) else { break };
            if taken > 0 {
                if at.saturating_add(also.into()) > end {
                    break;
                }
                together.length += also;
                together.instructions += 1;
            }
            taken += 1;
        }
        together
    }

    /// The length of the instruction that `code` starts with, if it joins those that were tried.
    fn joins(&self, code: &[u8], address: u64, trial: &mut Trial) -> Option<u8> {
        if !(self.leads_on)(code, address) {
            return None;
        }
        let length = (self.one)(code, address, trial).ok()?;
        trial.may_write = trial.written > 0;
        (trial.changed && trial.is_one_piece()).then_some(length)
    }

    /// Does to `thread` what all instructions of `code`, which stands at `address`, do: those that [`Self::together`] has put together.
    ///
    /// # Errors
    /// One of them is not emulated, or would fault; `thread` has to be dropped then.
    pub fn all(&self, code: &[u8], address: u64, thread: &mut dyn Thread) -> Result<(), EmulateError> {
        let mut done = 0;
        while let rest @ [_, ..] = code.get(done..).unwrap_or_default() {
            done += usize::from((self.one)(rest, address.wrapping_add(done as u64), thread)?);
        }
        Ok(())
    }

    /// Where the instruction that `code` starts with leads on, if it is emulated and changes nothing.
    pub fn changes_nothing(&self, code: &[u8], address: u64) -> Option<u64> {
        let mut trial = Trial::new(self.stack_pointer);
        let length = (self.leads_on)(code, address).then(|| (self.one)(code, address, &mut trial))?.ok()?;
        (!trial.changed).then(|| address.wrapping_add(length.into()))
    }
}

/// Where the stack pointer of a trial is.
const STACK: u64 = 1 << 46;
/// How far from there its stack reaches.
const NEAR: u64 = 1 << 20;
/// More registers than have numbers.
const REGISTERS: usize = 64;

/// A thread that takes notes. All that its registers hold, but for the stack pointer, is far away from its stack; where they get there all
/// the same, what is put together turns out to write several pieces when it is emulated, and is run instead.
struct Trial {
    registers: [u64; REGISTERS],
    flags: u64,
    changed: bool,
    /// Whether it may write: the first instruction may, and others if that one did.
    may_write: bool,
    /// The lowest and the highest address written, and how many bytes were.
    low: u64,
    high: u64,
    written: u64,
}

impl Trial {
    fn new(stack_pointer: u8) -> Self {
        let mut registers = core::array::from_fn(|number| (number as u64 + 1) * 0x0123_4567_89ab_cdef);
        registers[usize::from(stack_pointer) % REGISTERS] = STACK;
        Self { registers, flags: 0, changed: false, may_write: true, low: u64::MAX, high: 0, written: 0 }
    }

    fn is_one_piece(&self) -> bool {
        self.written == 0 || self.high - self.low == self.written
    }
}

impl Thread for Trial {
    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number) % REGISTERS]
    }

    fn set_register(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number) % REGISTERS] = value;
        self.changed = true;
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
        self.changed = true;
    }

    fn set_ip(&mut self, _address: u64) {}

    fn segment_base(&self, _gs: bool) -> Option<u64> {
        None
    }

    fn read(&self, _address: u64, _size: u8) -> Option<u64> {
        None
    }

    fn write(&mut self, address: u64, size: u8, _value: u64) -> Option<()> {
        let is_stack = (STACK - NEAR..STACK + NEAR).contains(&address);
        let (low, high) = (self.low.min(address), self.high.max(address.saturating_add(size.into())));
        if !self.may_write || !is_stack {
            return None;
        }
        (self.low, self.high, self.written) = (low, high, self.written + u64::from(size));
        self.changed = true;
        Some(())
    }
}
