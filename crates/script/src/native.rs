//! Native code: bodies compiled for the target, with the routines that they call.
//!
//! [`compile`] makes a [`Program`](trapless_isa::body::Program) of pieces with holes. What its code does is what the
//! [interpreter](crate::interp) does, in memory that is laid out by [`trapless_wire::ScriptLayout`]. How a body is called, and what it may
//! rely on, is told in [`trapless_isa::body`]; the protocols of tables and messages in [`trapless_wire`].
//!
//! - `emit`: making one piece.
//! - `body`, `expressions`, `bytes`, `aggregates`, `maps`, `messages`: what the IR says.
//! - `tables`, `routines`, `stacks`, `delay`: what is compiled once for each program.
//! - `power`: machine code where Cranelift makes none.
//! - `mapped`: which memory can be loaded from without a system call.
//! - `layout`: where it all lies.
//!
//! Aggregations of the least and the greatest hold their second word [masked](mask), so that zeros are what has no value yet.

mod aggregates;
mod body;
mod bytes;
mod delay;
mod emit;
mod expressions;
mod layout;
mod mapped;
mod maps;
pub mod memory;
mod messages;
mod power;
mod routines;
mod stacks;
mod tables;

use crate::ir::*;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use emit::{Base, Workshop};
use layout::MapCode;
use routines::Registry;
use trapless_isa::Machine;
use trapless_isa::body::{Code, Convention, MOST_FRAME};
use trapless_wire::{MapKind, ScriptLayout};

/// What code is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The machine.
    pub machine: Machine,
    /// Log2 of the size of each thread's ring of messages.
    pub ring_bits: u32,
    /// By which interfaces the functions get their arguments at which bodies run. There are all bodies for the first one, then for the next.
    pub abis: &'static [Abi],
}

/// The binary interface by which a function gets its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// The platform's.
    C,
    /// That of Go's compiler, from 1.17 on (ABIInternal, `src/cmd/compile/abi-internal.md` of Go).
    Go,
}

impl Target {
    /// That of the machine that this program runs on, for functions of C's.
    ///
    /// # Errors
    /// It is none that is known.
    pub fn here(ring_bits: u32) -> Result<Target, Refusal> {
        let machine = Machine::HOST.ok_or(Refusal::Missing("code for this machine"))?;
        Ok(Target { machine, ring_bits, abis: &[Abi::C] })
    }
}

/// Where a body runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// At a function's entry.
    Entry,
    /// At an instruction inside of a function, as USDT probes are.
    Inside,
    /// At a function's return.
    Return,
}

/// A script's code.
#[derive(Clone, Debug)]
pub struct NativeProgram {
    /// The pieces. Bodies are in the order in which they were asked for.
    pub code: trapless_isa::body::Program,
    /// The memory that it works on.
    pub layout: ScriptLayout,
    /// Of each body that was asked for, the last of the function's arguments that it asks for, if it does for any.
    pub arguments: Vec<Option<u8>>,
    /// Whether it makes system calls, as it does to read foreign memory: a seccomp filter may kill who makes them. Not for operands of USDT
    /// probes: it depends on the site whether they are in memory.
    pub makes_system_calls: bool,
}

/// Why there is no native code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The machine has no native code.
    #[error("scripts are not compiled for programs of {}", .0.name())]
    Machine(Machine),
    /// The maps, strings and rings need more memory than there can be.
    #[error("its maps and strings take more memory than a script can have")]
    TooLarge,
    /// A value of the hit that cannot be had.
    #[error("body {}: {what:?} cannot be had there", body.0)]
    Context {
        /// Whose.
        body: BodyId,
        /// What.
        what: Context,
    },
    /// A map that each thread has its own of was read, or its keys taken out.
    #[error("body {}: each thread has its own {map}, and one cannot see all of them", body.0)]
    PerThread {
        /// Whose.
        body: BodyId,
        /// The map.
        map: String,
    },
    /// A body takes more of the stack than it may.
    #[error("body {}: it takes {frame} bytes of stack, more than it may", body.0)]
    Frame {
        /// Whose.
        body: BodyId,
        /// How many.
        frame: u32,
    },
    /// Something that native code does not do.
    #[error("native code has no {0}")]
    Missing(&'static str),
    /// There is no such body.
    #[error("there is no body {}", .0.0)]
    NoBody(BodyId),
    /// The compiler did not take what it was given. A bug.
    #[error("the compiler failed: {0}")]
    Compiler(String),
}

/// What the second word of an aggregation of the least or the greatest is combined with by exclusive or where it is stored: what no value
/// is beyond of.
///
/// ```
/// use trapless_script::ir::Aggregation;
/// use trapless_script::native::mask;
/// assert_eq!(mask(Aggregation::Min { signed: true }), Some(i64::MAX as u64));
/// assert_eq!(mask(Aggregation::Count), None);
/// ```
pub fn mask(aggregation: Aggregation) -> Option<u64> {
    match aggregation {
        Aggregation::Min { signed: true } => Some(i64::MAX as u64),
        Aggregation::Min { signed: false } => Some(u64::MAX),
        Aggregation::Max { signed: true } => Some(i64::MIN as u64),
        Aggregation::Max { signed: false } => Some(0),
        Aggregation::MinOfFloats => Some(f64::INFINITY.to_bits()),
        Aggregation::MaxOfFloats => Some(f64::NEG_INFINITY.to_bits()),
        _ => None,
    }
}

