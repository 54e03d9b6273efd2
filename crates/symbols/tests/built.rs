//! Small programs built for one trait each: aliases, ifuncs, versions, local and sizeless symbols, cold parts,
//! pointers, landing pads, USDT probes, lines.

mod tools;

use tools::{TRAITS, compile, open, run, skip_without, tool};
use trapless_symbols::{Binding, Kind, ModuleKind, SourceLine};

#[test]
fn c2_i2_names_and_kinds_are_told_apart() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let module = open(compile("gcc", folder.path(), ("t.c", TRAITS), "traits", &["-O2"]));
    assert_eq!(module.kind(), ModuleKind::PieExecutable);
    let functions = module.functions();

    let target = module.function_named("target").unwrap();
    let names: Vec<_> = target.names().map(|name| (name.plain(), name.binding())).collect();
    let expected = [
        ("alias", Binding::Global),
        ("target", Binding::Global),
        ("weak_alias", Binding::Weak),
        ("__hidden_name", Binding::Global),
    ];
    assert_eq!(names, expected, "one site, the best name first");

    type Row = (&'static str, Option<(Kind, Binding)>);
    let rows: &[Row] = &[
        ("main", Some((Kind::Function, Binding::Global))),
        ("local", Some((Kind::Function, Binding::Local))),
        ("chosen", Some((Kind::IfuncResolver, Binding::Global))),
        ("sizeless", Some((Kind::Function, Binding::Global))),
        ("splits.cold", Some((Kind::Part, Binding::Local))),
        ("typed_inner", Some((Kind::Function, Binding::Global))),
        ("untyped_inner", None),
        ("inner_label", None),
        ("data_object", None),
        ("_end", None),
        ("", None),
        ("no such function", None),
    ];
    for &(name, expected) in rows {
        let found = module.function_named(name);
        let binding = |function: trapless_symbols::Function<'_>| {
            function.names().find(|candidate| candidate.plain() == name).unwrap().binding()
        };
        assert_eq!(found.map(|function| (function.kind(), binding(function))), expected, "{name}");
    }
    assert!(functions.iter().all(|function| function.is_callable() == (function.kind() == Kind::Function)));

    let sizeless = module.function_named("sizeless").unwrap();
    assert_eq!(sizeless.size(), 3, "bounded by the next function");
    assert_eq!(module.padding_after(sizeless), b"");
    let outer = module.function_named("outer").unwrap();
    let inner = module.function_named("typed_inner").unwrap();
    assert_eq!((outer.size(), inner.size()), (3, 1));
    assert_eq!(module.function_containing(outer.address()).unwrap(), outer);
    assert_eq!(module.function_containing(outer.address() + 1).unwrap(), inner);
    assert_eq!(module.function_containing(outer.address() + 2).unwrap(), outer, "behind the inner one");
    assert_eq!(
        outer.padding(),
        outer.range().end..outer.range().end.next_multiple_of(16),
        "filled up by .p2align 4"
    );
    assert_eq!(module.padding_after(inner), b"", "the outer one goes on");
    assert_eq!(module.padding_after(outer).len() as u64, outer.padding().end - outer.padding().start);

    let pointers = module.code_pointers();
    let next = module.function_named("next_to_it").unwrap();
    for (what, address) in [
        ("a relocated table entry", module.function_named("local").unwrap().address()),
        ("a local label", next.address() + 1),
        ("an untyped global inside a function", outer.address() + 2),
        ("the entry point", module.entry()),
    ] {
        assert!(pointers.binary_search(&address).is_ok(), "{what}");
    }
}

