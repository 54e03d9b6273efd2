//! Hard case I1: files that were damaged or made to hurt. Nothing panics, hangs or eats memory.
//!
//! Real files are mutated where it hurts most, in headers, tables and notes, with a fixed seed so that a failure can be
//! repeated. The tests are built with overflow checks, so that arithmetic on hostile numbers shows.

mod tools;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tools::{compile, skip_without};
use trapless_symbols::{
    Machine, Module, ModuleError, ResultLocation, Types,
    abi::{self, Convention},
    render::{Layouts, MOST_READS, Seen, follow, render},
};

/// Asks a module everything there is to ask.
fn exercise(module: &Module) -> usize {
    let mut seen = module.needed().len() + module.segments().len() + module.executable_ranges().count();
    let functions = module.functions();
    for function in functions.iter() {
        seen += module.code(function.range()).map_or(0, <[u8]>::len);
        seen += module.padding_after(function).len();
        seen += function
            .names()
            .map(|name| name.stem().len() + name.version().map_or(0, str::len))
            .sum::<usize>();
        assert!(functions.containing(function.address()).is_some() || function.size() == 0);
    }
    // Names are looked up and demangled one by one: some of each file are enough.
    for function in functions.iter().take(20) {
        seen += module.source_line(function.address()).map_or(0, |line| line.file.len());
        seen += function.name().demangled().path.len() + functions.named(function.name().plain()).len();
    }
    seen += places(module);
    for address in module.segments().iter().flat_map(|segment| {
        let end = segment.address.saturating_add(segment.memory_size);
        [
            segment.address,
            segment.address.saturating_add(segment.file_size),
            end,
            end.wrapping_sub(1),
            0,
            u64::MAX,
        ]
    }) {
        seen += module.bytes_at(address).len() + module.read_only_data_at(address).len();
        seen += usize::from(module.function_containing(address).is_some());
        seen +=
            module.offset_of_address(address).and_then(|offset| module.address_of_offset(offset)).is_some()
                as usize;
        seen += module.code(address..address.wrapping_add(16)).map_or(0, <[u8]>::len);
        seen += module.source_line(address).is_some() as usize;
    }
    seen += module.landing_pads().len() + module.code_pointers().len();
    seen += module.usdt().map_or(0, |probes| probes.len());
    seen + module.build_id().map_or(0, <[u8]>::len) + module.soname().map_or(0, str::len)
}

/// Asks a module for places in its source.
fn places(module: &Module) -> usize {
    let mut seen = module.source_files().len();
    for (line, column) in [(1, None), (4, None), (6, Some(1)), (u32::MAX, Some(u32::MAX))] {
        if let Ok(found) = module.statements("a.cc", line, column) {
            let first = &found.statements[0];
            seen += module.statements_in(&first.place.file, &(0..=u32::MAX)).map_or(0, |all| all.len());
        }
    }
    for function in module.functions().iter().take(8) {
        seen += module.function_lines(function.range()).map_or(0, |found| found.lines.count());
    }
    seen + module.inlined(|_| true).map_or(0, |(copies, _)| copies.len())
}

