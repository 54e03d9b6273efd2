//! Arguments and results: by number, by name, at entries and at returns.

use super::support::{World, compiled, ran};
use crate::check::environment::{Described, Function, Held, Member, Parameter, TypeName};
use crate::ir::Context;

const INT: Described = Described::Int { size: 4, signed: true };

fn parameter(name: &str, of: Described, place: Held) -> Parameter {
    Parameter { name: name.to_owned(), of, place }
}

/// `int f(int a, char *s, double d, struct pair p, struct big b)`.
fn world() -> World {
    let pair = TypeName::Struct("pair".into());
    let member = |name: &str, offset| Member { name: name.to_owned(), offset, of: INT, bits: None };
    let double = |value: f64| value.to_bits();
    let mut world = World {
        function: Some(Function {
            parameters: vec![
                parameter("a", INT, Held::Argument(0)),
                parameter("s", Described::Pointer(Box::new(Described::Char)), Held::Argument(1)),
                parameter("d", Described::Float(8), Held::FloatRegister(0)),
                parameter("p", Described::Record(pair.clone()), Held::Argument(2)),
                parameter("q", Described::Record(pair.clone()), Held::Frame(8)),
                parameter("gone", INT, Held::Gone("it was optimized out".into())),
            ],
            result: Some(Described::Float(4)),
            returned: None,
            probe: None,
        }),
        types: vec![(pair, Described::Members { size: 8, members: vec![member("x", 0), member("y", 4)] })],
        contexts: vec![
            (Context::Argument(0), -5i32 as u32 as u64),
            (Context::Argument(1), 0x1000),
            (Context::Argument(2), 3 | 4 << 32),
            (Context::FloatRegister(0), double(2.5)),
            (Context::Frame, 0x7000),
            (Context::Result, 77),
            (Context::FloatResult, u64::from(1.5f32.to_bits())),
            (Context::Site, 9),
        ],
        ..World::default()
    };
    world.memory.insert(0x1000, b"text\0".to_vec());
    world.memory.insert(0x7008, [10i32.to_le_bytes(), 11i32.to_le_bytes()].concat());
    world
}

#[test]
fn arguments_have_their_types_and_places() {
    for (script, expected) in [
        ("print((args.a, str(args.s), args.d))", "(-5, text, 2.5)"),
        ("print(args.p); print(args.p.y)", "{ .x = 3, .y = 4 }\n4"),
        ("print(args.q.y); $q = args.q; print($q.x)", "11\n10"),
        ("print((arg0, farg0, sarg0))", "(4294967291, 2.5, 47244640266)"),
        ("@[args.a] = count()", "@[-5]: 1"),
        ("print(((struct pair *)0x7008)->y)", "11"),
    ] {
        assert_eq!(ran(&format!("uprobe:./a:f {{ {script} }}"), &world()), expected, "{script}");
    }
}

#[test]
fn all_arguments_are_one_record() {
    let printed = ran("uprobe:./a:f { print(args) }", &world());
    let expected = "{ .a = -5, .s = 0x1000, .d = 2.5, .p = { .x = 3, .y = 4 }, .q = { .x = 10, .y = 11 } }";
    assert_eq!(printed, expected);
}

#[test]
fn results_are_integers_or_floats() {
    let printed = ran("uretprobe:./a:f { print((retval, fretval)) }", &world());
    assert_eq!(printed, "(77, 1.5)");
}

#[test]
fn arguments_at_returns_are_kept_from_the_entry() {
    // The implied body at the entry runs first, as it does in the program.
    let script = "uretprobe:./a:f /arg0 == 4294967291/ { print((str(arg1), farg0, retval)) }";
    assert_eq!(ran(script, &world()), "(text, 2.5, 77)");
    let (compiled, _) = compiled(script, &world()).unwrap();
    assert_eq!(compiled.clauses.iter().filter(|clause| clause.is_implied).count(), 1);
    assert!(compiled.program.maps.iter().any(|map| map.name == "(arguments)" && map.key == 8));
}

#[test]
fn nothing_is_kept_for_returns_that_do_not_ask() {
    let (compiled, _) = compiled("uretprobe:./a:f { print(retval) }", &world()).unwrap();
    assert_eq!((compiled.clauses.len(), compiled.program.maps.len()), (1, 0));
}

#[test]
fn a_clause_is_lowered_again_for_each_function() {
    use crate::diagnostics::Diagnostics;
    use crate::lower::Compiler;
    use crate::source::Sources;
    use crate::syntax::{Options, files::NoFiles, load};

    let mut sources = Sources::default();
    let script = "uretprobe:./a:g { @ = arg0 } uprobe:./a:* { print(args.a) }";
    let source = sources.add("stdin", script).unwrap();
    let options = Options {
        attach: Default::default(),
        import_paths: Vec::new(),
        environment: Vec::new(),
        c: Default::default(),
        is_native: &crate::check::is_native,
        files: &NoFiles,
    };
    let script = load(&mut sources, source, &options, &mut Diagnostics::default()).unwrap();
    let world = world();
    let mut compiler = Compiler::new(&script, &sources, &world).unwrap();
    let clause = compiler.clauses().iter().position(|clause| clause.depends_on_function).unwrap();
    let function = |place| Function { parameters: vec![parameter("a", INT, place)], ..Function::default() };
    let body = compiler.specialise(clause, function(Held::Argument(3))).unwrap().body;
    assert!(compiler.specialise(clause, Function::default()).is_err());
    let program = compiler.finish().program;
    let printed = program.to_string();
    let (_, own) = printed.split_once(&format!("body {}\n", body.0)).unwrap();
    assert_eq!(own.trim(), "emit 1(SignExtend(32)(arg3))");
}

