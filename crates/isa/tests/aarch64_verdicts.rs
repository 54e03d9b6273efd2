//! Decoding, verdicts and ranges of arm64, as tables. Each line is an instruction with its assembly.

use trapless_isa::{
    BranchTargets, Displaced, Flow, Isa, Ladder, Reason, Site,
    aarch64::{AARCH64, emit::Code, relocate::relocate},
};

const AT: u64 = 0x12_3456_7000;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn with_site<T>(words: &[u32], index: u64, targets: &[u64], use_it: impl FnOnce(&Site<'_>) -> T) -> T {
    let (code, targets) = (bytes(words), BranchTargets::new(targets.to_vec()));
    use_it(&Site { address: AT + 4 * index, ..Site::new(AT, &code, &targets) })
}

fn ladder(words: &[u32], index: u64) -> Ladder {
    with_site(words, index, &[], |site| AARCH64.verdict(site))
}

#[test]
fn control_flow_is_decoded() {
    for (word, flow, text) in [
        (0xd503_201f, Flow::Next, "nop"),
        (0x1400_0002, Flow::Jump { target: AT + 8 }, "b .+8"),
        (0x17ff_ffff, Flow::Jump { target: AT - 4 }, "b .-4"),
        (0x9400_0002, Flow::Call { target: AT + 8 }, "bl .+8"),
        (0x5400_0040, Flow::Branch { target: AT + 8 }, "b.eq .+8"),
        (0x5480_0011, Flow::Branch { target: AT - (1 << 20) }, "bc.ne, farthest back"),
        (0xb400_0040, Flow::Branch { target: AT + 8 }, "cbz x0, .+8"),
        (0x357f_ffe0, Flow::Branch { target: AT + (1 << 20) - 4 }, "cbnz w0, farthest"),
        (0xb604_0000, Flow::Branch { target: AT - (1 << 15) }, "tbz x0, #32, farthest back"),
        (0x3703_ffe0, Flow::Branch { target: AT + (1 << 15) - 4 }, "tbnz w0, #0, farthest"),
        (0xd61f_0200, Flow::IndirectJump, "br x16"),
        (0xd63f_0000, Flow::IndirectCall, "blr x0"),
        (0xd65f_03c0, Flow::Return, "ret"),
        (0xd65f_0bff, Flow::Return, "retaa"),
        (0xd65f_0fff, Flow::Return, "retab"),
        (0xd71f_0a11, Flow::IndirectJump, "braa x16, x17"),
        (0xd63f_081f, Flow::IndirectCall, "blraaz x0"),
        (0xd400_0001, Flow::System, "svc #0"),
        (0xd420_0000, Flow::Stop, "brk #0"),
        (0xd440_0000, Flow::Stop, "hlt #0"),
        (0x0000_0000, Flow::Stop, "udf #0"),
        (0xd69f_03e0, Flow::Stop, "eret"),
        (0xa9bf_7bfd, Flow::Next, "stp x29, x30, [sp, #-16]!"),
        (0x04e0_0000, Flow::Next, "SVE"),
    ] {
        let instruction = AARCH64.decode(&bytes(&[word]), AT).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!((instruction.flow, instruction.length), (flow, 4), "{text}");
    }
    for (word, text) in [
        (0x0001_0000u32, "reserved"),
        (0x0600_0000, "reserved"),
        (0x7400_0000, "compare and branch of FEAT_CMPBR"),
        (0x5500_001f, "retaasppc of FEAT_PAuth_LR"),
        (0xd61f_0001, "br with an operand"),
        (0xdc00_0000, "a vector literal of the fourth size"),
    ] {
        assert!(AARCH64.decode(&word.to_le_bytes(), AT).is_err(), "{text}");
    }
    assert!(AARCH64.decode(&[0x1f, 0x20, 0x03], AT).is_err(), "three bytes");
}

#[test]
fn c5_constants_that_a_function_loads_are_data() {
    const NOP: u32 = 0xd503_201f;
    for (load, words, text) in [
        (0x1800_0060_u32, 1, "ldr w0, .+12"),
        (0x5800_0060, 2, "ldr x0, .+12"),
        (0x9800_0060, 1, "ldrsw x0, .+12"),
        (0xd800_0060, 0, "prfm .+12"),
        (0x1c00_0060, 1, "ldr s0, .+12"),
        (0x5c00_0060, 2, "ldr d0, .+12"),
        (0x9c00_0060, 4, "ldr q0, .+12"),
    ] {
        let code = [load, NOP, 0xd65f_03c0, NOP, NOP, NOP, NOP, NOP];
        for index in 0..8 {
            let is_data = (3..3 + words).contains(&index);
            let ladder = ladder(&code, index);
            assert_eq!(ladder.jump == Err(Reason::Data), is_data, "{text}: {index}");
            assert_eq!(ladder.step == Err(Reason::Data), is_data, "{text}: {index}");
        }
    }
}

#[test]
fn rungs_are_given_or_refused_with_a_reason() {
    const NO: [Option<Reason>; 4] = [None; 4];
    let traps = [Some(Reason::Traps); 4];
    let both = |moved: Reason, emulated: &'static str| {
        [Some(moved), Some(moved), Some(Reason::NotEmulated(emulated)), Some(moved)]
    };
    let boosted = |name| [None, Some(Reason::NotBoosted(name)), None, None];
    let emulated = |name| [None, None, Some(Reason::NotEmulated(name)), None];
    let [window, system] =
        [Reason::ExclusiveWindow, Reason::Unmovable("a system call, to be stepped,")].map(Some);
    let prefix = Reason::Unmovable("movprfx, which must stand ahead of its instruction,");
    let stage = Reason::Unmovable("a stage of a copy that must stand behind the first");
    for (word, refused, text) in [
        (0xd503_201f, NO, "nop"),
        (0xa9bf_7bfd, NO, "stp x29, x30, [sp, #-16]!"),
        (0xa8c1_7bfd, NO, "ldp x29, x30, [sp], #16"),
        (0xd10083ff, NO, "sub sp, sp, #32"),
        (0x9000_0000, NO, "adrp x0, ."),
        (0x1000_0000, boosted("adr"), "adr x0, ."),
        (0x5800_0040, boosted("a literal load"), "ldr x0, .+8"),
        (0x5400_0080, NO, "b.eq .+16"),
        (0x9400_0010, boosted("a call"), "bl .+64"),
        (0xd63f_0000, boosted("a call"), "blr x0"),
        (0xd65f_03c0, NO, "ret"),
        (0xd65f_0bff, emulated("an authenticated branch"), "retaa"),
        (0xd503_23bf, emulated("pointer authentication"), "autiasp"),
        (0xd503_209f, emulated("a hint with an effect"), "sev"),
        (0x6dbf_27e8, emulated("a vector load or store"), "stp d8, d9, [sp, #-16]!"),
        (
            0x9c00_0040,
            [None, boosted("a literal load")[1], emulated("a vector load")[2], None],
            "ldr q0, .+8",
        ),
        (0xc8df_fc00, emulated("an ordered or atomic access"), "ldar x0, [x0]"),
        (0xf820_0000, emulated("an ordered or atomic access"), "ldadd x0, x0, [x0]"),
        (0xd400_0001, [None, None, emulated("svc")[2], system], "svc #0"),
        (0xc85f_7c01, [None, None, emulated("an exclusive access")[2], window], "ldxr x1, [x0]"),
        (0xd53b_d040, emulated("a system instruction"), "mrs x0, tpidr_el0"),
        (0x04e0_0000, emulated("an SVE or SME instruction"), "SVE"),
        (0xd503_205f, both(Reason::Unmovable("wfe"), "a hint with an effect"), "wfe"),
        (0xd503_207f, both(Reason::Unmovable("wfi"), "a hint with an effect"), "wfi"),
        (0xd503_1000, both(Reason::Unmovable("wfet"), "wfet"), "wfet x0"),
        (
            0xd518_1000,
            both(Reason::Unmovable("a privileged instruction"), "a privileged instruction"),
            "msr sctlr_el1, x0",
        ),
        (
            0xdac1_a3fe,
            both(Reason::Unmovable("a signature made with the program counter"), "pointer authentication"),
            "paciasppc",
        ),
        (0x0420_bc20, both(prefix, "an SVE or SME instruction"), "movprfx z0, z1"),
        (0x0451_2420, both(prefix, "an SVE or SME instruction"), "movprfx z0.h, p1/m, z1.h"),
        (0x1901_0440, emulated("an ordered or atomic access"), "cpyfp [x0]!, [x1]!, x2!"),
        (0x1d41_0440, both(stage, "a copy in stages"), "cpym [x0]!, [x1]!, x2!"),
        (0x1981_0440, both(stage, "a copy in stages"), "cpyfe [x0]!, [x1]!, x2!"),
        (0x19c2_0420, emulated("an ordered or atomic access"), "setp [x0]!, x1!, x2"),
        (0x19c2_4420, both(stage, "a copy in stages"), "setm [x0]!, x1!, x2"),
        (0x1dc2_8420, both(stage, "a copy in stages"), "setge [x0]!, x1!, x2"),
        (0xd420_0000, traps, "brk #0"),
        (0xd440_0000, traps, "hlt #0"),
        (0x0000_0000, traps, "udf #0"),
        (0xd400_0002, traps, "hvc #0"),
        (0x0001_0000, [Some(Reason::NotAnInstruction); 4], "reserved"),
    ] {
        let ladder = ladder(&[word, 0xd65f_03c0], 0);
        let got = [ladder.jump, ladder.boost, ladder.emulate, ladder.step].map(Result::err);
        assert_eq!(got, refused, "{text}");
    }
}

