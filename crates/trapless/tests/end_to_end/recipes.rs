//! The recipes of `docs/recipes.md`: each is run on a server that works, and prints what stands there, but for its numbers.
//!
//! A block that is called `sh` is a command, and the `text` behind it lines that it prints, in this order. Numbers with their units, bars, and
//! the room between words are alike whatever they are, and `…` is anything.

use crate::support::tool::{Ran, finish};
use crate::support::{end_with_us, eventually};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How long the page's commands run, and how long they do here.
const DURATIONS: [(&str, &str); 2] = [("-d 5", "-d 1"), ("interval:s:5", "interval:s:2")];

/// What python3 does all the time.
const READS: &str = r#"
import json, os, time
print("ready", flush=True)
while True:
    for name in ("/etc/hostname", "/etc/passwd"):
        with open(name) as file:
            json.dumps(file.read().split("\n"))
    os.stat("/")
    time.sleep(0.001)
"#;

/// A command and what it prints.
#[derive(Debug)]
struct Recipe {
    line: usize,
    command: String,
    printed: String,
}

fn recipes() -> Vec<Recipe> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut recipes: Vec<Recipe> = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(name) = line.strip_prefix("```") else { continue };
        let text: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let text = text.join("\n");
        match name {
            "sh" => recipes.push(Recipe { line: at + 1, command: text, printed: String::new() }),
            "text" => recipes.last_mut().expect("a command stands ahead").printed = text,
            other => panic!("line {}: a block called {other:?}", at + 1),
        }
    }
    recipes
}

/// What all lines have that differ in numbers alone.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    let mut letters = line.trim().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '0'..='9' => {
                // `1,234.5` is one number, `512, 1K` are two.
                while let Some(&next) = letters.peek() {
                    let goes_on = || letters.clone().nth(1).is_some_and(|digit| digit.is_ascii_digit());
                    if !(next.is_ascii_digit() || matches!(next, ',' | '.') && goes_on()) {
                        break;
                    }
                    letters.next();
                }
                // A unit, where it is one.
                while letters.next_if(|next| "nµmskKMG".contains(*next)).is_some() {}
                shape.push('0');
            }
            '|' => {
                while letters.next_if(|next| matches!(next, '@' | ' ')).is_some() {}
                shape.push('|');
            }
            letter if letter.is_whitespace() => {
                if !shape.ends_with(' ') {
                    shape.push(' ');
                }
            }
            letter => shape.push(letter),
        }
    }
    shape
}

/// Whether a line is as the page has it.
fn is_like(line: &str, shown: &str) -> bool {
    let (line, shown) = (shape(line), shape(shown));
    let mut pieces = shown.split('…');
    let Some(mut rest) = line.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, between)) = pieces.split_last() else { return rest.is_empty() };
    for piece in between {
        match rest.split_once(*piece) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn lines_are_alike_but_for_their_numbers() {
    for (line, shown, expected) in [
        ("process 1, 1.05s", "process 16342, 5.05s", true),
        ("1,234  3", "3,700  3", true),
        ("  [0]  1,752 |@@@@  |", "[0]  12 |@@|", true),
        ("[8K, 16K)  429 |@@  |", "[512, 1K)  1727 |@@@@|", true),
        ("f(arg0=\"/etc/passwd\") = 3 <4.62µs>", "f(arg0=\"/etc/…\") = 12 <310ns>", true),
        ("a;b;c 12", "…;b;…c 7", true),
        ("hello", "hallo", false),
        ("count 12", "count 12 more", false),
        ("a;c 12", "…;b;…c 7", false),
    ] {
        assert_eq!(is_like(line, shown), expected, "{line:?} and {shown:?}");
    }
}

/// A process that ends with its owner.
struct Busy(Child);

impl Busy {
    fn start(command: &mut Command) -> Busy {
        end_with_us(command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Busy(command.spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/bin").join(program);
    if !path.exists() {
        trapless_testing::skip!("no {program}");
        return None;
    }
    Some(path)
}

/// A redis-server with somebody who asks it all the time.
struct Redis {
    server: Busy,
    _load: Busy,
}

impl Redis {
    fn start(dir: &Path) -> Option<Redis> {
        let (server, cli, benchmark) =
            (installed("redis-server")?, installed("redis-cli")?, installed("redis-benchmark")?);
        let socket = dir.join("socket");
        let mut command = Command::new(server);
        command.current_dir(dir).args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        let server = Busy::start(&mut command);
        let ping = || finish(Command::new(&cli).arg("-s").arg(&socket).arg("ping")).out == "PONG\n";
        eventually("redis answers", ping);
        let mut load = Command::new(benchmark);
        load.arg("-s").arg(&socket).args(["-q", "-l", "-c", "2", "-t", "set,get", "-r", "100"]);
        Some(Redis { server, _load: Busy::start(&mut load) })
    }
}

/// Runs the recipes that are about a process, or about none.
fn run_those(process: Option<(&str, u32)>) {
    let bin = Path::new(env!("CARGO_BIN_EXE_trapless")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let mut ran = 0;
    for Recipe { line, command, printed } in recipes() {
        let named = command.split("$(pidof ").nth(1).and_then(|behind| behind.split_once(')'));
        let of_file = command.contains("/usr/bin/redis-server").then_some("redis-server");
        if named.map(|(name, _)| name).or(of_file) != process.map(|(name, _)| name) {
            continue;
        }
        assert!(!printed.is_empty(), "line {line}: nothing is shown");
        let mut command = command.clone();
        if let Some((name, pid)) = process {
            command = command.replace(&format!("$(pidof {name})"), &pid.to_string());
        }
        for (page, here) in DURATIONS {
            command = command.replace(page, here);
        }
        let Ran { code, out, err } = finish(Command::new("sh").args(["-c", &command]).env("PATH", &path));
        assert_eq!(code, Some(0), "line {line}: {command}\n{err}");
        let all = format!("{out}\n{err}");
        // Rows are ordered by what was measured: two that are about equal may change places.
        let mut lines: Vec<&str> = all.lines().collect();
        for shown in printed.lines() {
            let found = lines.iter().position(|line| is_like(line, shown));
            let Some(found) = found else { panic!("line {line}: {command}\nno {shown}\n{all}") };
            lines.remove(found);
        }
        ran += 1;
    }
    assert!(ran > 0, "no recipe is about {process:?}");
}

#[test]
fn recipes_about_redis_print_what_the_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path()) else { return };
    run_those(Some(("redis-server", redis.server.0.id())));
}

#[test]
fn recipes_about_python_print_what_the_page_says() {
    let Some(python) = installed("python3") else { return };
    let python = Busy::start(Command::new(python).args(["-c", READS]));
    run_those(Some(("python3", python.0.id())));
}

#[test]
fn recipes_without_a_process_print_what_the_page_says() {
    if installed("python3").is_some() {
        run_those(None);
    }
}
