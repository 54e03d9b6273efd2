//! The sets of registers as the kernel hands them out: those of the mode that the thread runs in.

/// `user_regs_struct32` of `arch/x86/include/asm/user_32.h`: those of a thread in 32-bit mode.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers32 {
    pub(super) ebx: u32,
    pub(super) ecx: u32,
    pub(super) edx: u32,
    pub(super) esi: u32,
    pub(super) edi: u32,
    pub(super) ebp: u32,
    pub(super) eax: u32,
    ds: u32,
    es: u32,
    fs: u32,
    pub(super) gs: u32,
    pub(super) orig_eax: u32,
    pub(super) eip: u32,
    cs: u32,
    pub(super) eflags: u32,
    pub(super) esp: u32,
    ss: u32,
}

/// `user_regs_struct` of `arch/x86/include/asm/user_64.h`: those of a thread in 64-bit mode.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers64 {
    pub(super) r15: u64,
    pub(super) r14: u64,
    pub(super) r13: u64,
    pub(super) r12: u64,
    pub(super) rbp: u64,
    pub(super) rbx: u64,
    pub(super) r11: u64,
    pub(super) r10: u64,
    pub(super) r9: u64,
    pub(super) r8: u64,
    pub(super) rax: u64,
    pub(super) rcx: u64,
    pub(super) rdx: u64,
    pub(super) rsi: u64,
    pub(super) rdi: u64,
    pub(super) orig_rax: u64,
    pub(super) rip: u64,
    cs: u64,
    pub(super) eflags: u64,
    pub(super) rsp: u64,
    ss: u64,
    pub(super) fs_base: u64,
    pub(super) gs_base: u64,
    ds: u64,
    es: u64,
    fs: u64,
    gs: u64,
}
