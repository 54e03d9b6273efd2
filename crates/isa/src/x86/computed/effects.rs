//! What instructions do with addresses of code.

use super::super::decode::is_write;
use super::labels::{Labels, OTHERS, Value};
use super::reading::Reading;
use super::{from_got, named, thunk::is_at_top};
use crate::Told;
use iced_x86::{
    ConditionCode, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

/// How many entries of a table are looked at whatever they are: as many as a byte chooses among.
const CHOICES: usize = 256;
/// How many of them may stand in a row that lead nowhere, behind those.
const UNUSED: usize = 16;

impl Reading<'_> {
    /// Whether an address may be in so many bytes: in four, if programs lie where they were linked for.
    fn may_hold(&self, size: usize) -> bool {
        size >= 8 || size == 4 && self.is_low
    }

    pub(super) fn get(&self, register: Register) -> Value {
        let full = register.full_register();
        match full.is_gpr64() {
            true if self.may_hold(register.size()) => self.values[full.number()],
            true if register.size() == 4 => Value::Any(self.half(self.values[full.number()])),
            true => Value::NOTHING,
            false => Value::Any(self.memory.and(self.foreign)),
        }
    }

    /// What is left of an address in four bytes of eight: a distance from another one, of which an address may be made again.
    fn half(&self, value: Value) -> Labels {
        match value {
            Value::Any(labels) => labels.named().computed(),
            Value::Address(label) | Value::Place(label) => {
                let bit = self.known.iter().position(|known| *known == label);
                let others = if self.others.contains(&label) { OTHERS } else { 0 };
                Labels { exact: 0, around: bit.map_or(others, |bit| 1 << bit) }
            }
            Value::Entry(_) | Value::EntryBy(_) => Labels::default(),
        }
    }

    /// What an instruction loads.
    fn loaded(&self, instruction: &Instruction) -> Labels {
        let frame = if is_in_frame(instruction) { self.frame } else { Labels::default() };
        self.memory.and(self.foreign).and(frame)
    }

    /// Puts a value into memory.
    fn store(&mut self, instruction: &Instruction, value: Value) {
        let labels = self.labels_of(value);
        if is_in_frame(instruction) {
            let computed = Labels { exact: 0, around: labels.around & self.foreign.exact };
            self.is_more |= self.frame != self.frame.and(computed);
            self.frame = self.frame.and(computed);
        }
        self.set(Register::None, value);
        if is_at_top(instruction) {
            self.top = Some(value);
        }
    }

    /// Puts a value into a register; into memory, if it is no general one.
    pub(super) fn set(&mut self, register: Register, value: Value) {
        let full = register.full_register();
        let value = match value {
            // What writes less than four bytes leaves the others.
            Value::Any(_) | Value::Address(_) | Value::Place(_)
                if register.size() == 4 && !self.may_hold(4) =>
            {
                Value::Any(self.half(value))
            }
            value => value,
        };
        let mut labels = self.labels_of(value);
        let held = if full.is_gpr64() {
            let by_it = self.values.iter_mut().filter(|value| **value == Value::EntryBy(full));
            by_it.for_each(|value| *value = Value::NOTHING);
            self.values[full.number()] = value;
            &mut self.anywhere[full.number()]
        } else {
            // All that is not known may be there anyway.
            labels = labels.named();
            &mut self.memory
        };
        labels.exact &= self.local;
        self.is_more |= *held != held.and(labels);
        *held = held.and(labels);
    }

    pub(super) fn push(&mut self, value: Value) {
        let mut labels = self.labels_of(value);
        labels.exact &= self.local;
        self.is_more |= self.pushed != self.pushed.and(labels);
        self.pushed = self.pushed.and(labels);
    }

    /// What an operand of an instruction is.
    pub(super) fn operand(&self, instruction: &Instruction, number: u32) -> Value {
        match instruction.op_kind(number) {
            OpKind::Register => self.get(instruction.op_register(number)),
            OpKind::Memory if !self.may_hold(instruction.memory_size().size()) => {
                let around = if instruction.memory_size().size() == 4 { self.memory.around } else { 0 };
                Value::Any(Labels { exact: 0, around })
            }
            OpKind::Memory => Value::Any(self.loaded(instruction)),
            _ if instruction.try_immediate(number).is_err() => Value::Any(self.memory.and(self.foreign)),
            _ => named(instruction, self.got, self.data).map_or(Value::NOTHING, Value::Address),
        }
    }

    /// What an instruction does that control goes on from.
    pub(super) fn effect(&mut self, factory: &mut InstructionInfoFactory, instruction: &Instruction) {
        let to = match instruction.op0_kind() {
            OpKind::Register => instruction.op0_register(),
            _ => Register::None,
        };
        // What writes less of a register computes with it.
        let is_whole = to == Register::None || to.size() >= 4;
        match instruction.mnemonic() {
            Mnemonic::Add | Mnemonic::Lea if self.adds_table(instruction) => self.set(to, Value::NOTHING),
            Mnemonic::Lea if is_whole => self.set_address(instruction),
            Mnemonic::Mov if is_whole => {
                let value = self.operand(instruction, 1);
                match to {
                    Register::None if instruction.op0_kind() == OpKind::Memory => {
                        self.store(instruction, value)
                    }
                    // To a place that is told in an odd way, if it is none.
                    to => self.set(to, value),
                }
            }
            Mnemonic::Push => {
                let value = self.operand(instruction, 0);
                self.push(value);
                if self.pushes_arguments {
                    self.escaped = self.escaped.and(self.labels_of(value));
                }
                self.top = Some(value);
            }
            Mnemonic::Pop => {
                let exact = if to == Register::None { 0 } else { self.pushed.exact };
                self.set(to, Value::Any(Labels { exact, ..self.pushed }.and(self.foreign)));
            }
            Mnemonic::Movsxd if let Some(table) = self.table_loaded(instruction) => {
                self.set(to, Value::Entry(table));
            }
            Mnemonic::Movsxd if let Some(base) = table_base(instruction) => {
                self.set(to, Value::EntryBy(base));
            }
            Mnemonic::Add if self.finds_got(instruction) => self.set(to, Value::NOTHING),
            Mnemonic::Add if is_whole && to != Register::None => {
                let [one, other] = [0, 1].map(|number| self.operand(instruction, number));
                let sum = self.sum(one, other, instruction.ip());
                self.set(to, sum);
            }
            Mnemonic::Xor | Mnemonic::Sub if is_whole && to == instruction.op1_register() => {
                self.set(to, Value::NOTHING);
            }
            Mnemonic::Xor | Mnemonic::Sub if is_whole && to != Register::None => {
                let both = [0, 1].map(|number| self.operand(instruction, number));
                let [one, other] = both.map(|value| self.labels_of(value));
                self.set(to, Value::Any(one.and(other).computed()));
            }
            // What holds an address is not asked for a bit: whoever does so is done with it.
            _ if is_set(instruction) => self.set(to, Value::NOTHING),
            _ => self.any_effect(factory, instruction, to),
        }
    }

    /// Of what is not known better, that all that it writes is computed from all that it reads, but for the addresses of memory.
    fn any_effect(&mut self, factory: &mut InstructionInfoFactory, instruction: &Instruction, to: Register) {
        if self.values == [Value::NOTHING; 16] && self.memory == Labels::default() && !is_at_top(instruction)
        {
            return;
        }
        let info = factory.info(instruction);
        let mut read = Labels::default();
        for used in info.used_registers() {
            let register = used.register();
            let is_part = is_write(used.access()) && register.size() < 4;
            let value = match is_part {
                true => self.get(register.full_register()),
                false if used.access() == OpAccess::Write || is_only_address(instruction, register) => {
                    continue;
                }
                false => self.get(register),
            };
            read = read.and(self.labels_of(value));
        }
        let moved = |memory: &&UsedMemory| self.may_hold(memory.memory_size().size());
        if info.used_memory().iter().filter(moved).any(|memory| memory.access() != OpAccess::Write) {
            read = read.and(self.loaded(instruction));
        }
        let stores = info.used_memory().iter().filter(moved).any(|memory| is_write(memory.access()));
        let is_whole = to == Register::None || to.size() >= 4;
        if multiplies(instruction) {
            // What was an address does not become one again.
            read = Labels::default();
        } else if !(is_whole && moves(instruction)) {
            read = read.computed();
        }
        for used in info.used_registers().iter().filter(|used| is_write(used.access())) {
            let register = used.register();
            let is_to = register.full_register() == to.full_register();
            self.set(if is_to { to } else { register }, Value::Any(read));
        }
        if stores {
            self.store(instruction, Value::Any(read));
        }
    }

    /// Whether an instruction adds the distance from where the code is to the GOT.
    fn finds_got(&self, instruction: &Instruction) -> bool {
        let (Some(got), Ok(distance)) = (self.got, instruction.try_immediate(1)) else { return false };
        self.known.iter().any(|label| from_got(*label, distance) == got)
    }

    /// Whether an instruction adds what a table says and where that table is: tables that name no label are read elsewhere.
    fn adds_table(&self, instruction: &Instruction) -> bool {
        let [one, other] = match instruction.mnemonic() {
            Mnemonic::Add => [instruction.op0_register(), instruction.op1_register()],
            _ if instruction.memory_index_scale() != 1 || instruction.memory_displacement64() != 0 => {
                return false;
            }
            _ => [instruction.memory_base(), instruction.memory_index()],
        };
        let is_of = |entry: Register, table: Register| {
            table != Register::None && self.get(entry) == Value::EntryBy(table.full_register())
        };
        is_of(one, other) || is_of(other, one)
    }

    /// The table that an instruction loads an entry of.
    fn table_loaded(&self, instruction: &Instruction) -> Option<u64> {
        if instruction.op1_kind() != OpKind::Memory || instruction.memory_index_scale() != 4 {
            return None;
        }
        let displacement = instruction.memory_displacement64();
        match instruction.memory_base() {
            Register::None => self.data.is_fixed().then_some(displacement),
            base => match self.get(base) {
                Value::Address(table) if displacement == 0 => Some(table),
                _ => None,
            },
        }
    }

    /// A `lea`.
    fn set_address(&mut self, instruction: &Instruction) {
        let [base, index] = [instruction.memory_base(), instruction.memory_index()].map(|part| match part {
            Register::None | Register::RIP => Value::NOTHING,
            part => self.get(part),
        });
        let is_indexed = instruction.memory_index() != Register::None;
        let is_alone = !is_indexed && [Register::None, Register::RIP].contains(&instruction.memory_base());
        let displacement = instruction.memory_displacement64();
        let is_plain = displacement == 0;
        if let Some(address) = named(instruction, self.got, self.data) {
            self.spelt |= self.bit(address);
        }
        let value = match named(instruction, self.got, self.data) {
            Some(address) if is_alone => {
                let is_here = address == instruction.next_ip();
                self.local &= if is_here { !self.bit(address) } else { u64::MAX };
                Value::Address(address)
            }
            // The GOT is in the register.
            Some(address)
                if !is_indexed && self.got.map(|got| from_got(got, displacement)) == Some(address) =>
            {
                let label = self.labels_of(Value::Address(address));
                Value::Any(label.and(self.labels_of(base).computed().named()))
            }
            Some(address) if !is_indexed => self.sum(Value::Address(address), base, instruction.ip()),
            None if is_plain && !is_indexed => base,
            None if is_plain && instruction.memory_index_scale() == 1 => {
                self.sum(base, index, instruction.ip())
            }
            named => {
                let named = named.map_or(Value::NOTHING, Value::Address);
                let all = [named, base, index].map(|value| self.labels_of(value));
                Value::Any(all.into_iter().fold(Labels::default(), Labels::and).computed())
            }
        };
        self.set(instruction.op0_register(), value);
    }

    /// The sum of two values, at `ip`.
    fn sum(&mut self, one: Value, other: Value, ip: u64) -> Value {
        if let (Value::Address(label), Value::Entry(table)) | (Value::Entry(table), Value::Address(label)) =
            (one, other)
            && label != table
            && self.data.may_be_code(label)
            && self.look_at_table(label, table).is_some()
        {
            self.told.push(Told { from: label, behind: self.line, last: ip });
            return Value::Place(label);
        }
        Value::Any(self.labels_of(one).and(self.labels_of(other)).computed())
    }

    /// Whether an instruction of the function begins there, as far as is known by now.
    pub(super) fn is_start(&self, place: u64) -> bool {
        self.is_inside(place) && (self.starts.is_empty() || self.starts.binary_search(&place).is_ok())
    }

    /// Notes the places that the entries of `table` tell by their distances from `label`, if it leads to code.
    fn look_at_table(&mut self, label: u64, table: u64) -> Option<()> {
        if self.tables.contains(&(label, table)) {
            return Some(());
        }
        let data = self.data;
        self.looked_at += 1;
        if data.at(table).len() < 4 {
            return None;
        }
        let entry = |bytes: &[u8; 4]| label.wrapping_add_signed(i32::from_le_bytes(*bytes).into());
        // Whose middle is taken has entries below that.
        for index in 1..=CHOICES as u64 {
            let Some(place) = data.at(table.wrapping_sub(4 * index)).first_chunk().map(entry) else { break };
            if !self.is_start(place) {
                break;
            }
            self.places.push((label, place));
        }
        let mut is_table = true;
        let mut led = 0;
        for (index, place) in data.at(table).as_chunks().0.iter().map(entry).enumerate() {
            let is_inside = self.is_inside(place);
            // An entry that is never used, or behind the end, leads anywhere; others may still come.
            is_table &= is_inside || data.may_be_code(place);
            if is_table || self.is_start(place) {
                led = index;
                self.places.push((label, place));
            }
            self.looked_at += 1;
            if !is_table && index == 0 || self.looked_at > self.most {
                return None;
            }
            if index >= CHOICES && index - led > UNUSED {
                break;
            }
        }
        self.tables.insert((label, table));
        Some(())
    }
}

