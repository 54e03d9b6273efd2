//! What scripts call their probes and compute with their names, how many there are, and how deep a call was.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::Program;
use crate::support::tool::{Ran, finish, trapless};

/// What the program says, whatever is probed in it.
const SAID: &str = "sum 160\n";

fn program() -> Program {
    Program::build("named", include_str!("targets/named.c"), &["-O1"])
}

/// Runs a script on the program, from the program's directory: its file is `./named` there.
#[track_caller]
fn told(program: &Program, script: &str) -> Ran {
    let ran = finish(trapless(&["-e", script, "--", "./named"]).current_dir(program.dir()));
    assert_eq!(ran.code, Some(0), "{script}: {ran:?}");
    assert!(ran.out.contains(SAID), "{script}: {ran:?}");
    ran
}

/// Fails unless a script prints just these lines, beside what the program says.
#[track_caller]
fn prints(program: &Program, script: &str, lines: &[&str]) {
    let ran = told(program, script);
    let own = ran.out.replace(SAID, "");
    let own: Vec<&str> = own.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(own, lines, "{script}: {}", ran.err);
}

#[test]
fn probes_are_called_as_the_script_writes_their_files() {
    let program = program();
    prints(
        &program,
        "uprobe:./named:handle_put*, uretprobe:./named:handle_get { @[probe] = count(); }",
        &[
            "@[uretprobe:./named:handle_get]: 6",
            "@[uprobe:./named:handle_put]: 7",
            "@[uprobe:./named:handle_putter]: 11",
        ],
    );
    // By a path that goes round, by a pattern, and by the name that the process has for it.
    let round =
        format!("{}/../{}/named", program.dir().display(), program.dir().file_name().unwrap().display());
    prints(
        &program,
        &format!("uprobe:{round}:rounds {{ print(probe); }}"),
        &[&format!("uprobe:{round}:rounds")],
    );
    prints(&program, "usdt:./nam*:app:place { @[probe] = count(); }", &["@[usdt:./named:app:place]: 2"]);
    let real = program.path().canonicalize().unwrap();
    prints(
        &program,
        "uprobe:named:rounds { print(probe); }",
        &[&format!("uprobe:{}:rounds", real.display())],
    );
}

