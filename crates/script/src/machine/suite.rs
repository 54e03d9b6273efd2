//! Runs of `test` and `bench` probes.

use super::{Event, Machine, Outside};
use crate::ir::BodyId;
use crate::output::{Benchmark, Layout, Streams, Tested};
use std::cell::RefCell;
use std::io::{self, Write};

/// How often a benchmark is run at most, if time does not pass.
const MOST_RUNS: u64 = 1 << 20;

/// Two streams that go to one place.
struct Shared<'a>(&'a RefCell<Vec<u8>>);

impl Write for Shared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What came of a run.
struct Ran {
    result: i64,
    has_failed: bool,
    printed: Vec<u8>,
}

impl Machine {
    /// Runs the `test` probes, prints what came of each, and gives whether all passed: those that give nothing but 0, print no error
    /// and do not exit with an error. The clock is read for how long each takes.
    ///
    /// # Errors
    /// What came of them cannot be printed.
    pub fn test(&mut self, clock: &mut dyn FnMut() -> u64, outside: &mut Outside<'_>) -> io::Result<bool> {
        let tests = self.named(|event| match event {
            Event::Test(name) => Some(name),
            _ => None,
        });
        self.printer.tests_begin(tests.len(), &mut outside.streams)?;
        let mut tested = Vec::new();
        for (name, body, site) in tests {
            let start = clock();
            let Ran { result, has_failed, printed } = self.capture(body, site, outside)?;
            let duration = clock().saturating_sub(start);
            let test = Tested { name, passed: result == 0 && !has_failed, duration, printed };
            self.printer.tested(&test, &mut outside.streams)?;
            tested.push(test);
        }
        self.printer.tests_end(&tested, &mut outside.streams)?;
        Ok(tested.iter().all(|test| test.passed))
    }

    /// Runs the `bench` probes, each as often as takes a millisecond, prints how long they took, and gives whether none failed. One that gives something else
    /// than 0 is left out.
    ///
    /// # Errors
    /// What came of them cannot be printed.
    pub fn benchmark(
        &mut self,
        clock: &mut dyn FnMut() -> u64,
        outside: &mut Outside<'_>,
    ) -> io::Result<bool> {
        let benchmarks = self.named(|event| match event {
            Event::Benchmark(name) => Some(name),
            _ => None,
        });
        let (mut done, mut is_good) = (Vec::new(), true);
        for (name, body, site) in benchmarks {
            let mut runs = 1;
            loop {
                let start = clock();
                let mut last = Ran { result: 0, has_failed: false, printed: Vec::new() };
                for _ in 0..runs {
                    last = self.capture(body, site, outside)?;
                    if last.has_failed || last.result != 0 {
                        break;
                    }
                }
                let total = clock().saturating_sub(start);
                if last.has_failed {
                    is_good = false;
                    writeln!(outside.streams.err, "ERROR: Benchmark '{name}' failed.")?;
                    break;
                }
                if last.result != 0 {
                    break;
                }
                let more = match total {
                    0..1_000 => 1000,
                    1_000..10_000 => 100,
                    10_000..100_000 => 10,
                    100_000..1_000_000 => 2,
                    _ => 1,
                };
                if more == 1 || runs >= MOST_RUNS {
                    done.push(Benchmark { name, average: total / runs, runs });
                    break;
                }
                runs = (runs * more).min(MOST_RUNS);
            }
        }
        self.printer.benchmarks(&done, &mut outside.streams)?;
        Ok(is_good)
    }

    /// Probes of a kind with their names.
    fn named(&self, name: impl Fn(&Event) -> Option<&String>) -> Vec<(String, BodyId, u64)> {
        let of = |probe: &super::OwnProbe| Some((name(&probe.event)?.clone(), probe.body, probe.site));
        self.probes.iter().filter_map(of).collect()
    }

    /// Runs a body and keeps what it prints, as text.
    fn capture(&mut self, body: BodyId, site: u64, outside: &mut Outside<'_>) -> io::Result<Ran> {
        let printed = RefCell::new(Vec::new());
        let errors = self.printer.errors();
        let layout = self.printer.set_layout(Layout::Text);
        let (mut out, mut err) = (Shared(&printed), Shared(&printed));
        let streams = Streams { out: &mut out, err: &mut err };
        let mut inside = Outside { hit: &mut *outside.hit, resolver: &mut *outside.resolver, streams };
        let result = self.run(body, site, &mut inside);
        self.printer.set_layout(layout);
        // The next one may say something again.
        let code = self.exit.take().unwrap_or(0);
        let has_failed = code != 0 || self.printer.errors() > errors;
        Ok(Ran { result: result?.unwrap_or(0), has_failed, printed: printed.into_inner() })
    }
}
