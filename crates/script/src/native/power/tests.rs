//! Encodings beside those of an assembler, numbers, and what code looks like.

use super::emit::constant;
use super::words::*;
use crate::ir::*;
use crate::native::{Abi, Moment, NativeProgram, Target, compile};
use trapless_isa::body::Code;
use trapless_isa::{Flow, Machine};

/// Registers for instructions with three and with two of them.
const R: &[u8] = &[3, 4, 5];
const TWO: &[u8] = &[3, 4];

/// The words are those of GNU's assembler, 2.40, with `-mpower8`.
#[test]
fn instructions_are_encoded_as_an_assembler_does() {
    let cases = [
        (ADD.with(R), 0x7c642a14, "add 3, 4, 5"),
        (SUB.with(R), 0x7c652050, "subf 3, 5, 4"),
        (SUB_FROM.and(-7).with(TWO), 0x2064fff9, "subfic 3, 4, -7"),
        (NEG.with(TWO), 0x7c6400d0, "neg 3, 4"),
        (MULTIPLY.with(R), 0x7c6429d2, "mulld 3, 4, 5"),
        (MULTIPLY_HIGH.with(R), 0x7c642892, "mulhd 3, 4, 5"),
        (MULTIPLY_HIGH_UNSIGNED.with(R), 0x7c642812, "mulhdu 3, 4, 5"),
        (DIVIDE.with(R), 0x7c642bd2, "divd 3, 4, 5"),
        (DIVIDE_UNSIGNED.with(R), 0x7c642b92, "divdu 3, 4, 5"),
        (AND.with(R), 0x7c832838, "and 3, 4, 5"),
        (AND_NOT.with(R), 0x7c832878, "andc 3, 4, 5"),
        (OR.with(R), 0x7c832b78, "or 3, 4, 5"),
        (OR_NOT.with(R), 0x7c832b38, "orc 3, 4, 5"),
        (XOR.with(R), 0x7c832a78, "xor 3, 4, 5"),
        (NOT.with(TWO), 0x7c8320f8, "not 3, 4"),
        (COPY.with(TWO), 0x7c832378, "mr 3, 4"),
        (SHIFT_LEFT.with(R), 0x7c832836, "sld 3, 4, 5"),
        (SHIFT_RIGHT.with(R), 0x7c832c36, "srd 3, 4, 5"),
        (SHIFT_RIGHT_SIGNED.with(R), 0x7c832e34, "srad 3, 4, 5"),
        (ROTATE.with(R), 0x78832810, "rotld 3, 4, 5"),
        (ROTATE_WORD.with(R), 0x5c83283e, "rotlw 3, 4, 5"),
        (EXTEND_BYTE.with(TWO), 0x7c830774, "extsb 3, 4"),
        (EXTEND_HALF.with(TWO), 0x7c830734, "extsh 3, 4"),
        (EXTEND_WORD.with(TWO), 0x7c8307b4, "extsw 3, 4"),
        (LEADING_ZEROS.with(TWO), 0x7c830074, "cntlzd 3, 4"),
        (LEADING_ZEROS_WORD.with(TWO), 0x7c830034, "cntlzw 3, 4"),
        (POPULATION.with(TWO), 0x7c8303f4, "popcntd 3, 4"),
        (ADD_IMMEDIATE.and(-2).with(TWO), 0x3864fffe, "addi 3, 4, -2"),
        (ADD_SHIFTED.and(-2).with(TWO), 0x3c64fffe, "addis 3, 4, -2"),
        (MULTIPLY_IMMEDIATE.and(-2).with(TWO), 0x1c64fffe, "mulli 3, 4, -2"),
        (OR_IMMEDIATE.and(-0x7fff).with(TWO), 0x60838001, "ori 3, 4, 0x8001"),
        (OR_SHIFTED.and(-0x7fff).with(TWO), 0x64838001, "oris 3, 4, 0x8001"),
        (XOR_IMMEDIATE.and(-0x7fff).with(TWO), 0x68838001, "xori 3, 4, 0x8001"),
        (XOR_SHIFTED.and(-0x7fff).with(TWO), 0x6c838001, "xoris 3, 4, 0x8001"),
        (AND_IMMEDIATE.and(-0x7fff).with(TWO), 0x70838001, "andi. 3, 4, 0x8001"),
        (AND_SHIFTED.and(-0x7fff).with(TWO), 0x74838001, "andis. 3, 4, 0x8001"),
        (LOAD_IMMEDIATE.and(-2).with(&[3]), 0x3860fffe, "li 3, -2"),
        (LOAD_SHIFTED.and(-2).with(&[3]), 0x3c60fffe, "lis 3, -2"),
        (shift_left_by(7).with(TWO), 0x78833e24, "sldi 3, 4, 7"),
        (shift_left_by(40).with(TWO), 0x788345c6, "sldi 3, 4, 40"),
        (shift_right_by(7).with(TWO), 0x7883c9c2, "srdi 3, 4, 7"),
        (shift_right_by(40).with(TWO), 0x7883c220, "srdi 3, 4, 40"),
        (shift_right_signed_by(7).with(TWO), 0x7c833e74, "sradi 3, 4, 7"),
        (shift_right_signed_by(40).with(TWO), 0x7c834676, "sradi 3, 4, 40"),
        (rotate_left_by(40).with(TWO), 0x78834002, "rotldi 3, 4, 40"),
        (low_bits(5).with(TWO), 0x788306e0, "clrldi 3, 4, 59"),
        (low_bits(40).with(TWO), 0x78830600, "clrldi 3, 4, 24"),
        (without_low_bits(5).with(TWO), 0x788306a4, "clrrdi 3, 4, 5"),
        (without_low_bits(40).with(TWO), 0x788305c4, "clrrdi 3, 4, 40"),
        (INSERT_UPPER.with(TWO), 0x7883000e, "rldimi 3, 4, 32, 0"),
        (rotate_word(8, 16, 23).with(TWO), 0x5483442e, "rlwinm 3, 4, 8, 16, 23"),
        (insert_word(24, 16, 23).with(TWO), 0x5083c42e, "rlwimi 3, 4, 24, 16, 23"),
        (compare(Signs::Signed, Compared::Doubleword).with(&[4, 5]), 0x7c242800, "cmpd 4, 5"),
        (compare(Signs::Signed, Compared::Word).with(&[4, 5]), 0x7c042800, "cmpw 4, 5"),
        (compare(Signs::Unsigned, Compared::Doubleword).with(&[4, 5]), 0x7c242840, "cmpld 4, 5"),
        (compare(Signs::Unsigned, Compared::Word).with(&[4, 5]), 0x7c042840, "cmplw 4, 5"),
        (
            compare_immediate(Signs::Signed, Compared::Doubleword).and(-2).with(&[4]),
            0x2c24fffe,
            "cmpdi 4, -2",
        ),
        (
            compare_immediate(Signs::Unsigned, Compared::Word).and(-2).with(&[4]),
            0x2804fffe,
            "cmplwi 4, 0xfffe",
        ),
        (test(255).with(&[4]), 0x708000ff, "andi. 0, 4, 255"),
        (COMPARE_FLOATS.with(&[4, 5]), 0xfc042800, "fcmpu 0, 4, 5"),
        (or_bits(Bit::Less, Bit::Equal).with(&[]), 0x4c001382, "cror 0, 0, 2"),
        (choose(Bit::Equal as u32).with(R), 0x7c64289e, "isel 3, 4, 5, 2"),
        (LOAD.and(-8).with(TWO), 0xe864fff8, "ld 3, -8(4)"),
        (LOAD_WORD_SIGNED.and(-8).with(TWO), 0xe864fffa, "lwa 3, -8(4)"),
        (LOAD_WORD.and(-7).with(TWO), 0x8064fff9, "lwz 3, -7(4)"),
        (LOAD_HALF.and(-7).with(TWO), 0xa064fff9, "lhz 3, -7(4)"),
        (LOAD_HALF_SIGNED.and(-7).with(TWO), 0xa864fff9, "lha 3, -7(4)"),
        (LOAD_BYTE.and(-7).with(TWO), 0x8864fff9, "lbz 3, -7(4)"),
        (LOAD_DOUBLE.and(-7).with(TWO), 0xc864fff9, "lfd 3, -7(4)"),
        (LOAD_SINGLE.and(-7).with(TWO), 0xc064fff9, "lfs 3, -7(4)"),
        (STORE.and(-8).with(TWO), 0xf864fff8, "std 3, -8(4)"),
        (STORE_WORD.and(-7).with(TWO), 0x9064fff9, "stw 3, -7(4)"),
        (STORE_HALF.and(-7).with(TWO), 0xb064fff9, "sth 3, -7(4)"),
        (STORE_BYTE.and(-7).with(TWO), 0x9864fff9, "stb 3, -7(4)"),
        (STORE_DOUBLE.and(-7).with(TWO), 0xd864fff9, "stfd 3, -7(4)"),
        (STORE_SINGLE.and(-7).with(TWO), 0xd064fff9, "stfs 3, -7(4)"),
        (STORE_UPDATE.and(-64).with(TWO), 0xf864ffc1, "stdu 3, -64(4)"),
        (STORE_UPDATE_INDEXED.with(R), 0x7c64296a, "stdux 3, 4, 5"),
        (LOAD_VECTOR.with(R), 0x7c642e98, "lxvd2x 3, 4, 5"),
        (STORE_VECTOR.with(R), 0x7c642f98, "stxvd2x 3, 4, 5"),
        (LOAD_RESERVED.with(TWO), 0x7c6020a8, "ldarx 3, 0, 4"),
        (STORE_CONDITIONAL.with(TWO), 0x7c6021ad, "stdcx. 3, 0, 4"),
        (SYNC.with(&[]), 0x7c0004ac, "sync"),
        (LIGHT_SYNC.with(&[]), 0x7c2004ac, "lwsync"),
        (FLOAT_ADD.with(R), 0xfc64282a, "fadd 3, 4, 5"),
        (FLOAT_SUB.with(R), 0xfc642828, "fsub 3, 4, 5"),
        (FLOAT_MULTIPLY.with(R), 0xfc640172, "fmul 3, 4, 5"),
        (FLOAT_DIVIDE.with(R), 0xfc642824, "fdiv 3, 4, 5"),
        (FLOAT_COPY.with(TWO), 0xfc602090, "fmr 3, 4"),
        (FLOAT_NEGATE.with(TWO), 0xfc602050, "fneg 3, 4"),
        (FLOAT_ABSOLUTE.with(TWO), 0xfc602210, "fabs 3, 4"),
        (FLOAT_ROOT.with(TWO), 0xfc60202c, "fsqrt 3, 4"),
        (FLOAT_ROUND.with(TWO), 0xfc602018, "frsp 3, 4"),
        (FLOAT_TO_SIGNED.with(TWO), 0xfc60265e, "fctidz 3, 4"),
        (FLOAT_FROM_SIGNED.with(TWO), 0xfc60269c, "fcfid 3, 4"),
        (FLOAT_FROM_UNSIGNED.with(TWO), 0xfc60279c, "fcfidu 3, 4"),
        (BITS_OF_FLOAT.with(TWO), 0x7c830066, "mfvsrd 3, 4"),
        (FLOAT_OF_BITS.with(TWO), 0x7c640166, "mtvsrd 3, 4"),
        (SINGLE_TO_DOUBLE.with(TWO), 0xf060252c, "xscvspdpn 3, 4"),
        (DOUBLE_TO_SINGLE.with(TWO), 0xf060242c, "xscvdpspn 3, 4"),
        (READ_LINK.with(&[3]), 0x7c6802a6, "mflr 3"),
        (WRITE_LINK.with(&[3]), 0x7c6803a6, "mtlr 3"),
        (HERE, 0x429f0005, "bcl 20, 31, .+4"),
        (CALL_LINK, 0x4e800021, "blrl"),
        (RETURN, 0x4e800020, "blr"),
        (Condition::Set(Bit::Equal).branch() | 8, 0x41820008, "beq .+8"),
        (Condition::Clear(Bit::Less).branch() | 8, 0x40800008, "bge .+8"),
    ];
    for (word, expected, text) in cases {
        assert_eq!(word, expected, "{text}: {word:#010x}, not {expected:#010x}");
    }
}

