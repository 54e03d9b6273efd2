//! Which instructions a jump replaces at what somebody names.

use crate::{Error, known, points, unwind};
use std::sync::{Arc, OnceLock};
#[cfg(feature = "script")]
use trapless_engine::{Clause, Clauses};
use trapless_engine::{Function, PlannedSite, Stretch, Unwinder, Wanted};
use trapless_isa::{Displaced, Hook, Mechanism};
use trapless_process::Process;
use trapless_session::files::Files;
#[cfg(feature = "script")]
use trapless_session::name::SiteName;
use trapless_session::name::Source;
use trapless_session::outcome::{Skipped, Why};
use trapless_session::resolve::{self, Kinds, MOST_SITES, Site};
use trapless_session::session::{Prepared, Run};
use trapless_session::spec::{Location, Pattern, ProbeSpec, Syntax};
use trapless_session::target::{self, Image};
use trapless_symbols::demangle;

/// A function that can be probed.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Its entry, as its callers have it.
    pub function: u64,
    /// What a jump there replaces.
    pub displaced: Displaced,
    /// As the file has it.
    pub original: Vec<u8>,
    /// The beginning of the function that it is in, and where that is, for whoever looks for what may be overwritten ([`Purpose::Count`], [`Purpose::Time`]).
    pub code: (u64, Vec<u8>),
    /// Its module's and its own name.
    pub name: [String; 2],
    /// What unwinders ask and land by, which has to know of calls that are followed by detours ([`Purpose::Time`]).
    pub told: Arc<[Asked]>,
}

/// A function by which an unwinder asks for an address, or lands.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub found: Found,
    /// What is done there.
    pub hook: Hook,
}

/// What functions are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// For something at their entries.
    Enter,
    /// For something at their returns, too.
    Follow,
    /// To be counted.
    Count,
    /// To be timed by a detour that follows calls.
    Time,
    /// To have bodies of a script called at their entries.
    #[cfg(feature = "script")]
    Run,
    /// The same at their returns, too.
    #[cfg(feature = "script")]
    RunAtReturn,
}

impl Purpose {
    /// Whether calls are followed to their return.
    pub fn follows(self) -> bool {
        self == Self::Follow || self.tells()
    }

    /// Whether detours do that, of which unwinders are told.
    fn tells(self) -> bool {
        match self {
            Self::Time => true,
            #[cfg(feature = "script")]
            Self::RunAtReturn => true,
            _ => false,
        }
    }

    /// Whether it is for a script.
    fn runs(self) -> bool {
        match self {
            #[cfg(feature = "script")]
            Self::Run | Self::RunAtReturn => true,
            _ => false,
        }
    }
}

impl Asked {
    /// Whether unwinders ask there, and do not land.
    pub fn asks(&self) -> bool {
        matches!(self.hook, Hook::Translate(_))
    }

    /// Whether whoever is asked asks nobody else that could be told: libgcc's own function asks the C library in turn, or the program where there is none.
    pub fn is_asked_last(&self) -> bool {
        self.asks() && self.found.name[1] != "_Unwind_Find_FDE"
    }
}

impl Found {
    /// Whether it is the same code, by whatever name.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.function, self.displaced, &self.original) == (other.function, other.displaced, &other.original)
    }

    /// It is told as one that was left alone.
    pub fn left_alone(&self, error: &Error) -> Skipped {
        let [module, function] = self.name.clone();
        let why = Why::plain("not_here", error.to_string());
        Skipped { module, function, source: Source::default(), why }
    }
}

/// What is said where all were left alone.
pub(crate) fn nothing(skipped: &[Skipped]) -> Error {
    let function = skipped.first().map_or_else(String::new, |one| format!("{}:{}", one.module, one.function));
    Error::Refused { function, reason: reason(skipped) }
}

/// Files, each read once.
pub(crate) fn files() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(Files::default)
}

pub(crate) fn process() -> Result<(Process, Vec<Image>), Error> {
    let process = Process::own().map_err(trapless_session::error::Error::from)?;
    let images = target::images(&process, files())?;
    Ok((process, images))
}

