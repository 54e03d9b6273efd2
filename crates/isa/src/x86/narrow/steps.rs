//! The steps of a payload in 32-bit mode: what [`super::super::steps`] does, with other registers.

use super::{Narrow, high, low};
use crate::Operand;
use crate::detour::*;
use crate::payload::*;
use crate::x86::{
    detour::Asm,
    emit::{GPR32, number::*},
    frame::Frame,
};
use iced_x86::code_asm::*;

/// The word at an absolute address.
fn absolute(address: u64) -> AsmMemoryOperand {
    dword_ptr(address)
}

/// Increments a 64-bit counter of the thread's own block.
pub(super) fn count(a: &mut CodeAssembler, base: usize, counter: u32) -> Asm {
    a.add(low(base, counter), 1)?;
    a.adc(high(base, counter), 0)
}

impl Narrow<'_, '_> {
    /// With nothing saved.
    pub(super) fn hook(&mut self, hook: Hook) -> Asm {
        match hook {
            Hook::Translate(lookup) => self.translate(lookup),
            Hook::Land { code_address } => self.land(code_address),
            Hook::Share(sharing) => self.0.share(sharing),
            // Nobody asks for it in 32-bit mode.
            Hook::Signal(_) => self.a().ud2(),
            Hook::Gate => self.0.gate(),
            // Refused before.
            Hook::Replace(_) | Hook::CalledBy(_) => self.a().ud2(),
        }
    }

    /// With the thread's block in its register.
    pub(super) fn entry_step(&mut self, step: EntryStep, frame: &Frame) -> Asm {
        match step {
            EntryStep::Count(counter) => count(self.a(), frame.block, counter),
            EntryStep::Record { id, arguments } => self.record_entry(frame, id, arguments),
            EntryStep::Fetch { id } => self.record_operands(frame, id),
            // Refused before.
            EntryStep::Run(_) => self.a().ud2(),
        }
    }

    /// For a thread that has no block.
    pub(super) fn entry_step_shared(&mut self, step: EntryStep) -> Asm {
        match step {
            EntryStep::Count(counter) => self.count_shared(counter),
            EntryStep::Record { .. } | EntryStep::Fetch { .. } => self.count_shared(BLOCK_RING_LOST),
            EntryStep::Run(_) => self.count_shared(BLOCK_UNRUN),
        }
    }

    /// For a thread that has no block.
    pub(super) fn return_step_shared(&mut self, step: ReturnStep) -> Asm {
        match step {
            ReturnStep::Count(counter) => self.count_shared(counter),
            ReturnStep::Record { .. } => self.count_shared(BLOCK_RING_LOST),
            ReturnStep::Time(_) => Ok(()),
            ReturnStep::Run(_) => self.count_shared(BLOCK_UNRUN),
        }
    }

    /// With the thread's block in `block`.
    ///
    /// For the late steps that is ebx, edi:esi is the time, that of the entry lies on the stack, and esp is `depth` below the slot;
    /// they lose eax, ecx and edx, and edi:esi where it is the `last` one. Early ones lose ecx, and keep eax, which may hold the flags.
    pub(super) fn return_step(&mut self, step: ReturnStep, block: usize, depth: i32, last: bool) -> Asm {
        match step {
            ReturnStep::Count(counter) => count(self.a(), block, counter),
            ReturnStep::Record { id } => self.record_return(id, depth),
            ReturnStep::Time(histogram) if last => self.add_latency(histogram, 0),
            ReturnStep::Time(histogram) => {
                let kept = [edi, esi];
                kept.into_iter().try_for_each(|register| self.a().push(register))?;
                self.add_latency(histogram, 8)?;
                kept.into_iter().rev().try_for_each(|register| self.a().pop(register))
            }
            // Refused before.
            ReturnStep::Run(_) => self.a().ud2(),
        }
    }

    /// Increments a counter of the overflow block, which all threads share.
    pub(super) fn count_shared(&mut self, counter: u32) -> Asm {
        let counter = self.0.request.layout.blocks + u64::from(counter);
        let a = self.a();
        a.lock().add(absolute(counter), 1)?;
        a.lock().adc(absolute(counter + 4), 0)
    }

    fn record_entry(&mut self, frame: &Frame, id: u32, arguments: u8) -> Asm {
        let mut full = self.a().create_label();
        self.reserve_record(frame.block, frame.x, frame.y, full)?;
        for i in 0..u32::from(arguments) {
            let a = self.a();
            a.mov(eax, dword_ptr(esp + (frame.depth() + 4 + 4 * i as i32)))?;
            a.mov(low(frame.x, RECORD_VALUES + 8 * i), eax)?;
            a.mov(high(frame.x, RECORD_VALUES + 8 * i), 0)?;
        }
        self.end_record(frame, id)?;
        self.a().set_label(&mut full)?;
        self.a().zero_bytes()
    }

    /// Appends a record of the request's operands.
    fn record_operands(&mut self, frame: &Frame, id: u32) -> Asm {
        let mut full = self.a().create_label();
        self.reserve_record(frame.block, frame.x, frame.y, full)?;
        for (i, &operand) in (0..).zip(self.0.request.operands.iter().take(MOST_FETCHED)) {
            self.fetch(frame, operand, RECORD_VALUES + 8 * i)?;
        }
        self.a().mov(low(frame.x, RECORD_MISSING), 0)?;
        self.a().mov(high(frame.x, RECORD_MISSING), 0)?;
        self.end_record(frame, id)?;
        self.a().set_label(&mut full)?;
        self.a().zero_bytes()
    }

