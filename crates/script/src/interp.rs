//! The interpreter: what the [`ir`](crate::ir) means.
//!
//! [`run`] walks a body's statements and does each through a [`Host`]: what is known of the hit, the maps, and where messages go. It serves
//! probes that run in the tool itself, probes at which the target is stopped, and whatever native code does not do. Native code is tested
//! against it.
//!
//! Programs have been verified ([`verify`](crate::ir::verify::verify)), so types and places need not be asked again. Nothing here panics
//! all the same: an access that verification would have refused reads zeros and writes nothing.

mod aggregate;
mod bytes;
mod evaluate;
mod host;
pub mod maps;

pub(crate) use aggregate::is_better;
pub use aggregate::{Added, add, merge};
pub use host::{Hit, Host, Maps, Sink};

use crate::ir::*;
use bytes::Frame;

/// How a run of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// Its loops took more rounds than there was fuel for, mostly [`Program::fuel`], or too long ([`Hit::is_out_of_time`]). What was done so
    /// far stays done.
    OutOfFuel,
}

/// Runs a body of a verified program once.
///
/// ```
/// use trapless_script::interp::{Host, Outcome, maps::Tables, run};
/// use trapless_script::ir::*;
/// # use trapless_script::interp::{Hit, Maps, Sink};
/// # struct Nothing;
/// # impl Hit for Nothing {
/// #     fn context(&mut self, _: Context) -> u64 { 0 }
/// #     fn read(&mut self, _: u64, _: &mut [u8]) -> usize { 0 }
/// #     fn stack(&mut self, _: u8, _: StackWalk) -> u64 { 0 }
/// #     fn thread_name(&mut self) -> [u8; 16] { [0; 16] }
/// #     fn signal(&mut self, _: i64) {}
/// # }
/// # impl Sink for Nothing {
/// #     fn emit(&mut self, _: &mut dyn Maps, _: MessageId, _: &[&[u8]]) {}
/// # }
///
/// // @ = count()
/// let program = Program {
///     maps: vec![Map {
///         name: "@".into(),
///         key: 0,
///         value: MapValue::Aggregate(Aggregation::Count),
///         capacity: 1,
///         sharing: MapSharing::Shared,
///     }],
///     bodies: vec![Body {
///         code: vec![Statement::Aggregate {
///             map: MapId(0),
///             key: Place::Scratch(0),
///             value: Expression::Int(0),
///             weight: None,
///         }],
///         ..Body::default()
///     }],
///     ..Program::default()
/// };
/// let mut maps = Tables::new(&program);
/// for _ in 0..3 {
///     let host = Host { hit: &mut Nothing, maps: &mut maps, sink: &mut Nothing };
///     assert_eq!(run(&program, BodyId(0), host), Outcome::Done);
/// }
/// let mut words = [0; 8];
/// assert!(maps.load(MapId(0), &[], &mut words));
/// assert_eq!(u64::from_le_bytes(words), 3);
/// ```
pub fn run(program: &Program, body: BodyId, host: Host<'_>) -> Outcome {
    run_with(program, body, program.fuel, host)
}

/// The same with another number of rounds that all loops of the run may take together.
pub fn run_with(program: &Program, body: BodyId, fuel: u32, host: Host<'_>) -> Outcome {
    let Some(body) = program.bodies.get(body.0 as usize) else {
        return Outcome::Done;
    };
    let frame = Frame::new(body);
    let mut run = Run { program, body, frame, host, fuel };
    match run.statements(&body.code) {
        Flow::OutOfFuel => Outcome::OutOfFuel,
        _ => Outcome::Done,
    }
}

/// Where it goes on after a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
    Return,
    OutOfFuel,
}

/// One run of a body.
struct Run<'a, 'h> {
    program: &'a Program,
    body: &'a Body,
    frame: Frame,
    host: Host<'h>,
    /// How many rounds of loops are left.
    fuel: u32,
}

impl Run<'_, '_> {
    /// Recursion is as deep as statements are nested, which verification bounds.
    fn statements(&mut self, code: &[Statement]) -> Flow {
        for statement in code {
            let flow = self.statement(statement);
            if flow != Flow::Next {
                return flow;
            }
        }
        Flow::Next
    }

    fn statement(&mut self, statement: &Statement) -> Flow {
        match statement {
            Statement::Set(local, value) => {
                let value = self.value(value);
                self.frame.set(*local, value);
            }
            Statement::If(condition, then, other) => {
                let code = if self.value(condition) != 0 { then } else { other };
                return self.statements(code);
            }
            Statement::Loop(code) => {
                while self.take_fuel() {
                    match self.statements(code) {
                        Flow::Next | Flow::Continue => {}
                        Flow::Break => return Flow::Next,
                        flow => return flow,
                    }
                }
                return Flow::OutOfFuel;
            }
            Statement::ForEach { map, key, value, body } => return self.for_each(*map, key, value, body),
            Statement::Break => return Flow::Break,
            Statement::Continue => return Flow::Continue,
            Statement::Return => return Flow::Return,
            Statement::Stack { into, frames, by } => {
                let number = self.host.hit.stack(*frames, *by);
                self.frame.set(*into, number);
            }
            Statement::ThreadName { to } => {
                let name = self.host.hit.thread_name();
                self.write(to, &name);
            }
            Statement::ProcessName { of, to } => {
                let name = self.host.hit.process_name(*of);
                self.write(to, &name);
            }
            Statement::Emit { message, parts } => self.emit(*message, parts),
            Statement::Signal(signal) => {
                let signal = self.value(signal);
                self.host.hit.signal(signal as i64);
            }
            Statement::Delay(time) => {
                let time = self.value(time);
                if time as i64 > 0 {
                    self.host.hit.delay(time.min(MOST_DELAY));
                }
            }
            Statement::Change(what, value) => {
                let value = self.value(value);
                self.host.hit.change(*what, value);
            }
            Statement::Store { .. }
            | Statement::Copy { .. }
            | Statement::Zero { .. }
            | Statement::Read { .. }
            | Statement::ReadBytes { .. }
            | Statement::ReadString { .. }
            | Statement::Operand { .. }
            | Statement::StringLength { .. }
            | Statement::Compare { .. }
            | Statement::Find { .. } => self.on_bytes(statement),
            Statement::MapGet { .. }
            | Statement::MapSet { .. }
            | Statement::MapAdd { .. }
            | Statement::MapDelete { .. }
            | Statement::MapHas { .. }
            | Statement::MapLength { .. }
            | Statement::MapClear(_)
            | Statement::MapZero(_)
            | Statement::Aggregate { .. }
            | Statement::AggregateGet { .. } => self.on_map(statement),
        }
        Flow::Next
    }

