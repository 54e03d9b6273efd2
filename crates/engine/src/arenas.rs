//! The arenas of a blueprint: measured, placed, written.
//!
//! How long a detour is hardly depends on where exactly it stands. So each is *measured* close to where it will be: by the template of
//! its kind, or by writing it. Then every arena gets a *place*, as large as it has to be, and every piece its own in it. Last, all
//! pieces are *written*, by all processors, since none waits for another. One that comes out longer than it was measured, because
//! something is farther away than it was, is refused.

mod written;

use crate::frames::{self, Rows};
use crate::{
    AT_RETURN, LivePatch, Plan, PlannedSite, Refusal, Stretch, space::Taken, spread, trap::TrapSite,
};
use std::{collections::BTreeMap, ops::Range, sync::Arc};
use trapless_isa::body::Runs;
use trapless_isa::detour::signals::SIGNAL_ARENA;
use trapless_isa::{
    DetourRequest, Facts, Isa, Kinds, Layout, Mechanism, Past, Runtime, Sketch, Spare, Template, frames::Row,
};
use trapless_wire::{PAGE, WriteKind};

/// Detours start at multiples of this: whole cache lines make the jump's target cheap to fetch.
const ALIGNMENT: u64 = 32;
/// Slots start at multiples of this, so that a far jump's target is read whole.
const SLOT_ALIGNMENT: u64 = 8;
/// Instructions that are moved beside the displaced ones start at multiples of this.
const MOVED_ALIGNMENT: u64 = 16;
/// The routine that loads a library starts at a multiple of this.
const LOADER_ALIGNMENT: usize = 16;
/// What is so far away has its longest branches.
const FAR: u64 = PAGE;
/// Where arenas are measured, so much is free: more than the routines take, and what is far from them and from the module.
const MEASURED_IN: u64 = 16 * PAGE;
/// So many pieces of an arena are written one after the other.
const SHARE: usize = 256;

/// The arena of the stubs of signal handlers, with what is told of its instructions.
pub(crate) const STUBS: u64 = SIGNAL_ARENA + PAGE;

/// What was drawn of a site.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Address of its detour or slot.
    pub address: u64,
    /// Length of that, and of what follows it.
    pub length: usize,
    /// What stands behind it of [`PlannedSite::moved`], in that order.
    pub moved: Vec<MovedPiece>,
    /// Length of the copy of the displaced instruction, of a slot.
    pub copy: u8,
    /// Address that a followed call returns to, or 0.
    pub return_point: u64,
    /// Where such a call has it ([`trapless_wire::JournalSite::kept`]).
    pub kept: i16,
    /// How its function signs it ([`trapless_wire::JournalSite::signs`]).
    pub signs: u16,
    /// Where calls of the original arrive, of a function that is replaced.
    pub original: Option<u64>,
    /// The places of its displaced instructions: original address, address of the copy.
    pub places: Vec<(u64, u64)>,
    /// What is served, of a site that traps.
    pub trap: Option<Box<TrapSite>>,
    /// What its instructions stand for.
    rows: Arc<Vec<Row>>,
}

/// Instructions that are moved beside the displaced ones.
#[derive(Debug)]
pub(crate) struct MovedPiece {
    /// Where their copy stands.
    pub address: u64,
    /// What its instructions stand for.
    rows: Arc<Vec<Row>>,
}

impl Piece {
    /// Address of the copy of the instruction at `original`.
    pub fn copy_of(&self, original: u64) -> Option<u64> {
        self.places.iter().find(|place| place.0 == original).map(|place| place.1)
    }
}

/// Everything that will stand in arenas.
#[derive(Debug)]
pub(crate) struct Drawn {
    /// Address and code of each arena.
    pub arenas: Vec<(u64, Vec<u8>)>,
    /// One for each site of the plan, in order.
    pub pieces: Vec<Result<Piece, Refusal>>,
}

/// Where a plan's script has its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptPlace {
    /// The arena of its code.
    pub program: Option<u64>,
    /// The memory that all threads share.
    pub shared: u64,
}

