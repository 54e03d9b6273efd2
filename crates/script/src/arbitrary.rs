//! Random programs, for tests: verified ones, that use every statement and every operation, with constants at the edges.
//!
//! A program is made of a seed and nothing else, so a seed that fails is a bug report. What two back ends must agree on does not depend on
//! what the IR leaves open: scratch is zeroed first, the bits of doubles that are not numbers are not looked at, and loops over maps do
//! what comes to the same in any order.

use crate::ir::*;

mod expressions;
mod statements;

pub use expressions::INT_BINARY;

/// What random programs may use.
#[derive(Clone, Debug)]
pub struct Options {
    /// What they may ask of a hit. None: nothing.
    pub contexts: Vec<Context>,
    /// Addresses of foreign memory near which they read. None: no reads.
    pub addresses: Vec<u64>,
    /// How many statements a body has, about.
    pub statements: u32,
    /// Whether there are stacks, thread names and signals.
    pub is_of_threads: bool,
    /// Whether they have the thread sleep, for microseconds.
    pub sleeps: bool,
    /// Whether they change what calls do.
    pub changes_calls: bool,
    /// Whether there are time series, which depend on the time.
    pub is_of_time: bool,
    /// How often loops may go round.
    pub fuel: u32,
}

impl Default for Options {
    fn default() -> Options {
        let numbered = (0..4).flat_map(|number| {
            [Context::Argument(number), Context::Register(number), Context::FloatRegister(number)]
        });
        let clocks =
            [ClockKind::Monotonic, ClockKind::Boot, ClockKind::Tai, ClockKind::Real, ClockKind::Coarse];
        let others = [
            Context::InstructionPointer,
            Context::Result,
            Context::SecondResult,
            Context::FloatResult,
            Context::ReturnAddress,
            Context::Frame,
            Context::Call,
            Context::Site,
            Context::Pid,
            Context::Tid,
            Context::ParentPid,
            Context::Uid,
            Context::Gid,
            Context::Cpu,
            Context::NumaNode,
            Context::Random,
            Context::Cgroup,
            Context::ThreadPointer,
            Context::Duration,
            Context::Processors,
            Context::Elapsed,
            Context::Symbol(0),
        ];
        Options {
            contexts: numbered.chain(clocks.map(Context::Time)).chain(others).collect(),
            addresses: vec![0, 0x1000, 0x1ff8, 0x7fff_ffff_f000, u64::MAX - 7],
            statements: 40,
            is_of_threads: true,
            sleeps: true,
            changes_calls: true,
            is_of_time: true,
            fuel: 100,
        }
    }
}

/// A random program of one body.
///
/// ```
/// use trapless_script::arbitrary::{Options, program};
/// use trapless_script::ir::verify::verify;
/// let one = program(7, &Options::default());
/// assert_eq!(verify(&one), Ok(()));
/// assert_eq!(one, program(7, &Options::default()));
/// ```
pub fn program(seed: u64, options: &Options) -> Program {
    let mut random = Random(seed);
    let maps = maps(options);
    let constants = vec![
        Vec::new(),
        b"needle\0".to_vec(),
        b"a needle in a haystack\0".to_vec(),
        (0..32_u8).map(|index| index.wrapping_mul(37)).collect(),
    ];
    let messages = vec![
        Vec::new(),
        vec![PartKind::Word],
        vec![PartKind::Bytes(24), PartKind::Word],
        vec![PartKind::Text(16), PartKind::Text(32), PartKind::Bytes(0)],
    ];
    let locals = (0..INTS).map(|_| Scalar::Int).chain((0..FLOATS).map(|_| Scalar::Float)).collect();
    let mut program = Program { maps, constants, messages, fuel: options.fuel, ..Program::default() };
    let zero = Statement::Zero { to: Place::Scratch(0), size: SCRATCH };
    let mut maker =
        Maker { program: &program, options, random: &mut random, left: options.statements, loops: 0 };
    let code = std::iter::once(zero).chain(maker.block(0)).collect();
    program.bodies.push(Body { locals, scratch: SCRATCH, code });
    program
}

/// Locals that are integers come first.
const INTS: u32 = 6;
const FLOATS: u32 = 3;
/// Scratch has three runs of 32 bytes for whatever is done, and 64 more for keys and values of loops over maps.
const SCRATCH: u32 = 160;
const WORK: u32 = 96;

/// Maps of each kind. Of those of one thread each nobody asks for more than for a key, and aggregations are only added to.
fn maps(options: &Options) -> Vec<Map> {
    let of = |key, value, sharing| Map { name: String::new(), key, value, capacity: 6, sharing };
    let bytes = [(0, 8), (8, 8), (4, 4), (16, 24), (24, 32)]
        .map(|(key, size)| of(key, MapValue::Bytes(size), MapSharing::Shared));
    let own_bytes =
        [(8, 8), (4, 4), (24, 32)].map(|(key, size)| of(key, MapValue::Bytes(size), MapSharing::PerThread));
    let shared = [
        Aggregation::Count,
        Aggregation::Sum,
        Aggregation::Min { signed: true },
        Aggregation::Min { signed: false },
        Aggregation::Max { signed: true },
        Aggregation::Max { signed: false },
        Aggregation::Average,
        Aggregation::AverageOfFloats,
        Aggregation::SumOfFloats,
        Aggregation::MinOfFloats,
        Aggregation::MaxOfFloats,
    ];
    let per_thread = [
        Aggregation::Count,
        Aggregation::Average,
        Aggregation::Hist { bits: 0 },
        Aggregation::Hist { bits: 3 },
        Aggregation::LinearHist { min: -10, max: 100, step: 7 },
    ];
    let series = [SeriesOf::Latest, SeriesOf::Sum, SeriesOf::Average, SeriesOf::Min, SeriesOf::Max]
        .map(|of| Aggregation::TimeSeries { interval: 1_000_000, buckets: 4, of });
    let shared = shared.map(|aggregation| (aggregation, MapSharing::Shared));
    let per_thread = per_thread.map(|aggregation| (aggregation, MapSharing::PerThread));
    let series = series.map(|aggregation| (aggregation, MapSharing::PerThread));
    let aggregations = shared.into_iter().chain(per_thread).chain(series);
    let aggregations =
        aggregations.filter(|(of, _)| options.is_of_time || !matches!(of, Aggregation::TimeSeries { .. }));
    let aggregations = aggregations.zip([0, 8, 16].into_iter().cycle());
    let aggregations =
        aggregations.map(|((aggregation, sharing), key)| of(key, MapValue::Aggregate(aggregation), sharing));
    let mut maps: Vec<Map> = bytes.into_iter().chain(own_bytes).chain(aggregations).collect();
    for (index, map) in maps.iter_mut().enumerate() {
        map.name = format!("@{index}");
    }
    maps
}

/// SplitMix64: a stream of numbers from a seed.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above 0.
    fn below(&mut self, end: u32) -> u32 {
        (self.word() % u64::from(end.max(1))) as u32
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u32) as usize).copied()
    }
}

struct Maker<'a> {
    program: &'a Program,
    options: &'a Options,
    random: &'a mut Random,
    /// How many statements are still to be made.
    left: u32,
    /// How many loops are around.
    loops: u32,
}

#[cfg(test)]
mod tests;