/// What instructions that write a number leave in its register.
fn written(words: &[u32]) -> i64 {
    words.iter().fold(0x5555, |value: i64, word| {
        let (low, unsigned) = (i64::from(*word as i16), i64::from(*word as u16));
        match word >> 26 {
            14 => low,
            15 => low << 16,
            24 => value | unsigned,
            25 => value | unsigned << 16,
            30 => value << (word >> 11 & 31 | (word >> 1 & 1) << 5),
            other => panic!("{other}: {word:#x}"),
        }
    })
}

#[test]
fn numbers_of_all_shapes_are_written() {
    let shapes = (0..64).flat_map(|bit| {
        let power = 1i64.wrapping_shl(bit);
        [
            power,
            power.wrapping_sub(1),
            !power,
            power.wrapping_neg(),
            0x7fff_i64.wrapping_shl(bit),
            (-0x1235_i64).wrapping_shl(bit),
        ]
    });
    let others =
        [0x1234_5678_9abc_def0, -0x1234_5678_9abc_def0, 0xffff_8000, 0x8000_8000, 0x7fff_ffff_8000_0000];
    for number in shapes.chain(others) {
        let mut words = Vec::new();
        constant(&mut words, 3, number);
        assert_eq!(written(&words), number, "{number:#x}: {words:x?}");
        assert!(words.len() <= 5);
    }
}

