//! powerpc64le, proven against qemu-user, real libraries and running programs.

mod bodies;
mod changes;
mod cross;
mod decoding;
mod end_to_end;
mod followed;
#[path = "../common/index.rs"]
mod index;
mod instructions;
mod libraries;
mod loading;
mod lookups;
mod machine;
mod operands;
mod oracle;
mod replaced;
mod same;
mod slots;
mod state;
