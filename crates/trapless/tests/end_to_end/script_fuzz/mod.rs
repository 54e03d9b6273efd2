//! Random scripts on a living process under storms: signal handlers on both kinds of stacks, forks and vforks, coroutines, memory that comes
//! and goes, calls that are left halfway, threads that end.
//!
//! The process knows whether its results are right, and its code is compared at the end. It says how many calls had tickets, which tell their
//! arguments, so that the same script can be run over the same hits by the interpreter, in `begin`: all maps of clauses whose outcome
//! does not depend on the order are compared, and what they print.
//!
//! `TRAPLESS_FUZZ_SEED` is the first seed, `TRAPLESS_FUZZ_MINUTES` how long it goes on. A seed that fails is run alone by the two, with 0 minutes.
#![cfg(target_arch = "x86_64")]

mod grammar;

use crate::support::text::Text;
use crate::support::tool::{Tool, run, trapless};
use crate::support::{Program, Target};
use grammar::{Random, Script};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

const FUZZED: &str = include_str!("../targets/fuzzed.c");

/// How long it goes on where nobody says, and with how many scripts at least.
const SHORT: Duration = Duration::from_secs(30);
const LEAST: u64 = 4;

/// The storms of `fuzzed.c`.
const STORMS: u64 = 255;

/// What a run has told: its maps, the lines that exact clauses printed, and how many messages were lost.
#[derive(Debug, Default)]
struct Told {
    maps: BTreeMap<String, Value>,
    lines: Vec<String>,
    lost: u64,
}

impl Told {
    fn of(out: &str) -> Told {
        let mut told = Told::default();
        for line in out.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let data = &line["data"];
            match line["type"].as_str() {
                Some("map" | "hist" | "stats") => {
                    let maps = data.as_object().unwrap_or_else(|| panic!("{line}"));
                    told.maps.extend(maps.iter().map(|(name, value)| (name.clone(), value.clone())));
                }
                Some("printf") => {
                    let text = data.as_str().unwrap_or_else(|| panic!("{line}"));
                    // Several may be in one.
                    told.lines
                        .extend(text.lines().filter(|line| line.starts_with("told ")).map(str::to_owned));
                }
                Some("lost_events") => told.lost += data["events"].as_u64().unwrap(),
                _ => {}
            }
        }
        told.lines.sort_unstable();
        told
    }

    /// Maps of exact clauses that hold anything.
    fn exact(&self) -> BTreeMap<&str, &Value> {
        let is_exact = |name: &str| ["@m", "@kept", "@temporary"].iter().any(|kind| name.starts_with(kind));
        let holds = |value: &Value| value.as_object().is_none_or(|keys| !keys.is_empty());
        self.maps
            .iter()
            .filter(|(name, value)| is_exact(name) && holds(value))
            .map(|(n, v)| (n.as_str(), v))
            .collect()
    }
}

/// What became of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ran,
    /// The checker refused its script.
    Refused,
}

/// Runs the script of a seed in the target, whose code is to be what it was `before`, and compares.
fn attempt(target: &mut Target, before: &Text, dir: &Path, seed: u64) -> Outcome {
    let script = Script::new(seed);
    let mut random = Random(!seed);
    let storms = random.next() & STORMS;
    let times = 50 + random.below(500);
    let (armed, errors) = (script.armed(), dir.join("errors"));
    let context = format!("TRAPLESS_FUZZ_SEED={seed} TRAPLESS_FUZZ_MINUTES=0, storms {storms}\n{armed}");

    let pid = target.pid().to_string();
    let mut tool = Tool::armed_to(&mut trapless(&["-f", "json", "-p", &pid, "-e", &armed]), &errors);
    // Checkers warn of much that nobody would write.
    let said = || {
        let all = std::fs::read_to_string(&errors).unwrap_or_default();
        let of_the_run = |line: &&str| line.starts_with("trapless:") || line.contains("ERROR");
        all.lines().filter(of_the_run).collect::<Vec<_>>().join("\n")
    };
    // The line of `begin`, behind that which says how many probes there are.
    let is_armed = (0..2).any(|_| tool.line().contains("armed\\n"));
    if !is_armed {
        let ran = tool.ran();
        assert!(said().contains("ERROR"), "{context}\n{ran:?}\n{}", said());
        eprintln!("seed {seed} is refused: {}", said().lines().next().unwrap_or_default());
        return Outcome::Refused;
    }
    target.tell(&format!("{storms} {times}"));
    let answer = target.line();
    let words: Vec<&str> = answer.split(' ').collect();
    let ["wrong", "0", "tickets", tickets] = words[..] else {
        panic!("wrong results, or dead: {answer:?}\n{context}\n{}", said());
    };
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{context}\n{}", said());
    // Stacks of ended threads and coroutines may lead into our memory, which then stays: so what was there is looked at, not what is more.
    assert!(before.is_now(target.pid()), "its code is not what it was: {context}");
    let told = Told::of(&ran.out);

    let foretold = script.foretold(tickets.parse().unwrap());
    let ran = run(&["-f", "json", "-e", &foretold]);
    assert_eq!(ran.code, Some(0), "{context}\n{foretold}\n{}", ran.err);
    let expected = Told::of(&ran.out);
    let said = said();
    assert!(!said.contains("had no memory for it"), "{context}\n{said}");
    assert_eq!(told.exact(), expected.exact(), "{tickets} tickets, {context}\n{foretold}\n{said}");
    // What could not be read is told as well, so that others may be lost than these lines.
    let missing = expected.lines.len().saturating_sub(told.lines.len()) as u64;
    assert!(missing <= told.lost, "{missing} lines are missing, {} lost, {context}\n{said}", told.lost);
    let mut rest = expected.lines.iter();
    assert!(told.lines.iter().all(|line| rest.any(|other| other == line)), "{context}\n{:?}", told.lines);
    Outcome::Ran
}

#[test]
fn random_scripts_tell_what_the_interpreter_does_and_harm_nobody() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("TRAPLESS_FUZZ_SEED").unwrap_or(1);
    let minutes = number("TRAPLESS_FUZZ_MINUTES");
    let time = minutes.map_or(SHORT, |minutes| Duration::from_secs(60 * minutes));
    let least = if minutes == Some(0) { 1 } else { LEAST };
    let program = Program::build("fuzzed", FUZZED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let start = Instant::now();
    let (mut tried, mut refused) = (0, 0);
    while tried < least || start.elapsed() < time {
        refused += u64::from(attempt(&mut target, &before, program.dir(), first + tried) == Outcome::Refused);
        tried += 1;
    }
    eprintln!("{tried} scripts, {refused} refused, {:?}", start.elapsed());
    assert!(
        refused * 4 <= tried,
        "{refused} of {tried} scripts are refused: the grammar is not the language's"
    );
    target.tell("0 10");
    assert!(target.line().starts_with("wrong 0 "));
}
