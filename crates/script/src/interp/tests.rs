//! Each operation and each statement, at the edges of what it works on.

use super::maps::Tables;
use super::*;
use crate::arbitrary;
use proptest::prelude::*;

/// A hit with bytes of memory at one address, nothing elsewhere, and a context that says what it was asked.
#[derive(Default)]
struct At {
    address: u64,
    memory: Vec<u8>,
    signals: Vec<i64>,
    delays: Vec<u64>,
    time: u64,
}

impl Hit for At {
    fn context(&mut self, what: Context) -> u64 {
        match what {
            Context::Argument(number) => 100 + u64::from(number),
            Context::Time(ClockKind::Tai) => self.time,
            _ => 5,
        }
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        assert!(address.checked_add(into.len() as u64 - 1).is_some(), "a read around the end");
        let Some(from) = address.checked_sub(self.address) else { return 0 };
        let there = usize::try_from(from).ok().and_then(|from| self.memory.get(from..)).unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        // What could not be read does not matter.
        into[length..].fill(0xee);
        length
    }

    fn stack(&mut self, frames: u8, by: StackWalk) -> u64 {
        u64::from(frames) + if by == StackWalk::Tables { 1000 } else { 2000 }
    }

    fn thread_name(&mut self) -> [u8; 16] {
        *b"thread\0\0\0\0\0\0\0\0\0\0"
    }

    fn signal(&mut self, signal: i64) {
        self.signals.push(signal);
    }

    fn delay(&mut self, nanoseconds: u64) {
        self.delays.push(nanoseconds);
    }
}

#[derive(Default)]
struct Told(Vec<(MessageId, Vec<Vec<u8>>)>);

impl Sink for Told {
    fn emit(&mut self, _: &mut dyn Maps, message: MessageId, parts: &[&[u8]]) {
        self.0.push((message, parts.iter().map(|part| part.to_vec()).collect()));
    }
}

const INTS: u32 = 4;

/// A program with 4 integers (0 to 3), a double (4), 64 bytes of scratch, the constant `hay\0` and a message of one word.
fn program(code: Vec<Statement>, maps: Vec<Map>) -> Program {
    let mut locals = vec![Scalar::Int; INTS as usize];
    locals.push(Scalar::Float);
    let program = Program {
        maps,
        constants: vec![b"hay\0".to_vec()],
        messages: vec![vec![PartKind::Word], vec![PartKind::Bytes(3), PartKind::Text(8)]],
        bodies: vec![Body { locals, scratch: 64, code }],
        fuel: 10,
        ..Program::default()
    };
    assert_eq!(verify::verify(&program), Ok(()));
    program
}

/// Runs statements and tells the four integers and the scratch.
fn after(code: Vec<Statement>, hit: &mut At) -> ([i64; 4], Vec<u8>) {
    let words = (0..INTS).map(|index| Part::Word(Expression::Local(LocalId(index))));
    let mut code = code;
    code.push(Statement::Emit {
        message: MessageId(2),
        parts: words.chain([Part::Bytes(Place::Scratch(0), 64)]).collect(),
    });
    let mut locals = vec![Scalar::Int; INTS as usize];
    locals.push(Scalar::Float);
    let program = Program {
        constants: vec![b"hay\0".to_vec()],
        messages: vec![
            vec![],
            vec![],
            vec![PartKind::Word, PartKind::Word, PartKind::Word, PartKind::Word, PartKind::Bytes(64)],
        ],
        bodies: vec![Body { locals, scratch: 64, code }],
        fuel: 10,
        ..Program::default()
    };
    assert_eq!(verify::verify(&program), Ok(()));
    let (mut maps, mut told) = (Tables::new(&program), Told::default());
    run(&program, BodyId(0), Host { hit, maps: &mut maps, sink: &mut told });
    let (_, parts) = told.0.pop().expect("a message");
    let word = |index: usize| i64::from_le_bytes(parts[index].as_slice().try_into().expect("a word"));
    ([word(0), word(1), word(2), word(3)], parts[4].clone())
}

fn value(expression: Expression) -> i64 {
    after(vec![Statement::Set(LocalId(0), expression)], &mut At::default()).0[0]
}

fn int(value: i64) -> Expression {
    Expression::Int(value)
}

fn boxed(value: i64) -> Box<Expression> {
    Box::new(int(value))
}

fn float(value: f64) -> Box<Expression> {
    Box::new(Expression::Float(value))
}

fn local(index: u32) -> Expression {
    Expression::Local(LocalId(index))
}

