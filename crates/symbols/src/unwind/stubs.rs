//! Stubs of a PLT that no entry tells of: lld writes none, and GNU ld none in static programs.
//!
//! Stubs have 16 bytes. They jump, and what binds symbols late pushes a word or two first (System V ABI, each processor's supplement,
//! "Procedure Linkage Table").

use super::{Cfa, FrameRule, Rule, Saved, UnwindBase};
use crate::Machine;

const STUB: usize = 16;

/// The rows of a section that begins at `start`.
pub(super) fn rows(machine: Machine, start: u64, bytes: &[u8]) -> Vec<(u64, Rule)> {
    let mut rows = Vec::new();
    for (index, stub) in bytes.chunks(STUB).enumerate() {
        let at = start + (index * STUB) as u64;
        match machine {
            Machine::X86_64 => x86(&mut rows, at, stub, 8),
            Machine::I386 => x86(&mut rows, at, stub, 4),
            Machine::AArch64 => aarch64(&mut rows, at, stub),
            // Its stubs lie in the text.
            Machine::PowerPc64Le => {}
        }
    }
    rows
}

fn frame(offset: i32, return_address: Saved) -> Rule {
    Rule::Frame(FrameRule {
        cfa: Cfa::Register { base: UnwindBase::Stack, offset },
        return_address,
        frame_pointer: Saved::Unchanged,
        base_pointer: Saved::Unchanged,
        interrupted: None,
    })
}

fn x86(rows: &mut Vec<(u64, Rule)>, at: u64, stub: &[u8], word: i16) {
    let pushed = |words: i32| frame(i32::from(word) * (1 + words), Saved::AtCfa(-word));
    match *stub {
        // push the link map; jmp to the loader. Stubs jump here with a word pushed.
        [0xff, 0x35 | 0xb3, ..] => rows.extend([(at, pushed(1)), (at + 6, pushed(2))]),
        // jmp where the symbol is bound to; push its number; jmp to the first stub
        [0xff, 0x25 | 0xa3, _, _, _, _, 0x68, ..] => rows.extend([(at, pushed(0)), (at + 11, pushed(1))]),
        // endbr; push the number; jmp
        [0xf3, 0x0f, 0x1e, 0xfa | 0xfb, 0x68, ..] => rows.extend([(at, pushed(0)), (at + 9, pushed(1))]),
        _ => rows.push((at, pushed(0))),
    }
}

fn aarch64(rows: &mut Vec<(u64, Rule)>, at: u64, stub: &[u8]) {
    // stp x16, x30, [sp, #-16]! begins the first stub, which has 32 bytes and moves the stack pointer no more.
    const FIRST: u64 = 32;
    if stub.starts_with(&[0xf0, 0x7b, 0xbf, 0xa9]) {
        rows.push((at, frame(0, Saved::Unchanged)));
        rows.push((at + 4, frame(16, Saved::AtCfa(-8))));
        rows.push((at + FIRST, frame(0, Saved::Unchanged)));
    } else if rows.last().is_none_or(|row| row.0 < at) {
        rows.push((at, frame(0, Saved::Unchanged)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far the CFA is from the stack pointer, from which address on.
    fn offsets(machine: Machine, bytes: &[u8]) -> Vec<(u64, i32)> {
        let offset = |rule: &Rule| match rule {
            Rule::Frame(FrameRule { cfa: Cfa::Register { offset, .. }, .. }) => *offset,
            other => panic!("{other:?}"),
        };
        rows(machine, 0x1000, bytes).iter().map(|(at, rule)| (*at, offset(rule))).collect()
    }

    #[test]
    fn what_a_stub_pushes_is_known_by_its_bytes() {
        let first = [0xff, 0x35, 1, 2, 3, 0, 0xff, 0x25, 5, 6, 7, 0, 0x0f, 0x1f, 0x40, 0];
        let bound = [0xff, 0x25, 1, 2, 3, 0, 0x68, 0, 0, 0, 0, 0xe9, 1, 2, 3, 4];
        let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xe9, 1, 2, 3, 4, 0x66, 0x90];
        let plain = [0xff, 0x25, 1, 2, 3, 0, 0x66, 0x90];
        let all = [&first[..], &bound, &marked, &plain].concat();
        let expected = [(0, 16), (6, 24), (16, 8), (27, 16), (32, 8), (41, 16), (48, 8)];
        assert_eq!(offsets(Machine::X86_64, &all), expected.map(|(at, offset)| (0x1000 + at, offset)));
        assert_eq!(offsets(Machine::I386, &bound), [(0x1000, 4), (0x100b, 8)]);
        let arm = [0xf0, 0x7b, 0xbf, 0xa9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(offsets(Machine::AArch64, &arm), [(0x1000, 0), (0x1004, 16), (0x1020, 0)]);
    }
}
