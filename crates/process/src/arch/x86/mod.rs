//! x86: the two register sets a tracer meets. One with 32 bits reads both, as after an `execve`, and changes its own.

mod abi;
pub(super) mod context;
mod kernel;
mod sets;
mod stepping;
mod vectors;

use super::{Abi, HAS_64BIT, Trapped};
use crate::ptrace::{self, NT_PRFPREG, NT_PRSTATUS};
use crate::{Errno, RemoteAddr, Tid};
use abi::{I386, X86_64};
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;

pub use kernel::thread_selector;
pub use sets::{Registers32, Registers64};
pub use vectors::vectors;

pub(crate) use super::unlost::{LostByCalls, is_streaming};
pub(crate) use super::waiting::Waiting;
pub(crate) use kernel::{addresses_end, narrow_end};
pub(crate) use stepping::Stepping;

/// Whether registers of threads in 32-bit mode are known.
pub(crate) const HAS_32BIT: bool = true;
/// Whether the kernel tells of a step over a system call otherwise than of any step.
pub(crate) const STEP_OVER_CALL_LOOKS_SENT: bool = false;
/// Instructions that make system calls, beside that of the convention: `syscall`, `sysenter`, `int 0x80`.
pub(crate) const OTHER_CALLS: &[&[u8]] = &[&[0x0f, 0x05], &[0x0f, 0x34], &[0xcd, 0x80]];
/// Whether a thread that stands at the end of a system call goes on with all registers that it is given there.
pub(crate) const END_OF_CALL_TAKES_ALL: bool = true;
/// The breakpoint instruction.
pub const BREAKPOINT: &[u8] = &[0xcc];
/// How far past the breakpoint's address the instruction pointer is when it has trapped.
pub const BREAKPOINT_ADVANCE: u64 = 1;
/// Bytes behind a module to which pointers of its own may lead.
pub(crate) const POINTED_PAST: u64 = 0;
/// What the description of a SIGTRAP tells by its code; `None`: somebody has sent it.
pub(crate) fn trapped(code: i32) -> Option<Trapped> {
    match code {
        libc::SI_KERNEL => Some(Trapped::Breakpoint),
        libc::TRAP_TRACE | libc::TRAP_BRKPT | libc::TRAP_HWBKPT => Some(Trapped::Step),
        _ => None,
    }
}

/// The time-stamp counter now, as detours read it.
pub fn ticks() -> u64 {
    // SAFETY: rdtsc reads a counter and touches nothing else. A process that disabled it (PR_SET_TSC) would get SIGSEGV; this
    // program does not.
    unsafe {
        #[cfg(target_arch = "x86")]
        return core::arch::x86::_rdtsc();
        #[cfg(target_arch = "x86_64")]
        return core::arch::x86_64::_rdtsc();
    }
}

/// The general registers of a stopped thread. Numbers of 32-bit threads are zero-extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Registers {
    /// A thread in 64-bit mode.
    Long(Registers64),
    /// A thread in 32-bit mode, with the base of its thread-local segment where it has one.
    Compat {
        /// The registers.
        regs: Registers32,
        /// Base address of the segment `gs` selects.
        thread_pointer: u32,
    },
}

/// A general register of either mode.
enum General<'r> {
    Long(&'r mut u64),
    Compat(&'r mut u32),
}

impl General<'_> {
    fn value(&self) -> u64 {
        match self {
            General::Long(value) => **value,
            General::Compat(value) => u64::from(**value),
        }
    }

    fn set(self, to: u64) {
        match self {
            General::Long(value) => *value = to,
            General::Compat(value) => *value = to as u32,
        }
    }
}

macro_rules! field {
    ($get:ident, $set:ident, $long:ident, $compat:ident, $what:literal) => {
        #[doc = $what]
        pub fn $get(&self) -> u64 {
            match self {
                Registers::Long(regs) => regs.$long,
                Registers::Compat { regs, .. } => u64::from(regs.$compat),
            }
        }
        #[doc = concat!("Sets ", stringify!($get), "; the upper half is dropped for a 32-bit thread.")]
        pub fn $set(&mut self, value: u64) {
            match self {
                Registers::Long(regs) => regs.$long = value,
                Registers::Compat { regs, .. } => regs.$compat = value as u32,
            }
        }
    };
}

impl Registers {
    field!(ip_value, set_ip_value, rip, eip, "The instruction pointer as a number.");
    field!(sp_value, set_sp_value, rsp, esp, "The stack pointer as a number.");
    field!(result, set_result, rax, eax, "rax or eax: return value, and number of the system call to make.");
    field!(flags, set_flags, eflags, eflags, "The flags.");

