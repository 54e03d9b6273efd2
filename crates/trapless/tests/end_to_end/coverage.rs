//! How much of real programs can be probed without a trap: entries of functions, and instructions anywhere in them.

use crate::support::assembly::X86;
use crate::support::tool::run;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// In hundredths of a percent.
const ENTRIES: u64 = if X86 { 9_990 } else { BRANCHES as u64 };
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

/// Where libraries of other machines are, as scripts/cross-setup and Debian have them.
const ELSEWHERE: [(&str, &str); 2] =
    [("arm64", "usr/lib/aarch64-linux-gnu"), ("ppc64el", "usr/lib/powerpc64le-linux-gnu")];

/// The same, of what is listed for one branch; and of entries whose returns can be followed.
const BRANCHES: usize = 9_950;
const RETURNS: usize = 9_700;

/// S4, S5: nearly every function of their libraries takes one branch, and nearly every return can be followed. Resolvers of indirect
/// functions are not counted: no call is one of them.
#[test]
fn c2_few_entries_of_arm64_and_powerpc64le_need_a_trap_and_few_returns_are_refused() {
    let prefix = std::env::var_os("TRAPLESS_CROSS").map(PathBuf::from);
    for (machine, folder) in ELSEWHERE {
        for name in ["libc.so.6", "libm.so.6", "libstdc++.so.6"] {
            let copied =
                prefix.as_ref().map(|prefix| prefix.join("libraries").join(machine).join(folder).join(name));
            let own = Path::new("/").join(folder).join(name);
            let Some(file) = copied.into_iter().chain([own]).find(|file| file.is_file()) else {
                trapless_testing::skip!("no {name} of {machine}; scripts/cross-setup has it");
                continue;
            };
            let ran = run(&["list", "-f", "json", file.to_str().unwrap()]);
            let rows = ran.json();
            let is_resolver = |row: &&serde_json::Value| row["code"] == "ifunc_resolver";
            let called: Vec<_> = rows.iter().filter(|row| !is_resolver(row)).collect();
            let branches = called.iter().filter(|row| row["mechanism"] == "jump").count();
            let mut no_return = BTreeMap::<&str, usize>::new();
            for row in &called {
                let why = row["no_return_code"].as_str().or(row["code"].as_str());
                *no_return.entry(why.unwrap_or_default()).or_default() += 1;
            }
            let followed = no_return.remove("").unwrap_or_default();
            let share = |of: usize| of * 10_000 / called.len();
            let told = format!(
                "{machine} {name}: {} entries, {:.2} % with a branch, {:.2} % with their returns; no returns: {no_return:?}",
                called.len(),
                share(branches) as f64 / 100.0,
                share(followed) as f64 / 100.0
            );
            trapless_testing::say("COVERAGE", format_args!("{told}"));
            assert!(
                called.len() > 500 && share(branches) >= BRANCHES && share(followed) >= RETURNS,
                "{told}"
            );
        }
    }
}

fn is_elf(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"))
}
