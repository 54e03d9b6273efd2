//! The shared vocabulary of cold routines on x86, in both modes: registers are hardware numbers, and as wide as the mode's words.

use super::emit::{Assembler, GPR32, GPR64, number::*, unencodable};
use crate::assemble::Assemble;
use crate::detour::HASH_FACTOR;
use crate::{Reason, detour::Emitted};
use alloc::vec::Vec;
use iced_x86::{IcedError, code_asm::*};

/// The flag by which children are marked that share their parent's memory: EFLAGS.ID (Intel SDM 1, 3.4.3.3). Signal delivery and
/// `sigreturn` keep it, a new program starts without it.
pub(super) const MARK: u32 = 1 << 21;

/// An assembler that tells what went wrong once, at the end.
pub(super) struct Lower {
    asm: Assembler,
    bits: u32,
    labels: Vec<CodeLabel>,
    result: Result<(), IcedError>,
}

macro_rules! by_width {
    ($self:ident, $op:ident, $($x:expr),+) => {
        $self.put(|a, wide| if wide { a.$op($(GPR64[$x]),+) } else { a.$op($(GPR32[$x]),+) })
    };
}

impl Lower {
    pub fn new(bits: u32, address: u64) -> Emitted<Self> {
        Ok(Self { asm: Assembler::new(bits, address)?, bits, labels: Vec::new(), result: Ok(()) })
    }

    /// Whatever the vocabulary does not say. `emit` is told whether words are of 64 bits.
    pub fn put(&mut self, emit: impl FnOnce(&mut CodeAssembler, bool) -> Result<(), IcedError>) {
        let wide = self.bits == 64;
        if self.result.is_ok() {
            self.result = emit(&mut self.asm.a, wide);
        }
    }

    pub fn push(&mut self, register: usize) {
        by_width!(self, push, register);
    }

    pub fn pop(&mut self, register: usize) {
        by_width!(self, pop, register);
    }

    /// `to = base + offset`, flags kept.
    pub fn address(&mut self, to: usize, base: usize, offset: i32) {
        let wide = self.bits == 64;
        if wide {
            self.put(|a, _| a.lea(GPR64[to], qword_ptr(GPR64[base] + offset)));
        } else {
            self.put(|a, _| a.lea(GPR32[to], dword_ptr(GPR32[base] + offset)));
        }
    }

    /// The label itself, for what `put` emits.
    pub fn place(&self, label: usize) -> CodeLabel {
        self.labels[label]
    }

    fn at(&self, base: usize, offset: i32) -> AsmMemoryOperand {
        if self.bits == 64 { qword_ptr(GPR64[base] + offset) } else { dword_ptr(GPR32[base] + offset) }
    }

    /// The code, and where labels are.
    pub fn finish(self, places: &[usize]) -> Result<(Vec<u8>, Vec<u64>), Reason> {
        self.result.map_err(unencodable)?;
        let assembled = self.asm.finish()?;
        let addresses = places.iter().map(|&label| assembled.address_of(&self.labels[label]));
        Ok((assembled.code().into(), addresses.collect::<Result<_, _>>()?))
    }
}

impl Assemble for Lower {
    type Reg = usize;
    type Label = usize;
    const MARKS: bool = true;

