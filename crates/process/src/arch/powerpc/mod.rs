//! 64-bit PowerPC, little endian.
//!
//! # System calls
//! A call is made by `sc`, or by `scv`, where an error is told by the result alone. By which one a thread is in the kernel, `trap` tells, and a
//! program can be told to be in none by clearing it. Restarts are resolved when the thread goes on (`check_syscall_restart` of
//! `arch/powerpc/kernel/signal.c`).

mod abi;
pub(super) mod context;

use super::Abi;
use crate::ptrace::{self, NT_PRFPREG, NT_PRSTATUS};
use crate::{Errno, RemoteAddr, Tid};
use abi::ABI;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;

pub use super::plain::{BREAKPOINT_ADVANCE, TRAP_FLAG, thread_selector};
pub(crate) use super::plain::{HAS_32BIT, STEP_OVER_CALL_LOOKS_SENT, Stepping, narrow_end, trapped};
pub(crate) use super::unlost::{LostByCalls, is_streaming};
pub(crate) use super::waiting::Waiting;

/// Instructions that make system calls, beside that of the convention: `scv 0`.
pub(crate) const OTHER_CALLS: &[&[u8]] = &[&[0x01, 0x00, 0x00, 0x44]];
/// `trap`.
pub const BREAKPOINT: &[u8] = &[0x08, 0x00, 0xe0, 0x7f];
/// Whether a thread that stands at the end of a system call goes on with all registers that it is given there. Linux 7.2 clears r0 and r4 to
/// r12, xer and ctr on the way out, unless the thread has been in its signal code.
pub(crate) const END_OF_CALL_TAKES_ALL: bool = false;
/// Bytes behind a module to which pointers of its own may lead: the TOC pointer is so far behind the start of its table (ELFv2, 3.4.2).
pub(crate) const POINTED_PAST: u64 = 0x8000;
/// Where the addresses of a program end, but for what it asks for by address: the size of its page tables depends on that of pages
/// (`arch/powerpc/include/asm/task_size_64.h`).
pub(crate) const fn addresses_end(page: u64) -> u64 {
    let size = if page < 1 << 16 { 1 << 46 } else { 1 << 47 };
    size - (1 << 16)
}

/// All vectors have 128 bits.
pub fn vectors() -> super::Vectors {
    super::Vectors::Short
}

/// The time base now, as detours read it.
pub fn ticks() -> u64 {
    let time: u64;
    // SAFETY: it reads a counter and touches nothing else.
    unsafe { std::arch::asm!("mftb {}", out(reg) time, options(nomem, nostack, preserves_flags)) };
    time
}

/// `elf_gregset_t` of `arch/powerpc/include/uapi/asm/elf.h`: `struct pt_regs`, and room behind.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct General {
    gpr: [u64; 32],
    nip: u64,
    msr: u64,
    orig_gpr3: u64,
    ctr: u64,
    link: u64,
    xer: u64,
    ccr: u64,
    softe: u64,
    trap: u64,
    dar: u64,
    dsisr: u64,
    result: u64,
    room: [u64; 4],
}

/// The registers of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    regs: General,
}

const STACK_POINTER: usize = 1;
const THREAD_POINTER: usize = 13;

/// Why a thread is in the kernel: `sc` and `scv`, of `arch/powerpc/include/asm/interrupt.h`.
const SYSTEM_CALL: u64 = 0xc00;
const SYSTEM_CALL_VECTORED: u64 = 0x3000;
/// The lowest bits of `trap` are the kernel's notes.
const NOTES: u64 = 0xf;
/// Summary overflow of the first field of the condition register, by which `sc` tells errors.
const IS_ERROR: u64 = 0x1000_0000;

/// Numbers by which [`Registers::general`] knows the registers that are none of the 32: their places in `struct pt_regs`.
mod special {
    /// The count register.
    pub const CTR: u8 = 35;
    /// The link register.
    pub const LR: u8 = 36;
    /// The fixed-point exception register.
    pub const XER: u8 = 37;
}

impl Registers {
    /// The instruction pointer as a number.
    pub fn ip_value(&self) -> u64 {
        self.regs.nip
    }

    /// Sets it.
    pub fn set_ip_value(&mut self, value: u64) {
        self.regs.nip = value;
    }

    /// The stack pointer as a number.
    pub fn sp_value(&self) -> u64 {
        self.regs.gpr[STACK_POINTER]
    }

    /// Sets it.
    pub fn set_sp_value(&mut self, value: u64) {
        self.regs.gpr[STACK_POINTER] = value;
    }

    /// r3: return value.
    pub fn result(&self) -> u64 {
        self.regs.gpr[3]
    }

    /// Sets it.
    pub fn set_result(&mut self, value: u64) {
        self.regs.gpr[3] = value;
    }

    /// The condition register.
    pub fn flags(&self) -> u64 {
        self.regs.ccr
    }

    /// Sets it.
    pub fn set_flags(&mut self, value: u64) {
        self.regs.ccr = value;
    }

    /// Where the thread's control block is: r13; 0 for a thread without one.
    pub fn thread_pointer(&self) -> RemoteAddr {
        RemoteAddr(self.regs.gpr[THREAD_POINTER])
    }

    fn entered_by(&self) -> u64 {
        self.regs.trap & !NOTES
    }

    /// The number of the system call the thread is in; negative if it is in none.
    pub fn syscall_number(&self) -> i64 {
        match self.entered_by() {
            SYSTEM_CALL | SYSTEM_CALL_VECTORED => self.regs.gpr[0] as i64,
            _ => -1,
        }
    }

