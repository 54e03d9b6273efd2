//! A script that runs, whoever drives it: the command line for processes that it has armed, or a program for itself.
//!
//! | module | question it answers |
//! |---|---|
//! | [`files`] | which files does an attach point name? |
//! | [`points`] | which specification is that? |
//! | [`texts`] | what do files hold that a script imports? |
//! | [`beginning`] | what is code told of a process? |
//! | [`own`] | what do probes see that need no target: `begin`, `end`, `interval`? |
//! | [`course`] | which of them are there, and when do they run? |
//! | [`store`] | where are the maps, and what do they hold together? |
//! | [`rings`] | in which order were messages told, and which were lost? |
//! | [`names`] | what are addresses, probes and users called? |
//! | [`mapped`] | which function is at an address? |

#![deny(unreachable_pub)]

pub mod beginning;
pub mod course;
pub mod files;
pub mod mapped;
pub mod names;
pub mod own;
pub mod points;
pub mod rings;
pub mod store;
pub mod texts;
