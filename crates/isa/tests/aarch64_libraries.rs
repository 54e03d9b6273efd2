//! Every instruction of real libraries: verdict, a copy near and a copy far, decoded again and compared with
//! the original.
//!
//! The comparison runs both in the emulator, which `aarch64_oracle` proves against the CPU. What the emulator
//! does not know (vector code, atomics, system instructions) must be copied word for word.

mod aarch64;

use aarch64::{
    copied,
    oracle::Random,
    state::{Fault, Memory, emulate},
};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use std::{collections::BTreeSet, fs, path::PathBuf};
use trapless_isa::{
    BranchTargets, Flow, Isa, Machine, Reason, Site,
    aarch64::{
        AARCH64,
        decode::{Form, form, word},
        emulate::supported,
        liveness::dead_registers,
        returns::saved,
    },
};

/// Memory whose contents follow from the address, and which remembers what is stored.
#[derive(Default)]
struct Echo(Vec<(u64, Vec<u8>)>);

impl Memory for Echo {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        for (byte, at) in bytes.iter_mut().zip(0u64..) {
            *byte = (Random(address.wrapping_add(at)).next() >> 16) as u8;
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.0.push((address, bytes.to_vec()));
        Ok(())
    }
}

/// The executable sections of a library: address and bytes.
fn text(elf: &object::File<'_>) -> Vec<(u64, Vec<u8>)> {
    elf.sections()
        .filter(|s| s.kind() == SectionKind::Text)
        .filter_map(|s| Some((s.address(), s.data().ok()?.to_vec())))
        .collect()
}

fn libraries() -> Option<Vec<PathBuf>> {
    let Some(prefix) = aarch64::prefix() else {
        trapless_testing::skip!("no libraries; run scripts/cross-setup PREFIX and set TRAPLESS_CROSS=PREFIX");
        return None;
    };
    let folder = prefix.join("libraries/arm64/usr/lib/aarch64-linux-gnu");
    Some(["libc.so.6", "libstdc++.so.6", "libm.so.6"].map(|name| folder.join(name)).to_vec())
}

/// Runs the slot of `word` in the emulator and compares. Returns whether it could.
fn copy_agrees(random: &mut Random, word: u32, from: u64, to: u64, code: &[u8]) -> bool {
    if supported(word).is_err() {
        return false;
    }
    let registers = random.registers(from);
    let (mut original, mut memory) = (registers, Echo::default());
    if emulate(word, &mut original, &mut memory).is_err() {
        return false;
    }
    let (mut copy, mut copied_memory) = (registers, Echo::default());
    copy.pc = to;
    let inside = |pc: u64| pc.wrapping_sub(to) < code.len() as u64;
    if inside(original.pc) {
        return false; // the original's target, where the copy stands now
    }
    for _ in 0..code.len() / 4 {
        let at = (copy.pc - to) as usize;
        let step = trapless_isa::aarch64::decode::word(&code[at..]).unwrap();
        emulate(step, &mut copy, &mut copied_memory)
            .unwrap_or_else(|failure| panic!("{word:#010x} at {from:#x}: {step:#010x}: {failure}"));
        if !inside(copy.pc) {
            break;
        }
    }
    // What the slot saves below sp and takes back is not the instruction's.
    copied_memory.0.retain(|(address, _)| original.sp.wrapping_sub(*address) != 16 || !memory.0.is_empty());
    assert_eq!(copy, original, "{word:#010x} at {from:#x}, copied to {to:#x}");
    assert_eq!(copied_memory.0, memory.0, "{word:#010x} at {from:#x}, copied to {to:#x}");
    true
}

#[test]
fn every_instruction_is_copied_right() {
    let Some(libraries) = libraries() else { return };
    let mut random = Random(0x5eed_0003);
    for library in libraries {
        let bytes = fs::read(&library).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let (mut all, mut moved, mut compared, mut refused) = (0u32, 0u32, 0u32, 0u32);
        for (address, code) in text(&elf) {
            let base = 0x10_0000_0000 + address;
            for (word, from) in code.chunks_exact(4).filter_map(word).zip((base..).step_by(4)) {
                all += 1;
                let far = from + (120 << 20) + (random.below(1 << 20) & !3);
                for to in [from + 0x1000, from - 0x1000, far] {
                    match copied(word, from, to) {
                        Ok(code) => {
                            copy_is_valid(word, from, to, &code);
                            moved += 1;
                            compared += u32::from(copy_agrees(&mut random, word, from, to, &code));
                        }
                        Err(Reason::OutOfReach) => panic!("{word:#010x} at {from:#x} does not reach {to:#x}"),
                        Err(_) => refused += 1,
                    }
                }
            }
        }
        println!(
            "{}: {all} instructions, {moved} copies, {compared} compared in the emulator, {refused} refused",
            library.display()
        );
        assert!(compared > all, "too few comparisons");
    }
}

