//! Scripts and the IR that they become: as little as does it.

use super::support::{World, compiled};

#[track_caller]
fn is(script: &str, expected: &str) {
    let (compiled, _) = compiled(script, &World::default()).unwrap();
    let printed = compiled.program.to_string();
    let strip = |text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let indent = lines.iter().map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
        lines.iter().map(|line| &line[indent..]).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(strip(&printed), strip(expected), "{script}\n{printed}");
}

#[test]
fn a_counter_is_one_statement() {
    is(
        "uprobe:./a:f { @ = count(); }",
        "
        map 0 @ = Count, per thread
        body 0
          aggregate map 0 1
        ",
    );
}

#[test]
fn a_filter_comes_first_and_needs_no_memory() {
    is(
        "uprobe:./a:f /arg0 > 4096/ { @[arg1] = count(); }",
        "
        map 0 @[8 bytes] = Count, per thread
        body 0
          if (4096 <u arg0)
          else
            return
          s0:u64 = arg1
          aggregate map 0[s0] 1
        ",
    );
}

#[test]
fn integers_are_told_as_words() {
    is(
        "uprobe:./a:f { printf(\"%d %d\\n\", arg0, pid); }",
        "
        body 0
          emit 0(arg0, pid)
        ",
    );
}

#[test]
fn a_string_is_read_where_it_is_needed() {
    is(
        "uprobe:./a:f { @[str(arg0, 15)] = count(); }",
        "
        map 0 @[16 bytes] = Count, per thread
        body 0
          l0 = s0(16) = read string of arg0, at most 16
          aggregate map 0[s0] 1
        ",
    );
}

#[test]
fn keys_are_built_in_place() {
    is(
        "uprobe:./a:f { @[pid, comm] = sum(arg1); }",
        "
        map 0 @[20 bytes] = Sum, per thread
        body 0
          s0:u32 = pid
          s4(16) = thread name
          aggregate map 0[s0] arg1
        ",
    );
}

#[test]
fn a_field_is_read_alone() {
    is(
        "struct s { int a; long b; };\nuprobe:./a:f { @ = sum(((struct s *)arg0)->b); }",
        "
        map 0 @ = Sum, per thread
        body 0
          l0 = read:i64 (arg0 + 8)
          aggregate map 0 l0
        ",
    );
}

#[test]
fn a_start_is_looked_up_once() {
    is(
        "uretprobe:./a:f /pid == 5 && @start[tid]/ { @ns = hist(nsecs - @start[tid]); _ = delete(@start, tid); \
         @start[tid] = nsecs; @n = @start[tid] }",
        "
        map 0 @start[4 bytes] = 8 bytes, per thread
        map 1 @ns = Hist { bits: 0 }, per thread
        map 2 @n = 8 bytes
        body 0
          if (pid == 5)
          else
            return
          s8:u32 = tid
          s0 = map 0[s8]
          if s0:u64
          else
            return
          aggregate map 1 (time(boot) - s0:u64)
          s16:u32 = tid
          delete map 0[s16]
          s16:u64 = time(boot)
          s24:u32 = tid
          l0 = map 0[s24] = s16
          if l0
          else
            emit 0(0)
          s24:u32 = tid
          s16 = map 0[s24]
          l1 = map 2 = s16
          if l1
          else
            emit 1(0)
        ",
    );
}

#[test]
fn what_may_not_have_been_read_is_read_again() {
    let (compiled, _) =
        compiled("uprobe:./a:f /@a[tid] || @b[tid]/ { print((@a[tid], @b[tid])) }", &World::default())
            .unwrap();
    assert_eq!(compiled.program.to_string().matches(" = map 1[").count(), 2);
}

#[test]
fn counting_in_a_map_is_one_addition() {
    is(
        "uprobe:./a:f { @x++; @x += arg0; }",
        "
        map 0 @x = 8 bytes, per process
        body 0
          map 0 += 1
          map 0 += arg0
        ",
    );
}

#[test]
fn what_is_known_is_not_computed() {
    is(
        "uprobe:./a:f { $x = arg0 * (2 + 2) / 1; if (1) { @ = sum($x + 0) } }",
        "
        map 0 @ = Sum, per thread
        body 0
          l0 = (arg0 * 4)
          if 1
            aggregate map 0 l0
        ",
    );
}

