//! What is printed is read as the same tree, for trees and texts of every kind.

use proptest::prelude::*;

use super::*;
use crate::diagnostics::Diagnostics;
use crate::syntax::ast::*;
use crate::syntax::attach::AttachContext;
use crate::syntax::parse_program;

fn read(text: &str) -> (Program, Sources, Diagnostics) {
    let mut sources = Sources::default();
    let script = sources.add("stdin", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let program =
        parse_program(&sources, script, &AttachContext::default(), &mut ExprIds::default(), &mut diagnostics);
    (program, sources, diagnostics)
}

fn formatted(text: &str) -> String {
    let (program, sources, diagnostics) = read(text);
    assert_eq!(diagnostics.render(&sources), "", "{text}");
    let printed = print(&program, &sources);
    let (again, sources, diagnostics) = read(&printed);
    assert_eq!(diagnostics.render(&sources), "", "{printed}");
    assert_eq!(again, program, "{printed}");
    assert_eq!(print(&again, &sources), printed, "formatting twice changes nothing");
    printed
}

#[test]
fn parentheses_stand_where_they_are_needed() {
    let table = [
        ("(1).0", "(1).0"),
        ("((1)+(2))*3", "(1 + 2) * 3"),
        ("1-(2-3)", "1 - (2 - 3)"),
        ("(1-2)-3", "1 - 2 - 3"),
        ("-(-1)", "-(-1)"),
        ("- --$x", "-(--$x)"),
        ("(a ? b : c) ? d : e ? f : g", "(a ? b : c) ? d : e ? f : g"),
        ("$a ?: $b", "$a ?: $b"),
        ("((struct foo*)$x)->y[0].1", "((struct foo*)$x)->y[0].1"),
        ("(uint8)({1})", "(uint8)({\n    1\n  })"),
        ("(int32)(++$x)", "(int32)(++$x)"),
        ("(typeof($x))1", "(typeof($x))1"),
        ("@[(1,2)]", "@[1, 2]"),
        ("@[(1,)]", "@[(1,)]"),
        ("(@x)[1]", "(@x)[1]"),
        ("sizeof((a[1]))", "sizeof((a[1]))"),
        ("sizeof(a[1])", "sizeof(a[1])"),
        ("*$p == 1 && !$q", "*$p == 1 && !$q"),
        ("comptime (1 + 2)", "comptime (1 + 2)"),
        ("(x=1, y=(2,))", "(x=1, y=(2,))"),
        ("\"\\x01\\\"\\\\\\377ä\"", "\"\\x01\\\"\\\\\\xffä\""),
        ("1 / ({2})", "1 / ({\n    2\n  })"),
    ];
    for (text, expected) in table {
        let printed = formatted(&format!("begin {{ f({text}) }}"));
        assert_eq!(printed, format!("begin\n{{\n  f({expected});\n}}\n"), "{text}");
    }
}

#[test]
fn statements_have_one_form() {
    let text = "begin{if(1){2;}else if(3){4}else{5} while(1){break;continue} unroll(3){@x++} for($i:0..(1+2)){$i}\n\
                for $kv:@m{return;} let $a;let $b:int32=1;let $c:typeof($b); @y[1]+=2; _=f(1); $z=if(1){2}else{3}; {1} }";
    let expected = "begin
{
  if (1) {
    2;
  } else if (3) {
    4;
  } else {
    5;
  }
  while (1) {
    break;
    continue;
  }
  unroll (3) {
    @x++;
  }
  for ($i : 0..(1 + 2)) {
    $i;
  }
  for ($kv : @m) {
    return;
  }
  let $a;
  let $b : int32 = 1;
  let $c : typeof($b);
  @y[1] += 2;
  _ = f(1);
  $z = if (1) {
    2
  } else {
    3
  };
  {
    1;
  }
}
";
    assert_eq!(formatted(text), expected);
}

#[test]
fn a_whole_script_keeps_its_comments_and_gaps() {
    let text = "#!/usr/bin/env bpftrace
/*
 * What it is
 * about
 */
#include <a.h>
struct S { int x; /* inside */ } __attribute__((packed));


config = { stack_mode=perf; str_trunc_trailer=\"\\n\" // why
}
import \"x.bt\";
let @m=hash(0x10);
macro m($v,@m,e){e+1}   // behind
fn f($x:int32,$y:string[4]):void{return 1;}
// before
uprobe:/bin/x:f,begin /* within */ /pid==1/ {
  // first

  @x = 1; // second


  /* third */ @y = 2;
  // last
}
// end
";
    let expected = "#!/usr/bin/env bpftrace
// What it is
// about
#include <a.h>
struct S { int x; /* inside */ } __attribute__((packed));

config = {
  stack_mode = perf;
  str_trunc_trailer = \"\\n\"; // why
}
import \"x.bt\";
let @m = hash(16);
macro m($v, @m, e)
{
  e + 1
} // behind
fn f($x : int32, $y : string[4]) : void
{
  return 1;
}
// before
// within
uprobe:/bin/x:f,
begin
/pid == 1/
{
  // first

  @x = 1; // second

  // third
  @y = 2;
  // last
}
// end
";
    assert_eq!(formatted(text), expected);
}

fn name() -> impl Strategy<Value = Name> {
    word().prop_map(|text| Name { text, span: span() })
}

fn word() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["a", "b", "foo", "x1", "_u", "string_t"]).prop_map(str::to_string)
}

