//! A3: scripts in 32-bit programs, by traps: arguments on the stack, addresses of four bytes, and C's types as that machine has them.
#![cfg(any(target_arch = "x86_64", target_arch = "x86"))]

use crate::support::live::{Live, Told, does};
use crate::support::tool::{Tool, run, wait_untraced};
use crate::support::{Program, Target};

/// The same in both widths: whatever a script tells of it differs only where C's types do.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
struct point { char kind; struct point *next; long long big; const char *name; int n; short parts[3]; };
static volatile long wrong;
KEPT int called(int x, const char *text, struct point *at) {
    __asm__ volatile("" : "+r"(x), "+r"(text), "+r"(at));
    return x * 2 - 5;
}
KEPT long long wide(long long x, unsigned y) { __asm__ volatile("" ::: "memory"); return x * 3 + y; }
KEPT const char *named(const char *text) { __asm__ volatile("" : "+r"(text)); return text + 1; }
KEPT int nested(int depth) { int below = depth ? nested(depth - 1) : 0; __asm__ volatile("" : "+r"(below)); return below + 1; }
KEPT double half(double x) { __asm__ volatile("" ::: "memory"); return x / 2; }
static void *work(void *count) {
    struct point last = {'l', NULL, -9000000000LL, "last", -7, {7, 8, 9}};
    struct point first = {'f', &last, 5000000000LL, "first", 11, {1, 2, 3}};
    for (long i = 0; i < (long)count; i++) {
        if (called(i, i & 1 ? "odd" : "even", &first) != i * 2 - 5) wrong++;
        if (wide(i + 10000000000LL, 4000000000u) != (i + 10000000000LL) * 3 + 4000000000u) wrong++;
    }
    return NULL;
}
int main(void) {
    char line[64], deed[32];
    long count;
    char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(hole + 4096, 4096);
    memcpy(hole + 4092, "edge", 4);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %ld", deed, &count) != 2) break;
        if (!strcmp(deed, "work")) work((void *)count);
        if (!strcmp(deed, "threads")) {
            pthread_t all[4];
            for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, work, (void *)count);
            for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
        }
        if (!strcmp(deed, "spin")) {
            pthread_t one;
            for (long i = 0; i < count; i++) pthread_create(&one, NULL, work, (void *)(~0UL >> 1));
        }
        if (!strcmp(deed, "named"))
            for (long i = 0; i < count; i++) {
                named("plain");
                named(NULL);
                named((char *)16);
                named((char *)-4L);
                named(hole + 4092);
            }
        if (!strcmp(deed, "nested") && nested(count) != count + 1) wrong++;
        if (!strcmp(deed, "half") && half(count) * 2 != count) wrong++;
        printf("done %ld\n", wrong);
        fflush(stdout);
    }
}"#;

/// What a script tells of the target, with its code put back afterwards.
#[track_caller]
fn told(target: &mut Target, script: &str, deeds: &[&str]) -> Told {
    let (before, pid) = (target.text(), target.pid().to_string());
    let live = Live::run_with(&["-p", &pid, "--allow-trap"], script);
    deeds.iter().for_each(|deed| does(target, deed));
    let told = live.end();
    before.assert_restored(target.pid());
    told
}

