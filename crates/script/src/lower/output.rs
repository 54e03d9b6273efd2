//! What all bodies of a script share: constants, messages, maps.

use crate::ir::{BodyId, ConstantId, MapId, MessageId, PartKind, Program};
use crate::message::{Message, Messages};
use std::collections::{HashMap, HashSet};

/// The program and its messages, as far as they are made.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The program.
    pub program: Program,
    /// What its messages mean.
    pub messages: Messages,
    constants: HashMap<Vec<u8>, ConstantId>,
    /// Where in a map's keys the thread's or the process's number is.
    numbers: HashMap<MapId, Vec<usize>>,
    /// Bodies that ask a map for keys which another thread may have, too.
    of_threads: HashSet<(BodyId, MapId)>,
    /// Those of them that another process may have.
    foreign: HashSet<(BodyId, MapId)>,
}

impl Output {
    /// The body that is made now asks the map for a key that has the thread's or the process's number there, and maybe is the thread's number.
    pub fn note_key(&mut self, map: MapId, number: Option<Vec<usize>>, is_tid: bool) {
        let body = BodyId(self.program.bodies.len() as u32);
        if !is_tid {
            self.of_threads.insert((body, map));
        }
        // Where others have it at another place, what is the number of one may be what another one asks for.
        let is_theirs = match number {
            Some(number) => *self.numbers.entry(map).or_insert_with(|| number.clone()) != number,
            None => true,
        };
        if is_theirs {
            self.foreign.insert((body, map));
        }
    }

    /// Whether a body asks a map for keys which another thread may have, too.
    pub fn is_of_threads(&self, body: BodyId, map: MapId) -> bool {
        self.of_threads.contains(&(body, map))
    }

    /// Whether a body asks a map for keys which another process may have, too.
    pub fn is_foreign(&self, body: BodyId, map: MapId) -> bool {
        self.foreign.contains(&(body, map))
    }

    /// Constant bytes. Equal ones are kept once.
    pub fn constant(&mut self, bytes: Vec<u8>) -> ConstantId {
        if let Some(known) = self.constants.get(&bytes) {
            return *known;
        }
        let id = ConstantId(self.program.constants.len() as u32);
        self.program.constants.push(bytes.clone());
        self.constants.insert(bytes, id);
        id
    }

    /// A kind of message. Equal ones have one number.
    pub fn message(&mut self, message: Message, join: u32) -> MessageId {
        if let Some(known) = self.messages.messages.iter().position(|known| *known == message) {
            return MessageId(known as u32);
        }
        let parts = message.parts(&self.messages.maps).unwrap_or_else(|| {
            let texts = std::iter::repeat_n(PartKind::Text(join), super::call::JOINED);
            [PartKind::Word].into_iter().chain(texts).collect()
        });
        self.messages.messages.push(message);
        self.program.messages.push(parts);
        MessageId(self.messages.messages.len() as u32 - 1)
    }
}
