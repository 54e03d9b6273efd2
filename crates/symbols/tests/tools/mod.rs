//! The tools that tests build and compare with.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::{path::Path, process::Command};

/// What a command prints; `None` if it cannot be started or fails.
pub fn run(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Says SKIPPED and gives true when one of `programs` is missing.
pub fn skip_without(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| run(Command::new(program).arg("--version")).is_none());
    if let Some(program) = missing {
        println!("SKIPPED: no {program}");
    }
    missing.is_some()
}

/// Compiles `source`, of the language its name's ending says, to `output`; panics with the compiler's words.
pub fn compile(
    compiler: &str,
    folder: &Path,
    source: (&str, &str),
    output: &str,
    flags: &[&str],
) -> std::path::PathBuf {
    let (name, text) = source;
    std::fs::write(folder.join(name), text).unwrap();
    let result = Command::new(compiler)
        .current_dir(folder)
        .arg(name)
        .args(["-o", output])
        .args(flags)
        .output()
        .unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    folder.join(output)
}

/// Runs a tool that must succeed, in `folder`.
pub fn tool(folder: &Path, program: &str, arguments: &[&str]) {
    let result = Command::new(program).current_dir(folder).args(arguments).output().unwrap();
    assert!(result.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&result.stderr));
}
