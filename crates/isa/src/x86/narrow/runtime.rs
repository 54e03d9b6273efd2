//! The routines that the detours of one arena share, in 32-bit mode.
//!
//! | routine | in | out |
//! |---|---|---|
//! | resolve | – | eax: the thread's entry of the thread table, or 0 |
//! | claim | eax: stack slot, edx: return table | eax: a return instance reserved for the slot, or 0 |
//! | find | eax: stack slot | eax: the slot's return instance, wherever it is |
//! | restore | eax: stack pointer at the entry of an unwinder | – |
//!
//! They are those of [`crate::x86::runtime`](super::super::runtime), step by step, and keep the same promises.

use super::{TLS_SELECTOR, absolute, immediate};
use crate::detour::*;
use crate::x86::{
    emit::{Assembler, unencodable},
    restore::STACK_WINDOW,
    runtime::{RESOLVE_PROBES, Routine, probe_distance},
};
use iced_x86::{IcedError, code_asm::*};

pub(in crate::x86) fn runtime(address: u64, layout: &Layout) -> Emitted<Runtime> {
    let mut asm = Assembler::new(32, address)?;
    let mut labels = [(); 5].map(|()| asm.a.create_label());
    (|| -> Result<(), IcedError> {
        let a = &mut asm.a;
        a.set_label(&mut labels[Routine::Threads as usize])?;
        a.zero_bytes()?;
        a.set_label(&mut labels[Routine::Resolve as usize])?;
        resolve(a, layout)?;
        a.set_label(&mut labels[Routine::Claim as usize])?;
        claim(a, layout)?;
        a.set_label(&mut labels[Routine::Find as usize])?;
        find(a, layout)?;
        a.set_label(&mut labels[Routine::Restore as usize])?;
        restore(a, layout, labels[Routine::Resolve as usize])
    })()
    .map_err(unencodable)?;
    let assembled = asm.finish()?;
    let routines = labels.iter().map(|l| assembled.address_of(l)).collect::<Result<_, _>>()?;
    Ok(Runtime { code: assembled.code().into(), routines })
}