/// Asks a module for types, parameters, variables and values.
fn typed(module: &Module) -> usize {
    let Ok(mut reader) = module.type_reader() else { return 0 };
    let mut types = Types::new();
    let mut seen = 0;
    let mut ids = Vec::new();
    for function in module.functions().iter().take(8) {
        for address in [function.address(), function.address() + 4, function.range().end.saturating_sub(1)] {
            if let Ok(found) = reader.function(&mut types, address) {
                seen += 1 + found.parameters.len();
                ids.push(found.result);
                ids.extend(found.parameters.iter().map(|parameter| parameter.of));
            }
            seen += reader.locals(&mut types, address).map_or(0, |all| all.len());
        }
    }
    for name in ["Base", "struct Base *", "int", "std::runtime_error", "struct list", "enum color", "words"] {
        for near in [None, Some(module.entry())] {
            ids.extend(reader.type_named(&mut types, name, near));
        }
    }
    for name in ["counter", "names", "of_thread"] {
        ids.extend(reader.variable(&mut types, name, None).map(|variable| variable.of));
    }
    seen += usize::from(reader.enumerator(&mut types, "GREEN", None).is_some());
    let machines = [Machine::X86_64, Machine::I386, Machine::AArch64, Machine::PowerPc64Le];
    let mut unreadable =
        |address: u64, size: usize| Seen::from(address.is_multiple_of(3).then(|| vec![address as u8; size]));
    let mut layouts = Layouts::default();
    for &id in &ids {
        seen += usize::from(reader.complete(&mut types, id));
        seen += types.notation(id).len() + types.c_notation(id).len();
        seen += types.field_names(id).len() + types.align(id) as usize % 3;
        seen += usize::from(types.field(id, "number").is_some());
        for machine in machines {
            for convention in [Convention::C, Convention::Rust] {
                seen += abi::arguments(machine, convention, &types, id, &[id, id, id]).len();
                seen += usize::from(abi::result(machine, convention, &types, id) == ResultLocation::Nothing);
            }
        }
        let size = types.size(id).unwrap_or(8).min(1 << 16) as usize;
        for byte in [0, 1, 0x30, 0xff] {
            let text = render(&types, id, &vec![byte; size], &mut unreadable);
            assert!(text.chars().count() <= 200);
            seen += text.len();
            // What is read beforehand ends, too.
            let mut complete = |types: &mut Types, id| {
                reader.complete(types, id);
            };
            let layout = layouts.of_value(&mut types, &mut complete, id);
            let recorded = follow(&layouts, &[(layout, vec![byte; size.min(1024)])], &mut unreadable);
            assert!(recorded.reads().len() <= MOST_READS);
            seen += recorded.reads().len();
        }
    }
    seen
}

/// A small generator (xorshift64*), so that every run sees the same files.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A value that programs trip over.
    fn awkward(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => i64::MAX as u64,
            3 => 0xffff_ffff,
            4 => 0x8000_0000,
            5 => 1 << self.below(64),
            6 => self.below(1 << 16) as u64,
            _ => self.next(),
        }
    }
}

/// The parts of a file that are structure rather than code, as byte ranges.
fn structure(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let is_64 = bytes[4] == 2;
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
    };
    let (shoff, entry, count) =
        if is_64 { (number(0x28, 8), 64, number(0x3c, 2)) } else { (number(0x20, 4), 40, number(0x30, 2)) };
    let mut ranges = vec![0..64, 0..0x400, shoff..shoff + entry * count];
    for section in 0..count {
        let header = shoff + section * entry;
        let (kind, flags, offset, size) = if is_64 {
            (number(header + 4, 4), number(header + 8, 8), number(header + 24, 8), number(header + 32, 8))
        } else {
            (number(header + 4, 4), number(header + 8, 4), number(header + 16, 4), number(header + 20, 4))
        };
        let is_code = flags & 4 != 0;
        if kind != 8 && !is_code && size > 0 {
            ranges.push(offset..offset + size);
        }
    }
    ranges
}

fn mutate(original: &[u8], ranges: &[std::ops::Range<usize>], random: &mut Random) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..1 + random.below(6) {
        let range = &ranges[random.below(ranges.len())];
        let at = range.start + random.below(range.len());
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            _ => {
                let size = [2, 4, 8][random.below(3)];
                let at = at & !(size - 1);
                let value = random.awkward().to_le_bytes();
                let end = (at + size).min(bytes.len());
                bytes[at..end].copy_from_slice(&value[..end - at]);
            }
        }
    }
    if random.below(8) == 0 {
        bytes.truncate(random.below(original.len()));
    }
    bytes
}

