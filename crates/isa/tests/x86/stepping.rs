//! Runs the machine one instruction after the other, by the processor's trap flag, and keeps what each one finds.

use crate::faults::{self, REGISTERS};
use crate::machine::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Words from the stack pointer on that are kept of each step.
const WORDS: usize = 192;
/// Where the words of the program's stack begin that are kept, too: below what detours push there.
const PROGRAM: u64 = SLOT - 512;
/// The most steps of a run.
const MOST: usize = 4096;
pub const TRAP_FLAG: u64 = 1 << 8;

/// What an instruction finds.
#[derive(Clone, Copy)]
pub struct Step {
    pub ip: u64,
    pub registers: [u64; 16],
    pub flags: u64,
    /// The lower half of the register.
    pub xmm15: u64,
    stack: [u64; WORDS],
    /// Those of the program's, where that is another one.
    program: [u64; WORDS],
}

impl Step {
    /// A word of the stack.
    pub fn word(&self, address: u64) -> u64 {
        let (at, stack) = match address.wrapping_sub(PROGRAM) / 8 {
            at if at < WORDS as u64 => (at, &self.program),
            _ => (address.wrapping_sub(self.registers[4]) / 8, &self.stack),
        };
        *stack.get(at as usize).unwrap_or_else(|| panic!("{address:#x} from {:#x}", self.registers[4]))
    }
}

/// What the handler uses, which runs with the test's thread pointer: no thread-local storage, no memory but this.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: only the thread that holds the machine steps, and there is one machine.
unsafe impl<T> Sync for Shared<T> {}

static STEPS: Shared<[Step; MOST]> = Shared(UnsafeCell::new(
    [Step { ip: 0, registers: [0; 16], flags: 0, xmm15: 0, stack: [0; WORDS], program: [0; WORDS] }; MOST],
));
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Keeps what the instruction finds that is about to run.
pub fn stepped(context: &mut libc::mcontext_t) {
    let all = &mut context.gregs;
    let ip = all[libc::REG_RIP as usize] as u64;
    if (EXIT..EXIT + 0x1000).contains(&ip) {
        all[libc::REG_EFL as usize] &= !(TRAP_FLAG as i64);
    }
    let taken = TAKEN.load(Ordering::Relaxed);
    if !(FUNCTION..EXIT + 0x1000).contains(&ip) || taken == MOST {
        return;
    }
    // SAFETY: `Shared` says why nobody else is here.
    let step = unsafe { &mut (*STEPS.0.get())[taken] };
    step.ip = ip;
    step.flags = all[libc::REG_EFL as usize] as u64 & !TRAP_FLAG;
    // SAFETY: the kernel has saved them behind the general registers.
    let [low, high, ..] = unsafe { (*context.fpregs)._xmm[15].element };
    step.xmm15 = u64::from(high) << 32 | u64::from(low);
    for (register, place) in step.registers.iter_mut().zip(REGISTERS) {
        *register = all[place as usize] as u64;
    }
    for (index, word) in step.stack.iter_mut().enumerate() {
        // SAFETY: code under test runs on the machine's stack, far from its ends.
        *word = unsafe { ((step.registers[4] + 8 * index as u64) as *const u64).read() };
    }
    for (index, word) in step.program.iter_mut().enumerate() {
        // SAFETY: as above.
        *word = unsafe { ((PROGRAM + 8 * index as u64) as *const u64).read() };
    }
    TAKEN.store(taken + 1, Ordering::Relaxed);
}

/// Runs as [`Machine::run_from`] does, to [`EXIT`], and gives what every instruction found, [`EXIT`]'s first included.
pub fn step(machine: &Machine, entry: u64, thread_pointer: u64, state: &State) -> Vec<Step> {
    static SPACE: Shared<[u8; 1 << 16]> = Shared(UnsafeCell::new([0; 1 << 16]));
    faults::catch(SPACE.0.get() as u64, 1 << 16);
    TAKEN.store(0, Ordering::Relaxed);
    let stepping = State { flags: state.flags | TRAP_FLAG, ..state.clone() };
    let (exit, _) = machine.run_from(entry, thread_pointer, &stepping);
    let taken = TAKEN.load(Ordering::Relaxed);
    assert!(exit == 1 && taken < MOST, "exit {exit} after {taken} steps");
    // SAFETY: the handler runs no more.
    unsafe { (&*STEPS.0.get())[..taken].to_vec() }
}
