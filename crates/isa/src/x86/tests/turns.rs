//! Turns: (name, code, padding, targets, expected).

use super::hex;
use crate::{BranchTargets, Displaced, Flow, Machine, Past, Reason, Site};
use alloc::{string::String, vec::Vec};

const AT: u64 = 0x40_1000;

/// push rbp; mov rbp,rsp; push rbx: what is displaced.
const ENTRY: &str = "554889e553";
const ENDBR: &str = "f30f1efa";

/// Of each turn: offsets of its start and end, and how many instructions are moved.
type Turns = Result<Vec<(u64, u64, u8)>, Reason>;

struct Case {
    name: &'static str,
    code: String,
    padding: &'static str,
    targets: Vec<u64>,
}

fn case(name: &'static str, code: &[&str]) -> Case {
    Case { name, code: code.concat(), padding: "", targets: alloc::vec![0] }
}

impl Case {
    fn padding(self, padding: &'static str) -> Self {
        Self { padding, ..self }
    }

    fn targets(self, targets: &[u64]) -> Self {
        Self { targets: targets.to_vec(), ..self }
    }

    fn turns_at(
        &self,
        machine: Machine,
        address: u64,
        known: impl Fn(BranchTargets) -> BranchTargets,
    ) -> Turns {
        let (code, padding) = (hex(&self.code), hex(self.padding));
        let targets = known(BranchTargets::new(self.targets.iter().map(|target| AT + target).collect()));
        let site = Site { address, padding: &padding, ..Site::new(AT, &code, &targets) };
        let isa = machine.isa();
        let displaced = isa.verdict(&site).jump?;
        let turns = isa.turns(&site, &displaced)?;
        for turn in &turns {
            assert!(turn.start >= displaced.end(), "{}", self.name);
        }
        Ok(turns.iter().map(|turn| (turn.start - AT, turn.end() - AT, turn.instructions)).collect())
    }

    fn turns(&self, machine: Machine) -> Turns {
        self.turns_at(machine, AT, |targets| targets)
    }
}

#[test]
fn jumps_back_to_the_entry_are_led_past_it() {
    for (case, expected) in [
        (case("none", &[ENTRY, "5b5dc3"]), &[][..]),
        (case("jmp rel32", &[ENTRY, "5b5d e9f4ffffff"]), &[(7, 12, 0)]),
        (case("jne rel32", &[ENTRY, "5b5d 0f85f3ffffff c3"]), &[(7, 13, 0)]),
        (case("bnd jmp rel32", &[ENTRY, "5b5d f2e9f3ffffff"]), &[(7, 13, 0)]),
        (
            case("several", &[ENTRY, "7406 90 e9f3ffffff e9eeffffff"]).targets(&[0, 13]),
            &[(8, 13, 0), (13, 18, 0)],
        ),
        (case("jne rel8, with what is behind", &[ENTRY, "75f9 31c0 5b 5d c3"]), &[(5, 10, 3)]),
        (case("jmp rel8, with filler", &[ENTRY, "ebf9 0f1f00 c3"]), &[(5, 10, 1)]),
        (case("jmp rel8, with padding", &[ENTRY, "ebf9"]).padding("909090"), &[(5, 10, 1)]),
        (case("jmp rel8, with what is ahead", &[ENTRY, "5b 4883c408 ebf4 c3"]), &[(6, 12, 2)]),
        (
            case("where somebody comes behind it", &[ENTRY, "5b 4883c408 75f4 31c0 5d c3"]).targets(&[0, 12]),
            &[(6, 12, 2)],
        ),
        (
            case("what is ahead, where the function is left behind it", &[ENTRY, "5b 4883c408 75f4 c3"])
                .padding("cccc"),
            &[(6, 12, 2)],
        ),
        (case("with the return, where nothing else is", &[ENTRY, "75f9 c3"]).padding("cccc"), &[(5, 10, 2)]),
        (
            case("what is jumped to at its first instruction", &[ENTRY, "75f9 31c0 5b 5d c3"])
                .targets(&[0, 5, 10]),
            &[(5, 10, 3)],
        ),
        (case("loop", &[ENTRY, "e2f9 31c0 5b 5d c3"]), &[(5, 10, 3)]),
        (case("jrcxz", &[ENTRY, "e3f9 31c0 5b 5d c3"]), &[(5, 10, 3)]),
        (case("two that are neighbours", &[ENTRY, "75f9 78f7 31c0 5b 5d c3"]), &[(5, 11, 3)]),
        (case("a long one among the neighbours", &[ENTRY, "75f9 0f88f3ffffff 5b 5d c3"]), &[(5, 13, 2)]),
        (case("itself displaced", &["4883ef01 75fa c3"]), &[]),
        (case("to the landing place", &[ENDBR, ENTRY, "5b5d e9f0ffffff"]), &[(11, 16, 0)]),
        (case("behind it", &[ENDBR, ENTRY, "5b5d e9f4ffffff"]).targets(&[4]), &[(11, 16, 0)]),
        (
            case("either", &[ENDBR, ENTRY, "5b5d 0f85efffffff e9eeffffff"]).targets(&[0, 4]),
            &[(11, 17, 0), (17, 22, 0)],
        ),
        (
            case("code behind a stop, where somebody jumps", &[ENTRY, "7401 c3 e9f3ffffff"]).targets(&[0, 8]),
            &[(8, 13, 0)],
        ),
    ] {
        assert_eq!(case.turns(Machine::X86_64).as_deref(), Ok(expected), "{}", case.name);
    }
}

