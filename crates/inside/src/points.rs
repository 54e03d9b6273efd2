//! Calls that are followed to their return: where each came from, until it has returned or was left.
//!
//! Each goes by a point of its own, whose address stands on the stack where the caller's was. A point is taken ahead of the call and given back
//! behind it, and each thread keeps a few at hand. A call that is left by `longjmp`, or whose thread ends in it, gives nothing back: when there are no
//! more points, those are looked for whose address does not stand where it was put. It does stand there until the dispatcher of the end has
//! been called: the function's return leaves it below the stack pointer, where handlers of signals write nothing.

use crate::call::Return;
use crate::code::{self, instructions};
use crate::object::{self, Sizes};
use crate::site::{Lane, Site};
use crate::threads::{self, Record};
use crate::times::PointsAt;
use crate::{Error, times, unwind};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use trapless_isa::inside::{Ends, Saved};

/// What a handler at the entry keeps for the one at the return.
pub(crate) type Kept = [MaybeUninit<u64>; 2];

/// Handlers at returns that a function can have.
pub(crate) const LANES: usize = 4;

/// For each of those whose handler at the entry was called, its listener's number and what it keeps. 0: nobody's.
pub(crate) type Lanes = [(u64, Kept); LANES];

/// What unwinders and the point's own code know of a call that is followed: as long as the point.
#[repr(C)]
struct Front {
    /// Where it was called from.
    home: AtomicU64,
    /// What the point calls.
    target: AtomicU64,
    /// Where on the stack the return address is.
    slot: AtomicU64,
    /// What it is used for, in the two lowest bits, and how often it was given back.
    uses: AtomicU64,
}

/// What else is known of it.
struct Back {
    site: AtomicPtr<Site>,
    /// The next one in a list of those that are free, from 1 on; 0: none.
    next: AtomicU32,
    /// The one whose call has gone on in this one by a jump, from 1 on; 0: none. And how many there are.
    below: AtomicU32,
    depth: AtomicU32,
    lanes: UnsafeCell<Lanes>,
}

// SAFETY: the lanes are read and written by the one thread that has the point.
unsafe impl Sync for Back {}

#[derive(Clone, Copy)]
struct Point {
    index: u32,
    front: &'static Front,
    back: &'static Back,
}

/// What a point is used for: a call that is under way; one whose handlers are being called. 0: nothing.
const UNDER_WAY: u64 = 1;
const ENDING: u64 = 2;
const STATE: u64 = 3;

/// Calls that can be followed at a time, in all threads together. Memory for more would have to be asked for.
const MOST: u32 = 32_768;

/// Calls that go on in each other by jumps, and are followed.
const DEEPEST: u32 = 64;

/// Points that a thread keeps at hand: so many are got at once, and not more than so many are kept.
const BATCH: u32 = 4;
const KEPT: u32 = 8;

/// Where a search for points that nobody gives back has found fewer, so many calls are let go before the next one.
const FEW: u64 = 1024;

/// All points, and their code.
struct Pool {
    fronts: &'static [Front],
    backs: &'static [Back],
    /// Address of the first one's code, what is on the stack of its call, and bytes to the next one's.
    code: u64,
    on_stack: u64,
    length: u64,
    /// How many were used so far; the others are free.
    fresh: AtomicU32,
    /// The first that was given back, from 1 on, and how often this was changed.
    free: AtomicU64,
    /// Calls that are let go before it is looked for more.
    let_go: AtomicU64,
}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(null_mut());

fn pool() -> Option<&'static Pool> {
    // SAFETY: it is made once, and stays.
    unsafe { POOL.load(Ordering::Acquire).as_ref() }
}

/// The ones that a thread keeps at hand: a list.
pub(crate) struct Cache {
    first: AtomicU32,
    count: AtomicU32,
}

impl Cache {
    pub const fn new() -> Self {
        Self { first: AtomicU32::new(0), count: AtomicU32::new(0) }
    }

