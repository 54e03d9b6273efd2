//! Places in the source as probes: lines, columns, and the copies of functions that were inlined into others. What they count is what
//! the program counts itself.

use crate::support::Program;
use crate::support::assembly::X86;
#[cfg(not(target_arch = "x86"))]
use crate::support::live::Live;
use crate::support::tool::{Ran, run};
use serde_json::Value;
use std::process::Command;

/// Tells on standard error how often `copied` ran.
const COPIES: &str = r#"#include <stdio.h>
#include <stdlib.h>
static volatile long copies;
static inline __attribute__((always_inline)) long copied(long n)
{
	copies++;
	return n * 3;
}

__attribute__((noinline, noclone)) long summed(long n)
{
	long sum = 0;
	for (long i = 0; i < n; i++) {
		sum += i ^ copied(i);
		if (i % 3 == 0)
			sum -= copied(sum);
	}
	return sum;
}

int main(int argc, char **argv)
{
	long sum = summed(atol(argv[1]));
	fprintf(stderr, "copies %ld of %ld in %d\n", copies, sum, argc);
	return 0;
}
"#;

const CALLS: u64 = 3000;

/// Optimized, but nothing of a copy is scheduled ahead of the branch to it, as gcc does for other machines than x86: its line is run then without
/// the rest of it.
const OPTIMIZED: [&str; 4] = ["-g", "-O2", "-fno-schedule-insns", "-fno-schedule-insns2"];

