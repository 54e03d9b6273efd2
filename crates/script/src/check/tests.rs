//! What is refused and what is told, script by script. The words are those that scripts and their users know from bpftrace.

use crate::lower::tests::support::{World, compiled, first};

#[track_caller]
fn told(cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        assert_eq!(first(script, &World::default()), *expected, "{script}");
    }
}

/// Scripts of which nothing is told.
#[track_caller]
fn accepted(scripts: &[&str]) {
    for script in scripts {
        assert_eq!(first(script, &World::default()), "", "{script}");
    }
}

#[test]
fn types_of_variables_and_maps_are_kept() {
    told(&[
        (
            "begin { $a = 1; $a = \"x\" }",
            "ERROR: Type mismatch for $a: trying to assign value of type 'string[2]' when variable already has a type 'int8'",
        ),
        (
            "begin { @a = 1; @a = \"x\" }",
            "ERROR: Type mismatch for @a: trying to assign value of type 'string[2]' when map already has a type 'int8'",
        ),
        (
            "begin { @a = count(); @a = 1 }",
            "ERROR: Type mismatch for @a: trying to assign value of type 'int8' when map already has a type 'count_t'",
        ),
        (
            "begin { @a = count(); @a = sum(1) }",
            "ERROR: Type mismatch for @a: trying to assign value of type 'sum_t' when map already has a type 'count_t'",
        ),
        (
            "begin { @a[1] = 1; @a[\"x\"] = 1 }",
            "ERROR: Argument mismatch for @a: trying to access with arguments: 'string[2]' when map expects arguments: \
             'int8'",
        ),
        (
            "begin { @a = 1; @a[1] = 1 }",
            "ERROR: @a used as a map with an explicit key (non-scalar map), previously used without an explicit key \
             (scalar map)",
        ),
        (
            "begin { @a[1] = 1; @a = 1 }",
            "ERROR: @a used as a map without an explicit key (scalar map), previously used with an explicit key \
             (non-scalar map)",
        ),
        ("begin { print(@a) }", "ERROR: Undefined map: @a"),
        ("begin { print($a) }", "ERROR: Undefined or undeclared variable: $a"),
        ("begin { if (1) { $a = 1 } print($a) }", "ERROR: Undefined or undeclared variable: $a"),
        (
            "begin { let $a; let $a; }",
            "ERROR: Variable $a was already declared. Variable shadowing is not allowed.",
        ),
        ("begin { $i = 1; for ($i : 0..3) { } }", "ERROR: Loop declaration shadows existing variable: $i"),
        (
            "begin { let $a : uint8 = 300; }",
            "ERROR: Type mismatch for $a: trying to assign value of type 'int16' when variable already has a type 'uint8'",
        ),
        (
            "begin { @b = count(); @a = @b }",
            "ERROR: Map value 'count_t' cannot be assigned from one map to another. The function that returns this type \
             must be called directly e.g. `@a = count();`.",
        ),
        ("begin { $a = hist(1) }", "ERROR: hist() must be assigned directly to a map"),
        ("begin { $a = print(1) }", "ERROR: Value 'void' cannot be assigned to a scratch variable."),
    ]);
    accepted(&[
        "begin { $a = 1; $a = (uint64)2; $a = 300 }",
        "begin { @a = 1; @a = (int64)2; @b = count(); @a = @b }",
        "begin { $a = \"a\"; $a = \"longer\" }",
        "begin { @[1, \"a\"] = 1; @[300, \"abc\"] = 2 }",
        "begin { $a = 1; $a = 1.5 }",
    ]);
}

