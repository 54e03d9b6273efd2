//! Bodies at probes that trap: the thread that was hit stands, and the interpreter runs them in the process that serves its trap.
//!
//! What they work on is what native code works on, so that both may be in one process: the shared part of the script's memory, in which
//! plain maps lie, and a part of a thread's block that whoever serves has for himself ([`Server`]). He adds to the aggregations there for all
//! threads that he serves, which comes out as if each had done so itself, since nobody in the process does anything else with them. His
//! messages are in a ring of his own, and have the time of the trap. So those of one thread come out in its order: it stands until they
//! are written.
//!
//! A thread stands as long as its body runs, and so do all others that are hit meanwhile. So loops take no more than [`FUEL`] rounds, and end
//! where a round takes long ([`Thread::stands_too_long`]).
//!
//! What the thread itself would have to do, or what is not known of it from outside, is refused ahead ([`check`]).

mod hit;
mod maps;

pub use hit::{At, Thread};

use crate::interp::{Host, Maps, Outcome, Sink, run_with};
use crate::ir::*;
use crate::native::Moment;
use hit::Standing;
use maps::Own;
use trapless_isa::Machine;
use trapless_wire::{Atomics, Message, MessagePart, MessageRing, ScriptLayout, THREAD_OUT_OF_FUEL, WordsMut};

/// How many rounds all loops of one run may take together at a trap: as long as it takes to interpret them, which is some milliseconds, the
/// thread stands.
pub const FUEL: u32 = 1 << 14;

/// What a body does that cannot be done for a thread that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untraced {
    /// It walks the call stack.
    Stack,
    /// It sends a signal.
    Signal,
    /// It has the thread sleep.
    Delay,
    /// It changes what a call does.
    Change,
    /// It asks for the name of a process.
    ProcessName,
    /// It goes through all of a map that may have more keys than [`FUEL`].
    LargeMap,
    /// It asks for a floating-point value of a 32-bit program.
    Float,
    /// It asks for an argument of a USDT probe of a 32-bit program.
    Operand,
    /// It asks for an argument inside of a function of a 32-bit program, where it is not known how far from the stack pointer that is.
    Argument,
    /// It asks for a register that the program does not have.
    Register,
    /// It asks for what is known at the entry of a function, or at its return, and runs elsewhere.
    Elsewhere,
    /// There is no such body.
    Missing,
}

impl Untraced {
    /// The reason; it completes "there is no probe that traps, as …".
    pub const fn text(self) -> &'static str {
        match self {
            Untraced::Stack => "it walks the call stack, which only code in the program does",
            Untraced::ProcessName => "it asks for the name of a process, which only code in the program does",
            Untraced::Signal => "it sends a signal, which only the thread itself does",
            Untraced::Delay => "it has the thread sleep, which only code in the program does",
            Untraced::Change => "it changes what a call does, which only code in the program does",
            Untraced::LargeMap => {
                "it goes through a map of more than 16,384 keys, for which the thread would stand"
            }
            Untraced::Float => "it asks for a floating-point value, which is not read from a 32-bit program",
            Untraced::Operand => {
                "it asks for an argument of a USDT probe, which is not read from a 32-bit program"
            }
            Untraced::Argument => {
                "it asks for an argument inside of a function, where the stack of a 32-bit program is not known"
            }
            Untraced::Register => "it asks for a register that the program does not have",
            Untraced::Elsewhere => "it asks for a value that is not known at this place",
            Untraced::Missing => "there is no such body",
        }
    }
}