fn counted(probe: &str, flags: &[&str], program: &Program) -> Ran {
    let calls = CALLS.to_string();
    let command = ["-f", "json", probe, "--", program.path().to_str().unwrap(), &calls];
    let ran = run(&[&["count"], flags, &command].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

/// All probes of the summary that went well.
fn probes(ran: &Ran) -> Vec<Value> {
    let summary = ran.summary().0;
    assert_eq!(summary["skipped"], Value::Array(Vec::new()), "{summary}");
    summary["probes"].as_array().unwrap().clone()
}

fn hits(probes: &[Value]) -> u64 {
    probes.iter().map(|probe| probe["hits"].as_u64().unwrap()).sum()
}

/// How often the program says that its copies ran.
fn told(ran: &Ran) -> u64 {
    let line = ran.err.lines().find_map(|line| line.strip_prefix("copies "));
    line.unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// 64 bits, and 32 where they can be had; unoptimized and optimized; two versions of DWARF.
fn programs() -> Vec<Program> {
    let ways = ["-gdwarf-4", "-gdwarf-5"]
        .into_iter()
        .flat_map(|version| [vec!["-g", version, "-O0"], [&OPTIMIZED[..], &[version]].concat()]);
    ways.flat_map(|flags| Program::in_both_widths("copies", COPIES, &flags)).collect()
}

#[test]
fn copies_of_an_inlined_function_are_counted_by_their_entries() {
    for program in programs() {
        let ran = counted("copies:copied", &["--inlines", "--allow-trap"], &program);
        let probes = probes(&ran);
        assert_eq!((hits(&probes), probes.len()), (told(&ran), 2), "{ran:?}");
        for probe in &probes {
            assert_eq!(probe["inlined"], serde_json::json!(["copied"]));
            assert_eq!(probe["inlined_into"], "summed");
            assert!(probe["function"].as_str().unwrap().starts_with("copied inlined into summed+0x"));
            assert!(probe["file"].as_str().unwrap().ends_with("/copies.c"));
            assert!((4..=7).contains(&probe["line"].as_u64().unwrap()), "{probe}");
        }
        // The function around them is none of them, and a pattern finds both.
        let ran = counted("copies:*ed", &["--inlines", "--allow-trap", "-x", "atexit*"], &program);
        let summary = ran.summary().0;
        let all = summary["probes"].as_array().unwrap();
        let plain: Vec<&Value> = all.iter().filter(|probe| probe["function"] == "summed").collect();
        assert_eq!(plain.len(), 1, "{summary}");
        assert_eq!((plain[0]["hits"].as_u64(), plain[0].get("inlined")), (Some(1), None));
        let copies = all.iter().filter(|probe| probe["inlined_into"] == "summed");
        assert_eq!(copies.map(|probe| probe["hits"].as_u64().unwrap()).sum::<u64>(), told(&ran));
    }
}

#[test]
fn the_statements_of_a_line_are_counted_each_by_itself() {
    for program in programs() {
        // A line of the inlined function: a site in each copy, and each says so.
        let ran = counted("copies:copies.c:6", &["--allow-trap"], &program);
        let in_copies = probes(&ran);
        assert!(in_copies.len() >= 2, "{ran:?}");
        let mut most: std::collections::BTreeMap<&str, u64> = Default::default();
        for probe in &in_copies {
            assert_eq!(probe["inlined"], serde_json::json!(["copied"]), "{ran:?}");
            assert_eq!((&probe["line"], &probe["inlined_into"]), (&6.into(), &"summed".into()));
            let hits = probe["hits"].as_u64().unwrap();
            assert!([CALLS, CALLS / 3].contains(&hits), "{ran:?}");
            *most.entry(if hits == CALLS { "every" } else { "third" }).or_default() = hits;
        }
        assert_eq!(most.values().sum::<u64>(), told(&ran));
        // A line in the loop.
        let ran = counted("copies:copies.c:16", &["--allow-trap"], &program);
        for probe in probes(&ran) {
            assert_eq!((probe["hits"].as_u64(), probe.get("inlined")), (Some(CALLS / 3), None), "{ran:?}");
        }
    }
}

#[test]
fn the_lines_of_a_function_are_listed_with_what_can_be_probed() {
    let program = Program::build("copies", COPIES, &["-g", "-O0"]);
    let path = program.path().to_str().unwrap();
    let (all, only) = (format!("{path}:summed"), format!("{path}:copies.c:16"));
    let listed = run(&["list", "--lines", "-f", "json", &all]);
    let rows = listed.json();
    let text: Vec<&str> = COPIES.lines().collect();
    for line in 10..=19u64 {
        let of: Vec<&Value> = rows.iter().filter(|row| row["line"] == line).collect();
        assert!(!of.is_empty(), "{line}: {listed:?}");
        assert!(of.iter().all(|row| row["text"] == text[line as usize - 1] && row["function"] == "summed"));
        // Each statement is one that a probe of that line has.
        let probed = run(&["list", "-f", "json", &format!("{path}:copies.c:{line}")]);
        let probed: Vec<Value> = match probed.err.is_empty() {
            true => probed.json().iter().map(|site| site["address"].clone()).collect(),
            false => Vec::new(),
        };
        let marked: Vec<Value> = of.iter().filter_map(|row| row.get("address").cloned()).collect();
        assert_eq!(marked, probed, "{line}: {listed:?}");
        // All of them together: one may be where another's jump has to be.
        let has_reason = |row: &Value| row["code"] == "overlaps" || row.get("address").is_none();
        assert!(of.iter().all(|row| row["mechanism"].is_null() == has_reason(row)), "{line}: {listed:?}");
    }
    assert!(rows.iter().all(|row| (10..=19).contains(&row["line"].as_u64().unwrap())));
    let shown = run(&["list", "--lines", &only]).out;
    assert!(
        shown.starts_with("copies:summed (/") && shown.contains("        sum += i ^ copied(i);\n"),
        "{shown}"
    );
    assert!(shown.contains("  10") && shown.contains("long summed(long n)"), "{shown}");
    // What was changed after the program was built is not shown beside its addresses.
    let source = program.dir().join("copies.c");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    std::fs::File::options().append(true).open(&source).unwrap().set_modified(later).unwrap();
    for why in ["the file is newer than the program", "the file is not there"] {
        let ran = run(&["list", "--lines", "-f", "json", &all]);
        assert!(ran.err.contains(why) && ran.code == Some(0), "{ran:?}");
        assert!(ran.json().iter().all(|row| row.get("text").is_none() && row.get("address").is_some()));
        let _ = std::fs::remove_file(&source);
    }
    let missing = run(&["list", "--lines", "/bin/true:main"]);
    assert_ne!(missing.code, Some(0), "{missing:?}");
}

#[test]
fn the_opening_line_of_a_function_is_its_first_instruction() {
    for program in programs() {
        let ran = counted("copies:copies.c:11", &[], &program);
        let probes = probes(&ran);
        let [probe] = &probes[..] else { panic!("{ran:?}") };
        assert_eq!((&probe["function"], &probe["hits"]), (&"summed (copies.c:11)".into(), &1.into()));
        let plain = counted("copies:summed", &[], &program).summary().0;
        let offset = |probe: &Value| probe["address"].as_u64().unwrap() & 0xfff;
        assert_eq!(offset(probe), offset(&plain["probes"][0]));
        // Named twice, it is one site with both names.
        let path = program.path().to_str().unwrap();
        let ran = run(&["count", "-f", "json", "copies:copies.c:11", "copies:summed", "--", path, "5"]);
        assert_eq!(ran.summary().hits("summed (copies.c:11)", "entry"), 1);
    }
}

#[test]
fn a_line_without_code_is_the_next_one_and_that_is_said() {
    let program = Program::build("copies", COPIES, &["-g", "-O0"]);
    let ran = counted("copies:copies.c:9", &[], &program);
    assert_eq!(probes(&ran)[0]["line"], 11, "{ran:?}");
    let text = "'copies:copies.c:9': line 9 has no code; the next one that has is taken: 11";
    assert!(ran.err.contains(text), "{ran:?}");
    let note = serde_json::json!([{"code": "nearest_line", "text": text}]);
    assert_eq!(ran.summary().0["notes"], note);
    let path = program.path().to_str().unwrap();
    let listed = run(&["list", &format!("{path}:copies.c:9")]);
    assert_eq!((listed.code, listed.err.lines().count()), (Some(0), 1));
    assert!(listed.err.contains("line 9 has no code") && listed.out.contains("copies:summed (copies.c:11)"));
    let column = run(&["list", "-f", "json", &format!("{path}:copies.c:16:5")]);
    assert!(
        column.json().iter().all(|site| site["line"] == 16 && site["column"].as_u64() > Some(4)),
        "{column:?}"
    );
    assert!(column.err.contains("no statement begins at column 5; the next one is taken: "), "{column:?}");
}

#[test]
fn a_trace_and_an_explanation_name_the_place() {
    let program = Program::build("copies", COPIES, &["-g", "-O0"]);
    let path = program.path().to_str().unwrap();
    let traced = run(&["trace", "copies:copies.c:18", "-f", "json", "--", path, "5"]);
    let hit = traced.json().into_iter().find(|line| line["type"] == "hit").unwrap();
    assert_eq!((&hit["line"], &hit["kind"]), (&18.into(), &"entry".into()));
    let function = hit["function"].as_str().unwrap().to_owned();
    assert!(function.starts_with("summed+0x") && function.ends_with(" (copies.c:18)"), "{function}");
    let text = run(&["trace", "copies:copies.c:18", "--", path, "5"]);
    assert!(text.out.contains(&format!("copies:{function}")), "{text:?}");
    let explained = run(&["explain", &format!("{path}:copies.c:18")]);
    assert!(explained.out.starts_with(&format!("copies:{function} at 0x")), "{explained:?}");
    assert!(explained.out.contains("return   no: a line of the source does not return"), "{explained:?}");
}

#[test]
fn what_is_nowhere_is_refused_with_the_way_out() {
    let program = Program::build("copies", COPIES, &OPTIMIZED);
    let path = program.path().to_str().unwrap();
    for (probe, code, words) in [
        ("copied", 5, &["no function matches", "inlined into others at 2 places", "--inlines"][..]),
        ("copiez.c:6", 5, &["no code comes from a source file of this name", "did you mean copies.c?"]),
        ("src/copies.c:6", 5, &["no code comes from a source file of this name"]),
        ("copies.c:4000", 5, &["no code at or behind this line; the last one with code is 2"]),
        ("copies.c:16:400", 5, &["no statement at or behind this column", "line 16"]),
        ("copies.c:0", 2, &["lines and columns count from 1"]),
    ] {
        let probe = format!("{path}:{probe}");
        let ran = run(&["list", &probe]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        words.iter().for_each(|word| assert!(ran.err.contains(word), "{word}: {ran:?}"));
    }
    let line = format!("{path}:copies.c:18");
    for verb in [&["latency"][..], &["count", "--return"], &["trace", "--return"]] {
        let ran = run(&[verb, &[&line, "--", path, "5"]].concat());
        ran.assert_refused(2, &["names a line of the source, which has no return"]);
    }
    // Copies have no returns. Their entries are counted all the same, and timed is nothing.
    let copied = format!("{path}:copied");
    let ran =
        run(&["count", "--inlines", "--return", "-f", "json", "--allow-trap", &copied, "--", path, "6"]);
    let summary = ran.summary().0;
    assert_eq!(hits(summary["probes"].as_array().unwrap()), told(&ran), "{ran:?}");
    let skipped = summary["skipped"].as_array().unwrap();
    assert!(skipped.len() == 2 && skipped.iter().all(|site| site["code"] == "inlined_returns"), "{ran:?}");
    let ran = run(&["latency", "--inlines", &copied, "--", path, "6"]);
    ran.assert_refused(1, &["a copy that was inlined into another function does not return"]);
}

/// Elsewhere an instruction is four bytes, which the assembler does not take apart.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_row_inside_an_instruction_is_refused() {
    // Four bytes of one instruction, and a row that begins in their middle.
    let source = r#"
__attribute__((noinline)) long odd(long n)
{
	__asm__ volatile(".loc 1 900\n.byte 0x48, 0x8d\n.loc 1 901\n.byte 0x40, 0x00\n.loc 1 902\nnop\nnop\nnop\nnop\nnop" ::: "rax");
	return n;
}
int main(int argc, char **argv) { return odd(argc) == (argv == 0); }
"#;
    let program = Program::build("odd", source, &["-g", "-O1"]);
    let listed =
        |line: u32| run(&["list", "-f", "json", &format!("{}:odd.c:{line}", program.path().display())]);
    // The assembler puts a row where the directive that follows finds it: the first one is behind two bytes.
    assert_eq!(listed(900).json()[0]["code"], "mid_instruction", "{:?}", listed(900));
    assert_eq!(listed(900).json()[0]["mechanism"], Value::Null);
    assert_ne!(listed(902).json()[0]["mechanism"], Value::Null, "{:?}", listed(902));
    let path = program.path().to_str().unwrap();
    let ran = run(&["count", "odd:odd.c:900", "--", path]);
    ran.assert_refused(1, &["the only matching site cannot be probed", "odd+0x"]);
}

#[test]
fn a_stripped_program_has_its_lines_in_its_debug_file() {
    let program = Program::build("copies", COPIES, &OPTIMIZED);
    let strip = |arguments: &[&str]| {
        let ran =
            Command::new(arguments[0]).current_dir(program.dir()).args(&arguments[1..]).status().unwrap();
        assert!(ran.success(), "{arguments:?}");
    };
    let before = probes(&counted("copies:copies.c:14", &["--allow-trap"], &program));
    strip(&["objcopy", "--only-keep-debug", "copies", "copies.debug"]);
    strip(&["strip", "copies"]);
    strip(&["objcopy", "--add-gnu-debuglink=copies.debug", "copies"]);
    let after = probes(&counted("copies:copies.c:14", &["--allow-trap"], &program));
    let told = |probes: &[Value]| -> Vec<Value> {
        probes.iter().map(|probe| serde_json::json!([probe["function"], probe["hits"]])).collect()
    };
    assert_eq!(told(&before), told(&after));
    assert!(hits(&after) >= CALLS);
}

#[test]
fn a_line_of_a_template_is_a_line_of_each_instance() {
    let header = "template <typename T> __attribute__((noinline)) T scaled(T n, T by)\n{\n\tT whole = n * by;\n\tasm volatile(\"nop; nop; nop; nop; nop\");\n\treturn whole + by;\n}\n";
    let source = "#include \"scaled.h\"\nint main(int argc, char **argv)\n{\n\tlong sum = 0;\n\tfor (long i = 0; i < 500; i++) sum += scaled<long>(i, argc);\n\tfor (int i = 0; i < 300; i++) sum += scaled<double>(i, argc);\n\treturn sum == 1 && argv;\n}\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("scaled.h"), header).unwrap();
    std::fs::write(dir.path().join("main.cc"), source).unwrap();
    let built =
        Command::new("g++").current_dir(dir.path()).args(["-g", "-O0", "-o", "scaled", "main.cc"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return trapless_testing::skip!("no g++");
    }
    let path = dir.path().join("scaled");
    let path = path.to_str().unwrap();
    let ran = run(&["count", "-f", "json", "--allow-trap", "scaled:scaled.h:4", "--", path]);
    let summary = ran.summary().0;
    let mut rows: Vec<(&str, u64)> = Vec::new();
    for probe in summary["probes"].as_array().unwrap() {
        rows.push((probe["function"].as_str().unwrap(), probe["hits"].as_u64().unwrap()));
    }
    rows.sort();
    let [(double, 300), (long, 500)] = rows[..] else { panic!("{ran:?}") };
    assert!(
        double.starts_with("double scaled<double>(double, double)+0x") && double.ends_with(" (scaled.h:4)")
    );
    assert!(long.starts_with("long scaled<long>(long, long)+0x") && long.ends_with(" (scaled.h:4)"));
}

#[test]
fn rust_and_go_have_places_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let rust = "#[inline(always)]\nfn copied(n: u64) -> u64 {\n    std::hint::black_box(n * 3)\n}\n\n#[inline(never)]\nfn summed(n: u64) -> u64 {\n    let mut sum = 0;\n    for i in 0..std::hint::black_box(n) {\n        sum ^= copied(i);\n    }\n    sum\n}\n\nfn main() {\n    std::process::exit((summed(700) == 1) as i32);\n}\n";
    std::fs::write(path("places.rs"), rust).unwrap();
    let built =
        Command::new("rustc").current_dir(dir.path()).args(["-g", "-Copt-level=1", "places.rs"]).output();
    match built {
        Err(_) => trapless_testing::skip!("no rustc"),
        Ok(built) => {
            assert!(built.status.success(), "{built:?}");
            let ran = run(&[
                "count",
                "-f",
                "json",
                "--allow-trap",
                "--inlines",
                "places:places::copied",
                "--",
                &path("places"),
            ]);
            let found = probes(&ran);
            assert_eq!(hits(&found), 700, "{ran:?}");
            assert_eq!(found[0]["inlined_into"], "places::summed", "{ran:?}");
            let ran =
                run(&["count", "-f", "json", "--allow-trap", "places:places.rs:3", "--", &path("places")]);
            let found = probes(&ran);
            let most = found.iter().map(|probe| probe["hits"].as_u64().unwrap()).max();
            // Elsewhere the loop's last round may be code of its own.
            assert!(most == Some(700) || !X86, "{ran:?}");
        }
    }
    let go = "package main\n\nimport \"os\"\n\n//go:noinline\nfunc stepped(n int) int {\n\tm := n * 3\n\treturn m ^ 5\n}\n\nfunc main() {\n\tsum := 0\n\tfor i := 0; i < 900; i++ {\n\t\tsum += stepped(i)\n\t}\n\tif sum == 1 {\n\t\tos.Exit(1)\n\t}\n}\n";
    std::fs::create_dir(path("go")).unwrap();
    std::fs::write(path("go/main.go"), go).unwrap();
    let built =
        trapless_testing::go().current_dir(path("go")).args(["build", "-o", "../gone", "main.go"]).output();
    match built {
        Err(_) => trapless_testing::skip!("no go"),
        Ok(built) => {
            assert!(built.status.success(), "{built:?}");
            let ran = run(&["count", "-f", "json", "--allow-trap", "gone:main.go:14", "--", &path("gone")]);
            let found = probes(&ran);
            assert!(found.iter().any(|probe| probe["hits"] == 900), "{ran:?}");
            assert!(found.iter().all(|probe| probe["inlined_into"] == Value::Null), "{ran:?}");
        }
    }
}

/// A function of four arguments that reads the first one only and overwrites the others, where a place in it is, and how the others are called.
#[cfg(target_arch = "x86_64")]
const UNREAD: (&str, u32, [&str; 3]) = (
    "test %rax, %rax\\n mov %rdi, %r8\\n lea 3(%rdi,%rdi), %rax\\n xor %ecx, %ecx\\n xor %edx, %edx\\n xor %esi, %esi\\n ret",
    6,
    ["si", "dx", "cx"],
);
#[cfg(target_arch = "aarch64")]
const UNREAD: (&str, u32, [&str; 3]) = (
    "add x9, x0, x0\\n add x0, x9, #3\\n mov x1, #0\\n mov x2, #0\\n mov x3, #0\\n ret",
    4,
    ["r1", "r2", "r3"],
);

#[cfg(target_arch = "powerpc64")]
const UNREAD: (&str, u32, [&str; 3]) =
    ("add 9, 3, 3\\n addi 3, 9, 3\\n li 4, 0\\n li 5, 0\\n li 6, 0\\n blr", 4, ["r4", "r5", "r6"]);

/// What no instruction reads any more is told all the same, whatever is counted ahead of it.
#[cfg(not(target_arch = "x86"))]
#[test]
fn a_place_tells_registers_that_the_program_reads_no_more() {
    let (text, offset, [one, two, three]) = UNREAD;
    let source = r#"#include <stdio.h>
        __asm__(".text\n.globl unread\n.type unread, %function\n.p2align 4\nunread: TEXT\n.size unread, .-unread\n");
        long unread(long, long, long, long);
        int main(void) {
            printf("ready\n");
            fflush(stdout);
            while (getchar() != EOF) {
                long sum = 0;
                for (long x = 0; x < 20; x++) sum += unread(x, x + 10, x + 20, x + 30);
                printf("done %ld\n", sum);
                fflush(stdout);
            }
        }"#;
    let program = Program::build("unread", &source.replace("TEXT", text), &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let script = format!(
        "uprobe:unread:unread {{ @entries = count(); }}
         uprobe:unread:unread+{offset} {{ @[reg(\"{one}\"), reg(\"{two}\"), reg(\"{three}\")] = count(); }}"
    );
    let live = Live::run(&target, &script);
    target.tell("");
    assert_eq!(target.line(), "done 440");
    let told = live.end();
    before.assert_restored(target.pid());
    assert_eq!(told.value("@entries"), 20, "{told:?}");
    for x in 0..20 {
        assert_eq!(told.value(&format!("@[{}, {}, {}]", x + 10, x + 20, x + 30)), 1, "{told:?}");
    }
}
