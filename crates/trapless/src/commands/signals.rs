//! Ctrl-C, SIGTERM and what else is sent to have a program end do end a run; they do not end it in the middle of something, and not without
//! its report.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

static ENDED: AtomicBool = AtomicBool::new(false);

/// An eventfd that becomes readable with the first signal, and stays so; -1 before it is made.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// What asks for the end. Left at their defaults, all would end this process at once, and leave probes behind: also those that are meant for another
/// program, and what tells that the limit of processor time has come.
const SIGNALS: [libc::c_int; 9] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGPWR,
    libc::SIGXCPU,
];

/// Whether a signal asked for the end.
#[derive(Clone, Copy, Debug)]
pub struct Ended(());

/// What comes with a write beyond the limit of a file's size, which then fails as on a full disk.
extern "C" fn nothing(_signal: libc::c_int) {}

extern "C" fn end(_signal: libc::c_int) {
    ENDED.store(true, Ordering::Relaxed);
    wake(&DESCRIPTOR);
}

/// Makes an eventfd readable, as is allowed in a handler.
fn wake(descriptor: &AtomicI32) {
    let fd = descriptor.load(Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: write is allowed in a handler and reads eight bytes of a constant; the error number of whatever was
        // interrupted is put back.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let _ = libc::write(fd, (&raw const ONE).cast(), size_of_val(&ONE));
            *errno = before;
        }
    }
}

static ONE: u64 = 1;

/// An eventfd: what makes one readable of ours, does so for those that were forked since.
fn eventfd() -> RawFd {
    // SAFETY: eventfd takes two integers.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

/// Signals that a script has probes for and that have come, by their numbers' bits: in memory that is shared with those that are forked later, since
/// somebody else may run the script than who is sent the signals. Null before any is noted.
static CAME: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// An eventfd that is readable while some of them were not taken; -1 before any is noted.
static NOTED: AtomicI32 = AtomicI32::new(-1);

fn came() -> Option<&'static AtomicU64> {
    // SAFETY: null, or a word of a mapping that is never unmapped.
    unsafe { CAME.load(Ordering::Acquire).as_ref() }
}

extern "C" fn note(signal: libc::c_int) {
    if let Some(came) = came() {
        came.fetch_or(1 << (signal & 63), Ordering::Release);
        wake(&NOTED);
    }
}

/// From now on a signal is noted for a script ([`take_noted`]), instead of what it means otherwise.
pub fn note_for_script(signal: libc::c_int) {
    if came().is_none() {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let page = unsafe {
            let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(ptr::null_mut(), size_of::<AtomicU64>(), rights, kind, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return;
        }
        NOTED.store(eventfd(), Ordering::Relaxed);
        CAME.store(page.cast(), Ordering::Release);
    }
    // SAFETY: the handler does what is allowed in one; the structure is plain data.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(signal, &action, ptr::null_mut());
    }
}

/// The signals that were noted since the last time, by their numbers. Whoever waits by [`noted`] waits again.
pub fn take_noted() -> Vec<libc::c_int> {
    let Some(came) = came() else { return Vec::new() };
    let mut count = 0u64;
    // SAFETY: reads eight bytes into an integer of ours; the descriptor does not block.
    let _ =
        unsafe { libc::read(NOTED.load(Ordering::Relaxed), (&raw mut count).cast(), size_of_val(&count)) };
    // Behind that: one that comes in between makes it readable again.
    let came = came.swap(0, Ordering::Acquire);
    (0..64).filter(|signal| came & 1 << signal != 0).collect()
}

/// From now on what asks for the end is noted instead of ending this process. What is ignored stays so, as `nohup` wants it of SIGHUP, but for
/// SIGINT and SIGTERM: shells ignore the former for what scripts run in the background, and those end it by `kill -INT` all the same.
pub fn install() -> Ended {
    if DESCRIPTOR.load(Ordering::Relaxed) < 0 {
        DESCRIPTOR.store(eventfd(), Ordering::Relaxed);
    }
    // What `release` may have begun. SAFETY: alarm takes an integer.
    unsafe { libc::alarm(0) };
    for signal in SIGNALS {
        // SAFETY: the handler stores to an atomic and writes to a descriptor, which is allowed in a handler; the structures are
        // plain data that the calls fill in or read; without SA_RESTART a wait ends at once.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            let is_ignored =
                libc::sigaction(signal, ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN;
            if is_ignored && !matches!(signal, libc::SIGINT | libc::SIGTERM) {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = end as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
    // SAFETY: as above; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGXFSZ, &action, ptr::null_mut());
    }
    Ended(())
}

/// Nothing is armed any more, so from now on signals end this process again: a reader of our output that never reads on
/// must not make it immortal. The first one leaves it [`GRACE`] to tell what there was: it may have come for the run, which has just ended
/// by itself, or it comes twice, as `timeout` sends it.
pub fn release() {
    for signal in SIGNALS {
        // SAFETY: as above; only what `install` has set is replaced. The second signal finds no handler any more.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            let read = libc::sigaction(signal, ptr::null(), &mut now) == 0;
            if read && now.sa_sigaction == end as extern "C" fn(libc::c_int) as usize {
                now.sa_sigaction = end_soon as extern "C" fn(libc::c_int) as usize;
                now.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
                libc::sigaction(signal, &now, ptr::null_mut());
            }
        }
    }
}

/// How long a report may take after a signal that asked for the end, in seconds.
const GRACE: libc::c_uint = 5;

/// The signal that asked for the end of a report.
static ENDING: AtomicI32 = AtomicI32::new(0);

extern "C" fn end_soon(signal: libc::c_int) {
    ENDING.store(signal, Ordering::Relaxed);
    // SAFETY: signal and alarm are allowed in a handler. What an earlier `install` has set is not in the way, since nothing sets SIGALRM.
    unsafe {
        libc::signal(libc::SIGALRM, end_now as extern "C" fn(libc::c_int) as usize);
        libc::alarm(GRACE);
    }
}

extern "C" fn end_now(_alarm: libc::c_int) {
    let signal = ENDING.load(Ordering::Relaxed);
    // SAFETY: signal and raise are allowed in a handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Whether a signal came.
pub fn interrupted() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// Waits for the next one.
pub fn forget() {
    ENDED.store(false, Ordering::Relaxed);
}

/// What becomes readable with a signal that asks for the end.
pub fn descriptor() -> Option<RawFd> {
    Some(DESCRIPTOR.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
}

/// What is readable while signals are noted for a script.
pub fn noted() -> Option<RawFd> {
    Some(NOTED.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
}

impl Ended {
    /// Whether a signal came.
    pub fn get(self) -> bool {
        interrupted()
    }
}
