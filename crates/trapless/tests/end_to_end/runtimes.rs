//! Run-time systems that find their frames by return addresses go on as before: their own code is followed to where it is left, and no return
//! address is changed.

use crate::support::tool::{Ran, finish, run, trapless};
use crate::support::{Program, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn ocaml_is_followed_to_its_exits() {
    let dir = tempfile::tempdir().unwrap();
    // Collections and exceptions both look for frames.
    let source = "let rec build n = if n = 0 then [] else string_of_int n :: build (n - 1)\n\
        let rec thrower n = if n = 0 then failwith \"x\" else 1 + thrower (n - 1)\n\
        let () = let s = ref 0 in\n\
        for i = 1 to 50 do s := !s + List.length (build 1000); Gc.compact ();\n\
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
        let output = dir.path().join("numbers");
        for verb in [&["count"][..], &["count", "--return"], &["latency"]] {
            let options = ["-f", "json", "-o", output.to_str().unwrap(), "--", path];
            let ran = run(&[verb, &[&format!("{name}:caml*")], &options].concat());
            assert_eq!((ran.code, &ran.out), (Some(0), &bare.out), "{name} {verb:?}: {ran:?}");
            let numbers = Ran { out: fs::read_to_string(&output).unwrap(), ..ran }.summary();
            if (name, verb) != ("camel", &["count", "--return"]) {
                continue;
            }
            let probes = numbers.0["probes"].as_array().unwrap();
            let hits = |function: &str, kind: &str| {
                let begins = |name: &serde_json::Value| name.as_str().unwrap().starts_with(function);
                let row = probes.iter().find(|row| begins(&row["function"]) && row["kind"] == kind);
                row.map(|row| row["hits"].as_u64().unwrap())
            };
            let built = ["entry", "return"].map(|kind| hits("camlG__build_", kind));
            assert_eq!(built, [Some(50 * 1001); 2], "{numbers:?}");
            // The last of each goes on in `failwith`, and the others leave by the exception.
            let thrown: u64 = (1..=50).map(|n| n + 1).sum();
            let thrower = ["entry", "return"].map(|kind| hits("camlG__thrower_", kind));
            assert_eq!(thrower, [Some(thrown), Some(50)]);
        }
    }
}

/// The Java virtual machine's own library, where there is one.
fn libjvm() -> Option<PathBuf> {
    let all = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    all.map(|entry| entry.path().join("lib/server/libjvm.so")).find(|path| path.exists())
}

#[test]
fn most_functions_of_v8_hotspot_and_ocaml_are_followed_to_their_exits() {
    let found = [
        // What its compiler has made has conventions of its own.
        ("node", Some(PathBuf::from("/usr/bin/node")), &["-x", "Builtins_*"][..]),
        ("libjvm", libjvm(), &[]),
        ("ocamlopt", Some(PathBuf::from("/usr/bin/ocamlopt.opt")), &[]),
    ];
    for (name, file, without) in found {
        let Some(file) = file.filter(|file| file.exists()) else {
            trapless_testing::skip!("no {name}");
            continue;
        };
        let pattern = format!("{}:*", file.display());
        let ran = run(&[&["list", &pattern, "--max-probes", "1000000", "-f", "json"], without].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let rows = ran.json();
        let probed: Vec<_> = rows.iter().filter(|row| row["mechanism"].is_string()).collect();
        let followed = probed.iter().filter(|row| row["no_return"].is_null()).count();
        println!("{name}: {followed} of {}", probed.len());
        assert!(probed.len() > 1000 && followed * 100 >= probed.len() * 97, "{name}: {followed}");
    }
}

#[test]
fn node_does_what_it_does_with_all_of_it_followed() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("all.js");
    // Compiled and interpreted code, regular expressions, collections, exceptions with their stacks, and another thread.
    let source = "const a = []; for (let i = 0; i < 5000; i++) { a.push({ k: i, v: 'x' + i }); if (i % 1000 == 0) gc(); }\n\
         function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n\
         let frames = 0; try { null.x } catch (e) { frames = e.stack.split('\\n').length }\n\
         console.log(JSON.stringify(a).length, fib(20), frames, /a(b|c)*d/.test('abcbcd'));\n\
         const { Worker } = require('worker_threads');\n\
         new Worker(\"require('worker_threads').parentPort.postMessage([...'hello'].sort().join(''))\", { eval: true })\n\
         .on('message', m => console.log(m)); process.on('exit', c => console.log('exit', c));\n";
    fs::write(&script, source).unwrap();
    let node = "/usr/bin/node";
    if !Path::new(node).exists() {
        return trapless_testing::skip!("no node");
    }
    let command = [node, "--expose-gc", script.to_str().unwrap()];
    let bare = finish(Command::new(command[0]).args(&command[1..]));
    assert_eq!(bare.code, Some(0), "{bare:?}");
    for verb in [&["count", "--return"][..], &["latency"]] {
        let options = ["--max-probes", "1000000", "-o", "/dev/null", "/usr/bin/node:*", "--"];
        let ran = run(&[verb, &options, &command].concat());
        assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{verb:?}: {}", ran.err);
    }
}