#[test]
fn operators_take_what_they_can() {
    told(&[
        ("begin { $a = \"a\"; $a + 1 }", "ERROR: Type mismatch for '+': comparing string[2] with int8"),
        (
            "begin { $a = \"a\"; $b = \"b\"; $a < $b }",
            "ERROR: The < operator can not be used on expressions of types string[2], string[2]",
        ),
        (
            "begin { $a = \"a\"; -$a }",
            "ERROR: The - operator can not be used on expressions of type 'string[2]'",
        ),
        ("begin { *\"a\" }", "ERROR: The * operator can not be used on expressions of type 'string[2]'"),
        ("begin { 1 / 0 }", "ERROR: unable to fold literals due to overflow or underflow"),
        ("begin { 0xffffffffffffffff * 2 }", "ERROR: unable to fold literals due to overflow or underflow"),
        (
            "begin { $p = (int32 *)1; $p * 2 }",
            "ERROR: The * operator can not be used on expressions of types int32 *, int8",
        ),
        (
            "begin { $x = 1.5; $x % 2 }",
            "ERROR: The % operator can not be used on expressions of types double, int8",
        ),
        ("begin { $a = \"a\"; if ($a) { } }", "ERROR: Invalid condition: string"),
        ("begin { $t = (1, 2); print($t.2) }", "ERROR: Invalid tuple index: 2. Found 2 elements in tuple."),
        ("begin { $t = 1; print($t.0) }", "ERROR: Can not access index '0' on expression of type 'int8'"),
        ("begin { $t = (x=1); print($t.y) }", "ERROR: Record does not contain a field named 'y'"),
        (
            "begin { $x = 1; print($x ? \"a\" : 1) }",
            "ERROR: Branches must return the same type or compatible types: have 'string[2]' and 'int8'",
        ),
        (
            "begin { $a = (int8[2])(uint16)1; print($a[2]) }",
            "ERROR: the index 2 is out of bounds for array of size 2",
        ),
        ("begin { print((int32)\"abc\") }", "ERROR: Cannot cast from \"string[4]\" to \"int32\""),
        ("begin { print((struct nobody *)1) }", "ERROR: Cannot resolve unknown type \"struct nobody\""),
        ("begin { for ($i : \"a\"..3) { } }", "ERROR: Loop range requires an integer for the start value"),
        ("begin { print((int32)exit(0)) }", "ERROR: Cannot cast from \"none\" type"),
        ("begin { print(str(exit(0))) }", "ERROR: a value is needed here, and none is given"),
        (
            "begin { print(strncmp(\"a\", \"b\", exit(0))) }",
            "ERROR: a value is needed here, and none is given",
        ),
        ("begin { for ($i : 0..exit(0)) { } }", "ERROR: Loop range requires an integer for the end value"),
        (
            "begin { for ($i : 0[exit(0)]..1) { } }",
            "ERROR: Loop range requires an integer for the start value",
        ),
        (
            "begin { @ = 1; for ($kv : @) { } }",
            "ERROR: @ has no explicit keys (scalar map), and cannot be used for iteration",
        ),
        (
            "begin { @[1] = hist(1); for ($kv : @) { } }",
            "ERROR: Loop expression does not support type: hist_t",
        ),
        ("begin { break }", "ERROR: 'break' statement is not allowed in a probe"),
        ("begin { unroll(101) { } }", "ERROR: unroll maximum value is 100"),
        ("begin { return \"a\" }", "ERROR: Probe return values can only be integers. Found string[2]"),
    ]);
}

#[test]
fn functions_take_what_they_can() {
    told(&[
        (
            "begin { printf(\"%d\") }",
            "ERROR: not enough arguments for format string (0 supplied, 1 expected)",
        ),
        ("begin { printf(\"%d\", \"a\") }", "ERROR: unsupported format specifier for type 'string[2]': d"),
        ("begin { printf(1) }", "ERROR: printf() expects a string literal (int provided)"),
        ("begin { fork() }", "ERROR: Unknown function: 'fork'"),
        ("begin { print(fork) }", "ERROR: Unknown identifier: 'fork'"),
        ("begin { @ = lhist(1) }", "ERROR: lhist() requires 4 arguments (1 provided)"),
        ("begin { @ = lhist(1, 0, 10, 0) }", "ERROR: lhist() step must be >= 1 (0 provided)"),
        ("begin { @ = hist(1, 6) }", "ERROR: hist: bits 6 must be 0..5"),
        ("begin { @ = hist(1, 1); @ = hist(1, 2) }", "ERROR: Different bits in a single hist unsupported"),
        ("begin { @ = sum(\"a\") }", "ERROR: sum() only supports integer arguments (string[2] provided)"),
        ("begin { system(\"ls\") }", "ERROR: system() is an unsafe function being used in safe mode"),
        ("uprobe:./a:f { signal(9) }", "ERROR: signal() is unsafe. To use you need the --unsafe flag"),
        ("uprobe:./a:f { delay(5ms) }", "ERROR: delay() is unsafe. To use you need the --unsafe flag"),
        (
            "uprobe:./a:f { @ = pcomm; }",
            "ERROR: pcomm is unsafe in a probe: it is read through a descriptor that the program has for a moment. To use you need the --unsafe flag",
        ),
        ("begin { clear(1) }", "ERROR: clear() expects a map argument"),
        ("begin { @ = 1; len(@) }", "ERROR: call to len() expects a map with explicit keys (non-scalar map)"),
        (
            "begin { @ = 1; has_key(@, 1) }",
            "ERROR: call to has_key() expects a map with explicit keys (non-scalar map)",
        ),
        ("begin { print(str(\"a\", -1)) }", "ERROR: strcannot use negative length (-1)"),
        (
            "begin { print(str((1, 2))) }",
            "ERROR: str() expects a string, integer or a pointer type as first argument ((int8,int8) provided)",
        ),
        ("begin { buf(1) }", "ERROR: buf() expects a length argument for non-array type int"),
        ("begin { pton(\"1.2.3\") }", "ERROR: pton() expects a valid IPv4/IPv6 address, got 1.2.3"),
        ("begin { nsecs(sometime) }", "ERROR: Invalid timestamp mode: sometime"),
        (
            "begin { strftime(\"%H\", nsecs(monotonic)) }",
            "ERROR: strftime() can not take a monotonic timestamp",
        ),
        (
            "begin { @h = hist(1); print(@h[1]) }",
            "ERROR: @h used as a map with an explicit key (non-scalar map), previously used without an explicit key (scalar map)",
        ),
        (
            "begin { @h[1] = hist(1); print(@h[1]) }",
            "ERROR: Map type hist_t cannot print the value of individual keys. You must print the whole map.",
        ),
        ("begin { fail(\"no %s, %d\", \"way\", 5) }", "ERROR: no way, 5"),
        ("begin { ustack(2000) }", "ERROR: ustack([int limit]): limit shouldn't exceed 1024, 2000 given"),
        (
            "uprobe:./a:f { reg(\"xyz\") }",
            "ERROR: 'xyz' is not a valid register on this architecture (x86_64)",
        ),
        ("uprobe:./a:f { uaddr(\"nobody\") }", "ERROR: Could not resolve symbol: ./a:nobody"),
        ("fn f() : int64 { return 1; } begin { }", "ERROR: functions cannot be called: write a macro"),
    ]);
}