#[test]
fn code_pointers_are_found_however_they_are_stored() {
    let text = "static __attribute__((noinline)) int a(int n) { return n; } static int b(int n) { return n + 1; }\n\
        int (*table[])(int) = {a, b}; int exported(int n) { return n; } int (*other)(int) = exported;\n\
        int main(int n, char **v) { return table[n](n) + other(n); }";
    for compiler in ["gcc", "i686-linux-gnu-gcc"] {
        if skip_without(&[compiler]) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        for flags in [
            &["-fPIE", "-pie"][..],
            &["-fPIE", "-pie", "-Wl,-z,pack-relative-relocs"],
            &["-fno-pie", "-no-pie"],
            &["-fPIC", "-shared"],
        ] {
            let module = open(compile(compiler, folder.path(), ("q.c", text), "pointers", flags));
            let pointers = module.code_pointers();
            assert!(pointers.is_sorted_by(|a, b| a < b));
            for name in ["a", "b", "exported"] {
                let function = module.function_named(name).unwrap();
                assert!(pointers.binary_search(&function.address()).is_ok(), "{compiler} {flags:?} {name}");
            }
            let main = module.function_named("main").unwrap();
            let inside = |pointer: &u64| *pointer > main.address() && main.range().contains(pointer);
            assert!(!pointers.iter().any(inside), "{compiler} {flags:?}: nothing points into main");
        }
    }
}

#[test]
fn plt_stubs_are_no_functions() {
    if skip_without(&["gcc", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "#include <stdio.h>\nint main(int n, char **v) { return printf(\"%d\", n) + puts(v[0]); }";
    let module =
        open(compile("gcc", folder.path(), ("p.c", text), "calls", &["-O0", "-s", "-fcf-protection"]));
    let text = run(std::process::Command::new("readelf").arg("-SW").arg(module.path())).unwrap();
    let plt: Vec<_> = text
        .lines()
        .filter(|line| line.contains(" .plt"))
        .map(|line| {
            let fields: Vec<_> = line.split(']').nth(1).unwrap().split_ascii_whitespace().collect();
            let number = |at: usize| u64::from_str_radix(fields[at], 16).unwrap();
            number(2)..number(2) + number(4)
        })
        .collect();
    assert!(!plt.is_empty());
    for function in module.functions().iter() {
        assert!(!plt.iter().any(|range| range.contains(&function.address())), "{function:?}");
    }
}

#[test]
fn i2_versions_are_kept_apart_from_names() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "int old_f(int n) { return n; } int new_f(int n) { return n + 1; }\n\
        __asm__(\".symver old_f,f@V1\"); __asm__(\".symver new_f,f@@V2\");";
    std::fs::write(folder.path().join("map"), "V1 { global: f; local: *; }; V2 { global: f; } V1;").unwrap();
    let flags = ["-O1", "-shared", "-fPIC", "-Wl,--version-script=map", "-Wl,-soname,libv.so.9"];
    let path = compile("gcc", folder.path(), ("v.c", text), "libv.so", &flags);
    tool(folder.path(), "strip", &["libv.so", "-o", "stripped.so"]);
    for path in [path, folder.path().join("stripped.so")] {
        let module = open(path);
        assert_eq!((module.kind(), module.soname()), (ModuleKind::SharedLibrary, Some("libv.so.9")));
        let functions = module.functions();
        let best = module.function_named("f").unwrap();
        let versions = |name: &str| functions.named(name).iter().map(|f| f.address()).collect::<Vec<_>>();
        assert_eq!(versions("f").len(), 2);
        assert_eq!(versions("f@@V2"), [best.address()], "the default version is the best");
        assert_eq!(versions("f@V1"), versions("f")[1..]);
        assert!(versions("f@V2").is_empty() && versions("f@@V1").is_empty() && versions("f@@V3").is_empty());
        let name = best.names().find(|name| name.plain() == "f").unwrap();
        assert_eq!(
            (name.version(), name.versioned(), name.is_default_version()),
            (Some("V2"), "f@@V2", true)
        );
    }
}

#[test]
fn usdt_probes_are_read() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "#define _SDT_HAS_SEMAPHORES 1\n#include <sys/sdt.h>\n\
        unsigned short demo_twice_semaphore __attribute__((section(\".probes\")));\n\
        unsigned short demo_none_semaphore __attribute__((section(\".probes\")));\n\
        int main(int n, char **v) { DTRACE_PROBE2(demo, twice, n, v); DTRACE_PROBE(demo, none); return 0; }";
    std::fs::write(folder.path().join("probe.c"), text).unwrap();
    let header = run(std::process::Command::new("gcc").arg("-E").arg(folder.path().join("probe.c")));
    if header.is_none() {
        return trapless_testing::skip!("no sys/sdt.h");
    }
    compile("gcc", folder.path(), ("probe.c", text), "usdt", &["-O0"]);
    tool(folder.path(), "strip", &["usdt", "-o", "stripped"]);
    let expected = open(folder.path().join("usdt")).function_named("main").unwrap().range();
    for name in ["usdt", "stripped"] {
        let module = open(folder.path().join(name));
        let probes = module.usdt().unwrap();
        let seen: Vec<_> = probes.iter().map(|p| (&*p.provider, &*p.name, p.arguments.len())).collect();
        assert_eq!(seen, [("demo", "twice", 2), ("demo", "none", 0)], "{name}");
        for probe in probes {
            assert!(expected.contains(&probe.location));
            assert_eq!(module.bytes_at(probe.location)[0], 0x90, "a nop");
            assert_eq!(probe.base_adjustment, 0);
            let semaphore = probe.semaphore.unwrap();
            assert!(
                module
                    .segments()
                    .iter()
                    .any(|s| s.writable && (s.address..s.address + s.memory_size).contains(&semaphore))
            );
        }
        let first = &probes[0].arguments[0];
        assert_eq!((first.size, first.is_signed), (4, true));
        assert!(!first.operand.is_empty());
    }
    assert!(
        open(compile("gcc", folder.path(), ("e.c", "int main() {}"), "none", &[])).usdt().unwrap().is_empty()
    );
}

