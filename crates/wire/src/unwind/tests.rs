//! Look-ups against a search without an index, damaged areas, and walks over stacks of made-up machines.

use super::*;

fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Rules that are told apart by their CFA.
fn rules(count: u32) -> Vec<Rule> {
    let frame = |index| Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, index as i32) };
    (0..count).map(|index| if index == 0 { Rule::default() } else { frame(index) }).collect()
}

#[test]
fn a_look_up_finds_the_last_row_in_front_however_rows_are_spread() {
    let mut seed = 0x7261_706c_6573_7335;
    for spread in [1, 3, 40, 255, 256, 257, 5000] {
        let mut key = random(&mut seed) as u32 % 700;
        let mut rows = Vec::new();
        for _ in 0..400 {
            rows.push((key, random(&mut seed) as u32 % 9));
            key += 1 + random(&mut seed) as u32 % spread;
        }
        rows.push((key, 0));
        let table = Table::new(rows.iter().copied(), rules(9)).unwrap();
        let mut area = Area::new(&Facts::X86_64);
        let module = area.add(&table).unwrap().at(0x5000_0000_1000);
        area.publish(&[module]).unwrap();
        let tables = Tables::new(area.bytes()).unwrap();
        for key in (0..key).step_by(1 + key as usize / 20_000) {
            let expected = rows.iter().rev().find(|row| row.0 <= key).map_or(0, |row| row.1);
            let found = tables.rule_in(&module, module.start + u64::from(key)).unwrap();
            assert_eq!(found.cfa as u32, expected, "{key} of {spread}");
        }
        assert_eq!(tables.rule(module.end), None);
        assert_eq!(tables.rule(module.start - 1), None);
    }
}

#[test]
fn modules_are_found_by_their_addresses_and_of_two_at_one_place_the_first_stays() {
    let table = Table::new([(0, 1), (0x100, 0)], rules(2)).unwrap();
    let mut area = Area::new(&Facts::X86_64);
    let module = area.add(&table).unwrap();
    let mut modules: Vec<_> = (0..40).map(|index| module.at(0x1000 * (40 - index))).collect();
    modules.push(module.at(0x1080));
    modules.push(Module::without_table(0x900..0xa00));
    modules.push(Module::without_table(5..5));
    area.publish(&modules).unwrap();
    let tables = Tables::new(area.bytes()).unwrap();
    assert_eq!(tables.modules(), 41);
    for address in (0..0x2a000).step_by(0x40) {
        let expected = match address {
            0x900..0xa00 => Some(0x900),
            0x1000..0x29000 if address & 0xfff < 0x100 => Some(address & !0xfff),
            _ => None,
        };
        assert_eq!(tables.module_at(address).map(|module| module.start), expected, "{address:#x}");
    }
    // A list is replaced, and who has read the directory before keeps the old one.
    let before = area.bytes().to_vec();
    area.publish(&[module.at(0x7000)]).unwrap();
    assert_eq!(area.bytes()[64..before.len()], before[64..]);
    assert_eq!(Tables::new(area.bytes()).unwrap().modules(), 1);
}

/// Walks with registers at a stack that is given as (address, word).
fn walk_over(
    tables: &Tables<'_>,
    start: Registers<'_>,
    limit: u32,
    stack: &[(u64, u64)],
) -> (Vec<u64>, Walked) {
    let mut frames = Vec::new();
    let read = |address| stack.iter().find(|word| word.0 == address).map(|word| word.1);
    let walked = walk(
        tables,
        start,
        Place::Anywhere,
        Method::Rows,
        limit,
        read,
        |_, found| found,
        |pc| frames.push(pc),
    );
    (frames, walked)
}

fn area_of(facts: &Facts, rows: &[(u32, u32)], rules: Vec<Rule>) -> Area {
    let mut area = Area::new(facts);
    let module = area.add(&Table::new(rows.iter().copied(), rules).unwrap()).unwrap().at(0x1000);
    area.publish(&[module]).unwrap();
    area
}

