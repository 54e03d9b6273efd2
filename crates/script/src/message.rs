//! Messages: what a script tells, and what the printer has to know for it.
//!
//! A body emits a message by number with the bytes of its parts ([`Statement::Emit`](crate::ir::Statement::Emit)); here stands what is done
//! with them. Messages are worked through in the order in which they were emitted.

use crate::ir::{Aggregation, MapId, PartKind};
use crate::shape::Shape;
use std::sync::Arc;

/// All that the printer knows of a script.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Messages {
    /// By [`MessageId`](crate::ir::MessageId).
    pub messages: Vec<Message>,
    /// By [`MapId`].
    pub maps: Vec<MapPrint>,
}

/// What is done at a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// `printf`, and those that go elsewhere. Parts: one for each argument.
    Print(Channel, Format),
    /// `cat`: print the contents of the file with this name. Parts: one for each argument.
    Cat(Format),
    /// `system`: run a shell's command. Parts: one for each argument.
    System(Format),
    /// `join`: strings with something between them. Parts: a word with their number, then a text for each, as many as there may be.
    Join {
        /// What stands between.
        between: Arc<str>,
    },
    /// `time`: the time of the wall when it is printed. No parts.
    Time {
        /// A format of `strftime`.
        format: Arc<str>,
    },
    /// `print` of a map. Parts: two words, how many at most (0: all) and by what they are divided (0 and 1: by nothing).
    PrintMap(MapId),
    /// `print` of one key of a map. Parts: the key, the value.
    PrintKey(MapId),
    /// `print` of a value. One part.
    PrintValue(Shape),
    /// `exit`. One part: the exit code, a word.
    Exit,
    /// `return` with a value, in probes whose result matters (`test`). One part, a word: the value.
    Result,
    /// Something went wrong where the script could not help it. One part, a word: the number that it says about itself.
    Error(ErrorKind, Location),
}

/// Where text goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Channel {
    /// `printf`.
    Out,
    /// `errorf`: standard error, as an error, with its place.
    Error(Location),
    /// `warnf`: standard error, as a warning, with its place.
    Warning(Location),
}

/// A place in the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Name of the text.
    pub file: Arc<str>,
    /// Line, from 1 on.
    pub line: u32,
    /// First column, from 1 on.
    pub column: u32,
    /// The line itself; all of them, if it goes over several.
    pub text: Arc<str>,
    /// Where it ends: the column behind the last. It does not matter if it goes over several lines.
    pub end: u32,
    /// The call of the macro that it stands in.
    pub from: Option<Arc<Location>>,
}

/// A format with what it is filled with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Format {
    /// As written, escapes resolved.
    pub format: Arc<str>,
    /// The shape of each argument.
    pub arguments: Vec<Shape>,
}

/// What goes wrong at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Division or remainder by 0. Says nothing.
    DivideByZero,
    /// Foreign memory could not be read. Says the address.
    Unreadable,
    /// A string of foreign memory could not be read. Says the address.
    UnreadableText,
    /// A map is full. Says nothing.
    MapFull(MapId),
    /// A key that is not there was deleted. Says nothing.
    NotThere(MapId),
    /// A key that is not there was looked up. Says nothing. Only where the script is run to tell such things.
    Missing(MapId),
    /// The loops of a body took more rounds than they may. Says nothing.
    Fuel,
    /// A index beyond an array's end. Says the index.
    OutOfBounds,
    /// An assertion failed. Says nothing.
    Assertion,
}

/// How a map is printed.
#[derive(Clone, Debug, PartialEq)]
pub struct MapPrint {
    /// Its name, with the `@`.
    pub name: Arc<str>,
    /// What its keys are; `None` for a map of one value. More than one key is a tuple that is printed without parentheses.
    pub key: Option<KeyPrint>,
    /// What its values are.
    pub value: ValuePrint,
    /// Whether it is printed when the script ends.
    pub at_exit: bool,
}

/// What the keys of a map are.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPrint {
    /// Their shape.
    pub shape: Shape,
    /// Whether it is a list of keys, as in `@[1, 2]`, and no tuple.
    pub is_list: bool,
}

/// What the values of a map are.
#[derive(Clone, Debug, PartialEq)]
pub enum ValuePrint {
    /// Values.
    Plain(Shape),
    /// What comes of many values.
    Aggregate {
        /// How they are laid out.
        of: Aggregation,
        /// What is printed of it.
        show: Show,
        /// Whether the values that went in are signed.
        signed: bool,
    },
}

/// What is printed of an aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Show {
    /// The number itself: of counts, sums, the least and the greatest.
    Number,
    /// The average.
    Average,
    /// How many, their average and their sum.
    Statistics,
    /// A histogram.
    Histogram,
    /// A time series.
    Series,
}

impl Message {
    /// What parts it has, in their order; `None` where the number of parts is the emitter's (`join`).
    pub fn parts(&self, maps: &[MapPrint]) -> Option<Vec<PartKind>> {
        let of = |shape: &Shape| part_of(shape);
        Some(match self {
            Message::Print(_, format) | Message::Cat(format) | Message::System(format) => {
                format.arguments.iter().map(of).collect()
            }
            Message::Join { .. } => return None,
            Message::Time { .. } => Vec::new(),
            Message::PrintMap(_) => vec![PartKind::Word, PartKind::Word],
            Message::PrintKey(map) => {
                let map = maps.get(map.0 as usize)?;
                let key = map.key.as_ref().map(|key| PartKind::Bytes(key.shape.size()));
                let value = match &map.value {
                    ValuePrint::Plain(shape) => shape.size(),
                    ValuePrint::Aggregate { of, .. } => 8 * of.words(),
                };
                key.into_iter().chain([PartKind::Bytes(value)]).collect()
            }
            Message::PrintValue(shape) => vec![of(shape)],
            Message::Exit | Message::Result | Message::Error(..) => vec![PartKind::Word],
        })
    }
}

/// As what a value of a shape is sent: strings as text, so that only what they hold is sent; what fits in a word as a word, whose low bytes
/// are the value's; all else as its bytes.
pub fn part_of(shape: &Shape) -> PartKind {
    match shape {
        Shape::Text { room } => PartKind::Text(*room),
        Shape::Int { .. }
        | Shape::Bool
        | Shape::Float(8)
        | Shape::Pointer(_)
        | Shape::Enum { .. }
        | Shape::Time { .. }
        | Shape::Probe
        | Shape::Function
        | Shape::User
        | Shape::Error
        | Shape::Cgroup => PartKind::Word,
        other => PartKind::Bytes(other.size()),
    }
}
