//! Which general registers does an instruction read and write?
//!
//! By the form of the word. Where the form is not known to name no register, the registers that its fields may name count as
//! read and as not written, which is the careful answer for following a value.

use super::decode::Fields;
use super::decode::NOP;
use super::emulate::access_kind;

/// Sets of general registers, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub read: u32,
    pub written: u32,
}

impl Usage {
    pub fn reads(self, register: u32) -> bool {
        self.read >> register & 1 != 0
    }

    pub fn writes(self, register: u32) -> bool {
        self.written >> register & 1 != 0
    }
}

/// The general registers that a word instruction reads and writes.
pub(super) fn usage(word: u32) -> Usage {
    let (rt, ra, rb) = (1 << word.rt(), 1 << word.ra(), 1 << word.rb());
    // As a base register r0 is the number 0.
    let base = ra & !1;
    let uses = |read, written| Usage { read, written };
    if let Some(kind) = access_kind(word) {
        let index = if word.primary() == 31 { rb } else { 0 };
        let updated = if kind.contains('u') { base } else { 0 };
        return match kind.starts_with('s') {
            true => uses(rt | base | index, updated),
            false => uses(base | index, rt | updated),
        };
    }
    match word.primary() {
        _ if word == NOP => Usage::default(),
        2 | 3 | 10 | 11 => uses(ra, 0),
        7 | 8 | 12 | 13 => uses(ra, rt),
        14 | 15 => uses(base, rt),
        20 => uses(rt | ra, ra),
        23 => uses(rt | rb, ra),
        21 | 24..=29 => uses(rt, ra),
        // Rotated by a register or by a constant.
        30 if word & 0b10000 != 0 => uses(rt | rb, ra),
        30 => uses(rt | ra, ra),
        31 => extended(word),
        // lmw, stmw
        46 => uses(base, u32::MAX << word.rt()),
        47 => uses(base | u32::MAX << word.rt(), 0),
        // Of floating-point and vector registers, perhaps with an update.
        48..=55 => uses(base, if word.primary() & 1 != 0 { base } else { 0 }),
        6 | 57 | 61 => uses(base, 0),
        56 => uses(base, rt | rt << 1),
        62 => uses(rt | rt << 1 | base, 0),
        4 => vector(word),
        // xsiexpdp
        60 if word.xo() == 918 => uses(ra | rb, 0),
        16..=19 | 59 | 60 | 63 => Usage::default(),
        _ => uses(rt | ra | rb, 0),
    }
}

/// Primary opcode 4: few of the vector instructions have to do with general registers.
fn vector(word: u32) -> Usage {
    let (rt, ra, rb) = (1 << word.rt(), 1 << word.ra(), 1 << word.rb());
    match word & 0x3f {
        // maddhd, maddhdu, maddld
        48 | 49 | 51 => Usage { read: ra | rb | 1 << (word >> 6 & 31), written: rt },
        // vextublx and its like, vinsblx and its like
        13 | 15 => Usage { read: ra | rb, written: 0 },
        // vextdubvlx and its like
        24..=31 => Usage { read: 1 << (word >> 6 & 31), written: 0 },
        // mtvsrbm and its like
        2 if word & 0x7ff == 1602 => Usage { read: rb, written: 0 },
        _ => Usage::default(),
    }
}

/// Primary opcode 31. The last five bits of the extended opcode name the family.
fn extended(word: u32) -> Usage {
    let (rt, ra, rb) = (1 << word.rt(), 1 << word.ra(), 1 << word.rb());
    let base = ra & !1;
    let uses = |read, written| Usage { read, written };
    match (word.xo(), word.xo() & 31) {
        // dcb…, icbi, and the barriers
        (54 | 86 | 246 | 278 | 982 | 1014, _) => uses(base | rb, 0),
        (598 | 854, _) => Usage::default(),
        // mfcr, mfspr, mftb; mtcrf, mtspr; moves to and from vector registers
        // Some special registers are not there, and leave the general one alone.
        (339, _) if matches!(word.spr(), 808..=811) => Usage::default(),
        (19 | 339 | 371, _) => uses(0, rt),
        (144 | 467, _) => uses(rt, 0),
        (179 | 211 | 243 | 403, _) => uses(ra, 0),
        (435, _) => uses(base | rb, 0),
        (51 | 115 | 307, _) => uses(0, ra),
        // cmp, cmpl, setb, tw, td
        (128, _) => uses(0, rt),
        (0 | 32 | 4 | 68, _) => uses(ra | rb, 0),
        // neg, subfze, subfme, addze, addme
        (104 | 200 | 202 | 232 | 234, _) => uses(ra, rt),
        // Addition, subtraction, multiplication, division
        (_, 8..=11) => uses(ra | rb, rt),
        // isel
        (_, 15) => uses(base | rb, rt),
        // Counts of zeros and ones, shifts by constants, sign extension
        (26 | 58 | 378 | 506 | 538 | 570 | 824 | 826 | 827 | 922 | 954 | 986, _) => uses(rt, ra),
        // Logic and shifts
        (_, 24 | 26 | 27 | 28) => uses(rt | rb, ra),
        // Load-reserve and store-conditional
        (_, 20) => uses(base | rb, rt),
        (182, _) => uses(rt | rt << 1 | base | rb, 0),
        (150 | 214 | 694 | 726, _) => uses(rt | base | rb, 0),
        // lwat, ldat, stwat, stdat, stswx, stswi: of several neighbours
        (582 | 614 | 710 | 742 | 661 | 725, _) => uses(u32::MAX, 0),
        // Loads and stores of floating-point and vector registers
        (_, 6 | 7 | 12 | 23) => uses(base | rb, 0),
        _ => uses(rt | ra | rb, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_prologue_instructions() {
        let set = |registers: &[u32]| registers.iter().fold(0, |set, register| set | 1 << register);
        for (word, reads, writes) in [
            (0xf801_0010_u32, &[0, 1][..], &[][..]), // std r0,16(r1)
            (0xf821_ffe1, &[1], &[1]),               // stdu r1,-32(r1)
            (0xe801_0010, &[1], &[0]),               // ld r0,16(r1)
            (0x7c08_02a6, &[], &[0]),                // mflr r0
            (0x7c08_03a6, &[0], &[]),                // mtlr r0
            (0x7c64_1b78, &[3], &[4]),               // mr r4,r3
            (0x3821_0020, &[1], &[1]),               // addi r1,r1,32
            (0x3800_0020, &[], &[0]),                // li r0,32
            (0x7c83_22aa, &[3, 4], &[4]),            // lwax r4,r3,r4
            (0x7529_0010, &[9], &[9]),               // andis. r9,r9,16
            (0x6000_0000, &[], &[]),                 // nop
            (0x7d00_1829, &[3], &[8]),               // lwarx r8,0,r3,1
            (0x7c63_07b4, &[3], &[3]),               // extsw r3,r3
            (0x7929_0020, &[9], &[9]),               // clrldi r9,r9,32
            (0x7c00_4e98, &[9], &[]),                // lxvd2x vs0,0,r9
            (0x7d71_0120, &[11], &[]),               // mtocrf 16,r11
        ] {
            let expected = Usage { read: set(reads), written: set(writes) };
            assert_eq!(usage(word), expected, "{word:#x}");
        }
    }
}
