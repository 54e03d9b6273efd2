//! Look-ups by unwinders: a return point becomes the real address wherever the unwinder has it.

use crate::state::Registers;
use crate::{cross::Cross, machine::*, oracle::Random};
use trapless_isa::frames::{Place, Point};
use trapless_isa::{Hook, Lookup, Payload, Steps, detour::BLOCK_UNWOUND};

/// How an unwinder keeps its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unwinder {
    Gcc,
    Neighbours,
    Llvm,
}

const LOAD_TOC: u32 = 0xe841_0018;

/// Looks up the return points of calls, from stacks with the contexts of three unwinders.
#[test]
fn r3_an_unwinder_is_told_the_real_return_addresses() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(6);
    let mut script = Script::new(4);
    let at = |n: u64| FUNCTION + 64 * n;
    let chain: Vec<Probed> =
        (0..3).map(|n| script.probed(at(n), &[NOP, branch(at(n) + 4, BODY)], FOLLOW)).collect();
    let lookups = [Lookup::FindObject, Lookup::IteratePhdr];
    let asked = [(8, lookups[0]), (9, lookups[1])].map(|(n, lookup)| {
        let payload = Payload { hooks: Steps::of([Hook::Translate(lookup)]), ..Payload::default() };
        script.probed(at(n), &[NOP, branch(at(n) + 4, BODY)], payload)
    });
    // Behind a call to another module stands the load of r2.
    let behind_call = at(20);
    script.code(behind_call, &[LOAD_TOC, branch(behind_call + 4, HOME)]);
    let mut runs = vec![];
    for round in 0..300 {
        let tail_calls = 1 + round as usize % 3;
        let other_module = round % 2 == 0;
        let home = if other_module { behind_call } else { HOME };
        let mut caller = home;
        for site in &chain[..tail_calls] {
            let start = registers(&mut random, site.at, SLOT, caller, thread(1));
            script.run(&start);
            caller = site.point.expect("followed");
        }
        let point = caller;
        let unwinder = random.pick(&[Unwinder::Gcc, Unwinder::Neighbours, Unwinder::Llvm]);
        let lookup = random.pick(&[0, 1]);
        let stack = SLOT - 8192;
        let word = |n: u64| stack + 8 * n;
        let mut words: Vec<u64> = (0..1040).map(|_| random.next()).collect();
        // The unwinder's frames, and that of the followed call's caller.
        for (frame, next) in [(0, 100), (100, 900), (900, 1024)] {
            words[frame] = word(next);
        }
        words[1024] = 0;
        let toc = random.next();
        words[1024 + 3] = toc;
        let context = 300 + random.below(400);
        let index = context as usize;
        words[index] = point;
        let mut start = registers(&mut random, asked[lookup].at, stack, HOME, thread(1));
        let lr_place = index - 48;
        let wanted_toc = match unwinder {
            Unwinder::Gcc => {
                words[index - 1] = SLOT;
                words[lr_place] = SLOT + 16;
                if random.below(2) == 0 {
                    start.gpr[14 + random.below(18) as usize] = word(context) + 16;
                } else {
                    words[5 + random.below(20) as usize] = word(context) + 16;
                }
                (lr_place - 63, SLOT + 24)
            }
            Unwinder::Neighbours => {
                words[index - 1] = SLOT;
                (index + 4, words[index + 4])
            }
            Unwinder::Llvm => {
                words[index + 3] = SLOT;
                (index + 4, toc)
            }
        };
        let wanted_toc = match other_module {
            true => wanted_toc,
            false => (wanted_toc.0, words[wanted_toc.0]),
        };
        let keeps = loop {
            let register = 14 + random.below(18) as usize;
            if start.gpr[register] != word(context) + 16 {
                break register;
            }
        };
        start.gpr[keeps] = point - 1;
        words[90] = point - 1;
        words[910] = point - 1; // above the context: not the unwinder's own
        let data = 30 + random.below(50) / 3 * 3;
        let which = random.below(3);
        if lookup == 0 {
            start.gpr[3] = point - 1;
        } else {
            start.gpr[4] = word(data);
            words[(data + which) as usize] = point - 1;
        }
        script.write(stack, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
        let answer = script.run(&start);
        let memory = script.read(stack, words.len() as u64 * 8);
        let mut registers = Registers { pc: BODY, ..start };
        registers.gpr[keeps] = home - 1;
        let mut after = words.clone();
        after[index] = home;
        after[90] = home - 1;
        after[wanted_toc.0] = wanted_toc.1;
        if lookup == 0 {
            registers.gpr[3] = home - 1;
        } else {
            after[(data + which) as usize] = home - 1;
        }
        runs.push((answer, memory, registers, after, format!("{round}: {unwinder:?} {:?}", lookups[lookup])));
        // And it all returns.
        let back = self::registers(&mut random, point, SLOT, point, thread(2));
        let returned = script.run(&back);
        let end = script.read(stack, 8);
        let mut registers = Registers { pc: HOME, lr: home, ..back };
        if other_module {
            registers.gpr[2] = toc;
        }
        runs.push((returned, end, registers, vec![words[0]], format!("{round}: return")));
    }
    let layout = script.layout;
    let memory = script.read_followed();
    let answers = script.play(&cross, "look-ups");
    for (answer, memory, registers, words, what) in runs {
        let found: Vec<u64> = answers
            .bytes(memory)
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        for (n, (found, wanted)) in found.iter().zip(&words).enumerate() {
            assert_eq!(found, wanted, "{what}: word {n}");
        }
        assert_eq!(answers.registers(answer), registers, "{what}");
    }
    assert_eq!(open(answers.bytes(memory), &layout), 0);
}

