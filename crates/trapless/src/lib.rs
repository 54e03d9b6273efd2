//! Probes in running Linux programs that do not trap: counts, times, arguments and results of functions, at nanoseconds a hit, without a
//! library in the program, a restart, or root.
//!
//! ```
//! use std::process::{Command, Stdio};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # // A program that has mapped its libraries.
//! let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
//! # use std::io::{Read, Write};
//! # let (mut input, mut output) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
//! # let mut byte = [0];
//! # input.write_all(b"a")?;
//! # output.read_exact(&mut byte)?;
//! let session = trapless::attach(cat.id())?.count("libc.so*:read")?.latency("libc.so*:write")?.arm()?;
//! # input.write_all(b"b")?;
//! # output.read_exact(&mut byte)?;
//! # drop(input);
//! # cat.wait()?;
//! let summary = session.remove()?;
//! for probe in &summary.probes {
//!     println!("{:8} {} {}", probe.hits, probe.function, probe.kind);
//! }
//! assert_eq!(summary.probes.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! [`attach()`] is where it begins; what can be asked for is told at [`Attach`], what comes of it at [`Session`], and how patterns are written in
//! [`patterns`]. Rows and hits are plain data, and serialize as the objects that the command line prints.
//!
//! A program probes itself by [`inside()`]: handlers of its own at functions, which see and change arguments and results, and functions that replace
//! others, while all its threads run. With the feature `inside-script` it runs scripts of the probe language on itself:
//!
//! ```
//! # #[cfg(feature = "inside-script")]
//! # fn main() -> Result<(), trapless::InsideError> {
//! # if !trapless::inside_is_possible() || matches!(trapless::inside(), Err(trapless::InsideError::Seccomp)) { return Ok(()); }
//! let script = trapless::inside()?.script("uprobe:libc:getppid { @[tid] = count(); }")?;
//! std::os::unix::process::parent_id();
//! assert_eq!(script.results()?.map("@").map(|map| map.entries.len()), Some(1));
//! script.stop()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "inside-script"))]
//! # fn main() {}
//! ```
//!
//! The feature `cli`, which is on unless it is turned off, builds the command line. A program that only attaches does without:
//!
//! ```toml
//! trapless = { version = "0.1", default-features = false }
//! ```

mod attach;

pub use attach::{Attach, Ending, Event, Events, MOST_ARGUMENTS, Replace, Session, Summary, attach};
pub use trapless_inside::{
    Call, Count, Error as InsideError, Inside, Latency, Probe, Replacement, Return, Times, Word, inside,
    is_possible as inside_is_possible,
};
#[cfg(feature = "inside-script")]
pub use trapless_inside::{
    Losses as ScriptLosses, Results as ScriptResults, Script, ScriptBucket, ScriptMap, ScriptOptions,
    Shown as ScriptShown, Value as ScriptValue,
};
pub use trapless_process::OpenError;
pub use trapless_session::error::Error;
pub use trapless_session::live_patch::{BadLibrary, LivePatchError};
pub use trapless_session::name::{SiteName, Source};
pub use trapless_session::outcome::{
    Bucket, ChildHits, Collected, Hit, LatencySummary, Losses, LostSite, Note, ProbeSummary, Probed, Skipped,
    UsdtValue, Why,
};
#[doc(inline)]
pub use trapless_session::spec as patterns;
pub use trapless_session::{resolve::MOST_SITES, spec::Kind};

// The command line, which no other crate is to use: what it has may change at any time.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod commands;
#[cfg(feature = "cli")]
mod error;
#[cfg(feature = "cli")]
mod progress;
#[cfg(feature = "cli")]
mod report;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod terminal;
#[cfg(feature = "cli")]
mod whoever;

#[cfg(feature = "cli")]
use trapless_session::{files, live_patch, resolve, session, spec, target};
