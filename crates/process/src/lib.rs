//! A process from outside: ptrace, /proc, registers, memory, mappings and remote system calls.
//!
//! [`Process`] is a process held by its id; [`Process::stop`] gives a [`Stopped`], through which registers may be changed and
//! system calls made in the target ([`Stopped::remote`]).
//!
//! ptrace binds a tracee to the *thread* that attached to it, so the types that stand for an attached process are not `Send`.

mod alarm;
mod arch;
mod calls;
mod error;
pub mod execs;
pub mod family;
mod gap;
mod guards;
mod id;
mod inherited;
pub mod keeper;
pub mod launch;
mod maps;
mod memory;
mod nearness;
mod open;
mod pagemap;
mod process;
mod ptrace;
mod readable;
mod remote;
mod shared;
mod sharers;
mod status;
mod step;
mod stop;
mod stopped;
pub mod trace;
mod wait;
mod watchdog;

pub use arch::{
    Abi, BREAKPOINT, BREAKPOINT_ADVANCE, Interrupted, LongVectors, Registers, TRAP_FLAG, Vectors,
    thread_selector, ticks, vectors,
};
pub use calls::SignalAction;
pub use error::{MappedFileError, MemoryError, OpenError, ProcError, RemoteError, StopError};
pub use gap::{GapRules, page_size};
pub use id::{Errno, Pid, RemoteAddr, Tid};
pub use maps::{Device, Mapping, Mappings, Perms, parse_maps};
pub use memory::{Pod, ReadRange};
pub use open::{processes, status_of};
pub use pagemap::{PageRanges, Pagemap, Pages};
pub use process::Process;
pub use remote::Remote;
pub use shared::SharedMemory;
pub use sharers::same_memory;
pub use status::{Auxv, Seccomp, Stat, State, Status, parse_stat, parse_status};
pub use step::Stepped;
pub use stop::{StopOptions, Thread};
pub use stopped::Stopped;
