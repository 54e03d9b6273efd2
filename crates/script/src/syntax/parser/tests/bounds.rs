//! Nothing is read without bound, and no text is too odd to be read or refused.

use proptest::prelude::*;

use super::super::{MAX_DEPTH, MAX_ERRORS};
use super::{accepted, read};
use crate::source::Sources;

#[test]
fn depth_has_a_bound() {
    let many = 100_000;
    let table = [
        "(".repeat(many),
        "-".repeat(many),
        "!".repeat(many) + "1",
        "{".repeat(many),
        "@[".repeat(many),
        "f(".repeat(many),
        "(int8)".repeat(many) + "1",
        "1+".repeat(many) + "1",
        "1?".repeat(many),
        "1?1:".repeat(many) + "1",
        "$x".to_string() + &".0".repeat(many),
        "$x".to_string() + &"[1]".repeat(many),
        "if (1) { ".repeat(many),
        "if 1 {} else ".repeat(many) + "{}",
        "comptime ".repeat(many) + "1",
        "sizeof(".repeat(many),
        "sizeof(int8".to_string() + &"*".repeat(many) + ")",
        "(typeof(".repeat(many),
        "@a[{@a[{".repeat(many),
        "(a[".repeat(many),
        "while (1) { ".repeat(many),
    ];
    for text in table {
        let told = read(&format!("begin {{ {text} }}")).1;
        assert!(told.contains("ERROR"), "{}", &text[..20]);
        let errors = told.lines().filter(|line| line.contains("ERROR")).count();
        assert!(errors <= MAX_ERRORS + 1, "{}: {errors}", &text[..20]);
    }
}

#[test]
fn as_deep_as_allowed_is_read() {
    let depth = MAX_DEPTH as usize / 2 - 2;
    for text in
        ["(".repeat(depth) + "1" + &")".repeat(depth), "1+".repeat(depth) + "1", "!".repeat(depth) + "1"]
    {
        accepted(&format!("begin {{ {text} }}"));
    }
}

/// Pieces that scripts are made of, for texts that are nearly right.
const PIECES: [&str; 64] = [
    "begin",
    "end",
    "uprobe:/bin/x:f",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "/",
    "//x\n",
    "/*",
    "*/",
    "$x",
    "$1",
    "$#",
    "$",
    "@",
    "@m",
    "&",
    "*",
    "-",
    "--",
    "++",
    "+",
    "=",
    "==",
    "+=",
    "<<=",
    "!",
    "~",
    "?",
    ":",
    ".",
    "..",
    "->",
    "1",
    "0x",
    "1e",
    "1_",
    "5ms",
    "\"a\"",
    "\"",
    "\\",
    "if",
    "else",
    "while",
    "for",
    "unroll",
    "let",
    "macro m",
    "fn f",
    "import",
    "config =",
    "sizeof",
    "offsetof",
    "typeof",
    "comptime",
    "struct S",
    "#define A",
    "\n",
    "ä",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let (program, told) = read(&text);
        if told.is_empty() {
            prop_assert!(program.span.end as usize == text.len());
        }
    }

    #[test]
    fn any_pieces_are_read_or_refused(pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..60)) {
        for joint in ["", " "] {
            let text = pieces.join(joint);
            let (program, told) = read(&text);
            // What is read without an error is printed and read as the same.
            if told.is_empty() {
                let sources = {
                    let mut sources = Sources::default();
                    sources.add("stdin", text.as_str()).unwrap();
                    sources
                };
                let printed = crate::syntax::print(&program, &sources);
                let (again, told) = read(&printed);
                prop_assert_eq!(told, "", "{}\n{}", text, printed);
                prop_assert_eq!(again, program, "{}\n{}", text, printed);
            }
        }
    }

    #[test]
    fn any_change_of_a_script_is_read_or_refused(at in 0_usize..400, length in 0_usize..30, piece in proptest::sample::select(PIECES.to_vec())) {
        let script = "#include <a.h>\nstruct S { int x; } __attribute__((packed));\nconfig = { a = 1; b = \"x\" }\nimport \"y\";\n\
                      let @m = hash(5);\nmacro m($a, @b, c) { $a + c }\nuprobe:/bin/x:\"a::b\", begin /pid == 1 && @m[1, \"a\"] > 2/ {\n\
                      $x = (struct S *)arg0; @m[$x->x, str(arg1, 64)] = count(); if ($x.0 ?: 5) { print((1, (a=2))) } else { return }\n\
                      for ($i : 0..5) { @[ustack(5)]++ } unroll (3) { _ = f({ let $y : int8[4]; $y }) } }\n";
        let at = (0..=at.min(script.len())).rev().find(|&at| script.is_char_boundary(at)).unwrap_or(0);
        let end = (at + length).min(script.len());
        let changed = format!("{}{piece}{}", &script[..at], &script[end..]);
        read(&changed);
    }
}
