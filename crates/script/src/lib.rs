//! The probe language: bpftrace's scripts for user space.
//!
//! A script takes this way:
//!
//! 1. [`source`] keeps every text that is read: the script, what it imports, the standard library, headers.
//! 2. [`syntax`] turns text into an [`ast`](syntax::ast) with its macros expanded, or into diagnostics.
//!
//! The crate reads no file and no environment by itself. Whoever uses it hands in the texts.
#![forbid(unsafe_code)]

pub mod diagnostics;
pub mod source;
pub mod syntax;
