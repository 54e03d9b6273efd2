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
    /// Bodies that ask a map for keys which another thread may have, too.
    of_threads: HashSet<(BodyId, MapId)>,
    /// Those of them that another process may have.
    foreign: HashSet<(BodyId, MapId)>,
}

impl Output {
    /// The body that is made now asks the map for a key which another thread may have, too, and maybe one of another process.
    pub fn note_foreign(&mut self, map: MapId, of_process: bool) {
        let body = BodyId(self.program.bodies.len() as u32);
        self.of_threads.insert((body, map));
        if of_process {
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
