//! What the 32-bit child runs: the triggers, and the loop that is told which to call how often.
//!
//! It has no C library, but what a C library gives to each thread: a control block that holds its own address, with gs
//! selecting it. Detours find a thread's memory by that, so without it they would not be those that 32-bit programs get.
//!
//! It speaks in words of the processor over standard input and output. Once it is ready it says so with four bytes. A request is the
//! address of a function and how often to call it; the answer is four times, seconds and nanoseconds each: monotonic
//! clock and processor clock before the calls, and both after them. It ends when it is asked for no calls, and with its input.

#[cfg(target_arch = "x86_64")]
use super::triggers::triggers;

/// A function of the 32-bit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it begins, in bytes from the start of the code.
    pub offset: u32,
    /// Its bytes.
    pub size: u32,
}

/// The code, and where its functions are: where it starts, and then one for each of
/// [`TRIGGERS`](crate::triggers::TRIGGERS).
///
/// Empty where there are no 32-bit programs of this kind.
pub fn functions() -> (&'static [u8], Vec<Function>) {
    let code = code();
    let word = |index: usize| {
        let bytes = code.get(4 * index..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let count = if code.is_empty() { 0 } else { crate::triggers::TRIGGERS.len() + 1 };
    let function = |index: usize| {
        let (offset, end) = word(2 * index).zip(word(2 * index + 1))?;
        Some(Function { offset, size: end.checked_sub(offset)? })
    };
    (code, (0..count).filter_map(function).collect())
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    r#"
    .macro trapless_function name
    .p2align 6, 0x90
    .Ltrapless_narrow_\name:
    .endm
    .macro trapless_function_end name
    .Ltrapless_narrow_\name\()_end:
    .endm
    .macro trapless_narrow_place name
    .long .Ltrapless_narrow_\name - trapless_bench_narrow
    .long .Ltrapless_narrow_\name\()_end - trapless_bench_narrow
    .endm

    .pushsection .rodata.trapless_bench_narrow, "a", @progbits
    .code32
    .p2align 6
    .globl trapless_bench_narrow
    .hidden trapless_bench_narrow
    trapless_bench_narrow:
        trapless_narrow_place start
        trapless_narrow_place nop
        trapless_narrow_place push
        trapless_narrow_place ret
        trapless_narrow_place nop5
        trapless_narrow_place endbr
        trapless_narrow_place o2
        trapless_narrow_place sub
        trapless_narrow_place exits
        trapless_narrow_place usdt_nop
        trapless_narrow_place usdt_nop5

    trapless_function start
        # The control block, on the stack: its own address in front.
        sub esp, 256
        and esp, -64
        mov ebp, esp
        mov [ebp], ebp
        # set_thread_area(struct user_desc): a free entry; a writable 32-bit segment of all pages from here on
        push 0x51
        push 0xfffff
        push ebp
        push -1
        mov eax, 243
        mov ebx, esp
        int 0x80
        test eax, eax
        jnz 4f
        # The selector is of the entry that was given, privilege level 3.
        mov eax, [esp]
        lea eax, [eax * 8 + 3]
        mov gs, eax
        # [esp]: the request; [esp + 16]: the answer
        sub esp, 48
        mov [esp], eax
        # write(1, ready, 4)
        mov eax, 4
        mov ebx, 1
        mov ecx, esp
        mov edx, 4
        int 0x80
        cmp eax, 4
        jne 4f

    2:  # read(0, request, 8)
        mov eax, 3
        xor ebx, ebx
        mov ecx, esp
        mov edx, 8
        int 0x80
        cmp eax, 8
        jne 4f
        mov edi, [esp]
        mov esi, [esp + 4]
        test esi, esi
        jz 4f
        # clock_gettime(CLOCK_MONOTONIC), then of CLOCK_THREAD_CPUTIME_ID
        mov eax, 265
        mov ebx, 1
        lea ecx, [esp + 16]
        int 0x80
        mov eax, 265
        mov ebx, 3
        lea ecx, [esp + 24]
        int 0x80
        .p2align 6, 0x90
    3:  call edi
        dec esi
        jnz 3b
        mov eax, 265
        mov ebx, 3
        lea ecx, [esp + 40]
        int 0x80
        mov eax, 265
        mov ebx, 1
        lea ecx, [esp + 32]
        int 0x80
        # write(1, answer, 32)
        mov eax, 4
        mov ebx, 1
        lea ecx, [esp + 16]
        mov edx, 32
        int 0x80
        cmp eax, 32
        je 2b

    4:  # exit(0)
        mov eax, 1
        xor ebx, ebx
        int 0x80
        hlt
    trapless_function_end start

    "#,
    triggers!(),
    r#"
    .p2align 6, 0x90
    .globl trapless_bench_narrow_end
    .hidden trapless_bench_narrow_end
    trapless_bench_narrow_end:
    .code64
    .popsection
    .purgem trapless_function
    .purgem trapless_function_end
    .purgem trapless_narrow_place
    "#
);

#[cfg(target_arch = "x86_64")]
fn code() -> &'static [u8] {
    unsafe extern "C" {
        static trapless_bench_narrow: u8;
        static trapless_bench_narrow_end: u8;
    }
    let (start, end) = (&raw const trapless_bench_narrow, &raw const trapless_bench_narrow_end);
    // SAFETY: both labels are in one section of constants, in this order, with nothing but initialized bytes between.
    unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

#[cfg(not(target_arch = "x86_64"))]
fn code() -> &'static [u8] {
    &[]
}
