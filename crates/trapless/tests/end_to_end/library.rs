//! The library, as a program uses it that attaches to others.

use crate::support::{Program, Target, eventually};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trapless::{Ending, Error, Event, Hit, Kind, OpenError, ProbeSummary, Session, attach};

/// Calls `subject` and `other` for each line that it reads, as often as that says, and says so. What begins with `x` makes it another
/// program.
const SOURCE: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    #define APART __attribute__((noinline, noclone))
    static volatile long sum;
    APART long other(long n) { sum += n; return n + 1; }
    APART long subject(long n, long twice) { sum += twice; return other(n) * 3; }
    int main(int argc, char **argv) {
        char line[64];
        printf("ready\n");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin)) {
            if (line[0] == 'x') execl("/bin/cat", "cat", (char *)0);
            long calls = atol(line);
            for (long n = 0; n < calls; n++) if (subject(n, 2 * n) != 3 * (n + 1)) return 1;
            printf("called\n");
            fflush(stdout);
        }
        return 0;
    }"#;

fn start(name: &str) -> (Program, Target) {
    let program = Program::build(name, SOURCE, &["-O1"]);
    let target = program.start(&[]);
    (program, target)
}

fn calls(target: &mut Target, count: u64) {
    target.tell(&count.to_string());
    assert_eq!(target.line(), "called");
}

fn id(target: &Target) -> u32 {
    target.pid() as u32
}

/// The row of a function.
#[track_caller]
fn row<'r>(rows: &'r [ProbeSummary], function: &str, kind: Kind) -> &'r ProbeSummary {
    let found = rows.iter().find(|row| row.function.text() == function && row.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind} of {function}: {rows:?}"))
}

#[test]
fn counts_times_and_traces_go_in_one_session_and_each_is_exact() {
    let (_program, mut target) = start("asked_alike");
    let before = target.text();
    let asked = attach(id(&target)).unwrap();
    let asked = asked.count("asked_alike:other").unwrap().count_returns("asked_alike:other").unwrap();
    let asked = asked.latency("asked_alike:subject").unwrap().trace_calls("asked_alike:subject", 2).unwrap();
    let mut session = asked.arm().unwrap();
    assert_eq!((session.pid(), session.is_alive()), (id(&target), true));
    assert_eq!(session.skipped(), []);
    calls(&mut target, 100);
    let rows = session.snapshot();
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert_eq!(row(&rows, "other", Kind::Entry).hits, 100);
    assert_eq!(row(&rows, "other", Kind::Return).hits, 100);
    assert!(row(&rows, "other", Kind::Return).latency().is_none(), "nobody has asked for its times");
    let subject = row(&rows, "subject", Kind::Return);
    assert_eq!(subject.hits, 100);
    let latency = subject.latency().unwrap();
    assert_eq!(latency.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 100);
    assert_eq!(session.hits(), 200);
    let hits = session.take_hits().unwrap();
    let told = |hit: &Hit| (hit.args.clone(), hit.retval, hit.kind, hit.duration_ns.is_some());
    let expected: Vec<_> =
        (0..100).map(|n| (vec![n, 2 * n], Some(3 * (n + 1)), Kind::Return, true)).collect();
    assert_eq!(hits.iter().map(told).collect::<Vec<_>>(), expected);
    assert!(hits.iter().all(|hit| hit.function == "subject" && hit.pid == target.pid()));
    assert!(session.take_hits().unwrap().is_empty());
    calls(&mut target, 50);
    let summary = session.remove().unwrap();
    before.assert_restored(target.pid());
    assert_eq!(row(&summary.probes, "other", Kind::Entry).hits, 150);
    assert_eq!((summary.hits.len(), summary.hits.last().unwrap().args[0]), (50, 49));
    assert!(summary.stopped > Duration::ZERO && summary.duration > Duration::ZERO);
    let losses = &summary.losses;
    assert_eq!((losses.not_shown, losses.left_by_exception, &losses.lost_sites[..]), (0, 0, &[][..]));
    calls(&mut target, 1);
}

#[test]
fn what_is_asked_twice_is_done_once_and_with_the_most_arguments() {
    let (_program, mut target) = start("asked_twice");
    let asked = attach(id(&target)).unwrap();
    let asked = asked.trace("asked_twice:subject", 1).unwrap().trace("asked_twice:sub*", 2).unwrap();
    let mut session = asked.count("asked_twice:*bject").unwrap().except("*ther").unwrap().arm().unwrap();
    calls(&mut target, 3);
    let hits = session.take_hits().unwrap();
    let told: Vec<_> = hits.iter().map(|hit| (hit.kind, hit.args.as_slice())).collect();
    assert_eq!(told, [(Kind::Entry, &[0, 0][..]), (Kind::Entry, &[1, 2]), (Kind::Entry, &[2, 4])]);
    let rows = session.snapshot();
    assert_eq!((rows.len(), rows[0].hits), (1, 3), "{rows:?}");
}

