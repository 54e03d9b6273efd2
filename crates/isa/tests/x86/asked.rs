//! Detours that ask the goroutine for room on its stack: where there is enough they do all that others do and touch no more of it, and where
//! there is not they touch none, and what they cannot do is counted as lost.

use crate::detours::*;
use crate::exits::{PROBE, noted_by};
use crate::machine::*;
use crate::processor::Random;
use crate::stepping::step;
use trapless_isa::{BranchTargets, Machine as Isa, Operand, Reason, Site, Stack, detour::*, payload::*};

/// What such a detour takes of the stack at most.
const ROOM: u64 = 128;

/// What it may lose: r12, r13 and the flags.
const FREE: [usize; 2] = [12, 13];
const R14: usize = 14;

/// Functions as Go's compiler makes them: they read no flags, use nothing below the stack pointer, and keep r14.
pub fn functions() -> impl Iterator<Item = (&'static str, Vec<u8>, usize)> {
    let is_gos = |name: &str| !["adc", "pushf", "[rsp-", "r10,rsp"].iter().any(|part| name.contains(part));
    let all = PROLOGUES.iter().filter(move |(name, ..)| is_gos(name));
    all.map(|&(name, prologue, epilogue)| {
        // xor edx,edx; adc rcx,rdi; nop3
        let body = [0x31, 0xd2, 0x48, 0x11, 0xf9, 0x0f, 0x1f, 0x00];
        let mut code = [prologue, &body, epilogue, &[0xc3][..]].concat();
        let exit = code.len() - 1;
        code.resize(code.len() + 7, 0xcc);
        (name, code, exit)
    })
}

/// Where the goroutine's stack is, by the distances of its ends from the stack pointer.
#[derive(Clone, Copy, Debug)]
pub enum Goroutine {
    None,
    At { below: i64, above: i64 },
}

impl Goroutine {
    pub const ALL: [(Goroutine, bool); 7] = [
        (Goroutine::At { below: ROOM as i64, above: 8 }, true),
        (Goroutine::At { below: 1 << 20, above: 1 << 20 }, true),
        (Goroutine::At { below: ROOM as i64 - 8, above: 1 << 20 }, false),
        (Goroutine::At { below: 0, above: 8 }, false),
        // Another one's stack, below and above.
        (Goroutine::At { below: 1 << 20, above: 0 }, false),
        (Goroutine::At { below: -64, above: 1 << 20 }, false),
        (Goroutine::None, false),
    ];

    /// What r14 holds.
    pub fn address(self, machine: &Machine) -> u64 {
        let Goroutine::At { below, above } = self else { return 0 };
        let at = STACK + 64;
        machine.set(at, SLOT.wrapping_add_signed(-below));
        machine.set(at + u64::from(GOROUTINE_STACK_END), SLOT.wrapping_add_signed(above));
        at
    }
}

/// Puts detours for a payload at the entry and the exit of a function.
pub fn probed<'m>(
    machine: &'m Machine,
    (code, exit): (&[u8], usize),
    layout: &Layout,
    payload: Payload,
) -> Vec<Probed<'m>> {
    let targets = BranchTargets::default();
    machine.write(FUNCTION, code);
    let at = |offset: usize, detour, payload| {
        let address = FUNCTION + offset as u64;
        let site = Site { address, ..Site::new(FUNCTION, code, &targets) };
        let displaced = Isa::X86_64.isa().verdict(&site).jump.expect("a site for a jump");
        Probed::asking(machine, &site, displaced, detour, layout, payload)
    };
    match payload.followed {
        None => vec![at(0, detour_at(0), payload)],
        Some(followed) => {
            let [entry, left] = noted_by(Identity::Goroutine, payload.entry, followed.steps, PROBE);
            vec![at(0, detour_at(0), entry), at(exit, detour_at(1), left)]
        }
    }
}

fn payloads() -> Vec<Payload> {
    let all = all_payloads().into_iter();
    all.filter(|payload| payload.hooks.is_empty() && does_something(payload)).collect()
}

/// Whether there is something to be done at the entry or an exit.
pub fn does_something(payload: &Payload) -> bool {
    payload.followed.is_some() || payload.entry.iter().count() > 0
}

