//! What an arena says of its instructions, for unwinders that meet a thread there ([`trapless_isa::frames`]).
//!
//! Detours of one shape have the same rows, which are held once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use trapless_isa::Detour;
use trapless_isa::frames::{ARENA_FRAMES, ENTRY_SHIFT, ROW_SHIFT, Row, Saved};

/// What the instructions of detours stand for, found once for each shape.
#[derive(Debug, Default)]
pub(crate) struct Rows(Mutex<HashMap<Shape, Arc<Vec<Row>>>>);

/// Detours of one template whose displaced instructions, all copied as long as they were, begin at the same offsets: a bit for each. Between
/// those ahead of the probed one and the others is what the probe does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    template: usize,
    begins: u64,
    /// From which on they lie farther from the first than in the original.
    farther: u64,
}

impl Shape {
    /// That of a detour from a template, if copies and originals lie at the same distances.
    pub fn of(template: usize, detour: &Detour) -> Option<Self> {
        let &(site, copy) = detour.places.first()?;
        let apart = |place: &(u64, u32)| {
            let distance = place.0.checked_sub(site)?;
            Some((distance, u64::from(place.1.checked_sub(copy)?).checked_sub(distance)?))
        };
        let (_, between) = apart(detour.places.last()?)?;
        let (mut begins, mut farther) = (0, 0);
        for place in &detour.places {
            let (distance, longer) = apart(place)?;
            let bit = 1u64.checked_shl(distance.try_into().ok()?)?;
            begins |= bit;
            if longer != 0 {
                farther |= bit;
            }
            if longer != 0 && longer != between {
                return None;
            }
        }
        Some(Self { template, begins, farther })
    }
}

impl Rows {
    /// The rows of a shape, found by `find` where nobody has yet.
    pub fn of(&self, shape: Option<Shape>, find: impl FnOnce() -> Vec<Row>) -> Arc<Vec<Row>> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shape) = shape else { return Arc::new(find()) };
        if let Some(rows) = known().get(&shape) {
            return rows.clone();
        }
        let found = Arc::new(find());
        known().entry(shape).or_insert(found).clone()
    }
}

/// The index and the rows of one arena.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Offset in the arena, index of the first row, and site, of each piece of code in order.
    pieces: Vec<(u32, u32, u64)>,
    rows: Vec<Row>,
    known: HashMap<Arc<Vec<Row>>, u32>,
    /// The same by where they are held, which they are for as long as this is.
    places: HashMap<usize, (u32, Arc<Vec<Row>>)>,
}

/// The most that is appended to an arena of so many pieces, in bytes: an entry for each, and the rows, of which those of one shape are
/// held once. It is addresses that are kept, no memory. Where that is not enough, nothing is told.
pub(crate) fn room(pieces: usize) -> u64 {
    const ROWS: u64 = 768;
    const FIRST_ROWS: u64 = 64 << 10;
    (pieces as u64 + 1) * ((1 << ENTRY_SHIFT) + ROWS) + FIRST_ROWS
}

impl Frames {
    /// Adds the rows of the piece at `offset`, behind all others. One of which nothing is told ends walks.
    pub fn add(&mut self, offset: u64, site: u64, own: Arc<Vec<Row>>) {
        let Ok(offset) = u32::try_from(offset) else { return };
        let all = &mut self.rows;
        let &mut (first, _) = self.places.entry(Arc::as_ptr(&own) as usize).or_insert_with(|| {
            let first = *self.known.entry(own.clone()).or_insert_with_key(|own| {
                let first = all.len() as u32;
                all.extend(own.iter());
                first
            });
            (first, own)
        });
        self.pieces.push((offset, first, site));
    }

    /// Writes all behind `code`, and where it is into the filler at the start; nothing, where an arena would grow beyond `limit`.
    pub fn append(&self, code: &mut Vec<u8>, limit: u64) {
        let rows_at = code.len().next_multiple_of(8);
        let saved_at = rows_at + (self.rows.len() << ROW_SHIFT);
        // What only handlers are shown stands behind what is known of the registers.
        let known = |row: &Row| (row.saved, row.for_handlers);
        let mut saved: Vec<u8> = Vec::new();
        let mut places: HashMap<_, u32> = HashMap::from([((Saved::default(), None), 0)]);
        for row in &self.rows {
            places.entry(known(row)).or_insert_with(|| {
                let at = (saved_at + saved.len()) as u32;
                saved.extend_from_slice(&row.saved.0);
                saved.extend(row.for_handlers);
                at
            });
        }
        let index_at = (saved_at + saved.len()).next_multiple_of(8);
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
        for row in &self.rows {
            code.extend_from_slice(&row.word.to_le_bytes());
            code.extend_from_slice(&places[&known(row)].to_le_bytes());
        }
        code.extend_from_slice(&saved);
        code.resize(index_at, 0);
        for &(offset, first, site) in &self.pieces {
            let rows = rows_at as u32 + (first << ROW_SHIFT);
            code.extend_from_slice(&offset.to_le_bytes());
            code.extend_from_slice(&rows.to_le_bytes());
            code.extend_from_slice(&site.to_le_bytes());
        }
    }
}
