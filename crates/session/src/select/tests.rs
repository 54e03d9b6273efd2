//! Selection as tables.

use super::*;
use crate::spec::Syntax;

const MODULES: [ModuleNames<'static>; 9] = [
    ModuleNames { path: "/usr/bin/server", soname: None, alias: None },
    ModuleNames { path: "/usr/lib/libc.so.6", soname: Some("libc.so.6"), alias: None },
    ModuleNames { path: "/usr/lib/libcrypto.so.3", soname: Some("libcrypto.so.3"), alias: None },
    ModuleNames { path: "/usr/lib/libssl.so.3.1.4", soname: Some("libssl.so.3"), alias: None },
    ModuleNames { path: "/usr/lib/libstdc++.so.6.0.30", soname: Some("libstdc++.so.6"), alias: None },
    ModuleNames { path: "/usr/lib/libfoo-1.so", soname: None, alias: None },
    ModuleNames { path: "/usr/lib/libfoo-2.so", soname: None, alias: None },
    ModuleNames { path: "/opt/a/libbar.so", soname: None, alias: None },
    ModuleNames { path: "/opt/b/libbar.so", soname: None, alias: None },
];

fn select(pattern: &str, syntax: Syntax) -> Result<Vec<usize>, SelectError> {
    modules(&Pattern::new(pattern, syntax).unwrap(), &MODULES)
}

#[test]
fn a_module_is_known_by_path_file_name_soname_or_unique_prefix() {
    for (pattern, expected) in [
        ("/usr/lib/libc.so.6", &[1][..]),
        ("libc.so.6", &[1]),
        ("libc", &[1]),
        ("c", &[1]),
        ("libcry", &[2]),
        ("libssl.so.3", &[3]),
        ("libssl.so.3.1.4", &[3]),
        ("libssl", &[3]),
        ("ssl", &[3]),
        ("stdc++", &[4]),
        ("server", &[0]),
        ("./server", &[0]),
        ("bin/server", &[0]),
        ("libfoo*", &[5, 6]),
        ("libfoo-[12].so", &[5, 6]),
        ("/usr/*/lib*.so.6*", &[1, 4]),
        ("*/libbar.so", &[7, 8]),
        ("libbar.so", &[7, 8]),
        ("a/libbar.so", &[7]),
        ("*", &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ] {
        assert_eq!(select(pattern, Syntax::Glob).as_deref(), Ok(expected), "{pattern}");
    }
}

#[test]
fn regular_expressions_look_at_short_names_first() {
    for (pattern, expected) in
        [("libc", &[1, 2][..]), ("libc.so.6", &[1]), ("^lib(ssl|crypto)", &[2, 3]), ("/opt/", &[7, 8])]
    {
        assert_eq!(select(pattern, Syntax::Regex).as_deref(), Ok(expected), "{pattern}");
    }
}

#[test]
fn a_module_that_is_not_there_gets_near_names_and_an_ambiguous_one_gets_candidates() {
    for (pattern, message) in [
        ("libssl.so.4", "no module matches 'libssl.so.4'; did you mean libssl.so.3?"),
        (
            "nginx",
            "no module matches 'nginx'; see what there is with: trapless list -p PID, or trapless list FILE",
        ),
        (
            "libfoo",
            "'libfoo' may be libfoo-1.so or libfoo-2.so; write the whole name, or 'libfoo*' for all of them",
        ),
        (
            "libbar",
            "'libbar' may be /opt/a/libbar.so or /opt/b/libbar.so; write the whole name, or 'libbar*' for all of them",
        ),
    ] {
        assert_eq!(select(pattern, Syntax::Glob).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_file_that_is_mapped_twice_is_one_name() {
    let plugin = ModuleNames { path: "/usr/lib/libplug.so", soname: None, alias: None };
    let twice = [MODULES[0], plugin, plugin];
    let pattern = Pattern::new("libplug", Syntax::Glob).unwrap();
    assert_eq!(modules(&pattern, &twice).as_deref(), Ok(&[1, 2][..]));
}

/// Stands in for the demangler: what it does with names is its own test's business.
fn demangle(name: &str) -> Option<String> {
    match name {
        "_ZN2ns1fEi" => Some("ns::f(int)".to_owned()),
        "_ZN2ns1fEd" => Some("ns::f(double)".to_owned()),
        "_Z3maxIiET_S0_S0_" => Some("int max<int>(int, int)".to_owned()),
        _ => None,
    }
}

#[test]
fn functions_match_raw_or_demangled_and_aliases_count_once() {
    let all: [&[&str]; 5] = [
        &["malloc", "__libc_malloc"],
        &["memcpy@@GLIBC_2.14", "memcpy@GLIBC_2.2.5"],
        &["_ZN2ns1fEi"],
        &["_ZN2ns1fEd"],
        &["_Z3maxIiET_S0_S0_"],
    ];
    for (pattern, excluded, expected) in [
        ("malloc", "", &[0][..]),
        ("__libc_malloc", "", &[0]),
        ("*malloc", "", &[0]),
        ("memcpy", "", &[1]),
        ("memcpy@GLIBC_2.2.5", "", &[1]),
        ("_ZN2ns1fEi", "", &[2]),
        ("ns::f", "", &[2, 3]),
        ("ns::f(int)", "", &[2]),
        ("max<int>", "", &[4]),
        ("*", "m*", &[2, 3]),
        ("*", "ns::*", &[0, 1, 4]),
        ("ns::*", "*(int)", &[3]),
        ("absent", "", &[]),
    ] {
        let excluded: Vec<Pattern> = (!excluded.is_empty())
            .then(|| Pattern::new(excluded, Syntax::Glob).unwrap())
            .into_iter()
            .collect();
        let excluded: Vec<&Pattern> = excluded.iter().collect();
        let pattern = Pattern::new(pattern, Syntax::Glob).unwrap();
        let found = functions(&pattern, &excluded, all.iter().map(|names| names.iter().copied()), &demangle);
        assert_eq!(found, expected, "{pattern}");
    }
}

#[test]
fn exclusions_apply_to_the_modules_they_name() {
    let exclusions: Vec<Exclusion> =
        ["mem*", "libc:str*"].iter().map(|t| Exclusion::parse(t, Syntax::Glob).unwrap()).collect();
    let texts =
        |i: usize| exclusions_for(&exclusions, &MODULES[i]).iter().map(|p| p.text()).collect::<Vec<_>>();
    assert_eq!(texts(1), ["mem*", "str*"]);
    assert_eq!(texts(0), ["mem*"]);
}

#[test]
fn errors_name_the_way_out() {
    let spec: ProbeSpec = "libc.so.6:mallok".parse().unwrap();
    assert_eq!(
        no_function(&spec, ["malloc", "free"]).to_string(),
        "no function matches 'libc.so.6:mallok'; did you mean malloc?"
    );
    assert_eq!(check_limit(10, 10), Ok(()));
    assert_eq!(
        check_limit(11, 10).unwrap_err().to_string(),
        "11 functions match, and the limit is 10; narrow the pattern or raise it with --max-probes 11"
    );
}
