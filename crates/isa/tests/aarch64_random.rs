//! Properties that hold for any word at any address.

mod aarch64;

use aarch64::{
    copied,
    state::{Fault, Memory, Registers, emulate},
};
use proptest::prelude::*;
use trapless_isa::{
    BranchTargets, Displaced, Isa, Site,
    aarch64::{AARCH64, emulate::supported, operands::operands},
};

/// Memory of zeros that remembers what is stored.
#[derive(Default, PartialEq, Eq, Debug)]
struct Log(Vec<(u64, Vec<u8>)>);

impl Memory for Log {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        bytes.fill(address as u8);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.0.push((address, bytes.to_vec()));
        Ok(())
    }
}

prop_compose! {
    fn registers()(x in prop::array::uniform31(any::<u64>()), sp in any::<u64>(), pc in any::<u64>(), flags in 0u64..16) -> Registers {
        Registers { x, sp: sp & !15, pc: pc & !3, pstate: flags << 28 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing panics, whatever the words and addresses are; what decodes has a text.
    #[test]
    fn any_code_at_any_address_is_judged(
        words in prop::collection::vec(any::<u32>(), 1..12),
        address in any::<u64>(),
        index in 0u64..12,
        copy in any::<u64>(),
        registers in registers(),
    ) {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut targets = vec![];
        AARCH64.branch_targets(&code, address, &(), &mut targets);
        let targets = BranchTargets::new(targets);
        let at = address.wrapping_add(4 * index);
        let site = Site { address: at, ..Site::new(address, &code, &targets) };
        let ladder = AARCH64.verdict(&site);
        let _ = AARCH64.return_verdict(&site);
        if let Ok(displaced) = ladder.jump {
            let _ = AARCH64.patch(&displaced, copy);
        }
        for word in words {
            let bytes = word.to_le_bytes();
            let _ = AARCH64.decode(&bytes, address);
            prop_assert!(!AARCH64.disassemble(&bytes, address).is_empty());
            let _ = copied(word, at, copy);
            let displaced = Displaced { start: at, length: 4, instructions: 1 };
            let near = at.wrapping_add((copy % (1 << 20)) & !3);
            for (to, boosted) in [(copy, true), (near, true), (copy, false), (near, false)] {
                let _ = AARCH64.slot(&displaced, &bytes, to, boosted);
            }
            let _ = emulate(word, &mut registers.clone(), &mut Log::default());
        }
    }

    /// An instruction depends on no register that it is not said to read, and changes none that it is not
    /// said to write.
    #[test]
    fn operands_are_all_there_is(word in any::<u32>(), registers in registers(), noise in prop::array::uniform31(any::<u64>())) {
        if supported(word).is_err() {
            return Ok(()); // three words in four
        }
        let used = operands(word).unwrap();
        let mut other = registers;
        for (register, noise) in noise.into_iter().enumerate() {
            if used.reads >> register & 1 == 0 {
                other.x[register] = noise;
            }
        }
        let run = |mut registers: Registers| {
            let mut log = Log::default();
            emulate(word, &mut registers, &mut log).ok().map(|()| (registers, log))
        };
        let (Some((a, a_log)), Some((b, b_log))) = (run(registers), run(other)) else { return Ok(()) };
        prop_assert_eq!(a_log, b_log, "{:#010x}", word);
        prop_assert_eq!((a.sp, a.pc, a.pstate), (b.sp, b.pc, b.pstate), "{:#010x}", word);
        for register in 0..31 {
            if used.writes >> register & 1 == 0 {
                prop_assert_eq!(a.x[register], registers.x[register], "{:#010x}", word);
            } else {
                prop_assert_eq!(a.x[register], b.x[register], "{:#010x}", word);
            }
        }
    }
}
