//! Unwind rows against gimli's own evaluation of the same tables, at every row, with registers and memory of made-up values.

mod tools;

use std::{collections::BTreeMap, path::Path, time::Instant};

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EndianSlice, EvaluationResult, LittleEndian, Location,
    Register, RegisterRule, UnwindContext, UnwindSection, UnwindTableRow, Value,
};
use object::{Object, ObjectSection};
use tools::{compile, open, skip_without};
use trapless_symbols::{Cfa, FrameRule, Machine, Module, Rule, Saved, UnknownRule, UnwindBase, UnwindRows};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The registers' values, told apart by their lowest digits. They fit into 32 bits.
const SP: u64 = 0x7f00_1000;
const FP: u64 = 0x7f00_2010;
const BP: u64 = 0x7f00_3020;

/// What is in memory at an address.
fn memory(address: u64) -> u64 {
    0x7e00_0000 | address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

/// DWARF's numbers: sp, fp, the base pointer, the return address.
fn numbers(machine: Machine) -> [Option<u16>; 4] {
    match machine {
        Machine::X86_64 => [Some(7), Some(6), Some(3), Some(16)],
        Machine::I386 => [Some(4), Some(5), None, Some(8)],
        Machine::AArch64 => [Some(31), Some(29), None, Some(30)],
        Machine::PowerPc64Le => [Some(1), Some(31), None, Some(65)],
    }
}

/// A frame's caller: CFA, return address, frame pointer, base pointer; `None` where it is lost, and where the address is in the link register.
#[derive(Debug, PartialEq)]
enum Caller {
    Nothing,
    End,
    Unknown,
    Is(u64, [Option<u64>; 3]),
}

fn by_rule(rule: Rule) -> Caller {
    let frame = match rule {
        Rule::Nothing => return Caller::Nothing,
        Rule::End => return Caller::End,
        Rule::Unknown(_) => return Caller::Unknown,
        Rule::Frame(frame) => frame,
    };
    let value = |base| match base {
        UnwindBase::Stack => SP,
        UnwindBase::Frame => FP,
        UnwindBase::Pointer => BP,
    };
    let add = |address: u64, offset: i64| address.wrapping_add_signed(offset);
    let (base, cfa) = match frame.cfa {
        Cfa::Register { base, offset } => (value(base), add(value(base), offset.into())),
        Cfa::Memory { base, offset, plus } => {
            (value(base), add(memory(add(value(base), offset.into())), plus.into()))
        }
    };
    let saved = |saved, unchanged| match saved {
        Saved::Unchanged => unchanged,
        Saved::AtCfa(offset) => Some(memory(add(cfa, offset.into()))),
        Saved::AtBase(offset) => Some(memory(add(base, offset.into()))),
        Saved::Lost => None,
    };
    let FrameRule { return_address, frame_pointer, base_pointer, .. } = frame;
    Caller::Is(
        cfa,
        [saved(return_address, None), saved(frame_pointer, Some(FP)), saved(base_pointer, Some(BP))],
    )
}

struct Oracle<'s, S> {
    section: &'s S,
    machine: Machine,
}