#[test]
fn unary_operations() {
    use Unary::*;
    for (operation, x, expected) in [
        (Negate, 5, -5),
        (Negate, i64::MIN, i64::MIN),
        (Not, 0, -1),
        (IsZero, 0, 1),
        (IsZero, -1, 0),
        (SignExtend(8), 0x1ff, -1),
        (SignExtend(8), 0x17f, 0x7f),
        (SignExtend(16), 0x8000, -0x8000),
        (SignExtend(32), 0x1_8000_0000, -0x8000_0000),
        (ZeroExtend(8), -1, 0xff),
        (ZeroExtend(16), -1, 0xffff),
        (ZeroExtend(32), -1, 0xffff_ffff),
        (SwapBytes(16), 0x77_1234, 0x3412),
        (SwapBytes(32), 0x77_1234_5678, 0x7856_3412),
        (SwapBytes(64), 0x0102_0304_0506_0708, 0x0807_0605_0403_0201),
        (LeadingZeros, 0, 64),
        (LeadingZeros, 1, 63),
        (LeadingZeros, -1, 0),
    ] {
        assert_eq!(value(Expression::Unary(operation, boxed(x))), expected, "{operation:?} {x}");
    }
    for (operation, x, expected) in [
        (ToInt, 2.9, 2),
        (ToInt, -2.9, -2),
        (ToInt, f64::NAN, 0),
        (ToInt, 1e300, i64::MAX),
        (ToInt, -1e300, i64::MIN),
        (FloatBits, 1.0, 0x3ff0_0000_0000_0000),
        (FloatBits, -0.0, i64::MIN),
    ] {
        assert_eq!(value(Expression::Unary(operation, float(x))), expected, "{operation:?} {x}");
    }
    let bits = |inner: Expression| value(Expression::Unary(FloatBits, Box::new(inner)));
    for (operation, x, expected) in [
        (ToFloat, -1, -1.0),
        (UnsignedToFloat, -1, 18_446_744_073_709_551_615.0),
        (BitsFloat, 0x4000_0000_0000_0000, 2.0),
        (SingleBitsFloat, 0x77_3fc0_0000, 1.5),
    ] {
        let found = bits(Expression::Unary(operation, boxed(x)));
        assert_eq!(f64::from_bits(found as u64), expected, "{operation:?} {x}");
    }
    let negated = bits(Expression::Unary(FloatNegate, float(0.0)));
    assert_eq!(negated, i64::MIN);
}

#[test]
fn binary_operations() {
    use Binary::*;
    const MIN: i64 = i64::MIN;
    const MAX: i64 = i64::MAX;
    for (operation, left, right, expected) in [
        (Add, MAX, 1, MIN),
        (Subtract, MIN, 1, MAX),
        (Multiply, MAX, 2, -2),
        (Divide, -7, 2, -3),
        (Divide, 7, 0, 0),
        (Divide, MIN, -1, MIN),
        (UnsignedDivide, -1, 2, MAX),
        (UnsignedDivide, -1, 0, 0),
        (Remainder, -7, 3, -1),
        (Remainder, 7, 0, 0),
        (Remainder, MIN, -1, 0),
        (UnsignedRemainder, -1, 10, 5),
        (UnsignedRemainder, -1, 0, 0),
        (And, 12, 10, 8),
        (Or, 12, 10, 14),
        (Xor, 12, 10, 6),
        (ShiftLeft, 1, 63, MIN),
        (ShiftLeft, 1, 64, 1),
        (ShiftLeft, 1, -1, MIN),
        (ShiftRight, -1, 63, 1),
        (ShiftRight, -1, 65, MAX),
        (SignedShiftRight, -8, 1, -4),
        (SignedShiftRight, MIN, 127, -1),
        (Equal, 3, 3, 1),
        (Equal, 3, 4, 0),
        (NotEqual, 3, 4, 1),
        (Less, -1, 0, 1),
        (Less, 0, 0, 0),
        (LessOrEqual, 0, 0, 1),
        (LessOrEqual, 1, 0, 0),
        (UnsignedLess, -1, 0, 0),
        (UnsignedLess, 0, -1, 1),
        (UnsignedLessOrEqual, -1, -1, 1),
        (UnsignedLessOrEqual, -1, 1, 0),
    ] {
        let found = value(Expression::Binary(operation, boxed(left), boxed(right)));
        assert_eq!(found, expected, "{left} {operation:?} {right}");
    }
    const NAN: f64 = f64::NAN;
    for (operation, left, right, expected) in [
        (FloatEqual, 0.0, -0.0, 1),
        (FloatEqual, NAN, NAN, 0),
        (FloatNotEqual, NAN, NAN, 1),
        (FloatNotEqual, 1.0, 1.0, 0),
        (FloatLess, 1.0, 2.0, 1),
        (FloatLess, NAN, 2.0, 0),
        (FloatLessOrEqual, 2.0, 2.0, 1),
        (FloatLessOrEqual, 2.0, NAN, 0),
    ] {
        let found = value(Expression::Binary(operation, float(left), float(right)));
        assert_eq!(found, expected, "{left} {operation:?} {right}");
    }
    for (operation, left, right, expected) in [
        (FloatAdd, 0.5, 0.25, 0.75),
        (FloatSubtract, 0.5, 0.75, -0.25),
        (FloatMultiply, 1.5, -2.0, -3.0),
        (FloatDivide, 1.0, 0.0, f64::INFINITY),
    ] {
        let found = Expression::Binary(operation, float(left), float(right));
        let bits = value(Expression::Unary(Unary::FloatBits, Box::new(found)));
        assert_eq!(f64::from_bits(bits as u64), expected, "{left} {operation:?} {right}");
    }
}

#[test]
fn selections_and_what_is_known_of_the_hit() {
    let select = |condition| value(Expression::Select(boxed(condition), boxed(1), boxed(2)));
    assert_eq!((select(0), select(1), select(-1)), (2, 1, 1));
    assert_eq!(value(Expression::Context(Context::Argument(3))), 103);
}