#[test]
fn lines_and_read_only_data() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "const int numbers[] = {1, 2, 3, 4};\nint variable = 7;\nint main(void) {\n  return numbers[variable];\n}\n";
    for flags in [&["-O0", "-g"][..], &["-O0", "-g", "-gz"], &["-O0", "-g", "-no-pie"]] {
        let module = open(compile("gcc", folder.path(), ("l.c", text), "lines", flags));
        let main = module.function_named("main").unwrap();
        let SourceLine { file, line } = module.source_line(main.address()).unwrap();
        assert!(file.ends_with("/l.c") && line == 3, "{file}:{line}");
        assert_eq!(module.source_line(0), None);
        assert_eq!(module.source_line(u64::MAX), None);

        let symbols = run(std::process::Command::new("nm").arg(module.path())).unwrap();
        let address = |name: &str| {
            let line = symbols.lines().find(|line| line.ends_with(name)).unwrap();
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        let numbers: Vec<u8> = (1..=4_i32).flat_map(i32::to_le_bytes).collect();
        assert!(module.read_only_data_at(address(" numbers")).starts_with(&numbers));
        assert!(module.read_only_data_at(address(" variable")).is_empty());
        assert!(module.read_only_data_at(main.address()).is_empty());
        let offset = module.offset_of_address(main.address()).unwrap();
        assert_eq!(module.address_of_offset(offset), Some(main.address()));
        assert_eq!(module.code(main.range()).unwrap().len() as u64, main.size());
    }
}

#[test]
fn c1_landing_pads_are_where_the_compiler_marked_them() {
    if skip_without(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "#include <stdexcept>\n#include <string>\nvoid may_throw(int n) { if (n > 2) throw std::runtime_error(\"n\"); }\n\
        int guarded(int n) { std::string text(n, 'x'); try { may_throw(n); return 1; }\n\
        catch (const std::exception &) { return 2; } catch (int) { may_throw(1); return 3; } }\n\
        int main(int n, char **) { return guarded(n); }";
    for flags in [&["-O0"][..], &["-O2"], &["-O2", "-no-pie"], &["-O2", "-static"]] {
        // With this flag, gcc starts landing pads with endbr64: the unwinder jumps there indirectly.
        let flags = [flags, &["-fcf-protection=full"]].concat();
        let module = open(compile("g++", folder.path(), ("e.cc", text), "throws", &flags));
        let guarded: Vec<_> = module
            .functions()
            .iter()
            .filter(|function| function.name().plain().starts_with("_Z7guardedi"))
            .map(|function| function.range())
            .collect();
        let pads = module.landing_pads();
        let ours: Vec<_> =
            pads.iter().filter(|pad| guarded.iter().any(|range| range.contains(pad))).collect();
        assert!(ours.len() >= 2, "{flags:?}: {pads:x?}");
        for &&pad in &ours {
            assert_eq!(module.bytes_at(pad)[..4], [0xf3, 0x0f, 0x1e, 0xfa], "{flags:?}: {pad:#x}");
        }
    }
}
