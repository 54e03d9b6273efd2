//! Threads made to stand at chosen instructions.
//!
//! The target is frozen first, so that the other threads stand still; each thread is then stepped alone, and falls back into the
//! job-control stop when it is let go.

use super::{PATIENCE, Target, eventually, thread_state};
use libc::user_regs_struct;
use std::mem::offset_of;
use std::time::Instant;

/// A frozen target's thread, under our own tracing until this is dropped.
pub struct Stepper {
    pid: i32,
    tid: i32,
}

impl Stepper {
    /// Takes a thread of a frozen target.
    pub fn seize(target: &Target, tid: i32) -> Stepper {
        request(libc::PTRACE_SEIZE, tid, 0);
        let stepper = Stepper { pid: target.pid(), tid };
        // Seizing a stopped thread makes it tell that it is stopped.
        stepper.wait();
        stepper
    }

    /// Its instruction pointer.
    pub fn ip(&self) -> u64 {
        self.peek(libc::PTRACE_PEEKUSER, offset_of!(user_regs_struct, rip) as u64)
    }

    /// Sets its instruction pointer.
    pub fn set_ip(&self, address: u64) {
        self.poke(libc::PTRACE_POKEUSER, offset_of!(user_regs_struct, rip) as u64, address);
    }

    /// Runs one instruction. The trap flag that steps it stays neither in flags that it pushes nor, as the kernel takes it for the
    /// program's own there, behind flags that it pops.
    pub fn step(&self) {
        const PUSHF: u64 = 0x9c;
        const POPF: u64 = 0x9d;
        const TRAP_FLAG: u64 = 1 << 8;
        let opcode = self.peek(libc::PTRACE_PEEKDATA, self.ip()) & 0xff;
        request(libc::PTRACE_SINGLESTEP, self.tid, 0);
        self.wait();
        let flags_at = offset_of!(user_regs_struct, eflags) as u64;
        if opcode == PUSHF {
            let sp = self.peek(libc::PTRACE_PEEKUSER, offset_of!(user_regs_struct, rsp) as u64);
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
    }

    fn peek(&self, request: libc::c_uint, at: u64) -> u64 {
        // SAFETY: these requests take a place and return a word; glibc clears errno and gives the word.
        unsafe { libc::ptrace(request, self.tid, at, 0) as u64 }
    }

    fn poke(&self, request: libc::c_uint, at: u64, word: u64) {
        // SAFETY: these requests take a place and a word.
        let done = unsafe { libc::ptrace(request, self.tid, at, word) };
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
        if !std::thread::panicking() {
            eventually("the thread stands again", || thread_state(self.pid, self.tid) == 'T');
        }
    }
}

fn request(request: libc::c_uint, tid: i32, data: usize) {
    // SAFETY: seizing and stepping take numbers only.
    let done = unsafe { libc::ptrace(request, tid, 0, data) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Makes a thread of a frozen target stand `steps` instructions behind its next arrival at `address`.
#[track_caller]
pub fn park(target: &Target, tid: i32, address: u64, steps: usize) -> u64 {
    let stepper = Stepper::seize(target, tid);
    stepper.walk_to(address);
    for _ in 0..steps {
        stepper.step();
    }
    stepper.ip()
}
