//! What is always so on Arm A64.

use super::{REACH, SLOT_SHIFT, decode, record::ARGUMENTS};
use crate::{Arguments, Facts, ThreadNumber};

pub(super) static FACTS: Facts = Facts {
    word: 8,
    unit: decode::LENGTH as u8,
    // AAPCS64, 6.4.5.1: nobody may use what is below the stack pointer.
    red_zone: 0,
    // brk #0
    breakpoint: &[0x00, 0x00, 0x20, 0xd4],
    advance: 0,
    reach: REACH - decode::LENGTH,
    slot_shift: SLOT_SHIFT,
    slot_below_frame: 0,
    contexts: [1, 1],
    stack_pointer: 31,
    walks_by_chain: false,
    link_register: 30,
    mark: 0,
    has_exclusives: true,
    // `HWCAP_ATOMICS` (arch/arm64/include/uapi/asm/hwcap.h)
    single_additions: Some(1 << 8),
    // `HWCAP_SVE` and `HWCAP2_SME`
    scalable_vectors: [1 << 22, 1 << 23],
    ahead_of_pointer: 0,
    // `struct pthread` of musl has 200 bytes, and the number at 32.
    thread_numbers: [ThreadNumber::Below(0), ThreadNumber::At(-168)],
    best_multiple: 0,
    arguments: Arguments::Registers(&ARGUMENTS),
    arguments_in_go: &[],
};
