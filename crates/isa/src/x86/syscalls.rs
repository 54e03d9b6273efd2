//! System calls in a program's code: where they are, and what is known of their number.
//!
//! They are found by the way in which C libraries write them: the number is loaded, in the last few instructions, and then comes
//! `syscall`, or `int 0x80` in 32-bit mode, in straight code.

use super::decode::{decoder, flow, is_write};
use crate::Flow;
use alloc::vec::Vec;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, UsedRegister};

/// So far ahead of the entry into the kernel the number is loaded, in bytes.
const NEAR: usize = 48;

/// Offsets in `code` that look like the entry into the kernel of a call whose number `is_wanted`.
pub(super) fn entries(bits: u32, code: &[u8], is_wanted: impl Fn(u32) -> bool) -> Vec<usize> {
    let loads_number = |before: &[u8]| {
        let word = |at: usize| before.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        (0..before.len()).any(|at| match before[at] {
            // mov eax, imm32, in both encodings; mov al, imm8
            0xc7 if before.get(at + 1) == Some(&0xc0) => {
                word(at + 2).is_some_and(|bytes| is_wanted(u32::from_le_bytes(bytes)))
            }
            0xb8 => word(at + 1).is_some_and(|bytes| is_wanted(u32::from_le_bytes(bytes))),
            0xb0 => before.get(at + 1).is_some_and(|&number| is_wanted(number.into())),
            _ => false,
        })
    };
    let entry: [u8; 2] = if bits == 64 { [0x0f, 0x05] } else { [0xcd, 0x80] };
    let found = memchr::memmem::find_iter(code, &entry);
    found.filter(|&at| loads_number(&code[at.saturating_sub(NEAR)..at])).collect()
}

/// A system call of a function.
pub(super) struct Call {
    before: Vec<Instruction>,
    behind: u64,
    arrivals: Vec<u64>,
    known: Known,
}

/// What is known of the registers of a system call.
#[derive(Clone, Copy, Default)]
struct Known {
    number: Option<u32>,
    /// Address of the instruction that has loaded it.
    loaded: u64,
    first: Option<u32>,
}

/// The one whose entry into the kernel stands at the address `at`, in a function of which `code` is all that was found, from its `start`
/// on. `None` where no instruction begins there, or a branch leads there.
pub(super) fn at(bits: u32, code: &[u8], start: u64, at: u64) -> Option<Call> {
    let mut before: Vec<Instruction> =
        decoder(bits, code, start).iter().take_while(|i| i.ip() <= at).collect();
    let entry = before.pop().filter(|i| i.ip() == at && !i.is_invalid())?;
    // Branches from behind it, too.
    let arrivals: Vec<u64> = decoder(bits, code, start)
        .iter()
        .filter_map(|i| match flow(&i) {
            Flow::Jump { target } | Flow::Branch { target } => Some(target),
            _ => None,
        })
        .collect();
    let (mut known, mut info) = (Known::default(), InstructionInfoFactory::new());
    for instruction in &before {
        if arrivals.contains(&instruction.ip()) {
            known = Known::default();
        }
        known.follow(bits, instruction, &mut info);
    }
    let call = Call { before, behind: entry.next_ip(), arrivals, known };
    (!call.is_led_to(at)).then_some(call)
}

impl Call {
    /// Which one it is, if that is known.
    pub fn number(&self) -> Option<u32> {
        self.known.number
    }

    /// What its first argument is, if that is a constant.
    pub fn first(&self) -> Option<u32> {
        self.known.first
    }

    /// Where its number is loaded, if that is the last thing ahead of it.
    pub fn loaded_last(&self) -> Option<u64> {
        let last = self.before.last()?;
        (last.ip() == self.known.loaded).then_some(self.known.loaded)
    }

    /// The instructions of the function ahead of it.
    pub fn before(&self) -> &[Instruction] {
        &self.before
    }

    /// Address of the instruction behind it.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// Whether a branch of the function leads to `address`.
    pub fn is_led_to(&self, address: u64) -> bool {
        self.arrivals.contains(&address)
    }
}

impl Known {
    fn follow(&mut self, bits: u32, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        if flow(instruction) != Flow::Next && !matches!(flow(instruction), Flow::Branch { .. }) {
            *self = Self::default();
            return;
        }
        let first = if bits == 64 { Register::RDI } else { Register::EBX };
        let immediate = || match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate32to64) => Some(instruction.immediate32()),
            (Mnemonic::Xor, OpKind::Register) if instruction.op0_register() == instruction.op1_register() => {
                Some(0)
            }
            _ => None,
        };
        let written = instruction.op0_register();
        let used = info.info(instruction).used_registers();
        let writes = |register: Register| {
            let is_it = |used: &UsedRegister| used.register().full_register() == register.full_register();
            used.iter().any(|used| is_it(used) && is_write(used.access()))
        };
        if writes(Register::RAX) {
            self.number = match written {
                Register::EAX | Register::RAX => immediate(),
                // On top of what is known.
                Register::AL if instruction.mnemonic() == Mnemonic::Mov => match instruction.op1_kind() {
                    OpKind::Immediate8 => {
                        self.number.map(|number| number & !0xff | u32::from(instruction.immediate8()))
                    }
                    _ => None,
                },
                _ => None,
            };
            self.loaded = instruction.ip();
        }
        if writes(first) {
            self.first = match written.full_register() == first.full_register() {
                true if written.size() >= 4 => immediate(),
                _ => None,
            };
        }
    }
}
