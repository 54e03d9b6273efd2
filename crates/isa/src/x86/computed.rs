//! Where does code compute a place to jump to?
//!
//! A jump through a register goes where the register says. Jump tables are read (`tables`), and a pointer leads where
//! something in the file points. What remains is arithmetic on the address of code: `lea f(%rip),%rax; lea
//! 2(%rax,%rdi,2),%rax; jmp *%rax` enters `f` at a place that only the program knows. So the address that such a place is
//! computed from is told, and the function there keeps its instructions.
//!
//! Few functions both jump through a register and name an address of code, so only those are read for it ([`Computes`]), once,
//! from their start on. A register holds an address of code from the instruction that takes it, and a
//! computed place from the first arithmetic on it.

use super::decode::{decoder, flow, is_write};
use crate::{Flow, ReadOnlyData};
use alloc::vec::Vec;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

/// What is known of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// An address that the code names.
    Taken(u64),
    /// Somewhere around that address.
    Computed(u64),
}

/// Whether code has what it takes to jump to a computed place: seen by whoever reads it anyway.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Computes {
    /// `jmp r`.
    jumps: bool,
    /// An address of code, to compute from.
    takes: bool,
}

impl Computes {
    pub(super) fn see(&mut self, instruction: &Instruction, fixed: bool, data: &dyn ReadOnlyData) {
        match instruction.mnemonic() {
            Mnemonic::Jmp => self.jumps |= instruction.op0_kind() == OpKind::Register,
            // Whatever is known of a register was once one of these.
            Mnemonic::Lea if fixed || instruction.memory_base() == Register::RIP => {
                self.takes |= data.may_be_code(instruction.memory_displacement64());
            }
            Mnemonic::Mov if fixed => {
                self.takes |= constant(instruction).is_some_and(|address| data.may_be_code(address));
            }
            _ => {}
        }
    }

    pub(super) fn possibly(self) -> bool {
        self.jumps && self.takes
    }
}

/// Appends the addresses from which the code computes places to jump to. They may be addresses of data as well.
///
/// `fixed`: constants may be addresses.
pub(super) fn computed_jumps(bits: u32, code: &[u8], address: u64, fixed: bool, found: &mut Vec<u64>) {
    let mut registers = Registers { values: [None; 16], factory: InstructionInfoFactory::new(), fixed };
    let mut decoder = decoder(bits, code, address);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let next = decoder.position() + 1;
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            // Data in text: try again at the next byte.
            if decoder.set_position(next).is_err() {
                return;
            }
            decoder.set_ip(address.wrapping_add(next as u64));
            continue;
        }
        match flow(&instruction) {
            Flow::IndirectJump if instruction.op0_kind() == OpKind::Register => {
                if let Some(Value::Computed(base)) = registers.get(instruction.op0_register()) {
                    found.push(base);
                }
            }
            Flow::Call { .. } | Flow::IndirectCall => registers.forget_over_call(),
            _ => registers.effect(&instruction),
        }
    }
}

struct Registers {
    values: [Option<Value>; 16],
    factory: InstructionInfoFactory,
    fixed: bool,
}

impl Registers {
    fn get(&self, register: Register) -> Option<Value> {
        let full = register.full_register();
        if full.is_gpr64() { self.values[full.number()] } else { None }
    }

    /// What `register` holds after arithmetic on it.
    fn computed(&self, register: Register) -> Option<Value> {
        let (Value::Taken(base) | Value::Computed(base)) = self.get(register)?;
        Some(Value::Computed(base))
    }

    /// Forgets the registers that a callee may change: rax, rcx, rdx, rsi, rdi and r8 to r11 (System V ABI, 3.2.1).
    fn forget_over_call(&mut self) {
        for number in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
            self.values[number] = None;
        }
    }

    fn effect(&mut self, instruction: &Instruction) {
        let destination = instruction.op0_register();
        let value = match instruction.mnemonic() {
            Mnemonic::Lea => self.address(instruction),
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
                self.get(instruction.op1_register())
            }
            Mnemonic::Mov if self.fixed => constant(instruction).map(Value::Taken),
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::Or | Mnemonic::Xor | Mnemonic::And
                if instruction.op0_kind() == OpKind::Register =>
            {
                self.computed(destination).or_else(|| match instruction.op1_kind() {
                    OpKind::Register => self.computed(instruction.op1_register()),
                    _ => None,
                })
            }
            _ => {
                if self.values == [None; 16] {
                    return;
                }
                let (values, used) = (&mut self.values, self.factory.info(instruction).used_registers());
                for written in used.iter().filter(|used| is_write(used.access())) {
                    set(values, written.register(), None);
                }
                return;
            }
        };
        if instruction.op0_kind() == OpKind::Register {
            set(&mut self.values, destination, value);
        }
    }

    /// The value of a `lea`.
    fn address(&self, instruction: &Instruction) -> Option<Value> {
        if instruction.memory_base() == Register::RIP {
            return Some(Value::Taken(instruction.memory_displacement64()));
        }
        let plain = instruction.memory_index() == Register::None && instruction.memory_displacement64() == 0;
        if plain {
            return self.get(instruction.memory_base());
        }
        let absolute = self.fixed && instruction.memory_displacement64() != 0;
        self.computed(instruction.memory_base())
            .or_else(|| self.computed(instruction.memory_index()))
            .or_else(|| absolute.then(|| Value::Computed(instruction.memory_displacement64())))
    }
}

fn set(values: &mut [Option<Value>; 16], register: Register, value: Option<Value>) {
    let full = register.full_register();
    if full.is_gpr64() {
        values[full.number()] = value;
    }
}

/// The constant that an instruction moves or pushes, as an address.
pub(super) fn constant(instruction: &Instruction) -> Option<u64> {
    let operand = match instruction.mnemonic() {
        Mnemonic::Mov => 1,
        Mnemonic::Push => 0,
        _ => return None,
    };
    instruction.try_immediate(operand).ok().filter(|&value| value <= u64::from(u32::MAX))
}