/// Each instruction decodes; what does not depend on its place is the same; the last one leads back.
fn copy_is_valid(word: u32, from: u64, to: u64, code: &[u8]) {
    let words: Vec<u32> = code.chunks_exact(4).filter_map(trapless_isa::aarch64::decode::word).collect();
    for (&word, at) in words.iter().zip((to..).step_by(4)) {
        AARCH64.decode(&word.to_le_bytes(), at).unwrap();
    }
    let back = to + 4 * (words.len() as u64 - 1);
    assert_eq!(form(*words.last().unwrap()).flow(back).target(), Some(from + 4));
    let original = form(word);
    if matches!(original, Form::Plain | Form::Hint(_) | Form::LoadExclusive | Form::StoreExclusive) {
        assert_eq!(words[0], word);
        assert_eq!(words.len(), 2);
    }
    // Direct targets are the same, wherever the branch stands in the copy.
    if let Some(target) = original.flow(from).target() {
        let reached =
            words.iter().zip((to..).step_by(4)).any(|(&w, at)| form(w).flow(at).target() == Some(target));
        assert!(reached, "{word:#010x} at {from:#x}: nothing in the copy leads to {target:#x}");
    }
}

#[test]
fn function_entries_can_have_a_detour() {
    let Some(libraries) = libraries() else { return };
    let isa = Machine::AArch64.isa();
    for library in libraries {
        let bytes = fs::read(&library).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let sections = text(&elf);
        let mut targets = vec![];
        let mut entries: BTreeSet<u64> = elf
            .dynamic_symbols()
            .filter(|s| s.kind() == object::SymbolKind::Text && s.is_definition())
            .map(|s| s.address())
            .collect();
        for (address, code) in &sections {
            isa.branch_targets(code, *address, &(), &mut targets);
            for (word, at) in code.chunks_exact(4).filter_map(word).zip((*address..).step_by(4)) {
                if let Form::Branch { link: true, offset } = form(word) {
                    entries.insert(at.wrapping_add_signed(offset));
                }
            }
        }
        let targets = BranchTargets::new(targets);
        let entries: Vec<u64> = entries.into_iter().collect();
        let (mut all, mut jump, mut boost, mut emulated, mut returns) = (0u32, 0u32, 0u32, 0u32, 0u32);
        let (mut callers, mut restorable) = (0u32, 0u32);
        // Where two or three registers hold nothing any more.
        let (mut two, mut three) = (0u32, 0u32);
        let mut reasons = std::collections::BTreeMap::<String, u32>::new();
        for (index, &entry) in entries.iter().enumerate() {
            let Some((address, code)) =
                sections.iter().find(|(a, c)| (*a..*a + c.len() as u64).contains(&entry))
            else {
                continue;
            };
            let end = entries.get(index + 1).map_or(u64::MAX, |&next| next).min(address + code.len() as u64);
            let code = &code[(entry - address) as usize..(end - address) as usize];
            let site = Site::new(entry, code, &targets);
            let ladder = isa.verdict(&site);
            all += 1;
            if let Ok(displaced) = &ladder.jump {
                let dead = dead_registers(&site, displaced.start).count_ones();
                two += u32::from(dead >= 2);
                three += u32::from(dead >= 3);
            }
            jump += u32::from(ladder.jump.is_ok());
            boost += u32::from(ladder.boost.is_ok());
            emulated += u32::from(ladder.emulate.is_ok());
            let followed = isa.return_verdict(&site);
            returns += u32::from(followed.is_ok());
            // Functions that an unwinder may find on the stack.
            let calls = |word: u32| matches!(form(word).flow(0), Flow::Call { .. } | Flow::IndirectCall);
            if followed.is_ok() && code.chunks_exact(4).filter_map(word).any(calls) {
                callers += 1;
                restorable += u32::from(saved(&site).is_some());
            }
            for (rung, reason) in
                [("jump", ladder.jump.err()), ("emulate", ladder.emulate.err()), ("return", followed.err())]
            {
                if let Some(reason) = reason {
                    *reasons
                        .entry(format!("{rung}: {}", reason.to_string().replace(char::is_numeric, "")))
                        .or_default() += 1;
                }
            }
        }
        let share = |n: u32| 100.0 * f64::from(n) / f64::from(all);
        println!(
            "{}: {all} entries: jump {:.2} %, boost {:.2} %, emulate {:.2} %, followed to the return {:.2} %, of those that call restorable {:.2} %, with two registers to spare {:.1} %, with three {:.1} %; {reasons:?}",
            library.file_name().unwrap().display(),
            share(jump),
            share(boost),
            share(emulated),
            share(returns),
            100.0 * f64::from(restorable) / f64::from(callers),
            share(two),
            share(three),
        );
        assert!(share(jump) >= 99.0 && share(boost) >= 99.0);
        assert!(share(two) >= 7.0 && share(three) >= 3.0);
        // Half of libm's functions start with floating-point instructions.
        assert!(share(emulated) >= if library.ends_with("libm.so.6") { 50.0 } else { 98.0 });
    }
}
