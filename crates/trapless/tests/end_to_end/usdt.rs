//! USDT probes: places of every form, several sites and names, semaphores, and what is refused.

use crate::support::tool::{Ran, Summary, Tool, detach, run, wait_untraced};
use crate::support::{self, Program, Target};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = include_str!("programs/usdt.c");

/// The program, with its probes named `app:…` and `lib:single`.
fn app(flags: &[&str]) -> Program {
    Program::build("app", SOURCE, flags)
}

/// Lets the program call everything so often. None of its results is wrong; what the semaphore was at the end.
#[track_caller]
fn call(target: &mut Target, times: u32) -> u64 {
    target.tell(&times.to_string());
    let line = target.line();
    let semaphore = line.strip_prefix("wrong 0 semaphore ");
    semaphore.unwrap_or_else(|| panic!("wrong results or dead: {line:?}")).parse().unwrap()
}

/// The program's first semaphore.
fn semaphore(target: &Target) -> u16 {
    u16::from_le_bytes(target.read(target.address(0), 2).try_into().unwrap())
}

#[track_caller]
fn row<'s>(summary: &'s Summary, function: &str) -> &'s Value {
    let rows: Vec<&Value> =
        summary.0["probes"].as_array().unwrap().iter().filter(|p| p["function"] == function).collect();
    let [row] = rows[..] else { panic!("{} rows of {function}: {summary:?}", rows.len()) };
    row
}

#[test]
fn probes_of_every_form_are_exact_and_keep_the_red_zone_under_every_mechanism() {
    for program in Program::in_both_widths("app", SOURCE, &[]) {
        let names = ["app:one", "app:five", "app:ten", "app:eleven"];
        for mechanism in ["jump", "boost", "emulate", "step"] {
            let mut target = program.start(&[]);
            let (pid, before) = (target.pid(), target.text());
            let calls = if mechanism == "jump" { 60_000 } else { 100 };
            let probes = names.map(|name| format!("usdt:app:{name}"));
            let mut arguments = vec!["count", "--mechanism", mechanism, "-p"];
            let text = pid.to_string();
            arguments.push(&text);
            arguments.extend(probes.iter().map(String::as_str));
            let tool = Tool::armed(&arguments);
            call(&mut target, calls);
            let summary = tool.interrupt();
            for name in names {
                assert_eq!(summary.hits(name, "entry"), u64::from(calls), "{name} by {mechanism}");
                assert_eq!(row(&summary, name)["mechanism"], mechanism);
            }
            before.assert_restored(pid);
            call(&mut target, 10);
        }
    }
}

#[test]
fn all_sites_of_a_name_and_all_names_of_a_site_count() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    for probes in [
        &["usdt:app:app:many", "usdt:app:lib:single"][..],
        &["usdt:app:many", "usdt:app:single"],
        &["usdt:app:*"],
        &["usdt:*:app:*", "U:app:lib:*"],
        &["usdt:lib:single", "usdt:many"],
        &["usdt::app:many", "sdt_lib:single"],
        &["%sdt_app:man?", "usdt:sing*"],
    ] {
        let tool = Tool::armed(&[&["count", "-p", &pid], probes].concat());
        call(&mut target, 1000);
        let summary = tool.interrupt();
        assert_eq!(row(&summary, "app:many")["hits"], 3000, "{probes:?}");
        assert_eq!(row(&summary, "app:many")["sites"], 3, "{probes:?}");
        assert_eq!(row(&summary, "lib:single")["hits"], 1000, "{probes:?}");
        assert_eq!(row(&summary, "lib:single").get("sites"), None, "{probes:?}");
    }
    // A function's probe and a USDT probe at one address.
    let tool = Tool::armed(&["count", "-p", &pid, "usdt:app:lib:single", "app:many3", "usdt:app:five"]);
    call(&mut target, 100);
    let summary = tool.interrupt();
    for name in ["lib:single", "app:five", "many3"] {
        assert_eq!(summary.hits(name, "entry"), 100, "{name}");
    }
}

#[test]
fn a_left_out_probe_is_not_armed() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "-p", &pid, "usdt:app:*", "-x", "many", "-x", "*ee*"]);
    call(&mut target, 10);
    let summary = tool.interrupt();
    let names: Vec<&str> =
        summary.0["probes"].as_array().unwrap().iter().map(|p| p["function"].as_str().unwrap()).collect();
    assert!(names.contains(&"app:five") && !names.contains(&"app:many"), "{names:?}");
    let all = run(&["count", "-p", &pid, "usdt:app:many", "-x", "app:many", "-x", "many"]);
    all.assert_refused(5, &["left out by --exclude"]);
}

