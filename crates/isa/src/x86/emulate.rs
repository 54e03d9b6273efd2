//! What does this instruction do to a set of saved registers and memory?
//!
//! Emulated is what functions start with, and what ends them: pushes and pops, nops, branches of all kinds, calls,
//! returns, `leave`, moves, `lea` and arithmetic with its flags. An instruction has its whole effect or none: memory is
//! accessed first, and where that fails nothing was changed.
//!
//! Flags that the manual calls undefined are set as processors set them (AF is cleared by the logical instructions).
//! Locked instructions are not emulated, since saved state is not the place where atomicity could be had.

use super::decode::decode_one;
use super::movable::form;
use crate::{EmulateError, Reason, Thread};
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// Carry flag.
const CF: u64 = 1 << 0;
/// Parity flag: of the lowest byte of the result.
const PF: u64 = 1 << 2;
/// Auxiliary carry flag: out of bit 3.
const AF: u64 = 1 << 4;
/// Zero flag.
const ZF: u64 = 1 << 6;
/// Sign flag.
const SF: u64 = 1 << 7;
/// Overflow flag.
const OF: u64 = 1 << 11;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// Whether `instruction`, whose bytes are `bytes`, is emulated.
pub(super) fn emulated(bits: u32, instruction: &Instruction, bytes: &[u8]) -> Result<(), Reason> {
    form(bits, instruction, bytes, instruction.ip()..instruction.next_ip())?;
    let known = (0..instruction.op_count()).all(|n| match instruction.op_kind(n) {
        OpKind::Register => instruction.op_register(n).is_gpr(),
        OpKind::FarBranch16 | OpKind::FarBranch32 => false,
        OpKind::Memory => {
            instruction.mnemonic() == Mnemonic::Nop
                || instruction.memory_size().size() <= 8 && has_plain_address(bits, instruction)
        }
        _ => true,
    });
    if instruction.has_lock_prefix() {
        return Err(Reason::NotEmulated("a locked instruction"));
    }
    use Mnemonic::*;
    let named = match instruction.mnemonic() {
        Push | Nop | Endbr32 | Endbr64 | Jmp | Call | Ret | Mov | Movzx | Movsx | Movsxd | Lea | Add
        | Sub | And | Or | Xor | Test | Cmp | Inc | Dec => true,
        Pop => instruction.op0_kind() == OpKind::Register,
        Leave => instruction.code() != Code::Leavew,
        _ => instruction.is_jcc_short_or_near() || is_cmov(instruction.mnemonic()),
    };
    if known && named { Ok(()) } else { Err(Reason::NotEmulated("this instruction")) }
}

/// Whether the address is of a kind that compilers write and the processor has proven. Not so: an element's of a vector; one
/// of 16 bits; a stack address in fs or gs; one in cs, which cannot be written in 32-bit mode.
fn has_plain_address(bits: u32, instruction: &Instruction) -> bool {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let narrow = base.size().max(index.size()) == 2 || instruction.memory_displ_size() == 2;
    let segment = instruction.memory_segment();
    let odd = match segment {
        Register::CS => bits == 32,
        Register::FS | Register::GS => {
            instruction.is_stack_instruction() && base.full_register() == Register::RSP
        }
        _ => false,
    };
    !(instruction.is_vsib() || narrow || odd)
}

fn is_cmov(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

/// Does to `state` what the instruction that `code` starts with does at `address`. `bits` is 32 or 64.
///
/// # Errors
/// Nothing in `state` was changed then.
pub fn emulate(bits: u32, code: &[u8], address: u64, state: &mut dyn Thread) -> Result<(), EmulateError> {
    emulate_one(bits, code, address, state).map(drop)
}

/// [`emulate`], telling the length of the instruction.
pub(super) fn emulate_one(
    bits: u32,
    code: &[u8],
    address: u64,
    state: &mut dyn Thread,
) -> Result<usize, EmulateError> {
    let (instruction, _) = decode_one(bits, code, address).map_err(|_| Reason::NotAnInstruction)?;
    emulated(bits, &instruction, &code[..instruction.len()])?;
    Emulation { bits, instruction: &instruction, state }.run().ok_or(EmulateError::Fault)?;
    Ok(instruction.len())
}

struct Emulation<'a> {
    bits: u32,
    instruction: &'a Instruction,
    state: &'a mut dyn Thread,
}

