//! Calls that are noted at the entry and followed to where the function is left, run by this processor: nothing but the counters changes.

use crate::detours::*;
use crate::machine::*;
use crate::processor::Random;
use trapless_isa::{Site, detour::*, payload::*};

/// What precedes the epilogue and the exit: it makes room where they are short, and uses registers, flags and the red zone.
const BODIES: &[(&str, &[u8])] = &[
    ("inc rdx; adc rcx,rdi; nop3", &[0x48, 0xff, 0xc2, 0x48, 0x11, 0xf9, 0x0f, 0x1f, 0x00]),
    ("mov [rsp-16],rsi; mov rax,[rsp-16]", &[0x48, 0x89, 0x74, 0x24, 0xf0, 0x48, 0x8b, 0x44, 0x24, 0xf0]),
    ("stc; cmovc r8,r9; lahf; nop2", &[0xf9, 0x4d, 0x0f, 0x42, 0xc1, 0x9f, 0x66, 0x90]),
    ("js +0; test rdi,rdi; nop3", &[0x78, 0x00, 0x48, 0x85, 0xff, 0x0f, 0x1f, 0x00]),
];

/// The probe's number.
pub const PROBE: u32 = 0x1f_ffff;

fn noted(entry: Steps<EntryStep>, steps: Steps<ReturnStep>, probe: u32) -> [Payload; 2] {
    noted_by(Identity::Slot, entry, steps, probe)
}

pub fn noted_by(by: Identity, entry: Steps<EntryStep>, steps: Steps<ReturnStep>, probe: u32) -> [Payload; 2] {
    let followed = |way| Some(Followed { lost: LOST, steps, way });
    let call = Noted { probe, by };
    [
        Payload { hooks: Steps::default(), entry, followed: followed(Way::Noted(call)) },
        Payload { followed: followed(Way::Left(call)), ..Payload::default() },
    ]
}

/// A function whose entry and exit are probed.
pub fn probed<'m>(
    machine: &'m Machine,
    code: &[u8],
    (function, exit): (u64, usize),
    detour: u64,
    layout: &Layout,
    payloads: [Payload; 2],
) -> [Probed<'m>; 2] {
    machine.write(function, code);
    let at = |address, detour, payload| Probed::at(machine, code, function, address, detour, layout, payload);
    [at(function, detour, payloads[0]), at(function + exit as u64, detour + 0x400, payloads[1])]
}

#[test]
fn nothing_but_the_counters_changes_where_the_exits_are_probed() {
    nothing_but_the_counters_changes(Identity::Slot);
}

#[test]
fn r4_nothing_but_the_counters_changes_where_goroutines_calls_are_noted() {
    nothing_but_the_counters_changes(Identity::Goroutine);
}

/// Where goroutines are in the machine's memory; their register is r14.
const GOROUTINES: u64 = STACK + 64;
const R14: usize = 14;

/// Has a goroutine's stack end there, and gives its address.
pub fn goroutine(machine: &Machine, number: u64, stack_end: u64) -> u64 {
    let at = GOROUTINES + 32 * number;
    machine.set(at + u64::from(GOROUTINE_STACK_END), stack_end);
    at
}

fn nothing_but_the_counters_changes(by: Identity) {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(21);
    let paired = all_payloads().into_iter().filter(|p| p.hooks.is_empty() && p.followed.is_some());
    let paired: Vec<Payload> = paired.collect();
    for &(name, prologue, epilogue) in PROLOGUES {
        for &(body_name, body) in BODIES {
            let mut code = [prologue, body, epilogue, &[0xc3][..]].concat();
            let exit = code.len() - 1;
            code.resize(code.len() + 7, 0xcc);
            for payload in &paired {
                let self_pointer = random.next().is_multiple_of(2);
                let (layout, thread) = (layout(self_pointer), Machine::thread(random.next() % 8));
                let steps = payload.followed.unwrap().steps;
                let payloads = noted_by(by, payload.entry, steps, PROBE);
                let both = probed(&machine, &code, (FUNCTION, exit), detour_at(0), &layout, payloads);
                // Twice: a thread's first hit goes another way.
                for round in 0..2 {
                    let context = format!("{name}, {body_name}: {payload:?} round {round}");
                    let mut start = machine.random(&mut random);
                    let mut slot = SLOT;
                    if by == Identity::Goroutine {
                        let end = SLOT + 8 * (random.next() % (1 << 27));
                        start.registers[R14] = goroutine(&machine, random.next() % 8, end);
                        slot = goroutine_slot(start.registers[R14], end, SLOT);
                    }
                    machine.set(SLOT, EXIT);
                    let memory = machine.read(SLOT - 1024, 2048);
                    let expected = (machine.run(thread, &start), machine.read(SLOT, 512));
                    machine.write(SLOT - 1024, &memory);
                    both.iter().for_each(Probed::arm);
                    let found = (machine.run(thread, &start), machine.read(SLOT, 512));
                    both.iter().for_each(Probed::disarm);
                    assert_eq!(found.0.0, expected.0.0, "{context}");
                    assert_eq!(found.0.1.registers, expected.0.1.registers, "{context}");
                    assert!(found == expected, "{context}: flags, vectors or stack");
                    check_records_of(slot, &machine, &start, &found.0.1, payload, false);
                    assert_eq!(machine.open_calls(), 0, "{context}");
                }
                let counted = [HITS, RETURNS, LATENCY + LATENCY_COUNT, LOST].map(|c| machine.sum(c));
                let counts = u64::from(payload.entry.iter().any(|step| step == EntryStep::Count(HITS)));
                let wanted = [2 * counts, 2 * asks(payload, COUNT_RETURN), 2 * asks(payload, TIME), 0];
                assert_eq!(counted, wanted, "{name}, {body_name}: {payload:?}");
                machine.forget();
            }
        }
    }
}

