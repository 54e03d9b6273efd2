//! The program that most tests patch: threads that call `subject` without a pause, check what it returns, and count their calls.

use super::tool::Tool;
use super::{Program, Target, eventually, park::park};
use trapless_testing::asked;

/// Cycles of a storm: a few in the suite, more by hand (`TRAPLESS_STORM=10000`).
pub fn storm(usual: usize) -> usize {
    asked("TRAPLESS_STORM", usual)
}

/// `SUBJECT` is the function's body, in assembly; it must return 2 x + 1.
const SOURCE: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "assembly.h"
long subject(long x);
long second(long x);
extern int handled __attribute__((weak));
SUBJECT
static struct slot { volatile unsigned long calls, wrong; char pad[48]; } slots[64];
static volatile int stop, handling, go_on;
static void handler(int signal) { handling = 1; while (!go_on) usleep(500); }
static void *worker(void *arg) {
    struct slot *slot = arg;
    static __thread char alternate[65536];
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    sigaltstack(&stack, NULL);
    for (long x = 0; !stop; x++) {
        if (subject(x) != 2 * x + 1 || second(x) != x + 5) slot->wrong++;
        slot->calls++;
    }
    return NULL;
}
/* Right behind, without padding: what stands there is part of what is tested. */
asm(".text; .globl second; .type second, %function; second: " PLUS_FIVE "; .size second, . - second");
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    pthread_t ids[64];
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, worker, &slots[i]);
    printf("ready %lx %lx %lx %lx %lx %lx\n", (long)subject, (long)slots, (long)&stop, (long)&handling, (long)&go_on, (long)&handled);
    fflush(stdout);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    unsigned long calls = 0, wrong = 0;
    for (int i = 0; i < threads; i++) { calls += slots[i].calls; wrong += slots[i].wrong; }
    printf("%lu %lu\n", calls, wrong);
    fflush(stdout);
    getchar();
    return 0;
}
"#;

/// The body of a function that returns 2 x + 1, among other assembly. Six bytes make room for a jump on x86-64, from instructions at 0, 1 and
/// 3; elsewhere its first instruction does.
pub const PLAIN: &str = "\" TWICE_AND_ONE \"";

/// Threads that call `subject`.
pub struct Spinners {
    pub target: Target,
    threads: usize,
}

/// Compiles the program around a body of `subject`, in assembly, with more of it in front and behind.
pub fn build(body: &str, before: &str, after: &str) -> Program {
    let subject = format!(
        "asm(\".text; {before}; .globl subject; .type subject, %function; subject: {body}; .size subject, . - subject; {after}\");"
    );
    Program::build("spinners", &SOURCE.replace("SUBJECT", &subject), &[])
}

impl Spinners {
    pub fn start(program: &Program, threads: usize) -> Spinners {
        Spinners { target: program.start(&[&threads.to_string()]), threads }
    }

    pub fn pid(&self) -> String {
        self.target.pid().to_string()
    }

    /// Address of `subject`.
    pub fn subject(&self) -> u64 {
        self.target.address(0)
    }

    /// The threads that call.
    pub fn workers(&self) -> Vec<i32> {
        self.target.threads()[1..].to_vec()
    }

    /// Calls so far, of all threads.
    pub fn calls(&self) -> u64 {
        let slots = self.target.read(self.target.address(1), self.threads * 64);
        slots.chunks_exact(64).map(|slot| u64::from_le_bytes(slot[..8].try_into().unwrap())).sum()
    }

    /// Waits until each thread has called some thousand times more.
    pub fn run_on(&self) {
        let slot = |index: usize| self.target.read_word(self.target.address(1) + 64 * index as u64);
        let before: Vec<u64> = (0..self.threads).map(slot).collect();
        eventually("every thread calls", || {
            (0..self.threads).all(|index| slot(index) > before[index] + 2000)
        });
    }

    /// Stops all, with every thread at the entry of `subject`. The number of calls so far.
    pub fn stand_at_entry(&self) -> u64 {
        self.target.freeze();
        for worker in self.workers() {
            park(&self.target, worker, self.subject(), 0);
        }
        self.calls()
    }

    /// Counts the calls of `subject` while all stand, with the threads at these places of it in turn, and then until they end: those that
    /// were counted, and those that were made.
    #[track_caller]
    pub fn count_from(&mut self, offsets: &[u64]) -> [u64; 2] {
        self.target.freeze();
        for (worker, offset) in self.workers().into_iter().zip(offsets.iter().cycle()) {
            park(&self.target, worker, self.subject() + offset, 0);
        }
        let called = self.calls();
        let tool = Tool::armed(&["count", "-p", &self.pid(), "spinners:subject"]);
        // On its way back into the stop a thread runs for a moment, but not in the program.
        self.target.wait_for_state("T");
        self.target.thaw();
        self.run_on();
        let calls = self.finish();
        [tool.interrupt().hits("subject", "entry"), calls - called]
    }

    /// Stops all, with each thread some instructions behind the entry of `subject`: in round after round all numbers of them.
    pub fn stand_in_line(&self, round: usize) {
        self.target.freeze();
        let workers = self.workers();
        for (index, &worker) in workers.iter().enumerate() {
            park(&self.target, worker, self.subject(), round * workers.len() + index);
        }
    }

    /// A call that stays until [`Spinners::end_handling`]: a handler of `signal` that waits, of a thread that stands at `address`.
    pub fn interrupt_at(&self, address: u64, signal: i32) {
        let worker = self.workers()[0];
        self.target.freeze();
        park(&self.target, worker, address, 0);
        // SAFETY: the call takes integers.
        unsafe { libc::syscall(libc::SYS_tgkill, self.target.pid(), worker, signal) };
        self.target.thaw();
        eventually("the handler runs", || self.is_handling());
    }

    /// Whether a thread is in the signal handler.
    pub fn is_handling(&self) -> bool {
        self.target.read(self.target.address(3), 4) != [0; 4]
    }

    /// Lets the signal handler return.
    pub fn end_handling(&self) {
        self.target.write(self.target.address(4), &1u32.to_le_bytes());
    }

    /// Lets the threads end, and gives the number of their calls. The process stays.
    #[track_caller]
    pub fn finish(&mut self) -> u64 {
        self.target.write(self.target.address(2), &1u32.to_le_bytes());
        let line = self.target.line();
        let (calls, wrong) = line.split_once(' ').unwrap_or_else(|| panic!("the target died: {line:?}"));
        assert_eq!(wrong, "0", "wrong results");
        calls.parse().unwrap()
    }
}
