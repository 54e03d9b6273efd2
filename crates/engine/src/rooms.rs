//! Bytes that several sites would change: which of them gets them, and where short jumps find room.

use crate::admit::{Best, Facts, best, room};
use crate::{Module, Refusal, Request, Stretch};
use std::{collections::BTreeMap, ops::Range};
use trapless_isa::{Displaced, Mechanism};

/// The bytes that sites change, by address, where some of them need room beside their own.
#[derive(Default)]
pub(crate) struct Rooms {
    /// Where they begin, and where they end.
    taken: BTreeMap<u64, u64>,
}

impl Rooms {
    /// Those of the sites that will be armed.
    pub(crate) fn new(verdicts: &[Result<Best<'_>, Refusal>], overlaps: &[Option<u64>]) -> Self {
        let passed = verdicts.iter().zip(overlaps).filter(|(_, overlaps)| overlaps.is_none());
        let passed = passed.filter_map(|(verdict, _)| verdict.as_ref().ok());
        // Mostly none does, and they are many.
        match passed.clone().any(|best| best.mechanism == Mechanism::Short) {
            true => {
                let taken = passed.flat_map(Best::changed).map(|range| (range.start, range.end));
                Self { taken: taken.collect() }
            }
            false => Self::default(),
        }
    }

    /// Finds room for a site that needs some. Where others have taken all there is, a trap has to do, if one is `allowed`.
    pub(crate) fn settle<'m>(
        &mut self,
        facts: &Facts,
        modules: &[Module<'m>],
        request: &Request<'m>,
        chosen: Best<'m>,
        allowed: &[Mechanism],
    ) -> Result<(Best<'m>, Option<Stretch<'m>>), Refusal> {
        if chosen.mechanism != Mechanism::Short {
            return Ok((chosen, None));
        }
        let refusal = match self.take(facts, modules, request, chosen.displaced) {
            Ok(room) => return Ok((chosen, Some(room))),
            Err(refusal) => refusal,
        };
        let traps: Vec<Mechanism> = allowed.iter().copied().filter(|mechanism| mechanism.traps()).collect();
        if request.mechanism.is_some() || traps.is_empty() {
            return Err(refusal);
        }
        best(facts, modules, request, &traps).map(|best| (Best { no_jump: Some(refusal), ..best }, None))
    }

    /// Room for a site, which is then taken.
    fn take<'m>(
        &mut self,
        facts: &Facts,
        modules: &[Module<'m>],
        request: &Request<'m>,
        displaced: Displaced,
    ) -> Result<Stretch<'m>, Refusal> {
        let taken = &self.taken;
        let is_taken = |range: Range<u64>| {
            taken.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
        };
        let room = room(facts, modules, request, displaced, &is_taken)?;
        self.taken.insert(room.displaced.start, room.displaced.end());
        Ok(room)
    }
}

/// Of each request, the address of one that came before it, passed, and changes some of the same bytes.
pub(crate) fn overlaps(requests: &[Request<'_>], verdicts: &[Result<Best<'_>, Refusal>]) -> Vec<Option<u64>> {
    let passed =
        verdicts.iter().enumerate().filter_map(|(index, verdict)| Some((index, verdict.as_ref().ok()?)));
    let mut places: Vec<(Range<u64>, usize)> =
        passed.flat_map(|(index, best)| best.changed().map(move |range| (range, index))).collect();
    places.sort_unstable_by_key(|(range, index)| (range.start, *index));
    let mut overlaps = vec![None; requests.len()];
    // The requests that share bytes with another one. Mostly there are none.
    let mut crowded = Vec::new();
    let mut rest = &places[..];
    while let Some((first, _)) = rest.first() {
        // Places that hang together, by their neighbours. Mostly it is one.
        let mut end = first.end;
        let together = rest.iter().take_while(|(range, _)| {
            let hangs = range.start == first.start || range.start < end;
            end = end.max(range.end);
            hangs
        });
        let (group, others) = rest.split_at(together.count());
        if group.len() > 1 {
            crowded.extend(group.iter().map(|(_, index)| *index));
        }
        rest = others;
    }
    crowded.sort_unstable();
    crowded.dedup();
    let mut chosen = BTreeMap::new();
    for index in crowded {
        let Ok(best) = &verdicts[index] else { continue };
        overlaps[index] = best.changed().find_map(|range| overlap(&chosen, &range));
        if overlaps[index].is_none() {
            let address = requests[index].address;
            chosen.extend(best.changed().map(|range| (range.start, (range.end, address))));
        }
    }
    overlaps
}

/// Address of a chosen site that shares bytes with `range`. Of each place that was chosen: where it begins, where it ends, and its site's
/// address.
fn overlap(chosen: &BTreeMap<u64, (u64, u64)>, range: &Range<u64>) -> Option<u64> {
    let (_, &(end, address)) = chosen.range(..range.end).next_back()?;
    (end > range.start).then_some(address)
}
