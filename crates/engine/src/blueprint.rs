//! From a plan to machine code at fixed addresses, while the target runs.
//!
//! The addresses are those of free ranges in the target's map. The target may use one of them before it is
//! stopped; then mapping ours fails, without harm, and the blueprint is drawn again.

use crate::{
    EngineError, LivePatch, Plan, PlannedSite, Refusal, Session, Space, Spare, Stretch,
    arenas::{self, Drawn, Piece, ScriptPlace},
    exits,
    home::Used,
    scan::Ranges,
    semaphores::Semaphore,
    space::{Best, Taken},
    trap::TrapSite,
};
use std::{borrow::Cow, collections::BTreeMap, ops::Range};
use trapless_isa::{Displaced, Layout, SignalCall, detour::signals::Signals};
use trapless_process::{Pid, Process};
use trapless_wire::{
    Arena, Header, Journal, JournalSite, JournalSizes, MAGIC, MAX_ARENAS, MAX_SEMAPHORES, PAGE, RawPlace,
    SessionState, SiteRole, SiteState, Sizes, ThreadMemory, VERSION, Write, WriteKind,
};

/// Everything that will be mapped and written.
#[derive(Debug)]
pub struct Blueprint<'p, 'm> {
    /// The plan less the sites for which no detour could be drawn. It is large, and mostly there are none.
    pub(crate) plan: Cow<'p, Plan<'m>>,
    pub(crate) header: Header,
    /// What detours know of the session's memory.
    pub(crate) layout: Layout,
    /// What the session has already that the sites are added to.
    pub(crate) used: Used,
    /// Code of the new arenas, in the order of `header.arenas`.
    pub(crate) code: Vec<Vec<u8>>,
    /// One site for each of the plan, in the same order.
    pub(crate) journal: Journal,
    /// What is collected of each site, and where.
    pub(crate) schema: Vec<RawPlace>,
    /// For each site, the places of its displaced instructions: (original address, address of the copy).
    pub(crate) places: Vec<Vec<(u64, u64)>>,
    /// The entries that their functions jump back to, by each address that these jumps lead to: the index of the site, and the address of
    /// the copy of its first displaced instruction.
    pub(crate) looping: BTreeMap<u64, (usize, u64)>,
    /// The sites that trap, by address.
    pub(crate) traps: Vec<TrapSite>,
    /// What is raised while the sites are armed.
    pub(crate) semaphores: Vec<Semaphore>,
    /// What will be written over, by address, and the index of its site.
    pub(crate) writes: Vec<(Range<u64>, usize)>,
    /// Where nobody may come back to: an instruction inside a write that does not stand there any more.
    pub(crate) inside: Ranges,
}

