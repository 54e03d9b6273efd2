//! What an arena says of its instructions, for unwinders that meet a thread there ([`trapless_isa::frames`]).
//!
//! Detours of one shape have the same rows, which are held once.

use std::collections::HashMap;
use trapless_isa::frames::{ARENA_FRAMES, ENTRY_SHIFT};

/// The index and the rows of one arena.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Offset in the arena, index of the first row, and site, of each piece of code in order.
    pieces: Vec<(u32, u32, u64)>,
    rows: Vec<u32>,
    known: HashMap<Vec<u32>, u32>,
}

/// The most that is appended to an arena of so many pieces, in bytes: an entry for each, and the rows, of which those of one shape are
/// held once. It is addresses that are kept, no memory. Where that is not enough, nothing is told.
pub(crate) fn room(pieces: usize) -> u64 {
    const ROWS: u64 = 256;
    const FIRST_ROWS: u64 = 64 << 10;
    (pieces as u64 + 1) * ((1 << ENTRY_SHIFT) + ROWS) + FIRST_ROWS
}

impl Frames {
    /// Adds the rows of the piece at `offset`, behind all others. One of which nothing is told ends walks.
    pub fn add(&mut self, offset: u64, site: u64, own: Vec<u32>) {
        let Ok(offset) = u32::try_from(offset) else { return };
        let all = &mut self.rows;
        let first = *self.known.entry(own).or_insert_with_key(|own| {
            let first = all.len() as u32;
            all.extend(own);
            first
        });
        self.pieces.push((offset, first, site));
    }

    /// Writes all behind `code`, and where it is into the filler at the start; nothing, where an arena would grow beyond `limit`.
    pub fn append(&self, code: &mut Vec<u8>, limit: u64) {
        let rows_at = code.len().next_multiple_of(8);
        let index_at = (rows_at + 4 * self.rows.len()).next_multiple_of(8);
        let end = index_at + 16 * self.pieces.len();
        let fits = end as u64 <= limit && u32::try_from(end).is_ok();
        let told = if fits { [index_at as u32, self.pieces.len() as u32] } else { [0, 0] };
        let place = ARENA_FRAMES as usize..ARENA_FRAMES as usize + size_of_val(&told);
        if let Some(place) = code.get_mut(place) {
            place.copy_from_slice(bytemuck::bytes_of(&told));
        }
        if !fits {
            return;
        }
        code.resize(rows_at, 0);
        code.extend_from_slice(bytemuck::cast_slice(&self.rows));
        code.resize(index_at, 0);
        for &(offset, first, site) in &self.pieces {
            let rows = rows_at as u32 + 4 * first;
            code.extend_from_slice(&offset.to_le_bytes());
            code.extend_from_slice(&rows.to_le_bytes());
            code.extend_from_slice(&site.to_le_bytes());
        }
    }
}
