//! One semaphore that we and the kernel count in at the same time: what `ref_ctr_offset` of its uprobes does is what
//! a semaphore is made for.

use crate::support::tool::{Tool, run};
use crate::support::{Program, Target, eventually};
use serde_json::Value;
use std::io::{Read, Write};
use std::time::Duration;
use trapless_bench::kernel::{Counted, Uprobe};
use trapless_process::keeper::{self, Keeper};
use trapless_process::{Pid, Process};

const SOURCE: &str = include_str!("programs/usdt.c");

/// Ours. The kernel's is the other one with this semaphore: its uprobes overwrite the red zone at a nop of five
/// bytes, and its and ours do not mix at one site.
const OURS: &str = "usdt:app:app:guarded";
const KERNELS: &str = "usdt:app:app:guarded_too";

/// The program, and where the kernel's probe is in it. Once a tracer serves ours nobody else can look.
struct Probed {
    target: Target,
    process: Process,
    site: u64,
    semaphore: u64,
}

impl Probed {
    fn start(program: &Program) -> Self {
        let target = program.start(&[]);
        let rows = run(&["list", "-p", &target.pid().to_string(), KERNELS, "-f", "json"]).json();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        let [site, semaphore] =
            [&row["address"], &row["usdt"]["semaphore"]].map(|place: &Value| place.as_u64().unwrap());
        let process = Process::open(Pid(target.pid())).unwrap();
        Self { target, process, site, semaphore }
    }

    /// Whether the kernel has uprobes for us.
    fn has_uprobes(&self) -> bool {
        let try_one = |_: &keeper::ParentWatch| match Uprobe::open(&self.process, self.site, Counted::Hits) {
            Ok(_) => Vec::new(),
            Err(error) => error.to_string().into_bytes(),
        };
        let error = keeper::run(try_one).unwrap();
        if !error.is_empty() {
            trapless_testing::inapplicable!("uprobes of the kernel: {}", String::from_utf8_lossy(&error));
        }
        error.is_empty()
    }
}

/// Lets the program call both so often. None of its results is wrong; what the semaphore was at the end.
#[track_caller]
fn call(target: &mut Target, times: u64) -> u16 {
    target.tell(&times.to_string());
    let line = target.line();
    let semaphore = line.strip_prefix("wrong 0 semaphore ");
    semaphore.unwrap_or_else(|| panic!("wrong results or dead: {line:?}")).parse().unwrap()
}

/// One of the two that count.
enum Counting {
    Ours(Tool),
    /// By a process of its own. A copy of its descriptor would go to every child of another test until that runs its program; and if it is killed
    /// just then, as those of tests are that kill tools at any moment, the kernel leaks the probe ("failed to unregister").
    Kernels(Keeper),
}

impl Counting {
    fn start(is_ours: bool, mechanism: &str, probed: &Probed) -> Self {
        if is_ours {
            let pid = probed.target.pid().to_string();
            return Self::Ours(Tool::armed(&["count", "--mechanism", mechanism, "-p", &pid, OURS]));
        }
        let (process, site, guard) = (&probed.process, probed.site, probed.semaphore);
        let (mut is_there, mut tells) = std::io::pipe().unwrap();
        let kernels = Keeper::start(|parent| {
            let uprobe = Uprobe::open(process, site, Counted::Guarded(guard)).unwrap();
            tells.write_all(b"o").unwrap();
            while !parent.should_end_within(Duration::from_secs(1)) {}
            uprobe.hits().unwrap().to_le_bytes().to_vec()
        });
        let kernels = Self::Kernels(kernels.unwrap());
        is_there.read_exact(&mut [0]).unwrap();
        kernels
    }

    /// How often it was hit. It leaves the semaphore at `left`.
    fn end(self, probed: &Probed, left: u16) -> u64 {
        match self {
            Self::Ours(tool) => tool.interrupt().hits("app:guarded", "entry"),
            Self::Kernels(mut kernels) => {
                kernels.ask_to_end();
                let hits = kernels.wait().unwrap();
                eventually("the kernel's probe is gone", || {
                    probed.target.read(probed.semaphore, 2) == left.to_le_bytes()
                });
                u64::from_le_bytes(hits.try_into().unwrap())
            }
        }
    }
}

/// Both count for a while. The first one is there for five calls more, and who stays longer for another
/// eleven.
fn both_count(probed: &mut Probed, mechanism: &str, ours_begins: bool, first_ends_first: bool, others: u16) {
    println!(
        "{mechanism}, ours begins: {ours_begins}, the first ends first: {first_ends_first}, {others} others"
    );
    probed.target.write(probed.semaphore, &others.to_le_bytes());
    let first = Counting::start(ours_begins, mechanism, probed);
    assert_eq!(call(&mut probed.target, 5), others + 1);
    let second = Counting::start(!ours_begins, mechanism, probed);
    assert_eq!(call(&mut probed.target, 70), others + 2);
    let hits = if first_ends_first {
        let first = first.end(probed, others + 1);
        assert_eq!(call(&mut probed.target, 11), others + 1);
        [first, second.end(probed, others) - 11]
    } else {
        let second = second.end(probed, others + 1);
        assert_eq!(call(&mut probed.target, 11), others + 1);
        [first.end(probed, others) - 11, second]
    };
    assert_eq!(hits, [75, 70], "{mechanism} {ours_begins} {first_ends_first} {others}");
    assert_eq!(call(&mut probed.target, 10), others);
}

#[test]
fn the_kernel_and_we_count_in_one_semaphore_and_leave_it_as_it_was() {
    for program in Program::in_both_widths("app", SOURCE, &[]) {
        for mechanism in ["jump", "boost"] {
            let mut probed = Probed::start(&program);
            if !probed.has_uprobes() {
                return;
            }
            let before = probed.target.text();
            for (ours_begins, first_ends_first) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                // Somebody else may count in it, too.
                for others in [0, 3] {
                    both_count(&mut probed, mechanism, ours_begins, first_ends_first, others);
                }
            }
            before.assert_restored(probed.target.pid());
        }
    }
}
