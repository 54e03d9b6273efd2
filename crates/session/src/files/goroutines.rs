//! Where a Go program lists its goroutines, in addresses of the file.
//!
//! The list and its length are variables of Go's run-time system, `runtime.allgptr` and `runtime.allglen`. Where symbols were stripped, two
//! functions tell, which Go's own table of functions names:
//!
//! - `runtime.forEachGRace` loads both, and no other variable;
//! - `runtime.allgadd`, which adds a goroutine, takes the addresses of both, and compares one of them, that of the list, with where the list is.
//!
//! (`src/runtime/proc.go`.) Where the two do not agree, nothing is known.

use super::file::code_of;
use crate::target;
use std::collections::BTreeSet;
use trapless_isa::Reference;
use trapless_symbols::Module;

/// `runtime.allgptr` and `runtime.allglen`.
pub(super) fn list(module: &Module) -> Option<[u64; 2]> {
    let named = || Some([module.variable("runtime.allgptr")?, module.variable("runtime.allglen")?]);
    named().or_else(|| by_code(module))
}

fn by_code(module: &Module) -> Option<[u64; 2]> {
    let isa = target::machine(module).isa();
    let references = |name: &str| {
        let function = module.function_named(name)?;
        Some(isa.references(code_of(module, function)?, function.address()))
    };
    let of = |references: &[(u64, Reference)], kind: Reference| -> BTreeSet<u64> {
        let of_kind = references.iter().filter(|(_, reference)| *reference == kind);
        of_kind.map(|(address, _)| *address).collect()
    };
    let walks = references("runtime.forEachGRace")?;
    let adds = references("runtime.allgadd")?;
    let both = of(&walks, Reference::Loaded);
    let (compared, taken) = (of(&adds, Reference::Compared), of(&adds, Reference::Taken));
    let list = *both.intersection(&compared).next()?;
    let length = *both.iter().find(|address| **address != list)?;
    let is_clear = both.len() == 2 && !compared.contains(&length) && both.is_subset(&taken);
    is_clear.then_some([list, length])
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_isa::Machine;

    #[test]
    fn code_tells_what_symbols_tell() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("main.go"), "package main\nfunc main() { go func() {}() }\n").unwrap();
        for mode in ["-buildmode=exe", "-buildmode=pie"] {
            let build = |name: &str, strip: &str| {
                let mut go = trapless_testing::go();
                go.current_dir(&folder).args(["build", mode, strip, "-o", name, "main.go"]);
                go.status().ok().map(|status| assert!(status.success()))?;
                Some(Module::open(path(name)).unwrap())
            };
            let Some(full) = build("full", "-ldflags=") else { return trapless_testing::skip!("no go") };
            let stripped = build("stripped", "-ldflags=-s -w").unwrap();
            let named = list(&full).expect("it has symbols");
            // Where Go is refused, its code is not looked at.
            let is_refused = matches!(target::machine(&full), Machine::AArch64 | Machine::PowerPc64Le);
            let by_code_too = (!is_refused).then_some(named);
            assert_eq!(by_code(&full), by_code_too, "{mode}");
            assert_eq!(list(&stripped).is_some(), by_code_too.is_some(), "{mode}");
        }
        let other = Module::open("/proc/self/exe").unwrap();
        assert_eq!(list(&other), None);
    }
}
