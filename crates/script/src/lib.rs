//! The probe language: bpftrace's scripts for user space.
//!
//! A script takes this way:
//!
//! 1. [`source`] keeps every text that is read: the script, what it imports, the standard library, headers.
//! 2. [`syntax`] turns the script into a [`syntax::Script`]: trees of its probes with macros expanded,
//!    settings, and what definitions of C say.
//! 3. [`check`] finds its names and types, and refuses what cannot be done.
//! 4. [`lower`] makes the [`ir`] of what was checked, which the [`interp`]reter runs and native code
//!    is made from. What its bytes mean is told by
//!    [`shape`]s, and what is done with what it tells by [`message`]s.
//!
//! Each step tells what is wrong in [`diagnostics`], as much of it at once as is sure, in bpftrace's form.
//!
//! The crate reads no file and no environment by itself. Whoever uses it hands in the texts. Whatever a text
//! asks for, depth, length, headers or macros, has a limit, and no text makes it panic.
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
pub mod check;
pub mod diagnostics;
pub mod interp;
pub mod ir;
pub mod lower;
pub mod machine;
pub mod message;
#[cfg(feature = "native")]
pub mod native;
pub mod nearest;
pub mod output;
pub mod shape;
pub mod source;
pub mod syntax;
#[cfg(feature = "native")]
pub mod traced;
