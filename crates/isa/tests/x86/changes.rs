//! Bodies that change what a call does, run by this processor: the program finds that, and everything else as it was.

use crate::bodies::some_layout;
use crate::detours::*;
use crate::machine::*;
use crate::processor::Random;
use iced_x86::code_asm::*;
use trapless_isa::body::{Change, Extra, LEFT_OUT, Run, Runs, SKIPPED, Takes};
use trapless_isa::detour::*;
use trapless_isa::payload::*;
use trapless_isa::{BranchTargets, Machine as Isa, Reason, Site};

/// Where bodies stand: in the arena, behind all detours. The second one is for a second body.
const BODIES: [u64; 2] = [ARENA + 0xa000, ARENA + 0xb000];

/// What a body writes: the word, and what to.
type Written = (u32, u64);

/// What is skipped returns: nothing, or a number.
type Returns = Option<u64>;

/// A function that loses what others keep for their callers, as a switch of contexts does: `xor ebx, ebx` and so on.
const LOSES_ALL: (&str, &[u8], &[u8]) = (
    "xor eax,eax; xor ebx,ebx; xor ebp,ebp; xor r12d,r12d; xor r13d,r13d; xor r14d,r14d; xor r15d,r15d",
    &[
        0x31, 0xc0, 0x31, 0xdb, 0x31, 0xed, 0x45, 0x31, 0xe4, 0x45, 0x31, 0xed, 0x45, 0x31, 0xf6, 0x45, 0x31,
        0xff,
    ],
    &[],
);

const SKIP: u32 = Change::Skip as u32;
const RESULT: u32 = Change::Result as u32;

const fn argument(number: u32) -> u32 {
    Change::Arguments as u32 + number
}

/// Numbers of the registers of arguments.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// Of those that functions keep for their callers.
const KEPT: [usize; 6] = [3, 5, 12, 13, 14, 15];

/// A body that writes these.
fn body(takes: Takes, written: &[Written], address: u64) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let lies = 8 + 8 * takes.index(Extra::Changes).unwrap() as i32;
    let mut write = || -> Result<(), iced_x86::IcedError> {
        a.push(rax)?;
        a.push(rcx)?;
        a.mov(rax, qword_ptr(rsp + (16 + lies)))?;
        for &(word, to) in written {
            a.mov(rcx, to)?;
            a.mov(qword_ptr(rax + 8 * word), rcx)?;
        }
        a.pop(rcx)?;
        a.pop(rax)?;
        a.ret()
    };
    write().unwrap();
    a.assemble(address).unwrap()
}

fn run(takes: Takes, body: u64) -> Run<'static> {
    Run {
        body,
        takes,
        frame: 64,
        vectors: false,
        calculates: takes.has(Extra::Floats),
        site: 1,
        operands: &[],
    }
}

/// What bodies take beside it: what moves it, and what loses registers on the way.
fn takes() -> [Takes; 3] {
    let changes = Takes::of(&[Extra::Changes]);
    let clock = Takes::of(&[Extra::Time, Extra::Processor, Extra::Changes]);
    [changes, clock, Extra::ALL.into_iter().filter(|extra| *extra != Extra::Operands).collect()]
}

