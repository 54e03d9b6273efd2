//! What becomes of each stop of a thread.
//!
//! A breakpoint at a site is counted and its instruction run; one at a landing pad is a return; any other is the program's own,
//! as every signal is. One behind a slot ends a step as well as the step itself. Two things must not show:
//!
//! - **A fault in a slot** is moved to the original instruction before the program's handler sees it. If the handler
//!   returns, the instruction is met again; that is the same hit, and is not counted twice.
//! - **A signal during a step** waits until the step is done, so that no handler sees a slot and a step is never
//!   taken for one of the handler's.
//!
//! What becomes of processes that it makes is told in [`children`].

mod children;

pub(super) use children::clean_copy;

use super::bodies::{Interpreter, Moment, TrapHit};
use super::{TrapSite, load::Loading, numbers::*, returns::Returns, step::*};
use crate::thread::Thread;
use crate::{
    EngineError, FoundSession,
    patch::{self, Change},
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use trapless_isa::detour::{BLOCK_UNRUN, BLOCK_UNWOUND};
use trapless_isa::{EntryStep, Mechanism, ReturnStep};
use trapless_process::{
    Pid, Process, Registers, RemoteAddr, StopError, TRAP_FLAG, Tid, ticks,
    trace::{Held, TraceEvent, Tracer},
};
use trapless_wire::WriteKind;

/// Whether the target is still there to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It is, and something was served.
    On,
    /// It is, and nothing happened for as long as one was to wait.
    Quiet,
    /// It has ended, or runs another program.
    Gone,
}

/// How many signals are kept back during one step. If more come, somebody sends them faster than the thread can be stepped.
const SIGNALS_IN_A_STEP: usize = 16;

/// A fault, or a signal that did not let a step come about, which the program's handler has been given.
struct Fault {
    site: usize,
    sp: u64,
    /// Whether the handler has returned, so that the instruction is met again in the same hit.
    returned: bool,
}

/// Serves the traps of one process.
pub(super) struct Server<'a, 'p> {
    pub process: &'p Process,
    pub tracer: Tracer<'p>,
    pub returns: Returns,
    sites: &'a [TrapSite],
    session: &'a FoundSession,
    by_address: HashMap<u64, usize>,
    slots: BTreeMap<u64, usize>,
    /// For each site, [`TrapSite::only_counts`].
    quick: Vec<Option<(u64, Vec<u32>)>>,
    numbers: Numbers<'a>,
    /// What is loaded by a thread that hits, if anything is.
    pub loading: Option<Loading<'a>>,
    /// What runs bodies of a script, if there are any.
    interpreter: Option<&'a dyn Interpreter>,
    /// The numbers that threads have in their own process, where it numbers its threads itself.
    tids: Option<HashMap<Tid, u32>>,
    steps: HashMap<Tid, Step>,
    /// Threads whose hit ended in a fault.
    faulted: HashMap<Tid, Fault>,
    /// Processes that were told of before they ran.
    told: HashSet<Pid>,
    /// Children that no tracer is told of (`CLONE_UNTRACED`), and that a breakpoint in their copy of the code has ended.
    pub untold: usize,
    /// Breakpoints that were met but are taken out by now are no hits.
    armed: bool,
}

type Outcome = Result<Served, StopError>;

impl<'a, 'p> Server<'a, 'p> {
    pub fn new(
        mut tracer: Tracer<'p>,
        sites: &'a [TrapSite],
        session: &'a FoundSession,
        numbers: Numbers<'a>,
        interpreter: Option<&'a dyn Interpreter>,
    ) -> Self {
        let process = tracer.process();
        let index = |key: fn(&TrapSite) -> u64| sites.iter().map(key).zip(0..);
        let unmistakable = sites.iter().filter(|site| site.is_unmistakable()).map(|site| site.address);
        // Nothing ever runs behind a pad.
        tracer.know_breakpoints(unmistakable.chain(sites.iter().map(|site| site.pad)).map(RemoteAddr));
        let word = sites.first().map_or(8, TrapSite::word);
        Self {
            process,
            tracer,
            returns: Returns::new(index(|site| site.pad).collect(), word),
            sites,
            session,
            by_address: index(|site| site.address).collect(),
            slots: index(|site| site.slot_address).collect(),
            quick: sites.iter().map(TrapSite::only_counts).collect(),
            numbers,
            loading: None,
            interpreter,
            tids: process.status().is_ok_and(|status| status.ns_pid.len() > 1).then(HashMap::new),
            steps: HashMap::new(),
            faulted: HashMap::new(),
            told: HashSet::new(),
            untold: 0,
            armed: true,
        }
    }

