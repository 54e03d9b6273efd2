//! From patterns to sites.

pub mod lines;
mod meant;
mod places;
mod usdt;

use crate::error::Error;
use crate::name::{SiteName, Source};
use crate::outcome::{Note, Skipped, Why};
use crate::select::{self, ModuleNames, SelectError};
use crate::spec::{Exclusion, Location, Pattern, ProbeSpec};
use crate::target::Image;
use meant::{Ours, modules};
use std::borrow::Cow;
use std::collections::BTreeSet;
use trapless_engine::{Unwinder, spread};
use trapless_isa::Mechanism;
use trapless_process::Process;
use trapless_symbols::{Function, Kind, Module, SourceError, UsdtArgument, demangle};

/// Most sites that patterns may mean together, unless whoever asks says otherwise.
pub const MOST_SITES: usize = 50_000;

/// What is asked for at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Kinds {
    /// The entry, or the instruction itself.
    pub entry: bool,
    /// The return.
    pub returns: bool,
    /// How long calls take, from entry to return.
    pub timed: bool,
    /// Each hit by itself, and of entries so many arguments: 0 to 6. Of a USDT probe there are as many as its notes name.
    pub traced: Option<u8>,
}

impl Kinds {
    /// Entries, or the instruction itself.
    pub const ENTRY: Self = Self { entry: true, returns: false, timed: false, traced: None };

    /// Entries or returns, or both.
    pub const fn hits(entry: bool, returns: bool) -> Self {
        Self { entry, returns, timed: false, traced: None }
    }

    /// Whether something is asked for: it is not at a site that only serves others.
    pub fn are_any(self) -> bool {
        self.entry || self.follows()
    }

    /// Whether calls are followed to their return.
    pub fn follows(self) -> bool {
        self.returns || self.timed
    }

    /// What either asks for.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            entry: self.entry || other.entry,
            returns: self.returns || other.returns,
            timed: self.timed || other.timed,
            traced: self.traced.max(other.traced),
        }
    }

    /// The same without what only a call has that returns.
    fn without_return(self) -> Self {
        Self { returns: false, timed: false, ..self }
    }
}

/// A site that a pattern means.
#[derive(Clone, Debug)]
pub struct Site {
    /// Index of its image.
    pub image: usize,
    /// Index of the function in its module.
    pub function: usize,
    /// Address in the file.
    pub address: u64,
    /// The module's name as it was asked for, where that is not its file's.
    pub module: Option<String>,
    /// The function's name for people, with an offset for a site inside it: of several names that which was asked for.
    pub name: SiteName,
    /// Its other names, of which each was asked for, too: of USDT probes at one address.
    pub others: Vec<SiteName>,
    /// The USDT probes that were asked for here.
    pub usdt: Vec<UsdtSite>,
    /// What was asked for. Neither, for an unwinder's entry that only has to be hooked.
    pub kinds: Kinds,
    /// The only mechanism that may be used, where a specification names one.
    pub mechanism: Option<Mechanism>,
    /// Why nothing returns from here, where that is known: it is a place in the source, and no function.
    pub no_return: Option<Why>,
    /// Which service for unwinders is needed here.
    pub unwinder: Option<Unwinder>,
    /// Which of the specifications mean it, and are not left out here, by their indices.
    pub asked: Vec<u32>,
}

/// A USDT probe at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtSite {
    /// Who offers it.
    pub provider: String,
    /// What it is called.
    pub name: String,
    /// Address in the file of the semaphore that is raised while the probe is armed.
    pub semaphore: Option<u64>,
    /// What it tells of the program.
    pub arguments: Vec<UsdtArgument>,
    /// Which of the specifications mean it, by their indices.
    pub asked: Vec<u32>,
}

impl UsdtSite {
    /// Whether it is the same probe, whoever means it.
    fn is_same(&self, other: &Self) -> bool {
        (&self.provider, &self.name, self.semaphore, &self.arguments)
            == (&other.provider, &other.name, other.semaphore, &other.arguments)
    }

    /// Its name for people.
    pub fn site_name(&self) -> SiteName {
        SiteName::of_usdt(&self.provider, &self.name)
    }
}

impl Site {
    /// The names that it was asked for by.
    pub fn names(&self) -> impl Iterator<Item = &SiteName> {
        std::iter::once(&self.name).chain(&self.others)
    }

