//! What is read as what.

mod bounds;
mod refused;

use super::*;
use crate::syntax::ast::{
    BinaryOp, ExprKind, Item, Iterable, PlaceKind, Step, StepOrder, Stmt, StmtKind, TypeKind, TypeOfKind,
    UnaryOp,
};

fn read(text: &str) -> (Program, String) {
    let mut sources = Sources::default();
    let script = sources.add("stdin", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let mut ids = ExprIds::default();
    let program = parse_program(&sources, script, &AttachContext::default(), &mut ids, &mut diagnostics);
    (program, diagnostics.render(&sources))
}

fn accepted(text: &str) -> Program {
    let (program, told) = read(text);
    assert_eq!(told, "", "{text}");
    program
}

fn statements(text: &str) -> Vec<Stmt> {
    match accepted(&format!("begin {{ {text} }}")).items.remove(0) {
        Item::Probe(probe) => probe.body.statements,
        other => panic!("{other:?}"),
    }
}

fn expression(text: &str) -> ExprKind {
    match statements(&format!("_ = {text};")).remove(0).kind {
        StmtKind::Discard(expr) => expr.kind,
        other => panic!("{other:?}"),
    }
}

/// A short form of an expression, with every operation in parentheses.
fn short(kind: &ExprKind) -> String {
    let e = |expr: &Expr| short(&expr.kind);
    match kind {
        ExprKind::Integer(integer) => integer.value.to_string(),
        ExprKind::Float(float) => float.text.clone(),
        ExprKind::Boolean(value) => value.to_string(),
        ExprKind::String(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
        ExprKind::Positional(number) => format!("${number}"),
        ExprKind::PositionalCount => "$#".to_string(),
        ExprKind::Identifier(name) => name.clone(),
        ExprKind::Builtin(name) => format!("builtin:{name}"),
        ExprKind::Call { name, arguments } => {
            format!("{}({})", name.text, arguments.iter().map(e).collect::<Vec<_>>().join(","))
        }
        ExprKind::Variable(name) => format!("${name}"),
        ExprKind::Map(name) => format!("@{name}"),
        ExprKind::MapElement { map, key } => format!("@{}[{}]", map.text, e(key)),
        ExprKind::VariableAddress(name) => format!("&${}", name.text),
        ExprKind::MapAddress(name) => format!("&@{}", name.text),
        ExprKind::Binary { op, left, right } => format!("({}{}{})", e(left), op.symbol(), e(right)),
        ExprKind::Unary { op, operand } => format!("({}{})", op.symbol(), e(operand)),
        ExprKind::Step { place, step, order } => {
            let place = match &place.kind {
                PlaceKind::Variable(name) => format!("${name}"),
                PlaceKind::Map(name) => format!("@{name}"),
                PlaceKind::MapElement { map, key } => format!("@{}[{}]", map.text, e(key)),
            };
            let sign = if *step == Step::Up { "++" } else { "--" };
            if *order == StepOrder::Before { format!("({sign}{place})") } else { format!("({place}{sign})") }
        }
        ExprKind::Field { of, name, .. } => format!("{}.{}", e(of), name.text),
        ExprKind::TupleIndex { of, index } => format!("{}.{index}", e(of)),
        ExprKind::Index { of, index } => format!("{}[{}]", e(of), e(index)),
        ExprKind::Cast { to, value } => match &to.kind {
            TypeOfKind::Type(to) => format!("(<{to}>{})", e(value)),
            TypeOfKind::Expr(to) => format!("(<typeof {}>{})", e(to), e(value)),
        },
        ExprKind::Tuple(parts) => format!("tuple({})", parts.iter().map(e).collect::<Vec<_>>().join(",")),
        ExprKind::Record(fields) => {
            let fields = fields.iter().map(|field| format!("{}={}", field.name.text, e(&field.value)));
            format!("record({})", fields.collect::<Vec<_>>().join(","))
        }
        ExprKind::Ternary { condition, then, otherwise } => {
            let then = then.as_ref().map(|then| e(then)).unwrap_or_default();
            format!("({}?{then}:{})", e(condition), e(otherwise))
        }
        ExprKind::Sizeof(of) | ExprKind::Typeinfo(of) | ExprKind::TypeArg(of) => match &of.kind {
            TypeOfKind::Type(of) => format!("type<{of}>"),
            TypeOfKind::Expr(of) => format!("type of {}", e(of)),
        },
        ExprKind::Offsetof { fields, .. } => {
            fields.iter().map(|field| field.text.as_str()).collect::<Vec<_>>().join(".")
        }
        ExprKind::If { condition, .. } => format!("if {}", e(condition)),
        ExprKind::Block(block) => {
            format!("{{{}}}", block.value.as_ref().map(|value| e(value)).unwrap_or_default())
        }
        ExprKind::Comptime(value) => format!("comptime {}", e(value)),
    }
}

#[test]
fn expressions_are_read_as_these() {
    let table = [
        ("1 + 2 * 3 - 4", "((1+(2*3))-4)"),
        ("1 | 2 ^ 3 & 4 == 5 < 6 << 7 + 8 * 9", "(1|(2^(3&(4==(5<(6<<(7+(8*9))))))))"),
        ("a || b && c || d", "((a||(b&&c))||d)"),
        ("a >= b != c <= d", "((a>=b)!=(c<=d))"),
        ("8 / 4 % 3", "((8/4)%3)"),
        ("a ? b : c ? d : e", "(a?b:(c?d:e))"),
        ("a ? b ? c : d : e", "(a?(b?c:d):e)"),
        ("a ?: b", "(a?:b)"),
        ("!-~*$x", "(!(-(~(*$x))))"),
        ("- 1", "(-1)"),
        ("++$x + $y--", "((++$x)+($y--))"),
        ("++@a[1]", "(++@a[1])"),
        ("@--", "(@--)"),
        ("&$x", "&$x"),
        ("& @m", "&@m"),
        ("a & &@", "(a&&@)"),
        ("@", "@"),
        ("@[1, \"a\"]", "@[tuple(1,\"a\")]"),
        ("@m[(1, 2)]", "@m[tuple(1,2)]"),
        ("@m[1][2].3", "@m[1][2].3"),
        ("$x.0.1", "$x.0.1"),
        ("$x->y.z[1]", "$x.y.z[1]"),
        ("args.name", "builtin:args.name"),
        ("arg0 + sarg12 + arg + argx", "(((builtin:arg0+builtin:sarg12)+arg)+argx)"),
        ("pid()", "pid()"),
        ("nsecs(boot) - nsecs", "(nsecs(boot)-builtin:nsecs)"),
        ("f(1, typeof(int8), g())", "f(1,type<int8>,g())"),
        ("$1 + $#", "($1+$#)"),
        ("()", "tuple()"),
        ("(1,)", "tuple(1)"),
        ("(1, 2,)", "tuple(1,2)"),
        ("(x=1, y = (2, 3))", "record(x=1,y=tuple(2,3))"),
        ("(x == 1)", "(x==1)"),
        ("(1)", "1"),
        ("(uint8)1 + 2", "((<uint8>1)+2)"),
        ("(uint8)(1 + 2)", "(<uint8>(1+2))"),
        ("(struct foo *)arg0", "(<struct foo*>builtin:arg0)"),
        ("((struct foo **)$x)[1]", "(<struct foo**>$x)[1]"),
        ("(struct foo)$x.y", "(<struct foo>$x.y)"),
        ("(int8[4])1", "(<int8[4]>1)"),
        ("(int8[])\"a\"", "(<int8[]>\"a\")"),
        ("(typeof($x[1]))-1", "(<typeof $x[1]>(-1))"),
        ("(mytype)-1", "(<mytype>(-1))"),
        ("(mytype) != 1", "(mytype!=1)"),
        ("(mytype) && 1", "(mytype&&1)"),
        ("(pid) - 1", "(builtin:pid-1)"),
        ("(true) - 1", "(true-1)"),
        ("(a * b)", "(a*b)"),
        ("(a) / 2", "(a/2)"),
        ("sizeof(int32) + sizeof(struct a *)", "(type<int32>+type<struct a*>)"),
        ("sizeof(a) + sizeof(a[2]) + sizeof((a[2]))", "((type of a+type<a[2]>)+type of a[2])"),
        ("sizeof($x.y)", "type of $x.y"),
        ("sizeof(typeof(1))", "type of 1"),
        ("offsetof(struct a, b.c)", "b.c"),
        ("typeinfo(1)", "type of 1"),
        ("comptime 1 + 2", "(comptime 1+2)"),
        ("{ 1; 2 }", "{2}"),
        ("if (1) { 2 } else { 3 }", "if 1"),
        ("if 1 { 2 }", "if 1"),
        ("0x1F + 017 + 1_000 + 1e3 + 5ms + 1ull", "(((((31+15)+1000)+1000)+5000000)+1)"),
        (r#""a\n\t\r\"\\\101\x41\0""#, "\"a\\n\\t\\r\\\"\\\\AA\\0\""),
        ("64k + 1M", "(65536+1048576)"),
        ("1 /* 2 */ + // 3\n 4", "(1+4)"),
        ("truex", "truex"),
        ("iffy + sizeofx", "(iffy+sizeofx)"),
        ("perf", "perf"),
    ];
    for (text, expected) in table {
        assert_eq!(short(&expression(text)), expected, "{text}");
    }
}

#[test]
fn statements_are_read_as_these() {
    let count = |text: &str| statements(text).len();
    let table = [
        ("", 0),
        ("1", 1),
        ("1;", 1),
        ("$x = 1; $x", 2),
        ("@a = 1; @a[2] <<= 3; @a++; --@a;", 4),
        ("$x == 1 ? f(1) : f(2);", 1),
        ("$x[0] == 1 && $y; ", 1),
        ("if (1) { } f()", 2),
        ("if (1) { } else { } *$p; -1; &$x; ++$x", 5),
        ("{ 1 } { 2 }", 2),
        ("{ 1 } + 2;", 1),
        ("if (1) {} else if (2) {} else {}", 1),
        ("while ($x < 1) { break; continue }", 1),
        ("unroll 3 { } unroll ($x) { }", 2),
        ("for ($i : 0..10) { } for $i : @m { } for ($i : -1..$x.0) { return }", 3),
        ("return 1;", 1),
        ("let $a; let $b = 1; let $c : uint8; let $d : string[64] = \"\"; let $e : typeof($a)", 5),
        ("_ = f(); _ == 1; _;", 3),
        ("letter; format; iffy; breaker;", 4),
        ("import \"x.h\"; 1", 2),
    ];
    for (text, expected) in table {
        assert_eq!(count(text), expected, "{text}");
    }
}

#[test]
fn assignments_keep_their_operator() {
    let ops = [
        ("=", None),
        ("+=", Some(BinaryOp::Add)),
        ("-=", Some(BinaryOp::Subtract)),
        ("*=", Some(BinaryOp::Multiply)),
        ("/=", Some(BinaryOp::Divide)),
        ("%=", Some(BinaryOp::Modulo)),
        ("&=", Some(BinaryOp::BitAnd)),
        ("|=", Some(BinaryOp::BitOr)),
        ("^=", Some(BinaryOp::BitXor)),
        ("<<=", Some(BinaryOp::ShiftLeft)),
        (">>=", Some(BinaryOp::ShiftRight)),
    ];
    for place in ["$x", "@", "@m", "@m[1, 2]"] {
        for (sign, expected) in ops {
            match &statements(&format!("{place} {sign} 1;"))[0].kind {
                StmtKind::Assign { op, .. } => assert_eq!(*op, expected, "{place} {sign}"),
                other => panic!("{place} {sign}: {other:?}"),
            }
        }
    }
}

#[test]
fn loops_and_declarations_have_these_parts() {
    match &statements("for ($i : 1..2) { }")[0].kind {
        StmtKind::For { variable, over: Iterable::Range { start, end, .. }, .. } => {
            assert_eq!(
                (variable.text.as_str(), short(&start.kind), short(&end.kind)),
                ("i", "1".into(), "2".into())
            );
        }
        other => panic!("{other:?}"),
    }
    match &statements("let $p : struct S *[3];")[0].kind {
        StmtKind::Let { of: Some(of), value: None, .. } => match &of.kind {
            TypeOfKind::Type(of) => {
                assert!(
                    matches!(&of.kind, TypeKind::Array(inner, 3) if matches!(inner.kind, TypeKind::Pointer(_)))
                );
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_value_of_a_body_is_a_statement() {
    let Item::Probe(probe) = accepted("begin { if (1) { 2 } else { { 3 } } }").items.remove(0) else {
        panic!()
    };
    assert!(probe.body.value.is_none());
    let StmtKind::Expr(Expr { kind: ExprKind::If { then, otherwise: Some(otherwise), .. }, .. }) =
        &probe.body.statements[0].kind
    else {
        panic!()
    };
    assert!(then.value.is_none() && then.statements.len() == 1);
    assert!(matches!(&otherwise.kind, ExprKind::Block(block) if block.value.is_none()));
    let Item::Macro(written) = accepted("macro m() { 1; 2 }").items.remove(0) else { panic!() };
    assert!(written.body.value.is_some());
}

#[test]
fn predicates_end_before_the_body() {
    for (predicate, expected) in [
        ("/pid == 1/", "(builtin:pid==1)"),
        ("/ 8 / 4 == 2 /", "((8/4)==2)"),
        ("/@x/ // why\n", "@x"),
        ("/ f(\"/\") /", "f(\"/\")"),
        ("/(a,b).0/", "tuple(a,b).0"),
    ] {
        let Item::Probe(probe) = accepted(&format!("begin {predicate} {{ }}")).items.remove(0) else {
            panic!()
        };
        assert_eq!(short(&probe.predicate.unwrap().kind), expected, "{predicate}");
    }
}

#[test]
fn attach_points_end_where_they_should() {
    let table: [(&str, &[&str]); 8] = [
        ("begin{}", &["begin"]),
        ("begin,end{}", &["begin", "end"]),
        ("begin,\n  end,\n{}", &["begin", "end"]),
        ("begin/1/{}", &["begin"]),
        ("begin//x\n{}", &["begin"]),
        ("begin/*x*/{}", &["begin"]),
        ("uprobe:/bin/a,b:f{}", &["uprobe:/bin/a", "b:f"]),
        ("uprobe:\"/bin/a,b {\":f /1/ {}", &["uprobe:\"/bin/a,b {\":f"]),
    ];
    for (text, expected) in table {
        let (program, _) = read(text);
        let Item::Probe(probe) = &program.items[0] else { panic!() };
        let texts: Vec<&str> = probe.attach.iter().map(|point| point.text.as_str()).collect();
        assert_eq!(texts, expected, "{text}");
    }
}

#[test]
fn sections_come_in_order() {
    let program = accepted(
        "#!/usr/bin/env bpftrace\n#include <a.h>\n#define A \\\n 1\nstruct S { int x; /* } */ };\n\
         enum E { A }\ntypedef struct T { int y; } T;\nstruct __attribute__((packed)) P { int z; } __attribute__((aligned(4)));\n\
         import \"a.bt\";\nconfig = { a = 1; b = \"x\"; c = true; d = word }\nimport \"b.bt\";\n\
         let @m = hash(0x10);\nmacro m($a, @b, c) { }\nfn f($x : int32) : void { }\nbegin { }\nlet @n = lruhash(1)\nend { }",
    );
    let texts: Vec<&str> = program.c.iter().map(|c| c.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "#include <a.h>",
            "#define A \\\n 1",
            "struct S { int x; /* } */ }",
            "enum E { A }",
            "typedef struct T { int y; } T",
            "struct __attribute__((packed)) P { int z; } __attribute__((aligned(4)))",
        ]
    );
    assert_eq!(program.header.as_deref(), Some("#!/usr/bin/env bpftrace"));
    assert_eq!(
        (program.config.unwrap().entries.len(), program.imports.len(), program.items.len()),
        (4, 2, 6)
    );
}

#[test]
fn spans_are_those_of_the_text() {
    let text = "begin { $abc = (1 + f(2, 3)) * 4 ; }";
    let mut sources = Sources::default();
    let script = sources.add("stdin", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let program =
        parse_program(&sources, script, &AttachContext::default(), &mut ExprIds::default(), &mut diagnostics);
    let Item::Probe(probe) = &program.items[0] else { panic!() };
    let StmtKind::Assign { place, value, .. } = &probe.body.statements[0].kind else { panic!() };
    let ExprKind::Binary { left, right, .. } = &value.kind else { panic!() };
    let ExprKind::Binary { right: call, .. } = &left.kind else { panic!() };
    let texts = [probe.body.statements[0].span, place.span, value.span, left.span, call.span, right.span];
    let texts = texts.map(|span| sources.text(span));
    assert_eq!(
        texts,
        ["$abc = (1 + f(2, 3)) * 4", "$abc", "1 + f(2, 3)) * 4", "1 + f(2, 3)", "f(2, 3)", "4"]
    );
}

#[test]
fn every_expression_has_its_own_number() {
    use crate::syntax::ast::visit::{self, VisitMut};
    struct Ids(Vec<usize>);
    impl VisitMut for Ids {
        fn id(&mut self, id: &mut crate::syntax::ast::ExprId) {
            self.0.push(id.index());
        }
    }
    let mut program =
        accepted("begin /@x[1]/ { @a[1, 2] = $x++ + f(-1, (uint8)2); @b; let $y : typeof(1) = { 3 } }");
    let mut ids = Ids(Vec::new());
    for item in &mut program.items {
        if let Item::Probe(probe) = item {
            visit::probe_parts(&mut ids, probe);
        }
    }
    let count = ids.0.len();
    ids.0.sort_unstable();
    ids.0.dedup();
    assert_eq!(ids.0.len(), count);
    assert!(count > 15);
}

#[test]
fn one_expression_can_be_a_whole_text() {
    let one = |text: &str| {
        let mut sources = Sources::default();
        let id = sources.add("--where", text).unwrap();
        let mut diagnostics = Diagnostics::default();
        let found = parse_expression(&sources, id, &mut ExprIds::default(), &mut diagnostics);
        found.map(|expr| short(&expr.kind)).ok_or_else(|| diagnostics.render(&sources))
    };
    assert_eq!(one(" arg0 > 64 // big"), Ok("(builtin:arg0>64)".to_string()));
    assert_eq!(one("1 2"), Err("--where:1:3-4: ERROR: syntax: unexpected input\n1 2\n  ~\n".to_string()));
    assert!(one("").is_err());
}

#[test]
fn an_operator_has_its_sign() {
    for op in [UnaryOp::Not, UnaryOp::BitNot, UnaryOp::Minus, UnaryOp::Dereference] {
        let text = format!("{}$x", op.symbol());
        assert!(matches!(expression(&text), ExprKind::Unary { op: found, .. } if found == op), "{text}");
    }
}
