//! What a script brings into a target: the code of its bodies, and memory that only they know what to do with.
//!
//! Its pieces lie in an arena of their own, the *program*, one behind the other: routines, then bodies. Detours call bodies by their
//! addresses, so all sites of a clause share one, and the arena may lie anywhere. It is mapped when the session is armed, and sites that
//! are added later call the bodies that it has.
//!
//! The memory is a part of the shared region ([`Header::script`]), and one of each thread's block ([`Header::script_block`]). What is in
//! them is not the engine's business, but for what the shared part begins with.

use crate::frames::Frames;
use crate::own_stacks::OwnStacks;
use crate::{EngineError, Interpreter, Region};
use std::ops::Range;
use std::sync::Arc;
use trapless_isa::body::{Code, Program, Run, Takes};
use trapless_isa::frames::{Row, rows};
use trapless_isa::operand::NotRead;
use trapless_isa::passed::Passed;
use trapless_isa::{EntryStep, Facts, Followed, Isa, Machine, Payload, ReturnStep, Steps, Way};
use trapless_wire::{
    Header, PAGE, SCRIPT_ARENAS, SCRIPT_BLOCK, SCRIPT_GOROUTINES, SCRIPT_ORIGIN, SCRIPT_SEED,
    SCRIPT_SHADOW_BITS, SCRIPT_SHADOWS, ThreadMemory, Words, WordsMut,
};

/// A program with the memory that it works in.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Its code.
    pub program: Program,
    /// What its shared memory begins with. The rest is 0.
    pub shared: Vec<u8>,
    /// Size of its shared memory, in bytes.
    pub shared_size: u64,
    /// Size of what it has in each thread's block, in bytes. It begins as 0.
    pub block_size: u32,
    /// What its bodies need to walk stacks, if they do.
    pub walks: Option<Walks>,
    /// What runs its bodies at sites that trap, if anything does.
    pub interpreter: Option<Arc<dyn Interpreter>>,
}

/// What walks of stacks need to know of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walks {
    /// Its unwind tables ([`trapless_wire::unwind`]), and where they go in the shared memory.
    pub tables: (u64, Arc<[u8]>),
}

impl Script {
    /// What its random numbers begin with.
    pub(crate) fn seed(&self) -> u64 {
        let at = SCRIPT_SEED as usize;
        let bytes = self.shared.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    /// Writes what the script's shared memory begins with.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn write(&self, region: &Region, header: &Header, stacks: OwnStacks) -> Result<(), EngineError> {
        region.write(header.script, &self.shared)?;
        region.set_word(header.script + u64::from(SCRIPT_ORIGIN), header.threads);
        for (at, value) in stacks.words() {
            region.set_word(header.script + u64::from(at), value);
        }
        let goroutines = u64::from(header.stacks_size > 0);
        region.set_word(header.script + u64::from(SCRIPT_GOROUTINES), goroutines);
        let Some(Walks { tables: (at, tables) }) = &self.walks else { return Ok(()) };
        region.write(header.script + at, tables)?;
        let follows = header.slot_shift != 0;
        let layout = header.layout(ThreadMemory::default());
        for (at, value) in [
            (SCRIPT_SHADOWS, if follows { layout.first_tag() } else { 0 }),
            (SCRIPT_SHADOW_BITS, header.return_bits),
            (SCRIPT_ARENAS, header.arena_list()),
        ] {
            region.set_word(header.script + u64::from(at), value);
        }
        Ok(())
    }
}

/// One clause of a script at a site: a body that is called there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clause {
    /// The number of its body, in [`Program::bodies`].
    pub body: u16,
    /// What that takes: [`Code::takes`].
    pub takes: Takes,
    /// What it uses of the stack: [`Code::frame`].
    pub frame: u32,
    /// [`Code::vectors`].
    pub vectors: bool,
    /// [`Code::calculates`].
    pub calculates: bool,
    /// [`Code::counts`].
    pub counts: Option<u32>,
}

/// The clauses of a site, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clauses<'m> {
    /// At the entry, or wherever the site is.
    pub entry: &'m [Clause],
    /// At the return.
    pub at_return: &'m [Clause],
    /// The number of the site that their bodies are told: the caller's, and below [`AT_RETURN`].
    pub site: u32,
    /// What each of [`Self::entry`] is given of a USDT probe's operands, if any asks for some; or which of them cannot be told there, and why.
    pub operands: Result<&'m [Vec<Passed>], (u8, NotRead)>,
}

