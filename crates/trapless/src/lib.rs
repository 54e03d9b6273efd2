//! Probes in running programs that do not trap.
//!
//! This crate is the façade over the parts of trapless, and the command line on top of it.
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
//! | [`report`] | what is shown of a run |
//! | [`error`] | everything that can end a run, with text and exit code |
//! | [`bench`] | what a hit costs (feature `cli`) |
//! | [`cli`], [`commands`], [`progress`] | the command line (feature `cli`) |

#[cfg(feature = "cli")]
pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
#[cfg(feature = "cli")]
pub mod commands;
pub mod error;
#[cfg(feature = "cli")]
pub mod progress;
pub mod report;
pub mod resolve;
pub mod select;
pub mod session;
pub mod spec;
pub mod survey;
pub mod target;
