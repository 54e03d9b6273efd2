//! Every form of instruction that moves or is emulated, with its other fields at random and at the ends of their ranges,
//! put to the [oracle](crate::oracle).

use crate::{
    cross::Cross,
    oracle::{CODE, Case, LOW_CODE, PAD_SIZE, REACH, Random, WINDOW, check_emulation, check_relocation},
    state::emulate,
};
use trapless_isa::{
    Displaced, EmulateError, Reason,
    powerpc::{Version, relocate},
};

/// How many instructions of each form are executed.
pub const CASES: usize = 2000;

/// A branch target that leaves room for the pads and the code.
fn apart(target: u64, address: u64) -> bool {
    target >= address + 4 + PAD_SIZE || target + PAD_SIZE <= address - 12
}

pub fn conditional(random: &mut Random, link: u32) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let (bo, bi) = (random.below(32) as u32, random.below(32) as u32);
    let boundaries = [-0x8000_i64, 0x7ffc, 4, 32, -40, -44, 0x7ff8, -0x7ffc];
    let distance = match random.below(3) {
        0 => random.pick(&boundaries),
        _ => loop {
            let distance = (random.below(0x1_0000) & !3) as i64 - 0x8000;
            if apart(address.wrapping_add_signed(distance), address) {
                break distance;
            }
        },
    };
    let word = 16 << 26 | bo << 21 | bi << 16 | distance as u32 & 0xfffc | link;
    let mut case = Case::new(random, vec![word], address);
    case.registers.ctr = random.pick(&[0, 1, 2, case.registers.ctr]);
    if distance != 4 {
        case.targets.push(address.wrapping_add_signed(distance));
    }
    case
}

/// b or bc at a low address to an absolute one.
pub fn absolute(random: &mut Random, link: u32) -> Case {
    let address = LOW_CODE + 4 * random.below(1 << 10);
    let (target, word) = match random.below(2) {
        0 => {
            let inside = 0x100_0000 + 4 * random.below(1 << 10);
            let target = random.pick(&[0x1ff_fffc, 0x20_0000, inside]);
            (target, 18 << 26 | target as u32 | 2 | link)
        }
        _ => {
            let inside = 0x2000 + 4 * random.below(1 << 8);
            let target = random.pick(&[0x1000, 0x3f00, inside]);
            let (bo, bi) = (random.below(32) as u32, random.below(32) as u32);
            (target, 16 << 26 | bo << 21 | bi << 16 | target as u32 | 2 | link)
        }
    };
    let mut case = Case::new(random, vec![word], address);
    case.targets.push(target);
    case
}

/// bclr, bcctr, bctar: the extended opcode says which.
pub fn to_register(random: &mut Random, xo: u32, link: u32) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let target = CODE + 0x20_0000 + 4 * random.below(1 << 16);
    let always_ignores_count = if xo == 528 { 4 } else { 0 };
    let (bo, bi) = (random.below(32) as u32 | always_ignores_count, random.below(32) as u32);
    let word = 19 << 26 | bo << 21 | bi << 16 | xo << 1 | link;
    let mut case = Case::new(random, vec![word], address);
    match xo {
        16 => case.registers.lr = target,
        528 => case.registers.ctr = target,
        _ => case.registers.tar = target,
    }
    if xo != 528 {
        case.registers.ctr = random.pick(&[0, 1, 2, case.registers.ctr]);
    }
    case.targets.push(target);
    case
}

fn unconditional(random: &mut Random, link: u32) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let far = random.below(1 << 26) as i64 & !3;
    let distance =
        random.pick(&[-(REACH as i64), REACH as i64 - 4, 4, far - REACH as i64, far - REACH as i64]);
    let distance =
        if distance == 4 || apart(address.wrapping_add_signed(distance), address) { distance } else { 64 };
    let mut case = Case::new(random, vec![18 << 26 | distance as u32 & 0x3ff_fffc | link], address);
    if distance != 4 {
        case.targets.push(address.wrapping_add_signed(distance));
    }
    case
}

/// bdnz or bdz to itself, which ends by the count.
pub fn to_itself(random: &mut Random) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let bo = random.pick(&[16, 18, 25, 27]);
    let mut case = Case::new(random, vec![16 << 26 | bo << 21], address);
    case.registers.ctr = 1 + random.below(20);
    case
}

/// Puts a base register into the window and returns it with one that is not it.
pub fn aim(random: &mut Random, case: &mut Case) -> (u32, u32) {
    let base = 3 + random.below(29) as u32;
    let index = (base + 1 + random.below(28) as u32 - 3) % 29 + 3;
    case.registers.gpr[base as usize] = WINDOW + 400 + random.below(200);
    case.registers.gpr[index as usize] = random.below(128).wrapping_sub(64);
    (base, index)
}

