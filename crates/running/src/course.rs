//! Which probes of a script run in the process that drives it, and when.

use crate::names::clock_ns;
use trapless_script::check::{self, clauses::ClauseKind};
use trapless_script::lower::Compiled;
use trapless_script::machine::{Event, OwnProbe};
use trapless_script::syntax::ast::{Frequency, ProbePoint};

/// The probes of a script that run in this process, each with its name.
pub fn own_probes(compiled: &Compiled) -> Vec<(OwnProbe, String)> {
    // Their numbers are none of a session's.
    const FIRST: u64 = 1 << 32;
    let mut probes = Vec::new();
    for clause in &compiled.clauses {
        for point in &clause.points {
            let event = match (&clause.kind, &point.point) {
                (ClauseKind::Begin, _) => Event::Begin,
                (ClauseKind::End, _) => Event::End,
                (_, ProbePoint::Interval(frequency) | ProbePoint::Profile(frequency)) => {
                    Event::Interval(nanoseconds(frequency))
                }
                (_, ProbePoint::SelfSignal(name)) => {
                    match check::signals::number(name).and_then(|number| i32::try_from(number).ok()) {
                        Some(number) => Event::Signal(number),
                        None => continue,
                    }
                }
                (_, ProbePoint::Test(name)) => Event::Test(name.clone()),
                (_, ProbePoint::Bench(name)) => Event::Benchmark(name.clone()),
                _ => continue,
            };
            let site = FIRST + probes.len() as u64;
            probes.push((OwnProbe { event, body: clause.body, site }, point.text.clone()));
        }
    }
    probes
}

fn nanoseconds(frequency: &Frequency) -> u64 {
    match frequency {
        Frequency::Any => 1_000_000_000,
        Frequency::Every(nanoseconds) => *nanoseconds,
        Frequency::Hertz(times) => 1_000_000_000 / (*times).max(1),
    }
}

/// Nanoseconds of a clock that does not go back.
pub fn now() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC) as u64
}
