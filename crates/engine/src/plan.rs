//! From requests to sites: verdicts, and a place in the blocks for everything that is collected.
//!
//! Planning looks at code and facts only. It touches no process.

use crate::admit::{Best, Facts, Runtime, entry_of, original, require_unwinders, stack_of};
use crate::exits::keep_whole;
use crate::judge::Judge;
use crate::rooms::{Rooms, overlaps};
use crate::{
    Clause, Clauses, Home, LivePatch, Load, Meant, Module, Pointer, Refusal, Replacement, Request, Role,
    Script, Unwinder, Wanted,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use trapless_isa::detour::{BodyStacks, RECORD_NO_RESULT};
use trapless_isa::{
    Displaced, EntryStep, Followed, Hook, Mechanism, Noted, Payload, ReturnStep, Sharing, Site, Stack, Steps,
    Way,
};
use trapless_wire::{Geometry, Places, WriteKind};

/// Log2 of the number of records a thread's ring holds.
const RING_BITS: u32 = 14;

/// The mechanisms that do not trap.
pub(crate) const TRAPLESS: [Mechanism; 2] = [Mechanism::Jump, Mechanism::Short];

/// A site that will be armed.
#[derive(Clone, Debug)]
pub struct PlannedSite<'m> {
    /// What was asked for.
    pub request: Request<'m>,
    /// How the probe gets control.
    pub mechanism: Mechanism,
    /// Why it does not by a jump, where it does not.
    pub no_jump: Option<Refusal>,
    /// The instructions that a jump replaces, or the one that stands at the trap.
    pub displaced: Displaced,
    /// Where the jump to the detour stands, if a short one leads to it: padding, or instructions that are moved away.
    pub room: Option<Stretch<'m>>,
    /// Where its function jumps back to the site, which is an entry: jumps that are led past the probe.
    pub turns: Vec<Stretch<'m>>,
    /// What its detour may use of the stack.
    pub stack: Stack,
    /// What is collected, and where it is in each block.
    pub places: Places,
}

/// Code that a site changes beside what it displaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch<'m> {
    /// Where it is, and how many of its instructions are moved away.
    pub displaced: Displaced,
    /// What stands there, as the file has it.
    pub original: &'m [u8],
}

/// All sites of one session.
#[derive(Clone, Debug)]
pub struct Plan<'m> {
    /// The modules they are in.
    pub modules: Vec<Module<'m>>,
    /// Sites by address.
    pub sites: Vec<PlannedSite<'m>>,
    /// Requests that were left out, by id, and why.
    pub skipped: Vec<(u32, Refusal)>,
    /// Sizes of the blocks.
    pub geometry: Geometry,
    /// What was known of the process. Where not all probes can be had that handlers take, they are not shown the program.
    pub facts: Facts,
    /// What the sites go into.
    pub home: Home,
    /// The script whose bodies they call.
    pub script: Option<&'m Script>,
}

impl<'m> PlannedSite<'m> {
    /// Whether its detour may have neither stack nor registers, and so count in memory that is in its reach.
    pub(crate) fn may_count_nearby(&self) -> bool {
        matches!(self.stack, Stack::None | Stack::NoneInGo) && !self.traps()
    }

