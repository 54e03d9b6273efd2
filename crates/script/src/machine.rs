//! A script that runs in the tool itself: its maps, its clocks, what it prints, and when it ends.
//!
//! A [`Machine`] runs `begin`, `end`, `interval`, `self:signal`, `test` and `bench` probes, and any body for a hit that somebody else
//! caught. It asks no clock: who drives it says what time it is.
//!
//! ```text
//! machine.begin(now, …)?;
//! while !machine.is_over() {
//!     wait until machine.next_deadline(), a signal, or something of the target
//!     machine.tick(now, …)?;
//! }
//! let code = machine.finish(…)?;
//! ```
//!
//! After `exit()` messages are no longer taken, until [`Machine::finish`] runs the `end` probes: as with bpftrace, what other
//! probes say meanwhile is not printed.

use crate::interp::{Hit, Host, Maps, Outcome, Sink, run};
use crate::ir::verify::{Invalid, verify};
use crate::ir::{BodyId, Context, Kin, MapId, MessageId, PartKind, Program, StackWalk};
use crate::message::Messages;
use crate::output::{Effect, Options, Printer, Resolver, Streams};
use std::io;

/// When a body runs that needs no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// At the beginning.
    Begin,
    /// At the end.
    End,
    /// Each time that so many nanoseconds have passed. 0 counts as 1.
    Interval(u64),
    /// When the tool gets a signal with this number.
    Signal(i32),
    /// When tests are run. It has a name.
    Test(String),
    /// When benchmarks are run. It has a name.
    Benchmark(String),
}

/// A body and when it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnProbe {
    /// When.
    pub event: Event,
    /// What.
    pub body: BodyId,
    /// The number that [`Context::Site`] says while it runs.
    pub site: u64,
}

/// What the machine needs of the world at each step.
pub struct Outside<'a> {
    /// The tool's own process, or the hit that was caught.
    pub hit: &'a mut dyn Hit,
    /// The script's maps.
    pub maps: &'a mut dyn Maps,
    /// Names, times, files and commands.
    pub resolver: &'a mut dyn Resolver,
    /// Where it is printed.
    pub streams: Streams<'a>,
}

/// A script that runs.
#[derive(Debug)]
pub struct Machine {
    program: Program,
    probes: Vec<OwnProbe>,
    printer: Printer,
    /// When each interval probe is next due, by its index; in the order of the script.
    due: Vec<(usize, u64)>,
    /// The exit code, once `exit()` was called.
    exit: Option<i32>,
    /// What the latest body gave as its result.
    result: Option<i64>,
}

impl Machine {
    /// A machine for a script. The probes are in the order of the script.
    ///
    /// # Errors
    /// The program is not as back ends need it.
    pub fn new(
        program: Program,
        messages: Messages,
        probes: Vec<OwnProbe>,
        options: Options,
    ) -> Result<Machine, Invalid> {
        verify(&program)?;
        Ok(Machine {
            printer: Printer::new(messages, options),
            program,
            probes,
            due: Vec::new(),
            exit: None,
            result: None,
        })
    }

    /// The printer, for what is told beside the script's own messages.
    pub fn printer(&mut self) -> &mut Printer {
        &mut self.printer
    }

    /// The parts of each kind of message.
    pub fn messages(&self) -> &[Vec<PartKind>] {
        &self.program.messages
    }

    /// Its probes, in the order of the script.
    pub fn probes(&self) -> &[OwnProbe] {
        &self.probes
    }

    /// Runs the `begin` probes and starts the intervals' clocks. Times are nanoseconds of a clock that does not go back.
    ///
    /// # Errors
    /// What was said cannot be printed.
    pub fn begin(&mut self, now: u64, outside: &mut Outside<'_>) -> io::Result<()> {
        self.run_all(&Event::Begin, outside)?;
        self.start(now);
        Ok(())
    }

    /// Starts the intervals' clocks alone.
    pub fn start(&mut self, now: u64) {
        let due = self.probes.iter().enumerate().filter_map(|(index, probe)| match probe.event {
            Event::Interval(every) => Some((index, now.saturating_add(every.max(1)))),
            _ => None,
        });
        self.due = due.collect();
    }

    /// When [`Machine::tick`] is next to be called; `None` if there are no intervals.
    pub fn next_deadline(&self) -> Option<u64> {
        self.due.iter().map(|(_, at)| *at).min()
    }

    /// Runs the interval probes that are due, the longest due first, those of one time in the order of the script. One that is due more
    /// than once runs once.
    ///
    /// # Errors
    /// What was said cannot be printed.
    pub fn tick(&mut self, now: u64, outside: &mut Outside<'_>) -> io::Result<()> {
        let mut due: Vec<(u64, usize)> =
            self.due.iter().filter(|(_, at)| *at <= now).map(|(index, at)| (*at, *index)).collect();
        due.sort_unstable();
        for (_, index) in due {
            if self.is_over() {
                break;
            }
            let Some(OwnProbe { event: Event::Interval(every), body, site }) = self.probes.get(index) else {
                continue;
            };
            let (every, body, site) = ((*every).max(1), *body, *site);
            if let Some((_, at)) = self.due.iter_mut().find(|(probe, _)| *probe == index) {
                let passed = (now - *at) / every + 1;
                *at = at.saturating_add(every.saturating_mul(passed));
            }
            self.run(body, site, outside)?;
        }
        Ok(())
    }

    /// Runs the probes of a signal that the tool got. Gives whether there are any: if not, the signal has its usual meaning.
    ///
    /// # Errors
    /// What was said cannot be printed.
    pub fn signal(&mut self, number: i32, outside: &mut Outside<'_>) -> io::Result<bool> {
        let event = Event::Signal(number);
        let is_there = self.probes.iter().any(|probe| probe.event == event);
        self.run_all(&event, outside)?;
        Ok(is_there)
    }

