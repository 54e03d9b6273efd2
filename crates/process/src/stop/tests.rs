//! The stop that overtakes a signal.

use super::*;
use crate::keeper::Keeper;
use crate::wait::{Event, Stop};
use crate::{RemoteAddr, ptrace::SignalInfo};
use std::io::Read;

/// What the kernel queues for a breakpoint instruction. A thread may send itself such a signal.
fn breakpoint_signal() -> SignalInfo {
    // SAFETY: zeros are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGTRAP, libc::SI_KERNEL);
    SignalInfo(info)
}

/// An interrupt overtakes the SIGTRAP of a breakpoint that a thread has met. It is stopped at the breakpoint, not behind it, and goes
/// on without the signal, which would kill it.
#[test]
fn a_breakpoint_signal_that_was_overtaken_is_taken_back() {
    let (mut ready, ready_in_target) = std::io::pipe().unwrap();
    let target = Keeper::start(move |watch| {
        // SAFETY: the set is initialised by sigfillset, and blocking signals has no preconditions.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        }
        let own = own_tid();
        breakpoint_signal().queue_to(own, Tid(own)).unwrap();
        drop(ready_in_target);
        while !watch.should_end_within(Duration::from_millis(1)) {}
        b"lives".to_vec()
    });
    let mut target = target.unwrap();
    let _ = ready.read(&mut [0]);
    let process = Process::open(target.pid()).unwrap();
    let tid = target.pid().leader();
    let soon = || Instant::now() + Duration::from_secs(5);
    ptrace::seize(tid, BASE_OPTIONS as usize).unwrap();
    ptrace::interrupt(tid, 0).unwrap();
    let stop = wait::until(tid, OnExit::Leave, soon());
    assert!(matches!(stop, Some(Event::Stop(Stop::Interrupted(_)))), "{stop:?}");
    let before = Registers::read(tid).unwrap();
    assert!(!ptrace::has_pending_trap(tid), "it is blocked");
    ptrace::set_signal_mask(tid, 0).unwrap();
    assert!(ptrace::has_pending_trap(tid));
    // Stopped again before the signal is looked at.
    ptrace::interrupt(tid, 0).unwrap();
    ptrace::cont(tid, 0).unwrap();

    let ours = crate::trace::Ours::default();
    let park = |tid, signal| ours.park(&process, tid, signal);
    let mut stopped =
        process.stop_traced(&StopOptions::default(), vec![tid], Vec::new(), &park, &mut |_| {}).unwrap();
    assert!(!ptrace::has_pending_trap(tid));
    let thread = stopped.thread(tid).unwrap();
    assert_eq!(thread.pending_signal(), None);
    let at = *thread.registers();
    assert_eq!(at.ip() + crate::BREAKPOINT_ADVANCE, RemoteAddr(before.ip_value()));
    stopped.set_registers(tid, before).unwrap();
    stopped.resume_and_detach();
    target.ask_to_end();
    assert_eq!(target.wait().unwrap(), b"lives");
}
