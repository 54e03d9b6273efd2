//! Every instruction of real libraries: decoded, judged, moved near and far, and compared with what it was.

use crate::{cross::libraries, same::assert_same};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use trapless_isa::{
    BranchTargets, Displaced, Isa, Mechanism, ReadOnlyData, Reason, Site,
    powerpc::{POWERPC64LE, liveness, relocate},
};

/// A library's code, functions and read-only data.
struct Library<'a> {
    text: &'a [u8],
    address: u64,
    /// Address and size, from the symbol table; one of several with the same address.
    functions: BTreeMap<u64, u64>,
    data: Data<'a>,
}

struct Data<'a>(Vec<(u64, &'a [u8])>);

impl ReadOnlyData for Data<'_> {
    fn at(&self, address: u64) -> &[u8] {
        self.0
            .iter()
            .find_map(|&(start, bytes)| bytes.get(address.checked_sub(start)? as usize..))
            .unwrap_or_default()
    }
}

impl<'a> Library<'a> {
    fn parse(content: &'a [u8]) -> Self {
        let file = object::File::parse(content).expect("an ELF file");
        let text = file.section_by_name(".text").expect("code");
        let functions = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter(|symbol| symbol.address().wrapping_sub(text.address()) < text.size())
            .map(|symbol| (symbol.address(), symbol.size()))
            .collect();
        let data = file
            .sections()
            .filter(|section| section.kind() == SectionKind::ReadOnlyData)
            .filter_map(|section| Some((section.address(), section.data().ok()?)))
            .collect();
        let address = text.address();
        Self { text: text.data().expect("bytes"), address, functions, data: Data(data) }
    }

    fn code(&self, function: u64, size: u64) -> &'a [u8] {
        let start = (function - self.address) as usize;
        &self.text[start..(start + size as usize).min(self.text.len())]
    }

    fn targets(&self) -> BranchTargets {
        let mut targets = Vec::new();
        for (&function, &size) in &self.functions {
            POWERPC64LE.branch_targets(self.code(function, size), function, &self.data, &mut targets);
        }
        BranchTargets::new(targets)
    }
}

/// Moves one instruction to places near and far, and compares.
fn move_around(original: &[u8], displaced: &Displaced) -> Result<(), Reason> {
    let near = displaced.start.wrapping_add(0x10_0000);
    let bytes = &original[..usize::from(displaced.length)];
    for destination in
        [near, near + 60, displaced.start.wrapping_sub(0x1f0_0000), displaced.start + 0x1f0_0000]
    {
        match relocate(displaced, bytes, destination) {
            Ok(relocated) => assert_same(bytes, displaced.start, &relocated.code, destination),
            // Far away it may be too far; near it must do.
            Err(Reason::OutOfReach) if destination != near => {}
            Err(reason) => return Err(reason),
        }
    }
    Ok(())
}

#[test]
fn every_instruction_of_real_libraries_moves() {
    for (name, content) in libraries() {
        let library = Library::parse(&content);
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        let (mut moved, mut total, mut offset) = (0, 0, 0);
        while offset + 4 <= library.text.len() {
            let address = library.address + offset as u64;
            let bytes = &library.text[offset..];
            // Between functions there is padding and traceback tables.
            let length = POWERPC64LE.decode(bytes, address).map_or(4, |instruction| {
                total += 1;
                let displaced = Displaced { start: address, length: instruction.length, instructions: 1 };
                match move_around(bytes, &displaced) {
                    Ok(()) => moved += 1,
                    Err(reason) => *refused.entry(reason.to_string()).or_default() += 1,
                }
                instruction.length
            });
            offset += usize::from(length);
        }
        println!("{name}: {moved} of {total} instructions move; others: {refused:?}");
        assert!(moved * 1000 >= total * 995, "{name}");
    }
}

#[test]
fn nearly_every_function_can_have_a_detour() {
    for (name, content) in libraries() {
        let library = Library::parse(&content);
        let targets = library.targets();
        let mut reasons: BTreeMap<(&str, String), usize> = BTreeMap::new();
        let (mut jump, mut emulate, mut ret, mut toc) = (0, 0, 0, 0);
        for (&function, &size) in &library.functions {
            let site = Site::new(function, library.code(function, size), &targets);
            let ladder = POWERPC64LE.verdict(&site);
            let mut tally = |kind, count: &mut usize, outcome: Result<(), Reason>| match outcome {
                Ok(()) => *count += 1,
                Err(reason) => *reasons.entry((kind, reason.to_string())).or_default() += 1,
            };
            tally("jump", &mut jump, ladder.best(&[Mechanism::Jump]).map(|_| ()));
            tally("emulate", &mut emulate, ladder.emulate.map(|_| ()));
            tally("return", &mut ret, POWERPC64LE.return_verdict(&site));
            toc += usize::from(ladder.jump.is_ok_and(|displaced| displaced.start == function + 8));
        }
        let total = library.functions.len();
        let share = |count: usize| 100.0 * count as f64 / total as f64;
        println!(
            "{name}: {total} function entries, {:.1} % behind a TOC set-up; detour {:.2} %, simulatable {:.2} %, \
             return probe {:.2} %; {} branch targets",
            share(toc),
            share(jump),
            share(emulate),
            share(ret),
            targets.len()
        );
        for ((kind, reason), count) in &reasons {
            println!("  no {kind}: {count} × {reason}");
        }
        assert!(share(jump) >= 98.0 && share(emulate) >= 90.0 && share(ret) >= 99.0, "{name}");
    }
}

/// A counted hit takes no frame there.
#[test]
fn many_entries_have_registers_to_spare() {
    for (name, content) in libraries() {
        let library = Library::parse(&content);
        let targets = library.targets();
        let (mut entries, mut two, mut cr0, mut enough) = (0, 0, 0, 0);
        for (&function, &size) in &library.functions {
            let code = library.code(function, size);
            let site = Site::new(function, code, &targets);
            let Ok(displaced) = POWERPC64LE.verdict(&site).jump else { continue };
            let live = liveness(&site, displaced.start);
            assert_eq!(
                live.dead & (1 << 1 | 1 << 2 | 1 << 13),
                0,
                "sp, the TOC and the thread are never dead"
            );
            let bases = (live.dead & !1).count_ones();
            entries += 1;
            two += usize::from(bases >= 2);
            cr0 += usize::from(live.cr0_dead);
            enough += usize::from(bases >= 2 && live.dead.count_ones() + u32::from(live.cr0_dead) >= 3);
        }
        let share = |count: usize| 100.0 * count as f64 / entries as f64;
        let shares = [two, cr0, enough].map(share);
        println!(
            "{name}: of {entries} entries, two registers are dead at {:.1} %, cr0 at {:.1} %; enough for a count at {:.1} %",
            shares[0], shares[1], shares[2]
        );
        assert!(shares[2] >= 8.0, "{name}");
    }
}
