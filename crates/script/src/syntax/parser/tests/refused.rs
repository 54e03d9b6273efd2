//! What is refused, and how it is told.

use super::read;

#[test]
fn what_is_wrong_is_told_as_bpftrace_does() {
    let table = [
        ("begin", "1:6-6: ERROR: syntax: expected '{'"),
        ("begin {", "1:8-8: ERROR: syntax: expected '}'"),
        ("begin { 1 2 }", "1:11-12: ERROR: syntax: expected ';'"),
        ("begin { f(1 2) }", "1:13-14: ERROR: syntax: expected ')'"),
        ("begin { 1 + }", "1:13-14: ERROR: syntax: expected expression"),
        ("begin { $x = }", "1:14-15: ERROR: syntax: expected expression"),
        ("begin { \"abc }", "1:15-15: ERROR: syntax: unterminated string"),
        ("begin { \"\\q\" }", "1:11-12: ERROR: syntax: invalid escape character '\\q'"),
        ("begin { \"\\xg\" }", "1:12-13: ERROR: syntax: invalid hex escape sequence"),
        ("begin { \"\\777\" }", "1:10-14: ERROR: syntax: octal escape sequence out of range '\\777'"),
        ("begin { 1_ }", "1:10-11: ERROR: syntax: trailing underscore in integer literal"),
        ("begin { 0x1_ }", "1:12-13: ERROR: syntax: trailing underscore in integer literal"),
        ("begin { 12e4 }", "1:9-13: ERROR: syntax: coefficient part of scientific literal must be 1-9: 12e4"),
        ("begin { 0b11 }", "1:10-13: ERROR: syntax: invalid integer suffix 'b11'"),
        ("begin { 1zz }", "1:10-12: ERROR: syntax: invalid integer suffix 'zz'"),
        ("begin { 5e }", "1:9-11: ERROR: syntax: invalid trailing bytes: 5e"),
        (
            "begin { 99999999999999999999 }",
            "1:9-29: ERROR: syntax: overflow error, maximum value is 18446744073709551615: 99999999999999999999",
        ),
        ("begin { $0 }", "1:9-11: ERROR: syntax: param $0 is out of integer range [1, 9223372036854775807]"),
        ("begin { $ x }", "1:9-10: ERROR: syntax: expected identifier after '$'"),
        ("begin { 1++ }", "1:10-12: ERROR: syntax: increment/decrement requires a variable or map"),
        ("begin { ++1 }", "1:11-12: ERROR: syntax: increment/decrement requires a variable or map"),
        (
            "begin { &1 }",
            "1:10-11: ERROR: syntax: address-of operator (&) can only be used on a map or variable",
        ),
        ("begin { $x.1 = 2 }", &format!("1:9-17: ERROR: syntax: {TUPLES}")),
        ("begin { $x->a = 2; }", &format!("1:9-18: ERROR: syntax: {TUPLES}")),
        ("begin { $x[1] = 2; }", "1:9-18: ERROR: syntax: invalid assignment target"),
        ("begin { (a=1, a=2) }", "1:15-18: ERROR: syntax: Named argument list already contains name: a"),
        ("begin { (a=1, 2) }", "1:15-16: ERROR: syntax: expected identifier"),
        ("begin { let x; }", "1:13-14: ERROR: syntax: expected variable after 'let'"),
        ("begin { let $x : 1; }", "1:18-19: ERROR: syntax: expected type name"),
        ("begin { for (x : @) { } }", "1:14-15: ERROR: syntax: expected variable in for loop"),
        ("begin { for ($x : 1) { } }", "1:22-23: ERROR: syntax: expected map or range in for loop"),
        ("begin { for ($i : 1+1..3) { } }", "1:20-21: ERROR: syntax: expected ')'"),
        ("begin { if (x=1) { } }", "1:14-15: ERROR: syntax: expected ')'"),
        ("begin { if 1 2 }", "1:14-15: ERROR: syntax: expected '{'"),
        ("begin { if (1) { } else 1 }", "1:25-26: ERROR: syntax: expected '{' or 'if' after 'else'"),
        ("begin { a ? b }", "1:15-16: ERROR: syntax: expected ':'"),
        ("begin { $x. }", "1:13-14: ERROR: syntax: expected field name after '.'"),
        ("begin { $x-> }", "1:14-15: ERROR: syntax: expected field name after '->'"),
        ("begin { break 1 }", "1:15-16: ERROR: syntax: expected ';'"),
        ("begin { sizeof() }", "1:16-17: ERROR: syntax: expected expression"),
        ("begin { offsetof(struct a) }", "1:26-27: ERROR: syntax: expected ','"),
        ("begin { import x; }", "1:16-17: ERROR: syntax: expected string after 'import'"),
        ("begin /1 { }", "1:10-11: ERROR: syntax: expected '/' to close predicate"),
        ("begin, , { }", "1:8-9: ERROR: syntax: expected attach point"),
        ("config = { a }", "1:14-15: ERROR: syntax: expected '='"),
        ("config = { 1 = 2 }", "1:12-13: ERROR: syntax: expected config key"),
        ("config = { a = 1 b = 2 }", "1:18-19: ERROR: syntax: expected ';'"),
        ("config = { a = ; }", "1:16-17: ERROR: syntax: expected string, int, boolean, or ident"),
        ("config = { a = 1", "1:17-17: ERROR: syntax: expected ';'"),
        ("config = { } config = { } begin { }", "1:14-20: ERROR: syntax: duplicate config block"),
        ("begin { } config = { }", "1:11-17: ERROR: syntax: config must appear before probes and functions"),
        (
            "begin { } import \"x\";",
            "1:11-17: ERROR: syntax: root imports must appear before probes and functions",
        ),
        (
            "begin { } struct S { }",
            "1:11-23: ERROR: syntax: C definitions must appear before probes and functions",
        ),
        ("import \"x\" begin { }", "1:12-17: ERROR: syntax: expected ';' after import"),
        (
            "let @a = hash();",
            "1:15-16: ERROR: syntax: expected positive integer for map declaration max entries",
        ),
        (
            "let $a = 1;",
            "1:1-4: ERROR: syntax: root-level let statements need to be map declarations, e.g. let @a = hash(2);",
        ),
        ("macro m { }", "1:9-10: ERROR: syntax: expected '('"),
        ("macro m(1) { }", "1:9-10: ERROR: syntax: expected macro argument ($var, @map, or identifier)"),
        ("macro m(pid) { }", "1:9-12: ERROR: syntax: builtin 'pid' can't be used as a macro argument"),
        ("fn f(x) : void { }", "1:6-7: ERROR: syntax: expected variable in function argument"),
        ("fn f($x : int8) { }", "1:17-18: ERROR: syntax: expected ':'"),
        ("struct S { int x;", "1:12-12: ERROR: syntax: expected '}'"),
        (
            "struct S { } __attribute__(packed);",
            "1:27-28: ERROR: syntax: __attribute__ syntax error, expected '(('",
        ),
        ("asdf:x { }", "1:1-7: ERROR: Invalid probe type: asdf"),
    ];
    for (text, expected) in table {
        let told = read(text).1;
        let first = told.lines().next().unwrap_or_default();
        if text == "struct S { int x;" {
            assert!(first.ends_with("syntax: expected '}'"), "{first}");
            continue;
        }
        assert_eq!(first, format!("stdin:{expected}"), "{text}");
    }
}

const TUPLES: &str = "Tuples and records are immutable once created. Consider creating a new value and assigning it \
                      instead.";

#[test]
fn several_errors_are_told_at_once() {
    let text =
        "begin {\n  $x = ;\n  f(1;\n  if (1) { 2 +; 3; }\n  $y = 1;\n}\nend { 1 2 }\nasdf:x { }\nbegin { }";
    let (program, told) = read(text);
    let places: Vec<&str> = told.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(
        places,
        [
            "stdin:2:8-9: ERROR: syntax: expected expression",
            "stdin:3:6-7: ERROR: syntax: expected ')'",
            "stdin:4:15-16: ERROR: syntax: expected expression",
            "stdin:7:9-10: ERROR: syntax: expected ';'",
            "stdin:8:1-7: ERROR: Invalid probe type: asdf",
        ]
    );
    assert_eq!(program.items.len(), 4);
}

#[test]
fn a_slip_in_a_provider_is_seen_through() {
    let told = read("uporbe:/bin/x:f { }").1;
    assert_eq!(told.lines().last(), Some("HINT: did you mean 'uprobe'?"));
}
