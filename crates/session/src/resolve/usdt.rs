//! From the names of USDT probes to sites: all places of the file's notes that bear them.

use super::{Found, Kinds, Site, UsdtSite, modules, site_named};
use crate::name::SiteName;
use crate::outcome::Why;
use crate::select::{self, SelectError};
use crate::spec::{Location, Pattern, ProbeSpec};
use crate::target::Image;
use std::borrow::Cow;
use std::collections::BTreeSet;
use trapless_process::Process;
use trapless_symbols::{Module, UsdtProbe};

/// What a specification means where these images are: `usdt:A:NAME` names a module or a provider. It is the module where there is
/// one that has such a probe, or where no module has it.
pub(super) fn settled<'s>(
    process: Option<&Process>,
    images: &[Image],
    spec: &'s ProbeSpec,
) -> Cow<'s, ProbeSpec> {
    let Location::Usdt { provider: None, name } = &spec.location else { return Cow::Borrowed(spec) };
    if spec.module.text().contains('/') {
        return Cow::Borrowed(spec);
    }
    let has_any = |index: usize, provider: Option<&Pattern>| {
        let probes = images[index].module(process).ok().and_then(|module| module.usdt().ok());
        probes.into_iter().flatten().any(|probe| means((provider, name), probe))
    };
    if modules(process, images, spec).is_ok_and(|found| found.into_iter().any(|index| has_any(index, None)))
        || !(0..images.len()).any(|index| has_any(index, Some(&spec.module)))
    {
        return Cow::Borrowed(spec);
    }
    let location = Location::Usdt { provider: Some(spec.module.clone()), name: name.clone() };
    Cow::Owned(ProbeSpec { module: Pattern::everything(), location, ..spec.clone() })
}

fn means((provider, name): (Option<&Pattern>, &Pattern), probe: &UsdtProbe) -> bool {
    name.matches(&probe.name) && provider.is_none_or(|provider| provider.matches(&probe.provider))
}

/// The sites of the probes that `names` means in a module.
///
/// # Errors
/// Its notes cannot be read.
pub(super) fn sites_in(
    module: &Module,
    image: usize,
    names: (Option<&Pattern>, &Pattern),
    kinds: Kinds,
    exclusions: &[&Pattern],
) -> Result<Found, Why> {
    let probes = module.usdt().map_err(|error| Why::plain("unreadable_notes", error.to_string()))?;
    let mut found = Found::default();
    let is_excluded = |probe: &UsdtProbe| {
        let whole = format!("{}:{}", probe.provider, probe.name);
        exclusions.iter().any(|pattern| pattern.matches(&probe.name) || pattern.matches(&whole))
    };
    for probe in probes.iter().filter(|probe| means(names, probe) && !is_excluded(probe)) {
        match site_of(module, image, kinds, probe) {
            Ok(site) => found.sites.push(site),
            Err(nowhere) => found.nowhere.push(nowhere),
        }
    }
    Ok(found)
}

fn site_of(module: &Module, image: usize, kinds: Kinds, probe: &UsdtProbe) -> Result<Site, (SiteName, Why)> {
    let UsdtProbe { provider, name, location, semaphore, arguments, .. } = probe.clone();
    let usdt = UsdtSite { provider, name, semaphore, arguments, asked: Vec::new() };
    let nowhere = |code, reason| Err((usdt.site_name(), Why::plain(code, reason)));
    let Some(function) = module.function_containing(location) else {
        let reason = "its note names a place in no function that is known: the file has neither symbols nor unwind tables for it";
        return nowhere("outside_function", reason);
    };
    if semaphore.is_some_and(|at| !is_semaphore(module, at)) {
        return nowhere("bad_semaphore", "its note names a semaphore that is no aligned, writable variable");
    }
    let site = site_named(image, function, usdt.site_name(), location - function.address(), kinds);
    Ok(Site { usdt: vec![usdt], ..site })
}

/// Whether a semaphore can be there. It counts in 16 bits, which the kernel wants to be aligned, too.
fn is_semaphore(module: &Module, address: u64) -> bool {
    let holds = |segment: &trapless_symbols::Segment| {
        let end = segment.address.saturating_add(segment.memory_size);
        segment.writable && !segment.executable && segment.address <= address && address < end
    };
    address.is_multiple_of(2) && module.segments().iter().any(holds)
}

/// Joins what was asked for at one address.
pub(super) fn join(site: &mut Site, next: &mut Site) {
    // Names of one function are the same site to whoever asked. Those of USDT probes are not, and each gets its numbers.
    if !site.usdt.is_empty() || !next.usdt.is_empty() {
        let is_new = |name: &&SiteName| site.names().all(|known| known.text() != name.text());
        let new: Vec<_> = next.names().filter(is_new).cloned().collect();
        site.others.extend(new);
    }
    for usdt in next.usdt.drain(..) {
        match site.usdt.iter_mut().find(|known| known.is_same(&usdt)) {
            Some(known) => known.asked.extend(usdt.asked),
            None => site.usdt.push(usdt),
        }
    }
}

/// The error for a specification that means no probe of these modules.
pub(super) fn none_found<'m>(spec: &ProbeSpec, modules: impl Iterator<Item = &'m Module>) -> SelectError {
    let probes = modules.filter_map(|module| module.usdt().ok()).flatten();
    let names: BTreeSet<(&str, &str)> = probes.map(|probe| (&*probe.provider, &*probe.name)).collect();
    let any = !names.is_empty();
    let nearest = match &spec.location {
        Location::Usdt { provider: Some(provider), name } => {
            let names: Vec<String> =
                names.iter().map(|(provider, name)| format!("{provider}:{name}")).collect();
            let wanted = format!("{}:{}", provider.text(), name.text());
            select::nearest(&wanted, names.iter().map(String::as_str))
        }
        Location::Usdt { provider: None, name } => {
            select::nearest(name.text(), names.into_iter().map(|(_, name)| name))
        }
        _ => Vec::new(),
    };
    SelectError::NoUsdt { spec: spec.text.clone(), nearest, any }
}
