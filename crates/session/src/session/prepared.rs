//! Sites with all that must be known of them, ready to be judged.

use super::asked::Convention;
use super::{Run, SiteNotes, arm, facts, hooks, signals, usdt};
use crate::error::Error;
use crate::files;
use crate::resolve::{Site, Sites};
use crate::survey;
use crate::target::{self, Image};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use trapless_engine::admit::{Facts, Functions, Runtime, Runtimes, entry_of};
use trapless_engine::{
    Clause, Clauses, Code, Function, Home, LivePatch, Meant, Module, Plan, Request, Role, Wanted,
};
use trapless_isa::detour::signals::RETURN_LENGTH;
use trapless_isa::operand::NotRead;
use trapless_isa::passed::Passed;
use trapless_isa::{BranchTargets, Mechanism, Operand, SignalCall};
use trapless_process::{Process, RemoteAddr};
use trapless_symbols::{Kind, Origin, Unread};

/// Sites with all that must be known of them, ready to be judged: `list`, `explain` and attaching begin here.
pub struct Prepared<'i> {
    pub(super) process: Option<&'i Process>,
    pub(super) images: &'i [Image],
    pub(super) sites: Sites,
    pub(super) facts: Facts,
    pub(super) files: BTreeMap<usize, File<'i>>,
    /// What the notes of USDT probes tell at their sites, by the sites' ids.
    pub(super) usdt: BTreeMap<u32, SiteNotes>,
    pub(super) signals: signals::Hooks,
    pub(super) home: Home,
    /// The bodies that are called, if any are.
    pub(super) run: Option<Called>,
    /// What is done at the sites to have another function called, if it is for that.
    pub(super) live_patch: Option<Arc<LivePatch>>,
    /// The id of the first site.
    pub(super) first: u32,
}

/// A script, and which of its bodies are called at the sites.
pub(super) struct Called {
    run: Arc<Run>,
    /// By which specifications mean a site, and how it gets its arguments: at its entry, and at its return.
    clauses: BTreeMap<(Vec<u32>, Convention), [Vec<Clause>; 2]>,
    /// By the ids of sites of USDT probes whose bodies ask for operands.
    operands: BTreeMap<u32, Given>,
}

/// What each of a site's bodies at the entry is given of the operands, or which of them cannot be told there.
type Given = Result<Vec<Vec<Passed>>, (u8, NotRead)>;

/// What is known of a file that has sites.
#[derive(Debug)]
pub(super) struct File<'i> {
    process: Option<&'i Process>,
    file: &'i files::File,
    module: &'i trapless_symbols::Module,
    bias: u64,
    targets: BranchTargets,
    runtimes: Runtimes,
    /// [`Module::goroutines`]
    goroutines: Option<[u64; 2]>,
    functions: Functions<'i>,
}

impl<'i> Prepared<'i> {
    /// Reads the code of every file that has a site. `follows`: calls may be followed to their return, so more must be known.
    ///
    /// # Errors
    /// A file or the process cannot be read.
    pub fn new(
        process: Option<&'i Process>,
        images: &'i [Image],
        sites: Sites,
        follows: bool,
    ) -> Result<Self, Error> {
        let tells = hooks::are_told(process, follows);
        let mut sites = if tells { hooks::with_unwinders(process, images, sites) } else { sites };
        let signals = signals::Hooks::find(process, images, &mut sites);
        let mut facts = facts::of_process(process, images, follows)?;
        facts.shows = signals.are_whole() && !signals::are_shown_already(process);
        facts.hops = facts.shows && signals.are_gos();
        facts.throws_unhooked = tells && hooks::throw_unhooked(process, images, &sites);
        let home = Home::default();
        let none = BTreeMap::new();
        let read = Self {
            process,
            images,
            sites,
            facts,
            files: BTreeMap::new(),
            usdt: none,
            signals,
            home,
            run: None,
            live_patch: None,
            first: 0,
        };
        read.read(follows)
    }

    /// The same with these sites alone: nothing is probed that would show handlers of signals the program, and nothing for unwinders.
    pub(crate) fn bare(process: &'i Process, images: &'i [Image], sites: Sites) -> Result<Self, Error> {
        let read = Self {
            process: Some(process),
            images,
            sites,
            facts: facts::of_process(Some(process), images, false)?,
            files: BTreeMap::new(),
            usdt: BTreeMap::new(),
            signals: signals::Hooks::default(),
            home: Home::default(),
            run: None,
            live_patch: None,
            first: 0,
        };
        read.read(false)
    }