#[test]
fn an_index_beyond_a_place_counts_as_the_last_that_fits() {
    for (index, expected) in [(0, 8), (5, 13), (12, 20), (13, 20), (i64::MAX, 20), (-1, 8), (i64::MIN, 8)] {
        let to = Place::Indexed { offset: 8, size: 16, index: boxed(index) };
        let store = Statement::Store { to, as_: Width::Unsigned(4), value: int(-1) };
        let (_, scratch) = after(vec![store], &mut At::default());
        let written: Vec<usize> = (0..64).filter(|at| scratch[*at] != 0).collect();
        assert_eq!(written, (expected..expected + 4).collect::<Vec<usize>>(), "index {index}");
    }
}

#[test]
fn an_index_into_a_constant_stays_in_it() {
    for (index, expected) in
        [(0, b"hay"), (1, b"ay\0"), (2, b"ay\0"), (i64::MAX, b"ay\0"), (-1, b"hay"), (i64::MIN, b"hay")]
    {
        let from = Place::IndexedConstant { of: ConstantId(0), index: boxed(index) };
        let (_, scratch) =
            after(vec![Statement::Copy { to: Place::Scratch(0), from, size: 3 }], &mut At::default());
        assert_eq!(&scratch[..3], expected, "index {index}");
    }
}

#[test]
fn scalars_in_memory_have_their_widths() {
    for (as_, stored, expected) in [
        (Width::Unsigned(1), -2, 0xfe),
        (Width::Unsigned(2), -2, 0xfffe),
        (Width::Unsigned(4), -2, 0xffff_fffe),
        (Width::Unsigned(8), -2, -2),
        (Width::Signed(1), 0x180, -128),
        (Width::Signed(2), 0x1_8000, -0x8000),
        (Width::Signed(4), 0x1_8000_0000, -0x8000_0000),
        (Width::Signed(8), i64::MIN, i64::MIN),
    ] {
        let code = vec![
            Statement::Store { to: Place::Scratch(3), as_, value: int(stored) },
            Statement::Set(LocalId(0), Expression::Load { from: Place::Scratch(3), as_ }),
        ];
        let (ints, scratch) = after(code, &mut At::default());
        assert_eq!(ints[0], expected, "{as_:?}");
        assert!(scratch[3 + as_.size() as usize..].iter().all(|byte| *byte == 0), "{as_:?}");
    }
    for (as_, stored, expected) in [
        (Width::Float(8), 0.1, 0.1),
        (Width::Float(4), 0.1, f64::from(0.1_f32)),
        (Width::Float(4), 1e300, f64::INFINITY),
    ] {
        let load = Expression::Load { from: Place::Scratch(0), as_ };
        let code = vec![
            Statement::Store { to: Place::Scratch(0), as_, value: *float(stored) },
            Statement::Set(LocalId(0), Expression::Unary(Unary::FloatBits, Box::new(load))),
        ];
        let (ints, _) = after(code, &mut At::default());
        assert_eq!(f64::from_bits(ints[0] as u64), expected, "{as_:?}");
    }
}

#[test]
fn bytes_are_copied_and_zeroed() {
    let code = vec![
        Statement::Copy { to: Place::Scratch(1), from: Place::Constant(ConstantId(0)), size: 3 },
        Statement::Copy { to: Place::Scratch(5), from: Place::Scratch(0), size: 4 },
        Statement::Zero { to: Place::Scratch(2), size: 1 },
    ];
    let (_, scratch) = after(code, &mut At::default());
    assert_eq!(&scratch[..10], b"\0h\0y\0\0hay\0");
}

fn at(address: u64, memory: &[u8]) -> At {
    At { address, memory: memory.to_vec(), ..At::default() }
}

#[test]
fn scalars_of_foreign_memory() {
    let bytes = [0xff, 0x80, 0, 0, 0, 0, 0, 0x80, 1];
    for (from, as_, expected, ok) in [
        (0x1000, Width::Unsigned(1), 0xff, 1),
        (0x1000, Width::Signed(1), -1, 1),
        (0x1000, Width::Signed(2), 0x80ff_u16 as i16 as i64, 1),
        (0x1001, Width::Unsigned(8), 0x0180_0000_0000_0080, 1),
        // The last byte is not there.
        (0x1002, Width::Unsigned(8), 0, 0),
        (0xfff, Width::Unsigned(1), 0, 0),
        (0, Width::Unsigned(8), 0, 0),
        (-4, Width::Unsigned(8), 0, 0),
        (-1, Width::Unsigned(1), 0, 0),
    ] {
        let read = Statement::Read { into: LocalId(0), from: int(from), as_, ok: Some(LocalId(1)) };
        let code = vec![Statement::Set(LocalId(0), int(7)), read];
        let (ints, _) = after(code, &mut at(0x1000, &bytes));
        assert_eq!((ints[0], ints[1]), (expected, ok), "{from:#x} {as_:?}");
    }
    // Up to the last byte of the address space.
    let read =
        Statement::Read { into: LocalId(0), from: int(-8), as_: Width::Unsigned(8), ok: Some(LocalId(1)) };
    let (ints, _) = after(vec![read], &mut at(u64::MAX - 7, &[1; 8]));
    assert_eq!((ints[0], ints[1]), (0x0101_0101_0101_0101, 1));
}

