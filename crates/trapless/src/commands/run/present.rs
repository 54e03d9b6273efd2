//! Which of a run's probes mean something in a process.

use crate::cli::validated::{Probe, Run};
use crate::error::Error;
use crate::resolve::{self, Kinds, Sites};
use crate::target::Image;
use std::collections::BTreeSet;
use trapless_process::Process;
use trapless_session::error::Error as SessionError;
use trapless_session::select::SelectError;

/// The sites of those probes that match something in a process; what was said of one that does not, if none does. `matched`: the
/// probes that have matched anywhere.
pub(super) fn present(
    run: &Run,
    matched: &mut BTreeSet<usize>,
    process: &Process,
    images: &[Image],
) -> Result<Result<Sites, Error>, Error> {
    let selection = &run.selection;
    let kinds = |probe: &Probe| Kinds { entry: probe.entry, returns: probe.returns };
    let all: Vec<_> = selection.probes.iter().map(|probe| (&probe.spec, kinds(probe))).collect();
    let resolve = |probes: &[_]| {
        let probes = probes.iter().copied();
        resolve::resolve(Some(process), images, probes, &selection.exclusions, selection.max_probes)
    };
    let absent = match resolve(&all) {
        Err(error) if is_absent(&error) => error,
        sites => {
            let sites = sites?;
            matched.extend(0..all.len());
            return Ok(Ok(sites));
        }
    };
    let mut matching = Vec::new();
    for (index, probe) in all.into_iter().enumerate() {
        match resolve(&[probe]) {
            Err(error) if is_absent(&error) => {}
            sites => {
                sites?;
                matched.insert(index);
                matching.push(probe);
            }
        }
    }
    if matching.is_empty() {
        return Ok(Err(absent.into()));
    }
    Ok(Ok(resolve(&matching)?))
}

/// Whether an error says that a program has nothing of what was asked for. Another one may have it.
pub(super) fn is_absent(error: &SessionError) -> bool {
    match error {
        SessionError::Select(error) => matches!(
            error,
            SelectError::NoModule { .. }
                | SelectError::NoFunction { .. }
                | SelectError::NoUsdt { .. }
                | SelectError::Excluded { .. }
        ),
        SessionError::Source { .. } | SessionError::OnlyInlined { .. } => true,
        _ => false,
    }
}
