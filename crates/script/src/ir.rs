//! The typed intermediate representation: what a script means, without its syntax, its types and its names.
//!
//! It is the seam between the front end, which lowers scripts to it, and the back ends: the interpreter (`interp`), which is its
//! meaning, and native code (`native`), which is tested against it.
//!
//! # The machine
//!
//! A [`Body`] runs once for each hit of a probe. It works on
//!
//! - *locals*: typed scalars, 64-bit integers or doubles, 0 at the beginning;
//! - *scratch*: a flat run of bytes of the body's own ([`Body::scratch`]), of no particular content at the beginning, where strings,
//!   tuples, keys and structs are put together. A [`Place`] names bytes in it, or constant bytes of the program;
//! - *maps*: tables that outlive the hit, and are shared by all bodies ([`Map`]);
//! - *messages*: what the tool is told, in the order in which it happened ([`Statement::Emit`]);
//! - the *context* of the hit: registers, arguments, the time, the thread ([`Context`]);
//! - *foreign memory*: the probed process's, which may be anything and may be missing. Only the statements that say `Read` touch it, and
//!   [`Statement::Operand`].
//!
//! Expressions are trees of scalars. They have no effect, cannot fail, and are evaluated as often as they are met. Everything else is a
//! statement.
//!
//! # Rules that keep it safe
//!
//! - An access at a computed index stays inside of its place: an index beyond it counts as the last one that fits
//!   ([`Place::Indexed`], [`Place::IndexedConstant`]).
//! - Division by 0 gives 0, and remainder by 0 too. `i64::MIN / -1` wraps, as all arithmetic does. Shifts take the amount modulo 64.
//! - A double that is converted to an integer saturates; one that is not a number gives 0. Which bits one has that is not a number, is not
//!   said.
//! - Loops are bounded by the *fuel* of a body's run: [`Program::fuel`] rounds of all its loops together. One more ends the run, and is
//!   told.
//! - A read of foreign memory that fails gives zeros and says so.
//!
//! [`verify`](verify::verify) checks all that can be checked of a program once; back ends rely on it.

mod print;
pub mod verify;
mod walk;

pub(crate) use walk::{each_context, each_statement};

/// A script, lowered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Its maps, by [`MapId`].
    pub maps: Vec<Map>,
    /// Its constant bytes, by [`ConstantId`].
    pub constants: Vec<Vec<u8>>,
    /// How many values a message has, by [`MessageId`]: for each of its parts, what is expected of [`Statement::Emit`]. What a message
    /// means is the printer's.
    pub messages: Vec<Vec<PartKind>>,
    /// Its bodies, by [`BodyId`].
    pub bodies: Vec<Body>,
    /// Names whose addresses it wants, for [`Context::Symbol`].
    pub symbols: Vec<Symbol>,
    /// Maps that, when they are full, let go of the key that was not used for longest, instead of refusing a new one.
    pub evicting: Vec<MapId>,
    /// How many rounds all loops of one run of a body may take together.
    pub fuel: u32,
}

/// A name in a file whose address a script wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// The file, as the probe names it: a path, the name of a library or nothing for the process's own file.
    pub target: Option<String>,
    /// The name.
    pub name: String,
    /// Whether each thread has its own: what is wanted is how far it is from the thread pointer.
    pub is_of_thread: bool,
}

/// Index of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId(pub u32);

/// Index of constant bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConstantId(pub u32);

/// Index of a kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u32);

/// Index of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BodyId(pub u32);

/// Index of a local of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalId(pub u32);

/// What runs at a hit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The type of each local.
    pub locals: Vec<Scalar>,
    /// Bytes of scratch. Those that a statement does not name are nobody's.
    pub scratch: u32,
    /// What is done, in this order.
    pub code: Vec<Statement>,
}

/// What a local or an expression holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A 64-bit integer. Whether it is signed, the operations say.
    Int,
    /// A double.
    Float,
}