    fn put(&self, pool: &Pool, index: u32) {
        pool.backs[index as usize].next.store(self.first.load(Ordering::Relaxed), Ordering::Relaxed);
        self.first.store(index + 1, Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn take(&self, pool: &Pool) -> Option<u32> {
        let index = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        self.first.store(pool.backs[index as usize].next.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        Some(index)
    }
}

/// Makes the points, if there are none yet. By who is alone at it.
pub(crate) fn ready() -> Result<(), Error> {
    if pool().is_some() {
        return Ok(());
    }
    let isa = instructions().ok_or(Error::Machine)?;
    // What lies behind the points is little.
    const BEHIND: u64 = 16 << 10;
    const FRONTS: u64 = MOST as u64 * size_of::<Front>() as u64;
    const BACKS: u64 = MOST as u64 * size_of::<Back>() as u64;
    let sizes = Sizes { code: FRONTS + BEHIND, known: FRONTS + BACKS };
    let ends = Ends {
        dispatcher: leave as *const () as u64,
        unwound: unwound as *const () as u64,
        resume: unwind::resume(),
        personality: unwind::personality(),
        count: MOST,
        known: sizes.known_at(),
        target: offset_of!(Front, target) as u32,
        vectors: code::vectors(),
    };
    let points = isa.points(&ends, object::CODE, object::TABLE).map_err(Error::Code)?;
    if points.code.len() as u64 > sizes.code || u64::from(points.length) != size_of::<Front>() as u64 {
        return Err(Error::Machine);
    }
    let base = object::load(&points, sizes)?;
    let code = base + object::CODE;
    unwind::is_told(&points, code)?;
    // SAFETY: the library has that memory, which stays for good and is all 0: that is a point.
    let (fronts, backs) = unsafe {
        let known = (base + sizes.known_at()) as usize;
        let [fronts, backs] = [known, known + FRONTS as usize];
        let count = MOST as usize;
        (
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(fronts), count),
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(backs), count),
        )
    };
    let pool = Pool {
        fronts,
        backs,
        code,
        on_stack: code + u64::from(points.back),
        length: points.length.into(),
        fresh: AtomicU32::new(0),
        free: AtomicU64::new(0),
        let_go: AtomicU64::new(0),
    };
    // Whoever times calls may take one of them off a stack.
    times::there_are_points(pool.places());
    POOL.store(Box::into_raw(Box::new(pool)), Ordering::Release);
    Ok(())
}

/// Has the call that handling code has saved go by a point to where it would go on; whether there is one for it.
///
/// # Safety
/// `saved` is of a call at its entry, by the thread whose record is `own`.
pub(crate) unsafe fn follow(own: &Record, saved: &mut Saved, site: &'static Site, lanes: Lanes) -> bool {
    let Some(pool) = pool() else { return false };
    let at = saved.general[crate::call::RSP];
    let slot: *mut u64 = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: at an entry the stack pointer is at the return address, which is the function's by now.
    let there = unsafe { slot.read_volatile() };
    if times::are_at(there) {
        // What is known of the call that goes on in this one by a jump is found by what stands there.
        return false;
    }
    let below = pool.of(there);
    let depth = below.map_or(0, |below| below.back.depth.load(Ordering::Relaxed) + 1);
    if depth >= DEEPEST {
        return false;
    }
    let Some(point) = pool.take(&own.points) else { return false };
    let Point { index, front, back } = point;
    let home = below.map_or(there, |below| below.front.home.load(Ordering::Relaxed));
    front.home.store(home, Ordering::Relaxed);
    front.target.store(saved.way, Ordering::Relaxed);
    front.slot.store(at, Ordering::Relaxed);
    back.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
    back.below.store(below.map_or(0, |below| below.index + 1), Ordering::Relaxed);
    back.depth.store(depth, Ordering::Relaxed);
    // SAFETY: a point that was taken is this thread's, and so is the slot.
    unsafe {
        *back.lanes.get() = lanes;
        slot.write_volatile(pool.on_stack + u64::from(index) * pool.length);
    }
    // Behind what stands on the stack: whoever finds it under way finds that there.
    point.set(UNDER_WAY);
    (saved.way, saved.by_point) = (pool.code + u64::from(index) * pool.length, 1);
    true
}

/// Where points are, once there are any.
pub(crate) fn places() -> Option<PointsAt> {
    pool().map(Pool::places)
}

/// Whether there is code of points.
pub(crate) fn are_at(address: u64) -> bool {
    pool().is_some_and(|pool| address.wrapping_sub(pool.code) < u64::from(MOST) * pool.length)
}

/// Where a function goes back to, by what is on the stack for it.
pub(crate) fn home(there: u64) -> u64 {
    let point = pool().and_then(|pool| pool.of(there));
    point.map_or(there, |point| point.front.home.load(Ordering::Relaxed))
}

impl Point {
    fn state(self) -> u64 {
        self.front.uses.load(Ordering::Acquire) & STATE
    }

    fn set(self, state: u64) {
        self.front.uses.store(self.front.uses.load(Ordering::Relaxed) & !STATE | state, Ordering::Release);
    }
}

/// One use more that is over, and free.
fn freed(uses: u64) -> u64 {
    (uses & !STATE).wrapping_add(STATE + 1)
}

impl Pool {
    /// A point and what unwinders know of it are equally long, and the caller's address comes first there.
    fn places(&self) -> PointsAt {
        const { assert!(offset_of!(Front, home) == 0) };
        let known = self.fronts.as_ptr().addr() as u64;
        PointsAt {
            start: self.on_stack,
            size: self.length * u64::from(MOST),
            apart: known.wrapping_sub(self.on_stack),
        }
    }