#[test]
fn sites_must_be_instructions_of_the_function() {
    let words = [0xd503_201f, 0xd65f_03c0];
    assert_eq!(ladder(&words, 2).jump, Err(Reason::OutsideFunction));
    let code = bytes(&words);
    let targets = BranchTargets::default();
    let site = Site { address: AT + 2, ..Site::new(AT, &code, &targets) };
    assert_eq!(AARCH64.verdict(&site).jump, Err(Reason::MidInstruction));
}

#[test]
fn a_probe_goes_behind_a_landing_pad() {
    for (pad, text) in [
        (0xd503_245f, "bti c"),
        (0xd503_249f, "bti j"),
        (0xd503_24df, "bti jc"),
        (0xd503_233f, "paciasp"),
        (0xd503_237f, "pacibsp"),
    ] {
        let words = [pad, 0xa9bf_7bfd, 0xd65f_03c0];
        let behind = Displaced { start: AT + 4, length: 4, instructions: 1 };
        assert_eq!(ladder(&words, 0).jump, Ok(behind), "{text}");
        assert_eq!(ladder(&words, 0).emulate, Ok(behind), "{text}");
        assert_eq!(ladder(&[pad], 0).jump, Err(Reason::TooShort), "{text}");
        // A loop back to behind the landing pad would be counted as a call.
        let looped = with_site(&words, 0, &[AT + 4], |site| AARCH64.verdict(site).jump);
        assert_eq!(looped, Err(Reason::BranchInto(AT + 4)), "{text}");
    }
    // The second of two stays behind: it is moved.
    let words = [0xd503_245f, 0xd503_233f, 0xd65f_03c0];
    assert_eq!(ladder(&words, 0).jump.unwrap().start, AT + 4);
}

