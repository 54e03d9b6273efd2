//! Return verdicts: (name, mode, code of the function, expected).

use super::hex;
use crate::{BranchTargets, Machine, Reason, Site};

fn verdict(machine: Machine, code: &str) -> Result<(), Reason> {
    let code = hex(code);
    let targets = BranchTargets::default();
    let site = Site { address: 0x1000, function: 0x1000, code: &code, padding: &[], targets: &targets };
    machine.isa().return_verdict(&site)
}

#[test]
fn frames_of_every_usual_kind_are_followed() {
    for (name, code) in [
        ("no frame", "8d0437 c3"),
        ("stack protector", "4883ec18 64488b042528000000 4889442408 4883c418 c3"),
        ("frame pointer", "55 4889e5 4883ec10 897dfc 8b45fc c9 c3"),
        ("arguments on the stack: mov rax,[rsp+8]", "488b442408 c3"),
        ("arguments by the frame pointer: mov rax,[rbp+0x10]", "55 4889e5 488b4510 5d c3"),
        ("saved registers: lea rsp,[rbp-0x10]", "55 4889e5 4154 53 4883ec20 488d65f0 5b 415c 5d c3"),
        ("realigned: and rsp,-32", "55 4889e5 4883e4e0 4883ec40 c9 c3"),
        // lea r10,[rsp+8]; and rsp,-32; push [r10-8]; push rbp; mov rbp,rsp; push r10; pop r10; pop rbp; lea rsp,[r10-8]; ret
        (
            "realigned with a copy of the return address",
            "4c8d542408 4883e4e0 41ff72f8 55 4889e5 4152 415a 5d 498d62f8 c3",
        ),
        // push rbp; mov rbp,rsp; mov rbx,rsp; sub rsp,rax; mov rsp,rbx; leave; ret
        ("variable-length array", "55 4889e5 4889e3 4829c4 4889dc c9 c3"),
        // mov rax,[rbp-8]; mov rsp,rax
        ("stack pointer saved in the frame", "55 4889e5 4883ec20 488b45f8 4889c4 c9 c3"),
        ("stack probes: or qword [rsp],0", "4881ec00100000 48830c2400 4881c400100000 c3"),
        ("tail call", "4883ec08 4883c408 e900010000"),
        ("push of a target, ret", "50 c3"),
        ("mov rsp,rbp; pop rbp", "55 4889e5 4883ec10 4889ec 5d c3"),
        ("enter, leave", "c8100000 c9 c3"),
    ] {
        assert_eq!(verdict(Machine::X86_64, code), Ok(()), "{name}");
    }
}

#[test]
fn other_ways_to_return_are_refused() {
    use Reason::{MovesStackPointer, ReadsReturnAddress, ReturnsOddly};
    for (name, code, reason) in [
        ("mov rax,[rsp]", "488b0424 c3", ReadsReturnAddress),
        (
            "setjmp: its rsp and return address saved",
            "488d542408 48895730 488b0424 48894738 31c0 c3",
            ReadsReturnAddress,
        ),
        ("mov rax,[rsp+0x28] in a frame of 0x28", "4883ec28 488b442428 4883c428 c3", ReadsReturnAddress),
        ("__builtin_return_address(0) by the frame pointer", "55 4889e5 488b4508 5d c3", ReadsReturnAddress),
        ("after a call, which keeps the depth", "53 e800100000 488b5c2408 5b c3", ReadsReturnAddress),
        ("on one of two paths", "85ff 7404 488b0424 c3", ReadsReturnAddress),
        ("vfork: pop rdi; syscall; push rdi; ret", "5f 0f05 57 c3", ReadsReturnAddress),
        ("cmp [rsp],rax", "48390424 c3", ReadsReturnAddress),
        ("mov [rsp],rax", "48890424 c3", ReturnsOddly),
        ("ret 8", "c20800", MovesStackPointer),
        ("add rsp,8; jmp rax", "4883c408 ffe0", MovesStackPointer),
        ("longjmp: mov rsp,[rdi]; jmp [rdi+8]", "488b27 ff6708", MovesStackPointer),
        ("coroutine switch: xchg rsp,rsi", "4887e6 c3", MovesStackPointer),
        ("mov rsp,rsi", "4889f4 c3", MovesStackPointer),
    ] {
        assert_eq!(verdict(Machine::X86_64, code), Err(reason), "{name}");
    }
}

#[test]
fn the_same_in_32_bit_mode() {
    use Reason::{MovesStackPointer, ReadsReturnAddress, UnknownTailCall};
    for (name, code, expected) in [
        ("frame", "55 89e5 83ec18 8b4508 c9 c3", Ok(())),
        ("push; push; call; add esp,8", "6a01 6a02 e800100000 83c408 c3", Ok(())),
        ("a callee that pops 4: sub esp,8; call; add esp,4", "83ec08 e800100000 8b442404 83c404 c3", Ok(())),
        ("mov eax,[esp]", "8b0424 c3", Err(ReadsReturnAddress)),
        ("mov eax,[ebp+4]", "55 89e5 8b4504 5d c3", Err(ReadsReturnAddress)),
        ("struct return: ret 4", "8b442404 c20400", Err(MovesStackPointer)),
        // A stdcall function may be there.
        ("mov eax,[eax+4]; jmp eax", "8b4004 ffe0", Err(UnknownTailCall)),
        ("jmp [eax+4]", "ff6004", Err(UnknownTailCall)),
        ("jump table: jmp [eax*4+0x2000]", "ff248500200000", Ok(())),
    ] {
        assert_eq!(verdict(Machine::I386, code), expected, "{name}");
    }
}
