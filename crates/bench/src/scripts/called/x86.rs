//! The function and the loop on x86-64.

use crate::assembly::functions;

functions!(
    r#"
    # uint64_t called(uint64_t key, const char *text, uint64_t number)
    trapless_function called
        push rbx
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbx, -16
        mov rbx, rdi
        lea rax, [rbx + rdx]
        pop rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        ret
    trapless_function_end called

    # void calling(const char *const *texts, uint64_t times), times > 0
    trapless_function calling
        push rbx
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbx, -16
        push rbp
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbp, -24
        push r12
        .cfi_adjust_cfa_offset 8
        .cfi_offset r12, -32
        mov rbp, rdi
        mov rbx, rsi
        xor r12d, r12d
        .p2align 6
    1:  imul edi, r12d, {mix}
        mov eax, r12d
        and eax, {texts} - 1
        shr edi, 3
        mov rsi, qword ptr [rbp + 8 * rax]
        and edi, {keys} - 1
        mov rdx, r12
        call trapless_bench_called
        inc r12
        cmp r12, rbx
        jne 1b
        pop r12
        .cfi_adjust_cfa_offset -8
        .cfi_restore r12
        pop rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbp
        pop rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        ret
    trapless_function_end calling

    # void deep(const char *const *texts, uint64_t times, uint64_t chain): calling, so many frames further down
    trapless_function deep
        push rbp
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbp, -16
        sub rsp, 32
        .cfi_adjust_cfa_offset 32
        mov rbp, rdx
        test rdx, rdx
        jz 2f
        dec rdx
        call trapless_bench_deep
        jmp 3f
    2:  call trapless_bench_calling
    3:  add rsp, 32
        .cfi_adjust_cfa_offset -32
        pop rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbp
        ret
    trapless_function_end deep
    "#,
    mix = const super::MIX as i32,
    texts = const super::TEXTS,
    keys = const super::KEYS,
);