/// The functions that a pattern means.
pub(crate) fn by_pattern(pattern: &str, purpose: Purpose) -> Result<(Vec<Found>, Vec<Skipped>), Error> {
    let spec = ProbeSpec::parse(pattern, Syntax::Glob).map_err(trapless_session::error::Error::from)?;
    if !matches!(spec.location, Location::Function { offset: 0, .. }) || spec.mechanism.is_some() {
        return Err(Error::NoFunction(spec.text));
    }
    let (process, images) = process()?;
    by_spec(&process, &images, &spec, purpose)
}

/// What is found of a function for a script.
#[cfg(feature = "script")]
pub(crate) struct Probed {
    pub found: Found,
    /// The file that it is in, and its name there.
    pub file: String,
    pub name: SiteName,
    /// What is called at its entry and at its return, and the number by which bodies know it.
    pub clauses: [Vec<Clause>; 2],
    pub number: u32,
}

/// The functions that the specifications of a script mean, with what is called there; and those that were left alone. There is one at least.
#[cfg(feature = "script")]
pub(crate) fn by_script(
    (process, images): (&Process, &[Image]),
    specs: &[(ProbeSpec, Kinds)],
    run: Arc<Run>,
) -> Result<(Vec<Probed>, Vec<Skipped>), Error> {
    let purpose =
        if specs.iter().any(|(_, kinds)| kinds.follows()) { Purpose::RunAtReturn } else { Purpose::Run };
    let specs = specs.iter().map(|(spec, kinds)| (spec, *kinds));
    let mut all = Vec::new();
    let each = |planned: &PlannedSite<'_>, site: &Site, found| {
        let Clauses { entry, at_return, site: number, .. } = planned.request.clauses;
        let (file, name) = (images[site.image].path.clone(), site.name.clone());
        all.push(Probed { found, file, name, clauses: [entry.to_vec(), at_return.to_vec()], number });
    };
    let skipped = by_specs(process, images, specs, purpose, Some(run), each)?;
    if all.is_empty() { Err(nothing(&skipped)) } else { Ok((all, skipped)) }
}

/// The function with this entry.
pub(crate) fn at(entry: u64, purpose: Purpose) -> Result<Found, Error> {
    known::or_find(entry, purpose, || look_at(entry, purpose))
}

/// What names the function with this entry.
fn spec_at(process: &Process, images: &[Image], entry: u64) -> Result<ProbeSpec, Error> {
    let image = images.iter().find(|image| image.range.contains(&entry)).ok_or(Error::Nowhere(entry))?;
    let address = entry.wrapping_sub(image.bias(Some(process))?);
    let module = image.module(Some(process))?;
    let function = module.functions().containing(address).filter(|function| function.address() == address);
    function.ok_or(Error::Nowhere(entry))?;
    let spec = ProbeSpec {
        module: Pattern::literal(&image.path),
        location: Location::Address(address),
        kind: None,
        mechanism: None,
        inlines: false,
        by_file: false,
        text: format!("{}:{address:#x}", image.path),
    };
    Ok(spec)
}

fn look_at(entry: u64, purpose: Purpose) -> Result<Found, Error> {
    let (process, images) = process()?;
    let spec = spec_at(&process, &images, entry)?;
    let (mut found, _) = by_spec(&process, &images, &spec, purpose)?;
    found.pop().ok_or(Error::Nowhere(entry))
}

/// Padding that nobody comes to, in reach of a short jump over the first instruction of the function with this entry: where it is, and what the file has there.
/// It has the length of a jump at least.
pub(crate) fn padding_near(entry: u64) -> Option<(u64, Vec<u8>)> {
    let (process, images) = process().ok()?;
    let spec = spec_at(&process, &images, entry).ok()?;
    let sites = resolve::resolve(Some(&process), &images, [(&spec, Kinds::ENTRY)], &[], MOST_SITES).ok()?;
    let prepared = Prepared::new(Some(&process), &images, sites, false).ok()?;
    let wanted = |site: &Site| Wanted { entries: site.kinds.are_any(), ..Wanted::default() };
    let plan = prepared.plan(wanted, &[Mechanism::Short]);
    let planned = plan
        .sites
        .iter()
        .find(|planned| planned.request.address == entry && planned.request.wanted.entries)?;
    let room = planned.room.filter(|room| room.displaced.instructions == 0 && planned.turns.is_empty())?;
    Some((room.displaced.start, room.original.to_vec()))
}

