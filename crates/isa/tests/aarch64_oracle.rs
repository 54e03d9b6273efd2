//! The original instruction under qemu-user against its emulation and against its copy in a detour and in slots, bit by bit.
//!
//! `TRAPLESS_SOAK=n` multiplies the number of cases by n.

mod aarch64;

use aarch64::{
    copied,
    oracle::{Case, DATA, MIDDLE, Outcome, REGION, REGION_SIZE, Random, World, execute},
    state::{Registers, State, emulate},
};
use trapless_isa::{
    BranchTargets, Displaced, Isa, Reason, Site, Slot,
    aarch64::{
        AARCH64,
        decode::{Form, RegisterBranch, form},
        emulate::supported,
    },
};

/// Groups of instructions: name, fixed bits, bits that are drawn.
const FORMS: &[(&str, u32, u32)] = &[
    ("b, bl", 0x1400_0000, 0x83ff_ffff),
    ("b.cond", 0x5400_0000, 0x00ff_ffff),
    ("cbz, cbnz", 0x3400_0000, 0x81ff_ffff),
    ("tbz, tbnz", 0x3600_0000, 0x81ff_ffff),
    ("br, blr, ret", 0xd61f_0000, 0x0060_03e0),
    ("adr, adrp", 0x1000_0000, 0xe0ff_ffff),
    ("literal loads", 0x1800_0000, 0xc0ff_ffff),
    ("hints", 0xd503_201f, 0x0000_0fe0),
    ("add, sub immediate", 0x1100_0000, 0xe07f_ffff),
    ("logical immediate", 0x1200_0000, 0xe07f_ffff),
    ("movz, movn, movk", 0x1280_0000, 0xe07f_ffff),
    ("bitfield", 0x1300_0000, 0xe07f_ffff),
    ("extract", 0x1380_0000, 0xe07f_ffff),
    ("logical shifted", 0x0a00_0000, 0xe0ff_ffff),
    ("add, sub shifted", 0x0b00_0000, 0xe0df_ffff),
    ("add, sub extended", 0x0b20_0000, 0xe0df_ffff),
    ("adc, sbc", 0x1a00_0000, 0xe01f_03ff),
    ("ccmp, ccmn", 0x3a40_0000, 0xc01f_fbef),
    ("csel", 0x1a80_0000, 0xc01f_f7ff),
    ("division, shifts by register", 0x1ac0_0000, 0x801f_3fff),
    ("reversals, counts", 0x5ac0_0000, 0x8000_1fff),
    ("multiplication", 0x1b00_0000, 0x80ff_ffff),
    ("pair", 0x2800_0000, 0xc1ff_ffff),
    ("stp push, ldp pop", 0xa880_03e0, 0x017f_fc1f),
    ("single", 0x3800_0000, 0xc0ff_ffff),
    ("single, unsigned offset", 0x3900_0000, 0xc0ff_ffff),
];

