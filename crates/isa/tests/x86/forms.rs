//! Every instruction form that is accepted, found by going through the opcode maps and through real binaries.
//!
//! A form is what the code under test may treat differently: the decoder's code (mnemonic, encoding and operand sizes),
//! what addresses are made of, the segment, the prefixes, and whether an operand is a high byte or the stack pointer.

use crate::files::Library;
use crate::processor::{ORIGINAL, Random};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use std::collections::BTreeMap;

/// What tells forms of one code apart, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traits(u32);

/// Encodings by form.
pub type Forms = BTreeMap<(Code, Traits), Found>;

/// A few of a form's encodings, drawn evenly from all that were seen.
#[derive(Default)]
pub struct Found {
    pub encodings: Vec<Vec<u8>>,
    seen: u64,
}

/// Encodings kept of each form.
const KEPT: u64 = 12;

fn traits(i: &Instruction) -> Traits {
    let registers = (0..i.op_count()).filter(|n| i.op_kind(*n) == OpKind::Register).map(|n| i.op_register(n));
    let is_high = |r: Register| matches!(r, Register::AH | Register::BH | Register::CH | Register::DH);
    let is_stack = |r: Register| r.is_gpr() && r.full_register() == Register::RSP;
    let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    let (base, index) = (i.memory_base(), i.memory_index());
    let mut bits = 0;
    for (n, set) in [
        i.has_lock_prefix(),
        i.has_rep_prefix(),
        i.has_repne_prefix(),
        registers.clone().any(is_high),
        registers.clone().any(is_stack),
        memory,
        memory && matches!(base, Register::RIP | Register::EIP),
        memory && base != Register::None,
        memory && index != Register::None,
        memory && is_stack(base),
        memory && base.size().max(index.size()) == 4,
        i.segment_prefix() == Register::FS,
        i.segment_prefix() == Register::GS,
        i.segment_prefix() != Register::None,
        i.has_op_mask(),
        i.is_broadcast(),
    ]
    .into_iter()
    .enumerate()
    {
        bits |= u32::from(set) << n;
    }
    Traits(bits)
}

/// Adds the instruction that `code` starts with if it is `accepted`.
fn add(
    forms: &mut Forms,
    bits: u32,
    code: &[u8],
    random: &mut Random,
    accepted: &dyn Fn(u32, &[u8]) -> bool,
) -> usize {
    // Operands that lie where the instruction itself lies are no form of their own.
    let instruction = Decoder::with_ip(bits, code, ORIGINAL, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return 1;
    }
    let bytes = &code[..instruction.len()];
    let key = (instruction.code(), traits(&instruction));
    if let Some(found) = forms.get_mut(&key) {
        found.seen += 1;
        let place = if found.seen <= KEPT { found.seen } else { random.next() % found.seen };
        // Of one form some may be refused for their operands.
        if place <= KEPT && accepted(bits, bytes) {
            found.encodings.truncate(KEPT as usize - 1);
            found.encodings.push(bytes.to_vec());
        }
    } else if accepted(bits, bytes) {
        forms.insert(key, Found { encodings: vec![bytes.to_vec()], seen: 1 });
    }
    instruction.len()
}

/// Goes through the opcode maps: every legacy prefix that changes a form, every opcode, every ModRM byte, with random
/// REX, SIB, displacement and immediate.
pub fn in_opcode_maps(forms: &mut Forms, bits: u32, accepted: &dyn Fn(u32, &[u8]) -> bool) {
    const PREFIXES: &[&[u8]] = &[
        &[],
        &[0x66],
        &[0xf2],
        &[0xf3],
        &[0x67],
        &[0x64],
        &[0x65],
        &[0xf0],
        &[0x3e],
        &[0x66, 0xf2],
        &[0x66, 0xf3],
        &[0x66, 0x67],
        &[0x66, 0xf0],
        &[0x67, 0xf3],
    ];
    const MAPS: &[&[u8]] = &[&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let mut random = Random(u64::from(bits) + 2);
    for prefixes in PREFIXES {
        for map in MAPS {
            for opcode in 0..=255 {
                for modrm in 0..=255u8 {
                    // Several SIB bytes, where there is one.
                    let times = if modrm < 0xc0 && modrm & 7 == 4 { 12 } else { 1 };
                    for _ in 0..times {
                        let rex = match random.next() % 8 {
                            _ if bits == 32 => None,
                            0..4 => None,
                            4 => Some(0x48),
                            _ => Some(0x40 | random.next() as u8 & 0xf),
                        };
                        let mut code = prefixes.to_vec();
                        code.extend(rex);
                        code.extend_from_slice(map);
                        code.extend([opcode, modrm]);
                        code.extend(random.next().to_le_bytes());
                        code.extend(random.next().to_le_bytes());
                        code.truncate(15);
                        add(forms, bits, &code, &mut random, accepted);
                    }
                }
            }
        }
    }
}

/// Goes through the code of a library.
pub fn in_library(forms: &mut Forms, library: &Library, bits: u32, accepted: &dyn Fn(u32, &[u8]) -> bool) {
    let mut random = Random(3);
    for section in &library.text {
        let mut offset = 0;
        while offset < section.bytes.len() {
            let code = &section.bytes[offset..section.bytes.len().min(offset + 15)];
            offset += add(forms, bits, code, &mut random, accepted);
        }
    }
}

/// Adds the forms of another file.
pub fn merge(forms: &mut Forms, others: Forms) {
    for (key, other) in others {
        let found = forms.entry(key).or_default();
        found.seen += other.seen;
        found.encodings.extend(other.encodings);
        found.encodings.truncate(KEPT as usize);
    }
}
