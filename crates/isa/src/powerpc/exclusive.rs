//! The accesses with a reservation.

use super::decode::{Fields, WORD, word_at};
use super::emulate::{XER, XER_SO};
use crate::{Exclusive, Thread};

/// cr0 = 0b001 and XER's summary overflow (Book II, 4.6.2): that the store came about.
const CR0: u64 = 0xf000_0000;
const EQUAL: u64 = 0x2000_0000;
const OVERFLOW: u64 = 0x1000_0000;

/// The access that `code` starts with.
pub(super) fn exclusive(code: &[u8], thread: &dyn Thread) -> Option<Exclusive> {
    let word = word_at(code, 0).filter(|word| word.primary() == 31)?;
    let (size, is_store) = match word.xo() {
        52 => (1, false),
        116 => (2, false),
        20 => (4, false),
        84 => (8, false),
        694 => (1, true),
        726 => (2, true),
        150 => (4, true),
        214 => (8, true),
        // Of two registers, or none at all.
        _ => return None,
    };
    // r0 as a base stands for nothing.
    let base = if word.ra() == 0 { 0 } else { thread.register(word.ra() as u8) };
    Some(Exclusive { address: base.wrapping_add(thread.register(word.rb() as u8)), size, is_store })
}

/// Does what the store at the start of `code` does that comes about.
pub(super) fn store(code: &[u8], address: u64, thread: &mut dyn Thread) -> Option<()> {
    let access = exclusive(code, thread).filter(|access| access.is_store)?;
    let source = word_at(code, 0)?.rt() as u8;
    thread.write(access.address, access.size, thread.register(source))?;
    let overflow = if thread.register(XER) & XER_SO != 0 { OVERFLOW } else { 0 };
    thread.set_flags(thread.flags() & !CR0 | EQUAL | overflow);
    thread.set_ip(address.wrapping_add(u64::from(WORD)));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::Stopped;
    use alloc::vec;

    fn stopped() -> Stopped {
        let mut registers = [0; 38];
        (registers[3], registers[4], registers[5]) = (0x1000, 0x20, 7);
        Stopped { registers, flags: 0x9123_4567, ip: 0x40, written: vec![], bottom: 0, memory: None }
    }

    #[test]
    fn loads_and_stores_of_each_size_are_known() {
        // ldarx r6,r3,r4; lwarx r6,0,r4; stdcx. r5,r3,r4
        for (word, address, size, is_store) in [
            (0x7cc3_20a8_u32, 0x1020, 8, false),
            (0x7cc0_2028, 0x20, 4, false),
            (0x7ca3_21ad, 0x1020, 8, true),
        ] {
            let access = exclusive(&word.to_le_bytes(), &stopped());
            assert_eq!(access, Some(Exclusive { address, size, is_store }), "{word:#x}");
        }
        // ldx r6,r3,r4; add r6,r3,r4; ld r6,0(r3)
        for word in [0x7cc3_202a_u32, 0x7cc3_2214, 0xe8c3_0000] {
            assert_eq!(exclusive(&word.to_le_bytes(), &stopped()), None, "{word:#x}");
        }
    }

    #[test]
    fn a_store_comes_about_and_says_so_in_cr0_alone() {
        let mut thread = stopped();
        store(&0x7ca3_21ad_u32.to_le_bytes(), 0x40, &mut thread).unwrap();
        assert_eq!((&thread.written[..], thread.flags, thread.ip), (&[(0x1020, 7)][..], 0x2123_4567, 0x44));
        thread.registers[usize::from(XER)] = XER_SO;
        store(&0x7ca3_21ad_u32.to_le_bytes(), 0x40, &mut thread).unwrap();
        assert_eq!(thread.flags, 0x3123_4567);
    }
}