#[test]
fn r4_with_room_all_is_done_and_without_nothing_of_the_stack_is_touched() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(51);
    for (name, code, exit) in functions() {
        for payload in payloads() {
            let layout = layout(random.next().is_multiple_of(2));
            for (goroutine, has_room) in Goroutine::ALL {
                machine.forget();
                let probes = probed(&machine, (&code, exit), &layout, payload);
                let thread = Machine::thread(random.next() % 8);
                let context = format!("{name}, {goroutine:?}: {payload:?}");
                // Twice: a thread's first hit goes another way.
                for _ in 0..2 {
                    let mut start = machine.random(&mut random);
                    start.registers[R14] = goroutine.address(&machine);
                    let memory = machine.read(SLOT - 1024, 2048);
                    let run = || {
                        machine.write(SLOT - 1024, &memory);
                        machine.set(SLOT, EXIT);
                        let (end, mut after) = machine.run(thread, &start);
                        FREE.into_iter().for_each(|register| after.registers[register] = 0);
                        let stack = machine.read(SLOT - 1024, 2048);
                        ((end, after.registers, after.extended.clone()), stack, after)
                    };
                    let expected = run();
                    probes.iter().for_each(Probed::arm);
                    let found = run();
                    probes.iter().for_each(Probed::disarm);
                    assert!(expected.0 == found.0, "{context}");
                    let mine = if has_room { 1024 - ROOM as usize..1024 } else { 0..0 };
                    let of_program = |at: &usize| !mine.contains(at);
                    let same = (0..2048).filter(of_program).all(|at| expected.1[at] == found.1[at]);
                    assert!(same, "{context}: the stack");
                    assert_eq!(machine.open_calls(), 0, "{context}");
                    if has_room {
                        let at = start.registers[R14];
                        let end = machine.get(at + u64::from(GOROUTINE_STACK_END));
                        let slot = match payload.followed {
                            Some(_) => goroutine_slot(at, end, SLOT),
                            None => SLOT,
                        };
                        check_records_of(slot, &machine, &start, &found.2, &payload, false);
                    }
                }
                let steps =
                    |wanted: fn(&EntryStep) -> bool| payload.entry.iter().filter(wanted).count() as u64;
                let counts = steps(|step| *step == EntryStep::Count(HITS));
                let records = steps(|step| matches!(step, EntryStep::Record { .. }));
                let followed = u64::from(payload.followed.is_some());
                let found = [HITS, RETURNS, LATENCY + LATENCY_COUNT, LOST, BLOCK_UNRECORDED, BLOCK_RING_LOST];
                let found = found.map(|counter| machine.sum(counter));
                let returned = [asks(&payload, COUNT_RETURN), asks(&payload, TIME)];
                let wanted = match has_room {
                    true => [2 * counts, 2 * returned[0], 2 * returned[1], 0, 0, 0],
                    false => [2 * counts, 0, 0, 2 * followed, 2 * records, 0],
                };
                assert_eq!(found, wanted, "{context}");
            }
        }
    }
}

#[test]
fn r4_a_note_that_a_panic_has_left_is_not_taken_for_a_call_that_could_not_be_noted() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(54);
    let layout = layout(true);
    let (_, code, exit) = functions().next().unwrap();
    let followed = Followed { lost: LOST, steps: Steps::of([COUNT_RETURN, TIME]), way: Way::Paired };
    let payload = Payload { followed: Some(followed), ..COUNT };
    let probes = probed(&machine, (&code, exit), &layout, payload);
    probes.iter().for_each(Probed::arm);
    let enter = |below: i64, random: &mut Random| {
        let goroutine = Goroutine::At { below, above: 1 << 20 };
        let mut start = machine.random(random);
        start.registers[R14] = goroutine.address(&machine);
        machine.set(SLOT, EXIT);
        start
    };
    // Entered with room, and left behind.
    let start = enter(1 << 20, &mut random);
    let behind = FUNCTION + exit as u64 - 8;
    let kept = machine.read(behind, 64);
    machine.write_exit(behind, 2);
    assert_eq!(machine.run(Machine::thread(1), &start).0, 2);
    machine.write(behind, &kept);
    let counts = || [HITS, RETURNS, LOST].map(|counter| machine.sum(counter));
    assert_eq!((machine.open_calls(), counts()), (1, [1, 0, 0]));
    // On another stack nothing is said of that call.
    let mut elsewhere = start.clone();
    elsewhere.registers[R14] = Goroutine::At { below: 1 << 20, above: 0 }.address(&machine);
    assert_eq!(machine.run(Machine::thread(1), &elsewhere).0, 1);
    assert_eq!((machine.open_calls(), counts()), (1, [2, 0, 1]));
    // Entered at the same depth without room; its stack grows before it is left.
    let start = enter(8, &mut random);
    machine.write_exit(behind, 2);
    assert_eq!(machine.run(Machine::thread(1), &start).0, 2);
    machine.write(behind, &kept);
    assert_eq!((machine.open_calls(), counts()), (0, [3, 0, 2]));
    let start = enter(1 << 20, &mut random);
    assert_eq!(machine.run_from(FUNCTION + exit as u64, Machine::thread(1), &start).0, 1);
    assert_eq!((machine.open_calls(), counts()), (0, [3, 0, 2]));
}

