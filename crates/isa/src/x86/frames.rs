//! Where the program stands at each instruction of a detour ([`crate::frames`]), found by following the code.
//!
//! The code is our own, so little can happen: pushes and pops, `lea` and `add` on the stack pointer, branches, calls of the
//! routines. What else is done to the stack pointer, and a register that functions keep for their callers between a
//! write and the pop that restores it, make a place unknown to unwinders. It is followed where registers and the flags were saved.
//!
//! Where a detour switches to a stack of ours, by a `mov` to the stack pointer, depths and what is saved begin anew, until another one switches
//! back. A handler that is shown what that stands for is led to the instruction that has switched. What was pushed there counts as saved
//! and lost: between the switches the detour loses no other registers.
//!
//! The code of bodies ([`crate::body`]) is a compiler's, and followed in the same way; that saves with `mov`, and has a frame pointer.

use super::decode::{decoder, is_write};
use super::offsets::ByOffset;
use crate::Stack;
use crate::frames::{
    Place, Point, SAVED_FLAGS, SAVED_IN_AH, SAVED_IN_RAX, SAVED_IN_XMM15, SAVED_LOST, Saved,
};
use alloc::vec::Vec;
use core::{array, ops::Range};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, RflagsBits};

/// What is known before an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    place: Place,
    /// How far the stack pointer is below the place's; `None` where two ways differ.
    depth: Option<i32>,
    /// Registers, by number, that hold something else than at the place; the stack pointer's bit is that of the flags.
    lost: u16,
    /// How many words below the place's stack pointer each was pushed; 0 where it was not, or by two ways in two places. Of rax, also
    /// [`SAVED_IN_XMM15`].
    pushed: [u8; 16],
    /// [`SAVED_IN_RAX`] or [`SAVED_IN_AH`] where rax holds the flags, or 0.
    flags_in_rax: u8,
    /// As `depth`, of where rbp points to, if it was made a frame pointer.
    frame: Option<i32>,
}

/// What is known before an instruction: of the stack it is on, and, if that is one of ours, of the program's.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    here: State,
    below: Option<State>,
}

const FLAGS: u16 = 1 << SAVED_FLAGS;
/// r10 and r11, or eax and edx: the routines' results.
const RESULTS_64: u16 = 1 << 10 | 1 << 11;
const RESULTS_32: u16 = 1 | 1 << 2;

/// rbx, rbp, r12 to r15.
pub(super) const KEPT_64: u16 = 0b1111_0000_0010_1000;
/// ebx, ebp, esi, edi.
const KEPT_32: u16 = 0b1110_1000;

/// rbp: Go's functions keep nothing else for their callers.
const KEPT_IN_GO: u16 = 1 << 5;

/// The registers that functions keep for their callers where detours have such a `stack`.
fn kept(bits: u32, stack: Stack) -> u16 {
    match (bits, stack) {
        (64, Stack::NoneInGo | Stack::AskedInGo) => KEPT_IN_GO,
        (64, Stack::Enough | Stack::None) => KEPT_64,
        _ => KEPT_32,
    }
}

/// Points of `code`, reached from `roots`, but for the parts in `skip`, which are the program's.
/// `stack`: what the detour may use of it.
pub(super) fn points(
    bits: u32,
    stack: Stack,
    code: &[u8],
    roots: &[(u32, Place)],
    skip: &[Range<u32>],
) -> Vec<Point> {
    let kept = kept(bits, stack);
    let mut walk = Walk { code, bits, skip, visits: ByOffset::new(code.len()), left: Vec::new() };
    for &(offset, place) in roots {
        walk.arrive(offset, Known { here: State::at(place), below: None });
    }
    let mut info = InstructionInfoFactory::new();
    while let Some(offset) = walk.left.pop() {
        walk.pass(offset, &mut info);
    }
    let mut points = Vec::new();
    let mut end = 0;
    for (offset, Visit { known: Known { here: state, .. }, length }) in walk.visits.iter() {
        if offset > end {
            points.push(Point::unknown(end));
        }
        let stands = state.depth.and_then(|depth| Some((state.told(kept)?, depth)));
        points.push(Point { offset, stands, saved: state.saved() });
        end = offset + u32::from(*length);
    }
    points.push(Point::unknown(end));
    points
}

/// Points of a body, or of a routine that bodies call: from its start on, where it has been called.
pub(super) fn of_body(code: &[u8]) -> Vec<Point> {
    points(64, Stack::Enough, code, &[(0, Place::Body)], &[])
}

