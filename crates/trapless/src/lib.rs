//! Probes in running programs that do not trap: the command line.
//!
//! What a program needs that probes others is in `trapless-session`, whose modules are here, too.
//!
//! | module | what it knows |
//! |---|---|
//! | [`cli`] | what a person types |
//! | [`commands`] | what it makes the program do |
//! | [`report`] | what is shown of a run |
//! | [`progress`] | that somebody waits |
//! | [`terminal`] | what may be written to one |
//! | [`whoever`] | which processes are meant where nobody names them |
//! | [`error`] | everything that can end a run, with its exit code |

pub mod cli;
pub mod commands;
pub mod error;
pub mod progress;
pub mod report;
pub mod terminal;
pub mod whoever;

pub use trapless_session::{files, resolve, session, spec, target};
