//! Where a function's branches lead: the targets of its direct branches and of its jump tables.
//!
//! # Jump tables
//! Compilers write them in these forms, in registers and an order of their choice:
//!
//! | form | entries |
//! |---|---|
//! | `lea t,[rip+T]; movsxd r,[t+i*4]; add r,t; jmp r` | 32-bit distances from T |
//! | `lea t,[rip+T]; mov r,[t+i*8]; add r,t; jmp r` (the large code model) | 64-bit distances from T |
//! | `lea t,[rip+T]; jmp [t+i*8]`, `jmp [T+i*8]`, `mov r,[T+i*8]; jmp r` | 64-bit addresses |
//! | `jmp [T+i*4]`, `mov r,[T+i*4]; jmp r` (32-bit) | 32-bit addresses |
//! | `mov r,[got+i*4+T@GOTOFF]; add r,got; jmp r` (32-bit) | 32-bit distances from the GOT |
//!
//! The dispatch is not matched instruction by instruction. Every table *reference* in code that has an indirect jump is
//! read as every kind of table it could be, as long as the entries lie in the code: data that is no table does not
//! look like one for even one entry, and a wrong target costs a probe that would have been safe, never safety. Reading
//! stops at the next referenced table. Where a `cmp` bounds the index shortly before the entry is loaded, entries
//! up to the bound may also lead elsewhere: into the `.cold` part of the function.

use super::computed::{Computes, named};
use super::decode::decoder;
use super::skim::{Skimmed, skim};
use crate::{ReadOnlyData, Swept, View};
use alloc::vec::Vec;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// The furthest a `.cold` part is looked for.
const COLD_DISTANCE: u64 = 1 << 28;
/// How many instructions before the load of a table entry its `cmp` may stand.
const BOUND_WINDOW: u32 = 12;
/// Bounds above this are taken for a comparison with something else.
const BOUND_LIMIT: u64 = 1 << 16;

/// Length of the landing place of indirect branches that a function may begin with.
const ENDBR_LENGTH: u64 = 4;

/// A table that the code refers to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Table {
    address: u64,
    /// What its entries are distances from; `None` when they are addresses.
    base: Option<u64>,
    /// Size of an entry in bytes.
    entry: u8,
    /// How many entries there are, where the code says.
    bound: u64,
}

/// Reads code for where control can arrive because of it; see [`crate::Isa::sweep`]. Each instruction is looked at once, and once
/// more where the code jumps through a register and names an address of code that it may compute the place from.
///
/// `pointers`: what leads into it besides, if that is known.
pub(super) fn sweep(
    bits: u32,
    code: &[u8],
    address: u64,
    data: &dyn ReadOnlyData,
    pointers: Option<&[u64]>,
    found: &mut Swept,
) {
    let fixed = data.is_fixed();
    let mut references = References::new(bits, data.got());
    let mut computes = Computes::default();
    let mut decoder = decoder(bits, code, address);
    let mut instruction = Instruction::default();
    found.view = View::Whole;
    let mut at = 0;
    while at < code.len() {
        let window = code[at..].first_chunk().filter(|_| bits == 64);
        if let Some(skimmed) = window.and_then(|window| skim(window, fixed)) {
            references.count += 1;
            match skimmed {
                Skimmed::Plain(length) => at += length,
                Skimmed::Branch { length, distance, is_call } => {
                    at += length;
                    let behind = address.wrapping_add(at as u64);
                    let target = behind.wrapping_add_signed(distance);
                    if is_call {
                        computes.call(behind, target);
                    }
                    if found.branches(target, is_call, address, code) {
                        computes.leave(bits, data.code_at(target));
                    }
                }
            }
            continue;
        }
        if decoder.position() != at {
            if decoder.set_position(at).is_err() {
                break;
            }
            decoder.set_ip(address.wrapping_add(at as u64));
        }
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            found.view = View::Partial;
            // Data in text: try again at the next byte.
            at += 1;
            continue;
        }
        at = decoder.position();
        if is_direct_branch(&instruction) {
            let target = instruction.near_branch_target();
            if instruction.is_call_near() {
                computes.call(instruction.next_ip(), target);
            }
            if found.branches(target, instruction.is_call_near(), address, code) {
                computes.leave(bits, data.code_at(target));
            }
        }
        references.see(&instruction, data);
        computes.see(bits, &instruction, (code, address), references.got, data);
        let named = named(&instruction, references.got, data);
        found.targets.extend(named);
        found.taken.extend(named.filter(|named| named.wrapping_sub(address) >= code.len() as u64));
    }
    let direct = found.targets.len();
    if references.indirect_jump {
        references.read(code, address, data, &mut found.targets);
    }
    found.leads_around = computes.leads_around(code);
    if computes.computes() || pointers.is_some() && found.leads_around {
        computes.find(bits, (code, address), data, references.got, pointers, found);
    }
    let begins = address..=address.saturating_add(ENDBR_LENGTH);
    found.begins_again = found.targets[direct..].iter().any(|target| begins.contains(target));
}

impl Swept {
    /// Notes where a direct branch of `code`, or a call in it, leads. Whether it is a jump out of it.
    fn branches(&mut self, target: u64, is_call: bool, address: u64, code: &[u8]) -> bool {
        let is_inside = target.wrapping_sub(address) < code.len() as u64;
        match !is_call && is_inside {
            true => self.turns.push(target),
            false => self.targets.push(target),
        }
        !is_call && !is_inside
    }
}

fn is_direct_branch(instruction: &Instruction) -> bool {
    instruction.op_count() == 1
        && matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        )
        || instruction.mnemonic() == Mnemonic::Xbegin
}