/// Points of displaced instructions and of the branch back: `places` are those of the detour, and `site` is the first one's address.
pub(super) fn displaced(bits: u32, code: &[u8], places: &[(u64, u32)], site: u64) -> Vec<Point> {
    let mut points = Vec::new();
    let ends = places.iter().skip(1).map(|&(_, offset)| Some(offset)).chain([None]);
    for (&(original, offset), end) in places.iter().zip(ends) {
        let place = u8::try_from(original.wrapping_sub(site)).ok().map(Place::Site);
        let (mut offset, mut depth) = (offset, Some(0));
        loop {
            points.push(Point { offset, stands: place.zip(depth), saved: Saved::default() });
            let rest = code.get(offset as usize..).unwrap_or_default();
            let instruction = decoder(bits, rest, 0).decode();
            offset += instruction.len() as u32;
            depth = depth.zip(pushed(&instruction)).map(|(depth, pushed)| depth + pushed);
            if depth.is_none() || end.is_none_or(|end| offset >= end) {
                break;
            }
        }
        points.push(Point::unknown(offset));
    }
    // One copy begins where another ends.
    points.dedup_by(|later, earlier| {
        later.offset == earlier.offset && {
            (earlier.stands, earlier.saved) = (later.stands, later.saved);
            true
        }
    });
    points
}

/// How many bytes this one pushes of those that stand for a call. Behind any other instruction of a copy of several, the thread stands
/// between two places of the program.
fn pushed(instruction: &Instruction) -> Option<i32> {
    match instruction.mnemonic() {
        Mnemonic::Push
            if instruction.op0_kind() != OpKind::Register && instruction.op0_kind() != OpKind::Memory =>
        {
            Some(-instruction.stack_pointer_increment())
        }
        Mnemonic::Mov
            if instruction.op0_kind() == OpKind::Memory && instruction.memory_base() == Register::RSP =>
        {
            Some(0)
        }
        _ => None,
    }
}

/// The points of a detour: its own, with those of the displaced instructions between them.
pub(super) fn join(own: &[Point], displaced: Vec<Point>) -> Vec<Point> {
    let (Some(first), Some(last)) = (displaced.first(), displaced.last()) else { return own.to_vec() };
    let range = first.offset..last.offset;
    let mut all: Vec<Point> = own.iter().copied().filter(|point| !range.contains(&point.offset)).collect();
    // An own point at the end of the displaced code is about what follows it.
    let follows = all.iter().any(|point| point.offset == range.end);
    all.extend(displaced.into_iter().filter(|point| !follows || point.offset != range.end));
    all.sort_by_key(|point| point.offset);
    all
}

/// An offset that is reached.
struct Visit {
    known: Known,
    /// Of the instruction there; 0 until it is looked at.
    length: u8,
}

struct Walk<'c> {
    code: &'c [u8],
    bits: u32,
    skip: &'c [Range<u32>],
    visits: ByOffset<Visit>,
    left: Vec<u32>,
}

