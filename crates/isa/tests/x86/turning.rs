//! Functions that loop to their entries, run by this processor: with the jumps back led past the probe nothing but the counters changes,
//! and those count calls, not rounds.

use crate::detours::*;
use crate::machine::*;
use crate::processor::Random;
use trapless_isa::{BranchTargets, Displaced, Machine as Isa, Past, Site, detour::LATENCY_COUNT, payload::*};

/// How many rounds are left.
const LEFT: u64 = STACK + 0x2000;
/// dec qword ptr [LEFT]
const COUNT_DOWN: [u8; 8] = {
    let [a, b, c, d] = (LEFT as u32).to_le_bytes();
    [0x48, 0xff, 0x0c, 0x25, a, b, c, d]
};

/// A jump back: what is ahead of its displacement, how long that is, and what is behind it.
const JUMPS: &[(&str, &[u8], usize, &[u8])] = &[
    ("jns rel32", &[0x0f, 0x89], 4, &[]),
    ("js +5; jmp rel32", &[0x78, 5, 0xe9], 4, &[]),
    ("jns rel8; inc rcx; adc rdx,rsi", &[0x79], 1, &[0x48, 0xff, 0xc1, 0x48, 0x11, 0xf2]),
    ("lea rcx,[rcx+rdx]; jns rel8", &[0x48, 0x8d, 0x0c, 0x11, 0x79], 1, &[]),
    ("js +2; jmp rel8; adc rdx,rsi", &[0x78, 2, 0xeb], 1, &[0x48, 0x11, 0xf2]),
    (
        "setns cl; movzx ecx,cl; jrcxz +2; jmp rel8",
        &[0x0f, 0x99, 0xc1, 0x0f, 0xb6, 0xc9, 0xe3, 2, 0xeb],
        1,
        &[],
    ),
    (
        "sets cl; movzx ecx,cl; jrcxz rel8; inc rcx",
        &[0x0f, 0x98, 0xc1, 0x0f, 0xb6, 0xc9, 0xe3],
        1,
        &[0x48, 0xff, 0xc1],
    ),
];

/// A function that begins with `prologue`, undoes it, counts a round down, and jumps back `to`, in front of what comes behind.
fn looping(
    (prologue, epilogue): (&[u8], &[u8]),
    (jump, size, behind): (&[u8], usize, &[u8]),
    to: u64,
) -> (Vec<u8>, Vec<u64>) {
    let mut code = [prologue, epilogue, &COUNT_DOWN, jump].concat();
    let end = (code.len() + size) as i64;
    code.extend_from_slice(&(to as i64 - end).to_le_bytes()[..size]);
    let is_conditional = jump[jump.len() - 1] != 0xeb && jump[jump.len() - 1] != 0xe9;
    // Behind one that is not, only who jumps over it comes.
    let targets = if is_conditional { vec![to] } else { vec![to, end as u64] };
    code.extend_from_slice(behind);
    code.push(0xc3);
    (code, targets)
}

#[test]
fn c1_nothing_but_the_counters_changes_where_a_function_loops_to_its_entry() {
    let Some(machine) = Machine::new() else { return };
    let (mut random, isa) = (Random(31), Isa::X86_64.isa());
    let payloads: Vec<Payload> =
        all_payloads().into_iter().filter(|p| p.hooks.is_empty()).step_by(5).collect();
    let mut kinds = [0, 0];
    for &(name, prologue, epilogue) in PROLOGUES {
        let is_landing = prologue.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]);
        for (&(jump_name, jump, size, behind), to) in
            JUMPS.iter().flat_map(|jump| [0, 4].map(|to| (jump, to))).filter(|(_, to)| is_landing || *to == 0)
        {
            let (code, targets) = looping((prologue, epilogue), (jump, size, behind), to);
            let targets = BranchTargets::new(targets.iter().map(|target| FUNCTION + target).collect());
            let site = Site::new(FUNCTION, &code, &targets);
            let displaced =
                isa.verdict(&site).jump.unwrap_or_else(|why| panic!("{name}, {jump_name}: {why}"));
            let turns = isa.turns(&site, &displaced).unwrap();
            assert_eq!(turns.len(), 1, "{name}, {jump_name}");
            kinds[usize::from(turns[0].instructions > 0)] += 1;
            for payload in &payloads {
                let (layout, thread) =
                    (layout(random.next().is_multiple_of(2)), Machine::thread(random.next() % 8));
                machine.write(FUNCTION, &code);
                let probed = Probed::displacing(&machine, &site, displaced, detour_at(0), &layout, *payload);
                let turned = turned(
                    &machine,
                    &code,
                    &turns[0],
                    Past { function: FUNCTION, start: displaced.start, copy: probed.copies },
                );
                for round in 0..2 {
                    let context = format!("{name}, {jump_name} to {to}: {payload:?} round {round}");
                    let (start, rounds) = (machine.random(&mut random), random.next() % 4);
                    machine.set(SLOT, EXIT);
                    let memory = machine.read(SLOT - 1024, 2048);
                    let run = || {
                        machine.set(LEFT, rounds);
                        (machine.run(thread, &start), machine.read(SLOT + 8, 512), machine.get(LEFT))
                    };
                    let expected = run();
                    assert_eq!(expected.2, u64::MAX, "{context}: all rounds");
                    machine.write(SLOT - 1024, &memory);
                    probed.arm();
                    machine.write(turns[0].start, &turned);
                    let found = run();
                    machine.write(FUNCTION, &code);
                    assert_eq!(found.0.1.registers, expected.0.1.registers, "{context}");
                    assert!(found == expected, "{context}: flags, vectors or stack");
                    check_records(&machine, &start, &found.0.1, payload, false);
                    assert_eq!(machine.open_calls(), 0, "{context}");
                }
                let counts = u64::from(payload.entry.iter().any(|step| step == EntryStep::Count(HITS)));
                let counted = [HITS, RETURNS, LATENCY + LATENCY_COUNT, LOST].map(|c| machine.sum(c));
                let wanted = [2 * counts, 2 * asks(payload, COUNT_RETURN), 2 * asks(payload, TIME), 0];
                assert_eq!(counted, wanted, "{name}, {jump_name}: {payload:?}");
                machine.forget();
            }
        }
    }
    assert!(kinds.iter().all(|&kind| kind > 10), "{kinds:?}");
}

/// What is written at a turn, which leads `past` the probe; where it moves, its copy is written, too.
fn turned(machine: &Machine, code: &[u8], turn: &Displaced, past: Past) -> Vec<u8> {
    let isa = Isa::X86_64.isa();
    let original = &code[(turn.start - FUNCTION) as usize..][..usize::from(turn.length)];
    let to = match turn.instructions {
        0 => past.copy,
        _ => {
            let copy = detour_at(4);
            machine.write(copy, &isa.moved(turn, original, copy, Some(past)).unwrap().code);
            copy
        }
    };
    isa.turned(turn, original, to).unwrap()
}
