//! Makes any instruction safe to run: its operands lead into the windows of memory that a run may change, its branches
//! to exits.
//!
//! Displacements without a register are rewritten in its bytes; registers that addresses are made of get values that lead
//! to a chosen place. Before each run every access that the instruction makes is checked to lie in a window.

use crate::emulation::edge;
use crate::execution::{TAKEN, random_state};
use crate::processor::{DATA, FLAGS, ORIGINAL, Processor, Random, State, WINDOW};
use iced_x86::*;

/// What the tests run nowhere, and why not.
const NOT_RUN: &[(&str, &[Mnemonic])] = {
    use Mnemonic::*;
    &[
        ("another result each time", &[Rdtsc, Rdtscp, Rdrand, Rdseed, Rdpid, Rdpru, Cpuid, Rdpmc, Xbegin]),
        ("waits", &[Mwait, Mwaitx, Monitor, Monitorx, Umonitor, Umwait, Tpause]),
        ("state that the tests need", &[Wrfsbase, Wrgsbase, Wrpkru, Lds, Les, Lfs, Lgs]),
        ("state that memory must describe", &[Xrstor, Xrstor64, Xrstors, Xrstors64, Fxrstor, Fxrstor64]),
        ("talks to a hypervisor", &[Vmgexit, Vmmcall, Vmcall]),
        ("memory that the decoder does not tell", &[Clzero, Enclu, Movdir64b, Enqcmd]),
    ]
};

/// The kernel's lack, no form's.
pub const NO_SEGMENT: &str = "a segment that this kernel cannot make";

/// Where memory operands without registers lie.
const FIXED: u64 = DATA + 64;

/// An instruction that can be run.
pub struct Steered {
    pub bits: u32,
    pub bytes: Vec<u8>,
    pub instruction: Instruction,
    accesses: Vec<UsedMemory>,
}

fn decode(bits: u32, bytes: &[u8]) -> (Instruction, ConstantOffsets) {
    let mut decoder = Decoder::with_ip(bits, bytes, ORIGINAL, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let offsets = decoder.get_constant_offsets(&instruction);
    (instruction, offsets)
}

/// Base of a segment in runs.
fn base_of(segment: Register) -> u64 {
    if matches!(segment, Register::FS | Register::GS) { DATA } else { 0 }
}

fn number(register: Register) -> usize {
    register.full_register().number() & 15
}

fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory)
}

