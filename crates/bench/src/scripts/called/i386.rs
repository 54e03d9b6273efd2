//! The function and the loop on 32-bit x86. Arguments are on the stack.

use crate::assembly::functions;

functions!(
    r#"
    # uint32_t called(uint32_t key, const char *text, uint32_t number)
    trapless_function called
        push ebx
        .cfi_adjust_cfa_offset 4
        .cfi_offset ebx, -8
        mov ebx, dword ptr [esp + 8]
        mov eax, dword ptr [esp + 16]
        add eax, ebx
        pop ebx
        .cfi_adjust_cfa_offset -4
        .cfi_restore ebx
        ret
    trapless_function_end called

    # void calling(const char *const *texts, uint64_t times), times > 0
    trapless_function calling
        push ebx
        .cfi_adjust_cfa_offset 4
        .cfi_offset ebx, -8
        push ebp
        .cfi_adjust_cfa_offset 4
        .cfi_offset ebp, -12
        push esi
        .cfi_adjust_cfa_offset 4
        .cfi_offset esi, -16
        push edi
        .cfi_adjust_cfa_offset 4
        .cfi_offset edi, -20
        sub esp, 12
        .cfi_adjust_cfa_offset 12
        mov ebp, dword ptr [esp + 32]
        mov ebx, dword ptr [esp + 36]
        mov edi, dword ptr [esp + 40]
        xor esi, esi
        .p2align 6
    1:  imul eax, esi, {mix}
        mov ecx, esi
        and ecx, {texts} - 1
        shr eax, 3
        mov ecx, dword ptr [ebp + 4 * ecx]
        and eax, {keys} - 1
        mov dword ptr [esp], eax
        mov dword ptr [esp + 4], ecx
        mov dword ptr [esp + 8], esi
        call trapless_bench_called
        inc esi
        sub ebx, 1
        sbb edi, 0
        mov eax, ebx
        or eax, edi
        jne 1b
        add esp, 12
        .cfi_adjust_cfa_offset -12
        pop edi
        .cfi_adjust_cfa_offset -4
        .cfi_restore edi
        pop esi
        .cfi_adjust_cfa_offset -4
        .cfi_restore esi
        pop ebp
        .cfi_adjust_cfa_offset -4
        .cfi_restore ebp
        pop ebx
        .cfi_adjust_cfa_offset -4
        .cfi_restore ebx
        ret
    trapless_function_end calling

    # void deep(const char *const *texts, uint64_t times, uint64_t chain): calling, so many frames further down
    trapless_function deep
        push ebp
        .cfi_adjust_cfa_offset 4
        .cfi_offset ebp, -8
        sub esp, 40
        .cfi_adjust_cfa_offset 40
        mov eax, dword ptr [esp + 48]
        mov ecx, dword ptr [esp + 52]
        mov edx, dword ptr [esp + 56]
        mov ebp, dword ptr [esp + 60]
        mov dword ptr [esp], eax
        mov dword ptr [esp + 4], ecx
        mov dword ptr [esp + 8], edx
        test ebp, ebp
        jz 2f
        dec ebp
        mov dword ptr [esp + 12], ebp
        mov dword ptr [esp + 16], 0
        call trapless_bench_deep
        jmp 3f
    2:  call trapless_bench_calling
    3:  add esp, 40
        .cfi_adjust_cfa_offset -40
        pop ebp
        .cfi_adjust_cfa_offset -4
        .cfi_restore ebp
        ret
    trapless_function_end deep
    "#,
    mix = const super::MIX as i32,
    texts = const super::TEXTS,
    keys = const super::KEYS,
);
