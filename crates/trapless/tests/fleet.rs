//! Many processes of one program, with many probes each: what the tool needs for them, and that it counts all. They take both processors of a
//! small machine, so these tests are a program of their own, beside which nothing else runs.

#[path = "end_to_end/support/mod.rs"]
mod support;

use serde_json::Value;
use std::process::Command;
use std::sync::Mutex;
use support::family::is_left_alone;
use support::tool::{Tool, finish};
use support::{Program, Target, eventually, is_root};
use trapless_testing::asked;

const FLEET: &str = include_str!("end_to_end/targets/fleet.c");

/// Processes that run all the time (`TRAPLESS_FLEET`).
fn processes() -> usize {
    asked("TRAPLESS_FLEET", 64)
}

/// Those that start and end meanwhile.
fn newcomers() -> u64 {
    3 * processes() as u64 + 8
}

/// How often each calls all functions: one that runs all the time, and one that comes.
const ROUNDS: [u64; 2] = [5, 3];

/// So many newcomers at most may go on without probes on a busy machine, which is said.
fn most_missed() -> u64 {
    newcomers().div_ceil(10)
}

/// One fleet at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What the tool may need, in KiB.
const MEMORY: u64 = 300 << 10;

fn start(program: &Program) -> Vec<Target> {
    (0..processes()).map(|_| program.start(&[&ROUNDS[0].to_string(), "wait"])).collect()
}

/// Lets each call all functions, and checks what comes of that.
#[track_caller]
fn call(program: &Program, targets: &mut [Target]) {
    let right = finish(Command::new(program.path()).arg(ROUNDS[0].to_string())).out;
    targets.iter_mut().for_each(|target| target.tell("x"));
    targets.iter_mut().for_each(|target| assert_eq!(target.line(), right.trim_end()));
}

/// Ends the run, which is to have counted each function so often in so many processes together, or to say how many newcomers it has missed.
#[track_caller]
fn assert_counted(tool: Tool, processes: u64, calls: u64) {
    tool.signal(libc::SIGINT);
    let (total, peak) = tool.peak_memory_until_its_end();
    let total: Value = serde_json::from_str(&total).unwrap();
    let notes = total["notes"].as_array().cloned().unwrap_or_default();
    let missed = notes.iter().find(|note| note["code"] == "missed").map_or(0, |note| {
        let number = note["text"].as_str().unwrap().rsplit(' ').next().unwrap();
        number.parse().unwrap()
    });
    assert!(missed <= most_missed(), "{notes:?}");
    let (processes, calls) = (processes - missed, calls - missed * ROUNDS[1]);
    assert_eq!((&total["type"], &total["processes"]), (&"total".into(), &processes.into()), "{notes:?}");
    let rows = total["probes"].as_array().unwrap();
    let hits = |row: &Value| [&row["hits"], &row["lost"]].map(|number| number.as_u64().unwrap());
    let wrong = rows.iter().find(|row| hits(row) != [calls, 0]);
    assert!(
        rows.len() == 10_000 && wrong.is_none(),
        "{} rows, {wrong:?}, not {calls}; {notes:?}",
        rows.len()
    );
    assert!(peak < MEMORY, "{peak} KiB");
}

#[test]
fn l1_a_fleet_by_its_processes_is_counted_exactly_in_little_memory() {
    let _alone = ALONE.lock();
    let program = Program::build("fleet", FLEET, &[]);
    let mut targets = start(&program);
    let mut arguments = vec!["count".to_owned(), "fleet:part_*".to_owned()];
    arguments.extend(targets.iter().flat_map(|target| ["-p".to_owned(), target.pid().to_string()]));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut tool = Tool::armed(&arguments);
    for _ in 1..processes() {
        tool.attached();
    }
    call(&program, &mut targets);
    let all = processes() as u64;
    assert_counted(tool, all, all * ROUNDS[0]);
    assert!(targets.iter().all(|target| is_left_alone(target.pid())));
}

#[test]
fn l1_a_fleet_by_its_file_is_counted_exactly_while_others_come_and_go() {
    if !is_root() {
        trapless_testing::inapplicable!("only root is told of programs before they run");
        return;
    }
    let _alone = ALONE.lock();
    let program = Program::build("fleet", FLEET, &[]);
    let path = program.path().to_str().unwrap();
    let mut targets = start(&program);
    let tool = Tool::armed(&["count", &format!("{path}:part_*")]);
    eventually("all are probed", || targets.iter().all(|target| !is_left_alone(target.pid())));
    let [first, others] = [0, 1].map(|half| half * processes() / 2);
    let (first, others) = (first..others, others..processes());
    call(&program, &mut targets[first]);
    let right = finish(Command::new(program.path()).arg(ROUNDS[1].to_string())).out;
    let coming = format!("seq {} | xargs -P 8 -I N {path} {}", newcomers(), ROUNDS[1]);
    let ran = finish(Command::new("sh").args(["-c", &coming]));
    assert!(ran.code == Some(0) && ran.out == right.repeat(newcomers() as usize), "{ran:?}");
    call(&program, &mut targets[others]);
    // Those that told what is right ran under it, too.
    let [calls, of_newcomers] = ROUNDS;
    let (old, new) = (processes() as u64, newcomers());
    let processes = old + new + 3;
    let calls = (old + 2) * calls + (new + 1) * of_newcomers;
    assert_counted(tool, processes, calls);
    assert!(targets.iter().all(|target| is_left_alone(target.pid())));
}
