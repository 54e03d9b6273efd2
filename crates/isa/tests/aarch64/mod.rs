//! The tools that the arm64 tests run: a cross compiler, qemu-user, and ELF files. `scripts/cross-setup`
//! provides them.
#![allow(dead_code, reason = "each test uses a part")]

pub mod oracle;
pub mod state;

use object::{Object, ObjectSection, ObjectSymbol};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};
use trapless_isa::{
    Reason,
    aarch64::{emit::Code, relocate::relocate},
};

/// The folder that `scripts/cross-setup` filled, if it was told.
pub fn prefix() -> Option<PathBuf> {
    env::var_os("TRAPLESS_CROSS").map(PathBuf::from)
}

fn runs(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Compiles a C program beside this file and returns its path, or says why the test is skipped.
pub fn compile(source: &str) -> Option<PathBuf> {
    compile_with(source, &[])
}

/// The same, with more for the compiler.
pub fn compile_with(source: &str, flags: &[&str]) -> Option<PathBuf> {
    let compiler = Path::new("aarch64-linux-gnu-gcc");
    if !runs(compiler) {
        trapless_testing::skip!("no aarch64-linux-gnu-gcc; scripts/cross-setup installs it");
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aarch64");
    // Tests run side by side, in one process and in several.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("{source}-{}-{}.elf", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new(compiler)
        .args(["-O2", "-static", "-no-pie", "-pthread", "-Wall", "-Wno-parentheses", "-Werror", "-o"])
        .arg(&program)
        .args(flags)
        .arg(folder.join(source))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// qemu-user, or says why the test is skipped.
pub fn qemu() -> Option<PathBuf> {
    let found = prefix()
        .map(|prefix| prefix.join("bin/qemu-aarch64"))
        .into_iter()
        .chain([PathBuf::from("qemu-aarch64")])
        .find(|program| runs(program));
    if found.is_none() {
        trapless_testing::skip!(
            "no qemu-aarch64; run scripts/cross-setup PREFIX and set TRAPLESS_CROSS=PREFIX"
        );
    }
    found
}

/// Runs a program under qemu-user and expects success.
pub fn run(qemu: &Path, program: &Path, arguments: &[&Path]) -> Output {
    // All extensions, whatever a release of qemu takes for the usual processor.
    run_on(qemu, "max", program, arguments)
}

/// The same on this processor.
pub fn run_on(qemu: &Path, processor: &str, program: &Path, arguments: &[&Path]) -> Output {
    let output = Command::new(qemu).args(["-cpu", processor]).arg(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{:?}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The copy of the instruction `word` at `from`, to stand at `to`, and the branch back, as in a detour.
pub fn copied(word: u32, from: u64, to: u64) -> Result<Vec<u8>, Reason> {
    let mut code = Code::new(to);
    relocate(word, from, &mut code)?;
    code.branch(from.wrapping_add(4))?;
    code.finish()
}

/// A function of a program.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its address.
    pub address: u64,
    /// Its machine code.
    pub code: Vec<u8>,
}

/// The functions of an ELF file by name.
pub fn functions(file: &Path) -> BTreeMap<String, Function> {
    let bytes = fs::read(file).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let mut functions = BTreeMap::new();
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        let section = symbol.section_index().and_then(|index| elf.section_by_index(index).ok());
        if let (Some(section), Ok(name)) = (section, symbol.name())
            && symbol.kind() == object::SymbolKind::Text
            && let Ok(Some(code)) = section.data_range(symbol.address(), symbol.size())
        {
            functions.insert(name.to_owned(), Function { address: symbol.address(), code: code.to_vec() });
        }
    }
    functions
}