impl Default for Clauses<'_> {
    fn default() -> Self {
        Self { entry: &[], at_return: &[], site: 0, operands: Ok(&[]) }
    }
}

impl Clauses<'_> {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entry.is_empty() && self.at_return.is_empty()
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Clause> {
        self.entry.iter().chain(self.at_return)
    }

    /// The first of some clauses that does nothing but count, by its index, and in which word of the block.
    pub(crate) fn counting(clauses: &[Clause]) -> Option<(usize, u32)> {
        clauses.iter().enumerate().find_map(|(index, clause)| Some((index, clause.counts?)))
    }

    /// What a detour does that calls these and collects nothing else. Calls that it could not follow it counts in the word `lost` of the block.
    #[must_use]
    pub fn payload(&self, lost: u32) -> Payload {
        let steps = |clauses: &[Clause]| {
            let (index, counter) = Self::counting(clauses).unzip();
            (counter, Self::takes(clauses, index))
        };
        let ((counter, takes), (counter_at_return, takes_at_return)) =
            (steps(self.entry), steps(self.at_return));
        Payload {
            entry: Steps::some_of([counter.map(EntryStep::Count), takes.map(EntryStep::Run)]),
            followed: (!self.at_return.is_empty()).then(|| Followed {
                lost,
                steps: Steps::some_of([
                    counter_at_return.map(ReturnStep::Count),
                    takes_at_return.map(ReturnStep::Run),
                ]),
                way: Way::Paired,
            }),
            ..Payload::default()
        }
    }

    /// The calls of their bodies that such a detour makes, at the entry and at the return, where the script's arena stands at `address`.
    #[must_use]
    pub fn runs(&self, script: &Script, address: u64) -> [Vec<Run<'static>>; 2] {
        let called = |clauses, site| {
            let without = Self::counting(clauses).map(|one| one.0);
            script.runs((clauses, without), address, site, &[])
        };
        [called(self.entry, self.site), called(self.at_return, self.site | AT_RETURN)]
    }

    /// Each of them by its index, but for the one `without`.
    fn called(clauses: &[Clause], without: Option<usize>) -> impl Iterator<Item = (usize, &Clause)> {
        clauses.iter().enumerate().filter(move |(index, _)| Some(*index) != without)
    }

    /// What some of them take together, but for the one `without`; `None` where there are no others.
    pub(crate) fn takes(clauses: &[Clause], without: Option<usize>) -> Option<Takes> {
        Self::called(clauses, without).map(|(_, clause)| clause.takes).reduce(Takes::or)
    }
}

/// What is in the number that a body is told of its site, besides the site's, if it runs at a return.
pub const AT_RETURN: u32 = 1 << 30;

/// Pieces start at multiples of this.
const ALIGNMENT: u64 = 32;

/// The most that the code of a program takes.
const MOST_CODE: u64 = 64 << 20;

impl Script {
    /// A clause that calls the body with this number, if there is one. A script that has no code at all, but is interpreted, has all.
    #[must_use]
    pub fn clause(&self, body: u16) -> Option<Clause> {
        match self.program.bodies.get(usize::from(body)) {
            Some(&Code { takes, frame, vectors, calculates, counts, .. }) => {
                Some(Clause { body, takes, frame, vectors, calculates, counts })
            }
            None if self.program.bodies.is_empty() && self.interpreter.is_some() => {
                Some(Clause { body, ..Clause::default() })
            }
            None => None,
        }
    }

    /// Whether detours can call all of these.
    pub(crate) fn has_code(&self, clauses: &Clauses<'_>) -> bool {
        clauses.all().all(|clause| usize::from(clause.body) < self.program.bodies.len())
    }

