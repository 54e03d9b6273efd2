//! Places in the source: what binutils reads from the same line tables, in every version of DWARF and wherever it is kept.

mod tools;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use tools::{compile, open, run, skip_without, tool};
use trapless_symbols::{DebugSearch, FunctionName, Module, SourceError};

const PLACES: &str = r#"#include <stdio.h>
#include "twice.h"

__attribute__((noinline)) int once(int n)
{
	int sum = 0;
	for (int i = 0; i < n; i++) {
		sum += twice(i); sum ^= 5;
		if (sum & 1)
			sum += twice(sum);
	}
	return sum;
}

/* nothing here */

int main(int argc, char **argv)
{
	printf("%d\n", once(argc) + twice(argc));
	return argv == 0;
}
"#;

const TWICE: &str = "static inline __attribute__((always_inline)) int twice(int n)\n{\n\tint sum = n * 3;\n\treturn sum ^ n >> 1;\n}\n";

fn build(folder: &Path, output: &str, flags: &[&str]) -> PathBuf {
    std::fs::write(folder.join("twice.h"), TWICE).unwrap();
    compile("gcc", folder, ("places.c", PLACES), output, flags)
}

/// Line, address and whether a statement begins there, of the rows that binutils shows, in their order.
fn rows(program: &Path, file: &str) -> Vec<(u32, u64, bool)> {
    let text = run(Command::new("objdump").arg("--dwarf=decodedline").arg(program)).unwrap();
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, number, address) = (words.next()?, words.next()?, words.next()?);
        let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
        // The ends of sequences have `-` for a line. Another file's rows have line 0 here.
        let number: u32 = number.parse().ok()?;
        Some((if name == file { number } else { 0 }, address, words.any(|word| word == "x")))
    };
    text.lines().filter_map(row).collect()
}

fn addresses(module: &Module, file: &str, line: u32) -> BTreeSet<u64> {
    let found = module.statements(file, line, None).unwrap();
    assert_eq!(found.line, line);
    assert!(found.gaps.is_empty(), "{:?}", found.gaps);
    found.statements.iter().map(|statement| statement.address).collect()
}

#[test]
fn statements_are_those_of_the_line_table() {
    if skip_without(&["gcc", "objdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for version in ["-gdwarf-2", "-gdwarf-3", "-gdwarf-4", "-gdwarf-5"] {
        for optimized in ["-O0", "-O1", "-O2"] {
            let program = build(folder.path(), "places", &["-g", version, "-gstrict-dwarf", optimized]);
            let module = open(&program);
            let mut compared = 0;
            for file in ["places.c", "twice.h"] {
                let rows = rows(&program, file);
                let lines: BTreeSet<u32> =
                    rows.iter().filter(|row| row.0 > 0 && row.2).map(|row| row.0).collect();
                for &line in &lines {
                    let found = addresses(&module, file, line);
                    // Each is a statement's row, and each run of rows of the line has one.
                    let all: BTreeSet<u64> =
                        rows.iter().filter(|row| row.0 == line && row.2).map(|row| row.1).collect();
                    assert!(found.is_subset(&all), "{version} {optimized} {file}:{line}");
                    for run in rows.chunk_by(|a, b| a.0 == b.0).filter(|run| run[0].0 == line) {
                        let first = run.iter().find(|row| row.2).map(|row| row.1);
                        assert!(
                            first.is_none_or(|first| found.contains(&first)),
                            "{version} {optimized} {file}:{line} {first:x?}"
                        );
                        compared += 1;
                    }
                }
            }
            assert!(compared > 10);
        }
    }
}

#[test]
fn copies_are_told_from_the_function_around_them() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for version in ["-gdwarf-2", "-gdwarf-3", "-gdwarf-4", "-gdwarf-5"] {
        let program = build(folder.path(), "places", &["-g", version, "-O2"]);
        let module = open(&program);
        let (copies, gaps) = module.inlined(|name| name.text() == "twice").unwrap();
        assert!(gaps.is_empty());
        let functions: Vec<&str> = copies
            .iter()
            .map(|copy| module.function_containing(copy.entry).unwrap().name().plain())
            .collect();
        assert_eq!(functions.iter().filter(|name| **name == "once").count(), 2, "{version} {copies:x?}");
        assert_eq!(functions.iter().filter(|name| **name == "main").count(), 1, "{version} {copies:x?}");
        let statements = module.statements("twice.h", 4, None).unwrap().statements;
        let twice = Some(Arc::new(FunctionName::Symbol("twice".to_owned())));
        assert!(statements.len() >= 3 && statements.iter().all(|statement| statement.inlined == twice));
        // The line of a call is not the copy's, though the copy begins there.
        let statements = module.statements("places.c", 10, None).unwrap().statements;
        assert!(!statements.is_empty() && statements.iter().all(|statement| statement.inlined.is_none()));
    }
}

