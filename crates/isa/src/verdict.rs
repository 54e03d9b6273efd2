//! Sites, the rungs of the ladder, and the reasons why a rung is not taken.
//!
//! A verdict never says only no: each rung of a [`Ladder`] is either what it takes to use it or a [`Reason`].

use crate::BranchTargets;
use core::fmt;
use core::ops::Range;
use core::str::FromStr;
use thiserror::Error;

/// How a probe gets control. The numbers are what journals in the memory of targets say, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mechanism {
    /// A branch to a detour; no trap.
    Jump = 0,
    /// A short branch to room that is made nearby for the one to a detour; no trap.
    Short = 4,
    /// A trap, then an out-of-line slot that ends in a branch back.
    Boost = 3,
    /// A trap; the instruction's effect is computed on the saved registers.
    Emulate = 2,
    /// A trap, an out-of-line slot, and a second trap after one step.
    Step = 1,
}

impl Mechanism {
    /// All of them, best first.
    pub const ALL: [Mechanism; 5] =
        [Mechanism::Jump, Mechanism::Short, Mechanism::Boost, Mechanism::Emulate, Mechanism::Step];

    /// The name users see and give.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Jump => "jump",
            Mechanism::Short => "short",
            Mechanism::Boost => "boost",
            Mechanism::Emulate => "emulate",
            Mechanism::Step => "step",
        }
    }

    /// Whether a hit traps.
    pub const fn traps(self) -> bool {
        !matches!(self, Mechanism::Jump | Mechanism::Short)
    }

    /// The number in a journal.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The mechanism with this number. `None` where there is none: who wrote the journal may be anybody.
    ///
    /// ```
    /// use trapless_isa::Mechanism;
    ///
    /// assert_eq!(Mechanism::from_number(Mechanism::Step.number()), Some(Mechanism::Step));
    /// assert_eq!(Mechanism::from_number(77), None);
    /// ```
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.number() == number)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no mechanism has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no mechanism has this name; there are jump, short, boost, emulate and step")]
pub struct UnknownMechanism;

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    /// Reads a name as [`Mechanism::name`] writes it.
    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name).ok_or(UnknownMechanism)
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
    /// Addresses, in order, where a probe tells what is in registers: no instruction may read that any more, and a detour must not overwrite it.
    pub observed: &'a [u64],
}

impl<'a> Site<'a> {
    /// The first instruction of a function that nothing follows, and where no probe tells of registers.
    pub fn new(function: u64, code: &'a [u8], targets: &'a BranchTargets) -> Self {
        Self { address: function, function, code, padding: &[], targets, observed: &[] }
    }

    /// The function's bytes from the probed instruction on. Empty when the address is outside.
    pub fn code_at_site(&self) -> &'a [u8] {
        let offset = self.address.wrapping_sub(self.function);
        usize::try_from(offset).ok().and_then(|o| self.code.get(o..)).unwrap_or_default()
    }
}

/// The whole instructions that a patch replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// Address of the first one: the site, or just behind its `endbr64` or BTI; or ahead of it, if what is there makes room.
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

/// Where jumps of a function back to its entry lead that go past the probe there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Address of the function, with the landing place of indirect branches that it may begin with.
    pub function: u64,
    /// Address of the first displaced instruction.
    pub start: u64,
    /// Address of its copy.
    pub copy: u64,
}

impl Past {
    /// Whether a jump to `target` leads back to the entry.
    pub fn leads_back(&self, target: u64) -> bool {
        [self.function, self.start].contains(&target)
    }
}

/// Where a function checks for stack space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCheck {
    /// The first instruction behind the check: with enough space, it is met once in each call.
    pub behind: u64,
    /// Where more space is made, and the function begins again.
    pub restart: Range<u64>,
}

impl StackCheck {
    /// Whether a branch of the check's own leads behind it.
    pub fn is_led_to(&self) -> bool {
        self.restart.end == self.behind
    }
}

/// An instruction by which a function is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its address.
    pub address: u64,
    /// How.
    pub leaves: Leaves,
}

/// How a function is left. `depth` is how far the stack pointer is above the slot of the return address then, in bytes; below it, where
/// negative. `None` where that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// By a return.
    Return,
    /// By a jump to a function whose address is not in the code.
    Indirect,
    /// By a jump to `target`.
    Jump {
        /// Where it leads.
        target: u64,
        /// See [`Leaves`].
        depth: Option<i64>,
    },
    /// By a conditional branch to `target`.
    Branch {
        /// Where it leads.
        target: u64,
        /// See [`Leaves`].
        depth: Option<i64>,
    },
}

/// What each rung takes at a site, or why it cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Branch to a detour.
    pub jump: Result<Displaced, Reason>,
    /// Short branch to room nearby, from there to a detour: what it takes itself. Whether there is room, says [`crate::Isa::room`].
    pub short: Result<Displaced, Reason>,
    /// Trap and boosted slot: the instruction at the trap.
    pub boost: Result<Displaced, Reason>,
    /// Trap and emulation: the instructions emulated in one trap.
    pub emulate: Result<Displaced, Reason>,
    /// Trap, slot and step: the instruction at the trap.
    pub step: Result<Displaced, Reason>,
}