/// What all steps look at.
struct Drawing<'p, 'm> {
    plan: &'p Plan<'m>,
    layout: &'p Layout,
    /// Whether anybody asks what instructions stand for.
    tells: bool,
    /// How many arenas there may be.
    most: usize,
    script: ScriptPlace,
    templates: Vec<Option<Template>>,
    /// Where other instructions stand than the program's, ascending.
    changed: Vec<u64>,
    rows: Rows,
}

/// An arena of a module.
struct Arena {
    address: u64,
    /// How many bytes it may take.
    room: u64,
    /// Of an arena of slots it has no routines.
    runtime: Runtime,
    facts: &'static Facts,
    /// Offset, and the most it may take, of each piece, with the index of its site.
    pieces: Vec<(Range<u64>, usize)>,
}

/// How long a piece is, and the number of its template.
#[derive(Clone, Copy)]
struct Measured {
    length: u64,
    template: Option<usize>,
}

/// Where sites, their rooms and turns begin: what is emulated together ends there at the latest.
fn changed(plan: &Plan<'_>) -> Vec<u64> {
    if !plan.traps() {
        return Vec::new();
    }
    let all = plan.sites.iter().flat_map(PlannedSite::changed);
    let mut all: Vec<u64> = all.map(|(changed, _)| changed.start).collect();
    all.sort_unstable();
    all
}

/// Draws the detours and slots of all sites, in at most so many arenas.
pub(crate) fn draw(
    plan: &Plan<'_>,
    layout: &Layout,
    taken: &mut Taken<'_>,
    tells: bool,
    most: usize,
    script: ScriptPlace,
) -> Drawn {
    let (templates, rows) = (Vec::new(), Rows::default());
    let mut drawing = Drawing { plan, layout, tells, most, script, templates, changed: changed(plan), rows };
    let mut arenas = drawing.begin(taken);
    let measured = drawing.measure(&arenas);
    drawing.place(&mut arenas, &measured, taken);
    drawing.write(&arenas, &measured)
}