    /// Serves the next stop, if one comes soon.
    pub fn next(&mut self) -> Outcome {
        let Some(event) = self.tracer.next_event()? else { return Ok(Served::Quiet) };
        let served = match event {
            TraceEvent::Breakpoint { tid, address } => self.breakpoint(tid, address.0),
            TraceEvent::Stepped { tid } => self.stepped(tid),
            TraceEvent::Signal { tid, signal } => self.signal(tid, signal),
            TraceEvent::NewThread { tid } => self.tracer.cont(tid, 0),
            TraceEvent::Forked { tid, child, vfork } => self.forked(tid, child, vfork),
            TraceEvent::HandlerReturns { tid } => {
                if let Some(fault) = self.faulted.get_mut(&tid) {
                    fault.returned = true;
                }
                self.tracer.cont(tid, 0)
            }
            TraceEvent::ThreadGone { tid } => {
                self.steps.remove(&tid);
                self.faulted.remove(&tid);
                if let Some(tids) = &mut self.tids {
                    tids.remove(&tid);
                }
                Ok(())
            }
            TraceEvent::Execed { .. } | TraceEvent::ProcessGone => return Ok(Served::Gone),
            _ => Ok(()),
        };
        match served {
            Ok(()) | Err(StopError::ThreadGone(_)) => Ok(Served::On),
            Err(StopError::Gone(_)) => Ok(Served::Gone),
            Err(error) => Err(error),
        }
    }

    /// Takes the breakpoints out while the threads run. No thread sees half of a change, and threads that have met one go on at the original
    /// instruction.
    pub fn disarm(&mut self) -> Result<(), EngineError> {
        self.armed = false;
        restore_code(self.process, self.session)
    }

    /// Whether a thread is between the two traps of a step, or a child runs in the target's memory.
    pub fn is_busy(&self) -> bool {
        !self.steps.is_empty() || self.tracer.has_adopted()
    }

    /// Ends the steps under way where they are, before all threads are stopped: the signals that waited for them are sent again.
    pub fn give_up_steps(&mut self) -> Vec<Unfinished> {
        let give_up = |(tid, step): (Tid, Step)| {
            step.held.iter().for_each(|held| self.tracer.send(tid, held));
            let site = &self.sites[step.site];
            let flags = site.saves_step() && step.flags & TRAP_FLAG == 0;
            Unfinished { tid, end: site.end_of_copy(), flags }
        };
        self.steps.drain().map(give_up).collect()
    }

    fn breakpoint(&mut self, tid: Tid, address: u64) -> Result<(), StopError> {
        if let Some(&index) = self.by_address.get(&address) {
            self.tracer.block_again(tid);
            self.hit(tid, index)
        } else if self.returns.site_of_pad(address).is_some() {
            self.tracer.block_again(tid);
            self.landed(tid)
        } else if self.ends_step(tid, address) {
            self.stepped(tid)
        } else {
            self.tracer.cont(tid, libc::SIGTRAP)
        }
    }

    /// Whether a breakpoint is the one behind the copy that a thread is stepped over. A processor that forgets to tell of a step comes to it: qemu's
    /// does behind `or 31,31,31` on powerpc64le.
    fn ends_step(&self, tid: Tid, address: u64) -> bool {
        self.steps.get(&tid).is_some_and(|step| {
            let site = &self.sites[step.site];
            address == site.end_of_copy() && site.slot.ends_in_break(site.isa().facts())
        })
    }