pub fn pc_relative(random: &mut Random) -> Case {
    let address = CODE + 4 * (random.below(1 << 16) & !1);
    let (kind, suffix) = random.pick(&[
        (2, 14),
        (2, 32),
        (2, 34),
        (2, 36),
        (2, 38),
        (2, 40),
        (2, 42),
        (2, 44),
        (0, 41),
        (0, 57),
        (0, 61),
    ]);
    let distance = match suffix {
        14 => random.next() as i64 >> 30,
        _ => (WINDOW + random.below(900)).wrapping_sub(address) as i64,
    };
    let prefix = 1 << 26 | kind << 24 | 1 << 20 | (distance >> 16) as u32 & 0x3_ffff;
    let suffix = suffix << 26 | (random.below(32) as u32) << 21 | distance as u32 & 0xffff;
    Case::new(random, vec![prefix, suffix], address)
}

pub fn addpcis(random: &mut Random) -> Case {
    let address = CODE + 4 * random.below(1 << 16);
    let fields = random.next() as u32 & 0x03ff_ffc1;
    Case::new(random, vec![19 << 26 | fields | 4], address)
}

#[test]
fn branches_are_emulated_like_the_processor_does() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(1);
    let mut total = 0;
    for link in [0, 1] {
        for (name, make) in [
            ("bc", conditional as fn(&mut Random, u32) -> Case),
            ("b", unconditional),
            ("ba", absolute),
            ("bclr", |random, link| to_register(random, 16, link)),
            ("bcctr", |random, link| to_register(random, 528, link)),
        ] {
            let cases: Vec<_> = (0..CASES).map(|_| make(&mut random, link)).collect();
            total += check_emulation(&cross, &format!("{name}-{link}"), Version::V3_0, &cases);
        }
    }
    println!("{total} branches emulated");
}

/// Where a copy of a case may stand.
pub fn near(random: &mut Random, case: &Case) -> u64 {
    case.address + 0x40_0000 + 4 * random.below(1 << 16)
}

#[test]
fn relocated_instructions_do_what_the_originals_do() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(2);
    let mut total = 0;
    for (name, make) in [
        ("move-bc", (|random| conditional(random, 0)) as fn(&mut Random) -> Case),
        ("move-bcl", |random| conditional(random, 1)),
        ("move-ba", |random| {
            let link = random.below(2) as u32;
            absolute(random, link)
        }),
        ("move-bclr", |random| to_register(random, 16, 0)),
        ("move-bcctr", |random| to_register(random, 528, 0)),
        ("move-bcctrl", |random| to_register(random, 528, 1)),
        ("move-bctar", |random| to_register(random, 560, 0)),
        ("move-bctarl", |random| to_register(random, 560, 1)),
        ("move-self", to_itself),
        ("move-prefixed", pc_relative),
        ("move-addpcis", addpcis),
    ] {
        let cases: Vec<_> = (0..CASES)
            .map(|_| {
                let case = make(&mut random);
                let destination = near(&mut random, &case);
                (case, destination)
            })
            .collect();
        check_relocation(&cross, name, &cases);
        total += cases.len();
    }
    // The I form, from the ends of the reach of the copy's branch.
    for link in [0, 1] {
        let cases: Vec<_> = (0..CASES)
            .map(|_| {
                let case = unconditional(&mut random, link);
                let target = case.targets.first().copied().unwrap_or(case.next());
                let inside = target.wrapping_sub(0x1_0000 + 4 * random.below(1 << 16));
                let start =
                    random.pick(&[target.wrapping_sub(REACH - 4), target + REACH, target + 0x1000, inside]);
                // Setting lr takes words before the branch.
                let words = if link == 1 { 4 * link_words(case.next()) } else { 0 };
                let limits = target + REACH - words >= start && start + words + REACH - 4 >= target;
                let fallback = target - 0x10_0000;
                let clear = case.pads().all(|pad| start.abs_diff(pad) > 256);
                let destination = if limits && clear { start } else { fallback };
                (case, destination)
            })
            .collect();
        check_relocation(&cross, &format!("move-b-{link}"), &cases);
        total += cases.len();
    }
    println!("{total} relocated instructions executed");
}

/// Words that set lr to a 32-bit address: frame, store, constant, mtlr, load, frame.
fn link_words(value: u64) -> u64 {
    if value & 0xffff == 0 { 6 } else { 7 }
}

#[test]
fn one_word_further_is_out_of_reach() {
    let word = |target: u64| (18 << 26 | (target - CODE) as u32 & 0x3ff_fffc).to_le_bytes();
    let displaced = Displaced { start: CODE, length: 4, instructions: 1 };
    for (name, target, destination, reaches) in [
        ("forward end", CODE + 0x1000, CODE + 0x1000 - (REACH - 4), true),
        ("past it", CODE + 0x1000, CODE + 0x1000 - REACH, false),
        ("backward end", CODE + 0x1000, CODE + 0x1000 + REACH, true),
        ("past it too", CODE + 0x1000, CODE + 0x1000 + REACH + 4, false),
    ] {
        let outcome = relocate(&displaced, &word(target), destination);
        assert_eq!(outcome.is_ok(), reaches, "{name}");
        assert!(reaches || outcome == Err(Reason::OutOfReach), "{name}");
    }
    // pld r3 at the ends of its 34 bits, moved two words away and towards its operand.
    let displaced = Displaced { length: 8, ..displaced };
    for (high, low, distance, reaches) in [
        (0x1_ffff_u32, 0xfffc_u32, 8_i64, true),
        (0x1_ffff, 0xfffc, -8, false),
        (0x2_0000, 0x0000, -8, true),
        (0x2_0000, 0x0000, 8, false),
    ] {
        let pld = [(0x0410_0000 | high).to_le_bytes(), (0xe460_0000 | low).to_le_bytes()].concat();
        let outcome = relocate(&displaced, &pld, CODE.wrapping_add_signed(distance));
        assert_eq!(outcome.is_ok(), reaches, "{high:#x} {low:#x} moved by {distance}");
    }
}

