//! Runs that follow: what each process says that it has called, and what the tool says of it.

use super::Program;
use super::assembly::X86;
use super::tool::{Ran, finish, trapless};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Processes of all kinds, which say what they have called.
pub const FAMILY: &str = include_str!("../targets/family.c");

/// Processes that never stop creating others.
pub const STORM: &str = include_str!("../targets/storm.c");

/// Calls by process id.
pub type Calls = BTreeMap<i64, u64>;

/// What the processes said.
#[track_caller]
pub fn said(out: &str) -> Calls {
    let mut calls = Calls::new();
    for line in out.lines() {
        if let Some(line) = line.strip_prefix("calls ") {
            let (pid, number) = line.split_once(' ').unwrap();
            *calls.entry(pid.parse().unwrap()).or_default() += number.parse::<u64>().unwrap();
        }
    }
    calls.retain(|_, number| *number > 0);
    calls
}

/// Hits by process id, as the summaries of a run say.
pub fn counted(lines: &[Value]) -> Calls {
    let mut calls = Calls::new();
    for line in lines.iter().filter(|line| line["type"] == "summary") {
        let hits: u64 = hits(line).values().sum();
        *calls.entry(line["pid"].as_i64().unwrap()).or_default() += hits;
    }
    calls.retain(|_, number| *number > 0);
    calls
}

/// Hits by function of one line.
pub fn hits(line: &Value) -> BTreeMap<String, u64> {
    let mut hits = BTreeMap::new();
    for probe in line["probes"].as_array().unwrap() {
        *hits.entry(probe["function"].as_str().unwrap().to_owned()).or_default() +=
            probe["hits"].as_u64().unwrap();
    }
    hits
}

/// The line about all processes.
#[track_caller]
pub fn total(lines: &[Value]) -> &Value {
    lines.iter().find(|line| line["type"] == "total").expect("a total")
}

/// A run that follows a command, and the run of that command alone.
pub struct Followed {
    pub bare: Ran,
    pub ran: Ran,
    pub lines: Vec<Value>,
}

/// Runs a program alone and followed, with the same arguments, in the same directory. `flags` come before the command.
#[track_caller]
pub fn follow(program: &Program, arguments: &[&str], flags: &[&str]) -> Followed {
    let bare = finish(Command::new(program.path()).args(arguments));
    let results = program.dir().join(format!("results-{}", flags.join("-").replace(['/', ':', '*'], "_")));
    let path = program.path().to_str().unwrap();
    let file = results.to_str().unwrap();
    let command = [flags, &["-f", "json", "-o", file, "--", path], arguments].concat();
    let ran = finish(&mut trapless(&command));
    let text = std::fs::read_to_string(&results).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Followed { bare, ran, lines }
}

/// Whether children that run in their parent's memory are told from it, so that what they call is counted as theirs.
pub const TELLS_SHARING_CHILDREN: bool = X86;

impl Followed {
    /// Fails unless the program did what it does alone: its exit code, and all that it wrote but for the process ids.
    #[track_caller]
    pub fn assert_transparent(&self, told: &str) {
        let without_pids = |out: &str| {
            let mut lines: Vec<String> = out
                .lines()
                .map(|line| match line.strip_prefix("calls ") {
                    Some(rest) => rest.split(' ').next_back().unwrap().to_owned(),
                    None => line.to_owned(),
                })
                .collect();
            lines.sort();
            lines
        };
        assert!(!self.bare.out.is_empty(), "{told}: it says something: {:?}", self.bare);
        assert_eq!(self.bare.code, self.ran.code, "{told}: {:?}", self.ran);
        assert_eq!(without_pids(&self.bare.out), without_pids(&self.ran.out), "{told}: {:?}", self.ran);
    }

    /// Fails unless every process was counted as often as it said; or all of them together, where some cannot be told from others and that is
    /// said.
    #[track_caller]
    pub fn assert_exact(&self, told: &str) {
        let (said, counted) = (said(&self.ran.out), counted(&self.lines));
        if !TELLS_SHARING_CHILDREN && self.ran.err.contains("could not be told from it") {
            assert_eq!(said.values().sum::<u64>(), counted.values().sum::<u64>(), "{told}: {:?}", self.ran);
        } else {
            assert_eq!(said, counted, "{told}: {:?}", self.ran);
        }
        let total = total(&self.lines);
        assert_eq!(hits(total).values().sum::<u64>(), said.values().sum::<u64>(), "{told}: {total}");
        let commands = self.lines.iter().filter(|line| line["type"] == "command");
        let by_command: u64 = commands.map(|line| hits(line).values().sum::<u64>()).sum();
        assert_eq!(by_command, said.values().sum::<u64>(), "{told}: by command");
        assert_eq!(total["not_followed"].as_array().map(Vec::len), Some(0), "{told}: {total}");
    }
}

/// Whether nobody traces a process, no thread of it stands for a tracer, and no memory of the tool is in it. One that has ended counts.
pub fn is_left_alone(pid: i32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let status = read("status");
    let is_traced = status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
    !is_traced && !status.contains("tracing stop") && !read("maps").contains("memfd:trapless")
}

/// The processes that one has created and that live, as it knows them.
pub fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The processes below one, itself not among them.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        if let Some(parent) = rest.split(' ').nth(1).and_then(|ppid| ppid.parse::<i32>().ok()) {
            parents.insert(pid, parent);
        }
    }
    let is_below = |&child: &i32| {
        let mut at = child;
        while let Some(&parent) = parents.get(&at) {
            if parent == pid {
                return true;
            }
            at = parent;
        }
        false
    };
    parents.keys().copied().filter(is_below).collect()
}
