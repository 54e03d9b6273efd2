//! powerpc64le, proven against qemu-user, real libraries and running programs.

mod cross;
mod decoding;
mod end_to_end;
mod instructions;
mod libraries;
mod oracle;
mod same;