impl<'p, 'm> Blueprint<'p, 'm> {
    /// Chooses addresses and generates all code. What cannot be drawn at these addresses is refused in the blueprint's
    /// [`Blueprint::plan`]; the plan that was given stays as it is, for other addresses.
    pub fn draw(
        space: &Space,
        plan: &'p Plan<'m>,
        sizes: Sizes,
        threads: ThreadMemory,
    ) -> Result<Self, EngineError> {
        let mut taken = Taken::new(space);
        let mut header = new_header(space)?;
        let facts = plan.modules.first().map(|module| module.machine.isa().facts());
        let slot_shift = facts.map_or(0, |facts| facts.slot_shift);
        let own = needed(plan);
        // Where there is no room for more, there is none for more later.
        let is_possible = |spare: &Spare| own.journal.and(&spare.journal()).is_possible();
        let spare = Some(plan.home.spare()).filter(is_possible).unwrap_or_default();
        header.places = own.places + spare.places();
        header.semaphores = (own.semaphores + spare.semaphores()).min(own.semaphores.max(MAX_SEMAPHORES));
        if header.semaphores > MAX_SEMAPHORES {
            return Err(EngineError::Unsupported("more than 65,536 semaphores in one process: probe fewer"));
        }
        let journal = own.journal.and(&spare.journal());
        plan.geometry.describe(&mut header, sizes, journal, plan.tells_unwinders().then_some(slot_shift));
        let modules = plan.modules.iter().filter_map(|module| {
            let facts = module.machine.isa().facts();
            (!facts.reaches_everything()).then_some((module.start..module.end, facts.reach))
        });
        let sizes = [header.region_size, header.threads_size, header.returns_size];
        let best = facts.filter(|facts| facts.best_multiple > 0).map(|facts| {
            let layout = header.layout(threads);
            let shadows = (header.slot_shift > 0).then(|| layout.shadow_block(0));
            // Of regions that have no places yet.
            Best { multiple: facts.best_multiple, offsets: [None, Some(layout.threads), shadows] }
        });
        let places = taken.regions(sizes, best, modules).ok_or(EngineError::Crowded)?;
        [header.region, header.threads, header.returns] = places;
        if space.is_32bit && header.region_size + header.returns_size > MOST_OF_4_GB {
            return Err(EngineError::Crowded);
        }
        if plan.signals().next().is_some() {
            header.signals = taken.anywhere(arenas::STUBS).ok_or(EngineError::Crowded)?;
        }
        let counts_nearby = plan.sites.iter().find(|site| site.may_count_nearby());
        if let Some(module) = counts_nearby.map(|site| &plan.modules[site.request.module]) {
            let reach = module.machine.isa().facts().reach;
            // Where there is no room for it, sites that need it are left out.
            let near = taken.near(module.start..module.end, reach, header.block_stride);
            header.near = near.unwrap_or(0);
        }
        if let (Some(script), Some(module)) =
            (plan.script.filter(|_| header.script > 0), plan.modules.first())
        {
            script.check()?;
            let size = script.arena_size(module.machine.isa());
            header.program = taken.anywhere(size).ok_or(EngineError::Crowded)?;
        }
        let mut layout = header.layout(threads);
        layout.selector = trapless_process::thread_selector();
        layout.additions = space.additions;
        layout.signals = layout.signals.map(|signals| Signals {
            stops: plan.facts.stops,
            hops: plan.hops(),
            key: key(),
            ..signals
        });
        let blueprint = Self::new(plan, header, layout, Used::default()).fill(&mut taken);
        match blueprint.journal.is_empty() {
            true => Err(EngineError::NothingToDo(blueprint.plan.into_owned().skipped)),
            false if !blueprint.header.journal.is_possible() => {
                Err(EngineError::Unsupported("more than two million sites in one process: probe fewer"))
            }
            false if blueprint.plan.tells_unwinders() && lookups(&blueprint.plan) < lookups(plan) => {
                Err(EngineError::Unsupported(
                    "there is no room to tell unwinders of what is probed: probe fewer modules, or no returns",
                ))
            }
            false if !blueprint.has_stubs() => {
                Err(EngineError::Unsupported("the stubs of signal handlers could not be written"))
            }
            false => Ok(blueprint),
        }
    }

    /// The same for sites that are added to a session. Their plan was made for it ([`Session::host`]).
    ///
    /// # Errors
    /// There is no room for them in the session.
    pub fn draw_added(space: &Space, plan: &'p Plan<'m>, session: &Session) -> Result<Self, EngineError> {
        let used = session.used();
        if !used.has_room(session.header(), &needed(plan)) {
            return Err(EngineError::Full);
        }
        let blueprint = Self::new(plan, *session.header(), *session.layout(), used);
        let blueprint = blueprint.fill(&mut Taken::new(space));
        match blueprint.journal.is_empty() {
            true => Err(EngineError::NothingToDo(blueprint.plan.into_owned().skipped)),
            false => Ok(blueprint),
        }
    }

    fn new(plan: &'p Plan<'m>, header: Header, layout: Layout, used: Used) -> Self {
        Self {
            plan: Cow::Borrowed(plan),
            header,
            layout,
            used,
            code: Vec::new(),
            journal: Journal::default(),
            schema: Vec::new(),
            places: Vec::new(),
            looping: BTreeMap::new(),
            traps: Vec::new(),
            semaphores: Vec::new(),
            writes: Vec::new(),
            inside: Ranges::default(),
        }
    }

    /// Draws the code of all sites.
    fn fill(mut self, taken: &mut Taken<'_>) -> Self {
        let tells = lookups(&self.plan) > 0 || self.layout.signals.is_some() || self.plan.home.is_armed();
        let most = MAX_ARENAS - self.used.arenas;
        let program = Some(self.header.program).filter(|&program| program != 0);
        let shared = self.header.region + self.header.script;
        let drawn =
            arenas::draw(&self.plan, &self.layout, taken, tells, most, ScriptPlace { program, shared });
        self.take(drawn);
        self
    }

    /// Whether the arena of stubs is there, if there is to be one.
    fn has_stubs(&self) -> bool {
        self.header.signals == 0 || self.header.arenas().any(|arena| arena.address == self.header.signals)
    }

