//! The steps of a payload in 64-bit mode: the registers that each takes, and its code.

use super::{
    detour::{ARGUMENTS, Asm, Template},
    emit::{GPR32, GPR64, at, number::*},
    frame::{Clock, Frame, Scratch},
    inside::FAR_JUMP,
};
use crate::Operand;
use crate::detour::*;
use crate::payload::*;
use iced_x86::code_asm::*;

impl Scratch {
    /// What a step at the entry takes, in both modes.
    pub(super) fn of(step: EntryStep) -> Self {
        match step {
            EntryStep::Count(_) => Self::THREAD,
            EntryStep::Record { .. } | EntryStep::Fetch { .. } => Self { roles: 4, clock: Clock::Aside },
            // What they take besides, `Frame` knows.
            EntryStep::Run(_) => Self::THREAD,
        }
    }
}

/// How far above the stack pointer something lies at a return.
#[derive(Clone, Copy)]
pub(super) struct Stacked {
    /// The slot of the call.
    pub slot: i32,
    /// What the function returned.
    pub result: i32,
}

impl Stacked {
    /// With the slot so far above. rax was saved first, with `between` it and the slot.
    pub fn above(slot: i32, between: i32) -> Stacked {
        Stacked { slot, result: slot - between - 8 }
    }
}