/// Turns the words of an aggregation as they are stored to those that [`Aggregation`] says.
pub fn unmask(aggregation: Aggregation, words: &mut [u64]) {
    if let (Some(mask), [count, value]) = (mask(aggregation), words) {
        *value = if *count == 0 { 0 } else { *value ^ mask };
    }
}

/// What all pieces of a program have in common.
struct Common<'a> {
    program: &'a Program,
    target: Target,
    convention: &'static Convention,
    layout: &'a ScriptLayout,
    maps: Vec<MapCode>,
}

/// Compiles bodies of a [verified](crate::ir::verify::verify) program.
///
/// # Errors
/// [`Refusal`] says which body, and what of it, there is no code for.
pub fn compile(
    program: &Program,
    bodies: &[(BodyId, Moment)],
    target: &Target,
) -> Result<NativeProgram, Refusal> {
    let convention = Convention::of(target.machine).ok_or(Refusal::Machine(target.machine))?;
    let mut workshop = Workshop::new(isa(target.machine)?, target.machine);
    let native: Vec<BodyId> = bodies.iter().map(|body| body.0).collect();
    for &body in &native {
        program.bodies.get(body.0 as usize).ok_or(Refusal::NoBody(body))?;
        layout::check_own_maps(program, body)?;
    }
    let layout = layout::lay_out(program, &native, target.ring_bits)?;
    let maps = layout::maps(program, &layout);
    let common = Common { program, target: *target, convention, layout: &layout, maps };
    let mut registry = Registry::default();
    let mut pieces = Vec::new();
    for &abi in target.abis {
        for &(body, moment) in bodies {
            let at = body::Hit { moment, abi };
            pieces.push(body::compile(&mut workshop, &common, &mut registry, body, at)?);
        }
    }
    let routines = registry.compile(&mut workshop, &common)?;
    let known = routines::usage(&routines);
    let makes_system_calls = registry.makes_system_calls(&pieces, &routines);
    let whole = |pieces: Vec<emit::Piece>| pieces.into_iter().map(|piece| piece.whole(&known)).collect();
    let (mut bodies_code, routines): (Vec<Code>, Vec<Code>) = (whole(pieces), whole(routines));
    for (code, &(body, _)) in bodies_code.iter_mut().zip(bodies.iter().cycle()) {
        code.counts = counts(&common, body);
        if code.frame > MOST_FRAME {
            return Err(Refusal::Frame { body, frame: code.frame });
        }
    }
    let code = trapless_isa::body::Program { routines, bodies: bodies_code };
    let arguments = bodies.iter().map(|&(body, _)| body::last_argument(program, body)).collect();
    Ok(NativeProgram { code, layout, arguments, makes_system_calls })
}

/// Where in the thread's block a body counts, if it does nothing else. Whoever does that for it marks nothing: that something was counted is known by
/// the number.
fn counts(common: &Common<'_>, body: BodyId) -> Option<u32> {
    let [Statement::Aggregate { map, weight: None, .. }] =
        &common.program.bodies.get(body.0 as usize)?.code[..]
    else {
        return None;
    };
    match *common.maps.get(map.0 as usize)? {
        MapCode {
            base: Base::Block(at),
            kind: MapKind::Words(1),
            value: MapValue::Aggregate(Aggregation::Count),
            ..
        } => Some(at + 8),
        _ => None,
    }
}

/// What there is of a program of which no code is made: it is interpreted, and these bodies ask for nothing but what that can tell.
///
/// # Errors
/// A map is read that each thread has its own of, or there is no room.
pub fn laid_out(program: &Program, bodies: &[BodyId], ring_bits: u32) -> Result<NativeProgram, Refusal> {
    bodies.iter().try_for_each(|body| layout::check_own_maps(program, *body))?;
    let layout = layout::lay_out(program, bodies, ring_bits)?;
    let arguments = bodies.iter().map(|&body| body::last_argument(program, body)).collect();
    Ok(NativeProgram { code: Default::default(), layout, arguments, makes_system_calls: false })
}

/// Cranelift for a machine, with what our convention asks of it.
fn isa(machine: Machine) -> Result<OwnedTargetIsa, Refusal> {
    let name = match machine {
        Machine::X86_64 => "x86_64-unknown-linux-gnu",
        // Of powerpc64le it makes no code. What it does before it comes to that is the same.
        Machine::AArch64 | Machine::PowerPc64Le => "aarch64-unknown-linux-gnu",
        other => return Err(Refusal::Machine(other)),
    };
    let failed = |error: String| Refusal::Compiler(error);
    let mut flags = settings::builder();
    for (flag, value) in [
        ("opt_level", "speed"),
        ("is_pic", "false"),
        ("enable_pinned_reg", "true"),
        ("enable_probestack", "false"),
        ("unwind_info", "false"),
        ("enable_alias_analysis", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("preserve_frame_pointers", "false"),
    ] {
        flags.set(flag, value).map_err(|error| failed(format!("{error}")))?;
    }
    let builder = cranelift_codegen::isa::lookup_by_name(name).map_err(|error| failed(format!("{error}")))?;
    builder.finish(settings::Flags::new(flags)).map_err(|error| failed(format!("{error}")))
}