fn resolve(a: &mut CodeAssembler, layout: &Layout) -> Result<(), IcedError> {
    let saved = [ecx, edx, ebx, esi, edi];
    let mask = (1i32 << layout.thread_bits) - 1;
    let [mut probe, mut next, mut release, mut none, mut done] = [(); 5].map(|()| a.create_label());
    for register in saved {
        a.push(register)?;
    }
    a.mov(ecx, gs)?;
    a.cmp(ecx, TLS_SELECTOR)?;
    a.jne(none)?;
    a.mov(edi, dword_ptr(0).gs())?;
    // A control block points to itself.
    a.test(edi, edi)?;
    a.je(none)?;
    a.test(edi, 3)?;
    a.jne(none)?;
    a.cmp(dword_ptr(edi), edi)?;
    a.jne(none)?;
    a.mov(esi, edi)?;
    a.shr(esi, THREAD_HASH_SHIFT as i32)?;
    a.mov(ecx, RESOLVE_PROBES)?;

    a.set_label(&mut probe)?;
    a.and(esi, mask)?;
    a.mov(ebx, esi)?;
    a.shl(ebx, THREAD_SHIFT)?;
    a.add(ebx, immediate(layout.threads))?;
    a.mov(eax, dword_ptr(ebx + THREAD_OWNER))?;
    a.cmp(eax, edi)?;
    a.je(done)?;
    a.test(eax, eax)?;
    a.jne(next)?;
    // Free: reserve it, so that no one sees an owner before the fields.
    a.mov(edx, THREAD_RESERVED as u32)?;
    a.lock().cmpxchg(dword_ptr(ebx + THREAD_OWNER), edx)?;
    a.jne(next)?;
    // Looked at first, so that threads that come too late do not move the cursor for ever.
    a.cmp(absolute(layout.block_cursor), layout.block_count as i32)?;
    a.jae(release)?;
    a.mov(eax, 1)?;
    a.lock().xadd(absolute(layout.block_cursor), eax)?;
    a.cmp(eax, layout.block_count as i32)?;
    a.jae(release)?;
    a.imul_3(eax, eax, layout.block_stride as i32)?;
    a.add(eax, immediate(layout.blocks))?;
    a.mov(dword_ptr(eax + BLOCK_OWNER), edi)?;
    a.mov(edx, absolute(layout.origin))?;
    a.mov(dword_ptr(eax + BLOCK_ORIGIN), edx)?;
    a.mov(dword_ptr(ebx + THREAD_BLOCK), eax)?;
    a.mov(eax, esi)?;
    a.shl(eax, (layout.return_bits + RETURN_SHIFT) as i32)?;
    a.add(eax, immediate(layout.returns))?;
    a.mov(dword_ptr(ebx + THREAD_RETURNS), eax)?;
    // In a child, calls may have been followed before the fork.
    a.cmp(absolute(layout.origin), 1)?;
    a.sbb(eax, eax)?;
    a.mov(dword_ptr(ebx + THREAD_HIGHEST), eax)?;
    a.lock().bts(absolute(layout.returns_used), esi)?;
    a.mov(dword_ptr(ebx + THREAD_OWNER), edi)?;
    a.jmp(done)?;

    a.set_label(&mut next)?;
    a.inc(esi)?;
    a.dec(ecx)?;
    a.jne(probe)?;
    a.jmp(none)?;
    a.set_label(&mut release)?;
    a.mov(dword_ptr(ebx + THREAD_OWNER), 0)?;
    a.set_label(&mut none)?;
    a.xor(ebx, ebx)?;
    a.set_label(&mut done)?;
    a.mov(eax, ebx)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// eax = address of the n-th place for the slot in esi in the table at edi. Clobbers nothing else.
fn return_place(a: &mut CodeAssembler, layout: &Layout, n: u32) -> Result<(), IcedError> {
    a.mov(eax, esi)?;
    a.shr(eax, 4)?;
    if n > 0 {
        a.add(eax, probe_distance(n) as i32)?;
    }
    a.and(eax, (1i32 << layout.return_bits) - 1)?;
    a.shl(eax, RETURN_SHIFT)?;
    a.add(eax, edi)
}

/// Goes to `yes` if eax is an address in an arena. Loses ecx and esi.
fn in_arena(a: &mut CodeAssembler, layout: &Layout, yes: CodeLabel) -> Result<(), IcedError> {
    let [mut arena, mut no] = [(); 2].map(|()| a.create_label());
    a.mov(ecx, immediate(layout.arenas - 16))?;
    a.set_label(&mut arena)?;
    a.add(ecx, 16)?;
    a.mov(esi, dword_ptr(ecx))?;
    a.test(esi, esi)?;
    a.je(no)?;
    a.neg(esi)?;
    a.add(esi, eax)?;
    a.cmp(esi, dword_ptr(ecx + 8))?;
    a.jb(yes)?;
    a.jmp(arena)?;
    a.set_label(&mut no)?;
    a.zero_bytes()
}

/// Reserves a place, so that among instances with the same slot the latest is at the lowest place.
fn claim(a: &mut CodeAssembler, layout: &Layout) -> Result<(), IcedError> {
    let saved = [ecx, edx, ebx, esi, edi];
    let places = RETURN_PROBES as usize + 1;
    let [mut tail, mut found, mut out] = [(); 3].map(|()| a.create_label());
    let mut shift = [(); RETURN_PROBES as usize + 1].map(|()| a.create_label());
    for register in saved {
        a.push(register)?;
    }
    a.mov(ebx, eax)?;
    a.mov(edi, edx)?;
    a.mov(eax, dword_ptr(ebx))?;
    in_arena(a, layout, tail)?;
    a.mov(esi, ebx)?;
    for n in 0..=RETURN_PROBES {
        let mut kept = a.create_label();
        return_place(a, layout, n)?;
        a.cmp(dword_ptr(eax + RETURN_SLOT), esi)?;
        a.jne(kept)?;
        a.mov(dword_ptr(eax + RETURN_SLOT), 0)?;
        a.set_label(&mut kept)?;
        a.zero_bytes()?;
    }
    a.set_label(&mut tail)?;
    a.mov(esi, ebx)?;
    for (n, shift) in (0..).zip(&shift) {
        return_place(a, layout, n)?;
        a.cmp(dword_ptr(eax + RETURN_SLOT), 0)?;
        a.je(*shift)?;
    }
    a.xor(eax, eax)?;
    a.jmp(out)?;

    // eax: the free place, the n-th. Instances of the slot at lower places move up one by one.
    for n in (0..places).rev() {
        a.set_label(&mut shift[n])?;
        a.mov(dword_ptr(eax + RETURN_SLOT), esi)?;
        if n == 0 {
            break;
        }
        a.mov(absolute(layout.origin + 8), 1)?;
        a.mov(edx, eax)?;
        for lower in (0..n as u32).rev() {
            let mut skip = a.create_label();
            return_place(a, layout, lower)?;
            a.cmp(dword_ptr(eax + RETURN_SLOT), esi)?;
            a.jne(skip)?;
            for field in [RETURN_ADDRESS, RETURN_ENTERED, RETURN_ENTERED + 4] {
                a.mov(ecx, dword_ptr(eax + field))?;
                a.mov(dword_ptr(edx + field), ecx)?;
            }
            a.mov(edx, eax)?;
            a.set_label(&mut skip)?;
            a.zero_bytes()?;
        }
        a.mov(eax, edx)?;
        a.jmp(found)?;
    }
    a.set_label(&mut found)?;
    a.zero_bytes()?;
    a.set_label(&mut out)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// Looks through all places of the thread's own table, then through those of every table that was ever used.
fn find(a: &mut CodeAssembler, layout: &Layout) -> Result<(), IcedError> {
    let saved = [ecx, edx, ebx, esi, edi];
    let words = (1u32 << layout.thread_bits).div_ceil(32);
    let [mut all, mut word, mut bit, mut next, mut found, mut places, mut hit] =
        [(); 7].map(|()| a.create_label());
    for register in saved {
        a.push(register)?;
    }
    a.mov(esi, eax)?;
    a.mov(ecx, gs)?;
    a.cmp(ecx, TLS_SELECTOR)?;
    a.jne(all)?;
    a.mov(edi, dword_ptr(0).gs())?;
    a.shr(edi, THREAD_HASH_SHIFT as i32)?;
    a.and(edi, (1i32 << layout.thread_bits) - 1)?;
    a.shl(edi, (layout.return_bits + RETURN_SHIFT) as i32)?;
    a.add(edi, immediate(layout.returns))?;
    a.call(places)?;
    a.test(eax, eax)?;
    a.jne(found)?;

    a.set_label(&mut all)?;
    a.xor(ebx, ebx)?;
    a.set_label(&mut word)?;
    a.mov(ecx, dword_ptr(ebx * 4 + layout.returns_used as u32 as i32))?;
    a.set_label(&mut bit)?;
    a.bsf(eax, ecx)?;
    a.je(next)?;
    a.btr(ecx, eax)?;
    a.mov(edi, ebx)?;
    a.shl(edi, 5)?;
    a.add(edi, eax)?;
    a.shl(edi, (layout.return_bits + RETURN_SHIFT) as i32)?;
    a.add(edi, immediate(layout.returns))?;
    a.call(places)?;
    a.test(eax, eax)?;
    a.je(bit)?;
    a.jmp(found)?;
    a.set_label(&mut next)?;
    a.inc(ebx)?;
    a.cmp(ebx, words)?;
    a.jb(word)?;
    // A followed frame has an instance until it returns; without one there is no address to go to.
    a.ud2()?;

    a.set_label(&mut found)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    // eax: the instance of slot esi in table edi, or 0.
    a.set_label(&mut places)?;
    for n in 0..=RETURN_PROBES {
        return_place(a, layout, n)?;
        a.cmp(dword_ptr(eax + RETURN_SLOT), esi)?;
        a.je(hit)?;
    }
    a.xor(eax, eax)?;
    a.set_label(&mut hit)?;
    a.ret()
}

/// Puts back the real return addresses of the followed calls on this stack, for an unwinder that is about to walk it.
fn restore(a: &mut CodeAssembler, layout: &Layout, resolve: CodeLabel) -> Result<(), IcedError> {
    // `arch/x86/entry/syscalls/syscall_32.tbl`.
    const RT_SIGPROCMASK: u32 = 175;
    const EFAULT: i32 = -14;
    /// Of the locals on the stack.
    const PAGE_SEEN: i32 = 0;
    const BLOCK: i32 = 4;
    let saved = [eax, ecx, edx, ebx, esi, edi, ebp];
    let size = 1u32 << layout.return_bits;
    let [mut bounded, mut whole, mut next_slot, mut mapped, mut ours, mut next, mut out] =
        [(); 7].map(|()| a.create_label());
    a.pushfd()?;
    for register in saved {
        a.push(register)?;
    }
    a.lea(esp, dword_ptr(esp - 8))?;
    a.mov(edi, eax)?;
    a.call(resolve)?;
    a.test(eax, eax)?;
    a.je(out)?;
    a.mov(ebx, dword_ptr(eax + THREAD_RETURNS))?;
    a.mov(ebp, dword_ptr(eax + THREAD_HIGHEST))?;
    a.mov(eax, dword_ptr(eax + THREAD_BLOCK))?;
    a.mov(dword_ptr(esp + BLOCK), eax)?;
    a.mov(dword_ptr(esp + PAGE_SEEN), 0)?;
    // ebp: how many places to look at, from that of edi on.
    a.cmp(absolute(layout.origin + 8), 0)?;
    a.jne(whole)?;
    a.sub(ebp, edi)?;
    a.jb(out)?;
    a.shr(ebp, 4)?;
    a.add(ebp, 2)?;
    a.cmp(ebp, size as i32)?;
    a.jbe(bounded)?;
    a.set_label(&mut whole)?;
    a.mov(ebp, size)?;
    a.set_label(&mut bounded)?;
    a.mov(edx, edi)?;
    a.shr(edx, 4)?;

    a.set_label(&mut next_slot)?;
    a.and(edx, (size - 1) as i32)?;
    a.mov(eax, edx)?;
    a.shl(eax, RETURN_SHIFT)?;
    a.mov(esi, dword_ptr(ebx + eax * 1 + RETURN_SLOT as i32))?;
    a.mov(ecx, esi)?;
    a.sub(ecx, edi)?;
    a.jb(next)?;
    a.cmp(ecx, STACK_WINDOW)?;
    a.jae(next)?;
    a.mov(ecx, esi)?;
    a.shr(ecx, 12)?;
    a.cmp(ecx, dword_ptr(esp + PAGE_SEEN))?;
    a.je(mapped)?;
    a.mov(dword_ptr(esp + PAGE_SEEN), ecx)?;
    a.push(ebx)?;
    a.push(edx)?;
    a.push(esi)?;
    a.mov(ebx, -1)?;
    a.mov(ecx, esi)?;
    // The kernel reads eight bytes, which may not reach into the next page.
    a.and(ecx, -8)?;
    a.xor(edx, edx)?;
    a.mov(esi, 8)?;
    a.mov(eax, RT_SIGPROCMASK)?;
    a.int(0x80)?;
    a.pop(esi)?;
    a.pop(edx)?;
    a.pop(ebx)?;
    a.cmp(eax, EFAULT)?;
    a.jne(mapped)?;
    a.mov(dword_ptr(esp + PAGE_SEEN), 0)?;
    a.jmp(next)?;

    a.set_label(&mut mapped)?;
    a.mov(eax, dword_ptr(esi))?;
    in_arena(a, layout, ours)?;
    a.jmp(next)?;
    a.set_label(&mut ours)?;
    a.mov(eax, edx)?;
    a.shl(eax, RETURN_SHIFT)?;
    a.add(eax, ebx)?;
    a.mov(esi, dword_ptr(eax + RETURN_SLOT))?;
    a.mov(ecx, dword_ptr(eax + RETURN_ADDRESS))?;
    a.mov(dword_ptr(esi), ecx)?;
    a.mov(dword_ptr(eax + RETURN_SLOT), 0)?;
    a.mov(ecx, dword_ptr(esp + BLOCK))?;
    a.add(dword_ptr(ecx + BLOCK_UNWOUND), 1)?;
    a.adc(dword_ptr(ecx + (BLOCK_UNWOUND + 4)), 0)?;
    a.set_label(&mut next)?;
    a.inc(edx)?;
    a.dec(ebp)?;
    a.jne(next_slot)?;
    a.set_label(&mut out)?;
    a.lea(esp, dword_ptr(esp + 8))?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.popfd()?;
    a.ret()
}
