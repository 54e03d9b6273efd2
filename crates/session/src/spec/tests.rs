//! Specifications as tables.

use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> ProbeSpec {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn module_and_function_are_split_where_a_person_means_it() {
    for (text, module, function) in [
        ("libc.so.6:malloc", "libc.so.6", "malloc"),
        ("libc.so.6!malloc", "libc.so.6", "malloc"),
        ("libssl:SSL_*", "libssl", "SSL_*"),
        ("*:*", "*", "*"),
        ("libfoo.so:ns::f(int)", "libfoo.so", "ns::f(int)"),
        ("libfoo.so:::f", "libfoo.so", "::f"),
        ("libfoo.so!ns::f", "libfoo.so", "ns::f"),
        ("lib:ns::operator!=(A, B)", "lib", "ns::operator!=(A, B)"),
        ("lib:operator+", "lib", "operator+"),
        ("lib:operator++", "lib", "operator++"),
        ("lib:f[abi:cxx11](int)", "lib", "f[abi:cxx11](int)"),
        ("lib:<T as core::Tr>::f", "lib", "<T as core::Tr>::f"),
        ("lib:memcpy@@GLIBC_2.14", "lib", "memcpy@@GLIBC_2.14"),
        ("/usr/bin/redis-server:main", "/usr/bin/redis-server", "main"),
        ("/a:b/with:colon/bin:f", "/a:b/with:colon/bin", "f"),
        ("/a:b/bin!ns::f", "/a:b/bin", "ns::f"),
        ("./app:github.com/x/y.(*T).F", "./app", "github.com/x/y.(*T).F"),
        ("./app:type:.eq.main.T", "./app", "type:.eq.main.T"),
        ("./lib:ns::operator/(A const&)", "./lib", "ns::operator/(A const&)"),
        ("*/libfoo*:f", "*/libfoo*", "f"),
        ("lib[!a]:f", "lib[!a]", "f"),
        ("a\\:b:f", "a\\:b", "f"),
        ("u:f", "u", "f"),
    ] {
        let spec = parse(text);
        assert_eq!(spec.module.text(), module, "{text}");
        let Location::Function { pattern, offset: 0 } = &spec.location else { panic!("{text}: {spec:?}") };
        assert_eq!(pattern.text(), function, "{text}");
        assert_eq!(spec.kind, None, "{text}");
    }
}

#[test]
fn offsets_and_addresses_name_one_instruction() {
    for (text, expected) in [
        ("libc:malloc+0x14", ("malloc", 0x14)),
        ("libc:malloc+20", ("malloc", 20)),
        ("libc:operator++0x4", ("operator+", 4)),
    ] {
        let location = Location::Function {
            pattern: Pattern::new(expected.0, Syntax::Glob).unwrap(),
            offset: expected.1,
        };
        assert_eq!(parse(text).location, location, "{text}");
    }
    assert_eq!(parse("./bin:0x1139").location, Location::Address(0x1139));
    assert_eq!(parse("./bin:0xffffffffffffffff").location, Location::Address(u64::MAX));
}

#[test]
fn lines_of_the_source_are_told_from_everything_else_with_colons() {
    let line = |file: &str, line, column| Location::Line(SourceLine { file: file.to_owned(), line, column });
    for (text, module, expected) in [
        ("./app:file.c:123", "./app", line("file.c", 123, None)),
        ("./app:file.c:123:7", "./app", line("file.c", 123, Some(7))),
        ("app:file.c:1", "app", line("file.c", 1, None)),
        ("app!file.c:1", "app", line("file.c", 1, None)),
        ("*:file.c:1", "*", line("file.c", 1, None)),
        ("./app:src/file.c:123", "./app", line("src/file.c", 123, None)),
        ("./app:/usr/src/file.c:123:4", "./app", line("/usr/src/file.c", 123, Some(4))),
        ("/a:b/with:colon/bin:file.c:12", "/a:b/with:colon/bin", line("file.c", 12, None)),
        ("./app:C:/src/file.c:12", "./app", line("C:/src/file.c", 12, None)),
        ("./app:C:\\src\\file.c:12:3", "./app", line("C:\\src\\file.c", 12, Some(3))),
        ("lib.so.6:malloc/malloc.c:3", "lib.so.6", line("malloc/malloc.c", 3, None)),
        ("./app:lib.rs:4294967295", "./app", line("lib.rs", u32::MAX, None)),
        ("jump:app:file.c:12", "app", line("file.c", 12, None)),
        ("u:./app:file.c:12", "./app", line("file.c", 12, None)),
        // A module that is called like a mechanism.
        ("step:main.c:12", "step", line("main.c", 12, None)),
        ("t:main.c:12", "t", line("main.c", 12, None)),
    ] {
        let spec = parse(text);
        assert_eq!((spec.module.text(), &spec.location), (module, &expected), "{text}");
        let regex = ProbeSpec::parse(text, Syntax::Regex).map(|spec| spec.location);
        assert!(text.starts_with('*') || regex == Ok(expected), "{text}");
    }
    for (text, function) in [
        ("./app:ns::f", "ns::f"),
        ("./app:ns::1", "ns::1"),
        ("./app:f<a::b<1>>", "f<a::b<1>>"),
        ("./app:type:.eq.main.T", "type:.eq.main.T"),
        ("./app:f:1a", "f:1a"),
        ("./app:f:", "f:"),
        ("./app:odd\\:12", "odd\\:12"),
    ] {
        let Location::Function { pattern, offset: 0 } = parse(text).location else { panic!("{text}") };
        assert_eq!(pattern.text(), function, "{text}");
    }
    for (text, column, what) in [
        ("./app:file.c:0", 13, "lines and columns count from 1"),
        ("./app:file.c:1:0", 13, "lines and columns count from 1"),
        ("./app:file.c:4294967296", 13, "4294967296 is no line: no file has so many"),
        ("file.c:12", 9, "no module; write MODULE:FILE:LINE, or '*:file.c:12' for every module"),
        ("libc.so.6:12", 12, "no module; write MODULE:FILE:LINE, or '*:libc.so.6:12' for every module"),
    ] {
        let error = text.parse::<ProbeSpec>().unwrap_err();
        assert_eq!((error.column, error.what.as_str()), (column, what), "{text}");
    }
}

#[test]
fn other_tools_spellings_are_understood() {
    for (text, module, function, kind) in [
        ("uprobe:/bin/bash:readline", "/bin/bash", "readline", Kind::Entry),
        ("uretprobe:/bin/bash:readline", "/bin/bash", "readline", Kind::Return),
        ("u:libc:malloc", "libc", "malloc", Kind::Entry),
        ("ur:libc:malloc", "libc", "malloc", Kind::Return),
        ("uprobe:./app:cpp:\"ns::f(int)\"", "./app", "ns::f(int)", Kind::Entry),
        ("uprobe:./app:\"f\"+8", "./app", "f", Kind::Entry),
    ] {
        let spec = parse(text);
        assert_eq!((spec.module.text(), spec.kind), (module, Some(kind)), "{text}");
        let Location::Function { pattern, .. } = &spec.location else { panic!("{text}: {spec:?}") };
        assert_eq!(pattern.text(), function, "{text}");
    }
}

#[test]
fn usdt_probes_are_named_as_bpftrace_and_perf_name_them() {
    for (text, module, provider, name) in [
        ("usdt:/usr/bin/python3:python:gc__*", "/usr/bin/python3", Some("python"), "gc__*"),
        ("U:./app:p:n", "./app", Some("p"), "n"),
        ("usdt:./app:n", "./app", None, "n"),
        ("usdt:libc:setjmp", "libc", None, "setjmp"),
        ("usdt:*:*", "*", None, "*"),
        ("usdt:n", "*", None, "n"),
        ("usdt::p:n", "*", Some("p"), "n"),
        ("usdt:./app::n", "./app", None, "n"),
        ("usdt:/a:b/app:p:n", "/a:b/app", Some("p"), "n"),
        ("usdt:a[:]b:p:n", "a[:]b", Some("p"), "n"),
        ("usdt:a\\:b:p:n", "a\\:b", Some("p"), "n"),
        ("sdt_libc:setjmp", "*", Some("libc"), "setjmp"),
        ("%sdt_libc:memory_*", "*", Some("libc"), "memory_*"),
        ("step:usdt:./app:p:n", "./app", Some("p"), "n"),
    ] {
        let spec = parse(text);
        assert_eq!(spec.module.text(), module, "{text}");
        let Location::Usdt { provider: p, name: n } = &spec.location else { panic!("{text}: {spec:?}") };
        assert_eq!((p.as_ref().map(Pattern::text), n.text()), (provider, name), "{text}");
        assert_eq!((spec.kind, spec.mechanism.is_some()), (None, text.starts_with("step")), "{text}");
    }
    // In a file that is given apart.
    for (text, provider, name) in [
        ("usdt:*", None, "*"),
        ("usdt:p:n*", Some("p"), "n*"),
        ("U:*:n", None, "n"),
        ("sdt_p:n", Some("p"), "n"),
    ] {
        let spec = ProbeSpec::in_module("/lib/a.so", text, Syntax::Glob).unwrap();
        let Location::Usdt { provider: p, name: n } = &spec.location else { panic!("{text}: {spec:?}") };
        assert_eq!((p.as_ref().map(Pattern::text), n.text()), (provider, name), "{text}");
        assert_eq!(spec.module.text(), "/lib/a.so", "{text}");
    }
    for (text, column, what) in [
        ("usdt:", 5, "no name; '*' means all of them"),
        ("usdt:a:", 7, "no name; '*' means all of them"),
        ("usdt:a:b:c:d", 11, "too many parts; write usdt:PATH:PROVIDER:NAME"),
        ("sdt_:n", 4, "no name; '*' means all of them"),
        ("usdt:a:b[z-a]", 8, "the range z-a runs backward"),
    ] {
        let error = text.parse::<ProbeSpec>().unwrap_err();
        assert_eq!((error.column, error.what.as_str()), (column, what), "{text}");
    }
    // Modules and functions that are called so.
    for text in ["U:main", "sdt_tool!main", "./sdt_tool:main", "usdtrace:main"] {
        assert!(!parse(text).location.is_usdt(), "{text}");
    }
}

#[test]
fn a_mechanism_may_be_named() {
    use Mechanism::*;
    for (text, mechanism, module, kind) in [
        ("step:libc:malloc", Some(Step), "libc", None),
        ("emulate:libc!malloc", Some(Emulate), "libc", None),
        ("boost:/usr/bin/a:f", Some(Boost), "/usr/bin/a", None),
        ("jump:uretprobe:/bin/bash:readline", Some(Jump), "/bin/bash", Some(Kind::Return)),
        ("step:u:libc:malloc", Some(Step), "libc", Some(Kind::Entry)),
        ("libc:malloc", None, "libc", None),
        // Modules that are called so.
        ("step:main", None, "step", None),
        ("boost:ns::f", None, "boost", None),
        ("stepper:main", None, "stepper", None),
    ] {
        let spec = parse(text);
        assert_eq!((spec.mechanism, spec.module.text(), spec.kind), (mechanism, module, kind), "{text}");
    }
    let error = "step:kprobe:a:vfs_read".parse::<ProbeSpec>().unwrap_err();
    assert_eq!(error.column, 5, "{error}");
}

#[test]
fn regular_expressions_keep_their_colons_and_plus_signs() {
    for (text, module, function) in [
        ("libc\\.so:^mem(?:cpy|set)$", "libc\\.so", "^mem(?:cpy|set)$"),
        ("(?:libc|libm):sin", "(?:libc|libm)", "sin"),
        ("libc:a+0", "libc", "a+0"),
    ] {
        let spec = ProbeSpec::parse(text, Syntax::Regex).unwrap();
        assert_eq!(spec.module.text(), module, "{text}");
        let Location::Function { pattern, offset: 0 } = &spec.location else { panic!("{text}: {spec:?}") };
        assert_eq!(pattern.text(), function, "{text}");
    }
}

#[test]
fn errors_point_at_the_place() {
    for (text, column, what) in [
        ("malloc", 6, "no module; write MODULE:FUNCTION, or '*:malloc' for every module"),
        ("", 0, "nothing is named; write MODULE:FUNCTION"),
        (":malloc", 0, "no module before the separator; '*:malloc' means every module"),
        ("libc:", 5, "no function; '*' means all of them"),
        ("uprobe:malloc", 13, "PATH:FUNCTION must follow"),
        ("libc:0x", 5, "'0x' is not a hexadecimal number"),
        ("libc:0x+4", 5, "'0x+4' is not a hexadecimal number"),
        ("libc:0x11112222333344445", 5, "0x11112222333344445 does not fit in 64 bits"),
        ("libc:malloc+0xzz", 12, "'0xzz' is not a hexadecimal number"),
        ("libc:malloc+1z", 12, "'1z' is not an offset; write +0x14 or +20"),
        ("libü:f[z-a]", 6, "the range z-a runs backward"),
    ] {
        let error = text.parse::<ProbeSpec>().unwrap_err();
        assert_eq!((error.column, error.what.as_str()), (column, what), "{text}");
    }
}

#[test]
fn probes_of_other_tools_say_where_to_go() {
    for (text, way) in [
        (
            "kprobe:vfs_read",
            "kprobe: names a place in the kernel, where trapless does not look; bpftrace and perf do",
        ),
        ("kretprobe:a:vfs_read", "kretprobe: names a place in the kernel"),
        ("tracepoint:sched:sched_switch", "tracepoint: names a place in the kernel"),
        ("t:syscalls:sys_enter_open", "t: names a place in the kernel"),
        ("profile:hz:99", "perf record"),
        ("interval:s:1", "perf record"),
        ("p:c:malloc", "write MODULE:FUNCTION"),
        ("p::malloc", "write MODULE:FUNCTION"),
        ("r:c:malloc", "--return"),
    ] {
        let error = text.parse::<ProbeSpec>().unwrap_err();
        assert_eq!(error.column, 0, "{text}");
        assert!(error.what.contains(way) && error.what.contains("MODULE:FUNCTION"), "{error}");
    }
    for module in ["t:main", "profile:main", "i:ns::f", "kprobed:main"] {
        assert!(module.parse::<ProbeSpec>().is_ok(), "{module}");
    }
}

#[test]
fn an_error_shows_the_text_with_a_mark() {
    let error = "libc:malloc+0xzz".parse::<ProbeSpec>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "bad probe: '0xzz' is not a hexadecimal number\n  libc:malloc+0xzz\n              ^"
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*", regex: bool) {
        let syntax = if regex { Syntax::Regex } else { Syntax::Glob };
        if let Err(error) = ProbeSpec::parse(&text, syntax) {
            prop_assert!(error.column <= text.chars().count());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn no_mix_of_the_grammars_own_characters_makes_it_panic(text in "[\\]:!\\\\/+*?x0-9a\"(){ü.\\[-]{0,24}") {
        for syntax in [Syntax::Glob, Syntax::Regex] {
            if let Ok(spec) = ProbeSpec::parse(&text, syntax) {
                prop_assert!(!spec.module.text().is_empty());
            }
        }
    }

    #[test]
    fn plain_names_come_back(module in "[a-z][a-z0-9._-]{0,12}", function in "[a-z_][a-z0-9_]{0,12}(::[a-z]{1,5})?") {
        let spec: ProbeSpec = format!("{module}:{function}").parse().unwrap();
        prop_assert_eq!(spec.module.as_literal(), Some(module.as_str()));
        let Location::Function { pattern, offset } = spec.location else { panic!("not a function") };
        prop_assert_eq!((pattern.as_literal(), offset), (Some(function.as_str()), 0));
    }
}

#[test]
fn exclusions_may_name_a_module() {
    for (text, module, function, expected) in [
        ("mem*", "libc.so.6", "memcpy", true),
        ("mem*", "libc.so.6", "malloc", false),
        ("libc*:mem*", "libc.so.6", "memcpy", true),
        ("libc*:mem*", "libm.so.6", "memcpy", false),
        ("ns::f", "lib", "ns::f", true),
    ] {
        let exclusion = Exclusion::parse(text, Syntax::Glob).unwrap();
        let applies = exclusion.module.as_ref().is_none_or(|m| m.matches(module));
        assert_eq!(
            applies && exclusion.function.matches(function),
            expected,
            "{text} on {module}:{function}"
        );
    }
    assert!(Exclusion::parse("", Syntax::Glob).is_err());
}