#[test]
fn a_line_without_code_is_the_next_one_and_a_place_that_is_nowhere_says_what_there_is() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let module = open(build(folder.path(), "places", &["-g", "-O0"]));
    assert_eq!(module.statements("places.c", 15, None).unwrap().line, 18);
    assert_eq!(module.statements("places.c", 1, None).unwrap().line, 5);
    let Err(SourceError::NoColumn { line: 8, columns }) = module.statements("places.c", 8, Some(99)) else {
        panic!("there is no such column")
    };
    let [first, second] = columns[..] else { panic!("{columns:?}") };
    let at = |column| module.statements("places.c", 8, Some(column)).unwrap();
    assert_eq!(
        (at(1).column, at(first).column, at(first + 1).column),
        (Some(first), Some(first), Some(second))
    );
    let [statement] = &at(second).statements[..] else { panic!("{:?}", at(second)) };
    let all = module.statements("places.c", 8, None).unwrap().statements;
    assert!(all[0].address < statement.address && all[0].address == at(first).statements[0].address);
    for (file, line, column, error) in [
        ("place.c", 5, None, SourceError::NoFile),
        ("laces.c", 5, None, SourceError::NoFile),
        ("x/places.c", 5, None, SourceError::NoFile),
        ("places.c", 22, None, SourceError::NoLine(21)),
        ("places.c", u32::MAX, None, SourceError::NoLine(21)),
    ] {
        assert_eq!(module.statements(file, line, column), Err(error), "{file}:{line}");
    }
    let stripped = folder.path().join("bare");
    tool(folder.path(), "strip", &["-o", "bare", "places"]);
    assert_eq!(open(&stripped).statements("places.c", 5, None), Err(SourceError::NoDebugInfo));
    assert!(module.source_files().contains(&"twice.h".to_owned()));
}

#[test]
fn files_of_one_name_are_told_apart_by_their_folders() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (part, name) in [("one", "first"), ("two", "second")] {
        std::fs::create_dir(folder.path().join(part)).unwrap();
        let text = format!("int {name}(int n)\n{{\n\treturn n * 3;\n}}\n");
        std::fs::write(folder.path().join(part).join("part.c"), text).unwrap();
    }
    let main = "int first(int), second(int);\nint main(int n)\n{\n\treturn first(n) + second(n);\n}\n";
    let flags = ["-g", "-O0", "one/part.c", "./one/../two/part.c"];
    let module = open(compile("gcc", folder.path(), ("main.c", main), "parts", &flags));
    let whole = |part: &str| {
        let path = folder.path().canonicalize().unwrap().join(part).join("part.c");
        path.to_str().unwrap().to_owned()
    };
    let error = SourceError::Ambiguous(vec![whole("one"), whole("two")]);
    assert_eq!(module.statements("part.c", 3, None), Err(error));
    for file in ["two/part.c", "./two/part.c", "one/../two/part.c", &whole("two")] {
        let found = module.statements(file, 3, None).unwrap();
        let [statement] = &found.statements[..] else { panic!("{file}: {found:?}") };
        assert_eq!(module.function_containing(statement.address).unwrap().name().plain(), "second");
        assert_eq!(&*statement.place.file, whole("two"));
    }
}