const RICH: &str = r#"
#include <stdexcept>
#include <cstdio>
static int level(int n) { if (n > 3) throw std::runtime_error("deep"); return level(n + 1) + n; }
int guarded(int n) { try { return level(n); } catch (const std::exception &e) { return puts(e.what()); } }
struct Base { virtual ~Base() {} virtual int run(int n) { return guarded(n); } };
int main(int argc, char **) { Base b; switch (argc) { case 1: return b.run(0); case 2: return 2; default: return 0; } }
"#;

fn seeds(folder: &Path) -> Vec<PathBuf> {
    let mut seeds = vec![PathBuf::from("/bin/true")];
    if !skip_without(&["g++"]) {
        seeds.push(compile("g++", folder, ("a.cc", RICH), "rich", &["-O1", "-g"]));
        seeds.push(compile(
            "g++",
            folder,
            ("a.cc", RICH),
            "packed",
            &["-O2", "-g", "-gz", "-Wl,-z,pack-relative-relocs"],
        ));
        seeds.push(compile("g++", folder, ("a.cc", RICH), "fixed", &["-O2", "-no-pie", "-s"]));
    }
    if !skip_without(&["i686-linux-gnu-gcc"]) {
        let text = "int f(int n) { return n * 2; } int (*table[])(int) = {f}; int main(int n) { return table[n](n); }";
        seeds.push(compile("i686-linux-gnu-gcc", folder, ("i.c", text), "i686", &["-O1"]));
    }
    seeds
}

#[test]
fn i1_mutated_files_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    // For a soak run: TRAPLESS_MUTATIONS=100000.
    let rounds = trapless_testing::asked("TRAPLESS_MUTATIONS", 1500);
    for seed in seeds(folder.path()) {
        let original = std::fs::read(&seed).unwrap();
        assert!(exercise(&Module::parse(&seed, original.clone()).unwrap()) > 100);
        let ranges = structure(&original);
        let mut random = Random(0x7261_706c_6573_7331);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..rounds {
            match Module::parse(&seed, mutate(&original, &ranges, &mut random)) {
                Ok(module) => {
                    exercise(&module);
                    read += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains(&*seed.to_string_lossy()));
                    refused += 1;
                }
            }
        }
        println!("{}: {read} read, {refused} refused", seed.display());
        assert!(read > 100 && refused > 20);
    }
}

