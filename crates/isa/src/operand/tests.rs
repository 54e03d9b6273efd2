//! Operands as compilers write them: size, text, what is read.

use super::*;
use Machine::*;

fn memory(base: u8, index: Option<(u8, u8)>, offset: i32, size: u8) -> Parsed {
    Ok(Source::Read(Operand::Memory { base, index, offset, size }, 0))
}

fn register(number: u8, shift: u8) -> Parsed {
    Ok(Source::Read(Operand::Register(number), shift))
}

fn parse(machine: Machine, size: u8, text: &str) -> Parsed {
    Source::parse(machine, text, size, &|name| (name == "foo").then_some(0x4000))
}

#[track_caller]
fn check(machine: Machine, table: &[(u8, &str, Parsed)]) {
    for (size, text, expected) in table {
        assert_eq!(parse(machine, *size, text), *expected, "{size}@{text}");
    }
}

#[test]
fn operands_of_64_bit_x86() {
    check(
        X86_64,
        &[
            (8, "%rax", register(0, 0)),
            (4, "%eax", register(0, 0)),
            (2, "%ax", register(0, 0)),
            (1, "%al", register(0, 0)),
            (1, "%ah", register(0, 8)),
            (1, "%bh", register(3, 8)),
            (1, "%dil", register(7, 0)),
            (1, "%spl", register(4, 0)),
            (8, "%r8", register(8, 0)),
            (4, "%r15d", register(15, 0)),
            (2, "%r10w", register(10, 0)),
            (1, "%r9b", register(9, 0)),
            (0, "%rdi", register(7, 0)),
            (8, "-16(%rbp)", memory(5, None, -16, 8)),
            (4, "-1204(%rbp)", memory(5, None, -1204, 4)),
            (4, "112(%rsp)", memory(4, None, 112, 4)),
            (0, "(%rax)", memory(0, None, 0, 8)),
            (8, "(%rax,%rbx,8)", memory(0, Some((3, 3)), 0, 8)),
            (2, "0x10(%r12, %r13, 2)", memory(12, Some((13, 1)), 16, 2)),
            (1, "8(%rax,%rbx)", memory(0, Some((3, 0)), 8, 1)),
            (4, "$5", Ok(Source::Constant(5))),
            (4, "$-5", Ok(Source::Constant(-5))),
            (8, "$0xffffffffffffffff", Ok(Source::Constant(-1))),
            (8, "$18446744073709551615", Ok(Source::Constant(-1))),
            (8, "$foo", Ok(Source::Constant(0x4000))),
            (8, "foo(%rip)", Ok(Source::Read(Operand::At { address: 0x4000, size: 8 }, 0))),
            (4, "foo+4(%rip)", Ok(Source::Read(Operand::At { address: 0x4004, size: 4 }, 0))),
            (4, "4+foo(%rip)", Ok(Source::Read(Operand::At { address: 0x4004, size: 4 }, 0))),
            (4, "foo-4+8(%rip)", Ok(Source::Read(Operand::At { address: 0x4004, size: 4 }, 0))),
            (4, "foo", Ok(Source::Read(Operand::At { address: 0x4000, size: 4 }, 0))),
            (8, "bar(%rip)", Err(NotRead::Symbol)),
            (8, "foo@GOTPCREL(%rip)", Err(NotRead::Symbol)),
            (8, "foo(%rax)", Err(NotRead::Symbol)),
            (8, "16(%rip)", Err(NotRead::Address)),
            (8, "4096", Err(NotRead::Address)),
            (8, "8(,%rax,8)", Err(NotRead::Address)),
            (8, "%fs:16", Err(NotRead::Segment)),
            (8, "%fs:(%rax)", Err(NotRead::Segment)),
            (8, "%xmm0", Err(NotRead::Register)),
            (8, "%st", Err(NotRead::Register)),
            (8, "%r16", Err(NotRead::Register)),
            (8, "%r7", Err(NotRead::Register)),
            (8, "(%eax)", Err(NotRead::Register)),
            (8, "(%rax,%rsp,1)", Err(NotRead::Register)),
            (8, "(%rax,%rbx,3)", Err(NotRead::Malformed)),
            (8, "(%rax,%rbx,8,1)", Err(NotRead::Malformed)),
            (8, "(%rax", Err(NotRead::Malformed)),
            (8, "4294967296(%rax)", Err(NotRead::Malformed)),
            (16, "%rax", Err(NotRead::TooWide)),
            (3, "%rax", Err(NotRead::TooWide)),
            (8, "", Err(NotRead::Address)),
            (8, "-foo(%rip)", Err(NotRead::Malformed)),
            (8, "$", Err(NotRead::Address)),
            (8, "%", Err(NotRead::Register)),
            (8, "\u{e4}(%rax)", Err(NotRead::Malformed)),
        ],
    );
}

