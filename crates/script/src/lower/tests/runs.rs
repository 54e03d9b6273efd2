//! Scripts and what they print.

use super::support::{World, ran};

#[track_caller]
fn prints(cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        let printed = ran(&format!("begin {{ {script} }}"), &World::default());
        assert_eq!(printed, *expected, "{script}");
    }
}

#[test]
fn integers_are_of_64_bits_where_they_are_computed() {
    prints(&[
        ("print((uint8)200 + (uint8)100)", "300"),
        ("$x = (uint8)255; print($x + 1)", "256"),
        ("print((uint8)(-10))", "246"),
        ("print((int8)200)", "-56"),
        ("$x = 300; print((uint8)$x)", "44"),
        ("$a = (uint32)5; $b = (uint32)7; print($a - $b)", "-2"),
        ("$m = (int64)-7; $t = (int64)3; print(($m / $t, $m % $t, $m >> 1))", "(-2, -1, -4)"),
        ("$x = (uint64)0xffffffffffffffff; print(($x >> 60, $x / 2))", "(15, 9223372036854775807)"),
        ("print(~10)", "18446744073709551605"),
        ("print((1 << 40) | 1)", "1099511627777"),
        ("print(0xffffffffffffffff)", "18446744073709551615"),
        ("$x = 1; $x++; ++$x; $x--; print(($x++, $x, --$x))", "(2, 3, 2)"),
        ("let $x : uint8 = 255; $x++; print($x)", "0"),
        ("$a = -1; $b = (uint8)1; print($a < $b)", "true"),
        ("print((1 == 1, 1 > 2, !5, !0))", "(true, false, false, true)"),
        (
            "$x = 6; $x *= 7; $x -= 2; $x /= 4; $x <<= 3; $x |= 1; $x ^= 3; $x &= 0xfe; $x %= 50; print($x)",
            "32",
        ),
        ("print((bswap((uint32)0x11223344), bswap((uint16)1)))", "(1144201745, 256)"),
        ("printf(\"%x %lx %u %d\\n\", -1, -1, (uint8)-1, (int64)5)", "ffffffff ffffffffffffffff 255 5"),
    ]);
}

#[test]
fn division_by_0_is_told_and_gives_1() {
    let printed = ran("begin { $zero = (uint64)0; print(5 / $zero) }", &World::default());
    assert!(printed.contains("Divide or modulo by 0 detected"), "{printed}");
    assert!(printed.ends_with("\n1"), "{printed}");
}

#[test]
fn conditions_choose() {
    prints(&[
        ("$x = 5; print($x > 3 ? \"more\" : \"less\")", "more"),
        ("$x = 0; print($x ?: 10)", "10"),
        ("$x = 2; if ($x == 1) { print(1) } else if ($x == 2) { print(22) } else { print(3) }", "22"),
        ("$x = 2; print(if ($x > 1) { \"big\" } else { \"small\" })", "big"),
        ("$x = 1; $y = { let $z = $x + 1; $z * 10 }; print($y)", "20"),
        ("print(0 && { print(\"no\"); 1 })", "false"),
        ("print(1 || { print(\"no\"); 1 })", "true"),
        ("$x = 1; print($x && { print(\"yes\"); 1 })", "yes\ntrue"),
        ("if comptime (sizeof(uint32) == 4) { print(\"four\") } else { print($undefined) }", "four"),
    ]);
}

#[test]
fn loops_end() {
    prints(&[
        ("for ($i : 0..3) { print($i) }", "0\n1\n2"),
        ("for ($i : -1..2) { if ($i == 0) { continue } print($i) }", "-1\n1"),
        ("for ($i : 0..10) { if ($i == 2) { break } print($i) }", "0\n1"),
        ("$n = 2; for ($i : 0..$n) { $n = 100; print($i) }", "0\n1"),
        ("$i = 0; while ($i < 3) { $i++; if ($i == 2) { continue } print($i) }", "1\n3"),
        ("unroll(3) { @x += 2 } print(@x)", "@x: 6\n@x: 6"),
        ("for ($i : 0..3) { for ($j : 0..3) { if ($j == 1) { break } @++ } } print((@, 1))", "(3, 1)\n@: 3"),
        ("for ($i : 0..3) { let $x; print($x); $x = 7 }", "0\n0\n0"),
        ("for ($i : 0..3) { return } print(\"no\")", ""),
    ]);
}

