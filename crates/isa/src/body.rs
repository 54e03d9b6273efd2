//! Compiled code that detours run, with holes for what only the target knows: a program.
//!
//! A [`Program`] is a list of pieces of machine code. Its *bodies* are called by detours, one for each clause of a script, and its
//! *routines* by bodies and by each other. A piece is position-independent, but for its [holes](Hole): words in its code that hold an
//! absolute address of the target and are filled in once that is known.
//!
//! # How a body is called
//!
//! What differs between machines is in [`Convention`].
//!
//! - The body keeps every register, those of vectors too, but for the few that are [lost](Convention::lost). The arithmetic flags it may
//!   lose: they are the detour's to keep. It returns nothing. On x86-64 it keeps the x87's registers, and the direction flag is
//!   the program's, so a body uses no string instructions. On powerpc64le XER is the detour's to keep, too, while ctr and the fields of the condition
//!   register but cr0 are kept, and vector registers whole, of which those of floating-point numbers are halves.
//! - Where it [calculates](Code::calculates) with floating-point numbers, it is called with the environment that C programs start with, which rounds to
//!   the nearest and raises no signals, and may leave exceptions in it. The program's is the detour's to keep: `MXCSR`, `FPCR` and `FPSR`, `FPSCR`.
//! - One [register](Convention::block) is the address of the thread's own block, in which the script's own part begins at a constant offset
//!   (`SCRIPT_BLOCK` of `trapless-wire`). Threads without a block run no bodies; what they would have run is counted.
//! - At an entry the registers of the integer [arguments](Convention::arguments) are what they were when the probe was hit.
//! - At a return they hold what [`Returned`] says, in its order.
//! - On the stack, [so far](Convention::pushed) above the stack pointer, lie its [extras](Extra): eight bytes each, those that [`Code::takes`]
//!   names and no others, in the order of the enum.
//! - On x86-64 the stack pointer is a multiple of 8, and maybe none of 16: a probe may stand at any instruction. At most [`Code::frame`]
//!   bytes below it are used.
//! - It runs in the process that was attached, never in children that were forked or share its memory: what they would have run is
//!   counted ([`BLOCK_UNRUN`](crate::detour::BLOCK_UNRUN)).
//!
//! # What must be known of its instructions
//!
//! A signal that interrupts a body has a handler that is shown the program ([`crate::detour::signals`]). For that the code of each piece is
//! followed from its start ([`crate::Isa::body_frames`]), along branches and calls: how far the stack pointer is below where it was, and
//! where each general register was saved that holds something else. It has to be saved by a push, or by a `mov` of all its 64 bits to the
//! stack, with the stack pointer as the base. Where that cannot be told, as behind an indirect jump, a handler sees the body.
//!
//! A body takes no lock, and waits for nothing but the time, where it was asked to. A thread that waits stands in a system call: who takes
//! the body away can have it go on. A signal may interrupt it at any instruction, whose handler may run the same body, and may
//! leave it for good by `longjmp`.

use crate::passed::{MOST_PASSED, Passed, Wanted};
use alloc::vec::Vec;
use core::iter;

/// A piece of machine code for the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Offsets in them of words of eight bytes, and what is to be written there.
    pub holes: Vec<(u32, Hole)>,
    /// What lies on the stack when it is called. Routines take nothing.
    pub takes: Takes,
    /// How many bytes of stack it uses below its return address, and that one's own, with all that it calls.
    pub frame: u32,
    /// The operands of a USDT probe that it asks for, where it takes [`Extra::Operands`].
    pub operands: Vec<Wanted>,
    /// Whether it, or what it calls, loses what longer vectors hold beyond what bodies keep of them: it works with vector registers, or makes
    /// system calls, on a machine whose vectors may be longer (arm64).
    pub vectors: bool,
    /// Whether it makes a system call, itself.
    pub system_call: bool,
    /// Whether it, or what it calls, calculates with floating-point numbers.
    pub calculates: bool,
    /// Where all that it does is to add 1 to a word of the thread's block, the word's offset. Detours do that themselves, by
    /// [`EntryStep::Count`](crate::EntryStep::Count) and [`ReturnStep::Count`](crate::ReturnStep::Count), also for threads without a block.
    pub counts: Option<u32>,
}