#[test]
fn exclusive_windows_are_left_alone() {
    let words = [
        0xd503_201f, // 0 nop
        0xc85f_7c01, // 1 ldxr x1, [x0]
        0x9100_0421, // 2 add x1, x1, #1
        0xb400_0061, // 3 cbz x1, 6
        0xc802_7c01, // 4 stxr w2, x1, [x0]
        0x35ff_ff82, // 5 cbnz w2, 1
        0xd65f_03c0, // 6 ret
    ];
    let refused: Vec<bool> =
        (0..7).map(|index| ladder(&words, index).jump == Err(Reason::ExclusiveWindow)).collect();
    assert_eq!(refused, [false, false, true, true, true, false, false]);
    let ladder = ladder(&words, 1);
    // Between the copy of the load and the store come only branches; a step would put an exception there.
    assert!(ladder.jump.is_ok() && ladder.boost.is_ok());
    assert_eq!(ladder.step, Err(Reason::ExclusiveWindow));
    assert_eq!(ladder.emulate, Err(Reason::NotEmulated("an exclusive access")));
}

#[test]
fn what_stands_behind_a_movprfx_stays_there() {
    // movprfx z0, z1; add z0.b, p0/m, z0.b, z2.b; nop
    let words = [0x0420_bc20, 0x0400_0040, 0xd503_201f];
    let refused: Vec<bool> = (0..3).map(|index| ladder(&words, index).jump.is_err()).collect();
    assert_eq!(refused, [true, true, false]);
    assert_eq!(ladder(&words, 1).step, Err(Reason::Unmovable("an instruction with a movprfx")));
    assert_eq!(ladder(&words[1..], 0).jump, Ok(Displaced { start: AT, length: 4, instructions: 1 }));
}