    /// The site as `isa` sees it.
    pub fn site<'a>(&'a self, modules: &'a [Module<'m>]) -> Site<'a> {
        site_of(&self.request, modules)
    }

    /// Whether the probe gets control by a trap.
    pub fn traps(&self) -> bool {
        self.mechanism.traps()
    }

    /// The displaced instructions, as the file has them.
    pub fn original(&self) -> &'m [u8] {
        original(&self.request.function, self.displaced)
    }

    /// The pointer that leads to the original of a function that is replaced, if there is one, and what it leads to before.
    pub(crate) fn pointer(&self) -> Option<(Pointer, u64)> {
        match self.request.live_patch {
            Some(LivePatch::Replace(Replacement { original: Some(pointer), .. })) => {
                Some((*pointer, self.request.function.address))
            }
            _ => None,
        }
    }

    /// What it changes beside what is displaced: its room, then its turns.
    fn beside(&self) -> impl Iterator<Item = (WriteKind, Stretch<'m>)> {
        let room = self.room.iter().map(|room| (WriteKind::Room, *room));
        room.chain(self.turns.iter().map(|turn| (WriteKind::Turn, *turn)))
    }

    /// Those of them of which instructions are moved away.
    pub(crate) fn moved(&self) -> impl Iterator<Item = (WriteKind, Stretch<'m>)> {
        self.beside().filter(|(_, stretch)| stretch.displaced.instructions > 0)
    }

    /// All that is written over, as the file has it: what is displaced, its room, and its turns.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (Displaced, &'m [u8])> {
        let beside = self.beside().map(|(_, stretch)| (stretch.displaced, stretch.original));
        std::iter::once((self.displaced, self.original())).chain(beside)
    }

    /// The displaced instruction, as the file has it, and those that are emulated together with it in one trap. `next` is the address of
    /// the next site.
    pub fn together(&self, modules: &[Module<'m>], next: Option<u64>) -> &'m [u8] {
        let alone = self.original();
        if self.mechanism != Mechanism::Emulate {
            return alone;
        }
        let isa = modules[self.request.module].machine.isa();
        let together = isa.together(&self.site(modules), self.displaced, next);
        let function = &self.request.function;
        let code =
            function.bytes.get((self.displaced.start - function.address) as usize..).unwrap_or_default();
        code.get(..usize::from(together.length)).unwrap_or(alone)
    }

    /// Which of some clauses the detour does itself, if any does nothing but count: by its index, and in which word of the block. At a trap all
    /// are an interpreter's. Of what is timed as well, lists of steps have no room for it.
    pub fn counting(&self, clauses: &[Clause]) -> Option<(usize, u32)> {
        if self.traps() || self.places.latency.is_some() { None } else { Clauses::counting(clauses) }
    }

    /// Whether a thread may be interrupted in a copy of an instruction that is probed.
    pub(crate) fn is_copied(&self) -> bool {
        let is_copied = matches!(self.mechanism, Mechanism::Jump | Mechanism::Short | Mechanism::Boost);
        is_copied && !self.request.wanted.is_hook()
    }

    /// What the probe does.
    pub fn payload(&self) -> Payload {
        if let Some(LivePatch::Replace(replacement)) = self.request.live_patch {
            let at = trapless_isa::Function::at;
            let caller = replacement.caller.map(|caller| Hook::CalledBy(at(caller)));
            let hooks = Steps::some_of([Some(Hook::Replace(at(replacement.with))), caller]);
            return Payload { hooks, ..Payload::default() };
        }
        let Clauses { entry, at_return, .. } = self.request.clauses;
        let Wanted { run_entry, run_return, .. } = self.request.wanted;
        let run = |clauses: &[Clause], wanted: bool| {
            let counting = if wanted { self.counting(clauses) } else { None };
            let (index, counter) = counting.unzip();
            (counter, wanted.then(|| Clauses::takes(clauses, index)).flatten())
        };
        let (counter, takes) = run(entry, run_entry);
        let (counter_at_return, takes_at_return) = run(at_return, run_return);
        let Wanted { record_entry, record_return, unwinder, sharing, signal, gate, .. } = self.request.wanted;
        let id = 2 * self.request.id;
        let noted = |by| Noted { probe: self.request.id, by };
        let (way, no_result) = match self.request.role {
            Role::Whole => (Way::Paired, 0),
            Role::Noted { by } => (Way::Noted(noted(by)), 0),
            Role::Exit { by, result } => (Way::Left(noted(by)), if result { 0 } else { RECORD_NO_RESULT }),
            Role::Through { by, exit, result } => {
                let exit = exit.wrapping_sub(self.displaced.start) as u8;
                let way = Way::Through { noted: noted(by), exit };
                (way, if result { 0 } else { RECORD_NO_RESULT })
            }
        };
        let unwinders = match unwinder {
            Some(Unwinder::Lookup(lookup)) => Some(Hook::Translate(lookup)),
            Some(Unwinder::Landing(code_address)) => Some(Hook::Land { code_address }),
            Some(Unwinder::Entry) | None => None,
        };
        Payload {
            hooks: Steps::some_of([
                gate.then_some(Hook::Gate),
                sharing.map(Hook::Share),
                signal.map(Hook::Signal),
                unwinders,
            ]),
            entry: Steps::some_of([
                self.places.entries.map(|counter| EntryStep::Count(counter.offset())),
                record_entry.map(|arguments| match self.request.operands {
                    Some(_) => EntryStep::Fetch { id },
                    None => EntryStep::Record { id, arguments },
                }),
                counter.map(EntryStep::Count),
                takes.map(EntryStep::Run),
            ]),
            followed: self.places.lost.map(|lost| Followed {
                lost: lost.offset(),
                steps: Steps::some_of([
                    self.places.returns.map(|counter| ReturnStep::Count(counter.offset())),
                    record_return.then_some(ReturnStep::Record { id: (id + 1) | no_result }),
                    match self.places.latency {
                        Some(histogram) => Some(ReturnStep::Time(histogram.offset())),
                        None => counter_at_return.map(ReturnStep::Count),
                    },
                    takes_at_return.map(ReturnStep::Run),
                ]),
                way,
            }),
        }
    }
}

pub(crate) fn site_of<'a>(request: &Request<'a>, modules: &'a [Module<'_>]) -> Site<'a> {
    Site {
        address: request.address,
        function: request.function.address,
        code: request.function.code(),
        padding: request.function.padding(),
        targets: modules[request.module].targets,
        observed: &modules[request.module].observed,
    }
}

