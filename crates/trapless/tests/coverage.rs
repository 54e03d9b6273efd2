//! How much of real programs can be probed without a trap: entries of functions, and instructions anywhere in them.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::tool::run;

/// In hundredths of a percent.
const ENTRIES: u64 = 9_990;
const INSTRUCTIONS: u64 = 9_900;

/// The file that a command prints the path of.
fn printed(command: &mut Command) -> Option<PathBuf> {
    let output = command.output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_absolute().then(|| path.canonicalize().ok()).flatten()
}

/// Where Java's virtual machine is.
const JVM: &str = "echo $(dirname $(dirname $(readlink -f $(command -v javac))))/lib/server/libjvm.so";

/// A file that is there.
fn found(path: &str) -> Option<PathBuf> {
    Some(PathBuf::from(path)).filter(|path| path.is_file())
}

/// A program that is run by its name.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let more = ["/usr/sbin", "/usr/lib/postgresql/15/bin"].map(PathBuf::from);
    let all = std::env::split_paths(&path).chain(more);
    all.map(|dir| dir.join(name)).find(|path| path.is_file())?.canonicalize().ok()
}

#[test]
fn c2_few_entries_and_instructions_of_real_programs_need_a_trap() {
    let of_gcc = |what: &str| printed(Command::new("g++").arg(what));
    let files = [
        ("libc", of_gcc("-print-file-name=libc.so.6")),
        ("libstdc++", of_gcc("-print-file-name=libstdc++.so.6")),
        ("git", program("git")),
        ("redis-server", program("redis-server")),
        ("postgres", program("postgres")),
        ("mariadbd", program("mariadbd")),
        ("ocamlopt", program("ocamlopt.opt")),
        (
            "libcrypto",
            of_gcc("-print-file-name=libcrypto.so.3")
                .or_else(|| found("/usr/lib/x86_64-linux-gnu/libcrypto.so.3")),
        ),
        ("cc1plus", of_gcc("-print-prog-name=cc1plus")),
        ("Go's compiler", printed(Command::new("go").args(["tool", "-n", "compile"]))),
        ("libjvm", printed(Command::new("sh").args(["-c", JVM]))),
        // What is found by the name may be a script, or a program that others have built.
        ("node", found("/usr/bin/node")),
        ("python3", found("/usr/bin/python3")),
    ];
    for (name, file) in files {
        let Some(file) = file.filter(|file| is_elf(file)) else {
            trapless_testing::skip!("no {name}");
            continue;
        };
        let ran =
            run(&["list", "--summary", "--max-probes", "1000000", "-f", "json", file.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let rows = ran.json();
        let of = |what: &str| rows.iter().find(|row| row["of"] == what).unwrap_or_else(|| panic!("{ran:?}"));
        for (row, least) in [(of("entries"), ENTRIES), (of("instructions"), INSTRUCTIONS)] {
            let number = |what: &str| row[what].as_u64().unwrap();
            assert_eq!(number("sites"), number("jump") + number("short") + number("refused"), "{row}");
            let had = number("jump") + number("short");
            assert!(number("sites") > 1000 && had * 10_000 >= number("sites") * least, "{name}: {row}");
        }
    }
}

fn is_elf(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"))
}
