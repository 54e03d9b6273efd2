//! From a plan to machine code at fixed addresses, while the target runs.
//!
//! The addresses are those of free ranges in the target's map. The target may use one of them before it is
//! stopped; then mapping ours fails, without harm, and the blueprint is drawn again.

use crate::frames::{self, Frames};
use crate::{EngineError, Plan, Refusal, Unwinder, scan::Ranges, spread, trap::TrapSite};
use std::{collections::BTreeMap, ops::Range};
use trapless_isa::{DetourRequest, Detours, Facts, Isa, Layout, Mechanism, Runtime, Spare};
use trapless_process::{GapRules, Mappings, Pid, Process, RemoteAddr};
use trapless_wire::{
    Arena, Header, Journal, JournalSite, JournalSizes, MAGIC, MAX_ARENAS, PAGE, RawPlace, SessionState,
    SiteState, Sizes, VERSION, Write, WriteKind,
};

/// Room kept for a detour when the size of an arena is chosen: the largest of each kind, measured and rounded up.
mod room {
    pub const ENTRY: u64 = 192;
    pub const FOLLOWED: u64 = 896;
    /// Of what an unwinder is served by, or a child is told from its parent.
    pub const LOOKUP: u64 = 256;
    pub const RECORDED: u64 = 512;
    /// Of a slot and its landing pad.
    pub const SLOT: u64 = 64;
    pub const RUNTIME: u64 = 3 * super::PAGE;
}

/// Everything that will be mapped and written.
#[derive(Debug)]
pub struct Blueprint<'m> {
    /// The plan less the sites for which no detour could be drawn.
    pub(crate) plan: Plan<'m>,
    pub(crate) header: Header,
    /// Code of the arenas, in the order of `header.arenas`.
    pub(crate) code: Vec<Vec<u8>>,
    /// One site for each of the plan, in the same order.
    pub(crate) journal: Journal,
    /// What is collected of each site, and where.
    pub(crate) schema: Vec<RawPlace>,
    /// For each site, the places of its displaced instructions: (original address, address of the copy).
    pub(crate) places: Vec<Vec<(u64, u64)>>,
    /// The sites that trap, by address.
    pub(crate) traps: Vec<TrapSite>,
    /// What will be written over, by address, and the index of its site.
    pub(crate) writes: Vec<(Range<u64>, usize)>,
    /// Where nobody may come back to: an instruction inside a write that does not stand there any more.
    pub(crate) inside: Ranges,
}

impl<'m> Blueprint<'m> {
    /// Chooses addresses and generates all code. What cannot be drawn at these addresses is refused in the blueprint's
    /// [`Blueprint::plan`]; the plan that was given stays as it is, for other addresses.
    pub fn draw(
        process: &Process,
        plan: &Plan<'m>,
        sizes: Sizes,
        tid_offset: Option<i32>,
    ) -> Result<Self, EngineError> {
        let maps = process.maps()?;
        let mut taken = Taken { maps: &maps, rules: process.gap_rules()?, ours: Vec::new() };
        let arenas = place_arenas(plan, &mut taken);
        let mut header = new_header(process)?;
        let slot_shift = plan.modules.first().map_or(0, |module| module.machine.isa().facts().slot_shift);
        header.places = plan.sites.iter().map(|site| site.places.count() as u64).sum();
        plan.geometry.describe(
            &mut header,
            sizes,
            journal_sizes(plan),
            plan.follows_by_jump().then_some(slot_shift),
        );
        for (address, size) in [
            (&mut header.region, header.region_size),
            (&mut header.threads, header.threads_size),
            (&mut header.returns, header.returns_size),
        ] {
            *address = taken.anywhere(size).ok_or(EngineError::Crowded)?;
        }
        if process.is_32bit() && header.region_size + header.returns_size > MOST_OF_4_GB {
            return Err(EngineError::Crowded);
        }
        let layout = header.layout(tid_offset);
        let mut blueprint = Self {
            plan: plan.clone(),
            header,
            code: Vec::new(),
            journal: Journal::default(),
            schema: Vec::new(),
            places: Vec::new(),
            traps: Vec::new(),
            writes: Vec::new(),
            inside: Ranges::default(),
        };
        blueprint.generate(arenas, &layout);
        match blueprint.journal.is_empty() {
            true => Err(EngineError::NothingToDo(blueprint.plan.skipped)),
            false if !blueprint.header.journal.is_possible() => {
                Err(EngineError::Unsupported("more than two million sites in one process: probe fewer"))
            }
            false if blueprint.plan.follows_by_jump() && lookups(&blueprint.plan) < lookups(plan) => {
                Err(EngineError::Unsupported(
                    "there is no room to tell unwinders of followed calls: probe fewer modules, or no returns",
                ))
            }
            false => Ok(blueprint),
        }
    }

