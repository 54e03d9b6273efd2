//! Probes that are taken out in the middle of an unwinding: what unwinders ask stays probed until none of them can be about to ask
//! (hard cases W1, W3).

use crate::support::park::{entry_for_all, park};
use crate::support::text::eventually_nothing_is_left;
use crate::support::tool::{Tool, detach, run, trapless};
use crate::support::{Target, counting_tells_unwinders, eventually, part};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds [`THROWS`], or `None` where there is no compiler.
fn build(directory: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let (file, path) = (directory.join(format!("{name}.cc")), directory.join(name));
    std::fs::write(&file, THROWS).unwrap();
    let Ok(built) = Command::new("g++").arg("-o").arg(&path).arg(&file).args(flags).output() else {
        trapless_testing::skip!("no g++");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(path)
}

/// Throws without a pause, past calls that are followed.
const THROWS: &str = r#"
    #include <cstdio>
    #include <cstdlib>
    #include <cstring>
    #include <stdexcept>
    #include <unwind.h>
    #define APART extern "C" __attribute__((noinline, noclone))
    static volatile long caught, wrong;
    char *memory;
    APART long thrower(long n) { if (n % 2) throw n; return n; }
    APART long middle(long n) { return thrower(n) + 1; }
    APART long catcher(long n) { try { return middle(n) - 1; } catch (long thrown) { return thrown; } }
    /* What was left behind on the stack is overwritten. */
    APART void overwrite() { volatile long junk[2048]; for (long i = 0; i < 2048; i++) junk[i] = 1; }
    extern "C" const void *_Unwind_Find_FDE(void *, void *);
    int main(int argc, char **argv) {
        size_t size = argc > 1 ? (size_t)atoi(argv[1]) << 20 : 0;
        if (size) memset(memory = (char *)malloc(size), 1, size);
        printf("ready %lx %lx %lx %lx\n", (long)_Unwind_RaiseException, (long)&caught, (long)&wrong, (long)_Unwind_Find_FDE);
        fflush(stdout);
        for (long n = 0;; n++) { if (catcher(n) != n) wrong++; if (n % 16 == 0) overwrite(); caught++; }
    }
"#;

#[test]
fn w3_probes_are_taken_out_in_the_middle_of_an_unwinding() {
    let directory = tempfile::tempdir().unwrap();
    for (name, flags) in [("throws", &["-O1", "-no-pie"][..]), ("throws_static", &["-O1", "-static"])] {
        let Some(path) = build(directory.path(), name, flags) else { return };
        let mut in_the_middle = 0;
        let mut target = Target::start(&mut Command::new(&path));
        let (pid, before) = (target.pid(), target.text());
        let [raise, caught, wrong] = [0, 1, 2].map(|index| target.address(index));
        let raise = entry_for_all(&target, raise);
        // How far it is to where an unwinder knows one is the unwinder's affair.
        for round in 0..60 {
            if in_the_middle == part(6).max(1) {
                break;
            }
            let run_on = || {
                let now = target.read_word(caught);
                eventually("it throws", || target.read_word(caught) > now + 100);
                assert_eq!(target.read_word(wrong), 0, "round {round}: wrong results");
            };
            let text = pid.to_string();
            let probes = ["thrower", "middle", "catcher"].map(|function| format!("{name}:{function}"));
            let probes = probes.each_ref().map(String::as_str);
            let tool = Tool::armed(&[&["count", "--return", "-p", &text][..], &probes].concat());
            run_on();
            target.freeze();
            park(&target, pid, raise, 507 * round);
            tool.interrupt();
            let status = run(&["status", "-p", &text, "-f", "json"]);
            in_the_middle += usize::from(status.json().iter().any(|row| row["type"] == "kept"));
            target.thaw();
            run_on();
            eventually_nothing_is_left(pid);
            before.assert_restored(pid);
        }
        assert!(target.is_alive());
        assert!(in_the_middle > 0, "{name}: no unwinder was met that knew a return point");
    }
}

/// The tool with one processor, with which it looks through less memory than the target has.
fn on_one_processor(arguments: &[&str]) -> Command {
    let mut command = trapless(arguments);
    // SAFETY: the calls change an affinity of the new process alone, and are plain system calls, safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut one);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
            Ok(())
        })
    };
    command
}

#[test]
fn w3_in_a_large_process_whoever_attaches_next_takes_out_what_unwinders_asked() {
    const MIB: &str = "128";
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "throws_static", &["-O1", "-static"]) else { return };
    let target = Target::start(Command::new(&path).arg(MIB));
    let pid = target.pid();
    let [raise, caught, wrong, asked] = [0, 1, 2, 3].map(|index| target.address(index));
    let raise = entry_for_all(&target, raise);
    let (text, before) = (pid.to_string(), target.read(asked, 16));
    let run_on = || {
        let now = target.read_word(caught);
        eventually("it throws", || target.read_word(caught) > now + 100);
        assert_eq!(target.read_word(wrong), 0, "wrong results");
    };
    let mut in_the_middle = 0;
    // How far it is to where an unwinder knows one is the unwinder's affair.
    for round in 0..60 {
        if in_the_middle == part(3).max(1) {
            break;
        }
        let probes = ["throws_static:thrower", "throws_static:middle", "throws_static:catcher"];
        let count = ["count", "--return", "-f", "json", "-p", &text];
        let tool = Tool::armed_with(&mut on_one_processor(&[&count[..], &probes].concat()));
        assert_ne!(target.read(asked, 16), before, "what unwinders ask is probed");
        run_on();
        target.freeze();
        park(&target, pid, raise, 500 * round);
        tool.interrupt();
        in_the_middle += usize::from(target.read(asked, 16) != before);
        target.thaw();
        run_on();
        // No unwinder is ever in it.
        let entries = ["count", "-f", "json", "-p", &text, "throws_static:overwrite"];
        let tool = Tool::armed_with(&mut on_one_processor(&entries));
        if !counting_tells_unwinders() {
            assert_eq!(target.read(asked, 16), before, "round {round}: nobody may ask any more");
        }
        tool.interrupt();
        run_on();
        // This one's removal may have met an unwinder as the first did, where it asked, too.
        eventually("nobody asks any more", || {
            detach(pid);
            target.read(asked, 16) == before
        });
    }
    assert!(in_the_middle > 0, "no unwinder was met that knew a return point");
}