/// An absolute address that a piece of code holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hole {
    /// So far behind the start of the memory that all threads of the script share, as the target has it mapped.
    Shared(u64),
    /// That of the routine with this number in [`Program::routines`].
    Routine(u16),
    /// So far behind the start of the same piece: a constant that lies behind its code.
    Own(u32),
}

/// All code of a script that runs in one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// What bodies and routines call.
    pub routines: Vec<Code>,
    /// What detours call.
    pub bodies: Vec<Code>,
}

/// A body that a detour calls: one clause of a script at one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Its address in the target.
    pub body: u64,
    /// What it takes: as its [`Code::takes`].
    pub takes: Takes,
    /// What it uses of the stack: as its [`Code::frame`].
    pub frame: u32,
    /// As its [`Code::vectors`].
    pub vectors: bool,
    /// As its [`Code::calculates`].
    pub calculates: bool,
    /// What [`Extra::Site`] says.
    pub site: u32,
    /// What each of its [`Code::operands`] is at the site.
    pub operands: &'a [Passed],
}

/// The bodies that the detour of a site calls, in the order in which they are called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs<'a> {
    /// At the entry, or wherever the probe stands: what [`EntryStep::Run`](crate::EntryStep::Run) does.
    pub entry: &'a [Run<'a>],
    /// At the return: what [`ReturnStep::Run`](crate::ReturnStep::Run) does.
    pub at_return: &'a [Run<'a>],
}

impl Runs<'_> {
    /// What any of some bodies takes.
    #[must_use]
    pub fn takes(runs: &[Run<'_>]) -> Takes {
        runs.iter().fold(Takes::NONE, |all, run| all.or(run.takes))
    }
}

/// Most bytes of stack that a body may use ([`Code::frame`]). Signal stacks and thread stacks are small.
pub const MOST_FRAME: u32 = 2048;

impl Code {
    /// Whether every hole lies within the code, shares no bytes with another one, and names a routine among `routines` or a place in the
    /// code, the frame is no larger than [`MOST_FRAME`], it asks for operands if it takes any, and what it counts in is a word.
    #[must_use]
    pub fn is_sound(&self, routines: usize) -> bool {
        let mut at: Vec<u32> = self.holes.iter().map(|hole| hole.0).collect();
        at.sort_unstable();
        let length = self.bytes.len();
        let fits = |at: u32| at as usize <= length.saturating_sub(8) && length >= 8;
        let names = |hole: Hole| match hole {
            Hole::Shared(_) => true,
            Hole::Routine(number) => usize::from(number) < routines,
            Hole::Own(offset) => (offset as usize) < length,
        };
        at.iter().all(|&at| fits(at))
            && at.windows(2).all(|two| two[1] - two[0] >= 8)
            && self.holes.iter().all(|hole| names(hole.1))
            && self.frame <= MOST_FRAME
            && self.operands.is_empty() != self.takes.has(Extra::Operands)
            && self.operands.len() <= MOST_PASSED
            && self.counts.is_none_or(|offset| offset.is_multiple_of(8))
            && !self.bytes.is_empty()
    }

    /// The bytes as they are at `address` in a target that has the script's shared memory at `shared`. `routine`: the address of each
    /// routine.
    ///
    /// Holes that are not [sound](Self::is_sound) are left as they are.
    #[must_use]
    pub fn placed(&self, address: u64, shared: u64, routine: impl Fn(u16) -> u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for &(at, hole) in &self.holes {
            let value = match hole {
                Hole::Shared(offset) => shared.wrapping_add(offset),
                Hole::Routine(number) => routine(number),
                Hole::Own(offset) => address.wrapping_add(offset.into()),
            };
            if let Some(to) = bytes.get_mut(at as usize..).and_then(|rest| rest.first_chunk_mut()) {
                *to = value.to_le_bytes();
            }
        }
        bytes
    }
}

/// The routine that makes a system call, on machines that have one. Its arguments are the number of the call and the address of six words,
/// the arguments of the call; the first of these becomes its result. `None` where there is none.
#[must_use]
pub fn system_call(machine: crate::Machine) -> Option<Code> {
    let routine = match machine {
        crate::Machine::X86_64 => crate::x86::system_call::routine(),
        crate::Machine::AArch64 => crate::aarch64::system_call::routine(),
        crate::Machine::PowerPc64Le => crate::powerpc::system_call::routine(),
        crate::Machine::I386 => return None,
    };
    Some(Code { system_call: true, ..routine })
}

