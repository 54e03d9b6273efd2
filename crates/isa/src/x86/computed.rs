//! Where does code compute a place to jump to?
//!
//! A jump through a register goes where the register says. Jump tables are read (`tables`), and a pointer leads where
//! something in the file points. What remains is arithmetic on the address of code: `lea f(%rip),%rax; lea
//! 2(%rax,%rdi,2),%rax; jmp *%rax` enters `f` at a place that only the program knows. So the address that such a place is
//! computed from is told, and the function there keeps its instructions.
//!
//! One form of that arithmetic says where it leads: what is loaded as an entry of a table and added to a label leads where one of
//! the table's entries says (GNU C's `goto *(&&label + table[i])`, as in glibc's `vfprintf`). Those places are targets like others, if
//! nobody arrives between the load and the jump.
//!
//! A place need not be jumped to where it was computed: goroutines start behind the first byte of `goexit`, LuaJIT fills a table with places around
//! the start of its interpreter, and translators make lists of places for one. So what is computed and handed on, or kept in memory, counts;
//! and so does a label that is handed on as it is, if the function jumps to what others say. Where data or other code points into a function,
//! it is read once more for jumps around what it is given.
//!
//! Few functions do more with an address of code than to hand it on ([`passed`]). The others are read: what their registers may hold is followed
//! along their branches until nothing is added ([`reading`]).

mod effects;
mod labels;
mod passed;
mod reading;
mod thunk;

use crate::{ReadOnlyData, Swept};
use alloc::vec::Vec;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use passed::is_passed_on;
use reading::Reading;
use thunk::thunk;

/// How often a function is read; one that has not been understood by then computes from all its labels.
const READINGS: usize = 32;
/// And how much of it in all, in bytes, but four times in any case.
const READ: usize = 8 << 20;

/// Whether code has what it takes to compute a place: seen by whoever reads it anyway.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Computes {
    /// A jump to what a register or memory says.
    jumps: bool,
    /// One that is not to what a table says.
    jumps_alone: bool,
    /// An address of code, to compute from.
    takes: bool,
    /// Behind the last call: what it returns to.
    behind: u64,
}

impl Computes {
    /// An instruction of the code that begins at `address`. `got`: of 32-bit code, where it is known.
    pub(super) fn see(
        &mut self,
        bits: u32,
        instruction: &Instruction,
        (code, address): (&[u8], u64),
        got: Option<u64>,
        data: &dyn ReadOnlyData,
    ) {
        match instruction.mnemonic() {
            Mnemonic::Jmp => {
                let jumps = matches!(instruction.op0_kind(), OpKind::Register | OpKind::Memory);
                self.jumps |= jumps;
                self.jumps_alone |= jumps && instruction.memory_index() == Register::None;
                self.takes |= is_returned(instruction, self.behind);
            }
            Mnemonic::Lea
            | Mnemonic::Mov
            | Mnemonic::Push
            | Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Xor => {
                let Some(named) = named(instruction, got, data).filter(|named| data.may_be_code(*named))
                else {
                    return;
                };
                let is_inside = named.wrapping_sub(address) < code.len() as u64;
                let behind = instruction.next_ip().wrapping_sub(address) as usize;
                let behind = code.get(behind..).unwrap_or_default();
                self.takes = self.takes || is_inside || !is_passed_on(bits, instruction, behind);
            }
            _ => {}
        }
    }

    /// A direct jump out of the code.
    pub(super) fn leave(&mut self, bits: u32, to: &[u8]) {
        self.jumps_alone |= thunk(bits, to).is_some();
    }

    /// A direct call.
    pub(super) fn call(&mut self, behind: u64, target: u64) {
        self.behind = behind;
        self.takes |= target == behind;
    }

    /// Whether the code may compute a place from an address that it names.
    pub(super) fn computes(self) -> bool {
        self.takes
    }