    fn word(&self) -> u32 {
        self.bits / 8
    }
    fn slot_below_frame(&self) -> u32 {
        self.word()
    }
    fn thread_control_block(&self) -> (i32, u32) {
        (0, if self.bits == 64 { 0x900 } else { 0x480 })
    }
    /// In a 64-bit one the flags and the selector of user code follow (`struct sigcontext_64`); in a 32-bit one the stack pointer is apart.
    fn skip_signal_frame(&mut self, found: usize, scratch: usize, is_one: usize) {
        const USER_CODE: i32 = 0x33;
        let is_one = self.labels[is_one];
        if self.bits == 64 {
            self.put(|a, _| a.movzx(GPR32[scratch], word_ptr(GPR64[found] + 16)));
            self.put(|a, _| a.cmp(GPR32[scratch], USER_CODE));
            self.put(|a, _| a.je(is_one));
        }
    }
    /// `_Unwind_Context` holds 18 registers, the frame address and the code address; the stack pointer has number 7, or 4.
    fn saved_stack_pointer(&self) -> Option<i32> {
        Some(if self.bits == 64 { 18 + 1 - 7 } else { 18 + 1 - 4 })
    }
    fn label(&mut self) -> usize {
        self.labels.push(self.asm.a.create_label());
        self.labels.len() - 1
    }
    fn bind(&mut self, label: usize) {
        let mut place = self.labels[label];
        // A label needs an instruction of its own.
        self.put(|a, _| a.set_label(&mut place).and_then(|()| a.zero_bytes()));
        self.labels[label] = place;
    }
    fn set(&mut self, to: usize, value: u64) {
        match value {
            0 => self.put(|a, _| a.xor(GPR32[to], GPR32[to])),
            _ if value <= u64::from(u32::MAX) => self.put(|a, _| a.mov(GPR32[to], value as u32)),
            _ => self.put(|a, _| a.mov(GPR64[to], value)),
        }
    }
    fn copy(&mut self, to: usize, from: usize) {
        if to != from {
            by_width!(self, mov, to, from);
        }
    }
    fn add(&mut self, to: usize, by: usize) {
        by_width!(self, add, to, by);
    }
    fn add_small(&mut self, to: usize, by: i32) {
        self.put(|a, wide| if wide { a.add(GPR64[to], by) } else { a.add(GPR32[to], by) });
    }
    fn sub(&mut self, to: usize, by: usize) {
        by_width!(self, sub, to, by);
    }
    fn bits(&mut self, to: usize, from: usize, low: u32, count: u32) {
        self.copy(to, from);
        if low > 0 {
            self.put(|a, wide| if wide { a.shr(GPR64[to], low) } else { a.shr(GPR32[to], low) });
        }
        if low + count < self.bits {
            self.put(|a, _| a.and(GPR32[to], (u32::MAX >> (32 - count)) as i32));
        }
    }
    fn shift_left(&mut self, to: usize, by: u32) {
        self.put(|a, wide| if wide { a.shl(GPR64[to], by) } else { a.shl(GPR32[to], by) });
    }
    fn multiply(&mut self, to: usize, by: usize) {
        by_width!(self, imul_2, to, by);
    }
    fn hash_page(&mut self, to: usize, from: usize, count: u32) {
        self.put(|a, _| a.imul_3(GPR32[to], GPR32[from], HASH_FACTOR as i32));
        self.put(|a, _| a.shr(GPR32[to], 32 - count));
    }
    fn fold(&mut self, to: usize, from: usize, by: u32) {
        self.bits(to, from, by, self.bits - by);
        self.put(|a, wide| if wide { a.xor(GPR64[to], GPR64[from]) } else { a.xor(GPR32[to], GPR32[from]) });
    }
    fn hash_thread(&mut self, to: usize, from: usize, count: u32) {
        if self.bits == 32 {
            return self.hash_page(to, from, count);
        }
        self.put(|a, _| a.imul_3(GPR64[to], GPR64[from], HASH_FACTOR as i32));
        self.bits(to, to, 32, count);
    }
    fn load(&mut self, to: usize, base: usize, offset: i32) {
        let from = self.at(base, offset);
        self.put(|a, wide| if wide { a.mov(GPR64[to], from) } else { a.mov(GPR32[to], from) });
    }
    fn store(&mut self, from: usize, base: usize, offset: i32) {
        let to = self.at(base, offset);
        self.put(|a, wide| if wide { a.mov(to, GPR64[from]) } else { a.mov(to, GPR32[from]) });
    }
    /// Stores are seen in order, and none before an earlier load.
    fn release(&mut self) {}
    fn jump(&mut self, to: usize) {
        let to = self.labels[to];
        self.put(|a, _| a.jmp(to));
    }
    fn jump_if_zero(&mut self, register: usize, to: usize) {
        let to = self.labels[to];
        by_width!(self, test, register, register);
        self.put(|a, _| a.je(to));
    }
    fn jump_if_not_zero(&mut self, register: usize, to: usize) {
        let to = self.labels[to];
        by_width!(self, test, register, register);
        self.put(|a, _| a.jne(to));
    }
    fn jump_if_equal(&mut self, x: usize, y: usize, to: usize) {
        let to = self.labels[to];
        by_width!(self, cmp, x, y);
        self.put(|a, _| a.je(to));
    }
    fn jump_if_not_equal(&mut self, x: usize, y: usize, to: usize) {
        let to = self.labels[to];
        by_width!(self, cmp, x, y);
        self.put(|a, _| a.jne(to));
    }
    fn jump_if_below(&mut self, x: usize, y: usize, to: usize) {
        let to = self.labels[to];
        by_width!(self, cmp, x, y);
        self.put(|a, _| a.jb(to));
    }
    fn jump_if_not_below_small(&mut self, x: usize, y: u32, to: usize) {
        let to = self.labels[to];
        self.put(|a, wide| if wide { a.cmp(GPR64[x], y as i32) } else { a.cmp(GPR32[x], y as i32) });
        self.put(|a, _| a.jae(to));
    }
    /// `scratch` is rax, with which `cmpxchg` compares.
    fn replace(&mut self, place: usize, expected: u32, value: usize, scratch: usize, otherwise: usize) {
        debug_assert_eq!(scratch, RAX);
        let (otherwise, at) = (self.labels[otherwise], self.at(place, 0));
        self.put(|a, _| if expected == 0 { a.xor(eax, eax) } else { a.mov(eax, expected) });
        self.put(
            |a, wide| {
                if wide { a.lock().cmpxchg(at, GPR64[value]) } else { a.lock().cmpxchg(at, GPR32[value]) }
            },
        );
        self.put(|a, _| a.jne(otherwise));
    }
    /// The identification flag.
    fn jump_unless_marked(&mut self, scratch: usize, to: usize) {
        let to = self.labels[to];
        self.put(|a, wide| if wide { a.pushfq() } else { a.pushfd() });
        self.pop(scratch);
        self.put(|a, _| a.test(GPR32[scratch], MARK as i32));
        self.put(|a, _| a.je(to));
    }
    fn take_number(&mut self, to: usize, place: usize, _scratch: usize) {
        let at = self.at(place, 0);
        self.put(|a, _| a.mov(GPR32[to], 1));
        self.put(|a, wide| if wide { a.lock().xadd(at, GPR64[to]) } else { a.lock().xadd(at, GPR32[to]) });
    }
    fn count(&mut self, place: usize, by: usize, _scratch: [usize; 2]) {
        let (low, high) = (self.at(place, 0), self.at(place, 4));
        self.put(|a, wide| if wide { a.lock().add(low, GPR64[by]) } else { a.lock().add(low, GPR32[by]) });
        self.put(|a, wide| if wide { Ok(()) } else { a.lock().adc(high, 0) });
    }
}
