//! Definitions and headers, read as a script's.

use super::*;
use crate::source::Sources;
use crate::syntax::ast::ExprIds;
use crate::syntax::attach::AttachContext;
use crate::syntax::files::memory::Memory;
use crate::syntax::parse_program;

use proptest::prelude::*;

fn read(text: &str, files: &Memory) -> (Definitions, String) {
    let mut sources = Sources::default();
    let script = sources.add("stdin", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let program =
        parse_program(&sources, script, &AttachContext::default(), &mut ExprIds::default(), &mut diagnostics);
    let options = Options { include_paths: vec!["inc".into()], ..Options::default() };
    let definitions = define(&program.c, &options, files, &mut sources, &mut diagnostics);
    (definitions, diagnostics.render(&sources))
}

fn defined(text: &str) -> Definitions {
    let (definitions, told) = read(text, &Memory::default());
    assert_eq!(told, "", "{text}");
    definitions
}

/// The members of a struct as text.
fn members(definitions: &Definitions, name: &str) -> Vec<String> {
    let record = definitions.structs.get(name).or(definitions.unions.get(name)).unwrap();
    assert!(record.complete);
    let one = |member: &Member| {
        let name = member.name.as_deref().unwrap_or("_");
        let bits = member.bits.map(|bits| format!(":{bits}")).unwrap_or_default();
        format!("{name}{bits} {}", shown(&member.of))
    };
    record.members.iter().map(one).collect()
}

fn shown(of: &Type) -> String {
    match of {
        Type::Pointer(inner) => format!("*{}", shown(inner)),
        Type::Array(inner, length) => format!("[{length}]{}", shown(inner)),
        Type::Named(name) => name.clone(),
        Type::Struct(name) => format!("struct {name}"),
        Type::Union(name) => format!("union {name}"),
        Type::Enum(name) => format!("enum {name}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn members_have_these_types() {
    let table: [(&str, &[&str]); 20] = [
        ("int a;", &["a Int(Signed)"]),
        ("int a", &["a Int(Signed)"]),
        ("int a, *b, c[4];", &["a Int(Signed)", "b *Int(Signed)", "c [4]Int(Signed)"]),
        ("unsigned long int a; long unsigned b;", &["a Long(Unsigned)", "b Long(Unsigned)"]),
        ("long long a; unsigned long long int b;", &["a LongLong(Signed)", "b LongLong(Unsigned)"]),
        ("char a; signed char b; unsigned char c;", &["a Char(Plain)", "b Char(Signed)", "c Char(Unsigned)"]),
        (
            "short a; unsigned b; _Bool c; bool d;",
            &["a Short(Signed)", "b Int(Unsigned)", "c Bool", "d Bool"],
        ),
        ("float a; double b; long double c;", &["a Float", "b Double", "c LongDouble"]),
        ("__int128 a; unsigned __int128 b;", &["a Int128(Signed)", "b Int128(Unsigned)"]),
        (
            "uint8 a; int64 b;",
            &["a Sized { sign: Unsigned, bytes: 1 }", "b Sized { sign: Signed, bytes: 8 }"],
        ),
        ("const volatile void * restrict a;", &["a *Void"]),
        ("char *a[2][3]; char (*b)[5];", &["a [2][3]*Char(Plain)", "b *[5]Char(Plain)"]),
        ("int (*a)(void *, int); void (*b[3])(void);", &["a *Function", "b [3]*Function"]),
        ("int (*(*a)(int))(char);", &["a *Function"]),
        (
            "int a : 3; unsigned : 2; int : 0; int b : 1 + 1;",
            &["a:3 Int(Signed)", "_:2 Int(Unsigned)", "_:0 Int(Signed)", "b:2 Int(Signed)"],
        ),
        ("int a[]; int b[0];", &["a [0]Int(Signed)", "b [0]Int(Signed)"]),
        (
            "char a[8 * sizeof(long)]; char b[sizeof(int *) - 'a' + 97];",
            &["a [64]Char(Plain)", "b [8]Char(Plain)"],
        ),
        (
            "struct Other *a; union U b; enum E c; size_t d;",
            &["a *struct Other", "b union U", "c enum E", "d size_t"],
        ),
        ("struct { int x; }; union { int y; } z;", &["_ struct (unnamed 1)", "z union (unnamed 2)"]),
        ("_Static_assert(1, \"\"); enum { A, B } a : 2; ;", &["a:2 enum (unnamed 1)"]),
    ];
    for (body, expected) in table {
        assert_eq!(members(&defined(&format!("struct S {{ {body} }};")), "S"), expected, "{body}");
    }
}

#[test]
fn nested_records_are_defined_too() {
    let definitions =
        defined("struct A { struct B { int x; } b; union C { int y; }; enum D { E = 3, F } d; }");
    assert_eq!(members(&definitions, "A"), ["b struct B", "d enum D"]);
    assert_eq!(members(&definitions, "B"), ["x Int(Signed)"]);
    assert_eq!(members(&definitions, "C"), ["y Int(Signed)"]);
    assert_eq!(definitions.enumerators["F"], Enumerator { of: "D".to_string(), value: 4 });
}

#[test]
fn enums_count_and_refer_to_each_other() {
    let definitions = defined("enum A { X, Y = 5, Z, W = Y | 8, N = -1 } enum B { Q = Z << 2 };");
    assert_eq!(
        definitions.enums["A"].enumerators,
        [("X", 0), ("Y", 5), ("Z", 6), ("W", 13), ("N", -1)].map(|(name, value)| (name.to_string(), value))
    );
    assert_eq!(definitions.enumerators["Q"].value, 24);
}

#[test]
fn attributes_say_where_members_are() {
    let definitions = defined(
        "struct A { char a; int b __attribute__((aligned(16))); char c __attribute__((packed)); } __attribute__((packed));\n\
         struct __attribute__((__aligned__)) B { int x; } __attribute__((unused));\n\
         #pragma pack(push, 1)\nstruct C { int x; };\n#pragma pack(pop)\nstruct D { int x; };",
    );
    let layout = |name: &str| definitions.structs[name].layout;
    assert_eq!(layout("A"), Layout { packed: true, ..Layout::default() });
    assert_eq!(layout("B"), Layout { aligned: Some(16), ..Layout::default() });
    assert_eq!(layout("C"), Layout { pack: Some(1), ..Layout::default() });
    assert_eq!(layout("D"), Layout::default());
    let members = &definitions.structs["A"].members;
    assert_eq!(members[1].layout.aligned, Some(16));
    assert!(members[2].layout.packed);
}

#[test]
fn typedefs_are_kept() {
    let definitions =
        defined("typedef unsigned int u32; typedef struct { u32 x; } S, *P; typedef int (*F)(void);");
    let typedefs: Vec<String> =
        definitions.typedefs.iter().map(|(name, of)| format!("{name} {}", shown(of))).collect();
    assert_eq!(
        typedefs,
        ["F *Function", "P *struct (unnamed 1)", "S struct (unnamed 1)", "u32 Int(Unsigned)"]
    );
}

#[test]
fn directives_choose_what_is_read() {
    let text = "#define A 1\n#if A + 1 == 2 && !defined(B) && defined A\nstruct X { int a; };\n#else\nstruct Y { int a; };\n\
                #endif\n#ifdef B\nstruct Z { int a; };\n#elif 0\nstruct W { int a; };\n#else\nstruct V { int a; };\n#endif\n\
                #if 0\n#if 1\n#else\nstruct U { int a; };\n#endif\n#elif UNKNOWN\nstruct T { int a; };\n#endif\n\
                #undef A\n#ifndef A\nstruct R { int a; };\n#endif";
    let names: Vec<String> = defined(text).structs.into_keys().collect();
    assert_eq!(names, ["R", "V", "X"]);
}

#[test]
fn macros_are_expanded_in_definitions() {
    let text = "#define N 2\n#define TWICE(x) ((x) * N)\n#define FIELD(type, name) type f_##name\n\
                #define LIST(first, ...) first __VA_ARGS__;\n#define SELF SELF\n#define A B\n#define B A\n\
                struct S { char a[TWICE(N + 1)]; FIELD(int, x); LIST(int, *m, n) struct SELF *s; struct A *t; };";
    assert_eq!(
        members(&defined(text), "S"),
        [
            "a [6]Char(Plain)",
            "f_x Int(Signed)",
            "m *Int(Signed)",
            "n Int(Signed)",
            "s *struct SELF",
            "t *struct A"
        ]
    );
}

#[test]
fn headers_are_found_and_read_once() {
    let files = Memory::new([
        ("a.h", "#pragma once\n#include <sub/b.h>\nstruct A { b_t x; };"),
        ("inc/sub/b.h", "#ifndef B_H\n#define B_H\n#include \"c.h\"\ntypedef c_t b_t;\n#endif"),
        ("inc/sub/c.h", "typedef int c_t;\nstatic inline int f(int x) { return x; }\nextern int v[], w;\n"),
        (
            "inc/d.h",
            "extern \"C\" {\nint g(void) __attribute__((nothrow));\nstruct D { int x; };\n}\nstruct E { int y; };",
        ),
        (
            "inc/e.h",
            "int broken(typeof(1) x;\n@ what is this;\nstruct F { int x; };\nstruct G { typeof(x) bad; };\n",
        ),
    ]);
    let text = "#include \"a.h\"\n#include \"a.h\"\n#include <d.h>\n#include <e.h>\n#include <stddef.h>\nstruct S { size_t n; };";
    let (definitions, told) = read(text, &files);
    assert_eq!(told, "");
    let names: Vec<&String> = definitions.structs.keys().filter(|name| !name.starts_with('(')).collect();
    assert_eq!(names, ["A", "D", "E", "F", "S"]);
    assert_eq!(definitions.typedefs["b_t"], Type::Named("c_t".to_string()));
    assert_eq!(definitions.typedefs["size_t"], Type::Long(Sign::Unsigned));
}

#[test]
fn what_is_wrong_in_the_script_is_told() {
    let table = [
        (
            "#include <lol/no.h>",
            "stdin:1:1-20: ERROR: definitions.h:2:10: fatal error: 'lol/no.h' file not found",
        ),
        ("struct S { int };", "stdin:1:16-17: ERROR: expected a member's name"),
        ("struct S { int a[n]; };", "stdin:1:20-21: ERROR: the length of an array must be a constant"),
        ("struct S { int a int b; };", "stdin:1:18-21: ERROR: expected ';'"),
        ("struct S { int a; };\nstruct S { int b; };", "stdin:2:8-9: ERROR: redefinition of 'S'"),
        ("enum E { A = x };", "stdin:1:14-15: ERROR: the value of an enumerator must be a constant"),
        ("#endif", "stdin:1:1-7: ERROR: #endif without #if"),
        ("#if 1 +\n#endif", "stdin:1:1-8: ERROR: invalid condition"),
        ("#error never\n", "stdin:1:1-13: ERROR: #error never"),
        ("#define 1 2\n", "stdin:1:1-12: ERROR: macro name must be an identifier"),
    ];
    for (text, expected) in table {
        let told = read(text, &Memory::default()).1;
        assert_eq!(told.lines().next().unwrap_or_default(), expected, "{text}");
    }
}

#[test]
fn nothing_is_read_without_bound() {
    let deep = "struct S {".repeat(5000);
    let mut bomb = String::from("#define A0 x x\n");
    for level in 1..60 {
        bomb.push_str(&format!("#define A{level} A{0} A{0}\n", level - 1));
    }
    let files = Memory::new([("loop.h", "#include \"loop.h\"\n")]);
    let table = [
        (deep + "int x;" + &"} x;".repeat(5000), "nested too deeply"),
        (format!("struct S {{ int {}x; }};", "*".repeat(100_000)), "nested too deeply"),
        (format!("struct S {{ int {}x{}; }};", "(*".repeat(10_000), ")".repeat(10_000)), "nested too deeply"),
        (bomb + "struct S { int A59; };", "macros of C write too much"),
        ("#include \"loop.h\"".to_string(), "'loop.h' is included from too many files"),
        (
            (0..20_000).map(|n| format!("#define B{n} B{}\n", n + 1)).collect::<String>()
                + "struct S { int B0; };",
            "macros of C nest too deeply",
        ),
        ("#if 1\n".repeat(20_000), "conditions nest too deeply"),
        (
            "#define F(x) x\nstruct S { ".to_string() + &"F( ".repeat(50_000) + "};",
            "a call of a macro has no end",
        ),
        (format!("#if {}1\n#endif", "(".repeat(100_000)), "invalid condition"),
    ];
    for (text, expected) in table {
        let told = read(&text, &files).1;
        assert!(told.contains(expected), "{expected}: {}", told.lines().next().unwrap_or_default());
    }
}

/// Pieces that headers are made of, for texts that are nearly right.
const PIECES: [&str; 52] = [
    "struct S",
    "union U",
    "enum E",
    "typedef",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "*",
    "int",
    "unsigned",
    "long",
    "x",
    "y",
    "1",
    "0x10UL",
    "'a'",
    "\"s\"",
    "=",
    "+",
    "-",
    "<<",
    "?",
    "sizeof",
    "__attribute__",
    "((packed))",
    "((aligned(8)))",
    "\n#define A",
    "\n#define F(x)",
    "\n#define V(x, ...)",
    "A",
    "F",
    "V",
    "__VA_ARGS__",
    "##",
    "#",
    "\n#if",
    "\n#ifdef A",
    "\n#else",
    "\n#elif 1",
    "\n#endif",
    "\n#undef A",
    "\n#pragma pack(1)",
    "defined",
    "\n",
    "\\\n",
    "/* */",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_header_is_read(pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..80)) {
        let header = pieces.join(" ");
        let files = Memory::new([("any.h", header.as_str())]);
        read("#include \"any.h\"\nstruct Own { A x; };", &files);
        read(&format!("struct Own {{ {header} }};\n#define M {header}"), &files);
    }

    #[test]
    fn any_bytes_are_read(text in "\\PC{0,200}") {
        let files = Memory::new([("any.h", text.as_str())]);
        read("#include \"any.h\"\n", &files);
    }
}
