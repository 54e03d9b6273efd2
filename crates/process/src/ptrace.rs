//! ptrace(2), one safe function per request.
//!
//! Soundness: every request but [`raw`] passes the kernel addresses of values that live across the call, with their sizes.
//! A request for a thread that is not our stopped tracee fails with ESRCH; none of them can touch our own memory otherwise.

use crate::{Errno, Pid, Tid};
use std::mem::MaybeUninit;

/// `NT_PRSTATUS` of `include/uapi/linux/elf.h`: the general registers.
pub(crate) const NT_PRSTATUS: usize = 1;
/// `NT_PRFPREG`: the registers for floating-point numbers.
pub(crate) const NT_PRFPREG: usize = 2;
/// Bytes of the kernel's signal mask.
const SIGSET_BYTES: usize = 8;

/// Any request.
///
/// # Safety
/// `addr` and `data` must be what the request expects: where it writes through one, that memory must be ours to write.
pub(crate) unsafe fn raw(
    request: libc::c_uint,
    tid: Tid,
    addr: usize,
    data: usize,
) -> Result<libc::c_long, Errno> {
    // SAFETY: forwarded to the caller.
    Errno::check(unsafe { libc::ptrace(request as _, tid.0, addr, data) })
}

macro_rules! plain {
    ($(#[$doc:meta] $name:ident = $request:ident ($addr:ident, $data:ident);)*) => { $(
        #[$doc]
        #[allow(dead_code, reason = "some arguments are always zero")]
        pub(crate) fn $name(tid: Tid, $data: usize) -> Result<(), Errno> {
            // SAFETY: this request takes numbers only.
            unsafe { raw(libc::$request as libc::c_uint, tid, 0, $data) }.map(drop)
        }
    )* };
}

plain! {
    /// Attaches without stopping; `options` are `PTRACE_O_*`.
    seize = PTRACE_SEIZE(_a, options);
    /// Asks a seized thread to stop.
    interrupt = PTRACE_INTERRUPT(_a, zero);
    /// Lets a thread in a group-stop wait for SIGCONT.
    listen = PTRACE_LISTEN(_a, zero);
    /// Runs on, with a signal or 0.
    cont = PTRACE_CONT(_a, signal);
    /// Runs to the next entry to or exit from a system call.
    syscall = PTRACE_SYSCALL(_a, signal);
    /// Runs one instruction.
    singlestep = PTRACE_SINGLESTEP(_a, signal);
    /// Lets go, with a signal or 0.
    detach = PTRACE_DETACH(_a, signal);
    /// Replaces the `PTRACE_O_*` options.
    set_options = PTRACE_SETOPTIONS(_a, options);
}

/// What an event stop carries: the id of a new thread, or an exit status.
pub(crate) fn event_message(tid: Tid) -> Result<u64, Errno> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: this request writes one unsigned long.
    unsafe { raw(libc::PTRACE_GETEVENTMSG as _, tid, 0, &raw mut message as usize) }?;
    #[allow(clippy::useless_conversion, reason = "it is a word of the host's")]
    Ok(message.into())
}

/// Fills the start of `buffer` with a set of registers, by its `NT_*`, and tells how many bytes the thread's kind has.
pub(crate) fn get_regset<T>(tid: Tid, set: usize, buffer: &mut MaybeUninit<T>) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most as many bytes to `buffer` as it has.
    unsafe { regset(libc::PTRACE_GETREGSET, tid, set, buffer.as_mut_ptr().cast(), size_of::<T>()) }
}

/// Sets registers from the whole of `regs`.
pub(crate) fn set_regset<T: Copy>(tid: Tid, set: usize, regs: &T) -> Result<(), Errno> {
    let start = (&raw const *regs).cast_mut().cast();
    // SAFETY: the kernel only reads the bytes of `regs`.
    unsafe { regset(libc::PTRACE_SETREGSET, tid, set, start, size_of::<T>()) }.map(drop)
}

/// Fills `buffer` with the beginning of a set of registers that has no fixed size; how much of it was filled.
#[cfg(target_arch = "aarch64")]
pub(crate) fn get_regset_bytes(tid: Tid, set: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most as many bytes to `buffer` as it has.
    unsafe { regset(libc::PTRACE_GETREGSET, tid, set, buffer.as_mut_ptr().cast(), buffer.len()) }
}

/// Sets such a one.
#[cfg(target_arch = "aarch64")]
pub(crate) fn set_regset_bytes(tid: Tid, set: usize, regs: &[u8]) -> Result<(), Errno> {
    let start = regs.as_ptr().cast_mut().cast();
    // SAFETY: the kernel only reads the bytes of `regs`.
    unsafe { regset(libc::PTRACE_SETREGSET, tid, set, start, regs.len()) }.map(drop)
}

