//! What is refused, each with the smallest program that shows it.

use super::*;

fn int(value: i64) -> Expression {
    Expression::Int(value)
}

/// A program with 32 bytes of scratch, an integer (0) and a double (1), maps of bytes (0: key of 8, value of 8), of sums (1), of no
/// key and 4 bytes (2), of sums of doubles (3), one constant of 5 bytes and a message of each part.
fn program(code: Vec<Statement>) -> Program {
    let map = |key, value| Map { name: "@m".into(), key, value, capacity: 10, sharing: MapSharing::Shared };
    Program {
        maps: vec![
            map(8, MapValue::Bytes(8)),
            map(8, MapValue::Aggregate(Aggregation::Sum)),
            map(0, MapValue::Bytes(4)),
            map(0, MapValue::Aggregate(Aggregation::SumOfFloats)),
        ],
        constants: vec![b"text\0".to_vec()],
        messages: vec![vec![PartKind::Word, PartKind::Bytes(4), PartKind::Text(8)]],
        bodies: vec![Body { locals: vec![Scalar::Int, Scalar::Float], scratch: 32, code }],
        fuel: 100,
        ..Program::default()
    }
}

fn fault(statement: Statement) -> Option<Fault> {
    match verify(&program(vec![statement])) {
        Ok(()) => None,
        Err(Invalid::Body { fault, .. }) => Some(fault),
        Err(other) => panic!("{other}"),
    }
}

const WORD: Width = Width::Unsigned(8);

fn store(to: Place) -> Statement {
    Statement::Store { to, as_: WORD, value: int(1) }
}

fn indexed(offset: u32, size: u32) -> Place {
    Place::Indexed { offset, size, index: Box::new(int(3)) }
}

fn indexed_constant(of: u32) -> Place {
    Place::IndexedConstant { of: ConstantId(of), index: Box::new(int(3)) }
}

#[test]
fn places_stay_within_scratch() {
    for (place, expected) in [
        (Place::Scratch(24), None),
        (Place::Scratch(25), Some(Fault::Outside(8))),
        (Place::Scratch(u32::MAX), Some(Fault::Outside(8))),
        (indexed(0, 32), None),
        (indexed(24, 8), None),
        (indexed(25, 8), Some(Fault::Outside(8))),
        (indexed(0, 7), Some(Fault::Outside(8))),
        (Place::Constant(ConstantId(0)), Some(Fault::Written)),
        (indexed_constant(0), Some(Fault::Written)),
    ] {
        assert_eq!(fault(store(place.clone())), expected, "{place:?}");
    }
}

#[test]
fn types_must_match() {
    let float = || Expression::Float(1.0);
    let (expected_int, expected_float) = (
        Some(Fault::Type { expected: Scalar::Int, found: Scalar::Float }),
        Some(Fault::Type { expected: Scalar::Float, found: Scalar::Int }),
    );
    let set = |local, value| Statement::Set(LocalId(local), value);
    let binary = |op, left, right| Expression::Binary(op, Box::new(left), Box::new(right));
    let load = |as_| Expression::Load { from: Place::Scratch(0), as_ };
    for (statement, expected) in [
        (set(0, int(1)), None),
        (set(1, float()), None),
        (set(0, float()), expected_int),
        (set(1, int(1)), expected_float),
        (set(2, int(1)), Some(Fault::Missing(What::Local, 2))),
        (set(0, Expression::Local(LocalId(1))), expected_int),
        (set(0, Expression::Context(Context::FloatResult)), None),
        (set(0, binary(Binary::FloatLess, float(), float())), None),
        (set(1, binary(Binary::FloatAdd, float(), int(1))), expected_float),
        (set(0, binary(Binary::Add, float(), int(1))), expected_int),
        (set(0, Expression::Unary(Unary::ToInt, Box::new(float()))), None),
        (set(0, Expression::Unary(Unary::SignExtend(64), Box::new(int(1)))), Some(Fault::Bits(64))),
        (set(0, Expression::Unary(Unary::SwapBytes(8), Box::new(int(1)))), Some(Fault::Bits(8))),
        (set(1, load(Width::Float(4))), None),
        (set(1, load(Width::Float(2))), Some(Fault::Width(2))),
        (set(0, load(Width::Signed(3))), Some(Fault::Width(3))),
        (set(0, Expression::Select(Box::new(int(1)), Box::new(int(1)), Box::new(float()))), expected_int),
        (Statement::If(float(), vec![], vec![]), expected_int),
        (Statement::Signal(float()), expected_int),
        (Statement::Delay(float()), expected_int),
        (Statement::Read { into: LocalId(1), from: int(0), as_: WORD, ok: None }, expected_float),
    ] {
        assert_eq!(fault(statement.clone()), expected, "{statement:?}");
    }
}

