//! Scripts whose probes are in living processes: what they tell is exact, and the process is what it would be without them.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::assembly::{GUARDED, X86, with_registers};
use crate::support::live::{Live, does};
use crate::support::park::{keep_on, processors_of};
use crate::support::tool::{Ran, detach, run};
use crate::support::{self, Program, Target};
use std::collections::BTreeMap;

const BODIES: &str = include_str!("targets/bodies.c");
const SCRIPTED: &str = include_str!("targets/scripted.c");

#[test]
fn aggregations_of_many_threads_are_exact_to_the_last_call() {
    const EACH: i64 = 50_000;
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let live = Live::run(
        &target,
        "uprobe:scripted:called {
            @c = count(); @k[arg0 % 100] = count(); @s = sum(arg0); @low = min(arg0 + 3); @high = max(arg0);
            @mean = avg(arg0); @h = hist(arg0); @l = lhist(arg0, 1000, 49000, 1000); @n++; @t[arg0 % 7] += 2;
            @ks[arg0 % 10] = sum(arg0); @last = arg1; @pairs[arg0 % 2, \"text\"] = count();
        }
        uretprobe:scripted:called { @r = count(); @rs = sum(retval); }",
    );
    does(&mut target, &format!("threads {EACH}"));
    let told = live.end();
    told.assert_whole();
    before.assert_restored(target.pid());
    let all = EACH * 8;
    let sum = EACH * (EACH - 1) / 2 * 8;
    for (name, value) in [
        ("@c", all),
        ("@s", sum),
        ("@low", 3),
        ("@high", EACH - 1),
        ("@mean", sum / all),
        ("@n", all),
        ("@last", EACH),
        ("@r", all),
        ("@rs", (0..EACH).map(|x| x ^ 5).sum::<i64>() * 8),
        ("@pairs[0, text]", all / 2),
        ("@pairs[1, text]", all / 2),
    ] {
        assert_eq!(told.value(name), value, "{name}");
    }
    assert_eq!(told.numbers("@k"), (0..100).map(|key| (key, all / 100)).collect());
    let of = |key| (0..EACH).filter(move |x| x % 7 == key).count() as i64;
    assert_eq!(told.numbers("@t"), (0..7).map(|key| (key, of(key) * 16)).collect());
    let of = |key| (0..EACH).filter(move |x| x % 10 == key).sum::<i64>() * 8;
    assert_eq!(told.numbers("@ks"), (0..10).map(|key| (key, of(key))).collect());
    let rows = told.histogram("@h");
    assert_eq!(rows.values().sum::<i64>(), all, "{rows:?}");
    assert_eq!([rows["[0]"], rows["[1]"], rows["[2, 4)"], rows["[16K, 32K)"]], [8, 8, 16, 16384 * 8]);
    let rows = told.histogram("@l");
    assert_eq!(rows.values().sum::<i64>(), all, "{rows:?}");
    assert_eq!([rows["(..., 1000)"], rows["[1000, 2000)"], rows["[49000, ...)"]], [8000; 3], "{rows:?}");
}

#[test]
fn nothing_is_lost_to_handlers_that_call_what_they_interrupt() {
    const CALLS: i64 = 1_000_000;
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let live = Live::run(
        &target,
        "uprobe:bodies:probed {
            @c = count(); @k[arg0 % 100] = count(); @s = sum(arg0); @n++; @t[arg0 % 7] += 1; @low = min(arg0);
            @high = max(arg0); @h = hist(arg0); @shared[tid, arg0 % 3] = sum(arg0); @mean = avg(arg0);
        }
        uretprobe:bodies:probed { @r = count(); }
        uprobe:bodies:in_handler { @handled = count(); }",
    );
    does(&mut target, &format!("storm {CALLS}"));
    let told = live.end();
    told.assert_whole();
    let handled = told.value("@handled");
    // Emulated, signals come seldom.
    assert!(handled > if X86 { 100 } else { 10 }, "{handled}");
    let all = CALLS + handled;
    let signal = i64::from(libc::SIGUSR1);
    let sum = CALLS * (CALLS - 1) / 2 + handled * signal;
    for (name, value) in [
        ("@c", all),
        ("@n", all),
        ("@r", all),
        ("@s", sum),
        ("@low", 0),
        ("@high", CALLS - 1),
        ("@mean", sum / all),
    ] {
        assert_eq!(told.value(name), value, "{name}, {handled} handled");
    }
    let more = |is: bool| if is { handled } else { 0 };
    assert_eq!(
        told.numbers("@k"),
        (0..100).map(|key| (key, CALLS / 100 + more(key == signal % 100))).collect()
    );
    let of = |key| (0..CALLS).filter(move |x| x % 7 == key).count() as i64 + more(key == signal % 7);
    assert_eq!(told.numbers("@t"), (0..7).map(|key| (key, of(key))).collect());
    assert_eq!(told.histogram("@h").values().sum::<i64>(), all);
    let shared = told.out.lines().filter(|line| line.starts_with("@shared["));
    let total: i64 = shared.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).sum();
    assert_eq!(total, sum);
}

