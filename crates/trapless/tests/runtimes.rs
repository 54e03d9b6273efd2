//! Run-time systems that find their frames by return addresses go on as before: their own code is counted and not followed.

mod support;

use std::fs;
use std::process::Command;
use support::Program;
use support::tool::{finish, run, trapless};

#[test]
fn ocaml_is_counted_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    // Collections and exceptions both look for frames.
    let source = "let rec build n l = if n = 0 then l else build (n - 1) (string_of_int n :: l)\n\
        let rec thrower n = if n = 0 then failwith \"x\" else 1 + thrower (n - 1)\n\
        let () = let s = ref 0 in\n\
        for i = 1 to 50 do s := !s + List.length (build 1000 []); Gc.compact ();\n\
        (try ignore (thrower i) with Failure _ -> incr s) done; Printf.printf \"%d\\n\" !s\n";
    fs::write(dir.path().join("g.ml"), source).unwrap();
    let mut build = Command::new("ocamlfind");
    build.args(["ocamlopt", "g.ml", "-o", "camel"]).current_dir(dir.path());
    let built = build
        .output()
        .or_else(|_| Command::new("ocamlopt").args(["g.ml", "-o", "camel"]).current_dir(dir.path()).output());
    match built {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(_) => return trapless_testing::skip!("no ocamlopt"),
    }
    let stripped = dir.path().join("camel_s");
    fs::copy(dir.path().join("camel"), &stripped).unwrap();
    assert!(Command::new("strip").arg(&stripped).status().unwrap().success());
    for name in ["camel", "camel_s"] {
        let path = dir.path().join(name);
        let path = path.to_str().unwrap();
        let bare = finish(&mut Command::new(path));
        assert_eq!(bare.code, Some(0));
        for verb in [&["count"][..], &["count", "--return"], &["latency"]] {
            let ran = run(&[verb, &[&format!("{name}:caml*"), "-o", "/dev/null", "--", path]].concat());
            match verb {
                ["count"] => assert_eq!((ran.code, &ran.out), (Some(0), &bare.out), "{name}: {ran:?}"),
                _ => {
                    assert_eq!(ran.code, Some(1), "{name} {verb:?}: {ran:?}");
                    assert!(ran.err.contains("OCaml finds its frames"), "{ran:?}");
                }
            }
        }
    }
}

#[test]
fn v8_and_hotspot_are_not_followed() {
    let jvm = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let jvm = jvm.map(|entry| entry.path().join("lib/server/libjvm.so")).find(|path| path.exists());
    let found = [
        ("/usr/bin/node".into(), "v8::internal::Builtin_ErrorConstructor*", "V8"),
        (jvm.unwrap_or_default(), "SharedRuntime::resolve_virtual_call_C*", "HotSpot"),
    ];
    for (file, function, name) in found {
        if !file.exists() {
            trapless_testing::skip!("no {name}");
            continue;
        }
        let ran = run(&["list", &format!("{}:{function}", file.display()), "-f", "json"]);
        let rows = ran.json();
        assert!(!rows.is_empty(), "{ran:?}");
        for row in rows {
            assert_eq!(row["mechanism"], "jump", "{row}");
            assert_eq!(row["no_return_code"], "runtime", "{row}");
            assert!(row["no_return"].as_str().unwrap().contains(name), "{row}");
        }
    }
}

/// A library that copies stacks says so by the name of its switch; then nothing in the process is followed.
#[test]
fn where_stacks_are_copied_nothing_is_followed() {
    let source = r#"
    #include <stdio.h>
    __attribute__((noinline)) long slp_switch(long n) { __asm__ volatile("" : "+r"(n)); return n; }
    __attribute__((noinline)) long calls(long n) { return slp_switch(n) + 1; }
    int main(void) { printf("%ld\n", calls(41)); return 0; }"#;
    let program = Program::build("copies", source, &[]);
    let path = program.path().to_str().unwrap();
    for pattern in ["copies:calls", "libc.so.6:puts"] {
        let ran = run(&["count", "--return", pattern, "--", path]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("stacks are copied"), "{ran:?}");
    }
    let ran = finish(&mut trapless(&["count", "copies:calls", "-o", "/dev/null", "--", path]));
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "42\n"), "{ran:?}");
}
