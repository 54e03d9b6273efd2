//! Which parts of a detour are copies of the program's instructions, and which are its own?
//!
//! ```text
//!     instructions ahead of the probed one            mostly none
//!     what the probe does there
//!     the probed instruction and what follows it
//!     what the probe does where the function is left  only if that is done in the same detour
//!     the instruction that leaves it
//!     the way back
//! ```

use super::decode::decoder;
use super::frames;
use super::relocate::{Relocated, relocate_past};
use crate::detour::*;
use crate::frames::{Place, Point};
use crate::payload::Way;
use crate::{Displaced, Past, Reason};
use alloc::vec::Vec;
use core::ops::Range;

/// How many runs of instructions are copied: those ahead, those from the probed one on, and those from the exit on.
pub(super) const RUNS: usize = 3;

/// Displaced instructions with their bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub displaced: Displaced,
    pub original: &'a [u8],
    /// Whether a jump back to where these begin meets the probe again: at an entry it is no call, elsewhere it is a hit.
    is_met_again: bool,
}

impl Part<'_> {
    /// Rewritten to run at `destination`.
    pub fn moved(&self, bits: u32, destination: u64) -> Result<Relocated, Reason> {
        let start = self.displaced.start;
        let again = self.is_met_again.then_some(Past { function: start, start, copy: start });
        relocate_past(bits, &self.displaced, self.original, destination, again)
    }
}

/// The runs that the displaced instructions of a request are copied in.
pub(super) fn parts<'a>(request: &DetourRequest<'a>) -> [Part<'a>; RUNS] {
    let all = request.displaced;
    let length = usize::from(all.length).min(request.original.len());
    let probed = (request.site.address.saturating_sub(all.start) as usize).min(length);
    let exit = match request.payload.followed.map(|followed| followed.way) {
        Some(Way::Through { exit, .. }) => usize::from(exit).clamp(probed, length),
        _ => length,
    };
    let is_inside = request.site.address != request.site.function;
    let mut left = all.instructions;
    [0..probed, probed..exit, exit..length].map(|run| {
        let original = &request.original[run.clone()];
        let start = all.start.wrapping_add(run.start as u64);
        // What is filler belongs to no instruction.
        let instructions = match run.end == length {
            true if run.is_empty() => 0,
            true => left,
            false => decoder(64, original, start).iter().count() as u8,
        };
        left = left.saturating_sub(instructions);
        let is_met_again = is_inside && start == request.site.address;
        Part { displaced: Displaced { start, length: run.len() as u8, instructions }, original, is_met_again }
    })
}

/// Where everything is in a finished detour.
pub(super) struct Pieces {
    /// Offsets of the copies of each run, and where they end.
    runs: [Range<u32>; RUNS],
    /// How many instructions are ahead of the exit's run, and ahead of the probed one's.
    counts: [usize; 2],
    /// [`Detour::places`].
    pub places: Vec<(u64, u32)>,
}

impl Pieces {
    /// Those of a detour in which the copies of the runs lie at these offsets, and the branch behind them at `back`.
    pub fn new(
        request: &DetourRequest<'_>,
        copies: &[Relocated; RUNS],
        offsets: [u32; RUNS],
        back: u32,
    ) -> Self {
        let moved = copies.iter().zip(offsets);
        let moved = moved.flat_map(|(run, at)| run.places.iter().map(move |place| (place.0, at + place.1)));
        let places = moved.chain([(request.displaced.end(), back)]).collect();
        let [ahead, probed, _] = [0, 1, 2].map(|run: usize| copies[run].places.len());
        let runs = [0, 1, 2].map(|run: usize| offsets[run]..offsets[run] + copies[run].code.len() as u32);
        Self { runs, counts: [ahead, ahead + probed], places }
    }

    /// What all instructions of the detour's `code` stand for.
    pub fn frames(
        &self,
        bits: u32,
        request: &DetourRequest<'_>,
        code: &[u8],
        return_point: Option<u32>,
    ) -> Vec<Point> {
        let [ahead, probed, exit] = &self.runs;
        let stands = |place: usize| {
            let address = self.places.get(place).map_or(0, |place| place.0);
            Place::Site(u8::try_from(address.wrapping_sub(request.displaced.start)).unwrap_or_default())
        };
        let back = self.places.last().map_or(0, |back| back.1 + 1);
        let last = if exit.is_empty() { probed.start } else { exit.start };
        let (mut roots, mut skip) =
            (alloc::vec![(ahead.end, stands(self.counts[0]))], alloc::vec![last..back]);
        if !probed.is_empty() && !exit.is_empty() {
            roots.push((probed.end, stands(self.counts[1])));
            skip.push(probed.clone());
        }
        roots.extend(return_point.map(|offset| (offset, Place::Caller)));
        let own = frames::points(bits, request.stack, code, &roots, &skip);
        self.with_copies(bits, request, code, &own)
    }

    /// Points of the detour's own instructions with those of the copies, as they are in `code`.
    pub fn with_copies(
        &self,
        bits: u32,
        request: &DetourRequest<'_>,
        code: &[u8],
        own: &[Point],
    ) -> Vec<Point> {
        let [ahead, probed, exit] = &self.runs;
        let [first, second] = self.counts;
        let mut all = own.to_vec();
        // The last run goes on into the branch back, the others into what the probe does.
        let last = if exit.is_empty() { first } else { second };
        let mut runs = alloc::vec![self.places[last..].to_vec()];
        for (run, end) in [(0..first, ahead.end), (first..last, probed.end)] {
            if let Some(next) = self.places.get(run.end).filter(|_| !run.is_empty()) {
                runs.push(self.places[run].iter().copied().chain([(next.0, end)]).collect());
            }
        }
        for run in runs {
            all = frames::join(&all, frames::displaced(bits, code, &run, request.displaced.start));
        }
        all
    }
}
