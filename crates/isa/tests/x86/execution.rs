//! Original and relocated instructions, run by the processor from the same state, end in the same state.

use crate::conditions::flags_of;
use crate::processor::{BEYOND, DATA, NEAR, ORIGINAL, Processor, REACH, Random, State, WINDOW};
use trapless_isa::x86::relocate;
use trapless_isa::{Displaced, Machine};

/// Where taken branches lead; in reach of a rel8.
pub const TAKEN: u64 = ORIGINAL + 0x50;
/// Exits: straight on, and the taken branch's.
pub const ON: u32 = 1;
pub const AWAY: u32 = 2;
pub const ROUNDS: u32 = 3000;

/// Bytes in hexadecimal, with names for what depends on addresses: `T8` and `T` are the rel8 and rel32 to [`TAKEN`],
/// `S8` the rel8 to the first byte, `D` the disp32 to the data, `D+n` when n bytes of the instruction follow.
pub fn assemble(text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for token in text.split_whitespace() {
        let end = |length: u64| ORIGINAL + bytes.len() as u64 + length;
        match token {
            "T8" => bytes.push((TAKEN - end(1)) as u8),
            "S8" => bytes.push(ORIGINAL.wrapping_sub(end(1)) as u8),
            "T" => bytes.extend(((TAKEN - end(4)) as u32).to_le_bytes()),
            "NEXT" => bytes.extend([0; 4]),
            _ if token.starts_with('D') => {
                let trailing = token[1..].parse::<u64>().unwrap_or_default();
                let displacement = DATA + 64 - end(4 + trailing);
                bytes.extend((displacement as u32).to_le_bytes());
            }
            _ => bytes.push(u8::from_str_radix(token, 16).unwrap()),
        }
    }
    bytes
}

/// A random state. rbx, rsi and rdi point into the data, where pointers to [`TAKEN`] stand too; so does the top of
/// the stack. rcx is small in half of all states, and shifted to where only its lower parts are 0 in some.
pub fn random_state(random: &mut Random, bits: u32, memory: &mut [u8; 2 * WINDOW]) -> State {
    let mut state = State::default();
    for register in &mut state.registers {
        *register = random.next();
    }
    for word in memory.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    state.registers[1] = match random.next() % 8 {
        0..4 => random.next() % 4,
        4 => (1 << 16) + random.next() % 2,
        5 => (1 << 32) + random.next() % 2,
        _ => random.next(),
    };
    for pointer in [3, 6, 7] {
        state.registers[pointer] = DATA + 256 + random.next() % 256;
    }
    state.registers[4] = Processor::stack();
    // Where calls and jumps through memory and registers find their target.
    state.registers[0] = TAKEN;
    state.registers[8] = TAKEN;
    let word = bits as usize / 8;
    let target = &TAKEN.to_le_bytes()[..word];
    let top = WINDOW + WINDOW / 2;
    for at in [64, top, top + 64] {
        memory[at..at + word].copy_from_slice(target);
    }
    state.flags = random.next();
    if bits == 32 {
        state.registers = state.registers.map(|r| r & 0xffff_ffff);
        state.registers[8..].fill(0);
    }
    state
}

