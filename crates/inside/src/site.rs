//! What stands at a function, and what it is there for.

use crate::call::{Call, Return};
use crate::code::{self, Arenas, instructions};
use crate::find::Found;
use crate::patch::{self, Jump, Memory, Stands};
use crate::points::{self, Kept, LANES, Lanes, NO_LANES};
use crate::room::Pads;
use crate::{Error, busy, threads, traps};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trapless_isa::inside::{Handling, Inside, Saved};

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
    /// Where handling code begins, and the copies of what is displaced.
    handling: u64,
    copies: u64,
    /// The word that the pad goes by, and the one that handling code goes on by.
    slot: &'static AtomicU64,
    next: &'static AtomicU64,
    /// Whom handling code calls; nobody where it is null.
    listeners: AtomicPtr<Listeners>,
    /// What replaces it; 0: nothing.
    replaced_by: AtomicU64,
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

    /// What it is there for, in the words that its code goes by.
    fn direct(&self) {
        let replaced_by = self.replaced_by.load(Ordering::Relaxed);
        let next = if replaced_by == 0 { self.copies } else { replaced_by };
        self.next.store(next, Ordering::Release);
        let is_heard = !self.listeners.load(Ordering::Relaxed).is_null();
        self.slot.store(if is_heard { self.handling } else { next }, Ordering::Release);
    }

    fn is_asked_for(&self) -> bool {
        self.replaced_by.load(Ordering::Relaxed) != 0 || !self.listeners.load(Ordering::Relaxed).is_null()
    }

    /// Gives it other listeners.
    fn set_listeners(&self, listeners: Listeners) {
        let new = if listeners.is_empty() { null_mut() } else { Box::into_raw(Box::new(listeners)) };
        let old = self.listeners.swap(new, Ordering::AcqRel);
        self.direct();
        if !old.is_null() {
            // SAFETY: it was made of a box, and nobody finds it any more.
            threads::drop_later(unsafe { Box::from_raw(old) });
        }
    }

    fn listeners(&self) -> Listeners {
        // SAFETY: only those under the lock take one away, as the caller is.
        unsafe { self.listeners.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default()
    }

    /// Has the jump stand there or not, as it is asked for.
    fn settle(&self) -> Result<(), Error> {
        let memory = Memory::open()?;
        let wanted = self.is_asked_for();
        let behind = self.jump.original.len();
        let rest = memory.read(self.jump.address + behind as u64, self.found.original.len() - behind);
        let stands = match rest.is_some_and(|rest| rest == self.found.original[behind..]) {
            true => self.jump.stands(&memory),
            false => Stands::Other,
        };
        match (stands, wanted) {
            (Stands::Ours, true) | (Stands::Original, false) => Ok(()),
            // Somebody else's stays. What was unloaded is gone.
            (Stands::Other, false) => Ok(()),
            (Stands::Other, true) => Err(Error::Modified(self.found.function)),
            (Stands::Original, true) => {
                self.may_trap()?;
                self.jump.put_in(&memory)
            }
            (Stands::Ours, false) => {
                self.may_trap()?;
                self.jump.take_out(&memory)
            }
        }
    }

    fn may_trap(&self) -> Result<(), Error> {
        patch::refuse_seccomp()?;
        // A forked child has to say so again.
        patch::register()?;
        traps::install()?;
        traps::refuse_blocked()
    }
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
    fn site(&mut self, found: &Found) -> Result<&'static Site, Error> {
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
        let (start, length) = (found.displaced.start, isa.jump_length());
        let handling_length = handling(isa, 0, 0, 0)?.len() as u64;
        let place = self.arenas.place(start, handling_length.next_multiple_of(16) + MOST_COPIES)?;
        let [slot, next] = place.words;
        let copies_at = place.code + handling_length.next_multiple_of(16);
        let copies = isa.copies(&found.displaced, &found.original, copies_at).map_err(Error::Code)?;
        if copies.code.len() as u64 > MOST_COPIES {
            return Err(Error::NoRoom(start));
        }
        let offset = |address: u64| (address - start) as usize;
        let starts: Vec<usize> =
            copies.places.iter().map(|place| offset(place.0)).filter(|at| (1..length).contains(at)).collect();
        let given = [1, 2, 3, 4].map(|at| starts.contains(&at).then_some(isa.trap()));
        let pad_length = isa.pad_length() as u64;
        let pad = self.pads.find(start + length as u64, given, pad_length, slot.as_ptr().addr() as u64)?;
        let jump = Jump {
            address: start,
            bytes: isa.jump(start, pad).map_err(Error::Code)?,
            original: found.original.get(..length).ok_or(Error::NoRoom(start))?.to_vec(),
            starts,
        };
        let site: &'static Site = Box::leak(Box::new(Site {
            found: found.clone(),
            jump,
            handling: place.code,
            copies: copies_at,
            slot,
            next,
            listeners: AtomicPtr::new(null_mut()),
            replaced_by: AtomicU64::new(0),
        }));
        let memory = Memory::open()?;
        let data = std::ptr::from_ref(site).expose_provenance() as u64;
        let next_at = next.as_ptr().addr() as u64;
        let handling = handling(isa, data, next_at, place.code)?;
        if handling.len() as u64 > handling_length {
            return Err(Error::NoRoom(start));
        }
        memory.write(place.code, &handling)?;
        memory.write(copies_at, &copies.code)?;
        memory.write(pad, &isa.pad(pad, slot.as_ptr().addr() as u64).map_err(Error::Code)?)?;
        site.direct();
        let breakpoints = copies.places.iter().filter(|place| offset(place.0) < length);
        let to: Vec<(u64, u64)> =
            breakpoints.map(|&(address, at)| (address, copies_at + u64::from(at))).collect();
        traps::send_on(&to);
        Ok(site)
    }
}