/// nop5; `exit` at 5; then what fills the rest.
fn short(exit: &[u8]) -> Vec<u8> {
    let mut code = [&[0x0f, 0x1f, 0x44, 0, 0][..], exit].concat();
    code.resize(32, 0xcc);
    code
}

#[test]
fn an_exit_that_was_not_entered_counts_nothing() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(22);
    let layout = layout(true);
    let counting = noted(Steps::of([EntryStep::Count(HITS)]), Steps::of([COUNT_RETURN, TIME]), PROBE);
    let [_, exit] = probed(&machine, &short(&[0xc3]), (FUNCTION, 5), detour_at(0), &layout, counting);
    exit.arm();
    let start = machine.random(&mut random);
    machine.set(SLOT, EXIT);
    let (end, after) = machine.run(Machine::thread(1), &start);
    let mut wanted = start.registers;
    wanted[4] += 8;
    assert_eq!((end, after.registers, after.flags), (1, wanted, start.flags));
    assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), [0, 0, 0]);
}

#[test]
fn a_note_that_was_left_behind_is_the_next_calls() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(23);
    let layout = layout(false);
    for steps in [Steps::of([COUNT_RETURN]), Steps::of([COUNT_RETURN, TIME])] {
        machine.forget();
        let counting = noted(Steps::of([EntryStep::Count(HITS)]), steps, PROBE);
        let other = noted(Steps::of([EntryStep::Count(HITS)]), steps, 7);
        let far = FUNCTION + 0x100;
        let one = probed(&machine, &short(&[0xc3]), (FUNCTION, 5), detour_at(0), &layout, counting);
        let two = probed(&machine, &short(&[0xc3]), (far, 5), detour_at(1), &layout, other);
        let start = machine.random(&mut random);
        // Entered and left for good, by longjmp say; then the other function is called at the slot, and leaves.
        one[0].arm();
        machine.write_exit(FUNCTION + 5, 2);
        machine.set(SLOT, EXIT);
        assert_eq!(machine.run(Machine::thread(1), &start).0, 2);
        assert_eq!((machine.open_calls(), machine.get(machine.instance(SLOT))), (1, note(PROBE)));
        two.iter().for_each(Probed::arm);
        assert_eq!(machine.run_from(far, Machine::thread(2), &start).0, 1);
        assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), [2, 1, 0]);
        assert_eq!(machine.open_calls(), 0);
        // A thread without memory of its own leaves: counted together with its like.
        machine.set(SLOT, EXIT);
        assert_eq!(machine.run_from(far, 0, &start).0, 1);
        let follows_all = steps.iter().count() == 1;
        let wanted = if follows_all { [3, 2, 0] } else { [3, 1, 1] };
        assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), wanted);
    }
}

#[test]
fn r1_notes_and_pairs_reach_each_other_by_tail_calls() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(24);
    let layout = layout(true);
    // Each of up to eight functions is paired or noted, and jumps to the next.
    for length in 1..=8u64 {
        for choice in 0..1u64 << length {
            machine.forget();
            let mut all = Vec::new();
            for n in 0..length {
                let exit: Vec<u8> = match n + 1 < length {
                    true => vec![0xe9, 0xf6, 0, 0, 0], // jmp to the next one, 256 bytes after this one
                    false => vec![0xc3],
                };
                let (code, at) = (short(&exit), FUNCTION + 256 * n);
                match choice >> n & 1 {
                    0 => {
                        let steps = Steps::of([COUNT_RETURN]);
                        let payloads = noted(Steps::of([EntryStep::Count(HITS)]), steps, n as u32);
                        all.extend(probed(&machine, &code, (at, 5), detour_at(n), &layout, payloads));
                    }
                    _ => all.push(Probed::new(&machine, &code, at, detour_at(n), &layout, FOLLOW)),
                }
            }
            all.iter().for_each(Probed::arm);
            for _ in 0..2 {
                let start = machine.random(&mut random);
                machine.set(SLOT, EXIT);
                let (exit, after) = machine.run(Machine::thread(1), &start);
                let mut wanted = start.registers;
                wanted[4] += 8;
                assert_eq!((exit, after.registers, after.flags), (1, wanted, start.flags), "{choice:b}");
                assert_eq!(machine.open_calls(), 0, "{length} {choice:b}");
            }
            let counted = [HITS, RETURNS, LOST].map(|c| machine.sum(c));
            assert_eq!(counted, [2 * length, 2 * length, 0], "{length} {choice:b}");
        }
    }
}

