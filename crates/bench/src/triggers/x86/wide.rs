//! The code of x86-64.

use crate::assembly::functions;

functions!(
    r#"
    trapless_function nop
        nop
        ret
    trapless_function_end nop

    trapless_function push
        push rax
        add rsp, 8
        ret
    trapless_function_end push

    trapless_function ret
        ret
    trapless_function_end ret

    trapless_function nop5
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
    trapless_function_end nop5

    trapless_function endbr
        endbr64
        lea eax, [rdi + rsi]
        ret
    trapless_function_end endbr

    # Optimized code that keeps values over calls begins with pushes,
    trapless_function o2
        push rbp
        mov ebp, esi
        push rbx
        mov ebx, edi
        sub rsp, 8
        lea eax, [rbx + rbp]
        add rsp, 8
        pop rbx
        pop rbp
        ret
    trapless_function_end o2

    # and code with locals and no such values with a subtraction.
    trapless_function sub
        sub rsp, 24
        mov dword ptr [rsp + 12], edi
        mov eax, dword ptr [rsp + 12]
        add rsp, 24
        ret
    trapless_function_end sub

    # What looks at its return address is followed to where it is left.
    trapless_function exits
        push rbx
        mov rbx, qword ptr [rsp + 8]
        lea eax, [rdi + rsi]
        add rax, rbx
        pop rbx
        ret
    trapless_function_end exits

    # The sites of USDT probes, four bytes behind the start (`USDT`). A jump fits into the nop of five bytes; with
    # the one of one byte the instruction behind it is displaced. Nothing is kept below the stack pointer, which
    # the kernel's call from a nop of five bytes overwrites.
    trapless_function usdt_nop
        lea rax, [rdi + rsi]
        nop
        lea rax, [rax + rdx]
        ret
    trapless_function_end usdt_nop

    trapless_function usdt_nop5
        lea rax, [rdi + rsi]
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        lea rax, [rax + rdx]
        ret
    trapless_function_end usdt_nop5

    # void calls(void (*function)(void), uint64_t times), times > 0
    .p2align 6
    .globl trapless_bench_calls
    .hidden trapless_bench_calls
    .type trapless_bench_calls, @function
    trapless_bench_calls:
        push rbx
        push rbp
        sub rsp, 8
        mov rbx, rsi
        mov rbp, rdi
        .p2align 6
    1:  call rbp
        dec rbx
        jnz 1b
        add rsp, 8
        pop rbp
        pop rbx
        ret
    .size trapless_bench_calls, . - trapless_bench_calls

    # void increments(uint64_t *counter, uint64_t times): `usermode-count`, as the kernel's benchmark does it
    .p2align 6
    .globl trapless_bench_increments
    .hidden trapless_bench_increments
    trapless_bench_increments:
    1:  lock inc qword ptr [rdi]
        dec rsi
        jnz 1b
        ret
    "#
);