    /// Whether one more round of a loop may be done.
    fn take_fuel(&mut self) -> bool {
        match self.fuel.checked_sub(1) {
            Some(left) if !self.host.hit.is_out_of_time() => {
                self.fuel = left;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The keys are those of the beginning; of those that are gone when it is their turn, nothing is done.
    fn for_each(&mut self, map: MapId, key: &Place, value: &Place, body: &[Statement]) -> Flow {
        let Some(size) = self.program.maps.get(map.0 as usize).map(|map| map.value.size()) else {
            return Flow::Next;
        };
        let mut bytes = vec![0; size as usize];
        for found in self.host.maps.keys(map) {
            if !self.host.maps.load(map, &found, &mut bytes) {
                continue;
            }
            if !self.take_fuel() {
                return Flow::OutOfFuel;
            }
            self.write(key, &found);
            self.write(value, &bytes);
            match self.statements(body) {
                Flow::Next | Flow::Continue => {}
                Flow::Break => break,
                flow => return flow,
            }
        }
        Flow::Next
    }

    fn emit(&mut self, message: MessageId, parts: &[Part]) {
        let parts: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| match part {
                Part::Word(value) => self.value(value).to_le_bytes().to_vec(),
                Part::Bytes(from, size) => self.bytes(from, *size).to_vec(),
                Part::Text { from, size, length } => {
                    let length = self.value(length).min(u64::from(*size)) as usize;
                    self.bytes(from, *size).get(..length).unwrap_or_default().to_vec()
                }
            })
            .collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        self.host.sink.emit(&mut *self.host.maps, message, &parts);
    }

    fn on_map(&mut self, statement: &Statement) {
        match statement {
            Statement::MapGet { map, key, to, found } | Statement::AggregateGet { map, key, to, found } => {
                let key = self.key(*map, key);
                let size = self.program.maps.get(map.0 as usize).map_or(0, |map| map.value.size());
                let mut value = vec![0; size as usize];
                let is_there = self.host.maps.load(*map, &key, &mut value);
                if !is_there {
                    value.fill(0);
                }
                self.write(to, &value);
                self.tell(*found, is_there);
            }
            Statement::MapSet { map, key, value, ok } => {
                let key = self.key(*map, key);
                let size = self.program.maps.get(map.0 as usize).map_or(0, |map| map.value.size());
                let value = self.bytes(value, size).to_vec();
                let written = self.host.maps.set(*map, &key, &value);
                self.tell(*ok, written);
            }
            Statement::MapAdd { map, key, amount, before } => {
                let amount = self.value(amount);
                let key = self.key(*map, key);
                let was = self.host.maps.add(*map, &key, amount).unwrap_or(0);
                if let Some(before) = before {
                    self.frame.set(*before, was);
                }
            }
            Statement::MapDelete { map, key, found } => {
                let key = self.key(*map, key);
                let was_there = self.host.maps.delete(*map, &key);
                self.tell(*found, was_there);
            }
            Statement::MapHas { map, key, found } => {
                let key = self.key(*map, key);
                let is_there = self.host.maps.has(*map, &key);
                self.tell(Some(*found), is_there);
            }
            Statement::MapLength { map, into } => {
                let length = self.host.maps.length(*map);
                self.frame.set(*into, length);
            }
            Statement::MapClear(map) => self.host.maps.clear(*map),
            Statement::MapZero(map) => self.host.maps.zero(*map),
            Statement::Aggregate { map, key, value, weight } => {
                let value = self.value(value);
                let weight = weight.as_ref().map_or(1, |weight| self.value(weight));
                let key = self.key(*map, key);
                let time = match self.program.maps.get(map.0 as usize).map(|map| map.value) {
                    Some(MapValue::Aggregate(Aggregation::TimeSeries { .. })) => {
                        self.host.hit.context(Context::Time(ClockKind::Tai))
                    }
                    _ => 0,
                };
                self.host.maps.aggregate(*map, &key, Added { value, weight, time });
            }
            _ => {}
        }
    }

    fn key(&mut self, map: MapId, key: &Place) -> Vec<u8> {
        let size = self.program.maps.get(map.0 as usize).map_or(0, |map| map.key);
        self.bytes(key, size).to_vec()
    }

    fn tell(&mut self, local: Option<LocalId>, yes: bool) {
        if let Some(local) = local {
            self.frame.set(local, yes.into());
        }
    }
}

#[cfg(test)]
mod tests;