#[test]
fn semaphores_are_raised_while_probes_are_armed() {
    for program in Program::in_both_widths("app", SOURCE, &[]) {
        for mechanism in ["jump", "boost", "emulate", "step"] {
            let mut target = program.start(&[]);
            let pid = target.pid().to_string();
            assert_eq!(call(&mut target, 10), 0);
            let tool = Tool::armed(&["count", "--mechanism", mechanism, "-p", &pid, "usdt:app:app:guarded*"]);
            // Once for both names.
            assert_eq!(call(&mut target, 50), 1, "{mechanism}");
            let summary = tool.interrupt();
            assert_eq!(summary.hits("app:guarded", "entry"), 50, "{mechanism}");
            assert_eq!(summary.hits("app:guarded_too", "entry"), 50, "{mechanism}");
            assert_eq!(call(&mut target, 10), 0, "{mechanism}");
        }
    }
}

#[test]
fn sessions_on_one_semaphore_end_in_any_order_at_what_it_was() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    // Somebody else counts in it, too.
    for others in [0u16, 5] {
        target.write(target.address(0), &others.to_le_bytes());
        for first_ends_first in [true, false] {
            for killed in [None, Some(0), Some(1)] {
                let probe = |name| Tool::armed(&["count", "-p", &pid, name]);
                let (one, other) = (probe("usdt:app:app:guarded"), probe("usdt:app:app:guarded_too"));
                assert_eq!(call(&mut target, 10), u64::from(others) + 2);
                let order = if first_ends_first { [one, other] } else { [other, one] };
                for (index, tool) in order.into_iter().enumerate() {
                    if killed == Some(index) {
                        tool.kill();
                        wait_untraced(target.pid());
                    } else {
                        tool.interrupt();
                    }
                }
                let left = u16::from(killed.is_some());
                assert_eq!(semaphore(&target), others + left, "{first_ends_first} {killed:?}");
                detach(target.pid());
                assert_eq!(semaphore(&target), others, "{first_ends_first} {killed:?}");
            }
        }
    }
}

#[test]
fn what_a_killed_tool_has_raised_the_next_one_lowers() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let text = pid.to_string();
    for _ in 0..3 {
        Tool::armed(&["count", "-p", &text, "usdt:app:app:guarded", "usdt:app:app:other"]).kill();
        wait_untraced(pid);
        assert_eq!(semaphore(&target), 1);
        // It comes to count something else.
        let tool = Tool::armed(&["count", "-p", &text, "usdt:app:app:five"]);
        assert_eq!(call(&mut target, 10), 0);
        tool.interrupt();
    }
    // And the same again.
    Tool::armed(&["count", "-p", &text, "usdt:app:app:guarded"]).kill();
    wait_untraced(pid);
    let tool = Tool::armed(&["count", "-p", &text, "usdt:app:app:guarded"]);
    assert_eq!(call(&mut target, 10), 1);
    tool.interrupt();
    assert_eq!(call(&mut target, 10), 0);
    detach(pid);
    before.assert_restored(pid);
}

/// Whenever it happens: before the semaphore is raised, in between, or after it was lowered.
#[test]
fn killing_the_tool_at_any_moment_ends_at_what_the_semaphore_was() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let text = pid.to_string();
    let arguments = ["count", "-p", &text, "usdt:app:app:guarded*", "-d", "0.001"];
    let start = std::time::Instant::now();
    assert_eq!(run(&arguments).code, Some(0));
    let whole = start.elapsed() * 5 / 4;
    for moment in 0..30 {
        let others = [0u16, 3][moment as usize % 2];
        target.write(target.address(0), &others.to_le_bytes());
        let mut command = support::tool::trapless(&arguments);
        let child = support::end_with_us(&mut command)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Neighbours in time are far apart in order.
        std::thread::sleep(whole * (moment * 23 % 30) / 30);
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        unsafe { libc::kill(child.id() as i32, libc::SIGKILL) };
        // The keeper holds the other ends of the pipes.
        child.wait_with_output().unwrap();
        detach(pid);
        assert_eq!(semaphore(&target), others, "moment {moment}");
        before.assert_restored(pid);
    }
    call(&mut target, 10);
}

