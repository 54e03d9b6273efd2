//! The exclusive accesses of one register.

use super::decode::{Form, LENGTH, field, form, word};
use crate::{Exclusive, Thread};

/// A destination or source of this number is the zero register; a base is the stack pointer.
const ZERO: u8 = 31;

/// The access that `code` starts with.
pub(super) fn exclusive(code: &[u8], thread: &dyn Thread) -> Option<Exclusive> {
    let word = word(code)?;
    let is_store = match form(word) {
        Form::LoadExclusive => false,
        Form::StoreExclusive => true,
        _ => return None,
    };
    let is_pair = field(word, 21, 1) != 0;
    (!is_pair).then(|| Exclusive {
        address: thread.register(field(word, 5, 5) as u8),
        size: 1 << field(word, 30, 2),
        is_store,
    })
}

/// Does what the store at the start of `code` does that comes about.
pub(super) fn store(code: &[u8], address: u64, thread: &mut dyn Thread) -> Option<()> {
    let access = exclusive(code, thread).filter(|access| access.is_store)?;
    let word = word(code)?;
    let [source, status] = [0, 16].map(|low| field(word, low, 5) as u8);
    let value = if source == ZERO { 0 } else { thread.register(source) };
    thread.write(access.address, access.size, value)?;
    if status != ZERO {
        thread.set_register(status, 0);
    }
    thread.set_ip(address.wrapping_add(LENGTH));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::Stopped;
    use alloc::vec;

    fn stopped() -> Stopped {
        let mut registers = [0; 38];
        (registers[1], registers[2], registers[31]) = (0x1000, 7, 0x2000);
        registers[9] = 1;
        Stopped { registers, flags: 0, ip: 0x40, written: vec![], bottom: 0, memory: None }
    }

    #[test]
    fn loads_and_stores_of_each_size_are_known() {
        // ldxr x0, [x1]; ldaxr w0, [sp]; ldxrb w0, [x1]; stxr w9, x2, [x1]
        for (word, address, size, is_store) in [
            (0xc85f_7c20_u32, 0x1000, 8, false),
            (0x885f_ffe0, 0x2000, 4, false),
            (0x085f_7c20, 0x1000, 1, false),
            (0xc809_7c22, 0x1000, 8, true),
        ] {
            let access = exclusive(&word.to_le_bytes(), &stopped());
            assert_eq!(access, Some(Exclusive { address, size, is_store }), "{word:#x}");
        }
        // ldr x0, [x1]; ldxp x0, x2, [x1]; ldadd x0, x2, [x1]
        for word in [0xf940_0020_u32, 0xc87f_0820, 0xf820_0022] {
            assert_eq!(exclusive(&word.to_le_bytes(), &stopped()), None, "{word:#x}");
        }
    }

    #[test]
    fn a_store_comes_about() {
        let mut thread = stopped();
        // stxr w9, x2, [x1]
        store(&0xc809_7c22_u32.to_le_bytes(), 0x40, &mut thread).unwrap();
        assert_eq!((thread.written, thread.registers[9], thread.ip), (vec![(0x1000, 7)], 0, 0x44));
    }
}
