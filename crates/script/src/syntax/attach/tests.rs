//! Attach points of every provider, and what is wrong with others.

use super::*;

fn with(text: &str, parameters: &[&str], process: bool) -> Result<Vec<ProbePoint>, AttachError> {
    let parameters = parameters.iter().map(|value| (*value).to_string()).collect();
    parse(text, &AttachContext { parameters, process }).map(|parsed| parsed.points)
}

fn one(text: &str) -> ProbePoint {
    let mut points = with(text, &[], false).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(points.len(), 1, "{text}");
    points.remove(0)
}

fn uprobe(target: &str, name: &str, offset: u64) -> ProbePoint {
    let place = UserPlace::Function { name: name.to_string(), offset };
    ProbePoint::Uprobe(UserPoint { target: Some(target.to_string()), language: None, place })
}

#[test]
fn user_space_is_taken_apart() {
    let address = |address| {
        let target = Some("/bin/x".to_string());
        ProbePoint::Uprobe(UserPoint { target, language: None, place: UserPlace::Address(address) })
    };
    let line = |file: &str, line, column| {
        let (target, file) = (Some("/bin/x".to_string()), file.to_string());
        ProbePoint::Uprobe(UserPoint {
            target,
            language: None,
            place: UserPlace::Line { file, line, column },
        })
    };
    let table = [
        ("uprobe:/bin/x:f", uprobe("/bin/x", "f", 0)),
        ("u:libc:malloc", uprobe("libc", "malloc", 0)),
        ("UPROBE:/bin/x:f", uprobe("/bin/x", "f", 0)),
        ("uprobe:/bin/x:f+0x10", uprobe("/bin/x", "f", 16)),
        ("uprobe:/dir+1/x:f", uprobe("/dir+1/x", "f", 0)),
        ("uprobe:/bin/x:0x1234", address(0x1234)),
        ("uprobe:/bin/x:1234abc", uprobe("/bin/x", "1234abc", 0)),
        ("uprobe:/bin/x:*", uprobe("/bin/x", "*", 0)),
        ("uprobe:*:malloc", uprobe("*", "malloc", 0)),
        ("uprobe:/bin/x:\"A::f(int)\"", uprobe("/bin/x", "A::f(int)", 0)),
        ("uprobe:\"a.apk!/lib:1.so\":f", uprobe("a.apk!/lib:1.so", "f", 0)),
        ("uprobe:/bin/x:\"q\\\"q\"", uprobe("/bin/x", "q\"q", 0)),
        ("uprobe:libc:memcpy@@GLIBC_2.14", uprobe("libc", "memcpy@@GLIBC_2.14", 0)),
        ("uprobe:/bin/x@main.c:12", line("main.c", 12, None)),
        ("uprobe:/bin/x@src/main.c:12:3", line("src/main.c", 12, Some(3))),
        (
            "uprobe:/bin/x:cpp:\"ns::f\"",
            ProbePoint::Uprobe(UserPoint {
                target: Some("/bin/x".to_string()),
                language: Some("cpp".to_string()),
                place: UserPlace::Function { name: "ns::f".to_string(), offset: 0 },
            }),
        ),
        (
            "ur:/bin/x:f",
            ProbePoint::Uretprobe(UserPoint {
                target: Some("/bin/x".to_string()),
                language: None,
                place: UserPlace::Function { name: "f".to_string(), offset: 0 },
            }),
        ),
        (
            "usdt:/bin/x:name",
            ProbePoint::Usdt {
                target: Some("/bin/x".to_string()),
                namespace: None,
                name: "name".to_string(),
            },
        ),
        (
            "U:/bin/x:ns:name*",
            ProbePoint::Usdt {
                target: Some("/bin/x".to_string()),
                namespace: Some("ns".to_string()),
                name: "name*".to_string(),
            },
        ),
    ];
    for (text, expected) in table {
        assert_eq!(one(text), expected, "{text}");
    }
}

