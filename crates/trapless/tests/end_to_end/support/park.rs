//! Threads made to stand at chosen instructions.
//!
//! The target is frozen first, so that the other threads stand still; each thread is then stepped alone, and falls back into the
//! job-control stop when it is let go.

use super::assembly::X86;
use super::{PATIENCE, Target, eventually, thread_state};
use std::mem::zeroed;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use libc::user_regs_struct;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use std::mem::offset_of;

/// Where the kernel tells the instruction pointer, the stack pointer and the flags: by the layout of the one that asks.
#[cfg(target_arch = "x86_64")]
const USER: [u64; 3] = [
    offset_of!(user_regs_struct, rip) as u64,
    offset_of!(user_regs_struct, rsp) as u64,
    offset_of!(user_regs_struct, eflags) as u64,
];
#[cfg(target_arch = "x86")]
const USER: [u64; 3] = [
    offset_of!(user_regs_struct, eip) as u64,
    offset_of!(user_regs_struct, esp) as u64,
    offset_of!(user_regs_struct, eflags) as u64,
];
/// The set of general registers (`NT_PRSTATUS`), in words, and where in it the instruction pointer is.
#[cfg(target_arch = "aarch64")]
const SET: (usize, usize) = (34, 32);
#[cfg(target_arch = "powerpc64")]
const SET: (usize, usize) = (48, 32);

/// Instructions between an exclusive load and the store, at most.
const IN_EXCLUSIVE: usize = 2;

/// The registers as [`trapless_isa::Isa::exclusive`] asks for them.
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
struct Registers([u64; SET.0]);

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
impl trapless_isa::Thread for Registers {
    fn register(&self, number: u8) -> u64 {
        self.0[usize::from(number)]
    }
    fn set_register(&mut self, number: u8, value: u64) {
        self.0[usize::from(number)] = value;
    }
    fn flags(&self) -> u64 {
        0
    }
    fn set_flags(&mut self, _: u64) {}
    fn set_ip(&mut self, _: u64) {}
    fn segment_base(&self, _: bool) -> Option<u64> {
        None
    }
    fn read(&self, _: u64, _: u8) -> Option<u64> {
        None
    }
    fn write(&mut self, _: u64, _: u8, _: u64) -> Option<()> {
        None
    }
}

static NEXT: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    /// This thread's: tests that run at once step on different processors.
    static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// A frozen target's thread, under our own tracing until this is dropped.
pub struct Stepper {
    pid: i32,
    tid: i32,
    /// Where it and we may run when it is dropped.
    processors: [libc::cpu_set_t; 2],
}

impl Stepper {
    /// Takes a thread of a frozen target.
    pub fn seize(target: &Target, tid: i32) -> Stepper {
        request(libc::PTRACE_SEIZE, tid, 0);
        let processors = [tid, 0].map(processors);
        // Each of them waits for the other, and one processor need not wake another for that.
        let all = numbers(&processors[1]);
        let one = all[NUMBER.with(|number| *number) % all.len()];
        keep_on(tid, one);
        keep_on(0, one);
        let stepper = Stepper { pid: target.pid(), tid, processors };
        // Seizing a stopped thread makes it tell that it is stopped.
        stepper.wait();
        stepper
    }

