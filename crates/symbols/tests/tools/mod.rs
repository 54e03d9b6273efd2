//! The tools that tests build and compare with.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::{path::Path, process::Command};

use trapless_symbols::{DebugSearch, Module};

/// What a command prints; `None` if it cannot be started or fails.
pub fn run(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Skips and gives true when one of `programs` is missing.
pub fn skip_without(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| run(Command::new(program).arg("--version")).is_none());
    if let Some(program) = missing {
        trapless_testing::skip!("no {program}");
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

/// The module at `path`, without a debug file.
pub fn open(path: impl AsRef<Path>) -> Module {
    Module::open_with(path, DebugSearch::nowhere()).unwrap()
}

/// A program with one function of every sort.
pub const TRAITS: &str = r#"
int target(int n) { return n + 1; }
int alias(int n) __attribute__((alias("target")));
int weak_alias(int n) __attribute__((weak, alias("target")));
int __hidden_name(int n) __attribute__((alias("target")));
static __attribute__((noinline)) int local(int n) { __asm__(""); return n * 3; }
static int (*resolve(void))(int) { return target; }
int chosen(int n) __attribute__((ifunc("resolve")));
__asm__(".text\n.globl sizeless\nsizeless: nop\nnop\nret\n"
        ".globl next_to_it\n.type next_to_it,@function\nnext_to_it: ret\ninner_label: nop\nret\n.size next_to_it,.-next_to_it\n"
        ".globl typed_inner\n.type outer,@function\nouter: nop\n.type typed_inner,@function\ntyped_inner: ret\n"
        ".size typed_inner,1\n.globl untyped_inner\nuntyped_inner: ret\n.size outer,.-outer\n.p2align 4\n");
__attribute__((cold, noinline)) void rare(int n) { __asm__("" :: "r"(n)); __builtin_trap(); }
__attribute__((noinline)) int splits(int n) { if (__builtin_expect(n > 1000, 0)) { rare(n); rare(n + 1); } return n; }
int data_object = 1;
int (*table[])(int) = {local, splits};
int main(int argc, char **argv) { return table[argc & 1](argc) + chosen(argc) + data_object; }
"#;