#[test]
fn where_a_jump_back_cannot_be_changed_the_entry_is_refused() {
    for case in [
        case("nothing behind it", &[ENTRY, "75f9 c3"]),
        case("only what is displaced ahead of it", &["4889e5 ffc8 75f9 c3"]),
        case("somebody comes behind it", &[ENTRY, "75f9 31c0 5b 5d c3"]).targets(&[0, 7]),
        case("a call behind it", &[ENTRY, "75f9 e800000000 5b 5d c3"]),
        case("a call ahead of it, of which it is behind", &[ENTRY, "e800000000 75f4 c3"]),
        case("a landing place behind it", &[ENTRY, "75f9 f30f1efa c3"]),
        case("what must stay behind it", &[ENTRY, "75f9 0f05 5b 5d c3"]),
        case("code of another function behind it", &[ENTRY, "ebf9"]).padding("554889e5"),
        case("somebody jumps over its prefix", &[ENTRY, "5b5d f2e9f3ffffff"]).targets(&[0, 8]),
        case("a table behind a return, maybe", &[ENTRY, "c3 e9f5ffffff"]),
        case("one that can be changed, and one that cannot", &[ENTRY, "75f9 c3 e9f3ffffff"]).targets(&[0, 8]),
        case("what does not decode", &[ENTRY, "5b5d e9f4ffffff 06"]),
        case("what is cut off", &[ENTRY, "5b5d e9f4ffffff 0f"]),
        case("displaced, and to the landing place", &[ENDBR, "ffc8 75f8 31c0 c3"]),
    ] {
        let refused = Err(Reason::BranchInto(AT));
        assert_eq!(case.turns(Machine::X86_64), refused, "{}", case.name);
    }
    let case = case("jmp rel32", &[ENTRY, "5b5d e9f4ffffff"]);
    let entry = |known: fn(BranchTargets) -> BranchTargets| case.turns_at(Machine::X86_64, AT, known);
    assert_eq!(entry(|targets| targets.with_beginning_again(alloc::vec![AT])), Err(Reason::BranchInto(AT)));
    assert_eq!(entry(|targets| targets.with_computed(alloc::vec![AT])), Err(Reason::ComputedJump));
    // A probe at another instruction counts each time that one runs.
    let inside = case.turns_at(Machine::X86_64, AT + 5, |targets| targets);
    assert_eq!(inside, Ok(Vec::new()));
}

