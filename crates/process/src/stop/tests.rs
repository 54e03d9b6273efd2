//! The stop that overtakes a signal, and lists of threads that are old when they are read.

use super::*;
use crate::arch::Waiting;
use crate::keeper::Keeper;
use crate::wait::{Event, Stop};
use crate::{RemoteAddr, ptrace::SignalInfo};
use std::io::Read;

/// What the kernel queues for a breakpoint instruction. A thread may send itself such a signal.
fn breakpoint_signal() -> SignalInfo {
    // SAFETY: zeros are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let code = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
        libc::SI_KERNEL
    } else {
        libc::TRAP_BRKPT
    };
    (info.si_signo, info.si_code) = (libc::SIGTRAP, code);
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
    let soon = || Instant::now() + Duration::from_secs(300);
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

fn seizure(process: &Process) -> Seizure<'_, 'static> {
    Seizure {
        process,
        options: BASE_OPTIONS,
        on_exit: OnExit::Leave,
        programs: HashSet::new(),
        known: HashMap::new(),
        watchdog: None,
        park: &|_, signal| Parked::Signal(signal),
        newborn: None,
        running: Vec::new(),
        stopped: Vec::new(),
    }
}

/// Where a thread goes away while the kernel lists them, it may pass over one that lives. One that has ended and stays listed hides nobody,
/// and would be found for ever.
#[test]
fn a_list_that_names_a_thread_that_is_gone_is_read_again() {
    let work = |watch: &crate::keeper::ParentWatch| {
        while !watch.should_end_within(Duration::from_secs(1)) {}
        Vec::new()
    };
    let mut target = Keeper::start(work).unwrap();
    let (pid, leader) = (target.pid(), target.pid().leader());
    let process = Process::open(pid).unwrap();
    let beyond_all = Tid(i32::MAX);
    assert!(seizure(&process).attach_listed(&[beyond_all]).unwrap());
    assert!(!seizure(&process).attach_listed(&[]).unwrap());

    target.ask_to_end();
    while Process::start_of(pid).is_some() {
        std::thread::yield_now();
    }
    assert!(!seizure(&process).attach_listed(&[leader]).unwrap(), "it is not reaped yet");
    // Another thread may get the id of one that has ended while others were waited for.
    let mut seizure = seizure(&process);
    seizure.known.insert(leader, Waiting::NOTHING);
    seizure.running.push(leader);
    let patience = Duration::from_secs(60);
    seizure.wait_for_all(Instant::now() + patience, patience).unwrap();
    assert!(seizure.known.is_empty() && seizure.stopped.is_empty());
    drop(seizure);
    target.wait().unwrap();
}