/// An unwinder walks over calls and lands, in a frame above them or below, with an exception or at the end of its thread.
#[test]
fn r3_what_was_walked_over_up_to_the_landing_is_left_and_nothing_else() {
    const CODE_ADDRESS: u64 = 904;
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(7);
    let mut script = Script::new(4);
    let at = |n: u64| FUNCTION + 64 * n;
    let called = script.probed(at(0), &[NOP, branch(at(0) + 4, BODY)], FOLLOW);
    let hook = |script: &mut Script, n: u64, hook| {
        let payload = Payload { hooks: Steps::of([hook]), ..Payload::default() };
        script.probed(at(n), &[NOP, branch(at(n) + 4, BODY)], payload)
    };
    let asked = hook(&mut script, 8, Hook::Translate(Lookup::FindObject));
    let landing = hook(&mut script, 9, Hook::Land { code_address: CODE_ADDRESS as u32 });
    let point = called.point.expect("followed");
    let mut checks = vec![];
    for (depth, number, is_end) in [(1u64, 1, false), (5, 1, false), (3, 0, false), (3, 1, true)] {
        script.forget();
        let slots: Vec<u64> = (0..depth).map(|n| SLOT - 0x140 * n).collect();
        for &slot in &slots {
            let start = registers(&mut random, called.at, slot, HOME, thread(number));
            script.run(&start);
        }
        let stack = SLOT - 8192;
        let field = stack + 0x800;
        // The unwinder's frame, and that of the calls' caller.
        script.set(stack, stack + 0x1000);
        script.set(stack + 0x1000, SLOT + 0x200);
        script.set(SLOT + 0x200, 0);
        // Twice, as a throw does.
        for &slot in slots.iter().rev().chain(slots.iter().rev()) {
            script.set(field, point);
            script.set(field - 8, slot);
            let mut start = registers(&mut random, asked.at, stack, HOME, thread(number));
            (start.gpr[3], start.gpr[20]) = (point - 1, field + 16);
            let mut wanted = Registers { pc: BODY, ..start };
            wanted.gpr[3] = HOME - 1;
            checks.push((script.run(&start), wanted, vec![], 0));
        }
        let exception = stack + 0x100;
        let control_block = thread(number).wrapping_sub(0x7000 + if is_end { 0x40 } else { 0x1000 });
        script.set(exception, control_block);
        let mut left = 0;
        for (slot, leaves) in [(slots[slots.len() - 1] - 0x40, 0), (slots[0], depth), (slots[0], 0)] {
            script.set(field - 8, slot);
            script.set(field - CODE_ADDRESS + 24, exception);
            let mut start = registers(&mut random, landing.at, stack, HOME, thread(number));
            start.gpr[3] = field - CODE_ADDRESS;
            let answer = script.run(&start);
            left += if is_end { 0 } else { leaves };
            checks.push((answer, Registers { pc: BODY, ..start }, script.counter(BLOCK_UNWOUND), left));
        }
    }
    let answers = script.play(&cross, "landings");
    for (answer, registers, counters, left) in checks {
        assert_eq!(answers.registers(answer), registers);
        assert_eq!(answers.sum(&counters), left);
    }
}

