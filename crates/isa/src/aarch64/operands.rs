//! Which general registers an instruction reads and writes.

use super::decode::{Form, Literal, RegisterBranch, field, form};

/// Sets of x0 to x30, as bits. Neither sp nor zero is among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// Registers whose value matters.
    pub reads: u32,
    /// Registers that change.
    pub writes: u32,
}

const fn bit(register: u32) -> u32 {
    if register < 31 { 1 << register } else { 0 }
}

/// The operands of `word`; `None` for SVE and SME, which are not looked into.
pub fn operands(word: u32) -> Option<Operands> {
    let [rd, rn, rm] = [0, 5, 16].map(|low| bit(field(word, low, 5)));
    let (reads, writes) = match form(word) {
        Form::Branch { link, .. } => (0, if link { bit(30) } else { 0 }),
        Form::CompareBranch { .. } | Form::TestBranch { .. } => (rd, 0),
        Form::RegisterBranch { kind, rn, authenticated } => {
            let modifier = if authenticated { rd } else { 0 };
            let link = if kind == RegisterBranch::Call { bit(30) } else { 0 };
            (bit(u32::from(rn)) | modifier, link)
        }
        Form::Address { .. } => (0, rd),
        Form::Literal { kind: Literal::Word | Literal::Double | Literal::SignedWord, .. } => (0, rd),
        Form::Hint(7 | 24..=31) => (bit(30), bit(30)),
        Form::Hint(8 | 10 | 12 | 14) => (bit(16) | bit(17), bit(17)),
        Form::Hint(40) => (bit(16), bit(16)),
        Form::LoadExclusive | Form::StoreExclusive => ordered(word),
        Form::TimedWait => (rd, 0),
        Form::Plain => match field(word, 25, 4) {
            0b1000 | 0b1001 => immediate(word),
            0b1010 | 0b1011 if field(word, 21, 1) != 0 => (0, rd),
            0b1010 | 0b1011 => (rd, 0),
            0b0101 | 0b1101 => match (field(word, 28, 1), field(word, 21, 4)) {
                (1, 0b0010) => (if field(word, 11, 1) != 0 { rn } else { rn | rm }, 0),
                (1, 0b0110) if field(word, 30, 1) != 0 => (rn | rd, rd),
                (1, 0b1000..) => (rn | rm | bit(field(word, 10, 5)), rd),
                _ => (rn | rm, rd),
            },
            0b0100 | 0b1100 => memory(word, false),
            0b0110 | 0b1110 => memory(word, true),
            0b0111 | 0b1111 => vector(word),
            _ => return None,
        },
        _ => (0, 0),
    };
    Some(Operands { reads, writes })
}

fn immediate(word: u32) -> (u32, u32) {
    let [rd, rn, rm] = [0, 5, 16].map(|low| bit(field(word, low, 5)));
    match (field(word, 23, 3), field(word, 29, 2)) {
        (0b101, 3) => (rd, rd), // movk
        (0b101, _) => (0, rd),
        (0b110, 1) => (rn | rd, rd), // bfm
        (0b111, _) => (rn | rm, rd),
        _ => (rn, rd),
    }
}

/// Exclusive, ordered and compare-and-swap accesses.
fn ordered(word: u32) -> (u32, u32) {
    let [rt, rn, rt2, rs] = [0, 5, 10, 16].map(|low| bit(field(word, low, 5)));
    let (load, second) = (field(word, 22, 1) != 0, field(word, 21, 1) != 0);
    match (field(word, 23, 1) != 0, second) {
        (true, true) => (rn | rt | rs, rs), // cas
        (true, false) if load => (rn, rt),
        (true, false) => (rn | rt, 0),
        // casp uses pairs of neighbours
        (false, true) if word >> 31 == 0 => (rn | rt | rt << 1 | rs | rs << 1, rs | rs << 1),
        (false, pair) => {
            let data = if pair { rt | rt2 } else { rt };
            if load { (rn, data) } else { (rn | data, rs) }
        }
    }
}

/// Loads and stores; the data of the vector ones is no general register.
fn memory(word: u32, vector: bool) -> (u32, u32) {
    let [rt, rn, rt2, rm] = [0, 5, 10, 16].map(|low| bit(field(word, low, 5)));
    let data = |registers: u32| if vector { 0 } else { registers };
    match field(word, 27, 3) {
        0b001 if vector => {
            (rn | if field(word, 23, 1) != 0 { rm } else { 0 }, if field(word, 23, 1) != 0 { rn } else { 0 })
        }
        0b001 => ordered(word),
        0b101 => {
            let base = if field(word, 23, 1) != 0 { rn } else { 0 };
            let both = data(rt | rt2);
            if field(word, 22, 1) != 0 { (rn, both | base) } else { (rn | both, base) }
        }
        0b111 => {
            let store = field(word, 22, 2) == 0 || vector && field(word, 22, 1) == 0;
            let prefetch = !vector && field(word, 30, 2) == 3 && field(word, 22, 2) == 2;
            let data = |registers: u32| if prefetch { 0 } else { data(registers) };
            let (index, base) = match (field(word, 24, 1), field(word, 21, 1), field(word, 10, 2)) {
                (0, 0, 1 | 3) => (0, rn),
                (0, 1, 2) => (rm, 0),
                // Atomics read one register and load another.
                (0, 1, 0) => return (rn | rm, data(rt)),
                _ => (0, 0),
            };
            if store { (rn | index | data(rt), base) } else { (rn | index, data(rt) | base) }
        }
        // Ordered accesses with an offset, tags: read or write, whichever is worse.
        _ => (rn | data(rt), data(rt) | rn),
    }
}

/// The vector instructions that move from or to a general register.
fn vector(word: u32) -> (u32, u32) {
    let [rd, rn] = [0, 5].map(|low| bit(field(word, low, 5)));
    // Conversions between floating-point and integer or fixed-point.
    if word & 0x5f20_fc00 == 0x1e20_0000 || word & 0x5f20_0000 == 0x1e00_0000 {
        return match field(word, 16, 3) {
            2 | 3 | 7 => (rn, 0),
            _ => (0, rd),
        };
    }
    // DUP and INS from, SMOV and UMOV to a general register.
    if word & 0x9fe0_8400 == 0x0e00_0400 {
        return match (field(word, 29, 1), field(word, 11, 4)) {
            (0, 1 | 3) => (rn, 0),
            (0, 5 | 7) => (0, rd),
            _ => (0, 0),
        };
    }
    (0, 0)
}