/// What was found, for comparison with another way to keep the same DWARF.
fn everything(module: &Module) -> (Vec<u64>, Vec<(u64, Arc<FunctionName>)>) {
    let found = module.statements("twice.h", 4, None).unwrap();
    assert!(found.gaps.is_empty(), "{:?}", found.gaps);
    let (copies, gaps) = module.inlined(|_| true).unwrap();
    assert!(gaps.is_empty(), "{gaps:?}");
    assert!(
        copies.iter().all(|copy| copy.place.as_ref().is_some_and(|place| place.file.ends_with("/twice.h")))
    );
    let statements = found.statements.iter().map(|statement| statement.address);
    (statements.collect(), copies.into_iter().map(|copy| (copy.entry, copy.name)).collect())
}

#[test]
fn compressed_and_separate_debug_information_says_the_same() {
    if skip_without(&["gcc", "objcopy", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let expected = everything(&open(build(folder.path(), "places", &["-g", "-O2"])));
    assert!(expected.0.len() >= 3 && expected.1.len() >= 3);
    for way in ["zlib", "zlib-gnu", "zlib-gabi", "zstd"] {
        let flag = format!("--compress-debug-sections={way}");
        let packed = Command::new("objcopy")
            .current_dir(folder.path())
            .args([&flag, "places", "packed"])
            .output()
            .unwrap();
        if !packed.status.success() && way == "zstd" {
            println!("objcopy knows no zstd here");
            continue;
        }
        assert!(packed.status.success(), "{packed:?}");
        assert_eq!(everything(&open(folder.path().join("packed"))), expected, "{way}");
    }
    tool(folder.path(), "objcopy", &["--only-keep-debug", "places", "places.debug"]);
    tool(folder.path(), "strip", &["-o", "linked", "places"]);
    tool(folder.path(), "objcopy", &["--add-gnu-debuglink=places.debug", "linked"]);
    assert_eq!(everything(&Module::open(folder.path().join("linked")).unwrap()), expected);
}

#[test]
fn split_debug_information_is_put_together_again() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let expected = everything(&open(build(folder.path(), "places", &["-g", "-O2"])));
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        // Compiled and linked apart, so that the split file is named after the object.
        tool(folder.path(), "gcc", &["-g", version, "-O2", "-gsplit-dwarf", "-c", "places.c", "-o", "p.o"]);
        tool(folder.path(), "gcc", &["p.o", "-o", "split"]);
        let program = folder.path().join("split");
        let found = everything(&Module::open(&program).unwrap());
        assert_eq!(found.1.len(), expected.1.len(), "{version}");
        assert_eq!(
            found,
            everything(&Module::open(build(folder.path(), "whole", &["-g", version, "-O2"])).unwrap())
        );
        // That of binutils cannot put DWARF 5 into a package.
        if version == "-gdwarf-4" && !skip_without(&["dwp"]) {
            tool(folder.path(), "dwp", &["-e", "split", "-o", "split.dwp"]);
            std::fs::rename(folder.path().join("p.dwo"), folder.path().join("away")).unwrap();
            assert_eq!(everything(&Module::open(&program).unwrap()), found, "{version}");
            std::fs::remove_file(folder.path().join("split.dwp")).unwrap();
        } else {
            std::fs::remove_file(folder.path().join("p.dwo")).unwrap();
        }
        // The line tables are in the program itself; what is inlined is not.
        let bare = Module::open(&program).unwrap();
        let lines = bare.statements("twice.h", 4, None).unwrap();
        assert!(!lines.statements.is_empty() && lines.statements.iter().all(|s| s.inlined.is_none()));
        assert_eq!(lines.gaps.split, [PathBuf::from("p.dwo")]);
        let (copies, gaps) = bare.inlined(|_| true).unwrap();
        assert!(copies.is_empty() && gaps.split == [PathBuf::from("p.dwo")]);
        // Another build's split file is none.
        tool(folder.path(), "gcc", &["-g", version, "-O1", "-gsplit-dwarf", "-c", "places.c", "-o", "p.o"]);
        let (copies, gaps) = Module::open(&program).unwrap().inlined(|_| true).unwrap();
        assert!(copies.is_empty() && gaps.split.len() == 1);
    }
}

