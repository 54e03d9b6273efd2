//! Sites, plans, detours, patching, quiescence and removal.
//!
//! The engine is told what to probe in addresses of the running process ([`Module`], [`Request`]); it knows no file
//! formats and no terminal. A probe goes through these types, each of which can only be made from the one before:
//!
//! [`Request`] → [`Plan`] (verdicts, places in the blocks) → [`Blueprint`] (addresses, machine code) → [`Session`]
//! (armed; counters can be read) → removed.
//!
//! Everything up to the blueprint happens while the target runs; only [`Blueprint::arm`] and [`remove`](fn@remove) hold it still, and they
//! check again what may have changed.
#![warn(missing_docs)]

pub mod admit;
mod again;
pub mod answer;
mod arenas;
mod arm;
mod believe;
mod blueprint;
mod channel;
mod clock;
mod compare;
mod dispatched;
mod entrances;
mod error;
mod exits;
mod forked;
mod found;
mod frames;
mod gate;
mod goroutines;
mod home;
mod judge;
mod kept;
mod leaving;
mod live_patch;
mod mapped;
mod own_stacks;
mod patch;
mod plan;
mod reach;
mod recheck;
mod region;
mod remove;
mod request;
mod returns;
mod rooms;
mod scan;
mod script;
mod search;
mod semaphores;
mod session;
mod signals;
mod space;
pub mod spread;
mod stacks;
mod stepping;
mod target;
mod thread;
mod tids;
mod trap;
mod writes;

pub use again::Returning;
pub use arm::{Added, Armed};
pub use blueprint::Blueprint;
pub use channel::ChannelError;
pub use error::{EngineError, LeftAlone, Refusal};
pub use found::{FoundSession, find_disbelieved, find_sessions};
pub use gate::GateWatch;
pub use home::{Home, Host, Spare};
pub use kept::{Attempt, remove_kept};
pub use live_patch::{Apart, LivePatch, Load, LoadMemory, Loaded, Passed, Pointer, Replacement, vectors};
pub use own_stacks::OwnStacks;
pub use plan::{Plan, PlannedSite, Stretch};
pub use reach::can_be_searched;
pub use recheck::{Became, Recheck};
pub use region::Region;
pub use remove::{Kept, Removed, remove, remove_again, remove_held};
pub use request::{Code, Function, Meant, Module, Request, Role, Unwinder, Wanted};
pub use script::{AT_RETURN, Clause, Clauses, Script, ScriptMemory, Unrun, Walks};
pub use session::Session;
pub use space::Space;
pub use trap::{Interpreter, Serving, TrapHit, TrapMemory, arm_serving};