/// A signal's handler has interrupted a detour, and walks its stack: the unwinder is shown the program, wherever that is told.
#[test]
fn w1_an_unwinder_is_shown_the_program_that_was_interrupted_in_a_detour() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(7);
    let mut script = Script::new(4);
    let count = Payload { followed: None, ..FOLLOW };
    let ask = Payload { hooks: Steps::of([Hook::Translate(Lookup::FindObject)]), ..Payload::default() };
    let [counted, followed, asked] = [(0, count), (1, FOLLOW), (2, ask)].map(|(n, payload)| {
        let at = FUNCTION + 64 * n;
        script.probed(at, &[NOP, branch(at + 4, BODY)], payload)
    });
    script.tell();
    let pieces = script.told.clone();
    let mut runs = vec![];
    // Its call is not over, and then it is.
    for returned in [false, true] {
        let start = registers(&mut random, followed.at, SLOT, HOME, thread(1));
        script.run(&start);
        if returned {
            let point = followed.point.expect("followed");
            script.run(&registers(&mut random, point, SLOT, point, thread(1)));
        }
        for (address, site, points) in
            pieces.iter().filter(|piece| [counted.detour, followed.detour].contains(&piece.0))
        {
            for &Point { offset, stands, .. } in points {
                let (pc, link) = (address + u64::from(offset), pad(3));
                let depth = stands.map_or(0, |(_, depth)| depth as u64);
                let expected = stands.map(|(place, _)| match place {
                    Place::Site(behind) => site + u64::from(behind),
                    _ if returned => link,
                    _ => HOME,
                });
                let stack = SLOT - 8192;
                let word = |n: usize| stack + 8 * n as u64;
                let mut words: Vec<u64> = (0..1024).map(|_| random.next()).collect();
                for (frame, next) in [(0, 100), (100, 600), (600, 1023)] {
                    words[frame] = word(next);
                }
                words[1023] = 0;
                // The context, and of a signal's frame r31 and what follows: nip, msr, orig_gpr3, ctr, link.
                let (context, signal) = (300 + random.below(200) as usize, 700);
                (words[context], words[context - 1]) = (pc, SLOT - depth);
                let columns = context - 113;
                (words[columns + 31], words[columns + 65]) = (word(signal), word(signal + 5));
                words[signal + 5] = link;
                let mut start = registers(&mut random, asked.at, stack, HOME, thread(1));
                start.gpr[4] = word(context) + 16;
                (start.gpr[3], start.gpr[20]) = (pc, pc);
                script.write(stack, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
                let answer = script.run(&start);
                let memory = script.read(stack, 8 * words.len() as u64);
                let mut after = Registers { pc: BODY, ..start };
                if let Some(place) = expected {
                    (words[context], words[context - 1]) = (place, SLOT);
                    (after.gpr[3], after.gpr[20]) = (place, place);
                }
                runs.push((answer, memory, after, words, format!("{returned} {stands:?} at {offset:#x}")));
            }
        }
    }
    let answers = script.play(&cross, "interrupted");
    for (answer, memory, registers, words, what) in runs {
        let found = answers.bytes(memory).chunks_exact(8);
        let found: Vec<u64> = found.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let differ: Vec<usize> = (0..words.len()).filter(|&n| found[n] != words[n]).collect();
        assert!(differ.is_empty(), "{what}: words {differ:?}");
        assert_eq!(answers.registers(answer), registers, "{what}");
    }
}