impl Steered {
    /// `found` is one instruction. An error says why it is not run.
    pub fn new(processor: &Processor, bits: u32, found: &[u8]) -> Result<Self, &'static str> {
        let mut bytes = found.to_vec();
        let (before, offsets) = decode(bits, &bytes);
        if let Some((why, _)) = NOT_RUN.iter().find(|(_, names)| names.contains(&before.mnemonic())) {
            return Err(why);
        }
        let writes = |register: Register| register.is_segment_register();
        if writes(before.op0_register())
            && before.op0_kind() == OpKind::Register
            && before.mnemonic() != Mnemonic::Push
        {
            return Err("state that the tests need");
        }
        if before.is_vsib() {
            return Err("an address for each element");
        }
        let end = ORIGINAL + bytes.len() as u64;
        let mut put = |at: usize, size: usize, value: u64| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        let (at, size) = (offsets.displacement_offset(), offsets.displacement_size());
        if has_memory(&before) {
            let target = FIXED - base_of(before.memory_segment());
            let pushes = is_on_stack(&before);
            if pushes && base_of(before.memory_segment()) != 0 {
                return Err("a stack address in fs or gs");
            }
            let number = before.op1_register().full_register();
            if is_bit_test(&before)
                && [before.memory_base(), before.memory_index()]
                    .map(Register::full_register)
                    .contains(&number)
            {
                return Err("a bit's number that is its address, too");
            }
            match (before.memory_base(), before.memory_index()) {
                (Register::RIP, _) => put(at, size, target.wrapping_sub(end)),
                (Register::None, Register::None) if size >= 4 => put(at, size, target),
                _ if pushes && size == 4 => put(at, size, 0x48),
                _ => {}
            }
        }
        if before.near_branch_target() != 0 || is_near_branch(&before) {
            put(offsets.immediate_offset(), offsets.immediate_size(), TAKEN.wrapping_sub(end));
        }
        let (instruction, _) = decode(bits, &bytes);
        let accesses: Vec<UsedMemory> = InstructionInfoFactory::new()
            .info(&instruction)
            .used_memory()
            .iter()
            .filter(|m| m.access() != OpAccess::NoMemAccess)
            .copied()
            .collect();
        let size = |access: &UsedMemory| size_of(&instruction, access);
        if accesses.iter().any(|m| size(m) == 0) {
            return Err("memory that the decoder does not tell");
        }
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let narrow = base.size().max(index.size()) == 2 || instruction.memory_displ_size() == 2;
        if narrow && has_memory(&instruction) && !accesses.is_empty() {
            return Err("a 16-bit address");
        }
        if !processor.segments && accesses.iter().any(|m| base_of(m.segment()) != 0) {
            return Err(NO_SEGMENT);
        }
        Ok(Self { bits, bytes, instruction, accesses })
    }

    /// A random state to run from. `None` when it leads out of the windows.
    pub fn state(&self, random: &mut Random, memory: &mut [u8; 2 * WINDOW]) -> Option<State> {
        use Mnemonic::*;
        let i = &self.instruction;
        let mut state = random_state(random, self.bits, memory);
        let pointers = [3, 4, 6, 7];
        for n in (0..16).filter(|n| !pointers.contains(n)) {
            match random.next() % 4 {
                0 => state.registers[n] = edge(random),
                _ if n == 0 || n == 8 => state.registers[n] = random.next(),
                _ => {}
            }
        }
        match i.mnemonic() {
            _ if repeats(i) => state.registers[1] = random.next() % 16,
            Leave | Enter => state.registers[5] = Processor::stack() + random.next() % 128,
            // Quotients that fit, in half of all states.
            Div | Idiv if random.next().is_multiple_of(2) => state.registers[2] = 0,
            _ if is_bit_test(i) => {
                state.registers[number(i.op1_register())] = random.next() % 512;
            }
            Popf | Popfd | Popfq => self.set_word(memory, Processor::stack(), random.next() & FLAGS | 0x202),
            _ => {}
        }
        for access in self.accesses.iter().filter(|a| base_of(a.segment()) != 0 && !has_memory(i)) {
            // A string in fs or gs.
            let at = &mut state.registers[number(access.base())];
            *at = at.wrapping_sub(DATA);
        }
        if has_memory(i) && !self.accesses.is_empty() {
            let operand = self.steer(random, &mut state)?;
            if is_indirect_branch(i) {
                self.set_word(memory, operand, TAKEN);
            }
        } else if is_indirect_branch(i) {
            state.registers[number(i.op0_register())] = TAKEN;
        }
        if self.bits == 32 {
            state.registers = state.registers.map(|r| r & 0xffff_ffff);
            state.registers[8..].fill(0);
        }
        self.stays_in_the_windows(&state).then_some(state)
    }

    /// Chooses a place and gives the operand's registers values that lead there.
    fn steer(&self, random: &mut Random, state: &mut State) -> Option<u64> {
        let i = &self.instruction;
        let (base, index) = (i.memory_base(), i.memory_index());
        let segment = base_of(i.memory_segment());
        let scale = u64::from(i.memory_index_scale());
        let displacement = i.memory_displacement64();
        let cut = if base.size().max(index.size()) == 4 { 0xffff_ffff } else { u64::MAX };
        let size = i.memory_size().size() as u64;
        let room = (WINDOW as u64 - 128).checked_sub(size)?;
        let mut target = DATA + 64 + random.next() % room;
        if size >= 16 {
            target &= !(size.next_power_of_two().min(64) - 1);
        }
        if is_on_stack(i) {
            let small = random.next() % 8;
            let indexed = if index == Register::None { 0 } else { small * scale };
            if index != Register::None {
                state.registers[number(index)] = small;
            }
            return Some(state.registers[4].wrapping_add(indexed).wrapping_add(displacement) & cut);
        }
        let wanted = target.wrapping_sub(segment).wrapping_sub(displacement);
        match (base, index) {
            (Register::RIP, _) | (Register::None, Register::None) => return Some(FIXED),
            (base, Register::None) => state.registers[number(base)] = wanted,
            (Register::None, index) => {
                let odd = (wanted & cut) % scale;
                target -= odd;
                state.registers[number(index)] = (wanted & cut) / scale;
            }
            (base, index) if base == index => {
                let odd = if scale == 1 { wanted & 1 } else { 0 };
                target -= odd;
                let value = if scale == 1 { (wanted - odd) / 2 } else { divide(wanted, scale + 1) };
                state.registers[number(base)] = value;
            }
            (base, index) => {
                let indexed = part(state.registers[number(index)], index).wrapping_mul(scale);
                state.registers[number(base)] = wanted.wrapping_sub(indexed);
            }
        }
        if cut != u64::MAX && self.bits == 64 {
            // What the address does not use.
            for register in [base, index].into_iter().filter(|r| *r != Register::None) {
                state.registers[number(register)] &= cut;
                if random.next().is_multiple_of(2) {
                    state.registers[number(register)] |= random.next() & !cut;
                }
            }
        }
        Some(target)
    }

    /// Whether it can change vector, mask or x87 state.
    pub fn has_vectors(&self) -> bool {
        use CpuidFeature::*;
        let plain = [INTEL8086, INTEL8086_ONLY, INTEL186, INTEL286, INTEL386, INTEL486, X64, CMOV];
        self.instruction.cpuid_features().iter().any(|feature| !plain.contains(feature))
    }

    fn stays_in_the_windows(&self, state: &State) -> bool {
        let stack = Processor::stack() - WINDOW as u64 / 2;
        // A bit's number may be that of a bit behind the operand.
        let i = &self.instruction;
        if is_bit_test(i) && part(state.registers[number(i.op1_register())], i.op1_register()) >= 512 {
            return false;
        }
        self.accesses.iter().all(|access| {
            let address = access.virtual_address(0, |register, _, _| {
                Some(match register {
                    Register::RIP | Register::EIP => 0,
                    _ if register.is_segment_register() => base_of(register),
                    _ => part(state.registers[number(register)], register),
                })
            });
            let size = size_of(i, access);
            // As many elements as a repeated string instruction may have, both ways.
            let before = if repeats(i) { 16 * size } else { 0 };
            address.is_some_and(|address| {
                [DATA, stack].iter().any(|window| {
                    let start = address.wrapping_sub(window + before);
                    start < WINDOW as u64 && start + 2 * before + size <= WINDOW as u64
                })
            })
        })
    }

    fn set_word(&self, memory: &mut [u8; 2 * WINDOW], address: u64, word: u64) {
        let stack = Processor::stack() - WINDOW as u64 / 2;
        let size = self.bits as usize / 8;
        for (window, offset) in [(DATA, 0), (stack, WINDOW)] {
            let at = address.wrapping_sub(window) as usize;
            if at <= WINDOW - size {
                memory[offset + at..offset + at + size].copy_from_slice(&word.to_le_bytes()[..size]);
            }
        }
    }
}

