//! What is asked for in a session, and what that means at each site.

use crate::resolve::{Kinds, Site, Sites};
use trapless_engine::Wanted;
use trapless_isa::Mechanism;
use trapless_isa::detour::MOST_FETCHED;

/// What is measured at every site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Hits.
    Count,
    /// Durations from entry to return.
    Latency,
    /// Each hit, with this many arguments.
    Trace {
        /// 0 to 6.
        args: u8,
    },
}

/// What is done with sites, besides what each of them says.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What is measured.
    pub measure: Measure,
    /// The mechanisms that may be used.
    pub allowed: Vec<Mechanism>,
    /// What is asked for at sites that may be added later ([`Session::add`](super::Session::add)), if there may be any.
    pub later: Option<Kinds>,
}

impl Asked {
    /// To measure this, by these mechanisms, at the sites that there are.
    pub fn of(measure: Measure, allowed: &[Mechanism]) -> Self {
        Self { measure, allowed: allowed.to_vec(), later: None }
    }
}

/// What has no return has no time; it was left out with the reason.
pub(super) fn leave_out_without_return(measure: Measure, sites: &mut Sites) {
    if measure == Measure::Latency {
        sites.sites.retain(|site| site.no_return.is_none() || site.kinds == Kinds::default());
    }
}

/// Whether calls are followed to their return.
pub(super) fn follows(measure: Measure, sites: &Sites) -> bool {
    measure == Measure::Latency || sites.sites.iter().any(|site| site.kinds.returns)
}

pub(super) fn wanted(measure: Measure, site: &Site) -> Wanted {
    match measure {
        Measure::Trace { .. } if !site.usdt.is_empty() && site.kinds != Kinds::default() => Wanted {
            entries: site.kinds.entry,
            // As many as its notes name.
            record_entry: Some(MOST_FETCHED as u8),
            unwinder: site.unwinder,
            ..Wanted::default()
        },
        _ => Wanted { unwinder: site.unwinder, ..wanted_of(measure, site.kinds) },
    }
}

/// What is wanted at a site that is no USDT probe's.
pub(super) fn wanted_of(measure: Measure, kinds: Kinds) -> Wanted {
    let Kinds { entry, returns } = kinds;
    match measure {
        _ if !entry && !returns => Wanted::default(),
        Measure::Count => Wanted { entries: entry, returns, ..Wanted::default() },
        Measure::Latency => Wanted { entries: true, returns: true, latency: true, ..Wanted::default() },
        Measure::Trace { args } => Wanted {
            entries: entry,
            record_entry: (entry || args > 0).then_some(args),
            returns,
            record_return: returns,
            ..Wanted::default()
        },
    }
}
