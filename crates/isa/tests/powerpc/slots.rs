//! What is done after a trap, put to the [oracle](crate::oracle): slots, and instructions that are emulated together.

use crate::{
    cross::Cross,
    instructions::*,
    oracle::{CODE, Case, Random, WINDOW, check_slots, check_together},
};
use trapless_isa::{BranchTargets, Displaced, Isa, Reason, Site, powerpc::POWERPC64LE};

/// A load or store at a register and another one.
fn indexed(random: &mut Random) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let mut case = Case::new(random, vec![0], address);
    let (base, index) = aim(random, &mut case);
    let xo = random.pick(&[21, 23, 149, 151, 181, 532, 660]);
    case.words[0] = 31 << 26 | (random.below(32) as u32) << 21 | base << 16 | index << 11 | xo << 1;
    case
}

#[test]
fn slots_do_what_the_originals_do() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(6);
    let mut total = 0;
    for (name, boosts, make) in [
        ("bc", true, (|random| conditional(random, 0)) as fn(&mut Random) -> Case),
        ("bcl", false, |random| conditional(random, 1)),
        ("b", true, |random| absolute(random, 0)),
        ("bl", false, |random| absolute(random, 1)),
        ("bclr", true, |random| to_register(random, 16, 0)),
        ("bcctr", true, |random| to_register(random, 528, 0)),
        ("bcctrl", false, |random| to_register(random, 528, 1)),
        ("self", true, to_itself),
        ("prefixed", true, pc_relative),
        ("addpcis", false, addpcis),
        ("indexed", true, indexed),
    ] {
        for boosted in [true, false] {
            let cases: Vec<_> = (0..CASES)
                .map(|_| {
                    let case = make(&mut random);
                    // Slots stand at multiples of eight bytes.
                    let destination = near(&mut random, &case).next_multiple_of(8);
                    (case, destination)
                })
                .collect();
            if boosts || !boosted {
                check_slots(&cross, &format!("slot-{name}-{boosted}"), boosted, &cases);
                total += cases.len();
                continue;
            }
            for (case, destination) in cases {
                let displaced = Displaced { start: case.address, length: 4, instructions: 1 };
                let slot = POWERPC64LE.slot(&displaced, &case.bytes(), destination, true);
                assert!(matches!(slot, Err(Reason::NotBoosted(_))), "{name}: {slot:?}");
            }
        }
    }
    println!("{total} slots executed");
}

/// A word of those that prologues are made of: sums, moves, constants, comparisons, stores to the stack.
fn word_of_prologue(random: &mut Random) -> u32 {
    let bits = |random: &mut Random, mask: u32| random.next() as u32 & mask;
    let register = |random: &mut Random| (2 + random.below(30) as u32) << 21;
    match random.below(9) {
        // std r,n(r1); stdu r1,-32(r1)
        0..3 => 0xf801_0000 | register(random) | (-8 * random.below(12) as i32) as u32 & 0xffff,
        3 => 0xf821_ffe1,
        // mflr, mfcr; mr
        4 => random.pick(&[0x7c08_02a6, 0x7c00_0026]) | register(random),
        5 => 0x7c00_0378 | bits(random, 0x03c0_f800) | 2 << 16,
        // addi, addis; cmpdi; nop
        6 => random.pick(&[0x3800_0000, 0x3c00_0000]) | register(random) | bits(random, 0x1f_ffff),
        7 => 0x2c20_0000 | bits(random, 0x039f_ffff),
        _ => 0x6000_0000,
    }
}

#[test]
fn instructions_emulated_together_do_what_they_do() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(7);
    let mut longest = 0;
    let cases: Vec<Case> = (0..10_000)
        .map(|_| {
            let words: Vec<u32> = (0..12).map(|_| word_of_prologue(&mut random)).collect();
            let address = CODE + 4 * random.below(1 << 16);
            let mut case = Case::new(&mut random, words, address);
            case.registers.gpr[1] = WINDOW + 512;
            let (code, targets) = (case.bytes(), BranchTargets::default());
            let site = Site::new(address, &code, &targets);
            let first = Displaced { start: address, length: 4, instructions: 1 };
            let together = POWERPC64LE.together(&site, first, None);
            longest = longest.max(together.instructions);
            case.words.truncate(together.instructions.into());
            case
        })
        .collect();
    check_together(&cross, "together", &cases);
    println!("{} prologues emulated as executed, of up to {longest} instructions", cases.len());
    assert!(longest >= 9, "no more than {longest} together");
}