#[test]
fn r4_an_entry_whose_instructions_reach_to_the_exit_asks_at_both() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(53);
    let isa = Isa::X86_64.isa();
    let targets = BranchTargets::default();
    // ret; mov eax,[rsp+16] and ret; inc rax, nop and ret
    let codes: [(&[u8], u8); 3] =
        [(&[0xc3], 0), (&[0x8b, 0x44, 0x24, 0x10, 0xc3], 4), (&[0x48, 0xff, 0xc0, 0x90, 0xc3], 4)];
    for (code, exit) in codes {
        let mut code = code.to_vec();
        code.resize(code.len() + 12, 0xcc);
        machine.write(FUNCTION, &code);
        let site = Site::new(FUNCTION, &code, &targets);
        let displaced = isa.through(&site, FUNCTION + u64::from(exit)).unwrap();
        for steps in [Steps::of([COUNT_RETURN]), Steps::of([COUNT_RETURN, RECORD_RETURN, TIME])] {
            for (goroutine, has_room) in Goroutine::ALL {
                machine.forget();
                let layout = layout(random.next().is_multiple_of(2));
                let way = Way::Through { noted: Noted { probe: PROBE, by: Identity::Goroutine }, exit };
                let followed = Some(Followed { lost: LOST, steps, way });
                let payload = Payload { followed, ..COUNT };
                let probed = Probed::asking(&machine, &site, displaced, detour_at(0), &layout, payload);
                for _ in 0..2 {
                    let mut start = machine.random(&mut random);
                    start.registers[R14] = goroutine.address(&machine);
                    let memory = machine.read(SLOT - 1024, 2048);
                    let run = || {
                        machine.write(SLOT - 1024, &memory);
                        machine.set(SLOT, EXIT);
                        let (end, mut after) = machine.run(Machine::thread(1), &start);
                        FREE.into_iter().for_each(|register| after.registers[register] = 0);
                        (end, after.registers, after.extended, machine.read(SLOT, 512))
                    };
                    let expected = run();
                    probed.arm();
                    assert!(run() == expected, "{code:x?}, {goroutine:?}, {steps:?}");
                    probed.disarm();
                }
                let wanted = if has_room { [2, 2, 0, 0] } else { [2, 0, 2, 0] };
                let open = machine.open_calls() as u64;
                let found = [machine.sum(HITS), machine.sum(RETURNS), machine.sum(LOST), open];
                assert_eq!(found, wanted, "{code:x?}, {goroutine:?}, {steps:?}");
            }
        }
    }
}