/// What is promised is kept: within reach, every site has the slots that its verdict says, and none that it does not.
#[test]
fn slots_are_what_the_verdict_says() {
    let mut word = 0x9e37_79b9_u32;
    let mut kept = [0; 2];
    for _ in 0..200_000 {
        word = word.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        let ladder = ladder(&[0xd503_201f, word.swap_bytes() ^ word, 0xd65f_03c0], 1);
        let original = (word.swap_bytes() ^ word).to_le_bytes();
        for (index, (rung, boosted)) in [(ladder.boost, true), (ladder.step, false)].into_iter().enumerate() {
            let displaced = Displaced { start: AT + 4, length: 4, instructions: 1 };
            match (rung, AARCH64.slot(&displaced, &original, AT + 0x40_0000, boosted)) {
                (Ok(displaced), Ok(_)) => kept[index] += u32::from(displaced.start == AT + 4),
                (Ok(displaced), Err(Reason::OutOfReach)) if displaced.start == AT + 4 => {}
                // It loads itself.
                (Err(Reason::Data), _) => {}
                // A landing pad stays, and the probe goes behind it.
                (Ok(displaced), _) if displaced.start == AT + 8 => {}
                (Err(refused), Err(reason)) => assert_eq!(refused, reason, "{word:#x}"),
                (rung, slot) => panic!("{original:x?}: {rung:?}, {slot:?}"),
            }
        }
        if ladder.emulate.is_ok() {
            assert!(ladder.step.is_ok(), "{original:x?}");
        }
    }
    assert!(kept.iter().all(|&kept| kept > 50_000), "{kept:?}");
}

/// Number of instructions of the copy of `word`, from `AT` to `to`.
fn copy_length(word: u32, to: u64) -> Result<u32, Reason> {
    let mut code = Code::new(to);
    relocate(word, AT, &mut code).map(|()| code.offset() / 4)
}

