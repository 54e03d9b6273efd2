//! Arm A64.
//!
//! What a stopped thread has besides the general registers is in sets of their own: the thread pointer, and the number of the system
//! call that it is in.
//!
//! # System calls
//! The kernel prepares an interrupted call to be made again before it tells the tracer of the stop: the code address is that of the `svc`,
//! and the first argument is in its register again (`do_signal` of `arch/arm64/kernel/signal.c`). So there is nothing to be kept of a
//! call, and a thread that goes on makes it. A wait for a time that is relative, and whose rest the kernel has not written to the program's
//! memory, begins anew with all of its time then.
//!
//! Where the call ends with a plain EINTR its first argument is lost. What a thread was waiting in is looked up *before* it is asked to
//! stop, for that: [`Waiting`].

mod abi;
pub(super) mod context;
mod scalable;

use super::Abi;
use crate::ptrace::{self, NT_PRFPREG, NT_PRSTATUS};
use crate::{Errno, Pid, RemoteAddr, Tid};
use abi::ABI;
use std::mem::MaybeUninit;
use std::ops::Range;

pub use scalable::vectors;
pub(crate) use scalable::{LostByCalls, is_streaming};

pub use super::plain::{BREAKPOINT_ADVANCE, TRAP_FLAG, thread_selector};
pub(crate) use super::plain::{HAS_32BIT, STEP_OVER_CALL_LOOKS_SENT, Stepping, narrow_end, trapped};

/// Instructions that make system calls, beside that of the convention.
pub(crate) const OTHER_CALLS: &[&[u8]] = &[];
/// `brk #0`.
pub const BREAKPOINT: &[u8] = &[0x00, 0x00, 0x20, 0xd4];
/// Whether a thread that stands at the end of a system call goes on with all registers that it is given there.
pub(crate) const END_OF_CALL_TAKES_ALL: bool = true;
/// Bytes behind a module to which pointers of its own may lead.
pub(crate) const POINTED_PAST: u64 = 0;
/// Where the addresses of a program end, but for what it asks for by address: kernels are configured with 36, 39, 42, 47 or 48 bits of
/// them (`CONFIG_ARM64_VA_BITS`), and give every program a stack below that end.
pub(crate) fn addresses_end(_page: u64) -> u64 {
    let on_the_stack = 0u8;
    let bits = u64::BITS - (&raw const on_the_stack as u64).leading_zeros();
    // The last page of 64 KiB is nobody's.
    (1 << bits.min(48)) - 0x1_0000
}

/// `NT_ARM_TLS` of `include/uapi/linux/elf.h`: `TPIDR_EL0`, and where there is one `TPIDR2_EL0`.
const NT_ARM_TLS: usize = 0x401;
/// `NT_ARM_SYSTEM_CALL`: the number of the call that the thread is in, or -1.
const NT_ARM_SYSTEM_CALL: usize = 0x404;

/// The general register that holds the number of the system call to make.
const CALL: usize = 8;
const LENGTH: u64 = 4;

/// The virtual counter now, as detours read it.
pub fn ticks() -> u64 {
    let time: u64;
    // SAFETY: it reads a counter and touches nothing else.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) time, options(nomem, nostack, preserves_flags)) };
    time
}

/// What a thread was waiting in before it was asked to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting(Option<Call>);

/// A system call, as `/proc/PID/syscall` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: u64,
    args: [u64; 6],
    sp: u64,
    /// Behind the instruction.
    ip: u64,
}

impl Waiting {
    /// Nothing that is known.
    pub const NOTHING: Self = Self(None);

    /// That of a thread that runs.
    pub fn of(pid: Pid, tid: Tid) -> Self {
        let told = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
        Self(told.ok().and_then(|told| Call::parse(&told)))
    }
}

impl Call {
    /// `None` for a thread that runs, or waits in no call.
    fn parse(told: &str) -> Option<Self> {
        let mut fields = told.split_ascii_whitespace();
        let number = fields.next()?.parse().ok()?;
        let mut word = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
        let args = [word()?, word()?, word()?, word()?, word()?, word()?];
        Some(Self { number, args, sp: word()?, ip: word()? })
    }
}

/// The registers of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    regs: libc::user_regs_struct,
    thread_pointer: u64,
    /// The system call that the thread is in, or -1.
    call: i32,
}

impl Registers {
    /// The instruction pointer as a number.
    pub fn ip_value(&self) -> u64 {
        self.regs.pc
    }

    /// Sets it.
    pub fn set_ip_value(&mut self, value: u64) {
        self.regs.pc = value;
    }

    /// The stack pointer as a number.
    pub fn sp_value(&self) -> u64 {
        self.regs.sp
    }

    /// Sets it.
    pub fn set_sp_value(&mut self, value: u64) {
        self.regs.sp = value;
    }

    /// x0: return value.
    pub fn result(&self) -> u64 {
        self.regs.regs[0]
    }

