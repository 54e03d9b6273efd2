//! temporary
use crate::ReadOnlyData;
use alloc::vec::Vec;
/// t
pub fn branch_targets(_c: &[u8], _a: u64, _d: &dyn ReadOnlyData, _t: &mut Vec<u64>) {}
