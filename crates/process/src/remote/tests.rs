//! System calls in a thread that stands where they are hard to make.

use super::*;
use crate::stop::Thread;
use crate::wait::OnExit;
use crate::{Pid, StopOptions};
use std::io::Read;
use std::time::Duration;

/// Set by the target's handler: the value queued with the signal.
static VALUE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn take_value(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a filled siginfo_t to a handler installed with SA_SIGINFO.
    let value = unsafe { (*info).si_value().sival_ptr as usize };
    VALUE.store(value, std::sync::atomic::Ordering::SeqCst);
}

/// A thread caught between a signal's dequeueing and its delivery: system calls are made in it, and the signal still arrives with
/// the value its sender gave it.
#[test]
fn a_signal_about_to_be_delivered_arrives_as_it_was_sent() {
    let (mut ready, ready_in_target) = std::io::pipe().unwrap();
    let target = crate::keeper::Keeper::start(move |watch| {
        // SAFETY: zeros are a valid sigaction, and the handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = take_value as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGRTMIN(), &action, std::ptr::null_mut());
        }
        drop(ready_in_target);
        // Also the end of the test ends it, however that comes.
        while VALUE.load(std::sync::atomic::Ordering::SeqCst) == 0
            && !watch.should_end_within(Duration::from_millis(1))
        {}
        VALUE.load(std::sync::atomic::Ordering::SeqCst).to_le_bytes().to_vec()
    })
    .unwrap();
    let _ = ready.read(&mut [0]);
    let process = Process::open(Pid(target.pid().0)).unwrap();
    let tid = target.pid().leader();
    ptrace::seize(tid, BASE_OPTIONS as usize).unwrap();
    let value = libc::sigval { sival_ptr: 0xfeed as *mut libc::c_void };
    // SAFETY: sigqueue takes three values; the target is our child, not reaped yet.
    assert_eq!(unsafe { libc::sigqueue(tid.0, libc::SIGRTMIN(), value) }, 0);
    let stop = wait::until(tid, OnExit::Leave, Instant::now() + Duration::from_secs(5));
    assert_eq!(stop, Some(Event::Stop(Stop::Signal(libc::SIGRTMIN()))));
    let regs = Registers::read(tid).unwrap();
    let thread = Thread::new(tid, regs, Parked::Signal(libc::SIGRTMIN()));
    let mut stopped =
        Stopped::new(&process, vec![thread], StopOptions::default(), OnExit::Leave, Instant::now());
    for _ in 0..3 {
        let pid = stopped.remote(|remote| remote.syscall(remote.abi().getpid, [0; 6]));
        assert_eq!(pid.map_err(|error: RemoteError| error.to_string()), Ok(tid.0 as u64));
        assert_eq!(Registers::read(tid), Ok(regs));
    }
    stopped.resume_and_detach();
    assert!(target.is_done_within(Duration::from_secs(5)), "the signal was lost");
    assert_eq!(target.wait().unwrap(), 0xfeed_usize.to_le_bytes());
}

/// svc #0 at 2, in two other words, and at 8.
#[test]
fn an_instruction_that_is_a_word_is_found_where_a_word_is() {
    let code = [0x1f, 0x20, 0x01, 0x00, 0x00, 0xd4, 0x03, 0xd5, 0x01, 0x00, 0x00, 0xd4];
    let call = [0x01, 0x00, 0x00, 0xd4];
    assert_eq!(first_in(&code, &call, 4), Some(8));
    assert_eq!(first_in(&code, &call, 1), Some(2));
    assert_eq!(first_in(&code[..8], &call, 4), None);
}