    /// Why one of these does not run at a trap.
    pub(crate) fn untraced(&self, clauses: &Clauses<'_>, machine: Machine) -> Option<&'static str> {
        let Some(interpreter) = &self.interpreter else { return Some("nothing interprets it there") };
        clauses.all().find_map(|clause| interpreter.refuses(clause.body, machine))
    }

    /// Fails if a piece is not [sound](Code::is_sound), or there is too much.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] says which.
    pub fn check(&self) -> Result<(), EngineError> {
        let Program { routines, bodies } = &self.program;
        let mut pieces = routines.iter().chain(bodies);
        if !pieces.all(|piece| piece.is_sound(routines.len()))
            || routines.iter().any(|r| r.takes != Takes::NONE)
        {
            return Err(EngineError::Unsupported("a body of the script is not well-formed"));
        }
        if self.size() > MOST_CODE || routines.len().max(bodies.len()) > usize::from(u16::MAX) {
            return Err(EngineError::Unsupported("the script's code is too large"));
        }
        let own = SCRIPT_BLOCK..SCRIPT_BLOCK.saturating_add(self.block_size);
        if bodies.iter().filter_map(|body| body.counts).any(|word| !own.contains(&word)) {
            return Err(EngineError::Unsupported("a body of the script counts in what is not the script's"));
        }
        if self.shared.len() as u64 > self.shared_size {
            return Err(EngineError::Unsupported("the script's memory is smaller than what it begins with"));
        }
        Ok(())
    }

    /// Offset in the arena of each routine and then of each body, and behind them its end.
    fn offsets(&self) -> (Vec<u64>, u64) {
        let mut end = ALIGNMENT;
        let pieces = self.program.routines.iter().chain(&self.program.bodies);
        let offsets = pieces.map(|piece| {
            let offset = end;
            end = (offset + piece.bytes.len() as u64).next_multiple_of(ALIGNMENT);
            offset
        });
        (offsets.collect(), end)
    }

    fn size(&self) -> u64 {
        self.offsets().1
    }

    /// Bytes of address space that its arena takes, with what is told of its instructions.
    #[must_use]
    pub fn arena_size(&self, isa: &dyn Isa) -> u64 {
        let told: usize = self.rows(isa).iter().map(|rows| rows.len()).sum();
        let pieces = self.program.routines.len() + self.program.bodies.len();
        let most = |each: usize, count: usize| (each * count) as u64;
        // For each row also what was saved there; for each piece its entry; and what aligns them.
        (self.size() + most(8 + 16 + 1, told) + most(16, pieces) + PAGE).next_multiple_of(PAGE)
    }

    fn rows(&self, isa: &dyn Isa) -> Vec<Vec<Row>> {
        let pieces = self.program.routines.iter().chain(&self.program.bodies);
        pieces.map(|piece| rows(&isa.body_frames(&piece.bytes), isa.facts().word)).collect()
    }

    /// The arena's bytes: it stands at `address`, and takes `size`; the shared memory stands at `shared`.
    #[must_use]
    pub fn drawn(&self, isa: &dyn Isa, address: u64, size: u64, shared: u64) -> Vec<u8> {
        let facts: &Facts = isa.facts();
        let (offsets, end) = self.offsets();
        let mut code: Vec<u8> = Vec::with_capacity(size as usize);
        let mut frames = Frames::default();
        let routine = |number: u16| offsets.get(usize::from(number)).map_or(0, |offset| address + offset);
        let pieces = self.program.routines.iter().chain(&self.program.bodies);
        for ((piece, &offset), rows) in pieces.zip(&offsets).zip(self.rows(isa)) {
            code.extend(facts.filler((offset as usize).saturating_sub(code.len())));
            code.extend_from_slice(&piece.placed(address + offset, shared, routine));
            frames.add(offset, 0, Arc::new(rows));
        }
        code.extend(facts.filler((end as usize).saturating_sub(code.len())));
        frames.append(&mut code, size);
        code
    }

    /// The calls of some clauses, but for the one `without`, at the site with this number, where the arena stands at `address`. `operands`: what
    /// each clause is given, if any is given some.
    pub(crate) fn runs<'o>(
        &self,
        (clauses, without): (&[Clause], Option<usize>),
        address: u64,
        site: u32,
        operands: &'o [Vec<Passed>],
    ) -> Vec<Run<'o>> {
        if clauses.is_empty() {
            return Vec::new();
        }
        let (offsets, _) = self.offsets();
        let first = self.program.routines.len();
        let place = |body: u16| offsets.get(first + usize::from(body)).map_or(0, |offset| address + offset);
        let run = |(index, &Clause { body, takes, frame, vectors, calculates, .. }): (usize, &Clause)| {
            let operands = operands.get(index).map_or(&[][..], Vec::as_slice);
            Run { body: place(body), takes, frame, vectors, calculates, site, operands }
        };
        Clauses::called(clauses, without).map(run).collect()
    }
}