/// A table that outlives hits.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// As the script calls it, with the `@`.
    pub name: String,
    /// Length of a key in bytes; 0 for a map of one value.
    pub key: u32,
    /// What it holds.
    pub value: MapValue,
    /// How many keys it may have. One more is not put in, and counted, unless the map is one of [`Program::evicting`].
    pub capacity: u32,
    /// Who has it.
    pub sharing: MapSharing,
}

/// What a map holds for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapValue {
    /// So many bytes. The latest writer wins.
    Bytes(u32),
    /// An aggregation, which [`Statement::Aggregate`] adds to.
    Aggregate(Aggregation),
}

/// What comes of many values. All numbers are 64-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// How many there were. One word.
    Count,
    /// Their sum, which wraps. One word.
    Sum,
    /// The least, by the order of signed or unsigned integers. Two words: how many, and it.
    Min {
        /// Whether integers are signed.
        signed: bool,
    },
    /// The greatest. Two words, as for the least.
    Max {
        /// Whether integers are signed.
        signed: bool,
    },
    /// Two words: how many, and their sum. For averages and statistics.
    Average,
    /// Two words, as above, but the sum is of doubles.
    AverageOfFloats,
    /// The sum of doubles. One word.
    SumOfFloats,
    /// The least double. Two words.
    MinOfFloats,
    /// The greatest double. Two words.
    MaxOfFloats,
    /// A histogram by powers of two, each divided in `1 << bits` equal parts. Its words are counters, by [`hist_bucket`].
    Hist {
        /// From 0 to 5.
        bits: u8,
    },
    /// A linear histogram. Its words are counters: below `min`, each step from there on, from `max` on.
    LinearHist {
        /// Start of the first step.
        min: i64,
        /// End of the last step. Above `min`.
        max: i64,
        /// Length of a step. Above 0.
        step: i64,
    },
    /// A series of times: `buckets` intervals of `interval` nanoseconds each, of which the latest are kept. For each bucket three words:
    /// which interval it is of (its number since the clock's beginning, plus 1; 0: none), how many values, and what `of` says of them.
    TimeSeries {
        /// Nanoseconds of an interval. Above 0.
        interval: u64,
        /// How many intervals are kept. Above 0.
        buckets: u32,
        /// What is kept of an interval.
        of: SeriesOf,
    },
}

/// What a time series keeps of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesOf {
    /// The latest value.
    Latest,
    /// Their sum.
    Sum,
    /// Their sum, for an average.
    Average,
    /// The least, as signed integers.
    Min,
    /// The greatest, as signed integers.
    Max,
}

/// Who has the table of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapSharing {
    /// Each thread its own. It is put together when it is read, by the tool. Probed code only adds to it, or its key holds the thread's id.
    PerThread,
    /// All threads of a process one, and each process its own: of plain values whose keys mean something there alone, or that are only added to.
    PerProcess(Readers),
    /// All threads and the tool one.
    Shared,
}

/// Who reads a map of which each process has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The tool, too, which puts together what all of them hold. It does not write to it, but may take keys out.
    Tool,
    /// The same where probed code only adds to it: what all of them hold of a key is added up.
    Sum,
    /// The process alone.
    Nobody,
}

/// Bytes that a statement works on.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// Of the body's scratch, from this offset on. How many, the statement says.
    Scratch(u32),
    /// Of the body's scratch, at a computed index in the run of `size` bytes from `offset` on. What does not fit there counts as the last
    /// that does; a negative index (as a signed integer) counts as 0.
    Indexed {
        /// Start of the run.
        offset: u32,
        /// Length of the run.
        size: u32,
        /// How far in, in bytes.
        index: Box<Expression>,
    },
    /// Constant bytes of the program, from their beginning.
    Constant(ConstantId),
    /// Constant bytes of the program, at a computed index. What does not fit there counts as the last that does; a negative index (as a
    /// signed integer) counts as 0.
    IndexedConstant {
        /// Which.
        of: ConstantId,
        /// How far in, in bytes.
        index: Box<Expression>,
    },
}