    /// Reads the code of the files.
    pub(super) fn read(self, follows: bool) -> Result<Self, Error> {
        let Self { process, images, sites, first, .. } = &self;
        let (process, images) = (*process, *images);
        let mut wanted: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for site in &sites.sites {
            wanted.entry(site.image).or_default().push(site.function);
        }
        let mut files = BTreeMap::new();
        for (index, functions) in wanted {
            let image = &images[index];
            let opened = image.opened(process)?;
            let (module, bias) = (opened.module(), image.bias(process)?);
            let (targets, runtimes) = opened.surveyed(image.name());
            let targets = targets.ok_or_else(|| survey::unread(Path::new(&image.path)))?;
            files.insert(
                index,
                File {
                    process,
                    file: opened,
                    module,
                    bias,
                    targets: targets.moved_by(bias),
                    runtimes,
                    goroutines: runtimes
                        .contains(Runtime::Go)
                        .then(|| opened.goroutines())
                        .flatten()
                        .map(|list| list.map(|address| address.wrapping_add(bias))),
                    functions: match follows {
                        true => facts::File::new(opened, bias).functions(functions),
                        false => Functions::new(),
                    },
                },
            );
        }
        let mut usdt = BTreeMap::new();
        for (id, site) in (*first..).zip(&sites.sites).filter(|(_, site)| !site.usdt.is_empty()) {
            if let Some(file) = files.get(&site.image) {
                usdt.insert(id, SiteNotes::of(file.module, file.bias, &site.usdt));
            }
        }
        Ok(Self { files, usdt, ..self })
    }

    /// Says what the sites go into.
    #[must_use]
    pub(super) fn with_home(self, home: Home) -> Self {
        Self { home, ..self }
    }

    /// Says which bodies are called at the sites.
    #[must_use]
    pub fn with_run(self, run: Option<Arc<Run>>) -> Self {
        let Some(run) = run else { return self };
        let this = if run.changes_calls() { self.with_functions() } else { self };
        this.calling(run)
    }

    /// Says what is done at the sites to have another function called.
    #[must_use]
    pub(crate) fn with_live_patch(self, live_patch: Option<Arc<LivePatch>>) -> Self {
        match live_patch {
            None => self,
            live_patch => Self { live_patch, ..self.with_functions() },
        }
    }

    fn calling(self, run: Arc<Run>) -> Self {
        let mut clauses: BTreeMap<(Vec<u32>, Convention), [Vec<Clause>; 2]> = BTreeMap::new();
        for site in &self.sites.sites {
            let key = (site.asked.clone(), self.convention(site));
            clauses.entry(key).or_insert_with_key(|(asked, convention)| run.clauses(asked, *convention));
        }
        let mut operands = BTreeMap::new();
        for (id, site) in (self.first..).zip(&self.sites.sites).filter(|(_, site)| !site.usdt.is_empty()) {
            let Some(file) = self.files.get(&site.image) else { continue };
            if run.operands(&site.asked).all(|(_, wanted)| wanted.is_empty()) {
                continue;
            }
            let of = |clause| usdt::passed(file.module, file.bias, &site.usdt, clause, run.memory_operands);
            operands.insert(id, run.operands(&site.asked).map(of).collect());
        }
        Self { run: Some(Called { run, clauses, operands }), ..self }
    }

    /// With what is to be known of the sites' functions, where that is not known yet.
    fn with_functions(mut self) -> Self {
        for (index, file) in self.files.iter_mut().filter(|(_, file)| file.functions.is_empty()) {
            let sites = self.sites.sites.iter().filter(|site| site.image == *index);
            let functions = sites.map(|site| site.function);
            file.functions = facts::File::new(file.file, file.bias).functions(functions);
        }
        self
    }

    /// How the function of a site gets its arguments.
    fn convention(&self, site: &Site) -> Convention {
        let Some(file) = self.files.get(&site.image).filter(|file| file.runtimes.contains(Runtime::Go))
        else {
            return Convention::C;
        };
        let function = file.module.functions().get(site.function);
        match function.is_some_and(|function| file.arguments_in_go(function, 1).is_some()) {
            true => Convention::Go,
            false => Convention::Unknown,
        }
    }