#[test]
fn a_session_that_is_dropped_takes_its_probes_out() {
    let (_program, mut target) = start("dropped");
    let before = target.text();
    for _ in 0..3 {
        let session = attach(id(&target)).unwrap().latency("dropped:subject").unwrap().arm().unwrap();
        calls(&mut target, 10);
        assert_eq!(session.hits(), 10);
        drop(session);
        before.assert_restored(target.pid());
    }
    // A panic is no other way.
    let pid = id(&target);
    let panicked = std::thread::spawn(move || {
        let _session = attach(pid).unwrap().count("dropped:subject").unwrap().arm().unwrap();
        panic!("this is expected");
    });
    assert!(panicked.join().is_err());
    before.assert_restored(target.pid());
    calls(&mut target, 1);
}

#[test]
fn events_are_hits_intervals_and_the_end() {
    let (_program, mut target) = start("eventful");
    let asked = attach(id(&target)).unwrap().trace("eventful:other", 1).unwrap();
    let mut session = asked.count("eventful:subject").unwrap().arm().unwrap();
    calls(&mut target, 20);
    let events = session.events().every(Duration::from_millis(20)).during(Duration::from_millis(200));
    let (mut hits, mut counted, mut intervals) = (0, 0, 0);
    for event in events {
        match event.unwrap() {
            Event::Hit(hit) => {
                assert_eq!((hit.function.as_str(), hit.args[0]), ("other", hits));
                hits += 1;
                // What is called in between belongs to an interval, as what comes before the first one does not.
                if hits == 20 {
                    calls(&mut target, 7);
                }
            }
            Event::Interval(rows) => {
                counted += row(&rows, "subject", Kind::Entry).hits;
                intervals += 1;
            }
            other => panic!("{other:?}"),
        }
        if hits == 20 {
            break;
        }
    }
    assert_eq!(hits, 20);
    assert_eq!((counted, intervals > 0), (0, intervals > 0));
    calls(&mut target, 5);
    let mut rest = session.events();
    let read: Vec<u64> = rest
        .by_ref()
        .take(12)
        .map(|event| match event.unwrap() {
            Event::Hit(hit) => hit.args[0],
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(read, (0..7).chain(0..5).collect::<Vec<u64>>());
    calls(&mut target, 2);
    target.end_input();
    let last: Vec<_> = rest.map(Result::unwrap).collect();
    assert!(matches!(last[..], [Event::Hit(_), Event::Hit(_), Event::End(Ending::Exited)]), "{last:?}");
    assert!(session.events().all(|event| matches!(event, Ok(Event::End(Ending::Exited)))));
    assert!(!session.is_alive());
    // They can be read when the process is gone.
    let summary = session.remove().unwrap();
    assert_eq!(row(&summary.probes, "subject", Kind::Entry).hits, 34);
}

/// The sum of what intervals tell is what there was, and each is told in time.
#[test]
fn intervals_add_up() {
    let (_program, mut target) = start("intervals");
    let mut session = attach(id(&target)).unwrap().count("intervals:other").unwrap().arm().unwrap();
    let mut counted = 0;
    let mut events = session.events().every(Duration::from_millis(10));
    for round in 1..=5 {
        calls(&mut target, round);
        loop {
            let Some(Ok(Event::Interval(rows))) = events.next() else { panic!("no interval") };
            counted += row(&rows, "other", Kind::Entry).hits;
            if counted == (1..=round).sum::<u64>() {
                break;
            }
        }
    }
    target.end_input();
    assert!(events.by_ref().any(|event| matches!(event, Ok(Event::End(Ending::Exited)))));
    assert!(events.next().is_none());
}

#[test]
fn a_process_that_becomes_another_program_is_an_end_too() {
    let (_program, mut target) = start("becomes_cat");
    let mut session = attach(id(&target)).unwrap().count("becomes_cat:subject").unwrap().arm().unwrap();
    calls(&mut target, 4);
    target.tell("x");
    let ends: Vec<_> = session.events().map(Result::unwrap).collect();
    assert!(matches!(ends[..], [Event::End(Ending::RanAnotherProgram)]), "{ends:?}");
    assert_eq!(session.hits(), 4);
    session.remove().unwrap();
    target.tell("and goes on");
    assert_eq!(target.line(), "and goes on");
}

#[test]
fn what_cannot_be_is_an_error_of_its_own_and_nothing_is_done() {
    let (_program, mut target) = start("untouched");
    let before = target.text();
    let pid = id(&target);
    let own = attach(std::process::id());
    assert!(matches!(own, Err(Error::Open(OpenError::Ourselves { .. }))), "{own:?}");
    for none in [0, u32::MAX, i32::MAX as u32] {
        assert!(matches!(attach(none), Err(Error::Open(_))), "{none}");
    }
    let asked = || attach(pid).unwrap();
    assert!(matches!(asked().count("untouched"), Err(Error::Spec(_))));
    assert!(matches!(asked().regex().count("untouched:(a"), Err(Error::Spec(_))));
    assert!(matches!(asked().trace("untouched:subject", 7), Err(Error::Arguments { asked: 7, most: 6 })));
    for place in ["untouched:subject+4", "untouched:a.c:3", "usdt:untouched:a:b"] {
        assert!(matches!(asked().latency(place), Err(Error::NoReturn { .. })), "{place}");
    }
    assert!(matches!(asked().count("untouched:nowhere").unwrap().arm(), Err(Error::Select(_))));
    assert!(matches!(asked().count("untouched:*").unwrap().at_most(2).arm(), Err(Error::Select(_))));
    assert!(matches!(asked().arm(), Err(Error::NothingAsked)));
    before.assert_restored(target.pid());
    calls(&mut target, 1);
}

/// A program with many threads, as one is that uses a library, forks what arms probes while its other threads hold locks.
#[test]
fn a_host_of_many_busy_threads_attaches_again_and_again() {
    let (_program, mut target) = start("busy_host");
    let before = target.text();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..6u64 {
            let stop = &stop;
            scope.spawn(move || {
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    kept.push(format!("{number} {}", std::env::var("PATH").unwrap_or_default()));
                    if kept.len() > 1000 {
                        kept.clear();
                        std::thread::spawn(|| drop(vec![0u8; 100_000])).join().unwrap();
                    }
                }
            });
        }
        for round in 0..30 {
            let session = attach(id(&target)).unwrap().count("busy_host:subject").unwrap().arm().unwrap();
            calls(&mut target, round);
            let summary = session.remove().unwrap();
            assert_eq!(summary.probes[0].hits, round);
        }
        stop.store(true, Ordering::Relaxed);
    });
    before.assert_restored(target.pid());
}