#[test]
fn scripts_compute_with_the_name_of_each_probe() {
    let program = program();
    prints(
        &program,
        r#"uprobe:./named:handle_* /strcontains(probe, "put")/ { @put[func] = count(); }
           uprobe:./named:handle_* {
             if (probe == "uprobe:./named:handle_put") { @same = count(); }
             if (probe != "uprobe:./named:handle_put") { @other = count(); }
             if (strncmp(probe, "uprobe:./named:handle_putt", 26) == 0) { @begin = count(); }
             @length[strlen(probe), is_str(probe)] = count();
           }"#,
        &[
            "@begin: 11",
            "@length[28, true]: 11",
            "@length[25, true]: 13",
            "@other: 17",
            "@put[handle_put]: 7",
            "@put[handle_putter]: 11",
            "@same: 7",
        ],
    );
    // A USDT probe is one, at however many places it stands.
    prints(
        &program,
        r#"usdt:./named:app:* { if (strcontains(probe, ":place")) { @place = count(); } else { @round = count(); } }"#,
        &["@place: 2", "@round: 1000"],
    );
    let ran = finish(
        trapless(&["-e", "uprobe:./named:main { print(strlen(func)); }", "--", "./named"])
            .current_dir(program.dir()),
    );
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn each_round_of_a_loop_that_begins_with_a_static_probe_hits_it() {
    let program = program();
    prints(&program, "usdt:./named:app:round { @ = count(); }", &["@: 1000"]);
    // At its entry a function is called once.
    prints(&program, "uprobe:./named:rounds { @ = count(); }", &["@: 1"]);
}

#[test]
fn static_probes_are_counted_by_their_names() {
    let program = program();
    for (script, count) in [
        ("usdt:./named:app:place { }", "Attached 1 probe"),
        ("usdt:./named:app:* { }", "Attached 2 probes"),
        ("uprobe:./named:handle_*, usdt:./named:app:* { }", "Attached 5 probes"),
    ] {
        let ran = told(&program, script);
        assert!(ran.err.lines().any(|line| line == count), "{script}: {ran:?}");
    }
    // The same where no process is given, and nobody runs the file.
    let script = "usdt:./named:app:place { } interval:ms:1 { exit(); }";
    let ran = finish(trapless(&["-e", script]).current_dir(program.dir()));
    assert!(ran.err.lines().any(|line| line == "Attached 2 probes"), "{ran:?}");
}

#[test]
fn the_length_of_a_stack_is_how_many_frames_are_printed_of_it() {
    let program = program();
    prints(
        &program,
        "uprobe:./named:handle_get { @[len(ustack(3)), len(ustack) > 21] = count(); }",
        &["@[3, true]: 1", "@[3, false]: 5"],
    );
    let ran = told(&program, "uprobe:./named:handle_get { $s = ustack; printf(\"%d%s\\n\", len($s), $s); }");
    let own = ran.out.replace(SAID, "");
    let mut lines = own.lines().filter(|line| !line.trim().is_empty()).peekable();
    let mut seen = 0;
    while let Some(line) = lines.next() {
        let length: usize = line.trim().parse().unwrap_or_else(|_| panic!("{line:?}: {own}"));
        let mut frames = 0;
        while lines.next_if(|line| line.starts_with(' ')).is_some() {
            frames += 1;
        }
        assert_eq!(frames, length, "{own}");
        seen += 1;
    }
    assert_eq!(seen, 6, "{own}");
}

#[test]
fn a_pattern_of_files_means_those_that_the_process_has() {
    let program = program();
    trapless_testing::copy_program(program.path(), program.dir().join("named-too"));
    prints(&program, "uprobe:./named*:handle_put { @ = count(); }", &["@: 7"]);
}

#[test]
fn a_dry_run_looks_at_the_process_that_is_given() {
    let program = Program::build("operands", include_str!("targets/operands.c"), &["-O1"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let dry = |script: &str, pid: &str| finish(&mut trapless(&["--dry-run", "-e", script, "-p", pid]));
    let before = target.text();
    assert_eq!(dry("uprobe:operands:main { }", &pid).code, Some(0));
    for script in ["uprobe:nosuchlibrary:malloc { }", "uprobe:operands:no_such_function { }"] {
        let ran = dry(script, &pid);
        assert_ne!(ran.code, Some(0), "{script}: {ran:?}");
        assert!(ran.err.contains("nosuchlibrary") || ran.err.contains("no_such_function"), "{ran:?}");
    }
    let gone = dry("uprobe:operands:main { }", "4194303");
    assert!(gone.code != Some(0) && gone.err.contains("4194303"), "{gone:?}");
    before.assert_restored(target.pid());
}

#[test]
fn what_is_not_there_is_told_with_its_place_and_what_was_meant() {
    let program = program();
    // By bpftrace's name, whose words these are.
    let bpftrace = program.dir().join("bpftrace");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_trapless"), &bpftrace).unwrap();
    let told = |script: &str| {
        let mut command = std::process::Command::new(&bpftrace);
        let ran = finish(command.args(["--dry-run", "-e", script]).current_dir(program.dir()));
        assert_eq!(ran.code, Some(1), "{script}: {ran:?}");
        ran.err
    };
    for (script, words) in [
        ("uprobe:./named:handle_gte { }", "No matches for uprobe ./named:handle_gte."),
        ("uprobe:./named:handle_gte { }", "HINT: did you mean 'handle_get'?"),
        ("usdt:./named:app:pleace { }", "HINT: did you mean 'place'?"),
        (
            "uprobe:./nmaed:main { }",
            "stdin:1:1-20: ERROR: uprobe target file './nmaed' does not exist or is not executable\n\
             uprobe:./nmaed:main { }\n~~~~~~~~~~~~~~~~~~~",
        ),
        ("uprobe:./nmaed:main { }", "HINT: there is no such file"),
        ("uretprobe:./bpftrace/x:main { }", "uretprobe target file './bpftrace/x'"),
        ("usdt:/etc/passwd:a:b { }", "HINT: it is no ELF file"),
        ("uprobe:libnosuch:malloc { }", "HINT: no program and no library of that name is found"),
        ("begin { exit }", "HINT: exit is a function: exit()"),
        ("begin { x = 1; }", "HINT: names of variables begin with $, and those of maps with @"),
    ] {
        let err = told(script);
        assert!(err.contains(words), "{script}: {err}");
    }
    // What could have been anything is not guessed.
    assert!(!told("uprobe:./named:something_else { }").contains("HINT"));
}