/// Notes in modules where some requests tell of registers inside of functions. At calls nothing is overwritten ahead of them.
fn observe(modules: &mut [Module<'_>], requests: &[Request<'_>]) {
    modules.iter_mut().for_each(|module| module.observed.clear());
    for Request { role, wanted, meant, address, function, module, .. } in requests {
        let module = &mut modules[*module];
        let tells = *role == Role::Whole && (wanted.record_entry.is_some() || wanted.run_entry);
        if tells && (*meant == Meant::All || *address != entry_of(module, function)) {
            module.observed.push(*address);
        }
    }
    for module in modules {
        module.observed.sort_unstable();
        module.observed.dedup();
    }
}

impl<'m> Plan<'m> {
    /// Asks for a verdict on every request and gives those that pass a place in the blocks.
    ///
    /// `allowed`: the mechanisms that may be used where a request does not name one; each site gets the best of them that is
    /// possible there. `home`: what the sites go into.
    pub fn new(
        facts: &Facts,
        modules: Vec<Module<'m>>,
        requests: &[Request<'m>],
        allowed: &[Mechanism],
        home: Home,
    ) -> Self {
        Self::with_script(facts, modules, requests, allowed, home, None)
    }

    /// The same where the sites call bodies of a `script`.
    pub fn with_script(
        facts: &Facts,
        mut modules: Vec<Module<'m>>,
        requests: &[Request<'m>],
        allowed: &[Mechanism],
        home: Home,
        script: Option<&'m Script>,
    ) -> Self {
        let all = requests;
        let mut skipped = Vec::new();
        let mut sites = Vec::with_capacity(requests.len());
        let mut geometry = home.geometry();
        let mut is_known = true;
        if requests.iter().any(|request| matches!(request.live_patch, Some(LivePatch::Load(_)))) {
            // Nothing else is there ahead of it.
            let _ = geometry.script(Load::MEMORY, 0);
        }
        if let Some(script) = script.filter(|_| !home.is_armed()) {
            is_known = geometry.script(script.shared_size, script.block_size).is_some();
            if has_go(facts, &modules) {
                geometry.run_on(BodyStacks::Own);
            }
        }
        if !geometry.has_ring()
            && !home.is_armed()
            && (requests.iter().any(|r| r.wanted.records()) || home.spare().wanted.records())
        {
            // Before the counters, so that a block that is too large shows in their refusal.
            let _ = geometry.ring(RING_BITS);
        }
        let without = |request: &Request<'m>| {
            let is_wanted = request.wanted.runs();
            let untold = request.clauses.operands.err().filter(|_| request.wanted.run_entry);
            let untold = untold.map(|(argument, why)| Refusal::Operand(argument, why));
            let is_late = is_wanted
                && geometry.body_stacks() == BodyStacks::Programs
                && modules[request.module].runtimes.contains(Runtime::Go);
            let late = is_late.then_some(Refusal::NoBodyStacks);
            untold.or(late).or((is_wanted && (script.is_none() || !is_known)).then_some(Refusal::NoCounters))
        };
        skipped.extend(requests.iter().filter_map(|r| Some((r.id, without(r)?))));
        let requests: Cow<'_, [Request<'m>]> = match requests.iter().any(|r| without(r).is_some()) {
            true => requests.iter().filter(|r| without(r).is_none()).copied().collect(),
            false => requests.into(),
        };
        let requests = &requests[..];
        observe(&mut modules, requests);
        let judge = Judge { facts, modules: &modules, allowed, script };
        let requests = judge.with_ways(requests, &mut skipped);
        let mut verdicts = judge.all(&requests);
        keep_refusals_whole(&requests, &mut verdicts);
        let overlaps = overlaps(&requests, &verdicts);
        let mut rooms = Rooms::new(&verdicts, &overlaps);
        let settled = requests.iter().zip(verdicts).zip(overlaps);
        let settled = settled.map(|((request, verdict), overlaps)| match overlaps {
            Some(other) => verdict.and(Err(Refusal::Overlaps(other))),
            None if request.role != Role::Whole => {
                rooms.settle(facts, &modules, request, verdict?, &TRAPLESS)
            }
            None if request.wanted.runs() => {
                let ways = judge.ways_of_bodies(request)?;
                rooms.settle(facts, &modules, request, verdict?, &ways.mechanisms)
            }
            None => rooms.settle(facts, &modules, request, verdict?, allowed),
        });
        let mut settled: Vec<Result<(Best<'m>, Option<Stretch<'m>>), Refusal>> = settled.collect();
        keep_refusals_whole(&requests, &mut settled);
        for (request, settled) in requests.iter().zip(settled) {
            // Nobody asked for a hook, so nobody waits for an answer; and an exit's is its entry's.
            let mut refuse = |refusal| {
                if !request.wanted.is_hook() && !request.is_exit() {
                    skipped.push((request.id, refusal));
                }
            };
            match settled {
                Ok((Best { mechanism, displaced, turns, no_jump }, room)) => {
                    let Wanted { record_entry, record_return, .. } = request.wanted;
                    let places = Places {
                        recorded_entries: record_entry,
                        recorded_returns: record_return,
                        ..Places::default()
                    };
                    let stack = stack_of(&modules[request.module], request);
                    let request = *request;
                    sites.push(PlannedSite {
                        request,
                        mechanism,
                        no_jump,
                        displaced,
                        room,
                        turns,
                        stack,
                        places,
                    });
                }
                Err(refusal) => refuse(refusal),
            }
        }
        // What is noted ahead of a call is looked at behind it.
        let is_looked_at = sites.iter().any(|site| site.request.wanted.sharing == Some(Sharing::Clone3));
        sites.retain_mut(|site| {
            let wanted = &mut site.request.wanted;
            let in_vain = !is_looked_at && wanted.sharing == Some(Sharing::BeforeClone3);
            let is_hook = wanted.is_hook();
            if in_vain {
                wanted.sharing = None;
            }
            !(in_vain && is_hook)
        });
        sites.sort_by_key(|site| site.displaced.start);
        skipped.extend(place_numbers(&mut geometry, &mut sites));
        geometry.keep_free(home.spare().bytes());
        let mut plan = Self { modules, sites, skipped, geometry, facts: *facts, home, script };
        require_unwinders(facts, &mut plan, &requests);
        match facts.shows && !home.is_armed() && !plan.has_signals(all) {
            // What was allowed for them is not, then.
            true => {
                let (facts, all) = (facts.without_stubs(), without_signals(all));
                Self::with_script(&facts, plan.modules, &all, allowed, home, script)
            }
            false => plan,
        }
    }