/// Transfers a set of registers from or to `length` bytes at `start`; how many it was.
///
/// # Safety
/// So many bytes are there, and may be written if the set is read.
unsafe fn regset(
    request: libc::c_uint,
    tid: Tid,
    set: usize,
    start: *mut libc::c_void,
    length: usize,
) -> Result<usize, Errno> {
    let mut iov = libc::iovec { iov_base: start, iov_len: length };
    // SAFETY: the kernel accesses no more than the caller promises, and writes the length back to `iov`.
    unsafe { raw(request as _, tid, set, &raw mut iov as usize) }?;
    Ok(iov.iov_len)
}

/// One word of `struct user`, whose first part are the general registers. The layout is that of the tracer, whatever mode the thread
/// runs in. Not every kernel has it.
#[allow(dead_code, reason = "instruction sets without it read all registers")]
pub(crate) fn peek_user(tid: Tid, offset: usize) -> Result<u64, Errno> {
    let mut word = 0usize;
    // SAFETY: by the raw system call, this request writes one word to the data argument.
    let read = unsafe {
        libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKUSER, tid.0, offset, &raw mut word as usize)
    };
    Errno::check(read).map(|_| word as u64)
}

/// Sets one word of `struct user`.
#[allow(dead_code, reason = "as above")]
pub(crate) fn poke_user(tid: Tid, offset: usize, value: u64) -> Result<(), Errno> {
    // SAFETY: this request takes numbers only.
    unsafe { raw(libc::PTRACE_POKEUSER as _, tid, offset, value as usize) }.map(drop)
}

/// The signals a stopped thread blocks.
pub(crate) fn signal_mask(tid: Tid) -> Result<u64, Errno> {
    let mut mask = 0u64;
    // SAFETY: this request writes `addr` = 8 bytes to the data argument.
    unsafe { raw(libc::PTRACE_GETSIGMASK as _, tid, SIGSET_BYTES, &raw mut mask as usize) }?;
    Ok(mask)
}

/// Sets the signals a stopped thread blocks; SIGKILL and SIGSTOP stay open.
pub(crate) fn set_signal_mask(tid: Tid, mask: u64) -> Result<(), Errno> {
    // SAFETY: this request reads `addr` = 8 bytes from the data argument.
    unsafe { raw(libc::PTRACE_SETSIGMASK as _, tid, SIGSET_BYTES, &raw const mask as usize) }.map(drop)
}

/// A signal as the kernel describes it.
#[derive(Clone, Copy)]
pub(crate) struct SignalInfo(pub libc::siginfo_t);

impl SignalInfo {
    /// The signal a thread in a signal-delivery-stop is about to get.
    pub fn of(tid: Tid) -> Result<SignalInfo, Errno> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: this request writes one siginfo_t.
        unsafe { raw(libc::PTRACE_GETSIGINFO as _, tid, 0, info.as_mut_ptr() as usize) }?;
        // SAFETY: initialised by the kernel, and zeros were valid before.
        Ok(SignalInfo(unsafe { info.assume_init() }))
    }

    /// Replaces the signal a thread in a signal-delivery-stop is about to get.
    pub fn give_to(&self, tid: Tid) -> Result<(), Errno> {
        // SAFETY: this request reads one siginfo_t.
        unsafe { raw(libc::PTRACE_SETSIGINFO as _, tid, 0, &raw const self.0 as usize) }.map(drop)
    }

    /// Whether it says that a process has sent it, and names none: one of the kernel's, or from outside of the thread's pid namespace.
    pub fn is_of_no_process(&self) -> bool {
        // SAFETY: who has sent it stands there for this code.
        self.code() == libc::SI_USER && unsafe { self.0.si_pid() } == 0
    }

    /// Queues it for a thread anew. The kernel allows it only for descriptions a process could have made itself.
    pub fn queue_to(&self, tgid: i32, tid: Tid) -> Result<(), Errno> {
        // SAFETY: rt_tgsigqueueinfo reads one siginfo_t.
        let queued = unsafe {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, tgid, tid.0, self.number(), &raw const self.0)
        };
        Errno::check(queued).map(drop)
    }

    /// Queues it for a thread anew, or sends a plain one where the kernel does not allow that.
    pub fn send_again(&self, pid: Pid, tid: Tid) {
        if self.queue_to(pid.0, tid).is_err() {
            let _ = send_signal(pid.0, tid, self.number());
        }
    }

    /// Puts `to` where the description holds the address `from`.
    pub fn replace_address(&mut self, from: u64, to: u64) {
        // Behind the three integers, where a pointer can lie.
        const BEFORE: usize = (3 * size_of::<i32>()).next_multiple_of(size_of::<usize>());
        // SAFETY: the kernel describes every fault by an address, and reading or writing it as a number is always valid: `si_addr` is
        // the first field behind the three integers and their padding.
        unsafe {
            let address = (&raw mut self.0).cast::<u8>().add(BEFORE).cast::<usize>();
            if address.read() as u64 == from {
                address.write(to as usize);
            }
        }
    }

    pub fn number(&self) -> i32 {
        self.0.si_signo
    }

    pub fn code(&self) -> i32 {
        self.0.si_code
    }
}

