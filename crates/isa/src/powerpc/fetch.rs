//! Records of operands: those of USDT probes, and where functions of other languages than C have their arguments.
//!
//! An operand is read as it was when the detour was entered. Registers that the detour itself uses are read from its frame. What has
//! less than 8 bytes is extended with zeros; the reader knows about signs.

use super::detour::Template;
use super::emit::*;
use crate::detour::*;
use crate::{Operand, Reason};

/// Whether a register of an operand is one of r0 to r31.
pub(super) fn is_general(register: u8) -> Emitted<()> {
    if register < 32 { Ok(()) } else { Err(Reason::NotImplemented) }
}

impl Template<'_> {
    /// Time stamp and operands of an entry, into the record at r10. Changes r0 and r8.
    pub(super) fn operands(&mut self, operands: &[Operand]) {
        self.asm.read_special(R8, TIME_BASE);
        self.asm.store(R8, R10, RECORD_TIME as i16);
        for (n, &operand) in (0..).zip(operands.iter().take(MOST_FETCHED)) {
            self.fetch(operand);
            self.asm.store(R8, R10, RECORD_VALUES as i16 + 8 * n);
        }
        self.asm.load_constant(R8, 0);
        self.asm.store(R8, R10, RECORD_MISSING as i16);
    }

    /// r8 = the value of an operand. Changes r0.
    fn fetch(&mut self, operand: Operand) {
        let size = match operand {
            Operand::Register(register) => return self.program(R8, register),
            Operand::Memory { base, index, offset, size } => {
                self.program(R8, base);
                if let Some((index, scale)) = index {
                    self.program(R0, index);
                    self.asm.shift_left(R0, R0, scale.into());
                    self.asm.add(R8, R8, R0);
                }
                match i16::try_from(offset) {
                    Ok(0) => {}
                    Ok(offset) => self.asm.addi(R8, R8, offset),
                    Err(_) => {
                        self.asm.load_constant(R0, i64::from(offset) as u64);
                        self.asm.add(R8, R8, R0);
                    }
                }
                size
            }
            Operand::At { address, size } => {
                self.asm.load_constant(R8, address);
                size
            }
        };
        match size {
            1 => self.asm.load_byte(R8, R8, 0),
            2 => self.asm.load_half(R8, R8, 0),
            4 => self.asm.load_word(R8, R8, 0),
            _ => self.asm.load(R8, R8, 0),
        }
    }

    /// `to` = what a general register was in the program.
    fn program(&mut self, to: Gpr, register: u8) {
        let register = Gpr(register.into());
        match self.place_of(register) {
            Some(place) => self.asm.load(to, R1, place),
            None if register == R1 => self.slot(to),
            None => self.asm.copy(to, register),
        }
    }
}