    /// Where the thread's control block is: `fs`'s base in 64-bit mode, `gs`'s in 32-bit mode; 0 for a thread without one.
    pub fn thread_pointer(&self) -> RemoteAddr {
        match self {
            Registers::Long(regs) => RemoteAddr(regs.fs_base),
            Registers::Compat { thread_pointer, .. } => RemoteAddr(u64::from(*thread_pointer)),
        }
    }

    /// The number of the system call the thread is in; negative if it is in none.
    pub fn syscall_number(&self) -> i64 {
        match self {
            Registers::Long(regs) => regs.orig_rax as i64,
            Registers::Compat { regs, .. } => i64::from(regs.orig_eax as i32),
        }
    }

    /// Says that the thread is in no system call, so the kernel will not restart one on its way out.
    pub fn leave_syscall(&mut self) {
        match self {
            Registers::Long(regs) => regs.orig_rax = u64::MAX,
            Registers::Compat { regs, .. } => regs.orig_eax = u32::MAX,
        }
    }

    /// The numbers of general registers; some may be none's.
    pub const NUMBERS: Range<u8> = 0..16;

    /// A general register by the number instructions encode it with (rax 0, rcx 1, rdx 2, rbx 3, rsp 4, rbp 5, rsi 6, rdi 7, r8 to
    /// r15); 0 for one that the mode does not have.
    pub fn general(&self, number: u8) -> u64 {
        let mut copy = *self;
        copy.general_mut(number, |register| register.value())
    }

    /// A general register by its DWARF number (System V ABI, "DWARF Register Number Mapping", of either mode); 0 for one that the mode does not
    /// have.
    pub fn by_dwarf(&self, number: u8) -> u64 {
        let number = match (self, number) {
            (Registers::Long(_), 1) => 2,
            (Registers::Long(_), 2) => 1,
            // rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp; behind them both count alike, and 32-bit mode's count as instructions do.
            (Registers::Long(_), 4) => 6,
            (Registers::Long(_), 5) => 7,
            (Registers::Long(_), 6) => 5,
            (Registers::Long(_), 7) => 4,
            (_, number) => number,
        };
        self.general(number)
    }

    /// A word of what a function returns in registers for integers: 0 or 1.
    pub fn returned(&self, word: u8) -> u64 {
        // rax and rdx, eax and edx.
        self.general(if word == 0 { 0 } else { 2 })
    }

