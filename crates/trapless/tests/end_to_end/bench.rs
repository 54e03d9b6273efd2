//! The benchmark, run for its structure: which cells there are, how often each traps, and that every hit was counted, which
//! a run checks itself. What it measures is a property of the machine.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// What rows are named by, and the triggers that are probed so.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const ROWS: [(&str, &[&str]); 3] = [
    ("uprobe", &["nop", "push", "ret", "nop5", "endbr", "o2", "sub"]),
    ("uretprobe", &["nop", "push", "ret", "nop5", "endbr", "o2", "sub", "exits"]),
    ("usdt", &["nop", "nop5"]),
];
/// Functions that are called: those with an entry, the one with exits, and those with a USDT site.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const TRIGGERS: usize = 7 + 1 + 2;
#[cfg(target_arch = "aarch64")]
const ROWS: [(&str, &[&str]); 3] = [
    ("uprobe", &["nop", "stp", "ret", "bti", "paciasp", "o2", "sub"]),
    ("uretprobe", &["nop", "stp", "ret", "bti", "paciasp", "o2", "sub"]),
    ("usdt", &["nop"]),
];
#[cfg(target_arch = "aarch64")]
const TRIGGERS: usize = 7 + 1;
#[cfg(target_arch = "powerpc64")]
const ROWS: [(&str, &[&str]); 3] = [
    ("uprobe", &["nop", "blr", "o2", "stdu", "bc"]),
    ("uretprobe", &["nop", "blr", "o2", "stdu", "bc"]),
    ("usdt", &["nop"]),
];
#[cfg(target_arch = "powerpc64")]
const TRIGGERS: usize = 5 + 1;
/// Names of entries that the tests choose: with a landing pad, optimized, and one more.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const CHOSEN: [&str; 3] = ["endbr", "o2", "sub"];
#[cfg(target_arch = "aarch64")]
const CHOSEN: [&str; 3] = ["bti", "o2", "sub"];
#[cfg(target_arch = "powerpc64")]
const CHOSEN: [&str; 3] = ["bc", "o2", "stdu"];

const X86: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

/// Bits of the programs that are measured everywhere, and of those that are beside them.
const OWN: &str = if cfg!(target_arch = "x86") { "32" } else { "64" };
const OTHER: &str = if cfg!(target_arch = "x86") { "64" } else { "32" };

