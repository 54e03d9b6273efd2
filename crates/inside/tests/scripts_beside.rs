//! Scripts on programs that close files, hold locks, come to have filters, fork and end as programs do.

#![cfg(all(target_arch = "x86_64", feature = "script"))]

mod common;

use common::{apart, ready};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;
use trapless_inside::{Error, Script, ScriptOptions, inside};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn beside_sum(a: u64, b: u64) -> u64 {
    black_box(black_box(a) + black_box(b))
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn beside_text(text: *const u8) -> u64 {
    black_box(black_box(text) as u64)
}

fn sum(a: u64, b: u64) {
    assert_eq!(black_box(beside_sum as extern "C" fn(u64, u64) -> u64)(a, b), a + b);
}

fn text() {
    black_box(beside_text as extern "C" fn(*const u8) -> u64)(c"a text".as_ptr().cast());
}

const COUNTS: &str = "uprobe:beside_sum { @n = count(); }";
const READS: &str = "uprobe:beside_text { @n = count(); @[str(arg0)] = count(); }";

fn quiet(text: &str) -> Result<Script, Error> {
    ready().script_with(text, ScriptOptions::default().output(io::sink()))
}

/// Ends a process that hangs.
fn no_longer_than(seconds: u32) {
    // SAFETY: the calls take integers.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::alarm(seconds);
    }
}

/// Forks, and tells how the child has ended that does this.
fn child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child does what it is given, and ends.
    unsafe {
        match libc::fork() {
            0 => {
                no_longer_than(60);
                work();
                libc::_exit(0)
            }
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                status
            }
        }
    }
}

#[test]
fn whoever_holds_standard_output_gets_results() {
    apart(|| {
        no_longer_than(120);
        let script = ready().script(COUNTS).unwrap();
        let mut out = io::stdout().lock();
        for n in 1..=3 {
            sum(n, 2);
            let results = script.results().unwrap();
            assert!(results.text.contains(&format!("@n: {n}")), "{}", results.text);
            writeln!(out).unwrap();
        }
        script.stop().unwrap();
    });
}

#[test]
fn a_child_that_is_forked_while_a_script_prints_can_print() {
    apart(|| {
        let (mut ends, told) = ([0; 2], "a line that fills the pipe soon");
        // SAFETY: there is room for two; both are descriptors.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            libc::dup2(ends[1], 1);
        }
        let script = format!("uprobe:beside_sum {{ printf(\"{told} %d\\n\", arg0); }}");
        let script = ready().script(&script).unwrap();
        for n in 0..4000 {
            sum(n, 2);
        }
        std::thread::sleep(Duration::from_millis(200));
        let status = child(|| {
            // SAFETY: a path, and descriptors.
            unsafe { libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY), 1) };
            println!("it can");
        });
        // SAFETY: it is ours, and nobody else's.
        let mut reader = unsafe { std::fs::File::from_raw_fd(ends[0]) };
        std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
        script.stop().unwrap();
        assert_eq!(status, 0);
    });
}

#[test]
fn a_filter_that_came_after_the_first_script_is_seen() {
    apart(|| {
        let Ok(inside) = inside() else {
            return trapless_testing::inapplicable!("a filter is there already");
        };
        drop(inside.script_with(COUNTS, ScriptOptions::default().output(io::sink())).unwrap());
        let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let number = libc::SYS_process_vm_readv as u32;
        let filter = [
            statement(0x20, 0, 0, 0),
            statement(0x15, 1, 0, number),
            statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
            statement(0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the calls read what they are given.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
        let refused = inside.script_with(READS, ScriptOptions::default().output(io::sink()));
        assert!(matches!(refused, Err(Error::Seccomp)), "{:?}", refused.err());
        text();
    });
}

#[test]
fn files_of_a_program_that_closes_all_it_does_not_know_are_its_own() {
    apart(|| {
        let script = quiet(READS).unwrap();
        text();
        script.stop().unwrap();
        // SAFETY: nothing of this process needs them but what is tested.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        let mut files = Vec::new();
        for _ in 0..20 {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[b'x'; 1 << 16]).unwrap();
            files.push(file);
        }
        let script = quiet(READS).unwrap();
        text();
        text();
        let results = script.stop().unwrap();
        assert!(results.text.contains("@n: 2") && results.text.contains("@[a text]: 2"), "{}", results.text);
        for mut file in files {
            let (mut content, number) = (Vec::new(), file.as_raw_fd());
            io::Seek::rewind(&mut file).unwrap();
            file.read_to_end(&mut content).unwrap();
            assert!(content.len() == 1 << 16 && content.iter().all(|byte| *byte == b'x'), "{number}");
        }
    });
}

/// Our thread does not keep a process whose own threads have all ended, which no signal would end then.
#[test]
fn a_process_ends_with_the_last_of_its_own_threads() {
    let ends_by_itself = |prepare: fn()| {
        child(move || {
            prepare();
            std::thread::spawn(|| std::thread::sleep(Duration::from_millis(300)));
            // SAFETY: the first thread ends, and nothing of it is needed.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        })
    };
    assert_eq!(ends_by_itself(|| {}), 0);
    assert_eq!(ends_by_itself(|| drop(quiet(COUNTS).unwrap())), 0);
    assert_eq!(ends_by_itself(|| std::mem::forget(quiet(COUNTS).unwrap())), 0);
}