    /// Sets it.
    pub fn set_result(&mut self, value: u64) {
        self.regs.regs[0] = value;
    }

    /// The processor's state, whose uppermost bits are the flags.
    pub fn flags(&self) -> u64 {
        self.regs.pstate
    }

    /// Sets it.
    pub fn set_flags(&mut self, value: u64) {
        self.regs.pstate = value;
    }

    /// Where the thread's control block is: `TPIDR_EL0`; 0 for a thread without one.
    pub fn thread_pointer(&self) -> RemoteAddr {
        RemoteAddr(self.thread_pointer)
    }

    /// The number of the system call the thread is in; negative if it is in none.
    pub fn syscall_number(&self) -> i64 {
        self.call.into()
    }

    /// Says that the thread is in no system call, so the kernel will not restart one on its way out.
    pub fn leave_syscall(&mut self) {
        self.call = -1;
    }

    /// The numbers of general registers; some may be none's.
    pub const NUMBERS: Range<u8> = 0..32;

    /// A general register by the number instructions encode it with, 0 to 30; 31 is the stack pointer.
    pub fn general(&self, number: u8) -> u64 {
        match number {
            31 => self.regs.sp,
            _ => self.regs.regs.get(usize::from(number)).copied().unwrap_or(0),
        }
    }

    /// A general register by its DWARF number (DWARF for the Arm 64-bit Architecture, "DWARF register names"); 0 for one that there is not.
    pub fn by_dwarf(&self, number: u8) -> u64 {
        self.general(number)
    }

    /// A word of what a function returns in registers for integers: 0 or 1.
    pub fn returned(&self, word: u8) -> u64 {
        self.general(word.min(1))
    }

    /// What the general registers hold, but for the stack pointer.
    pub fn all_but_sp(&self) -> impl Iterator<Item = u64> + '_ {
        self.regs.regs.iter().copied()
    }

    /// Sets a general register by its number.
    pub fn set_general(&mut self, number: u8, value: u64) {
        match number {
            31 => self.regs.sp = value,
            _ => {
                if let Some(register) = self.regs.regs.get_mut(usize::from(number)) {
                    *register = value;
                }
            }
        }
    }

    /// The convention for its system calls.
    pub fn abi(&self) -> &'static Abi {
        &ABI
    }

    /// Makes a system call that our stop has cut short go on afterwards, and that answers an interruption with a plain EINTR
    /// (signal(7), "Interruption of system calls and library functions by stop signals"). A restarted call waits its full timeout again.
    ///
    /// It is the one that the thread was `waiting` in, if all but the first argument is as it was.
    ///
    /// True if the registers were changed.
    pub(crate) fn restart_if_interrupted(&mut self, waiting: Waiting) -> bool {
        let Some(call) = waiting.0 else { return false };
        let is_the_same = call.ip == self.regs.pc
            && call.sp == self.regs.sp
            && call.number == self.regs.regs[CALL]
            && call.args[1..] == self.regs.regs[1..6];
        let cut_short = is_the_same
            && self.abi().plain_eintr.iter().any(|&number| number as u64 == call.number)
            && self.syscall_result() == Err(Errno(libc::EINTR));
        if cut_short {
            self.regs.regs[0] = call.args[0];
            self.regs.pc -= LENGTH;
            self.leave_syscall();
        }
        cut_short
    }

    /// Loads a system call, to be run from `instruction`.
    pub(crate) fn load_syscall(&mut self, instruction: RemoteAddr, number: u64, args: [u64; 6]) {
        self.set_ip(instruction);
        self.leave_syscall();
        self.regs.regs[CALL] = number;
        self.regs.regs[..6].copy_from_slice(&args);
        // Where branches have to arrive at landing pads, an instruction that is come to like this is none.
        self.regs.pstate &= !BRANCH_TYPE;
    }

    /// What the system call that has just ended gave.
    pub(crate) fn syscall_result(&self) -> Result<u64, Errno> {
        let value = self.regs.regs[0];
        let signed = value as i64;
        if (-4095..0).contains(&signed) { Err(Errno(-signed as i32)) } else { Ok(value) }
    }

    /// The low 64 bits of a vector register of a stopped thread; 0 for one that there is not.
    pub(crate) fn read_vector(tid: Tid, number: u8) -> Result<u64, Errno> {
        /// `struct user_fpsimd_state` of `arch/arm64/include/uapi/asm/ptrace.h`.
        #[repr(C)]
        struct Vectors {
            vectors: [u128; 32],
            status: u32,
            control: u32,
            reserved: [u32; 2],
        }
        let mut buffer = MaybeUninit::<Vectors>::zeroed();
        ptrace::get_regset(tid, NT_PRFPREG, &mut buffer)?;
        // SAFETY: any bytes are valid numbers.
        let all = unsafe { buffer.assume_init() };
        Ok(all.vectors.get(usize::from(number)).map_or(0, |vector| *vector as u64))
    }

    /// Reads the registers of a stopped thread.
    pub(crate) fn read(tid: Tid) -> Result<Registers, Errno> {
        let regs = general(tid)?;
        let [mut thread_pointer, mut call] = [MaybeUninit::new(0u64), MaybeUninit::new(0u64)];
        ptrace::get_regset(tid, NT_ARM_TLS, &mut thread_pointer)?;
        ptrace::get_regset(tid, NT_ARM_SYSTEM_CALL, &mut call)?;
        // SAFETY: they were initialised, and any bytes are valid numbers.
        let (thread_pointer, call) = unsafe { (thread_pointer.assume_init(), call.assume_init()) };
        Ok(Registers { regs, thread_pointer, call: call as i32 })
    }

    /// Reads the instruction pointer of a stopped thread alone.
    pub(crate) fn read_ip(tid: Tid) -> Result<RemoteAddr, Errno> {
        Ok(RemoteAddr(general(tid)?.pc))
    }

    /// Sets the instruction pointer of a stopped thread alone.
    pub(crate) fn write_ip(tid: Tid, ip: RemoteAddr) -> Result<(), Errno> {
        let mut regs = general(tid)?;
        regs.pc = ip.0;
        ptrace::set_regset(tid, NT_PRSTATUS, &regs)
    }

    /// Writes what differs from `old`, which the stopped thread has.
    pub(crate) fn write_changes(&self, tid: Tid, old: &Registers) -> Result<(), Errno> {
        if self == old { Ok(()) } else { self.write(tid) }
    }

    /// Writes the registers of a stopped thread.
    pub(crate) fn write(&self, tid: Tid) -> Result<(), Errno> {
        ptrace::set_regset(tid, NT_PRSTATUS, &self.regs)?;
        ptrace::set_regset(tid, NT_ARM_SYSTEM_CALL, &self.call)
    }
}

