//! What calls a function instead of another one ([`crate::loader::Caller`]).
//!
//! ```text
//! call:     mtctr r12
//!           bctrl                 to the function, whose address is in r12
//!           ld    r2,24(r1)       the caller's TOC pointer
//!           lwa   r12,12(r1)      the caller's return address, from there on
//!           add   r12,r12,r2
//!           mtlr  r12
//!           blr
//! ```
//!
//! It has no frame, since what is on the stack of the function is where its caller has put it. What it needs behind the call is in the header of the caller's
//! frame (ELFv2, 2.2.2.1), and told there by the detour ([`super::replace`]): the TOC pointer in the doubleword that is there for it, and the return
//! address as 32 bits in the word that is nobody's.
//!
//! Unwinders, and who asks by which register a caller finds its TOC, look at the instruction behind a call: `ld r2,24(r1)` says that it is in the
//! frame (`MD_FROB_UPDATE_CONTEXT` of libgcc). So an exception that leaves the function brings it back, too.

use super::emit::*;
use crate::loader::Caller;
use alloc::vec::Vec;

/// In the header of the caller's frame: its TOC pointer, and a word that is reserved.
pub(super) const TOC_SAVE: i16 = 24;
pub(super) const RETURN: i16 = 12;

/// `ld r2,24(r1)`
pub(super) const RESTORES_TOC: u32 = 0xe841_0018;

/// `lwa r12,12(r1)`
const LOAD_RETURN: u32 = 0xe981_000e;
/// `bctrl`
const CALL_COUNTER: u32 = 0x4e80_0421;

/// What its library is called, behind the code.
pub(super) const NAME_BEHIND: i16 = 32;
const NAME: &[u8] = b"/memfd:trapless-call\0";

pub(super) fn make(at: u64, table: u64) -> Caller {
    let mut asm = Asm::new(at);
    asm.write_special(CTR, R12);
    asm.word(CALL_COUNTER);
    asm.word(RESTORES_TOC);
    asm.word(LOAD_RETURN);
    asm.add(R12, R12, super::replace::TOC);
    asm.write_special(LR, R12);
    asm.return_();
    let length = asm.offset();
    asm.trap();
    let mut code = asm.finish().unwrap_or_default();
    debug_assert_eq!(code.len(), NAME_BEHIND as usize);
    code.extend_from_slice(NAME);
    let (unwind, entry) = unwind(length, at, table);
    Caller { code, unwind, entry }
}

/// The table, and the offset of its entry.
fn unwind(length: u32, at: u64, table: u64) -> (Vec<u8>, u32) {
    const CFA: u8 = 0x0c;
    const OFFSET: u8 = 0x11;
    const VALUE: u8 = 0x16;
    const BEYOND: u8 = 8;
    const LINK: u8 = 65;
    const IS_OFFSET: u8 = 0x14;
    // Unwinders tell frames apart by where they end, and what called the function has just the caller's stack pointer. So it is said to end a
    // doubleword above, with r1 below that, and the TOC pointer two above.
    let common = [
        &[1][..],
        b"zR\0",
        // The units of code and data, the return address, and that addresses are 32 bits from where they stand.
        &[4, 0x78, LINK, 1, 0x1b],
        &[CFA, 1, BEYOND],
        &[IS_OFFSET, 1, BEYOND / 8],
        &[OFFSET, 2, 0x7e],
    ]
    .concat();
    // The TOC pointer, and what the return address is from there on: with its sign.
    const RETURN_ADDRESS: [u8; 16] = [
        0x12,
        0x23,
        TOC_SAVE as u8 - BEYOND,
        0x06,
        0x16,
        0x23,
        RETURN as u8 - BEYOND,
        0x94,
        4,
        0x08,
        32,
        0x24,
        0x08,
        32,
        0x26,
        0x22,
    ];
    let rule = [&[VALUE, LINK, RETURN_ADDRESS.len() as u8][..], &RETURN_ADDRESS].concat();
    let entry = |fields: &[u8]| {
        let mut fields = fields.to_vec();
        fields.resize(fields.len().next_multiple_of(4), 0);
        [(fields.len() as u32).to_le_bytes().to_vec(), fields].concat()
    };
    let mut all = entry(&[&[0; 4][..], &common].concat());
    let start = all.len() as u32;
    let place = table.wrapping_add(u64::from(start) + 8);
    let begins = (at.wrapping_sub(place) as u32).to_le_bytes();
    all.extend(entry(
        &[&(start + 4).to_le_bytes()[..], &begins, &length.to_le_bytes(), &[0], &rule].concat(),
    ));
    all.extend([0; 4]);
    (all, start)
}