/// What of the convention by which bodies are called is a machine's own. Registers are by their places in
/// [`registers`](Convention::registers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convention {
    /// The registers of the integer arguments, in their order.
    pub arguments: &'static [u8],
    /// The registers of a function's result and of its second word.
    pub results: [u8; 2],
    /// The number of the register in which functions have their first floating-point argument, and their result.
    pub first_float: u8,
    /// The names of the general registers in the order of DWARF, in which [`Extra::Registers`] has them. On powerpc64le the link register, which
    /// DWARF has behind others, follows the last of them.
    pub registers: &'static [&'static str],
    /// The register that holds the address of the thread's block.
    pub block: u8,
    /// The stack pointer.
    pub stack_pointer: u8,
    /// The frame pointer.
    pub frame_pointer: u8,
    /// The register by which compilers know their frame where the stack pointer moves and the frame pointer is another's.
    pub base_pointer: u8,
    /// The register that holds the return address at an entry; `None` where that lies at the stack pointer.
    pub link: Option<u8>,
    /// Registers that bodies and routines may lose.
    pub lost: &'static [u8],
    /// Bytes between the stack pointer and the first extra when a body begins: the return address, where calls push it, or the header of a
    /// frame, in which functions save theirs.
    pub pushed: u32,
    /// Whether an instruction tells on which processor a thread is. Else a system call does.
    pub tells_processor: bool,
}

impl Convention {
    /// That of a machine; `None` where detours call no bodies.
    ///
    /// ```
    /// use trapless_isa::{Machine, body::Convention};
    /// let convention = Convention::of(Machine::X86_64).unwrap();
    /// assert_eq!(convention.registers[usize::from(convention.arguments[0])], "rdi");
    /// assert_eq!(Convention::of(Machine::I386), None);
    /// ```
    #[must_use]
    pub const fn of(machine: crate::Machine) -> Option<&'static Convention> {
        match machine {
            crate::Machine::X86_64 => Some(&X86_64),
            crate::Machine::AArch64 => Some(&AARCH64),
            crate::Machine::PowerPc64Le => Some(&POWERPC64LE),
            crate::Machine::I386 => None,
        }
    }
}

static X86_64: Convention = Convention {
    arguments: &[5, 4, 1, 2, 8, 9],
    results: [0, 1],
    first_float: 0,
    registers: &[
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ],
    block: 15,
    stack_pointer: 7,
    frame_pointer: 6,
    base_pointer: 3,
    link: None,
    lost: &[],
    pushed: 8,
    tells_processor: true,
};

static AARCH64: Convention = Convention {
    arguments: &[0, 1, 2, 3, 4, 5, 6, 7],
    results: [0, 1],
    first_float: 0,
    registers: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
        "x30", "sp",
    ],
    block: 21,
    stack_pointer: 31,
    frame_pointer: 29,
    base_pointer: 19,
    link: Some(30),
    lost: &[16, 17],
    pushed: 0,
    tells_processor: false,
};

static POWERPC64LE: Convention = Convention {
    arguments: &[3, 4, 5, 6, 7, 8, 9, 10],
    results: [3, 4],
    first_float: 1,
    registers: &[
        "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28", "r29",
        "r30", "r31", "lr",
    ],
    block: 30,
    stack_pointer: 1,
    frame_pointer: 31,
    base_pointer: 30,
    link: Some(32),
    lost: &[0, 11, 12, 32],
    pushed: 32,
    tells_processor: true,
};

/// The registers that hold the integer arguments of functions of Go's on x86-64, by their DWARF numbers: those of
/// [`Facts::arguments_in_go`](crate::Facts::arguments_in_go).
pub const ARGUMENTS_IN_GO: [u8; 9] = [0, 3, 2, 5, 4, 8, 9, 10, 11];

/// The register that holds the goroutine there, by its DWARF number.
pub const GOROUTINE: u8 = 14;