/// A scalar, computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// An integer.
    Int(i64),
    /// A double.
    Float(f64),
    /// What a local holds.
    Local(LocalId),
    /// Something of the hit.
    Context(Context),
    /// Bytes of a place as an integer (1, 2, 4 or 8 bytes, little-endian), or as a double (4 or 8 bytes).
    Load {
        /// Where.
        from: Place,
        /// How.
        as_: Width,
    },
    /// Of one operand.
    Unary(Unary, Box<Expression>),
    /// Of two.
    Binary(Binary, Box<Expression>, Box<Expression>),
    /// The second if the first is not 0, else the third. All three may be evaluated.
    Select(Box<Expression>, Box<Expression>, Box<Expression>),
}

/// A scalar in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// An integer of so many bytes (1, 2, 4, 8), extended with zeros.
    Unsigned(u8),
    /// An integer of so many bytes, extended by its sign.
    Signed(u8),
    /// A float of 4 or 8 bytes.
    Float(u8),
}

/// Operations on one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`, wrapping.
    Negate,
    /// All bits turned.
    Not,
    /// 1 for 0, else 0.
    IsZero,
    /// The low 8, 16 or 32 bits, extended by their sign.
    SignExtend(u8),
    /// The low 8, 16 or 32 bits, extended with zeros.
    ZeroExtend(u8),
    /// The bytes of the low 16, 32 or 64 bits turned around, extended with zeros.
    SwapBytes(u8),
    /// How many zero bits above the highest one; 64 for 0.
    LeadingZeros,
    /// `-x` of a double.
    FloatNegate,
    /// A signed integer as a double.
    ToFloat,
    /// An unsigned integer as a double.
    UnsignedToFloat,
    /// A double as a signed integer, toward zero, saturating; not a number gives 0.
    ToInt,
    /// The bits of a double as an integer.
    FloatBits,
    /// An integer as the bits of a double.
    BitsFloat,
    /// The low 32 bits of an integer as a float of 32 bits, made a double.
    SingleBitsFloat,
}

/// Operations on two operands. Comparisons give 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// Wrapping.
    Add,
    /// Wrapping.
    Subtract,
    /// Wrapping.
    Multiply,
    /// Signed, 0 by 0.
    Divide,
    /// Unsigned, 0 by 0.
    UnsignedDivide,
    /// Signed, with the sign of the dividend; 0 by 0.
    Remainder,
    /// Unsigned, 0 by 0.
    UnsignedRemainder,
    /// Bits.
    And,
    /// Bits.
    Or,
    /// Bits.
    Xor,
    /// By the amount modulo 64.
    ShiftLeft,
    /// With zeros, by the amount modulo 64.
    ShiftRight,
    /// With the sign, by the amount modulo 64.
    SignedShiftRight,
    /// Of integers.
    Equal,
    /// Of integers.
    NotEqual,
    /// Signed.
    Less,
    /// Signed.
    LessOrEqual,
    /// Unsigned.
    UnsignedLess,
    /// Unsigned.
    UnsignedLessOrEqual,
    /// Doubles.
    FloatAdd,
    /// Doubles.
    FloatSubtract,
    /// Doubles.
    FloatMultiply,
    /// Doubles, as IEEE 754 has it.
    FloatDivide,
    /// Doubles. 0 if one is not a number.
    FloatEqual,
    /// Doubles. 1 if one is not a number.
    FloatNotEqual,
    /// Doubles. 0 if one is not a number.
    FloatLess,
    /// Doubles. 0 if one is not a number.
    FloatLessOrEqual,
}

