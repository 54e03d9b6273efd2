//! Bodies that are interpreted for threads that stand do what native code does in the same memory, in any order of the two.

use crate::machine::{Hit, Ready, SHARED};
use crate::random::{Told, agree_by, context, each_program};
use trapless_isa::Machine;
use trapless_script::interp::Hit as _;
use trapless_script::ir::*;
use trapless_script::native::Moment;
use trapless_script::traced::{At, FUEL, Server, Thread, Untraced, check};
use trapless_wire::{Incomplete, THREAD_LOST, THREAD_OUT_OF_FUEL, Words};

/// A thread that stands, and for how many rounds it may.
struct Standing<'a>(&'a Hit, u32);

impl Thread for Standing<'_> {
    fn register(&mut self, number: u8) -> u64 {
        context(self.0, Context::Register(number))
    }

    fn argument(&mut self, number: u8) -> u64 {
        context(self.0, Context::Argument(number))
    }

    fn result(&mut self, word: u8) -> u64 {
        self.0.registers[usize::from(word)]
    }

    fn return_address(&mut self) -> u64 {
        context(self.0, Context::ReturnAddress)
    }

    fn vector(&mut self, number: u8) -> u64 {
        context(self.0, Context::FloatRegister(number))
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        Told(self.0).read(address, into)
    }

    fn operand(&mut self, argument: u8, scalar: Scalar) -> Option<u64> {
        Told(self.0).operand(argument, scalar)
    }

    fn name(&mut self) -> [u8; 16] {
        Told(self.0).thread_name()
    }

    fn processor(&mut self) -> (u64, u64) {
        (context(self.0, Context::Cpu), context(self.0, Context::NumaNode))
    }

    fn stands_too_long(&mut self) -> bool {
        self.1 = self.1.saturating_sub(1);
        self.1 == 0
    }
}

/// Runs the first body of a program for a hit, in the memory that native code has for thread 0.
fn run(program: &Program, ready: &Ready, hit: &Hit) {
    run_for(program, ready, hit, u32::MAX);
}

/// The same where the thread stands too long ahead of this round.
fn run_for(program: &Program, ready: &Ready, hit: &Hit, rounds: u32) {
    let at = At {
        site: hit.site as u32,
        tid: hit.tid as u32,
        time: hit.ticks,
        entered: hit.entered,
        instruction: hit.instruction,
        frame: context(hit, Context::Frame),
        thread_pointer: 0,
    };
    let layout = &ready.native.layout;
    let server = Server { program, layout, words: &ready.region, shared: SHARED, own: ready.part(0) };
    server.run(BodyId(0), &at, &mut Standing(hit, rounds));
}

#[test]
fn random_programs_do_the_same_whoever_runs_them_at_each_hit() {
    each_program(37, false, |seed, program, hits| {
        // Now this one first, now the other.
        agree_by(seed, program, hits, |ready, turn, hit| match (turn as u64 + seed) % 2 {
            0 => run(program, ready, hit),
            _ => ready.run(0, 0, hit),
        });
    });
}

/// A program of one body.
fn program(code: Vec<Statement>) -> Program {
    Program {
        messages: vec![vec![PartKind::Bytes(64)]],
        bodies: vec![Body { locals: vec![Scalar::Int], scratch: 64, code }],
        fuel: 1 << 20,
        ..Program::default()
    }
}

#[test]
fn a_body_that_goes_round_for_ever_is_ended_early_and_counted() {
    let one_more = Expression::Binary(
        Binary::Add,
        Box::new(Expression::Local(LocalId(0))),
        Box::new(Expression::Int(1)),
    );
    let emit = Statement::Emit { message: MessageId(0), parts: vec![Part::Bytes(Place::Scratch(0), 64)] };
    let store = Statement::Store {
        to: Place::Scratch(0),
        as_: Width::Unsigned(8),
        value: Expression::Local(LocalId(0)),
    };
    let last = Expression::Binary(
        Binary::Equal,
        Box::new(Expression::Local(LocalId(0))),
        Box::new(Expression::Int(i64::from(FUEL))),
    );
    let round =
        vec![Statement::Set(LocalId(0), one_more), store, Statement::If(last, vec![emit.clone()], vec![])];
    let program = program(vec![Statement::Loop(round), emit]);
    let ready = Ready::new(&program, &[(BodyId(0), Moment::Entry)], 1).unwrap();
    run(&program, &ready, &Hit::default());
    let mut seen = Vec::new();
    ready.ring(0).drain(&ready.region, Incomplete::Wait, |message| seen.push(message.words[0]));
    assert_eq!(seen, [u64::from(FUEL)], "the last round, and nothing behind the loop");
    assert_eq!(ready.region.word(ready.part(0) + u64::from(THREAD_OUT_OF_FUEL)), 1);
}