    /// Whether all probes are planned without which handlers of signals could not be shown the program.
    fn has_signals(&self, requests: &[Request<'_>]) -> bool {
        let wanted = requests.iter().filter(|request| request.wanted.signal.is_some()).count();
        wanted > 0 && self.signals().count() == wanted
    }

    /// The sites that serve the stubs of signal handlers.
    pub(crate) fn signals(&self) -> impl Iterator<Item = &PlannedSite<'m>> {
        self.sites.iter().filter(|site| site.request.wanted.signal.is_some())
    }

    /// Whether a site of Go's leads from room to its detour.
    pub(crate) fn hops_in_go(&self, site: &PlannedSite<'_>) -> bool {
        site.room.is_some() && self.modules[site.request.module].runtimes.contains(Runtime::Go)
    }

    /// Where Go's code lies that leads from room to a detour: its address and its size.
    pub(crate) fn hops(&self) -> (u64, u64) {
        let hops = self.sites.iter().filter(|site| self.hops_in_go(site));
        let changed = hops.flat_map(|site| site.changed());
        let ends = changed.map(|(displaced, _)| (displaced.start, displaced.end()));
        let all = ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
        all.map_or((0, 0), |(start, end)| (start, end - start))
    }

    /// The sites that numbers are told of. Those of an exit are its entry's.
    pub fn told(&self) -> impl Iterator<Item = &PlannedSite<'m>> {
        self.sites.iter().filter(|site| !site.request.is_exit())
    }

    /// The exits to which the calls of a request are followed; none, where they are paired, or not followed.
    pub fn exits(&self, id: u32) -> impl Iterator<Item = &PlannedSite<'m>> {
        self.sites.iter().filter(move |site| site.request.id == id && site.request.is_exit())
    }

    /// The answer to every request, by its id. A hook is none: nobody asked for it.
    pub fn answers(&self) -> BTreeMap<u32, Result<&PlannedSite<'m>, &Refusal>> {
        let planned = self.told().filter(|site| !site.request.wanted.is_hook());
        let planned = planned.map(|site| (site.request.id, Ok(site)));
        planned.chain(self.skipped.iter().map(|(id, refusal)| (*id, Err(refusal)))).collect()
    }

    /// Whether unwinders go astray in copies if they are not told ([`trapless_isa::Facts::walks_by_chain`]).
    pub(crate) fn walks_by_chain(&self) -> bool {
        self.modules.iter().any(|module| module.machine.isa().facts().walks_by_chain)
    }

    /// Whether any site needs a tracer that stays.
    pub fn traps(&self) -> bool {
        self.sites.iter().any(PlannedSite::traps)
    }

    /// Whether any call is followed to its return by its detour.
    pub fn follows_by_jump(&self) -> bool {
        self.sites.iter().any(|s| !s.traps() && s.request.wanted.follows())
    }

    /// Whether return addresses are taken off the stack of any call.
    pub fn pairs(&self) -> bool {
        self.sites.iter().any(|s| s.request.pairs())
    }

    /// Leaves out the sites for which `refuse` has a reason, and with an exit or a noted entry all that belong together.
    pub(crate) fn refuse(&mut self, refuse: impl FnMut(&PlannedSite<'m>) -> Option<Refusal>) {
        let mut refusals: Vec<Option<Refusal>> = self.sites.iter().map(refuse).collect();
        keep_whole(&mut refusals, |index| &self.sites[index].request, Clone::clone, Some);
        let mut refusals = refusals.into_iter();
        let skipped = &mut self.skipped;
        self.sites.retain(|site| match refusals.next().flatten() {
            Some(refusal) => {
                skipped.extend((!site.request.is_exit()).then_some((site.request.id, refusal)));
                false
            }
            None => true,
        });
    }
}