#[test]
fn maps_are_each_threads_own_where_nobody_else_asks_for_their_keys() {
    for (script, expected) in [
        ("uprobe:./a:f { @ = count(); } interval:s:1 { print(@); clear(@); }", true),
        ("uprobe:./a:f { @ = count(); if (@ > 5) { exit() } }", false),
        ("uprobe:./a:f { @[1] = count(); delete(@, 1); }", false),
        ("uprobe:./a:f { @ = max(arg0); } interval:s:1 { clear(@); }", false),
        ("uprobe:./a:f { @ = max(arg0); } interval:s:1 { print(@); }", true),
        // Plain values by the thread's number, where it takes them out again.
        ("uprobe:./a:f { @[tid] = 1; } uprobe:./a:g { delete(@, tid); }", true),
        (
            "uprobe:./a:f { @[tid] = (1, nsecs); } uprobe:./a:g { print(@[(uint64)tid]); delete(@, tid); }",
            true,
        ),
        ("uprobe:./a:f { @[tid] = 1; delete(@, tid); } interval:s:1 { print(@); } end { clear(@); }", true),
        ("uprobe:./a:f { @[tid] = 1; delete(@, tid); } interval:s:1 { clear(@); }", false),
        ("uprobe:./a:f { @[tid] = 1; delete(@, tid); } profile:hz:9 { @[tid] = 2; }", false),
        ("uprobe:./a:f { @[tid] = 1; } interval:s:1 { delete(@, 7); }", false),
        ("uprobe:./a:f { @[tid] = 1; }", false),
        ("uprobe:./a:f { @[pid] = 1; delete(@, pid); }", false),
        ("uprobe:./a:f { @[tid]++; delete(@, tid); }", false),
        // One thread puts in what another one asks for.
        ("uprobe:./a:f { @[tid, arg0] = 1; } uprobe:./a:g { delete(@, (arg0, tid)); }", false),
        ("uprobe:./a:f { @[tid, arg0] = 1; } uprobe:./a:g { delete(@, (tid, arg0)); }", false),
        ("let @ = hash(100000); uprobe:./a:f { @[tid] = 1; delete(@, tid); }", false),
        ("let @ = hash(100); uprobe:./a:f { @[tid] = 1; delete(@, tid); }", false),
        ("let @ = lruhash(4096); uprobe:./a:f { @[tid] = 1; delete(@, tid); }", false),
    ] {
        let (compiled, _) = compiled(script, &World::default()).unwrap();
        let is_own = compiled.program.maps[0].sharing == crate::ir::MapSharing::PerThread;
        assert_eq!(is_own, expected, "{script}");
    }
}

#[test]
fn plain_maps_by_thread_or_process_are_each_processs_own() {
    for (script, expected) in [
        (
            "uprobe:./a:f { @[tid] = nsecs; } uretprobe:./a:f /@[tid]/ { @t = sum(nsecs - @[tid]); delete(@, tid); }",
            true,
        ),
        ("uprobe:./a:f { @[pid, arg0] = 1; } end { print(@); clear(@); }", true),
        ("uprobe:./a:f { @[(uint64)tid]++; } interval:s:1 { for ($kv : @) { print($kv); } }", true),
        ("uprobe:./a:f { @[tid] = arg0; if (has_key(@, tid)) { exit() } }", true),
        ("uprobe:./a:f { @[arg0] = 1; }", false),
        ("uprobe:./a:f { @[tid, arg0] = 1; } uprobe:./a:g { delete(@, (pid, arg0)); }", true),
        ("uprobe:./a:f { @[pid, arg0] = 1; } uprobe:./a:g { delete(@, (arg0, pid)); }", false),
        ("uprobe:./a:f { @ = 1; }", false),
        ("uprobe:./a:f { @[(uint8)tid] = 1; }", false),
        ("uprobe:./a:f { @[tid + 1] = 1; }", false),
        ("uprobe:./a:f { @[tid] = 1; } uprobe:./a:g { print(@[arg0]); }", false),
        ("uprobe:./a:f { @[tid] = 1; print(len(@)); }", false),
        ("uprobe:./a:f { @[tid] = 1; clear(@); }", false),
        ("begin { @[tid] = 1; } uprobe:./a:f /@[tid]/ { exit(); }", false),
        ("begin { @[tid] = 1; }", false),
        ("profile:hz:9 { @[tid] = 1; } uprobe:./a:f { @[tid] = 2; }", false),
    ] {
        let (compiled, _) = compiled(script, &World::default()).unwrap();
        let sharing = compiled.program.maps[0].sharing;
        assert_eq!(sharing != crate::ir::MapSharing::Shared, expected, "{script}: {sharing:?}");
    }
}

#[test]
fn numbers_that_probes_only_add_to_are_added_up() {
    use crate::ir::{MapSharing, Readers};
    for (script, expected) in [
        ("uprobe:./a:f { @++; }", true),
        ("uprobe:./a:f { @ += arg0; --@; } interval:s:1 { print(@); clear(@); }", true),
        ("uprobe:./a:f { @[arg0, str(arg1)] -= 2; } end { for ($kv : @) { print($kv); } zero(@); }", true),
        ("uprobe:./a:f { @[arg0]++; } interval:s:1 { if (@[1] > 5) { delete(@, 1); } }", true),
        // Somebody sees what it is.
        ("uprobe:./a:f { $x = @++; print($x); }", false),
        ("uprobe:./a:f /@ < 5/ { @++; }", false),
        ("uprobe:./a:f { @[arg0]++; } uprobe:./a:g { delete(@, arg0); }", false),
        ("uprobe:./a:f { @[arg0]++; } uprobe:./a:g { print(len(@)); }", false),
        // It is not only added to.
        ("uprobe:./a:f { @++; } uprobe:./a:g { @ = 0; }", false),
        ("uprobe:./a:f { @++; } interval:s:1 { print(@); @ = 0; }", false),
        ("begin { @ = 100; } uprobe:./a:f { @++; }", false),
        ("let @ = lruhash(4096); uprobe:./a:f { @[arg0]++; }", false),
        ("interval:s:1 { @++; }", false),
    ] {
        let (compiled, _) = compiled(script, &World::default()).unwrap();
        let sharing = compiled.program.maps[0].sharing;
        assert_eq!(sharing == MapSharing::PerProcess(Readers::Sum), expected, "{script}: {sharing:?}");
    }
}
