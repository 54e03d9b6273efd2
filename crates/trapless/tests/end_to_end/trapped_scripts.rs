//! Scripts at probes that trap: what they tell is what they tell by jumps, exactly, and the process is what it would be without them.
// The keeper of a 32-bit program says elsewhere what it does.
#![cfg(not(target_arch = "x86"))]

#[cfg(target_arch = "x86_64")]
use crate::support;
use crate::support::assembly::{X86, with_registers};
use crate::support::live::{Live, Told, does};
use crate::support::tool::{Tool, run, trapless, wait_untraced};
use crate::support::{Program, Target};
use serde_json::Value;
use std::collections::BTreeMap;

const SCRIPTED: &str = include_str!("targets/scripted.c");

/// A function that takes a jump, and one that is too short for one, as none is where a jump takes one instruction: what both are called with is known.
#[cfg(target_arch = "x86_64")]
const MIXED: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
__asm__(".text\n.globl tiny\n.type tiny,@function\ntiny: ret\n.size tiny,.-tiny\n"
        ".globl behind\n.type behind,@function\nbehind: ret\n.size behind,.-behind\n");
void tiny(long x, const char *text);
void behind(void);
__attribute__((noinline, noclone)) long begins(long x) {
    __asm__ volatile("" : "+r"(x));
    tiny(x, x & 1 ? "odd" : "even");
    return x * 2;
}
static void *work(void *count) {
    for (long x = 0; x < (long)count; x++) begins(x);
    behind();
    return NULL;
}
int main(void) {
    char line[64];
    long count;
    printf("ready %p %p\n", begins, tiny);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && sscanf(line, "work %ld", &count) == 1) {
        pthread_t all[4];
        for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, work, (void *)count);
        for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
        printf("done 0\n");
        fflush(stdout);
    }
}"#;

/// A script as it can be had by traps: where return addresses are in a register, without what looks at returns.
fn by_traps(script: &str) -> String {
    let script = with_registers(script);
    if X86 {
        return script;
    }
    let mut parts = script.split("uretprobe:");
    let mut kept = parts.next().unwrap().to_owned();
    for part in parts {
        let mut open = 0;
        let end = part.char_indices().find(|&(_, letter)| {
            open += i32::from(letter == '{') - i32::from(letter == '}');
            letter == '}' && open == 0
        });
        kept += &part[end.unwrap().0 + 1..];
    }
    kept
}

/// What a script tells of a target that does these deeds, with these flags. The target's code is afterwards what it was.
#[track_caller]
fn told(target: &mut Target, flags: &[&str], script: &str, deeds: &[&str]) -> Told {
    let (before, pid) = (target.text(), target.pid().to_string());
    let live = Live::run_with(&[&["-p", &pid][..], flags].concat(), script);
    deeds.iter().for_each(|deed| does(target, deed));
    let told = live.end();
    before.assert_restored(target.pid());
    told
}

/// A script tells the same by jumps and by each way of trapping, and with nothing left out. Each time the target is a new one: where the
/// stacks of threads were that have ended, memory of ours may come to lie, and numbers of those threads that are left somewhere keep it there.
#[track_caller]
fn assert_the_same(program: &Program, script: &str, deeds: &[&str]) -> Told {
    let tell = |flags: &[&str]| {
        let mut target = program.start(&[]);
        let told = told(&mut target, flags, &by_traps(script), deeds);
        told.assert_whole();
        Told { out: told.out.replace(&format!("{}]", target.pid()), "its own]"), ..told }
    };
    let by_jumps = tell(&[]);
    for mechanism in ["step", "emulate,step", "boost,step"] {
        assert_eq!(tell(&["--mechanism", mechanism]).out, by_jumps.out, "{mechanism}");
    }
    by_jumps
}

