//! From text to a tree that is checked for its form.
//!
//! [`load()`] does it all. Its steps:
//!
//! 1. The parser reads the script and what it imports into trees ([`ast`]).
//! 2. Calls of macros become the bodies of the macros ([`expand`]).
//! 3. Definitions and headers of C become types and constants ([`c`]).

pub mod ast;
pub mod attach;
pub mod c;
pub mod config;
pub mod expand;
pub mod files;
mod frame;
mod import;
mod load;
pub mod number;
mod parser;
mod print;
pub mod words;

pub use frame::{FRAME, Frame, fill};
pub use load::{Options, Script, load};
pub use parser::{MAX_DEPTH, parse_expression, parse_program};
pub use print::print;