    /// The bodies that are called at a site.
    fn clauses(&self, id: u32, site: &Site) -> Clauses<'_> {
        let Some(called) = &self.run else { return Clauses::default() };
        let convention = self.convention(site);
        match called.clauses.get(&(site.asked.clone(), convention)) {
            Some([entry, at_return]) if !entry.is_empty() || !at_return.is_empty() => {
                let argument = called.run.argument_asked(&site.asked);
                let site = called.run.numbers.of(&self.images[site.image].path, &site.name);
                let operands = match called.operands.get(&id) {
                    _ if let (Convention::Unknown, Some(argument)) = (convention, argument) => {
                        Err((argument, NotRead::OnStackOfGo))
                    }
                    // A program that does not look like Go's to who has compiled them.
                    _ if convention != Convention::C && called.run.in_go.is_none() => {
                        Err((0, NotRead::OnStackOfGo))
                    }
                    Some(Ok(operands)) => Ok(operands.as_slice()),
                    Some(Err(untold)) => Err(*untold),
                    None => Ok(&[][..]),
                };
                Clauses { entry, at_return, site, operands }
            }
            _ => Clauses::default(),
        }
    }

    /// The site with this id.
    pub fn site(&self, id: u32) -> &Site {
        &self.sites.sites[(id - self.first) as usize]
    }

    /// The engine's modules and requests. The ids of requests are in the order of their sites.
    pub fn requests(&self, wanted: impl Fn(&Site) -> Wanted) -> (Vec<Module<'_>>, Vec<Request<'_>>) {
        let mut modules = Vec::new();
        let mut place = BTreeMap::new();
        for (&index, file) in &self.files {
            let range = &self.images[index].range;
            place.insert(index, modules.len());
            modules.push(Module {
                machine: target::machine(file.module),
                start: range.start,
                end: range.end,
                targets: &file.targets,
                observed: Vec::new(),
                runtimes: file.runtimes,
                entry: file.module.entry().wrapping_add(file.bias),
                goroutines: file.goroutines,
                functions: &file.functions,
                code: file,
            });
        }
        let mut requests = Vec::new();
        for (id, site) in (self.first..).zip(&self.sites.sites) {
            let file = &self.files[&site.image];
            let notes = self.usdt.get(&id);
            let Some(function) = file.module.functions().get(site.function) else { continue };
            // Code that the file lacks is judged as code that is not there.
            let missing =
                Function { address: function.address().wrapping_add(file.bias), bytes: &[], size: 0 };
            let mut code = facts::code_of(file.module, function, file.bias).unwrap_or(missing);
            if self.signals.at(site) == Some(SignalCall::Return) {
                // What handlers return to has an unwind entry that begins ahead of it.
                code = returned_to(file.module, site.address, file.bias).unwrap_or(missing);
            } else if !function.range().contains(&site.address) {
                // Assembly whose unwind entry ends ahead of a system call goes on behind it.
                code.size = code.bytes.len();
            }
            let module = place[&site.image];
            let is_entry = site.address == function.address();
            let is_place = site.no_return.is_some() || !site.usdt.is_empty();
            let address = match is_entry {
                true => entry_of(&modules[module], &code),
                false => site.address.wrapping_add(file.bias),
            };
            let (mut wanted, clauses) = (self.signals.want(site, wanted(site)), self.clauses(id, site));
            wanted.run_entry &= !clauses.entry.is_empty();
            wanted.run_return &= !clauses.at_return.is_empty();
            let in_go = wanted.record_entry.filter(|_| is_entry);
            let in_go = in_go.and_then(|count| file.arguments_in_go(function, count.into()));
            requests.push(Request {
                id,
                role: Role::Whole,
                module,
                function: code,
                address,
                meant: if is_place { Meant::All } else { Meant::Calls },
                wanted,
                mechanism: site.mechanism,
                operands: notes.map(|notes| notes.operands.as_slice()).or(in_go),
                semaphores: notes.map_or(&[], |notes| notes.semaphores.as_slice()),
                clauses,
                live_patch: self.live_patch.as_deref().filter(|_| site.kinds.are_any()),
                unread: file.module.unread(&function.range()).map(Unread::name),
            });
        }
        (modules, requests)
    }

    /// Which of the sites can be probed, in which way, and why not the others.
    pub fn plan(&self, wanted: impl Fn(&Site) -> Wanted, allowed: &[Mechanism]) -> Plan<'_> {
        let (modules, requests) = self.requests(wanted);
        let script = self.run.as_ref().map(|called| &called.run.script);
        Plan::with_script(&self.facts, modules, &requests, allowed, self.home, script)
    }

    /// The same, less what would be refused on the way to the armed process: for want of memory, or for code that is not the
    /// file's. Changes nothing.
    ///
    /// # Errors
    /// The process cannot be read.
    pub fn offers(&self, wanted: impl Fn(&Site) -> Wanted, allowed: &[Mechanism]) -> Result<Plan<'_>, Error> {
        let plan = self.plan(wanted, allowed);
        match self.process {
            Some(process) => arm::offered(process, plan).map_err(Error::other),
            None => Ok(plan),
        }
    }

    /// What the notes of the USDT probes at a site tell, by its id.
    pub fn notes(&self, id: u32) -> Option<&SiteNotes> {
        self.usdt.get(&id)
    }

    /// What is known of the process.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The sites, in the order of the requests' ids.
    pub fn sites(&self) -> &Sites {
        &self.sites
    }
}