/// A semaphore that others have set back to 0 is not lowered below it, and one that is at its end is not raised beyond.
#[test]
fn a_semaphore_never_passes_its_ends() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "-p", &pid, "usdt:app:app:guarded"]);
    target.write(target.address(0), &[0, 0]);
    tool.interrupt();
    assert_eq!(semaphore(&target), 0);
    target.write(target.address(0), &[0xff, 0xff]);
    let full = run(&["count", "-p", &pid, "usdt:app:app:guarded"]);
    full.assert_refused(1, &["app:guarded", "semaphore", "counts no further"]);
    assert!(!full.err.contains("--allow-trap"), "{full:?}");
    // Others are probed all the same.
    let tool = Tool::armed(&["count", "-p", &pid, "usdt:app:app:guarded", "usdt:app:app:five"]);
    call(&mut target, 10);
    let summary = tool.interrupt();
    assert_eq!(summary.hits("app:five", "entry"), 10);
    assert!(summary.skipped("app:guarded").is_some_and(|why| why.contains("semaphore")), "{summary:?}");
    assert_eq!(semaphore(&target), u16::MAX);
}

/// What is not known to be a semaphore is never written, whatever the target makes of the records in its memory.
#[test]
fn forged_records_change_nothing_else() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let pid = target.pid();
    Tool::armed(&["count", "-p", &pid.to_string(), "usdt:app:app:guarded"]).kill();
    wait_untraced(pid);
    let (semaphore_at, beside) = (target.address(0), target.address(1));
    let stack = support::mapping(pid, "[stack]");
    let records = find_words(&target, semaphore_at);
    assert_eq!(records.len(), 1, "{records:x?}");
    // The stack is nobody's semaphore.
    let place = stack.end - 0x10;
    target.write(records[0], &place.to_le_bytes());
    let word = target.read_word(place);
    detach(pid);
    assert_eq!(target.read_word(place), word);
    assert_eq!(target.read_word(beside), 7);
    assert_eq!(call(&mut target, 10), 1, "it was forgotten");
}

/// Where the session's private memory holds a word.
fn find_words(target: &Target, word: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for range in support::anonymous(target.pid()) {
        // The tables of followed calls and threads are large, and empty: what is looked for may stand behind them.
        let range = range.start.max(range.end.saturating_sub(1 << 20))..range.end;
        let bytes = target.read(range.start, (range.end - range.start) as usize);
        let words = bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        found.extend((range.start..).step_by(8).zip(words).filter(|(_, w)| *w == word).map(|(at, _)| at));
    }
    found
}

#[test]
fn a_forked_child_keeps_its_semaphore_until_it_is_cleaned_itself() {
    let program = app(&[]);
    for mechanism in ["jump", "step"] {
        let mut target = program.start(&[]);
        let pid = target.pid().to_string();
        let tool = Tool::armed(&["count", "--mechanism", mechanism, "-p", &pid, "usdt:app:app:guarded"]);
        target.tell("f");
        let line = target.line();
        let words: Vec<&str> = line.split(' ').collect();
        let [_, child, raised] = words[..] else { panic!("{line}") };
        // Breakpoints are taken out of children, jumps are not.
        let inherited = if mechanism == "jump" { "1" } else { "0" };
        assert_eq!(raised, inherited, "{mechanism}");
        tool.interrupt();
        assert_eq!(semaphore(&target), 0, "{mechanism}");
        detach(child.parse().unwrap());
        target.tell("go on");
        assert_eq!(target.line(), "child 0", "{mechanism}");
        assert_eq!(call(&mut target, 10), 0, "{mechanism}");
    }
}

/// What the hits of a finished trace told of a probe, in their order.
fn traced(ran: &Ran, function: &str) -> Vec<Value> {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let hits = ran.json().into_iter().filter(|line| line["type"] == "hit" && line["function"] == function);
    hits.map(|mut hit| hit["usdt_args"].take()).collect()
}

fn values(arguments: &Value) -> Vec<Value> {
    arguments.as_array().unwrap().iter().map(|argument| argument["value"].clone()).collect()
}

