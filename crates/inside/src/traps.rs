//! Who is sent on from a breakpoint of ours, and where the program's own go.
//!
//! A breakpoint's address has its destination in a table that only grows: it is read by a handler of a signal, at any moment. A thread
//! that has met one may be given the signal when the breakpoint is gone, and a site may be probed again.
//!
//! The program's own handler of SIGTRAP is called for all that are not ours, as the kernel would. One that it installs later takes the place of ours,
//! until the next probe goes in or out: then that one is called behind ours.

use crate::{Error, patch};
use std::cell::Cell;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Addresses of breakpoints and where their threads go on: a table with open addressing, of which at least half is free.
struct Table {
    /// Address and destination; an address of 0 is a free place.
    places: Box<[(AtomicU64, AtomicU64)]>,
    used: AtomicUsize,
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// What the program had for SIGTRAP, when it was last looked at, and ahead of that: one that it has installed over ours may call ours in turn.
struct Previous {
    action: libc::sigaction,
    earlier: *const Previous,
}

static PREVIOUS: AtomicPtr<Previous> = AtomicPtr::new(null_mut());

thread_local! {
    /// Of this thread's last signal that was not ours: by which context it is known, and how many of the program's were called for it.
    static PASSED_ON: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Those who change either.
static CHANGES: Mutex<()> = Mutex::new(());

impl Table {
    fn of(size: usize) -> Self {
        Self { places: (0..size).map(|_| Default::default()).collect(), used: AtomicUsize::new(0) }
    }

    fn place(&self, address: u64) -> &(AtomicU64, AtomicU64) {
        let mask = self.places.len() - 1;
        let mut at = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20;
        loop {
            let place = &self.places[at & mask];
            let known = place.0.load(Ordering::Acquire);
            if known == address || known == 0 {
                return place;
            }
            at += 1;
        }
    }

    /// The destination comes first: whoever finds the address finds it.
    fn set(&self, address: u64, to: u64) {
        let place = self.place(address);
        place.1.store(to, Ordering::Release);
        place.0.store(address, Ordering::Release);
    }

    fn get(&self, address: u64) -> Option<u64> {
        let place = self.place(address);
        (place.0.load(Ordering::Acquire) == address).then(|| place.1.load(Ordering::Acquire))
    }
}

/// Sends threads on that meet a breakpoint at the first of each, to the second.
pub(crate) fn send_on(pairs: &[(u64, u64)]) {
    let _changing = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: only changed here, by one at a time, and never freed.
    let known = unsafe { TABLE.load(Ordering::Acquire).as_ref() };
    let used = known.map_or(0, |table| table.used.load(Ordering::Relaxed)) + pairs.len();
    match known {
        Some(table) if 2 * used <= table.places.len() => {
            pairs.iter().for_each(|&(address, to)| table.set(address, to));
            table.used.store(used, Ordering::Relaxed);
        }
        old => {
            let table = Table::of((4 * used).next_power_of_two().max(64));
            for (address, to) in old.iter().flat_map(|old| old.places.iter()) {
                if address.load(Ordering::Acquire) != 0 {
                    table.set(address.load(Ordering::Acquire), to.load(Ordering::Acquire));
                }
            }
            pairs.iter().for_each(|&(address, to)| table.set(address, to));
            table.used.store(used, Ordering::Relaxed);
            // A handler may be reading the one before, which stays: all of those together are no larger than this.
            TABLE.store(Box::into_raw(Box::new(table)), Ordering::Release);
        }
    }
}

/// Sees to it that our handler is there, with the program's own behind it.
pub(crate) fn install() -> Result<(), Error> {
    let _changing = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call writes one, which is read only if it has.
    let now = unsafe {
        if libc::sigaction(libc::SIGTRAP, null_mut(), now.as_mut_ptr()) != 0 {
            return Err(Error::last("sigaction"));
        }
        now.assume_init()
    };
    if now.sa_sigaction == on_trap as *const () as usize {
        return Ok(());
    }
    // Ours may be running, and read the one before, which stays. A program that changes it all the time is none.
    let previous = Previous { action: now, earlier: PREVIOUS.load(Ordering::Acquire) };
    PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
    // SAFETY: a structure of integers and a set of bits, of which none may be in it; the handler is made for SA_SIGINFO.
    unsafe {
        let mut ours: libc::sigaction = zeroed();
        ours.sa_sigaction = on_trap as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
        // The stack for handlers may be a small one, and theirs might call a probed function on it, and that meet another breakpoint.
        libc::sigfillset(&mut ours.sa_mask);
        libc::sigdelset(&mut ours.sa_mask, libc::SIGTRAP);
        match libc::sigaction(libc::SIGTRAP, &ours, null_mut()) {
            0 => Ok(()),
            _ => Err(Error::last("sigaction")),
        }
    }
}

/// Fails where a thread would be ended by a breakpoint, or a handler of a signal on whatever thread: the kernel does so where SIGTRAP is blocked.
///
/// One that blocks it in the moment between this and the end of the change, and comes to the very function meanwhile, is not seen.
pub(crate) fn refuse_blocked() -> Result<(), Error> {
    for signal in 1..=libc::SIGRTMAX() {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call writes one, or leaves what was 0.
        let blocks = unsafe {
            libc::sigaction(signal, null_mut(), now.as_mut_ptr());
            let now = now.assume_init();
            now.sa_sigaction > libc::SIG_IGN && libc::sigismember(&now.sa_mask, libc::SIGTRAP) == 1
        };
        if blocks && signal != libc::SIGTRAP {
            return Err(Error::HandlerBlocks { signal });
        }
    }
    let until = Instant::now() + BLOCKED_FOR_A_MOMENT;
    loop {
        match blocking()? {
            None => return Ok(()),
            Some(tid) if Instant::now() >= until => return Err(Error::TrapBlocked { tid }),
            Some(_) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// For how long threads may block all signals without being taken for those that mean it: the C library does so while it makes another, which may wait
/// for a processor.
const BLOCKED_FOR_A_MOMENT: Duration = Duration::from_secs(1);

/// A thread that blocks SIGTRAP now.
fn blocking() -> Result<Option<i32>, Error> {
    const TASKS: &str = "/proc/self/task";
    let failed = |source| Error::System { what: TASKS, source };
    for task in std::fs::read_dir(TASKS).map_err(failed)? {
        let task = task.map_err(failed)?;
        // One that has ended meanwhile blocks nothing.
        let Some(blocked) = patch::blocked(&task.path()).map_err(failed)? else { continue };
        if blocked & 1 << (libc::SIGTRAP - 1) != 0 {
            return Ok(Some(task.file_name().to_str().and_then(|name| name.parse().ok()).unwrap_or(0)));
        }
    }
    Ok(None)
}

/// Where a thread that has met a breakpoint is behind it.
const BEHIND: u64 = 1;

/// `SI_KERNEL` (`include/uapi/asm-generic/siginfo.h`), by which the kernel tells of `int3`.
const SI_KERNEL: i32 = 0x80;

/// The instruction pointer in what a handler is given.
///
/// # Safety
/// It is what the kernel gives.
#[cfg(target_arch = "x86_64")]
unsafe fn ip<'c>(context: *mut libc::c_void) -> Option<&'c mut i64> {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: as the caller says.
    unsafe { (*context).uc_mcontext.gregs.get_mut(libc::REG_RIP as usize) }
}

/// Nobody has breakpoints there.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn ip<'c>(_: *mut libc::c_void) -> Option<&'c mut i64> {
    None
}

extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both, for as long as the handler runs; the table is never freed.
    unsafe {
        let known = TABLE.load(Ordering::Acquire).as_ref();
        if let (Some(table), Some(ip), SI_KERNEL) = (known, ip(context), (*info).si_code)
            && let Some(to) = table.get(ip.cast_unsigned().wrapping_sub(BEHIND))
        {
            *ip = to.cast_signed();
            return;
        }
        pass_on(signal, info, context);
    }
}

/// Does what would have been done without us.
///
/// # Safety
/// Called by the handler, with what it was given.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: never freed; a handler that the program has installed is called as it was made to be.
    unsafe {
        let (known, calls) = PASSED_ON.get();
        let calls = if known == context.addr() { calls + 1 } else { 0 };
        PASSED_ON.set((context.addr(), calls));
        let newest = PREVIOUS.load(Ordering::Acquire).as_ref();
        let previous = std::iter::successors(newest, |previous| previous.earlier.as_ref()).nth(calls);
        let previous = previous.map(|previous| previous.action);
        let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
        let is_forced = (*info).si_code > 0;
        match (handler, previous) {
            (libc::SIG_IGN, _) if !is_forced => {}
            // The kernel does not let a breakpoint be ignored.
            (libc::SIG_DFL | libc::SIG_IGN, _) | (_, None) => {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
            (handler, Some(previous)) => {
                let mut mask = MaybeUninit::uninit();
                // What would be blocked there without us.
                let mut blocked = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                for signal in 1..=libc::SIGRTMAX() {
                    if libc::sigismember(&previous.sa_mask, signal) == 1 {
                        libc::sigaddset(&mut blocked, signal);
                    }
                }
                // Who comes to a breakpoint of ours meanwhile would be ended by it.
                libc::sigdelset(&mut blocked, libc::SIGTRAP);
                libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, mask.as_mut_ptr());
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                    handler(signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), null_mut());
                PASSED_ON.set((0, 0));
            }
        }
    }
}
