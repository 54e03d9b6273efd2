//! What detours for functions that are called with their return address in a register are made of.

mod hit_lengths;
mod told;
mod world;
