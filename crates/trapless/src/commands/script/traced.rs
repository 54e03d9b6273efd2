//! Bodies at probes that trap: what the engine's keeper asks for, and what the language's interpreter asks of a thread that stands.

use std::fmt;
use trapless_engine::{Interpreter, TrapHit, TrapMemory};
use trapless_isa::Machine;
use trapless_isa::passed::{Number, Wanted};
use trapless_running::names::clock_ns;
use trapless_running::own::node_of;
use trapless_script::ir::{BodyId, Program, Scalar};
use trapless_script::native::Moment;
use trapless_script::traced::{self, At, Server, Thread};
use trapless_wire::ScriptLayout;

/// So long the loops of one run may be worked on, in nanoseconds of the keeper's own time. It is far more than their rounds take, where they do
/// not read much memory.
const STANDING: i64 = 100_000_000;

/// A script as the keeper interprets it.
pub(super) struct Traced {
    program: Program,
    layout: ScriptLayout,
    /// By their numbers: which body of the program each is, where it runs, and the operands of USDT probes that it asks for.
    bodies: Vec<(BodyId, Moment, Vec<Wanted>)>,
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traced").field("bodies", &self.bodies).finish_non_exhaustive()
    }
}

impl Traced {
    /// These bodies of a program whose memory is laid out so.
    pub fn new(program: &Program, layout: &ScriptLayout, bodies: Vec<(BodyId, Moment, Vec<Wanted>)>) -> Self {
        Self { program: program.clone(), layout: layout.clone(), bodies }
    }
}

impl Interpreter for Traced {
    fn refuses(&self, body: u16, machine: Machine) -> Option<&'static str> {
        let refused = match self.bodies.get(usize::from(body)) {
            Some((body, moment, _)) => traced::check(&self.program, *body, *moment, machine).err(),
            None => Some(traced::Untraced::Missing),
        };
        refused.map(traced::Untraced::text)
    }

    fn run(&self, body: u16, memory: &TrapMemory<'_>, hit: &TrapHit<'_>) {
        let Some((body, _, operands)) = self.bodies.get(usize::from(body)) else { return };
        let TrapMemory { region, shared, own } = *memory;
        let at = At {
            site: hit.site,
            tid: hit.tid,
            time: hit.time,
            entered: hit.entered(),
            instruction: hit.instruction,
            frame: hit.frame(),
            thread_pointer: hit.thread_pointer(),
        };
        let server = Server { program: &self.program, layout: &self.layout, words: region, shared, own };
        server.run(*body, &at, &mut Standing { hit, operands, until: worked() + STANDING });
    }
}

/// A thread that stands.
struct Standing<'a> {
    hit: &'a TrapHit<'a>,
    operands: &'a [Wanted],
    /// When loops end, by [`worked`].
    until: i64,
}

/// How long this process has worked, in nanoseconds. What others do meanwhile takes nothing off it.
fn worked() -> i64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

impl Thread for Standing<'_> {
    fn register(&mut self, number: u8) -> u64 {
        self.hit.register(number)
    }

    fn argument(&mut self, number: u8) -> u64 {
        self.hit.argument(number)
    }

    fn result(&mut self, word: u8) -> u64 {
        self.hit.result(word)
    }

    fn return_address(&mut self) -> u64 {
        self.hit.return_address()
    }

    fn vector(&mut self, number: u8) -> u64 {
        self.hit.float(number)
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        self.hit.read(address, into)
    }

    fn operand(&mut self, argument: u8, scalar: Scalar) -> Option<u64> {
        let number = if scalar == Scalar::Float { Number::Float } else { Number::Integer };
        let index = self.operands.iter().position(|wanted| *wanted == Wanted { argument, number })?;
        self.hit.operand(index)
    }

    fn name(&mut self) -> [u8; 16] {
        self.hit.name()
    }

    fn processor(&mut self) -> (u64, u64) {
        let processor = self.hit.processor();
        (processor, node_of(processor))
    }

    fn stands_too_long(&mut self) -> bool {
        worked() >= self.until
    }
}
