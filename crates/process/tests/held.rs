//! Threads that were let run and do not come back: they get back what they had, and go on as if nothing had been.

mod common;

use common::Program;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trapless_process::{Process, RemoteError, StopError, StopOptions};

/// A control group of version 2, taken away when dropped.
struct Group(PathBuf);

impl Group {
    /// `None`, said aloud, where none can be made.
    fn new(name: &str) -> Option<Group> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = fields.find(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| fields[1]);
        let path = Path::new(root.unwrap_or("/nowhere")).join(format!("{name}-{}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Some(Group(path)),
            Err(error) => {
                trapless_testing::inapplicable!("no control group can be made here: {error}");
                None
            }
        }
    }

    fn take(&self, process: &Process) {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    fn set_frozen(&self, frozen: bool) {
        std::fs::write(self.0.join("cgroup.freeze"), if frozen { "1" } else { "0" }).unwrap();
        let wanted = format!("frozen {}", u8::from(frozen));
        let events = || std::fs::read_to_string(self.0.join("cgroup.events")).unwrap();
        while !events().contains(&wanted) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.freeze"), "0");
        // It is empty as soon as the last of its processes has gone.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn impatient() -> StopOptions {
    let mut options = StopOptions::default();
    options.patience = Duration::from_secs(2);
    options
}

fn is_unstoppable(result: Result<u64, RemoteError>) -> bool {
    matches!(result, Err(RemoteError::Stop(StopError::Unstoppable { .. })))
}

#[test]
fn a_call_that_does_not_return_is_given_up_and_leaves_the_thread_as_it_was() {
    let program = Program::compile("threads", &[]);
    for mode in ["sleep", "spin"] {
        let mut target = program.start(&[mode, "3"]);
        let process = target.open();
        let mut stopped = process.stop_with(&impatient()).unwrap();
        let before: Vec<_> = stopped.threads().iter().map(|t| (t.tid(), *t.registers())).collect();
        let maps = process.maps().unwrap();
        // All signals are blocked meanwhile, so nothing ends it but us.
        let result = stopped.remote(|remote| remote.syscall(libc::SYS_ppoll as u64, [0; 6]));
        assert!(is_unstoppable(result), "{mode}");
        let after: Vec<_> = stopped.threads().iter().map(|t| (t.tid(), *t.registers())).collect();
        assert_eq!(before, after, "{mode}");
        assert_eq!(maps, process.maps().unwrap(), "{mode}");
        // It is used again like any other.
        let pid = stopped.remote(|remote| remote.syscall(remote.abi().getpid, [0; 6]));
        assert_eq!(pid.map_err(|error: RemoteError| error.to_string()), Ok(process.pid().0 as u64), "{mode}");
        stopped.resume_and_detach();
        target.poke();
        assert_eq!(target.wait().code(), Some(5), "{mode}");
    }
}

#[test]
fn a_frozen_process_makes_no_call_and_goes_on_when_it_is_thawed() {
    let program = Program::compile("threads", &[]);
    for mode in ["sleep", "spin"] {
        let Some(group) = Group::new("trapless-held") else { return };
        let mut target = program.start(&[mode, "3"]);
        let process = target.open();
        group.take(&process);
        group.set_frozen(true);
        for _ in 0..2 {
            let mut stopped = process.stop_with(&impatient()).unwrap();
            let result: Result<u64, RemoteError> = stopped.remote(|remote| {
                let error = remote.syscall(remote.abi().getpid, [0; 6]).unwrap_err();
                assert!(matches!(error, RemoteError::Stop(StopError::Unstoppable { .. })), "{mode}: {error}");
                // Nothing more is waited for.
                assert!(remote.syscall(remote.abi().getpid, [0; 6]).is_err());
                Err(error)
            });
            assert!(is_unstoppable(result), "{mode}");
            stopped.resume_and_detach();
        }
        group.set_frozen(false);
        let mut stopped = process.stop().unwrap();
        let pid = stopped.remote(|remote| remote.syscall(remote.abi().getpid, [0; 6]));
        assert_eq!(pid.map_err(|error: RemoteError| error.to_string()), Ok(process.pid().0 as u64), "{mode}");
        stopped.resume_and_detach();
        target.poke();
        assert_eq!(target.wait().code(), Some(5), "{mode}");
    }
}