#[test]
fn strings_are_compared_and_cut() {
    prints(&[
        ("$a = \"abc\"; print(($a == \"abc\", $a == \"ab\", $a != \"abcd\"))", "(true, false, true)"),
        ("$a = \"hi\"; $a = \"hello\"; print($a)", "hello"),
        ("print((strlen(\"hello\"), strncmp(\"one\", \"only\", 2), strstr(\"abc\", \"c\")))", "(5, 0, 2)"),
        ("$a = \"hello\"; print((strlen($a), strstr($a, \"llo\"), strcontains($a, \"x\")))", "(5, 2, false)"),
        ("$a = \"ab\"; $b = \"cd\"; print(str_concat($a, $b))", "abcd"),
        ("$a = \"hello\"; print(($a[1], \"abc\"[2]))", "(101, 99)"),
        ("$a = \"hello\"; printf(\"%s|%8s|%-8s|\\n\", str(\"xyz\", 2), $a, $a)", "xy|   hello|hello   |"),
        ("@[\"a\"] = 1; @[\"abc\"] = 2; print(@[\"abc\"]); clear(@)", "2"),
        ("print((int8[])\"hi\")", "[104,105,0]"),
        ("print(comm)", "worker"),
        (
            "printf(\"%r %rx %rh\\n\", buf(\"a\\x01\", 2), buf(\"ab\", 2), buf(\"ab\", 2))",
            "a\\x01 \\x61\\x62 61 62",
        ),
    ]);
}

#[test]
fn tuples_and_records_hold_values() {
    prints(&[
        ("$t = (1, \"a\", (2, true)); print($t); print($t.2.0)", "(1, a, (2, true))\n2"),
        ("$t = (1, \"a\"); $t = (1000, \"abc\"); print($t)", "(1000, abc)"),
        ("$a = (1, 2); $b = ((int64)1, (int64)2); print(($a == $b, $a != $b))", "(true, false)"),
        ("$r = (x=1, y=\"b\"); print($r); print($r.y)", "{ .x = 1, .y = b }\nb"),
        ("$r = (x=1, y=2); $r = (y=3, x=(int64)4); print($r)", "{ .x = 4, .y = 3 }"),
        ("print((a=1, b=2) == (b=2, a=1))", "true"),
        ("@[(1, 2)] = 3; @[4, 5] = 6; print(@[1, 2])", "3\n@[1, 2]: 3\n@[4, 5]: 6"),
        ("print(sizeof((1, (int64)2)))", "16"),
    ]);
}

#[test]
fn maps_keep_values() {
    prints(&[
        ("@x = 1; @x += 5; @x++; print(@x++); print(@x)", "7\n@x: 8\n@x: 8"),
        (
            "@[1] = \"a\"; print(has_key(@, 1)); print(has_key(@, 2)); print(len(@)); clear(@)",
            "true\nfalse\n1",
        ),
        ("@[1] = 5; print(delete(@, 1)); print(delete(@, 1)); print(@[1])", "true\nfalse\n0"),
        ("@[1] = 5; $v = (int64)0; if (find(@, 1, $v)) { print($v) } clear(@)", "5"),
        ("@[1] = 2; @[2] = 4; for ($kv : @) { @sum += $kv.0 * $kv.1 } clear(@)", "@sum: 10"),
        ("@c[1] = count(); @c[1] = count(); for ($kv : @c) { print($kv) } clear(@c)", "(1, 2)"),
        ("@ = count(); @ = count(); if (@ == 2) { print((int64)@) } clear(@)", "2"),
        ("@a = avg(10); @a = avg(20); print((uint64)@a + 1); clear(@a)", "16"),
        ("@[-1] = min(-5); @[-1] = min(3); print(@[-1] < 0); clear(@)", "true"),
        ("@s = stats(4); @s = stats(6)", "@s: { .count = 2, .average = 5, .total = 10 }"),
        ("@ = sum(-5); zero(@); @ = sum(2)", "@: 2"),
        (
            "@ = lhist(5, 0, 10, 5)",
            "@:\n[5, 10)                1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|",
        ),
        ("@a[(uint8)1] = 1; @a[-200] = 2; print(@a[1]); clear(@a)", "1"),
    ]);
}

#[test]
fn a_full_map_is_told() {
    let printed = ran("let @m = hash(1); begin { @m[1] = 1; @m[1] = 2; @m[2] = 3 }", &World::default());
    assert!(printed.contains("stdin:1:49-58: WARNING: Map full"), "{printed}");
    assert!(printed.ends_with("@m[1]: 2"), "{printed}");
}

#[test]
fn floats_are_computed_and_kept() {
    prints(&[
        ("$x = 1.5; printf(\"%.2f %g %e\\n\", $x * 2, $x, $x)", "3.00 1.5 1.500000e+00"),
        ("print((7 * 0.5, 1 / 4.0, -2.5, (int32)2.9, (int64)-2.9))", "(3.5, 0.25, -2.5, 2, -2)"),
        ("$x = 1; $x = 2.5; print($x)", "2.5"),
        ("print((1.5 < 2, 1.5 == 1.5, !0.0))", "(true, true, true)"),
        ("@ = avg(1.5); @ = avg(2)", "@: 1.75"),
        ("@ = max(-1.5); @ = max(-2.5)", "@: -1.5"),
        ("@[0.5] = 1.25; print(@[0.5] * 2); clear(@)", "2.5"),
        (
            "@ = hist(3.9)",
            "@:\n[2, 4)                 1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|",
        ),
    ]);
}