impl Emulation<'_> {
    /// `None` when memory could not be accessed.
    fn run(&mut self) -> Option<()> {
        use Mnemonic::*;
        let i = self.instruction;
        let mut next = i.next_ip();
        match i.mnemonic() {
            Nop | Endbr32 | Endbr64 => {}
            Push => {
                let value = self.get(0)?;
                self.push(value)?;
            }
            Pop => {
                let size = i.stack_pointer_increment() as u8;
                let top = self.register(RSP);
                let value = self.state.read(top, size)?;
                self.set_full(RSP, top.wrapping_add(size.into()));
                self.put(0, value)?;
            }
            Leave => {
                let frame = self.register(RBP);
                let saved = self.state.read(frame, self.word())?;
                self.set_full(RSP, frame.wrapping_add(self.word().into()));
                self.set_full(RBP, saved);
            }
            Jmp => next = self.target()?,
            Call => {
                let target = self.target()?;
                self.push(next)?;
                next = target;
            }
            Ret => {
                let top = self.register(RSP);
                next = self.state.read(top, self.word())?;
                let arguments = if i.op_count() == 1 { u64::from(i.immediate16()) } else { 0 };
                self.set_full(RSP, top.wrapping_add(self.word().into()).wrapping_add(arguments));
            }
            Mov => {
                let value = self.get(1)?;
                self.put(0, value)?;
            }
            Movzx => {
                let value = self.get(1)?;
                self.put(0, value)?;
            }
            Movsx | Movsxd => {
                let value = sign_extend(self.get(1)?, self.size(1));
                self.put(0, value)?;
            }
            Lea => {
                // The address as the program computes it, without a segment's base.
                let address = i.virtual_address(1, 0, |register, _, _| {
                    Some(if register.is_segment_register() { 0 } else { self.value(register) })
                })?;
                self.put(0, address)?;
            }
            Add | Sub | And | Or | Xor | Test | Cmp | Inc | Dec => self.arithmetic()?,
            _ if i.is_jcc_short_or_near() => {
                if self.holds(i.condition_code()) {
                    next = i.near_branch_target();
                }
            }
            _ => {
                // cmov reads its source, and clears the upper half of a 32-bit destination, whatever the condition.
                let source = self.get(1)?;
                let kept = self.get(0)?;
                let value = if self.holds(i.condition_code()) { source } else { kept };
                self.put(0, value)?;
            }
        }
        self.state.set_ip(self.cut(next));
        Some(())
    }

    /// Bytes of a word of the mode.
    fn word(&self) -> u8 {
        (self.bits / 8) as u8
    }

    /// A value as wide as the mode.
    fn cut(&self, value: u64) -> u64 {
        if self.bits == 32 { value & 0xffff_ffff } else { value }
    }

    fn register(&self, number: u8) -> u64 {
        self.cut(self.state.register(number))
    }

    fn set_full(&mut self, number: u8, value: u64) {
        self.state.set_register(number, self.cut(value));
    }

    /// The value of a general-purpose register of any width.
    fn value(&self, register: Register) -> u64 {
        let whole = self.register((register.full_register().number() & 15) as u8);
        let shift = if is_high_byte(register) { 8 } else { 0 };
        whole >> shift & mask(register.size() as u8)
    }

    /// Size of an operand in bytes.
    fn size(&self, operand: u32) -> u8 {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.instruction.op_register(operand).size() as u8,
            OpKind::Memory => self.instruction.memory_size().size() as u8,
            _ => 8,
        }
    }

    /// Address of the memory operand.
    fn address(&self, operand: u32) -> Option<u64> {
        let address = self.instruction.virtual_address(operand, 0, |register, _, _| match register {
            Register::FS => self.state.segment_base(false),
            Register::GS => self.state.segment_base(true),
            _ if register.is_segment_register() => Some(0),
            _ => Some(self.value(register)),
        })?;
        Some(self.cut(address))
    }

    /// Value of an operand, zero-extended from its size; immediates as they are sign-extended by the decoder.
    fn get(&self, operand: u32) -> Option<u64> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => Some(self.value(self.instruction.op_register(operand))),
            OpKind::Memory => self.state.read(self.address(operand)?, self.size(operand)),
            _ => self.instruction.try_immediate(operand).ok(),
        }
    }

    /// Writes an operand. Writes of 32 bits clear the upper half of the register, narrower ones keep the rest.
    fn put(&mut self, operand: u32, value: u64) -> Option<()> {
        let size = self.size(operand);
        if self.instruction.op_kind(operand) == OpKind::Memory {
            return self.state.write(self.address(operand)?, size, value & mask(size));
        }
        let register = self.instruction.op_register(operand);
        let number = (register.full_register().number() & 15) as u8;
        let shift = if is_high_byte(register) { 8 } else { 0 };
        let kept = if size >= 4 { 0 } else { self.register(number) & !(mask(size) << shift) };
        self.set_full(number, kept | (value & mask(size)) << shift);
        Some(())
    }

    fn push(&mut self, value: u64) -> Option<()> {
        let size = match self.instruction.mnemonic() {
            Mnemonic::Push => self.instruction.stack_pointer_increment().unsigned_abs() as u8,
            _ => self.word(),
        };
        let top = self.cut(self.register(RSP).wrapping_sub(size.into()));
        self.state.write(top, size, value & mask(size))?;
        self.set_full(RSP, top);
        Some(())
    }

    /// Where a jump or call leads.
    fn target(&self) -> Option<u64> {
        match self.instruction.op0_kind() {
            OpKind::Register | OpKind::Memory => self.get(0),
            _ => Some(self.instruction.near_branch_target()),
        }
    }

    fn arithmetic(&mut self) -> Option<()> {
        use Mnemonic::*;
        let size = self.size(0);
        let (mask, sign) = (mask(size), 1 << (u32::from(size) * 8 - 1));
        let mnemonic = self.instruction.mnemonic();
        let a = self.get(0)?;
        let b = if matches!(mnemonic, Inc | Dec) { 1 } else { self.get(1)? & mask };
        let (result, carry, overflow, auxiliary) = match mnemonic {
            Add | Inc => {
                let r = a.wrapping_add(b) & mask;
                (r, r < a, (a ^ r) & (b ^ r) & sign != 0, (a ^ b ^ r) & 0x10 != 0)
            }
            Sub | Cmp | Dec => {
                let r = a.wrapping_sub(b) & mask;
                (r, a < b, (a ^ b) & (a ^ r) & sign != 0, (a ^ b ^ r) & 0x10 != 0)
            }
            Or => (a | b, false, false, false),
            Xor => (a ^ b, false, false, false),
            _ => (a & b, false, false, false),
        };
        let before = self.state.flags();
        let mut flags = before & !(CF | PF | AF | ZF | SF | OF);
        let carry = if matches!(mnemonic, Inc | Dec) { before & CF != 0 } else { carry };
        for (flag, set) in [
            (CF, carry),
            (PF, (result as u8).count_ones().is_multiple_of(2)),
            (AF, auxiliary),
            (ZF, result == 0),
            (SF, result & sign != 0),
            (OF, overflow),
        ] {
            flags |= if set { flag } else { 0 };
        }
        if !matches!(mnemonic, Cmp | Test) {
            self.put(0, result)?;
        }
        self.state.set_flags(flags);
        Some(())
    }

    fn holds(&self, condition: ConditionCode) -> bool {
        let flags = self.state.flags();
        let is = |flag: u64| flags & flag != 0;
        match condition {
            ConditionCode::None => true,
            ConditionCode::o => is(OF),
            ConditionCode::no => !is(OF),
            ConditionCode::b => is(CF),
            ConditionCode::ae => !is(CF),
            ConditionCode::e => is(ZF),
            ConditionCode::ne => !is(ZF),
            ConditionCode::be => is(CF) || is(ZF),
            ConditionCode::a => !is(CF) && !is(ZF),
            ConditionCode::s => is(SF),
            ConditionCode::ns => !is(SF),
            ConditionCode::p => is(PF),
            ConditionCode::np => !is(PF),
            ConditionCode::l => is(SF) != is(OF),
            ConditionCode::ge => is(SF) == is(OF),
            ConditionCode::le => is(ZF) || is(SF) != is(OF),
            ConditionCode::g => !is(ZF) && is(SF) == is(OF),
        }
    }
}

fn mask(size: u8) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (u32::from(size) * 8)) - 1 }
}

fn sign_extend(value: u64, size: u8) -> u64 {
    let unused = 64 - u32::from(size) * 8;
    ((value << unused) as i64 >> unused) as u64
}

fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}
