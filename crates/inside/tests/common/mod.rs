//! What tests of probes in their own process have in common.

#[allow(dead_code, reason = "not every test calls that")]
pub mod sums;

use std::panic::{AssertUnwindSafe, catch_unwind};
use trapless_inside::Inside;

/// Runs `test` in a forked child, which fails as it does.
#[track_caller]
pub fn apart(test: impl FnOnce()) {
    // SAFETY: the child runs the test and ends; nobody else probes in the parent.
    match unsafe { libc::fork() } {
        0 => {
            // What the harness catches of a child nobody would see.
            std::panic::set_hook(Box::new(|panic| {
                let text = format!("{panic}\n");
                // SAFETY: the text lives across the call.
                unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            }));
            let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
            // SAFETY: it takes an integer.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) }
        }
        child => {
            assert!(child > 0, "{}", std::io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: the call writes one integer.
            while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {}
            assert_eq!(status, 0, "the child ended so");
        }
    }
}

/// Also where tests run under a filter: of containers it is known that it lets pass what is called.
#[track_caller]
pub fn ready() -> Inside {
    Inside::allow_seccomp().unwrap()
}

/// Memory, texts, the environment and files; what it gives is the same for each number of two digits.
#[allow(dead_code, reason = "not every test calls that")]
pub fn work(n: u64) -> (u64, u64) {
    let texts: Vec<String> = (0..100).map(|k| format!("{n} {k} {:?}", std::env::var("HOME"))).collect();
    let read = std::fs::read("/proc/self/stat").unwrap();
    (texts.join("").len() as u64, u64::from(!read.is_empty()))
}

/// Does all that on several threads, and runs a program; what [`work`] gives.
#[track_caller]
#[allow(dead_code, reason = "not every test calls that")]
pub fn use_the_c_library() -> (u64, u64) {
    let expected = work(11);
    let threads: Vec<_> = (0..10).map(|n| std::thread::spawn(move || work(n + 10))).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
    let output = std::process::Command::new("echo").arg("it works").output().unwrap();
    assert_eq!(output.stdout, b"it works\n");
    expected
}