fn filled() -> Statement {
    Statement::Store { to: Place::Scratch(0), as_: Width::Unsigned(8), value: int(-1) }
}

#[test]
fn bytes_of_foreign_memory() {
    for (from, size, length, expected, ok) in [
        (0x1000, 4, 4, *b"abcd\xff\xff\xff\xff", 1),
        (0x1000, 4, 2, *b"ab\0\0\xff\xff\xff\xff", 1),
        (0x1000, 4, -1, *b"abcd\xff\xff\xff\xff", 1),
        (0x1000, 4, 0, *b"\0\0\0\0\xff\xff\xff\xff", 1),
        (0x1002, 4, 4, *b"cd\0\0\xff\xff\xff\xff", 0),
        (0x9000, 4, 4, *b"\0\0\0\0\xff\xff\xff\xff", 0),
        (-1, 4, 4, *b"\0\0\0\0\xff\xff\xff\xff", 0),
    ] {
        let read = Statement::ReadBytes {
            to: Place::Scratch(0),
            size,
            from: int(from),
            length: int(length),
            ok: Some(LocalId(0)),
        };
        let (ints, scratch) = after(vec![filled(), read], &mut at(0x1000, b"abcd"));
        assert_eq!((&scratch[..8], ints[0]), (expected.as_slice(), ok), "{from:#x} {length}");
    }
}

#[test]
fn strings_of_foreign_memory() {
    for (from, size, most, expected, length) in [
        (0x1000, 8, 8, *b"hello\0\0\0", 5),
        (0x1000, 4, 8, *b"hel\0\xff\xff\xff\xff", 3),
        (0x1000, 8, 4, *b"hel\0\0\0\0\0", 3),
        (0x1000, 6, 6, *b"hello\0\xff\xff", 5),
        (0x1000, 8, 1, [0; 8], 0),
        (0x1000, 8, 0, [0; 8], 0),
        (0x1005, 8, 8, [0; 8], 0),
        // It ends in memory that is not there.
        (0x1006, 8, 8, *b"end\0\0\0\0\0", 3),
        (0x1009, 8, 8, [0; 8], -1),
        (0, 8, -1, [0; 8], -1),
        (-1, 8, 8, [0; 8], -1),
    ] {
        let read = Statement::ReadString {
            to: Place::Scratch(0),
            size,
            from: int(from),
            most: int(most),
            length: Some(LocalId(0)),
        };
        let (ints, scratch) = after(vec![filled(), read], &mut at(0x1000, b"hello\0end"));
        assert_eq!((&scratch[..8], ints[0]), (expected.as_slice(), length), "{from:#x} {size} {most}");
    }
}

#[test]
fn a_long_string_is_read_in_steps() {
    let mut long = vec![b'x'; 700];
    long.push(0);
    for (memory, size, expected) in [(&long[..], 1000, 700), (&long[..600], 1000, 600), (&long[..], 513, 512)]
    {
        let read = Statement::ReadString {
            to: Place::Scratch(0),
            size,
            from: int(0x1000),
            most: int(-1),
            length: Some(LocalId(0)),
        };
        let program = Program {
            messages: vec![vec![PartKind::Word]],
            bodies: vec![Body {
                locals: vec![Scalar::Int],
                scratch: 1000,
                code: vec![
                    read,
                    Statement::Emit { message: MessageId(0), parts: vec![Part::Word(local(0))] },
                ],
            }],
            fuel: 0,
            ..Program::default()
        };
        let (mut maps, mut told) = (Tables::new(&program), Told::default());
        let mut hit = at(0x1000, memory);
        run(&program, BodyId(0), Host { hit: &mut hit, maps: &mut maps, sink: &mut told });
        assert_eq!(told.0[0].1[0], u64::to_le_bytes(expected));
    }
}

/// Puts two strings at 0 and 16 of scratch.
fn texts(left: &[u8], right: &[u8]) -> Vec<Statement> {
    let bytes = |start: u32, bytes: &[u8]| {
        (start..)
            .zip(bytes.to_vec())
            .map(|(at, byte)| Statement::Store {
                to: Place::Scratch(at),
                as_: Width::Unsigned(1),
                value: int(byte.into()),
            })
            .collect::<Vec<Statement>>()
    };
    [bytes(0, left), bytes(16, right)].concat()
}

