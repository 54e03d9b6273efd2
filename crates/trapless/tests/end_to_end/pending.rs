//! Hard case L2: libraries that come after the probes, and go, and come back. No call in them is missed, their constructors among them, and
//! nothing waits for a tool that is gone.

use crate::support::tool::{Ran, Tool, detach, finish, run, trapless};
use crate::support::{Program, Target, text};
use std::time::{Duration, Instant};

/// A library whose constructor calls what is probed, seven times.
const LIBRARY: &str = r#"
static int constructed;
__attribute__((noipa)) long plug_work(long x) { asm volatile("" ::: "memory"); return x * 3 + 1; }
__attribute__((noipa)) long plug_through(void (*f)(void)) { f(); asm volatile("" ::: "memory"); return 1; }
__attribute__((constructor)) static void begin(void) { for (int i = 0; i < 7; i++) constructed += plug_work(i) > 0; }
"#;

/// Loads, unloads and calls libraries as it is told, each with a number. Answers with what calls give.
const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *loaded[9];
static long call(int n, int count) {
    long (*work)(long) = (long (*)(long))dlsym(loaded[n], "plug_work"), sum = 0;
    for (int i = 0; i < count; i++) sum += work(i);
    return sum;
}
int main(int argc, char **argv) {
    char line[64]; int n, count;
    setbuf(stdout, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long answer = 0;
        if (sscanf(line, "load %d", &n) == 1) {
            loaded[n] = dlopen(argv[1 + n], RTLD_NOW);
            if (!loaded[n]) { puts(dlerror()); exit(1); }
        }
        else if (sscanf(line, "unload %d", &n) == 1) answer = dlclose(loaded[n]);
        else if (sscanf(line, "call %d %d", &n, &count) == 2) answer = call(n, count);
        else if (sscanf(line, "fork %d", &n) == 1) {
            pid_t child = fork();
            if (!child) { loaded[n] = dlopen(argv[1 + n], RTLD_NOW); _exit(loaded[n] ? call(n, 5) : 1); }
            waitpid(child, &count, 0);
            answer = WEXITSTATUS(count);
        }
        printf("%ld\n", answer);
    }
}
"#;

fn library(name: &str) -> Program {
    Program::build(name, LIBRARY, &["-shared", "-fPIC"])
}

fn tell(target: &mut Target, what: &str) -> i64 {
    target.tell(what);
    target.line().parse().unwrap_or_else(|_| panic!("{what}"))
}