/// Gives every site its places in the blocks, and takes out those for which there is no room.
///
/// What is written together lies together, since a block takes memory by the page: first the counters of hits, a page for
/// some hundreds of functions, then those of lost calls, which are hardly ever written, then the histograms.
fn place_numbers(geometry: &mut Geometry, sites: &mut Vec<PlannedSite<'_>>) -> Vec<(u32, Refusal)> {
    let mut refused = Vec::new();
    let rounds = [take_hits, take_lost, take_histogram];
    for take in rounds {
        sites.retain_mut(|site| {
            if site.request.is_exit() {
                return true;
            }
            let room = take(&mut site.places, geometry, site.request.wanted);
            if room.is_none() {
                refused.push((site.request.id, Refusal::NoCounters));
            }
            room.is_some()
        });
    }
    // What is counted at an exit is counted where the entry's is.
    let noted = sites.iter().filter(|site| !site.request.is_exit());
    let noted: BTreeMap<u32, Places> = noted.map(|site| (site.request.id, site.places)).collect();
    sites.retain_mut(|site| {
        if !site.request.is_exit() {
            return true;
        }
        let Some(of_entry) = noted.get(&site.request.id) else { return false };
        site.places = Places { entries: None, recorded_entries: None, ..*of_entry };
        true
    });
    refused
}

