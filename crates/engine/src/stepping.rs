//! Stepping a thread of a process that stands still out of our code.
//!
//! A step keeps exclusive accesses from coming about ([`Exclusive`]), and detours count by them. So their stores are made here, where
//! memory is still what the thread has loaded. Nobody else stores there: the threads stand, and children have blocks of their own. The tool
//! changes tables of scripts, and hardly in the microsecond between looking and storing.

use crate::target::isa;
use crate::thread::Thread;
use trapless_isa::{Exclusive, Isa, Thread as _};
use trapless_process::{Registers, Stepped, StopError, Stopped, Tid};

/// Steps `tid` as [`Stopped::step_until`] does, through exclusive accesses, too.
pub(crate) fn step_until(
    stopped: &mut Stopped<'_>,
    tid: Tid,
    limit: u32,
    mut done: impl FnMut(&Registers) -> bool,
) -> Result<Stepped, StopError> {
    let isa = isa(stopped.process());
    if !isa.facts().has_exclusives {
        return stopped.step_until(tid, limit, done);
    }
    let mut watched = None;
    for steps in 0..=limit {
        let thread = stopped.thread(tid).ok_or(StopError::UnknownThread(tid))?;
        let registers = *thread.registers();
        if done(&registers) {
            return Ok(Stepped::Done(steps));
        }
        if steps == limit {
            break;
        }
        if let Some(after) = store(isa, stopped, registers, &mut watched) {
            stopped.set_registers(tid, after)?;
        } else if let ended @ (Stepped::Faulted(_) | Stepped::Outpaced) =
            stopped.step_until(tid, 1, |_| false)?
        {
            return Ok(ended);
        }
    }
    Ok(Stepped::NotYet)
}

/// Makes the exclusive store that a thread with these registers stands at, if memory is what was `watched`; its registers behind it. At a
/// load the memory is watched that it will have loaded.
fn store(
    isa: &dyn Isa,
    stopped: &Stopped<'_>,
    registers: Registers,
    watched: &mut Option<(Exclusive, u64)>,
) -> Option<Registers> {
    let process = stopped.process();
    let mut code = [0; 4];
    let ip = registers.ip();
    process.load(ip, &mut code).ok()?;
    let mut thread = Thread::new(process, registers);
    let access = isa.exclusive(&code, &thread)?;
    let now = thread.read(access.address, access.size)?;
    if !access.is_store {
        *watched = Some((access, now));
        return None;
    }
    let is_watched = watched.take() == Some((Exclusive { is_store: false, ..access }, now));
    isa.store_exclusive(&code, ip.0, &mut thread).filter(|()| is_watched)?;
    thread.finish()?;
    Some(thread.registers)
}