fn interrupted(tool: Tool) -> Ran {
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

/// What `count` calls give, from 0 on.
fn sum(count: i64) -> i64 {
    (0..count).map(|x| x * 3 + 1).sum()
}

#[test]
fn l2_every_call_in_a_library_that_comes_later_is_counted_and_again_when_it_comes_back() {
    let (one, other) = (library("libpendone.so"), library("libpendother.so"));
    let host = Program::build("pendhost", HOST, &["-ldl"]);
    for arguments in [&["count"][..], &["count", "--return"], &["latency"], &["trace", "--return"]] {
        let mut target = host.start(&[one.path().to_str().unwrap(), other.path().to_str().unwrap()]);
        let (pid, before) = (target.pid().to_string(), target.text());
        let path = one.path().to_str().unwrap();
        let specs = [format!("{path}:plug_work"), "libpendother.so:plug_w*".to_owned()];
        let tool = Tool::armed(&[arguments, &["--pending", "-p", &pid, &specs[0], &specs[1]]].concat());
        assert_eq!(tell(&mut target, "load 0"), 0);
        assert_eq!(tell(&mut target, "call 0 10"), sum(10));
        for _ in 0..3 {
            assert_eq!(tell(&mut target, "unload 0"), 0);
            assert_eq!(tell(&mut target, "load 1"), 0);
            assert_eq!(tell(&mut target, "load 0"), 0);
            assert_eq!(tell(&mut target, "call 0 4"), sum(4));
            assert_eq!(tell(&mut target, "call 1 2"), sum(2));
            assert_eq!(tell(&mut target, "unload 1"), 0);
        }
        let ran = interrupted(tool);
        let summary = ran.summary();
        let kind = if arguments[0] == "latency" { "return" } else { "entry" };
        let expected = [("libpendone.so", 7 + 10 + 3 * (7 + 4)), ("libpendother.so", 3 * (7 + 2))];
        for (module, calls) in expected {
            let rows = summary.0["probes"].as_array().unwrap();
            let of_module = |row: &&serde_json::Value| row["module"] == module && row["kind"] == kind;
            let hits: Vec<_> = rows.iter().filter(of_module).map(|row| row["hits"].as_u64()).collect();
            assert_eq!(hits, [Some(calls)], "{arguments:?} {module}: {ran:?}");
        }
        assert_eq!(summary.0["lost_sites"].as_array().map_or(0, Vec::len), 0, "{ran:?}");
        target.text().assert_is_of_files(target.pid());
        assert_eq!(tell(&mut target, "call 0 3"), sum(3));
        assert_eq!(tell(&mut target, "load 1"), 0);
        assert_eq!(tell(&mut target, "call 1 3"), sum(3));
        assert_eq!([tell(&mut target, "unload 0"), tell(&mut target, "unload 1")], [0, 0]);
        before.assert_restored(target.pid());
    }
}

#[test]
fn l2_a_command_loads_its_libraries_with_probes_in_both_widths() {
    for host in Program::in_both_widths("pendlaunched", HOST, &["-ldl"]) {
        let flags = ["-shared", "-fPIC"];
        let library = match host.is_32bit() {
            true => Program::narrow("libpendwide.so", LIBRARY, &flags).unwrap(),
            false => library("libpendwide.so"),
        };
        let path = library.path().to_str().unwrap();
        for follow in [&[][..], &["--follow", "--pending"]] {
            let spec = format!("{path}:plug_work");
            let [script, results] = ["script", "results"].map(|name| library.dir().join(name));
            std::fs::write(&script, "load 0\ncall 0 10\nunload 0\nload 0\ncall 0 1\n").unwrap();
            // What nothing is loaded into is not in the report.
            let shell = ["sh", "-c", "/bin/true; exec \"$0\" \"$@\""];
            let shell = if follow.is_empty() { &[][..] } else { &shell };
            let command = [&["--"], shell, &[host.path().to_str().unwrap(), path]].concat();
            let output = ["count", "-f", "json", "-o", results.to_str().unwrap()];
            let arguments = [&output[..], follow, &[&spec], &command].concat();
            let ran = finish(trapless(&arguments).stdin(std::fs::File::open(&script).unwrap()));
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert!(ran.out.ends_with(&format!("0\n{}\n0\n0\n1\n", sum(10))), "{ran:?}");
            let results = std::fs::read_to_string(&results).unwrap();
            let lines = results.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            let lines: Vec<_> = lines.collect();
            let commands = lines.iter().filter(|line| line["type"] == "command").count();
            assert_eq!(commands, usize::from(!follow.is_empty()), "{results}");
            let hits: u64 = lines
                .into_iter()
                .filter(|line| line["type"] == "summary")
                .flat_map(|line| line["probes"].as_array().cloned().unwrap_or_default())
                .map(|row| row["hits"].as_u64().unwrap())
                .sum();
            assert_eq!(hits, 7 + 10 + 7 + 1, "{follow:?} {results}");
        }
    }
}

#[test]
fn l2_a_tool_that_was_killed_keeps_nobody_waiting_for_long() {
    let library = library("libpendkilled.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendkilled", HOST, &["-ldl"]).start(&[path]);
    let (pid, before) = (target.pid().to_string(), target.text());
    Tool::armed(&["latency", "-p", &pid, &format!("{path}:plug_work")]).kill();
    // Whatever the time: it goes on, and the second time at once.
    assert_eq!(tell(&mut target, "load 0"), 0);
    let since = Instant::now();
    for _ in 0..50 {
        assert_eq!(tell(&mut target, "call 0 10"), sum(10));
        assert_eq!(tell(&mut target, "unload 0"), 0);
        assert_eq!(tell(&mut target, "load 0"), 0);
    }
    assert!(since.elapsed() < Duration::from_secs(60), "each of a hundred changes waited");
    assert_eq!(detach(target.pid()).code, Some(0));
    assert_eq!(tell(&mut target, "call 0 10"), sum(10));
    assert_eq!(tell(&mut target, "unload 0"), 0);
    before.assert_restored(target.pid());
}

#[test]
fn l2_who_waits_when_probes_are_taken_out_goes_on() {
    let library = library("libpendstorm.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendstorm", HOST, &["-ldl"]).start(&[path]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let spec = format!("{path}:plug_*");
    for round in 0..12 {
        let tool = Tool::armed(&["count", "--return", "-p", &pid, &spec]);
        // Some hundred changes are told of while the tool is ended, one way or the other.
        for _ in 0..20 {
            target.tell("load 0");
            target.tell("call 0 10");
            target.tell("unload 0");
        }
        if round % 3 == 0 {
            tool.kill();
            assert_eq!(detach(target.pid()).code, Some(0));
        } else {
            tool.interrupt();
        }
        for _ in 0..20 {
            assert_eq!([target.line(), target.line(), target.line()], ["0", &sum(10).to_string(), "0"]);
        }
    }
    detach(target.pid());
    before.assert_restored(target.pid());
}

#[test]
fn l2_a_forked_child_that_is_not_followed_does_not_wait() {
    let library = library("libpendchild.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendforks", HOST, &["-ldl"]).start(&[path]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "-p", &pid, &format!("{path}:plug_work")]);
    assert_eq!(tell(&mut target, "fork 0"), sum(5));
    let ran = interrupted(tool);
    assert!(ran.err.contains("was not armed: its library was not loaded"), "{ran:?}");
    assert!(!ran.err.contains("could not be probed in time"), "{ran:?}");

    let tool = Tool::armed(&["count", "-F", "--pending", "-p", &pid, &format!("{path}:plug_work")]);
    assert_eq!(tell(&mut target, "fork 0"), sum(5));
    assert_eq!(tell(&mut target, "load 0"), 0);
    let ran = interrupted(tool);
    let rows: Vec<_> = ran.json().into_iter().filter(|line| line["type"] == "summary").collect();
    let hits: Vec<_> = rows.iter().flat_map(|row| row["probes"].as_array().unwrap().clone()).collect();
    let mut hits: Vec<_> = hits.iter().map(|row| row["hits"].as_u64().unwrap()).collect();
    hits.sort_unstable();
    assert_eq!(hits, [7, 7 + 5], "{ran:?}");
}

#[test]
fn l2_what_is_nowhere_is_refused_and_what_waits_is_told() {
    let library = library("libpendnames.so");
    let path = library.path().to_str().unwrap();
    let target = Program::build("pendnames", HOST, &["-ldl"]).start(&[path]);
    let pid = target.pid().to_string();
    run(&["count", "-d", "1s", "-p", &pid, "libnowhere.so:f"])
        .assert_refused(5, &["no module matches 'libnowhere.so'", "--pending"]);
    run(&["count", "-d", "1s", "-p", &pid, &format!("{path}:plug_wrok")])
        .assert_refused(5, &["plug_wrok", "plug_work"]);
    let ran = run(&["count", "-d", "100ms", "--pending", "-p", &pid, "libnowhere.so:f"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in ["armed when its library is loaded", "was not armed: its library was not loaded"] {
        assert!(ran.err.contains(words), "{ran:?}");
    }
    // One is there, the other comes later.
    let ran = run(&["count", "-d", "100ms", "-p", &pid, "libc.so.6:malloc", &format!("{path}:plug_work")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("armed when its library is loaded"), "{ran:?}");
}

/// The loader tells of a library ahead of relocating it. What it writes into the code then must not meet a jump of ours.
#[test]
fn l2_a_library_whose_code_the_loader_changes_is_left_alone() {
    let source = "long other = 3; __attribute__((noipa)) long plug_work(long x) { return x * other + 1; }";
    let flags = ["-shared", "-fno-pic", "-Wl,-z,notext"];
    let Some(library) = Program::narrow("libpendtext.so", source, &flags) else { return };
    let Some(host) = Program::narrow("pendtext", HOST, &["-ldl"]) else { return };
    let path = library.path().to_str().unwrap();
    let mut target = host.start(&[path]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "-p", &pid, &format!("{path}:plug_work")]);
    assert_eq!(tell(&mut target, "load 0"), 0);
    assert_eq!(tell(&mut target, "call 0 10"), sum(10));
    let summary = interrupted(tool).summary();
    assert!(summary.skipped("plug_work").is_some_and(|why| why.contains("text relocations")), "{summary:?}");
    assert_eq!(tell(&mut target, "call 0 10"), sum(10));
}

/// A process whose system calls are filtered is not held: what it may call is not known. Its libraries are found by looking.
#[test]
fn l2_libraries_of_a_filtered_process_are_found_by_looking() {
    let source = format!(
        "#include <linux/filter.h>\n#include <linux/seccomp.h>\n#include <sys/prctl.h>\n\
         __attribute__((constructor)) static void filter(void) {{\n\
         struct sock_filter all = BPF_STMT(BPF_RET, SECCOMP_RET_ALLOW);\n\
         struct sock_fprog program = {{ 1, &all }};\n\
         prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);\n}}\n{HOST}"
    );
    let library = library("libpendfilter.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendfilter", &source, &["-ldl"]).start(&[path]);
    let pid = target.pid().to_string();
    let mut tool = Tool::armed(&[
        "count",
        "--allow-seccomp",
        "-i",
        "50ms",
        "-p",
        &pid,
        "libc.so.6:atoi",
        &format!("{path}:plug_work"),
    ]);
    assert_eq!(tell(&mut target, "load 0"), 0);
    // The next look finds it, whenever that is.
    let mut hits = 0;
    while hits == 0 {
        assert_eq!(tell(&mut target, "call 0 1"), sum(1));
        let line: serde_json::Value = serde_json::from_str(&tool.line()).unwrap();
        assert_eq!(line["type"], "interval", "{line}");
        hits = line["probes"].as_array().unwrap().iter().map(|row| row["hits"].as_u64().unwrap()).sum();
    }
    assert_eq!(tell(&mut target, "call 0 10"), sum(10));
    let ran = interrupted(tool);
    assert!(ran.summary().hits("plug_work", "entry") >= 10, "{ran:?}");
    assert!(ran.err.contains("found by looking"), "{ran:?}");
}

/// A library with a USDT probe, whose result tells of the probe's semaphore.
const GUARDED: &str = r#"
unsigned short plug_semaphore __attribute__((section(".probes"), used, visibility("hidden")));
__attribute__((noipa)) long plug_work(long x) {
    asm volatile("990: nop\n"
        ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n"
        "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte plug_semaphore\n"
        ".asciz \"plug\"\n.asciz \"guarded\"\n.asciz \"8@%0\"\n994: .balign 4\n.popsection\n"
        ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.popsection\n.endif\n" :: "r"(x));
    return x * 3 + 1 + 1000 * plug_semaphore;
}
"#;

#[test]
fn l2_semaphores_of_libraries_that_come_later_are_raised_and_lowered() {
    let library = Program::build("libpendusdt.so", GUARDED, &["-shared", "-fPIC"]);
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendusdt", HOST, &["-ldl"]).start(&[path]);
    let (pid, spec) = (target.pid().to_string(), format!("usdt:{path}:plug:guarded"));
    for killed in [false, true] {
        let tool = Tool::armed(&["trace", "-p", &pid, &spec]);
        for _ in 0..3 {
            assert_eq!(tell(&mut target, "load 0"), 0);
            assert_eq!(tell(&mut target, "call 0 5"), sum(5) + 5 * 1000);
            assert_eq!(tell(&mut target, "unload 0"), 0);
        }
        assert_eq!(tell(&mut target, "load 0"), 0);
        if killed {
            tool.kill();
            assert_eq!(tell(&mut target, "call 0 5"), sum(5) + 5 * 1000);
            detach(target.pid());
        } else {
            let ran = interrupted(tool);
            assert_eq!(ran.summary().hits("plug:guarded", "entry"), 15, "{ran:?}");
        }
        assert_eq!(tell(&mut target, "call 0 5"), sum(5), "killed: {killed}");
        assert_eq!(tell(&mut target, "unload 0"), 0);
    }
}

/// What sandboxes itself when its probes are in already is let go on, and makes no call for us that it has forbidden to itself.
#[test]
fn l2_a_process_that_filters_itself_later_is_not_held_any_more() {
    // Everything is allowed but what waits and what asks for the time.
    let filter = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
static void filter(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
        BPF_STMT(BPF_RET, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
"#;
    let call =
        "if (sscanf(line, \"filter %d\", &n) == 1) filter();\n        else if (sscanf(line, \"load %d\"";
    let source = format!("{filter}{}", HOST.replace("if (sscanf(line, \"load %d\"", call));
    let library = library("libpendlater.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendlater", &source, &["-ldl"]).start(&[path]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&[
        "count",
        "--allow-seccomp",
        "-p",
        &pid,
        "libc.so.6:puts",
        &format!("{path}:plug_work"),
    ]);
    assert_eq!(tell(&mut target, "filter 0"), 0);
    // It is looked a few times a second whether it has filtered itself.
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..3 {
        assert_eq!(tell(&mut target, "load 0"), 0);
        assert_eq!(tell(&mut target, "call 0 10"), sum(10));
        assert_eq!(tell(&mut target, "unload 0"), 0);
    }
    let ran = interrupted(tool);
    assert!(ran.err.contains("found by looking"), "{ran:?}");
    assert_eq!(tell(&mut target, "load 0"), 0);
}

#[test]
fn l2_a_session_that_somebody_else_took_out_is_not_added_to() {
    let library = library("libpendgone.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendgone", HOST, &["-ldl"]).start(&[path]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let tool = Tool::armed(&["count", "-p", &pid, "libc.so.6:puts", &format!("{path}:plug_work")]);
    detach(target.pid());
    before.assert_restored(target.pid());
    for _ in 0..3 {
        assert_eq!(tell(&mut target, "load 0"), 0);
        assert_eq!(tell(&mut target, "call 0 10"), sum(10));
        assert_eq!(tell(&mut target, "unload 0"), 0);
        before.assert_restored(target.pid());
    }
    interrupted(tool);
}

/// As a debugger, a uprobe or another tool would.
#[test]
fn l2_where_the_gate_is_taken_away_libraries_are_found_by_looking() {
    let library = library("libpendungated.so");
    let path = library.path().to_str().unwrap();
    let mut target = Program::build("pendungated", HOST, &["-ldl"]).start(&[path]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let tool = Tool::armed(&["count", "-p", &pid, &format!("{path}:plug_work")]);
    before.put_back(target.pid(), "/ld");
    assert_eq!(tell(&mut target, "load 0"), 0);
    text::wait_until_written(target.pid(), path);
    assert_eq!(tell(&mut target, "call 0 10"), sum(10));
    let ran = interrupted(tool);
    assert!(ran.err.contains("found by looking"), "{ran:?}");
    assert!((10..=17).contains(&ran.summary().hits("plug_work", "entry")), "{ran:?}");
}

#[test]
fn l2_libraries_of_one_name_have_rows_of_their_own() {
    let [one, other] = ["one", "other"].map(|_| library("libpendtwin.so"));
    let paths = [&one, &other].map(|library| library.path().to_str().unwrap());
    let mut target = Program::build("pendtwins", HOST, &["-ldl"]).start(&paths);
    let pid = target.pid().to_string();
    let specs = paths.map(|path| format!("{path}:plug_work"));
    let tool = Tool::armed(&["count", "-p", &pid, &specs[0], &specs[1]]);
    assert_eq!([tell(&mut target, "load 0"), tell(&mut target, "load 1")], [0, 0]);
    assert_eq!([tell(&mut target, "call 0 1"), tell(&mut target, "call 1 20")], [sum(1), sum(20)]);
    let ran = interrupted(tool);
    let rows = ran.summary().0["probes"].as_array().unwrap().clone();
    let mut hits: Vec<_> = rows.iter().map(|row| row["hits"].as_u64().unwrap()).collect();
    hits.sort_unstable();
    assert_eq!(hits, [7 + 1, 7 + 20], "{ran:?}");
}

#[test]
fn l2_a_name_that_a_library_has_not_is_told_when_it_comes() {
    let library = library("libpendtypo.so");
    let mut target = Program::build("pendtypo", HOST, &["-ldl"]).start(&[library.path().to_str().unwrap()]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "--pending", "-p", &pid, "libpendtypo.so:plug_wrok"]);
    assert_eq!(tell(&mut target, "load 0"), 0);
    let ran = interrupted(tool);
    assert!(ran.err.contains("plug_wrok") && ran.err.contains("did you mean plug_work"), "{ran:?}");
}