/// What the first arguments of a body are at a return. The registers behind them hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Returned {
    /// rax, x0, r3.
    Result,
    /// rdx, x1, r4.
    Second,
    /// The address by which the call is known: of the stack slot of the return address, or where calls push none the stack pointer of the
    /// entry.
    Slot,
    /// The low 64 bits of xmm0, v0; f1.
    Float,
    /// The return address.
    ReturnAddress,
}

/// What a body is given on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Extra {
    /// A constant of the site and the clause.
    Site,
    /// Clock ticks: the time stamp counter, the virtual counter of arm64, or the time base of powerpc64le.
    Time,
    /// At a return, the clock ticks at the call's entry, whose detour reads the clock only where that is taken. At an entry 0.
    Entered,
    /// On which processor the thread was a moment ago: its number in bits 0..12, its node in those above; what `rdtscp` puts in ecx. Only where
    /// [an instruction tells](Convention::tells_processor).
    Processor,
    /// The thread's number, as the C library's control block has it; 0 where nobody knows where that is.
    Tid,
    /// The stack pointer, as it was at the hit: at an entry the slot of the return address, at a return the address behind it.
    StackPointer,
    /// The address of the probe, a constant. At a return it is that of the entry; where calls are noted, of the instruction by which the
    /// function is left.
    InstructionPointer,
    /// The address of a word for each of the [general registers](Convention::registers) as it was at the hit, in the order of DWARF. At the
    /// entry of a function of Go's whose stack is asked for room, r12 and r13 hold nothing, and are told as anything.
    Registers,
    /// The address of 8 words: the low halves of xmm0..xmm7, v0..v7; f1..f8.
    Floats,
    /// The address of what the probe's operands are that the body asks for, in the order of [`Code::operands`]: two words each
    /// ([`crate::passed`]). At a return there are none.
    Operands,
    /// The address of words that the body may write to, to change what the call does ([`Change`]). All bodies of a hit share them: the last
    /// one that writes is heeded. At the entry of a function, or at its return, where calls are paired.
    Changes,
}

/// What a word of [`Extra::Changes`] is, by its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// At an entry: 0; [`SKIPPED`] where the call is skipped, and returns what the next word says; or [`LEFT_OUT`] where it is skipped, and
    /// returns nothing. At a return of no effect.
    Skip,
    /// What is returned. At a return it is what the function has returned, until it is changed.
    Result,
    /// At an entry, the first of the integer [arguments](Convention::arguments) that the function will have. The others follow.
    Arguments,
}

/// Bytes of [`Extra::Changes`] on a machine with so many registers of integer arguments.
pub(crate) const fn changes(arguments: usize) -> u32 {
    change(Change::Arguments) + 8 * arguments as u32
}

/// Where a word of it is.
pub(crate) const fn change(change: Change) -> u32 {
    8 * change as u32
}

impl Extra {
    /// All of them, in their order.
    pub const ALL: [Extra; 11] = [
        Extra::Site,
        Extra::Time,
        Extra::Entered,
        Extra::Processor,
        Extra::Tid,
        Extra::StackPointer,
        Extra::InstructionPointer,
        Extra::Registers,
        Extra::Floats,
        Extra::Operands,
        Extra::Changes,
    ];
}

/// [`Change::Skip`]: the function does not run, and the caller gets a result.
pub const SKIPPED: u32 = 1;
/// [`Change::Skip`]: the function does not run, and the register of its result is as at the entry.
pub const LEFT_OUT: u32 = 2;

/// A set of extras.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Takes(u16);

impl Takes {
    /// None.
    pub const NONE: Takes = Takes(0);

    /// These.
    ///
    /// ```
    /// use trapless_isa::body::{Extra, Takes};
    /// let takes = Takes::of(&[Extra::Tid, Extra::Time]);
    /// assert!(takes.has(Extra::Time) && !takes.has(Extra::Site));
    /// // In which order they lie.
    /// assert_eq!((takes.index(Extra::Time), takes.index(Extra::Tid)), (Some(0), Some(1)));
    /// ```
    #[must_use]
    pub const fn of(extras: &[Extra]) -> Takes {
        let (mut bits, mut at) = (0, 0);
        while at < extras.len() {
            bits |= 1 << extras[at] as u16;
            at += 1;
        }
        Takes(bits)
    }