impl Template<'_> {
    /// With nothing saved.
    pub(super) fn hook(&mut self, hook: Hook) -> Asm {
        match hook {
            Hook::Translate(lookup) => self.translate(lookup),
            Hook::Land { code_address } => self.land(code_address),
            Hook::Share(sharing) => self.share(sharing),
            Hook::Signal(call) => self.signal(call),
            Hook::Gate => self.gate(),
            Hook::Replace(function) => self.replace(function),
            // Callers need nothing.
            Hook::CalledBy(_) => Ok(()),
        }
    }

    /// By no register and without the stack: the function is entered as this one was.
    fn replace(&mut self, function: Function) -> Asm {
        self.asm.bytes(&FAR_JUMP)?;
        self.asm.bytes(&function.address().to_le_bytes())
    }

    /// With the thread's block in its register.
    pub(super) fn entry_step(&mut self, step: EntryStep, frame: &Frame) -> Asm {
        match step {
            EntryStep::Count(counter) => self.asm.a.inc(at(frame.block, counter)),
            EntryStep::Record { id, arguments } => self.record_entry(frame, id, arguments),
            EntryStep::Fetch { id } => self.record_operands(frame, id),
            EntryStep::Run(_) => self.run_at_entry(frame),
        }
    }

    /// For a thread that has no block. What is not recorded is counted at `records`.
    pub(super) fn entry_step_shared(&mut self, step: EntryStep, records: u32, scratch: usize) -> Asm {
        match step {
            EntryStep::Count(counter) => self.count_shared(counter, scratch),
            EntryStep::Record { .. } | EntryStep::Fetch { .. } => self.count_shared(records, scratch),
            EntryStep::Run(_) => self.count_shared(BLOCK_UNRUN, scratch),
        }
    }

    /// For a thread that has no block. Loses rdx.
    pub(super) fn return_step_shared(&mut self, step: ReturnStep) -> Asm {
        match step {
            ReturnStep::Count(counter) => self.count_shared(counter, RDX),
            ReturnStep::Record { .. } => self.count_shared(BLOCK_RING_LOST, RDX),
            ReturnStep::Time(_) => Ok(()),
            ReturnStep::Run(_) => self.count_shared(BLOCK_UNRUN, RDX),
        }
    }

    /// With the thread's block in `block`.
    ///
    /// For the late steps that is rdi, rsi is the time, r8 that of the entry, and what they need of the stack is `stacked`; they lose rax,
    /// rcx and rdx, and rsi where it is the `last` one. Early ones lose rcx, and keep rax, which may hold the flags.
    pub(super) fn return_step(
        &mut self,
        step: ReturnStep,
        block: usize,
        stacked: Stacked,
        last: bool,
    ) -> Asm {
        match step {
            ReturnStep::Count(counter) => self.asm.a.inc(at(block, counter)),
            ReturnStep::Record { id } => self.record_return(id, stacked),
            ReturnStep::Run(_) => self.run_at_return(stacked, last),
            ReturnStep::Time(histogram) if last => self.add_latency(histogram),
            ReturnStep::Time(histogram) => {
                self.asm.a.mov(rdx, rsi)?;
                self.add_latency(histogram)?;
                self.asm.a.mov(rsi, rdx)
            }
        }
    }

    /// Increments a counter of the overflow block, which all threads share.
    pub(super) fn count_shared(&mut self, counter: u32, scratch: usize) -> Asm {
        let a = &mut self.asm.a;
        a.mov(GPR64[scratch], self.request.layout.blocks + u64::from(counter))?;
        a.lock().inc(qword_ptr(GPR64[scratch]))
    }

    fn record_entry(&mut self, frame: &Frame, id: u32, arguments: u8) -> Asm {
        let mut full = self.asm.a.create_label();
        self.reserve_record(frame.block, frame.x, frame.y, full)?;
        let a = &mut self.asm.a;
        for (i, &register) in ARGUMENTS.iter().take(usize::from(arguments)).enumerate() {
            let to = at(frame.x, RECORD_VALUES + 8 * i as u32);
            match frame.saved_place(register) {
                Some(saved) => {
                    a.mov(rax, saved)?;
                    a.mov(to, rax)?;
                }
                None => a.mov(to, GPR64[register])?,
            }
        }
        self.end_record(frame, id)?;
        self.asm.a.set_label(&mut full)?;
        self.asm.a.zero_bytes()
    }

    /// Appends a record of the request's operands.
    fn record_operands(&mut self, frame: &Frame, id: u32) -> Asm {
        let mut full = self.asm.a.create_label();
        self.reserve_record(frame.block, frame.x, frame.y, full)?;
        for (i, &operand) in (0..).zip(self.request.operands.iter().take(MOST_FETCHED)) {
            self.fetch(frame, operand)?;
            self.asm.a.mov(at(frame.x, RECORD_VALUES + 8 * i), rax)?;
        }
        self.asm.a.mov(at(frame.x, RECORD_MISSING), 0)?;
        self.end_record(frame, id)?;
        self.asm.a.set_label(&mut full)?;
        self.asm.a.zero_bytes()
    }

    /// rax = the value of an operand as it was when the detour was entered. Loses rdx.
    fn fetch(&mut self, frame: &Frame, operand: Operand) -> Asm {
        let size = match operand {
            Operand::Register(register) => return self.fetch_register(frame, RAX, register.into()),
            Operand::Memory { size, .. } | Operand::At { size, .. } => size,
        };
        self.fetch_address(frame, operand)?;
        let a = &mut self.asm.a;
        match size {
            1 => a.movzx(eax, byte_ptr(rax)),
            2 => a.movzx(eax, word_ptr(rax)),
            4 => a.mov(eax, dword_ptr(rax)),
            _ => a.mov(rax, qword_ptr(rax)),
        }
    }

    /// rax = where an operand is in memory. Loses rdx.
    pub(super) fn fetch_address(&mut self, frame: &Frame, operand: Operand) -> Asm {
        match operand {
            Operand::Register(_) => Ok(()),
            Operand::Memory { base, index, offset, size: _ } => {
                self.fetch_register(frame, RAX, base.into())?;
                let a = &mut self.asm.a;
                let Some((index, scale)) = index else { return a.lea(rax, qword_ptr(rax + offset)) };
                self.fetch_register(frame, RDX, index.into())?;
                self.asm.a.lea(rax, qword_ptr(rax + rdx * (1 << scale) + offset))
            }
            Operand::At { address, size: _ } => self.asm.a.mov(rax, address),
        }
    }

    pub(super) fn fetch_register(&mut self, frame: &Frame, to: usize, register: usize) -> Asm {
        let [was, saved] =
            [Some(frame.depth()), frame.saved_at(register)].map(|at| at.map(|at| self.above(at)));
        let a = &mut self.asm.a;
        match (was, saved) {
            (Some(was), _) if register == RSP => a.lea(GPR64[to], was),
            (_, Some(saved)) => a.mov(GPR64[to], saved),
            (_, None) => a.mov(GPR64[to], GPR64[register]),
        }
    }

    /// What all records of entries end with. Loses rax and rdx.
    fn end_record(&mut self, frame: &Frame, id: u32) -> Asm {
        self.slot(rax, frame.depth())?;
        self.identify_record(id, frame.x)?;
        let a = &mut self.asm.a;
        read_clock(a)?;
        a.mov(at(frame.x, RECORD_TIME), rax)?;
        self.publish_record(frame.x, frame.y)
    }

    /// Appends a record of the return. rdi: block, rsi: time, r8: time of the entry. Loses rax, rcx and rdx.
    fn record_return(&mut self, id: u32, stacked: Stacked) -> Asm {
        let mut full = self.asm.a.create_label();
        self.reserve_record(RDI, RCX, RDX, full)?;
        let a = &mut self.asm.a;
        a.mov(rax, qword_ptr(rsp + stacked.result))?;
        a.mov(at(RCX, RECORD_VALUES), rax)?;
        a.mov(at(RCX, RECORD_VALUES + 8), r8)?;
        a.mov(at(RCX, RECORD_TIME), rsi)?;
        self.slot(rax, stacked.slot)?;
        self.identify_record(id, RCX)?;
        self.publish_record(RCX, RDX)?;
        self.asm.a.set_label(&mut full)?;
        self.asm.a.zero_bytes()
    }

    /// `place` = address of a record of one's own and `position` its number, or off to `full`.
    fn reserve_record(&mut self, block: usize, place: usize, position: usize, full: CodeLabel) -> Asm {
        let layout = self.request.layout;
        let size = 1i32 << layout.ring_bits;
        let a = &mut self.asm.a;
        let mut room = a.create_label();
        a.mov(GPR64[place], at(block, BLOCK_RING_HEAD))?;
        a.sub(GPR64[place], at(block, BLOCK_RING_TAIL))?;
        a.cmp(GPR64[place], size - RING_SLACK as i32)?;
        a.jb(room)?;
        a.inc(at(block, BLOCK_RING_LOST))?;
        a.jmp(full)?;
        a.set_label(&mut room)?;
        // One instruction: a signal handler's record gets another place.
        a.mov(GPR32[position], 1)?;
        a.xadd(at(block, BLOCK_RING_HEAD), GPR64[position])?;
        a.mov(GPR32[place], GPR32[position])?;
        a.and(GPR32[place], size - 1)?;
        a.shl(GPR64[place], RECORD_SHIFT)?;
        a.lea(GPR64[place], qword_ptr(GPR64[block] + GPR64[place] * 1 + layout.ring as i32))
    }

    /// Fills in what was hit where; rax holds the stack slot and is lost.
    fn identify_record(&mut self, id: u32, place: usize) -> Asm {
        let a = &mut self.asm.a;
        a.mov(at(place, RECORD_SLOT), rax)?;
        match self.request.layout.tid_offset {
            Some(offset) => a.mov(eax, dword_ptr(offset).fs())?,
            None => a.xor(eax, eax)?,
        }
        a.mov(dword_ptr(GPR64[place] + RECORD_ID as i32), id as i32)?;
        a.mov(dword_ptr(GPR64[place] + RECORD_TID as i32), eax)
    }

    /// Last of all: the tool reads a record once its number stands in it.
    fn publish_record(&mut self, place: usize, position: usize) -> Asm {
        self.asm.a.inc(GPR64[position])?;
        self.asm.a.mov(at(place, RECORD_SEQUENCE), GPR64[position])
    }

    /// Adds the duration to the histogram. rdi: block, rsi: time, r8: time of the entry. Loses rax, rcx and rsi.
    fn add_latency(&mut self, histogram: u32) -> Asm {
        let a = &mut self.asm.a;
        let [mut forward, mut shorter, mut inside, mut child] = [(); 4].map(|()| a.create_label());
        a.cmp(at(RDI, BLOCK_ORIGIN), 0)?;
        a.je(child)?;
        a.sub(rsi, r8)?;
        // The clocks of two CPUs may differ by a few ticks.
        a.jae(forward)?;
        a.xor(esi, esi)?;
        a.set_label(&mut forward)?;
        a.inc(at(RDI, histogram + LATENCY_COUNT))?;
        a.add(at(RDI, histogram + LATENCY_SUM), rsi)?;
        a.cmp(at(RDI, histogram + LATENCY_MAX), rsi)?;
        a.jae(shorter)?;
        a.mov(at(RDI, histogram + LATENCY_MAX), rsi)?;
        a.set_label(&mut shorter)?;
        a.mov(rax, rsi)?;
        a.shr(rax, LATENCY_OCTAVES as i32)?;
        a.je(inside)?;
        a.mov(rsi, (1u64 << LATENCY_OCTAVES) - 1)?;
        a.set_label(&mut inside)?;
        a.mov(rcx, rsi)?;
        a.or(rcx, 1 << LATENCY_BITS)?;
        a.bsr(rcx, rcx)?;
        a.sub(ecx, LATENCY_BITS as i32)?;
        a.shr(rsi, cl)?;
        a.shl(ecx, LATENCY_BITS as i32)?;
        a.add(esi, ecx)?;
        a.inc(qword_ptr(rdi + rsi * 8 + (histogram + LATENCY_BUCKETS) as i32))?;
        a.set_label(&mut child)?;
        a.zero_bytes()
    }
}

/// rax = time stamp; rdx is lost.
pub(super) fn read_clock(a: &mut CodeAssembler) -> Asm {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}
