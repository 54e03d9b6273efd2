//! Probes in a program's own process: handlers of the program's own at functions, and functions that replace others, armed and taken out
//! while all threads run. Nobody is stopped, nobody is traced, and no memory is writable and executable at once.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! # if !trapless_inside::is_possible() || matches!(trapless_inside::inside(), Err(trapless_inside::Error::Seccomp)) { return Ok(()); }
//! let calls = Arc::new(AtomicU64::new(0));
//! let probe = trapless_inside::inside()?.on("libc.so*:getppid", {
//!     let calls = calls.clone();
//!     move |_| drop(calls.fetch_add(1, Ordering::Relaxed))
//! })?;
//! std::os::unix::process::parent_id();
//! assert_eq!(calls.load(Ordering::Relaxed), 1);
//! drop(probe);
//! std::os::unix::process::parent_id();
//! assert_eq!(calls.load(Ordering::Relaxed), 1);
//! # Ok::<(), trapless_inside::Error>(())
//! ```
//!
//! # The protocol
//!
//! A jump of five bytes goes over instructions that any thread may be about to run, or may have been interrupted in. What they are
//! is known: the same proof is made as for probes from outside, so that no branch leads into their midst. Their copies run elsewhere.
//!
//! 1. The first byte becomes a breakpoint, and `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)` makes all threads of the process see it. Who comes
//!    there gets SIGTRAP, and our handler sends them on to the first copy.
//! 2. So does each byte of the jump at which another of the instructions begins, and `membarrier` again. Who stands there, or comes back from a
//!    handler of a signal that interrupted them there, however late, is sent on to that instruction's copy. These bytes stay breakpoints: the jump
//!    leads to an address that has them in its distance.
//! 3. What is left of the jump is written behind its first byte, which nobody runs any more; and `membarrier`.
//! 4. The first byte becomes the jump's; and `membarrier`, so that no call after that is missed.
//!
//! Taking out goes the other way round: breakpoint, the rest, the beginnings of instructions, the first byte. At every moment every thread finds whole
//! instructions or a breakpoint. The code is written through `/proc/self/mem`, a page of its own that the kernel makes for it.
//!
//! Code for a site is made once and kept, since a thread may be anywhere in it at any time: a function that is probed again and again takes no
//! more memory for it. A handler that was taken out is dropped as soon as no thread can be in it: at once mostly, else when the next probe goes in or
//! out (`threads`).
//!
//! # What has to be known
//!
//! - The kernel ends a process where a thread meets a breakpoint and blocks SIGTRAP. So nothing is changed where a thread does, or a handler of a signal has it
//!   in its mask. One that blocks it only for the moment of a change, and comes to the very function meanwhile, is not seen: the C library blocks all
//!   signals while it makes or ends a thread, and in the child of `posix_spawn`. Functions that it calls there (`close`, `dup2`, `sigaction`, `munmap`)
//!   are better left alone where such things happen all the time.
//! - What a handler calls calls no handlers; nor does what a handler of a signal calls which interrupts one.
//! - Where an instruction begins at the fifth byte of a function, its jump can lead to few addresses. If those are taken, or there are none, as in a program that is loaded at a
//!   fixed address low in memory, a jump with a byte ahead of it is tried, and one by padding near the function, where another jump stays. Else it is left alone.
//! - Probes are put in and taken out by threads, and not by handlers of signals, which may have interrupted just that.
//! - A handler comes back: one that leaves by `longjmp` or ends its thread keeps what was taken out meanwhile until the thread has ended.
//! - A library stays loaded while a function of it is probed. What is loaded in its place is not touched.
//! - The functions of Rust's own libraries in the program that has this crate, and the dynamic loader's, are left alone.
//! - Handlers of signals that interrupt a handler, a script's body, or the code around either, see that code, and their walks of the stack end there. They pass calls that are
//!   followed.
//! - A thread is not to be cancelled (`pthread_cancel`) while it is in a handler.
//! - Where calls are timed ([`Inside::latency`]), `dl_iterate_phdr` and `_dl_find_object` of the C library get a jump for good. Where none can be written, as no address suits it,
//!   nothing is timed ([`Error::Unwinder`]). From outside no calls are followed in such a process any more.
//! - Libraries that come with the unwinder of the nongnu project, or copy stacks away, are not to be loaded while calls are timed.
//! - Calls have handlers at their returns only where there is one unwinder, the system's (`libgcc_s.so`), and no stack is copied away (greenlets). Libraries that bring another one,
//!   or do that, are not to be loaded later.
//!
//! | module | question it answers |
//! |---|---|
//! | `find` | which instructions does a jump replace at what somebody names? |
//! | `known` | what was found of a function before, and does that still hold? |
//! | `site` | what stands at a function, and what is it there for? |
//! | `patch` | how are bytes changed that threads run? |
//! | `traps` | who is sent on from a breakpoint, and where do the program's own go? |
//! | `room` | where can a jump lead that has breakpoints among its bytes? |
//! | `code` | where do copies lie, and the words that they go by? |
//! | `counts` | where are calls counted that have no handler? |
//! | `times` | how are they timed, and what are unwinders told of it? |
//! | `detours` | how is the code made that does either? |
//! | `scripts` | how does a script of the probe language run here? |
//! | `call` | what does a handler see, and what can it change? |
//! | `points` | which calls are under way whose return has a handler? |
//! | `object` | where do unwinders find those? |
//! | `unwind` | how does an exception leave them? |
//! | `threads` | who is in a handler? |
//! | `own` | where does a thread find what is noted of it? |
//! | `busy` | who changes probes, and what of that does a forked child find? |

