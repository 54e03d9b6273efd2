//! From what a person types to armed probe sites in a running program, and back.
//!
//! | module | what it knows |
//! |---|---|
//! | [`spec`] | what a person types to name probe sites |
//! | [`select`] | which modules and functions that means |
//! | [`target`] | a process and the files it runs |
//! | [`files`] | the files that processes run, each read once |
//! | [`survey`] | where control can arrive in a file |
//! | [`resolve`] | from patterns to sites |
//! | [`live_patch`] | a function that is replaced by one of a library |
//! | [`name`] | what people call a site |
//! | [`session`] | probes armed in one process, from attaching to removal |
//! | [`clock`] | from time stamps to nanoseconds |
//! | [`outcome`] | what a session tells of its probes |
//! | [`number`] | how numbers are written in texts |
//! | [`unwind`] | how stacks are walked in a process |
//! | [`error`] | everything that can be in the way |
//!
//! Counting the calls of a function for a second:
//!
//! ```no_run
//! use trapless_isa::Mechanism;
//! use trapless_process::StopOptions;
//! use trapless_session::files::Files;
//! use trapless_session::resolve::{self, Kinds};
//! use trapless_session::session::{Asked, Hold, Session};
//! use trapless_session::spec::{ProbeSpec, Syntax};
//! use trapless_session::target;
//!
//! # fn main() -> Result<(), trapless_session::error::Error> {
//! let process = target::open(4242)?;
//! let images = target::images(&process, &Files::default())?;
//! let malloc = ProbeSpec::parse("libc.so.6:malloc", Syntax::Glob)?;
//! let entry = Kinds::ENTRY;
//! let sites = resolve::resolve(Some(&process), &images, [(&malloc, entry)], &[], 1)?;
//! let hold = Hold::Stop(StopOptions::default());
//! let asked = Asked::of(&[Mechanism::Jump]);
//! let session = Session::attach(&process, &images, sites, asked, hold)?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! println!("{} calls", session.hits());
//! session.remove(&process, &StopOptions::default())?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(unreachable_pub)]

pub mod clock;
pub mod error;
pub mod files;
pub mod library_file;
pub mod live_patch;
pub mod name;
pub mod number;
pub mod outcome;
pub mod resolve;
pub mod select;
pub mod session;
pub mod spec;
pub mod survey;
pub mod target;
pub mod unwind;