/// Whatever a body has claimed when it is left for good, is there again for those that come.
#[test]
fn bodies_that_are_left_for_good_take_nothing_with_them() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let live = Live::run(
        &target,
        &with_registers(
            "uprobe:bodies:probed {
            @hits = count();
            $text = str(reg(\"STACK\"), 400);
            @texts[$text == \"none\"] = count();
            @at[tid] = arg0; _ = delete(@at, tid);
            if (arg0 == 3) { printf(\"three\\n\"); @three = count(); }
            if (arg0 == 5) { printf(\"%d\\n\", $text == \"none\"); }
        }",
        ),
    );
    for _ in 0..10 {
        does(&mut target, "leave 30");
        does(&mut target, "call 10");
    }
    let told = live.end();
    // Whose frames are gone is only known from frames above: until such a hit comes, those that find no room are counted.
    let three = told.value("@three") as u64;
    assert!(three > 0 && three + told.unrun() >= 10, "{three}: {}", told.err);
    let printed = told.out.lines().filter(|line| *line == "three").count() as u64;
    assert!(printed <= three && printed + told.lost() >= three, "{printed}: {}", told.err);
    // The last calls may have been among those.
    assert!(!told.out.contains("@at[") || told.unrun() > 0, "{}", told.out);
    before.assert_restored(target.pid());
    does(&mut target, "call 10");
}

#[test]
fn each_calls_end_finds_its_own_beginning() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let live = Live::run(
        &target,
        "uprobe:scripted:called { @start[tid] = nsecs; @in[tid] = arg0; }
         uretprobe:scripted:called /@start[tid]/ {
            @ended = count(); @long = max(nsecs - @start[tid]); @wrong = sum(@in[tid] ^ 5 ^ retval);
            @ns = hist(nsecs - @start[tid]); _ = delete(@start, tid); _ = delete(@in, tid);
         }
         uprobe:scripted:nested { @depth[tid]++; @deepest = max(@depth[tid]); @down[arg0] = count(); }
         uretprobe:scripted:nested { @depth[tid]--; @up[retval] = count(); }",
    );
    for _ in 0..3 {
        does(&mut target, "threads 20000");
    }
    does(&mut target, "nested 200");
    let told = live.end();
    told.assert_whole();
    assert_eq!([told.value("@ended"), told.value("@wrong")], [480_000, 0], "{}", told.out);
    assert_eq!(told.histogram("@ns").values().sum::<i64>(), 480_000);
    assert!((1..60_000_000_000).contains(&told.value("@long")));
    assert_eq!(told.value("@deepest"), 201);
    assert_eq!(told.numbers("@depth").into_values().collect::<Vec<_>>(), [0]);
    assert_eq!(told.numbers("@down"), (0..201).map(|depth| (depth, 1)).collect());
    assert_eq!(told.numbers("@up"), (1..202).map(|depth| (depth, 1)).collect());
    assert!(told.numbers("@start").is_empty() && told.numbers("@in").is_empty(), "{}", told.out);
}

#[test]
fn pointers_that_lead_nowhere_harm_nobody() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let live = Live::run(
        &target,
        "uprobe:scripted:look {
            @words[arg1] = sum(*(uint8 *)arg0); @wide[arg1, *(uint64 *)arg0] = count();
            @texts[arg1, str(arg0)] = count(); @short[arg1, str(arg0, 3)] = count();
            @none = sum(*(uint64 *)(*(uint64 *)arg0));
         }",
    );
    does(&mut target, "look 100");
    let told = live.end();
    let bytes = [(0, 0), (1, 0), (2, 0), (3, 0), (4, b'Z'), (5, b'e'), (6, b'a'), (7, b'p'), (8, 0), (9, 0)];
    assert_eq!(
        told.numbers("@words"),
        bytes.map(|(which, byte)| (which, 100 * i64::from(byte))).into(),
        "{told:?}"
    );
    for (which, long, short) in [
        (0, "", ""),
        (1, "", ""),
        (2, "", ""),
        (3, "", ""),
        (4, "Z", "Z"),
        (5, "edgeZ", "edg"),
        (6, "across pages", "acr"),
        (7, "plain", "pla"),
        (8, "", ""),
        (9, "", ""),
    ] {
        assert_eq!(told.value(&format!("@texts[{which}, {long}]")), 100, "{told:?}");
        assert_eq!(told.value(&format!("@short[{which}, {short}]")), 100, "{told:?}");
    }
    assert_eq!(told.value("@none"), 0, "{told:?}");
    does(&mut target, "look 1");
}

#[test]
fn the_processor_is_told_on_which_a_thread_is() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let live = Live::run(
        &target,
        "uprobe:scripted:called { @[cpu, numaid] = count(); } uretprobe:scripted:called { @r[cpu] = count(); }",
    );
    let processors = processors_of(target.pid());
    for processor in &processors {
        keep_on(target.pid(), *processor);
        does(&mut target, "call 100");
    }
    let told = live.end();
    told.assert_whole();
    assert_eq!(told.numbers("@r"), processors.iter().map(|&processor| (processor as i64, 100)).collect());
    let node = |processor: usize| {
        let of = |node: &usize| {
            std::path::Path::new(&format!("/sys/devices/system/node/node{node}/cpu{processor}")).exists()
        };
        (0..64).find(of).unwrap_or(0)
    };
    for processor in processors {
        assert_eq!(told.value(&format!("@[{processor}, {}]", node(processor))), 100, "{told:?}");
    }
}

#[test]
fn every_message_arrives_in_its_threads_order_or_is_counted() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    for each in [100, 20_000] {
        let live = Live::run(
            &target,
            "uprobe:scripted:called { @calls = count(); printf(\"%d %d\\n\", tid, arg0); }",
        );
        does(&mut target, &format!("threads {each}"));
        let told = live.end();
        assert_eq!(told.value("@calls"), each * 8);
        let mut last: BTreeMap<i64, i64> = BTreeMap::new();
        let mut messages = 0;
        for line in told.out.lines() {
            let mut words = line.split(' ').map(str::parse);
            let (Some(Ok(tid)), Some(Ok(number))) = (words.next(), words.next()) else { continue };
            let before = last.insert(tid, number);
            assert!(before.is_none_or(|before| before < number), "{tid}: {before:?} {number}");
            messages += 1;
        }
        assert_eq!(messages + told.lost(), each as u64 * 8, "{messages} {}", told.err);
        assert!(each > 100 || told.lost() == 0, "{}", told.err);
    }
}