    fn at(&self, index: u32) -> Point {
        Point { index, front: &self.fronts[index as usize], back: &self.backs[index as usize] }
    }

    /// The point of which this stands on a stack.
    fn of(&self, there: u64) -> Option<Point> {
        let offset = there.wrapping_sub(self.on_stack);
        let index = offset / self.length;
        let is_one = offset.is_multiple_of(self.length) && index < u64::from(MOST);
        is_one.then(|| self.at(index as u32))
    }

    /// The point that stands on a stack, and those whose calls have gone on in it.
    fn chain(&self, there: u64) -> impl Iterator<Item = Point> {
        let below = |point: &Point| point.back.below.load(Ordering::Relaxed).checked_sub(1);
        std::iter::successors(self.of(there), move |point| Some(self.at(below(point)?)))
            .take(DEEPEST as usize)
    }

    fn take(&self, own: &Cache) -> Option<Point> {
        own.take(self).or_else(|| self.take_more(own)).map(|index| self.at(index))
    }

    #[cold]
    fn take_more(&self, own: &Cache) -> Option<u32> {
        let more = || (0..BATCH).map_while(|_| self.take_shared()).for_each(|index| own.put(self, index));
        more();
        own.take(self).or_else(|| {
            let one_less = |left: u64| left.checked_sub(1);
            if self.let_go.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
                self.sweep();
                more();
            }
            own.take(self)
        })
    }

