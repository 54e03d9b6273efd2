//! Native code, run in our own process: beside the interpreter, which also works in its memory, under signals, by many threads, and
//! looked at.
#![cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    all(target_arch = "powerpc64", target_endian = "little")
))]

mod constants;
mod delays;
#[cfg(target_arch = "x86_64")]
mod foreign;
mod machine;
mod mapped;
mod measure;
mod random;
mod scripts;
#[cfg(target_arch = "x86_64")]
mod shape;
mod stacks;
#[cfg(target_arch = "x86_64")]
mod stepped;
mod threads;
mod traced;
