//! What of a run's probes a process has, and what it may come to have.

use crate::cli::validated::{Probe, Run};
use crate::error::Error;
use crate::resolve::{self, Kinds, Sites};
use crate::target::Image;
use crate::terminal::{printable, tell};
use std::collections::BTreeMap;
use trapless_process::Process;
use trapless_session::error::Error as SessionError;
use trapless_session::select::SelectError;

/// What is probed in a process now, and what may be later.
pub(in super::super) struct Wanted {
    /// The sites that there are.
    pub sites: Sites,
    /// What is asked for in libraries that are not there; `None`: all is there, and nothing is waited for.
    pub later: Option<Kinds>,
    /// The probes that wait, by their place on the command line.
    pub pending: BTreeMap<usize, String>,
}

/// Finds the sites of a run's probes in a process. A probe in a file that it has not mapped is pending, if that file is found where the process
/// would look for it, or if the user says so.
///
/// # Errors
/// A probe means nothing, and nothing that could be loaded.
pub(in super::super) fn wanted(run: &Run, process: &Process, images: &[Image]) -> Result<Wanted, Error> {
    let selection = &run.selection;
    let resolve = |probes: &[&Probe]| {
        let probes = probes.iter().map(|probe| (&probe.spec, kinds(probe)));
        resolve::resolve(Some(process), images, probes, &selection.exclusions, selection.max_probes)
    };
    let all: Vec<&Probe> = selection.probes.iter().collect();
    let missing = match resolve(&all) {
        Err(SessionError::Select(error @ SelectError::NoModule { .. })) => error,
        sites => {
            return Ok(Wanted { sites: sites?, later: later(run), pending: BTreeMap::new() });
        }
    };
    let (mut there, mut pending) = (Vec::new(), BTreeMap::new());
    for (index, &probe) in all.iter().enumerate() {
        match resolve(&[probe]) {
            Err(SessionError::Select(error @ SelectError::NoModule { .. })) => {
                if !run.pending && !super::search::can_be_loaded(run, process, images, probe)? {
                    return Err(Error::NotLoaded(error));
                }
                pending.insert(index, probe.spec.text.clone());
            }
            sites => {
                sites?;
                there.push(probe);
            }
        }
    }
    if pending.is_empty() {
        // It is there when it is asked for alone.
        return Err(Error::NotLoaded(missing));
    }
    for text in pending.values() {
        let (text, pid) = (printable(text), process.pid());
        tell(format_args!("'{text}' is armed when its library is loaded into process {pid}"));
    }
    let sites = if there.is_empty() { Sites::default() } else { resolve(&there)? };
    Ok(Wanted { sites, later: Some(of_all(&all)), pending })
}

pub(super) fn kinds(probe: &Probe) -> Kinds {
    Kinds { entry: probe.entry, returns: probe.returns }
}

/// What is asked for at any of them.
fn of_all(probes: &[&Probe]) -> Kinds {
    let entry = probes.iter().any(|probe| probe.entry);
    Kinds { entry, returns: probes.iter().any(|probe| probe.returns) }
}

/// What a run asks for in libraries that come later, if it waits for all of them.
pub(in super::super) fn later(run: &Run) -> Option<Kinds> {
    run.pending.then(|| of_all(&run.selection.probes.iter().collect::<Vec<_>>()))
}