/// What is known of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// The integer argument with this number by the platform's convention, from 0 on, as far as there are registers for it. Of all 64 bits.
    Argument(u8),
    /// A general register by its DWARF number, as it was at the hit.
    Register(u8),
    /// A floating-point argument register by number (xmm, v, f): its low 64 bits.
    FloatRegister(u8),
    /// The instruction pointer: address of the probed instruction.
    InstructionPointer,
    /// The return value in the integer register. At returns.
    Result,
    /// The second word of a result in two registers.
    SecondResult,
    /// The low 64 bits of the floating-point result register. At returns.
    FloatResult,
    /// The address to which the function returns, at its entry or its return.
    ReturnAddress,
    /// Address of the return address's stack slot; of the same call the same at its entry and its return. At entries and returns.
    Frame,
    /// What names a call among all that are under way: the same at its entry and its return, also where its stack is moved meanwhile, as in Go.
    /// Elsewhere it is [`Context::Frame`].
    Call,
    /// Which of the session's attached sites was hit: a number that the printer knows by name.
    Site,
    /// Id of the process, in the tool's namespace.
    Pid,
    /// Id of the thread, in the tool's namespace.
    Tid,
    /// Id of the parent process.
    ParentPid,
    /// Real user id.
    Uid,
    /// Real group id.
    Gid,
    /// The processor that runs it.
    Cpu,
    /// NUMA node of the processor.
    NumaNode,
    /// Nanoseconds of a clock.
    Time(ClockKind),
    /// A random word.
    Random,
    /// Id of the control group (v2).
    Cgroup,
    /// Address of the thread's control block (thread pointer).
    ThreadPointer,
    /// How long the call took so far, in nanoseconds. At returns.
    Duration,
    /// Address of [`Program::symbols`] with this index, as loaded in the process; 0 if it is not there.
    Symbol(u16),
    /// How many processors are online.
    Processors,
    /// Nanoseconds since the script began.
    Elapsed,
}

/// A clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockKind {
    /// Since boot without suspended time (CLOCK_MONOTONIC).
    Monotonic,
    /// Since boot (CLOCK_BOOTTIME).
    Boot,
    /// International atomic time (CLOCK_TAI).
    Tai,
    /// Of the wall (CLOCK_REALTIME).
    Real,
    /// Software's tick: CLOCK_MONOTONIC_COARSE.
    Coarse,
}

/// Of a stack's number ([`Statement::Stack`]) the bits that say how many frames it has.
pub const STACK_LENGTH: i64 = 0x7f;