#[test]
fn damaged_areas_are_refused_or_read_without_harm() {
    let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
    let framed = Rule { ra: Slot(-8), fp: Slot(-16), ..Rule::frame(Base::Frame, 16) };
    let rows: Vec<_> = (0..300).map(|row| (row * 7, 1 + row % 2)).chain([(2100, 0)]).collect();
    let area = area_of(&Facts::X86_64, &rows, vec![Rule::default(), called, framed]);
    let mut seed = 0x7261_706c_6573_7336;
    let (mut refused, mut read) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = area.bytes().to_vec();
        for _ in 0..1 + random(&mut seed) % 3 {
            let at = random(&mut seed) as usize % bytes.len();
            bytes[at] = random(&mut seed) as u8;
        }
        if random(&mut seed).is_multiple_of(16) {
            bytes.truncate(random(&mut seed) as usize % bytes.len());
        }
        let Ok(tables) = Tables::new(&bytes) else {
            refused += 1;
            continue;
        };
        read += 1;
        let start =
            Registers { pc: 0x1000 + random(&mut seed) % 2100, sp: 0x7000, fp: 0x7100, ..Default::default() };
        let stack = |address: u64| Some(0x1000 + address % 2100);
        let mut told = 0;
        let walked =
            walk(&tables, start, Place::Anywhere, Method::Rows, 500, stack, |_, found| found, |_| told += 1);
        assert!(walked.frames <= 500 && walked.frames == told);
    }
    assert!(refused > 1000 && read > 1000);
}

#[test]
fn a_stack_that_leads_to_itself_ends() {
    let framed = Rule { ra: Slot(-8), fp: Slot(-16), ..Rule::frame(Base::Frame, 16) };
    let area = area_of(&Facts::X86_64, &[(0, 1), (64, 0)], vec![Rule::default(), framed]);
    let tables = Tables::new(area.bytes()).unwrap();
    let start = Registers { pc: 0x1010, sp: 0x7000, fp: 0x7000, ..Default::default() };
    let (frames, walked) = walk_over(&tables, start, 100, &[(0x7000, 0x7000), (0x7008, 0x1020)]);
    assert_eq!((frames.len(), walked.ended), (2, Ended::NotAscending));
    // By the fallback, too: what it may change is counted.
    let area = Area::new(&Facts::X86_64);
    let tables = Tables::new(area.bytes()).unwrap();
    let stack = [(0x7000, 0x6000), (0x7008, 0x1020), (0x6000, 0x7000), (0x6008, 0x1024)];
    let (frames, walked) = walk_over(&tables, start, 100, &stack);
    assert_eq!(walked.ended, Ended::NotAscending);
    assert!(frames.len() < 4 * MOST_CHANGES as usize);
}

#[test]
fn a_signal_s_frame_leads_to_another_stack_and_to_the_instruction_itself() {
    let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
    let signal = Rule {
        flags: Base::Stack as u8 | Rule::MEMORY | Rule::RA_AT_BASE | Rule::SAVED_AT_BASE | Rule::INTERRUPTED,
        ra: Slot(168),
        fp: Slot(120),
        bp: Slot(128),
        ..Rule::frame(Base::Stack, 160)
    };
    // The handler, the trampoline, a function, and what has called it.
    let rows = [(0, 1), (0x20, 2), (0x30, 1), (0x40, 3), (0x50, 0)];
    let rules = vec![Rule::default(), called, signal, Rule::of_kind(Rule::END)];
    let area = area_of(&Facts::X86_64, &rows, rules);
    let tables = Tables::new(area.bytes()).unwrap();
    let start = Registers { pc: 0x1004, sp: 0x9000, ..Default::default() };
    let stack = [
        // It returns to the trampoline behind its first byte.
        (0x9000, 0x1021),
        // Saved: sp, pc, fp, rbx. The instruction is the function's first one, so the byte in front is the trampoline's.
        (0x9008 + 160, 0x5000),
        (0x9008 + 168, 0x1030),
        (0x9008 + 120, 1),
        (0x9008 + 128, 2),
        (0x5000, 0x1048),
    ];
    let (frames, walked) = walk_over(&tables, start, 100, &stack);
    assert_eq!((frames, walked.ended), (vec![0x1004, 0x1021, 0x1030, 0x1048], Ended::Outermost));
    let (frames, walked) = walk_over(&tables, start, 2, &stack);
    assert_eq!((frames, walked.ended), (vec![0x1004, 0x1021], Ended::Limit));
}

