//! Programs that nobody here wrote, with every function of theirs and of libc probed at once: they must put out what they
//! put out unprobed, end with the same code, and keep their code byte for byte.

use crate::support::tool::{Ran, Tool, finish, run};
use crate::support::{self, Program, Target, end_with_us, eventually};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is measured: entries alone, entries and returns, and durations.
const VERBS: [&[&str]; 3] = [&["count"], &["count", "--return"], &["latency"]];

/// The path of a program, if it is installed.
fn installed(program: &str) -> Option<PathBuf> {
    let found = ["/usr/bin", "/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(program));
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        trapless_testing::skip!("no {program}");
    }
    found
}

/// Patterns for everything in `program` and in libc.
fn everything(program: &Path, is_static: bool) -> Vec<String> {
    // It may be a link to a file of another name.
    let file = fs::canonicalize(program).unwrap();
    let own = format!("{}:*", file.file_name().unwrap().to_str().unwrap());
    if is_static { vec![own] } else { vec![own, "libc.so.6:*".to_owned()] }
}

/// Runs `program` in `dir` as it is and under each verb. `before` makes the directory what it was.
fn transparent(program: &Path, args: &[&str], dir: &Path, is_static: bool, before: impl Fn()) {
    transparent_under(&VERBS, program, args, dir, is_static, before);
}

fn transparent_under(
    verbs: &[&[&str]],
    program: &Path,
    args: &[&str],
    dir: &Path,
    is_static: bool,
    before: impl Fn(),
) {
    let in_dir = |command: &mut Command| {
        before();
        finish(command.current_dir(dir).env("PYTHONHASHSEED", "0").env("LC_ALL", "C.UTF-8"))
    };
    let bare = in_dir(Command::new(program).args(args));
    let result = tempfile::NamedTempFile::new().unwrap();
    for verb in verbs {
        let name = format!("{} {args:?} under {verb:?}", program.display());
        let patterns = everything(program, is_static);
        let mut options: Vec<&str> = patterns.iter().map(String::as_str).collect();
        options.extend([
            "-f",
            "json",
            "-o",
            result.path().to_str().unwrap(),
            "--",
            program.to_str().unwrap(),
        ]);
        let ran = in_dir(&mut support::tool::trapless(&[*verb, &options, args].concat()));
        assert_eq!(ran.code, bare.code, "{name}: {}", ran.err);
        assert!(ran.out == bare.out, "{name} says\n{}\nwhere it said\n{}", ran.out, bare.out);
        let summary = Ran { out: fs::read_to_string(result.path()).unwrap(), ..ran }.summary();
        let probes = summary.0["probes"].as_array().unwrap();
        let hits: u64 = probes.iter().map(|p| p["hits"].as_u64().unwrap()).sum();
        assert!(probes.len() > 100 && hits > 100, "{name}: {} probes, {hits} hits", probes.len());
    }
}

/// The tests' own data.
fn data(name: &str) -> String {
    format!("{}/tests/end_to_end/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Text to compress and to sort: `lines` lines.
fn text(lines: u64) -> String {
    (0..lines).map(|i| format!("{} line {}\n", i * 7919 % 100_003, i * i % 977)).collect()
}

#[test]
fn python_through_its_standard_library() {
    let Some(python) = installed("python3") else { return };
    let dir = tempfile::tempdir().unwrap();
    transparent(&python, &["-B", &data("stdlib.py")], dir.path(), false, || ());
}

#[test]
fn sqlite_on_a_script() {
    let Some(sqlite) = installed("sqlite3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = "create table t(a integer primary key, b text, c real);\n\
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)\n\
          insert into t select i, printf('%05d-%s', i * 7919 % 5003, hex(i)), i / 3.0 from n;\n\
        create index tb on t(b);\n.mode box\n\
        select b, c, row_number() over (order by b) from t where b like '0%7%' order by b limit 20;\n\
        select count(*), sum(c), group_concat(substr(b, 1, 2)) from (select * from t limit 50);\n\
        begin; delete from t where a % 3 = 0; rollback;\nselect json_group_array(a) from t where a % 777 = 0;\n\
        update t set c = c * 2 where a < 100; vacuum; pragma integrity_check;\nselect nothing from nowhere;\n";
    fs::write(dir.path().join("script"), script).unwrap();
    let fresh = || drop(fs::remove_file(dir.path().join("base")));
    transparent(&sqlite, &["base", ".read script"], dir.path(), false, fresh);
}

#[test]
fn git_on_a_repository() {
    let Some(git) = installed("git") else { return };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("repository");
    let template = dir.path().join("template");
    let make = |args: &[&str]| {
        let mut command = Command::new(&git);
        command.current_dir(&template).args(args).env("HOME", dir.path());
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "a").env(format!("GIT_{who}_EMAIL"), "a@b");
            command.env(format!("GIT_{who}_DATE"), "2024-01-01T00:00:00Z");
        }
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    };
    fs::create_dir(&template).unwrap();
    make(&["init", "-q", "-b", "main"]);
    for commit in 0..12 {
        fs::write(template.join(format!("file{}", commit % 4)), text(50 + 20 * commit)).unwrap();
        make(&["add", "."]);
        make(&["commit", "-q", "-m", &format!("commit {commit}")]);
    }
    let fresh = || {
        let _ = fs::remove_dir_all(&place);
        assert_eq!(finish(Command::new("cp").arg("-a").args([&template, &place])).code, Some(0));
    };
    for args in
        [&["log", "--stat", "-p", "--date=iso"][..], &["gc", "-q"], &["fsck", "--full", "--no-progress"]]
    {
        let place = place.to_str().unwrap();
        let safe = ["-c", "safe.directory=*", "-C", place];
        transparent(&git, &[&safe, args].concat(), dir.path(), false, fresh);
    }
}

