//! Exceptions and panics that pass followed calls (hard case R3): the program must not notice, and calls after them are followed as before.

use crate::support::tool::{Ran, finish, run};
use std::process::Command;

const EXCEPTIONS: &str = r#"
    #include <cstdio>
    #include <exception>
    #include <execinfo.h>
    #include <stdexcept>
    #include <string>
    struct Counted { static long alive; Counted() { alive++; } ~Counted() { alive--; } };
    long Counted::alive = 0;
    extern "C" __attribute__((noinline, noclone)) long probed(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
    __attribute__((noinline)) long deep(long n) {
        Counted here;
        if (n == 0) throw std::runtime_error("deep");
        if (n < 0) throw 7;
        return deep(n > 0 ? n - 1 : n + 1) + probed(n);
    }
    __attribute__((noinline)) long rethrow(long n) {
        Counted here;
        try { return deep(n); }
        catch (std::runtime_error &error) { probed(n); throw; }
    }
    __attribute__((noinline)) long caught(long n) {
        Counted here;
        try { return rethrow(n); }
        catch (std::exception &error) { return probed(n) + (std::string(error.what()) == "deep" ? 0 : 1000000); }
        catch (int seven) { return seven; }
    }
    __attribute__((noinline)) long later(long n) {
        std::exception_ptr kept;
        try { deep(n); } catch (...) { kept = std::current_exception(); }
        try { std::rethrow_exception(kept); } catch (std::exception &) { return probed(n); }
    }
    int main() {
        long sum = 0;
        for (long i = 0; i < 2000; i++) sum += caught(i % 20) + later(i % 7) + (i % 50 == 0 ? caught(-3) : 0);
        printf("%ld %ld\n", sum, Counted::alive);
        return 0;
    }
"#;

#[test]
fn r3_exceptions_pass_followed_calls() {
    for (name, flags) in [("throws", &["-O2"][..]), ("throws_static", &["-O2", "-static"])] {
        same_cpp(name, EXCEPTIONS, flags);
    }
}

/// Runs the program as it is, then with all its functions followed, and the library's, too; its output and exit code must be the same.
fn same_cpp(name: &str, source: &str, flags: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (file, path) = (dir.path().join("source.cc"), dir.path().join(name));
    std::fs::write(&file, source).unwrap();
    let Ok(built) = Command::new("g++").args(["-o"]).arg(&path).arg(&file).args(flags).output() else {
        trapless_testing::skip!("no g++");
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let bare = finish(&mut Command::new(&path));
    assert_eq!(bare.code, Some(0), "{name}: {bare:?}");
    let output = dir.path().join("result");
    let output = output.to_str().unwrap();
    for verb in [&["count", "--return"][..], &["latency"]] {
        let pattern = format!("{name}:*");
        let patterns = [&pattern[..], "libstdc++*:__cxa*", "libstdc++*:*terminate*"];
        let patterns = if name.ends_with("static") { &patterns[..1] } else { &patterns[..] };
        let options = ["-f", "json", "-o", output, "--", path.to_str().unwrap()];
        let ran = run(&[verb, patterns, &options].concat());
        assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{name} {verb:?}: {ran:?}");
        let summary = Ran { out: std::fs::read_to_string(output).unwrap(), ..ran }.summary();
        assert!(summary.hits("probed", "return") > 0, "{name} {verb:?}");
    }
}

const PANICS: &str = r#"
    #[no_mangle] #[inline(never)] pub extern "C" fn probed(n: u64) -> u64 { std::hint::black_box(n) + 1 }
    #[inline(never)] fn deep(n: u64) -> u64 { if n == 0 { panic!("deep") } std::hint::black_box(deep(n - 1)) + 1 }
    fn main() {
        std::panic::set_hook(Box::new(|_| ()));
        let mut sum = 0;
        for i in 0..500 {
            let caught = std::panic::catch_unwind(|| deep(i % 30));
            sum = probed(sum) + caught.is_err() as u64;
        }
        let frames = std::backtrace::Backtrace::force_capture().to_string();
        println!("{sum} {}", frames.contains("main"));
    }
"#;

#[test]
fn r3_rust_panics_pass_followed_calls() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("panics.rs"), dir.path().join("panics"));
    std::fs::write(&source, PANICS).unwrap();
    let built = Command::new("rustc").arg("-Copt-level=1").arg("-o").args([&path, &source]).output();
    let Ok(built) = built else { return trapless_testing::skip!("no rustc") };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let bare = finish(&mut Command::new(&path));
    assert_eq!(bare.out, "1000 true\n", "{bare:?}");
    let result = dir.path().join("result");
    for verb in [&["count", "--return"][..], &["latency"]] {
        let options =
            ["panics:*", "-f", "json", "-o", result.to_str().unwrap(), "--", path.to_str().unwrap()];
        let ran = run(&[verb, &options].concat());
        assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{verb:?} {ran:?}");
        let summary = Ran { out: std::fs::read_to_string(&result).unwrap(), ..ran }.summary();
        assert_eq!(summary.hits("probed", "return"), 500, "{verb:?}");
    }
}