#[test]
fn arguments_are_shown_with_their_sizes_and_signs() {
    for program in Program::in_both_widths("app", SOURCE, &[]) {
        for mechanism in ["jump", "boost", "emulate", "step"] {
            let mut target = program.start(&[]);
            let pid = target.pid().to_string();
            let tool = Tool::armed(&["trace", "--mechanism", mechanism, "-p", &pid, "usdt:app:app:*"]);
            // Each hit of a breakpoint waits for its tracer.
            let calls = if mechanism == "jump" { 300 } else { 20 };
            call(&mut target, calls);
            tool.signal(libc::SIGINT);
            let ran = tool.ran();
            for name in ["app:one", "app:five", "app:ten", "app:eleven"] {
                let hits = traced(&ran, name);
                assert_eq!(hits.len(), calls as usize, "{name} by {mechanism}");
                for (x, hit) in (0..).zip(&hits) {
                    let expected = serde_json::json!([
                        x,
                        77,
                        x,
                        if program.is_32bit() { x } else { x + 3 },
                        -5,
                        x & 255
                    ]);
                    assert_eq!(values(hit), *expected.as_array().unwrap(), "{name} by {mechanism}");
                }
            }
            assert!(traced(&ran, "app:other").iter().all(|hit| hit.as_array().is_some_and(Vec::is_empty)));
            call(&mut target, 10);
        }
    }
}

/// Names at one address have arguments of their own.
#[test]
fn each_name_of_a_site_has_its_own_arguments() {
    let program = app(&[]);
    let mut target = program.start(&[]);
    let tool = Tool::armed(&[
        "trace",
        "-p",
        &target.pid().to_string(),
        "usdt:lib:single",
        "usdt:app:app:many",
        "app:many3",
    ]);
    call(&mut target, 5);
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    let single: Vec<_> = traced(&ran, "lib:single").iter().map(values).collect();
    assert_eq!(single, vec![vec![Value::from(-1), Value::from(4)]; 5]);
    let many: Vec<_> = traced(&ran, "app:many").iter().map(values).collect();
    assert_eq!(many.len(), 15, "{many:?}");
    for (arguments, times) in [(vec![], 5), (vec![Value::from(2)], 5), (vec![Value::from(3)], 5)] {
        assert_eq!(many.iter().filter(|hit| **hit == arguments).count(), times, "{arguments:?}");
    }
    assert_eq!(traced(&ran, "many3").len(), 5);
}

/// Operands of every form, of a function that is given a number, with a table at hand.
struct Forms {
    /// What the function does first.
    first: &'static str,
    /// The last of them is the stack pointer.
    operands: &'static str,
    /// Which of them are not shown, and why.
    not_shown: &'static [&'static str],
    /// What is shown of the others, with that number.
    shown: fn(u64) -> Value,
}

#[cfg(target_arch = "x86_64")]
const FORMS: Forms = Forms {
    first: "mov %rdi, %rax\nlea table(%rip), %rcx\nmov $3, %edx",
    operands: "8@(%rcx,%rdx,8) -2@table+16(%rip) 1@%ah 8f@%xmm0 4@table(%rip) 8@%fs:0 -1@$200 2@4(%rcx) 8@nowhere(%rip) 8@%rsp",
    not_shown: &[
        "8f@%xmm0: a floating-point number",
        "8@%fs:0: it is thread-local",
        "8@nowhere(%rip): its symbol is not known",
    ],
    shown: |x| serde_json::json!([99, -2, x >> 8 & 255, null, 4_294_967_294u32, null, -56, 65535, null]),
};

#[cfg(target_arch = "x86")]
const FORMS: Forms = Forms {
    first: "call 1f\n1: pop %ecx\nlea table-1b(%ecx), %ecx\nmov $3, %edx",
    operands: "4@(%ecx,%edx,4) -2@8(%ecx) 1@%ah 8f@%xmm0 4@(%ecx) 4@%gs:0 -1@$200 2@nowhere 4@%esp",
    not_shown: &[
        "8f@%xmm0: a floating-point number",
        "4@%gs:0: it is thread-local",
        "2@nowhere: its symbol is not known",
    ],
    shown: |x| serde_json::json!([99, -2, x >> 8 & 255, null, 4_294_967_294u32, null, -56, null]),
};