#[test]
fn children_and_those_that_become_others_are_what_they_would_be() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let script = "uprobe:scripted:called { @c = count(); @s = sum(arg0); @t[str(\"x\")] = count(); }
        uretprobe:scripted:called { @r = count(); }";
    let live = Live::run(&target, script);
    for deed in ["fork 20", "vfork 20", "exec 20", "threads 10"] {
        does(&mut target, deed);
    }
    let told = live.end();
    // A child of `vfork` calls in its parent's memory: it is known as who it is, or counted as in a child.
    let calls = told.value("@c");
    assert!([80, 100].contains(&calls), "{told:?}");
    assert_eq!(told.value("@r"), calls, "{told:?}");
    assert!(told.err.contains("in forked children"), "{told:?}");
    before.assert_restored(target.pid());
    // Who becomes another has been told of.
    let live = Live::run(&target, script);
    does(&mut target, "call 10");
    target.tell("become 1");
    assert!(target.line().starts_with("ready"));
    does(&mut target, "call 10");
    let told = live.end();
    assert_eq!([told.value("@c"), told.value("@r"), told.value("@s")], [10, 10, 45], "{told:?}");
    does(&mut target, "call 10");
}

#[test]
fn probes_have_their_own_names_in_each_of_several_processes() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let paths = ["first", "second"].map(|name| program.dir().join(name));
    let mut targets = paths.each_ref().map(|path| {
        trapless_testing::copy_program(program.path(), path);
        Target::start(&mut std::process::Command::new(path))
    });
    let before = targets.each_ref().map(Target::text);
    let [first, second] = paths.each_ref().map(|path| path.display());
    // Each is the first probe of its process.
    let script = format!(
        "uprobe:{first}:called,uprobe:{second}:called {{ @e[probe] = count(); @f[func] = count(); }}
        uretprobe:{second}:called {{ @e[probe] = count(); }}"
    );
    let live = Live::run_with(&[], &script);
    for (target, before) in targets.iter_mut().zip(&before) {
        support::eventually("probes", || target.text() != *before);
    }
    targets.iter_mut().zip(["call 10", "call 100"]).for_each(|(target, deed)| does(target, deed));
    let told = live.end();
    assert_eq!(told.value(&format!("@e[uprobe:{first}:called]")), 10);
    assert_eq!(told.value(&format!("@e[uprobe:{second}:called]")), 100);
    assert_eq!(told.value(&format!("@e[uretprobe:{second}:called]")), 100);
    // Functions of two files are two, however they are called.
    let lines = |line: &&str| line.starts_with("@f[");
    assert_eq!(told.out.lines().filter(lines).collect::<Vec<_>>(), ["@f[called]: 10", "@f[called]: 100"]);
}

