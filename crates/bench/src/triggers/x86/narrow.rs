//! The code of 32-bit x86, where that is the host.

use crate::assembly::functions;
use crate::narrow::triggers::triggers;

functions!(concat!(
    triggers!(),
    r#"

    # void calls(void (*function)(void), uint64_t times), times > 0
    .p2align 6
    .globl trapless_bench_calls
    .hidden trapless_bench_calls
    .type trapless_bench_calls, @function
    trapless_bench_calls:
        push ebx
        push esi
        push edi
        mov esi, dword ptr [esp + 16]
        mov ebx, dword ptr [esp + 20]
        mov edi, dword ptr [esp + 24]
        .p2align 6
    1:  call esi
        sub ebx, 1
        sbb edi, 0
        mov eax, ebx
        or eax, edi
        jnz 1b
        pop edi
        pop esi
        pop ebx
        ret
    .size trapless_bench_calls, . - trapless_bench_calls

    # void increments(uint64_t *counter, uint64_t times): `usermode-count`, of a word as the kernel's benchmark does it
    .p2align 6
    .globl trapless_bench_increments
    .hidden trapless_bench_increments
    trapless_bench_increments:
        push ebx
        mov ecx, dword ptr [esp + 8]
        mov edx, dword ptr [esp + 12]
        mov ebx, dword ptr [esp + 16]
    1:  lock inc dword ptr [ecx]
        sub edx, 1
        sbb ebx, 0
        mov eax, edx
        or eax, ebx
        jnz 1b
        pop ebx
        ret
    "#
));