#[cfg(target_arch = "aarch64")]
const FORMS: Forms = Forms {
    first: "adrp x1, table\nadd x1, x1, :lo12:table\nmov x2, #3",
    operands: "8@[x1, x2, lsl 3] -2@[x1, 16] 1@w0 8f@d0 4@[x1] 8@[x1, w2, sxtw] -1@200 2@[x1, #4] 8@[x1, :lo12:nowhere] 8@xzr 8@sp",
    not_shown: &[
        "8f@d0: a floating-point number",
        "8@[x1, w2, sxtw]: its operand is not understood",
        "8@[x1, :lo12:nowhere]: its symbol is not known",
    ],
    shown: |x| serde_json::json!([99, -2, x & 255, null, 4_294_967_294u32, null, -56, 65535, null, 0]),
};

#[cfg(target_arch = "powerpc64")]
const FORMS: Forms = Forms {
    first: "mflr 9\nbcl 20, 31, 1f\n1: mflr 10\nmtlr 9\naddis 10, 10, table-1b@ha\naddi 10, 10, table-1b@l",
    operands: "8@24(10) -2@16(%r10) 1@%r3 8f@%f1 4@0(10) 8@8(0) -1@i200 2@4(10) 8@nowhere(10) 8@1",
    not_shown: &[
        "8f@%f1: a floating-point number",
        "8@8(0): it is at a fixed address that is not the module's",
        "8@nowhere(10): its symbol is not known",
    ],
    shown: |x| serde_json::json!([99, -2, x & 255, null, 4_294_967_294u32, null, -56, 65535, null]),
};

/// An operand that is always the same, as the assembler writes it.
fn constant(number: i64) -> String {
    let mark = match () {
        () if cfg!(target_arch = "aarch64") => "",
        () if cfg!(target_arch = "powerpc64") => "i",
        () => "$",
    };
    format!("{mark}{number}")
}

