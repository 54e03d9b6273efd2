//! Unwind rows against gimli's own evaluation of the same tables, at every row, with registers and memory of made-up values.

mod tools;

use std::{collections::BTreeMap, path::Path, time::Instant};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, EvaluationResult, LittleEndian, Location, Register,
    RegisterRule, UnwindContext, UnwindSection, UnwindTableRow, Value,
};
use object::{Object, ObjectSection};
use tools::{compile, open, skip_without};
use trapless_symbols::{Cfa, FrameRule, Machine, Module, Rule, Saved, UnknownRule, UnwindBase, UnwindRows};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The registers' values, told apart by their lowest digits. They fit into 32 bits.
const SP: u64 = 0x7f00_1000;
const FP: u64 = 0x7f00_2010;
const BP: u64 = 0x7f00_3020;

/// Any other register.
fn other(number: u64) -> u64 {
    0x7f01_0000 + number * 0x100
}

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
        UnwindBase::Other(number) => other(number.into()),
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
            Some(Register(number)) if number < 32 => Some(other(number.into())),
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
    by_other: usize,
    /// Rows in which we do not believe what is said of a register.
    doubtful: usize,
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
                        let by_other = matches!(frame.cfa, Cfa::Register { base: UnwindBase::Other(_), .. });
                        seen.by_other += usize::from(by_other);
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
                    // What gcc says of registers where a function that has aligned its stack puts them back is not always so.
                    let [_, fp, bp, _] = numbers(machine);
                    let by_expression = [fp, bp].into_iter().flatten().any(|number| {
                        matches!(row.register(Register(number)), Some(RegisterRule::Expression(_)))
                    });
                    if by_expression && ours[0] == theirs[0] && ours[1..] != theirs[1..] {
                        let is_restored = ours[1..] == [Some(FP), Some(BP)];
                        assert!(is_restored || ours[1].is_none(), "{pc:#x}: {rule:?}");
                        seen.doubtful += usize::from(pc == start);
                        continue;
                    }
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

const EXCEPTIONS: &str = r#"
#include <stdexcept>
#include <alloca.h>
#include <cstring>
static int level(int n) { if (n > 3) throw std::runtime_error("deep"); return level(n + 1) + n; }
int guarded(int n) { try { return level(n); } catch (const std::exception &e) { return e.what()[0]; } }
int aligned(int n) { alignas(64) char a[256]; memset(a, n, 256); char *p = (char *)alloca(n); p[0] = a[n]; return guarded(p[0]); }
int main(int argc, char **) { return aligned(argc); }
"#;

/// A small generator (xorshift64*), so that every run sees the same files.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit.max(1) as u64) as usize
    }
}

#[test]
fn damaged_tables_give_rows_in_order_and_never_more_than_they_can_tell_of() {
    if skip_without(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = ("a.cc", EXCEPTIONS);
    let frames = compile("g++", folder.path(), source, "frames", &["-O2", "-mno-red-zone"]);
    let text = ("b.c", "int leaf(int n) { return n * 2; } int main(int n) { return leaf(n) + 1; }");
    let debug =
        compile("gcc", folder.path(), text, "debug", &["-O2", "-g", "-fno-asynchronous-unwind-tables"]);
    for (path, name) in [(frames, ".eh_frame"), (debug, ".debug_frame")] {
        let original = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*original).unwrap();
        let section = file.section_by_name(name).unwrap();
        let (start, size) = section.file_range().unwrap();
        let range = start as usize..(start + size) as usize;
        let whole = Module::parse(&path, original.clone()).unwrap().unwind_rows();
        assert!(whole.rows.len() > 5, "{name}: {whole:?}");
        let mut random = Random(0x7261_706c_6573_7334);
        let (mut same, mut other) = (0, 0);
        for _ in 0..trapless_testing::asked("TRAPLESS_MUTATIONS", 4000) {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(4) {
                let at = range.start + random.below(range.len());
                let size = [1, 1, 1, 2, 4, 8][random.below(6)].min(range.end - at);
                let value = match random.below(5) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => 0x7fff_ffff,
                    3 => 1 << random.below(64),
                    _ => random.below(1 << 20) as u64,
                };
                bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
            let module = Module::parse(&path, bytes).unwrap();
            let rows = module.unwind_rows();
            assert!(rows.rows.windows(2).all(|pair| pair[0].offset < pair[1].offset));
            assert!(rows.rows.iter().all(|row| (row.rule as usize) < rows.rules.len()));
            assert!(rows.rows.iter().all(|row| u64::from(row.offset) <= rows.end - rows.base));
            // A row takes a byte of a program, or tells of a stub.
            assert!(rows.rows.len() < original.len());
            for address in [0, rows.base, rows.end, u64::MAX] {
                let _ = rows.rule(address);
            }
            if rows == whole { same += 1 } else { other += 1 }
        }
        println!("{name}: {same} as before, {other} otherwise");
        assert!(same > 10 && other > 1000);
    }
}

#[test]
fn what_debug_frame_tells_is_used_where_there_is_nothing_else() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = ("b.c", "int leaf(int n) { return n * 2; } int main(int n) { return leaf(n) + 1; }");
    let flags = ["-O0", "-g", "-fno-asynchronous-unwind-tables"];
    let module = open(compile("gcc", folder.path(), text, "debug", &flags));
    let rows = module.unwind_rows();
    let leaf = module.function_named("leaf").unwrap();
    let called = rows.rule(leaf.address());
    let expected = Cfa::Register { base: UnwindBase::Stack, offset: 8 };
    assert!(matches!(called, Rule::Frame(FrameRule { cfa, .. }) if cfa == expected), "{called:?}");
    let body = rows.rule(leaf.address() + 4);
    let expected = Cfa::Register { base: UnwindBase::Frame, offset: 16 };
    assert!(
        matches!(body, Rule::Frame(FrameRule { cfa, frame_pointer: Saved::AtCfa(-16), .. }) if cfa == expected)
    );
    // In front of the `ret`, where the frame pointer has been restored, gcc still says that it is saved.
    let expected = Cfa::Register { base: UnwindBase::Stack, offset: 8 };
    let last = rows.rule(leaf.range().end - 1);
    assert!(matches!(last, Rule::Frame(FrameRule { cfa, .. }) if cfa == expected), "{last:?}");
}
