//! Probes armed in one process, from attaching to removal.

mod counts;
mod follow;
mod survey_cache;
mod trace;

use crate::clock::Clock;
use crate::error::Error;
use crate::report::Skipped;
use crate::resolve::{self, Kinds, Site, Sites};
use crate::spec::Kind;
use crate::target::{self, Image};
use std::collections::BTreeMap;
use trapless_engine::{
    Attempt, Blueprint, EngineError, Function, Module, Offsets, Plan, Refusal, Removed, Request, Wanted,
    remove_kept,
};
use trapless_isa::BranchTargets;
use trapless_process::{Process, StopOptions};
use trapless_wire::Sizes;

pub use counts::{Snapshot, Tally};
pub use trace::Tracer;

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

/// A site that is armed.
#[derive(Clone, Debug)]
pub struct Probe {
    /// File name of its module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// Address in the target.
    pub address: u64,
    /// What was asked for.
    pub kinds: Kinds,
    /// How it gets control.
    pub mechanism: &'static str,
    /// Where its numbers are.
    pub offsets: Offsets,
}

/// Probes armed in one process. They stay armed when this is dropped: see [`Session::remove`].
pub struct Session {
    process: Process,
    engine: trapless_engine::Session,
    clock: Clock,
    probes: Vec<Probe>,
    skipped: Vec<Skipped>,
    options: StopOptions,
}

/// Sites with what the engine must know of their files, ready to be planned.
pub struct Prepared<'i> {
    images: &'i [Image],
    sites: Sites,
    targets: BTreeMap<usize, BranchTargets>,
}

impl<'i> Prepared<'i> {
    /// Reads the code of every file that has a site.
    pub fn new(process: Option<&Process>, images: &'i [Image], sites: Sites) -> Result<Self, Error> {
        let mut targets = BTreeMap::new();
        for site in &sites.sites {
            if let std::collections::btree_map::Entry::Vacant(entry) = targets.entry(site.image) {
                let image = &images[site.image];
                let module = image.module(process)?;
                let isa = target::machine(module).isa();
                entry.insert(crate::survey::branch_targets(module, isa, image.bias(process)?));
            }
        }
        Ok(Self { images, sites, targets })
    }

    /// The engine's modules and requests. The id of a request is the index of its site.
    pub fn requests(
        &self,
        process: Option<&Process>,
        wanted: impl Fn(&Site) -> Wanted,
    ) -> Result<(Vec<Module<'_>>, Vec<Request<'_>>), Error> {
        let mut modules = Vec::new();
        let mut place = BTreeMap::new();
        for (&index, targets) in &self.targets {
            let image = &self.images[index];
            let machine = target::machine(image.module(process)?);
            place.insert(index, modules.len());
            modules.push(Module { machine, start: image.range.start, end: image.range.end, targets });
        }
        let mut requests = Vec::new();
        for (id, site) in (0..).zip(&self.sites.sites) {
            let Some(function) = engine_function(process, &self.images[site.image], site.function)? else {
                continue;
            };
            let bias = self.images[site.image].bias(process)?;
            requests.push(Request {
                id,
                module: place[&site.image],
                function,
                address: site.address.wrapping_add(bias),
                wanted: wanted(site),
            });
        }
        Ok((modules, requests))
    }

    /// The sites, in the order of the requests' ids.
    pub fn sites(&self) -> &Sites {
        &self.sites
    }
}

/// A function of a file in the engine's terms.
fn engine_function<'i>(
    process: Option<&Process>,
    image: &'i Image,
    index: usize,
) -> Result<Option<Function<'i>>, Error> {
    let module = image.module(process)?;
    let Some(function) = module.functions().get(index) else { return Ok(None) };
    let code = function.range();
    let bytes = module.code(code.start..function.padding().end).or_else(|| module.code(code.clone()));
    Ok(bytes.map(|bytes| Function {
        address: code.start.wrapping_add(image.bias(process).unwrap_or(0)),
        bytes,
        size: (code.end - code.start) as usize,
    }))
}

fn wanted(measure: Measure, site: &Site) -> Wanted {
    let Kinds { entry, returns } = site.kinds;
    match measure {
        Measure::Count => Wanted { entries: entry, returns, ..Wanted::default() },
        Measure::Latency => Wanted { entries: true, returns: true, latency: true, ..Wanted::default() },
        Measure::Trace { args } => Wanted {
            entries: true,
            record_entry: (entry || args > 0).then_some(args),
            record_return: returns,
            ..Wanted::default()
        },
    }
}

impl Session {
    /// Arms `sites` in `process`.
    ///
    /// # Errors
    /// No site can be probed, or the process cannot be changed; then it is as it was.
    pub fn attach(
        process: Process,
        images: &[Image],
        sites: Sites,
        measure: Measure,
        options: StopOptions,
    ) -> Result<Self, Error> {
        let prepared = Prepared::new(Some(&process), images, sites)?;
        let (modules, mut requests) = prepared.requests(Some(&process), |site| wanted(measure, site))?;
        let sites = prepared.sites();
        let mut refused: Vec<(u32, String)> = Vec::new();
        requests.retain(|request| {
            let reason = request.wanted.follows().then(|| odd_return(&process, images, sites, request.id));
            match reason.flatten() {
                Some(reason) => {
                    refused.push((request.id, reason.to_owned()));
                    false
                }
                None => true,
            }
        });
        let hooks = follow::hooks(&process, images, &requests)?;
        let mut plan = follow::plan(modules, requests, hooks);
        follow::refuse_faults(&process, &mut plan)?;
        let (engine, armed) = arm(&process, &mut plan, &options)?;
        refused.extend(plan.skipped.iter().map(|(id, refusal)| (*id, refusal.to_string())));

        let mut probes = Vec::new();
        for (site, refusal) in plan.sites.iter().zip(armed) {
            let Some(asked) = sites.sites.get(site.request.id as usize) else { continue };
            match refusal {
                Some(refusal) => refused.push((site.request.id, refusal.to_string())),
                None => probes.push(Probe {
                    module: images[asked.image].name().to_owned(),
                    function: asked.name.clone(),
                    address: site.request.address,
                    kinds: asked.kinds,
                    mechanism: site.mechanism.name(),
                    offsets: site.offsets,
                }),
            }
        }
        let mut skipped = sites.skipped.clone();
        skipped.extend(refused.into_iter().filter_map(|(id, reason)| {
            let site = sites.sites.get(id as usize)?;
            let module = images[site.image].name().to_owned();
            Some(Skipped { module, function: site.name.clone(), reason })
        }));
        drop(plan);
        Ok(Self { process, engine, clock: Clock::now(), probes, skipped, options })
    }
}
