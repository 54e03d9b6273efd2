//! Stopping a process in whatever state it is, and letting it go as it was.

mod common;

use common::{Program, Target};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::time::{Duration, Instant};
use trapless_process::{
    OpenError, Pid, Process, RemoteAddr, RemoteError, State, Stepped, StopError, StopOptions,
};

fn program() -> Program {
    Program::compile("threads", &[])
}

/// Maps a page, writes to it through the target's own text, and takes it away again.
fn map_and_unmap(process: &Process) -> Result<(), RemoteError> {
    let mut stopped = process.stop()?;
    let before = process.maps()?;
    stopped.remote(|remote| {
        let memory = remote.create_shared(c"trapless-test", 8192)?;
        let fd = memory.descriptor_in_target();
        let shared =
            remote.mmap(RemoteAddr(0), 8192, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)?;
        process.write(shared + 4096, b"from outside")?;
        memory.refuse_other_mapping(&process.maps()?, shared)?;
        let ours = std::fs::File::from(memory.into_file());
        let mut bytes = [0; 12];
        std::os::unix::fs::FileExt::read_exact_at(&ours, &mut bytes, 4096).unwrap();
        assert_eq!(&bytes, b"from outside");
        remote.munmap(shared, 8192)?;
        remote.close(fd)?;
        let near = process.maps()?.iter().find(|m| m.perms.exec && m.path().is_some()).unwrap().clone();
        let gaps = process.maps()?.find_gap(&process.gap_rules()?, near.start..near.end, 1 << 31, 65536);
        let (mut mapped, flags) = (None, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
        for at in gaps {
            mapped = remote.mmap(at, 65536, libc::PROT_READ | libc::PROT_EXEC, flags, -1, 0).ok();
            if mapped.is_some() {
                break;
            }
        }
        let arena = mapped.expect("there is room near the program");
        process.write(arena, &[0xc3; 16])?;
        assert_eq!(process.read_pod::<[u8; 16]>(arena)?, [0xc3; 16]);
        assert_eq!(remote.munmap(RemoteAddr(1), 1).unwrap_err().errno().map(|e| e.0), Some(libc::EINVAL));
        remote.munmap(arena, 65536)
    })?;
    assert_eq!(before, process.maps()?, "nothing of ours is left");
    Ok(())
}

#[test]
fn memory_is_mapped_and_unmapped_in_every_kind_of_program() {
    for (compiler, flags) in [
        ("gcc", &[][..]),
        ("gcc", &["-no-pie"]),
        ("gcc", &["-static"]),
        ("musl-gcc", &["-static"]),
        ("i686-linux-gnu-gcc", &["-static"]),
    ] {
        let Some(program) = Program::compile_with(compiler, "blocked", flags) else { continue };
        let mut target = program.start(&["read"]);
        map_and_unmap(&target.open()).unwrap_or_else(|error| panic!("{compiler} {flags:?}: {error}"));
        target.poke();
        assert_eq!(target.line(), "ok");
    }
}

#[test]
fn l5_five_thousand_threads() {
    let mut target = program().start(&["sleep", "5000"]);
    let process = target.open();
    let stopped = process.stop().unwrap();
    assert_eq!(stopped.threads().len(), 5001);
    eprintln!("5001 threads stopped in {:?}, then let go", stopped.stopped_for());
    stopped.resume_and_detach();
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn p8_threads_created_and_ending_while_we_stop_them() {
    let mut target = program().start(&["churn", "16"]);
    let process = target.open();
    for _ in 0..100 {
        let stopped = process.stop().unwrap();
        let listed = process.threads().unwrap();
        for tid in listed {
            // One that was ending when it was listed is on its way out of the list, or gone from it by now.
            let runs = || {
                let state = process.thread_status(tid).map(|status| status.state);
                state.is_ok_and(|state| !matches!(state, State::Zombie | State::Dead))
            };
            assert!(stopped.thread(tid).is_some() || !runs(), "{tid} runs");
        }
    }
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn l4_job_control_stays_in_force() {
    let mut target = program().start(&["sleep", "3"]);
    let process = target.open();
    target.signal(libc::SIGSTOP);
    target.wait_for_state("T");
    for _ in 0..10 {
        map_and_unmap(&process).unwrap();
        target.wait_for_state("T");
    }
    target.signal(libc::SIGCONT);
    target.wait_for_state("SR");
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn l4_a_stop_signal_that_comes_while_it_stands_takes_effect_afterwards() {
    let mut target = program().start(&["sleep", "3"]);
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    target.signal(libc::SIGSTOP);
    let pid = stopped
        .remote(|remote| remote.syscall(remote.abi().getpid, [0; 6]))
        .map_err(|e: RemoteError| e)
        .unwrap();
    assert_eq!(pid, process.pid().0 as u64);
    stopped.resume_and_detach();
    target.wait_for_state("T");
    target.signal(libc::SIGCONT);
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn l4_a_leader_that_has_exited_before_its_threads() {
    let mut target = program().start(&["orphan", "2"]);
    target.wait_for_state("Z");
    let process = target.open();
    match map_and_unmap(&process) {
        Err(error @ RemoteError::NoDescriptor { .. }) => trapless_testing::inapplicable!("{error}"),
        mapped => mapped.unwrap(),
    }
    assert!(process.is_alive() && process.exe().is_ok() && process.auxv().unwrap().entry().is_some());
    target.poke();
    assert_eq!(target.wait().code(), Some(6));
}

#[test]
fn l1_a_vfork_parent_is_waited_for_and_named() {
    let mut target = program().start(&["vfork"]);
    target.wait_for_state("D");
    let process = target.open();
    let mut options = StopOptions::default();
    options.patience = Duration::from_millis(100);
    let error = process.stop_with(&options).unwrap_err();
    // Both are true: its parent waits for it, and it runs in the parent's memory.
    assert!(matches!(error, StopError::SharesMemory { .. }), "{error}");
    assert_eq!(process.status().unwrap().tracer, 0);
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

/// What a child of vfork has for its memory until its program starts is its parent's, and stays that for who has opened it then.
#[test]
fn l1_memory_that_was_opened_ahead_of_a_program_is_not_taken_for_its() {
    extern "C" fn start_when_told(pipe: *mut libc::c_void) -> i32 {
        let mut told = 0u8;
        let arguments = [c"sleep".as_ptr(), c"1000".as_ptr(), std::ptr::null()];
        // SAFETY: both take what lives until they are done; the parent waits.
        unsafe {
            libc::read(pipe.addr() as i32, (&raw mut told).cast(), 1);
            libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr());
        }
        1
    }
    struct Child(i32);
    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: it is ours, and was not waited for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
    let mut stack = vec![0u8; 1 << 16];
    let mut pipe = [0; 2];
    // SAFETY: the child runs a function that does what a child of vfork may, on a stack of its own.
    let child = unsafe {
        assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let argument = std::ptr::without_provenance_mut(pipe[0] as usize);
        libc::clone(start_when_told, top, libc::CLONE_VM | libc::SIGCHLD, argument)
    };
    assert!(child > 0);
    let child = Child(child);
    let early = Process::open(Pid(child.0)).unwrap();
    // SAFETY: one byte is there.
    assert_eq!(unsafe { libc::write(pipe[1], c"x".as_ptr().cast(), 1) }, 1);
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    let exe = || std::fs::read_link(format!("/proc/{}/exe", child.0)).unwrap();
    while exe() == own {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = early.stop().unwrap_err();
    assert!(matches!(error, StopError::Execed(_)), "{error}");
    assert_eq!(early.status().unwrap().tracer, 0);
    drop(Process::open(Pid(child.0)).unwrap().stop().unwrap());
}

#[test]
fn l1_killed_while_it_stands() {
    let mut target = program().start(&["spin", "4"]);
    let process = target.open();
    let mut stopped = process.stop().unwrap();
    target.signal(libc::SIGKILL);
    let error = stopped.remote(|remote| remote.syscall(remote.abi().getpid, [0; 6])).unwrap_err();
    assert!(
        matches!(
            error,
            RemoteError::Stop(_)
                | RemoteError::Proc(_)
                | RemoteError::Memory(_)
                | RemoteError::NoSyscallInstruction(_)
        ),
        "{error}"
    );
    drop(stopped);
    // We are its parent, and its status is still there for us.
    assert_eq!(target.wait().signal(), Some(libc::SIGKILL));
    assert!(!process.is_alive());
    assert!(matches!(process.stop(), Err(StopError::Gone(_) | StopError::Proc(_))));
}

#[test]
fn l1_another_program_since_it_was_opened() {
    let mut target = program().start(&["exec", "2"]);
    let process = target.open();
    target.poke();
    assert_eq!(target.line(), "execed");
    let mut bytes = [0; 8];
    assert!(process.read(RemoteAddr(0x1000), &mut bytes).is_err());
}

#[test]
fn l1_exec_again_and_again_while_we_stop_it() {
    let mut target = program().start(&["storm", "1"]);
    let (mut stops, mut races) = (0, 0);
    while let Ok(process) = Process::open(target.pid()) {
        match process.stop() {
            Ok(stopped) => drop(stopped),
            Err(StopError::Execed(_) | StopError::Gone(_) | StopError::Proc(_)) => races += 1,
            Err(error) => panic!("{error}"),
        }
        stops += 1;
    }
    eprintln!("{stops} stops, {races} met an exec");
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn l3_a_filter_is_never_made_to_kill() {
    let mut target = program().start(&["filter", "1"]);
    let process = target.open();
    match map_and_unmap(&process) {
        // Suspended, with CAP_SYS_ADMIN.
        Ok(()) => assert!(common::is_root()),
        Err(error) => assert!(matches!(error, RemoteError::Seccomp { .. }), "{error}"),
    }
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn stepping_ends_where_it_should_and_nothing_is_lost() {
    let mut target = Program::compile("blocked", &[]).start(&["spin"]);
    let process = target.open();
    for _ in 0..20 {
        let mut stopped = process.stop().unwrap();
        let tid = process.pid().leader();
        let start = stopped.thread(tid).unwrap().registers().ip();
        let mut steps = 0;
        let moved = stopped.step_until(tid, 3, |registers| {
            steps += 1;
            steps > 2 && registers.ip() != start
        });
        assert!(matches!(moved, Ok(Stepped::Done(2 | 3))), "{moved:?}");
        assert_eq!(stopped.step_until(tid, 5, |_| false).unwrap(), Stepped::NotYet);
    }
    target.poke();
    assert_eq!(target.line(), "ok");
}

/// Signals come faster than a thread can be stepped: it gets on all the same, and what it blocks is what it was.
#[test]
fn stepping_gets_on_while_signals_come_without_end() {
    let mut target = Program::compile("blocked", &[]).start(&["flood"]);
    let process = target.open();
    let tid = process.pid().leader();
    let of_handler = 1 << (libc::SIGUSR1 - 1);
    for _ in 0..5 {
        let mut stopped = process.stop().unwrap();
        let (mut steps, mut before) = (0, RemoteAddr(0));
        let stepped = stopped.step_until(tid, 2000, |registers| {
            steps += u32::from(registers.ip() != before);
            before = registers.ip();
            false
        });
        assert_eq!(stepped.unwrap(), Stepped::NotYet);
        assert!(steps > 100, "{steps}");
        assert_eq!(stopped.signal_mask(tid).unwrap() & !of_handler, 0);
        stopped.resume_and_detach();
        assert_eq!(process.status().unwrap().sig_blocked & !of_handler, 0);
    }
    target.poke();
    assert_eq!(target.line(), "ok");
}

/// The kernel tells of a step over a system call in another way, which looks like a signal of the program's.
#[test]
fn a_step_over_a_system_call_leaves_no_signal_behind() {
    let mut target = Program::compile("blocked", &[]).start(&["naps"]);
    let process = target.open();
    let mut calls = 0;
    for _ in 0..5 {
        let mut stopped = process.stop().unwrap();
        let tid = process.pid().leader();
        let ours = stopped.thread(tid).unwrap().registers().abi().syscall_instruction;
        // Those of x86 that the kernel chooses from for programs of 32 bits.
        let theirs: &[&[u8]] = if cfg!(target_arch = "x86") { &[&[0x0f, 0x05], &[0x0f, 0x34]] } else { &[] };
        for _ in 0..250 {
            let (mut code, ip) = ([0; 4], stopped.thread(tid).unwrap().registers().ip());
            let read = process.read(ip, &mut code).unwrap_or(0);
            calls += u32::from([&[ours], theirs].concat().iter().any(|call| code[..read].starts_with(call)));
            assert_eq!(stopped.step_until(tid, 1, |_| false).unwrap(), Stepped::NotYet);
        }
    }
    assert!(calls > 0, "none was stepped over");
    target.poke();
    assert_eq!(target.line(), "ok");
}

#[test]
fn many_ranges_are_read_at_once_around_holes() {
    let target = program().start(&["sleep", "4"]);
    let process = target.open();
    let maps = process.maps().unwrap();
    let text = maps.iter().find(|m| m.perms.exec).unwrap();
    let mut buffers = vec![[0u8; 16]; 2100];
    let mut ranges: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(n, buffer)| {
            let at = if n % 3 == 1 { RemoteAddr(16) } else { text.end - 16 + u64::from(n % 3 == 2) * 8 };
            trapless_process::ReadRange::new(at, buffer)
        })
        .collect();
    process.read_vectored(&mut ranges).unwrap();
    let next_is_readable = maps.find(text.end).is_some_and(|m| m.perms.read);
    for (n, range) in ranges.iter().enumerate() {
        let expected = match n % 3 {
            0 => 16,
            1 => 0,
            _ => {
                if next_is_readable {
                    16
                } else {
                    8
                }
            }
        };
        assert_eq!(range.done, expected, "range {n}");
    }
}

#[test]
fn what_cannot_be_opened_is_told_apart() {
    let kind = |pid: i32| match Process::open(Pid(pid)) {
        Ok(_) => "opened",
        Err(OpenError::NoSuchProcess { .. }) => "none",
        Err(OpenError::Ourselves { .. }) => "ourselves",
        Err(OpenError::KernelThread { .. }) => "kernel thread",
        Err(OpenError::Zombie { .. }) => "zombie",
        Err(OpenError::Thread { .. }) => "thread",
        Err(OpenError::AlreadyTraced { .. }) => "traced",
        Err(error) => panic!("{error}"),
    };
    assert_eq!(kind(0), "none");
    assert_eq!(kind(-1), "none");
    assert_eq!(kind(i32::MAX), "none");
    assert_eq!(kind(std::process::id() as i32), "ourselves");
    assert_eq!(kind(2), "kernel thread");
    let mut target = program().start(&["sleep", "1"]);
    // Ids start over at the largest one: that of a later thread may be smaller.
    let mut threads = target.open().threads().unwrap().into_iter().map(|tid| tid.0);
    let thread = threads.find(|&tid| tid != target.pid().0).unwrap();
    assert_eq!(kind(thread), "thread");
    assert_eq!(kind(target.pid().0), "opened");
    target.poke();
    target.wait_for_state("Z");
    // The leader has exited; its other thread may still be on its way.
    while std::fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap().count() > 1 {
        std::thread::yield_now();
    }
    assert_eq!(kind(target.pid().0), "zombie");
}

#[test]
fn one_already_traced_names_its_tracer() {
    let target = program().start(&["sleep", "1"]);
    let (process, pid) = (target.open(), target.pid());
    let tracer = trapless_process::keeper::Keeper::start(move |watch| {
        let stopped = process.stop().unwrap();
        while !watch.should_end_within(Duration::from_secs(1)) {}
        drop(stopped);
        Vec::new()
    })
    .unwrap();
    target.wait_for_state("t");
    let error = Process::open(pid).unwrap_err();
    assert!(matches!(&error, OpenError::AlreadyTraced { tracer: t, .. } if t.0 == tracer.pid().0), "{error}");
    drop(tracer);
    target.open().stop().unwrap();
}

/// Everything an ordinary user needs works for one, on their own process; root's is refused with the reason.
#[test]
fn as_an_ordinary_user() {
    const NOBODY: u32 = 65534;
    if !common::is_root() {
        trapless_testing::inapplicable!("we are an ordinary user, so every other test is this one");
        return;
    }
    let program = program();
    let become_nobody = |command: &mut std::process::Command| {
        command.uid(NOBODY).gid(NOBODY);
    };
    let mut theirs: Target = program.start_with(&["sleep", "2"], become_nobody);
    let mut sandboxed = program.start_with(&["filter", "1"], become_nobody);
    let ours = program.start(&["sleep", "2"]);
    let (their_pid, our_pid, sandboxed_pid) = (theirs.pid(), ours.pid(), sandboxed.pid());
    let result = trapless_process::keeper::run(move |_| {
        // SAFETY: plain system calls on the keeper, which has one thread. The C library's wrappers would do the same.
        unsafe {
            libc::setgroups(0, std::ptr::null());
            assert_eq!((libc::setgid(NOBODY), libc::setuid(NOBODY)), (0, 0));
        }
        let process = Process::open(their_pid).unwrap();
        for _ in 0..10 {
            map_and_unmap(&process).unwrap();
        }
        let refused = map_and_unmap(&Process::open(sandboxed_pid).unwrap()).unwrap_err();
        assert!(matches!(refused, RemoteError::Seccomp { .. }), "{refused}");
        let denied = Process::open(our_pid).unwrap_err();
        assert!(matches!(denied, OpenError::OtherUser { owner: 0, ours: NOBODY, .. }), "{denied}");
        b"done".to_vec()
    });
    assert_eq!(result.unwrap(), b"done");
    for target in [&mut theirs, &mut sandboxed] {
        target.poke();
        assert_eq!(target.wait().code(), Some(5));
    }
}

#[test]
fn signals_that_kill_it_do_so_after_we_let_go() {
    let mut target = program().start(&["abort", "3"]);
    let process = target.open();
    target.poke();
    let start = Instant::now();
    while process.is_alive() && start.elapsed() < Duration::from_secs(300) {
        let _ = process.stop();
    }
    assert_eq!(target.wait().signal(), Some(libc::SIGABRT));
}

/// The first process of a pid namespace ends when all others there have been reaped, long after it has given up its memory.
#[test]
fn a_process_without_memory_has_ended_however_long_it_takes() {
    if !common::is_root() {
        trapless_testing::inapplicable!("only root can make namespaces everywhere");
        return;
    }
    // The other one is in no exec when it is stopped.
    let script = "while :; do :; done & echo ready; dd bs=1 count=1 >/dev/null 2>&1; exit 0";
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", script]);
    let mut target = Target::start(command);
    let child_of = |parent: Pid| {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        Pid(children.split_whitespace().next().unwrap().parse().unwrap())
    };
    let first = child_of(target.pid());
    let (process, other) = (Process::open(first).unwrap(), Process::open(child_of(first)).unwrap());
    let held = other.stop().unwrap();
    assert!(!process.has_ended_within(Duration::ZERO));
    target.poke();
    // Whoever traces it has to take its end, too, and we do not yet.
    assert!(process.has_ended_within(Duration::from_secs(60)));
    assert!(process.is_alive() && !process.runs_another_program());
    drop(held);
    assert!(target.wait().success() && !process.is_alive());
}