#[test]
fn compressors_there_and_back() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("text"), text(100_000)).unwrap();
    for (program, pack, suffix) in [
        ("gzip", &["-kfn9"][..], "gz"),
        ("xz", &["-kf1"], "xz"),
        ("xz", &["-kf1", "-T2", "--block-size=300000"], "xz"),
    ] {
        let Some(program) = installed(program) else { continue };
        let (packed, text) = (dir.path().join(format!("text.{suffix}")), dir.path().join("text"));
        let original = fs::read(&text).unwrap();
        transparent(&program, &[pack, &["text"]].concat(), dir.path(), false, || ());
        let bytes = fs::read(&packed).unwrap();
        assert_eq!(
            finish(Command::new(&program).args(pack).arg("text").current_dir(dir.path())).code,
            Some(0)
        );
        assert!(bytes == fs::read(&packed).unwrap(), "{} {pack:?}", program.display());
        transparent(&program, &["-dkf", &format!("text.{suffix}")], dir.path(), false, || ());
        assert!(original == fs::read(&text).unwrap(), "{} {pack:?}", program.display());
    }
}

#[test]
fn sort_with_two_threads() {
    let Some(sort) = installed("sort") else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("text"), text(150_000)).unwrap();
    let args = ["--parallel=2", "-S", "8M", "-k2,2n", "-k1,1", "text", "-o", "sorted"];
    transparent(&sort, &args, dir.path(), false, || ());
    let sorted = fs::read(dir.path().join("sorted")).unwrap();
    assert_eq!(finish(Command::new(&sort).args(args).current_dir(dir.path())).code, Some(0));
    assert!(sorted == fs::read(dir.path().join("sorted")).unwrap());
}

