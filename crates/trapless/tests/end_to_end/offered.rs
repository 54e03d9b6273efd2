//! What `list` offers is what `count` arms: in both directions, for entries and for returns, without a difference.

use crate::support::assembly::X86;
use crate::support::tool::{finish, run};
use crate::support::{self, Program, eventually, is_root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Module and address.
type Sites = BTreeSet<(String, u64)>;

fn sites<'a>(rows: impl Iterator<Item = &'a Value>) -> Sites {
    rows.map(|row| (row["module"].as_str().unwrap().to_owned(), row["address"].as_u64().unwrap())).collect()
}

/// What `list` offers at the functions that `patterns` name: entries, and returns.
fn offered(pid: &str, patterns: &[&str]) -> (Sites, Sites) {
    let options = ["-p", pid, "-f", "json", "--max-probes", "1000000", "--mechanism", "jump,short"];
    let ran = run(&[&["list"], patterns, &options].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let rows = ran.json();
    for row in &rows {
        assert!(row["mechanism"].is_string() || row["reason"].is_string(), "no reason: {row}");
        assert_eq!(row["reason"].is_string(), row["code"].is_string(), "{row}");
        assert_eq!(row["no_return"].is_string(), row["no_return_code"].is_string(), "{row}");
    }
    let possible = || rows.iter().filter(|row| row["mechanism"].is_string());
    (sites(possible()), sites(possible().filter(|row| row["no_return"].is_null())))
}

/// What `count` arms there, and what it leaves out.
fn armed(pid: &str, patterns: &[&str], kind: &str) -> (Sites, usize) {
    let verb = if kind == "entry" { &["count"][..] } else { &["count", "--return"] };
    let options = ["-p", pid, "-f", "json", "--max-probes", "1000000", "-d", "0.05"];
    let ran = run(&[verb, patterns, &options].concat());
    if ran.code == Some(1) && ran.err.contains("can be probed") {
        return (Sites::new(), 0);
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let summary = ran.summary().0;
    for skipped in summary["skipped"].as_array().unwrap() {
        let code = skipped["code"].as_str().unwrap();
        assert!(code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{skipped}");
    }
    let probes = summary["probes"].as_array().unwrap();
    let skipped = summary["skipped"].as_array().unwrap().len();
    (sites(probes.iter().filter(|probe| probe["kind"] == kind)), skipped)
}

#[track_caller]
fn compare(pid: i32, patterns: &[&str]) -> (usize, usize) {
    let pid = pid.to_string();
    let (entries, returns) = offered(&pid, patterns);
    for (kind, offered) in [("entry", &entries), ("return", &returns)] {
        let (armed, _) = armed(&pid, patterns, kind);
        let only = |one: &Sites, other: &Sites| one.difference(other).take(5).cloned().collect::<Vec<_>>();
        assert_eq!(
            (only(offered, &armed), only(&armed, offered)),
            (Vec::new(), Vec::new()),
            "{patterns:?} {kind}: offered and not armed, armed and not offered"
        );
    }
    (entries.len(), returns.len())
}

/// Waits for a line of input. With an argument it handles SIGSEGV.
const WAITS: &str = r#"
    #include <setjmp.h>
    #include <signal.h>
    #include <stdio.h>
    static void handler(int s) { (void)s; }
    __attribute__((noinline)) long loads(long *from) { return *from + 1; }
    __attribute__((noinline)) long adds(long a, long b) { __asm__ volatile("" : "+r"(a)); return a + b; }
    __attribute__((noinline)) int wraps(jmp_buf to) { return _setjmp(to); }
    int main(int argc, char **argv) {
        (void)argv;
        if (argc > 1) signal(SIGSEGV, handler);
        printf("ready\n");
        fflush(stdout);
        char line[16];
        long value = 1;
        jmp_buf to;
        if (!fgets(line, sizeof line, stdin)) return 2;
        return loads(&value) + adds(1, 2) + wraps(to) == 5 ? 0 : 1;
    }"#;

#[test]
fn what_list_offers_of_a_plain_program_and_its_c_library_is_armed() {
    let program = Program::build("waits", WAITS, &[]);
    let target = program.start(&[]);
    let (entries, returns) = compare(target.pid(), &["waits:*", "libc.so.6:*"]);
    assert!(entries > 2000 && returns > 1800, "{entries} {returns}");
}

#[test]
fn what_list_offers_of_a_static_and_of_a_stripped_program_is_armed() {
    for (name, flags) in [
        ("waits_static", &["-static"][..]),
        ("waits_static_s", &["-static", "-s"]),
        ("waits_s", &["-s"]),
        ("waits_fixed_s", &["-s", "-no-pie"]),
    ] {
        let program = Program::build(name, WAITS, flags);
        let target = program.start(&[]);
        let (entries, returns) = compare(target.pid(), &[&format!("{name}:*")]);
        // The C library of a static one throws exceptions by an unwinder inside. Where that has no name any more it cannot be hooked, and calls
        // are followed to their exits, on x86.
        assert!(
            entries > 3 && (returns > 0 || !X86 && name == "waits_static_s"),
            "{name}: {entries} {returns}"
        );
    }
}

#[test]
fn what_list_offers_where_faults_are_handled_is_armed() {
    let program = Program::build("waits", WAITS, &[]);
    let target = program.start(&["handles"]);
    compare(target.pid(), &["waits:*", "libc.so.6:*"]);
    let ran = run(&["list", "waits:loads", "-p", &target.pid().to_string(), "-f", "json"]);
    let row = &ran.json()[0];
    // Its handler will see the program; elsewhere it would see a detour.
    assert_eq!(row["mechanism"], if X86 { "jump" } else { "boost" }, "{row}");
}

#[test]
fn what_list_offers_of_a_go_program_is_armed() {
    let go = "package main\n\nimport (\n\t\"bufio\"\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n\tfmt.Println(\"ready\")\n\
        \tbufio.NewReader(os.Stdin).ReadString('\\n')\n}\n";
    let Some(program) = Program::go("goes", go, &[]) else { return };
    let target = program.start(&[]);
    let (entries, returns) = compare(target.pid(), &["goes:*"]);
    // All that the compiler made are followed; the run-time system's assembly can only be counted, as all is elsewhere.
    let is_right =
        if X86 { returns > 1000 && entries > returns * 51 / 50 } else { entries > 0 && returns == 0 };
    assert!(is_right, "{entries} {returns}");
}

#[test]
fn what_list_offers_of_postgres_is_armed() {
    let Some(programs) = std::fs::read_dir("/usr/lib/postgresql").ok().and_then(|mut all| all.next()) else {
        return trapless_testing::skip!("no postgres");
    };
    if !is_root() {
        return trapless_testing::inapplicable!("postgres runs as its own user, which takes root");
    }
    let programs = programs.unwrap().path().join("bin");
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let data = dir.path().join("data");
    let as_postgres = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        let user = ["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];
        command.args(user).arg(programs.join(program)).args(arguments).current_dir(dir.path());
        command
    };
    let data = data.to_str().unwrap();
    let made = finish(&mut as_postgres("initdb", &["-D", data, "--no-sync", "-A", "trust"]));
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut command = as_postgres("postgres", &["--single", "-D", data, "postgres"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Ended(support::end_with_us(&mut command).spawn().unwrap());
    let pid = server.0.id() as i32;
    eventually("postgres waits for a command", || {
        let wait = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        exe.file_name() == Some("postgres".as_ref()) && wait.contains("pipe")
    });
    let (entries, returns) = compare(pid, &["postgres:*"]);
    // It handles failed divisions, which few functions begin with.
    assert!(entries > 10_000 && returns > 9_000, "{entries} {returns}");
    server.0.stdin.take().unwrap().write_all(b"select 1\n").unwrap();
    assert!(server.0.wait().unwrap().success());
    assert!(Path::new(data).exists());
}

/// Killed when the test ends.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
