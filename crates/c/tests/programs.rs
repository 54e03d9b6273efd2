//! Programs of C and C++ that include the header and are linked with the library.

mod common;

use common::{Bench, Linked, library, package, run, succeeds};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use trapless_c::error::Number;
use trapless_testing::{inapplicable, skip};

fn header() -> String {
    fs::read_to_string(package("include/trapless.h")).unwrap()
}

/// The header without its comments.
fn declarations() -> String {
    let text = header();
    text.split("*/").map(|part| part.split("/*").next().unwrap()).collect()
}

/// Words in which a name can stand.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[test]
fn the_header_and_the_library_have_the_same_numbers() {
    let declared = declarations();
    let errors = declared.split("enum trapless_error {").nth(1).unwrap().split('}').next().unwrap();
    let names: BTreeSet<&str> = words(errors).filter(|word| word.starts_with("TRAPLESS_")).collect();
    let ours = Number::ALL.iter().map(|(name, _)| *name).chain(["TRAPLESS_OK"]);
    assert_eq!(names, ours.collect());
    let Some(bench) = Bench::new("gcc") else { return };
    let prints: String = names
        .iter()
        .chain(&["TRAPLESS_ARGUMENTS", "TRAPLESS_FLOATS"])
        .map(|name| format!("printf(\"{name} %d\\n\", (int){name});\n"))
        .collect();
    let source = bench.dir().join("numbers.c");
    fs::write(
        &source,
        format!("#include <stdio.h>\n#include \"trapless.h\"\nint main(void) {{\n{prints}}}\n"),
    )
    .unwrap();
    let printed = succeeds(&mut Command::new(bench.build(&source, Linked::Not, &[])));
    let printed: BTreeSet<(&str, usize)> = printed
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect();
    let others = [
        ("TRAPLESS_OK", 0),
        ("TRAPLESS_ARGUMENTS", trapless_c::call::ARGUMENTS),
        ("TRAPLESS_FLOATS", trapless_c::call::FLOATS),
    ];
    let ours = Number::ALL.iter().map(|(name, number)| (*name, *number as usize));
    assert_eq!(printed, ours.chain(others).collect());
}

#[test]
fn the_library_has_what_the_header_declares_and_nothing_else() {
    if !library("so").exists() {
        return inapplicable!("the library is no file of its own on this target");
    }
    let declared = declarations();
    let is_function =
        |line: &&str| line.contains("(") && !line.starts_with([' ', '#']) && !line.contains("(*");
    let functions: BTreeSet<String> = declared
        .lines()
        .filter(|line| !line.starts_with("typedef"))
        .filter(is_function)
        .map(|line| words(line.split('(').next().unwrap()).last().unwrap().to_owned())
        .collect();
    let listed = match Command::new("nm").args(["-D", "--defined-only"]).arg(library("so")).output() {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(error) => return skip!("nm: {error}"),
    };
    let exported: BTreeSet<String> = listed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().to_owned())
        .filter(|name| name != "rust_eh_personality")
        .collect();
    assert_eq!(functions, exported);
    assert!(functions.len() > 40, "{functions:?}");
}

#[test]
fn the_header_is_one_of_c_and_of_cpp() {
    let each = [
        ("gcc", "c", "-std=c99", "-Wstrict-prototypes"),
        ("gcc", "c", "-std=c17", "-Wstrict-prototypes"),
        ("g++", "c++", "-std=c++11", "-Wold-style-cast"),
        ("g++", "c++", "-std=c++20", "-Wold-style-cast"),
    ];
    for (compiler, language, standard, warning) in each {
        let mut command = Command::new(compiler);
        command.args(["-x", language, standard, "-Wall", "-Wextra", warning, "-Werror"]);
        command.args(["-pedantic", "-fsyntax-only"]).arg(package("include/trapless.h"));
        match command.output() {
            Ok(output) => {
                assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr))
            }
            Err(error) => skip!("{compiler}: {error}"),
        }
    }
}

