//! Where does a thread go that a removal finds at a landing pad? Home, as if it had been served: to the caller of the first of the
//! calls that return through the same stack slot. It is not counted any more.
//!
//! Threads in slots are the business of [`remove`](mod@crate::remove), which knows slots from the journal.

use super::returns::Returns;
use crate::EngineError;
use trapless_process::{RemoteAddr, Stopped};

/// Sends home all threads that stand at landing pads.
pub(super) fn leave_pads(stopped: &mut Stopped<'_>, returns: &mut Returns) -> Result<(), EngineError> {
    let at_pads: Vec<_> = stopped
        .threads()
        .iter()
        .map(|thread| (thread.tid(), *thread.registers()))
        .filter(|(_, registers)| returns.site_of_pad(registers.ip_value()).is_some())
        .collect();
    for (tid, mut registers) in at_pads {
        let slot = registers.sp_value().wrapping_sub(returns.word());
        let mut home = returns.leave(slot);
        while let Some(call) = home
            && returns.site_of_pad(call.address).is_some()
        {
            home = returns.leave(slot);
        }
        if let Some(call) = home {
            registers.set_ip(RemoteAddr(call.address));
            stopped.set_registers(tid, registers)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use trapless_process::{Process, keeper::Keeper};

    const PADS: [u64; 2] = [0x1000, 0x2000];
    const HOME: u64 = 0x1234_5678;

    /// A stopped thread is put at landing pads, in both widths, after a call and after a call that ended in a tail call.
    #[test]
    fn a_thread_at_a_landing_pad_goes_home() {
        let mut target = Keeper::start(|watch| {
            while !watch.should_end_within(Duration::from_millis(1)) {}
            b"lives".to_vec()
        })
        .unwrap();
        let process = Process::open(target.pid()).unwrap();
        let mut stopped = process.stop().unwrap();
        let tid = target.pid().leader();
        let before = *stopped.thread(tid).unwrap().registers();
        // Free: far enough below the stack pointer of a thread in a system call.
        let slot = before.sp_value() - 512;
        for word in [4, 8] {
            for calls in [1, 2] {
                let name = format!("{word} bytes, {calls} calls");
                let mut returns = Returns::new(PADS.into_iter().zip(0..).collect(), word);
                process.store(RemoteAddr(slot), &HOME.to_le_bytes()).unwrap();
                for (site, &pad) in PADS[..calls].iter().enumerate() {
                    returns.enter(&process, slot, pad, site, (tid, 0)).unwrap();
                }
                let mut registers = before;
                registers.set_ip(RemoteAddr(PADS[calls - 1]));
                registers.set_sp(RemoteAddr(slot + word));
                stopped.set_registers(tid, registers).unwrap();
                leave_pads(&mut stopped, &mut returns).unwrap();
                let after = stopped.thread(tid).unwrap().registers();
                assert_eq!((after.ip_value(), after.sp_value()), (HOME, slot + word), "{name}");
                assert_eq!(returns.leave(slot), None, "{name}");
            }
        }
        // One that stands elsewhere stays there.
        stopped.set_registers(tid, before).unwrap();
        leave_pads(&mut stopped, &mut Returns::new(PADS.into_iter().zip(0..).collect(), 8)).unwrap();
        assert_eq!(stopped.thread(tid).unwrap().registers().ip(), before.ip());
        stopped.resume_and_detach();
        target.ask_to_end();
        assert_eq!(target.wait().unwrap(), b"lives");
    }
}