#[test]
fn strings_are_measured_compared_and_found() {
    for (text, size, expected) in [("abc", 8, 3), ("abc", 2, 2), ("", 8, 0), ("abc", 0, 0)] {
        let length = Statement::StringLength { into: LocalId(0), of: Place::Scratch(0), size };
        let code = [texts(text.as_bytes(), b""), vec![length]].concat();
        assert_eq!(after(code, &mut At::default()).0[0], expected, "{text} {size}");
    }
    for (left, right, size, most, strings, expected) in [
        ("abc", "abc", 8, None, true, 0),
        ("abc", "abd", 8, None, true, 1),
        ("abc", "abd", 2, None, true, 0),
        ("abc", "abd", 8, Some(2), true, 0),
        ("abc", "abd", 8, Some(-1), true, 1),
        ("abc", "xyz", 8, Some(0), true, 0),
        ("abc", "ab", 8, None, true, 1),
        ("ab\0x", "ab\0y", 8, None, true, 0),
        ("ab\0x", "ab\0y", 8, None, false, 1),
        ("", "", 8, None, true, 0),
    ] {
        let compare = Statement::Compare {
            into: LocalId(0),
            left: Place::Scratch(0),
            right: Place::Scratch(16),
            size,
            most: most.map(int),
            strings,
        };
        let code = [texts(left.as_bytes(), right.as_bytes()), vec![compare]].concat();
        assert_eq!(after(code, &mut At::default()).0[0], expected, "{left} {right} {size} {most:?}");
    }
    for (haystack, needle, expected) in [
        ("haystack", "stack", 3),
        ("haystack", "h", 0),
        ("haystack", "sticks", -1),
        ("haystack", "", 0),
        ("", "", 0),
        ("", "a", -1),
        ("aaab", "aab", 1),
        ("ab\0c", "c", -1),
    ] {
        let find = Statement::Find {
            into: LocalId(0),
            haystack: Place::Scratch(0),
            haystack_size: 16,
            needle: Place::Scratch(16),
            needle_size: 8,
        };
        let code = [texts(haystack.as_bytes(), needle.as_bytes()), vec![find]].concat();
        assert_eq!(after(code, &mut At::default()).0[0], expected, "{haystack} {needle}");
    }
}

fn increment(index: u32) -> Statement {
    let sum = Expression::Binary(Binary::Add, Box::new(local(index)), boxed(1));
    Statement::Set(LocalId(index), sum)
}

fn when(condition: Expression, then: Statement) -> Statement {
    Statement::If(condition, vec![then], vec![])
}

fn is(index: u32, value: i64) -> Expression {
    Expression::Binary(Binary::Equal, Box::new(local(index)), boxed(value))
}

#[test]
fn loops_break_and_continue_the_innermost() {
    let inner = Statement::Loop(vec![increment(1), Statement::Break]);
    let code = vec![
        Statement::Loop(vec![
            increment(0),
            when(is(0, 2), Statement::Continue),
            inner,
            when(is(0, 4), Statement::Break),
        ]),
        increment(2),
    ];
    assert_eq!(after(code, &mut At::default()).0, [4, 3, 1, 0]);
}

#[test]
fn return_ends_the_body_and_else_is_taken() {
    let tell = |value| Statement::Emit { message: MessageId(0), parts: vec![Part::Word(int(value))] };
    let code = vec![
        Statement::If(int(0), vec![tell(1)], vec![tell(2)]),
        Statement::Loop(vec![Statement::If(int(1), vec![Statement::Return], vec![])]),
        tell(3),
    ];
    let program = program(code, vec![]);
    let (mut maps, mut told) = (Tables::new(&program), Told::default());
    let host = Host { hit: &mut At::default(), maps: &mut maps, sink: &mut told };
    assert_eq!(run(&program, BodyId(0), host), Outcome::Done);
    assert_eq!(told.0, [(MessageId(0), vec![2_u64.to_le_bytes().to_vec()])]);
}

#[test]
fn all_loops_together_have_so_much_fuel() {
    for (rounds, expected) in [(5, Outcome::Done), (6, Outcome::OutOfFuel)] {
        // Twice as many rounds, of 10.
        let turn = |index| Statement::Loop(vec![increment(index), when(is(index, rounds), Statement::Break)]);
        let program = program(vec![turn(0), turn(1)], vec![]);
        let host =
            Host { hit: &mut At::default(), maps: &mut Tables::new(&program), sink: &mut Told::default() };
        assert_eq!(run(&program, BodyId(0), host), expected, "{rounds}");
    }
}

fn map(key: u32, value: MapValue) -> Map {
    Map { name: "@m".into(), key, value, capacity: 2, sharing: MapSharing::Shared }
}

/// Keys and values of a map.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Runs statements with one map and tells the four integers and the map's entries.
fn with_map(code: Vec<Statement>, declared: Map) -> ([i64; 4], Entries, u64) {
    let words = (0..INTS)
        .map(|index| Statement::Emit { message: MessageId(0), parts: vec![Part::Word(local(index))] });
    let size = declared.value.size() as usize;
    let program = program(code.into_iter().chain(words).collect(), vec![declared]);
    let (mut maps, mut told) = (Tables::new(&program), Told::default());
    run(&program, BodyId(0), Host { hit: &mut At::default(), maps: &mut maps, sink: &mut told });
    let word = |index: usize| i64::from_le_bytes(told.0[index].1[0].as_slice().try_into().expect("a word"));
    let ints = [word(0), word(1), word(2), word(3)];
    (ints, maps.entries(MapId(0), size), maps.dropped(MapId(0)))
}

const MAP: MapId = MapId(0);

/// Puts an integer of one byte at the beginning of scratch, for a key.
fn key(value: i64) -> Statement {
    Statement::Store { to: Place::Scratch(0), as_: Width::Unsigned(1), value: int(value) }
}