#[test]
fn c_definitions_lay_out_memory() {
    let mut world = World::default();
    let mut bytes = vec![0u8; 64];
    bytes[0] = 7;
    bytes[4..8].copy_from_slice(&(-3i32).to_le_bytes());
    bytes[8..14].copy_from_slice(b"hello\0");
    bytes[16..24].copy_from_slice(&0x2000u64.to_le_bytes());
    bytes[24] = 0b1011_0101;
    world.memory.insert(0x1000, bytes);
    world.memory.insert(0x2000, vec![9, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
    let definitions = "enum color { RED, GREEN = 5 };\n\
         struct point { int x; int y; };\n\
         struct s { char c; int i; char name[8]; struct point *p; unsigned a : 3; unsigned b : 2; int e : 3; \
         union { int u; char first; }; };\n";
    let cases = [
        ("$s = (struct s *)0x1000; print(($s->c, $s->i, $s.name))", "(7, -3, hello)"),
        ("$s = (struct s *)0x1000; print(($s.p.x, $s->p->y))", "(9, -2)"),
        ("$s = (struct s *)0x1000; print(($s.a, $s.b, $s.e))", "(5, 2, -3)"),
        ("$p = *(struct point *)0x2000; print($p); @ = $p; print(@.y); clear(@)", "{ .x = 9, .y = -2 }\n-2"),
        ("print((sizeof(struct s), offsetof(struct s, p), sizeof(struct point)))", "(32, 16, 8)"),
        ("$q = (int32 *)0x2000; print(($q[1], *$q, *($q + 1)))", "(-2, 9, -2)"),
        ("$s = (struct s *)0x1000; $i = (uint8)1; print($s.name[$i])", "101"),
        ("$p = (int8 *)0x1008; print(str($p)); print(str($p, 3)); print(str($p + 0x8000))", "hello\nhel"),
        ("print(GREEN); printf(\"%d %s\\n\", GREEN, RED); print((enum color)5)", "GREEN\n5 RED\nGREEN"),
        ("@[GREEN] = RED", "@[GREEN]: RED"),
        ("$s = (struct s *)0x1000; print($s); print($s + 1)", "0x1000\n0x1020"),
        ("$x = 5; $p = &$x; *$p; print(*$p); $x = 6; print(*$p)", "5\n6"),
        ("$x = (1, 2); print((*(&$x)).1)", "2"),
        ("print((int8[4])0x01020304); print((uint32)pton(\"127.0.0.1\"))", "[4,3,2,1]\n16777343"),
        ("print(ntop(pton(\"127.0.0.1\"))); print(ntop(10, pton(\"::1\")))", "127.0.0.1\n::1"),
        ("print((*(uint64 *)0x9000, *(int8 *)0x1000))", "(0, 7)"),
        ("$a = (uint8[4])(uint32)0x04030201; $i = (uint8)9; print($a[3]); print($a == $a)", "4\ntrue"),
    ];
    for (script, expected) in cases {
        assert_eq!(ran(&format!("{definitions}begin {{ {script} }}"), &world), expected, "{script}");
    }
}

#[test]
fn parameters_come_from_the_command_line() {
    let world = World {
        parameters: vec!["42".into(), "hello".into()],
        named: vec![("n".into(), "7".into()), ("b".into(), String::new())],
        ..World::default()
    };
    for (script, expected) in [
        ("print(($1, $#))", "(42, 2)"),
        ("print($2)", "hello"),
        ("print((str($1), str($2 + 1), str($3)))", "(42, ello, )"),
        ("print((getopt(\"n\", 1), getopt(\"b\"), getopt(\"x\", \"d\")))", "(7, true, d)"),
        ("unroll($1) { @++ }", "@: 42"),
    ] {
        assert_eq!(ran(&format!("begin {{ {script} }}"), &world), expected, "{script}");
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let nested = "unroll(100) { unroll(100) { unroll(100) { @ = 1 } } }";
    let told = ran(&format!("begin {{ {nested} }}"), &World::default());
    assert!(told.contains("what this probe does takes too much code or memory"), "{told}");
    let large = "struct s { char a[1000000]; char b[1000000]; };\nbegin { $x = *(struct s *)0; print($x) }";
    assert!(ran(large, &World::default()).contains("takes too much code or memory"));
}

#[test]
fn exit_ends_the_body_and_is_the_code() {
    assert_eq!(
        ran("begin { print(1); exit(3); print(2) } end { print(\"end\") }", &World::default()),
        "1\nend"
    );
    assert_eq!(ran("begin { for ($i : 0..3) { print($i); exit() } }", &World::default()), "0");
}

#[test]
fn failed_reads_and_missing_keys_are_told_on_demand() {
    let world = World { tells_failures: true, ..World::default() };
    let printed = ran("begin { @[1] = 1; print(@[2]); print(str((int8 *)0x10)) }", &world);
    assert!(printed.contains("Can't lookup map element because it does not exist."), "{printed}");
    assert!(printed.contains("Bad address"), "{printed}");
    assert!(!ran("begin { @[1] = 1; print(@[2]) }", &World::default()).contains("WARNING"));
}