#[test]
fn maps_by_thread_are_had_in_several_processes_at_once() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let path = program.path().display();
    let mut targets = [(); 3].map(|()| program.start(&[]));
    let before = targets.each_ref().map(Target::text);
    let script = format!(
        "uprobe:{path}:called {{ @last[tid] = arg0; @open[tid] = 1; }}
        uretprobe:{path}:called /@open[tid]/ {{ @calls[pid] = count(); delete(@open, tid); }}"
    );
    let live = Live::run_with(&[], &script);
    for (target, before) in targets.iter_mut().zip(&before) {
        support::eventually("probes", || target.text() != *before);
    }
    let calls = [10, 100, 1];
    for (target, calls) in targets.iter_mut().zip(calls) {
        does(target, &format!("call {calls}"));
    }
    // What one has left who has gone is there as well.
    targets[2].signal(libc::SIGKILL);
    targets[2].wait();
    let told = live.end();
    for (target, calls) in targets.iter().zip(calls) {
        let pid = target.pid();
        assert_eq!(told.value(&format!("@calls[{pid}]")), calls, "{told:?}");
        assert_eq!(told.value(&format!("@last[{pid}]")), calls - 1, "{told:?}");
    }
    assert!(!told.out.contains("@open["), "{told:?}");
}

#[test]
fn numbers_of_several_processes_are_added_up_also_of_those_that_have_ended() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let path = program.path().display();
    let mut targets = [(); 3].map(|()| program.start(&[]));
    let before = targets.each_ref().map(Target::text);
    let script = format!(
        "uprobe:{path}:called {{ @calls++; @by[arg0 % 2, \"key\"] += 2; @down--; @cleared++; @zeroed += arg0; @taken[arg0 % 2]++; }}
        self:signal:SIGUSR1 {{ clear(@cleared); zero(@zeroed); delete(@taken, 1); printf(\"%d %d\\n\", @calls, has_key(@taken, 0)); }}"
    );
    let live = Live::run_with(&[], &script);
    for (target, before) in targets.iter_mut().zip(&before) {
        support::eventually("probes", || target.text() != *before);
    }
    for (target, calls) in targets.iter_mut().zip([10, 100, 2]) {
        does(target, &format!("threads {calls}"));
    }
    targets[2].signal(libc::SIGKILL);
    targets[2].wait();
    live.tool.signal(libc::SIGUSR1);
    let mut live = live;
    assert_eq!(live.tool.line(), "896 1");
    does(&mut targets[0], "call 6");
    let told = live.end();
    // Eight threads each, and six calls more.
    let all = 8 * (10 + 100 + 2) + 6;
    for (name, value) in [
        ("@calls", all),
        ("@by[0, key]", all),
        ("@by[1, key]", all),
        ("@down", -all),
        ("@cleared", 6),
        ("@zeroed", 15),
        ("@taken[0]", all / 2),
        ("@taken[1]", 3),
    ] {
        assert_eq!(told.value(name), value, "{name}: {told:?}");
    }
}

#[test]
fn a_targets_end_ends_the_script_and_keeps_what_it_has_told() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let mut target = program.start(&[]);
        let live = Live::run(
            &target,
            "uprobe:scripted:called { @c = count(); printf(\"%d\\n\", arg0); @last = arg0; } end { printf(\"over\\n\"); }",
        );
        does(&mut target, "call 100");
        target.signal(signal);
        let told = live.ended();
        assert_eq!([told.value("@c"), told.value("@last")], [100, 99], "{told:?}");
        let numbers: Vec<i64> = told.out.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<i64>>());
        assert!(told.out.contains("over\n"), "{told:?}");
    }
}