impl Walk<'_> {
    fn is_skipped(&self, offset: u32) -> bool {
        self.skip.iter().any(|skip| skip.contains(&offset))
    }

    /// Notes that `offset` may be reached with this `known`.
    fn arrive(&mut self, offset: u32, known: Known) {
        if self.is_skipped(offset) {
            return;
        }
        if let Some(visit) = self.visits.get_mut(offset.into()) {
            let merged = visit.known.merged(&known);
            if merged == visit.known {
                return;
            }
            visit.known = merged;
        } else {
            self.visits.insert(offset.into(), Visit { known, length: 0 });
        }
        self.left.push(offset);
    }

    fn pass(&mut self, offset: u32, info: &mut InstructionInfoFactory) {
        let Some(visit) = self.visits.get_mut(offset.into()) else { return };
        let known = visit.known;
        let instruction = decoder(self.bits, &self.code[offset as usize..], u64::from(offset)).decode();
        visit.length = instruction.len() as u8;
        let end = offset + u32::from(visit.length);
        if switches(&instruction)
            && let Some((at_switch, after)) = known.switched()
        {
            visit.known = at_switch;
            self.arrive(end, after);
            return;
        }
        let state = known.here;
        let after = state.after(self.bits, &instruction, info);
        let go = |state: State| Known { here: state, ..known };
        // Addresses count from the start of the code here.
        let inside = |target: &u32| (*target as usize) < self.code.len();
        let target = u32::try_from(instruction.near_branch_target()).ok().filter(inside);
        match instruction.flow_control() {
            _ if matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Int) => {
                // It says what came of it in rax.
                self.arrive(end, go(State { lost: after.lost | 1, ..after }));
            }
            FlowControl::Next => self.arrive(end, go(after)),
            FlowControl::ConditionalBranch => {
                self.arrive(end, go(after));
                target.into_iter().for_each(|target| self.arrive(target, go(after)));
            }
            FlowControl::UnconditionalBranch => {
                target.into_iter().for_each(|target| self.arrive(target, go(after)))
            }
            // The displaced code is called where the call is followed, and comes back at the return point.
            FlowControl::Call if target.is_none_or(|target| !self.is_skipped(target)) => {
                self.arrive(end, go(state.behind_routine(self.bits)));
            }
            // Bodies keep all registers, and so do their routines. Others are called by way of r11.
            FlowControl::IndirectCall
                if state.place == Place::Body || instruction.op0_register() != Register::R11 =>
            {
                self.arrive(end, go(State { lost: state.lost | FLAGS, ..state }));
            }
            FlowControl::IndirectCall => self.arrive(end, go(state.behind_routine(self.bits))),
            _ => {}
        }
    }
}

/// Whether an instruction goes to another stack: compilers of bodies move the stack pointer by rbp only.
fn switches(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == Register::RSP
        && instruction.op1_kind() == OpKind::Register
}

impl Known {
    fn merged(&self, other: &Known) -> Known {
        let below = match (self.below, other.below) {
            (Some(one), Some(other)) => Some(one.merged(&other)),
            // Never: what is on one stack by one way is so by all.
            (one, other) => one.or(other),
        };
        Known { here: self.here.merged(&other.here), below }
    }

    /// What is known at an instruction that goes to the other stack, and behind it; `None` where a body moves its own stack pointer.
    fn switched(&self) -> Option<(Known, Known)> {
        let Known { here, below } = *self;
        match (here.place, below) {
            (Place::Body, _) => None,
            (Place::Switched, Some(program)) => {
                let here = State { lost: program.lost | here.lost, ..program };
                Some((*self, Known { here, below: None }))
            }
            _ => {
                let saved = (0..16).filter(|&number| here.pushed[number] != 0);
                let lost = saved.fold(here.lost, |lost, number| lost | 1 << number);
                // Where rax is not needed for the flags, what follows may overwrite it.
                let in_rax = if here.pushed[SAVED_FLAGS] == 0 { here.flags_in_rax } else { 0 };
                let here = State { lost, flags_in_rax: in_rax, ..here };
                let known = Known { here: State::at(Place::Switched), below: Some(here) };
                Some((Known { here, below: None }, known))
            }
        }
    }
}

impl State {
    /// At a place, with nothing done.
    fn at(place: Place) -> State {
        State { place, depth: Some(0), lost: 0, pushed: [0; 16], flags_in_rax: 0, frame: None }
    }

    /// What is known whichever of two it is.
    fn merged(&self, other: &State) -> State {
        State {
            place: self.place,
            depth: self.depth.filter(|_| self.place == other.place && self.depth == other.depth),
            lost: self.lost | other.lost,
            pushed: array::from_fn(|register| match (self.pushed[register], other.pushed[register]) {
                (one, other) if one == other => one,
                _ => 0,
            }),
            flags_in_rax: if self.flags_in_rax == other.flags_in_rax { self.flags_in_rax } else { 0 },
            frame: self.frame.filter(|_| self.frame == other.frame),
        }
    }