#[test]
fn loads_and_stores_are_emulated_like_the_processor_does() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(3);
    let mut cases = vec![];
    // D and DS forms: primary opcode, bits of the displacement that are opcode, last opcode.
    let d_forms = (32..=45).map(|primary| (primary, 0, 0)).chain([(58, 3, 2), (62, 3, 1)]);
    for (primary, mask, last) in d_forms {
        for _ in 0..CASES {
            let mut case = Case::new(&mut random, vec![0], CODE);
            let (base, _) = aim(&mut random, &mut case);
            let d = random.below(512).wrapping_sub(256) as u32 & 0xffff & !mask;
            let xo = random.below(last + 1) as u32;
            case.words[0] = primary << 26 | (random.below(32) as u32) << 21 | base << 16 | d | xo;
            cases.push(case);
        }
    }
    for xo in [
        21, 23, 53, 55, 87, 119, 149, 151, 181, 183, 215, 247, 279, 311, 341, 343, 373, 375, 407, 439, 532,
        534, 660, 662, 790, 918,
    ] {
        for _ in 0..CASES {
            let mut case = Case::new(&mut random, vec![0], CODE);
            let (base, index) = aim(&mut random, &mut case);
            case.words[0] = 31 << 26 | (random.below(32) as u32) << 21 | base << 16 | index << 11 | xo << 1;
            cases.push(case);
        }
    }
    for _ in 0..CASES {
        cases.push(pc_relative(&mut random));
    }
    // An update form may name no base, or the loaded register: invalid, and refused.
    cases.retain(|case| {
        let outcome =
            emulate(&case.bytes(), &mut case.registers.clone(), &mut case.window(), Some(Version::V3_0));
        let refused = outcome == Err(EmulateError::Refused(Reason::NotEmulated("an invalid form")));
        assert!(refused || outcome.is_ok(), "{:x?}: {outcome:?}", case.words);
        !refused
    });
    let compared = check_emulation(&cross, "loads", Version::V3_0, &cases);
    println!("{compared} loads and stores emulated");
    assert!(compared > 80_000);
}

/// Words of the forms that `arithmetic` knows, with all other fields at random.
fn arithmetic(random: &mut Random) -> u32 {
    let fields = random.next() as u32;
    let extended = [
        0, 8, 9, 10, 19, 24, 26, 27, 28, 32, 40, 58, 60, 73, 104, 124, 136, 138, 144, 200, 202, 232, 233,
        234, 235, 266, 284, 316, 412, 444, 476, 506, 536, 538, 539, 570, 792, 794, 824, 826, 827, 922, 954,
        986, 15, 47, 1007,
    ];
    match random.below(4) {
        0 => {
            random.pick(&[7, 8, 10, 11, 12, 13, 14, 15, 20, 21, 23, 24, 25, 26, 27, 28, 29]) << 26
                | fields & 0x03ff_ffff
        }
        1 => 30 << 26 | fields & 0x03ff_ffff,
        2 => random.pick(&[0, 33, 129, 193, 225, 257, 289, 417, 449]) << 1 | 19 << 26 | fields & 0x03ff_f800,
        _ => {
            let xo = random.pick(&extended);
            let special = [8, 9, 815].map(|spr: u32| (spr & 31) << 16 | spr >> 5 << 11);
            match random.below(16) {
                0 => 31 << 26 | fields & 0x03e0_0000 | random.pick(&special) | random.pick(&[339, 467]) << 1,
                _ => 31 << 26 | fields & 0x03ff_f801 | xo << 1,
            }
        }
    }
}

#[test]
fn arithmetic_is_emulated_like_the_processor_does() {
    let Some(cross) = Cross::find() else { return };
    for (version, seed) in [(Version::V3_0, 4), (Version::V2_07, 5)] {
        let mut random = Random(seed);
        let known = |case: &Case| {
            let outcome =
                emulate(&case.bytes(), &mut case.registers.clone(), &mut case.window(), Some(version));
            outcome.is_ok()
        };
        let cases: Vec<Case> = (0..60_000)
            .map(|_| {
                let word = arithmetic(&mut random);
                let mut case = Case::new(&mut random, vec![word], CODE);
                if version == Version::V2_07 {
                    case.registers.xer &= 0xe000_0000;
                }
                case
            })
            .filter(known)
            .collect();
        let compared = check_emulation(&cross, &format!("arithmetic-{seed}"), version, &cases);
        println!("{compared} of {} arithmetic instructions compared, as {version:?}", cases.len());
        assert!(compared > 40_000);
    }
}
