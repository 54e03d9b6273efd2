//! Command lines as tables: what they mean, or why they are refused.

use super::script::{Dialect, Script, Source, Task, Text};
use super::validated::{Command, Limits, Listing, Measure, Run, Target};
use super::*;
use crate::error::Error;
use crate::spec::Pattern;
use crate::whoever::Whoever;
use clap::CommandFactory;
use std::time::Duration;
use trapless_isa::Mechanism;

fn command(line: &str) -> Result<Command, Error> {
    let cli = Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
    Command::try_from(cli)
}

fn run(line: &str) -> Run {
    match command(line) {
        Ok(Command::Run(run)) => run,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn clap_finds_the_definition_sound() {
    Cli::command().debug_assert();
}

#[test]
fn the_documented_command_lines_mean_what_they_say() {
    let launch = |words: &[&str]| Target::Launch(words.iter().map(Into::into).collect());
    for (line, measure, target, probes) in [
        (
            "trapless count libc.so.6:malloc libc.so.6:free -- ls -lR /usr/share",
            Measure::Count,
            launch(&["ls", "-lR", "/usr/share"]),
            &["libc.so.6:malloc entry", "libc.so.6:free entry"][..],
        ),
        (
            "trapless count -p 4242 redis-server:*",
            Measure::Count,
            Target::Processes(vec![4242]),
            &["redis-server:* entry"],
        ),
        (
            "trapless latency -p 4242 redis-server:processCommand -d 10",
            Measure::Latency,
            Target::Processes(vec![4242]),
            &["redis-server:processCommand entry return"],
        ),
        (
            "trapless trace -p 4242 libc.so.6:open* --args 3 --return",
            Measure::Trace { args: 3 },
            Target::Processes(vec![4242]),
            &["libc.so.6:open* entry return"],
        ),
        (
            "trapless count /bin/sh:main",
            Measure::Count,
            Target::Whoever(Whoever { files: ["/bin/sh".into()].into(), ..Whoever::default() }),
            &["/bin/sh:main entry"],
        ),
        (
            "trapless count x:y -n sh --cgroup /sys/fs/cgroup/a/ --user 0",
            Measure::Count,
            Target::Whoever(Whoever {
                name: Some(Pattern::literal("sh")),
                cgroup: Some("/a".into()),
                user: Some(0),
                ..Whoever::default()
            }),
            &["x:y entry"],
        ),
        (
            "trapless count uretprobe:/bin/bash:readline u:/bin/bash:main -p 1 -p 2,1",
            Measure::Count,
            Target::Processes(vec![1, 2]),
            &["uretprobe:/bin/bash:readline return", "u:/bin/bash:main entry"],
        ),
    ] {
        let run = run(line);
        assert_eq!((run.measure, &run.target), (measure, &target), "{line}");
        let kinds = |entry: bool, returns: bool| match (entry, returns) {
            (true, true) => "entry return",
            (true, false) => "entry",
            _ => "return",
        };
        let shown =
            run.selection.probes.iter().map(|p| format!("{} {}", p.spec.text, kinds(p.entry, p.returns)));
        assert_eq!(shown.collect::<Vec<_>>(), probes, "{line}");
    }
}

#[test]
fn limits_are_taken_over() {
    let limits = run("trapless count -p 1 a:b -d 0.5 -i 100ms -M 7").limits;
    let milliseconds = |n| Some(Duration::from_millis(n));
    assert_eq!(
        limits,
        Limits { duration: milliseconds(500), interval: milliseconds(100), max_events: Some(7) }
    );
}

#[test]
fn nothing_traps_unless_it_is_asked_to() {
    use Mechanism::*;
    for (flags, expected) in [
        ("", &[Jump, Short][..]),
        (" --allow-trap", &[Jump, Short, Boost, Emulate, Step]),
        (" --mechanism step", &[Step]),
        (" --mechanism emulate,jump", &[Jump, Emulate]),
        (" --mechanism step --allow-trap", &[Step]),
        (" --mechanism auto", &[Jump, Short]),
        (" --mechanism auto --allow-trap", &[Jump, Short, Boost, Emulate, Step]),
        (" --mechanism auto,step", &[Jump, Short, Step]),
    ] {
        let run = run(&format!("trapless count -p 1 a:b{flags}"));
        assert_eq!(run.selection.mechanisms, expected, "{flags}");
        assert_eq!(run.selection.may_trap(), expected.iter().any(|it| it.traps()), "{flags}");
    }
    for (probe, mechanism) in [("a:b", None), ("jump:a:b", Some(Jump)), ("step:a:b", Some(Step))] {
        let run = run(&format!("trapless count -p 1 {probe}"));
        assert_eq!(run.selection.probes[0].spec.mechanism, mechanism);
        assert_eq!(run.selection.may_trap(), mechanism == Some(Step), "{probe}");
    }
}

#[test]
fn scripts_take_the_mechanisms_that_commands_take() {
    use Mechanism::*;
    for (flags, expected) in [
        ("", &[Jump, Short][..]),
        (" --allow-trap", &[Jump, Short, Boost, Emulate, Step]),
        (" --mechanism step,emulate", &[Emulate, Step]),
    ] {
        assert_eq!(script(&format!("trapless -e x -p 1{flags}")).mechanisms, expected, "{flags}");
        assert_eq!(script(&format!("trapless -e x{flags} -- ls")).mechanisms, expected, "{flags}");
    }
    for line in ["trapless -e x --allow-trap -n name", "trapless -e x -p 1 -F --mechanism step"] {
        let error = command(line).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("by jumps alone"), "{line}: {error}");
    }
}

#[test]
fn list_takes_a_process_a_command_or_a_file() {
    let file = std::env::current_exe().unwrap().display().to_string();
    for (line, target, probes) in [
        ("-p 42 libssl:SSL_*".to_owned(), true, vec![("libssl", "libssl:SSL_*")]),
        ("-p 42".to_owned(), true, vec![]),
        ("c:f -- ls".to_owned(), true, vec![("c", "c:f")]),
        (format!("{file} SSL_* f"), false, vec![(file.as_str(), "SSL_*"), (&file, "f")]),
        (file.clone(), false, vec![(&file, "*")]),
        (format!("-r {file}"), false, vec![(&file, "*")]),
        ("./absent:f".to_owned(), false, vec![("./absent", "./absent:f")]),
    ] {
        let Ok(Command::List(Listing { target: at, selection, .. })) =
            command(&format!("trapless list {line}"))
        else {
            panic!("{line}")
        };
        let shown: Vec<_> =
            selection.probes.iter().map(|p| (p.spec.module.text(), p.spec.text.as_str())).collect();
        assert_eq!((at.is_some(), shown), (target, probes), "{line}");
    }
}

#[test]
fn contradictions_are_refused_with_the_way_out() {
    for (line, message) in [
        (
            "count a:b",
            "no target; give -p PID, -n NAME or -- COMMAND, or probes with a file's path, for whoever runs it",
        ),
        ("count /nowhere/a:b", "/nowhere/a: no such file, and no target; give -p PID for a running process"),
        (
            "count -n a -p 1 a:b",
            "-n, --user and --cgroup say which processes are probed; leave them out, or -p PID and -- COMMAND",
        ),
        ("count -p 1 a:b -- ls", "-p PID and -- COMMAND are two targets; give one of them"),
        ("count -p 1", "no probe; name functions as MODULE:FUNCTION, such as 'libc.so.6:malloc'"),
        ("list", "no probe; name functions as MODULE:FUNCTION, such as 'libc.so.6:malloc'"),
        ("explain -p 1", "no probe; name functions as MODULE:FUNCTION, such as 'libc.so.6:malloc'"),
        (
            "latency -p 1 a:0x10",
            "'a:0x10' names an instruction, which has no return; count or trace it without --return, or name the function",
        ),
        (
            "count -p 1 --return a:b+4",
            "'a:b+4' names an instruction, which has no return; count or trace it without --return, or name the function",
        ),
    ] {
        let error = command(&format!("trapless {line}")).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_code()), (message, 2), "{line}");
    }
}