    /// Its module's name for people.
    pub fn module_name<'a>(&'a self, images: &'a [Image]) -> &'a str {
        self.module.as_deref().unwrap_or_else(|| images[self.image].name())
    }
}

/// All sites that some patterns mean.
#[derive(Debug, Default)]
pub struct Sites {
    /// By image and address; each address once.
    pub sites: Vec<Site>,
    /// What matched and is no site.
    pub skipped: Vec<Skipped>,
    /// How the patterns were understood, where that is not what they say.
    pub remarks: Vec<Note>,
}

/// Finds the sites that `probes` mean in `images`, leaving out what `exclusions` say.
///
/// # Errors
/// No module or function matches a pattern, or more than `limit` do; a file cannot be read.
pub fn resolve<'p>(
    process: Option<&Process>,
    images: &[Image],
    probes: impl IntoIterator<Item = (&'p ProbeSpec, Kinds)>,
    exclusions: &[Exclusion],
    limit: usize,
) -> Result<Sites, Error> {
    let mut found: Vec<Site> = Vec::new();
    let (mut skipped, mut remarks) = (Vec::new(), Vec::new());
    let probes: Vec<(Cow<'_, ProbeSpec>, Kinds)> =
        probes.into_iter().map(|(spec, kinds)| (usdt::settled(process, images, spec), kinds)).collect();
    read_functions(process, images, &probes);
    let excluded: Vec<Option<Ours>> =
        exclusions.iter().map(|exclusion| Ours::of(process, exclusion.module.as_ref()?)).collect();
    for (number, (spec, kinds)) in (0..).zip(&probes) {
        let (spec, kinds) = (&**spec, *kinds);
        let chosen = modules(process, images, spec)?;
        let ours = Ours::of(process, &spec.module);
        // A pattern over modules may meet one that cannot be read; a name may not.
        let only = chosen.len() == 1;
        let mut matched = 0;
        let mut readable = Vec::new();
        let mut nowhere = Vec::new();
        for index in chosen {
            let image = &images[index];
            match image.module(process) {
                Ok(module) => readable.push((index, module)),
                Err(error) if only => return Err(error),
                Err(error) => skipped.push(Skipped {
                    module: image.name().to_owned(),
                    function: "*".to_owned(),
                    source: Source::default(),
                    why: Why::plain("unreadable_file", error.to_string()),
                }),
            }
        }
        for &(index, module) in &readable {
            let image = &images[index];
            let asked = meant::asked_module(image, module, spec, meant::is_ours(&ours, image));
            let named = || asked.clone().unwrap_or_else(|| image.name().to_owned());
            let names =
                ModuleNames { path: &image.path, soname: module.soname(), alias: image.alias.as_deref() };
            let by_file = exclusions.iter().zip(&excluded).filter(|(_, ours)| meant::is_ours(ours, image));
            let mut exclusions = select::exclusions_for(exclusions, &names);
            exclusions.extend(by_file.map(|(exclusion, _)| &exclusion.function));
            let found_here = match sites_in(module, index, spec, kinds, &exclusions) {
                Ok(found) => found,
                Err(Unfound::Source(error)) => {
                    nowhere.push((index, error));
                    continue;
                }
                Err(Unfound::Notes(why)) if only => {
                    return Err(Error::File { path: image.path.clone().into(), reason: why.reason });
                }
                Err(Unfound::Notes(why)) => {
                    let (module, function) = (named(), "*".to_owned());
                    skipped.push(Skipped { module, function, source: Source::default(), why });
                    continue;
                }
            };
            matched += found_here.nowhere.len();
            remarks.extend(found_here.remarks.into_iter().map(|remark| remark.of(&spec.text)));
            skipped.extend(found_here.nowhere.into_iter().map(|(name, why)| Skipped {
                module: named(),
                function: name.text().to_owned(),
                source: name.source(),
                why,
            }));
            for mut site in found_here.sites {
                matched += 1;
                if is_elsewhere(process, images, index, site.address)? {
                    continue;
                }
                site.module.clone_from(&asked);
                if let Some(why) = no_site(module, &site, spec) {
                    skipped.push(skip(images, &site, why));
                    continue;
                }
                if let Some(why) = site.no_return.clone().filter(|_| site.kinds.follows()) {
                    skipped.push(skip(images, &site, why));
                    site.kinds = site.kinds.without_return();
                }
                site.mechanism = spec.mechanism;
                if site.kinds.are_any() {
                    site.asked = vec![number];
                    site.usdt.iter_mut().for_each(|usdt| usdt.asked = vec![number]);
                    found.push(site);
                }
            }
        }
        let is_ambiguous = nowhere.iter().any(|(_, error)| matches!(error, SourceError::Ambiguous(_)));
        if matched == 0 || is_ambiguous {
            if let Some(error) = places::most_telling(nowhere, &readable, spec) {
                return Err(error);
            }
            let found = readable.iter().map(|&(index, module)| sites_in(module, index, spec, kinds, &[]));
            let excluded: usize = found.map(|found| found.map_or(0, |found| found.sites.len())).sum();
            if excluded > 0 {
                return Err(SelectError::Excluded { spec: spec.text.clone(), excluded }.into());
            }
            if spec.location.is_usdt() {
                return Err(usdt::none_found(spec, readable.iter().map(|(_, module)| *module)).into());
            }
            if let Some(error) = places::only_inlined(&readable, spec) {
                return Err(error);
            }
            let all = readable.iter().flat_map(|(_, m)| m.functions().iter());
            let names = all.flat_map(|f| f.names().map(|n| n.plain()));
            return Err(select::no_function(spec, names).into());
        }
    }
    let sites = each_once(found);
    select::check_limit(sites.len(), limit)?;
    remarks.sort();
    remarks.dedup();
    Ok(Sites { sites, skipped, remarks })
}

/// A site of these that is left alone.
pub fn skip(images: &[Image], site: &Site, why: Why) -> Skipped {
    Skipped {
        module: site.module_name(images).to_owned(),
        function: site.name.text().to_owned(),
        source: site.name.source(),
        why,
    }
}

/// Works out the functions of all modules that patterns mean, several at once. What cannot be read is told when its turn comes.
fn read_functions(process: Option<&Process>, images: &[Image], probes: &[(Cow<'_, ProbeSpec>, Kinds)]) {
    let mut chosen = BTreeSet::new();
    for (spec, _) in probes {
        let mut found = modules(process, images, spec).unwrap_or_default();
        if spec.location.is_usdt() {
            // Most modules have none, and need not be read for it.
            found.retain(|&index| {
                images[index]
                    .module(process)
                    .is_ok_and(|module| module.usdt().is_ok_and(|all| !all.is_empty()))
            });
        }
        chosen.extend(found);
    }
    let readable: Vec<&Module> =
        chosen.into_iter().filter_map(|index| images[index].module(process).ok()).collect();
    spread::each(&readable, |module| {
        module.functions();
    });
}

/// By image and address, what several patterns mean joined.
fn each_once(mut found: Vec<Site>) -> Vec<Site> {
    found.sort_by_key(|site| (site.image, site.address));
    found.dedup_by(|next, site| {
        let same = (next.image, next.address) == (site.image, site.address);
        if same {
            site.kinds = site.kinds.or(next.kinds);
            site.asked.append(&mut next.asked);
            site.asked.sort_unstable();
            site.asked.dedup();
            if site.usdt.is_empty() && next.usdt.is_empty() {
                site.name = site.name.joined(&next.name);
            }
            usdt::join(site, next);
            // The last word counts, so that one probe of many can be told apart from the pattern that means all.
            site.mechanism = next.mechanism.or(site.mechanism);
            // What is a function, too, returns.
            site.no_return = site.no_return.take().and_then(|why| next.no_return.clone().map(|_| why));
        }
        same
    });
    // What is recorded at a USDT probe are the operands of its notes.
    for site in found.iter_mut().filter(|site| !site.usdt.is_empty()) {
        site.kinds.traced = site.kinds.traced.map(|_| 0);
    }
    found
}

/// Whether an address of a file that is mapped twice is not in this mapping but in the other. What is in none has been
/// unmapped, and is said to differ from the file.
fn is_elsewhere(
    process: Option<&Process>,
    images: &[Image],
    index: usize,
    address: u64,
) -> Result<bool, Error> {
    let here = &images[index];
    if here.holds(process, address)? {
        return Ok(false);
    }
    let same = images.iter().filter(|other| other.path == here.path);
    Ok(same.map(|other| other.holds(process, address)).any(|held| matches!(held, Ok(true))))
}

/// What of a module a specification means.
#[derive(Default)]
struct Found {
    sites: Vec<Site>,
    /// What matches and lies nowhere that can be probed, by its name, and why.
    nowhere: Vec<(SiteName, Why)>,
    /// How a place was understood.
    remarks: Vec<places::Understood>,
}

/// Why nothing can be said of a module.
enum Unfound {
    /// Its notes cannot be read.
    Notes(Why),
    /// A place in the source is not in it.
    Source(SourceError),
}

/// # Errors
/// Why nothing can be said of the module.
fn sites_in(
    module: &Module,
    image: usize,
    spec: &ProbeSpec,
    kinds: Kinds,
    exclusions: &[&Pattern],
) -> Result<Found, Unfound> {
    let mut found = Found::default();
    let functions = module.functions();
    let mut sites = match &spec.location {
        Location::Address(address) => match functions.containing(*address) {
            Some(function) => vec![site(image, function, address - function.address(), kinds)],
            None => Vec::new(),
        },
        Location::Usdt { provider, name } => {
            let names = (provider.as_ref(), name);
            return usdt::sites_in(module, image, names, kinds, exclusions).map_err(Unfound::Notes);
        }
        Location::Function { pattern, offset } => {
            let names = functions.iter().map(|f| f.names().map(|n| n.versioned()));
            let chosen = select::functions(pattern, exclusions, names, &demangled);
            let chosen = chosen.into_iter().filter_map(|index| functions.get(index));
            let exact = pattern.as_literal().is_some();
            chosen
                .filter(|f| exact || f.kind() != Kind::Part)
                .map(|function| {
                    let name = SiteName::new(as_asked(function, pattern, &demangled), *offset);
                    site_named(image, function, name, *offset, kinds)
                })
                .collect()
        }
        Location::Line(line) => {
            places::of_line(module, image, line, kinds, exclusions, &mut found).map_err(Unfound::Source)?
        }
    };
    if let Location::Function { pattern, offset: 0 } = &spec.location
        && spec.inlines
    {
        sites.extend(places::inlined(module, image, pattern, kinds, exclusions, &mut found));
    }
    Ok(Found { sites, ..found })
}

/// A symbol's name as the programmer wrote it; `None` for one that is not mangled.
fn demangled(name: &str) -> Option<String> {
    let text = demangle(select::unversioned(name));
    (text != select::unversioned(name)).then(|| text.into_owned())
}

/// The first of a function's names that `pattern` means.
fn as_asked<'m>(
    function: Function<'m>,
    pattern: &Pattern,
    demangled: &dyn Fn(&str) -> Option<String>,
) -> &'m str {
    let usual = function.name();
    if pattern.text() == "*" {
        return usual.plain();
    }
    // An instance that is asked for by name is better known by it than by what it is a part of.
    let means = |name: &trapless_symbols::Name<'m>| select::means(pattern, name.versioned(), demangled);
    std::iter::once(usual).chain(function.names()).find(means).unwrap_or(usual).plain()
}

/// The site at `offset` bytes into a function.
pub fn site(image: usize, function: Function<'_>, offset: u64, kinds: Kinds) -> Site {
    site_named(image, function, SiteName::new(function.name().plain(), offset), offset, kinds)
}

fn site_named(image: usize, function: Function<'_>, name: SiteName, offset: u64, kinds: Kinds) -> Site {
    // The probe belongs behind the TOC set-up, where calls from inside the module arrive, too (ELFv2 ABI, 3.4.1).
    let address = function.address() + offset;
    Site {
        image,
        function: function.index(),
        address,
        module: None,
        name,
        others: Vec::new(),
        usdt: Vec::new(),
        kinds,
        mechanism: None,
        no_return: None,
        unwinder: None,
        asked: Vec::new(),
    }
}

/// Why something with a function's name is no place to probe.
fn no_site(module: &Module, site: &Site, spec: &ProbeSpec) -> Option<Why> {
    let function = module.functions().get(site.function)?;
    let whole = matches!(spec.location, Location::Function { offset: 0, .. }) && site.no_return.is_none();
    match function.kind() {
        Kind::IfuncResolver if whole => Some(Why::plain(
            "ifunc_resolver",
            "an ifunc resolver: the loader calls it once, and calls go to the implementation it chose",
        )),
        _ if !function.range().contains(&site.address) => {
            Some(Why::plain("outside_function", "the offset is outside the function"))
        }
        _ => None,
    }
}
