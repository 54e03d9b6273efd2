//! Records of operands: each as it was when the detour was entered.

use crate::{cross::Cross, machine::*, oracle::Random};
use trapless_isa::{Operand, detour::*, payload::*};

const FETCH: Payload = Payload {
    hooks: Steps::of([]),
    entry: Steps::of([EntryStep::Count(HITS), EntryStep::Fetch { id: 8 }]),
    followed: None,
};

/// Bytes that operands in memory are among.
const DATA: u64 = SLOT + 0x1000;
const DATA_SIZE: u64 = 0x1_0000;

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The word of `size` bytes at an address, extended with zeros.
fn word(at: u64, size: u8) -> u64 {
    (0..u64::from(size)).fold(0, |word, n| word | u64::from(byte(at + n)) << (8 * n))
}

/// Some operand, and what it is when the registers are these; one in memory changes the registers that lead there.
fn operand(random: &mut Random, gpr: &mut [u64; 32], taken: &mut u32) -> (Operand, u64) {
    let size = random.pick(&[1, 2, 4, 8]);
    let at = DATA + 0x100 + random.below(DATA_SIZE - 0x200);
    let fresh = |random: &mut Random, taken: &mut u32| loop {
        // Those that the detour itself uses more often than others.
        let register = match random.below(2) {
            0 => random.pick(&[8, 9, 10, 11, 12]),
            _ => random.pick(&[2, 3, 4, 5, 6, 7, 14, 17, 22, 30, 31]),
        };
        if *taken >> register & 1 == 0 {
            *taken |= 1 << register;
            return register as u8;
        }
    };
    let offset = random.pick(&[0, 8, -8, 4095, -4096, 32767, -32768, 32768, 0x7fff_8001, i32::MIN, i32::MAX]);
    match random.below(5) {
        // Twice the same may be asked for.
        0 => {
            let register = random.pick(&[0, 1, 3, 8, 9, 10, 11, 12, 13, 31]);
            *taken |= 1 << register;
            (Operand::Register(register), gpr[usize::from(register)])
        }
        1 => (Operand::At { address: at, size }, word(at, size)),
        2 => {
            let offset = 0x1000 + random.below(0x6000) as i32;
            let memory = Operand::Memory { base: 1, index: None, offset, size };
            (memory, word(SLOT.wrapping_add_signed(offset.into()), size))
        }
        n if taken.count_ones() < 10 => {
            let base = fresh(random, taken);
            let mut to = at.wrapping_sub_signed(offset.into());
            let index = (n == 4).then(|| {
                let (index, scale) = (fresh(random, taken), random.below(4) as u8);
                gpr[usize::from(index)] = random.below(0x1000);
                to = to.wrapping_sub(gpr[usize::from(index)] << scale);
                (index, scale)
            });
            gpr[usize::from(base)] = to;
            (Operand::Memory { base, index, offset, size }, word(at, size))
        }
        _ => (Operand::At { address: at, size }, word(at, size)),
    }
}

#[test]
fn operands_are_recorded_as_they_were_at_the_entry() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(12);
    let mut script = Script::new(4);
    let data: Vec<u8> = (DATA..DATA + DATA_SIZE).map(byte).collect();
    script.write(DATA, &data);
    let (mut runs, mut all) = (vec![], 0);
    for n in 0..60 {
        let mut start = registers(&mut random, FUNCTION + 64 * n, SLOT, HOME, thread(1));
        // Registers of others keep their values once one was told.
        let mut taken = 1 << 0 | 1 << 1 | 1 << 13;
        let wanted = 1 + random.below(MOST_FETCHED as u64 + 2) as usize;
        let (mut operands, mut values) = (vec![], vec![]);
        while operands.len() < wanted {
            let (operand, value) = operand(&mut random, &mut start.gpr, &mut taken);
            operands.push(operand);
            values.push(value);
        }
        all += operands.len();
        let site = script.fetching(start.pc, &[NOP, BLR], FETCH, &operands);
        start.pc = site.at;
        runs.push((script.run(&start), start, operands, values));
    }
    let records = script.records(runs.len() as u64);
    let answers = script.play(&cross, "operands");
    let records = answers.bytes(records);
    for ((answer, start, operands, values), record) in
        runs.into_iter().zip(records.chunks_exact(1 << RECORD_SHIFT))
    {
        assert_eq!(answers.registers(answer), crate::state::Registers { pc: HOME, ..start }, "{operands:?}");
        let field = |at: u32| u64::from_le_bytes(record[at as usize..][..8].try_into().unwrap());
        assert_eq!([field(RECORD_ID) as u32, field(RECORD_MISSING) as u32], [8, 0]);
        assert_eq!(field(RECORD_SLOT), SLOT);
        for (n, (operand, value)) in (0..).zip(operands.into_iter().zip(values)).take(MOST_FETCHED) {
            assert_eq!(field(RECORD_VALUES + 8 * n), value, "{operand:?}");
        }
    }
    assert!(all > 200);
}