    fn after(self, bits: u32, instruction: &Instruction, info: &mut InstructionInfoFactory) -> State {
        let mut after = self;
        let is_sp = |register: Register| register.full_register() == Register::RSP;
        let used = info.info(instruction).used_registers();
        let written =
            || used.iter().filter(|used| is_write(used.access())).map(|used| used.register().full_register());
        let writes = |register: Register| written().any(|written| written == register);
        let moved = match instruction.mnemonic() {
            Mnemonic::Lea if is_sp(instruction.op0_register()) => {
                let plain = is_sp(instruction.memory_base()) && instruction.memory_index() == Register::None;
                plain.then(|| instruction.memory_displacement64() as i32)
            }
            Mnemonic::Mov if is_sp(instruction.op0_register()) => {
                let frame = self.frame.filter(|_| instruction.op1_register() == Register::RBP);
                // How far it moves.
                frame.zip(self.depth).map(|(frame, depth)| depth - frame)
            }
            Mnemonic::Add if is_sp(instruction.op0_register()) => immediate(instruction).map(|by| by as i32),
            Mnemonic::Sub if is_sp(instruction.op0_register()) => {
                immediate(instruction).map(|by| (by as i32).wrapping_neg())
            }
            _ if instruction.is_stack_instruction() => Some(instruction.stack_pointer_increment()),
            _ => (!writes(Register::RSP)).then_some(0),
        };
        after.depth = self.depth.zip(moved).and_then(|(depth, moved)| depth.checked_sub(moved));
        for register in written().filter(|&register| register.is_gpr() && register != Register::RSP) {
            after.lost |= 1 << register.number();
        }
        if writes(Register::RBP) {
            let makes = instruction.mnemonic() == Mnemonic::Mov && is_sp(instruction.op1_register());
            after.frame = self.depth.filter(|_| makes);
        }
        after.forget_dropped(&self, bits as i32 / 8);
        after.follow_saving(&self, instruction, writes(Register::RAX));
        after.follow_stores(&self, instruction);
        after
    }

    /// What an unwinder or a handler may be told of.
    fn told(&self, kept: u16) -> Option<Place> {
        let is_saved = |number: usize| self.lost & 1 << number == 0 || self.pushed[number] != 0;
        let all = (0..16).filter(|&number| number != SAVED_FLAGS);
        match self.place {
            // Nothing of the detour's is dead to who calls a body.
            Place::Body => all.into_iter().all(is_saved).then_some(self.place),
            // What it loses was saved ahead of the switch.
            Place::Switched => Some(self.place),
            place if self.lost & kept == 0 => Some(place),
            place => {
                let mut kept = all.filter(|number| kept & 1 << number != 0);
                place.for_handlers().filter(|_| kept.all(is_saved))
            }
        }
    }

    /// What a `mov` saves on the stack, or takes back from there.
    fn follow_stores(&mut self, before: &Self, instruction: &Instruction) {
        let is_stack = instruction.memory_base() == Register::RSP
            && instruction.memory_index() == Register::None
            && instruction.segment_prefix() == Register::None;
        let (Some(depth), true) = (before.depth, is_stack) else { return };
        let below = depth.wrapping_sub(instruction.memory_displacement64() as i32);
        let word = |below: i32| u8::try_from(below / 8).ok().filter(|at| (1..SAVED_IN_XMM15).contains(at));
        let whole = word(below).filter(|_| below % 8 == 0);
        let is_mov = instruction.mnemonic() == Mnemonic::Mov;
        if instruction.op0_kind() == OpKind::Memory {
            // Every word of which anything is written. What is only read is forgotten as well, which is none that was saved.
            let size = instruction.memory_size().size().max(1) as i32;
            if !is_mov || instruction.op1_kind() != OpKind::Register || size != 8 || whole.is_none() {
                let written = |at: i32| 8 * at - 8 < below && below.wrapping_sub(size) < 8 * at;
                if instruction.mnemonic() != Mnemonic::Cmp && instruction.mnemonic() != Mnemonic::Push {
                    (1..i32::from(SAVED_IN_XMM15))
                        .filter(|&at| written(at))
                        .for_each(|at| self.forget(at as u8));
                }
                return;
            }
            let (at, register) = (whole.unwrap_or(0), instruction.op1_register().full_register());
            self.forget(at);
            // Where it was saved first it stays. What is stored once more goes to a place for what else is calculated there.
            let is_new = register.is_gpr() && self.pushed[register.number()] == 0;
            if is_new && before.lost & 1 << register.number() == 0 {
                self.pushed[register.number()] = at;
            }
        } else if is_mov && instruction.op0_register().is_gpr64() {
            let number = instruction.op0_register().number();
            if whole.is_some_and(|at| before.pushed[number] == at) {
                self.lost &= !(1 << number);
            }
        }
    }

