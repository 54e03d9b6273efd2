//! Removal of probes that trap, from each place where a thread may stand in a slot: at the copy it goes back to the original
//! instruction, behind it it goes on to the next.
//!
//! A keeper lets nobody else place its threads. So the target is frozen, its keeper killed, and the thread put where it could have
//! stood; `detach` finds the journal and removes from there. (A keeper's own removal is the same code, behind its stop.)
#![cfg(target_arch = "x86_64")]

use crate::support;
use crate::support::park::{Stepper, park};
use crate::support::spinners::{self, Spinners};
use crate::support::tool::{Tool, detach, wait_untraced};

/// Where a thread may stand.
struct Place {
    mechanism: &'static str,
    /// First instruction of `subject`, and what follows it.
    body: &'static str,
    /// Instructions of the slot that have run.
    steps: usize,
    /// Where it stands after the removal, counted from `subject`; `None` in another function.
    found: Option<u64>,
}

const fn place(mechanism: &'static str, body: &'static str, steps: usize, found: Option<u64>) -> Place {
    Place { mechanism, body, steps, found }
}

const PUSH: &str = "push %rbx; lea 1(%rdi,%rdi), %rax; pop %rbx; ret";
const RIP: &str = "mov one(%rip), %eax; lea (%rax,%rdi,2), %rax; ret; .p2align 3; one: .quad 1; nop";
const JUMP: &str = "jmp 1f; ud2; 1: lea 1(%rdi,%rdi), %rax; ret";
// ecx is the low half of what the caller left there; it differs from zero but once in a while.
const COUNT: &str = "jrcxz 1f; 1: lea 1(%rdi,%rdi), %rax; ret";
const CALL: &str = "call 1f; ret; 1: lea 1(%rdi,%rdi), %rax; ret";

/// The far jump of a boosted slot is no place of its own: a thread stands at it or behind it, as at the near one.
const PLACES: [Place; 14] = [
    place("boost", PUSH, 0, Some(0)),
    place("boost", PUSH, 1, Some(1)),
    place("boost", RIP, 0, Some(0)),
    place("boost", RIP, 1, Some(6)),
    place("boost", JUMP, 0, Some(0)),
    place("boost", JUMP, 1, Some(4)),
    place("emulate", PUSH, 0, Some(0)),
    place("emulate", PUSH, 1, Some(1)),
    place("step", PUSH, 0, Some(0)),
    place("step", PUSH, 1, Some(1)),
    place("step", COUNT, 0, Some(0)),
    // In the middle of a copy of several instructions, which is run to its end.
    place("step", COUNT, 1, Some(2)),
    place("step", CALL, 0, Some(0)),
    place("step", CALL, 1, Some(6)),
];

/// Of an arena, where filler and the place of its tables end.
const HEAD: usize = 24;

/// The executable memory that the tool has mapped nearest to the probe: with one probe, its slot is what comes first behind the filler.
fn slot(target: &support::Target, before: &[String], probe: u64) -> u64 {
    let lines = executable(target.pid()).into_iter().filter(|line| !before.contains(line));
    let starts = lines.map(|line| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
    let start = starts.min_by_key(|start| start.abs_diff(probe)).expect("an arena");
    let filler = target.read(start, 64)[HEAD..].iter().take_while(|&&byte| byte == 0xcc).count();
    start + (HEAD + filler) as u64
}

fn executable(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains(" r-xp ")).map(str::to_owned).collect()
}

fn tracer_of(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn p1_a_removal_finds_threads_at_every_place_of_a_slot() {
    for Place { mechanism, body, steps, found } in PLACES {
        let name = format!("{mechanism}: {body}: {steps}");
        let program = spinners::build(body, "", "");
        let mut spinners = Spinners::start(&program, 2);
        let (pid, before, maps) =
            (spinners.target.pid(), spinners.target.text(), executable(spinners.target.pid()));
        spinners.target.freeze();
        for worker in spinners.workers() {
            park(&spinners.target, worker, spinners.subject(), 0);
        }
        let called = spinners.calls();
        let tool =
            Tool::armed(&["count", "--mechanism", mechanism, "-p", &spinners.pid(), "spinners:subject"]);
        let slot = slot(&spinners.target, &maps, spinners.subject());
        let keeper = tracer_of(pid);
        assert_ne!(keeper, 0);
        // It would take the probes out as soon as its keeper is gone.
        tool.signal(libc::SIGSTOP);
        // SAFETY: kill takes two integers. The tool, which lives, has not waited for its keeper yet.
        unsafe { libc::kill(keeper, libc::SIGKILL) };
        wait_untraced(pid);
        tool.kill();
        for worker in spinners.workers() {
            let stepper = Stepper::seize(&spinners.target, worker);
            assert_eq!(stepper.ip(), spinners.subject(), "{name}: a stopped target stays where it is");
            // What the tracer does at a breakpoint.
            stepper.set_ip(slot);
            (0..steps).for_each(|_| stepper.step());
        }
        detach(pid);
        for worker in spinners.workers() {
            let ip = Stepper::seize(&spinners.target, worker).ip();
            assert_eq!(Some(ip - spinners.subject()), found, "{name}: {ip:#x}");
        }
        assert_eq!(spinners.calls(), called, "{name}: a stopped target stays so");
        before.assert_restored(pid);
        spinners.target.thaw();
        spinners.run_on();
        spinners.finish();
    }
}