// Each gives up when the block becomes too large.

fn take_hits(places: &mut Places, geometry: &mut Geometry, wanted: Wanted) -> Option<()> {
    if wanted.entries {
        places.entries = Some(geometry.counter()?);
    }
    if wanted.follows() {
        places.returns = Some(geometry.counter()?);
    }
    Some(())
}

fn take_lost(places: &mut Places, geometry: &mut Geometry, wanted: Wanted) -> Option<()> {
    if wanted.follows() {
        places.lost = Some(geometry.counter()?);
    }
    Some(())
}

fn take_histogram(places: &mut Places, geometry: &mut Geometry, wanted: Wanted) -> Option<()> {
    if wanted.latency {
        places.latency = Some(geometry.latency()?);
    }
    Some(())
}

/// The requests less what was for the stubs of signal handlers.
fn without_signals<'m>(requests: &[Request<'m>]) -> Vec<Request<'m>> {
    let without = |request: &Request<'m>| {
        let wanted = Wanted { signal: None, ..request.wanted };
        let is_left = request.wanted.signal.is_none() || wanted != Wanted::default();
        is_left.then_some(Request { wanted, ..*request })
    };
    requests.iter().filter_map(without).collect()
}

/// Whether there are goroutines in the process, on whose stacks a body may find no room.
fn has_go(facts: &Facts, modules: &[Module<'_>]) -> bool {
    let in_modules = modules.iter().any(|module| module.runtimes.contains(Runtime::Go));
    in_modules || facts.runtimes.contains(Runtime::Go)
}

/// Refuses the entry and all exits of a function of which one is refused.
fn keep_refusals_whole<T>(requests: &[Request<'_>], answers: &mut [Result<T, Refusal>]) {
    for (request, answer) in requests.iter().zip(&mut *answers) {
        if let (Err(refusal), true) = (&mut *answer, request.is_exit())
            && !matches!(refusal, Refusal::Exit(..))
        {
            *refusal = Refusal::Exit(request.address, Box::new(refusal.clone()));
        }
    }
    keep_whole(answers, |index| &requests[index], |answer| answer.as_ref().err().cloned(), Err);
}