#[test]
fn what_is_told_of_a_narrow_program_is_what_is_told_of_a_wide_one() {
    let programs = Program::in_both_widths("both", SOURCE, &["-g"]);
    let script = "struct own { char kind; struct own *next; long long big; }
        uprobe:both:called {
            @c = count(); @n++; @s = sum((int32)arg0); @k[args.x % 3] = count(); @text[str(arg1)] = count();
            @same[(uint64)args.text == arg1, str(args.text) == str(arg1)] = count();
            @first[args.at->kind, args.at->big, str(args.at->name), args.at->n, args.at->parts[2]] = count();
            @last[args.at->next->big, str(args.at->next->name), args.at->next->n, args.at->next->next] = count();
            @own[((struct own *)arg2)->next->big, ((struct own *)arg2)->kind] = count();
            @low = min((int32)arg0); @high = max(arg0); @h = hist(arg0); @start[tid] = nsecs; @who[comm, pid] = count();
        }
        uretprobe:both:called {
            @r = count(); @rs = sum(retval); @args = sum(args.x); @arg0 = sum(arg0);
            @later[nsecs >= @start[tid], duration < 60000000000] = count(); _ = delete(@start, tid);
        }
        uprobe:both:wide { @wide = sum(args.x); @y = max(args.y); }
        uretprobe:both:wide { @wider = sum(retval); }
        uprobe:both:nested { printf(\"in %d\\n\", args.depth); } uretprobe:both:nested { printf(\"out %d of %d\\n\", retval, args.depth); }";
    let deeds = ["threads 100", "work 10", "nested 3"];
    let tell = |program: &Program| {
        let told = told(&mut program.start(&[]), script, &deeds);
        told.assert_whole();
        // Processes have their own numbers.
        let lines = told.out.lines().map(|line| match line.split_once(", ") {
            Some((who, rest)) if who.starts_with("@who[") => {
                format!("{who} {}", rest.rsplit(' ').next().unwrap())
            }
            _ => line.to_owned(),
        });
        (lines.collect::<Vec<_>>(), told)
    };
    let both: Vec<_> = programs.iter().map(tell).collect();
    let (lines, wide) = &both[0];
    assert_eq!([wide.value("@c"), wide.value("@n"), wide.value("@r")], [410; 3], "{wide:?}");
    assert_eq!(wide.value("@rs"), 2 * wide.value("@s") - 5 * 410, "{wide:?}");
    assert_eq!([wide.value("@args"), wide.value("@arg0"), wide.value("@s")], [4 * 4950 + 45; 3], "{wide:?}");
    assert_eq!(wide.value("@wide"), 410 * 10_000_000_000 + 4 * 4950 + 45, "{wide:?}");
    for line in [
        "@first[102, 5000000000, first, 11, 3]: 410",
        "@last[-9000000000, last, -7, 0x0]: 410",
        "@own[-9000000000, 102]: 410",
        "@later[true, true]: 410",
        "@same[true, true]: 410",
        "out 4 of 3",
    ] {
        assert!(lines.iter().any(|told| told == line), "{line}: {wide:?}");
    }
    both.iter().for_each(|(other, _)| assert_eq!(other, lines));
}

#[test]
fn types_have_the_sizes_of_the_program() {
    let Some(program) = Program::narrow("sizes", SOURCE, &["-g"]) else { return };
    let mut target = program.start(&[]);
    let script = "struct own { char kind; double d; long n; struct own *next; }
        uprobe:sizes:called {
            @sizes = (sizeof(struct point), sizeof(struct own), sizeof(args.at), sizeof(size_t), sizeof(uint64), sizeof(args.x));
            @offsets = (offsetof(struct point, big), offsetof(struct own, d), offsetof(struct own, next));
            @regs[reg(\"sp\") < 0x100000000, sarg0 == arg0, sarg1 == arg1, *(uint32 *)(reg(\"sp\") + 4) == arg0] = count();
            @arch[arch] = count(); @back[reg(\"ip\") > 0] = count();
        }
        uretprobe:sizes:called { @ax[reg(\"ax\") == (uint32)retval] = count(); }";
    let told = told(&mut target, script, &["work 3"]);
    told.assert_whole();
    for line in [
        "@sizes: (32, 20, 4, 4, 8, 4)",
        "@offsets: (8, 4, 16)",
        "@regs[true, true, true, true]: 3",
        "@arch[i386]: 3",
        "@back[true]: 3",
        "@ax[true]: 3",
    ] {
        assert!(told.out.lines().any(|told| told == line), "{line}: {told:?}");
    }
}

#[test]
fn pointers_that_lead_nowhere_harm_no_narrow_program() {
    let Some(program) = Program::narrow("nowhere", SOURCE, &[]) else { return };
    let mut target = program.start(&[]);
    let script = "uprobe:nowhere:named { @text[str(arg0)] = count(); @two[str(arg0, 3)] = count(); @word = sum(*(uint8 *)arg0); }
        uretprobe:nowhere:named { @rest[str(retval)] = count(); }";
    let told = told(&mut target, script, &["named 20"]);
    told.assert_whole();
    for line in [
        "@text[plain]: 20",
        "@text[edge]: 20",
        "@text[]: 60",
        "@two[pla]: 20",
        "@rest[lain]: 20",
        "@rest[dge]: 20",
    ] {
        assert!(told.out.lines().any(|told| told == line), "{line}: {told:?}");
    }
    assert_eq!(told.value("@word"), 20 * i64::from(b'p' as u16 + b'e' as u16), "{told:?}");
}

#[test]
fn what_a_narrow_program_does_not_tell_is_refused_with_the_reason() {
    let Some(program) = Program::narrow("refuses", SOURCE, &["-g"]) else { return };
    let mut target = program.start(&[]);
    let (before, pid) = (target.text(), target.pid().to_string());
    // Nothing traps that was not asked to, and there is no other way.
    let ran = run(&["-p", &pid, "-e", "uprobe:refuses:called { @ = count(); }"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("not compiled for this instruction set") && ran.err.contains("--allow-trap"),
        "{ran:?}"
    );
    for (script, code, reason) in [
        ("uprobe:refuses:called { @[ustack] = count(); }", 1, "it walks the call stack"),
        ("uretprobe:refuses:half { @ = sum((int64)fretval); }", 1, "a floating-point value"),
        ("uprobe:refuses:half { @ = sum((int64)farg0); }", 2, "i386 doesn't support farg0"),
        ("uprobe:refuses:called { @ = sum(reg(\"r8\")); }", 2, "'r8' is not a valid register"),
        ("uprobe:refuses:called+3 { @ = sum(arg0); }", 1, "an argument inside of a function"),
    ] {
        let ran = run(&["-p", &pid, "--allow-trap", "-e", script]);
        assert_eq!(ran.code, Some(code), "{script}: {ran:?}");
        assert!(ran.err.contains(reason), "{script}: {ran:?}");
    }
    // One place that is left out leaves the others.
    let script = "uprobe:refuses:called { @c = count(); } uprobe:refuses:wide { @w[ustack] = count(); }";
    let found = told(&mut target, script, &["work 10"]);
    assert_eq!(found.value("@c"), 10, "{found:?}");
    assert!(
        found.err.contains("1 site has no probe") && found.err.contains("walks the call stack"),
        "{found:?}"
    );
    before.assert_restored(target.pid());
}

#[test]
fn a_killed_tool_leaves_nothing_in_a_narrow_program() {
    let Some(program) = Program::narrow("killed", SOURCE, &[]) else { return };
    let mut target = program.start(&[]);
    let before = target.text();
    does(&mut target, "spin 2");
    for round in 0..3 {
        let script = "uprobe:killed:called { @c = count(); printf(\"%s\\n\", str(arg1)); } uretprobe:killed:called { @r = hist(retval); }";
        let mut live = Live::run_with(&["-p", &target.pid().to_string(), "--allow-trap"], script);
        (0..round * 10).for_each(|_| assert_ne!(live.tool.line(), ""));
        live.tool.kill();
        wait_untraced(target.pid());
        before.assert_restored(target.pid());
    }
    assert!(target.is_alive());
    does(&mut target, "work 10");
}

#[test]
fn quick_forms_are_had_in_narrow_programs() {
    let Some(program) = Program::narrow("quickly", SOURCE, &["-g"]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&[
        "count",
        "-p",
        &pid,
        "--allow-trap",
        "quickly:called",
        "--by",
        "str(text)",
        "--where",
        "x < 50",
    ]);
    does(&mut target, "work 100");
    let summary = tool.interrupt().0;
    let row = |row: &serde_json::Value| {
        (row["by"][0]["value"].as_str().unwrap().to_owned(), row["hits"].as_u64().unwrap())
    };
    let mut rows: Vec<_> = summary["probes"].as_array().unwrap().iter().map(row).collect();
    rows.sort();
    assert_eq!(rows, [("even".to_owned(), 25), ("odd".to_owned(), 25)], "{summary}");
}