/// Something that is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// Give a local a value of its type.
    Set(LocalId, Expression),
    /// If it is not 0, else.
    If(Expression, Vec<Statement>, Vec<Statement>),
    /// Again and again, until [`Statement::Break`]. Each round takes fuel.
    Loop(Vec<Statement>),
    /// Leave the innermost loop.
    Break,
    /// Next round of the innermost loop.
    Continue,
    /// The body is done.
    Return,

    /// Write a scalar to scratch.
    Store {
        /// Where. Not a constant.
        to: Place,
        /// How.
        as_: Width,
        /// What.
        value: Expression,
    },
    /// Copy bytes that do not overlap, wherever indices lead.
    Copy {
        /// Where to. Not a constant.
        to: Place,
        /// Where from.
        from: Place,
        /// How many.
        size: u32,
    },
    /// Zero bytes.
    Zero {
        /// Where. Not a constant.
        to: Place,
        /// How many.
        size: u32,
    },

    /// Read a scalar of foreign memory into a local.
    Read {
        /// Where to.
        into: LocalId,
        /// Address.
        from: Expression,
        /// How.
        as_: Width,
        /// Becomes 1, or 0 if it cannot be read.
        ok: Option<LocalId>,
    },
    /// Read bytes of foreign memory. From the first byte that cannot be read on, all is 0, and so is what is beyond `length`.
    ReadBytes {
        /// Where to. Not a constant.
        to: Place,
        /// Room there. All of it is written.
        size: u32,
        /// Address.
        from: Expression,
        /// How many, unsigned; at most `size` are.
        length: Expression,
        /// Becomes 1, or 0 if any of it cannot be read.
        ok: Option<LocalId>,
    },
    /// Read a string of foreign memory, up to its first zero byte. What is behind it is zeroed.
    ReadString {
        /// Where to. Not a constant.
        to: Place,
        /// Room there, with the final zero. All of it is written, and its last byte is 0.
        size: u32,
        /// Address.
        from: Expression,
        /// How many bytes at most, with the final zero, unsigned. Of 0 and 1, nothing is read and the length is 0.
        most: Expression,
        /// Becomes the length without the final zero; -1 if not even its first byte can be read, when all is zeroed. A string that ends in
        /// unreadable memory ends there.
        length: Option<LocalId>,
    },

    /// What an argument of a USDT probe is, wherever the note of the place that was hit says it is: in a register, in memory, or always the
    /// same. Integers are extended as the note says. 0 if it cannot be read.
    Operand {
        /// Becomes the argument. If it is a local of doubles, the argument is a floating-point number.
        into: LocalId,
        /// Which argument, from 0 to 11.
        argument: u8,
        /// Becomes 1, or 0 if it cannot be read.
        ok: Option<LocalId>,
    },

    /// Length of the string in a place: how many bytes are ahead of the first zero; `size` if there is none.
    StringLength {
        /// Becomes the length.
        into: LocalId,
        /// The string.
        of: Place,
        /// Room.
        size: u32,
    },
    /// Compare bytes as unsigned ones. As strings: up to and with the first zero of both.
    Compare {
        /// Becomes 0 if equal, else 1.
        into: LocalId,
        /// One.
        left: Place,
        /// The other.
        right: Place,
        /// How many at most, of both. At most what both places have.
        size: u32,
        /// How many at most, as computed, unsigned.
        most: Option<Expression>,
        /// Whether they end at a zero.
        strings: bool,
    },
    /// Where a string is first found in another one.
    Find {
        /// Becomes the index, or -1.
        into: LocalId,
        /// Where to look, a string.
        haystack: Place,
        /// Room there.
        haystack_size: u32,
        /// What to look for, a string. The empty one is found at 0.
        needle: Place,
        /// Room there.
        needle_size: u32,
    },

    /// Read the value of a key in a map of bytes. Zeros if it is not there.
    MapGet {
        /// Which. Not of aggregations.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// Where the value goes. Not a constant.
        to: Place,
        /// Becomes 1 if it is there, else 0.
        found: Option<LocalId>,
    },
    /// Write the value of a key in a map of bytes.
    MapSet {
        /// Which. Not of aggregations.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// The value's.
        value: Place,
        /// Becomes 1 if it was written, 0 if there was no room.
        ok: Option<LocalId>,
    },
    /// Add to the 8-byte integer of a key in a map of bytes, at once: no addition of another thread is lost. One that is not there begins
    /// at 0.
    MapAdd {
        /// Which. Its values have 8 bytes.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// What is added, wrapping.
        amount: Expression,
        /// Becomes what it was before.
        before: Option<LocalId>,
    },
    /// Take a key out.
    MapDelete {
        /// Which.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// Becomes 1 if it was there.
        found: Option<LocalId>,
    },
    /// Whether a key is there.
    MapHas {
        /// Which.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// Becomes 1 or 0.
        found: LocalId,
    },
    /// How many keys there are.
    MapLength {
        /// Which.
        map: MapId,
        /// Becomes the number.
        into: LocalId,
    },
    /// Take all keys out.
    MapClear(MapId),
    /// Make all values 0, and keep the keys.
    MapZero(MapId),
    /// For each key of a map: put it and its value in scratch, and do something. Keys that are put in meanwhile may be met or not.
    /// Each round takes fuel.
    ForEach {
        /// Which.
        map: MapId,
        /// Where the key goes: [`Place::Scratch`].
        key: Place,
        /// Where the value goes, as [`MapValue`] lays it out: [`Place::Scratch`], beside the key.
        value: Place,
        /// What is done.
        body: Vec<Statement>,
    },
    /// Add a value to an aggregation.
    Aggregate {
        /// Which. Of aggregations.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// The value, of the type that the aggregation is of. It does not matter for [`Aggregation::Count`].
        value: Expression,
        /// How often: counts grow by it, and sums by the value times it. Unsigned; 1 if it is not said.
        weight: Option<Expression>,
    },
    /// What an aggregation says so far, over all threads.
    AggregateGet {
        /// Which. Of aggregations.
        map: MapId,
        /// The key's bytes.
        key: Place,
        /// Where its words go, all of them ([`Aggregation::words`]); zeros if the key is not there. Not a constant.
        to: Place,
        /// Becomes 1 if the key is there, else 0.
        found: Option<LocalId>,
    },

    /// The call stack of the hit, as a number that the printer knows the frames by. Equal stacks have equal numbers. The bits of
    /// [`STACK_LENGTH`] say how many frames it has.
    Stack {
        /// Becomes the number; 0 if it could not be kept.
        into: LocalId,
        /// How many frames at most, from 1 to 127.
        frames: u8,
        /// How it is walked.
        by: StackWalk,
    },
    /// Name of the thread, zero-padded.
    ThreadName {
        /// Where to: 16 bytes. Not a constant.
        to: Place,
    },
    /// Name of a process, which is that of its first thread, zero-padded. Zeros where nobody tells it.
    ProcessName {
        /// Whose.
        of: Kin,
        /// Where to: 16 bytes. Not a constant.
        to: Place,
    },
    /// Tell the tool.
    Emit {
        /// What.
        message: MessageId,
        /// Its parts, as [`Program::messages`] lists them.
        parts: Vec<Part>,
    },
    /// Send the thread's process a signal.
    Signal(Expression),
    /// Have the thread sleep for so many nanoseconds, [`MOST_DELAY`] at most, and not at all where that is not above 0 (signed). Handlers of
    /// signals run meanwhile, and shorten nothing. It ends early where the script is taken out. A child that such a handler forks leaves the body.
    Delay(Expression),
    /// Have the call that was hit do something else.
    Change(Change, Expression),
}