#[test]
fn results_have_the_type_that_all_functions_return() {
    let world = World { result: Some((INT, Held::Result)), ..world() };
    assert_eq!(ran("uretprobe:./a:f { print(retval - 100) }", &world), "-23");
    let pair = Described::Record(TypeName::Struct("pair".into()));
    let pieces = Held::Pieces(vec![(Held::Result, 4), (Held::FloatResult, 4)]);
    let world = World { result: Some((pair, pieces)), ..world };
    assert_eq!(ran("uretprobe:./a:f { print(retval.x) }", &world), "77");
}

#[test]
fn a_parameter_that_is_nowhere_is_refused_with_the_reason() {
    let told = compiled("uprobe:./a:f { print(args.gone) }", &world()).unwrap_err();
    assert!(told.contains("Cannot read function parameter 'gone': it was optimized out"), "{told}");
}

#[test]
fn names_of_the_programs_enums_are_numbers() {
    let world = World { enumerator: Some(("BLUE", 4)), ..world() };
    assert_eq!(ran("uprobe:./a:f { print(BLUE + 1) }", &world), "5");
}

#[test]
fn symbols_are_asked_for_by_name() {
    let (compiled, _) = compiled("uprobe:./a:f { print(*uaddr(\"counter\")) }", &world()).unwrap();
    assert_eq!(compiled.program.symbols.len(), 1);
    assert_eq!(compiled.program.symbols[0].name, "counter");
    assert_eq!(compiled.program.symbols[0].target.as_deref(), Some("./a"));
}

#[test]
fn a_clause_says_what_it_depends_on() {
    let depends = |script: &str| compiled(script, &world()).unwrap().0.clauses[0].depends_on_function;
    assert!(depends("uprobe:./a:f { print(args.a) }"));
    assert!(!depends("uprobe:./a:f { print(arg0) }"));
}

#[test]
fn clauses_are_apart_by_the_kind_of_place() {
    let (compiled, _) =
        compiled("begin, end, uprobe:./a:f, uprobe:./a:g, uretprobe:./a:f { print(probe) }", &world())
            .unwrap();
    let kinds: Vec<String> =
        compiled.clauses.iter().map(|clause| format!("{:?} {}", clause.kind, clause.points.len())).collect();
    assert_eq!(kinds, ["Begin 1", "End 1", "Entry 2", "Return 1"]);
}

/// In 32-bit programs pointers have 4 bytes, wherever they lie, C's types the sizes of that machine, and all arguments are on the stack.
#[test]
fn narrow_programs_have_narrow_pointers_and_types() {
    let mut world = World {
        is_narrow: true,
        contexts: vec![
            (Context::Argument(0), 0x9000_1000),
            (Context::Argument(7), 7),
            (Context::Frame, 0x7000),
            (Context::Register(4), 0x7000),
            (Context::Register(6), 66),
        ],
        ..World::default()
    };
    // kind, next, big (at a multiple of 4), n, words.
    let own = |kind: u8, next: u32, big: i64, n: i32| {
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(next.to_le_bytes());
        bytes.extend(big.to_le_bytes());
        bytes.extend(n.to_le_bytes());
        bytes.extend([0x3000u32, 0x3010, 0].map(u32::to_le_bytes).concat());
        bytes
    };
    world.memory.insert(0x9000_1000, own(1, 0x9000_2000, 5_000_000_000, -3));
    world.memory.insert(0x9000_2000, own(2, 0, -1, 9));
    world.memory.insert(0x3000, b"one\0".to_vec());
    world.memory.insert(0x3010, b"two\0".to_vec());
    world.memory.insert(0x7004, [1u32, 0xffff_ffff].map(u32::to_le_bytes).concat());
    let own = "struct own { char kind; struct own *next; long long big; long n; char *words[3]; };";
    for (script, expected) in [
        (
            "print((sizeof(struct own), sizeof(struct own *), sizeof(size_t), sizeof(uint64)))",
            "(32, 4, 4, 8)",
        ),
        ("print((offsetof(struct own, big), offsetof(struct own, words)))", "(8, 20)"),
        ("$o = (struct own *)arg0; print(($o->next, $o->big, $o->n))", "(0x90002000, 5000000000, -3)"),
        ("$o = (struct own *)arg0; print(($o->next->kind, $o->next->next, $o->next->n))", "(2, 0x0, 9)"),
        ("$o = (struct own *)arg0; $o = $o->next; @[$o] = count()", "@[0x90002000]: 1"),
        ("print(((struct own *)arg0)->next + 1)", "0x90002020"),
        ("@next = ((struct own *)arg0)->next; print(@next->n); clear(@next)", "9"),
        (
            "print(*((struct own *)arg0 + 0).next)",
            "{ .kind = 2, .next = 0x0, .big = -1, .n = 9, .words = [0x3000,0x3010,0x0] }",
        ),
        ("$o = (struct own *)arg0; print(str($o->words[1]))", "two"),
        ("join(arg0 + 20)", "one two"),
        ("print((sarg0, sarg1, arg7, reg(\"si\"), reg(\"sp\") == 0x7000))", "(1, 4294967295, 7, 66, true)"),
        ("print(arch)", "i386"),
    ] {
        assert_eq!(ran(&format!("{own} uprobe:./a:f {{ {script} }}"), &world), expected, "{script}");
    }
}
