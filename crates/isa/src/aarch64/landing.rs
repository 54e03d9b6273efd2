//! Where an unwinder's context has its code address, as the function says that sets it.

use super::decode::{field, word};

/// `bti c`, with which a function may begin.
const BTI_C: u32 = 0xd503_245f;
const RET: u32 = 0xd65f_03c0;
/// `str x1, [x0, #8n]`, less n.
const STORE: u32 = 0xf900_0001;

/// See [`crate::Isa::code_address_in_context`].
pub(super) fn code_address_in_context(code: &[u8]) -> Option<u32> {
    let code = if word(code)? == BTI_C { &code[4..] } else { code };
    let store = word(code)?;
    let words = field(store, 10, 12);
    (words > 0 && store == STORE | words << 10 && word(&code[4..])? == RET).then_some(8 * words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_store_of_the_second_argument_tells() {
        let told = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            code_address_in_context(&code)
        };
        assert_eq!(told(&[0xf901_8c01, RET]), Some(0x318));
        assert_eq!(told(&[BTI_C, 0xf901_8c01, RET]), Some(0x318));
        // Of another register, to another one, without an end.
        assert_eq!(told(&[0xf901_8c02, RET]), None);
        assert_eq!(told(&[0xf901_8c21, RET]), None);
        assert_eq!(told(&[0xf901_8c01, 0xd503_201f]), None);
        assert_eq!(told(&[0xf901_8c01]), None);
        assert_eq!(told(&[]), None);
    }
}
