//! `list --summary`: how much of each module can be probed without a trap, and what keeps the rest.
//!
//! Two numbers for each module: of the entries of the functions that were asked for, as they would be armed together, and of the
//! instructions of those functions, each judged alone. Of many instructions every so-manieth is looked at. Parts that others branch to, which a
//! stripped file has among its functions, are no entries.

use super::sites::Place;
use crate::cli::validated::Listing;
use crate::error::Error;
use crate::report::{Coverage, KeptOut};
use crate::resolve::Site;
use crate::session::Prepared;
use std::collections::{BTreeMap, HashMap};
use trapless_engine::admit::best_of;
use trapless_engine::{Module, Refusal, Request, Wanted, spread};
use trapless_isa::Mechanism;

/// So many instructions of a module are looked at, or all if there are fewer.
const INSTRUCTIONS: usize = 20_000;

/// What arming uses unasked.
const TRAPLESS: [Mechanism; 2] = [Mechanism::Jump, Mechanism::Short];

/// Shows it.
///
/// # Errors
/// A file or the process cannot be read, or the output not written.
pub fn run(listing: &Listing, place: &Place, prepared: &Prepared<'_>) -> Result<u8, Error> {
    let asked = |site: &Site| site.kinds.are_any();
    let entry = |site: &Site| Wanted { entries: asked(site), ..Wanted::default() };
    let plan = prepared.offers(entry, &TRAPLESS)?;
    let answers = plan.answers();
    let (modules, requests) = prepared.requests(entry);
    let mut by_image: BTreeMap<usize, Vec<&Request<'_>>> = BTreeMap::new();
    for request in &requests {
        let site = &prepared.sites().sites[request.id as usize];
        if asked(site) {
            by_image.entry(site.image).or_default().push(request);
        }
    }
    let mut rows = Vec::new();
    for (image, requests) in by_image {
        let mut entries = Tally::default();
        let file = place.images[image].opened(place.process())?;
        for request in &requests {
            // What nobody calls is no entry.
            let site = &prepared.sites().sites[request.id as usize];
            let function = file.module().functions().get(site.function);
            if function.is_some_and(|function| file.is_part(function)) {
                continue;
            }
            match answers.get(&request.id) {
                Some(Ok(planned)) => entries.take(Ok(planned.mechanism)),
                Some(Err(refusal)) => entries.take(Err((*refusal).clone())),
                None => {}
            }
        }
        let mut instructions = Tally::default();
        let sampled = sample(&modules, &requests);
        let judged = spread::map(&sampled, |request| best_of(&plan.facts, &modules, request, &TRAPLESS));
        judged.into_iter().for_each(|verdict| instructions.take(verdict));
        let module = place.images[image].name();
        rows.extend([entries.row(module, "entries"), instructions.row(module, "instructions")]);
    }
    listing.output.rows(&rows)?;
    Ok(0)
}

/// Instructions of the functions of `requests`, as sites of their own, evenly spread over all of them.
fn sample<'m>(modules: &[Module<'m>], requests: &[&Request<'m>]) -> Vec<Request<'m>> {
    let each = spread::map(requests, |request| {
        let isa = modules[request.module].machine.isa();
        let (mut code, mut address) = (request.function.code(), request.function.address);
        let mut found = Vec::new();
        while let Ok(instruction) = isa.decode(code, address) {
            found.push(address);
            address = instruction.end();
            code = code.get(usize::from(instruction.length).max(1)..).unwrap_or_default();
        }
        found
    });
    let count: usize = each.iter().map(Vec::len).sum();
    // Odd, so that it does not go along with how code is aligned.
    let step = (count / INSTRUCTIONS) | 1;
    let all =
        requests.iter().zip(&each).flat_map(|(request, found)| found.iter().map(move |at| (request, at)));
    all.step_by(step).map(|(request, &address)| Request { address, ..**request }).collect()
}

/// What came of some sites.
#[derive(Default)]
struct Tally {
    jump: usize,
    short: usize,
    /// By their code: the text of the first, and how many.
    refused: HashMap<&'static str, (String, usize)>,
}

impl Tally {
    fn take(&mut self, verdict: Result<Mechanism, Refusal>) {
        match verdict {
            Ok(Mechanism::Short) => self.short += 1,
            Ok(_) => self.jump += 1,
            Err(refusal) => {
                self.refused.entry(refusal.code()).or_insert_with(|| (refusal.group(), 0)).1 += 1;
            }
        }
    }

    fn row(self, module: &str, of: &'static str) -> Coverage {
        let mut reasons: Vec<KeptOut> =
            self.refused.into_iter().map(|(code, (reason, sites))| KeptOut { code, reason, sites }).collect();
        reasons.sort_by(|one, other| other.sites.cmp(&one.sites).then(one.code.cmp(other.code)));
        let refused: usize = reasons.iter().map(|reason| reason.sites).sum();
        let sites = self.jump + self.short + refused;
        Coverage {
            module: module.to_owned(),
            of,
            sites,
            jump: self.jump,
            short: self.short,
            refused,
            reasons,
        }
    }
}
