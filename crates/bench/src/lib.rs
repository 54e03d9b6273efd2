//! What a hit costs on this machine: the trigger benchmark.
//!
//! The names are those of the kernel's own (`tools/testing/selftests/bpf/benchs/bench_trigger.c`), so that numbers can
//! be laid beside published ones. Trigger functions are in this program; children of it call them in a loop.
//!
//! Each *variant* (what collects what, at entries, returns or USDT sites) has a child of its own, armed once. Then
//! rounds are taken in turn over all of them, and every sample is compared with the unprobed one of the same round, so a machine
//! that slows down or is shared for a while does not favour anyone. What is shown are medians. Time is the calling
//! threads' own processor time: what others do on the machine costs the benchmark time, not precision. Where a tracer serves the hits, the
//! thread waits for it, so there it is the time that passes.
//!
//! Programs of 64 and of 32 bits are measured one after the other, each with children of its kind. A 32-bit trapless measures its own kind
//! alone.
//!
//! | file | |
//! |---|---|
//! | [`triggers`] | the functions that are probed, and the loop that calls them |
//! | `assembly` | how they are written |
//! | [`child`] | the process that calls them |
//! | [`narrow`] | the 32-bit program that calls them |
//! | [`target`] | either process as the benchmark sees it |
//! | [`variant`] | the ways to collect: where another mechanism is added |
//! | [`kernel`] | uprobes by `perf_event_open` |
//! | `stops` | what a trap costs at least that a tracer serves |
//! | [`contender`] | a child with its probes |
//! | [`rounds`] | samples in turn, medians |
//! | [`scripts`] | what a script costs, through the whole tool and beside bpftrace |
//! | [`attach`] | how long arming takes, and how long the target stands still for it |
//! | [`error`] | why something could not be measured |

#![deny(unreachable_pub)]

mod assembly;
pub mod attach;
pub mod child;
pub mod contender;
pub mod error;
pub mod kernel;
pub mod narrow;
pub mod rounds;
pub mod scripts;
mod stops;
pub mod target;
pub mod triggers;
pub mod variant;

/// Bits of this program, and of the children that run its code.
pub const OWN_BITS: u32 = usize::BITS;