    fn hit(&mut self, tid: Tid, index: usize) -> Result<(), StopError> {
        let site = &self.sites[index];
        if !self.armed {
            return self.go_on_at(tid, site.address);
        }
        if let Some((next, counters)) = &self.quick[index]
            && self.faulted.is_empty()
        {
            let next = *next;
            counters.iter().for_each(|&counter| self.numbers.count(counter));
            let is_there = next == site.address + u64::from(site.isa().facts().advance);
            return if is_there { self.tracer.cont(tid, 0) } else { self.go_on_at(tid, next) };
        }
        let time = ticks();
        let registers = self.tracer.registers(tid)?;
        if let Some(loader) = site.loader
            && let Some(loading) = &self.loading
            && loading.sends(&self.tracer, tid, &registers)
        {
            return self.go_on_at(tid, loader);
        }
        if !self.is_met_again(tid, index, registers.sp_value()) {
            self.entered(tid, index, &registers, time);
        }
        match site.mechanism {
            Mechanism::Emulate => {
                let mut thread = Thread::new(self.process, registers);
                let emulated = site.isa().emulate(&site.original, site.address, &mut thread);
                match emulated.ok().and_then(|()| thread.finish()) {
                    Some(()) => {
                        self.tracer.set_registers(tid, &thread.registers)?;
                        self.tracer.cont(tid, 0)
                    }
                    // It will fault, or memory has to be brought in: that is the processor's business.
                    None => self.step(tid, index, registers),
                }
            }
            Mechanism::Boost => self.go_on_at(tid, site.slot_address),
            Mechanism::Step | Mechanism::Jump | Mechanism::Short => self.step(tid, index, registers),
        }
    }

    /// Whether a hit is the one whose fault a handler has repaired. One that has left the fault by a jump has not.
    fn is_met_again(&mut self, tid: Tid, site: usize, sp: u64) -> bool {
        match self.faulted.get(&tid) {
            Some(fault) if (fault.site, fault.sp) == (site, sp) => {
                let returned = fault.returned;
                self.faulted.remove(&tid);
                self.tracer.leave_handler(tid);
                returned
            }
            // A hit long after the handler. One below may be in the handler of another signal.
            Some(fault) if fault.returned && sp >= fault.sp => {
                self.faulted.remove(&tid);
                false
            }
            _ => false,
        }
    }

    /// Lets the thread run from `address`.
    fn go_on_at(&mut self, tid: Tid, address: u64) -> Result<(), StopError> {
        self.tracer.set_ip(tid, RemoteAddr(address))?;
        self.tracer.cont(tid, 0)
    }

    fn step(&mut self, tid: Tid, index: usize, registers: Registers) -> Result<(), StopError> {
        self.tracer.set_ip(tid, RemoteAddr(self.sites[index].slot_address))?;
        self.steps.insert(tid, Step { site: index, flags: registers.flags(), held: Vec::new() });
        self.tracer.step(tid, 0)
    }

    /// What the probe is there for.
    fn entered(&mut self, tid: Tid, index: usize, registers: &Registers, time: u64) {
        let site = &self.sites[index];
        let sp = registers.sp_value();
        if site.unwinds {
            let unwound = self.returns.abandon(self.process, tid, sp);
            self.numbers.add(BLOCK_UNWOUND, unwound);
        }
        for step in site.payload.entry {
            match step {
                EntryStep::Count(counter) => self.numbers.count(counter),
                EntryStep::Record { id, arguments: count } => {
                    let place = site.isa().facts().arguments;
                    let values = arguments(self.process, registers, place, count);
                    self.numbers.record(id, &Event { time, tid: tid.0 as u32, slot: sp, values });
                }
                EntryStep::Fetch { id } => {
                    let values = operands(self.process, registers, &site.operands);
                    self.numbers.record(id, &Event { time, tid: tid.0 as u32, slot: sp, values });
                }
                EntryStep::Run(_) => {
                    let told = self.told(tid);
                    let at = (site.address, site.bodies.site);
                    for (body, operands) in &site.bodies.entry {
                        let moment = Moment::Entry(&self.returns);
                        let hit = TrapHit::new(&self.tracer, (tid, told), registers, moment, at, time);
                        self.run(tid, *body, &hit.with_operands(operands));
                    }
                }
            }
        }
        if let Some(followed) = &site.payload.followed
            && self.returns.enter(self.process, sp, site.pad, index, (tid, time)).is_none()
        {
            self.numbers.count(followed.lost);
        }
    }

