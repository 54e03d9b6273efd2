//! Files whose symbols were stripped off: what unwind entries, debug files and MiniDebugInfo give back.

mod tools;

use tools::{TRAITS, compile, open, skip_without, tool};
use trapless_symbols::{DebugSearch, Kind, Module, Origin};

#[test]
fn i2_stripped_files_have_functions_by_their_unwind_entries() {
    if skip_without(&["gcc", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let full = open(compile("gcc", folder.path(), ("t.c", TRAITS), "full", &["-O2", "-fno-plt"]));
    tool(folder.path(), "strip", &["full", "-o", "stripped"]);
    let stripped = open(folder.path().join("stripped"));
    for name in ["main", "local", "splits", "rare", "target"] {
        let known = full.function_named(name).unwrap();
        let found = stripped.functions().at(known.address()).expect(name);
        assert_eq!(
            (found.size(), found.origin(), found.is_named()),
            (known.size(), Origin::UnwindTable, false)
        );
        assert_eq!(found.name().plain(), format!("sub_{:x}", known.address()));
        assert_eq!(stripped.function_named(found.name().plain()), Some(found));
    }
}

#[test]
fn unwind_entries_tell_parts_from_functions() {
    if skip_without(&["gcc", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The frame is set up before the unlikely branch, so the part starts with it.
    let text = "void rare(char *) __attribute__((cold, noinline)); void rare(char *p) { __asm__(\"\" :: \"r\"(p)); __builtin_trap(); }\n\
        int use(char *); int splits(int n) { char buffer[100]; use(buffer); if (__builtin_expect(n > 9, 0)) { rare(buffer); rare(buffer + 1); } return use(buffer); }\n\
        __attribute__((noinline)) int use(char *p) { __asm__(\"\" :: \"r\"(p) : \"memory\"); return *p; } int main(int n) { return splits(n); }";
    let full = open(compile("gcc", folder.path(), ("s.c", text), "full", &["-O2"]));
    tool(folder.path(), "strip", &["full", "-o", "stripped"]);
    let stripped = open(folder.path().join("stripped"));
    for (name, kind) in [("splits", Kind::Function), ("splits.cold", Kind::Part), ("main", Kind::Function)] {
        let Some(known) = full.function_named(name) else {
            return trapless_testing::inapplicable!("this gcc makes no {name}");
        };
        assert_eq!(known.kind(), kind, "{name}");
        assert_eq!(stripped.functions().at(known.address()).unwrap().kind(), kind, "{name}");
    }
}

#[test]
fn stripped_symbols_are_found_in_debug_files_that_belong() {
    if skip_without(&["gcc", "strip", "objcopy"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    compile("gcc", here, ("t.c", TRAITS), "full", &["-O2", "-g", "-Wl,--build-id=0xabcdef0123"]);
    tool(here, "objcopy", &["--only-keep-debug", "full", "full.debug"]);
    tool(here, "strip", &["full", "-o", "by_id"]);
    tool(
        here,
        "objcopy",
        &[
            "--strip-all",
            "--remove-section=.note.gnu.build-id",
            "--add-gnu-debuglink=full.debug",
            "full",
            "by_link",
        ],
    );
    std::fs::create_dir_all(here.join("root/.build-id/ab")).unwrap();
    std::fs::copy(here.join("full.debug"), here.join("root/.build-id/ab/cdef0123.debug")).unwrap();
    let search = DebugSearch { roots: vec![here.join("root")], ..DebugSearch::default() };
    let local = open(here.join("full")).function_named("local").unwrap().range();

    for name in ["by_id", "by_link"] {
        let module = Module::open_with(here.join(name), search.clone()).unwrap();
        let found = module.function_named("local").unwrap_or_else(|| panic!("{name}"));
        assert_eq!((found.range(), found.origin()), (local.clone(), Origin::DebugFile), "{name}");
        let line = module.source_line(found.address()).unwrap();
        assert!(line.file.ends_with("t.c") && line.line == 6, "{name}: {line:?}");
        assert!(open(here.join(name)).function_named("local").is_none(), "{name}: nowhere is nowhere");
    }

    // One byte of another build: neither checksum nor build id may let it pass.
    let mut other = std::fs::read(here.join("full.debug")).unwrap();
    let id = other.windows(5).position(|window| window == [0xab, 0xcd, 0xef, 0x01, 0x23]).unwrap();
    other[id + 4] ^= 1;
    for path in ["full.debug", "root/.build-id/ab/cdef0123.debug"] {
        std::fs::write(here.join(path), &other).unwrap();
    }
    for name in ["by_id", "by_link"] {
        let module = Module::open_with(here.join(name), search.clone()).unwrap();
        assert!(module.function_named("local").is_none() && module.debug_file_path().is_none(), "{name}");
    }
}

#[test]
fn debug_files_are_found_in_folders_beside_the_module_by_its_name() {
    if skip_without(&["gcc", "strip", "objcopy"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    compile("gcc", here, ("t.c", TRAITS), "full", &["-O2", "-g", "-Wl,--build-id=0xabcdef0124"]);
    tool(here, "strip", &["full", "-o", "bare"]);
    std::fs::create_dir(here.join("extra")).unwrap();
    tool(here, "objcopy", &["--only-keep-debug", "full", "extra/bare.debug"]);
    let search = DebugSearch { roots: vec!["extra".into()], ..DebugSearch::default() };
    let named = |search: &DebugSearch| {
        let module = Module::open_with(here.join("bare"), search.clone()).unwrap();
        module.function_named("local").is_some()
    };
    assert!(named(&search) && !named(&DebugSearch::default()));
    // Of another build.
    tool(here, "objcopy", &["--remove-section=.note.gnu.build-id", "extra/bare.debug"]);
    assert!(!named(&search));
}

#[test]
fn mini_debug_info_names_local_functions() {
    if skip_without(&["gcc", "strip", "objcopy", "xz"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    compile("gcc", here, ("t.c", TRAITS), "full", &["-O2"]);
    tool(here, "objcopy", &["--only-keep-debug", "full", "mini"]);
    tool(here, "xz", &["-9", "mini"]);
    tool(here, "objcopy", &["--strip-all", "--add-section", ".gnu_debugdata=mini.xz", "full", "stripped"]);
    let local = open(here.join("full")).function_named("local").unwrap().range();
    let module = open(here.join("stripped"));
    let found = module.function_named("local").unwrap();
    assert_eq!((found.range(), found.origin()), (local, Origin::MiniDebugInfo));
}

/// A Go program has a table of its functions for itself.
#[test]
fn i2_stripped_go_programs_have_their_functions_with_names() {
    if tools::run(std::process::Command::new("go").arg("version")).is_none() {
        trapless_testing::skip!("no go");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "package main\nimport (\"fmt\"; \"sort\")\ntype T struct{ n []int }\n\
        func (t *T) Len() int { return len(t.n) }\nfunc (t *T) Less(i, j int) bool { return t.n[i] < t.n[j] }\n\
        func (t *T) Swap(i, j int) { t.n[i], t.n[j] = t.n[j], t.n[i] }\n\
        func main() { t := &T{[]int{3, 1, 2}}; sort.Sort(t); fmt.Println(t.n) }\n";
    std::fs::write(folder.path().join("main.go"), text).unwrap();
    for mode in ["-buildmode=exe", "-buildmode=pie", "-race"] {
        let build = |name: &str, strip: &str| {
            let mut go = trapless_testing::go();
            go.current_dir(&folder).args(["build", mode, strip, "-o", name, "main.go"]);
            tools::run(&mut go)?;
            Some(open(folder.path().join(name)))
        };
        let Some(full) = build("full", "-ldflags=") else {
            assert_eq!(mode, "-race", "it is built");
            trapless_testing::inapplicable!("this Go builds no programs with its race detector");
            continue;
        };
        let stripped = build("stripped", "-ldflags=-s -w").unwrap();
        let found: Vec<_> =
            stripped.functions().iter().filter(|function| function.origin() == Origin::GoTable).collect();
        let is_there = |name: &str| stripped.function_named(name).is_some();
        assert!(is_there("main.(*T).Less") && is_there("runtime.mallocgc"), "{mode}");
        // The race detector's own functions are not Go's.
        let most = if mode == "-race" { 0 } else { full.functions().len() * 98 / 100 };
        assert!(found.len() > 1000.max(most), "{mode}: {}", found.len());
        let mut names: Vec<_> = found.iter().map(|function| function.name().plain()).collect();
        names.retain(|name| !name.contains('['));
        names.sort_unstable();
        let again = names.array_windows().find(|[one, next]| one == next);
        assert_eq!(again, None, "{mode}");
        for function in found {
            let known = full.functions().at(function.address()).expect("it is one of the program's");
            assert_eq!(function.size(), known.size(), "{mode} {}", known.name().plain());
            let name = function.name().plain();
            // What is in brackets, the tables of Go before 1.21 leave out.
            let shortened = |known: &str| match known.find('[').zip(known.rfind(']')) {
                Some((open, close)) if open < close => {
                    format!("{}[...]{}", &known[..open], &known[close + 1..])
                }
                _ => known.to_owned(),
            };
            // Assembly's calling convention is only told of one of two.
            let is_its = |known: &str| {
                let is_it = |known: &str| known == name || shortened(known) == name;
                is_it(known) || known.strip_suffix(".abi0").is_some_and(is_it)
            };
            let known: Vec<_> = known.names().map(|known| known.plain()).collect();
            assert!(known.iter().any(|known| is_its(known)), "{mode} {name} {known:?}");
            assert_eq!(
                stripped.is_compiled_by_go(function.address()),
                full.is_compiled_by_go(function.address())
            );
        }
    }
}