    fn take_shared(&self) -> Option<u32> {
        let mut free = self.free.load(Ordering::Acquire);
        while let Some(index) = (free as u32).checked_sub(1) {
            let next = self.backs[index as usize].next.load(Ordering::Relaxed);
            let changed = ((free >> 32) + 1) << 32 | u64::from(next);
            match self.free.compare_exchange(free, changed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
        let next = |used: u32| (used < MOST).then_some(used + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    fn give_shared(&self, index: u32) {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            self.backs[index as usize].next.store(free as u32, Ordering::Relaxed);
            let changed = ((free >> 32) + 1) << 32 | u64::from(index + 1);
            match self.free.compare_exchange(free, changed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// A call is over. `own`: this thread's, unless it is in the midst of taking or giving one.
    fn give(&self, own: Option<&Cache>, point: Point) {
        let uses = &point.front.uses;
        uses.store(freed(uses.load(Ordering::Relaxed)), Ordering::Release);
        match own.filter(|own| own.count.load(Ordering::Relaxed) < KEPT) {
            Some(own) => own.put(self, point.index),
            None => self.give_shared(point.index),
        }
    }

    /// Looks for points that nobody gives back.
    fn sweep(&self) {
        if SWEEPING.swap(true, Ordering::Acquire) {
            return;
        }
        let mut found = 0;
        let mut give = |index| {
            found += 1;
            self.give_shared(index);
        };
        threads::of_nobody(|cache| {
            while let Some(index) = cache.take(self) {
                give(index);
            }
        });
        let used = self.fresh.load(Ordering::Relaxed);
        for point in (0..used).map(|index| self.at(index)) {
            let uses = point.front.uses.load(Ordering::Acquire);
            if uses & STATE != UNDER_WAY {
                continue;
            }
            let Ok(is_left) = self.is_left(point) else { break };
            let exchange =
                |to| point.front.uses.compare_exchange(uses, to, Ordering::AcqRel, Ordering::Relaxed);
            // Only if it has been the same call all the time.
            if is_left && exchange(freed(uses)).is_ok() {
                give(point.index);
            }
        }
        self.let_go.store(if found < FEW { FEW } else { 0 }, Ordering::Relaxed);
        SWEEPING.store(false, Ordering::Release);
    }

    /// Whether what was put on the stack for a call stands there no more, by itself or behind that of a function that it has gone on in.
    fn is_left(&self, point: Point) -> Result<bool, Unread> {
        let slot = point.front.slot.load(Ordering::Relaxed);
        let Some(there) = word(slot)? else { return Ok(true) };
        if times::are_at(there) {
            // A detour that follows the same call may have taken what stood there. What is there now is that one's as long as it is one of theirs.
            let on_stack = self.on_stack + u64::from(point.index) * self.length;
            return Ok(!times::may_have(slot, on_stack) && word(slot)?.is_some_and(times::are_at));
        }
        for next in self.chain(there) {
            if next.index == point.index {
                return Ok(false);
            }
            match next.state() {
                UNDER_WAY if next.front.slot.load(Ordering::Relaxed) != slot => return Ok(true),
                UNDER_WAY => {}
                // It comes or goes: nothing is known.
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Somebody sweeps.
static SWEEPING: AtomicBool = AtomicBool::new(false);

/// In a forked child, which has one thread only.
pub(crate) fn in_child() {
    SWEEPING.store(false, Ordering::Release);
}

/// Memory could not be read, and it is not because there is none.
struct Unread;

/// A word of a stack that may be gone; `None`: it is.
fn word(at: u64) -> Result<Option<u64>, Unread> {
    let mut word = 0u64;
    let [own, other] = [(&raw mut word).cast(), std::ptr::with_exposed_provenance_mut(at as usize)]
        .map(|base| libc::iovec { iov_base: base, iov_len: 8 });
    /// As long as the kernel takes them: the last argument of six is on the stack, where what is shorter has anything beside it.
    const ONE: libc::c_ulong = 1;
    const NO_FLAGS: libc::c_ulong = 0;
    // SAFETY: one word is written where one is; another may be read that is not there. Neither call ends a thread that is to be cancelled.
    unsafe {
        let read = libc::syscall(
            libc::SYS_process_vm_readv,
            libc::getpid(),
            &raw const own,
            ONE,
            &raw const other,
            ONE,
            NO_FLAGS,
        );
        if read == 8 {
            return Ok(Some(word));
        }
        const PAGE: u64 = 4096;
        let mut resident = 0u8;
        let page = std::ptr::without_provenance_mut::<c_void>((at & !(PAGE - 1)) as usize);
        let seen = libc::syscall(libc::SYS_mincore, page, PAGE, &raw mut resident);
        match seen != 0 && *libc::__errno_location() == libc::ENOMEM {
            true => Ok(None),
            false => Err(Unread),
        }
    }
}

/// A call that has come back.
pub(crate) struct Ended {
    pub site: &'static Site,
    pub lanes: Lanes,
}

/// Puts the caller's address where the thread goes on by, and gives the points back by which it went, each behind `work`.
///
/// # Safety
/// At `slot` there is the address of a point whose call has come back or was left.
unsafe fn end(slot: *mut u64, state: u64, mut work: impl FnMut(Ended)) {
    let Some(pool) = pool() else { return };
    // SAFETY: as the caller says.
    let there = unsafe { slot.read_volatile() };
    // One that is not under way has come back before, by a copy of its stack.
    let are_own =
        pool.chain(there).take_while(|point| point.state() == state).map(|point| point.set(ENDING)).count();
    // SAFETY: the slot is nobody's, since the call has come back.
    unsafe { slot.write_volatile(home(there)) };
    let mut left = pool.chain(there).take(are_own);
    let mut next = left.next();
    while let Some(point) = next {
        // Found ahead of giving this one back: it is another call's then.
        next = left.next();
        let mut is_given = false;
        threads::unless_inside(|own| {
            // SAFETY: the point is this thread's until it is given back; sites stay.
            let (site, lanes) =
                unsafe { (point.back.site.load(Ordering::Relaxed).as_ref(), *point.back.lanes.get()) };
            if let Some(site) = site {
                work(Ended { site, lanes });
            }
            pool.give(Some(&own.points), point);
            is_given = true;
        });
        if !is_given {
            pool.give(None, point);
        }
    }
}

/// Called at the end of a call, by its code.
extern "C" fn leave(saved: *mut Saved) {
    // SAFETY: the code has saved it, with the stack pointer at the slot, and waits.
    unsafe {
        let slot = std::ptr::with_exposed_provenance_mut((*saved).general[crate::call::RSP] as usize);
        end(slot, UNDER_WAY, |ended| {
            let mut returned = Return::new(saved, ended.site.function());
            ended.site.has_returned(&ended.lanes, &mut returned);
        });
    }
}

/// An unwinder is about to leave a call, and to write over what is on the stack for it.
pub(crate) fn are_left(on_stack: u64) {
    let chain = pool().into_iter().flat_map(|pool| pool.chain(on_stack));
    chain.take_while(|point| point.state() == UNDER_WAY).for_each(|point| point.set(ENDING));
}

/// Called where an unwinder has left a call.
extern "C" fn unwound(slot: *mut u64) {
    // SAFETY: as the code has it.
    unsafe { end(slot, ENDING, |ended| ended.site.was_left(&ended.lanes)) };
}

/// What nobody has entered.
pub(crate) const NO_LANES: Lanes = [(0, [MaybeUninit::uninit(); 2]); LANES];

/// Whether a lane is that of a handler which was called at the entry.
pub(crate) fn of(lanes: &Lanes, lane: Lane, listener: u64) -> Option<Kept> {
    let (entered, kept) = lanes[usize::from(lane)];
    (entered == listener).then_some(kept)
}
