//! What code under test raises ends its run, with the state it had.

use crate::processor::{BEYOND, CONTROL, FAULT, NEAR, ORIGINAL, PAGE, REACH, trapless_test_fault};
use crate::stepping;
use libc::{c_int, c_void};

/// Registers of a signal frame by the numbers of instruction encodings.
pub const REGISTERS: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Catches the signals of this thread on the stack at `stack`.
pub fn catch(stack: u64, size: usize) {
    let stack = libc::stack_t { ss_sp: stack as *mut c_void, ss_flags: 0, ss_size: size };
    // SAFETY: the stack is memory that only one thread at a time uses, the one that holds the processor. The handler
    // is async-signal-safe and passes on what is none of its business.
    unsafe {
        assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Notes the state as an exit would, and goes on behind the exit. Runs with the tested code's fs: no thread-local data,
/// so no call of the standard library.
extern "C" fn caught(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a ucontext.
    let context = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    if signal == libc::SIGTRAP && context.gregs[libc::REG_EFL as usize] as u64 & stepping::TRAP_FLAG != 0 {
        return stepping::stepped(context);
    }
    let registers = &mut context.gregs;
    let ip = registers[libc::REG_RIP as usize] as u64;
    let ours = [ORIGINAL, NEAR, REACH, BEYOND].iter().any(|page| ip.wrapping_sub(*page) < 2 * PAGE as u64);
    if !ours {
        // SAFETY: async-signal-safe. The instruction runs again, and then its signal does what it does by default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    let control = CONTROL as *mut u64;
    for (n, register) in REGISTERS.iter().enumerate() {
        // SAFETY: the control page is mapped while code under test runs.
        unsafe { control.add(n).write(registers[*register as usize] as u64) };
    }
    for (at, word) in [(16, registers[libc::REG_EFL as usize] as u64), (17, FAULT + signal as u64), (18, ip)]
    {
        // SAFETY: as above.
        unsafe { control.add(at).write(word) };
    }
    registers[libc::REG_RIP as usize] = trapless_test_fault as *const () as i64;
    registers[libc::REG_EFL as usize] = 0x202;
    // 64-bit code, where 32-bit code ran.
    let selectors = &mut registers[libc::REG_CSGSFS as usize];
    *selectors = *selectors & !0xffff | 0x33;
}
