//! What of a run's probes a process has, and what it may come to have.

use super::super::present::{Present, kinds, present};
use super::search::can_be_loaded;
use crate::cli::validated::Run;
use crate::error::Error;
use crate::resolve::{Kinds, Sites};
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
    let is_unmapped =
        |error: &SessionError| matches!(error, SessionError::Select(SelectError::NoModule { .. }));
    let Present { sites, absent, .. } = present(run, process, images, is_unmapped)?;
    let mut pending = BTreeMap::new();
    for (index, error) in absent {
        let probe = &run.selection.probes[index];
        if !run.pending && !can_be_loaded(run, process, images, probe)? {
            return Err(match error {
                SessionError::Select(error) => Error::NotLoaded(error),
                error => error.into(),
            });
        }
        pending.insert(index, probe.spec.text.clone());
    }
    for text in pending.values() {
        let (text, pid) = (printable(text), process.pid());
        tell(format_args!("'{text}' is armed when its library is loaded into process {pid}"));
    }
    let waits = run.pending || !pending.is_empty();
    Ok(Wanted { sites: sites.unwrap_or_default(), later: waits.then(|| of_all(run)), pending })
}

/// What is asked for at any of a run's probes.
fn of_all(run: &Run) -> Kinds {
    run.selection.probes.iter().map(|probe| kinds(run, probe)).fold(Kinds::default(), Kinds::or)
}

/// What a run asks for in libraries that come later, if it waits for all of them.
pub(in super::super) fn later(run: &Run) -> Option<Kinds> {
    run.pending.then(|| of_all(run))
}
