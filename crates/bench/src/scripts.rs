//! What a script costs at a hit, and how long it takes until it is armed: through the whole tool, and beside bpftrace.
//!
//! A *contender* is a child of the benchmark ([`super::child`]) and a tool that runs a script in it, started as a person
//! starts it. Each script has three: one without probes, one with trapless, one with bpftrace, which gets the same text. Rounds are
//! taken in turn over the three, and a sample is compared with the unprobed one of its round. Nothing is timed but the calling thread's processor
//! time, so that what the tools do on their own does not count, and what the kernel does at a hit does.
//!
//! At the end the tool is interrupted as by Ctrl-C, and what it prints is compared with how many calls were made: a probe that misses
//! hits, or was not armed, is quick.
//!
//! | file | |
//! |---|---|
//! | [`called`] | the function whose calls are probed, twenty frames deep, and the loop that calls it |
//! | [`catalog`] | the scripts, with their budgets |
//! | [`tool`] | a tool that runs a script: started, waited for, read, ended |
//! | [`rounds`] | samples in turn, medians |

pub mod called;
pub mod catalog;
pub mod rounds;
pub mod tool;