#[test]
fn what_many_threads_call_is_told_as_by_jumps() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let same = assert_the_same(
        &program,
        "uprobe:scripted:called {
            @c = count(); @k[arg0 % 100] = count(); @s = sum(arg0); @low = min(arg0 + 3); @high = max(arg0);
            @mean = avg(arg0); @h = hist(arg0); @l = lhist(arg0, 100, 490, 10); @n++; @t[arg0 % 7] += 2;
            @ks[arg0 % 10] = sum(arg0); @pairs[arg0 % 2, \"text\"] = count(); @who[comm, pid] = count();
            if (@shared < 5) { @few = count(); } @shared = sum(0); @regs[reg(\"ARG0\") == arg0] = count();
        }
        uretprobe:scripted:called { @r = count(); @rs = sum(retval); @rets[func, retval % 3] = count(); }",
        &["threads 300", "call 10"],
    );
    assert_eq!([same.value("@c"), same.value("@n")], [2410; 2], "{same:?}");
    assert!(!X86 || same.value("@r") == 2410, "{same:?}");
    assert_eq!(same.value("@s"), 299 * 150 * 8 + 45);
}

#[test]
fn what_calls_keep_until_they_return_is_found_again() {
    if !X86 {
        return trapless_testing::inapplicable!("probes that trap do not follow calls here");
    }
    let program = Program::build("scripted", SCRIPTED, &[]);
    let script = "uprobe:scripted:called { @start[tid] = nsecs; @in[tid] = arg0; }
         uretprobe:scripted:called /@start[tid]/ {
            @ended = count(); @wrong = sum(@in[tid] ^ 5 ^ retval); @later[nsecs >= @start[tid]] = count();
            @took[duration >= 0, duration < 60000000000] = count();
            _ = delete(@start, tid); _ = delete(@in, tid);
         }
         uprobe:scripted:nested { @depth[tid]++; @deepest = max(@depth[tid]); printf(\"in %d\\n\", arg0); }
         uretprobe:scripted:nested { @depth[tid]--; printf(\"out %d of %d\\n\", retval, arg0); }";
    let same = assert_the_same(&program, script, &["threads 100", "nested 5"]);
    assert_eq!([same.value("@ended"), same.value("@wrong"), same.value("@deepest")], [800, 0, 6], "{same:?}");
    assert_eq!(same.value("@later[true]"), 800, "{same:?}");
    assert!(same.out.contains("in 1\nin 0\nout 1 of 0\nout 2 of 1\n"), "{same:?}");
}

#[test]
fn pointers_are_followed_as_by_jumps_wherever_they_lead() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let script = "uprobe:scripted:look {
            @s[arg1, str(arg0)] = count(); @short[arg1] = str(arg0, 3); @w[arg1] = sum(*(uint8 *)arg0);
            @wide[arg1] = sum(*(uint64 *)arg0); @b[arg1] = buf(arg0, 6);
            if (strncmp(str(arg0), \"pl\", 2) == 0) { printf(\"%s|%r\\n\", str(arg0), buf(arg0, 3)); }
        }";
    let same = assert_the_same(&program, script, &["look 3"]);
    for line in ["@s[7, plain]: 3", "@s[5, edgeZ]: 3", "@s[6, across pages]: 3", "@s[4, Z]: 3", "plain|pla"] {
        assert!(same.out.lines().any(|told| told == line), "{line}: {same:?}");
    }
}

#[test]
fn any_instruction_tells_its_registers_and_vectors_are_told_as_doubles() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    for script in [
        "uprobe:scripted:steps { @a = sum(arg0); } uprobe:scripted:steps+8 { @b = sum(reg(\"ARG0\")); }
         uprobe:scripted:steps+16 { @c = sum(arg1); } uretprobe:scripted:steps { @r = sum(retval); }",
        "uprobe:scripted:bare { @a = sum(reg(\"FREE\")); @f[arg1, arg2, arg3, arg4, arg5] = count(); }",
    ] {
        assert_the_same(&program, script, &["steps 100", "around 100"]);
    }
    // Two places that on x86 lie within each other's detours can be had by traps.
    let both = "uprobe:scripted:steps { @a = sum(arg0); } uprobe:scripted:steps+4 { @b = sum(arg0); }";
    let found = told(&mut target, &["--mechanism", "step"], both, &["steps 100"]);
    found.assert_whole();
    assert_eq!([found.value("@a"), found.value("@b")], [4950; 2], "{found:?}");
    const FLOATS: &str = "#include <stdio.h>
        __attribute__((noipa)) double half(double x, float y) { return x / y; }
        int main(void) {
            char line[64]; int count;
            printf(\"ready\\n\"); fflush(stdout);
            while (fgets(line, 64, stdin) && sscanf(line, \"half %d\", &count) == 1) {
                for (int i = 0; i < count; i++) half(i, 2);
                printf(\"done 0\\n\"); fflush(stdout);
            } }";
    let program = Program::build("floats", FLOATS, &["-g"]);
    let script = "uprobe:floats:half { @x = sum((int64)(args.x * 4.0)); @y = sum((int64)args.y); }
        uretprobe:floats:half { @h = sum((int64)(fretval * 4.0)); }";
    let same = assert_the_same(&program, script, &["half 100"]);
    assert_eq!(["@x", "@y"].map(|name| same.value(name)), [19_800, 200], "{same:?}");
    assert!(!X86 || same.value("@h") == 9900, "{same:?}");
}

/// One process, one script: what a jump leads to and what a trap has told are one.
#[test]
#[cfg(target_arch = "x86_64")]
fn jumps_and_traps_share_maps_and_keep_each_threads_order() {
    const EACH: i64 = 300;
    let program = Program::build("mixed", MIXED, &[]);
    let mut target = program.start(&[]);
    let (before, pid) = (target.text(), target.pid().to_string());
    let live = Live::run_with(
        &["-p", &pid, "--allow-trap"],
        "uprobe:mixed:begins { @all = count(); @at[tid] = arg0; @start[tid] = nsecs; @n++; @k[arg0] = count(); @low = min(arg0);
            @m[tid] = max(arg0); printf(\"%d jump %d\\n\", tid, arg0); }
        uprobe:mixed:tiny { @all = count(); @same[@at[tid] == arg0, nsecs >= @start[tid]] = count(); @n++; @k[arg0] = count();
            @low = min(arg0 - 7); @m[tid] = max(arg0 + 1); @text[str(arg1)] = count(); printf(\"%d trap %d\\n\", tid, arg0); }
        uretprobe:mixed:begins { @all = count(); printf(\"%d back %d\\n\", tid, retval); _ = delete(@at, tid); _ = delete(@start, tid); }",
    );
    let first = |index: usize| target.read(target.address(index), 1)[0];
    // `jmp rel32`, `int3`.
    assert_eq!([first(0), first(1)], [0xe9, 0xcc]);
    does(&mut target, &format!("work {EACH}"));
    let told = live.end();
    told.assert_whole();
    before.assert_restored(target.pid());
    assert_eq!(
        [told.value("@all"), told.value("@n"), told.value("@low")],
        [12 * EACH, 8 * EACH, -7],
        "{told:?}"
    );
    assert_eq!(told.value("@same[true, true]"), 4 * EACH, "{told:?}");
    assert_eq!([told.value("@text[odd]"), told.value("@text[even]")], [2 * EACH; 2], "{told:?}");
    assert_eq!(told.numbers("@k"), (0..EACH).map(|x| (x, 8)).collect());
    assert_eq!(told.numbers("@m").into_values().collect::<Vec<_>>(), [EACH; 4]);
    assert!(told.numbers("@at").is_empty() && told.numbers("@start").is_empty(), "{told:?}");
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in told.out.lines().filter(|line| !line.starts_with('@') && !line.is_empty()) {
        let (thread, rest) = line.split_once(' ').unwrap();
        lines.entry(thread).or_default().push(rest.to_owned());
    }
    let expected: Vec<String> = (0..EACH)
        .flat_map(|x| [format!("jump {x}"), format!("trap {x}"), format!("back {}", 2 * x)])
        .collect();
    assert_eq!(lines.len(), 4);
    lines.into_values().for_each(|lines| assert_eq!(lines, expected));
}

/// Threads have numbers of their own in a container, and jumps know no others.
#[test]
#[cfg(target_arch = "x86_64")]
fn in_a_container_both_call_threads_as_it_does() {
    let program = Program::build("mixed", MIXED, &[]);
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program.path());
    let Some(mut target) = Target::try_start(&mut command) else {
        trapless_testing::inapplicable!("no namespaces here");
        return;
    };
    // The program is the child of unshare.
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let inner: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let before = support::text::Text::of(inner);
    let live = Live::run_with(
        &["-p", &inner.to_string(), "--allow-trap"],
        "uprobe:mixed:begins { @at[tid] = arg0; }
        uprobe:mixed:tiny { @same[@at[tid] == arg0] = count(); @low[tid < 100] = count(); @by[tid] = count(); }",
    );
    does(&mut target, "work 50");
    let told = live.end();
    told.assert_whole();
    before.assert_restored(inner);
    assert_eq!([told.value("@same[true]"), told.value("@low[true]")], [200; 2], "{told:?}");
    assert_eq!(told.numbers("@by").into_values().collect::<Vec<_>>(), [50; 4], "{told:?}");
}

#[test]
fn a_body_that_goes_round_too_often_ends_and_is_counted() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let script = "uprobe:scripted:called { $n = 0; for $i : 0..100000 { $n++; } @whole = count(); }
        uprobe:scripted:nested { $n = 0; for $i : 0..100 { $n++; } @shorter = sum($n); }
        uretprobe:scripted:called { $n = 0; for $i : 0..10000 { $n++; } @short = sum($n); }";
    let deeds = ["call 3", "nested 2"];
    let by_jumps = told(&mut target, &[], script, &deeds);
    by_jumps.assert_whole();
    let names = ["@whole", "@short", "@shorter"];
    assert_eq!(names.map(|name| by_jumps.value(name)), [3, 30_000, 300], "{by_jumps:?}");
    let trapped = told(&mut target, &["--mechanism", "step"], &by_traps(script), &deeds);
    assert!(trapped.err.contains("3 runs of probes were ended"), "{trapped:?}");
    assert!(!trapped.out.contains("@whole"), "{trapped:?}");
    assert_eq!(trapped.value("@shorter"), 300, "{trapped:?}");
    assert!(!X86 || trapped.value("@short") == 30_000, "{trapped:?}");
}

#[test]
fn children_run_no_bodies_and_are_counted_as_with_jumps() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let script = "uprobe:scripted:called { @c = count(); } uretprobe:scripted:called { @r = count(); }";
    let deeds = ["fork 10", "exec 10", "threads 10", "vfork 10"];
    let told = told(&mut target, &["--mechanism", "step"], &by_traps(script), &deeds);
    let names: &[&str] = if X86 { &["@c", "@r"] } else { &["@c"] };
    assert!(names.iter().all(|name| told.value(name) == 80), "{told:?}");
    let in_children = format!("{} hits were in forked children", 10 * names.len());
    assert!(told.err.contains(&in_children), "{told:?}");
}

#[test]
fn a_killed_tool_leaves_nothing_that_traps() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    does(&mut target, "spin 3");
    let script = "uprobe:scripted:called { @c = count(); printf(\"%d\\n\", arg0); @x[tid] = arg0; _ = delete(@x, tid); }
        uretprobe:scripted:called { @r = hist(retval); for $i : 0..100000 { @w = $i; } }";
    for round in 0..4 {
        let mut live =
            Live::run_with(&["-p", &target.pid().to_string(), "--mechanism", "step"], &by_traps(script));
        // At once, or when messages have come.
        (0..round * 10).for_each(|_| assert_ne!(live.tool.line(), ""));
        live.tool.kill();
        wait_untraced(target.pid());
        before.assert_restored(target.pid());
    }
    assert!(target.is_alive());
    does(&mut target, "call 10");
}

#[test]
fn a_launched_command_is_told_from_its_first_call_on() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let path = program.path().to_str().unwrap();
    let script = "uprobe:scripted:called { @c = count(); @s = sum(arg0); } uretprobe:scripted:called { @r = count(); }";
    let ran = run(&["--mechanism", "step", "-e", &by_traps(script), "--", path, "call", "100"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for line in ["@c: 100", "@s: 4950"].into_iter().chain(X86.then_some("@r: 100")) {
        assert!(ran.out.lines().any(|told| told == line), "{line}: {ran:?}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_a_trap_cannot_tell_is_left_out_with_the_reason() {
    let program = Program::build("mixed", MIXED, &[]);
    let mut target = program.start(&[]);
    let (before, pid) = (target.text(), target.pid().to_string());
    for (flags, script, reason) in [
        (&[][..], "uprobe:mixed:tiny { @[ustack] = count(); }", "it walks the call stack"),
        (&["--unsafe"], "uprobe:mixed:tiny { signal(\"SIGUSR1\"); }", "it sends a signal"),
    ] {
        let ran = run(&[&["-p", &pid, "--allow-trap", "-e", script][..], flags].concat());
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(reason), "{ran:?}");
    }
    // Where a jump fits it is no matter, and of several sites only that one is left out.
    let script = "uprobe:mixed:tiny,uprobe:mixed:begins { @[func] = count(); @s[ustack(1)] = count(); }";
    let found = told(&mut target, &["--allow-trap"], script, &["work 10"]);
    assert_eq!(found.value("@[begins]"), 40, "{found:?}");
    assert!(!found.out.contains("@[tiny]"), "{found:?}");
    assert!(found.err.contains("1 site has no probe: ") && found.err.contains("mixed:tiny"), "{found:?}");
    assert!(found.err.contains("it walks the call stack"), "{found:?}");
    // Not asked for, nothing traps; and where it cannot be had at all that is said ahead.
    let ran = run(&["-p", &pid, "-e", "uprobe:mixed:tiny { @ = count(); }"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("too short for a jump") && ran.err.contains("--allow-trap"), "{ran:?}");
    let path = program.path().display();
    let by_file = format!("uprobe:{path}:tiny {{ @ = count(); }}");
    for arguments in
        [&["--allow-trap", "-e", &by_file][..], &["--follow", "--allow-trap", "-p", &pid, "-e", &by_file]]
    {
        run(arguments).assert_refused(2, &["by jumps alone", "--allow-trap"]);
    }
    before.assert_restored(target.pid());
}

/// The rows of a verb with expressions, each as its keys and its hits, where it traps.
#[track_caller]
fn rows(target: &mut Target, arguments: &[&str], deeds: &[&str]) -> (BTreeMap<String, u64>, Value) {
    let pid = target.pid().to_string();
    let (verb, rest) = arguments.split_first().unwrap();
    let tool = Tool::armed(&[&[*verb, "-p", &pid, "--mechanism", "step"][..], rest].concat());
    deeds.iter().for_each(|deed| does(target, deed));
    let summary = tool.interrupt().0;
    let row = |row: &Value| {
        let keys: Vec<String> =
            row["by"].as_array().into_iter().flatten().map(|key| key["value"].to_string()).collect();
        (keys.join(","), row["hits"].as_u64().unwrap())
    };
    let rows = summary["probes"].as_array().unwrap().iter().filter(|row| row["hits"] != 0).map(row).collect();
    (rows, summary)
}

#[test]
fn quick_forms_are_had_by_traps() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let found = rows(
        &mut target,
        &["count", "scripted:called", "--by", "arg0 % 3", "--where", "arg0 < 30"],
        &["call 100"],
    );
    assert_eq!(found.0, ["0", "1", "2"].map(|key| (key.to_owned(), 10)).into(), "{}", found.1);
    let found = rows(&mut target, &["hist", "scripted:called", "arg0"], &["call 64"]);
    assert_eq!(found.0.values().sum::<u64>(), 64, "{}", found.1);
    if X86 {
        let found = rows(&mut target, &["latency", "scripted:called", "--by", "retval == 5"], &["call 10"]);
        assert_eq!(found.0, [("true".to_owned(), 1), ("false".to_owned(), 9)].into(), "{}", found.1);
    }
    let found = rows(&mut target, &["count", "step:scripted:called", "--by", "str(\"x\")"], &["threads 20"]);
    assert_eq!(found.0.into_values().collect::<Vec<_>>(), [160], "{}", found.1);
    let pid = target.pid().to_string();
    let flags = [
        "trace",
        "-p",
        &pid,
        "--mechanism",
        "step",
        "-f",
        "json",
        "scripted:look",
        "--arg",
        "str(arg0)",
        "--where",
        "arg1 == 7",
    ];
    let mut tool = Tool::armed_with(&mut trapless(&flags));
    does(&mut target, "look 2");
    let lines = [tool.line(), tool.line()];
    assert!(lines.iter().all(|line| line.contains("\"plain\"")), "{lines:?}");
    tool.interrupt();
    before.assert_restored(target.pid());
}