    /// The plan as it will be armed.
    pub fn plan(&self) -> &Plan<'m> {
        &self.plan
    }

    /// The plan as it was armed.
    pub fn into_plan(self) -> Plan<'m> {
        self.plan
    }

    /// Whether any site needs a tracer that stays: then it is armed by [`crate::arm_serving`].
    pub fn traps(&self) -> bool {
        !self.traps.is_empty()
    }

    /// Fills the arenas. A site whose detour cannot be generated is left out.
    fn generate(&mut self, mut arenas: BTreeMap<usize, Result<Room, Refusal>>, layout: &Layout) {
        let mut journal = Journal::default();
        let mut places = Vec::new();
        let mut traps = Vec::new();
        let modules = self.plan.modules.clone();
        let starts: Vec<u64> = self.plan.sites.iter().map(|site| site.displaced.start).collect();
        // Ahead of the rest, since it needs no address: on all processors.
        let spares = spread::map(&self.plan.sites, |site| match site.traps() {
            true => Spare::default(),
            false => {
                let machine = modules[site.request.module].machine;
                Spare::at(machine, &site.site(&modules), site.displaced.start)
            }
        });
        let mut spares = spares.into_iter();
        self.plan.refuse(|site| {
            let spare = spares.next().unwrap_or_default();
            let module = &modules[site.request.module];
            let isa = module.machine.isa();
            let room = match arenas.get_mut(&site.request.module) {
                Some(Ok(room)) => room,
                Some(Err(refusal)) => return Some(refusal.clone()),
                None => return Some(Refusal::TooManyModules),
            };
            if site.traps() {
                let next = starts.get(starts.partition_point(|&start| start <= site.displaced.start));
                let original = site.together(&modules, next.copied());
                return match room.add_trap(isa, site, original, &mut journal) {
                    Ok(trap) => {
                        places.push(vec![(trap.address, trap.address)]);
                        traps.push(trap);
                        None
                    }
                    Err(refusal) => Some(refusal),
                };
            }
            match room.add(isa, site, spare, &modules, layout, &mut journal) {
                Ok(copies) => {
                    places.push(copies);
                    None
                }
                Err(refusal) => Some(refusal),
            }
        });
        for (slot, room) in self.header.arenas.iter_mut().zip(arenas.into_values().flatten()) {
            let (address, code) = (room.address, room.finish());
            *slot = Arena { address, size: (code.len() as u64).next_multiple_of(PAGE) };
            self.code.push(code);
        }
        let ring = self.header.ring;
        self.schema =
            self.plan.sites.iter().flat_map(|site| site.places.raw(site.request.id, ring)).collect();
        // Ahead of the stop, which is to be short.
        let writes = journal.sites().flat_map(|site| site.writes().map(move |w| (w.range(), site.index)));
        self.writes = writes.collect();
        self.writes.sort_unstable_by_key(|(range, _)| range.start);
        let insides = self.writes.iter().filter_map(|(range, index)| {
            let inside = range.start + 1..range.end;
            places[*index].iter().any(|place| inside.contains(&place.0)).then_some((inside.start, inside.end))
        });
        self.inside = Ranges::new(insides);
        self.journal = journal;
        self.places = places;
        self.traps = traps;
    }
}

/// Room for the journal of a plan: each site has one write.
fn journal_sizes(plan: &Plan<'_>) -> JournalSizes {
    let mut sizes = JournalSizes::default();
    for site in &plan.sites {
        let facts = plan.modules[site.request.module].machine.isa().facts();
        sizes.add([if site.traps() { facts.breakpoint.len() } else { site.displaced.length.into() }]);
    }
    sizes
}

/// A site as it is before anything is known of its detour.
fn planned(site: &crate::PlannedSite<'_>) -> JournalSite {
    JournalSite {
        site: site.displaced.start,
        probe: site.request.id,
        state: SiteState::Planned as u8,
        trap: site.mechanism.number(),
        displaced: site.displaced.length,
        ..bytemuck::Zeroable::zeroed()
    }
}

