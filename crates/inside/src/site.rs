//! What stands at a function, and what it is there for.

use crate::call::{Call, Errno, Return};
use crate::code::{self, Arenas, instructions};
use crate::counts::{Counted, Counting};
use crate::find::{Asked, Found};
use crate::patch::{self, Jump, Memory, Stands};
use crate::points::{self, Kept, LANES, Lanes, NO_LANES};
use crate::room::Pads;
use crate::times::{Timed, Timing, Told};
use crate::{Error, busy, find, threads, traps};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use trapless_isa::inside::{Handling, Inside, RETURNS, Saved};
use trapless_wire::Numbers;

/// What is called at an entry, which keeps something for the return.
pub(crate) type Enter = Box<dyn Fn(&mut Call<'_>) -> Kept + Send + Sync>;

/// What is called at a return.
pub(crate) type Leave = Box<dyn Fn(&mut Return<'_>, Kept) + Send + Sync>;

/// Handlers of the program's own.
pub(crate) struct Listener {
    enter: Enter,
    leave: Option<Leave>,
    /// Which one it is; no two have the same, and none has 0.
    number: u64,
    panics: AtomicU64,
    unwound: AtomicU64,
}

impl Listener {
    pub fn new(enter: Enter, leave: Option<Leave>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { enter, leave, number, panics: AtomicU64::new(0), unwound: AtomicU64::new(0) }
    }

    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    pub fn unwound(&self) -> u64 {
        self.unwound.load(Ordering::Relaxed)
    }

    pub fn follows(&self) -> bool {
        self.leave.is_some()
    }

    /// Calls a handler; `None` where it panics, which is counted.
    fn call<T>(&self, handler: impl FnOnce() -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(handler));
        let panicked = |panic| {
            // What it holds may panic once more when it is dropped.
            std::mem::forget(panic);
            self.panics.fetch_add(1, Ordering::Relaxed);
        };
        called.map_err(panicked).ok()
    }
}

/// Under which number a function's calls keep something for a listener.
pub(crate) type Lane = u8;

/// One that listens at a site, and under which number, if it follows calls.
#[derive(Clone)]
struct Heard {
    listener: Arc<Listener>,
    lane: Option<Lane>,
}

type Listeners = Vec<Heard>;

/// A function that is or was probed. It stays for good.
pub(crate) struct Site {
    found: Found,
    jump: Jump,
    /// Where handlers are called from, and the copies of what is displaced.
    entry: u64,
    copies: u64,
    /// The word that the pad goes by.
    slot: &'static AtomicU64,
    /// Whose handlers are called; nobody's where it is null.
    listeners: AtomicPtr<Listeners>,
    /// What replaces it; 0: nothing.
    replaced_by: AtomicU64,
    /// Where its calls are counted, once they were, and how many ask for it.
    counted: OnceLock<Counted>,
    counters: AtomicU64,
    /// The same of those that are timed.
    timed: OnceLock<Timed>,
    timers: AtomicU64,
    /// What is done there for unwinders, if anything is: for good, and ahead of everything else.
    told: OnceLock<Told>,
    /// What scripts do there, ahead of all else that the site is there for.
    links: Mutex<Vec<Link>>,
}

/// A detour that goes on where a word says. It is changed by whoever is [`busy`], and stays when it is in no list any more: threads may be in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub detour: u64,
    pub next: &'static AtomicU64,
    /// Whether it follows calls to their return.
    pub follows: bool,
}