/// The general registers of a stopped thread.
fn general(tid: Tid) -> Result<libc::user_regs_struct, Errno> {
    let mut buffer = MaybeUninit::<libc::user_regs_struct>::zeroed();
    if ptrace::get_regset(tid, NT_PRSTATUS, &mut buffer)? != size_of::<libc::user_regs_struct>() {
        // A thread in 32-bit mode, which cannot be told in these.
        return Err(Errno(libc::ENOTSUP));
    }
    // SAFETY: zeroed is a valid register set, and the kernel has overwritten it.
    Ok(unsafe { buffer.assume_init() })
}

/// `PSR_BTYPE_MASK` of `arch/arm64/include/uapi/asm/ptrace.h`.
const BRANCH_TYPE: u64 = 0xc00;

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        // SAFETY: any bytes are a valid register set.
        Registers { regs: unsafe { std::mem::zeroed() }, thread_pointer: 0, call: -1 }
    }

    #[test]
    fn a_call_that_was_waited_in_is_made_again() {
        let told = "22 0x4 0xffffe1b0 0x10 0xffffffffffffffff 0x0 0x8 0xffffe190 0xffff9c2f\n";
        let waiting = Waiting(Call::parse(told));
        let mut stopped = registers();
        stopped.regs.regs[..6].copy_from_slice(&[-4i64 as u64, 0xffff_e1b0, 0x10, u64::MAX, 0, 8]);
        stopped.regs.regs[CALL] = 22;
        (stopped.regs.sp, stopped.regs.pc) = (0xffff_e190, 0xffff_9c2f);
        let mut again = stopped;
        assert!(again.restart_if_interrupted(waiting));
        assert_eq!((again.general(0), again.ip_value()), (4, 0xffff_9c2b));
        for change in [
            |r: &mut Registers| r.regs.sp += 16,
            |r: &mut Registers| r.regs.pc += 4,
            |r: &mut Registers| r.regs.regs[5] = 0,
            |r: &mut Registers| r.regs.regs[CALL] = libc::SYS_nanosleep as u64,
            |r: &mut Registers| r.regs.regs[0] = 1,
        ] {
            let mut other = stopped;
            change(&mut other);
            assert!(!other.restart_if_interrupted(waiting));
        }
        assert!(!stopped.restart_if_interrupted(Waiting::NOTHING));
        assert_eq!(
            [Call::parse("running"), Call::parse("-1 0xffffe190 0xffff9c2f"), Call::parse("")],
            [None; 3]
        );
    }

    #[test]
    fn results_and_errors() {
        let mut registers = registers();
        for (value, result) in [
            (0, Ok(0)),
            (-1i64 as u64, Err(Errno(1))),
            (-4095i64 as u64, Err(Errno(4095))),
            (-4096i64 as u64, Ok(-4096i64 as u64)),
        ] {
            registers.set_result(value);
            assert_eq!(registers.syscall_result(), result);
        }
        registers.load_syscall(RemoteAddr(0x1000), 20, [1, 2, 3, 4, 5, 6]);
        assert_eq!((registers.ip(), registers.general(8), registers.general(5)), (RemoteAddr(0x1000), 20, 6));
    }
}