#[test]
fn delays_have_a_range_and_are_in_programs() {
    let world = World { is_unsafe: true, ..World::default() };
    let cases = [
        ("uprobe:./a:f { delay(5ms); delay(arg0 * 1us); delay(1m); }", ""),
        ("uretprobe:./a:f { delay(retval); }", ""),
        ("uprobe:./a:f { delay(61s); }", "ERROR: delay() takes times from 1ns to 60s"),
        ("uprobe:./a:f { delay(0); }", "ERROR: delay() takes times from 1ns to 60s"),
        ("uprobe:./a:f { delay(-1); }", "ERROR: delay() takes times from 1ns to 60s"),
        ("uprobe:./a:f { delay(\"5ms\"); }", "ERROR: delay() only supports int arguments (string provided)"),
        ("uprobe:./a:f { delay(); }", "ERROR: delay() requires one argument (0 provided)"),
        ("begin { delay(5ms); }", "ERROR: delay() can only be used in programs (uprobe, uretprobe, usdt)"),
    ];
    for (script, expected) in cases {
        assert_eq!(first(script, &world), expected, "{script}");
    }
}

#[test]
fn builtins_are_where_they_make_sense() {
    told(&[
        (
            "begin { print(arg0) }",
            "ERROR: The arg0 builtin can only be used with 'kprobes', 'uprobes' and 'usdt' probes",
        ),
        (
            "uprobe:./a:f { print(retval) }",
            "ERROR: The retval builtin can only be used with 'kretprobe' and 'uretprobe' and 'fentry' probes",
        ),
        ("begin { print(func) }", "ERROR: The func builtin can not be used with 'begin' probes"),
        ("begin { print(ctx) }", "ERROR: The ctx builtin can not be used with 'begin' probes"),
        ("uprobe:./a:f { print(arg6) }", "ERROR: x86_64 doesn't support arg6"),
        ("uprobe:./a:f { print(args) }", "ERROR: Cannot read function parameters"),
        (
            "usdt:./a:b:c { print(args) }",
            "ERROR: The args builtin can only be used with tracepoint, rawtracepoint, fentry/fexit, and uprobe probes \
             (usdt used here)",
        ),
        (
            "begin { print(kstack) }",
            "ERROR: kstack is about the kernel, and only user programs are probed here: ustack tells the stack of the \
             program",
        ),
        ("kprobe:f { }", "ERROR: kprobe probes are in the kernel, and only user programs are probed here"),
        (
            "begin { typeinfo(1) }",
            "ERROR: typeinfo feature is not enabled by default. To enable this unstable feature, set the config flag to enable. unstable_typeinfo=enable",
        ),
        ("test:a { } test:a { }", "ERROR: \"a\" was used as the name for more than one TEST probe"),
    ]);
    accepted(&[
        "uprobe:./a:f { @ = arg5; @b = farg0 }",
        "uretprobe:./a:f { @[arg0] = retval }",
        "usdt:./a:b:c { @ = arg11 }",
        "uprobe:./a:f+4 { @ = reg(\"ax\") }",
        "begin { @ = (pid, tid, uid, gid, cpu, ncpus, nsecs, elapsed, rand, username, comm, probe, probetype) }",
    ]);
}