/// Runs `text` in place and relocated to each of `destinations`; both must agree on everything.
fn prove(processor: &Processor, bits: u32, name: &str, text: &str, destinations: &[u64], rounds: u32) {
    let bytes = assemble(text);
    let isa = if bits == 64 { Machine::X86_64 } else { Machine::I386 }.isa();
    let (mut instructions, mut offset) = (0, 0);
    while offset < bytes.len() {
        offset += usize::from(isa.decode(&bytes[offset..], ORIGINAL).expect(name).length);
        instructions += 1;
    }
    let displaced = Displaced { start: ORIGINAL, length: bytes.len() as u8, instructions };
    processor.write(ORIGINAL, &bytes);
    processor.write_exit(displaced.end(), ON);
    processor.write_exit(TAKEN, AWAY);
    assert!(displaced.end() + 48 <= TAKEN, "{name}");
    let mut random = Random(u64::from(bits));
    for &destination in destinations {
        let relocated = relocate(bits, &displaced, &bytes, destination)
            .unwrap_or_else(|reason| panic!("{name} to {destination:#x}: {reason}"));
        processor.write(destination, &relocated.code);
        processor.write_exit(destination + relocated.code.len() as u64, ON);
        for round in 0..rounds {
            let mut memory = [0; 2 * WINDOW];
            let mut state = random_state(&mut random, bits, &mut memory);
            if round < 64 {
                state.flags = flags_of(round.into());
            }
            if text.contains("S8") {
                state.registers[1] = 1 + random.next() % 64;
            }
            let mut copied_memory = memory;
            let expected = processor.run(ORIGINAL, &state, &mut memory);
            let found = processor.run(destination, &state, &mut copied_memory);
            assert_eq!(expected, found, "{name} at {destination:#x} from {state:x?}");
            assert!(memory == copied_memory, "{name} at {destination:#x}: memory differs");
        }
    }
}

const JUMP_REACH: &[u64] = &[NEAR, REACH];
const ANYWHERE: &[u64] = &[NEAR, REACH, BEYOND];

/// Forms without RIP-relative operands in both modes.
const FORMS: &[(&str, &str)] = &[
    ("jmp short", "eb T8"),
    ("jmp near", "e9 T"),
    ("bnd jmp", "f2 e9 T"),
    ("loop", "e2 T8"),
    ("loope", "e1 T8"),
    ("loopne", "e0 T8"),
    ("jrcxz, jecxz", "e3 T8"),
    ("jecxz, jcxz", "67 e3 T8"),
    ("loop with the other counter", "67 e2 T8"),
    ("call", "e8 T"),
    ("call of the next instruction", "e8 NEXT"),
    ("push; call", "53 e8 T"),
    ("call of the next instruction after a push", "53 e8 NEXT"),
    ("call rax", "ff d0"),
    ("notrack call rax", "3e ff d0"),
    ("call through the top of the stack", "ff 14 24"),
    ("call through the stack, disp8", "ff 54 24 40"),
    ("call through the stack, disp32", "ff 94 24 40 00 00 00"),
    ("notrack jmp rax", "3e ff e0"),
    ("jmp rax", "ff e0"),
    ("jmp through the stack", "ff 24 24"),
    ("ret", "c3"),
    ("rep ret", "f3 c3"),
    ("ret imm16", "c2 08 00"),
    ("push rsp", "54"),
    ("push [rsp]", "ff 34 24"),
    ("pop rsp after push", "54 5c"),
    ("pop [rsp]", "8f 04 24"),
    ("pushf", "9c"),
    ("pushf; popf", "9c 9d"),
    ("enter; leave", "c8 20 00 00 c9"),
    ("lock add", "f0 01 13"),
    ("lock cmpxchg", "f0 0f b1 13"),
    ("xchg with memory", "87 13"),
    ("lahf; sahf", "9f 9e"),
    ("mul", "f7 e2"),
    ("shl by cl", "d3 e2"),
    ("adc", "11 d5"),
    ("sbb", "19 ed"),
    ("bt", "0f a3 d5"),
    ("cld", "fc"),
    ("std", "fd"),
    ("movsb", "a4"),
    ("stosd", "ab"),
    ("lodsb; scasb", "ac ae"),
    ("lea of the stack", "8d 6c 24 10"),
    ("push; mov; push", "55 89 e5 53"),
    ("test; je", "85 d2 74 T8"),
    ("cmp; jl near", "39 d5 0f 8c T"),
    ("xor; ret", "31 d2 c3"),
    ("not; loop to the first", "f7 d5 e2 S8"),
    ("nop", "90"),
    ("long nop", "66 2e 0f 1f 84 00 00 00 00 00"),
    ("endbr64", "f3 0f 1e fa"),
    ("mfence", "0f ae f0"),
];

