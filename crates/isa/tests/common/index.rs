//! What an arena says of its pieces ([`trapless_isa::frames`]), as the engine writes it.

use trapless_isa::frames::{ARENA_FRAMES, ENTRY_SHIFT, Point, rows};

/// A piece of code: its address, that of its site, and what its instructions stand for.
pub type Piece = (u64, u64, Vec<Point>);

/// What is written where, for the pieces of the arena at `arena`: the index with its rows at `at`, and where that is.
pub fn index(arena: u64, at: u64, pieces: &[Piece]) -> [(u64, Vec<u32>); 2] {
    let (mut index, mut all) = (Vec::new(), Vec::new());
    let (begin, count) = ((at - arena) as u32, pieces.len() as u32);
    for (start, site, points) in pieces {
        let rows_at = begin + (count << ENTRY_SHIFT) + 4 * all.len() as u32;
        index.extend([(start - arena) as u32, rows_at, *site as u32, (site >> 32) as u32]);
        all.extend(rows(points, 8).iter().flat_map(|row| [row.word, 0]));
    }
    [(at, [index, all].concat()), (arena + u64::from(ARENA_FRAMES), vec![begin, count])]
}