/// What the program finds at its exit with a probe whose bodies write these, from one state; and without one, in code that is `plain`, from what
/// `meant` makes of that state.
fn compare(
    machine: &Machine,
    random: &mut Random,
    (code, plain): (&[u8], &[u8]),
    payload: Payload,
    runs: Runs<'_>,
    meant: impl Fn(&mut State) -> Option<Returns>,
    context: &str,
) {
    machine.forget();
    let layout = some_layout(random);
    machine.write(FUNCTION, code);
    let place = ((FUNCTION, FUNCTION), (detour_at(0), Stack::Enough));
    let probed = Probed::calling(machine, code, place.0, place.1, &layout, payload, runs);
    let thread = Machine::thread(random.next() % 8);
    // Twice: a thread's first hit goes another way.
    for _ in 0..2 {
        let start = machine.random(random);
        let mut state = start.clone();
        let skipped = meant(&mut state);
        machine.set(SLOT, EXIT);
        let memory = machine.read(SLOT - 2048, 4096);
        machine.write(FUNCTION, plain);
        let expected = machine.run(thread, &state);
        let stack = machine.read(SLOT, 512);
        machine.write(FUNCTION, code);
        machine.write(SLOT - 2048, &memory);
        probed.arm();
        let found = machine.run(thread, &start);
        probed.disarm();
        assert_eq!(found.0, expected.0, "{context}");
        match skipped {
            // What functions keep for their callers, and what a call leaves.
            Some(returns) => {
                let result = returns.unwrap_or(start.registers[0]);
                let kept = |state: &State| KEPT.map(|number| state.registers[number]);
                assert_eq!(found.1.registers[0], result, "{context}");
                assert_eq!(kept(&found.1), kept(&start), "{context}");
                assert_eq!(machine.read(SLOT, 512), memory[2048..][..512], "{context}");
            }
            None => {
                assert_eq!(found.1.registers, expected.1.registers, "{context}");
                assert!(found.1 == expected.1, "{context}: flags or vectors");
                assert_eq!(machine.read(SLOT, 512), stack, "{context}");
            }
        }
        assert_eq!([machine.open_calls() as u64, machine.stacks_in_use()], [0; 2], "{context}");
    }
    assert_eq!([machine.sum(LOST), machine.sum(BLOCK_UNRUN)], [0; 2], "{context}");
}

#[test]
fn what_bodies_write_at_an_entry_are_the_functions_arguments_or_what_its_caller_gets() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(71);
    let (none, some) = ((argument(0), 5), 0xfedc_ba98_7654_3210);
    // What each of two bodies writes; the last one is heeded.
    let cases: [[&[Written]; 2]; 8] = [
        [&[], &[]],
        [&[(argument(0), 1), (argument(5), 2)], &[(argument(2), some)]],
        [&[(argument(3), some)], &[(argument(3), 7), (argument(1), 8), (argument(4), 9)]],
        [&[(SKIP, 1), (RESULT, some)], &[]],
        [&[(SKIP, 1), (RESULT, 1)], &[none, (RESULT, 2)]],
        [&[(SKIP, 1), (RESULT, 1)], &[(SKIP, 0)]],
        [&[(SKIP, LEFT_OUT as u64)], &[]],
        [&[(SKIP, 1), (RESULT, 1)], &[(SKIP, LEFT_OUT as u64), (RESULT, 2)]],
    ];
    for takes in takes() {
        for case in cases {
            for (written, address) in case.iter().zip(BODIES) {
                machine.write(address, &body(takes, written, address));
            }
            let runs = BODIES.map(|body| run(takes, body));
            let all = || case.iter().copied().flatten();
            let last = |word: u32| all().rev().find(|written| written.0 == word).map(|written| written.1);
            let meant = |state: &mut State| {
                for (number, register) in (0..).zip(ARGUMENTS) {
                    state.registers[register] = last(argument(number)).unwrap_or(state.registers[register]);
                }
                match last(SKIP).unwrap_or(0) {
                    0 => None,
                    skip => Some(last(RESULT).filter(|_| skip == u64::from(SKIPPED))),
                }
            };
            for &(name, prologue, epilogue) in PROLOGUES.iter().chain([&LOSES_ALL]) {
                let code = [prologue, epilogue, &[0xc3][..]].concat();
                for at_return in [None, Some(Steps::of([COUNT_RETURN, TIME]))] {
                    let followed = at_return.map(|steps| Followed { lost: LOST, steps, way: Way::Paired });
                    let entry = Steps::of([EntryStep::Count(HITS), EntryStep::Run(takes)]);
                    let payload = Payload { entry, followed, ..Payload::default() };
                    let context = format!("{name}, {takes:?}, {case:?}, followed: {}", followed.is_some());
                    let runs = Runs { entry: &runs, at_return: &[] };
                    compare(&machine, &mut random, (&code, &code), payload, runs, meant, &context);
                    assert_eq!(machine.sum(HITS), 2, "{context}");
                }
            }
        }
    }
}

