//! The runtime routine that puts back real return addresses, for an unwinder that is about to walk the stack.

use super::runtime::in_arena;
use crate::detour::*;
use iced_x86::{IcedError, code_asm::*};

/// How far above the unwinder's frame followed calls are looked for: as large as a usual stack.
pub(super) const STACK_WINDOW: i32 = 8 << 20;

/// Puts back the real return addresses of the followed calls on this stack, for an unwinder that is about to walk it.
///
/// Looks at the instances of the slots from r10 to the thread's highest, and takes of each slot the latest first: one at a
/// higher place may have been left behind. A slot is read only once its page is known
/// to be mapped, since an abandoned call may have been on a stack that is gone: `rt_sigprocmask` with an impossible
/// `how` changes nothing and tells EFAULT from EINVAL. It is the one system call that detours make, and only where the
/// program throws an exception.
pub(super) fn restore(
    a: &mut CodeAssembler,
    layout: &Layout,
    resolve: CodeLabel,
    places: CodeLabel,
) -> Result<(), IcedError> {
    const RT_SIGPROCMASK: u32 = 14;
    const EFAULT: i32 = -14;
    let saved = [rax, rcx, rdx, rsi, rdi, r8, r9, r11, r12];
    let probe_saved = [rcx, rdx, rsi, r8, r10, r11];
    let size = 1u32 << layout.return_bits;
    let [mut bounded, mut whole, mut next_slot, mut mapped, mut ours, mut next, mut out] =
        [(); 7].map(|()| a.create_label());
    a.pushfq()?;
    for register in saved {
        a.push(register)?;
    }
    a.call(resolve)?;
    a.test(r11, r11)?;
    a.je(out)?;
    a.mov(r8, qword_ptr(r11 + THREAD_RETURNS))?;
    a.mov(r9, qword_ptr(r11 + THREAD_HIGHEST))?;
    a.mov(r12, qword_ptr(r11 + THREAD_BLOCK))?;
    a.xor(edi, edi)?;
    // r9: how many places to look at, from that of r10 on.
    a.mov(rax, layout.origin + 8)?;
    a.cmp(qword_ptr(rax), 0)?;
    a.jne(whole)?;
    a.sub(r9, r10)?;
    a.jb(out)?;
    a.shr(r9, 4)?;
    a.add(r9, 2)?;
    a.cmp(r9, size as i32)?;
    a.jbe(bounded)?;
    a.set_label(&mut whole)?;
    a.mov(r9d, size)?;
    a.set_label(&mut bounded)?;
    a.mov(r11, r10)?;
    a.shr(r11, 4)?;

    a.set_label(&mut next_slot)?;
    a.and(r11d, (size - 1) as i32)?;
    a.mov(eax, r11d)?;
    a.shl(rax, RETURN_SHIFT)?;
    a.mov(rsi, qword_ptr(r8 + rax * 1 + RETURN_SLOT as i32))?;
    a.mov(rcx, rsi)?;
    a.sub(rcx, r10)?;
    a.jb(next)?;
    a.cmp(rcx, STACK_WINDOW)?;
    a.jae(next)?;
    a.mov(rcx, rsi)?;
    a.shr(rcx, 12)?;
    a.cmp(rcx, rdi)?;
    a.je(mapped)?;
    a.mov(rdi, rcx)?;
    for register in probe_saved {
        a.push(register)?;
    }
    a.push(rdi)?;
    a.mov(edi, -1)?;
    a.xor(edx, edx)?;
    a.mov(r10d, 8)?;
    a.mov(eax, RT_SIGPROCMASK)?;
    a.syscall()?;
    a.pop(rdi)?;
    for register in probe_saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.cmp(rax, EFAULT)?;
    a.jne(mapped)?;
    a.xor(edi, edi)?;
    a.jmp(next)?;

    a.set_label(&mut mapped)?;
    a.mov(rax, qword_ptr(rsi))?;
    in_arena(a, layout, ours)?;
    a.jmp(next)?;
    a.set_label(&mut ours)?;
    a.push(r10)?;
    a.push(r11)?;
    a.mov(r10, rsi)?;
    a.mov(r11, r8)?;
    a.call(places)?;
    a.pop(r11)?;
    a.pop(r10)?;
    a.test(rax, rax)?;
    a.je(next)?;
    a.mov(rcx, qword_ptr(rax + RETURN_ADDRESS))?;
    a.mov(qword_ptr(rsi), rcx)?;
    a.mov(qword_ptr(rax + RETURN_SLOT), 0)?;
    a.inc(qword_ptr(r12 + BLOCK_UNWOUND))?;
    // After a tail call that address is a return point, too.
    a.jmp(mapped)?;
    a.set_label(&mut next)?;
    a.inc(r11d)?;
    a.dec(r9)?;
    a.jne(next_slot)?;
    a.set_label(&mut out)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.popfq()?;
    a.ret()
}