/// The register by which an instruction finds a table that it loads a 32-bit entry of.
fn table_base(instruction: &Instruction) -> Option<Register> {
    let base = instruction.memory_base();
    let is_entry = instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index_scale() == 4
        && instruction.memory_displacement64() == 0
        && base.is_gpr64()
        && base != instruction.op0_register().full_register();
    is_entry.then_some(base)
}

/// Whether an instruction uses a register for the address of memory and for nothing else.
fn is_only_address(instruction: &Instruction, register: Register) -> bool {
    let is_operand = |number| {
        instruction.op_kind(number) == OpKind::Register
            && instruction.op_register(number).full_register() == register.full_register()
    };
    [instruction.memory_base(), instruction.memory_index()].contains(&register)
        && !(0..instruction.op_count()).any(is_operand)
}

/// Whether an instruction's memory is a place in the frame that it names, as those are where compilers keep what they have no register
/// for.
fn is_in_frame(instruction: &Instruction) -> bool {
    let base = instruction.memory_base().full_register();
    [Register::RSP, Register::RBP].contains(&base) && instruction.memory_index() == Register::None
}

/// `setcc`
fn is_set(instruction: &Instruction) -> bool {
    let is_jump = instruction.is_jcc_short_or_near();
    instruction.condition_code() != ConditionCode::None && instruction.op_count() == 1 && !is_jump
}

/// A multiplication or a division, of integers.
fn multiplies(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Mulx | Mnemonic::Div | Mnemonic::Idiv
    )
}

/// Whether an instruction that is none of the general moves leaves what it moves as it is: exchanges, conditional moves, and those of vectors, in
/// which pairs of pointers are put together.
fn moves(instruction: &Instruction) -> bool {
    let is_vector = |number| instruction.op_register(number).is_vector_register();
    match instruction.mnemonic() {
        Mnemonic::Xchg => true,
        Mnemonic::Paddd | Mnemonic::Paddq | Mnemonic::Psubd | Mnemonic::Psubq => false,
        Mnemonic::Vpaddd | Mnemonic::Vpaddq | Mnemonic::Vpsubd | Mnemonic::Vpsubq => false,
        _ if (0..instruction.op_count()).any(is_vector) => true,
        _ => instruction.condition_code() != ConditionCode::None && instruction.op_count() == 2,
    }
}
