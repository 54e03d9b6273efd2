//! C in scripts: the types and constants that definitions and headers give.
//!
//! Only what a script can use is kept: records, enums, typedefs, and what `#define` makes of names. Sizes and
//! offsets are the checker's, because they depend on the target.

mod types;

pub use types::*;