mod busy;
mod call;
mod code;
mod counts;
mod detours;
mod error;
mod find;
mod known;
mod object;
mod own;
mod patch;
mod points;
mod room;
#[cfg(feature = "script")]
mod scripts;
mod site;
mod threads;
mod times;
mod traps;
mod unwind;

pub use call::{Call, Return, Word};
pub use error::Error;
#[cfg(feature = "script")]
pub use scripts::{Losses, Results, Script, ScriptBucket, ScriptMap, ScriptOptions, Shown, Value};
pub use trapless_session::error::Error as FindError;
pub use trapless_session::outcome::{Bucket, LatencySummary, Skipped};

use find::Purpose;
use points::Kept;
use site::{Listener, Site};
use std::mem::MaybeUninit;
use std::sync::Arc;
use trapless_wire::{Latency as Histogram, Numbers};

/// Whether there can be probes in one's own process here: on x86-64.
pub fn is_possible() -> bool {
    code::instructions().is_some()
}

/// Makes ready for probes in this process.
///
/// # Errors
/// Not on this machine ([`is_possible`]); the kernel has no `membarrier`; a seccomp filter might end the process for calling it, and
/// [`Inside::allow_seccomp`] was not said.
pub fn inside() -> Result<Inside, Error> {
    Inside(()).ready()
}

/// Drops handlers that were taken out while threads were in them, as far as no thread is any more; how many are not dropped yet. The same is done whenever a
/// probe goes in or out: this is for who waits for it, as ahead of unloading what the handlers' code is in.
///
/// On a thread that is in a handler itself that one stays waited for.
pub fn reclaim() -> usize {
    threads::collect();
    threads::left()
}

/// Probes in this process.
#[derive(Clone, Copy, Debug)]
pub struct Inside(());

impl Inside {
    /// The same, where a seccomp filter is known to let `membarrier`, `mmap` and writing to `/proc/self/mem` pass; for handlers at returns also
    /// `memfd_create`, `process_vm_readv` and `mincore`, for counts `madvise`, for scripts also `process_vm_readv`, `ftruncate`, `fallocate` and `lseek`, and for latencies that, `mprotect`, `munlock` and `prctl`.
    ///
    /// # Errors
    /// As [`inside`].
    pub fn allow_seccomp() -> Result<Self, Error> {
        patch::allow_seccomp();
        Self(()).ready()
    }

