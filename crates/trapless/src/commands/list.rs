//! `list`: what can be probed, by which mechanism, and why not by a better one.

mod lines;

use super::sites::Place;
use crate::cli::validated::Listing;
use crate::error::Error;
use crate::report::{ListedModule, ListedSite};
use crate::resolve::Site;
use crate::session::Prepared;
use trapless_engine::{Refusal, Wanted};
use trapless_session::outcome::Why;

/// Shows it.
///
/// # Errors
/// Nothing matches, or a file cannot be read.
pub fn run(listing: &Listing) -> Result<u8, Error> {
    let place = Place::open(listing)?;
    if listing.selection.probes.is_empty() {
        return modules(listing, &place);
    }
    if listing.lines {
        return lines::run(listing, &place);
    }
    let process = place.process();
    let prepared = Prepared::new(process, &place.images, place.sites(listing)?, true)?;
    if listing.summary {
        return super::coverage::run(listing, &place, &prepared);
    }
    let allowed = &listing.selection.mechanisms;
    let asked = |site: &Site| site.kinds.are_any();
    let entry = |site: &Site| Wanted { entries: asked(site), ..Wanted::default() };
    // A USDT probe is a place, and so is a line of the source: nobody asks for its return.
    let has_return = |site: &Site| asked(site) && site.usdt.is_empty() && site.no_return.is_none();
    let both = |site: &Site| Wanted { returns: has_return(site), unwinder: site.unwinder, ..entry(site) };
    let (entries, returns) = (prepared.offers(entry, allowed)?, prepared.offers(both, allowed)?);
    let (entries, returns) = (entries.answers(), returns.answers());
    let (_, requests) = prepared.requests(entry);
    let mut rows = Vec::with_capacity(requests.len());
    for request in &requests {
        let site = &prepared.sites().sites[request.id as usize];
        if !asked(site) {
            continue;
        }
        let image = &place.images[site.image];
        let function = image.module(process)?.functions().get(site.function);
        let names: Vec<&str> =
            function.iter().flat_map(|f| f.names().skip(1)).map(|name| name.versioned()).collect();
        let answer = entries.get(&request.id);
        let planned = answer.and_then(|answer| answer.ok());
        let refused = answer.and_then(|answer| answer.err());
        let no_jump = planned.and_then(|planned| planned.no_jump.as_ref());
        // What keeps the function from being probed at all is said once.
        let no_return = returns.get(&request.id).and_then(|answer| answer.err());
        let no_return = no_return.filter(|refusal| Some(*refusal) != refused).map(Why::from);
        // That a line of the source has none is no news.
        let is_inlined = !site.name.source().inlined.is_empty();
        let no_return =
            no_return.or_else(|| site.no_return.clone().filter(|_| refused.is_none() && is_inlined));
        let row = ListedSite {
            module: image.name().to_owned(),
            function: site.name.text().to_owned(),
            source: site.name.source(),
            aliases: if site.usdt.is_empty() {
                names.into_iter().map(str::to_owned).collect()
            } else {
                vec![]
            },
            address: request.address,
            size: function.map_or(0, |f| f.size()),
            mechanism: planned.map(|planned| planned.mechanism.name()),
            usdt: None,
            code: refused.or(no_jump).map(Refusal::code),
            reason: refused.map(Refusal::to_string).or_else(|| no_jump.map(|why| format!("no jump: {why}"))),
            no_return_code: no_return.as_ref().map(|why| why.code),
            no_return: no_return.map(|why| why.reason),
        };
        // Several may stand at one address.
        for name in site.names() {
            let usdt = site.usdt.iter().find(|usdt| usdt.site_name().text() == name.text());
            rows.push(ListedSite {
                function: name.text().to_owned(),
                source: name.source(),
                usdt: usdt.map(|usdt| place.told_usdt(site, usdt, prepared.notes(request.id))).transpose()?,
                ..row.clone()
            });
        }
    }
    for skipped in &prepared.sites().skipped {
        rows.push(ListedSite {
            module: skipped.module.clone(),
            function: skipped.function.clone(),
            source: skipped.source.clone(),
            aliases: Vec::new(),
            address: 0,
            size: 0,
            mechanism: None,
            usdt: None,
            code: Some(skipped.why.code),
            reason: Some(skipped.why.reason.clone()),
            no_return_code: None,
            no_return: None,
        });
    }
    listing.output.rows(&rows)?;
    Ok(0)
}

fn modules(listing: &Listing, place: &Place) -> Result<u8, Error> {
    let mut rows = Vec::new();
    for image in &place.images {
        // A file that cannot be read is still a module that is there.
        let module = image.module(place.process()).ok();
        rows.push(ListedModule {
            path: image.path.clone(),
            soname: module.and_then(|module| module.soname().map(str::to_owned)),
            address: image.range.start,
            functions: module
                .map_or(0, |module| module.functions().iter().filter(|f| f.is_callable()).count()),
        });
    }
    listing.output.rows(&rows)?;
    Ok(0)
}