#[test]
fn a_running_java_machine_does_what_it_does_with_all_of_it_followed() {
    let dir = tempfile::tempdir().unwrap();
    // Compiled and interpreted code, threads, exceptions with their stacks, collections, and a fault that means an exception.
    let source = "import java.util.*; import java.util.concurrent.*;\n\
        public class All { static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n\
        static int deep(int n) { if (n == 0) throw new RuntimeException(); return deep(n - 1) + 1; }\n\
        static int round() throws Exception {\n\
        ExecutorService pool = Executors.newFixedThreadPool(3); List<Future<Integer>> all = new ArrayList<>();\n\
        for (int i = 0; i < 6; i++) { int k = i; all.add(pool.submit(() -> fib(15 + k))); }\n\
        int sum = 0; for (Future<Integer> one : all) sum += one.get(); pool.shutdown();\n\
        for (int i = 0; i < 50; i++) try { deep(30); } catch (RuntimeException e) { sum += e.getStackTrace().length; }\n\
        for (int i = 0; i < 3; i++) { byte[][] g = new byte[50][9999]; System.gc(); sum += g.length; }\n\
        try { ((Object) null).hashCode(); } catch (NullPointerException e) { sum++; } return sum; }\n\
        public static void main(String[] args) throws Exception {\n\
        int first = round(); System.out.println(\"ready\");\n\
        while (System.in.available() == 0) if (round() != first) { System.out.println(\"wrong\"); return; }\n\
        System.out.println(\"right\"); } }\n";
    fs::write(dir.path().join("All.java"), source).unwrap();
    let compiled = Command::new("javac").arg("All.java").current_dir(dir.path()).output();
    if !compiled.is_ok_and(|ran| ran.status.success()) || libjvm().is_none() {
        return trapless_testing::skip!("no Java compiler or no libjvm");
    }
    let mut java = Target::start(Command::new("java").arg("-cp").arg(dir.path()).arg("All"));
    let pid = java.pid().to_string();
    for verb in [&["count", "--return"][..], &["latency"]] {
        let options = ["-p", &pid, "--max-probes", "1000000", "libjvm.so:*", "-d", "1", "-f", "json"];
        let ran = run(&[verb, &options].concat());
        assert_eq!(ran.code, Some(0), "{verb:?}: {}", ran.err);
        let summary = ran.summary();
        let probes = summary.0["probes"].as_array().unwrap();
        let returned = probes.iter().filter(|row| row["kind"] == "return" && row["hits"] != 0).count();
        assert!(returned > 100, "{verb:?}: {returned}");
    }
    java.tell("end");
    assert_eq!(java.line(), "right");
    assert!(java.wait().success());
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
