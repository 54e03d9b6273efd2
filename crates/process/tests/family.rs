//! Processes that are followed through what they create and run.

mod common;

use common::Program;
use std::rc::Rc;
use std::time::{Duration, Instant};
use trapless_process::family::{ChildSignal, Family, FamilyEvent};
use trapless_process::{Process, StopOptions};

/// The kernel stops a thread for an interrupt before it gives it the signal of a breakpoint or a step that it has just run into. That
/// signal, told to nobody, would end the program when it goes on.
#[test]
fn a_program_that_is_stopped_while_it_is_loaded_goes_on() {
    const PROGRAMS: u32 = 1500;
    let program = Program::compile("execs", &[]);
    let mut target = program.start(&[&PROGRAMS.to_string(), "waits"]);
    let pid = target.pid();
    let process = Rc::new(target.open());
    let mut family = Family::new(StopOptions::default(), ChildSignal::new().unwrap());
    family.join(process.stop_with(family.options()).unwrap()).unwrap();
    target.poke();
    let (mut loaded, mut stopped) = (0, 0);
    // When the program that is being loaded is to be stopped: a little later with each.
    let mut stop_at: Option<Instant> = None;
    let status = loop {
        if stop_at.take_if(|at| Instant::now() >= *at).is_some() {
            family.ask_to_stop(pid);
        }
        match family.next_event() {
            None => std::hint::spin_loop(),
            Some(FamilyEvent::Execed { .. }) => {
                let process = Rc::new(Process::open(pid).unwrap());
                family.load(&process).unwrap();
                let after = Duration::from_micros(u64::from((loaded + stopped) % 750));
                stop_at = Some(Instant::now() + after);
            }
            Some(FamilyEvent::Loaded { .. }) => {
                loaded += 1;
                stop_at = None;
                family.go_on(pid);
            }
            Some(FamilyEvent::Stopped { .. }) => {
                stopped += 1;
                family.go_on(pid);
            }
            Some(FamilyEvent::Ended { status, .. }) => break status,
            Some(event) => panic!("{event:?}"),
        }
    };
    assert_eq!(status.code(), Some(7), "{status}, after {loaded} loaded and {stopped} stopped");
    assert!(loaded + stopped >= PROGRAMS && stopped > 100, "{loaded} loaded, {stopped} stopped");
}
