//! What can be wrong with a program, and where.

use super::MOST_BYTES;
use crate::ir::*;

/// Why a program is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// In a map.
    #[error("map {}: {fault}", map.0)]
    Map {
        /// Which.
        map: MapId,
        /// What is wrong.
        fault: Fault,
    },
    /// A constant is longer than [`MOST_BYTES`].
    #[error("constant {} is too long", .0.0)]
    Constant(ConstantId),
    /// In a body.
    #[error("body {}, statement {statement}: {fault}", body.0)]
    Body {
        /// Which.
        body: BodyId,
        /// Which of its statements, counted from 0 on in the order in which they are written, those within others after them.
        statement: u32,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Scratch, a key or a value has more than [`MOST_BYTES`].
    #[error("more than {MOST_BYTES} bytes")]
    TooLong,
    /// Nothing has this number.
    #[error("there is no {0} {1}")]
    Missing(What, u32),
    /// Something has another type than is expected of it.
    #[error("a value of type {found:?} where one of type {expected:?} is expected")]
    Type {
        /// What is expected.
        expected: Scalar,
        /// What it is.
        found: Scalar,
    },
    /// A place has fewer bytes than are used.
    #[error("a place does not have {0} bytes")]
    Outside(u32),
    /// A constant is written to.
    #[error("a constant is written to")]
    Written,
    /// Bytes that are copied may overlap.
    #[error("bytes that are copied may overlap")]
    Overlap,
    /// The places of [`Statement::ForEach`] must be the same in each round.
    #[error("the place of a loop's key or value is computed")]
    MovingPlace,
    /// A scalar of a size that there is not.
    #[error("there is no scalar of {0} bytes")]
    Width(u8),
    /// An operation on a number of bits that it does not exist for.
    #[error("an operation on {0} bits")]
    Bits(u8),
    /// `break` or `continue` outside of a loop.
    #[error("break or continue outside of a loop")]
    NoLoop,
    /// Nested deeper than [`DEEPEST_STATEMENT`](super::DEEPEST_STATEMENT) or [`DEEPEST_EXPRESSION`](super::DEEPEST_EXPRESSION).
    #[error("nested too deep")]
    TooDeep,
    /// A statement for maps of bytes on one of aggregations, or the other way round.
    #[error("map {} holds something else", .0.0)]
    MapKind(MapId),
    /// A map without room for one key.
    #[error("no room for any key")]
    Capacity,
    /// A histogram or series with bounds that make no sense, or with too many buckets.
    #[error("an aggregation with impossible bounds")]
    Bounds,
    /// Number or kinds of a message's parts differ from what the message has.
    #[error("the parts do not match message {}", .0.0)]
    Parts(MessageId),
    /// A stack of no frames, or of more than 127.
    #[error("a stack of {0} frames")]
    Frames(u8),
    /// An argument of a USDT probe that none can have.
    #[error("argument {0}, and a USDT probe has 12 at most")]
    Operand(u8),
}

/// What a number should have named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// See [`MapId`].
    Map,
    /// See [`ConstantId`].
    Constant,
    /// See [`MessageId`].
    Message,
    /// See [`LocalId`].
    Local,
}

impl std::fmt::Display for What {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            What::Map => "map",
            What::Constant => "constant",
            What::Message => "message",
            What::Local => "local",
        })
    }
}
