//! The routine of compiled code that makes a system call. Compilers of bodies have no instruction for it.
//!
//! It is called as every routine of a [program](crate::body): it keeps all registers but those that bodies lose, and changes nothing but the
//! word that its result goes to. The kernel keeps neither r0, r3 to r12 and ctr nor cr0 and XER, but lr, and what belongs to floating-point numbers and
//! vectors (`Documentation/arch/powerpc/syscall64-abi.rst` of Linux). What is saved lies below the stack pointer, where handlers of signals and the
//! kernel leave as much alone as functions without a frame use.

use super::emit::*;
use crate::body::{Code, Takes};

/// The registers that it saves. Of r11 and r12 bodies expect nothing.
const SAVED: [Gpr; 8] = [R3, R4, R5, R6, R7, R8, R9, R10];

/// Where the n-th of them is saved; behind them ctr.
fn saved(n: usize) -> i16 {
    -8 * (n as i16 + 1)
}

/// r3: the number of the call. r4: the address of six words, its arguments; the first becomes the result.
pub(crate) fn routine() -> Code {
    let mut asm = Asm::new(0);
    for (n, &register) in SAVED.iter().enumerate() {
        asm.store(register, R1, saved(n));
    }
    asm.read_special(R12, CTR);
    asm.store(R12, R1, saved(SAVED.len()));
    asm.copy(R0, R3);
    asm.copy(R12, R4);
    for (register, place) in SAVED.into_iter().zip((0..48).step_by(8)) {
        asm.load(register, R12, place);
    }
    asm.system_call();
    let succeeded = asm.label();
    asm.branch_if(When::Succeeded, succeeded);
    // Errors are told by their negative numbers on the other machines.
    asm.negate(R3, R3);
    asm.bind(succeeded);
    asm.load(R12, R1, saved(1));
    asm.store(R3, R12, 0);
    asm.load(R12, R1, saved(SAVED.len()));
    asm.write_special(CTR, R12);
    for (n, &register) in SAVED.iter().enumerate() {
        asm.load(register, R1, saved(n));
    }
    asm.return_();
    let bytes = asm.finish().expect("it branches within itself");
    Code { bytes, takes: Takes::NONE, frame: 8 * (SAVED.len() as u32 + 1), ..Code::default() }
}