    /// The same with one more.
    #[must_use]
    pub const fn with(self, extra: Extra) -> Takes {
        Takes(self.0 | 1 << extra as u16)
    }

    /// What is in either.
    #[must_use]
    pub const fn or(self, other: Takes) -> Takes {
        Takes(self.0 | other.0)
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn has(self, extra: Extra) -> bool {
        self.0 & 1 << extra as u16 != 0
    }

    /// Each of them, in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Extra> + Clone {
        Extra::ALL.into_iter().filter(move |&extra| self.has(extra))
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// How many of them lie before an extra; `None` where it is none of them.
    ///
    /// It lies eight times as many bytes behind the first, which begins [`Convention::pushed`] above the stack pointer.
    #[must_use]
    pub fn index(self, extra: Extra) -> Option<u32> {
        self.has(extra).then(|| (self.0 & ((1 << extra as u16) - 1)).count_ones())
    }
}

impl FromIterator<Extra> for Takes {
    fn from_iter<I: IntoIterator<Item = Extra>>(extras: I) -> Self {
        extras.into_iter().fold(Takes::NONE, Takes::with)
    }
}

impl From<Extra> for Takes {
    fn from(extra: Extra) -> Self {
        iter::once(extra).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn code(bytes: usize, holes: &[(u32, Hole)]) -> Code {
        Code { bytes: vec![0x90; bytes], holes: holes.to_vec(), ..Code::default() }
    }

    #[test]
    fn holes_lie_in_the_code_apart_and_name_what_there_is() {
        type Case<'c> = (usize, &'c [(u32, Hole)], bool);
        let cases: &[Case<'_>] = &[
            (1, &[], true),
            (0, &[], false),
            (8, &[(0, Hole::Shared(0))], true),
            (7, &[(0, Hole::Shared(0))], false),
            (16, &[(9, Hole::Shared(0))], false),
            (16, &[(8, Hole::Shared(0)), (0, Hole::Routine(1))], true),
            (16, &[(8, Hole::Shared(0)), (1, Hole::Routine(1))], false),
            (16, &[(0, Hole::Routine(2))], false),
            (16, &[(0, Hole::Own(15))], true),
            (16, &[(0, Hole::Own(16))], false),
            (16, &[(u32::MAX, Hole::Own(0))], false),
        ];
        for &(bytes, holes, is_sound) in cases {
            assert_eq!(code(bytes, holes).is_sound(2), is_sound, "{bytes} {holes:?}");
        }
        assert!(!Code { frame: MOST_FRAME + 1, ..code(1, &[]) }.is_sound(0));
        assert!(Code { counts: Some(4096), ..code(1, &[]) }.is_sound(0));
        assert!(!Code { counts: Some(4100), ..code(1, &[]) }.is_sound(0));
    }

    #[test]
    fn arguments_of_go_are_those_that_records_have() {
        use crate::Operand;
        // By the numbers that instructions have.
        const HARDWARE: [u8; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
        let known = crate::Machine::X86_64.isa().facts().arguments_in_go;
        let expected = ARGUMENTS_IN_GO.map(|number| Operand::Register(HARDWARE[usize::from(number)]));
        assert_eq!(known, expected);
    }

    #[test]
    fn holes_are_filled_in() {
        let holes = [(0, Hole::Shared(3)), (9, Hole::Routine(7)), (17, Hole::Own(2))];
        let placed = code(26, &holes).placed(0x1000, 0x20_0000, |number| 0x100 + u64::from(number));
        assert_eq!(placed[..8], 0x20_0003u64.to_le_bytes());
        assert_eq!(placed[8], 0x90);
        assert_eq!(placed[9..17], 0x107u64.to_le_bytes());
        assert_eq!(placed[17..25], 0x1002u64.to_le_bytes());
        assert_eq!(placed[25], 0x90);
    }

    #[test]
    fn extras_lie_in_their_order_whatever_others_there_are() {
        for bits in 0..1u16 << Extra::ALL.len() {
            let takes = Takes(bits);
            let places: Vec<_> = takes.iter().filter_map(|extra| takes.index(extra)).collect();
            let expected: Vec<_> = (0..takes.count()).collect();
            assert_eq!(places, expected, "{takes:?}");
            assert_eq!(takes.iter().collect::<Takes>(), takes);
        }
    }
}