#[test]
fn copies_do_not_overlap() {
    let copy = |to, from, size| Statement::Copy { to, from, size };
    for (statement, expected) in [
        (copy(Place::Scratch(0), Place::Scratch(8), 8), None),
        (copy(Place::Scratch(0), Place::Scratch(7), 8), Some(Fault::Overlap)),
        (copy(Place::Scratch(8), Place::Scratch(8), 0), None),
        (copy(Place::Scratch(0), indexed(8, 24), 8), None),
        (copy(Place::Scratch(9), indexed(8, 24), 8), Some(Fault::Overlap)),
        (copy(Place::Scratch(0), Place::Constant(ConstantId(0)), 5), None),
        (copy(Place::Scratch(0), Place::Constant(ConstantId(0)), 6), Some(Fault::Outside(6))),
        (copy(Place::Scratch(0), indexed_constant(0), 5), None),
        (copy(Place::Scratch(0), indexed_constant(0), 6), Some(Fault::Outside(6))),
        (copy(Place::Scratch(0), indexed_constant(1), 1), Some(Fault::Missing(What::Constant, 1))),
        (copy(Place::Scratch(0), Place::Constant(ConstantId(1)), 1), Some(Fault::Missing(What::Constant, 1))),
    ] {
        assert_eq!(fault(statement.clone()), expected, "{statement:?}");
    }
}

#[test]
fn maps_are_used_as_what_they_are() {
    let key = || Place::Scratch(0);
    let add = |map| Statement::MapAdd { map: MapId(map), key: key(), amount: int(1), before: None };
    let aggregate = |map, value| Statement::Aggregate { map: MapId(map), key: key(), value, weight: None };
    let each = |key, value| Statement::ForEach { map: MapId(0), key, value, body: vec![Statement::Break] };
    for (statement, expected) in [
        (add(0), None),
        (add(1), Some(Fault::MapKind(MapId(1)))),
        (add(2), Some(Fault::MapKind(MapId(2)))),
        (add(9), Some(Fault::Missing(What::Map, 9))),
        (aggregate(1, int(1)), None),
        (aggregate(0, int(1)), Some(Fault::MapKind(MapId(0)))),
        (aggregate(3, Expression::Float(1.0)), None),
        (aggregate(3, int(1)), Some(Fault::Type { expected: Scalar::Float, found: Scalar::Int })),
        (
            Statement::MapGet { map: MapId(1), key: key(), to: Place::Scratch(8), found: None },
            Some(Fault::MapKind(MapId(1))),
        ),
        (each(Place::Scratch(0), Place::Scratch(8)), None),
        (each(Place::Scratch(0), Place::Scratch(4)), Some(Fault::Overlap)),
        (each(Place::Scratch(0), indexed(8, 8)), Some(Fault::MovingPlace)),
        (each(Place::Constant(ConstantId(0)), Place::Scratch(8)), Some(Fault::Written)),
        (each(Place::Scratch(0), Place::Scratch(25)), Some(Fault::Outside(8))),
    ] {
        assert_eq!(fault(statement.clone()), expected, "{statement:?}");
    }
}

#[test]
fn maps_have_bounds() {
    let with = |value, capacity, key| {
        let map = Map { name: "@".into(), key, value, capacity, sharing: MapSharing::PerThread };
        verify(&Program { maps: vec![map], ..Program::default() }).err()
    };
    let at = |fault| Some(Invalid::Map { map: MapId(0), fault });
    let of = |aggregation| with(MapValue::Aggregate(aggregation), 1, 8);
    let linear = |min, max, step| of(Aggregation::LinearHist { min, max, step });
    let series = |interval, buckets| of(Aggregation::TimeSeries { interval, buckets, of: SeriesOf::Sum });
    assert_eq!(with(MapValue::Bytes(8), 0, 8), at(Fault::Capacity));
    assert_eq!(with(MapValue::Bytes(8), 1, MOST_BYTES + 1), at(Fault::TooLong));
    assert_eq!(with(MapValue::Bytes(MOST_BYTES + 1), 1, 0), at(Fault::TooLong));
    assert_eq!(of(Aggregation::Hist { bits: 5 }), None);
    assert_eq!(of(Aggregation::Hist { bits: 6 }), at(Fault::Bounds));
    assert_eq!(linear(0, 100, 1), None);
    assert_eq!(linear(0, 0, 1), at(Fault::Bounds));
    assert_eq!(linear(0, 100, 0), at(Fault::Bounds));
    assert_eq!(linear(i64::MIN, i64::MAX, 1), at(Fault::Bounds));
    assert_eq!(series(1, 1), None);
    assert_eq!(series(0, 1), at(Fault::Bounds));
    assert_eq!(series(1, u32::MAX), at(Fault::Bounds));
}

