//! Whole scripts with what they import and include.

use proptest::prelude::*;

use super::*;
use crate::syntax::files::memory::Memory;

fn loaded(text: &str, files: &Memory) -> (Option<Script>, String) {
    let (script, sources, diagnostics) = loaded_with_sources(text, files);
    (script, diagnostics.render(&sources))
}

fn loaded_with_sources(text: &str, files: &Memory) -> (Option<Script>, Sources, Diagnostics) {
    let mut sources = Sources::default();
    let script = sources.add("dir/script.bt", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let options = Options {
        attach: AttachContext::default(),
        import_paths: vec!["lib".to_string()],
        environment: vec![("BPFTRACE_MAX_PROBES".to_string(), "9".to_string())],
        c: c::Options { include_paths: vec!["inc".to_string()], ..c::Options::default() },
        is_native: &|_| false,
        files,
    };
    let script = load(&mut sources, script, &options, &mut diagnostics);
    (script, sources, diagnostics)
}

/// The only statement of the last probe, printed.
fn last(text: &str, files: &Memory) -> String {
    let (script, sources, diagnostics) = loaded_with_sources(text, files);
    let script = script.unwrap_or_else(|| panic!("{text}\n{}", diagnostics.render(&sources)));
    let probe = script.probes.last().unwrap().clone();
    let span = probe.span;
    let items = vec![Item::Probe(probe)];
    let (c, imports, comments) = (Vec::new(), Vec::new(), Vec::new());
    let program =
        super::super::ast::Program { header: None, c, config: None, imports, items, comments, span };
    let printed = super::super::print(&program, &sources);
    printed.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn imports_come_before_the_script() {
    let files = Memory::new([
        (
            "dir/a.bt",
            "import \"b.bt\"; import \"a.bt\"; begin { a1(); } macro m(x) { x + 1 } let @m = hash(1);",
        ),
        ("lib/b.bt", "begin { b1(); } fn f($x : int8) : void { }"),
        ("lib/all/y.bt", "begin { y1(); }"),
        ("lib/all/x.bt", "begin { x1(); }"),
        ("lib/all/z.txt", "not a script"),
        ("lib/c.h", "typedef int c_int;\n#define SEVEN 7\n"),
    ]);
    let text =
        "import \"a.bt\"; import \"all\"; import \"c.h\"; import \"stdlib\"; begin { print(m(SEVEN)); }";
    let (script, told) = loaded(text, &files);
    assert_eq!(told, "");
    let script = script.unwrap();
    assert_eq!((script.probes.len(), script.maps.len(), script.functions.len()), (5, 1, 1));
    assert!(script.definitions.typedefs.contains_key("c_int"));
    assert_eq!(script.settings.max_probes, 9);
    assert_eq!(last(text, &files), "begin { print({ 7 + 1 }); }");
}

#[test]
fn what_cannot_be_imported_is_told() {
    let files = Memory::new([
        ("dir/x.txt", ""),
        ("dir/k.bpf.c", ""),
        ("dir/conf.bt", "config = { max_strlen = 1 }"),
        ("dir/bad.bt", "begin { 1 2 }"),
        ("open/o.bt", ""),
    ]);
    let table = [
        ("import \"none.bt\"; begin { }", "ERROR: Unable to find suitable path for import"),
        ("import \"none.bt\"; begin { }", "HINT: checked: dir/none.bt,lib/none.bt"),
        ("import \"x.txt\"; begin { }", "ERROR: unknown import type: \"x.txt\""),
        (
            "import \"k.bpf.c\"; begin { }",
            "ERROR: \"k.bpf.c\" is code for the kernel, which cannot run in user space",
        ),
        ("import \"conf.bt\"; begin { }", "dir/conf.bt:1:1-28: ERROR: invalid `config` within import"),
        ("import \"bad.bt\"; begin { }", "dir/bad.bt:1:11-12: ERROR: syntax: expected ';'"),
        ("begin { import \"x.h\"; }", "ERROR: an import in a block brings code for the kernel"),
        (
            "macro m() { import \"x.h\"; } begin { m(); }",
            "ERROR: an import in a block brings code for the kernel",
        ),
    ];
    for (text, expected) in table {
        let (script, told) = loaded(text, &files);
        assert!(script.is_none() && told.contains(expected), "{text}\n{told}");
    }
    let open = loaded("import \"../open/o.bt\"; begin { }", &Memory::new([("dir/../open/o.bt", "")]));
    assert!(open.0.is_some());
    let mut sources = Sources::default();
    let script = sources.add("open/s.bt", "import \"o.bt\"; begin { }").unwrap();
    let mut diagnostics = Diagnostics::default();
    let options = Options {
        attach: AttachContext::default(),
        import_paths: Vec::new(),
        environment: Vec::new(),
        c: c::Options::default(),
        is_native: &|_| false,
        files: &files,
    };
    assert!(load(&mut sources, script, &options, &mut diagnostics).is_none());
    let expected =
        "cowardly refusing to import from a directory with global write permissions: \"open/o.bt\"";
    assert!(diagnostics.render(&sources).contains(expected));
}

#[test]
fn constants_of_c_are_put_in() {
    let none = Memory::default();
    let table = [
        ("#define A 1 + 2\nbegin { print(A * 3); }", "begin { print((1 + 2) * 3); }"),
        ("#define A B\n#define B \"x\"\nbegin { print(A); }", "begin { print(\"x\"); }"),
        ("#define ADD(a, b) a + b\nbegin { print(ADD(1, $x * 2)); }", "begin { print(1 + $x * 2); }"),
        ("#define ADD(a) a + 1\nbegin { print(ADD(ADD(2))); }", "begin { print(2 + 1 + 1); }"),
        ("#define SELF SELF\nbegin { print(SELF); }", "begin { print(SELF); }"),
        ("#define F(x) x\nbegin { print(F); }", "begin { print(F); }"),
        ("#define T int\nbegin { print(sizeof(T)); }", "begin { print(sizeof(int)); }"),
        ("#define BAD {\nbegin { print(1); }", "begin { print(1); }"),
        ("#define A 1\nbegin { @a[A] = A; }", "begin { @a[1] = 1; }"),
        ("#define E (1 << 3)\nenum X { Y = E };\nbegin { print(Y); }", "begin { print(Y); }"),
    ];
    for (text, expected) in table {
        assert_eq!(last(text, &none), expected, "{text}");
    }
    let table = [
        ("#define M {\nbegin { M }", "unable to expand macro as an expression: {"),
        ("#define M M + 1\nbegin { print(M); }", "M:1:1-2: ERROR: Macro recursion: M"),
        ("#define A B + 1\n#define B A + 1\nbegin { print(A); }", "Macro recursion: A->B"),
    ];
    for (text, expected) in table {
        let told = loaded(text, &none).1;
        assert!(told.contains(expected), "{text}\n{told}");
    }
}

#[test]
fn a_missing_header_is_told_by_its_place_among_the_definitions() {
    let text = "struct S {\n  int x;\n}\n\n\n// why\n#include <none.h>\nbegin { }";
    let told = loaded(text, &Memory::default()).1;
    assert!(told.starts_with(
        "dir/script.bt:7:1-18: ERROR: definitions.h:5:10: fatal error: 'none.h' file not found"
    ));
}

#[test]
fn constants_have_a_bound() {
    let mut text = String::from("#define A0 1 + 1\n");
    for level in 1..60 {
        text.push_str(&format!("#define A{level} A{0} + A{0}\n", level - 1));
    }
    let (script, told) = loaded(&format!("{text}begin {{ print(A59); }}"), &Memory::default());
    assert!(script.is_none());
    assert!(told.contains("macros make this nested too deeply or too long"), "{told}");
}

#[test]
fn a_wrong_environment_is_an_error_without_a_place() {
    let mut sources = Sources::default();
    let script = sources.add("stdin", "begin { }").unwrap();
    let mut diagnostics = Diagnostics::default();
    let options = Options {
        attach: AttachContext::default(),
        import_paths: Vec::new(),
        environment: vec![("BPFTRACE_STACK_MODE".to_string(), "odd".to_string())],
        c: c::Options::default(),
        is_native: &|_| false,
        files: &super::super::files::NoFiles,
    };
    assert!(load(&mut sources, script, &options, &mut diagnostics).is_none());
    assert!(diagnostics.render(&sources).starts_with("ERROR: stack_mode: Invalid value for stack_mode"));
}

/// Pieces of macros and of what calls them.
const PIECES: [&str; 32] = [
    "macro a($x) {",
    "macro a(x) {",
    "macro b(@x, y) {",
    "macro c() {",
    "begin {",
    "}",
    "a($x)",
    "a(1)",
    "b(@x, a(2))",
    "c()",
    "c",
    "x",
    "$x",
    "@x",
    "y",
    "=",
    "+",
    ";",
    "let $x",
    "for ($x : @x) {",
    "sizeof(x)",
    "(x*)",
    "typeof(x)",
    "a(typeof(x))",
    "offsetof(x, y)",
    "{",
    "if (x) {",
    "$x++",
    "&$x",
    "\n#define x y + 1\n",
    "\n#define y x\n",
    "1",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_are_loaded_or_refused(pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..40)) {
        let text = format!("#define x 1\nmacro a(x) {{ {} }} begin {{ {} }}", pieces.join(" "), pieces.join("; "));
        for text in [pieces.join(" "), text] {
            let (script, told) = loaded(&text, &Memory::default());
            prop_assert_eq!(script.is_none(), told.contains("ERROR"), "{}", text);
        }
    }
}