/// A column: its name, mechanism, what it is timed by, and the traps of an entry, of an entry with its return, and
/// of a USDT probe. `None` where there is no such cell.
type Column = (&'static str, &'static str, &'static str, [Option<u64>; 3]);

const COLUMNS: [Column; 6] = [
    ("count", "jump", "processor", [Some(0), Some(0), Some(0)]),
    ("latency", "jump", "processor", [None, Some(0), None]),
    ("record", "jump", "processor", [Some(0), Some(0), Some(0)]),
    ("step", "step", "elapsed", [Some(2), Some(3), Some(2)]),
    ("emulate", "emulate", "elapsed", [Some(1), Some(2), Some(1)]),
    ("boost", "boost", "elapsed", [Some(1), Some(2), Some(1)]),
];

/// Whether a row is refused by a mechanism: a function that reads its return address is followed to its exits, which
/// is done in 64-bit code and by jumps; and probes that trap follow no call whose return address is in a register.
fn is_refused(bits: u32, row: &str, mechanism: &str) -> bool {
    let is_exits = row == "uretprobe-exits" && (bits == 32 || mechanism != "jump");
    is_exits || !X86 && row.starts_with("uretprobe") && mechanism != "jump"
}

fn bench(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
    let output = command.arg("bench").args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn lines(arguments: &[&str]) -> Vec<Value> {
    let (code, out, err) = bench(&[&["--format", "json", "--rounds", "1"], arguments].concat());
    assert_eq!(code, Some(0), "{err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(lines: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    let kind = Value::from(kind);
    lines.iter().filter(move |line| line["type"] == kind)
}

/// Whether the programs of the other kind can be measured here.
fn others(lines: &[Value]) -> bool {
    let is_other =
        |missing: &&Value| missing["bits"].as_u64() == OTHER.parse().ok() && missing["collector"].is_null();
    let missing = of(lines, "missing").find(is_other);
    match missing {
        Some(missing) if OTHER == "64" => assert!(missing["reason"].to_string().contains("32-bit trapless")),
        Some(missing) => trapless_testing::skip!("32-bit rows: {}", missing["reason"]),
        None => {}
    }
    missing.is_none()
}

#[test]
fn every_rung_has_a_cell_in_every_row_or_says_why_not_and_traps_as_often_as_it_must() {
    let lines = lines(&["--threads", "1", "*-count", "uprobe-*", "uretprobe-*", "usdt-*"]);
    assert_eq!(of(&lines, "machine").count(), 1);
    let cell = |bits: u32, name: &str, collector: &str| {
        of(&lines, "hit")
            .find(|l| l["bits"] == bits && l["name"] == name && l["collector"] == collector)
            .unwrap_or_else(|| {
                let missing: Vec<_> = of(&lines, "missing").filter(|l| l["collector"] == collector).collect();
                panic!("no {collector} at {name}, {bits} bits: {missing:?}")
            })
    };
    let own = [OWN.parse().unwrap()];
    let kinds: &[u32] = if others(&lines) { &[64, 32] } else { &own };
    // Of each row, or of all on one side if there is none.
    let reason = |bits: u32, name: &str, collector: &str| {
        let all = format!("{}-*", name.split_once('-').unwrap().0);
        let missing = of(&lines, "missing")
            .filter(|l| l["bits"] == bits && l["collector"] == collector)
            .find(|l| l["name"] == name || l["name"] == all)
            .unwrap_or_else(|| panic!("nothing says why there is no {collector} at {name}, {bits} bits"));
        missing["reason"].as_str().unwrap()
    };
    for (&bits, (collector, mechanism, time, traps)) in
        kinds.iter().flat_map(|bits| COLUMNS.map(|column| (bits, column)))
    {
        for ((prefix, triggers), traps) in ROWS.into_iter().zip(traps) {
            let Some(traps) = traps else { continue };
            for name in triggers.iter().map(|trigger| format!("{prefix}-{trigger}")) {
                if is_refused(bits, &name, mechanism) {
                    let reason = reason(bits, &name, collector);
                    assert!(reason.contains("return address"), "{name} by {mechanism}: {reason}");
                    continue;
                }
                let cell = cell(bits, &name, collector);
                assert_eq!(cell["traps"], traps, "{cell}");
                assert_eq!((&cell["mechanism"], &cell["time"]), (&mechanism.into(), &time.into()), "{cell}");
                assert!(cell["hit_ns"].is_f64() && cell["millions_per_second"].is_f64(), "{cell}");
            }
        }
    }
    let names: BTreeSet<_> = of(&lines, "hit")
        .filter(|l| l["collector"].is_null())
        .map(|l| (l["bits"].as_u64(), l["name"].as_str()))
        .collect();
    assert_eq!(names.len(), 3 + TRIGGERS * kinds.len(), "{names:?}");
    assert_eq!(of(&lines, "attach").count(), 0);

    // The kernel's own are there for who may have them, and emulating is one trap less.
    match of(&lines, "missing").find(|missing| missing["collector"] == "kernel") {
        Some(missing) => trapless_testing::inapplicable!("the kernel's column: {}", missing["reason"]),
        // Which instructions it emulates differs.
        None if !X86 => {
            assert!(cell(own[0], "uprobe-o2", "kernel")["traps"].as_u64() >= Some(1));
        }
        None => {
            for &bits in kinds {
                let traps = |name| cell(bits, name, "kernel")["traps"].as_u64().unwrap();
                assert_eq!(traps("uprobe-ret"), traps("uprobe-push") + 1);
                for (inside, entry) in [("usdt-nop", "uprobe-nop"), ("usdt-nop5", "uprobe-nop5")] {
                    assert_eq!(traps(inside), traps(entry), "{inside}");
                }
                assert_eq!(traps("uretprobe-exits"), traps("uretprobe-push"));
            }
        }
    }
}

#[test]
fn what_is_measured_can_be_chosen() {
    let [_, _, last] = CHOSEN;
    let (row, call) = (format!("uprobe-{last}"), format!("call-{last}"));
    let chosen = lines(&["--bits", OTHER, "--threads", "1", &row]);
    let is_chosen =
        |l: &Value| l["bits"].as_u64() == OTHER.parse().ok() && (l["name"] == row || l["name"] == call);
    assert!(of(&chosen, "hit").all(is_chosen));
    assert_eq!(others(&chosen), of(&chosen, "hit").next().is_some());
    assert_eq!((of(&chosen, "scaling").count(), of(&chosen, "attach").count()), (0, 0));

    let chosen = lines(&["--bits", OWN, "--threads", "2", "uretprobe-o2"]);
    assert!(of(&chosen, "hit").all(|l| l["bits"].as_u64() == OWN.parse().ok()));
    let scaled =
        |threads: u32| of(&chosen, "scaling").any(|l| l["collector"] == "count" && l["threads"] == threads);
    assert_eq!([1, 2, 4, 8].map(scaled), [true, true, true, false]);

    let chosen = lines(&["--bits", OWN, "--threads", "1", "usdt-nop"]);
    let names = || of(&chosen, "hit").chain(of(&chosen, "scaling")).map(|l| l["name"].as_str().unwrap());
    assert!(names().all(|name| ["call-usdt-nop", "usdt-nop"].contains(&name)));
    assert_eq!(names().collect::<BTreeSet<_>>().len(), 2);

    let (code, _, err) = bench(&["--bits", OTHER, "usermode-count"]);
    assert_eq!((code, err.lines().count()), (Some(2), 1), "{err}");
    assert!(err.starts_with("trapless: no benchmark matches"), "{err}");
}

#[test]
fn tables_fit_a_terminal() {
    let [pad, ..] = CHOSEN;
    let mut rows = vec![format!("uprobe-{pad}"), format!("uretprobe-{pad}"), "usdt-nop".to_owned()];
    if X86 {
        rows.extend(["uretprobe-exits", "usdt-nop5"].map(str::to_owned));
    }
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let (code, out, err) = bench(&[&["--rounds", "1", "--threads", "2"], &rows[..]].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    // Of several rows a median is shown.
    let usdt = if X86 { "\nusdt-*" } else { "\nusdt-nop" };
    let ladder = format!("\nThe ladder, {OWN}-bit");
    for heading in [&ladder, "STEP  T", "EMULATE/STEP", "Threads on one site", usdt] {
        assert!(out.contains(heading), "no {heading:?} in:\n{out}");
    }
    let (_, scaling) = out.split_once("Threads on one site").unwrap();
    let first = scaling.lines().nth(2).unwrap();
    assert!(first.starts_with("uprobe-"), "{scaling}");
    // The first line is the machine's name; reasons are as long as they are.
    let wide = out.lines().skip(1).find(|line| line.chars().count() > 80 && !line.starts_with("no "));
    assert_eq!(wide, None);
}

/// Scripts of 32-bit programs run at traps alone.
#[test]
#[cfg(target_arch = "x86")]
fn scripts_are_not_measured_and_that_is_said() {
    let (code, out, err) = bench(&["--script", "--rounds", "1", "count"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("a script's code is not compiled for this instruction set"), "{err}");
}

/// The rows of `--script`, each counted to the last hit by the run itself.
#[cfg(not(target_arch = "x86"))]
const SCRIPTS: [&str; 9] = ["filter", "count", "hist", "keyed", "tid", "delta", "printf", "str", "ustack"];

#[test]
#[cfg(not(target_arch = "x86"))]
fn every_script_is_measured_through_the_whole_tool_beside_bpftrace() {
    let lines = lines(&["--script"]);
    let names = |tool: &str| -> BTreeSet<String> {
        let rows = of(&lines, "script").filter(|line| line["tool"] == tool);
        rows.map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("trapless"), SCRIPTS.map(str::to_owned).into());
    for line in of(&lines, "script") {
        assert!(line["hit_ns"].is_f64() && line["hits"].as_u64() > Some(0), "{line}");
        assert_eq!(line["budget_ns"].is_f64(), line["tool"] == "trapless", "{line}");
    }
    let armed: Vec<&Value> = of(&lines, "armed").filter(|line| line["tool"] == "trapless").collect();
    assert!(armed.len() == 1 && armed[0]["ms"].is_f64() && armed[0]["budget_ms"].is_f64(), "{armed:?}");
    // What bpftrace does not run, it says.
    let missing: BTreeSet<&str> = of(&lines, "missing").map(|m| m["name"].as_str().unwrap()).collect();
    for name in SCRIPTS {
        let is_there = names("bpftrace").contains(name) || missing.contains(name) || missing.contains("*");
        assert!(is_there, "{name}: {lines:?}");
    }
    if missing.contains("*") {
        trapless_testing::inapplicable!(
            "no column of bpftrace, which the distribution has in another version or not at all: {:?}",
            of(&lines, "missing").next()
        );
    }
}

#[test]
#[cfg(not(target_arch = "x86"))]
fn scripts_can_be_chosen_and_typed_and_what_is_none_is_refused() {
    let chosen = lines(&["--script", "co*"]);
    assert!(of(&chosen, "script").all(|line| line["name"] == "count"));
    assert_eq!((of(&chosen, "armed").count(), of(&chosen, "hit").count()), (0, 0));

    let text = "uprobe:bench:called { @[arg0 % 3] = sum(arg2); }";
    let typed = lines(&["--script", text]);
    let own = of(&typed, "script").find(|line| line["tool"] == "trapless").unwrap();
    assert_eq!((&own["name"], &own["script"]), (&"typed".into(), &text.into()));
    assert!(own.get("hits").is_none() && own.get("budget_ns").is_none(), "{own}");

    let refused = |arguments: &[&str], words: &str| {
        let (code, out, err) = bench(&[&["--script", "--rounds", "1"], arguments].concat());
        assert!(code != Some(0) && out.is_empty() && err.contains(words), "{arguments:?}: {code:?} {err}");
    };
    refused(&["nothing"], "no script matches");
    refused(&["uprobe:libc:malloc { @ = count(); }"], "uprobe:bench:called");
    refused(&["uprobe:bench:called { @ = no_such_thing(); }"], "no_such_thing");
    refused(&["uprobe:bench:nowhere { @ = count(); }"], "nowhere");
    refused(&["--bits", "64"], "--bits");
}

#[test]
#[cfg(not(target_arch = "x86"))]
fn scripts_are_a_table_that_fits_a_terminal() {
    let (code, out, err) = bench(&["--script", "--rounds", "1", "filter", "armed"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for words in ["BPFTRACE/TRAPLESS", "\nfilter", "\narmed", "filter: uprobe:bench:called"] {
        assert!(out.contains(words), "no {words:?} in:\n{out}");
    }
    let is_table = |line: &&str| !line.contains(": ") && !line.starts_with("trapless");
    assert_eq!(out.lines().filter(is_table).find(|line| line.chars().count() > 80), None);
}