#[test]
fn every_range_ends_where_it_should() {
    const FAR: i64 = 1 << 27;
    // Instruction, what it refers to, whether the nearest form measures pages, its range, lengths inside and
    // outside.
    for (word, target, limit, inside, outside, text) in [
        (0x5400_0100, AT + 32, 1 << 20, 1, Ok(2), "b.eq"),
        (0xb400_0100, AT + 32, 1 << 20, 1, Ok(2), "cbz"),
        (0x3700_0100, AT + 32, 1 << 15, 1, Ok(2), "tbnz"),
        (0x1400_0008, AT + 32, FAR, 1, Err(Reason::OutOfReach), "b"),
        (0x1000_0101, AT + 32, 1 << 20, 1, Ok(3), "adr x1"),
        (0x5800_0101, AT + 32, 1 << 20, 1, Ok(4), "ldr x1"),
        (0x9c00_0101, AT + 32, 1 << 20, 1, Ok(6), "ldr q1"),
    ] {
        // The copy at the farthest place from which the target is in range, and one instruction further.
        let last_before = target.wrapping_sub_signed(limit - 4);
        let last_behind = target.wrapping_add_signed(limit);
        assert_eq!(copy_length(word, last_before), Ok(inside), "{text} forwards");
        assert_eq!(copy_length(word, last_before - 4), outside, "{text} too far forwards");
        assert_eq!(copy_length(word, last_behind), Ok(inside), "{text} backwards");
        assert_eq!(copy_length(word, last_behind + 4), outside, "{text} too far backwards");
    }
    // The second instruction of an inverted branch is the `b`.
    for (word, text) in [(0x5400_0100, "b.eq"), (0xb400_0100, "cbz"), (0x3700_0100, "tbnz")] {
        let last = (AT + 32).wrapping_sub_signed(FAR - 4) - 4;
        assert_eq!(copy_length(word, last), Ok(2), "{text}");
        assert_eq!(copy_length(word, last - 4), Err(Reason::OutOfReach), "{text}");
    }
    // adrp: 4 GB in pages, then a constant.
    let page = AT & !0xfff;
    let far = (1u64 << 32) - 0x1000;
    assert_eq!(copy_length(0x9000_0001, page - far), Ok(1));
    assert_eq!(copy_length(0x9000_0001, page - far - 0x1000), Ok(3));
    assert_eq!(copy_length(0x9000_0001, page + (1 << 32)), Ok(1));
    assert_eq!(copy_length(0x9000_0001, page + (1 << 32) + 0x1000), Ok(3));
}

#[test]
fn patches_and_ways_back_are_range_checked() {
    let displaced = Displaced { start: AT, length: 4, instructions: 1 };
    let reach = 1u64 << 27;
    assert_eq!(AARCH64.patch(&displaced, AT + reach - 4), Ok(bytes(&[0x15ff_ffff])));
    assert_eq!(AARCH64.patch(&displaced, AT + reach), Err(Reason::OutOfReach));
    assert_eq!(AARCH64.patch(&displaced, AT - reach), Ok(bytes(&[0x1600_0000])));
    assert_eq!(AARCH64.patch(&displaced, AT - reach - 4), Err(Reason::OutOfReach));
    assert_eq!(AARCH64.patch(&displaced, AT + 2), Err(Reason::OutOfReach), "not an instruction's address");
    assert_eq!(AARCH64.facts().reach, reach - 4);
}

#[test]
fn text_names_what_relative_operands_mean() {
    for (word, text) in [
        (0xa9bf_7bfdu32, "stp x29, x30, [sp, #-0x10]!"),
        (0xd503_201f, "nop"),
        (0xd503_233f, "paciasp"),
        (0x9000_0000, "adrp x0, $+0x0 // 0x1234567000"),
        (0x1400_0004, "b $+0x10 // 0x1234567010"),
        (0x5800_0040, "ldr x0, $+0x8 // 0x1234567008"),
        (0x0001_0000, ".inst 0x00010000"),
    ] {
        assert_eq!(AARCH64.disassemble(&word.to_le_bytes(), AT), text);
    }
    assert_eq!(AARCH64.disassemble(&[1, 2], AT), "(incomplete)");
}
