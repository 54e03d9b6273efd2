//! S4: whatever depends on flags, with every combination of them; loops also with counters of every kind.

use crate::emulation::{Saved, exit_of};
use crate::execution::{AWAY, ON, TAKEN, assemble};
use crate::processor::{self, FLAGS, ORIGINAL, Processor, Random, WINDOW};
use crate::proof::{copies, is_emulated};
use crate::steered::Steered;
use trapless_isa::x86::emulate;

/// The nth of the 64 combinations of CF, PF, AF, ZF, SF and OF.
pub fn flags_of(n: u64) -> u64 {
    n & 1 | (n >> 1 & 1) << 2 | (n >> 2 & 1) << 4 | (n >> 3 & 3) << 6 | (n >> 5 & 1) << 11
}

/// How our code can do what an instruction does.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ways {
    boosted: bool,
    emulated: bool,
}

/// Runs an instruction from every combination of flags and each of the counters in place, in all its copies, and by the
/// emulator; all must agree.
fn prove(processor: &Processor, bits: u32, text: &str, counters: &[u64]) -> Ways {
    let steered = Steered::new(processor, bits, &assemble(text)).unwrap();
    let bytes = &steered.bytes;
    let end = ORIGINAL + bytes.len() as u64;
    let copies = copies(bits, bytes);
    let emulated = is_emulated(bits, bytes);
    let mut random = Random(u64::from(bits) + 6);
    processor.set_vectors(None);
    processor.write(ORIGINAL, bytes);
    processor.write_exit(end, ON);
    processor.write_exit(TAKEN, AWAY);
    for (destination, code, slot) in &copies {
        processor.write(*destination, code);
        if !slot {
            processor.write_exit(destination + code.len() as u64, ON);
        }
        for flags in (0..64).map(flags_of) {
            for counter in counters {
                let mut memory = [0; 2 * WINDOW];
                let mut state = steered.state(&mut random, &mut memory).unwrap();
                state.flags = flags;
                if counters.len() > 1 {
                    state.registers[1] = if bits == 64 { *counter } else { counter & 0xffff_ffff };
                }
                let mut copied_memory = memory;
                let mut saved = Saved { registers: state.registers, flags, ip: ORIGINAL, memory, fs: None };
                let expected = processor.run(ORIGINAL, &state, &mut memory);
                let found = processor.run(*destination, &state, &mut copied_memory);
                assert_eq!(expected, found, "{} at {destination:#x} from {state:x?}", steered.instruction);
                assert!(memory == copied_memory, "{}: memory differs", steered.instruction);
                if emulated {
                    assert_eq!(emulate(bits, bytes, ORIGINAL, &mut saved), Ok(()));
                    let found = processor::State {
                        registers: saved.registers,
                        flags: saved.flags & FLAGS,
                        exit: exit_of(saved.ip, end),
                        fault: 0,
                    };
                    assert_eq!(expected, found, "{} emulated from {state:x?}", steered.instruction);
                    assert!(memory == saved.memory, "{}: memory differs", steered.instruction);
                }
            }
        }
    }
    Ways { boosted: copies.iter().any(|(_, _, slot)| *slot), emulated }
}

#[test]
fn s4_every_condition_with_every_flag_combination() {
    for bits in [64, 32] {
        let processor = Processor::new(bits);
        for condition in 0..16 {
            for (text, emulated) in [
                (format!("{:x} T8", 0x70 + condition), true),
                (format!("0f {:x} T", 0x80 + condition), true),
                (format!("3e {:x} T8", 0x70 + condition), true),
                (format!("f2 0f {:x} T", 0x80 + condition), true),
                (format!("0f {:x} d5", 0x40 + condition), true),
                (format!("66 0f {:x} d5", 0x40 + condition), true),
                (format!("0f {:x} 13", 0x40 + condition), true),
                (format!("0f {:x} c2", 0x90 + condition), false),
                (format!("0f {:x} 03", 0x90 + condition), false),
            ] {
                let ways = prove(&processor, bits, &text, &[0]);
                assert_eq!(ways, Ways { boosted: true, emulated }, "{bits} bits: {text}");
            }
            if bits == 64 {
                for text in [
                    format!("48 0f {:x} d5", 0x40 + condition),
                    format!("4d 0f {:x} 0b", 0x40 + condition),
                    format!("0f {:x} 15 D", 0x40 + condition),
                ] {
                    let ways = prove(&processor, bits, &text, &[0]);
                    assert_eq!(ways, Ways { boosted: true, emulated: true }, "{text}");
                }
            }
        }
    }
}

#[test]
fn s4_every_loop_with_every_kind_of_counter() {
    // Nothing, the last round and the one before it, by each width of the counter.
    let counters: Vec<u64> = [0, 1 << 16, 1 << 32, 0xffff_ffff << 32]
        .iter()
        .flat_map(|upper| [0, 1, 2, 0xffff, 0xffff_ffff].map(|lower| upper | lower))
        .collect();
    for bits in [64, 32] {
        let processor = Processor::new(bits);
        for opcode in ["e0", "e1", "e2", "e3"] {
            for prefix in ["", "67", "3e"] {
                let text = format!("{prefix} {opcode} T8");
                // Their copies take several instructions.
                assert_eq!(prove(&processor, bits, &text, &counters), Ways::default(), "{bits} bits: {text}");
            }
        }
    }
}

#[test]
fn s4_whatever_else_takes_flags_in() {
    for bits in [64, 32] {
        let processor = Processor::new(bits);
        // adc, sbb, rcl, rcr, cmc, lahf, pushf.
        for text in ["11 d5", "12 13", "19 13", "83 da 7f", "d1 d2", "c1 da 05", "f5", "9f", "9c"] {
            assert!(prove(&processor, bits, text, &[0]).boosted, "{bits} bits: {text}");
        }
    }
}
