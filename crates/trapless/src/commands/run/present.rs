//! Which of a run's probes mean something in a process.

use crate::cli::validated::{Measure, Probe, Run};
use crate::error::Error;
use crate::resolve::{self, Kinds, Sites};
use crate::target::Image;
use std::collections::BTreeMap;
use trapless_process::Process;
use trapless_session::error::Error as SessionError;
use trapless_session::select::SelectError;

/// What of a run's probes a process has.
pub(super) struct Present {
    /// The sites of those that match; `None`: none does.
    pub sites: Option<Sites>,
    /// What was said of those that do not, by their place on the command line.
    pub absent: BTreeMap<usize, SessionError>,
    /// How many probes the run has.
    asked: usize,
}

impl Present {
    /// The probes that match, by their place on the command line.
    pub fn matched(&self) -> impl Iterator<Item = usize> {
        (0..self.asked).filter(|index| !self.absent.contains_key(index))
    }
}

/// Finds the probes that match something in a process. `is_absent`: whether an error says that one of them does not.
///
/// # Errors
/// A probe cannot be resolved for another reason.
pub(super) fn present(
    run: &Run,
    process: &Process,
    images: &[Image],
    is_absent: fn(&SessionError) -> bool,
) -> Result<Present, Error> {
    let selection = &run.selection;
    let all: Vec<&Probe> = selection.probes.iter().collect();
    let asked = all.len();
    let resolve = |probes: &[&Probe]| {
        let probes = probes.iter().map(|probe| (&probe.spec, kinds(run, probe)));
        resolve::resolve(Some(process), images, probes, &selection.exclusions, selection.max_probes)
    };
    let of_all = match resolve(&all) {
        Err(error) if is_absent(&error) => error,
        sites => return Ok(Present { sites: Some(sites?), absent: BTreeMap::new(), asked }),
    };
    let (mut matching, mut places, mut absent) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (index, probe) in all.into_iter().enumerate() {
        match resolve(&[probe]) {
            Err(error) if is_absent(&error) => drop(absent.insert(index, error)),
            sites => {
                sites?;
                matching.push(probe);
                places.push(index as u32);
            }
        }
    }
    if absent.is_empty() {
        // Each is there when it is asked for alone.
        return Err(of_all.into());
    }
    let mut sites = if matching.is_empty() { None } else { Some(resolve(&matching)?) };
    for site in sites.iter_mut().flat_map(|sites| &mut sites.sites) {
        site.asked.iter_mut().for_each(|asked| *asked = places[*asked as usize]);
    }
    Ok(Present { sites, absent, asked })
}

/// What is asked for at a probe of a run.
pub(super) fn kinds(run: &Run, probe: &Probe) -> Kinds {
    let hits = Kinds::hits(probe.entry, probe.returns);
    if run.script.is_some() {
        return hits;
    }
    match (run.measure, run.limits.max_events) {
        (Measure::Trace { args }, _) => Kinds { traced: Some(args), ..hits },
        // To end after so many hits, each must be known.
        (Measure::Latency, most) => Kinds { timed: true, traced: most.map(|_| 0), ..Kinds::default() },
        (_, most) => Kinds { traced: most.map(|_| 0), ..hits },
    }
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