    /// Runs a body of a script for a thread that stands, or counts that it was not.
    fn run(&self, tid: Tid, body: u16, hit: &TrapHit<'_>) {
        // As in native code, which children that share the memory do not run either.
        if self.tracer.is_adopted(tid) {
            return self.numbers.unrun_in_child();
        }
        let ran = match (self.interpreter, self.numbers.memory()) {
            // It is not ours, and if it failed the target would be left with breakpoints that nobody serves.
            (Some(interpreter), Some(memory)) => {
                catch_unwind(AssertUnwindSafe(|| interpreter.run(body, &memory, hit))).is_ok()
            }
            _ => false,
        };
        if !ran {
            self.numbers.count(BLOCK_UNRUN);
        }
    }

    /// The number that a thread has in its own process.
    fn told(&mut self, tid: Tid) -> u32 {
        let Some(tids) = &mut self.tids else { return tid.0 as u32 };
        *tids.entry(tid).or_insert_with(|| {
            let status = self.process.thread_status(tid);
            status.ok().and_then(|status| status.ns_pid.last().copied()).unwrap_or(tid.0) as u32
        })
    }

    /// A followed call has returned.
    fn landed(&mut self, tid: Tid) -> Result<(), StopError> {
        let time = ticks();
        let registers = self.tracer.registers(tid)?;
        match self.home(tid, &registers, time) {
            Some(home) => {
                // The return has popped it, so it is nobody's; but a later frame may leave it as it is, and then it would lead to us for good.
                let slot = registers.sp_value().wrapping_sub(self.returns.word());
                let _ = self.returns.write(self.process, slot, home);
                self.go_on_at(tid, home)
            }
            // Nobody but a program that copies its own stacks gets here.
            None => self.tracer.cont(tid, libc::SIGTRAP),
        }
    }

    /// Ends the calls that return through the slot just popped, and tells where they return to.
    fn home(&mut self, tid: Tid, registers: &Registers, time: u64) -> Option<u64> {
        let slot = registers.sp_value().wrapping_sub(self.returns.word());
        loop {
            let call = self.returns.leave(slot)?;
            let followed = self.sites[call.site].payload.followed;
            for step in followed.iter().flat_map(|followed| followed.steps) {
                match step {
                    ReturnStep::Count(counter) => self.numbers.count(counter),
                    ReturnStep::Record { id } => {
                        let mut values = Values::default();
                        [values[0], values[1]] = [registers.result(), call.entered];
                        self.numbers.record(id, &Event { time, tid: tid.0 as u32, slot, values });
                    }
                    ReturnStep::Time(histogram) => {
                        self.numbers.latency(histogram, time.saturating_sub(call.entered));
                    }
                    ReturnStep::Run(_) => {
                        let site = &self.sites[call.site];
                        let home = match self.returns.site_of_pad(call.address) {
                            // Of calls that went on in each other, the first one knows.
                            Some(_) => self.returns.first_home(slot).unwrap_or(call.address),
                            None => call.address,
                        };
                        let (told, at) = (self.told(tid), (site.address, site.bodies.site));
                        let moment = Moment::Return { entered: call.entered, home };
                        for body in &site.bodies.at_return {
                            let hit = TrapHit::new(&self.tracer, (tid, told), registers, moment, at, time);
                            self.run(tid, *body, &hit);
                        }
                    }
                }
            }
            if self.returns.site_of_pad(call.address).is_none() {
                return Some(call.address);
            }
        }
    }

    fn stepped(&mut self, tid: Tid) -> Result<(), StopError> {
        let Some(step) = self.steps.get(&tid) else {
            // The program steps itself.
            return self.tracer.cont(tid, libc::SIGTRAP);
        };
        self.tracer.block_again(tid);
        let site = &self.sites[step.site];
        let registers = self.tracer.registers(tid)?;
        let offset = registers.ip_value().wrapping_sub(site.slot_address);
        let end = u64::from(site.slot.copy);
        if offset < end {
            // A repeated string instruction, or a copy of several instructions.
            return self.tracer.step(tid, 0);
        }
        if offset == end {
            self.tracer.set_ip(tid, RemoteAddr(site.displaced.end()))?;
            if site.saves_step() && step.flags & TRAP_FLAG == 0 {
                self.process.clear_pushed_trap_flag(&registers);
            }
        }
        let Some(step) = self.steps.remove(&tid) else { return Ok(()) };
        match step.held.split_first() {
            None => self.tracer.cont(tid, 0),
            Some((first, others)) => {
                others.iter().for_each(|held| self.tracer.send(tid, held));
                self.tracer.cont_with(tid, first)
            }
        }
    }

