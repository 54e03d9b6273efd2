//! Bytes that nobody wrote: no panic, and no contradiction between verdict and relocation.

use proptest::prelude::*;
use trapless_isa::x86::{emulate, liveness, relocate};
use trapless_isa::{BranchTargets, Machine, Site};

/// Addresses of every kind, the ends of the address space among them.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64u64),
        (0..64u64).prop_map(|n| u64::MAX - n),
        Just(0x40_1000),
        Just(0xffff_f000)
    ]
}

/// Random bytes with what is dense in code: prefixes, escapes, branches, returns.
fn code() -> impl Strategy<Value = Vec<u8>> {
    let dense = prop::sample::select(vec![
        0x0f, 0x48, 0x66, 0x67, 0xc3, 0xe8, 0xe9, 0xeb, 0xff, 0x74, 0xe2, 0xe3, 0x55, 0x90, 0xcc, 0x8d, 0x05,
        0x24, 0x00, 0x62, 0xc5, 0xf0, 0xf2, 0xf3, 0xc7, 0xf8,
    ]);
    prop::collection::vec(prop_oneof![any::<u8>(), dense], 0..80)
}

/// A thread whose memory holds its own addresses, and may be missing at every fourth word.
#[derive(Default)]
pub struct Thread {
    pub registers: [u64; 16],
    pub flags: u64,
    pub ip: Option<u64>,
    pub holes: bool,
}

impl Thread {
    fn is_there(&self, address: u64) -> bool {
        !self.holes || address & 0x18 != 0
    }
}

impl trapless_isa::Thread for Thread {
    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number)]
    }

    fn set_register(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number)] = value;
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }

    fn set_ip(&mut self, address: u64) {
        self.ip = Some(address);
    }

    fn segment_base(&self, gs: bool) -> Option<u64> {
        (gs || !self.holes).then_some(0x1234)
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        assert!((1..=8).contains(&size));
        self.is_there(address).then_some(address & (u64::MAX >> (64 - 8 * u32::from(size))))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        assert!(value <= u64::MAX >> (64 - 8 * u32::from(size)));
        self.is_there(address).then_some(())
    }
}

/// 20 000 cases, or as many more as `PROPTEST_CASES` asks for.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(20_000), failure_persistence: None, ..config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_bytes_at_any_address(
        code in code(),
        padding in prop::collection::vec(prop::sample::select(vec![0x90, 0xcc, 0, 0x66]), 0..8),
        function in address(),
        offset in 0..24u64,
        destination in address(),
        sixty_four in any::<bool>(),
    ) {
        let (machine, bits) = if sixty_four { (Machine::X86_64, 64) } else { (Machine::I386, 32) };
        let (isa, cut) = (machine.isa(), if sixty_four { u64::MAX } else { 0xffff_ffff });
        let (function, destination) = (function & cut, destination & cut);
        let mut found = Vec::new();
        isa.branch_targets(&code, function, &(), &mut found);
        let targets = BranchTargets::new(found);
        let site =
            Site { address: function.wrapping_add(offset) & cut, padding: &padding, ..Site::new(function, &code, &targets) };
        let _ = isa.return_verdict(&site);
        let _ = isa.disassemble(&code, function);
        let _ = liveness(bits, &site, site.address);
        let _ = isa.may_fault(&code, function);
        let ladder = isa.verdict(&site);
        let mut thread = Thread { registers: [destination; 16], flags: destination, ip: None, holes: true };
        let emulated = emulate(bits, &code, function, &mut thread);
        prop_assert_eq!(emulated.is_ok(), thread.ip.is_some());
        if emulated.is_err() {
            prop_assert_eq!((thread.registers, thread.flags), ([destination; 16], destination));
        }
        for displaced in [ladder.jump, ladder.step].into_iter().flatten() {
            let start = displaced.start.wrapping_sub(function) as usize;
            let original = [&code[..], &padding[..]].concat();
            let original = &original[start..start + usize::from(displaced.length)];
            match relocate(bits, &displaced, original, destination) {
                Ok(relocated) => {
                    prop_assert_eq!(relocated.places.len(), usize::from(displaced.instructions));
                    prop_assert!(relocated.code.len() <= original.len() + 15 * relocated.places.len() + 15);
                }
                Err(reason) => prop_assert_eq!(reason, trapless_isa::Reason::OutOfReach),
            }
        }
        if let Ok(displaced) = ladder.jump {
            prop_assert!(displaced.length >= 5);
        }
    }
}