impl<'m> Drawing<'_, 'm> {
    /// An arena for each module that has sites, somewhere close, or why there is none. Those beyond the most that a session can have
    /// are missing.
    fn begin(&self, taken: &Taken<'_>) -> BTreeMap<usize, Result<Arena, Refusal>> {
        let mut jumps: BTreeMap<usize, bool> = BTreeMap::new();
        for site in &self.plan.sites {
            *jumps.entry(site.request.module).or_default() |= !site.traps();
        }
        let arena = |index: usize, jumps: bool| {
            let module = &self.plan.modules[index];
            let isa = module.machine.isa();
            let facts = isa.facts();
            let near = |size| taken.look_near(module.start..module.end, facts.reach, size);
            let address = near(MEASURED_IN).or_else(|| near(PAGE)).ok_or(Refusal::NoGap)?;
            let runtime = if jumps { self.runtime(isa, address)? } else { Runtime::default() };
            Ok(Arena { address, room: 0, runtime, facts, pieces: Vec::new() })
        };
        // One is left for the stubs of signal handlers, and one for a script's code.
        let left = 1 + usize::from(self.script.program.is_some());
        jumps
            .into_iter()
            .take(self.most.saturating_sub(left))
            .map(|(index, jumps)| (index, arena(index, jumps)))
            .collect()
    }

    /// The routines of an arena at `address`.
    fn runtime(&self, isa: &dyn Isa, address: u64) -> Result<Runtime, Refusal> {
        Ok(isa.runtime(address + lead(isa.facts()), self.layout)?)
    }

    fn isa(&self, site: &PlannedSite<'m>) -> &'static dyn Isa {
        self.plan.modules[site.request.module].machine.isa()
    }

    /// Gives `work` the request for the detour of a site at `address`.
    fn with_request<R>(
        &self,
        site: &PlannedSite<'m>,
        address: u64,
        runtime: &Runtime,
        work: impl FnOnce(&DetourRequest<'_>) -> R,
    ) -> R {
        let clauses = &site.request.clauses;
        let operands = clauses.operands.unwrap_or_default();
        let called = self.plan.script.zip(self.script.program);
        // An entry needs to know how much of the stack its exits ask for.
        let [entry, at_return] = match called {
            Some((script, address)) => {
                let [entry, at_return] =
                    [clauses.entry, clauses.at_return].map(|all| (all, site.counting(all).map(|one| one.0)));
                [
                    script.runs(entry, address, clauses.site, operands),
                    script.runs(at_return, address, clauses.site | AT_RETURN, &[]),
                ]
            }
            None => [const { Vec::new() }; 2],
        };
        work(&DetourRequest {
            runs: Runs { entry: &entry, at_return: &at_return },
            address,
            displaced: site.displaced,
            original: site.original(),
            site: &site.site(&self.plan.modules),
            payload: site.payload(),
            stack: site.stack,
            layout: self.layout,
            runtime,
            operands: site.request.operands.unwrap_or_default(),
            tells: self.tells,
        })
    }

    /// The routine of a site at which a library is loaded, for the address `at`.
    fn loader(&self, site: &PlannedSite<'m>, at: u64) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(LivePatch::Load(load)) = site.request.live_patch else { return Ok(None) };
        let loader = load.loader(site.displaced.start, self.script.shared);
        Ok(Some(self.isa(site).loader(&loader, at)?))
    }

    /// The template of a kind, if there is one.
    fn template(&self, number: Option<usize>) -> Option<&Template> {
        self.templates[number?].as_ref()
    }

    /// Learns templates, and finds out how long all detours and slots are.
    fn measure(
        &mut self,
        arenas: &BTreeMap<usize, Result<Arena, Refusal>>,
    ) -> Vec<Result<Measured, Refusal>> {
        let sites = &self.plan.sites;
        let arena = |site: &PlannedSite<'m>| match arenas.get(&site.request.module) {
            Some(Ok(arena)) => Ok(arena),
            Some(Err(refusal)) => Err(refusal.clone()),
            None => Err(Refusal::TooManyModules),
        };
        // All detours of a module stand at one address here, aligned as they will be.
        let at = |arena: &Arena| (arena.address + arena.end()).next_multiple_of(ALIGNMENT) + FAR;
        let sketches = spread::map(sites, |site| {
            let arena = arena(site).ok().filter(|_| !site.traps())?;
            let machine = self.plan.modules[site.request.module].machine;
            let begins = site.displaced.start.max(site.request.address);
            let spare = Spare::at(machine, &site.site(&self.plan.modules), begins, site.stack);
            self.with_request(site, at(arena), &arena.runtime, |request| Sketch::of(request, spare))
        });

        let mut kinds = Kinds::default();
        let mut examples: Vec<(usize, Option<usize>)> = Vec::new();
        let numbers: Vec<Option<usize>> = sites
            .iter()
            .zip(&sketches)
            .enumerate()
            .map(|(index, (site, sketch))| {
                let number = kinds.number((*sketch)?, &site.payload());
                match examples.get_mut(number) {
                    Some((_, second)) => *second = second.or(Some(index)),
                    None => examples.push((index, None)),
                }
                Some(number)
            })
            .collect();
        self.templates = spread::each(&examples, |&(first, second)| {
            let (first, second) = (&sites[first], &sites[second?]);
            let (one, other) = (arena(first).ok()?, arena(second).ok()?);
            self.with_request(first, at(one), &one.runtime, |first| {
                self.with_request(second, at(other), &other.runtime, |second| Template::learn(first, second))
            })
        });

        let numbered: Vec<(usize, Option<usize>)> = numbers.into_iter().enumerate().collect();
        spread::map(&numbered, |&(index, number)| {
            let site = &sites[index];
            let arena = arena(site)?;
            let isa = self.isa(site);
            let mut moved = 0;
            for (kind, Stretch { displaced, original }) in site.moved() {
                let past = past(site, kind, at(arena));
                let code = isa.moved(&displaced, original, at(arena), past)?.code;
                moved += code.len() as u64 + MOVED_ALIGNMENT;
            }
            if let Some(template) = self.template(number) {
                return Ok(Measured { length: template.length() as u64 + moved, template: number });
            }
            let length = if site.traps() {
                let slot = isa.slot(&site.displaced, site.original(), at(arena), is_boosted(site))?;
                let loader = self.loader(site, at(arena))?.map_or(0, |code| code.len() + LOADER_ALIGNMENT);
                slot.code.len() + 2 * arena.facts.breakpoint.len() + loader
            } else {
                let detour =
                    self.with_request(site, at(arena), &arena.runtime, |request| isa.detour(request))?;
                detour.code.len()
            };
            Ok(Measured { length: length as u64 + moved, template: None })
        })
    }

    /// Gives every arena and every piece its place.
    fn place(
        &self,
        arenas: &mut BTreeMap<usize, Result<Arena, Refusal>>,
        measured: &[Result<Measured, Refusal>],
        taken: &mut Taken<'_>,
    ) {
        for (index, (site, measured)) in self.plan.sites.iter().zip(measured).enumerate() {
            let (Some(Ok(arena)), Ok(measured)) = (arenas.get_mut(&site.request.module), measured) else {
                continue;
            };
            let alignment = if site.traps() { SLOT_ALIGNMENT } else { ALIGNMENT };
            let offset = arena.end().next_multiple_of(alignment);
            arena.pieces.push((offset..offset + measured.length, index));
        }
        for (&index, arena) in arenas.iter_mut() {
            let Ok(drafted) = arena else { continue };
            let module = &self.plan.modules[index];
            let pieces = drafted.pieces.iter();
            let told = pieces.map(|(_, index)| 1 + self.plan.sites[*index].moved().count()).sum();
            let frames = if self.tells { frames::room(told) } else { 0 };
            drafted.room = (drafted.end() + frames).next_multiple_of(PAGE);
            // Next to the libraries go the mappings of the next moment, so nearness is sought only where it is needed.
            let found = match drafted.facts.reaches_everything() {
                true => taken.anywhere(drafted.room),
                false => taken.near(module.start..module.end, drafted.facts.reach, drafted.room),
            };
            let measured = drafted.runtime.code.len();
            let placed = found.ok_or(Refusal::NoGap).and_then(|address| match measured {
                0 => Ok((address, Runtime::default())),
                _ => match self.runtime(module.machine.isa(), address)? {
                    longer if longer.code.len() > measured => Err(Refusal::ArenaTooSmall),
                    runtime => Ok((address, runtime)),
                },
            });
            match placed {
                Ok((address, runtime)) => (drafted.address, drafted.runtime) = (address, runtime),
                Err(refusal) => *arena = Err(refusal),
            }
        }
    }
}

/// Where the code of an arena begins. A stack may come to lie right below it, and its thread's pointer leads ahead of the stack: it is to be found in old
/// frames, and must not look like an address of code ([`crate::reach`]).
pub(crate) fn lead(facts: &Facts) -> u64 {
    u64::from(facts.ahead_of_pointer).next_multiple_of(ALIGNMENT).max(ALIGNMENT)
}

impl Arena {
    /// Offset behind everything that has a place.
    fn end(&self) -> u64 {
        let runtime = lead(self.facts) + self.runtime.code.len() as u64;
        self.pieces.last().map_or(runtime, |(range, _)| range.end)
    }
}

/// Where jumps to a site lead that are moved beside it, if its first displaced instruction has its copy at `copy`. Only its turns go past the
/// probe: who lends it room may be another function, and calls it by a jump.
fn past(site: &PlannedSite<'_>, kind: WriteKind, copy: u64) -> Option<Past> {
    let past = Past { function: site.request.function.address, start: site.displaced.start, copy };
    (kind == WriteKind::Turn).then_some(past)
}

fn is_boosted(site: &PlannedSite<'_>) -> bool {
    site.mechanism == Mechanism::Boost
}
