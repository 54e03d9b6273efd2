//! The routines that the detours of one arena share: all that is too rare or too long to stand in every detour.
//!
//! | routine | in | out |
//! |---|---|---|
//! | resolve | – | r11: the thread's entry of the thread table, or 0 |
//! | claim | r10: stack slot, r11: return table | r11: a return instance reserved for the slot, or 0 |
//! | find | r10: stack slot | r11: the slot's return instance, wherever it is |
//! | restore | r10: stack pointer at the entry of an unwinder | – |
//!
//! Each keeps every register but its result and the flags, needs little stack, makes no
//! system call (but for `restore`, see there), waits for nothing, and may be interrupted by a signal handler that runs it again.
//! The memory they work on is described in [`crate::detour`].

use super::{
    emit::{Assembler, unencodable},
    restore::restore,
};
use crate::detour::*;
use alloc::vec::Vec;
use iced_x86::{IcedError, code_asm::*};

/// Where the routines are, by index into [`Runtime::routines`].
#[derive(Clone, Copy)]
pub(super) enum Routine {
    /// Address of a 64-bit constant: the thread table's address. No routine, and in 32-bit mode not there.
    Threads,
    Resolve,
    Claim,
    Find,
    Restore,
}

impl Routine {
    pub fn address(self, runtime: &Runtime) -> u64 {
        runtime.routines[self as usize]
    }
}

/// The index register of the n-th place after the first in a return table moves on by this much in all.
pub(super) fn probe_distance(n: u32) -> u32 {
    n * (2 * n + 1) * 61
}

pub(super) fn runtime(address: u64, layout: &Layout) -> Emitted<Runtime> {
    let mut asm = Assembler::new(64, address)?;
    let mut labels = [(); 5].map(|()| asm.a.create_label());
    let mut places = asm.a.create_label();
    (|| -> Result<(), IcedError> {
        let a = &mut asm.a;
        a.set_label(&mut labels[Routine::Threads as usize])?;
        a.dq(&[layout.threads])?;
        a.set_label(&mut labels[Routine::Resolve as usize])?;
        resolve(a, layout)?;
        a.set_label(&mut labels[Routine::Claim as usize])?;
        claim(a, layout)?;
        a.set_label(&mut labels[Routine::Find as usize])?;
        find(a, layout, &mut places)?;
        a.set_label(&mut labels[Routine::Restore as usize])?;
        restore(a, layout, labels[Routine::Resolve as usize], places)
    })()
    .map_err(unencodable)?;
    let assembled = asm.finish()?;
    let routines = labels.iter().map(|l| assembled.address_of(l)).collect::<Result<_, _>>()?;
    Ok(Runtime { code: assembled.code().into(), routines })
}

/// How many entries of the thread table are looked at before a thread is served by the overflow block.
pub(super) const RESOLVE_PROBES: u32 = 64;

