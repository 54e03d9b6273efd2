//! Staying attached: every breakpoint of every thread is told once, new threads and forked children included.

mod common;

use common::Program;
use std::time::{Duration, Instant};
use trapless_process::trace::{TraceEvent, Tracer};
use trapless_process::{BREAKPOINT, Process, RemoteAddr, keeper};

const NOP: &[u8] = match () {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    () => &[0x90],
    #[cfg(target_arch = "aarch64")]
    () => &[0x1f, 0x20, 0x03, 0xd5],
    #[cfg(target_arch = "powerpc64")]
    () => &[0x00, 0x00, 0x00, 0x60],
};

/// Traces in a keeper, as production does: its only children are the threads it traces. What fails there fails here.
fn in_keeper(work: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    keeper::run(|_| work()).unwrap_or_else(|error| panic!("{error}"))
}

/// The next event, however many turns it takes.
fn next(tracer: &mut Tracer<'_>) -> TraceEvent {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        if let Some(event) = tracer.next_event().unwrap() {
            return event;
        }
        assert!(Instant::now() < deadline, "something happens");
    }
}

#[test]
fn every_hit_is_told_once() {
    let program = Program::compile("hits", &[]);
    for (threads, count) in [(1u32, 5000u32), (4, 2000), (32, 50)] {
        let mut target = program.start(&[&threads.to_string(), &count.to_string()]);
        let site = RemoteAddr(u64::from_str_radix(&target.line(), 16).unwrap());
        let process = target.open();
        in_keeper(|| {
            let stopped = process.stop().unwrap();
            process.write(site, BREAKPOINT).unwrap();
            let mut tracer = stopped.trace().unwrap();
            target.poke();
            let (mut hits, mut created, mut children, mut stepped) = (0, 0, 0, 0);
            let start = Instant::now();
            loop {
                let event = next(&mut tracer);
                match event {
                    TraceEvent::Breakpoint { tid, address } => {
                        assert_eq!(address, site);
                        hits += 1;
                        let mut registers = tracer.registers(tid).unwrap();
                        // The nop under the breakpoint is emulated; the `ret` behind it is stepped now and then.
                        registers.set_ip(site + NOP.len() as u64);
                        tracer.set_registers(tid, &registers).unwrap();
                        if hits % 100 == 0 {
                            tracer.step(tid, 0).unwrap()
                        } else {
                            tracer.cont(tid, 0).unwrap()
                        }
                    }
                    TraceEvent::Stepped { tid } => {
                        stepped += 1;
                        tracer.cont(tid, 0).unwrap();
                    }
                    TraceEvent::NewThread { tid } => {
                        created += 1;
                        tracer.cont(tid, 0).unwrap();
                    }
                    TraceEvent::Forked { tid, child, vfork } => {
                        children += 1;
                        assert!(!vfork);
                        let copy = Process::open(child).unwrap();
                        copy.write(site, NOP).unwrap();
                        tracer.release(child);
                        tracer.cont(tid, 0).unwrap();
                    }
                    TraceEvent::Signal { tid, signal } => {
                        tracer.cont(tid, signal).unwrap();
                        // The child's end.
                        if signal == libc::SIGCHLD {
                            break;
                        }
                    }
                    TraceEvent::ThreadGone { .. } => {}
                    event => panic!("{event:?}"),
                }
            }
            eprintln!("{threads} threads: {hits} hits, {:?} each", start.elapsed() / hits);
            assert_eq!((hits, created, children, stepped), (threads * count, threads, 1, hits / 100));
            let stopped = tracer.stop(|_| ()).unwrap();
            process.write(site, NOP).unwrap();
            stopped.resume_and_detach();
            Vec::new()
        });
        assert_eq!(target.line(), "done");
        target.poke();
        assert_eq!(target.wait().code(), Some(5));
    }
}