#[test]
fn other_probes_are_taken_apart() {
    let table = [
        ("begin", ProbePoint::Begin),
        ("BEGIN", ProbePoint::Begin),
        ("begin:*", ProbePoint::Begin),
        ("END", ProbePoint::End),
        ("self:signal:SIGUSR1", ProbePoint::SelfSignal("SIGUSR1".to_string())),
        ("test:a", ProbePoint::Test("a".to_string())),
        ("bench:b", ProbePoint::Bench("b".to_string())),
        ("interval:s:1", ProbePoint::Interval(Frequency::Every(1_000_000_000))),
        ("i:ms:1e2", ProbePoint::Interval(Frequency::Every(100_000_000))),
        ("interval:us:1_000", ProbePoint::Interval(Frequency::Every(1_000_000))),
        ("interval:5m", ProbePoint::Interval(Frequency::Every(300_000_000_000))),
        ("profile:hz:99", ProbePoint::Profile(Frequency::Hertz(99))),
        ("p:1us", ProbePoint::Profile(Frequency::Every(1000))),
        ("profile:*", ProbePoint::Profile(Frequency::Any)),
        ("kprobe:f", ProbePoint::Kernel("kprobe")),
        ("k:mod:f+4", ProbePoint::Kernel("kprobe")),
        ("kretprobe:f", ProbePoint::Kernel("kretprobe")),
        ("t:sched:sched_switch", ProbePoint::Kernel("tracepoint")),
        ("tracepoint:*open*", ProbePoint::Kernel("tracepoint")),
        ("rt:x", ProbePoint::Kernel("rawtracepoint")),
        ("kfunc:f", ProbePoint::Kernel("fentry")),
        ("fentry:bpf:1:f", ProbePoint::Kernel("fentry")),
        ("kretfunc:f", ProbePoint::Kernel("fexit")),
        ("software:faults:1", ProbePoint::Kernel("software")),
        ("h:cpu-cycles", ProbePoint::Kernel("hardware")),
        ("iter:task", ProbePoint::Kernel("iter")),
        ("w:0x10:8:rw", ProbePoint::Kernel("watchpoint")),
        ("asyncwatchpoint:0x10:8:rw", ProbePoint::Kernel("asyncwatchpoint")),
    ];
    for (text, expected) in table {
        assert_eq!(one(text), expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_as_bpftrace_does() {
    let table = [
        ("asdf:x", "Invalid probe type: asdf"),
        ("::f", "No attach points for probe"),
        ("z*:x", "No probe type matched for z*"),
        ("uprobe", "uprobe probe type requires 2 or 3 arguments, found 0"),
        ("uprobe:f", "uprobe probe type requires 2 or 3 arguments, found 1"),
        ("uprobe:a:cpp:f:g", "uprobe probe type requires 2 or 3 arguments, found 4"),
        ("uprobe::f", "uprobe should have a target"),
        (
            "uprobe:/bin/x:",
            "uprobe should be attached to a function, address, or source file and line (using DWARF)",
        ),
        (
            "uprobe:/bin/x:+1",
            "uprobe should be attached to a function, address, or source file and line (using DWARF)",
        ),
        ("uprobe:/bin/x:go:f", "unsupported language type: go"),
        ("uprobe:/bin/x:f+1+2", "Cannot take more than one offset"),
        ("uprobe:/bin/x:f+x", "Invalid offset: invalid integer: x"),
        ("uprobe:/bin/x*:0x12", "Cannot use wildcards with absolute address"),
        ("uprobe:/bin/x*@f.c:1", "Cannot use wildcards with source code location"),
        ("uprobe:/bin/x@f.c", "Invalid uprobe arguments, expected format: uprobe:TARGET@FILE:LINE[:COL]"),
        ("uprobe:/bin/x@:1", "Invalid uprobe arguments, expected format: uprobe:TARGET@FILE:LINE[:COL]"),
        ("uprobe:/bin/x@f.c:x", "Invalid line number: invalid integer: x"),
        ("uprobe:/bin/x@f.c:1:x", "Invalid column number: invalid integer: x"),
        ("uprobe:/bin/x:\"f", "unterminated quote"),
        ("ur:/bin/x:f+1", "Offset not allowed"),
        ("ur:/bin/x@f.c:1", "Source code location not allowed"),
        ("usdt", "usdt probe type requires 2 or 3 arguments, found 0"),
        ("usdt:/bin/x:", "usdt probe must have a target function or wildcard"),
        (
            "usdt::name",
            "usdt probe must specify at least path or pid to probe. To target all paths/pids set the path to '*'.",
        ),
        ("begin:f", "begin probe type requires 0 arguments, found 1"),
        ("end:a:b", "end probe type requires 0 arguments, found 2"),
        ("bench", "bench probe type requires 1 arguments, found 0"),
        ("test:", "test probes must have a name"),
        ("self:signal:SIGKILL", "SIGKILL is not a supported signal"),
        ("self:clock:1", "clock is not a supported trigger"),
        ("self:signal", "self probe type requires 2 arguments, found 1"),
        ("interval", "interval probe type requires 1 or 2 arguments, found 0"),
        ("interval:s:1b", "Invalid rate of interval probe: invalid trailing bytes: 1b"),
        ("profile:ms:nan", "Invalid rate of profile probe: invalid integer: nan"),
        ("interval:100", "Invalid rate of interval probe. Minimum is 1000 or 1us. Found: 100 nanoseconds"),
        ("interval:s:0", "interval frequency should be a positive integer"),
        ("profile:hz:0", "profile frequency should be a positive integer"),
        ("interval:s:18446744073709551615", "interval frequency should be a positive integer"),
        ("interval:year:1", "year is not an accepted unit of time"),
        ("tracepoint:f", "tracepoint probe type requires 2 arguments, found 1"),
        ("watchpoint:1", "watchpoint probe type requires 3 arguments, found 1"),
    ];
    for (text, expected) in table {
        let told = with(text, &[], false).expect_err(text).to_string();
        assert_eq!(told, expected, "{text}");
    }
}

#[test]
fn parameters_are_put_in_outside_of_quotes() {
    let parameters = ["foo", "/bin/x:bar", "1"];
    let table = [
        ("uprobe:/$1/b:f", uprobe("/foo/b", "f", 0)),
        ("uprobe:$2", uprobe("/bin/x", "bar", 0)),
        ("uprobe:$1:a$1\"$1\"b", uprobe("foo", "afoo$1b", 0)),
        ("uprobe:$1:f$9g", uprobe("foo", "fg", 0)),
        ("i:s:$3", ProbePoint::Interval(Frequency::Every(1_000_000_000))),
    ];
    for (text, expected) in table {
        assert_eq!(with(text, &parameters, false), Ok(vec![expected]), "{text}");
    }
    for (text, told) in [("uprobe:b:$0", "0"), ("uprobe:b:$a", "a"), ("uprobe:b:$", " ")] {
        let expected = AttachError::ParameterName(told.chars().next().unwrap());
        assert_eq!(with(text, &parameters, false), Err(expected), "{text}");
    }
    assert!(matches!(
        with("uprobe:b:$99999999999999999999", &parameters, false),
        Err(AttachError::ParameterNumber(_))
    ));
}

#[test]
fn a_process_needs_no_target() {
    let place = || UserPlace::Function { name: "f".to_string(), offset: 0 };
    let user = |language: Option<&str>| {
        ProbePoint::Uprobe(UserPoint { target: None, language: language.map(str::to_string), place: place() })
    };
    let table = [
        ("uprobe:f", user(None)),
        ("uprobe:cpp:f", user(Some("cpp"))),
        ("uprobe::f", user(None)),
        ("usdt:name", ProbePoint::Usdt { target: None, namespace: None, name: "name".to_string() }),
    ];
    for (text, expected) in table {
        assert_eq!(with(text, &[], true), Ok(vec![expected]), "{text}");
    }
}

#[test]
fn a_pattern_of_providers_stands_for_those_whose_parts_fit() {
    let usdt =
        ProbePoint::Usdt { target: Some("/bin/x".to_string()), namespace: None, name: "f".to_string() };
    assert_eq!(with("*:/bin/x:f", &[], false), Ok(vec![uprobe("/bin/x", "f", 0), usdt.clone()]));
    assert_eq!(with("us*:/bin/x:f", &[], false), Ok(vec![usdt]));
    let kernel = ["kprobe", "kretprobe"].map(ProbePoint::Kernel);
    assert_eq!(with("k*probe:f", &[], false), Ok(kernel.to_vec()));
}

#[test]
fn a_probe_may_have_a_name() {
    let parsed = parse("mine=begin", &AttachContext::default()).unwrap();
    assert_eq!(parsed, Parsed { name: Some("mine".to_string()), points: vec![ProbePoint::Begin] });
}

#[test]
fn every_provider_of_the_kernel_is_refused_with_a_way_out() {
    let kernel = PROVIDERS.iter().filter_map(|(_, provider)| match provider {
        Provider::Kernel(name, ..) => Some(*name),
        _ => None,
    });
    for name in kernel.chain(["watchpoint", "asyncwatchpoint"]) {
        let told = refusal(name);
        assert!(told.starts_with(&format!("{name} probes ")) && told.ends_with("bpftrace"), "{told}");
    }
}

#[test]
fn patterns_fit_from_end_to_end() {
    let table = [
        ("*", "", true),
        ("a*", "abc", true),
        ("*c", "abc", true),
        ("a*c", "abc", true),
        ("a*b*c", "aXbYbZc", true),
        ("a**c", "ac", true),
        ("a*a", "a", false),
        ("a", "ab", false),
        ("b*", "ab", false),
    ];
    for (pattern, name, expected) in table {
        assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
    }
}