fn resolve(a: &mut CodeAssembler, layout: &Layout) -> Result<(), IcedError> {
    let saved = [rax, rcx, rdx, rsi, rdi, r8, r10];
    let mask = (1i32 << layout.thread_bits) - 1;
    let [mut probe, mut next, mut release, mut none, mut done] = [(); 5].map(|()| a.create_label());
    for register in saved {
        a.push(register)?;
    }
    a.rdfsbase(rdi)?;
    a.xor(r11d, r11d)?;
    a.test(rdi, rdi)?;
    a.je(none)?;
    a.mov(rsi, rdi)?;
    a.shr(rsi, THREAD_HASH_SHIFT as i32)?;
    a.mov(r8, rdi)?;
    a.not(r8)?;
    a.mov(r10, layout.threads)?;
    a.mov(ecx, RESOLVE_PROBES)?;

    a.set_label(&mut probe)?;
    a.and(esi, mask)?;
    a.mov(r11d, esi)?;
    a.shl(r11, THREAD_SHIFT)?;
    a.add(r11, r10)?;
    a.mov(rax, qword_ptr(r11 + THREAD_OWNER))?;
    a.cmp(rax, r8)?;
    a.je(done)?;
    a.test(rax, rax)?;
    a.jne(next)?;
    // Free: reserve it, so that no one sees an owner before the fields.
    a.mov(edx, THREAD_RESERVED as u32)?;
    a.lock().cmpxchg(qword_ptr(r11 + THREAD_OWNER), rdx)?;
    a.jne(next)?;
    a.mov(rdx, layout.block_cursor)?;
    // Looked at first, so that threads that come too late do not move the cursor for ever.
    a.cmp(qword_ptr(rdx), layout.block_count as i32)?;
    a.jae(release)?;
    a.mov(eax, 1)?;
    a.lock().xadd(qword_ptr(rdx), rax)?;
    a.cmp(rax, layout.block_count as i32)?;
    a.jae(release)?;
    a.mov(rdx, layout.block_stride)?;
    a.imul_2(rax, rdx)?;
    a.mov(rdx, layout.blocks)?;
    a.add(rax, rdx)?;
    a.mov(qword_ptr(rax + BLOCK_OWNER), rdi)?;
    a.mov(rdx, layout.origin)?;
    a.mov(rdx, qword_ptr(rdx))?;
    a.mov(qword_ptr(rax + BLOCK_ORIGIN), rdx)?;
    a.mov(qword_ptr(r11 + THREAD_BLOCK), rax)?;
    a.mov(rax, rsi)?;
    a.shl(rax, (layout.return_bits + RETURN_SHIFT) as i32)?;
    a.mov(rdx, layout.returns)?;
    a.add(rax, rdx)?;
    a.mov(qword_ptr(r11 + THREAD_RETURNS), rax)?;
    // In a child, calls may have been followed before the fork.
    a.mov(rdx, layout.origin)?;
    a.cmp(qword_ptr(rdx), 1)?;
    a.sbb(rax, rax)?;
    a.mov(qword_ptr(r11 + THREAD_HIGHEST), rax)?;
    a.mov(rdx, layout.returns_used)?;
    a.lock().bts(qword_ptr(rdx), rsi)?;
    a.mov(qword_ptr(r11 + THREAD_OWNER), r8)?;
    a.jmp(done)?;

    a.set_label(&mut next)?;
    a.inc(esi)?;
    a.dec(ecx)?;
    a.jne(probe)?;
    a.jmp(none)?;
    a.set_label(&mut release)?;
    a.mov(qword_ptr(r11 + THREAD_OWNER), 0)?;
    a.set_label(&mut none)?;
    a.xor(r11d, r11d)?;
    a.set_label(&mut done)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// `place` = address of the n-th place for the slot in r10 in the table at `table`. Clobbers nothing else.
fn return_place(
    a: &mut CodeAssembler,
    layout: &Layout,
    n: u32,
    place: (AsmRegister64, AsmRegister32),
    table: AsmRegister64,
) -> Result<(), IcedError> {
    let mask = (1i32 << layout.return_bits) - 1;
    a.mov(place.0, r10)?;
    a.shr(place.0, 4)?;
    if n > 0 {
        a.add(place.1, probe_distance(n) as i32)?;
    }
    a.and(place.1, mask)?;
    a.shl(place.0, RETURN_SHIFT)?;
    a.add(place.0, table)
}

/// Goes to `yes` if rax is an address in an arena. Loses rcx and rdx.
pub(super) fn in_arena(a: &mut CodeAssembler, layout: &Layout, yes: CodeLabel) -> Result<(), IcedError> {
    let [mut arena, mut no] = [(); 2].map(|()| a.create_label());
    a.mov(rcx, layout.arenas - 16)?;
    a.set_label(&mut arena)?;
    a.add(rcx, 16)?;
    a.mov(rdx, qword_ptr(rcx))?;
    a.test(rdx, rdx)?;
    a.je(no)?;
    a.neg(rdx)?;
    a.add(rdx, rax)?;
    a.cmp(rdx, qword_ptr(rcx + 8))?;
    a.jb(yes)?;
    a.jmp(arena)?;
    a.set_label(&mut no)?;
    a.zero_bytes()
}

/// Reserves a place, so that among instances with the same slot the latest is at the lowest place.
///
/// If the call's return address is one of our return points, the call is a tail call from a followed one, whose
/// instance is alive: the instances of this slot move up, the oldest to the free place. If not, all instances of this
/// slot were left behind by abandoned calls, since the slot has a new owner now.
fn claim(a: &mut CodeAssembler, layout: &Layout) -> Result<(), IcedError> {
    let saved = [rax, rcx, rdx];
    let places = RETURN_PROBES as usize + 1;
    let [mut tail, mut found, mut out] = [(); 3].map(|()| a.create_label());
    let mut shift: Vec<_> = (0..places).map(|_| a.create_label()).collect();
    for register in saved {
        a.push(register)?;
    }
    a.mov(rax, qword_ptr(r10))?;
    in_arena(a, layout, tail)?;
    for n in 0..=RETURN_PROBES {
        let mut kept = a.create_label();
        return_place(a, layout, n, (rax, eax), r11)?;
        a.cmp(qword_ptr(rax + RETURN_SLOT), r10)?;
        a.jne(kept)?;
        a.mov(qword_ptr(rax + RETURN_SLOT), 0)?;
        a.set_label(&mut kept)?;
        a.zero_bytes()?;
    }
    a.set_label(&mut tail)?;
    for (n, shift) in (0..).zip(&shift) {
        return_place(a, layout, n, (rax, eax), r11)?;
        a.cmp(qword_ptr(rax + RETURN_SLOT), 0)?;
        a.je(*shift)?;
    }
    a.xor(r11d, r11d)?;
    a.jmp(out)?;

    // rax: the free place, the n-th. Instances of the slot at lower places move up one by one.
    for n in (0..places).rev() {
        a.set_label(&mut shift[n])?;
        a.mov(qword_ptr(rax + RETURN_SLOT), r10)?;
        if n == 0 {
            break;
        }
        a.mov(rdx, layout.origin + 8)?;
        a.mov(qword_ptr(rdx), 1)?;
        a.mov(rdx, rax)?;
        for lower in (0..n as u32).rev() {
            let mut skip = a.create_label();
            return_place(a, layout, lower, (rax, eax), r11)?;
            a.cmp(qword_ptr(rax + RETURN_SLOT), r10)?;
            a.jne(skip)?;
            for field in [RETURN_ADDRESS, RETURN_ENTERED] {
                a.mov(rcx, qword_ptr(rax + field))?;
                a.mov(qword_ptr(rdx + field), rcx)?;
            }
            a.mov(rdx, rax)?;
            a.set_label(&mut skip)?;
            a.zero_bytes()?;
        }
        a.mov(rax, rdx)?;
        a.jmp(found)?;
    }
    a.set_label(&mut found)?;
    a.mov(r11, rax)?;
    a.set_label(&mut out)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// Looks through all places of the thread's own table, then through those of every table that was ever used: the
/// frame may have been entered on another thread, or before a fork.
fn find(a: &mut CodeAssembler, layout: &Layout, places: &mut CodeLabel) -> Result<(), IcedError> {
    let saved = [rax, rcx, rdx, rsi, rdi];
    let words = (1u32 << layout.thread_bits).div_ceil(64);
    let [mut own, mut all, mut word, mut bit, mut next, mut found, mut hit] =
        [(); 7].map(|()| a.create_label());
    for register in saved {
        a.push(register)?;
    }
    a.xor(edi, edi)?;
    a.rdfsbase(rax)?;
    a.shr(rax, THREAD_HASH_SHIFT as i32)?;
    a.and(eax, (1i32 << layout.thread_bits) - 1)?;
    a.set_label(&mut own)?;
    a.mov(r11, layout.returns)?;
    a.shl(rax, (layout.return_bits + RETURN_SHIFT) as i32)?;
    a.add(r11, rax)?;
    a.call(*places)?;
    a.test(rax, rax)?;
    a.jne(found)?;

    a.set_label(&mut all)?;
    a.xor(esi, esi)?;
    a.set_label(&mut word)?;
    a.mov(rdx, layout.returns_used)?;
    a.mov(rcx, qword_ptr(rdx + rsi * 8))?;
    a.set_label(&mut bit)?;
    a.bsf(rax, rcx)?;
    a.je(next)?;
    a.btr(rcx, rax)?;
    a.mov(edi, esi)?;
    a.shl(edi, 6)?;
    a.add(rdi, rax)?;
    a.shl(rdi, (layout.return_bits + RETURN_SHIFT) as i32)?;
    a.mov(r11, layout.returns)?;
    a.add(r11, rdi)?;
    a.call(*places)?;
    a.test(rax, rax)?;
    a.je(bit)?;
    a.jmp(found)?;
    a.set_label(&mut next)?;
    a.inc(esi)?;
    a.cmp(esi, words)?;
    a.jb(word)?;
    // A followed frame has an instance until it returns; without one there is no address to go to.
    a.ud2()?;

    a.set_label(&mut found)?;
    a.mov(r11, rax)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    // rax: the instance of slot r10 in table r11, or 0.
    a.set_label(places)?;
    for n in 0..=RETURN_PROBES {
        return_place(a, layout, n, (rax, eax), r11)?;
        a.cmp(qword_ptr(rax + RETURN_SLOT), r10)?;
        a.je(hit)?;
    }
    a.xor(eax, eax)?;
    a.set_label(&mut hit)?;
    a.ret()
}