#[test]
fn an_entry_whose_instructions_reach_to_the_exit_is_one_detour() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(25);
    let isa = trapless_isa::Machine::X86_64.isa();
    let targets = trapless_isa::BranchTargets::default();
    // A `ret` alone, behind instructions that use flags and the red zone, a jump to an exit, and behind a landing place.
    let codes: &[(&str, &[u8], u8)] = &[
        ("ret", &[0xc3], 0),
        ("mov eax,[rsp+16]; ret", &[0x8b, 0x44, 0x24, 0x10, 0xc3], 4),
        (
            "mov [rsp-8],rdx; adc rax,[rsp-8]; ret",
            &[0x48, 0x89, 0x54, 0x24, 0xf8, 0x48, 0x13, 0x44, 0x24, 0xf8, 0xc3],
            10,
        ),
        ("endbr64; inc rax; ret", &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0xff, 0xc0, 0xc3], 3),
        ("push rbp; pop rbp; nop2; ret", &[0x55, 0x5d, 0x66, 0x90, 0xc3], 4),
    ];
    for &(name, code, exit) in codes {
        let mut code = code.to_vec();
        code.resize(code.len() + 12, 0xcc);
        for steps in [
            Steps::of([COUNT_RETURN]),
            Steps::of([COUNT_RETURN, TIME]),
            Steps::of([COUNT_RETURN, RECORD_RETURN, TIME]),
        ] {
            machine.forget();
            machine.write(FUNCTION, &code);
            let layout = layout(random.next().is_multiple_of(2));
            let site = Site::new(FUNCTION, &code, &targets);
            let landing = if code[0] == 0xf3 { 4 } else { 0 };
            let displaced = isa.through(&site, FUNCTION + landing + u64::from(exit)).expect(name);
            let way = Way::Through { noted: Noted { probe: PROBE, by: Identity::Slot }, exit };
            let entry =
                Steps::of([EntryStep::Count(HITS), EntryStep::Record { id: RECORD_ENTRY, arguments: 6 }]);
            let payload = Payload {
                hooks: Steps::default(),
                entry,
                followed: Some(Followed { lost: LOST, steps, way }),
            };
            let probed = Probed::displacing(&machine, &site, displaced, detour_at(0), &layout, payload);
            for round in 0..3 {
                let thread = Machine::thread(random.next() % 2);
                let start = machine.random(&mut random);
                machine.set(SLOT, EXIT);
                let memory = machine.read(SLOT - 1024, 2048);
                let expected = (machine.run(thread, &start), machine.read(SLOT - 128, 512));
                machine.write(SLOT - 1024, &memory);
                probed.arm();
                let found = (machine.run(thread, &start), machine.read(SLOT - 128, 512));
                probed.disarm();
                assert_eq!(found.0.1.registers, expected.0.1.registers, "{name}, round {round}");
                assert!(found == expected, "{name}, round {round}: flags, vectors or stack");
                assert_eq!(machine.open_calls(), 0, "{name}");
            }
            assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), [3, 3, 0], "{name}");
        }
    }
}

