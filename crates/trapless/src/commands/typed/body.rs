//! The body that runs at each hit: it puts a function's values together and reads what they lead to, as a [table](super::table) says.
//!
//! There is one for all entries, one for instructions and one for returns, so that a thousand functions take no longer to compile than one.
//! What it makes is a *tape* of records, which the tool is told:
//!
//! | word of a record | what |
//! |---|---|
//! | 0 | the address; 0 for the values themselves |
//! | 1 | how many bytes follow or were asked for (low half); whether they could be read (bit 32) |
//! | 2 | the layout of each element (low half), and how many reads led there |
//! | then | the bytes, if they could be read, padded to whole words with anything |
//!
//! The values come first. Then the tape is gone through from its beginning, once, and each record's layout followed; what that reads is
//! added at the end, so what is near to the values is read first. There is no stack, nothing grows, and all that can go round is counted.
//!
//! The table lies in memory that the target can write. If it does, the body reads other memory than it should, and nothing worse: scratch
//! and table are indexed within their bounds, reads cannot fault, and work is limited.

use super::table::{Kind, LIST_HEAD, STEP, WORDS};
use crate::commands::registers::Registers;
use trapless_script::ir::*;
use trapless_script::native::Moment;
use trapless_symbols::render::{DEEPEST_READ, MOST_BYTES, MOST_READS, MOST_RECORDED, MOST_TEXT, MOST_WORK};

/// Bytes of a record ahead of its bytes.
pub(super) const HEAD: u32 = 24;
/// In a record's second word: it was read.
pub(super) const WAS_READ: u64 = 1 << 32;
/// Words of the file of registers: general ones by their DWARF numbers, as many as a machine may have, then the low halves of those of
/// floating-point numbers, and the singles that they hold as doubles on some machines.
const FILE: u32 = SINGLES_AT as u32 + 8;
pub(super) const FLOATS_AT: u8 = 32;
pub(super) const SINGLES_AT: u8 = FLOATS_AT + 8;
/// What is left of the tape when a record may still begin: of a text with its zero, or of a value.
const LAST: u32 = MOST_BYTES as u32 + HEAD + 64;
const TAPE: u32 = MOST_RECORDED as u32 + LAST;
/// Rounds of both loops together, and some.
const FUEL: u32 = 2 * MOST_WORK as u32 + 4096;

/// The constants of a program.
const ENTRIES: ConstantId = ConstantId(0);
const RETURNS: ConstantId = ConstantId(1);
const TABLE: ConstantId = ConstantId(2);

/// The bodies of a program.
pub(super) const AT_ENTRY: BodyId = BodyId(0);
pub(super) const INSIDE: BodyId = BodyId(1);
pub(super) const AT_RETURN: BodyId = BodyId(2);

/// All of them, with where they run. Their numbers in native code are the same.
pub(super) const MOMENTS: [(BodyId, Moment); 3] =
    [(AT_ENTRY, Moment::Entry), (INSIDE, Moment::Inside), (AT_RETURN, Moment::Return)];

/// The parts of messages: at entries and returns the stack slot of the call, at returns its duration, and the tape.
pub(super) fn told() -> Vec<Vec<PartKind>> {
    let with = |words| std::iter::repeat_n(PartKind::Word, words).chain([PartKind::Text(TAPE)]).collect();
    [1, 0, 2].into_iter().map(with).collect()
}

/// Locals.
const CURSOR: LocalId = LocalId(0);
const ROOT: LocalId = LocalId(1);
const STEP_AT: LocalId = LocalId(2);
const END: LocalId = LocalId(3);
const WORK: LocalId = LocalId(4);
const READS: LocalId = LocalId(5);
const OK: LocalId = LocalId(6);
const ADDRESS: LocalId = LocalId(7);
const RECORD: LocalId = LocalId(8);
const ELEMENT: LocalId = LocalId(9);
const NEXT: LocalId = LocalId(10);
const LAYOUT: LocalId = LocalId(11);
const STORED: LocalId = LocalId(12);
const BASE: LocalId = LocalId(13);
const POINTER: LocalId = LocalId(14);
const COUNT: LocalId = LocalId(15);
const SIZE: LocalId = LocalId(16);
const DEPTH: LocalId = LocalId(17);
const LOCALS: usize = 18;