/// Each in a session of its own, from threads of one program.
#[test]
fn several_threads_attach_to_several_processes() {
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            scope.spawn(move || {
                let (_program, mut target) = start(&format!("one_of_{number}"));
                let pattern = format!("one_of_{number}:subject");
                for round in 1..10 {
                    let session = attach(id(&target)).unwrap().latency(&pattern).unwrap().arm().unwrap();
                    calls(&mut target, number + round);
                    assert_eq!(session.remove().unwrap().probes[0].hits, number + round);
                }
            });
        }
    });
}

fn helper_of(target: &Target) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|tracer| *tracer != 0)
}

#[test]
fn what_traps_is_asked_for_and_does_not_outlive_its_helper() {
    let (_program, mut target) = start("trapped_here");
    let before = target.text();
    let pid = id(&target);
    let asked = || attach(pid).unwrap();
    // Its name asks for it, as does the permission where nothing else is possible.
    let session = asked().count("step:trapped_here:subject").unwrap().arm().unwrap();
    calls(&mut target, 5);
    assert!(helper_of(&target).is_some());
    assert_eq!(session.remove().unwrap().probes[0].hits, 5);
    before.assert_restored(target.pid());
    assert_eq!(helper_of(&target), None);
    let session = asked().allow_traps().count("trapped_here:subject").unwrap().arm().unwrap();
    assert_eq!((session.snapshot()[0].mechanism, helper_of(&target)), ("jump", None));
    drop(session);

    let mut session: Session = asked().count("boost:trapped_here:subject").unwrap().arm().unwrap();
    calls(&mut target, 5);
    let helper = helper_of(&target).expect("somebody serves its traps");
    // SAFETY: kill takes integers.
    assert_eq!(unsafe { libc::kill(helper, libc::SIGKILL) }, 0);
    eventually("its end is seen", || matches!(session.take_hits(), Err(Error::Unserved)));
    before.assert_restored(target.pid());
    calls(&mut target, 5);
    assert_eq!(session.hits(), 5);
}
