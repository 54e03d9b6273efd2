//! Probes that trap, end to end, on a small program whose functions start in every way that matters.

use crate::support::assembly::X86;
use crate::support::tool::{KINDS_BY_TRAP, RETURN_BY_TRAP};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The functions called once in each round, and the two that others of them call or jump to.
const ONCE: [&str; 9] = ["nop5", "endbr", "sub", "jcc", "call", "jump", "rip", "pushf", "ret"];
const TWICE: [&str; 2] = ["nop", "push"];

/// The compilers for 64-bit and for 32-bit targets.
const COMPILERS: [&str; 2] = ["gcc", "i686-linux-gnu-gcc"];

/// Where `assembly.h` is.
const SUPPORT: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/support");

/// Compiles a target for both widths, and without those that cannot be compiled or run here, said aloud.
fn compile(name: &str) -> Vec<PathBuf> {
    // Elsewhere there are no programs of 32 bits.
    let widths = if X86 { 2 } else { 1 };
    COMPILERS.into_iter().take(widths).filter_map(|compiler| compile_with(compiler, name)).collect()
}

fn compile_with(compiler: &str, name: &str) -> Option<PathBuf> {
    let source = format!("{}/tests/end_to_end/targets/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let file = format!("{name}-{compiler}-{}", std::process::id());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let mut command = Command::new(compiler);
    match command.args(["-O2", "-pthread", SUPPORT, "-o"]).arg(&program).arg(&source).output() {
        Ok(built) if built.status.success() => {}
        Ok(built) if compiler != "gcc" => {
            trapless_testing::skip!("{compiler}: {}", String::from_utf8_lossy(&built.stderr));
            return None;
        }
        Ok(built) => panic!("{source}: {}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => {
            trapless_testing::skip!("{compiler}: {error}");
            return None;
        }
    }
    if compiler != "gcc" && !Command::new(&program).output().is_ok_and(|ran| ran.status.success()) {
        trapless_testing::skip!("32-bit programs do not run here (libc6-i386?)");
        return None;
    }
    Some(program)
}

/// The program that most tests use, in each width.
fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| compile("traps"))
}

fn is_32_bit(program: &Path) -> bool {
    // EI_CLASS of the ELF header.
    std::fs::read(program).unwrap()[4] == 1
}

/// A process that is killed and waited for when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `trapless count -f json`, and its summary's probes as (function, kind, mechanism, hits).
fn count(flags: &[&str], program: &Path, arguments: &[&str]) -> (String, Vec<(String, String, String, u64)>) {
    let pattern = pattern(program);
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
    command.arg("count").args(flags).args(["-f", "json", "-o", "/dev/stderr", &pattern, "--"]);
    let output = command.arg(program).args(arguments).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{:?}\n{err}", output.status);
    let lines = err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let summary = lines.into_iter().find(|line| line["type"] == "summary").expect("a summary");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let probes = summary["probes"].as_array().expect("probes").iter();
    let rows = probes.map(|p| {
        (text(&p["function"]), text(&p["kind"]), text(&p["mechanism"]), p["hits"].as_u64().unwrap())
    });
    (String::from_utf8(output.stdout).unwrap(), rows.collect())
}

/// Entries and returns of every function are exact under every mechanism, with 1 to 4 threads; and the program, which catches
/// faults and traps and forks, sees nothing of it.
#[test]
fn every_mechanism_counts_exactly() {
    programs().iter().for_each(|program| counts_exactly(program));
}

fn counts_exactly(program: &Path) {
    // In 32 bits there is no rip: what it is there for takes a call.
    let calls: &[&str] = if is_32_bit(program) { &["jcc", "call", "rip"] } else { &["jcc", "call"] };
    // What each cannot do is skipped, and with --allow-trap another mechanism does it.
    let cases: [(&str, &[&str]); 4] = if X86 {
        [("step", &[]), ("emulate", &["jcc", "pushf"]), ("boost", calls), ("step,jump", &[])]
    } else {
        // What takes several instructions elsewhere comes to no end of its copy by itself.
        let on_arm64 = cfg!(target_arch = "aarch64");
        let several: &[&str] = if on_arm64 { &["rip"] } else { &[] };
        // It reads a system register on arm64, and elsewhere the condition register.
        let flags: &[&str] = if on_arm64 { &["pushf"] } else { &[] };
        [("step", &[]), ("emulate", flags), ("boost", several), ("step,jump", &[])]
    };
    for (mechanism, skipped) in cases {
        for threads in [1, 2, 4] {
            let name = format!("{mechanism}, {threads} threads");
            let flags = [RETURN_BY_TRAP, &["--all", "--mechanism", mechanism]].concat();
            let (out, rows) = count(&flags, program, &[&threads.to_string(), "100"]);
            if !mechanism.contains("jump") {
                assert_eq!(out, "traps 2 faults 1 read 7\n", "{name}");
            }
            for &kind in KINDS_BY_TRAP {
                let hits = |function: &str| {
                    let of = |row: &&(String, String, String, u64)| {
                        row.0 == format!("with_{function}") && row.1 == kind
                    };
                    rows.iter().find(of).map(|row| row.3)
                };
                for (functions, each) in [(&ONCE[..], 100), (&TWICE[..], 200)] {
                    for function in functions.iter().filter(|f| !skipped.contains(f)) {
                        assert_eq!(hits(function), Some(threads * each), "{name}: {function} {kind}");
                    }
                }
                assert_eq!(hits("fault"), Some(1), "{name}: a handler's retry is the same hit");
                assert!(skipped.iter().all(|f| hits(f).is_none()), "{name}");
            }
            assert!(rows.iter().all(|row| mechanism.contains(&row.2)), "{name}: {rows:?}");
        }
    }
}

