//! Arenas being written: every piece at its place.

use super::{
    Arena, Drawing, Drawn, LOADER_ALIGNMENT, MOVED_ALIGNMENT, Measured, MovedPiece, Piece, SHARE, STUBS,
    is_boosted, lead, past,
};
use crate::frames::{Frames, Shape};
use crate::{
    PlannedSite, Refusal, Stretch, Unwinder, spread,
    trap::{TrapBodies, TrapSite},
};
use std::{collections::BTreeMap, ops::Range, sync::Arc};
use trapless_isa::detour::signals::SIGNAL_WRAP;
use trapless_isa::frames::{Place, Point, rows};
use trapless_isa::{DetourRequest, Displaced, Facts, Slot};
use trapless_wire::{JournalSite, NOWHERE, SIGNS_AT_SITE};

impl<'m> Drawing<'_, 'm> {
    /// Writes all pieces.
    pub(super) fn write(
        &self,
        arenas: &BTreeMap<usize, Result<Arena, Refusal>>,
        measured: &[Result<Measured, Refusal>],
    ) -> Drawn {
        // Of those that are not written below: why.
        let refusals = self.plan.sites.iter().zip(measured).map(|(site, measured)| {
            let placed = arenas.get(&site.request.module).and_then(|arena| arena.as_ref().err());
            Err(placed.or(measured.as_ref().err()).cloned().unwrap_or(Refusal::TooManyModules))
        });
        let mut pieces: Vec<Result<Piece, Refusal>> = refusals.collect();
        let mut drawn: Vec<_> = self.stubs().into_iter().chain(self.program()).collect();
        for arena in arenas.values().flatten() {
            let shares: Vec<&[(Range<u64>, usize)]> = arena.pieces.chunks(SHARE).collect();
            let written = spread::each(&shares, |share| self.write_share(arena, share, measured));
            let mut code: Vec<u8> = arena.facts.filler(lead(arena.facts) as usize).collect();
            let mut frames = self.tells.then(Frames::default);
            if let Some(frames) = frames.as_mut().filter(|_| !arena.runtime.code.is_empty()) {
                frames.add(lead(arena.facts), 0, Arc::new(rows(&arena.runtime.frames, arena.facts.word)));
            }
            code.extend_from_slice(&arena.runtime.code);
            for (share, (part, own)) in shares.iter().zip(written) {
                if let Some((first, _)) = share.first() {
                    fill_up(&mut code, first.start, arena.facts);
                }
                code.extend_from_slice(&part);
                for ((_, index), mut piece) in share.iter().zip(own) {
                    if let (Some(frames), Ok(piece)) = (&mut frames, &mut piece)
                        && (piece.trap.is_none() || self.tells_of_slots(arena))
                    {
                        let site = &self.plan.sites[*index];
                        let rows = std::mem::take(&mut piece.rows);
                        frames.add(piece.address - arena.address, site.displaced.start, rows);
                        for ((_, stretch), moved) in site.moved().zip(&mut piece.moved) {
                            let rows = std::mem::take(&mut moved.rows);
                            frames.add(moved.address - arena.address, stretch.displaced.start, rows);
                        }
                    }
                    pieces[*index] = piece;
                }
            }
            if let Some(frames) = frames {
                frames.append(&mut code, arena.room);
            }
            drawn.push((arena.address, code));
        }
        Drawn { arenas: drawn, pieces }
    }

    /// The arena of the stubs of signal handlers, if the plan has any.
    fn stubs(&self) -> Option<(u64, Vec<u8>)> {
        let address = self.layout.signals?.arena;
        let isa = self.plan.modules[self.plan.signals().next()?.request.module].machine.isa();
        let stubs = isa.signal_code(self.layout).ok()?;
        let mut code: Vec<u8> = isa.facts().filler(SIGNAL_WRAP as usize).collect();
        code.extend_from_slice(&stubs.code);
        let mut frames = Frames::default();
        frames.add(u64::from(SIGNAL_WRAP), 0, Arc::new(rows(&stubs.frames, isa.facts().word)));
        frames.append(&mut code, STUBS);
        Some((address, code))
    }

    /// The arena of the plan's script, if that is not there already.
    fn program(&self) -> Option<(u64, Vec<u8>)> {
        let (script, address) =
            (self.plan.script?, self.script.program.filter(|_| !self.plan.home.is_armed())?);
        let isa = self.plan.modules.first()?.machine.isa();
        Some((address, script.drawn(isa, address, script.arena_size(isa), self.script.shared)))
    }

    /// Writes some pieces of an arena that follow each other.
    fn write_share(
        &self,
        arena: &Arena,
        share: &[(Range<u64>, usize)],
        measured: &[Result<Measured, Refusal>],
    ) -> (Vec<u8>, Vec<Result<Piece, Refusal>>) {
        let begin = share.first().map_or(0, |(range, _)| range.start);
        let mut code = Vec::with_capacity((share.last().map_or(0, |(range, _)| range.end) - begin) as usize);
        let mut pieces = Vec::with_capacity(share.len());
        for (range, index) in share {
            fill_up(&mut code, range.start - begin, arena.facts);
            let site = &self.plan.sites[*index];
            let address = arena.address + range.start;
            let piece = match site.traps() {
                true => self.slot(arena, *index, address, &mut code),
                false => {
                    let template = measured[*index].as_ref().ok().and_then(|measured| measured.template);
                    self.detour(arena, site, template, address, &mut code)
                }
            };
            let length = code.len() as u64 - (range.start - begin);
            pieces.push(match piece {
                Ok(_) if length > range.end - range.start => Err(Refusal::ArenaTooSmall),
                piece => piece,
            });
            code.truncate((range.end - begin) as usize);
        }
        (code, pieces)
    }

    /// Adds the detour of a site.
    fn detour(
        &self,
        arena: &Arena,
        site: &PlannedSite<'m>,
        template: Option<usize>,
        address: u64,
        code: &mut Vec<u8>,
    ) -> Result<Piece, Refusal> {
        let drawn = |tells: bool| {
            self.with_request(site, address, &arena.runtime, |request| {
                let request = DetourRequest { tells, ..*request };
                let filled = self.template(template).and_then(|template| template.fill(&request));
                let shape = filled.as_ref().and_then(|detour| Shape::of(template?, detour));
                let detour = filled.map_or_else(|| self.isa(site).detour(&request), Ok)?;
                Ok::<_, Refusal>((detour, shape))
            })
        };
        let (detour, shape) = drawn(false)?;
        let follows = detour.return_point.is_some();
        let (kept, signs) = if follows { self.kept(site) } else { (NOWHERE, 0) };
        let found =
            || drawn(true).map_or_else(|_| Vec::new(), |(told, _)| rows(&told.frames, arena.facts.word));
        code.extend_from_slice(&detour.code);
        let moved_from =
            |address: u64| move |&(from, offset): &(u64, u32)| (from, address + u64::from(offset));
        let mut piece = Piece {
            address,
            length: detour.code.len(),
            moved: Vec::new(),
            copy: 0,
            return_point: detour.return_point.map_or(0, |offset| address + u64::from(offset)),
            kept,
            signs,
            original: detour.original.map(|offset| address + u64::from(offset)),
            places: detour.places.iter().map(moved_from(address)).collect(),
            trap: None,
            rows: if self.tells { self.rows.of(shape, found) } else { Arc::default() },
        };
        for (kind, Stretch { displaced, original }) in site.moved() {
            let past = piece.copy_of(site.displaced.start).and_then(|copy| past(site, kind, copy));
            let offset = piece.length.next_multiple_of(MOVED_ALIGNMENT as usize);
            code.extend(arena.facts.filler(offset - piece.length));
            let address = address + offset as u64;
            let moved = self.isa(site).moved(&displaced, original, address, past)?;
            code.extend_from_slice(&moved.code);
            piece.length = offset + moved.code.len();
            piece.places.extend(moved.places.iter().map(moved_from(address)));
            let rows = if self.tells { rows(&moved.frames, arena.facts.word) } else { Vec::new() };
            piece.moved.push(MovedPiece { address, rows: Arc::new(rows) });
        }
        Ok(piece)
    }

    /// Where a followed call of a site's function has its return address, and how it is signed.
    fn kept(&self, site: &PlannedSite<'_>) -> (i16, u16) {
        let (isa, function) = (self.isa(site), site.site(&self.plan.modules));
        match JournalSite::signs_by(site.displaced.start, isa.return_signed_by(&function)) {
            Some(signs) => (JournalSite::keeps_at(isa.return_kept_at(&function)), signs),
            // No function is so long. What is signed far from the site is let be: nothing at the site signs.
            None => (NOWHERE, SIGNS_AT_SITE),
        }
    }

    /// Adds a slot, and behind it the landing pad of the returns.
    fn slot(&self, arena: &Arena, index: usize, address: u64, code: &mut Vec<u8>) -> Result<Piece, Refusal> {
        let site = &self.plan.sites[index];
        let isa = self.isa(site);
        let slot = isa.slot(&site.displaced, site.original(), address, is_boosted(site))?;
        let rows = match self.tells_of_slots(arena) {
            true => Arc::new(rows(&told(&slot, &site.displaced), arena.facts.word)),
            false => Arc::default(),
        };
        let after = self.changed.partition_point(|start| *start <= site.displaced.start);
        let next = self.changed.get(after).copied();
        let original = site.together(&self.plan.modules, next);
        let breakpoint = arena.facts.breakpoint;
        code.extend_from_slice(&slot.code);
        // A stepped `ret` to the pad must not look like the end of the copy.
        code.extend_from_slice(breakpoint);
        let pad = address + (slot.code.len() + breakpoint.len()) as u64;
        code.extend_from_slice(breakpoint);
        let behind = pad + breakpoint.len() as u64;
        let loader_at = behind.next_multiple_of(LOADER_ALIGNMENT as u64);
        let loader = self.loader(site, loader_at)?;
        if let Some(loader) = &loader {
            code.extend(arena.facts.filler((loader_at - behind) as usize));
            code.extend_from_slice(loader);
        }
        Ok(Piece {
            address,
            length: slot.code.len(),
            moved: Vec::new(),
            copy: slot.copy as u8,
            return_point: 0,
            kept: NOWHERE,
            signs: 0,
            original: None,
            places: vec![(site.displaced.start, site.displaced.start)],
            trap: Some(Box::new(TrapSite {
                address: site.displaced.start,
                displaced: site.displaced,
                original: original.to_vec(),
                mechanism: site.mechanism,
                slot_address: address,
                slot,
                pad,
                loader: loader.map(|_| loader_at),
                payload: site.payload(),
                operands: site.request.operands.unwrap_or_default().to_vec(),
                bodies: TrapBodies::of(&site.request.clauses),
                unwinds: site.request.wanted.unwinder == Some(Unwinder::Entry),
                machine: isa.machine(),
            })),
            rows,
        })
    }

    /// Whether it is told what instructions of slots stand for, and not only those of detours.
    fn tells_of_slots(&self, arena: &Arena) -> bool {
        self.tells && arena.facts.walks_by_chain
    }
}

/// What the instructions of a slot stand for: nothing moves the stack pointer there but the copy, which is one instruction where a thread may be
/// interrupted.
fn told(slot: &Slot, displaced: &Displaced) -> [Point; 4] {
    let end = slot.copy + u32::from(displaced.length);
    let length = slot.code.len() as u32;
    [
        Point::at(0, Place::Site(0), 0),
        Point::at(slot.copy, Place::Site(displaced.length), 0),
        // A branch that was taken goes on here.
        Point::at(end.min(length), Place::Site(0), 0),
        Point::unknown(length),
    ]
}

/// Makes `code` so long, with what nobody runs.
fn fill_up(code: &mut Vec<u8>, length: u64, facts: &Facts) {
    let missing = (length as usize).saturating_sub(code.len());
    code.extend(facts.filler(missing));
}