    /// Stores the value of an operand as it was when the detour was entered at an offset of the record. Loses eax and edx.
    fn fetch(&mut self, frame: &Frame, operand: Operand, to: u32) -> Asm {
        let (from, size) = match operand {
            Operand::Register(register) => {
                self.fetch_register(frame, RAX, register.into())?;
                self.a().mov(low(frame.x, to), eax)?;
                return self.a().mov(high(frame.x, to), 0);
            }
            Operand::Memory { base, index, offset, size } => {
                self.fetch_register(frame, RAX, base.into())?;
                if let Some((index, scale)) = index {
                    self.fetch_register(frame, RDX, index.into())?;
                    self.a().lea(eax, dword_ptr(eax + edx * (1 << scale)))?;
                }
                (eax + offset, size)
            }
            Operand::At { address, size } => {
                self.a().mov(eax, address as u32)?;
                (eax + 0, size)
            }
        };
        let a = self.a();
        match size {
            1 => a.movzx(edx, byte_ptr(from))?,
            2 => a.movzx(edx, word_ptr(from))?,
            _ => a.mov(edx, dword_ptr(from))?,
        }
        a.mov(low(frame.x, to), edx)?;
        match size {
            8 => {
                a.mov(edx, dword_ptr(from + 4))?;
                a.mov(high(frame.x, to), edx)
            }
            _ => a.mov(high(frame.x, to), 0),
        }
    }

    fn fetch_register(&mut self, frame: &Frame, to: usize, register: usize) -> Asm {
        let a = self.a();
        match frame.saved_at(register) {
            _ if register == RSP => a.lea(GPR32[to], dword_ptr(esp + frame.depth())),
            Some(saved) => a.mov(GPR32[to], dword_ptr(esp + saved)),
            None => a.mov(GPR32[to], GPR32[register]),
        }
    }

    /// What all records of entries end with. Loses eax and edx.
    fn end_record(&mut self, frame: &Frame, id: u32) -> Asm {
        self.a().lea(eax, dword_ptr(esp + frame.depth()))?;
        self.identify_record(id, frame.x)?;
        let a = self.a();
        a.rdtsc()?;
        a.mov(low(frame.x, RECORD_TIME), eax)?;
        a.mov(high(frame.x, RECORD_TIME), edx)?;
        self.publish_record(frame.x, frame.y)
    }

    /// Appends a record of the return. Loses eax, ecx and edx.
    fn record_return(&mut self, id: u32, depth: i32) -> Asm {
        let mut full = self.a().create_label();
        self.reserve_record(RBX, RCX, RDX, full)?;
        let a = self.a();
        // eax was the first register that was saved.
        a.mov(eax, dword_ptr(esp + (depth - 4)))?;
        a.mov(low(RCX, RECORD_VALUES), eax)?;
        a.mov(high(RCX, RECORD_VALUES), 0)?;
        for half in [0, 4] {
            a.mov(eax, dword_ptr(esp + half as i32))?;
            a.mov(low(RCX, RECORD_VALUES + 8 + half), eax)?;
        }
        a.mov(low(RCX, RECORD_TIME), esi)?;
        a.mov(high(RCX, RECORD_TIME), edi)?;
        a.lea(eax, dword_ptr(esp + depth))?;
        self.identify_record(id, RCX)?;
        self.publish_record(RCX, RDX)?;
        self.a().set_label(&mut full)?;
        self.a().zero_bytes()
    }

    /// `place` = address of a record of one's own and `position` its number, or off to `full`.
    fn reserve_record(&mut self, block: usize, place: usize, position: usize, full: CodeLabel) -> Asm {
        let layout = self.0.request.layout;
        let size = 1i32 << layout.ring_bits;
        let a = self.a();
        let mut room = a.create_label();
        a.mov(GPR32[place], low(block, BLOCK_RING_HEAD))?;
        a.sub(GPR32[place], low(block, BLOCK_RING_TAIL))?;
        a.cmp(GPR32[place], size - RING_SLACK as i32)?;
        a.jb(room)?;
        count(a, block, BLOCK_RING_LOST)?;
        a.jmp(full)?;
        a.set_label(&mut room)?;
        // One instruction: a signal handler's record gets another place.
        a.mov(GPR32[position], 1)?;
        a.xadd(low(block, BLOCK_RING_HEAD), GPR32[position])?;
        a.mov(GPR32[place], GPR32[position])?;
        a.and(GPR32[place], size - 1)?;
        a.shl(GPR32[place], RECORD_SHIFT)?;
        a.lea(GPR32[place], dword_ptr(GPR32[block] + GPR32[place] * 1 + layout.ring as i32))
    }

    /// Fills in what was hit where; eax holds the stack slot and is lost.
    fn identify_record(&mut self, id: u32, place: usize) -> Asm {
        let tid_offset = self.0.request.layout.tid_offset;
        let a = self.a();
        a.mov(low(place, RECORD_SLOT), eax)?;
        match tid_offset {
            Some(offset) => a.mov(eax, dword_ptr(offset).gs())?,
            None => a.xor(eax, eax)?,
        }
        a.mov(low(place, RECORD_ID), id)?;
        a.mov(low(place, RECORD_TID), eax)
    }

    /// Last of all: the tool reads a record once its number stands in it.
    fn publish_record(&mut self, place: usize, position: usize) -> Asm {
        let a = self.a();
        a.inc(GPR32[position])?;
        a.mov(low(place, RECORD_SEQUENCE), GPR32[position])
    }
}