/// What a sweep has seen of tables so far.
struct References {
    bits: u32,
    indirect_jump: bool,
    tables: Vec<Table>,
    /// By register number: the table it was last loaded with.
    loaded: [u64; 16],
    /// Instructions seen.
    count: u32,
    /// The last comparison with a constant: its number, and how many values it lets pass.
    bound: (u32, u64),
    /// Return address of the last call: what a get-PC thunk called there returns.
    returned: (u32, u64),
    /// The GOT, once its address was computed (32-bit only).
    got: Option<u64>,
    /// Whether the file told it.
    is_got_told: bool,
}

impl References {
    fn new(bits: u32, got: Option<u64>) -> Self {
        Self {
            bits,
            indirect_jump: false,
            tables: Vec::new(),
            loaded: [0; 16],
            count: 0,
            bound: (0, 0),
            returned: (0, 0),
            got: got.filter(|_| bits == 32),
            is_got_told: got.is_some(),
        }
    }

    fn see(&mut self, instruction: &Instruction, data: &dyn ReadOnlyData) {
        self.count += 1;
        match instruction.mnemonic() {
            Mnemonic::Lea if instruction.memory_base() == Register::RIP => {
                let address = instruction.memory_displacement64();
                self.loaded[instruction.op0_register().number() & 15] = address;
                self.tables.push(Table { address, base: Some(address), entry: 4, bound: 0 });
                self.tables.push(Table { address, base: None, entry: 8, bound: 0 });
                self.tables.push(Table { address, base: Some(address), entry: 8, bound: 0 });
            }
            Mnemonic::Movsxd => self.entry_load(instruction),
            Mnemonic::Mov | Mnemonic::Add if instruction.op1_kind() == OpKind::Memory => {
                self.entry_load(instruction);
            }
            Mnemonic::Add => self.got_base(instruction, data),
            Mnemonic::Cmp | Mnemonic::And => self.bounded(instruction),
            Mnemonic::Jmp if !is_direct_branch(instruction) => {
                self.indirect_jump = true;
                self.entry_load(instruction);
            }
            Mnemonic::Call => self.returned = (self.count, instruction.next_ip()),
            _ => {}
        }
    }

    fn bounded(&mut self, instruction: &Instruction) {
        if let Ok(limit @ 0..BOUND_LIMIT) = instruction.try_immediate(1) {
            self.bound = (self.count, limit + 1);
        }
    }

    /// `add r,imm` right behind a call, or behind `call next; pop r`.
    fn got_base(&mut self, instruction: &Instruction, data: &dyn ReadOnlyData) {
        if self.bits == 32
            && !self.is_got_told
            && self.count - self.returned.0 <= 2
            && let Ok(distance) = instruction.try_immediate(1)
        {
            let got = self.returned.1.wrapping_add(distance) & 0xffff_ffff;
            // What is returned, or the stack pointer, may be added to as well.
            self.got = if data.may_be_code(got) { self.got } else { Some(got) };
        }
    }

    /// An access that may load a table's entry.
    fn entry_load(&mut self, instruction: &Instruction) {
        if instruction.memory_index() == Register::None {
            return;
        }
        let (base, scale) = (instruction.memory_base(), instruction.memory_index_scale());
        let displacement = instruction.memory_displacement64();
        let bound = if self.count - self.bound.0 <= BOUND_WINDOW { self.bound.1 } else { 0 };
        let pointer = self.bits / 8;
        let table = if base == Register::None && scale == pointer {
            Table { address: displacement, base: None, entry: pointer as u8, bound }
        } else if self.bits == 64 && base.is_gpr64() && displacement == 0 {
            let address = self.loaded[base.number()];
            match scale {
                4 => Table { address, base: Some(address), entry: 4, bound },
                8 => {
                    self.tables.push(Table { address, base: Some(address), entry: 8, bound });
                    Table { address, base: None, entry: 8, bound }
                }
                _ => return,
            }
        } else if let (32, 4, Some(got)) = (self.bits, scale, self.got) {
            let address = got.wrapping_add(displacement) & 0xffff_ffff;
            Table { address, base: Some(got), entry: 4, bound }
        } else {
            return;
        };
        self.tables.push(table);
    }

    /// Reads the entries of every table referred to.
    fn read(&mut self, code: &[u8], address: u64, data: &dyn ReadOnlyData, targets: &mut Vec<u64>) {
        self.tables.sort_unstable();
        self.tables.dedup();
        for (i, table) in self.tables.iter().enumerate() {
            let next = self.tables[i..].iter().map(|t| t.address).find(|a| *a != table.address);
            let room = next.map_or(u64::MAX, |next| next - table.address);
            let bytes = match data.at(table.address) {
                [] => code.get(table.address.wrapping_sub(address) as usize..).unwrap_or_default(),
                bytes => bytes,
            };
            for (index, entry) in bytes.chunks_exact(table.entry.into()).enumerate() {
                let index = index as u64;
                let target = self.target(table, entry);
                let inside = target.wrapping_sub(address) < code.len() as u64;
                let cold = index < table.bound && target.abs_diff(address) < COLD_DISTANCE;
                if (index + 1) * u64::from(table.entry) > room || !(inside || cold) {
                    break;
                }
                targets.push(target);
            }
        }
    }

    /// Where a table's entry leads.
    fn target(&self, table: &Table, entry: &[u8]) -> u64 {
        let value = match *entry {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
            [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        };
        let target = table.base.unwrap_or_default().wrapping_add(value);
        if self.bits == 32 { target & 0xffff_ffff } else { target }
    }
}