    /// What the general registers hold, but for the stack pointer.
    pub fn all_but_sp(&self) -> impl Iterator<Item = u64> + '_ {
        const STACK_POINTER: u8 = 4;
        Self::NUMBERS.filter(|&number| number != STACK_POINTER).map(|number| self.general(number))
    }

    /// Sets a general register by its number; the upper half is dropped for a 32-bit thread.
    pub fn set_general(&mut self, number: u8, value: u64) {
        self.general_mut(number, |register| {
            register.set(value);
            0
        });
    }

    fn general_mut(&mut self, number: u8, work: impl FnOnce(General<'_>) -> u64) -> u64 {
        match self {
            Registers::Long(r) => work(General::Long(match number {
                0 => &mut r.rax,
                1 => &mut r.rcx,
                2 => &mut r.rdx,
                3 => &mut r.rbx,
                4 => &mut r.rsp,
                5 => &mut r.rbp,
                6 => &mut r.rsi,
                7 => &mut r.rdi,
                8 => &mut r.r8,
                9 => &mut r.r9,
                10 => &mut r.r10,
                11 => &mut r.r11,
                12 => &mut r.r12,
                13 => &mut r.r13,
                14 => &mut r.r14,
                15 => &mut r.r15,
                _ => return 0,
            })),
            Registers::Compat { regs: r, .. } => work(General::Compat(match number {
                0 => &mut r.eax,
                1 => &mut r.ecx,
                2 => &mut r.edx,
                3 => &mut r.ebx,
                4 => &mut r.esp,
                5 => &mut r.ebp,
                6 => &mut r.esi,
                7 => &mut r.edi,
                _ => return 0,
            })),
        }
    }

    /// Base of the segment that fs (`false`) or gs (`true`) selects; `None` when it is not known.
    pub fn segment_base(&self, gs: bool) -> Option<u64> {
        match self {
            Registers::Long(regs) => Some(if gs { regs.gs_base } else { regs.fs_base }),
            Registers::Compat { thread_pointer, .. } => {
                (gs && *thread_pointer != 0).then_some(u64::from(*thread_pointer))
            }
        }
    }

    /// Whether the thread runs in 32-bit mode.
    pub fn is_32bit(&self) -> bool {
        matches!(self, Registers::Compat { .. })
    }

    /// The convention for its system calls.
    pub fn abi(&self) -> &'static Abi {
        if self.is_32bit() { &I386 } else { &X86_64 }
    }

    /// Makes a system call that our stop has cut short go on afterwards.
    ///
    /// Most calls answer an interruption that leads to no handler with a restart code, which the kernel resolves when the
    /// thread goes on. Some answer a plain EINTR (signal(7), "Interruption of system calls and library functions by stop
    /// signals"): the program would see an error for which it has no signal. `ERESTARTNOHAND` says what is meant: EINTR if
    /// a handler runs, a restart if none does. A restarted call waits its full timeout again.
    ///
    /// True if the registers were changed.
    pub(crate) fn restart_if_interrupted(&mut self, _waiting: Waiting) -> bool {
        /// `ERESTARTNOHAND` of `include/linux/errno.h`.
        const ERESTARTNOHAND: i64 = 514;
        let cut_short = self.abi().plain_eintr.contains(&self.syscall_number())
            && self.syscall_result() == Err(Errno(libc::EINTR));
        if cut_short {
            self.set_result(-ERESTARTNOHAND as u64);
        }
        cut_short
    }

    /// Loads a system call, to be run from `instruction`.
    pub(crate) fn load_syscall(&mut self, instruction: RemoteAddr, number: u64, args: [u64; 6]) {
        self.set_ip(instruction);
        self.set_result(number);
        self.leave_syscall();
        match self {
            Registers::Long(regs) => {
                [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
                // The trap flag would stop us after the instruction.
                regs.eflags &= !TRAP_FLAG;
            }
            Registers::Compat { regs, .. } => {
                [regs.ebx, regs.ecx, regs.edx, regs.esi, regs.edi, regs.ebp] = args.map(|arg| arg as u32);
                regs.eflags &= !(TRAP_FLAG as u32);
            }
        }
    }

    /// What the system call that has just ended gave.
    pub(crate) fn syscall_result(&self) -> Result<u64, Errno> {
        let (value, signed) = match self {
            Registers::Long(regs) => (regs.rax, regs.rax as i64),
            Registers::Compat { regs, .. } => (u64::from(regs.eax), i64::from(regs.eax as i32)),
        };
        if (-4095..0).contains(&signed) { Err(Errno(-signed as i32)) } else { Ok(value) }
    }

    /// The low 64 bits of a vector register of a stopped thread in 64-bit mode, from xmm0 on; 0 for one that there is not.
    pub(crate) fn read_vector(tid: Tid, number: u8) -> Result<u64, Errno> {
        /// `user_fpregs_struct`, or `user_i387_struct`, as far as both are alike, of `arch/x86/include/asm/user_64.h`.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Floating {
            others: [u32; 40],
            vectors: [u32; 64],
            padding: [u32; 24],
        }
        let mut buffer = MaybeUninit::<Floating>::zeroed();
        ptrace::get_regset(tid, NT_PRFPREG, &mut buffer)?;
        // SAFETY: a thread in 32-bit mode has fewer bytes; zeros were valid before, as any bytes are.
        let all = unsafe { buffer.assume_init() }.vectors;
        let word = |index: usize| all.get(index).map_or(0, |half| u64::from(*half));
        let at = 4 * usize::from(number);
        Ok(word(at) | word(at + 1) << 32)
    }

    /// Reads the registers of a stopped thread.
    pub(crate) fn read(tid: Tid) -> Result<Registers, Errno> {
        let mut buffer = MaybeUninit::<Registers64>::zeroed();
        let len = ptrace::get_regset(tid, NT_PRSTATUS, &mut buffer)?;
        // SAFETY: zeroed is a valid register set, and the kernel has overwritten the first `len` bytes of it.
        let regs = unsafe { buffer.assume_init() };
        if len == size_of::<Registers32>() {
            // SAFETY: the buffer is larger than `Registers32`, aligned for u64, and any bytes are valid u32s.
            let regs = unsafe { (&raw const regs).cast::<Registers32>().read() };
            return Ok(Registers::Compat { regs, thread_pointer: segment_base(tid, regs.gs) });
        }
        Ok(Registers::Long(regs))
    }

    /// Reads the instruction pointer of a stopped thread alone, which takes half the time.
    pub(crate) fn read_ip(tid: Tid) -> Result<RemoteAddr, Errno> {
        if !HAS_64BIT {
            // The words of `struct user` are cut then.
            return Ok(Registers::read(tid)?.ip());
        }
        ptrace::peek_user(tid, offset_of!(Registers64, rip)).map(RemoteAddr)
    }

    /// Sets the instruction pointer of a stopped thread alone.
    pub(crate) fn write_ip(tid: Tid, ip: RemoteAddr) -> Result<(), Errno> {
        if !HAS_64BIT {
            let mut registers = Registers::read(tid)?;
            registers.set_ip(ip);
            return registers.write(tid);
        }
        ptrace::poke_user(tid, offset_of!(Registers64, rip), ip.0)
    }

    /// Writes what differs from `old`, which the stopped thread has: a word or two take less time than all.
    pub(crate) fn write_changes(&self, tid: Tid, old: &Registers) -> Result<(), Errno> {
        let mut moved = *old;
        moved.set_ip(self.ip());
        moved.set_sp(self.sp());
        if moved != *self || !HAS_64BIT {
            return self.write(tid);
        }
        if self.sp() != old.sp() {
            ptrace::poke_user(tid, offset_of!(Registers64, rsp), self.sp_value())?;
        }
        if self.ip() != old.ip() { Registers::write_ip(tid, self.ip()) } else { Ok(()) }
    }

    /// Writes the registers of a stopped thread.
    pub(crate) fn write(&self, tid: Tid) -> Result<(), Errno> {
        match self {
            Registers::Long(regs) => ptrace::set_regset(tid, NT_PRSTATUS, regs),
            Registers::Compat { regs, .. } => ptrace::set_regset(tid, NT_PRSTATUS, regs),
        }
    }
}

