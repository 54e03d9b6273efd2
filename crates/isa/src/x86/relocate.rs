//! Which bytes do the same thing at another address?
//!
//! Instructions are moved by editing their bytes, never by encoding them again: every prefix, every redundant form and
//! every encoding the decoder does not tell apart survives.
//!
//! | form | becomes |
//! |---|---|
//! | RIP-relative operand | the same with another disp32 |
//! | `jmp rel` | `jmp rel32`, or `jmp [rip+0]; .quad target` when out of reach |
//! | `jcc rel` | `jcc rel32`, or `the inverse` over the far jump |
//! | `loop`, `jcxz`, … | the same over a short jump that skips the jump to the target |
//! | `call rel32` | push of the *original* return address, jump to the target |
//! | `call r/m` | push of the original return address, `jmp r/m`; an rsp-relative operand is adjusted for the push |
//!
//! **Calls** push the address behind the original call. So get-PC code (`call next; pop`, `__x86.get_pc_thunk.*`) gets
//! the value it would have got, unwinders and `backtrace()` see the program's own code, and a callee that is blocked
//! while the detour is removed returns to where it would have. For that the call must be the last displaced
//! instruction, since its return address would otherwise lie in the patch. Flags and registers stay as they are.
//!
//! **A jump back to the first displaced instruction** goes to its copy: it is another round of a loop, not another
//! arrival at the site. A *call* to it is an arrival and goes to the patch. A jump back to an entry that is probed elsewhere
//! goes [`Past`] the probe.

use super::decode::decode_one;
use super::movable::{Form, form, legacy_prefixes};
use crate::{Displaced, Past, Reason};
use alloc::vec::Vec;
use iced_x86::Register;

/// Displaced instructions, rewritten to run elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relocated {
    /// Machine code. Unless the last instruction never falls through, control leaves it at its end.
    pub code: Vec<u8>,
    /// For each instruction its original address and the offset of its copy.
    pub places: Vec<(u64, u32)>,
}

/// Rewrites `displaced`, whose bytes are `original`, to run at `destination`. `bits` is 32 or 64.
///
/// Padding that the patch covers behind the last instruction is not copied.
///
/// # Errors
/// [`Reason::OutOfReach`] when a RIP-relative operand is further than ±2 GB from the copy (branches never are);
/// [`Reason::CallInside`] for a call that is not the last instruction; [`Reason::BranchInto`] for a branch into the
/// middle of the region; [`Reason::Unmovable`], [`Reason::Traps`], [`Reason::NotAnInstruction`] as in the verdict.
pub fn relocate(
    bits: u32,
    displaced: &Displaced,
    original: &[u8],
    destination: u64,
) -> Result<Relocated, Reason> {
    relocate_past(bits, displaced, original, destination, None)
}

/// The same where jumps back to an entry go `past` the probe there.
pub(super) fn relocate_past(
    bits: u32,
    displaced: &Displaced,
    original: &[u8],
    destination: u64,
    past: Option<Past>,
) -> Result<Relocated, Reason> {
    let mut mover = Mover { bits, displaced, destination, past, out: Relocated::default() };
    let mut offset = 0;
    for _ in 0..displaced.instructions {
        let rest = original.get(offset..).unwrap_or_default();
        offset += mover.instruction(rest, displaced.start.wrapping_add(offset as u64))?;
    }
    Ok(mover.out)
}

struct Mover<'a> {
    bits: u32,
    displaced: &'a Displaced,
    destination: u64,
    past: Option<Past>,
    out: Relocated,
}