    /// Runs a body at a site: one of the probes of the tool itself, or a hit that was caught. What it says as its result
    /// ([`Message::Result`](crate::message::Message::Result)) is given.
    ///
    /// # Errors
    /// What was said cannot be printed.
    pub fn run(&mut self, body: BodyId, site: u64, outside: &mut Outside<'_>) -> io::Result<Option<i64>> {
        self.result = None;
        let mut hit = AtSite { site, hit: outside.hit };
        let mut sink = Printing {
            printer: &mut self.printer,
            resolver: outside.resolver,
            streams: &mut outside.streams,
            exit: &mut self.exit,
            result: &mut self.result,
            error: None,
        };
        let host = Host { hit: &mut hit, maps: outside.maps, sink: &mut sink };
        let outcome = run(&self.program, body, host);
        if let Some(error) = sink.error {
            return Err(error);
        }
        if outcome == Outcome::OutOfFuel {
            let probe = outside.resolver.probe(site);
            self.printer.out_of_fuel(&probe, &mut outside.streams)?;
        }
        Ok(self.result)
    }

    /// Takes a message that a body emitted elsewhere, in native code.
    ///
    /// # Errors
    /// What was said cannot be printed.
    pub fn message(
        &mut self,
        message: MessageId,
        parts: &[&[u8]],
        outside: &mut Outside<'_>,
    ) -> io::Result<()> {
        let mut sink = Printing {
            printer: &mut self.printer,
            resolver: outside.resolver,
            streams: &mut outside.streams,
            exit: &mut self.exit,
            result: &mut self.result,
            error: None,
        };
        sink.emit(outside.maps, message, parts);
        sink.error.map_or(Ok(()), Err)
    }

    /// Whether `exit()` was called.
    pub fn is_over(&self) -> bool {
        self.exit.is_some()
    }

    /// The exit code with which `exit()` was called, if it was since this was last asked. From then on messages are taken again.
    pub fn take_exit(&mut self) -> Option<i32> {
        self.exit.take()
    }

    /// Prints the maps as they are now, as at the end.
    ///
    /// # Errors
    /// They cannot be printed.
    pub fn print_maps(&mut self, outside: &mut Outside<'_>) -> io::Result<()> {
        self.printer.maps(outside.maps, outside.resolver, &mut outside.streams)
    }

    /// Whether nothing can happen any more by itself: there are only `begin` and `end` probes, and those for tests and benchmarks.
    pub fn is_idle(&self) -> bool {
        !self.probes.iter().any(|probe| matches!(probe.event, Event::Interval(_) | Event::Signal(_)))
    }

    /// Runs the `end` probes, prints the maps and gives the exit code.
    ///
    /// # Errors
    /// What was said cannot be printed.
    pub fn finish(&mut self, outside: &mut Outside<'_>) -> io::Result<i32> {
        self.due.clear();
        let code = self.exit.take();
        self.run_all(&Event::End, outside)?;
        for map in (0..self.program.maps.len() as u32).map(MapId) {
            let dropped = outside.maps.dropped(map);
            if dropped > 0 {
                self.printer.dropped(map, dropped, &mut outside.streams)?;
            }
        }
        self.printer.end(outside.maps, outside.resolver, &mut outside.streams)?;
        Ok(self.exit.or(code).unwrap_or(0))
    }

    fn run_all(&mut self, event: &Event, outside: &mut Outside<'_>) -> io::Result<()> {
        let bodies = self.probes.iter().filter(|probe| probe.event == *event);
        let bodies: Vec<(BodyId, u64)> = bodies.map(|probe| (probe.body, probe.site)).collect();
        bodies.into_iter().try_for_each(|(body, site)| self.run(body, site, outside).map(|_| ()))
    }
}

/// A hit at a site of ours.
struct AtSite<'a> {
    site: u64,
    hit: &'a mut dyn Hit,
}

impl Hit for AtSite<'_> {
    fn context(&mut self, what: Context) -> u64 {
        match what {
            Context::Site => self.site,
            other => self.hit.context(other),
        }
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        self.hit.read(address, into)
    }

    fn stack(&mut self, frames: u8, by: StackWalk) -> u64 {
        self.hit.stack(frames, by)
    }

    fn process_name(&mut self, of: Kin) -> [u8; 16] {
        self.hit.process_name(of)
    }

    fn thread_name(&mut self) -> [u8; 16] {
        self.hit.thread_name()
    }

    fn signal(&mut self, signal: i64) {
        self.hit.signal(signal);
    }
}

/// Prints messages as they come.
struct Printing<'a, 's> {
    printer: &'a mut Printer,
    resolver: &'a mut dyn Resolver,
    streams: &'a mut Streams<'s>,
    exit: &'a mut Option<i32>,
    result: &'a mut Option<i64>,
    /// The first one. Nothing is printed after it.
    error: Option<io::Error>,
}

impl Sink for Printing<'_, '_> {
    fn emit(&mut self, maps: &mut dyn Maps, message: MessageId, parts: &[&[u8]]) {
        if self.exit.is_some() || self.error.is_some() {
            return;
        }
        match self.printer.message(message, parts, maps, self.resolver, self.streams) {
            Ok(Effect::None) => {}
            Ok(Effect::Exit(code)) => *self.exit = Some(code),
            Ok(Effect::Result(value)) => *self.result = Some(value),
            Err(error) => self.error = Some(error),
        }
    }
}

#[cfg(test)]
mod tests;
