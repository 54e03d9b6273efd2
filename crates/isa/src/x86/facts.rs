//! What is always so on x86.

use super::{JUMP_LENGTH, detour::ARGUMENTS, emit::number::*};
use crate::{Arguments, Facts, Operand, ThreadNumber};

/// `int3`.
const BREAKPOINT: &[u8] = &[0xcc];

/// The identification flag (`X86_EFLAGS_ID`), whose only meaning is that it can be changed.
const IDENTIFICATION: u64 = 1 << 21;

/// As instructions encode them.
static REGISTERS: [u8; ARGUMENTS.len()] = {
    let mut numbers = [0; ARGUMENTS.len()];
    let mut n = 0;
    while n < numbers.len() {
        numbers[n] = ARGUMENTS[n] as u8;
        n += 1;
    }
    numbers
};

/// `src/cmd/compile/abi-internal.md` of Go.
static ARGUMENTS_IN_GO: [Operand; 9] = {
    const fn all(register: usize) -> Operand {
        Operand::Register(register as u8)
    }
    [all(RAX), all(RBX), all(RCX), all(RDI), all(RSI), all(R8), all(R9), all(R10), all(R11)]
};

/// 64-bit mode, System V.
pub(super) static X86_64: Facts = Facts {
    word: 8,
    unit: 1,
    red_zone: 128,
    breakpoint: BREAKPOINT,
    advance: 1,
    // The jump's end may stand an endbr64 and itself behind the site.
    reach: (1 << 31) - JUMP_LENGTH as u64 - 4,
    slot_shift: 3,
    slot_below_frame: 8,
    // `Registers_x86_64`
    contexts: [1, 9],
    stack_pointer: RSP as u8,
    walks_by_chain: false,
    link_register: RSP as u8,
    mark: IDENTIFICATION,
    has_exclusives: false,
    single_additions: None,
    scalable_vectors: [0, 0],
    ahead_of_pointer: 0,
    // They have not moved since glibc 2.3.4 and musl 1.1.
    thread_numbers: [ThreadNumber::At(0x2d0), ThreadNumber::At(0x30)],
    best_multiple: 0,
    arguments: Arguments::Registers(&REGISTERS),
    arguments_in_go: &ARGUMENTS_IN_GO,
};

/// 32-bit mode, System V.
pub(super) static I386: Facts = Facts {
    word: 4,
    unit: 1,
    red_zone: 0,
    breakpoint: BREAKPOINT,
    advance: 1,
    // Addresses wrap around: a rel32 leads anywhere.
    reach: 1 << 32,
    slot_shift: 2,
    slot_below_frame: 4,
    // `Registers_x86`
    contexts: [1, 3],
    thread_numbers: [ThreadNumber::At(0x68), ThreadNumber::At(0x18)],
    // Behind the return address.
    stack_pointer: RSP as u8,
    walks_by_chain: false,
    link_register: RSP as u8,
    mark: IDENTIFICATION,
    has_exclusives: false,
    single_additions: None,
    scalable_vectors: [0, 0],
    ahead_of_pointer: 0,
    best_multiple: 0,
    arguments: Arguments::Stack(4),
    arguments_in_go: &[],
};
