//! By which instructions is a function left?
//!
//! By every `ret`, and by every jump to another function. All paths are walked: from the entry, from behind calls, and from whatever
//! else is known to be jumped to, such as the landing pads of exceptions. A `ret` that no path leads to, or a jump through a register of
//! which it cannot be said whether it goes on in the function, makes the answer no.

use super::super::decode::{decoder, flow};
use super::values::{State, Value};
use super::{Walk, is_indexed};
use crate::{Exit, Flow, Leaves, Reason, Site};
use alloc::vec::Vec;
use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register};

/// What was found so far.
#[derive(Default)]
pub(super) struct Found {
    exits: Vec<Exit>,
    unclear: bool,
}

pub(in super::super) fn exits(
    site: &Site<'_>,
    start: u64,
    depth: Option<i64>,
    is_resumed: bool,
) -> Result<Vec<Exit>, Reason> {
    let mut walk = Walk::new(64, site);
    walk.exits = Some(Found::default());
    let mut state = State::default();
    *state.sp() = depth.map_or(Value::Frame, Value::At);
    walk.paths.push((start, state));
    walk.plain_paths();
    if let Some(state) = walk.dispatch {
        walk.walk_from_all(state);
    }
    // Landing pads, and what else is arrived at with a stack that is not known.
    let mut elsewhere = State::default();
    *elsewhere.sp() = Value::Frame;
    walk.walk_from_all(elsewhere);
    if is_resumed {
        walk.walk_the_rest(elsewhere);
    }
    if let Some(reason) = walk.found {
        return Err(reason);
    }
    let all_seen = !walk.has_unseen_return();
    let Found { mut exits, unclear, .. } = walk.exits.unwrap_or_default();
    if unclear || !all_seen {
        return Err(Reason::LeavesUnclearly);
    }
    exits.sort_unstable_by_key(|exit| exit.address);
    Ok(exits)
}

impl Walk<'_> {
    /// Walks what has begun, without the cases of jump tables.
    fn plain_paths(&mut self) {
        while let Some((address, state)) = self.paths.pop().or_else(|| self.after_calls.pop()) {
            self.path(address, state);
        }
    }

    /// Walks from every branch target on that was not walked over.
    fn walk_from_all(&mut self, state: State) {
        for target in self.not_visited() {
            if !self.was_visited(target) {
                self.paths.push((target, state));
                self.plain_paths();
            }
        }
    }

    /// Walks what no path has led to, from its first instruction on.
    fn walk_the_rest(&mut self, state: State) {
        let all = decoder(64, self.site.code, self.site.function);
        let all: Vec<u64> = all.into_iter().map(|instruction| instruction.ip()).collect();
        for address in all {
            if !self.was_visited(address) {
                self.paths.push((address, state));
                self.plain_paths();
            }
        }
    }

    /// Whether a `ret` stands in the function that no path has led to.
    fn has_unseen_return(&self) -> bool {
        let mut all = decoder(64, self.site.code, self.site.function);
        let all = all.iter().filter(|instruction| flow(instruction) == Flow::Return);
        all.map(|instruction| instruction.ip()).any(|address| !self.was_visited(address))
    }

    /// Takes note of an instruction that leaves the function, and of registers that are computed.
    pub(super) fn leave(&mut self, instruction: &Instruction, state: &mut State) {
        let (address, sp) = (instruction.ip(), *state.sp());
        // Its return address was taken off the stack, so it returns from elsewhere, as code with conventions of its own does.
        if matches!(sp, Value::At(1..)) {
            self.find(Reason::MovesStackPointer);
        }
        let depth = match sp {
            Value::At(depth) => Some(depth),
            Value::Frame | Value::Unknown => None,
        };
        let leaves = match flow(instruction) {
            Flow::Return if depth.is_some_and(|depth| depth < 0) => return self.unclear(),
            Flow::Return => Leaves::Return,
            Flow::Jump { target } if self.is_outside(target) => Leaves::Jump { target, depth },
            Flow::Branch { target } if self.is_outside(target) => Leaves::Branch { target, depth },
            // It may be a jump table or an array of functions.
            Flow::IndirectJump if depth == Some(0) && state.is_computed(instruction) => {
                return self.unclear();
            }
            Flow::IndirectJump if depth == Some(0) => Leaves::Indirect,
            // With the frame there it goes on in the function, if it can be told that it is.
            Flow::IndirectJump if depth.is_none() && !state.is_computed(instruction) => {
                return self.unclear();
            }
            Flow::Next => return state.compute(instruction, self),
            _ => return,
        };
        if let Some(found) = &mut self.exits {
            found.exits.push(Exit { address, leaves });
        }
    }

    fn unclear(&mut self) {
        if let Some(found) = &mut self.exits {
            found.unclear = true;
        }
    }

    fn is_outside(&self, target: u64) -> bool {
        self.offset(target).is_none()
    }
}

impl State {
    /// Whether an indirect jump goes to an address that was computed, as from a jump table.
    pub(super) fn is_computed(&self, jump: &Instruction) -> bool {
        match jump.op0_kind() {
            OpKind::Register => self.1 & bit(jump.op0_register()) != 0,
            _ => is_indexed(jump),
        }
    }

    /// Takes note of the registers that an instruction computes or fetches.
    fn compute(&mut self, instruction: &Instruction, walk: &mut Walk<'_>) {
        use Mnemonic::*;
        let fetches = match instruction.mnemonic() {
            Mov | Lea => instruction.memory_index() == Register::None,
            Pop | Xchg | Cmove | Cmovne | Cmova | Cmovae | Cmovb | Cmovbe | Cmovs | Cmovns => true,
            _ => false,
        };
        let copied = instruction.mnemonic() == Mov && instruction.op1_kind() == OpKind::Register;
        let from = if copied { self.1 & bit(instruction.op1_register()) } else { 0 };
        for used in walk.factory.info(instruction).used_registers() {
            if matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                continue;
            }
            let written = bit(used.register());
            if fetches && from == 0 {
                self.1 &= !written;
            } else {
                self.1 |= written;
            }
        }
    }
}

fn bit(register: Register) -> u16 {
    let full = register.full_register();
    if full.is_gpr64() { 1 << full.number() } else { 0 }
}
