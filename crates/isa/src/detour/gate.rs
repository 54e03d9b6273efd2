//! A gate: where the program waits until a tool has seen what has changed.
//!
//! The dynamic loader calls an empty function, `_dl_debug_state`, whenever its list of libraries has changed, for debuggers to put a
//! breakpoint on: before the constructors of a new library run, and before one that is unloaded is gone. A probe there with
//! [`Hook::Gate`](crate::Hook::Gate) makes the calling thread wait, in the kernel, until the tool has looked and has armed what is to
//! be armed in the new library. It is the one place where a detour waits, so:
//!
//! - It waits for about [`GATE_PATIENCE`] at most, by short waits that are counted, and for less where signals interrupt them. Then it opens the
//!   gate for good: a tool that was killed costs its target that once. The same goes where the system call fails, as in a sandbox.
//! - Whoever takes probes out opens it first.
//! - Forked children without numbers of their own have nobody who looks, and pass.
//!
//! Its four 32-bit words lie in the shared region:
//!
//! | offset | word | |
//! |---|---|---|
//! | [`GATE_STATE`] | state | [`GATE_SHUT`] while somebody looks; else open |
//! | [`GATE_ARRIVED`] | arrived | how many threads have come here, whom the tool waits for by `futex` |
//! | [`GATE_SERVED`] | served | what *arrived* was when the tool last began to look; threads wait for it by `futex` |
//! | [`GATE_LATE`] | late | how many went on because nobody came |

/// Gate: whether threads wait.
pub const GATE_STATE: u32 = 0;
/// Gate: how many threads have arrived.
pub const GATE_ARRIVED: u32 = 4;
/// Gate: how many of them were served.
pub const GATE_SERVED: u32 = 8;
/// Gate: how many have gone on without.
pub const GATE_LATE: u32 = 12;
/// State of a gate at which threads wait.
pub const GATE_SHUT: u32 = 1;
/// So many seconds a thread waits. Arming ten thousand sites takes a tenth of it.
pub const GATE_PATIENCE: u32 = 2;
/// What one wait takes, in nanoseconds.
pub(crate) const GATE_WAIT: u32 = 1_000_000;
/// So many make up the patience.
pub(crate) const GATE_WAITS: u32 = GATE_PATIENCE * (1_000_000_000 / GATE_WAIT);
/// Operations of the system call (`linux/futex.h`). The tool maps the same memory, so they are not private.
pub(crate) const FUTEX_WAIT: u32 = 0;
/// See [`FUTEX_WAIT`].
pub(crate) const FUTEX_WAKE: u32 = 1;
/// Errors after which the thread looks again: ETIMEDOUT, which mostly comes, EINTR, EAGAIN.
pub(crate) const GATE_AGAIN: [u8; 3] = [110, 4, 11];
