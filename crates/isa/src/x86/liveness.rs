//! Which registers a detour may use without saving them.
use crate::Site;
/// A set of general registers by hardware number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterSet(pub u16);
/// What is dead at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Registers.
    pub dead: RegisterSet,
    /// Flags.
    pub flags_dead: bool,
}
/// x
pub fn liveness(_site: &Site<'_>) -> Liveness {
    Liveness::default()
}