/// How many functions that unwinders ask are probed.
fn lookups(plan: &Plan<'_>) -> usize {
    plan.sites.iter().filter(|site| site.request.wanted.is_lookup()).count()
}

fn new_header(process: &Process) -> Result<Header, EngineError> {
    let mut header: Header = bytemuck::Zeroable::zeroed();
    header.magic = MAGIC;
    header.version = VERSION;
    header.state = SessionState::Arming as u32;
    header.pid = process.pid().0 as u32;
    header.tool = std::process::id();
    // Without it others would take the session for nobody's.
    header.tool_start_time = Process::known_start_of(Pid(std::process::id() as i32))?.unwrap_or(0);
    header.start_time = process.start_time();
    header.created = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    Ok(header)
}

/// Free address ranges, less those that were given out.
struct Taken<'a> {
    maps: &'a Mappings,
    rules: GapRules,
    ours: Vec<(u64, u64)>,
}

/// The most of a 32-bit program's address space that counters, rings and return instances may take.
const MOST_OF_4_GB: u64 = 512 << 20;

impl Taken<'_> {
    fn near(&mut self, near: std::ops::Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let near = RemoteAddr(near.start)..RemoteAddr(near.end);
        let ours = &self.ours;
        let is_free = |at: &u64| ours.iter().all(|&(from, to)| at + size <= from || to <= *at);
        let found = self.maps.find_gap(&self.rules, near, reach, size).map(|at| at.0).find(is_free)?;
        self.ours.push((found, found + size));
        Some(found)
    }

    fn anywhere(&mut self, size: u64) -> Option<u64> {
        let quiet = self.maps.quiet_place(&self.rules, size).0;
        self.near(quiet..quiet, u64::MAX, size)
    }
}

/// One arena being filled.
struct Room {
    address: u64,
    limit: u64,
    code: Vec<u8>,
    facts: &'static Facts,
    runtime: Option<Runtime>,
    detours: Detours,
    /// Where there is somebody who asks.
    frames: Option<Frames>,
}

/// An arena for each module that has sites, or why there is none. Those beyond the most that a session can have are missing.
fn place_arenas(plan: &Plan<'_>, taken: &mut Taken<'_>) -> BTreeMap<usize, Result<Room, Refusal>> {
    let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
    let tells = lookups(plan) > 0;
    for site in &plan.sites {
        let wanted = site.request.wanted;
        let records = u64::from(wanted.record_entry.is_some()) + u64::from(wanted.record_return);
        let size = if wanted.follows() { room::FOLLOWED } else { room::ENTRY } + records * room::RECORDED;
        let hook = wanted.unwinder.is_some() || wanted.sharing.is_some();
        let lookup = if hook { room::LOOKUP } else { 0 };
        let size = if site.traps() { room::SLOT } else { size + lookup };
        let frames = if tells { frames::ROOM } else { 0 };
        *sizes.entry(site.request.module).or_insert(room::RUNTIME) += size + frames;
    }
    let mut arenas = BTreeMap::new();
    for (index, size) in sizes.into_iter().take(MAX_ARENAS) {
        let module = &plan.modules[index];
        let size = size.next_multiple_of(PAGE);
        let facts = module.machine.isa().facts();
        // Next to the libraries go the mappings of the next moment, so nearness is sought only where it is needed.
        let found = match facts.reaches_everything() {
            true => taken.anywhere(size),
            false => taken.near(module.start..module.end, facts.reach, size),
        };
        let room = |address| Room::new(address, size, facts, Detours::new(module.machine), tells);
        arenas.insert(index, found.map(room).ok_or(Refusal::NoGap));
    }
    arenas
}

/// Detours start here: whole cache lines make the jump's target cheap to fetch.
const ALIGNMENT: usize = 32;

impl Room {
    /// Nothing runs at the first address: what was mapped there before may have left it somewhere, and no context is told apart
    /// from that ([`crate::reach`]).
    fn new(address: u64, limit: u64, facts: &'static Facts, detours: Detours, tells: bool) -> Self {
        let code = facts.filler(ALIGNMENT).collect();
        let frames = tells.then(|| Frames::new(facts.word));
        Self { address, limit, code, facts, runtime: None, detours, frames }
    }