fn span() -> Span {
    let mut sources = Sources::default();
    Span::new(sources.add("none", "").unwrap(), 0, 0)
}

fn expr(kind: ExprKind) -> Expr {
    Expr { id: ExprIds::default().fresh(), span: span(), kind }
}

fn a_type() -> impl Strategy<Value = Type> {
    let base = prop_oneof![
        Just(TypeKind::Named("uint64".to_string())),
        Just(TypeKind::Named("string".to_string())),
        word().prop_map(TypeKind::Struct),
        word().prop_map(TypeKind::Union),
        word().prop_map(TypeKind::Enum),
    ];
    (base, proptest::collection::vec(proptest::option::of(0_u64..9), 0..3)).prop_map(|(kind, suffixes)| {
        suffixes.into_iter().fold(Type { kind, span: span() }, |inner, suffix| {
            let inner = Box::new(inner);
            let kind =
                suffix.map_or(TypeKind::Pointer(inner.clone()), |length| TypeKind::Array(inner, length));
            Type { kind, span: span() }
        })
    })
}

fn type_of(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Box<TypeOf>> {
    let kind = prop_oneof![a_type().prop_map(TypeOfKind::Type), inner.prop_map(TypeOfKind::Expr)];
    kind.prop_map(|kind| Box::new(TypeOf { kind, span: span() })).boxed()
}

fn place(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Place> {
    let kind = prop_oneof![
        word().prop_map(PlaceKind::Variable),
        prop_oneof![Just(String::new()), word()].prop_map(PlaceKind::Map),
        (name(), inner).prop_map(|(map, key)| PlaceKind::MapElement { map, key: Box::new(key) }),
    ];
    kind.prop_map(|kind| Place { id: ExprIds::default().fresh(), span: span(), kind }).boxed()
}

fn binary_op() -> impl Strategy<Value = BinaryOp> {
    use BinaryOp::*;
    proptest::sample::select(vec![
        LogicalOr,
        LogicalAnd,
        BitOr,
        BitXor,
        BitAnd,
        Equal,
        NotEqual,
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
        ShiftLeft,
        ShiftRight,
        Add,
        Subtract,
        Multiply,
        Divide,
        Modulo,
    ])
}

fn leaf() -> BoxedStrategy<Expr> {
    prop_oneof![
        any::<u64>().prop_map(|value| ExprKind::Integer(Integer { value, text: value.to_string() })),
        any::<bool>().prop_map(ExprKind::Boolean),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(ExprKind::String),
        (1_u64..9).prop_map(ExprKind::Positional),
        Just(ExprKind::PositionalCount),
        word().prop_map(ExprKind::Identifier),
        Just(ExprKind::Builtin("pid".to_string())),
        word().prop_map(ExprKind::Variable),
        word().prop_map(ExprKind::Map),
        Just(ExprKind::Map(String::new())),
        name().prop_map(ExprKind::VariableAddress),
        name().prop_map(ExprKind::MapAddress),
    ]
    .prop_map(expr)
    .boxed()
}

fn block(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Block> {
    let statements = proptest::collection::vec(statement(inner.clone()), 0..3);
    (statements, proptest::option::of(inner))
        .prop_map(|(statements, value)| Block { statements, value: value.map(Box::new), span: span() })
        .boxed()
}

/// A body, as the parser makes it: without a value, also below.
fn body(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Block> {
    proptest::collection::vec(statement(inner), 0..3)
        .prop_map(|statements| Block { statements, value: None, span: span() })
        .boxed()
}

fn statement(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Stmt> {
    let e = || inner.clone();
    // Where a value is not used, the parser makes statements of the values of blocks.
    let used =
        e().prop_filter("has blocks", |expr| !matches!(expr.kind, ExprKind::If { .. } | ExprKind::Block(_)));
    let over = prop_oneof![
        name().prop_map(Iterable::Map),
        (e(), e()).prop_map(|(start, end)| Iterable::Range {
            start: Box::new(start),
            end: Box::new(end),
            span: span()
        }),
    ];
    let kind = prop_oneof![
        used.prop_map(StmtKind::Expr),
        (name(), proptest::option::of(type_of(e())), proptest::option::of(e()))
            .prop_map(|(variable, of, value)| StmtKind::Let { variable, of: of.map(|of| *of), value }),
        (place(e()), e()).prop_map(|(place, value)| StmtKind::Assign { place, op: None, value }),
        (
            place(e()),
            proptest::sample::select(vec![BinaryOp::Add, BinaryOp::ShiftLeft, BinaryOp::BitXor]),
            e()
        )
            .prop_map(|(place, op, value)| StmtKind::Assign { place, op: Some(op), value }),
        e().prop_map(StmtKind::Discard),
        Just(StmtKind::Break),
        Just(StmtKind::Continue),
        proptest::option::of(e()).prop_map(StmtKind::Return),
        (name(), over).prop_map(|(variable, over)| StmtKind::For {
            variable,
            over,
            body: Block { statements: Vec::new(), value: None, span: span() }
        }),
        e().prop_map(|condition| StmtKind::While {
            condition,
            body: Block { statements: Vec::new(), value: None, span: span() }
        }),
    ];
    kind.prop_map(|kind| Stmt { kind, span: span() }).boxed()
}

fn composed(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Expr> {
    let e = || inner.clone();
    let b = || e().prop_map(Box::new);
    let list = || proptest::collection::vec(e(), 0..3);
    let fields = proptest::sample::subsequence(vec!["a", "b", "foo"], 1..3).prop_flat_map({
        let inner = inner.clone();
        move |names| {
            let count = names.len();
            (Just(names), proptest::collection::vec(inner.clone(), count))
        }
    });
    let unary =
        proptest::sample::select(vec![UnaryOp::Not, UnaryOp::BitNot, UnaryOp::Minus, UnaryOp::Dereference]);
    let argument = prop_oneof![4 => e(), 1 => type_of(e()).prop_map(|of| expr(ExprKind::TypeArg(of)))];
    prop_oneof![
        (name(), proptest::collection::vec(argument, 0..3))
            .prop_map(|(name, arguments)| ExprKind::Call { name, arguments }),
        type_of(e()).prop_map(ExprKind::Sizeof),
        type_of(e()).prop_map(ExprKind::Typeinfo),
        (type_of(e()), proptest::collection::vec(name(), 1..3))
            .prop_map(|(of, fields)| ExprKind::Offsetof { of, fields }),
        (name(), b()).prop_map(|(map, key)| ExprKind::MapElement { map, key }),
        (binary_op(), b(), b()).prop_map(|(op, left, right)| ExprKind::Binary { op, left, right }),
        (unary, b()).prop_map(|(op, operand)| ExprKind::Unary { op, operand }),
        (place(e()), any::<bool>(), any::<bool>()).prop_map(|(place, up, before)| ExprKind::Step {
            place: Box::new(place),
            step: if up { Step::Up } else { Step::Down },
            order: if before { StepOrder::Before } else { StepOrder::After },
        }),
        (b(), any::<bool>(), name()).prop_map(|(of, dot, name)| ExprKind::Field {
            of,
            access: if dot { Access::Dot } else { Access::Arrow },
            name
        }),
        (b(), 0_u64..9).prop_map(|(of, index)| ExprKind::TupleIndex { of, index }),
        (b(), b()).prop_map(|(of, index)| ExprKind::Index { of, index }),
        (type_of(e()), b()).prop_map(|(to, value)| ExprKind::Cast { to, value }),
        list().prop_map(ExprKind::Tuple),
        fields.prop_map(|(names, values)| {
            let field = |(name, value): (&str, Expr)| RecordField {
                name: Name { text: name.to_string(), span: span() },
                value,
                span: span(),
            };
            ExprKind::Record(names.into_iter().zip(values).map(field).collect())
        }),
        (b(), proptest::option::of(b()), b()).prop_map(|(condition, then, otherwise)| ExprKind::Ternary {
            condition,
            then,
            otherwise
        }),
        (b(), block(e()), proptest::option::of(block(e()))).prop_map(|(condition, then, otherwise)| {
            ExprKind::If {
                condition,
                then,
                otherwise: otherwise.map(|block| Box::new(expr(ExprKind::Block(block)))),
            }
        }),
        block(e()).prop_map(ExprKind::Block),
        b().prop_map(ExprKind::Comptime),
    ]
    .prop_map(expr)
    .boxed()
}

fn expression() -> BoxedStrategy<Expr> {
    leaf().prop_recursive(4, 24, 3, |inner| composed(inner.boxed())).boxed()
}

fn program() -> impl Strategy<Value = Program> {
    let predicate = proptest::option::of(expression());
    (predicate, body(expression()), block(expression())).prop_map(|(predicate, body, value)| {
        let attach = AttachPoint {
            text: "begin".to_string(),
            name: None,
            points: vec![ProbePoint::Begin],
            span: span(),
        };
        let probe = Probe { attach: vec![attach], predicate, body, span: span() };
        let name = Name { text: "m".to_string(), span: span() };
        let written = Macro { name, parameters: Vec::new(), body: value, span: span() };
        Program {
            header: None,
            c: Vec::new(),
            config: None,
            imports: Vec::new(),
            items: vec![Item::Probe(probe), Item::Macro(written)],
            comments: Vec::new(),
            span: span(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_tree_is_read_as_the_same(program in program()) {
        let mut sources = Sources::default();
        sources.add("none", "").unwrap();
        let printed = print(&program, &sources);
        let (again, sources, diagnostics) = read(&printed);
        prop_assert_eq!(diagnostics.render(&sources), "", "{}", printed);
        prop_assert_eq!(again, program, "{}", printed);
    }
}