    fn signal(&mut self, tid: Tid, signal: i32) -> Result<(), StopError> {
        if signal == libc::SIGCHLD
            && let Some((child, by)) = self.tracer.signal_of(tid).and_then(|held| held.killed_child())
            && !self.told.remove(&child)
            && by == libc::SIGTRAP
        {
            self.untold += 1;
        }
        let mut registers = self.tracer.registers(tid)?;
        let ip = registers.ip_value();
        let sp = registers.sp_value();
        let is_ahead =
            |fault: &Fault| fault.returned && (ip, sp) == (self.sites[fault.site].address, fault.sp);
        if self.faulted.get(&tid).is_some_and(is_ahead) && self.is_caught(signal) {
            // One more, before the instruction is met again.
            self.faulted.entry(tid).and_modify(|fault| fault.returned = false);
            self.tracer.follow_handler(tid);
        }
        let Some(index) = self.slot_at(ip) else { return self.tracer.cont(tid, signal) };
        let Some(mut held) = self.tracer.signal_of(tid) else { return self.tracer.cont(tid, signal) };
        let site = &self.sites[index];
        // A step that does not come about is begun anew after the handler, if there is one. Signals that are queued come in order: none of
        // them is given ahead of others.
        let is_outpaced = self.steps.get(&tid).is_some_and(|step| {
            step.held.len() >= SIGNALS_IN_A_STEP && !step.held.iter().chain([&held]).any(Held::is_queued)
        }) && ip == site.slot_address
            && !self.faulted.contains_key(&tid)
            && self.is_caught(signal);
        if !held.is_fault() && !is_outpaced {
            let stops = self.stops(signal);
            return match self.steps.get_mut(&tid) {
                // Kept back, it would come after the SIGCONT that is to end it. Nothing of the program's runs for it in the slot.
                Some(_) if stops => self.tracer.step(tid, signal),
                Some(step) => {
                    step.held.push(held);
                    self.tracer.step(tid, 0)
                }
                None => self.tracer.cont(tid, signal),
            };
        }
        if held.is_fault() {
            held.move_instruction(registers.ip(), RemoteAddr(site.address));
        }
        registers.set_ip(RemoteAddr(site.address));
        self.tracer.set_registers(tid, &registers)?;
        self.faulted.insert(tid, Fault { site: index, sp: registers.sp_value(), returned: false });
        self.tracer.follow_handler(tid);
        if let Some(step) = self.steps.remove(&tid) {
            step.held.iter().for_each(|held| self.tracer.send(tid, held));
        }
        self.tracer.cont_with(tid, &held)
    }

    /// Whether a signal stops the process and does nothing else.
    fn stops(&self, signal: i32) -> bool {
        match signal {
            libc::SIGSTOP => true,
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => !self.is_caught(signal),
            _ => false,
        }
    }

    /// Whether the program handles a signal.
    fn is_caught(&self, signal: i32) -> bool {
        self.process.status().is_ok_and(|status| status.sig_caught & 1 << (signal - 1) != 0)
    }

    /// The site in whose copy a thread at `ip` stands.
    fn slot_at(&self, ip: u64) -> Option<usize> {
        let (&start, &index) = self.slots.range(..=ip).next_back()?;
        (ip - start < u64::from(self.sites[index].slot.copy)).then_some(index)
    }
}

/// Puts back the original instruction of every site that traps, in the target or in a copy of it.
pub(super) fn restore_code(process: &Process, session: &FoundSession) -> Result<(), EngineError> {
    patch::as_tracer_if_need_be(process, || {
        let writes = session.journal.planned().flat_map(|site| site.writes());
        let mut breakpoints = writes.filter(|write| write.kind == WriteKind::Breakpoint);
        breakpoints.try_for_each(|write| {
            let change = Change { address: write.address, from: write.patched, to: write.original };
            patch::apply_breakpoint(process, &change)
        })
    })
}