#[test]
fn r4_a_goroutines_call_is_known_again_wherever_its_stack_and_thread_are() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(26);
    for self_pointer in [true, false] {
        let layout = layout(self_pointer);
        for steps in [Steps::of([COUNT_RETURN]), Steps::of([COUNT_RETURN, TIME])] {
            machine.forget();
            let counting = noted_by(Identity::Goroutine, Steps::of([EntryStep::Count(HITS)]), steps, PROBE);
            let both = probed(&machine, &short(&[0xc3]), (FUNCTION, 5), detour_at(0), &layout, counting);
            // Entered, and stopped ahead of the exit, which is probed later.
            both[0].arm();
            let enter = |number: u64, end: u64, thread: u64, random: &mut Random| {
                machine.write_exit(FUNCTION + 5, 2);
                let mut start = machine.random(random);
                start.registers[R14] = goroutine(&machine, number, end);
                assert_eq!(machine.run(Machine::thread(thread), &start).0, 2);
            };
            let leave = |number: u64, end: u64, slot: u64, thread: u64, random: &mut Random| {
                machine.write(FUNCTION + 5, &[0xc3, 0xcc, 0xcc, 0xcc, 0xcc]);
                both[1].arm();
                let mut start = machine.random(random);
                start.registers[4] = slot;
                start.registers[R14] = goroutine(&machine, number, end);
                machine.set(slot, EXIT);
                let (exit, after) = machine.run_from(FUNCTION + 5, Machine::thread(thread), &start);
                let mut wanted = start.registers;
                wanted[4] += 8;
                assert_eq!((exit, after.registers, after.flags), (1, wanted, start.flags));
            };
            let end = SLOT + 4096;
            let counts = || [HITS, RETURNS, LOST].map(|counter| machine.sum(counter));
            // Two goroutines at one slot; the first one's stack moves down, and it goes on as another thread.
            enter(1, end, 1, &mut random);
            enter(2, end, 2, &mut random);
            assert_eq!((machine.open_calls(), counts()), (2, [2, 0, 0]));
            let named = goroutine_slot(goroutine(&machine, 1, end), end, SLOT);
            assert_eq!(machine.get(machine.instance(named)), note(PROBE));
            leave(1, end - 512, SLOT - 512, 3, &mut random);
            assert_eq!((machine.open_calls(), counts()), (1, [2, 1, 0]));
            // A call at another depth, and one of another goroutine, are not it.
            leave(2, end + 8, SLOT, 2, &mut random);
            leave(1, end, SLOT, 2, &mut random);
            assert_eq!((machine.open_calls(), counts()), (1, [2, 1, 0]));
            // A panic has left the second one's call: the next one there wins.
            enter(2, end, 1, &mut random);
            leave(2, end, SLOT, 1, &mut random);
            assert_eq!((machine.open_calls(), counts()), (0, [3, 2, 0]));
            leave(2, end, SLOT, 1, &mut random);
            assert_eq!((machine.open_calls(), counts()), (0, [3, 2, 0]));
            // A thread without memory of its own.
            enter(3, end, 0, &mut random);
            leave(3, end, SLOT, 0, &mut random);
            let follows_all = steps.iter().count() == 1;
            assert_eq!(counts(), if follows_all { [4, 3, 0] } else { [4, 2, 1] });
        }
    }
}

#[test]
fn r4_goroutines_name_their_calls_apart() {
    // Of neighbours and of such that are far from each other, at all depths up to a gigabyte, a page each.
    let mut random = Random(27);
    let mut seen = std::collections::HashMap::new();
    for round in 0..200_000u64 {
        let goroutine = 0xc0_0000_0000 + 8 * (random.next() % (1 << (10 + round % 21)));
        let depth = 8 * (random.next() % (1 << (1 + round % 27)));
        let slot = goroutine_slot(goroutine, 1 << 40, (1 << 40) - depth);
        assert_eq!((slot >> GOROUTINE_BIT, slot & 0xfff), (1, depth & 0xfff));
        let other = seen.insert(slot, (goroutine, depth));
        assert!(
            other.is_none_or(|other| other == (goroutine, depth)),
            "{goroutine:#x} {depth:#x} {other:x?}"
        );
    }
}

#[test]
fn r4_a_goroutine_is_not_lost_where_its_register_is_about_to_be_loaded_or_holds_none() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(28);
    let layout = layout(true);
    let all = Steps::of([EntryStep::Count(HITS), EntryStep::Record { id: RECORD_ENTRY, arguments: 6 }]);
    for steps in [Steps::of([COUNT_RETURN]), Steps::of([COUNT_RETURN, RECORD_RETURN, TIME])] {
        // mov r14,rsi; nop2; ret: whoever asks only whether it is read finds r14 free. Then xor r14d,r14d; nop2; ret.
        for (code, returns) in
            [(&[0x49, 0x89, 0xf6, 0x66, 0x90, 0xc3][..], 1), (&[0x45, 0x31, 0xf6, 0x66, 0x90, 0xc3], 0)]
        {
            machine.forget();
            let mut code = code.to_vec();
            code.resize(32, 0xcc);
            let payloads = noted_by(Identity::Goroutine, all, steps, PROBE);
            let both = probed(&machine, &code, (FUNCTION, 5), detour_at(0), &layout, payloads);
            both.iter().for_each(Probed::arm);
            let mut start = machine.random(&mut random);
            start.registers[R14] = goroutine(&machine, 1, SLOT + 4096);
            start.registers[6] = start.registers[R14];
            machine.set(SLOT, EXIT);
            assert_eq!(machine.run(Machine::thread(1), &start).0, 1);
            assert_eq!([HITS, RETURNS, LOST].map(|c| machine.sum(c)), [1, returns, 0]);
            assert_eq!(machine.open_calls() as u64, 1 - returns);
        }
    }
}