impl<'a, S: UnwindSection<Slice<'a>>> Oracle<'_, S> {
    fn register(&self, register: Register, pc: u64) -> Option<u64> {
        let [sp, fp, bp, ra] = numbers(self.machine).map(|number| number.map(Register));
        match Some(register) {
            r if r == sp => Some(SP),
            r if r == fp => Some(FP),
            r if r == bp => Some(BP),
            r if r == ra => Some(pc),
            _ => None,
        }
    }

    fn evaluate(
        &self,
        expression: gimli::UnwindExpression<usize>,
        encoding: gimli::Encoding,
        pc: u64,
        initial: Option<u64>,
    ) -> Option<u64> {
        let expression = expression.get(self.section).unwrap();
        let mut evaluation = expression.evaluation(encoding);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.register(register, pc)?;
                    evaluation.resume_with_register(Value::Generic(value)).ok()?
                }
                EvaluationResult::RequiresMemory { address, .. } => {
                    evaluation.resume_with_memory(Value::Generic(memory(address))).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.result()[..] {
            [ref piece] => match piece.location {
                Location::Address { address } => Some(address),
                _ => None,
            },
            _ => None,
        }
    }

    fn caller(
        &self,
        row: &UnwindTableRow<usize>,
        encoding: gimli::Encoding,
        ra: Register,
        pc: u64,
    ) -> Caller {
        let cfa = match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let Some(value) = self.register(register, pc) else { return Caller::Unknown };
                value.wrapping_add_signed(offset)
            }
            CfaRule::Expression(expression) => match self.evaluate(expression, encoding, pc, None) {
                Some(cfa) => cfa,
                None => return Caller::Unknown,
            },
        };
        let [_, fp, bp, _] = numbers(self.machine).map(|number| number.map(Register));
        let saved = |register: Register, unchanged: Option<u64>| match row.register(register) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => unchanged,
            Some(RegisterRule::Offset(offset)) => Some(memory(cfa.wrapping_add_signed(offset))),
            Some(RegisterRule::Expression(e)) => self.evaluate(e, encoding, pc, Some(cfa)).map(memory),
            _ => None,
        };
        if row.register(ra) == Some(RegisterRule::Undefined) {
            return Caller::End;
        }
        let fp = saved(fp.unwrap(), Some(FP));
        let bp = bp.map_or(Some(BP), |bp| saved(bp, Some(BP)));
        Caller::Is(cfa, [saved(ra, None), fp, bp])
    }
}

/// What a comparison has seen.
#[derive(Debug, Default)]
struct Seen {
    rows: usize,
    /// Rows that we say nothing about though there is one, by reason.
    unknown: BTreeMap<&'static str, usize>,
    signals: usize,
    ends: usize,
    in_memory: usize,
}

/// Compares all rows of a section. `believed` says whether this section is the one that tells of an address.
fn compare<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    machine: Machine,
    rows: &UnwindRows,
    believed: impl Fn(u64) -> bool,
) -> Seen {
    let oracle = Oracle { section, machine };
    let mut seen = Seen::default();
    let mut entries = section.entries(bases);
    let mut context = UnwindContext::new();
    let mut known = std::collections::HashSet::new();
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| section.cie_from_offset(bases, offset)).unwrap();
        if fde.len() == 0 || !believed(fde.initial_address()) || !known.insert(fde.initial_address()) {
            continue;
        }
        let ra = fde.cie().return_address_register();
        let encoding = fde.cie().encoding();
        let mut table = fde.rows(section, bases, &mut context).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            let (start, end) = (row.start_address(), row.end_address().min(fde.end_address()));
            if start >= end {
                continue;
            }
            for pc in [start, start + (end - start) / 2, end - 1] {
                let rule = rows.rule(pc);
                let expected = oracle.caller(row, encoding, ra, pc);
                seen.rows += usize::from(pc == start);
                match rule {
                    Rule::Unknown(why) => {
                        assert_ne!(why, UnknownRule::Damaged, "{pc:#x}");
                        *seen.unknown.entry(why.reason()).or_default() += usize::from(pc == start);
                        continue;
                    }
                    Rule::Frame(frame) => {
                        seen.in_memory += usize::from(matches!(frame.cfa, Cfa::Memory { .. }));
                        seen.signals += usize::from(frame.interrupted.is_some());
                        assert_eq!(frame.interrupted.is_some(), fde.is_signal_trampoline());
                    }
                    Rule::End => seen.ends += 1,
                    Rule::Nothing => {}
                }
                let ours = by_rule(rule);
                if machine == Machine::PowerPc64Le {
                    // A frame's own word says where the caller's is: the same in a program, not in made-up memory.
                    let Caller::Is(ours_cfa, [ours_ra, ..]) = ours else { panic!("{pc:#x}: {ours:?}") };
                    let Caller::Is(cfa, [ra, ..]) = expected else { panic!("{pc:#x}: {expected:?}") };
                    assert_eq!(ours_ra.is_some(), ra.is_some(), "{pc:#x}");
                    assert!(ours_cfa == cfa || ours_cfa == memory(SP), "{pc:#x}");
                    continue;
                }
                if let (Caller::Is(_, ours), Caller::Is(_, theirs)) = (&ours, &expected) {
                    // What is lost to us may be known to others, but is never wrong.
                    let lost = ours.iter().zip(theirs).skip(1).any(|(a, b)| a.is_none() && b.is_some());
                    assert!(!lost, "{pc:#x}: {rule:?} {ours:?} {theirs:?}");
                }
                assert_eq!(ours, expected, "{pc:#x} in {:#x}..{:#x}: {rule:?}", start, end);
            }
        }
        // Code behind an entry has no rule, or another entry's.
        assert!(rows.rule(fde.initial_address()) != Rule::Nothing);
    }
    seen
}