    /// The arena's bytes.
    fn finish(mut self) -> Vec<u8> {
        if let Some(frames) = self.frames {
            frames.append(&mut self.code, self.limit);
        }
        self.code
    }

    /// Where the next piece of code stands, at a multiple of `alignment`. Nothing runs between pieces.
    fn next(&mut self, alignment: usize) -> u64 {
        let length = self.code.len();
        self.code.extend(self.facts.filler(length.next_multiple_of(alignment) - length));
        self.address + self.code.len() as u64
    }

    /// A slot, right-sized, and behind it the landing pad of the returns.
    fn add_trap(
        &mut self,
        isa: &dyn Isa,
        site: &crate::PlannedSite<'_>,
        original: &[u8],
        journal: &mut Journal,
    ) -> Result<TrapSite, Refusal> {
        // Eight bytes, so that the far jump's target is read whole.
        let address = self.next(8);
        let breakpoint = self.facts.breakpoint;
        let boosted = site.mechanism == Mechanism::Boost;
        let slot = isa.slot(&site.displaced, site.original(), address, boosted)?;
        if (self.code.len() + slot.code.len() + 2 * breakpoint.len()) as u64 > self.limit {
            return Err(Refusal::ArenaTooSmall);
        }
        let first = original.get(..breakpoint.len()).ok_or(Refusal::Modified)?;
        let write = Write {
            address: site.displaced.start,
            kind: WriteKind::Breakpoint,
            original: first,
            patched: breakpoint,
        };
        let entry = JournalSite {
            detour: address,
            detour_size: slot.code.len() as u32,
            copy: slot.copy as u8,
            ..planned(site)
        };
        journal.push(entry, &[write]).ok_or(Refusal::Modified)?;
        self.code.extend_from_slice(&slot.code);
        // A stepped `ret` to the pad must not look like the end of the copy.
        self.code.extend_from_slice(breakpoint);
        let pad = self.address + self.code.len() as u64;
        self.code.extend_from_slice(breakpoint);
        Ok(TrapSite {
            address: site.displaced.start,
            displaced: site.displaced,
            original: original.to_vec(),
            mechanism: site.mechanism,
            slot_address: address,
            slot,
            pad,
            payload: site.payload(),
            unwinds: site.request.wanted.unwinder == Some(Unwinder::Entry),
            machine: isa.machine(),
        })
    }

    fn add(
        &mut self,
        isa: &dyn Isa,
        site: &crate::PlannedSite<'_>,
        spare: Spare,
        modules: &[crate::Module<'_>],
        layout: &Layout,
        journal: &mut Journal,
    ) -> Result<Vec<(u64, u64)>, Refusal> {
        if self.runtime.is_none() {
            let address = self.next(ALIGNMENT);
            let runtime = isa.runtime(address, layout)?;
            if let Some(frames) = &mut self.frames {
                frames.add(address - self.address, 0, &runtime.frames);
            }
            self.code.extend_from_slice(&runtime.code);
            self.runtime = Some(runtime);
        }
        let address = self.next(ALIGNMENT);
        let Some(runtime) = &self.runtime else { return Err(Refusal::ArenaTooSmall) };
        let original = site.original();
        let request = DetourRequest {
            address,
            displaced: site.displaced,
            original,
            site: &site.site(modules),
            payload: site.payload(),
            layout,
            runtime,
            tells: self.frames.is_some(),
        };
        let detour = self.detours.detour(&request, spare)?;
        if self.code.len() as u64 + detour.code.len() as u64 > self.limit {
            return Err(Refusal::ArenaTooSmall);
        }
        let patch = isa.patch(&site.displaced, address)?;
        let write =
            Write { address: site.displaced.start, kind: WriteKind::Branch, original, patched: &patch };
        let entry = JournalSite {
            detour: address,
            detour_size: detour.code.len() as u32,
            return_point: detour.return_point.map_or(0, |offset| address + u64::from(offset)),
            is_lookup: site.request.wanted.is_lookup().into(),
            ..planned(site)
        };
        journal.push(entry, &[write]).ok_or(Refusal::Modified)?;
        self.code.extend_from_slice(&detour.code);
        if let Some(frames) = &mut self.frames {
            frames.add(address - self.address, site.displaced.start, &detour.frames);
        }
        Ok(detour.places.iter().map(|&(from, to)| (from, address + u64::from(to))).collect())
    }
}
