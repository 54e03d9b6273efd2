//! powerpc64le, proven against qemu-user, real libraries and running programs.

mod cross;
mod decoding;
mod end_to_end;
mod libraries;
mod oracle;
mod same;
