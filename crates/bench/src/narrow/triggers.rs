//! The triggers of 32-bit x86, for the child that a 64-bit trapless makes and for a 32-bit trapless itself.

/// Their text, between `trapless_function NAME` and `trapless_function_end NAME`.
macro_rules! triggers {
    () => {
        r#"
    trapless_function nop
        nop
        ret
    trapless_function_end nop

    trapless_function push
        push eax
        add esp, 4
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
        endbr32
        mov eax, [esp + 4]
        ret
    trapless_function_end endbr

    # Optimized code: registers that are kept over calls, then the arguments.
    trapless_function o2
        push esi
        push ebx
        sub esp, 4
        mov esi, [esp + 16]
        mov ebx, [esp + 20]
        lea eax, [ebx + esi]
        add esp, 4
        pop ebx
        pop esi
        ret
    trapless_function_end o2

    trapless_function sub
        sub esp, 28
        mov eax, [esp + 32]
        mov [esp + 12], eax
        add esp, 28
        ret
    trapless_function_end sub

    # Returns are followed by pairing calls only in 32-bit code, so here this one is the kernel's alone.
    trapless_function exits
        push ebx
        mov ebx, [esp + 4]
        mov eax, [esp + 8]
        add eax, ebx
        pop ebx
        ret
    trapless_function_end exits

    # The sites of USDT probes, as far behind the start as in 64-bit code: a load of the first argument has four
    # bytes.
    trapless_function usdt_nop
        mov eax, [esp + 4]
        nop
        add eax, [esp + 8]
        ret
    trapless_function_end usdt_nop

    trapless_function usdt_nop5
        mov eax, [esp + 4]
        .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        add eax, [esp + 8]
        ret
    trapless_function_end usdt_nop5
        "#
    };
}

pub(crate) use triggers;