#[test]
fn a_file_that_is_not_there_is_not_taken_for_a_bad_probe() {
    let error = command("trapless list ./absent f*").unwrap_err();
    assert_eq!(
        error.to_string(),
        "./absent: no such file; give a file, FILE:FUNCTION, or -p PID for a running process"
    );
    assert_eq!(error.exit_code(), 1);
}

#[test]
fn nonsense_values_are_refused() {
    for line in [
        "count -p 0 a:b",
        "count -p redis a:b",
        "count -p 1 -d 0 a:b",
        "count -p 1 -d -5 a:b",
        "count -p 1 -i x a:b",
        "count -p 1 -M 0 a:b",
        "count -p 1 -f xml a:b",
        "count -p 1 --mechanism magic a:b",
        "trace -p 1 --args 7 a:b",
        "status",
        "detach",
        "",
    ] {
        let error = Cli::try_parse_from(format!("trapless {line}").trim_end().split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

fn script(line: &str) -> Text {
    match command(line) {
        Ok(Command::Script(Script::Text(text))) => *text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn scripts_stand_where_a_command_would() {
    let own = std::env::current_exe().unwrap();
    let file = own.display();
    let program = |text: &str| Source::Argument(text.into());
    for (line, source, positional, named) in [
        (format!("{file}"), Source::File(own.clone()), &[][..], &[][..]),
        (format!("{file} 10 app"), Source::File(own.clone()), &["10", "app"], &[]),
        (format!("-p 7 {file} 10 -P a -P b=2"), Source::File(own.clone()), &["10"], &["a", "b=2"]),
        ("-".to_owned(), Source::Stdin, &[], &[]),
        ("- 1".to_owned(), Source::Stdin, &["1"], &[]),
        ("-e begin{}".to_owned(), program("begin{}"), &[], &[]),
        ("-e begin{} 1 two".to_owned(), program("begin{}"), &["1", "two"], &[]),
        ("-e begin{} -- sleep 1".to_owned(), program("begin{}"), &[], &[]),
    ] {
        let text = script(&format!("trapless {line}"));
        assert_eq!(
            (&text.source, &*text.positional, &*text.named),
            (&source, &owned(positional)[..], &owned(named)[..]),
            "{line}"
        );
        assert_eq!((text.task, text.dialect), (Task::Run, Dialect::Own), "{line}");
    }
    assert_eq!(script("trapless -e x --dry-run").task, Task::DryRun);
    assert_eq!(script("trapless -e x --fmt").task, Task::Format);
    assert_eq!(script("trapless -e x").target, None);
    assert_eq!(script("trapless -e x -p 5").target, Some(Target::Processes(vec![5])));
    assert_eq!(script("trapless -e x -- ls -l").target, Some(Target::Launch(vec!["ls".into(), "-l".into()])));
    let text = script("trapless -e x --unsafe -q -f json -I inc --include a.h");
    assert!(text.is_unsafe && text.quiet && text.output.json);
    assert_eq!((text.include_directories, text.include_files), (vec!["inc".into()], vec!["a.h".into()]));
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_word_that_is_neither_command_nor_file_is_refused_with_the_nearest_command() {
    for (word, hint) in [
        ("cuont", "did you mean: trapless count?"),
        ("latancy", "did you mean: trapless latency?"),
        ("zzzzzzzz", "trapless --help shows the commands"),
    ] {
        let error = command(&format!("trapless {word}")).unwrap_err();
        let text = format!("'{word}' is no command, and no script of that name is there; {hint}");
        assert_eq!((error.to_string(), error.exit_code()), (text, 2));
    }
    assert_eq!(command("trapless -p 1").unwrap_err().exit_code(), 2, "neither script nor command");
}

#[test]
fn options_of_scripts_that_contradict_each_other_are_refused() {
    for line in ["-e x --fmt --dry-run", "-e x -q -v", "-e x count", "-P"] {
        let error = Cli::try_parse_from(format!("trapless {line}").split(' ').map(String::from));
        let refused = error.map(Command::try_from).is_err();
        assert!(refused || line == "-e x count", "{line}");
    }
    // Behind a program, a verb's name is a parameter.
    assert_eq!(script("trapless -e x count").positional, ["count"]);
}

#[test]
fn long_help_documents_probes_and_exit_codes() {
    let help = Cli::command().render_long_help().to_string();
    for line in PROBES.lines().chain(SCRIPTS.lines()).chain(EXIT_CODES.lines()) {
        assert!(help.contains(line), "{line}");
    }
}
