//! What is known of the registers on a path through a function, and what an instruction does to it.

use super::Walk;
use crate::Reason;
use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register};

const RSP: usize = 4;

/// What is known of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// So far above the return address's slot.
    At(i64),
    /// Somewhere in the frame, or loaded from it: a saved stack pointer may be there.
    Frame,
    /// Anything.
    Unknown,
}

impl Value {
    pub(super) fn plus(self, distance: i64) -> Self {
        match self {
            Value::At(at) => Value::At(at.wrapping_add(distance)),
            other => other,
        }
    }

    fn into_frame(self) -> Self {
        if self == Value::Unknown { Value::Unknown } else { Value::Frame }
    }
}

/// The registers, and those of them, a bit for each, whose value was last computed and not only fetched from somewhere.
#[derive(Clone, Copy)]
pub(super) struct State(pub(super) [Value; 16], pub(super) u16);

impl Default for State {
    fn default() -> Self {
        Self([Value::Unknown; 16], 0)
    }
}

impl State {
    pub(super) fn get(&self, register: Register) -> Value {
        let full = register.full_register();
        if full.is_gpr64() { self.0[full.number()] } else { Value::Unknown }
    }

    fn set(&mut self, register: Register, value: Value) {
        let full = register.full_register();
        if full.is_gpr64() {
            self.0[full.number()] = value;
        }
    }

    pub(super) fn sp(&mut self) -> &mut Value {
        &mut self.0[RSP]
    }
}

impl Walk<'_> {
    /// What the instruction does to the registers.
    pub(super) fn effect(&mut self, instruction: &Instruction, state: &mut State) {
        use Mnemonic::*;
        let destination = instruction.op0_register();
        let before = *state;
        match instruction.mnemonic() {
            Push | Pushfq | Pushfd | Pop | Popfq | Popfd => {
                *state.sp() = state.sp().plus(i64::from(instruction.stack_pointer_increment()));
                if instruction.mnemonic() == Pop && destination != Register::None {
                    let value = if destination.full_register() == Register::RSP {
                        Value::Unknown
                    } else {
                        Value::Frame
                    };
                    self.assign(state, destination, value);
                }
                return;
            }
            Leave => {
                let frame = state.get(Register::RBP);
                *state.sp() = if frame == Value::Unknown { Value::Frame } else { frame.plus(self.word()) };
                state.set(Register::RBP, Value::Unknown);
                return;
            }
            Enter => {
                let frame = state.sp().plus(-self.word());
                state.set(Register::RBP, frame);
                *state.sp() = frame.plus(-i64::from(instruction.immediate16()));
                return;
            }
            Nop | Cmp | Test | Endbr64 | Endbr32 => return,
            _ => {}
        }
        let value = match instruction.mnemonic() {
            Mov if destination == Register::None => return,
            Mov => match instruction.op1_kind() {
                OpKind::Register => state.get(instruction.op1_register()),
                OpKind::Memory => self.loaded(instruction, state),
                _ => Value::Unknown,
            },
            Lea => self.address(instruction, state),
            Add | Sub => match (state.get(destination), immediate(instruction)) {
                (known, Some(n)) if instruction.mnemonic() == Add => known.plus(n),
                (known, Some(n)) => known.plus(n.wrapping_neg()),
                (Value::Unknown, None) => Value::Unknown,
                (_, None) => Value::Frame,
            },
            And | Or => match state.get(destination) {
                Value::Unknown => Value::Unknown,
                _ => Value::Frame,
            },
            _ => {
                for used in self.factory.info(instruction).used_registers() {
                    if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                        state.set(used.register(), Value::Unknown);
                    }
                }
                if before.0[RSP] != Value::Unknown && *state.sp() == Value::Unknown {
                    self.find(Reason::MovesStackPointer);
                }
                return;
            }
        };
        self.assign(state, destination, value);
    }

    fn assign(&mut self, state: &mut State, destination: Register, value: Value) {
        let whole = destination.size() as i64 == self.word();
        let value = if whole { value } else { Value::Unknown };
        if destination.full_register() == Register::RSP && value == Value::Unknown {
            self.find(Reason::MovesStackPointer);
        }
        state.set(destination, value);
    }

    /// The value of a `lea`.
    fn address(&self, instruction: &Instruction, state: &State) -> Value {
        let base = instruction.memory_base();
        match state.get(base) {
            // Compilers restore the stack pointer from rbp whether or not its value was followed.
            Value::Unknown if base.full_register() == Register::RBP => Value::Frame,
            known if instruction.memory_index() == Register::None => {
                let displacement = instruction.memory_displacement64();
                known.plus(if self.bits == 64 {
                    displacement as i64
                } else {
                    i64::from(displacement as u32 as i32)
                })
            }
            Value::Unknown => state.get(instruction.memory_index()).into_frame(),
            known => known.into_frame(),
        }
    }

    /// The value of a load: the frame may hold saved stack pointers.
    fn loaded(&self, instruction: &Instruction, state: &State) -> Value {
        let base = instruction.memory_base();
        let in_frame = matches!(base.full_register(), Register::RBP | Register::RSP)
            || matches!(state.get(base), Value::At(_));
        if in_frame { Value::Frame } else { Value::Unknown }
    }
}

/// The sign-extended immediate that is the second operand.
fn immediate(instruction: &Instruction) -> Option<i64> {
    instruction.try_immediate(1).ok().map(|value| value as i64)
}