#[test]
fn what_several_programs_have_in_common_is_found() {
    if skip_without(&["gcc", "dwz"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let build_id = "-Wl,--build-id";
    let expected = everything(&open(build(folder.path(), "one", &["-g", "-O2", build_id])));
    let other = PLACES.replace("printf(\"%d\\n\"", "printf(\"%x\\n\"");
    compile("gcc", folder.path(), ("other.c", &other), "two", &["-g", "-O2", build_id]);
    // A third: what only two of them have may be too little to be worth it.
    compile("gcc", folder.path(), ("third.c", &other), "three", &["-g", "-O2", build_id]);
    tool(folder.path(), "dwz", &["-m", "shared", "one", "two", "three"]);
    assert!(folder.path().join("shared").exists());
    assert_eq!(everything(&Module::open(folder.path().join("one")).unwrap()), expected);
    // Nowhere else is looked for it, so the names are not to be had.
    let (copies, _) = Module::open_with(folder.path().join("one"), DebugSearch::nowhere())
        .unwrap()
        .inlined(|name| name.text() == "twice")
        .unwrap();
    assert!(copies.len() <= expected.1.len());
}

#[test]
fn the_lines_of_a_function_are_its_own() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for optimized in ["-O0", "-O2"] {
        let module = open(build(folder.path(), "places", &["-g", optimized]));
        let once = module.function_named("once").unwrap();
        let found = module.function_lines(once.range()).unwrap();
        assert!(found.file.ends_with("/places.c") && found.md5.is_none(), "{found:?}");
        assert_eq!((*found.lines.start(), *found.lines.end()), (4, 13), "{optimized}");
        let statements = module.statements_in(&found.file, &found.lines).unwrap();
        assert!(statements.len() >= 6 && statements.iter().all(|s| found.lines.contains(&s.place.line)));
    }
}

#[test]
fn scopes_and_templates_are_in_the_names_of_copies() {
    if skip_without(&["g++"]) {
        return;
    }
    let text = r#"
namespace ns {
template <typename T> struct Box {
	T value;
	__attribute__((always_inline)) T get(int n) const { asm volatile("" : : "r"(n)); return value * n; }
};
namespace {
inline __attribute__((always_inline)) int hidden(int n) { asm volatile("" : : "r"(n)); return n + 1; }
}
static inline __attribute__((always_inline)) int own(int n) { asm volatile("" : : "r"(n)); return n + 2; }
}
int main(int argc, char **) {
	ns::Box<int> whole{argc};
	ns::Box<double> half{argc * 0.5};
	return ns::hidden(whole.get(argc)) + ns::own(argc) + (int) half.get(argc);
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let mut compilers = vec!["g++"];
    if !skip_without(&["clang++"]) {
        compilers.push("clang++");
    }
    for compiler in compilers {
        let module = open(compile(compiler, folder.path(), ("box.cc", text), "box", &["-g", "-O2"]));
        let (copies, _) = module.inlined(|_| true).unwrap();
        let names: BTreeSet<String> = copies
            .iter()
            .map(|copy| match &*copy.name {
                FunctionName::Symbol(symbol) => trapless_symbols::demangle(symbol).into_owned(),
                FunctionName::Written(text) => text.clone(),
            })
            .collect();
        for part in
            ["ns::Box<int>::get", "ns::Box<double>::get", "ns::(anonymous namespace)::hidden", "ns::own"]
        {
            assert!(names.iter().any(|name| name.starts_with(part)), "{compiler}: {part} in {names:?}");
        }
    }
}
