//! Sites, the rungs of the ladder, and the reasons why a rung is not taken.
//!
//! A verdict never says only no: each rung of a [`Ladder`] is either what it takes to use it or a [`Reason`].

use alloc::vec::Vec;
use thiserror::Error;

/// How a probe gets control, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// A branch to a detour; no trap.
    Jump,
    /// A trap, then an out-of-line slot that ends in a branch back.
    Boost,
    /// A trap; the instruction's effect is computed on the saved registers.
    Emulate,
    /// A trap, an out-of-line slot, and a second trap after one step.
    Step,
}

impl Mechanism {
    /// The name users see and give.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Jump => "jump",
            Mechanism::Boost => "boost",
            Mechanism::Emulate => "emulate",
            Mechanism::Step => "step",
        }
    }
}

/// A place to probe, with what must be known of its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Address of the probed instruction.
    pub address: u64,
    /// Address of the function's first byte.
    pub function: u64,
    /// The function's bytes, from `function` on.
    pub code: &'a [u8],
    /// What follows the function up to the next one: padding, or nothing. Never another function's code.
    pub padding: &'a [u8],
    /// Addresses in the module that control can reach other than by falling through.
    pub targets: &'a BranchTargets,
}

impl<'a> Site<'a> {
    /// The function's bytes from the probed instruction on. Empty when the address is outside.
    pub fn code_at_site(&self) -> &'a [u8] {
        let offset = self.address.wrapping_sub(self.function);
        usize::try_from(offset).ok().and_then(|o| self.code.get(o..)).unwrap_or_default()
    }
}

/// Every known address of a module that control can arrive at from elsewhere: targets of direct branches, jump
/// tables, landing pads, relocated code pointers. Sorted.
#[derive(Clone, Debug, Default)]
pub struct BranchTargets(Vec<u64>);

impl BranchTargets {
    /// Sorts `addresses` and drops duplicates.
    pub fn new(mut addresses: Vec<u64>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses)
    }

    /// The first target strictly between `start` and `end`: an instruction boundary or not, a patch over
    /// `start..end` would be entered there.
    pub fn first_inside(&self, start: u64, end: u64) -> Option<u64> {
        let next = self.0.partition_point(|&a| a <= start);
        self.0.get(next).copied().filter(|&a| a < end)
    }

    /// Whether control can arrive exactly at `address`.
    pub fn contains(&self, address: u64) -> bool {
        self.0.binary_search(&address).is_ok()
    }

    /// How many addresses there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The whole instructions that a patch replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// Address of the first one: the site, or just behind its `endbr64` or BTI.
    pub start: u64,
    /// Their length in bytes.
    pub length: u8,
    /// How many there are.
    pub instructions: u8,
}

impl Displaced {
    /// Address of the first instruction that stays.
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(u64::from(self.length))
    }
}

/// What each rung takes at a site, or why it cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Branch to a detour.
    pub jump: Result<Displaced, Reason>,
    /// Trap and boosted slot: the instruction at the trap.
    pub boost: Result<Displaced, Reason>,
    /// Trap and emulation: the instructions emulated in one trap.
    pub emulate: Result<Displaced, Reason>,
    /// Trap, slot and step: the instruction at the trap.
    pub step: Result<Displaced, Reason>,
}

impl Ladder {
    /// The best possible mechanism among those `allowed`, or the reason why the best allowed one is impossible.
    pub fn best(&self, allowed: &[Mechanism]) -> Result<(Mechanism, Displaced), Reason> {
        let mut first = None;
        for (mechanism, rung) in [
            (Mechanism::Jump, self.jump),
            (Mechanism::Boost, self.boost),
            (Mechanism::Emulate, self.emulate),
            (Mechanism::Step, self.step),
        ] {
            if allowed.contains(&mechanism) {
                match rung {
                    Ok(displaced) => return Ok((mechanism, displaced)),
                    Err(reason) => first = first.or(Some(reason)),
                }
            }
        }
        Err(first.unwrap_or(Reason::NotImplemented))
    }
}

/// Why a site cannot be probed by some mechanism.
///
/// The text completes "skipped: …" in the tool's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Reason {
    /// This ISA has no such mechanism (yet).
    #[error("this mechanism does not exist for this instruction set")]
    NotImplemented,
    /// Bytes that do not decode.
    #[error("the bytes are not an instruction")]
    NotAnInstruction,
    /// The probed address is not the start of an instruction.
    #[error("the address is in the middle of an instruction")]
    MidInstruction,
    /// The address is outside its function.
    #[error("the address is outside the function")]
    OutsideFunction,
    /// The patch does not fit before the function ends.
    #[error("the function is too short for a jump")]
    TooShort,
    /// Control flow ends (return, jump) before the patch is full, and what follows may be reached from elsewhere.
    #[error("control leaves the function before a jump fits")]
    LeavesTooEarly,
    /// A branch leads into the displaced instructions.
    #[error("a branch leads to {0:#x}, inside the displaced instructions")]
    BranchInto(u64),
    /// A displaced call would return into the patch.
    #[error("a displaced call would return into the patch")]
    CallInside,
    /// An instruction that must run where it stands.
    #[error("{0} cannot be moved")]
    Unmovable(&'static str),
    /// A PC-relative operand or branch target is out of reach of the detour.
    #[error("an operand or branch is out of reach of the detour")]
    OutOfReach,
    /// A thread other than a probe's would see the trap.
    #[error("the instruction traps by itself")]
    Traps,
    /// Inside an exclusive-access or reservation window.
    #[error("inside a load-reserved/store-conditional window")]
    ExclusiveWindow,
    /// No emulation for this instruction.
    #[error("{0} is not emulated")]
    NotEmulated(&'static str),
    /// The copy of this instruction cannot be followed by a jump.
    #[error("{0} is not boosted")]
    NotBoosted(&'static str),
    /// Return probe: the function reads its own return address.
    #[error("the function reads its own return address")]
    ReadsReturnAddress,
    /// Return probe: the function returns more than once per call, or never to its caller's frame.
    #[error("the function does not return exactly once to its caller")]
    ReturnsOddly,
    /// Return probe: the function pops its arguments or moves the stack pointer away when it returns.
    #[error("the function returns with another stack pointer")]
    MovesStackPointer,
    /// Return probe: the function goes on in one that may pop arguments, and then returns with another stack pointer (32-bit x86).
    #[error("the function ends in a jump to one that is not known, which may pop arguments")]
    UnknownTailCall,
    /// Return probe: the function calls others while the stack pointer is still its caller's (powerpc64le).
    #[error("the function calls others without a stack frame of its own")]
    CallsWithoutFrame,
}
