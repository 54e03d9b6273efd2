//! When which probes run, what is printed meanwhile, and how a script ends.

use super::*;
use crate::interp::maps::Tables;
use crate::ir::{
    Binary, Body, Expression, LocalId, Map, MapSharing, MapValue, Part, PartKind, Place, Scalar, Statement,
};
use crate::message::{Channel, Format, MapPrint, Message, ValuePrint};
use crate::output::{Layout, Ran, Symbol, Zone};
use crate::shape::{Shape, TimeBase};

/// The tool's process. It gets no signals and reads nothing.
struct Own;

impl Hit for Own {
    fn context(&mut self, _: Context) -> u64 {
        77
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> usize {
        0
    }

    fn stack(&mut self, _: u8, _: StackWalk) -> u64 {
        0
    }

    fn thread_name(&mut self) -> [u8; 16] {
        [0; 16]
    }

    fn signal(&mut self, _: i64) {}
}

impl Resolver for Own {
    fn stack(&mut self, _: u64) -> Vec<u64> {
        Vec::new()
    }

    fn symbols(&mut self, _: u32, _: u64) -> Vec<Symbol> {
        Vec::new()
    }

    fn build_id(&mut self, _: u32, _: u64) -> Option<(Vec<u8>, u64)> {
        None
    }

    fn probe(&mut self, site: u64) -> String {
        format!("probe{site}")
    }

    fn function(&mut self, _: u64) -> String {
        String::new()
    }

    fn user(&mut self, _: u64) -> Option<String> {
        None
    }

    fn cgroup(&mut self, _: u64) -> Option<String> {
        None
    }

    fn now(&mut self) -> i64 {
        0
    }

    fn clock_start(&mut self, _: TimeBase) -> i64 {
        0
    }

    fn zone(&mut self, _: i64) -> Zone {
        Zone::default()
    }

    fn file(&mut self, _: &[u8], _: usize) -> io::Result<Vec<u8>> {
        Err(io::Error::from_raw_os_error(2))
    }

