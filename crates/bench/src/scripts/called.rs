//! The function whose calls scripts probe, and the loop that calls it.
//!
//! Its arguments are a key, a text, and a number. It is called from a chain of functions that use `rbp` as they please and keep no
//! frame pointers, but are described for unwinders: what walks stacks has to go by that.

/// So many keys are the first argument, each as often as the others.
pub const KEYS: u64 = 4096;

/// So many texts are the second argument.
const TEXTS: usize = 64;

/// Functions below the loop. More than a stack has frames in a script that takes 20.
const CHAIN: u64 = 24;

/// What keys are mixed by: hits go over all of them in no order that a cache knows.
const MIX: u32 = 0x9e37_79b9;

/// How many calls pass before keys come again as they came: they are 12 bits of a product, of which 3 are left out below.
const PERIOD: u64 = KEYS << 3;

/// The key of a call.
fn key(call: u64) -> u64 {
    u64::from((call as u32).wrapping_mul(MIX) >> 3) & (KEYS - 1)
}

/// How many of the first `calls` calls have key 0.
pub fn calls_of_first_key(calls: u64) -> u64 {
    let rest = (0..calls % PERIOD).filter(|&call| key(call) == 0).count() as u64;
    calls / PERIOD * (PERIOD / KEYS) + rest
}

#[cfg(target_arch = "x86_64")]
mod code {
    core::arch::global_asm!(
        r#"
        .macro trapless_scripted name
        .p2align 6
        .globl trapless_bench_\name
        .hidden trapless_bench_\name
        .type trapless_bench_\name, @function
        trapless_bench_\name:
        .cfi_startproc
        .endm
        .macro trapless_scripted_end name
        .cfi_endproc
        .size trapless_bench_\name, . - trapless_bench_\name
        .endm

        .text
        # uint64_t called(uint64_t key, const char *text, uint64_t number)
        trapless_scripted called
            push rbx
            .cfi_adjust_cfa_offset 8
            .cfi_offset rbx, -16
            mov rbx, rdi
            lea rax, [rbx + rdx]
            pop rbx
            .cfi_adjust_cfa_offset -8
            .cfi_restore rbx
            ret
        trapless_scripted_end called
        .p2align 6

        # void calling(const char *const *texts, uint64_t times), times > 0
        trapless_scripted calling
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
        trapless_scripted_end calling

        # void deep(const char *const *texts, uint64_t times, uint64_t chain): calling, so many frames further down
        trapless_scripted deep
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
        trapless_scripted_end deep
        "#,
        mix = const super::MIX as i32,
        texts = const super::TEXTS,
        keys = const super::KEYS,
    );

    unsafe extern "C" {
        fn trapless_bench_deep(texts: *const *const u8, times: u64, chain: u64);
    }

    /// Calls the function `times` times, at least once.
    pub fn calls(times: u64) {
        let texts: [[u8; 24]; super::TEXTS] = std::array::from_fn(super::text);
        let addresses: [*const u8; super::TEXTS] = std::array::from_fn(|index| texts[index].as_ptr());
        // SAFETY: the code keeps what the ABI says is kept and reads the addresses in the array, no more of them than there are; nothing
        // is read at these addresses.
        unsafe { trapless_bench_deep(addresses.as_ptr(), times.max(1), super::CHAIN) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod code {
    /// There is nothing to call.
    pub fn calls(_: u64) {}
}

pub use code::calls;

/// A text of 20 characters, and zeros.
fn text(index: usize) -> [u8; 24] {
    let mut text = [0; 24];
    let said = format!("/var/spool/file-{index:04}");
    text[..said.len()].copy_from_slice(said.as_bytes());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_equally_often_and_are_foretold() {
        let mut seen = vec![0; KEYS as usize];
        for call in 0..PERIOD {
            seen[key(call) as usize] += 1;
        }
        assert!(seen.iter().all(|&times| times == PERIOD / KEYS));
        for calls in [0, 1, 2, PERIOD - 1, PERIOD, PERIOD + 1, 3 * PERIOD + 777] {
            let counted = (0..calls).filter(|&call| key(call) == 0).count() as u64;
            assert_eq!(calls_of_first_key(calls), counted, "{calls}");
        }
    }

    #[test]
    fn texts_end_and_are_as_long_as_is_said() {
        for index in 0..TEXTS {
            assert_eq!(text(index).iter().position(|&byte| byte == 0), Some(20));
        }
    }
}