/// The memory of a script, as the tool that armed it sees it. It lives on when the target is gone.
#[derive(Clone, Debug)]
pub struct ScriptMemory {
    region: Arc<Region>,
    header: Header,
}

impl ScriptMemory {
    /// That of a session with this header, whose region this is. `None` where it has none.
    #[must_use]
    pub fn of(region: &Arc<Region>, header: &Header) -> Option<Self> {
        (header.program != 0).then(|| Self { region: region.clone(), header: *header })
    }

    /// All shared memory of the session: offsets of everything else are from its start.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The shared part, as offsets in the region.
    #[must_use]
    pub fn shared(&self) -> Range<u64> {
        self.header.script..self.header.script + self.header.script_size
    }

    /// How many blocks have been claimed, the overflow block among them, which comes first.
    #[must_use]
    pub fn claimed(&self) -> u64 {
        self.region.word(Header::CURSOR_OFFSET).min(self.header.block_count)
    }

    /// The part in the block with this number, from 1 on, as offsets in the region.
    #[must_use]
    pub fn block(&self, number: u64) -> Range<u64> {
        let start = self.header.blocks_offset
            + number * self.header.block_stride
            + u64::from(self.header.script_block);
        start..start + u64::from(self.header.script_block_size)
    }

    /// Each of the parts in blocks that threads of the process have claimed.
    pub fn blocks(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        (1..self.claimed()).filter(|number| self.origin(*number) != 0).map(|number| self.block(number))
    }

    /// Each of those that belong to children, which were forked or share the memory. They run no bodies; what their detours have counted
    /// without calling any ([`Code::counts`]) is there.
    pub fn children(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        (1..self.claimed()).filter(|number| self.origin(*number) == 0).map(|number| self.block(number))
    }

    /// The part in the overflow block: what all threads without a block of their own have counted that way.
    #[must_use]
    pub fn overflow(&self) -> Range<u64> {
        self.block(0)
    }

    /// 0 in a child's block.
    fn origin(&self, number: u64) -> u64 {
        self.block_word(number, trapless_isa::detour::BLOCK_ORIGIN)
    }

    /// The sum of a word over all blocks, the overflow block among them.
    #[must_use]
    pub fn sum(&self, offset: u32) -> u64 {
        (0..self.claimed()).map(|number| self.block_word(number, offset)).fold(0, u64::wrapping_add)
    }

    /// A word of the block with this number.
    #[must_use]
    pub fn block_word(&self, number: u64, offset: u32) -> u64 {
        self.region.word(self.header.blocks_offset + number * self.header.block_stride + u64::from(offset))
    }

    /// The thread pointer of the thread that has claimed the block with this number.
    #[must_use]
    pub fn owner(&self, number: u64) -> u64 {
        self.block_word(number, trapless_isa::detour::BLOCK_OWNER)
    }

    /// Hits for which bodies were not called, and what they found no room for ([`trapless_isa::detour::BLOCK_UNRUN`]): of threads without a
    /// block, of children that were forked or share the memory, and of all others.
    #[must_use]
    pub fn unrun(&self) -> Unrun {
        use trapless_isa::detour::BLOCK_UNRUN;
        let mut all = Unrun { without_block: self.block_word(0, BLOCK_UNRUN), ..Unrun::default() };
        for number in 1..self.claimed() {
            let count = self.block_word(number, BLOCK_UNRUN);
            match self.origin(number) {
                0 => all.in_children += count,
                _ => all.crowded += count,
            }
        }
        all
    }
}

/// What a script has missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unrun {
    /// Hits on threads that have no block: more than there are blocks for, without a thread pointer, or without a stack in Go.
    pub without_block: u64,
    /// Hits in children that were forked and have no session of their own, or that share the memory.
    pub in_children: u64,
    /// Hits that found all levels of their thread's stack for bodies in use ([`trapless_isa::detour::STACK_LEVELS`]), or whose interpreter
    /// failed at a trap.
    pub crowded: u64,
}