    /// The plan as it will be armed.
    pub fn plan(&self) -> &Plan<'m> {
        &self.plan
    }

    /// The plan as it was armed.
    pub fn into_plan(self) -> Cow<'p, Plan<'m>> {
        self.plan
    }

    /// Whether any site needs a tracer that stays: then it is armed by [`crate::arm_serving`].
    pub fn traps(&self) -> bool {
        !self.traps.is_empty()
    }

    /// Takes what was drawn. A site that could not be is left out.
    fn take(&mut self, drawn: Drawn) {
        let mut journal = Journal::default();
        let mut places = Vec::with_capacity(drawn.pieces.len());
        let mut traps = Vec::new();
        let patched = self.plan.sites.iter().zip(drawn.pieces).map(|(site, piece)| {
            let piece = piece?;
            Ok((patches(&self.plan, site, &piece)?, piece))
        });
        let mut patched: Vec<Result<_, Refusal>> = patched.collect();
        exits::keep_whole(
            &mut patched,
            |index| &self.plan.sites[index].request,
            |result| result.as_ref().err().cloned(),
            Err,
        );
        let refused = self.plan.sites.iter().zip(patched).map(|(site, patched)| {
            let (patches, piece) = patched?;
            let parts = site.changed().zip(&patches);
            let pointer = site.pointer().map(|(pointer, function)| {
                let original = piece.original.ok_or(Refusal::Modified)?;
                Ok::<_, Refusal>((pointer.at, function.to_le_bytes(), original.to_le_bytes()))
            });
            let pointer = pointer.transpose()?;
            let pointer = pointer.iter().map(|(address, original, patched)| Write {
                address: *address,
                kind: WriteKind::Pointer,
                original,
                patched,
            });
            let writes: Vec<Write<'_>> = parts
                .map(|((changed, original), (kind, patched))| Write {
                    address: changed.start,
                    kind: *kind,
                    original: original.get(..patched.len()).unwrap_or(original),
                    patched,
                })
                .chain(pointer)
                .collect();
            journal.push(planned(site, &piece), &writes).ok_or(Refusal::Modified)?;
            places.push(piece.places);
            traps.extend(piece.trap.map(|trap| *trap));
            Ok(())
        });
        let refused: Vec<Option<Refusal>> = refused.map(|result: Result<(), Refusal>| result.err()).collect();
        if refused.iter().any(Option::is_some) {
            let mut refused = refused.into_iter();
            self.plan.to_mut().refuse(|_| refused.next().flatten());
        }
        let free = self.header.arenas.iter_mut().skip(self.used.arenas);
        for (slot, (address, code)) in free.zip(drawn.arenas) {
            *slot = Arena { address, size: (code.len() as u64).next_multiple_of(PAGE) };
            self.code.push(code);
        }
        let ring = self.header.ring;
        self.schema = self.plan.told().flat_map(|site| site.places.raw(site.request.id, ring)).collect();
        // Ahead of the stop, which is to be short.
        let writes = journal.sites().flat_map(|site| site.writes().map(move |w| (w.range(), site.index)));
        self.writes = writes.collect();
        self.writes.sort_unstable_by_key(|(range, _)| range.start);
        let insides = self.writes.iter().filter_map(|(range, index)| {
            let inside = range.start + 1..range.end;
            places[*index].iter().any(|place| inside.contains(&place.0)).then_some((inside.start, inside.end))
        });
        self.inside = Ranges::new(insides);
        self.looping = looping(&self.plan, &places);
        self.semaphores = semaphores(&self.plan);
        self.journal = journal;
        self.places = places;
        self.traps = traps;
    }
}

/// What is written at a site, in its room and at its turns, in the order of [`PlannedSite::changed`].
fn patches(
    plan: &Plan<'_>,
    site: &PlannedSite<'_>,
    piece: &Piece,
) -> Result<Vec<(WriteKind, Vec<u8>)>, Refusal> {
    let isa = plan.modules[site.request.module].machine.isa();
    if site.traps() {
        let breakpoint = isa.facts().breakpoint;
        let is_whole = site.original().len() >= breakpoint.len();
        return is_whole.then(|| vec![(WriteKind::Breakpoint, breakpoint.to_vec())]).ok_or(Refusal::Modified);
    }
    let mut moved = piece.moved.iter().map(|moved| moved.address);
    let mut moved_to = |displaced: &Displaced| match displaced.instructions {
        0 => None,
        _ => moved.next(),
    };
    let mut patches = match site.room.map(|room| room.displaced) {
        Some(room) => {
            let to = moved_to(&room).unwrap_or(0);
            let [short, long] = isa.patches(&site.displaced, &room, piece.address, to)?;
            vec![(WriteKind::Branch, short), (WriteKind::Room, long)]
        }
        None => vec![(WriteKind::Branch, isa.patch(&site.displaced, piece.address)?)],
    };
    for Stretch { displaced, original } in &site.turns {
        let to = moved_to(displaced).or(piece.copy_of(site.displaced.start)).ok_or(Refusal::Modified)?;
        patches.push((WriteKind::Turn, isa.turned(displaced, original, to)?));
    }
    Ok(patches)
}