impl std::fmt::Debug for SignalInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "signal {} (code {})", self.number(), self.code())
    }
}

/// Whether a stopped thread that goes on would at once get a SIGTRAP that the processor has raised.
pub(crate) fn has_pending_trap(tid: Tid) -> bool {
    /// `struct ptrace_peeksiginfo_args` of `include/uapi/linux/ptrace.h`.
    #[repr(C)]
    struct Range {
        offset: u64,
        flags: u32,
        count: i32,
    }
    const PTRACE_PEEKSIGINFO: libc::c_uint = 0x4209;
    const AT_ONCE: usize = 16;
    // The kernel unblocks what it raises; one that is blocked was made up by the program.
    if signal_mask(tid).is_ok_and(|mask| mask & 1 << (libc::SIGTRAP - 1) != 0) {
        return false;
    }
    let mut infos = [const { MaybeUninit::<libc::siginfo_t>::uninit() }; AT_ONCE];
    // No flags: the thread's own queue, which is where the kernel puts what an instruction raises.
    let mut range = Range { offset: 0, flags: 0, count: AT_ONCE as i32 };
    loop {
        // SAFETY: this request reads `range` and writes at most `count` descriptions to `infos`.
        let peeked =
            unsafe { raw(PTRACE_PEEKSIGINFO, tid, &raw mut range as usize, infos.as_mut_ptr() as usize) };
        let Ok(count) = peeked.map(|count| (count as usize).min(AT_ONCE)) else { return false };
        // SAFETY: the kernel has written the first `count`.
        let mut seen = infos[..count].iter().map(|info| unsafe { info.assume_init_ref() });
        if seen.any(|info| info.si_signo == libc::SIGTRAP && info.si_code > 0) {
            return true;
        }
        if count < AT_ONCE {
            return false;
        }
        range.offset += count as u64;
    }
}

/// Sends a plain signal to one thread.
pub(crate) fn send_signal(tgid: i32, tid: Tid, signal: i32) -> Result<(), Errno> {
    // SAFETY: tgkill takes three integers.
    Errno::check(unsafe { libc::syscall(libc::SYS_tgkill, tgid, tid.0, signal) }).map(drop)
}

/// `struct ptrace_sud_config` of `include/uapi/linux/ptrace.h`: which system calls of a thread the kernel makes into a SIGSYS of the thread
/// itself (`PR_SET_SYSCALL_USER_DISPATCH`), as programs ask for that run others' code, like Wine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dispatch {
    mode: u64,
    selector: u64,
    offset: u64,
    length: u64,
}

impl Dispatch {
    /// `PR_SYS_DISPATCH_ON`: all but those made in a range.
    const ON: u64 = 1;
    /// `PR_SYS_DISPATCH_INCLUSIVE_ON`: those made in a range.
    const INCLUSIVE_ON: u64 = 2;

    /// That of a stopped thread; `None` if it has none.
    ///
    /// # Errors
    /// The kernel does not tell (before 6.4), or has no such thing.
    pub fn of(tid: Tid) -> Result<Option<Self>, Errno> {
        const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
        let mut told = Self::default();
        let data = &raw mut told as usize;
        // SAFETY: this request writes at most `addr` bytes to the data argument.
        unsafe { raw(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size_of::<Self>(), data) }?;
        Ok((told.mode != 0).then_some(told))
    }

    /// Gives a stopped thread one; that of `Default` is none.
    pub fn give(mut self, tid: Tid) -> Result<(), Errno> {
        const PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4210;
        // The kernel keeps a range that is meant as all that is outside of it, tells it so, and takes none that passes the end of memory.
        if self.mode == Self::ON && self.offset != 0 && self.offset.wrapping_add(self.length) <= self.offset {
            let (offset, length) = (self.offset.wrapping_add(self.length), self.length.wrapping_neg());
            self = Self { mode: Self::INCLUSIVE_ON, offset, length, ..self };
        }
        let data = &raw const self as usize;
        // SAFETY: this request reads `addr` bytes of the data argument.
        unsafe { raw(PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG, tid, size_of::<Self>(), data) }.map(drop)
    }
}

/// Where a stopped thread's restartable-sequence area is; `None` if it has none or the kernel is older than 5.13.
pub(crate) fn rseq_area(tid: Tid) -> Option<u64> {
    /// `struct ptrace_rseq_configuration` of `include/uapi/linux/ptrace.h`.
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        area: u64,
        size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
    let mut configuration = Configuration::default();
    let data = &raw mut configuration as usize;
    // SAFETY: this request writes at most `addr` bytes to the data argument.
    unsafe { raw(PTRACE_GET_RSEQ_CONFIGURATION, tid, size_of::<Configuration>(), data) }.ok()?;
    Some(configuration.area).filter(|&area| area != 0)
}
