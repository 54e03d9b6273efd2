//! Macros, expanded and printed.

use crate::diagnostics::Diagnostics;
use crate::source::Sources;
use crate::syntax::ast::*;
use crate::syntax::files::NoFiles;
use crate::syntax::{Options, load, print};

fn loaded(text: &str) -> Result<String, String> {
    let mut sources = Sources::default();
    let script = sources.add("stdin", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let options = Options {
        attach: Default::default(),
        import_paths: Vec::new(),
        environment: Vec::new(),
        c: Default::default(),
        is_native: &|name| matches!(name, "print" | "fail"),
        files: &NoFiles,
    };
    let Some(script) = load(&mut sources, script, &options, &mut diagnostics) else {
        return Err(diagnostics.render(&sources));
    };
    let span = script.probes[0].span;
    let items = script.probes.into_iter().map(Item::Probe).collect();
    let whole = Program {
        header: None,
        c: Vec::new(),
        config: None,
        imports: Vec::new(),
        items,
        comments: Vec::new(),
        span,
    };
    let printed = print(&whole, &sources);
    Ok(printed.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The body of the only probe, with the numbers of own variables left out.
fn body(text: &str) -> String {
    let printed = loaded(text).unwrap_or_else(|told| panic!("{text}\n{told}"));
    let mut out = String::new();
    let mut rest =
        printed.strip_prefix("begin { ").and_then(|text| text.strip_suffix(" }")).unwrap_or(&printed);
    while let Some(at) = rest.find("$$") {
        let word =
            rest[at + 2..].find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len() - at - 2);
        let name = &rest[at + 2..at + 2 + word];
        let mut parts: Vec<&str> = name.split('_').collect();
        parts.retain(|part| part.parse::<u32>().is_err());
        out.push_str(&rest[..at]);
        out.push_str("$$");
        out.push_str(&parts.join("_"));
        rest = &rest[at + 2 + word..];
    }
    out + rest
}

#[test]
fn calls_become_bodies() {
    let table = [
        ("macro m() { print(1); } begin { m(); }", "{ print(1); }"),
        ("macro m() { 1 } begin { print(m); }", "print({ 1 });"),
        ("macro m(x) { x + 1 } begin { print(m(2 * 3)); }", "print({ 2 * 3 + 1 });"),
        ("macro m(x) { x * 2 } begin { print(m(1 + 2)); }", "print({ (1 + 2) * 2 });"),
        ("macro m($x) { $x += 1; $x } begin { $y = 1; m($y); }", "$y = 1; { $y += 1; $y }"),
        ("macro m(@x) { @x[1] = 2; @x[1] } begin { m(@a); }", "{ @a[1] = 2; @a[1] }"),
        (
            "macro m(@x) { for ($kv : @x) { clear(@x); } &@x } begin { m(@a); }",
            "{ for ($$m_kv : @a) { clear(@a); } &@a }",
        ),
        // What is assigned to is the macro's own; what is only read is not.
        ("macro m() { $a = 1; $a + $b } begin { m(); }", "{ $$m_a = 1; $$m_a + $b }"),
        ("macro m() { let $a : int32; $a++; &$a } begin { m(); }", "{ let $$m_a : int32; $$m_a++; &$$m_a }"),
        // An argument keeps its own variables.
        (
            "macro m(x) { $a = x; $a + x } begin { $a = 1; m($a + 1); }",
            "$a = 1; { $$m_a = $a + 1; $$m_a + ($a + 1) }",
        ),
        // A variable or map that is given for an expression cannot be assigned to.
        ("macro m(x) { x } begin { m($y); m(@y); }", "{ { $y } } { { @y } }"),
        // Nested calls.
        (
            "macro a(x) { x + 1 } macro b(x) { a(x) * 2 } begin { print(b(3)); }",
            "print({ ({ 3 + 1 } * 2) });",
        ),
        ("macro a(x) { x + 1 } begin { print(a(a(1))); }", "print({ ({ 1 + 1 } + 1) });"),
        ("macro a($x) { $x += 1; } macro b($y) { a($y); } begin { b($z); }", "{ { $z += 1; } }"),
        ("macro m(x) { print(x) } begin { if (m(1)) { m(2) } }", "if ({ print(1) }) { { print(2) } }"),
    ];
    for (text, expected) in table {
        assert_eq!(body(text), expected, "{text}");
    }
}

#[test]
fn the_first_macro_that_fits_is_meant() {
    let script = "macro m() { 0 } macro m($x) { 1 } macro m(@x) { 2 } macro m(x) { 3 } macro m(x, y) { 4 } ";
    for (call, expected) in
        [("m", 0), ("m()", 0), ("m($a)", 1), ("m(@a)", 2), ("m(5)", 3), ("m(@a[1])", 3), ("m(1, 2)", 4)]
    {
        let text = format!("{script} begin {{ print({call}); }}");
        assert_eq!(body(&text), format!("print({{ {expected} }});"), "{call}");
    }
}

#[test]
fn types_are_given_with_typeof() {
    let table = [
        ("macro m(t) { sizeof(t) } begin { print(m(typeof(struct a))); }", "print({ sizeof(struct a) });"),
        ("macro m(t) { sizeof(t) } begin { print(m(typeof($x + 1))); }", "print({ sizeof($x + 1) });"),
        ("macro m(t) { sizeof(struct t) } begin { print(m(typeof(a))); }", "print({ sizeof(struct a) });"),
        ("macro m(t) { sizeof(t*) } begin { print(m(typeof(a))); }", "print({ sizeof(a*) });"),
        (
            "macro m(t) { sizeof(t[2]) } begin { print(m(typeof(uint64*))); }",
            "print({ sizeof(uint64*[2]) });",
        ),
        ("macro m(t) { (t)0 } begin { print(m(typeof(uint32*))); }", "print({ (uint32*)0 });"),
        ("macro m(t) { let $x : t = 0; } begin { m(typeof(uint32)); }", "{ let $$m_x : uint32 = 0; }"),
        (
            "macro a(t) { sizeof(t) } macro m(t) { a(typeof(t)) } begin { m(typeof(int8)); }",
            "{ { sizeof(int8) } }",
        ),
        ("macro m(t, f) { offsetof(t, f) } begin { m(typeof(struct S), x); }", "{ offsetof(struct S, x) }"),
        (
            "macro m(t, f) { offsetof(t, f) } begin { m(typeof(struct S), a.b.c); }",
            "{ offsetof(struct S, a.b.c) }",
        ),
        // A lone name where a type stands is no call.
        (
            "macro m() { 1 } begin { print(sizeof(m)); print(sizeof(m())); }",
            "print(sizeof(m)); print(sizeof({ 1 }));",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(body(text), expected, "{text}");
    }
}

#[test]
fn the_library_is_there_and_gives_way() {
    assert_eq!(body("begin { print(strcontains(a, b)); }"), "print({ strstr(a, b) >= 0 });");
    assert_eq!(body("macro strcontains(a, b) { 7 } begin { print(strcontains(a, b)); }"), "print({ 7 });");
    // The library does not see the script's macros.
    assert_eq!(
        body("macro strstr(a, b) { 7 } begin { print(strcontains(a, b)); }"),
        "print({ strstr(a, b) >= 0 });"
    );
    // A function of the checker may be called with other arguments than a macro of its name.
    assert_eq!(body("macro fail(x) { x } begin { fail(1, 2); }"), "fail(1, 2);");
}

#[test]
fn what_is_wrong_is_told() {
    let table = [
        (
            "macro m($x) { } begin { m($a, 1); }",
            "The closest definition of m() has a different number of arguments. Expected: 1 but got 2",
        ),
        (
            "macro m($x) { } begin { m; }",
            "The closest definition of m() has a different number of arguments. Expected: 1 but got 0",
        ),
        ("macro m($x, $x) { } begin { }", "Variable for macro argument has already been used: $x"),
        ("macro m(@x, @x) { } begin { }", "Map for macro argument has already been used: @x"),
        ("macro m(x, x) { } begin { }", "Ident for macro argument has already been used: x"),
        ("macro m($x) { } macro m($x) { } begin { }", "stdin:1:17-24: ERROR: Redefinition of macro: m"),
        ("macro m(x) { } macro m($x) { } begin { }", "This is the original definition."),
        (
            "macro a(x) { c(x) } macro b(x) { a(x) } macro c(x) { b(x) } begin { c(1); }",
            "Recursive macro call detected. Call chain: c > b > a > c",
        ),
        (
            "macro m($x) { } begin { m(@a); }",
            "Mismatched arg. m() expects a variable for arg $x but got a map.",
        ),
        (
            "macro m($x) { } begin { m(1 + 1); }",
            "Mismatched arg. m() expects a variable for arg $x but got an expression.",
        ),
        (
            "macro m(@x) { } begin { m($a); }",
            "Mismatched arg. m() expects a map for arg @x but got a variable.",
        ),
        ("macro m($x) { let $x; } begin { m($a); }", "Variable declaration shadows macro arg $x"),
        (
            "macro m() { @x[1] = 1; } begin { m(); }",
            "Unhygienic access to map: @x. Maps must be passed into the macro as arguments.",
        ),
        (
            "macro m(t) { sizeof(struct t) } begin { m(typeof(int8*)); }",
            "Invalid replacement for macro 'm' type parameter 't' which makes up the type 'struct t'",
        ),
        (
            "macro m(x) { x + 1 } begin { m(typeof(int8)); }",
            "When used as a call argument, `typeof` builtin only valid for macro calls",
        ),
        (
            "begin { f(typeof(int8)); }",
            "When used as a call argument, `typeof` builtin only valid for macro calls",
        ),
        (
            "macro m(t, f) { offsetof(t, f) } begin { m(typeof(struct S), f().a); }",
            "FieldAccess expressions must be made up entirely of idents",
        ),
    ];
    for (text, expected) in table {
        let told = loaded(text).expect_err(text);
        assert!(told.contains(expected), "{text}\n{told}");
    }
}

#[test]
fn errors_in_bodies_tell_the_call() {
    let told = loaded("macro m() { @x }\nbegin { m(); }").unwrap_err();
    let expected = "stdin:1:13-15: ERROR: Unhygienic access to map: @x. Maps must be passed into the macro as arguments.\n\
                    macro m() { @x }\n            ~~\n\
                    stdin:2:9-12: ERROR: expanded from\nbegin { m(); }\n        ~~~\n";
    assert_eq!(told, expected);
}

#[test]
fn expansion_has_a_bound() {
    let mut long = String::from("macro m0(x) { x + x } ");
    let mut deep = String::from("macro m0(x) { x } ");
    for level in 1..150 {
        long.push_str(&format!("macro m{level}(x) {{ m{0}(x) + m{0}(x) }} ", level - 1));
        deep.push_str(&format!("macro m{level}(x) {{ m{}(x) }} ", level - 1));
    }
    let mut grows = String::from("macro m0(x) { x + x } ");
    for level in 1..60 {
        grows.push_str(&format!("macro m{level}(x) {{ m{}(x + x) }} ", level - 1));
    }
    for (script, call, expected) in [
        (long, "m149(1)", "macros make this"),
        (deep, "m149(1)", "macros make this nested too deeply"),
        (grows, "m59(1)", "macros make this"),
    ] {
        let told = loaded(&format!("{script} begin {{ {call}; }}")).unwrap_err();
        assert!(told.contains(expected), "{}", told.lines().next().unwrap_or_default());
    }
}