fn set(value: i64, ok: Option<LocalId>) -> [Statement; 2] {
    [
        Statement::Store { to: Place::Scratch(8), as_: Width::Unsigned(8), value: int(value) },
        Statement::MapSet { map: MAP, key: Place::Scratch(0), value: Place::Scratch(8), ok },
    ]
}

fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

#[test]
fn values_are_put_in_read_and_taken_out() {
    let place = || Place::Scratch(0);
    let mut code = vec![key(1)];
    code.extend(set(11, Some(LocalId(0))));
    code.push(key(2));
    code.extend(set(22, None));
    code.extend(set(23, None));
    // There is no room for a third.
    code.push(key(3));
    code.extend(set(33, Some(LocalId(1))));
    let full = code.clone();
    code.push(Statement::MapHas { map: MAP, key: place(), found: LocalId(2) });
    code.push(Statement::MapLength { map: MAP, into: LocalId(3) });
    let (ints, entries, dropped) = with_map(code, map(1, MapValue::Bytes(8)));
    assert_eq!(ints, [1, 0, 0, 2]);
    assert_eq!(entries, [(vec![1], word(11)), (vec![2], word(23))]);
    // The body was told.
    assert_eq!(dropped, 0);

    let mut code = full.clone();
    let get = |found| Statement::MapGet {
        map: MAP,
        key: place(),
        to: Place::Scratch(16),
        found: Some(LocalId(found)),
    };
    let load = Expression::Load { from: Place::Scratch(16), as_: Width::Unsigned(8) };
    code.extend([key(2), get(0), Statement::Set(LocalId(1), load.clone())]);
    code.extend([key(9), get(2), Statement::Set(LocalId(3), load)]);
    assert_eq!(with_map(code, map(1, MapValue::Bytes(8))).0, [1, 23, 0, 0]);

    let mut code = full.clone();
    let delete = |found| Statement::MapDelete { map: MAP, key: place(), found: Some(LocalId(found)) };
    code.extend([key(2), delete(0), delete(1)]);
    let (ints, entries, _) = with_map(code, map(1, MapValue::Bytes(8)));
    assert_eq!((ints[0], ints[1]), (1, 0));
    assert_eq!(entries, [(vec![1], word(11))]);

    let cleared = [full.clone(), vec![Statement::MapClear(MAP)]].concat();
    assert_eq!(with_map(cleared, map(1, MapValue::Bytes(8))).1, []);
    let zeroed = [full, vec![Statement::MapZero(MAP)]].concat();
    let (_, entries, _) = with_map(zeroed, map(1, MapValue::Bytes(8)));
    assert_eq!(entries, [(vec![1], word(0)), (vec![2], word(0))]);
}

#[test]
fn additions_begin_at_0_and_wrap() {
    let add = |amount, before| Statement::MapAdd {
        map: MAP,
        key: Place::Scratch(0),
        amount: int(amount),
        before: Some(LocalId(before)),
    };
    let code = vec![add(5, 0), add(-7, 1), add(0, 2)];
    let (ints, entries, _) = with_map(code, map(0, MapValue::Bytes(8)));
    assert_eq!((ints, entries), ([0, 5, -2, 0], vec![(vec![], word(-2_i64 as u64))]));
    let code = vec![key(1), add(1, 0), key(2), add(2, 0), key(3), add(3, 0)];
    let (ints, entries, dropped) = with_map(code, map(1, MapValue::Bytes(8)));
    assert_eq!((ints[0], entries.len(), dropped), (0, 2, 1));
}

#[test]
fn a_loop_over_a_map_meets_each_key_that_is_still_there() {
    let each = |body: Vec<Statement>| Statement::ForEach {
        map: MAP,
        key: Place::Scratch(32),
        value: Place::Scratch(40),
        body,
    };
    let add = |into: u32, from: u32, as_| {
        let load = Expression::Load { from: Place::Scratch(from), as_ };
        let sum = Expression::Binary(Binary::Add, Box::new(local(into)), Box::new(load));
        Statement::Set(LocalId(into), sum)
    };
    let mut fill = vec![key(1)];
    fill.extend(set(10, None));
    fill.push(key(2));
    fill.extend(set(20, None));
    let sum = vec![add(0, 32, Width::Unsigned(1)), add(1, 40, Width::Unsigned(8)), increment(2)];
    let code = [fill.clone(), vec![each(sum.clone())]].concat();
    assert_eq!(with_map(code, map(1, MapValue::Bytes(8))).0, [3, 30, 2, 0]);
    let code = [fill.clone(), vec![each([sum.clone(), vec![Statement::Break]].concat())]].concat();
    assert_eq!(with_map(code, map(1, MapValue::Bytes(8))).0[2], 1);
    let code = [fill, vec![each([sum, vec![Statement::MapClear(MAP)]].concat())]].concat();
    assert_eq!(with_map(code, map(1, MapValue::Bytes(8))).0[2], 1);
}

/// The words of an aggregation after values with weights.
fn aggregated(aggregation: Aggregation, values: &[(i64, i64)]) -> Vec<u64> {
    let code = values
        .iter()
        .map(|(value, weight)| Statement::Aggregate {
            map: MAP,
            key: Place::Scratch(0),
            value: match aggregation.is_of_floats() {
                true => Expression::Unary(Unary::ToFloat, boxed(*value)),
                false => int(*value),
            },
            weight: (*weight != 1).then(|| int(*weight)),
        })
        .collect();
    let (_, entries, _) = with_map(code, map(0, MapValue::Aggregate(aggregation)));
    entries[0].1.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("a word"))).collect()
}