#[test]
fn a_program_does_all_that_the_header_offers() {
    let Some(bench) = Bench::new("gcc") else { return };
    for flags in [["-std=c11", "-O0"], ["-std=c11", "-O2"]] {
        succeeds(&mut Command::new(bench.build("all.c", Linked::Shared, &flags)));
    }
}

#[test]
fn a_program_does_all_that_with_the_library_in_itself() {
    let Some(bench) = Bench::new("gcc") else { return };
    succeeds(&mut Command::new(bench.build("all.c", Linked::Static, &["-std=c11", "-O2"])));
}

#[test]
fn exceptions_pass_calls_that_are_followed_and_end_the_process_in_a_handler() {
    let Some(bench) = Bench::new("g++") else { return };
    if !trapless_inside::is_possible() {
        return inapplicable!("there are no probes on this machine");
    }
    let program = bench.build("throws.cc", Linked::Shared, &["-std=c++17", "-O2"]);
    assert_eq!(succeeds(Command::new(&program).arg("through")), "1 was left, 1 has returned\n");
    for handler in ["enter", "leave", "dropped", "exit"] {
        let (status, printed) = run(Command::new(&program).arg(handler));
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{handler}: {status}\n{printed}");
        assert!(printed.starts_with("goes in\n") && !printed.contains("goes on"), "{handler}: {printed}");
    }
}

#[test]
fn a_plug_in_probes_a_program_that_knows_nothing_of_it() {
    let Some(bench) = Bench::new("gcc") else { return };
    if !trapless_inside::is_possible() {
        return inapplicable!("there are no probes on this machine");
    }
    let plug_in = bench.build("plug_in.c", Linked::Shared, &["-std=c11", "-O2", "-shared", "-fPIC"]);
    let host = bench.build("host.c", Linked::Not, &["-std=c11", "-O2"]);
    let printed = succeeds(Command::new(host).arg(plug_in));
    assert_eq!(printed, "loaded\nunloaded\nloaded\nunloaded\n");
}

#[test]
fn all_functions_of_a_process_are_probed_with_a_library_that_has_no_names() {
    let Some(bench) = Bench::new("gcc") else { return };
    if !trapless_inside::is_possible() {
        return inapplicable!("there are no probes on this machine");
    }
    let program = bench.build("everything.c", Linked::Shared, &["-std=c11", "-O2"]);
    let stripped = bench.dir().join("libtrapless_c.so");
    match Command::new("strip").arg("-o").arg(&stripped).arg(library("so")).status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => return skip!("strip: {error}"),
    }
    for pattern in ["libtrapless_c.so:*", "*:*"] {
        // By the name alone: a path in the program comes behind it.
        let printed = succeeds(Command::new(&program).arg(pattern).env("LD_LIBRARY_PATH", bench.dir()));
        assert!(printed.contains("libtrapless_c.so:sub_") && printed.contains("has no names"), "{printed}");
    }
    succeeds(Command::new(&program).arg("*:*"));
}

/// The first block of C behind a heading.
fn example(text: &str, heading: &str) -> String {
    let section = text.split(&format!("\n## {heading}\n")).nth(1).expect("the heading is there");
    let block = section.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("there is C behind it").to_owned()
}

#[test]
fn the_example_of_the_readme_does_what_it_says() {
    let Some(bench) = Bench::new("gcc") else { return };
    if !trapless_inside::is_possible() {
        return inapplicable!("there are no probes on this machine");
    }
    let source = bench.dir().join("example.c");
    let text = example(&fs::read_to_string(package("../../README.md")).unwrap(), "From C");
    // It may be run under a filter here, which that of the text need not think of.
    let allowed = text.replace("int main(void)\n{\n", "int main(void)\n{\n    trapless_allow_seccomp();\n");
    assert_ne!(text, allowed);
    fs::write(&source, allowed).unwrap();
    let printed = succeeds(&mut Command::new(bench.build(&source, Linked::Shared, &["-std=c99", "-O2"])));
    assert!(printed.contains("/etc/hostname"), "{printed}");
    assert_eq!(printed.lines().count(), 1, "{printed}");
}
