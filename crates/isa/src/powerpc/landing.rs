//! Where an unwinder's context has its code address, as the function says that sets it.

use super::decode::word_at;

/// `blr`
const RETURN: u32 = 0x4e80_0020;
/// `std r4,n(r3)`, less n.
const STORE: u32 = 0xf883_0000;

/// See [`crate::Isa::code_address_in_context`].
pub(super) fn code_address_in_context(code: &[u8]) -> Option<u32> {
    let store = word_at(code, 0)?;
    // The lowest two bits are part of the operation; the offset has a sign.
    let offset = store & 0x7ffc;
    (offset > 0 && store == STORE | offset && word_at(code, 4)? == RETURN).then_some(offset)
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
        assert_eq!(told(&[0xf883_0388, RETURN]), Some(904));
        // With update, of another register, below the context, without an end.
        assert_eq!(told(&[0xf883_0389, RETURN]), None);
        assert_eq!(told(&[0xf8a3_0388, RETURN]), None);
        assert_eq!(told(&[0xf883_fff8, RETURN]), None);
        assert_eq!(told(&[0xf883_0388, 0x6000_0000]), None);
        assert_eq!(told(&[0xf883_0388]), None);
    }
}
