//! How long arming takes, and how long the target stands still for it.
//!
//! The sites are functions of this program and of the libraries in a child of it, as many as are wanted, evenly from
//! all of them; or one function of the C library. Everything from reading the target's mappings to the last patch is timed, with the files read anew each time.

use super::rounds::median;
use super::target::Target;
use crate::OWN_BITS;
use crate::error::Error;
use serde::Serialize;
use std::time::Instant;
use trapless_isa::Mechanism;
use trapless_process::StopOptions;
use trapless_session::resolve::{self, Kinds};
use trapless_session::session::{Asked, Hold, Session};
use trapless_session::spec::{ProbeSpec, Syntax};

/// Arming some number of sites; medians, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attach {
    /// Sites that were armed.
    pub sites: usize,
    /// Whether their returns were, too.
    pub returns: bool,
    /// From the decision to probed.
    pub armed_ms: f64,
    /// How much of it the target stood still.
    pub stopped_ms: f64,
    /// How long it stood still for the removal.
    pub removal_stopped_ms: f64,
    /// The most memory the benchmark's own process has had, in mebibytes.
    pub peak_mib: f64,
    /// Times it was done.
    pub rounds: u32,
}

/// Numbers of sites that budgets exist for, and whether their returns are probed, too.
pub const RUNS: [(usize, bool); 5] =
    [(1, false), (1_000, false), (1_000, true), (10_000, false), (10_000, true)];

/// Arms up to `sites` sites, or one function of the C library, in a child and takes them out again, `rounds` times.
///
/// # Errors
/// The child ended, or cannot be changed.
pub fn measure(sites: usize, returns: bool, rounds: u32) -> Result<Attach, Error> {
    let target = Target::start(OWN_BITS)?;
    let process = &target.process;
    let options = StopOptions::default();
    // Somebody who asks for one function asks for one file, and no other is read.
    let asked = if sites == 1 { "libc.so.6:malloc" } else { "*:*" };
    let asked = ProbeSpec::parse(asked, Syntax::Glob).map_err(Error::other)?;
    let (mut armed, mut stopped, mut removal, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let start = Instant::now();
        let images = target.images()?;
        let kinds = Kinds::hits(true, returns);
        let mut found = resolve::resolve(Some(process), &images, [(&asked, kinds)], &[], usize::MAX)?;
        // Where an unwinder is to be followed to its return, nothing is.
        found.sites.retain(|site| !images[site.image].name().starts_with("libgcc_s"));
        let all = found.sites.len();
        let mut index = 0;
        // A few are refused, so a few more are tried.
        let tried = sites + sites / 50;
        found.sites.retain(|_| {
            index += 1;
            index * tried / all != (index - 1) * tried / all || all <= tried
        });
        let asked = Asked::of(&[Mechanism::Jump]);
        let session = Session::attach(process, &images, found, asked, Hold::Stop(options.clone()))?;
        armed.push(start.elapsed().as_secs_f64() * 1e3);
        stopped.push(session.stopped().as_secs_f64() * 1e3);
        count = session.probes().len();
        removal.push(session.remove(process, &options)?.stopped.as_secs_f64() * 1e3);
    }
    Ok(Attach {
        sites: count,
        returns,
        armed_ms: median(armed.into_iter()),
        stopped_ms: median(stopped.into_iter()),
        removal_stopped_ms: median(removal.into_iter()),
        peak_mib: peak(),
        rounds,
    })
}

/// The most memory this process has had.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    (kib.unwrap_or(0.0) / 102.4).round() / 10.0
}
