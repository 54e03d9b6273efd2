//! Scripts lowered: to which IR, and what they do when they run.

mod arguments;
mod programs;
mod random;
mod runs;
pub mod support;