fn program(maps: Vec<Map>, scratch: u32, code: Vec<Statement>) -> Program {
    let body = Body { locals: vec![Scalar::Int], scratch, code };
    Program { maps, fuel: 1000, bodies: vec![body], ..Program::default() }
}

fn compiled(program: &Program) -> NativeProgram {
    let target = Target { machine: Machine::PowerPc64Le, ring_bits: 16, abis: &[Abi::C] };
    compile(program, &[(BodyId(0), Moment::Entry)], &target).unwrap()
}

fn map(key: u32, of: Aggregation, sharing: MapSharing) -> Map {
    Map { name: "@".into(), key, value: MapValue::Aggregate(of), capacity: 64, sharing }
}

fn aggregate(value: Expression) -> Statement {
    Statement::Aggregate { map: MapId(0), key: Place::Scratch(0), value, weight: None }
}

/// The instructions of a piece that can be reached.
fn instructions(code: &Code) -> Vec<String> {
    let isa = Machine::PowerPc64Le.isa();
    let mut seen = std::collections::BTreeMap::new();
    let mut open = vec![0usize];
    while let Some(at) = open.pop() {
        if seen.contains_key(&at) {
            continue;
        }
        let decoded = isa.decode(&code.bytes[at..], at as u64).unwrap();
        seen.insert(at, isa.disassemble(&code.bytes[at..at + 4], at as u64));
        if decoded.flow.falls_through() || matches!(decoded.flow, Flow::IndirectCall) {
            open.push(at + 4);
        }
        if let Flow::Jump { target } | Flow::Branch { target } = decoded.flow {
            open.push(target as usize);
        }
    }
    seen.into_values().collect()
}