/// See [`Blueprint::looping`]. `places`: of each site.
fn looping(plan: &Plan<'_>, places: &[Vec<(u64, u64)>]) -> BTreeMap<u64, (usize, u64)> {
    let looping = plan.sites.iter().zip(places).enumerate().filter(|(_, (site, _))| !site.turns.is_empty());
    let entries = looping.filter_map(|(index, (site, places))| {
        let start = site.displaced.start;
        let copy = places.iter().find(|place| place.0 == start)?.1;
        Some([site.request.address, start].map(|address| (address, (index, copy))))
    });
    entries.flatten().collect()
}

/// The semaphores of a plan, each once.
fn semaphores(plan: &Plan<'_>) -> Vec<Semaphore> {
    let mut sites: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    for (index, site) in plan.sites.iter().enumerate() {
        for &address in site.request.semaphores {
            sites.entry(address).or_default().push((index, site.displaced.start));
        }
    }
    sites.into_iter().map(|(address, sites)| Semaphore { address, sites }).collect()
}

/// What a plan takes of a session's lists. How many arenas, is not known ahead.
fn needed(plan: &Plan<'_>) -> Used {
    Used {
        arenas: 0,
        journal: journal_sizes(plan),
        places: plan.told().map(|site| site.places.count() as u64).sum(),
        semaphores: semaphores(plan).len() as u64,
    }
}

/// Room for the journal of a plan.
fn journal_sizes(plan: &Plan<'_>) -> JournalSizes {
    let mut sizes = JournalSizes::default();
    for site in &plan.sites {
        let facts = plan.modules[site.request.module].machine.isa().facts();
        match site.traps() {
            true => sizes.add([facts.breakpoint.len()]),
            false => {
                let code = site.changed().map(|(changed, _)| changed.length.into());
                sizes.add(code.chain(site.pointer().map(|_| size_of::<u64>())));
            }
        }
    }
    sizes
}

/// A site as it is before it is changed.
fn planned(site: &PlannedSite<'_>, piece: &Piece) -> JournalSite {
    let role = match site.request.wanted.is_lookup() {
        true if !site.traps() => SiteRole::Lookup,
        _ if site.request.wanted.signal == Some(SignalCall::Handler) => SiteRole::Handler,
        _ if site.request.wanted.signal.is_some() => SiteRole::Signals,
        _ if site.request.is_exit() => SiteRole::Exit,
        _ if matches!(site.request.live_patch, Some(LivePatch::Replace(_))) => SiteRole::Replaced,
        _ => SiteRole::Plain,
    };
    JournalSite {
        site: site.displaced.start,
        probe: site.request.id,
        state: SiteState::Planned as u8,
        trap: site.mechanism.number(),
        displaced: site.displaced.length,
        detour: piece.address,
        detour_size: piece.length as u32,
        copy: piece.copy,
        return_at: piece.return_point.saturating_sub(piece.address) as u32,
        kept: piece.kept,
        signs: piece.signs,
        role: role as u8,
        ahead: site.request.address.saturating_sub(site.displaced.start) as u8,
        ..bytemuck::Zeroable::zeroed()
    }
}

/// How many functions that unwinders ask are probed.
fn lookups(plan: &Plan<'_>) -> usize {
    plan.sites.iter().filter(|site| site.request.wanted.is_lookup()).count()
}

/// A number that no other session has: hashed with what the standard library draws for each hasher.
fn key() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) | 1 << 63
}

fn new_header(space: &Space) -> Result<Header, EngineError> {
    let mut header: Header = bytemuck::Zeroable::zeroed();
    header.magic = MAGIC;
    header.version = VERSION;
    header.state = SessionState::Arming as u32;
    header.pid = space.pid.0 as u32;
    header.tool = std::process::id();
    // Without it others would take the session for nobody's.
    header.tool_start_time = Process::known_start_of(Pid(std::process::id() as i32))?.unwrap_or(0);
    header.start_time = space.start_time;
    header.created = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    Ok(header)
}

/// The most of a 32-bit program's address space that counters, rings and return instances may take.
const MOST_OF_4_GB: u64 = 512 << 20;

#[cfg(test)]
mod tests;
