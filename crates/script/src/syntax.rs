//! From text to a tree that is checked for its form.

pub mod ast;
pub mod c;