impl Ladder {
    /// One rung.
    pub fn rung(&self, mechanism: Mechanism) -> Result<Displaced, Reason> {
        match mechanism {
            Mechanism::Jump => self.jump,
            Mechanism::Short => self.short,
            Mechanism::Boost => self.boost,
            Mechanism::Emulate => self.emulate,
            Mechanism::Step => self.step,
        }
    }

    /// The best possible mechanism among those `allowed`, or the reason why the best allowed one is impossible.
    pub fn best(&self, allowed: &[Mechanism]) -> Result<(Mechanism, Displaced), Reason> {
        let mut first = None;
        for mechanism in Mechanism::ALL.into_iter().filter(|mechanism| allowed.contains(mechanism)) {
            match self.rung(mechanism) {
                Ok(displaced) => return Ok((mechanism, displaced)),
                Err(reason) => first = first.or(Some(reason)),
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
    /// The detour would need stack where there may be none.
    #[error("the probe needs stack where there may be none left")]
    NeedsStack,
    /// Compiled bodies are called on another instruction set only.
    #[error("a script's code is not compiled for this instruction set")]
    NoBodies,
    /// The bodies that are asked for lose what scalable vectors hold, and the program may have something there.
    #[error("the script's code would lose scalable vectors that the program may be working with")]
    ScalableVectors,
    /// The bodies that are asked for change what a call does, which this detour cannot.
    #[error("what a call does is changed at entries and returns of functions of C's convention alone")]
    NoChanges,
    /// Another function is called in place of a whole one alone, at its entry, with nothing else done there; and not in 32-bit programs.
    #[error("it cannot be replaced here: that is done at entries of functions of 64-bit programs")]
    NoReplacement,
    /// Bytes that do not decode.
    #[error("the bytes are not an instruction")]
    NotAnInstruction,
    /// The function reads the bytes: an entry of a jump table, or a constant.
    #[error("the function reads these bytes as data")]
    Data,
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
    /// Exits: a conditional branch leads to another function, so a probe at it would not know whether it is left.
    #[error("a conditional branch leads to another function")]
    LeavesByCondition,
    /// Exits: not all instructions by which the function is left could be told.
    #[error("it cannot be told by which instructions the function is left")]
    LeavesUnclearly,
    /// Code computes a place in this function to jump to, and it may be inside the displaced instructions.
    #[error("a jump leads to a computed place in the function")]
    ComputedJump,
    /// A short jump reaches no padding, and no instructions that could be moved to make room.
    #[error("there is no room for a jump where a short one could reach it")]
    NoRoom,
}

impl Reason {
    /// Its name for programs. It never changes.
    pub const fn code(self) -> &'static str {
        match self {
            Reason::NotImplemented => "not_implemented",
            Reason::NeedsStack => "needs_stack",
            Reason::NoBodies => "no_bodies",
            Reason::ScalableVectors => "scalable_vectors",
            Reason::NoChanges => "no_changes",
            Reason::NoReplacement => "no_replacement",
            Reason::NotAnInstruction => "not_an_instruction",
            Reason::Data => "data",
            Reason::MidInstruction => "mid_instruction",
            Reason::OutsideFunction => "outside_function",
            Reason::TooShort => "too_short",
            Reason::LeavesTooEarly => "leaves_too_early",
            Reason::BranchInto(_) => "branch_into",
            Reason::CallInside => "call_inside",
            Reason::Unmovable(_) => "unmovable",
            Reason::OutOfReach => "out_of_reach",
            Reason::Traps => "traps",
            Reason::ExclusiveWindow => "exclusive_window",
            Reason::NotEmulated(_) => "not_emulated",
            Reason::NotBoosted(_) => "not_boosted",
            Reason::ReadsReturnAddress => "reads_return_address",
            Reason::ReturnsOddly => "returns_oddly",
            Reason::MovesStackPointer => "moves_stack_pointer",
            Reason::UnknownTailCall => "unknown_tail_call",
            Reason::CallsWithoutFrame => "calls_without_frame",
            Reason::LeavesByCondition => "leaves_by_condition",
            Reason::LeavesUnclearly => "leaves_unclearly",
            Reason::ComputedJump => "computed_jump",
            Reason::NoRoom => "no_room",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_mechanism_is_found_again_by_its_name_and_by_its_number() {
        for mechanism in Mechanism::ALL {
            assert_eq!(mechanism.to_string().parse(), Ok(mechanism));
            assert_eq!(Mechanism::from_number(mechanism.number()), Some(mechanism));
            assert!(UnknownMechanism.to_string().contains(mechanism.name()));
        }
        assert_eq!("auto".parse::<Mechanism>(), Err(UnknownMechanism));
        assert_eq!(Mechanism::from_number(5), None);
    }
}
