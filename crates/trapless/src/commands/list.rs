//! `list`: what can be probed, by which mechanism, and why not by a better one.

use super::sites::Place;
use crate::cli::validated::Listing;
use crate::error::Error;
use crate::report::{ListedModule, ListedSite};
use crate::resolve;
use crate::session::Prepared;
use trapless_engine::Wanted;
use trapless_isa::{Ladder, Mechanism, Reason, Site};

/// Shows it.
///
/// # Errors
/// Nothing matches, or a file cannot be read.
pub fn run(listing: &Listing) -> Result<u8, Error> {
    let place = Place::open(listing)?;
    if listing.selection.probes.is_empty() {
        return modules(listing, &place);
    }
    let process = place.process();
    let sites = place.sites(listing)?;
    let prepared = Prepared::new(process, &place.images, sites)?;
    let (modules, requests) = prepared.requests(process, |_| Wanted::default())?;
    let mut rows = Vec::with_capacity(requests.len());
    for request in &requests {
        let asked = &prepared.sites().sites[request.id as usize];
        let image = &place.images[asked.image];
        let module = &modules[request.module];
        let isa = module.machine.isa();
        let site = Site {
            address: request.address,
            function: request.function.address,
            code: request.function.code(),
            padding: request.function.padding(),
            targets: module.targets,
        };
        let allowed =
            asked.mechanism.as_ref().map_or(&listing.selection.mechanisms[..], std::slice::from_ref);
        let (mechanism, reason) = chosen(&isa.verdict(&site), allowed);
        let file = image.module(process)?;
        let function = file.functions().get(asked.function);
        let names: Vec<&str> =
            function.iter().flat_map(|f| f.names().skip(1)).map(|name| name.versioned()).collect();
        let by_name = function.iter().flat_map(|f| f.names()).find_map(|n| resolve::returns_oddly(n.plain()));
        let by_code = || isa.return_verdict(&site).err().map(|reason| reason.to_string());
        rows.push(ListedSite {
            module: image.name().to_owned(),
            function: asked.name.clone(),
            aliases: names.into_iter().map(str::to_owned).collect(),
            address: request.address,
            size: function.map_or(0, |f| f.size()),
            mechanism: mechanism.map(Mechanism::name),
            reason,
            no_return: by_name.map(str::to_owned).or_else(by_code),
        });
    }
    for skipped in &prepared.sites().skipped {
        rows.push(ListedSite {
            module: skipped.module.clone(),
            function: skipped.function.clone(),
            aliases: Vec::new(),
            address: 0,
            size: 0,
            mechanism: None,
            reason: Some(skipped.reason.clone()),
            no_return: None,
        });
    }
    listing.output.rows(&rows)?;
    Ok(0)
}

/// The best allowed mechanism, and why it is not a better one.
fn chosen(ladder: &Ladder, allowed: &[Mechanism]) -> (Option<Mechanism>, Option<String>) {
    let reason = |rung: &Result<_, Reason>| rung.as_ref().err().map(ToString::to_string);
    match ladder.best(allowed) {
        Ok((Mechanism::Jump, _)) => (Some(Mechanism::Jump), None),
        Ok((mechanism, _)) => (Some(mechanism), reason(&ladder.jump).map(|why| format!("no jump: {why}"))),
        Err(why) => (None, Some(why.to_string())),
    }
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
