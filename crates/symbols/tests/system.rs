//! The system's own libraries, against what binutils say about them.

mod tools;

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use tools::{run, skip_without};
use trapless_symbols::{Binding, DebugSearch, Kind, Module, ModuleKind, Origin};

/// Where the compiler finds a library.
fn library(name: &str) -> Option<PathBuf> {
    let path = run(Command::new("gcc").arg(format!("-print-file-name={name}")))?;
    PathBuf::from(path.trim()).canonicalize().ok()
}

/// Addresses of defined FUNC and IFUNC symbols, by readelf.
fn functions_by_readelf(path: &PathBuf) -> Option<BTreeSet<u64>> {
    let text = run(Command::new("readelf").arg("-sW").arg(path))?;
    let fields = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let functions = fields
        .filter(|fields| fields.len() >= 8 && ["FUNC", "IFUNC"].contains(&fields[3]) && fields[6] != "UND");
    Some(functions.map(|fields| u64::from_str_radix(fields[1], 16).unwrap()).collect())
}

#[test]
fn every_function_symbol_is_found_once() {
    if skip_without(&["gcc", "readelf"]) {
        return;
    }
    for name in ["libc.so.6", "libstdc++.so.6", "libm.so.6"] {
        let Some(path) = library(name) else { continue };
        let module = Module::open_with(&path, DebugSearch::nowhere()).unwrap();
        let functions = module.functions();
        assert_eq!(functions.defects(), [""; 0]);
        let ours: BTreeSet<_> = functions
            .iter()
            .filter(|function| function.origin() != Origin::UnwindTable)
            .map(|f| f.address())
            .collect();
        let theirs = functions_by_readelf(&path).unwrap();
        assert!(theirs.len() > 500, "{name}");
        assert_eq!(ours.symmetric_difference(&theirs).collect::<Vec<_>>(), [&0; 0], "{name}");
        let addresses: Vec<_> = functions.iter().map(|function| function.address()).collect();
        assert!(addresses.is_sorted_by(|a, b| a < b), "{name}");
        for function in functions.iter() {
            assert!(function.size() > 0, "{name}: {function:?}");
            assert!(module.code(function.range()).is_some(), "{name}: {function:?}");
            let found = functions.containing(function.address()).unwrap();
            assert_eq!(found.address(), function.address());
        }
        println!("{name}: {} functions, {} by symbols", functions.len(), ours.len());
    }
}

#[test]
fn libc_is_what_it_is() {
    let Some(path) = library("libc.so.6") else { return trapless_testing::skip!("no gcc to find libc with") };
    let libc = Module::open(&path).unwrap();
    assert_eq!(libc.kind(), ModuleKind::SharedLibrary);
    assert_eq!(libc.soname(), Some("libc.so.6"));
    assert!(libc.interpreter().is_some());
    assert!(libc.build_id().is_some_and(|id| id.len() == 20));
    assert!(libc.needed().iter().any(|name| name.starts_with("ld-linux")));

    let memcpy = libc.function_named("memcpy").unwrap();
    assert_eq!(memcpy.kind(), Kind::IfuncResolver);
    let malloc = libc.function_named("malloc").unwrap();
    assert_eq!((malloc.name().plain(), malloc.name().binding()), ("malloc", Binding::Global));
    assert!(malloc.is_callable());
    let write = libc.function_named("__write").unwrap();
    assert_eq!(write.name().plain(), "write");
    for name in ["write", "__write"] {
        assert_eq!(libc.function_named(name).unwrap(), write);
    }
    assert!(libc.code_pointers().len() > 100);
    let probes = libc.usdt().unwrap();
    assert!(probes.iter().all(|probe| libc.function_containing(probe.location).is_some()));
}

#[test]
fn landing_pads_lie_in_functions() {
    let Some(path) = library("libstdc++.so.6") else { return trapless_testing::skip!("no libstdc++") };
    let module = Module::open(&path).unwrap();
    let pads = module.landing_pads();
    assert!(pads.len() > 500, "{}", pads.len());
    for &pad in pads {
        assert!(module.function_containing(pad).is_some(), "{pad:#x}");
    }
}

/// The bounds of stripped parts come from unwind entries; the debug file knows their names.
#[test]
fn unwind_entries_never_take_a_function_for_a_part() {
    let Some(path) = library("libc.so.6") else { return trapless_testing::skip!("no gcc to find libc with") };
    let named = Module::open(&path).unwrap();
    if named.debug_file_path().is_none() {
        return trapless_testing::inapplicable!("no debug file of libc");
    }
    let stripped = Module::open_with(&path, DebugSearch::nowhere()).unwrap();
    let unnamed = stripped.functions().iter().filter(|function| !function.is_named());
    let mut counts = [0; 2];
    for function in unnamed {
        let Some(known) = named.functions().at(function.address()) else { continue };
        // Assembly such as clone3 ends its unwind entry early where there is no caller to unwind to.
        assert!(function.size() <= known.size() || known.kind() == Kind::Part, "{known:?}");
        if function.kind() == Kind::Part {
            assert_eq!(known.kind(), Kind::Part, "{known:?}");
        }
        counts[usize::from(known.kind() == Kind::Part)] += usize::from(known.kind() == function.kind());
    }
    println!("{} functions and {} parts told right", counts[0], counts[1]);
    assert!(counts[0] > 500 && counts[1] > 20, "{counts:?}");
}