/// The program: `entries` and `returns` hold for each site where its list is in `table`, and 0 behind the last one.
pub(super) fn program(registers: &Registers, entries: &[u32], returns: &[u32], table: Vec<u8>) -> Program {
    let offsets = |all: &[u32]| all.iter().chain([&0]).flat_map(|at| at.to_le_bytes()).collect();
    let mut table = table;
    // A step is looked at before its list is known to be over.
    table.resize(table.len() + STEP, 0);
    let body =
        |at| Body { locals: vec![Scalar::Int; LOCALS], scratch: 8 * FILE + TAPE, code: code(registers, at) };
    Program {
        constants: vec![offsets(entries), offsets(returns), table],
        messages: told(),
        bodies: vec![body(Moment::Entry), body(Moment::Inside), body(Moment::Return)],
        fuel: FUEL,
        ..Program::default()
    }
}

fn code(registers: &Registers, at: Moment) -> Vec<Statement> {
    let mut code = file(registers, at);
    let lists = if at == Moment::Return { RETURNS } else { ENTRIES };
    let number = i64::from(!trapless_engine::AT_RETURN);
    let site = of(Binary::And, Expression::Context(Context::Site), int(number));
    let list = constant(lists, of(Binary::Multiply, site, int(4)), Width::Unsigned(4));
    code.extend([
        Statement::Set(CURSOR, int(0)),
        Statement::Set(WORK, int(MOST_WORK as i64)),
        Statement::Set(READS, int(MOST_READS as i64)),
        Statement::Set(STEP_AT, list),
        Statement::Set(END, steps_of(STEP_AT)),
        Statement::Set(STEP_AT, plus(STEP_AT, LIST_HEAD as i64)),
        Statement::Loop(put_together()),
        Statement::Set(RECORD, int(0)),
        Statement::Set(ELEMENT, int(0)),
        Statement::Set(NEXT, int(0)),
        Statement::Loop(follow()),
        tell(at),
    ]);
    code
}

fn tell(at: Moment) -> Statement {
    let tape = Part::Text { from: Place::Scratch(8 * FILE), size: TAPE, length: local(CURSOR) };
    let word = |what| Part::Word(Expression::Context(what));
    let (number, words) = match at {
        Moment::Entry => (0, vec![word(Context::Frame)]),
        Moment::Inside => (1, vec![]),
        Moment::Return => (2, vec![word(Context::Frame), word(Context::Duration)]),
    };
    Statement::Emit { message: MessageId(number), parts: words.into_iter().chain([tape]).collect() }
}

/// The registers that a body has, where they can be indexed.
fn file(registers: &Registers, at: Moment) -> Vec<Statement> {
    let store = |place: u8| {
        let (as_, value) = match place {
            SINGLES_AT.. => {
                let bits = Expression::Context(Context::FloatRegister(place - SINGLES_AT));
                (Width::Float(4), Expression::Unary(Unary::BitsFloat, Box::new(bits)))
            }
            FLOATS_AT.. => {
                let number = place - FLOATS_AT;
                (Width::Unsigned(8), Expression::Context(Context::FloatRegister(number)))
            }
            number => (Width::Unsigned(8), Expression::Context(Context::Register(number))),
        };
        Statement::Store { to: Place::Scratch(8 * u32::from(place)), as_, value }
    };
    let kept = (0..FILE as u8).filter(|&place| is_kept(registers, place, at));
    kept.map(store).collect()
}

/// Whether a body has a register, by its number in the file.
pub(super) fn is_kept(registers: &Registers, place: u8, at: Moment) -> bool {
    let number = u16::from(place);
    let place = match place.checked_sub(SINGLES_AT) {
        Some(_) if !registers.widens_singles => return false,
        Some(single) => FLOATS_AT + single,
        None => place,
    };
    match (place.checked_sub(FLOATS_AT), at) {
        (Some(float), Moment::Return) => u16::from(float) < registers.float_results,
        (Some(float), _) => u16::from(float) < registers.floats.1,
        (None, Moment::Entry) => registers.argument(number).is_some() || number == registers.stack_pointer,
        (None, Moment::Inside) => number < registers.general,
        (None, Moment::Return) => registers.results.contains(&number),
    }
}

