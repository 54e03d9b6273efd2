//! What the code looks like: what must be one instruction is one, and what must not be there is not.

use crate::machine::TARGET;
use crate::scripts::*;
use trapless_isa::body::Code;
use trapless_isa::frames::{Point, Saved};
use trapless_isa::x86::X86_64;
use trapless_isa::{Flow, Isa};
use trapless_script::ir::*;
use trapless_script::native::{Moment, compile};

/// The instructions of a piece that can be reached.
fn instructions(code: &Code) -> Vec<String> {
    let mut seen = std::collections::BTreeMap::new();
    let mut open = vec![0usize];
    while let Some(at) = open.pop() {
        if seen.contains_key(&at) {
            continue;
        }
        let decoded = X86_64.decode(&code.bytes[at..], at as u64).unwrap();
        let length = usize::from(decoded.length);
        seen.insert(at, X86_64.disassemble(&code.bytes[at..at + length], at as u64));
        assert_ne!(decoded.flow, Flow::IndirectJump, "whoever follows the code could not");
        assert!(!matches!(decoded.flow, Flow::Call { .. }), "calls go by holes");
        if decoded.flow.falls_through() {
            open.push(at + length);
        }
        if let Flow::Jump { target } | Flow::Branch { target } = decoded.flow {
            open.push(target as usize);
        }
    }
    seen.into_values().collect()
}

fn compiled(program: &Program) -> (Vec<Code>, Vec<Code>) {
    let bodies: Vec<_> = (0..program.bodies.len() as u32).map(|body| (BodyId(body), Moment::Entry)).collect();
    let native = compile(program, &bodies, &TARGET).unwrap();
    (native.code.bodies, native.code.routines)
}

fn count(text: &[String], what: &str) -> usize {
    text.iter().filter(|line| line.contains(what)).count()
}

#[test]
fn a_thread_adds_to_its_own_words_by_one_instruction() {
    let cases = [
        (one(Aggregation::Count, MapSharing::PerThread), 1),
        (one(Aggregation::Sum, MapSharing::PerThread), 1),
        (one(Aggregation::Average, MapSharing::PerThread), 2),
        (one(Aggregation::Hist { bits: 3 }, MapSharing::PerThread), 1),
        (keyed(argument(0), Aggregation::Count, MapSharing::PerThread), 1),
    ];
    for (program, adds) in cases {
        let (bodies, _) = compiled(&program);
        let text = instructions(&bodies[0]);
        let in_memory = text.iter().filter(|line| line.starts_with("add") && line.contains("],"));
        assert_eq!(in_memory.count(), adds, "{text:#?}");
        assert_eq!(count(&text, "lock"), 0, "{text:#?}");
    }
}

#[test]
fn shared_words_are_added_to_with_a_lock_and_a_threads_own_tables_have_none() {
    let (bodies, _) = compiled(&one(Aggregation::Count, MapSharing::Shared));
    assert_eq!(count(&instructions(&bodies[0]), "lock"), 1);
    let (_, routines) = compiled(&keyed(argument(0), Aggregation::Count, MapSharing::Shared));
    assert!(routines.iter().map(|code| count(&instructions(code), "lock")).sum::<usize>() > 5);
    let (_, routines) = compiled(&latency());
    let text: Vec<String> = routines.iter().flat_map(instructions).collect();
    assert_eq!(count(&text, "lock"), 0);
    assert!(count(&text, "cmpxchg") > 5);
}

#[test]
fn code_has_nothing_that_bodies_may_not_have() {
    let (_memory, addresses) = crate::random::memory();
    let options = crate::random::options(addresses);
    let programs = (1..60).map(|seed| trapless_script::arbitrary::program(seed, &options));
    for program in programs.chain([latency(), printf(), by_string(64)]) {
        let (bodies, routines) = compiled(&program);
        for code in bodies.iter().chain(&routines) {
            assert!(code.is_sound(routines.len()));
            // Handlers of signals are shown the program wherever they interrupt it: no way through it loses where a register was saved.
            let points = trapless_isa::Machine::X86_64.isa().body_frames(&code.bytes);
            let is_lost = |point: &&Point| point.stands.is_none() && point.saved != Saved::default();
            assert_eq!(points.iter().find(is_lost), None, "{:?}", instructions(code));
            for line in instructions(code) {
                let name = line.split([' ', '\t']).find(|word| *word != "lock").unwrap_or_default();
                let is_string = ["movs", "stos", "cmps", "scas", "lods", "rep"].iter().any(|string| {
                    name.starts_with(string)
                        && !["movsx", "movsd", "movss", "movsxd"].contains(&name)
                        && !name.starts_with("movsx")
                });
                assert!(!is_string, "{line}");
                for other in ["std", "cld", "popf", "pushf", "xchg", "mfence", "ldmxcsr", "fld", "int", "hlt"]
                {
                    assert_ne!(name, other, "{line}");
                }
            }
        }
    }
}

#[test]
fn what_only_counts_says_so_and_where() {
    let own = || one(Aggregation::Count, MapSharing::PerThread);
    let (bodies, _) = compiled(&own());
    let offset = bodies[0].counts.unwrap();
    let text = instructions(&bodies[0]);
    assert_eq!(count(&text, &format!("+{offset:#x}], 1")), 1, "{text:#?}");
    let mut weighted = own();
    if let Statement::Aggregate { weight, .. } = &mut weighted.bodies[0].code[0] {
        *weight = Some(Expression::Int(2));
    }
    let mut twice = own();
    let counting = twice.bodies[0].code[0].clone();
    twice.bodies[0].code.push(counting);
    for (what, program) in [
        ("shared", one(Aggregation::Count, MapSharing::Shared)),
        ("another aggregation", one(Aggregation::Sum, MapSharing::PerThread)),
        ("with a key", keyed(argument(0), Aggregation::Count, MapSharing::PerThread)),
        ("behind a filter", filter()),
        ("twice", twice),
        ("by 2", weighted),
        ("nothing", empty()),
    ] {
        assert_eq!(compiled(&program).0[0].counts, None, "{what}");
    }
}