#[test]
fn operands_of_32_bit_x86() {
    check(
        I386,
        &[
            (4, "%eax", register(0, 0)),
            (1, "%ch", register(1, 8)),
            (4, "8(%esp)", memory(4, None, 8, 4)),
            (8, "-12(%ebp)", memory(5, None, -12, 8)),
            (0, "(%ecx,%edx,4)", memory(1, Some((2, 2)), 0, 4)),
            (4, "foo", Ok(Source::Read(Operand::At { address: 0x4000, size: 4 }, 0))),
            (4, "%rax", Err(NotRead::Register)),
            (4, "%r8d", Err(NotRead::Register)),
            (1, "%sil", Err(NotRead::Register)),
            (4, "(%rax)", Err(NotRead::Register)),
        ],
    );
}

#[test]
fn operands_of_arm64() {
    check(
        AArch64,
        &[
            (8, "x0", register(0, 0)),
            (4, "w30", register(30, 0)),
            (8, "sp", register(31, 0)),
            (4, "wzr", Ok(Source::Constant(0))),
            (4, "5", Ok(Source::Constant(5))),
            (4, "-5", Ok(Source::Constant(-5))),
            (4, "[sp, 12]", memory(31, None, 12, 4)),
            (4, "[sp,-8]", memory(31, None, -8, 4)),
            (8, "[x1]", memory(1, None, 0, 8)),
            (8, "[x29, #-16]", memory(29, None, -16, 8)),
            (8, "[x1,x2]", memory(1, Some((2, 0)), 0, 8)),
            (8, "[x1, x2, lsl 3]", memory(1, Some((2, 3)), 0, 8)),
            (8, "[x1, x2, lsl #2]", memory(1, Some((2, 2)), 0, 8)),
            (8, "[x0, :lo12:foo]", memory(0, None, 0, 8)),
            (4, "[x9, #:lo12:foo+12]", memory(9, None, 12, 4)),
            (8, "[x0, :lo12:bar]", Err(NotRead::Symbol)),
            (8, "[x0, :lo12:foo, lsl 3]", Err(NotRead::Malformed)),
            (8, "[x0, :got:foo]", Err(NotRead::Malformed)),
            (8, "[x1, w2, sxtw]", Err(NotRead::Malformed)),
            (8, "[w1]", Err(NotRead::Malformed)),
            (8, "x31", Err(NotRead::Register)),
            (8, "d0", Err(NotRead::Register)),
            (8, "[x1", Err(NotRead::Malformed)),
        ],
    );
}

#[test]
fn operands_of_powerpc() {
    check(
        PowerPc64Le,
        &[
            (4, "31", register(31, 0)),
            (8, "0", register(0, 0)),
            (8, "%r3", register(3, 0)),
            (8, "r3", register(3, 0)),
            (4, "i-5", Ok(Source::Constant(-5))),
            (8, "8(1)", memory(1, None, 8, 8)),
            (4, "-20(%r31)", memory(31, None, -20, 4)),
            (8, "8(0)", Err(NotRead::Address)),
            (8, "32", Err(NotRead::Register)),
            (8, "%f1", Err(NotRead::Register)),
            (8, "8,9", memory(8, Some((9, 0)), 0, 8)),
            (4, "%r31, 0", memory(31, Some((0, 0)), 0, 4)),
            (8, "0,9", memory(9, None, 0, 8)),
            (8, "8,32", Err(NotRead::Register)),
            (8, "8,9,10", Err(NotRead::Register)),
            (8, "(1", Err(NotRead::Malformed)),
        ],
    );
}

#[test]
fn no_text_makes_the_parser_panic() {
    const PIECES: [&str; 24] = [
        "%",
        "rax",
        "(",
        ")",
        ",",
        "-",
        "+",
        "0x",
        "9",
        "18446744073709551615",
        "$",
        "foo",
        "[",
        "]",
        "sp",
        "x1",
        "lsl",
        "#",
        "i",
        ":",
        "@",
        " ",
        "h",
        "\u{e4}",
    ];
    // A small generator (xorshift64*), so that every run sees the same texts.
    let mut state = 88_172_645_463_325_252_u64;
    for _ in 0..200_000 {
        let mut text = alloc::string::String::new();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let mut bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        for _ in 0..bits % 8 {
            text.push_str(PIECES[(bits >> 3) as usize % PIECES.len()]);
            bits = bits.rotate_right(7) ^ 0x9e37;
        }
        for machine in [X86_64, I386, AArch64, PowerPc64Le] {
            let _ = parse(machine, [0, 1, 8, 16][bits as usize % 4], &text);
        }
    }
}