/// One step of a function's list.
fn put_together() -> Vec<Statement> {
    let kind = || field(STEP_AT, 0, Width::Unsigned(1));
    let to = || of(Binary::Add, local(ROOT), field(STEP_AT, 4, Width::Unsigned(4)));
    let size = || word(STEP_AT, 0);
    let register = || Expression::Load {
        from: Place::Indexed { offset: 0, size: 8 * FILE, index: Box::new(word(STEP_AT, 0)) },
        as_: Width::Unsigned(8),
    };
    let begin = vec![
        store(local(CURSOR), int(0)),
        store(plus(CURSOR, 8), of(Binary::Or, size(), int(WAS_READ as i64))),
        store(plus(CURSOR, 16), word(STEP_AT, 3)),
        Statement::Set(ROOT, plus(CURSOR, HEAD.into())),
        Statement::Set(CURSOR, of(Binary::Add, local(ROOT), padded(size()))),
    ];
    let shifted = of(Binary::ShiftRight, register(), word(STEP_AT, 2));
    let take = vec![store(to(), of(Binary::Add, shifted, word(STEP_AT, 1)))];
    let failed = of(Binary::And, tape(plus(ROOT, -16)), int(0xffff_ffff));
    let read = vec![
        Statement::If(
            local(OK),
            vec![Statement::ReadBytes {
                to: tape_at(to()),
                size: MOST_BYTES as u32,
                from: local(ADDRESS),
                length: word(STEP_AT, 2),
                ok: Some(OK),
            }],
            vec![],
        ),
        // The next value begins where this one would have.
        Statement::If(
            local(OK),
            vec![],
            vec![store(plus(ROOT, -16), failed), Statement::Set(CURSOR, local(ROOT))],
        ),
    ];
    let address = Statement::Set(ADDRESS, of(Binary::Add, register(), word(STEP_AT, 1)));
    let memory = [vec![address.clone(), Statement::Set(OK, int(1))], read.clone()].concat();
    let through = vec![
        address,
        Statement::Read { into: ADDRESS, from: local(ADDRESS), as_: Width::Unsigned(8), ok: Some(OK) },
        Statement::Set(ADDRESS, of(Binary::Add, local(ADDRESS), word(STEP_AT, 3))),
    ];
    let through = [through, read].concat();
    let is_over = of(Binary::UnsignedLessOrEqual, local(END), local(STEP_AT));
    let is_full = of(Binary::UnsignedLess, int(MOST_RECORDED as i64), local(CURSOR));
    vec![
        Statement::If(of(Binary::Or, is_over, is_full), vec![Statement::Break], vec![]),
        choose(
            kind(),
            vec![
                (Kind::Begin, begin),
                (Kind::Register, take),
                (Kind::Constant, vec![store(to(), word(STEP_AT, 0))]),
                (Kind::Memory, memory),
                (Kind::Indirect, through),
            ],
        ),
        Statement::Set(STEP_AT, plus(STEP_AT, STEP as i64)),
    ]
}

/// One step of a layout, for one element of a record; or on to the next.
fn follow() -> Vec<Statement> {
    let about = || tape(plus(RECORD, 8));
    let asked = of(Binary::And, about(), int(0xffff_ffff));
    let was_read = of(Binary::And, about(), int(WAS_READ as i64));
    let element = field(LAYOUT, 0, Width::Unsigned(4));
    let steps = field(LAYOUT, 4, Width::Unsigned(4));
    let end = of(Binary::Add, local(ELEMENT), local(SIZE));
    let is_over = of(Binary::UnsignedLess, local(STORED), end.clone());
    let nothing = of(Binary::Or, is_zero(local(LAYOUT)), is_zero(local(SIZE)));
    let on = vec![
        Statement::Set(RECORD, of(Binary::Add, plus(RECORD, HEAD.into()), padded(local(STORED)))),
        Statement::Set(ELEMENT, int(0)),
        Statement::Set(NEXT, int(0)),
        Statement::Continue,
    ];
    let at = of(Binary::Multiply, local(NEXT), int(STEP as i64));
    let value = tape(of(Binary::Add, local(BASE), field(STEP_AT, 4, Width::Unsigned(4))));
    let masked = of(Binary::And, value.clone(), word(STEP_AT, 0));
    let below = of(Binary::UnsignedLess, masked.clone(), word(STEP_AT, 1));
    let above = of(Binary::UnsignedLess, word(STEP_AT, 2), masked);
    let skip = of(Binary::Add, local(NEXT), field(STEP_AT, 2, Width::Unsigned(2)));
    let unless = vec![Statement::If(of(Binary::Or, below, above), vec![Statement::Set(NEXT, skip)], vec![])];
    let is_unless = equal(field(STEP_AT, 0, Width::Unsigned(1)), int(Kind::Unless as i64));
    let is_done =
        of(Binary::Or, of(Binary::UnsignedLessOrEqual, local(CURSOR), local(RECORD)), is_zero(local(WORK)));
    vec![
        Statement::If(is_done, vec![Statement::Break], vec![]),
        Statement::Set(WORK, plus(WORK, -1)),
        Statement::Set(STORED, Expression::Select(Box::new(was_read), Box::new(asked), Box::new(int(0)))),
        Statement::Set(DEPTH, tape(plus(RECORD, 16))),
        Statement::Set(LAYOUT, of(Binary::And, local(DEPTH), int(0xffff_ffff))),
        Statement::Set(DEPTH, of(Binary::ShiftRight, local(DEPTH), int(32))),
        Statement::Set(SIZE, element),
        Statement::If(of(Binary::Or, nothing, is_over), on, vec![]),
        Statement::If(
            of(Binary::UnsignedLessOrEqual, steps, local(NEXT)),
            vec![Statement::Set(ELEMENT, end), Statement::Set(NEXT, int(0)), Statement::Continue],
            vec![],
        ),
        Statement::Set(STEP_AT, of(Binary::Add, plus(LAYOUT, LIST_HEAD as i64), at)),
        Statement::Set(NEXT, plus(NEXT, 1)),
        Statement::Set(BASE, of(Binary::Add, plus(RECORD, HEAD.into()), local(ELEMENT))),
        Statement::If(is_unless, unless, read(value)),
    ]
}