impl Mover<'_> {
    /// Moves the instruction that `bytes` start with; its length.
    fn instruction(&mut self, bytes: &[u8], address: u64) -> Result<usize, Reason> {
        let (instruction, offsets) =
            decode_one(self.bits, bytes, address).map_err(|_| Reason::NotAnInstruction)?;
        let bytes = &bytes[..instruction.len()];
        let region = self.displaced.start..self.displaced.end();
        let form = form(self.bits, &instruction, bytes, region)?;
        self.out.places.push((address, self.out.code.len() as u32));
        let target = instruction.near_branch_target();
        match form {
            Form::Copy => self.copy(bytes, &instruction, offsets.displacement_offset())?,
            Form::Jump => {
                let target = self.branch_target(target)?;
                // Of the prefixes only bnd means something here.
                self.out.code.extend(bytes.iter().take_while(|b| **b == 0xf2));
                self.jump(target);
            }
            Form::Conditional => {
                let target = self.branch_target(target)?;
                self.conditional(bytes, instruction.is_jcc_short(), target);
            }
            Form::ShortOnly => {
                let target = self.branch_target(target)?;
                self.short_only(bytes, target);
            }
            Form::Transaction => {
                let target = self.branch_target(target)?;
                self.out.code.extend_from_slice(&bytes[..bytes.len() - 4]);
                self.relative(target)?;
            }
            Form::Call => {
                self.push_return(instruction.next_ip())?;
                self.jump(target);
            }
            Form::IndirectCall => {
                self.push_return(instruction.next_ip())?;
                self.indirect_call(bytes, &instruction, offsets.displacement_offset())?;
            }
        }
        Ok(instruction.len())
    }

    /// Address of the next byte of the copy.
    fn here(&self) -> u64 {
        self.destination.wrapping_add(self.out.code.len() as u64)
    }

    /// Where a jump to `target` has to go.
    fn branch_target(&self, target: u64) -> Result<u64, Reason> {
        if let Some(past) = self.past.filter(|past| past.leads_back(target)) {
            Ok(past.copy)
        } else if target == self.displaced.start {
            Ok(self.destination)
        } else if (self.displaced.start..self.displaced.end()).contains(&target) {
            Err(Reason::BranchInto(target))
        } else {
            Ok(target)
        }
    }

    /// The displacement to `target` from an instruction that ends at `end`.
    fn displacement(&self, target: u64, end: u64) -> Option<i32> {
        let distance = target.wrapping_sub(end) as i64;
        if self.bits == 32 { Some(distance as i32) } else { i32::try_from(distance).ok() }
    }

    /// A rel32 to `target` that ends the instruction.
    fn relative(&mut self, target: u64) -> Result<(), Reason> {
        let displacement =
            self.displacement(target, self.here().wrapping_add(4)).ok_or(Reason::OutOfReach)?;
        self.out.code.extend_from_slice(&displacement.to_le_bytes());
        Ok(())
    }

    fn reaches(&self, target: u64, length: u64) -> bool {
        self.displacement(target, self.here().wrapping_add(length)).is_some()
    }

    /// `jmp target`, near or far.
    fn jump(&mut self, target: u64) {
        match self.displacement(target, self.here().wrapping_add(5)) {
            Some(displacement) => {
                self.out.code.push(0xe9);
                self.out.code.extend_from_slice(&displacement.to_le_bytes());
            }
            None => {
                self.out.code.extend_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
                self.out.code.extend_from_slice(&target.to_le_bytes());
            }
        }
    }

    fn conditional(&mut self, bytes: &[u8], short: bool, target: u64) {
        let opcode = bytes.len() - if short { 2 } else { 5 };
        let condition = bytes[opcode] & 0x0f;
        // An operand-size prefix means nothing beside REX.W, and would without.
        let prefixes = legacy_prefixes(bytes).iter().filter(|b| **b != 0x66);
        if self.reaches(target, prefixes.clone().count() as u64 + 6) {
            self.out.code.extend(prefixes);
            self.out.code.extend_from_slice(&[0x0f, 0x80 | condition]);
            let displacement = self.displacement(target, self.here().wrapping_add(4)).unwrap_or_default();
            self.out.code.extend_from_slice(&displacement.to_le_bytes());
        } else {
            self.out.code.extend_from_slice(&[0x70 | condition ^ 1, 0]);
            self.skipped_jump(target);
        }
    }

    fn short_only(&mut self, bytes: &[u8], target: u64) {
        // The prefixes may hold the address size, which selects cx, ecx or rcx.
        self.out.code.extend_from_slice(&bytes[..bytes.len() - 1]);
        self.out.code.extend_from_slice(&[2, 0xeb, 0]);
        self.skipped_jump(target);
    }

    /// `jump`, and the rel8 just before it set to lead past it. A jcc may fail to reach what the jump, which ends earlier
    /// or later, still reaches: so the length is known only now.
    fn skipped_jump(&mut self, target: u64) {
        let island = self.out.code.len();
        self.jump(target);
        self.out.code[island - 1] = (self.out.code.len() - island) as u8;
    }

    /// Pushes the original return address without touching flags or registers.
    fn push_return(&mut self, address: u64) -> Result<(), Reason> {
        if address != self.displaced.end() {
            return Err(Reason::CallInside);
        }
        let (low, high) = (address as u32, (address >> 32) as u32);
        self.out.code.push(0x68);
        self.out.code.extend_from_slice(&low.to_le_bytes());
        if self.bits == 64 && low as i32 as i64 as u64 != address {
            self.out.code.extend_from_slice(&[0xc7, 0x44, 0x24, 0x04]);
            self.out.code.extend_from_slice(&high.to_le_bytes());
        }
        Ok(())
    }

    /// Copies an instruction; re-bases its displacement when it is RIP-relative.
    fn copy(
        &mut self,
        bytes: &[u8],
        instruction: &iced_x86::Instruction,
        displacement_offset: usize,
    ) -> Result<(), Reason> {
        let start = self.out.code.len();
        let end = self.here().wrapping_add(bytes.len() as u64);
        self.out.code.extend_from_slice(bytes);
        if instruction.memory_base() == Register::RIP {
            let target = instruction.memory_displacement64();
            let displacement = self.displacement(target, end).ok_or(Reason::OutOfReach)?;
            let field = start + displacement_offset;
            self.out.code[field..field + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        Ok(())
    }

    /// The jump that is left of `call r/m` once the return address is pushed.
    fn indirect_call(
        &mut self,
        bytes: &[u8],
        instruction: &iced_x86::Instruction,
        displacement_offset: usize,
    ) -> Result<(), Reason> {
        let start = self.out.code.len();
        self.copy(bytes, instruction, displacement_offset)?;
        // FF /2 becomes FF /4. The opcode follows the prefixes and, in 64-bit mode, REX.
        let prefixes = legacy_prefixes(bytes).len();
        let opcode = prefixes + usize::from(self.bits == 64 && bytes[prefixes] & 0xf0 == 0x40);
        let modrm = start + opcode + 1;
        self.out.code[modrm] = self.out.code[modrm] & !0x38 | 4 << 3;
        if instruction.memory_base().full_register() == Register::RSP {
            self.raise_stack_operand(modrm, instruction);
        }
        Ok(())
    }

    /// Makes an operand relative to the stack pointer mean the same after a push. `modrm` is its ModRM byte's offset;
    /// a SIB byte and the displacement, the instruction's last field, follow.
    fn raise_stack_operand(&mut self, modrm: usize, instruction: &iced_x86::Instruction) {
        let displacement = instruction.memory_displacement64() as i32;
        // `form` has refused what this could overflow for.
        let raised = displacement.wrapping_add(self.bits as i32 / 8);
        self.out.code[modrm] = self.out.code[modrm] & 0x3f | 0x80;
        self.out.code.truncate(modrm + 2);
        self.out.code.extend_from_slice(&raised.to_le_bytes());
    }
}