#[test]
fn r4_no_detour_goes_further_down_than_it_has_asked_for() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(52);
    let layout = layout(false);
    let (mut deepest, mut scarce) = (0, 0);
    for (name, code, exit) in functions().take(2) {
        for payload in payloads().into_iter().step_by(5) {
            for (goroutine, has_room) in Goroutine::ALL {
                machine.forget();
                let probes = probed(&machine, (&code, exit), &layout, payload);
                for thread in [0, Machine::thread(3)] {
                    let mut start = machine.random(&mut random);
                    start.registers[R14] = goroutine.address(&machine);
                    machine.set(SLOT, EXIT);
                    probes.iter().for_each(Probed::arm);
                    let steps = step(&machine, FUNCTION, thread, &start);
                    probes.iter().for_each(Probed::disarm);
                    let arena = ARENA..ARENA + ARENA_SIZE;
                    let inside = steps.iter().filter(|step| arena.contains(&step.ip));
                    let lowest = inside.map(|step| step.registers[4]).min().expect("a detour");
                    match has_room {
                        true => deepest = deepest.max(SLOT - lowest),
                        // The program's own frame.
                        false => scarce = scarce.max(SLOT - lowest),
                    }
                    assert!(SLOT - lowest <= ROOM, "{name}, {goroutine:?}: {payload:?}");
                }
            }
        }
    }
    assert!(deepest == ROOM && scarce <= 16, "{deepest} {scarce}");
}

#[test]
fn what_cannot_ask_is_refused() {
    let (targets, layout) = (BranchTargets::default(), layout(true));
    let refused = |isa: Isa, code: &[u8], from: usize, payload, operands: &[Operand]| {
        let isa = isa.isa();
        let address = FUNCTION + from as u64;
        let site = Site { address, ..Site::new(FUNCTION, code, &targets) };
        let displaced = isa.verdict(&site).jump.unwrap();
        let request = DetourRequest {
            runs: trapless_isa::body::Runs::default(),
            address: detour_at(0),
            displaced,
            original: &code[from..from + usize::from(displaced.length)],
            site: &site,
            payload,
            stack: Stack::AskedInGo,
            layout: &layout,
            runtime: &isa.runtime(ARENA, &layout).unwrap(),
            operands,
            tells: false,
        };
        isa.detour(&request).err()
    };
    // nop; nop; nop; nop; nop; nop; ret
    let code = [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc];
    let asks = |isa, from, payload, operands: &[Operand]| refused(isa, &code, from, payload, operands);
    let [entry, left] = noted_by(Identity::Goroutine, COUNT.entry, Steps::of([COUNT_RETURN]), PROBE);
    let fetch = Payload { entry: Steps::of([EntryStep::Fetch { id: 3 }]), ..COUNT };
    let needs = Some(Reason::NeedsStack);
    assert_eq!(asks(Isa::X86_64, 0, entry, &[]), None);
    assert_eq!(asks(Isa::X86_64, 6, left, &[]), None);
    assert_eq!(asks(Isa::X86_64, 0, fetch, &[Operand::Register(0)]), None);
    // What the question overwrites, an instruction that is neither where registers hold nothing, and what writes to the stack itself.
    assert_eq!(asks(Isa::X86_64, 0, fetch, &[Operand::Register(13)]), needs);
    assert_eq!(asks(Isa::X86_64, 1, entry, &[]), needs);
    assert_eq!(asks(Isa::X86_64, 0, Payload { hooks: Steps::of([Hook::Gate]), ..COUNT }, &[]), needs);
    assert_eq!(asks(Isa::I386, 0, COUNT, &[]), needs);
    // jmp rcx, r12 and r13; and an entry that reads r13, or flags, before it writes them.
    for (code, expected) in
        [(&[0xffu8, 0xe1][..], None), (&[0x41, 0xff, 0xe4], needs), (&[0x41, 0xff, 0xe5], needs)]
    {
        let code = [&[0x0f, 0x1f, 0x44, 0, 0][..], code, &[0xcc; 8]].concat();
        assert_eq!(refused(Isa::X86_64, &code, 5, left, &[]), expected, "{code:x?}");
    }
    for (code, expected) in [
        (&[0x4c, 0x89, 0xe8, 0x90, 0x90, 0xc3][..], needs),
        (&[0x48, 0x11, 0xc8, 0x90, 0x90, 0xc3], needs),
        // xor eax,eax; adc rax,rcx and xor r13d,r13d; mov rax,r13
        (&[0x31, 0xc0, 0x48, 0x11, 0xc8, 0xc3], None),
        (&[0x45, 0x31, 0xed, 0x4c, 0x89, 0xe8, 0xc3], None),
    ] {
        assert_eq!(refused(Isa::X86_64, code, 0, entry, &[]), expected, "{code:x?}");
    }
}