    /// What is saved and restored by the instruction, of which only the writes are in yet.
    fn follow_saving(&mut self, before: &Self, instruction: &Instruction, writes_rax: bool) {
        const ARITHMETIC: u32 = RflagsBits::OF
            | RflagsBits::SF
            | RflagsBits::ZF
            | RflagsBits::AF
            | RflagsBits::CF
            | RflagsBits::PF;
        let register = instruction.op0_register().full_register();
        let is_whole = instruction.op0_kind() == OpKind::Register && register.is_gpr();
        let word = instruction.stack_pointer_increment().abs();
        let words = |depth: Option<i32>| depth.filter(|depth| depth % word == 0).map(|depth| depth / word);
        if instruction.rflags_modified() & ARITHMETIC != 0 {
            self.lost |= FLAGS;
        }
        if writes_rax {
            self.flags_in_rax = 0;
        }
        match instruction.mnemonic() {
            Mnemonic::Push if is_whole => {
                let at = words(self.depth).and_then(|words| u8::try_from(words).ok());
                let at = at.filter(|at| *at < SAVED_IN_XMM15).unwrap_or(0);
                let number = register.number();
                self.forget(at);
                if before.flags_in_rax == SAVED_IN_RAX && number == 0 {
                    self.pushed[SAVED_FLAGS] = at;
                } else if before.lost & 1 << number == 0 && self.pushed[number] == 0 {
                    // Where it was saved first it stays: it may be told more than once.
                    self.pushed[number] = at;
                }
            }
            Mnemonic::Pop if is_whole => {
                let at = words(before.depth).and_then(|words| u8::try_from(words).ok()).unwrap_or(0);
                let number = register.number();
                if number == 0 && at != 0 && self.pushed[SAVED_FLAGS] == at {
                    self.flags_in_rax = SAVED_IN_RAX;
                } else if at != 0 && self.pushed[number] == at {
                    self.lost &= !(1 << number);
                }
                self.forget(at);
            }
            Mnemonic::Movq if register == Register::ZMM15 && before.lost & 1 == 0 => {
                self.pushed[0] = SAVED_IN_XMM15;
            }
            Mnemonic::Movq if register == Register::RAX && before.pushed[0] == SAVED_IN_XMM15 => {
                self.lost &= !1;
                self.pushed[0] = 0;
            }
            Mnemonic::Lahf if before.lost & FLAGS == 0 => self.flags_in_rax = SAVED_IN_RAX,
            Mnemonic::Seto => self.flags_in_rax = before.flags_in_rax,
            // How flags are restored: OF by overflowing, then the others.
            Mnemonic::Add
                if before.flags_in_rax == SAVED_IN_RAX && instruction.op0_register() == Register::AL =>
            {
                self.flags_in_rax = SAVED_IN_AH;
            }
            Mnemonic::Sahf | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => self.lost &= !FLAGS,
            _ => {}
        }
    }

    /// What the stack pointer has left below it, but for the word that a `pop` has taken.
    fn forget_dropped(&mut self, before: &Self, word: i32) {
        let (Some(depth), Some(from)) = (self.depth, before.depth) else { return };
        if from.saturating_sub(depth) > word {
            let is_left = |at: u8| at != SAVED_IN_XMM15 && word * i32::from(at) > depth;
            self.pushed.iter_mut().filter(|pushed| is_left(**pushed)).for_each(|pushed| *pushed = 0);
        }
    }

    /// What was saved at a word of the stack, if anything was, is there no more.
    fn forget(&mut self, at: u8) {
        self.pushed.iter_mut().filter(|pushed| **pushed == at).for_each(|pushed| *pushed = 0);
    }

    /// Behind the call of a routine, which changes its results and the flags.
    fn behind_routine(mut self, bits: u32) -> State {
        let results = if bits == 64 { RESULTS_64 } else { RESULTS_32 };
        for number in (0..16).filter(|number| results & 1 << number != 0) {
            // One that was not pushed is not used.
            if self.pushed[number] != 0 {
                self.lost |= 1 << number;
            }
        }
        self.lost |= FLAGS;
        self
    }

    fn saved(&self) -> Saved {
        Saved(array::from_fn(|number| match (self.lost & 1 << number != 0, self.pushed[number]) {
            (false, _) => 0,
            (true, _) if number == SAVED_FLAGS && self.flags_in_rax != 0 => self.flags_in_rax,
            (true, 0) => SAVED_LOST,
            (true, at) => at,
        }))
    }
}

/// The second operand, where it is a number.
pub(super) fn immediate(instruction: &Instruction) -> Option<i64> {
    let is_immediate = !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
    is_immediate.then(|| instruction.immediate(1) as i64)
}
