//! Arguments at returns.
//!
//! At a return the argument registers hold something else. What a body at a return asks of the entry is kept there: an implied body at
//! the entry puts it in a map of its own, by what names the call, and the body at the return takes it out again.

use crate::check::tree::{self, Kind};
use crate::ir::{
    Body, Context, Expression, LocalId, Map, MapId, MapSharing, MapValue, Place, Readers, Statement, Width,
};

/// How many calls may be under way at once.
const CAPACITY: u32 = 65_536;

/// What a body at a return asks of the entry.
pub fn asked(body: &tree::Body) -> Vec<Context> {
    let mut asked = Vec::new();
    body.walk(&mut |value| {
        if let Kind::Context(
            context @ (Context::Argument(_) | Context::FloatRegister(_) | Context::Register(_)),
        ) = &value.kind
            && !asked.contains(context)
        {
            asked.push(*context);
        }
    });
    // `reg` is about the registers at the return.
    asked.retain(|context| !matches!(context, Context::Register(_)));
    asked
}

/// The map that keeps so many words for each call.
pub fn map(words: usize) -> Map {
    Map {
        name: "(arguments)".to_owned(),
        key: 8,
        value: MapValue::Bytes(8 * words as u32),
        capacity: CAPACITY,
        sharing: MapSharing::PerProcess(Readers::Nobody),
    }
}

/// The body at the entry.
pub fn entry(map: MapId, asked: &[Context]) -> Body {
    let mut code = vec![frame()];
    for (index, context) in asked.iter().enumerate() {
        let to = Place::Scratch(8 + 8 * index as u32);
        code.push(Statement::Store { to, as_: Width::Unsigned(8), value: Expression::Context(*context) });
    }
    code.push(Statement::MapSet { map, key: Place::Scratch(0), value: Place::Scratch(8), ok: None });
    Body { locals: Vec::new(), scratch: 8 + 8 * asked.len() as u32, code }
}

/// What stands at the beginning of the body at the return: the words are from 8 bytes behind `at` on. A call of which nothing could be kept, since
/// the map was full, is none to say anything of: its body ends, and the map has counted it.
pub fn take(map: MapId, at: u32, found: LocalId) -> Vec<Statement> {
    let (key, to) = (Place::Scratch(at), Place::Scratch(at + 8));
    let frame = Statement::Store {
        to: key.clone(),
        as_: Width::Unsigned(8),
        value: Expression::Context(Context::Call),
    };
    vec![
        frame,
        Statement::MapGet { map, key: key.clone(), to, found: Some(found) },
        Statement::If(Expression::Local(found), Vec::new(), vec![Statement::Return]),
        Statement::MapDelete { map, key, found: None },
    ]
}

fn frame() -> Statement {
    Statement::Store {
        to: Place::Scratch(0),
        as_: Width::Unsigned(8),
        value: Expression::Context(Context::Call),
    }
}
