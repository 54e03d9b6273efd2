//! What is always so on an instruction set: sizes, conventions and the bytes that everybody needs.

use crate::Operand;

/// The facts of one instruction set. Nothing in it depends on a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of an address, and of a word on the stack: 4 or 8.
    pub word: u8,
    /// Instructions start at multiples of so many bytes.
    pub unit: u8,
    /// Bytes below the stack pointer that belong to the function that runs, which a signal's frame leaves alone.
    pub red_zone: u16,
    /// The instruction that traps, `unit` bytes long. Code is filled up with it where nothing runs.
    pub breakpoint: &'static [u8],
    /// How far behind the breakpoint the instruction pointer stands when it has trapped.
    pub advance: u8,
    /// The longest distance, in bytes and either way, that the patch at a site can branch.
    pub reach: u64,
    /// Log2 of the distance between the places of a stack where a return address may stand, or that name a call.
    pub slot_shift: u32,
    /// How far the slot of a call lies below its canonical frame address, in bytes.
    pub slot_below_frame: u8,
    /// How many words below the code address of a frame its frame address lies in the contexts of unwinders: libgcc's first, and LLVM's.
    pub contexts: [i8; 2],
    /// The stack pointer, as [`Thread`](crate::Thread) numbers registers.
    pub stack_pointer: u8,
    /// Whether unwinders that find no table for a code address go on by a chain of frames, and then take for granted who has asked them: so code
    /// of ours is told them wherever it may be interrupted with the program's stack pointer.
    pub walks_by_chain: bool,
    /// The register in which a function is called with its return address; the stack pointer where it is on the stack.
    pub link_register: u8,
    /// The flag of each task's own that marks children which share their parent's memory ([`crate::detour`]); 0 where there is none.
    pub mark: u64,
    /// Whether memory is changed by loads that watch it and stores that come about only then ([`Exclusive`](crate::Exclusive)).
    pub has_exclusives: bool,
    /// The capability of the processor (`AT_HWCAP`) by which detours may add in one instruction, where not all can
    /// ([`Additions`](crate::Additions)).
    pub single_additions: Option<u64>,
    /// The capabilities of processors (`AT_HWCAP`, `AT_HWCAP2`) that have vectors of which a system call leaves the first 128 bits alone, and a mode that
    /// it ends.
    pub scalable_vectors: [u64; 2],
    /// How far ahead of a thread pointer there is something of its thread's control block: 0 where it points there.
    pub ahead_of_pointer: u16,
    /// Where glibc and musl have a thread's number, from its thread pointer on.
    pub thread_numbers: [ThreadNumber; 2],
    /// Log2 of what the addresses of the thread table and of the shadow blocks are best little more than a multiple of: code that makes them of
    /// immediates is shorter there. 0: all are as good.
    pub best_multiple: u8,
    /// Where a function finds its first integer arguments.
    pub arguments: Arguments,
    /// Where one of Go's compiler finds them, from Go 1.17 on, a word each: a string takes two. Empty where nobody has looked.
    pub arguments_in_go: &'static [Operand],
}

/// Where a function finds its first integer arguments when it is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// In these registers, numbered as [`Thread`](crate::Thread) numbers them.
    Registers(&'static [u8]),
    /// On the stack, a word each, the first so many bytes above the stack pointer.
    Stack(u8),
}

/// Where a C library has a thread's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadNumber {
    /// So far from the thread pointer, in bytes.
    At(i32),
    /// In its structure of a thread, which ends so far ahead of the thread pointer; its size and the place in it differ from version to
    /// version, and the library says them.
    Below(i32),
}

impl Facts {
    /// Bits of an address.
    pub fn bits(&self) -> u32 {
        8 * u32::from(self.word)
    }

    /// Whether functions are called with their return address in a register, and not on the stack.
    pub fn has_link_register(&self) -> bool {
        self.link_register != self.stack_pointer
    }

    /// Whether a patch leads to any address there is.
    pub fn reaches_everything(&self) -> bool {
        self.bits() < u64::BITS && self.reach >> self.bits() > 0
    }

    /// So many bytes of code that nothing runs; rounded up to whole instructions.
    pub fn filler(&self, bytes: usize) -> impl Iterator<Item = u8> + use<> {
        let whole = bytes.next_multiple_of(usize::from(self.unit));
        self.breakpoint.iter().copied().cycle().take(whole)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Flow, Machine};
    use alloc::vec::Vec;

    const ALL: [Machine; 4] = [Machine::X86_64, Machine::I386, Machine::AArch64, Machine::PowerPc64Le];

    #[test]
    fn breakpoints_are_one_unit_and_decode_as_what_never_goes_on() {
        for machine in ALL {
            let isa = machine.isa();
            let facts = isa.facts();
            assert_eq!(facts.breakpoint.len(), usize::from(facts.unit), "{machine:?}");
            let instruction = isa.decode(facts.breakpoint, 0x1000).unwrap();
            assert_eq!(instruction.length, facts.unit, "{machine:?}");
            assert_ne!(instruction.flow, Flow::Next, "{machine:?}");
        }
    }

    #[test]
    fn code_is_filled_with_whole_breakpoints() {
        for (machine, bytes, filled) in [
            (Machine::X86_64, 3, "cc cc cc"),
            (Machine::I386, 0, ""),
            (Machine::AArch64, 4, "00 00 20 d4"),
            (Machine::PowerPc64Le, 5, "08 00 e0 7f 08 00 e0 7f"),
        ] {
            let expected: Vec<u8> =
                filled.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
            let filler: Vec<u8> = machine.isa().facts().filler(bytes).collect();
            assert_eq!(filler, expected, "{machine:?}");
        }
    }

    #[test]
    fn only_where_addresses_wrap_does_a_branch_lead_everywhere() {
        let everywhere: Vec<Machine> =
            ALL.into_iter().filter(|machine| machine.isa().facts().reaches_everything()).collect();
        assert_eq!(everywhere, [Machine::I386]);
    }
}