/// The most nanoseconds of a [`Statement::Delay`]: a minute.
pub const MOST_DELAY: u64 = 60_000_000_000;

/// What of a call is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The integer argument with this number by the platform's convention, from 0 on, as far as there are registers for it. At entries.
    Argument(u8),
    /// Whether it is skipped, and returns nothing: if this is not 0. At entries.
    Skip,
    /// What it returns. At an entry the function is not called at all, at a return the caller gets this.
    Result,
    /// What `errno` is for the thread: it is what [`Program::symbols`] has at this index. At entries and returns.
    Errno(u16),
}

/// A process, as seen from the one that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kin {
    /// It itself.
    Own,
    /// The one that has it for a child now.
    Parent,
}

/// How a stack is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackWalk {
    /// By unwind tables, and frame pointers where there are none.
    Tables,
    /// By frame pointers alone.
    FramePointers,
}

/// Part of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// An integer, or the bits of a double: 8 bytes.
    Word(Expression),
    /// So many bytes.
    Bytes(Place, u32),
    /// A string or buffer whose length is known when it is sent: at most so many bytes.
    Text {
        /// The bytes.
        from: Place,
        /// Room there.
        size: u32,
        /// How many, unsigned; at most `size` are sent.
        length: Expression,
    },
}

/// What kind of part a message has at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// [`Part::Word`].
    Word,
    /// [`Part::Bytes`], so many.
    Bytes(u32),
    /// [`Part::Text`], at most so many.
    Text(u32),
}

impl MapValue {
    /// Length of a value in bytes.
    pub fn size(self) -> u32 {
        match self {
            MapValue::Bytes(size) => size,
            MapValue::Aggregate(aggregation) => 8 * aggregation.words(),
        }
    }
}

impl Aggregation {
    /// How many 64-bit words it takes.
    pub fn words(self) -> u32 {
        match self {
            Aggregation::Count | Aggregation::Sum | Aggregation::SumOfFloats => 1,
            Aggregation::Min { .. }
            | Aggregation::Max { .. }
            | Aggregation::MinOfFloats
            | Aggregation::MaxOfFloats
            | Aggregation::Average
            | Aggregation::AverageOfFloats => 2,
            Aggregation::Hist { bits } => hist_buckets(bits),
            Aggregation::LinearHist { min, max, step } => linear_buckets(min, max, step),
            Aggregation::TimeSeries { buckets, .. } => buckets.saturating_mul(3),
        }
    }

    /// Whether it takes doubles.
    pub fn is_of_floats(self) -> bool {
        use Aggregation::*;
        matches!(self, AverageOfFloats | SumOfFloats | MinOfFloats | MaxOfFloats)
    }
}