#[test]
fn what_counts_in_a_threads_own_word_keeps_what_it_uses_below_the_stack_pointer() {
    let count = aggregate(Expression::Int(0));
    let filter = Expression::Binary(
        Binary::Less,
        Box::new(Expression::Int(5000)),
        Box::new(Expression::Context(Context::Argument(0))),
    );
    let code = vec![Statement::If(filter, vec![count], Vec::new())];
    let native = compiled(&program(vec![map(0, Aggregation::Count, MapSharing::PerThread)], 0, code));
    let [body] = &native.code.bodies[..] else { panic!("one body") };
    assert!(body.holes.is_empty() && native.code.routines.is_empty());
    let expected = [
        "std r3, -0x10(r1)",
        "std r4, -0x8(r1)",
        "cmpdi r3, 0x1388",
        "ble 0x34",
        // That something is there, and then the number, so that signal handlers' additions are not lost.
        "lwsync",
        "li r3, 0x1",
        "std r3, 0x10c0(r30)",
        "addi r4, r30, 0x10c8",
        "lwsync",
        "ldarx r12, r0, r4",
        "add r0, r12, r3",
        "stdcx. r0, r0, r4",
        "bne 0x24",
        "ld r3, -0x10(r1)",
        "ld r4, -0x8(r1)",
        "blr",
    ];
    assert_eq!(instructions(body), expected);
    assert_eq!(body.frame, 16);
}

#[test]
fn no_piece_touches_what_it_must_not() {
    let key = Statement::Store {
        to: Place::Scratch(0),
        as_: Width::Unsigned(8),
        value: Expression::Context(Context::Argument(0)),
    };
    let read = Statement::Read {
        into: LocalId(0),
        from: Expression::Context(Context::Argument(1)),
        as_: Width::Unsigned(8),
        ok: None,
    };
    let code = vec![key, read, aggregate(Expression::Local(LocalId(0)))];
    let native = compiled(&program(vec![map(8, Aggregation::Hist { bits: 2 }, MapSharing::Shared)], 8, code));
    let pieces = || native.code.bodies.iter().chain(&native.code.routines);
    assert!(pieces().count() > 3);
    // The routine that makes system calls is not made here: it saves ctr.
    for piece in
        pieces().filter(|piece| !piece.bytes.chunks(4).any(|word| word == 0x4400_0002_u32.to_le_bytes()))
    {
        assert!(piece.is_sound(native.code.routines.len()));
        assert!(piece.holes.iter().all(|(at, _)| at.is_multiple_of(8)));
        for line in instructions(piece) {
            let words: Vec<&str> = line.split([' ', ',', '(', ')']).collect();
            let kept = ["r2", "r13", "ctr", "cr1", "cr2", "cr3", "cr4", "cr5", "cr6"];
            assert!(!words.iter().any(|word| kept.contains(word) || word.contains("ctr")), "{line}");
        }
    }
}
