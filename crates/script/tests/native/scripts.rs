//! Scripts as the front end would lower them, for tests and measurements.

use trapless_script::ir::*;

pub fn map(key: u32, value: MapValue, sharing: MapSharing) -> Map {
    Map { name: "@".into(), key, value, capacity: 4096, sharing }
}

pub fn local(number: u32) -> Expression {
    Expression::Local(LocalId(number))
}

pub fn argument(number: u8) -> Expression {
    Expression::Context(Context::Argument(number))
}

pub fn binary(operation: Binary, left: Expression, right: Expression) -> Expression {
    Expression::Binary(operation, Box::new(left), Box::new(right))
}

fn with(maps: Vec<Map>, locals: u32, scratch: u32, code: Vec<Statement>) -> Program {
    let locals = vec![Scalar::Int; locals as usize];
    Program { maps, fuel: 1000, bodies: vec![Body { locals, scratch, code }], ..Program::default() }
}

pub fn store(offset: u32, value: Expression) -> Statement {
    Statement::Store { to: Place::Scratch(offset), as_: Width::Unsigned(8), value }
}

pub fn aggregate(map: u32, value: Expression) -> Statement {
    Statement::Aggregate { map: MapId(map), key: Place::Scratch(0), value, weight: None }
}

pub fn aggregation(of: Aggregation, sharing: MapSharing) -> Map {
    map(0, MapValue::Aggregate(of), sharing)
}

/// Nothing.
pub fn empty() -> Program {
    with(vec![], 0, 0, vec![])
}

/// `/arg0 > 5000/ { @ = count() }`
pub fn filter() -> Program {
    let condition = binary(Binary::Less, Expression::Int(5000), argument(0));
    let count = aggregate(0, Expression::Int(0));
    let code = vec![Statement::If(condition, vec![count], vec![])];
    with(vec![aggregation(Aggregation::Count, MapSharing::PerThread)], 0, 0, code)
}

/// `@ = OF(arg0)`
pub fn one(of: Aggregation, sharing: MapSharing) -> Program {
    with(vec![aggregation(of, sharing)], 0, 0, vec![aggregate(0, argument(0))])
}

/// `@[KEY] = count()`
pub fn keyed(key: Expression, of: Aggregation, sharing: MapSharing) -> Program {
    let code = vec![store(0, key), aggregate(0, argument(1))];
    with(vec![map(8, MapValue::Aggregate(of), sharing)], 0, 8, code)
}

/// `{ @start[tid] = nsecs }` and `{ @ns = hist(nsecs - @start[tid]); delete(@start, tid) }`, in two bodies.
pub fn latency() -> Program {
    let time = || Expression::Context(Context::Time(ClockKind::Monotonic));
    let maps = vec![
        map(8, MapValue::Bytes(8), MapSharing::PerThread),
        aggregation(Aggregation::Hist { bits: 0 }, MapSharing::PerThread),
    ];
    let tid = || store(0, Expression::Context(Context::Tid));
    let key = || Place::Scratch(0);
    let entry = vec![
        tid(),
        store(8, time()),
        Statement::MapSet { map: MapId(0), key: key(), value: Place::Scratch(8), ok: None },
    ];
    let load = Expression::Load { from: Place::Scratch(8), as_: Width::Unsigned(8) };
    let left = vec![
        tid(),
        Statement::MapGet { map: MapId(0), key: key(), to: Place::Scratch(8), found: Some(LocalId(0)) },
        Statement::If(
            local(0),
            vec![
                aggregate(1, binary(Binary::Subtract, time(), load)),
                Statement::MapDelete { map: MapId(0), key: key(), found: None },
            ],
            vec![],
        ),
    ];
    let mut program = with(maps, 1, 16, entry);
    program.bodies.push(Body { locals: vec![Scalar::Int], scratch: 16, code: left });
    program
}

/// `printf("%d %d %d", arg0, arg1, arg2)`
pub fn printf() -> Program {
    let parts = (0..3).map(|number| Part::Word(argument(number))).collect();
    let mut program = with(vec![], 0, 0, vec![Statement::Emit { message: MessageId(0), parts }]);
    program.messages = vec![vec![PartKind::Word; 3]];
    program
}

/// `@[str(arg0)] = count()`
pub fn by_string(room: u32) -> Program {
    let read = Statement::ReadString {
        to: Place::Scratch(0),
        size: room,
        from: argument(0),
        most: Expression::Int(room.into()),
        length: None,
    };
    let maps = vec![map(room, MapValue::Aggregate(Aggregation::Count), MapSharing::Shared)];
    with(maps, 0, room, vec![read, aggregate(0, Expression::Int(0))])
}