/// S5: signals that come during a hit are handled, and hits in their handlers counted, exactly.
#[test]
fn s5_signals_during_hits_lose_nothing() {
    for program in compile("signals") {
        for mechanism in ["step", "emulate", "boost"] {
            let (out, rows) = count(&[RETURN_BY_TRAP, &["--mechanism", mechanism]].concat(), &program, &[]);
            let calls: u64 = out.trim().parse().unwrap();
            let hits: Vec<_> = rows.iter().map(|row| (row.1.as_str(), row.2.as_str(), row.3)).collect();
            let expected: Vec<_> = KINDS_BY_TRAP.iter().map(|&kind| (kind, mechanism, calls)).collect();
            assert_eq!(hits, expected, "{program:?}");
        }
        // In a machine of its own, the test sees what is compiled outside of it, and cannot change that.
        let _ = std::fs::remove_file(program);
    }
}

/// The command's exit code is the tool's, though a tracer hears of the end first.
#[test]
fn the_exit_code_of_a_launched_command_comes_through() {
    for _ in 0..20 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
        command.args(["count", "--mechanism", "step,emulate", "libc.so.6:exit", "--", "sh", "-c", "exit 7"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The executable mappings of a process that come from `program`, as they are in its memory.
fn text(pid: u32, program: &Path) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let name = program.to_str().unwrap();
    let line = maps.lines().find(|l| l.contains(" r-xp ") && l.ends_with(name)).expect("the program's text");
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|n| u64::from_str_radix(n, 16).unwrap());
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut bytes = vec![0; (end - start) as usize];
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start).unwrap();
    bytes
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program, calling its functions until it is killed.
fn forever(program: &Path) -> Running {
    let mut command = Command::new(program);
    command.args(["2", "50", "forever"]).stdout(Stdio::piped()).stdin(Stdio::null());
    let mut target = Running(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(target.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    target
}

fn pattern(program: &Path) -> String {
    format!("{}:with_*", program.file_name().unwrap().to_str().unwrap())
}

/// P9: the tool is killed at different moments while threads run through the breakpoints, slots and landing pads. Each time the
/// keeper takes everything out, and the target goes on.
#[test]
fn p9_killing_the_tool_leaves_the_target_alive_and_its_text_restored() {
    programs().iter().for_each(|program| kill_the_tool(program));
}

fn kill_the_tool(program: &Path) {
    let mut target = forever(program);
    let pid = target.0.id();
    let original = text(pid, program);
    for (round, mechanism) in ["step", "emulate", "boost", "step", "emulate", "boost"].into_iter().enumerate()
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
        command.arg("count").args(RETURN_BY_TRAP).args(["--mechanism", mechanism, "-p", &pid.to_string()]);
        command.arg(pattern(program));
        let mut tool = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        until("armed", || text(pid, program) != original);
        std::thread::sleep(Duration::from_millis(7 * round as u64));
        tool.0.kill().unwrap();
        until("restored", || text(pid, program) == original);
        until("let go", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            status.contains("TracerPid:\t0\n")
        });
        assert_eq!(target.0.try_wait().unwrap(), None, "{mechanism}: the target lives");
    }
}

/// Removal while the threads are running everywhere: at the sites, in the slots, at the jumps, at the pads. The program checks
/// its own results, and ends when they are wrong.
#[test]
fn ending_a_run_restores_the_text_and_disturbs_nothing() {
    programs().iter().for_each(|program| end_runs(program));
}

fn end_runs(program: &Path) {
    let mut target = forever(program);
    let pid = target.0.id();
    let original = text(pid, program);
    for mechanism in ["boost", "emulate", "step", "boost", "emulate", "step"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
        command.arg("count").args(RETURN_BY_TRAP);
        command.args(["--mechanism", mechanism, "-d", "0.05", "-p", &pid.to_string()]);
        let output = command.arg(pattern(program)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(target.0.try_wait().unwrap(), None, "{mechanism}: the target lives");
        assert_eq!(text(pid, program), original, "{mechanism}");
    }
}