    /// Its instruction pointer.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    pub fn ip(&self) -> u64 {
        self.peek(libc::PTRACE_PEEKUSER, USER[0])
    }

    /// Its instruction pointer.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    pub fn ip(&self) -> u64 {
        self.registers()[SET.1]
    }

    /// Sets its instruction pointer.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    pub fn set_ip(&self, address: u64) {
        self.poke(libc::PTRACE_POKEUSER, USER[0], address);
    }

    /// Sets its instruction pointer.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    pub fn set_ip(&self, address: u64) {
        let mut registers = self.registers();
        registers[SET.1] = address;
        // The kernel only reads them.
        self.transfer(libc::PTRACE_SETREGSET, registers.as_mut_ptr());
    }

    /// Runs one instruction; or all from an exclusive load to behind its store, which a step in between would keep from coming about.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    pub fn step(&self) {
        if self.returns_from_handler() {
            // At the entry of the call, and behind it.
            return [(); 2].into_iter().for_each(|()| {
                request(libc::PTRACE_SYSCALL, self.tid, 0);
                self.wait();
            });
        }
        let ends = self.ends_of_exclusive();
        if ends.is_empty() {
            return self.step_plainly();
        }
        let breakpoint = trapless_isa::Machine::beside(false).isa().facts().breakpoint;
        let breakpoint = u64::from(u32::from_le_bytes(breakpoint.try_into().unwrap()));
        let words: Vec<u64> = ends
            .iter()
            .map(|&end| {
                let word = self.peek(libc::PTRACE_PEEKDATA, end);
                self.poke(libc::PTRACE_POKEDATA, end, word >> 32 << 32 | breakpoint);
                word
            })
            .collect();
        request(libc::PTRACE_CONT, self.tid, 0);
        self.wait();
        // Backwards, since one may lie in another's word.
        ends.iter().zip(words).rev().for_each(|(&end, word)| self.poke(libc::PTRACE_POKEDATA, end, word));
        assert!(ends.contains(&self.ip()), "thread {} stands at {:#x}", self.tid, self.ip());
    }

    /// Whether it is about to go back to where a signal has interrupted it, and a step would run the instruction there, too: so it is on
    /// powerpc64le (`sc`, with `rt_sigreturn` in r0).
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    fn returns_from_handler(&self) -> bool {
        const SC: u32 = 0x4400_0002;
        cfg!(target_arch = "powerpc64")
            && self.peek(libc::PTRACE_PEEKDATA, self.ip()) as u32 == SC
            && self.registers()[0] == libc::SYS_rt_sigreturn as u64
    }

    /// Where control goes on behind the store that belongs to the exclusive load which the thread stands at. Empty at other instructions.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    fn ends_of_exclusive(&self) -> Vec<u64> {
        const LONGEST: u64 = 16;
        let isa = trapless_isa::Machine::beside(false).isa();
        let code = |at: u64| (self.peek(libc::PTRACE_PEEKDATA, at) as u32).to_le_bytes();
        let access =
            |at: u64| isa.exclusive(&code(at), &Registers(self.registers())).map(|access| access.is_store);
        let start = self.ip();
        let mut ends = Vec::new();
        if access(start) == Some(false) {
            for at in (start..).step_by(4).take(LONGEST as usize) {
                ends.extend(isa.decode(&code(at), at).ok().and_then(|decoded| decoded.flow.target()));
                if access(at) == Some(true) {
                    ends.retain(|end| !(start..=at).contains(end));
                    ends.push(at + 4);
                    return ends;
                }
            }
        }
        Vec::new()
    }

    /// Runs one instruction, whatever it is.
    fn step_plainly(&self) {
        request(libc::PTRACE_SINGLESTEP, self.tid, 0);
        self.wait();
    }

    /// Runs one instruction. The trap flag that steps it stays neither in flags that it pushes nor, as the kernel takes it for the
    /// program's own there, behind flags that it pops.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    pub fn step(&self) {
        const PUSHF: u64 = 0x9c;
        const POPF: u64 = 0x9d;
        const TRAP_FLAG: u64 = 1 << 8;
        let opcode = self.peek(libc::PTRACE_PEEKDATA, self.ip()) & 0xff;
        self.step_plainly();
        let [_, sp_at, flags_at] = USER;
        if opcode == PUSHF {
            let sp = self.peek(libc::PTRACE_PEEKUSER, sp_at);
            self.poke(libc::PTRACE_POKEDATA, sp, self.peek(libc::PTRACE_PEEKDATA, sp) & !TRAP_FLAG);
        }
        let flags = self.peek(libc::PTRACE_PEEKUSER, flags_at);
        if opcode == POPF || flags & TRAP_FLAG != 0 {
            self.poke(libc::PTRACE_POKEUSER, flags_at, flags & !TRAP_FLAG);
        }
    }

    /// Gives it a signal, whose handler ends with a breakpoint, and waits for that. Only behind a step.
    #[track_caller]
    pub fn interrupt(&self, signal: i32) {
        request(libc::PTRACE_CONT, self.tid, signal as usize);
        self.wait();
        // There, a thread stands at its breakpoint and not behind it.
        if !X86 {
            self.set_ip(self.ip() + 4);
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    fn registers(&self) -> [u64; SET.0] {
        let mut registers = [0; SET.0];
        self.transfer(libc::PTRACE_GETREGSET, registers.as_mut_ptr());
        registers
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    fn transfer(&self, request: libc::c_uint, registers: *mut u64) {
        const NT_PRSTATUS: usize = 1;
        let mut vector = libc::iovec { iov_base: registers.cast(), iov_len: SET.0 * size_of::<u64>() };
        // SAFETY: the vector names a whole set, which lives across the call.
        let done = unsafe { libc::ptrace(request, self.tid, NT_PRSTATUS, &raw mut vector) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    fn peek(&self, request: libc::c_uint, at: u64) -> u64 {
        // SAFETY: these requests take a place and return a word; glibc clears errno and gives the word.
        unsafe { libc::ptrace(request, self.tid, at as usize, 0) as usize as u64 }
    }

    fn poke(&self, request: libc::c_uint, at: u64, word: u64) {
        // SAFETY: these requests take a place and a word.
        let done = unsafe { libc::ptrace(request, self.tid, at as usize, word as usize) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Steps until it stands at `address`.
    #[track_caller]
    pub fn walk_to(&self, address: u64) {
        let start = Instant::now();
        while self.ip() != address {
            assert!(start.elapsed() < PATIENCE, "thread {} never comes to {address:#x}", self.tid);
            self.step();
        }
    }

    #[track_caller]
    fn wait(&self) {
        let mut status = 0;
        let start = Instant::now();
        let waited = loop {
            // SAFETY: the call writes one integer.
            match unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) } {
                0 => assert!(start.elapsed() < PATIENCE, "thread {} does not stop", self.tid),
                waited => break waited,
            }
            std::thread::yield_now();
        };
        assert!(waited == self.tid && libc::WIFSTOPPED(status), "thread {} ended: {status:#x}", self.tid);
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        // SAFETY: this request takes numbers only. It fails when the thread is gone, and then nothing is to be done.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0, 0) };
        [self.tid, 0].into_iter().zip(&self.processors).for_each(|(thread, set)| run_on(thread, set));
        if !std::thread::panicking() {
            eventually("the thread stands again", || thread_state(self.pid, self.tid) == 'T');
        }
    }
}

/// The processors that a thread may run on.
pub fn processors_of(tid: i32) -> Vec<usize> {
    numbers(&processors(tid))
}

/// Has a thread run on one of them only, from now on.
pub fn keep_on(tid: i32, processor: usize) {
    // SAFETY: a set is bits, of which none may be in it, and the number is within it.
    let set = unsafe {
        let mut one = zeroed();
        libc::CPU_SET(processor, &mut one);
        one
    };
    run_on(tid, &set);
}

/// Where a thread may run; 0 is the calling one.
fn processors(tid: i32) -> libc::cpu_set_t {
    // SAFETY: a set is bits, of which none may be in it, and the call writes no more than one.
    unsafe {
        let mut set = zeroed();
        assert_eq!(libc::sched_getaffinity(tid, size_of_val(&set), &mut set), 0);
        set
    }
}

/// The processors in a set.
fn numbers(set: &libc::cpu_set_t) -> Vec<usize> {
    // SAFETY: numbers are within a set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, set) }).collect()
}

/// Lets a thread run there. One that has ended runs nowhere.
fn run_on(tid: i32, set: &libc::cpu_set_t) {
    // SAFETY: the call reads one set.
    unsafe { libc::sched_setaffinity(tid, size_of_val(set), set) };
}

fn request(request: libc::c_uint, tid: i32, data: usize) {
    // SAFETY: seizing and stepping take numbers only.
    let done = unsafe { libc::ptrace(request, tid, 0, data) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Where a function begins whoever calls it: on powerpc64le behind the two instructions that set r2, which callers from the same module
/// leave out.
pub fn entry_for_all(target: &Target, function: u64) -> u64 {
    // `addis r2,r12` or, at a fixed address, `lis r2`; and `addi r2,r2`.
    const HIGH: [u32; 2] = [0x3c4c, 0x3c40];
    const LOW: u32 = 0x3842;
    let code = target.read(function, 8);
    let half = |at: usize| u32::from_le_bytes(code[at..at + 4].try_into().unwrap()) >> 16;
    let sets_r2 = cfg!(target_arch = "powerpc64") && HIGH.contains(&half(0)) && half(4) == LOW;
    if sets_r2 { function + 8 } else { function }
}

/// Makes a thread of a frozen target stand `steps` instructions behind its next arrival at `address`.
#[track_caller]
pub fn park(target: &Target, tid: i32, address: u64, steps: usize) -> u64 {
    let stepper = Stepper::seize(target, tid);
    stepper.walk_to(address);
    let plain = steps.min(IN_EXCLUSIVE);
    (plain..steps).for_each(|_| stepper.step());
    // To anywhere, also between an exclusive load and its store.
    (0..plain).for_each(|_| if X86 { stepper.step() } else { stepper.step_plainly() });
    stepper.ip()
}
