//! The probe language: bpftrace's scripts for user space.
//!
//! A script takes this way:
//!
//! 1. [`source`] keeps every text that is read: the script, what it imports, the standard library, headers.
//! 2. [`syntax`] turns the script into a [`syntax::Script`]: trees of its probes with macros expanded,
//!    settings, and what definitions of C say.
//!
//! Each step tells what is wrong in [`diagnostics`], as much of it at once as is sure, in bpftrace's form.
//!
//! The crate reads no file and no environment by itself. Whoever uses it hands in the texts. Whatever a text
//! asks for, depth, length, headers or macros, has a limit, and no text makes it panic.
#![forbid(unsafe_code)]

pub mod diagnostics;
pub mod nearest;
pub mod source;
pub mod syntax;