    fn ready(self) -> Result<Self, Error> {
        code::instructions().ok_or(Error::Machine)?;
        patch::refuse_seccomp()?;
        patch::register()?;
        threads::of_this_process();
        Ok(self)
    }

    /// Calls `handler` at the entries of all functions that a pattern means: `MODULE:FUNCTION`, with globs on both sides, as on the command
    /// line. It runs on the thread that calls the function, ahead of it. What of that cannot be probed is left alone
    /// ([`Probe::skipped`]).
    ///
    /// What a handler calls itself calls no handlers. Where it panics, that is counted, and the program goes on, unless panics abort it.
    ///
    /// # Errors
    /// The pattern is malformed or means nothing that can be probed; a thread blocks SIGTRAP.
    pub fn on(
        self,
        pattern: &str,
        handler: impl Fn(&mut Call<'_>) + Send + Sync + 'static,
    ) -> Result<Probe, Error> {
        self.listen(pattern, at_entry(handler))
    }

    /// Calls `handler` at the entry of this function.
    ///
    /// # Errors
    /// It is no function of a mapped file, or cannot be probed; a thread blocks SIGTRAP.
    pub fn on_function(
        self,
        function: *const (),
        handler: impl Fn(&mut Call<'_>) + Send + Sync + 'static,
    ) -> Result<Probe, Error> {
        self.listen(function, at_entry(handler))
    }

    /// Calls `handler` where a call of one of these functions returns, ahead of its caller. Of calls that began before, and of those that a handler has skipped
    /// or that are left by an exception or `longjmp`, it is not called.
    ///
    /// # Errors
    /// As [`Self::on`]; exceptions could not pass, as there is another unwinder.
    pub fn on_return(
        self,
        pattern: &str,
        handler: impl Fn(&mut Return<'_>) + Send + Sync + 'static,
    ) -> Result<Probe, Error> {
        self.around(pattern, |_| (), move |returned, ()| handler(returned))
    }

    /// Calls `enter` at the entries of the functions that a pattern means, and `leave` where that call returns, with what `enter` has kept for it.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// # if !trapless_inside::is_possible() || matches!(trapless_inside::inside(), Err(trapless_inside::Error::Seccomp)) { return Ok(()); }
    /// let probe = trapless_inside::inside()?.around(
    ///     "libc.so*:getppid",
    ///     |_| Instant::now(),
    ///     |returned, began| println!("{} after {:?}", returned.value::<i32>(), began.elapsed()),
    /// )?;
    /// std::os::unix::process::parent_id();
    /// # drop(probe);
    /// # Ok::<(), trapless_inside::Error>(())
    /// ```
    ///
    /// What is kept has 16 bytes at most. The thread that returns may be another one, if the program moves stacks between threads.
    ///
    /// # Errors
    /// As [`Self::on_return`].
    pub fn around<T: Copy + Send + 'static>(
        self,
        pattern: &str,
        enter: impl Fn(&mut Call<'_>) -> T + Send + Sync + 'static,
        leave: impl Fn(&mut Return<'_>, T) + Send + Sync + 'static,
    ) -> Result<Probe, Error> {
        self.listen(pattern, at_both(enter, leave))
    }

    /// The same at this function.
    ///
    /// # Errors
    /// It is no function of a mapped file, or cannot be probed; otherwise as [`Self::around`].
    pub fn around_function<T: Copy + Send + 'static>(
        self,
        function: *const (),
        enter: impl Fn(&mut Call<'_>) -> T + Send + Sync + 'static,
        leave: impl Fn(&mut Return<'_>, T) + Send + Sync + 'static,
    ) -> Result<Probe, Error> {
        self.listen(function, at_both(enter, leave))
    }

    /// Counts the calls of the functions that a pattern means, without a handler: that costs what it costs from outside.
    ///
    /// ```
    /// # if !trapless_inside::is_possible() || matches!(trapless_inside::inside(), Err(trapless_inside::Error::Seccomp)) { return Ok(()); }
    /// let count = trapless_inside::inside()?.count("libc.so*:getppid")?;
    /// std::os::unix::process::parent_id();
    /// assert_eq!(count.calls(), 1);
    /// # Ok::<(), trapless_inside::Error>(())
    /// ```
    ///
    /// All calls are counted, those that handlers make among them, and exactly, whichever thread makes them; children of vfork count as their parent. Threads that
    /// were made without a thread pointer of their own (`clone` without `CLONE_SETTLS`) count where the thread does that made them, and may take a call from each other. In
    /// a forked child numbers go on from what they were.
    ///
    /// # Errors
    /// As [`Self::on`]; there is no memory for counters.
    pub fn count(self, pattern: &str) -> Result<Count, Error> {
        self.counts(pattern)
    }

    /// The same for this function.
    ///
    /// # Errors
    /// It is no function of a mapped file, or cannot be probed; there is no memory for counters.
    pub fn count_function(self, function: *const ()) -> Result<Count, Error> {
        self.counts(function)
    }

    fn counts(self, place: impl Place) -> Result<Count, Error> {
        site::alone(|all| {
            let (found, mut skipped) = place.find(Purpose::Count)?;
            let results = all.count(&found)?;
            let sites = sorted(&found, results, &mut skipped, |sites| all.uncount(sites))?;
            // Numbers of whoever has asked before are in it, and only grow.
            Ok(Count { sites: sites.into_iter().map(|site| (site, site.total())).collect(), skipped })
        })
    }

    /// Times the calls of the functions that a pattern means, from their entries to their returns, without a handler: that costs what it costs from outside.
    ///
    /// ```
    /// # if !trapless_inside::is_possible() || matches!(trapless_inside::inside(), Err(trapless_inside::Error::Seccomp)) { return Ok(()); }
    /// let latency = trapless_inside::inside()?.latency("libc.so*:getppid")?;
    /// std::os::unix::process::parent_id();
    /// assert_eq!(latency.calls(), 1);
    /// let times = latency.times();
    /// println!("{} ns, and 99 % within {} ns", times.avg, times.p99);
    /// # Ok::<(), trapless_inside::Error>(())
    /// ```
    ///
    /// A call counts when it returns, once it was entered while its function was timed by anybody. So calls that were under way when a function is timed
    /// for the first time are in no numbers; those that are under way when that ends are in the numbers of whoever times it when they return. Calls that are left by an
    /// exception or `longjmp`, that never return, or that a handler has skipped are in none. What handlers at the function take is not in its times, and what they
    /// call is timed as all calls are.
    ///
    /// Return addresses of calls under way are elsewhere than on the stack. Unwinders are told the real ones, whichever they are and whenever they were loaded: what
    /// they ask in the C library (`_dl_find_object`, `dl_iterate_phdr`) has a jump of ours from the first time on, for good. Code that
    /// reads return addresses itself and asks nobody sees others. Functions that look at their own, return twice or change stacks are refused.
    ///
    /// Calls are let go without, and told as [`Latency::lost`]: those of more than 1023 threads with different thread pointers, over all the time; on more than
    /// 128 MiB of stacks; of more than 65,536 calls that go on in each other by jumps; and those that go to a replacement. In a forked child numbers go on from what they
    /// were, and its calls return as its parent's do.
    ///
    /// # Errors
    /// As [`Self::on`]; unwinders cannot be told; there is no memory for it; the processor's clock cannot be read.
    pub fn latency(self, pattern: &str) -> Result<Latency, Error> {
        self.times(pattern)
    }

    /// The same for this function.
    ///
    /// # Errors
    /// It is no function of a mapped file, or cannot be probed; otherwise as [`Self::latency`].
    pub fn latency_function(self, function: *const ()) -> Result<Latency, Error> {
        self.times(function)
    }

    fn times(self, place: impl Place) -> Result<Latency, Error> {
        times::may_read_clock()?;
        site::alone(|all| {
            let (found, mut skipped) = place.find(Purpose::Time)?;
            let results = all.time(&found)?;
            let sites = sorted(&found, results, &mut skipped, |sites| all.untime(sites))?;
            // As with counts.
            let sites = sites.into_iter().map(|site| (site, site.numbers())).collect();
            Ok(Latency { sites, skipped, unwound: times::unwound() })
        })
    }

    fn listen(self, place: impl Place, listener: Listener) -> Result<Probe, Error> {
        let listener = Arc::new(listener);
        // What it has may take probes out when it is dropped, so that is not done while we are alone at it, if this fails.
        let ours = listener.clone();
        let probe = site::alone(|all| {
            let purpose = if listener.follows() { Purpose::Follow } else { Purpose::Enter };
            let (found, mut skipped) = place.find(purpose)?;
            if purpose == Purpose::Follow {
                points::ready()?;
            }
            let results = all.listen(&found, &listener)?;
            let sites = sorted(&found, results, &mut skipped, |sites| all.ignore(sites, &listener))?;
            Ok(Probe { listener, sites, skipped })
        });
        drop(ours);
        probe
    }

    /// What [`Replacement::original`] will be for this function, ahead of replacing it: whoever replaces it may be called, and want to call that, before
    /// [`Self::replace`] is back. It can be called from now on, and stays callable.
    ///
    /// # Errors
    /// It is no function of a mapped file, or cannot be probed.
    pub fn original(self, function: *const ()) -> Result<*const (), Error> {
        let site = site::alone(|all| all.site(&find::at(function.addr() as u64, Purpose::Enter)?))?;
        Ok(std::ptr::with_exposed_provenance(site.original() as usize))
    }

    /// Has all calls of `function` go to `with` instead, until the replacement is dropped. [`Replacement::original`] can be called meanwhile.
    ///
    /// # Errors
    /// It is no function of a mapped file, cannot be probed, or is replaced already; a thread blocks SIGTRAP.
    ///
    /// # Safety
    /// Whoever calls `function` can call `with` in the same way: it has the same convention, arguments and result, and does what its callers
    /// rely on.
    pub unsafe fn replace(self, function: *const (), with: *const ()) -> Result<Replacement, Error> {
        let replace = |all: &mut site::All| {
            all.replace(&find::at(function.addr() as u64, Purpose::Enter)?, with.addr() as u64)
        };
        site::alone(replace).map(|site| Replacement { site })
    }
}

/// The sites that are probed; what is in the way of one among several is `skipped`.
///
/// # Errors
/// What is in the way of others, or of all. `undo` has taken back what was done at sites.
fn sorted<T>(
    found: &[find::Found],
    results: Vec<Result<T, Error>>,
    skipped: &mut Vec<Skipped>,
    undo: impl FnOnce(&[T]),
) -> Result<Vec<T>, Error> {
    let (mut sites, mut failed) = (Vec::with_capacity(found.len()), None);
    for (one, result) in found.iter().zip(results) {
        match result {
            Ok(site) => sites.push(site),
            Err(error) if error.is_of_a_site() && found.len() > 1 => skipped.push(one.left_alone(&error)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => {
            undo(&sites);
            Err(error)
        }
        None if sites.is_empty() => Err(find::nothing(skipped)),
        None => Ok(sites),
    }
}

/// What somebody names.
trait Place {
    fn find(self, purpose: Purpose) -> Result<(Vec<find::Found>, Vec<Skipped>), Error>;
}

impl Place for &str {
    fn find(self, purpose: Purpose) -> Result<(Vec<find::Found>, Vec<Skipped>), Error> {
        find::by_pattern(self, purpose)
    }
}

impl Place for *const () {
    fn find(self, purpose: Purpose) -> Result<(Vec<find::Found>, Vec<Skipped>), Error> {
        Ok((vec![find::at(self.addr() as u64, purpose)?], Vec::new()))
    }
}

/// A handler at entries, which keeps nothing.
fn at_entry(handler: impl Fn(&mut Call<'_>) + Send + Sync + 'static) -> Listener {
    let enter = move |call: &mut Call<'_>| {
        handler(call);
        [MaybeUninit::uninit(); 2]
    };
    Listener::new(Box::new(enter), None)
}

/// One at entries and one at returns.
fn at_both<T: Copy + Send + 'static>(
    enter: impl Fn(&mut Call<'_>) -> T + Send + Sync + 'static,
    leave: impl Fn(&mut Return<'_>, T) + Send + Sync + 'static,
) -> Listener {
    const {
        assert!(
            size_of::<T>() <= size_of::<Kept>() && align_of::<T>() <= align_of::<Kept>(),
            "at most 16 bytes are kept"
        )
    };
    let enter = move |call: &mut Call<'_>| {
        let mut kept: Kept = [MaybeUninit::uninit(); 2];
        // SAFETY: there is room for it.
        unsafe { kept.as_mut_ptr().cast::<T>().write(enter(call)) };
        kept
    };
    let leave = move |returned: &mut Return<'_>, kept: Kept| {
        // SAFETY: it was written at the entry.
        leave(returned, unsafe { kept.as_ptr().cast::<T>().read() });
    };
    Listener::new(Box::new(enter), Some(Box::new(leave)))
}

/// A handler at functions. It is called until this is dropped; threads that are in it by then end it.
#[must_use = "the handler is called until this is dropped"]
pub struct Probe {
    listener: Arc<Listener>,
    sites: Vec<&'static Site>,
    skipped: Vec<Skipped>,
}

impl Probe {
    /// How many functions it is at.
    pub fn functions(&self) -> usize {
        self.sites.len()
    }

    /// Functions that matched and were left alone, and why.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// How many calls of functions with handlers were let go without, in the whole process so far: more than 4096 threads had handlers called, or
    /// more than 32,768 calls were to be followed to their return at a time (of those that `longjmp` leaves some may count as under way), or 64 that go on in
    /// each other; a function that is timed had gone on in theirs by a jump; and all calls of children that were made without the C library's `fork`, before they ask for probes themselves.
    pub fn missed(&self) -> u64 {
        threads::missed()
    }

    /// How often the handler panicked.
    pub fn panics(&self) -> u64 {
        self.listener.panics()
    }

    /// How many calls that were to be followed to their return were left by an exception, a panic or the end of their thread. Not seen are those that were timed as
    /// well ([`Inside::latency`]): see [`Latency::unwound`].
    pub fn unwound(&self) -> u64 {
        self.listener.unwound()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !self.sites.is_empty() {
            site::alone(|all| all.ignore(&std::mem::take(&mut self.sites), &self.listener));
        }
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.sites.iter().take(3).map(|site| site.name()).collect();
        let mut probe = f.debug_struct("Probe");
        probe.field("functions", &self.functions()).field("of_them", &names).finish_non_exhaustive()
    }
}

/// A function that is called instead of another one, until this is dropped.
#[derive(Debug)]
#[must_use = "the function is replaced until this is dropped"]
pub struct Replacement {
    site: &'static Site,
}

impl Replacement {
    /// What was replaced: it can be called as the function itself could. It stays callable.
    pub fn original(&self) -> *const () {
        std::ptr::with_exposed_provenance(self.site.original() as usize)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        site::alone(|all| all.put_back(self.site));
    }
}

/// Calls that are counted, until this is dropped.
#[must_use = "calls are counted until this is dropped"]
pub struct Count {
    /// With what was counted before.
    sites: Vec<(&'static Site, u64)>,
    skipped: Vec<Skipped>,
}

/// How many calls there were since the number was so.
fn since((site, before): &(&'static Site, u64)) -> u64 {
    site.total().wrapping_sub(*before)
}

impl Count {
    /// How many functions' calls are counted.
    pub fn functions(&self) -> usize {
        self.sites.len()
    }

    /// Functions that matched and were left alone, and why.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.sites.iter().map(since).sum()
    }

    /// How many there were of each function, as `MODULE:FUNCTION`.
    pub fn by_function(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.sites.iter().map(|counted| (counted.0.name(), since(counted)))
    }

    /// How many there were of the function with this number in that order; `None`: there are not so many.
    pub fn calls_of(&self, number: usize) -> Option<u64> {
        self.sites.get(number).map(since)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let sites: Vec<&'static Site> = self.sites.drain(..).map(|(site, _)| site).collect();
        site::alone(|all| all.uncount(&sites));
    }
}

impl std::fmt::Debug for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Count").field("functions", &self.functions()).finish_non_exhaustive()
    }
}

/// Calls that are timed, until this is dropped.
#[must_use = "calls are timed until this is dropped"]
pub struct Latency {
    /// With what was known before.
    sites: Vec<(&'static Site, Numbers)>,
    skipped: Vec<Skipped>,
    /// What was so before.
    unwound: u64,
}

/// What is known of a function's calls that were timed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many have returned.
    pub calls: u64,
    /// How many were not followed to their return.
    pub lost: u64,
    /// How long they took.
    pub times: LatencySummary,
}

/// What has come since the numbers were so: how long calls took, in ticks, and how many were lost.
fn timed_since((site, before): &(&'static Site, Numbers)) -> (Histogram, u64) {
    let now = site.numbers();
    let times = match (now.latency, &before.latency) {
        (Some(now), Some(before)) => now.since(before),
        (now, _) => now.unwrap_or_default(),
    };
    (times, now.lost.wrapping_sub(before.lost))
}

/// How many calls are in a histogram: all that it holds, at whatever moment it was read.
fn calls_in(times: &Histogram) -> u64 {
    times.buckets.iter().sum()
}

impl Times {
    fn of((times, lost): (Histogram, u64)) -> Self {
        Self { calls: calls_in(&times), lost, times: LatencySummary::of(&times, times::rate()) }
    }
}

impl Latency {
    /// How many functions' calls are timed.
    pub fn functions(&self) -> usize {
        self.sites.len()
    }

    /// Functions that matched and were left alone, and why.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// How many calls have returned.
    pub fn calls(&self) -> u64 {
        self.sites.iter().map(|timed| calls_in(&timed_since(timed).0)).sum()
    }

    /// How many calls were not followed to their return ([`Inside::latency`]).
    pub fn lost(&self) -> u64 {
        self.sites.iter().map(|timed| timed_since(timed).1).sum()
    }

    /// How many calls were left by an exception or a panic since this began, of all functions that are timed in the process, as far as the
    /// unwinder is gcc's and was loaded when the first one was. The end of a thread leaves calls, too, which are not counted.
    pub fn unwound(&self) -> u64 {
        times::unwound().wrapping_sub(self.unwound)
    }

    /// The functions' names, as `MODULE:FUNCTION`.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.sites.iter().map(|timed| timed.0.name())
    }

    /// What is known of all functions together. Waits as [`Self::times`] does.
    pub fn all(&self) -> Times {
        let (mut times, mut lost) = (Histogram::default(), 0);
        for (more, of_them) in self.sites.iter().map(timed_since) {
            times.merge(&more);
            lost += of_them;
        }
        Times::of((times, lost))
    }

    /// How long calls took, those of all functions together. Where calls are timed only since less than 20 ms in this process, it waits until then: so
    /// long it takes to know how fast the clock ticks.
    pub fn times(&self) -> LatencySummary {
        self.all().times
    }

    /// What is known of each function, as `MODULE:FUNCTION`. Waits as [`Self::times`] does.
    pub fn by_function(&self) -> impl Iterator<Item = (String, Times)> + '_ {
        self.sites.iter().map(|timed| (timed.0.name(), Times::of(timed_since(timed))))
    }

    /// What is known of the function with this number in that order; `None`: there are not so many. Waits as [`Self::times`] does.
    pub fn times_of(&self, number: usize) -> Option<Times> {
        self.sites.get(number).map(timed_since).map(Times::of)
    }
}

impl Drop for Latency {
    fn drop(&mut self) {
        let sites: Vec<&'static Site> = self.sites.drain(..).map(|(site, _)| site).collect();
        site::alone(|all| all.untime(&sites));
    }
}

impl std::fmt::Debug for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Latency").field("functions", &self.functions()).finish_non_exhaustive()
    }
}