fn reason(skipped: &[Skipped]) -> String {
    skipped.first().map_or_else(|| "nothing is there".to_owned(), |skipped| skipped.why.reason.clone())
}

fn by_spec(
    process: &Process,
    images: &[Image],
    spec: &ProbeSpec,
    purpose: Purpose,
) -> Result<(Vec<Found>, Vec<Skipped>), Error> {
    let mut found = Vec::new();
    let by_pattern = [(spec, Kinds::ENTRY)];
    let each = |_: &PlannedSite<'_>, _: &Site, one| found.push(one);
    let skipped = by_specs(process, images, by_pattern, purpose, None, each)?;
    if found.is_empty() { Err(nothing(&skipped)) } else { Ok((found, skipped)) }
}

/// Gives `each` what was found by these specifications, one after the other; those that were left alone. `run`: the script whose bodies are called.
fn by_specs<'s>(
    process: &Process,
    images: &[Image],
    specs: impl IntoIterator<Item = (&'s ProbeSpec, Kinds)> + Clone,
    purpose: Purpose,
    run: Option<Arc<Run>>,
    mut each: impl FnMut(&PlannedSite<'_>, &Site, Found),
) -> Result<Vec<Skipped>, Error> {
    let follows = purpose.follows();
    if purpose == Purpose::Follow {
        unwind::is_only_one(process, images)?;
    }
    let sites = resolve::resolve(Some(process), images, specs.clone(), &[], MOST_SITES)?;
    let prepared = Prepared::new(Some(process), images, sites, follows)?.with_run(run);
    let wanted = |site: &Site| {
        let entries = site.kinds.are_any();
        let unwinder = site.unwinder.filter(|_| purpose.tells());
        if purpose.runs() {
            let Kinds { entry, returns, .. } = site.kinds;
            return Wanted { run_entry: entry, run_return: returns, unwinder, ..Wanted::default() };
        }
        let latency = entries && purpose == Purpose::Time;
        Wanted { entries, returns: entries && follows, latency, unwinder, ..Wanted::default() }
    };
    let plan = prepared.plan(wanted, &[Mechanism::Jump]);
    let mut skipped = prepared.sites().skipped.clone();
    let by_pattern = specs.into_iter().any(|(spec, _)| matches!(spec.location, Location::Function { .. }));
    let told: Arc<[Asked]> = match purpose.tells() {
        true => asked(&plan.sites, &prepared, images)?.into(),
        false => Arc::default(),
    };
    for (id, answer) in plan.answers() {
        let site = prepared.site(id);
        if !site.kinds.are_any() {
            continue;
        }
        match answer {
            // Its return address has to stay, and probes at its exits are none of ours.
            Ok(planned)
                if follows && (!purpose.runs() || site.kinds.follows()) && !planned.request.pairs() =>
            {
                if !planned.request.is_exit() {
                    let why = "its return address has to stay on the stack";
                    skipped.push(resolve::skip(images, site, Why::plain("exits_only", why)));
                }
            }
            Ok(planned) if points::are_at(planned.request.address) => {
                let why = Why::plain("own", "calls that are followed go by it");
                skipped.push(resolve::skip(images, site, why));
            }
            Ok(_) if by_pattern && may_be_ours(&images[site.image], process, site) => {
                let why = "its file has no names, and has what probes in one's own process are made of";
                skipped.push(resolve::skip(images, site, Why::plain("own", why)));
            }
            Ok(planned) => match unsuitable(&images[site.image], process, site, &planned.turns) {
                None => each(
                    planned,
                    site,
                    Found {
                        function: planned.request.address,
                        displaced: planned.displaced,
                        original: planned.original().to_vec(),
                        code: match purpose {
                            Purpose::Count | Purpose::Time => beginning(planned.request.function),
                            _ => Default::default(),
                        },
                        name: [site.module_name(images).to_owned(), site.name.text().to_owned()],
                        told: told.clone(),
                    },
                ),
                Some(why) => skipped.push(resolve::skip(images, site, why)),
            },
            Err(refusal) => skipped.push(resolve::skip(images, site, Why::from(refusal))),
        }
    }
    Ok(skipped)
}

/// Where unwinders ask and land, among planned sites: those that have to know of calls that detours follow.
fn asked(sites: &[PlannedSite<'_>], prepared: &Prepared<'_>, images: &[Image]) -> Result<Vec<Asked>, Error> {
    let mut asked = Vec::new();
    for planned in sites {
        let hook = match planned.request.wanted.unwinder {
            Some(Unwinder::Lookup(lookup)) => Hook::Translate(lookup),
            Some(Unwinder::Landing(code_address)) => Hook::Land { code_address },
            Some(Unwinder::Entry) | None => continue,
        };
        let site = prepared.site(planned.request.id);
        let name = [site.module_name(images).to_owned(), site.name.text().to_owned()];
        if !planned.turns.is_empty() {
            return Err(Error::Unwinder(format!("{} jumps back to its entry", name.join(":"))));
        }
        asked.push(Asked {
            found: Found {
                function: planned.request.address,
                displaced: planned.displaced,
                original: planned.original().to_vec(),
                code: Default::default(),
                name,
                told: Arc::default(),
            },
            hook,
        });
    }
    Ok(asked)
}

/// As much of a function's code as matters for what is read behind its entry.
fn beginning(function: Function<'_>) -> (u64, Vec<u8>) {
    const MOST: usize = 512;
    let code = function.bytes.get(..function.size.min(MOST)).unwrap_or_default();
    (function.address, code.to_vec())
}

/// What is in the way here, and not from outside.
fn unsuitable(image: &Image, process: &Process, site: &Site, turns: &[Stretch<'_>]) -> Option<Why> {
    if !turns.is_empty() {
        let why = "it jumps back to its entry, and each round would be taken for a call";
        return Some(Why::plain("loops_to_entry", why));
    }
    // It finds the thread-local memory that we know threads by.
    let is_loader = ["ld-", "ld.so", "ld64"].iter().any(|name| image.name().starts_with(name));
    if is_loader {
        let why = "the dynamic loader's functions are called where no handler can be";
        return Some(Why::plain("loader", why));
    }
    // Functions that are alike may be one, with the names of all.
    let functions = image.module(Some(process)).ok()?.functions();
    let mut names = functions.get(site.function).into_iter().flat_map(|function| function.names());
    names.any(|name| is_ours(&demangle(name.plain()))).then(|| {
        Why::plain("own", "probes in one's own process are made of it, or handlers of signals end by it")
    })
}

/// Whether a function of the file that has this code is nameless, as where that was stripped: it may be one by which handlers are called. Whoever asks
/// for it by its address knows which it is.
fn may_be_ours(image: &Image, process: &Process, site: &Site) -> bool {
    let is_here = image.range.contains(&(may_be_ours as *const () as u64));
    let module = image.module(Some(process)).ok().filter(|_| is_here);
    let function = module.and_then(|module| module.functions().get(site.function));
    function.is_some_and(|function| !function.is_named())
}

/// Whether a function is one by which handlers are called and threads sent on, or may be: those of Rust's libraries are compiled into both.
fn is_ours(function: &str) -> bool {
    let plain = function.trim_start_matches(['<', '&', '*', ' ']);
    let is_restorer = matches!(function, "__restore_rt" | "__restore");
    is_restorer
        || function.contains("trapless_")
        || ["core::", "std::", "alloc::"].iter().any(|name| plain.starts_with(name))
}
