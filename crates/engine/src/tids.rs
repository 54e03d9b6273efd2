//! Whether threads have their numbers where detours read them.
//!
//! Go's run-time system has them in structures of its own (`runtime.m`), which another version may lay out otherwise. One thread tells: where the first
//! thread's number is at its place, all have theirs there. A C library's are where they are known to be, but a child that a program has made by the bare
//! system call still has its parent's number, and by that a script would read its parent's memory.

use crate::EngineError;
use trapless_isa::Layout;
use trapless_process::{MemoryError, Process, RemoteAddr, Stopped};

/// Fails if the first thread's number is not there: in Go, and where a script is told numbers.
///
/// # Errors
/// [`EngineError::Unsupported`], if it is another one.
pub(crate) fn require(
    process: &Process,
    stopped: &Stopped<'_>,
    layout: &Layout,
    has_script: bool,
) -> Result<(), EngineError> {
    let is_meant = has_script || !layout.self_pointer;
    let Some(offset) = layout.tid_offset.filter(|_| is_meant) else { return Ok(()) };
    let leader = process.pid().leader();
    let first = stopped.threads().iter().find(|thread| thread.tid() == leader);
    let pointer = first.map_or(0, |thread| thread.registers().thread_pointer().0);
    // A program that was just launched has not begun to fill it in.
    if pointer == 0 {
        return Ok(());
    }
    let status = process.status().map_err(|_| MemoryError::Gone)?;
    let known = status.ns_pid.last().copied().unwrap_or(process.pid().0);
    let mut number = [0; 4];
    process.read_exact(RemoteAddr(pointer.wrapping_add_signed(offset.into())), &mut number)?;
    match i32::from_le_bytes(number) == known {
        true => Ok(()),
        false if layout.self_pointer => Err(EngineError::Unsupported(
            "its C library takes it for the process that has made it (by the bare system call), and a script would read that one's memory",
        )),
        false => Err(EngineError::Unsupported(
            "this version of Go keeps its threads' numbers elsewhere, and a script would tell wrong ones",
        )),
    }
}