/// Uses a good part of a C library, on several threads.
const LIBRARY_USER: &str = r#"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>
static int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static void *work(void *seed) {
    unsigned n = (unsigned)(long)seed;
    char *text = malloc(1);
    size_t length = 0;
    double sum = 0;
    int numbers[200];
    for (int round = 0; round < 300; round++) {
        char line[128];
        n = n * 1103515245u + 12345u;
        int wrote = snprintf(line, sizeof line, "%08x %-10.3f %s %lld\n", n, n / 7.0, round % 2 ? "odd" : "even", (long long)n * n);
        text = realloc(text, length + wrote + 1);
        memcpy(text + length, line, wrote + 1);
        length += wrote;
        sum += strtod(line + 9, 0) + strtol(line, 0, 16) % 97;
        for (int i = 0; i < 200; i++) numbers[i] = (int)(n >> (i % 20)) % 1000 + i;
        qsort(numbers, 200, sizeof *numbers, order);
        sum += numbers[100] + (strstr(text, "even ") != 0) + strlen(text) % 7;
    }
    struct tm when;
    time_t then = 1700000000 + (long)seed;
    char date[64];
    strftime(date, sizeof date, "%c %j", gmtime_r(&then, &when));
    char *result = malloc(256);
    snprintf(result, 256, "%.6g %zu %s %s", sum, length, date, strerror(ENOENT));
    free(text);
    return result;
}
int main(void) {
    pthread_t id[4];
    for (long i = 0; i < 4; i++) pthread_create(&id[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 4; i++) { void *text; pthread_join(id[i], &text); puts(text); free(text); }
    return 3;
}
"#;

#[test]
fn static_stripped_and_musl_programs() {
    for (name, flags) in [
        ("dynamic", &[][..]),
        ("stripped", &["-s"]),
        ("static", &["-static"]),
        ("static_pie", &["-static-pie"]),
        ("static_stripped", &["-static", "-s"]),
    ] {
        let program = match Program::try_build("gcc", name, LIBRARY_USER, flags) {
            Ok(program) => program,
            Err(why) if name == "static_pie" => {
                trapless_testing::inapplicable!("the C library has nothing for -static-pie: {why}");
                continue;
            }
            Err(why) => panic!("{why}"),
        };
        let is_static = name.starts_with("static");
        // Nothing tells where the unwinder of a stripped static program is. There calls are followed to their exits, which only x86 can; and
        // on powerpc64le unwinders would go astray wherever they meet us.
        let possible: &[&[&str]] = match name {
            "static_stripped" if cfg!(target_arch = "aarch64") => &VERBS[..1],
            "static_stripped" if cfg!(target_arch = "powerpc64") => &[],
            _ => &VERBS,
        };
        transparent_under(possible, program.path(), &[], program.dir(), is_static, || ());
        for verb in &VERBS[possible.len()..] {
            let ran = run(&[*verb, &["static_stripped:*", "--", program.path().to_str().unwrap()]].concat());
            ran.assert_refused(1, &["unwinder cannot be probed"]);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("source.c"), dir.path().join("musl"));
    fs::write(&source, LIBRARY_USER).unwrap();
    let Ok(built) = Command::new("musl-gcc").args(["-O1", "-static", "-o"]).args([&path, &source]).output()
    else {
        trapless_testing::skip!("no musl-gcc");
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    transparent(&path, &[], dir.path(), true, || ());
}

/// Works until it is told to stop, and says whether it always came to the same.
const PYTHON_LOOP: &str = "
import hashlib, json, re, select, sys, zlib
def work():
    data = [{'n': i, 's': str(i) * (i % 9)} for i in range(300)]
    text = json.dumps(sorted(data, key=lambda d: d['s']))
    return hashlib.sha256(zlib.compress(re.sub(r'1+', 'x', text).encode())).hexdigest()
first, rounds = work(), 0
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    assert work() == first
    rounds += 1
print('same', rounds > 0, flush=True)
";

#[test]
fn a_running_python_is_probed_and_left_as_it_was() {
    let Some(python) = installed("python3") else { return };
    let mut target = Target::start(Command::new(&python).args(["-c", PYTHON_LOOP]));
    let pid = target.pid().to_string();
    let patterns = everything(&python, false);
    for verb in VERBS.iter().cycle().take(6) {
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let summary =
            run(&[verb, &patterns[..], &["-p", &pid, "-d", "0.3", "-f", "json"]].concat()).summary();
        let hits: u64 =
            summary.0["probes"].as_array().unwrap().iter().map(|p| p["hits"].as_u64().unwrap()).sum();
        assert!(hits > 1000, "{verb:?}: {hits}");
    }
    target.tell("stop");
    assert_eq!(target.line(), "same True");
    assert!(target.wait().success());
}

/// A server on a socket of its own, ended with the test.
struct Redis {
    child: std::process::Child,
    socket: PathBuf,
}

impl Redis {
    fn start(dir: &Path) -> Option<Redis> {
        let (server, cli) = (installed("redis-server")?, installed("redis-cli")?);
        let socket = dir.join("socket");
        let mut command = Command::new(server);
        command.args(["--port", "0", "--save", "", "--daemonize", "no", "--unixsocket"]).arg(&socket);
        command.current_dir(dir).stdout(fs::File::create(dir.join("log")).unwrap());
        let redis = Redis { child: end_with_us(&mut command).spawn().unwrap(), socket };
        let ping = || finish(Command::new(&cli).arg("-s").arg(&redis.socket).arg("ping")).out == "PONG\n";
        eventually("the server answers", ping);
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_busy_redis_is_probed_and_left_as_it_was() {
    let Some(benchmark) = installed("redis-benchmark") else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(mut redis) = Redis::start(dir.path()) else { return };
    let pid = redis.child.id() as i32;
    let text = support::text::Text::of(pid);
    let requests = trapless_testing::asked("TRAPLESS_REQUESTS", 15_000).to_string();
    for verb in VERBS {
        let load = || {
            let mut load = Command::new(&benchmark);
            load.arg("-s").arg(&redis.socket);
            load.args(["-t", "get,set,lpush,hset,zadd", "-c", "20", "--csv", "-n", &requests]);
            std::thread::spawn(move || finish(&mut load))
        };
        let before = load();
        let process = pid.to_string();
        let patterns = everything(&fs::read_link(format!("/proc/{pid}/exe")).unwrap(), false);
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let tool = Tool::armed(&[verb, &patterns[..], &["-p", &process]].concat());
        // The first may be over before anything is armed.
        let loads = [load(), before].map(|load| load.join().unwrap());
        let summary = tool.interrupt();
        for load in loads {
            assert_eq!(load.code, Some(0), "{verb:?}: {load:?}");
            assert_eq!(load.out.lines().count(), 6, "{verb:?}: {load:?}");
        }
        let hits: u64 =
            summary.0["probes"].as_array().unwrap().iter().map(|p| p["hits"].as_u64().unwrap()).sum();
        assert!(hits > 1000, "{verb:?}: {hits}");
        let cli = installed("redis-cli").unwrap();
        let asked = finish(Command::new(cli).arg("-s").arg(&redis.socket).args(["incr", "answers"]));
        assert!(
            asked.out.trim().parse::<u64>().is_ok(),
            "{verb:?}: {asked:?} {:?}\n{}",
            redis.child.try_wait(),
            fs::read_to_string(dir.path().join("log")).unwrap_or_default()
        );
        // Threads may have to return, and their stacks to be written over, before the last of the memory goes.
        eventually("nothing leads into memory of ours", || {
            support::tool::detach(pid);
            run(&["status", "-p", &process, "-f", "json"]).out.is_empty()
        });
        text.assert_restored(pid);
    }
}