#[test]
fn messages_have_their_parts() {
    let word = || Part::Word(int(1));
    let bytes = |size| Part::Bytes(Place::Scratch(0), size);
    let text = |size| Part::Text { from: Place::Scratch(0), size, length: int(3) };
    for (parts, expected) in [
        (vec![word(), bytes(4), text(8)], None),
        (vec![Part::Word(Expression::Float(0.5)), bytes(4), text(2)], None),
        (vec![word(), bytes(4)], Some(Fault::Parts(MessageId(0)))),
        (vec![word(), bytes(5), text(8)], Some(Fault::Parts(MessageId(0)))),
        (vec![word(), bytes(4), text(9)], Some(Fault::Parts(MessageId(0)))),
        (vec![bytes(4), bytes(4), text(8)], Some(Fault::Parts(MessageId(0)))),
    ] {
        assert_eq!(fault(Statement::Emit { message: MessageId(0), parts: parts.clone() }), expected);
    }
    let unknown = Statement::Emit { message: MessageId(1), parts: vec![] };
    assert_eq!(fault(unknown), Some(Fault::Missing(What::Message, 1)));
}

#[test]
fn what_is_too_deep_is_refused_without_walking_it() {
    let nested = |depth: u32| (0..depth).fold(Statement::Return, |inside, _| Statement::Loop(vec![inside]));
    assert_eq!(fault(nested(DEEPEST_STATEMENT)), None);
    assert_eq!(fault(nested(DEEPEST_STATEMENT + 1)), Some(Fault::TooDeep));
    let deep = |depth: u32| {
        let value = (0..depth).fold(int(1), |inside, _| Expression::Unary(Unary::Not, Box::new(inside)));
        Statement::Set(LocalId(0), value)
    };
    assert_eq!(fault(deep(DEEPEST_EXPRESSION)), None);
    assert_eq!(fault(deep(DEEPEST_EXPRESSION + 1)), Some(Fault::TooDeep));
    let indices = |depth: u32| {
        let value = (0..depth).fold(int(1), |inside, _| Expression::Load {
            from: Place::Indexed { offset: 0, size: 8, index: Box::new(inside) },
            as_: WORD,
        });
        Statement::Set(LocalId(0), value)
    };
    assert_eq!(fault(indices(DEEPEST_EXPRESSION)), None);
    assert_eq!(fault(indices(DEEPEST_EXPRESSION + 1)), Some(Fault::TooDeep));
}

#[test]
fn an_error_says_where() {
    let code = vec![Statement::Loop(vec![Statement::Continue]), Statement::Return, Statement::Break];
    assert_eq!(
        verify(&program(code)),
        Err(Invalid::Body { body: BodyId(0), statement: 3, fault: Fault::NoLoop })
    );
    for frames in [0, 128] {
        let stack = Statement::Stack { into: LocalId(0), frames, by: StackWalk::Tables };
        assert_eq!(fault(stack), Some(Fault::Frames(frames)));
    }
    let operand = |into, argument| Statement::Operand { into: LocalId(into), argument, ok: None };
    assert_eq!(fault(operand(0, 11)), None);
    assert_eq!(fault(operand(0, 12)), Some(Fault::Operand(12)));
    assert_eq!(fault(operand(1000, 0)), Some(Fault::Missing(What::Local, 1000)));
    let too_long =
        Program { bodies: vec![Body { scratch: MOST_BYTES + 1, ..Body::default() }], ..Program::default() };
    assert_eq!(
        verify(&too_long),
        Err(Invalid::Body { body: BodyId(0), statement: 0, fault: Fault::TooLong })
    );
}
