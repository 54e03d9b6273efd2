//! What all bodies of a script share: constants, messages, maps.

use crate::ir::{ConstantId, MessageId, PartKind, Program};
use crate::message::{Message, Messages};
use std::collections::HashMap;

/// The program and its messages, as far as they are made.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The program.
    pub program: Program,
    /// What its messages mean.
    pub messages: Messages,
    constants: HashMap<Vec<u8>, ConstantId>,
}

impl Output {
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