/// Reads what a step says, if the word of the element leads anywhere and there is room.
fn read(value: Expression) -> Vec<Statement> {
    let kind = || field(STEP_AT, 0, Width::Unsigned(1));
    let tells = || of(Binary::ShiftRight, word(STEP_AT, 3), int(32));
    let told = || tape(of(Binary::Add, local(BASE), tells()));
    let between = of(Binary::Subtract, told(), local(POINTER));
    let room = || {
        let has_reads = of(Binary::Less, int(0), local(READS));
        of(Binary::And, has_reads, of(Binary::UnsignedLess, local(CURSOR), int(MOST_RECORDED as i64)))
    };
    let ahead = vec![
        Statement::Set(COUNT, int(0)),
        Statement::Set(ADDRESS, of(Binary::Subtract, local(POINTER), tells())),
        Statement::If(
            room(),
            [
                vec![
                    Statement::Read {
                        into: COUNT,
                        from: local(ADDRESS),
                        as_: Width::Unsigned(8),
                        ok: Some(OK),
                    },
                    store(plus(CURSOR, HEAD.into()), local(COUNT)),
                    Statement::Set(SIZE, int(8)),
                    Statement::Set(LAYOUT, int(0)),
                ],
                record(),
            ]
            .concat(),
            vec![],
        ),
    ];
    let text = Statement::ReadString {
        to: tape_at(plus(CURSOR, HEAD.into())),
        size: MOST_BYTES as u32,
        from: local(ADDRESS),
        most: int(MOST_TEXT as i64 + 1),
        length: Some(SIZE),
    };
    // The zero is a part of it, unless it is longer than what is read.
    let with_zero = of(Binary::Less, local(SIZE), int(MOST_TEXT as i64));
    let text = vec![
        text,
        Statement::Set(OK, of(Binary::LessOrEqual, int(0), local(SIZE))),
        Statement::Set(SIZE, of(Binary::Add, local(SIZE), of(Binary::And, with_zero, local(OK)))),
        Statement::Set(
            SIZE,
            Expression::Select(Box::new(local(OK)), Box::new(local(SIZE)), Box::new(int(0))),
        ),
        Statement::Set(LAYOUT, int(0)),
    ];
    let most = word(STEP_AT, 2);
    let fewer = of(Binary::UnsignedLess, local(COUNT), most.clone());
    let at_most = Expression::Select(Box::new(fewer), Box::new(local(COUNT)), Box::new(most));
    let elements = vec![
        choose(
            kind(),
            vec![
                (Kind::One, vec![Statement::Set(COUNT, int(1))]),
                (Kind::Counted, vec![Statement::Set(COUNT, told())]),
                (
                    Kind::Until,
                    vec![Statement::Set(COUNT, of(Binary::UnsignedDivide, between, word(STEP_AT, 1)))],
                ),
                (Kind::Before, ahead),
            ],
        ),
        Statement::Set(ADDRESS, of(Binary::Add, local(POINTER), word(STEP_AT, 0))),
        Statement::Set(SIZE, of(Binary::Multiply, at_most, word(STEP_AT, 1))),
        Statement::If(of(Binary::And, is_not_zero(local(SIZE)), room()), vec![], vec![Statement::Continue]),
        Statement::ReadBytes {
            to: tape_at(plus(CURSOR, HEAD.into())),
            size: MOST_BYTES as u32,
            from: local(ADDRESS),
            length: local(SIZE),
            ok: Some(OK),
        },
        Statement::Set(LAYOUT, of(Binary::And, word(STEP_AT, 3), int(0xffff_ffff))),
    ];
    let may = of(
        Binary::And,
        of(Binary::And, is_not_zero(local(POINTER)), room()),
        of(Binary::UnsignedLess, local(DEPTH), int(DEEPEST_READ.into())),
    );
    let is_text = equal(kind(), int(Kind::Text as i64));
    let take = [
        vec![
            Statement::Set(ADDRESS, of(Binary::Add, local(POINTER), word(STEP_AT, 0))),
            Statement::If(is_text, text, elements),
        ],
        record(),
    ]
    .concat();
    vec![Statement::Set(POINTER, value), Statement::If(may, take, vec![])]
}

