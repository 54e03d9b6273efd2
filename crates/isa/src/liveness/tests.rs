//! What is said to be read and written, against what emulation does: nothing else may matter, and nothing of what is written may stay.

use super::{Known, Next, Step};
use crate::emulate::Stopped;
use crate::{BranchTargets, EmulateError, Machine, Site, aarch64, powerpc};
use alloc::vec::Vec;

const ADDRESS: u64 = 0x40_0000;

/// Memory that holds something else at each address.
fn dream(address: u64, size: u8) -> u64 {
    let value = address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    if size < 8 { value & ((1 << (8 * size)) - 1) } else { value }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) << 32 | (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32)
    }
}

/// How an instruction set looks at one word, and which of its general registers and flags count: `flags` in a thread stand for the only flag.
struct Looks {
    machine: Machine,
    registers: u32,
    flags: u64,
    step: fn(&Site<'_>, u64) -> Option<Step>,
}

impl Looks {
    fn emulate(&self, code: &[u8], thread: &mut Stopped) -> Result<(), EmulateError> {
        self.machine.isa().emulate(code, ADDRESS, thread)
    }

    /// Two threads that differ in what the word does not read do the same, and then differ only in what it does not write.
    fn check(&self, word: u32, random: &mut Random) -> bool {
        let code = word.to_le_bytes();
        let targets = BranchTargets::default();
        let site = Site::new(ADDRESS, &code, &targets);
        let Some(Step { reads, writes, next, .. }) = (self.step)(&site, ADDRESS) else { return false };
        let one = Stopped {
            registers: core::array::from_fn(|_| random.next()),
            flags: random.next() & 0xffff_ffff & !(3 << 10),
            ip: 0,
            written: Vec::new(),
            bottom: 0,
            memory: Some(dream),
        };
        let unread = |number: usize| {
            number < 32 && self.registers >> number & 1 != 0 && reads.registers >> number & 1 == 0
        };
        let mut other = one.clone();
        (0..32).filter(|number| unread(*number)).for_each(|number| other.registers[number] = random.next());
        let hidden_flags = if reads.flags == 0 { self.flags } else { 0 };
        other.flags ^= random.next() & hidden_flags;
        let before = [one.clone(), other.clone()];
        let mut after = [one, other];
        for thread in &mut after {
            if self.emulate(&code, thread).is_err() {
                return false;
            }
        }
        let [[one, other], [old_one, old_other]] = [&after, &before];
        let told = (word, reads, writes, next);
        assert_eq!((one.ip, &one.written), (other.ip, &other.written), "{told:x?}");
        if let Next::At(next) = next {
            assert_eq!(one.ip, next, "{told:x?}");
        }
        for number in 0..38 {
            let stays = one.registers[number] == old_one.registers[number]
                && other.registers[number] == old_other.registers[number];
            let is_written = number < 32 && writes.registers >> number & 1 != 0;
            let same = one.registers[number] == other.registers[number];
            assert!(same || stays && !is_written && unread(number), "register {number} of {told:x?}");
        }
        let hidden = if writes.flags == 0 { hidden_flags } else { 0 };
        assert_eq!(one.flags & !hidden, other.flags & !hidden, "{told:x?}");
        let changed = (one.flags ^ old_one.flags) | (other.flags ^ old_other.flags);
        assert_eq!(changed & (one.flags ^ other.flags) & hidden, 0, "flags of {told:x?}");
        true
    }
}

/// Random words: most are refused by somebody, and a few thousand are enough.
fn check_many(looks: &Looks, word: impl Fn(&mut Random) -> u32) {
    let mut random = Random(1);
    let checked = (0..1_500_000).filter(|_| looks.check(word(&mut random), &mut random)).count();
    assert!(checked > 100_000, "{checked}");
}

#[test]
fn what_powerpc_reads_and_writes_is_what_emulation_does() {
    let looks = Looks {
        machine: Machine::PowerPc64Le,
        registers: u32::MAX,
        flags: 0xf000_0000,
        step: |site, address| powerpc::step(site, address),
    };
    check_many(&looks, |random| random.next() as u32);
    // The extended opcodes of loads, stores, arithmetic and logic are few of many.
    check_many(&looks, |random| 31 << 26 | random.next() as u32 & 0x03ff_ffff);
}

#[test]
fn what_arm64_reads_and_writes_is_what_emulation_does() {
    let looks = Looks {
        machine: Machine::AArch64,
        registers: 0x7fff_ffff,
        flags: 0,
        step: |site, address| aarch64::liveness::step(site, address),
    };
    check_many(&looks, |random| random.next() as u32);
}

/// A path is followed until it tells nothing more.
#[test]
fn registers_are_dead_that_every_path_writes_before_it_reads_them() {
    let r = |numbers: &[u32]| numbers.iter().fold(0, |set, number| set | 1u32 << number);
    // (function, registers that are asked for, dead ones among them, whether cr0 is)
    let powerpc: [(&[u32], u32, u32, bool); 11] = [
        // nop; blr
        (&[0x6000_0000, 0x4e80_0020], r(&[0, 9, 11, 12]), 0, false),
        // li r11,1; li r12,2; cmpwi cr0,r3,0; blr
        (&[0x3960_0001, 0x3980_0002, 0x2c03_0000, 0x4e80_0020], r(&[0, 11, 12]), r(&[11, 12]), true),
        // cmpwi cr0,r11,0; li r11,1; beq +8; mr r12,r9; li r12,2; li r9,1; blr
        (
            &[0x2c0b_0000, 0x3960_0001, 0x4182_0008, 0x7d2c_4b78, 0x3980_0002, 0x3920_0001, 0x4e80_0020],
            r(&[9, 11, 12]),
            r(&[12]),
            true,
        ),
        // cmpwi cr7,r3,0; beq cr0,+8; li r9,1; li r9,2; blr
        (&[0x2f83_0000, 0x4182_0008, 0x3920_0001, 0x3920_0002, 0x4e80_0020], r(&[9]), r(&[9]), false),
        // mflr r0; bl +0x100; li r11,1; blr
        (&[0x7c08_02a6, 0x4800_0101, 0x3960_0001, 0x4e80_0020], r(&[0, 11]), r(&[0]), false),
        // vextublx r3,r11,v2; li r11,1; blr
        (&[0x106b_160d, 0x3960_0001, 0x4e80_0020], r(&[11]), 0, false),
        // vextddvlx v1,v2,v3,r11; li r11,1; blr
        (&[0x1022_1ade, 0x3960_0001, 0x4e80_0020], r(&[11]), 0, false),
        // stqcx. r4,0,r3; li r5,0; li r6,0; blr. It may fault, and leave cr0 as it was
        (&[0x7c80_196d, 0x38a0_0000, 0x38c0_0000, 0x4e80_0020], r(&[4, 5, 6]), r(&[6]), false),
        // stswi r5,r3,16; li r8,0; blr
        (&[0x7ca3_85aa, 0x3900_0000, 0x4e80_0020], r(&[8]), 0, false),
        // mfspr r11,808; blr
        (&[0x7d68_caa6, 0x4e80_0020], r(&[11]), 0, false),
        // A probe may be there: nop; li r11,1; blr
        (&[0x6000_0000, 0x3960_0001, 0x4e80_0020], r(&[11]), 0, false),
    ];
    let targets = BranchTargets::default();
    for (words, asked, dead, cr0_dead) in powerpc {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let site = Site::new(ADDRESS, &code, &targets);
        let live = powerpc::liveness(&site, ADDRESS);
        assert_eq!((live.dead & asked, live.cr0_dead), (dead, cr0_dead), "{words:x?}");
    }
    // A load that faults may leave its register to a handler that goes on behind it: ld r11,0(r3); mr r12,r11; blr
    let code: Vec<u8> =
        [0xe963_0000_u32, 0x7d6c_5b78, 0x4e80_0020].iter().flat_map(|word| word.to_le_bytes()).collect();
    let site = Site::new(ADDRESS, &code, &targets);
    assert_eq!(powerpc::liveness(&site, ADDRESS).dead & r(&[11, 12]), r(&[12]));
    // ldr x9,[x0]; mov x10,x9; cbz x11,+8; mov x11,#1; mov x12,#2; ret
    let words = [0xf940_0009_u32, 0xaa09_03ea, 0xb400_004b, 0xd280_002b, 0xd280_004c, 0xd65f_03c0];
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let site = Site::new(ADDRESS, &code, &targets);
    let dead = aarch64::liveness::dead_registers(&site, ADDRESS);
    assert_eq!(dead & r(&[9, 10, 11, 12, 13]), r(&[10, 12]));
    // What would be written in full if it did not fault: stqcx. r4,0,r3
    let code = 0x7c80_196d_u32.to_le_bytes();
    let site = Site { code: &code, ..site };
    let step = powerpc::step(&site, ADDRESS).unwrap();
    assert_eq!((step.writes, step.may_fault), (Known { registers: 0, flags: 1 }, true));
    let known = Known { registers: 5, flags: 1 };
    assert_eq!(known.and(Known { registers: 2, flags: 0 }).without(known), Known { registers: 2, flags: 0 });
}