/// Compares the rows of a file's `.eh_frame`.
fn compare_file(path: &Path) -> Option<(Module, UnwindRows, Seen)> {
    let bytes = std::fs::read(path).ok()?;
    let module = open(path);
    let before = Instant::now();
    let rows = module.unwind_rows();
    let took = before.elapsed();
    assert_eq!(rows.defects, Vec::<String>::new());
    assert!(rows.rows.windows(2).all(|pair| pair[0].offset < pair[1].offset && pair[0].rule != pair[1].rule));
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(".eh_frame")?;
    let contents = section.data().unwrap();
    let mut table = EhFrame::new(contents, LittleEndian);
    table.set_address_size(if file.is_64() { 8 } else { 4 });
    if module.machine() == Machine::AArch64 {
        table.set_vendor(gimli::Vendor::AArch64);
    }
    let mut bases = BaseAddresses::default().set_eh_frame(section.address());
    if let Some(text) = file.section_by_name(".text") {
        bases = bases.set_text(text.address());
    }
    if let Some(got) = file.section_by_name(".got") {
        bases = bases.set_got(got.address());
    }
    let seen = compare(&table, &bases, module.machine(), &rows, |_| true);
    println!(
        "{}: {} rows, {} rules, {took:?}, {} KiB of .eh_frame; {seen:?}",
        path.display(),
        rows.rows.len(),
        rows.rules.len(),
        contents.len() / 1024
    );
    Some((module, rows, seen))
}

/// How many of a thousand rows may be unknown.
fn assert_nearly_all_are_known(path: &str, seen: &Seen, of_thousand: usize) {
    let unknown: usize = seen.unknown.values().sum();
    assert!(unknown * 1000 <= seen.rows * of_thousand, "{path}: {seen:?}");
}

#[test]
fn rows_are_those_that_gimli_evaluates() {
    let mut compared = 0;
    for (name, of_thousand) in [
        ("/lib/x86_64-linux-gnu/libc.so.6", 1),
        ("/lib64/ld-linux-x86-64.so.2", 1),
        ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", 1),
        ("/usr/lib/x86_64-linux-gnu/libcrypto.so.3", 20),
        ("/usr/lib/x86_64-linux-gnu/libm.so.6", 1),
        ("/usr/bin/python3", 1),
        ("/usr/bin/gdb", 1),
        ("/bin/bash", 1),
        // Other machines'.
        ("/usr/aarch64-linux-gnu/lib/libc.so.6", 1),
        ("/usr/aarch64-linux-gnu/lib/libstdc++.so.6", 1),
        ("/usr/powerpc64le-linux-gnu/lib/libc.so.6", 5),
        ("/usr/i686-linux-gnu/lib/libc.so.6", 1),
        ("/lib/i386-linux-gnu/libc.so.6", 1),
    ] {
        let Some((_, _, seen)) = compare_file(Path::new(name)) else { continue };
        assert_nearly_all_are_known(name, &seen, of_thousand);
        compared += 1;
    }
    assert!(compared > 4);
}

#[test]
#[ignore = "takes long without optimisation; run it by hand, in release"]
fn rows_of_large_programs_are_those_that_gimli_evaluates() {
    for name in std::env::var("TRAPLESS_FILES").unwrap_or("/usr/bin/node".into()).split(':') {
        if let Some((_, _, seen)) = compare_file(Path::new(name)) {
            assert_nearly_all_are_known(name, &seen, 20);
        }
    }
}