impl Code for File<'_> {
    fn functions(&self, range: Range<u64>) -> Vec<Function<'_>> {
        // The kernel looks where a thread stands in these sections: nothing of them may be moved.
        if self.module.section_names().any(|name| name == "__rseq_cs") {
            return Vec::new();
        }
        let of_file = range.start.wrapping_sub(self.bias)..range.end.wrapping_sub(self.bias);
        let near = self.module.functions().overlapping(of_file);
        let known = near.filter(|function| self.module.unread(&function.range()).is_none());
        let code = known.filter_map(|function| facts::code_of(self.module, function, self.bias));
        code.filter(|function| self.is_there(function, &range)).collect()
    }

    fn is_compiled_by_go(&self, address: u64) -> bool {
        self.module.is_compiled_by_go(address.wrapping_sub(self.bias))
    }

    fn may_hold_vectors(&self, address: u64, inside: bool) -> bool {
        // Where it has none of their instructions, a caller that has something there has put it away, since its callee need not keep it. A function
        // that is given some, only to hand it on, says so by its symbol; a part of another one is entered in the middle of that.
        let function = self.module.functions().at(address.wrapping_sub(self.bias));
        let is_plain = function.is_some_and(|function| {
            function.origin() != Origin::UnwindTable
                && function.kind() != Kind::Part
                && !function.has_variant_convention()
        });
        (inside || !is_plain) && self.file.has_scalable_vectors()
    }
}

impl File<'_> {
    /// Whether nobody has changed the part of a function that lies in `range`.
    fn is_there(&self, function: &Function<'_>, range: &Range<u64>) -> bool {
        let Some(process) = self.process else { return true };
        let offset =
            |address: u64| (address.saturating_sub(function.address) as usize).min(function.bytes.len());
        let part = &function.bytes[offset(range.start)..offset(range.end)];
        let from = function.address.max(range.start);
        let mut found = vec![0; part.len()];
        process.read_exact(RemoteAddr(from), &mut found).is_ok() && found == part
    }

    /// Where a function finds so many arguments, if Go's compiler made it and it is not called from assembly.
    fn arguments_in_go(
        &self,
        function: trapless_symbols::Function<'_>,
        count: usize,
    ) -> Option<&'static [Operand]> {
        let is_called_from_assembly = function.names().any(|name| name.plain().ends_with(".abi0"));
        let is_gos = self.module.is_compiled_by_go(function.address()) && !is_called_from_assembly;
        let all = target::machine(self.module).isa().facts().arguments_in_go;
        (is_gos && !all.is_empty()).then(|| &all[..count.min(all.len())])
    }
}

/// The code that handlers return to, as a function of its own.
fn returned_to(module: &trapless_symbols::Module, address: u64, bias: u64) -> Option<Function<'_>> {
    let bytes = module.code(address..address + RETURN_LENGTH as u64)?;
    Some(Function { address: address.wrapping_add(bias), bytes, size: RETURN_LENGTH })
}