    /// Whether it may jump to a place that is computed from what it does not name.
    pub(super) fn leads_around(self, code: &[u8]) -> bool {
        self.jumps_alone || returns_elsewhere(code)
    }
}

impl Computes {
    /// Appends the places that the code computes and jumps to, and the stretches of code that tell them; or, where they cannot be told, the
    /// addresses that it computes them from. What its branches lead to is in `found`.
    ///
    /// `got`: of 32-bit code, where it is known. `pointers`: what leads into it besides, if that is known.
    pub(super) fn find(
        self,
        bits: u32,
        (code, address): (&[u8], u64),
        data: &dyn ReadOnlyData,
        got: Option<u64>,
        pointers: Option<&[u64]>,
        found: &mut Swept,
    ) {
        let mut reading = Reading::new(bits, code, address, data, got);
        if self.jumps || self.jumps_alone {
            reading.follow_foreign();
        }
        let all = found.targets.iter().chain(pointers.unwrap_or_default()).copied();
        let mut arrivals: Vec<u64> = all.filter(|to| reading.is_inside(*to)).collect();
        arrivals.sort_unstable();
        let most = (READ / code.len().max(1)).clamp(4, READINGS);
        let _ = (0..most).any(|_| !reading.read(bits, &arrivals));
        found.targets.extend(reading.places());
        found.told.append(&mut reading.told);
        for (label, is_guess) in reading.computed() {
            let found = if is_guess { &mut found.guessed } else { &mut found.computed };
            found.push(label);
        }
        found.leads_around &= pointers.is_none_or(|pointers| reading.leads_around(pointers));
    }
}

/// Whether code may return to what it has put on the stack: as its bytes say, `push r; ret` or `mov r, (%rsp); ret`, also with a prefix.
fn returns_elsewhere(code: &[u8]) -> bool {
    let is_return =
        |bytes: &[u8]| matches!(bytes, [0x50..=0x57 | 0x24, 0xc3, ..] | [0x50..=0x57 | 0x24, 0xf3, 0xc3]);
    code.windows(3).any(is_return) || code.ends_with(&[0x24, 0xc3]) || matches!(code, [.., 0x50..=0x57, 0xc3])
}

/// The address that an instruction names, which may be one of code: `lea`, and where constants are addresses, `mov`, `push` and `add`.
///
/// `got`: of 32-bit code, where it is known.
pub(super) fn named(instruction: &Instruction, got: Option<u64>, data: &dyn ReadOnlyData) -> Option<u64> {
    if instruction.mnemonic() != Mnemonic::Lea {
        return constant(instruction).filter(|_| data.is_fixed());
    }
    let displacement = instruction.memory_displacement64();
    match instruction.memory_base() {
        Register::RIP => Some(displacement),
        _ if displacement == 0 => None,
        base => {
            let from_got = got.filter(|_| base != Register::None).map(|got| from_got(got, displacement));
            let absolute = data.is_fixed().then_some(displacement);
            from_got.into_iter().chain(absolute).find(|address| data.may_be_code(*address))
        }
    }
}

/// Whether an instruction jumps to what a call has returned, right behind it: that may be its own return address, moved on
/// (glibc's `__mpn_add_n` for 32-bit x86).
fn is_returned(jump: &Instruction, behind: u64) -> bool {
    jump.ip() == behind && jump.op0_kind() == OpKind::Register
}

/// What lies so far from the GOT.
fn from_got(got: u64, displacement: u64) -> u64 {
    got.wrapping_add(displacement) & 0xffff_ffff
}

/// The constant that an instruction moves, pushes or computes with, as an address.
pub(super) fn constant(instruction: &Instruction) -> Option<u64> {
    let operand = match instruction.mnemonic() {
        Mnemonic::Mov => 1,
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Xor
            if matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64) =>
        {
            1
        }
        Mnemonic::Push => 0,
        _ => return None,
    };
    instruction.try_immediate(operand).ok()
}