#[test]
fn aggregations_of_values_with_weights() {
    const MINUS: u64 = -3_i64 as u64;
    let float = |value: f64| value.to_bits();
    let values = [(5, 1), (-3, 1), (2, 4)];
    for (aggregation, expected) in [
        (Aggregation::Count, vec![6]),
        (Aggregation::Sum, vec![10]),
        (Aggregation::Min { signed: true }, vec![6, MINUS]),
        (Aggregation::Min { signed: false }, vec![6, 2]),
        (Aggregation::Max { signed: true }, vec![6, 5]),
        (Aggregation::Max { signed: false }, vec![6, MINUS]),
        (Aggregation::Average, vec![6, 10]),
        (Aggregation::AverageOfFloats, vec![6, float(10.0)]),
        (Aggregation::SumOfFloats, vec![float(10.0)]),
        (Aggregation::MinOfFloats, vec![6, float(-3.0)]),
        (Aggregation::MaxOfFloats, vec![6, float(5.0)]),
    ] {
        assert_eq!(aggregated(aggregation, &values), expected, "{aggregation:?}");
    }
    let used = |aggregation, values: &[(i64, i64)]| {
        let words = aggregated(aggregation, values);
        let used = words.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(index, count)| (index as u32, *count)).collect::<Vec<(u32, u64)>>()
    };
    let hist = Aggregation::Hist { bits: 0 };
    let values = [(-1, 1), (0, 1), (1, 2), (3, 1), (i64::MAX, 1)];
    assert_eq!(used(hist, &values), [(0, 1), (1, 1), (2, 2), (3, 1), (64, 1)]);
    assert_eq!(hist.words(), 65);
    let linear = Aggregation::LinearHist { min: 0, max: 10, step: 2 };
    let values = [(i64::MIN, 1), (0, 1), (1, 1), (9, 3), (10, 1), (i64::MAX, 1)];
    assert_eq!(used(linear, &values), [(0, 1), (1, 2), (5, 3), (6, 2)]);
}

#[test]
fn an_aggregation_tells_its_words_and_zeros_if_it_is_not_there() {
    let get = Statement::AggregateGet {
        map: MAP,
        key: Place::Scratch(0),
        to: Place::Scratch(16),
        found: Some(LocalId(0)),
    };
    let load = Expression::Load { from: Place::Scratch(16), as_: Width::Unsigned(8) };
    let look = Statement::Set(LocalId(1), load);
    let dirty = Statement::Store { to: Place::Scratch(16), as_: Width::Unsigned(8), value: int(-1) };
    let count = Statement::Aggregate { map: MAP, key: Place::Scratch(0), value: int(0), weight: None };
    let declared = || map(0, MapValue::Aggregate(Aggregation::Count));
    let (ints, ..) = with_map(vec![dirty, get.clone(), look.clone()], declared());
    assert_eq!((ints[0], ints[1]), (0, 0));
    let (ints, ..) = with_map(vec![count.clone(), count, get, look], declared());
    assert_eq!((ints[0], ints[1]), (1, 2));
}

#[test]
fn a_time_series_keeps_the_latest_intervals() {
    let words = |of, added: &[(u64, i64)]| {
        let series = Aggregation::TimeSeries { interval: 100, buckets: 2, of };
        let mut words = vec![0; 48];
        for (time, value) in added {
            add(series, &mut words, Added { value: *value as u64, weight: 1, time: *time });
        }
        words.chunks(8).map(|word| i64::from_le_bytes(word.try_into().expect("a word"))).collect::<Vec<i64>>()
    };
    let added = [(0, 7), (99, 3), (100, 4), (250, -1), (299, 5), (260, 2), (50, 9)];
    // Interval 3 takes the place of interval 1; what comes late for 1 is dropped.
    assert_eq!(words(SeriesOf::Latest, &added), [3, 3, 2, 2, 1, 4]);
    assert_eq!(words(SeriesOf::Sum, &added), [3, 3, 6, 2, 1, 4]);
    assert_eq!(words(SeriesOf::Average, &added), [3, 3, 6, 2, 1, 4]);
    assert_eq!(words(SeriesOf::Min, &added), [3, 3, -1, 2, 1, 4]);
    assert_eq!(words(SeriesOf::Max, &added), [3, 3, 5, 2, 1, 4]);
}