/// Whether a body of a [verified](crate::ir::verify::verify) program can run for a thread of this machine that stands.
///
/// # Errors
/// What of it cannot be done.
pub fn check(program: &Program, body: BodyId, moment: Moment, machine: Machine) -> Result<(), Untraced> {
    let body = program.bodies.get(body.0 as usize).ok_or(Untraced::Missing)?;
    let mut refused = None;
    let is_narrow = machine == Machine::I386;
    each_statement(&body.code, &mut |statement| match statement {
        Statement::Stack { .. } => refused = Some(Untraced::Stack),
        Statement::Signal(_) => refused = Some(Untraced::Signal),
        Statement::Delay(_) => refused = Some(Untraced::Delay),
        Statement::Change(..) => refused = Some(Untraced::Change),
        Statement::ProcessName { .. } => refused = Some(Untraced::ProcessName),
        Statement::ForEach { map, .. } | Statement::MapClear(map) | Statement::MapZero(map) => {
            let keys = program.maps.get(map.0 as usize).map_or(0, |map| map.capacity);
            if keys > FUEL {
                refused = Some(Untraced::LargeMap);
            }
        }
        Statement::Operand { .. } if is_narrow => refused = Some(Untraced::Operand),
        _ => {}
    });
    each_context(&body.code, &mut |what| match what {
        Context::Result | Context::SecondResult | Context::FloatResult | Context::Duration
            if moment != Moment::Return =>
        {
            refused = Some(Untraced::Elsewhere)
        }
        Context::ReturnAddress | Context::Frame | Context::Call if moment == Moment::Inside => {
            refused = Some(Untraced::Elsewhere)
        }
        Context::Argument(_) if moment == Moment::Return => refused = Some(Untraced::Elsewhere),
        Context::FloatRegister(_) | Context::FloatResult if is_narrow => refused = Some(Untraced::Float),
        Context::Argument(_) if is_narrow && moment != Moment::Entry => refused = Some(Untraced::Argument),
        Context::Register(number) if is_narrow && number > 7 => refused = Some(Untraced::Register),
        _ => {}
    });
    refused.map_or(Ok(()), Err)
}

/// Who runs bodies for threads that stand, with the memory in which he does so.
#[derive(Debug)]
pub struct Server<'a, W: ?Sized> {
    /// The script.
    pub program: &'a Program,
    /// How its memory is laid out.
    pub layout: &'a ScriptLayout,
    /// The region that it lies in.
    pub words: &'a W,
    /// Offset of the shared part in the region.
    pub shared: u64,
    /// Offset of the thread's part that nobody else writes to.
    pub own: u64,
}

impl<W: ?Sized> Clone for Server<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: ?Sized> Copy for Server<'_, W> {}

impl<W: Atomics + ?Sized> Server<'_, W> {
    /// Runs a body once, for a thread that stands at a hit. A run that takes too many rounds is ended, and counted with those of native code.
    pub fn run(&self, body: BodyId, at: &At, thread: &mut dyn Thread) {
        let host = Host {
            hit: &mut Standing { server: *self, at, thread },
            maps: &mut Own(*self),
            sink: &mut Ring { server: *self, at },
        };
        if run_with(self.program, body, self.program.fuel.min(FUEL), host) == Outcome::OutOfFuel {
            self.words.fetch_add(self.own + u64::from(THREAD_OUT_OF_FUEL), 1);
        }
    }

    fn shared_word(&self, offset: u32) -> u64 {
        self.words.word(self.shared + u64::from(offset))
    }
}

/// Where messages go.
struct Ring<'a, W: ?Sized> {
    server: Server<'a, W>,
    at: &'a At,
}

impl<W: WordsMut + ?Sized> Sink for Ring<'_, W> {
    fn emit(&mut self, _maps: &mut dyn Maps, message: MessageId, parts: &[&[u8]]) {
        let Server { program, layout, words, own, .. } = self.server;
        let Some(kinds) = program.messages.get(message.0 as usize) else { return };
        let mut told = Vec::new();
        for (kind, bytes) in kinds.iter().zip(parts) {
            let part = match kind {
                PartKind::Word => MessagePart::Word,
                PartKind::Bytes(size) => MessagePart::Bytes(*size),
                PartKind::Text(size) => MessagePart::Text(*size),
            };
            part.append(bytes, &mut told);
        }
        let At { time, tid, site, .. } = *self.at;
        let message = Message { ticks: time, number: message.0, tid, site, words: told };
        MessageRing { at: own, bits: layout.ring_bits }.write(words, &message);
    }
}