#[test]
fn a_breakpoint_that_was_hit_and_not_told_is_met_again() {
    let program = Program::compile("hits", &[]);
    let mut target = program.start(&["16", "1"]);
    let site = RemoteAddr(u64::from_str_radix(&target.line(), 16).unwrap());
    let process = target.open();
    in_keeper(|| {
        let stopped = process.stop().unwrap();
        process.write(site, BREAKPOINT).unwrap();
        let mut tracer = stopped.trace().unwrap();
        target.poke();
        // All sixteen run into it; only the first is told.
        loop {
            match next(&mut tracer) {
                TraceEvent::Breakpoint { tid, address } => {
                    let mut registers = tracer.registers(tid).unwrap();
                    registers.set_ip(address);
                    tracer.set_registers(tid, &registers).unwrap();
                    break;
                }
                TraceEvent::NewThread { tid } => tracer.cont(tid, 0).unwrap(),
                event => panic!("{event:?}"),
            }
        }
        let stopped = tracer.stop(|_| ()).unwrap();
        process.write(site, NOP).unwrap();
        drop(stopped);
        Vec::new()
    });
    assert_eq!(target.line(), "done");
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

/// A thread that meets a breakpoint just before it is taken out has a SIGTRAP on the way when the stop reaches it. Left to it, the
/// signal would kill the process once nobody traces it.
#[test]
fn a_stop_leaves_no_trap_on_the_way() {
    let program = Program::compile("hits", &[]);
    let mut target = program.start(&["4", "1000000000"]);
    let site = RemoteAddr(u64::from_str_radix(&target.line(), 16).unwrap());
    let process = target.open();
    target.poke();
    in_keeper(|| {
        for round in 0..200 {
            let stopped = process.stop().unwrap_or_else(|error| panic!("round {round}: {error}"));
            process.write(site, BREAKPOINT).unwrap();
            let mut tracer = stopped.trace().unwrap();
            let mut hits = 0;
            while hits < 1 + round % 8 {
                match next(&mut tracer) {
                    TraceEvent::Breakpoint { tid, address } => {
                        assert_eq!(address, site);
                        hits += 1;
                        tracer.cont(tid, 0).unwrap();
                    }
                    TraceEvent::NewThread { tid } => tracer.cont(tid, 0).unwrap(),
                    event => panic!("round {round}: {event:?}"),
                }
            }
            process.write(site, NOP).unwrap();
            tracer.stop(|_| ()).unwrap().resume_and_detach();
        }
        Vec::new()
    });
}

/// A thread stands in the stop of its fork when all are to be stopped. Its child has a copy of the breakpoint, and would be left standing.
#[test]
fn a_child_that_is_born_when_all_are_stopped_is_handed_over() {
    let program = Program::compile("hits", &[]);
    for arguments in [&["1", "1"][..], &["1", "1", "clone"]] {
        let born = || is_born_in_the_stop(&mut program.start(arguments));
        assert!((0..20).any(|_| born()), "{arguments:?}: it was always told of before");
    }
}

/// Whether the stop has handed over the child that the target forks after its hit, and not an event before. The target goes on in any case.
fn is_born_in_the_stop(target: &mut common::Target) -> bool {
    let site = RemoteAddr(u64::from_str_radix(&target.line(), 16).unwrap());
    let process = target.open();
    let born_in_the_stop = in_keeper(|| {
        let stopped = process.stop().unwrap();
        process.write(site, BREAKPOINT).unwrap();
        let mut tracer = stopped.trace().unwrap();
        target.poke();
        let (mut hit, mut told, mut born) = (false, false, 0);
        let clean = |child| Process::open(child).unwrap().write(site, NOP).unwrap();
        while !hit {
            match next(&mut tracer) {
                TraceEvent::Breakpoint { tid, address } => {
                    let mut registers = tracer.registers(tid).unwrap();
                    registers.set_ip(address + NOP.len() as u64);
                    tracer.set_registers(tid, &registers).unwrap();
                    tracer.cont(tid, 0).unwrap();
                    hit = true;
                }
                TraceEvent::NewThread { tid } => tracer.cont(tid, 0).unwrap(),
                event => panic!("{event:?}"),
            }
        }
        // The stop of the thread's creation may be still to come; the next is that of the fork.
        match tracer.pending_event().unwrap() {
            Some(TraceEvent::Forked { tid, child, .. }) => {
                told = true;
                clean(child);
                tracer.release(child);
                tracer.cont(tid, 0).unwrap();
            }
            None | Some(TraceEvent::ThreadGone { .. }) => target.wait_for_state("t"),
            event => panic!("{event:?}"),
        }
        let stopped = tracer.stop(|child| {
            clean(child);
            born += 1;
        });
        process.write(site, NOP).unwrap();
        drop(stopped.unwrap());
        vec![u8::from(!told && born == 1)]
    });
    assert_eq!(target.line(), "done");
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
    born_in_the_stop == [1]
}

/// The stop of an exec bears the id of the leader, which nobody can attach to once it has ended.
#[test]
fn an_exec_after_the_leader_has_ended_is_told() {
    let program = Program::compile("threads", &[]);
    let mut target = program.start(&["heir", "3"]);
    target.wait_for_state("Z");
    let process = target.open();
    in_keeper(|| {
        let stopped = process.stop().unwrap();
        assert_eq!(stopped.threads().len(), 4);
        let mut tracer = stopped.trace().unwrap();
        target.poke();
        loop {
            match next(&mut tracer) {
                TraceEvent::ThreadGone { .. } => {}
                event => {
                    assert_eq!(event, TraceEvent::Execed { tid: target.pid().leader() });
                    break;
                }
            }
        }
        tracer.stop(|_| ()).unwrap().resume_and_detach();
        Vec::new()
    });
    assert_eq!(target.line(), "execed");
}

/// Its creator's stop is one that threads are made with, too.
#[test]
fn a_child_that_ends_without_a_signal_is_told_of_as_any_other() {
    let program = Program::compile("hits", &[]);
    let mut target = program.start(&["2", "1", "clone"]);
    let site = RemoteAddr(u64::from_str_radix(&target.line(), 16).unwrap());
    let process = target.open();
    in_keeper(|| {
        let stopped = process.stop().unwrap();
        process.write(site, BREAKPOINT).unwrap();
        let mut tracer = stopped.trace().unwrap();
        target.poke();
        loop {
            match next(&mut tracer) {
                TraceEvent::Breakpoint { tid, address } => {
                    let mut registers = tracer.registers(tid).unwrap();
                    registers.set_ip(address + NOP.len() as u64);
                    tracer.set_registers(tid, &registers).unwrap();
                    tracer.cont(tid, 0).unwrap();
                }
                TraceEvent::NewThread { tid } => tracer.cont(tid, 0).unwrap(),
                TraceEvent::ThreadGone { .. } => {}
                TraceEvent::Forked { tid, child, vfork } => {
                    assert!(!vfork);
                    Process::open(child).unwrap().write(site, NOP).unwrap();
                    tracer.release(child);
                    tracer.cont(tid, 0).unwrap();
                    break;
                }
                event => panic!("{event:?}"),
            }
        }
        process.write(site, NOP).unwrap();
        tracer.stop(|_| panic!("it was told of")).unwrap().resume_and_detach();
        Vec::new()
    });
    assert_eq!(target.line(), "done");
    target.poke();
    assert_eq!(target.wait().code(), Some(5));
}

/// A program that traps by itself, and that nobody has been told of when all threads are stopped, gets its signal where it trapped.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
#[test]
fn the_programs_own_traps_stay_its_own_in_the_stop() {
    let program = Program::compile("traps", &[]);
    for how in ["int_3", "step"] {
        let mut target = program.start(&[how]);
        target.wait_for_state("S");
        let process = target.open();
        in_keeper(|| {
            let mut tracer = process.stop().unwrap().trace().unwrap();
            // The stop that tells of job control comes first.
            while !target.is_in_state("S") {
                assert_eq!(tracer.pending_event().unwrap(), None);
            }
            target.poke();
            target.wait_for_state("t");
            tracer.stop(|_| ()).unwrap().resume_and_detach();
            Vec::new()
        });
        assert_eq!(target.wait().code(), Some(5), "{how}");
    }
}