/// Every form of operand that compilers write, and what is not shown of them.
#[test]
fn operands_of_every_form_are_read_or_said_not_to_be() {
    let forms = r#"
        long table[4] = {-2, 0x11223344, 0xfffe, 99};
        LEAF("forms", FIRST, NOP5, NOTE("990b", "app", "forms", "0", OPERANDS));
        long forms(long);
        "#;
    let Forms { first, operands, not_shown: expected_not_shown, shown } = FORMS;
    let forms = forms.replace("FIRST", &format!("{first:?}")).replace("OPERANDS", &format!("{operands:?}"));
    let source = SOURCE.replace("/*FORMS*/", &forms).replace("other};", "other, forms};");
    let program = Program::build("app", &source, &[]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let (_, row) = listed(&run(&["list", "-p", &pid, "usdt:app:forms", "-f", "json"])).remove(0);
    let not_shown: Vec<&str> =
        row["usdt"]["not_shown"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(not_shown, expected_not_shown);
    let mut stacks = Vec::new();
    for mechanism in ["jump", "step"] {
        let tool = Tool::armed(&["trace", "--mechanism", mechanism, "-p", &pid, "usdt:app:forms"]);
        let calls = if mechanism == "jump" { 600 } else { 20 };
        call(&mut target, calls);
        tool.signal(libc::SIGINT);
        let hits = traced(&tool.ran(), "app:forms");
        assert_eq!(hits.len(), calls as usize, "{mechanism}");
        for (x, hit) in (0..).zip(&hits) {
            let mut values = values(hit);
            stacks.push(values.pop().unwrap().as_u64().unwrap());
            assert_eq!(values, *shown(x).as_array().unwrap(), "{mechanism} {x}");
        }
        let reasons = hits[0].as_array().unwrap().iter().filter_map(|argument| argument["reason"].as_str());
        let expected = expected_not_shown.iter().map(|text| text.split_once(": ").unwrap().1);
        assert!(reasons.eq(expected), "{:?}", hits[0]);
    }
    stacks.dedup();
    assert_eq!(stacks.len(), 1, "the same stack pointer under every mechanism: {stacks:x?}");
    let text = run(&["trace", "-p", &pid, "usdt:app:forms", "-d", "0.01"]);
    assert_eq!(text.code, Some(0), "{text:?}");
}

/// A function whose static probe tells of arguments that it does not read, and overwrites behind it: what it does first, the operands, and the
/// rest.
#[cfg(target_arch = "x86_64")]
const TOLD: [&str; 3] = [
    "test %rax, %rax\nmov %rdi, %r8\n",
    "8@%rsi 8@%rdx 8@%rcx",
    "lea 3(%rdi,%rdi), %rax\nxor %ecx, %ecx\nxor %edx, %edx\nxor %esi, %esi\nret\n",
];
#[cfg(target_arch = "aarch64")]
const TOLD: [&str; 3] =
    ["add x9, x0, x0\n", "8@x1 8@x2 8@x3", "add x0, x9, #3\nmov x1, #0\nmov x2, #0\nmov x3, #0\nret\n"];
#[cfg(target_arch = "powerpc64")]
const TOLD: [&str; 3] = ["add 9, 3, 3\n", "8@4 8@5 8@6", "addi 3, 9, 3\nli 4, 0\nli 5, 0\nli 6, 0\nblr\n"];

/// Its arguments are where they were, though the program reads them no more, and the entry's detour could do with a register.
#[cfg(not(target_arch = "x86"))]
#[test]
fn what_the_program_reads_no_more_is_told_behind_a_counted_entry() {
    let [first, operands, rest] = TOLD.map(|text| format!("{text:?}"));
    let function = r#"
        __asm__(".text\n.globl told\n.type told,@function\n.p2align 4\ntold: .cfi_startproc\n"
            FIRST "990: " NOP5 NOTE("990b", "app", "told", "0", OPERANDS) REST
            ".cfi_endproc\n.size told, .-told\n");
        long told(long, long, long, long);
        static long telling(long x) { return told(x, x + 10, x + 20, x + 30); }
        "#;
    let function = function.replace("FIRST", &first).replace("OPERANDS", &operands).replace("REST", &rest);
    let source = SOURCE.replace("/*FORMS*/", &function).replace("other};", "other, telling};");
    let program = Program::build("app", &source, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let told = |ran: &Ran| -> Vec<Vec<Value>> { traced(ran, "app:told").iter().map(values).collect() };
    let expected: Vec<Vec<Value>> =
        (0..20u64).map(|x| [10, 20, 30].map(|more| (x + more).into()).into()).collect();
    let entry = Tool::armed(&["count", "-p", &pid, "app:told"]);
    let tool = Tool::armed(&["trace", "-p", &pid, "usdt:app:app:told"]);
    call(&mut target, 20);
    tool.signal(libc::SIGINT);
    assert_eq!(told(&tool.ran()), expected, "the entry is counted");
    assert_eq!(entry.interrupt().hits("told", "entry"), 20);
    let tool = Tool::armed(&["trace", "-p", &pid, "usdt:app:app:told", "app:told"]);
    call(&mut target, 20);
    tool.signal(libc::SIGINT);
    assert_eq!(told(&tool.ran()), expected, "the entry is recorded");
    before.assert_restored(target.pid());
    call(&mut target, 10);
}

#[test]
fn returns_and_times_of_places_are_refused() {
    let program = app(&[]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    for arguments in [
        &["latency", "-p", &pid, "usdt:app:app:five"][..],
        &["count", "--return", "-p", &pid, "usdt:app:app:five"],
        &["trace", "--return", "-p", &pid, "app:leaf5", "sdt_app:five"],
    ] {
        run(arguments).assert_refused(2, &["USDT", "no return", "function that holds"]);
    }
}

#[test]
fn wrong_names_get_near_ones() {
    let program = app(&[]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    for (probe, words) in [
        ("usdt:app:app:fivee", &["no USDT probe matches", "did you mean app:five?"][..]),
        ("usdt:app:lib:singl", &["did you mean lib:single?"]),
        ("usdt:app:manny", &["did you mean many?"]),
        ("usdt:app:bpp:many", &["did you mean app:many"]),
        ("usdt:ap:xx:five", &["no USDT probe"]),
        ("usdt:/nowhere/at/all:five", &["no module matches"]),
        ("usdt:libc:thing", &["no USDT probe matches 'usdt:libc:thing'"]),
    ] {
        let ran = run(&["count", "-p", &pid, probe]);
        ran.assert_refused(5, words);
    }
    for (probe, words) in [
        ("usdt:", "no name"),
        ("usdt:app:", "no name"),
        ("usdt:a:b:c:d", "too many parts"),
        ("sdt_app:", "no name"),
        ("usdt:app:[z-a]", "runs backward"),
    ] {
        let ran = run(&["count", "-p", &pid, probe]);
        assert_eq!(ran.code, Some(2), "{probe}: {ran:?}");
        assert!(ran.err.contains(words) && ran.err.starts_with("trapless: bad probe: "), "{probe}: {ran:?}");
    }
}

fn listed(ran: &Ran) -> Vec<(String, Value)> {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json().into_iter().map(|row| (row["function"].as_str().unwrap().to_owned(), row)).collect()
}

#[test]
fn files_of_any_kind_show_their_probes() {
    for flags in [&[][..], &["-s"], &["-static"], &["-static", "-s"], &["-no-pie"], &["-static-pie"]] {
        let program = match Program::try_build("gcc", "app", SOURCE, flags) {
            Ok(program) => program,
            Err(why) if flags == ["-static-pie"] => {
                trapless_testing::inapplicable!("the C library has nothing for -static-pie: {why}");
                continue;
            }
            Err(why) => panic!("{why}"),
        };
        let path = program.path().to_str().unwrap();
        let all = format!("usdt:{path}:*");
        for arguments in [&["list", &all, "-f", "json"][..], &["list", path, "usdt:*", "-f", "json"]] {
            let rows = listed(&run(arguments));
            let mut own: Vec<&str> =
                rows.iter().map(|(name, _)| name.as_str()).filter(|n| !n.starts_with("libc:")).collect();
            own.sort_unstable();
            let expected = [
                "app:eleven",
                "app:five",
                "app:guarded",
                "app:guarded_too",
                "app:many",
                "app:many",
                "app:many",
                "app:one",
                "app:other",
                "app:ten",
                "lib:single",
            ];
            assert_eq!(own, expected, "{flags:?}");
            let (_, guarded) = rows.iter().find(|(name, _)| name == "app:guarded").unwrap();
            assert_eq!(guarded["usdt"]["arguments"], serde_json::json!([format!("8@{}", constant(1))]));
            assert_eq!(
                (&guarded["usdt"]["provider"], &guarded["mechanism"]),
                (&"app".into(), &"jump".into())
            );
            assert!(guarded["usdt"]["semaphore"].is_u64() && guarded["no_return"].is_null(), "{guarded}");
        }
        let mut target = program.start(&[]);
        let tool = Tool::armed(&["count", "-p", &target.pid().to_string(), "usdt:app:app:guarded"]);
        assert_eq!(call(&mut target, 50), 1, "{flags:?}");
        assert_eq!(tool.interrupt().hits("app:guarded", "entry"), 50, "{flags:?}");
        assert_eq!(semaphore(&target), 0, "{flags:?}");
    }
    let program = app(&[]);
    let text = run(&["explain", &format!("usdt:{}:lib:single", program.path().display())]);
    let arguments = format!("2 arguments: -1@{} 8@{}", constant(-1), constant(4));
    for word in ["app:lib:single at", &arguments, "return   no: a USDT probe", "jump     possible"] {
        assert!(text.out.contains(word), "{word}: {text:?}");
    }
}

/// A note that names a place which is no code, a semaphore which is none, or that is cut off.
#[test]
fn damaged_notes_are_refused_with_a_reason() {
    let program = app(&[]);
    let bytes = std::fs::read(program.path()).unwrap();
    let name = bytes.windows(13).position(|w| w == b"app\0guarded\x008").unwrap();
    let path = program.dir().join("damaged");
    let text = path.to_str().unwrap().to_owned();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        listed(&run(&["list", &format!("usdt:{text}:guarded"), "-f", "json"])).remove(0).1
    };
    let outside = damaged(&|bytes| bytes[name - 24..name - 16].copy_from_slice(&u64::MAX.to_le_bytes()));
    assert_eq!(outside["code"], "outside_function", "{outside}");
    for place in [0u64, 1, u64::MAX, u64::MAX - 1] {
        let odd = damaged(&|bytes| bytes[name - 8..name].copy_from_slice(&place.to_le_bytes()));
        assert!(odd["code"] == "bad_semaphore" || place == 0, "{odd}");
    }
    // The length of the description stands in the note's header, ahead of the owner and three addresses.
    let mut bytes = bytes.clone();
    bytes[name - 24 - 8 - 8..name - 24 - 12].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let ran = run(&["list", &format!("usdt:{text}:guarded")]);
    assert_ne!(ran.code, Some(0));
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert!(ran.err.contains(".note.stapsdt"), "{ran:?}");
}

/// The macros that most programs have their probes from.
#[test]
fn probes_of_systemtaps_header_count() {
    let source = r#"
        #define _SDT_HAS_SEMAPHORES 1
        #include <sys/sdt.h>
        #include <stdio.h>
        #include <stdlib.h>
        unsigned short demo_twice_semaphore __attribute__((section(".probes")));
        unsigned short demo_plain_semaphore __attribute__((section(".probes")));
        __attribute__((noinline)) long work(long x) {
            if (*(volatile unsigned short *)&demo_twice_semaphore) DTRACE_PROBE2(demo, twice, x, (int)-x);
            DTRACE_PROBE(demo, plain);
            return x * 2;
        }
        int main(void) {
            char line[64];
            printf("ready %lx\n", (long)&demo_twice_semaphore);
            fflush(stdout);
            while (fgets(line, sizeof line, stdin)) {
                long calls = atol(line), wrong = 0;
                for (long x = 0; x < calls; x++) wrong += work(x) != 2 * x;
                printf("wrong %ld semaphore %u\n", wrong, demo_twice_semaphore);
                fflush(stdout);
            }
        }"#;
    let multiarch = format!("/usr/include/{}-linux-gnu/sys/sdt.h", std::env::consts::ARCH);
    let has_header = ["/usr/include/sys/sdt.h", &multiarch, "/usr/include/powerpc64le-linux-gnu/sys/sdt.h"];
    if !has_header.iter().any(|path| Path::new(path).exists()) {
        return trapless_testing::skip!("no sys/sdt.h");
    }
    for optimized in ["-O0", "-O2", "-O3"] {
        let program = Program::build("demo", source, &[optimized]);
        let mut target = program.start(&[]);
        let tool = Tool::armed(&["count", "--allow-trap", "-p", &target.pid().to_string(), "usdt:demo:*"]);
        assert_eq!(call(&mut target, 1000), 1, "{optimized}");
        let summary = tool.interrupt();
        for name in ["demo:twice", "demo:plain"] {
            assert_eq!(summary.hits(name, "entry"), 1000, "{name} {optimized}");
        }
        assert_eq!(semaphore(&target), 0, "{optimized}");
    }
}

/// Python's own probes, as distributions build it: as many collections as the program asks for.
#[test]
fn probes_of_distributions_programs_count() {
    let python = "/usr/bin/python3";
    let Ok(path) = std::fs::canonicalize(python) else { return trapless_testing::skip!("no {python}") };
    let path = path.to_str().unwrap();
    let ran = run(&["list", path, "usdt:python:gc__*", "-f", "json"]);
    if ran.code != Some(0) {
        return trapless_testing::inapplicable!("this python3 was built without dtrace: {}", ran.err.trim());
    }
    let script = "import gc\ngc.disable()\nprint('ready', flush=True)\nimport sys\nfor line in sys.stdin:\n for _ in range(int(line)): gc.collect()\n print('done', flush=True)";
    let mut target = Target::start(Command::new(path).args(["-c", script]));
    let (pid, before) = (target.pid(), target.text());
    let tool = Tool::armed(&["count", "-p", &pid.to_string(), "usdt:python:gc__*"]);
    target.tell("25");
    assert_eq!(target.line(), "done");
    let summary = tool.interrupt();
    for name in ["python:gc__start", "python:gc__done"] {
        assert_eq!(summary.hits(name, "entry"), 25, "{name}");
    }
    before.assert_restored(pid);
    target.tell("5");
    assert_eq!(target.line(), "done");
}

#[test]
fn probes_of_the_cpp_library_see_exceptions() {
    let source = r#"
        #include <cstdio>
        int main() {
            long caught = 0;
            for (int i = 0; i < 500; i++) {
                try { throw i; } catch (int) { caught++; }
            }
            return caught != 500;
        }"#;
    let dir = tempfile::tempdir().unwrap();
    let (text, path) = (dir.path().join("throws.cc"), dir.path().join("throws"));
    std::fs::write(&text, source).unwrap();
    match Command::new("g++").arg(&text).arg("-o").arg(&path).status() {
        Ok(status) if status.success() => {}
        other => return trapless_testing::skip!("no g++: {other:?}"),
    }
    let path = path.to_str().unwrap();
    let ran = run(&["count", "usdt:libstdc++:libstdcxx:*", "-f", "json", "--allow-trap", "--", path]);
    if ran.err.contains("no USDT probe") {
        return trapless_testing::inapplicable!("this libstdc++ was built without USDT probes");
    }
    let summary = ran.summary();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (name, hits) in [("libstdcxx:throw", 500), ("libstdcxx:catch", 500), ("libstdcxx:rethrow", 0)] {
        assert_eq!(summary.hits(name, "entry"), hits, "{name}");
    }
}