/// Only DWARF is damaged, so that the way to it is always there.
#[test]
fn i1_mutated_debug_information_is_read_or_left_out() {
    if skip_without(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rounds = trapless_testing::asked("TRAPLESS_MUTATIONS", 1500);
    for version in ["-gdwarf-3", "-gdwarf-4", "-gdwarf-5"] {
        let seed = compile("g++", folder.path(), ("a.cc", RICH), "rich", &["-O2", "-g", version]);
        let original = std::fs::read(&seed).unwrap();
        let whole = places(&Module::parse(&seed, original.clone()).unwrap());
        assert!(whole > 10, "{whole}");
        let ranges = debug_sections(&original);
        assert!(ranges.len() > 3);
        let mut random = Random(0x7261_706c_6573_7333);
        let (mut less, mut same) = (0, 0);
        for _ in 0..rounds {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(4) {
                let range = &ranges[random.below(ranges.len())];
                let at = range.start + random.below(range.len());
                let value = random.awkward().to_le_bytes();
                let size = [1, 1, 2, 4, 8][random.below(5)].min(range.end - at);
                bytes[at..at + size].copy_from_slice(&value[..size]);
            }
            let module = Module::parse(&seed, bytes).unwrap();
            if places(&module) == whole { same += 1 } else { less += 1 }
        }
        println!("{version}: {same} read as before, {less} otherwise");
        assert!(less > 100 && same > 10);
    }
}

/// Where the debug sections of a 64-bit file are.
fn debug_sections(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
    };
    let (shoff, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
    let strings = number(shoff + 64 * names + 24, 8);
    let section =
        |header: usize| (strings + number(header, 4), number(header + 24, 8), number(header + 32, 8));
    let sections = (0..count).map(|index| section(shoff + 64 * index));
    let of_debug = sections.filter(|(name, ..)| bytes[*name..].starts_with(b".debug_"));
    of_debug.map(|(_, offset, size)| offset..offset + size).filter(|range| !range.is_empty()).collect()
}

const TYPED: &str = r#"
enum color { RED, GREEN = 5, BLUE = -1 };
struct list { struct list *next; union { long number; char bytes[8]; }; unsigned a : 3, b : 7; };
typedef int (*callback)(const char *, struct list *, ...);
typedef unsigned long words[2][4];
int counter = 7;
const char *const names[3][2] = {{"name"}};
static __thread int of_thread = 1;
words some_words;
__attribute__((noinline)) int walk(struct list *head, struct list copy, callback each, enum color color, double d, long double l, __int128 w)
{
	int steps = 0;
	for (struct list *at = head; at; at = at->next) { int got = each(names[0][0], at); steps += got + color + d + l + w; }
	return steps + of_thread++ + copy.a + some_words[0][1] + counter;
}
int main(int argc, char **argv) { struct list l = {0}; return walk(&l, l, 0, argc, 1, 2, 3); }
"#;

/// Only DWARF is damaged, in all forms in which types and places are told.
#[test]
fn i1_mutated_types_are_read_or_unknown() {
    if skip_without(&["gcc", "g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rounds = trapless_testing::asked("TRAPLESS_MUTATIONS", 500);
    for (compiler, source, flags) in [
        ("gcc", ("t.c", TYPED), &["-O0", "-gdwarf-3"][..]),
        ("gcc", ("t.c", TYPED), &["-O2", "-gdwarf-4"]),
        ("gcc", ("t.c", TYPED), &["-O0", "-gdwarf-5"]),
        ("gcc", ("t.c", TYPED), &["-O2", "-gdwarf-5", "-fdebug-types-section"]),
        ("gcc", ("t.c", TYPED), &["-O1", "-gdwarf-4", "-fdebug-types-section"]),
        ("g++", ("a.cc", RICH), &["-O2", "-gdwarf-5"]),
    ] {
        let seed = compile(compiler, folder.path(), source, "typed", flags);
        let original = std::fs::read(&seed).unwrap();
        let whole = typed(&Module::parse(&seed, original.clone()).unwrap());
        assert!(whole > 100, "{flags:?}: {whole}");
        let ranges = debug_sections(&original);
        let mut random = Random(0x7261_706c_6573_7334);
        let (mut less, mut same, mut slowest) = (0, 0, Duration::ZERO);
        for _ in 0..rounds {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(4) {
                let range = &ranges[random.below(ranges.len())];
                let at = range.start + random.below(range.len());
                let value = random.awkward().to_le_bytes();
                let size = [1, 1, 2, 4, 8][random.below(5)].min(range.end - at);
                bytes[at..at + size].copy_from_slice(&value[..size]);
            }
            let module = Module::parse(&seed, bytes).unwrap();
            let begun = Instant::now();
            if typed(&module) == whole {
                same += 1
            } else {
                less += 1
            }
            slowest = slowest.max(begun.elapsed());
        }
        println!("{flags:?}: {same} read as before, {less} otherwise, the slowest in {slowest:?}");
        assert!(less > rounds / 50 && same > 0);
        assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    }
}

#[test]
fn i1_every_truncation_of_the_headers_is_refused() {
    let original = std::fs::read("/bin/true").unwrap();
    for size in (0..1024).chain((1024..original.len()).step_by(97)) {
        let error =
            Module::parse("cut", original[..size].to_vec()).expect_err("the section headers are at the end");
        match (size, &error) {
            (0, ModuleError::Empty(_))
            | (1..4, ModuleError::NotElf { .. })
            | (4.., ModuleError::Truncated { .. }) => {}
            (_, ModuleError::Corrupt { .. }) if size >= 64 => {}
            _ => panic!("{size}: {error}"),
        }
    }
}