#[test]
fn threads_put_together_are_as_one() {
    let series = |of| Aggregation::TimeSeries { interval: 100, buckets: 3, of };
    for aggregation in [
        Aggregation::Count,
        Aggregation::Sum,
        Aggregation::Min { signed: true },
        Aggregation::Max { signed: false },
        Aggregation::Average,
        Aggregation::AverageOfFloats,
        Aggregation::SumOfFloats,
        Aggregation::MinOfFloats,
        Aggregation::MaxOfFloats,
        Aggregation::Hist { bits: 2 },
        Aggregation::LinearHist { min: -5, max: 5, step: 3 },
        series(SeriesOf::Sum),
        series(SeriesOf::Average),
        series(SeriesOf::Min),
        series(SeriesOf::Max),
    ] {
        let bytes = 8 * aggregation.words() as usize;
        let (mut one, mut left, mut right) = (vec![0; bytes], vec![0; bytes], vec![0; bytes]);
        for (step, value) in [5, -3, 2, -2, 100, 0, -90].into_iter().enumerate() {
            let value: i64 = value;
            let value = if aggregation.is_of_floats() { (value as f64).to_bits() } else { value as u64 };
            let added = Added { value, weight: 1, time: 60 * step as u64 };
            add(aggregation, &mut one, added);
            add(aggregation, if step % 3 == 0 { &mut left } else { &mut right }, added);
        }
        let empty = vec![0; bytes];
        merge(aggregation, &mut left, &right);
        merge(aggregation, &mut left, &empty);
        assert_eq!(left, one, "{aggregation:?}");
    }
}

#[test]
fn messages_and_threads() {
    let code = vec![
        Statement::ThreadName { to: Place::Scratch(0) },
        Statement::Emit {
            message: MessageId(1),
            parts: vec![
                Part::Bytes(Place::Constant(ConstantId(0)), 3),
                Part::Text { from: Place::Scratch(0), size: 8, length: int(-1) },
            ],
        },
        Statement::Emit {
            message: MessageId(1),
            parts: vec![
                Part::Bytes(Place::Constant(ConstantId(0)), 3),
                Part::Text { from: Place::Scratch(0), size: 8, length: int(2) },
            ],
        },
        Statement::Stack { into: LocalId(0), frames: 127, by: StackWalk::FramePointers },
        Statement::Emit { message: MessageId(0), parts: vec![Part::Word(local(0))] },
        Statement::Emit { message: MessageId(0), parts: vec![Part::Word(Expression::Float(1.0))] },
        Statement::Signal(int(9)),
        Statement::Signal(int(-1)),
        Statement::Delay(int(5)),
        Statement::Delay(int(0)),
        Statement::Delay(int(-1)),
        Statement::Delay(int(i64::MAX)),
    ];
    let program = program(code, vec![]);
    let (mut hit, mut told) = (At::default(), Told::default());
    let host = Host { hit: &mut hit, maps: &mut Tables::new(&program), sink: &mut told };
    run(&program, BodyId(0), host);
    assert_eq!(
        told.0,
        [
            (MessageId(1), vec![b"hay".to_vec(), b"thread\0\0".to_vec()]),
            (MessageId(1), vec![b"hay".to_vec(), b"th".to_vec()]),
            (MessageId(0), vec![word(2127)]),
            (MessageId(0), vec![word(1.0_f64.to_bits())]),
        ]
    );
    assert_eq!(hit.signals, [9, -1]);
    assert_eq!(hit.delays, [5, MOST_DELAY]);
}

#[test]
fn a_body_that_is_not_there_does_nothing() {
    let program = program(vec![], vec![]);
    let host = Host { hit: &mut At::default(), maps: &mut Tables::new(&program), sink: &mut Told::default() };
    assert_eq!(run(&program, BodyId(9), host), Outcome::Done);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Twice the same, without a panic, within the fuel.
    #[test]
    fn random_programs_end_and_are_deterministic(seed: u64, memory in proptest::collection::vec(any::<u8>(), 0..64)) {
        let program = arbitrary::program(seed, &arbitrary::Options::default());
        prop_assert_eq!(verify::verify(&program), Ok(()));
        let mut results = Vec::new();
        for _ in 0..2 {
            let (mut maps, mut told) = (Tables::new(&program), Told::default());
            let mut hit = At { time: 123_456_789, ..at(0x1000, &memory) };
            let host = Host { hit: &mut hit, maps: &mut maps, sink: &mut told };
            let outcome = run(&program, BodyId(0), host);
            let entries: Vec<Entries> = (0..)
                .map(MapId)
                .zip(&program.maps)
                .map(|(id, map)| maps.entries(id, map.value.size() as usize))
                .collect();
            for (map, entries) in program.maps.iter().zip(&entries) {
                prop_assert!(entries.len() as u32 <= map.capacity);
            }
            results.push((outcome, entries, told.0, hit.signals, hit.delays));
        }
        prop_assert_eq!(&results[0], &results[1]);
    }

    /// Not even a program that verification refuses makes it panic: what is not there reads as zeros and is not written.
    #[test]
    fn programs_that_are_refused_do_not_panic(seed: u64, cut in 0_usize..6) {
        let mut program = arbitrary::program(seed, &arbitrary::Options::default());
        match cut {
            0 => program.bodies[0].scratch = 7,
            1 => program.bodies[0].locals.truncate(1),
            2 => program.constants.truncate(1),
            3 => program.maps.truncate(3),
            4 => program.maps.iter_mut().for_each(|map| map.key += 5),
            _ => program.maps.reverse(),
        }
        let (mut maps, mut told) = (Tables::new(&program), Told::default());
        let host = Host { hit: &mut At::default(), maps: &mut maps, sink: &mut told };
        run(&program, BodyId(0), host);
    }
}