fn handling(isa: &dyn Inside, data: u64, next: u64, at: u64) -> Result<Vec<u8>, Error> {
    let dispatcher = dispatch as *const () as u64;
    let handling = Handling { dispatcher, data, next, vectors: code::vectors() };
    isa.handling(&handling, at).map_err(Error::Code)
}

/// Called by handling code.
extern "C" fn dispatch(saved: *mut Saved, site: u64) {
    threads::unless_inside(|own| {
        // SAFETY: sites stay for good; handling code has saved it, and waits.
        let (site, saved) =
            unsafe { (&*std::ptr::with_exposed_provenance::<Site>(site as usize), &mut *saved) };
        let mut lanes = NO_LANES;
        if site.was_called(saved, &mut lanes) {
            let next = site.next.load(Ordering::Acquire);
            // SAFETY: it is of a call at its entry.
            if !unsafe { points::follow(own, saved, site, next, lanes) } {
                threads::miss();
            }
        }
    });
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
    /// Has a handler called there.
    pub fn listen(&mut self, found: &Found, listener: &Arc<Listener>) -> Result<&'static Site, Error> {
        let site = self.site(found)?;
        let before = site.listeners();
        let lane = match listener.follows() {
            true => {
                let is_free = |lane: &Lane| before.iter().all(|heard| heard.lane != Some(*lane));
                Some((0..LANES as Lane).find(is_free).ok_or(Error::Full(site.found.function))?)
            }
            false => None,
        };
        let heard = Heard { listener: listener.clone(), lane };
        site.set_listeners(before.iter().cloned().chain([heard]).collect());
        site.settle().inspect_err(|_| site.set_listeners(before)).map(|()| site)
    }

    /// Has it called no longer.
    pub fn ignore(&mut self, site: &'static Site, listener: &Arc<Listener>) {
        let stays = |one: &Heard| !Arc::ptr_eq(&one.listener, listener);
        site.set_listeners(site.listeners().into_iter().filter(stays).collect());
        // Where a thread blocks SIGTRAP by now the jump stays, and leads to the function's own instructions.
        let _ = site.settle();
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
        site.settle().inspect_err(|_| site.unreplace()).map(|()| site)
    }

    /// Has it called itself again.
    pub fn put_back(&mut self, site: &'static Site) {
        site.unreplace();
        let _ = site.settle();
    }
}