    fn command(&mut self, _: &[u8]) -> io::Result<Ran> {
        Err(io::Error::from_raw_os_error(2))
    }
}

const SAY: MessageId = MessageId(0);
const EXIT: MessageId = MessageId(1);
const RESULT: MessageId = MessageId(2);
const PRINT: MessageId = MessageId(3);

fn emit(message: MessageId, value: Expression) -> Statement {
    Statement::Emit { message, parts: vec![Part::Word(value)] }
}

/// Prints the site that it runs at, and a number.
fn say(number: i64) -> Vec<Statement> {
    let site = Expression::Binary(
        Binary::Multiply,
        Box::new(Expression::Context(Context::Site)),
        Box::new(Expression::Int(100)),
    );
    let sum = Expression::Binary(Binary::Add, Box::new(site), Box::new(Expression::Int(number)));
    vec![emit(SAY, sum)]
}

fn exit(code: i64) -> Vec<Statement> {
    vec![emit(EXIT, Expression::Int(code)), Statement::Return]
}

fn count() -> Statement {
    Statement::MapAdd { map: MapId(0), key: Place::Scratch(0), amount: Expression::Int(1), before: None }
}

/// A machine with one body for each probe, a counter `@` and messages to say, exit, give a result and print the counter.
fn machine(probes: Vec<(Event, Vec<Statement>)>, layout: Layout) -> Machine {
    let word = Shape::Int { size: 8, signed: true };
    let messages = Messages {
        messages: vec![
            Message::Print(Channel::Out, Format { format: "%d\n".into(), arguments: vec![word.clone()] }),
            Message::Exit,
            Message::Result,
            Message::PrintMap(MapId(0)),
        ],
        maps: vec![MapPrint { name: "@".into(), key: None, value: ValuePrint::Plain(word), at_exit: true }],
    };
    let (events, bodies): (Vec<Event>, Vec<Vec<Statement>>) = probes.into_iter().unzip();
    let program = Program {
        maps: vec![map()],
        messages: vec![
            vec![PartKind::Word],
            vec![PartKind::Word],
            vec![PartKind::Word],
            vec![PartKind::Word, PartKind::Word],
        ],
        bodies: bodies.into_iter().map(|code| Body { locals: vec![Scalar::Int], scratch: 0, code }).collect(),
        fuel: 10,
        ..Program::default()
    };
    let probes = (0..).zip(events).map(|(index, event)| OwnProbe {
        event,
        body: BodyId(index),
        site: u64::from(index) + 1,
    });
    let options = Options { layout, ..Options::default() };
    Machine::new(program, messages, probes.collect(), options).expect("a verified program")
}

/// The only map.
fn map() -> Map {
    Map { name: "@".into(), key: 0, value: MapValue::Bytes(8), capacity: 1, sharing: MapSharing::Shared }
}

fn tables() -> Tables {
    Tables::new(&Program { maps: vec![map()], ..Program::default() })
}

/// Does something with a machine whose map is empty and gives what was printed on both streams.
fn told<T>(act: impl FnOnce(&mut Outside<'_>) -> T) -> (String, String, T) {
    told_with(&mut tables(), act)
}

fn told_with<T>(tables: &mut Tables, act: impl FnOnce(&mut Outside<'_>) -> T) -> (String, String, T) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let streams = Streams { out: &mut out, err: &mut err };
    let result = act(&mut Outside { hit: &mut Own, maps: tables, resolver: &mut Own, streams });
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(out), text(err), result)
}

#[test]
fn probes_of_one_event_run_in_the_order_of_the_script() {
    let mut machine = machine(
        vec![(Event::End, say(1)), (Event::Begin, say(2)), (Event::End, say(3)), (Event::Begin, say(4))],
        Layout::Text,
    );
    assert!(machine.is_idle());
    let (out, _, code) = told(|outside| {
        machine.begin(0, outside).expect("written");
        assert_eq!(machine.next_deadline(), None);
        machine.finish(outside).expect("written")
    });
    assert_eq!((out.as_str(), code), ("202\n404\n101\n303\n\n\n", 0));
}

#[test]
fn intervals_run_when_they_are_due() {
    let probes =
        vec![(Event::Interval(10), say(1)), (Event::Interval(25), say(2)), (Event::Interval(10), say(3))];
    let mut machine = machine(probes, Layout::Text);
    assert!(!machine.is_idle());
    let mut at = |now| {
        let (out, ..) = told(|outside| {
            if now == 100 {
                machine.begin(now, outside).expect("written");
            }
            machine.tick(now, outside).expect("written");
        });
        (out.replace('\n', " "), machine.next_deadline())
    };
    // Not at once.
    assert_eq!(at(100), (String::new(), Some(110)));
    assert_eq!(at(109), (String::new(), Some(110)));
    assert_eq!(at(110), ("101 303 ".into(), Some(120)));
    // The longest due first; what was missed is not made up for.
    assert_eq!(at(147), ("101 303 202 ".into(), Some(150)));
    assert_eq!(at(150), ("101 202 303 ".into(), Some(160)));
    assert_eq!(at(u64::MAX), ("101 303 202 ".into(), Some(u64::MAX)));
}

#[test]
fn exit_ends_its_probe_and_silences_others_until_the_end() {
    let code = [exit(69), say(9), vec![count()]].concat();
    let silent = [say(8), vec![count()]].concat();
    let probes = vec![
        (Event::Begin, code),
        (Event::Begin, silent.clone()),
        (Event::Interval(1), silent),
        (Event::End, say(7)),
    ];
    let mut machine = machine(probes, Layout::Text);
    let (out, _, code) = told(|outside| {
        machine.begin(0, outside).expect("written");
        assert!(machine.is_over());
        machine.tick(5, outside).expect("written");
        machine.finish(outside).expect("written")
    });
    assert_eq!((out.as_str(), code), ("407\n\n\n@: 1\n", 69));
}

#[test]
fn the_end_may_choose_the_exit_code() {
    let mut machine = machine(vec![(Event::Begin, exit(1)), (Event::End, exit(2))], Layout::Json);
    let (out, _, code) = told(|outside| {
        machine.begin(0, outside).expect("written");
        machine.finish(outside).expect("written")
    });
    assert_eq!((out.as_str(), code), ("", 2));
}

#[test]
fn maps_are_printed_as_they_are_at_that_moment() {
    let print = Statement::Emit {
        message: PRINT,
        parts: vec![Part::Word(Expression::Int(0)), Part::Word(Expression::Int(0))],
    };
    let code = vec![count(), print.clone(), count(), print, Statement::MapClear(MapId(0))];
    let mut machine = machine(vec![(Event::Begin, code)], Layout::Text);
    let (out, ..) = told(|outside| {
        machine.begin(0, outside).expect("written");
        machine.finish(outside).expect("written")
    });
    assert_eq!(out, "@: 1\n@: 2\n\n\n");
}

#[test]
fn signals_have_their_probes_or_their_usual_meaning() {
    let mut machine = machine(vec![(Event::Signal(10), say(1)), (Event::Signal(10), say(2))], Layout::Text);
    assert!(!machine.is_idle());
    let (out, _, known) =
        told(|outside| [10, 12].map(|number| machine.signal(number, outside).expect("written")));
    assert_eq!((out.as_str(), known), ("101\n202\n", [true, false]));
}

#[test]
fn results_of_tests_are_given() {
    let give = |value| vec![emit(RESULT, Expression::Int(value)), Statement::Return];
    let probes = vec![
        (Event::Test("a".into()), give(0)),
        (Event::Test("b".into()), give(-1)),
        (Event::Test("c".into()), say(1)),
    ];
    let mut machine = machine(probes, Layout::Text);
    let bodies: Vec<(BodyId, u64)> = machine.probes().iter().map(|probe| (probe.body, probe.site)).collect();
    let (_, _, results) = told(|outside| {
        let run = |(body, site)| machine.run(body, site, outside).expect("written");
        bodies.into_iter().map(run).collect::<Vec<Option<i64>>>()
    });
    assert_eq!(results, [Some(0), Some(-1), None]);
}

#[test]
fn a_body_that_goes_round_too_often_is_ended_and_told() {
    let code = vec![Statement::Loop(vec![count()]), emit(SAY, Expression::Int(0))];
    let mut machine = machine(vec![(Event::Begin, code)], Layout::Text);
    let (out, err, _) = told(|outside| {
        machine.begin(0, outside).expect("written");
        machine.finish(outside).expect("written")
    });
    assert_eq!(out, "\n\n@: 10\n");
    assert!(err.starts_with("WARNING: probe1: The loops of this probe"), "{err}");
}

#[test]
fn what_full_maps_dropped_is_told_at_the_end() {
    let mut machine = machine(vec![(Event::Begin, vec![count()])], Layout::Text);
    // Nobody else has keys in a map of one value; here it shows that drops are told.
    let mut tables = tables();
    tables.set(MapId(0), &[1], &[0; 8]);
    let (_, err, _) = told_with(&mut tables, |outside| {
        machine.begin(0, outside).expect("written");
        machine.finish(outside).expect("written")
    });
    assert_eq!(
        err,
        "WARNING: Map full; can't update element. 1 update was dropped. Try increasing max_map_keys config or \
         manually setting the max entries in a map declaration e.g. `let @ = hash(5000)`\n"
    );
}

#[test]
fn a_stream_that_cannot_be_written_ends_it() {
    struct Closed;
    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(32))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut machine = machine(vec![(Event::Begin, [say(1), say(2)].concat())], Layout::Text);
    let (mut out, mut err) = (Closed, Vec::new());
    let streams = Streams { out: &mut out, err: &mut err };
    let (maps, resolver) = (&mut tables(), &mut Own);
    let mut outside = Outside { hit: &mut Own, maps, resolver, streams };
    let error = machine.begin(0, &mut outside).expect_err("it is closed");
    assert_eq!(error.raw_os_error(), Some(32));
}

#[test]
fn programs_are_verified() {
    let code = vec![Statement::Set(LocalId(9), Expression::Int(0))];
    let program = Program { bodies: vec![Body { locals: vec![], scratch: 0, code }], ..Program::default() };
    let error = Machine::new(program, Messages::default(), vec![], Options::default()).map(|_| ());
    assert_eq!(
        error.expect_err("there is no such local").to_string(),
        "body 0, statement 0: there is no local 9"
    );
}
