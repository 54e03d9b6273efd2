//! Several processes under one tracer, with all that they create.
//!
//! The kernel attaches to whatever a traced thread creates (`PTRACE_O_TRACEFORK` and its like) before that runs, and stops whoever
//! starts another program behind the exec. Both is told as a [`FamilyEvent`] that leaves the process standing. All else is settled here:
//! signals are passed on, new threads run, job control is kept to.
//!
//! Each wait takes what has happened to *all* of them, in order, and only then is anybody let go on. So one that stops again and again
//! does not keep the others from being served: the kernel finds those first that it has known longest.
//!
//! # Stopping a whole process
//!
//! Others are served meanwhile, for a process may depend on them: who has called vfork waits in the kernel, where nothing stops it, until
//! its child runs another program, and the child may be standing for us. So [`Family::ask_to_stop`] only asks, and
//! [`FamilyEvent::Stopped`] is told when all threads stand, however long that takes.
//!
//! # What the processes see of it
//!
//! A system call that the kernel does not restart by itself is restarted as in any other stop (`Registers::restart_if_interrupted`):
//! also where a signal is told to us that the program ignores, which without a tracer would not have waked it. Should we die, the
//! kernel lets all of them go on.

mod drive;
mod event;
mod pending;

use crate::arch::Waiting;
use crate::launch::loader::{Loaded, Loading};
use crate::stop::Parked;
use crate::wait::Happened;
use crate::{Pid, Process, Registers, RemoteAddr, StopOptions, Tid};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

pub use event::FamilyEvent;
pub use pending::ChildSignal;

/// What every process of a family is traced with, besides what all stops need.
const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;

/// The processes, attached to the calling thread. Dropping this leaves them to the kernel, which lets them go when the thread ends.
/// What loading a program has written into it is taken out.
#[derive(Debug)]
pub struct Family {
    members: HashMap<Pid, Member>,
    /// Whose thread each is.
    threads: HashMap<Tid, Pid>,
    /// What has happened and was not looked at yet, in order.
    pending: VecDeque<(Tid, Happened)>,
    /// What is to be told first.
    told: VecDeque<FamilyEvent>,
    /// Threads and processes that have been created and have not stopped yet, and by which process.
    expected: HashMap<Tid, Pid>,
    /// Those that have stopped, or were killed, before their creators told of them.
    early: HashSet<Tid>,
    /// Ends and other programs of those whose children are expected: who is told of a child is to know its parent yet.
    deferred: Vec<FamilyEvent>,
    signal: ChildSignal,
    /// A descriptor that is given up for a look into `/proc`: who a thread is has to be known, however many files are open.
    reserve: RefCell<Option<File>>,
    options: StopOptions,
    not_send: PhantomData<*mut ()>,
}

/// One process.
#[derive(Debug, Default)]
struct Member {
    threads: HashMap<Tid, Run>,
    program: Program,
    /// Whether all of it is to stand.
    stops: bool,
    /// What its threads were waiting in when they were asked to.
    waiting: HashMap<Tid, Waiting>,
}

/// How far its program has come.
#[derive(Debug, Default)]
enum Program {
    /// It runs.
    #[default]
    Runs,
    /// It is being loaded.
    Loads(Loading, Rc<Process>),
    /// It stands where its libraries are loaded, and has yet to get back what loading took.
    Loaded(Loaded),
}

/// What we last did to a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    Running,
    Standing(Parked),
}

/// Lets the calling process have as many descriptors as it may: each process that is followed takes some.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the first call writes one rlimit, the second reads one.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

fn reserved() -> Option<File> {
    File::open("/dev/null").ok()
}

impl Family {
    /// A family without members. `options` are those of all stops.
    pub fn new(options: StopOptions, signal: ChildSignal) -> Family {
        let mut options = options;
        options.ptrace_options |= OPTIONS;
        Family {
            members: HashMap::new(),
            threads: HashMap::new(),
            pending: VecDeque::new(),
            told: VecDeque::new(),
            expected: HashMap::new(),
            early: HashSet::new(),
            deferred: Vec::new(),
            signal,
            reserve: RefCell::new(reserved()),
            options,
            not_send: PhantomData,
        }
    }

    /// Looks into `/proc` with a descriptor that is always there.
    fn look<T>(&self, at: impl FnOnce() -> T) -> T {
        self.reserve.borrow_mut().take();
        let seen = at();
        *self.reserve.borrow_mut() = reserved();
        seen
    }

    /// How its processes are stopped: what a process that is to join it must be stopped with.
    pub fn options(&self) -> &StopOptions {
        &self.options
    }

    /// What becomes readable when something has happened. [`Family::next_event`] has to be asked once before.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal.descriptor()
    }

    /// Whether nobody is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.told.is_empty() && self.deferred.is_empty()
    }

    /// Its processes, in no order.
    pub fn pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.members.keys().copied()
    }

    /// The thread pointer of the first thread of a process that stands.
    pub fn thread_pointer(&self, pid: Pid) -> Option<RemoteAddr> {
        Registers::read(pid.leader()).ok().map(|registers| registers.thread_pointer())
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for member in self.members.values() {
            if let Program::Loads(loading, process) = &member.program {
                let _ = loading.abandon(process);
            }
        }
    }
}
