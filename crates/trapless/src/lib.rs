//! Probes in running programs that do not trap.
//!
//! This crate is the façade over the parts of trapless, and the command line on top of it.

pub mod report;
pub mod select;
pub mod spec;