fn soak() -> u64 {
    std::env::var("TRAPLESS_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A word of a group; one in four has its immediate at an end of its range.
fn draw(random: &mut Random, value: u32, free: u32) -> u32 {
    let word = value | random.next() as u32 & free;
    let (low, width) = match form(word) {
        Form::Branch { .. } => (0, 26),
        Form::TestBranch { .. } => (5, 14),
        Form::ConditionalBranch { .. }
        | Form::CompareBranch { .. }
        | Form::Literal { .. }
        | Form::Address { .. } => (5, 19),
        _ => return word,
    };
    let ones = (1u32 << width) - 1;
    let half = 1 << (width - 1);
    let ends = [0, 1, 2, half - 2, half - 1, half, half + 1, ones - 1, ones];
    match random.below(4) {
        0 => word & !(ones << low) | ends[random.below(9) as usize] << low,
        _ => word,
    }
}

/// An address of the region, away from its ends.
fn somewhere(random: &mut Random) -> u64 {
    REGION + 0x10_0000 + (random.below(REGION_SIZE - 0x20_0000) & !3)
}

/// Registers from which `word` leads into the world: branch targets in the region, accesses to the data page.
fn registers_for(random: &mut Random, word: u32, pc: u64) -> Option<Registers> {
    let mut registers = random.registers(pc);
    match form(word) {
        Form::RegisterBranch { rn, .. } => *registers.x.get_mut(usize::from(rn))? = somewhere(random),
        Form::Plain if word & 0x0a00_0000 == 0x0800_0000 => {
            // Where is it with a base of 0? Then the base is moved by what is missing.
            let base = (word >> 5 & 31) as usize;
            let mut probe = World { data: vec![0; 16], probe: Some(None) };
            let mut trial = registers;
            *trial.x.get_mut(base).unwrap_or(&mut trial.sp) = 0;
            emulate(word, &mut trial, &mut probe).ok()?;
            let first = probe.probe.flatten().unwrap_or(0);
            let place = DATA + 256 + random.below(512);
            let value = place.wrapping_sub(first);
            match registers.x.get_mut(base) {
                Some(register) => *register = value,
                None => registers.sp = value & !15,
            }
        }
        _ => {}
    }
    Some(registers)
}

/// Whether a branch or literal of `word` at `pc` meets the code of a case, where the two runs differ.
fn meets(word: u32, pc: u64, places: &[u64]) -> bool {
    let target = match form(word) {
        Form::Literal { offset, .. } => pc.wrapping_add_signed(offset),
        other => match other.flow(pc).target() {
            Some(target) => target,
            None => return false,
        },
    };
    places.iter().any(|&place| target.wrapping_sub(place.wrapping_sub(16)) < 80)
}

#[test]
fn emulation_does_what_the_instruction_does() {
    let mut random = Random(0x5eed_0001);
    let (mut cases, mut expected) = (vec![], vec![]);
    for &(name, value, free) in FORMS {
        let mut made = 0;
        let wanted = 2_500 * soak();
        for _ in 0..60 * wanted {
            let word = draw(&mut random, value, free);
            if supported(word).is_err() || meets(word, MIDDLE, &[MIDDLE]) {
                continue;
            }
            let Some(registers) = registers_for(&mut random, word, MIDDLE) else { continue };
            let seed = random.next();
            let (mut after, mut world) = (registers, World::new(seed));
            if emulate(word, &mut after, &mut world).is_err() {
                continue;
            }
            expected.push((name, word, after, world.hash()));
            cases.push(Case { code: word.to_le_bytes().to_vec(), registers, seed });
            made += 1;
            if made == wanted {
                break;
            }
        }
        assert!(made == wanted, "{name}: only {made} cases");
    }
    let Some(outcomes) = execute(&cases) else { return };
    for ((case, outcome), (name, word, after, memory)) in cases.iter().zip(outcomes).zip(expected) {
        let Outcome { registers, signal, memory: real_memory, .. } = outcome;
        let context = format!("{name} {word:#010x} from {:x?}", case.registers);
        assert_eq!(signal, 5, "{context}");
        assert_eq!(registers, after, "{context}");
        assert_eq!(real_memory, memory, "memory after {context}");
    }
    println!("{} instructions emulated as executed", cases.len());
}

/// Where copies stand: next door, at the ends of the ranges of tbz, of literals, adr and b.cond, and at those
/// of b.
fn copies() -> Vec<u64> {
    let mut places = vec![];
    for distance in
        [1 << 12, 1 << 15, 1 << 16, 1 << 20, 1 << 21, 1 << 24, (1 << 27) - (1 << 20), (1 << 27) - 128]
    {
        for shift in [0, 4, 8] {
            places.push(MIDDLE.wrapping_add(distance + shift));
            places.push(MIDDLE.wrapping_sub(distance - 64 - shift));
        }
    }
    places
}

/// A copy that runs at `to`. A thread that comes to `end` is at the next instruction.
struct Copy {
    code: Vec<u8>,
    end: Option<u64>,
}

/// Runs originals and copies from the same state, and compares. Groups of which `make` refuses any may be tried less often.
fn prove_copies(seed: u64, make: impl Fn(u32, u64) -> Result<Copy, Reason>) {
    let mut random = Random(seed);
    let copies = copies();
    let (mut cases, mut names) = (vec![], vec![]);
    for &(name, value, free) in FORMS {
        let moved = matches!(
            form(value),
            Form::Branch { .. }
                | Form::ConditionalBranch { .. }
                | Form::CompareBranch { .. }
                | Form::TestBranch { .. }
                | Form::RegisterBranch { .. }
                | Form::Address { .. }
                | Form::Literal { .. }
        );
        let wanted = soak() * if moved { 4_000 } else { 250 };
        let (mut made, mut out_of_reach, mut refused) = (0, 0, 0);
        for _ in 0..60 * wanted {
            let mut word = draw(&mut random, value, free);
            // Half of the literals are vectors.
            if name == "literal loads" && random.below(2) == 0 && word >> 30 != 3 {
                word |= 1 << 26;
            }
            let to = copies[random.below(copies.len() as u64) as usize];
            let memory_access = form(word) == Form::Plain && word & 0x0a00_0000 == 0x0800_0000;
            if meets(word, MIDDLE, &[MIDDLE, to]) || memory_access && supported(word).is_err() {
                continue;
            }
            let Copy { code, end } = match make(word, to) {
                Ok(copy) => copy,
                Err(Reason::OutOfReach) => {
                    let target = form(word).flow(MIDDLE).target().unwrap();
                    assert!(to.abs_diff(target) > (1 << 27) - 64, "{word:#x} to {to:#x}");
                    out_of_reach += 1;
                    continue;
                }
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            let Some(mut registers) = registers_for(&mut random, word, MIDDLE) else { continue };
            // Below sp is free for the copy.
            if !(memory_access && word >> 5 & 31 == 31) {
                registers.sp = DATA + 2048;
            }
            let seed = random.next();
            cases.push(Case { code: word.to_le_bytes().to_vec(), registers, seed });
            cases.push(Case { code, registers: Registers { pc: to, ..registers }, seed });
            names.push((name, word, to, end));
            made += 1;
            if made == wanted {
                break;
            }
        }
        assert!(made == wanted || refused > 0, "{name}: only {made} cases");
        // From the farthest copies, a direct branch has targets beyond the reach of `b`.
        let is_direct = form(value).flow(MIDDLE).target().is_some();
        assert_eq!(out_of_reach > 0, is_direct && made > 0, "{name}");
    }
    let Some(outcomes) = execute(&cases) else { return };
    for ((runs, cases), (name, word, to, end)) in
        outcomes.as_chunks::<2>().0.iter().zip(cases.as_chunks::<2>().0).zip(names)
    {
        let [mut original, mut copy] = *runs;
        // An instruction that faults does so at its own address.
        if original.signal != 5 {
            assert_eq!(original.registers.pc, MIDDLE);
            original.registers.pc = 0;
            copy.registers.pc = 0;
        } else if let Some(end) = end {
            assert_eq!((copy.registers.pc, original.registers.pc), (end, MIDDLE + 4), "{name} {word:#010x}");
            copy.registers.pc = MIDDLE + 4;
        }
        assert_eq!(original, copy, "{name} {word:#010x} at {to:#x} from {:x?}", cases[0].registers);
    }
    println!("{} copies did as the original", outcomes.len() / 2);
}

#[test]
fn a_copy_does_what_the_instruction_does() {
    prove_copies(0x5eed_0002, |word, to| copied(word, MIDDLE, to).map(|code| Copy { code, end: None }));
}

fn slot(word: u32, to: u64, boosted: bool) -> Result<Slot, Reason> {
    let displaced = Displaced { start: MIDDLE, length: 4, instructions: 1 };
    AARCH64.slot(&displaced, &word.to_le_bytes(), to, boosted)
}

#[test]
fn a_boosted_slot_does_what_the_instruction_does() {
    prove_copies(0x5eed_0004, |word, to| {
        slot(word, to, true).map(|slot| Copy { code: slot.code, end: None })
    });
}

/// Run, not stepped, to the breakpoint at its end; a branch, to where it leads.
#[test]
fn a_stepped_slot_does_what_the_instruction_does() {
    prove_copies(0x5eed_0005, |word, to| {
        let slot = slot(word, to, false)?;
        let end = slot.ends_in_break(AARCH64.facts()).then(|| to + u64::from(slot.copy));
        Ok(Copy { code: slot.code, end })
    });
}

/// Words of which prologues are made: sums of sp and other registers, moves, addresses, stores to the stack.
fn word_of_prologue(random: &mut Random) -> u32 {
    let bits = |random: &mut Random, mask: u32| random.next() as u32 & mask;
    match random.below(10) {
        0 => 0xa980_03e0 | bits(random, 0x7c1f) | (127 - random.below(2) as u32) << 15, // stp push
        1 => 0xa900_03e0 | bits(random, 0x7c1f) | (random.below(6) as u32) << 15,       // stp [sp, #n]
        2 => 0xf900_03e0 | bits(random, 0x1f) | (random.below(12) as u32) << 10,        // str [sp, #n]
        3 => 0xd100_03ff | (16 * random.below(8) as u32) << 10,                         // sub sp, sp, #n
        4 => 0x9100_03e0 | bits(random, 0x0000_001f) | (16 * random.below(4) as u32) << 10, // add x, sp, #n
        5 => 0xaa00_03e0 | bits(random, 0x001f_001f),                                   // mov
        6 => 0x1000_0000 | bits(random, 0xe0ff_ffff),                                   // adr, adrp
        7 => 0xeb00_0000 | bits(random, 0x001f_03ff),                                   // subs
        8 => 0xd503_201f | bits(random, 0x40),                                          // nop, wfe
        _ => 0x5280_0000 | bits(random, 0x807f_ffff),                                   // movz
    }
}

#[test]
fn instructions_emulated_together_do_what_they_do() {
    let mut random = Random(0x5eed_0006);
    let (mut cases, mut expected, mut longest) = (vec![], vec![], 0);
    while cases.len() < 20_000 * soak() as usize {
        let code: Vec<u8> = (0..12).flat_map(|_| word_of_prologue(&mut random).to_le_bytes()).collect();
        let targets = BranchTargets::default();
        let site = Site::new(MIDDLE, &code, &targets);
        let first = Displaced { start: MIDDLE, length: 4, instructions: 1 };
        let together = AARCH64.together(&site, first, None);
        let code = &code[..together.length.into()];
        let (registers, seed) = (random.registers(MIDDLE), random.next());
        let (mut after, mut world) = (registers, World::new(seed));
        if AARCH64.emulate(code, MIDDLE, &mut State::new(&mut after, &mut world)).is_err() {
            assert_eq!(together.instructions, 1, "{code:x?}");
            continue;
        }
        longest = longest.max(together.instructions);
        expected.push((after, world.hash()));
        cases.push(Case { code: code.to_vec(), registers, seed });
    }
    assert!(longest >= 9, "no more than {longest} together");
    let Some(outcomes) = execute(&cases) else { return };
    for ((case, outcome), (after, memory)) in cases.iter().zip(outcomes).zip(expected) {
        let context = format!("{:x?} from {:x?}", case.code, case.registers);
        assert_eq!(outcome.signal, 5, "{context}");
        assert_eq!((outcome.registers, outcome.memory), (after, memory), "{context}");
    }
    println!("{} prologues emulated as executed, of up to {longest} instructions", cases.len());
}

#[test]
fn calls_through_the_link_register_are_refused() {
    let word = 0xd63f_03c0; // blr x30
    assert!(matches!(form(word), Form::RegisterBranch { kind: RegisterBranch::Call, rn: 30, .. }));
    assert!(matches!(slot(word, MIDDLE + 64, false), Err(Reason::Unmovable(_))));
}
