//! Whether a relocated instruction says the same as the original: both decoded again, by hand and apart from the
//! crate, and their targets, conditions and constants compared.

/// What an instruction amounts to, independent of its place.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// These words, anywhere.
    Words(Vec<u32>),
    /// Goes to `target` when the B form with this BO and BI would; sets lr to `link`.
    Branch { bo: u32, bi: u32, target: Target, link: Option<u64> },
    /// `register = value`
    Constant { register: u32, value: u64 },
    /// A prefixed instruction at this absolute operand; the words without the displacement.
    Relative { words: [u32; 2], operand: u64 },
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    Address(u64),
    Register(u32),
}

/// Panics unless `moved` at `to` does what `original` at `from` does.
pub fn assert_same(original: &[u8], from: u64, moved: &[u8], to: u64) {
    let (original, moved) = (words(original), words(moved));
    let mut expected = meaning_of_original(&original, from);
    // A branch to itself goes round in the copy.
    if let Meaning::Branch { target: Target::Address(target), .. } = &mut expected
        && *target == from
    {
        *target = to;
    }
    let found = meaning_of_copy(&moved, to, &expected);
    assert_eq!(found, expected, "{original:x?} at {from:#x} became {moved:x?} at {to:#x}");
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn signed(value: u32, bits: u32) -> i64 {
    i64::from((value << (32 - bits)) as i32 >> (32 - bits))
}

fn branch_target(word: u32, at: u64) -> Option<u64> {
    let base = if word & 2 != 0 { 0 } else { at };
    match word >> 26 {
        16 => Some(base.wrapping_add_signed(signed(word & 0xfffc, 16))),
        18 => Some(base.wrapping_add_signed(signed(word & 0x3ff_fffc, 26))),
        _ => None,
    }
}

fn operand(words: [u32; 2], at: u64) -> u64 {
    let raw = u64::from(words[0] & 0x3_ffff) << 16 | u64::from(words[1] & 0xffff);
    at.wrapping_add_signed((raw << 30) as i64 >> 30)
}

fn meaning_of_original(words: &[u32], at: u64) -> Meaning {
    let word = words[0];
    let link = (word & 1 != 0).then_some(at + 4);
    let (bo, bi) = (word >> 21 & 31, word >> 16 & 31);
    let register = match (word >> 26, word >> 1 & 0x3ff) {
        (19, xo @ (16 | 528 | 560)) => Some(xo),
        _ => None,
    };
    match (branch_target(word, at), register) {
        (Some(target), _) if word >> 26 == 18 => {
            return Meaning::Branch { bo: 20, bi: 0, target: Target::Address(target), link };
        }
        // Of a branch that is always taken BI says nothing.
        (Some(target), _) if bo & 20 == 20 => {
            return Meaning::Branch { bo: 20, bi: 0, target: Target::Address(target), link };
        }
        (Some(target), _) => return Meaning::Branch { bo, bi, target: Target::Address(target), link },
        (_, Some(register)) => {
            return Meaning::Branch { bo, bi, target: Target::Register(register), link };
        }
        _ => {}
    }
    match word >> 26 {
        19 if word >> 1 & 31 == 2 => {
            let d = word & 0xffc1 | word >> 15 & 0x3e;
            let value = (at + 4).wrapping_add_signed(signed(d, 16) << 16);
            Meaning::Constant { register: bo, value }
        }
        1 if word & 0x0110_0000 == 0x0010_0000 => relative([word, words[1]], at),
        _ => Meaning::Words(words.to_vec()),
    }
}

fn relative(words: [u32; 2], at: u64) -> Meaning {
    Meaning::Relative { words: [words[0] & !0x3_ffff, words[1] & !0xffff], operand: operand(words, at) }
}

/// Reads a copy. Which of its forms to expect is clear from the original; all values come from the copy.
fn meaning_of_copy(words: &[u32], at: u64, expected: &Meaning) -> Meaning {
    match expected {
        Meaning::Words(_) if words[0] == 0x6000_0000 && words.len() == 3 => {
            assert!(at % 64 == 60, "a nop only in front of a boundary");
            Meaning::Words(words[1..].to_vec())
        }
        Meaning::Words(_) => Meaning::Words(words.to_vec()),
        Meaning::Constant { .. } => {
            let (register, value, length) = constant(words);
            assert_eq!(length, words.len());
            Meaning::Constant { register, value }
        }
        Meaning::Relative { .. } => {
            let skipped = words.len() - 2;
            assert!(skipped == 0 || at % 64 == 60 && words[0] == 0x6000_0000);
            let at = at + 4 * skipped as u64;
            assert!(at % 64 != 60, "crosses a boundary");
            relative([words[skipped], words[skipped + 1]], at)
        }
        Meaning::Branch { .. } => copied_branch(words, at),
    }
}

fn copied_branch(words: &[u32], at: u64) -> Meaning {
    let (mut words, mut at, mut link) = (words, at, None);
    // std r12,-304(r1); li r12,0; stdu r12,-544(r1); constant; mtlr r12; ld r12,240(r1); addi r1,r1,544
    if words[..words.len().min(3)] == [0xf981_fed0, 0x3980_0000, 0xf981_fde1] {
        let (register, value, length) = constant(&words[3..]);
        assert_eq!(register, 12);
        assert_eq!(&words[3 + length..6 + length], &[0x7d88_03a6, 0xe981_00f0, 0x3821_0220]);
        link = Some(value);
        words = &words[6 + length..];
        at += 4 * (6 + length as u64);
    }
    let last = at + 4 * (words.len() as u64 - 1);
    let address = |word, at| Target::Address(branch_target(word, at).expect("a branch"));
    let (bo, bi) = (words[0] >> 21 & 31, words[0] >> 16 & 31);
    match *words {
        [word] if word >> 26 == 19 => {
            assert_eq!(word & 1, 0);
            Meaning::Branch { bo, bi, target: Target::Register(word >> 1 & 0x3ff), link }
        }
        [word] => Meaning::Branch { bo: 20, bi: 0, target: address(word, at), link },
        // The inverted branch over the branch: turn it back, with its hint.
        [over, branch] => {
            assert_eq!((over >> 26, over & 0xffff), (16, 8));
            let bo = match bo {
                0b00100 | 0b00101 | 0b01100 | 0b01101 => bo ^ 0b01000,
                0b00110 | 0b00111 | 0b01110 | 0b01111 => bo ^ 0b01001,
                0b10000..=0b10011 => bo ^ 0b00010,
                0b11000..=0b11011 => bo ^ 0b00011,
                _ => panic!("{bo:#b} cannot be inverted"),
            };
            Meaning::Branch { bo, bi, target: address(branch, last), link }
        }
        [taken, skip, branch] => {
            assert_eq!((taken >> 26, taken & 0xffff, skip), (16, 8, 0x4800_0008));
            Meaning::Branch { bo, bi, target: address(branch, last), link }
        }
        _ => panic!("{words:x?} is no copy of a branch"),
    }
}

/// Runs `li`, `lis`, `ori`, `oris` and `sldi` of one register: the register, its value, the number of words.
fn constant(words: &[u32]) -> (u32, u64, usize) {
    let register = words[0] >> 21 & 31;
    let (mut value, mut length) = (0, 0);
    for &word in words {
        let same = word >> 16 & 31 == register && word >> 21 & 31 == register;
        let immediate = u64::from(word & 0xffff);
        value = match word >> 26 {
            14 if length == 0 => signed(word & 0xffff, 16) as u64,
            15 if length == 0 => (signed(word & 0xffff, 16) << 16) as u64,
            24 if same => value | immediate,
            25 if same => value | immediate << 16,
            30 if same && word & 0xffff == 0x07c6 => value << 32,
            _ => break,
        };
        length += 1;
    }
    (register, value, length)
}