#[test]
fn turns_of_32_bit_code() {
    for (case, expected) in [
        (case("jmp rel32", &["5589e55356 5b5d e9f4ffffff"]), Ok(alloc::vec![(7, 12, 0)])),
        (case("jecxz", &["5589e55356 e3f9 31c0 5b 5d c3"]), Ok(alloc::vec![(5, 10, 3)])),
        (case("jmp rel16", &["5589e55356 5b5d 66e9f5ff c3"]).targets(&[0x1000]), Ok(alloc::vec![])),
    ] {
        assert_eq!(case.turns(Machine::I386), expected, "{}", case.name);
    }
}

#[test]
fn a_jump_that_is_changed_in_its_place_keeps_all_but_where_it_leads() {
    let to = AT + 0x10_0000;
    for (code, machine) in [
        ("e9f4ffffff", Machine::X86_64),
        ("0f85f3ffffff", Machine::X86_64),
        ("f2e9f3ffffff", Machine::X86_64),
        ("2e0f84f3ffffff", Machine::X86_64),
        ("e9f4ffffff", Machine::I386),
        ("0f8ff3ffffff", Machine::I386),
    ] {
        let (original, isa) = (hex(code), machine.isa());
        let turn = Displaced { start: AT, length: original.len() as u8, instructions: 0 };
        let turned = isa.turned(&turn, &original, to).unwrap();
        let opcode = original.len() - 4;
        assert_eq!(turned[..opcode], original[..opcode], "{code}");
        let target = match isa.decode(&turned, AT).unwrap().flow {
            Flow::Jump { target } | Flow::Branch { target } => target,
            other => panic!("{other:?}"),
        };
        assert_eq!(target, to, "{code}");
    }
    let isa = Machine::X86_64.isa();
    let turn = |length, instructions| Displaced { start: AT, length, instructions };
    let long = hex("e9f4ffffff");
    assert_eq!(isa.turned(&turn(5, 0), &long, AT + (1 << 40)), Err(Reason::OutOfReach));
    assert_eq!(isa.turned(&turn(6, 0), &hex("e9f4ffffff90"), to), Err(Reason::TooShort));
    assert_eq!(isa.turned(&turn(2, 0), &hex("ebf9"), to), Err(Reason::TooShort));
    assert_eq!(isa.turned(&turn(2, 0), &hex("e9f4"), to), Err(Reason::NotAnInstruction));
    assert_eq!(isa.turned(&turn(5, 0), &hex("e8f4ffffff"), to), Err(Reason::TooShort));
    let moved = isa.turned(&turn(6, 2), &hex("75f931c09090"), to).unwrap();
    assert_eq!(moved, [0xe9, 0xfb, 0xff, 0x0f, 0, 0xcc]);
}

#[test]
fn a_moved_turn_leads_to_the_copy_of_the_entry_and_all_else_where_it_led() {
    let isa = Machine::X86_64.isa();
    // jne to the landing place; js behind it; jmp elsewhere.
    let original = hex("75ee 78f0 eb10");
    let turn = Displaced { start: AT + 16, length: 6, instructions: 3 };
    let past = Past { function: AT, start: AT + 4, copy: AT + 0x2000 };
    let moved = isa.moved(&turn, &original, AT + 0x3000, Some(past)).unwrap();
    let mut led = Vec::new();
    isa.flows(&moved.code, AT + 0x3000, &mut |flow| {
        if let Flow::Jump { target } | Flow::Branch { target } = flow {
            led.push(target - AT);
        }
    });
    assert_eq!(led, [0x2000, 0x2000, 38, 22]);
    assert_eq!(moved.places.iter().map(|place| place.0 - AT).collect::<Vec<_>>(), [16, 18, 20, 22]);
}