/// Whether rcx tells how often it is done.
fn repeats(instruction: &Instruction) -> bool {
    instruction.is_string_instruction() && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// Bytes of an access; of a repeated one, those of an element. 0: unknown.
fn size_of(instruction: &Instruction, access: &UsedMemory) -> u64 {
    let memory = if repeats(instruction) { instruction.memory_size() } else { access.memory_size() };
    memory.size() as u64
}

/// Whether it tests a bit of memory that a register tells.
fn is_bit_test(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(instruction.mnemonic(), Bt | Bts | Btr | Btc)
        && has_memory(instruction)
        && instruction.op1_kind() == OpKind::Register
}

/// Whether it moves the stack pointer, and its operand's address is made of that.
fn is_on_stack(instruction: &Instruction) -> bool {
    instruction.is_stack_instruction() && instruction.memory_base().full_register() == Register::RSP
}

fn is_near_branch(instruction: &Instruction) -> bool {
    matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

fn is_indirect_branch(instruction: &Instruction) -> bool {
    instruction.is_jmp_near_indirect() || instruction.is_call_near_indirect()
}

/// The part of a register that an address uses.
fn part(whole: u64, register: Register) -> u64 {
    match register.size() {
        1 => whole & 0xff,
        2 => whole & 0xffff,
        4 => whole & 0xffff_ffff,
        _ => whole,
    }
}

/// The number that times `odd` is `product`, modulo 2^64.
fn divide(product: u64, odd: u64) -> u64 {
    // Newton's iteration doubles the number of right bits, of which odd itself has three.
    let inverse = (0..5).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))));
    product.wrapping_mul(inverse)
}
