//! From text to a tree that is checked for its form.

pub mod ast;
pub mod attach;
pub mod c;
pub mod number;
mod parser;
pub mod words;

pub use parser::{MAX_DEPTH, parse_expression, parse_program};