#[test]
fn relocated_forms_do_what_the_originals_do() {
    let processor = Processor::new(64);
    for (name, text) in FORMS {
        prove(&processor, 64, name, text, ANYWHERE, ROUNDS);
    }
}

#[test]
fn relocated_32_bit_forms_do_what_the_originals_do() {
    let processor = Processor::new(32);
    for (name, text) in FORMS {
        prove(&processor, 32, name, text, JUMP_REACH, ROUNDS);
    }
    for (name, text) in [
        ("pusha; popa", "60 61"),
        ("inc; dec", "40 4a"),
        ("aaa; daa", "37 27"),
        ("absolute operand", "8b 15 40 00 00 50"),
        ("call through an absolute address", "ff 15 40 00 00 50"),
    ] {
        prove(&processor, 32, name, text, JUMP_REACH, ROUNDS);
    }
}

/// RIP-relative operands, which must stay within 2 GB.
const RIP_RELATIVE: &[(&str, &str)] = &[
    ("lea", "48 8d 15 D"),
    ("mov load", "48 8b 15 D"),
    ("mov store", "48 89 15 D"),
    ("mov imm32", "48 c7 05 D4 78 56 34 12"),
    ("mov imm8", "c6 05 D1 42"),
    ("cmp imm8", "48 83 3d D1 05"),
    ("add with high registers", "4c 01 3d D"),
    ("lock xadd", "f0 48 0f c1 15 D"),
    ("movsxd", "48 63 15 D"),
    ("push", "ff 35 D"),
    ("call", "ff 15 D"),
    ("call with REX.W", "48 ff 15 D"),
    ("jmp", "ff 25 D"),
    ("notrack jmp", "3e ff 25 D"),
    ("implicit rax, rdx", "48 f7 2d D"),
    ("cmpxchg, implicit rax", "48 0f b1 15 D"),
    ("cmpxchg16b, implicit rax, rbx, rcx, rdx", "48 0f c7 0d D"),
    ("shift by cl", "48 d3 25 D"),
    ("imul imm32", "48 69 15 D4 11 22 33 44"),
    ("crc32", "f2 48 0f 38 f1 15 D"),
    ("sse and back", "0f 10 05 D 0f 11 07"),
    ("pinsrd imm8", "66 0f 3a 22 05 D1 02 0f 11 07"),
    ("setcc", "0f 94 05 D"),
    ("cmov", "48 0f 44 15 D"),
    ("fld, fstp", "dd 05 D dd 1f"),
];

#[test]
fn rip_relative_operands_keep_their_address() {
    let processor = Processor::new(64);
    for (name, text) in RIP_RELATIVE {
        prove(&processor, 64, name, text, JUMP_REACH, ROUNDS);
    }
    let vex: &[(&str, &str)] = &[
        ("vmovdqu", "c5 fe 6f 05 D c5 fe 7f 07"),
        ("vpinsrd imm8", "c4 e3 79 22 05 D1 01 c5 fa 7f 07"),
        ("andn", "c4 e2 e8 f2 15 D"),
    ];
    let evex: &[(&str, &str)] = &[
        ("vmovdqu64 zmm", "62 f1 fe 48 6f 05 D 62 f1 fe 48 7f 07"),
        ("broadcast", "62 f1 fe 48 6f 05 D 62 f1 7d 58 fe 05 D 62 f1 fe 48 7f 07"),
    ];
    for (feature, here, forms) in [
        ("avx2 and bmi1", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1"), vex),
        ("avx512f", is_x86_feature_detected!("avx512f"), evex),
    ] {
        if !here {
            trapless_testing::inapplicable!("this processor has no {feature}");
            continue;
        }
        for (name, text) in forms {
            prove(&processor, 64, name, text, JUMP_REACH, ROUNDS);
        }
    }
}
