//! Where the dynamic loader tells debuggers that its list of libraries has changed: a probe of our own stands there where more sites may be
//! added, so that a library is probed before anything in it runs ([`trapless_isa::detour::gate`]).

use super::Session;
use super::sharing::{add, is_c_library};
use crate::error::Error;
use crate::resolve::{self, Sites};
use crate::target::Image;
use std::os::fd::{AsRawFd, RawFd};
use trapless_engine::{GateWatch, Wanted};
use trapless_process::{Process, Seccomp};
use trapless_wire::SessionState;

/// The empty function that the loader calls for it, of glibc and of musl (`<link.h>`, struct r_debug).
const TOLD: &str = "_dl_debug_state";

/// After so many unanswered changes a process is not held any more.
const MOST_UNANSWERED: u32 = 3;

/// The site, if there is one: its image, and its address in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate(Option<(usize, u64)>);

impl Gate {
    /// Finds the site and adds it to the others. A process whose system calls are filtered has none: what it may not call is not known.
    pub(super) fn find(process: &Process, images: &[Image], sites: &mut Sites) -> Self {
        if process.status().map_or(true, |status| status.seccomp != Seccomp::Off) {
            return Self::default();
        }
        let is_loader = |image: &Image| is_c_library(image.name()) || image.name().starts_with("ld");
        let mut loaders = images.iter().enumerate().filter(|(_, image)| is_loader(image));
        let found = loaders.find_map(|(index, image)| {
            let function = image.module(Some(process)).ok()?.functions().named(TOLD).into_iter().next()?;
            image.holds(Some(process), function.address()).unwrap_or(false).then_some((index, function))
        });
        let Some((index, function)) = found else { return Self::default() };
        add(sites, index, function, function.address());
        Self(Some((index, function.address())))
    }

    /// What is wanted at a site, besides what was asked for.
    pub(super) fn want(&self, site: &resolve::Site, wanted: Wanted) -> Wanted {
        Wanted { gate: self.0 == Some((site.image, site.address)), ..wanted }
    }
}

/// Tells of changes in a process's list of libraries, each of which waits to be [answered](Session::answer).
#[derive(Debug)]
pub struct Changes(GateWatch);

impl Changes {
    /// What becomes readable when something has changed.
    pub fn descriptor(&self) -> RawFd {
        self.0.descriptor().as_raw_fd()
    }
}

/// A change: whoever has made it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change(u32);

impl Session {
    /// From now on the process waits after each change in its list of libraries until that is [answered](Self::answer), or until
    /// this session is removed; `None`: it has no loader that tells, or does not let itself be held.
    ///
    /// # Errors
    /// There is no thread or no descriptor to be had.
    pub fn changes(&self) -> Result<Option<Changes>, Error> {
        let watch = self.engine.has_gate().then(|| self.engine.shut_gate()).transpose();
        Ok(watch.map_err(Error::other)?.map(Changes))
    }

    /// Whether the process tells of changes yet: nobody has taken away the probe where it does, no filter of system calls is in its way by now, and
    /// it was not let go on without an answer again and again.
    pub fn tells_changes(&self, process: &Process) -> bool {
        let is_filtered = || process.status().map_or(true, |status| status.seccomp != Seccomp::Off);
        self.recheck.borrow().is_told() && self.unanswered() < MOST_UNANSWERED && !is_filtered()
    }

    /// Whether the probes are in, as far as nobody else has taken them out.
    pub fn is_armed(&self, process: &Process) -> bool {
        self.engine.state() == Some(SessionState::Armed) && !process.runs_another_program()
    }

    /// All that has changed so far, to be asked ahead of looking.
    pub fn change(&self, changes: &Changes) -> Change {
        Change(self.engine.arrived_at_gate(&changes.0))
    }

    /// Lets whoever has made a change go on.
    pub fn answer(&self, change: Change) {
        self.engine.serve_gate(change.0);
    }

    /// The process waits no more.
    pub fn ignore_changes(&self) {
        self.engine.open_gate();
    }

    /// How often the process has gone on without an answer.
    pub fn unanswered(&self) -> u32 {
        self.engine.late_at_gate()
    }
}