/// Writes the head of a record whose bytes are there.
fn record() -> Vec<Statement> {
    let read = Expression::Select(Box::new(local(OK)), Box::new(int(WAS_READ as i64)), Box::new(int(0)));
    let deeper = of(Binary::ShiftLeft, plus(DEPTH, 1), int(32));
    let follows = Expression::Select(Box::new(local(OK)), Box::new(padded(local(SIZE))), Box::new(int(0)));
    vec![
        store(local(CURSOR), local(ADDRESS)),
        store(plus(CURSOR, 8), of(Binary::Or, local(SIZE), read)),
        store(plus(CURSOR, 16), of(Binary::Or, local(LAYOUT), deeper)),
        Statement::Set(CURSOR, of(Binary::Add, plus(CURSOR, HEAD.into()), follows)),
        Statement::Set(READS, plus(READS, -1)),
    ]
}

/// What is done for a kind of step.
fn choose(kind: Expression, cases: Vec<(Kind, Vec<Statement>)>) -> Statement {
    let mut rest = Vec::new();
    for (case, code) in cases.into_iter().rev() {
        rest = vec![Statement::If(equal(kind.clone(), int(case as i64)), code, rest)];
    }
    rest.pop().unwrap_or(Statement::If(int(0), vec![], vec![]))
}

fn int(value: i64) -> Expression {
    Expression::Int(value)
}

fn local(id: LocalId) -> Expression {
    Expression::Local(id)
}

fn of(operation: Binary, left: Expression, right: Expression) -> Expression {
    Expression::Binary(operation, Box::new(left), Box::new(right))
}

fn plus(id: LocalId, by: i64) -> Expression {
    of(Binary::Add, local(id), int(by))
}

fn equal(left: Expression, right: Expression) -> Expression {
    of(Binary::Equal, left, right)
}

fn is_zero(value: Expression) -> Expression {
    Expression::Unary(Unary::IsZero, Box::new(value))
}

fn is_not_zero(value: Expression) -> Expression {
    of(Binary::NotEqual, value, int(0))
}

/// Up to whole words.
fn padded(size: Expression) -> Expression {
    of(Binary::And, of(Binary::Add, size, int(7)), int(!7))
}

fn tape_at(index: Expression) -> Place {
    Place::Indexed { offset: 8 * FILE, size: TAPE, index: Box::new(index) }
}

/// A word of the tape.
fn tape(index: Expression) -> Expression {
    Expression::Load { from: tape_at(index), as_: Width::Unsigned(8) }
}

fn store(index: Expression, value: Expression) -> Statement {
    Statement::Store { to: tape_at(index), as_: Width::Unsigned(8), value }
}

fn constant(of: ConstantId, index: Expression, as_: Width) -> Expression {
    Expression::Load { from: Place::IndexedConstant { of, index: Box::new(index) }, as_ }
}

/// Something of the list or step whose offset in the table a local holds.
fn field(at: LocalId, offset: i64, as_: Width) -> Expression {
    constant(TABLE, plus(at, offset), as_)
}

/// One of its words.
fn word(at: LocalId, number: usize) -> Expression {
    field(at, WORDS[number] as i64, Width::Unsigned(8))
}

/// Where the steps of the list end whose offset a local holds.
fn steps_of(list: LocalId) -> Expression {
    let size = of(Binary::Multiply, field(list, 4, Width::Unsigned(4)), int(STEP as i64));
    of(Binary::Add, plus(list, LIST_HEAD as i64), size)
}