#[test]
fn a_body_ends_where_its_thread_has_stood_too_long() {
    let count =
        Statement::MapAdd { map: MapId(0), key: Place::Scratch(0), amount: Expression::Int(1), before: None };
    let map =
        Map { name: "@".into(), key: 0, value: MapValue::Bytes(8), capacity: 1, sharing: MapSharing::Shared };
    let program = Program { maps: vec![map], ..program(vec![Statement::Loop(vec![count])]) };
    let ready = Ready::new(&program, &[(BodyId(0), Moment::Entry)], 1).unwrap();
    run_for(&program, &ready, &Hit::default(), 8);
    let counted = crate::random::contents(&ready, &program, 0);
    assert_eq!(counted[&vec![]], 7u64.to_le_bytes());
    assert_eq!(ready.region.word(ready.part(0) + u64::from(THREAD_OUT_OF_FUEL)), 1);
}

#[test]
fn messages_without_room_are_counted() {
    let emit = Statement::Emit { message: MessageId(0), parts: vec![Part::Bytes(Place::Scratch(0), 64)] };
    let program = program(vec![emit]);
    let ready = Ready::new(&program, &[(BodyId(0), Moment::Entry)], 1).unwrap();
    let (mut told, mut lost) = (0, 0);
    while lost < 5 {
        run(&program, &ready, &Hit::default());
        lost = ready.region.word(ready.part(0) + u64::from(THREAD_LOST));
        told += 1;
    }
    let drained = ready.ring(0).drain(&ready.region, Incomplete::Wait, |_| {});
    assert_eq!((drained.taken + lost, drained.left), (told, 0));
}

#[test]
fn what_only_the_thread_itself_could_do_is_refused() {
    use Moment::{Entry, Inside, Return};
    let ask = |what| program(vec![Statement::Set(LocalId(0), Expression::Context(what))]);
    let stack = program(vec![Statement::If(
        Expression::Int(0),
        vec![Statement::Stack { into: LocalId(0), frames: 3, by: StackWalk::Tables }],
        vec![],
    )]);
    let signal = program(vec![Statement::Signal(Expression::Int(9))]);
    let delay = program(vec![Statement::Delay(Expression::Int(9))]);
    let change = program(vec![Statement::Change(Change::Result, Expression::Int(9))]);
    let operand = program(vec![Statement::Operand { into: LocalId(0), argument: 0, ok: None }]);
    let clears = |capacity| {
        let map = Map {
            name: "@".into(),
            key: 8,
            value: MapValue::Bytes(8),
            capacity,
            sharing: MapSharing::Shared,
        };
        Program { maps: vec![map], ..program(vec![Statement::MapClear(MapId(0))]) }
    };
    let cases: [(&Program, Moment, Option<Untraced>, Option<Untraced>); 16] = [
        (&stack, Entry, Some(Untraced::Stack), Some(Untraced::Stack)),
        (&signal, Entry, Some(Untraced::Signal), Some(Untraced::Signal)),
        (&delay, Entry, Some(Untraced::Delay), Some(Untraced::Delay)),
        (&change, Entry, Some(Untraced::Change), Some(Untraced::Change)),
        (&clears(FUEL), Entry, None, None),
        (&clears(FUEL + 1), Entry, Some(Untraced::LargeMap), Some(Untraced::LargeMap)),
        (&operand, Inside, None, Some(Untraced::Operand)),
        (&ask(Context::FloatRegister(0)), Entry, None, Some(Untraced::Float)),
        (&ask(Context::FloatResult), Return, None, Some(Untraced::Float)),
        (&ask(Context::Argument(1)), Entry, None, None),
        (&ask(Context::Argument(1)), Inside, None, Some(Untraced::Argument)),
        (&ask(Context::Register(8)), Entry, None, Some(Untraced::Register)),
        (&ask(Context::Register(7)), Entry, None, None),
        (&ask(Context::Duration), Entry, Some(Untraced::Elsewhere), Some(Untraced::Elsewhere)),
        (&ask(Context::Frame), Inside, Some(Untraced::Elsewhere), Some(Untraced::Elsewhere)),
        (&ask(Context::Argument(0)), Return, Some(Untraced::Elsewhere), Some(Untraced::Elsewhere)),
    ];
    for (program, moment, wide, narrow) in cases {
        let refused =
            [Machine::X86_64, Machine::I386].map(|machine| check(program, BodyId(0), moment, machine).err());
        assert_eq!(refused, [wide, narrow], "{moment:?} {:?}", program.bodies[0].code);
    }
    assert_eq!(check(&signal, BodyId(1), Entry, Machine::X86_64), Err(Untraced::Missing));
}