/// How many buckets a histogram by powers of two has: one for negative values, `1 << bits` for each power.
pub fn hist_buckets(bits: u8) -> u32 {
    // Values below 1 << bits have a bucket each; above, each of the 63 - bits powers up to i64::MAX has 1 << bits.
    1 + (1 << bits) + ((63 - u32::from(bits)) << bits)
}

/// The bucket of a value, from 0 on: 0 for negative ones; then each value below `1 << bits` has its own, and each power of two above is
/// divided in `1 << bits` equal parts.
///
/// ```
/// use trapless_script::ir::hist_bucket;
/// assert_eq!([-5, 0, 1, 2, 3, 4, 7, 8].map(|value| hist_bucket(value, 0)), [0, 1, 2, 3, 3, 4, 4, 5]);
/// ```
pub fn hist_bucket(value: i64, bits: u8) -> u32 {
    if value < 0 {
        return 0;
    }
    if value < 1 << bits {
        return 1 + value as u32;
    }
    let power = 63 - value.leading_zeros();
    let shift = power - u32::from(bits);
    let part = (value >> shift) as u32 & ((1 << bits) - 1);
    1 + (1 << bits) + (shift << bits) + part
}

/// The least value of a bucket of [`hist_bucket`]; `i64::MIN` for that of the negative ones.
pub fn hist_bucket_start(bucket: u32, bits: u8) -> i64 {
    let parts = 1 << bits;
    match bucket.checked_sub(1) {
        None => i64::MIN,
        Some(value) if value < parts => i64::from(value),
        Some(above) => {
            let (shift, part) = ((above - parts) >> bits, (above - parts) & (parts - 1));
            i64::from(parts + part) << shift.min(62)
        }
    }
}

/// How many buckets a linear histogram has: one below, one for each step, one above.
pub fn linear_buckets(min: i64, max: i64, step: i64) -> u32 {
    let steps = (i128::from(max) - i128::from(min) + i128::from(step) - 1) / i128::from(step.max(1));
    u32::try_from(steps.clamp(0, i128::from(u32::MAX / 16))).unwrap_or(u32::MAX / 16) + 2
}

/// The bucket of a value in a linear histogram.
pub fn linear_bucket(value: i64, min: i64, max: i64, step: i64) -> u32 {
    if value < min {
        return 0;
    }
    if value >= max {
        return linear_buckets(min, max, step) - 1;
    }
    // Below `max`, so within the steps; the difference fits in unsigned 64 bits.
    (value.wrapping_sub(min) as u64 / step.max(1) as u64) as u32 + 1
}

impl Width {
    /// Length in bytes.
    pub fn size(self) -> u32 {
        match self {
            Width::Unsigned(size) | Width::Signed(size) | Width::Float(size) => size.into(),
        }
    }

    /// What is held by such a scalar.
    pub fn scalar(self) -> Scalar {
        match self {
            Width::Float(_) => Scalar::Float,
            Width::Unsigned(_) | Width::Signed(_) => Scalar::Int,
        }
    }
}

impl Unary {
    /// The types of its operand and its result.
    pub fn types(self) -> (Scalar, Scalar) {
        use Scalar::*;
        match self {
            Unary::FloatNegate => (Float, Float),
            Unary::ToFloat | Unary::UnsignedToFloat | Unary::BitsFloat | Unary::SingleBitsFloat => {
                (Int, Float)
            }
            Unary::ToInt | Unary::FloatBits => (Float, Int),
            Unary::Negate
            | Unary::Not
            | Unary::IsZero
            | Unary::SignExtend(_)
            | Unary::ZeroExtend(_)
            | Unary::SwapBytes(_)
            | Unary::LeadingZeros => (Int, Int),
        }
    }
}

impl Binary {
    /// The types of its operands and its result.
    pub fn types(self) -> (Scalar, Scalar) {
        use Binary::*;
        match self {
            FloatAdd | FloatSubtract | FloatMultiply | FloatDivide => (Scalar::Float, Scalar::Float),
            FloatEqual | FloatNotEqual | FloatLess | FloatLessOrEqual => (Scalar::Float, Scalar::Int),
            _ => (Scalar::Int, Scalar::Int),
        }
    }
}
