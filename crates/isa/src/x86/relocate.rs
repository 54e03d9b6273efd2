//! x
use crate::Reason;
use alloc::vec::Vec;
pub struct Relocated { pub code: Vec<u8>, pub places: Vec<(u64, u32)> }
pub fn relocate(original: &[u8], start: u64, _to: u64) -> Result<Relocated, Reason> {
    Ok(Relocated { code: original.into(), places: alloc::vec![(start, 0)] })
}
