//! What is always so on 64-bit PowerPC with ELFv2.

use super::{detour::ARGUMENTS, emit::REACH, lower::REGISTERS_APART};
use crate::{Arguments, Facts, ThreadNumber};

/// So far behind its thread's block is a thread pointer (ELFv2, 3.7.2), and so large is what glibc has there (`tcbhead_t`).
const BEHIND_TCB: i32 = 0x7000;
const TCB: i32 = 128;

/// As [`crate::Thread`] numbers it.
const LR: u8 = 36;

pub(super) static FACTS: Facts = Facts {
    word: 8,
    unit: 4,
    // ELFv2, 2.2.2.4: the protected zone.
    red_zone: 288,
    // trap
    breakpoint: &[0x08, 0x00, 0xe0, 0x7f],
    advance: 0,
    reach: REACH - 4,
    // ELFv2, 2.2.2.1: the stack pointer is a multiple of 16, and names a call at its entry.
    slot_shift: 4,
    slot_below_frame: 0,
    contexts: [1, REGISTERS_APART as i8],
    stack_pointer: 1,
    // libgcc's `MD_BACKCHAIN_FALLBACK`
    walks_by_chain: true,
    link_register: LR,
    mark: 0,
    has_exclusives: true,
    single_additions: None,
    scalable_vectors: [0, 0],
    ahead_of_pointer: BEHIND_TCB as u16 + 8,
    // `struct pthread` of musl has 200 bytes, and the number at 32.
    thread_numbers: [ThreadNumber::Below(BEHIND_TCB + TCB), ThreadNumber::At(-BEHIND_TCB - 168)],
    best_multiple: 32,
    arguments: Arguments::Registers(&ARGUMENTS),
    arguments_in_go: &[],
};
