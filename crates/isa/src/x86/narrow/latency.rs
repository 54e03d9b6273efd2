//! A duration's way into the histogram, in 64-bit arithmetic by halves.

use super::{Narrow, high, low, steps::count};
use crate::detour::*;
use crate::x86::{detour::Asm, emit::number::*};
use iced_x86::code_asm::*;

impl Narrow<'_, '_> {
    /// Adds the duration to the histogram. ebx: block, edi:esi: time, on the stack, `above` the stack pointer: time of the entry. Loses
    /// eax, ecx, edx, esi and edi.
    pub(super) fn add_latency(&mut self, histogram: u32, above: i32) -> Asm {
        let a = self.a();
        let [mut forward, mut child] = [(); 2].map(|()| a.create_label());
        a.cmp(low(RBX, BLOCK_ORIGIN), 0)?;
        a.je(child)?;
        a.sub(esi, dword_ptr(esp + above))?;
        a.sbb(edi, dword_ptr(esp + (above + 4)))?;
        // The clocks of two CPUs may differ by a few ticks.
        a.jae(forward)?;
        a.xor(esi, esi)?;
        a.xor(edi, edi)?;
        a.set_label(&mut forward)?;
        count(a, RBX, histogram + LATENCY_COUNT)?;
        a.add(low(RBX, histogram + LATENCY_SUM), esi)?;
        a.adc(high(RBX, histogram + LATENCY_SUM), edi)?;
        maximum(a, histogram + LATENCY_MAX)?;
        bucket(a, histogram + LATENCY_BUCKETS)?;
        a.set_label(&mut child)?;
        a.zero_bytes()
    }
}

/// Raises the maximum at `offset` to edi:esi. Loses eax, ecx and edx.
///
/// The upper half is read first: what a handler raises in between makes the value read too small, never too large, and
/// then the exchange does not happen.
fn maximum(a: &mut CodeAssembler, offset: u32) -> Asm {
    let [mut again, mut longer, mut done] = [(); 3].map(|()| a.create_label());
    a.set_label(&mut again)?;
    a.mov(edx, high(RBX, offset))?;
    a.mov(eax, low(RBX, offset))?;
    a.cmp(edx, edi)?;
    a.ja(done)?;
    a.jb(longer)?;
    a.cmp(eax, esi)?;
    a.jae(done)?;
    a.set_label(&mut longer)?;
    // The new value has to be in ecx:ebx; edi points to the block meanwhile.
    a.mov(ecx, edi)?;
    a.mov(edi, ebx)?;
    a.mov(ebx, esi)?;
    a.cmpxchg8b(qword_ptr(edi + offset as i32))?;
    a.mov(ebx, edi)?;
    a.mov(edi, ecx)?;
    a.jne(again)?;
    a.set_label(&mut done)?;
    a.zero_bytes()
}

/// Increments the bucket of edi:esi ([`latency_bucket`]).
fn bucket(a: &mut CodeAssembler, buckets: u32) -> Asm {
    let [mut bounded, mut wide, mut known] = [(); 3].map(|()| a.create_label());
    a.cmp(edi, 1 << (LATENCY_OCTAVES - 32))?;
    a.jb(bounded)?;
    a.mov(esi, u32::MAX)?;
    a.mov(edi, (1 << (LATENCY_OCTAVES - 32)) - 1)?;
    a.set_label(&mut bounded)?;
    a.test(edi, edi)?;
    a.jne(wide)?;
    a.mov(ecx, esi)?;
    a.or(ecx, 1 << LATENCY_BITS)?;
    a.bsr(ecx, ecx)?;
    a.sub(ecx, LATENCY_BITS as i32)?;
    a.shr(esi, cl)?;
    a.jmp(known)?;
    a.set_label(&mut wide)?;
    a.bsr(ecx, edi)?;
    a.add(ecx, 32 - LATENCY_BITS as i32)?;
    // Shifts look at the lower five bits of the count.
    a.shrd(esi, edi, cl)?;
    a.cmp(ecx, 32)?;
    a.jb(known)?;
    a.mov(esi, edi)?;
    a.shr(esi, cl)?;
    a.set_label(&mut known)?;
    a.shl(ecx, LATENCY_BITS as i32)?;
    a.add(esi, ecx)?;
    a.add(dword_ptr(ebx + esi * 8 + buckets as i32), 1)?;
    a.adc(dword_ptr(ebx + esi * 8 + (buckets + 4) as i32), 0)
}
