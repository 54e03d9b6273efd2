//! Native code, run in our own process: beside the interpreter, which also works in its memory, under signals, by many threads, and
//! looked at.
#![cfg(target_arch = "x86_64")]

mod machine;
mod measure;
mod random;
mod scripts;
mod shape;
mod stacks;
mod threads;
mod traced;
