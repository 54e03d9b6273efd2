//! Tables of verdicts and texts, and the promise that no bytes at any address make the crate panic.

use crate::state::{Fault, Memory, Registers, emulate};
use proptest::prelude::*;
use trapless_isa::{
    BranchTargets, DecodeError, DetourRequest, Displaced, Flow, Isa, Ladder, Layout, ReadOnlyData, Reason,
    Runtime, Site, Stack,
    payload::*,
    powerpc::{POWERPC64LE, Version, relocate},
};

const FUNCTION: u64 = 0x1000_0000;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn with_site<T>(words: &[u32], index: usize, ask: impl FnOnce(&Site<'_>) -> T) -> T {
    let (code, targets) = (bytes(words), BranchTargets::default());
    let address = FUNCTION + 4 * index as u64;
    ask(&Site { address, ..Site::new(FUNCTION, &code, &targets) })
}

fn verdict(words: &[u32], index: usize) -> Ladder {
    with_site(words, index, |site| POWERPC64LE.verdict(site))
}

const NOP: u32 = 0x6000_0000;
const BLR: u32 = 0x4e80_0020;

#[test]
fn a2_a_probe_on_a_function_goes_to_its_local_entry_point() {
    for (name, words, index, start) in [
        ("addis r2,r12; addi r2,r2", &[0x3c4c_0022, 0x3842_1730, NOP, BLR][..], 0, 8),
        ("lis r2; addi r2,r2", &[0x3c40_1010, 0x3842_7b00, NOP, BLR], 0, 8),
        ("ld r2,-8(r12); add r2,r2,r12", &[0xe84c_fff8, 0x7c42_6214, NOP, BLR], 0, 8),
        ("no set-up", &[NOP, BLR], 0, 0),
        ("half a set-up", &[0x3c4c_0022, NOP, BLR], 0, 0),
        ("a site inside the set-up", &[0x3c4c_0022, 0x3842_1730, NOP, BLR], 1, 4),
        ("a site at the local entry point", &[0x3c4c_0022, 0x3842_1730, NOP, BLR], 2, 8),
    ] {
        let expected = Displaced { start: FUNCTION + start, length: 4, instructions: 1 };
        assert_eq!(verdict(words, index).jump, Ok(expected), "{name}");
    }
}

#[test]
fn a2_refusals_have_reasons() {
    let unmovable = Reason::Unmovable;
    // lwarx r5,0,r3; addi; stwcx. r5,0,r3; bne- back; isync; blr
    let window = &[NOP, 0x7ca0_1828, 0x38a5_0001, 0x7ca0_192d, 0x40c2_fff4, 0x4c00_012c, BLR][..];
    for (name, words, index, reason) in [
        ("tw 31,0,0", &[0x7fe0_0008][..], 0, Reason::Traps),
        ("tdnei r3,0", &[0x0b03_0000], 0, Reason::Traps),
        ("sc", &[0x4400_0002], 0, unmovable("a system call")),
        ("scv 0", &[0x4400_0001], 0, unmovable("a vectored system call")),
        ("blrl", &[0x4e80_0021], 0, unmovable("a branch to the link register that sets it")),
        ("zero", &[0], 0, Reason::NotAnInstruction),
        ("behind lwarx", window, 2, Reason::ExclusiveWindow),
        ("stwcx.", window, 3, Reason::ExclusiveWindow),
        ("the suffix of paddi", &[0x0600_0000, 0x3860_0001, BLR], 1, Reason::MidInstruction),
        ("nothing but a set-up", &[0x3c4c_0022, 0x3842_1730], 0, Reason::TooShort),
        ("behind the end", &[NOP], 1, Reason::OutsideFunction),
    ] {
        assert_eq!(verdict(words, index).jump, Err(reason), "{name}");
    }
    for (name, index) in [("before lwarx", 0), ("lwarx", 1), ("behind stwcx.", 4), ("isync", 5)] {
        assert!(verdict(window, index).jump.is_ok(), "{name}");
    }
    assert_eq!(verdict(window, 1).step, Err(Reason::ExclusiveWindow), "a step loses the reservation");
}

#[test]
fn c1_jump_tables_between_instructions_are_data() {
    const BCTR: u32 = 0x4e80_0420;
    // The entries lead to the last nop, to the first instruction, and to the nop ahead of the last.
    let words = [NOP, BCTR, 16, -8_i32 as u32, 12, NOP, NOP, BLR];
    for index in 2..5 {
        assert_eq!(verdict(&words, index).jump, Err(Reason::Data), "{index}");
        assert_eq!(verdict(&words, index).step, Err(Reason::Data), "{index}");
    }
    for index in [0, 1, 5, 6, 7] {
        assert!(verdict(&words, index).jump.is_ok(), "{index}");
    }
    // What leads out of the function, between two instructions or to the table itself is no entry; and without the jump there is no table.
    for (name, words) in [
        ("out", &[BCTR, -8_i32 as u32, NOP, BLR][..]),
        ("between", &[BCTR, -2_i32 as u32, NOP, BLR]),
        ("itself", &[BCTR, 0, -4_i32 as u32, BLR]),
        ("no jump", &[NOP, -4_i32 as u32, NOP, BLR]),
        ("bctrl", &[BCTR | 1, -4_i32 as u32, NOP, BLR]),
    ] {
        let index = words.iter().position(|&word| word >> 16 == 0xffff).unwrap();
        assert_ne!(verdict(words, index).jump, Err(Reason::Data), "{name}");
    }
}

#[test]
fn a2_a_branch_to_the_suffix_of_a_prefixed_instruction_keeps_it_unpatched() {
    // paddi r3,0,0
    let code = bytes(&[0x0600_0000, 0x3860_0000, BLR]);
    let jump = |targets: &[u64]| {
        let targets = BranchTargets::new(targets.iter().map(|offset| FUNCTION + offset).collect());
        let site = Site::new(FUNCTION, &code, &targets);
        POWERPC64LE.verdict(&site).jump.map(|displaced| displaced.length)
    };
    assert_eq!(jump(&[0, 8]), Ok(8));
    assert_eq!(jump(&[4]), Err(Reason::BranchInto(FUNCTION + 4)));
}

#[test]
fn a2_prefixed_instructions_keep_off_boundaries() {
    let paddi = bytes(&[0x0600_0000, 0x3860_0001]);
    assert_eq!(POWERPC64LE.decode(&paddi, 0x103c), Err(DecodeError::Invalid));
    assert_eq!(POWERPC64LE.decode(&paddi[..4], 0x1000), Err(DecodeError::Truncated));
    let displaced = Displaced { start: FUNCTION, length: 8, instructions: 1 };
    for destination in (FUNCTION + 0x1000..FUNCTION + 0x1080).step_by(4) {
        let code = relocate(&displaced, &paddi, destination).unwrap().code;
        let at = destination + code.len() as u64 - 8;
        assert_ne!(at % 64, 60, "at {destination:#x}");
    }
    let patch = POWERPC64LE.patch(&displaced, FUNCTION + 0x100).unwrap();
    assert_eq!(patch, bytes(&[0x4800_0100, NOP]), "the suffix is covered");
}

#[test]
fn patches_reach_32_mib() {
    let displaced = Displaced { start: FUNCTION, length: 4, instructions: 1 };
    for (detour, word) in [
        (FUNCTION + 0x1ff_fffc, Ok(0x49ff_fffc)),
        (FUNCTION + 0x200_0000, Err(Reason::OutOfReach)),
        (FUNCTION - 0x200_0000, Ok(0x4a00_0000)),
        (FUNCTION - 0x200_0004, Err(Reason::OutOfReach)),
        (FUNCTION + 2, Err(Reason::OutOfReach)),
    ] {
        let expected = word.map(|word| bytes(&[word]));
        assert_eq!(POWERPC64LE.patch(&displaced, detour), expected, "{detour:#x}");
    }
}

#[test]
fn return_probes_are_refused_where_lr_is_read() {
    let reads = Err(Reason::ReadsReturnAddress);
    // mflr r0; std r0,16(r1); stdu r1,-32(r1); bl; addi r1,r1,32; ld r0,16(r1); mtlr r0; blr
    let plain =
        [0x7c08_02a6, 0xf801_0010, 0xf821_ffe1, 0x4800_1001, 0x3821_0020, 0xe801_0010, 0x7c08_03a6, BLR];
    let with = |index: usize, word: u32| {
        let mut words = plain;
        words[index] = word;
        words
    };
    for (name, words, verdict) in [
        ("an ordinary function", &plain[..], Ok(())),
        ("a leaf", &[NOP, BLR], Ok(())),
        ("mflr r3; blr", &[0x7c68_02a6, BLR], reads),
        ("mflr r4; b elsewhere", &[0x7c88_02a6, 0x4800_1000], reads),
        ("mflr r0; mr r5,r0", &[0x7c08_02a6, 0x7c05_0378, BLR], reads),
        ("mflr r0; std r0,0(r3)", &[0x7c08_02a6, 0xf803_0000, BLR], reads),
        ("mflr; then the return address as an argument", &with(1, 0x7c03_0378), reads),
        ("ld r9,48(r1); addi r3,r9,4", &[0xf821_ffe1, 0xe921_0030, 0x3869_0004, 0x3821_0020, BLR], reads),
        ("get-pc: bcl 20,31,$+4; mflr r30; addi", &[0x429f_0005, 0x7fc8_02a6, 0x3bde_0004, BLR], Ok(())),
        // hashst r0,-8(r1): its hash is compared on the way back.
        ("the return address is hashed", &[0x7c08_02a6, 0xf801_0010, 0x7fe1_05a5, 0xf821_ffe1, BLR], reads),
        ("ld r0,0(r3); mtlr r0", &[0xe803_0000, 0x7c08_03a6, BLR], Err(Reason::ReturnsOddly)),
        ("bl without a frame", &[0x7d88_02a6, 0x4800_1001, 0x7d88_03a6, BLR], Err(Reason::CallsWithoutFrame)),
        (
            "a loop through the entry, led past the probe",
            &[0x3863_ffff, 0x2c23_0000, 0x4082_fff8, BLR],
            Ok(()),
        ),
    ] {
        assert_eq!(with_site(words, 0, |site| POWERPC64LE.return_verdict(site)), verdict, "{name}");
    }
}

#[test]
fn instructions_as_text() {
    for (words, text) in [
        (&[0x4800_0101][..], "bl 0x10000100"),
        (&[0x4bff_fffc], "b 0xffffffc"),
        (&[0x4182_0010], "beq 0x10000010"),
        (&[0x4200_fff8], "bdnz 0xffffff8"),
        (&[BLR], "blr"),
        (&[0x4e80_0420], "bctr"),
        (&[0x4e80_0460], "bctar 20, 0"),
        (&[NOP], "nop"),
        (&[0x7c08_02a6], "mflr r0"),
        (&[0xf821_ffe1], "stdu r1, -0x20(r1)"),
        (&[0xe801_0010], "ld r0, 0x10(r1)"),
        (&[0x4c60_0004], "addpcis r3, 0x10000004"),
        (&[0x0600_0001, 0x3860_0002], "paddi r3, r0, 65538"),
        (&[0x0410_0000, 0xe460_0100], "pld r3, 0x10000100(pc)"),
        (&[0x0700_0000, 0], "pnop"),
        (&[0], ".long 0x00000000"),
    ] {
        assert_eq!(POWERPC64LE.disassemble(&bytes(words), FUNCTION), text);
    }
    assert_eq!(POWERPC64LE.disassemble(&[1, 2], FUNCTION), "(incomplete)");
}

#[test]
fn flows_of_branches() {
    let target = FUNCTION + 0x10;
    for (word, flow) in [
        (0x4800_0010, Flow::Jump { target }),
        (0x4800_0011, Flow::Call { target }),
        (0x4182_0010, Flow::Branch { target }),
        (0x4280_0010, Flow::Jump { target }),
        (0x4800_0012, Flow::Jump { target: 0x10 }),
        (BLR, Flow::Return),
        (0x4d82_0020, Flow::Next), // beqlr: a return, or on
        (0x4e80_0421, Flow::IndirectCall),
        (0x4e80_0420, Flow::IndirectJump),
        (0x7fe0_0008, Flow::Stop),
        (0x0b03_0000, Flow::Next), // tdnei: a trap, or on
        (0x4400_0002, Flow::System),
    ] {
        let decoded = POWERPC64LE.decode(&bytes(&[word]), FUNCTION).map(|instruction| instruction.flow);
        assert_eq!(decoded, Ok(flow), "{word:#x}");
    }
}

/// A jump table at 0x1000_2000.
struct Table(Vec<u8>);

impl ReadOnlyData for Table {
    fn at(&self, address: u64) -> &[u8] {
        if address == 0x1000_2000 { &self.0 } else { &[] }
    }
}

#[test]
fn jump_tables_lead_where_they_say() {
    // The table lies at TOC - 0x6000; TOC = function + 0x8000.
    let code = bytes(&[
        0x3c4c_0001, // addis r2,r12,1
        0x3842_8000, // addi  r2,r2,-0x8000
        0x2823_0002, // cmpldi r3,2
        0x4181_0020, // bgt   default
        0x3c82_0000, // addis r4,r2,0
        0x3884_a000, // addi  r4,r4,-0x6000
        0x7863_1764, // sldi  r3,r3,2
        0x7c64_1aaa, // lwax  r3,r4,r3
        0x7c63_2214, // add   r3,r3,r4
        0x7c69_03a6, // mtctr r3
        0x4e80_0420, // bctr
        BLR,
        BLR,
        BLR,
        BLR,
    ]);
    let distances = [-0x2000 + 44, -0x2000 + 48, -0x2000 + 52, -0x2000 + 56];
    let data = Table(distances.iter().flat_map(|d: &i32| d.to_le_bytes()).collect());
    let mut targets = vec![];
    POWERPC64LE.branch_targets(&code, FUNCTION, &data, &mut targets);
    let expected = [44, 44, 48, 52].map(|offset| FUNCTION + offset);
    assert_eq!(targets, expected, "the branch, then the three entries within the bound");
}

struct Anything;

impl Memory for Anything {
    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        bytes.fill(address as u8);
        if address & 64 == 0 { Ok(()) } else { Err(Fault) }
    }
    fn store(&mut self, address: u64, _: &[u8]) -> Result<(), Fault> {
        if address & 64 == 0 { Ok(()) } else { Err(Fault) }
    }
}

