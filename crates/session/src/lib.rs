//! From what a person types to armed probe sites in a running program, and back.
//!
//! | module | what it knows |
//! |---|---|
//! | [`spec`] | what a person types to name probe sites |
//! | [`select`] | which modules and functions that means |
//! | [`target`] | a process and the files it runs |
//! | [`survey`] | where control can arrive in a file |
//! | [`resolve`] | from patterns to sites |
//! | [`session`] | probes armed in one process, from attaching to removal |
//! | [`clock`] | from time stamps to nanoseconds |
//! | [`outcome`] | what a session tells of its probes |
//! | [`error`] | everything that can be in the way |

#![deny(unsafe_code, unreachable_pub)]

pub mod clock;
pub mod error;
pub mod outcome;
pub mod resolve;
pub mod select;
pub mod session;
pub mod spec;
pub mod survey;
pub mod target;