#[test]
fn what_may_be_wrong_is_told() {
    told(&[
        ("begin { 1 }", "WARNING: Return value discarded."),
        ("begin { return; @ = 1 }", "WARNING: Unreachable statement."),
        ("begin { exit(); @ = 1 }", "WARNING: Unreachable statement."),
        ("begin { let $a; }", "WARNING: Variable $a was never assigned to."),
        ("begin { let $a; @ = $a; $a = 1 }", "WARNING: Variable used before it was assigned: $a"),
        (
            "begin { $i = 0; while ($i < 3) { $i++ } }",
            "WARNING: While loops are deprecated and may be removed in the future.",
        ),
        ("let @a = hash(1); begin { }", "WARNING: Unused map: @a"),
        ("begin { @ = $1 }", "WARNING: Positional parameter $1 is empty or not provided. "),
        ("begin { @ = (int8)(int8)1 }", "WARNING: Unnecessary cast: expression is already of type int8"),
        (
            "begin { $a = (uint64)1; let $b : int32 = $a; }",
            "WARNING: Expression of type: uint64 being cast to type: int32. This may cause unexpected results. Use an \
             explicit cast to suppress this warning.",
        ),
        (
            "begin { @ = tseries(1, 1s, 5) }",
            "WARNING: Script is using an unstable feature: tseries. To prevent this warning you must explicitly enable it in the config e.g. unstable_tseries=enable",
        ),
        ("begin { print(str(arg, 5000)) }", "ERROR: Unknown identifier: 'arg'"),
    ]);
}

#[test]
fn names_of_probes_are_texts_where_scripts_compute_with_them() {
    let depends = |script: &str| {
        let compiled = compiled(script, &World::default()).unwrap().0;
        compiled.clauses.iter().any(|clause| clause.depends_on_name)
    };
    for (script, is_asked) in [
        ("uprobe:./a:f* { print(probe); @[probe] = count(); }", false),
        ("uprobe:./a:f* { if (is_str(probe)) { exit(); } }", false),
        ("uprobe:./a:f* { if (probe == probe) { exit(); } }", false),
        ("uprobe:./a:f* { if (probe == \"a\") { exit(); } }", true),
        ("uprobe:./a:f* { if (\"a\" != probe) { exit(); } }", true),
        ("uprobe:./a:f* { if (strcontains(probe, \"a\")) { exit(); } }", true),
        ("uprobe:./a:f* { print((strlen(probe), str(probe, 5), strncmp(probe, \"a\", 1))); }", true),
        ("usdt:./a:b:* /strstr(probe, \"c\") > 3/ { exit(); }", true),
        // Of those in the tool the name is known.
        ("begin { if (strcontains(probe, \"a\")) { exit(); } }", false),
    ] {
        assert_eq!(depends(script), is_asked, "{script}");
    }
    told(&[(
        "uprobe:./a:f { print(strlen(func)) }",
        "ERROR: string-like values must be either strings, arrays or pointers",
    )]);
}

#[test]
fn builtins_are_there_beside_macros_of_their_names() {
    accepted(&[
        "macro cpu(x) { x } begin { print(cpu(1)); print(cpu()); print(cpu); }",
        "uprobe:./a:f { print((leader_tid, len(ustack), len(ustack(3)))); $s = ustack; print(len($s)); }",
        "begin { print(cgroup_path(cgroup, \"uni*\")); }",
    ]);
    told(&[
        (
            "begin { print(cgroup_path(1, 2)) }",
            "ERROR: cgroup_path() only supports string arguments (int provided)",
        ),
        ("begin { print(len(1)) }", "ERROR: call to len() expects a map, ustack, or kstack"),
    ]);
}

#[test]
fn the_nearest_name_is_told() {
    for (script, name) in [
        ("begin { pritnf(\"a\") }", "printf"),
        ("begin { @ = nsec }", "nsecs"),
        ("begin { $count = 1; @ = $cuont }", "$count"),
        ("struct s { int length; }; begin { @ = ((struct s *)0).lenght }", "length"),
    ] {
        let errors = compiled(script, &World::default()).unwrap_err();
        assert!(errors.contains(&format!("HINT: did you mean '{name}'?")), "{errors}");
    }
}

#[test]
fn errors_stand_where_they_belong() {
    let errors = compiled("begin {\n  $a = 1;\n  $a = \"x\";\n}", &World::default()).unwrap_err();
    assert!(errors.starts_with("stdin:3:3-11: ERROR: Type mismatch"), "{errors}");
}

#[test]
fn deep_trees_are_refused() {
    let deep = format!("begin {{ print({}1{}) }}", "-(".repeat(1000), ")".repeat(1000));
    assert!(first(&deep, &World::default()).contains("nested too deeply"));
    let chain = format!("begin {{ $x = 1; print($x{}) }}", " + $x".repeat(150));
    assert!(compiled(&chain, &World::default()).is_ok());
}