/// The flag by which the processor steps: `X86_EFLAGS_TF`.
pub const TRAP_FLAG: u64 = 0x100;

/// The base of a segment of the thread-local part of the descriptor table; 0 if the selector names no such segment.
fn segment_base(tid: Tid, selector: u32) -> u32 {
    /// `struct user_desc` of `arch/x86/include/uapi/asm/ldt.h`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct UserDesc {
        entry: u32,
        base: u32,
        limit: u32,
        flags: u32,
    }
    const PTRACE_GET_THREAD_AREA: libc::c_uint = 25;
    let mut descriptor = UserDesc::default();
    let entry = (selector & 0xffff) >> 3;
    // SAFETY: for this request the kernel writes one `user_desc` to the data argument.
    let got =
        unsafe { ptrace::raw(PTRACE_GET_THREAD_AREA, tid, entry as usize, &raw mut descriptor as usize) };
    debug_assert_eq!(offset_of!(UserDesc, base), 4);
    if entry != 0 && got.is_ok() { descriptor.base } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_compat_layout_is_68_bytes() {
        assert_eq!(size_of::<Registers32>(), 68);
        assert_eq!(size_of::<Registers64>(), 27 * 8);
    }

    #[test]
    fn registers_by_their_dwarf_numbers() {
        let mut long = Registers::Long(Registers64::default());
        let mut compat = Registers::Compat { regs: Registers32::default(), thread_pointer: 0 };
        for number in 0..16 {
            long.set_general(number, 100 + u64::from(number));
            compat.set_general(number, 100 + u64::from(number));
        }
        // rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 …, by the numbers of instructions.
        let expected = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15].map(|number| 100 + number);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|n| long.by_dwarf(n)),
            expected
        );
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(|n| compat.by_dwarf(n)),
            [100, 101, 102, 103, 104, 105, 106, 107]
        );
        assert_eq!((compat.by_dwarf(8), long.by_dwarf(16)), (0, 0));
        assert_eq!([long, compat].map(|r| [r.returned(0), r.returned(1)]), [[100, 102]; 2]);
    }

    #[test]
    fn results_and_errors_in_both_modes() {
        let mut compat = Registers::Compat { regs: Registers32::default(), thread_pointer: 0 };
        for (value, result) in [
            (0, Ok(0)),
            (0xf7f0_0000, Ok(0xf7f0_0000)),
            (-1i64 as u64, Err(Errno(1))),
            (-4095i64 as u64, Err(Errno(4095))),
            (-4096i64 as u64, Ok(0xffff_f000)),
        ] {
            compat.set_result(value);
            assert_eq!(compat.syscall_result(), result);
        }
        compat.load_syscall(RemoteAddr(0x1000), 20, [1, 2, 3, 4, 5, 6]);
        assert_eq!((compat.ip(), compat.result(), compat.syscall_number()), (RemoteAddr(0x1000), 20, -1));
    }
}