#[test]
fn what_bodies_write_at_a_return_is_what_the_caller_gets() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(72);
    let some = 0xfedc_ba98_7654_3210;
    let cases: [[&[Written]; 2]; 4] =
        [[&[], &[]], [&[(RESULT, some)], &[]], [&[(RESULT, some)], &[(RESULT, 3)]], [&[(SKIP, 1)], &[]]];
    for takes in takes() {
        for case in cases {
            for (written, address) in case.iter().zip(BODIES) {
                machine.write(address, &body(takes, written, address));
            }
            let runs = BODIES.map(|body| run(takes, body));
            let last = case.iter().copied().flatten().rev().find(|written| written.0 == RESULT);
            for &(name, prologue, epilogue) in PROLOGUES {
                let plain = [prologue, epilogue, &[0xc3][..]].concat();
                let followed = Followed {
                    lost: LOST,
                    steps: Steps::of([COUNT_RETURN, ReturnStep::Run(takes), TIME]),
                    way: Way::Paired,
                };
                let payload = Payload { followed: Some(followed), ..Payload::default() };
                let context = format!("{name}, {takes:?}, {case:?}");
                let runs = Runs { entry: &[], at_return: &runs };
                // As if the function had ended so: `mov rax, imm64; ret`.
                let mut meant = plain.clone();
                if let Some((_, result)) = last {
                    meant.truncate(meant.len() - 1);
                    meant.extend([0x48, 0xb8].into_iter().chain(result.to_le_bytes()).chain([0xc3]));
                }
                compare(&machine, &mut random, (&plain, &meant), payload, runs, |_| None, &context);
            }
        }
    }
}

#[test]
fn nothing_is_changed_inside_of_functions_nor_where_calls_are_only_noted() {
    let changes = Takes::of(&[Extra::Changes]);
    let runs = [run(changes, BODIES[0])];
    let code = [&[0x0f, 0x1f, 0x44, 0, 0][..]; 3].concat();
    let targets = BranchTargets::default();
    let request = |behind: u64, way: Option<Way>, stack: Stack, at_return: bool| {
        let isa = Isa::X86_64.isa();
        let layout = layout(true);
        let site = Site { address: FUNCTION + behind, ..Site::new(FUNCTION, &code, &targets) };
        let displaced = isa.verdict(&site).jump.unwrap();
        let from = (displaced.start - FUNCTION) as usize;
        let runtime = isa.runtime(ARENA, &layout).unwrap();
        let steps = Steps::some_of([at_return.then_some(ReturnStep::Run(changes))]);
        let payload = Payload {
            entry: Steps::some_of([(!at_return).then_some(EntryStep::Run(changes))]),
            followed: way.map(|way| Followed { lost: LOST, steps, way }),
            ..Payload::default()
        };
        let runs = match at_return {
            true => Runs { entry: &[], at_return: &runs },
            false => Runs { entry: &runs, at_return: &[] },
        };
        let request = DetourRequest {
            runs,
            address: detour_at(0),
            displaced,
            original: &code[from..][..usize::from(displaced.length)],
            site: &site,
            payload,
            stack,
            layout: &layout,
            runtime: &runtime,
            operands: &[],
            tells: true,
        };
        isa.detour(&request).map(|_| ())
    };
    let noted = Way::Noted(Noted { probe: 1, by: Identity::Slot });
    let refused = Err(Reason::NoChanges);
    assert_eq!(request(0, None, Stack::Enough, false), Ok(()));
    assert_eq!(request(5, None, Stack::Enough, false), refused);
    assert_eq!(request(0, None, Stack::AskedInGo, false), refused);
    assert_eq!(request(0, Some(Way::Paired), Stack::Enough, true), Ok(()));
    assert_eq!(request(0, Some(noted), Stack::Enough, true), refused);
}
