//! The function whose calls scripts probe, and the loop that calls it.
//!
//! Its arguments are a key, a text, and a number. It is called from a chain of functions that use the frame pointer's register as they please
//! and keep none, but are described for unwinders: what walks stacks has to go by that.

/// So many keys are the first argument, each as often as the others.
pub const KEYS: u64 = 4096;

/// So many texts are the second argument.
const TEXTS: usize = 64;

/// Functions below the loop. More than a stack has frames in a script that takes 20.
const CHAIN: u64 = 24;

/// What keys are mixed by: hits go over all of them in no order that a cache knows.
const MIX: u32 = 0x9e37_79b9;

/// How many calls pass before keys come again as they came: they are 12 bits of a product, of which 3 are left out below.
const PERIOD: u64 = KEYS << 3;

/// The key of a call.
fn key(call: u64) -> u64 {
    u64::from((call as u32).wrapping_mul(MIX) >> 3) & (KEYS - 1)
}

/// How many of the first `calls` calls have key 0.
pub fn calls_of_first_key(calls: u64) -> u64 {
    let rest = (0..calls % PERIOD).filter(|&call| key(call) == 0).count() as u64;
    calls / PERIOD * (PERIOD / KEYS) + rest
}

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86")]
mod i386;
#[cfg(target_arch = "powerpc64")]
mod powerpc;
#[cfg(target_arch = "x86_64")]
mod x86;

unsafe extern "C" {
    fn trapless_bench_deep(texts: *const *const u8, times: u64, chain: u64);
}

/// Calls the function `times` times, at least once.
pub fn calls(times: u64) {
    let texts: [[u8; 24]; TEXTS] = std::array::from_fn(text);
    let addresses: [*const u8; TEXTS] = std::array::from_fn(|index| texts[index].as_ptr());
    // SAFETY: the code keeps what the ABI says is kept and reads the addresses in the array, no more of them than there are; nothing
    // is read at these addresses.
    unsafe { trapless_bench_deep(addresses.as_ptr(), times.max(1), CHAIN) }
}

/// A text of 20 characters, and zeros.
fn text(index: usize) -> [u8; 24] {
    let mut text = [0; 24];
    let said = format!("/var/spool/file-{index:04}");
    text[..said.len()].copy_from_slice(said.as_bytes());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_equally_often_and_are_foretold() {
        let mut seen = vec![0; KEYS as usize];
        for call in 0..PERIOD {
            seen[key(call) as usize] += 1;
        }
        assert!(seen.iter().all(|&times| times == PERIOD / KEYS));
        for calls in [0, 1, 2, PERIOD - 1, PERIOD, PERIOD + 1, 3 * PERIOD + 777] {
            let counted = (0..calls).filter(|&call| key(call) == 0).count() as u64;
            assert_eq!(calls_of_first_key(calls), counted, "{calls}");
        }
    }

    #[test]
    fn texts_end_and_are_as_long_as_is_said() {
        for index in 0..TEXTS {
            assert_eq!(text(index).iter().position(|&byte| byte == 0), Some(20));
        }
    }
}