/// A function that goes by one.
#[cfg(feature = "script")]
pub(crate) type Linked = (&'static Site, Link);

impl PartialEq for Link {
    fn eq(&self, other: &Self) -> bool {
        self.detour == other.detour
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Site({:#x})", self.found.function)
    }
}

/// All that is changed by whoever is [`busy`].
#[derive(Default)]
pub(crate) struct All {
    sites: BTreeMap<u64, &'static Site>,
    arenas: Arenas,
    pads: Pads,
    /// The code that calls the dispatcher, once it was made.
    handling: Option<u64>,
    counting: Counting,
    timing: Timing,
}

static ALL: Mutex<Option<All>> = Mutex::new(None);

/// The most bytes that copies take: each displaced instruction may become a far jump with a condition.
const MOST_COPIES: u64 = 160;

impl Site {
    /// `MODULE:FUNCTION`
    pub fn name(&self) -> String {
        self.found.name.join(":")
    }

    /// The entry.
    pub fn function(&self) -> u64 {
        self.found.function
    }

    /// What was displaced, and the rest of the function.
    pub fn original(&self) -> u64 {
        self.copies
    }

    fn unreplace(&self) {
        self.replaced_by.store(0, Ordering::Release);
        self.direct();
    }

    /// Where its calls go on, whoever hears of them.
    fn next(&self) -> u64 {
        match self.replaced_by.load(Ordering::Acquire) {
            0 => self.copies,
            with => with,
        }
    }

    fn is_heard(&self) -> bool {
        !self.listeners.load(Ordering::Relaxed).is_null()
    }

    fn is_replaced(&self) -> bool {
        self.replaced_by.load(Ordering::Relaxed) != 0
    }

    /// What counts its calls, while anybody asks for that.
    fn counted(&self) -> Option<&Counted> {
        self.counted.get().filter(|_| self.counters.load(Ordering::Relaxed) > 0)
    }

    /// What times its calls, while anybody asks for that.
    fn timed(&self) -> Option<&Timed> {
        self.timed.get().filter(|_| self.timers.load(Ordering::Relaxed) > 0)
    }

    /// What it is there for, in the word that its pad goes by.
    fn direct(&self) {
        let to = match (self.timed(), self.counted()) {
            // The detours lead on to the function itself. Who is timed is counted by that.
            (Some(timed), _) if !self.is_heard() && !self.is_replaced() => timed.detour,
            (None, Some(counted)) if !self.is_heard() && !self.is_replaced() => counted.detour,
            (None, None) if !self.is_heard() => self.next(),
            _ => self.entry,
        };
        let to = self.links().iter().rev().fold(to, |to, link| {
            link.next.store(to, Ordering::Release);
            link.detour
        });
        match self.told.get() {
            Some(told) => {
                told.next.store(to, Ordering::Release);
                self.slot.store(told.detour, Ordering::Release);
            }
            None => self.slot.store(to, Ordering::Release),
        }
    }

    fn is_asked_for(&self) -> bool {
        self.is_replaced()
            || self.is_heard()
            || self.counted().is_some()
            || self.timed().is_some()
            || self.told.get().is_some()
            || !self.links().is_empty()
    }

    fn links(&self) -> MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of its calls were counted so far, whoever asked for it.
    pub fn total(&self) -> u64 {
        let counted = self.counted.get().map_or(0, Counted::total);
        counted.wrapping_add(self.timed.get().map_or(0, Timed::entries))
    }

    /// What is known of its calls that were timed so far, whoever asked for it.
    pub fn numbers(&self) -> Numbers {
        self.timed.get().map(Timed::numbers).unwrap_or_default()
    }

    /// Gives it other listeners; those that it had are for [`threads::drop_later`].
    fn set_listeners(&self, listeners: Listeners) -> Option<Box<Listeners>> {
        let new = if listeners.is_empty() { null_mut() } else { Box::into_raw(Box::new(listeners)) };
        let old = self.listeners.swap(new, Ordering::AcqRel);
        self.direct();
        // SAFETY: it was made of a box, and nobody finds it any more.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }

    fn listeners(&self) -> Listeners {
        // SAFETY: only those under the lock take one away, as the caller is.
        unsafe { self.listeners.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default()
    }

    fn stands(&self, memory: &Memory) -> Stands {
        let behind = self.jump.original.len();
        let now = memory.read(self.jump.address, self.found.original.len()).unwrap_or_default();
        match now.get(behind..) == Some(&self.found.original[behind..]) {
            true => self.jump.stands(&now),
            false => Stands::Other,
        }
    }
}

/// Somebody asks for these no longer, of those that this counts.
fn no_longer(sites: &[&'static Site], askers: impl Fn(&Site) -> &AtomicU64) {
    for site in sites {
        askers(site).fetch_sub(1, Ordering::Relaxed);
        site.direct();
    }
    let _ = settle(sites);
}

/// Has the jump stand at each of the sites or not, as it is asked for, in steps that they take together; what became of each.
///
/// # Errors
/// What is in the way of all of them.
fn settle(sites: &[&'static Site]) -> Result<Vec<Result<(), Error>>, Error> {
    let memory = Memory::open()?;
    let mut results: Vec<Result<(), Error>> = sites.iter().map(|_| Ok(())).collect();
    let [mut to_put_in, mut to_take_out] = [const { Vec::new() }; 2];
    for (index, site) in sites.iter().enumerate() {
        match (site.stands(&memory), site.is_asked_for()) {
            (Stands::Ours, true) | (Stands::Original, false) => {}
            // Somebody else's stays. What was unloaded is gone.
            (Stands::Other, false) => {}
            (Stands::Other, true) => results[index] = Err(Error::Modified(site.found.function)),
            (Stands::Original, true) => to_put_in.push(index),
            (Stands::Ours, false) => to_take_out.push(index),
        }
    }
    for (which, change) in [(to_put_in, patch::put_in as fn(&_, &_) -> _), (to_take_out, patch::take_out)] {
        if which.is_empty() {
            continue;
        }
        may_trap()?;
        let jumps: Vec<&Jump> = which.iter().map(|index| &sites[*index].jump).collect();
        let changed: Vec<Result<(), Error>> = change(&jumps, &memory);
        which.into_iter().zip(changed).for_each(|(index, result)| results[index] = result);
    }
    Ok(results)
}

fn may_trap() -> Result<(), Error> {
    patch::refuse_seccomp()?;
    // A forked child has to say so again.
    patch::register()?;
    traps::install()?;
    traps::refuse_blocked()
}

fn all() -> MutexGuard<'static, Option<All>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work` alone; no handler is called for what is done there. Handlers that nobody is in any more are dropped behind it.
pub(crate) fn alone<T>(work: impl FnOnce(&mut All) -> T) -> T {
    let done = threads::quietly(|| busy::run(|| work(all().get_or_insert_default())));
    threads::collect();
    done
}

impl All {
    /// What stands there, without any change of the function.
    pub fn site(&mut self, found: &Found) -> Result<&'static Site, Error> {
        let known = self.sites.get(&found.displaced.start).copied();
        // Another file's may be there by now, and lie where that one was.
        if let Some(site) = known.filter(|site| site.found.is_same(found)) {
            return Ok(site);
        }
        let site = self.make(found)?;
        self.sites.insert(found.displaced.start, site);
        Ok(site)
    }

    fn make(&mut self, found: &Found) -> Result<&'static Site, Error> {
        let isa = instructions().ok_or(Error::Machine)?;
        let start = found.displaced.start;
        let memory = Memory::open()?;
        let handling = self.handling(isa, &memory)?;
        let entry_length = (isa.entry_length() as u64).next_multiple_of(16);
        let place = self.arenas.place(start, entry_length + MOST_COPIES)?;
        let (slot, copies_at) = (place.word, place.code + entry_length);
        let copies = isa.copies(&found.displaced, &found.original, copies_at).map_err(Error::Code)?;
        if copies.code.len() as u64 > MOST_COPIES {
            return Err(Error::NoRoom(start));
        }
        let offset = |address: u64| (address - start) as usize;
        let is_start = |at: usize| copies.places.iter().any(|place| offset(place.0) == at);
        let word = slot.as_ptr().addr() as u64;
        let (jump, pad) = match self.jump(isa, found, &is_start, word) {
            Ok(jump) => jump,
            Err(no_room) => self.jump_by_padding(isa, found, &memory, &is_start, word).ok_or(no_room)?,
        };
        let site: &'static Site = Box::leak(Box::new(Site {
            found: found.clone(),
            jump,
            entry: place.code,
            copies: copies_at,
            slot,
            listeners: AtomicPtr::new(null_mut()),
            replaced_by: AtomicU64::new(0),
            counted: OnceLock::new(),
            counters: AtomicU64::new(0),
            timed: OnceLock::new(),
            timers: AtomicU64::new(0),
            told: OnceLock::new(),
            links: Mutex::default(),
        }));
        let data = std::ptr::from_ref(site).expose_provenance() as u64;
        memory.write(place.code, &isa.entry(data, handling))?;
        memory.write(copies_at, &copies.code)?;
        memory.write(pad, &isa.pad(pad, word).map_err(Error::Code)?)?;
        site.direct();
        let breakpoints = copies.places.iter().filter(|place| offset(place.0) < site.jump.bytes.len());
        let to: Vec<(u64, u64)> =
            breakpoints.map(|&(address, at)| (address, copies_at + u64::from(at))).collect();
        traps::send_on(&to);
        Ok(site)
    }

    /// The jump over a function's first instructions, of which some begin where it says, and the pad that it leads to.
    ///
    /// With a byte ahead of it that means nothing, other bytes of its distance are breakpoints, which may leave more addresses: with the highest one given, all that there are lie
    /// within 16 MB.
    fn jump(
        &mut self,
        isa: &dyn Inside,
        found: &Found,
        is_start: &dyn Fn(usize) -> bool,
        word: u64,
    ) -> Result<(Jump, u64), Error> {
        let start = found.displaced.start;
        let mut tried = Err(Error::NoRoom(start));
        for ahead in [&[][..], isa.ahead_of_jump()] {
            let length = ahead.len() + isa.jump_length();
            if length > usize::from(found.displaced.length).max(isa.jump_length())
                || (1..=ahead.len()).any(is_start)
            {
                continue;
            }
            let given = [1, 2, 3, 4].map(|at| is_start(ahead.len() + at).then_some(isa.trap()));
            let end = start + length as u64;
            match self.pads.find(end, given, isa.pad_length() as u64, word) {
                Ok(pad) => {
                    let jump = isa.jump(start + ahead.len() as u64, pad).map_err(Error::Code)?;
                    let original = found.original.get(..length).ok_or(Error::NoRoom(start))?.to_vec();
                    let starts = (1..length).filter(|at| is_start(*at)).collect();
                    return Ok((
                        Jump { address: start, bytes: [ahead, &jump].concat(), original, starts },
                        pad,
                    ));
                }
                Err(error) => tried = Err(error),
            }
        }
        tried
    }

    /// Where no address suits the jump: a short one over the first instruction alone, to padding near it, where a jump stands that can lead anywhere. And the pad.
    ///
    /// Nobody comes to padding but by that jump, so it is written at once, and stays.
    fn jump_by_padding(
        &mut self,
        isa: &dyn Inside,
        found: &Found,
        memory: &Memory,
        is_start: &dyn Fn(usize) -> bool,
        word: u64,
    ) -> Option<(Jump, u64)> {
        let start = found.displaced.start;
        let (padding, original) = find::padding_near(found.function)?;
        let bytes = isa.short_jump(start, padding).ok()?;
        let length = isa.jump_length();
        if (1..bytes.len()).any(is_start) || original.len() < length {
            return None;
        }
        // Another site's may be there already.
        let as_in_file = memory.read(padding, length)? == original[..length];
        let pad_length = isa.pad_length() as u64;
        let pad = self
            .pads
            .find(padding + length as u64, [None; 4], pad_length, word)
            .ok()
            .filter(|_| as_in_file)?;
        memory.write(padding, &isa.jump(padding, pad).ok()?).ok()?;
        let original = found.original.get(..bytes.len())?.to_vec();
        Some((Jump { address: start, bytes, original, starts: Vec::new() }, pad))
    }

    /// The code that calls the dispatcher, for all sites.
    fn handling(&mut self, isa: &dyn Inside, memory: &Memory) -> Result<u64, Error> {
        if let Some(made) = self.handling {
            return Ok(made);
        }
        let handling = Handling { dispatcher: dispatch as *const () as u64, vectors: code::vectors() };
        let make = |at| isa.handling(&handling, at).map_err(Error::Code);
        let (at, _) = self.arenas.write(handling.dispatcher, memory, make, |made: &Vec<u8>| made)?;
        Ok(*self.handling.insert(at))
    }
}

/// Called by handling code.
extern "C" fn dispatch(saved: *mut Saved, site: u64) {
    // SAFETY: sites stay for good; handling code has saved it, and waits.
    let (site, saved) = unsafe { (&*std::ptr::with_exposed_provenance::<Site>(site as usize), &mut *saved) };
    // Read once: others may change it meanwhile, and each call is counted in one way.
    let (timed, counted) = (site.timed(), site.counted());
    saved.way = match (site.replaced_by.load(Ordering::Acquire), timed) {
        (0, Some(timed)) => timed.detour,
        (0, None) => site.copies,
        (with, timed) => {
            timed.into_iter().for_each(Timed::lose_one);
            with
        }
    };
    let by_detour = timed.is_some_and(|timed| saved.way == timed.detour);
    if let Some(counted) = counted.filter(|_| !by_detour) {
        counted.add_one();
    }
    threads::unless_inside(|own| {
        let mut lanes = NO_LANES;
        if site.was_called(saved, &mut lanes) {
            // What is asked of the kernel for a point may change it.
            let _errno = Errno::now();
            // SAFETY: it is of a call at its entry.
            if !unsafe { points::follow(own, saved, site, lanes) } {
                threads::miss();
            }
        }
    });
    if let Some(counted) = counted.filter(|_| by_detour && saved.way == RETURNS) {
        // A handler has skipped it.
        counted.add_one();
    }
}

impl Site {
    /// Calls the handlers at the entry, within a pass; whether the call is to be followed.
    fn was_called(&self, saved: &mut Saved, lanes: &mut Lanes) -> bool {
        // SAFETY: the lists of listeners stay while somebody is in a pass.
        let listeners = unsafe { self.listeners.load(Ordering::Acquire).as_ref() };
        // SAFETY: handling code has saved it, and waits.
        let mut call = unsafe { Call::new(saved, self.found.function) };
        let mut follows = false;
        for Heard { listener, lane } in listeners.into_iter().flatten() {
            let kept = listener.call(|| (listener.enter)(&mut call));
            if let (Some(kept), Some(lane)) = (kept, lane) {
                lanes[usize::from(*lane)] = (listener.number, kept);
                follows = true;
            }
        }
        follows && !call.is_skipped()
    }

    /// Those of a call that listen still, within a pass, the last one first.
    fn ended(&self, lanes: &Lanes, mut work: impl FnMut(&Listener, Kept)) {
        // SAFETY: as above.
        let listeners = unsafe { self.listeners.load(Ordering::Acquire).as_ref() };
        for Heard { listener, lane } in listeners.into_iter().flatten().rev() {
            if let Some(kept) = lane.and_then(|lane| points::of(lanes, lane, listener.number)) {
                work(listener, kept);
            }
        }
    }

    /// Calls the handlers at the return of a call, within a pass.
    pub fn has_returned(&self, lanes: &Lanes, returned: &mut Return<'_>) {
        self.ended(lanes, |listener, kept| {
            if let Some(leave) = &listener.leave {
                listener.call(|| leave(returned, kept));
            }
        });
    }

    /// Takes note of a call that was left by an exception, within a pass.
    pub fn was_left(&self, lanes: &Lanes) {
        self.ended(lanes, |listener, _| _ = listener.unwound.fetch_add(1, Ordering::Relaxed));
    }
}

impl All {
    /// Has handlers called at all of these; for each, its site or what is in the way.
    ///
    /// # Errors
    /// What is in the way of all of them; none are called then.
    pub fn listen(
        &mut self,
        all: &[Found],
        listener: &Arc<Listener>,
    ) -> Result<Vec<Result<&'static Site, Error>>, Error> {
        let mut replaced = Vec::new();
        let mut add = |found: &Found| {
            let site = self.site(found)?;
            let mut listeners = site.listeners();
            // By whatever names they were found, it is one.
            if listeners.iter().all(|heard| !Arc::ptr_eq(&heard.listener, listener)) {
                let lane = lane_for(listener, &listeners, site)?;
                listeners.push(Heard { listener: listener.clone(), lane });
                replaced.extend(site.set_listeners(listeners));
            }
            Ok(site)
        };
        let results: Vec<Result<&'static Site, Error>> = all.iter().map(&mut add).collect();
        threads::drop_later(replaced);
        self.settled(results, |this, sites| this.ignore(sites, listener))
    }

    /// Has them called no longer.
    pub fn ignore(&mut self, sites: &[&'static Site], listener: &Arc<Listener>) {
        let stays = |one: &Heard| !Arc::ptr_eq(&one.listener, listener);
        let without =
            |site: &&'static Site| site.set_listeners(site.listeners().into_iter().filter(stays).collect());
        threads::drop_later(sites.iter().filter_map(without).collect());
        // Where a thread blocks SIGTRAP by now the jumps stay, and lead to the functions' own instructions.
        let _ = settle(sites);
    }

    /// Has the calls of all of these counted; for each, its site or what is in the way.
    ///
    /// # Errors
    /// What is in the way of all of them; none are counted then.
    pub fn count(&mut self, all: &[Found]) -> Result<Vec<Result<&'static Site, Error>>, Error> {
        let memory = Memory::open()?;
        let mut add = |found: &Found| {
            let site = self.site(found)?;
            if site.counted.get().is_none() {
                let counted = self.counting.count(&mut self.arenas, &memory, found)?;
                site.counted.get_or_init(|| counted);
            }
            site.counters.fetch_add(1, Ordering::Relaxed);
            site.direct();
            Ok(site)
        };
        let results: Vec<Result<&'static Site, Error>> = all.iter().map(&mut add).collect();
        self.settled(results, Self::uncount)
    }

    /// Has them counted no longer.
    pub fn uncount(&mut self, sites: &[&'static Site]) {
        no_longer(sites, |site| &site.counters);
    }

    /// Has the calls of all of these timed; for each, its site or what is in the way.
    ///
    /// # Errors
    /// What is in the way of all of them; none are timed then.
    pub fn time(&mut self, all: &[Found]) -> Result<Vec<Result<&'static Site, Error>>, Error> {
        let memory = Memory::open()?;
        // What was found together asks the same ones.
        for together in all.chunk_by(|one, next| Arc::ptr_eq(&one.told, &next.told)) {
            self.tell(&memory, &together[0].told)?;
        }
        let mut add = |found: &Found| {
            let site = self.site(found)?;
            if site.timed.get().is_none() {
                let timed = self.timing.time(&memory, found)?;
                site.timed.get_or_init(|| timed);
            }
            site.timers.fetch_add(1, Ordering::Relaxed);
            site.direct();
            Ok(site)
        };
        let results: Vec<Result<&'static Site, Error>> = all.iter().map(&mut add).collect();
        self.settled(results, Self::untime)
    }

    /// Has them timed no longer. Their calls that are under way return as they are to.
    pub fn untime(&mut self, sites: &[&'static Site]) {
        no_longer(sites, |site| &site.timers);
    }

    /// Has unwinders told of calls that detours follow, from now on.
    ///
    /// # Errors
    /// Not all that ask can be told.
    fn tell(&mut self, memory: &Memory, all: &[Asked]) -> Result<(), Error> {
        let sites: Vec<Result<&'static Site, Error>> =
            all.iter().map(|asked| self.told(memory, asked)).collect();
        let made: Vec<&'static Site> = sites.iter().flatten().copied().collect();
        let mut settled = settle(&made)?.into_iter();
        let told: Vec<Result<(), Error>> =
            sites.into_iter().map(|site| site.and_then(|_| settled.next().unwrap_or(Ok(())))).collect();
        // What asks on is told there.
        let asks_on = all.iter().zip(&told).any(|(asked, told)| asked.is_asked_last() && told.is_ok());
        for (asked, told) in all.iter().zip(told) {
            match told {
                Err(error) if asked.is_asked_last() || asked.asks() && !asks_on => {
                    return Err(Error::Unwinder(format!("{}: {error}", asked.found.name.join(":"))));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What stands there is to do so ahead of everything else.
    fn told(&mut self, memory: &Memory, asked: &Asked) -> Result<&'static Site, Error> {
        let site = self.site(&asked.found)?;
        if site.told.get().is_none() {
            let told = self.timing.tell(memory, &asked.found, asked.hook)?;
            site.told.get_or_init(|| told);
            site.direct();
        }
        Ok(site)
    }

    /// Has the jumps stand that were asked for; `undo` takes that back where they cannot.
    fn settled(
        &mut self,
        mut results: Vec<Result<&'static Site, Error>>,
        undo: impl Fn(&mut Self, &[&'static Site]),
    ) -> Result<Vec<Result<&'static Site, Error>>, Error> {
        let sites: Vec<&'static Site> = results.iter().flatten().copied().collect();
        let mut settled = settle(&sites).inspect_err(|_| undo(self, &sites))?.into_iter();
        let mut failed = Vec::new();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            if let (Some(Err(error)), Ok(site)) = (settled.next(), &result) {
                failed.push(*site);
                *result = Err(error);
            }
        }
        undo(self, &failed);
        Ok(results)
    }

    /// Has another function called instead.
    pub fn replace(&mut self, found: &Found, with: u64) -> Result<&'static Site, Error> {
        if with == found.function || with == found.displaced.start {
            return Err(Error::Itself(with));
        }
        let site = self.site(found)?;
        let free = site.replaced_by.compare_exchange(0, with, Ordering::AcqRel, Ordering::Relaxed);
        free.map_err(|_| Error::Replaced(site.found.function))?;
        site.direct();
        let settled = settle(&[site]).and_then(|settled| settled.into_iter().collect());
        settled.inspect_err(|_| site.unreplace()).map(|()| site)
    }

    /// Has it called itself again.
    pub fn put_back(&mut self, site: &'static Site) {
        site.unreplace();
        let _ = settle(&[site]);
    }
}

#[cfg(feature = "script")]
impl All {
    /// What times calls.
    pub fn timing(&mut self) -> &mut Timing {
        &mut self.timing
    }

    /// Has the calls of these go by a script's detours, one for each. `make` makes them, ahead of the code at an address; for each, its site or what is in the way.
    ///
    /// # Errors
    /// What is in the way of all of them; none go there then.
    pub fn link(
        &mut self,
        all: &[(&Found, bool)],
        mut make: impl FnMut(&mut Timing, &mut Arenas, &Memory, usize) -> Result<Link, Error>,
    ) -> Result<Vec<Result<Linked, Error>>, Error> {
        let memory = Memory::open()?;
        for (found, _) in all.iter().filter(|(_, follows)| *follows) {
            self.tell(&memory, &found.told)?;
        }
        let mut add = |(index, (found, follows)): (usize, &(&Found, bool))| {
            let site = self.site(found)?;
            if *follows && site.listeners().iter().any(|heard| heard.lane.is_some()) {
                return Err(Error::Followed(site.found.function));
            }
            let link = make(&mut self.timing, &mut self.arenas, &memory, index)?;
            site.links().push(link);
            site.direct();
            Ok((site, link))
        };
        let results: Vec<Result<Linked, Error>> = all.iter().enumerate().map(&mut add).collect();
        let links: Vec<Linked> = results.iter().flatten().copied().collect();
        let sites: Vec<Result<&'static Site, Error>> =
            results.into_iter().map(|result| result.map(|linked| linked.0)).collect();
        let of = |site: &'static Site| links.iter().filter(move |one| std::ptr::eq(one.0, site)).copied();
        let settled = self.settled(sites, |this, sites| {
            let undone: Vec<Linked> = sites.iter().flat_map(|site| of(site)).collect();
            this.unlink(&undone);
        })?;
        let mut linked = links.iter();
        Ok(settled
            .into_iter()
            .map(|result| {
                result.and_then(|site| {
                    linked
                        .find(|one| std::ptr::eq(one.0, site))
                        .copied()
                        .ok_or(Error::Modified(site.found.function))
                })
            })
            .collect())
    }

    /// Has them go there no longer.
    pub fn unlink(&mut self, links: &[Linked]) {
        for (site, link) in links {
            site.links().retain(|one| one != link);
            site.direct();
        }
        let sites: Vec<&'static Site> = links.iter().map(|linked| linked.0).collect();
        let _ = settle(&sites);
    }
}

/// Under which number a listener follows the calls of a function, if it does.
fn lane_for(listener: &Listener, others: &Listeners, site: &Site) -> Result<Option<Lane>, Error> {
    if !listener.follows() {
        return Ok(None);
    }
    // A detour that follows the call has its return address by then.
    if site.links().iter().any(|link| link.follows) {
        return Err(Error::Followed(site.found.function));
    }
    let is_free = |lane: &Lane| others.iter().all(|heard| heard.lane != Some(*lane));
    let free = (0..LANES as Lane).find(is_free);
    free.map(Some).ok_or(Error::Full(site.found.function))
}
