//! What a body works on, beside its own locals and scratch.
//!
//! Three traits, so that each can be had from elsewhere: a probe that traps takes registers and memory from a stopped target, its maps from
//! the memory that it shares with it, and tells its messages to the same printer as a probe that runs in the tool itself.

use super::Added;
use crate::ir::{Change, Context, Kin, MapId, MessageId, Scalar, StackWalk};

/// All that a run of a body is given.
pub struct Host<'a> {
    /// The hit.
    pub hit: &'a mut dyn Hit,
    /// The program's maps.
    pub maps: &'a mut dyn Maps,
    /// Where messages go.
    pub sink: &'a mut dyn Sink,
}

/// What is known of a hit, and the process and thread that it happened in.
pub trait Hit {
    /// A value of the hit. What cannot be had is 0.
    fn context(&mut self, what: Context) -> u64;

    /// Reads memory of the process from an address on, and gives how many bytes could be read: all ahead of the first one that could not.
    /// The rest of `into` does not matter. The range does not wrap around the end of the address space.
    fn read(&mut self, address: u64, into: &mut [u8]) -> usize;

    /// An argument of the USDT probe, from 0 on: an integer of 64 bits, or the bits of a double. `None` where it cannot be read, as where no such
    /// probe was hit.
    fn operand(&mut self, argument: u8, scalar: Scalar) -> Option<u64> {
        _ = (argument, scalar);
        None
    }

    /// The number of the call stack, cut to `frames` frames (1 to 127); 0 if it could not be kept.
    fn stack(&mut self, frames: u8, by: StackWalk) -> u64;

    /// Name of the thread, zero-padded.
    fn thread_name(&mut self) -> [u8; 16];

    /// Name of a process, zero-padded. Without an implementation nobody tells it.
    fn process_name(&mut self, of: Kin) -> [u8; 16] {
        _ = of;
        [0; 16]
    }

    /// Sends the process a signal. A number that is none does nothing.
    fn signal(&mut self, signal: i64);

    /// Has the thread sleep for so many nanoseconds, from 1 to [`MOST_DELAY`](crate::ir::MOST_DELAY). Without an implementation it does not.
    fn delay(&mut self, nanoseconds: u64) {
        _ = nanoseconds;
    }

    /// Has the call do something else. Without an implementation it does what it does.
    fn change(&mut self, what: Change, to: u64) {
        _ = (what, to);
    }

    /// Whether the run has to end though there is fuel. It is asked ahead of each round of a loop.
    fn is_out_of_time(&mut self) -> bool {
        false
    }
}

/// The maps of a program. Keys have the length that the map's declaration says, values the length of
/// [`MapValue::size`](crate::ir::MapValue::size).
pub trait Maps {
    /// The value of a key, or the words of its aggregation over all threads. Gives whether the key is there; if it is not, `into` does not
    /// matter.
    fn load(&mut self, map: MapId, key: &[u8], into: &mut [u8]) -> bool;

    /// Writes the value of a key. Gives whether there was room.
    fn set(&mut self, map: MapId, key: &[u8], value: &[u8]) -> bool;

    /// Adds to an 8-byte integer, wrapping, and gives what it was before; a key that is not there is put in with 0 first. `None` if there
    /// was no room.
    fn add(&mut self, map: MapId, key: &[u8], amount: u64) -> Option<u64>;

    /// Takes a key out. Gives whether it was there.
    fn delete(&mut self, map: MapId, key: &[u8]) -> bool;

    /// Whether a key is there.
    fn has(&mut self, map: MapId, key: &[u8]) -> bool;

    /// How many keys there are.
    fn length(&mut self, map: MapId) -> u64;

    /// Takes all keys out.
    fn clear(&mut self, map: MapId);

    /// Makes all values 0.
    fn zero(&mut self, map: MapId);

    /// Adds to an aggregation ([`add`](super::add)). A key that is not there is put in with zeros first. Gives whether there was room.
    fn aggregate(&mut self, map: MapId, key: &[u8], added: Added) -> bool;

    /// How many additions to a map were dropped because it was full, so far. Of [`Maps::set`], the body is told at once.
    fn dropped(&self, map: MapId) -> u64;

    /// All keys that are there now.
    fn keys(&mut self, map: MapId) -> Vec<Vec<u8>>;

    /// All keys that are there now with their values, each of `size` bytes.
    fn entries(&mut self, map: MapId, size: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let keys = self.keys(map);
        keys.into_iter()
            .filter_map(|key| {
                let mut value = vec![0; size];
                self.load(map, &key, &mut value).then_some((key, value))
            })
            .collect()
    }
}

/// Where messages go.
pub trait Sink {
    /// Takes a message. Its parts are what [`Program::messages`](crate::ir::Program::messages) says: a word's 8 bytes, bytes, or what was
    /// sent of a text. The maps are those of the run, as they are at this moment: `print(@m)` shows them so.
    fn emit(&mut self, maps: &mut dyn Maps, message: MessageId, parts: &[&[u8]]);
}