#[test]
fn on_arm_a_leaf_returns_by_the_link_register_and_signed_addresses_are_stripped() {
    let leaf = Rule::frame(Base::Stack, 0);
    let framed = Rule { ra: Slot(-8), fp: Slot(-16), ..Rule::frame(Base::Stack, 32) };
    let rows = [(0, 1), (0x40, 2), (0x80, 3), (0xc0, 0)];
    let area = area_of(&Facts::AARCH64, &rows, vec![Rule::default(), leaf, framed, Rule::of_kind(Rule::END)]);
    let tables = Tables::new(area.bytes()).unwrap();
    let start =
        Registers { pc: 0x1000, sp: 0x7000, fp: 0x7010, link: 0xabcd_0000_0000_1050, ..Default::default() };
    let stack = [(0x7010, 0x8000), (0x7018, 0x1234_0000_0000_1088)];
    let (frames, walked) = walk_over(&tables, start, 100, &stack);
    assert_eq!((frames, walked.ended), (vec![0x1000, 0x1050, 0x1088], Ended::Outermost));
    // Only the innermost frame can be a leaf.
    let start = Registers { pc: 0x1044, ..start };
    let (_, walked) = walk_over(&tables, start, 100, &[(0x7010, 0x8000), (0x7018, 0x1008)]);
    assert_eq!(walked.ended, Ended::LinkLost);
}

#[test]
fn on_powerpc_back_chains_lead_outwards_without_rows() {
    let area = Area::new(&Facts::POWERPC64LE);
    let tables = Tables::new(area.bytes()).unwrap();
    let start = Registers { pc: 0x1000, sp: 0x7000, ..Default::default() };
    let stack = [(0x7000, 0x7040), (0x7050, 0x1100), (0x7040, 0x7100), (0x7110, 0x1200), (0x7100, 0)];
    let (frames, walked) = walk_over(&tables, start, 100, &stack);
    assert_eq!((frames, walked.ended), (vec![0x1000, 0x1100, 0x1200], Ended::Outermost));
}

#[test]
fn the_innermost_frame_is_found_by_any_register_and_others_are_not() {
    let aligned = Rule { plus: 10, ra: Slot(-8), ..Rule::frame(Base::Other, 0) };
    let area = area_of(&Facts::X86_64, &[(0, 1), (64, 0)], vec![Rule::default(), aligned]);
    let tables = Tables::new(area.bytes()).unwrap();
    let mut general = [0; 16];
    general[10] = 0x7100;
    let start = Registers { pc: 0x1008, sp: 0x7000, general: &general, ..Default::default() };
    let (frames, walked) = walk_over(&tables, start, 100, &[(0x70f8, 0x1010)]);
    assert_eq!((frames, walked.ended), (vec![0x1008, 0x1010], Ended::RegisterLost));
}

#[test]
fn a_return_point_is_translated_and_told_as_what_it_stands_for() {
    let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
    let area = area_of(
        &Facts::X86_64,
        &[(0, 1), (64, 2), (128, 0)],
        vec![Rule::default(), called, Rule::of_kind(Rule::END)],
    );
    let tables = Tables::new(area.bytes()).unwrap();
    let start = Registers { pc: 0x1008, sp: 0x7000, ..Default::default() };
    let mut frames = Vec::new();
    let real = |slot, found| if (slot, found) == (0x7000, 0xdead) { 0x1050 } else { found };
    let read = |address| (address == 0x7000).then_some(0xdead);
    let walked = walk(&tables, start, Place::Entry, Method::Rows, 9, read, real, |pc| frames.push(pc));
    assert_eq!((frames, walked.ended), (vec![0x1008, 0x1050], Ended::Outermost));
}

#[test]
fn code_of_a_file_without_a_row_is_left_by_the_fallback_only_for_known_code() {
    let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
    let rules = vec![Rule::default(), called, Rule::of_kind(Rule::END)];
    let area = area_of(&Facts::X86_64, &[(0, 1), (64, 0), (128, 2), (192, 0)], rules);
    let tables = Tables::new(area.bytes()).unwrap();
    let start = Registers { pc: 0x1050, sp: 0x7000, fp: 0x7040, ..Default::default() };
    let (frames, walked) = walk_over(&tables, start, 9, &[(0x7040, 0x7080), (0x7048, 0x1090)]);
    assert_eq!((frames, walked.ended), (vec![0x1050, 0x1090], Ended::Outermost));
    let (frames, walked) = walk_over(&tables, start, 9, &[(0x7040, 0x7080), (0x7048, 0x9999)]);
    assert_eq!((frames, walked.ended), (vec![0x1050], Ended::NoRow));
}