/// Any word, more often one of the opcodes that are looked at closely.
fn some_word() -> impl Strategy<Value = u32> {
    let close = prop::sample::select(vec![1u32, 14, 15, 16, 18, 19, 30, 31, 58, 62]);
    prop_oneof![any::<u32>(), (close, any::<u32>()).prop_map(|(primary, rest)| primary << 26 | rest >> 6)]
}

fn some_layout() -> impl Strategy<Value = Layout> {
    (any::<[u64; 8]>(), 0u32..16, 0u32..16, any::<[u32; 2]>(), any::<Option<i32>>()).prop_map(
        |(a, thread_bits, return_bits, [block_count, ring], tid_offset)| Layout {
            threads: a[0],
            thread_bits,
            origin: a[1],
            block_cursor: a[2],
            blocks: a[3] >> 1,
            block_stride: a[4],
            block_count,
            ring: ring >> 2,
            ring_bits: return_bits,
            self_pointer: false,
            tid_offset,
            selector: 0x63,
            pages: a[7] >> 1,
            returns: a[5] >> 1,
            return_bits,
            slot_shift: POWERPC64LE.facts().slot_shift,
            arenas: a[6],
            signals: None,
            gate: 0,
            near: 0,
            stacks: 0,
            points: 0,
            additions: trapless_isa::Additions::Loops,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_bytes_at_any_address_panic(
        words in prop::collection::vec(some_word(), 0..12),
        cut in 0usize..4,
        address in any::<u64>(),
        offset in 0u64..64,
        destination in any::<u64>(),
        near in any::<i32>(),
        gpr in any::<[u64; 32]>(),
    ) {
        let code = bytes(&words);
        let code = &code[..code.len().saturating_sub(cut)];
        for address in [address, address & !3, u64::MAX - 7] {
            let _ = POWERPC64LE.decode(code, address);
            let _ = POWERPC64LE.disassemble(code, address);
            let mut targets = vec![];
            POWERPC64LE.branch_targets(code, address, &(), &mut targets);
            let targets = BranchTargets::new(targets);
            let site = Site { address: address.wrapping_add(offset), ..Site::new(address, code, &targets) };
            let ladder = POWERPC64LE.verdict(&site);
            let _ = POWERPC64LE.return_verdict(&site);
            let mut registers = Registers { gpr, pc: address, ..Registers::default() };
            let before = registers;
            if emulate(code, &mut registers, &mut Anything, Some(Version::V3_0)).is_err() {
                prop_assert_eq!(registers, before);
            }
            if let Ok(displaced) = ladder.jump {
                let start = displaced.start.wrapping_sub(address) as usize;
                for to in [destination, address.wrapping_add_signed(i64::from(near)) & !3] {
                    let _ = relocate(&displaced, &code[start..], to);
                    let _ = [true, false].map(|boosted| POWERPC64LE.slot(&displaced, &code[start..], to, boosted));
                    let _ = POWERPC64LE.patch(&displaced, to);
                }
            }
        }
    }

    #[test]
    fn no_layout_panics(
        layout in some_layout(),
        address in any::<u64>(),
        word in any::<u32>(),
        arguments in 0u8..20,
        counters in any::<[u32; 4]>(),
        lookup in prop::sample::select(vec![None, Some(Lookup::FindObject), Some(Lookup::IteratePhdr)]),
    ) {
        let runtime = POWERPC64LE.runtime(address & !3, &layout).unwrap_or_default();
        let code = bytes(&[word, BLR]);
        let targets = BranchTargets::default();
        let site = Site::new(address & !3, &code, &targets);
        let displaced = Displaced { start: address & !3, length: 4, instructions: 1 };
        let id = counters[0];
        let [_, lost, hits, latency] = counters.map(|counter| counter >> 2);
        let at_return = [ReturnStep::Count(hits), ReturnStep::Record { id }, ReturnStep::Time(latency)];
        let payload = Payload {
            hooks: Steps::some_of([lookup.map(Hook::Translate)]),
            entry: Steps::of([EntryStep::Count(hits), EntryStep::Record { id, arguments }]),
            followed: Some(Followed { lost, steps: Steps::of(at_return), way: Way::Paired }),
        };
        for runtime in [&runtime, &Runtime::default()] {
            let request = DetourRequest {
                runs: trapless_isa::body::Runs::default(),
                address: (address & !3).wrapping_add(0x1_0000),
                displaced,
                original: &code,
                site: &site,
                payload,
                stack: Stack::Enough,
                layout: &layout,
                runtime,
                operands: &[],
                tells: false,
            };
            let _ = POWERPC64LE.detour(&request);
        }
    }
}