    /// Says that the thread is in no system call, so the kernel will not restart one on its way out.
    pub fn leave_syscall(&mut self) {
        self.regs.trap = 0;
    }

    fn place(&mut self, number: u8) -> Option<&mut u64> {
        let regs = &mut self.regs;
        match number {
            0..32 => Some(&mut regs.gpr[usize::from(number)]),
            special::LR => Some(&mut regs.link),
            special::CTR => Some(&mut regs.ctr),
            special::XER => Some(&mut regs.xer),
            _ => None,
        }
    }

    /// The numbers of general registers; some may be none's.
    pub const NUMBERS: Range<u8> = 0..38;

    /// A register by its number: r0 to r31, ctr 35, lr 36, or xer 37; 0 for one that there is not.
    pub fn general(&self, number: u8) -> u64 {
        let mut copy = *self;
        copy.place(number).map_or(0, |register| *register)
    }

    /// A register by its DWARF number (64-Bit ELF V2 ABI, table 2.28); 0 for one that there is not.
    pub fn by_dwarf(&self, number: u8) -> u64 {
        match number {
            65 => self.regs.link,
            66 => self.regs.ctr,
            76 => self.regs.xer,
            0..32 => self.general(number),
            _ => 0,
        }
    }

    /// A word of what a function returns in registers for integers: 0 or 1.
    pub fn returned(&self, word: u8) -> u64 {
        self.general(3 + word.min(1))
    }

    /// What the registers hold by which a program may go on anywhere, but for the stack pointer.
    pub fn all_but_sp(&self) -> impl Iterator<Item = u64> + '_ {
        let others = [self.regs.link, self.regs.ctr];
        (0..32).filter(|&number| number != STACK_POINTER).map(|number| self.regs.gpr[number]).chain(others)
    }

    /// Sets a register by its number.
    pub fn set_general(&mut self, number: u8, value: u64) {
        if let Some(register) = self.place(number) {
            *register = value;
        }
    }

    /// The convention for its system calls.
    pub fn abi(&self) -> &'static Abi {
        &ABI
    }

    /// Makes a system call that our stop has cut short go on afterwards.
    ///
    /// Some calls answer an interruption with a plain EINTR (signal(7), "Interruption of system calls and library functions by stop
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
            let is_told_by_sign = self.entered_by() == SYSTEM_CALL_VECTORED;
            self.set_result(if is_told_by_sign { -ERESTARTNOHAND } else { ERESTARTNOHAND } as u64);
        }
        cut_short
    }

    /// Loads a system call, to be run from `instruction`.
    pub(crate) fn load_syscall(&mut self, instruction: RemoteAddr, number: u64, args: [u64; 6]) {
        self.set_ip(instruction);
        self.leave_syscall();
        self.regs.gpr[0] = number;
        self.regs.gpr[3..9].copy_from_slice(&args);
    }

    /// What the system call that has just ended gave.
    pub(crate) fn syscall_result(&self) -> Result<u64, Errno> {
        let value = self.result();
        match self.entered_by() {
            SYSTEM_CALL_VECTORED if (-4095..0).contains(&(value as i64)) => {
                Err(Errno((value as i64).wrapping_neg() as i32))
            }
            SYSTEM_CALL if self.regs.ccr & IS_ERROR != 0 => Err(Errno(value as i32)),
            _ => Ok(value),
        }
    }

    /// A floating-point register of a stopped thread; 0 for one that there is not.
    pub(crate) fn read_vector(tid: Tid, number: u8) -> Result<u64, Errno> {
        let mut buffer = MaybeUninit::<[u64; 33]>::zeroed();
        ptrace::get_regset(tid, NT_PRFPREG, &mut buffer)?;
        // SAFETY: any bytes are valid numbers.
        let all = unsafe { buffer.assume_init() };
        Ok(all[..32].get(usize::from(number)).copied().unwrap_or(0))
    }

    /// Reads the registers of a stopped thread.
    pub(crate) fn read(tid: Tid) -> Result<Registers, Errno> {
        let mut buffer = MaybeUninit::<General>::zeroed();
        if ptrace::get_regset(tid, NT_PRSTATUS, &mut buffer)? != size_of::<General>() {
            // A thread in 32-bit mode, which cannot be told in these.
            return Err(Errno(libc::ENOTSUP));
        }
        // SAFETY: any bytes are a valid register set.
        let regs = unsafe { buffer.assume_init() };
        // A note of the kernel's on the last system call, which a tracer cannot set.
        Ok(Registers { regs: General { result: 0, ..regs } })
    }

    /// Reads the instruction pointer of a stopped thread alone.
    pub(crate) fn read_ip(tid: Tid) -> Result<RemoteAddr, Errno> {
        ptrace::peek_user(tid, offset_of!(General, nip)).map(RemoteAddr)
    }

    /// Sets the instruction pointer of a stopped thread alone.
    pub(crate) fn write_ip(tid: Tid, ip: RemoteAddr) -> Result<(), Errno> {
        ptrace::poke_user(tid, offset_of!(General, nip), ip.0)
    }

    /// Writes what differs from `old`, which the stopped thread has.
    pub(crate) fn write_changes(&self, tid: Tid, old: &Registers) -> Result<(), Errno> {
        if self == old { Ok(()) } else { self.write(tid) }
    }

    /// Writes the registers of a stopped thread.
    pub(crate) fn write(&self, tid: Tid) -> Result<(), Errno> {
        ptrace::set_regset(tid, NT_PRSTATUS, &self.regs)
    }
}