#[test]
fn what_a_killed_tool_leaves_is_taken_out() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    does(&mut target, "spin 4");
    // Who is in a body is stepped out of it. Emulated, that takes too long of such as read much.
    let reads = if X86 { "@[str(reg(\"STACK\"))] = count();" } else { "@[arg0 % 10] = count();" };
    let script = format!(
        "uprobe:scripted:called {{
            @c = count(); printf(\"%d\\n\", arg0); {reads} @x[tid] = arg0; _ = delete(@x, tid);
        }}
        uretprobe:scripted:called {{ @r = hist(retval); }}"
    );
    for _ in 0..5 {
        let live = Live::run(&target, &with_registers(&script));
        live.tool.kill();
        detach(target.pid());
        before.assert_restored(target.pid());
    }
    does(&mut target, "call 10");
}

#[test]
fn registers_flags_vectors_and_errno_are_kept() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let live = Live::run(
        &target,
        &with_registers("uprobe:scripted:bare {
            @c = count(); @h = hist(arg0); @a = avg(reg(\"FREE\")); @t[str(arg0), tid, reg(\"ARG3\"), reg(\"ARG2\")] = count();
            @l = lhist(arg0, 0, 1000, 10); printf(\"\"); @w = sum(*(uint64 *)arg0); @d[arg0] = 1; _ = delete(@d, arg0);
            @f[arg1, arg2, arg3, arg4, arg5] = count(); @x = sum((int64)(farg0 * 2.5) * 0);
         }
         uretprobe:scripted:bare { @r = sum(retval); @q[str(retval)] = count(); }"),
    );
    does(&mut target, "around 3000");
    let told = live.end();
    // On x86 the function returns something else than what it doubles.
    let returned = if X86 { 101 * 3000 } else { 3000 * 2999 };
    assert_eq!([told.value("@c"), told.value("@a"), told.value("@r")], [3000, 101, returned], "{told:?}");
    assert_eq!(told.value("@f[104, 103, 102, 108, 109]"), 3000, "{told:?}");
}

#[test]
fn any_instruction_tells_its_registers() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let sum = 499_500;
    // Those that lie within each other's detours are not probed at once.
    for (script, values) in [
        (
            "uprobe:scripted:steps { @a = sum(arg0); } uprobe:scripted:steps+8 { @b = sum(reg(\"ARG0\")); }
             uprobe:scripted:steps+16 { @c = sum(arg1); } uretprobe:scripted:steps { @r = sum(retval); }",
            &[("@a", sum), ("@b", sum + 2000), ("@c", 2 * sum + 3000), ("@r", 2 * sum + 8000 - 12)][..],
        ),
        (
            "uprobe:scripted:steps+4 { @a = sum(reg(\"FREE\")); } uprobe:scripted:steps+12 { @b = sum(reg(\"ARG1\")); }",
            &[("@a", sum + 1000), ("@b", 2 * sum + 3000)],
        ),
    ] {
        let live = Live::run(&target, &with_registers(script));
        does(&mut target, "steps 1000");
        let told = live.end();
        told.assert_whole();
        for (name, value) in values {
            assert_eq!(told.value(name), *value, "{name}: {told:?}");
        }
        before.assert_restored(target.pid());
    }
    let live = Live::run(
        &target,
        "uprobe:scripted:steps { @a = sum(arg0); } uprobe:scripted:steps+4 { @b = sum(arg0); }",
    );
    does(&mut target, "steps 1000");
    let told = live.end();
    assert_eq!(told.value("@a"), sum, "{told:?}");
    if !X86 {
        // A jump takes one instruction, and no other is in its way.
        assert_eq!(told.value("@b"), sum, "{told:?}");
        return told.assert_whole();
    }
    assert!(told.err.contains("1 site has no probe") && told.err.contains("scripted:steps+0x4"), "{told:?}");
}

#[test]
fn static_and_stripped_programs_are_as_others() {
    for flags in [&["-static"][..], &["-s", "-rdynamic"], &["-no-pie"], &GUARDED[..1]] {
        let program = Program::build("scripted", SCRIPTED, flags);
        let mut target = program.start(&[]);
        let before = target.text();
        let live = Live::run(
            &target,
            "uprobe:scripted:called { @c = count(); @k[arg0 % 4] = sum(arg0); } uretprobe:scripted:called { @s = sum(retval); }",
        );
        does(&mut target, "threads 1000");
        let told = live.end();
        told.assert_whole();
        assert_eq!(told.value("@c"), 8000, "{flags:?}");
        assert_eq!(told.value("@s"), (0..1000).map(|x| x ^ 5).sum::<i64>() * 8, "{flags:?}");
        before.assert_restored(target.pid());
    }
}

#[test]
fn narrow_programs_are_refused_and_left_alone() {
    const NARROW: &str = "#include <stdio.h>
        __attribute__((noinline)) int called(int x) { __asm__ volatile(\"\" : \"+r\"(x)); return x; }
        int main(void) { printf(\"ready\\n\"); fflush(stdout); while (getchar() != EOF) { printf(\"%d\\n\", called(3)); fflush(stdout); } }";
    let Some(program) = Program::narrow("narrow", NARROW, &[]) else { return };
    let mut target = program.start(&[]);
    let before = target.text();
    let ran: Ran = run(&["-p", &target.pid().to_string(), "-e", "uprobe:narrow:called { @ = count(); }"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("not compiled for this instruction set"), "{ran:?}");
    before.assert_restored(target.pid());
    target.tell("");
    assert_eq!(target.line(), "3");
}

/// Its filter kills it for any call that it does not make itself.
const SANDBOXED: &str = r#"
    #include <linux/filter.h>
    #include <linux/seccomp.h>
    #include <stddef.h>
    #include <stdio.h>
    #include <sys/prctl.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    __attribute__((noinline, noclone)) long called(const char *x) { __asm__ volatile("" : "+r"(x)); return x[0]; }
    int main(void) {
        struct sock_filter all[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getcpu, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof all / sizeof *all, all};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
        printf("ready\n");
        fflush(stdout);
        while (getchar() != EOF) {
            printf("%ld\n", called("seven"));
            fflush(stdout);
        }
    }"#;

#[test]
fn a_sandbox_is_not_risked_unless_that_is_asked_for() {
    let program = Program::build("sandboxed", SANDBOXED, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let by_call = cfg!(target_arch = "aarch64").then_some("cpu");
    for asked in ["str(arg0)"].into_iter().chain(by_call) {
        let script = format!("uprobe:sandboxed:called {{ @[{asked}] = count(); }}");
        let ran = run(&["-p", &target.pid().to_string(), "-e", &script]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("seccomp filter") && ran.err.contains("--allow-seccomp"), "{ran:?}");
        before.assert_restored(target.pid());
    }
    // What makes no calls of its own does no harm.
    let live =
        Live::run(&target, "uprobe:sandboxed:called { @ = count(); @k[tid] = count(); printf(\"hit\\n\"); }");
    target.tell("");
    assert_eq!(target.line(), "115");
    let told = live.end();
    assert_eq!(told.value("@"), 1, "{told:?}");
    assert!(told.out.contains("hit\n"), "{told:?}");
}

#[test]
fn attach_points_that_mean_nothing_are_an_error_or_left_out_as_the_script_says() {
    let program = Program::build("scripted", SCRIPTED, &[]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let script = |missing: &str| {
        let points = "uprobe:scripted:called, uprobe:scripted:not_there";
        format!("{missing} {points} {{ @ = count(); }} interval:ms:50 {{ exit(); }}")
    };
    let refused = run(&["-p", &pid, "-e", &script("")]);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    assert!(refused.err.contains("no function matches 'uprobe:scripted:not_there'"), "{refused:?}");
    let warned = run(&["-p", &pid, "-e", &script("config = { missing_probes = \"warn\" }")]);
    assert_eq!(warned.code, Some(0), "{warned:?}");
    assert!(
        warned.err.contains("WARNING: No matches for uprobe scripted:not_there. Skipping."),
        "{warned:?}"
    );
    assert!(warned.err.contains("Attached 2 probes"), "{warned:?}");
    let ignored = run(&["-p", &pid, "-e", &script("config = { missing_probes = \"ignore\" }")]);
    assert_eq!((ignored.code, ignored.err.contains("No matches")), (Some(0), false), "{ignored:?}");
    let none = "config = { missing_probes = \"warn\" } uprobe:scripted:not_there { exit(); }";
    let none = run(&["-p", &pid, "-e", none]);
    assert!(none.err.contains("No probes to attach") && none.code != Some(0), "{none:?}");
}
